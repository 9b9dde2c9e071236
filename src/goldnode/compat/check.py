"""The engine: apply every rule to one host and its workloads.

Pure. The rules are in `compat.rules_host`, `compat.rules_workload` and `compat.rules_wheels`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from goldnode.compat import known_bad, remedies, rules_host
from goldnode.compat.model import Acceptance, CompatFinding, CompatHost, CompatRule, Workload
from goldnode.core.errors import FactsError, nearest
from goldnode.facts import host as facts

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
    with facts.unchanged() as state:
        if host is not None:
            own, models = _judged_once(host, state)
            found += remedies.proved(own, _judge(host, workloads), host, None)
            found += models
        for workload in workloads:
            found += remedies.proved(_of_workload(host, workload), _judge(host), host, workload)
        return settle(found, host)


# Findings of the last hosts, by identity: many workloads are judged on few hosts. The host itself keeps its id taken.
_JUDGED: OrderedDict[int, tuple[CompatHost, object, tuple[tuple[CompatFinding, ...], ...]]] = OrderedDict()
_HOSTS = 64


def _judged_once(host: CompatHost, state: object) -> tuple[tuple[CompatFinding, ...], ...]:
    """Return the findings about a host alone, and about the models that it may have; judged once per host and facts."""
    key = (state, facts.generation())
    found = _JUDGED.get(id(host))
    if found is None or found[0] is not host or found[1] != key:
        found = (host, key, (tuple(_of_host(host)), tuple(_model(host))))
        _JUDGED[id(host)] = found
        while len(_JUDGED) > _HOSTS:
            _JUDGED.popitem(last=False)
    return found[2]


def _judge(host: CompatHost | None, workloads: Sequence[Workload] = ()) -> remedies.Judge:
    """Return what judges a changed combination: what helps one part of it must not break another.

    A changed node is judged with `workloads`, a changed workload alone.
    """
    on_host = cache(lambda: [] if host is None else list(_of_host(host)))

    def judge(changed: CompatHost | None, workload: Workload | None) -> list[CompatFinding]:
        found = [*on_host()] if changed is host or changed is None else list(_of_host(changed))
        for each in workloads if workload is None else (workload,):
            found += _of_workload(changed, each)
        return known_bad.without_repetitions(found)

    return judge


def _of_workload(host: CompatHost | None, workload: Workload) -> Iterator[CompatFinding]:
    from goldnode.compat import rules_wheels, rules_workload  # not needed to check nodes alone

    for each in (*rules_workload.RULES, *rules_wheels.RULES):
        yield from each.check(host, workload)
    yield from known_bad.findings(host, workload)


def _of_host(host: CompatHost) -> Iterator[CompatFinding]:
    for each in rules_host.RULES:
        yield from each.check(host, None)


def fatal_of_models(host: CompatHost) -> dict[str, list[CompatFinding]]:
    """Return the fatal findings of every GPU model that a class with `model: auto` may meet, by model.

    These are the models of the host's vendor. CompatFindings that do not depend on the model are left out.
    """
    always = {(each.rule, each.message) for each in settle(_of_host(host), host) if each.fatal}
    found = {}
    for sku, gpu in facts.gpus().items():
        if gpu.vendor == host.vendor:
            judged = settle(_of_host(dataclasses.replace(host, gpus=(gpu,))), host)
            found[sku] = [each for each in judged if each.fatal and (each.rule, each.message) not in always]
    return found


def _model(host: CompatHost) -> Iterator[CompatFinding]:
    """Report that the GPU model of a class with `model: auto` is not known here, and which models do not fit."""
    if not host.auto or host.gpus:
        return
    models = fatal_of_models(host)
    bad = [name for name, fatal in models.items() if fatal]
    fit = f"{len(models) - len(bad)} of {len(models)} models of the facts fit this stack"
    without = (
        f", not {', '.join(bad[:6])}{f' and {len(bad) - 6} more' if len(bad) > 6 else ''}" if bad else ""
    )
    yield CompatFinding(
        "gpu-model",
        "unknown",
        host.subject,
        f"the class takes the GPU model that a node has (model: auto), which is not known here; {fit}{without}",
        (),
        f"name the model: `goldnode check -c {host.name} --gpu MODEL`; a node judges its own",
        host.at("gpu"),
    )


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
            accepted = f"all unknowns, by {host.subject} (compat.unknown: accept)"
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
