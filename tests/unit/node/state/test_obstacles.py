"""What a change would fail on: read from the files of a scratch root, and gone after the printed remedy was carried out there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import bare, document

from goldnode.node.effective import dpkg
from goldnode.node.ground.host import Host
from goldnode.node.state import observe, obstacles, preflight
from goldnode.node.state.engine import judge
from goldnode.node.state.model import Action, Refusal

REL = "6.1.0-902-amd64"
LIB = "usr/lib/x86_64-linux-gnu"


def make(root: Path, files: dict[str, str]) -> Host:
    """A node whose files are these, under a scratch root. A text `-> x` makes a link."""
    for name, text in {"var/lib/dpkg/status": "", "var/lib/dpkg/available": "", **files}.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text[3:])
        else:
            place.write_text(text)
    for name in ("info", "updates", "triggers"):
        (root / "var/lib/dpkg" / name).mkdir(exist_ok=True)
    return Host(str(root), live=True)


def carry_out(root: Path, refusal: Refusal, which: int = 0) -> None:
    """Run a command of a remedy in the scratch root: dpkg with its --root, paths below it, and no ldconfig and depmod."""
    command = re.findall("`([^`]+)`", refusal.remedy)[which]
    command = re.sub(r"(?<= )(/(?:var|usr|lib)/)", rf"{root}\1", command)
    script = (
        f'dpkg() {{ if [ "$1" = -S ]; then shift; for f; do command dpkg --root={root} -S "${{f#{root}}}" || return 1; done; '
        f'else command dpkg --root={root} --force-not-root --force-script-chrootless --log=/dev/null "$@"; fi; }}\n'
        f"ldconfig() {{ :; }}; depmod() {{ :; }}\n{command}\n"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def observed(host: Host) -> Any:
    """A bare node of the cases with the obstacles of these files."""
    seen = bare(document())
    seen.packages |= observe.packages(host)
    seen.driver_files["unfinished"] = dpkg.unfinished(host)
    seen.obstacles = obstacles.observe(host, document())
    return seen


def stanza(name: str, status: str) -> str:
    return f"Package: {name}\nStatus: {status}\nMaintainer: A <a@example.org>\nArchitecture: amd64\nVersion: 1.0\nDescription: x\n\n"


def test_interrupted_dpkg(tmp_path: Path) -> None:
    unpacked = stanza("one", "install ok unpacked")
    host = make(
        tmp_path,
        {
            "var/lib/dpkg/status": unpacked,
            "var/lib/dpkg/updates/0001": unpacked,
            "var/lib/dpkg/updates/tmp.i": "",
        },
    )
    (refusal,) = preflight.broken_by_others(observed(host))
    assert "/var/lib/dpkg/updates/0001" in refusal.message
    carry_out(tmp_path, refusal)
    assert preflight.broken_by_others(observed(host)) == []


def test_package_that_is_half_installed(tmp_path: Path) -> None:
    text = stanza("one", "install reinstreq half-installed") + stanza("two", "install ok unpacked")
    text += stanza("dpkg", "install ok installed")  # its architecture is the node's
    host = make(tmp_path, {"var/lib/dpkg/status": text})
    (refusal,) = preflight.broken_by_others(observed(host))
    assert "one, two" in refusal.message
    carry_out(tmp_path, refusal, 1)
    carry_out(tmp_path, refusal, 2)
    assert preflight.broken_by_others(observed(host)) == []


def test_dkms_tree_without_its_source(tmp_path: Path) -> None:
    host = make(
        tmp_path,
        {
            "usr/src/good-1/dkms.conf": "", "var/lib/dkms/good/1/source": "-> /usr/src/good-1", "var/lib/dkms/good/1/6.1/x86_64/log/make.log": "",
            "var/lib/dkms/good/kernel-6.1-x86_64": "-> 1/6.1/x86_64", "var/lib/dkms/good/original_module/6.1/x": "",
            "var/lib/dkms/zfs/2.1.12/source": "-> /usr/src/zfs-2.1.12", "var/lib/dkms/zfs/2.1.12/6.1/x86_64/x": "",
            "var/lib/dkms/zfs/kernel-6.1-x86_64": "-> 2.1.12/6.1/x86_64", "var/lib/dkms/evdi/4.2/x": "",
            "usr/src/empty-1/Makefile": "", "var/lib/dkms/empty/1/source": "-> /usr/src/empty-1", "var/lib/dkms/mok.pub": "",
        },
    )  # fmt: skip
    refused = obstacles.dkms(document(), observed(host))
    assert [refusal.message.partition(" has ")[0] for refusal in refused] == [
        "/var/lib/dkms/empty/1",
        "/var/lib/dkms/evdi/4.2",
        "/var/lib/dkms/zfs/2.1.12",
    ]
    for refusal in refused:
        carry_out(tmp_path, refusal)
    assert obstacles.dkms(document(), observed(host)) == []
    assert not (tmp_path / "var/lib/dkms/zfs/kernel-6.1-x86_64").is_symlink()
    assert (tmp_path / "var/lib/dkms/good/kernel-6.1-x86_64/log/make.log").exists()


def test_remains_of_a_runfile(tmp_path: Path) -> None:
    own = f"/{LIB}/libnvidia-ml.so.535.2\n"
    left = [
        f"{LIB}/libcuda.so.535.104.05", f"{LIB}/libnvidia-ml.so.535.104.05",
        f"{LIB}/libnvidia-ptxjitcompiler.so.535.104.05", f"lib/modules/{REL}/kernel/drivers/video/nvidia.ko",
    ]  # fmt: skip
    staying = [
        f"{LIB}/libnvidia-ml.so.535.2",
        f"lib/modules/{REL}/updates/dkms/nvidia.ko",
        f"lib/modules/{REL}/extra/nvidia-drm.ko.xz",
    ]
    host = make(
        tmp_path,
        {
            **dict.fromkeys([*left, *staying], "x"),
            f"{LIB}/libcuda.so.1": "-> libcuda.so.535.104.05",
            "var/lib/dpkg/status": stanza("libnvidia-ml1", "install ok installed"),
            "var/lib/dpkg/info/format": "1\n",
            # A package may have the path of either of the two names of a merged /usr.
            "var/lib/dpkg/info/libnvidia-ml1.list": own
            + f"/usr/lib/modules/{REL}/extra/nvidia-drm.ko.xz\n",
        },
    )
    (refusal,) = obstacles.remains(observed(host))
    assert "libcuda.so.535.104.05" in refusal.message
    carry_out(tmp_path, refusal)
    assert obstacles.remains(observed(host)) == []
    assert [name for name in left if (tmp_path / name).exists()] == []
    assert [name for name in staying if not (tmp_path / name).exists()] == []


def test_libraries_that_a_container_has_of_its_host_are_no_remains(tmp_path: Path) -> None:
    name = f"/{LIB}/libcuda.so.535.104.05"
    mount = f"30 20 0:5 /x {name} ro,nosuid - ext4 /dev/vda1 rw\n"
    host = make(tmp_path, {name[1:]: "x", "proc/self/mountinfo": mount})
    assert obstacles.remains(observed(host)) == []


def test_mounts_over_a_file_and_read_only(tmp_path: Path) -> None:
    host = make(
        tmp_path,
        {
            "proc/self/mountinfo": "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
            "21 20 8:1 /srv/a\\040b /etc/a\\040b.conf rw - ext4 /dev/sda1 rw\n"
            "22 20 8:2 / /usr rw,relatime shared:2 - ext4 /dev/sda2 ro,errors=remount-ro\n",
            "etc/fstab": "# none\n/srv/x /etc/x none bind 0 0\n",
        },
    )
    seen = observed(host)
    actions = [
        Action("sanity", "file.write", name, "x")
        for name in ("/etc/a b.conf", "/etc/c", "/usr/lib/goldnode/p")
    ]
    actions.append(Action("host_tuning", "sysctl", "/usr/x", "no file is written"))
    assert [refusal.line() for refusal in obstacles.mounted(seen, actions)] == [
        "/etc/a b.conf cannot be replaced: /srv/a b is mounted over it. Run `umount '/etc/a b.conf'`, and run again.",
        "/usr is mounted read-only, and goldnode has to write there. See `dmesg` for why, then "
        "`mount -o remount,rw /usr`, and run again.",
    ]
    assert seen.obstacles["fstab"] == {"/etc/x": 2}


RELEASE = "Origin: A\nDate: Sat, 21 Nov 2026 10:00:00 UTC\nValid-Until: Sat, 28 Nov 2026 10:00:00 UTC\nSHA256:\n x\n"


def test_dates_of_release_files(tmp_path: Path) -> None:
    host = make(
        tmp_path,
        {
            "var/lib/apt/lists/a_dists_x_InRelease": RELEASE,
            "var/lib/apt/lists/b_dists_x_Release": "Date: nonsense\n",
            "srv/mirror/dists/bookworm/InRelease": RELEASE,
        },
    )
    wanted = document()
    wanted["site"]["archives"].append({"uri": "file:///srv/mirror/", "suite": "bookworm"})
    date = 1795255200.0
    assert obstacles.observe(host, wanted)["dates"] == [
        {"file": "/var/lib/apt/lists/a_dists_x_InRelease", "date": date, "until": None},
        {"file": "/var/lib/apt/lists/b_dists_x_Release", "date": None, "until": None},
        {"file": "/srv/mirror/dists/bookworm/InRelease", "date": date, "until": date + 7 * 86400},
    ]
    assert time.time() - obstacles.observe(host, wanted)["now"] < 60


@pytest.mark.parametrize(
    ("file", "want"),
    [
        ("var/lib/dpkg/lock-frontend", ""),
        ("var/lib/apt/lists/lock", ", which has /var/lib/apt/lists/lock"),
        ("var/cache/apt/archives/lock", ", which has /var/cache/apt/archives/lock"),
    ],
)
def test_holder_of_a_lock_is_named_until_it_ends(tmp_path: Path, file: str, want: str) -> None:
    host = make(tmp_path, {file: ""})
    assert observe.dpkg_lock_holder(host) is None
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        (tmp_path / f"proc/{holder.pid}").mkdir(parents=True)
        (tmp_path / f"proc/{holder.pid}/comm").write_text("apt-get\n")
        assert observe.dpkg_lock_holder(host) == f"{holder.pid} (apt-get){want}"
        holder.communicate(b"")
    assert observe.dpkg_lock_holder(host) is None


def test_all_refusals_of_a_damaged_node_are_on_one_screen() -> None:
    """Everything at once, in the text that a run prints for one host."""
    case = Path(__file__).parents[3] / "cases/preflight"
    seen = bare(document())
    for name in ("remains_of_a_runfile", "clock_before_the_lock", "read_only_file_system"):
        seen.obstacles |= json.loads((case / f"{name}.json").read_text())["seen"]["obstacles"]
    seen.obstacles["dkms"] = [{"folder": "/var/lib/dkms/zfs/2.1.12", "why": "has no source"}]
    seen.lock_holder = "812 (apt-get)"
    seen.driver_files["unfinished"] = ["/var/lib/dpkg/updates/0001"]
    seen.space |= {"/boot": 0, "/tmp": 0}
    lines = [refusal.line() for refusal in judge(document(), seen, {}).refusals]
    assert len(lines) == 8
    assert sum(-(-len(line) // 80) for line in lines) <= 40
