"""The kernel's log: real lines of real machines, the forms a line may have, the sources, and what hostile text does not do."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.case_tables import table

from goldnode.node import probe
from goldnode.node.ground.host import Host
from goldnode.node.probe import events, logs

REAL = table("logs/real.yml")
BOOT = "7c0ffee0-0000-4000-8000-000000000001"
XID = "NVRM: Xid (PCI:0000:18:00): 79, pid=12, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize("case", REAL, ids=[case["source"] for case in REAL])
def test_lines_of_real_machines(case: dict[str, Any]) -> None:
    found = logs.parse(case["lines"])
    assert [row["kind"] for row in found] == [wanted["kind"] for wanted in case["events"]], found
    for row, wanted in zip(found, case["events"], strict=True):
        assert (row["code"], row["address"], row["count"]) == (
            wanted.get("code"),
            wanted["address"],
            wanted.get("count", 1),
        )
        for name in ("fatal", "uptime_s", "time"):
            if name in wanted:
                assert row.get(name) == wanted[name]
        for name, value in wanted.get("parameters", {}).items():
            assert row["parameters"][name] == value
        if wanted.get("parameters") == {}:
            assert row["parameters"] == {}
    # Nothing is lost by what is searched for first.
    data = "\n".join(case["lines"]).encode()
    assert logs.parse(logs.candidates(data)) == found


# What stands before the kernel's words, and whether they are believed.
FORMS = [
    ("{}", True),
    ("kernel: {}", True),
    ("[   12.345678] {}", True),
    ("[   12.345678][  T217] {}", True),
    ("[   12.345678] [    C3] {}", True),
    ("[Sun Feb 23 16:24:18 2025] {}", True),
    ("<3>[   12.345678] {}", True),
    ("<14>[   12.345678] {}", False),
    ("kern  :err   : [   12.345678] {}", True),
    ("user  :err   : [   12.345678] {}", False),
    ("2026-11-22T10:00:00.123456+00:00 node7 kernel: {}", True),
    ("2026-11-22T10:00:00.123456+00:00 node7 kernel: [   12.345678] {}", True),
    ("Nov 22 10:00:00 node7 kernel: {}", True),
    ("22. Nov. 10:00:00 node7 kernel: {}", True),
    ("11月 22 10:00:00 node7 kernel: {}", True),
    ("нояб. 22 10:00:00 node7 kernel: {}", True),
    ("[   12.345678] node7 kernel: {}", True),
    ("node7: kern: err: [2026-11-22T10:00:00Z]: {}", True),
    ("node7: user: err: [2026-11-22T10:00:00Z]: {}", False),
    ("3,7,12345678,-;{}", True),
    ("11,7,12345678,-;{}", False),  # facility 1: user space wrote it to /dev/kmsg
    ("30,7,12345678,-;{}", False),
    ("Nov 22 10:00:00 node7 python[99]: {}", False),
    ("Nov 22 10:00:00 node7 python[99]: the kernel: {}", False),
    ("Nov 22 10:00:00 node7 logger: {}", False),
    ("3,7,12345678,-;myprogram[1]: {}", False),
    ("3,7,12345678,-;somebody said {}", False),
]


@pytest.mark.parametrize(("form", "believed"), FORMS)
@pytest.mark.parametrize(
    "text",
    [
        XID,
        "I/O error, dev nvme0n1, sector 8 op 0x0:(READ)",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, x",
        "eth0: NIC Link is Down",
        "mce: [Hardware Error]: Machine check",
    ],
)
def test_log_line_counts_only_in_a_form_that_is_believed(
    form: str, believed: bool, text: str
) -> None:
    assert bool(logs.parse([form.format(text)])) is believed


def journal_entry(**patch: Any) -> str:
    return json.dumps(
        {
            "MESSAGE": XID,
            "SYSLOG_FACILITY": "0",
            "_TRANSPORT": "kernel",
            "_SOURCE_MONOTONIC_TIMESTAMP": "12345678",
            **patch,
        }
    )


def test_entries_of_the_journal() -> None:
    (row,) = logs.parse([journal_entry(), journal_entry(MESSAGE=list(XID.encode()))], BOOT)
    assert (row["code"], row["uptime_s"], row["boot_id"], row["count"]) == (79, 12.345678, BOOT, 2)
    for wrong in (
        {"SYSLOG_FACILITY": "3"},
        {"_TRANSPORT": "syslog"},
        {"MESSAGE": None},
        {"MESSAGE": [900]},
        {"MESSAGE": {"a": 1}},
    ):
        assert logs.parse([journal_entry(**wrong)]) == []
    assert logs.parse(["{", '{"MESSAGE": ', "[" * 100000, '{"MESSAGE":"' + XID]) == []


def test_the_mig_instance_is_reported() -> None:
    lines = [
        "4,1,1,-;NVRM: Xid (PCI:0000:18:00 GPU-I:05): 95, pid=1, name=a, Uncontained",
        "4,2,2,-;NVRM: Xid (PCI:0000:18:00 GPU-I:05 GPU-CI:00): 13, pid=1, name=a, Graphics Exception",
    ]
    assert [(row["code"], row["address"], row["mig"]) for row in logs.parse(lines)] == [
        (95, "0000:18:00.0", "GPU-I:05"),
        (13, "0000:18:00.0", "GPU-I:05/GPU-CI:00"),
    ]


def test_one_record_of_several_lines() -> None:
    """The driver prints them in one call; /dev/kmsg escapes the line ends."""
    text = r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0aNVRM: fallen off the bus and is not responding"
    (row,) = logs.parse(
        [f"3,9,100,-;{text} to commands.\\x0a\n SUBSYSTEM=pci\n DEVICE=+pci:0000:b3:00.0"]
    )
    assert (row["kind"], row["address"], row["seq"]) == ("bus_lost", "0000:b3:00.0", 9)


def test_an_address_of_long_ago_is_not_this_ones() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        *["NVRM: something else"] * 9,
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    (row,) = logs.parse(lines)
    assert row["address"] is None


def test_repeats_are_one_row_with_its_count() -> None:
    found = logs.parse([f"3,{seq},{seq}000000,-;{XID}" for seq in range(5, 5005)])
    assert [
        (row["count"], row["seq"], row["last_seq"], row["uptime_s"], row["last_uptime_s"])
        for row in found
    ] == [(5000, 5, 5004, 5.0, 5004.0)]


def test_lines_that_go_with_another_are_not_counted() -> None:
    words = (
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=x, (y)",
    )
    (row,) = logs.parse([f"3,{n},1,-;{text}" for n in range(40) for text in words])
    assert (row["count"], row["address"]) == (40, "0000:01:00.0")
    (row,) = logs.parse([words[0]] * 3)
    assert row["count"] == 1, "the port's line alone tells that there was one at least"


def test_another_form_of_xid_is_reported_and_not_lost() -> None:
    (row,) = logs.parse(["NVRM: Xid (GPU-UUID 12): seventy-nine"])
    assert (row["kind"], row["code"]) == ("xid", None)


@pytest.mark.parametrize(
    "text",
    [
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "EDAC MC: Ver: 3.0.0",
        "EDAC MC0: Giving out device to module skx_edac",
        "acpi PNP0A08:00: _OSC: platform does not support [AER]",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024",
        "NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375",
        "i2c_designware: probe of i2c_designware.0 failed with error -110",
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",
        "mce: CPU supports 28 MCE banks",
        "nvidia: module license 'NVIDIA' taints kernel.",
        "HEST: Table parsing has been initialized.",
        "mlx5_core 0000:ab:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    ],
)
def test_lines_of_healthy_machines_are_no_events(text: str) -> None:
    assert logs.parse([f"[    1.000000] {text}"]) == []


# Of other things than Xids: text, kind, address, parameter, value.
OTHERS = [
    (
        "nvidia: probe of 0000:18:00.0 failed with error -1",
        "probe_failed",
        "0000:18:00.0",
        "status",
        -1,
    ),
    (
        "nvidia 0000:18:00.0: probe with driver nvidia failed with error -1",
        "probe_failed",
        "0000:18:00.0",
        "driver",
        "nvidia",
    ),
    (
        "amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init",
        "init_failed",
        "0000:03:00.0",
        "driver",
        "amdgpu",
    ),
    (
        "NVRM: RmInitAdapter failed! (0x26:0xffff:1096)",
        "init_failed",
        None,
        "status",
        "0x26:0xffff:1096",
    ),
    (
        "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:01:00.0",
        "aer",
        "0000:01:00.0",
        "severity",
        "nonfatal",
    ),
    (
        "nvidia 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)",
        "aer",
        "0000:01:00.0",
        "severity",
        "fatal",
    ),
    (
        "0000:50:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0500(Requester ID)",
        "aer",
        "0000:50:00.0",
        "severity",
        "fatal",
    ),
    (
        "blk_update_request: I/O error, dev sdb, sector 123 op 0x1:(WRITE)",
        "io_error",
        None,
        "device",
        "sdb",
    ),
    (
        "critical medium error, dev nvme1n1, sector 8 op 0x0:(READ)",
        "io_error",
        None,
        "device",
        "nvme1n1",
    ),
    (
        "Buffer I/O error on dev dm-0, logical block 7, async page read",
        "io_error",
        None,
        "device",
        "dm-0",
    ),
    (
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2",
        "io_error",
        None,
        "device",
        "sda1",
    ),
    (
        'XFS (nvme0n1p1): metadata I/O error in "x" at daddr 0x1',
        "io_error",
        None,
        "device",
        "nvme0n1p1",
    ),
    ("nvme nvme0: I/O 832 QID 4 timeout, aborting", "io_error", None, "device", "nvme0"),
    (
        "nvme nvme0: controller is down; will reset: CSTS=0x3",
        "io_error",
        None,
        "device",
        "nvme0",
    ),
    (
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0",
        "mce",
        None,
        "severity",
        "uncorrected",
    ),
    ("EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1", "mce", None, "severity", "corrected"),
    (
        "mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00000000800400",
        "mce",
        None,
        "severity",
        "uncorrected",
    ),
    (
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: 9c00000000010092",
        "mce",
        None,
        "severity",
        "corrected",
    ),
    ("{1}[Hardware Error]: event severity: fatal", "mce", None, "severity", "uncorrected"),
    ("mlx5_core 0000:ab:00.0 eth2: Link down", "link_down", "0000:ab:00.0", "interface", "eth2"),
    (
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
        "link_down",
        "0000:ab:00.0",
        "interface",
        "mlx5_5",
    ),
    ("tg3 0000:01:00.0: eth0: Link is down", "link_down", "0000:01:00.0", "interface", "eth0"),
    ("pcieport 0000:17:01.0: pciehp: Slot(5): Link Down", "link_down", "0000:17:01.0", "slot", "5"),
    (
        "INFO: task nvidia-smi:2203 blocked for more than 120 seconds.",
        "hung_task",
        None,
        "pid",
        2203,
    ),
    (
        "Memory cgroup out of memory: Killed process 4182 (order-worker) total-vm:812044kB",
        "oom",
        None,
        "cgroup",
        True,
    ),
]


@pytest.mark.parametrize(("text", "kind", "where", "name", "value"), OTHERS)
def test_other_event_has_kind_address_and_value(
    text: str, kind: str, where: str | None, name: str, value: Any
) -> None:
    (row,) = logs.parse(logs.candidates(f"[    1.000000] {text}\n".encode()))
    assert (row["kind"], row["address"], row["parameters"][name]) == (kind, where, value)


def test_control_characters_do_not_get_through() -> None:
    escape = r"3,1,1,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=a\x1b[2J\x07, b\x1b]0;x\x07\xe2\x80\xae"
    (row,) = logs.parse(
        [escape, "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=\x1b[31mred, x\x00\x9b"]
    )
    text = json.dumps(row, ensure_ascii=False)
    assert all(c.isprintable() for c in text), text
    (row,) = logs.parse(["NVRM: Xid (PCI:0000:18:00): 79, " + "x" * 100000])
    assert len(row["text"]) == logs.LONGEST


def test_many_different_lines_are_bounded() -> None:
    parser = logs.LogParser()
    for number in range(5000):
        parser.line(f"3,{number},1,-;I/O error, dev sd{number}, sector 1")
    assert len(parser.result()) == logs.ROWS
    assert parser.dropped == 5000 - logs.ROWS


def test_no_text_makes_it_fail() -> None:
    """Pieces of real lines, torn, joined, and with bytes of chance in them."""
    chance = random.Random(7)  # noqa: S311 - the same tests each time
    pieces = (
        [line for case in REAL for line in case["lines"]]
        + [row[0] for row in OTHERS]
        + [form.format(XID) for form, _ in FORMS]
        + [journal_entry()]
    )
    for _ in range(4000):
        text = chance.choice(pieces)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(text) + 1)
            text = chance.choice(
                [
                    text[at:],
                    text[:at],
                    text[:at] + chance.choice(pieces),
                    text[:at] + chr(chance.randrange(0x2FFF)) + text[at:],
                ]
            )
        data = text.encode("utf-8", "surrogatepass")
        if chance.random() < 0.3 and data:
            data = bytes(chance.randrange(256) if chance.random() < 0.05 else byte for byte in data)
        for row in logs.parse([data, *logs.candidates(data)]):
            json.dumps(row)
            assert row["count"] >= 1


def test_only_the_last_boot_of_a_file_counts() -> None:
    lines = [
        XID,
        "[    0.000000] Linux version 6.1.0-9-amd64 (x)",
        "[    1.0] NVRM: Xid (PCI:0000:19:00): 31, pid=1, name=a, x",
    ]
    assert [row["code"] for row in logs.parse(lines)] == [31]


# -- sources


def root(tmp_path: Path, **files: str) -> Path:
    """A directory that plays a running machine; names with `__` for `/`."""
    for name, content in {"proc__sys__kernel__random__boot_id": BOOT + "\n", **files}.items():
        target = tmp_path / name.replace("__", "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    return tmp_path


def section(path: Path, *, live: bool = True) -> dict[str, Any]:
    context = probe.Context(Host(str(path), live=live))
    found: dict[str, Any] = events.read(context)["events"]
    return found


def kmsg(*texts: str, first: int = 0) -> str:
    return "".join(
        f"3,{first + n},{(first + n) * 10000},-;{text}\n SUBSYSTEM=pci\n"
        for n, text in enumerate(texts)
    )


def test_the_ring_is_read(tmp_path: Path) -> None:
    found = section(root(tmp_path, dev__kmsg=kmsg("Linux version 6.1", XID, "last")))
    assert (
        found["sources"],
        found["truncated"],
        found["error"],
        found["last_seq"],
        found["boot_id"],
    ) == (
        ["kmsg"],
        False,
        None,
        2,
        BOOT,
    )
    assert [(row["code"], row["seq"], row["boot_id"]) for row in found["rows"]] == [(79, 1, BOOT)]


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for journalctl, which prints the file beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "journalctl"
    program.write_text(
        f"#!/bin/sh\n[ -e {folder}/slow ] && exec sleep 60\ncat {folder}/entries 2>/dev/null\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def entry(seq: int, text: str) -> str:
    return (
        json.dumps(
            {
                "MESSAGE": text,
                "SYSLOG_FACILITY": "0",
                "_TRANSPORT": "kernel",
                "_SOURCE_MONOTONIC_TIMESTAMP": str(seq * 10000),
            },
            separators=(",", ":"),
        )
        + "\n"
    )


def test_a_ring_that_has_wrapped_is_not_the_whole_log(tmp_path: Path, journalctl: Path) -> None:
    found = section(root(tmp_path / "root", dev__kmsg=kmsg("x", XID, first=900)))
    assert found["truncated"] is True
    assert len(found["rows"]) == 1


def test_the_journal_has_what_the_ring_has_lost(tmp_path: Path, journalctl: Path) -> None:
    early = "NVRM: Xid (PCI:0000:19:00): 48, pid=1, name=a, DBE"
    (journalctl / "entries").write_text(
        entry(0, "Linux version 6.1") + entry(5, early) + entry(901, XID) + entry(902, "y")
    )
    found = section(root(tmp_path / "root", dev__kmsg=kmsg("x", XID, "y", first=900)))
    assert (found["truncated"], found["sources"]) == (False, ["journal", "kmsg"])
    assert [(row["code"], row["count"]) for row in found["rows"]] == [(48, 1), (79, 1)], (
        "what both have is counted once"
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json\n",
        entry(700, "it begins late") + entry(950, "x"),
        entry(0, "Linux version") + '{"torn',
    ],
)
def test_a_journal_that_does_not_help(tmp_path: Path, journalctl: Path, content: str) -> None:
    (journalctl / "entries").write_text(content)
    found = section(root(tmp_path / "root", dev__kmsg=kmsg("x", XID, first=900)))
    assert found["truncated"] is ("Linux version" not in content)


def test_a_journal_that_hangs_is_left(
    tmp_path: Path, journalctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (journalctl / "slow").touch()
    monkeypatch.setattr(events, "TIME", 0.2)
    found = section(root(tmp_path / "root", dev__kmsg=kmsg("x", XID, first=900)))
    assert found["truncated"] is True


def last(tmp_path: Path, **patch: Any) -> Path:
    """A last capture that reaches up to record 899."""
    rows = [{**logs.parse([f"3,5,5000,-;{XID}"], BOOT)[0], "count": 3}]
    content = {
        "events": {
            "sources": ["kmsg"],
            "truncated": False,
            "boot_id": BOOT,
            "last_seq": 899,
            "rows": rows,
            "error": None,
            **patch,
        }
    }
    return root(tmp_path, run__goldnode__capture_json=json.dumps(content))


def test_the_last_capture_has_what_the_ring_has_lost(tmp_path: Path, journalctl: Path) -> None:
    path = last(tmp_path / "root")
    (path / "run/goldnode/capture_json").rename(path / "run/goldnode/capture.json")
    root(path, dev__kmsg=kmsg(XID, "NVRM: Xid (PCI:0000:19:00): 31, pid=1, name=a, x", first=900))
    found = section(path)
    assert (found["truncated"], found["sources"]) == (False, ["capture", "kmsg"])
    assert [(row["code"], row["count"], row["last_seq"]) for row in found["rows"]] == [
        (79, 4, 900),
        (31, 1, 901),
    ]
    assert not any(key.startswith("_") for row in found["rows"] for key in row)
    # Once more, with the same ring: nothing is counted twice.
    (path / "run/goldnode/capture.json").write_text(json.dumps({"events": found}))
    assert section(path)["rows"] == found["rows"]


@pytest.mark.parametrize(
    "patch",
    [
        {"boot_id": "other"},
        {"last_seq": 800},
        {"truncated": True},
        {"rows": 7},
        {"rows": [{"kind": "xid"}]},
        {"error": {}},
    ],
)
def test_a_last_capture_that_does_not_fit(
    tmp_path: Path, journalctl: Path, patch: dict[str, Any]
) -> None:
    path = last(tmp_path / "root", **patch)
    (path / "run/goldnode/capture_json").rename(path / "run/goldnode/capture.json")
    root(path, dev__kmsg=kmsg(XID, first=900))
    assert section(path)["truncated"] is True


def test_a_file_where_there_is_no_ring(tmp_path: Path, journalctl: Path) -> None:
    text = f"Nov 22 10:00:00 n kernel: [    0.000000] Linux version 6.1\n2026-11-22T10:00:01.000000+00:00 n kernel: [    1.5] {XID}\n"
    found = section(
        root(tmp_path / "root", var__log__kern_log=text, **{"var__log__kern.log": text})
    )
    assert (found["sources"], found["truncated"], [row["code"] for row in found["rows"]]) == (
        ["/var/log/kern.log"],
        False,
        [79],
    )


def test_nothing_to_read_is_reported(tmp_path: Path, journalctl: Path) -> None:
    found = section(root(tmp_path / "root"))
    assert found["error"]["fault"] == "not_exposed"
    assert found["rows"] == []


def test_a_container_reads_no_log_of_its_host(tmp_path: Path) -> None:
    found = section(root(tmp_path, dev__kmsg=kmsg(XID), run__systemd__container="docker\n"))
    assert (found["rows"], found["error"]["fault"]) == ([], "not_exposed")


def test_a_text_that_a_person_gives() -> None:
    found = events.parsed(f"hello\n{XID}\n")
    assert [row["code"] for row in found["rows"]] == [79]


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK) or not Path("/dev/kmsg").is_char_device(),
    reason="there is no kernel log to read",
)
def test_the_kernel_of_this_machine() -> None:
    ring = events.ring_of("/dev/kmsg")
    if isinstance(ring, dict):
        assert ring["fault"] == "unread"
        return
    records, first, lost = ring
    assert lost == (first > 0)
    json.dumps(logs.parse(logs.candidates(records)))


def test_records_of_the_ring_are_found_in_their_order() -> None:
    """Marks of warnings are not searched for in records of level info, of which a boot log mostly consists."""
    texts = ["usb 1-1: new device", "eth0: NIC Link is Down", XID, "EDAC MC0: 1 UE on any memory"]
    records = [f"{3 + n % 2},{n},{n},-;{texts[n % 4]}".encode() for n in range(40)]
    data = b"\n".join(records)
    wanted = [record for n, record in enumerate(records) if n % 4]
    assert logs.candidates(data) == wanted
    data = b"\n".join([b"6,90,90,-;usb 1-1: x"] * 400 + records)
    assert logs.candidates(data) == wanted, "few of many, sorted by their number"
    levels = [b"6,1,1,-;EDAC MC0: Ver: 3.0.0", b"6,2,2,-;mlx5_core 0000:ab:00.0 eth2: Link down"]
    assert logs.candidates(b"\n".join(levels)) == levels[1:]
