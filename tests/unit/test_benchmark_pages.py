"""The figures on the pages of the benchmarks are those of the JSON beside them: each page, written again, is the page."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest
from benchmarks import pages

DOCS = pages.ROOT / "docs/benchmarks"
WRITERS = {
    "check": "__main__",
    "converge": "report",
    "cve": "__main__",
    "disks": "report",
    "fleet": "__main__",
    "hosts": "__main__",
    "images": "__main__",
    "ingest": "__main__",
    "inspect": "__main__",
    "lemons": "__main__",
    "preflight": "__main__",
    "provision": "report",
    "report": "__main__",
    "rollout": "__main__",
    "sanity": "__main__",
}


# The ledger's page explains it; its figures are in the JSON alone.
@pytest.mark.parametrize("name", sorted({path.stem for path in DOCS.glob("*.json")} - {"ledger"}))
def test_a_page_written_again_is_the_page(name: str, tmp_path: Path) -> None:
    assert name in WRITERS, "say which module writes this page"
    writer = importlib.import_module(f"benchmarks.{name}.{WRITERS[name]}")
    shutil.copy(DOCS / f"{name}.md", tmp_path)
    found = json.loads((DOCS / f"{name}.json").read_text(encoding="utf-8"))
    pages.write(name, found, writer.tables(found), tmp_path)
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") == (DOCS / f"{name}.md").read_text(
        encoding="utf-8"
    )


def test_text_around_the_figures_stays(tmp_path: Path) -> None:
    page = tmp_path / "disks.md"
    page.write_text(
        "# Title\n\n<!-- figures: written by benchmarks/run disks -->\n\nold\n\n<!-- end of figures -->\n\nafter\n",
        encoding="utf-8",
    )
    pages.write("disks", {"a": 1}, "new", tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Title\n")
    assert text.endswith("<!-- end of figures -->\n\nafter\n")
    assert "old" not in text


def test_the_page_of_disks_has_no_figure_that_no_one_took() -> None:
    assert (DOCS / "disks.json").exists() or "No figures yet" in (DOCS / "disks.md").read_text(
        encoding="utf-8"
    )


def test_the_tables_of_disks() -> None:
    from benchmarks.disks import report

    mine = {
        "name": "goldnode",
        "stages": {"cold": 100, "warm": 20, "verify": 100},
        "inside": {"base": 9},
        "qcow2": 10,
        "packages": 1,
        "kernel": "k",
    }
    foreign = {
        "name": "packer",
        "stages": dict.fromkeys(report.PEER, 80),
        "qcow2": 15,
        "packages": 2,
        "kernel": "k",
    }
    rows = [{"turn": turn, **row} for turn in (1, 0) for row in (mine, foreign)]
    machine = {
        "cores": 2,
        "processor": "p",
        "kernel": "k",
        "load": 1,
        "accelerator": "tcg",
        "why": "",
        "note": "busy",
    }
    text = report.tables(
        {
            "date": "d",
            "commit": "c",
            "class": "cpu_only",
            "machine": machine,
            "runs": 2,
            "rows": rows,
        }
    )
    assert "| image, nothing there before | **4.00x** (4.00-4.00) |" in text
    assert "| image, and booted to be verified | **2.00x** (2.00-2.00) |" in text
    assert "| bytes of the qcow2 | **1.50x** (1.50-1.50) |" in text
    assert "**busy**" in text
