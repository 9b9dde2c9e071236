"""Events of the kernel's log, judged: each case is a log, and what must come of it."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from goldnode.facts import health, xid
from goldnode.node.probe import logs
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH, UNREAD, Finding
from goldnode.node.verdict import check
from goldnode.node.verdict.events import acknowledge, judge, remembered

LIMITS = {
    "repeat_days": 30,
    "xid_repeats": 2,
    "app_xid_names": 2,
    "app_xid_processes": 3,
    "aer_correctable_minute": 60,
    "hung_task_recent_s": 900,
}
assert {name: row.value for name, row in health.limits().items() if name in LIMITS} == LIMITS
DOCUMENT: dict[str, Any] = {"xid": xid.table(), "health": {"limits": LIMITS}}
A, B, C, D = "0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0", "0000:5d:00.0"


def line(
    code: int, where: str = A, rest: str = "pid=12, name=python3, something", mig: str = ""
) -> str:
    return f"NVRM: Xid (PCI:{where[:-2]}{mig}): {code}, {rest}"


def capture(
    *texts: str, boot: str = "boot-1", time: str = "2026-11-22T10:00:00Z", **patch: Any
) -> dict[str, Any]:
    """A capture of four GPUs that work, with a log of these lines, a second apart."""
    rows = logs.parse([f"3,{n},{n * 1000000},-;{text}" for n, text in enumerate(texts, 1)], boot)
    return {
        "source": "live",
        "time": time,
        "uptime": 100000.0,
        "identity": {"boot_id": boot, "container": False},
        "gpus": [
            {"index": n, "address": where, "lost": False} for n, where in enumerate((A, B, C, D))
        ],
        "gpu_error": None,
        "driver": {"loaded": "580.95.05", "library": "580.95.05"},
        "events": {
            "sources": ["kmsg"],
            "truncated": False,
            "boot_id": boot,
            "last_seq": len(texts),
            "rows": rows,
            "error": None,
        },
        **patch,
    }


def findings(
    *texts: str,
    document: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    **patch: Any,
) -> list[Finding]:
    return judge(
        DOCUMENT if document is None else document, capture(*texts, **patch), memory or {}
    )[0]


def bad(found: list[Finding]) -> list[tuple[str, str, str, str | None, str | None]]:
    return [(f.id, f.outcome, f.severity, f.subject, f.blast) for f in found if f.outcome != MATCH]


FATAL = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
NVLINK = "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
LINK5 = "NETIR_LINK_EVT {} XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
REBOOT = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)"
NOTHING_LEFT = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
API = r"NVRM: API mismatch: the client 'nvidia-smi' (pid 7)\x0aNVRM: has the version {}, but this kernel module has\x0aNVRM: the version {}.  Please make"
LOST = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."

# Name, lines, all that is not a match: (id, outcome, severity, subject, blast).
CASES: list[tuple[str, list[str], list[tuple[str, str, str, str | None, str | None]]]] = [
    ("a quiet log", [], []),
    ("H3: a program's page fault", [line(31)], []),
    (
        "programs that fail in many ways",
        [line(13), line(31), line(43), line(45), line(69), line(94, B), line(8, C)],
        [],
    ),
    (
        "a job's bug on all its GPUs",
        [line(31, where, f"pid={n}, name=train, x") for n, where in enumerate((A, B, C, D))],
        [],
    ),
    ("a row noted for remapping", [line(63)], []),
    ("uncontained error", [line(95)], [("xid.95", MISMATCH, "drain", A, "gpu")]),
    (
        "uncontained error in a MIG instance",
        [line(95, mig=" GPU-I:05")],
        [("xid.95", MISMATCH, "drain", A, "gpu")],
    ),
    ("double bit error", [line(48)], [("xid.48", MISMATCH, "drain", A, "gpu")]),
    ("double bit error, noted", [line(48), line(63)], [("xid.48", MISMATCH, "drain", A, "gpu")]),
    (
        "double bit error, contained",
        [line(48), line(63), line(94)],
        [("xid.48", MISMATCH, "degraded", A, "gpu")],
    ),
    (
        "double bit error, and its detail",
        [line(48), line(171)],
        [("xid.48", MISMATCH, "drain", A, "gpu")],
    ),
    (
        "double bit error, not contained",
        [line(48), line(95), line(45), line(154, rest=RESET)],
        [("xid.95", MISMATCH, "drain", A, "gpu")],
    ),
    ("failure of remapping", [line(48), line(64)], [("xid.64", MISMATCH, "drain", A, "gpu")]),
    ("off the bus", [line(79)], [("xid.79", MISMATCH, "drain", A, "node")]),
    ("off the bus, told twice", [line(79), LOST], [("gpu.bus_lost", MISMATCH, "drain", A, "node")]),
    ("off the bus without an Xid", [LOST], [("gpu.bus_lost", MISMATCH, "drain", A, "node")]),
    (
        "the firmware processor does not answer",
        [line(119)] * 5,
        [("xid.119", MISMATCH, "drain", A, "gpu")],
    ),
    ("power cable", [line(54)], [("xid.54", MISMATCH, "drain", A, "hardware")]),
    (
        "the driver asks for a reset",
        [line(154, rest=RESET)],
        [("xid.154", MISMATCH, "drain", A, "gpu")],
    ),
    (
        "the driver asks for a restart in the end",
        [line(119), line(154, rest=RESET), line(154, rest=REBOOT)],
        [("xid.119", MISMATCH, "drain", A, "node")],
    ),
    (
        "a reset that the driver tells",
        [line(95), line(154, rest=RESET), line(154, rest=NOTHING_LEFT)],
        [],
    ),
    (
        "a fault after such a reset",
        [line(154, rest=NOTHING_LEFT), line(95)],
        [("xid.95", MISMATCH, "drain", A, "gpu")],
    ),
    (
        "a reset does not bring a lost GPU back",
        [line(79), line(154, rest=NOTHING_LEFT)],
        [("xid.79", MISMATCH, "drain", A, "node")],
    ),
    (
        "an action that nobody knows",
        [line(154, rest="GPU recovery action changed from 0x0 (None) to 0x63 (X)")],
        [("xid.154", UNREAD, "degraded", A, "nothing")],
    ),
    ("an Xid that nobody knows", [line(999)], [("xid.999", UNREAD, "degraded", A, "nothing")]),
    (
        "an Xid in a form that nobody knows",
        ["NVRM: Xid (nobody): knows"],
        [("xid", UNREAD, "degraded", None, "nothing")],
    ),
    ("an Xid that is never printed", [line(57)], [("xid.57", MISMATCH, "degraded", A, "nothing")]),
    ("a fatal SXid", [FATAL], [("sxid.20034", MISMATCH, "drain", "0000:05:00.0", "node")]),
    ("an SXid that is not fatal", [FATAL.replace("Fatal", "Non-fatal")], []),
    (
        "an SXid without the word, always fatal",
        ["nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 23001, Data {0x1}"],
        [("sxid.23001", MISMATCH, "drain", "0000:05:00.0", "node")],
    ),
    (
        "an SXid without the word",
        ["nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Data {0x1}"],
        [("sxid.20034", UNREAD, "degraded", "0000:05:00.0", "nothing")],
    ),
    (
        "one fault of the fabric, seen by all",
        [
            FATAL,
            *(line(74, where, NVLINK) for where in (A, B, C, D)),
            *(line(45, where) for where in (A, B)),
            line(154, C, RESET),
        ],
        [("sxid.20034", MISMATCH, "drain", "0000:05:00.0", "node")],
    ),
    (
        "a fault of the fabric beside a fault of a GPU",
        [FATAL, line(74, A, NVLINK), line(95, B), line(154, B, RESET)],
        [
            ("sxid.20034", MISMATCH, "drain", "0000:05:00.0", "node"),
            ("xid.95", MISMATCH, "drain", B, "gpu"),
        ],
    ),
    ("NVLink of one GPU", [line(74, A, NVLINK)], [("xid.74", MISMATCH, "drain", A, "gpu")]),
    (
        "a lost GPU, seen by its peers",
        [line(79), *(line(74, where, NVLINK) for where in (A, B, C, D))],
        [("xid.79", MISMATCH, "drain", A, "node")],
    ),
    (
        "NVLink of many GPUs",
        [line(74, where, NVLINK) for where in (A, B, C)],
        [("nvlink.errors", MISMATCH, "drain", None, "node")],
    ),
    (
        "NVLink 5, fatal",
        [line(149, A, LINK5.format("Fatal"))],
        [("xid.149", MISMATCH, "drain", A, "gpu")],
    ),
    ("NVLink 5, not fatal", [line(145, A, LINK5.format("Nonfatal"))], []),
    (
        "NVLink 5, without the word",
        [line(145, A, "x")],
        [("xid.145", MISMATCH, "degraded", A, "gpu")],
    ),
    (
        "NVLink 5 of many GPUs",
        [line(149, where, LINK5.format("Fatal")) for where in (A, B, C, D)],
        [("nvlink.errors", MISMATCH, "drain", None, "node")],
    ),
    (
        "a probe that failed, of a GPU that works",
        ["nvidia: probe of 0000:18:00.0 failed with error -1"],
        [],
    ),
    (
        "a probe that failed",
        ["nvidia: probe of 0000:99:00.0 failed with error -1"],
        [("driver.probe_failed", MISMATCH, "drain", "0000:99:00.0", "node")],
    ),
    (
        "an adapter that did not start",
        ["NVRM: GPU 0000:99:00.0: RmInitAdapter failed! (0x22:0x56:894)"],
        [("driver.init_failed", MISMATCH, "drain", "0000:99:00.0", "node")],
    ),
    (
        "an adapter that started later",
        ["NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x22:0x56:894)"],
        [("driver.init_failed", MISMATCH, "degraded", A, "node")],
    ),
    ("a container with another library", [API.format("550.54.15", "580.95.05")], []),
    (
        "an update without a restart",
        [API.format("580.95.05", "575.57.08")],
        [("driver.api_mismatch", MISMATCH, "degraded", None, "node")],
    ),
    (
        "a mismatch without versions",
        ["NVRM: API mismatch: the client"],
        [("driver.api_mismatch", MISMATCH, "degraded", None, "node")],
    ),
    (
        "corrected PCIe errors",
        [
            "nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
        ]
        * 30,
        [],
    ),
    (
        "a storm of them",
        [
            "nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
        ]
        * 61,
        [("pcie.aer", MISMATCH, "degraded", A, "node")],
    ),
    (
        "PCIe errors that were not corrected",
        [
            "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)"
        ],
        [("pcie.aer", MISMATCH, "degraded", A, "node")],
    ),
    (
        "a disk",
        ["I/O error, dev nvme0n1, sector 8 op 0x0:(READ)"],
        [("storage.io_error", MISMATCH, "degraded", "nvme0n1", "hardware")],
    ),
    (
        "memory of the machine",
        ["EDAC MC0: 1 UE memory read error on x"],
        [("machine.mce", MISMATCH, "drain", "MC0", "hardware")],
    ),
    ("memory that was corrected", ["EDAC MC0: 1 CE memory read error on x"], []),
    (
        "a slot",
        ["pcieport 0000:17:01.0: pciehp: Slot(5): Link Down"],
        [("pcie.slot_down", MISMATCH, "degraded", "0000:17:01.0", "node")],
    ),
    ("a network link at start", ["mlx5_core 0000:ab:00.0 eth2: Link down"], []),
    (
        "a job at its memory limit",
        ["Memory cgroup out of memory: Killed process 4182 (train) total-vm:1kB"],
        [],
    ),
    ("a task that hung once", ["INFO: task python3:77 blocked for more than 120 seconds."], []),
]


@pytest.mark.parametrize(("name", "lines", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_log_gives_one_finding_per_id_and_subject(
    name: str, lines: list[str], wanted: list[tuple[str, str, str, str | None, str | None]]
) -> None:
    found = findings(*lines)
    assert bad(found) == wanted
    assert len({(f.id, f.subject) for f in found}) == len(found), "one finding per id and subject"
    for finding in found:
        if finding.outcome == MISMATCH:
            assert finding.remedy
            assert finding.evidence
    # Nothing of a log passes in silence: what is no fault is there for information.
    assert not lines or any(finding.id != "events.log" for finding in found)


def test_remedies_name_the_gpu_and_what_is_settled() -> None:
    (finding,) = [
        f
        for f in findings(line(95, mig=" GPU-I:05"), line(95, mig=" GPU-I:06"))
        if f.id == "xid.95"
    ]
    assert f"nvidia-smi --gpu-reset -i {A}" in (finding.remedy or "")
    assert "goldnode-node ack" in (finding.remedy or "")
    assert "GPU-I:05" in (finding.got or "")
    assert "GPU-I:06" in (finding.got or "")
    assert len(finding.evidence) == 2


def test_a_task_that_hangs_now() -> None:
    text = "INFO: task python3:77 blocked for more than 120 seconds."
    assert bad(findings(text, blocked=[{"pid": 77, "command": "python3"}])) == [
        ("kernel.hung_task", MISMATCH, "degraded", None, "process")
    ]
    assert bad(findings(text, uptime=500.0)) == [
        ("kernel.hung_task", MISMATCH, "degraded", None, "process")
    ]


def test_a_library_of_another_version_on_the_node_itself() -> None:
    text = API.format("580.95.05", "580.65.06")
    assert bad(findings(text, driver={"loaded": "1", "library": "2"}))[0][:3] == (
        "driver.api_mismatch",
        MISMATCH,
        "degraded",
    )
    assert (
        bad(findings(text, driver={"loaded": {"fault": "unread"}, "library": {"fault": "unread"}}))[
            0
        ][1]
        == MISMATCH
    )


def test_fatal_pcie_errors_on_the_way_to_a_gpu() -> None:
    text = "pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    pci = {A: {"kind": "gpu", "path": ["0000:15:01.0", A]}}
    assert bad(findings(text, pci=pci)) == [("pcie.aer", MISMATCH, "drain", "0000:15:01.0", "node")]
    assert bad(findings(text)) == [("pcie.aer", MISMATCH, "degraded", "0000:15:01.0", "node")]


def test_several_programs_that_fail_on_one_gpu_only() -> None:
    lines = [
        line(31, B, f"pid={n}, name={name}, x")
        for n, name in enumerate(("train", "infer", "train", "notebook"))
    ]
    assert bad(findings(*lines)) == [("xid.programs", MISMATCH, "degraded", B, "gpu")]
    assert bad(findings(*lines, line(31, A))) == [], "another GPU has them too: it is the programs"
    assert bad(findings(*lines[:2])) == []
    assert bad(findings(*lines, document={**DOCUMENT, "health": {}})) == [], (
        "without limits it is not judged"
    )


def test_programs_that_fail_on_one_tpc_suspect_the_board() -> None:
    """Catalogue, workflow 13: errors that repeat on one TPC are a possible fault of the hardware."""
    text = "Graphics SM Warp Exception on (GPC {}, TPC {}, SM {}): Out Of Range Address"

    def lines(*places: tuple[str, int, int, int]) -> list[str]:
        return [
            line(13, B, f"pid={pid}, name={name}, {text.format(*place)}")
            for pid, (name, *place) in enumerate(places, 100)
        ]

    alone: dict[str, Any] = {"gpus": [{"address": B}]}
    same = lines(("train", 5, 2, 1), ("infer", 5, 2, 0))
    (found,) = [f for f in findings(*same, **alone) if f.id == "xid.programs"]
    assert "all on GPC 5, TPC 2, SM 0; GPC 5, TPC 2, SM 1" in str(found.got)
    assert "field diagnostic" in str(found.remedy)
    for others in (
        lines(("train", 5, 2, 1), ("train", 5, 2, 1)),  # one program
        lines(("train", 5, 2, 1), ("infer", 1, 0, 1)),  # two places
        [same[0], line(31, B, "pid=9, name=infer, MMU Fault")],  # of the other no place is known
    ):
        assert bad(findings(*others, **alone)) == []


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"xid": None},
        {"xid": {}},
        {"xid": {"79": None}},
        {"xid": {"79": ["x"]}},
        {"xid": [], "health": []},
    ],
)
def test_without_a_table_nothing_is_quietly_fine(document: dict[str, Any]) -> None:
    found = findings(line(79), document=document)
    assert [f.outcome for f in found if f.id == "xid.79"] == [UNREAD]
    assert check.exit_code(found) == check.UNKNOWN


# -- the log itself


@pytest.mark.parametrize(
    ("events", "patch", "outcome"),
    [
        (
            {
                "sources": ["kmsg"],
                "truncated": True,
                "boot_id": "boot-1",
                "rows": [],
                "error": None,
            },
            {},
            UNREAD,
        ),
        (
            {
                "sources": [],
                "truncated": False,
                "boot_id": "boot-1",
                "rows": [],
                "error": {"fault": "unread", "text": "no"},
            },
            {},
            UNREAD,
        ),
        (
            {
                "sources": [],
                "truncated": False,
                "boot_id": "boot-1",
                "rows": [],
                "error": {"fault": "not_exposed", "text": "no"},
            },
            {},
            UNREAD,
        ),
        (
            {"rows": [], "error": {"fault": "not_exposed", "text": "no"}},
            {"identity": {"container": True}},
            ELSEWHERE,
        ),
        (
            {"rows": [], "error": {"fault": "not_exposed", "text": "no"}},
            {"source": "root"},
            ELSEWHERE,
        ),
        ({"fault": "unread", "text": "the reader failed"}, {}, UNREAD),
        (None, {}, UNREAD),
        ([], {}, UNREAD),
        (
            {
                "sources": ["kmsg"],
                "truncated": False,
                "boot_id": "boot-1",
                "rows": [],
                "error": None,
            },
            {},
            MATCH,
        ),
    ],
)
def test_a_log_that_was_not_read_is_not_clean(
    events: Any, patch: dict[str, Any], outcome: str
) -> None:
    found, _ = judge(DOCUMENT, {**capture(), "events": events, **patch}, {})
    assert [(f.id, f.outcome) for f in found] == [("events.log", outcome)]
    assert (check.exit_code(found) == check.HEALTHY) is (outcome == MATCH)


def test_a_truncated_log_reports_what_it_has() -> None:
    seen = capture(line(79))
    seen["events"]["truncated"] = True
    found, _ = judge(DOCUMENT, seen, {})
    assert [(f.id, f.outcome) for f in found] == [("events.log", UNREAD), ("xid.79", MISMATCH)]
    assert check.exit_code(found) == check.DRAIN


def test_a_record_that_has_no_log_is_not_blamed_for_it() -> None:
    assert judge(DOCUMENT, {"source": "nvidia-smi-xml"}, {})[0] == []


# -- over time


def test_log_lines_of_an_earlier_boot_are_no_fault() -> None:
    seen = capture(line(79), boot="boot-1")
    seen["events"]["boot_id"] = "boot-2"
    assert bad(judge(DOCUMENT, seen, {})[0]) == []


def test_the_same_twice_in_a_row_is_found_twice() -> None:
    first, memory = judge(DOCUMENT, capture(line(79)), {})
    second, again = judge(DOCUMENT, capture(line(79)), {"events": memory})
    assert bad(first) == bad(second) != []
    assert memory == again, "the same boot is counted once"


@pytest.mark.parametrize("between", ["nothing", "an acknowledgement", "a reset"])
def test_an_xid_that_comes_again_within_a_boot_shows_another_text(between: str) -> None:
    """By that the tests before a return know it from the first (return_tests._is_counted)."""
    reset = [line(154, rest=NOTHING_LEFT)] if between == "a reset" else []
    first = [line(48), *([line(154, rest=RESET)] if reset else [])]
    memory = {}
    if between == "an acknowledgement":
        memory = {"events": acknowledge(capture(*first), {})[0]}
    assert bool(bad(findings(*first, *reset, memory=memory))) is (between == "nothing")
    texts = [
        {found.id: found.got for found in findings(*lines, memory=known) if found.outcome != MATCH}[
            "xid.48"
        ]
        for lines, known in ((first, {}), ([*first, *reset, line(48)], memory))
    ]
    assert texts[0] != texts[1]


def test_a_restart_settles_it_and_the_second_within_days_does_not() -> None:
    _, memory = judge(DOCUMENT, capture(line(95), boot="boot-1"), {})
    found, memory = judge(
        DOCUMENT, capture(boot="boot-2", time="2026-11-23T10:00:00Z"), {"events": memory}
    )
    assert bad(found) == []
    found, memory = judge(
        DOCUMENT, capture(line(119), boot="boot-3", time="2026-11-30T10:00:00Z"), {"events": memory}
    )
    assert [(f[0], f[3], f[4]) for f in bad(found)] == [
        ("xid.119", A, "gpu"),
        ("gpu.repeated_faults", A, "hardware"),
    ]
    found, memory = judge(
        DOCUMENT, capture(boot="boot-4", time="2026-12-01T10:00:00Z"), {"events": memory}
    )
    assert bad(found) == [("gpu.repeated_faults", MISMATCH, "drain", A, "hardware")], (
        "a third restart does not make it good"
    )
    found, _ = judge(
        DOCUMENT, capture(boot="boot-9", time="2027-11-30T10:00:00Z"), {"events": memory}
    )
    assert bad(found) == []
    found, _ = judge(
        {**DOCUMENT, "health": {}},
        capture(boot="boot-4", time="2026-12-01T10:00:00Z"),
        {"events": memory},
    )
    assert bad(found) == [], "without limits it is not judged"


def test_faults_of_two_gpus_are_not_two_of_one() -> None:
    _, memory = judge(DOCUMENT, capture(line(95, A), boot="boot-1"), {})
    found, _ = judge(DOCUMENT, capture(line(95, B), boot="boot-2"), {"events": memory})
    assert [f[0] for f in bad(found)] == ["xid.95"]


def test_a_clock_that_jumps_back_does_not_hide_a_repeat() -> None:
    _, memory = judge(DOCUMENT, capture(line(95), boot="boot-1"), {})
    found, _ = judge(
        DOCUMENT, capture(line(95), boot="boot-2", time="2026-11-20T00:00:00Z"), {"events": memory}
    )
    assert "gpu.repeated_faults" in [f[0] for f in bad(found)]


def test_acknowledged_event_is_hidden_until_it_occurs_again() -> None:
    seen = capture(line(95), line(999), "I/O error, dev sdb, sector 1")
    _, memory = judge(DOCUMENT, seen, {})
    settled, done = acknowledge(seen, {"events": memory})
    assert done == ["storage.io_error", "xid.95", "xid.999"]
    memory = {"events": settled}
    found, stored = judge(DOCUMENT, seen, memory)
    assert bad(found) == []
    assert "events.acknowledged" in [f.id for f in found]
    assert stored["history"] == [], "nor is it counted any more"
    # The same fault once more is a new one.
    again = capture(line(95), line(999), "I/O error, dev sdb, sector 1", line(95))
    assert [f[0] for f in bad(judge(DOCUMENT, again, memory)[0])] == ["xid.95"]
    # What was acknowledged in one boot says nothing of the next.
    assert len(bad(judge(DOCUMENT, capture(line(95), boot="boot-2"), memory)[0])) == 1


@pytest.mark.parametrize(
    ("name", "subject", "left"),
    [
        ("xid.95", None, ["sxid.20034", "xid.79", "storage.io_error"]),
        ("xid.*", A, ["sxid.20034", "xid.79", "storage.io_error"]),
        ("xid.79", None, ["sxid.20034", "xid.95", "storage.io_error"]),
        ("sxid.*", None, ["xid.79", "xid.95", "storage.io_error"]),
        ("storage.io_error", "sdb", ["sxid.20034", "xid.79", "xid.95"]),
        ("storage.io_error", "sdc", ["sxid.20034", "xid.79", "xid.95", "storage.io_error"]),
        ("*", None, []),
        ("gpu.ecc*", None, ["sxid.20034", "xid.79", "xid.95", "storage.io_error"]),
    ],
)
def test_a_person_settles_what_is_meant_and_no_more(
    name: str, subject: str | None, left: list[str]
) -> None:
    """What was told as part of a finding goes with it: the action that Xid 154 asks for, the NVLink errors that follow from a switch."""
    seen = capture(
        line(95),
        line(154, rest=RESET),
        FATAL,
        line(74, C, NVLINK),
        line(154, C, RESET),
        line(79, B),
        "I/O error, dev sdb, sector 1",
    )
    memory = {"events": acknowledge(seen, {}, name, subject)[0]}
    assert sorted(f[0] for f in bad(judge(DOCUMENT, seen, memory)[0])) == sorted(left)


def test_settling_one_thing_keeps_what_was_settled_before() -> None:
    seen = capture(line(95), line(79, B))
    first, _ = acknowledge(seen, {}, "xid.95")
    both, _ = acknowledge(seen, {"events": first}, "xid.79")
    assert bad(judge(DOCUMENT, seen, {"events": both})[0]) == []
    assert [f[0] for f in bad(judge(DOCUMENT, seen, {"events": first})[0])] == ["xid.79"]


def test_a_lost_beginning_can_be_acknowledged_for_this_boot() -> None:
    seen = capture()
    seen["events"]["truncated"] = True
    memory = {"events": acknowledge(seen, {})[0]}
    assert bad(judge(DOCUMENT, seen, memory)[0]) == []
    other = copy.deepcopy(seen)
    other["events"]["boot_id"] = "boot-2"
    assert bad(judge(DOCUMENT, other, memory)[0]) != []


# -- hostile input


@pytest.mark.parametrize(
    "memory",
    [
        {},
        {"events": None},
        {"events": []},
        {"events": {"acked": 7, "history": 7}},
        {
            "events": {
                "acked": {"boot_id": "boot-1", "rows": []},
                "history": [1, {}, {"boot_id": 1, "address": 2, "time": 3}],
            }
        },
        {
            "events": {
                "acked": {"boot_id": "boot-1", "rows": {"xid/79/0000:18:00.0////////": "x"}},
                "history": [{"boot_id": "a", "address": A, "time": "x"}],
            }
        },
    ],
)
def test_stored_state_of_another_shape_hides_nothing(memory: dict[str, Any]) -> None:
    found, stored = judge(DOCUMENT, capture(line(79)), memory)
    assert bad(found) == [("xid.79", MISMATCH, "drain", A, "node")]
    assert remembered({"events": stored}) == stored


def test_a_capture_of_another_shape_is_no_crash() -> None:
    """Values of a real capture replaced by others of any type, one and several at a time."""
    chance = random.Random(11)  # noqa: S311 - the same tests each time
    base = capture(
        line(79),
        line(74, B, NVLINK),
        FATAL,
        line(154, C, RESET),
        line(45),
        "I/O error, dev sdb, sector 1",
        LOST,
        line(31, D),
    )
    others: list[Any] = [None, 7, "x", [], {}, True, [None], {"fault": "unread"}, -1.5]

    def spoil(value: Any) -> Any:
        if chance.random() < 0.04:
            return chance.choice(others)
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        return [spoil(item) for item in value] if isinstance(value, list) else value

    for _ in range(1500):
        found, stored = judge(
            DOCUMENT,
            {key: spoil(value) for key, value in base.items()},
            {
                "events": spoil(
                    {"acked": {"boot_id": "boot-1", "truncated": False, "rows": {}}, "history": []}
                )
            },
        )
        assert remembered({"events": stored}) == stored
        for finding in found:
            assert finding.subject is None or isinstance(finding.subject, str)
