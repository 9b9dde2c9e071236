"""`goldnode fleet hardware`: the parts of each node by its last capture, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests import documents
from tests.simulators.fleet import NOW, fleet, put, store

from goldnode.cli import main
from goldnode.commands.fleet.hardware import HEADING, as_csv
from goldnode.commands.schema.kinds import schema
from goldnode.documents.fleet_hardware import FleetHardwareDocument, HardwarePart
from goldnode.node.probe.values import not_exposed, unread

DAY = timedelta(days=1)
AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes: the GPU of one was replaced, another has lost values, the third reported 30 days ago alone."""
    directory = tmp_path_factory.mktemp("captures")
    nodes = fleet(3)
    nodes[0].change(put("gpus/0/serial", "NEW1"), NOW - DAY)
    nodes[0].change(put("gpus/0/uuid", "GPU-12345678-0000-0000-0000-000000000009"), NOW - DAY)
    nodes[1].change(put("gpus/1/serial", unread("GPU is lost", 15)), NOW - DAY)
    nodes[1].change(put("identity/product/serial", not_exposed("a guest")), NOW - DAY)
    store(directory, nodes[:2], [NOW - 8 * DAY, NOW - DAY / 24])
    return store(directory, nodes[2:], [NOW - 30 * DAY])


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["fleet", "hardware", *map(str, words)])


def parts(captures: Path, at: str = AT) -> list[dict[str, Any]]:
    found = run("--data", captures, "--at", at, "--format", "json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    jsonschema.validate(documents.valid(document), schema("fleet-hardware"))
    rows: list[dict[str, Any]] = document["parts"]
    return rows


def of(rows: list[dict[str, Any]], node: str, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["node"], row["kind"]) == (node, kind)]


def test_each_part_is_listed_once_with_its_slot(captures: Path) -> None:
    rows = parts(captures)
    kinds = ["machine", *["gpu"] * 8, *["nvswitch"] * 4, "network", "infiniband", "disk"]
    assert [row["kind"] for row in rows if row["node"] == "node1001"] == kinds
    assert of(rows, "node1001", "gpu")[0] == {
        "node": "node1001",
        "class": "h100",
        "captured": f"{NOW - DAY / 24:%Y-%m-%dT%H:%M:%SZ}",
        "simulated": True,
        "kind": "gpu",
        "address": "0000:18:00.0",
        "vendor": "nvidia",
        "model": "NVIDIA H100 80GB HBM3",
        "part_number": "692-2G520-0200-000",
        "serial": "16500100100",
        "identity": "GPU-000003e9-0000-0000-0000-000000000000",
        "pci_id": "10de:2330",
        "firmware": "96.00.5E.00.01",
    }
    assert {len(row) for row in rows} == {len(HEADING)}


def test_a_replaced_gpu_is_the_new_one_and_the_old_one_before(captures: Path) -> None:
    assert next(row["serial"] for row in of(parts(captures), "node1000", "gpu")) == "NEW1"
    before = parts(captures, f"{NOW - 7 * DAY:%Y-%m-%dT%H:%M:%SZ}")
    assert next(row["serial"] for row in of(before, "node1000", "gpu")) == "16500100000"
    assert len(of(parts(captures), "node1000", "gpu")) == 8


def test_values_that_could_not_be_read_are_empty(captures: Path) -> None:
    rows = parts(captures)
    assert [row["serial"] for row in of(rows, "node1001", "gpu")].count(None) == 1
    assert of(rows, "node1001", "machine")[0]["serial"] is None


def test_a_node_that_is_silent_for_weeks_has_its_last_parts(captures: Path) -> None:
    (machine,) = of(parts(captures), "node1002", "machine")
    assert (machine["serial"], machine["captured"]) == (
        "S1002",
        f"{NOW - 30 * DAY:%Y-%m-%dT%H:%M:%SZ}",
    )


def test_csv_has_the_same_rows(captures: Path, tmp_path: Path) -> None:
    file = tmp_path / "parts.csv"
    found = run("--data", captures, "--at", AT, "--format", "csv", "--out", file)
    assert (found.exit_code, found.stderr) == (0, f"wrote {file}\n")
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    texts = {None: "", True: "true"}
    assert rows == [
        {key: value if isinstance(value, str) else texts[value] for key, value in row.items()}
        for row in parts(captures)
    ]


def test_text_names_simulated_hardware_first(captures: Path) -> None:
    found = run("--data", captures, "--at", AT)
    assert found.stdout.startswith("SIMULATED hardware: 48 of 48 parts\n")
    assert (
        "node1000  gpu         0000:18:00.0  NVIDIA H100 80GB HBM3  692-2G520-0200-000  NEW1"
        in found.stdout
    )


def test_a_directory_without_captures_is_an_error(tmp_path: Path) -> None:
    found = run("--data", tmp_path)
    assert found.exit_code == 2
    assert "no captures of this time are stored here" in found.output


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_no_serial_number_leaves_its_field_or_is_a_formula(serials: list[str]) -> None:
    given_parts = [
        HardwarePart.model_validate(
            dict.fromkeys(HEADING)
            | {"node": "n", "captured": AT, "simulated": False, "kind": "gpu", "serial": one}
        )
        for one in serials
    ]
    document = FleetHardwareDocument(
        schema="goldnode.fleet-hardware/1", at=AT, parts=given_parts, without=[]
    )
    rows = list(csv.reader(io.StringIO(as_csv(document), newline="")))
    assert {len(row) for row in rows} == {len(HEADING)}
    read = [row[HEADING.index("serial")] for row in rows[1:]]
    assert [
        one.removeprefix("'") if one != given else one
        for one, given in zip(read, serials, strict=True)
    ] == serials
    assert not any(one.startswith(("=", "+", "-", "@")) for one in read)
