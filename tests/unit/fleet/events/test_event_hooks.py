"""Hooks: real HTTP servers and programs receive events; signatures are verified by openssl."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fleet.events.event_hooks import (
    KEY,
    NOW,
    Clock,
    Receiver,
    add,
    delivery,
    event,
    secret,
    webhook,
)

from goldnode.commands.schema.kinds import schema
from goldnode.fleet.events import hooks
from goldnode.fleet.events.hooks import EventHookError
from goldnode.fleet.events.outbox import LONGEST_PAUSE


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def by_openssl(key: bytes, content: bytes) -> str:
    """The HMAC-SHA256 as another program computes it."""
    words = [
        "openssl",
        "dgst",
        "-sha256",
        "-mac",
        "HMAC",
        "-macopt",
        f"hexkey:{key.hex()}",
        "-binary",
    ]
    done = subprocess.run(words, input=content, capture_output=True, check=True)
    return base64.b64encode(done.stdout).decode()


def test_a_webhook_gets_a_signed_event(tmp_path: Path, receiver: Receiver) -> None:
    found = delivery(tmp_path, chat=webhook(tmp_path, f"{receiver.url}/events?team=a"))
    add(found, event())
    states = found.deliver()
    ((path, headers, body),) = receiver.requests
    assert path == "/events?team=a"
    document = json.loads(body)
    jsonschema.validate(document, schema("event"))
    assert (document["id"], document["node"]) == (event().id, "n1")
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == document["id"]
    assert headers["webhook-timestamp"] == str(int(NOW))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    assert headers["webhook-signature"] == f"v1,{by_openssl(KEY, signed)}"
    assert states is not None
    assert (states["chat"].seq, states["chat"].failures) == (1, 0)


def test_the_published_vector_of_standard_webhooks() -> None:
    """The vector of the reference implementations (standard-webhooks/standard-webhooks, `sign function works`)."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = hooks.signature(
        [key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(min_size=24, max_size=64), st.binary(max_size=40), st.binary(max_size=40))
def test_another_key_or_another_body_has_another_signature(
    key: bytes, one: bytes, other: bytes
) -> None:
    first = hooks.signature([key], "id", 1, one)
    assert (first == hooks.signature([key], "id", 1, other)) is (one == other)
    assert first != hooks.signature([key], "id", 2, one)
    assert first != hooks.signature([key[:-1] + bytes([key[-1] ^ 1])], "id", 1, one)


def test_two_secrets_have_two_signatures(tmp_path: Path, receiver: Receiver) -> None:
    found = delivery(tmp_path, chat=webhook(tmp_path, receiver.url))
    other = bytes(24)
    secret(
        tmp_path,
        f"whsec_{base64.b64encode(KEY).decode()}\nwhsec_{base64.b64encode(other).decode()}",
    )
    add(found, event())
    found.deliver()
    _, headers, body = receiver.requests[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    assert (
        headers["webhook-signature"]
        == f"v1,{by_openssl(KEY, signed)} v1,{by_openssl(other, signed)}"
    )


SECRETS = [
    ("no prefix", "abc", 0o600, "this is no secret", 1),
    ("too short", "whsec_" + base64.b64encode(b"x" * 23).decode(), 0o600, "this is no secret", 1),
    ("too long", "whsec_" + base64.b64encode(b"x" * 65).decode(), 0o600, "this is no secret", 1),
    ("no base64", "whsec_!!!!", 0o600, "this is no secret", 1),
    (
        "the second one",
        "whsec_" + base64.b64encode(KEY).decode() + "\nwrong",
        0o600,
        "this is no secret",
        2,
    ),
    ("empty", "", 0o600, "the file has no secret", None),
    (
        "readable for any user",
        "whsec_" + base64.b64encode(KEY).decode(),
        0o604,
        "any user can read",
        None,
    ),
]


@pytest.mark.parametrize(
    ("what", "text", "mode", "message", "line"), SECRETS, ids=[row[0] for row in SECRETS]
)
def test_a_secret_that_cannot_be_used_is_an_error_with_its_line(
    tmp_path: Path, what: str, text: str, mode: int, message: str, line: int | None
) -> None:
    file = secret(tmp_path, text, mode)
    with pytest.raises(EventHookError) as caught:
        hooks.secrets(file)
    assert message in caught.value.message
    assert (caught.value.file, caught.value.line) == (str(file), line)
    assert caught.value.remedy
    assert "whsec_AAEC" not in str(caught.value), "the secret is in no message"


def test_a_missing_secret_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(EventHookError, match="cannot be read") as caught:
        hooks.secrets(tmp_path / "no")
    assert "openssl rand" in (caught.value.remedy or "")


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 429, 500, 503])
def test_an_answer_that_is_not_2xx_is_a_failure_and_is_tried_again(
    tmp_path: Path, receiver: Receiver, status: int
) -> None:
    clock = Clock()
    found = delivery(tmp_path, clock, chat=webhook(tmp_path, f"{receiver.url}/x?token=hidden"))
    add(found, event(1), event(2))
    receiver.statuses = [status]
    states = found.deliver() or {}
    assert (states["chat"].seq, states["chat"].failures) == (0, 1)
    assert f"answered {status}" in (states["chat"].error or "")
    assert "hidden" not in (states["chat"].error or "")
    assert [path for path, _, _ in receiver.requests] == ["/x?token=hidden"], (
        "a redirect is not followed"
    )
    found.deliver()
    assert len(receiver.requests) == 1, "not before the pause is over"
    clock.now += 1.1
    states = found.deliver() or {}
    assert [one["node"] for one in receiver.events] == ["n1", "n1", "n2"], "in order"
    assert (states["chat"].failures, states["chat"].error) == (0, None)


def test_pauses_double_up_to_five_minutes(tmp_path: Path) -> None:
    clock = Clock()
    found = delivery(tmp_path, clock, chat=webhook(tmp_path, "http://127.0.0.1:9"))
    add(found, event())
    pauses = []
    for _ in range(11):
        state = (found.deliver() or {})["chat"]
        pauses.append(state.again - clock.now)
        clock.now = state.again
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_PAUSE, LONGEST_PAUSE]
    assert "does not answer" in (state.error or "")


def test_a_hook_that_fails_does_not_hold_another(tmp_path: Path, receiver: Receiver) -> None:
    found = delivery(
        tmp_path,
        broken=webhook(tmp_path, "http://127.0.0.1:9"),
        missing={"command": {"run": ["/no/such/program"]}},
        chat=webhook(tmp_path, receiver.url),
    )
    add(found, event(1), event(2))
    states = found.deliver() or {}
    assert [one["node"] for one in receiver.events] == ["n1", "n2"]
    assert {name: state.failures for name, state in states.items()} == {
        "broken": 1,
        "missing": 1,
        "chat": 0,
    }


def program(directory: Path, text: str) -> list[str]:
    file = directory / "hook"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return [str(file), "a word"]


def test_a_command_gets_the_event_on_its_standard_input(tmp_path: Path) -> None:
    run = program(tmp_path, f'echo "$1" >> {tmp_path}/out; cat >> {tmp_path}/out')
    found = delivery(tmp_path, ticket={"command": {"run": run}})
    add(found, event(1), event(2))
    found.deliver()
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[::2] == ["a word", "a word"]
    assert [json.loads(line)["node"] for line in lines[1::2]] == ["n1", "n2"]


COMMANDS = [
    ("fails", "echo why >&2; exit 4", 30, "ended with 4: why"),
    ("does not read", "exit 0", 30, None),
    ("does not end", "sleep 60 & sleep 60", 0.3, "did not end within 0.3 s"),
]


@pytest.mark.parametrize(
    ("what", "text", "timeout", "error"), COMMANDS, ids=[row[0] for row in COMMANDS]
)
def test_the_outcome_of_a_command(
    tmp_path: Path, what: str, text: str, timeout: float, error: str | None
) -> None:
    found = delivery(
        tmp_path, ticket={"command": {"run": program(tmp_path, text), "timeout": timeout}}
    )
    add(found, event())
    state = (found.deliver() or {})["ticket"]
    assert (state.error is None) if error is None else (error in (state.error or ""))
    assert state.seq == (1 if error is None else 0)


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["n1", "n2", "r"]),
    ({"kinds": ["node.*"]}, ["n1", "n2"]),
    ({"kinds": ["rollout.phase", "node.gate"]}, ["n2", "r"]),
    ({"severity": "warning"}, ["n1", "r"]),
    ({"severity": "critical"}, ["r"]),
    ({"kinds": ["node.*"], "severity": "critical"}, []),
]


@pytest.mark.parametrize(("given", "wanted"), FILTERS)
def test_a_hook_gets_the_kinds_and_severities_that_it_wants(
    tmp_path: Path, receiver: Receiver, given: dict[str, Any], wanted: list[str]
) -> None:
    found = delivery(tmp_path, chat={**webhook(tmp_path, receiver.url), **given})
    add(
        found,
        event(1),
        event(2, kind="node.gate", severity="info"),
        event(3, kind="rollout.phase", severity="critical", subject="r"),
    )
    state = (found.deliver() or {})["chat"]
    assert [one["subject"] for one in receiver.events] == wanted
    assert state.seq == 3, "what it does not want does not wait either"


def test_a_clock_that_is_set_back_does_not_hold_a_delivery(
    tmp_path: Path, receiver: Receiver
) -> None:
    clock = Clock()
    found = delivery(tmp_path, clock, chat=webhook(tmp_path, receiver.url))
    add(found, event())
    receiver.statuses = [500]
    found.deliver()
    clock.now -= 86400
    states = found.deliver() or {}
    assert (states["chat"].failures, len(receiver.requests)) == (0, 2)


CANARY = "c4n4ry-s3cret"


def test_a_command_inherits_named_variables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOLDNODE_SIGNING_PASSWORD", "KBUILD_SIGN_PIN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("TICKET_QUEUE", "gpu")
    out = tmp_path / "environment"
    command = {"run": ["/bin/sh", "-c", f"env >{out}"], "environment": ["TICKET_QUEUE"]}
    found = delivery(tmp_path, ticket={"command": command})
    add(found, event())
    states = found.deliver()
    assert states is not None
    assert states["ticket"].failures == 0
    text = out.read_text()
    assert CANARY not in text
    assert "TICKET_QUEUE=gpu" in text.splitlines()
    assert any(line.startswith("PATH=") for line in text.splitlines())


def test_secrets_of_hooks_are_in_no_file_but_their_own(tmp_path: Path, receiver: Receiver) -> None:
    """A canary where each secret of a hook may stand, in deliveries and in failures: only the receiver gets it."""
    own = tmp_path / "site"
    own.mkdir()
    token = tmp_path / "token"
    token.write_text(CANARY)
    token.chmod(0o600)
    file = secret(tmp_path)
    found = delivery(
        own,
        chat={"webhook": {"url": receiver.url, "secret": str(file)}},
        page={"alertmanager": {"url": receiver.url, "token": str(token)}},
        gone={"webhook": {"url": f"{receiver.url}0", "secret": str(file)}},
    )
    add(found, event())
    receiver.statuses = [401, 200]
    states = found.deliver()
    assert states is not None
    assert {name for name, state in states.items() if state.failures} >= {"gone"}
    written = b"".join(path.read_bytes() for path in own.rglob("*") if path.is_file())
    key = base64.b64encode(KEY)
    assert CANARY.encode() not in written
    assert key not in written
    assert not any(key in body or CANARY.encode() in body for _, _, body in receiver.requests)
