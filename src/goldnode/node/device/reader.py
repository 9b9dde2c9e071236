"""`goldnode-node device`: one request on standard input, one answer on standard output. Started by
:mod:`child`, never by hand.
"""

from __future__ import annotations

import os
import sys

from . import SCHEMA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from ..ground.host import Json


def main() -> int:
    """Answer one request; the exit status is 0 whenever there is an answer."""
    import json  # start-up time: a stream does not need it

    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no part of the answer
    request = json.load(sys.stdin)
    if request["vendor"] == "amd":
        from . import amd  # each vendor's library is loaded only where its GPUs are

        if request["do"] == "read":
            answer = amd.read(request["root"])
        else:
            settings = request["settings"]
            answer = amd.change(request["root"], settings)
    else:
        from . import nvidia

        answer = nvidia.read() if request["do"] == "read" else nvidia.change(request["settings"])
    whole: Json = {"schema": SCHEMA, "vendor": request["vendor"], **answer}
    answer_to.write(json.dumps(whole) + "\n")
    answer_to.flush()
    return 0


def stream(words: Sequence[str]) -> int:
    """Answer `device capture [settings]` line by line (see the package's documentation)."""
    to = os.dup(1)
    os.dup2(2, 1)
    from . import collect  # after the redirection: a library may print

    collect.stream(to, "settings" in words)
    os._exit(0)  # a library that hangs while it is unloaded must not take back what it said
