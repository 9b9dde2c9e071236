"""The page of `goldnode fleet report` in Chromium: figures, keyboard, three widths, no network, no error."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import NOW, finding, fleet, put, store

from goldnode.commands.fleet.report_page import LIMIT, html
from goldnode.documents.fleet_report import FleetReportDocument
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ReportSettings, ReportSource

CHROMIUM = shutil.which("chromium")
TEMPLATES = Path(__file__).parents[4] / "src/goldnode/commands/templates"
DAY = timedelta(days=1)
# SHA-256 of the files of the npm package uplot 1.6.32.
VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FleetReportDocument:
    directory = tmp_path_factory.mktemp("captures")
    nodes = fleet(130, cohort_size=10)
    for node in nodes[:3]:
        node.change(put("driver/loaded", "570.1"), NOW - 3 * DAY)
        node.find(finding("driver.loaded", "580", "570.1", severity="drain"), NOW - 3 * DAY)
    nodes[5].change(put("network/eth0/mtu", 1500))
    nodes[6].find(
        finding("gpu.vbios", "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>")
    )
    store(directory, nodes, [NOW - 8 * DAY], gpus=1)
    store(directory, nodes[:-1], [NOW - DAY, NOW - DAY / 24], gpus=1)
    return report(ReportSource(directory), ReportSettings(NOW))


@pytest.fixture(scope="module")
def page_file(found: FleetReportDocument, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "fleet.html"
    file.write_text(html(found), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with driver.sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


class OpenedPage:
    """The page in a window, with the messages of its console and its requests."""

    def __init__(self, browser: Any, file: Path, width: int) -> None:
        # The driver waits with eval, which the policy of the page refuses.
        self.page = browser.new_page(viewport={"width": width, "height": 900}, bypass_csp=True)
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def rows(self) -> list[str]:
        return [str(one) for one in self.page.locator("#list tbody th").all_inner_texts()]

    def fits(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def go(self, node: str) -> None:
        self.page.evaluate(f"location.hash = 'node={node}'")
        self.page.wait_for_function(
            f"document.getElementById('node-name').textContent === '{node}'"
        )


@pytest.fixture
def opened(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[OpenedPage]:
    window = OpenedPage(browser, page_file, getattr(request, "param", 1280))
    yield window
    assert window.messages == []
    assert {one.partition("#")[0] for one in window.requests} == {page_file.as_uri()}, (
        "it asked for something"
    )
    window.page.close()


@pytest.mark.parametrize("opened", [320, 800, 1280], indirect=True)
def test_page_fits_its_window_and_has_the_figures_of_the_document(
    opened: OpenedPage, found: FleetReportDocument
) -> None:
    assert opened.fits()
    counts = {
        one.get_attribute("data-count"): int(one.inner_text())
        for one in opened.page.locator("[data-count]").all()
    }
    assert counts == found.classes[0].states
    assert sum(counts.values()) == len(found.nodes) == 130
    causes = opened.page.locator("section[aria-labelledby=causes] tbody tr")
    assert causes.count() == len(found.causes) == 3
    assert opened.text("#shown") == "130 of 130 nodes"
    assert opened.page.locator("#days-chart canvas").count() == 1
    opened.go("node1000")
    opened.page.wait_for_selector("#node-chart canvas")
    assert opened.fits()


def test_list_is_filtered_sorted_and_lengthened(opened: OpenedPage) -> None:
    page = opened.page
    assert opened.rows()[:3] == ["node1000", "node1001", "node1002"], "the worst first"
    assert len(opened.rows()) == 100
    page.click("#more")
    assert len(opened.rows()) == 130
    page.click("#list thead button >> nth=0")
    page.click("#list thead button >> nth=0")
    assert opened.rows()[0] == "node1129"
    assert page.get_attribute("#list thead th >> nth=0", "aria-sort") == "descending"
    page.fill("#filter", "driver NODE100")
    assert sorted(opened.rows()) == ["node1000", "node1001", "node1002"]
    page.fill("#filter", "nothing of this name")
    assert (opened.rows(), opened.text("#shown")) == ([], "0 of 130 nodes")
    page.fill("#filter", "")
    page.select_option("#state", "stale")
    assert opened.rows() == ["node1129"]


def test_page_of_a_node_has_its_causes_changes_and_history(opened: OpenedPage) -> None:
    opened.page.click("text=node1005 >> nth=0")
    opened.page.wait_for_selector("#node:not([hidden])")
    assert opened.text("#node-name") == "node1005"
    assert "MTU" in opened.text("#node-content")
    assert not opened.page.is_visible("#fleet")
    opened.go("node1000")
    assert "Changed since" in opened.text("#node-content")
    history = opened.text("#node-history")
    assert history.index("drain") < history.index("healthy"), "the latest first"
    opened.go("node1129")
    assert "Not known" in opened.text("#node-content")
    opened.page.click("text=All nodes")
    opened.page.wait_for_selector("#fleet:not([hidden])")


def test_page_is_usable_with_the_keyboard_alone(opened: OpenedPage) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'nodes'")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.type("mtu")
    assert opened.rows() == ["node1005"]
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "node1005":
            break
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'node-name'")
    assert opened.text("#node-name") == "node1005"


def test_text_of_a_node_is_never_markup(opened: OpenedPage, page_file: Path) -> None:
    content = page_file.read_text(encoding="utf-8")
    assert "alert(1)" in content
    assert "<img" not in content
    assert opened.page.locator("img").count() == 0
    opened.go("node1006")
    assert "<img src=x onerror=alert(1)>" in opened.text("#node-content")


def test_page_names_simulated_hardware_and_links_nowhere(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert "<b>Simulated.</b>" in text
    # It is above the page of the fleet and that of a node, and stays in sight.
    assert text.index("<b>Simulated.</b>") < text.index('<main id="fleet">')
    assert "<title>Simulated: " in text
    body = re.sub(r"<script.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r"https?://| src=[\"']|url\(", body)
    assert "default-src 'none'" in text


def test_page_of_ten_thousand_nodes_stays_small(found: FleetReportDocument) -> None:
    nodes = [found.nodes[0].model_copy(update={"node": f"n{place:05}"}) for place in range(10_000)]
    causes = [found.causes[0]] * (LIMIT + 1)
    assert len(html(found.model_copy(update={"nodes": nodes, "causes": causes}))) < 5_000_000


def test_vendored_files_are_those_of_the_package() -> None:
    folder = TEMPLATES / "uplot"
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in VENDORED}
    assert digests == VENDORED
    assert "1.6.32" in (folder / "README.md").read_text(encoding="utf-8")
