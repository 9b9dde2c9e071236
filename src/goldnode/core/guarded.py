"""Run goldnode's program on a node only after a shell on that node has verified it.

A program that a user has replaced could return any answer, and would run as root. The caller therefore sends
the check along, in the same remote execution: POSIX shell, `find` and `sha256sum` run before the program
starts. Only root can change the verified files, so they cannot change between check and use.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from goldnode.node.state.domains.program import OTHER, PROGRAM

PATHS = (*(str(path) for path in PurePosixPath(PROGRAM).parents), PROGRAM)
# -prune reports the status of each path itself and follows no link. An ACL that lets others write shows up as
# group write permission. One find call and one sha256sum: each extra process adds to the run time of a
# converged node, which is mostly this check.
SCRIPT = """\
set -- $(/usr/bin/find {paths} -prune -user 0 ! -perm -020 ! -perm -002 \
'(' -type d -o -type f -group 0 ')' 2>/dev/null)
[ $# -eq {count} ]{same} || exit {other}
exec {program} {words}"""
SAME = """ && [ "$(/usr/bin/sha256sum <{program} )" = '{digest}  -' ]"""


def script(words: Sequence[str], digest: str | None = None) -> str:
    """Return a shell script that verifies the program and then runs it with `words`.

    It runs only if root alone can write the program and every directory above it. Otherwise the script exits
    with :data:`OTHER`.

    :param digest: ``sha256:…`` of the file; None if the node may have another version of it.
    """
    same = SAME.format(program=PROGRAM, digest=digest.removeprefix("sha256:")) if digest else ""
    return SCRIPT.format(
        paths=" ".join(PATHS),
        count=len(PATHS),
        program=PROGRAM,
        same=same,
        other=OTHER,
        words=shlex.join(words),
    )
