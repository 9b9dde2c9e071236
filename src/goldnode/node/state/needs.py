"""Which installed packages can leave because nothing that stays needs them: names only, versions are left to apt."""

from __future__ import annotations

from ..host import Host, Json
from ..later import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Set, Tuple


def relations(host: Host) -> Json:
    """What each installed package needs (its Pre-Depends and Depends), and what it provides, by name: {depends, provides}."""
    fields = "${Package}\t${db:Status-Status}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    said = Host("/").run("dpkg-query", f"--admindir={host.located('/var/lib/dpkg')}", "-W", "-f", fields).out
    depends: Dict[str, List[List[str]]] = {}
    provides: Dict[str, List[str]] = {}

    def names(text: str, separator: str) -> List[str]:
        return [re.split(r"[\s(:\[]", item.strip())[0] for item in text.split(separator) if item.strip()]

    for line in said.splitlines():
        name, state, needs, gives = line.split("\t")
        if state != "not-installed" and state != "config-files":
            depends.setdefault(name, []).extend(
                names(clause, "|") for clause in needs.split(",") if clause.strip()
            )
            provides.setdefault(name, []).extend(names(gives, ","))
    return {"depends": depends, "provides": provides}


def bare(name: str) -> str:
    """The name of a package without its architecture."""
    return name.partition(":")[0]


def unneeded(
    leave: Iterable[str], packages: Iterable[str], known: Mapping[str, Any]
) -> Tuple[Set[str], Dict[str, str]]:
    """Those of `leave` that nothing else of `packages` needs, and for each of the others who needs it. Pure."""
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
            fit: Set[str] = set().union(*(given.get(name, set()) for name in clause)) if clause else set()
            if fit and fit <= left:
                stays = sorted(fit)[0]
                left.discard(stays)
                needed[stays] = one
                todo.append(stays)
    return left, needed
