"""A disk with a good image in each slot, booted once, and then broken from outside in one way at a time.

Debian and goldnode's own units boot from an emulated disk under real firmware. The first boot gives the disk its identity, the image that runs its
retries, the ESP a recovery entry and the firmware its boot options. Each breakage is made in a copy of that disk, without a mount.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.disks import powerrun, slotdisk
from tests.disks.loaderlab import ESCAPES
from tests.disks.powerrun import SHIPPED, remake_esp
from tests.disks.test_disk_identity import shape
from tests.disks.test_disk_slots import apply, document
from tests.e2e.qemu.disk import OVMF_VARS, debian, run

from goldnode.node.ground.boot import ARMED
from goldnode.node.state.domains.program import document_digest

MIB = 1 << 20
# The ESP has room for three kernels and an update.
SIZES = (256 * MIB, 640 * MIB, 672 * MIB)
GUEST = Path(__file__).parent / "guest_fallback.sh"
STARTS = {"esp": MIB, "root-a": MIB + SIZES[0], "root-b": MIB + SIZES[0] + SIZES[1]}


def build(place: Path, suite: str = "bookworm") -> None:
    """Make disk.raw with images aaa in slot a and bbb in slot b, observe.img and a key of ssh in a directory."""
    with powerrun.patient():
        _build(place, suite)


def _build(place: Path, suite: str) -> None:
    more = slotdisk.MORE if suite == "bookworm" else (*slotdisk.MORE, "systemd-boot-efi")
    root = slotdisk.unpack(slotdisk.tree(debian(suite, place), more=more), place / "root")
    # The recovery entry keeps the host keys and addresses of the node.
    run("ssh-keygen", "-q", "-A", "-f", root)
    for name in ("systemd-networkd.service", "systemd-networkd.socket"):
        (root / "etc/systemd/system" / name).unlink()
    (version,) = re.findall(r'VERSION_ID="(\d+)"', (root / "etc/os-release").read_text())
    wanted = document(root)
    wanted["os"] = {**wanted["os"], "version": version, "codename": suite}
    apply(root, {**wanted, "digest": document_digest(wanted)})
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / "key")
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(place / "key.pub", root / "root/.ssh/authorized_keys")
    shape(root)
    release = slotdisk.release(root)
    about = {
        "name": "boot_test-aaa",
        "class": "boot_test",
        "build_id": "aaa",
        "sequence": 1,
        "kernel": release,
    }
    image = slotdisk.root_image(root, place / "root.img", SIZES[1], features="metadata_csum_seed")
    slotdisk.disk(root, image, about, place / "disk.raw", place, f"label-id: {SHIPPED}\n", SIZES)
    newer = {**about, "name": "boot_test-bbb", "build_id": "bbb", "sequence": 2}
    entry = Path(place / "entry")
    entry.write_text(
        f"title goldnode boot_test\nsort-key goldnode\nversion 2~bbb\nlinux /goldnode/b/vmlinuz\ninitrd /goldnode/b/initrd.img\n"
        f"options root=PARTLABEL=root-b {slotdisk.OPTIONS}\n"
    )
    (place / "slot.json").write_text(json.dumps(newer))
    volume = f"{place / 'disk.raw'}@@{STARTS['esp']}"
    run("mmd", "-i", volume, "::goldnode/b")
    for source, name in (
        (root / f"boot/vmlinuz-{release}", "goldnode/b/vmlinuz"),
        (root / f"boot/initrd.img-{release}", "goldnode/b/initrd.img"),
        (place / "slot.json", "goldnode/b/slot.json"),
        (entry, "loader/entries/goldnode-bbb-b.conf"),
    ):
        run("mcopy", "-i", volume, source, f"::{name}")
    run("tune2fs", "-L", "root-b", image)
    run(
        "dd",
        f"if={image}",
        f"of={place / 'disk.raw'}",
        "bs=1M",
        f"seek={STARTS['root-b'] // MIB}",
        "conv=notrunc,sparse",
        "status=none",
    )
    arm(place / "disk.raw", "aaa-a", place)
    remake_esp(place / "disk.raw", SIZES[0])
    slotdisk.payload({"run": GUEST.read_text()}, place / "observe.img", place, "8M")
    shutil.rmtree(root)
    for name in ("root.img", "entry", "slot.json"):
        (place / name).unlink()


def arm(disk: Path, name: str, scratch: Path) -> None:
    """Have an image as it is once it has run: with three tries. One that never ran with goldnode's retries is not given up."""
    volume, copy = f"{disk}@@{STARTS['esp']}", scratch / "armed"
    run("mcopy", "-n", "-o", "-i", volume, f"::loader/entries/goldnode-{name}.conf", copy)
    copy.write_text(copy.read_text().replace("\noptions ", f"\noptions {ARMED} "))
    run("mcopy", "-n", "-o", "-i", volume, copy, f"::loader/entries/goldnode-{name}+3.conf")
    run("mdel", "-i", volume, f"::loader/entries/goldnode-{name}.conf")
    copy.unlink()


@dataclass
class Outcome:
    """Output of a machine: lines with seconds since power on, and how it ended: `off`, the text waited for, or `limit`."""

    lines: list[tuple[float, str]]
    end: str
    seconds: float

    def reports(self) -> Mapping[str, str]:
        """Return the reports of the guest, by word."""
        rows = (text.partition("GUEST ")[2] for _, text in self.lines if text.startswith("GUEST "))
        return dict([*row.split(" ", 1), ""][:2] for row in rows)

    def shows(self, text: str) -> bool:
        return any(text in line for _, line in self.lines)


def boot(
    place: Path,
    disk: Path,
    variables: Path,
    scratch: Path,
    *extra: str,
    until: Sequence[str] = ("GUEST ENDED",),
    limit: float = 1500,
    port: int = 0,
    then: Callable[[], None] | None = None,
) -> Outcome:
    """Boot a disk with the firmware's variables, which it changes, until it says one of some texts; call `then` while it runs."""
    forward = f",hostfwd=tcp:127.0.0.1:{port}-:22" if port else ""
    command: list[str | Path] = [
        *slotdisk.machine(variables), "-nic", f"user,model=virtio-net-pci{forward}",
        "-drive", f"file={disk},if=none,id=slots,format=raw,cache=unsafe", "-device", "virtio-blk-pci,drive=slots",
        "-drive", f"file={place / 'observe.img'},if=virtio,format=raw,readonly=on", *extra,
    ]  # fmt: skip
    lines: list[tuple[float, str]] = []
    begun, end, at = time.monotonic(), "", 0
    with slotdisk.started(command, scratch / "fallback.console") as guest:
        while not end:
            with guest.news:
                guest.news.wait(1)
                fresh, at = guest.lines[at:], len(guest.lines)
            now = round(time.monotonic() - begun, 1)
            for line in fresh:
                lines.append((now, ESCAPES.sub("", line)))
                end = end or next((text for text in until if text in line), "")
            if not end and now > limit:
                end = "limit"
        if then is not None:
            then()
    return Outcome(lines, end, now)


def first(place: Path, scratch: Path) -> Outcome:
    """Boot disk.raw once: it becomes good.raw and good.fd, with retries, recovery and boot options."""
    run("cp", "--sparse=always", place / "disk.raw", scratch / "good.raw")
    shutil.copy(OVMF_VARS, scratch / "good.fd")
    found = boot(place, scratch / "good.raw", scratch / "good.fd", scratch)
    for name in ("good.raw", "good.fd"):
        shutil.move(scratch / name, place / name)
    return found


def ssh(place: Path, port: int, command: str, limit: float = 60) -> str:
    """Output of a command in the guest, over ssh."""
    done = subprocess.run(
        [
            "ssh", "-i", str(place / "key"), "-p", str(port), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=30", "-F", "/dev/null", "root@127.0.0.1", command,
        ],
        capture_output=True, text=True, check=False, timeout=limit,
    )  # fmt: skip
    return done.stdout + done.stderr
