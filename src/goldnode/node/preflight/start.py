"""Start of a pre-flight without the engine, whose import takes longer than the checks: one runs before each task of a job."""

from __future__ import annotations

import json
import sys

from ..ground.host import Host
from ..program.arguments import parse
from ..state.model import NodeError
from . import checks, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def main(arguments: List[str]) -> int:
    """Run the command of this line. Return the exit code."""
    options = parse(arguments)
    try:
        return command.run(Host(options.root), options)
    except NodeError as problem:
        if options.format == "json":
            from ..ground.fault import document  # no other start has anything to report

            print(json.dumps(document(str(problem)), indent=1))
        print(f"goldnode-node: {problem}", file=sys.stderr)
        return checks.COULD_NOT_CHECK
