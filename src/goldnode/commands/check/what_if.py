"""Implementation of `goldnode check --to`: the consequences of an upgrade for classes, workloads and cohorts."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from goldnode.catalog.load import LOCK_SUFFIX, Catalog, CatalogEntry
from goldnode.catalog.models import NodeClass, Stack
from goldnode.classdoc import checks, exceptions
from goldnode.classdoc.compile import check_installable
from goldnode.classdoc.findings import workloads_of_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.commands.check.request import (
    CheckRequest,
    SelectedClasses,
    few,
    given_workloads,
    not_judged,
    require_auto,
    select,
)
from goldnode.commands.check.what_if_parts import locks_of, nvswitch
from goldnode.compat import rules_host
from goldnode.compat.check import check, settle
from goldnode.compat.finding_diff import finding_changes, severity_of
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.core.errors import CatalogError, GoldnodeError, LockError, NoLockError
from goldnode.core.site import Site, load_site
from goldnode.documents.rollout import RolloutDocument
from goldnode.documents.what_if import WhatIfDocument, WhatIfSubject
from goldnode.facts import host as facts
from goldnode.lock.model import Lock, check_intent, find_lock, load_lock
from goldnode.node.ground.text import phrase

Json = dict[str, Any]
Given = Callable[[str], list[Workload]]


@dataclasses.dataclass(frozen=True)
class UpgradeTarget:
    """The stack and the lock to move to. `fault` is the reason why there is no lock; `file` is a lock that was named."""

    stack: CatalogEntry[Stack]
    lock: Lock | None
    fault: LockError | None = None
    file: Path | None = None


@dataclasses.dataclass(frozen=True)
class JudgedSide:
    """A class on one stack: its host, its workloads, and the findings about them."""

    host: CompatHost
    workloads: Sequence[Workload]
    findings: Sequence[CompatFinding]


@dataclasses.dataclass
class ComparedClass:
    """A class before and after the upgrade. `refusals` are the reasons against a rollout, with remedies."""

    entry: CatalogEntry[NodeClass]
    before: JudgedSide
    after: JudgedSide
    lock: Lock | None
    refusals: list[tuple[str, str | None]]


@dataclasses.dataclass(frozen=True)
class ComparedCohorts:
    """Cohorts of the same classes: findings before and after, and while only some of their nodes have moved."""

    names: Sequence[str]
    classes: Sequence[str]
    before: Sequence[CompatFinding]
    after: Sequence[CompatFinding]
    between: Sequence[CompatFinding]

    @property
    def complete(self) -> bool:
        """Return whether these cohorts must not, or may not, be in service with some of their nodes moved."""
        return any(item.fatal or item.severity == "unknown" for item in self.between)


def what_if(
    request: CheckRequest,
    to: str,
    *,
    catalog: Catalog | None = None,
    site: Site | None = None,
    on: dt.date | None = None,
) -> tuple[WhatIfDocument, list[GoldnodeError]]:
    """Compare the classes of a request on their present stacks with the same classes on `to`, a stack or a lock.

    Return the document, and the faults of what was asked for and cannot be judged. Raises GoldnodeError as
    `compatibility_report` does, and if there is nothing to compare or the lock of `to` is edited or unreadable.
    """
    faults: list[GoldnodeError] = []
    catalog, site = catalog or load_catalog(faults=faults), site or load_site()
    selected = select(request, catalog, faults)
    if request.model is not None:
        require_auto(selected.classes, catalog)
    target = target_of(to, catalog, site)
    stays = {
        name: why
        for name in selected.classes
        if (why := _stays(name, request, target, catalog, site))
    }
    moving = [name for name in selected.classes if name not in stays]
    if not moving:
        raise CatalogError(
            f"there is nothing to compare: {'; '.join(f'class {name} stays: {why}' for name, why in stays.items())}",
            remedy="name another stack or lock, or the classes to move with -c",
        )
    # The same checks run on a catalog in which the classes are on the new stack.
    moved = _moved(catalog, moving, target)
    given: Given = functools.cache(functools.partial(given_workloads, request))
    judge = functools.partial(_judged, request=request, site=site, given=given, on=on)
    compared = {}
    for name in moving:
        entry = catalog.node_class(name)
        lock, fault = _lock_of(catalog.stacks[entry.item.stack], site)
        refusals = (
            [(f"its present lock is not usable: {fault.message}", fault.remedy)] if fault else []
        )
        judged = judge(name, catalog), judge(name, moved, target.lock)
        compared[name] = ComparedClass(entry, *judged, lock, refusals)
    # They do not move, and may share a cohort with one that does.
    staying = {name: judge(name, catalog) for name in stays}
    pairs = [pair for pair in selected.cohorts if pair[0] not in selected.broken]
    cohorts = _cohorts(pairs, compared, staying, target)
    for name, item in compared.items():
        _refuse(name, item=item, moved=moved, site=site, target=target, on=on)
    for cohort, broken in selected.cohorts_with_broken().items():
        for name in compared.keys() & {name for name, other in selected.cohorts if other == cohort}:
            compared[name].refusals.append(
                (
                    f"it shares cohort {cohort} with class {broken}, which cannot be judged",
                    "correct its file",
                )
            )
    _refuse_cohorts(compared, cohorts)
    subjects = [
        *(subject for name, item in compared.items() for subject in _subjects(name, item)),
        *(
            _subject("cohort", few(group.names), None, group.before, group.after)
            for group in cohorts
        ),
    ]
    upgrade = Upgrade(
        catalog,
        site=site,
        target=target,
        selected=selected,
        stays=stays,
        compared=compared,
        cohorts=cohorts,
        request=request,
    )
    return _document(upgrade, subjects, faults), selected.faults


@dataclasses.dataclass(frozen=True)
class Upgrade:
    """All of a comparison that its document is made from."""

    catalog: Catalog
    site: Site
    target: UpgradeTarget
    selected: SelectedClasses
    stays: Mapping[str, str]
    compared: Mapping[str, ComparedClass]
    cohorts: Sequence[ComparedCohorts]
    request: CheckRequest


def target_of(to: str, catalog: Catalog, site: Site) -> UpgradeTarget:
    """Return the stack and lock that `to` names: a stack of the catalog, or the file of a lock.

    Raises LockError for a lock that is edited, unreadable or stale if it is a file, and CatalogError for an unknown
    stack.
    """
    # Names of stacks have no slash and no suffix.
    if "/" not in to and not to.endswith((".yml", ".yaml")):
        stack = catalog.stack(to)
        try:
            return UpgradeTarget(stack, find_lock(stack, site)[0])
        except NoLockError as problem:
            return UpgradeTarget(stack, None, problem)
    path = Path(to)
    if not path.is_file():
        raise LockError(
            "there is no such lock",
            file=path,
            remedy=f"name a file that ends in {LOCK_SUFFIX}, or a stack; `goldnode lock STACK --out DIR` writes one",
        )
    lock = load_lock(path)
    stack = catalog.stack(lock.stack)
    check_intent(lock, path, stack)
    return UpgradeTarget(stack, lock, file=path)


def _stays(
    name: str, request: CheckRequest, target: UpgradeTarget, catalog: Catalog, site: Site
) -> str | None:
    """Return the reason why a class does not move to the target; None if it moves.

    A class that the command line names moves unless it is there already.
    """
    item = catalog.node_class(name).item
    stack, new = catalog.stacks[item.stack], target.stack.item
    if stack.name == target.stack.name:
        lock = _lock_of(stack, site)[0]
        if target.lock is None or (lock is not None and lock.digest == target.lock.digest):
            return f"it is on stack {stack.name} already" + (
                ", with this lock" if target.lock else ""
            )
        return None
    # The person has asked for this class, whatever else has the backend.
    if name in request.classes:
        return None
    if target.file is not None:
        return (
            f"it is on stack {stack.name}, and {target.file} is a lock of stack {target.stack.name}"
        )
    vendor = new.driver.vendor if new.driver is not None else None
    if checks.VENDOR_OF_BACKEND[item.backend] != vendor:
        return f"its backend is {item.backend}, and stack {target.stack.name} has {f'a driver of vendor {vendor}' if vendor else 'no GPU driver'}"
    old = stack.item.os
    if (old.id, old.version, old.architecture) != (new.os.id, new.os.version, new.os.architecture):
        return f"its nodes have {_os(stack.item)}, and stack {target.stack.name} is for {_os(new)}"
    return None


def _os(stack: Stack) -> str:
    return f"{stack.os.id} {stack.os.version} {stack.os.architecture}"


def _lock_of(stack: CatalogEntry[Stack], site: Site) -> tuple[Lock | None, LockError | None]:
    try:
        return find_lock(stack, site)[0], None
    except LockError as problem:
        return None, problem


def _moved(catalog: Catalog, names: Iterable[str], target: UpgradeTarget) -> Catalog:
    """Return the catalog with these classes on the target stack."""
    classes = dict(catalog.classes)
    for name in names:
        item = classes[name].item.model_copy(update={"stack": target.stack.name})
        classes[name] = dataclasses.replace(classes[name], item=item)
    return dataclasses.replace(catalog, classes=classes)


def _judged(
    name: str,
    catalog: Catalog,
    lock: Lock | None = None,
    *,
    request: CheckRequest,
    site: Site,
    given: Given,
    on: dt.date | None,
) -> JudgedSide:
    view = read_class(name, catalog, site, lock, on=on, model=request.model)
    host = view.host
    workloads = [
        *workloads_of_class(view.entry, host.architecture),
        *given(host.architecture),
    ]
    return JudgedSide(host, workloads, check(host, workloads))


def _cohorts(
    pairs: Sequence[tuple[str, str]],
    compared: Mapping[str, ComparedClass],
    staying: Mapping[str, JudgedSide],
    target: UpgradeTarget,
) -> list[ComparedCohorts]:
    """Judge the cohorts with a class that moves: each combination of classes once."""
    classes: dict[str, list[str]] = {}
    for name, cohort in pairs:
        classes.setdefault(cohort, []).append(name)
    # Thousands of cohorts have a few combinations of classes.
    alike: dict[tuple[str, ...], list[str]] = {}
    for cohort, members in sorted(classes.items()):
        if not compared.keys().isdisjoint(members):
            alike.setdefault(tuple(sorted(members)), []).append(cohort)
    results = []
    for names, cohorts in alike.items():
        old = [compared[name].before if name in compared else staying[name] for name in names]
        new = [compared[name].after if name in compared else staying[name] for name in names]
        # A second side of a class needs a subject of its own while some of its nodes have moved.
        later = [
            dataclasses.replace(
                side,
                host=dataclasses.replace(
                    side.host, subject=f"{side.host.subject} on {target.stack.name}"
                ),
            )
            for name, side in zip(names, new, strict=True)
            if name in compared
        ]
        # Before, after, and while some of the nodes have moved.
        judged = (old, new, [*old, *later])
        # One of them: cohorts of the same classes have the same findings.
        before, after, between = (_cohort_findings(cohorts[0], side) for side in judged)
        results.append(ComparedCohorts(cohorts, names, before, after, between))
    return results


def _cohort_findings(cohort: str, judged: Sequence[JudgedSide]) -> list[CompatFinding]:
    hosts = [dataclasses.replace(side.host, cohort=cohort) for side in judged]
    loads = {side.host.subject: side.workloads for side in judged}
    return settle(rules_host.check_cohorts(hosts, loads), None)


# Reasons against a rollout


def _refuse(
    name: str,
    item: ComparedClass,
    moved: Catalog,
    site: Site,
    target: UpgradeTarget,
    *,
    on: dt.date | None,
) -> None:
    """Collect the reasons why a class cannot move: findings, its own declaration, the lock, another OS."""
    item.refusals += [
        (
            f"{'' if each.subject == item.after.host.subject else f'{each.subject}: '}{each.message}",
            each.remedy,
        )
        for each in item.after.findings
        if each.fatal
    ]
    if (
        item.before.host.os != item.after.host.os
        or item.before.host.architecture != item.after.host.architecture
    ):
        item.refusals.append(
            (
                f"from {item.before.host.os} {item.before.host.architecture} to {item.after.host.os} "
                f"{item.after.host.architecture} is a new installation, and not an upgrade of a running node",
                f"install the nodes again, for instance with a disk image on stack {target.stack.name}",
            )
        )
    if target.fault is not None:
        item.refusals.append((target.fault.message, target.fault.remedy))
    day = on or dt.datetime.now(tz=dt.UTC).date()
    try:
        checks.check_class(moved.classes[name], moved)
        exceptions.check_accepted(moved.classes[name], target.stack.file, day)
        exceptions.check_exceptions(site, name, target.stack.name, day)
        if target.lock is not None:
            check_installable(moved.classes[name], target.stack, target.lock, site)
    except GoldnodeError as problem:
        line = phrase(":{}", problem.line)
        where = "" if problem.file is None else f" ({problem.file}{line})"
        item.refusals.append((f"{problem.message}{where}", problem.remedy))


def _refuse_cohorts(
    compared: Mapping[str, ComparedClass], cohorts: Sequence[ComparedCohorts]
) -> None:
    """Collect the reasons that come from cohorts: a finding, or a class that must move too and cannot."""
    for group in cohorts:
        for finding in group.after:
            if finding.fatal:
                for name in compared.keys() & set(group.classes):
                    compared[name].refusals.append(
                        (f"{finding.subject}: {finding.message}", finding.remedy)
                    )
    # A cohort moves as a whole, so one class that cannot move holds all of them.
    for names, shared in _together(compared, cohorts):
        refused = [name for name in names if compared[name].refusals]
        for name in names if refused else ():
            if name not in refused:
                compared[name].refusals.append(
                    (
                        f"it shares {few(shared)} with class {refused[0]}, which cannot move",
                        f"correct class {refused[0]} first",
                    )
                )


def _together(
    compared: Mapping[str, ComparedClass], cohorts: Sequence[ComparedCohorts]
) -> list[tuple[list[str], list[str]]]:
    """Return the classes that move at the same time, in groups, each with the cohorts that join them."""
    groups: list[tuple[set[str], list[str]]] = [({name}, []) for name in compared]
    for cohort in cohorts:
        if cohort.complete:
            # A cohort joins all groups that have a class of it.
            joined = [group for group in groups if not group[0].isdisjoint(cohort.classes)]
            names = [
                *(name for group in joined for name in group[1]),
                *(f"cohort {name}" for name in cohort.names),
            ]
            groups = [group for group in groups if group not in joined]
            groups.append(({name for group in joined for name in group[0]}, names))
    order = list(compared)
    return sorted(
        ((sorted(names, key=order.index), shared) for names, shared in groups),
        key=lambda group: order.index(group[0][0]),
    )


# The document


def _subjects(name: str, item: ComparedClass) -> list[WhatIfSubject]:
    """Return the class and its workloads with their findings on both sides."""
    of: dict[str, tuple[list[CompatFinding], list[CompatFinding]]] = {"": ([], [])}
    kinds = {load.subject: load.kind for load in (*item.before.workloads, *item.after.workloads)}
    of.update((subject, ([], [])) for subject in kinds)
    for index, side in enumerate((item.before, item.after)):
        for finding in side.findings:
            # A finding about a workload names its host, and the sides have different ones.
            about = finding.subject.removesuffix(f" on {side.host.subject}")
            of[about if about in of else ""][index].append(finding)
    return [
        _subject(
            kinds.get(subject, "class"), subject or name, name if subject else None, before, after
        )
        for subject, (before, after) in of.items()
    ]


def _subject(
    kind: str,
    name: str,
    of_class: str | None,
    before: Sequence[CompatFinding],
    after: Sequence[CompatFinding],
) -> WhatIfSubject:
    return WhatIfSubject.model_validate(
        {
            "kind": kind,
            "name": name.removeprefix(f"{kind} "),
            "class": of_class,
            "before": severity_of(before),
            "after": severity_of(after),
            "changes": [
                {
                    "change": change.change,
                    "before": _finding(change.before),
                    "after": _finding(change.after),
                }
                for change in finding_changes(before, after)
            ],
        }
    )


def _finding(finding: CompatFinding | None) -> Json | None:
    if finding is None:
        return None
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.message,
        "remedy": finding.remedy,
        "accepted": finding.accepted,
        "fatal": finding.fatal,
        "sources": [f"{origin.title} ({origin.place}: {origin.key})" for origin in finding.sources],
    }


def _document(
    upgrade: Upgrade, subjects: Sequence[WhatIfSubject], faults: Sequence[GoldnodeError]
) -> WhatIfDocument:
    target, compared = upgrade.target, upgrade.compared
    changes = [change.change for subject in subjects for change in subject.changes]
    return WhatIfDocument.model_validate(
        {
            "schema": "goldnode.what-if/1",
            "facts": str(facts.compiled()),
            "to_stack": target.stack.name,
            "to_lock": target.lock.digest if target.lock is not None else None,
            "moves": [_move(name, item, upgrade.selected) for name, item in compared.items()],
            "stays": [
                {"class": name, "stack": upgrade.catalog.node_class(name).item.stack, "why": why}
                for name, why in upgrade.stays.items()
            ],
            "counts": {
                kind: changes.count(kind) for kind in ("new", "gone", "changed", "unchanged")
            },
            "subjects": subjects,
            "locks": _locks(upgrade),
            "order": _order(upgrade, subjects),
            "rollouts": _rollouts(upgrade),
            "refused": [
                {"class": name, "why": why, "remedy": remedy}
                for name, item in compared.items()
                # Several findings may have one reason.
                for why, remedy in dict.fromkeys(item.refusals)
            ],
            "not_checked": _not_checked(upgrade, faults),
        }
    )


def _move(name: str, item: ComparedClass, selected: SelectedClasses) -> Json:
    return {
        "class": name,
        "stack": item.entry.item.stack,
        "hosts": selected.hosts.get(name, 0) if selected.hosts else None,
        "file": str(item.entry.file),
        "line": item.entry.source.line(("stack",)),
    }


def _locks(upgrade: Upgrade) -> list[Any]:
    stacks = dict.fromkeys(item.entry.item.stack for item in upgrade.compared.values())
    locks = []
    for stack in stacks:
        of = [item for item in upgrade.compared.values() if item.entry.item.stack == stack]
        locks.append(
            locks_of(
                (upgrade.catalog.stacks[stack].item, of[0].lock),
                (upgrade.target.stack.item, upgrade.target.lock),
                [item.entry for item in of],
                nvswitch=any(nvswitch(item.entry.item, upgrade.catalog) for item in of),
            )
        )
    return locks


def _order(upgrade: Upgrade, subjects: Sequence[WhatIfSubject]) -> list[Json]:
    """Return the steps in the order in which they have to happen."""
    loads = [subject for subject in subjects if subject.class_ is not None]
    names: dict[bool, list[str]] = {True: [], False: []}
    for load in loads:
        if (load.before == "blocked") != (load.after == "blocked"):
            names[load.after == "blocked"].append(f"{load.kind} {load.name} on class {load.class_}")
    steps: list[Json] = []
    new = upgrade.target.stack.name
    if names[True]:
        why = f"blocked on stack {new}: put versions in use that run on both stacks before the nodes move"
        steps.append({"do": "replace", "what": names[True], "why": why})
    groups = _together(upgrade.compared, upgrade.cohorts)
    what = [
        f"class{'es' * (len(group) > 1)} {', '.join(group)}{' at the same time' if len(group) > 1 else ''}"
        for group, _ in groups
    ]
    why = "all parts of a stack change in one transaction"
    if len(groups) > 1:
        why += ", classes in any order"
    halves = [cohort for _, shared in groups for cohort in shared]
    if halves:
        why += f"; {few(halves)} must not be in service half moved"
    steps.append({"do": "move", "what": what, "why": why})
    if names[False]:
        why = "blocked until the node that runs it has moved"
        steps.append({"do": "start", "what": names[False], "why": why})
    left = {
        entry.item.stack
        for name, entry in upgrade.catalog.classes.items()
        if name not in upgrade.compared
    }
    old = [
        name
        for name in dict.fromkeys(item.entry.item.stack for item in upgrade.compared.values())
        if name != new and name not in left
    ]
    if old:
        why = (
            "no class of the catalog uses it then; nodes that may roll back still need its packages"
        )
        steps.append({"do": "drop", "what": [f"stack {name}" for name in old], "why": why})
    return steps


def _rollouts(upgrade: Upgrade) -> list[RolloutDocument]:
    """Return the rollout document of each class that can move."""
    lock = upgrade.target.lock
    if lock is None:
        return []
    rollouts = []
    for group, shared in _together(upgrade.compared, upgrade.cohorts):
        for name in group:
            item = upgrade.compared[name]
            # Without the present lock the document could not state where a rollback leads.
            if item.refusals or item.lock is None:
                continue
            document = {
                "schema": "goldnode.rollout/1",
                # With the digest: another lock of the same stack is another rollout.
                "rollout": f"{name}-{upgrade.target.stack.name}-{lock.digest.removeprefix('sha256:')[:8]}",
                "class": name,
                "from": {"stack": item.entry.item.stack, "lock": item.lock.digest},
                "to": {"stack": upgrade.target.stack.name, "lock": lock.digest},
                "limits": {"per": {"cohort": "all-or-none"}} if shared else None,
                "together": [other for other in group if other != name],
            }
            rollouts.append(RolloutDocument.model_validate(document))
    return rollouts


def _not_checked(upgrade: Upgrade, faults: Sequence[GoldnodeError]) -> list[str]:
    topics = ["speed and behaviour on real hardware, which a canary wave shows"]
    bare = [name for name, item in upgrade.compared.items() if not item.before.workloads]
    if bare:
        topics.append(f"workloads of {few(bare)}, which name no image and no requirements")
    if upgrade.target.lock is None:
        topics.append(f"exact versions of {upgrade.target.stack.name}, which has no lock")
    if not upgrade.request.inventories:
        topics.append("cohorts, which an inventory declares (-i)")
    if upgrade.request.limit is not None:
        topics.append(
            f"hosts outside of --limit {upgrade.request.limit}, which may share cohorts with these"
        )
    if upgrade.selected.left_out:
        topics.append(f"hosts of no class: {few(upgrade.selected.left_out)}")
    topics += upgrade.selected.odd
    return topics + not_judged(upgrade.selected, faults)
