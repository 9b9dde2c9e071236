"""A private PostgreSQL for tests: a cluster in a directory of its own, on a socket, without a port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "postgresql"
_USER = "postgres"  # initdb refuses root


def binaries() -> Path | None:
    """Return the directory of PostgreSQL's programs, the newest version; None where it is not installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    if found:
        return found[-1].parent
    other = shutil.which("initdb")
    return Path(other).resolve().parent if other else None


def missing() -> str | None:
    """Return why no cluster can run here; None if one can."""
    if binaries() is None:
        return f"PostgreSQL is not installed: apt-get install {PACKAGE}"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(_USER)
        except KeyError:
            return f"there is no user {_USER} to run PostgreSQL as"
    return None


@dataclass(frozen=True)
class Cluster:
    """A running server, its data and its socket."""

    directory: Path
    fsync: str = "off"  # benchmarks need "on"

    @property
    def data(self) -> Path:
        """Return the data directory."""
        return self.directory / "data"

    def address(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://{_user()}@/{database}?host={self.directory}"

    def create(self, name: str, template: str = "template1") -> str:
        """Create a database, a copy of another one, and return its address."""
        self.run("createdb", "-h", str(self.directory), "-U", _user(), "-T", template, name)
        return self.address(name)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self.directory} -c max_connections=60 -c fsync={self.fsync}"
        self.run(
            *("pg_ctl", "start", "-w", "-D", str(self.data)),
            *("-l", str(self.directory / "log"), "-o", options),
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` is a crash."""
        self.run("pg_ctl", "stop", "-w", "-m", mode, "-D", str(self.data), check=False)

    def promote(self) -> None:
        """Turn a standby into the primary."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def standby(self) -> Cluster:
        """Return a running standby of this server, which gets every commit before the client does."""
        other = Cluster(_directory())
        self.run(
            *("pg_basebackup", "-h", str(self.directory), "-U", _user(), "-D", str(other.data)),
            *("-R", "-X", "stream", "-c", "fast"),
        )
        with (other.data / "postgresql.auto.conf").open("a") as file:
            file.write(
                f"primary_conninfo = 'host={self.directory} user={_user()} application_name=standby'\n"
            )
        other.start()
        self.run(
            *("psql", "-h", str(self.directory), "-U", _user(), "-c"),
            "ALTER SYSTEM SET synchronous_standby_names = 'standby'",
        )
        self.run("pg_ctl", "reload", "-D", str(self.data))
        return other

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, program: str, *words: str, check: bool = True) -> None:
        """Run a program of PostgreSQL as the user of the server."""
        place = binaries()
        assert place is not None
        done = (
            subprocess.run(
                [*_as_user(), str(place / program), *words],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
                stdin=subprocess.DEVNULL,
            )
            if program != "pg_ctl"
            else _quiet([*_as_user(), str(place / program), *words])
        )
        if check and done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")


def _quiet(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run pg_ctl, whose server would keep a pipe open."""
    code = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        cwd="/",
    ).returncode
    return subprocess.CompletedProcess(words, code, "", f"exit status {code}")


@contextmanager
def cluster(fsync: str = "off") -> Iterator[Cluster]:
    """Yield a running server; its data is deleted afterwards."""
    found = Cluster(_directory(), fsync)
    try:
        found.run(
            "initdb", "-D", str(found.data), "-U", _user(), "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        found.start()
        yield found
    finally:
        found.remove()


def _user() -> str:
    return _USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def _as_user() -> list[str]:
    return (
        ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"]
        if os.geteuid() == 0
        else []
    )


def _directory() -> Path:
    # Short: a socket's path has 107 characters at most.
    path = Path(tempfile.mkdtemp(prefix="gn-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam(_USER)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return path
