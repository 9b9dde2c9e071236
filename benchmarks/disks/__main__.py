"""Making a disk image measured: `goldnode disks build` and `verify` against the same class made the way Packer does.

That way: boot a plain Debian of the same release in a virtual machine, run site.yml in it over ssh, take its identity away, shut it down,
compact the disk. The same class, lock and archives, in turn. See docs/benchmarks/disks.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.disks import report
from goldnode.core.site import archive_url, load_site
from goldnode.disks import assemble, firstboot
from goldnode.disks.model import builds
from goldnode.disks.qemu import VirtualMachine, VmOptions, accelerator, make_key, overlay

ROOT = pages.ROOT
CLASS, SUITE, COMPONENTS = "cpu_only", "bookworm", "main contrib non-free non-free-firmware"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# What a machine needs before somebody can log in and run a playbook: the source image, which Packer is given.
PACKAGES = (
    "ca-certificates,dbus,iproute2,kmod,libpam-systemd,linux-image-cloud-amd64,netbase,openssh-server,procps,python3,sudo,"
    "systemd-boot,systemd-boot-efi,systemd-resolved,systemd-sysv,udev,usr-is-merged,zstd"
)
# What azhpc-images and image-builder do before they capture, in short.
SANITISE = """set -eu
apt-get clean; rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /root/.ansible /tmp/* /var/tmp/*
journalctl --rotate --vacuum-time=1s || true; find /var/log -type f -exec truncate -s 0 {} +
echo uninitialized >/etc/machine-id; rm -f /var/lib/dbus/machine-id /etc/ssh/ssh_host_* /root/.bash_history
rm -rf /root/.ssh; fstrim / || true; sync
"""


class Guest(VirtualMachine):
    """A machine that reaches the archives, as one of Packer's does, on as many processors as there are."""

    def command(self, qmp: int) -> list[str]:
        return [word.replace("restrict=on", "restrict=off") for word in super().command(qmp)]


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)


class Stages:
    """Seconds by stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begun, 1)
        say(f"    {name}: {self.seconds[name]:.0f} s")


def run(words: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Run a command; its output is shown when it fails."""
    merged = {**os.environ, **(environment or {})}
    done = subprocess.run(
        [*words],
        env=merged,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def goldnode(*words: str) -> str:
    """Run goldnode as a person does."""
    return run([sys.executable, "-m", "goldnode.cli", *words])


# goldnode


def own(store: Path, *, verify: bool) -> dict[str, Any]:
    """Build the class from nothing, build it again, and boot it: seconds by stage, and sizes."""
    stages = Stages()
    with stages("cold"):
        goldnode("disks", "build", CLASS, "--store", str(store))
    (disk,) = builds(store, CLASS)
    inside = json.loads((disk.directory / "build-log.json").read_text(encoding="utf-8"))["seconds"]
    # What is kept from one build to the next is the packages and the root filesystem: after a change of what comes later.
    shutil.rmtree(disk.directory)
    with stages("warm"):
        goldnode("disks", "build", CLASS, "--store", str(store))
    (disk,) = builds(store, CLASS)
    found = {
        "stages": stages.seconds,
        "inside": inside,
        "packages": len(disk.packages),
        "allocated": disk.raw.allocated,
    }
    if verify:
        with stages("verify"):
            goldnode("disks", "verify", str(disk.directory))
    return found | {"qcow2": disk.path("qcow2").stat().st_size, "kernel": disk.kernel}


# The Packer way


def source_image(work: Path) -> Path:
    """A plain Debian that boots and lets somebody in: made once, and not counted."""
    root, site = work / "source", load_site()
    rows = [
        (archive_url(site, "debian"), SUITE),
        (archive_url(site, "debian-security"), f"{SUITE}-security"),
    ]
    lines = [f"deb [signed-by={KEYRING}] {url} {suite} {COMPONENTS}" for url, suite in rows]
    hooks = [
        '--customize-hook=chroot "$1" systemctl enable ssh systemd-networkd systemd-resolved',
        '--customize-hook=mkdir -p "$1/efi"',
    ]
    run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            f"--include={PACKAGES}",
            *hooks,
            SUITE,
            str(root),
            *lines,
        ]
    )
    release = next(path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*"))
    spec = assemble.Spec(
        name="source-000000000000",
        layout="ab",
        loader="systemd-boot",
        sizes=assemble.Sizes(root=6 << 30),
        seed=uuid.uuid5(uuid.NAMESPACE_OID, "benchmarks/disks"),
        epoch=int(time.time()),
        command_line="console=ttyS0",
        release=release,
        build_id="000000000000",
    )
    firstboot.install(root, spec)
    made = assemble.assemble(root, spec, work / "source.raw", lambda _: None)
    shutil.rmtree(root)
    return made.raw


def peer(base: Path, work: Path) -> dict[str, Any]:
    """Boot, provision, sanitise, shut down, compact: seconds by stage, and sizes."""
    work.mkdir()
    stages = Stages()
    key = make_key(work)
    disk = overlay(base, work / "disk.qcow2")
    guest = Guest(
        disk,
        work / "machine",
        VmOptions(
            snapshot=False,
            form="qcow2",
            key=key,
            # Nothing is verified in it, and it shall be as fast as it can.
            counted=False,
            processors=os.cpu_count(),
            credentials={
                "ssh.authorized_keys.root": key.with_suffix(".pub").read_text(encoding="utf-8")
            },
        ),
    )
    with guest:
        with stages("boot"):
            wait(guest)
        with stages("site.yml"):
            hosts = work / "hosts"
            options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
            connection = f"ansible_host=127.0.0.1 ansible_port={guest.port} ansible_user=root ansible_ssh_private_key_file={key}"
            hosts.write_text(
                f"[{CLASS}]\nbench {connection} ansible_ssh_common_args='{options}'\n",
                encoding="utf-8",
            )
            playbook = str(Path(sys.executable).with_name("ansible-playbook"))
            run(
                [playbook, "-i", str(hosts), str(ROOT / "site.yml")],
                {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            )
        with stages("sanitise"):
            packages = int(asked(guest, "dpkg-query -W -f '${db:Status-Abbrev}\\n' | grep -c ^ii"))
            kernels = asked(guest, "ls /boot | sed -n s/vmlinuz-//p").split()
            # In one login: after it there is no key to come back with.
            asked(guest, SANITISE + "systemctl --no-block poweroff\n")
        with stages("shut down"):
            deadline = time.monotonic() + 300
            while guest.running():
                if time.monotonic() > deadline:
                    raise SystemExit(
                        f"the virtual machine does not shut down:\n{guest.console()[-3000:]}"
                    )
                time.sleep(0.2)
    with stages("compact"):
        image = work / "image.qcow2"
        run(
            [
                "qemu-img",
                "convert",
                "-O",
                "qcow2",
                "-c",
                "-o",
                "compression_type=zstd",
                str(disk),
                str(image),
            ]
        )
    return {
        "stages": stages.seconds,
        "qcow2": image.stat().st_size,
        "packages": packages,
        "kernel": ", ".join(sorted(kernels)),
    }


def wait(guest: VirtualMachine, seconds: float = 1200) -> None:
    """Until somebody can log in and the system is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if guest.ssh(["true"]).rc == 0:
            return
        time.sleep(2)
    raise SystemExit(f"the virtual machine cannot be reached:\n{guest.console()[-3000:]}")


def asked(guest: VirtualMachine, script: str) -> str:
    """What a shell script prints in the guest."""
    # One word: ssh joins what it is given by blanks, for the login shell there.
    found = guest.ssh([script])
    if found.rc:
        raise SystemExit(f"the guest: {found.err[-2000:]}")
    return found.out


def main() -> None:
    """Measure in turns, and report."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run disks",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=2, help="paired runs (default 2)")
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not boot what goldnode builds: half of the time of a run",
    )
    parser.add_argument(
        "--only", choices=["own", "peer"], help="one of the two, for a look; nothing is written"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs/benchmarks",
        help="where the report goes (default docs/benchmarks)",
    )
    parser.add_argument(
        "--note", default="", help="what a reader has to know of the machine while this ran"
    )
    parser.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(
        prefix="goldnode-disks-", dir=os.environ.get("TMPDIR")
    ) as name:
        work = Path(name)
        base = None
        if chosen.only != "own":
            say("making the source image of the Packer way, which is not counted")
            base = source_image(work)
        for turn in range(chosen.runs):
            names = (
                [chosen.only] if chosen.only else ["goldnode", "packer"][:: -1 if turn % 2 else 1]
            )
            for which in names:
                say(f"turn {turn + 1}: {which}")
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                place = work / f"{which}-{turn}"
                found = (
                    peer(base, place)
                    if which in ("packer", "peer") and base
                    else own(place, verify=not chosen.no_verify)
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                rows.append({"turn": turn, "name": which, "cpu": round(cpu, 1), **found})
                shutil.rmtree(place)
            if not chosen.only:
                report.write(described(rows, turn + 1, chosen.note), chosen.out, chosen.peers)
    if chosen.only:
        print(json.dumps(rows, indent=1))


def described(rows: list[dict[str, Any]], runs: int, note: str) -> dict[str, Any]:
    """Everything that was measured, with what it was measured on."""
    how = accelerator()
    return {
        "schema": "goldnode.benchmark/1",
        "benchmark": "disks",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "class": CLASS,
        "machine": {**pages.machine(), "accelerator": how.name, "why": how.why, "note": note},
        "runs": runs,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
