"""Write the pictures of docs/how-to/fleet-report.md: `python -m tests.unit.fleet.report.screenshots [DIRECTORY [WIDTH...]]`.

It makes a simulated fleet, its report, and pictures of the fleet, of one class and of one node in Chromium. Without
WIDTH, each has the width of the documentation; with some, it writes each page at each width, as a whole.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from tests.simulators.fleet import (
    FIRST_ID,
    NOW,
    Json,
    SyntheticNode,
    canary,
    finding,
    fleet,
    put,
    store,
    store_results,
)

from goldnode.commands.fleet.report_page import html
from goldnode.fleet.report.build import report
from goldnode.fleet.report.frame import ExpectedNode, ReportSettings, ReportSource

ASSETS = Path(__file__).parents[4] / "docs/assets"
WIDTH, HEIGHT = 1100, 950
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DEVICES = [f"0000:{number:02x}:00.0" for number in (0x1B, 0x43, 0x52, 0x61)]
# Page -> address in it, and the element that is at the top of the picture.
PAGES = {
    "fleet": ("", "h1"),
    "class": ("class=h100", "#classes"),
    "node": ("node=node1007", "#node-name"),
}


def simulated_fleet() -> tuple[list[SyntheticNode], list[SyntheticNode]]:
    """Return the nodes of two classes with drift, faults, a mixed ring and a node that is missing values."""
    h100 = fleet(96, "h100", cohort_size=16)
    l40s = [SyntheticNode(FIRST_ID + 500 + place, "l40s") for place in range(24)]
    for node in h100[3:5]:
        node.change(put("driver/loaded", "570.172.08"), NOW - 3 * DAY)
        node.find(
            finding("driver.loaded", "580.95.05", "570.172.08", severity="drain"), NOW - 3 * DAY
        )
    for node in h100[20:23]:
        node.change(put("network/eth0/mtu", 1500), NOW - 2 * DAY)
        node.find(finding("net.mtu", "9000", "1500", subject="eth0"), NOW - 2 * DAY)
    h100[7].change(lambda capture: capture["gpus"][2].pop("vbios"))
    h100[40].change(put("gpus/1/vbios", "96.00.61.00.01"))
    h100[60].find(
        finding("gpu.ecc.uncorrected", "0", "unread: GPU is lost", outcome="could_not_read")
    )
    for node in l40s[:2]:
        node.change(put("os/kernel/running", "6.1.0-30-amd64"), NOW - DAY)
    return h100, l40s


def results(nodes: Iterable[SyntheticNode]) -> list[Json]:
    """Return canary results: node1007 has lost speed, node1050 loses some each day, node1011 fails a job."""
    chosen = random.Random(6)  # noqa: S311 - repeatable
    found = []
    for node in nodes:
        for day in range(12, 0, -1) if node.number == 1050 else (1,):
            factor = {1007: 0.83, 1050: 0.9 + 0.008 * day}.get(node.number, 1.0)
            speeds = {one: 640 * chosen.gauss(1, 0.01) for one in DEVICES}
            samples = {
                name: {
                    one: [speed * scale * factor * chosen.gauss(1, 0.004) for _ in range(20)]
                    for one, speed in speeds.items()
                }
                for name, scale in (("gemm_fp16", 1.0), ("gemm_bf16", 1.02))
            }
            found.append(
                canary(node.name, NOW - day * DAY, samples, platform="NVIDIA H100 80GB HBM3 x 4")
            )
        if node.number == 1011:
            job: Json = {
                "name": "inference",
                "state": "failed",
                "why": "the result differs in 3 of 4096 values",
            }
            job |= {"seconds": 2.0, "verified": True, "metrics": []}
            found[-1]["jobs"].append(job)
    return found


def page(directory: Path) -> str:
    """Return the page of the simulated fleet."""
    h100, l40s = simulated_fleet()
    fault = finding("gpu.remap.pending", "0", "1", domain="hardware", severity="drain")
    for age in range(24, 0, -1):
        time = NOW - age * DAY + 23 * HOUR
        for node in (h100[7], h100[30]):
            node.findings = [(NOW - 90 * DAY, fault)] if age in (21, 15, 14, 9, 2) else []
        away = h100[70:72] if age < 5 else []
        store(directory, [node for node in (*h100, *l40s) if node not in away], [time], gpus=4)
    store_results(directory, results(h100))
    expected = [ExpectedNode("node1999", "h100", "ring05")]  # it has never reported
    return html(report(ReportSource(directory, expected), ReportSettings(NOW)))


def take(browser: Any, file: Path, out: Path, widths: Iterable[int]) -> None:
    """Write the pictures: one of each page, or each page as a whole at each width."""
    wide = list(widths)
    for width in wide or [WIDTH]:
        for name, (address, top) in PAGES.items():
            window = browser.new_page(
                viewport={"width": width, "height": HEIGHT}, bypass_csp=True, color_scheme="light"
            )
            window.goto(f"{file.as_uri()}#{address}")
            window.wait_for_selector(f"{top}:visible")
            if not wide and name == "class":
                window.evaluate(
                    f"document.querySelector('{top}').scrollIntoView(); scrollBy(0, -60)"
                )
            picture = out / (
                f"fleet-report-{name}-{width}.png" if wide else f"fleet-report-{name}.png"
            )
            window.screenshot(path=picture, full_page=bool(wide))
            print(f"{picture}: {picture.stat().st_size // 1000} kB")
            window.close()


def main(words: list[str]) -> None:
    """Write the pictures."""
    out = Path(words[0]) if words else ASSETS
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / "fleet.html"
        file.write_text(page(Path(folder) / "data"), encoding="utf-8")
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        take(browser, file, out, map(int, words[1:]))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
