"""The gate: the effects of a verdict, by the class's `gate` mode.

`report` only reports. `drain` also drains the node in the scheduler. `block` does not drain, but prevents container
runtimes from starting. A node is bad if one of these holds:

* No verdict counts: it is missing, not readable, of another boot or class, or older than its limit.
* The verdict is `not this class` (exit code 4), or has no finding at all.
* A finding of severity `drain` is a mismatch, could not be read, or has an outcome that this program does not
  know.

`not_verified_here` does not make a node bad. A container or simulated hardware cannot show the item, which
leaves the exit code at 3 but is no reason to stop work. The same holds for `not_exposed`, `deferred` and
`suppressed`, and for all findings of severity `degraded`.

With `drain` a node is also bad while tests before its return are outstanding (:mod:`.return_tests`), if its class
declares some.

The gate never stops running work. A runtime that runs when the node becomes bad continues to run. An
`ExecCondition=` in plain shell (:func:`drop_in`) refuses a later start, and works without this program. The
daemons of Slurm and Kubernetes always start.

Files: `PASS` exists exactly while the gate lets work start; it holds the uptime of its verdict and for how
many seconds the verdict counts. `STATE` is the gate's state as JSON (schema goldnode.gate/1: mode, open,
reasons, since, verdict_time, told, error). `REASON` is one line of text. `MEMORY` survives a reboot: it
records what this gate has drained, so that the gate resumes nothing else. `MODE` is its mode, for shell
programs.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import suppress
from typing import NamedTuple

from . import boot, drained
from .host import Host, Json, boot_identity
from .json_lines import by_lines
from .state.finding import FINE
from .verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Dict, List, Mapping, Optional, Protocol, Sequence, TypeAlias

    from .return_tests import Held

    class Evidence(Protocol):
        """Capture and stored state of a check (verdict.check.Checked)."""

        @property
        def capture(self) -> Optional[Json]: ...
        @property
        def memory(self) -> Optional[Json]: ...


REPORT, DRAIN, BLOCK = "report", "drain", "block"
SCHEMA = "goldnode.gate/1"
PASS = "/run/goldnode/pass"  # noqa: S105 - a file whose presence lets work start, not a password
STATE = "/run/goldnode/gate.json"
REASON = "/run/goldnode/gate.reason"
REFUSED = (
    "/run/goldnode/kept"  # one empty file per unit that the drop-in refused to start; the drop-in creates it
)
GUARD = "/run/goldnode/gate.lock"
ENGINE = "/run/goldnode/engine.lock"
MEMORY = "/var/lib/goldnode/gate.json"
MODE = "/var/lib/goldnode/gate.mode"
# States for which `systemctl is-enabled` succeeds.
ENABLED = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
DROP_IN = "goldnode-gate.conf"  # in the drop-in directory of a runtime
RUNTIMES = ("docker.service", "containerd.service")
SLURM = ("/usr/bin/scontrol", "/usr/local/bin/scontrol", "/opt/slurm/bin/scontrol")
OWN = "goldnode:"  # prefix of our reasons
NO_TARGET = "drain has no target: the node is not of a Slurm cluster, and the site file names no commands"
HOOK_TIME = 45.0  # seconds for one call; two calls and the check fit into the time limit of the unit
LONGEST = 240  # characters of a reason: one line in `systemctl status`, in sinfo and at login

Document: TypeAlias = "Mapping[str, Any]"


class Reason(NamedTuple):
    """One reason why the node is bad: the id of the finding, and a sentence about it."""

    id: str
    text: str


class HookError(Exception):
    """Failure of a hook. The next check tries it again."""


def reasons(verdict: Any, fault: Optional[str] = None) -> List[Reason]:
    """Return why a node is bad for the gate; empty if it is not. The docstring of this module has the rule.
    Pure.

    :param fault: why the verdict does not count (:func:`verdict.current.fault`).
    """
    if fault is not None:
        return [Reason("verdict", fault)]
    found = [
        Reason(
            str(finding["id"]),
            one_line(f"{finding['id']}: {finding['got'] or 'nothing'} (want {finding['expected']})"),
        )
        for finding in bad_findings(verdict)
    ]
    if not found and verdict["exit_code"] == 4:
        return [Reason("class", f"the node is not of class {verdict['class']}")]
    return found if found or verdict["findings"] else [Reason("verdict", "nothing was judged")]


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
    line = " ".join(
        (
            text
            if text.isprintable()
            else "".join(letter if letter.isprintable() else " " for letter in text)
        ).split()
    )
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def sentence(found: Sequence[Reason]) -> str:
    """Return all reasons in one line."""
    more = f" (and {len(found) - 2} more)" if len(found) > 2 else ""
    return one_line("; ".join(reason.text for reason in found[:2]))[: LONGEST - len(more)] + more


def drop_in() -> str:
    """Return the drop-in that keeps a container runtime from starting without a valid pass.

    * When its file is gone (another mode, or the node has left goldnode), every start succeeds, even if
      systemd has not been reloaded.
    * It is plain shell, so that it also refuses when the program is broken.
    * Its reason appears in `systemctl status`. journald assigns a line of output to a unit only while the
      process that wrote it exists, and on a busy machine it looks too late. So the reason names its unit
      (`OBJECT_SYSTEMD_UNIT`, which journald takes from root). Where `logger` cannot do that, the reason goes to
      the output, and the shell waits before it ends.
    * It takes the age of the pass from /proc/uptime, which does not jump when the clock is set.
    * `$$` and `%%` are systemd's escapes for `$` and `%`; it makes a backslash of two.
    """
    return f"""# goldnode: the class of this node has `gate: block`
[Unit]
After=goldnode-sanity.service

[Service]
ExecCondition=/bin/sh -c '[ -e /etc/systemd/system/%n.d/{DROP_IN} ] || exit 0; \\
 [ -r {PASS} ] && read at limit <{PASS} && read now rest </proc/uptime \\
 && [ $$(( $${{now%%%%.*}} - at )) -le $$limit ] && exec rm -f {REFUSED}/%n; \\
 mkdir -p {REFUSED}; : >{REFUSED}/%n; \\
 if [ -e {PASS} ]; then why="goldnode gate: the last verdict is too old; \
see systemctl status goldnode-watch.timer"; \\
 elif [ -s {REASON} ]; then why=$$(cat {REASON}); \\
 else why="goldnode gate: no verdict since this boot; \
see systemctl status goldnode-sanity.service"; fi; \\
 printf "MESSAGE=%%s\\\\nPRIORITY=4\\\\nSYSLOG_IDENTIFIER=goldnode\\\\nOBJECT_SYSTEMD_UNIT=%n\\\\n" "$$why" \\
 | logger --journald 2>/dev/null || {{ printf "%%s\\\\n" "$$why" >&2; sleep 1; }}; exit 1'
"""


def save(host: Host, verdict: Json, text: str) -> None:
    """Write the verdict, and its summary for shell programs, which also run where there is no Python.

    :param text: the verdict as JSON. Raises OSError; then neither file is left, so that no earlier verdict counts.
    """
    uptime = verdict["uptime"]
    at = "-" if uptime is None else str(int(uptime))
    line = f"{at} {verdict['exit_code']} {verdict['status']} {verdict['class'] or 'unknown'}\n"
    before = status_before(host)
    try:
        host.write(current.VERDICT, text.encode())
        host.write(current.STATUS, line.encode())
    except OSError:
        for name in (current.VERDICT, current.STATUS):
            with suppress(OSError):
                host.remove(name)
        raise
    if host.live and before != verdict["status"]:
        _journal_verdict(host, verdict, before)


def status_before(host: Host) -> Optional[str]:
    """Return the status of the last verdict of this boot; None without one."""
    words = (host.text(current.STATUS) or "").split()
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
    host: Host, document: Optional[Document], verdict: Any, checked: Optional[Evidence] = None
) -> List[str]:
    """Apply a verdict. Return messages for the user, line by line.

    A hook that fails is reported, recorded in STATE, and tried again at the next check.

    :param document: the node's class document. If None, it cannot be read, and the gate stays in its last
        mode.
    :param verdict: the verdict that was just written.
    :param checked: the check behind it, for tests before a return. None: they get no new cause by capture or absence.
    """
    with alone(host):
        memory = _load(host, MEMORY)
        before = _load(host, STATE)
        mode = str((document or {}).get("gate") or memory.get("mode") or REPORT)
        now = boot.uptime(host.text("/proc/uptime") or "")
        found = reasons(verdict, current.fault(verdict, boot_identity(host), now))
        opened = mode == REPORT or not found
        if before.get("open") and _busy(host):
            # The run checks the node itself when it has finished. Until then an open gate stays open.
            host.write(PASS, _pass(now))
            return ["gate: a goldnode run changes this node; the gate stays open until it is through"]
        messages: List[str] = []
        held = None
        if mode == DRAIN and document and document.get("return_tests"):
            # Before any other effect: a check that is killed must not leave a drain without its tests.
            held = _tests(host, document, verdict, found, memory, checked)
            found = found or [Reason(*row) for row in held.reasons]
            opened = not found
        state = {
            "schema": SCHEMA,
            "mode": mode,
            "open": opened,
            "reasons": [reason.text for reason in found],
            "since": before.get("since"),
            "verdict_time": verdict.get("time") if isinstance(verdict, dict) else None,
        }
        if held is not None:
            state["tests"] = held.state
        if any(state[key] != before.get(key) for key in ("mode", "open", "reasons")) or not state["since"]:
            state["since"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            messages.append(
                f"gate ({mode}): {'open' if opened else 'closed'}" + (f": {sentence(found)}" if found else "")
            )
        # Remove the pass before any slow call; create it only after the reason has been cleared.
        if not opened:
            host.remove(PASS)
        host.write(REASON, (f"goldnode gate: {sentence(found)}\n" if found else "").encode())
        if opened:
            host.write(PASS, _pass(now))
        drain, error = memory.get("drained"), None
        try:
            messages += _drain_or_resume(host, document or {}, mode, found, memory, drained.lasts(host))
            if held is not None and (state["reasons"] != before.get("reasons") or before.get("error")):
                _renew(host, found, memory.get("drained"))
        except HookError as problem:
            error = str(problem)
            messages.append(f"gate: {error}; it is tried again at the next check")
        if held is not None:
            held = _finish(host, held, memory.get("drained") is None)
            messages += held.messages
        memory["mode"] = mode
        state["told"], state["error"] = memory.get("drained"), error
        _keep(host, MEMORY, memory)
        _keep(host, STATE, state)
        if host.text(MODE) != f"{mode}\n":
            host.write(MODE, f"{mode}\n".encode())
        if opened:
            messages += _start(host)
        _journal(host, document or {}, before, state, drain)
        if held is not None:
            _journal_tests(host, document or {}, held)
        return messages


def _tests(
    host: Host,
    document: Document,
    verdict: Any,
    found: Sequence[Reason],
    memory: Json,
    checked: Optional[Evidence],
) -> Held:
    """Return what the tests before a return hold; `memory` records that this gate has them."""
    from . import return_tests  # most classes declare none

    seen = return_tests.Seen(
        bad=bad_findings(verdict) if found and found[0].id != "verdict" else [],
        good=not found,
        capture=(checked.capture if checked is not None else None) or {},
        absence=((checked.memory if checked is not None else None) or {}).get("absence"),
        days=0.0,
        record={},
    )
    # A memory that is torn may have been that of a node with a record.
    begun = bool(memory.get("tests")) or ("mode" not in memory and host.exists(MEMORY))
    held = return_tests.settle(host, document, seen, begun)
    if not memory.get("tests"):
        memory["tests"] = True
        _keep(host, MEMORY, memory)
    return held


def _finish(host: Host, held: Held, returned: bool) -> Held:
    from . import return_tests

    return return_tests.finish(host, held, returned)


def _journal_tests(host: Host, document: Document, held: Held) -> None:
    """Write the causes that this check has opened or closed into the journal."""
    if not held.entries:
        return
    from . import journal

    common = _common(document.get("class"), document.get("simulated"))
    for event, text, fields in held.entries:
        priority = journal.WARNING if event == "tests.opened" else journal.NOTICE
        journal.send(host, event, text, priority, {**fields, **common})


def _journal(host: Host, document: Document, before: Json, state: Json, drain: Optional[Json]) -> None:
    """Write what this check has changed into the journal.

    :param drain: the drain before it, as in MEMORY; that after it is in `state`.
    """
    keys = ("open", "error") if state["open"] else ("open", "error", "reasons")
    if all(before.get(key) == state[key] for key in keys) and drain == state["told"]:
        return
    from . import journal

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
    elif not state["open"] and (before.get("open") is not False or before.get("reasons") != state["reasons"]):
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
        memory = _load(host, MEMORY)
        message = _drain_or_resume(host, {}, REPORT, [], memory, False)
        host.write(PASS, _pass(boot.uptime(host.text("/proc/uptime") or "")))
        message += _start(host)
        from . import return_tests  # a check needs it only where the class declares tests

        for name in (PASS, STATE, REASON, MEMORY, MODE, return_tests.FILE):
            host.remove(name)
        return message


def _pass(now: Optional[float]) -> bytes:
    return f"{now or 0:.0f} {current.LIMIT}\n".encode()


# -- the scheduler


def hook(host: Host, document: Document) -> Optional[str]:
    """Return the target of a drain: `command` (the site's own commands), `slurm`, or None."""
    if (document.get("site") or {}).get("gate"):
        return "command"  # the site's own declaration has precedence over detection
    return "slurm" if _scontrol(host) else None


def _drain_or_resume(
    host: Host, document: Document, mode: str, found: Sequence[Reason], memory: Json, run: bool
) -> List[str]:
    """Drain or resume the node, unless that has been done already.

    `memory["drained"]` records the drain: {by, ours, ids, commands, since}. A node that was drained before
    the gate acted is not ours to resume. If a person resumes a bad node, the gate leaves it in service until
    there is a new reason.

    :param run: whether a run has the node out of service, or has left it so. Until that run has ended the
        gate resumes nothing, because the run may be about to reboot the node. In Slurm the gate replaces the
        reason of the run's drain, so that the run does not return a bad node. A command of the site is called
        only after the run.
    """
    before = memory.get("drained")
    ids = {reason.id for reason in found}
    if mode == DRAIN and found:
        if before and ids <= set(before["ids"]):
            return []
        by = hook(host, document)
        if run and by == "command":
            return [
                "gate: a goldnode run has the node out of service; the gate drains it when that run has ended"
            ]
        own = bool(before and before["ours"])
        text = one_line(f"{OWN} {sentence(found)}")
        commands = (document.get("site") or {}).get("gate") or {}
        if by == "command":
            own = _command(host, commands["drain"], text) or own
        else:
            row = _slurm_row(host) if by else None
            if row is None:
                raise HookError(NO_TARGET)
            by, own = "slurm", _slurm_drain(host, row, text, own)
        memory["drained"] = {
            "by": by,
            "ours": own,
            "ids": sorted(ids | set(before["ids"] if before else ())),
            "commands": commands,
            "since": before["since"] if before else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        return [f"gate: {'drained' if own else 'was drained already'} ({by}): {text}"]
    if not before:
        return []
    message = "gate: the node was drained by another party, and stays drained"
    if before["ours"] and run:
        return [
            "gate: a goldnode run has the node out of service; the gate resumes it when that run has ended"
        ]
    if before["ours"]:
        text = (
            f"{OWN} the node is what its class says again"
            if mode == DRAIN
            else f"{OWN} the class does not drain any more"
        )
        commands = (document.get("site") or {}).get("gate") or before["commands"]
        resumed = _slurm_resume(host) if before["by"] == "slurm" else _command(host, commands["resume"], text)
        message = (
            f"gate: resumed ({before['by']})"
            if resumed
            else "gate: the reason for which the node is drained is not ours now; it stays so"
        )
    memory["drained"] = None
    return [message]


def _command(host: Host, words: Sequence[str], text: str) -> bool:
    """Run a command of the site with the reason as its last argument. Return whether it did something.

    Exit status 0 means done, 3 that there was nothing to do (the node was drained already).
    """
    done = host.run(*words, text, timeout=HOOK_TIME)
    if done.rc not in (0, 3):
        raise HookError(one_line(f"{words[0]} ended with {done.rc}: {done.tail(2)}"))
    return done.rc == 0


def _scontrol(host: Host) -> Optional[str]:
    return next((name for name in SLURM if host.exists(name)), None)


def _scontrol_run(host: Host, *arguments: str) -> str:
    program = _scontrol(host)
    if program is None:
        raise HookError(
            f"scontrol is not on this node any more; resume the node by hand, then delete {MEMORY}"
        )
    done = host.run(program, *arguments, timeout=HOOK_TIME)
    if done.rc != 0 and not re.search(r"not found|invalid node name", done.out + done.err, re.IGNORECASE):
        raise HookError(one_line(f"scontrol {arguments[0]} ended with {done.rc}: {done.tail(2)}"))
    return done.out if done.rc == 0 else ""


def _slurm_row(host: Host) -> Optional[Dict[str, str]]:
    """Return Slurm's record of this node: {name, state, reason}; None without one. The node's name in Slurm
    may differ from its hostname.
    """
    own = (host.text("/proc/sys/kernel/hostname") or "").strip().partition(".")[0]
    for asked in ((own,), ()):  # by hostname first, then among all nodes
        for line in _scontrol_run(host, "show", "node", *asked, "--oneliner").splitlines():
            fields = dict(re.findall(r"\b(NodeName|NodeHostName|State)=(\S+)", line))
            if fields.get("NodeName") and own in (
                fields["NodeName"],
                fields.get("NodeHostName", "").partition(".")[0],
            ):
                reason = re.search(r"\bReason=(.*)", line)
                return {
                    "name": fields["NodeName"],
                    "state": fields.get("State", ""),
                    "reason": reason.group(1) if reason else "",
                }
    return None


def _is_drained(row: Mapping[str, str]) -> bool:
    """Return whether Slurm shows the node as drained. It uses flags, as in IDLE+DRAIN or DOWN*+DRAIN."""
    return any(
        flag.rstrip("*~#!%$@^-") in ("DRAIN", "DRAINED", "DRAINING") for flag in row["state"].split("+")
    )


def _slurm_drain(host: Host, row: Mapping[str, str], text: str, own: bool) -> bool:
    """Drain the node unless it is drained already. Return whether the drain is ours.

    A drain of ours, or of a goldnode run, gets the new reason.
    """
    if (
        _is_drained(row)
        and not (own and row["reason"].startswith(OWN))
        and drained.mark(_without_author(row["reason"])) is None
    ):
        return False
    _scontrol_run(host, "update", f"NodeName={row['name']}", "State=DRAIN", f"Reason={text}")
    return True


def _without_author(reason: str) -> str:
    """Return the reason without the author and time that Slurm appends."""
    text, bracket, rest = reason.strip().rpartition(" [")
    return text if bracket and rest.endswith("]") and "@" in rest else reason.strip()


def _slurm_resume(host: Host) -> bool:
    """Resume the node if it is drained for a reason of ours. Return whether it was."""
    row = _slurm_row(host)
    if row is None or not _is_drained(row) or not row["reason"].startswith(OWN):
        return False
    _scontrol_run(host, "update", f"NodeName={row['name']}", "State=RESUME")
    return True


def _renew(host: Host, found: Sequence[Reason], drain: Optional[Json]) -> None:
    """Write the present reasons into Slurm where tests alone hold a drain of ours. A node that is not drained for a
    reason of ours stays as it is.
    """
    if not drain or not drain["ours"] or drain["by"] != "slurm" or not found:
        return
    from .return_tests import ID  # only where the class declares tests

    if not all(reason.id.startswith(ID) for reason in found):
        return
    row, text = _slurm_row(host), one_line(f"{OWN} {sentence(found)}")
    if row is None or not _is_drained(row) or not row["reason"].startswith(OWN):
        return
    if _without_author(row["reason"]) != text:
        _scontrol_run(host, "update", f"NodeName={row['name']}", f"Reason={text}")


def resume(host: Host, text: str) -> bool:
    """Resume the node if Slurm has drained it for a reason that begins with `text`. Return whether it was.

    :raises HookError: if Slurm does not answer.
    """
    row = _slurm_row(host) if _scontrol(host) else None
    if row is None or not _is_drained(row) or not row["reason"].startswith(text):
        return False
    _scontrol_run(host, "update", f"NodeName={row['name']}", "State=RESUME")
    return True


# -- container runtimes


def _start(host: Host) -> List[str]:
    """Start the units that the drop-in has refused, unless a person has disabled or masked them since. Does
    not call systemd if it refused none.
    """
    names = [name.rpartition("/")[2] for name in host.glob(REFUSED, "*.service")]
    if not names:
        return []
    messages = []
    for unit in units(host, names).values():
        name = unit["Id"]
        if unit["LoadState"] != "loaded" or unit["UnitFileState"] not in ENABLED:
            messages.append(
                f"gate: {name} stays down: it is {unit['UnitFileState'] or unit['LoadState']}, which an "
                "administrator decided"
            )
        elif unit["ActiveState"] in ("inactive", "failed"):
            # Repeated refusals hit the start limit of the unit, and of the socket that triggers it.
            host.run("systemctl", "reset-failed", name, *unit["TriggeredBy"].split())
            # --no-block: the boot check is ordered before the runtimes, and would wait for itself.
            done = host.run("systemctl", "start", "--no-block", name)
            messages.append(
                f"gate: starts {name}, which it had kept out"
                if done.rc == 0
                else f"gate: cannot start {name}: {done.tail(1)}"
            )
        host.remove(f"{REFUSED}/{name}")
    return messages


PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
    "TriggeredBy",
    "Listen",
) + (
    "SubState",  # from here on for the capture (probe/software.py), so that it needs no call of its own
    "Result",
    "NRestarts",
    "StateChangeTimestampMonotonic",
)


def units(host: Host, names: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """Return the state of units from one call of systemctl: name -> :data:`PROPERTIES`.

    An unknown unit has the state `not-found`.
    """
    shown = host.run("systemctl", "show", "-p", ",".join(PROPERTIES), *names).out
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in shown.split("\n\n")
    ]
    return {
        block["Id"]: {key: block.get(key, "") for key in PROPERTIES} for block in blocks if block.get("Id")
    }


# -- files


def _load(host: Host, name: str) -> Json:
    """Return a record of the gate; empty if it is missing or torn."""
    try:
        found = json.loads(host.text(name) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def load_state(host: Host) -> Json:
    """Return the state of the gate; empty without one."""
    return _load(host, STATE)


def _keep(host: Host, name: str, value: Json) -> None:
    """Write a record unless it is unchanged.

    A passive check of an unchanged node must not write to its disk.
    """
    text = by_lines(value, ordered=True) + "\n"
    if host.text(name) != text:
        host.write(name, text.encode())


def alone(host: Host) -> IO[str]:
    """Lock the gate for one check, and return the open lock file: checks of the boot, the timer and a person
    may run at the same time.

    Use it with ``with``, which releases the lock.
    """
    here = host.located(GUARD)
    os.makedirs(os.path.dirname(here), exist_ok=True)
    opened = open(here, "a")  # noqa: SIM115 - the caller closes it
    fcntl.flock(opened, fcntl.LOCK_EX)
    return opened


def _busy(host: Host) -> bool:
    """Return whether a goldnode run is changing the node now: it holds the engine's lock."""
    if not host.exists(ENGINE):
        return False
    with open(host.located(ENGINE), "a") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
