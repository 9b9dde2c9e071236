"""Match claims with what carries packages.

A component that many nodes share is judged once. It is a package, kernel, driver or toolkit in one version, and
each has the list of its carriers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

from goldnode.cve.claims import DRIVER, TOOLKIT, AdvisoryClaim, ClaimAnswer, ClaimState, OsRelease
from goldnode.cve.feeds import Feed
from goldnode.cve.nodes import NodeFacts, kernel_version
from goldnode.cve.osv import OsvRecords
from goldnode.cve.subjects import CarriedPackage, CarrierContents, Carriers, is_kernel
from goldnode.node.ground.text import and_more


class CarrierState(StrEnum):
    """State of a carrier for a vulnerability, the worst first."""

    AFFECTED = "affected"
    FIX_NOT_BOOTED = "fix-not-booted"
    NEXT_BOOT = "next-boot"
    NOT_LOADED = "not-loaded"
    DENIED = "denied"
    NOT_BUILT = "not-built"
    UNKNOWN = "unknown"
    FIXED = "fixed"
    NOT_AFFECTED = "not-affected"


ORDER: dict[str, int] = {state: place for place, state in enumerate(CarrierState)}
OPEN = frozenset(
    {
        CarrierState.AFFECTED,
        CarrierState.FIX_NOT_BOOTED,
        CarrierState.NEXT_BOOT,
        CarrierState.NOT_LOADED,
        CarrierState.DENIED,
        CarrierState.NOT_BUILT,
    }
)
_OF_JUDGEMENT = {
    ClaimState.AFFECTED: CarrierState.AFFECTED,
    ClaimState.FIXED: CarrierState.FIXED,
    ClaimState.NOT_AFFECTED: CarrierState.NOT_AFFECTED,
    ClaimState.UNKNOWN: CarrierState.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class CveVerdict:
    """One vulnerability of one component: state, the tracker's word, first version with a fix, and why."""

    cve: str
    state: CarrierState
    feed: str
    severity: str
    summary: str
    fixed: str | None
    word: str
    why: str


@dataclass(frozen=True, slots=True)
class PackageComponent:
    """A source package in one version with its binary packages. `base`: free on nodes, so its version is not known."""

    system: OsRelease | None
    source: str
    version: str | None
    names: tuple[str, ...]
    shown: str  # version of the binary packages
    base: bool = False


@dataclass(frozen=True, slots=True)
class KernelComponent:
    """A running kernel: its candidates (source, version), and modules.

    `loaded` are those of the modules that were asked about; None: the capture has no list. `denied` are those that
    modprobe does not load, and `absent` those that the kernel does not have.
    """

    system: OsRelease | None
    release: str
    running: tuple[tuple[str, str], ...]
    loaded: frozenset[str] | None
    denied: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OtherKernels:
    """The kernels that nodes have beside the running one, and the next to boot, by release, if a lock knows them."""

    installed: tuple[str, ...]
    next_boot: str | None


@dataclass(frozen=True, slots=True)
class ProductComponent:
    """The driver or the container toolkit in one version.

    `installed` is another version of the driver that a node has not loaded yet. `loaded`: False for a node whose
    driver is installed, and no module of it loaded.
    """

    source: str
    version: str
    installed: str | None = None
    loaded: bool = True

    system = None


@dataclass(frozen=True, slots=True)
class WheelComponent:
    """A Python package of an image."""

    source: str
    version: str

    system = None


Component = PackageComponent | ProductComponent | WheelComponent
_NAMES = 3  # binary packages that a row names
_Candidates = tuple[tuple[str, str], ...]  # source and version
_Answer = tuple[AdvisoryClaim, ClaimAnswer]
_Key = TypeVar("_Key", bound=Hashable)


@dataclass
class Inventory:
    """Components with the names of their carriers by kind, and carriers that could not be read with the reason.

    Names are in groups that many components share: the nodes of one lock are one group. `releases` are the candidates
    of the kernels that the locks know.
    """

    components: dict[Component, dict[str, list[list[str]]]] = field(default_factory=dict)
    kernels: dict[KernelComponent, dict[OtherKernels, list[str]]] = field(default_factory=dict)
    releases: dict[str, _Candidates] = field(default_factory=dict)
    unread: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    systems: dict[OsRelease, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, component: Component, kind: str, names: list[str]) -> None:
        """Add a group of carriers of a component."""
        self.components.setdefault(component, {}).setdefault(kind, []).append(names)

    def refuse(self, why: str, kind: str, names: Iterable[str]) -> None:
        """Add carriers that are not judged, or not as a whole."""
        self.unread.setdefault(why, {}).setdefault(kind, []).extend(names)

    def run(self, system: OsRelease, kind: str, names: Iterable[str]) -> None:
        """Add carriers of a release."""
        self.systems.setdefault(system, {}).setdefault(kind, []).extend(names)


def _grouped(
    packages: Iterable[CarriedPackage], system: OsRelease | None, base: bool = False
) -> Iterator[PackageComponent]:
    """Yield the components of packages: those of one source and version together."""
    groups: dict[tuple[str, str | None, str], list[str]] = {}
    for item in packages:
        # Headers and libc's copies of them have the version of a kernel, and no code of it.
        if not item.kernel_part:
            groups.setdefault((item.source, item.source_version, item.version), []).append(
                item.name
            )
    for (source, version, shown), names in groups.items():
        own = tuple(sorted(names))
        yield PackageComponent(system, source, version, own, shown, base=base)


def inventory(
    carriers: Carriers, nodes: Sequence[NodeFacts], modules: Set[str] = frozenset()
) -> Inventory:
    """Return the components of all carriers. `modules` are the kernel modules that were asked about.

    Nodes with the same packages, kernels or products are one group each, so that each distinct set is judged once.
    """
    listed = Inventory(
        releases={release: tuple(sorted(rows)) for release, rows in carriers.kernels.items()}
    )
    for subject in sorted(carriers.subjects, key=lambda one: one.name):
        _add_subject(listed, subject)
    ordered = sorted(nodes, key=lambda one: one.name)
    packages = _by(ordered, lambda one: (one.system, one.lock, one.drift, one.driver))
    for (system, digest, drift, driver), names in packages.items():
        lock = carriers.locks.get(digest or "")
        _add_packages(listed, system, _NodePackages(digest, lock, drift, driver), names)
    for toolkit, names in _by(ordered, lambda one: one.toolkit).items():
        if toolkit is not None:
            listed.add(ProductComponent(TOOLKIT, toolkit), "node", names)
    for kernel, names in _by(ordered, lambda one: _kernels(one, listed, modules)).items():
        if isinstance(kernel, str):
            listed.refuse(kernel, "node", names)
        else:
            listed.kernels.setdefault(kernel[0], {})[kernel[1]] = names
    return listed


def _by(nodes: Iterable[NodeFacts], key: Callable[[NodeFacts], _Key]) -> dict[_Key, list[str]]:
    """Return the names of nodes by a key."""
    groups: dict[_Key, list[str]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node.name)
    return groups


def _add_subject(listed: Inventory, subject: CarrierContents) -> None:
    kind, names = subject.kind, [subject.name]
    if subject.unread:
        listed.refuse(subject.unread, kind, names)
        return
    if subject.system is not None:
        listed.run(subject.system, kind, names)
    for component in _grouped(subject.packages, subject.system):
        listed.add(component, kind, names)
    for name, version in subject.wheels:
        listed.add(WheelComponent(name, version), kind, names)
    products = {DRIVER: subject.driver_version, TOOLKIT: subject.toolkit}
    for product, own in products.items():
        if own is not None:
            listed.add(ProductComponent(product, own), kind, names)


@dataclass(frozen=True, slots=True)
class _NodePackages:
    """The lock of some nodes, its contents if it is one of the site's, what differs from it, and the loaded driver."""

    digest: str | None
    lock: CarrierContents | None
    drift: tuple[tuple[str, str | None], ...] | None
    driver: str | None


def _add_packages(
    listed: Inventory, system: OsRelease | None, own: _NodePackages, names: list[str]
) -> None:
    """Add the packages and the driver of nodes that have the same."""
    if system is None:
        listed.refuse("the capture names no release that is known here", "node", names)
    else:
        listed.run(system, "node", names)
    packages: dict[str, CarriedPackage] = {}
    lock = own.lock
    if lock is None:
        why = "the node's lock is not one of the site's"
        if own.digest is None:
            why = "the node has no lock"
        listed.refuse(f"{why}: only kernel, driver and toolkit are judged", "node", names)
    elif own.drift is None:
        why = "the capture compares no packages: only kernel, driver and toolkit are judged"
        listed.refuse(why, "node", names)
    else:
        packages = _installed(lock, dict(own.drift))
    stack = [item for item in packages.values() if not is_kernel(item.source)]
    held: frozenset[str] = frozenset()
    if lock is not None:
        held = lock.held
    for base in (False, True):
        chosen = (item for item in stack if (item.name not in held) is base)
        for component in _grouped(chosen, system, base=base):
            listed.add(component, "node", names)
    locked = lock.driver_version if lock is not None and packages else None
    if own.driver is not None:
        other = locked if locked != own.driver else None
        listed.add(ProductComponent(DRIVER, own.driver, other), "node", names)
    elif locked is not None:
        listed.add(ProductComponent(DRIVER, locked, loaded=False), "node", names)


def _installed(lock: CarrierContents, drift: Mapping[str, str | None]) -> dict[str, CarriedPackage]:
    """Return the packages of a lock as they are on a node."""
    packages = {}
    for item in lock.packages:
        if item.name not in drift:
            packages[item.name] = item
        else:
            have = drift[item.name]
            if have is None:
                continue
            own = have if item.source_version is not None else None
            packages[item.name] = replace(item, version=have, source_version=own)
    return packages


def _kernels(
    node: NodeFacts, listed: Inventory, modules: Set[str]
) -> tuple[KernelComponent, OtherKernels] | str:
    """Return the kernels of a node, or why they are not judged."""
    if node.running is None:
        return "the capture names no running kernel"
    candidates = listed.releases.get(node.running, ())
    version = kernel_version(node.running, node.built)
    if version is not None:
        sources = {source for source, own in candidates if own == version} or {
            _kernel_source(version)
        }
        candidates = tuple((source, version) for source in sorted(sources))
    if not candidates:
        return f"the running kernel {node.running} does not print its package, and no lock has it"
    loaded = None if node.modules is None else frozenset(node.modules & modules)
    # A kernel that no lock knows is never called good or affected.
    others = {
        release
        for release in (*node.installed, node.next_boot)
        if release is not None and release != node.running and release in listed.releases
    }
    next_boot = node.next_boot if node.next_boot in others else None
    return (
        KernelComponent(
            node.system,
            release=node.running,
            running=candidates,
            loaded=loaded,
            denied=node.denied & modules,
            absent=node.absent & modules,
        ),
        OtherKernels(tuple(sorted(others)), next_boot),
    )


def _kernel_source(version: str) -> str:
    """Return the source package of a kernel by its version. A newer kernel for an older release is in one of its own."""
    if "~deb" in version:
        series = ".".join(version.split(".")[:2])
        return f"linux-{series}"
    return "linux"


class Matcher:
    """Judges components by feeds. `wanted` are the vulnerabilities that are asked about, None for all."""

    def __init__(
        self, feeds: Sequence[Feed], wanted: Set[str] | None = None, modules: Set[str] = frozenset()
    ) -> None:
        self.feeds, self.wanted, self.modules = feeds, wanted, modules
        self._known: dict[tuple[int, OsRelease | None, _Candidates], dict[str, _Answer]] = {}
        # Equal answers are one object, so that vulnerabilities with the same answers are recognized by identity.
        self._same: dict[ClaimAnswer, ClaimAnswer] = {}

    def verdicts(self, component: Component) -> Iterator[CveVerdict]:
        """Yield the verdicts of a component, one for each vulnerability and feed that has a claim."""
        for feed in self.feeds:
            if isinstance(component, WheelComponent):
                claims: Mapping[str, AdvisoryClaim] = {}
                if isinstance(feed.source, OsvRecords):
                    claims = feed.source.wheels(component.source)
            else:
                claims = feed.source.claims(component.system, component.source)
            for claim in self._wanted(claims):
                verdict = _verdict(claim, feed.kind, _judged(component, claim))
                if isinstance(component, ProductComponent):
                    verdict = _of_product(verdict, component, claim)
                yield verdict

    def kernels(self, listed: Inventory) -> Iterator[KernelFleet]:
        """Yield each running kernel with the answers of each feed."""
        for kernel, others in listed.kernels.items():
            releases = sorted({release for one in others for release in one.installed})
            for feed in self.feeds:
                answers = self._answers(feed, kernel.system, kernel.running)
                rows = {
                    release: self._answers(feed, kernel.system, listed.releases[release])
                    for release in releases
                }
                yield KernelFleet(
                    kernel,
                    feed.kind,
                    answers=answers,
                    others=rows,
                    nodes=others,
                    modules=self.modules,
                )

    def _wanted(self, claims: Mapping[str, AdvisoryClaim]) -> Iterable[AdvisoryClaim]:
        if self.wanted is None:
            return claims.values()
        return [claims[name] for name in self.wanted if name in claims]

    def _answers(
        self, feed: Feed, system: OsRelease | None, rows: _Candidates
    ) -> Mapping[str, _Answer]:
        """Return the answers for a kernel that may be of several package versions, by vulnerability.

        Many nodes have the same kernels, so that the answers are stored.
        """
        key = (id(feed), system, rows)
        known = self._known.get(key)
        if known is not None:
            return known
        by_cve: dict[str, list[_Answer]] = {}
        for source, version in rows:
            for claim in self._wanted(feed.source.claims(system, source)):
                by_cve.setdefault(claim.cve, []).append((claim, claim.judge(version)))
        answers = {}
        for cve, given in sorted(by_cve.items()):
            claim, judged = _agreed(given, rows)
            answers[cve] = claim, self._same.setdefault(judged, judged)
        self._known[key] = answers
        return answers


class KernelNodes(NamedTuple):
    """Nodes of one running kernel in the same state. `note` follows what is known of the running kernel."""

    state: str
    note: str
    names: list[str]


@dataclass(frozen=True)
class KernelFleet:
    """The nodes that run one kernel, with the answers of one feed for it and for the other kernels that they have.

    Nodes differ in the other kernels alone. Vulnerabilities that are fixed in the same of these split the nodes in
    the same way, so that each split is made once.
    """

    kernel: KernelComponent
    feed: str
    answers: Mapping[str, _Answer]
    others: Mapping[str, Mapping[str, _Answer]]  # by release
    nodes: Mapping[OtherKernels, list[str]]
    modules: Set[str]
    _states: dict[tuple[ClaimState, tuple[str, ...]], list[KernelNodes]] = field(
        default_factory=dict
    )

    def tables(self) -> Iterator[Mapping[str, _Answer]]:
        """Yield all answers that the states depend on. Fleets share those of the same kernel."""
        yield self.answers
        yield from self.others.values()

    def runs(self, cve: str) -> str:
        """Return what is known of the running kernel. Raise KeyError if there is no answer."""
        return f"kernel {self.kernel.release} runs: {self.answers[cve][1].why}"

    def states(self, cve: str) -> list[KernelNodes]:
        """Return the nodes by their state for a vulnerability. Raise KeyError if there is no answer."""
        state = self.answers[cve][1].state
        chosen: tuple[str, ...] = ()
        if state is not ClaimState.UNKNOWN:
            test = _is_good if state is ClaimState.AFFECTED else _is_affected
            chosen = tuple(release for release, rows in self.others.items() if test(rows.get(cve)))
        known = self._states.get((state, chosen))
        if known is None:
            known = self._states[state, chosen] = self._split(state, frozenset(chosen))
        return known

    def _split(self, state: ClaimState, chosen: Set[str]) -> list[KernelNodes]:
        """Return the nodes by their state, by the chosen ones among their other kernels."""
        groups: dict[tuple[tuple[str, ...], str | None], list[str]] = {}
        for others, names in self.nodes.items():
            next_boot = others.next_boot if others.next_boot in chosen else None
            installed: tuple[str, ...] = ()
            if state is ClaimState.AFFECTED:
                installed = tuple(release for release in others.installed if release in chosen)
            groups.setdefault((installed, next_boot), []).extend(names)
        merged: dict[tuple[str, str], list[str]] = {}
        for (installed, next_boot), names in groups.items():
            own, note = _OF_JUDGEMENT[state], ""
            if state is ClaimState.AFFECTED:
                own, note = self._affected(installed, next_boot)
            elif next_boot is not None:
                own = CarrierState.NEXT_BOOT
                note = f"; the next boot takes {next_boot}, which is affected"
            merged.setdefault((own.value, note), []).extend(names)
        return [KernelNodes(*key, names=sorted(names)) for key, names in merged.items()]

    def _affected(self, good: Sequence[str], next_boot: str | None) -> tuple[CarrierState, str]:
        """Return the state of nodes whose kernel is affected, by the kernels with the fix that are installed."""
        loaded = self.kernel.loaded
        if good:
            boots = ", and is the next to boot" if next_boot is not None else ""
            note = f"; {', '.join(good)} with the fix is installed and not booted{boots}"
            return CarrierState.FIX_NOT_BOOTED, note
        if loaded:
            return CarrierState.AFFECTED, f"; module {', '.join(sorted(loaded))} is loaded"
        if self.modules and loaded is not None:
            listed = ", ".join(sorted(self.modules))
            if self.modules <= self.kernel.absent:
                return CarrierState.NOT_BUILT, f"; the kernel does not have {listed}"
            if self.modules <= self.kernel.denied | self.kernel.absent:
                note = f"; {listed} is not loaded, and modprobe does not load it on the node"
                return CarrierState.DENIED, note
            note = f"; {listed} is not among the loaded modules, and can be loaded"
            return CarrierState.NOT_LOADED, note
        return CarrierState.AFFECTED, ""


def _is_good(answer: _Answer | None) -> bool:
    return answer is not None and answer[1].state in (ClaimState.FIXED, ClaimState.NOT_AFFECTED)


def _is_affected(answer: _Answer | None) -> bool:
    return answer is not None and answer[1].state is ClaimState.AFFECTED


def _agreed(answers: Sequence[_Answer], rows: _Candidates) -> _Answer:
    """Return the answer for all candidates: unknown unless all agree."""
    claim, first = answers[0]
    if len({judged.state for _, judged in answers}) == 1:
        return claim, first
    versions = ", ".join(version for _, version in rows)
    why = f"it may be of {versions}, and not all have the fix"
    return claim, ClaimAnswer(ClaimState.UNKNOWN, why, first.fixed)


def _judged(
    component: PackageComponent | ProductComponent | WheelComponent, claim: AdvisoryClaim
) -> ClaimAnswer:
    if component.version is None:
        return ClaimAnswer(
            ClaimState.UNKNOWN,
            f"{component.source} is a source whose packages have versions of their own: the lock does not have it",
        )
    judged = claim.judge(component.version)
    if (
        isinstance(component, PackageComponent)
        and component.base
        and judged.state is ClaimState.AFFECTED
    ):
        return replace(
            judged,
            state=ClaimState.UNKNOWN,
            why=f"{judged.why}; nodes update it by themselves, and a capture does not list it",
        )
    return judged


def _of_product(verdict: CveVerdict, product: ProductComponent, claim: AdvisoryClaim) -> CveVerdict:
    """Return the verdict on a driver by what is loaded, if that is affected."""
    if verdict.state is not CarrierState.AFFECTED:
        return verdict
    if not product.loaded:
        why = f"{verdict.why}; its module is not loaded"
        return replace(verdict, state=CarrierState.NOT_LOADED, why=why)
    if product.installed is not None and claim.judge(product.installed).state is ClaimState.FIXED:
        why = f"{verdict.why}; {product.installed} is installed, and the old module is still loaded"
        return replace(verdict, state=CarrierState.FIX_NOT_BOOTED, why=why)
    return verdict


def _verdict(claim: AdvisoryClaim, feed: str, judged: ClaimAnswer) -> CveVerdict:
    return CveVerdict(
        claim.cve,
        state=_OF_JUDGEMENT[judged.state],
        feed=feed,
        severity=claim.severity,
        summary=claim.summary,
        fixed=judged.fixed,
        word=judged.word,
        why=judged.why,
    )


def shown_package(component: Component | KernelComponent) -> tuple[str, str]:
    """Return package and version of a component for a reader."""
    if isinstance(component, PackageComponent):
        if component.names == (component.source,):
            return component.source, component.shown
        names = ", ".join(component.names[:_NAMES]) + and_more(len(component.names) - _NAMES)
        return f"{component.source} ({names})", component.shown
    if isinstance(component, KernelComponent):
        return "linux", "/".join(dict.fromkeys(version for _, version in component.running))
    return component.source, component.version
