"""Alerts of events: the body that Alertmanager's API documents, and a real Alertmanager that raises and resolves them."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import urllib3
from tests.unit.fleet.events.event_hooks import Clock, Receiver, add, delivery, event

from goldnode.core.event_kinds import KINDS
from goldnode.fleet.events import alerts
from goldnode.fleet.events.deliver import test_event as event_of_a_test

# The body of POST /api/v2/alerts: postableAlerts in api/v2/openapi.yaml of prometheus/alertmanager 0.25, as JSON Schema.
# `labels` is required; labels and annotations map names to strings; the times are of the format date-time.
_MOMENT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
POSTABLE = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["labels"],
        "additionalProperties": False,
        "properties": {
            "labels": {
                **_LABELS,
                "required": ["alertname"],
                "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
            },
            "annotations": _LABELS,
            "startsAt": _MOMENT,
            "endsAt": _MOMENT,
            "generatorURL": {"type": "string", "format": "uri"},
        },
    },
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def verdict(number: int, status: str, node: str = "n1") -> Any:
    good = status == "healthy"
    return event(
        number,
        node=node,
        subject=node,
        severity="info" if good else "warning",
        text=f"{node} is {status}",
        details={"before": "drain" if good else "healthy", "status": status, "findings": []},
    )


def test_an_alert_is_raised_and_resolved_with_the_same_labels(
    tmp_path: Path, receiver: Receiver
) -> None:
    hook = {"url": f"{receiver.url}/prefix/", "labels": {"site": "lab"}}
    found = delivery(tmp_path, pager={"alertmanager": hook, "severity": "warning"})
    add(found, verdict(1, "drain"), event(2, kind="node.granted"), verdict(3, "healthy"))
    found.deliver()
    assert [path for path, _, _ in receiver.requests] == ["/prefix/api/v2/alerts"] * 2
    (raised,), (resolved,) = receiver.events
    for body in receiver.events:
        jsonschema.validate(body, POSTABLE)
    assert (
        raised["labels"]
        == resolved["labels"]
        == {
            "alertname": "GoldnodeNodeNotHealthy",
            "node": "n1",
            "severity": "warning",
            "site": "lab",
            "source": "goldnode",
        }
    )
    assert raised["annotations"]["summary"] == "n1 is drain"
    assert raised["annotations"]["event_id"] == event(1).id
    assert (raised["startsAt"], raised["endsAt"]) == (
        "2026-11-26T10:00:00.000000Z",
        "2026-11-27T10:00:00.000000Z",
    )
    assert "startsAt" not in resolved, "Alertmanager refuses a start that is not before the end"
    assert resolved["endsAt"] == "2026-11-26T10:00:00.000000Z"


def test_a_token_is_sent_and_stays_out_of_messages(tmp_path: Path, receiver: Receiver) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    token.chmod(0o640)
    found = delivery(tmp_path, pager={"alertmanager": {"url": receiver.url, "token": "token"}})
    add(found, verdict(1, "drain"), verdict(2, "degraded"))
    receiver.statuses = [200, 401]
    state = (found.deliver() or {})["pager"]
    assert receiver.requests[0][1]["authorization"] == "Bearer abc"
    assert "answered 401" in (state.error or "")
    assert "abc" not in (state.error or "")


def test_active_alerts_are_sent_again_until_they_are_resolved(
    tmp_path: Path, receiver: Receiver
) -> None:
    clock = Clock()
    found = delivery(tmp_path, clock, pager={"alertmanager": {"url": receiver.url}})
    add(found, verdict(1, "drain", "n1"), verdict(2, "degraded", "n2"))
    found.deliver()
    receiver.requests.clear()
    found.deliver()
    assert receiver.requests == [], "not at once"
    clock.now += alerts.REPEAT + 1
    found.deliver()
    (again,) = receiver.events
    jsonschema.validate(again, POSTABLE)
    assert [one["labels"]["node"] for one in again] == ["n1", "n2"]
    assert again[0]["startsAt"] == "2026-11-26T10:00:00.000000Z"
    assert again[0]["endsAt"] == "2026-11-27T10:05:01.000000Z"
    add(found, verdict(3, "healthy", "n1"))
    clock.now += alerts.REPEAT + 1
    receiver.requests.clear()
    found.deliver()
    resolved, rest = receiver.events
    assert [one["labels"]["node"] for one in (*resolved, *rest)] == ["n1", "n2"]


def case(kind: str, subject: str = "s", **details: Any) -> Any:
    given: dict[str, Any] = {
        "kind": kind,
        "subject": subject,
        "details": details,
        "rollout": "r",
        "channel": "stable",
    }
    return event(**given).document(1)


PAIRS = [
    (case("node.verdict", status="could_not_check"), case("node.verdict", status="healthy")),
    (case("node.gate", open=False, reasons=[]), case("node.gate", open=True, reasons=[])),
    (case("node.silent", silent=True), case("node.silent", silent=False)),
    (case("node.finished", phase="failed"), case("node.finished", phase="done")),
    (case("node.finished", phase="failed"), case("node.released")),
    (case("node.overdue"), case("node.released")),
    (case("node.overdue"), case("node.finished", phase="done")),
    (case("rollout.phase", phase="rolling-back"), case("rollout.phase", phase="rolled-back")),
    (
        case("rollout.requirement", requirement="q", answer="unknown"),
        case("rollout.requirement", requirement="q", answer="pass"),
    ),
    (case("fleet.frozen", id="f1"), case("fleet.unfrozen", id="f1")),
    (case("channel.moved", action="rollback"), case("channel.moved", action="promote")),
]


@pytest.mark.parametrize(
    ("raises", "resolves"), PAIRS, ids=[f"{one.kind}-{two.kind}" for one, two in PAIRS]
)
def test_whatever_is_raised_can_be_resolved(raises: Any, resolves: Any) -> None:
    (active,) = {one.key for one in alerts.alerts(raises) if one.active}
    assert active in {one.key for one in alerts.alerts(resolves) if not one.active}
    assert not any(one.active for one in alerts.alerts(resolves))


def test_every_alert_has_a_row_in_the_table_and_a_kind() -> None:
    names = {
        json.loads(one.key)["alertname"]
        for pair in PAIRS
        for found in pair
        for one in alerts.alerts(found)
    }
    assert names | {"GoldnodeRolloutAlarm", "GoldnodeTest"} == set(alerts.NAMES)
    assert {kind for kind, _ in alerts.NAMES.values()} <= set(KINDS)
    assert alerts.alerts(case("rollout.alarm", code="stopped", subject="boot", text="t"))[0].active
    assert alerts.alerts(case("fleet.nodes")) == []


# A real Alertmanager

CONFIG = """\
route: {receiver: none, group_wait: 1s}
receivers: [{name: none}]
"""


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    found = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if found is None:
        pytest.skip("there is no Alertmanager here (Debian's package prometheus-alertmanager)")
    (tmp_path / "am.yml").write_text(CONFIG)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        found,
        f"--config.file={tmp_path}/am.yml",
        f"--storage.path={tmp_path}/am",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "am.log").open("w") as log:
        process = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{port}"], stderr=log, stdout=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            assert process.poll() is None, (tmp_path / "am.log").read_text()
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                if urllib3.request("GET", f"{url}/-/ready", retries=False, timeout=5).status == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def known(url: str) -> dict[str, Any]:
    """The alerts that Alertmanager has as active, by node."""
    found = urllib3.request("GET", f"{url}/api/v2/alerts", retries=False, timeout=10).json()
    return {one["labels"].get("node", ""): one for one in found}


def test_a_real_alertmanager_raises_and_resolves(tmp_path: Path, alertmanager: str) -> None:
    clock = Clock()
    clock.now = time.time() - 60
    found = delivery(tmp_path, clock, pager={"alertmanager": {"url": alertmanager}})
    at = {"at": clock.now}
    add(found, event(1, node="n1", **at), event(2, node="n2", **at))
    states = found.deliver() or {}
    assert states["pager"].error is None
    active = known(alertmanager)
    assert active.keys() == {"n1", "n2"}
    assert active["n1"]["labels"]["alertname"] == "GoldnodeNodeNotHealthy"
    assert active["n1"]["annotations"]["event_id"] == event(1).id
    clock.now += 30
    healthy = {"before": "degraded", "status": "healthy", "findings": []}
    add(found, event(3, node="n1", at=clock.now, severity="info", details=healthy))
    states = found.deliver() or {}
    assert states["pager"].error is None
    assert known(alertmanager).keys() == {"n2"}
    clock.now += alerts.REPEAT
    assert (found.deliver() or {})["pager"].error is None, "what is sent again is taken too"
    assert known(alertmanager).keys() == {"n2"}
    test = event_of_a_test("pager", time.time()).document(0)
    from goldnode.fleet.events import hooks

    hooks.send(found.site.events.hooks["pager"], test, found.site.resolve)
    assert known(alertmanager).keys() == {"n2"}, "a test is resolved already"
