"""Parts of a class: from the lock, from the stack, from the class; each finding is at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import CLASS, FILES, STACK, write
from tests.unit.classdoc.test_class_document import DAY, LOCK, SITE, package

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import Parts
from goldnode.classdoc.compile import compile_class
from goldnode.classdoc.findings import findings_of
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import ClassView, host_of_stack, read_class
from goldnode.compat import parts
from goldnode.compat.model import CompatFinding
from goldnode.facts import host as facts
from goldnode.lock.model import Lock

OPTIONS = """options:
  dcgm: {description: d, packages: [datacenter-gpu-manager-4-core], source: s}
  lustre: {description: d, packages: [lustre-client-modules-dkms], source: s}
"""
PACKAGES = [
    package("datacenter-gpu-manager-4-core", "1:4.5.3-1", when="dcgm"),
    package("lustre-client-modules-dkms", "2.15.8-1", when="lustre"),
    package("mlnx-ofed-kernel-dkms", "24.10.OFED.24.10.2.1.8.1-1"),
]
LOCKED = Lock(**{**vars(LOCK), "packages": [*LOCK.packages, *PACKAGES]})


def catalog(root: Path, own: str = "", stack: str = "") -> Catalog:
    """Return a catalog whose class and stack state more lines."""
    files = {**FILES, "classes/a100.yml": CLASS + own, "stacks/r580.yml": STACK + OPTIONS + stack}
    return load_catalog([write(root, files)])


def view(root: Path, own: str = "", stack: str = "", lock: Lock | None = LOCKED) -> ClassView:
    return read_class("a100", catalog(root, own, stack), SITE, lock, on=DAY)


def of_parts(found: list[CompatFinding]) -> list[CompatFinding]:
    return [item for item in found if item.rule.startswith("part-")]


def test_parts_of_the_facts_are_the_keys_of_a_class() -> None:
    assert set(facts.load(parts.FILE)["parts"]) == set(Parts.model_fields)


def test_locked_parts_are_those_of_the_packages_that_the_nodes_get(tmp_path: Path) -> None:
    assert view(tmp_path / "none").host.parts == {"ofed": "24.10.2.1.8"}
    chosen = view(tmp_path / "dcgm", "options: [dcgm]\n").host.parts
    assert chosen == {"ofed": "24.10.2.1.8", "dcgm": "4.5.3"}


def test_class_declares_over_its_stack_and_over_nothing_else(tmp_path: Path) -> None:
    own = 'parts: {lustre: "2.17.0"}\n'
    stack = 'parts: {lustre: "2.15.8", ucx: "1.18.1"}\n'
    host = view(tmp_path, own, stack, LOCK).host
    assert host.parts == {"lustre": "2.17.0", "ucx": "1.18.1"}
    alone = host_of_stack("r580", catalog(tmp_path, own, stack), SITE, on=DAY)
    assert alone.parts == {"lustre": "2.15.8", "ucx": "1.18.1"}


def test_class_without_parts_has_none(tmp_path: Path) -> None:
    host = view(tmp_path, lock=LOCK).host
    assert (host.parts, host.locked_parts) == ({}, {})


def test_finding_is_at_the_line_of_its_part(tmp_path: Path) -> None:
    own = 'parts:\n  ucx: "1.18.1"\n  imex: "580.82.07"\n'
    (finding,) = of_parts(findings_of(view(tmp_path, own, lock=LOCK)))
    assert finding.severity == "block"
    assert finding.place is not None
    lines = (CLASS + own).splitlines()
    assert lines[(finding.place.line or 0) - 1] == '  imex: "580.82.07"'


@pytest.mark.parametrize(
    ("declared", "severity"), [("24.10-2.1.8.0", None), ("24.10", None), ("25.01-0.6.0.0", "block")]
)
def test_declared_version_that_the_lock_contradicts_is_blocked(
    tmp_path: Path, declared: str, severity: str | None
) -> None:
    found = of_parts(findings_of(view(tmp_path, f'parts: {{ofed: "{declared}"}}\n')))
    stated = [item for item in found if "the lock of the stack installs" in item.message]
    assert [item.severity for item in stated] == ([severity] if severity else [])


def test_module_whose_package_is_a_part_is_judged_as_that_part(tmp_path: Path) -> None:
    stack = "modules: [{name: mlx5_core, package: mlnx-ofed-kernel-dkms, dkms: mlnx-ofed-kernel}]\n"
    found = findings_of(view(tmp_path, stack=stack))
    assert [item.rule for item in found if "mlx5_core" in item.message] == []
    assert {item.rule for item in of_parts(found)} == {"part-network"}


def test_site_adds_a_kernel_on_which_it_has_seen_a_part_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = 'parts: {lustre: "2.15.8"}\n'
    place = tmp_path / "catalog"
    assert [item.severity for item in of_parts(findings_of(view(place, own, lock=LOCK)))] == [
        "unknown"
    ]
    text = """meta: {subject: builds of this site, compiled: '2026-11-01'}
sources: {canary: {title: canary of this site, date: '2026-11-01'}}
builds_on:
- {part: lustre, os: debian 12, kernels: ['6.1'], versions: [=2.15.8], source: canary}
"""
    write(place, {"facts/parts.yml": text})
    monkeypatch.setenv("GOLDNODE_CATALOG", str(place))
    assert facts.site_faults() == []
    assert of_parts(findings_of(view(place, own, lock=LOCK))) == []


def test_document_has_the_declared_parts_that_the_lock_does_not_hold(tmp_path: Path) -> None:
    own = 'options: [dcgm]\nparts: {dcgm: "4.5.3", nvidia_fs: "2.16.1", gpudirect_rdma: dma-buf}\n'
    rows = compile_class(view(tmp_path, own))["parts"]
    assert [row["name"] for row in rows] == ["gpudirect_rdma", "nvidia_fs"]
    assert rows[1] == {
        "name": "nvidia_fs",
        "title": "nvidia-fs",
        "version": "2.16.1",
        "packages": ["nvidia-fs-dkms"],
        "module": "nvidia_fs",
        "program": None,
        "shown": "2.15.3",
    }
    assert rows[0]["module"] is None, "nothing on a node shows dma-buf"


def test_document_of_doca_has_the_driver_that_it_carries(tmp_path: Path) -> None:
    rows = compile_class(view(tmp_path, 'parts: {doca: "3.2.1"}\n', lock=LOCK))["parts"]
    shown = {row["name"]: (row["version"], row["program"]) for row in rows}
    assert shown == {"ofed": ("25.10", ["ofed_info", "-s"]), "doca": ("3.2.1", None)}


def test_document_of_a_class_without_parts_does_not_name_them(tmp_path: Path) -> None:
    assert "parts" not in compile_class(view(tmp_path, lock=LOCK))
