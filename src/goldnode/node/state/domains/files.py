"""Files that goldnode owns: regular files of root with the wanted content and mode, or absent."""

from __future__ import annotations

from ...ground.host import PROGRAM
from ...ground.typed import NamedTuple
from .. import owners
from ..model import Action, Observed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional


UNITS = "/etc/systemd/system"


class Wanted(NamedTuple):
    """A file that the class wants.

    `content` has the format of :func:`observe.printable`; `show` replaces it in diffs.
    """

    path: str
    content: str
    part: str
    why: str
    mode: int = 0o644
    show: Optional[str] = None
    # Name of the payload with the file's bytes, if they are not part of the document.
    payload: Optional[str] = None
    base64: Optional[str] = None  # the file's bytes, if they may not be text
    reboot: Optional[str] = None


def plan(wanted: Iterable[Wanted], seen: Observed, keep: Iterable[str] = ()) -> List[Action]:
    """Return actions that make goldnode's files exactly the wanted ones.

    `keep` lists files that another domain manages.
    """
    actions: List[Action] = []
    names = set(keep)
    for file in wanted:
        names.add(file.path)
        # A file below a replaced directory was read through a link, so it counts as missing.
        have = None if owners.replaced(file.path, seen) else seen.files.get(file.path)
        wrong = ["the file is not there"] if have is None else differences(file, have)
        if not wrong:
            continue
        reason = "; ".join([file.why, *wrong])
        before = None if have is None else have["content"]
        if have is not None and file.show is not None:
            before = "(earlier content)\n"
        data: Dict[str, Any] = {"mode": file.mode}
        for name, value in (("payload", file.payload), ("base64", file.base64)):
            if value is not None:
                data[name] = value
        if len(data) == 1:
            data["content"] = file.content
        actions.append(
            Action(
                file.part,
                kind="file.write",
                target=file.path,
                reason=reason,
                before=before,
                after=file.show or file.content,
                reboot=file.reboot,
                data=data,
            )
        )
    for path, have in sorted(seen.files.items()):
        if (
            path not in names
            and have is not None
            and have.get("type") != "directory"
            and not owners.replaced(path, seen)
            and not of_the_site(path, have)
        ):
            actions.append(
                Action(
                    "node_class",
                    kind="file.remove",
                    target=path,
                    reason="goldnode wrote it for an earlier class; this one does not want it",
                    before=have["content"],
                )
            )
    return actions


def of_the_site(path: str, have: Optional[Mapping[str, Any]]) -> bool:
    """Return whether a unit with a name like goldnode's own was written by the site.

    A controller has such units (goldnode-fleet.service), and may be a node as well.
    """
    if have is None or have.get("type", "file") != "file" or path.rpartition("/")[0] != UNITS:
        return False
    text = have["content"]
    return not text.startswith("# goldnode") and PROGRAM not in text


def differences(file: Wanted, have: Mapping[str, Any]) -> List[str]:
    """Describe how an existing file differs from the wanted one; empty if it does not."""
    row = {**owners.ROOTS, **have}
    if row["type"] != "file":
        return [f"it is {owners.kind(row)}, want a file"]
    faults = ["its content differs"] if row["content"] != file.content else []
    faults += owners.faults(row)
    return faults + (
        [f"want mode {file.mode:04o}, have {row['mode']:04o}"] if row["mode"] != file.mode else []
    )
