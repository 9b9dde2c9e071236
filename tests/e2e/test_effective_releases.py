"""What files will do, compared with the programs of Debian 12, 13 and sid instead of those of this machine.

Each release is a filesystem of its own, made of packages by mmdebstrap and mounted from an image, so that GRUB's
programs find a disk. The tests of tests/unit/node/effective run inside of it, with its Python, apt, systemd, kmod,
dpkg, containerd and docker. Its grub-mkconfig writes the menus of generated settings.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.debian_archive import debian_archive
from tests.unit.node.effective.test_grub_defaults import generated

from goldnode.node.effective import grub, grub_defaults
from goldnode.node.ground.host import Host

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

SUITES = ("bookworm", "trixie", "sid")
PACKAGES = (
    "python3", "python3-pytest", "python3-yaml", "apt", "apt-utils", "systemd", "kmod", "procps", "util-linux",
    "initramfs-tools-core", "grub-common", "grub2-common", "gcc", "libc6-dev", "zstd", "xz-utils", "lz4", "lzop", "cpio", "containerd", "systemd-boot",
    "docker.io",
)  # fmt: skip
# The Release file of sid is valid for a week. A mirror may be older.
OPTIONS = ('Acquire::Check-Valid-Until "false"', 'APT::Install-Recommends "false"')
REPOSITORY = Path(__file__).parents[2]
NODES = "null 1 3;zero 1 5;full 1 7;random 1 8;urandom 1 9;tty 5 0"
# In a mount namespace: the image as /, the checkout as /src, a directory that both sides see as /shared. The disk
# has another name than that of a loop device, of which grub-mkconfig takes the file that is behind it.
ENTER = f"""set -e
image=$1 place=$2 checkout=$3 shared=$4; shift 4
mount -o loop "$image" "$place"
mkdir -p "$place/src" "$place/shared" "$place/old"
mount --bind "$checkout" "$place/src"; mount -o remount,bind,ro "$place/src"
mount --bind "$shared" "$place/shared"
mount -t proc proc "$place/proc"; mount -t sysfs sys "$place/sys"; mount -t cgroup2 cgroup2 "$place/sys/fs/cgroup"
mount -t tmpfs run "$place/run"; mount -t tmpfs dev "$place/dev"; mkdir "$place/dev/shm"; chmod 1777 "$place/dev/shm"
echo "{NODES}" | tr ';' '\\n' | while read -r name major minor; do
    mknod -m 666 "$place/dev/$name" c "$major" "$minor"
done
ln -s /proc/self/fd "$place/dev/fd"
mknod "$place/dev/vdz" b $(mountpoint -d "$place" | tr : ' ')
ln -s vdz "$place$(findmnt -n -o SOURCE "$place")"
cd "$place"; pivot_root . old; umount -l /old
exec chroot / "$@"
"""
UNIT_TESTS = (
    "cd /src && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/src:/src/src exec python3 -m pytest -q -rs -p no:cacheprovider "
    "-c /dev/null --rootdir=/src --confcutdir=tests/unit/node/effective -k 'not of_debian' tests/unit/node/effective"
)
# Features of later or earlier programs only: dockerd 20 has no --validate.
OLD_OR_NEW = ("needs dockerd 23 or later", "kmod after 30 reads *.conf alone")
CONFIGURATIONS = 60
RELEASES = ("6.1.0-901-amd64", "6.1.0-902-amd64")
MENUS = f"""set -e
for release in {" ".join(RELEASES)}; do
    mkdir -p /lib/modules/$release
    for kind in vmlinuz initrd.img config; do head -c 2048 /dev/urandom >/boot/$kind-$release; done
done
mkdir -p /boot/grub
for case in /shared/*; do
    rm -rf /etc/default/grub /etc/default/grub.d
    cp -r "$case/etc" /; cp "$case/grubenv" /boot/grub/
    status=0; grub-mkconfig -o "$case/grub.cfg" >"$case/log" 2>&1 || status=$?
    echo $status >"$case/status"
done
"""


class Release:
    """The filesystem of a release as an image."""

    def __init__(self, suite: str, directory: Path) -> None:
        """Make the image. Skips the test if the archive cannot be reached."""
        self.suite, self.image, self.place = suite, directory / "image", directory / "root"
        options = [f"--aptopt={option}" for option in OPTIONS]
        command = ["mmdebstrap", "--quiet", "--variant=minbase", *options]
        packages = f"--include={','.join(PACKAGES)}"
        done = subprocess.run(
            [*command, packages, suite, str(self.place), debian_archive()],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            # An archive can lack a suite, or its index can have expired: the page of proofs has when each one ran.
            pytest.skip(f"{suite} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
        with self.image.open("wb") as image:
            image.truncate(3 << 30)  # it is sparse
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", self.place, self.image], check=True)
        shutil.rmtree(self.place)
        self.place.mkdir()

    def run(self, shared: Path, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside of it."""
        words = [str(path) for path in (self.image, self.place, REPOSITORY, shared)]
        return subprocess.run(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, "sh", *words, *command],
            capture_output=True, text=True, check=False, timeout=1800,
        )  # fmt: skip


@pytest.fixture(scope="module", params=SUITES)
def release(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    made = Release(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.image.unlink()


def test_rules_agree_with_the_programs_of_the_release(release: Release, tmp_path: Path) -> None:
    done = release.run(tmp_path, "sh", "-c", UNIT_TESTS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    # No owner was left out for want of its program.
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if not any(reason in line for reason in OLD_OR_NEW)] == []


def configuration(seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """GRUB's settings as people write them, and the variables of its environment block."""
    choice = random.Random(seed)  # noqa: S311 - cases, not keys
    files = generated(choice)
    more = choice.choice(
        ["", "GRUB_DEFAULT=saved\n", "GRUB_DEFAULT=saved\n", 'GRUB_DEFAULT="1>2"\n']
    )
    files["/etc/default/grub.d/99-last.cfg"] = more + choice.choice(["", "GRUB_SAVEDEFAULT=true\n"])
    entry = choice.choice(["0", "1>0", "1>2", f"gnulinux-{RELEASES[0]}-advanced-x", "not there"])
    names = choice.choice([(), ("saved_entry",), ("next_entry",), ("saved_entry", "next_entry")])
    return files, dict.fromkeys(names, entry)


def block(variables: dict[str, str]) -> bytes:
    rows = "".join(f"{name}={value}\n" for name, value in variables.items())
    return (grub.SIGNATURE + rows.encode()).ljust(1024, b"#")


def write_configurations(directory: Path, count: int = CONFIGURATIONS) -> None:
    """One directory for each seed: settings below `etc`, and the environment block."""
    for seed in range(count):
        files, variables = configuration(seed)
        case = directory / f"{seed:02}"
        for name, text in files.items():
            (case / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (case / name.lstrip("/")).write_text(text)
        (case / "grubenv").write_bytes(block(variables))


def differences(directory: Path, count: int = CONFIGURATIONS) -> dict[int, str]:
    """How our answers differ from the menus that grub-mkconfig wrote, by seed."""
    compared_all = {
        seed: compared(directory / f"{seed:02}", configuration(seed)[1]) for seed in range(count)
    }
    return {seed: difference for seed, difference in compared_all.items() if difference}


def test_menus_are_those_of_the_settings(release: Release, tmp_path: Path) -> None:
    write_configurations(tmp_path)
    done = release.run(tmp_path, "sh", "-c", MENUS)
    assert done.returncode == 0, done.stderr
    assert differences(tmp_path) == {}


def compared(case: Path, variables: dict[str, str]) -> str:
    """How our answer differs from the menu that grub-mkconfig wrote, or an empty text."""
    defaults = grub_defaults.read(Host(str(case)))
    log = (case / "log").read_text()
    if int((case / "status").read_text()) or defaults.error:
        failed = (case / "status").read_text().strip() != "0"
        return "" if failed and defaults.error else f"{defaults.error}: {log[-300:]}"
    menu = (case / "grub.cfg").read_text()
    words = defaults.words("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
    first = next(entry for entry in grub.entries(menu) if entry.release == RELEASES[1])
    # Which value a variable has in GRUB is not known here.
    own = [word.text for word in words if "$" not in word.text]
    shown = [word for word in first.words[2:] if not any("$" in one.text for one in words)]
    if shown and shown != own:
        return f"command line: {own}, in the menu {first.words}"
    choice = grub.next_boot(menu, (case / "grubenv").read_bytes())
    wanted = defaults.text("GRUB_DEFAULT") or "0"
    if wanted == "saved":
        wanted = variables.get("saved_entry", "")
    wanted = variables.get("next_entry", wanted)
    if (choice.wanted or "") != wanted:
        return f"default: {wanted!r}, of the menu {choice.wanted!r} ({choice.reason})"
    entry = grub.entry_for(menu, RELEASES[0])
    return "" if entry and RELEASES[0] in entry.selector else f"no entry: {entry}"
