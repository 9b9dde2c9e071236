"""Small disk with two Debian kernels and GRUB, booted in emulated QEMU, without KVM or loop devices.

The base disk has a GPT, an ESP with a stand-alone GRUB that loads ``/boot/grub/grub.cfg`` from the root, and
an ext4 root. It is built once per recipe and cached in ``~/.cache/goldnode/qemu``. A first boot of the guest
runs ``update-grub`` to write ``grub.cfg``. Every test uses a copy. A second disk contains the script for the
guest, ``run``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.site import archive_url, load_site

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

TOOLS = (
    "mmdebstrap",
    "mke2fs",
    "debugfs",
    "sfdisk",
    "mkfs.vfat",
    "mmd",
    "mcopy",
    "qemu-system-x86_64",
    "dd",
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
OVMF_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
OVMF_VARS = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")

MIB = 1024 * 1024
ESP_START, ESP_SIZE = 1 * MIB, 64 * MIB
ROOT_START, ROOT_SIZE = 65 * MIB, 2048 * MIB
ROOT_UUID = "5f0c1a52-6a1e-4f3c-9f60-60a1d40de001"
DONE = "goldnode-guest: finished with status "

PACKAGES = ("grub-efi-amd64", "initramfs-tools", "kmod", "python3", "systemd-sysv", "udev", "zstd")
GRUB_MODULES = (
    "configfile echo ext2 fat gzio linux loadenv normal part_gpt search search_fs_uuid test"
)

# Run by mmdebstrap with the root as $1. Emulation is slow: the initramfs holds what this one disk needs.
CONFIGURE = r"""set -eu
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/etc/default/grub.d"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/small"
echo COMPRESS=zstd >>"$1/etc/initramfs-tools/conf.d/small"
printf '%s\n' virtio_pci virtio_blk ext4 crc32c_generic >"$1/etc/initramfs-tools/modules"
cat >"$1/etc/default/grub.d/10-guest.cfg" <<'END'
GRUB_TIMEOUT=0
GRUB_TERMINAL=console
GRUB_CMDLINE_LINUX_DEFAULT=
GRUB_CMDLINE_LINUX="console=ttyS0 loglevel=4"
GRUB_DISABLE_OS_PROBER=true
END
echo "UUID=@UUID@ / ext4 defaults 0 0" >"$1/etc/fstab"
echo guest >"$1/etc/hostname"
ln -sf /dev/null "$1/etc/systemd/system/serial-getty@.service"
ln -sf /dev/null "$1/etc/systemd/system/getty@.service"
cat >"$1/usr/local/sbin/guest" <<'END'
#!/bin/sh
exec >/dev/console 2>&1
mkdir -p /run/payload
mount -o ro LABEL=payload /run/payload && sh /run/payload/run
echo "@DONE@$?"
sync
systemctl --no-block "$(cat /run/payload/then 2>/dev/null || echo poweroff)"
END
chmod 755 "$1/usr/local/sbin/guest"
cat >"$1/etc/systemd/system/guest.service" <<'END'
[Unit]
Description=run what the payload disk says
After=basic.target
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/guest
[Install]
WantedBy=multi-user.target
END
chroot "$1" systemctl enable guest.service
"""

# The two newest kernels of the series that the archive's own metapackage points at: no version is written here.
KERNELS = r"""set -eu
chroot "$1" sh -eu -c '
newest=$(apt-cache depends linux-image-amd64 | sed -n "s/^ *Depends: *//p" | grep "^linux-image-[0-9]" | head -1)
series=$(echo "$newest" | sed "s/-[0-9]*-amd64$//")
two=$(apt-cache pkgnames "$series-" | grep -xE "$series-[0-9]+-amd64" | sort -V | tail -2)
[ "$(echo "$two" | wc -l)" = 2 ] || { echo "the archive holds fewer than two kernels of $series: $two" >&2; exit 1; }
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $two
'
"""

# grub.cfg loads its modules from the root's prefix, as after grub-install. A file system made by copying has no grubenv.
GRUB = r"""set -eu
mkdir -p "$1/boot/grub"
cp -r "$1/usr/lib/grub/x86_64-efi" "$1/boot/grub/"
chroot "$1" grub-editenv /boot/grub/grubenv create
cat >"$1/tmp/handover.cfg" <<'END'
search --no-floppy --fs-uuid --set=root @UUID@
set prefix=($root)/boot/grub
configfile $prefix/grub.cfg
END
chroot "$1" grub-mkstandalone -O x86_64-efi -o /tmp/BOOTX64.EFI --install-modules="@MODULES@" --modules="part_gpt ext2 search" \
  --fonts= --locales= --themes= boot/grub/grub.cfg=/tmp/handover.cfg
mv "$1/tmp/BOOTX64.EFI" "$1/boot/BOOTX64.EFI"
rm "$1/tmp/handover.cfg"
"""

BAKE = r"""set -eu
update-grub
"""


class GuestError(RuntimeError):
    """The disk could not be made or the guest did not do what it should; the text ends with its console's last lines."""


@dataclass(frozen=True)
class Archive:
    """One apt source, as deb822 and one-line sources name its parts; `keyring` is a file on this machine."""

    url: str
    suite: str
    components: tuple[str, ...]
    keyring: str

    def line(self) -> str:
        return f"deb [signed-by={self.keyring}] {self.url} {self.suite} {' '.join(self.components)}"


@dataclass(frozen=True)
class Base:
    """The base disk: `releases` are its kernels, oldest first."""

    path: Path
    releases: tuple[str, ...]


def run(*command: str | Path, cwd: Path | None = None, stdin: str | None = None) -> str:
    """Standard output of a command; a GuestError with the end of its output when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        input=stdin,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise GuestError(
            f"{' '.join(map(str, command))}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def _fill(script: str) -> str:
    return (
        script.replace("@UUID@", ROOT_UUID)
        .replace("@DONE@", DONE)
        .replace("@MODULES@", GRUB_MODULES)
    )


def debian(codename: str, scratch: Path) -> list[Archive]:
    """Debian's archives of one release, from where this site has them."""
    site = load_site()
    archives = []
    for name, suite in (("debian", codename), ("debian-security", f"{codename}-security")):
        key = site.key_bytes(name)
        keyring = KEYRING
        if key is not None:
            ending = "asc" if key.startswith(b"-----") else "gpg"
            keyring = scratch / f"{name}.{ending}"
            keyring.write_bytes(key)
        archives.append(Archive(archive_url(site, name), suite, ("main",), str(keyring)))
    return archives


def _check_tools() -> None:
    missing = [tool for tool in TOOLS if not shutil.which(tool)] + [
        str(f) for f in (OVMF_CODE, OVMF_VARS) if not f.exists()
    ]
    if missing:
        raise GuestError(
            f"missing on this machine: {', '.join(missing)}. Install {' '.join(REQUIREMENTS)}"
        )


def base(archives: list[Archive], cache: Path | None = None) -> Base:
    """The base disk of this recipe, from the cache or made now (root, minutes, and the archives are needed then)."""
    _check_tools()
    # The mirror's address is not part of what is in the disk.
    recipe = "\0".join(
        [
            CONFIGURE,
            KERNELS,
            GRUB,
            BAKE,
            GRUB_MODULES,
            ROOT_UUID,
            *PACKAGES,
            str((ESP_SIZE, ROOT_SIZE)),
            *(f"{a.suite} {' '.join(a.components)}" for a in archives),
        ]
    )
    home = (cache or Path.home() / ".cache" / "goldnode" / "qemu") / hashlib.sha256(
        recipe.encode()
    ).hexdigest()[:16]
    facts = home / "disk.json"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes it, and the others wait for it
        if facts.exists():
            return Base(home / "disk.raw", tuple(json.loads(facts.read_text())["releases"]))
        with tempfile.TemporaryDirectory(prefix="making-", dir=home) as scratch:
            releases = _make(Path(scratch), archives)
            (Path(scratch) / "disk.raw").replace(home / "disk.raw")
            (Path(scratch) / "disk.json").write_text(json.dumps({"releases": releases}))
            (Path(scratch) / "disk.json").replace(facts)
    return Base(home / "disk.raw", tuple(json.loads(facts.read_text())["releases"]))


def _make(scratch: Path, archives: list[Archive]) -> list[str]:
    root, disk = scratch / "root", scratch / "disk.raw"
    hooks = []
    for number, script in enumerate((CONFIGURE, KERNELS, GRUB)):
        hook = scratch / f"hook{number}"
        hook.write_text("#!/bin/sh\n" + _fill(script))
        hook.chmod(0o755)
        hooks.append(f"--customize-hook={hook}")
    run(
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        "--aptopt=Acquire::Languages none",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        *hooks,
        "",
        root,
        "-",
        stdin="".join(archive.line() + "\n" for archive in archives),
    )
    releases = [
        p.name.removeprefix("vmlinuz-")
        for p in sorted((root / "boot").glob("vmlinuz-*"), key=_version)
    ]
    newest = releases[-1]
    efi = root / "boot" / "BOOTX64.EFI"
    esp = scratch / "esp.img"
    esp.touch()
    os.truncate(esp, ESP_SIZE)
    run("mkfs.vfat", "-F", "32", "-n", "ESP", esp)
    run("mmd", "-i", esp, "::/EFI", "::/EFI/BOOT")
    run("mcopy", "-i", esp, efi, "::/EFI/BOOT/BOOTX64.EFI")
    efi.unlink()
    for part in ("vmlinuz", "initrd.img"):
        shutil.copy(root / "boot" / f"{part}-{newest}", scratch / part)
    tree = scratch / "root.img"
    tree.touch()
    os.truncate(tree, ROOT_SIZE)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-L", "guest", "-U", ROOT_UUID, "-d", root, tree)
    disk.touch()
    os.truncate(disk, ROOT_START + ROOT_SIZE + MIB)
    run(
        "sfdisk",
        "-q",
        disk,
        stdin=f"label: gpt\nstart={ESP_START // 512}, size={ESP_SIZE // 512}, type=uefi, name=esp\n"
        f"start={ROOT_START // 512}, size={ROOT_SIZE // 512}, type=linux, name=root\n",
    )
    for image, start in ((esp, ESP_START), (tree, ROOT_START)):
        run(
            "dd",
            f"if={image}",
            f"of={disk}",
            "bs=1M",
            f"seek={start // MIB}",
            "conv=notrunc,sparse",
            "status=none",
        )
    shutil.rmtree(root)
    console = boot(
        disk, {"run": BAKE}, scratch, kernel=(scratch / "vmlinuz", scratch / "initrd.img")
    )
    if DONE + "0" not in console:
        raise GuestError("update-grub failed in the guest\n" + console[-3000:])
    return releases


def _version(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in path.name.replace("-", ".").replace("+", ".").split(".")
    ]


def boot(
    disk: Path,
    payload: Mapping[str, str | bytes],
    scratch: Path,
    *,
    kernel: tuple[Path, Path] | None = None,
    limit: float = 900,
    cut: str | None = None,
    copies: Mapping[str, Path] | None = None,
) -> str:
    """Boots `disk` until the guest powers off or reboots (QEMU ends at either) and returns its serial console.

    `payload`: files of the second disk: `run` is executed, `then` names the systemctl verb that ends it (poweroff when
    it is not there; reboot is what a person would do, and QEMU ends there as well); `kernel`: (vmlinuz, initrd) booted directly, without firmware and GRUB.
    A guest that is not done after `limit` seconds (emulated, beside others) is killed, with a GuestError. `cut`: what on the console
    marks the moment at which the power goes: QEMU is killed, and what the guest had not written is lost. `copies`: text on the console ->
    where to put a copy of the disk as it is at that moment, in which the whole machine stands still.
    """
    files = scratch / "payload"
    shutil.rmtree(files, ignore_errors=True)
    for name, content in payload.items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(content.encode() if isinstance(content, str) else content)
    image = scratch / "payload.img"
    image.unlink(missing_ok=True)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-L", "payload", "-d", files, image, "64M")
    command = [
        "qemu-system-x86_64",
        "-accel",
        "tcg,thread=multi",
        # Emulation of fewer extensions needs a quarter less processor time than that of `max`.
        "-cpu",
        "qemu64",
        "-smp",
        "2",
        "-m",
        "1024",
        "-M",
        "q35",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-monitor",
        "none",
        "-nic",
        "none",
        "-no-reboot",
        "-device",
        "virtio-rng-pci",
    ]
    if kernel:
        command += [
            "-kernel",
            str(kernel[0]),
            "-initrd",
            str(kernel[1]),
            "-append",
            f"root=UUID={ROOT_UUID} ro console=ttyS0 loglevel=4",
        ]
    else:
        # The firmware's variables are fresh each time: the removable-media path is what every firmware tries.
        shutil.copy(OVMF_VARS, scratch / "vars.fd")
        command += [
            "-drive",
            f"if=pflash,format=raw,readonly=on,file={OVMF_CODE}",
            "-drive",
            f"if=pflash,format=raw,file={scratch / 'vars.fd'}",
        ]
    command += [
        "-drive",
        f"file={disk},if=virtio,format=raw,cache=unsafe",
        "-drive",
        f"file={image},if=virtio,format=raw,readonly=on",
    ]
    guest = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    timer = threading.Timer(limit, guest.kill)
    timer.start()
    raw, was_cut = b"", False
    missing = dict(copies or {})
    try:
        assert guest.stdout is not None
        for line in guest.stdout:
            raw += line
            if cut is not None and cut.encode() in line:
                was_cut = True
                guest.kill()
            for text in [text for text in missing if text.encode() in line]:
                guest.send_signal(signal.SIGSTOP)
                try:
                    run("cp", "--sparse=always", disk, missing.pop(text))
                finally:
                    guest.send_signal(signal.SIGCONT)
        guest.wait()
    finally:
        guest.kill()
        timer.cancel()
    console = raw.decode(errors="replace").replace("\r", "")
    (scratch / "console").write_text(console)  # of the last boot, whole
    if cut is not None and not was_cut:
        raise GuestError(f"the guest never came to {cut!r}\n{console[-6000:]}")
    if missing:
        raise GuestError(
            f"the guest never came to {', '.join(map(repr, missing))}\n{console[-6000:]}"
        )
    if guest.returncode and not was_cut:
        raise GuestError(
            f"the guest was not done after {limit:.0f} seconds, or QEMU failed ({guest.returncode})\n{console[-3000:]}"
        )
    return console


def read(disk: Path, path: str) -> bytes:
    """The content of a file in the root partition of a disk that is not running; GuestError when it is not there."""
    done = subprocess.run(
        ["debugfs", "-R", f"cat {path}", f"{disk}?offset={ROOT_START}"],
        capture_output=True,
        check=False,
    )
    if done.returncode or b"File not found" in done.stderr:
        raise GuestError(
            f"{path} cannot be read from {disk}: {done.stderr.decode(errors='replace')[-500:]}"
        )
    return done.stdout


def write(disk: Path, path: str, content: bytes, scratch: Path) -> None:
    """Replace a file in the root partition of a disk that is not running."""
    local = scratch / "replacement"
    local.write_bytes(content)
    script = scratch / "replace.debugfs"
    script.write_text(f"rm {path}\nwrite {local} {path}\n")
    run("debugfs", "-w", "-f", script, f"{disk}?offset={ROOT_START}")


def extract(disk: Path, paths: Iterable[str], into: Path) -> None:
    """Copy directories of the root partition out of a disk that is not running, each to its own place below `into`."""
    for path in paths:
        target = into / Path(path).parent.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        run("debugfs", "-R", f"rdump {path} {target}", f"{disk}?offset={ROOT_START}")


def copy(source: Base, target: Path) -> Path:
    """A copy of the base disk to work on; holes stay holes."""
    run("cp", "--sparse=always", source.path, target)
    return target
