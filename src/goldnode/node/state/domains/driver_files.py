"""Domain of the files of driver and container toolkit: those of their packages, what the loader opens, and what
dpkg has not finished.

A check reads the cache of the loader, looks for every file, and verifies those that changed in this boot. A
plan verifies all of them. `seen.driver_files` has these keys:

* unfinished: records of an interrupted dpkg (:func:`.dpkg.unfinished`)
* altered: [{package, path, why}] (:class:`.dpkg.AlteredFile`)
* loader: [{name, path, cached, source}], what is loaded for each name, and the line that names its directory
* error: why it could not be read
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress

from ...effective import dpkg, ldcache
from ...ground.host import Host
from ..finding import DEFERRED, MISMATCH, UNREAD, Finding, judge_item
from ..model import Action, Note, Observed, Refusal, Waiting
from ..observe import SIMULATOR, dpkg_lock_holder, load_json
from ..remedy import COMMAND, PERSON, SITE, Remedy
from .files import Wanted
from .packages import broken_packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument

# Path -> identity and digest of files that were verified in this boot
VERIFIED = "/run/goldnode/verified.json"
CUDA = "libcuda.so.1"
REINSTALLED = "files of the GPU driver were installed again"
TOOLKIT = ("nvidia-container", "libnvidia-container")  # packages of the container toolkit
FINISHED, INTACT = "dpkg has finished its work", "as packaged, and what programs load"
UNLINKED = (
    "See `update-alternatives --display nvidia` and `dpkg-divert --list`: `update-alternatives --auto nvidia` links the "
    "driver's libraries again, `dpkg-divert --rename --remove FILE` takes a diversion back; then `ldconfig`, and site.yml."
)
FINISH = "Run `dpkg --configure -a` and `apt-get -f install` on the node, then site.yml."


# -- observe


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Read dpkg's records and what the loader opens; verify libraries that changed since it was configured."""
    facts: Dict[str, Any] = {"unfinished": dpkg.unfinished(host), "altered": [], "loader": []}
    seen.driver_files = facts
    if host.live and (facts["unfinished"] or broken_packages(seen)):
        try:
            seen.lock_holder = dpkg_lock_holder(host)
        except PermissionError:  # an ordinary user does not see who holds it
            seen.lock_holder = "unknown"
    driver = document.get("driver")
    if not driver or not driver.get("library"):
        return
    if driver.get("vendor") != "nvidia":  # the libraries of others do not have the driver's version
        return
    names = dict.fromkeys([str(driver["library"]), CUDA])
    try:
        for name in names:
            row = _loaded(host, document, name)
            facts["loader"].append(row)
            real = row["real"]
            if real and _newer(host, real, ldcache.CACHE):
                facts["altered"] += _altered(host, document, seen, only=real)
        if host.live:
            rows = _altered(host, document, seen, since=_booted(host))
            facts["altered"] += [row for row in rows if row not in facts["altered"]]
    except (OSError, ValueError) as problem:
        facts["error"] = str(problem)


def observe_all(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Verify every file of the driver's packages. Reads their whole content once in a boot."""
    if document.get("driver") and "error" not in seen.driver_files:
        try:
            seen.driver_files["altered"] = _altered(host, document, seen)
        except OSError as problem:
            seen.driver_files["error"] = str(problem)


def _loaded(host: Host, document: ClassDocument, name: str) -> Dict[str, Any]:
    answer = ldcache.resolve(host, name, document["os"]["architecture"], SIMULATOR + "/")
    real = source = None
    if answer.path:
        real = "/" + os.path.relpath(host.real(answer.path), host.root)
        if not re.search(rf"\.so\.{re.escape(_version(document))}$", real):
            source = ldcache.source(host, answer.path.rpartition("/")[0])
    return {"name": name, "real": real, "source": source, **answer._asdict()}


def _driver(document: ClassDocument, key: str) -> Any:
    """Return a value of the driver's section, or None without a driver."""
    driver: Any = document.get("driver")
    return driver.get(key) if driver else None


def _version(document: ClassDocument) -> str:
    return str(_driver(document, "version") or "")


def _booted(host: Host) -> float:
    """Return when the kernel started, seconds since the epoch (proc(5), btime)."""
    match = re.search(r"^btime (\d+)$", host.text("/proc/stat") or "", re.MULTILINE)
    return float(match[1]) if match else 0.0


def _newer(host: Host, path: str, than: str) -> bool:
    """Return whether a file has changed after another one was written."""
    first, second = host.lstat(path), host.lstat(than)
    return bool(first and (not second or max(first.st_mtime, first.st_ctime) > second.st_mtime))


def _altered(
    host: Host,
    document: ClassDocument,
    seen: Observed,
    *,
    only: Optional[str] = None,
    since: Optional[float] = None,
) -> List[Dict[str, str]]:
    packages = [
        row["name"]
        for row in document["packages"]
        if (row["part"] == "driver" or row["name"].startswith(TOOLKIT))
        and seen.version(row["name"])
    ]
    known = load_json(host, VERIFIED)
    known = known if isinstance(known, dict) else {}
    before = dict(known)
    rows = dpkg.altered(
        host,
        packages,
        architecture=document["os"]["architecture"],
        known=known,
        only=only,
        since=since,
    )
    if host.live and known != before:
        with suppress(OSError):  # an ordinary user, or /run is full: the next one reads them again
            host.write(VERIFIED, json.dumps(known).encode(), 0o600)
    return [row._asdict() for row in rows]


# -- wanted state


def _faults(document: ClassDocument, seen: Observed) -> List[str]:
    """Return what is wrong with the driver's files, as texts."""
    texts = [f"{row['path']} {row['why']}" for row in seen.driver_files.get("altered", ())]
    for row in seen.driver_files.get("loader", ()):
        if row["cached"] and row["path"] != row["cached"]:
            texts.append(f"{ldcache.CACHE} names {row['cached']}, which is missing")
    own = _driver(document, "library")  # `driver.library` judges its version
    foreign = [row for row in _foreign(document, seen) if row["name"] != own]
    return texts + [_foreign_text(row, document) for row in foreign]


def _foreign(document: ClassDocument, seen: Observed) -> List[Dict[str, Any]]:
    """Return libraries of another version that are loaded instead of those of the driver's packages.

    A newer libcuda in a `compat` directory is NVIDIA's forward compatibility, and no fault.
    """
    version, rows = _version(document), []
    for row in seen.driver_files.get("loader", ()):
        real = row["real"]
        have = real.rpartition("/")[2].partition(".so.")[2] if real else version
        newer = _numbers(have) > _numbers(version)
        if have != version and not ("/compat/" in real and newer):
            rows.append(row)
    return rows if _complete(document, seen) and version else []


def _complete(document: ClassDocument, seen: Observed) -> bool:
    """Return whether the driver's packages have their versions. Others are the transaction's work."""
    wanted = [row for row in document["packages"] if row["part"] == "driver"]
    return all(seen.version(row["name"]) == row["version"] for row in wanted)


def _numbers(text: str) -> List[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


def _foreign_text(row: Dict[str, Any], document: ClassDocument) -> str:
    where = f" ({row['source']})" if row["source"] else ""
    return (
        f"programs load {row['real']}{where} for {row['name']}, want version {_version(document)}"
    )


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return no files: the driver's files belong to its packages."""
    return []


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return actions that install packages again whose files are missing or changed. apt writes the cache too."""
    faults: Dict[str, List[str]] = {}
    for row in seen.driver_files.get("altered", ()):
        faults.setdefault(row["package"], []).append(f"{row['path']} {row['why']}")
    versions = {row["name"]: row["version"] for row in document["packages"]}
    actions = [
        Action(
            "container_runtime" if name.startswith(TOOLKIT) else "gpu_driver",
            kind="packages.reinstall",
            target=name,
            reason="; ".join(texts[:3]) + (" …" if len(texts) > 3 else ""),
            after=f"{name} {versions[name]}\n",
            reboot=None if name.startswith(TOOLKIT) else REINSTALLED,
        )
        for name, texts in sorted(faults.items())
        if seen.version(name) == versions[name]  # any other comes with the transaction
    ]
    error = seen.driver_files.get("error")
    return actions, [Note("driver.files", error)] if error else [], []


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse a node with an unfinished dpkg even if nothing is to do, and one that loads another driver's library."""
    refused = []
    unfinished = seen.driver_files.get("unfinished")
    if unfinished and seen.journal is None and not seen.lock_holder and not actions:
        text = f"dpkg was interrupted ({', '.join(unfinished[:3])}), and apt refuses all work."
        refused.append(Refusal("dpkg-broken", text, FINISH))
    altered = {row["path"] for row in seen.driver_files.get("altered", ())}
    if not actions:
        refused += _unlinked(document, seen)
    for row in _foreign(document, seen):
        if row["real"] not in altered:
            refused.append(
                Refusal("foreign-library", f"{_foreign_text(row, document)}.", _undo(row))
            )
    return refused


def _unlinked(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse if programs find no library although its packages are as installed: a link or diversion is in the way."""
    rows = seen.driver_files.get("loader", ())
    own = _driver(document, "library")
    names = [
        row["name"] for row in rows if not row["path"] and (row["cached"] or row["name"] == own)
    ]
    if not names or not _complete(document, seen) or seen.driver_files.get("altered"):
        return []
    text = (
        f"Programs find no {', '.join(names)}, and the files of the driver's packages are in place."
    )
    return [Refusal("library-unlinked", text, UNLINKED)]


def _undo(row: Dict[str, Any]) -> str:
    if row["source"]:
        return f"Remove that line from {row['source'].partition(':')[0]}, run `ldconfig`, then site.yml."
    return f"Remove {row['path']} (an NVIDIA .run file leaves it), run `ldconfig`, then site.yml."


def undo(document: ClassDocument, seen: Observed, name: str) -> Optional[Remedy]:
    """Return how to remove a library that others loaded instead of the driver's; None if there is none."""
    rows = [row for row in _foreign(document, seen) if row["name"] == name]
    if not rows and _unlinked(document, seen):
        return Remedy(UNLINKED, COMMAND, SITE)
    return Remedy(_undo(rows[0]), COMMAND, SITE) if rows else None


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report whether dpkg has finished, and whether the driver's files are those of its packages."""
    broken = [*seen.driver_files.get("unfinished", ()), *broken_packages(seen)]
    got = f"not finished: {', '.join(broken[:4])}" if broken else FINISHED
    rows = [judge_item("dpkg.finished", FINISHED, got, Remedy(FINISH, COMMAND, SITE))]
    if broken and seen.lock_holder:
        rows = [Finding("dpkg.finished", DEFERRED, FINISHED, f"{got}; dpkg is at work")]
    if _driver(document, "vendor") != "nvidia":
        return rows
    if "error" in seen.driver_files:
        remedy = Remedy("Run `ldconfig`, or see dmesg for errors of the disk.", COMMAND, PERSON)
        error = seen.driver_files["error"]
        return [*rows, Finding("driver.files", UNREAD, INTACT, error, remedy)]
    faults = _faults(document, seen)
    if not faults:
        return [*rows, judge_item("driver.files", INTACT, INTACT, Remedy(""))]
    foreign = _foreign(document, seen)
    text = "Run site.yml: it installs the package again, and the loader's cache with it."
    remedy = Remedy(_undo(foreign[0]), COMMAND, SITE) if foreign else Remedy(text, SITE)
    if not foreign and _unlinked(document, seen):
        remedy = Remedy(UNLINKED, COMMAND, SITE)
    return [*rows, Finding("driver.files", MISMATCH, INTACT, "; ".join(faults[:4]), remedy)]
