"""`goldnode-node follow`: one pass of a node that follows a signed channel (goldnode-follow.timer starts it)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time

from ..ground.errors import NodeError
from ..ground.text import clean
from . import settings as settings_of
from .repository import ChannelSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from ..ground.host import Host

LOCK = "/run/goldnode/follow.lock"
ABOUT = """The node verifies the channel, asks the lock service for leave, applies, boots and reports. Each call does
what can be done now. Without leave, or with the channel or the service away, nothing starts. Exit status: 0 done or
waiting, 1 a person has to act, 3 an error."""


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.epilog = ABOUT
    parser.add_argument(
        "channel",
        nargs="?",
        metavar="CHANNEL",
        help="address or directory of the channel (default: of the class)",
    )
    parser.add_argument("--service", metavar="ADDRESS", help="lock service (default: of the class)")
    parser.add_argument(
        "--node", metavar="NAME", help="name of this node in the store (default: its host name)"
    )
    parser.add_argument(
        "--root-document",
        metavar="FILE",
        help=f"the publisher's root document, from a trusted place (default: {settings_of.ROOT_DOCUMENT})",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only verify the channel and print what it wants; write no request",
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="leave the network to goldnode-follow-fetch.service, as the unit does",
    )
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="be that unit: answer the request on standard input",
    )


def run(host: Host, options: Any) -> int:
    """Run one pass. Return the exit code. Raises NodeError, which exits with 3."""
    # Imported here: the endpoint and TLS modules take longer than the start of this program.
    from . import apart, channel, evidence
    from .lockservice import LockClient
    from .loop import Follower
    from .machine import Machine
    from .trust import Verifier

    if options.fetch:
        return apart.serve()
    own = settings_of.load(host, options)
    first = host.data(own.root)
    if first is None:
        raise NodeError(
            f"{own.root} does not exist. Put the publisher's root document there, from a place that you trust."
        )
    with alone(host):
        source: Any = ChannelSource(own.channel, own.ca)
        if options.apart:
            source = apart.ApartSource(host, own, first)
        verifier = Verifier(host, source, f"{settings_of.STATE}/metadata", first, time.time())
        machine = Machine(host, own, source, lambda text: print(text, file=sys.stderr, flush=True))
        service = source if options.apart else LockClient(own)
        follower = Follower(host, own, verifier, service, machine)
        if options.check:
            document = follower.document()
            wanted = channel.wish(document, own.node, time.time())
            lines = channel.lines(document)
            frozen = channel.freeze(document, own.node)
            lines.append(frozen or "")
            wish = f"{own.node} at {wanted.digest}" if wanted else f"nothing of {own.node} now"
            lines.append(f"wants {wish}")
            if wanted is not None:
                lines.append(evidence.refusal(host, own, document, wanted, time.time()) or "")
            lines = [clean(line) for line in lines if line]
            show(options, {"text": "; ".join(lines), "problem": False}, "\n".join(lines))
            return 0
        outcome = follower.run()
    text = clean(outcome.text)
    show(options, {"text": text, "problem": outcome.problem}, f"{own.node}: {text}")
    return 1 if outcome.problem else 0


def show(options: Any, content: Any, text: str) -> None:
    """Print the result of a pass."""
    if options.format == "json":
        text = json.dumps({"schema": "goldnode.follow/1", **content}, indent=1)
    print(text)


@contextlib.contextmanager
def alone(host: Host) -> Iterator[None]:
    """Lock the node for one pass. Raises NodeError while another one works."""
    here = host.located(LOCK)
    os.makedirs(os.path.dirname(here), exist_ok=True)
    with open(here, "a") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NodeError("another pass of `follow` is at work. Wait for it.") from None
        yield
