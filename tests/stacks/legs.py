"""There and back between two real stacks on one node, as often as asked, each leg looked at as a whole: `python -m tests.stacks.legs LAB`.

A leg is one run of site.yml with the node in the other class. After each: dpkg is whole, of the other stack there is no package (not even
its configuration) and no file, the module for the locked kernel is the locked one, a second run changes nothing, and the whole file tree is
that of the first leg to the same class, but for LEGITIMATE. Prints a line per leg and `N legs verified, 0 failed` at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.core import docker_engine as engine
from goldnode.testing.lab.nodes import SSH_OPTIONS, Lab, LabNode

ROOT = Path(__file__).parents[2]
CLASSES = ("e2e_r535", "e2e_r470")

# What legitimately differs between two legs to the same class, and why. Everything else must be the same, byte for byte.
LEGITIMATE: Mapping[str, str] = {
    r"/var/log(/.*)?": "logs",
    r"/root/\.(ansible|bash_history)(/.*)?": "what a login leaves behind",
    r"/var/lib/goldnode(/.*)?": "goldnode's own record, history and backups, which say when and what was before",
    r"/var/lib/dpkg/(status|available|diversions|statoverride)-old": "dpkg's own backups of its tables",
    r"/var/lib/dpkg/(lock.*|triggers/Lock)|/var/lib/apt/(lists|periodic)(/.*)?|/var/cache/(apt|debconf)(/.*)?": "locks, indexes and caches",
    r"/var/lib/systemd(/.*)?|/var/cache/ldconfig(/.*)?|/var/cache/man(/.*)?": "stamps, and caches that hold times",
    r"/boot/initrd\.img-[^/]*": "its archive holds times; what is inside is compared (INITRAMFS:)",
    r"/boot/initrd\.img-[^/]*\.(dpkg-bak|goldnode.*)": "a backup of it",
    r"/var/backups(/.*)?": "Debian's daily backups",
}
# Where the names of other stacks may stand: what never was a part of a stack.
HISTORY = re.compile(
    "|".join(
        [
            r"/var/log/.*",
            r"/var/lib/goldnode/.*",
            r"/var/lib/apt/.*",
            r"/var/cache/apt/.*",
            r"/root/.*",
        ]
    )
)


class LegError(Exception):
    """What a leg left wrong."""


def legitimate(path: str) -> bool:
    """Whether a path may differ."""
    return any(re.fullmatch(pattern, path) for pattern in LEGITIMATE)


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The paths that differ and may not, each with how."""
    found = []
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path) and not legitimate(path):
            found.append(
                f"{path}: {before.get(path, 'not there')} -> {after.get(path, 'not there')}"
            )
    return found


def site_yml(hosts: Path) -> str:
    """Run site.yml and return what it printed; a run that fails is a LegError."""
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        str(hosts),
        str(ROOT / "site.yml"),
    ]
    stored = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "MOLECULE_"))
    }
    environment = {
        **stored,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOST_PATTERN_MISMATCH": "error",
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LegError(f"site.yml ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def inventory(lab: Lab, node: LabNode, group: str) -> Path:
    """An inventory with the node in one class."""
    host = {
        "ansible_host": "127.0.0.1",
        "ansible_port": node.port,
        "ansible_ssh_private_key_file": str(node.key),
    }
    common = {"ansible_user": "root", "ansible_ssh_common_args": " ".join(SSH_OPTIONS)}
    path = (
        lab.directory / "legs" / f"{node.name}-{group}"
    )  # of several nodes in a lab each has its own
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"all": {"vars": common, "children": {group: {"hosts": {node.name: host}}}}})
    (path / "hosts.yml").write_text(text, encoding="utf-8")
    return path


def tree(node: LabNode) -> dict[str, str]:
    """Everything on the node (tests/stacks/tree.py)."""
    found: dict[str, str] = json.loads(
        node.run(
            "python3", "-c", (Path(__file__).parent / "tree.py").read_text(encoding="utf-8")
        ).output
    )
    return found


def marks(document: Mapping[str, Any]) -> set[str]:
    """What only this stack's files are called: its driver's version and its module."""
    return {document["driver"]["version"], document["driver"]["module"]}


def look(
    node: LabNode, document: Mapping[str, Any], other: Mapping[str, Any] | None
) -> dict[str, str]:
    """Look at a node after a leg to the class of `document` and return its tree. Raises LegError for whatever is wrong."""
    audit = node.run("dpkg", "--audit", check=False)
    if audit.rc or audit.output.strip():
        raise LegError(f"dpkg --audit: {audit.output}")
    checked = node.run("apt-get", "check", check=False)
    if checked.rc:
        raise LegError(f"apt-get check: {checked.output}")
    rows = [
        row.split(" ")
        for row in node.shell(
            "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'"
        ).output.splitlines()
    ]
    known = {row[0]: (row[1], row[2]) for row in rows}
    wrong = [
        f"{package['name']} {known.get(package['name'])}, want {package['version']}"
        for package in document["packages"]
        if known.get(package["name"]) != (package["version"], "hi")
    ]
    if wrong:
        raise LegError(f"not installed and held as locked: {', '.join(wrong)}")
    driver, release = document["driver"], document["kernel"]["release"]
    version = node.run(
        "modinfo", "-k", release, "-F", "version", driver["module"], check=False
    ).output.strip()
    if version != driver["version"]:
        raise LegError(
            f"modinfo -k {release} {driver['module']} says {version or 'nothing'}, want {driver['version']}"
        )
    found = tree(node)
    if len(found) < 5000:
        raise LegError(f"a node of {len(found)} files was not read whole")
    unseen = [mark for mark in marks(document) if not any(mark in path for path in found)]
    if unseen:
        raise LegError(
            f"no file is called {', '.join(unseen)}, so that their absence in the other stack would prove nothing"
        )
    if other is not None:
        mine = {package["name"] for package in document["packages"]}
        left = [
            package["name"]
            for package in other["packages"]
            if package["name"] not in mine and package["name"] in known
        ]
        if left:
            raise LegError(
                f"packages of {other['stack']['name']} are left: {', '.join(f'{name} {known[name]}' for name in left)}"
            )
        foreign = marks(other) - marks(document)
        # As parts of a name: nvidia-current must not be taken for nvidia-current-open.
        files = [
            path
            for path in found
            if not HISTORY.fullmatch(path) and any(mark in path for mark in foreign)
        ]
        if files:
            raise LegError(
                f"{len(files)} files of {other['stack']['name']} are left: {', '.join(files[:10])}"
            )
    dead = node.shell(
        "find /etc/modprobe.d /etc/alternatives /usr/lib/nvidia /lib/modules/*/updates -xtype l 2>/dev/null || true"
    ).output
    if dead.strip():
        raise LegError(f"links that lead nowhere: {dead.split()}")
    return found


def leg(
    lab: Lab, node: LabNode, group: str, other: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str], float]:
    """Move the node to a class and look at it: its class document, its tree, and the seconds of the run."""
    hosts = inventory(lab, node, group)
    start = time.monotonic()
    site_yml(hosts)
    seconds = time.monotonic() - start
    document: dict[str, Any] = json.loads(node.read("/etc/goldnode/class.json"))
    found = look(node, document, other)
    again = site_yml(hosts)
    if not re.search(rf"^{node.name}\s.*changed=0 ", again, re.MULTILINE):
        raise LegError(f"a second run changed something:\n{again[-3000:]}")
    return document, found, seconds


def main() -> None:
    """Go there and back, and say what was seen; ends with 1 at the first fault."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stacks.legs",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("lab")
    parser.add_argument("--node", default="node1")
    parser.add_argument(
        "--rounds",
        type=int,
        default=int(os.environ.get("GOLDNODE_STACK_ROUNDS") or 1),
        help="there and back, so often",
    )
    chosen = parser.parse_args()
    lab = Lab(chosen.lab, engine.connect())
    node = lab.node(chosen.node)
    first: dict[str, dict[str, str]] = {}
    other: dict[str, Any] | None = None
    done = 0
    for number in range(2 * chosen.rounds + 1):
        group = CLASSES[number % 2]
        try:
            document, found, seconds = leg(lab, node, group, other)
            (lab.directory / f"tree-{number}.json").write_text(json.dumps(found), encoding="utf-8")
            changed = differences(first.setdefault(group, found), found)
            if changed:
                raise LegError(
                    f"{len(changed)} files are not as after the first leg to {group}:\n  "
                    + "\n  ".join(changed[:40])
                )
        except LegError as fault:
            print(f"leg {number} to {group}: {fault}\n{done} legs verified, 1 failed", flush=True)
            sys.exit(1)
        same = (
            "the first look" if found is first[group] else "every file as after the first leg there"
        )
        print(
            f"leg {number} to {group}: {seconds:.0f} s, driver {document['driver']['version']}, {len(found)} files, {same}",
            flush=True,
        )
        other, done = document, done + 1
    print(f"{done} legs verified, 0 failed ({chosen.rounds} times there and back)")


if __name__ == "__main__":
    main()
