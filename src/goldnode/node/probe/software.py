"""Container engine and CDI, services, fabric manager, and drift from the lock. The engine's observations are
not read again.
"""

from __future__ import annotations

from ..effective.cdi import differences, read_cdi
from ..ground.host import Json
from .context import Context
from .machine import printable
from .values import Files, is_fault, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence

# Later directories take precedence (CDI specification, "CDI Spec directories").
CDI = ("/etc/cdi", "/var/run/cdi")
MOST_CDI = 1 << 20
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "StateChangeTimestampMonotonic",
)
ENGINES = {"docker": "docker.service", "containerd": "containerd.service", "podman": None}
PROGRAMS = {
    "docker": "/usr/bin/dockerd",
    "containerd": "/usr/bin/containerd",
    "podman": "/usr/bin/podman",
}
PACKAGES = {
    "docker": ("docker-ce", "docker.io"),
    "containerd": ("containerd.io", "containerd"),
    "podman": ("podman",),
}
TOOLKITS = ("nvidia-container-toolkit", "amd-container-toolkit")
FABRIC = ("nvidia-fabricmanager", "nvidia-fabric-manager", "cuda-drivers-fabricmanager")
STATUS, MOST_STATUS = "/var/lib/dpkg/status", 32 << 20
UNSET = 2**64 - 1
# Units that are shown without a class to say which ones matter.
WITHOUT_CLASS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "docker.service",
    "containerd.service",
)


def read(context: Context) -> Json:
    """Read the sections runtime, services, fabric_manager and packages."""
    installed = versions(context)
    shown = services(context, installed)
    sections: Json = {
        "runtime": runtime(context, installed, shown),
        "services": shown,
        "fabric_manager": fabric_manager(installed, shown),
    }
    if context.seen is not None:
        sections["packages"] = packages(context)
    return sections


# -- packages


def packages(context: Context) -> Json:
    """Return the differences from the lock: other versions, packages not on hold, and the number compared."""
    seen, wanted = context.seen, context.document.get("packages") or ()
    drift = [
        {"name": row["name"], "have": seen.version(row["name"]), "want": row["version"]}
        for row in wanted
        if seen.version(row["name"]) != row["version"]
    ]
    free = [row["name"] for row in wanted if not seen.packages.get(row["name"], {}).get("hold")]
    return {"drift": drift, "free": free, "total": len(wanted)}


def versions(context: Context) -> Any:
    """Return package -> installed version for the packages that this module needs, or a fault if dpkg's
    database cannot be read.
    """
    asked = [name for names in PACKAGES.values() for name in names] + [*TOOLKITS]
    if context.seen is not None:
        installed = {name: context.seen.version(name) for name in asked}
        for name in context.seen.packages:
            if name.startswith(FABRIC):
                installed[name] = context.seen.version(name)
        return {name: version for name, version in installed.items() if version}
    data = context.files.data(STATUS, MOST_STATUS)
    if not isinstance(data, bytes):
        return data
    installed = {}
    for start in (*asked, *FABRIC):
        at = -1
        while True:
            at = data.find(b"Package: " + start.encode(), at + 1)
            if at < 0:
                break
            end = data.find(b"\n\n", at)
            stanza = data[at:] if end < 0 else data[at:end]
            rows = dict(
                line.partition(": ")[::2]
                for line in stanza.decode("utf-8", "replace").splitlines()
                if line[:1] not in " \t"
            )
            name = rows.get("Package", "")
            begins = at == 0 or data[at - 1 : at] == b"\n"
            there = begins and rows.get("Status", "").endswith(" installed")
            # The branch is a part of the name of a fabric manager: nvidia-fabricmanager-570.
            if there and (name == start or (start in FABRIC and name.startswith(start))):
                installed[name] = rows.get("Version")
    return installed


# -- services


def wanted(document: Mapping[str, Any], installed: Any = None) -> List[str]:
    """Return the units that matter on a node of this class: those that its baseline names or its stack
    implies.
    """
    stated = ((document.get("health") or {}).get("baseline") or {}).get("services") or ()
    names = {
        name if "." in name else f"{name}.service"
        for name in stated
        if isinstance(name, str) and name and not name.startswith("-")
    }
    driver = document.get("driver") or {}
    packages = [str(row.get("name")) for row in document.get("packages") or ()]
    if not is_fault(installed):
        packages += installed or ()
    if driver.get("module") == "nvidia" or (document.get("gpu") or {}).get("vendor") == "nvidia":
        names.add("nvidia-persistenced.service")
    if any(name.startswith(FABRIC) for name in packages):
        names.add("nvidia-fabricmanager.service")
    engine = (document.get("runtime") or {}).get("engine")
    if engine == "docker":
        names.update(("docker.service", "containerd.service"))
    elif engine == "containerd":
        names.add("containerd.service")
    if not document:
        names.update(WITHOUT_CLASS)
    return sorted(names)


def services(context: Context, installed: Any) -> Json:
    """Return unit -> {load, active, sub, result, restarts, since_us} of :func:`wanted`; read once, or from
    the engine's observations.
    """
    if not context.host.live:
        return not_exposed("an image does not run")
    if not context.files.there("/run/systemd/system"):
        return not_exposed("systemd does not run here")
    names = wanted(context.document, installed)
    loaded = (context.seen.units.get("loaded") if context.seen is not None else None) or {}
    rows = {name: row for name, row in loaded.items() if name in names and "SubState" in row}
    missing = [name for name in names if name not in rows]
    error: Optional[Json] = None
    if missing:
        reported = context.host.run(
            "systemctl", "show", "-p", ",".join(PROPERTIES), "--", *missing, timeout=10
        )
        blocks = [
            dict(line.partition("=")[::2] for line in block.splitlines())
            for block in reported.out.split("\n\n")
        ]
        blocks = [block for block in blocks if block.get("Id")]
        # In the order in which they were asked for; `Id` is another name where one asks for an alias.
        keys = missing
        if len(blocks) != len(missing):
            keys = [block["Id"] for block in blocks]
        rows.update(zip(keys, blocks))
        if reported.rc != 0 or not blocks:
            error = unread(
                f"systemctl show: {printable(reported.err.strip() or 'no answer')}", reported.rc
            )
    return {
        name: _unit(rows[name]) if name in rows else error or unread("systemd did not report it")
        for name in names
    }


def _unit(row: Mapping[str, str]) -> Json:
    def number(key: str) -> Any:
        text = row.get(key, "")
        return int(text) if text.isdigit() and int(text) != UNSET else None

    return {
        "load": row.get("LoadState"),
        "active": row.get("ActiveState"),
        "sub": row.get("SubState"),
        "result": row.get("Result"),
        "restarts": number("NRestarts"),
        "since_us": number("StateChangeTimestampMonotonic"),
    }


def fabric_manager(installed: Any, shown: Any) -> Json:
    """Return the installed fabric manager (None without one), and whether it runs."""
    if is_fault(installed):
        return {"installed": installed, "active": installed}
    version = next(
        (version for name, version in sorted(installed.items()) if name.startswith(FABRIC)), None
    )
    return {
        "installed": version,
        "active": _active(shown, "nvidia-fabricmanager.service") if version else False,
    }


def _active(shown: Any, unit: str) -> Any:
    if "fault" in shown:
        return shown
    row = shown.get(unit)
    if row is None or "fault" in row:
        return row or not_exposed("not asked")
    return row["active"] == "active"


# -- container runtime


def runtime(context: Context, installed: Any, shown: Any) -> Json:
    """Return the engine that the class names, otherwise the first installed one, with its toolkit and the
    node's CDI specs.
    """
    files = context.files
    engine = (context.document.get("runtime") or {}).get("engine")
    if engine not in ENGINES:
        engine = next((name for name, path in PROGRAMS.items() if files.there(path)), None)
    version: Any = None
    if context.seen is not None:
        version = (context.seen.runtime.get("info") or {}).get("version")
    unit = ENGINES.get(engine or "")
    active: Any = not_exposed("an engine without a daemon" if engine else "no engine")
    if unit:
        active = _active(shown, unit)
    return {
        "engine": engine,
        "version": version or _first(installed, PACKAGES.get(engine or "", ())),
        "toolkit": _first(installed, TOOLKITS),
        "active": active,
        "cdi": specs(files),
    }


def _first(installed: Any, names: Sequence[str]) -> Any:
    """Return the version of the first of these packages that is installed, or the fault of the package database."""
    if is_fault(installed):
        return installed
    return next((installed[name] for name in names if name in installed), None)


def specs(files: Files) -> List[Json]:
    """Return the CDI specs: kind, number of devices, and the paths of the host that they name and that are
    missing.
    """
    rows: List[Json] = []
    for folder in CDI:
        for name in files.names(folder):
            if name.endswith((".json", ".yaml")):
                path = f"{folder}/{name}"
                data = files.data(path, MOST_CDI)
                if isinstance(data, bytes):
                    rows.append({"file": path, **_spec(files, data)})
                else:
                    rows.append({"file": path, "error": data})
    return rows


def _spec(files: Files, data: bytes) -> Json:
    if len(data) >= MOST_CDI:
        return {"error": unread(f"larger than {MOST_CDI >> 20} MiB")}
    spec = read_cdi(data.decode("utf-8", "replace"))
    if spec.kind is None:
        error = unread(str(spec.error))
        gpu = {"gpu": True} if b".com/gpu" in data else {}
        return {"kind": None, "devices": 0, "missing": [], "error": error, **gpu}
    paths = [path for path in spec.paths if path.startswith("/") and "/../" not in path + "/"]
    missing = [printable(path, 240) for path in paths if not files.there(path)]
    row: Json = {"kind": printable(spec.kind), "missing": missing}
    row["devices"] = len(set(spec.devices))
    wrong = [printable(text, 240) for text in differences(spec, files.root)]
    return {**row, "wrong": wrong} if wrong else row
