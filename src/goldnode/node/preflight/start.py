"""Start of a pre-flight without the engine, whose import takes longer than the checks: one runs before each task of a job."""

from __future__ import annotations

from ..ground.errors import NodeError
from ..ground.host import Host
from . import command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(options: Any) -> int:
    """Run the command with these options, and report a NodeError. Return the exit code."""
    try:
        return command.run(Host(options.root), options)
    except NodeError as problem:
        from ..ground.fault import expected  # no other start has anything to report

        return expected(problem, options.format)
