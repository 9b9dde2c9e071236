"""The units that judge a boot, give it up, and leave a good one alone: run by a real systemd, which believes that it has booted a slot.

A container has no firmware. What it would have left is put in its place: the variable in which systemd-boot names the entry that it counted, the
kernel's command line, and the ESP as a directory. Everything behind that is real: Debian's systemd and systemd-bless-boot-generator, goldnode's
units and program, the check and its reboot. The whole chain, firmware included, is in test_disk_slots.py, and takes minutes where this takes
seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import slotdisk
from tests.disks.test_disk_slots import apply, document, tree, with_gpu
from tests.e2e.qemu.disk import run

from goldnode.node.ground import boot as ground
from goldnode.node.ground.boot import VARIABLES, VENDOR
from goldnode.node.state import slots

pytestmark = [pytest.mark.disks, pytest.mark.xdist_group("units")]

__all__ = ["tree"]

TRIED = "goldnode-bbb-b+2-1.conf"
LIMIT = 600.0  # seconds until a container has come to its end; some ten on a machine at rest
VARIABLE = f"{VARIABLES}/LoaderBootCountPath-{VENDOR}"
BEGIN = f"""#!/bin/sh
rm -f /.dockerenv
mount -t tmpfs firmware /sys/firmware && mkdir -p {VARIABLES} && cp /variable {VARIABLE}
mount --bind /cmdline /proc/cmdline
mount --bind /osrelease /proc/sys/kernel/osrelease
exec env -u container /lib/systemd/systemd
"""
# Not of a container: it has no devices of its own, and nobody to log in.
MASKED = ("systemd-udevd.service", "guest.service", "systemd-remount-fs.service")
MODULE = "rm /lib/modules/*/kernel/drivers/net/dummy.ko; depmod $(cat /osrelease)"
HANG = """printf '[Service]\\nType=oneshot\\nTimeoutStartSec=infinity\\nExecStart=/bin/sleep infinity\\n' >/etc/systemd/system/hang.service
ln -s ../hang.service /etc/systemd/system/multi-user.target.wants/
printf '[Unit]\\nJobTimeoutSec=10\\n' >/etc/systemd/system/boot-complete.target.d/slow.conf"""
# What is wrong with the image, and the reason that is kept for the other slot. None: nobody is left who could say one.
BROKEN = {
    "module": (MODULE, "modules.dummy: modinfo -k "),
    "unit": ("echo Nonsense yes >/etc/ssh/sshd_config.d/bad.conf", "unit ssh.service: failed"),
    "kernel": ("echo 6.1.0-1-other >/osrelease", "kernel.running: 6.1.0-1-other"),
    "document": ("echo torn >/etc/goldnode/class.json", "the check failed: "),
    "program": ("printf '#!/bin/false\\n' >/usr/lib/goldnode/goldnode-node", None),
    "esp": ("rm -r /efi/*", None),
    "hang": (HANG, "the boot did not complete (still starting: "),
    "emergency": (
        "sed -i 's/$/ systemd.unit=emergency.target/' /cmdline",
        "the boot did not complete (emergency mode",
    ),
}
# A good image with retries: only emergency mode gives up a boot of it.
ARMED = f"sed -i 's/$/ {ground.ARMED}/' /cmdline; sed -i 's/^options.*/& {ground.ARMED}/' /efi/loader/entries/{TRIED}"
BROKEN["good image in emergency"] = (f"{ARMED}; {BROKEN['emergency'][0]}", BROKEN["emergency"][1])
# A directory is no ESP to systemd-bless-boot unless it is named.
NAMED = """mkdir -p /etc/systemd/system/systemd-bless-boot.service.d
printf '[Service]\\nEnvironment=SYSTEMD_LOG_LEVEL=debug\\nExecStart=\\nExecStart=/lib/systemd/systemd-bless-boot --path=/efi good\\n' \\
    >/etc/systemd/system/systemd-bless-boot.service.d/named.conf"""
# What is no reason to go back: nothing, a GPU that the machine does not have, and whatever is wrong once the entry has no counter.
STAYS = {
    "good": (NAMED, slots.GOOD),
    "good without goldnode's part": (
        f"{NAMED}; sed -i /ExecStartPre/d /etc/systemd/system/systemd-bless-boot.service.d/goldnode.conf",
        slots.GOOD,
    ),
    "blessed": (
        f"mv /efi/loader/entries/{TRIED} /efi/loader/entries/goldnode-bbb-b.conf; {MODULE}",
        None,
    ),
    "not counted": (f"rm /variable; : >/variable; sed -i '/firmware/d' /begin; {MODULE}", None),
}


@pytest.fixture(scope="module")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container image of the root of a disk image, of a class with a GPU."""
    root = slotdisk.unpack(tree, tmp_path_factory.mktemp("tree") / "root")
    wanted = with_gpu(document(root))
    apply(root, wanted)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / "etc/ssh/ssh_host_ed25519_key")
    kernel = slotdisk.release(root)
    (root / "etc/fstab").write_text("")
    (root / "begin").write_text(BEGIN)
    (root / "begin").chmod(0o755)
    (root / "cmdline").write_text("root=PARTLABEL=root-b ro panic=5\n")
    (root / "osrelease").write_text(f"{kernel}\n")
    (root / "variable").write_bytes(
        b"\x06\0\0\0" + f"\\loader\\entries\\{TRIED}\0".encode("utf-16-le")
    )
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    (root / "efi/loader/entries").mkdir(parents=True)
    (root / "efi/loader/loader.conf").write_text("default goldnode-*\n")
    for slot, sequence, name in (("a", 1, "goldnode-aaa-a.conf"), ("b", 2, TRIED)):
        place = root / f"efi/goldnode/{slot}"
        place.mkdir(parents=True)
        about = {
            "name": f"boot_test-{slot * 3}",
            "class": "boot_test",
            "build_id": slot * 3,
            "sequence": sequence,
            "kernel": kernel,
        }
        (place / "slot.json").write_text(json.dumps(about))
        for file in ("vmlinuz", "initrd.img"):
            shutil.copy(root / f"boot/{file}-{kernel}", place / file)
        text = slots.entry_text(
            about,
            slot,
            f"/goldnode/{slot}/vmlinuz",
            f"/goldnode/{slot}/initrd.img",
            f"ro panic=5 {slots.WATCHDOG}",
        )
        (root / "efi/loader/entries" / name).write_text(text)
    name = f"goldnode-slots-{uuid.uuid4().hex[:8]}"
    packed = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(
        ["docker", "import", "-", name], stdin=packed.stdout, check=True, capture_output=True
    )
    assert packed.wait() == 0
    shutil.rmtree(root)
    yield name
    run("docker", "rmi", "-f", name)


class Boot:
    """A container in which a slot boots."""

    def __init__(self, image: str, change: str) -> None:
        options = [
            "--cap-add",
            "SYS_ADMIN",
            "--security-opt",
            "seccomp=unconfined",
            "-v",
            "/sys/fs/cgroup:/sys/fs/cgroup:rw",
        ]
        options += [
            "--tmpfs",
            "/run",
            "--tmpfs",
            "/run/lock",
            "--tmpfs",
            "/tmp:exec",
            "--network",
            "none",
        ]
        self.name = run(
            "docker", "run", "-d", *options, image, "sh", "-c", f"{change}\nexec /begin"
        ).strip()

    def inside(self, *command: str) -> str:
        return subprocess.run(
            ["docker", "exec", self.name, *command], capture_output=True, text=True, check=False
        ).stdout

    def wait(self, state: str) -> str:
        """What becomes of the boot: `reboot`, or `stays`; a boot that does neither is told."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            first = self.inside("cat", "/proc/1/comm").strip()
            if first.startswith("systemd-shutd"):
                return "reboot"
            if (
                first == "systemd"
                and self.inside("systemctl", "is-active", state).strip() == "active"
                and not self.inside("systemctl", "list-jobs", "--no-legend").strip()
            ):
                return "stays"
            time.sleep(1)
        raise AssertionError(self.inside("journalctl", "-b", "--no-pager", "-o", "cat")[-4000:])

    def history(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.inside("cat", "/efi/goldnode/history").splitlines()
        ]


@pytest.fixture
def boot(image: str, request: pytest.FixtureRequest) -> Iterator[Boot]:
    found = Boot(image, request.param)
    yield found
    run("docker", "rm", "-f", found.name)


@pytest.mark.parametrize(("boot", "reason"), BROKEN.values(), ids=BROKEN, indirect=["boot"])
def test_a_bad_boot_ends_with_its_reason_stored(boot: Boot, reason: str | None) -> None:
    assert boot.wait("never.target") == "reboot"
    rows = boot.history()
    if reason is None:
        assert rows == []
        return
    (row,) = rows  # once, however many units had a part in it
    assert (row["event"], row["image"], row["slot"]) == (slots.FAILED, "boot_test-bbb", "b")
    assert row["reason"].startswith(reason)
    assert TRIED in boot.inside("ls", "/efi/loader/entries")


@pytest.mark.parametrize(("boot", "event"), STAYS.values(), ids=STAYS, indirect=["boot"])
def test_a_boot_that_is_good_or_not_tried_stays(boot: Boot, event: str | None) -> None:
    assert boot.wait("multi-user.target") == "stays"
    assert [row["event"] for row in boot.history()] == ([event] if event else [])
    if event:
        assert boot.inside("systemctl", "is-active", "boot-complete.target").strip() == "active"
        unit = "systemd-bless-boot.service"
        assert boot.inside("systemctl", "is-active", unit).strip() == "active"
        flushed = boot.inside("systemctl", "show", "-p", "ExecStartPost", unit)
        assert "code=exited ; status=0" in flushed, "what it has renamed is flushed"
        log = boot.inside("journalctl", "-b", "--no-pager", "-o", "cat", "-u", unit)
        renamed = f"Successfully renamed '/loader/entries/{TRIED}'" in log
        assert renamed != ("Operation already executed before" in log), log
        assert renamed != ("entry goldnode-bbb-b.conf has no counter any more" in log), log
        again = TRIED.replace("+2-1", "+3")
        assert boot.inside("ls", "/efi/loader/entries").split() == ["goldnode-aaa-a.conf", again]
        assert slots.WATCHDOG not in boot.inside("cat", f"/efi/loader/entries/{again}")
    # The GPU that the class declares is missing: that is found, and is no reason.
    found = json.loads(boot.inside("cat", "/run/goldnode/verdict.json"))["findings"]
    assert [row["outcome"] for row in found if row["id"] == "gpu.count"] == ["mismatch"]


@pytest.mark.parametrize(
    "boot", [f"{ARMED}; {MODULE}; {BROKEN['unit'][0]}"], indirect=True, ids=["unit and module"]
)
def test_a_good_image_stays_whatever_fails_and_gets_its_retries(boot: Boot) -> None:
    """Its module is missing and a unit of its class fails: the check reports that, and nothing restarts the machine."""
    assert boot.wait("multi-user.target") == "stays"
    assert boot.inside("systemctl", "is-active", "goldnode-retries.service").strip() == "active"
    assert boot.history() == []
    entries = boot.inside("ls", "/efi/loader/entries").split()
    assert TRIED.replace("+2-1", "+3") in entries
    assert TRIED not in entries
