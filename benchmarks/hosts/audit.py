"""`goldnode plan` over stub ssh servers with recorded answers: one process with many sessions, and Ansible as before.

Cold: each name has a server, a host key and a handshake of its own. Warm: the names share four servers, and so their
connections. The servers run in this process, whose time is not counted.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.ssh_servers import ADDRESS, Behaviour, recorded, serving

from benchmarks import pages
from benchmarks.hosts.run import run
from goldnode.classdoc.cache import ClassDocuments

CLASS, SHARED = "cpu_only", 4
SESSIONS, ANSIBLE = "one process", "Ansible"
WAYS: Mapping[str, Mapping[str, str]] = {SESSIONS: {}, ANSIBLE: {"GOLDNODE_AUDIT": "off"}}
OTHERS = 10_000  # hashed lines of other hosts


def measure(counts: Sequence[int], pairs: Sequence[int], runs: int) -> list[dict[str, Any]]:
    """Return the rows of all runs: of one process at each of `counts`, and of both ways in turn at each of `pairs`."""
    digest = str(ClassDocuments().document(CLASS)["digest"])
    rows = []
    with tempfile.TemporaryDirectory() as place, serving(Path(place)) as servers:
        behaviour = Behaviour(recorded(digest))
        started = [servers.start(behaviour) for _ in range(max(*counts, *pairs, SHARED))]
        lines = [f"[{ADDRESS}]:{port} {keys[0]}\n" for port, keys in started]
        ports = [port for port, _ in started]
        for kind, number, ways in _cases(counts, pairs):
            directory = Path(place) / f"{kind}-{number}".replace(" ", "-")
            directory.mkdir()
            others = _hashed(OTHERS) if kind == "cold, hashed" else []
            (directory / "known_hosts").write_text("".join([*others, *lines]), encoding="utf-8")
            shared = SHARED if kind == "warm" else number
            hosts = {f"host{one:05}": ports[one % shared] for one in range(number)}
            inventory = _inventory(directory, hosts, servers.identity)
            command = [str(Path(sys.executable).with_name("goldnode")), "plan", "--format", "json"]
            command += ["-i", str(inventory)]
            # The first run of a day compiles the class documents.
            for way in ways:
                run(
                    [*command, "--limit", "host00000"],
                    {**WAYS[way], **_environment(directory)},
                    directory,
                )
            for turn in range(runs):
                for way in ways:
                    row = run(command, {**WAYS[way], **_environment(directory)}, directory)
                    rows.append({"kind": kind, "hosts": number, "name": way, "turn": turn, **row})
                    print(
                        f"  {number:5} hosts, {kind}, {way}: {row['wall']:.1f} s, {row['cpu']:.1f} s of CPU",
                        flush=True,
                    )
    return rows


def _cases(counts: Sequence[int], pairs: Sequence[int]) -> list[tuple[str, int, list[str]]]:
    both = [(kind, number, [*WAYS]) for number in pairs for kind in ("cold", "warm")]
    alone = [
        (kind, number, [SESSIONS]) for number in counts for kind in ("cold", "cold, hashed", "warm")
    ]
    return [*both, *(case for case in alone if case[:2] not in [one[:2] for one in both])]


def _environment(directory: Path) -> dict[str, str]:
    # Shared connections of Ansible outlive a run, and the next run would be warm.
    return {
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(directory / f"cp-{secrets.token_hex(4)}"),
        "HOME": os.environ["HOME"],
    }


def _inventory(directory: Path, ports: Mapping[str, int], identity: Path) -> Path:
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(identity),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={directory}/known_hosts",
    }
    hosts = {name: {"ansible_host": ADDRESS, "ansible_port": port} for name, port in ports.items()}
    file = directory / "hosts.yml"
    group = {"hosts": hosts, "vars": common}
    file.write_text(yaml.safe_dump({"all": {"children": {CLASS: group}}}), encoding="utf-8")
    return file


def _hashed(number: int) -> list[str]:
    """Return lines of known_hosts with hashed names, each with a key of its own."""
    lines = []
    for one in range(number):
        salt = hashlib.sha1(str(one).encode(), usedforsecurity=False).digest()
        name = hashlib.sha1(salt, usedforsecurity=False).digest()
        key = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + hashlib.sha256(salt).digest()
        words = [base64.b64encode(part).decode() for part in (salt, name, key)]
        lines.append(f"|1|{words[0]}|{words[1]} ssh-ed25519 {words[2]}\n")
    return lines


def tables(found: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    taken: dict[tuple[int, str], dict[str, list[dict[str, Any]]]] = {}
    for row in found["rows"]:
        taken.setdefault((row["hosts"], row["kind"]), {}).setdefault(row["name"], []).append(row)
    rows = []
    for (number, kind), ways in sorted(taken.items()):
        cost = {
            way: statistics.median(row["cpu"] for row in some) / number
            for way, some in ways.items()
        }
        by_ansible = ratio = ""
        if ANSIBLE in cost:
            by_ansible, ratio = f"{cost[ANSIBLE]:.4f}", f"{cost[ANSIBLE] / cost[SESSIONS]:.1f}"
        own = ways[SESSIONS]
        spread = f"{min(row['cpu'] for row in own) / number:.4f}-{max(row['cpu'] for row in own) / number:.4f}"
        mib = f"{max(row['mib'] for row in own):.0f}"
        rows.append(
            [f"{number:,}, {kind}", f"{cost[SESSIONS]:.4f}", spread, by_ansible, ratio, mib]
        )
    head = ["Hosts", "CPU s a host", "spread", "by Ansible", "times less", "Largest process, MiB"]
    return f"{pages.about(found)} `goldnode plan`, median of {found['runs']} runs in turn.\n\n{pages.table(head, rows)}"
