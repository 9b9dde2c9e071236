"""Nothing of the controller's own apt is used or changed.

The machine's apt directories are laid under bind mounts in a mount namespace of the test's own, full of what must not matter; whatever apt
would take from them, or write to them, shows.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import resolve

from goldnode.lock.model import dump_lock

ROOT = Path(__file__).parents[3]
COVERED = ("/etc/apt", "/var/lib/apt", "/var/cache/apt", "/var/lib/dpkg")

HOSTILE = """
APT::Install-Recommends "true";
APT::Install-Suggests "true";
APT::Default-Release "trap";
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
Acquire::ForceHash "MD5Sum";
Acquire::AllowInsecureRepositories "true";
Dir::State::lists "/nowhere";
Dir::Cache "/nowhere";
Binary::apt-get::APT::Get::Print-URIs "false";
APT::Update::Pre-Invoke {{ "touch {trap}"; }};
APT::Update::Post-Invoke {{ "touch {trap}"; }};
APT::Update::Post-Invoke-Success {{ "touch {trap}"; }};
DPkg::Pre-Invoke {{ "touch {trap}"; }};
DPkg::Pre-Install-Pkgs {{ "touch {trap}"; }};
"""

# In the namespace: cover the directories, hash them, lock, hash them again; the lock goes to standard output.
INSIDE = """
import datetime, hashlib, os, subprocess, sys
from pathlib import Path
from goldnode.classdoc.load import load_catalog
from goldnode.lock.model import dump_lock
from goldnode.lock.resolve import open_archives
from goldnode.core.site import load_site

hostile, covered = Path(sys.argv[1]), sys.argv[2].split(":")
for place in covered:
    subprocess.run(["mount", "--bind", str(hostile / place.strip("/").replace("/", "_")), place], check=True)

def state():
    found = []
    for place in covered:
        for path in sorted(Path(place).rglob("*")):
            about = path.lstat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found.append((str(path), about.st_mode, about.st_mtime_ns, digest))
    return found

before = state()
assert any("trap" in row[0] for row in before), "the machine's own directories are not covered"
catalog = load_catalog([Path("catalog")])
with open_archives(catalog.stacks["small"], catalog, load_site(Path("site.yml"))) as archives:
    lock = archives.resolve(datetime.date(2026, 11, 21)).lock
after = state()
assert after == before, sorted(set(after) ^ set(before))
sys.stdout.write(dump_lock(lock))
"""


def namespace() -> list[str] | None:
    """The command that runs another one in a mount namespace of its own, where this user may."""
    for command in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return None


@pytest.fixture
def hostile(tmp_path: Path, near: Archive, key: SigningKey) -> Iterator[Path]:
    """The four directories, and an archive of traps that they point apt to."""
    made = tmp_path / "hostile"
    for place in COVERED:
        (made / place.strip("/").replace("/", "_")).mkdir(parents=True)
    apt, state, cache, dpkg = (made / place.strip("/").replace("/", "_") for place in COVERED)
    for name in ("apt.conf.d", "preferences.d", "sources.list.d", "trusted.gpg.d"):
        (apt / name).mkdir()
    (apt / "apt.conf.d/99trap").write_text(HOSTILE.format(trap=tmp_path / "sprung"))
    (apt / "apt.conf").write_text(HOSTILE.format(trap=tmp_path / "sprung"))
    (apt / "preferences.d/trap").write_text("Package: *\nPin: release *\nPin-Priority: -1\n")
    (apt / "preferences").write_text("Package: libcuda1\nPin: version 1*\nPin-Priority: 1001\n")
    trap = Archive(tmp_path / "trap", key, suite="/", components=())
    trap.add("libcuda1", "999.1-1")
    trap.publish()
    (apt / "sources.list").write_text(f"deb [trusted=yes] file:{tmp_path}/trap ./\n")
    (apt / "sources.list.d/trap.list").write_text(f"deb [trusted=yes] file:{tmp_path}/trap ./\n")
    (apt / "trusted.gpg.d/trap.gpg").write_bytes(b"no keyring")
    for name in ("lists/partial", "periodic"):
        (state / name).mkdir(parents=True)
    (state / "extended_states").write_text(
        "Package: libcuda1\nArchitecture: amd64\nAuto-Installed: 1\n"
    )
    (cache / "archives/partial").mkdir(parents=True)
    (cache / "pkgcache.bin").write_bytes(b"no cache")
    (dpkg / "updates").mkdir()
    (dpkg / "arch").write_text("arm64\n")
    (dpkg / "status").write_text(
        "Package: kmod\nStatus: hold ok installed\nVersion: 99-1\nArchitecture: amd64\nMaintainer: n <n@example.org>\nDescription: trap\n"
    )
    yield made
    assert not (tmp_path / "sprung").exists(), "a hook of the machine's apt ran"


def test_hostile_directories_of_apt_change_nothing_and_stay_as_they_are(
    place: Place, near: Archive, hostile: Path, tmp_path: Path
) -> None:
    command = namespace()
    if command is None:
        pytest.skip(
            "this user may not make a mount namespace, so the machine's apt directories cannot be covered"
        )
    expected = dump_lock(resolve(*place.load(), today=dt.date(2026, 11, 21)))
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "hostile.conf").write_text(HOSTILE.format(trap=tmp_path / "sprung"))
    done = subprocess.run(
        [*command, sys.executable, "-c", INSIDE, str(hostile), ":".join(COVERED)],
        cwd=place.root,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "APT_CONFIG": str(tmp_path / "hostile.conf"),
            "LC_ALL": "de_DE.UTF-8",
            "DEB_BUILD_OPTIONS": "nocheck",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
