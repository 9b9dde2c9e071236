"""Start of the program: answer a query that the last check has already answered, before other imports."""

from __future__ import annotations

import gc
import io
import os
import sys

WATCH = "import sys; sys.path[:0] = sys.argv[1:]; from goldnode.node.watch import main; sys.exit(main())"


def main(engine: str | None = None, archive: str | None = None) -> int:
    """Run the command in `sys.argv`. Return the exit code.

    :param engine: digest of the program's file; None if it runs from its sources.
    :param archive: path of that file.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["check"]:
        # A check is short-lived and leaves little garbage. Collecting it would take a tenth of its time.
        gc.disable()
    # A reason may contain characters that the locale cannot encode.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments == ["--version"]:
        print("goldnode-node " + (engine or "(its sources, not its file)"))
        return 0
    if arguments == ["device"]:  # goldnode itself calls this, in a separate process each time
        from .device.reader import main as reader

        return reader()
    if arguments[:2] == ["device", "capture"]:
        from .device.reader import stream

        return stream(arguments[2:])
    if arguments == ["watch-log"] and archive:
        # It runs as long as the node, so start a fresh interpreter with only the modules it needs.
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
    from .program import main as program

    return program()


def leave(status: int) -> int:
    """Flush the output, and exit with `status` if this is a check. Return `status` for any other command.

    Raises OSError if output cannot be written. A caller that cannot read the verdict must not mistake the
    status for one.
    """
    for stream, name in ((sys.stdout, "standard output"), (sys.stderr, "standard error")):
        try:
            if stream is not None:
                stream.flush()
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, name) from None
    if sys.argv[1:2] == ["check"]:
        # Skip the interpreter's shutdown: freeing each object would take a tenth of the time of a check.
        os._exit(status)
    return status
