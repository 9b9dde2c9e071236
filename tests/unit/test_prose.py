"""The prose of code and pages follows docs/style.md, as far as that can be counted (`python -m tests.unit.prose PATH …` lists the hits)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from tests.unit.prose import (
    CONSTRUCTIONS,
    Construction,
    Hit,
    Prose,
    count,
    hits,
    literal_hits,
    literals,
    page,
)
from tests.unit.test_hygiene import tracked

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


@cache
def code() -> tuple[int, list[Hit]]:
    """Return the words and the hits of the rewritten packages."""
    return count(ROOT / path for path in REWRITTEN)


@cache
def pages() -> tuple[int, list[Hit]]:
    """Return the words and the hits of all Markdown pages. The changelog of released versions is left out."""
    return count(path for path in tracked() if path.suffix == ".md" and path.name != "CHANGELOG.md")


def over(construction: Construction, words: int, found: list[Hit]) -> list[str]:
    """Return the hits of one construction if they exceed its limit."""
    of_this = [hit for hit in found if hit.construction is construction]
    if len(of_this) <= construction.limit * words / 1000:
        return []
    return [f"{hit.path.relative_to(ROOT)}:{hit.line}: {hit.excerpt}" for hit in of_this]


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda construction: construction.name)
def test_rewritten_prose_is_within_the_limits(construction: Construction) -> None:
    wrong = over(construction, *code())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda construction: construction.name)
def test_pages_are_within_the_limits(construction: Construction) -> None:
    wrong = over(construction, *pages())
    assert not wrong, "\n".join(wrong)


# Their bytes are those of container images and of the facts; a change of words would change digests.
FIXED_BYTES = ("images/hostpackage.py", "images/smoke/runner/", "node/known.py")


def test_literals_are_messages_and_not_files() -> None:
    source = 'A = "The tag stands for it"\nB = f"somebody has {x} here"\nC = "# whoever reads this file"\nD = "told"\n'
    assert [prose.text for prose in literals(ast.parse(source))] == [
        "The tag stands for it",
        "somebody has {} here",
    ]


@cache
def messages() -> list[Hit]:
    """Return the hits in the string literals of src. "have none" is often what is meant and does not count."""
    source = ROOT / "src/goldnode"
    modules = [
        path
        for path in sorted(source.rglob("*.py"))
        if not path.relative_to(source).as_posix().startswith(FIXED_BYTES)
    ]
    return [
        hit
        for path in modules
        for hit in literal_hits(path)
        if hit.construction.name != '"is none", "are none"'
        and "told: {" not in hit.excerpt  # a key of the plan
    ]


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda construction: construction.name)
def test_string_literals_have_no_private_vocabulary(construction: Construction) -> None:
    wrong = [
        f"{hit.path.relative_to(ROOT)}:{hit.line}: {hit.excerpt}"
        for hit in messages()
        if hit.construction is construction
    ]
    assert not wrong, "\n".join(wrong)


def test_all_pages_are_counted() -> None:
    words, _ = pages()
    assert words > 50_000, "tracked() no longer returns the pages of docs/"
