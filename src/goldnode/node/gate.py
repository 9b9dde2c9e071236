"""The gate: what a verdict does, by the class's `gate`: `report` tells, `drain` also tells the scheduler, `block` also keeps container
runtimes from starting.

A node is **bad for the gate** when one of these holds (:func:`reasons`):

* there is no verdict that counts: it is missing, not readable, of another boot or class, or older than its limit;
* it says `not this class` (exit code 4), or it holds no finding at all;
* a finding of severity `drain` is a mismatch, could not be read, or has an outcome that this program does not know.

`not_verified_here` does not make a node bad: a container or simulated hardware cannot show the item, which keeps the exit code at 3 and is
no reason to stop work. Neither do `not_exposed`, `deferred` and `suppressed`, nor anything of severity `degraded`.

Nothing here ever stops what runs. A runtime that runs when a node becomes bad goes on running; a later start of it is refused by an
`ExecCondition=` in plain shell (:func:`drop_in`), which works without this program. Slurm's and Kubernetes' daemons always start.

Files: `PASS` exists exactly while the gate lets work start, and holds the uptime of its verdict and for how many seconds that counts;
`STATE` says so in JSON (schema goldnode.gate/1: mode, open, reasons, since, verdict_time, told, error); `REASON` is one line of text.
`MEMORY` outlives a boot: whom this gate has told that the node is drained, so that it takes back only that.
"""

from __future__ import annotations

import fcntl
import os
import time

from . import boot, drained
from . import quickjson as json
from .host import Host, Json, boot_identity
from .later import re
from .lines import by_lines
from .plain import NamedTuple
from .state.finding import FINE
from .verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Dict, List, Mapping, Optional, Sequence, TypeAlias


REPORT, DRAIN, BLOCK = "report", "drain", "block"
SCHEMA = "goldnode.gate/1"
PASS = "/run/goldnode/pass"  # noqa: S105 - a file whose presence lets work start, not a password
STATE = "/run/goldnode/gate.json"
REASON = "/run/goldnode/gate.reason"
KEPT = (
    "/run/goldnode/kept"  # one empty file per unit that the drop-in has refused; the drop-in itself makes it
)
GUARD = "/run/goldnode/gate.lock"
ENGINE = "/run/goldnode/engine.lock"
MEMORY = "/var/lib/goldnode/gate.json"
ENABLED = (
    "enabled",
    "enabled-runtime",
    "static",
    "alias",
    "indirect",
    "generated",
)  # where `systemctl is-enabled` says yes
DROP_IN = "goldnode-gate.conf"  # in the drop-in directory of a runtime
RUNTIMES = ("docker.service", "containerd.service")
SLURM = ("/usr/bin/scontrol", "/usr/local/bin/scontrol", "/opt/slurm/bin/scontrol")
OWN = "goldnode:"  # what a reason of ours begins with
NOBODY = "drain has nobody to tell: the node is not of a Slurm cluster, and the site file names no commands"
HOOK_TIME = 45.0  # seconds for one call; two of them and the check fit into the time limit of the unit
LONGEST = 240  # characters of a reason: one line in `systemctl status`, in sinfo, at login

Document: TypeAlias = "Mapping[str, Any]"


class Reason(NamedTuple):
    """Why the node is bad: the id of the finding, and a sentence about it."""

    id: str
    text: str


class HookError(Exception):
    """A hook failed; it is tried again at the next check."""


def reasons(verdict: Any, fault: Optional[str] = None) -> List[Reason]:
    """Return why a node is bad for the gate; empty if it is not. The rule is in the docstring of this module.
    Pure.

    :param fault: why the verdict does not count (:func:`verdict.current.fault`).
    """
    if fault is not None:
        return [Reason("verdict", fault)]
    found = [
        Reason(
            str(finding["id"]),
            plain(f"{finding['id']}: {finding['got'] or 'nothing'} (want {finding['expected']})"),
        )
        for finding in verdict["findings"]
        if finding["severity"] != "degraded" and finding["outcome"] not in FINE
    ]
    if not found and verdict["exit_code"] == 4:
        return [Reason("class", f"the node is not of class {verdict['class']}")]
    return found if found or verdict["findings"] else [Reason("verdict", "nothing was judged")]


def plain(text: str) -> str:
    """One line without control characters, of at most :data:`LONGEST` characters: it goes to terminals and to other programs."""
    line = " ".join(
        (
            text
            if text.isprintable()
            else "".join(letter if letter.isprintable() else " " for letter in text)
        ).split()
    )
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def sentence(found: Sequence[Reason]) -> str:
    """All reasons in one line."""
    more = f" (and {len(found) - 2} more)" if len(found) > 2 else ""
    return plain("; ".join(reason.text for reason in found[:2]))[: LONGEST - len(more)] + more


def drop_in() -> str:
    """The drop-in that keeps a container runtime from starting while there is no pass, or one that counts no more.

    Once its file has gone (another mode, or the node has left goldnode) it lets everything start, whether systemd has been reloaded or not.
    Plain shell, so that it refuses as well when the program is broken. What it prints is what `systemctl status` shows. The age of the
    pass is taken from /proc/uptime, which does not jump when the clock is set. `$$` and `%%` are systemd's for `$` and `%`. It waits a
    moment before it refuses: journald asks a process that is still there which start of the unit its line belongs to, and only then
    does `systemctl status` show the line.
    """
    return f"""# goldnode: this node's class says `gate: block`
[Unit]
After=goldnode-sanity.service

[Service]
ExecCondition=/bin/sh -c '[ -e /etc/systemd/system/%n.d/{DROP_IN} ] || exit 0; \
 [ -r {PASS} ] && read at limit <{PASS} && read now rest </proc/uptime \\
 && [ $$(( $${{now%%%%.*}} - at )) -le $$limit ] && exec rm -f {KEPT}/%n; \\
 mkdir -p {KEPT}; : >{KEPT}/%n; \\
 if [ -e {PASS} ]; then echo "goldnode gate: the last verdict is too old; see systemctl status goldnode-watch.timer"; \\
 elif [ -s {REASON} ]; then cat {REASON}; \\
 else echo "goldnode gate: no verdict since this boot; see systemctl status goldnode-sanity.service"; fi >&2; sleep 1; exit 1'
"""


def act(host: Host, document: Optional[Document], verdict: Any) -> List[str]:
    """Let a verdict act. Returns what there is to tell, line by line; what fails is told, kept in STATE, and tried again next time.

    :param document: the node's class document; None where it cannot be read, and then the gate stays in the mode it was in.
    :param verdict: the verdict as it was just written.
    """
    with _alone(host):
        memory = _load(host, MEMORY)
        before = _load(host, STATE)
        mode = str((document or {}).get("gate") or memory.get("mode") or REPORT)
        now = boot.uptime(host.text("/proc/uptime") or "")
        found = reasons(verdict, current.fault(verdict, boot_identity(host), now))
        opened = mode == REPORT or not found
        if before.get("open") and _busy(host):
            # The run that changes the node judges it when it has finished; until then what may start still may.
            host.write(PASS, _pass(now))
            return ["gate: a goldnode run changes this node; the gate stays open until it is through"]
        told: List[str] = []
        state = {
            "schema": SCHEMA,
            "mode": mode,
            "open": opened,
            "reasons": [reason.text for reason in found],
            "since": before.get("since"),
            "verdict_time": verdict.get("time") if isinstance(verdict, dict) else None,
        }
        if any(state[key] != before.get(key) for key in ("mode", "open", "reasons")) or not state["since"]:
            state["since"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            told.append(
                f"gate ({mode}): {'open' if opened else 'closed'}" + (f": {sentence(found)}" if found else "")
            )
        # The pass goes before anything slow is asked, and comes back only after the reason has gone.
        if not opened:
            host.remove(PASS)
        host.write(REASON, (f"goldnode gate: {sentence(found)}\n" if found else "").encode())
        if opened:
            host.write(PASS, _pass(now))
        error = None
        try:
            told += _tell(host, document or {}, mode, found, memory, drained.lasts(host))
        except HookError as problem:
            error = str(problem)
            told.append(f"gate: {error}; it is tried again at the next check")
        memory["mode"] = mode
        state["told"], state["error"] = memory.get("drained"), error
        _keep(host, MEMORY, memory)
        _keep(host, STATE, state)
        if opened:
            told += _start(host)
        return told


def release(host: Host) -> List[str]:
    """Take the gate away (the node leaves goldnode): what it has drained is resumed, what it keeps down may start, its files go.

    :raises HookError: when the node cannot be resumed; then nothing has been removed.
    """
    with _alone(host):
        memory = _load(host, MEMORY)
        told = _tell(host, {}, REPORT, [], memory, False)
        host.write(PASS, _pass(boot.uptime(host.text("/proc/uptime") or "")))
        told += _start(host)
        for name in (PASS, STATE, REASON, MEMORY):
            host.remove(name)
        return told


def _pass(now: Optional[float]) -> bytes:
    return f"{now or 0:.0f} {current.LIMIT}\n".encode()


# -- telling the scheduler


def hook(host: Host, document: Document) -> Optional[str]:
    """Return who is notified of a drain: `command` (the site's own commands), `slurm`, or None."""
    if (document.get("site") or {}).get("gate"):
        return "command"  # what a site says itself goes before what is found on the node
    return "slurm" if _scontrol(host) else None


def _tell(
    host: Host, document: Document, mode: str, found: Sequence[Reason], memory: Json, run: bool
) -> List[str]:
    """Drain or resume, when that has not been done yet; `memory["drained"]` is what was told: {by, ours, ids, commands, since}.

    A node that is drained already is somebody else's to resume. One that a person resumes while it is bad stays so until it is bad in
    another way.

    :param run: whether a run has the node out of service, or has left it so. Until the run has ended nothing is resumed, for it may be
        about to boot the node. What Slurm shows of the run's drain the gate takes over, so that the run does not return a bad node; a
        command of the site is called after the run.
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
        ours = bool(before and before["ours"])
        text = plain(f"{OWN} {sentence(found)}")
        commands = (document.get("site") or {}).get("gate") or {}
        if by == "command":
            ours = _command(host, commands["drain"], text) or ours
        else:
            row = _slurm_row(host) if by else None
            if row is None:
                raise HookError(NOBODY)
            by, ours = "slurm", _slurm_drain(host, row, text, ours)
        memory["drained"] = {
            "by": by,
            "ours": ours,
            "ids": sorted(ids | set(before["ids"] if before else ())),
            "commands": commands,
            "since": before["since"] if before else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        return [f"gate: {'drained' if ours else 'was drained already'} ({by}): {text}"]
    if not before:
        return []
    told = "gate: the node was drained by somebody else, and stays so"
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
        told = (
            f"gate: resumed ({before['by']})"
            if resumed
            else "gate: the reason for which the node is drained is not ours now; it stays so"
        )
    memory["drained"] = None
    return [told]


def _command(host: Host, words: Sequence[str], text: str) -> bool:
    """A command of the site with the reason as its last word; status 0 is done, 3 that there was nothing to do (drained already)."""
    done = host.run(*words, text, timeout=HOOK_TIME)
    if done.rc not in (0, 3):
        raise HookError(plain(f"{words[0]} ended with {done.rc}: {done.tail(2)}"))
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
        raise HookError(plain(f"scontrol {arguments[0]} ended with {done.rc}: {done.tail(2)}"))
    return done.out if done.rc == 0 else ""


def _slurm_row(host: Host) -> Optional[Dict[str, str]]:
    """Return Slurm's record of this node: {name, state, reason}; None without one. Slurm's name of the node
    may differ from its hostname.
    """
    own = (host.text("/proc/sys/kernel/hostname") or "").strip().partition(".")[0]
    for asked in ((own,), ()):
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
    """Slurm shows a drained node with flags, as in IDLE+DRAIN or DOWN*+DRAIN."""
    return any(
        flag.rstrip("*~#!%$@^-") in ("DRAIN", "DRAINED", "DRAINING") for flag in row["state"].split("+")
    )


def _slurm_drain(host: Host, row: Mapping[str, str], text: str, ours: bool) -> bool:
    """Drain the node unless it is drained; return whether the drain is ours. A drain of ours, or of a
    goldnode run, gets the new reason.
    """
    if (
        _is_drained(row)
        and not (ours and row["reason"].startswith(OWN))
        and drained.mark(_without_author(row["reason"])) is None
    ):
        return False
    _scontrol_run(host, "update", f"NodeName={row['name']}", "State=DRAIN", f"Reason={text}")
    return True


def _without_author(reason: str) -> str:
    """The reason without Slurm's note of who gave it and when."""
    text, bracket, rest = reason.strip().rpartition(" [")
    return text if bracket and rest.endswith("]") and "@" in rest else reason.strip()


def _slurm_resume(host: Host) -> bool:
    """Resume the node when it is drained for a reason of ours; whether that was so."""
    row = _slurm_row(host)
    if row is None or not _is_drained(row) or not row["reason"].startswith(OWN):
        return False
    _scontrol_run(host, "update", f"NodeName={row['name']}", "State=RESUME")
    return True


def resume(host: Host, text: str) -> bool:
    """Resume the node where Slurm has it drained for a reason that begins with `text`; whether that was so.

    :raises HookError: when Slurm does not answer.
    """
    row = _slurm_row(host) if _scontrol(host) else None
    if row is None or not _is_drained(row) or not row["reason"].startswith(text):
        return False
    _scontrol_run(host, "update", f"NodeName={row['name']}", "State=RESUME")
    return True


# -- container runtimes


def _start(host: Host) -> List[str]:
    """Start what the drop-in has refused, unless a person has disabled or masked it meanwhile. Asks systemd nothing when it refused none."""
    names = [name.rpartition("/")[2] for name in host.glob(KEPT, "*.service")]
    if not names:
        return []
    told = []
    for unit in units(host, names).values():
        name = unit["Id"]
        if unit["LoadState"] != "loaded" or unit["UnitFileState"] not in ENABLED:
            told.append(
                f"gate: {name} stays down: it is {unit['UnitFileState'] or unit['LoadState']}, which is somebody's decision"
            )
        elif unit["ActiveState"] in ("inactive", "failed"):
            # Refused starts in a row are a start limit hit, of the unit and of the socket through which somebody asked for it.
            host.run("systemctl", "reset-failed", name, *unit["TriggeredBy"].split())
            # Not waited for: the boot check runs before the runtimes, and would wait for itself.
            done = host.run("systemctl", "start", "--no-block", name)
            told.append(
                f"gate: starts {name}, which it had kept out"
                if done.rc == 0
                else f"gate: cannot start {name}: {done.tail(1)}"
            )
        host.remove(f"{KEPT}/{name}")
    return told


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
    "SubState",  # this and the rest for the capture (probe/software.py), which then asks nothing of its own
    "Result",
    "NRestarts",
    "StateChangeTimestampMonotonic",
)


def units(host: Host, names: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """Return the state of units in systemd, from one call: name -> :data:`PROPERTIES`. An unknown unit is
    `not-found`.
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
    """A record of the gate's own; empty when it is absent or torn."""
    try:
        found = json.loads(host.text(name) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _keep(host: Host, name: str, value: Json) -> None:
    """Write a record unless it is unchanged: a passive check of an unchanged node writes nothing to its disk."""
    text = by_lines(value, ordered=True) + "\n"
    if host.text(name) != text:
        host.write(name, text.encode())


def _alone(host: Host) -> IO[str]:
    """One check at a time acts: the boot's, the timer's and a person's may meet. To be used with ``with``, whose end lets the next one act."""
    here = host.located(GUARD)
    os.makedirs(os.path.dirname(here), exist_ok=True)
    opened = open(here, "a")  # noqa: SIM115 - closed by whoever is given it
    fcntl.flock(opened, fcntl.LOCK_EX)
    return opened


def _busy(host: Host) -> bool:
    """Whether a goldnode run is changing the node right now: it holds the engine's lock."""
    if not host.exists(ENGINE):
        return False
    with open(host.located(ENGINE), "a") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
