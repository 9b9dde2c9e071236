"""Files of the gate on a node, and its drop-in: what the gate writes, and what the engine installs
and reads.

Both sides go by this one list. The gate itself is :mod:`..gate`.
"""

from __future__ import annotations

from . import scheduler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .host import Host

REPORT, DRAIN, BLOCK = "report", "drain", "block"  # modes: `gate` of a class
PASS = "/run/goldnode/pass"  # noqa: S105 - a file whose presence lets work start, not a password
STATE = "/run/goldnode/gate.json"
REASON = "/run/goldnode/gate.reason"
REFUSED = "/run/goldnode/kept"  # one empty file per unit that the drop-in refused to start; the drop-in creates it
RECORD = "/var/lib/goldnode/gate.json"  # what this gate has drained; survives a reboot
MODE = "/var/lib/goldnode/gate.mode"
DROP_IN = "goldnode-gate.conf"  # in the drop-in directory of a runtime
RUNTIMES = ("docker.service", "containerd.service")
NO_TARGET = (
    "drain has no target: the node is not of a Slurm cluster, and the site file names no commands"
)


def drop_in() -> str:
    """Return the drop-in that keeps a container runtime from starting without a valid pass.

    * When its file is gone (another mode, or the node has left goldnode), every start succeeds, even if
      systemd has not been reloaded.
    * It is plain shell, so that it also refuses when the program is broken.
    * Its reason appears in `systemctl status`. journald assigns a line of output to a unit only
      while the process that wrote it exists, and on a busy machine it looks too late. So the reason
      names its unit (`OBJECT_SYSTEMD_UNIT`, which journald takes from root). Where `logger` cannot
      do that, the reason goes to the output, and the shell waits before it ends.
    * `systemctl status` leaves out lines that are older than the start of the unit, and PID 1 notes
      that time after it has started this shell (systemd 252). So the shell first asks PID 1
      something: the answer comes when the time has been noted.
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
 timeout 10 systemctl show -p Id %n >/dev/null 2>&1; \\
 printf "MESSAGE=%%s\\\\nPRIORITY=4\\\\nSYSLOG_IDENTIFIER=goldnode\\\\nOBJECT_SYSTEMD_UNIT=%n\\\\n" "$$why" \\
 | logger --journald 2>/dev/null || {{ printf "%%s\\\\n" "$$why" >&2; sleep 1; }}; exit 1'
"""


def hook(host: Host, document: Mapping[str, Any]) -> Optional[str]:
    """Return the target of a drain: `command` (the site's own commands), `slurm`, or None."""
    if (document.get("site") or {}).get("gate"):
        return "command"  # the site's own declaration has precedence over detection
    return "slurm" if scheduler.program(host) else None
