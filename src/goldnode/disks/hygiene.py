"""Checks of the finished root filesystem of a disk image.

They are independent of `sanitise`, which cleans it.

An image must not contain traces of the build machine, an identity that clones would share, a secret, an
unrequested way to log in, or anything that differs between two builds. The first line of a check's docstring
is its result in the manifest if it passes.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from goldnode.disks.definition import HygieneWaiver
from goldnode.disks.model import Hygiene
from goldnode.disks.sanitise import MACHINE_ID
from goldnode.inspect.packages import paragraphs
from goldnode.node.ground.text import and_more

# Known set-user-ID and set-group-ID programs in Debian packages. Any other is a finding.
_SETID = """
bin/chage bin/chfn bin/chsh bin/crontab bin/dotlockfile bin/expiry bin/fusermount bin/fusermount3 \
bin/gpasswd bin/mount bin/newgidmap
bin/newgrp bin/newuidmap bin/nvidia-modprobe bin/passwd bin/pkexec bin/ssh-agent bin/su bin/sudo bin/umount \
bin/wall bin/write.ul
lib/dbus-1.0/dbus-daemon-launch-helper lib/nvidia/current/nvidia-modprobe lib/openssh/ssh-keysign \
lib/polkit-1/polkit-agent-helper-1
lib/x86_64-linux-gnu/utempter/utempter lib/aarch64-linux-gnu/utempter/utempter sbin/unix_chkpwd
"""
SETID = frozenset(f"usr/{name}" for name in _SETID.split())
_COMPILERS = re.compile(
    r"(?:[\w-]*-)?(?:gcc|g\+\+|cc|c\+\+|cpp|clang|make|ld|as|dkms|rustc)(?:-\d+)?"
)
_BUILDERS = re.compile(
    r"dkms|gcc(-\d+)?|g\+\+(-\d+)?|cpp(-\d+)?|clang(-\d+)?|make|binutils|linux-(headers|kbuild|compiler)-.*|.*-dkms"
)
_PRIVATE = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----")
_KEY_FILES = re.compile(r".*\.(?:key|priv|pem|p12|pfx)|id_(?:rsa|dsa|ecdsa|ed25519)|MOK\.priv")

Finding = tuple[str, str]  # path in the root (to which waivers refer), description
Check = Callable[[Path], Iterable[Finding]]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def _walk(root: Path, *, under: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield every path below `root`, relative, with its own status. Do not follow links."""
    pending = [str(root / under)] if (root / under).is_dir() else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield os.path.relpath(entry.path, root), status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(entry.path)


def passwords(root: Path) -> Iterator[Finding]:
    """Report accounts that have a password, root included. Login is by key."""
    for line in _text(root / "etc/shadow").splitlines():
        name, secret = [*line.split(":"), ""][:2]
        if secret == "":
            yield "etc/shadow", f"{name} has an empty password"
        elif secret[:1] not in ("!", "*"):
            yield "etc/shadow", f"{name} has a password"
    for line in _text(root / "etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[1] not in ("x", "*", "!"):
            yield "etc/passwd", f"{fields[0]} has a password"
        if len(fields) > 2 and fields[2] == "0" and fields[0] != "root":
            yield "etc/passwd", f"{fields[0]} is root by another name"
    if not _text(root / "etc/shadow"):
        yield "etc/shadow", "it is missing"


def identity(root: Path) -> Iterator[Finding]:
    """Report identities that clones would share: machine-id, host keys, hostname, random seed."""
    machine_id = _text(root / "etc/machine-id")
    if machine_id != MACHINE_ID:
        yield "etc/machine-id", f"it holds {machine_id.strip()!r}, expected 'uninitialized'"
    for path in sorted((root / "etc/ssh").glob("ssh_host_*")):
        yield f"etc/ssh/{path.name}", "a host key"
    for name in (
        "etc/hostname",
        "var/lib/systemd/random-seed",
        "var/lib/systemd/credential.secret",
    ):
        if (root / name).exists():
            yield name, "it belongs to one machine"
    dbus = root / "var/lib/dbus/machine-id"
    if dbus.exists() and not dbus.is_symlink():
        yield "var/lib/dbus/machine-id", "it belongs to one machine"
    for path in sorted(root.glob("var/lib/dhcp/*")) + sorted(root.glob("var/lib/cloud/instance*")):
        yield str(path.relative_to(root)), "state of one machine"


def authorised(root: Path) -> Iterator[Finding]:
    """Report keys that give access to the image. A node gets its keys when it starts."""
    for pattern in ("root/.ssh/authorized_keys*", "home/*/.ssh/authorized_keys*"):
        for path in sorted(root.glob(pattern)):
            if _text(path).strip():
                yield str(path.relative_to(root)), "it allows a login"


def private_keys(root: Path) -> Iterator[Finding]:
    """Report private keys, such as mok.key, which signs modules."""
    for top in ("etc", "root", "home", "var/lib", "usr/lib", "usr/share", "opt", "boot"):
        for name, status in _walk(root, under=top):
            base = name.rpartition("/")[2]
            if not stat.S_ISREG(status.st_mode):
                continue
            if base in ("mok.key", "mok.priv", "MOK.priv"):
                yield name, "a key that signs modules"
            elif (
                _KEY_FILES.fullmatch(base)
                and status.st_size < 65536
                and _PRIVATE.search((root / name).read_bytes())
            ):
                yield name, "a private key"


def caches(root: Path) -> Iterator[Finding]:
    """Report package indexes, packages, and caches that programs recreate."""
    for pattern in (
        "var/lib/apt/lists/*",
        "var/cache/apt/*.bin",
        "var/cache/apt/archives/*.deb",
        "var/cache/debconf/*-old",
        "var/lib/dpkg/*-old",
    ):
        for path in sorted(root.glob(pattern)):
            if path.name != "partial" or any(path.iterdir()):
                yield str(path.relative_to(root)), "left of the installation"
    if (root / "var/cache/ldconfig/aux-cache").exists():
        yield "var/cache/ldconfig/aux-cache", "it differs between two builds"
    for name in ("tmp", "var/tmp", "run", "dev"):
        if (root / name).is_dir() and any((root / name).iterdir()):
            yield name, "it is not empty"


def logs(root: Path) -> Iterator[Finding]:
    """Report logs of the build and shell history."""
    for name, status in _walk(root, under="var/log"):
        if stat.S_ISREG(status.st_mode):
            yield name, "a log"
    for path in (*root.glob("root/.*_history"), *root.glob("home/*/.*_history")):
        yield str(path.relative_to(root)), "a history of commands"


def writable(root: Path) -> Iterator[Finding]:
    """Report world-writable files, and world-writable directories without the sticky bit."""
    for name, status in _walk(root):
        if stat.S_ISLNK(status.st_mode) or not status.st_mode & stat.S_IWOTH:
            continue
        if not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            yield name, f"everybody may write to it ({stat.filemode(status.st_mode)})"


def setid(root: Path) -> Iterator[Finding]:
    """Report set-user-ID and set-group-ID programs, except the known ones of Debian."""
    for name, status in _walk(root):
        if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            merged = name if name.startswith("usr/") else f"usr/{name}"
            if merged not in SETID:
                yield name, f"it runs as another ({stat.filemode(status.st_mode)})"


def compilers(root: Path) -> Iterator[Finding]:
    """Report compilers, kernel headers and DKMS. Modules are prebuilt."""
    for place in ("usr/bin", "bin", "usr/local/bin", "usr/sbin"):
        folder = root / place
        if folder.is_dir() and not folder.is_symlink():
            for path in sorted(folder.iterdir()):
                if _COMPILERS.fullmatch(path.name):
                    yield str(path.relative_to(root)), "a tool that builds"
    for fields in paragraphs(_text(root / "var/lib/dpkg/status")):
        if fields.get("Status", "").endswith(" installed") and _BUILDERS.fullmatch(
            fields.get("Package", "")
        ):
            yield "var/lib/dpkg/status", f"package {fields['Package']} builds modules"
    if any(root.glob("usr/src/linux-headers-*")):
        yield "usr/src", "kernel headers"
    if any(root.glob("var/lib/dkms/*")):
        yield "var/lib/dkms", "state of DKMS"


def sshd(root: Path) -> Iterator[Finding]:
    """Report an sshd that allows root to log in with a password, or accepts passwords at all."""
    if not (root / "usr/sbin/sshd").exists():
        return
    files = [root / "etc/ssh/sshd_config"]
    values: dict[str, tuple[str, str]] = {}
    for line, name in _sshd_lines(root, files[0], 0):
        words = re.split(r"[\s=]+", line.strip(), maxsplit=1)
        # A Match block ends the settings that apply to every connection.
        if words[0].lower() == "match":
            break
        if len(words) == 2:
            # The first value counts (sshd_config(5)).
            values.setdefault(words[0].lower(), (words[1].strip().strip('"').lower(), name))
    value, name = values.get("permitrootlogin", ("prohibit-password", "etc/ssh/sshd_config"))
    if value not in ("prohibit-password", "without-password", "no", "forced-commands-only"):
        yield name, f"PermitRootLogin {value}"
    value, name = values.get("passwordauthentication", ("yes", "etc/ssh/sshd_config"))
    if value != "no":
        yield name, f"PasswordAuthentication {value}"
    value, name = values.get("permitemptypasswords", ("no", "etc/ssh/sshd_config"))
    if value != "no":
        yield name, f"PermitEmptyPasswords {value}"


def _sshd_lines(root: Path, path: Path, depth: int) -> Iterator[tuple[str, str]]:
    for line in _text(path).splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # The depth limit stops a loop of includes.
        if words[0].lower() == "include" and depth < 4:
            for pattern in words[1:]:
                absolute = pattern if pattern.startswith("/") else f"/etc/ssh/{pattern}"
                for included in sorted(root.glob(absolute.lstrip("/"))):
                    yield from _sshd_lines(root, included, depth + 1)
            continue
        yield line, str(path.relative_to(root))


def resolver(root: Path) -> Iterator[Finding]:
    """Report a resolver of the build machine. The image has none, or the link to its own."""
    path = root / "etc/resolv.conf"
    if path.is_symlink():
        target = str(path.readlink())
        if "systemd/resolve" not in target:
            yield "etc/resolv.conf", f"it leads to {target}"
    elif path.exists() and _text(path).strip():
        yield "etc/resolv.conf", "it is that of another machine"
    for line in _text(root / "etc/hosts").splitlines():
        address, *names = line.split("#")[0].split() or [""]
        if address and not address.startswith(("127.", "::1", "ff02:", "fe00:", "ff00:")):
            yield "etc/hosts", f"it names {' '.join(names)} at {address}"


def fenced(root: Path) -> Iterator[Finding]:
    """Report packages of the stack that can move without a new lock: not held, not pinned, or upgraded
    unattended.
    """
    try:
        document = json.loads(_text(root / "etc/goldnode/class.json"))
    except ValueError:
        yield "etc/goldnode/class.json", "there is no class document"
        return
    fence = _text(root / "etc/apt/apt.conf.d/52goldnode-fence")
    pins = _text(root / "etc/apt/preferences.d/goldnode-stack")
    patterns = re.findall(r'^\s*"(.*)";$', fence, re.MULTILINE)
    status = {
        fields["Package"]: fields.get("Status", "")
        for fields in paragraphs(_text(root / "var/lib/dpkg/status"))
        if "Package" in fields
    }
    for package in document.get("packages", ()):
        name = package["name"]
        if not any(re.match(pattern, name) for pattern in patterns):
            yield "etc/apt/apt.conf.d/52goldnode-fence", f"unattended upgrades may move {name}"
        if f"Package: {name}\nPin: version {package['version']}\n" not in pins:
            yield "etc/apt/preferences.d/goldnode-stack", f"{name} is not pinned"
        if status.get(name) != "hold ok installed":
            yield "var/lib/dpkg/status", f"{name} is not held ({status.get(name, 'not installed')})"


def packages_complete(root: Path) -> Iterator[Finding]:
    """Report packages that are not completely installed."""
    for fields in paragraphs(_text(root / "var/lib/dpkg/status")):
        state = fields.get("Status", "").split(" ")
        if "Package" in fields and (
            state[1:2] != ["ok"] or state[2:3] not in (["installed"], ["config-files"])
        ):
            yield "var/lib/dpkg/status", f"{fields.get('Package')} is {fields.get('Status')}"
    if any(path.name.isdigit() for path in (root / "var/lib/dpkg/updates").glob("*")):
        yield "var/lib/dpkg/updates", "dpkg was interrupted"


def mounts(root: Path) -> Iterator[Finding]:
    """Report that the program is missing by which systemd mounts file systems.

    Without it, / stays read-only. Debian's systemd depends on it until 257, and 262 only recommends it
    (findings/debian14-systemd-without-mount.sh).
    """
    if not (root / "usr/bin/mount").is_file():
        yield (
            "usr/bin/mount",
            "systemd mounts with it, and / would stay read-only: add mount to the packages",
        )


def building(root: Path) -> Iterator[Finding]:
    """Report files that only the build needed."""
    for name in (
        "usr/sbin/policy-rc.d",
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/apt/sources.list.d/0000sources.list",
    ):
        if (root / name).exists():
            yield name, "it was there only to build the image"
    for path in (
        root / "etc/apt/sources.list",
        *sorted((root / "etc/apt/sources.list.d").glob("*")),
    ):
        if re.search(r"^(?:deb|URIs:).*(?:file:|copy:)", _text(path), re.MULTILINE):
            yield (
                str(path.relative_to(root)),
                "it names a directory of the machine that built the image",
            )


CHECKS: Mapping[str, Check] = {
    "passwords": passwords,
    "identity": identity,
    "authorised-keys": authorised,
    "private-keys": private_keys,
    "caches": caches,
    "logs": logs,
    "world-writable": writable,
    "setuid": setid,
    "compilers": compilers,
    "sshd": sshd,
    "resolver": resolver,
    "fence": fenced,
    "packages": packages_complete,
    "mount": mounts,
    "building": building,
}


def check(root: Path, waivers: Sequence[HygieneWaiver] = ()) -> list[Hygiene]:
    """Run every check on the root filesystem and return the results in a fixed order.

    A finding that a waiver covers does not fail its check.
    """
    results = []
    for name, one in CHECKS.items():
        bad: list[str] = []
        waived: list[str] = []
        for path, what in sorted(set(one(root))):
            waiver = next(
                (
                    row
                    for row in waivers
                    if row.check == name and fnmatch.fnmatchcase(path, row.path)
                ),
                None,
            )
            if waiver is None:
                bad.append(f"/{path}: {what}")
            else:
                waived.append(f"/{path}: {what} ({waiver.reason})")
        if bad:
            results.append(
                Hygiene(
                    name,
                    "failed",
                    "; ".join(bad[:8]) + and_more(len(bad) - 8),
                )
            )
        elif waived:
            results.append(Hygiene(name, "waived", "; ".join(waived)))
        else:
            results.append(Hygiene(name, "passed", (one.__doc__ or "").split("\n")[0]))
    return results
