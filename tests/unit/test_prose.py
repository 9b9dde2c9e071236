"""The prose of code and pages follows docs/style.md, as far as that can be counted (`python -m tests.unit.prose PATH …` lists the hits)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    module,
    page,
    parsed,
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
FIXED_BYTES = ("images/hostpackage.py", "node/ground/known.py", "node/ground/log_lines.py")


def test_literals_are_messages_and_not_files() -> None:
    source = 'A = "The tag stands for it"\nB = f"somebody has {x} here"\nC = "# whoever reads this file"\nD = "told"\n'
    assert [prose.text for prose in parsed(source).literals] == [
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


# Words that docs/style.md replaces, as parts of names. A name is split at `_` and before capital letters.
PRIVATE = frozenset(
    (
        *(
            "told",
            "tell",
            "tells",
            "untold",
            "somebody",
            "nobody",
            "whoever",
            "aside",
            "anew",
            "brought",
        ),
        *(
            "stands",
            "stood",
            "standing",
            "mend",
            "mends",
            "mended",
            "kept",
            "sides",
            "ours",
            "theirs",
        ),
        *("strangers", "elses", "plain", "said", "says"),
    )
)
# Published keys of documents, facts and Ansible results; and names that another package imports.
PUBLISHED = frozenset({"told", "ours", "plain_name_from_branch", "kept_versions"})
# These packages are being rewritten, or their bytes are part of container images.
OTHERS = ("channels", "evidence", "fleet", "images", "inspect", "oci")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def private_names(
    names: Iterable[tuple[int, str]], tests: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield line and name of each definition and assignment whose name has a word of PRIVATE.

    Names of tests are sentences, in which some of these words are ordinary English.
    """
    for line, name in names:
        if (
            not (tests and name.startswith("test_"))
            and {part.lower() for part in _PART.findall(name)} & PRIVATE
        ):
            yield line, name


def test_private_names_are_found() -> None:
    source = "import x as kept\ndef _untold(ours): ...\nself.told = 1\nclass FooSides: ...\nKEPT, other = f(plain=1)\n"
    assert {name for _, name in private_names(parsed(source).definitions)} == {
        "kept",
        "_untold",
        "ours",
        "told",
        "FooSides",
        "KEPT",
    }
    assert not list(private_names(parsed("def test_what_is_told(): ...").definitions, tests=True))


def test_names_have_no_private_vocabulary() -> None:
    left_out = tuple(
        ROOT / place / name for place in ("src/goldnode", "tests/unit", "tests") for name in OTHERS
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for place in ("src", "tests")
        for path in sorted((ROOT / place).rglob("*.py"))
        if not any(folder in path.parents for folder in left_out)
        for line, name in private_names(module(path).definitions, place == "tests")
        if not (name in PUBLISHED and place == "src")
    ]
    assert not wrong, "\n".join(wrong)
