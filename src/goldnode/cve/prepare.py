"""The steps from a vulnerable lock to a disk that boots with the fix, and to container images. Each is done when its state is read, and not before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from goldnode.catalog.load import Catalog
from goldnode.core.errors import FactsError, GoldnodeError
from goldnode.core.site import Site
from goldnode.cve import subjects
from goldnode.cve.image_steps import image_steps, images_of
from goldnode.cve.match import Matcher, inventory
from goldnode.cve.prepare_steps import PrepareStep, StepResult
from goldnode.cve.record import CveRecord, event
from goldnode.cve.report import CveQuestion, build
from goldnode.disks.definition import load_definition
from goldnode.disks.locking import load_disk_lock
from goldnode.disks.locking import lock_file as disk_lock_file
from goldnode.disks.model import BuiltDisk, builds
from goldnode.disks.model import store_directory as disk_directory
from goldnode.disks.requirements import judge_one
from goldnode.facts import module_builds
from goldnode.facts.host import GpuModel, gpu, numbers
from goldnode.facts.module_builds import ModuleBuildFact
from goldnode.images.matrix import load_matrix
from goldnode.images.store import ImageStore, open_store, store_directory
from goldnode.lock.builds import known_builds, results_directory
from goldnode.lock.model import Lock, load_lock
from goldnode.lock.model import lock_file as stack_lock_file

MEASURED_HERE = "`goldnode modules`"  # beginning of the source of a build of this site


@dataclass(frozen=True)
class PrepareRequest:
    """The vulnerability and the class to prepare, with what judges locks."""

    cve: str
    class_: str
    catalog: Catalog
    site: Site
    matcher: Matcher
    at: dt.datetime


# Steps without which nothing is rolled out. Disks are for nodes that are reinstalled, images for jobs.
NEEDED = ("lock", "module")


def steps(request: PrepareRequest) -> list[PrepareStep]:
    """Return the steps of a class, in order. Raises GoldnodeError for an unknown class."""
    stack = request.catalog.node_class(request.class_).item.stack
    entry = request.catalog.stack(stack)

    def lock() -> Lock | None:
        path = stack_lock_file(entry, request.site)
        return load_lock(path) if path is not None else None

    def lock_missing() -> str:
        read = lock()
        if read is None:
            return "there is no lock"
        return _open(request, subjects.of_lock(read, subjects.releases(request.catalog)[stack]))

    chosen = [PrepareStep("lock", ("lock", stack, "--security"), lock_missing)]
    driver = entry.item.driver
    if driver is not None and driver.dkms is not None:

        def module_missing() -> str:
            read = lock()
            if read is None or read.driver_version is None or read.kernel_release is None:
                return "there is no lock with kernel and driver"
            version = next(
                (one.version for one in read.packages if one.name.startswith("linux-image-")), ""
            )
            known = known_builds(
                read.kernel_release,
                version,
                read.driver_version,
                driver,
                results=results_directory(request.site),
            )
            # Nodes that build the module themselves need a build that was measured, wherever that was.
            here = known.source.startswith(MEASURED_HERE)
            if known.outcome == "ok" and (here or request.site.modules == "dkms"):
                return ""
            if known.outcome != "ok":
                return f"{known.reason}; {_alternatives(request, read.kernel_release)}"
            return f"the site wants it prebuilt, and it was not built here: {known.reason}"

        chosen.append(PrepareStep("module", ("modules", "build", stack), module_missing))
    if disk_lock_file(request.class_, load_definition()) is not None:
        chosen += _disk(request, stack)
    return [*chosen, *_images(request)]


def _images(request: PrepareRequest) -> Iterator[PrepareStep]:
    item = request.catalog.node_class(request.class_).item
    if not item.images:
        return
    matrix = load_matrix()
    yield from image_steps(
        images_of(item, matrix, _store), matrix, _store, lambda contents: _open(request, contents)
    )


def _store() -> ImageStore | None:
    """Return the store of images. Opening one creates it."""
    return open_store() if store_directory().is_dir() else None


def _disk(request: PrepareRequest, stack: str) -> list[PrepareStep]:
    name = request.class_

    def locked() -> tuple[str, str]:
        """Return the digest of the disk's lock, and why it does not have the fix."""
        path = disk_lock_file(name, load_definition())
        if path is None:
            return "", "there is no lock of the disk"
        lock = load_disk_lock(path)
        contents = subjects.CarrierContents(
            "disk",
            name,
            subjects.releases(request.catalog)[stack],
            subjects.carried(lock.debs),
            digest=lock.digest,
        )
        return lock.digest, _open(request, contents)

    def built() -> BuiltDisk | None:
        digest = locked()[0]
        made = (disk for disk in builds(disk_directory(), name) if disk.disk_lock == digest)
        return next(made, None)

    def build_missing() -> str:
        return "" if built() is not None else "no disk was built from this lock"

    def boot_missing() -> str:
        disk = built()
        if disk is None:
            return "there is no disk"
        result = judge_one("booted", disk)
        return "" if result.state == "passed" else result.why

    return [
        PrepareStep("disk lock", ("disks", "lock", name), lambda: locked()[1]),
        PrepareStep("disk build", ("disks", "build", name), build_missing),
        PrepareStep("disk boot", ("disks", "verify", name), boot_missing),
    ]


def _open(request: PrepareRequest, contents: subjects.CarrierContents) -> str:
    """Return why something has the vulnerability, or may have it; "" if it does not."""
    carriers = subjects.Carriers()
    carriers.add(contents)
    question = CveQuestion((request.cve,), request.at)
    report = build(question, inventory(carriers, []), request.matcher, [])
    if report.head.no_record:
        return "no data judge it"
    for entry in report.entries():
        for row in entry.open_rows:
            return f"{row.package} {row.version}: {row.why}"
        if not entry.rows:
            return ""
    if report.head.not_judged:
        return report.head.not_judged[0].why
    return ""


def _alternatives(request: PrepareRequest, kernel: str) -> str:
    """Return which measured drivers build on a kernel, of those that support the GPUs of the class."""
    declared = request.catalog.node_class(request.class_).item.gpu
    model = None
    if declared is not None:
        with suppress(FactsError):  # a model of the site that the facts do not have
            model = gpu(declared.model)
    others = building(kernel, model)
    if others:
        return f"on it build: {', '.join(others)}"
    served = f" that supports {model.sku}" if model is not None else ""
    return f"no driver{served} was measured to build on {kernel}: the mitigation stays"


def building(kernel: str, model: GpuModel | None = None) -> list[str]:
    """Return the driver packages that were measured to build on a kernel and support a GPU, newest first."""
    rows = [
        row
        for row in module_builds.builds()
        if row.kernel == kernel
        and row.outcome == "builds"
        and (model is None or _supports(row, model))
    ]
    names = dict.fromkeys(f"{row.driver} ({row.flavour})" for row in rows)
    return sorted(names, key=_numbers, reverse=True)


def _supports(row: ModuleBuildFact, model: GpuModel) -> bool:
    least = min(map(numbers, model.min_driver), default=numbers(model.min_driver_branch or "0"))
    needed = model.open_modules_required if row.flavour == "proprietary" else False
    refused = model.open_modules_supported is False if row.flavour == "open" else False
    return numbers(row.driver) >= least and not needed and not refused


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(" ")[0].split(".") if part.isdigit()]


def run(
    chosen: Sequence[PrepareStep],
    execute: Callable[[Sequence[str]], str] | None,
    record: CveRecord,
    class_: str,
    who: tuple[str, Callable[[], dt.datetime]],
) -> Iterator[StepResult]:
    """Yield each step with its state. With `execute`, missing ones are run in order, until one stays missing.

    `execute` runs a command and returns its last lines. Its exit status does not count: the state is read again.
    """
    by, clock = who
    stopped = False
    for step in chosen:
        why = _read(step)
        if not why:
            yield StepResult(step, "done", "")
        elif stopped or execute is None:
            yield StepResult(step, "waits" if stopped else "missing", why)
            stopped = stopped or execute is None
        else:
            record.add(event(clock(), by, "prepare", "begun", step.name, class_=class_))
            output = execute(step.words)
            why = _read(step)
            if not why:
                record.add(event(clock(), by, "prepare", "proved", step.name, class_=class_))
                yield StepResult(step, "ran", "")
            else:
                stopped = True
                text = f"{step.name}: {why}"
                record.add(event(clock(), by, "prepare", "stopped", text, class_=class_))
                yield StepResult(step, "missing", f"{why}\n{output}".rstrip())


def missing(request: PrepareRequest) -> list[tuple[str, str]]:
    """Return the steps of a class that are not done, each with the reason. Raises GoldnodeError for an unknown class."""
    read = [(step.name, _read(step)) for step in steps(request)]
    return [(name, why) for name, why in read if why]


def _read(step: PrepareStep) -> str:
    try:
        return step.missing()
    except GoldnodeError as problem:
        return f"could not check: {problem.message}"
