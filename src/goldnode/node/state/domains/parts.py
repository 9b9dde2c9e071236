"""Domain of the parts that a class declares and no lock holds: compared with the node, and never installed."""

from __future__ import annotations

import re

from ...ground.host import Host
from ..finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding, place
from ..model import Note, Observed
from ..remedy import PERSON, REBOOT, Remedy
from .modules import survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument, DeclaredPart
    from ..model import Action, Refusal, Waiting
    from .files import Wanted


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Read package, module and program of each declared part into `seen.parts`: name -> [place, version].

    The version is empty for a module without one, and None for a program that printed none.
    """
    rows = document.get("parts") or []
    release = document["kernel"]["release"]
    # A way such as peermem is in use only where its module is loaded.
    modules = [row["module"] for row in rows if row["module"] and row["version"][0].isdigit()]
    files = survey(host, release, modules) if modules else {}
    for row in rows:
        readings: List[List[Optional[str]]] = [
            [f"package {name}", version]
            for name in row["packages"]
            if (version := seen.version(name))
        ]
        module, program = row["module"], row["program"]
        if module and (info := files.get(module)):
            readings.append([f"modinfo -k {release} {module}", info["version"]])
        loaded = f"/sys/module/{module}/"
        if module and not place(seen) and host.exists(f"{loaded}initstate"):
            readings.append([f"{loaded}version", (host.text(f"{loaded}version") or "").strip()])
        if program and host.live and not (readings and row["packages"]):
            result = host.run(*program, timeout=10)
            if result.rc != 127:
                text = None if result.rc else version_in(result.out)
                readings.append([" ".join(program), text])
        seen.parts[row["name"]] = readings


def version_in(text: str) -> Optional[str]:
    """Return the first version in what a program prints, as in `MLNX_OFED_LINUX-24.10-3.2.5.0:`."""
    match = re.search(r"\d+(\.\d+)+(-\d+(\.\d+)+)?", text)
    return match[0] if match else None


def _agrees(wanted: str, version: Optional[str]) -> Optional[bool]:
    """Return whether a version is the wanted one as far as that is stated; None if it does not show that."""
    if version is None:
        return None
    left, right = (
        [int(part) for part in re.findall(r"\d+", re.sub(r"^\d+:", "", text))]
        for text in (wanted, version)
    )
    if not right or left[: len(right)] != right[: len(left)]:
        return not left
    return None if any(left[len(right) :]) else True


def _files(document: ClassDocument) -> str:
    """Return the files of the catalog that may declare a part. The node has no lines: each would change its document's digest."""
    return (
        f"classes/{document['class']}.yml or stacks/{document['stack']['name']}.yml of the catalog"
    )


def _judged(document: ClassDocument, row: DeclaredPart, seen: Observed) -> Finding:
    name, want, readings = f"parts.{row['name']}", row["version"], seen.parts.get(row["name"], [])
    agree = {
        str(where): _agrees(
            want if str(where).startswith("package") else row["shown"] or want, version
        )
        for where, version in readings
    }
    got = "; ".join(f"{version or 'no version'} ({where})" for where, version in readings)
    wrong = [where for where, same in agree.items() if same is False]
    if wrong or (not readings and row["module"]):
        if not readings and place(seen):
            return Finding(name, ELSEWHERE, want, place(seen))
        text = f"Install {row['title']} {want}, which goldnode does not do, or correct {name} in {_files(document)}."
        remedy = Remedy(text, PERSON)
        if True in agree.values() and wrong == [f"/sys/module/{row['module']}/version"]:
            remedy = Remedy("Reboot the node: the loaded module is not the installed one.", REBOOT)
        return Finding(name, MISMATCH, want, got or f"no module {row['module']}", remedy)
    if True in agree.values():
        return Finding(name, MATCH, want, got)
    if any(version is None for _, version in readings):
        return Finding(name, UNREAD, want, got)
    got = f"{got}: no more is shown" if got else "no package or program of this node shows it"
    return Finding(name, NOT_EXPOSED, want, got)


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return no files: goldnode installs none of the parts."""
    return []


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return notes on parts that differ or cannot be read: goldnode changes none of them. Pure."""
    wrong = [row for row in findings(document, seen) if row.outcome in (MISMATCH, UNREAD)]
    notes = [
        Note(row.id, f"{row.id}: want {row.expected}, have {row.got}. {row.remedy or ''}".rstrip())
        for row in wrong
    ]
    return [], notes, []


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Return no refusals: `goldnode check` has judged the declared versions."""
    return []


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return one finding for each declared part. Pure."""
    return [_judged(document, row, seen) for row in document.get("parts") or ()]
