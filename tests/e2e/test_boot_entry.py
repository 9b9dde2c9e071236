"""Default boot entry and host tuning, tested by booting: real kernels, update-grub, and GRUB under emulated
UEFI.

A guest boots its newest kernel, and gets a class with the older one and with host tuning. The engine on the
node sets both, and the guest reboots. It must come up with the older kernel, tuned. Before each boot, our
reader of the disk's grub.cfg and grubenv must predict the kernel.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.qemu import disk, tuning
from tests.nodes.reader import booted_by_id

from goldnode.core import program_file as nodefile
from goldnode.node.effective import grub, initramfs
from goldnode.node.state.domains.program import document_digest

pytestmark = pytest.mark.qemu

CODENAME = "bookworm"
KERNEL = "GUEST-KERNEL:"

# The one place that knows how the engine is called on a node.
APPLY = """set -eu
echo "@KERNEL@ $(uname -r) @"
cp /run/payload/goldnode-node /root/goldnode-node
python3 /root/goldnode-node apply --class /run/payload/class.json --part kernel
python3 /root/goldnode-node plan --format json --class /run/payload/class.json >/root/plan.json
lsinitramfs /boot/initrd.img-$(uname -r) >/root/lsinitramfs
""".replace("@KERNEL@", KERNEL)
# As if goldnode had brought the kernel that runs, on a machine that ran the other one.
LEAVE = """set -eu
echo "@KERNEL@ $(uname -r) @"
if [ -e /run/payload/state.json ]; then
    install -D -m 644 /run/payload/state.json /var/lib/goldnode/state.json
    apt-mark hold linux-image-$(uname -r)
fi
python3 /run/payload/goldnode-node apply --absent
python3 /run/payload/goldnode-node plan --absent --format json >/root/plan.json
dpkg-query -W -f '${Package} ${Status}\\n' 'linux-image-*' >/root/kernels
""".replace("@KERNEL@", KERNEL)
LOOK = f"""echo "{KERNEL} $(uname -r) @"
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> disk.Base:
    """The base disk: Debian from where this site has it."""
    return disk.base(disk.debian(CODENAME, tmp_path_factory.mktemp("keys")))


def class_document(release: str, version: str) -> dict[str, Any]:
    """A class without a GPU whose stack is one kernel."""
    document: dict[str, Any] = {
        "schema": "goldnode.class/1",
        "class": "boot_test",
        "backend": "cpu",
        "simulated": True,
        "gate": "report",
        "os": {"id": "debian", "version": "12", "codename": CODENAME, "architecture": "amd64"},
        "stack": {
            "name": "boot_test",
            "exercised": "debian-archive",
            "end_of_life": None,
            "limits": [],
            "waiver": None,
        },
        "lock": {"digest": "sha256:0", "resolved": "1970-01-01"},
        "gpu": None,
        "platform": {"name": "generic", "nvswitch": False},
        "driver": None,
        "blacklist": [],
        "fence": [],
        "kernel": {
            "release": release,
            "image": f"linux-image-{release}",
            "headers": f"linux-headers-{release}",
        },
        "packages": [
            {
                "name": f"linux-image-{release}",
                "version": version,
                "architecture": "amd64",
                "sha256": "0" * 64,
                "size": 1,
                "part": "kernel",
                "requested": True,
            }
        ],
        "policy": {},
        "baseline": {},
    }
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return {
        **document,
        "digest": "sha256:" + hashlib.sha256(canonical.encode()).hexdigest(),
        "site": {"archives": []},
    }


def installed_version(image: Path, package: str) -> str:
    """From the guest's own dpkg status."""
    status = disk.read(image, "/var/lib/dpkg/status").decode()
    found = re.search(
        rf"^Package: {re.escape(package)}\n(?:\S.*\n| .*\n)*?Version: (\S+)$", status, re.M
    )
    assert found
    return found[1]


def read_choice(image: Path) -> grub.GrubChoice:
    """Our reading of the guest's files; the plain reader of the node suite must agree wherever it can tell."""
    config, stored = (
        disk.read(image, "/boot/grub/grub.cfg").decode(),
        disk.read(image, "/boot/grub/grubenv"),
    )
    choice = grub.next_boot(config, stored)
    bare = booted_by_id(config, grub.environment(stored))
    assert bare in (None, choice.release)
    return choice


def booted(console: str) -> str:
    """The release that the guest printed, once its script has ended well."""
    # systemd writes its own lines to the same console, so ours may begin in the middle of one.
    found = re.findall(rf"{KERNEL} (\S+) @", console)
    assert disk.DONE + "0" in console, console[-3000:]
    assert len(found) == 1
    return str(found[0])


def test_the_class_decides_which_kernel_boots_and_how_it_is_tuned(
    base: disk.Base, tmp_path: Path
) -> None:
    older, newest = base.releases
    image = disk.copy(base, tmp_path / "disk.raw")
    document = {
        **class_document(older, installed_version(image, f"linux-image-{older}")),
        "policy": {"host": tuning.HOST},
    }
    document["digest"] = document_digest(document)

    before = read_choice(image)
    assert (before.release, before.via) == (newest, "default")
    payload: dict[str, str | bytes] = {
        "run": APPLY + tuning.TUNE,
        "then": "reboot",
        "goldnode-node": nodefile.build(),
        "class.json": json.dumps(document),
    }
    assert booted(disk.boot(image, payload, tmp_path)) == newest
    tuning.check_first(image)

    after = read_choice(image)
    assert (after.release, after.via, after.fallback) == (older, "default", False), after.reason
    assert after.entry is not None
    drop_in = disk.read(image, "/etc/default/grub.d/90-goldnode.cfg").decode()
    assert f'GRUB_DEFAULT="{after.entry.selector}"\n' in drop_in
    plan = json.loads(disk.read(image, "/root/plan.json"))
    assert [action for action in plan["actions"] if action["kind"] == "boot.entry"] == []
    assert plan["reboot"]["required"], "the other kernel still ran"

    # The initramfs that this guest booted from, read by ours and by Debian's own lister.
    initrd = tmp_path / "initrd"
    initrd.write_bytes(disk.read(image, f"/boot/initrd.img-{newest}"))
    listing = initramfs.contents(str(initrd), lambda name: name.endswith("modules.dep"))
    assert listing.names == disk.read(image, "/root/lsinitramfs").decode().splitlines()
    assert any(b"virtio_blk.ko" in content for content in listing.files.values())
    assert initramfs.modules_named(listing.names, ["virtio-blk"])
    assert not initramfs.modules_named(listing.names, ["nouveau"])

    script = f"{LOOK}set -eu\n{tuning.AFTER_A_BOOT}{tuning.WATCH}"
    assert booted(disk.boot(image, {**payload, **tuning.UNITS, "run": script}, tmp_path)) == older
    tuning.check_after_boot(image)
    assert read_choice(image).release == older


@pytest.mark.long  # two more emulated boots; that GRUB's variables are read is tested without them
def test_a_wish_for_one_boot_is_read_and_is_over_after_it(base: disk.Base, tmp_path: Path) -> None:
    """One boot of the older kernel, as a person would ask for it: GRUB takes the wish and forgets it."""
    older, newest = base.releases
    image = disk.copy(base, tmp_path / "disk.raw")
    once = grub.entry_for(disk.read(image, "/boot/grub/grub.cfg").decode(), older)
    assert once is not None
    script = f"{LOOK}set -eu\ngrub-reboot '{once.selector}'\n"
    assert booted(disk.boot(image, {"run": script}, tmp_path)) == newest
    wish = read_choice(image)
    assert (wish.release, wish.via) == (older, "next_entry")
    assert booted(disk.boot(image, {"run": LOOK}, tmp_path)) == older
    assert read_choice(image).release == newest


@pytest.mark.long
def test_the_kernel_that_runs_leaves_in_two_steps(base: disk.Base, tmp_path: Path) -> None:
    """A removal makes the kernel of before the default, waits for its boot, and only then takes the class's away: GRUB always has one."""
    older, newest = base.releases
    image = disk.copy(base, tmp_path / "disk.raw")
    name = f"linux-image-{newest}"
    first = {"holds": [], "kernel": older, "directories": ["/etc/default/grub.d"], "sources": []}
    record = {"first": first, "brought": [name], "held": [name]}
    payload: dict[str, str | bytes] = {
        "run": LEAVE,
        "then": "reboot",
        "goldnode-node": nodefile.build(),
        "state.json": json.dumps(record),
    }
    assert booted(disk.boot(image, payload, tmp_path)) == newest

    assert read_choice(image).release == older
    plan = json.loads(disk.read(image, "/root/plan.json"))
    assert plan["actions"] == []
    assert [item["subject"] for item in plan["waiting"]] == [name]
    assert plan["reboot"]["reasons"] == [f"the class's kernel {newest} still runs"]
    assert f"{name} install ok installed" in disk.read(image, "/root/kernels").decode()

    del payload["state.json"]
    assert booted(disk.boot(image, payload, tmp_path)) == older
    assert read_choice(image).release == older
    plan = json.loads(disk.read(image, "/root/plan.json"))
    assert (plan["actions"], plan["waiting"], plan["reboot"]["required"]) == ([], [], False)
    assert name not in disk.read(image, "/root/kernels").decode()
    for path in (
        "/etc/default/grub.d/90-goldnode.cfg",
        "/var/lib/goldnode/state.json",
        f"/boot/vmlinuz-{newest}",
        f"/boot/initrd.img-{newest}",
    ):
        with pytest.raises(disk.GuestError, match="cannot be read"):
            disk.read(image, path)
    assert booted(disk.boot(image, {"run": LOOK}, tmp_path)) == older
