"""The node as Slurm shows it, and its drain and resume: one reader for the gate, the runs of a
controller, and rollouts.

`scontrol show node --oneliner` prints one node a line. The text of a person (Reason, Comment,
Extra) is not quoted and may contain anything, `State=IDLE` too. Reason is the first of these
fields, so what follows another one is no reason.

| Slurm | reason after a resume | resume of UNKNOWN+DRAIN, as after a start of slurmctld |
|---|---|---|
| 22.05.8 | cleared | ends with 1, and the drain is gone |
| 24.11.5 | stays, and `Reason=` does not clear it | ends with 1, and the drain is gone |
| 26.05.5 | cleared | ends with 0 |

`scontrol reboot` adds ` : reboot issued` to the reason of a node that is drained, so a mark in it is no longer
the whole text (22.05.8, recorded with tests/e2e/test_ladder_node.py, 2026-11-28).

So the reason of a node in service is not one of a drain, and after a failure the node is read
again. Recorded with the packages of Debian 12, 13 and sid, 2026-11-27
(tests/unit/node/ground/test_scheduler.py).
"""

from __future__ import annotations

import re

from .optional import group
from .typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Optional, Tuple

    from ..ground.host import Host

PROGRAMS = ("/usr/bin/scontrol", "/usr/local/bin/scontrol", "/opt/slurm/bin/scontrol")
CALL_TIME = 45.0  # seconds; two calls and the check fit into the time limit of the unit
STATE_MARKS = "*~#!%$@^-"  # scontrol(1), NODE STATE CODES
DRAIN_FLAGS = frozenset(("DRAIN", "DRAINED", "DRAINING"))
OUT_FLAGS = DRAIN_FLAGS | {"DOWN", "FAIL", "FAILING", "ERROR"}
# Patterns are compiled at their use: start-up time of a check.
# Text that `scontrol reboot` appends to the reason of a node that is already drained; the rest is still the drain's reason.
_BOOTS = r"(?: : reboot (?:requested|issued|complete|timed out))+$"
_PERSONS = r"\s(Reason|Comment|Extra)=(.*)"
_AFTER = r"(?:\s+(?:Comment|Extra|InstanceId|InstanceType)=.*)?\s*$"
_AUTHOR = rf"(.*?) \[[^\s\[\]@]+@\d[^\s\[\]]*\]{_AFTER}"
_NO_AUTHOR = rf"(.*?){_AFTER}"


class HookError(Exception):
    """Failure of a change in the scheduler. The next check tries it again."""


class SchedulerNode(NamedTuple):
    """A node of Slurm. `flags` is its state without marks, as in IDLE+DRAIN; `reason` has no author
    and time.
    """

    name: str
    hostname: str
    flags: Tuple[str, ...]
    reason: str

    @property
    def drained(self) -> bool:
        """Return whether it is drained, or about to be."""
        return bool(DRAIN_FLAGS & set(self.flags))

    @property
    def in_service(self) -> bool:
        """Return whether it gets work."""
        return not OUT_FLAGS & set(self.flags)


def nodes(text: str) -> Iterator[SchedulerNode]:
    """Yield the nodes in the output of `scontrol show node --oneliner`. A line without a state is skipped."""
    for line in text.splitlines():
        name, state = re.search(r"\bNodeName=(\S+)", line), re.search(r"\bState=(\S+)", line)
        if state is None:
            continue
        hostname = re.search(r"\bNodeHostName=(\S+)", line[: state.start()])
        yield SchedulerNode(
            group(name) or "",
            group(hostname) or "",
            tuple(flag.rstrip(STATE_MARKS) for flag in state[1].split("+")),
            _reason(line[state.end() :]),
        )


def _reason(rest: str) -> str:
    """Return the reason in the fields after the state. It ends before the author, or before the
    next field.
    """
    field = re.search(_PERSONS, rest)
    if field is None or field[1] != "Reason":
        return ""
    match = re.match(_AUTHOR, field[2]) or re.match(_NO_AUTHOR, field[2])
    return re.sub(_BOOTS, "", match[1].strip()) if match else ""


# -- on the node


def program(host: Host) -> Optional[str]:
    """Return the path of scontrol on this node; None without one."""
    return next((name for name in PROGRAMS if host.exists(name)), None)


def own_node(host: Host) -> Optional[SchedulerNode]:
    """Return Slurm's record of this node; None without one. The node's name in Slurm may differ
    from its hostname.
    """
    own = (host.text("/proc/sys/kernel/hostname") or "").strip().partition(".")[0]
    for asked in ((own,), ()):  # by hostname first, then among all nodes
        for row in nodes(_call(host, "show", "node", *asked, "--oneliner")):
            if row.name and own in (row.name, row.hostname.partition(".")[0]):
                return row
    return None


def drain(host: Host, row: SchedulerNode, text: str) -> None:
    """Drain the node for a reason. One that is drained already gets the reason."""
    _update(
        host, row, lambda now: now.drained and now.reason == text, "State=DRAIN", f"Reason={text}"
    )


def resume(host: Host, row: SchedulerNode) -> None:
    """Return the node to service."""
    _update(host, row, lambda now: not now.drained, "State=RESUME")


def explain(host: Host, row: SchedulerNode, text: str) -> None:
    """Replace the reason of a drained node."""
    _update(host, row, lambda now: now.reason == text, f"Reason={text}")


def _update(
    host: Host, row: SchedulerNode, done: Callable[[SchedulerNode], bool], *words: str
) -> None:
    """Change the node. scontrol can end with 1 after a change that Slurm has made, such as the
    resume of a node in state UNKNOWN+DRAIN: the state of the node decides.
    """
    try:
        _call(host, "update", f"NodeName={row.name}", *words)
    except HookError:
        try:
            now = own_node(host)
        except HookError:
            now = None
        if now is None or not done(now):
            raise


def _call(host: Host, *words: str) -> str:
    name = program(host)
    if name is None:
        raise HookError("scontrol is not on this node any more; resume the node by hand")
    done = host.run(name, *words, timeout=CALL_TIME)
    if done.rc != 0 and not re.search(
        r"not found|invalid node name", done.out + done.err, re.IGNORECASE
    ):
        raise HookError(
            f"scontrol {words[0]} ended with {done.rc}: {' '.join(done.tail(2).split())}"
        )
    return done.out if done.rc == 0 else ""
