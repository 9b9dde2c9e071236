"""Failures of the program itself, reported in one line: what went wrong, and the command that fixes
it. The exit status is always 3.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

DEBUG = "GOLDNODE_DEBUG"
COULD_NOT_CHECK = 3
OWN = (
    f"This is a fault of goldnode-node itself: run the command again with {DEBUG}=1 "
    "and report what it prints."
)
DAMAGED = "The program is damaged, or its Python is not whole: run site.yml for this host, or fetch the file again."
ROOM = "Make room there: `df -h` and `df -i` show what is full."
REMEDIES: Dict[int, str] = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EROFS: "See dmesg for why it is read-only, then run `mount -o remount,rw` on it.",
    errno.EACCES: "Run the command as root.",
    errno.EPERM: "Run the command as root.",
    errno.EPIPE: "The reader of the output ended first: let it read everything, or write to a file.",
    errno.EIO: "See dmesg for the device or disk that failed.",
    errno.ENOMEM: "Free some memory, then run the command again.",
    errno.EMFILE: "Raise the limit of open files (`ulimit -n`), then run the command again.",
    errno.ENFILE: (
        "Raise the system's limit of open files (`sysctl fs.file-max`), then run the command again."
    ),
}


def brief(problem: BaseException) -> str:
    """Return the type of a failure, its text, and the line of code that raised it."""
    at = problem.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    text = ": ".join(filter(None, (type(problem).__name__, str(problem))))
    if at is None:
        return text
    return f"{text} ({os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno})"


def explained(problem: BaseException) -> Tuple[str, str]:
    """Return the cause of a failure, and how to fix it."""
    if isinstance(problem, KeyboardInterrupt):
        return "it was interrupted, and has not finished", "Run the command again."
    if isinstance(problem, MemoryError):
        return "there is not enough memory", REMEDIES[errno.ENOMEM]
    if isinstance(problem, OSError) and problem.errno in REMEDIES:
        what = f"{problem.filename}: " if problem.filename is not None else ""
        return f"{what}{problem.strerror}", REMEDIES[problem.errno]
    if (
        isinstance(problem, (ImportError, SyntaxError, EOFError))
        or type(problem).__module__ == "zlib"
    ):
        return f"it cannot be loaded: {brief(problem)}", DAMAGED
    return brief(problem), OWN


def document(error: str) -> Dict[str, object]:
    """Return an expected error as the document that commands print with `--format json`."""
    return {
        "schema": "goldnode.error/1",
        "error": error,
        "file": None,
        "line": None,
        "remedy": None,
    }


def expected(problem: BaseException, form: object) -> int:
    """Print an expected failure, also as a document where the format is `json`. Return the exit status."""
    if form == "json":
        import json  # loaded only for this: a damaged installation may lack it

        print(json.dumps(document(str(problem)), indent=1))
    print(f"goldnode-node: {problem}", file=sys.stderr)
    return COULD_NOT_CHECK


def report(problem: BaseException) -> None:
    """Print one line about `problem`, and its traceback if the user asked for it."""
    trace(problem)
    # The text of a NodeError includes its remedy. Compared by name: importing its module may be
    # what failed.
    text = str(problem) if type(problem).__name__ == "NodeError" else ". ".join(explained(problem))
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    print(f"goldnode-node: {line}", file=sys.stderr, flush=True)


def trace(problem: BaseException) -> None:
    """Print the traceback of `problem` if the user asked for it (DEBUG in the environment)."""
    if os.environ.get(DEBUG):
        import traceback  # start-up time: only on request

        traceback.print_exception(type(problem), problem, problem.__traceback__)
