"""Stand-ins for Debian's docker packages: a daemon that answers goldnode's queries but runs no containers.

Like the real daemon, it reads daemon.json at startup and the runtimes again on SIGHUP.
tests/e2e/test_runtime.py uses the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulators.apt_archive.debs import Content, Deb, Program

_DAEMON = '''\
#!/usr/bin/python3
"""goldnode stand-in: dockerd. Answers GET /info and /containers/json on its socket; runs no container."""
import json
import os
import signal
import socketserver
import sys
from http.server import BaseHTTPRequestHandler

FILE, SOCKET = "/etc/docker/daemon.json", "/run/docker.sock"
KNOWS_CDI = @CDI@


def configuration(name=FILE):
    if not os.path.exists(name):
        return {}
    with open(name) as opened:
        return json.load(opened)


if "--version" in sys.argv:
    print("Docker version @VERSION@, build standin (goldnode stand-in)")
    sys.exit()
if "--validate" in sys.argv:
    configuration(sys.argv[sys.argv.index("--config-file") + 1])
    sys.exit()
STATE = {"config": configuration()}
CDI = KNOWS_CDI and bool(STATE["config"].get("features", {}).get("cdi"))


def again(*_):
    STATE["config"] = configuration()


class Answer(BaseHTTPRequestHandler):
    def address_string(self):
        return "socket"

    def do_GET(self):
        config = STATE["config"]
        info = {
            "ServerVersion": "@VERSION@",
            "Runtimes": {"runc": {"path": "runc"}, **config.get("runtimes", {})},
            "DefaultRuntime": config.get("default-runtime", "runc"),
            "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"] if CDI else [],
        }
        body = json.dumps({"/info": info, "/containers/json": []}.get(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(socketserver.ThreadingUnixStreamServer):
    def finish_request(self, request, client_address):
        self.RequestHandlerClass(request, ("socket", 0), self)


if os.path.exists(SOCKET):
    os.unlink(SOCKET)
server = Server(SOCKET, Answer)
signal.signal(signal.SIGHUP, again)
server.serve_forever()
'''

_UNIT = """\
[Unit]
Description=goldnode stand-in: Docker Application Container Engine

[Service]
ExecStart=/usr/sbin/dockerd
ExecReload=/bin/kill -s HUP $MAINPID

[Install]
WantedBy=multi-user.target
"""


def engine(
    repository: str,
    suite: str,
    versions: dict[str, str],
    scripts: dict[str, str],
    *,
    knows_cdi: bool,
) -> Iterator[Deb]:
    """Yield docker.io and its dependencies.

    `versions` maps packages to upstream versions. docker-cli is a separate package if listed.
    """
    place = Deb("", "", "", repository=repository, suite=suite, section="admin")
    docker = versions["docker.io"]
    daemon = _DAEMON.replace("@VERSION@", docker).replace("@CDI@", str(knows_cdi))
    files: dict[str, dict[str, Content]] = {
        "docker.io": {
            "/usr/sbin/dockerd": Program(daemon),
            "/lib/systemd/system/docker.service": _UNIT,
        },
        "docker-cli": {},
        "containerd": {"/etc/containerd/config.toml": "version = 2\n"},
        "runc": {},
    }
    needs = {"docker.io": "containerd, runc, python3", "containerd": "runc"}
    for name, version in versions.items():
        yield replace(
            place,
            name=name,
            version=f"{version}-1+standin1",
            source="docker.io" if name == "docker-cli" else "",
            description="container engine that runs no container"
            if name == "docker.io"
            else "part of a container engine, empty",
            depends=needs.get(name, ""),
            files=files[name],
            scripts=scripts if name == "docker.io" else {},
        )
