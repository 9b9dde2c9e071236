"""Implementation of `goldnode import`: from surveys of a running fleet to files for review.

Proposed are classes, stacks, class groups of an inventory and cohorts; reported are deviations and
what each lock would change. The machines are only read, and no file is overwritten.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.catalog.load import Catalog
from goldnode.core.data import ansible_environment
from goldnode.core.errors import GoldnodeError, LockError
from goldnode.core.extras import require
from goldnode.core.site import Site
from goldnode.fleet.nodes import adopt, runs, site_directory
from goldnode.fleet.nodes.fleet_kinds import FleetDeviation, FleetKind, kinds
from goldnode.fleet.nodes.lock_effect import lock_effect
from goldnode.inventory.cohorts import COHORT
from goldnode.inventory.fleet import RACK
from goldnode.inventory.fleet_sources import FleetHost, FleetSource
from goldnode.lock.model import find_lock
from goldnode.node.ground.text import phrase
from goldnode.node.program.survey import SCHEMA

Survey = Mapping[str, Any]
SURVEYS, REPORT = "import/surveys", "import/report.md"
_TASK_SECONDS = 300  # a driver that hangs must not stop the survey of the others


class ImportFleetError(GoldnodeError):
    """A fleet cannot be imported."""


@dataclass(frozen=True)
class FleetSurveys:
    """The survey of each machine that was reached, and the reason of each that was not."""

    surveys: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LockLine:
    """The changes that the lock of a class would make on these machines, the same on each."""

    node_class: str
    stack: str
    hosts: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass
class FleetProposal:
    """All that is proposed for a fleet, and what a person has to decide."""

    kinds: list[FleetKind]
    proposals: dict[str, adopt.AdoptProposal]
    hosts: Mapping[str, FleetHost]
    unreached: dict[str, str]
    likely: dict[str, str]
    cohorts: dict[str, str]
    locks: list[LockLine]

    def to_json(self) -> dict[str, Any]:
        """Return the proposal for a program."""
        return {
            "classes": [
                {
                    "class": kind.name,
                    "stack": self.proposals[kind.name].stack,
                    "hosts": kind.hosts,
                    "typical": kind.typical,
                    "deviations": [vars(row) for row in kind.deviations],
                    "notes": [*kind.notes, *self.proposals[kind.name].notes],
                }
                for kind in self.kinds
            ],
            "cohorts": self.cohorts,
            "unreached": [
                {
                    "host": name,
                    "reason": reason,
                    "state": self.hosts[name].state,
                    "likely_class": self.likely.get(name),
                }
                for name, reason in sorted(self.unreached.items())
            ],
            "locks": [vars(row) for row in self.locks],
        }


# -- Surveys


def survey_hosts(
    source: FleetSource, options: Sequence[str] = (), user: str | None = None
) -> FleetSurveys:
    """Survey all machines of a source through Ansible, many at once. Nothing is changed on them.

    :param options: further options of ``ansible``.
    :param user: the user of ssh; None: that of the inventory or of ssh.
    """
    require("ansible")
    result = FleetSurveys(
        unreached={host.name: host.unreached for host in source.hosts if host.unreached}
    )
    asked = [host for host in source.hosts if not host.unreached]
    if not asked:
        return result
    environment = {
        **ansible_environment(),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
        "ANSIBLE_TASK_TIMEOUT": str(_TASK_SECONDS),
    }
    with tempfile.TemporaryDirectory() as directory:
        inventory, tree = Path(directory, "hosts.json"), Path(directory, "answers")
        rows = {host.name: {"ansible_host": host.address or host.name} for host in asked}
        inventory.write_text(json.dumps({"all": {"hosts": rows}}), encoding="utf-8")
        command = [
            str(Path(sys.executable).with_name("ansible")),
            *("-i", source.inventory or str(inventory)),
            *("all", "-m", "goldnode_survey", "--tree", str(tree)),
            *(["-u", user] if user else []),
            *options,
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        for host in asked:
            _read_answer(host.name, tree, done, result)
    return result


def _read_answer(
    name: str, tree: Path, done: subprocess.CompletedProcess[str], result: FleetSurveys
) -> None:
    path = tree / name
    answer: dict[str, Any] = {}
    if path.is_file():
        answer = json.loads(path.read_text(encoding="utf-8"))
    survey = answer.get("survey")
    if isinstance(survey, dict) and survey.get("schema") == SCHEMA:
        result.surveys[name] = survey
        return
    reason = answer.get("msg") or runs.first_line(done.stderr) or "Ansible has no answer of it"
    result.unreached[name] = runs.unwrapped(str(reason)).rstrip(".")


def read_surveys(directory: Path, source: FleetSource) -> FleetSurveys:
    """Read saved surveys, one file HOST.json per machine. Raises GoldnodeError for a file that is no survey, or if there is none."""
    result = FleetSurveys()
    for host in source.hosts:
        path = directory / f"{host.name}.json"
        if path.is_file():
            result.surveys[host.name] = adopt.read(path)
        else:
            result.unreached[host.name] = host.unreached or f"it has no survey in {directory}"
    if source.hosts and not result.surveys:
        raise ImportFleetError(
            f"{directory} has a survey of none of {len(source.hosts)} machines, such as {source.hosts[0].name}.json",
            remedy="name the directory import/surveys of the import, or leave --surveys out to survey them now",
        )
    return result


# -- Proposals


def propose_fleet(
    source: FleetSource, surveyed: FleetSurveys, catalog: Catalog, site: Site
) -> FleetProposal:
    """Propose classes, cohorts and deviations for a fleet, and compare it with the locks there are.

    Raises ImportFleetError if no machine was surveyed.
    """
    hosts = {host.name: host for host in source.hosts}
    if not surveyed.surveys:
        name, reason = next(iter(surveyed.unreached.items()), ("no machine", "no reason"))
        if not hosts:
            raise ImportFleetError(
                "the source lists no machine", remedy="write one name a line into it"
            )
        raise ImportFleetError(
            f"none of {len(hosts)} machines was surveyed; {name}: {reason}",
            remedy="check ssh with one of them, give --become or --user, or name an inventory with its connections",
        )
    classes: list[FleetKind] = []
    proposals: dict[str, adopt.AdoptProposal] = {}
    unreached = dict(surveyed.unreached)
    for kind in kinds(surveyed.surveys, hosts):
        try:
            proposals[kind.name] = adopt.propose(
                surveyed.surveys[kind.typical],
                kind.name,
                catalog,
                site,
                prove=kind.name not in catalog.class_names(),
            )
        except adopt.AdoptError as problem:
            # A system without stacks: reported with its reason, as a machine that was not reached.
            unreached.update(dict.fromkeys(kind.hosts, problem.message))
            continue
        classes.append(kind)
    _share_stacks(proposals)
    return FleetProposal(
        classes,
        proposals,
        hosts,
        unreached=unreached,
        likely=_likely(unreached, classes, hosts),
        cohorts=_cohorts(classes, surveyed.surveys, hosts),
        locks=_lock_lines(classes, proposals, surveyed.surveys, (catalog, site)),
    )


def _share_stacks(proposals: Mapping[str, adopt.AdoptProposal]) -> None:
    """Let classes whose proposed stacks differ only in their name have one of them."""
    by_content: dict[str, str] = {}
    for name, proposal in proposals.items():
        path = f"stacks/{proposal.stack}.yml"
        if path not in proposal.files:
            continue
        content = proposal.files[path].replace(f"stack: {proposal.stack}\n", "")
        first = by_content.setdefault(content, proposal.stack)
        if first != proposal.stack:
            del proposal.files[path]
            of_class = f"classes/{name}.yml"
            proposal.files[of_class] = proposal.files[of_class].replace(
                f"stack: {proposal.stack}\n", f"stack: {first}\n"
            )
            proposal.stack = first


def _likely(
    unreached: Mapping[str, str], classes: Sequence[FleetKind], hosts: Mapping[str, FleetHost]
) -> dict[str, str]:
    """Return for machines without a survey the class whose machines share most of their groups."""
    likely = {}
    for name in unreached:
        own, best, most = hosts[name], "", 0.0
        for kind in classes:
            shared = 0.0
            for other in (hosts[member] for member in kind.hosts):
                shared += len(own.groups & other.groups) + (own.gpus == other.gpus is not None)
            if shared / len(kind.hosts) > most:
                best, most = kind.name, shared / len(kind.hosts)
        if best:
            likely[name] = best
    return likely


def _cohorts(
    classes: Sequence[FleetKind], surveys: Mapping[str, Survey], hosts: Mapping[str, FleetHost]
) -> dict[str, str]:
    """Return the cohort of each machine that has one.

    It is that of the site (an inventory's variable, the NVLink domain of Kubernetes), else the class of
    machines with NVSwitch, which are bought to train together.
    """
    cohorts = {}
    for kind in classes:
        together = len(kind.hosts) > 1 and bool(surveys[kind.typical]["nvswitch"])
        for name in kind.hosts:
            cohort = hosts[name].cohort or (kind.name if together else None)
            if cohort is not None:
                cohorts[name] = cohort
    return cohorts


def _lock_lines(
    classes: Sequence[FleetKind],
    proposals: Mapping[str, adopt.AdoptProposal],
    surveys: Mapping[str, Survey],
    known: tuple[Catalog, Site],
) -> list[LockLine]:
    catalog, site = known
    rows = []
    for kind in classes:
        stack = proposals[kind.name].stack
        missing = f"no lock yet: `goldnode lock {stack}`, then run this import again with --surveys"
        entry = catalog.stacks.get(stack)
        try:
            lock = find_lock(entry, site)[0] if entry is not None else None
        except LockError as problem:
            lock, missing = None, f"could not check: {problem}"
        if lock is None:
            rows.append(LockLine(kind.name, stack, tuple(kind.hosts), (missing,)))
            continue
        nvswitch = bool(surveys[kind.typical]["nvswitch"])
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in kind.hosts:
            effect = lock_effect(surveys[name], lock, nvswitch=nvswitch)
            groups.setdefault(tuple(effect.lines()), []).append(name)
        rows += [
            LockLine(kind.name, stack, tuple(members), lines) for lines, members in groups.items()
        ]
    return rows


# -- Files


def files(proposal: FleetProposal, surveyed: FleetSurveys, source: FleetSource) -> dict[str, str]:
    """Return the content of every file of a site directory, by its path in the directory."""
    texts: dict[str, str] = {}
    collection = site_directory.collection_installed()
    for kind in proposal.kinds:
        contents = site_directory.SiteContents(
            kind.name,
            tuple(kind.hosts),
            proposal.proposals[kind.name].files,
            variables={name: _variables(name, proposal, source) for name in kind.hosts},
        )
        texts |= site_directory.files(contents, collection=collection)
    for name, survey in sorted(surveyed.surveys.items()):
        texts[f"{SURVEYS}/{name}.json"] = json.dumps(survey, indent=1, sort_keys=True) + "\n"
    texts[REPORT] = report(proposal)
    return texts


def _variables(name: str, proposal: FleetProposal, source: FleetSource) -> dict[str, str]:
    """Return the variables of a host that the site's own inventory, if there is one, does not have."""
    host = proposal.hosts[name]
    values = {COHORT: proposal.cohorts.get(name)}
    if source.inventory is None:
        values |= {"ansible_host": host.address, RACK: host.rack}
    elif host.cohort is not None:
        values = {}
    return {key: value for key, value in values.items() if value is not None}


def write(texts: Mapping[str, str], directory: Path) -> list[Path]:
    """Write the files, or none of them. Raises SiteDirectoryError for a file that exists with another content."""
    # The usual reason: more machines answer than at the first import.
    remedy = f"name another directory with --out, and compare: `diff -r {directory} OTHER`"
    done = site_directory.write(directory, texts, lambda path: False, remedy)
    return [directory / path for path in done.written]


# -- The report


def report(proposal: FleetProposal) -> str:
    """Return the proposal as a page in Markdown."""
    number = sum(len(kind.hosts) for kind in proposal.kinds)
    lines = [
        "# Import of a running fleet",
        "",
        f"{number} of {len(proposal.hosts)} machines were surveyed and not changed. Everything below is a proposal.",
        "",
        "| Class | Machines | Stack | Deviations |",
        "|---|--:|---|--:|",
    ]
    for kind in proposal.kinds:
        stack = proposal.proposals[kind.name].stack
        lines.append(f"| {kind.name} | {len(kind.hosts)} | {stack} | {len(kind.deviations)} |")
    for kind in proposal.kinds:
        lines += ["", f"## {kind.name}", "", f"Machines: {ranges(kind.hosts)}", ""]
        cohorts = sorted(
            {proposal.cohorts[name] for name in kind.hosts if name in proposal.cohorts}
        )
        if cohorts:
            lines += [f"Cohorts: {', '.join(cohorts)}", ""]
        lines += [f"- deviation: {text}" for text in _deviations(kind.deviations)]
        for note in (*kind.notes, *proposal.proposals[kind.name].notes):
            lines.append(f"- review: {note}")
        for row in proposal.locks:
            if row.node_class == kind.name:
                lines.append(f"- the lock of {row.stack} would change on {ranges(row.hosts)}:")
                lines += [f"  - {line}" for line in row.lines]
    if proposal.unreached:
        lines += ["", "## Not surveyed", ""]
        for name, reason in sorted(proposal.unreached.items()):
            more = phrase(" State: {}.", proposal.hosts[name].state or None)
            more += phrase(" Its groups are those of {}.", proposal.likely.get(name))
            lines.append(f"- {name}: {reason.rstrip('.')}.{more}")
    return "\n".join(lines) + "\n"


def _deviations(rows: Sequence[FleetDeviation]) -> list[str]:
    """Return deviations as sentences; machines with the same one share a sentence."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = row.aspect, row.found, row.expected, row.note
        groups.setdefault(key, []).append(row.host)
    return [
        f"{ranges(members)}: {aspect} is {present}, expected {expected}. {note}"
        for (aspect, present, expected, note), members in groups.items()
    ]


_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def ranges(names: Sequence[str]) -> str:
    """Return names of hosts with consecutive numbers as ranges of Ansible: `gpu[01:03], login`."""
    texts: list[str] = []
    run: list[str] = []
    for name in sorted(names):
        if run and _next_name(run[-1]) != name:
            texts.append(_range(run))
            run = []
        run.append(name)
    return ", ".join([*texts, _range(run)])


def _next_name(name: str) -> str | None:
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return None
    head, digits, tail = match.groups()
    return f"{head}{int(digits) + 1:0{len(digits)}}{tail}"


def _range(run: Sequence[str]) -> str:
    first, last = _NUMBERED.fullmatch(run[0]), _NUMBERED.fullmatch(run[-1])
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first[1]}[{first[2]}:{last[2]}]{first[3]}"
