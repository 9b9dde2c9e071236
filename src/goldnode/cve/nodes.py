"""Kernels, drivers and packages of the nodes of a fleet, by their last captures."""
# ruff: noqa: S608  # keys of the table below; nothing that a request gives

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from goldnode.cve.claims import OsRelease
from goldnode.fleet.ingest.class_names import NO_CLASS

_KEYS = {
    "os.id": "id",
    "os.version": "version",
    "os.kernel.running": "running",
    "os.kernel.version": "built",
    "os.kernel.next_boot": "next_boot",
    "os.kernel.installed": "installed",
    "os.modules": "modules",
    "os.denied": "denied",
    "os.absent": "absent",
    "driver.loaded": "driver",
    "driver.vendor": "vendor",
    "runtime.toolkit": "toolkit",
    "packages.total": "total",
}
_DRIFT = ("packages.drift.want", "packages.drift.have")
# Code names of the releases that nodes may run; a capture has the number alone.
_CODENAMES = {
    ("debian", "11"): "bullseye",
    ("debian", "12"): "bookworm",
    ("debian", "13"): "trixie",
    ("debian", "14"): "forky",
    ("ubuntu", "22.04"): "jammy",
    ("ubuntu", "24.04"): "noble",
    ("ubuntu", "26.04"): "resolute",
}
# A kernel's version, as in /proc/version: `#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-04)`.
_DEBIAN = re.compile(r"\bDebian (\S+)")
_UBUNTU = re.compile(r"#(\d+)(~\S+?)?-Ubuntu\b")
_RELEASE = re.compile(r"(\d+\.\d+\.\d+-\d+)\b")
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Values that a node reported. None: the capture has no such value.

    `drift` are the packages of the lock that have another version on the node (None: not installed).
    """

    name: str
    class_: str | None
    captured: str
    simulated: bool
    system: OsRelease | None
    lock: str | None
    running: str | None
    built: str | None
    next_boot: str | None
    installed: tuple[str, ...]
    modules: frozenset[str] | None
    driver: str | None
    toolkit: str | None
    drift: tuple[tuple[str, str | None], ...] | None
    denied: frozenset[str] = frozenset()  # modules that modprobe does not load
    absent: frozenset[str] = frozenset()  # modules of mitigations that the kernel does not have
    class_digest: str | None = None
    status: str | None = None  # of the verdict


def system_of(id_: str | None, version: str | None) -> OsRelease | None:
    """Return the release that a capture names; None if the distribution is not known here."""
    codename = _CODENAMES.get((id_ or "", version or ""))
    if codename is None or id_ is None or version is None:
        return None
    return OsRelease(id_, version, codename)


def kernel_version(release: str | None, built: str | None) -> str | None:
    """Return the version of the package that the running kernel is from, by what the kernel prints about itself.

    One release can be of several packages: 6.1.0-56-amd64 is in 6.1.192-1 and 6.1.192-2 of Debian. Ubuntu's kernels
    print the last part alone: `#63-Ubuntu` of 6.8.0-60-generic is 6.8.0-60.63. None for a kernel of nobody's archive.
    """
    if built is None:
        return None
    if match := _DEBIAN.search(built):
        return match[1]
    ubuntu, abi = _UBUNTU.search(built), _RELEASE.match(release or "")
    if ubuntu is None or abi is None:
        return None
    return f"{abi[1]}.{ubuntu[1]}{ubuntu[2] or ''}"


def nodes_of(directory: Path, at: datetime) -> list[NodeFacts]:
    """Return the nodes of a fleet by their last captures, sorted. Raise GoldnodeError for a directory without data."""
    from goldnode.fleet.ingest.read import ReadLimits, connect  # optional packages

    values: dict[str, dict[str, str]] = {}
    drift: dict[str, dict[str, dict[str, str]]] = {}
    listed = ", ".join(f"'{key}'" for key in (*_KEYS, *_DRIFT))
    with connect(directory, ReadLimits(at=at, last=True)) as connection:
        rows = connection.execute(
            "SELECT node, class, time, simulated, lock_digest, class_digest, status FROM nodes ORDER BY node"
        ).fetchall()
        facts = connection.execute(
            f"SELECT node, item, key, value FROM facts WHERE key IN ({listed}) AND fault IS NULL"
        ).fetchall()
    for node, item, key, value in facts:
        if key in _KEYS:
            values.setdefault(node, {})[_KEYS[key]] = value
        else:
            drift.setdefault(node, {}).setdefault(item, {})[key] = value
    return [_node(row, values.get(row[0], {}), drift.get(row[0], {})) for row in rows]


def _node(
    row: tuple[Any, ...], values: Mapping[str, str], drift: Mapping[str, Mapping[str, str]]
) -> NodeFacts:
    name, class_, captured, simulated, lock, class_digest, status = row
    modules = values.get("modules")
    others = None
    if "total" in values:
        others = tuple(sorted((item, versions.get(_DRIFT[1])) for item, versions in drift.items()))
    return NodeFacts(
        name,
        class_=None if class_ == NO_CLASS else class_,
        captured=captured.replace(tzinfo=UTC).strftime(_MOMENT),
        simulated=bool(simulated),
        system=system_of(values.get("id"), values.get("version")),
        lock=lock,
        running=values.get("running"),
        built=values.get("built"),
        next_boot=values.get("next_boot"),
        installed=tuple((values.get("installed") or "").split()),
        modules=None if modules is None else frozenset(modules.split()),
        driver=values.get("driver") if values.get("vendor") == "nvidia" else None,
        toolkit=values.get("toolkit"),
        drift=others,
        denied=frozenset(values.get("denied", "").split()),
        absent=frozenset(values.get("absent", "").split()),
        class_digest=class_digest,
        status=status,
    )
