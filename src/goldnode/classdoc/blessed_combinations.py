"""The blessed matrix: every stack and class of a catalog with its versions, as text, Markdown or HTML.

The engine (`compat.check`) decides the newest versions, one candidate at a time, so the matrix
cannot contradict a check. Dates are judged for the day of the facts, not for today: the same
catalog, locks and facts give the same matrix.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from goldnode.catalog import models
from goldnode.catalog.load import Catalog
from goldnode.classdoc.view import host_of_stack, read_class, read_stack, release_numbers
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.compat.rules_host import unmeasured
from goldnode.core.errors import FactsError
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.facts import module_builds
from goldnode.facts import workload as software
from goldnode.lock.model import Lock
from goldnode.node.ground.text import phrase

NONE = "-"
NOT_MEASURED = "not measured"
_WORDS = {"block": "blocked", "unknown": "not known", "warn": "with limits", "ok": "fits"}
_EXERCISED = {
    "debian-archive": "on Debian's own archive",
    "local-archive": "on a local archive of the same names only",
    "none": "not at all",
}


@dataclass(frozen=True)
class CombinationNote:
    """A footnote: its text, severity (None: a remark), sources, and reservations."""

    severity: str | None
    text: str
    sources: tuple[facts.Origin, ...] = ()
    doubt: str | None = None
    accepted: str | None = None


@dataclass(frozen=True)
class CellSource:
    """The source of a cell: its text, and an address where it has one."""

    text: str
    where: str | None = None


@dataclass(frozen=True)
class CombinationRow:
    """One line of a table: name, cells by column, verdict of a check (`ok`, or the worst), and notes.

    `sources` are those of the cells, by column. `facets` are the values that the page filters by: os, kernel, driver,
    gpu, cuda, framework.
    """

    name: str
    cells: Mapping[str, str]
    verdict: str
    notes: tuple[CombinationNote, ...]
    remarks: tuple[str, ...] = ()
    sources: Mapping[str, CellSource] = field(default_factory=dict)
    facets: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Return the verdict in words."""
        return _WORDS[self.verdict]


@dataclass(frozen=True)
class CombinationTable:
    """A table with its columns in order; `one` is the title of the first column."""

    title: str
    one: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[CombinationRow, ...]


@dataclass(frozen=True)
class CombinationProof:
    """A signed statement about a class: kind, state (current, stale …), since when, on which hardware, and why."""

    kind: str
    state: str
    since: str
    hardware: str
    why: str


@dataclass(frozen=True)
class BlessedCombinations:
    """Both tables, and the date of the facts, which is also the day judged for.

    `proofs` are those of the site, by class; None: its evidence was not read.
    """

    date: dt.date
    tables: tuple[CombinationTable, ...]
    proofs: Mapping[str, Sequence[CombinationProof]] | None = None


def blessed_combinations(catalog: Catalog, site: Site) -> BlessedCombinations:
    """Return the matrix of `catalog`. Raises GoldnodeError for a lock that does not belong to its stack."""
    day = facts.compiled()
    stacks = tuple(_stack(name, catalog, site, day) for name in sorted(catalog.stacks))
    classes = tuple(_class(name, catalog, site, day) for name in sorted(catalog.classes))
    stacks = tuple(_with_classes(row, classes) for row in stacks)
    tables = (
        CombinationTable(
            "Stacks",
            "Stack",
            "Components that are installed and updated together, with the versions of the lock. A stack "
            "without a lock shows its declaration.",
            (
                "OS",
                "Kernel",
                "Driver",
                "Module build",
                "Containers",
                "Support ends",
                "Security",
                "Tried out",
            ),
            stacks,
        ),
        CombinationTable(
            "Classes",
            "Class",
            "Software that runs on the GPUs of a class. CUDA: the newest version that the driver runs natively; "
            "with minor-version compatibility, which needs machine code for the GPU in the binaries; with "
            "NVIDIA's forward-compatibility package in the image. cuDNN, NCCL and PyTorch: the newest version "
            "that a source confirms for it.",
            (
                "Hardware",
                "Stack",
                "CUDA",
                "CUDA, minor",
                "CUDA, forward",
                "cuDNN",
                "NCCL",
                "PyTorch",
                "ROCm",
            ),
            classes,
        ),
    )
    return BlessedCombinations(day, tables)


def _with_classes(stack: CombinationRow, classes: Sequence[CombinationRow]) -> CombinationRow:
    """Return a stack with the facets of the classes that use it: a filter by GPU shows their stacks too."""
    facets = dict(stack.facets)
    for facet in ("gpu", "cuda", "framework"):
        own = {
            row.facets[facet]
            for row in classes
            if row.cells["Stack"] == stack.name and facet in row.facets
        }
        if own:
            facets[facet] = "|".join(sorted(own))
    return replace(stack, facets=facets)


def _stack(name: str, catalog: Catalog, site: Site, day: dt.date) -> CombinationRow:
    stack, host = catalog.stacks[name].item, host_of_stack(name, catalog, site, on=day)
    findings = check(host)
    lock = read_stack(catalog.stacks[name], site, on=day).lock
    cells = {
        "OS": f"{stack.os.id.capitalize()} {stack.os.version}"
        + ("" if stack.os.architecture == "amd64" else f", {stack.os.architecture}"),
        "Kernel": _kernel(host),
        "Driver": _driver(stack, host),
        "Module build": _module_build(stack, host),
        "Containers": _containers(stack, host),
        "Support ends": _support(stack, day),
        "Security": _security(host),
        "Tried out": _EXERCISED[stack.exercised],
    }
    notes = _notes(findings)
    how = unmeasured(host, host.flavour or "proprietary")
    if cells["Module build"] == NOT_MEASURED and how is not None:
        notes = (*notes, CombinationNote(None, f"Module build: {how}"))
    return CombinationRow(
        name,
        cells,
        _heaviest(findings),
        notes,
        remarks=tuple(stack.limits),
        sources=_stack_sources(stack, host, lock),
        facets=_facets(host),
    )


def _stack_sources(
    stack: models.Stack, host: CompatHost, lock: Lock | None
) -> dict[str, CellSource]:
    """Return the source of each cell of a stack."""
    versions = CellSource("what the stack declares: it has no lock")
    if lock is not None:
        versions = CellSource(f"the lock, resolved on {lock.resolved}")
    sources = {
        "OS": CellSource("the stack's file"),
        "Kernel": versions,
        "Driver": versions,
        "Containers": versions,
        "Support ends": CellSource(stack.end_of_life.source),
        "Tried out": CellSource("the stack's file"),
    }
    build = _measured(host)
    if build is not None:
        sources["Module build"] = _source(build.origins, f"built on {build.date}, {build.compiler}")
    if host.vendor == "nvidia" and host.branch is not None:
        with contextlib.suppress(FactsError):  # the cell is "not known"
            sources["Security"] = _source(facts.security_floor(host.branch).origins)
    return sources


def _source(origins: Sequence[facts.Origin], detail: str = "") -> CellSource:
    """Return the first source of a fact."""
    if not origins:
        return CellSource(detail or "no source")
    first = origins[0]
    where = first.where if (first.where or "").startswith("https://") else None
    return CellSource(f"{first.title}{phrase(', {}', detail)}", where)


def _facets(host: CompatHost) -> dict[str, str]:
    """Return what the page filters a row by."""
    driver = f"{host.vendor} {host.branch or ''}".strip() if host.vendor else "none"
    if host.kernel_module:
        driver = host.kernel_module
    kernel = ".".join(str(host.kernel or "").split("-")[0].split(".")[:2])
    facets = {"os": str(host.os), "kernel": kernel, "driver": driver}
    return {**facets, "gpu": host.gpus[0].sku} if host.gpus else facets


def _kernel(host: CompatHost) -> str:
    if host.unlocked is not None:
        return f"{host.kernel}, not locked"
    exact = ""
    if host.kernel_version and host.kernel_version not in str(host.kernel):
        exact = f" ({host.kernel_version})"
    return f"{host.kernel}{exact}"


def _driver(stack: models.Stack, host: CompatHost) -> str:
    if stack.driver is None:
        return NONE
    if stack.driver.vendor == "amd":
        return f"amdgpu {host.amdgpu}" if host.amdgpu else "amdgpu of the kernel"
    if stack.driver.vendor == "intel":
        return f"{stack.driver.module} of the kernel"
    flavour = phrase(", {} modules", stack.driver.flavour)
    return f"NVIDIA {host.driver or host.branch + '.x' if host.branch else ''}{flavour}"


def _module_build(stack: models.Stack, host: CompatHost) -> str:
    """Return whether the locked driver package was measured to build on the locked kernel."""
    if stack.driver is None or stack.driver.dkms is None:
        return NONE
    if host.driver_package is None or host.kernel is None:
        return "not locked"
    build = _measured(host)
    return f"{build.outcome}, measured on {build.date}" if build is not None else NOT_MEASURED


def _measured(host: CompatHost) -> module_builds.ModuleBuildFact | None:
    """Return the measured build of the host's driver package on its kernel."""
    if host.driver_package is None or host.kernel is None:
        return None
    return module_builds.measured(
        host.driver_package,
        host.flavour or "proprietary",
        host.kernel,
        host.kernel_version,
        host.architecture,
    )


def _containers(stack: models.Stack, host: CompatHost) -> str:
    if stack.runtime is None:
        return NONE
    engine = f"{host.engine} {release_numbers(host.engine_version) or '(not locked)'}"
    toolkit = stack.runtime.toolkit
    if toolkit is None:
        return f"{engine}, without GPUs"
    mode = phrase(", {}", host.toolkit_mode)
    if toolkit.vendor == "amd":
        return f"{engine}, CDI by goldnode"
    return f"{engine}, toolkit {host.toolkit or 'not locked'}{mode}"


def _support(stack: models.Stack, day: dt.date) -> str:
    ends = stack.end_of_life.date
    if ends >= day:
        return str(ends)
    waiver = stack.waiver
    given = ""
    if waiver is not None:
        given = f"; waived until {waiver.expires} for {', '.join(waiver.classes) or 'all'}"
    return f"{ends}, past{given}"


def _security(host: CompatHost) -> str:
    if host.vendor != "nvidia" or host.branch is None:
        return NONE
    try:
        floor = facts.security_floor(host.branch)
    except FactsError:
        return "not known"
    if not floor.fixed:
        if not floor.bulletin:
            return "no fixes"
        return f"no fixes after bulletin {floor.bulletin} ({floor.bulletin_date})"
    if host.driver is None:
        return f"needs {floor.floor}"
    short = facts.numbers(host.driver) < facts.numbers(floor.floor or "")
    if short:
        return f"below {floor.floor}"
    return f"fixed, bulletin {floor.bulletin} ({floor.bulletin_date})"


def _class(name: str, catalog: Catalog, site: Site, day: dt.date) -> CombinationRow:
    item, host = catalog.classes[name].item, read_class(name, catalog, site, on=day).host
    findings = check(host)
    cells = dict.fromkeys(
        ("CUDA", "CUDA, minor", "CUDA, forward", "cuDNN", "NCCL", "PyTorch", "ROCm"), NONE
    )
    cells["Hardware"] = (
        f"{item.gpu.count} x {item.gpu.model}" if item.gpu is not None else "no GPU"
    ) + (", simulated" if item.simulated else "")
    cells["Stack"] = item.stack
    more: list[CombinationNote] = []
    if host.gpus and host.vendor == "nvidia":
        more = _cuda(_Asked(host, findings), cells)
    elif host.gpus and host.vendor == "amd":
        more = _rocm(_Asked(host, findings), cells)
    facets = {**_facets(host), "cuda": cells["CUDA"], "framework": cells["PyTorch"].split()[0]}
    return CombinationRow(
        name,
        cells,
        _heaviest(findings),
        (*_notes(findings), *more),
        sources=_class_sources(cells),
        facets={facet: value for facet, value in facets.items() if value != NONE},
    )


def _class_sources(cells: Mapping[str, str]) -> dict[str, CellSource]:
    """Return the source of each cell of a class."""
    declared = CellSource("the class's file")
    sources = {"Hardware": declared, "Stack": declared}
    for column in ("CUDA", "CUDA, minor", "CUDA, forward"):
        known = software.cudas().get(cells[column])
        if known is not None:
            sources[column] = _source(known.sources)
    for column in ("cuDNN", "NCCL"):
        if cells[column] != NONE:
            sources[column] = _source(software.wheel_sources())
    build = software.torch(cells["PyTorch"].replace(" ", "+")) if cells["PyTorch"] != NONE else None
    if build is not None:
        sources["PyTorch"] = _source(build.sources)
    rocm = software.rocm(cells["ROCm"]) if cells["ROCm"] != NONE else None
    if rocm is not None:
        sources["ROCm"] = _source(rocm.sources)
    return sources


class _Asked:
    """Query the engine about workloads on one host, without the findings about the host itself."""

    def __init__(self, host: CompatHost, known: Sequence[CompatFinding]) -> None:
        self.host, self.known = host, frozenset(known)

    def __call__(self, **stated: Any) -> list[CompatFinding]:
        return [
            finding
            for finding in check(self.host, [Workload("it", **stated)])
            if finding not in self.known
        ]

    def newest(
        self,
        candidates: Iterable[str],
        ask: Callable[[str], Mapping[str, Any]],
        *,
        most: str = "ok",
    ) -> tuple[str | None, list[str]]:
        """Return the first candidate with no finding worse than `most`, and the unknown ones before it."""
        unknown: list[str] = []
        for candidate in candidates:
            reported = _heaviest(self(**ask(candidate)))
            if _RANK.index(reported) <= _RANK.index(most):
                return candidate, unknown
            if reported == "unknown":
                unknown.append(candidate)
        return None, unknown


# An unknown ranks above a warning: the matrix lists versions with limits, but none without a
# source.
_RANK = ("ok", "warn", "unknown", "block")


def _heaviest(found: Iterable[CompatFinding]) -> str:
    return max(
        (finding.severity for finding in found if finding.accepted is None),
        key=_RANK.index,
        default="ok",
    )


def _cuda(ask: _Asked, cells: dict[str, str]) -> list[CombinationNote]:
    notes: list[CombinationNote] = []
    # Newest first: the first candidate that passes is the newest.
    minors = list(reversed(software.cudas()))
    # Without the package: versions that need it have a column of their own.
    native, _ = ask.newest(minors, lambda version: {"cuda": version, "forward_compat": False})
    if native is None:
        return [CombinationNote(None, "No CUDA is known to run natively")]
    cells["CUDA"] = native
    newer = minors[: minors.index(native)]
    limited, _ = ask.newest(
        newer, lambda version: {"cuda": version, "forward_compat": False}, most="warn"
    )
    cells["CUDA, minor"] = limited or NONE
    beyond = newer[: newer.index(limited)] if limited else newer
    forward, open_ = ask.newest(
        beyond, lambda version: {"cuda": version, "forward_compat": True}, most="warn"
    )
    cells["CUDA, forward"] = forward or NONE
    for version, package in ((limited, False), (forward, True)):
        if version is not None:
            notes += _notes(ask(cuda=version, forward_compat=package), sure=True)
    if open_:
        notes.append(
            CombinationNote(
                "unknown",
                f"No source says whether CUDA {_list(open_)} runs with a forward-compatibility package",
            )
        )
    major = native.split(".")[0]
    for library, title in (("cudnn", "cuDNN"), ("nccl", "NCCL")):
        versions = list(reversed(software.wheels(library, major)))
        newest, open_ = ask.newest(
            versions,
            lambda version, library=library: {"cuda": native, library: version},  # type: ignore[misc]
        )
        cells[title] = newest or NONE
        if open_:
            notes.append(
                CombinationNote(
                    "unknown",
                    f"No source says whether {title} {_list(open_)} goes with CUDA {native} on these GPUs",
                )
            )
    newest, open_ = ask.newest(_torch_builds(), _torch, most="warn")
    if newest is not None:  # prefer a build of that version that runs without limits
        same = [build for build in _torch_builds() if build.split("+")[0] == newest.split("+")[0]]
        newest = ask.newest(same, _torch)[0] or newest
    cells["PyTorch"] = (newest or NONE).replace("+", " ")
    if newest is not None:
        notes += _notes(ask(**_torch(newest)), sure=True)
    if open_:
        notes.append(
            CombinationNote(
                "unknown",
                f"No source says whether PyTorch {_list(item.replace('+', ' ') for item in open_)} has "
                "code for these GPUs",
            )
        )
    return notes


def _torch(build: str) -> dict[str, Any]:
    return {"frameworks": {"torch": build}, "forward_compat": False}


@cache
def _torch_builds() -> tuple[str, ...]:
    """Return versions of PyTorch with their CUDA builds ("2.14.1+cu130"), newest first."""
    labels = []
    for version in sorted(software.torch_wheels(), key=facts.numbers, reverse=True):
        row = software.torch_releases().get(".".join(version.split(".")[:2]))
        builds = sorted(row["cuda_builds"], reverse=True) if row is not None else []
        labels += [f"{version}+{build}" for build in builds]
    return tuple(labels)


def _rocm(ask: _Asked, cells: dict[str, str]) -> list[CombinationNote]:
    versions = list(reversed(software.rocms()))
    newest, open_ = ask.newest(versions, lambda version: {"rocm": version}, most="warn")
    cells["ROCm"] = newest or "not known"
    if not open_:
        return []
    return [
        *_notes(ask(rocm=open_[0])),
        CombinationNote("unknown", f"No source says enough of ROCm {_list(open_)} on this node"),
    ]


def _list(versions: Iterable[str]) -> str:
    """Return versions as text, newest first; a long list becomes a range."""
    named = list(versions)
    if len(named) <= 4:
        return ", ".join(named)
    return f"{named[-1]} to {named[0]} ({len(named)} versions)"


def _notes(found: Iterable[CompatFinding], *, sure: bool = False) -> tuple[CombinationNote, ...]:
    """Return findings as footnotes; `sure` leaves out unknowns."""
    return tuple(
        CombinationNote(
            finding.severity,
            finding.message[:1].upper() + finding.message[1:],
            finding.sources,
            finding.doubt,
            finding.accepted,
        )
        for finding in found
        if not (sure and finding.severity == "unknown")
    )


# ---- rendering


def text(shown: BlessedCombinations) -> str:
    """Return the matrix as text for a terminal: a block for each row."""
    return "\n".join(_text_lines(shown)) + "\n"


def _text_lines(shown: BlessedCombinations) -> Iterator[str]:
    yield f"Facts of {shown.date}, judged for that day. Values that no source covers are not known."
    for table in shown.tables:
        width = max(len(column) for column in table.columns)
        yield ""
        yield table.title.upper()
        for row in table.rows:
            yield ""
            yield f"{row.name}: {row.summary}"
            for column in table.columns:
                if row.cells[column] != NONE:
                    yield f"  {column:<{width}}  {row.cells[column]}"
            for note in row.notes:
                yield f"  - {_note_text(note)}"


def _note_text(note: CombinationNote) -> str:
    severity = "accepted" if note.accepted else note.severity
    doubt = phrase(" (doubt: {})", note.doubt)
    accepted = phrase(" Accepted: {}.", note.accepted)
    return f"{severity + ': ' if severity else ''}{note.text}{doubt}.{accepted}"


def markdown(shown: BlessedCombinations) -> str:
    """Return the matrix as a Markdown page."""
    return _render("matrix.md.j2", shown)


@dataclass(frozen=True)
class _BuildRow:
    build: module_builds.ModuleBuildFact
    facets: Mapping[str, str]


def html(shown: BlessedCombinations, builds: Sequence[module_builds.ModuleBuildFact] = ()) -> str:
    """Return the matrix as one self-contained HTML page, with the measured builds of modules."""
    systems = {
        row["codename"]: " ".join(row["name"].lower().split()[:2])
        for row in facts.load("distros.yml")["distributions"]
        if "codename" in row
    }
    rows = [
        _BuildRow(
            build,
            {
                "os": systems.get(build.os, build.os),
                "kernel": ".".join(build.kernel_version.split("-")[0].split(".")[:2]),
                "driver": f"nvidia {build.driver.split('.')[0]}",
            },
        )
        for build in sorted(
            builds, key=lambda one: (one.os, facts.numbers(one.kernel), one.package)
        )
    ]
    return _render("matrix.html.j2", shown, rows)


def _render(name: str, shown: BlessedCombinations, builds: Sequence[_BuildRow] = ()) -> str:
    environment = jinja2.Environment(
        # A missing variable must fail instead of leaving an empty cell.
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = lambda value: str(value).replace("|", "\\|")
    environment.globals.update(said=_note_text, NONE=NONE, words=_WORDS)
    return environment.get_template(name).render(matrix=shown, builds=builds)
