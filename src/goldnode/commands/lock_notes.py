"""Notes on the change from one lock to another, for `goldnode lock --diff FILE --notes`.

They join what a reviewer would look up: the changelogs of the packages that move, the findings of the classes on both
sides, and the vulnerabilities that are fixed, new and open.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from goldnode.catalog.load import Catalog
from goldnode.classdoc.findings import workloads_of_class
from goldnode.classdoc.view import read_class
from goldnode.compat.check import check
from goldnode.compat.finding_diff import FindingChange, finding_changes, severity_of
from goldnode.compat.model import CompatFinding, CompatHost
from goldnode.core.errors import GoldnodeError, LockError
from goldnode.core.files import cache_directory
from goldnode.core.site import Site
from goldnode.cve.feeds import Feed, FeedRequest, load_feeds
from goldnode.cve.lock_changes import (
    LockVulnerabilities,
    LockVulnerability,
    vulnerability_changes,
)
from goldnode.cve.subjects import releases
from goldnode.evidence.changelogs import (
    ChangelogEntry,
    SourceChange,
    SourceNotes,
    notes_of,
    source_changes,
)
from goldnode.facts import host as facts
from goldnode.lock.diff import LockDiff
from goldnode.lock.mirror import Mirror
from goldnode.lock.model import Lock, LockedPackage
from goldnode.node.ground.text import and_more, phrase, shortened

# A screen: lines of a changelog, vulnerabilities and packages that a line names. JSON has all.
_LINES = 3
_NAMES = 4
_WIDTH = 110
# Parts of a kernel that a GPU node uses, as a changelog begins its points: `net/mlx5: …`, `PCI: …`.
_SUBSYSTEMS = {
    "PCI": ("PCI", "PCI/AER", "PCI/ASPM", "PCI/P2PDMA"),
    "IOMMU": ("iommu", "iommu/amd", "iommu/vt-d", "iommu/arm-smmu-v3", "vfio/pci", "vfio"),
    "RDMA and its NICs": ("RDMA", "IB", "net/mlx5", "net/mlx5e", "mlx5", "RDMA/mlx5", "IB/mlx5", "bnxt_en", "ice"),
    "GPU drivers of the kernel": ("drm/amdgpu", "drm/amdkfd", "drm/xe", "drm/i915", "drm/nouveau", "amdkfd"),
    "dma-buf": ("dma-buf", "dma-mapping", "dma-fence"),
    "NVMe": ("nvme", "nvme-pci", "nvmet", "nvme-tcp"),
    "cgroups": ("cgroup", "cgroup/cpuset", "memcg"),
    "memory errors": ("EDAC", "x86/mce", "ras"),
}  # fmt: skip


class PackageFiles(Protocol):
    """Source of package files."""

    def file(self, lock: Lock, package: LockedPackage) -> Path | str:
        """Return the path of the file of a lock, or why there is none."""


@dataclass(frozen=True)
class ArchiveFiles:
    """Package files of the site's mirror, or of a cache; what is missing is fetched from the archives of the lock."""

    catalog: Catalog
    site: Site

    def file(self, lock: Lock, package: LockedPackage) -> Path | str:
        """Return the path of the file, or the fault of its archive."""
        if self.site.mirror is not None:
            store = Mirror.of(self.site)
        else:
            store = Mirror.open(cache_directory() / "packages")
        store.directory.mkdir(parents=True, exist_ok=True)
        faults = store.fetch(
            lock.model_copy(update={"packages": [package]}), self.catalog, self.site
        )
        return faults[0].why if faults else store.path(package.sha256)


@dataclass(frozen=True)
class ClassChange:
    """The findings about one class with both locks. `fault`: the class cannot be judged."""

    name: str
    before: str
    after: str
    changes: tuple[FindingChange, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class LockNotes:
    """All notes on a change. `builds`: whether the driver builds on the kernel of the newer lock."""

    sources: Sequence[SourceNotes]
    classes: Sequence[ClassChange]
    builds: str | None
    vulnerabilities: LockVulnerabilities
    feeds: Sequence[str]

    def data(self) -> dict[str, Any]:
        """Return the notes as plain data."""
        return {
            "changelogs": [_source_data(item) for item in self.sources],
            "classes": [
                {
                    "name": item.name,
                    "before": item.before,
                    "after": item.after,
                    "fault": item.fault or None,
                    "changes": [_finding_data(change) for change in item.changes],
                }
                for item in self.classes
            ],
            "module": self.builds,
            "vulnerabilities": {
                "feeds": list(self.feeds),
                **dataclasses.asdict(self.vulnerabilities),
            },
        }

    def text(self) -> str:
        """Return the notes for a reader: a screen, with the number of what it leaves out."""
        lines = ["changelogs:"] if self.sources else []
        for item in self.sources:
            lines += _source_lines(item)
        lines += ["classes:"] if self.classes else ["classes: none has this stack"]
        for change in self.classes:
            lines += _class_lines(change)
        if self.builds is not None:
            lines.append(f"module: {self.builds}")
        lines += self._vulnerability_lines()
        return "\n".join(lines)

    def _vulnerability_lines(self) -> list[str]:
        lines = [f"vulnerabilities, by {'; '.join(self.feeds)}:"]
        groups = {
            "fixed": self.vulnerabilities.fixed,
            "new": self.vulnerabilities.new,
            "still open": self.vulnerabilities.open,
            "not known": self.vulnerabilities.unknown,
        }
        lines += [f"  {name}: {_vulnerabilities(rows)}" for name, rows in groups.items() if rows]
        named = {cve for item in self.sources if not item.change.back for cve in item.cves}
        known = {row.cve for row in self.vulnerabilities.fixed}
        if named - known:
            lines.append(
                f"  named by changelogs and by none of these: {_names(_newest(named - known))}"
            )
        if len(lines) == 1:
            lines.append("  none in either lock")
        return lines


def notes(
    diff: LockDiff, old: Lock, new: Lock, *, catalog: Catalog, site: Site, feeds: Sequence[str],
    files: PackageFiles | None = None,
) -> LockNotes:  # fmt: skip
    """Return the notes on the change from `old` to `new`. `feeds` are as for `goldnode cve show --feed`.

    Raises GoldnodeError for a feed that cannot be read, and for a site without a usable mirror. A changelog that cannot
    be read and a class that cannot be judged are faults of their notes.
    """
    now = dt.datetime.now(dt.UTC).date()
    system = releases(catalog)[new.stack]
    loaded: list[Feed] = load_feeds(feeds, FeedRequest({system}))
    given = files or ArchiveFiles(catalog, site)
    classes = [name for name, entry in catalog.classes.items() if entry.item.stack == new.stack]
    return LockNotes(
        [
            _source(change, new if not change.back else old, given)
            for change in source_changes(diff)
        ],
        [_class(name, old, new, catalog, site) for name in sorted(classes)],
        _build(new, catalog, site, classes),
        vulnerability_changes(old, new, system, loaded),
        [feed.line(now) for feed in loaded],
    )


def _source(change: SourceChange, lock: Lock, files: PackageFiles) -> SourceNotes:
    why = ""
    for package in change.files:
        deb = files.file(lock, package)
        if isinstance(deb, str):
            why = why or f"{package.name}: {deb}"
            continue
        try:
            noted = notes_of(change, deb)
        except LockError as problem:
            why = why or f"{package.name}: {problem.message}"
            continue
        if noted is not None:
            return noted
        why = why or "none of its package files has a changelog"
    return SourceNotes(change, fault=why)


def _class(name: str, old: Lock, new: Lock, catalog: Catalog, site: Site) -> ClassChange:
    try:
        before, after = (_findings(name, lock, catalog, site) for lock in (old, new))
    except GoldnodeError as problem:
        return ClassChange(name, "unknown", "unknown", fault=problem.message)
    changes = [item for item in finding_changes(before, after) if item.change != "unchanged"]
    return ClassChange(name, severity_of(before), severity_of(after), tuple(changes))


def _findings(name: str, lock: Lock, catalog: Catalog, site: Site) -> list[CompatFinding]:
    view = read_class(name, catalog, site, lock)
    return check(view.host, workloads_of_class(view.entry, view.host.architecture))


def _build(new: Lock, catalog: Catalog, site: Site, classes: Iterable[str]) -> str | None:
    """Return what is known of the driver on the new kernel, for the first class with a driver of NVIDIA."""
    for name in sorted(classes):
        try:
            host: CompatHost = read_class(name, catalog, site, new).host
        except GoldnodeError:
            continue  # reported with its class
        if host.kernel and host.driver and host.flavour is not None:
            known = facts.kernel_build(host.kernel, host.driver, host.flavour, host.driver_package)
            return f"{known.reason} ({known.confidence})"
    return None


def _source_data(item: SourceNotes) -> dict[str, Any]:
    change = item.change
    return {
        "source": change.source,
        "packages": list(change.packages),
        "from": change.was,
        "to": change.now,
        "back": change.back,
        "entries": [_entry_data(entry) for entry in item.entries],
        "news": [_entry_data(entry) for entry in item.news],
        "trimmed": item.trimmed,
        "fault": item.fault or None,
    }


def _entry_data(entry: ChangelogEntry) -> dict[str, Any]:
    return {**dataclasses.asdict(entry), "lines": list(entry.lines), "cves": entry.cves}


def _finding_data(change: FindingChange) -> dict[str, Any]:
    return {
        "change": change.change,
        "before": _side_data(change.before),
        "after": _side_data(change.after),
    }


def _side_data(item: CompatFinding | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "rule": item.rule,
        "row": item.row,
        "severity": item.severity,
        "message": item.message,
    }


def _source_lines(item: SourceNotes) -> list[str]:
    change = item.change
    head = f"  {change.source} {change.was} -> {change.now}"
    if item.fault:
        return [f"{head}: could not be read: {item.fault}"]
    urgencies = Counter(entry.urgency for entry in item.entries if entry.urgency)
    counts = [
        f"{len(item.entries)} {'version' if len(item.entries) == 1 else 'versions'}"
        + (" taken back" if change.back else "")
        + phrase(" (urgency {})", ", ".join(f"{name} {count}" for name, count in urgencies.items()))
    ]
    if item.cves:
        counts.append(f"names {len(item.cves)} CVE{'' if len(item.cves) == 1 else 's'}")
    if item.trimmed:
        counts.append("older ones were removed from the package's changelog")
    lines = [f"{head}: {'; '.join(counts)}"]
    points = [line.strip() for entry in item.entries for line in entry.lines if _is_point(line)]
    lines += [f"    {shortened(line, _WIDTH - 4)}" for line in points[:_LINES]]
    if len(points) > _LINES:
        lines.append(
            f"    and {len(points) - _LINES} more{phrase('; of these {}', _subsystems(points))}"
        )
    for entry in item.news:
        lines.append(
            f"    NEWS of {entry.version}: {shortened(' '.join(line.strip() for line in entry.lines), _WIDTH)}"
        )
    return lines


def _subsystems(points: Sequence[str]) -> str:
    """Return how many points are about what a GPU node uses of a kernel; "" for other packages."""
    prefixes = Counter(point.lstrip("*- ").partition(":")[0] for point in points)
    counts = {name: sum(prefixes[one] for one in ones) for name, ones in _SUBSYSTEMS.items()}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _is_point(line: str) -> bool:
    """Return whether a line begins a point of an entry: it does not continue one, and is no name in brackets."""
    return line.startswith("  * ") or line.startswith("    - ")


def _class_lines(item: ClassChange) -> list[str]:
    if item.fault:
        return [f"  {item.name}: could not be judged: {item.fault}"]
    moved = item.after if item.before == item.after else f"{item.before} -> {item.after}"
    lines = [f"  {item.name}: {moved}{'' if item.changes else ', no finding changes'}"]
    for change in item.changes:
        shown = change.after or change.before
        assert shown is not None  # noqa: S101 - a change has a side
        severity: str = shown.severity
        if change.before is not None and change.before.severity != severity:
            severity = f"{change.before.severity} -> {severity}"
        lines.append(f"    {change.change}: {severity} {shown.rule}: {shown.message}")
    return lines


def _vulnerabilities(rows: Sequence[LockVulnerability]) -> str:
    severities = Counter(row.severity for row in rows)
    worst = ", ".join(f"{name} {count}" for name, count in severities.most_common())
    return f"{len(rows)} ({worst}): {_names(_newest(row.cve for row in rows))}"


def _newest(names: Iterable[str]) -> list[str]:
    """Return vulnerabilities by year and number, the newest first."""
    return sorted(
        names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + and_more(len(names) - _NAMES)
