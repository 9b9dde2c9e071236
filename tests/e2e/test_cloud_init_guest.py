"""User data of `goldnode class user-data` in an emulated machine: a vendor's image, its GRUB, real kernels and Debian's real packages.

The image is a stand-in for Debian's `genericcloud` (tests/e2e/qemu/cloud_image.py). Mirror and user data come from a web server of this machine. Once
the power is cut while the kernel is installed. The last lines of the test print the seconds of each step.
"""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.qemu import cloud_image, disk

from goldnode.disks.qemu import Drive, GuestResult, VirtualMachine, VmOptions
from goldnode.documents.join import JoinDocument

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mmdebstrap needs root"),
    pytest.mark.skipif(
        shutil.which("xorriso") is None, reason="it makes the seed: apt-get install xorriso"
    ),
]

CLASS = STACK = "vendor12"
# Without a container engine: emulated, each package takes seconds.
CATALOG = {
    f"stacks/{STACK}.yml": """\
stack: vendor12
description: A kernel and nothing else
os: {id: debian, version: "12", codename: bookworm, architecture: amd64}
exercised: debian-archive
archives: [debian, debian-security]
kernel: {series: "6.1", flavour: amd64}
driver: null
fence: [linux-image-amd64, linux-headers-amd64]
end_of_life: {date: "2028-06-30", source: "Debian 12 LTS until 2028-06-30 (facts/distros.yml, eol)"}
limits: [A kernel without a container engine.]
waiver: null
""",
    f"classes/{CLASS}.yml": """\
class: vendor12
description: Node without a GPU, made from a vendor's image
backend: cpu
stack: vendor12
platform: generic
""",
}
RECORD = "/var/lib/cloud/data/goldnode-join.json"
# Seconds of the guest's own time: emulated, what a machine does in seconds takes minutes.
LIMIT = 3600


@dataclass
class Publication:
    """Mirror and user data for the instance, on a web server of this machine."""

    folder: Path
    url: str

    def goldnode(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "goldnode.cli", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Prints nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publication]:
    """The stack of today's archive and the node program in a mirror, as a site has them."""
    folder = tmp_path_factory.mktemp("site")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = Publication(folder, f"http://10.0.2.2:{server.server_address[1]}")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS"):
            patch.delenv(name, raising=False)
        patch.setenv("GOLDNODE_SITE", str(folder / "site.yml"))
        site.goldnode("mirror", "key", "--out", "keys")
        keys = {"key": "keys/mirror.asc", "signing_key": "keys/mirror-signing.asc"}
        mirror = {"directory": str(folder / "mirror"), "url": f"{site.url}/mirror", **keys}
        for name, text in CATALOG.items():
            (folder / "catalog" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "catalog" / name).write_text(text)
        (folder / "site.yml").write_text(
            yaml.safe_dump({"catalog": "catalog", "locks": str(folder / "locks"), "mirror": mirror})
        )
        for words in (
            ("lock", STACK, "--out", str(folder / "locks")),
            ("mirror", "fetch", STACK),
            ("package", "publish"),
        ):
            site.goldnode(*words)
        disk.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ssh")
        key = (folder / "ssh.pub").read_text().strip()
        (folder / "mine.yml").write_text(
            f"#cloud-config\nssh_authorized_keys: ['{key}']\nruncmd: [[touch, /var/log/mine]]\n"
        )
        site.goldnode("class", "user-data", CLASS, "--part", "mine.yml", "--out", "user-data")
    yield site
    server.shutdown()


class Guest(VirtualMachine):
    """A machine that reaches the web server of this machine, at 10.0.2.2."""

    def command(self, qmp: int) -> list[str]:
        return [word.replace("restrict=on,", "") for word in super().command(qmp)]


class Instance:
    """A machine with the vendor's image; its disk stays from boot to boot."""

    def __init__(self, image: Path, site: Publication, folder: Path) -> None:
        # Larger than the image, as every platform has it: the root has to grow.
        file = folder / "disk.qcow2"
        disk.run("qemu-img", "create", "-q", "-f", "qcow2", "-b", image, "-F", "raw", file, "8G")
        seed = folder / "seed"
        seed.mkdir()
        shutil.copy(site.folder / "user-data", seed)
        (seed / "meta-data").write_text("instance-id: i-1\nlocal-hostname: gpu01\n")
        iso = folder / "seed.iso"
        disk.run(
            *("xorriso", "-as", "mkisofs", "-quiet", "-V", "cidata", "-J", "-r", "-o", iso, seed)
        )
        options = VmOptions(
            snapshot=False,
            form="qcow2",
            memory=1024,
            key=site.folder / "ssh",
            user=cloud_image.USER,
            # Not as a CD: Debian 12's cloud kernel has no driver for SATA.
            drives=[Drive(iso)],
        )
        self.guest = Guest(file, folder / "machine", options)
        self.steps: list[tuple[str, float]] = []
        self.began = time.monotonic()

    def wait(self, text: str) -> None:
        """Wait for a text on the console after the one before, and note both times."""
        seen = len(self.guest.console()) - len(self.rest)
        self.rest = self.guest.wait_for(text, LIMIT, since=seen).partition(text)[2]
        self.steps.append((text, self.guest.time()))

    rest = ""

    def boot(self) -> None:
        """Start the machine with the disk as it is."""
        self.guest.start()
        self.steps.append(("start", 0))
        self.rest = ""

    def run(self, command: str) -> GuestResult:
        """Run a command as the image's user."""
        return self.guest.ssh([command], limit=LIMIT)

    def ask(self, command: str) -> str:
        """Run a command as the image's user, which succeeds, and return what it prints."""
        done = self.run(command)
        assert done.rc == 0, (command, done)
        return done.out.strip()

    def record(self) -> JoinDocument:
        """Return the record, which every user may read."""
        return JoinDocument.model_validate_json(self.ask(f"cat {RECORD}"))


def test_vendor_image_joins_through_a_power_cut(published: Publication, tmp_path: Path) -> None:
    image = cloud_image.ensure(disk.debian("bookworm", tmp_path))
    lock = yaml.safe_load((published.folder / "locks" / f"{STACK}.lock.yml").read_text())
    wanted = lock["kernel_release"]
    instance = Instance(image, published, tmp_path)
    try:
        joins(instance, wanted)
    finally:
        instance.guest.cut()
        for text, seconds in instance.steps:
            print(f"{seconds:7.0f} s of the guest's time: {text}")
        print(f"{time.monotonic() - instance.began:.0f} s in all")


def joins(instance: Instance, wanted: str) -> None:
    """From the first boot to one that changes nothing."""
    instance.boot()
    instance.wait("goldnode: the plan:")
    assert instance.ask("uname -r").endswith("-cloud-amd64")
    assert int(instance.ask("df --output=size -BM / | tail -n 1 | tr -dc 0-9")) > 6000
    instance.wait("goldnode: installing ")
    while instance.run(f"ls /boot/vmlinuz-{wanted}").rc != 0:
        time.sleep(5)
    assert instance.record().state == "applying"
    instance.guest.cut()

    instance.boot()
    for text in (
        "goldnode: the plan:",
        "goldnode: applied; it reboots now",
        f"Linux version {wanted} ",
        f"goldnode: this machine is a member of class {CLASS}",
    ):
        instance.wait(text)
    ended = instance.run("cloud-init status --wait --long")
    assert (ended.rc, "status: done" in ended.out) == (0, True), ended
    assert instance.ask("uname -r") == wanted
    record = instance.record()
    assert (record.state, record.verdict, record.boot) == ("joined", 0, None)
    assert instance.ask("ls /var/log/mine")
    installed = instance.ask("dpkg-query -W | sha256sum")
    instance.guest.stop(LIMIT)

    instance.boot()
    instance.wait("goldnode: this machine joined class")
    assert instance.ask("dpkg-query -W | sha256sum") == installed
    assert instance.record() == record
