"""A server that answers requests with recorded documents, by path without query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Answer = bytes | Callable[[str, bytes], bytes]


def _handler(answers: Mapping[str, Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            found = answers.get(path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if callable(found):
                found = found(self.path, body)
            self.send_response(404 if found is None else 200)
            content = b'{"kind": "Status", "code": 404}' if found is None else found
            kind = "text/xml" if content.startswith(b"<") else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name is that of http.server

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def api_server(answers: Mapping[str, Answer]) -> Iterator[str]:
    """Serve answers on a port of this host; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(answers))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
