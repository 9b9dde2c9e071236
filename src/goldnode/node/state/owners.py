"""Checks of who can change the files that root runs or trusts.

They cover owner, group and type of files and of the directories above them.

A row is {type: file, directory, link or other; owner, group: numbers, root's always 0; mode}. It
also has `owner_name` and `group_name` if /etc/passwd and /etc/group know them, and `to` for a link.
There are three kinds of locations:

* goldnode's own files and directories (:data:`OWN`) must belong to root, and the engine restores that.
* System directories above them are checked but never changed. One that a user owns, or that is
  world-writable, causes a refusal.
* Anything else in goldnode's directories that users other than root can change (a stray) is reported. In the
  record it causes a refusal, since the record decides what a removal or a rollback does as root.
"""

from __future__ import annotations

import os
import stat

from ..ground.errors import NodeError
from ..ground.host import Host, Json
from .model import Action, Note, Observed, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple


# Defaults of a row: root's values, with the mode of a file.
ROOTS: Json = {"type": "file", "owner": 0, "group": 0, "mode": 0o644}

RECORD = "/var/lib/goldnode"
RUN = "/run/goldnode"
# Directories that contain only goldnode's files, and the site's files for it.
OWN = ("/etc/goldnode", "/usr/lib/goldnode", "/var/cache/goldnode", RECORD, RUN)
# Directories whose whole content a run regenerates. A link or file in their place may
# be replaced by a directory.
REBUILT = ("/etc/goldnode", "/usr/lib/goldnode")
SHOWN = 4  # maximum number of paths in a finding or a refusal


# -- observe


def row(host: Host, name: str, found: os.stat_result) -> Json:
    """Return the row of the file at `name`, from its status."""
    uid, gid = host.superuser
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    result: Json = {
        "type": next((kind for test, kind in kinds if test(found.st_mode)), "other"),
        "owner": 0 if found.st_uid == uid else found.st_uid or uid,
        "group": 0 if found.st_gid == gid else found.st_gid or gid,
        "mode": stat.S_IMODE(found.st_mode),
    }
    for key, table in (("owner", "/etc/passwd"), ("group", "/etc/group")):
        known = named(host, table, result[key]) if result[key] else None
        if known:
            result[f"{key}_name"] = known
    if result["type"] == "link":
        try:
            result["to"] = os.readlink(host.located(name))
        except OSError:  # removed, or replaced by another file, in the meantime
            result["to"] = ""
    return result


def named(host: Host, table: str, number: int) -> Optional[str]:
    """Return the name of a user or group from the root's own file. A directory service might not answer."""
    for line in (host.text(table) or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    return None


def folders(host: Host, places: Iterable[str]) -> Dict[str, Json]:
    """Return the rows of the directories `places` and :data:`OWN`, and of all existing parents.

    Links are followed inside the root. The directories that they pass through also count as
    `above`: a user who can write to one of them decides where the path leads. goldnode's own
    directories are never links and are not followed.
    """
    rows: Dict[str, Json] = {}
    asked: Dict[str, Json] = {}
    for place in dict.fromkeys([*places, *OWN]):
        walked = _walk(host, place, rows)
        if walked:
            asked[place] = {**rows[walked[-1]], "above": walked[:-1]}
    return {**rows, **asked}


def _walk(host: Host, place: str, rows: Dict[str, Json]) -> List[str]:
    """Add the rows of each directory and link on the path to `place` to `rows`, and return their paths.

    The last path is the real location of `place`. Return an empty list if `place` does not exist.
    """
    todo, current = ["", *place.strip("/").split("/")], ""
    walked: List[str] = []
    while todo and len(walked) < 200:  # bounded, since links may form a loop
        name = todo.pop(0)
        if name == "..":
            current = os.path.dirname(current)
        if name in (".", "..") or (not name and current):
            continue
        path = f"{current.rstrip('/')}/{name}"
        if path not in rows:
            status = host.lstat(path)
            if status is None:
                return []
            rows[path] = row(host, path, status)
        walked.append(path)
        have = rows[path]
        if have["type"] == "link" and not (place in OWN and not todo):
            current = "/" if have["to"].startswith("/") else current
            todo = [*have["to"].strip("/").split("/"), *todo]
        elif have["type"] == "directory":
            current = path
        else:
            return [] if todo else walked
    return [] if todo else walked


def strays(host: Host, known: Iterable[str]) -> Dict[str, Json]:
    """Return the rows of files in goldnode's directories that users other than root can change.

    Files in `known` are checked individually and left out. Nothing below a stray is examined. Only
    the first level of /run/goldnode is, since a root filesystem may be mounted below it.
    """
    rows: Dict[str, Json] = {}
    skip, todo = set(known), [name for name in OWN if name != "/var/cache/goldnode"]
    while todo:
        directory = todo.pop()
        status = host.lstat(directory)
        if status is None or not stat.S_ISDIR(status.st_mode):
            continue
        try:
            names = sorted(os.listdir(host.located(directory)))
        except OSError:  # the directory is gone, or not readable for another user
            continue
        for path in (f"{directory}/{name}" for name in names):
            status = None if path in skip else host.lstat(path)
            if status is None:
                continue
            if (status.st_uid, status.st_mode & 0o022) != (host.superuser[0], 0) and exposed(
                have := row(host, path, status)
            ):
                rows[path] = have
            elif stat.S_ISDIR(status.st_mode) and directory != RUN:
                todo.append(path)
    return rows


# -- check


def who(have: Mapping[str, Any], key: str) -> str:
    """Return owner or group of a row as text: ``mallory (1000)``."""
    number = have[key]
    name = "root" if number == 0 else have.get(f"{key}_name")
    return f"{name} ({number})" if name else str(number)


def kind(have: Mapping[str, Any]) -> str:
    """Return the type of a row as text."""
    if have["type"] == "link":
        # Escaped by repr: a user chose this text, and it must not control the terminal.
        return f"a link to {str(have.get('to', ''))[:200]!r}"
    return {"file": "a file", "directory": "a directory"}.get(
        have["type"], "a device, pipe or socket"
    )


def faults(have: Mapping[str, Any]) -> List[str]:
    """Describe how owner and group differ from root."""
    return [f"{key} is {who(have, key)}, want root (0)" for key in ("owner", "group") if have[key]]


def exposed(have: Mapping[str, Any]) -> List[str]:
    """Describe why users other than root can change the file of a row.

    An ACL shows as the rights of the group.
    """
    faults = [f"owner is {who(have, 'owner')}, want root (0)"] if have["owner"] else []
    if have["type"] != "link":  # the mode of a link has no meaning
        faults += [f"all can write to it (mode {have['mode']:04o})"] if have["mode"] & 0o002 else []
        if have["mode"] & 0o022 == 0o020:
            faults.append(f"group {who(have, 'group')} can write to it (mode {have['mode']:04o})")
    return faults


def believe(host: Host, name: str, remedy: str = "run site.yml for this host") -> None:
    """Raise NodeError if others than root can change a file of this machine that decides what root runs.

    A file that does not exist decides nothing.
    """
    status = host.lstat(name) if host.live else None
    if status is None:
        return
    have = row(host, name, status)
    wrong = [f"it is {kind(have)}"] if have["type"] != "file" else exposed(have)
    if wrong:
        raise NodeError(
            f"{name} is not believed: {'; '.join(wrong)}. Find out who changed it, then {remedy}."
        )


def replaced(path: str, seen: Observed) -> bool:
    """Return whether goldnode's directory above a file is not a directory.

    The file was then read through a link.
    """
    return any(path.startswith(name + "/") and _wrong_type(seen, name) for name in OWN)


def _wrong_type(seen: Observed, name: str) -> bool:
    have = seen.folders.get(name)
    return have is not None and have.get("type", "directory") != "directory"


def _folder(seen: Observed, name: str) -> Json:
    """Return the row of a directory. Keys that a case file omits default to root's."""
    return {**ROOTS, "type": "directory", "mode": 0o755, **seen.folders[name]}


def own_folder(seen: Observed, name: str) -> List[str]:
    """Describe the faults of a directory that goldnode owns."""
    if name not in seen.folders:
        return []
    have = _folder(seen, name)
    if have["type"] != "directory":
        return [f"it is {kind(have)}, want a directory"]
    return list(dict.fromkeys([*faults(have), *exposed(have)]))


def above(seen: Observed, actions: Sequence[Action]) -> Dict[str, Json]:
    """Return rows of the system directories above goldnode's files that users other than root can write to.

    This includes the files that `actions` will create.
    """
    paths = [path for path, have in seen.files.items() if have is not None]
    paths += [path for path, target in seen.links.items() if target is not None]
    paths += [action.target for action in actions if action.kind in ("file.write", "link")]
    places = {name for name in OWN if name in seen.folders}
    for path in paths:
        while path != "/" and path.startswith("/"):
            path = os.path.dirname(path)
            places.add(path)
    places |= {path for place in places for path in seen.folders.get(place, {}).get("above", ())}
    rows = {name: _folder(seen, name) for name in sorted(places - set(OWN)) if name in seen.folders}
    # If only root can write to a directory, all links in it are root's, so the directory above suffices.
    return {
        name: have for name, have in rows.items() if have["type"] == "directory" and exposed(have)
    }


def severe(have: Mapping[str, Any]) -> bool:
    """Return whether a user, or everyone, can write to a directory. A group may consist of administrators."""
    return bool(have["owner"] or have["mode"] & 0o002)


# -- actions and refusals


def secure(seen: Observed) -> List[Action]:
    """Return the actions that give goldnode's own directories back to root."""
    actions = []
    for name in OWN:
        wrong = own_folder(seen, name)
        if wrong and not (_wrong_type(seen, name) and name not in REBUILT):
            have = _folder(seen, name)
            before = (
                f"{kind(have)}, owner {who(have, 'owner')}, group {who(have, 'group')}, mode "
                f"{have['mode']:04o}\n"
            )
            mode = 0o755 if have["type"] != "directory" else have["mode"] & ~0o022
            after = f"a directory, owner root (0), group root (0), mode {mode:04o}\n"
            reason = f"root runs and believes what is in it; {'; '.join(wrong)}"
            actions.append(
                Action(
                    "node_class",
                    kind="directory.secure",
                    target=name,
                    reason=reason,
                    before=before,
                    after=after,
                )
            )
    return actions


def refusals(seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse if users could replace files that goldnode writes, or may have written files it acts on."""
    refused = []
    for name, have in above(seen, actions).items():
        if severe(have):
            text = (
                f"{name}: {'; '.join(exposed(have))}. Who can write there can replace what root runs "
                "for goldnode."
            )
            remedy = f"Find out who changed it, then `chown root:root {name} && chmod go-w {name}`, and run again."
            refused.append(Refusal("unsafe-directory", text, remedy))
    return refused + record_refusals(seen)


def record_refusals(seen: Observed) -> List[Refusal]:
    """Refuse if the record of changes to this node cannot be trusted."""
    refused = []
    for name in OWN:
        if _wrong_type(seen, name) and name not in REBUILT:
            text = f"{name} is {kind(_folder(seen, name))}, want a directory of root's."
            refused.append(
                Refusal(
                    "unsafe-record",
                    text,
                    f"Move what it held back into a directory {name} of root's, and run again.",
                )
            )
    wrong = {path: have for path, have in seen.strays.items() if path.startswith(RECORD + "/")}
    if wrong:
        text = f"The records of goldnode on this node may have been changed by others: {_listed(wrong)}."
        remedy = (
            f"Look at them, then `chown -R root:root {RECORD} && chmod -R go-w {RECORD}`, or remove "
            "them, and run again."
        )
        refused.append(Refusal("unsafe-record", text, remedy))
    return refused


def notes(seen: Observed) -> List[Note]:
    """Report strays in goldnode's other directories.

    The engine never removes a file that it does not know.
    """
    wrong = {path: have for path, have in seen.strays.items() if not path.startswith(RECORD + "/")}
    if not wrong:
        return []
    text = f"{_listed(wrong)}. goldnode did not write that: look at it, then remove it or give it to root"
    return [Note("node.owner", text)]


def _listed(rows: Mapping[str, Json]) -> str:
    items = [f"{path}: {', '.join(exposed(have))}" for path, have in sorted(rows.items())]
    return "; ".join(items[:SHOWN]) + (" …" if len(items) > SHOWN else "")


# -- findings of the check


def findings(seen: Observed, actions: Sequence[Action]) -> Tuple[List[str], List[str], bool]:
    """Return findings for own files, findings for system directories, and whether the latter are severe.

    Each finding is a file or directory that users other than root can change.
    """
    own = []
    for path, have in sorted(seen.files.items()):
        if have is not None:
            wrong = exposed({**ROOTS, **have})
            own += [f"{path}: {'; '.join(wrong)}"] if wrong else []
            own += [f"{path} is {kind(have)}"] if have.get("type", "file") != "file" else []
    for name in (name for name in OWN if name in seen.folders):
        wrong = own_folder(seen, name) if _wrong_type(seen, name) else exposed(_folder(seen, name))
        own += [f"{name}: {'; '.join(wrong)}"] if wrong else []
    own += [f"{path}: {'; '.join(exposed(have))}" for path, have in sorted(seen.strays.items())]
    system = above(seen, actions)
    return (
        own,
        [f"{name}: {'; '.join(exposed(have))}" for name, have in system.items()],
        any(map(severe, system.values())),
    )
