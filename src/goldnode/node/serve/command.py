"""`goldnode-node serve`: the diagnostics endpoint, on the socket that systemd passes or on its own."""

from __future__ import annotations

import socket
import sys

from ..verdict import current
from . import endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from ..ground.host import Host


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--listen",
        metavar="[ADDRESS:]PORT",
        help="listen on this address (default: the socket that systemd passes; without ADDRESS: loopback)",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=endpoint.IDLE,
        metavar="SECONDS",
        help="exit after this time without a request (default: %(default)s)",
    )


def run(host: Host, options: Any) -> int:
    """Serve until no request has arrived for the idle time. Return 0, or 3 if there is no socket to
    listen on.
    """
    listening = endpoint.inherited()
    if listening is None and options.listen is None:
        print(
            "goldnode-node: no socket was passed; start goldnode-serve.socket, or give --listen [ADDRESS:]PORT.",
            file=sys.stderr,
        )
        return current.UNKNOWN
    if listening is None:
        try:
            name, port = endpoint.address(options.listen)
            family = socket.AF_INET6 if ":" in name else socket.AF_INET
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((name, port))
            listening.listen(128)
        except (OSError, ValueError) as problem:
            print(f"goldnode-node: cannot listen on {options.listen}: {problem}", file=sys.stderr)
            return current.UNKNOWN
        print(
            f"goldnode-node: listens on {listening.getsockname()[0]}:{listening.getsockname()[1]}",
            file=sys.stderr,
            flush=True,
        )
    with listening:
        endpoint.serve(listening, endpoint.Answers(host), options.idle)
    return 0
