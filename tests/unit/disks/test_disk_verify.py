"""What a booted guest told, validated against its image: facts in, checks out. Each case spoils one thing of a good guest and names the checks that fail."""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.disks import guest_facts as good

from goldnode.core import release
from goldnode.core.errors import DiskError
from goldnode.core.files import sha256_of
from goldnode.disks import collector, guest, qemu, simulated
from goldnode.disks import verify as verification
from goldnode.disks.guest import FAILED, PASSED, UNVERIFIABLE, GuestCheck
from goldnode.disks.model import BuiltDisk, DiskFile, DiskSystem, Partition, Raw
from goldnode.disks.qemu import Accelerator, GuestResult, MachineError
from goldnode.node.gate import gate
from goldnode.node.ground import gate_files
from goldnode.node.state.domains.program import document_digest

Facts = dict[str, Any]
Spoil = Callable[[Facts], Any]


def ids(checks: list[GuestCheck], outcome: str) -> set[str]:
    return {check.id for check in checks if check.outcome == outcome}


@pytest.mark.parametrize("gpu", [False, True])
def test_a_good_guest_passes_and_what_it_cannot_show_does_not(gpu: bool) -> None:
    checks = guest.judge(good.facts(gpu=gpu), good.wanted(gpu=gpu))
    assert ids(checks, FAILED) == set()
    names = {
        "gpu.count",
        "driver.loaded",
        "policy.persistence_mode",
        "policy.clocks.graphics_mhz",
        "policy.power_limit_watts",
    }
    message = {f"check.says.{name}" for name in names}
    unseen = {
        "check.unseen.time.sync",
        *(
            {"check.unseen.policy.host.iommu", "pending.policy.set.power_limit", *message}
            if gpu
            else ()
        ),
    }
    assert ids(checks, UNVERIFIABLE) == unseen
    assert {
        "packages",
        "initramfs",
        "disk.grown",
        "disk.root-b",
        "gate.state",
        "gate.order.docker.service",
        "plan",
    } <= ids(checks, PASSED)
    assert guest.outcome(checks) == PASSED
    assert guest.outcome([]) == FAILED, "no check at all is no pass"


def test_captured_first_boot_has_no_failure_until_kernel_differs() -> None:
    captured = json.loads(Path(__file__).with_name("captured_cpu_only.json").read_text())
    rows = captured["wanted"]
    wanted = guest.GuestExpectations(
        **{
            **rows,
            "modules": tuple(rows["modules"]),
            "pending": tuple(map(tuple, rows["pending"])),
            "partitions": tuple(Partition(**row) for row in rows["partitions"]),
        }
    )
    checks = guest.judge(captured["facts"], wanted)
    # It was recorded before disks had identities of their own, and before sockets were listed.
    old = {"disk.root.uuid", "disk.filesystem.uuid", "listeners"}
    assert ids(checks, FAILED) == old
    names = {
        "check.unseen.runtime.engine",
        "check.unseen.boot.next",
        "pending.boot.entry",
        "pending.runtime.engine",
    }
    assert ids(checks, UNVERIFIABLE) == names
    assert {
        "boot.entry",
        "packages",
        "disk.root-b",
        "check.ran",
        "gate.runtime.docker.service",
        "plan",
    } <= ids(checks, PASSED)
    captured["facts"]["kernel"] = "6.1.0-55-amd64"
    assert ids(guest.judge(captured["facts"], wanted), FAILED) == {"kernel.running", *old}


def set_(*path: Any, to: Any) -> Spoil:
    def spoil(facts: Facts) -> None:
        place: Any = facts
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return spoil


def findings(*rows: dict[str, Any]) -> Spoil:
    """Replace or add findings of the verdict."""

    def spoil(facts: Facts) -> None:
        stored = {row["id"]: row for row in facts["verdict"]["findings"]}
        facts["verdict"]["findings"] = list({**stored, **{row["id"]: row for row in rows}}.values())

    return spoil


def without(name: str) -> Spoil:
    def spoil(facts: Facts) -> None:
        facts["verdict"]["findings"] = [
            row for row in facts["verdict"]["findings"] if row["id"] != name
        ]

    return spoil


def listens(protocol: str, address: str, port: str, programs: str) -> Spoil:
    def spoil(facts: Facts) -> None:
        facts["listeners"].append(good.socket(protocol, address, port, programs))

    return spoil


def partition(label: str, **more: Any) -> Spoil:
    def spoil(facts: Facts) -> None:
        next(row for row in facts["disks"][0]["children"] if row["partlabel"] == label).update(more)

    return spoil


def action(kind: str, target: str, phase: str) -> Spoil:
    return set_(
        "plan",
        "plan",
        "actions",
        to=[{"kind": kind, "target": target, "reason": "it differs", "phase": phase}],
    )


MODULE = ("modules", good.MODULE)
CASES: list[tuple[str, Spoil, set[str]]] = [
    (
        "multi-user is not reached",
        set_("units", "multi-user.target", "ActiveState", to="inactive"),
        {"boot.multi_user"},
    ),
    (
        "a unit failed",
        lambda facts: facts.update(state="degraded", failed=["x.service"]),
        {"system.state", "units.failed"},
    ),
    ("another kernel", set_("kernel", to="6.1.0-55-amd64"), {"kernel.running"}),
    ("another entry", set_("entry", to="goldnode-000000000000-a.conf"), {"boot.entry"}),
    ("the loader says nothing", set_("entry", to=""), {"boot.entry"}),
    (
        "another initramfs on the ESP",
        set_("sum", "/efi/goldnode/a/initrd.img", to="j"),
        {"boot.initrd.img"},
    ),
    (
        "a kernel that is not on the ESP",
        set_("sum", "/efi/goldnode/a/vmlinuz", to=None),
        {"boot.vmlinuz"},
    ),
    ("root has a password", set_("root_password", to=["P"]), {"root.password"}),
    ("root needs none", set_("root_password", to=["NP"]), {"root.password"}),
    (
        "an edited class document",
        set_("class", "gate", to="drain"),
        {"class.document", "gate.state"},
    ),
    ("no class document", set_("class", to=None), {"class.document"}),
    (
        "a module for another kernel",
        set_(*MODULE, "fields", "vermagic", to="6.1.0-55-amd64 SMP"),
        {f"module.{good.MODULE}.kernel"},
    ),
    (
        "another driver",
        set_(*MODULE, "fields", "version", to="550.1"),
        {f"module.{good.MODULE}.version"},
    ),
    ("no module", lambda facts: facts["modules"].clear(), {f"module.{good.MODULE}.kernel"}),
    (
        "the kernel does not take it",
        set_(*MODULE, "said", to="could not insert: Invalid module format"),
        {f"module.{good.MODULE}.fits"},
    ),
    (
        "a symbol is missing",
        set_(*MODULE, "kernel", to="nvidia: Unknown symbol pci_resize (err -2)\nNo such device"),
        {f"module.{good.MODULE}.fits"},
    ),
    (
        "a signature is missing",
        set_(*MODULE, "said", to="could not insert: Key was rejected by service"),
        {f"module.{good.MODULE}.fits"},
    ),
    (
        "it ends in something else",
        set_(*MODULE, "said", to="could not insert: Invalid argument"),
        {f"module.{good.MODULE}.fits"},
    ),
    (
        "nouveau loads",
        set_("refusals", "nouveau", to={"rc": 0, "said": "", "loaded": True}),
        {"refused.nouveau"},
    ),
    ("nouveau was not tried", lambda facts: facts["refusals"].clear(), {"refused.nouveau"}),
    ("the boot has loaded nouveau", set_("loaded", to=["nouveau"]), {"refused.nouveau"}),
    (
        "nouveau is in the initramfs",
        set_("initramfs", "names", to=["usr/lib/modules/6/nouveau.ko.xz"]),
        {"initramfs"},
    ),
    (
        "a host key is in the initramfs",
        set_("initramfs", "names", to=["etc/ssh/ssh_host_rsa_key", "init"]),
        {"initramfs"},
    ),
    (
        "the initramfs cannot be listed",
        set_("initramfs", to={"error": "no zstd", "names": []}),
        {"initramfs"},
    ),
    (
        "a package of another version",
        set_("packages", "python3", to=["3.12", "amd64", "ii"]),
        {"packages"},
    ),
    ("a package too many", set_("packages", "gcc", to=["12", "amd64", "ii"]), {"packages"}),
    ("a package is missing", set_("packages", "python3", 2, to="rc"), {"packages"}),
    ("a package is half installed", set_("packages", "x", to=["1", "amd64", "iF"]), {"packages"}),
    ("a package is not held", set_("holds", to=[]), {"packages.held"}),
    (
        "dpkg has run",
        set_("package_managers", "/var/lib/dpkg/status", to=good.EPOCH + 60),
        {"packages.manager"},
    ),
    (
        "apt's timer has run",
        set_("units", "apt-daily.service", "InactiveExitTimestampMonotonic", to="5"),
        {"packages.manager"},
    ),
    (
        "nothing of dpkg's is there",
        lambda facts: facts["package_managers"].clear(),
        {"packages.manager"},
    ),
    (
        "the root did not grow",
        partition("root-a", size=4096 * good.MIB),
        {"disk.grown", "disk.root-b"},
    ),
    *(
        (
            f"a program listens: {programs} {address}",
            listens(protocol, address, port, programs),
            {"listeners"},
        )
        for protocol, address, port, programs in (
            ("udp", good.ANY, "5355", "systemd-resolve"),
            ("tcp", "::", "5355", "systemd-resolve"),
            ("udp", good.ANY, "5353", "systemd-resolve"),
            ("tcp", "10.0.2.15", "35411", "containerd"),  # a high port of TCP is a server's
            ("tcp", good.ANY, "9100", "prometheus-node"),
            ("udp", good.ANY, "22", ""),
        )
    ),
    ("sockets cannot be listed", set_("listeners", to=None), {"listeners"}),
    ("the file system did not grow", set_("root", "size", to=3800 * good.MIB), {"disk.filesystem"}),
    ("no second slot", partition("root-b", partlabel="other"), {"disk.root-b"}),
    ("a small second slot", partition("root-b", size=1024 * good.MIB), {"disk.root-b"}),
    (
        "the root has the GUID of the image",
        partition("root-a", partuuid="AA-01"),
        {"disk.root.uuid"},
    ),
    (
        "its file system has that of the image",
        partition("root-a", uuid="u"),
        {"disk.filesystem.uuid"},
    ),
    ("no machine-id", set_("identity", "machine_id", to="uninitialized"), {"identity.machine_id"}),
    ("no host keys", set_("identity", "host_keys", to={}), {"identity.host_keys"}),
    ("no name", set_("identity", "hostname", to="localhost"), {"identity.hostname"}),
    ("no lease", set_("identity", "client_ids", to=[]), {"identity.client_id"}),
    ("no verdict", set_("verdict", to=None), {"check.ran"}),
    (
        "the verdict is of another boot",
        set_("verdict", "boot_identity", to="boot-0/1"),
        {"check.ran"},
    ),
    (
        "the check's unit failed",
        set_("units", "goldnode-sanity.service", "Result", to="exit-code"),
        {"check.ran"},
    ),
    (
        "a finding of the image",
        findings(good.finding("stack.lock", "mismatch", "python3 3.12")),
        {"check.findings", "gate.state"},
    ),
    (
        "something of the image could not be read",
        findings(good.finding("blacklist.initramfs", "could_not_read", "no zstd", "degraded")),
        {"check.findings"},
    ),
    (
        "it takes itself for a container",
        findings(
            good.finding(
                "kernel.running",
                "not_verified_here",
                "a container shows the kernel and devices of its host",
            )
        ),
        {"check.findings"},
    ),
    (
        "GPUs that are not there match",
        findings(good.finding("gpu.count", "match", "8")),
        {"check.says.gpu.count"},
    ),
    (
        "a policy matches without GPUs",
        findings(good.finding("policy.power_limit_watts", "match", "400")),
        {"check.says.policy.power_limit_watts"},
    ),
    ("the verdict is silent about the GPUs", without("gpu.count"), {"check.says.gpu.count"}),
    (
        "a class with GPUs is healthy without",
        set_("verdict", "exit_code", to=0),
        {"check.never_healthy"},
    ),
    ("the gate did not decide", lambda facts: facts.update(gate=None), {"gate.state"}),
    ("the gate has no pass", set_("pass", to=False), {"gate.state"}),
    (
        "docker is not ordered",
        set_("units", "docker.service", "After", to="basic.target"),
        {"gate.order.docker.service"},
    ),
    (
        "docker started before",
        set_("units", "docker.service", "ExecMainStartTimestampMonotonic", to="50"),
        {"gate.order.docker.service"},
    ),
    (
        "docker does not run",
        set_("units", "docker.service", "ActiveState", to="inactive"),
        {"gate.runtime.docker.service"},
    ),
    (
        "slurmd is blocked",
        lambda facts: facts["units"].update(
            {"slurmd.service": good.unit("slurmd.service", ExecCondition="x")}
        ),
        {"gate.free.slurmd.service"},
    ),
    (
        "a gate that the class does not have",
        set_("units", "docker.service", "DropInPaths", to="/x/goldnode-gate.conf"),
        {"gate.drop_in.docker.service"},
    ),
    ("work is left", action("file.write", "/etc/x", "image"), {"plan"}),
    ("there is no plan", set_("plan", to={"plan": None, "error": "traceback"}), {"plan"}),
]


@pytest.mark.parametrize(("what", "spoil", "expected"), CASES, ids=[case[0] for case in CASES])
def test_each_fault_fails_its_checks_and_no_other(
    what: str, spoil: Spoil, expected: set[str]
) -> None:
    facts = good.facts(gpu=True)
    spoil(facts)
    checks = guest.judge(facts, good.wanted(gpu=True))
    assert ids(checks, FAILED) == expected
    assert guest.outcome(checks) == FAILED


def test_a_real_class_whose_gpus_are_missing_reports_it_and_may_be_drained() -> None:
    facts = good.facts(gpu=True, mode="block")
    document = good.document(gpu=True, mode="block", simulated=False)
    facts["class"] = document
    facts["verdict"].update(class_digest=document["digest"], exit_code=2, status="drain")
    findings(
        good.finding("gpu.count", "mismatch", "0"),
        good.finding("driver.loaded", "mismatch", "none"),
        good.finding("gpu.library", "mismatch", "none"),
    )(facts)
    reasons = [reason.text for reason in gate.reasons(facts["verdict"])]
    facts["gate"] = {"mode": "block", "open": False, "reasons": reasons}
    facts["pass"] = False
    for name in gate_files.RUNTIMES:
        facts["units"][name].update(ActiveState="inactive", ExecMainStartTimestampMonotonic="0")
        facts["status"][name] = "x goldnode gate: gpu.count: 0 (want 8)"
    facts["plan"]["plan"]["refusals"] = [{"code": "gpu-count", "message": "0 of 8"}]
    wanted = good.replaced(good.wanted(gpu=True), class_digest=document["digest"])
    checks = guest.judge(facts, wanted)
    assert ids(checks, FAILED) == set()
    assert {"check.says.gpu.count", "check.says.driver.loaded", "check.unseen.gpu.library"} <= ids(
        checks, UNVERIFIABLE
    )
    for name, spoil in (
        (
            "gate.runtime.docker.service",
            set_("units", "docker.service", "ActiveState", to="active"),
        ),
        ("gate.runtime.docker.service", set_("status", "docker.service", to="nothing")),
        ("gate.drop_in.docker.service", set_("units", "docker.service", "ExecCondition", to="")),
        ("gate.state", set_("pass", to=True)),
    ):
        other = copy.deepcopy(facts)
        spoil(other)
        assert ids(guest.judge(other, wanted), FAILED) == {name}


@pytest.mark.parametrize(
    ("layout", "extra", "root", "slot", "expected"),
    [
        ("ab", 4600, 4347, 4347, set()),
        (
            "ab",
            600,
            4096 + 590,
            None,
            set(),
        ),  # no room: no second slot, the root grows all the same
        ("ab", 600, 4096 + 590, 100, {"disk.root-b"}),
        ("single", 600, 4096 + 590, None, set()),
        ("single", 600, 4096, None, {"disk.grown"}),
    ],
)
def test_the_disk_by_layout_and_room(
    layout: str, extra: int, root: int, slot: int | None, expected: set[str]
) -> None:
    facts = good.facts(gpu=False)
    rows = facts["disks"][0]["children"]
    rows[1].update(size=root * good.MIB, partlabel="root-a" if layout == "ab" else "root")
    facts["root"]["size"] = root * good.MIB * 95 // 100
    if slot is None:
        rows.pop()
    else:
        rows[2].update(size=slot * good.MIB)
    assert (
        ids(guest.judge(facts, good.wanted(gpu=False, layout=layout, extra=extra)), FAILED)
        == expected
    )


def test_a_second_boot_keeps_who_it_is() -> None:
    first, second = good.facts(gpu=False), good.facts(gpu=False)
    second["boot_id"], second["verdict"]["boot_identity"] = "boot-2", "boot-2/7"
    assert ids(guest.judge(second, good.wanted(gpu=False), first=first), FAILED) == set()
    second["identity"].update(
        machine_id="f" * 32,
        hostname="other",
        host_keys={"ssh_host_ed25519_key.pub": "SHA256:new"},
        client_ids=["ff02"],
    )
    second["disks"][0]["children"][0]["partuuid"] = "other"
    expected = {f"identity.kept.{key}" for key in (*guest.IDENTITY, "disk")}
    assert ids(guest.judge(second, good.wanted(gpu=False), first=first), FAILED) == expected
    assert "boot.new" in ids(guest.judge(first, good.wanted(gpu=False), first=first), FAILED)


def test_clones_have_nothing_in_common() -> None:
    one, other = good.facts(gpu=False), good.facts(gpu=False)
    assert ids(guest.unique(one, other), FAILED) == {
        f"clones.{key}" for key in (*guest.IDENTITY, "disk")
    }
    for row in other["disks"][0]["children"]:
        row["partuuid"] += "-2"
    other["identity"].update(
        machine_id="f" * 32,
        hostname="other",
        host_keys={"ssh_host_ed25519_key.pub": "SHA256:new"},
        client_ids=["ff02"],
    )
    assert ids(guest.unique(one, other), FAILED) == set()
    other["identity"]["host_keys"] = {}
    assert ids(guest.unique(one, other), FAILED) == {"clones.host_keys"}


def test_the_collector_answers_for_a_clone_all_that_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = good.facts(gpu=False), good.facts(gpu=False)
    monkeypatch.setattr(sys, "argv", ["-", json.dumps({"identity": True})])
    for name in ("identity", "disks"):
        monkeypatch.setattr(collector, name, lambda name=name: other[name])
    monkeypatch.setattr(collector, "run", lambda *words, **_: (0, "", ""))
    collector.main()
    answered = json.loads(capsys.readouterr().out)
    assert guest.unique(one, answered) == guest.unique(one, other)


@pytest.mark.parametrize(
    ("name", "actions", "outcome", "expected"),
    [
        ("unit.start x.service", [], None, PASSED),  # done at the first boot
        ("unit.start x.service", [("unit.start", "x.service", "boot")], None, FAILED),
        ("policy.set power", [("policy.set", "power", "device")], None, UNVERIFIABLE),
        ("kernel.running", [], "match", PASSED),
        ("kernel.running", [], "not_verified_here", UNVERIFIABLE),
        ("boot.entry", [], "match", PASSED),  # what the verdict calls boot.next
        ("something.else", [], None, UNVERIFIABLE),
    ],
)
def test_pending_work_is_done_or_recorded(
    name: str, actions: list[tuple[str, str, str]], outcome: str | None, expected: str
) -> None:
    facts = good.facts(gpu=False)
    reason = "device: later" if "device" in str(actions) else "boot: later"
    facts["plan"]["plan"]["actions"] = [
        {"kind": kind, "target": target, "phase": phase, "reason": ""}
        for kind, target, phase in actions
    ]
    if outcome is not None:
        findings(good.finding({"boot.entry": "boot.next"}.get(name, name), outcome))(facts)
    checks = guest.judge(facts, good.replaced(good.wanted(gpu=False), pending=((name, reason),)))
    found = next(check for check in checks if check.id == "pending." + name.replace(" ", "."))
    assert found.outcome == expected


# -- simulated GPUs


def with_gpus() -> tuple[Facts, dict[str, Any]]:
    document = simulated.document_of(good.document(gpu=True))
    facts = good.facts(gpu=True, mode="block")
    facts.update(
        {
            "class": document,
            "simulated": "SIMULATED",
            "gate": {"mode": "block", "open": True, "reasons": []},
        }
    )
    facts["verdict"].update(class_digest=document["digest"], simulated=True)
    for row in facts["verdict"]["findings"]:
        if row["id"].startswith(("gpu.", "policy.")) and "host" not in row["id"]:
            row.update(outcome="match", got="8" if row["id"] == "gpu.count" else "as declared")
    facts["settings"] = "".join(f"gpu{index}.power_limit=400000\n" for index in range(8))
    facts["calls"] = [
        f"gpu{index} nvmlDeviceSetPowerManagementLimit 400000 rc=0 pid=1" for index in range(8)
    ]
    return facts, document


HEALTHY: list[tuple[str, Spoil, set[str]]] = [
    ("all is well", lambda facts: None, set()),
    ("nobody says that it is simulated", set_("simulated", to=None), {"simulated.labelled"}),
    ("a GPU is missing", findings(good.finding("gpu.count", "mismatch", "7")), {"simulated.count"}),
    (
        "a policy is not set",
        findings(good.finding("policy.power_limit_watts", "mismatch", "300")),
        {"simulated.policy.power_limit_watts"},
    ),
    (
        "a policy was not judged",
        without("policy.persistence_mode"),
        {"simulated.policy.persistence_mode"},
    ),
    ("no setter was called", set_("calls", to=[]), {"simulated.setters"}),
    (
        "a setter was refused",
        lambda facts: facts["calls"].append("gpu0 nvmlDeviceSetEccMode 1 rc=4 pid=1"),
        {"simulated.setters"},
    ),
    (
        "the simulator has another limit",
        set_("settings", to="gpu0.power_limit=300000\n"),
        {"simulated.power"},
    ),
    (
        "the limit is the board's own, which nobody sets",
        set_("settings", to="gpu0.persistence_mode=1\n"),
        set(),
    ),
    ("the simulator has no state", set_("settings", to=None), {"simulated.power"}),
    ("the gate is closed", set_("gate", "open", to=False), {"simulated.gate"}),
]


@pytest.mark.parametrize(("what", "spoil", "expected"), HEALTHY, ids=[case[0] for case in HEALTHY])
def test_simulated_gpus_that_are_all_there(what: str, spoil: Spoil, expected: set[str]) -> None:
    facts, document = with_gpus()
    spoil(facts)
    assert ids(simulated.healthy(facts, document), FAILED) == expected


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ("".join(f"gpu{index}.power_limit=300000\n" for index in range(8)), None),
        (
            "".join(f"gpu{index}.power_limit=300000\n" for index in range(7)),
            "GPU 7: nothing was set",
        ),
        ("gpu0.persistence_mode=1\n", "GPU 0: nothing was set"),
        (None, "the simulator's state is not there"),
    ],
)
def test_a_limit_that_is_not_the_boards_own_was_set_on_every_gpu(
    settings: str | None, got: str | None
) -> None:
    facts, document = with_gpus()
    facts["settings"] = settings
    document["policy"] = {**document["policy"], "power_limit_watts": 300}
    check = next(
        check for check in simulated.healthy(facts, document) if check.id == "simulated.power"
    )
    assert check.outcome == (FAILED if got else PASSED)
    assert (got or "300 W") in check.got


def test_a_boot_with_simulated_gpus_is_judged_by_all_other_checks_too() -> None:
    facts, document = with_gpus()
    wanted = good.replaced(good.wanted(gpu=True), class_digest=document["digest"])
    assert ids(guest.judge(facts, wanted, simulated=True), FAILED) == set()
    findings(good.finding("policy.power_limit_watts", "mismatch", "300", "degraded"))(facts)
    assert ids(guest.judge(facts, wanted, simulated=True), FAILED) == {"check.findings"}, (
        "with the GPUs there, nothing excuses it"
    )


def test_a_missing_simulated_gpu_closes_the_gate_and_is_shown() -> None:
    facts, document = with_gpus()
    findings(good.finding("gpu.count", "mismatch", "7"))(facts)
    facts["verdict"]["exit_code"] = 2
    facts["gate"], facts["pass"] = (
        {"mode": "block", "open": False, "reasons": ["gpu.count: 7 (want 8)"]},
        False,
    )
    for name in gate_files.RUNTIMES:
        facts["units"][name]["ActiveState"] = "inactive"
        facts["status"][name] = (
            "   Condition: start condition failed\n  sh[1]: goldnode gate: gpu.count: 7 (want 8)"
        )
    assert ids(simulated.faulty(facts, document), FAILED) == set()
    for spoil, expected in (
        (set_("verdict", "exit_code", to=3), "simulated.fault.verdict"),
        (set_("pass", to=True), "simulated.fault.pass"),
        (set_("gate", "open", to=True), "simulated.fault.gate"),
        (
            set_("units", "docker.service", "ActiveState", to="active"),
            "simulated.fault.docker.service",
        ),
        (
            set_("status", "docker.service", to="Active: inactive"),
            "simulated.fault.docker.service.status",
        ),
    ):
        other = copy.deepcopy(facts)
        spoil(other)
        assert ids(simulated.faulty(other, document), FAILED) == {expected}


def test_the_document_for_simulated_gpus_reports_it() -> None:
    changed = simulated.document_of(good.document(gpu=True, simulated=False))
    assert (changed["simulated"], changed["gate"]) == (True, "block")
    assert (
        changed["digest"]
        == document_digest(changed)
        != good.document(gpu=True, simulated=False)["digest"]
    )


# -- the report


def built(directory: Path, content: bytes = b"disk") -> BuiltDisk:
    """A build whose raw disk is `content`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "plain-0123456789ab.raw").write_bytes(content)
    digest = sha256_of(directory / "plain-0123456789ab.raw")
    disk = BuiltDisk(
        directory, name="plain-0123456789ab", class_="plain", build_id="0123456789ab", simulated=False,
        class_digest="sha256:c", stack="s", stack_lock="sha256:l", disk_lock="sha256:d", os=DiskSystem("debian", "12", "b", "amd64"),
        kernel=good.KERNEL, driver=None, modules=(), loader="systemd-boot", layout="ab", epoch=good.EPOCH,
        partitions=good.wanted(gpu=False).partitions, raw=Raw(len(content), digest, len(content)),
        files=(DiskFile("plain-0123456789ab.raw", "raw", len(content), digest),), packages=(), pending=(), hygiene=(),
    )  # fmt: skip
    (directory / "disk.json").write_text(disk.text())
    return disk


def report(tmp_path: Path, **more: Any) -> verification.BootReport:
    disk = built(tmp_path)
    found = verification.BootReport(
        disk, Accelerator("tcg", "there is no /dev/kvm"), disk.raw.sha256, disk.raw.sha256
    )
    found.boots = [
        verification.Boot(number, "boot", 40.0, [GuestCheck("ssh", PASSED, "a", "a")])
        for number in (1, 2)
    ]
    for key, value in more.items():
        setattr(found, key, value)
    return found


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, PASSED),
        ({"raw_sha256_after": "other"}, FAILED),  # the image was touched
        ({"raw_sha256_after": ""}, FAILED),
        ({"boots": []}, FAILED),
        ({"error": "it never came up"}, FAILED),
        ({"clones": [GuestCheck("clones.machine_id", FAILED, "a", "b")]}, FAILED),
    ],
)
def test_a_report_passes_only_when_two_boots_did_and_the_file_is_untouched(
    tmp_path: Path, change: dict[str, Any], outcome: str
) -> None:
    found = report(tmp_path, **change)
    assert found.outcome == outcome
    assert found.table().splitlines()[0] == f"plain-0123456789ab: {outcome}"
    assert "without KVM: there is no /dev/kvm" in found.table()


def test_one_boot_is_no_verification_and_one_with_simulated_gpus_does_not_count(
    tmp_path: Path,
) -> None:
    found = report(tmp_path)
    found.boots[1].simulated = True
    assert found.outcome == FAILED
    assert found.to_json()["simulated_hardware"] is True
    assert "SIMULATED HARDWARE" in found.table()


def test_not_verifiable_is_counted_and_shown_and_is_no_pass(tmp_path: Path) -> None:
    found = report(tmp_path)
    found.boots[0].checks.append(
        GuestCheck("check.says.gpu.count", UNVERIFIABLE, "8", "not_verified_here: simulated")
    )
    data = found.to_json()
    assert data["counts"] == {"passed": 3, "failed": 0, "not-verifiable": 1}
    assert "check.says.gpu.count [1]: not_verified_here: simulated (want 8)" in found.table()
    path = verification.write(found)
    assert json.loads(path.read_text()) == data
    assert [row.name for row in tmp_path.iterdir() if "new" in row.name] == []


def test_a_damaged_image_is_refused_before_anything_starts(tmp_path: Path) -> None:
    disk = built(tmp_path)
    assert verification.check_files(disk) == disk.raw.sha256
    raw = disk.path("raw")
    raw.write_bytes(b"dusk")
    with pytest.raises(
        DiskError,
        match=r"is not what its manifest says: sha256 \w{64}.*Remove .* and run `goldnode disks build plain` again",
    ):
        verification.check_files(disk)
    raw.write_bytes(b"dis")
    with pytest.raises(DiskError, match="has 3 bytes, and its manifest says 4"):
        verification.check_files(disk)


def test_sweep_removes_only_directories_of_dead_runs(tmp_path: Path) -> None:
    for name in ("dead", "alive", "kept"):
        (tmp_path / f"{verification.PREFIX}{name}").mkdir()
    for name in ("dead", "alive"):
        (tmp_path / f"{verification.PREFIX}{name}" / verification.GUARD).touch()
    with (tmp_path / f"{verification.PREFIX}alive" / verification.GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        verification.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{verification.PREFIX}alive",
        f"{verification.PREFIX}kept",
    ]


def test_simulation_is_refused_for_a_class_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="class plain has no GPU to simulate"):
        simulated.check(built(tmp_path))


# As the disk of demo_disk_r535 told at its first boot, 2026-11-22.
NO_DEVICE = """modprobe: ERROR: could not insert 'nvidia': Invalid argument
modprobe: ERROR: could not insert 'nvidia_current_drm': No such device
Error running install command 'modprobe nvidia-modeset ; modprobe -i nvidia-current-drm ' for module nvidia_drm: retcode 1
Failed to insert module 'nvidia_drm': Invalid argument
systemd-modules-load.service: Failed with result 'exit-code'."""
LOADS, SETS, HOLDS = (
    "systemd-modules-load.service",
    "goldnode-policy.service",
    "nvidia-persistenced.service",
)
# … and at its third, with simulated GPUs.
NO_FILES = """Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist, and that user 102 has \
read and write permissions for those files.
nvidia-persistenced failed to initialize. Check syslog for more details."""


# … and at its fourth, with one of them taken away.
REFUSES = """goldnode-node: refused before anything was touched: The PCI bus shows 7 A100-SXM4-40GB; class demo_disk_r535 has 8. Look at lspci and the \
BMC for a GPU that fell off the bus, or correct `count` in the class.
goldnode-policy.service: Failed with result 'exit-code'."""


@pytest.mark.parametrize(
    ("reported", "why"),
    [(REFUSES, "it refuses to set the others"), ("Failed with result 'exit-code'.", None)],
)
def test_a_policy_refuses_where_a_gpu_was_taken_away(reported: str, why: str | None) -> None:
    assert (
        guest.wants_gpu(SETS, reported, good.facts(gpu=True)["class"], simulated=True, missing=True)
        == why
    )


@pytest.mark.parametrize(
    ("gpu", "simulated", "unit", "reported", "why"),
    [
        pytest.param(True, False, LOADS, NO_DEVICE, "the driver finds no device", id="no-device"),
        pytest.param(
            True,
            True,
            LOADS,
            NO_DEVICE,
            "the driver finds no device",
            id="a-played-library-is-no-device",
        ),
        pytest.param(False, False, LOADS, NO_DEVICE, None, id="a-class-without-gpus"),
        pytest.param(
            True,
            False,
            LOADS,
            NO_DEVICE + "\nFailed to insert module 'gdrdrv': No such device",
            None,
            id="another-module",
        ),
        pytest.param(
            True,
            False,
            LOADS,
            NO_DEVICE + "\nnvidia: version magic '6.1.0-1' should be",
            None,
            id="another-kernel",
        ),
        pytest.param(
            True,
            False,
            LOADS,
            "Failed to insert module 'nvidia_drm': Invalid argument",
            None,
            id="nobody-says-no-device",
        ),
        pytest.param(True, False, LOADS, "", None, id="nothing-said"),
        pytest.param(True, False, SETS, "", "there is no GPU to set", id="policy"),
        pytest.param(True, True, SETS, "", None, id="policy-with-simulated-gpus"),
        pytest.param(
            True, True, HOLDS, NO_FILES, "the driver's daemon finds no device", id="persistenced"
        ),
        pytest.param(
            True,
            True,
            HOLDS,
            "nvidia-persistenced failed to initialize.",
            None,
            id="persistenced-for-another-reason",
        ),
        pytest.param(
            False, False, HOLDS, NO_FILES, None, id="persistenced-of-a-class-without-gpus"
        ),
        pytest.param(True, False, "docker.service", NO_DEVICE, None, id="another-unit"),
    ],
)
def test_failed_unit_is_unverifiable_only_where_a_gpu_is_missing(
    gpu: bool, simulated: bool, unit: str, reported: str, why: str | None
) -> None:
    facts = good.facts(gpu=gpu)
    facts.update(state="degraded", failed=[unit], failures={unit: reported})
    assert guest.wants_gpu(unit, reported, facts["class"], simulated) == why
    checks = {
        check.id: check for check in guest.judge(facts, good.wanted(gpu=gpu), simulated=simulated)
    }
    if why is None:
        assert [checks[name].outcome for name in ("units.failed", "system.state")] == [
            FAILED,
            FAILED,
        ]
    else:
        assert [
            checks[name].outcome for name in ("units.failed", f"units.{unit}", "system.state")
        ] == [
            PASSED,
            UNVERIFIABLE,
            UNVERIFIABLE,
        ]


# As the disk of demo_disk_r550 told at its first boot, 2026-11-22.
PEERLESS = "[  753.149817] nvidia-peermem nv_mem_client_init:560 ERROR module compiled without IB peer memory symbols present"


@pytest.mark.parametrize(
    ("modules", "kernel", "outcome"),
    [
        pytest.param(
            [{"name": "peermem", "load": False}], "", UNVERIFIABLE, id="the-class-does-not-load-it"
        ),
        pytest.param([{"name": "peermem", "load": True}], "", FAILED, id="the-class-loads-it"),
        pytest.param([], PEERLESS, UNVERIFIABLE, id="it-came-with-the-driver"),
        pytest.param(
            [{"name": "peermem", "load": True}],
            PEERLESS,
            FAILED,
            id="the-class-loads-what-cannot-work",
        ),
        pytest.param([], "", FAILED, id="for-another-reason"),
    ],
)
def test_a_module_that_the_class_does_not_load_need_not_load(
    modules: list[dict[str, Any]], kernel: str, outcome: str
) -> None:
    facts = good.facts(gpu=True)
    facts["class"]["modules"] = modules
    facts["modules"]["peermem"] = {
        **copy.deepcopy(facts["modules"][good.MODULE]),
        "name": "peermem",
    }
    facts["modules"]["peermem"].update(
        rc=1, said="could not insert 'peermem': Invalid argument", kernel=kernel, loaded=False
    )
    checks = {check.id: check for check in guest.judge(facts, good.wanted(gpu=True))}
    assert checks["module.peermem.fits"].outcome == outcome


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an emulator and firmware, both stand-ins."""
    firmware = tmp_path / "OVMF_CODE.fd"
    firmware.write_bytes(b"firmware")
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\necho 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)'\n")
    program.chmod(0o755)
    machine = replace(
        qemu.VM_ARCHITECTURES["amd64"],
        program=str(program),
        firmware=((str(firmware), str(firmware)),),
    )
    monkeypatch.setitem(qemu.VM_ARCHITECTURES, "amd64", machine)
    monkeypatch.setattr(qemu, "check_tools", lambda _: None)
    monkeypatch.setattr(verification, "check_tools", lambda _: None)
    monkeypatch.setattr(verification, "accelerator", lambda _: Accelerator("tcg", "there is none"))
    monkeypatch.setattr(verification, "ROOM", 0)


def test_record_states_what_has_booted_the_image_and_when(
    emulated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification.BootRun, "all", lambda *_, **__: None)
    written = verification.verify(built(tmp_path / "disk")).to_json()
    assert written["tools"] == {
        "qemu": "7.2.22",
        "OVMF_CODE.fd": f"sha256:{sha256_of(tmp_path / 'OVMF_CODE.fd')}",
        "goldnode": release.version(),
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", written["time"])


@pytest.mark.parametrize(
    ("accelerator", "busy", "counted"),
    [("tcg", 0.4, False), ("tcg", 0.6, True), ("kvm", 2.0, False)],
)
def test_on_a_busy_machine_the_clock_of_emulated_guests_counts_at_once(
    accelerator: str,
    busy: float,
    counted: bool,
    emulated: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks: list[bool] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(verification.Others, "processors", lambda self: busy)
    monkeypatch.setattr(verification, "accelerator", lambda _: Accelerator(accelerator, ""))
    monkeypatch.setattr(
        verification.BootRun, "all", lambda run, **_: clocks.append(run.report.counted)
    )
    estimate = verification.Estimate({1: 60.0, 2: 60.0}, 2)
    report = verification.verify(built(tmp_path / "disk"), estimate=estimate)
    assert clocks == [counted]
    assert report.counted is counted
    assert (estimate.left() is None) is counted, "durations with another clock estimate nothing"


def test_processors_that_others_use_are_all_but_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stat, own = [100.0], ["cpu  100 0 50 900 5 0 0 0 7 7\ncpu0"], [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(os, "times", lambda: (own[0], 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(Path, "read_text", lambda self, *_: stat[0])
    others = verification.Others()
    now[0], stat[0], own[0] = 110.0, "cpu  1100 100 350 1200 5 0 0 0 7 7\ncpu0", 10.0
    assert others.processors() == pytest.approx((14.0 - 9.0) / 10)
    stat[0] = "gone"
    assert others.processors() == 0.0


LATE = GuestCheck("units.failed", FAILED, "none", "docker.service: timeout")
WELL = GuestCheck("ssh", PASSED, "answers", "after 80 s")


@pytest.mark.parametrize(
    ("accelerator", "tries", "outcome", "first_try"),
    [
        ("tcg", [WELL], PASSED, ""),
        ("tcg", [LATE, WELL], PASSED, "units.failed"),
        ("tcg", [LATE, LATE], FAILED, "units.failed"),
        ("tcg", [MachineError("no ssh after 600 s\nconsole"), WELL], PASSED, "no ssh after 600 s"),
        ("kvm", [LATE], FAILED, ""),  # its clock is that of its processor
    ],
)
def test_boots_that_fail_with_the_clock_of_this_machine_are_repeated_with_one_that_waits(
    accelerator: str,
    tries: list[Any],
    outcome: str,
    first_try: str,
    emulated: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, left = list[bool](), list(tries)

    def boots(run: verification.BootRun, **_: object) -> None:
        clocks.append(run.report.counted)
        answer = left.pop(0)
        if isinstance(answer, MachineError):
            raise answer
        run.report.boots += [verification.Boot(number, "boot", 80.0, [answer]) for number in (1, 2)]

    monkeypatch.setattr(verification, "accelerator", lambda _: Accelerator(accelerator, ""))
    monkeypatch.setattr(verification.Others, "processors", lambda self: 0.0)
    monkeypatch.setattr(verification.BootRun, "all", boots)
    estimate = verification.Estimate({1: 60.0, 2: 60.0}, 2)
    report = verification.verify(built(tmp_path / "disk"), estimate=estimate)
    assert (report.outcome, report.first_try, left) == (outcome, first_try, [])
    assert (estimate.left() is None) == bool(first_try)
    assert clocks == [False, True][: len(tries)]
    assert ("second try" in report.table()) == bool(first_try)
    assert report.to_json()["counted_clock"] == clocks[-1]


# -- the clone, and the estimate


class FakeMachine:
    """A guest that answers when it is allowed to, and ends when its power is cut."""

    def __init__(self, *, answers: bool = True) -> None:
        self.on, self.off, self.answers = threading.Event(), threading.Event(), answers
        self.left_alone, self.processors = False, 1

    def __enter__(self) -> FakeMachine:
        self.on.set()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        self.off.set()

    def wait_ssh(self, limit: float) -> str:
        if not self.answers:
            self.left_alone = not self.off.wait(20)
            raise MachineError("the guest ended")
        return "boot id"


class FakeRun(verification.BootRun):
    """A run whose machines are fakes. It records in which order its parts began."""

    def __init__(self, place: Path, clone: FakeMachine) -> None:
        super().__init__(built(place), report(place), place, 512, lambda text: None)
        self.report.boots = []
        self.clone_machine, self.order = clone, list[str]()

    def machine(self, name: str, number: int) -> Any:
        return self.clone_machine if number == 2 else FakeMachine()

    def boot(self, machine: Any, number: int, what: str, **more: Any) -> verification.Boot:
        if not self.clone_machine.answers or verification.room_for(2, 512, 1):
            assert self.clone_machine.on.wait(60), "the clone did not start beside the first boot"
        self.order.append(what)
        facts = good.facts(gpu=False)
        self.report.boots.append(verification.Boot(number, what, 1.0, [], facts=facts))
        return self.report.boots[-1]

    def ask(self, machine: Any, *, identity: bool = False, first: Any = None) -> Facts:
        self.order.append("clone")
        facts = copy.deepcopy(good.facts(gpu=False))
        facts["identity"]["machine_id"] = "f" * 32
        return facts


@pytest.mark.parametrize("beside", [True, False])
def test_a_clone_is_compared_whether_it_boots_beside_the_first_or_later(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "room_for", lambda *_: beside)
    run = FakeRun(tmp_path, FakeMachine())
    run.all(clones=True, gpus=False)
    assert sorted(run.order) == ["clone", "first boot", "reboot"]
    if not beside:
        assert run.order[-1] == "clone"
    assert ids(run.report.clones, PASSED) >= {"clones.machine_id", "clones.boot"}
    assert run.clone_machine.off.is_set()


def test_an_interrupted_run_ends_its_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "room_for", lambda *_: True)
    run = FakeRun(tmp_path, FakeMachine(answers=False))

    def interrupted(*_: Any, **__: Any) -> Any:
        assert run.clone_machine.on.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "boot", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.all(clones=True, gpus=False)
    assert not run.clone_machine.left_alone


def test_a_clone_that_does_not_come_up_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "room_for", lambda *_: True)
    machine = FakeMachine(answers=False)
    run = FakeRun(tmp_path, machine)
    machine.off.set()  # it ended by itself
    with pytest.raises(MachineError, match="the guest ended"):
        run.all(clones=True, gpus=False)
    assert run.report.clones == []


@pytest.mark.parametrize(
    ("processors", "each", "free_mib", "room"),
    [
        (2, 1, 8192, True),
        (1, 1, 8192, False),
        (2, 1, 4095, False),
        (2, 1, 4096, True),
        (3, 2, 8192, False),
        (4, 2, 8192, True),
    ],
)
def test_two_guests_run_at_once_only_with_processors_and_memory_for_each(
    processors: int, each: int, free_mib: int, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    monkeypatch.setattr(verification, "free_memory", lambda: free_mib * 1024 * 1024)
    assert verification.room_for(2, 2048, each) is room


@pytest.mark.parametrize(
    ("known", "began", "left"),
    [
        ({}, [(1, 0.0)], None),  # nothing has run here yet
        ({1: 100.0, 2: 60.0}, [(1, 10.0)], 150.0),
        ({1: 100.0, 2: 60.0}, [(1, 130.0)], 60.0),  # late: no negative rest
        ({}, [(1, 90.0), (2, 30.0)], 60.0),  # the second boot is taken to need as long as the first
        ({1: 100.0}, [(1, 0.0)], 200.0),
    ],
)
def test_the_time_left_follows_from_the_last_run_or_the_first_boot(
    known: dict[int, float],
    began: list[tuple[int, float]],
    left: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    estimate = verification.Estimate(dict(known), 2)
    for number, since in began:
        estimate.begin(number)
        now += since
    assert estimate.left() == left


def test_durations_come_from_the_newest_run_with_the_same_accelerator(tmp_path: Path) -> None:
    disks = [built(tmp_path / name) for name in ("newest", "broken", "kvm", "old", "tcg")]
    times = {"kvm": ("kvm", 9.0), "tcg": ("tcg", 80.0)}
    for disk in disks:
        name = disk.directory.name
        if name in times:
            chosen, seconds = times[name]
            boots = [{"number": 1, "wall_seconds": seconds}, {"number": 2, "wall_seconds": 5}]
            text = json.dumps({"accelerator": chosen, "counted_clock": False, "boots": boots})
            (disk.directory / "verified.json").write_text(text)
    (tmp_path / "broken" / "verified.json").write_text("{")
    # Written by a version that recorded no times, and by one whose emulated guests counted their instructions.
    old = {"accelerator": "tcg", "boots": [{"number": 1}]}
    (tmp_path / "old" / "verified.json").write_text(json.dumps(old))
    counted = {"accelerator": "tcg", "boots": [{"number": 1, "wall_seconds": 900}]}
    (tmp_path / "newest" / "verified.json").write_text(json.dumps(counted))
    assert verification.last_durations(disks, Accelerator("tcg", "")) == {1: 80.0, 2: 5.0}
    assert verification.last_durations(disks, Accelerator("kvm", "")) == {1: 9.0, 2: 5.0}
    assert verification.last_durations([], Accelerator("kvm", "")) == {}


class AnsweringMachine:
    """A guest whose collector answers with `facts`. It records what it was asked."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.asked = facts, dict[str, Any]()

    def ssh(self, words: list[str], **_: Any) -> Any:
        self.asked = json.loads(shlex.split(words[-1])[0])
        return GuestResult(0, json.dumps(self.facts), "")


@pytest.mark.parametrize("changed", [False, True])
def test_an_initramfs_is_listed_again_only_if_it_has_changed(changed: bool, tmp_path: Path) -> None:
    run = FakeRun(tmp_path, FakeMachine())
    path = f"/boot/initrd.img-{good.KERNEL}"
    first = {"sum": {path: "a" * 64}, "initramfs": {"paths": ["of the first boot"]}}
    again = {"paths": ["of the second boot"]} if changed else None
    machine: Any = AnsweringMachine({"initramfs": again})
    facts = verification.BootRun.ask(run, machine, first=first)
    assert machine.asked["listed"] == "a" * 64
    assert facts["initramfs"] == (again or first["initramfs"])


# As of networkctl 262 on the disk of cpu_only_debian14, 2026-12-01, cut.
LEASED = {
    "Interfaces": [
        {"Index": 1, "Name": "lo"},
        {"Name": "enp0s3", "DHCPv4Client": {"Lease": {}, "ClientIdentifier": [255, 226, 0, 2]}},
        {"Name": "enp0s4", "DHCPv4Client": {"ClientIdentifier": [255, 1]}},
    ]
}


@pytest.mark.parametrize(
    ("files", "answer", "ids"),
    [
        ({"2": "ADDRESS=10.0.2.15\nCLIENTID=ffe2\n"}, "{", ["ffe2"]),
        ({}, json.dumps(LEASED), ["ffe20002"]),
        ({}, "", []),
        ({}, json.dumps({"Interfaces": [{"DHCPv4Client": {"Lease": {}}}]}), []),
    ],
)
def test_the_collector_reads_client_identifiers_of_each_systemd(
    files: dict[str, str],
    answer: str,
    ids: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(collector, "Path", lambda _: tmp_path)
    monkeypatch.setattr(collector, "text", lambda path: path.read_text())
    monkeypatch.setattr(collector, "run", lambda *words: (0, answer, ""))
    assert collector.client_ids() == ids


def test_the_collector_waits_for_what_makes_an_identity_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = [
        (1, "Failed to connect to bus"),
        (0, "12 goldnode-ssh-keys.service start running\n13 docker.service start waiting\n"),
        (0, "13 docker.service start waiting\n"),
    ]
    monkeypatch.setattr(collector, "run", lambda *words, **_: (*lists.pop(0), ""))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    collector.wait_for_identity()
    assert lists == []


@pytest.mark.parametrize(
    ("listed", "paths"), [("same", None), ("other", ["etc/a"]), (None, ["etc/a"])]
)
def test_the_collector_leaves_out_the_list_of_a_known_initramfs(
    listed: str | None, paths: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "run", lambda *words, **_: (0, "etc/a\n", ""))
    found = collector.initramfs("/boot/initrd.img-1", {"/boot/initrd.img-1": "same"}, listed)
    assert (found and found["names"]) == paths


def test_ports_of_the_definition_may_be_reached() -> None:
    facts, wanted = good.facts(gpu=False), good.wanted(gpu=False)
    facts["listeners"].append(good.socket("tcp", good.ANY, "9100", "prometheus-node"))
    assert "listeners" in ids(guest.judge(facts, wanted), FAILED)
    assert "listeners" in ids(
        guest.judge(facts, dataclasses.replace(wanted, listen=("9100/tcp",))), PASSED
    )


SOCKETS = """\
udp   UNCONN 0      0         127.0.0.53%lo:53         0.0.0.0:*    users:(("systemd-resolve",pid=292,fd=13))
udp   UNCONN 0      0      10.0.2.15%enp0s2:68         0.0.0.0:*    users:(("systemd-network",pid=244,fd=18))
udp   UNCONN 0      0               0.0.0.0:5355       0.0.0.0:*    users:(("systemd-resolve",pid=292,fd=11))
tcp   LISTEN 0      128             0.0.0.0:22         0.0.0.0:*    users:(("sshd",pid=402,fd=3),("systemd",pid=1,fd=62))
tcp   LISTEN 0      128                [::]:22            [::]:*
"""


def test_the_collector_reads_the_sockets_that_ss_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "run", lambda *words, **_: (0, SOCKETS, ""))
    assert collector.listeners() == [
        good.socket("udp", "127.0.0.53%lo", "53", "systemd-resolve"),
        good.socket("udp", "10.0.2.15%enp0s2", "68", "systemd-network"),
        good.socket("udp", good.ANY, "5355", "systemd-resolve"),
        good.socket("tcp", good.ANY, "22", "sshd systemd"),
        good.socket("tcp", "::", "22", ""),
    ]
    monkeypatch.setattr(collector, "run", lambda *words, **_: (127, "", "no ss"))
    assert collector.listeners() is None


def scratch_facts(text: str = "not mounted: exactly one disk must match") -> dict[str, Any]:
    """Facts of a guest of a class with scratch space: its disks are not in the machine."""
    facts = good.facts(gpu=False)
    facts["class"]["scratch"] = {"/scratch": {"device": "/dev/nvme0n1", "options": []}}
    digest = document_digest(facts["class"])
    facts["class"]["digest"] = facts["verdict"]["class_digest"] = digest
    unit = "goldnode-scratch.service"
    facts.update(state="degraded", failed=[unit], failures={unit: "/scratch is not a mountpoint"})
    findings(good.finding("scratch.mount", "mismatch", text))(facts)
    facts["plan"]["plan"]["refusals"] = [
        {"code": "scratch", "message": "Scratch space /scratch: …"}
    ]
    return facts


def test_missing_disks_of_scratch_space_are_no_fault_of_the_image() -> None:
    facts = scratch_facts()
    wanted = good.replaced(good.wanted(gpu=False), class_digest=facts["class"]["digest"])
    checks = guest.judge(facts, wanted)
    # The gate of these facts is that of a healthy node.
    assert ids(checks, FAILED) == {"gate.state"}
    assert ids(checks, UNVERIFIABLE) >= {
        "units.goldnode-scratch.service",
        "system.state",
        "check.unseen.scratch.mount",
    }
    del facts["class"]["scratch"]
    assert ids(guest.judge(facts, wanted), FAILED) >= {"units.failed", "check.findings", "plan"}
