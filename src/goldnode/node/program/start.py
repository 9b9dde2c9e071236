"""Start of the program. A question that the last check has answered is answered before other modules are
imported.
"""

from __future__ import annotations

import gc
import io
import os
import sys

WATCH = "import sys; sys.path[:0] = sys.argv[1:]; from goldnode.node.program.watch import main; sys.exit(main())"


def main(engine: str | None = None, archive: str | None = None) -> int:
    """Run the command of `sys.argv`. Return the exit code.

    :param engine: digest of the program's file; None if it runs from its sources.
    :param archive: path of that file.
    """
    arguments = sys.argv[1:]
    if arguments[:1] in (["check"], ["device"]) or arguments[:2] == ["plan", "--resident"]:
        # They are short and leave little garbage, and collecting it takes a tenth of their time.
        gc.disable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Print a reason even in a locale that lacks one of its characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments == ["--version"]:
        print("goldnode-node " + (engine or "(its sources, not its file)"))
        return 0
    if arguments == ["device"]:  # internal: the GPUs are read in a process of its own each time
        from ..device.reader import main as reader

        return reader()
    if arguments[:2] == ["device", "capture"]:
        # Start-up time: each of these commands loads its own modules.
        from ..device.reader import stream

        return stream(arguments[2:])
    if arguments == ["watch-log"] and archive:
        # It runs as long as the node. A new interpreter has loaded only what it needs.
        os.execv(  # noqa: S606 - the program itself
            sys.executable, [sys.executable, "-I", "-S", "-c", WATCH, archive]
        )
    if "--cached" in arguments:
        from ..verdict import current

        form, rest = current.split(arguments)
        if form and rest[0] == "check" and current.FAST.issuperset(rest):
            return current.answer(form, "--quiet" in rest)
    if arguments[:2] == ["plan", "--resident"]:
        from . import resident

        return resident.answer(arguments[2:], engine)
    if arguments == ["answer"]:
        from . import remote

        return remote.answer(engine, archive)
    if arguments[:1] == ["join"]:
        from .join_command import main as join

        return join(engine, archive, arguments)
    if arguments[:1] == ["preflight"]:
        from ..preflight.command import main as preflight
        from .arguments import parse

        return preflight(parse(arguments))
    from .main import main as program

    return program()


def finish(status: int) -> None:
    """Flush the output. A check or plan ends here: the interpreter's clean-up would take a twentieth of its time.

    Raises OSError if a stream cannot be written: a caller that cannot read the verdict must not take the
    exit status for one.
    """
    for stream, name in ((sys.stdout, "standard output"), (sys.stderr, "standard error")):
        try:
            if stream is not None:
                stream.flush()
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, name) from None
    if not gc.isenabled():  # as `main` does for short commands, which start no threads
        os._exit(status)
