"""State of units in systemd, read with one call of systemctl."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Sequence

    from .host import Host

# States for which `systemctl is-enabled` succeeds.
ENABLED = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
PROPERTIES = (
    (
        "Id",
        "LoadState",
        "ActiveState",
        "UnitFileState",
        "NeedDaemonReload",
        "FragmentPath",
        "DropInPaths",
        "TriggeredBy",
        "Listen",
    )
    + (
        "SubState",  # from here on for the capture (probe/software.py), so that it needs no call of its own
        "Result",
        "NRestarts",
        "StateChangeTimestampMonotonic",
    )
)


def units(host: Host, names: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """Return the state of units from one call of systemctl: name -> :data:`PROPERTIES`.

    An unknown unit has the state `not-found`.
    """
    done = host.run("systemctl", "show", "-p", ",".join(PROPERTIES), *names)
    # systemctl separates units by an empty line, and prints them in no stated order: `Id` has the name.
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in done.out.split("\n\n")
    ]
    return {
        block["Id"]: {key: block.get(key, "") for key in PROPERTIES}
        for block in blocks
        if block.get("Id")
    }
