"""A small disk with two slots, made by a recipe and kept: Debian, systemd-boot and goldnode's units, booted under emulated UEFI firmware.

The tree (Debian with a cloud kernel, 400 MiB) is made once per recipe and kept as a tar below ``~/.cache/goldnode/slots``; goldnode is put into a
fresh copy of it by the engine itself, as into the root of an image. No loop device and no mount on this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.e2e.qemu.disk import OVMF_CODE, OVMF_VARS, Archive, GuestError, run

from goldnode.disks import slot_image
from goldnode.evidence import signatures
from goldnode.node.slots.builder import PREDICATE

# requirements: Debian packages that the test machine needs for this file; scripts/test installs them.
REQUIREMENTS = (
    "debian-archive-keyring",
    "dosfstools",
    "e2fsprogs",
    "fdisk",
    "mmdebstrap",
    "mtools",
    "ovmf",
    "qemu-system-x86",
)

MIB = 1024 * 1024
ESP_SIZE, ROOT_SIZE, OTHER_SIZE = (
    96 * MIB,
    896 * MIB,  # Debian, and a download of its image with room to spare
    928 * MIB,
)  # the second slot is larger, so that what is written has to grow
PACKAGES = (
    "linux-image-cloud-amd64",
    "dbus",
    "initramfs-tools",
    "kmod",
    "python3",
    "systemd-sysv",
    "systemd-boot",
    "udev",
    "zstd",
    "openssh-server",
    "openssl",
    "e2fsprogs",
)
# Packages whose programs a recovery entry contains.
MORE = ("iproute2", "dosfstools", "fdisk")
# no_timer_check: on a busy machine the emulated timer is late, and Linux would end with "IO-APIC + timer doesn't work".
OPTIONS = "ro console=ttyS0 loglevel=4 systemd.show_status=0 no_timer_check panic=5"

IDLE = (
    *(
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "e2scrub_reap.service",
        "fstrim.timer",
        "systemd-boot-update.service",
    ),
    *(
        "systemd-hwdb-update.service",
        "systemd-journal-catalog-update.service",
        "systemd-sysusers.service",
        "ldconfig.service",
    ),
    *("host-keys.service", "systemd-networkd.service", "systemd-networkd.socket"),
    *(
        "systemd-boot-system-token.service",
        "systemd-update-utmp.service",
        "systemd-pcrphase.service",
        "systemd-pcrphase-sysinit.service",
    ),
)
# Emulated, beside others, a boot may take minutes: limits that are right for a machine would end it.
SLOW = {
    "system.conf.d/slow.conf": "[Manager]\nDefaultTimeoutStartSec=900\n",
    "system/boot-complete.target.d/slow.conf": "[Unit]\nJobTimeoutSec=3600\n",
    "system/goldnode-good.service.d/slow.conf": "[Service]\nTimeoutStartSec=1800\n",
    "system/goldnode-sanity.service.d/slow.conf": "[Service]\nTimeoutStartSec=1800\n",
    "system/goldnode-retries.service.d/slow.conf": "[Service]\nTimeoutStartSec=1800\n",
}

CONFIGURE = r"""set -eu
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/efi" "$1/etc/systemd/network"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/small"
echo COMPRESS=zstd >>"$1/etc/initramfs-tools/conf.d/small"
printf '%s\n' virtio_pci virtio_blk ext4 crc32c_generic >"$1/etc/initramfs-tools/modules"
echo "PARTLABEL=esp /efi vfat umask=0077,nofail 0 0" >"$1/etc/fstab"
echo guest >"$1/etc/hostname"
printf '[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n' >"$1/etc/systemd/network/80-dhcp.network"
ln -sf /dev/null "$1/etc/systemd/system/serial-getty@.service"
ln -sf /dev/null "$1/etc/systemd/system/getty@.service"
cat >"$1/usr/local/sbin/guest" <<'END'
#!/bin/sh
exec >/dev/console 2>&1
mkdir -p /run/payload
mount -o ro LABEL=payload /run/payload && sh /run/payload/run
END
chmod 755 "$1/usr/local/sbin/guest"
cat >"$1/etc/systemd/system/guest.service" <<'END'
[Unit]
Description=run what the payload disk says
After=basic.target
[Service]
ExecStart=/usr/local/sbin/guest
[Install]
WantedBy=multi-user.target
END
cat >"$1/etc/systemd/system/host-keys.service" <<'END'
[Unit]
Before=ssh.service
[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -A
[Install]
WantedBy=multi-user.target
END
# Drivers of watchdogs that QEMU has are not in this kernel: its own stands in for the machine's.
echo softdog >"$1/etc/modules-load.d/softdog.conf"
chroot "$1" systemctl enable guest.service host-keys.service systemd-networkd.service
chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer systemd-networkd-wait-online.service
echo uninitialized >"$1/etc/machine-id"
rm -f "$1"/etc/ssh/ssh_host_* "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb
"""


def tree(archives: list[Archive], cache: Path | None = None, more: Sequence[str] = ()) -> Path:
    """The tar of the tree of this recipe, from the cache or made now (root, minutes, and the archives are needed then)."""
    recipe = "\0".join(
        [CONFIGURE, *PACKAGES, *more, *(f"{a.suite} {' '.join(a.components)}" for a in archives)]
    )
    home = (cache or Path.home() / ".cache" / "goldnode" / "slots") / hashlib.sha256(
        recipe.encode()
    ).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    made = home / "tree.tar"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes it, and the others wait for it
        if not made.exists():
            with tempfile.TemporaryDirectory(prefix="making-", dir=home) as scratch:
                hook = Path(scratch) / "hook"
                hook.write_text("#!/bin/sh\n" + CONFIGURE)
                hook.chmod(0o755)
                run(
                    "mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar", f"--include={','.join([*PACKAGES, *more])}",
                    "--aptopt=Acquire::Languages none", "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
                    "--dpkgopt=path-exclude=/usr/share/man/*", f"--customize-hook={hook}", "", Path(scratch) / "tree.tar", "-",
                    stdin="".join(archive.line() + "\n" for archive in archives),
                )  # fmt: skip
                (Path(scratch) / "tree.tar").replace(made)
    return made


def unpack(tar: Path, into: Path) -> Path:
    """A fresh copy of the tree, with what every root of a slot says of its mounts, and nothing started that is not needed: emulation is slow."""
    into.mkdir()
    run("tar", "--numeric-owner", "-xpf", tar, "-C", into, "--exclude=./dev/*")
    (into / "etc/fstab").write_text(
        "/dev/root / ext4 errors=remount-ro 0 1\nPARTLABEL=esp /efi vfat umask=0077,nofail 0 0\n"
    )
    for name, text in SLOW.items():
        (into / "etc/systemd" / name).parent.mkdir(parents=True, exist_ok=True)
        (into / "etc/systemd" / name).write_text(text)
    for unit in IDLE:
        (into / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (into / "etc/systemd/system" / unit).symlink_to("/dev/null")
    return into


def release(root: Path) -> str:
    """The kernel of a tree."""
    (found,) = [path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")]
    return found


def sent(image: Path) -> dict[str, Any]:
    """Return the root of a stream to `slot write`: size and digest of a whole file."""
    size, sha256 = slot_image.digest(image)
    return {"size": size, "sha256": sha256}


def signed(about: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """Return the builder's envelope of what a slot gets."""
    payload = signatures.statement(
        str(about["name"]), "sha256:" + "1" * 64, PREDICATE, {"documents": [], "slot": about}
    )
    envelope: dict[str, Any] = json.loads(signatures.load_signer(key).sign(payload))
    return envelope


def root_image(
    root: Path, image: Path, size: int = ROOT_SIZE, features: str = "^metadata_csum_seed"
) -> Path:
    """The root file system of a tree."""
    image.touch()
    os.truncate(image, size)
    run(
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-L",
        "root-a",
        "-O",
        features,
        "-d",
        root,
        image,
    )
    return image


SIZES = (ESP_SIZE, ROOT_SIZE, OTHER_SIZE)


def disk(
    root: Path,
    image: Path,
    about: Mapping[str, Any],
    target: Path,
    scratch: Path,
    head: str = "",
    sizes: Sequence[int] = SIZES,
) -> Path:
    """A disk as shipped: slot a holds the image, whose entry has no counter; slot b is empty. `head` goes before the rows for sfdisk."""
    kernel = str(about["kernel"])
    files = {
        "EFI/BOOT/BOOTX64.EFI": (
            root / "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
        ).read_bytes(),
        "loader/loader.conf": b"default goldnode-*\ntimeout 0\neditor no\n",
        f"loader/entries/goldnode-{about['build_id']}-a.conf": (
            f"title goldnode {about['class']}\nsort-key goldnode\nversion {about['sequence']}~{about['build_id']}\n"
            f"linux /goldnode/a/vmlinuz\ninitrd /goldnode/a/initrd.img\noptions root=PARTLABEL=root-a {OPTIONS}\n"
        ).encode(),
        "goldnode/a/vmlinuz": (root / f"boot/vmlinuz-{kernel}").read_bytes(),
        "goldnode/a/initrd.img": (root / f"boot/initrd.img-{kernel}").read_bytes(),
        "goldnode/a/slot.json": json.dumps(about).encode(),
    }
    esp = scratch / "esp"
    for name, content in files.items():
        (esp / name).parent.mkdir(parents=True, exist_ok=True)
        (esp / name).write_bytes(content)
    vfat = scratch / "esp.img"
    vfat.touch()
    os.truncate(vfat, sizes[0])
    run("mkfs.vfat", "-F", "32", "-n", "ESP", vfat)
    run("mcopy", "-s", "-i", vfat, *sorted(esp.iterdir()), "::/")
    starts, rows = [], []
    at = MIB
    names = (("esp", "uefi"), ("root-a", "linux"), ("root-b", "linux"))
    for (name, kind), size in zip(names, sizes, strict=True):
        starts.append(at)
        rows.append(f"start={at // 512}, size={size // 512}, type={kind}, name={name}\n")
        at += size
    target.touch()
    os.truncate(target, at + MIB)
    run("sfdisk", "-q", target, stdin=f"label: gpt\n{head}" + "".join(rows))
    for part, start in zip((vfat, image), starts, strict=False):
        run(
            "dd",
            f"if={part}",
            f"of={target}",
            "bs=1M",
            f"seek={start // MIB}",
            "conv=notrunc,sparse",
            "status=none",
        )
    shutil.rmtree(esp)
    vfat.unlink()
    return target


def payload(
    files: Mapping[str, bytes | str | Path], target: Path, scratch: Path, size: str = "512M"
) -> Path:
    """A disk of files for the guest, found by its label; `run` is what it runs at each boot."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    for name, content in files.items():
        if isinstance(content, Path):
            os.link(content, folder / name)
        else:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    target.unlink(missing_ok=True)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-L", "payload", "-d", folder, target, size)
    shutil.rmtree(folder)
    return target


class Guest:
    """A machine that runs, reboots included; its console is read line by line."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.lines: list[str] = []
        self.news = threading.Condition()
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        with self.log.open("w") as log:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                log.write(f"{time.monotonic():.1f} {line}\n")
                log.flush()
                with self.news:
                    self.lines.append(line)
                    self.news.notify_all()
        with self.news:
            self.lines.append("GUEST ENDED")
            self.news.notify_all()

    def wait(self, text: str, since: int = 0, limit: float = 900) -> int:
        """Wait until a line holds the text; returns the number of the line after it. GuestError when it never comes."""
        end = time.monotonic() + limit
        at = since
        with self.news:
            while True:
                for at in range(since, len(self.lines)):
                    if text in self.lines[at]:
                        return at + 1
                if (self.lines and self.lines[-1] == "GUEST ENDED") or not self.news.wait(
                    max(0.0, end - time.monotonic())
                ):
                    raise GuestError(
                        f"the guest never said {text!r}\n" + "\n".join(self.lines[-60:])
                    )


@contextmanager
def guest(
    target: Path,
    more: Path,
    scratch: Path,
    *extra: str,
    name: str = "console",
    port: int | None = None,
) -> Iterator[Guest]:
    """Boot a disk with its payload; the machine is killed at the end. `port` of this machine leads to the guest's ssh."""
    variables = scratch / "vars.fd"
    if not variables.exists():
        shutil.copy(OVMF_VARS, variables)
    net = (
        ["-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{port}-:22"]
        if port
        else ["-nic", "none"]
    )
    drives = (
        *("-drive", f"file={target},if=virtio,format=raw,cache=unsafe"),
        *("-drive", f"file={more},if=virtio,format=raw,readonly=on"),
    )
    with started(
        ["nice", "-n", "19", *machine(variables), *net, *drives, *extra], scratch / f"{name}.log"
    ) as found:
        yield found


def machine(variables: Path, memory: int = 1024, secure: bool = False) -> list[str | Path]:
    """The command of an emulated machine with UEFI firmware, without disks and network.

    `secure`: firmware with Secure Boot, whose variables only system management mode may write.
    """
    code, more = OVMF_CODE, []
    if secure:
        code = OVMF_CODE.with_name(OVMF_CODE.name.replace(".fd", ".secboot.fd"))
        more = ["-global", "driver=cfi.pflash01,property=secure,value=on"]
    return [
        # It ends with whoever started it, however that ends. A processor without AES and AVX: their self-tests take minutes, emulated.
        "setpriv", "--pdeathsig", "KILL",
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64,-svm", "-smp", "2", "-m", str(memory),
        "-M", "q35,smm=on" if secure else "q35", *more,
        "-display", "none", "-serial", "stdio", "-monitor", "none", "-device", "virtio-rng-pci",
        "-drive", f"if=pflash,format=raw,readonly=on,file={code}", "-drive", f"if=pflash,format=raw,file={variables}",
    ]  # fmt: skip


@contextmanager
def started(command: Sequence[str | Path], log: Path) -> Iterator[Guest]:
    """Run a machine and read its console; it is killed at the end."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield Guest(process, log)
    finally:
        process.kill()
        process.wait()
