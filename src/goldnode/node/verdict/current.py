"""The current verdict, read quickly from the file of the last check, without asking the driver or systemd.

A verdict counts if it is of this boot, of the node's current class, and not older than
:data:`.verdict_files.LIMIT`. Otherwise the answer is `could not check` (exit code 3). Nothing heavy
is imported here: the answer takes as long as the start of Python.
"""

from __future__ import annotations

import sys
import zlib

from ..ground import boot
from ..ground.verdict_files import CLASS, LIMIT, SEAL, VERDICT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple

SCHEMA = "goldnode.verdict/1"
UNKNOWN = 3
FAST = frozenset(("check", "--cached", "--quiet"))


def fault(
    verdict: Any, identity: Optional[str], uptime: Optional[float], digest: Optional[str] = None
) -> Optional[str]:
    """Return why a verdict does not hold now; None if it does. Pure.

    :param identity: this boot (:func:`boot.identity`).
    :param uptime: seconds since the kernel started.
    :param digest: the digest of the class that the node has now; None if it does not matter.
    """
    if verdict is None:
        return f"there is no verdict of this boot ({VERDICT})"
    if not isinstance(verdict, dict) or verdict.get("schema") != SCHEMA:
        return f"{VERDICT} is not a verdict of schema {SCHEMA}"
    if verdict.get("exit_code") not in (0, 1, 2, 3, 4) or not isinstance(
        verdict.get("findings"), list
    ):
        return f"{VERDICT} is not whole"
    if identity is None or uptime is None:
        return "this boot cannot be identified: /proc is not readable"
    at = verdict.get("uptime")
    # A verdict from the future of this boot was written by another one: the clock here is uptime, which never jumps.
    if (
        verdict.get("boot_identity") != identity
        or not isinstance(at, (int, float))
        or at > uptime + 1
    ):
        return "the last verdict is of another boot"
    if uptime - at > LIMIT:
        return f"the last verdict is {uptime - at:.0f} s old, and holds for {LIMIT} s: the passive check (goldnode-watch.timer) does not run"
    if digest is not None and verdict.get("class_digest") != digest:
        return "the last verdict is of another class than the node has now"
    return None


def load(root: str = "/") -> Tuple[Any, Optional[str]]:
    """Return the verdict on a machine, and the fault that invalidates it, if any.

    `root` is the directory of its files.
    """
    document = _json(root, CLASS)
    wanted = document.get("digest") if isinstance(document, dict) else None
    if not isinstance(wanted, str):
        return None, f"{CLASS} is not there, or is no class document"
    verdict = _json(root, VERDICT)
    identity = boot.identity(
        _text(root, "/proc/sys/kernel/random/boot_id"), _text(root, "/proc/1/stat")
    )
    if (
        identity is not None
        and isinstance(verdict, dict)
        and verdict.get("boot_identity") != identity
    ):
        identity = _of_node(root, identity, str(verdict.get("boot_identity")))
    return verdict, fault(verdict, identity, boot.uptime(_text(root, "/proc/uptime")), wanted)


def seal(identity: str, uptime: float, exit_code: int, verdict: bytes, document: bytes) -> str:
    """Return the line of :data:`.verdict_files.SEAL` for a verdict and the class document that it is of. Pure."""
    head = f"{identity} {uptime!r} {exit_code} {zlib.crc32(document):08x}"
    return f"{head} {zlib.crc32(verdict, zlib.crc32(head.encode())):08x}\n"


def sealed(root: str) -> Optional[Tuple[str, int]]:
    """Return the text of the verdict and its exit code if its seal shows that it holds now. If not, the result is None,
    and :func:`load` decides.
    """
    line = _text(root, SEAL)
    words = line.split()
    if len(words) != 5:
        return None
    text = _text(root, VERDICT)
    try:
        at, code = float(words[1]), int(words[2])
    except ValueError:
        return None
    known = boot.identity(
        _text(root, "/proc/sys/kernel/random/boot_id"), _text(root, "/proc/1/stat")
    )
    now = boot.uptime(_text(root, "/proc/uptime"))
    if known != words[0] or now is None or not at - 1 <= now <= at + LIMIT:
        return None
    if line != seal(known, at, code, text.encode(), _text(root, CLASS).encode()):
        return None
    return text, code


def _of_node(root: str, identity: str, stated: str) -> str:
    """Return the boot of the node if this is a container that has the node's directory mounted.

    It has the boot id of the node, and a PID 1 of its own. The fifth field of a line of mountinfo
    is the mount point (proc_pid_mountinfo(5)).
    """
    if stated.partition("/")[0] != identity.partition("/")[0]:
        return identity
    place = root.rstrip("/") + VERDICT.rpartition("/")[0]
    points = (line.split(" ", 5)[4:5] for line in _text(root, "/proc/self/mountinfo").splitlines())
    return stated if [place] in points else identity


def split(words: Sequence[str]) -> Tuple[Optional[str], List[str]]:
    """Return the format that a command line asks for, and its other words. The format is None where argparse has to
    report a mistake. `--json` is the former spelling of `--format json`.
    """
    form: Optional[str] = "text"
    rest: List[str] = []
    left = iter(words)
    for word in left:
        if word == "--json":
            form = "json"
        elif word == "--format" or word.startswith("--format="):
            form = next(left, None) if word == "--format" else word[9:]
            if form not in ("text", "json"):
                return None, list(words)
        else:
            rest.append(word)
    return form, rest


def answer(form: str, quiet: bool, root: str = "/") -> int:
    """Print the verdict that holds now and return its exit code (`check --cached`). Without one, print why and return 3."""
    quick = sealed(root) if form == "json" else None
    if quick is not None:
        print(quick[0])
        return quick[1]
    verdict, why = load(root)
    if why is not None:
        remedy = "Run `goldnode-node check`, and see `systemctl status goldnode-watch.timer`."
        if form == "json":
            import json  # start-up time, as in _json

            print(
                json.dumps(
                    {
                        "schema": SCHEMA,
                        "status": "could_not_check",
                        "exit_code": UNKNOWN,
                        "reason": why,
                        "remedy": remedy,
                    }
                )
            )
        print(f"goldnode-node: {why}. {remedy}", file=sys.stderr)
        return UNKNOWN
    if form == "json":
        print(_text(root, VERDICT))  # as the check wrote it
    else:
        from .report import verdict_table  # the other forms of the answer do not need it

        text = verdict_table(verdict)
        print(text.splitlines()[-1] if quiet else text)
    return int(verdict["exit_code"])


def _text(root: str, name: str) -> str:
    try:
        with open(root.rstrip("/") + name, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError:
        return ""


def _json(root: str, name: str) -> Any:
    """Return the value in a JSON file; None without a file; the text itself (which is not a verdict) if it is
    torn.
    """
    import json  # start-up time: a verdict with a seal is not parsed

    text = _text(root, name)
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
