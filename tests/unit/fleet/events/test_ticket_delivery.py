"""Tickets reach trackers once: Jira (both versions), ServiceNow, GitHub and e-mail, over kills and lost answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.events.event_hooks import NOW, Clock, add, delivery, event
from tests.unit.fleet.events.tracker_servers import (
    PASSWORD,
    USER,
    GitHub,
    Jira,
    Jira2,
    ServiceNow,
    TrackerServer,
)

from goldnode.core.site import SiteHookTicket
from goldnode.fleet.events import trackers
from goldnode.fleet.events.deliver import EventDelivery
from goldnode.fleet.events.event import FleetEvent
from goldnode.fleet.events.hooks import EventHookError
from goldnode.fleet.events.ticket_delivery import SETTLE
from goldnode.fleet.events.trackers import RemoteTicket, TicketText, document

PART = {
    "kind": "gpu",
    "slot": "0000:18:00.0",
    "serial": "165001",
    "identity": "GPU-1",
    "model": "NVIDIA H100",
    "part_number": "692-2G520",
    "firmware": "96.00",
}
SYSTEMS: list[tuple[str, type[TrackerServer], str]] = [
    ("jira2", Jira2, "OPS"),
    ("jira3", Jira, "OPS"),
    ("servicenow", ServiceNow, "incident"),
    ("github", GitHub, "ops/repairs"),
]


def opened(number: int = 1, ticket: str = "gn-aaaaaaaaaaaa", **more: Any) -> FleetEvent:
    request = {
        "finding": "gpu.lost",
        "why": "gpu.lost after power-cycle @oncall {noformat} ```",
        "parts": [PART],
        "text": "Rungs:\n- reboot: booted\n\n- power-cycle: done",
        "bundle": "gn-1.tar.gz",
        "bundle_sha256": "ab" * 32,
    }
    given = {"ticket": ticket, "node": "n1", "class": "h100", "request": request}
    return event(number, kind="ticket.opened", details=given, node="n1", simulated=True, **more)


def commented(number: int = 2, ticket: str = "gn-aaaaaaaaaaaa") -> FleetEvent:
    given = {"ticket": ticket, "node": "n1", "text": "replaced", "key": "k"}
    text = f"ticket {ticket} of n1: the board was replaced"
    return event(number, kind="ticket.commented", details=given, node="n1", text=text)


@pytest.fixture(params=SYSTEMS, ids=[name for name, *_ in SYSTEMS])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, TrackerServer, str]]:
    system, kind, target = request.param
    server = kind()
    yield system, server, target
    server.close()


@pytest.fixture
def jira() -> Iterator[tuple[str, TrackerServer, str]]:
    """One tracker, for what all have in common."""
    server = Jira()
    yield "jira3", server, "OPS"
    server.close()


def hook(directory: Path, system: str, url: str, target: str, **more: Any) -> dict[str, Any]:
    file = directory / "tracker.txt"
    file.write_text(f"{USER}\n{PASSWORD}\n")
    file.chmod(0o600)
    own = {"system": system, "url": url, "target": target, "credentials": str(file), **more}
    return {"ticket": own}


def of(directory: Path, served: tuple[str, TrackerServer, str], clock: Clock) -> EventDelivery:
    system, server, target = served
    return delivery(directory, clock, repairs=hook(directory, system, server.url, target))


def waiting(made: EventDelivery) -> str | None:
    states = made.deliver()
    assert states is not None
    return states["repairs"].error


def bodies(server: TrackerServer) -> str:
    return json.dumps([server.records, server.comments])


def test_ticket_is_one_record_and_its_news_are_comments(
    tmp_path: Path, served: tuple[str, TrackerServer, str]
) -> None:
    clock = Clock()
    made, server = of(tmp_path, served, clock), served[1]
    add(made, opened(), event(9), commented(), commented(3, "gn-before"))
    assert waiting(made) is None
    assert len(server.records) == 1
    assert [len(rows) for rows in server.comments.values()] == [1]
    assert "the board was replaced" in bodies(server)
    # Nothing is sent again.
    before = len(server.requests)
    assert waiting(made) is None
    assert len(server.requests) == before
    (record,) = made.outbox.trackers("gn-aaaaaaaaaaaa")
    assert record.remote
    assert str(record.url).startswith("http")


def test_text_has_label_parts_rungs_and_bundle(
    tmp_path: Path, served: tuple[str, TrackerServer, str]
) -> None:
    made, server = of(tmp_path, served, Clock()), served[1]
    add(made, opened())
    assert waiting(made) is None
    text = bodies(server)
    for piece in ("SIMULATED: n1: gpu.lost (serial 165001)", "GPU-1", "692-2G520", "ab" * 32):
        assert piece in text
    assert "power-cycle: done" in text
    assert "gn-aaaaaaaaaaaa" in text
    assert PASSWORD not in text


def test_lost_answer_makes_no_second_record(
    tmp_path: Path, served: tuple[str, TrackerServer, str]
) -> None:
    """The record exists, and its id is not known: the tracker is searched after its index has settled."""
    clock = Clock()
    made, server = of(tmp_path, served, clock), served[1]
    add(made, opened())
    server.lose = ["POST"]
    assert "does not answer" in str(waiting(made))
    clock.now += 2
    assert "it is searched in 58 s" in str(waiting(made))
    clock.now += SETTLE
    assert waiting(made) is None
    assert len(server.records) == 1
    (record,) = made.outbox.trackers("gn-aaaaaaaaaaaa")
    assert record.remote


def test_request_that_had_no_effect_is_sent_after_the_search(
    tmp_path: Path, jira: tuple[str, TrackerServer, str]
) -> None:
    clock = Clock()
    made, server = of(tmp_path, jira, clock), jira[1]
    add(made, opened())
    right, server.url = jira[1].route, server.url
    server.route = lambda *_: (503, {"error": "later"})  # type: ignore[method-assign]
    assert "503" in str(waiting(made))
    server.route = right  # type: ignore[method-assign]
    clock.now += SETTLE + 1
    assert waiting(made) is None
    assert len(server.records) == 1


def test_lost_answer_makes_no_second_comment(
    tmp_path: Path, served: tuple[str, TrackerServer, str]
) -> None:
    clock = Clock()
    made, server = of(tmp_path, served, clock), served[1]
    add(made, opened())
    assert waiting(made) is None
    add(made, commented())
    server.lose = ["POST", "PATCH"]
    assert "does not answer" in str(waiting(made))
    server.lose = []
    clock.now += SETTLE + 1
    assert waiting(made) is None
    assert [len(rows) for rows in server.comments.values()] == [1]


def test_kill_at_each_step_makes_no_second_record(
    tmp_path: Path, jira: tuple[str, TrackerServer, str]
) -> None:
    """The delivery dies at any of its writes and calls; the next one continues."""
    for step in range(8):
        directory = tmp_path / str(step)
        directory.mkdir()
        clock = Clock()
        made, server = of(directory, jira, clock), jira[1]
        server.records.clear()
        server.comments.clear()
        add(made, opened(), commented())
        count = 0

        def point(step: int = step) -> None:
            nonlocal count
            count += 1
            if count == step:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patched:
            for owner, name in (
                (type(made.outbox), "put_tracker"),
                (type(made.outbox), "begin_comment"),
            ):
                patched.setattr(owner, name, _dying(getattr(owner, name), point))
            kind = type(trackers.tracker(made.site.events.hooks["repairs"].ticket, Path))  # type: ignore[arg-type]
            for name in ("create", "comment"):
                patched.setattr(kind, name, _dying(getattr(kind, name), point))
            with contextlib.suppress(KeyboardInterrupt):
                waiting(made)
        clock.now += SETTLE + 301
        assert waiting(made) is None
        assert len(server.records) == 1, step
        assert [len(rows) for rows in server.comments.values()] == [1], step


def _dying(call: Callable[..., Any], point: Callable[[], None]) -> Callable[..., Any]:
    def dying(*given: Any) -> Any:
        point()
        result = call(*given)
        point()
        return result

    return dying


def test_probe_changes_nothing_and_wrong_login_is_an_error_without_it(
    tmp_path: Path, served: tuple[str, TrackerServer, str]
) -> None:
    system, server, target = served
    made = SiteHookTicket(**hook(tmp_path, system, server.url, target)["ticket"])
    trackers.tracker(made, Path).probe()
    server.bearer = True
    with pytest.raises(EventHookError, match="answered 401") as raised:
        trackers.tracker(made, Path).probe()
    assert PASSWORD not in f"{raised.value!r} {raised.value}"
    (tmp_path / "tracker.txt").write_text(f"{PASSWORD}\n")
    trackers.tracker(made, Path).probe()
    assert not server.records


def test_table_without_the_column_is_an_error_and_no_wrong_record(tmp_path: Path) -> None:
    server = ServiceNow()
    server.without_column = True
    made = SiteHookTicket(**hook(tmp_path, "servicenow", server.url, "task2")["ticket"])
    with pytest.raises(EventHookError, match="rows of task2 have no correlation_id"):
        trackers.tracker(made, Path).find("gn-1")
    server.close()


def test_secret_is_in_neither_outbox_nor_log(
    tmp_path: Path, jira: tuple[str, TrackerServer, str], caplog: pytest.LogCaptureFixture
) -> None:
    made = of(tmp_path, jira, Clock())
    jira[1].bearer = True
    add(made, opened())
    assert "401" in str(waiting(made))
    assert PASSWORD.encode() not in (tmp_path / "events.db").read_bytes()
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("one", [["one"]]),
        ("one\ntwo\n\nthree", [["one", "hardBreak", "two"], ["three"]]),
        ("one\n \n\n\n", [["one", "hardBreak", " "]]),
    ],
)
def test_document_has_paragraphs_and_no_empty_text(text: str, blocks: list[list[str]]) -> None:
    made = document(text)
    assert (made["type"], made["version"]) == ("doc", 1)
    shown = [
        [node.get("text", node["type"]) for node in block["content"]] for block in made["content"]
    ]
    assert shown == blocks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"system": "mail"}, "mail needs an address smtp://"),
        ({"system": "mail", "url": "smtp://mail"}, "mail needs `sender`"),
        ({"url": "smtp://mail"}, "the others https://"),
        ({"credentials": None}, "jira3 needs `credentials`"),
        ({"command": ["pass"]}, "either `credentials` or `command`"),
        ({"system": "github"}, "OWNER/REPOSITORY"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any], message: str) -> None:
    given = {"system": "jira3", "url": "https://j", "target": "OPS", "credentials": "f"}
    with pytest.raises(ValueError, match=message):
        SiteHookTicket(**{**given, **change})


# E-mail


class Mailbox:
    """Handler of aiosmtpd that stores messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.refused: list[str] = []

    def handle_message(self, message: Message) -> None:
        self.messages.append(message)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        from email import message_from_bytes, policy

        if self.refused:
            return self.refused.pop()
        self.messages.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 stored"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, str]]:
    controllers = pytest.importorskip("aiosmtpd.controller", reason="needs aiosmtpd (extra dev)")
    box = Mailbox()
    server = controllers.Controller(box, hostname="127.0.0.1", port=0)
    # It connects to the port that it was given, to see whether it serves: 0 is none.
    server.port = _free()
    server.start()
    yield box, f"smtp://127.0.0.1:{server.port}"
    server.stop()


def _free() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def mail(url: str, **more: Any) -> dict[str, Any]:
    own = {"system": "mail", "url": url, "target": "a@x.org, b@x.org", "sender": "gn@x.org"}
    return {"ticket": {**own, **more}}


def test_mail_is_sent_and_its_news_answer_it(tmp_path: Path, mailbox: tuple[Mailbox, str]) -> None:
    box, url = mailbox
    made = delivery(tmp_path, Clock(), repairs=mail(url))
    add(made, opened(), commented())
    assert waiting(made) is None
    first, second = box.messages
    assert first["Message-ID"] == "<gn-aaaaaaaaaaaa.goldnode@x.org>"
    assert first["To"] == "a@x.org, b@x.org"
    assert first["Subject"] == "SIMULATED: n1: gpu.lost (serial 165001)"
    assert first["Auto-Submitted"] == "auto-generated"
    assert second["In-Reply-To"] == first["Message-ID"]
    assert "the board was replaced" in str(second.get_payload())


def test_mail_that_was_refused_is_sent_again_with_its_id(
    tmp_path: Path, mailbox: tuple[Mailbox, str]
) -> None:
    box, url = mailbox
    clock = Clock()
    made = delivery(tmp_path, clock, repairs=mail(url))
    add(made, opened())
    box.refused = ["451 greylisted"]
    assert "451" in str(waiting(made))
    clock.now += SETTLE + 1
    assert waiting(made) is None
    assert [one["Message-ID"] for one in box.messages] == ["<gn-aaaaaaaaaaaa.goldnode@x.org>"]


def test_password_is_not_sent_without_encryption(
    tmp_path: Path, mailbox: tuple[Mailbox, str]
) -> None:
    file = tmp_path / "mail.txt"
    file.write_text(f"{USER}\n{PASSWORD}\n")
    file.chmod(0o600)
    settings = mail(mailbox[1], credentials=str(file))["ticket"]
    made = trackers.tracker(SiteHookTicket(**settings), Path)
    with pytest.raises(EventHookError, match="offers no STARTTLS"):
        made.probe()
    assert not mailbox[0].messages


def test_subject_has_no_header_of_a_node(tmp_path: Path, mailbox: tuple[Mailbox, str]) -> None:
    settings = SiteHookTicket(**mail(mailbox[1])["ticket"])
    text = TicketText("gn-1", "n1\r\nBcc: all@x.org", "text")
    assert trackers.tracker(settings, Path).create(text) == RemoteTicket(
        "gn-1", "mailto:a@x.org, b@x.org"
    )
    (message,) = mailbox[0].messages
    assert message["Bcc"] is None
    assert "Bcc" in message["Subject"]


def test_mail_server_that_is_away_is_an_error(tmp_path: Path) -> None:
    made = trackers.tracker(SiteHookTicket(**mail("smtp://127.0.0.1:9")["ticket"]), Path)
    with pytest.raises(EventHookError, match="does not take the mail"):
        made.probe()


def test_outbox_of_version_1_gets_the_tables_of_tickets(tmp_path: Path) -> None:
    import sqlite3

    made = delivery(tmp_path, Clock())
    with sqlite3.connect(tmp_path / "events.db") as raw:
        raw.execute("DROP TABLE ticket")
        raw.execute("DROP TABLE ticket_comment")
        raw.execute("PRAGMA user_version = 1")
    assert made.outbox.trackers("gn-1") == []
    assert made.outbox.begin_comment("repairs", "e1", NOW) is None
    assert made.outbox.begin_comment("repairs", "e1", NOW + 1) == NOW
