"""`goldnode-node slot netboot`: the next boot is from the network, once (variable BootNext; UEFI 2.10, 3.1)."""

from __future__ import annotations

import struct

from ..ground.boot import VARIABLES
from ..ground.errors import NodeError
from .identity import GLOBAL, Variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from ..ground.host import Host

_ACTIVE = 1


def boot_once(host: Host) -> str:
    """Make the firmware boot from the network at the next start only. Return what was done. Raises NodeError."""
    variables = Variables(host.located(VARIABLES))
    number = network_entry(variables)
    if number is None:
        raise NodeError(
            "the firmware has no active boot entry for a network card. "
            "Turn network boot on in its setup, or let the BMC boot from the network."
        )
    try:
        variables.put(f"{variables.folder}/BootNext-{GLOBAL}", struct.pack("<H", number))
    except OSError as problem:
        raise NodeError(f"the firmware takes no BootNext: {problem.strerror}.") from None
    return f"the next boot is Boot{number:04X}, from the network; the boots after it are as before"


def network_entry(variables: Variables) -> Optional[int]:
    """Return the number of the firmware's first entry that boots from a network card; None without one."""
    for number in variables.order():
        value = variables.read(variables.name(number))
        if len(value) < 8 or not struct.unpack_from("<I", value)[0] & _ACTIVE:
            continue
        length = struct.unpack_from("<H", value, 4)[0]
        at = 6
        while value[at : at + 2] not in (b"\0\0", b""):
            at += 2
        path, at = value[at + 2 : at + 2 + length], 0
        while at + 4 <= len(path):
            kind, sub, size = struct.unpack_from("<BBH", path, at)
            if (kind, sub) == (3, 11):  # MAC address of a card
                return number
            if size < 4:
                break
            at += size
    return None
