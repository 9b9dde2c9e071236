"""Start of the program: a question that the last check has answered is answered before anything else is
imported.
"""

from __future__ import annotations

import gc
import io
import os
import sys

WATCH = "import sys; sys.path[:0] = sys.argv[1:]; from goldnode.node.watch import main; sys.exit(main())"


def main(engine: str | None = None, archive: str | None = None) -> int:
    """Run the command of `sys.argv`; returns the exit code. `engine` and `archive` are digest and path of the program's file, where it is one."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["check"]:
        gc.disable()  # it looks once and ends: what it would find unused meanwhile is little, and looking for it is a tenth of its time
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # in a locale that lacks a character of a reason, the reason is still told
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments == ["--version"]:
        print("goldnode-node " + (engine or "(its sources, not its file)"))
        return 0
    if arguments == ["device"]:  # asked by goldnode itself, in a process of its own each time
        from .device.reader import main as reader

        return reader()
    if arguments[:2] == ["device", "capture"]:
        from .device.reader import stream

        return stream(arguments[2:])
    if arguments == ["watch-log"] and archive:
        # It stays for as long as the node runs: in an interpreter that has loaded nothing but what it needs.
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", WATCH, archive])  # noqa: S606 - the program itself
    if "--cached" in arguments:
        from .verdict import current

        form, rest = current.split(arguments)
        if form and rest[0] == "check" and current.FAST.issuperset(rest):
            return current.answer(form, "--quiet" in rest)
    if arguments[:2] == ["plan", "--resident"]:
        from . import resident

        return resident.answer(arguments[2:], engine)
    if arguments == ["answer"]:
        from . import remote

        return remote.answer(engine, archive)
    from .program import main as program

    return program()


def leave(status: int) -> int:
    """Write out what was printed, and end a check with `status`. Return that where the ordinary end is wanted: of any other command.

    Raises OSError where something cannot be written: a caller that cannot read the verdict must not take the status for one.
    """
    for stream, name in ((sys.stdout, "standard output"), (sys.stderr, "standard error")):
        try:
            if stream is not None:
                stream.flush()
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, name) from None
    if sys.argv[1:2] == ["check"]:
        os._exit(
            status
        )  # the system takes back all memory at once; the interpreter would free each object, for a tenth of the time of a check
    return status
