"""The engine: apply every rule to one host and its workloads.

Pure. The rules are in `compat.rules_host`, `compat.rules_workload` and `compat.rules_wheels`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cache

from goldnode.compat import known_bad, rules_host
from goldnode.compat.model import Acceptance, CompatFinding, CompatHost, CompatRule, Workload
from goldnode.core.errors import FactsError, nearest

_ORDER = {"block": 0, "unknown": 1, "warn": 2}


@cache
def registry() -> dict[str, CompatRule]:
    """Return every rule by its id: rules of hosts, of workloads, and of several hosts together.

    Raises FactsError for an id used twice.
    """
    from goldnode.compat import rules_wheels, rules_workload

    found: dict[str, CompatRule] = {}
    for rule in (*rules_host.RULES, *rules_host.MORE, *rules_workload.RULES, *rules_wheels.RULES):
        if rule.id in found:
            raise FactsError(f'two rules are called "{rule.id}"')
        found[rule.id] = rule
    return found


def rule(name: str) -> CompatRule:
    """Return one rule. Raises FactsError with the nearest valid spelling."""
    known = registry()
    if name not in known:
        raise FactsError(f'there is no rule "{name}"', remedy=nearest(name, known))
    return known[name]


def check(host: CompatHost | None, workloads: Sequence[Workload] = ()) -> list[CompatFinding]:
    """Return the findings about `host` and each workload on it: blocks first, then unknowns, then warnings.

    Host rules run once. Workload rules run for each workload, with the host if there is one. The known bad
    combinations are checked for both. Findings that the host's class or a waiver accepts stay in the list
    with `accepted` set. A finding is `fatal` if it is not accepted and blocks. An unknown is fatal too if the
    class sets `unknown: block`.
    """
    found: list[CompatFinding] = []
    if host is not None:
        for each in rules_host.RULES:
            found += each.check(host, None)
    if workloads:
        from goldnode.compat import rules_wheels, rules_workload  # not needed to check nodes alone

        for workload in workloads:
            for each in (*rules_workload.RULES, *rules_wheels.RULES):
                found += each.check(host, workload)
            found += known_bad.findings(host, workload)
    return settle(found, host)


def settle(found: Iterable[CompatFinding], host: CompatHost | None) -> list[CompatFinding]:
    """Return the findings sorted, without duplicates, with the acceptances of `host` applied; see `check`."""
    unique = list(dict.fromkeys(known_bad.without_repetitions(list(found))))
    return sorted((_settled(finding, host) for finding in unique), key=_key)


def _settled(finding: CompatFinding, host: CompatHost | None) -> CompatFinding:
    accepted = finding.accepted
    if accepted is None and host is not None:
        accepted = next(
            (_acceptance_text(item) for item in host.accept if _covers(item, finding, host)), None
        )
        if accepted is None and finding.severity == "unknown" and host.unknown == "accept":
            accepted = f"what is unknown, by {host.subject} (compat.unknown: accept)"
    unknown_blocks = host is not None and host.unknown == "block" and finding.severity == "unknown"
    fatal = accepted is None and (finding.severity == "block" or unknown_blocks)
    return dataclasses.replace(finding, accepted=accepted, fatal=fatal)


def _covers(item: Acceptance, finding: CompatFinding, host: CompatHost) -> bool:
    in_force = host.on is None or item.expires >= host.on
    return (
        in_force
        and item.rule == finding.rule
        and (item.subject is None or item.subject in (finding.subject, *finding.subject.split(" ")))
    )


def _acceptance_text(item: Acceptance) -> str:
    return f"{item.reason} ({item.owner}, until {item.expires})"


def _key(finding: CompatFinding) -> tuple[object, ...]:
    return (
        not finding.fatal,
        _ORDER[finding.severity],
        finding.accepted is not None,
        finding.row or "",
        finding.subject,
        finding.rule,
        finding.message,
    )
