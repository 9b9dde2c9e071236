"""The documentation: each link and anchor leads somewhere, and each path of a page that a file names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.unit.test_hygiene import tracked

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in tracked() if path.suffix == ".md")

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`\n]*?\1")
_LINK = re.compile(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
# A page that a text of the project names. The facts and one comment cite the files of other projects.
_NAMED = re.compile(r"(?<!containerd )(?<![\w/.-])docs/(?:[\w-]+/)*[\w-]+\.(?:md|svg|json)\b")


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site (mkdocs.yml) generate it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page. A heading that occurs again gets a number, the first again `-1`."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    seen: dict[str, int] = {}
    found = set(_ANCHOR.findall(text))
    for heading in _HEADING.findall(text):
        name = slug(heading)
        found.add(name if name not in seen else f"{name}-{seen[name]}")
        seen[name] = seen.get(name, 0) + 1
    return frozenset(found)


def links(text: str) -> Iterator[str]:
    """Return the targets of the links of a page that stay in the repository."""
    for target in _LINK.findall(_CODE.sub("x", _FENCE.sub("", text))):
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(page: Path, text: str) -> list[str]:
    """Return the links of `page` whose file or anchor does not exist."""
    found = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (page.parent / unquote(path)).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            found.append(f"{target}: no such file")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            found.append(f"{target}: no such anchor")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs/development.md"
    text = "[a](style.md#words) [b](style.md#wrods) [c](gone.md) `[d](code.md)` [e](https://example.net/x)"
    assert broken(page, text) == ["style.md#wrods: no such anchor", "gone.md: no such file"]


def test_pages_that_code_and_messages_name_exist() -> None:
    wrong = []
    for path in tracked():
        if path.is_relative_to(ROOT / "src/goldnode/facts") or path == Path(__file__):
            continue
        for name in set(_NAMED.findall(path.read_text("utf-8", "replace"))):
            if not (ROOT / name).exists():
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []
