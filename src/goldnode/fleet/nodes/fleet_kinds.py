"""Sort the surveys of a running fleet into kinds of machines, and name what deviates in each kind.

Hardware and the release of the system decide the kind: a class has one of each. Software does not:
two driver versions on the same hardware are one kind, whose minority deviates. Where the site itself
separates the two (by partition, feature, label or inventory group), they are two kinds. Pure.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.fleet.nodes import adopt
from goldnode.inventory.fleet_sources import FleetHost
from goldnode.node.state.debversion import compare

Survey = Mapping[str, Any]
# MemTotal of equal machines differs by what firmware and kernel reserve: by less than this share.
_SAME_MEMORY = 0.02
# The share of the RAM from which less is another configuration, and not a failed DIMM of 4 or more.
_OTHER_MEMORY = 0.3
# Numbers of GPUs that machines are sold with.
_SOLD = {1, 2, 4, 6, 8, 10, 16}
SITE_YML, REBOOT, HANDS, ELSEWHERE = "site.yml", "reboot", "hands", "elsewhere"


@dataclass(frozen=True)
class FleetDeviation:
    """A difference of one machine from its kind.

    `by` is what settles it: `site.yml`, a `reboot`, `hands` on the machine, or a decision `elsewhere`,
    such as the configuration of the scheduler.
    """

    host: str
    aspect: str
    found: str
    expected: str
    by: str
    note: str


@dataclass(frozen=True)
class FleetAspect:
    """A property in which machines of a kind can differ. `read` returns text; None where it is not known."""

    name: str
    read: Callable[[Survey], str | None]
    by: str
    note: str


@dataclass
class FleetKind:
    """Machines of one kind, the one that represents them, and their deviations."""

    name: str
    hosts: list[str]
    typical: str
    deviations: list[FleetDeviation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def kinds(surveys: Mapping[str, Survey], hosts: Mapping[str, FleetHost]) -> list[FleetKind]:
    """Return the kinds of machines in these surveys, the largest first.

    :param surveys: the survey of each machine that was reached, by its name.
    :param hosts: the groups, class and cohort of each machine by the site's own sources.
    """
    families: dict[tuple[Any, ...], list[str]] = {}
    lost = [name for name in sorted(surveys) if _has_lost_all(surveys[name], hosts[name])]
    for name in sorted({*surveys} - {*lost}):
        families.setdefault(_family(surveys[name]), []).append(name)
    for name in lost:
        key = _nearest(name, families, surveys, hosts) or _family(surveys[name])
        families.setdefault(key, []).append(name)
    result = []
    for key, members in sorted(families.items(), key=lambda row: -len(row[1])):
        for hardware in _by_hardware(members, surveys, hosts):
            for group in _by_intention(hardware, surveys, hosts):
                result.append(_kind(key, group, surveys, hosts))
    result.sort(key=lambda kind: (-len(kind.hosts), kind.hosts))
    _name(result, surveys)
    return result


# -- Which machines belong together


def _family(survey: Survey) -> tuple[Any, ...]:
    """Return what no change on a machine can turn into another: model of the GPUs, and the release."""
    system = survey["os"]
    return (
        system["id"],
        system["version"] or system["codename"],
        system["architecture"],
        bool(survey["container"]),
        _gpus(survey)[0],
    )


def _gpus(survey: Survey) -> tuple[str | None, int]:
    """Return model and number of the GPUs. A model without facts has its PCI id."""
    gpu = adopt.gpu_of(survey)
    if gpu is not None:
        return gpu["model"], gpu["count"]
    unknown = Counter(row["id"] for row in survey["gpus"] or ()).most_common(1)
    return unknown[0] if unknown else (None, 0)


def _number_of_gpus(survey: Survey) -> int:
    return _gpus(survey)[1]


def _has_lost_all(survey: Survey, host: FleetHost) -> bool:
    """Return whether a machine should have GPUs, and shows none on its PCI bus."""
    return survey["gpus"] == [] and bool(host.gpus or adopt.driver_of(survey))


def _nearest(
    name: str,
    families: Mapping[tuple[Any, ...], Sequence[str]],
    surveys: Mapping[str, Survey],
    hosts: Mapping[str, FleetHost],
) -> tuple[Any, ...] | None:
    """Return the family with GPUs, of the same release, with which a machine shares most groups of the site."""
    own = _family(surveys[name])
    best, most = None, 0.0
    for key, members in families.items():
        if key[:4] != own[:4] or key[4] is None:
            continue
        shared = [len(hosts[name].groups & hosts[other].groups) for other in members]
        if sum(shared) / len(shared) > most:
            best, most = key, sum(shared) / len(shared)
    return best


def _hardware(survey: Survey) -> Mapping[str, Any]:
    hardware: Mapping[str, Any] = survey.get("hardware") or {}
    return hardware


def _by_hardware(
    members: Sequence[str], surveys: Mapping[str, Survey], hosts: Mapping[str, FleetHost]
) -> list[list[str]]:
    """Split machines with one model of GPU by their number, their processors and their memory."""
    memory = _memory_levels(_hardware(surveys[name]).get("memory_mib") for name in members)
    key = {
        name: (
            _number_of_gpus(surveys[name]),
            _hardware(surveys[name]).get("processor"),
            memory.get(_hardware(surveys[name]).get("memory_mib")),
        )
        for name in members
    }
    counted = Counter(key.values())
    # The most frequent first: what comes later is compared with it.
    variants: dict[tuple[Any, ...], list[str]] = {}
    for variant, _ in sorted(counted.items(), key=lambda row: (-row[1], str(row[0]))):
        group = [name for name in members if key[name] == variant]
        near = min(variants, key=lambda other: _distance(variant, other), default=None)
        if near is None or _is_meant(variant, near, group, variants[near], hosts):
            variants[variant] = group
        else:
            variants[near].extend(group)
    return [sorted(group) for group in variants.values()]


def _memory_levels(values: Iterable[int | None]) -> dict[int | None, int | None]:
    """Return for each size of memory the largest one that counts as equal to it."""
    levels: dict[int | None, int | None] = {None: None}
    level = 0
    for value in sorted({value for value in values if value}, reverse=True):
        if value < level * (1 - _SAME_MEMORY):
            level = 0
        level = level or value
        levels[value] = level
    return levels


def _distance(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[int, float]:
    """Return in how many properties two variants differ, and by how much."""
    differences = sum(a != b for a, b in zip(one, other, strict=True))
    ratio = abs(math.log((one[0] or 1) / (other[0] or 1)))
    if one[2] and other[2]:
        ratio += abs(math.log(one[2] / other[2]))
    return differences, ratio


def _is_meant(
    variant: tuple[Any, ...],
    near: tuple[Any, ...],
    group: Sequence[str],
    others: Sequence[str],
    hosts: Mapping[str, FleetHost],
) -> bool:
    """Return whether a variant of the hardware is a kind of its own, and not a fault or one odd machine."""
    gpus, _, memory = variant
    if gpus != near[0] and all(hosts[name].gpus == gpus for name in group):
        return True  # the scheduler's configuration declares this number
    if _separated(group, others, hosts):
        return True
    if len(group) < 2:
        return False
    if gpus != near[0]:
        return gpus in _SOLD
    if variant[1] != near[1]:
        return True
    # Less memory by a fourth or less is that of failed DIMMs, on two machines as on one.
    return bool(memory and near[2]) and abs(memory - near[2]) > _OTHER_MEMORY * near[2]


def _separated(
    group: Sequence[str], others: Sequence[str], hosts: Mapping[str, FleetHost]
) -> str | None:
    """Return a group of the site that has all of `group` and none of `others`; None without one.

    A single machine is in groups of its own for many reasons, so it needs company.
    """
    if len(group) < 2:
        return None
    shared = frozenset.intersection(*(hosts[name].groups for name in group))
    elsewhere = frozenset[str]().union(*(hosts[name].groups for name in others))
    return min(shared - elsewhere, default=None)


def _by_intention(
    members: Sequence[str], surveys: Mapping[str, Survey], hosts: Mapping[str, FleetHost]
) -> list[list[str]]:
    """Split machines by driver branch where the site separates the branches itself."""
    branches: dict[str | None, list[str]] = {}
    for name in members:
        branches.setdefault(_branch(surveys[name]), []).append(name)
    groups: list[list[str]] = []
    main = max(branches.values(), key=len)
    rest = list(main)
    for group in branches.values():
        if group is not main and _separated(group, main, hosts):
            groups.append(group)
        elif group is not main:
            rest.extend(group)
    return [sorted(rest), *groups]


# -- What deviates


def _driver(survey: Survey) -> str | None:
    driver = adopt.driver_of(survey)
    if driver is None:
        return None if survey["gpus"] is None else "none"
    flavour = "open" if "GPL" in driver["license"] else "proprietary"
    return f"{driver['version']} ({flavour})" if driver["module"] != "amdgpu" else driver["version"]


def _branch(survey: Survey) -> str | None:
    return (_driver(survey) or "").partition(".")[0] or None


def _setting(name: str) -> Callable[[Survey], str | None]:
    def read(survey: Survey) -> str | None:
        values = sorted({row.get(name, "") for row in survey["settings"] or []} - {""})
        return ", ".join(values) or None

    return read


def _tuned(name: str) -> Callable[[Survey], str | None]:
    def read(survey: Survey) -> str | None:
        value = (survey["host"] or {}).get(name)
        if isinstance(value, list):
            return ", ".join(value) or None
        if isinstance(value, bool):
            return "on" if value else "off"
        return None if value is None else str(value)

    return read


def _mtu(survey: Survey) -> str | None:
    """Return the jumbo frames of the interfaces, whose names differ between equal machines."""
    sizes = Counter(size for size in ((survey["host"] or {}).get("mtu") or {}).values() if size)
    jumbo = {size: number for size, number in sizes.items() if size != 1500}
    if not sizes:
        return None
    return ", ".join(f"{number} with {size}" for size, number in sorted(jumbo.items())) or "1500"


def _engine(survey: Survey) -> str | None:
    return ", ".join(f"{name} {version}" for name, version in sorted(survey["runtime"].items()))


def _next_kernel(survey: Survey) -> str | None:
    """Return the newest installed kernel."""
    return max(survey["kernel"]["installed"], key=functools.cmp_to_key(compare), default=None)


def _held(survey: Survey) -> str:
    held = sorted(name for name, row in survey["packages"].items() if row["hold"])
    return ", ".join(held) or "none"


def _other_modules(survey: Survey) -> str:
    own = {row["module"] for row in survey["driver"]} | {"nvidia"}
    rows = {f"{row['name']} {row['version']}" for row in survey["dkms"] if row["name"] not in own}
    return ", ".join(sorted(rows)) or "none"


ASPECTS = (
    FleetAspect("driver", _driver, SITE_YML, "site.yml installs the version of the lock."),
    FleetAspect(
        "kernel",
        lambda survey: survey["kernel"]["running"],
        REBOOT,
        "site.yml installs the kernel of the lock; a reboot starts it.",
    ),
    FleetAspect(
        "newest kernel installed",
        _next_kernel,
        REBOOT,
        "It may boot another kernel than the others at its next reboot.",
    ),
    FleetAspect(
        "container engine", _engine, SITE_YML, "site.yml installs the version of the lock."
    ),
    FleetAspect(
        "driver installed by a .run file",
        lambda survey: survey["runfile"] or "no",
        HANDS,
        "Run `nvidia-uninstall` in a maintenance window: site.yml refuses the machine until then.",
    ),
    FleetAspect(
        "out-of-tree modules",
        _other_modules,
        ELSEWHERE,
        "Add the package to the stack, or remove it from the machine.",
    ),
    FleetAspect("held packages", _held, SITE_YML, "site.yml holds the packages of the lock."),
    FleetAspect(
        "Secure Boot",
        lambda survey: None if survey["secure_boot"] is None else str(survey["secure_boot"]),
        HANDS,
        "It is set in the firmware. Modules of DKMS must be signed where it is on.",
    ),
    FleetAspect(
        "power limit (W)",
        _setting("power.limit"),
        SITE_YML,
        "site.yml sets what the class declares.",
    ),
    FleetAspect(
        "ECC",
        _setting("ecc.mode.current"),
        REBOOT,
        "site.yml sets it; a reboot makes it effective.",
    ),
    FleetAspect(
        "persistence mode",
        _setting("persistence_mode"),
        SITE_YML,
        "site.yml sets what the class declares.",
    ),
    FleetAspect(
        "compute mode", _setting("compute_mode"), SITE_YML, "site.yml sets what the class declares."
    ),
    FleetAspect(
        "MIG", _setting("mig.mode.current"), ELSEWHERE, "A class has one layout: decide which."
    ),
    FleetAspect(
        "VBIOS", _setting("vbios_version"), HANDS, "A vendor's tool updates it; goldnode does not."
    ),
    FleetAspect(
        "CPU governor", _tuned("governors"), SITE_YML, "site.yml sets what the class declares."
    ),
    FleetAspect("swap", _tuned("swap"), SITE_YML, "site.yml sets what the class declares."),
    FleetAspect(
        "NUMA balancing",
        _tuned("numa_balancing"),
        SITE_YML,
        "site.yml sets what the class declares.",
    ),
    FleetAspect(
        "huge pages", _tuned("hugepages"), SITE_YML, "site.yml sets what the class declares."
    ),
    FleetAspect(
        "MTU",
        _mtu,
        ELSEWHERE,
        "Compare its interfaces and switch ports; the class sets an MTU by the interface's name.",
    ),
)
_HARDWARE = (
    FleetAspect(
        "number of GPUs",
        lambda survey: str(_number_of_gpus(survey)),
        HANDS,
        "Look for a GPU that has fallen off the bus (`goldnode-node check`, `lspci`), or a class of its own.",
    ),
    FleetAspect(
        "processor",
        lambda survey: _hardware(survey).get("processor"),
        HANDS,
        "It may be another machine: compare its purchase, or give it a class of its own.",
    ),
    FleetAspect(
        "NVSwitch",
        lambda survey: None if survey["nvswitch"] is None else str(survey["nvswitch"]),
        HANDS,
        "Look for a switch that has fallen off the bus (`lspci -d 10de::0680`).",
    ),
)


def _kind(
    family: tuple[Any, ...],
    members: list[str],
    surveys: Mapping[str, Survey],
    hosts: Mapping[str, FleetHost],
) -> FleetKind:
    deviations: list[FleetDeviation] = []
    notes: list[str] = []
    for aspect in (*_HARDWARE, *ASPECTS):
        values = {name: aspect.read(surveys[name]) for name in members}
        deviations += _differing(aspect, values, notes)
    deviations += _less_memory({name: surveys[name] for name in members})
    for name in members:
        deviations += _undeclared(name, surveys[name], hosts[name])
    order = {name: number for number, name in enumerate(members)}
    deviations.sort(key=lambda row: order[row.host])
    wrong = Counter(row.host for row in deviations)
    typical = min(members, key=lambda name: (wrong[name], name))
    if len(members) == 1:
        notes.append("One machine alone shows no deviations: nothing is compared with it.")
    return FleetKind("", list(members), typical, deviations, notes)


def _differing(
    aspect: FleetAspect, values: Mapping[str, str | None], notes: list[str]
) -> list[FleetDeviation]:
    """Return the machines whose value is not that of most. Machines whose value is unknown are no deviation."""
    known = Counter(value for value in values.values() if value is not None)
    if len(known) < 2:
        return []
    (expected, number), (second, other) = known.most_common(2)
    if other >= 2 and other * 4 >= number:
        notes.append(
            f"{aspect.name}: {number} machines have {expected}, and {other} have {second}. Decide which is right; "
            "the class takes that of most."
        )
    return [
        FleetDeviation(name, aspect.name, value, expected, by=aspect.by, note=aspect.note)
        for name, value in values.items()
        if value is not None and value != expected
    ]


def _less_memory(surveys: Mapping[str, Survey]) -> list[FleetDeviation]:
    sizes = {name: _hardware(survey).get("memory_mib") for name, survey in surveys.items()}
    levels = _memory_levels(sizes.values())
    level = Counter(levels[size] for size in sizes.values() if size).most_common(1)
    if not level:
        return []
    expected = level[0][0] or 0
    return [
        FleetDeviation(
            name,
            "memory",
            f"{size / 1024:.0f} GiB",
            f"{expected / 1024:.0f} GiB",
            by=HANDS,
            note="Look for a missing or failed DIMM (`dmidecode -t memory`, the log of the BMC).",
        )
        for name, size in sizes.items()
        if size and levels[size] != expected
    ]


def _undeclared(name: str, survey: Survey, host: FleetHost) -> list[FleetDeviation]:
    """Return where a machine has less than the configuration of its scheduler declares."""
    rows = []
    gpus, memory = _number_of_gpus(survey), _hardware(survey).get("memory_mib")
    if host.gpus is not None and survey["gpus"] is not None and host.gpus != gpus:
        rows.append(("number of GPUs", str(gpus), str(host.gpus), "its Gres"))
    if host.memory_mib is not None and memory and host.memory_mib > memory:
        rows.append(("memory (MiB)", str(memory), str(host.memory_mib), "its RealMemory"))
    note = "Slurm drains a node that has less than slurm.conf declares: repair it, or correct slurm.conf."
    return [
        FleetDeviation(
            name,
            f"{what} for the scheduler",
            present,
            f"{want} by {key}",
            by=ELSEWHERE,
            note=note,
        )
        for what, present, want, key in rows
    ]


# -- Names


def _name(unnamed: Sequence[FleetKind], surveys: Mapping[str, Survey]) -> None:
    """Name each kind after its GPUs or release, and by the first property that tells namesakes apart."""
    by_name: dict[str, list[FleetKind]] = {}
    for kind in unnamed:
        by_name.setdefault(adopt.name_for(surveys[kind.typical]), []).append(kind)
    for name, namesakes in by_name.items():
        for kind in namesakes:
            kind.name = name
        if len(namesakes) == 1:
            continue
        for read in (_system_word, _gpus_word, _memory_word, _driver_word, _processor_word):
            words = [read(surveys[kind.typical]) for kind in namesakes]
            if len(set(words)) > 1:
                for kind, word in zip(namesakes, words, strict=True):
                    kind.name = f"{kind.name}_{word}"
            if len({kind.name for kind in namesakes}) == len(namesakes):
                break
        else:
            for number, kind in enumerate(namesakes, start=1):
                kind.name = f"{kind.name}_{number}"


def _system_word(survey: Survey) -> str:
    system = survey["os"]
    return re.sub(r"[^a-z0-9]", "", f"{system['id']}{system['version']}")


def _gpus_word(survey: Survey) -> str:
    return f"{_number_of_gpus(survey)}gpu"


def _memory_word(survey: Survey) -> str:
    return f"{round((_hardware(survey).get('memory_mib') or 0) / 1024)}gib"


def _driver_word(survey: Survey) -> str:
    return f"r{_branch(survey) or 'none'}"


def _processor_word(survey: Survey) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", str(_hardware(survey).get("processor") or "").lower())
    return words.strip("_")[:32] or "other"
