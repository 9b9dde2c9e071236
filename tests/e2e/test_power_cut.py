"""Power loss in the middle of an apply, and the return to an older kernel: real Debian kernels and GRUB in
QEMU.

The newer kernel is a package in a local archive: Debian's kernel and maintainer scripts, with only the
modules that this machine needs. To cut the power, the test kills QEMU while the guest is paused and the disk
has exactly the completed writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.qemu import disk
from tests.e2e.test_boot_entry import base, class_document, installed_version, read_choice

from goldnode.core import program_file as nodefile
from goldnode.node.effective import grub
from goldnode.node.state import applied, observe
from goldnode.node.state.domains.program import class_file, document_digest

pytestmark = pytest.mark.qemu

__all__ = ["base"]

DRIVE = (Path(__file__).parent / "qemu" / "guest_drive.py").read_text()
# Modules that this machine, its root and its initramfs need, by their directories.
MODULES = (
    "kernel/arch/x86/crypto",
    "kernel/crypto",
    "kernel/drivers/block",
    "kernel/drivers/char/hw_random",
    "kernel/drivers/virtio",
    "kernel/fs",
    "kernel/fs/autofs",
    "kernel/fs/ext4",
    "kernel/fs/jbd2",
    "kernel/lib",
)


def kernel_package(image: Path, release: str, scratch: Path) -> tuple[bytes, str]:
    """The installed kernel as a package again, with its own control files, and its stanza for an index."""
    name = f"linux-image-{release}"
    tree = scratch / "package"
    disk.extract(image, [f"/lib/modules/{release}"], scratch / "whole")
    whole, modules = scratch / "whole/lib/modules" / release, tree / "lib/modules" / release
    modules.mkdir(parents=True)
    for file in whole.glob("modules.*"):
        if file.name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            shutil.copy(file, modules)
    for place in MODULES:
        for file in (whole / place).glob("*.ko*"):
            target = modules / file.relative_to(whole)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    (tree / "boot").mkdir()
    for part in ("vmlinuz", "config", "System.map"):
        (tree / "boot" / f"{part}-{release}").write_bytes(
            disk.read(image, f"/boot/{part}-{release}")
        )
    (tree / "DEBIAN").mkdir()
    for script in ("preinst", "postinst", "prerm", "postrm"):
        (tree / "DEBIAN" / script).write_bytes(
            disk.read(image, f"/var/lib/dpkg/info/{name}.{script}")
        )
        (tree / "DEBIAN" / script).chmod(0o755)
    status = disk.read(image, "/var/lib/dpkg/status").decode()
    (stanza,) = [
        part for part in status.split("\n\n") if part.lstrip().startswith(f"Package: {name}\n")
    ]
    lines = [
        line
        for line in stanza.strip().splitlines()
        if not line.startswith(("Status:", "Config-Version:"))
    ]
    control = "\n".join(lines) + "\n"
    (tree / "DEBIAN/control").write_text(control)
    disk.run("dpkg-deb", "--root-owner-group", "-Zgzip", "-b", tree, scratch / "kernel.deb")
    data = (scratch / "kernel.deb").read_bytes()
    fields = (
        f"Filename: ./kernel.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    )
    # The long description comes last in a stanza: the fields go before the first.
    return data, control.replace("\n", "\n" + fields, 1)


def with_package(document: dict[str, Any], data: bytes | None) -> dict[str, Any]:
    """The class document with the bytes of its kernel's package, and its digest."""
    if data is not None:
        document["packages"][0].update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    document["lock"] = {
        "digest": "sha256:" + hashlib.sha256(document["kernel"]["release"].encode()).hexdigest(),
        "resolved": "1970-01-01",
    }
    document["modules"], document["runtime"] = [], None
    return {**document, "digest": document_digest(document)}


class Machine:
    """A disk and what it is given at each boot."""

    def __init__(self, image: Path, scratch: Path, files: dict[str, str | bytes]) -> None:
        self.image, self.scratch, self.files, self.boots = image, scratch, files, 0

    def boot(
        self,
        *commands: str,
        cut: str | None = None,
        copies: Mapping[str, Path] | None = None,
        kernel: tuple[Path, Path] | None = None,
    ) -> str:
        """Boot, run the commands, end as a reboot would; returns the console. `cut`: the file at whose appearance the power goes; `copies`:
        files at whose appearance the disk is copied, as a power cut would leave it; `kernel`: (vmlinuz, initrd) to boot without asking GRUB."""
        script = "set -eu\nexport DEBIAN_FRONTEND=noninteractive\n" + "".join(
            f"{line}\n" for line in commands
        )
        self.boots += 1
        console = disk.boot(
            self.image,
            {**self.files, "run": script, "then": "reboot", "drive.py": DRIVE},
            self.scratch,
            cut=f"DRIVE CUT {cut}" if cut else None,
            copies={f"DRIVE CUT {sign}": path for sign, path in (copies or {}).items()},
            kernel=kernel,
        )
        (self.scratch / "console").rename(self.scratch / f"console-{self.image.stem}-{self.boots}")
        assert cut or disk.DONE + "0" in console, console[-4000:]
        return console

    def text(self, path: str) -> str:
        """A text file of the disk."""
        return disk.read(self.image, path).decode()

    def default(self) -> str | None:
        """The kernel of every boot but one that `next_entry` asks for, from the disk's own grub.cfg."""
        return grub.next_boot(self.text("/boot/grub/grub.cfg"), b"").release


def kernel(console: str) -> str:
    """The kernel that the guest ran."""
    (found,) = set(re.findall(r"DRIVE KERNEL (\S+) @", console))
    return str(found)


def reported(console: str, word: str) -> Any:
    """What the guest told under a word, last."""
    return json.loads(re.findall(rf"^DRIVE {word} (.*)$", console, re.M)[-1])


def documents(image: Path, releases: tuple[str, ...], data: bytes | None = None) -> tuple[Any, Any]:
    """The class documents of both kernels, the older first."""
    made = [
        class_document(release, installed_version(image, f"linux-image-{release}"))
        for release in releases
    ]
    return with_package(made[0], None), with_package(made[1], data)


DRIVER = "python3 /run/payload/drive.py"


def start(base: disk.Base, scratch: Path) -> tuple[Machine, Sequence[str], dict[str, Any]]:
    """A machine that is to get its newer kernel, the commands that take it away first, and what its first boot is started with."""
    older, newer = base.releases
    image = disk.copy(base, scratch / "disk.raw")
    data, stanza = kernel_package(image, newer, scratch)
    first, second = documents(image, base.releases, data)
    files: dict[str, str | bytes] = {
        "goldnode-node": nodefile.build(),
        "kept.json": class_file(first).content,
        "newer.json": json.dumps(second),
        "repo/kernel.deb": data,
        "repo/Packages": stanza,
        "local.list": "deb [trusted=yes] copy:/run/payload/repo ./\n",
    }
    # Before all this: the older kernel alone, and its class document, as a goldnode without a history of documents has left it.
    outside = (scratch / "vmlinuz", scratch / "initrd.img")
    for file in outside:
        file.write_bytes(disk.read(image, f"/boot/{file.name}-{older}"))
    begin = (
        "cp /run/payload/local.list /etc/apt/sources.list.d/; rm -f /etc/apt/sources.list",
        "mkdir -p /etc/goldnode; cp /run/payload/kept.json /etc/goldnode/class.json",
        f"apt-get purge -y linux-image-{newer} </dev/null",
    )
    return Machine(image, scratch, files), begin, {"kernel": outside}


def finished(machine: Machine, console: str, releases: tuple[str, ...]) -> None:
    """The run that went on has done all there was to do."""
    older, newer = releases
    assert kernel(console) == older
    assert reported(console, "LEFT") == []
    assert (machine.default(), machine.text("/root/audit")) == (newer, "")
    rows = json.loads(machine.text("/var/lib/goldnode/classes/index.json"))["rows"]
    assert [(row["release"], row["whole"]) for row in rows] == [(older, True), (newer, True)]


@pytest.mark.long
def test_after_a_power_cut_it_boots_and_the_next_run_goes_on(
    base: disk.Base, tmp_path: Path
) -> None:
    """The power goes while the initramfs is written. The disk is looked at as it is while the kernel is unpacked and while GRUB is configured."""
    older, newer = base.releases
    machine, begin, outside = start(base, tmp_path)
    unpacking, initramfs, configuring = (
        sign.format(newer)
        for sign in (
            "/boot/vmlinuz-{}.dpkg-new",
            "/boot/initrd.img-{}.new",
            "/boot/grub/grub.cfg.new",
        )
    )
    forward = f"{DRIVER} forward /run/payload/newer.json"
    halves = [
        Machine(tmp_path / name, tmp_path, {}) for name in ("unpacking.raw", "configuring.raw")
    ]
    console = machine.boot(
        *begin,
        f"{forward} {unpacking} {initramfs}",
        cut=initramfs,
        copies={unpacking: halves[0].image},
        **outside,
    )
    assert kernel(console) == older
    assert machine.default() == older
    console = machine.boot(
        f"{forward} {configuring}",
        "dpkg --audit >/root/audit",
        copies={configuring: halves[1].image},
    )
    finished(machine, console, base.releases)
    for half in halves:
        assert half.default() == older, half.image
        assert (
            disk.read(half.image, f"/boot/vmlinuz-{older}") == (tmp_path / "vmlinuz").read_bytes()
        )


@pytest.mark.long
def test_after_three_power_cuts_it_boots_and_the_next_run_goes_on(
    base: disk.Base, tmp_path: Path
) -> None:
    older, newer = base.releases
    machine, begin, outside = start(base, tmp_path)
    signs = (
        f"/boot/vmlinuz-{newer}.dpkg-new",
        f"/boot/initrd.img-{newer}.new",
        "/boot/grub/grub.cfg.new",
    )
    for sign in signs:
        first = sign == signs[0]
        forward = f"{DRIVER} forward /run/payload/newer.json {sign}"
        console = machine.boot(
            *(begin if first else ()), forward, cut=sign, **(outside if first else {})
        )
        assert kernel(console) == older
        assert machine.default() == older, sign
    console = machine.boot(f"{DRIVER} forward /run/payload/newer.json", "dpkg --audit >/root/audit")
    finished(machine, console, base.releases)


@pytest.mark.long
def test_the_older_kernel_is_tried_by_one_boot_and_stays_only_if_its_check_is_good(
    base: disk.Base, tmp_path: Path
) -> None:
    older, newer = base.releases
    image = disk.copy(base, tmp_path / "disk.raw")
    first, second = documents(image, base.releases)
    # As a goldnode that brought the newer kernel to a machine of the older class has left it.
    rows = [applied.row_of(first, "apply", whole=True), applied.row_of(second, "apply", whole=True)]
    place = f"seed{applied.PLACE}"
    files: dict[str, str | bytes] = {
        "goldnode-node": nodefile.build(),
        "seed/etc/goldnode/class.json": class_file(second).content,
        f"seed{observe.INDEX}": json.dumps({"schema": applied.SCHEMA, "rows": rows}),
        f"{place}/{rows[0]['document'].partition(':')[2]}.json": class_file(first).content,
        f"{place}/{rows[1]['document'].partition(':')[2]}.json": class_file(second).content,
        f"{place}/{first['digest'].partition(':')[2]}.packages": json.dumps(
            {f"linux-image-{older}": "as locked"}
        ),
        "seed/var/lib/goldnode/state.json": json.dumps(
            {"brought": [f"linux-image-{newer}"], "held": [f"linux-image-{newer}"]}
        ),
    }
    machine = Machine(image, tmp_path, files)
    console = machine.boot("cp -r /run/payload/seed/. /", f"{DRIVER} back")
    assert kernel(console) == newer
    assert f"boot.once {older}" in reported(console, "DID")
    assert reported(console, "LEFT") == []
    # The kernel of before is asked for once, and the default stays.
    choice = read_choice(image)
    assert (choice.release, choice.via, machine.default()) == (older, "next_entry", newer)

    # A check that finds something: the boot after that is the earlier default's, with nobody doing anything.
    spoilt = Machine(tmp_path / "spoilt.raw", tmp_path, files)
    disk.run("cp", "--sparse=always", image, spoilt.image)
    status = machine.text("/var/lib/dpkg/status")
    package = re.search(
        rf"^Package: linux-image-{re.escape(older)}\n(?:\S.*\n| .*\n)*?Version: ", status, re.M
    )
    assert package is not None
    disk.write(
        spoilt.image,
        "/var/lib/dpkg/status",
        (status[: package.end()] + "0~" + status[package.end() :]).encode(),
        tmp_path,
    )
    console = spoilt.boot(f"{DRIVER} look")
    assert kernel(console) == older
    assert f"kernel {older} does not become the default: stack.lock: " in reported(console, "CHECK")
    assert spoilt.default() == newer
    console = spoilt.boot(f"{DRIVER} look")
    assert kernel(console) == newer
    assert (
        json.loads(spoilt.text("/var/lib/goldnode/trial.json"))["failed"]
        == f"the boot that tried it came up with {newer}"
    )

    # A check that finds nothing: the older kernel is the default from then on, and what came with the newer leaves.
    console = machine.boot(f"{DRIVER} settle")
    assert kernel(console) == older
    assert f"kernel {older} is the default from now on" in reported(console, "CHECK")
    assert reported(console, "DID") == ["packages.transact boot_test"]
    assert reported(console, "LEFT") == []
    assert machine.default() == older
    with pytest.raises(disk.GuestError, match="cannot be read"):
        disk.read(image, f"/boot/vmlinuz-{newer}")
    rows = json.loads(machine.text("/var/lib/goldnode/classes/index.json"))["rows"]
    assert [(row["release"], row["by"]) for row in rows] == [(newer, "apply"), (older, "rollback")]
    assert rows[-1]["good"]
