"""Counters as what they did since: over checks, boots, wraps and resets, and a state file that is not what it was."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.captures import class_document, gpu, healthy, spoiled

from goldnode.node.ground.host import Host
from goldnode.node.probe import CAPTURE
from goldnode.node.program.main import main
from goldnode.node.state.finding import MATCH, MISMATCH, Finding
from goldnode.node.verdict import ack, check, deltas, table

G3 = "0000:5d:00.0"
PORT3 = "0000:5c:01.0"
UUID3 = gpu(3)["uuid"]


class Life:
    """A node's checks one after the other, with what is kept between them."""

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}
        self.uptime, self.boot = 3600.0, 1
        self.deltas = deltas.Deltas()

    def reboot(self) -> Life:
        self.boot, self.uptime = self.boot + 1, 60.0
        return self

    def check(self, *changes: Any, after: float = 300.0) -> dict[tuple[str, str | None], Finding]:
        """One check `after` seconds; returns what is not a match."""
        self.uptime += after
        capture = spoiled(
            healthy(), "uptime", self.uptime, "time_sync.clock", 1.8e9 + self.uptime, *changes
        )
        capture["identity"].update(boot_id=f"b{self.boot}", boot_identity=f"b{self.boot}/10")
        self.memory = json.loads(json.dumps(self.memory))  # as it is kept
        self.capture = capture
        self.deltas, memory = deltas.step(self.memory, capture)
        found = table.judge(class_document(), capture, self.deltas) + self.deltas.findings
        found += deltas.persistent(memory, found, str(capture["time"]), memory["boot"])
        self.memory = memory
        found = check.one_each(found)
        self.code = check.exit_code(found)
        return {(f.id, f.subject): f for f in found if f.outcome != MATCH}


AER = f"pci/{PORT3}/aer"


def aer(correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> dict[str, Any]:
    return {"correctable": correctable, "nonfatal": nonfatal, "fatal": fatal, "counters": {}}


# What counts on, before and after, and the finding that follows; the same value twice is no finding.
COUNTING: list[tuple[str, str, Any, Any, str | None]] = [
    ("pcie.replay", "gpus.3.pcie.replay", 100, 100_000, G3),
    ("gpu.throttle", "gpus.3.throttle.violation_ns.hw_slowdown", 10**12, 10**12 + 60 * 10**9, G3),
    ("gpu.throttle", "gpus.3.throttle.violation_ns.sw_thermal", 0, 60 * 10**9, G3),
    ("gpu.throttle.brake", "gpus.3.throttle.violation_ns.hw_power_brake", 0, 60 * 10**9, G3),
    ("nvlink.errors", "gpus.3.nvlink.links.4.errors.recovery", 10, 900, G3),
    ("pcie.aer", AER, aer(10), aer(10_000), PORT3),
    ("pcie.aer", AER, aer(0, 3), aer(0, 4), PORT3),
    ("memory.edac", "memory.edac.mc0.ce", 5, 5000, "mc0"),
    ("net.drops", "network.eth0.counters.rx_dropped", 10**6, 10**6 + 60_000, "eth0"),
    ("net.drops", "network.eth0.counters.rx_crc_errors", 0, 60_000, "eth0"),
    ("net.flaps", "network.eth0.carrier_changes", 40, 48, "eth0"),
    ("net.flaps", "infiniband.mlx5_0.ports.1.counters.link_downed", 7, 8, "mlx5_0/1"),
    ("net.flaps", "infiniband.mlx5_0.ports.1.counters.symbol_error", 7, 8000, "mlx5_0/1"),
    ("host.pressure", "pressure.io.full_us", 10**9, 10**9 + 200 * 10**6, "io"),
    ("gpu.ecc.aggregate", "gpus.3.ecc.aggregate.uncorrected", 4, 5, G3),
    ("storage.health", "storage.devices.nvme0n1.smart.media_errors", 2, 3, "nvme0n1"),
]


@pytest.mark.parametrize(("name", "place", "before", "after", "subject"), COUNTING)
def test_increased_counter_is_reported_and_a_constant_one_is_not(
    name: str, place: str, before: Any, after: Any, subject: str | None
) -> None:
    life = Life()
    assert not life.check(place, before), "the first sight is the base"
    assert not life.check(place, before)
    assert set(life.check(place, after)) == {(name, subject)}
    assert life.code in (1, 2)


def test_rates_since_boot_are_judged_at_the_first_check() -> None:
    life = Life()
    assert ("pcie.aer", PORT3) in life.check(AER, aer(100_000))
    assert not life.check(AER, aer(100_000)), "the storm is over"


CE, GPU_CE = "memory.edac.mc0.ce", "gpus.3.ecc.aggregate.corrected"


def test_a_few_corrected_memory_errors_leave_a_node_healthy() -> None:
    life = Life()
    for hour in range(60):
        assert not life.check(CE, 4 * hour, GPU_CE, 3000 * hour, after=3600), hour


@pytest.mark.parametrize(
    ("name", "place", "an_hour", "subject"),
    [("memory.edac", CE, 5, "mc0"), ("gpu.ecc.corrected", GPU_CE, 4000, G3)],
)
def test_corrected_memory_errors_above_the_limit_of_a_day_are_maintenance(
    name: str, place: str, an_hour: int, subject: str
) -> None:
    life = Life()
    hours = 0
    found: dict[tuple[str, str | None], Finding] = {}
    while not found and hours < 30:
        hours += 1
        found = life.check(place, an_hour * hours, after=3600)
    assert list(found) == [(name, subject)]
    assert 21 <= hours <= 24, "not before the limit of a day is reached"
    assert (found[name, subject].severity, life.code) == ("degraded", 1)
    assert "corrected within a day" in str(found[name, subject].got)
    ack.settle(life.memory, life.capture, name)
    assert not life.check(place, an_hour * (hours + 1), after=3600), "acknowledged"
    assert not life.check(place, an_hour * (hours + 9), after=90000), "a slower day"


def test_corrected_errors_from_before_the_first_check_count_for_one_day() -> None:
    life = Life()
    life.uptime = 3 * 86400.0
    assert not life.check(CE, 250, after=1)
    life = Life()
    life.uptime = 3 * 86400.0
    assert ("memory.edac", "mc0") in life.check(CE, 350, after=1)
    assert not life.reboot().check(CE, 3, after=60), "the count began again"


def test_amd_gpu_is_judged_by_the_count_since_its_driver_was_loaded() -> None:
    life = Life()
    change = ("gpus.3.ecc.aggregate", None, "gpus.3.ecc.volatile.corrected")
    assert not life.check(*change, 5)
    assert ("gpu.ecc.corrected", G3) in life.check(*change, 90_000)


def test_a_few_errors_while_links_are_trained_at_boot_are_no_alarm() -> None:
    life = Life().reboot()
    assert not life.check(
        AER, aer(50, 2), "gpus.3.nvlink.links.0.errors.recovery", 8, "gpus.3.pcie.replay", 90
    )


def test_errors_of_the_card_outlive_the_reboot_until_a_person_settles_them() -> None:
    life = Life()
    assert not life.check("gpus.3.ecc.aggregate.uncorrected", 1), "H2: the past of the card"
    found = life.check("gpus.3.ecc.aggregate.uncorrected", 2, "gpus.3.ecc.volatile.uncorrected", 1)
    assert found["gpu.ecc.uncorrected", G3].severity == "drain"
    assert life.code == 2
    life.reboot()
    for _ in range(2):
        found = life.check("gpus.3.ecc.aggregate.uncorrected", 2)
        assert set(found) == {("gpu.ecc.uncorrected", G3), ("gpu.ecc.aggregate", G3)}
        assert "not seen since" in str(found["gpu.ecc.uncorrected", G3].got)
        assert life.code == 1
    done = ack.settle(life.memory, life.capture, "gpu.ecc.*", G3)
    assert sorted(done) == [f"gpu.ecc.aggregate {G3}", f"gpu.ecc.uncorrected {G3}"]
    assert not life.check("gpus.3.ecc.aggregate.uncorrected", 2)
    assert ("gpu.ecc.aggregate", G3) in life.check("gpus.3.ecc.aggregate.uncorrected", 3), (
        "a new one"
    )


def test_an_error_that_was_there_at_the_first_check_outlives_the_reboot_as_well() -> None:
    life = Life()
    life.check("gpus.3.ecc.aggregate.uncorrected", 5, "gpus.3.ecc.volatile.uncorrected", 2)
    found = life.reboot().check("gpus.3.ecc.aggregate.uncorrected", 5)
    assert "2 uncorrected" in str(found["gpu.ecc.aggregate", G3].got)


def test_ack_of_one_gpu_leaves_the_other() -> None:
    life = Life()
    life.check()
    changes = ("gpus.3.ecc.aggregate.uncorrected", 1, "gpus.5.ecc.aggregate.uncorrected", 1)
    assert len(life.check(*changes)) == 2
    ack.settle(life.memory, life.capture, "gpu.ecc.aggregate", G3)
    assert set(life.check(*changes)) == {("gpu.ecc.aggregate", "0000:ab:00.0")}


def test_a_fatal_bus_error_survives_reboots() -> None:
    life = Life()
    assert ("pcie.aer", PORT3) in life.check(AER, aer(0, 0, 1))
    assert ("pcie.aer", PORT3) in life.check(AER, aer(0, 0, 1))
    assert ("pcie.aer", PORT3) in life.reboot().check()
    ack.settle(life.memory, life.capture)
    assert not life.check()


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ((1 << 32) - 1000, 9000, 10_000),  # 32 bits were full
        (50_000, 10_000, 10_000),  # the driver was loaded anew
        (10_000, 20_000, 10_000),
    ],
)
def test_counters_that_began_again(before: int, after: int, value: int) -> None:
    life = Life()
    life.check("gpus.3.pcie.replay", before)
    life.check("gpus.3.pcie.replay", after)
    found = life.deltas.of("gpu", UUID3, "pcie.replay")
    assert found is not None
    assert (found.value, found.seconds, found.since_ack) == (value, 300.0, value)


def test_counters_belong_to_the_card_and_not_to_its_slot() -> None:
    life = Life()
    life.check("gpus.3.ecc.aggregate.uncorrected", 0)
    swapped = (
        "gpus.3.uuid",
        "GPU-ffffffff-0000-0000-0000-000000000000",
        "gpus.3.ecc.aggregate.uncorrected",
        9,
    )
    found = life.reboot().check(*swapped)
    assert ("gpu.ecc.aggregate", G3) not in found, "the past of another card"
    assert found["changed.gpu", G3].outcome == MISMATCH
    assert ("changed.gpu", G3) in life.check(*swapped), "told until somebody says that it is right"
    ack.settle(life.memory, life.capture, "changed.gpu")
    assert not life.check(*swapped)


@pytest.mark.parametrize(
    ("change", "name", "code"),
    [
        (("gpus.3.vbios", "99"), "changed.gpu", 1),
        (("memory.total_mib", 1_900_000), "changed.memory", 2),
        (("identity.product.bios_version", "1.3"), "changed.bios", 1),
        (("storage.mounts", {"/": {"type": "ext4", "readonly": True}}), "changed.mount", 2),
        (("memory.total_mib", 2_060_000), None, 0),
        (("gpus.3.serial", "another"), None, 0),
    ],
)
def test_change_over_a_boot_is_reported_by_two_checks_in_a_row(
    change: tuple[Any, ...], name: str | None, code: int
) -> None:
    life = Life()
    life.check()
    found = {key for key, _ in life.reboot().check(*change)}
    assert (name in found) if name else not found
    assert life.code == code
    assert {key for key, _ in life.check(*change)} == found, "twice in a row"


def test_a_gpu_that_does_not_answer_once_keeps_its_base() -> None:
    life = Life()
    life.check("gpus.3.ecc.aggregate.uncorrected", 1)
    life.check("gpus.3", {"address": G3, "index": 3, "lost": True})
    assert ("gpu.ecc.aggregate", G3) in life.check("gpus.3.ecc.aggregate.uncorrected", 2)


def test_clocks_that_jump_are_reported_and_spoil_no_rate() -> None:
    life = Life()
    life.check("gpus.3.pcie.replay", 0)
    found = life.check("time_sync.clock", 9e9, "gpus.3.pcie.replay", 10)
    assert set(found) == {("time.sync", None)}
    assert set(life.check("time_sync.clock", 9e9 + 300)) == {("time.sync", None)}, "and once more"
    assert ack.settle(life.memory, life.capture, "time.sync") == ["time.sync"]
    assert not life.check("time_sync.clock", 9e9 + 600)
    delta = life.deltas.of("gpu", UUID3, "pcie.replay")
    assert delta is not None
    assert delta.seconds == 300.0


def test_a_task_that_hangs_in_the_driver_at_two_checks_in_a_row() -> None:
    life, row = Life(), {"pid": 77, "command": "python3", "wait": "nvidia_ioctl"}
    assert not life.check("blocked", [row])
    assert set(life.check("blocked", [row])) == {("host.blocked", None)}
    assert not life.check("blocked", [{**row, "pid": 78}])


def test_memory_of_checks_does_not_grow() -> None:
    life = Life()
    life.check()
    size = len(json.dumps(life.memory))
    for _ in range(5):
        life.check()
    assert abs(len(json.dumps(life.memory)) - size) < 500
    assert size < 60_000


def test_finding_of_a_full_check_holds_through_passive_checks() -> None:
    corrupt = spoiled(healthy(), "gpus.3.inforom.valid", False)
    blind = spoiled(healthy(), "gpus.*.inforom", {"image": "G520"})

    def checked(
        memory: dict[str, Any], capture: dict[str, Any], passive: bool
    ) -> tuple[list[Finding], dict[str, Any]]:
        counted, new = deltas.step(memory, capture)
        found = table.judge(class_document(), capture, counted)
        found += deltas.carried(new, memory, found, passive)
        return [f for f in found if f.outcome != MATCH], json.loads(json.dumps(new))

    first, memory = checked({}, corrupt, False)
    for _ in range(2):
        found, memory = checked(memory, blind, True)
        assert [(f.id, f.subject, f.outcome, f.got) for f in found] == [
            ("gpu.inforom", G3, MISMATCH, first[0].got)
        ]
        assert "by a full check" in found[0].evidence[0]
    found, memory = checked(memory, healthy(), False)
    assert not found
    assert not checked(memory, blind, True)[0]
    _, memory = checked({}, corrupt, False)
    rebooted = spoiled(blind, "identity.boot_identity", "another/10")
    assert not checked(memory, rebooted, True)[0], "the boot is checked in full"


# -- the file


def stored(tmp_path: Path, content: bytes | None) -> Host:
    host = Host(str(tmp_path), live=True)
    if content is not None:
        host.write(deltas.MEMORY, content)
    return host


GOOD = deltas.step({}, healthy())[1]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "torn"),
        (b'{"schema": "goldnode.memory/1", "coun', "torn"),
        (b"\xff\xfe", "torn"),
        (b"[" * 100_000, "torn"),
        (b"[]", "schema"),
        (b'{"schema": "goldnode.memory/9", "counters": {}}', "schema"),
        (b'{"schema": "goldnode.memory/1", "counters": []}', "schema"),
        (b" " * (deltas.LARGEST + 1), "bytes"),
        (json.dumps({**GOOD, "machine_id": "f" * 32}).encode(), "another machine"),
        (json.dumps({**GOOD, "uptime": 9e9}).encode(), "future"),
    ],
)
def test_a_state_file_that_cannot_be_used_is_moved_away_and_reported(
    tmp_path: Path, content: bytes, why: str
) -> None:
    host = stored(tmp_path, content)
    memory, fault = deltas.load(host, healthy())
    assert memory == {}
    assert why in str(fault)
    assert [f.outcome for f in deltas.unusable_memory(host, fault)] == [MISMATCH]
    deltas.save(host, GOOD, fault)
    assert host.data(deltas.DAMAGED) == content
    assert deltas.load(host, healthy()) == (GOOD, None)
    assert [f.id for f in deltas.unusable_memory(host, None)] == ["memory.state"], (
        "until somebody has looked"
    )


def test_no_state_file_is_a_first_sight(tmp_path: Path) -> None:
    assert deltas.load(stored(tmp_path, None), healthy()) == ({}, None)
    assert deltas.unusable_memory(stored(tmp_path, None), None) == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "x",
        [],
        {},
        {"last": "x"},
        {"last": 1},
        float("nan"),
        {"last": 1, "base": 1, "time": ["\x1b"]},
    ],
)
@pytest.mark.parametrize(
    "key",
    [
        "counters",
        "known",
        "standing",
        "events",
        "acks",
        "blocked",
        "uptime",
        "boot",
        "clock",
        "time",
        "pending",
    ],
)
def test_hostile_state_never_ends_the_check(key: str, value: Any) -> None:
    memory = {**GOOD, key: value}
    if key in ("counters", "known", "standing") and isinstance(value, dict):
        memory[key] = dict.fromkeys([*GOOD["counters"], "gpu/x/y", "", "a|b"], value)
    capture = healthy()
    counted, new = deltas.step(memory, capture)
    found = table.judge(class_document(), capture, counted) + counted.findings
    found += deltas.persistent(new, found, "now", "b")
    json.dumps(new)
    assert check.exit_code(found) in (0, 1)


class Terminal(io.StringIO):
    """A terminal with a person at it."""

    def isatty(self) -> bool:
        return True


def test_ack_asks_for_name_and_reason_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = stored(tmp_path, json.dumps(GOOD).encode())
    host.write(CAPTURE, json.dumps(healthy()).encode())
    questions = Terminal()
    monkeypatch.setattr("sys.stderr", questions)
    monkeypatch.setattr("sys.stdin", Terminal("ann\nreplaced\n"))
    assert main(["ack", "--root", str(tmp_path), "--id", "gpu.ecc.*"]) == 0
    assert "Your name: Reason (the repair, or why it is no fault): " in questions.getvalue()
    (row,) = json.loads(host.text(deltas.MEMORY) or "")["acks"]
    assert (row["by"], row["reason"]) == ("ann", "replaced")
    monkeypatch.setattr("sys.stdin", Terminal("\n\n"))
    assert main(["ack", "--root", str(tmp_path)]) == 3


def test_ack_is_recorded_with_who_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = stored(
        tmp_path,
        json.dumps(
            {**GOOD, "standing": {f"gpu.ecc.uncorrected|{G3}": {"got": "1", "time": "t"}}}
        ).encode(),
    )
    root = ["ack", "--root", str(tmp_path)]
    assert main([*root, "--by", "ann", "--reason", "replaced"]) == 3, "nothing was seen since boot"
    host.write(CAPTURE, json.dumps(healthy()).encode())
    assert main([*root, "--by", " ", "--reason", "replaced"]) == 3
    assert main([*root, "--by", "ann", "--reason", "replaced\x1b[2J", "--id", "gpu.ecc.*"]) == 0
    assert f"gpu.ecc.uncorrected {G3}" in capsys.readouterr().out
    memory = json.loads(host.text(deltas.MEMORY) or "")
    assert memory["standing"] == {}
    assert (memory["acks"][0]["by"], memory["acks"][0]["reason"]) == ("ann", "replaced [2J")
    host.write(deltas.DAMAGED, b"x")
    assert (
        main([*root, "--by", "ann", "--reason", "the disk was full", "--id", "memory.state"]) == 0
    )
    assert not host.path(deltas.DAMAGED).exists()
    host.write(deltas.MEMORY, b"torn")
    assert main([*root, "--by", "ann", "--reason", "x", "--id", "gpu.ecc.*"]) == 3
