"""Implementation of `goldnode check`: from the command line's arguments to a report."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
from collections.abc import Sequence
from pathlib import Path

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import AUTO
from goldnode.classdoc.findings import check_decisions, workloads_of_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import host_of_stack, read_class
from goldnode.compat import known_bad, rules_host
from goldnode.compat.check import check, settle
from goldnode.compat.model import CompatFinding, CompatHost, DeclaredAt, Workload
from goldnode.compat.report import CompatReport
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import (
    CatalogError,
    FactsError,
    GoldnodeError,
    InventoryError,
    WorkloadError,
)
from goldnode.core.site import Site, load_site
from goldnode.inventory.listing import hosts_of_group, listed
from goldnode.inventory.selection import check_inventory, put_right
from goldnode.inventory.variables import UnknownVariables, check_written
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import phrase


@dataclass(frozen=True)
class CheckRequest:
    """The subjects of a check, by name. `limit` selects hosts of the inventories, as for Ansible.

    `python` is the version that installs the requirements.
    """

    classes: Sequence[str] = ()
    stacks: Sequence[str] = ()
    inventories: Sequence[str] = ()
    limit: str | None = None
    images: Sequence[str] = ()
    requirements: Sequence[Path] = ()
    model: str | None = None  # the GPU model of classes that take any (`model: auto`)
    python: str | None = None
    read_wheels: bool = False  # read pinned wheels that the facts do not have


def compatibility_report(
    request: CheckRequest,
    *,
    catalog: Catalog | None = None,
    site: Site | None = None,
    on: dt.date | None = None,
) -> CompatReport:
    """Check the named subjects, with the images and requirements on each; those of the site if nothing is named.

    Raises GoldnodeError for an unknown name or model, an inventory without a host of any class, a catalog
    without classes, and an unreadable image or file.
    """
    faults: list[GoldnodeError] = []
    catalog, site = catalog or load_catalog(faults=faults), site or load_site()
    selected = select(request, catalog, faults)
    named, left_out = selected.classes, selected.left_out
    # Images are read once for each architecture: a registry or an archive is slow.
    given = functools.cache(functools.partial(given_workloads, request))
    subjects: list[tuple[str, DeclaredAt | None]] = []
    findings: list[CompatFinding] = []
    seen: dict[str, tuple[CompatHost, list[Workload]]] = {}
    if request.model is not None:
        require_auto(named, catalog)
    for name in named:
        view = read_class(name, catalog, site, on=on, model=request.model)
        check_decisions(view)
        architecture = view.host.architecture
        own = workloads_of_class(view.entry, architecture)
        seen[name] = view.host, [*own, *given(architecture)]
    everything = [
        *seen.values(),
        *(
            (host, given(host.architecture))
            for host in (host_of_stack(name, catalog, site, on=on) for name in selected.stacks)
        ),
    ]
    for host, workloads in everything:
        subjects.append((host.subject, host.place))
        findings += check(host, workloads)
    findings += _cohorts([pair for pair in selected.cohorts if pair[0] in seen], seen)
    if site.facts is not None:
        findings += rules_host.facts_age(
            site.facts.max_age, on or dt.datetime.now(tz=dt.UTC).date()
        )
    loads = [workload for _, workloads in everything for workload in workloads]
    kinds = {workload.subject: workload.kind for workload in loads}
    return CompatReport(
        subjects,
        findings,
        _not_checked(
            [host for host, _ in everything],
            [name for name, (_, loads) in seen.items() if not loads],
            left_out,
        )
        + list(dict.fromkeys(item.left_out for item in loads if item.left_out))
        + selected.odd
        + not_judged(selected, faults),
        read=list(dict.fromkeys(item.read for item in loads if item.read)),
        faults=selected.faults,
        images=sum(kind == "image" for kind in kinds.values()),
        requirements=sum(kind == "requirements" for kind in kinds.values()),
        unlocked=[
            (name, host.stack, host.unlocked)
            for name, (host, _) in seen.items()
            if host.unlocked is not None and host.stack
        ],
    )


@dataclass(frozen=True)
class SelectedClasses:
    """The classes that a request names, directly or by the hosts of its inventories.

    `cohorts` are pairs of class and cohort, `hosts` the number of hosts by class, `left_out` the hosts of no class,
    and `odd` sentences about their variables. `faults` are the errors of what was asked for and cannot be judged;
    `broken` the classes among it.
    """

    classes: list[str]
    stacks: list[str]
    cohorts: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    hosts: dict[str, int] = dataclasses.field(default_factory=dict)
    left_out: list[str] = dataclasses.field(default_factory=list)
    odd: list[str] = dataclasses.field(default_factory=list)
    faults: list[GoldnodeError] = dataclasses.field(default_factory=list)
    broken: set[str] = dataclasses.field(default_factory=set)

    def cohorts_with_broken(self) -> dict[str, str]:
        """Return cohort -> class, for cohorts with a class that cannot be judged."""
        return {cohort: name for name, cohort in self.cohorts if name in self.broken}


def select(
    request: CheckRequest, catalog: Catalog, faults: Sequence[GoldnodeError]
) -> SelectedClasses:
    """Return the classes to check. If the request names nothing: those of the site, or all if it declares none.

    Raises InventoryError, CatalogError for a catalog without classes, and one of `faults` if nothing else is left.
    """
    named = list(dict.fromkeys(request.classes))
    chosen = SelectedClasses(named, list(dict.fromkeys(request.stacks)))
    for inventory in request.inventories:
        try:
            hosts = hosts_of_inventory(inventory, request.limit, catalog)
        except NoHostError as problem:
            # Hosts may be of classes of a catalog that cannot be read.
            raise catalog.broken.get(("site", None), problem) from None
        for name, cohort in hosts.of_class.values():
            chosen.hosts[name] = chosen.hosts.get(name, 0) + 1
            if cohort is not None:
                chosen.cohorts.append((name, cohort))
        chosen.left_out.extend(hosts.of_no_class)
        chosen.odd.extend(hosts.odd)
    # Each class and cohort once: an inventory of 10,000 hosts has a handful of classes.
    named += [name for name in chosen.hosts if name not in named]
    chosen = dataclasses.replace(chosen, cohorts=list(dict.fromkeys(chosen.cohorts)))
    if not named and not request.stacks and not request.inventories:
        wanted = catalog.classes_of_site() or sorted(catalog.classes)
        named += [name for name in wanted if name in catalog.classes]
        others = len(catalog.classes) - len(named)
        # Otherwise "all classes" would be taken for all of the catalog.
        if others:
            chosen.odd.append(
                f"the {others} class{'es' * (others > 1)} in goldnode's own catalog, which -c names"
            )
        if not named and faults:
            raise faults[0]
        if not named:
            places = ", ".join(str(place) for place in catalog.directories)
            raise CatalogError(
                f"the catalog has no class to check ({places})",
                remedy="declare one, or name a stack with --stack",
            )
        chosen.faults.extend(faults)
    elif faults:
        _exclude_broken(chosen, catalog)
        # Each class is judged by the facts, and a wrong file might have changed its answer.
        chosen.faults.extend(fault for fault in faults if isinstance(fault, FactsError))
    return chosen


def require_auto(names: Sequence[str], catalog: Catalog) -> None:
    """Refuse a GPU model where no class leaves it open. Raises CatalogError."""
    gpus = [catalog.node_class(name).item.gpu for name in names]
    if not any(gpu is not None and gpu.model == AUTO for gpu in gpus):
        raise CatalogError(
            f"--gpu is for classes with `model: auto`, and {few(names) or 'a stack'} is not one",
            remedy="leave --gpu out, or declare `gpu: {model: auto}`",
        )


def _exclude_broken(chosen: SelectedClasses, catalog: Catalog) -> None:
    """Exclude classes and stacks that cannot be used: a broken file stops only what depends on it.

    Raises a fault if nothing else is left, or if the broken file decides which classes there are.
    """
    if ("site", None) in catalog.broken:
        # The site's own names are not known: one that is unknown here may be declared there.
        unknown = {*chosen.classes} - {*catalog.class_names()} or {*chosen.stacks} - {
            *catalog.stacks
        }
        if chosen.left_out or unknown:
            raise catalog.broken["site", None]
    # A list of its own, since `names` gets shorter in the loop.
    for kind, names in (("class", chosen.classes), ("stack", chosen.stacks)):
        for name in [name for name in names if (kind, name) in catalog.broken]:
            names.remove(name)
            chosen.faults.append(catalog.broken[kind, name])
            if kind == "class":
                chosen.broken.add(name)
    if chosen.faults and not chosen.classes and not chosen.stacks:
        raise chosen.faults[0]


# Files that name packages too: how to tell one, and the way to a requirements file.
_OTHER_FORMS = (
    (
        "a Dockerfile",
        re.compile(r"^(?:FROM|RUN) \S", re.MULTILINE),
        "name it Dockerfile, or build the image, and check that: `--image docker:REF`",
    ),
    (
        "a pyproject.toml",
        re.compile(r"^\[(?:project|build-system|tool\.[\w.-]+)\]", re.MULTILINE),
        "name it pyproject.toml, or resolve it first: `pip-compile pyproject.toml`, or `uv export -o requirements.txt`",
    ),
    (
        "an environment of conda",
        re.compile(r"^dependencies: *$", re.MULTILINE),
        "name it environment.yml, or list what is installed: `conda run -n ENVIRONMENT pip freeze > requirements.txt`",
    ),
)


def _require_form(path: Path) -> None:
    """Raise WorkloadError for a file in the form of another, whose name does not show it."""
    from goldnode.compat.project_files import is_project_file

    if is_project_file(path):
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return  # the reader reports it
    for title, pattern, remedy in _OTHER_FORMS:
        if pattern.search(text):
            raise WorkloadError(
                f"this is {title}, and no requirements file by its name", file=path, remedy=remedy
            )


def given_workloads(request: CheckRequest, architecture: str) -> list[Workload]:
    """Return the workloads of the command line, with markers evaluated for `architecture`."""
    if not request.images and not request.requirements:
        return []
    from goldnode.compat import workloads

    for path in request.requirements:
        _require_form(path)
    loads = [
        *(_image(item, architecture) for item in request.images),
        *(
            workload
            for path in request.requirements
            for workload in workloads.of_file(
                path, python=request.python, architecture=architecture
            )
        ),
    ]
    return [_with_code(item) for item in loads] if request.read_wheels else loads


def _image(text: str, architecture: str) -> Workload:
    """Return the workload of `--image TEXT`; registry:REF is read from its registry. Raises a GoldnodeError."""
    from goldnode.compat import workloads

    if not text.startswith("registry:"):
        return workloads.of_text(text)
    # Only this form needs a registry's client.
    from goldnode.images.remote_image import open_repository, read_image

    reference = workloads.parse_reference(text.removeprefix("registry:"))
    repository = open_repository(reference.registry, reference.name)
    image = read_image(repository, reference.digest or reference.tag or "latest", architecture)
    left_out = None
    if image.unread:
        size = sum(image.unread) / 1e9
        left_out = (
            f"{len(image.unread)} layers of {size:.1f} GB, which are over the limit of what is read"
        )
    library = image.library
    layers = workloads.ReadLayers(complete=not image.unread, left_out=left_out)
    if library is not None:
        layers = workloads.ReadLayers(library.version, library.drivers, left_out=left_out)
    return workloads.registry_image(reference.text, image.config, layers)


def _with_code(workload: Workload) -> Workload:
    """Return a workload with the code in its pinned wheels that the facts do not have, read from pip's indexes."""
    from goldnode.facts import wheels
    from goldnode.images.remote_wheel import wheel_code
    from goldnode.images.wheelindex import Index

    index, code = Index(), {}
    for name in workload.uses_gpu:
        version = workload.pins.get(name, "").partition("+")[0]
        known = wheels.gpu_wheel(name, version)
        recorded = known is not None and known.code is not None
        if not version or recorded or wheels.need(name, version) is not None:
            continue
        read = wheel_code(index, name, version, workload.machine)
        if read is not None and read.code is not None:
            code[name] = wheels.GpuWheel(
                name,
                version,
                read.requires,
                code=read.code,
                ptx=read.ptx,
                needs=read.needs,
                source="wheel",
            )
    return dataclasses.replace(workload, code=code)


def _cohorts(
    cohorts: Sequence[tuple[str, str]], seen: dict[str, tuple[CompatHost, list[Workload]]]
) -> list[CompatFinding]:
    members = [
        dataclasses.replace(seen[name][0], cohort=cohort) for name, cohort in dict.fromkeys(cohorts)
    ]
    return settle(
        rules_host.check_cohorts(members, {host.subject: loads for host, loads in seen.values()}),
        None,
    )


def not_judged(selected: SelectedClasses, faults: Sequence[GoldnodeError]) -> list[str]:
    """Return sentences without full stop about wrong catalog files, and about cohorts that depend on them."""
    files = [f"catalog file {fault.file}, which is wrong: {fault.message}" for fault in faults]
    cohorts = [
        f"class {name} in cohort {cohort}"
        for cohort, name in sorted(selected.cohorts_with_broken().items())
    ]
    return [*files, *([few(cohorts)] if cohorts else [])]


def _not_checked(
    hosts: Sequence[CompatHost], without: Sequence[str], left_out: Sequence[str]
) -> list[str]:
    left = []
    if without:
        left.append(f"the workloads of {few(without)}, which name no image and no requirements")
    alone = [host.stack for host in hosts if host.name is None and host.stack]
    if alone:
        left.append(f"GPUs and platforms of {few(alone)}: stacks alone have none")
    unlocked = sorted({host.stack for host in hosts if host.unlocked and host.stack})
    if unlocked:
        left.append(f"exact versions of {few(unlocked)}, which have no lock")
    # Rows that need something that no class states; each has its reason.
    never = [row.id for row in known_bad.rows() if row.never is not None]
    left.append(
        f"{len(never)} known bad combinations of things that no class states ({few(never)})"
    )
    if left_out:
        left.append(f"hosts of no class: {few(left_out)}")
    return left


def few(names: Sequence[str], most: int = 6) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


# Inventories


@dataclass(frozen=True)
class InventoryHosts:
    """The hosts of an inventory: class and cohort of hosts in a class, names of the others, odd variables."""

    of_class: dict[str, tuple[str, str | None]]
    of_no_class: list[str]
    odd: list[str] = dataclasses.field(default_factory=list)


class NoHostError(InventoryError):
    """No host of an inventory is of a class of the catalog."""


def hosts_of_inventory(inventory: str, limit: str | None, catalog: Catalog) -> InventoryHosts:
    """Return the hosts of an inventory source as Ansible reads it, with the variable `goldnode_cohort`.

    Raises InventoryError if Ansible cannot read it, or if a host is in two classes or no host is in any. It
    is also raised for a value that `site.yml` would reject.
    """
    from goldnode.inventory.classes import classes_of_hosts

    check_inventory(inventory)
    if Path(inventory).exists():
        # reports a host in two classes, with both lines; Ansible's output has no lines
        classes_of_hosts(Path(inventory), catalog)
    data = listed(inventory, limit)
    variables = data.get("_meta", {}).get("hostvars", {})
    members: dict[str, set[str]] = {}
    everyone = hosts_of_group("all", data, members)
    of_class: dict[str, tuple[str, str | None]] = {}
    unknown = UnknownVariables()
    for name in sorted(set(data) & set(catalog.class_names())):
        for host in sorted(hosts_of_group(name, data, members)):
            if host in of_class:
                raise InventoryError(
                    f'host "{host}" is in the groups of two classes: {of_class[host][0]} and {name}',
                    remedy="keep it in one of the groups",
                )
            cohort = variables.get(host, {}).get("goldnode_cohort")
            # `ansible-inventory --list` prints templates as they are.
            if cohort is not None and "{{" in str(cohort):
                raise InventoryError(
                    f'goldnode_cohort of host "{host}" is a template ({cohort}), which is not evaluated here',
                    remedy="write its value",
                )
            # As text: YAML may have made a number of it.
            of_class[host] = (name, optional(str, cohort))
            check_written(host, variables.get(host, {}))
            unknown.add(host, variables.get(host, {}))
    if not of_class:
        among = phrase(" among those that --limit {} names", limit)
        groups = sorted(set(data) - {"_meta", "all", "ungrouped"})
        raise NoHostError(
            f'inventory "{inventory}" has no host of any class{among} (its groups: '
            f"{few(groups) or 'none'}), so that there is nothing to check",
            remedy=put_right(groups, catalog.class_names()),
        )
    return InventoryHosts(of_class, sorted(everyone - set(of_class)), unknown.lines())
