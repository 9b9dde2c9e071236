"""Reports as changes from a base: what is stored is what whole reports would give, whatever the network and the machines do."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from benchmarks.ingest import lifelike
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.simulators.fleet import Json, finding, verdict
from tests.unit.fleet.ingest.test_changes import COLUMNS, content

from goldnode.fleet.ingest import bases, quick
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.precision import EXACT, STATED
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import ReportOrigin, report_of
from goldnode.fleet.ingest.rows import Bases
from goldnode.fleet.ingest.tables import FACTS, NODES, NUMBERS, VIEWS
from goldnode.fleet.ingest.wire import applied, changes_of
from goldnode.fleet.ingest.write import writer
from goldnode.fleet.service.bodies import RefusedRequestError
from goldnode.fleet.service.captures import CaptureReceiver, CaptureSettings, SentBody
from goldnode.node.ground.changes import (
    BASE_HEADER,
    ChangedValues,
    base_digest,
    report_body,
)
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.program import sending

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 11, 18, 20, tzinfo=UTC)
CLASS = "h100"


def report(capture: Json, time: datetime, *findings: Json) -> Json:
    """Return a report as a node makes it: of JSON, with two GPUs."""
    capture["identity"]["class"] = CLASS
    del capture["gpus"][2:]
    own = verdict(CLASS, time, list(findings))
    content = {
        "schema": "goldnode.node-report/1",
        "node": capture["identity"]["hostname"],
        "class": CLASS,
        "engine": "sha256:1",
        "capture": capture,
        "verdict": own,
    }
    found: Json = json.loads(json.dumps(content))
    return found


def reports(hours: int, count: int = 2) -> list[list[Json]]:
    """Return the reports of each hour: mostly readings that differ, and now and then a fault, a part, a text or a finding."""
    nodes, chance = lifelike.nodes(count), random.Random(5)  # noqa: S311 - values of a test
    found = []
    for hour in range(hours):
        time, own = BEGIN + hour * HOUR, []
        for one in lifelike.captures(nodes, time):
            findings = []
            turn = chance.randrange(12) if hour else 99
            if turn == 0:
                one["gpus"][0]["vbios"] = {"fault": "unread", "text": "GPU is lost"}
            elif turn == 1:
                one["storage"]["mounts"]["/scratch"] = copy.deepcopy(one["storage"]["mounts"]["/"])
            elif turn == 2:
                one["driver"]["loaded"] = "570.1"
                findings.append(finding("driver.loaded", "580", "570"))
            elif turn == 3:
                del one["pressure"]
            elif turn == 4:
                one["gpus"][1]["power"]["draw_w"] = None
            own.append(report(one, time, *findings))
        found.append(own)
    return found


def rows(data: Path) -> dict[str, list[Any]]:
    """Return all rows, but for the time at which a capture arrived."""
    found = content(data)
    place = COLUMNS[NODES].index("received") + 2
    found[NODES] = [(*row[:place], *row[place + 1 :]) for row in found[NODES]]
    return found


def whole(data: Path, bodies: list[bytes], precision: str = EXACT) -> dict[str, list[Any]]:
    """Return the rows of reports that are stored whole."""
    with patch.object(Bases, "fitting", lambda *_: None), writer(data, BEGIN, precision) as parts:
        for body in sorted(bodies):
            one = report_of(json.loads(body), body, ReportOrigin("http"), BEGIN + 1000 * HOUR)
            parts.add(one)
    return rows(data)


# -- the document


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.sampled_from("abc"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES, VALUES, VALUES)
@settings(max_examples=150)
def test_changes_applied_to_the_base_are_the_report(old: Any, new: Any, more: Any) -> None:
    base = {"schema": "goldnode.node-report/1", "node": "n1", "capture": {"a": old, "b": more}}
    report_ = {**base, "capture": {"a": new, "b": more, "c": old}, "verdict": {"x": new}}
    body = report_body(base)
    sent = json.dumps(ChangedValues(base, report_).document("n1", base_digest(body)))
    found = applied(json.loads(body), changes_of(json.loads(sent)))
    assert report_body(found) == report_body(report_)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base", "../../../etc/passwd" + "0" * 13),
        ("base", None),
        ("at", [1]),
        ("at", [-1, 2]),
        ("at", [1, 0]),
        ("at", [True, 1]),
        ("at", [1, 10**9]),
        ("to", {}),
        ("trees", [["capture"]]),
        ("trees", [[[], 1]]),
        ("node", "../n1"),
    ],
)
def test_document_of_another_form_is_refused(name: str, value: Any) -> None:
    right = {"node": "n1", "base": "0" * 32, "at": [1, 2], "to": [1, 2], "trees": []}
    changes_of(right)
    with pytest.raises(RefusedReportError):
        changes_of({**right, name: value})


@pytest.mark.parametrize(
    "trees",
    [
        [[["capture", "x", "y"], 1]],
        [[["capture", "z"]]],
        [[["capture", "l", 5], 1]],
        [[["capture", "l", 0]]],
    ],
)
def test_changes_that_do_not_fit_are_refused(trees: list[Any]) -> None:
    content = {"node": "n1", "base": "0" * 32, "at": [], "to": [], "trees": trees}
    with pytest.raises(RefusedReportError, match="do not fit"):
        applied({"capture": {"l": [{}]}}, changes_of(content))
    many = {**content, "trees": [], "at": [9], "to": [1]}
    with pytest.raises(RefusedReportError, match="do not fit"):
        applied({"capture": {"l": [{}]}}, changes_of(many))


# -- the network and the machines


class Network:
    """A service, and nodes that send to it. What it does with a request is drawn by `chance`."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.data, self.folder, self.chance = folder / "data", folder, chance
        self.now = BEGIN.timestamp()
        self.receiver = self.started()
        self.accepted: dict[tuple[str, str], bytes] = {}  # node and time -> whole report
        self.sent: list[tuple[bytes, dict[str, str], str]] = []
        self.meaning: dict[bytes, Json] = {}  # of each body: the whole report
        self.bodies: dict[str, int] = {}  # kind -> how many were accepted

    def started(self) -> CaptureReceiver:
        return CaptureReceiver(
            CaptureSettings(self.data, certificates=True, clock=lambda: self.now)
        )

    def deliver(self, body: bytes, headers: dict[str, str], node: str) -> tuple[int, Json]:
        """Give one request to the service, as from this node."""
        self.now += 11
        sent = SentBody(
            body,
            headers.get("Content-Encoding", ""),
            base=headers.get(BASE_HEADER) == "hold",
            peer=frozenset({node}),
        )
        try:
            answer = self.receiver._accept(sent)
        except RefusedRequestError as problem:
            return problem.status, {"kind": problem.kind, "value": problem.value}
        report_ = self.meaning[body]
        self.accepted.setdefault((node, report_["capture"]["time"]), report_body(report_))
        kind = "changes" if sent.encoding else "whole"
        self.bodies[kind] = self.bodies.get(kind, 0) + 1
        return 202, answer

    def post(self, report_: Json, body: bytes, headers: dict[str, str]) -> sending.SentAnswer:
        """Carry a request of a node: it, or its answer, may be lost, come twice, or again much later."""
        node, fate = report_["node"], self.chance.randrange(8)
        self.sent.append((body, headers, node))
        self.meaning[body] = report_
        if fate == 0:
            raise NodeError("is away")
        status, answer = self.deliver(body, headers, node)
        if fate == 1:
            raise NodeError("is away")
        if fate == 2:
            self.deliver(body, headers, node)
        if fate == 3:
            again, headers, other = self.chance.choice(self.sent)
            self.deliver(again, headers, other)
        if fate == 4 and len(self.sent) > 1:  # another node sends it
            forged, headers, other = self.chance.choice(self.sent)
            if other != "node0001":
                assert self.deliver(forged, headers, "node0001")[0] == 403
        return sending.SentAnswer(status, answer)

    def happen(self) -> None:
        """Let something happen between two reports."""
        event = self.chance.randrange(7)
        if event == 0:
            self.receiver = self.started()
        elif event == 1:
            self.take()
            shutil.rmtree(self.data / bases.BASES, ignore_errors=True)
        elif event == 2:
            self.take()  # changes that wait need their base: it is on disk before the answer
            for file in (self.data / bases.BASES).rglob("*.*"):
                if file.is_file() and self.chance.random() < 0.5:
                    file.write_bytes(file.read_bytes()[:-3])
        elif event == 3:
            self.killed(self.chance.randrange(20))
        else:
            self.take()

    def take(self) -> None:
        result = ingest(IngestRequest(self.data), datetime.fromtimestamp(self.now, UTC))
        assert not result.refused, result.refused

    def killed(self, steps: int) -> None:
        """End an ingest before one of its renames or removals, as SIGKILL does."""
        if not (pid := os.fork()):
            left = [steps]

            def counted(do: Any) -> Any:
                def wrapped(*words: Any, **named: Any) -> Any:
                    left[0] -= 1
                    return os._exit(9) if left[0] < 0 else do(*words, **named)

                return wrapped

            for name in ("replace", "unlink"):
                setattr(os, name, counted(getattr(os, name)))  # those of Path call these
            self.take()
            os._exit(0)
        os.waitpid(pid, 0)

    def send(self, report_: Json) -> str | None:
        """Let a node send its report. Return how it was sent; None if the node had no answer."""
        host = Host(str(self.folder / report_["node"]))
        Path(host.root).mkdir(exist_ok=True)
        options = SimpleNamespace(to="http://service", ca=None, certificate=None, key=None)

        def post(_: Any, __: str, body: bytes, headers: dict[str, str]) -> sending.SentAnswer:
            return self.post(report_, body, headers)

        with patch.object(sending, "_post", post):
            try:
                return str(sending.send(host, copy.deepcopy(report_), options)["sent"])
            except NodeError:
                return None


@contextmanager
def network(seed: int) -> Iterator[Network]:
    with tempfile.TemporaryDirectory() as folder:
        yield Network(Path(folder), random.Random(seed))  # noqa: S311 - drawn by the test


HOURS = reports(8)


@given(st.integers(0, 2**32))
@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
def test_each_accepted_report_is_stored_once_and_as_it_was(seed: int) -> None:
    with network(seed) as net:
        for hour in HOURS:
            net.now = max(net.now, datetime.fromisoformat(hour[0]["capture"]["time"]).timestamp())
            for one in hour:
                net.send(one)
            net.happen()
        net.take()
        if not net.accepted:
            return
        expected = whole(net.folder / "whole", list(net.accepted.values()))
        found = rows(net.data)
        for table in VIEWS:
            assert found[table] == expected[table], table


class Quiet(random.Random):
    """A network that carries everything."""

    def randrange(self, *_: Any) -> int:
        return 7


@pytest.mark.parametrize("precision", [EXACT, STATED])
def test_short_way_stores_what_the_long_way_does(tmp_path: Path, precision: str) -> None:
    net = Network(tmp_path, Quiet())
    ways: dict[str, int] = {"ingest.arrivals": 0, "service.captures": 0}
    known = quick.quick

    def counted(module: str) -> Any:
        def wrapped(*words: Any, **named: Any) -> Any:
            found = known(*words, **named)
            ways[module] += found is not None
            return found

        return patch(f"goldnode.fleet.{module}.quick", wrapped)

    with counted("ingest.arrivals"), counted("service.captures"):
        for hour in HOURS:
            net.now = datetime.fromisoformat(hour[0]["capture"]["time"]).timestamp()
            assert all(map(net.send, hour))
            request = IngestRequest(net.data, precision=precision)
            assert not ingest(request, datetime.fromtimestamp(net.now, UTC)).refused
    assert net.bodies["changes"] == 2 * len(HOURS) - net.bodies["whole"]
    assert min(ways.values()) >= 6, f"readings alone take the short way: {ways}"
    expected = whole(tmp_path / "whole", list(net.accepted.values()), precision)
    found = rows(net.data)
    for table in VIEWS:
        assert found[table] == expected[table], table
    assert found[FACTS]
    assert found[NUMBERS]


def test_changes_of_an_hour_take_less_than_a_kilobyte(tmp_path: Path) -> None:
    nodes = lifelike.nodes(8)
    first, *hours = [list(lifelike.captures(nodes, BEGIN + hour * HOUR)) for hour in range(4)]
    sizes = []
    for captures in hours:
        for old, new in zip(first, captures, strict=True):
            pair = [
                json.loads(
                    json.dumps(
                        {
                            "schema": "goldnode.node-report/1",
                            "node": "n1",
                            "capture": one,
                            "verdict": verdict(CLASS, BEGIN, []),
                        }
                    )
                )
                for one in (old, new)
            ]
            sent = json.dumps(ChangedValues(*pair).document("n1", "0" * 32), separators=(",", ":"))
            sizes.append(len(zlib.compress(sent.encode(), 9)))
    assert sorted(sizes)[len(sizes) // 2] < 1000


def test_node_sends_whole_reports_to_a_service_that_knows_no_changes(tmp_path: Path) -> None:
    """A service of an earlier goldnode names no base; one that was replaced by it refuses changes."""
    net = Network(tmp_path, Quiet())
    first, second, third = [hour[0] for hour in reports(3, 1)]
    net.now += 9000
    assert net.send(first) == "whole"
    known = net.receiver._accept

    def earlier(sent: SentBody) -> Any:
        if sent.encoding:
            raise RefusedRequestError(422, "refused_report", "not JSON")
        return {"node": known(SentBody(sent.body, "", base=False, peer=sent.peer))["node"]}

    with patch.object(net.receiver, "_accept", earlier):
        assert [net.send(second), net.send(third)] == ["whole", "whole"]
    assert len(net.sent) == 4, "changes were tried once"


def test_a_node_waits_where_a_whole_report_is_no_remedy(tmp_path: Path) -> None:
    net = Network(tmp_path, Quiet())
    first, second = [hour[0] for hour in reports(2, 1)]
    net.now += 9000
    assert net.send(first) == "whole"
    refusal = RefusedRequestError(503, "busy", "too many reports wait")
    with patch.object(net.receiver, "_accept", side_effect=refusal):
        assert net.send(second) is None
    assert len(net.sent) == 2
    assert net.send(second) == "changes"
