"""From a failed repair to the return: bundle, ticket, swapped parts and repeat offenders, by the commands."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.simulators.fleet import NOW, SyntheticNode, fleet, put, store

from goldnode.cli import main
from goldnode.core.site import load_site
from goldnode.fleet.control.part_offenders import offenders, parts_of
from goldnode.fleet.control.ticket_desk import NodeOffenders, StoreTicketDesk, case_key
from goldnode.fleet.control.ticket_gather import TicketGatherer, known_secrets
from goldnode.fleet.rollout.ladder import CasePhase, RepairCase
from goldnode.fleet.store import nodes, tickets
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.tickets import Ticket, TicketPart, TicketRequest

AT = NOW.timestamp()
DAY = 86400.0
SLOT = "0000:18:00.0"
SECRET = "canary-bmc-51d2e07"  # noqa: S105
MARKED = f"started with --password={SECRET}x and typed {SECRET}\n"


class FakeNode:
    """A node that ssh reaches; `report`: what nvidia-bug-report.sh writes."""

    def __init__(self, report: bytes | None = None, status: int = 0) -> None:
        self.report, self.status, self.calls = report, status, 0

    def run(self, *words: str, timeout: float) -> subprocess.CompletedProcess[bytes]:
        self.calls += 1
        if self.report is None:
            return subprocess.CompletedProcess(words, self.status or 127, b"", b"no answer")
        return subprocess.CompletedProcess(words, self.status, self.report, b"")


@pytest.fixture
def place(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with a store of two nodes, captures of both, and evidence of a repair of the first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bmc.txt").write_text(f"admin\n{SECRET}\n")
    site = {
        "fleet": {"store": "fleet.db", "data": "data"},
        "ladder": {
            "mode": "run",
            "bmc": {"protocol": "ipmi", "address": "{node}-bmc", "credentials": "bmc.txt"},
        },
    }
    (tmp_path / "goldnode-site.yml").write_text(yaml.safe_dump(site))
    shutil.copy(migrated, tmp_path / "fleet.db")
    database = StoreDatabase(str(tmp_path / "fleet.db"))
    stored = [StoredNode(one.name, "h100") for one in fleet(2)]
    limits = {"h100": FleetLimits("1", "1", "1")}
    database.run(lambda c: nodes.put(c, stored, limits, who="test", now=1.0))
    database.close()
    captured(tmp_path, fleet(2), [20, 10])
    return tmp_path


def captured(place: Path, rows: list[SyntheticNode], days: list[float]) -> None:
    store(place / "data", rows, [NOW - timedelta(days=number) for number in days])


def evidence(place: Path, node: SyntheticNode, at: float, rung: str, **more: Any) -> None:
    folder = place / ".goldnode/repairs" / node.name / f"{at:.0f}-{rung}"
    folder.mkdir(parents=True)
    report = node.report(NOW - timedelta(days=9))
    report["capture"] |= more
    (folder / "capture.json").write_text(json.dumps(report["capture"]))
    finding = {"id": "gpu.lost", "subject": SLOT, "outcome": "mismatch", "severity": "drain"}
    (folder / "verdict.json").write_text(json.dumps({"findings": [finding]}))
    (folder / "processes.txt").write_text(MARKED)
    (folder / "evidence.json").write_text(json.dumps({"at": at, "rung": rung}))


def case(node: str = "node1000", opened_at: float = AT - 9 * DAY) -> RepairCase:
    return RepairCase(
        node,
        "gpu.lost",
        ("reboot",),
        opened_at=opened_at,
        phase=CasePhase.TICKET,
        rung="ticket",
        changed_at=opened_at,
        deadline=0.0,
        why="gpu.lost after power-cycle",
    )


def opened(place: Path, node: FakeNode, given: RepairCase | None = None) -> str:
    database = StoreDatabase(str(place / "fleet.db"))
    site = load_site()
    gatherer = TicketGatherer(site, database, site.fleet_data(), lambda _: "h100", lambda _: node)  # type: ignore[arg-type,return-value]
    given = given or case()
    name = StoreTicketDesk(database, gatherer.of_case, lambda: given.opened_at).open(given)
    database.close()
    return name


def ticket_of(place: Path, name: str) -> Ticket:
    database = StoreDatabase(str(place / "fleet.db"))
    with database.read() as connection:
        return tickets.read(connection).named(name)


def bundle(ticket: Ticket) -> dict[str, bytes]:
    with tarfile.open(ticket.request.bundle) as archive:
        return {row.name: archive.extractfile(row).read() for row in archive}  # type: ignore[union-attr]


def goldnode(*words: object) -> Result:
    return CliRunner().invoke(main, ["fleet", "ticket", *map(str, words)])


def shown(*words: object) -> Any:
    done = goldnode(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_bundle_has_the_blamed_part_its_history_and_the_vendors_report(place: Path) -> None:
    node = fleet(1)[0]
    evidence(place, node, AT - 9 * DAY + 60, "reboot")
    evidence(place, node, AT - 30 * DAY, "reboot")  # of an earlier case
    name = opened(place, FakeNode(gzip.compress(MARKED.encode())))
    ticket = ticket_of(place, name)
    (part,) = ticket.request.parts
    assert (part.slot, part.serial, part.kind) == (SLOT, "16500100000", "gpu")
    assert (ticket.request.simulated, ticket.request.node_class) == (True, "h100")
    files = bundle(ticket)
    manifest = json.loads(files["manifest.json"])
    assert (manifest["node"], manifest["simulated"]) == ("node1000", True)
    assert manifest["missing"] == {}
    rungs = {one.split("/")[1] for one in files if one.startswith("rungs/")}
    assert rungs == {f"{AT - 9 * DAY + 60:.0f}-reboot"}
    assert "vendor/SIMULATED-nvidia-bug-report.log.gz" in files
    history = json.loads(files["history.json"])
    assert [row["serial"] for row in history["slot"]] == ["16500100000"]
    texts = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in files.values()]
    assert SECRET.encode() not in b"".join(texts)
    assert SECRET.encode() not in (place / "fleet.db").read_bytes()
    assert known_secrets(load_site()) == {SECRET}


def test_node_that_does_not_answer_gets_its_ticket_with_what_is_missing(place: Path) -> None:
    shutil.rmtree(place / "data")
    name = opened(place, FakeNode(None, 255))
    ticket = ticket_of(place, name)
    assert ticket.request.parts == ()
    missing = json.loads(bundle(ticket)["manifest.json"])["missing"]
    assert set(missing) == {
        "rungs", "nvidia-bug-report.log", "history", "serial numbers", "parts of earlier captures",
    }  # fmt: skip
    assert "no answer" in missing["nvidia-bug-report.log"]


def test_case_is_gathered_once(place: Path) -> None:
    node = FakeNode(b"report")
    assert opened(place, node) == opened(place, node)
    assert node.calls == 1


def test_swapped_part_is_recognised_in_the_next_capture(place: Path) -> None:
    rows = fleet(2)
    evidence(place, rows[0], AT - 9 * DAY + 60, "reboot")
    name = opened(place, FakeNode())
    assert shown("returns")["tickets"][0]["news"] == []
    rows[0].change(put("gpus/0/serial", "NEW1"))
    rows[0].change(put("gpus/0/uuid", "GPU-new"))
    # The old board, repaired elsewhere, in the other node.
    rows[1].change(put("gpus/3/serial", "16500100000"))
    rows[1].change(put("gpus/3/uuid", "GPU-000003e8-0000-0000-0000-000000000000"))
    captured(place, rows, [1])
    (state,) = shown("returns", "--dry-run")["tickets"]
    assert state["news"] == [
        f"gpu {SLOT} (serial 16500100000) was replaced by gpu {SLOT} (serial NEW1)"
    ]
    assert (state["machine_replaced"], state["written"], state["simulated"]) == (False, False, True)
    assert shown("returns")["tickets"][0]["written"] is True
    assert shown("returns")["tickets"][0]["written"] is False
    assert len(ticket_of(place, name).comments) == 1
    moved = shown("history", "16500100000")
    first = moved["sightings"][0]
    assert (first["node"], first["slot"]) == ("node1000", SLOT)
    assert moved["sightings"][-1]["node"] == "node1001"
    assert [row["id"] for row in moved["tickets"]] == [name]


@pytest.mark.parametrize(
    ("change", "news", "machine"),
    [
        (lambda found: None, ["is the same part as before"], False),
        (lambda found: found["gpus"].pop(0), ["is not seen"], False),
        (
            lambda found: (
                found["identity"]["product"].update(serial="S-new"),
                found["network"]["eth0"].update(mac="b8:ce:f6:99:99:99"),
                [one.update(guid="b8cef60399999999") for one in found["infiniband"].values()],
                [
                    gpu.update(serial=f"N{n}x", uuid=f"GPU-n{n}")
                    for n, gpu in enumerate(found["gpus"])
                ],
            ),
            ["the whole machine was replaced"],
            True,
        ),
    ],
)
def test_return_of_a_node(
    place: Path, change: Callable[[dict[str, Any]], Any], news: list[str], machine: bool
) -> None:
    rows = fleet(2)
    evidence(place, rows[0], AT - 9 * DAY + 60, "reboot")
    opened(place, FakeNode())
    rows[0].change(change)
    captured(place, rows, [1])
    (state,) = shown("returns")["tickets"]
    assert all(any(one in text for text in state["news"]) for one in news), state["news"]
    assert state["machine_replaced"] is machine


def blaming(
    number: int, *, serial: str = "16500100000", days: float = 1, slot: str = SLOT
) -> Ticket:
    part = TicketPart("gpu", slot, serial, f"GPU-{serial}")
    request = TicketRequest(
        f"n{number}", "gpu.lost", "why", f"k{number}", parts=(part,), inventory=(part,)
    )
    return Ticket(f"gn-{number}", request, AT - days * DAY, "repair")


def test_part_is_an_offender_by_its_tickets_in_any_node(place: Path) -> None:
    settings = load_site().tickets
    capture = fleet(1)[0].report(NOW)["capture"]
    parts = parts_of(capture, "node1000", AT)
    three = [blaming(number) for number in range(3)]
    (row,) = offenders(three, parts, settings, AT)
    assert row.part.slot == SLOT
    assert "has 3 tickets within 180 days (gn-0, gn-1, gn-2): a repeat offender" in row.sentence(
        settings
    )
    assert offenders(three[:2], parts, settings, AT) == []
    assert offenders([*three[:2], blaming(2, days=181)], parts, settings, AT) == []
    assert offenders([*three[:2], blaming(2, serial="other1")], parts, settings, AT) == []


def test_repeated_serial_makes_no_offender(place: Path) -> None:
    """Two GPUs of one board share its number: tickets of one blame not the other, where UUIDs tell them apart."""
    capture = fleet(1)[0].report(NOW)["capture"]
    for gpu in capture["gpus"]:
        gpu["serial"] = "16500100000"
    parts = parts_of(capture, "node1000", AT)
    three = [blaming(number) for number in range(3)]
    assert offenders(three, parts, load_site().tickets, AT) == []


def test_offender_is_not_returned_without_a_person(place: Path) -> None:
    rows = fleet(2)
    names = []
    for number, days in enumerate((9.0, 8.0, 7.0)):
        start = AT - days * DAY
        evidence(place, rows[0], start + 60, f"reboot{number}")
        names.append(opened(place, FakeNode(), case(opened_at=start)))
        if number < 2:
            assert goldnode("close", names[-1], "--reason", "reseated").exit_code == 0
    captured(place, rows, [1])
    refused = goldnode("close", names[-1], "--reason", "reseated")
    assert refused.exit_code != 0
    assert "has 3 tickets within 180 days" in refused.output
    database = StoreDatabase(str(place / "fleet.db"))
    why = NodeOffenders(load_site(), database, lambda: AT).why
    assert "a repeat offender" in why("node1000")
    assert why("node1001") == ""
    database.close()
    accepted = goldnode("close", names[-1], "--reason", "kim answers", "--accept-offender")
    assert accepted.exit_code == 0, accepted.output


def test_ticket_by_hand_is_listed_shown_and_closed(place: Path) -> None:
    dry = goldnode("open", "node1000", "--finding", "gpu.lost", "--reason", "smoke", "--dry-run")
    assert (dry.exit_code, "would write" in dry.output) == (0, True), dry.output
    assert shown("list")["tickets"] == []
    name = shown("open", "node1000", "--finding", "gpu.lost", "--reason", "smoke")["ticket"]
    again = shown("open", "node1000", "--finding", "gpu.lost", "--reason", "more smoke")["ticket"]
    assert again == name
    (row,) = shown("list")["tickets"]
    assert (row["id"], row["closed"], len(row["comments"])) == (name, None, 1)
    text = goldnode("show", name).output
    assert text.startswith(f"SIMULATED: {name}: node1000: gpu.lost: smoke")
    assert "again: more smoke" in text
    assert goldnode("close", name, "--reason", "it was the cable").exit_code == 0
    assert goldnode("list").output == "no ticket is open\n"
    assert "it was the cable" in goldnode("show", name).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "gn-0"], 'no ticket "gn-0"'),
        (["close", "gn-0", "--reason", "x"], 'no ticket "gn-0"'),
        (["open", "node9", "--finding", "f", "--reason", "x"], 'no node "node9"'),
        (["history", "nothing"], 'no capture has a node or part "nothing"'),
    ],
)
def test_wrong_name_is_an_error_with_a_remedy(place: Path, words: list[str], message: str) -> None:
    done = goldnode(*words)
    assert done.exit_code != 0
    assert message in done.output


def test_key_of_a_case_is_exact() -> None:
    assert case_key(case(opened_at=0.1 + 0.2)) == "case node1000 0.30000000000000004"
