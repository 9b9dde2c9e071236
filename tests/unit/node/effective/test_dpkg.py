"""Our verification of package files, and of what dpkg has not finished, against dpkg itself."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from goldnode.node.effective import dpkg
from goldnode.node.ground.host import Host
from goldnode.node.state.domains.packages import broken_packages
from goldnode.node.state.model import Observed
from goldnode.node.state.observe import packages

DPKG = shutil.which("dpkg")
pytestmark = pytest.mark.skipif(DPKG is None, reason="no dpkg here")
STATES = (
    "install ok installed",
    "hold ok installed",
    "install ok half-configured",
    "install ok unpacked",
    "install reinstreq half-installed",
    "install ok triggers-pending",
    "deinstall ok config-files",
    "install ok half-installed",
)


def database(root: Path, seed: int, count: int) -> list[str]:
    """Write packages of random states, their files, diversions, and damage to some of the files."""
    choice = random.Random(seed)  # noqa: S311 - cases, not keys
    here = root / "var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        (here / name).mkdir(parents=True)
    (here / "arch").write_text("amd64\n")
    (here / "info/format").write_text("1\n")  # without it dpkg knows no info/NAME:ARCHITECTURE.*
    stanzas, diverted, names = [], [], []
    for number in range(count):
        package = f"libnvidia-p{number}"
        names.append(package)
        state = choice.choice(STATES)
        multi = choice.random() < 0.5
        stanza = [f"Package: {package}", f"Status: {state}", "Maintainer: x <x@example.com>"]
        stanza += ["Architecture: amd64", *(["Multi-Arch: same"] if multi else [])]
        extra = [f"Config-Version: {number}"] if "half-conf" in state or "unpacked" in state else []
        extra += ["Triggers-Pending: ldconfig"] if "triggers" in state else []
        stanzas.append("\n".join([*stanza, f"Version: {number}.1", *extra, "Description: x"]))
        files, sums = ["/."], []
        for part in range(choice.randint(1, 4)):
            folder = choice.choice(["usr/lib/x86_64-linux-gnu", "usr/bin", "lib/firmware/nvidia"])
            path = f"{folder}/{package}-{part}.so.1"
            content = f"{package} {part}".encode()
            sums.append(f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}  {path}")
            files.append(f"/{path}")
            place, kind = root / path, choice.random()
            if kind < 0.15:
                diverted.append(
                    (f"/{path}", f"/{path}.diverted", choice.choice([":", package, "glx"]))
                )
                if diverted[-1][2] != package:
                    place = root / f"{path}.diverted"
            place.parent.mkdir(parents=True, exist_ok=True)
            if choice.random() < 0.15:
                continue  # the file is missing
            place.write_bytes(content if choice.random() < 0.75 else content + b" changed")
        info = here / "info" / (f"{package}:amd64" if multi else package)
        Path(f"{info}.list").write_text("\n".join(files) + "\n")
        Path(f"{info}.md5sums").write_text("\n".join(sums) + "\n")
    (here / "status").write_text("\n\n".join(stanzas) + "\n")
    (here / "diversions").write_text("".join("\n".join(row) + "\n" for row in diverted))
    return names


def run(root: Path, *words: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    command = [str(DPKG), f"--root={root}", *words]
    return subprocess.run(
        command, capture_output=True, check=False, text=True, env=environment
    ).stdout


def test_files_are_verified_as_dpkg_does(tmp_path: Path) -> None:
    names = database(tmp_path, 7, 120)
    known: dict[str, str] = {}
    host = Host(str(tmp_path))
    rows = dpkg.altered(host, names, architecture="amd64", known=known)
    assert len(rows) > 30
    shown = {
        line.split()[-1]: "is missing" if line.startswith("missing") else "has other content"
        for line in run(tmp_path, "--verify", *installed(tmp_path)).splitlines()
    }
    checked = set(installed(tmp_path))
    computed = {row.path: row.why.partition(" than")[0] for row in rows if row.package in checked}
    # dpkg 1.21 compares no content of a file that another package diverts; it only misses one.
    diverted = {path for path in computed if path.endswith(".diverted")} - set(shown)
    assert {path: why for path, why in computed.items() if path not in diverted} == shown
    assert all(computed[path] == "has other content" for path in diverted)
    # The second time nothing is read again, and the answer is the same.
    assert dpkg.altered(host, names, architecture="amd64", known=known) == rows


def installed(root: Path) -> list[str]:
    """The packages that dpkg verifies: those with files."""
    text = (root / "var/lib/dpkg/status").read_text()
    return [
        stanza.split("\n")[0].partition(": ")[2]
        for stanza in text.split("\n\n")
        if not re.search(r"config-files|half-installed", stanza)
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_packages_that_are_not_finished_are_those_of_the_audit(tmp_path: Path, seed: int) -> None:
    database(tmp_path, seed, 40)
    listed = set(re.findall(r"^ (libnvidia-p\d+)(?::amd64)?\s", run(tmp_path, "--audit"), re.M))
    seen = Observed(packages=packages(Host(str(tmp_path))))
    assert {name.partition(":")[0] for name in broken_packages(seen)} == listed


def test_records_of_an_interrupted_dpkg(tmp_path: Path) -> None:
    database(tmp_path, 3, 2)
    host = Host(str(tmp_path))
    assert dpkg.unfinished(host) == []
    for name in ("tmp.i", "0001", "0002", "backup~"):
        (tmp_path / "var/lib/dpkg/updates" / name).touch()
    assert dpkg.unfinished(host) == [f"{dpkg.UPDATES}/0001", f"{dpkg.UPDATES}/0002"]


def test_documentation_that_a_minimal_installation_leaves_out(tmp_path: Path) -> None:
    database(tmp_path, 4, 1)
    info = next((tmp_path / "var/lib/dpkg/info").glob("*.md5sums"))
    info.write_text(f"{'0' * 32}  usr/share/doc/x/changelog.gz\n")
    rows = dpkg.altered(Host(str(tmp_path)), ["libnvidia-p0"], architecture="amd64", known={})
    assert rows == []


def test_files_that_changed_since_a_time_are_read(tmp_path: Path) -> None:
    database(tmp_path, 4, 1)
    info = next((tmp_path / "var/lib/dpkg/info").glob("*.md5sums"))
    info.write_text(f"{'0' * 32}  usr/lib/a.so.1\n{'0' * 32}  usr/lib/b.so.1\n")
    library = tmp_path / "usr/lib/a.so.1"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_text("other")
    changed = library.stat().st_ctime

    def found(since: float) -> dict[str, str]:
        rows = dpkg.altered(
            Host(str(tmp_path)), ["libnvidia-p0"], architecture="amd64", known={}, since=since
        )
        return {row.path.rpartition("/")[2]: row.why for row in rows}

    # A file that is not there needs no reading.
    assert found(changed + 1) == {"b.so.1": "is missing"}
    os.utime(info.with_suffix(".list"), (changed - 5, changed - 5))
    assert found(changed - 1)["a.so.1"] == "has other content than its package"
    os.utime(info.with_suffix(".list"), (changed + 5, changed + 5))
    assert found(changed - 1) == {"b.so.1": "is missing"}, "dpkg put it there itself"


def test_one_file_by_the_name_of_a_merged_usr(tmp_path: Path) -> None:
    database(tmp_path, 4, 1)
    info = next((tmp_path / "var/lib/dpkg/info").glob("*.md5sums"))
    info.write_text(f"{'0' * 32}  usr/lib/a.so.1\n{'0' * 32}  usr/lib/b.so.1\n")
    rows = dpkg.altered(
        Host(str(tmp_path)), ["libnvidia-p0"], architecture="amd64", known={}, only="/lib/a.so.1"
    )
    assert [row.path for row in rows] == ["/usr/lib/a.so.1"]
