"""The table of kernel messages in the program and the page about it are those of facts/log_lines.yml.

`python -m tests.unit.node.ground.test_log_lines` writes both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.classdoc import known_lines as built
from goldnode.facts import health
from goldnode.facts.log_lines import KernelLine, lines, remedies
from goldnode.node.ground import log_lines
from goldnode.node.probe import logs
from goldnode.node.state.kinds import KINDS

PAGE = Path(__file__).parents[4] / "docs/reference/log-lines.md"
BEGIN, END = "<!-- lines -->\n", "<!-- /lines -->"
WRITE = "run: python -m tests.unit.node.ground.test_log_lines"
SEVERITY = {"none": "note", "degraded": "degraded", "drain": "drain"}


def page_row(row: KernelLine) -> str:
    """Return one line of the page: id, example, meaning, finding and severity, remedy, source."""
    words = [row.means]
    if row.settled_by:
        words.append("withdrawn by " + ", ".join(f"`{name}`" for name in row.settled_by))
    if row.limit:
        words.append(f"above `{row.limit}` ({health.limits()[row.limit].value:g}) a minute")
    remedy = row.remedy.text if row.remedy else ""
    source = f"{row.origins[0].title}: {row.at}"
    cells = [
        f"`{row.id}`",
        f"`{row.examples[0]}`",
        "; ".join(words),
        f"`{row.finding}`, {SEVERITY[row.severity]}",
        remedy,
        source,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page_table() -> str:
    """Return the table of all rows, by id."""
    head = ["| Id | Line | Meaning | Finding | Remedy | Source |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(page_row(row) for _, row in sorted(lines().items()))]) + "\n"


def test_the_program_has_the_table_of_today() -> None:
    assert built.MODULE.read_text(encoding="utf-8") == built.module(), WRITE


def test_the_page_has_every_row_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == page_table(), WRITE


@pytest.mark.parametrize("row", lines().values(), ids=list(lines()))
def test_each_row_is_read_judged_and_repaired(row: KernelLine) -> None:
    """The examples of a row are found in a log and read as that row, with a finding and a remedy that exist."""
    for example in row.examples:
        assert row.mark in example, "an example has the mark"
        rows = logs.parse(logs.candidates(f"[   12.5] {example}\n".encode()))
        ids = [event["parameters"].get("id") or event["kind"] for event in rows]
        assert ids == [row.id], (example, "the mark needs one of logs.MARKS")
    assert row.finding in KINDS
    assert (row.remedy is None) is (row.severity == "none")
    assert set(row.settled_by) <= set(lines())
    assert row.limit is None or row.limit in health.limits()
    assert row.means[-1] not in ".!"


def test_ids_are_unique_and_remedies_are_used() -> None:
    from goldnode.facts import host

    given = [row["id"] for row in host.load("log_lines.yml")["lines"]]
    assert len(given) == len(set(given))
    used = {row.remedy.name for row in lines().values() if row.remedy}
    assert used == set(remedies())
    assert all(row.text.endswith(".") for row in remedies().values())


def test_a_device_number_does_not_hide_a_driver() -> None:
    assert log_lines.of("amdgpu0") == log_lines.of("amdgpu")
    assert log_lines.of("nothing") == ()


# Message, who wrote it, its address, its port, what is left for the form.
HEADS = [
    ("amdgpu 0000:0a:00.0: amdgpu: GPU reset(1) failed", "amdgpu", "0000:0a:00.0", None, "GPU reset(1) failed"),
    ("amdgpu 0000:28:00.0: BACO reset", "amdgpu", "0000:28:00.0", None, "BACO reset"),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring x", "amdgpu", None, None, "ring x"),
    ("amdgpu 0000:03:00.0: [drm:gfx_v10_0_hw_fini [amdgpu]] *ERROR* KCQ", "amdgpu", "0000:03:00.0", None, "KCQ"),
    ("xe 0000:00:02.0: [drm] *ERROR* Tile0: GT0: reset", "xe", "0000:00:02.0", None, "Tile0: GT0: reset"),
    ("[drm] GPU HANG: ecode 9", "drm", None, None, "GPU HANG: ecode 9"),
    ("mlx5_core 0000:ab:00.0 eth2: Link down", "mlx5_core", "0000:ab:00.0", "eth2", "Link down"),
    ("ice 0000:18:00.0 eth0 (unregistered): x", "ice", "0000:18:00.0", "eth0", "x"),
    ("NVRM: GPU6 _kgspIsHeartbeatTimedOut: x", "NVRM", None, None, "_kgspIsHeartbeatTimedOut: x"),
    ("NVRM: GPU 0000:09:00.0: RmInitAdapter failed!", "NVRM", "0000:09:00.0", None, "RmInitAdapter failed!"),
    ("EXT4-fs (sda1): shut down", "EXT4-fs", None, None, "EXT4-fs (sda1): shut down"),
    ("watchdog: BUG: soft lockup", "watchdog", None, None, "BUG: soft lockup"),
    ("nvme nvme0: I/O tag 1", "nvme", None, None, "nvme nvme0: I/O tag 1"),
    ("{1}[Hardware Error]: x", "", None, None, "{1}[Hardware Error]: x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "where", "port", "rest"), HEADS)
def test_the_head_of_a_message_is_split(
    text: str, name: str, where: str | None, port: str | None, rest: str
) -> None:
    assert logs.writer(text) == name
    assert logs.head(name, text) == (where, port, rest)


if __name__ == "__main__":
    built.MODULE.write_text(built.module(), encoding="utf-8")
    before, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + page_table() + END + after.partition(END)[2], encoding="utf-8")
