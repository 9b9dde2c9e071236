"""systemd-sysupdate of a release of Debian in a directory, a disk on a loop device, and a signed directory on a web server.

The disk has the table of a site that updates with systemd-sysupdate: an ESP and two partitions for roots, filled with
0xFF. The transfers are goldnode's own; only `Path=auto`, which is the disk of the running root, names the loop device.
The ESP is a stand-in: a tmpfs, because kernels of build machines may lack vfat."""

from __future__ import annotations

import gzip
import http.server
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from goldnode.disks import gpt
from goldnode.disks.architecture import architecture_of
from goldnode.disks.sysupdate import KEYRING, FollowedChannel, definitions
from goldnode.lock.signing import ArchiveSigner
from goldnode.node.ground.openpgp import dearmor

CLASS = "cpu"
MIB = 1 << 20
ROOT_TYPE = architecture_of("amd64").root_type
ESP, FIRST, SECOND = 63, 64, 80  # MiB: size of the ESP, places of the roots
SIZE = 16  # MiB of a root partition; the second one has one less
# Mounts end with the namespace: whatever is killed leaves none.
ENTER = """set -e
root=$1 esp=$2; shift 2
for name in proc sys dev; do mount --rbind /$name "$root/$name"; done
mount -t tmpfs tmpfs "$root/run"; mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/efi"; mount --bind "$esp" "$root/efi"
exec chroot "$root" env SYSTEMD_RELAX_ESP_CHECKS=1 SYSTEMD_LOG_LEVEL=info SYSTEMD_LOG_TARGET=console SYSTEMD_LOG_COLOR=0 "$@"
"""


@dataclass(frozen=True)
class SysupdateRelease:
    """A release: suite, number of systemd, and what mmdebstrap installs."""

    suite: str
    systemd: int
    packages: tuple[str, ...]


@dataclass
class Answer:
    """Output and exit status of a run of systemd-sysupdate."""

    code: int
    text: str


class Handler(http.server.SimpleHTTPRequestHandler):
    """A web server that can stop in the middle of a file."""

    stalls = ""  # end of the name of a file that is cut after its half

    def log_message(self, *_: object) -> None:
        return None

    def do_GET(self) -> None:
        if not self.stalls or not self.path.endswith(self.stalls):
            super().do_GET()
            return
        data = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        time.sleep(20)


@dataclass
class SysupdateLab:
    """A node of a release, and what it is offered."""

    release: SysupdateRelease
    root: Path
    place: Path
    signer: ArchiveSigner
    loop: str = ""
    port: int = 0
    handler: type[Handler] = Handler
    roots: dict[str, bytes] = field(default_factory=dict)

    @property
    def web(self) -> Path:
        return self.place / "web"

    @property
    def esp(self) -> Path:
        return self.place / "esp"

    @property
    def entries(self) -> Path:
        return self.esp / "loader/entries"

    @property
    def raw(self) -> Path:
        return self.place / "disk.raw"

    # Versions on the server

    def offer(self, version: str, mib: int = 12) -> None:
        """Publish a version whose root has this size: noise, zeros, noise."""
        self.web.mkdir(exist_ok=True)
        noise = random.Random(version)  # noqa: S311 - content of a file
        root = noise.randbytes(MIB) + bytes((mib - 2) * MIB) + noise.randbytes(MIB)
        self.roots[version] = root
        name = f"{CLASS}_{version}"
        for suffix, data in (
            (f"_{len(root)}.root.gz", gzip.compress(root, 6, mtime=0)),
            (".vmlinuz", noise.randbytes(MIB)),
            (".initrd.img", noise.randbytes(MIB)),
            (".conf", f"title {name}\nlinux /EFI/goldnode/{name}.vmlinuz\n".encode()),
        ):
            (self.web / f"{name}{suffix}").write_bytes(data)
        self.sign()

    def sign(self, signer: ArchiveSigner | None = None) -> None:
        """Write checksums of what is offered, and sign them."""
        sums = self.web / "SHA256SUMS"
        rows = [
            f"{sha256(path.read_bytes()).hexdigest()} *{path.name}\n"
            for path in sorted(self.web.iterdir())
            if "SHA256SUMS" not in path.name
        ]
        sums.write_text("".join(rows))
        (signer or self.signer).detach(sums, self.web / "SHA256SUMS.gpg")

    def withdraw(self, version: str) -> None:
        """Offer a version no longer."""
        for path in self.web.glob(f"{CLASS}_{version}[._]*"):
            path.unlink()
        self.sign()

    # The node

    def define(
        self, minimum: str = "0", running: str | None = None, component: str | None = None
    ) -> None:
        """Install goldnode's files, and the version that runs (None: there is none in /etc/os-release)."""
        followed = FollowedChannel(CLASS, "stable", "http://127.0.0.1", minimum, component)
        path = f"http://127.0.0.1/{CLASS}/sysupdate/stable"
        for name, text in definitions(followed, self.release.systemd).items():
            text = text.replace("Path=auto", f"Path={self.loop}")
            file = self.root / "etc" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace(path, f"http://127.0.0.1:{self.port}"))
        own = self.root / "etc/os-release"
        own.unlink(missing_ok=True)
        rows = (self.root / "usr/lib/os-release").read_text()
        own.write_text(rows + (f"IMAGE_VERSION={running}\n" if running else ""))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start systemd-sysupdate."""
        program = "/usr/lib/systemd/systemd-sysupdate"
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", ENTER, "enter",
             str(self.root), str(self.esp), program, *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str) -> Answer:
        """Run systemd-sysupdate to its end."""
        with self.start(*words) as process:
            text, _ = process.communicate(timeout=120)
        return Answer(process.returncode, text)

    def update(self, *words: str) -> Answer:
        """Update, and expect that it works."""
        done = self.run("update", *words)
        assert done.code == 0, done.text
        return done

    # The disk

    def labels(self) -> list[str]:
        """Return the labels of the partitions for roots."""
        return [part.name for part in gpt.read(self.raw).partitions[1:]]

    def types(self) -> list[str]:
        """Return the types of the partitions for roots."""
        return [part.type for part in gpt.read(self.raw).partitions[1:]]

    def content(self, start: int, size: int) -> bytes:
        """Return a part of the disk; place and size are in MiB."""
        subprocess.run(["blockdev", "--flushbufs", self.loop], check=True)
        with self.raw.open("rb") as raw:
            raw.seek(start * MIB)
            return raw.read(size * MIB)

    def files(self) -> set[str]:
        """Return the files of the ESP."""
        return {str(path.relative_to(self.esp)) for path in self.esp.rglob("*") if path.is_file()}

    def state(self) -> tuple[list[str], set[str]]:
        """Return labels and files: all that an update changes but for contents."""
        return self.labels(), self.files()


def make_disk(raw: Path) -> None:
    """Write the disk: a table, an ESP, and two partitions of old content."""
    with raw.open("wb") as file:
        file.truncate((SECOND + SIZE) * MIB)
        file.seek(FIRST * MIB)
        file.write(b"\xff" * (2 * SIZE - 1) * MIB)
    rows = [
        "label: gpt",
        f"start=1MiB, size={ESP}MiB, type={gpt.ESP}, name=esp",
        f"start={FIRST}MiB, size={SIZE}MiB, type={ROOT_TYPE}, name=_empty",
        f"start={SECOND}MiB, size={SIZE - 1}MiB, type={ROOT_TYPE}, name=_empty",
    ]
    subprocess.run(["sfdisk", "--quiet", raw], input="\n".join(rows), text=True, check=True)


@contextmanager
def laboratory(
    release: SysupdateRelease, root: Path, place: Path, signer: ArchiveSigner
) -> Iterator[SysupdateLab]:
    """Open a laboratory: the disk on a loop device, and a web server."""
    lab = SysupdateLab(release, root, place, signer)
    make_disk(lab.raw)
    for folder in (lab.web, lab.esp):
        folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ESP}M", "esp", lab.esp], check=True)
    lab.entries.mkdir(parents=True)
    (lab.esp / "EFI/goldnode").mkdir(parents=True)
    for path in (root / "etc").glob("sysupdate*.d"):
        shutil.rmtree(path)
    keyring = root / "etc" / KEYRING
    keyring.parent.mkdir(parents=True, exist_ok=True)
    keyring.write_bytes(dearmor(signer.public))
    handler = type("OwnHandler", (Handler,), {})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(handler, directory=str(lab.web))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = subprocess.run(
        ["losetup", "--find", "--show", lab.raw], capture_output=True, text=True, check=True
    )  # fmt: skip
    lab.loop, lab.port, lab.handler = done.stdout.strip(), server.server_address[1], handler
    try:
        yield lab
    finally:
        server.shutdown()
        server.server_close()
        subprocess.run(["losetup", "--detach", lab.loop], check=False)
        subprocess.run(["umount", lab.esp], check=False)
