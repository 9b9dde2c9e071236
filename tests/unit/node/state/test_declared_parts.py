"""Parts that a class declares and no lock holds: what a node shows of them, and how that is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.node.state.test_cases import bare, document

from goldnode.classdoc.compile import declared_part
from goldnode.node.ground.host import Host, Result
from goldnode.node.state.domains import parts
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD

CASES: dict[str, Any] = yaml.load(
    (Path(__file__).parents[3] / "cases/declared_parts.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
RELEASE = "6.1.0-902-amd64"


def wanted(*stated: tuple[str, str]) -> Any:
    """Return a class document that declares these parts."""
    return {**document(), "parts": [declared_part(name, version) for name, version in stated]}


def readings(case: dict[str, Any]) -> list[list[str | None]]:
    return [[where, None if text == "null" else text] for where, text in case["readings"]]


@pytest.mark.parametrize("case", CASES["judged"], ids=str)
def test_part_on_a_node(case: dict[str, Any]) -> None:
    declared = wanted((case["part"], case["version"]))
    seen = bare(declared)
    seen.parts = {case["part"]: readings(case)}
    (finding,) = parts.findings(declared, seen)
    assert finding.id == f"parts.{case['part']}"
    assert finding.outcome == case["outcome"], finding
    assert finding.steps == ((case["step"],) if "step" in case else ())
    if finding.outcome == MISMATCH:
        assert finding.remedy is not None
        assert all(where in str(finding.got) for where, _ in case["readings"][-1:])
        at = f"parts.{case['part']} in classes/{declared['class']}.yml or stacks/"
        assert at in str(finding.remedy) or case["step"] == "reboot"
    notes = parts.plan(declared, seen)[1]
    assert len(notes) == (finding.outcome in (MISMATCH, UNREAD))


@pytest.mark.parametrize("case", CASES["printed"], ids=str)
def test_version_in_what_a_program_prints(case: dict[str, str], tmp_path: Path) -> None:
    version = parts.version_in(case["text"])
    assert version == (None if case["version"] == "null" else case["version"])


def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Result]) -> Host:
    """Return a running node without modules, on which programs answer so."""
    host = Host(str(tmp_path), live=True)
    monkeypatch.setattr(
        host, "run", lambda *argv, **_: answers.get(argv[0], Result(argv, 127, "", "not found"))
    )
    return host


def test_package_module_and_program_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = wanted(
        ("ofed", "24.10-3.2.5.0"), ("nvidia_fs", "2.28.2"), ("imex", "580.95.05"), ("dcgm", "4.5.3")
    )
    for module, version in {"mlx5_core": "24.10-3.2.5\n", "nvidia_fs": "2.28.2\n"}.items():
        folder = tmp_path / "sys/module" / module
        folder.mkdir(parents=True)
        (folder / "version").write_text(version)
        (folder / "initstate").write_text("live\n")
    seen = bare(declared)
    seen.packages["nvidia-fs-dkms"] = {"version": "2.27.3-1", "state": "installed"}
    answers = {
        "ofed_info": Result(("ofed_info",), 0, "MLNX_OFED_LINUX-24.10-3.2.5.0:\n", ""),
        "nvidia-imex": Result(("nvidia-imex",), 124, "", "no answer within 10 s"),
    }
    parts.observe(node(tmp_path, monkeypatch, answers), declared, seen)
    assert seen.parts == {
        "ofed": [
            ["/sys/module/mlx5_core/version", "24.10-3.2.5"],
            ["ofed_info -s", "24.10-3.2.5.0"],
        ],
        "nvidia_fs": [
            ["package nvidia-fs-dkms", "2.27.3-1"],
            ["/sys/module/nvidia_fs/version", "2.28.2"],
        ],
        "imex": [["nvidia-imex --version", None]],
        "dcgm": [],
    }
    outcomes = {item.id: item.outcome for item in parts.findings(declared, seen)}
    assert outcomes == {
        "parts.ofed": MATCH,
        "parts.nvidia_fs": MISMATCH,
        "parts.imex": UNREAD,
        "parts.dcgm": NOT_EXPOSED,
    }


def test_container_shows_no_module(tmp_path: Path) -> None:
    declared = wanted(("nvidia_fs", "2.28.2"), ("gpudirect_rdma", "peermem"))
    seen = bare(declared)
    seen.container = True
    parts.observe(Host(str(tmp_path), live=True), declared, seen)
    assert {item.outcome for item in parts.findings(declared, seen)} == {ELSEWHERE}


def test_class_without_parts_is_not_read(tmp_path: Path) -> None:
    seen = bare(document())
    host = Host(str(tmp_path))
    parts.observe(host, document(), seen)
    assert (seen.parts, host.commands, parts.findings(document(), seen)) == ({}, [], [])
