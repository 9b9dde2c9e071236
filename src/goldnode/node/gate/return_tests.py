"""Tests before this node's return: which causes want them, and whether they have passed
(`return_tests` of the class).

The gate holds the node drained while tests of a cause are outstanding. A cause is opened once, and
is recorded before anything else happens. It is closed when its jobs have passed since then and on
the present boot, or by a person (`goldnode-node ack --id tests.CAUSE`). A fault that comes again
opens it again; where a fault looks the same as its return, results that came before a check that
sees it do not count. A record that is damaged or gone opens every cause: it never reads as "nothing
is outstanding". :func:`unmet` is the rule for results, for controllers too
(goldnode.fleet.nodes.return_tests).
"""

from __future__ import annotations

import json
import time

from ..ground.boot import seconds
from ..ground.host import boot_identity
from ..ground.json_lines import as_map
from ..ground.text import and_more
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Host, Json


FILE = "/var/lib/goldnode/return-tests.json"  # survives a reboot, and is carried to the other slot
ID = "tests."  # with which the ids of its reasons begin
SCHEMA = "goldnode.return-record/1"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
DAYS = 7.0  # as in the class file (goldnode.catalog.models.ReturnTests)
DAY = 86400.0  # seconds
RESULTS = 64  # delivered results that are stored; the oldest is forgotten first, which can only hold the node
SHOWN = 2  # jobs in the reason, which is one line
DAMAGED = "the record of its tests is damaged or gone"


# -- results


class Unmet(NamedTuple):
    """A job that has not passed. `state` is None if it has not run since."""

    job: str
    state: Optional[str]
    why: str

    def text(self, since: str = "") -> str:
        """Return it as a sentence."""
        if self.state is None:
            return f"{self.job} has not run since {since}".rstrip()
        return f"{self.job} is {self.state.replace('_', ' ')} ({self.why})"


def unmet(
    jobs: Sequence[str],
    results: Iterable[Mapping[str, Any]],
    since: str,
    boot: Optional[str] = None,
) -> List[Unmet]:
    """Return the jobs that have not passed. Pure.

    Only results count that began at `since` or later, and on this boot. Of each job the latest
    result decides.

    :param results: rows {started, boot_id, jobs: [{name, state, why}]}, as in goldnode.canary/1;
        times in UTC.
    :param boot: the kernel's id of the present boot. None: that of the latest result.
    """
    counted = sorted(
        (row for row in results if row["started"] >= since), key=lambda row: str(row["started"])
    )
    present = boot or (counted[-1]["boot_id"] if counted else None)
    never: Mapping[str, Any] = {"state": None, "why": ""}
    latest = dict.fromkeys(jobs, never)
    for row in counted:  # sorted by time: a later row replaces an earlier one
        if row["boot_id"] == present:
            latest.update({job["name"]: job for job in row["jobs"]})
    return [
        Unmet(job, latest[job]["state"], latest[job]["why"])
        for job in jobs
        if latest[job]["state"] != "passed"
    ]


# -- causes


class Seen(NamedTuple):
    """One check, for the rules of the causes."""

    bad: Sequence[Mapping[str, Any]]  # findings for which the gate is closed
    good: bool  # whether the verdict counts and nothing is bad
    capture: Mapping[str, Any]  # empty without one
    absence: Optional[Mapping[str, Any]]  # time without a check before this boot (verdict.deltas)
    days: float
    record: Mapping[str, Any]


class Event(NamedTuple):
    """The answer of a rule: why its cause is opened, why that is unknown, and what to record."""

    why: str = ""
    unknown: str = ""
    record: Optional[Mapping[str, Any]] = None


class CauseRule(NamedTuple):
    """When a cause is opened: by a finding that is a reason of the gate, or by an event."""

    when: str
    finding: Callable[[Mapping[str, Any]], bool]
    event: Callable[[Seen], Event]


def _is_xid(finding: Mapping[str, Any]) -> bool:
    # A GPU that has fallen off the bus (Xid 79) has a finding of its own name.
    return str(finding["id"]).startswith(("xid.", "sxid.")) or finding["id"] == "gpu.bus_lost"


def _is_counted(finding: Mapping[str, Any], capture: Mapping[str, Any]) -> bool:
    """Return whether a fault that goes and comes again shows another text within a boot.

    The kernel's log only grows: a second Xid is "2 times" (verdict.events). That does not hold for
    a log without its beginning, nor for a fault that is no event: a fan that stops again shows 0
    rpm again.
    """
    log = capture.get("events")
    return _is_xid(finding) and not (isinstance(log, dict) and log.get("truncated"))


def _is_repair(finding: Mapping[str, Any]) -> bool:
    return "repair" in (finding.get("steps") or ())


def _no_event(seen: Seen) -> Event:
    return Event()


def _other_gpus(seen: Seen) -> Event:
    """Compare the GPUs with those of the last good verdict."""
    if not seen.good or not isinstance(seen.capture.get("gpus"), list):
        return Event()
    have = gpus(seen.capture)
    before = seen.record.get("gpus")
    if have is None:
        return Event(
            unknown="whether its GPUs were replaced: not all of them show a serial number or UUID"
        )
    if have == before:
        return Event()
    if not isinstance(before, list):
        return Event(record={"gpus": have})
    new, gone = sorted(set(have) - set(before)), sorted(set(before) - set(have))
    text = "other GPUs than at its last good check: " + ", ".join(
        [f"{name} is new" for name in new] + [f"{name} is gone" for name in gone]
    )
    return Event(why=text, record={"gpus": have})


def _absence(seen: Seen) -> Event:
    """Decide once in a boot whether the last check before it lies longer ago than the class allows."""
    gap = seen.absence
    if gap is None or seen.record.get("absence") == gap.get("boot"):
        return Event()
    decided = {"absence": gap.get("boot")}
    last, sync = gap.get("last"), as_map(seen.capture.get("time_sync"))
    clock, up, first = sync.get("clock"), seen.capture.get("uptime"), gap.get("uptime")
    if not isinstance(last, (int, float)):
        return Event(
            unknown=f"how long it was absent: {gap.get('why') or 'the time of its last check is not recorded'}"
        )
    if sync.get("synchronised") is not True or not isinstance(clock, (int, float)):
        return Event(unknown="how long it was absent: its clock is not synchronised")
    if not isinstance(up, (int, float)) or not isinstance(first, (int, float)):
        return Event(unknown="how long it was absent: its uptime was not read")
    away = clock - (up - first) - last  # until the first check of this boot
    if away < 0:
        return Event(
            unknown="how long it was absent: its last check lies in the future, so a clock was wrong"
        )
    if away < seen.days * DAY:
        return Event(record=decided)
    return Event(
        why=f"it was absent for {away / DAY:.1f} days (limit {seen.days:g})", record=decided
    )


CAUSES: Mapping[str, CauseRule] = {
    "xid": CauseRule("an Xid or SXid has drained it", _is_xid, _no_event),
    "repair": CauseRule(
        "a fault has drained it that takes a repair, or its GPUs are others",
        _is_repair,
        _other_gpus,
    ),
    "absence": CauseRule(
        "it had no check for a long time before its boot", lambda finding: False, _absence
    ),
}


def gpus(capture: Mapping[str, Any]) -> Optional[List[str]]:
    """Return the GPUs of a capture by serial number, or UUID; None if one of them shows neither."""
    names = []
    for row in capture["gpus"]:
        name = None
        if isinstance(row, dict) and row.get("lost") is not True:
            texts = (row.get(key) for key in ("serial", "uuid"))
            # Some cards have a serial number of zeros only.
            name = next(
                (text for text in texts if isinstance(text, str) and text.strip("0 ")), None
            )
        if not name or not name.isprintable() or len(name) > 80:
            return None
        names.append(name)
    return sorted(names)


# -- the record


def jobs_of(document: Mapping[str, Any]) -> Dict[str, List[str]]:
    """Return the jobs of each cause that the class declares here."""
    declared = document.get("return_tests") or {}
    return {
        cause: list(declared[f"after_{cause}"])
        for cause in CAUSES
        if declared.get(f"after_{cause}")
    }


def empty() -> Json:
    """Return a record in which nothing is open."""
    return {
        "schema": SCHEMA,
        "open": {},
        "results": [],
        "gpus": None,
        "absence": None,
        "latest": "",
    }


def load(host: Host) -> Tuple[Optional[Json], bool]:
    """Return the record, and whether there is a file. The record is None without one that can be used."""
    try:
        text = host.text(FILE)
    except OSError:
        return None, True
    if text is None:
        return None, False
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None, True
    return (record if _usable(record) else None), True


def _usable(record: Any) -> bool:
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        return False
    if set(record) != set(empty()):
        return False
    rows = record["open"]
    return (
        isinstance(rows, dict)
        and all(
            cause in CAUSES
            and isinstance(row, dict)
            and seconds(row.get("since")) is not None
            and isinstance(row.get("why"), str)
            and isinstance(row.get("faults"), dict)
            and isinstance(row.get("ended"), bool)
            for cause, row in rows.items()
        )
        and isinstance(record["results"], list)
        and all(not result_fault(row) for row in record["results"])
        and (record["latest"] == "" or seconds(record["latest"]) is not None)
    )


def save(host: Host, record: Mapping[str, Any]) -> None:
    """Write the record unless it is unchanged. Raises OSError."""
    data = (json.dumps(record, sort_keys=True, indent=1) + "\n").encode()
    if host.data(FILE) != data:
        host.write(FILE, data)


def result_fault(row: Any) -> str:
    """Return why a value is no result of a suite; empty if it is one."""
    if not isinstance(row, dict):
        return "it is no object"
    if seconds(row.get("started")) is None:
        return "`started` is no time in UTC"
    if not _word(row.get("boot_id"), 80):
        return "`boot_id` is no id of a boot"
    jobs = row.get("jobs")
    if not isinstance(jobs, list) or len(jobs) > 1000:
        return "`jobs` is no list of jobs"
    for job in jobs:
        if (
            not isinstance(job, dict)
            or not _word(job.get("name"), 40)
            or not isinstance(job.get("why"), str)
        ):
            return "a job has no name, or no `why`"
        if job.get("state") not in STATES:
            return f"job {job['name']} has none of the states {', '.join(STATES)}"
    return ""


STATES = ("passed", "failed", "not_run", "not_counted", "could_not_check")


def _word(value: Any, most: int) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= most
        and value.isprintable()
        and " " not in value
    )


# -- the gate


class Held(NamedTuple):
    """The tests for the gate: reasons (id, text), the rows of its state, journal entries, and the
    record without the causes that this check closes. The gate saves that record when it holds the
    node no more (:func:`finish`).
    """

    reasons: List[Tuple[str, str]]
    state: Json
    entries: List[Tuple[str, str, Dict[str, object]]]
    record: Json

    @property
    def messages(self) -> List[str]:
        """Return the journal entries for a person."""
        return [text.replace("goldnode:", "gate:", 1) for _, text, _ in self.entries]


def settle(
    host: Host, document: Mapping[str, Any], seen: Seen, begun: bool, now: Optional[float] = None
) -> Held:
    """Open causes by this check, record that, and return what is outstanding.

    A cause that can be closed stays in the record until the node has returned: if the return fails
    and a boot follows, its tests have to pass on that boot.

    :param seen: the check; its `record` and `days` are set here.
    :param begun: whether this gate has had a record before, so that a file that is gone is a loss.
    """
    stored, exists = load(host)
    record = stored or empty()
    stamp = utc(time.time() if now is None else now)
    if stamp <= record["latest"]:  # a clock that was set back makes no old result count
        stamp = utc((seconds(record["latest"]) or 0) + 1)
    jobs = jobs_of(document)
    changes = _Changes(record, jobs, stamp, boot_identity(host))
    if stored is None and (exists or begun):
        for cause in jobs:
            changes.open(cause, DAMAGED, {})
    declared = document.get("return_tests") or {}
    seen = seen._replace(record=record, days=float(declared.get("absence_days") or DAYS))
    unknown = [
        f"{cause}: {text}" for cause in jobs for text in [changes.judge(cause, seen)] if text
    ]
    reasons = []
    try:
        save(host, record)
    except OSError as problem:
        why = f"the tests before its return cannot be recorded in {FILE}: "
        reasons.append((f"{ID}record", f"{why}{problem.strerror or problem}"))
    # While another fault holds the node, a boot may follow that the tests have to pass on.
    if seen.good:
        changes.close()
    rows = [changes.row(cause) for cause in jobs]
    node = short_name(host)
    for row in rows:
        if row["outstanding"]:
            reasons.append((ID + row["cause"], sentence(row["cause"], row["outstanding"], node)))
    return Held(reasons, {"causes": rows, "unknown": unknown}, changes.entries, record)


def finish(host: Host, held: Held, returned: bool) -> Held:
    """Record the causes that were closed, if the node has returned; else they are not closed yet."""
    if returned:
        save(host, held.record)
        return held
    return held._replace(entries=[row for row in held.entries if row[0] != "tests.closed"])


class _Changes:
    """Changes of the record by one check, and their journal entries.

    `boot` is the present boot as the record has it; None if it cannot be identified, and no result
    counts then.
    """

    def __init__(
        self, record: Json, jobs: Mapping[str, Sequence[str]], stamp: str, boot: Optional[str]
    ) -> None:
        self.record, self.jobs, self.stamp, self.boot = record, jobs, stamp, boot
        self.entries: List[Tuple[str, str, Dict[str, object]]] = []

    def judge(self, cause: str, seen: Seen) -> str:
        """Open the cause if its rule finds a reason. Return why that is unknown; empty if it is known."""
        rule, rows = CAUSES[cause], self.record["open"]
        event = rule.event(seen)
        texts: Dict[str, str] = {}
        # As texts, with the boot where that tells a fault from its return.
        faults: Dict[str, str] = {}
        apart = True
        for row in filter(rule.finding, seen.bad):
            key = f"{row['id']} {row.get('subject') or ''}".strip()
            known = _is_counted(row, seen.capture)
            texts[key] = str(row.get("got"))[:240]
            faults[key] = f"{self.boot}: {texts[key]}" if known else texts[key]
            apart = apart and known
        before = rows.get(cause)
        new = any(
            before is None or before["faults"].get(key) != text for key, text in faults.items()
        )
        if new or (not apart and before is not None and self._tested(before)):
            self.open(cause, "; ".join(f"{key}: {text}" for key, text in texts.items()), faults)
        # A verdict that does not count shows nothing.
        elif before is not None and (seen.good or seen.bad):
            before["faults"] = faults
        if event.why:
            self.open(cause, event.why, faults)
        self.record.update(event.record or {})
        return event.unknown

    def _tested(self, row: Mapping[str, Any]) -> bool:
        """Return whether results have come since a cause was opened, and no person has ended it."""
        rows = self.record["results"]
        return not row["ended"] and any(
            item["started"] >= row["since"] and item["boot_id"] == self.boot for item in rows
        )

    def open(self, cause: str, why: str, faults: Mapping[str, str]) -> None:
        """Open a cause, or begin it again at this check."""
        why, names = why[:400], self.jobs[cause]
        self.record["open"][cause] = {
            "since": self.stamp,
            "why": why,
            "faults": dict(faults),
            "ended": False,
        }
        text = f"goldnode: tests before its return ({cause}): {', '.join(names)}: {why}"[:400]
        self.entries.append(
            ("tests.opened", text, {"CAUSE": cause, "JOBS": " ".join(names), "REASON": why})
        )

    def close(self) -> None:
        """Close each cause whose jobs have passed, and forget results when nothing is open any more."""
        rows = self.record["open"]
        for cause in [name for name in self.jobs if name in rows and not self.missing(name)]:
            if not rows.pop(cause)["ended"]:  # a person's end has an entry of its own
                text = f"goldnode: the tests before its return ({cause}) have passed"
                fields: Dict[str, object] = {
                    "CAUSE": cause,
                    "BY": "results",
                    "REASON": "all jobs have passed",
                }
                self.entries.append(("tests.closed", text, fields))
        if not rows:
            self.record["results"] = []

    def missing(self, cause: str) -> List[Unmet]:
        """Return the jobs of a cause that have not passed; empty if it is not open."""
        row = self.record["open"].get(cause)
        if row is None or row["ended"]:
            return []
        return unmet(self.jobs[cause], self.record["results"], row["since"], self.boot or "?")

    def row(self, cause: str) -> Json:
        """Return a cause as the state of the gate has it."""
        row = self.record["open"].get(cause) or {}
        since, missing = row.get("since"), self.missing(cause)
        return {
            "cause": cause,
            "since": since,
            "why": row.get("why"),
            "jobs": list(self.jobs[cause]),
            "outstanding": [item.text(str(since)) for item in missing],
            "missing": [item.job for item in missing],
        }


def sentence(cause: str, outstanding: Sequence[str], node: str) -> str:
    """Return the reason of the gate, one line."""
    shown = "; ".join(outstanding[:SHOWN])
    more = and_more(len(outstanding) - SHOWN, " (and {} more)")
    return f"tests before its return ({cause}): {shown}{more}; goldnode canary run {node} --outstanding -i INVENTORY"


def boot_id(host: Host) -> Optional[str]:
    """Return the kernel's id of this boot, as results have it; None if it cannot be read."""
    if boot_identity(host) is None:
        return None
    return (host.text(BOOT_ID) or "").strip() or None


def short_name(host: Host) -> str:
    """Return the name of the node up to the first dot."""
    return (host.text("/proc/sys/kernel/hostname") or "").strip().partition(".")[0] or "NODE"


def utc(moment: float) -> str:
    """Return a time in the form of results."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
