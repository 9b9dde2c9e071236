"""One run over a fleet: the outcome of each host and its reason, as a record (schema goldnode.run/1) and as a
few lines for a person.

This module does not depend on Ansible: the callback plugin `goldnode_report` passes the events in.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.errors import GoldnodeError
from goldnode.core.logins import masked
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import and_more, clean, phrase

SCHEMA = "goldnode.run/1"

# Outcomes of a host, worst first; the first one that applies counts.
UNREACHABLE, FAILED, REFUSED, HELD = "unreachable", "failed", "refused", "held"
UNKNOWN, NOT_REACHED, REBOOT, WAITING, CHANGED, CONVERGED = (
    "unknown",
    "not reached",
    "reboot pending",
    "waiting for drain",
    "changed",
    "converged",
)
OUTCOMES = (
    *(UNREACHABLE, FAILED, REFUSED, HELD, UNKNOWN),
    *(NOT_REACHED, REBOOT, WAITING, CHANGED, CONVERGED),
)

HIDDEN = (
    "Ansible hid what goldnode's tasks returned (no_log), so what was done is unknown. Unset no_log for them (ANSIBLE_NO_LOG, no_log in "
    "ansible.cfg or in the playbook), and run again with --check. goldnode masks logins in its results itself."
)

# Refusals that pass by themselves, because the node is in use. The others wait for a person.
PASSING = ("gpu-in-use", "dpkg-locked")

TEXT, LINES = 400, 12  # of a resource's content that a result carries; more is a digest
TOLD = 2000  # characters of a program's text in the record
# How programs name a cause, the one nearest to it first: compilers, dkms, apt and update-initramfs, dpkg.
CAUSES = (r": error: ", r"^Error! ", r"^E: ", r"^W: ", r"^dpkg: error")
# Prefixes that Ansible adds to messages of ssh, modules and plugins.
WRAPPING = re.compile(
    r"^(Task failed: |Action failed: |Module failed: |Failed to connect to the host via ssh: "
    r"|Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: )+"
)
NAMES, REASONS = 8, 25  # hosts named in one line, and lines, of what a person is shown


class RunsError(GoldnodeError):
    """The records of runs cannot be kept where they should be."""


# Resources


def brief(text: str | None) -> str | None:
    """Return short content as it is, and longer content as digest and number of lines. None: absent."""
    if text is None or (len(text) <= TEXT and text.count("\n") <= LINES):
        return optional(masked, text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"sha256:{digest} ({len(text.splitlines())} lines)"


def cut(text: str | None, limit: int = TOLD) -> str | None:
    """Return a text of a program or a handler; of a long one the end, where errors are."""
    if text is None:
        return None
    return masked(text if len(text) <= limit else f"… {text[-limit:]}")


def resource(row: Mapping[str, Any], *, done: bool) -> dict[str, Any]:
    """Return one resource of a result: an action of a plan, or a row of the applied changes (see
    `goldnode.node.state.apply.perform`).

    Returns {resource, kind, phase, changed, would_change, reason, before, after, told, error,
    seconds}. `changed`: it was changed. `would_change`: applying would change it. `seconds` is None
    if it was not applied.
    """
    changed = done and not row["error"]
    return {
        "resource": row["target"],
        "kind": row["kind"],
        "phase": row["phase"],
        "changed": changed,
        "would_change": not changed,
        "reason": cut(row["reason"]),
        "before": brief(row["before"]),
        "after": brief(row["after"]),
        "told": cut(row.get("told")),
        "error": masked(gist(row["error"])) if row.get("error") else None,
        "seconds": row.get("seconds"),
    }


def planned(plan: Mapping[str, Any], part: str | None = None) -> list[dict[str, Any]]:
    """Return the resources that a plan (schema goldnode.plan/1) would change, of one part or of all."""
    actions = [action for action in plan["actions"] if part in (None, action["part"])]
    return [{**resource(action, done=False), "part": action["part"]} for action in actions]


def applied(rows: Iterable[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    """Return the resources that were applied, the one that failed included."""
    return [{**resource(row, done=True), "part": part} for row in rows]


# Hosts


@dataclass
class HostRun:
    """One host in a run. `plan` is the latest plan of the node, `error` is {task, part, message}."""

    name: str
    node_class: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    resources: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    verdict: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    unreachable: str | None = None
    rollback: dict[str, Any] | None = None  # {to, left, again}: see module goldnode_state
    rebooted: bool = False
    hidden: bool = False  # no_log hid results of our tasks
    turn: bool = False  # drained in a batch, and not at its end
    ended: str | None = None  # why the run ended before the turn of this host
    out_of_service: bool = False  # taken out by this run and not returned
    left: str = ""  # the run that had left it out of service, until this one has seen to it
    drain: dict[str, Any] | None = (
        None  # the latest outcome of a drain or a return: see goldnode.fleet.drain.protocol.DrainOutcome
    )

    def saw_plan(self, plan: dict[str, Any]) -> None:
        """Replace the changes of an earlier plan by those of this one; applied changes stay."""
        self.plan = plan
        self.resources = [row for row in self.resources if self._touched(row)] + planned(plan)

    def saw_apply(
        self,
        part: str,
        rows: list[dict[str, Any]],
        plan: dict[str, Any] | None,
        verdict: dict[str, Any] | None,
    ) -> None:
        """Record the resources of an applied part, and the plan that was left (None: it failed, or was in check mode)."""
        untouched = [row for row in self.resources if not self._touched(row)]
        left = planned(plan) if plan else [row for row in untouched if row["part"] != part]
        self.resources = [row for row in self.resources if self._touched(row)] + rows + left
        self.plan = plan or self.plan
        self.verdict = verdict or self.verdict

    def saw_reboot(self) -> None:
        """Forget the boot before this one: its verdict, and what could not be verified in it."""
        self.rebooted, self.verdict = True, None
        if self.plan:
            self.plan = {**self.plan, "notes": []}

    @staticmethod
    def _touched(row: Mapping[str, Any]) -> bool:
        return bool(row["changed"] or row["error"])

    def reboots(self, check: bool) -> list[str]:
        """Return why the node has to be booted; in check mode, why it would have to be."""
        if self.plan is None or self.rebooted:
            return []
        reasons: list[str] = self.plan["reboot"]["after" if check else "reasons"]
        return reasons

    def outcome(self, check: bool) -> str:
        """Return the outcome of the host, one of OUTCOMES."""
        if self.unreachable is not None:
            return UNREACHABLE
        if self.refusals:
            return HELD if all(refusal["code"] in PASSING for refusal in self.refusals) else REFUSED
        if self.error is not None:
            return FAILED
        if self.hidden:
            return UNKNOWN
        if self.plan is None or (self._left() and not check):
            return NOT_REACHED
        if self.reboots(check):
            return REBOOT
        if self.plan["waiting"]:
            return WAITING
        return CHANGED if self.resources else CONVERGED

    def _left(self) -> list[str]:
        """Return the parts of the plan that were not applied."""
        return list(dict.fromkeys(row["part"] for row in self.resources if not self._touched(row)))

    def faults(self) -> list[str]:
        """Return what the latest verdict has against the node, as lines, without what could not be verified here."""
        if self.verdict is None:
            return []
        wrong = [
            row
            for row in self.verdict["findings"]
            if row["outcome"] in ("mismatch", "could_not_read")
        ]
        return [
            f"{row['id']}: want {row['expected']}, have {row['got']}. {row['remedy']}"
            for row in wrong
        ]

    def why(self, check: bool) -> str | None:
        """Return the reason of an outcome with its remedy, in one line; None for a host that is fine."""
        outcome = self.outcome(check)
        text = self._reason(outcome, check)
        if self.out_of_service:
            text = f"{text or ''} It was taken out of service by this run and is still out.".strip()
        elif self.left:
            text = (
                f"{text or ''} It was left out of service by {self.left}, and is still out.".strip()
            )
        elif self.drain and self.drain["changed"] and self.drain["left"] and not self.drain["ours"]:
            text = f"{text or ''} It was left out of service by {self.drain['left']}; it is back.".strip()
        if self.drain and self.drain["note"]:
            text = f"{text or ''} {self.drain['note']}".strip()
        return masked(text) if text else None

    def _reason(self, outcome: str, check: bool) -> str | None:
        if outcome == UNREACHABLE:
            return self.unreachable
        if outcome in (REFUSED, HELD):
            return " ".join(
                f"[{refusal['code']}] {refusal['message']} {refusal['remedy']}"
                for refusal in self.refusals
            )
        if outcome == FAILED and self.error is not None:
            part, task = self.error["part"], self.error["task"]
            place = f"in part {part}" if part else f"in task “{task}”"
            return f"{place}: {gist(self.error['message'])}"
        if outcome == UNKNOWN:
            return HIDDEN
        if outcome == NOT_REACHED:
            names = ", ".join(self._left())
            left = f"not applied: part {names}" if self.plan else "its turn did not come"
            return f"{left}, because the run ended before or its tags leave it out. Run again."
        if outcome == REBOOT:
            allow = "" if check else " Allow it with -e goldnode_reboot=true."
            held = (self.plan or {}).get("reboot", {}).get("held")
            if self.ended:
                allow = f" {self.ended}"
            if held and not check:
                allow = f" It is held back, since {'; '.join(held)}: see policy.ecc and policy.mig of `goldnode-node check` on the node."
            return f"{'Would need' if check else 'Needs'} a reboot: {'; '.join(self.reboots(check))}.{allow}"
        if outcome == WAITING and self.plan is not None:
            items = "; ".join(
                f"{item['subject']}: {item['message']}" for item in self.plan["waiting"]
            )
            return f"{items.rstrip('.')}. {self.ended or 'Allow the drain with -e goldnode_drain_for_waiting=true.'}"
        if check and outcome == CHANGED:
            parts = {
                part: sum(row["part"] == part for row in self.resources) for part in self._left()
            }
            return f"{len(self.resources)} differences: {', '.join(f'{part} {number}' for part, number in parts.items())}. See them with -v."
        faults = self.faults()
        return f"the check finds {'; '.join(faults)}" if faults else None

    def to_json(self, check: bool) -> dict[str, Any]:
        """Return the host's part of the record."""
        plan = self.plan or {}
        parts: dict[str, list[dict[str, Any]]] = {}
        for row in self.resources:
            parts.setdefault(row["part"], []).append(
                {key: value for key, value in row.items() if key != "part"}
            )
        return {
            **self.node_class,
            "outcome": self.outcome(check),
            "why": self.why(check),
            "parts": parts,
            "refusals": self.refusals,
            "notes": plan.get("notes", []),
            "waiting": plan.get("waiting", []),
            "reboot": {"reasons": self.reboots(check), "done": self.rebooted},
            "out_of_service": self.out_of_service or bool(self.left),
            "drain": self.drain,
            "rollback": self.rollback,
            "verdict": self.verdict
            and {
                key: self.verdict[key]
                for key in ("status", "exit_code", "simulated", "time", "counts")
            },
            "faults": self.faults(),
            "error": self.error and {**self.error, "message": cut(self.error["message"])},
            "unreachable": self.unreachable,
        }


def ended_by(lost: Sequence[str]) -> str:
    """Return why a run ends before the turn of further hosts."""
    more = and_more(len(lost) - NAMES)
    return (
        f"The run ended before its turn: {', '.join(lost[:NAMES])}{more} did not come back into service. Nothing was done to "
        "this node; run again when they are well."
    )


def first_line(text: str) -> str:
    """Return the first line of an error that names the cause."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def gist(text: str) -> str:
    """Return an error in one line: the first one, or the line of a program's output that names the cause."""
    first = first_line(text)
    if not first.endswith(":"):
        return clean(first)
    rest = text[text.index(first) + len(first) :]
    lines = rest.splitlines()
    errors = next(
        filter(None, ([line for line in lines if re.search(cause, line)] for cause in CAUSES)), []
    )
    told = min(errors, key=_place, default=first_line(rest))
    return clean(f"{first} {told.strip()}")


def _place(line: str) -> tuple[str, int, int]:
    """Return where a compiler found an error, and the same place for any other line.

    A parallel build prints its errors in any order, and the causes of several nodes are compared.
    """
    match = re.match(r"\s*([^\s:]+):(\d+):(?:(\d+):)? ", line)
    return (match[1], int(match[2]), int(match[3] or 0)) if match else ("", 0, 0)


def unwrapped(text: str) -> str:
    """Return a message without the words that Ansible puts before it."""
    return WRAPPING.sub("", text)


def last_line(text: str) -> str:
    """Return the last line with text. Earlier lines of ssh are banners and, with -vvv, its trace."""
    return clean(first_line("\n".join(reversed(text.splitlines()))))


def lost_reason(text: str) -> str:
    """Return why ssh could not connect, in one line: its last one, with the cause and the remedy for a host key."""
    last = last_line(text)
    if not last.startswith("Host key verification failed"):
        return advised(last)
    lines = [line.strip() for line in text.splitlines()]
    offending = next((line for line in lines if line.startswith("Offending ")), None)
    if offending is None:
        return (
            f"{last.rstrip('.')}: no known_hosts file has a key of this host. Compare the fingerprint in "
            "`ssh-keyscan HOST | ssh-keygen -lf -` with the host's own, and connect once with ssh."
        )
    return (
        f"{last.rstrip('.')}: the host has another key than before. {offending}. If it was installed again, remove the old "
        "key with `ssh-keygen -R HOST`."
    )


# Reports of Ansible that name no remedy, by their beginning and end.
_ADVICE = {
    ("Missing sudo password", ""): "Give it with --ask-become-pass (-K).",
    ("Incorrect sudo password", ""): "Give the right one with --ask-become-pass (-K).",
    ("Timeout (", "waiting for privilege escalation prompt"): (
        "If `sudo --version` on the node prints sudo-rs, ansible-core 2.22 is the first that knows its prompt. With an earlier one, name "
        "the other sudo with ansible_become_exe (on Ubuntu /usr/bin/sudo.ws), or permit the user with NOPASSWD."
    ),
}


def advised(message: str) -> str:
    """Return a message of Ansible with the remedy that it lacks."""
    text = message.strip().rstrip(".:")
    for (begin, end), advice in _ADVICE.items():
        if text == begin if not end else text.startswith(begin) and text.endswith(end):
            return f"{text}. {advice}"
    return message


# Runs


@dataclass
class PlaybookRun:
    """A run of a playbook. `about` has the fields of the record in addition to its hosts: playbook, user,
    start, limit …
    """

    about: dict[str, Any] = field(default_factory=dict)
    check: bool = False
    hosts: dict[str, HostRun] = field(default_factory=dict)

    def host(self, name: str) -> HostRun:
        """Return the record of one host; make it at its first mention."""
        return self.hosts.setdefault(name, HostRun(name))

    def counts(self) -> dict[str, int]:
        """Return the number of hosts of each outcome that occurs, the worst outcome first."""
        outcomes = [host.outcome(self.check) for host in self.hosts.values()]
        return {outcome: outcomes.count(outcome) for outcome in OUTCOMES if outcome in outcomes}

    def to_json(self) -> dict[str, Any]:
        """Return the record (schema goldnode.run/1)."""
        return {
            "schema": SCHEMA,
            **self.about,
            "check": self.check,
            "counts": self.counts(),
            "hosts": {name: host.to_json(self.check) for name, host in sorted(self.hosts.items())},
        }

    def text(self, seconds: float) -> str:
        """Return the number of hosts by outcome, then one line per reason of those that are not fine, with their names."""
        rows: dict[tuple[str, str], list[HostRun]] = {}
        for host in self.hosts.values():
            why = host.why(self.check)
            if why:
                rows.setdefault((host.outcome(self.check), alike(why)), []).append(host)
        said = ", ".join(
            f"{number} {self._word(outcome)}" for outcome, number in self.counts().items()
        )
        simulated = sum(
            bool(host.verdict and host.verdict["simulated"]) for host in self.hosts.values()
        )
        label = phrase(" ({} with SIMULATED HARDWARE)", simulated)
        lines = [
            f"goldnode: {len(self.hosts)} host{'s'[: len(self.hosts) != 1]} in {seconds:.0f} s: {said}{label}"
        ]
        order = sorted(
            rows.items(),
            key=lambda item: (OUTCOMES.index(item[0][0]), -len(item[1]), item[1][0].name),
        )
        for (outcome, general), hosts in order[:REASONS]:
            # Alone, a host keeps its own words; of many that differ only in a number or an address, the words that they share.
            own = {host.why(self.check) for host in hosts}
            lines.append(f"  {self._word(outcome)}: {names(hosts)}")
            lines.append(f"    {own.pop() if len(own) == 1 else general}")
        if len(order) > REASONS:
            lines.append(f"  and {len(order) - REASONS} more reasons; the record names every host")
        return "\n".join([*lines, *self.ways_back()])

    def ways_back(self) -> list[str]:
        """Return which hosts went back, from where to where, and what keeps the next run of site.yml from undoing that."""
        rows: dict[tuple[str, ...], list[HostRun]] = {}
        for host in self.hosts.values():
            back = host.rollback
            if back and host.outcome(self.check) not in (
                UNREACHABLE,
                FAILED,
                REFUSED,
                HELD,
                UNKNOWN,
                NOT_REACHED,
            ):
                to, left = back["to"], back["left"]
                key = (
                    str(back["again"]),
                    to["class"],
                    to["stack"],
                    to["lock_digest"],
                    to["release"],
                    left["lock_digest"],
                    left["stack"],
                )
                rows.setdefault(key, []).append(host)
        lines: list[str] = []
        for (again, name, stack, lock, release, left_lock, left_stack), hosts in sorted(
            rows.items()
        ):
            there = f"class {name}, lock {digest_start(lock)} ({stack}, kernel {release})"
            if again == "True":
                lines += [
                    f"  taken back already: {names(hosts)}",
                    f"    they are at {there} and stay there; further back only with -e goldnode_to=LOCK, the beginning of a lock's digest.",
                ]
                continue
            would = "would be taken back" if self.check else "taken back"
            lines += [
                f"  {would}: {names(hosts)}",
                f"    from lock {digest_start(left_lock)} ({left_stack}) to {there}.",
            ]
        if rows:
            files = " ".join(sorted({f"'*{key[2]}.lock.yml'" for key in rows}))
            lines += [
                "  THE NEXT RUN OF site.yml TAKES THEM FORWARD AGAIN, unless the class or its stack says otherwise by then. To stay:",
                f"    take that lock back in git (git log -- {files}; git checkout COMMIT -- FILE), or the `stack:` of the class, and run",
                "    site.yml --check: no host of theirs may have a difference left.",
            ]
        return lines

    def _word(self, outcome: str) -> str:
        return "would change" if self.check and outcome == CHANGED else outcome


def digest_start(text: str) -> str:
    """Return the beginning of a digest, as people name it."""
    return text.partition(":")[2][:12] or text


def alike(text: str) -> str:
    """Return a reason without the parts that differ between hosts: process ids, ports, addresses, sizes,
    hexadecimal ids.
    """
    text = re.sub(r"\b\d+\.\d+\.\d+\.\d+\b", "ADDRESS", text)
    text = re.sub(r"\bhost \S+ port\b", "host ADDRESS port", text)
    text = re.sub(r"( key in \S+):\d+", r"\1:LINE", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", text)
    return re.sub(r"\b(process|pid|port) \d+", r"\1 N", text)


def names(hosts: list[HostRun]) -> str:
    """Return names of hosts, the first few of many."""
    names = sorted(host.name for host in hosts)
    more = and_more(len(names) - NAMES)
    return ", ".join(names[:NAMES]) + more


def store_run(directory: Path, name: str, record: Mapping[str, Any], most: int) -> Path:
    """Write a record as `NAME.json` (`NAME-2.json` if that exists), delete the oldest beyond `most`, and
    return its path.

    Raises RunsError if the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number, path = 1, directory / f"{name}.json"
        while path.exists():
            number += 1
            path = directory / f"{name}-{number}.json"
        temporary = directory / f".{path.name}.{os.getpid()}"
        temporary.write_text(
            json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        # A reader of the directory never sees half a record.
        temporary.replace(path)
        records = sorted(
            directory.glob("[0-9]*T*Z-*.json"),
            key=lambda found: (found.stat().st_mtime_ns, found.name),
        )
        for old in records[:-most]:
            old.unlink(missing_ok=True)
    except OSError as problem:
        raise RunsError(
            f"the record of this run cannot be kept in {directory}: {problem.strerror}",
            remedy="name a directory that you may write with GOLDNODE_RUNS, or none with GOLDNODE_RUNS=off",
        ) from problem
    return path
