"""What the program on a node answers a controller that asks it first: the plan, when program and class are just what would be shipped.

Asked as ``goldnode-node plan --resident --engine-digest E --class-digest D --lock-timeout SECONDS``. E is the digest of the program file, D
that of /etc/goldnode/class.json, so of the document with its site. Both are ``sha256:…``, as :func:`observe.digest` gives them. Prints the
plan (schema goldnode.plan/1) as one line of JSON and ends with 0; without a word with OTHER when the program is another one, and with
OTHER_CLASS when the class is: then the controller ships what differs. Any other exit status is a fault, and means the former to it.
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
    """Answer `words`, what follows ``plan --resident``; `engine` is the digest of the program that runs. Returns the exit status."""
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
