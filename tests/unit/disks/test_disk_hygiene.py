"""Each check of a root filesystem: a clean root passes all, and one thing put into it fails exactly the check that is for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from goldnode.disks.definition import HygieneWaiver
from goldnode.disks.hygiene import CHECKS, check
from goldnode.disks.sanitise import sanitise
from goldnode.node.state import shaping

Fault = Callable[[Path], object]

PACKAGE = {"name": "linux-image-6.1", "version": "6.1.192-2"}


def put(root: Path, name: str, text: str = "x\n", mode: int = 0o644) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def add(root: Path, name: str, text: str) -> None:
    path = root / name
    path.write_text(path.read_text() + text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem that has nothing wrong with it."""
    here = tmp_path / "root"
    for name in (
        "dev",
        "run",
        "tmp",
        "var/tmp",
        "var/log",
        "efi",
        "root",
        "home/user",
        "usr/bin",
        "usr/sbin",
    ):
        (here / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (here / name).chmod(0o1777)
    put(
        here,
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/sh\n",
    )
    put(here, "etc/shadow", "root:*:20779:0:99999:7:::\nuser:!:20779:0:99999:7:::\n", 0o640)
    put(here, "etc/machine-id", "uninitialized\n", 0o444)
    put(here, "etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
    put(
        here,
        "etc/ssh/sshd_config",
        "Include /etc/ssh/sshd_config.d/*.conf\nPermitEmptyPasswords no\n",
    )
    put(here, "etc/ssh/sshd_config.d/10-goldnode.conf", "PasswordAuthentication no\n")
    put(here, "usr/sbin/sshd", mode=0o755)
    put(here, "usr/bin/sudo", mode=0o4755)
    put(here, "usr/bin/mount", mode=0o4755)
    put(here, "etc/goldnode/class.json", json.dumps({"packages": [PACKAGE]}))
    put(
        here,
        "etc/apt/apt.conf.d/52goldnode-fence",
        'Unattended-Upgrade::Package-Blacklist {\n  "linux-image-6\\.1$";\n};\n',
    )
    put(
        here,
        "etc/apt/preferences.d/goldnode-stack",
        "Package: linux-image-6.1\nPin: version 6.1.192-2\nPin-Priority: 1001\n",
    )
    put(
        here,
        "etc/apt/sources.list.d/goldnode-debian.sources",
        "Types: deb\nURIs: http://archive.example/debian\n",
    )
    put(
        here,
        "var/lib/dpkg/status",
        "Package: linux-image-6.1\nStatus: hold ok installed\n\nPackage: sudo\nStatus: install ok installed\n",
    )
    return here


def failed(root: Path) -> dict[str, str]:
    return {row.check: row.detail for row in check(root) if row.outcome == "failed"}


def test_a_clean_root_passes_every_check(root: Path) -> None:
    rows = check(root)
    assert [(row.check, row.outcome) for row in rows] == [(name, "passed") for name in CHECKS]


CASES: list[tuple[str, str, Fault]] = [
    ("passwords", "root has a password", lambda r: put(r, "etc/shadow", "root:$y$j9T$abc:20779::::::\n")),
    ("passwords", "user has an empty password", lambda r: put(r, "etc/shadow", "root:*:1::::::\nuser::1::::::\n")),
    ("passwords", "toor is root by another name", lambda r: add(r, "etc/passwd", "toor:x:0:0::/root:/bin/sh\n")),
    ("passwords", "it is missing", lambda r: (r / "etc/shadow").unlink()),
    ("identity", "0123456789abcdef", lambda r: put(r, "etc/machine-id", "0123456789abcdef0123456789abcdef\n")),
    ("identity", "expected 'uninitialized'", lambda r: put(r, "etc/machine-id", "")),
    ("identity", "a host key", lambda r: put(r, "etc/ssh/ssh_host_rsa_key.pub")),
    ("identity", "etc/hostname", lambda r: put(r, "etc/hostname", "builder\n")),
    ("identity", "random-seed", lambda r: put(r, "var/lib/systemd/random-seed")),
    ("authorised-keys", "allows a login", lambda r: put(r, "root/.ssh/authorized_keys", "ssh-ed25519 AAAA me\n")),
    ("authorised-keys", "allows a login", lambda r: put(r, "home/user/.ssh/authorized_keys2", "ssh-ed25519 AAAA me\n")),
    ("private-keys", "a key that signs modules", lambda r: put(r, "var/lib/goldnode/mok.key", "anything\n")),
    ("private-keys", "a private key", lambda r: put(r, "etc/ssl/site.pem", "-----BEGIN " + "RSA PRIVATE KEY-----\n")),
    ("private-keys", "a private key", lambda r: put(r, "root/.ssh/id_ed25519", "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n")),
    ("caches", "var/lib/apt/lists/x_Packages", lambda r: put(r, "var/lib/apt/lists/x_Packages")),
    ("caches", "sudo.deb", lambda r: put(r, "var/cache/apt/archives/sudo.deb")),
    ("caches", "aux-cache", lambda r: put(r, "var/cache/ldconfig/aux-cache")),
    ("caches", "/run: it is not empty", lambda r: put(r, "run/goldnode/engine.lock")),
    ("logs", "var/log/apt/history.log", lambda r: put(r, "var/log/apt/history.log")),
    ("logs", "a history of commands", lambda r: put(r, "root/.bash_history")),
    ("world-writable", "/etc/wide", lambda r: put(r, "etc/wide", mode=0o666)),
    ("world-writable", "/srv/wide", lambda r: put(r, "srv/wide/x").parent.chmod(0o777)),
    ("setuid", "/usr/bin/own", lambda r: put(r, "usr/bin/own", mode=0o4755)),
    ("setuid", "/opt/site/group", lambda r: put(r, "opt/site/group", mode=0o2755)),
    ("compilers", "/usr/bin/gcc-12", lambda r: put(r, "usr/bin/gcc-12", mode=0o755)),
    ("compilers", "/usr/bin/x86_64-linux-gnu-ld", lambda r: put(r, "usr/bin/x86_64-linux-gnu-ld", mode=0o755)),
    ("compilers", "nvidia-kernel-dkms builds modules", lambda r: add(r, "var/lib/dpkg/status", "\nPackage: nvidia-kernel-dkms\nStatus: hold ok installed\n")),
    ("compilers", "kernel headers", lambda r: (r / "usr/src/linux-headers-6.1").mkdir(parents=True)),
    ("sshd", "PasswordAuthentication yes", lambda r: (r / "etc/ssh/sshd_config.d/10-goldnode.conf").unlink()),
    ("sshd", "PermitRootLogin yes", lambda r: put(r, "etc/ssh/sshd_config.d/00-site.conf", "PermitRootLogin yes\n")),
    ("sshd", "PermitEmptyPasswords yes", lambda r: put(r, "etc/ssh/sshd_config.d/00-site.conf", "PermitEmptyPasswords=yes\n")),
    ("resolver", "another machine", lambda r: put(r, "etc/resolv.conf", "nameserver 192.0.2.1\n")),
    ("resolver", "builder at 192.0.2.7", lambda r: add(r, "etc/hosts", "192.0.2.7 builder\n")),
    ("fence", "unattended upgrades may move linux-image-6.1", lambda r: put(r, "etc/apt/apt.conf.d/52goldnode-fence", "")),
    ("fence", "is not pinned", lambda r: put(r, "etc/apt/preferences.d/goldnode-stack", "")),
    ("fence", "is not held", lambda r: put(r, "var/lib/dpkg/status", "Package: linux-image-6.1\nStatus: install ok installed\n")),
    ("fence", "no class document", lambda r: (r / "etc/goldnode/class.json").unlink()),
    ("packages", "half-configured", lambda r: add(r, "var/lib/dpkg/status", "\nPackage: ssh\nStatus: install ok half-configured\n")),
    ("packages", "dpkg was interrupted", lambda r: put(r, "var/lib/dpkg/updates/0001")),
    ("mount", "/ would stay read-only", lambda r: (r / "usr/bin/mount").unlink()),
    ("building", "policy-rc.d", lambda r: put(r, "usr/sbin/policy-rc.d", mode=0o755)),
    ("building", "a directory of the machine", lambda r: put(r, "etc/apt/sources.list", "deb [trusted=yes] file:/srv/pool ./\n")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message", "fault"),
    CASES,
    ids=[f"{row[0]}-{number}" for number, row in enumerate(CASES)],
)
def test_one_fault_fails_its_check_and_no_other(
    root: Path, name: str, message: str, fault: Fault
) -> None:
    fault(root)
    found = failed(root)
    assert list(found) == [name]
    assert message in found[name]


def test_every_check_has_a_case() -> None:
    assert {row[0] for row in CASES} == set(CHECKS)


def test_a_waiver_names_its_reason_and_covers_its_path_alone(root: Path) -> None:
    put(root, "usr/bin/one", mode=0o4755)
    waiver = HygieneWaiver(check="setuid", path="usr/bin/one", reason="the site's own")
    row = next(item for item in check(root, [waiver]) if item.check == "setuid")
    assert (row.outcome, row.detail) == (
        "waived",
        "/usr/bin/one: it runs as another (-rwsr-xr-x) (the site's own)",
    )
    put(root, "usr/bin/two", mode=0o4755)
    row = next(item for item in check(root, [waiver]) if item.check == "setuid")
    assert row.outcome == "failed"
    assert "/usr/bin/two" in row.detail
    assert "/usr/bin/one" not in row.detail


def test_the_first_value_of_sshd_counts(root: Path) -> None:
    add(
        root,
        "etc/ssh/sshd_config",
        "PasswordAuthentication yes\nMatch User x\n  PermitRootLogin yes\n",
    )
    assert failed(root) == {}


def test_sanitising_takes_away_what_the_checks_object_to(root: Path) -> None:
    for name in (
        "etc/ssh/ssh_host_rsa_key",
        "etc/hostname",
        "var/log/dpkg.log",
        "var/cache/ldconfig/aux-cache",
        "var/lib/apt/lists/x_Packages",
    ):
        put(root, name)
    for name in (
        "root/.bash_history",
        "usr/sbin/policy-rc.d",
        "run/x/y",
        "dev/console",
        "etc/passwd-",
        "usr/lib/python3/__pycache__/a.pyc",
        shaping.FILE.lstrip("/"),
    ):
        put(root, name)
    put(root, "etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    (root / "etc/broken").symlink_to("nowhere")
    sanitise(root, 1_700_000_000)
    assert failed(root) == {}
    assert not (root / "usr/lib/python3/__pycache__").exists()
    assert not (root / shaping.FILE.lstrip("/")).exists(), (
        "it tells of the /etc of one build, and no two are the same"
    )
    assert (root / "efi").is_dir()
    late = [path for path in (root, *root.rglob("*")) if os.lstat(path).st_mtime > 1_700_000_000]
    assert late == []
