"""Domain of the stack's packages: one transaction to the locked versions, and holds."""

from __future__ import annotations

import re

from ..actions import hold, release_hold
from ..debversion import compare
from ..family import builds_modules, kernel_release
from ..model import BOOT, PARTS, Action, Observed
from ..names import in_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

    from ...ground.document import ClassDocument


ROLE_OF = {
    "kernel": "kernel",
    "driver": "gpu_driver",
    "runtime": "gpu_driver",
    "module": "gpu_driver",
    "base": "kernel",
}


def repair(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return the action that lets dpkg finish an interrupted or failed run of goldnode.

    Preflight refuses if another program caused it.

    Packages of an earlier lock that this lock does not want are removed instead: they may be the
    ones that cannot be finished.
    """
    broken = broken_packages(seen)
    unfinished = seen.driver_files.get("unfinished")
    if not (broken or unfinished) or seen.journal is None:
        return []
    wanted = {package["name"] for package in document["packages"]}
    leave = [name for name in broken if name in seen.held_by_us and name not in wanted]
    reason = (
        f"an earlier run was interrupted ({seen.journal.get('part', '?')}); {len(broken)} packages are "
        f"half done: {', '.join(broken[:5])}"
    )
    if leave:
        reason += f"; of these {', '.join(leave)} leave again"
    return [
        Action(
            "node_class",
            kind="packages.repair",
            target="dpkg",
            reason=reason,
            before="\n".join(broken) + "\n",
            after="",
            data={"leave": leave},
        )
    ]


def broken_packages(seen: Observed) -> List[str]:
    """Return the packages that dpkg has neither installed nor removed completely."""
    fine = ("installed", "config-files", "not-installed")
    return sorted(name for name, package in seen.packages.items() if package["state"] not in fine)


def transaction(document: ClassDocument, seen: Observed) -> Optional[Action]:
    """Return the one apt transaction that installs the locked stack, or None if nothing is to do.

    It belongs to the first role concerned. Kernel and driver always change in one transaction, so
    that there is never a kernel without its module.
    """
    wanted = {package["name"]: package for package in document["packages"]}
    lines: List[str] = []
    roles = set()
    install: List[str] = []
    new_kernel = moved_driver = moved_module = False
    for name, package in sorted(wanted.items()):
        have = seen.packages.get(name)
        version = package["version"]
        if have and have["state"] == "installed" and have["version"] == version:
            continue
        if not have or have["state"] in ("config-files", "not-installed"):
            lines.append(f"install   {name} {version}")
        elif have["state"] != "installed":
            lines.append(f"repair    {name} {version} (is {have['state']})")
        else:
            verb = "upgrade  " if compare(have["version"], version) < 0 else "downgrade"
            lines.append(f"{verb} {name} {have['version']} -> {version}")
        install.append(name)
        roles.add(ROLE_OF[package["part"]])
        new_kernel |= name == document["kernel"]["image"]
        moved_driver |= package["part"] == "driver"
        moved_module |= package["part"] == "module"
    remove: List[str] = []
    family = driver_family(document)
    for name, have in sorted(seen.packages.items()):
        if way_back_modules(document, seen, name):
            continue
        if (
            name not in wanted
            and in_family(name, family)
            and have["state"] not in ("config-files", "not-installed")
        ):
            lines.append(
                f"remove    {name} {have['version']} (of the driver family, not of this stack)"
            )
            remove.append(name)
            roles.add("gpu_driver")
    for name in seen.back.get("leave", ()):
        if name not in remove:
            lines.append(
                f"remove    {name} {seen.packages[name]['version']} (came with the stack that is left)"
            )
            remove.append(name)
            roles.add("kernel")
    for name in seen.left_over:
        if name not in wanted and name not in remove and name in seen.packages:
            lines.append(
                f"remove    {name} {seen.packages[name]['version']} (the modules come built)"
            )
            remove.append(name)
            roles.add("gpu_driver")
    if not lines:
        return None
    part = next(role for role in PARTS if role in roles)
    counts = f"{len(install)} of {len(wanted)} locked packages differ" + (
        f", {len(remove)} others leave" if remove else ""
    )
    driver = document.get("driver")
    reboot = None
    # One reboot reason is enough, and a new kernel covers the others.
    if new_kernel:
        reboot = f"kernel {document['kernel']['release']} is installed and has to be booted"
    elif moved_driver and driver and driver.get("version"):
        reboot = "the GPU driver was replaced"
    elif moved_driver:
        reboot = "firmware or libraries of the GPU driver were replaced"
    elif moved_module:
        reboot = "kernel modules of the stack were replaced"
    before = "".join(
        f"{name} {seen.packages[name]['version']}\n"
        for name in sorted({*install, *remove} & set(seen.packages))
    )
    after = "".join(f"{name} {wanted[name]['version']}\n" for name in install)
    # Purge packages without any configuration worth keeping: build dependencies of modules, and
    # packages of prebuilt ones.
    known = set(seen.left_over)
    if driver:
        known.update(driver.get("replaces", ()))
    data: Dict[str, Any] = {
        # Request every locked package, not only the changed ones, so that apt cannot move any of them.
        "install": [f"{p['name']}={p['version']}" for p in document["packages"]],
        "remove": remove,
        "purge": [name for name in remove if name in known or re.search(r"-modules-\d", name)],
        "lines": lines,
    }
    if seen.back:  # a rollback leaves nothing of the current stack behind
        data["purge"] = [name for name in remove if name not in seen.back["residual"]]
    return Action(
        part,
        kind="packages.transact",
        target=document["stack"]["name"],
        reason=counts,
        before=before,
        after=after,
        reboot=reboot,
        data=data,
    )


def driver_family(document: ClassDocument) -> Sequence[str]:
    """Return the patterns of the packages that belong to the class's driver; none without a driver."""
    driver = document.get("driver")
    return driver.get("family") or () if driver else ()


def way_back_modules(document: ClassDocument, seen: Observed, name: str) -> bool:
    """Return whether a package has the prebuilt modules of the same driver for the running kernel.

    Without it, the running kernel, which is the way back, would have no GPUs.
    """
    driver = document.get("driver")
    if (
        not driver
        or driver.get("built") != "prebuilt"
        or not seen.running_kernel
        or not name.endswith(f"-modules-{seen.running_kernel}")
    ):
        return False
    return str(seen.packages.get(name, {}).get("version", "")).startswith(f"{driver['version']}-")


def holds(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return actions that put the stack's packages and installed metapackages of the fence on hold."""
    free: Dict[str, List[str]] = {}
    for package in document["packages"]:
        have = seen.packages.get(package["name"])
        if not (have and have["hold"]):
            free.setdefault(ROLE_OF[package["part"]], []).append(package["name"])
    for name in document["fence"]:
        have = seen.packages.get(name)
        if have and have["state"] == "installed" and not have["hold"]:
            free.setdefault("kernel", []).append(name)
    return [
        hold(part, part, names, f"{len(names)} packages of the stack set are not on hold")
        for part, names in free.items()
    ]


def let_go(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return the action that releases holds of an earlier lock, since they would block this one.

    The packages of the running kernel stay on hold: it is the way back. No package is removed, and apt's
    autoremove removes none of them, since goldnode has requested them by name.
    """
    wanted = {package["name"] for package in document["packages"]} | set(document["fence"])
    running = seen.running_kernel
    stale = [
        name
        for name in seen.held_by_us
        if name not in wanted
        and not (running and kernel_release(name) == running)
        and not way_back_modules(document, seen, name)
        and seen.packages.get(name, {}).get("hold")
    ]
    if not stale:
        return []
    reason = f"{len(stale)} packages were held for an earlier lock of this node"
    # An administrator's own modules may need headers without depending on them, so goldnode removes none.
    spare = [name for name in stale if builds_modules(name) and name not in seen.left_over]
    if spare and not any(builds_modules(name) for name in wanted - set(document["fence"])):
        reason += (
            f"; {', '.join(spare)} stay installed, although no module of this class is built here; to remove them: "
            f"sudo apt-get purge --autoremove {' '.join(spare)}"
        )
    return [release_hold("node_class", "earlier lock", stale, reason)]


def way_back(seen: Observed) -> List[Action]:
    """Return actions that mark the running kernel as manual, so that apt's autoremove does not remove it."""
    if not seen.running_kernel:
        return []
    names = [
        name
        for name in seen.packages
        if name in seen.automatic and kernel_release(name) == seen.running_kernel
    ]
    return [
        Action(
            "kernel",
            kind="packages.manual",
            target=name,
            reason="the kernel that runs now is the way back; apt holds it for no other",
            phase=BOOT,
            before="auto\n",
            after="manual\n",
            data={"names": [name]},
        )
        for name in sorted(names)
    ]
