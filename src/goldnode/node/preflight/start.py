"""Start of a pre-flight without the engine, whose import takes longer than the checks: one runs before each task of a job."""

from __future__ import annotations

import json
import sys

from ..ground.errors import NodeError
from ..ground.host import Host
from . import checks, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(options: Any) -> int:
    """Run the command with these options, and report a NodeError. Return the exit code."""
    try:
        return command.run(Host(options.root), options)
    except NodeError as problem:
        if options.format == "json":
            from ..ground.fault import document  # no other start has anything to report

            print(json.dumps(document(str(problem)), indent=1))
        print(f"goldnode-node: {problem}", file=sys.stderr)
        return checks.COULD_NOT_CHECK
