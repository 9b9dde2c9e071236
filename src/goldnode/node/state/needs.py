"""Search for installed packages that can be removed because no remaining package needs them.

Compares names only; apt checks versions.
"""

from __future__ import annotations

import re

from ..ground.host import Host, Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Set, Tuple


def relations(host: Host) -> Json:
    """Return {depends, provides} of each installed package, by name.

    `depends` includes Pre-Depends.
    """
    fields = "${Package}\t${db:Status-Status}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    reported = (
        Host("/")
        .run("dpkg-query", f"--admindir={host.located('/var/lib/dpkg')}", "-W", "-f", fields)
        .out
    )
    depends: Dict[str, List[List[str]]] = {}
    provides: Dict[str, List[str]] = {}

    def names(text: str, separator: str) -> List[str]:
        # Drop version restrictions and architecture qualifiers.
        return [
            re.split(r"[\s(:\[]", item.strip())[0] for item in text.split(separator) if item.strip()
        ]

    for line in reported.splitlines():
        name, state, needs, gives = line.split("\t")
        if state != "not-installed" and state != "config-files":
            depends.setdefault(name, []).extend(
                names(clause, "|") for clause in needs.split(",") if clause.strip()
            )
            provides.setdefault(name, []).extend(names(gives, ","))
    return {"depends": depends, "provides": provides}


def bare(name: str) -> str:
    """Return the name of a package without its architecture."""
    return name.partition(":")[0]


def unneeded(
    leave: Iterable[str], packages: Iterable[str], known: Mapping[str, Any]
) -> Tuple[Set[str], Dict[str, str]]:
    """Return the packages of `leave` that no other package needs, and a needing package for each other.

    Pure.
    """
    depends, provides = known.get("depends", {}), known.get("provides", {})
    left = set(leave)
    given: Dict[str, Set[str]] = {}
    for name in packages:
        for label in {bare(name), *provides.get(bare(name), ())}:
            given.setdefault(label, set()).add(name)
    needed: Dict[str, str] = {}
    todo = [name for name in packages if name not in left]
    while todo:
        one = todo.pop()
        for clause in depends.get(bare(one), ()):
            fit: Set[str] = (
                set().union(*(given.get(name, set()) for name in clause)) if clause else set()
            )
            # All alternatives of the clause would be removed, so one of them stays,
            # with its own dependencies.
            if fit and fit <= left:
                stays = sorted(fit)[0]
                left.discard(stays)
                needed[stays] = one
                todo.append(stays)
    return left, needed
