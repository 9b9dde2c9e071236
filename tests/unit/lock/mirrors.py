"""What tests of a mirror need: an archive with real .deb files, a server with faults, and a site that has a mirror."""

from __future__ import annotations

import datetime as dt
import hashlib
import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import yaml
from click.testing import CliRunner, Result
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import Stack
from goldnode.cli import main
from goldnode.core.site import Site
from goldnode.lock.fetch import FetchFault
from goldnode.lock.mirror import Mirror, site_signer
from goldnode.lock.model import Lock, LockedPackage, write_lock
from goldnode.lock.publication import Publication
from goldnode.lock.resolve import open_archives

if TYPE_CHECKING:
    from tests.unit.lock.conftest import Place

DAY = dt.date(2026, 11, 20)
_LOCKS: dict[str, Lock | None] = {}
_MIRRORS: dict[str, Path] = {}

BULK = 400_000  # bytes of the one package that is not tiny, so that a transfer has a middle


def build_files(archive: Archive, scratch: Path, bulky: str = "libcuda1") -> None:
    """Give every package of the archive its .deb and publish their true hashes."""
    for stanza in archive.stanzas:
        tree = scratch / f"{stanza['Package']}_{stanza['Version'].replace(':', '%')}"
        file = archive.root / stanza["Filename"]
        if not tree.exists():
            (tree / "DEBIAN").mkdir(parents=True)
            control = "".join(
                f"{key}: {value}\n"
                for key, value in stanza.items()
                if key not in ("Filename", "Size", "SHA256")
            )
            (tree / "DEBIAN/control").write_text(control, encoding="utf-8")
            if stanza["Package"] == bulky:
                (tree / "usr/share").mkdir(parents=True)
                blocks = (
                    hashlib.sha256(bytes([number % 251, number // 251])).digest()
                    for number in range(BULK // 32)
                )
                (tree / "usr/share/bulk").write_bytes(b"".join(blocks))
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(file)],
            check=True,
            capture_output=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        )
        data = file.read_bytes()
        stanza.update(Size=str(len(data)), SHA256=hashlib.sha256(data).hexdigest())
    archive.publish()


def full_archive(root: Path, key: SigningKey, scratch: Path) -> Archive:
    """An archive that satisfies the small stack of `Place`, files included."""
    made = Archive(root, key)
    shapes.base(made)
    shapes.kernel(made, "6.1.0-50-amd64", "6.1.176-1")
    shapes.driver(made, "535.261.03")
    shapes.rest_of_driver(made)
    build_files(made, scratch)
    return made


def use_mirror(
    place: Place,
    url: str,
    *,
    mirror: Path,
    signing_key: Path,
    key: Path | None = None,
    nodes: str | None = None,
    snapshot: str | None = None,
) -> None:
    """Write a site whose archive "near" is at `url`, and on a day at `snapshot`, with a mirror."""
    place.key.export(place.root / "keys/test.asc")
    section = {"directory": str(mirror), "signing_key": str(signing_key)}
    section |= {"key": str(key)} if key else {}
    section |= {"url": nodes} if nodes else {}
    site = {
        "archives": {"near": {"url": url, "key": "keys/test.asc", "snapshot": snapshot}},
        "locks": str(place.root / "locks"),
        "mirror": section,
    }
    (place.root / "site.yml").write_text(yaml.safe_dump(site), encoding="utf-8")


class Server(http.server.ThreadingHTTPServer):
    """A file server that counts requests and may misbehave: `fault(handler, path)` returns True where it has answered itself."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.asked: list[tuple[str, str | None]] = []
        self.fault: Callable[[_Handler, Path], bool] = lambda handler, path: False
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def names(self) -> list[str]:
        """The packages that were asked for, in order."""
        return [
            path.rpartition("/")[2].partition("_")[0]
            for path, _ in self.asked
            if path.endswith(".deb")
        ]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what some tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.server.root / unquote(self.path).lstrip("/")
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.server.fault(self, path):
            return
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            body = data[start:]
        else:
            self.send_response(200)
            body = data
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    with Server(root) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def resolve(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    *,
    today: dt.date | None = None,
    **how: Any,
) -> Lock:
    """Return a lock of the stack without an earlier one; `how` is of `open_archives`."""
    with open_archives(stack, catalog, site, **how) as archives:
        return archives.resolve(today or dt.datetime.now(tz=dt.UTC).date()).lock


class Setting:
    """A stack with its lock, an archive that is served, and a mirror to be filled."""

    def __init__(self, place: Place, server: Server, directory: Path) -> None:
        self.place, self.server, self.directory = place, server, directory
        self.mirror = Mirror.open(directory)
        # The archive of a session is the same for each of its tests, so is what apt makes of it.
        self.lock: Lock = _LOCKS.setdefault(place.key.fingerprint, None) or resolve(
            *place.load(), today=DAY
        )
        _LOCKS[place.key.fingerprint] = self.lock
        write_lock(self.lock, place.root / "locks")
        server.asked.clear()

    def fetch(self, parallel: int = 4) -> list[FetchFault]:
        _, catalog, site = self.place.load()
        return self.mirror.fetch(self.lock, catalog, site, parallel=parallel, pause=0)

    def publish(self) -> Publication:
        with site_signer(self.place.load()[2]) as signer:
            return self.mirror.publish("small", self.lock, signer=signer)

    def filled(self, scratch: Path) -> Publication:
        """Publish as `goldnode mirror small` does: once per session, and a copy of that with its links for each test."""
        made = _MIRRORS.get(self.place.key.fingerprint)
        if made is None:
            result = self.run("small")
            assert result.exit_code == 0, result.output
            made = _MIRRORS[self.place.key.fingerprint] = scratch / "mirror"
            subprocess.run(["cp", "-a", str(self.directory), str(made)], check=True)
        else:
            subprocess.run(["cp", "-a", str(made), str(self.directory)], check=True)
        self.server.asked.clear()
        return Publication.read(
            next(path for path in self.directory.glob("stacks/small/*") if not path.is_symlink())
        )

    def run(self, *arguments: str) -> Result:
        """`goldnode mirror …` on this catalog and site."""
        variables = {
            "GOLDNODE_CATALOG": str(self.place.root / "catalog"),
            "GOLDNODE_SITE": str(self.place.root / "site.yml"),
        }
        return CliRunner(env=variables).invoke(main, ["mirror", *arguments])

    def package(self, name: str) -> LockedPackage:
        return next(item for item in self.lock.packages if item.name == name)

    def upstream(self, name: str) -> Path:
        """The archive's file of a package; a copy, so that it may be spoiled."""
        return self.server.root / self.package(name).path

    def snapshot(self, name: str, pair: tuple[str, Path, Path]) -> Path:
        """Move the archive's file of a package to the snapshot of the lock's day. Returns where it is then."""
        use_mirror(
            self.place,
            self.server.url,
            mirror=self.directory,
            signing_key=pair[1],
            key=pair[2],
            snapshot=f"{self.server.url}/then/{{date}}T235959Z",
        )
        older = self.server.root / f"then/{DAY:%Y%m%d}T235959Z" / self.package(name).path
        older.parent.mkdir(parents=True)
        return self.upstream(name).rename(older)

    def stacks(self) -> list[str]:
        """What lies in the stack's directory."""
        place = self.directory / "stacks/small"
        return sorted(path.name for path in place.iterdir()) if place.exists() else []


def tree(directory: Path) -> dict[str, str]:
    """Every file below a directory and its hash; of a link, where it leads."""
    return {
        str(path.relative_to(directory)): f"-> {path.readlink()}"
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
