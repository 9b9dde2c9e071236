"""Remedies that name a version: each is carried out and judged by the rules before it is printed.

A rule states the ways out of a finding as groups of options, the nearest first. `proved` carries
out each option on the combination and judges the result. An option is printed only if it removes
the finding, blocks nothing new and leads to nothing unknown. Of a group, the first such option is
printed. A remedy of plain text names no version and is not judged.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from goldnode.compat import rules
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts.host import ModuleFlavour, numbers

Combination = tuple[CompatHost | None, Workload | None]
Judge = Callable[[CompatHost | None, Workload | None], Iterable[CompatFinding]]

_OTHERWISE = (
    "change another part of the combination: no single version that is known fits all the rest"
)


@dataclasses.dataclass(frozen=True)  # made by thousands
class RemedyOption:
    """One way out: its words, and what it makes of a combination. Without `change` it names no version."""

    text: str
    change: Callable[[Combination], Combination] | None = None


Group = Sequence[RemedyOption]


class CompatRemedy(str):
    """The text of a remedy, with the options that `proved` judges before it is printed."""

    groups: tuple[tuple[RemedyOption, ...], ...]
    frame: RemedyFrame

    @classmethod
    def of(
        cls,
        *groups: Group,
        verb: str = "use ",
        ending: str = "",
        between: str = ", or ",
        otherwise: str = _OTHERWISE,
    ) -> CompatRemedy:
        """Return the remedy of groups of options; its text has the first option of each."""
        filled = tuple(tuple(group) for group in groups if group)
        frame = RemedyFrame(verb, ending, between, otherwise)
        remedy = cls(frame.around([group[0].text for group in filled]))
        remedy.groups, remedy.frame = filled, frame
        return remedy


@dataclass(frozen=True)
class RemedyFrame:
    """The words before, after and between the options of a remedy, and the text without any option."""

    verb: str
    ending: str
    between: str
    otherwise: str

    def around(self, texts: Sequence[str]) -> str:
        """Return the text of a remedy with these options."""
        unique = self.between.join(dict.fromkeys(texts))
        return f"{self.verb}{unique}{self.ending}" if texts else self.otherwise


def proved(
    found: Iterable[CompatFinding], judge: Judge, host: CompatHost | None, workload: Workload | None
) -> list[CompatFinding]:
    """Return the findings with remedies of which only the options that hold are read. They are judged when they are."""
    # Judged at most once, and only if a remedy is read.
    before = cache(lambda: weights(judge(host, workload), host))

    def proof(item: CompatFinding) -> CompatFinding:
        if not isinstance(item.way_out, CompatRemedy):
            return item
        way_out = _Proof(item, item.way_out, before, judge, (host, workload))
        return dataclasses.replace(item, way_out=way_out)

    return list(map(proof, found))


@dataclasses.dataclass(eq=False)
class _Proof:
    """A remedy with the combination that its options are carried out on. Two of the same options are equal."""

    finding: CompatFinding
    remedy: CompatRemedy
    before: Callable[[], Weights]
    judge: Judge
    combination: Combination
    shown: tuple[RemedyOption, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Proof) and self.remedy == other.remedy

    def __hash__(self) -> int:
        return hash(self.remedy)

    def text(self) -> str:
        """Return the remedy with the options that hold."""
        return self.remedy.frame.around([option.text for option in self.options()])

    def options(self) -> tuple[RemedyOption, ...]:
        """Return the options that hold, one of each group."""
        if self.shown is None:
            first = (next(filter(self._holds, group), None) for group in self.remedy.groups)
            self.shown = tuple(option for option in first if option is not None)
        return self.shown

    def _holds(self, option: RemedyOption) -> bool:
        return option.change is None or self.holds(option.change)

    def holds(self, change: Callable[[Combination], Combination]) -> bool:
        """Return whether a change removes the finding."""
        return cures(self.finding, change, self.before(), self.judge, self.combination)


@dataclass(frozen=True)
class Weights:
    """Number of findings of a combination by rule and severity, and what blocks it."""

    of: Counter[tuple[str, str]]
    blocks: Counter[str]
    unknowns: Counter[str]


_AT_LEAST = {
    "block": ("block", "unknown"),
    "unknown": ("block", "unknown"),
    "warn": ("block", "unknown", "warn"),
}


def weights(found: Iterable[CompatFinding], host: CompatHost | None) -> Weights:
    """Return how many findings there are by rule and severity, and how many block by rule."""
    unique = list(dict.fromkeys(found))
    fatal = ("block", "unknown") if host is not None and host.unknown == "block" else ("block",)
    return Weights(
        Counter((_rule(item), item.severity) for item in unique),
        Counter(_rule(item) for item in unique if item.severity in fatal),
        # A row of the known bad list asks for what a combination seldom states.
        Counter(item.rule for item in unique if item.severity == "unknown" and item.row is None),
    )


def _rule(finding: CompatFinding) -> str:
    return finding.row or finding.rule


def cures(
    finding: CompatFinding,
    change: Callable[[Combination], Combination],
    before: Weights,
    judge: Judge,
    combination: Combination,
) -> bool:
    """Return whether a change removes `finding`, and whether nothing is blocked or unknown that was not before."""
    try:
        changed = change(combination)
        after = weights(judge(*changed), changed[0])
    except FactsError:
        return False  # the facts do not know what it names
    rule = _rule(finding)
    count = sum(after.of[rule, severity] for severity in _AT_LEAST[finding.severity])
    had = sum(before.of[rule, severity] for severity in _AT_LEAST[finding.severity])
    return count < had and not after.blocks - before.blocks and not after.unknowns - before.unknowns


# -- what the node is changed to


def of_host(text: str, **fields: Any) -> RemedyOption:
    """Return the option of a node with other values of some fields."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        return (None if host is None else dataclasses.replace(host, **fields)), workload

    return RemedyOption(text, change)


def driver(version: str, text: str = "driver {} or later", **fields: Any) -> RemedyOption:
    """Return the option of a stack with another driver or branch, and with what follows from its version."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        changed = None if host is None else _with_driver(host, version)
        return (None if changed is None else dataclasses.replace(changed, **fields)), workload

    return RemedyOption(text.format(version), change)


def _with_driver(host: CompatHost, version: str) -> CompatHost:
    """Return the host with driver `version`, or a branch: its packages, archive and end of life are those of the branch."""
    branch = facts.branch(version.split(".")[0])
    if "." not in version:
        version = branch.point_releases[-1] if branch.point_releases else version
    ends = None
    if host.end_of_life is not None and branch.end_of_life is not None:
        ends = rules.last_day(branch.end_of_life)
    another = host.branch != branch.name
    packages = [re.sub(rf"(?<=-){host.branch}$", branch.name, name) for name in host.packages]
    parts = host.parts
    if host.driver is not None and parts.get("imex") == host.driver:
        parts = {**parts, "imex": version}  # it is locked with the driver
    return dataclasses.replace(
        host,
        parts=parts,
        branch=branch.name,
        driver=None if host.driver is None else version,
        driver_package=None,
        fabric_manager=None if host.fabric_manager is None else version,
        fabric_manager_package=host.fabric_manager_package
        and rules.fabric_manager_package(branch.name),
        packages=tuple(packages),
        # A branch that the OS's archive lacks comes from NVIDIA's repository.
        archives=(*host.archives, "nvidia-cuda") if host.archives and another else host.archives,
        end_of_life=ends if another else host.end_of_life,
        waiver=None if another else host.waiver,
    )


def drivers(least: str) -> list[RemedyOption]:
    """Return the options of driver `least` or later, the nearest first: with the fixes of its branch, and of later branches."""
    branch = least.split(".")[0]
    versions = [least]
    later = [name for name in facts.fixed_branches() if numbers(name) > numbers(branch)]
    for name in (branch, *later):
        floor = facts.floor_of(name)
        if floor is not None and numbers(floor) > numbers(least):
            versions.append(floor)
    first = f"driver {'' if '.' in least else 'branch '}{{}} or later"
    return [
        driver(version, first if version == least else "driver {} or later") for version in versions
    ]


def kernel(name: str, text: str, version: str | None = None) -> RemedyOption:
    """Return the option of a stack with another kernel: its release, and its upstream version if another."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        if host is None:
            return host, workload
        exact = None if host.kernel_version is None else version or name
        return dataclasses.replace(host, kernel=name, kernel_version=exact), workload

    return RemedyOption(text, change)


def package(version: str, text: str) -> RemedyOption:
    """Return the option of another package of the kernel module ("550.163.01-5"), and so of its driver."""
    return driver(version.partition("-")[0], text, driver_package=version)


def flavour(name: ModuleFlavour, text: str, driver: str | None = None) -> RemedyOption:
    """Return the option of the other flavour of the kernel modules, with another driver where one is named."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        if host is None:
            return host, workload
        host = host if driver is None else _with_driver(host, driver)
        return dataclasses.replace(host, flavour=name, driver_package=None), workload

    return RemedyOption(text.format(driver), change)


# -- what the workload is changed to


def of_workload(text: str, **fields: Any) -> RemedyOption:
    """Return the option of a workload with other values of some fields."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        return host, (None if workload is None else dataclasses.replace(workload, **fields))

    return RemedyOption(text, change)


def cuda(version: str, text: str) -> RemedyOption:
    """Return the option of another CUDA runtime: an image of that CUDA has other libraries, a file other pins."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        if workload is None:
            return host, workload
        major = version.partition(".")[0]
        fields: dict[str, Any] = {"cuda": version, "require_driver": None}
        if workload.kind == "image":
            fields |= {"cudnn": None, "nccl": None}
        else:
            runtime = re.compile(r"nvidia-cuda-runtime(-cu\d\d)?|cuda-toolkit")
            fields["pins"] = {
                name: pin for name, pin in workload.pins.items() if not runtime.fullmatch(name)
            }
            fields["library_cuda"] = {
                name: major if name == "cudart" else value
                for name, value in workload.library_cuda.items()
            }
        if workload.forward_compat_version is not None:
            fields["forward_compat_version"] = None
        return host, dataclasses.replace(workload, **fields)

    return RemedyOption(text, change)


# Packages that are released for one version of torch, or that torch requires exactly.
_WITH_TORCH = re.compile(
    r"torch(vision|audio|text|data)|triton|nvidia-[a-z0-9-]+|cuda-(toolkit|bindings|pathfinder)|xformers"
)


def framework(name: str, version: str, text: str, workload: Workload) -> RemedyOption:
    """Return the option of another release of a framework. Pins that belong to a release of torch change with it."""
    others = [pin for pin in workload.pins if name == "torch" and _WITH_TORCH.fullmatch(pin)]
    if others:
        listed = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        text = f"{text}, with the {listed} that fit{'s' if len(others) == 1 else ''} it"

    def change(combination: Combination) -> Combination:
        host, own = combination
        if own is None:
            return host, own
        return host, _with_framework(own, name, version, others)

    return RemedyOption(text, change)


def _with_framework(workload: Workload, name: str, version: str, others: Sequence[str]) -> Workload:
    pins = {key: value for key, value in workload.pins.items() if key not in others}
    fields: dict[str, Any] = {"frameworks": {**workload.frameworks, name: version}}
    fields["pins"] = {**pins, name: version} if name in pins else pins
    if others or workload.kind == "image":  # the libraries come with the framework
        fields |= {"cudnn": None, "nccl": None}
    if others:
        frameworks = {
            key: value
            for key, value in workload.library_cuda.items()
            if key in ("jax", "tensorflow")
        }
        fields |= {"library_cuda": frameworks, "cuda": None}
    local = re.fullmatch(r"cu(\d+)(\d)", version.partition("+")[2])
    if workload.kind == "image" and workload.cuda is not None and name == "torch":
        fields |= {"cuda": f"{local[1]}.{local[2]}" if local else None, "require_driver": None}
    return dataclasses.replace(workload, **fields)


def python(version: str) -> RemedyOption:
    """Return the option of another Python."""
    return of_workload(f"Python {version}", python=version)


# Those that a remedy may name.
PYTHONS = tuple(f"3.{number}" for number in range(8, 16))


def pythons(fitting: Iterable[str], have: str | None) -> list[RemedyOption]:
    """Return the options of the Pythons that fit, the nearest first; the newest first if none is stated."""
    ordered = sorted(fitting, key=numbers, reverse=True)
    if have is not None:
        minor = numbers(have)[1]
        ordered.sort(key=lambda item: abs(numbers(item)[1] - minor))
    return [python(item) for item in ordered]


def unpin(library: str, workload: Workload, text: str) -> RemedyOption:
    """Return the option of a file that does not pin a library ("cudnn"), which its framework then installs."""
    name = re.compile(rf"nvidia-{library}-cu\d\d")
    pins = {key: value for key, value in workload.pins.items() if not name.fullmatch(key)}
    families = {key: value for key, value in workload.families.items() if not name.fullmatch(key)}
    majors = {key: value for key, value in workload.library_cuda.items() if key != library}
    fields = {"pins": pins, "families": families, "library_cuda": majors, library: None}
    return of_workload(text, **fields)


def without(name: str, workload: Workload, text: str) -> RemedyOption:
    """Return the option of a file without a package that uses the GPU."""
    return of_workload(
        text,
        pins={key: value for key, value in workload.pins.items() if key != name},
        uses_gpu={key: value for key, value in workload.uses_gpu.items() if key != name},
        families={key: value for key, value in workload.families.items() if key != name},
    )


def pin(name: str, version: str, text: str) -> RemedyOption:
    """Return the option of another pin in a requirements file."""

    def change(combination: Combination) -> Combination:
        host, workload = combination
        if workload is None:
            return host, workload
        frameworks = workload.frameworks
        if name in workload.frameworks:
            frameworks = {**workload.frameworks, name: version}
        fields: dict[str, Any] = {
            "pins": {**workload.pins, name: version},
            "frameworks": frameworks,
        }
        library = re.fullmatch(r"nvidia-(cudnn|nccl)-cu\d\d", name)
        if library is not None:
            fields[library[1]] = version
        return host, dataclasses.replace(workload, **fields)

    return RemedyOption(text, change)


def nearest(version: str, known: Iterable[str], count: int = 8) -> list[str]:
    """Return the known versions around `version`, the nearest first.

    That is one of the same series (2.8.1 for 2.8.0) before others, and of these the next below before the next above.
    """
    ordered = sorted(known, key=numbers)
    above = sum(numbers(item) <= numbers(version) for item in ordered)

    def distance(index: int) -> tuple[int, int, bool]:
        pairs = zip(numbers(ordered[index]), numbers(version), strict=False)
        series = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        steps = index - above if index >= above else above - 1 - index
        return -series, steps, index >= above

    return [ordered[index] for index in sorted(range(len(ordered)), key=distance)[:count]]
