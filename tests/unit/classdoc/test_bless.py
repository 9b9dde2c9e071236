"""Captures of good nodes become a baseline; of any other node they are refused, with what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.catalog.test_accept_reject import write
from tests.unit.node.captures import class_document, gpu, healthy, idle, spoiled

from goldnode.catalog import models
from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc import bless
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.errors import CatalogError
from goldnode.node.verdict import check, deltas, table

G3 = "0000:5d:00.0"
CATALOG = load_catalog([builtin_catalog()])
NAME = "h100_sxm5_80gb"


def files(where: Path, *found: Any) -> list[Path]:
    paths = []
    for index, capture in enumerate(found):
        paths.append(where / f"node{index}.json")
        paths[-1].write_text(capture if isinstance(capture, str) else json.dumps(capture))
    return paths


def test_a_good_node_is_healthy_by_its_own_baseline(tmp_path: Path) -> None:
    proposal = bless.bless(files(tmp_path, healthy(), idle(healthy())), CATALOG, NAME)
    found = yaml.safe_load(bless.text(proposal))["baseline"]
    assert found["gpu"]["pcie"] == {"gen": 5, "width": 16}
    assert found["gpu"]["nvlinks"] == 18
    assert found["gpu"]["vbios"] == ["96.00.5E.00.01"]
    assert found["gpu"]["numa"][G3] == 0
    assert found["memory"] == {"total_gib": 2013}
    assert found["network"]["eth0"] == {
        "mtu": 9000,
        "speed_mbps": 400000,
        "numa_node": 0,
        "firmware": ["28.39.1002"],
    }
    assert found["infiniband"]["mlx5_0"] == {
        "rate_gbps": 400,
        "ports": 1,
        "firmware": ["28.39.1002"],
    }
    assert found["storage"] == {"devices": {"count": 1, "models": ["Example SSD"]}}
    assert found["services"] == ["nvidia-persistenced.service", "nvidia-fabricmanager.service"]
    models.Baseline.model_validate(found)
    judged = table.judge(class_document(baseline=found), healthy(), deltas.step({}, healthy())[0])
    assert check.exit_code(judged) == 0


def test_differing_values_become_a_set_or_are_omitted_and_reported(tmp_path: Path) -> None:
    other = spoiled(
        healthy(),
        "gpus.*.vbios",
        "96.00.74.00.01",
        "cpu.smt",
        True,
        "network.eth0.mtu",
        1500,
        "memory.total_mib",
        1_000_000,
        f"numa/affinity/{G3}/node",
        1,
        "infiniband",
        {},
    )
    proposal = bless.bless(files(tmp_path, healthy(), other), CATALOG)
    found = proposal.baseline
    assert found["gpu"]["vbios"] == ["96.00.5E.00.01", "96.00.74.00.01"]
    assert "smt" not in found["cpu"]
    assert "mtu" not in found["network"]["eth0"]
    assert {"memory", "infiniband"} & set(found) == set()
    assert "numa" not in found["gpu"]
    reported = "\n".join(proposal.notes)
    for what in (
        "gpu.vbios has 2 values",
        "cpu.smt",
        "eth0.mtu",
        "baseline.memory",
        "gpu.numa",
        "infiniband.mlx5_0",
    ):
        assert what in reported


REFUSED = [
    (("gpus.3.pcie.width", {"current": 8, "max": 8}), "pcie.width of 0000:5d:00.0: x8"),
    (
        ("gpus.*.pcie.gen", {"current": 4, "max": 4, "device_max": 5}),
        "and it can do no more than 4",
    ),
    (("gpus.*.memory.total_mib", 73000), "73000 MiB (want 81559 MiB"),
    (("gpus.3.nvlink.links.0.active", False), "17 active"),
    (("gpus.3.remapped_rows.pending", True), "row remap is pending"),
    (("gpus.3.ecc.volatile.uncorrected", 1), "1 uncorrected errors"),
    (("gpus.3.ecc.aggregate.uncorrected", 1), "1 uncorrected errors in the card's life"),
    (("gpus.3.remapped_rows.uncorrectable", 2), "2 rows remapped"),
    (
        ("gpus.3.ecc.volatile", {"fault": "unread", "text": "Unknown Error", "rc": 999}),
        "Unknown Error",
    ),
    (("gpus.3", {"address": G3, "index": 3, "lost": True}), "lost"),
    (("gpus", healthy()["gpus"][:7]), "7 GPUs, and class h100_sxm5_80gb has 8"),
    (("gpus.*.pci_id", "10de:20b0"), "its GPUs are A100-SXM4-40GB"),
    (
        ("events.rows", [{"kind": "xid", "code": 13, "text": "NVRM: Xid 13\x1b[2J"}]),
        "the kernel's log says: NVRM: Xid 13 [2J",
    ),
    (("events.truncated", True), "from its beginning"),
    (("simulated", True), "simulated"),
    (("driver.library", "1"), "driver.agree"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_any_other_node_is_refused_with_what_is_wrong(
    tmp_path: Path, changes: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(CatalogError) as refused:
        bless.bless(files(tmp_path, healthy(), spoiled(healthy(), *changes)), CATALOG, NAME)
    assert text in str(refused.value)
    assert "node1.json" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "not JSON"),
        ("[]", "no capture"),
        ({"schema": "goldnode.verdict/1"}, "no capture"),
        ({**healthy(), "source": "nvidia-smi-xml"}, "too little"),
    ],
)
def test_bless_refuses_a_file_that_is_no_full_capture(
    tmp_path: Path, content: Any, text: str
) -> None:
    with pytest.raises(CatalogError, match=text):
        bless.bless(files(tmp_path, content), CATALOG)


def test_a_gpu_that_the_facts_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no GPU model of the facts has PCI id 10de:ffff"):
        bless.bless(files(tmp_path, spoiled(healthy(), "gpus.*.pci_id", "10de:ffff")), CATALOG)


def test_hardware_that_is_otherwise_by_design_needs_a_reason(tmp_path: Path) -> None:
    links = gpu()["nvlink"]["links"][:12]
    paths = files(
        tmp_path,
        spoiled(
            healthy(), "gpus.*.nvlink.links", links, "gpus.*.pcie.width", {"current": 8, "max": 8}
        ),
    )
    with pytest.raises(CatalogError, match="12 active"):
        bless.bless(paths, CATALOG, NAME)
    found = bless.bless(paths, CATALOG, NAME, "bridged, on x8 risers").baseline["gpu"]
    assert (found["nvlinks"], found["pcie"]["width"], found["reason"]) == (
        12,
        8,
        "bridged, on x8 risers",
    )


def test_the_command_prints_the_change_of_the_class_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = files(tmp_path, healthy())
    done = CliRunner().invoke(main, ["class", "bless", str(path), "--class", NAME])
    assert done.exit_code == 0, done.output
    assert "-  network: {eth0: {mtu: 9000, speed_mbps: 400000}}" in done.output
    assert "+  gpu:" in done.output
    assert "review: one capture only" in done.output


@pytest.mark.parametrize("after", ["", "gate: drain\n", "# a remark\ngate: drain\n"])
@pytest.mark.parametrize(
    "own", ["", "baseline:\n  network: {eth0: {mtu: 9000}}\n\n", "baseline: {}\n"]
)
def test_the_changed_file_is_the_class_with_the_new_baseline(
    tmp_path: Path, own: str, after: str
) -> None:
    before = f"class: a\nbackend: cpu\n{own}{after}"
    write(tmp_path, {"a.yml": before})
    proposal = bless.bless(files(tmp_path, healthy()), CATALOG)
    lines = bless.patch(proposal, tmp_path / "a.yml").splitlines()[2:]
    text = [line[1:] for line in lines if line[:1] in (" ", "+")]
    found = yaml.safe_load("\n".join(text))
    assert found.pop("baseline") == yaml.safe_load(bless.text(proposal))["baseline"]
    rest = yaml.safe_load(before)
    rest.pop("baseline", None)
    assert {**rest, **found} == rest
