"""Runner of `site.yml` on the root filesystem of an image.

The roles and the engine are those of live nodes, with a directory in place of the machine. The engine plans
everything that can hold for a root filesystem (phase `image`) and applies it with chroot. Work that needs a
boot or the GPU is recorded as pending.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from goldnode.core.data import PACKAGE, ansible_environment, data
from goldnode.core.errors import DiskError
from goldnode.disks.model import PendingWork
from goldnode.node.ground.document import ClassDocument
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.state.engine import plan
from goldnode.node.state.model import IMAGE, PHASES
from goldnode.oci.emulation import emulated, native, native_architecture
from goldnode.oci.model import AMD64

SOURCES = "/run/goldnode-archive/goldnode.list"
# Seconds for site.yml on a root file system. By emulation it took 330 s beside other work (arm64, 2026-12-01).
_TIME, _TIME_EMULATED = 3600, 4 * 3600

# Runs in namespaces of its own: no network, and no mount or process survives it. $1 is the root, $2 the
# archive.
_INSIDE = """\
set -eu
root=$1 archive=$2
shift 2
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do : >"$root/dev/$name"; \
mount --bind "/dev/$name" "$root/dev/$name"; done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"
for name in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${name%:*}" "$root/dev/${name#*:}"; done
mkdir -p "$root/run/goldnode-archive" "$root/run/lock"
mount --bind "$archive" "$root/run/goldnode-archive"
mount -o remount,bind,ro "$root/run/goldnode-archive"
case $root in /run/*) ;; *) mount -t tmpfs -o mode=755 tmpfs /run ;; esac
hostname localhost
exec "$@"
"""

# If the caller ends, everything ends: killing the first process of a PID namespace kills all others.
_ALONE = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *(
        "unshare",
        "--mount",
        "--net",
        "--ipc",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
    ),
    *("--propagation", "private", "--"),
)


@dataclass(frozen=True)
class ImageRoot:
    """A root filesystem in a directory, and dpkg's name of the architecture of its programs.

    Programs of another architecture than this machine's run by emulation.
    """

    root: Path
    architecture: str = AMD64


def site_yml(
    place: ImageRoot, document: Mapping[str, Any], archive: Path, work: Path, epoch: int
) -> None:
    """Apply the class document to a root with site.yml over a local connection, installing packages from
    `archive` only.

    Raises DiskError with the last output of the playbook.
    """
    (archive / "goldnode.list").write_text(
        "deb [trusted=yes] file:/run/goldnode-archive ./\n", encoding="ascii"
    )
    variables = work / "variables.json"
    given = {
        "goldnode_node_class": document,
        "goldnode_root": str(place.root),
        "goldnode_sources": SOURCES,
    }
    variables.write_text(json.dumps(given), encoding="utf-8")
    inventory = work / "inventory.ini"
    inventory.write_text(
        f"disk ansible_connection=local ansible_python_interpreter={sys.executable}\n",
        encoding="utf-8",
    )
    home = work / "home"
    home.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "ansible",
        "playbook",
        "-i",
        str(inventory),
        "-e",
        f"@{variables}",
        str(data("site.yml")),
    ]
    environment = {
        **ansible_environment({}, own=True),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "ANSIBLE_HOME": str(home),
        "ANSIBLE_LOCAL_TEMP": str(home / "local"),
        "ANSIBLE_REMOTE_TEMP": str(home / "remote"),
        # The class document is passed in, so neither inventory nor catalog is read.
        "ANSIBLE_VARS_ENABLED": "host_group_vars",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DISPLAY_OK_HOSTS": "1",
        "GOLDNODE_RUNS": "off",
    }
    log = work / "site.log"
    inside = ("sh", "-c", _INSIDE, "sh", str(place.root), str(archive))
    limit = _TIME if native(place.architecture) else _TIME_EMULATED
    try:
        with log.open("wb") as sink:
            done = subprocess.run(
                emulated(place.architecture, [*_ALONE, *inside, *command]),
                cwd=data(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=limit,
            )
    except FileNotFoundError as problem:
        raise DiskError(
            f"{problem.filename} is not on this machine",
            remedy="install it: apt-get install util-linux",
        ) from problem
    except subprocess.TimeoutExpired as problem:
        raise DiskError(
            f"site.yml did not end within {limit} s on the root filesystem"
        ) from problem
    if done.returncode:
        text = log.read_text(encoding="utf-8", errors="replace")
        if "No space left on device" in text:
            raise DiskError(
                "site.yml fails on the root filesystem: the disk is full",
                remedy="make room in the store's file system",
            )
        lines = [row[:400] for row in text.strip().splitlines() if row.strip()][-25:]
        raise DiskError("site.yml fails on the root filesystem:\n  " + "\n  ".join(lines) + "\n")


def prove(
    place: ImageRoot, document: Mapping[str, Any], payloads: Mapping[str, Any]
) -> list[PendingWork]:
    """Check that nothing of phase `image` is left to do, and return the pending work.

    Pending is work for a boot or for the GPU, facts that cannot be checked here, and changes that wait.
    Raises DiskError if anything else is left.
    """
    if not native(place.architecture):
        return _prove_elsewhere(place, document, payloads)
    host = Host(str(place.root))
    try:
        whole = plan(host, cast(ClassDocument, document), payloads, PHASES)
    except NodeError as problem:
        raise DiskError(f"the root filesystem cannot be judged: {problem}") from problem
    left = [action for action in whole.actions if action.phase == IMAGE]
    if left or whole.refusals:
        reported = "; ".join(
            [*(action.line() for action in left), *(refusal.line() for refusal in whole.refusals)]
        )
        raise DiskError(
            f"the root filesystem is not what its class says after site.yml: {reported}"
        )
    rows = [
        PendingWork(f"{action.kind} {action.target}", f"{action.phase}: {action.reason}")
        for action in whole.actions
    ]
    rows += [PendingWork(note.subject, note.message) for note in whole.notes]
    rows += [PendingWork(item.subject, item.message) for item in whole.waiting]
    return sorted(set(rows), key=lambda row: (row.id, row.reason))


def _prove_elsewhere(
    place: ImageRoot, document: Mapping[str, Any], payloads: Mapping[str, Any]
) -> list[PendingWork]:
    """Return the answer of `prove` from a process that can run the programs of the root."""
    # By a file: an emulated program has no stdin. A process namespace of its own: without its /proc the root would be taken
    # for that of a running machine.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as given:
        json.dump({"document": document, "payloads": payloads}, given)
        given.flush()
        command = [*_ALONE, sys.executable, "-m", __name__, str(place.root), given.name]
        done = subprocess.run(
            emulated(place.architecture, command),
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        reported = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DiskError(f"the root filesystem cannot be judged: {reported}") from None
    if "error" in answer:
        raise DiskError(answer["error"])
    return [PendingWork(**row) for row in answer["pending"]]


def main(root: str, file: str) -> None:
    """Print the answer of `prove` for a root as JSON. `file` has its document and payloads."""
    given = json.loads(Path(file).read_text(encoding="utf-8"))
    native_place = ImageRoot(Path(root), native_architecture())
    try:
        rows = prove(native_place, given["document"], given["payloads"])
    except DiskError as problem:
        print(json.dumps({"error": problem.message}))
    else:
        print(json.dumps({"pending": [asdict(row) for row in rows]}))


def write(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    """Write a file in the root filesystem."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.chmod(path, mode)  # noqa: PTH101 - the given mode, regardless of the umask


if __name__ == "__main__":
    main(*sys.argv[1:])
