"""Measure pairs of driver package and kernel: one build and one record for each, in a clean root.

The root is an overlay of three directories: a builder root of the kernel's release, the kernel's
headers, the driver's source. A record is one file, written at once, so that a run that was killed
continues where it was. A build that ended for a fault of the machine, or for want of a program, has
no record.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from goldnode.catalog.load import Catalog
from goldnode.core import progress, yamlsource
from goldnode.core.errors import FactsError, GoldnodeError, LockError, ModulesError
from goldnode.core.files import cache_directory, replace_file
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.facts import module_builds
from goldnode.facts import site as site_facts
from goldnode.facts.models import MeasuredBuild, module_build_key
from goldnode.lock.builder import (
    BUILD_TIME,
    DKMS_NAMES,
    DKMS_SCRIPT,
    OUT_OF,
    ModuleBuildInputs,
    Say,
    build_environment,
    entering,
    fetch,
    fetch_packages,
    first_error,
    make_root,
    read_log,
)
from goldnode.lock.builds import results_directory
from goldnode.lock.model import find_lock
from goldnode.lock.pairs import (
    ModulePair,
    PairArchives,
    PairDriver,
    PairKernel,
    PairSelection,
    PairSuite,
    compiler_of,
    pairs,
    suites_of,
)
from goldnode.node.ground.text import phrase

_LOG = 200_000  # characters of a log that are stored: its end; its first error is in the record
_LINE = 400  # characters of an error line

_NO_PROGRAM = re.compile(
    r"^.*\b(?:sh|bash|env|make)(?:\[\d+\])?: .*(?:command not found|: not found|: Permission denied)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class PairOutcome:
    """Result of a build before it is judged: the exit status of DKMS, its log, and the modules that should be and are there."""

    status: int
    log: str
    expected: Sequence[str] = ()
    modules: Collection[str] = ()
    compiler: str = "unknown"
    seconds: float = 0.0
    exclusive: str = ""  # what dkms.conf demands of a kernel


@dataclass(frozen=True)
class PairVerdict:
    """The outcome in one word, with the first error line. `machine`: this machine is at fault, and the pair is not judged."""

    outcome: Literal["builds", "fails", "excluded", "machine"]
    line: str | None = None


class PairBuilder(Protocol):
    """Builds pairs. `prepare` is called in order before `build`; builds may run at the same time."""

    def prepare(self, pair: ModulePair) -> None:
        """Fetch what the build needs. Raises LockError if the archives cannot give it."""

    def build(self, pair: ModulePair) -> PairOutcome:
        """Build a pair. Raises ModulesError if the machine is at fault."""

    def stop(self) -> None:
        """End the builds that run."""


def judge(outcome: PairOutcome) -> PairVerdict:
    """Judge a build by its exit status, its log and its modules."""
    log = outcome.log
    if outcome.status == 0:
        missing = [name for name in outcome.expected if name not in outcome.modules]
        if not missing and outcome.modules:
            return PairVerdict("builds")
        return PairVerdict(
            "fails", f"dkms.conf names {', '.join(missing)}, which the build did not give"
        )
    # Before errors of the compiler: a machine that runs out of memory causes those too.
    shortage = OUT_OF.search(log)
    if shortage:
        return PairVerdict("machine", shortage.group(0))
    if "BUILD_EXCLUSIVE directive" in log:
        return PairVerdict(
            "excluded", _shown(f"dkms.conf: {outcome.exclusive or 'BUILD_EXCLUSIVE'}")
        )
    line = first_error(log)
    program = _NO_PROGRAM.search(log)
    # A missing program is the cause only if it comes before the first error.
    if program and (line is None or program.start() < log.find(line)):
        return PairVerdict("machine", _shown(program.group(0)))
    if line is None:
        return PairVerdict(
            "machine", f"dkms ended with status {outcome.status} and named no reason"
        )
    return PairVerdict("fails", _shown(line))


def _shown(line: str) -> str:
    """Return a line without paths of the build directory, quotes of a locale and control characters."""
    text = re.sub(r"/var/lib/dkms/[^/\s]+/[^/\s]+/build/", "", line)
    text = re.sub(r"\x1b\[[0-9;]*[mK]", "", text)
    text = "".join(char if char.isprintable() else " " for char in text).strip()
    return text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"


# -- records


@dataclass(frozen=True)
class PairRecords:
    """The records of a directory: KEY.json, and KEY.log.xz with the end of the build's log."""

    directory: Path

    def read(self) -> dict[tuple[str, ...], MeasuredBuild]:
        """Return all records by key. Raises ModulesError for one that cannot be read."""
        measured = {}
        for path in sorted(self.directory.glob("*.json")) if self.directory.is_dir() else ():
            try:
                record = MeasuredBuild.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                raise ModulesError(
                    f"this record of a build cannot be read: {str(error).splitlines()[0]}",
                    file=path,
                    remedy="remove it: the pair is built again",
                ) from error
            measured[module_build_key(record.model_dump())] = record
        return measured

    def write(self, pair: ModulePair, record: MeasuredBuild, log: str) -> None:
        """Write one record, the log first, so that a record is always whole."""
        replace_file(
            self.directory / f"{pair.file}.log.xz",
            lzma.compress(log[-_LOG:].encode(errors="replace")),
        )
        replace_file(
            self.directory / f"{pair.file}.json", (record.model_dump_json(indent=1) + "\n").encode()
        )


# -- the run


@dataclass
class PairRun:
    """Result of a run: its records, the pairs that failed without a record (with the reason), and those not started."""

    written: list[MeasuredBuild] = field(default_factory=list)
    without: list[tuple[ModulePair, str]] = field(default_factory=list)
    stopped: bool = False


def measure(
    wanted: Sequence[ModulePair],
    builder: PairBuilder,
    records: PairRecords,
    *,
    jobs: int = 1,
    say: Say,
    stop: threading.Event | None = None,
) -> PairRun:
    """Build the pairs, `jobs` at a time, and write a record for each. `stop` ends the run; its builds give no record."""
    run, halted, free = PairRun(), stop or threading.Event(), threading.Semaphore(jobs)
    guard, done = threading.Lock(), 0

    def one(pair: ModulePair) -> None:
        nonlocal done
        try:
            outcome = builder.build(pair)
            verdict = judge(outcome)
            # The stop has killed it: its failure is no result about the pair.
            if halted.is_set() and verdict.outcome != "builds":
                return
            with guard:
                done += 1
                _note(run, records, pair, outcome, verdict)
                say(
                    f"[{done}/{len(wanted)}] {pair}: {_outcome_text(verdict)} ({outcome.seconds:.0f} s)"
                )
        except (ModulesError, LockError, OSError) as problem:
            with guard:
                run.without.append((pair, _reason(problem)))
                say(f"{pair}: no result: {_reason(problem)}")
        finally:
            free.release()

    futures: list[Future[None]] = []
    with ThreadPoolExecutor(jobs) as pool:
        for pair in wanted:
            # Short waits, so that a stop is noticed while all builds run.
            while not free.acquire(timeout=0.5):
                if halted.is_set():
                    break
            if halted.is_set():
                run.stopped = True
                break
            try:
                builder.prepare(pair)
            except (LockError, ModulesError, OSError) as problem:
                free.release()
                with guard:
                    run.without.append((pair, _reason(problem)))
                    say(f"{pair}: no result: {_reason(problem)}")
                continue
            progress.step(f"building {pair}")
            futures.append(pool.submit(one, pair))
    for future in futures:
        future.result()
    run.stopped = run.stopped or halted.is_set()
    return run


def _note(
    run: PairRun, records: PairRecords, pair: ModulePair, outcome: PairOutcome, verdict: PairVerdict
) -> None:
    if verdict.outcome == "machine":
        run.without.append((pair, verdict.line or "the machine is at fault"))
        return
    driver, kernel = pair.driver, pair.kernel
    record = MeasuredBuild(
        package=driver.package,
        version=driver.version,
        driver=driver.upstream,
        flavour=driver.flavour,
        kernel=kernel.release,
        kernel_version=kernel.version,
        architecture=pair.architecture,
        os=kernel.codename,
        outcome=verdict.outcome,
        compiler=outcome.compiler,
        line=verdict.line,
        seconds=round(outcome.seconds, 1),
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        source=module_builds.OWN,
    )
    records.write(pair, record, outcome.log)
    run.written.append(record)


def _reason(problem: Exception) -> str:
    return problem.message if isinstance(problem, GoldnodeError) else str(problem)


def _outcome_text(verdict: PairVerdict) -> str:
    return f"{verdict.outcome}{phrase(': {}', verdict.line)}"


# -- the builder


class OverlayBuilder:
    """Builds in overlays of unpacked packages, below a directory of the cache."""

    def __init__(self, archives: PairArchives, *, jobs: int, cache: Path | None = None) -> None:
        """Raise nothing: `needs_tools` is called before."""
        self.archives = archives
        self._each = max(1, (os.cpu_count() or 1) // jobs)
        self._cache = cache or cache_directory()
        self._place = self._cache / "pairs"
        self._layers: dict[tuple[str, ...], Path] = {}
        self._compilers: dict[str, str] = {}
        self._running: set[subprocess.Popen[str]] = set()
        self._guard = threading.Lock()
        self._place.mkdir(parents=True, exist_ok=True)
        for path in self._place.glob("work-*"):  # of runs that were killed
            if not Path(f"/proc/{path.name.split('-')[1]}").exists():
                shutil.rmtree(path, ignore_errors=True)

    def prepare(self, pair: ModulePair) -> None:
        """Fetch and unpack root, kernel and driver, each once."""
        self._kernel(pair.kernel)
        self._driver(pair.driver, pair.kernel)

    def build(self, pair: ModulePair) -> PairOutcome:
        """Run DKMS in an overlay of the pair's layers."""
        layers = [*self._kernel(pair.kernel), self._driver(pair.driver, pair.kernel)]
        with tempfile.TemporaryDirectory(
            prefix=f"work-{os.getpid()}-", dir=self._place, ignore_cleanup_errors=True
        ) as name:
            work = Path(name)
            for part in ("root", "upper", "work"):
                (work / part).mkdir()
            # overlayfs takes the topmost layer first.
            lower = ":".join(str(layer) for layer in reversed(layers))
            overlay = f"lowerdir={lower},upperdir={work / 'upper'},workdir={work / 'work'}"
            tree, version = dkms_source(layers[-1], pair.driver)
            where = {"name": tree, "version": version, "release": pair.kernel.release}
            script = DKMS_SCRIPT.format(verb="build", options=f"-j {self._each}", **where)
            epoch = 1_600_000_000
            began = time.monotonic()
            named = self._run(
                entering(work / "root", ["/bin/bash", "-c", DKMS_NAMES.format(**where)], overlay),
                epoch,
            )
            done = self._run(entering(work / "root", ["/bin/sh", "-c", script], overlay), epoch)
            seconds = time.monotonic() - began
            built = (work / "upper").glob(
                f"var/lib/dkms/{tree}/{version}/{pair.kernel.release}/*/module/*.ko*"
            )
            return PairOutcome(
                done.returncode,
                log=read_log(work / "upper") or done.stderr,
                expected=named.stdout.split(),
                modules={re.sub(r"\.ko(\.\w+)?$", "", path.name) for path in built},
                compiler=self._compilers[pair.kernel.release],
                seconds=seconds,
                exclusive=kernel_exclusions(layers[-1]),
            )

    def stop(self) -> None:
        """Kill the builds that run; their processes end with them."""
        with self._guard:
            for process in self._running:
                process.kill()

    def _run(self, command: Sequence[str], epoch: int) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            command,
            env=build_environment(epoch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with self._guard:
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=BUILD_TIME)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise ModulesError(
                f"the build did not end within {BUILD_TIME // 60} minutes",
                remedy="run it on a machine that is not busy",
            ) from error
        finally:
            with self._guard:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _kernel(self, kernel: PairKernel) -> list[Path]:
        """Return the layers below a driver: the builder root of the kernel's release, and its headers."""
        key = (kernel.release, kernel.version)
        if (*key, "headers") not in self._layers:
            inputs = self.archives.kernel_inputs(kernel)
            sources = self.archives.sources(kernel.codename)
            names = sorted({*inputs.unpacked, *inputs.installed})
            files = fetch(inputs, names, sources, (), cache=self._cache)
            tar = make_root(inputs, files, kernel.codename, cache=self._cache)
            root = self._unpacked(tar.stem, lambda place: _untar(tar, place))
            self._compilers[kernel.release] = compiler_of(inputs)
            self._layers[(*key, "root")] = root
            self._layers[(*key, "headers")] = self._headers(inputs, files, root)
        return [self._layers[(*key, "root")], self._layers[(*key, "headers")]]

    def _headers(self, inputs: ModuleBuildInputs, files: Mapping[str, Path], root: Path) -> Path:
        hashes = [inputs.packages[name].sha256 for name in inputs.unpacked]
        name = hashlib.sha256("".join([root.name, *hashes]).encode()).hexdigest()[:32]
        return self._unpacked(
            name, lambda place: unpack_layer([files[item] for item in inputs.unpacked], place, root)
        )

    def _driver(self, driver: PairDriver, kernel: PairKernel) -> Path:
        root = self._kernel(kernel)[0]
        key = (driver.download.sha256, root.name)
        if key not in self._layers:
            sources = self.archives.sources(driver.codename)
            files = fetch_packages(
                [driver.download], sources, self.archives.architecture, cache=self._cache
            )
            name = hashlib.sha256("".join(key).encode()).hexdigest()[:32]
            self._layers[key] = self._unpacked(
                name, lambda place: unpack_layer([files[driver.package]], place, root)
            )
        return self._layers[key]

    def _unpacked(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Return a directory of the cache, filled once."""
        target = self._place / name
        if not target.is_dir():
            with tempfile.TemporaryDirectory(
                prefix=f"work-{os.getpid()}-", dir=self._place
            ) as work:
                place = Path(work) / "layer"
                place.mkdir()
                fill(place)
                # Another run may have made the same layer meanwhile; its name is its content.
                with contextlib.suppress(FileExistsError):
                    place.rename(target)
        return target


def _untar(tar: Path, place: Path) -> None:
    _checked(
        ["tar", "-C", str(place), "--numeric-owner", "-xf", str(tar)],
        "the builder root cannot be unpacked",
    )


def unpack_layer(files: Sequence[Path], place: Path, root: Path) -> None:
    """Unpack packages into a layer above `root`, whose links /lib -> usr/lib and the like hold in the layer too."""
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if (root / name).is_symlink():
            target = (root / name).readlink()
            (place / target).mkdir(parents=True, exist_ok=True)
            (place / name).symlink_to(target)
    for file in files:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE
        ) as package:
            _checked(
                ["tar", "-C", str(place), "--keep-directory-symlink", "-x"],
                f"{file.name} cannot be unpacked",
                package,
            )


def _checked(command: list[str], fault: str, source: subprocess.Popen[bytes] | None = None) -> None:
    stdin = source.stdout if source is not None else subprocess.DEVNULL
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ModulesError(
            f"{fault}: {done.stderr.strip()[-300:]}",
            remedy="free space on the disk of the cache, and run again",
        )


def dkms_source(layer: Path, driver: PairDriver) -> tuple[str, str]:
    """Return name and version of the DKMS source in a driver's layer. Raises ModulesError if it has none."""
    for path in sorted(layer.glob("usr/src/*/dkms.conf")):
        text = path.read_text(encoding="utf-8", errors="replace")
        settings = dict(re.findall(r'^PACKAGE_(NAME|VERSION)="?([^"\s$]+)"?', text, re.MULTILINE))
        name = settings.get("NAME", path.parent.name.rpartition("-")[0])
        return name, settings.get("VERSION", path.parent.name.removeprefix(f"{name}-"))
    raise ModulesError(
        f"{driver.name} has no DKMS source in /usr/src",
        remedy="leave it out: name other packages with --driver",
    )


def kernel_exclusions(layer: Path) -> str:
    """Return the lines of dkms.conf that rule kernels out."""
    lines = [
        line.strip()
        for path in layer.glob("usr/src/*/dkms.conf")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if re.match(r"[^#]*(?:BUILD_EXCLUSIVE_|build_exclude)", line)
    ]
    return "; ".join(lines)


# -- `goldnode modules matrix --packages`


@dataclass(frozen=True)
class PairRequest:
    """Request of a measurement: suites (none: those of the catalog's stacks), pairs, and how many builds at a time."""

    suites: Sequence[PairSuite]
    selection: PairSelection
    jobs: int = 1
    offline: bool = False
    again: bool = False


@dataclass(frozen=True)
class PairPlan:
    """The chosen pairs in order, those of them to build, and the records that are there."""

    archives: PairArchives
    chosen: Sequence[ModulePair]
    open: Sequence[ModulePair]
    records: PairRecords


def plan_pairs(asked: PairRequest, catalog: Catalog, site: Site, architecture: str) -> PairPlan:
    """Return the pairs to measure. Those with a record or a fact are left out, unless `again`."""
    suites = list(asked.suites) or suites_of(catalog)
    archives = PairArchives(suites, catalog, site, architecture, offline=asked.offline)
    drivers, kernels = archives.offered()
    chosen = pairs(asked.selection, drivers, kernels, architecture, _of_stacks(catalog, site))
    records = PairRecords(results_directory(site) / "pairs")
    known = set()
    if not asked.again:
        known = {*records.read(), *map(module_build_key, facts.load(module_builds.FILE)["builds"])}
    return PairPlan(archives, chosen, [pair for pair in chosen if pair.key not in known], records)


def _of_stacks(catalog: Catalog, site: Site) -> list[tuple[str, str, str]]:
    """Return driver package, its version and the kernel release of every stack with a lock."""
    rows = []
    for _, stack in sorted(catalog.stacks.items()):
        driver = stack.item.driver
        if driver is None or driver.dkms is None:
            continue
        with contextlib.suppress(
            LockError
        ):  # no lock, no pair; commands that use the lock report it
            lock = find_lock(stack, site)[0]
            rows += [
                (item.name, item.version, lock.kernel_release)
                for item in lock.packages
                if item.name == driver.dkms.package
            ]
    return rows


def write_facts(records: PairRecords, target: Path) -> int:
    """Write the records as a facts file, and return the number of rows.

    The rows of an existing file stay, unless a record replaces them. Rows that goldnode's own facts
    have are left out of any other file.
    """
    own, source, present = rows_of(target)
    rows = {module_build_key(row): row for row in present}
    rows |= {key: record.model_dump() for key, record in records.read().items()}
    if not own:
        known = set(map(module_build_key, facts.own_file(module_builds.FILE)["builds"]))
        rows = {key: row for key, row in rows.items() if key not in known}
    day = max(
        (str(row["date"]) for row in rows.values()),
        default=dt.datetime.now(tz=dt.UTC).date().isoformat(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, module_builds.file_text(list(rows.values()), day, source).encode())
    return len(rows)


def rows_of(file: Path) -> tuple[bool, str, list[dict[str, Any]]]:
    """Return whether a facts file is goldnode's own, the source of its rows, and the rows; none if there is no file.

    Raises FactsError for a file with rows of other sources, which a command that writes it would
    lose.
    """
    own = file.resolve() == (facts.FACTS / module_builds.FILE).resolve()
    source = module_builds.OWN if own else module_builds.SITE
    if not file.exists():
        return own, source, []
    read = yamlsource.read(file, error=FactsError)
    yamlsource.validate(site_facts.model(module_builds.FILE), read, error=FactsError)
    others = sorted(set(read.data["sources"]) - {source})
    if others:
        raise FactsError(
            f"the file has rows of other sources ({', '.join(others)}), which this command would lose",
            file=file,
            remedy="name another file with --facts; a catalog can have several directories",
        )
    return own, source, read.data["builds"]


def architecture() -> str:
    """Return this machine's architecture as dpkg names it: modules are built for it alone."""
    try:
        done = subprocess.run(
            ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ModulesError(
            f"dpkg does not name this machine's architecture: {error}",
            remedy="run on Debian or one of its family",
        ) from error
    return done.stdout.strip()


def report(plan: PairPlan, run: PairRun) -> list[dict[str, str]]:
    """Return one row for each chosen pair: package, version, kernel, outcome, and the reason or first error line."""
    records = {
        **{module_build_key(row): row for row in facts.load(module_builds.FILE)["builds"]},
        **{key: record.model_dump() for key, record in plan.records.read().items()},
    }
    without = {pair.key: why for pair, why in run.without}
    rows = []
    for pair in plan.chosen:
        record = records.get(pair.key, {})
        rows.append(
            {
                "package": pair.driver.package,
                "version": pair.driver.version,
                "kernel": pair.kernel.release,
                "outcome": str(
                    record.get("outcome")
                    or ("no result" if pair.key in without else "not measured")
                ),
                "why": str(record.get("line") or without.get(pair.key, "")),
            }
        )
    return rows


def report_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the rows of `report` as a table in Markdown."""
    head = ["package", "version", "kernel", "outcome", "why"]
    body = [[row[name].replace("|", "\\|") for name in head] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in [head, *body]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def report_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the rows of `report` for a terminal, each reason on its own line."""
    head = ["package", "version", "kernel", "outcome"]
    widths = [
        max(len(name), *(len(row[name]) for row in rows)) if rows else len(name) for name in head
    ]
    lines = [
        "  ".join(name.ljust(width) for name, width in zip(head, widths, strict=True)).rstrip()
    ]
    for row in rows:
        lines.append(
            "  ".join(
                row[name].ljust(width) for name, width in zip(head, widths, strict=True)
            ).rstrip()
        )
        lines += [f"    {row['why']}"] if row["why"] else []
    return "\n".join(lines) + "\n"
