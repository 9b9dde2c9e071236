"""The gate: the effects of a verdict, by the class's `gate` mode.

`report` only reports. `drain` also drains the node in the scheduler. `block` does not drain, but
prevents container runtimes from starting. A node is bad if one of these holds:

* No verdict counts: it is missing, not readable, of another boot or class, or older than its limit.
* The verdict is `not this class` (exit code 4), or has no finding at all.
* A finding of severity `drain` is a mismatch, could not be read, or has an outcome that this
  program does not know.

`not_verified_here` does not make a node bad. A container or simulated hardware cannot show the
item, which leaves the exit code at 3 but is no reason to stop work. The same holds for
`not_exposed`, `deferred` and `suppressed`, and for all findings of severity `degraded`.

With `drain` a node is also bad while tests before its return are outstanding
(:mod:`.return_tests`), if its class declares some.

The gate never stops running work. A runtime that runs when the node becomes bad continues to run.
An `ExecCondition=` in plain shell (:func:`.gate_files.drop_in`) refuses a later start, and works
without this program. The daemons of Slurm and Kubernetes always start.

Files: `PASS` exists exactly while the gate lets work start; it holds the uptime of its verdict and
for how many seconds the verdict counts. `STATE` is the gate's state as JSON (schema
goldnode.gate/1: mode, open, reasons, since, verdict_time, told, error). `REASON` is one line of
text. `RECORD` survives a reboot: it records what this gate has drained, so that the gate resumes
nothing else (:mod:`.effects`). `MODE` is its mode, for shell programs.

Verdict and gate agree. If one of their files in /run cannot be written, all are taken away: then no
verdict counts, and nothing reads an earlier one beside a newer gate.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import suppress

from ..ground import boot, drained, scheduler, systemd
from ..ground.gate_files import DRAIN, MODE, PASS, REASON, RECORD, REFUSED, REPORT, STATE, hook
from ..ground.host import Host, Json, boot_identity
from ..ground.json_lines import as_map, by_lines
from ..ground.scheduler import HookError
from ..ground.text import and_more, shortened, spaced
from ..ground.typed import NamedTuple
from ..ground.verdict_files import LIMIT, SEAL, STATUS, VERDICT
from ..state.finding import FINE
from ..verdict import current
from . import effects
from .effects import OWN, UnrecordedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, TypeAlias

    from .return_tests import Held

    class Evidence(Protocol):
        """Capture and stored state of a check (verdict.check.Checked)."""

        @property
        def capture(self) -> Optional[Json]: ...
        @property
        def memory(self) -> Optional[Json]: ...


SCHEMA = "goldnode.gate/1"
GUARD = "/run/goldnode/gate.lock"
ENGINE = "/run/goldnode/engine.lock"
NO_DRAIN = f"{OWN} the class does not drain any more"
LONGEST = 240  # characters of a reason: one line in `systemctl status`, in sinfo and at login

Document: TypeAlias = "Mapping[str, Any]"


class Reason(NamedTuple):
    """One reason why the node is bad: the id of the finding, and a sentence about it."""

    id: str
    text: str


class IncompleteError(Exception):
    """The gate has acted as far as it could: its record or its files in /run could not be written.

    `unwritten`: the first failure in /run. `unrecorded`: why no effect is recorded, and so none was
    carried out.
    """

    def __init__(
        self, messages: List[str], unwritten: Optional[OSError], unrecorded: Optional[str]
    ) -> None:
        super().__init__(unrecorded or unwritten)
        self.messages, self.unwritten, self.unrecorded = messages, unwritten, unrecorded


def reasons(verdict: Any, fault: Optional[str] = None) -> List[Reason]:
    """Return why a node is bad for the gate; empty if it is not. The docstring of this module has
    the rule. Pure.

    :param fault: why the verdict does not count (:func:`verdict.current.fault`).
    """
    if fault is not None:
        return [Reason("verdict", fault)]
    bad = [
        Reason(
            str(finding["id"]),
            one_line(
                f"{finding['id']}: {finding['got'] or 'nothing'} (want {finding['expected']})"
            ),
        )
        for finding in bad_findings(verdict)
    ]
    if not bad and verdict["exit_code"] == 4:
        return [Reason("class", f"the node is not of class {verdict['class']}")]
    if not verdict["findings"]:
        return [Reason("verdict", "nothing was judged")]
    return bad


def bad_findings(verdict: Any) -> List[Json]:
    """Return the findings of a verdict for which the gate is closed."""
    return [
        finding
        for finding in verdict["findings"]
        if finding["severity"] != "degraded" and finding["outcome"] not in FINE
    ]


def one_line(text: str) -> str:
    """Return the text as one line without control characters, of at most :data:`LONGEST` characters.
    Terminals and other programs show it.
    """
    line = " ".join(spaced(text).split())
    return shortened(line, LONGEST)


def sentence(bad: Sequence[Reason]) -> str:
    """Return all reasons in one line."""
    more = and_more(len(bad) - 2, " (and {} more)")
    return one_line("; ".join(reason.text for reason in bad[:2]))[: LONGEST - len(more)] + more


def save(host: Host, verdict: Json, text: str) -> None:
    """Write the verdict, and its summary for shell programs, which also run where there is no Python.

    :param text: the verdict as JSON. Raises OSError; then neither these files nor those of the gate
        are left, so that no earlier verdict counts.
    """
    at = "-" if verdict["uptime"] is None else str(int(verdict["uptime"]))
    line = f"{at} {verdict['exit_code']} {verdict['status']} {verdict['class'] or 'unknown'}\n"
    before = status_before(host)
    try:
        host.write(VERDICT, text.encode())
        host.write(STATUS, line.encode())
        _seal(host, verdict, text)
    except OSError:
        withdraw(host)
        raise
    if host.live and before != verdict["status"]:
        _journal_verdict(host, verdict, before)


def _seal(host: Host, verdict: Json, text: str) -> None:
    """Write the seal of a verdict, if it is of the class document as it was read."""
    identity, uptime = verdict.get("boot_identity"), verdict.get("uptime")
    why = current.fault(verdict, identity, uptime)
    if why is None and host.class_text is not None and uptime is not None:
        code = verdict["exit_code"]
        line = current.seal(str(identity), uptime, code, text.encode(), host.class_text.encode())
        host.write(SEAL, line.encode())


def status_before(host: Host) -> Optional[str]:
    """Return the status of the last verdict of this boot; None without one."""
    words = (host.text(STATUS) or "").split()
    return words[2] if len(words) == 4 else None


def _journal_verdict(host: Host, verdict: Json, before: Optional[str]) -> None:
    from . import journal  # only after a change: most checks find none

    bad = [row["id"] for row in verdict["findings"] if row["outcome"] not in FINE]
    fields = {
        "STATUS": verdict["status"],
        "STATUS_BEFORE": before or "none",
        "FINDINGS": " ".join(sorted(set(bad))),
        **_common(verdict.get("class"), verdict.get("simulated")),
    }
    text = f"goldnode: the node is {verdict['status']}, was {before or 'not judged in this boot'}"
    if bad:
        text += f": {', '.join(sorted(set(bad))[:4])}"
    priority = journal.NOTICE if verdict["exit_code"] == 0 else journal.WARNING
    journal.send(host, "node.verdict", text, priority, fields)


def _common(class_name: Any, simulated: Any) -> Dict[str, object]:
    return {"CLASS": class_name or "unknown", "SIMULATED": simulated is True}


def act(
    host: Host,
    document: Optional[Document],
    verdict: Any,
    checked: Optional[Evidence] = None,
    published: bool = True,
) -> List[str]:
    """Apply a verdict. Return messages for the user, line by line.

    A hook that fails is reported, recorded in STATE, and tried again at the next check.

    :param document: the node's class document. If None, it cannot be read, and the gate stays in
        its last mode.
    :param verdict: the verdict that was just written.
    :param checked: the check behind it, for tests before a return. None: they get no new cause by
        capture or absence.
    :param published: whether the verdict could be written. If not, the gate opens nothing and
        resumes nothing.
    :raises IncompleteError: after all this, if it could not record or write something.
    """
    with alone(host):
        turn = _Turn(host, document, verdict, published)
        if turn.before.get("open") and _busy(host):
            # The run checks the node itself when it has finished. Until then an open gate stays open.
            messages = [
                "gate: a goldnode run changes this node; the gate stays open until it is through"
            ]
            try:
                host.write(PASS, _pass(turn.now))
            except OSError as problem:
                raise IncompleteError(messages, problem, None) from None
            return messages
        if turn.mode == DRAIN and document and document.get("return_tests"):
            # Before any other effect: a check that is killed must not leave a drain without its tests.
            turn.hold(checked)
        turn.show()
        turn.carry_out()
        turn.finish()
        if turn.unwritten is not None or turn.unrecorded is not None:
            raise IncompleteError(turn.messages, turn.unwritten, turn.unrecorded)
        return turn.messages


class _Turn:
    """One check at the gate, step by step."""

    def __init__(
        self, host: Host, document: Optional[Document], verdict: Any, published: bool
    ) -> None:
        self.host, self.document, self.verdict = host, document or {}, verdict
        self.messages: List[str] = []
        self.error: Optional[str] = None
        self.unwritten: Optional[OSError] = None
        self.unrecorded: Optional[str] = None
        self.held: Optional[Held] = None
        self.before = load_state(host)
        self.memory: Json = {}
        self.readable = True
        try:
            self.memory = effects.load(host)
        except UnrecordedError as problem:
            self.readable = False
            self.fail(problem)
        self.mode = str(
            self.document.get("gate")
            or self.memory.get("mode")
            or self.before.get("mode")
            or REPORT
        )
        self.now = boot.uptime(host.text("/proc/uptime") or "")
        self.bad = reasons(verdict, current.fault(verdict, boot_identity(host), self.now))
        self.published = published
        self.drain: Any = self.memory.get("drained")  # before this check
        self.state: Json = {}

    @property
    def open(self) -> bool:
        """Return whether work may start."""
        return self.mode == REPORT or not self.bad

    def fail(self, problem: HookError) -> None:
        """Note why something could not be done."""
        self.error = one_line(str(problem))
        if isinstance(problem, UnrecordedError):
            self.unrecorded = self.error
        else:
            self.messages.append(f"gate: {self.error}; it is tried again at the next check")

    def hold(self, checked: Optional[Evidence]) -> None:
        """Add what the tests before a return hold."""
        self.held = _tests(self, checked)
        self.bad = self.bad or [Reason(*row) for row in self.held.reasons]

    def show(self) -> None:
        """Publish the gate before its effects, which may be slow."""
        self.state = {
            "schema": SCHEMA,
            "mode": self.mode,
            "open": self.open,
            "reasons": [reason.text for reason in self.bad],
            "since": self.before.get("since"),
            "verdict_time": as_map(self.verdict).get("time"),
            "told": self.drain if self.readable else self.before.get("told"),
            "error": self.error,
        }
        if self.held is not None:
            self.state["tests"] = self.held.state
        changed = any(
            self.state[key] != self.before.get(key) for key in ("mode", "open", "reasons")
        )
        if changed or not self.state["since"]:
            self.state["since"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.messages.append(
                f"gate ({self.mode}): {'open' if self.open else 'closed'}"
                + (f": {sentence(self.bad)}" if self.bad else "")
            )
        if self.published:
            self._publish()
        else:
            withdraw(self.host)

    def _publish(self) -> None:
        """Write the files in /run. The pass goes first, and comes last."""
        why = f"goldnode gate: {sentence(self.bad)}\n" if self.bad else ""
        try:
            if not self.open:
                self.host.remove(PASS)
            self.host.write(REASON, why.encode())
            _keep(self.host, STATE, self.state)
            if self.open:
                self.host.write(PASS, _pass(self.now))
        except OSError as problem:
            self.published = False
            self.unwritten = OSError(problem.errno, problem.strerror, self.host.located(STATE))
            withdraw(self.host)

    def carry_out(self) -> None:
        """Drain or resume the node, and record it. Without a record that can be read and written,
        do nothing.
        """
        if not self.readable:
            return
        drain = self.mode == DRAIN and bool(self.bad)
        try:
            effects.settle(self.host, self.memory, self.before)
            if drain or self.published:
                self.messages += effects.apply(self.host, self.memory, self._wanted(drain))
            if drain and self._tests_alone():
                effects.renew(self.host, self.memory, self._text())
        except HookError as problem:
            self.fail(problem)
        self.memory["mode"] = self.mode
        try:
            effects.record(self.host, self.memory)
            if self.host.text(MODE) != f"{self.mode}\n":
                self.host.write(MODE, f"{self.mode}\n".encode())
        except UnrecordedError as problem:
            self.fail(problem)
        except OSError as problem:
            self.fail(
                UnrecordedError(f"{MODE} cannot be written: {problem.strerror}; {effects.REMEDY}")
            )

    def _tests_alone(self) -> bool:
        """Return whether tests alone hold the node, and the text about them is new or was not accepted."""
        if self.held is None:
            return False
        from .return_tests import ID  # start-up time: most classes want no tests

        new = self.state["reasons"] != self.before.get("reasons") or bool(self.before.get("error"))
        return new and all(reason.id.startswith(ID) for reason in self.bad)

    def _wanted(self, drain: bool) -> effects.DrainOrder:
        return effects.DrainOrder(
            drain,
            ids=sorted({reason.id for reason in self.bad}),
            text=self._text(),
            by=hook(self.host, self.document) if drain else None,
            commands=(self.document.get("site") or {}).get("gate") or {},
            run=drained.lasts(self.host),
        )

    def _text(self) -> str:
        if self.mode != DRAIN:
            return NO_DRAIN
        if self.bad:
            return one_line(f"{OWN} {sentence(self.bad)}")
        return f"{OWN} the node is what its class says again"

    def finish(self) -> None:
        """Record and publish the outcome, and start what was kept out."""
        if self.held is not None:
            self._finish_tests(self.held)
        shown = dict(self.state)
        if self.readable:
            self.state["told"] = self.memory.get("drained")
        self.state["error"] = self.error
        if self.published and self.state != shown:
            self._publish()
        if self.open and self.published:
            self.messages += _start(self.host)
        _journal(self.host, self.document, self.before, self.state, self.drain)
        if self.held is not None:
            _journal_tests(self.host, self.document, self.held)

    def _finish_tests(self, held: Held) -> None:
        from . import return_tests  # start-up time: most classes want no tests

        returned = self.readable and self.published and self.memory.get("drained") is None
        try:
            self.held = return_tests.finish(self.host, held, returned)
        except OSError as problem:
            why = f"{return_tests.FILE} cannot be written: {problem.strerror}; {effects.REMEDY}"
            self.fail(UnrecordedError(why))
            self.held = return_tests.finish(self.host, held, False)
        self.messages += self.held.messages


def withdraw(host: Host) -> None:
    """Take away verdict and gate, of which one could not be written. No verdict counts then, and no pass."""
    for name in (PASS, STATE, REASON, SEAL, VERDICT, STATUS):
        with suppress(OSError):
            host.remove(name)


def _tests(turn: _Turn, checked: Optional[Evidence]) -> Held:
    """Return what the tests before a return hold; the record of the gate has that there are some."""
    from . import return_tests  # most classes declare none

    host, memory, bad = turn.host, turn.memory, turn.bad
    capture, stored = (None, None) if checked is None else (checked.capture, checked.memory)
    seen = return_tests.Seen(
        bad=bad_findings(turn.verdict) if bad and bad[0].id != "verdict" else [],
        good=not bad,
        capture=capture or {},
        absence=(stored or {}).get("absence"),
        days=0.0,
        record={},
    )
    # A record that is torn or cannot be read may have been that of a node with tests.
    begun = bool(memory.get("tests")) or (
        "mode" not in memory and (not turn.readable or host.exists(RECORD))
    )
    held = return_tests.settle(host, turn.document, seen, begun)
    if turn.readable and not memory.get("tests"):
        memory["tests"] = True
        try:
            effects.record(host, memory)
        except UnrecordedError as problem:
            turn.fail(problem)
    return held


def _journal_tests(host: Host, document: Document, held: Held) -> None:
    """Write the causes that this check has opened or closed into the journal."""
    if not held.entries:
        return
    from . import journal  # start-up time: most checks change nothing

    common = _common(document.get("class"), document.get("simulated"))
    for event, text, fields in held.entries:
        priority = journal.WARNING if event == "tests.opened" else journal.NOTICE
        journal.send(host, event, text, priority, {**fields, **common})


def _journal(
    host: Host, document: Document, before: Json, state: Json, drain: Optional[Json]
) -> None:
    """Write what this check has changed into the journal.

    :param drain: the drain before it, as in RECORD; that after it is in `state`.
    """
    keys = ("open", "error") if state["open"] else ("open", "error", "reasons")
    if all(before.get(key) == state[key] for key in keys) and drain == state["told"]:
        return
    from . import journal  # start-up time: most checks change nothing

    common = _common(document.get("class"), document.get("simulated"))
    reason, after = one_line("; ".join(state["reasons"])), state["told"]
    if state["open"] and before.get("open") is not True:
        journal.send(
            host,
            "gate.opened",
            f"goldnode: the gate is open (mode {state['mode']})",
            journal.NOTICE,
            {"MODE": state["mode"], **common},
        )
    elif not state["open"] and (
        before.get("open") is not False or before.get("reasons") != state["reasons"]
    ):
        fields = {"MODE": state["mode"], "REASON": reason, **common}
        text = f"goldnode: the gate is closed (mode {state['mode']}): {reason}"
        journal.send(host, "gate.closed", text, journal.WARNING, fields)
    if after != drain:
        now = after or drain or {}
        fields = {"BY": now["by"], "OURS": bool(now["ours"]), **common}
        if after:
            text = f"goldnode: {'drained' if after['ours'] else 'found drained'} ({after['by']}): {reason}"
            journal.send(host, "node.drained", text, journal.WARNING, {**fields, "REASON": reason})
        else:
            text = f"goldnode: {'resumed' if now['ours'] else 'stays drained by another party'} ({now['by']})"
            journal.send(host, "node.resumed", text, journal.NOTICE, fields)
    if state["error"] and state["error"] != before.get("error"):
        text = f"goldnode: the gate could not act: {state['error']}"
        journal.send(host, "gate.failed", text, journal.ERROR, {"REASON": state["error"], **common})


def release(host: Host) -> List[str]:
    """Remove the gate when the node leaves goldnode.

    Resume the node if the gate drained it, start the refused runtimes, and remove the gate's files.

    :raises HookError: if the node cannot be resumed; then nothing has been removed.
    """
    with alone(host):
        memory = effects.load(host)
        effects.settle(host, memory, load_state(host))
        order = effects.DrainOrder(False, ids=[], text=NO_DRAIN, by=None, commands={}, run=False)
        message = effects.apply(host, memory, order)
        host.write(PASS, _pass(boot.uptime(host.text("/proc/uptime") or "")))
        message += _start(host)
        from . import return_tests  # a check needs it only where the class declares tests

        for name in (PASS, STATE, REASON, RECORD, MODE, effects.NOTE, return_tests.FILE):
            host.remove(name)
        return message


def _pass(now: Optional[float]) -> bytes:
    return f"{now or 0:.0f} {LIMIT}\n".encode()


# -- the scheduler


def resume(host: Host, text: str) -> bool:
    """Resume the node if Slurm has drained it for a reason that begins with `text`. Return whether
    it was.

    :raises HookError: if Slurm does not answer.
    """
    return scheduler.program(host) is not None and effects.resume_reason(host, text)


# -- container runtimes


def _start(host: Host) -> List[str]:
    """Start the units that the drop-in has refused, unless a person has disabled or masked them
    since. Does not call systemd if it refused none.
    """
    names = [name.rpartition("/")[2] for name in host.glob(REFUSED, "*.service")]
    if not names:
        return []
    messages = []
    for unit in systemd.units(host, names).values():
        name, enabled = unit["Id"], unit["UnitFileState"]
        if enabled == "disabled":  # as first asked for, until a daemon-reload
            enabled = host.run("systemctl", "is-enabled", name).out.strip() or enabled
        if unit["LoadState"] != "loaded" or enabled not in systemd.ENABLED:
            messages.append(
                f"gate: {name} stays down: it is {enabled or unit['LoadState']}, which an "
                "administrator decided"
            )
        elif unit["ActiveState"] in ("inactive", "failed"):
            # Repeated refusals hit the start limit of the unit, and of the socket that triggers it.
            host.run("systemctl", "reset-failed", name, *unit["TriggeredBy"].split())
            # --no-block: the boot check is ordered before the runtimes, and would wait for itself.
            done = host.run("systemctl", "start", "--no-block", name)
            text = f"starts {name}, which it had kept out"
            if done.rc != 0:
                text = f"cannot start {name}: {done.tail(1)}"
            messages.append(f"gate: {text}")
        host.remove(f"{REFUSED}/{name}")
    return messages


# -- files


def load_state(host: Host) -> Json:
    """Return the state of the gate; empty if it is missing, torn or cannot be read."""
    try:
        return as_map(json.loads(host.text(STATE) or "{}"))
    except (OSError, ValueError, RecursionError):
        return {}


def _keep(host: Host, name: str, value: Json) -> None:
    """Write a record unless it is unchanged.

    A passive check of an unchanged node must not write to its disk.
    """
    text = by_lines(value, ordered=True) + "\n"
    if host.text(name) != text:
        host.write(name, text.encode())


class _Lock:
    """An open lock, which ``with`` releases."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __enter__(self) -> _Lock:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def alone(host: Host) -> _Lock:
    """Lock the gate for one check, with ``with``: checks of the boot, the timer and a person may
    run at the same time.

    Where /run cannot be written, its nearest directory is the lock.
    """
    here = host.located(GUARD)
    try:
        os.makedirs(os.path.dirname(here), exist_ok=True)
        handle = os.open(here, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        if problem.errno not in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        while not os.path.exists(here):
            here = os.path.dirname(here)
        handle = os.open(here, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return _Lock(handle)


def _busy(host: Host) -> bool:
    """Return whether a goldnode run is changing the node now: it holds the engine's lock."""
    if not host.exists(ENGINE):
        return False
    with open(host.located(ENGINE), "rb") as opened:  # /run may be read-only
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
