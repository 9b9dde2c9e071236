"""`goldnode matrix`: what it says is what a check says, docs/reference/matrix.md is true, and the page can be read by everybody."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from goldnode.catalog.load import Catalog
from goldnode.classdoc import blessed_combinations as matrices
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import host_of_stack, read_class
from goldnode.cli import main
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, Workload
from goldnode.core.errors import CatalogError
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.facts import module_builds

PAGE = Path(__file__).parents[3] / "docs/reference/matrix.md"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog([Path(__file__).parents[3] / "catalog"])


@pytest.fixture(scope="module")
def shown(catalog: Catalog) -> matrices.BlessedCombinations:
    return matrices.blessed_combinations(catalog, Site())


def rows(shown: matrices.BlessedCombinations) -> dict[str, matrices.CombinationRow]:
    return {row.name: row for table in shown.tables for row in table.rows}


def test_every_stack_and_class_is_in_it(
    shown: matrices.BlessedCombinations, catalog: Catalog
) -> None:
    assert set(rows(shown)) == {*catalog.stacks, *catalog.classes}
    for table in shown.tables:
        assert all(set(row.cells) >= set(table.columns) for row in table.rows)


def test_verdict_of_each_row_equals_that_of_a_check(
    shown: matrices.BlessedCombinations, catalog: Catalog
) -> None:
    """Of every row what the engine finds on the day of the facts; each newest CUDA is allowed and the next one is not."""
    day, found = facts_day(shown), rows(shown)
    for name in catalog.stacks:
        assert found[name].verdict == heaviest(
            check(host_of_stack(name, catalog, Site(), on=day))
        ), name
    for name in catalog.classes:
        host = read_class(name, catalog, Site(), on=day).host
        known = check(host)
        row = found[name]
        assert row.verdict == heaviest(known), name
        reported = {note.text.casefold() for note in row.notes}
        assert all(finding.message.casefold() in reported for finding in known), name
        for column, package, most in (
            ("CUDA", False, "ok"),
            ("CUDA, minor", False, "warn"),
            ("CUDA, forward", True, "warn"),
        ):
            version = row.cells[column]
            if version == matrices.NONE:
                continue
            answer = [
                finding
                for finding in check(host, [Workload("it", cuda=version, forward_compat=package)])
                if finding not in known
            ]
            assert heaviest(answer) == most, (name, column)


def heaviest(found: list[CompatFinding]) -> str:
    order = ("ok", "warn", "unknown", "block")
    return max(
        (finding.severity for finding in found if finding.accepted is None),
        key=order.index,
        default="ok",
    )


def facts_day(shown: matrices.BlessedCombinations) -> dt.date:
    assert shown.date == facts.compiled()
    assert str(shown.date) == max(
        str(facts.load(path.name)["meta"]["compiled"]) for path in facts.FACTS.glob("*.yml")
    )
    return shown.date


def test_r535_rows_show_cuda_versions_and_expired_support(
    shown: matrices.BlessedCombinations,
) -> None:
    """Read in the vendor's tables: native 12.2 (driver branches), 12.9 the last of its major, 13.1 the last with a list of branches."""
    row = rows(shown)["demo_a100"]
    assert [row.cells[column] for column in ("CUDA", "CUDA, minor", "CUDA, forward")] == [
        "12.2",
        "12.9",
        "13.1",
    ]
    assert (
        rows(shown)["debian12_r535"].cells["Security"]
        == "no fixes after bulletin 5821 (2026-05-19)"
    )
    assert rows(shown)["debian12_r535"].cells["Support ends"] == "2026-06-30, past"
    assert "past; waived until" in rows(shown)["demo_r535"].cells["Support ends"]
    assert [rows(shown)[name].verdict for name in ("debian12_r535", "demo_r535")] == [
        "block",
        "block",
    ]
    assert rows(shown)["debian13_r550"].verdict == "block"


def test_rows_report_partial_trials_and_simulated_hardware(
    shown: matrices.BlessedCombinations, catalog: Catalog
) -> None:
    for name, entry in catalog.stacks.items():
        real = entry.item.exercised == "debian-archive"
        tried = rows(shown)[name].cells["Tried out"]
        assert (tried == "on Debian's own archive") is real, name
        assert ("only" in tried) is (entry.item.exercised == "local-archive"), name
    for name, klass in catalog.classes.items():
        assert ("simulated" in rows(shown)[name].cells["Hardware"]) is klass.item.simulated, name


def test_the_page_of_the_documentation_is_true(shown: matrices.BlessedCombinations) -> None:
    reported = "run `goldnode matrix --format markdown --out docs/reference/matrix.md` without a site of your own"
    assert PAGE.read_text(encoding="utf-8") == matrices.markdown(shown), reported


def test_second_rendering_of_the_matrix_is_identical(shown: matrices.BlessedCombinations) -> None:
    again = matrices.blessed_combinations(
        load_catalog([Path(__file__).parents[3] / "catalog"]), Site()
    )
    for render in (matrices.text, matrices.markdown, matrices.html):
        assert render(again) == render(shown)


def test_markdown_tables_hold_together(shown: matrices.BlessedCombinations) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", matrices.markdown(shown), re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


class Reader(HTMLParser):
    """Collects what a reader's machine and a screen reader need of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.headers: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)
        if given.get("id"):
            self.ids.append(given["id"] or "")
        if tag == "a":
            self.links.append(given.get("href") or "")
        self.loaded += [given[key] or "" for key in ("src", "data", "poster") if key in given]
        if tag == "link":
            self.loaded.append(given.get("href") or "")
        if tag == "th":
            self.headers.append(given.get("scope"))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_html_needs_nothing_else_and_can_be_read_by_all_users(
    shown: matrices.BlessedCombinations,
) -> None:
    page = matrices.html(shown, module_builds.builds())
    reader = Reader()
    reader.feed(page)
    assert (reader.wrong, reader.open) == ([], [])
    assert reader.loaded == []
    assert "@import" not in page
    assert "url(" not in page
    assert len(reader.ids) == len(set(reader.ids))
    assert set(rows(shown)) <= set(reader.ids)
    for link in reader.links:
        assert link.startswith("https://") or link.removeprefix("#") in reader.ids, link
    assert '<html lang="en">' in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert reader.headers
    assert set(reader.headers) == {"col", "row"}
    assert reader.tags.count("caption") == reader.tags.count("table") == len(shown.tables) + 1
    assert len(page.encode()) < 1_000_000
    # A verdict is a word, not a colour alone.
    assert re.findall(r'<span class="tag \w+"></span>', page) == []


# The ROCm of mi300x is "not known", and demo_r535's module is of a stand-in that is not measured.
def test_each_cell_has_a_source(shown: matrices.BlessedCombinations) -> None:
    open_cells = (matrices.NONE, matrices.NOT_MEASURED, "not locked", "not known")
    for table in shown.tables:
        for row in table.rows:
            lacking = [
                column
                for column in table.columns
                if row.cells[column] not in open_cells and column not in row.sources
            ]
            assert lacking == [], row.name


# Query -> rows of stacks, of classes, and whether measured builds are left.
FILTERS = {
    "?gpu=H100-SXM5-80GB": ({"debian13_r580"}, {"h100_sxm5_80gb"}, False),
    "?gpu=A100-SXM4-40GB&cuda=13.0": ({"debian12_r580"}, {"a100_sxm4_40gb"}, False),
    "?driver=nvidia+550&os=debian+13": ({"debian13_r550"}, {"demo_disk_r550"}, True),
    "?q=flex+i915": (set(), set(), False),
    "?q=flex": (set(), {"flex_170"}, False),
}


@pytest.fixture(scope="module")
def page(
    shown: matrices.BlessedCombinations, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    file = tmp_path_factory.mktemp("matrix") / "matrix.html"
    file.write_text(matrices.html(shown, module_builds.builds()), encoding="utf-8")
    with driver.sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = started.chromium.launch(executable_path=chromium, args=options)
        opened = launched.new_page()
        opened.address = file.as_uri()
        yield opened
        launched.close()


def left(page: Any, number: int) -> set[str]:
    """Return the names of the rows of a table that are visible."""
    rows = page.locator("table").nth(number).locator("tbody tr:not([hidden]) > th")
    return set(rows.all_text_contents())


@pytest.mark.parametrize("query", FILTERS)
def test_filter_of_an_address_shows_rows_and_what_belongs_to_them(page: Any, query: str) -> None:
    stacks, classes, builds = FILTERS[query]
    page.goto(page.address + query)
    assert (left(page, 0), left(page, 1)) == (stacks, classes)
    assert bool(left(page, 2)) is builds


def test_filter_is_in_the_address_and_can_be_taken_back(page: Any) -> None:
    page.goto(page.address)
    everything = page.locator("#count").inner_text()
    page.select_option("select[name=gpu]", "L4")
    assert "gpu=L4" in page.url
    assert left(page, 1) == {"l4"}
    assert page.locator("details:not([hidden])").count() == 2
    page.click("button[type=reset]")
    page.wait_for_function(f"document.getElementById('count').value === '{everything}'")
    assert "gpu" not in page.url


def test_embedded_page_has_no_head(page: Any) -> None:
    page.goto(f"{page.address}?embed")
    assert not page.locator("h1").is_visible()
    assert page.locator("table").first.is_visible()


def test_html_shows_the_evidence_of_a_class(shown: matrices.BlessedCombinations) -> None:
    proof = matrices.CombinationProof("boot", "stale", "2026-11-01T00:00:00Z", "H100 x 8", "kernel")
    text = matrices.html(replace(shown, proofs={"l4": [proof]}))
    assert "Evidence boot, 2026-11-01T00:00:00Z, on H100 x 8: kernel." in text
    assert "No evidence of a site" not in text
    assert "No evidence of a site" in matrices.html(shown)


@pytest.mark.parametrize(
    ("folders", "shown_text"),
    [([], "Nothing is found"), (["l4"], "the class cannot be read: no document of l4")],
)
def test_class_that_cannot_be_read_leaves_the_page_whole(
    folders: list[str], shown_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, _: Site) -> None:
        raise CatalogError(f"no document of {name}")

    monkeypatch.setattr("goldnode.fleet.control.evidence.present", refused)
    monkeypatch.setattr("goldnode.evidence.proved.trust", lambda _: None)
    (tmp_path / "site.yml").write_text("evidence: {public_key: key.pem, directory: proofs}\n")
    for name in folders:
        (tmp_path / "proofs" / name).mkdir(parents=True)
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    done = CliRunner().invoke(main, ["matrix", "--format", "html"])
    assert done.exit_code == 0, done.output
    assert shown_text in done.output
    assert "could not check" in done.output or not folders
    assert "debian13_r550" in done.output


def test_html_escapes_text_of_the_catalog(shown: matrices.BlessedCombinations) -> None:
    note = matrices.CombinationNote("warn", "<script>alert(1)</script>", (), "a < b", None)
    row = matrices.CombinationRow("odd", {"OS": "<b>"}, "warn", (note,), ("x & y",))
    page = matrices.html(
        matrices.BlessedCombinations(
            shown.date, (matrices.CombinationTable("Stacks", "Stack", "About.", ("OS",), (row,)),)
        )
    )
    assert "<script>alert" not in page
    assert "&lt;b&gt;" in page
    assert "x &amp; y" in page


def test_matrix_command_writes_html_and_prints_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yml").write_text("archives: {}\n")
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "matrix.html"
    result = CliRunner().invoke(main, ["matrix", "--format", "html", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.output == f"wrote {out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    printed = CliRunner().invoke(main, ["matrix"])
    assert printed.exit_code == 0
    assert "debian13_r550: blocked" in printed.output
