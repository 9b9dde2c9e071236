"""Two, three and four disks of one image in a machine: each boots from its own root and ESP, in every order of discovery.

Emulated UEFI firmware, systemd-boot and Debian; most boots end where the initramfs has chosen the root. The disks are overlays of
one raw disk, and the order of their PCI slots is the order in which Linux finds them. A table of the boots goes to standard output (`-s`).
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.disks import slotdisk
from tests.disks.test_disk_slots import apply, document
from tests.e2e.qemu.disk import OVMF_VARS, debian, run

from goldnode.disks import firstboot, gpt, rootfs
from goldnode.node.state.domains.program import document_digest

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("identity")]

BOTH = ("bookworm", "trixie")  # systemd-boot 252 and 257
Images = Callable[[str], Path]
CHOSEN = re.compile(r"goldnode: root is /dev/(\w+?)(\d) of disk (\w+), by (.*)")
STARTED = re.compile(r"BdsDxe: starting Boot\w+ .* from PciRoot\(0x0\)/Pci\(0x(\w+),0x0\)")
FIRST_SLOT = 5  # PCI slot of the first disk, which Linux names vda
RUN = r"""
exec 2>&1
for i in $(seq 300); do mountpoint -q /efi && break; sleep 1; done
for i in $(seq 300); do systemctl is-active -q goldnode-identity.service && break; [ -e /run/goldnode/identify ] || break; sleep 1; done
echo "GUEST MOUNTS $(findmnt -no SOURCE /) $(findmnt -no SOURCE /efi)"
echo "GUEST LINKS $(cd /dev/goldnode && for name in *; do echo "$name=$(readlink $name)"; done | tr '\n' ' ')"
udevadm trigger --settle --subsystem-match=block
echo "GUEST DISKS $(lsblk -J -o NAME,PARTLABEL,PARTUUID,UUID,MOUNTPOINT | tr -d '\n')"
echo "GUEST OPTIONS $(grep -h ^options /efi/loader/entries/*)"
echo "GUEST MACHINE $(cat /etc/machine-id)"
/usr/lib/goldnode/goldnode-node check --format json | tr -d '\n' | grep -o '"id": "boot.disk", "outcome": "[a-z_]*", "expected": "[^"]*"' >/run/finding
echo "GUEST FINDING $(cat /run/finding)"
echo "GUEST END $(systemctl show -p Result --value goldnode-identity.service)"
"""


def shape(root: Path) -> None:
    """Add to a tree what makes a root of an image of it: what an initramfs runs, udev's rule, units and fstab."""
    rootfs.add_initramfs_scripts(root)
    common = firstboot.FILES / "common"
    for name in ("udev/rules.d/61-goldnode-disk.rules", "systemd/system/goldnode-identity.service"):
        (root / "usr/lib" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(common / "usr/lib" / name, root / "usr/lib" / name)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    (wants / "goldnode-identity.service").symlink_to(
        "/usr/lib/systemd/system/goldnode-identity.service"
    )
    (root / "etc/fstab").write_text(
        "/dev/root / ext4 errors=remount-ro 0 1\n/dev/goldnode/esp /efi vfat umask=0077,nofail 0 0\n"
    )
    release = slotdisk.release(root)
    run("chroot", root, "mkinitramfs", "-o", f"/boot/initrd.img-{release}", release)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """The disk as built, by suite; kernel and initramfs lie beside it."""
    made: dict[str, Path] = {}

    def of(suite: str) -> Path:
        if suite not in made:
            made[suite] = build(suite, tmp_path_factory.mktemp(suite))
        return made[suite]

    yield of
    for path in made.values():
        path.unlink()


def build(suite: str, place: Path) -> Path:
    """A disk of layout `ab`, whose GUID is derived as that of an image."""
    more = (
        () if suite == "bookworm" else ("systemd-boot-efi",)
    )  # a package of its own since Debian 13
    root = slotdisk.unpack(slotdisk.tree(debian(suite, place), more=more), place / "root")
    release_file = (root / "etc/os-release").read_text()
    (version,) = re.findall(r'VERSION_ID="(\d+)"', release_file)
    wanted = document(root)
    wanted["os"] = {**wanted["os"], "version": version, "codename": suite}
    apply(root, {**wanted, "digest": document_digest(wanted)})
    shape(root)
    release = slotdisk.release(root)
    about = {
        "name": "boot_test-aaa",
        "class": "boot_test",
        "build_id": "aaa",
        "sequence": 1,
        "kernel": release,
    }
    files = slotdisk.root_image(root, place / "root.img", features="metadata_csum_seed")
    head = f"label-id: {uuid.uuid5(uuid.NAMESPACE_URL, 'an image')}\n"
    made = slotdisk.disk(root, files, about, place / "disk.raw", place, head=head)
    files.unlink()
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(root / f"boot/{name}-{release}", place / name)
    shutil.rmtree(root)
    return made


def overlay(base: Path, to: Path) -> Path:
    run("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", to)
    return to


@dataclass
class Machine:
    """A machine with disks in the order of their slots. Firmware variables are new, so that it finds the disks by itself."""

    disks: Sequence[Path]
    scratch: Path
    boots: int | None  # index of the disk that the firmware tries first; None: the order is its own
    extra: Sequence[str | Path] = ()
    more: Path | None = None
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)

    def until(self, text: str, limit: float = 3600) -> list[str]:
        """Run until the console shows a text; return its lines. Reset loops of the emulated timer end by themselves."""
        words: list[str | Path] = []
        for number, path in enumerate(self.disks):
            words += ["-drive", f"file={path},if=none,id=d{number},format=qcow2,cache=unsafe"]
            first = ",bootindex=0" if number == self.boots else ""
            words += [
                "-device",
                f"virtio-blk-pci,drive=d{number},addr={FIRST_SLOT + number:#x}{first}",
            ]
        if self.more:
            words += ["-drive", f"file={self.more},if=none,id=more,format=raw,readonly=on"]
            words += ["-device", "virtio-blk-pci,drive=more,addr=0x10"]
        variables = self.scratch / f"{uuid.uuid4()}.fd"
        shutil.copy(OVMF_VARS, variables)
        command = slotdisk.machine(variables, memory=768 if self.more else 512)
        begun = time.monotonic()
        with slotdisk.started(
            [*command, *words, *self.extra], self.scratch / "console.log"
        ) as guest:
            try:
                guest.wait(text, limit=limit)
            finally:
                self.seconds = time.monotonic() - begun
                self.lines = list(guest.lines)
        variables.unlink()
        return self.lines

    def chosen(self) -> tuple[str, str, str]:
        """Boot to the choice of the root: its disk, the disk that the firmware has started at last, and the source."""
        lines = self.until("goldnode: root is ")
        match = next(found for found in map(CHOSEN.search, reversed(lines)) if found)
        starts = [found[1] for found in map(STARTED.search, lines) if found]
        assert match[1] == match[3], "the root is a partition of the disk"
        booted = f"vd{chr(ord('a') + int(starts[-1], 16) - FIRST_SLOT)}" if starts else "none"
        return match[3], booted, match[4].strip()


def show(what: str, machine: Machine, result: object) -> None:
    print(f"{what}: {result}, {machine.seconds:.0f} s", flush=True)


def raw(path: Path, to: Path) -> Path:
    run("qemu-img", "convert", "-O", "raw", path, to)
    return to


def guids(path: Path, scratch: Path) -> set[str]:
    table = gpt.read(raw(path, scratch / "read.raw"))
    (scratch / "read.raw").unlink()
    return {table.disk, *(part.uuid for part in table.partitions)}


@pytest.mark.parametrize(
    ("suite", "number"), [("bookworm", 2), ("bookworm", 3), ("bookworm", 4), ("trixie", 2)]
)
def test_disks_of_one_image_never_boot_on_each_others_root(
    images: Images, tmp_path: Path, suite: str, number: int
) -> None:
    image = images(suite)
    # At the first boot of several disks nothing distinguishes them: each gets its own GUIDs, and the machine starts again.
    fresh = [overlay(image, tmp_path / f"{name}.qcow2") for name in "ABCD"[:number]]
    for first in range(number):
        for path in fresh:
            overlay(image, path)
        machine = Machine(fresh, tmp_path, first)
        result = machine.chosen()
        show(
            f"{suite}, {number} disks as built, the firmware boots number {first + 1}",
            machine,
            result,
        )
        letter = f"vd{'abcd'[first]}"
        assert result == (letter, letter, "loader")
        assert sum("reboot, so that the loader" in line for line in machine.lines) == 1
    rows = [guids(path, tmp_path) for path in fresh]
    assert len(set().union(*rows)) == 4 * number, "no GUID is on two disks"
    # Then in any order of discovery: all orders of two and three disks, and each place of the booted one of four.
    orders = list(itertools.permutations(range(number)))
    if number == 4:
        orders = [order for order in orders if order[0] < order[1] or order[3] == 0][::3]
    for turn, order in enumerate(orders):
        boots = turn % number if number > 2 else 1
        machine = Machine([fresh[index] for index in order], tmp_path, boots)
        result = machine.chosen()
        names = "".join("ABCD"[index] for index in order)
        show(
            f"{suite}, {number} disks in order {names}, the firmware boots {names[boots]}",
            machine,
            result,
        )
        letter = f"vd{'abcd'[boots]}"
        assert result == (letter, letter, "loader")


def reported(lines: Sequence[str]) -> Mapping[str, str]:
    rows = (line.partition("GUEST ")[2].partition(" ") for line in lines if "GUEST " in line)
    return {word: text for word, _, text in rows}


def partitions(text: str, disk: str) -> list[dict[str, str]]:
    found = [row for row in json.loads(text)["blockdevices"] if row["name"] == disk]
    return list(found[0]["children"])


@pytest.mark.parametrize("suite", BOTH)
def test_system_of_each_disk_has_its_own_esp_and_an_identity_that_stays(
    images: Images, tmp_path: Path, suite: str
) -> None:
    image = images(suite)
    more = slotdisk.payload({"run": RUN}, tmp_path / "more.img", tmp_path, "8M")
    disks = [overlay(image, tmp_path / f"{name}.qcow2") for name in "AB"]
    identities = []
    for first, order in ((1, disks), (0, disks), (0, disks[::-1])):
        machine = Machine(order, tmp_path, first, more=more)
        found = reported(machine.until("GUEST END"))
        own = f"vd{'ab'[first]}"
        show(f"{suite}, system on {own}", machine, found["FINDING"])
        assert found["MOUNTS"] == f"/dev/{own}2 /dev/{own}1"
        assert set(found["LINKS"].split()) == {
            f"esp=../{own}1",
            f"root-a=../{own}2",
            f"root-b=../{own}3",
        }
        assert (
            f'"outcome": "match", "expected": "root, ESP and the booted partition are on one disk, {own} (by loader)"'
            in found["FINDING"]
        )
        rows = partitions(found["DISKS"], own)
        assert found["OPTIONS"].split().count(f"goldnode.disk={rows[0]['partuuid']}") == 1
        assert rows[0]["uuid"] == f"{rows[0]['partuuid'][:4]}-{rows[0]['partuuid'][4:8]}".upper()
        assert found["END"] == "success"
        identities.append(
            [
                found["MACHINE"],
                *(row[key] for row in rows for key in ("partuuid", "uuid") if row[key]),
            ]
        )
    one, two, again = identities
    assert not set(one) & set(two), "nothing is equal on two disks"
    assert set(again) == set(one), "the disk that ran first, now found first"


def test_without_efi_variables_the_entry_or_one_label_decides(
    images: Images, tmp_path: Path
) -> None:
    """A kernel that gets no EFI variables: direct kernel boot, and `efi=noruntime` (the default of a kernel with PREEMPT_RT)."""
    image = images("bookworm")
    disks = [overlay(image, tmp_path / f"{name}.qcow2") for name in "AB"]
    Machine(disks, tmp_path, 0).chosen()
    esps = [gpt.read(raw(path, tmp_path / "read.raw")).partitions[0].uuid for path in disks]

    def direct(*words: str) -> list[str | Path]:
        line = " ".join(["root=PARTLABEL=root-a", slotdisk.OPTIONS, *words])
        return [
            "-kernel",
            image.parent / "vmlinuz",
            "-initrd",
            image.parent / "initrd.img",
            "-append",
            line,
        ]

    def boot(order: Sequence[Path], *words: str) -> tuple[str, str]:
        machine = Machine(order, tmp_path, None, direct(*words))
        result = machine.chosen()
        show(
            f"direct kernel boot, {len(order)} disks, {' '.join(words) or 'no word'}",
            machine,
            result,
        )
        return result[0], result[2]

    assert boot(disks[1:]) == ("vda", "label")
    assert boot(disks, f"goldnode.disk={esps[1]}", "efi=noruntime") == ("vdb", "command line")
    assert boot(disks[::-1], f"goldnode.disk={esps[1]}", "efi=noruntime") == ("vda", "command line")
    # Nothing says which disk: root and ESP are of one disk, and the check reports it.
    assert boot(disks)[1] == "chance"
