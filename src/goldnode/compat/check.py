"""The engine: apply every rule to one host and its workloads.

Pure. The rules are in `compat.rules_host`, `compat.rules_workload` and `compat.rules_wheels`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial

from goldnode.compat import known_bad, remedies, rules_host
from goldnode.compat.model import (
    Acceptance,
    CompatFinding,
    CompatHost,
    CompatRule,
    Workload,
    about,
    reading_gpus,
)
from goldnode.core.errors import FactsError, nearest
from goldnode.facts import host as facts

_ORDER = {"block": 0, "unknown": 1, "warn": 2}  # the worst finding comes first


@cache
def registry() -> dict[str, CompatRule]:
    """Return every rule by its id: rules of hosts, of workloads, and of several hosts together.

    Raises FactsError for an id used twice.
    """
    from goldnode.compat import (
        rules_images,
        rules_intel,
        rules_parts,
        rules_wheels,
        rules_workload,
    )

    by_id: dict[str, CompatRule] = {}
    workloads = (*rules_workload.RULES, *rules_wheels.RULES, *rules_images.RULES)
    further = (*rules_intel.RULES, *rules_parts.RULES)
    for rule in (*rules_host.RULES, *further, *rules_host.MORE, *workloads):
        if rule.id in by_id:
            raise FactsError(f'two rules are called "{rule.id}"')
        by_id[rule.id] = rule
    return by_id


def rule(name: str) -> CompatRule:
    """Return one rule. Raises FactsError with the nearest valid spelling."""
    known = registry()
    if name not in known:
        raise FactsError(f'there is no rule "{name}"', remedy=nearest(name, known))
    return known[name]


def check(host: CompatHost | None, workloads: Sequence[Workload] = ()) -> list[CompatFinding]:
    """Return the findings about `host` and each workload on it: blocks first, then unknowns, then warnings.

    Host rules run once. Workload rules run for each workload, with the host if there is one. The
    known bad combinations are checked for both. Findings that the host's class or a waiver accepts
    stay in the list with `accepted` set. A finding is `fatal` if it is not accepted and blocks. An
    unknown is fatal too if the class sets `unknown: block`.
    """
    findings: list[CompatFinding] = []
    with facts.unchanged() as state:
        if host is not None:
            judged = _judged_once(host, state)
            if judged.models is None:
                judged.models = tuple(_model(host))
            findings += remedies.proved(judged.own, _judge(workloads), host, None)
            findings += judged.models
        for workload in workloads:
            findings += remedies.proved(_of_workload(host, workload), _judge(), host, workload)
        return settle(findings, host)


@dataclasses.dataclass
class _JudgedHost:
    """The findings about a host alone, by the facts of `state`. `models` is None until they are asked for."""

    host: CompatHost
    state: object
    own: tuple[CompatFinding, ...]
    models: tuple[CompatFinding, ...] | None = None


# The last hosts by identity, which each entry keeps taken: many workloads are judged on few hosts,
# and their remedies change a host in the same few ways.
_JUDGED: OrderedDict[int, _JudgedHost] = OrderedDict()
_HOSTS = 64


def _judged_once(host: CompatHost, state: object) -> _JudgedHost:
    """Return the findings about a host alone; an equal host is judged once for the facts of `state`."""
    judged = _JUDGED.get(id(host))
    if judged is None or judged.host is not host or judged.state != state:
        equal = (each for each in _JUDGED.values() if each.state == state and each.host == host)
        judged = next(equal, None) or _JudgedHost(host, state, tuple(_of_host(host)))
        _JUDGED[id(judged.host)] = judged
        while len(_JUDGED) > _HOSTS:
            _JUDGED.popitem(last=False)
    return judged


def _judge(workloads: Sequence[Workload] = ()) -> remedies.Judge:
    """Return what judges a changed combination: what helps one part of it must not break another.

    A changed node is judged with `workloads`, a changed workload alone.
    """

    def judge(host: CompatHost | None, workload: Workload | None) -> list[CompatFinding]:
        with facts.unchanged() as state:
            findings = [] if host is None else [*_judged_once(host, state).own]
            for each in workloads if workload is None else (workload,):
                findings += _of_workload(host, each)
            return known_bad.without_repetitions(findings)

    return judge


def _of_workload(host: CompatHost | None, workload: Workload) -> Iterator[CompatFinding]:
    from goldnode.compat import (
        rules_images,
        rules_wheels,
        rules_workload,
    )  # not needed to check nodes alone

    for each in (*rules_workload.RULES, *rules_wheels.RULES, *rules_images.RULES):
        yield from each.check(host, workload)
    yield from known_bad.findings(host, workload)


# Ids of the rules of `_further` that this process has applied.
_APPLIED: set[str] = set()


def rules_of_nodes() -> int:
    """Return the number of rules of nodes that were applied: those of `_further` only if a node had such a thing."""
    return len(rules_host.RULES) + len(_APPLIED)


def _further(host: CompatHost) -> Iterator[CompatRule]:
    """Yield the rules about what few nodes have. Their modules are imported for these alone, for a quick start."""
    if host.vendor == "intel":
        from goldnode.compat import rules_intel

        yield from rules_intel.RULES
    if host.parts or host.modules:
        from goldnode.compat import rules_parts

        yield from rules_parts.RULES


def _of_host(host: CompatHost) -> Iterator[CompatFinding]:
    for each in rules_host.RULES:
        yield from each.check(host, None)
    for each in _further(host):
        _APPLIED.add(each.id)
        yield from each.check(host, None)


def fatal_of_models(host: CompatHost) -> dict[str, list[CompatFinding]]:
    """Return the fatal findings of every GPU model that a class with `model: auto` may meet, by model.

    These are the models of the host's vendor. Findings that do not depend on the model are left
    out.
    """
    # A finding that is fatal without any model is a matter of the stack, and is reported once for the class.
    always = {(each.rule, each.message) for each in settle(_of_host(host), host) if each.fatal}
    fatal: dict[str, list[CompatFinding]] = {}
    models = {sku: gpu for sku, gpu in facts.gpus().items() if gpu.vendor == host.vendor}
    if not models:
        return fatal
    fixed, dependent = _by_gpus(dataclasses.replace(host, gpus=(next(iter(models.values())),)))
    for sku, gpu in models.items():
        one = dataclasses.replace(host, gpus=(gpu,))
        findings = [*fixed, *(finding for judge in dependent for finding in judge(one))]
        fatal[sku] = [
            each
            for each in settle(findings, one)
            if each.fatal and (each.rule, each.message) not in always
        ]
    return fatal


_HostJudge = Callable[[CompatHost], Iterable[CompatFinding]]


def _by_gpus(host: CompatHost) -> tuple[list[CompatFinding], list[_HostJudge]]:
    """Return the findings about a host that do not depend on its GPUs, and the rules that do.

    Of the known bad combinations, only the rows are left that nothing else rules out.
    """
    fixed: list[CompatFinding] = []
    dependent: list[_HostJudge] = []
    for each in (*rules_host.RULES, *_further(host)):
        if each.check is rules_host.known_bad_host:
            dependent.append(partial(known_bad.among, known_bad.not_ruled_out(host)))
            continue
        judge = partial(_findings_of, each)
        findings, reads = reading_gpus(host, judge)
        if reads:
            dependent.append(judge)
        else:
            fixed += findings
    return fixed, dependent


def _findings_of(rule: CompatRule, host: CompatHost) -> list[CompatFinding]:
    return list(rule.check(host, None))


def _model(host: CompatHost) -> Iterator[CompatFinding]:
    """Report that the GPU model of a class with `model: auto` is not known here, and which models do not fit."""
    if not host.auto or host.gpus:
        return
    models = fatal_of_models(host)
    bad = [name for name, fatal in models.items() if fatal]
    fit = f"{len(models) - len(bad)} of {len(models)} models of the facts fit this stack"
    without = f", not {', '.join(bad[:6])}" if bad else ""
    if len(bad) > 6:
        without += f" and {len(bad) - 6} more"
    yield about(host, "gpu").unknown(
        "gpu-model",
        f"the class takes the GPU model that a node has (model: auto), which is not known here; {fit}{without}",
        remedy=f"name the model: `goldnode check -c {host.name} --gpu MODEL`; a node judges its own",
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
    if (accepted, fatal) == (finding.accepted, finding.fatal):
        return finding  # of most: a copy is a quarter of the time of settling
    return dataclasses.replace(finding, accepted=accepted, fatal=fatal)


def _covers(item: Acceptance, finding: CompatFinding, host: CompatHost) -> bool:
    in_force = host.on is None or item.expires >= host.on
    return (
        in_force
        and item.rule == finding.rule
        # The subject may name two things: "IMAGE on NODE".
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
