"""Cohorts: hosts that train together. They are checked against each other before a run contacts any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from goldnode.classdoc.cache import ClassDocuments
from goldnode.core.errors import GoldnodeError

COHORT = "goldnode_cohort"
# A fact of one run that `goldnode_state` reads as it reads the refusals of a class.
REFUSALS = "goldnode_cohort_refusals"


def hold(
    play: Any,
    hosts: Iterable[Any],
    documents: ClassDocuments | None = None,
    see: Callable[[str, Iterable[str]], None] | None = None,
) -> list[str]:
    """Check the cohorts of `hosts` (Ansible's) and give the hosts of an incompatible cohort its refusals.
    Return messages to print.

    A cohort is all hosts of the inventory with one value of ``goldnode_cohort``, independent of the limit of
    a run. Hosts of one class are compatible by their class, so only a cohort of several classes costs more
    than reading the variable. `see` is called for each host with the names of its variables, which are read
    here once. Raises GoldnodeError.
    """
    manager = play.get_variable_manager()

    def variables(host: Any) -> dict[str, Any]:
        found: dict[str, Any] = manager.get_vars(play=play, host=host, include_hostvars=False)
        return found

    here = {}
    for host in hosts:
        seen = variables(host)
        if see is not None:
            see(host.name, seen)
        if seen.get(COHORT) is not None:
            here[host] = str(seen[COHORT])
    if not here:
        return []
    members: dict[str, set[str]] = {}
    for host in manager._inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True):
        seen = variables(host)
        name = (seen.get("goldnode_node_class") or {}).get("class")
        if name is not None and seen.get(COHORT) is not None:
            members.setdefault(str(seen[COHORT]), set()).add(str(name))
    mixed = {
        cohort: sorted(classes)
        for cohort, classes in members.items()
        if len(classes) > 1 and cohort in here.values()
    }
    if not mixed:
        return []
    documents = documents or ClassDocuments()
    told: list[str] = []
    for cohort, classes in sorted(mixed.items()):
        found = _checked(documents, cohort, classes)
        if found["told"]:
            told += [f"cohort {cohort}, checked:", *(f"  {line}" for line in found["told"])]
        for host in here if found["refusals"] else ():
            if here[host] == cohort:
                manager.set_nonpersistent_facts(host.name, {REFUSALS: found["refusals"]})
    return told


def _checked(documents: ClassDocuments, cohort: str, classes: list[str]) -> dict[str, Any]:
    """Return the findings of a cohort; if it cannot be checked, that is its refusal."""
    try:
        return documents.cohort(cohort, classes)
    except GoldnodeError as problem:
        told = f"cohort {cohort} cannot be checked: {problem}"
        return {
            "refusals": [
                {
                    "code": "cohort",
                    "subject": f"cohort {cohort}",
                    "message": told,
                    "remedy": "Mend its classes.",
                }
            ],
            "told": [],
        }
