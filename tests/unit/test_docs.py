"""The documentation: each link and anchor leads somewhere, and each path of a page that a file names exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
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


def test_the_readme_fits_on_a_screen() -> None:
    assert (ROOT / "README.md").stat().st_size <= 5000, "move details to docs/"


def listed(nav: object) -> Iterator[str]:
    """Return the pages that a navigation lists."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from listed(below)
    elif isinstance(nav, list):
        for below in nav:
            yield from listed(below)


def test_the_navigation_lists_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    pages = sorted(
        str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")
    )
    assert sorted(listed(nav)) == pages


@pytest.mark.parametrize("text", [None, "[gone](gone.md)", "[gone](style.md#gone)"])
def test_the_site_builds_without_a_warning(tmp_path: Path, text: str | None) -> None:
    """A broken link and a broken anchor fail; pages refer to nothing outside the site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install mkdocs-material")
    pytest.importorskip(
        "material", reason="MkDocs Material is not installed: pip install mkdocs-material"
    )
    tree = tmp_path / "tree"
    for name in tracked():
        inside = name.relative_to(ROOT)
        if inside.parts[0] == "docs" or str(inside) in ("mkdocs.yml", "scripts/lib/site_hook.py"):
            (tree / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, tree / inside)
    if text is not None:
        page = tree / "docs/development.md"
        page.write_text(page.read_text(encoding="utf-8") + f"\n{text}\n", encoding="utf-8")
    argv = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(argv, cwd=tree, capture_output=True, text=True, check=False, env=env)
    if text is not None:
        assert done.returncode != 0
        assert "gone" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    fetched = [
        f"{path.relative_to(tmp_path)}: {match}"
        for path in (tmp_path / "site").rglob("*.html")
        for match in re.findall(
            r"<(?:script|img|iframe)[^>]+src=[\"']?https?:[^\"' >]+|<link[^>]+stylesheet[^>]+https?:[^\"' >]+",
            path.read_text(encoding="utf-8"),
        )
    ]
    assert fetched == []
