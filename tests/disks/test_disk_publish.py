"""A disk that goldnode assembled, published to a real directory, served by nginx (where it is installed) or Python, and pulled again.

The disk is real (GPT, ESP, ext4, its evidence written and signed by the command); its root is a few files, and the record of its boots is
the test's own: nothing here boots. A file system that is really full, publishers and pulls that are really killed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.channels import signing
from tests.unit.disks.disk_samples import BUILDS, CLASS, make_disk, prove
from tests.unit.images.registries import make_key

from goldnode.disks.directory import check_published
from goldnode.disks.model import BuiltDisk

pytestmark = [
    pytest.mark.disks,
    pytest.mark.xdist_group("publish"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a disk is assembled as root"),
]


@dataclass(frozen=True)
class Real:
    store: Path
    keys: tuple[Path, Path]
    a: BuiltDisk
    b: BuiltDisk

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            command(*words, "--store", str(self.store)), capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def key(self) -> tuple[str, str]:
        return "--key", str(self.keys[0])

    @property
    def trust(self) -> tuple[str, str]:
        return "--trust", str(self.keys[1])

    @property
    def move(self) -> tuple[str, ...]:
        online = signing.key_of(self.keys[0].parent, "online")
        return (*self.key, "--online-key", str(online))

    def channels(self, place: Path) -> tuple[str, str]:
        """Make the channels of a place. Return the option that trusts its root."""
        root = signing.key_of(self.keys[0].parent, "root")
        words = ("keys", "disks", "--to", str(place), "--root-key", str(root))
        signs = ("--targets-key", str(self.keys[0]), *self.move[2:], "--store", str(self.store))
        subprocess.run(command(*words, *signs, group="channels"), check=True, capture_output=True)
        return "--root", str(place / "metadata/1.root.json")


def command(*words: str, group: str = "disks") -> list[str]:
    return [sys.executable, "-m", "goldnode.cli", group, *words]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    work = tmp_path_factory.mktemp("real")
    keys = make_key(work)
    noise = os.urandom(20 << 20)  # so that a compressed disk has a size worth cutting
    disks = [
        make_disk(work / "store", work, name, more={"opt/noise": noise, "opt/which": name.encode()})
        for name in "ab"
    ]
    found = Real(work / "store", keys, *disks)
    database = work / "tracker.json"
    row = {
        "releases": {
            "bookworm": {
                "status": "resolved",
                "fixed_version": "2.36-9+deb12u14",
                "urgency": "high",
            }
        }
    }
    # The requirement takes a database of fewer packages for an excerpt, and one of a month ago for stale.
    others = {f"other{number}": {"CVE-2026-2": row} for number in range(1000)}
    database.write_text(json.dumps(others | {"glibc": {"CVE-2026-1": row}}))
    today = dt.datetime.now(tz=dt.UTC).date()
    for disk in disks:
        prove(disk, None, papers=False, inspection=None)
        out = found.run(
            "evidence", disk.name, *found.key, "--database", f"debian={database}@{today}"
        )
        assert "SBOM (CycloneDX)" in out
        assert "1 known, 1 of them with a fix" in out
    return found


@contextmanager
def serving(root: Path, work: Path) -> Iterator[str]:
    """The directory as it is, by nginx where there is one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if nginx is not None:
        work.mkdir(exist_ok=True)
        temporary = "".join(
            f"{name}_temp_path {work}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        site = f"server {{ listen 127.0.0.1:{port}; root {root}; }}"
        (work / "nginx.conf").write_text(
            f"daemon off; pid {work}/pid; error_log {work}/error; user root;\nevents {{}}\nhttp {{ access_log off; {temporary} {site} }}\n"
        )
        words = [nginx, "-c", str(work / "nginx.conf"), "-p", str(work), "-e", str(work / "error")]
    else:
        words = [
            sys.executable,
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            "--directory",
            str(root),
            str(port),
        ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(20)


def test_from_the_store_to_another_machine_and_back_again(real: Real, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    to, root = ("--to", str(place)), real.channels(place)
    for disk in (real.a, real.b):
        assert "files (" in real.run("publish", disk.name, *to, *real.key)
        # No catalog has the class, so what evidence it asks for is unknown.
        known = ("--waive", "evidence", "--reason", "a class of the test alone")
        for channel, more in (("candidate", ()), ("canary", ()), ("stable", known)):
            real.run("promote", channel, disk.name, *to, *real.move, "--by", "ana", *more)
    other = tmp_path / "other"
    with serving(place, tmp_path / "server") as url:
        words = command("pull", CLASS, "--from", url, "--store", str(other), *real.trust, *root)
        assert subprocess.run(words, check=True, capture_output=True, text=True).stdout.startswith(
            str(other / "built" / CLASS / BUILDS["b"])
        )
        raw = other / "built" / CLASS / BUILDS["b"] / f"{real.b.name}.raw"
        assert raw.read_bytes() == real.b.path("raw").read_bytes()
        assert raw.stat().st_blocks * 512 < raw.stat().st_size // 2  # sparse again
        real.run("rollback", CLASS, *to, *real.move, "--by", "ana", "--reason", "slow")
        subprocess.run(words, check=True, capture_output=True)
        assert (other / "built" / CLASS / BUILDS["a"] / "disk.json").is_file()
        reader = shutil.which(
            "sstream-mirror"
        )  # the reference reader of simplestreams, where somebody has it
        if reader is not None:
            mirror = [
                reader,
                "--no-verify",
                "--max=1",
                f"{url}/streams/v1/index.json",
                str(tmp_path / "mirror"),
                "ftype=disk1.img",
                "label=stable",
            ]
            subprocess.run(mirror, check=True, capture_output=True)
            (image,) = (tmp_path / "mirror").rglob("*.qcow2")
            assert image.read_bytes() == real.a.path("qcow2").read_bytes()
    authentic = command("authenticate", f"{CLASS}:stable", "--store", str(other), *real.trust)
    assert (
        f"{real.a.name}\n"
        in subprocess.run(authentic, check=True, capture_output=True, text=True).stdout
    )
    assert "opt/which" in real.run("diff", real.a.name, real.b.name)


def test_a_place_that_is_really_full(real: Real, tmp_path: Path) -> None:
    """A file system of 16 MiB in a mount namespace of its own, which passes the look at free space because noise does not compress."""
    place = tmp_path / "small"
    place.mkdir()
    words = command(
        "publish", real.a.name, "--store", str(real.store), "--to", str(place), *real.key
    )
    script = 'mount -t tmpfs -o size="$1" tmpfs "$2"; shift 2; "$@"; echo "status $?"; find . -type f -not -name .lock'
    for size, reported in (("16m", "is full"), ("2m", "MiB free, and")):
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                f"cd /; {script.replace('find .', f'find {place}')}",
                "sh",
                size,
                str(place),
                *words,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "status 2" in done.stdout, done.stdout + done.stderr
        assert reported in done.stderr
        assert done.stdout.strip().splitlines()[-1] == "status 2"  # no file is left
    assert not any(place.iterdir())


def test_a_publisher_that_is_killed(real: Real, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    words = command(
        "publish", real.a.name, "--store", str(real.store), "--to", str(place), *real.key
    )
    staged = place / ".staging" / real.a.name
    with subprocess.Popen(
        words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        for _ in range(2400):
            if staged.exists() or process.poll() is not None:
                break
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert staged.exists()
    assert not (place / CLASS).exists()
    assert not (place / "index.json").exists()
    assert "files (" in real.run("publish", real.a.name, "--to", str(place), *real.key)
    check_published(place / CLASS / real.a.build_id)
    assert not staged.exists()


def test_a_pull_that_is_killed_goes_on(real: Real, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    real.run("publish", real.a.name, "--to", str(place), *real.key)
    other = tmp_path / "other"
    piece = other / "partial" / real.a.name / f"{real.a.name}.raw.zst"
    with serving(place, tmp_path / "server") as url:
        words = command(
            "pull", f"{CLASS}:{real.a.build_id}", "--from", url, "--store", str(other), *real.trust
        )
        with subprocess.Popen(
            words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            for _ in range(6000):
                if piece.exists() or process.poll() is not None:
                    break
                time.sleep(0.005)
            os.killpg(process.pid, signal.SIGKILL)
        assert not (other / "built").exists()
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        assert "were there" in done.stdout
    raw = other / "built" / CLASS / real.a.build_id / f"{real.a.name}.raw"
    assert raw.read_bytes() == real.a.path("raw").read_bytes()


def test_other_programs_verify_what_is_published(real: Real, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    real.run("publish", real.a.name, "--to", str(place), *real.key)
    here = place / CLASS / real.a.build_id
    verify = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        str(real.keys[1]),
        "-rawin",
        "-in",
        "SHA256SUMS",
    ]
    for altered in (False, True):
        if altered:
            (here / "SHA256SUMS").write_text((here / "SHA256SUMS").read_text().replace("a", "b", 1))
        done = subprocess.run(
            [*verify, "-sigfile", "SHA256SUMS.sig"],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == altered, done.stdout + done.stderr
