"""The table of Xids and SXids against the driver's own list, what a class document carries of it, and `goldnode xid`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.facts import audit, xid
from goldnode.facts import host as facts

DRIVER = {
    int(code): name
    for code, name in (
        line.split()
        for line in (Path(__file__).parents[2] / "cases/xid_driver_codes.txt")
        .read_text()
        .splitlines()
        if line[:1] != "#"
    )
}
# By NVIDIA's catalogue, as the fact files' own source has it; other numbers are checked by their action alone.
ACTIONS = {
    "RESTART_APP": [
        8,
        11,
        13,
        25,
        31,
        32,
        39,
        40,
        41,
        60,
        68,
        69,
        70,
        71,
        72,
        75,
        76,
        77,
        80,
        *range(82, 87),
        88,
        89,
        94,
        *range(96, 106),
        *range(126, 136),
        139,
    ],
    "IGNORE": [
        37,
        38,
        43,
        44,
        63,
        66,
        67,
        92,
        93,
        106,
        107,
        121,
        137,
        141,
        152,
        153,
        157,
        160,
        161,
    ],
    "RESET_GPU": [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    "RESTART_BM": [79],
    "RESTART_VM": [151],
    "CHECK_MECHANICALS": [54],
    "UPDATE_SWFW": [78],
    "CHECK_UVM": [159],
    "WORKFLOW_NVLINK5_ERR": list(range(144, 151)),
}


def test_every_number_of_the_driver_is_in_the_table() -> None:
    table = xid.codes()
    assert set(DRIVER) <= set(table)
    assert set(range(1, 177)) <= set(table), "and every one of the catalogue"
    for code, name in DRIVER.items():
        assert name in (table[code].name, table[code].driver), (
            f"Xid {code}: the driver calls it {name}"
        )


def test_a_number_that_is_missing_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = facts.load("xid.yml")
    monkeypatch.setattr(
        facts,
        "load",
        lambda name: {**data, "xid": [row for row in data["xid"] if row["code"] != 175]},
    )
    xid.codes.cache_clear()
    try:
        with pytest.raises(AssertionError):
            test_every_number_of_the_driver_is_in_the_table()
    finally:
        xid.codes.cache_clear()


@pytest.mark.parametrize("action", ACTIONS)
def test_xid_codes_of_each_action_equal_nvidias_list(action: str) -> None:
    assert [
        code
        for code, row in xid.codes().items()
        if row.action == action and code < xid.FIRST_SXID and not row.unused
    ] == ACTIONS[action]


def test_every_row_has_a_source_and_what_is_printed_a_meaning() -> None:
    assert [str(fault) for fault in audit.faults() if fault.file == "xid.yml"] == []
    for code, row in xid.codes().items():
        assert row.origins
        assert row.name
        assert row.means or row.unused or code >= xid.FIRST_SXID


def test_xid_action_decides_between_none_drain_and_degraded() -> None:
    meanings = {code: row.node for code, row in xid.codes().items()}
    assert {meanings[code] for code in ACTIONS["RESTART_APP"] + ACTIONS["IGNORE"]} == {"none"}
    assert {meanings[code] for code in [*ACTIONS["RESET_GPU"], 79, 48, 74, 54, 151]} == {"drain"}
    assert {row.node for row in xid.codes().values() if row.unused and row.action is None} == {
        "degraded"
    }, "one that is never printed is told when it is"


def test_the_table_of_a_class_document_is_small_and_complete() -> None:
    table = xid.table()
    assert json.loads(json.dumps(table)) == table
    assert len(json.dumps(table, separators=(",", ":"))) < 24 << 10
    assert table["79"] == ["RESTART_BM", "drain", xid.codes()[79].means]
    assert table["20034"][0] == "SXID_POTENTIAL"
    assert all(len(row) == 3 and row[1] in ("none", "degraded", "drain") for row in table.values())


def test_the_classes_of_sxids_do_not_overlap() -> None:
    block = facts.load("xid.yml")["sxid"]
    groups = [set(block[name]) for name in ("always_fatal", "potentially_fatal", "non_fatal")]
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert set.union(*groups) <= set(block["names"]), "the driver's header knows all of them"


LINE = "NVRM: Xid (PCI:0000:18:00 GPU-I:05): 95, pid=1, name=x, Uncontained"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (
            ["79"],
            ["Xid 79", "RESTART_BM", "everything on the node", "nvidia-bug-report.sh", "catalogue"],
        ),
        (["xid 38"], ["DCGM calls it a PCIe bus error", "IGNORE", "no fault of the node"]),
        (["20034"], ["SXid 20034", "DLPL_LTSSM_FAULT_UP", "others say"]),
        (["56"], ["never printed", "degraded"]),
        ([LINE], ["0000:18:00.0 GPU-I:05", "--gpu-reset -i 0000:18:00.0", "the jobs on that GPU"]),
        (
            ["nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Non-fatal, Link 3"],
            ["no fault of the node"],
        ),
        (["13", "31"], ["Xid 13", "Xid 31"]),
        (["NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."], ["bus_lost 0000:18:00.0"]),
    ],
)
def test_xid_command_explains_numbers_and_log_lines(
    arguments: list[str], reported: list[str]
) -> None:
    done = CliRunner().invoke(main, ["xid", *arguments])
    assert done.exit_code == 0, done.output
    for text in reported:
        assert text in done.output


def test_the_command_reads_a_log() -> None:
    done = CliRunner().invoke(main, ["xid", "--format", "json"], input=f"hello\n{LINE}\n{LINE}\n")
    (row,) = json.loads(done.stdout)["errors"]
    assert (row["code"], row["event"]["count"], row["node"]) == (95, 2, "drain")


def test_an_unknown_code_is_no_success() -> None:
    done = CliRunner().invoke(main, ["xid", "999"])
    assert done.exit_code == 1
    assert "Xid 999: unknown: neither" in done.output


@pytest.mark.parametrize("arguments", [["nothing of the kind"], [""], ["-"]])
def test_xid_command_exits_2_when_there_is_nothing_to_explain(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["xid", *arguments], input="")
    assert done.exit_code == 2
    assert "error:" in done.output


def test_control_characters_of_a_pasted_line_are_not_printed() -> None:
    done = CliRunner().invoke(main, ["xid", "NVRM: Xid (PCI:0000:18:00): 79, \x1b[31mred\x07"])
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
