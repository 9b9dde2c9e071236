"""The client of the lock service: FleetLock over HTTP, with what the node reports about itself."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict, as_text
from ..ground.text import cleaned
from ..ground.typed import NamedTuple
from .repository import ChannelAwayError, NoRedirect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional

    from .settings import Settings

PRE_REBOOT, STEADY_STATE, REPORT = "v1/pre-reboot", "v1/steady-state", "v1/report"
SILENCE = 30.0  # seconds
_LIMIT = 64 * 1024  # bytes of an answer


class LockAnswer(NamedTuple):
    """An answer: whether it is yes, the phase and target of the step, and otherwise the kind of a refusal and why.

    `phase` is None where the service knows no steps, or where the node has none.
    """

    yes: bool
    phase: Optional[str] = None
    target: Optional[str] = None
    kind: str = ""
    why: str = ""


class LockClient:
    """A lock service, as one node uses it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        handlers: List[urllib.request.BaseHandler] = [NoRedirect()]
        if settings.service.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=_context(settings)))
        self.opener = urllib.request.build_opener(*handlers)

    def ask(self, endpoint: str, more: Mapping[str, Any]) -> LockAnswer:
        """Send a request. Raises ChannelAwayError if no answer of a lock service comes: then nothing was decided."""
        own = {"id": self.settings.node, "group": self.settings.group}
        own.update({key: value for key, value in more.items() if value})
        request = urllib.request.Request(  # noqa: S310 - the address is of the class document
            f"{self.settings.service.rstrip('/')}/{endpoint}",
            json.dumps({"client_params": own}).encode(),
            {"fleet-lock-protocol": "true", "Content-Type": "application/json"},
        )
        try:
            with self.opener.open(request, timeout=SILENCE) as answer:
                kind, status = answer.headers.get_content_type(), answer.status
                data = answer.read(_LIMIT)
        except urllib.error.HTTPError as problem:
            return self._no(problem.code, _rest(problem))
        except (OSError, ValueError, http.client.HTTPException) as problem:
            raise ChannelAwayError(
                f"the lock service {self.settings.service} is away: {getattr(problem, 'reason', problem)}."
            ) from None
        if kind == "text/html":  # a proxy or a login page: FleetLock servers answer programs
            raise ChannelAwayError(
                f"the lock service {self.settings.service} answers with a page for a browser."
            )
        return _yes(status, data)

    def _no(self, status: int, data: bytes) -> LockAnswer:
        body = _json(data)
        if status >= 500 or not isinstance(body.get("kind"), str):
            raise ChannelAwayError(
                f"the lock service {self.settings.service} answers with HTTP {status}: {str(body.get('value'))[:300]}."
            )
        return LockAnswer(False, kind=body["kind"], why=str(body.get("value") or "")[:1000])


def _context(settings: Settings) -> ssl.SSLContext:
    """Return the TLS settings of a node. Raises NodeError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ValueError) as problem:
        named = ", ".join(
            name for name in (settings.ca, settings.certificate, settings.key) if name
        )
        raise NodeError(
            f"the TLS files cannot be used ({named}): {problem}. Correct `follow` of the class, or the files."
        ) from None
    return context


def _rest(answer: urllib.error.HTTPError) -> bytes:
    """Return the body of a refusal; empty if it does not arrive."""
    try:
        with answer:
            return answer.read(_LIMIT)
    except (OSError, ValueError, http.client.HTTPException):
        return b""


def _yes(status: int, data: bytes) -> LockAnswer:
    if status != 200:  # FleetLock: 200 alone is yes
        return LockAnswer(False, kind="unexpected_answer", why=f"HTTP {status}")
    body = _json(data)  # other FleetLock servers answer without a body
    phase, target = body.get("phase"), body.get("target")
    return LockAnswer(True, as_text(phase), as_text(target))


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        document = cleaned(json.loads(data or b"{}"))
    except (ValueError, RecursionError):
        return {}
    return as_dict(document)
