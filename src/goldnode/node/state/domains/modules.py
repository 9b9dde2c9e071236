"""Domain of the stack's further out-of-tree kernel modules.

They are built, ordered and verified like the driver's own.

The stack lists them in load order. A module with a package has its own source tree; one without
belongs to the driver's tree. A module that is compiled against another one's symbols (`after`) is
outdated once the other one is replaced, and is then rebuilt.
"""

from __future__ import annotations

import os
import re

from ...ground.host import Host, Json
from ...ground.text import and_more
from ..finding import Finding, judge_item, place
from ..model import Action, Note, Observed, Refusal, Waiting, declared
from ..observe import RECORD, load_json
from ..remedy import PERSON, SITE, Remedy
from . import driver as driver_domain
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument, KernelModule


LOAD = "/etc/modules-load.d/goldnode.conf"
SOFTDEP = "/etc/modprobe.d/goldnode-modules.conf"
PART = "gpu_driver"
FIELDS = ("version", "license", "vermagic", "signer", "name", "srcversion")


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Read every module of the stack for the locked kernel, and those that the kernel has loaded.

    One modinfo call reads all of them.
    """
    rows = document.get("modules") or []
    if not rows:
        return
    driver = document.get("driver")
    own = [driver["module"]] if driver and not driver["in_tree"] else []
    seen.other_modules = survey(
        host, document["kernel"]["release"], [*own, *(row["name"] for row in rows)]
    )
    if place(seen) is None:
        for row in rows:
            inner = inner_name(row["name"], seen.other_modules[row["name"]])
            if host.exists(f"/sys/module/{inner}/initstate"):
                seen.loaded[inner] = (host.text(f"/sys/module/{inner}/version") or "").strip()
                info = seen.other_modules[row["name"]]
                if info is not None:
                    info["running"] = (host.text(f"/sys/module/{inner}/srcversion") or "").strip()


def inner_name(name: str, info: Optional[Mapping[str, Any]]) -> str:
    """Return the kernel's name of a module: Debian's nvidia-current-peermem is nvidia_peermem inside."""
    return str((info or {}).get("name") or name).replace("-", "_")


def survey(host: Host, release: str, names: Sequence[str]) -> Dict[str, Optional[Json]]:
    """Return the facts about each module, or None if modprobe would not find it.

    They are the fields of modinfo, and `identity` (size and mtime of the file) and `time` (mtime
    in ns). `against` is the recorded identity of the module and of those that it was built
    against ({module: identity}).
    """
    facts: Dict[str, Optional[Json]] = dict.fromkeys(names)
    if not host.exists(f"/lib/modules/{release}"):
        return facts
    reported = Host("/").run("modinfo", "-b", host.root, "-k", release, *names)
    host.commands.append(("modinfo", "-k", release, *names))
    record = (load_json(host, RECORD) or {}).get("built_against", {}).get(release, {})
    spelled = {name.replace("-", "_"): name for name in names}
    for block in re.split(r"^(?=filename:)", reported.out, flags=re.MULTILINE):
        fields: Dict[str, str] = {}
        for line in block.splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key, value.strip())
        base = re.sub(r"\.ko(\.\w+)?$", "", fields.get("filename", "").rpartition("/")[2])
        name = spelled.get(base.replace("-", "_"))
        if name is None:
            continue
        info: Json = {key: fields.get(key, "") for key in FIELDS}
        try:
            stat = os.stat(fields["filename"])
            info["identity"], info["time"] = f"{stat.st_size}:{stat.st_mtime_ns}", stat.st_mtime_ns
        except OSError:  # built into the kernel, or removed in the meantime
            info["identity"], info["time"] = "", 0
        info["against"] = record.get(name)
        facts[name] = info
    return facts


# -- faults of a module


def fault(
    document: ClassDocument,
    row: KernelModule,
    found: Mapping[str, Optional[Mapping[str, Any]]],
) -> Optional[str]:
    """Return the fault of one of the stack's further modules, or None if it is as wanted."""
    release, info = document["kernel"]["release"], found.get(row["name"])
    if info is None:
        return f"modinfo -k {release} finds no {row['name']}"
    if info["vermagic"].split(" ")[0] != release:
        return f"want vermagic {release}, have {info['vermagic'] or 'none'}"
    # The version of a package need not match the version field of its module.
    if row["package"] is None and info["version"] and info["version"] != row["version"]:
        return f"want version {row['version']}, have {info['version']}"
    return stale(document, row, found)


def stale(
    document: ClassDocument,
    row: KernelModule,
    found: Mapping[str, Optional[Mapping[str, Any]]],
) -> Optional[str]:
    """Return the reason if a module built on the node was built against an older file of a dependency."""
    info = found.get(row["name"])
    if info is None or tree(document, row) is None:
        return None
    against = info.get("against") or {}
    # The record is of this build, not of an earlier one.
    # Without a valid record, file times decide below.
    recorded = against.get(row["name"]) == info["identity"]
    for name in foreign(document, row):
        other = found.get(name)
        if other is None:
            continue
        changed = other["time"] > info["time"]
        if recorded and name in against:
            changed = other["identity"] != against[name]
        if changed:
            return f"it was built against an earlier {name}"
    return None


def foreign(document: ClassDocument, row: KernelModule) -> List[str]:
    """Return the modules of `after` from other source trees. Modules of one tree are compiled together."""
    trees = {other["name"]: tree(document, other) for other in document["modules"]}
    driver = document.get("driver")
    dkms = driver.get("dkms") if driver else None
    if driver and dkms:
        trees[driver["module"]] = dkms["name"]
    return [name for name in row["after"] if trees.get(name) != tree(document, row)]


def tree(document: ClassDocument, row: KernelModule) -> Optional[str]:
    """Return dkms's name of the module's source, or None if its package provides it prebuilt."""
    if row["package"] is not None:
        return str(row["dkms"]) if row["dkms"] else None
    dkms = declared(document["driver"]).get("dkms")
    return dkms["name"] if dkms else None


# -- builds


def builds(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return actions for every module to build, including the driver's own, in the stack's order. Pure.

    Modules that the driver is built against come first, then the driver's tree, then the rest. A
    module that depends on a rebuilt one is rebuilt too.
    """
    rows, facts = document.get("modules") or [], seen.other_modules
    rebuilt: List[str] = []
    actions: List[Action] = []

    def reason(row: KernelModule) -> Optional[str]:
        wrong = fault(document, row, facts)
        moved = [name for name in foreign(document, row) if name in rebuilt]
        if not wrong and moved and tree(document, row):
            return f"{', '.join(moved)} is rebuilt, and it is compiled against that"
        return wrong

    def build(row: KernelModule) -> None:
        why = reason(row)
        source = tree(document, row)
        # One build provides all modules of a tree.
        if why and source and source in [action.data["dkms"] for action in actions]:
            rebuilt.append(row["name"])
        elif why:
            # The driver's package provides the module if both come prebuilt.
            driver = document.get("driver")
            if driver and prebuilt(document) and row["package"] == driver["package"]:
                actions.append(driver_domain.restored(document, row["name"], why))
            else:
                actions.append(_action(document, row, why))
            rebuilt.append(row["name"])

    for row in rows:
        if row["before_driver"]:
            build(row)
    own = [row for row in rows if row["package"] is None]
    main = driver_domain.module(document, seen)
    faults = [(row, why) for row in own for why in [reason(row)] if why]
    if faults and prebuilt(document):
        main = main or [driver_domain.restored(document, faults[0][0]["name"], faults[0][1])]
    elif not main and faults:
        row, why = faults[0]
        main = [
            _action(
                document,
                row,
                f"{why}{and_more(len(faults) - 1, ' (and {} more of its tree)')}",
            )
        ]
    if main:
        rebuilt += [declared(document["driver"])["module"], *(row["name"] for row in own)]
    actions += main
    for row in rows:
        if not row["before_driver"] and row["package"] is not None:
            build(row)
    return actions


def prebuilt(document: ClassDocument) -> bool:
    """Return whether the modules of the stack come prebuilt, in a package from the site's mirror."""
    driver = document.get("driver")
    return driver is not None and driver.get("built") == "prebuilt"


def _action(document: ClassDocument, row: KernelModule, why: str) -> Action:
    release = document["kernel"]["release"]
    package = row["package"] or declared(declared(document["driver"])["dkms"])["package"]
    after = f"{row['name']} of {package} {row['version']} for {release}\n"
    data = {
        "module": row["name"],
        "version": row["version"],
        "release": release,
        "dkms": tree(document, row),
        "package": row["package"],
    }
    return Action(
        PART,
        kind="module.build",
        target=f"{row['name']} for {release}",
        reason=why,
        after=after,
        reboot=f"{row['name']} was rebuilt",
        data=data,
    )


def of_tree(document: ClassDocument, name: str) -> List[KernelModule]:
    """Return the rows of modules that one build of the dkms source `name` must provide."""
    return [row for row in document.get("modules") or () if tree(document, row) == name]


# -- the domain


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the files of goldnode that this domain wants. Pure."""
    rows = document.get("modules") or []
    driver, files = document.get("driver"), []
    load = [row["name"] for row in rows if row["load"]]
    if load:
        text = "".join(
            f"{name}\n" for name in ["# goldnode: modules of the stack, in loading order", *load]
        )
        files.append(
            Wanted(LOAD, text, PART, "modules of the stack are loaded at boot, in their order")
        )
    before = [row["name"] for row in rows if row["before_driver"]]
    lines = [f"softdep {row['name']} pre: {' '.join(row['after'])}" for row in rows if row["after"]]
    if before and driver:
        lines.insert(0, f"softdep {driver['module']} pre: {' '.join(before)}")
    if lines:
        text = "".join(
            f"{line}\n"
            for line in ["# goldnode: modules to load before a module of the stack", *lines]
        )
        files.append(
            Wanted(
                SOFTDEP,
                text,
                PART,
                "modules of the stack are loaded in their order, no matter what loads them",
            )
        )
    return files


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return notes on modules that cannot be checked here. Pure.

    The driver's domain plans the builds (see `builds`), before the boot entry.
    """
    elsewhere = place(seen)
    load = [row["name"] for row in document.get("modules") or () if row["load"]]
    if not elsewhere or not load:
        return [], [], []
    text = f"{elsewhere}: whether {', '.join(load)} is loaded"
    return [], [Note("modules.loaded", text)], []


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse a module that cannot be built on the node and that its package does not provide for this kernel.

    Pure.
    """
    # A pending transaction may still install a package that provides the module.
    arrives = any(action.kind == "packages.transact" for action in actions)
    stuck = [
        action
        for action in actions
        if action.kind == "module.build" and action.data["dkms"] is None
    ]
    return [
        Refusal(
            "module-not-built",
            f"{action.data['module']}: {action.reason}, and its package {action.data['package']} "
            "contains it built.",
            f"Put a build for kernel {action.data['release']} into the archive and lock again, or "
            "name the package's `dkms` in the stack.",
        )
        for action in stuck
        if not arrives
    ]


def reboot(document: ClassDocument, seen: Observed) -> List[str]:
    """Return the modules of which the kernel has loaded a different build than the installed one. Pure."""
    # The reboot into the class's kernel loads the installed modules anyway.
    if seen.running_kernel != document["kernel"]["release"]:
        return []
    reasons = []
    for row in document.get("modules") or ():
        info = seen.other_modules.get(row["name"]) or {}
        if info.get("running") and info.get("srcversion") and info["running"] != info["srcversion"]:
            reasons.append(f"{row['name']} is loaded in another build than is installed")
    return reasons


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return one finding per item that the class declares in this domain. Pure."""
    release, rows = document["kernel"]["release"], []
    for row in document.get("modules") or ():
        item = f"modules.{row['name']}"
        info = seen.other_modules.get(row["name"])
        want = f"{row['name']} of {row['package'] or 'the driver'} {row['version']} for {release}"
        wrong = fault(document, row, seen.other_modules)
        if wrong is None and seen.secure_boot and info and not info["signer"]:
            wrong = "it is not signed, and Secure Boot is on"
        remedy = Remedy("Run site.yml: it builds the module, and reports why when it cannot.", SITE)
        rows.append(judge_item(item, want, wrong or want, remedy))
        if row["load"]:
            have = "loaded" if inner_name(row["name"], info) in seen.loaded else "not loaded"
            remedy = Remedy(
                "See why it is not: `journalctl -b -u systemd-modules-load`, `modprobe "
                f"{row['name']}`, dmesg.",
                PERSON,
            )
            rows.append(judge_item(f"{item}.loaded", "loaded", have, remedy, place(seen)))
    return rows
