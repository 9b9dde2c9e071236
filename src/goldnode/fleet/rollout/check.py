"""Judge a rollout document before it runs: what each wave proves, how long it takes, and why it cannot work."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import EvidenceRule, NodeClass
from goldnode.catalog.tiers import TIERS
from goldnode.classdoc import checks
from goldnode.core.errors import CatalogError, GoldnodeError, nearest
from goldnode.core.yamlsource import KeyPath
from goldnode.documents.rollout import RolloutFloors, RolloutPrometheus, fraction, seconds
from goldnode.fleet.rollout import both_states
from goldnode.fleet.rollout.both_states import BothStates
from goldnode.fleet.rollout.budget import HOUR, BudgetUse, use
from goldnode.fleet.rollout.cover import counts
from goldnode.fleet.rollout.document import KNOWN_GOOD, RolloutFile, RolloutSettings, kind_of
from goldnode.fleet.rollout.model import CalendarReading, FleetNode, Outage, RolloutRecord
from goldnode.fleet.rollout.state import FIRST_WAVES, RolloutState
from goldnode.fleet.rollout.statistics import (
    at_least,
    detected_rate,
    excluded_rate,
    one_cause_failures,
    stopping_failures,
)
from goldnode.fleet.rollout.waves import assign, reserve
from goldnode.fleet.rollout.windows import opening
from goldnode.fleet.shared.variants import Variants
from goldnode.floors.limits import ALPHA, CONTROL, NODES, nodes_needed
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import and_more

ERROR, WARNING = "error", "warning"
STEP = 20 * 60.0  # seconds from the drained node to its return, without a measurement of the site
SHORTEST_DRAIN = (
    300.0  # seconds: a controller on the way to a node, and two readings of its scheduler
)
_SURPRISE = (
    0.05  # probability of the failures of earlier rollouts, below which the base rate is too low
)
_SHOWN = 4  # hardware variants in one message
_LONGEST = 366 * 86400.0  # of an estimate


@dataclass(frozen=True)
class RolloutFinding:
    """A reason why the document cannot work (error), or may not do what its author expects (warning)."""

    severity: str
    code: str
    message: str
    remedy: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity}: {self.message}. {self.remedy[:1].upper()}{self.remedy[1:]}."


@dataclass(frozen=True)
class WaveEstimate:
    """A wave before it runs. `nodes` is None where the size of the class is unknown.

    `excludes` is the failure rate that a wave without a failure excludes, `excludes_all` that of
    all waves so far. `stops_at` is the number of failures, of all nodes so far, that stops, and
    `one_cause` the number with one cause; None after the first two waves, which alone have that rule.
    `detects` is the share of nodes that a change breaks, for one cause, from which it is stopped by
    the end of this wave; None: this wave stops nothing. Hours are from the begin of the rollout.
    """

    name: str
    nodes: int | None
    moved: int | None
    excludes: float | None
    excludes_all: float | None
    stops_at: int | None
    one_cause: int | None
    detects: float | None
    hours: float | None
    ends_after: float | None


@dataclass(frozen=True)
class EstimateBasis:
    """Assumptions of the estimate."""

    confidence: float = 0.95
    step: float = STEP
    begin: float = 0.0  # when the rollout begins, which matters for windows


@dataclass(frozen=True)
class RolloutReport:
    """The findings and the estimate of each wave."""

    findings: tuple[RolloutFinding, ...]
    waves: tuple[WaveEstimate, ...]
    size: int | None
    basis: EstimateBasis
    budget: BudgetUse | None = (
        None  # None: the document has none, or the size of the class is unknown
    )

    @property
    def refused(self) -> bool:
        """Return whether the document cannot work."""
        return any(finding.severity == ERROR for finding in self.findings)


def check(
    file: RolloutFile,
    *,
    nodes: Sequence[FleetNode] | None = None,
    size: int | None = None,
    catalog: Catalog | None = None,
    basis: EstimateBasis | None = None,
    known: KnownOfClass | None = None,
) -> RolloutReport:
    """Judge a document alone, with the nodes of its class, or with the number of them."""
    known = known or KnownOfClass()
    checker = _Checker(file)
    checker.waves()
    checker.requirements()
    checker.limits()
    checker.windows()
    checker.drain()
    checker.approvals()
    checker.calendars(known.calendars)
    checker.target()
    if catalog is not None:
        checker.catalog(catalog)
    if nodes is not None:
        checker.nodes(nodes)
    if known.earlier is not None:
        checker.base_rate(known.earlier)
    if known.states is not None:
        checker.states(known.states, nodes)
    if nodes and known.variants:
        checker.cover(nodes, known.variants)
    basis = basis or EstimateBasis()
    count = len(nodes) if nodes is not None else size
    sizes = _sizes(file.settings, nodes, count)
    waves = _estimate(file.settings, sizes, count, basis)
    checker.detection(waves, count)
    budget = None
    if file.settings.budget is not None and count is not None:
        budget = _budget(file.settings, count, known.outages, basis)
        checker.budget(budget, count)
    findings = sorted(
        checker.found, key=lambda finding: (finding.line, finding.severity, finding.message)
    )
    return RolloutReport(tuple(findings), waves, count, basis, budget)


@dataclass(frozen=True)
class StepOutcomes:
    """Steps forward of completed rollouts: changes that were good, so their failures are the base rate."""

    rollouts: int
    done: int
    failed: int  # did not return in time, or failed with a software finding


@dataclass(frozen=True)
class KnownOfClass:
    """Knowledge of a class besides its nodes. None is not known.

    `earlier` are the steps of its completed rollouts, `states` its nodes before and after,
    `variants` the hardware of its nodes by captures, `calendars` the freeze calendars of the site,
    `outages` those of the class that have ended.
    """

    earlier: StepOutcomes | None = None
    states: BothStates | None = None
    variants: Variants | None = None
    calendars: Sequence[CalendarReading] | None = None
    outages: Sequence[Outage] = ()


class _Checker:
    def __init__(self, file: RolloutFile) -> None:
        self.file, self.document, self.settings = file, file.document, file.settings
        self.found: list[RolloutFinding] = []

    def _add(self, severity: str, code: str, at: KeyPath, message: str, remedy: str) -> None:
        source = self.file.source
        self.found.append(
            RolloutFinding(
                severity,
                code=code,
                message=message,
                remedy=remedy,
                file=source.file,
                line=source.line(at),
            )
        )

    def _error(self, code: str, at: KeyPath, message: str, remedy: str) -> None:
        self._add(ERROR, code, at, message, remedy)

    def _warn(self, code: str, at: KeyPath, message: str, remedy: str) -> None:
        self._add(WARNING, code, at, message, remedy)

    # The document alone

    def budget(self, budget: BudgetUse | None, size: int) -> None:
        """Find an error budget that no node fits into, and one that the rollout fills more than once."""
        if budget is None:
            return
        at: KeyPath = ("limits", "budget")
        if budget.longest > budget.total:
            message = f"no node ever fits: {budget.text()}"
            remedy = "raise it, or shorten drain.wait and timeout"
            self._error("budget", at, message, remedy)
            return
        needed = size * STEP
        if needed > budget.total - budget.used:
            message = (
                f"{size} nodes of {STEP / 60:.0f} minutes take {needed / HOUR:.1f} node-hours without any drain, and {budget.text()}. "
                "The rollout waits until outages are older than the period"
            )
            self._warn("budget", at, message, "raise it, or plan for that")

    def waves(self) -> None:
        """Find missing and empty waves, names used twice, and pools that no wave uses."""
        waves = self.document.waves
        if not waves:
            remedy = "add `waves`, such as docs/how-to/rollouts.md shows"
            self._error(
                "waves", (), "the document has no waves, so that no node ever moves", remedy
            )
            return
        reached, pools, names = 0.0, set(), set()
        for index, wave in enumerate(waves):
            at: KeyPath = ("waves", index)
            if wave.name in names:
                self._error(
                    "waves", (*at, "name"), f'two waves have the name "{wave.name}"', "rename one"
                )
            names.add(wave.name)
            if wave.pool is not None:
                self._pool(wave.pool, (*at, "pool"), wave.pool in pools)
                pools.add(wave.pool)
            elif wave.percent is not None:
                share = fraction(wave.percent)
                if share <= reached:
                    message = f'wave "{wave.name}" is empty: {reached:.6g} of the class have moved before it'
                    self._error(
                        "empty-wave", (*at, "percent"), message, "raise its percentage or remove it"
                    )
                reached = max(reached, share)
            followed = index + 1 < len(self.settings.waves)
            if followed and not self.settings.waves[index].soak:
                message = f'wave "{wave.name}" has no soak: a fault that shows after the boot is not seen in it'
                self._warn("soak", at, message, "add `soak: 4h`")
        if self.settings.known_good and KNOWN_GOOD in names:
            message = f'"{KNOWN_GOOD}" is the wave of the nodes that are held back'
            self._error("waves", ("waves",), message, "give your wave another name")
        if reached < 1:
            message = "the waves do not reach 100 %: the last nodes never move"
            self._error(
                "reach", ("waves",), message, 'add a last wave, {name: all, percent: "100%"}'
            )
        for name in sorted(set(self.document.pools) - pools):
            self._warn(
                "pool",
                ("pools", name),
                f'no wave uses pool "{name}"',
                "use it in a wave or remove it",
            )

    def _pool(self, name: str, at: KeyPath, again: bool) -> None:
        if name not in self.document.pools:
            remedy = (
                nearest(name, self.document.pools) or f"declare it: pools: {{{name}: {{nodes: 8}}}}"
            )
            self._error("pool", at, f'there is no pool "{name}"', remedy)
        elif again:
            self._error(
                "empty-wave", at, f'pool "{name}" has moved in an earlier wave', "remove this wave"
            )

    def requirements(self) -> None:
        """Find requirements that are missing, or that never decide anything."""
        kinds = Counter(kind_of(item) for item in self.document.require)
        if not kinds["boot"]:
            message = "the requirement `boot` is missing, and no wave is ever promoted without it"
            self._error("requirement", ("require",), message, "add `require: [{boot: {}}]`")
        seen_boot = False
        for index, item in enumerate(self.document.require):
            at: KeyPath = ("require", index, kind_of(item))
            if item.boot is not None:
                if seen_boot:
                    self._error("requirement", at, "`boot` is required twice", "remove one")
                seen_boot = True
                if fraction(item.boot.confidence) >= 1:
                    message = "a confidence of 100 % is never reached, so that no failure stops the rollout"
                    self._error("requirement", (*at, "confidence"), message, "write 99.99%")
                if fraction(item.boot.judged) > 1 - fraction(item.boot.base_rate):
                    message = f"{item.boot.judged} of a wave must pass, and a base rate of {item.boot.base_rate} lets more fail"
                    self._warn(
                        "requirement", (*at, "judged"), message, "lower judged, or the base rate"
                    )
                if item.boot.same_cause == 1:
                    message = "one failed node of the first waves stops the rollout, and some nodes fail anyway"
                    self._warn("requirement", (*at, "same_cause"), message, "write 2")
            elif item.floors is not None:
                self._floors(item.floors, at)
            elif item.prometheus is not None:
                self._query(item.prometheus, at)
            elif item.command is not None and not item.command.run[0].startswith("/"):
                message = (
                    f'"{item.command.run[0]}" has no absolute path, and depends on who runs it'
                )
                self._warn("requirement", (*at, "run"), message, "write its whole path")

            elif item.dual is not None and not item.dual.report.startswith("/"):
                message = f'"{item.dual.report}" has no absolute path, and depends on who runs it'
                self._warn("requirement", (*at, "report"), message, "write its whole path")

    def detection(self, waves: Sequence[WaveEstimate], size: int | None) -> None:
        """Find waves by whose end no number of failures stops the rollout."""
        boot = self.settings.boot
        for index, wave in enumerate(waves):
            if boot is None or wave.detects is not None or wave.stops_at is None or not wave.moved:
                continue
            least = min(wave.stops_at, wave.one_cause or wave.stops_at)
            failing = "one node" if wave.moved == 1 else f"all {wave.moved} nodes"
            message = (
                f'wave "{wave.name}" cannot stop the rollout: {failing} failing is within a base rate of '
                f"{boot.base_rate:.2%}, and {least} failures are needed"
            )
            if wave.moved == size:
                message += ". It does not pass on failures either: without a further node to take, it ends after `on_unknown.after`"
                remedy = "judge such a change by hand, or by a class with more nodes"
            else:
                message += ". It does not pass on failures either: it takes further nodes, one after another"
                remedy = f"give the wave {least} nodes or more"
            self._warn("detects", ("waves", index), message, remedy)
        self._small_last_wave(waves)

    def _small_last_wave(self, waves: Sequence[WaveEstimate]) -> None:
        """Find a last wave that is smaller than the one before it: nodes under repair are chosen last, and gather there."""
        if self.settings.known_good:
            waves = waves[:-1]  # nodes under repair are not held back as known good
        if len(waves) < 2 or not waves[-1].nodes or not waves[-2].nodes:
            return
        if waves[-1].nodes < waves[-2].nodes:
            name, before = waves[-1].name, waves[-2]
            message = (
                f'the last wave, "{name}", has {waves[-1].nodes} nodes after {before.nodes} of wave "{before.name}": '
                "nodes that are out of service are taken last, so it may have few that can answer"
            )
            remedy = f'make wave "{before.name}" smaller, or remove it'
            self._warn("small-wave", ("waves", len(waves) - 1), message, remedy)

    def cover(self, nodes: Sequence[FleetNode], variants: Variants) -> None:
        """Find hardware variants that no node of the first wave has."""
        waves = assign(self.settings, nodes)
        if not waves or not waves[0]:
            return
        self._reserve_covers(nodes, variants)
        rows = counts(nodes, variants, set(waves[0]))
        missing = [row for row in rows if not row.canaries]
        if not missing:
            return
        shown = ", ".join(
            f"{row.variant} ({row.nodes} {'node' if row.nodes == 1 else 'nodes'})"
            for row in missing[:_SHOWN]
        )
        message = (
            f'no node of wave "{self.settings.waves[0].name}" has {len(missing)} of {len(rows)} hardware variants: '
            f"{shown}{and_more(len(missing) - _SHOWN)}. A change that breaks one of them is stopped late"
        )
        remedy = (
            f"take the pool of `goldnode rollout canaries {self.file.source.file} -i INVENTORY`"
        )
        self._warn("cover", ("waves", 0), message, remedy)

    def _reserve_covers(self, nodes: Sequence[FleetNode], variants: Variants) -> None:
        """Find hardware variants that no node has that is held back as known good."""
        held = set(reserve(self.settings, nodes))
        missing = [
            row.variant for row in counts(nodes, variants, held) if held and not row.canaries
        ]
        if missing:
            shown = ", ".join(map(str, missing[:_SHOWN]))
            message = f"the {len(held)} nodes of known_good do not have {len(missing)} hardware variants: {shown}{and_more(len(missing) - _SHOWN)}"
            self._warn(
                "known-good", ("known_good",), message, "raise it, if jobs need these variants"
            )

    def base_rate(self, earlier: StepOutcomes) -> None:
        """Find a base rate that is lower than what good changes had."""
        boot, steps = self.settings.boot, earlier.done + earlier.failed
        if boot is None or at_least(earlier.failed, steps, boot.base_rate) >= _SURPRISE:
            return
        index = next(
            number for number, item in enumerate(self.document.require) if item.boot is not None
        )
        rate = earlier.failed / steps
        message = (
            f"{earlier.failed} of {steps} nodes failed in {earlier.rollouts} completed rollouts of the class, {rate:.2%}: "
            f"more than a base rate of {boot.base_rate:.2%} explains, so that a good change may be stopped"
        )
        at: KeyPath = ("require", index, "boot")
        self._warn(
            "base-rate", at, message, f"write base_rate: {rate:.2%}, or find out why nodes fail"
        )

    def _floors(self, item: RolloutFloors, at: KeyPath) -> None:
        """Find floors that the first wave has too few nodes for, so that the rollout freezes after it."""
        nodes = self._first_wave()
        needed = nodes_needed(CONTROL if item.control else None, ALPHA / len(item.metrics))
        if nodes is not None and nodes < NODES:
            message = (
                f"floors need {NODES} changed nodes, and the first wave has {nodes}, "
                "so that they are unknown and the rollout freezes after it"
            )
            self._error("requirement", at, message, f"give the first wave {NODES} nodes")
        elif nodes is not None and nodes < needed:
            message = (
                f"{len(item.metrics)} metrics need {needed} changed nodes to show a loss, and the first wave has {nodes}, "
                "so that a slow change is unknown and not stopped"
            )
            self._warn(
                "requirement", at, message, "name fewer metrics, or give the wave more nodes"
            )

    def _first_wave(self) -> int | None:
        """Return the nodes of the first wave; None where its size is not known."""
        wave = next(iter(self.document.waves), None)
        if wave is None:
            return None
        pool = optional(self.document.pools.get, wave.pool)
        if pool is not None:
            return pool.nodes if pool.hosts is None else len(pool.hosts)
        return wave.nodes

    def _query(self, item: RolloutPrometheus, at: KeyPath) -> None:
        given = [name for name in ("max", "min", "worse_than") if getattr(item, name) is not None]
        if not given:
            message = "the query has no limit, so that no answer fails"
            self._error("requirement", at, message, "add max, min or worse_than")
        elif "worse_than" in given and len(given) > 1:
            message = "worse_than compares two arms, max and min one value"
            self._error("requirement", (*at, "worse_than"), message, "use two requirements")
        elif "worse_than" in given and "arm" not in item.query:
            message = "worse_than compares the arms `changed` and `control`, and the query does not name the label arm"
            self._error("requirement", (*at, "query"), message, "add `by (arm)` to the query")
        elif "worse_than" in given and re.search(r"\b(sum|count)\b", item.query):
            message = "the arms have different numbers of nodes, and a sum or a count over each of them differs by that alone"
            self._warn("requirement", (*at, "query"), message, "compare `avg by (arm)`")
        elif item.max is not None and item.min is not None and item.min > item.max:
            self._error(
                "requirement", (*at, "min"), "min is above max: every answer fails", "exchange them"
            )

    def limits(self) -> None:
        """Find limits that exclude each other."""
        limits = self.settings.limits
        pairs = (("planned", limits.planned), ("failed", limits.failed))
        for name, limit in pairs:
            same = (limit.count is None) == (limits.total.count is None)
            if same and (limit.count or limit.share) > (limits.total.count or limits.total.share):
                message = f"limits.{name} is above limits.total, and is never reached"
                self._error("limits", ("limits", name), message, "lower it, or raise total")

    def windows(self) -> None:
        """Find windows that never open, and those that are too short for a step."""
        for index, (written, hours) in enumerate(
            zip(self.document.windows, self.settings.windows, strict=True)
        ):
            at: KeyPath = ("windows", index)
            span = opening([hours], 0.0)
            if span is None:
                message = f"the window never opens: it ends at {written.to}, when it begins"
                self._error(
                    "window",
                    at,
                    message,
                    'correct its times; a whole day is from: "00:00", to: "23:59"',
                )
            elif span[1] - span[0] < self.settings.timeout:
                message = f"the window is open for {span[1] - span[0]:.0f} s, less than `timeout`: steps end after it"
                self._warn("window", at, message, "make it longer, or accept that")

    def calendars(self, readings: Sequence[CalendarReading] | None) -> None:
        """Find overrides that do not count, and calendars that cannot be read."""
        names = None if readings is None else [item.calendar for item in readings]
        for name in self.document.override_calendars:
            at: KeyPath = ("override_calendars", name)
            if self.document.lane != "security":
                message = f"calendar {name} is overridden, and only a rollout of the security lane may do that"
                self._error("calendar", at, message, "remove it, or write `lane: security`")
            if names is not None and name not in names:
                remedy = nearest(name, names) or "remove it"
                message = (
                    f'the site has no freeze calendar "{name}" for class "{self.document.class_}"'
                )
                self._error("calendar", at, message, remedy)
        for item in readings or ():
            if item.problem is not None and item.calendar not in self.settings.overridden:
                message = f"calendar {item.calendar} could not be checked: {item.problem}. No node is taken until it is"
                remedy = "`goldnode rollout calendars` has its file and its age"
                self._warn("calendar", (), message, remedy)

    def drain(self) -> None:
        """Find a drain that has no time to happen."""
        wait = self.settings.drain_wait
        if wait < SHORTEST_DRAIN:
            message = f"drain.wait is {wait:g} s: a scheduler is read every 30 s, so an idle node may not be drained in time"
            self._warn(
                "drain", ("drain", "wait"), message, f"write at least {SHORTEST_DRAIN / 60:g}m"
            )

    def approvals(self) -> None:
        """Find approvals of unknown waves, and those that no role gives."""
        names = {wave.name for wave in self.settings.waves}
        for wave, roles in self.document.approve.items():
            at: KeyPath = ("approve", wave)
            if wave not in names:
                remedy = nearest(wave, names) or "name a wave"
                self._error("approval", at, f'there is no wave "{wave}" to approve', remedy)
            if not roles:
                self._error(
                    "approval", at, f'the approval of wave "{wave}" names no role', "name one"
                )

    def target(self) -> None:
        """Find a rollout that changes nothing, and classes that would have to move with it."""
        if self.settings.origin == self.settings.target:
            self._error(
                "target", ("to",), "`from` and `to` are the same state", "correct one of them"
            )
        if self.document.together:
            others = ", ".join(self.document.together)
            message = f"this class shares cohorts with {others}, and a rollout moves one class"
            remedy = "put each cohort into one class, or move these classes with site.yml at the same time"
            self._error("together", ("together",), message, remedy)

    # With the catalog

    def _tier(self, tier: str | None) -> None:
        """Refuse waves without a soak where the tier of the class needs them, and say nothing where it does not."""
        if tier is None:
            return
        needed = TIERS[tier].soak
        soaks = [row for row in self.found if row.code == "soak"]
        self.found = [row for row in self.found if row.code != "soak"]
        if needed:
            text = f"; class {self.document.class_} is of tier {tier}, which needs one"
            self.found += [
                replace(row, severity=ERROR, message=row.message + text) for row in soaks
            ]

    def catalog(self, catalog: Catalog) -> None:
        """Find an unknown class, and a target that the class refuses."""
        try:
            entry = catalog.node_class(self.document.class_)
        except GoldnodeError as problem:
            self._error("class", ("class",), problem.message, problem.remedy or "correct its name")
            return
        self._tier(entry.item.tier)
        if entry.item.evidence is not None:
            self._evidence(entry, entry.item.evidence)
        stack = self.document.to.stack
        if stack is None:
            return
        try:
            catalog.stack(stack)
        except GoldnodeError as problem:
            self._error(
                "target", ("to", "stack"), problem.message, problem.remedy or "correct its name"
            )
            return
        try:
            moved = replace(entry, item=entry.item.model_copy(update={"stack": stack}))
            checks.check_class(moved, catalog)
        except CatalogError as problem:
            message = f'class "{self.document.class_}" refuses stack "{stack}": {problem.message}'
            remedy = (
                problem.remedy or f"see `goldnode check -c {self.document.class_} --to {stack}`"
            )
            self._error("target", ("to", "stack"), message, remedy)

    def _evidence(self, entry: CatalogEntry[NodeClass], rule: EvidenceRule) -> None:
        """Find evidence that the class asks for, and the document does not require, or accepts when it is older."""
        required: dict[str, float] = {}
        for item in self.document.require:
            if item.evidence is not None:
                age = math.inf if item.evidence.max_age is None else seconds(item.evidence.max_age)
                for kind in item.evidence.kinds:
                    required[kind] = min(age, required.get(kind, math.inf))
        most = math.inf if rule.max_age_days is None else rule.max_age_days * 86400
        lacking = [kind for kind in rule.kinds if kind not in required]
        older = [kind for kind in rule.kinds if kind in required and required[kind] > most]
        limit = "" if rule.max_age_days is None else f", max_age: {rule.max_age_days}d"
        remedy = f"add `require: [{{evidence: {{kinds: [{', '.join(rule.kinds)}]{limit}}}}}]`"
        where = f"{entry.file}:{entry.source.line(('evidence',))}"
        if lacking:
            message = f"the class asks for evidence ({', '.join(lacking)}) that no wave waits for ({where})"
            self._error("requirement", ("require",), message, remedy)
        if older:
            message = (
                f"the class accepts evidence of {rule.max_age_days} days at most ({where}), and "
                f"{', '.join(older)} may be older"
            )
            self._error("requirement", ("require",), message, remedy)

    # With both states

    def states(self, states: BothStates, nodes: Sequence[FleetNode] | None) -> None:
        """Find versions that may not be in one job or cluster, and jobs that only one state can run."""
        if not self.settings.limits.whole_cohorts and nodes is not None:
            self._split_cohorts(states, both_states.split_cohorts(nodes))
        for item in both_states.in_one_cluster(states):
            message = f"the cluster has both states while the rollout runs: {item.message}"
            self._warn("coexistence", ("to",), message, "let the rollout run to its end")
        for state, item in both_states.of_one_state(states):
            remedy = item.remedy or f"see `goldnode check -c {self.document.class_}`"
            message = f"{state}: {item.message} [{item.rule}]"
            if state == both_states.AFTER:
                self._error("compat", ("to",), message, remedy)
            else:
                remedy = "start such jobs on nodes that have moved only, until all have"
                self._warn("compat", ("from",), message, remedy)

    def _split_cohorts(self, states: BothStates, cohorts: Sequence[str]) -> None:
        """Find cohorts that have both states while they move node by node, if jobs do not bear it."""
        if not cohorts:
            return
        named = f'cohort "{cohorts[0]}"' + (f" and {len(cohorts) - 1} more" * (len(cohorts) > 1))
        at: KeyPath = ("limits",) if self.document.limits is not None else ()
        remedy = "move each cohort as a whole, `limits: {per: {cohort: all-or-none}}`, or start no job on both states"
        for item in both_states.in_one_job(states):
            severity = ERROR if item.severity == "block" else WARNING
            message = f"{named} would have both states while it moves node by node: {item.message} [{item.rule}]"
            self._add(severity, code="coexistence", at=at, message=message, remedy=remedy)

    # With the nodes

    def nodes(self, nodes: Sequence[FleetNode]) -> None:
        """Find what cannot work with these nodes."""
        if not nodes:
            message = f'the inventory has no host of class "{self.document.class_}"'
            self._error("class", ("class",), message, "correct the class or -i")
            return
        self._pools_fit(nodes)
        self._limits_fit(nodes)
        if self.settings.limits.whole_cohorts:
            self._cohorts_fit(nodes)
        waves = assign(self.settings, nodes)
        for index, (wave, names) in enumerate(zip(self.settings.waves, waves, strict=True)):
            if not names:
                message = (
                    f'wave "{wave.name}" is empty: the waves before it take all {len(nodes)} nodes'
                )
                self._error(
                    "empty-wave",
                    ("waves", index),
                    message,
                    "remove it, or make those before it smaller",
                )
        self._reserve_fits(nodes)
        rest = len(nodes) - sum(map(len, waves))
        if rest and not any(finding.code == "reach" for finding in self.found):
            message = f"{rest} of {len(nodes)} nodes are in no wave and never move"
            self._error(
                "reach", ("waves",), message, 'add a last wave, {name: all, percent: "100%"}'
            )

    def _reserve_fits(self, nodes: Sequence[FleetNode]) -> None:
        """Find a number of nodes to hold back that the class does not have, or that leaves none to judge a change by."""
        wanted, held = self.settings.known_good, reserve(self.settings, nodes)
        if not wanted:
            return
        if len(held) < wanted:
            message = f"known_good is {wanted}, and {len(held)} nodes of the class may be held back"
            self._error("known-good", ("known_good",), message, "lower it")
        elif 2 * len(held) > len(nodes):
            message = f"known_good holds back {len(held)} of {len(nodes)} nodes, most of the class"
            self._warn("known-good", ("known_good",), message, "lower it")
        if any(node.rack is None for node in nodes if node.name in held):
            message = "some nodes have no rack, so that known_good may not spread"
            self._warn("known-good", ("known_good",), message, "set goldnode_rack")

    def _pools_fit(self, nodes: Sequence[FleetNode]) -> None:
        names = {node.name for node in nodes}
        for name, pool in self.document.pools.items():
            for index, host in enumerate(pool.hosts or ()):
                if host not in names:
                    remedy = nearest(host, names) or "correct its name"
                    message = f'"{host}" is no host of class "{self.document.class_}"'
                    self._error("pool", ("pools", name, "hosts", index), message, remedy)
            fit = sum(
                not set(node.tags) & set(pool.never) and node.lemon is not True for node in nodes
            )
            if pool.nodes is not None and fit < pool.nodes:
                message = (
                    f'pool "{name}" has {pool.nodes} nodes, and {fit} of the class may be in it'
                )
                self._error(
                    "pool", ("pools", name, "nodes"), message, "lower it, or shorten `never`"
                )
            missing = (
                sum(getattr(node, pool.spread) is None for node in nodes) if pool.spread else 0
            )
            if missing:
                message = f"{missing} nodes have no {pool.spread}, so that the pool may not spread"
                self._warn(
                    "pool", ("pools", name, "spread"), message, f"set goldnode_{pool.spread}"
                )

    def _limits_fit(self, nodes: Sequence[FleetNode]) -> None:
        limits = self.settings.limits
        for key, limit in (("rack", limits.rack), ("leaf", limits.leaf)):
            missing = [node.name for node in nodes if getattr(node, key) is None]
            if limit is not None and missing:
                message = f"limits.per.{key} does not protect {len(missing)} nodes: {missing[0]} has no {key}"
                remedy = f"set goldnode_{key} in the inventory"
                self._error("limits", ("limits", "per", key), message, remedy)
        if limits.planned.count is None and limits.planned.share * len(nodes) < 1:
            message = (
                f"limits.planned is less than one of {len(nodes)} nodes: one node moves at a time"
            )
            self._warn(
                "limits",
                ("limits", "planned"),
                message,
                "write a number of nodes, if more may be out",
            )

    def _cohorts_fit(self, nodes: Sequence[FleetNode]) -> None:
        """Find cohorts that never fit into a limit, since they move whole."""
        limits, size = self.settings.limits, len(nodes)
        most = min(limits.planned.nodes(size), limits.total.nodes(size))
        cohorts: dict[str, list[FleetNode]] = {}
        for node in nodes:
            if node.cohort is not None:
                cohorts.setdefault(node.cohort, []).append(node)
        for name, members in sorted(cohorts.items()):
            if len(members) > most:
                message = f'cohort "{name}" has {len(members)} nodes and moves whole, and limits.planned is {most} nodes'
                remedy = f"raise limits.planned to {len(members)} nodes, or split the cohort"
                self._error("cohort", ("limits", "planned"), message, remedy)
            for key, limit in (("rack", limits.rack), ("leaf", limits.leaf)):
                groups = Counter(
                    getattr(node, key) for node in members if getattr(node, key) is not None
                )
                worst = groups.most_common(1)
                if limit is not None and worst and worst[0][1] > limit:
                    message = (
                        f'cohort "{name}" has {worst[0][1]} nodes in {key} "{worst[0][0]}" and moves whole, '
                        f"and limits.per.{key} is {limit}"
                    )
                    remedy = f"raise limits.per.{key} to {worst[0][1]}, or remove limits.per.cohort"
                    self._error("cohort", ("limits", "per", key), message, remedy)


def _budget(
    settings: RolloutSettings, size: int, outages: Sequence[Outage], basis: EstimateBasis
) -> BudgetUse | None:
    """Return the use of the error budget before the rollout begins."""
    nodes = [FleetNode(f"n{number}") for number in range(size)]
    record = RolloutRecord(settings.name, settings.class_, settings.origin, settings.target)
    state = RolloutState(record, nodes)
    for item in outages:
        state.ledger.add(item)
    return use(settings, state, basis.begin)


def _sizes(
    settings: RolloutSettings, nodes: Sequence[FleetNode] | None, size: int | None
) -> list[int | None]:
    """Return the number of nodes of each wave, as far as it is known."""
    if nodes is not None:
        return [len(names) for names in assign(settings, nodes)]
    if size is not None:
        made = [
            FleetNode(f"n{number}", digest=settings.origin, in_service=True)
            for number in range(size)
        ]
        pools = {
            name: pool.model_copy(
                update={"nodes": len(pool.hosts or ()) or pool.nodes, "hosts": None}
            )
            for name, pool in settings.pools.items()
        }
        return [len(names) for names in assign(replace(settings, pools=pools), made)]
    sizes: list[int | None] = []
    for wave in settings.waves:
        pool = settings.pools.get(wave.pool or "")
        count = wave.nodes if pool is None else (pool.nodes or len(pool.hosts or ()))
        sizes.append(count)
    return sizes


def _estimate(
    settings: RolloutSettings, sizes: Iterable[int | None], size: int | None, basis: EstimateBasis
) -> tuple[WaveEstimate, ...]:
    moved: int | None = 0
    early: int | None = 0  # nodes of the first waves, in which a cause that repeats stops
    now: float | None = basis.begin
    estimates: list[WaveEstimate] = []
    for wave, nodes in zip(settings.waves, sizes, strict=True):
        moved = None if moved is None or nodes is None else moved + nodes
        began = now
        if nodes is None or now is None:
            now = None
        else:
            at_once = settings.limits.planned.nodes(size) if size is not None else nodes
            rounds = -(-nodes // max(1, at_once))
            worked = _work(settings, now, rounds * basis.step)
            now = None if worked is None else worked + wave.soak
        boot = settings.boot
        stops_at = None
        if boot is not None and moved is not None and boot.confidence < 1:
            stops_at = stopping_failures(moved, boot.base_rate, boot.confidence)
        in_time = len(estimates) < FIRST_WAVES
        early = moved if in_time else early
        one_cause = None
        if boot is not None and early is not None:
            one_cause = one_cause_failures(early, boot.base_rate, boot.same_cause)
        estimates.append(
            WaveEstimate(
                name=wave.name,
                nodes=nodes,
                moved=moved,
                excludes=None if nodes is None else excluded_rate(nodes, basis.confidence),
                excludes_all=None if moved is None else excluded_rate(moved, basis.confidence),
                stops_at=stops_at,
                one_cause=one_cause if in_time else None,
                detects=_detects((early, one_cause), (moved, stops_at), basis.confidence),
                hours=None if now is None or began is None else (now - began) / 3600,
                ends_after=None if now is None else (now - basis.begin) / 3600,
            )
        )
    return tuple(estimates)


def _detects(
    one_cause: tuple[int | None, int | None],
    all_causes: tuple[int | None, int | None],
    confidence: float,
) -> float | None:
    """Return the share of broken nodes from which a change is stopped: by one cause, or by the base rate.

    :param one_cause: nodes, and the failures with one cause that stop. None is not known.
    :param all_causes: nodes, and the failures that stop.
    """
    rates = [
        detected_rate(nodes, failures, confidence)
        for nodes, failures in (one_cause, all_causes)
        if nodes is not None and failures is not None
    ]
    return min((rate for rate in rates if rate is not None), default=None)


def _work(settings: RolloutSettings, now: float, left: float) -> float | None:
    """Return when `left` seconds of work are over, if it proceeds only in the windows. None: never, or too late."""
    limit = now + _LONGEST
    while left > 0:
        span = opening(settings.windows, now)
        if span is None or now > limit:
            return None
        now = max(now, span[0])
        step = min(left, span[1] - now)
        left -= step
        now += step
    return now
