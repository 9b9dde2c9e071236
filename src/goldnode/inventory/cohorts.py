"""Cohorts: hosts that train together. They are checked against each other before a run contacts any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from goldnode.classdoc.cache import ClassDocuments
from goldnode.core.errors import GoldnodeError

COHORT = "goldnode_cohort"
# A fact of one run that `goldnode_state` reads as it reads the refusals of a class. Every host of a
# cohort has it where the callback plugin has checked the cohorts.
REFUSALS = "goldnode_cohort_refusals"


def withhold_incompatible(
    play: Any,
    hosts: Iterable[Any],
    documents: ClassDocuments | None = None,
    see: Callable[[str, Iterable[str]], None] | None = None,
) -> list[str]:
    """Check the cohorts of `hosts` (Ansible's) and give the hosts of an incompatible cohort its
    refusals. Return messages to print.

    A cohort is all hosts of the inventory with one value of ``goldnode_cohort``, independent of the
    limit of a run. Hosts of one class are compatible by their class, so only a cohort of several
    classes costs more than reading the variable. `see` is called for each host with the names of
    its variables, which are read here once. Raises GoldnodeError.
    """
    manager = play.get_variable_manager()

    def variables(host: Any) -> dict[str, Any]:
        values: dict[str, Any] = manager.get_vars(play=play, host=host, include_hostvars=False)
        return values

    # Ansible takes a millisecond for the variables of a host: each host is read once, and little of
    # it is stored.
    read: dict[str, dict[str, Any]] = {}
    here = {}
    for host in hosts:
        seen = variables(host)
        if see is not None:
            see(host.name, seen)
        read[host.name] = _used(seen)
        if seen.get(COHORT) is not None:
            here[host] = str(seen[COHORT])
    if not here:
        return []
    everyone = manager._inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True)
    findings_by_host = findings(
        (read.get(host.name) or variables(host) for host in everyone), documents
    )
    reasons: list[str] = []
    for cohort in sorted(findings_by_host.keys() & here.values()):
        if findings_by_host[cohort]["messages"]:
            reasons += [
                f"cohort {cohort}, checked:",
                *(f"  {line}" for line in findings_by_host[cohort]["messages"]),
            ]
    for host, cohort in here.items():
        refusals = findings_by_host[cohort]["refusals"] if cohort in findings_by_host else []
        manager.set_nonpersistent_facts(host.name, {REFUSALS: refusals})
    return reasons


def _used(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a host that `findings` uses."""
    return {
        name: seen[name] for name in (COHORT, "goldnode_node_class", "group_names") if name in seen
    }


def findings(
    hosts: Iterable[Mapping[str, Any]], documents: ClassDocuments | None = None
) -> dict[str, dict[str, Any]]:
    """Return cohort -> ``{refusals, messages}`` of every cohort of several classes.

    `hosts` are the variables of all hosts of the inventory, `group_names` included. Raises
    GoldnodeError.
    """
    members: dict[str, set[str]] = {}
    for seen in hosts:
        if seen.get(COHORT) is None:
            continue
        name = (seen.get("goldnode_node_class") or {}).get("class")
        if name is None:
            # The vars plugin is not enabled: the groups of the host decide, as in the plugin.
            documents = documents or ClassDocuments()
            name = next(iter(sorted({*seen.get("group_names", ())} & {*documents.names()})), None)
        if name is not None:
            members.setdefault(str(seen[COHORT]), set()).add(str(name))
    mixed = {cohort: sorted(classes) for cohort, classes in members.items() if len(classes) > 1}
    if not mixed:
        return {}
    documents = documents or ClassDocuments()
    return {cohort: _checked(documents, cohort, classes) for cohort, classes in mixed.items()}


def _checked(documents: ClassDocuments, cohort: str, classes: list[str]) -> dict[str, Any]:
    """Return the findings of a cohort; if it cannot be checked, that is its refusal."""
    try:
        return documents.cohort(cohort, classes)
    except GoldnodeError as problem:
        return {
            "refusals": [
                {
                    "code": "cohort",
                    "subject": f"cohort {cohort}",
                    "message": f"cohort {cohort} cannot be checked: {problem}",
                    "remedy": "Fix its classes.",
                }
            ],
            "messages": [],
        }
