"""`--root` with the root of a running machine, as a pod of Kubernetes sees that of its node.

Such a root is no image: its programs, its kernel and its devices answer. So this program changes its root directory to it,
and starts again there, with the Python of that machine. Nothing is written for this: the program and a class document stay
where they are, and are read through descriptors (proc_pid_fd(5)).
"""

from __future__ import annotations

import os
import stat
import sys

from ..ground.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

PYTHON = "/usr/bin/python3"


def is_running(root: str) -> bool:
    """Return whether `root` is the root directory of the first process that its /proc shows.

    A chroot with a mounted /proc is not: there the first process has another root. Raises NodeError where the superuser
    may not look (proc_pid_root(5): CAP_SYS_PTRACE).
    """
    first = os.path.join(root, "proc/1/root")
    try:
        return os.path.samestat(os.stat(root), os.stat(first))
    except PermissionError as problem:
        if os.geteuid() != 0:
            return False  # not a pod that was given the rights for it
        raise NodeError(
            f"{first}: {problem.strerror}. Whether {root} is the root of a running machine cannot be seen. Give this process "
            "the capability SYS_PTRACE, and in a pod hostPID."
        ) from None
    except OSError:
        return False


def enter(root: str, given: Sequence[str], document: str, own: str) -> None:
    """Run the same command on the running machine with this root, and do not return. Return if the root is an image.

    :param document: path of the class document here; `own` is that of the machine itself. Raises NodeError.
    """
    # A verdict is written below the root: a mistyped name would become a directory.
    # A root that may not be looked at is another fault, which is_running() explains.
    if not _may_be_directory(root):
        raise NodeError(f"--root {root} is no directory. Correct its path.")
    if not is_running(root):
        return
    if os.path.samestat(os.stat(root), os.stat("/")):
        raise NodeError(
            f"{root} is the root of this process itself. Leave out --root; in a pod, set hostPID: true."
        )
    program = _opened(sys.argv[0])
    arguments: List[str] = [*given, "--root", "/"]
    if document != own:
        arguments += ["--class", _opened(document)]
    # Its /proc has this process only if the pod shares the processes of the node.
    if not os.path.exists(os.path.join(root, program.lstrip("/"))):
        raise NodeError(f"{root}/proc does not show this process. A pod needs hostPID: true.")
    if not os.path.lexists(os.path.join(root, PYTHON.lstrip("/"))):
        raise NodeError(
            f"{root}{PYTHON} does not exist, and the check runs with the Python of the machine. Install python3 there."
        )
    try:
        os.chroot(root)
    except OSError as problem:
        raise NodeError(
            f"{root}: {problem.strerror}. Give this process the capability SYS_CHROOT."
        ) from None
    os.chdir("/")
    try:
        os.execv(PYTHON, [PYTHON, "-I", "-S", program, *arguments])  # noqa: S606 - the same program
    except OSError as problem:
        # Modules that were not imported before are out of reach now.
        sys.stderr.write(f"goldnode-node: {root}{PYTHON}: {problem.strerror}\n")
        sys.exit(3)


def _may_be_directory(path: str) -> bool:
    """Return whether a path is a directory, or cannot be looked at."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError:
        return True
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return False


def _opened(path: str) -> str:
    """Open a file for this process and the one that follows; return its name under any root."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as problem:
        raise NodeError(f"{path}: {problem.strerror}.") from None
    os.set_inheritable(handle, True)
    return f"/proc/self/fd/{handle}"
