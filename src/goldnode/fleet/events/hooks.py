"""Send one event to one hook: a command, a signed webhook, or an Alertmanager. Raises EventHookError if it has not arrived."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import urllib3

from goldnode.core.command_environment import named
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SiteHook, SiteHookAlertmanager, SiteHookCommand, SiteHookWebhook
from goldnode.documents.event import EventDocument
from goldnode.fleet.events.alerts import alerts, payload
from goldnode.fleet.events.event import body
from goldnode.node.ground.text import phrase, shortened, spaced

SECRET = "whsec_"  # noqa: S105 - the prefix of a secret, of Standard Webhooks
_SHORTEST, _LONGEST = 24, 64  # bytes of a secret, as Standard Webhooks has them
_LARGEST = 16 << 20  # bytes of an answer that are read
_SHOWN = 200  # characters of a foreign answer in an error
_MAKE = f'make one: `(umask 077; echo "{SECRET}$(openssl rand -base64 32)" > FILE)`'
Resolve = Callable[[str], Path]


class EventHookError(GoldnodeError):
    """A hook has not taken an event. It is tried again."""


def send(
    hook: SiteHook, event: EventDocument, resolve: Resolve, clock: Callable[[], float] = time.time
) -> None:
    """Send an event. Raises EventHookError."""
    if hook.command is not None:
        run(hook.command, event)
    elif hook.webhook is not None:
        post_signed(hook.webhook, event, resolve, int(clock()))
    elif hook.alertmanager is not None:
        now = clock()
        payloads = [payload(event, alert, hook.alertmanager.labels, now) for alert in alerts(event)]
        if payloads:
            post_alerts(hook.alertmanager, payloads, resolve)


# Command


def run(command: SiteHookCommand, event: EventDocument) -> None:
    """Run a command with the event on its standard input. Raises EventHookError unless it ends with 0."""
    name = command.run[0]
    try:
        process = subprocess.Popen(
            command.run,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=named(command.environment),
            start_new_session=True,
        )
    except OSError as problem:
        raise EventHookError(f"{name} cannot be started: {problem.strerror}") from problem
    try:
        output, _ = process.communicate(body(event) + b"\n", timeout=command.timeout)
    except subprocess.TimeoutExpired:
        raise EventHookError(f"{name} did not end within {command.timeout:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.stdout.close() if process.stdout else None
        process.wait()
    if process.returncode != 0:
        shown = _shown(output.decode("utf-8", "replace"))
        raise EventHookError(f"{name} ended with {process.returncode}{phrase(': {}', shown)}")


# Webhook


def post_signed(hook: SiteHookWebhook, event: EventDocument, resolve: Resolve, now: int) -> None:
    """Post an event with its signature. Raises EventHookError unless the answer is 2xx."""
    content = body(event)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "goldnode",
        "webhook-id": event.id,
        "webhook-timestamp": str(now),
        "webhook-signature": signature(secrets(resolve(hook.secret)), event.id, now, content),
    }
    _post(hook.url, content, headers, resolve(hook.ca) if hook.ca else None, hook.timeout)


def signature(keys: list[bytes], id_: str, now: int, content: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each key (Standard Webhooks, "signature scheme")."""
    signed = b".".join((id_.encode(), str(now).encode(), content))
    digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(one).decode()}" for one in digests)


def secrets(file: Path) -> list[bytes]:
    """Return the secrets in a file, one a line. Raises EventHookError with file and line."""
    text = _private(file)
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip()
        if not word:
            continue
        try:
            key = base64.b64decode(word.removeprefix(SECRET), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not word.startswith(SECRET) or not _SHORTEST <= len(key) <= _LONGEST:
            raise EventHookError(
                f"this is no secret, expected {SECRET} and base64 of {_SHORTEST} to {_LONGEST} bytes",
                file=file,
                line=number,
                remedy=_MAKE,
            )
        keys.append(key)
    if not keys:
        raise EventHookError("the file has no secret", file=file, remedy=_MAKE)
    return keys


# Alertmanager


def post_alerts(
    hook: SiteHookAlertmanager, content: list[dict[str, Any]], resolve: Resolve
) -> None:
    """Post alerts to the API, version 2. Raises EventHookError unless the answer is 2xx."""
    alertmanager(hook, "POST", "alerts", resolve, content)


def alertmanager(
    hook: SiteHookAlertmanager, method: str, path: str, resolve: Resolve, content: Any = None
) -> str:
    """Ask the API of an Alertmanager, version 2, and return its answer. Raises EventHookError unless it is 2xx."""
    headers = {"Content-Type": "application/json", "User-Agent": "goldnode"}
    if hook.token:
        headers["Authorization"] = f"Bearer {_private(resolve(hook.token)).strip()}"
    return requested(
        method,
        f"{hook.url.rstrip('/')}/api/v2/{path}",
        None if content is None else json.dumps(content).encode(),
        headers=headers,
        ca=resolve(hook.ca) if hook.ca else None,
        timeout=hook.timeout,
    )


def _private(file: Path) -> str:
    """Return the text of a file that only its owner and its group can read. Raises EventHookError."""
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise EventHookError(
            f"the secret cannot be read: {why}", file=file, remedy=_MAKE
        ) from problem
    if mode & 0o007:
        raise EventHookError(
            "any user can read or change this secret", file=file, remedy=f"chmod o= {file}"
        )
    return text


def _post(
    url: str, content: bytes, headers: Mapping[str, str], ca: Path | None, timeout: float
) -> None:
    requested("POST", url, content, headers=headers, ca=ca, timeout=timeout)


def requested(
    method: str,
    url: str,
    content: bytes | None,
    *,
    headers: Mapping[str, str],
    ca: Path | None,
    timeout: float,
) -> str:
    """Ask once, without following a redirect: the site's file names the receiver. Return the text of the answer."""
    pool = urllib3.PoolManager(ca_certs=str(ca) if ca else None, num_pools=1)
    try:
        answer = pool.request(
            method,
            url,
            body=content,
            headers=dict(headers),
            timeout=urllib3.Timeout(total=timeout),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        text = answer.read(_LARGEST, decode_content=True).decode("utf-8", "replace")
        answer.close()
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as problem:
        raise EventHookError(f"{_place(url)} does not answer: {_shown(str(problem))}") from problem
    finally:
        pool.clear()
    if not 200 <= answer.status < 300:
        shown = _shown(text)
        raise EventHookError(f"{_place(url)} answered {answer.status}{phrase(': {}', shown)}")
    return text


def _place(url: str) -> str:
    """Return an address without its query, which may have a token."""
    return url.partition("?")[0]


def _shown(text: str) -> str:
    return shortened(" ".join(spaced(text).split()), _SHOWN)
