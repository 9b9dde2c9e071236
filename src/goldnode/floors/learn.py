"""Learn the floors of a class from results of the canary suite.

A baseline is of one class, platform, class digest and version of the runner. Nodes that are below
the floor of the others leave it, until none is; if more than a fifth would leave, or the devices
have two modes, nothing is learnt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from goldnode.documents.canary import CanaryDocument
from goldnode.documents.floors import (
    FloorsDocument,
    FloorsLeftOut,
    FloorsMetric,
    FloorsStatistic,
    Quantile,
)
from goldnode.floors.bounds import (
    Values,
    lower_bound,
    quantile,
    robust_spread,
    upper_bound,
)
from goldnode.floors.counting import (
    CLASS_DEVICES,
    CLASS_NODES,
    RESULTS,
    RUNS,
    SHARES,
    SIGMAS,
    runs_needed,
)
from goldnode.floors.modes import modes
from goldnode.floors.results import (
    FloorsError,
    MetricKey,
    MetricRow,
    ResultIdentity,
    UncountedRow,
    check_names,
    identity,
    other_clock,
    rows,
    short,
)
from goldnode.node.ground.text import phrase

MARGIN = 0.03  # loss that is accepted where a metric has no margin of its own
LEAVE = 0.2  # share of the nodes that may leave
WIDEST = 0.6  # loss at the floor, above which a floor means nothing
_NORMAL = 2.3263  # standard deviations at 99 %
_ONE_MODE = (
    0.9  # share of the nodes on which a device is in one mode, so that its place explains it
)
_SHOWN = 4  # names in a message
_Place = tuple[str, str | None]  # node and device


@dataclass(frozen=True)
class LearnSettings:
    """Margins, and which results to take where there are several kinds."""

    margin: float = MARGIN
    margins: Mapping[str, float] = field(default_factory=dict)
    class_: str | None = None
    platform: str | None = None

    def of(self, key: MetricKey) -> float:
        """Return the margin of a metric."""
        return self.margins.get(str(key), self.margin)


@dataclass(frozen=True)
class _Device:
    """All counted rows of one metric on one device."""

    place: _Place
    rows: tuple[MetricRow, ...]

    @property
    def values(self) -> Values:
        return np.concatenate([row.values for row in self.rows])


@dataclass(frozen=True)
class _Population:
    """Devices that share a floor."""

    key: MetricKey
    margin: float
    device: str | None
    devices: tuple[_Device, ...]

    @property
    def first(self) -> MetricRow:
        return self.devices[0].rows[0]

    def values(self, share: float = 0.5) -> Values:
        return np.array([float(quantile(one.values, share)) for one in self.devices])

    def without(self, nodes: Iterable[str]) -> _Population:
        gone = set(nodes)
        left = tuple(one for one in self.devices if one.place[0] not in gone)
        return _Population(self.key, self.margin, self.device, left)

    def shown(self, value: float) -> str:
        return f"{abs(value):.6g} {self.first.metric.unit}"


def learn(documents: Sequence[CanaryDocument], settings: LearnSettings) -> FloorsDocument:
    """Return the baseline of results. Raises FloorsError if nothing can be learnt."""
    chosen = choose(documents, settings)
    left_out = [
        UncountedRow(one.node, None, None, why)
        for one in documents
        if (why := chosen.difference(identity(one))) is not None
    ]
    same = [one for one in documents if identity(one) == chosen]
    counted, uncounted = rows(same)
    devices, others = _devices(counted)
    left_out += uncounted + others
    _check_margins(settings, devices)
    if not devices:
        raise FloorsError(
            f"no result counts: {_reasons(left_out)}",
            remedy="measure again, with at least 9 runs of each metric",
        )
    nodes = {one.place[0] for group in devices.values() for one in group}
    wide = (
        max(len(group) for group in devices.values()) >= CLASS_DEVICES and len(nodes) >= CLASS_NODES
    )
    if wide:
        metrics, gone = _class_metrics(devices, settings, left_out, nodes)
    else:
        metrics, gone = _node_metrics(devices, settings, left_out), set()
    if not metrics:
        raise FloorsError(
            f"no metric has a floor: {_reasons(left_out)}",
            remedy="measure more nodes, or find out why they differ",
        )
    used = [one for one in same if one.node not in gone and one.node in nodes]
    return FloorsDocument(
        schema="goldnode.floors/1",
        **{"class": chosen.class_},
        class_digest=chosen.class_digest,
        platform=chosen.platform,
        runner=chosen.runner,
        simulated=chosen.simulated,
        scope="class" if wide else "nodes",
        begin=min(one.started for one in used),
        end=max(one.started for one in used),
        results=len(used),
        nodes=sorted(nodes - gone),
        metrics=metrics,
        left_out=_left_out(left_out),
    )


def choose(documents: Sequence[CanaryDocument], settings: LearnSettings) -> ResultIdentity:
    """Return the circumstances to learn from: those of most nodes; of equally many, the newest."""
    fit = [
        one
        for one in documents
        if settings.class_ in (None, one.class_) and settings.platform in (None, one.platform)
    ]
    if not fit:
        raise FloorsError(
            f"no result is of class {settings.class_ or 'any'} on platform {settings.platform or 'any'}",
            remedy="correct --class or --platform",
        )
    kinds = sorted({(one.class_ or "", one.platform, one.simulated) for one in fit})
    # Only a person knows which kind is meant; the versions of one kind are chosen below.
    if len(kinds) > 1:
        names = "; ".join(
            f"class {name or 'none'} on {platform}{', simulated' if simulated else ''}"
            for name, platform, simulated in kinds
        )
        raise FloorsError(
            f"the results are of several kinds: {names}",
            remedy="select one with --class and --platform, and keep simulated results apart",
        )
    newest: dict[ResultIdentity, tuple[int, str]] = {}
    for candidate in {identity(one) for one in fit}:
        own = [one for one in fit if identity(one) == candidate]
        # The number of nodes decides before the date: one new node must not replace a fleet.
        newest[candidate] = (len({one.node for one in own}), max(one.started for one in own))
    return max(newest, key=lambda one: (newest[one], one.runner, one.class_digest or ""))


def _devices(
    counted: Iterable[MetricRow],
) -> tuple[dict[MetricKey, list[_Device]], list[UncountedRow]]:
    """Return the devices of each metric with enough runs at the usual clock, and the rows that are left out."""
    left_out: list[UncountedRow] = []
    by_key: dict[MetricKey, list[MetricRow]] = {}
    for row in counted:
        by_key.setdefault(row.key, []).append(row)
    devices: dict[MetricKey, list[_Device]] = {}
    for key in sorted(by_key, key=str):
        places: dict[_Place, list[MetricRow]] = {}
        for row, why in _clocked(by_key[key]):
            if why is None:
                places.setdefault((row.node, row.device), []).append(row)
            else:
                left_out.append(UncountedRow(row.node, row.device, str(key), why))
        for place in sorted(places, key=lambda one: (one[0], one[1] or "")):
            device = _Device(place, tuple(places[place]))
            if len(device.values) >= RUNS:
                devices.setdefault(key, []).append(device)
            else:
                why = f"{len(device.values)} runs count, and {RUNS} are needed"
                left_out.append(UncountedRow(*place, str(key), why))
    return devices, left_out


def _clocked(same: Sequence[MetricRow]) -> Iterator[tuple[MetricRow, str | None]]:
    """Return the rows, each with why its clock is another one than that of most."""
    clocks = [row.clock for row in same if row.clock is not None]
    devices = [row.device_clock for row in same if row.device_clock is not None]
    # Medians: a few devices with another clock do not shift them.
    usual, device = (
        float(np.median(frequencies)) if frequencies else 0.0 for frequencies in (clocks, devices)
    )
    for row in same:
        yield row, other_clock(row, (usual, usual), device)


# A class


def _class_metrics(
    devices: Mapping[MetricKey, Sequence[_Device]],
    settings: LearnSettings,
    left_out: list[UncountedRow],
    nodes: set[str],
) -> tuple[list[FloorsMetric], set[str]]:
    """Return the floors of a class, and the nodes that leave. Adds to `left_out`."""
    populations: list[_Population] = []
    for key, group in devices.items():
        # With few devices the spread of a class is unknown.
        if len(group) < CLASS_DEVICES:
            why = f"{len(group)} devices have enough runs, and {CLASS_DEVICES} are needed"
            left_out += [UncountedRow(*one.place, str(key), why) for one in group]
            continue
        populations += _one_mode(_Population(key, settings.of(key), None, tuple(group)))
    gone = _leave(populations, left_out, nodes)
    metrics = []
    for one in (population.without(gone) for population in populations):
        _refuse_modes(one)  # nodes that left may have hidden them
        metric = _metric(one, len({device.place[0] for device in one.devices}))
        if _means_something(metric):
            metrics.append(metric)
            continue
        why = _no_floor("the devices", metric)
        left_out += [UncountedRow(*device.place, str(one.key), why) for device in one.devices]
    return metrics, gone


def _no_floor(what: str, metric: FloorsMetric) -> str:
    first = metric.statistics[0]
    return f"{what} differ so much that the floor would be {first.floor:.6g}, with a median of {first.median:.6g}"


def _means_something(metric: FloorsMetric) -> bool:
    first = metric.statistics[0]
    ratio = first.floor / first.median
    return ratio >= 1 - WIDEST if metric.better == "higher" else ratio <= 1 / (1 - WIDEST)


def _leave(
    populations: Sequence[_Population], left_out: list[UncountedRow], nodes: set[str]
) -> set[str]:
    """Return the nodes that are below the floor of the others, until none is. Raises FloorsError for too many."""
    gone: dict[str, UncountedRow] = {}
    # Without the slow nodes the spread is smaller, and so the floor higher: again, until all are
    # above it.
    while True:
        below_floor: dict[str, UncountedRow] = {}
        for population in (one.without(gone) for one in populations):
            for slow in _below(population):
                below_floor.setdefault(slow.node, slow)
        if not below_floor:
            break
        gone |= below_floor
        # More than a few slow nodes are what the class is like, or a fault of all: a person
        # decides.
        if len(gone) > LEAVE * len(nodes):
            some = ", ".join(sorted(gone)[:_SHOWN]) + (", …" if len(gone) > _SHOWN else "")
            raise FloorsError(
                f"{len(gone)} of {len(nodes)} nodes would leave ({some}), and at most {LEAVE:.0%} may: "
                f"these nodes do not show what the class can do. For instance {_named(next(iter(gone.values())))}",
                remedy="repair them, or find what they have in common, and measure again",
            )
    left_out += gone.values()
    return set(gone)


def _below(population: _Population) -> Iterator[UncountedRow]:
    """Return the devices of a population that are below its floor, as `goldnode floors check` judges it."""
    if not population.devices:
        return
    values = population.values()
    middle, floor = float(np.median(values)), floor_of(values, population.margin)
    for device in population.devices:
        bound = upper_bound(device.values)
        if bound is not None and float(bound) < floor:
            why = (
                f"it is below the floor of the others: bound {population.shown(float(bound))} of "
                f"{len(device.values)} runs, floor {population.shown(floor)}, median {population.shown(middle)}"
            )
            yield UncountedRow(*device.place, str(population.key), why)


def floor_of(values: Values, margin: float, sigma: float | None = None) -> float:
    """Return the floor of medians of devices: the median less the margin, or less three sigma if that is lower."""
    middle = float(np.median(values))
    spread = float(robust_spread(values)) if sigma is None else sigma
    return min(middle - margin * abs(middle), middle - SIGMAS * spread)


def _one_mode(population: _Population) -> list[_Population]:
    """Return populations of one mode each: the whole, or one for each address. Raises FloorsError if neither is."""
    split = _modes(population)
    if split is None:
        return [population]
    low = {population.devices[place].place for place in split[0]}
    share: dict[str | None, list[bool]] = {}
    for one in population.devices:
        share.setdefault(one.place[1], []).append(one.place in low)
    # Two modes may have a cause within each node: its slots differ. Then each address has one mode.
    low_shares = {device: np.mean(inside) for device, inside in share.items()}
    explained = (
        all(max(one, 1 - one) >= _ONE_MODE for one in low_shares.values()) and len(low_shares) > 1
    )
    # Each half needs as many devices as a population of its own.
    enough = min(len(inside) for inside in share.values()) >= CLASS_DEVICES
    if not explained or not enough:
        raise _two_modes(population, split)
    return [
        _Population(
            population.key,
            population.margin,
            device,
            tuple(one for one in population.devices if one.place[1] == device),
        )
        for device in sorted(share, key=str)
    ]


def _refuse_modes(population: _Population) -> None:
    split = _modes(population)
    if split is not None:
        raise _two_modes(population, split)


def _modes(population: _Population) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the places of devices in two modes; None for one mode, or for two that the margin covers."""
    values = population.values()
    split = modes(values)
    apart = 0.0 if split is None else split.medians[1] - split.medians[0]
    if split is None or apart <= population.margin / 2 * abs(float(np.median(values))):
        return None
    return split.low, split.high


def _two_modes(
    population: _Population, split: tuple[tuple[int, ...], tuple[int, ...]]
) -> FloorsError:
    parts = [[population.devices[place] for place in places] for places in split]
    texts = []
    for part in parts:
        middle = float(np.median([float(np.median(one.values)) for one in part]))
        names = sorted({one.place[0] for one in part})
        some = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        texts.append(
            f"{population.shown(middle)} on {len(part)} devices of {len(names)} nodes ({some})"
        )
    differs = _what_differs(*parts)
    return FloorsError(
        f"{population.key} has two modes, and no floor fits both: {texts[0]}, and {texts[1]}{differs}",
        remedy="find what differs between them (firmware, settings, cooling), make them equal or two classes, "
        "and measure again",
    )


def _what_differs(one: Sequence[_Device], other: Sequence[_Device]) -> str:
    """Return what the results themselves state of the difference between two groups."""
    # These may differ within one class; all else that results state is equal here.
    for name in ("image", "how"):
        values = [
            {getattr(row.document, name) for device in part for row in device.rows}
            for part in (one, other)
        ]
        if not values[0] & values[1]:
            first, second = (", ".join(sorted(short(value) for value in own)) for own in values)
            return f"; the first were measured with {name} {first}, the second with {second}"
    return ""


# Few nodes


def _node_metrics(
    devices: Mapping[MetricKey, Sequence[_Device]],
    settings: LearnSettings,
    left_out: list[UncountedRow],
) -> list[FloorsMetric]:
    """Return floors of each device alone, from its own runs. Adds to `left_out`."""
    metrics = []
    for key, group in devices.items():
        for one in group:
            metric = _metric(
                _Population(key, settings.of(key), one.place[1], (one,)), 1, one.place[0]
            )
            if _means_something(metric):
                metrics.append(metric)
            else:
                left_out.append(UncountedRow(*one.place, str(key), _no_floor("the runs", metric)))
    return metrics


def _own_spread(device: _Device, share: float) -> float:
    """Return sigma of one device: between results of the suite if there are enough, else between runs."""
    results = [
        row.values for row in device.rows if len(row.values) >= min(RUNS, runs_needed(share))
    ]
    between = 0.0
    if len(results) >= RESULTS:
        between = float(robust_spread(np.array([float(quantile(one, share)) for one in results])))
        if share == 0.5:
            return between
    if share == 0.5:
        return float(robust_spread(device.values))
    # The tail of one device: its error is how uncertain the quantile itself is.
    low = lower_bound(device.values, share)
    error = 0.0 if low is None else (float(quantile(device.values, share)) - float(low)) / _NORMAL
    return max(between, error)


# Both


def _metric(population: _Population, nodes: int, node: str | None = None) -> FloorsMetric:
    devices, metric = population.devices, population.first.metric
    counts = [len(one.values) for one in devices]
    statistics = [
        _statistic(population, name, share, node is not None)
        for name, share in SHARES.items()
        if share == 0.5 or min(counts) >= runs_needed(share)
    ]
    every = [row for one in devices for row in one.rows]
    return FloorsMetric(
        name=population.key.name,
        job=population.first.job.name,
        phase=metric.phase,
        unit=metric.unit,
        better=metric.better,
        node=node,
        device=population.device,
        margin=population.margin,
        nodes=nodes,
        devices=len(devices),
        runs=sum(counts),
        results=len(every),
        verified=all(row.job.verified for row in every),
        statistics=statistics,
        sm_mhz=_range([None if row.clock is None else (row.clock, row.clock) for row in every]),
        temperature_c=_range([_pair(row.metric.conditions.temperature_c) for row in every]),
        power_w=_range([_pair(row.metric.conditions.power_w) for row in every]),
    )


def _statistic(
    population: _Population, name: Quantile, share: float, alone: bool
) -> FloorsStatistic:
    sign = 1 if population.first.metric.better == "higher" else -1
    if alone:
        (device,) = population.devices
        values = np.array([float(quantile(device.values, share))])
        sigma = _own_spread(device, share)
        bounds = lower_bound(device.values, share), upper_bound(device.values, share)
    else:
        values = population.values(share)
        sigma = float(robust_spread(values))
        bounds = lower_bound(values), upper_bound(values)
    low, high = (None if one is None else rounded(sign * float(one)) for one in bounds)
    # Of a time less is better: the lower bound of the turned value is the upper one of the value.
    if sign < 0:
        low, high = high, low
    return FloorsStatistic(
        quantile=name,
        median=rounded(sign * float(np.median(values))),
        low=low,
        high=high,
        sigma=rounded(sigma),
        floor=rounded(sign * floor_of(values, population.margin, sigma)),
    )


def rounded(value: float) -> float:
    """Return a value with seven digits, so that the file does not depend on the last bit of a processor."""
    return float(f"{value:.7g}")


def _pair(ends: list[float] | None) -> tuple[float, float] | None:
    return None if ends is None else (ends[0], ends[1])


def _range(ranges: Iterable[tuple[float, float] | None]) -> list[float] | None:
    pairs = [pair for pair in ranges if pair is not None]
    return [min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)] if pairs else None


def _check_margins(settings: LearnSettings, devices: Mapping[MetricKey, object]) -> None:
    if devices:
        check_names("metric", settings.margins, {str(key) for key in devices})


def _named(row: UncountedRow) -> str:
    return f"{row.node}{phrase(' {}', row.device)}, {row.metric}: {row.why}"


def _reasons(left_out: Sequence[UncountedRow]) -> str:
    """Return the most frequent reasons."""
    counts = Counter(row.why for row in left_out)
    return (
        "; ".join(f"{why} ({count})" for why, count in counts.most_common(3))
        or "they have no metrics"
    )


def _left_out(rows: Sequence[UncountedRow]) -> list[FloorsLeftOut]:
    counts = Counter(rows)
    ordered = sorted(
        counts, key=lambda row: (row.node, row.device or "", row.metric or "", row.why)
    )
    return [
        FloorsLeftOut(
            node=row.node, device=row.device, metric=row.metric, results=counts[row], why=row.why
        )
        for row in ordered
    ]
