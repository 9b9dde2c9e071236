"""Rollback: a plan that returns a node to an earlier class document, using only data stored on the node.

The catalog is not consulted. The plan is the one that the document has on any node, with two
additions. Packages that came with the current document are removed in the same transaction. A
kernel that is not running is booted once as a trial (state/trial.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile

from ..ground.errors import NodeError
from ..ground.host import Host, Json
from . import applied
from .domains import apt
from .engine import observed, plan
from .model import Plan, Refusal
from .removal import own_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Tuple

    from ..ground.document import ClassDocument

FIELDS = ("document", "class", "class_digest", "lock_digest", "stack", "release", "time", "good")


def chosen(host: Host, to: str) -> Tuple[ClassDocument, Json]:
    """Return the document to return to, and {to, left, again} for the report. Raises applied.GoneError."""
    choice = applied.earlier(applied.rows(host), to)
    about = {"to": _fields(choice.to), "left": _fields(choice.left), "again": choice.again}
    return applied.read(host, choice.to), about


def _fields(row: Json) -> Json:
    return {name: row[name] for name in FIELDS}


def planned(
    host: Host, to: str, payloads: Mapping[str, Any], lock_timeout: float
) -> Dict[str, Any]:
    """Return {plan, rollback}: the changes that a rollback would make. Read-only.

    If the node cannot return, the plan consists of refusals only.
    """
    try:
        document, about = chosen(host, to)
    except applied.GoneError as problem:
        own = own_document(host)
        refusal = Refusal(problem.code, problem.message, problem.remedy)
        known = own["digest"] if own else ""
        return {"plan": Plan((), (refusal,), class_digest=known).to_json(), "rollback": None}
    plan_back = plan(host, document, {**payloads, "back": True}, lock_timeout=lock_timeout)
    moves = next(
        (action for action in plan_back.actions if action.kind == "packages.transact"), None
    )
    if moves and not plan_back.refusals:
        refusals = obtainable(
            host, document, list(moves.data["install"]), list(moves.data["remove"])
        )
        plan_back = plan_back._replace(refusals=tuple(refusals))
    return {"plan": plan_back.to_json(), "rollback": about}


def obtainable(
    host: Host, document: ClassDocument, install: List[str], remove: List[str]
) -> List[Refusal]:
    """Refuse if apt can no longer install the earlier packages with identical content.

    The check uses the current archives of that document, with indexes, sources and pins in a
    temporary directory. The node's own apt state is not touched.
    """
    from . import apply as applying

    base = host.path("/run/goldnode")
    base.mkdir(parents=True, exist_ok=True)
    place = tempfile.mkdtemp(dir=str(base), prefix="apt-")
    try:
        options = _isolated(host, document, place)
        updated = host.run("apt-get", *options, "update", timeout=600)
        lost: List[str] = []
        try:
            wanted = {
                f"{package['name']}={package['version']}": package
                for package in document["packages"]
            }
            lost = applying.Applier(host, document, {}, lambda text: None).missing(
                install, wanted, options
            )
        except NodeError as problem:  # different content under a locked version
            return [
                Refusal(
                    "not-obtainable",
                    str(problem),
                    "Only a mirror keeps the bytes that were locked: see `goldnode mirror`.",
                )
            ]
        if not lost:
            request = (
                "--allow-downgrades",
                "--allow-change-held-packages",
                "install",
                *install,
                *(f"{name}-" for name in remove),
            )
            done = host.run(
                "apt-get", *options, "-y", "--no-install-recommends", "-s", *request, timeout=300
            )
            if done.rc == 0:
                return []
            what = f"apt finds no way to install them: {done.tail(3)}"
        else:
            what = (
                f"{len(lost)} packages are in no archive of it any more: "
                f"{', '.join(lost[:4])}{' …' if len(lost) > 4 else ''}"
            )
            errors = [
                line for line in updated.err.splitlines() if line.startswith(("E:", "W: Failed"))
            ]
            what += f" ({errors[0]})" if errors else ""
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return [
        Refusal(
            "not-obtainable",
            f"The packages of lock {applied.short(document['lock']['digest'])} "
            f"({document['stack']['name']}) cannot be had: {what}.",
            "Only a mirror keeps what its archive has dropped: see `goldnode mirror`, and "
            "`mirror:` in the site file. Nothing was changed.",
        )
    ]


def _isolated(host: Host, document: ClassDocument, place: str) -> List[str]:
    """Return apt options for a configuration in `place`.

    It has the node's own sources, and the archives of the document instead of the current ones.
    """
    seen = observed(host, document)
    only = bool(document.get("site", {}).get("only"))
    for name in ("sources", "preferences", "lists/partial", "cache/archives/partial"):
        os.makedirs(f"{place}/{name}")
    # Copy the indexes: apt then downloads only those that have changed.
    host.run("cp", "-a", "--reflink=auto", "/var/lib/apt/lists/.", f"{place}/lists/", timeout=120)
    for directory, target in (
        ("/etc/apt/sources.list.d", "sources"),
        ("/etc/apt/preferences.d", "preferences"),
    ):
        for name in host.glob(directory, "*"):
            base = name.rpartition("/")[2]
            if not base.startswith("goldnode-") and not (only and target == "sources"):
                shutil.copy(host.real(name), f"{place}/{target}/{base}")
    # With `only`, the document's archives are the only sources, so none of the node's sources count.
    if only:
        seen = seen.with_fields(sources=[])
    keys = {file.path: file for file in apt.keys(document)}
    for file in apt.sources(document, seen):
        text = file.content
        for path, key in keys.items():
            copy = f"{place}/{path.rpartition('/')[2]}"
            host.write(copy, _bytes(key))
            text = text.replace(f"Signed-By: {path}\n", f"Signed-By: {copy}\n")
        host.write(f"{place}/sources/{file.path.rpartition('/')[2]}", text.encode())
    host.write(f"{place}/preferences/goldnode-stack", apt.pins(document).content.encode())
    values = {
        "Dir::Etc::SourceParts": f"{place}/sources",
        "Dir::Etc::PreferencesParts": f"{place}/preferences",
        "Dir::State::Lists": f"{place}/lists",
        "Dir::Cache": f"{place}/cache",
        # The user _apt cannot read this private directory.
        "APT::Sandbox::User": "root",
        **({"Dir::Etc::SourceList": "/dev/null"} if only else {}),
    }
    return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]


def _bytes(key: Any) -> bytes:
    import base64

    return base64.b64decode(key.base64)
