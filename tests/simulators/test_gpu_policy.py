"""GPU policy on simulated boards, through the shipped program file: read, plan, set, verify, and reload the
driver.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import Scenario, build, write
from tests.simulators.hardware import library as libraries
from tests.simulators.hardware import machine as machines
from tests.unit.node.state.test_cases import document, merge

from goldnode.core import program_file as nodefile
from goldnode.node import probe
from goldnode.node.device import child
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.probe import gpus
from goldnode.node.state.apply import Applier
from goldnode.node.state.domains import policy
from goldnode.node.state.finding import MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding
from goldnode.node.state.model import Action, Observed, Plan
from goldnode.node.state.remedy import POLICY, REBOOT, SITE
from goldnode.node.state.removal import NO_CLASS

EVERYTHING: dict[str, Any] = {
    "persistence_mode": True,
    "clocks": {"graphics_mhz": 1305, "memory_mhz": 1215},
    "power_limit_watts": 350,
    "ecc": True,
    "compute_mode": "exclusive_process",
    "mig": {"enabled": False},
}
READ = {"do": "read", "vendor": "nvidia", "root": "/"}


class Machine(Host):
    """A directory that acts as a live node: it has the node's files, and the program detects the simulated
    GPUs.
    """

    def __init__(self, root: Path, scenario: Scenario) -> None:
        super().__init__(str(root), live=True)
        self.scenario = scenario
        self.place = root / "opt/goldnode-simulator"
        (self.place / "run").mkdir(parents=True)
        (root / "run").mkdir()
        (root / "run/goldnode-simulator").symlink_to("../opt/goldnode-simulator/run")
        write(scenario, self.place)
        self.program = str(root / "goldnode-node")
        Path(self.program).write_bytes(nodefile.build())
        Path(self.program).chmod(0o755)

    def fault(self, *faults: str) -> None:
        """Inject faults."""
        write(self.scenario.with_faults(faults), self.place)

    def unfault(self) -> None:
        """Remove all faults."""
        write(self.scenario, self.place)

    def simulated(self) -> machines.Machine:
        """Return the same directory as the simulator's own host."""
        return machines.Machine(Path(self.root), Path(os.environ["LD_LIBRARY_PATH"]))

    def load_driver(self) -> None:
        """Simulate a reload of the driver, which loses its settings."""
        (self.place / "run/state").unlink()

    def calls(self) -> list[str]:
        """Return name and return code of all setter calls since the driver was loaded."""
        lines = (
            (self.place / "run/calls").read_text().splitlines()
            if (self.place / "run/calls").exists()
            else []
        )
        return [f"{line.split()[0]} {line.split()[1]}" for line in lines]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the functions of driver branch 470 alone."""
    return libraries.build(tmp_path_factory.mktemp("older"), libraries.absent_in_470())


@pytest.fixture
def machine(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Machine]:
    def make(model: str = "A100-SXM4-40GB", count: int = 2) -> Machine:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        monkeypatch.setenv("GOLDNODE_SIMULATOR", str(tmp_path / "opt/goldnode-simulator"))
        wanted = {
            "class": "case",
            "gpu": {"model": model, "count": count},
            "platform": {"nvswitch": False},
            "driver": {"version": "535.2"},
        }
        return Machine(tmp_path, Scenario.of(wanted))

    return make


def look(host: Machine, wanted: Any) -> tuple[Any, Observed]:
    """Return a class document with this policy for simulated GPUs, and the observation of the node."""
    whole = merge(document(), {"policy": wanted, "simulated": True})
    seen = Observed(simulated=True)
    policy.observe(host, whole, seen)
    return whole, seen


def plan(host: Machine, wanted: Any) -> list[Action]:
    """Return the planned settings."""
    return [action for action in policy.plan(*look(host, wanted))[0] if action.kind == "gpu.set"]


def settle(host: Machine, wanted: Any) -> list[str]:
    """Apply all planned settings. Return them as `field index`."""
    actions = plan(host, wanted)
    applier = Applier(host, NO_CLASS, {}, print)
    applier.planned = actions
    for action in actions:
        applier.apply(action)
    return [f"{action.data['field']} {action.data['index']}" for action in actions]


def outcomes(host: Machine, wanted: Any) -> dict[str, tuple[str, str | None]]:
    """Return outcome and observed value by policy item."""
    return {
        finding.id.partition(".")[2]: (finding.outcome, finding.got)
        for finding in policy.findings(*look(host, wanted))
    }


def values(found: Any, path: str = "") -> dict[str, Any]:
    """Return all values of a document by their path."""
    if isinstance(found, dict) and not found.keys() & {"rc", "fault"}:
        return {
            key: value
            for name, part in found.items()
            for key, value in values(part, f"{path}.{name}").items()
        }
    return {path: found}


def captured(host: Machine) -> dict[str, Any]:
    """Return the sections of a capture that come from the library."""
    context = probe.Context(host, {"class": "x", "gpu": {"vendor": "nvidia"}}, passive=True)
    gpus.begin(context)
    return dict(gpus.read(context))


def test_library_of_branch_470_is_read_with_the_calls_that_it_has(
    machine: Callable[..., Machine], older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machine()
    whole = child.ask(host, READ)["gpus"]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(older.parent))
    answer = child.ask(host, READ)
    for name, gpu in answer["gpus"].items():
        different = {key for key, value in values(gpu).items() if values(whole[name])[key] != value}
        assert different == {
            ".mig.profiles"
        }  # without names; they are derived from slices and memory
    found = captured(host)
    assert found["gpu_error"] is None
    assert [gpu["processes"] for gpu in found["gpus"]] == [[], []]
    assert "Mismatch" not in json.dumps([answer, found])


def test_call_that_no_version_of_the_library_has_is_not_exposed(
    machine: Callable[..., Machine],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pynvml = libraries.functions(libraries.pynvml_source())
    absent = [name for name in pynvml if "ComputeRunningProcesses" in name]
    made = libraries.build(tmp_path_factory.mktemp("oldest"), absent)
    host = machine()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(made.parent))
    answer = child.ask(host, READ)
    assert [gpu["processes"]["rc"] for gpu in answer["gpus"].values()] == [13, 13]
    found = [gpu["processes"] for gpu in captured(host)["gpus"]]
    assert [(item["fault"], item["rc"]) for item in found] == [("not_exposed", 13)] * 2


def test_the_whole_policy_is_set_read_back_and_left_alone(machine: Callable[..., Machine]) -> None:
    host = machine()
    done = settle(host, EVERYTHING)
    assert done[:2] == ["persistence_mode 0", "persistence_mode 1"]
    assert [line.partition(" ")[0] for line in done[2:]] == ["power_limit_watts"] * 2 + [
        "clocks"
    ] * 2 + ["compute_mode"] * 2
    assert plan(host, EVERYTHING) == []
    assert {outcome for outcome, _ in outcomes(host, EVERYTHING).values()} == {MATCH}
    assert host.commands.count((host.program, "device")) == 4, (
        "reading costs one process, setting one for all GPUs"
    )
    found = child.ask(host, READ)["gpus"]["1"]
    assert (found["power"]["limit"], found["clocks"]["application"]) == (
        350,
        {"graphics": 1305, "memory": 1215},
    )
    assert found["pci_id"] == "10de:20b0"
    assert len(found["address"]) == len("0000:10:00.0")


def test_a_reload_of_the_driver_is_drift_and_is_repaired(machine: Callable[..., Machine]) -> None:
    host = machine()
    settle(host, EVERYTHING)
    host.load_driver()
    off = {item for item, (outcome, _) in outcomes(host, EVERYTHING).items() if outcome == MISMATCH}
    assert off == {
        "persistence_mode",
        "power_limit_watts",
        "clocks.graphics_mhz",
        "compute_mode",
    } | (off & {"clocks.memory_mhz"})
    settle(host, EVERYTHING)
    assert {outcome for outcome, _ in outcomes(host, EVERYTHING).values()} == {MATCH}


def test_locked_clocks_are_known_by_their_setter_and_to_this_load_of_the_driver_only(
    machine: Callable[..., Machine],
) -> None:
    host, wanted = machine(), {"clocks": {"graphics_mhz": 1200, "mode": "locked"}}
    assert outcomes(host, wanted)["clocks.graphics_mhz"] == (
        MISMATCH,
        "GPU 0, 1: not set since the driver was loaded",
    )
    settle(host, wanted)
    outcome, got = outcomes(host, wanted)["clocks.graphics_mhz"]
    assert outcome == NOT_EXPOSED
    assert str(got).startswith("GPU 0, 1: set at 20")
    assert plan(host, wanted) == []
    host.load_driver()
    assert outcomes(host, wanted)["clocks.graphics_mhz"][0] == MISMATCH
    assert settle(host, wanted) == ["clocks 0", "clocks 1"]
    record = json.loads((Path(host.root) / "run/goldnode/policy.json").read_text())
    assert record["schema"] == "goldnode.policy/1"
    assert {row["clocks"]["text"] for row in record["set"].values()} == {"Success"}


def test_a_driver_without_application_clocks(machine: Callable[..., Machine]) -> None:
    host, wanted = machine(), {"clocks": {"graphics_mhz": 1305}}
    host.fault("gpu*.application_clock.0=error:not_supported", "gpu*.application_clock.1=error:not_supported",
               "gpu*.application_clock.2=error:not_supported", "gpu*.set.application_clock=error:not_supported")  # fmt: skip
    assert settle(host, wanted) == ["clocks 0", "clocks 1"]
    outcome, got = outcomes(host, wanted)["clocks.graphics_mhz"]
    assert outcome == NOT_EXPOSED
    assert "Not Supported (return code 3)" in str(got)
    assert plan(host, wanted) == [], "a setter that is not there is asked once"


def test_ecc_becomes_active_at_the_next_boot(machine: Callable[..., Machine]) -> None:
    host, wanted = machine(), {"ecc": False}
    settle(host, wanted)
    assert plan(host, wanted) == []
    assert policy.reboot_reasons(*look(host, wanted)) == ["ECC becomes active at the next boot"]
    assert outcomes(host, wanted)["ecc"] == (MISMATCH, "GPU 0, 1: on, off from the next boot")
    host.load_driver()
    assert outcomes(host, wanted)["ecc"][0] == MATCH


# -- remedies of modes, carried out

ON_OFF = (True, False)
CELLS = [
    (model, item, current, pending, declared)
    for model in (
        "A100-SXM4-40GB",
        "H100-SXM5-80GB",
    )  # Ampere retains its MIG mode over a boot, Hopper does not
    for item in ("ecc", "mig")
    for current in ON_OFF
    for pending in ON_OFF
    for declared in ON_OFF
]


def turn(host: Machine, item: str, current: bool, pending: bool) -> None:
    """Leave a mode of both GPUs in this state, as someone with `nvidia-smi` would."""
    child.ask(host, READ)  # the first call makes the simulator register its boot
    place = host.place / "state"
    rows = (
        dict(line.split("=", 1) for line in place.read_text().splitlines())
        if place.exists()
        else {}
    )
    for gpu in range(2):
        rows.update(
            {
                f"gpu{gpu}.{item}_current": str(int(current)),
                f"gpu{gpu}.{item}_pending": str(int(pending)),
            }
        )
    place.write_text("".join(f"{key}={value}\n" for key, value in sorted(rows.items())))


def carry_out(host: Machine, wanted: Any, steps: tuple[str, ...]) -> None:
    """Apply the steps of a remedy. A boot ends with `goldnode-policy.service`."""
    for step in steps:
        assert step in (POLICY, SITE, REBOOT), step
        if step == REBOOT:
            host.load_driver()
        settle(host, wanted)


def finding_of(host: Machine, wanted: Any, item: str) -> Finding:
    return next(
        found for found in policy.findings(*look(host, wanted)) if found.id == f"policy.{item}"
    )


def mode_of(host: Machine, item: str) -> bool:
    """Return whether the mode of GPU 0 is on now."""
    return bool(child.ask(host, READ)["gpus"]["0"][item]["current"])


@pytest.mark.parametrize(("model", "item", "current", "pending", "declared"), CELLS)
def test_remedy_of_a_mode_leads_to_what_is_declared_and_never_away_from_it(
    machine: Callable[..., Machine],
    model: str,
    item: str,
    current: bool,
    pending: bool,
    declared: bool,
) -> None:
    host = machine(model)
    wanted: Any = {item: declared if item == "ecc" else {"enabled": declared}}
    other: dict[str, Any] = {"mig": {"enabled": False}} if item == "ecc" else {"ecc": True}
    turn(host, item, current, pending)
    for _ in range(2):
        found = finding_of(host, wanted, item)
        if found.outcome == MATCH:
            break
        was_right = mode_of(host, item) == declared
        assert found.remedy is not None
        for number in range(1, len(found.remedy.steps) + 1):
            carry_out(host, wanted, found.remedy.steps[number - 1 : number])
            assert not was_right or mode_of(host, item) == declared, (
                f"{found.remedy} ({found.remedy.steps[:number]})"
            )
    assert finding_of(host, wanted, item).outcome == MATCH
    assert {outcome for outcome, _ in outcomes(host, other).values()} == {MATCH}
    host.load_driver()
    settle(host, wanted)
    assert finding_of(host, wanted, item).outcome == MATCH, "the next boot keeps it"


def test_reset_of_a_gpu_makes_its_pending_modes_current_and_forgets_what_was_set(
    machine: Callable[..., Machine],
) -> None:
    host = machine()
    settle(host, EVERYTHING)
    turn(host, "ecc", current=True, pending=False)
    host.fault("gpu0.processes=4711:1000000")
    assert machines.reset(host.simulated(), 0) == 19, "a GPU in use refuses it"
    host.unfault()
    assert machines.reset(host.simulated(), 0) == 0
    assert not mode_of(host, "ecc")
    off = outcomes(host, EVERYTHING)
    assert off["power_limit_watts"] == (MISMATCH, "GPU 0: 400 W"), "the other GPU is as it was"


def test_pending_mig_mode_is_set_back_without_touching_the_instances(
    machine: Callable[..., Machine],
) -> None:
    host, wanted = machine(), {"mig": {"enabled": True, "profiles": ["3g.20gb", "4g.20gb"]}}
    settle(host, wanted)
    turn(host, "mig", current=True, pending=False)
    before = host.calls()
    assert settle(host, wanted) == ["mig 0", "mig 1"]
    assert host.calls()[len(before) :] == ["gpu0 nvmlDeviceSetMigMode", "gpu1 nvmlDeviceSetMigMode"]
    assert outcomes(host, wanted)["mig"][0] == MATCH


def test_a_mig_layout_is_made_changed_and_taken_away(machine: Callable[..., Machine]) -> None:
    host = machine()
    for profiles in (["3g.20gb", "4g.20gb"], ["1g.5gb"] * 7, ["2g.10gb", "1g.5gb", "3g.20gb"]):
        wanted = {"mig": {"enabled": True, "profiles": profiles}}
        assert settle(host, wanted) == ["mig 0", "mig 1"]
        assert outcomes(host, wanted)["mig"][0] == MATCH
    host.load_driver()
    assert outcomes(host, wanted)["mig"] == (MISMATCH, "GPU 0, 1: on"), (
        "the mode stays on this board, the layout does not"
    )
    settle(host, wanted)
    off = {"mig": {"enabled": False}}
    assert outcomes(host, off)["mig"][0] == MISMATCH
    settle(host, off)
    assert outcomes(host, off)["mig"][0] == MATCH


@pytest.mark.parametrize(
    "profiles",
    [
        # In this order the driver leaves no room for the last one (MIG User Guide, a 3-2-1-1 geometry).
        ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"],
        # Only with 3g.20gb behind the small ones.
        ["3g.20gb", *["1g.5gb"] * 4],
        ["1g.5gb", "1g.5gb", *["1g.10gb"] * 3],
    ],
)
def test_a_mig_layout_is_made_in_any_order(
    machine: Callable[..., Machine], profiles: list[str]
) -> None:
    host = machine()
    wanted = {"mig": {"enabled": True, "profiles": profiles}}
    settle(host, wanted)
    assert outcomes(host, wanted)["mig"][0] == MATCH


def test_a_mig_layout_without_a_place_leaves_the_one_that_is_there(
    machine: Callable[..., Machine],
) -> None:
    host = machine()
    old = {"mig": {"enabled": True, "profiles": ["7g.40gb"]}}
    settle(host, old)
    wanted = {"mig": {"enabled": True, "profiles": ["3g.20gb", "3g.20gb", "1g.5gb"]}}
    with pytest.raises(NodeError, match="one GPU has no place for"):
        settle(host, wanted)
    assert outcomes(host, old)["mig"][0] == MATCH


def test_mig_of_some_gpus(machine: Callable[..., Machine]) -> None:
    host = machine()
    wanted = {
        "mig": {"enabled": False},
        "overrides": [{"indexes": [1], "mig": {"enabled": True, "profiles": ["3g.20gb"]}}],
    }
    assert settle(host, wanted) == ["mig 1"]
    assert outcomes(host, wanted)["mig"][0] == MATCH
    assert outcomes(host, {"mig": {"enabled": True}})["mig"] == (MISMATCH, "GPU 0: off")


def test_mig_waits_for_a_process_on_its_gpu(machine: Callable[..., Machine]) -> None:
    host = machine()
    host.fault("gpu1.processes=4711:1000000")
    wanted = {"mig": {"enabled": True}}
    _, _, waiting = policy.plan(*look(host, wanted))
    assert [
        (item.part, "GPU 1" in item.subject, "pid 4711" in item.message) for item in waiting
    ] == [("gpu_policy", True, True)]
    assert settle(host, wanted) == ["mig 0"]


def test_a_busy_gpu_takes_its_mig_mode_later(machine: Callable[..., Machine]) -> None:
    host, wanted = machine(count=1), {"mig": {"enabled": True, "profiles": ["7g.40gb"]}}
    host.fault("gpu0.busy=1")
    settle(host, wanted)
    assert policy.reboot_reasons(*look(host, wanted)) == ["MIG becomes active at the next boot"]
    host.load_driver()
    host.fault()
    assert settle(host, wanted) == ["mig 0"]


def test_nothing_is_set_that_a_board_cannot_take(machine: Callable[..., Machine]) -> None:
    host = machine()
    for wanted, code in (
        ({"power_limit_watts": 401}, "policy-power"),
        ({"clocks": {"graphics_mhz": 1404}}, "policy-clocks"),
        ({"mig": {"enabled": True, "profiles": ["3g.40gb"]}}, "policy-mig"),
    ):
        whole, seen = look(host, wanted)
        assert [refusal.code for refusal in policy.refusals(whole, seen, [])] == [code]
    assert host.calls() == []


def test_a_lost_gpu_could_not_be_read_and_the_other_is_set(machine: Callable[..., Machine]) -> None:
    host = machine()
    host.fault("gpu0.all=error:lost")
    assert settle(host, EVERYTHING)[0] == "persistence_mode 1"
    found = outcomes(host, EVERYTHING)
    assert {outcome for outcome, _ in found.values()} == {UNREAD}
    assert "return code 15" in str(found["ecc"][1])


@pytest.mark.parametrize("code", ["driver_not_loaded", "library_mismatch"])
def test_a_library_that_cannot_start(machine: Callable[..., Machine], code: str) -> None:
    host = machine()
    host.fault(f"init=error:{code}")
    assert {outcome for outcome, _ in outcomes(host, EVERYTHING).values()} == {UNREAD}
    assert plan(host, EVERYTHING) == []


def test_one_field_that_fails_leaves_the_others_readable(machine: Callable[..., Machine]) -> None:
    host = machine()
    settle(host, EVERYTHING)
    host.fault("gpu0.power_limit=error:unknown", "gpu1.ecc_current=error:not_supported")
    found = outcomes(host, EVERYTHING)
    assert found["power_limit_watts"][0] == UNREAD
    assert found["ecc"][0] == NOT_EXPOSED
    assert found["persistence_mode"][0] == found["compute_mode"][0] == MATCH


def test_a_driver_that_hangs_is_could_not_read(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machine()
    host.fault("gpu1.power_limit=hang")
    monkeypatch.setattr(child, "LIMIT", 3.0)
    monkeypatch.setattr(policy, "ask", lambda host, request: child.ask(host, request, 3.0))
    found = outcomes(host, EVERYTHING)
    assert {outcome for outcome, _ in found.values()} == {UNREAD}
    assert "did not answer within 3 s; the process that asked was killed" in str(found["ecc"][1])


@pytest.mark.parametrize(
    ("fault", "text"),
    [("error:no_permission", "Insufficient Permissions (return code 4)"), ("error:999", "999")],
)
def test_a_setter_that_fails_is_an_error_with_its_return_code(
    machine: Callable[..., Machine], fault: str, text: str
) -> None:
    host = machine()
    host.fault(f"gpu1.set.power_limit={fault}")
    with pytest.raises(
        NodeError, match=r"power_limit_watts of GPU 1 .* cannot be set to 350"
    ) as caught:
        settle(host, EVERYTHING)
    assert text in str(caught.value)


def test_ignored_setter_is_a_mismatch_when_read_back(
    machine: Callable[..., Machine],
) -> None:
    host = machine()
    host.fault("gpu0.set.power_limit=ignored")
    settle(host, EVERYTHING)
    assert outcomes(host, EVERYTHING)["power_limit_watts"][0] == MISMATCH
    assert [action.data["index"] for action in plan(host, EVERYTHING)] == [0]


def test_a_board_without_mig_does_not_expose_it(machine: Callable[..., Machine]) -> None:
    host = machine("L4", 1)
    whole, seen = look(host, {"mig": {"enabled": False}})
    assert Plan(tuple(policy.plan(whole, seen)[0])).part("gpu_policy") == tuple(
        action for action in policy.plan(whole, seen)[0] if action.kind == "link"
    )
    assert outcomes(host, {"mig": {"enabled": False}})["mig"][0] in (NOT_EXPOSED, UNREAD)


def test_mig_parted_is_used_where_it_is_installed(machine: Callable[..., Machine]) -> None:
    """Use a stand-in that records its arguments; NVIDIA's program was not run."""
    host = machine(count=1)
    program = Path(host.root) / "usr/bin/nvidia-mig-parted"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    asked: list[tuple[str, ...]] = []

    def run(*argv: str, **options: Any) -> Any:
        asked.append(argv)
        return Host().run("true")

    host.run = run  # type: ignore[method-assign]
    wanted = {
        "persistence_mode": True,
        "mig": {"enabled": True, "profiles": ["3g.20gb", "3g.20gb"]},
        "power_limit_watts": 350,
    }
    settle(host, wanted)
    config = json.loads((Path(host.root) / "run/goldnode/mig-parted.json").read_text())
    assert config["mig-configs"] == {
        "goldnode": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}]
    }
    assert asked == [
        (
            "/usr/bin/nvidia-mig-parted",
            "apply",
            "-f",
            "/run/goldnode/mig-parted.json",
            "-c",
            "goldnode",
        )
    ]
    assert host.calls() == [
        "gpu0 nvmlDeviceSetPersistenceMode",
        "gpu0 nvmlDeviceSetPowerManagementLimit",
    ]
