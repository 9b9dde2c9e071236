"""Fast path of a plan: the installed program answers if program and class are those that the controller would
ship.

The controller calls ``goldnode-node plan --resident --engine-digest E --class-digest D --lock-timeout
SECONDS``. E is the digest of the program file. D is that of /etc/goldnode/class.json, so of the document
including its site. Both have the form ``sha256:…`` of :func:`observe.digest`.

On success it prints the plan (schema goldnode.plan/1) as one line of JSON and exits with 0. It exits with
OTHER if the program differs and with OTHER_CLASS if the class differs, without output; the controller then
ships what differs. The controller treats any other exit status, a fault, like OTHER.
"""

from __future__ import annotations

import json

from .host import Host
from .state.domains.program import CLASS, OTHER, OTHER_CLASS
from .state.engine import plan
from .state.names import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional


def answer(words: List[str], engine: Optional[str], host: Optional[Host] = None) -> int:
    """Answer a plan request. Return the exit status.

    :param words: the arguments after ``plan --resident``.
    :param engine: digest of the running program.
    """
    wanted = dict(zip(words[::2], words[1::2]))
    host = host or Host("/")
    declared = host.data(CLASS)
    if engine is None or wanted["--engine-digest"] != engine:
        return OTHER
    if declared is None or wanted["--class-digest"] != digest(declared):
        return OTHER_CLASS
    found = plan(
        host,
        json.loads(declared),
        {"program": {"sha256": engine}},
        lock_timeout=float(wanted["--lock-timeout"]),
    )
    print(json.dumps(found.to_json()))
    return 0
