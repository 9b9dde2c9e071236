"""Files of a process that asks many nodes, and the hosts that Ansible asked.

Ansible's processes import this and not :mod:`goldnode.fleet.nodes.plan`, whose imports take 0.1 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goldnode.core.logins import masked
from goldnode.fleet.nodes import runs
from goldnode.node.ground.text import and_more, clean

NOTES = "asked.json"
# Beside the directory of Ansible's answers: the groups, and the answers to the process itself by its number.
LISTING, ANSWERS = "groups.json", "answered-"


def asked_by_ansible_lines(asked: Mapping[str, Any]) -> list[str]:
    """Return which hosts Ansible has asked in a process of their own each, and why, in sentences without full stop."""
    if asked["missing"]:
        return [
            "asyncssh is not installed, so Ansible asked each host in a process of its own: install goldnode[audit]"
        ]
    lines = []
    for reason, hosts in sorted(asked["by_ansible"].items()):
        more = and_more(len(hosts) - runs.NAMES)
        names = ", ".join(sorted(hosts)[: runs.NAMES])
        lines.append(f"Ansible itself asked {names}{more}: {masked(clean(reason)).rstrip('.')}")
    return lines
