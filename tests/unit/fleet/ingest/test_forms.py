"""Whole captures by the form of an earlier one: the rows are those of the long way, whatever the bytes are."""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import random
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmarks.ingest import lifelike
from tests.simulators.fleet import Json, capture, finding, verdict
from tests.unit.fleet.ingest.test_changes import (
    BEGIN,
    HOUR,
    content,
    lifelike_captures,
    recorded_captures,
)

from goldnode.fleet.ingest import bases, write
from goldnode.fleet.ingest.blocks import CaptureBlocks, GroupRows
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.flatten import Flattener
from goldnode.fleet.ingest.forms import CaptureForms, FormedCapture
from goldnode.fleet.ingest.inbox import put, put_document
from goldnode.fleet.ingest.node_columns import node_columns
from goldnode.fleet.ingest.precision import EXACT, STATED
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import NodeReport, ReportOrigin, load, report_of
from goldnode.fleet.ingest.rows import Group
from goldnode.fleet.ingest.tables import DIGESTS
from goldnode.node.ground.changes import ChangedValues, report_body

NOW = BEGIN + timedelta(days=30)
ORIGIN = ReportOrigin("directory")


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def indented(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def spaced(value: Any) -> bytes:
    return json.dumps(value).encode()


def fleet_captures(count: int, hours: int = 1) -> list[Json]:
    """Return captures of nodes with two GPUs each."""
    nodes, found = lifelike.nodes(count), []
    for hour in range(hours):
        for one in lifelike.captures(nodes, BEGIN + hour * HOUR):
            del one["gpus"][2:]
            one["identity"]["class"] = "h100"
            found.append(json.loads(json.dumps(one)))
    return found


class Ways:
    """One group of rows, the form of its captures, and another group that all captures take the long way to."""

    def __init__(self, documents: list[bytes], exact: bool = True) -> None:
        self.group, self.forms, self.exact = Group(exact=exact), CaptureForms(), exact
        for data in documents:
            report = self.report(data)
            self.group.add(report)
            assert self.group.last is not None
            self.forms.learn(data, load(data), self.group.last)

    @staticmethod
    def report(data: bytes) -> NodeReport:
        return report_of(load(data), data, ORIGIN, NOW)

    def quick(self, data: bytes) -> Any:
        """Return the rows by the form; None where it leaves the capture to the long way."""
        for formed in self.forms.read(data):
            report = report_of(formed.document, data, ORIGIN, NOW)
            blocks = formed.model.blocks(formed, report.milliseconds)
            if blocks is not None:
                assert self.group.last is not None
                return self.content(report, self.group.last._replace(blocks=blocks))
        return None

    def long(self, data: bytes) -> Any:
        """Return the rows by the long way, or the refusal."""
        group = Group(exact=self.exact)
        try:
            report = self.report(data)
            group.add(report)
        except RefusedReportError as problem:
            return problem.message
        assert group.last is not None
        return self.content(report, group.last)

    @staticmethod
    def content(report: NodeReport, rows: GroupRows) -> Any:
        flattener, reader, blocks = rows
        facts = [flattener.fact_list[code] for code in blocks.facts.values.tolist()]
        assert [key for key, _, _ in facts] == _keys(reader.fact_keys, blocks, "facts")
        numbers = list(
            zip(
                _keys(flattener.key_list, blocks, "numbers"),
                map(repr, blocks.numbers.values.tolist()),
                strict=True,
            )
        )
        placed = [
            sorted(
                zip(
                    values,
                    [flattener.item_list[code] for code in table.items.tolist()],
                    table.places.tolist(),
                    strict=True,
                ),
                key=repr,
            )
            for values, table in ((facts, blocks.facts), (numbers, blocks.numbers))
        ]
        sections = dict(reader.section_digests([blocks.facts]))
        who = (report.node, report.class_, report.time, report.verdict, report.digest)
        return who, node_columns(report), placed, blocks.base.packed(), sections


def _keys(names: list[str], blocks: CaptureBlocks, table: str) -> list[str]:
    rows = getattr(blocks, table)
    return [
        names[code]
        for code, count in zip(rows.keys.tolist(), rows.counts.tolist(), strict=True)
        for _ in range(count)
    ]


@pytest.fixture(scope="module", params=[compact, indented, spaced])
def ways(request: pytest.FixtureRequest) -> Ways:
    found = Ways([request.param(one) for one in fleet_captures(4)])
    found.write = request.param  # type: ignore[attr-defined]
    return found


def test_captures_of_a_form_have_the_rows_of_the_long_way(ways: Ways) -> None:
    write: Callable[[Any], bytes] = ways.write  # type: ignore[attr-defined]
    for one in fleet_captures(8, hours=3):
        data = write(one)
        found = ways.quick(data)
        assert found is not None
        assert found == ways.long(data)


def _links(capture: Json) -> list[Json]:
    links: list[Json] = capture["gpus"][0]["nvlink"]["links"]
    return links


Change = Callable[[Json], object]
# Changes of a capture, and whether its form is still that of the model. All must give the rows of the long way.
CHANGES: dict[str, tuple[Change, bool]] = {
    "a reading": (lambda one: one["gpus"][0]["power"].update(draw_w=1.5), True),
    "a whole number where a fraction was": (
        lambda one: one["gpus"][0]["power"].update(limit_w=700),
        True,
    ),
    "a limit": (lambda one: one["gpus"][0]["power"].update(limit_w=650.5), True),
    "a negative zero": (lambda one: one["gpus"][0]["power"].update(draw_w=-0.0), True),
    "a version": (lambda one: one["driver"].update(loaded="570.1"), True),
    "a text with escapes": (lambda one: one["driver"].update(loaded='5"7\\0\n\x1b[1m⟦3⟧ü'), True),
    "a text with a brace": (lambda one: one["driver"].update(loaded="5}70"), False),
    "a list": (lambda one: one["gpus"][0]["throttle"].update(active=["b", "a", 'c"]']), True),
    "an empty list": (lambda one: one["gpus"][0]["throttle"].update(active=[]), True),
    "another UUID": (lambda one: one["gpus"][0].update(uuid="GPU-other"), True),
    "the UUID of the other GPU": (
        lambda one: one["gpus"][0].update(uuid=one["gpus"][1]["uuid"]),
        False,
    ),
    "no UUID": (lambda one: one["gpus"][0].update(uuid=""), False),
    "a UUID that is null": (lambda one: one["gpus"][0].update(uuid=None), False),
    "a UUID that is a number": (lambda one: one["gpus"][0].update(uuid=7), False),
    "a UUID with an end of line": (lambda one: one["gpus"][0].update(uuid="GPU\n1"), True),
    "a long UUID": (lambda one: one["gpus"][0].update(uuid="g" * 3_000), False),
    "the address of a NIC that is its name": (
        lambda one: one["network"]["eth0"].update(address="eth0"),
        False,
    ),
    "another address of a NIC": (
        lambda one: one["network"]["eth0"].update(address="0000:77:00.0"),
        True,
    ),
    "another node": (lambda one: one["identity"].update(hostname="other", machine_id="1"), True),
    "another class": (lambda one: one["identity"].update({"class": "a100"}), True),
    "another boot": (lambda one: one["identity"].update(boot_id="b"), True),
    "another time": (lambda one: one.update(time="2026-11-19T00:00:00Z"), True),
    "no uptime": (lambda one: one.update(uptime="unknown"), False),
    "a time that is none": (lambda one: one.update(time="yesterday"), False),
    "a fault": (
        lambda one: one["gpus"][0].update(vbios={"fault": "unread", "text": "GPU is lost"}),
        False,
    ),
    "another type": (lambda one: one["gpus"][0].update(vbios=5), False),
    "a part more": (lambda one: one["gpus"].append({"uuid": "GPU-more"}), False),
    "a key less": (lambda one: one["gpus"][0].pop("vbios"), False),
    "another order of parts": (lambda one: one["gpus"].reverse(), True),
    "the number of a link": (lambda one: _links(one)[0].update(link=99), False),
    "a process": (lambda one: one["gpus"][0].update(processes=[{"pid": 1, "name": "x"}]), False),
    "a text that is too long": (lambda one: one["driver"].update(loaded="5" * 20_000), False),
    "a number that is too large": (
        lambda one: one["gpus"][0]["power"].update(draw_w=10**400),
        False,
    ),
    "real hardware": (lambda one: one.update(simulated=False), False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_capture_has_the_rows_of_the_long_way(ways: Ways, name: str) -> None:
    write: Callable[[Any], bytes] = ways.write  # type: ignore[attr-defined]
    change, same = CHANGES[name]
    [one] = fleet_captures(1)
    change(one)
    data = write(one)
    long = ways.long(data)
    try:
        found = ways.quick(data)
    except RefusedReportError as problem:
        found = problem.message
        assert not same
    if same:
        assert found is not None
    if found is not None:
        assert found == long


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with a small change of any kind."""
    place = chance.randrange(len(data))
    some = data[place : place + chance.randrange(1, 40)]
    new = chance.choice(
        [
            *(b"", b"}", b"{", b'"', b"\\", b":", b",", b"]", b"[", b" ", b"\n", b"\x00", b"\xff"),
            *(b"1e999", b"NaN", b"null", b"true", b"0", b"-", b"1.", b'"x"', b"{}", b"[]", b'[""]'),
            *(b'": 5', b'":5', b'"}', b'","', b"\\u0000", b"\\ud800", b"\\", "ü".encode(), some),
        ]
    )
    end = chance.choice([place, place + 1, place + len(some)])
    return data[:place] + new + data[end:]


def test_changed_bytes_are_refused_or_have_the_rows_of_the_long_way(ways: Ways) -> None:
    write: Callable[[Any], bytes] = ways.write  # type: ignore[attr-defined]
    chance = random.Random(7)  # noqa: S311 - bytes of a test
    [one] = fleet_captures(1)
    one["driver"]["note"] = 'x": 5, "y":7}'
    data, quick = write(one), 0
    own = Ways([write({**one, "uptime": 1.5 + hour}) for hour in range(4)])
    for _ in range(300):
        changed = changed_bytes(data, chance)
        try:
            found = own.quick(changed)
        except RefusedReportError as problem:
            found = problem.message
        if found is not None:
            quick += 1
            assert found == own.long(changed)
    assert quick > 10


def test_texts_with_braces_in_pieces_that_differ_have_the_rows_of_the_long_way(ways: Ways) -> None:
    """Pieces that differ are searched together: the ends of a text that is cut in two must not become one value."""
    write: Callable[[Any], bytes] = ways.write  # type: ignore[attr-defined]

    def one(number: int) -> bytes:
        [made] = fleet_captures(1)
        made["driver"] = {"a": f"first {number}", "note": "x} y", "z": f"last {number}"}
        made["uptime"] = 5.5 + number
        return write(made)

    own = Ways([one(0)] * 4)
    for number in (1, 2, 3):
        assert own.quick(one(number)) == own.long(one(number)) is not None
    model = next(own.forms.read(one(4))).model
    assert len(model._alone) == 1


def test_pieces_that_differ_are_searched_together_up_to_half_of_them(ways: Ways) -> None:
    write: Callable[[Any], bytes] = ways.write  # type: ignore[attr-defined]
    documents = [write(one) for one in fleet_captures(6, hours=2)]
    own = Ways(documents[:4])
    for data in documents[4:]:
        assert own.quick(data) == own.long(data) is not None
    layout = next(own.forms.read(documents[5])).model.layout
    assert 0 < len(layout.differing) <= len(layout.pieces) // 2
    known = set(layout.differing)
    layout.add_differing(range(len(layout.pieces)))
    assert layout.differing == known


def test_digests_are_those_of_earlier_builds() -> None:
    """Those of bases are stored: captures are compared with them for a week, and reports compare sections."""
    group = Group()
    for number in (1, 2):
        group.add(report_of(capture(number, BEGIN), b"", ORIGIN, NOW))
    blocks = [hashlib.sha256(row["blocks"]).hexdigest()[:16] for row in group.nodes()]
    sections = repr(group.table(DIGESTS).to_pylist())
    assert blocks == ["3159a54ed45b07dd", "c57266460289ed0b"]
    assert hashlib.sha256(sections.encode()).hexdigest()[:16] == "82989d916773f9ad"


def test_numbers_are_stored_at_the_stated_precision() -> None:
    ways = Ways([compact(one) for one in fleet_captures(4)], exact=False)
    for one in fleet_captures(4, hours=2):
        data = compact(one)
        assert ways.quick(data) == ways.long(data) is not None


def test_key_that_is_twice_in_a_capture_makes_no_form() -> None:
    """Only the last one counts, so a change of the first one changes no row."""
    documents = [
        re.sub(rb'"time":("[^"]*")', rb'"time":\1,"time":\1', compact(one), count=1)
        for one in fleet_captures(8)
    ]
    ways = Ways(documents)
    changed = documents[0].replace(b'"time":"2026', b'"time":"2025', 1)
    assert ways.quick(changed) in (None, ways.long(changed))


def test_capture_with_more_behind_it_is_refused(ways: Ways) -> None:
    write: Callable[[Any], bytes] = ways.write  # type: ignore[attr-defined]
    [one] = fleet_captures(1)
    data = write(one)
    assert ways.quick(data + b" \r\n") == ways.long(data + b" \r\n")
    for more in (b"x", b"{}", b"]", b"\x00"):
        assert ways.quick(data + more) is None


def test_capture_elsewhere_in_a_report_is_not_taken_for_its_own() -> None:
    """The key is also in another object, or twice: only the last one counts."""
    captures = fleet_captures(5)
    documents = [
        compact({"schema": "goldnode.node-report/1", "node": "n", "capture": one})
        for one in captures
    ]
    ways = Ways(documents[:4])
    assert ways.quick(documents[4]) == ways.long(documents[4])
    last = compact(captures[4])
    inner = b'{"a":{"capture":' + last + b'},"node":"n","schema":"goldnode.node-report/1"}'
    twice = documents[4][:-1] + b',"capture":' + compact(captures[3]) + b"}"
    for data in (inner, twice, documents[4] + b"x", documents[4][:-1]):
        assert ways.quick(data) is None


def report_captures(source: Path, write: Callable[[Any], bytes]) -> list[Path]:
    """Write captures of hours into two directories, some with faults, parts that come and go, and a verdict beside them."""
    hours = [*lifelike_captures(), *recorded_captures()]
    for hour, (time, captures) in enumerate(hours):
        folder = source / ("early" if hour < 3 else "late") / f"{hour:02}"
        folder.mkdir(parents=True)
        for number, one in enumerate([*captures, *others(captures)]):
            (folder / f"{number}.json").write_bytes(write(one))
            if number % 2:
                found = [finding("driver.loaded", "580", "570")]
                own = verdict("h100", time, found) | {"boot_identity": None}
                (folder / f"{number}.verdict.json").write_bytes(write(own))
    return [source / "early", source / "late"]


def others(captures: list[Json]) -> Iterator[Json]:
    """Yield nodes with the same hardware: enough of one form."""
    for number in range(8):
        one = copy.deepcopy(captures[0])
        one["identity"] |= {"hostname": f"other{number}", "class": ("h100", "h200")[number % 2]}
        for place, gpu in enumerate(one["gpus"]):
            gpu["uuid"] = f"GPU-{number}-{place}"
        yield one


def files_of(folder: Path) -> dict[str, Any]:
    """Return the rows of each file, in their order. The order of texts in its dictionaries may differ."""
    return {
        str(file.relative_to(folder)): pq.read_table(file, partitioning=None).to_pydict()
        for file in folder.rglob("*.parquet")
    }


@pytest.mark.parametrize(("write", "precision"), [(compact, EXACT), (indented, STATED)])
def test_files_have_the_same_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], bytes], precision: str
) -> None:
    used = 0

    def counted(self: CaptureForms, data: bytes) -> Iterator[FormedCapture]:
        nonlocal used
        for one in own(self, data):
            used += 1
            yield one

    own = CaptureForms.read
    monkeypatch.setattr(CaptureForms, "read", counted)
    for folder in report_captures(tmp_path / "in", write):
        for name in ("forms", "long"):
            with monkeypatch.context() as changed:
                if name == "long":
                    changed.setattr(CaptureForms, "read", lambda *_: ())
                request = IngestRequest(tmp_path / name, (folder,), NOW, precision=precision)
                result = ingest(request, NOW)
                assert result.refused == []
    assert used > 50
    found = files_of(tmp_path / "forms")
    assert found
    assert found == files_of(tmp_path / "long")


def test_reports_of_the_inbox_have_their_verdicts_and_are_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("forms", "long"):
        data = tmp_path / name
        for number, one in enumerate(fleet_captures(12)):
            node, found = one["identity"]["hostname"], [finding("driver.loaded", "1", "2")]
            own = verdict("h100", BEGIN, found[: number % 2])
            gate = {"mode": "drain", "open": True, "reasons": ["x"], "drained": None}
            body = {"class": "h100", "capture": one, "verdict": own, "source": "http"}
            if number % 3:
                put(data, node, body | {"gate": gate, "cohort": f"ring{number}"})
            else:
                document = {**body, "schema": "goldnode.node-report/1", "node": node}
                put_document(data, compact(document | {"base": f"{number:032x}"}))
        with monkeypatch.context() as changed:
            if name == "long":
                changed.setattr(CaptureForms, "read", lambda *_: ())
            result = ingest(IngestRequest(data, received=NOW), NOW)
        assert (result.stored, result.refused) == (12, [])
        assert not list((data / "inbox").iterdir())
    assert files_of(tmp_path / "forms") == files_of(tmp_path / "long")


def put_bases(data: Path, captures: list[Json]) -> dict[str, tuple[str, Json]]:
    """Put reports into the inbox as the service does. Return digest and content of each base."""
    made = {}
    for one in captures:
        gate = {"mode": "drain", "open": True, "reasons": [], "drained": None, "since": "x"}
        node = one["identity"]["hostname"]
        report = {"schema": "goldnode.node-report/1", "node": node, "class": "h100"}
        report |= {"capture": one, "verdict": verdict("h100", BEGIN, []), "gate": gate}
        body = report_body(report)
        made[node] = (bases.hold(data, node, body), json.loads(body))
        del gate["since"]
        document = {**report, "base": made[node][0], "source": "http"}
        put_document(data, compact(document))
    return made


def test_rows_of_a_base_are_made_as_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those that the first changes from it would make, but for the way that it has come."""
    rows: dict[str, list[tuple[str, Json, bytes]]] = {}
    for name in ("forms", "long"):
        data = tmp_path / name
        made = put_bases(data, fleet_captures(10))
        damaged = bases.base_file(data, *[(node, own[0]) for node, own in made.items()][-1])
        damaged.write_bytes(b"damaged")
        with monkeypatch.context() as changed:
            if name == "long":
                changed.setattr(CaptureForms, "read", lambda *_: ())
            assert ingest(IngestRequest(data, received=NOW), NOW).stored == 10
        assert len(list((data / "bases").glob("[!.]*/*.rows"))) >= (5 if name == "forms" else 0)
        assert name == "forms" or not list((data / "bases").glob("[!.]*/*.rows"))
        for node, (digest, base) in made.items():
            later = copy.deepcopy(base)
            later["capture"]["time"] = "2026-11-18T21:00:00Z"
            later["capture"]["gpus"][0]["power"]["draw_w"] = 8.5
            document = ChangedValues(base, later).document(node, digest)
            put_document(data, compact({**document, "source": "http"}))
        # One base was damaged.
        assert ingest(IngestRequest(data, received=NOW), NOW).stored == 9
        rows[name] = []
        for file in sorted((data / "bases").glob("[!.]*/*.rows")):
            head, *others = file.read_bytes()[9:].split(b"\n", 1)
            own = json.loads(head)
            del own["node"]["source"]
            rows[name].append((file.name, own, others[0]))
    assert len(rows["long"]) == 9
    assert rows["forms"] == rows["long"]
    assert content(tmp_path / "forms") == content(tmp_path / "long")


@pytest.mark.parametrize("digest", ["../../other", "f" * 31, "F" * 32])
def test_base_of_another_name_is_not_looked_for(tmp_path: Path, digest: str) -> None:
    """It is part of a path, and a damaged one is removed."""
    other = tmp_path / "data" / "bases" / "other.json.z"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    for one in fleet_captures(8):
        document = {"schema": "goldnode.node-report/1", "node": one["identity"]["hostname"]}
        put_document(tmp_path / "data", compact({**document, "capture": one, "base": digest}))
    with monkeypatched_reads() as read:
        assert ingest(IngestRequest(tmp_path / "data", received=NOW), NOW).stored == 8
    assert other.read_bytes() == b"x"
    assert read == []


@contextmanager
def monkeypatched_reads() -> Iterator[list[str]]:
    """Yield the names of the bases that are read."""
    read: list[str] = []
    own = bases.held_body

    def held_body(data: Path, node: str, digest: str) -> bytes:
        read.append(digest)
        return own(data, node, digest)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(bases, "held_body", held_body)
        yield read


def test_model_does_not_keep_the_rows_of_a_written_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of parts are of one node each: in memory with each group they were 180 MiB of an hour of 8,000 nodes."""
    monkeypatch.setattr(write, "MOST_ROWS", 1_500)
    groups = weakref.WeakSet[Flattener]()
    most: list[int] = []
    make, flush = Flattener.__init__, write.OpenPart.flush

    def made(self: Flattener, *given: Any) -> None:
        make(self, *given)
        groups.add(self)

    def flushed(self: write.OpenPart) -> None:
        flush(self)
        gc.collect()
        most.append(len(groups))

    monkeypatch.setattr(Flattener, "__init__", made)
    monkeypatch.setattr(write.OpenPart, "flush", flushed)
    source = tmp_path / "in"
    source.mkdir()
    for number, one in enumerate(fleet_captures(60)):
        (source / f"{number:03}.json").write_bytes(spaced(one))
    assert ingest(IngestRequest(tmp_path / "data", (source,)), NOW).stored == 60
    assert len(most) > 5
    assert max(most) <= 3, most
