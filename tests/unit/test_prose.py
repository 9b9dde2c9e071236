"""The prose of code and pages keeps to docs/style.md, as far as that can be counted (`python -m tests.unit.prose PATH …` lists the hits)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.prose import CONSTRUCTIONS, Construction, Prose, count, hits, page

ROOT = Path(__file__).parents[2]

# What has been rewritten. The rest follows: add it here once it is within the limits.
PACKAGES = (
    *(
        "ansible",
        "catalog",
        "channels",
        "classdoc",
        "commands",
        "compat",
        "core",
        "disks",
        "documents",
        "evidence",
        "facts",
        "fleet",
        "images",
    ),
    *(
        "inspect",
        "inventory",
        "lock",
        "node",
        "oci",
        "testing",
    ),
)
REWRITTEN = tuple(f"src/goldnode/{name}" for name in PACKAGES)

WRONG = {
    'sentence that opens with a nominal "What"': "What a class wants of a GPU.",
    '"says so", "says nothing", "says of"': "The driver is old and says so.",
    "nobody, somebody, whoever, whatever": "A file that somebody else owns.",
    '"is none", "are none"': "None where there is none.",
    '"stands" for "is" or "is stored"': "The tag stands for an image.",
    '"told", "tells" for "reported"': "A fault is told by its line.",
    "double genitive": "A file of goldnode's.",
    "words that docs/style.md replaces": "The index is made anew.",
}
RIGHT = (
    "What does this rule judge?",
    "Return what the class wants.",
    "Whatever-like names such as `whatever` are code.",
    "The class has none of these.",
    "The node stands alone, or stands by.",
    "A note for a person: retold by systemd.",
    "A file of Debian.",
)


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda construction: construction.name)
def test_each_construction_is_found(construction: Construction) -> None:
    text = WRONG[construction.name]
    assert [hit.construction for hit in hits(Path("x.py"), [Prose(1, text)])] == [construction]


@pytest.mark.parametrize("text", [RIGHT[0], RIGHT[1], *RIGHT[3:]])
def test_plain_english_is_not(text: str) -> None:
    assert list(hits(Path("x.py"), [Prose(1, text)])) == []


def test_code_in_pages_does_not_count() -> None:
    text = "Text.\n\n```sh\necho What is told\n```\n\nUse `whatever`. What it does.\n"
    found = list(hits(Path("x.md"), page(text)))
    assert [(hit.line, hit.construction.name) for hit in found] == [(7, CONSTRUCTIONS[0].name)]


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda construction: construction.name)
def test_rewritten_prose_is_within_the_limits(construction: Construction) -> None:
    words, found = count(ROOT / path for path in REWRITTEN)
    of_this = [hit for hit in found if hit.construction is construction]
    rate = 1000 * len(of_this) / words
    assert rate <= construction.limit, "\n".join(
        f"{hit.path.relative_to(ROOT)}:{hit.line}: {hit.excerpt}" for hit in of_this
    )
