"""Running goldnode's program on a node only once a shell there has verified it.

A program that a user has put in its place could answer anything, and would do it as root. So the caller brings the test along: POSIX shell,
`find` and `sha256sum`, in the same remote execution, before a byte of the program runs. What only root can change stays as it was tested.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from goldnode.node.state.domains.program import OTHER, PROGRAM

PATHS = (*(str(path) for path in PurePosixPath(PROGRAM).parents), PROGRAM)
# -prune: of each path its own status, no link followed. An access list that lets others write shows as the right of the group. Each further
# process would be felt: this is most of what a converged node costs beyond its plan.
SCRIPT = """\
set -- $(/usr/bin/find {paths} -prune -user 0 ! -perm -020 ! -perm -002 '(' -type d -o -type f -group 0 ')' 2>/dev/null)
[ $# -eq {count} ]{same} || exit {other}
exec {program} {words}"""
SAME = """ && [ "$(/usr/bin/sha256sum <{program} )" = '{digest}  -' ]"""


def script(words: Sequence[str], digest: str | None = None) -> str:
    """Return a shell script that runs the program with `words` where it is root's alone, with every directory above it, and else ends
    with :data:`OTHER`.

    :param digest: ``sha256:…`` of the file; None where the node may have another version of it.
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
