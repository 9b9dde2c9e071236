"""The installed program's answer to a controller: the plan, if program and class are those that the
controller would ship.

Called with ``goldnode-node plan --resident --engine-digest E --class-digest D --lock-timeout
SECONDS``. E is the digest of the program file. D is that of /etc/goldnode/class.json, that is, of
the document with its site. Both have the form ``sha256:…`` of :func:`state.names.digest`.

Prints the plan (schema goldnode.plan/1) as one line of JSON and exits with 0. With ``--report
last``, a second line is the report of the last check (schema goldnode.node-report/1), or null if
its verdict does not hold. Without output, it exits with OTHER if the program differs, and with
OTHER_CLASS if the class differs; the controller then ships what differs. Any other exit status is a
fault, which the controller treats like OTHER.
"""

from __future__ import annotations

import json

from ..ground.host import Host
from ..state.domains.program import CLASS, OTHER, OTHER_CLASS
from ..state.engine import plan
from ..state.names import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional


def answer(words: List[str], engine: Optional[str], host: Optional[Host] = None) -> int:
    """Answer the arguments `words` that follow ``plan --resident``. Return the exit status.

    :param engine: digest of the program that runs.
    """
    wanted = dict(zip(words[::2], words[1::2]))
    host = host or Host("/")
    declared = host.data(CLASS)
    if engine is None or wanted["--engine-digest"] != engine:
        return OTHER
    if declared is None or wanted["--class-digest"] != digest(declared):
        return OTHER_CLASS
    planned = plan(
        host,
        json.loads(declared),
        {"program": {"sha256": engine}},
        lock_timeout=float(wanted["--lock-timeout"]),
    )
    print(json.dumps(planned.to_json()))
    if wanted.get("--report"):
        from .reporting import recorded  # start-up time: most plans are asked for without

        print(json.dumps(recorded(host, engine), separators=(",", ":")))
    return 0
