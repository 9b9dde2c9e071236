"""Store of the class documents that were applied to a node, so that the node can return to an earlier one.

Each document is stored completely, under the digest of its bytes. INDEX (schema goldnode.kept/1) is
{schema, rows}, oldest first; the last row is the document in force. Next to a document lies the
list of packages that the node had when it left that document. A row has these keys:

* document: digest of the bytes in PLACE
* class, class_digest, lock_digest, stack, release, time
* by: BY_APPLY or BY_ROLLBACK
* whole: True if every part of it was applied
* good: True if a check reported nothing that would drain the node
"""

from __future__ import annotations

import json
import time

from ..ground.host import Host, Json
from ..ground.typed import NamedTuple
from .domains.program import CLASS, class_file
from .family import headers_release, kernel_release
from .model import Observed
from .names import digest
from .observe import INDEX, load_json, packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from ..ground.document import ClassDocument


PLACE = INDEX.rpartition("/")[0]
SCHEMA = "goldnode.kept/1"
BY_APPLY, BY_ROLLBACK = "apply", "rollback"
KEEP = 8


class GoneError(Exception):
    """No document to return to: a code, a sentence, and what to do."""

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.code, self.message, self.remedy = code, message, remedy


class RollbackTarget(NamedTuple):
    """The row to return to, the row in force, and whether the node has already returned there (`again`)."""

    to: Json
    left: Json
    again: bool


def rows(host: Host) -> List[Json]:
    """Return the rows of the index.

    On a node that an older goldnode set up, this is only its current class document.
    """
    index = load_json(host, INDEX)
    if isinstance(index, dict) and index.get("schema") == SCHEMA and index.get("rows"):
        return list(index["rows"])
    from . import removal  # start-up time: a check that marks a document as good does not need it

    own = removal.own_document(host)
    return [row_of(own, BY_APPLY, whole=True)] if own else []


def row_of(document: ClassDocument, by: str, whole: bool = False) -> Json:
    """Return a row for a document that is about to be applied."""
    return {
        "document": digest(class_file(document).content.encode()),
        "class": document["class"],
        "class_digest": document["digest"],
        "lock_digest": document["lock"]["digest"],
        "stack": document["stack"]["name"],
        "release": document["kernel"]["release"],
        "by": by,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "whole": whole,
        "good": False,
    }


def enter(host: Host, document: ClassDocument, by: str) -> None:
    """Record, before the first change, that a document is being applied.

    Store the document that the node leaves, together with the current package versions.
    """
    from . import removal

    known = rows(host)
    own = removal.own_document(host)
    fresh = row_of(document, by)
    if known and known[-1]["class_digest"] == fresh["class_digest"]:
        # The same class with a different site file: the archives of the new site are the ones to use.
        known[-1] = {**known[-1], "document": fresh["document"]}
    else:
        if known:
            left = known[-1]
            if own and own["digest"] == left["class_digest"]:
                _write(host, own)
            if left["whole"]:
                have = {name: package["version"] for name, package in packages(host).items()}
                host.write(
                    _versions_file(left["class_digest"]),
                    json.dumps(have, indent=0, sort_keys=True).encode(),
                )
        # A document that is applied again moves to the end of the index and stays marked as good.
        same = [row for row in known if row["class_digest"] == fresh["class_digest"]]
        known = [row for row in known if row not in same]
        known.append({**fresh, "good": bool(same and same[-1]["good"])})
    _write(host, document)
    _keep(host, rows_to_keep(known))


def mark(host: Host, document: ClassDocument, whole: bool = False, good: bool = False) -> None:
    """Record that all of the document was applied, or that a check found it good. Writes only changes."""
    index = load_json(host, INDEX)
    known = list(index["rows"]) if isinstance(index, dict) and index.get("rows") else []
    if not known or known[-1]["class_digest"] != document["digest"]:
        return
    last = known[-1]
    now = {
        **last,
        "whole": last["whole"] or whole,
        "good": last["good"] or (good and (last["whole"] or whole)),
    }
    if now != last:
        _keep(host, [*known[:-1], now])


def rows_to_keep(known: List[Json]) -> List[Json]:
    """Return the rows to keep: the newest ones, and always the last good one before the row in force."""
    stay = known[-KEEP:]
    good = [row for row in known[:-1] if row["good"]]
    return stay if not good or good[-1] in stay else [good[-1], *stay[1:]]


def earlier(known: List[Json], to: str = "") -> RollbackTarget:
    """Return the document that a node rolls back to. Pure.

    Without `to`, this is the newest document before the one in force that a check found good. If
    there is none, it is the newest one that was applied completely. A node that was already rolled
    back stays there. `to` is the beginning of the digest of a lock, a class document, or a stored
    document.

    :raises GoneError: if no document qualifies.
    """
    if not known:
        raise GoneError(
            "nothing-earlier",
            "The node has no class document.",
            "Run site.yml for this host; there is nothing to return from.",
        )
    now = known[-1]
    if to:
        # Digests are accepted with and without their algorithm.
        wanted = to.partition(":")[2] if to.startswith("sha256:") else to
        names = ("lock_digest", "class_digest", "document")
        rows_before = [
            row
            for row in known
            if any(str(row[name]).partition(":")[2].startswith(wanted) for name in names)
        ]
        if not rows_before or len({row["lock_digest"] for row in rows_before}) > 1:
            have = "; ".join(
                f"{short(row['lock_digest'])} ({row['stack']}, kernel {row['release']}, {row['time']})"
                for row in known
            )
            what = (
                "is the beginning of several digests" if rows_before else "is not kept on this node"
            )
            raise GoneError("nothing-earlier", f"{to} {what}.", f"Kept are the locks: {have}.")
        return RollbackTarget(rows_before[-1], now, rows_before[-1] is now)
    # A second rollback must not undo the first one.
    if now["by"] == BY_ROLLBACK:
        return RollbackTarget(now, now, True)
    before = known[:-1]
    rows_before = [row for row in before if row["good"]] or [row for row in before if row["whole"]]
    if not rows_before:
        raise GoneError(
            "nothing-earlier",
            "The node has had no other class document than that of lock "
            f"{short(now['lock_digest'])} ({now['stack']}), fully applied.",
            "There is nothing to return to: change the stack or its lock, and run site.yml.",
        )
    return RollbackTarget(rows_before[-1], now, False)


def read(host: Host, row: Json) -> ClassDocument:
    """Return the document of a row, byte for byte as it was applied.

    :raises GoneError: if the file is missing or its digest differs.
    """
    data = host.data(_file(row["document"]))
    # A node that an older goldnode set up has no copy of the document in force, only that itself.
    if data is None and row["class_digest"] == (load_json(host, CLASS) or {}).get("digest"):
        data = host.data(CLASS)
    if data is None or digest(data) != row["document"]:
        what = "is not there" if data is None else "was changed on the node"
        raise GoneError(
            "damaged",
            f"{_file(row['document'])}, the class document to return to, {what}.",
            "Take the class or the stack's lock back in git instead, and run site.yml.",
        )
    document: ClassDocument = json.loads(data)
    return document


def short(text: str) -> str:
    """Return the short form of a digest for messages."""
    return text.partition(":")[2][:12] or text


def _file(name: str) -> str:
    return f"{PLACE}/{name.partition(':')[2]}.json"


def _versions_file(class_digest: str) -> str:
    return f"{PLACE}/{class_digest.partition(':')[2]}.packages"


def _write(host: Host, document: ClassDocument) -> None:
    content = class_file(document).content.encode()
    name = _file(digest(content))
    if host.data(name) != content:
        host.write(name, content)


def _keep(host: Host, known: List[Json]) -> None:
    """Write the index, then delete every file that no row refers to."""
    host.write(
        INDEX, json.dumps({"schema": SCHEMA, "rows": known}, indent=1, sort_keys=True).encode()
    )
    named = {
        INDEX,
        *(_file(row["document"]) for row in known),
        *(_versions_file(row["class_digest"]) for row in known),
    }
    for name in host.glob(PLACE, "*"):
        if name not in named:
            host.remove(name)


# -- facts for a rollback


def observe_back(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Fill `seen.back` with the facts that only a rollback needs. Reads only.

    It is {leave: packages that came with the current document, residual: packages whose
    configuration existed before goldnode, notes: [[subject, message]], boot: the storage to which
    GRUB cannot write its environment, or None}.
    """
    from . import needs, removal
    from . import record as records

    record = records.read(host)
    had = load_json(host, _versions_file(document["digest"]))
    wanted = {package["name"] for package in document["packages"]}
    # The document was never left complete. Use the package list of the document in force, as far as goldnode
    # installed those packages.
    if had is None:
        own = removal.completed(removal.own_document(host))
        came = {package["name"] for package in own["packages"]}
    else:
        came = set(seen.packages) - set(had)
    candidates = sorted(
        name
        for name in set(record.get("brought", ())) & came
        if name in seen.packages and name not in wanted
    )
    # The running kernel and its headers stay, and all kernels stay during a trial: they are the way
    # back if the rollback fails.
    kernels = {name: kernel_release(name) or headers_release(name) for name in candidates}
    stay = {
        name
        for name, release in kernels.items()
        if release and (seen.trial or release == seen.running_kernel)
    }
    leave: List[str] = []
    notes: List[Tuple[str, str]] = []
    if candidates:
        traces, seen.traces = seen.traces, needs.relations(host)
        leave, reasons = removal.leaving(
            seen, {"brought": [name for name in candidates if name not in stay]}
        )
        seen.traces = traces
        notes = [
            (note.subject, note.message)
            for note in reasons
            if note.subject == "packages.needed" and not stay
        ]
    blocked: Optional[str] = None
    if seen.boot.get("loader") == "grub" and not seen.container:
        for target in ("abstraction", "fs"):
            reported = host.run("grub-probe", f"--target={target}", "/boot/grub")
            words = reported.out.split()
            # GRUB writes only to plain partitions, and not to file systems with checksums (GRUB
            # manual, "Environment block").
            if reported.rc == 0 and (
                words if target == "abstraction" else set(words) & {"btrfs", "zfs", "f2fs"}
            ):
                blocked = " ".join(words)
    release = document["kernel"]["release"]
    if blocked and seen.running_kernel not in (None, release):
        text = (
            f"GRUB cannot write to /boot ({blocked}), so that {release} cannot be tried once: it "
            "becomes the default at once"
        )
        notes.append(("boot.once", text))
    if seen.boot.get("loader") == "systemd-boot" and seen.running_kernel not in (None, release):
        text = (
            f"systemd-boot counts boots of whole images, and {release} is one kernel: it becomes the "
            "default at once"
        )
        notes.append(("boot.once", text))
    back: Dict[str, Any] = {
        "leave": leave,
        "residual": list(record.get("residual", ())),
        "notes": notes,
        "boot": blocked,
    }
    seen.back = back
