"""Where the program begins: a question that the last check has answered already is answered before anything else is imported."""

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
    if isinstance(sys.stdout, io.TextIOWrapper):  # in a locale that lacks a character of a reason, the reason is still told
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

        if arguments[0] == "check" and current.FAST.issuperset(arguments):
            return current.answer(arguments)
    if arguments[:2] == ["plan", "--resident"]:
        from . import resident

        return resident.answer(arguments[2:], engine)
    if arguments == ["answer"]:
        from . import remote

        return remote.answer(engine, archive)
    if arguments[:1] == ["check"] and unpacked(archive):
        from . import pack

        pack.use(sys.path[0])
    from .program import main as program

    return program()


def unpacked(archive: str | None) -> bool:
    """Whether the program runs from where its file has unpacked itself."""
    return archive is not None and sys.path[0] != archive


def leave(code: int, archive: str | None = None) -> int:
    """End a check that is through, with `code`. Returns that where the ordinary end is wanted: of any other command, and to say what could
    not be printed."""
    if sys.argv[1:2] != ["check"]:
        return code
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return code
    if unpacked(archive) and "goldnode.node.verdict.events" in sys.modules:  # it has looked at the node
        from . import pack

        pack.keep(sys.path[0])
    os._exit(code)  # the system takes back all memory at once; the interpreter would free each object, for a tenth of the time of a check
