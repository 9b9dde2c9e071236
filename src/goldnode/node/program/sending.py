"""`goldnode-node report --to`: send the report to the fleet's service, as changes from the last one that it holds.

The service names the reports that it holds by their digest (ground/changes.py). Any refusal of changes is answered with the whole
report: a service of an earlier goldnode knows no changes, and one that has lost its base has lost nothing else.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
import zlib
from calendar import timegm
from contextlib import suppress
from hashlib import sha256

from ..follow.repository import NoRedirect
from ..ground.changes import BASE_HEADER, ChangedValues, base_digest, report_body
from ..ground.errors import NodeError
from ..ground.json_lines import as_dict, as_map
from ..ground.text import cleaned
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    from ..ground.host import Host, Json

BASES = "/var/lib/goldnode/report-bases"  # one file for each service: the report that it holds
SILENCE = 30.0  # seconds
_LIMIT = 64 * 1024  # bytes of an answer
_DAYS = 6.0  # age of a base that is renewed: the service stores changes from one of less than seven
_SHARE = 4  # changes that take more than a quarter of the whole report are not sent
_TITLE = re.compile("<title>([^<]{1,200})", re.IGNORECASE)  # of a page of nginx, for instance
# Answers that a whole report cannot change: too often, busy, a full disk, another certificate.
_WAIT = (403, 408, 429)


class SentAnswer(NamedTuple):
    """The answer of the service."""

    status: int
    body: Mapping[str, Any]

    @property
    def why(self) -> str:
        """Return the reason of a refusal."""
        return f"HTTP {self.status}: {cleaned(str(self.body.get('value')))[:300]}"


def send(host: Host, report: Json, options: Any) -> Dict[str, Any]:
    """Send a report. Return how, and the bytes of the body. Raises NodeError if the service does not take it."""
    opener, address = _opener(options), f"{options.to.rstrip('/')}/v1/captures"
    file = f"{BASES}/{sha256(options.to.encode()).hexdigest()[:16]}.json"
    body = report_body(report)
    changes = _changes(host, file, body)
    if changes is not None:
        answer = _post(opener, address, changes, {"Content-Encoding": "deflate"})
        if answer.status == 202:
            return {"sent": "changes", "bytes": len(changes)}
        if answer.status in _WAIT or answer.status >= 500:
            raise NodeError(
                f"{address} does not take the report: {answer.why}. Send it again later."
            )
        # Before the next attempt: a base that the service does not know is of no use.
        host.remove(file)
    answer = _post(opener, address, body, {BASE_HEADER: "hold"})
    if answer.status != 202:
        raise NodeError(
            f"{address} does not take the report: {answer.why}. {_remedy(answer.status)}"
        )
    if answer.body.get("base") == base_digest(body):
        host.write(file, body, 0o600)
    else:  # another service now, or one without certificates
        host.remove(file)
    return {"sent": "whole", "bytes": len(body)}


def _remedy(status: int) -> str:
    if status in (400, 401, 403):
        return "Use a certificate that names this node."
    if status == 404:
        return "Start the service with `goldnode fleet serve --data DIRECTORY`, or correct --to."
    return "Send it again later, or correct what it names."


def _changes(host: Host, file: str, body: bytes) -> Optional[bytes]:
    """Return the changes from the report that the service holds, compressed; None if the whole report is better."""
    stored = host.data(file)
    if stored is None:
        return None
    try:
        base, report = json.loads(stored), json.loads(body)
        age = abs(_time(report) - _time(base))
        if _boot(base) != _boot(report) or age > _DAYS * 86400 or base["node"] != report["node"]:
            return None
        changed = ChangedValues(base, report).document(report["node"], base_digest(stored))
    except (ValueError, KeyError, TypeError, RecursionError):  # a damaged file
        return None
    content = zlib.compress(json.dumps(changed, separators=(",", ":"), sort_keys=True).encode(), 9)
    return content if len(content) * _SHARE < len(zlib.compress(body, 1)) else None


def _time(report: Mapping[str, Any]) -> int:
    return timegm(time.strptime(report["capture"]["time"], "%Y-%m-%dT%H:%M:%SZ"))


def _boot(report: Mapping[str, Any]) -> Any:
    return as_map(as_map(report.get("capture")).get("identity")).get("boot_identity")


def _opener(options: Any) -> urllib.request.OpenerDirector:
    handlers: List[urllib.request.BaseHandler] = [NoRedirect()]
    if options.to.startswith("https://"):
        named = [name for name in (options.ca, options.certificate, options.key) if name]
        try:
            context = ssl.create_default_context(cafile=options.ca)
            if options.certificate:
                context.load_cert_chain(options.certificate, options.key)
        except (OSError, ValueError) as problem:
            raise NodeError(
                f"the TLS files cannot be used ({', '.join(named)}): {problem}. Correct --ca, --certificate and --key."
            ) from None
        handlers.append(urllib.request.HTTPSHandler(context=context))
    elif not options.to.startswith("http://"):
        raise NodeError(
            f"--to {options.to} is no address. Name it as https://fleet.example.net:9180."
        )
    return urllib.request.build_opener(*handlers)


def _post(
    opener: urllib.request.OpenerDirector, address: str, body: bytes, headers: Dict[str, str]
) -> SentAnswer:
    request = urllib.request.Request(  # noqa: S310 - _opener has checked the address
        address, body, {"Content-Type": "application/json", **headers}
    )
    try:
        with opener.open(request, timeout=SILENCE) as answer:
            return SentAnswer(answer.status, _json(answer.read(_LIMIT)))
    except urllib.error.HTTPError as problem:
        data = b""
        with suppress(OSError, ValueError, http.client.HTTPException), problem:
            data = problem.read(_LIMIT)
        return SentAnswer(problem.code, _json(data))
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise NodeError(
            f"{address} is away: {getattr(problem, 'reason', problem)}. Send the report again later."
        ) from None


def _json(data: bytes) -> Dict[str, Any]:
    """Return the answer of the service; of a proxy before it, which answers by a page, the title as the reason."""
    try:
        return as_dict(json.loads(data))
    except ValueError:
        title = _TITLE.search(data.decode("utf-8", "replace"))
        return {
            "value": " ".join(title[1].split()) if title else "an answer that is not the service's"
        }
