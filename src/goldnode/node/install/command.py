"""`goldnode-node install`: write the image of a channel to a disk of this machine, as the signed orders have it.

It runs in the initramfs that `goldnode disks netboot` writes, and needs no file of the machine.
"""

from __future__ import annotations

from ..ground.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..ground.host import Host

ABOUT = """Order, image and disk are printed before anything is written. Exit status: 0 the disk boots (written now, or by the same
order before), 1 this machine has no order, or its disk may not be erased, 3 an error. Run it again after any interruption."""


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.epilog = ABOUT
    parser.add_argument(
        "--check", action="store_true", help="print what would be written, and write nothing"
    )


def run(host: Host, options: Any) -> int:
    """Run the command. Return the exit code. Raises NodeError, which exits with 3."""
    try:
        from . import machine
    except ImportError:
        raise NodeError(
            "this file does not contain the installer. Start the machine from the network: `goldnode disks netboot`."
        ) from None
    return machine.run(host, options.check)
