"""Starts the on-node program as a node does, on a directory that plays the node: ``python -I -S launch.py FILE PLACE ROOT PLAYED -- check …``.

FILE is the self-contained file, PLACE the directory of its compiled copy; its ``__main__`` lies beside that as ``starting.py``. What the file
does at each start is done here too: it finds and verifies its copy. systemctl and ldconfig are played by ``cat``, so that the start of a program
stays in the figures. PLAYED: a recorded answer of the GPU library, played in place of it, or a dash. Prints nothing; what the program prints
goes to /dev/null.
"""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from goldnode.node.ground.host import Result


def main() -> int:
    file, place, root, played = sys.argv[1:5]
    sys.argv = [file, *sys.argv[6:]]
    sys.path[0] = os.path.dirname(place)  # noqa: PTH120 - pathlib would be imported for this alone
    import starting  # type: ignore[import-not-found]  # __main__ of the file

    starting.PLACE = place
    if starting.known(file) is None:
        raise SystemExit(
            "the program does not know its own file: not what a node does at each start"
        )
    starting.settle(file)
    if not sys.path[-1].startswith("/proc/"):
        raise SystemExit(
            "the program does not start from its compiled copy: not what a node does at each start"
        )
    gc.disable()  # as start.main does for a check
    if "--cached" in sys.argv:
        from goldnode.node.program import start
        from goldnode.node.verdict import current

        form, rest = current.split(sys.argv[2:])
        status = current.answer(form or "text", "--quiet" in rest, root)
        start.finish(status)
        return status
    from goldnode.node.ground.host import Host
    from goldnode.node.program import main as program
    from goldnode.node.program import start

    plain = Host.run

    class Node(Host):
        def __init__(self, root_: str = "/", live: "bool | None" = None) -> None:
            super().__init__(root if root_ == "/" else root_, live=True)
            if played != "-":
                self.program = played

        def run(self, *argv: str, timeout: float = 60, stdin: "str | None" = None) -> "Result":
            name = argv[0].rpartition("/")[2]
            if self.root == root and os.path.exists(f"{root}/{name}.txt"):  # noqa: PTH110
                return plain(Host("/"), "cat", f"{root}/{name}.txt")
            return plain(self, *argv, timeout=timeout)

    module: Any = program
    module.Host = lambda name="/", live=None: Node(name) if name == "/" else Host(name, live)
    status = program.main()
    start.finish(status)
    return status


sys.exit(main())
