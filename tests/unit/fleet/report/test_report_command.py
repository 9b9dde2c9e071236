"""Commands `goldnode fleet report`, `diff` and `sql`: text, JSON, files, wrong input; names in ranges; anonymous reports."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.simulators.fleet import NOW, finding, fleet, put, store

from goldnode.cli import main
from goldnode.commands.fleet.report_page import html
from goldnode.commands.schema.kinds import schema
from goldnode.fleet.drain.slurm import expand
from goldnode.fleet.report.anonymous import anonymous
from goldnode.fleet.report.build import report
from goldnode.fleet.report.fold import fold
from goldnode.fleet.report.frame import ReportSettings, ReportSource

DAY = timedelta(days=1)
AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("captures")
    nodes = fleet(6, cohort_size=3)
    for node in nodes[:2]:
        node.change(put("driver/loaded", "570.1"), NOW - 3 * DAY)
        node.find(finding("driver.loaded", "580", "570.1", severity="drain"), NOW - 3 * DAY)
    nodes[3].change(put("gpus/0/uuid", "GPU-12345678-0000-0000-0000-000000000009"), NOW - DAY)
    nodes[5].change(put("gpus/0/serial", "SERIAL4711"), NOW - DAY)
    nodes[4].find(
        finding("net.mtu", "9000", "1500 on 10.1.2.3 b8:ce:f6:00:00:01", subject="node1004-eth0")
    )
    return store(directory, nodes, [NOW - 8 * DAY, NOW - DAY / 24, NOW - DAY / 48])


def run(*words: object, **given: Any) -> Result:
    return CliRunner().invoke(main, ["fleet", *map(str, words)], **given)


def test_text_has_one_line_for_each_cause(captures: Path) -> None:
    found = run("report", "--data", captures, "--at", AT)
    assert found.exit_code == 0, found.output
    assert found.output.startswith("SIMULATED")
    [line] = [
        line
        for line in found.output.splitlines()
        if line.startswith("driver ") and "570.1" in line and "drain" in line
    ]
    assert re.split(r"\s{2,}", line) == [
        "driver", "drain", "2", "node[1000-1001]", "driver.loaded 580 → 570.1", "declared, majority (66.7% of 6), new",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("report", "--at", AT), "fleet-report"),
        (("report", "--at", AT, "--anonymous"), "fleet-report"),
        (("diff", "--from", "2026-11-20", "--to", AT), "fleet-diff"),
    ],
)
def test_json_conforms_to_its_schema(captures: Path, words: tuple[str, ...], kind: str) -> None:
    found = run(*words, "--data", captures, "--format", "json")
    jsonschema.validate(json.loads(found.output), schema(kind))


def test_report_of_a_past_time_is_the_same_bytes_again(captures: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        found = run("report", "--data", captures, "--at", AT, "--format", "json", "--out", file)
        assert found.exit_code == 0, found.output
    assert files[0].read_bytes() == files[1].read_bytes()


def test_diff_names_what_changed_and_nothing_more(captures: Path) -> None:
    found = run("diff", "--data", captures, "--from", "2026-11-18T09:00Z", "--to", AT)
    assert "node[1000-1001]  driver.loaded 580.95.05 → 570.1" in found.output
    assert "healthy → drain" in found.output
    away = run("diff", "--data", captures, "--from", "2026-11-20", "--to", AT)
    assert "No node could be compared" in away.output
    nothing = run("diff", "--data", captures, "--from", "2026-11-26T07:10Z", "--to", AT)
    assert "Nothing has changed" in nothing.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "--at", "yesterday"), "is no time: give UTC as 2026-11-26T08:00Z"),
        (("diff", "--from", AT, "--to", "2026-11-01"), "--from is not before --to"),
        (("sql", "--format", "json"), "needs a query"),
        (("report", "--groups", "GROUPS"), "GROUPS:2: A line has a group, a comma and a node"),
        (("report", "--data", "EMPTY"), "no captures are stored here"),
    ],
)
def test_wrong_input_is_one_sentence(
    captures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "GROUPS").write_text("# jobs\njob1\n")
    (tmp_path / "EMPTY").mkdir()
    found = run(*words, *(() if "--data" in words else ("--data", captures)))
    shown = found.output + str(found.exception or "")
    assert found.exit_code != 0
    assert message.lower() in shown.lower()
    assert "Traceback" not in found.output


def test_capture_just_received_is_in_the_report(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    store(tmp_path, fleet(1), [now - DAY / 24], received={now - DAY / 24: now})
    assert "1 nodes as of" in run("report", "--data", tmp_path).output.replace(
        "1 node as", "1 nodes as"
    )


def test_groups_and_expected_nodes_come_from_files(captures: Path, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("job1,node1001\njob1,node1002\n")
    (tmp_path / "fleet.yml").write_text(
        "classes:\n  h100:\n    nodes:\n      spare1: {cohort: ring7}\n"
    )
    found = run(
        "report",
        "--data",
        captures,
        "--at",
        AT,
        "--groups",
        tmp_path / "groups",
        "--nodes",
        tmp_path / "fleet.yml",
    )
    assert re.search(r"job1 +driver.loaded +570.1: node1001; 580.95.05: node1002", found.output)
    assert re.search(r"silent +h100 +1 +spare1", found.output)


def test_sql_reads_views_and_changes_nothing(captures: Path, tmp_path: Path) -> None:
    found = run(
        "sql",
        "--data",
        captures,
        "--at",
        AT,
        "SELECT state, nodes FROM states ORDER BY state",
        "--format",
        "json",
    )
    assert json.loads(found.output)["rows"] == [["degraded", 1], ["drain", 2], ["healthy", 3]]
    before = sorted(captures.rglob("*"))
    for query in (
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        "CREATE TABLE x AS SELECT 1",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SET enable_external_access=true",
        "INSTALL httpfs",
        "SELECT nothing",
    ):
        refused = run("sql", "--data", captures, "--at", AT, query)
        assert refused.exit_code != 0, query
    assert sorted(captures.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_sql_shell_goes_on_after_a_wrong_statement(captures: Path) -> None:
    found = run(
        "sql",
        "--data",
        captures,
        "--at",
        AT,
        input="views;\nSELECT nothing;\nSELECT count(*) AS n\nFROM latest;\n",
    )
    assert found.exit_code == 0
    assert "no_majority" in found.output
    assert found.output.rstrip().endswith("n\n6")


def test_script_for_clickhouse_creates_every_view(captures: Path) -> None:
    found = run("sql", "--data", captures, "--at", AT, "--script", "clickhouse")
    assert found.output.count("CREATE OR REPLACE VIEW") > 10
    assert "no_majority" in found.output


def test_anonymous_report_has_no_name_address_or_serial(captures: Path) -> None:
    found = report(ReportSource(captures), ReportSettings(NOW))
    named = found.model_dump_json(by_alias=True)
    hidden = anonymous(found)
    names = (
        "node1000",
        "node1004",
        "ring00",
        "GPU-12345678",
        "SERIAL4711",
        "10.1.2.3",
        "b8:ce:f6:00:00:01",
    )
    for text in (hidden.model_dump_json(by_alias=True), html(hidden)):
        assert [name for name in names if name in text] == []
    assert [name for name in names if name not in named] == []
    assert hidden.anonymous
    assert [cause.nodes.count for cause in hidden.causes] == [
        cause.nodes.count for cause in found.causes
    ]
    assert hidden.causes[0].nodes.folded == "node-[1-2]"


NAMES = st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,4}[a-z]?", fullmatch=True), max_size=30)


@given(NAMES)
def test_folded_names_can_be_written_out_again(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(set(names))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n01", "n02", "n03", "n05"], "n[01-03,05]"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["a1", "b", "a2"], "a[1-2],b"),
        (["r1n1.x", "r1n2.x"], "r1n[1-2].x"),
        ([], ""),
    ],
)
def test_node_names_are_folded_into_ranges(names: list[str], text: str) -> None:
    assert fold(names) == text
