"""Implementation of `goldnode plan`: the changes that site.yml would make to a fleet, read from every node at
once and grouped by class. Nothing is changed.

Nodes of one class with the same changes are reported once, and the others by their differences.
:func:`overview` returns all of it as JSON (schema goldnode.plans/1), :func:`text` as lines for
a person. Both are pure; only :func:`fleet_plans` contacts nodes.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from goldnode.core import progress
from goldnode.core.data import ansible_environment
from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.core.logins import masked
from goldnode.fleet.nodes import runs
from goldnode.fleet.nodes.asked import ANSWERS, LISTING, NOTES, asked_by_ansible_lines
from goldnode.fleet.nodes.plan_document import PlanError, read_plan
from goldnode.inventory import variables
from goldnode.inventory.listing import check_names, refuse_misread
from goldnode.inventory.selection import check_inventory, no_host
from goldnode.node.ground.text import phrase

SCHEMA = "goldnode.plans/1"

# It asks the nodes. Only its own process imports Ansible.
AUDIT = "goldnode.ansible.audit_start"

# States of a host, the worst first; with one of the first three site.yml would not finish on it.
UNREACHABLE, FAILED, REFUSED = "unreachable", "failed", "refused"
CHANGE, WAITING, REBOOT, CONVERGED = "to change", "waiting for drain", "reboot pending", "converged"
STATES = (UNREACHABLE, FAILED, REFUSED, CHANGE, WAITING, REBOOT, CONVERGED)
BAD, PENDING = (UNREACHABLE, FAILED, REFUSED), (CHANGE, WAITING, REBOOT)

# Sections of a plan in the order in which a person asks for them, by the beginning of an action's kind; a file's place goes before that.
PACKAGES, FILES, UNITS, MODULES, INITRAMFS, BOOT = (
    "packages",
    "files",
    "units",
    "kernel modules",
    "initramfs",
    "boot loader",
)
GPU, HOST = "GPU settings", "host settings"
REFUSALS, WAITS, HOLDERS, REBOOTS = (
    "refused",
    "waits for a drain",
    "holds a GPU",
    "reboot afterwards",
)
SECTIONS = (
    REFUSALS,
    HOLDERS,
    PACKAGES,
    MODULES,
    INITRAMFS,
    BOOT,
    FILES,
    UNITS,
    GPU,
    HOST,
    WAITS,
    REBOOTS,
)
PLACES = (
    (UNITS, r"^/etc/systemd/system/"),
    (MODULES, r"^/etc/(modprobe\.d|modules-load\.d|modules)\b"),
    (INITRAMFS, r"^/etc/initramfs-tools/"),
    (BOOT, r"^/etc/default/grub"),
    (HOST, r"^/etc/(sysctl\.d|security/limits\.d|udev|fstab)"),
)
KINDS = (
    (FILES, "runtime.config"),
    (PACKAGES, "packages."),
    (MODULES, "module."),
    (INITRAMFS, "initramfs."),
    (BOOT, "boot."),
    (BOOT, "cmdline."),
    (UNITS, "units."),
    (UNITS, "runtime."),
    (UNITS, "systemd."),
    (GPU, "gpu."),
    (HOST, "tuning."),
    (HOST, "swap."),
    (FILES, ""),
)
VERBS = ("install", "repair", "upgrade", "downgrade", "remove")
PARTS = ("kernel", "driver", "module", "runtime", "base")
LINES = 24  # of one file's diff, unless all are asked for
NEW = 4  # of a new file's, which is left out if it is longer
WIDTH = 116


class FleetPlanError(GoldnodeError):
    """The hosts of an inventory cannot be determined, so no plan can be complete."""


@dataclass(frozen=True)
class PlannedChange:
    """One change or note of a plan: its section, a line, and detail lines (a diff).

    Nodes with equal items are grouped.
    """

    section: str
    line: str
    detail: tuple[str, ...] = ()
    data: tuple[tuple[str, str | None], ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the item for a program."""
        return {
            "text": self.line,
            **dict(self.data),
            **({"diff": list(self.detail)} if self.detail else {}),
        }


@dataclass
class HostPlan:
    """Answer of one node. `message` is the reason if there is no plan; `plan` is of schema goldnode.plan/1."""

    name: str
    node_class: str | None
    plan: dict[str, Any] | None = None
    state: str = ""
    message: str | None = None
    left: str = ""  # the run that has left it out of service

    def __post_init__(self) -> None:
        if self.plan is not None and not self.state:
            # The worst first: a refused plan has actions as well.
            marks = (
                (REFUSED, self.plan["refusals"]),
                (CHANGE, self.plan["actions"]),
                (WAITING, self.plan["waiting"]),
                (REBOOT, self.plan["reboot"]["reasons"]),
            )
            self.state = next((state for state, rows in marks if rows), CONVERGED)


@dataclass
class HostGroup:
    """Nodes of a class with the same items. `like` is the first group, if it is shorter to list the
    differences from that.
    """

    hosts: list[str]
    items: list[PlannedChange]
    like: list[str] | None = None
    also: list[PlannedChange] = field(default_factory=list)
    lacks: list[PlannedChange] = field(default_factory=list)


# Asking


def fleet_plans(
    inventory: str | None,
    limit: str | None,
    names: Iterable[str],
    forks: int | None = None,
    options: Sequence[str] = (),
    *,
    own: bool = False,
) -> list[HostPlan]:
    """Return the plan of every host of an inventory, through Ansible, whose connections, users and become
    come from the inventory. Without `inventory` it is the one that ansible.cfg names.

    :param names: the classes of the catalog; a host without an answer is reported with the class of its
        group.
    :param own: use goldnode's own configuration of Ansible, not that of the working directory.
    :raises InventoryError: if there is no such inventory, or no such host in it.
    :raises FleetPlanError: if the inventory cannot be read.
    """
    if inventory is not None:
        check_inventory(inventory)
    require("ansible")
    source = [] if inventory is None else ["-i", inventory]
    where = [*source, *(["--limit", limit] if limit else [])]
    quiet = {
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
        "ANSIBLE_LOCALHOST_WARNING": "false",
    }
    environment = {**ansible_environment(own=own), **quiet}
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "answers"
        tree.mkdir()
        # One file per host, with the result as it came: what a callback prints is for people.
        command = [
            sys.executable,
            "-m",
            AUDIT,
            *where,
            "all",
            "-m",
            "goldnode_state",
            "-a",
            "operation=plan",
            "--tree",
            str(tree),
        ]
        progress.step(lambda: _progress(tree))
        done = subprocess.run(
            [*command, *(["--forks", str(forks)] if forks else []), *options],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        progress.step("comparing the plans")
        said = f"ansible ended with {done.returncode}"
        if done.stderr.strip():
            said = runs.first_line(done.stderr)
        listing, notes = tree.with_name(LISTING), tree.with_name(NOTES)
        if listing.is_file():
            groups = json.loads(listing.read_text(encoding="utf-8"))
        else:
            groups = _read_groups(inventory, limit, source, environment)
        for line in unknown_variables(notes):
            print(f"warning: {line}.", file=sys.stderr)
        for line in asked_by_ansible(notes):
            print(f"note: {line}.", file=sys.stderr)
        classes = {host: name for name in sorted(names) for host in groups.get(name, ())}
        return hosts_of(groups["all"], classes, tree, said)


def _progress(tree: Path) -> str:
    listing = tree.with_name(LISTING)
    if not listing.is_file():
        return "reading the inventory"
    with suppress(ValueError):
        number = len(json.loads(listing.read_text(encoding="utf-8"))["all"])
        own = (file.read_bytes().count(b"\n") for file in tree.parent.glob(f"{ANSWERS}*"))
        answered = sum(own) + sum(1 for _ in tree.iterdir())
        return f"asking {_plural(number, 'host')}: {answered} answered"
    return "asking the hosts"


def unknown_variables(notes: Path) -> list[str]:
    """Return the variables that look like goldnode's and are not, in sentences without full stop."""
    unknown = variables.UnknownVariables()
    if notes.is_file():
        unknown.found = json.loads(notes.read_text(encoding="utf-8")).get("unknown", {})
    return unknown.lines()


def _read_groups(
    inventory: str | None, limit: str | None, source: Sequence[str], environment: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the groups of an inventory that could not be asked. Raises what is wrong with it, if anything is."""
    try:
        return _groups(inventory, [*source, *(["--limit", limit] if limit else [])], environment)
    except FleetPlanError:
        if not limit:
            raise
        groups = _groups(inventory, source, environment)  # where that goes well it is the limit
        raise no_host(
            inventory or "the inventory", limit, {*groups, *groups["all"]} - {"ungrouped"}
        ) from None


def asked_by_ansible(notes: Path) -> list[str]:
    """Return which hosts Ansible has asked in a process of their own each, and why, in sentences without full stop.

    `notes` is the file of :mod:`goldnode.ansible.audit`; where that has ended before it was written there are none.
    """
    if not notes.is_file():
        return []
    return asked_by_ansible_lines(json.loads(notes.read_text(encoding="utf-8")))


def hosts_of(
    names: Iterable[str], classes: Mapping[str, str], tree: Path, said: str
) -> list[HostPlan]:
    """Return the hosts with the answers in `tree`, one file each. Equal plans are one object, so that memory does
    not grow with the hosts.
    """
    plans: dict[bytes, dict[str, Any]] = {}
    answers = _answers(tree)
    read: dict[tuple[str, str | None], HostPlan] = {}
    hosts = []
    for name in sorted(names):
        answer, node_class = answers.get(name), classes.get(name)
        if isinstance(answer, Path):
            answer = answer.read_text(encoding="utf-8")
        if answer is not None and (answer, node_class) in read:
            hosts.append(replace(read[answer, node_class], name=name))
            continue
        host = host_of(name, node_class, answer, said)
        if host.plan is not None:
            # The only value that differs on each host, and no report has it.
            host.plan["boot_identity"] = None
            key = hashlib.sha256(json.dumps(host.plan, sort_keys=True).encode()).digest()
            host.plan = plans.setdefault(key, host.plan)
        if answer is not None:
            read[answer, node_class] = host
        hosts.append(host)
    return hosts


def _answers(tree: Path) -> dict[str, str | Path]:
    """Return the answer of each host, or the file that has it. Equal answers are one object."""
    answers: dict[str, str | Path] = {path.name: path for path in tree.iterdir()}
    for file in sorted(tree.parent.glob(f"{ANSWERS}*")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                # The last one may be half written.
                with suppress(ValueError):
                    name, answer = json.loads(line)
                    answers[name] = sys.intern(answer)
    return answers


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _groups(
    inventory: str | None, where: Sequence[str], environment: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the hosts of each group, with those of its children, as Ansible reads the inventory.

    `all` has all hosts.
    """
    # Without vars plugins: a class document per host is not what is asked for here.
    done = subprocess.run(
        [_program("ansible-inventory"), *where, "--list"],
        env={**environment, "ANSIBLE_VARS_PLUGINS": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if done.returncode or not isinstance(answer, dict):
        refuse_misread(inventory)
        raise FleetPlanError(
            f"the inventory cannot be read: {_error(done.stderr)}", remedy=_unread(done.stderr)
        )

    def hosts(group: str, seen: frozenset[str] = frozenset()) -> list[str]:
        node = answer.get(group, {})
        inner = [
            host
            for child in node.get("children", ())
            if child not in seen
            for host in hosts(child, seen | {group})
        ]
        return sorted({*node.get("hosts", ()), *inner})

    # `_meta` has the variables of hosts, and is no group.
    groups = {name: hosts(name) for name in {*answer, "all", "ungrouped"} - {"_meta"}}
    unknown = variables.UnknownVariables()
    for host, values in answer.get("_meta", {}).get("hostvars", {}).items():
        unknown.add(host, values)
    for line in unknown.lines():
        print(f"warning: {line}.", file=sys.stderr)
    check_names(inventory, groups["all"])
    if not groups["all"]:
        raise FleetPlanError(
            "there is no host in the inventory",
            remedy="name one with -i, or as `inventory` in ansible.cfg; `goldnode init` writes both",
        )
    return groups


def _unread(text: str) -> str:
    """Return the remedy for an inventory that Ansible cannot read."""
    if "vault" in text.lower():
        return "put the path of the file with its password into the environment variable ANSIBLE_VAULT_PASSWORD_FILE"
    return "correct it, -i or --limit; `ansible-inventory -i PATH --list` shows the error of each parser"


def _error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last_line = next(
        (line for line in lines if line.startswith(("[ERROR]", "ERROR"))),
        (lines or ["Ansible gave no reason"])[-1],
    )
    return re.sub(r"^\[?ERROR\]?[:!]? *", "", last_line).rstrip(".")


def host_of(name: str, node_class: str | None, answer: str | None, said: str) -> HostPlan:
    """Return one host from the answer that Ansible has stored, whose texts are foreign."""
    if answer is None:
        return HostPlan(name, node_class, state=FAILED, message=f"there was no answer: {said}")
    try:
        result = json.loads(answer)
        told = result.get("node_class") or {}
        facts = result.get("ansible_facts") or {}
        plan, left = (
            facts.get("goldnode_plan") or result.get("refused_plan"),
            str(facts.get("goldnode_left") or ""),
        )
        plan = None if plan is None else read_plan(json.dumps(plan), str(told.get("class_digest")))
    except (ValueError, AttributeError, PlanError) as problem:
        return HostPlan(name, node_class, state=FAILED, message=f"its answer is no plan: {problem}")
    if plan is not None:
        return HostPlan(name, told.get("class") or node_class, plan, left=left)
    message = runs.unwrapped(str(result.get("msg") or "no reason was given"))
    if result.get("refusals"):  # of the class or the cohort: the node was not asked
        rows = [
            f"[{row['code']}] {row['message']} {row['remedy']}".rstrip()
            for row in result["refusals"]
        ]
        return HostPlan(
            name,
            node_class,
            state=FAILED,
            message=f"{message.partition(': ')[0]}: {' '.join(rows)}",
        )
    if result.get("unreachable"):
        return HostPlan(
            name, node_class, state=UNREACHABLE, message=masked(runs.lost_reason(message))
        )
    return HostPlan(
        name, node_class, state=FAILED, message=masked(runs.gist(runs.advised(message)))
    )


# Items


def items(plan: Mapping[str, Any], parts: Mapping[str, str]) -> list[PlannedChange]:
    """Return what a plan would change, refuse, wait for and require afterwards.

    `parts`: part of the stack by package.
    """
    changes = [
        PlannedChange(REFUSALS, f"[{row['code']}] {row['message']} {row['remedy']}".rstrip())
        for row in plan["refusals"]
    ]
    if not any(row["code"] == "gpu-in-use" for row in plan["refusals"]):
        changes += [PlannedChange(HOLDERS, holder(row)) for row in plan["holders"]]
    for action in plan["actions"]:
        packages = action["kind"] == "packages.transact"
        changes += _transaction(action, parts) if packages else [_item(action)]
    changes += [
        PlannedChange(WAITS, f"{row['subject']}: {row['message']}") for row in plan["waiting"]
    ]
    changes += [PlannedChange(REBOOTS, reason) for reason in plan["reboot"]["after"]]
    return sorted(changes, key=lambda item: SECTIONS.index(item.section))


def holder(row: Mapping[str, Any]) -> str:
    """Return who has a GPU open: process, unit, container."""
    text = f"pid {row['pid']} {row['command']}"
    return text + phrase(", unit {}", row["unit"]) + phrase(", container {}", row["container"])


def _transaction(action: Mapping[str, Any], parts: Mapping[str, str]) -> list[PlannedChange]:
    """Return one item per package that moves, by part; the engine's own lines have the direction."""
    rows: list[tuple[str, str, str, str, str]] = []
    for line in action["data"].get("lines", ()):
        verb, name, *rest = str(line).split()
        versions = " ".join(rest).split(" (")[0]
        before, _, after = versions.rpartition(" -> ")
        if verb in ("install", "repair"):
            before, after = "", versions.split(" ")[0]
        elif verb == "remove":
            before, after = versions, ""
        rows.append(
            (parts.get(name, "driver" if verb == "remove" else "other"), name, verb, before, after)
        )
    order = {part: number for number, part in enumerate(PARTS)}
    changes = []
    for part, name, verb, before, after in sorted(
        rows, key=lambda row: (order.get(row[0], 9), row[1])
    ):
        move = {"install": after, "remove": before}.get(
            verb
        ) or f"{before or 'half installed'} → {after}"
        data = (
            ("part", part),
            ("verb", verb),
            ("package", name),
            ("from", before or None),
            ("to", after or None),
        )
        changes.append(PlannedChange(PACKAGES, f"{part:8} {verb:9} {name}  {move}", data=data))
    return changes


def _item(action: Mapping[str, Any]) -> PlannedChange:
    kind, target = str(action["kind"]), str(action["target"])
    section = next(name for name, start in KINDS if kind.startswith(start))
    if target.startswith("/"):
        section = next((name for name, pattern in PLACES if re.search(pattern, target)), section)
    verb, reason = kind.partition(".")[2] or kind, str(action["reason"])
    rows = diff(action)
    if kind == "file.write" and action["before"] is None:
        verb, reason = (
            "new",
            reason.replace("; the file is not there", "") + f" ({_plural(len(rows), 'line')})",
        )
    elif kind == "file.write":
        verb, reason = "change", reason.replace("; its content differs", "")
    data = (("kind", kind), ("target", target), ("reason", str(action["reason"])))
    return PlannedChange(section, masked(f"{verb} {target}: {reason}"), rows, data)


def diff(action: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the change of an action as a unified diff without its header."""
    if action["kind"].startswith(("packages.", "initramfs.", "module.", "link")):
        return ()
    before, after = (masked(action[side] or "").splitlines() for side in ("before", "after"))
    rows = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    return tuple(row for row in rows if not (row.startswith("@@") and not (before and after)))


def grouped(plans: Mapping[str, Sequence[PlannedChange]]) -> list[HostGroup]:
    """Group hosts with the same items, the largest group first.

    A group is shown as the difference from the first one if that is shorter.
    """
    sets: dict[tuple[PlannedChange, ...], list[str]] = {}
    for name, changes in sorted(plans.items()):
        sets.setdefault(tuple(changes), []).append(name)
    groups = [HostGroup(hosts, list(changes)) for changes, hosts in sets.items()]
    groups.sort(key=lambda group: (-len(group.hosts), group.hosts[0]))
    for group in groups[1:]:
        first = groups[0]
        also = [item for item in group.items if item not in first.items]
        lacks = [item for item in first.items if item not in group.items]
        if len(also) + len(lacks) < len(group.items):
            group.like, group.also, group.lacks = first.hosts, also, lacks
    return groups


# Telling


def overview(
    hosts: Sequence[HostPlan], about: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the plans as JSON (schema goldnode.plans/1).

    `documents`: class document by class. `about`: what was asked of which hosts. The form: {schema,
    …about, counts: state -> number, classes: name -> {stack, lock_digest, class_digest, counts,
    converged: [host], groups: [{hosts, sections: section -> [{text, diff, …}]}], not_verified_here:
    [text]}, hosts: name -> {class, state, message, holders}}.
    """
    classes: dict[str, Any] = {}
    for name in sorted({host.node_class or "" for host in hosts}):
        mine = [host for host in hosts if (host.node_class or "") == name]
        document = documents.get(name) or {}
        classes[name or "(none)"] = {
            "stack": (document.get("stack") or {}).get("name"),
            "lock_digest": (document.get("lock") or {}).get("digest"),
            "class_digest": document.get("digest"),
            "counts": counts(mine),
            "converged": [host.name for host in mine if host.state == CONVERGED],
            "groups": [
                {
                    "hosts": group.hosts,
                    "sections": {
                        section: [item.to_json() for item in group.items if item.section == section]
                        for section in SECTIONS
                        if any(item.section == section for item in group.items)
                    },
                }
                for group in groups_of(mine, document)
            ],
            "not_verified_here": _notes(mine),
        }
    return {
        "schema": SCHEMA,
        **about,
        "counts": counts(hosts),
        "classes": classes,
        "hosts": {
            host.name: {
                "class": host.node_class,
                "state": host.state,
                "message": host.message,
                "holders": host.plan["holders"] if host.plan else None,
                "left": host.left or None,
            }
            for host in hosts
        },
    }


def counts(hosts: Sequence[HostPlan]) -> dict[str, int]:
    """Return the number of hosts in each state that occurs, the worst state first."""
    states = [host.state for host in hosts]
    return {state: states.count(state) for state in STATES if state in states}


def groups_of(hosts: Sequence[HostPlan], document: Mapping[str, Any]) -> list[HostGroup]:
    """Return the hosts that are not converged, grouped by equal changes."""
    parts = {package["name"]: package["part"] for package in document.get("packages", ())}
    known: dict[int, list[PlannedChange]] = {}  # by plan: hosts share equal ones
    plans = {}
    for host in hosts:
        if host.plan is not None and host.state != CONVERGED:
            if id(host.plan) not in known:
                known[id(host.plan)] = items(host.plan, parts)
            plans[host.name] = known[id(host.plan)]
    return grouped(plans)


def _notes(hosts: Sequence[HostPlan]) -> list[str]:
    notes = [
        str(note["message"])
        for host in hosts
        if host.plan is not None
        for note in host.plan["notes"]
    ]
    return sorted(set(notes))


def text(
    hosts: Sequence[HostPlan], documents: Mapping[str, Mapping[str, Any]], full: bool = False
) -> str:
    """Return all groups for a person. `full`: every line of every diff."""
    named = sorted({host.node_class or "" for host in hosts}, key=lambda name: (not name, name))
    known = len([name for name in named if name])
    lines = [
        f"{_plural(len(hosts), 'host')} of {_plural(known, 'class', 'classes')}: {_states_text(hosts)}. Nothing was changed."
    ]
    for name in named:
        mine = [host for host in hosts if (host.node_class or "") == name]
        document = documents.get(name) or {}
        lines += ["", _head(name, mine, document)]
        for host in mine:
            if host.plan is None:
                lines += _wrapped(f"{host.state}: {host.name}: {host.message}", "  ")
        converged = [host.name for host in mine if host.state == CONVERGED]
        if converged:
            lines += _wrapped(f"converged: {', '.join(converged)}", "  ")
        for host in mine:
            if host.left:
                lines += _wrapped(
                    f"left out of service: {host.name}: by {host.left}; site.yml goes on with it, or judges and returns it",
                    "  ",
                )
        for group in groups_of(mine, document):
            lines += ["", *_group(group, full)]
        for note in _notes(mine):
            lines += _wrapped(f"not verified here: {note}", "  ")
    return "\n".join(lines)


def _head(name: str, hosts: Sequence[HostPlan], document: Mapping[str, Any]) -> str:
    if not name:
        return f"of no class: {_plural(len(hosts), 'host')}: {_states_text(hosts)}"
    about = ""
    if document.get("stack"):
        about = f" (stack {document['stack']['name']}, lock {runs.digest_start(document['lock']['digest'])}"
        about += ", SIMULATED HARDWARE)" if document.get("simulated") else ")"
    return f"class {name}{about}: {_plural(len(hosts), 'host')}: {_states_text(hosts)}"


def _states_text(hosts: Sequence[HostPlan]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts(hosts).items())


def _plural(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(
        line,
        progress.text_width(WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _group(group: HostGroup, full: bool) -> list[str]:
    who = ", ".join(group.hosts)
    if group.like is None:
        return [*_wrapped(f"{who}:", "  "), *_sections(group.items, full)]
    lines = _wrapped(f"{who}: as {', '.join(group.like)}, but", "  ")
    if group.lacks:
        for section in SECTIONS:
            rows = [item.line for item in group.lacks if item.section == section]
            if rows:
                lines += [
                    f"    without, of {section}",
                    *(line for row in rows for line in _wrapped(row, "      ")),
                ]
    return lines + (_sections(group.also, full, "also, ") if group.also else [])


def _sections(found: Sequence[PlannedChange], full: bool, before: str = "") -> list[str]:
    lines: list[str] = []
    for section in SECTIONS:
        rows = [item for item in found if item.section == section]
        if not rows:
            continue
        lines.append(f"    {before}{section}{_sum(section, rows)}")
        # Names of packages in a column.
        width = max((len(str(dict(item.data).get("package", ""))) for item in rows), default=0)
        for item in rows:
            name = dict(item.data).get("package")
            line = item.line.replace(f"{name}  ", f"{name:{width}}  ") if name else item.line
            lines += [f"      {line}"] if name else _wrapped(line, "      ")
            # New content is shortened; changed lines are all shown.
            fresh = bool(item.detail) and all(row.startswith("+") for row in item.detail)
            short = 0 if fresh and len(item.detail) > NEW else LINES
            most = len(item.detail) if full else short
            lines += [f"          {row}" for row in item.detail[:most]]
            if 0 < most < len(item.detail):
                lines.append(f"          … {len(item.detail) - most} more lines: --full shows them")
    return lines


def _sum(section: str, rows: Sequence[PlannedChange]) -> str:
    """Return the number of changes of a section, for its headline."""
    verbs = [str(dict(item.data).get("verb")) for item in rows if dict(item.data).get("verb")]
    if section != PACKAGES or not verbs:
        return ""
    return (
        ": "
        + ", ".join(f"{verbs.count(verb)} to {verb}" for verb in VERBS if verb in verbs)
        + ", in one transaction"
    )


def exit_code(hosts: Sequence[HostPlan], detailed: bool) -> int:
    """Return 2 if a host gave no plan or refuses, 1 with `detailed` if anything is pending, else 0."""
    if any(host.state in BAD for host in hosts):
        return 2
    return 1 if detailed and any(host.state in PENDING for host in hosts) else 0
