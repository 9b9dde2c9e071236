"""WSGI (PEP 3333) and ASGI (version 3) middleware that serves the report on one path.

All other requests pass to the application unchanged.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from goldnode.diagnostics import process

Allow = Callable[[Any], bool]
Start = Callable[..., Any]
Wsgi = Callable[[dict[str, Any], Start], Iterable[bytes]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

# A reverse proxy on the same machine connects from the loopback on behalf of remote clients.
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


def loopback(request: Any) -> bool:
    """Return whether a request comes from this machine directly, not through a proxy on it.

    :param request: a WSGI environ or an ASGI scope.
    """
    if "wsgi.version" in request:
        peer = request.get("REMOTE_ADDR")
        through = any(f"HTTP_{name.upper().replace('-', '_')}" in request for name in FORWARDED)
    else:
        client = request.get("client")
        peer = client[0] if client else None
        through = any(
            bytes(name).decode("latin-1").lower() in FORWARDED
            for name, _ in request.get("headers") or ()
        )
    if through or not isinstance(peer, str):
        return False
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    # A dual-stack socket shows IPv4 clients as ::ffff:127.0.0.1, which is_loopback misses before Python 3.13.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class _Diagnostics:
    def __init__(self, path: str, allow: Allow | None) -> None:
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not a path: begin it with /")
        self.path = path
        self.allow = loopback if allow is None else allow

    def answer(self, method: str, request: Any) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body. Unauthorized clients get the answer of a missing path."""
        kind = "text/plain; charset=utf-8"
        headers = []
        if not self.allow(request):
            status, body = 404, "not found\n"
        elif method not in ("GET", "HEAD"):
            status, body, headers = 405, "only GET and HEAD\n", [("Allow", "GET, HEAD")]
        else:
            try:
                status, kind, body = 200, "application/json", process.text(process.report())
            except Exception as problem:  # a failed report must not take down the service
                status, body = 500, f"no report: {type(problem).__name__}\n"
        data = body.encode()
        headers += [
            ("Content-Type", kind),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
        ]
        return status, headers, b"" if method == "HEAD" else data


class WsgiDiagnostics(_Diagnostics):
    """WSGI application that answers one path itself.

    :param allow: whether a request (its environ) may see the report; by default :func:`loopback`.
    """

    def __init__(self, app: Wsgi, path: str = "/diagnostics", allow: Allow | None = None) -> None:
        super().__init__(path, allow)
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        """Handle one request (PEP 3333)."""
        if environ.get("PATH_INFO") != self.path:
            return self.app(environ, start_response)
        status, headers, body = self.answer(str(environ.get("REQUEST_METHOD")), environ)
        start_response(f"{status} {REASONS[status]}", headers)
        return [body]


class AsgiDiagnostics(_Diagnostics):
    """ASGI application that answers one path itself. Lifespan events and websockets pass through.

    :param allow: whether a request (its scope) may see the report; by default :func:`loopback`.
    """

    def __init__(self, app: Asgi, path: str = "/diagnostics", allow: Allow | None = None) -> None:
        super().__init__(path, allow)
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope.get("type") != "http" or self._path(scope) != self.path:
            await self.app(scope, receive, send)
            return
        # In a thread: a hanging disk must not block the event loop.
        status, headers, body = await asyncio.to_thread(
            self.answer, str(scope.get("method")), scope
        )
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    @staticmethod
    def _path(scope: Scope) -> str:
        """Return the path below the application's mount point, like PATH_INFO in WSGI."""
        path, mounted = str(scope.get("path", "")), str(scope.get("root_path", ""))
        return path[len(mounted) :] if mounted and path.startswith(f"{mounted}/") else path
