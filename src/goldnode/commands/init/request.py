"""Implementation of `goldnode init`: questions and their defaults, the files, the check, and the next commands."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from goldnode.catalog.load import Catalog, catalog_directories
from goldnode.catalog.models import AUTO
from goldnode.classdoc.load import load_catalog
from goldnode.commands.check.request import CheckRequest, compatibility_report
from goldnode.compat import report
from goldnode.compat.report import CompatReport
from goldnode.core.errors import CatalogError, GoldnodeError, LockError
from goldnode.core.extras import INCLUDE_DEPS, installed
from goldnode.core.site import load_site
from goldnode.facts import host as facts
from goldnode.fleet.nodes import first_class
from goldnode.fleet.nodes import site_directory as site
from goldnode.fleet.nodes.first_class import NodeGpus, ThisMachine
from goldnode.inventory.classes import classes_of_hosts, expand
from goldnode.lock.model import find_lock

# Text of a question, its default, and what makes a value of the answer or raises GoldnodeError.
Ask = Callable[[str, str, Callable[[str], Any]], Any]

_HOST = re.compile(r"[A-Za-z0-9_.:\[\]-]+")


@dataclass(frozen=True)
class InitAnswers:
    """Answers that the command line gives."""

    hosts: tuple[str, ...] = ()
    local: bool = False
    node_class: str | None = None
    gpu: str | None = None
    stack: str | None = None
    name: str | None = None
    graphics: bool = False
    user: str | None = None


@dataclass(frozen=True)
class InitResult:
    """A site directory that was written, and the check of its class."""

    directory: Path
    contents: site.SiteContents
    stack: str
    written: site.SiteWritten
    report: CompatReport
    next: tuple[tuple[str, str], ...]  # command and its purpose
    notes: tuple[str, ...] = ()  # why site.yml would refuse this machine

    def document(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {
            "directory": str(self.directory),
            "class": self.contents.node_class,
            "stack": self.stack,
            "hosts": list(self.contents.hosts),
            "written": list(self.written.written),
            "unchanged": list(self.written.same),
            "check": report.document(self.report),
            "notes": list(self.notes),
            "next": [command for command, _ in self.next],
        }

    def text(self) -> str:
        """Return the result for a person."""
        lines = [f"wrote {self.directory / name}" for name in self.written.written]
        lines += [f"unchanged {self.directory / name}" for name in self.written.same]
        width = min(60, max(len(command) for command, _ in self.next))
        steps = [f"  {command:<{width}}  # {purpose}" for command, purpose in self.next]
        notes = [f"warning: {note}; site.yml would refuse it." for note in self.notes]
        return "\n".join(
            [*lines, "", report.text(self.report).rstrip(), *notes, "", "Next:", *steps]
        )


def ask(question: str, default: str, convert: Callable[[str], Any]) -> Any:
    """Ask on the terminal until the answer can be used."""

    def value(text: str) -> Any:
        try:
            return convert(text)
        except GoldnodeError as problem:
            raise click.BadParameter(str(problem)) from problem

    return click.prompt(question, default=default, value_proc=value, err=True)


def require_answers(flags: InitAnswers) -> None:
    """Refuse a run that can ask nothing and lacks answers. Raises GoldnodeError."""
    missing = []
    if not flags.hosts and not flags.local:
        missing.append("--host HOST (or --local)")
    if flags.node_class is None and (flags.gpu is None or flags.stack is None):
        missing.append("--class CLASS (or --gpu GPU and --stack STACK)")
    if missing:
        raise GoldnodeError(
            f"there is no terminal to ask on, and these options are missing: {', '.join(missing)}",
            remedy="add them, or use --yes for the defaults",
        )


def run(
    directory: Path, flags: InitAnswers, ask: Ask | None, may_replace: Callable[[Path], bool]
) -> InitResult:
    """Ask for values that the flags leave open, write the directory, and check its class.

    Raises GoldnodeError.
    """
    if flags.node_class is not None and (flags.gpu, flags.stack, flags.name, flags.graphics) != (
        None,
        None,
        None,
        False,
    ):
        raise click.UsageError(
            "--class has its GPUs and its stack: leave --gpu, --stack, --name and --graphics out."
        )
    # Classes of an earlier `init`: its site file is in force only in that directory.
    before = [directory / site.CATALOG] if (directory / site.CATALOG).is_dir() else []
    catalog = load_catalog([*catalog_directories(), *before])
    answer = ask or (lambda question, default, convert: convert(default))
    machine = first_class.this_machine()
    hosts = _hosts(flags, answer, machine)
    here = machine if site.THIS_MACHINE in hosts else None
    node_class, files = _class(flags, answer, catalog, here)
    _prove(catalog, files)
    _require_free(directory / site.INVENTORY, hosts, node_class, catalog)
    contents = site.SiteContents(node_class, hosts, files, flags.user)
    collection = site.collection_installed()
    written = site.write(
        directory,
        site.files(contents, collection=collection),
        may_replace,
        "name another directory, or move it away; `goldnode init --overwrite` replaces it",
    )
    return _checked(directory, contents, written, here, collection=collection)


def _hosts(flags: InitAnswers, ask: Ask, machine: ThisMachine) -> tuple[str, ...]:
    given = (*flags.hosts, *([site.THIS_MACHINE] if flags.local else []))
    if given:
        return hosts_of(" ".join(given))
    click.echo(f"This machine: {machine.text}", err=True)
    question = "Hosts, separated by spaces; localhost is this machine"
    hosts: tuple[str, ...] = ask(question, site.THIS_MACHINE, hosts_of)
    return hosts


def hosts_of(text: str) -> tuple[str, ...]:
    """Return the hosts of a list. Ranges such as gpu[01:08] stay as they are. Raises GoldnodeError."""
    hosts = tuple(dict.fromkeys(re.split(r"[\s,]+", text.strip())))
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise GoldnodeError(
                f'"{host}" is not the name of a host',
                remedy="write names or addresses, separated by spaces",
            )
    return hosts


def _class(
    flags: InitAnswers, ask: Ask, catalog: Catalog, here: ThisMachine | None
) -> tuple[str, dict[str, str]]:
    """Return the class, and its file if the catalog does not have it."""
    if flags.node_class is not None:
        catalog.node_class(flags.node_class)
        return flags.node_class, {}
    default = str(first_class.gpus_of(here)) if here is not None else AUTO

    def gpus_or_class(text: str) -> NodeGpus | str:
        return text.strip() if text.strip() in catalog.classes else first_class.parse_gpus(text)

    question = "GPUs of each host: auto (one NVIDIA card of any model), none, MODEL, COUNT x MODEL, or a class"
    chosen = (
        gpus_or_class(flags.gpu) if flags.gpu is not None else ask(question, default, gpus_or_class)
    )
    if isinstance(chosen, str):
        return chosen, {}
    stacks = first_class.stacks_for(chosen, catalog, here)
    if not stacks:
        raise GoldnodeError(
            f"the catalog has no stack with the driver that {chosen} needs",
            remedy="declare a stack first",
        )
    # To standard error: standard output may be a JSON document.
    if flags.stack is None:
        width = max(map(len, stacks))
        for name in stacks:
            click.echo(f"  {name:<{width}}  {catalog.stacks[name].item.description}", err=True)

    def stack_of(text: str) -> str:
        return catalog.stack(text.strip()).name

    if flags.stack is not None:
        stack = stack_of(flags.stack)
    else:
        stack = ask("OS and stack", stacks[0], stack_of)
    parts = (first_class.GRAPHICS,) if flags.graphics else ()
    return first_class.class_of(chosen, stack, catalog, flags.name, parts)


def _require_free(inventory: Path, hosts: Sequence[str], node_class: str, catalog: Catalog) -> None:
    """Refuse a host that an inventory file of the directory puts into another class. Raises GoldnodeError."""
    taken = classes_of_hosts(inventory, catalog) if inventory.exists() else {}
    for host in (name for pattern in hosts for name in expand(pattern)):
        if taken.get(host, node_class) != node_class:
            raise GoldnodeError(
                f'nothing was written: host "{host}" is in two classes, {taken[host]} there and {node_class} here',
                file=inventory,
                remedy="remove it there, or name another directory",
            )


def _prove(catalog: Catalog, files: Mapping[str, str]) -> None:
    """Read the new files as a part of the catalog, before anything is written. Raises GoldnodeError."""
    # Beside the catalogs of the site, so that names which are declared twice are found too.
    with tempfile.TemporaryDirectory() as place:
        for name, text in files.items():
            path = Path(place) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            load_catalog([*catalog.directories, Path(place)])
        except CatalogError as problem:
            raise GoldnodeError(
                f"nothing was written, since the class cannot be used: {problem.message}",
                remedy=problem.remedy,
            ) from problem


def _checked(
    directory: Path,
    contents: site.SiteContents,
    written: site.SiteWritten,
    here: ThisMachine | None,
    *,
    collection: bool,
) -> InitResult:
    """Check the written directory, as `goldnode check` does there."""
    catalog = load_catalog([*catalog_directories(), directory / site.CATALOG])
    settings = load_site(directory / site.SITE)
    classes_of_hosts(
        directory / site.INVENTORY, catalog
    )  # as site.yml reads it: no host in two classes
    item = catalog.node_class(contents.node_class).item
    auto = item.gpu is not None and item.gpu.model == AUTO
    model = here.gpus[0][0] if here is not None and auto and here.gpus else None
    # A card that the facts do not have is checked as any model.
    request = CheckRequest([contents.node_class], model=model if model in facts.gpus() else None)
    compat = compatibility_report(request, catalog=catalog, site=settings)
    try:
        find_lock(catalog.stacks[item.stack], settings)
        locked = True
    except LockError:
        # Of any kind: the next command resolves it again.
        locked = False
    steps = _next(directory, item.stack, contents, locked=locked, collection=collection)
    notes = () if here is None else first_class.unlike(here, item, catalog.stacks[item.stack].item)
    return InitResult(
        directory,
        contents=contents,
        stack=item.stack,
        written=written,
        report=compat,
        next=tuple(steps),
        notes=tuple(notes),
    )


def _next(
    directory: Path, stack: str, contents: site.SiteContents, *, locked: bool, collection: bool
) -> Sequence[tuple[str, str]]:
    """Return the next commands, each with its purpose."""
    steps = []
    # ansible.cfg and the site file are only found from there.
    if directory.absolute() != Path.cwd():
        steps.append((f"cd {shlex.quote(str(directory))}", "goldnode and Ansible run from here"))
    if not locked:
        steps.append((f"goldnode lock {stack}", "resolve every package of the stack"))
    if not installed("ansible"):
        steps.append(
            (
                f"pipx install --force {INCLUDE_DEPS} 'goldnode[ansible]'",
                "Ansible, which applies the class",
            )
        )
    # Alone it needs neither Ansible's inventory nor SSH.
    if contents.hosts == (site.THIS_MACHINE,):
        steps.append(
            (
                f"sudo {_program('goldnode', full=True)} apply --local",
                "show the plan, ask, and apply it",
            )
        )
        return steps
    run = f"{_program('ansible-playbook')} {shlex.quote(site.playbook(collection=collection))}"
    steps.append((f"{run} --check --diff", "show the changes"))
    steps.append((run, "apply it; this never reboots"))
    return steps


def _program(name: str, *, full: bool = False) -> str:
    """Return a program as a shell finds it: its name if it is in PATH, otherwise its path. `full` always gives the path."""
    sibling = Path(sys.executable).with_name(name)
    path = shutil.which(name)
    same = path is not None and sibling.exists() and Path(path).samefile(sibling)
    if full:  # sudo resets PATH
        return shlex.quote(str(sibling if sibling.exists() else path or name))
    return name if same or not sibling.exists() else shlex.quote(str(sibling))
