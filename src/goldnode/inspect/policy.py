"""Purity policy of purity.yml, and the findings it yields for a view.

A scan reports the files; the policy decides which backend they belong to. Findings are grouped by package and
foreign backend. People read one line per package, with every signal that supports it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from goldnode.core import yamlsource
from goldnode.core.data import data
from goldnode.core.errors import ImageError, nearest
from goldnode.inspect import start
from goldnode.inspect.elf import Elf
from goldnode.inspect.packages import InstalledPackage, InstalledPackages
from goldnode.inspect.scan import Scan, View, shown
from goldnode.node.ground.text import and_more

Severity = Literal["refuse", "warn", "note"]
INSIDE = "!/"
SIGNALS = ("package", "requirement", "file", "needed", "fatbin", "dlopen")
_ORDER: dict[Severity, int] = {"refuse": 0, "warn": 1, "note": 2}  # the worst row comes first
# auditwheel adds eight hex digits of a hash to the names of the libraries it bundles, PyTorch's builds after a dot.
_MANGLED = re.compile(r"[-.][0-9a-f]{8}(?=\.)")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BackendFamily(_Strict):
    """Everything that belongs to a backend; see purity.yml."""

    title: str
    libraries: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    except_paths: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    debs: tuple[str, ...] = ()
    except_debs: tuple[str, ...] = ()
    local_versions: tuple[str, ...] = ()

    # All patterns are joined into one expression, because it is matched against tens of thousands of names.
    @cached_property
    def library(self) -> re.Pattern[str]:
        return _any(self.libraries)

    @cached_property
    def name(self) -> re.Pattern[str]:
        return _any((*self.libraries, *self.files))

    def owns(self, package: InstalledPackage) -> bool:
        """Return whether a package belongs to this backend, by its name or version."""
        if package.kind == "deb":
            return bool(_any(self.debs).match(package.name)) and not _any(self.except_debs).match(
                package.name
            )
        local = package.version.partition("+")[2]
        return self.requires(package.name) or bool(local and _any(self.local_versions).match(local))

    def requires(self, name: str) -> bool:
        """Return whether a wheel of this name belongs to this backend."""
        return bool(_any(self.wheels).match(name))


class Environment(_Strict):
    """Rules for the variables of an image's configuration."""

    required: dict[str, str] = Field(default_factory=dict)
    forbidden: dict[str, str] = Field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()


class Backend(_Strict):
    """Families that are foreign to images of a backend, and its rules for variables."""

    foreign: tuple[str, ...]
    environment: Environment = Field(default_factory=Environment)


class HostOnly(_Strict):
    """Libraries that only the host provides."""

    libraries: tuple[str, ...] = ()
    allowed_in: tuple[str, ...] = ()
    excepted: tuple[str, ...] = Field(default=(), alias="except")


class PurityWaiver(_Strict):
    """Acceptance of a reviewed finding until a date."""

    rule: str
    package: str
    images: str
    owner: str = Field(min_length=1)
    reason: str = Field(min_length=10)
    expires: dt.date
    paths: str = "*"


class Purity(_Strict):
    """Content of purity.yml."""

    format: Literal[1]
    families: dict[str, BackendFamily]
    signals: dict[str, Severity]
    backends: dict[str, Backend]
    host_only: HostOnly = Field(default_factory=HostOnly)
    one_major: dict[str, dict[str, str]] = Field(default_factory=dict)
    instead: dict[str, dict[str, str]] = Field(default_factory=dict)
    waivers: tuple[PurityWaiver, ...] = ()

    @field_validator("signals")
    @classmethod
    def _all_signals(cls, value: dict[str, Severity]) -> dict[str, Severity]:
        if set(value) != set(SIGNALS):
            raise ValueError(f"the signals are {', '.join(SIGNALS)}")
        return value

    def backend(self, name: str) -> Backend:
        """Return the policy of a backend. Raise ImageError for an unknown one."""
        rules = self.backends.get(name)
        if rules is None:
            raise ImageError(f'there is no backend "{name}"', remedy=nearest(name, self.backends))
        return rules


@dataclass(frozen=True)
class PurityFinding:
    """One violation of the policy.

    `evidence` has signal, path and detail of each occurrence. `waived` names who accepted the finding and
    why; empty without a waiver.
    """

    severity: Severity
    rule: str
    path: str
    message: str
    package: str = ""
    required_by: tuple[str, ...] = ()
    remedy: str = ""
    waived: str = ""
    signals: tuple[str, ...] = ()
    evidence: tuple[tuple[str, str, str], ...] = ()


@dataclass
class Inspection:
    """Result of one view.

    `backend` is empty if none was given. Then nothing counts as foreign. `own` has the name of each program that is
    goldnode's own, by its path: it counts as no content of a backend.
    """

    name: str
    backend: str
    findings: list[PurityFinding] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)
    elf_files: int = 0
    own: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return whether nothing refuses the view.

        Without a backend there is no policy to check, so nothing passes.
        """
        return bool(self.backend) and not any(
            row.severity == "refuse" and not row.waived for row in self.findings
        )


def default_policy() -> Path:
    """Return the path of the purity.yml that goldnode ships, next to the matrix."""
    return data("images/containers/purity.yml")


def load(path: Path | None = None) -> Purity:
    """Read the policy. Raise ImageError with file and line of the first error."""
    file = path or default_policy()
    source = yamlsource.read(file, error=ImageError)
    policy = yamlsource.validate(Purity, source, error=ImageError)

    def known(name: str, names: Iterable[str], place: Sequence[str | int], what: str) -> None:
        if name not in names:
            raise ImageError(
                f'there is no {what} "{name}"',
                file=file,
                line=source.line(place),
                remedy=nearest(name, names),
            )

    for name, backend in policy.backends.items():
        for index, foreign in enumerate(backend.foreign):
            known(foreign, policy.families, ("backends", name, "foreign", index), "family")
    for name in policy.one_major:
        known(name, policy.backends, ("one_major", name), "backend")
    for package, choices in policy.instead.items():
        for name in choices:
            known(name, policy.backends, ("instead", package, name), "backend")
    return policy


def inspect(
    view: View,
    policy: Purity,
    backend: str,
    *,
    today: dt.date,
    own: Mapping[str, str] = MappingProxyType({}),
) -> Inspection:
    """Check a view against the policy of `backend`; with `""`, report what it has of each family.

    Waivers that expire before `today` do not apply. `own` names the programs that goldnode ships, by SHA-256.
    """
    packages = InstalledPackages(view)
    inspection = Inspection(
        view.name,
        backend,
        elf_files=sum(row.is_elf for row in view.elf.values()),
        signals=dict.fromkeys(SIGNALS, 0),
        own={path: own[sha256] for path, sha256 in sorted(view.bundles.items()) if sha256 in own},
    )
    if backend:
        rules = policy.backend(backend)
        for family in rules.foreign:
            inspection.findings += _foreign(
                view,
                packages=packages,
                policy=policy,
                backend=backend,
                family_name=family,
                inspection=inspection,
            )
            inspection.findings += _lower_layers(view, policy, backend, family)
        inspection.findings += _majors(view, packages, policy.one_major.get(backend, {}))
        if view.configured:
            inspection.findings += _environment(view, rules.environment)
            inspection.findings += [PurityFinding(**row._asdict()) for row in start.of_start(view)]
    else:
        for family in policy.families:
            rows = _foreign(
                view,
                packages=packages,
                policy=policy,
                backend="",
                family_name=family,
                inspection=inspection,
            )
            inspection.findings += [
                replace(row, severity="note", rule=f"holds-{family}", remedy="") for row in rows
            ]
    inspection.findings += _host_only(view, packages, policy.host_only)
    # The container runtime mounts the driver's libraries, so that they are absent here on purpose.
    provided = _any(policy.host_only.libraries).match
    inspection.findings += [
        PurityFinding(**row._asdict())
        for row in start.missing_libraries(
            view, packages, lambda name: provided(plain(name)) is not None
        )
    ]
    inspection.findings += _compat(view)
    inspection.findings += [
        PurityFinding(
            "refuse",
            "not-scanned",
            shown(path),
            f"{shown(path)} was not read: {shown(why)}",
            remedy="take it out, or replace it by a whole file",
        )
        for path, why in sorted(view.left_out.items())
    ]
    inspection.findings += _unopened(view, packages)
    # An empty tar or a wrong directory would otherwise pass.
    if not view.paths:
        inspection.findings.append(
            PurityFinding(
                "refuse", "not-scanned", "", "there is no file in it", remedy="name what was meant"
            )
        )
    inspection.findings += [
        PurityFinding(
            "warn",
            "damaged-elf",
            shown(path),
            f"{shown(path)} is a damaged ELF file: {row.fault}",
            package=packages.title(path),
        )
        for path, row in sorted(view.elf.items())
        if row.fault
    ]
    inspection.findings = [
        _waived(row, policy.waivers, view.name, today) for row in inspection.findings
    ]
    # Worst first, and in a fixed order: reports of equal images are equal.
    inspection.findings.sort(
        key=lambda row: (_ORDER[row.severity], row.package, row.rule, row.path)
    )
    return inspection


# ----- the five signals


def _foreign(
    view: View,
    packages: InstalledPackages,
    policy: Purity,
    backend: str,
    family_name: str,
    *,
    inspection: Inspection,
) -> list[PurityFinding]:
    family = policy.families[family_name]
    seen: dict[str, list[tuple[str, str, str]]] = {}

    def add(owner: str, signal: str, path: str, what: str) -> None:
        inspection.signals[signal] += 1
        seen.setdefault(owner, []).append((signal, shown(path), shown(what)))

    for package in packages.all.values():
        if family.owns(package):
            add(
                package.key,
                "package",
                package.path,
                f"{package.kind} {package.name} {package.version}",
            )
        for name in package.requires:
            # A requirement that is installed is found as a package. One that is absent would be downloaded
            # by pip.
            if package.kind == "wheel" and family.requires(name) and not packages.has(name):
                add(package.key, "requirement", package.path, name)
    for path, signal, what in _of_scan(view, family):
        # Files in an archive belong to the owner of the archive.
        outer = path.partition(INSIDE)[0]
        if outer not in inspection.own:
            add(packages.owner(outer), signal, path, what)
    return [
        _finding(
            owner, rows=rows, packages=packages, policy=policy, backend=backend, family=family_name
        )
        for owner, rows in seen.items()
    ]


def _of_scan(scan: Scan, family: BackendFamily) -> Iterator[tuple[str, str, str]]:
    """Return path, signal and detail of everything in a scan that belongs to a backend.

    The path of a file in an archive has the path of the archive before INSIDE.
    """
    sections, machines = set(family.sections), set(family.machines)
    match = family.name.match
    for path, entry in scan.paths.items():
        if entry.kind == "f" and match(plain(path.rpartition("/")[2])):
            yield path, "file", path.rpartition("/")[2]
    excepted = _any(family.except_paths).match
    for path, row in scan.elf.items():
        if excepted(path):
            continue
        # A renamed copy: the loader goes by the SONAME once it is loaded.
        if row.soname and match(plain(row.soname)) and not match(plain(path.rpartition("/")[2])):
            yield path, "file", f"{row.soname} by another name"
        # A plug-in of a runtime that also works without this backend is loaded only where the backend is.
        is_plugin = _any(family.plugins).match(plain(path.rpartition("/")[2])) is not None
        for signal, what in _of_elf(row, family, sections, machines):
            yield path, "dlopen" if is_plugin and signal == "needed" else signal, what
    for outer, inner in scan.archives.items():
        for path, signal, what in _of_scan(inner, family):
            yield f"{outer}{INSIDE}{path}", signal, what


def _lower_layers(
    view: View, policy: Purity, backend: str, family_name: str
) -> Iterator[PurityFinding]:
    """Report content of a backend that one layer contains and a later one removes or replaces."""
    family = policy.families[family_name]
    for below in view.below:
        rows = [row for row in _of_scan(below, family) if policy.signals[row[1]] == "refuse"]
        if rows:
            evidence = tuple((signal, shown(path), shown(what)) for path, signal, what in rows[:8])
            paths = list(dict.fromkeys(shown(path) for path, _, _ in rows))
            yield PurityFinding(
                "refuse",
                f"lower-layer-{family_name}",
                paths[0],
                f"{'a lower layer of' if view.configured else 'an earlier part of'} the {backend} image holds "
                f"{family.title}: {_some(paths)}. A later one removes or replaces it, but it is still part "
                "of every pull",
                remedy="remove it in the layer that adds it, or build the image from another base",
                signals=tuple(
                    signal for signal in SIGNALS if any(row[1] == signal for row in rows)
                ),
                evidence=evidence,
            )


def _of_elf(
    row: Elf, family: BackendFamily, sections: set[str], machines: set[str]
) -> Iterable[tuple[str, str]]:
    match = family.library.match
    for name in row.needed:
        if match(plain(name)):
            yield "needed", name
    carried = [name for name in row.device if name in sections]
    if row.machine in machines:
        carried.append(f"it is {row.machine} code")
    if carried:
        yield (
            "fatbin",
            ", ".join(carried[:3]) + (f", {_bytes(row.device_bytes)}" if row.device_bytes else ""),
        )
    # A library name in the data is weak evidence, so it counts only if the file can load libraries.
    if row.loads:
        for name in row.strings:
            if match(plain(name)):
                yield "dlopen", name


_SAYS = {
    "package": "is one of its packages",
    "requirement": "requires",
    "file": "holds",
    "needed": "needs",
    "fatbin": "carries device code",
    "dlopen": "names to load",
}


def _finding(
    owner: str,
    rows: list[tuple[str, str, str]],
    packages: InstalledPackages,
    policy: Purity,
    backend: str,
    *,
    family: str,
) -> PurityFinding:
    by_signal: dict[str, list[tuple[str, str]]] = {}
    for signal, path, what in rows:
        by_signal.setdefault(signal, []).append((path, what))
    signals = tuple(signal for signal in SIGNALS if signal in by_signal)
    # One finding for each package, with the strongest of its signals.
    severity = min((policy.signals[signal] for signal in signals), key=_ORDER.__getitem__)
    package = packages.all.get(owner)
    parts = []
    evidence: list[tuple[str, str, str]] = []
    for signal in signals:
        places = by_signal[signal]
        evidence += [(signal, path, what) for path, what in places[:8]]
        things = list(dict.fromkeys(what for _, what in places))
        files = list(dict.fromkeys(path for path, _ in places))
        if signal == "package":
            parts.append(_SAYS[signal])
        elif signal in ("requirement", "file"):
            parts.append(f"{_SAYS[signal]} {_some(things)}")
        elif signal == "fatbin":
            parts.append(f"{_SAYS[signal]} in {_some(files)} ({things[0]})")
        else:
            parts.append(f"{_SAYS[signal]} {_some(things)} ({_some(files, 2)})")
    if package is not None:
        title = package.title
    elif owner:
        title = f"files in {shown(owner)} without a package"
    else:
        title = "files without a package"
    brought = policy.families[family].title
    says = f"adds {brought} to a {backend} image" if backend else f"holds {brought}"
    # Names in data show what it may load, not that it does.
    if signals == ("dlopen",):
        says = f"may load {brought} by itself"
    strongest = min(
        signals,
        key=lambda signal: (
            _ORDER[policy.signals[signal]],
            signal == "package",
            SIGNALS.index(signal),
        ),
    )
    return PurityFinding(
        severity,
        f"foreign-{family}",
        by_signal[strongest][0][0],
        f"{title} {says}: it {'; '.join(parts)}",
        package="" if package is None else package.title,
        required_by=tuple(packages.required_by(package)) if package is not None else (),
        remedy=_instead(package, packages, policy, backend, severity),
        signals=signals,
        evidence=tuple(evidence),
    )


def _instead(
    package: InstalledPackage | None,
    packages: InstalledPackages,
    policy: Purity,
    backend: str,
    severity: Severity,
) -> str:
    """Return the replacement to suggest.

    It is the package's own entry, otherwise the entry of the nearest package that requires it, otherwise
    general advice.
    """
    if severity != "refuse":
        return "make sure that it also works without those libraries; nothing is refused for this alone"
    if package is None:
        return f"find what put it there, and take it out of the {backend} image"
    todo, seen = [package], {package.key}
    while todo:
        here = todo.pop(0)
        for pattern, choices in policy.instead.items():
            if backend in choices and _any((pattern,)).match(here.name):
                return choices[backend]
        for other in packages.requirers(here):
            if other.key not in seen:
                seen.add(other.key)
                todo.append(other)
    roots = packages.required_by(package)
    if roots:
        return (
            f"use a build of {roots[0].partition(' ')[0]} for {backend}, "
            f"which does not require {package.name}"
        )
    return f"use a build of {package.name} for {backend}, or leave it out of the image"


# ----- other rules


def _majors(
    view: View, packages: InstalledPackages, components: Mapping[str, str]
) -> list[PurityFinding]:
    findings = []
    for title, pattern in components.items():
        match, base = _any((pattern,)).match, pattern.partition(".so")[0]
        number = re.compile(re.escape(base) + r"\.so\.(\d+)")
        majors: dict[str, dict[str, int]] = {}
        for path, row in view.elf.items():
            entry = view.paths[path]
            for name in (plain(path.rpartition("/")[2]), plain(row.soname)):
                if match(name) and (major := number.match(name)):
                    majors.setdefault(major[1], {})[path] = entry.size
                    break
        # Two in one process: symbols of one are bound to the other, which crashes or gives wrong results.
        if len(majors) > 1:
            # As numbers: 9 is before 12.
            order = sorted(majors, key=int)
            says = " and ".join(
                f"{major} ({_some([packages.title(path) or shown(path) for path in majors[major]], 2)})"
                for major in order
            )
            newest = min(majors[order[-1]])
            oldest = min(majors[order[0]])
            owner = packages.all.get(packages.owner(oldest))
            findings.append(
                PurityFinding(
                    "refuse",
                    "two-majors",
                    shown(oldest),
                    f"the image holds {len(majors)} major versions of {title}: {says}",
                    package=packages.title(oldest),
                    required_by=tuple(packages.required_by(owner)) if owner is not None else (),
                    remedy=f"keep one: the one of {packages.title(newest) or shown(newest)}, "
                    f"and builds of the rest that use {title} {order[-1]}",
                    evidence=tuple(
                        ("file", shown(path), title)
                        for major in order
                        for path in sorted(majors[major])[:4]
                    ),
                )
            )
            continue
        # Libraries in `stubs` are only for linking; no loader searches there.
        copies = {
            path.rpartition("/")[0]: size
            for files in majors.values()
            for path, size in files.items()
            if "/stubs/" not in path
        }
        # By size, since the content was not kept: equal copies are harmless.
        if len(set(copies.values())) > 1:
            places = sorted(copies)
            findings.append(
                PurityFinding(
                    "warn",
                    "two-copies",
                    shown(places[0]),
                    f"the image holds different copies of {title} "
                    f"in {_some([shown(place) for place in places])}; the path decides which one is loaded",
                    remedy="keep one of them",
                )
            )
    return findings


def _environment(view: View, rules: Environment) -> list[PurityFinding]:
    findings = []

    def add(name: str, message: str, remedy: str) -> None:
        findings.append(PurityFinding("refuse", "environment", name, message, remedy=remedy))

    for name, wanted in rules.required.items():
        got = view.environment.get(name)
        if got != wanted:
            add(
                name,
                f"the image sets {name} {'not at all' if got is None else f'to {shown(got)!r}'}, "
                f"not to {wanted!r}",
                f"set {name}={wanted}",
            )
    for name, why in rules.forbidden.items():
        if name in view.environment:
            add(
                name, f"the image sets {name}: {why}", f"take {name} out of the image's environment"
            )
    for names in rules.together:
        absent = [name for name in names if name not in view.environment]
        # None of them is fine: they only have a meaning together.
        if absent and len(absent) < len(names):
            add(
                absent[0],
                f"the image sets {' and '.join(name for name in names if name not in absent)} "
                f"without {absent[0]}",
                f"set {absent[0]} too",
            )
    return findings


def _host_only(view: View, packages: InstalledPackages, rules: HostOnly) -> list[PurityFinding]:
    match, allowed, excepted = (
        _any(rules.libraries).match,
        _any(rules.allowed_in).match,
        _any(rules.excepted).match,
    )
    by_owner: dict[str, list[str]] = {}
    for path, entry in view.paths.items():
        name = plain(path.rpartition("/")[2])
        if entry.kind == "f" and match(name) and not excepted(name) and not allowed(path):
            by_owner.setdefault(packages.owner(path), []).append(path)
    findings = []
    for owner, paths in by_owner.items():
        package = packages.all.get(owner)
        names = [shown(path.rpartition("/")[2]) for path in sorted(paths)]
        title = package.title if package is not None else shown(owner) or "no package"
        findings.append(
            PurityFinding(
                "refuse",
                "driver-library",
                shown(sorted(paths)[0]),
                f"{_some(names)} of {title} belong to the driver, which the host provides",
                package="" if package is None else package.title,
                required_by=tuple(packages.required_by(package)) if package is not None else (),
                remedy="take the driver's libraries out of the image; "
                "the container runtime puts the host's in",
                evidence=tuple(("file", shown(path), "") for path in sorted(paths)[:8]),
            )
        )
    return findings


def _compat(view: View) -> list[PurityFinding]:
    """Report forward-compatibility libraries on a search path.

    They shadow a newer driver of the host (errors 803 and 804).
    """
    places = {path: text for path, text in view.texts.items() if path.startswith("etc/ld.so.conf")}
    places |= {"LD_LIBRARY_PATH": view.environment.get("LD_LIBRARY_PATH", "").replace(":", "\n")}
    return [
        PurityFinding(
            "refuse",
            "compat-on-path",
            shown(path),
            f"{shown(path)} names {shown(line.strip())}: "
            "libraries of forward compatibility there hide a newer driver of the host",
            remedy="leave the directory off every search path; "
            "NVIDIA's container toolkit adds it where it is of use",
        )
        for path, text in sorted(places.items())
        for line in text.splitlines()
        if re.search(r"cuda[^/]*/compat/?\s*$", line) and not line.lstrip().startswith("#")
    ]


def _unopened(view: View, packages: InstalledPackages) -> Iterator[PurityFinding]:
    """Report archives of formats that are not read, per format."""
    by_format: dict[str, list[str]] = {}
    for path, form in view.unopened.items():
        by_format.setdefault(form, []).append(path)
    for form, paths in sorted(by_format.items()):
        yield PurityFinding(
            "warn",
            "not-opened",
            shown(min(paths)),
            f"the content of {_some([shown(path) for path in sorted(paths)])} was not read: "
            f"the format ({form}) is not supported",
            package=packages.title(min(paths).partition(INSIDE)[0]),
            remedy="unpack it and inspect its content",
            evidence=tuple(("file", shown(path), form) for path in sorted(paths)[:8]),
        )


def _waived(
    finding: PurityFinding, waivers: Sequence[PurityWaiver], image: str, today: dt.date
) -> PurityFinding:
    for waiver in waivers:
        if (
            finding.severity == "refuse"
            and _any((waiver.rule,)).match(finding.rule)
            and _any((waiver.package,)).match(finding.package.partition(" ")[0])
            and _any((waiver.images,)).match(image)
            and all(
                _any((waiver.paths,)).match(path)
                for _, path, _ in finding.evidence or (("", finding.path, ""),)
            )
        ):
            # An expired waiver is named, so that its owner is found.
            if waiver.expires < today:
                return replace(
                    finding,
                    message=f"{finding.message} (the waiver of {waiver.owner} ended on {waiver.expires})",
                )
            return replace(
                finding, waived=f"{waiver.owner}, until {waiver.expires}: {waiver.reason}"
            )
    return finding


def plain(name: str) -> str:
    """Remove the hash that auditwheel adds to the name of a library."""
    return _MANGLED.sub("", name)


_PATTERNS: dict[tuple[str, ...], re.Pattern[str]] = {}


def _any(patterns: tuple[str, ...]) -> re.Pattern[str]:
    compiled = _PATTERNS.get(patterns)
    if compiled is None:
        compiled = re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)")
        _PATTERNS[patterns] = compiled
    return compiled


def _some(names: Sequence[str], most: int = 3) -> str:
    rows = list(dict.fromkeys(names))
    return ", ".join(rows[:most]) + and_more(len(rows) - most)


def _bytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size / 1024:.0f} KiB"
