"""Domain modules: what is read of a module, what is wrong with one, and how a build goes, with modinfo and dkms played."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.unit.node.state.test_cases import CASES, document, merge
from tests.unit.node.verdict.test_check import findings

from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.state.apply import Applier
from goldnode.node.state.domains import modules
from goldnode.node.state.domains.kernel import hook
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH
from goldnode.node.state.handlers.modules import build, source_version
from goldnode.node.state.model import Action
from goldnode.node.state.observe import RECORD
from goldnode.node.verdict import check

RELEASE = "6.1.0-902-amd64"
ROWS = json.loads((CASES / "modules" / "all_as_declared.json").read_text())["document"]["modules"]


def wanted() -> Any:
    """The document of the cases, with a module in each of the ways in which there can be one."""
    found: dict[str, Any] = merge(document(), {"modules": ROWS})
    return found


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("gdrdrv", {"other_modules": {"gdrdrv": None}}),
        ("gdrdrv", {"other_modules": {"gdrdrv": {"vermagic": "6.1.0-901-amd64 SMP"}}}),
        ("gdrdrv", {"other_modules": {"nvidia-current": {"time": 99}}}),
        (
            "nvidia-current-peermem",
            {"other_modules": {"nvidia-current-peermem": {"version": "535.1"}}},
        ),
        ("nvidia-current-peermem", {"other_modules": {"mlx5_core": {"time": 99}}}),
        ("lustre", {"secure_boot": True}),
        ("mlx5_core.loaded", {"other_modules": {"mlx5_core": {"name": "mlx5"}}}),
    ],
)
def test_each_item_is_found_when_it_is_wrong(name: str, patch: dict[str, Any]) -> None:
    right = {
        finding.id: finding.outcome
        for finding in findings({}, wanted())
        if finding.id.startswith("modules.")
    }
    assert len(right) == 7, "four files, and three of them to be loaded"
    assert set(right.values()) == {MATCH}
    seen = {finding.id: finding for finding in findings(patch, wanted())}
    assert seen[f"modules.{name}"].outcome == MISMATCH
    assert check.exit_code(list(seen.values())) == 2


def test_a_container_shows_no_loaded_module() -> None:
    found = {
        f.id: f.outcome for f in findings({"container": True, "running_kernel": None}, wanted())
    }
    assert found["modules.gdrdrv"] == MATCH
    assert found["modules.gdrdrv.loaded"] == ELSEWHERE


def test_the_hook_asks_for_every_module() -> None:
    text = hook(wanted(), "kernel")[0].content
    asked = [
        line.split()[:2] for line in text.splitlines() if line.startswith(("version ", "exists "))
    ]
    assert asked == [["version", "nvidia-current"], *(["exists", row["name"]] for row in ROWS)]
    alone = hook(merge(wanted(), {"driver": None}), "kernel")[0].content
    assert "nvidia-current 535" not in alone


class Machine(Host):
    """A directory in which modinfo and dkms are played: dkms puts the files of a source there, each younger than all before."""

    made: ClassVar[dict[str, tuple[str, ...]]] = {
        "ofed": ("mlx5_core",),
        "nvidia-current": ("nvidia-current", "nvidia-current-peermem"),
        "gdrdrv": ("gdrdrv",),
    }
    clock = 1_000
    fails = ""

    def module(self, name: str) -> Path:
        return self.path(f"/lib/modules/{RELEASE}/{name}.ko")

    def make(self, source: str) -> None:
        for name in self.made[source]:
            self.clock += 1
            self.module(name).write_text(name)
            os.utime(self.module(name), ns=(self.clock, self.clock))

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        if argv[:2] == ("dkms", "install") and argv[4] != self.fails:
            # As the real one: a build that is there is installed as it is, unless it was built anew just before.
            missing = [name for name in self.made[argv[4]] if not self.module(name).exists()]
            if missing or self.commands[-2][:2] == ("dkms", "build"):
                self.make(argv[4])
        return Result(argv, 0, "", "")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    host = Machine(str(tmp_path), live=True)

    def modinfo(self: Host, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        out = ""
        for name in argv[5:]:
            file = host.module(name)
            if file.exists():
                version = "535.2" if name.startswith("nvidia") else ""
                out += f"filename:       {file}\nversion: {version}\nlicense: NVIDIA\nvermagic: {RELEASE} SMP\nname: {name}\n"
        return Result(argv, 0 if out else 1, out, "")

    monkeypatch.setattr(Host, "run", modinfo)
    (tmp_path / f"lib/modules/{RELEASE}/build").mkdir(parents=True)
    for source, version in (("ofed", "24.10"), ("gdrdrv", "2.4")):
        (tmp_path / f"usr/src/{source}-{version}").mkdir(parents=True)
        (tmp_path / f"usr/src/{source}-{version}/dkms.conf").write_text("")
    return host


@pytest.fixture
def run(machine: Machine) -> Callable[[str], str]:
    """A function that builds one module as the plan would ask for it, and gives what was told."""
    applier = Applier(machine, wanted(), {}, lambda _: None)

    def one(name: str) -> str:
        row = next(row for row in ROWS if row["name"] == name)
        source = modules.tree(wanted(), row)
        data = {
            "module": name,
            "version": row["version"],
            "release": RELEASE,
            "dkms": source,
            "package": row["package"],
        }
        return build(applier, Action("gpu_driver", "module.build", name, "why", data=data))

    return one


def commands(machine: Machine) -> list[str]:
    return [" ".join(argv[1:5]) for argv in machine.commands if argv[0] == "dkms"]


def test_a_build_is_recorded_with_what_it_was_made_against(
    machine: Machine, run: Callable[[str], str]
) -> None:
    assert [run(name) for name in ("mlx5_core", "nvidia-current-peermem", "gdrdrv")] == [
        "built by dkms"
    ] * 3
    assert commands(machine) == [
        "install --force -m ofed",
        "install --force -m nvidia-current",
        "install --force -m gdrdrv",
    ]
    record = json.loads(machine.text(RECORD) or "")["built_against"][RELEASE]
    assert set(record) == {"nvidia-current-peermem", "gdrdrv"}
    assert record["gdrdrv"] == {"gdrdrv": "6:1004", "nvidia-current": "14:1002"}
    assert run("gdrdrv") == "built by the package's own scripts"


def test_stale_module_is_built_and_installed_again(
    machine: Machine, run: Callable[[str], str]
) -> None:
    for name in ("mlx5_core", "nvidia-current-peermem", "gdrdrv"):
        run(name)
    machine.module("mlx5_core").write_text("another build")
    os.utime(
        machine.module("mlx5_core"), ns=(500, 500)
    )  # as a package brings it: older than what was built on the node
    machine.commands.clear()
    found = modules.survey(machine, RELEASE, ["nvidia-current", *(row["name"] for row in ROWS)])
    assert modules.stale(wanted(), ROWS[1], found) == "it was built against an earlier mlx5_core"
    assert run("nvidia-current-peermem") == "built by dkms"
    assert commands(machine) == [
        "build --force -m nvidia-current",
        "install --force -m nvidia-current",
    ]
    assert run("gdrdrv") == "built by dkms", "the driver's module is another one now"


def test_a_build_that_gives_nothing_is_an_error_with_the_end_of_its_log(
    machine: Machine, run: Callable[[str], str]
) -> None:
    machine.fails = "gdrdrv"
    log = machine.path("/var/lib/dkms/gdrdrv/2.4/build/make.log")
    log.parent.mkdir(parents=True)
    log.write_text("gdrdrv.c:1: error: no such symbol\n")
    with pytest.raises(
        NodeError,
        match=r"gdrdrv 2\.4 does not build for kernel .*finds no gdrdrv(.|\n)*no such symbol",
    ):
        run("gdrdrv")


def test_make_log_gives_the_first_compiler_errors_above_the_output_of_other_jobs(
    machine: Machine, run: Callable[[str], str]
) -> None:
    """As make -j left it for 550.163.01 on 7.2.12: the error is far above the last lines."""
    machine.fails = "gdrdrv"
    log = machine.path("/var/lib/dkms/gdrdrv/2.4/build/make.log")
    log.parent.mkdir(parents=True)
    error = "././common/inc/nv-mm.h:315:25: error: no member named '__vm_flags'"
    flags = "CFLAGS: -Werror=undef -Wno-error"
    after = [f"  {number} |     if (in_irq())" for number in range(40)]
    log.write_text("\n".join([flags, *[error] * 5, *after, "make: *** [Makefile:140] Error 2"]))
    with pytest.raises(NodeError) as raised:
        run("gdrdrv")
    message = str(raised.value)
    assert message.count(error) == 3
    assert "-Werror=undef" not in message
    assert message.endswith("make: *** [Makefile:140] Error 2")


def test_module_package_without_dkms_source_is_an_error(run: Callable[[str], str]) -> None:
    with pytest.raises(NodeError, match="its package lustre-modules contains no source for dkms"):
        run("lustre")


@pytest.mark.parametrize(
    ("version", "offered", "found"),
    [
        ("2.4-1", ["2.4", "2.5"], "2.4"),
        ("1:2.4-1~deb12", ["2.4"], "2.4"),
        ("24.10.OFED.1-1", ["24.10"], "24.10"),
        ("2.4-1", ["2.3", "2.5"], "has the sources 2.3, 2.5"),
        ("2.4-1", [], "has no source"),
    ],
)
def test_the_version_that_dkms_knows_a_source_by(
    tmp_path: Path, version: str, offered: list[str], found: str
) -> None:
    for item in offered:
        (tmp_path / f"usr/src/gdrdrv-{item}").mkdir(parents=True)
        (tmp_path / f"usr/src/gdrdrv-{item}/dkms.conf").write_text("")
    applier = Applier(Host(str(tmp_path)), wanted(), {}, lambda _: None)
    if found in offered:
        assert source_version(applier, "gdrdrv", version, "gdrdrv-dkms") == found
    else:
        with pytest.raises(NodeError, match=found):
            source_version(applier, "gdrdrv", version, "gdrdrv-dkms")
