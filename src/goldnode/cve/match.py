"""Match claims with what carries packages.

A component that many nodes share is judged once. It is a package, kernel, driver or toolkit in one version, and
each has the list of its carriers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

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
    UNKNOWN = "unknown"
    FIXED = "fixed"
    NOT_AFFECTED = "not-affected"


ORDER = {state: place for place, state in enumerate(CarrierState)}
OPEN = frozenset(
    {
        CarrierState.AFFECTED,
        CarrierState.FIX_NOT_BOOTED,
        CarrierState.NEXT_BOOT,
        CarrierState.NOT_LOADED,
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
    """The kernels of a node: candidates (source, version) of the running one, of the others by release, and modules.

    `loaded` are those of the modules that were asked about; None: the capture has no list.
    """

    system: OsRelease | None
    release: str
    running: tuple[tuple[str, str], ...]
    installed: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    next_boot: str | None
    loaded: frozenset[str] | None

    source = "linux"


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


Component = PackageComponent | KernelComponent | ProductComponent | WheelComponent
Carrier = tuple[str, str]  # kind and name
_NAMES = 3  # binary packages that a row names
_Candidates = tuple[tuple[str, str], ...]  # source and version


@dataclass
class Inventory:
    """Components with the names of their carriers by kind, and carriers that could not be read with the reason."""

    components: dict[Component, dict[str, list[str]]] = field(default_factory=dict)
    unread: dict[str, list[Carrier]] = field(default_factory=dict)
    systems: dict[OsRelease, list[Carrier]] = field(default_factory=dict)

    def add(self, component: Component, carrier: Carrier) -> None:
        """Add a carrier of a component."""
        kind, name = carrier
        self.components.setdefault(component, {}).setdefault(kind, []).append(name)

    def refuse(self, why: str, carrier: Carrier) -> None:
        """Add a carrier that is not judged, or not as a whole."""
        self.unread.setdefault(why, []).append(carrier)


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
    """Return the components of all carriers. `modules` are the kernel modules that were asked about."""
    listed = Inventory()
    for subject in sorted(carriers.subjects, key=lambda one: one.name):
        _add_subject(listed, subject)
    # In order: the names of a component then need no sorting, which would be done for each vulnerability.
    for node in sorted(nodes, key=lambda one: one.name):
        _add_node(listed, node, carriers, modules)
    return listed


def _add_subject(listed: Inventory, subject: CarrierContents) -> None:
    carrier = (subject.kind, subject.name)
    if subject.unread:
        listed.refuse(subject.unread, carrier)
        return
    if subject.system is not None:
        listed.systems.setdefault(subject.system, []).append(carrier)
    for component in _grouped(subject.packages, subject.system):
        listed.add(component, carrier)
    for name, version in subject.wheels:
        listed.add(WheelComponent(name, version), carrier)
    products = {DRIVER: subject.driver_version, TOOLKIT: subject.toolkit}
    for product, own in products.items():
        if own is not None:
            listed.add(ProductComponent(product, own), carrier)


def _add_node(listed: Inventory, node: NodeFacts, carriers: Carriers, modules: Set[str]) -> None:
    carrier = ("node", node.name)
    if node.system is None:
        listed.refuse("the capture names no release that is known here", carrier)
    else:
        listed.systems.setdefault(node.system, []).append(carrier)
    lock = carriers.locks.get(node.lock or "")
    packages: dict[str, CarriedPackage] = {}
    if lock is None:
        why = "the node's lock is not one of the site's"
        if node.lock is None:
            why = "the node has no lock"
        listed.refuse(f"{why}: only kernel, driver and toolkit are judged", carrier)
    elif node.drift is None:
        listed.refuse(
            "the capture compares no packages: only kernel, driver and toolkit are judged", carrier
        )
    else:
        packages = _installed(lock, dict(node.drift))
    _add_kernel(listed, node, carriers, modules)
    stack = [item for item in packages.values() if not is_kernel(item.source)]
    held = lock.held if lock is not None else frozenset()
    for component in _grouped((item for item in stack if item.name in held), node.system):
        listed.add(component, carrier)
    for component in _grouped(
        (item for item in stack if item.name not in held), node.system, base=True
    ):
        listed.add(component, carrier)
    own = lock.driver_version if lock is not None and packages else None
    if node.driver is not None:
        other = own if own != node.driver else None
        listed.add(ProductComponent(DRIVER, node.driver, other), carrier)
    elif own is not None:
        listed.add(ProductComponent(DRIVER, own, loaded=False), carrier)
    if node.toolkit is not None:
        listed.add(ProductComponent(TOOLKIT, node.toolkit), carrier)


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


def _add_kernel(listed: Inventory, node: NodeFacts, carriers: Carriers, modules: Set[str]) -> None:
    carrier = ("node", node.name)
    if node.running is None:
        listed.refuse("the capture names no running kernel", carrier)
        return
    known = carriers.kernels
    candidates = tuple(sorted(known.get(node.running, ())))
    version = kernel_version(node.running, node.built)
    if version is not None:
        sources = {source for source, own in candidates if own == version} or {
            _kernel_source(version)
        }
        candidates = tuple((source, version) for source in sorted(sources))
    if not candidates:
        listed.refuse(
            f"the running kernel {node.running} does not print its package, and no lock has it",
            carrier,
        )
        return
    others = tuple(
        (release, tuple(sorted(known.get(release, ()))))
        for release in sorted({*node.installed, *([node.next_boot] if node.next_boot else [])})
        if release != node.running
    )
    loaded = None if node.modules is None else frozenset(node.modules & modules)
    listed.add(
        KernelComponent(
            node.system,
            release=node.running,
            running=candidates,
            installed=others,
            next_boot=node.next_boot,
            loaded=loaded,
        ),
        carrier,
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
        self._known: dict[
            tuple[int, OsRelease | None, _Candidates], dict[str, tuple[AdvisoryClaim, ClaimAnswer]]
        ] = {}

    def verdicts(self, component: Component) -> Iterator[CveVerdict]:
        """Yield the verdicts of a component, one for each vulnerability and feed that has a claim."""
        for feed in self.feeds:
            if isinstance(component, KernelComponent):
                yield from self._kernel(component, feed)
                continue
            if isinstance(component, WheelComponent):
                claims: Mapping[str, AdvisoryClaim] = {}
                if isinstance(feed.source, OsvRecords):
                    claims = feed.source.wheels(component.source)
            else:
                claims = feed.source.claims(component.system, component.source)
            for claim in self._wanted(claims):
                verdict = _verdict(claim, feed, _judged(component, claim))
                if isinstance(component, ProductComponent):
                    verdict = _of_product(verdict, component, claim)
                yield verdict

    def _wanted(self, claims: Mapping[str, AdvisoryClaim]) -> Iterable[AdvisoryClaim]:
        if self.wanted is None:
            return claims.values()
        return [claims[name] for name in self.wanted if name in claims]

    def _kernel(self, kernel: KernelComponent, feed: Feed) -> Iterator[CveVerdict]:
        running = self._answers(feed, kernel.system, kernel.running)
        others = [
            (release, self._answers(feed, kernel.system, rows))
            for release, rows in kernel.installed
            if rows
        ]
        runs = f"kernel {kernel.release} runs: "
        for cve, (claim, judged) in running.items():
            state, note = _OF_JUDGEMENT[judged.state], ""
            if state is CarrierState.AFFECTED:
                good = [release for release, answers in others if _is_good(answers.get(cve))]
                state, note = self._affected(kernel, good)
            elif judged.state is not ClaimState.UNKNOWN and any(
                release == kernel.next_boot and _is_affected(answers.get(cve))
                for release, answers in others
            ):
                state = CarrierState.NEXT_BOOT
                note = f"; the next boot takes {kernel.next_boot}, which is affected"
            yield CveVerdict(
                cve,
                state=state,
                feed=feed.kind,
                severity=claim.severity,
                summary=claim.summary,
                fixed=judged.fixed,
                word=judged.word,
                why=f"{runs}{judged.why}{note}",
            )

    def _affected(self, kernel: KernelComponent, good: Sequence[str]) -> tuple[CarrierState, str]:
        """Return the state of a node whose kernel is affected, by the kernels with the fix that are installed."""
        if good:
            boots = ", and is the next to boot" if kernel.next_boot in good else ""
            note = f"; {', '.join(good)} with the fix is installed and not booted{boots}"
            return CarrierState.FIX_NOT_BOOTED, note
        if kernel.loaded:
            return CarrierState.AFFECTED, f"; module {', '.join(sorted(kernel.loaded))} is loaded"
        if self.modules and kernel.loaded is not None:
            listed = ", ".join(sorted(self.modules))
            note = (
                f"; {listed} is not among the loaded modules: it can be loaded, unless it is denied"
            )
            return CarrierState.NOT_LOADED, note
        return CarrierState.AFFECTED, ""

    def _answers(
        self, feed: Feed, system: OsRelease | None, rows: _Candidates
    ) -> Mapping[str, tuple[AdvisoryClaim, ClaimAnswer]]:
        """Return the answers for a kernel that may be of several package versions, by vulnerability.

        Many nodes have the same kernels, so that the answers are stored.
        """
        key = (id(feed), system, rows)
        known = self._known.get(key)
        if known is not None:
            return known
        by_cve: dict[str, list[tuple[AdvisoryClaim, ClaimAnswer]]] = {}
        for source, version in rows:
            for claim in self._wanted(feed.source.claims(system, source)):
                by_cve.setdefault(claim.cve, []).append((claim, claim.judge(version)))
        answers = {cve: _agreed(given, rows) for cve, given in sorted(by_cve.items())}
        self._known[key] = answers
        return answers


def _is_good(answer: tuple[AdvisoryClaim, ClaimAnswer] | None) -> bool:
    return answer is not None and answer[1].state in (ClaimState.FIXED, ClaimState.NOT_AFFECTED)


def _is_affected(answer: tuple[AdvisoryClaim, ClaimAnswer] | None) -> bool:
    return answer is not None and answer[1].state is ClaimState.AFFECTED


def _agreed(
    answers: Sequence[tuple[AdvisoryClaim, ClaimAnswer]], rows: _Candidates
) -> tuple[AdvisoryClaim, ClaimAnswer]:
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


def _verdict(claim: AdvisoryClaim, feed: Feed, judged: ClaimAnswer) -> CveVerdict:
    return CveVerdict(
        claim.cve,
        state=_OF_JUDGEMENT[judged.state],
        feed=feed.kind,
        severity=claim.severity,
        summary=claim.summary,
        fixed=judged.fixed,
        word=judged.word,
        why=judged.why,
    )


def shown_package(component: Component) -> tuple[str, str]:
    """Return package and version of a component for a reader."""
    if isinstance(component, PackageComponent):
        if component.names == (component.source,):
            return component.source, component.shown
        names = ", ".join(component.names[:_NAMES]) + and_more(len(component.names) - _NAMES)
        return f"{component.source} ({names})", component.shown
    if isinstance(component, KernelComponent):
        return "linux", "/".join(dict.fromkeys(version for _, version in component.running))
    return component.source, component.version
