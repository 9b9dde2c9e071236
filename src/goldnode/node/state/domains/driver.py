"""Domain of the GPU's kernel module: verify the wanted one for the locked kernel, block unwanted ones."""

from __future__ import annotations

import re

from ...effective import kmod
from ..model import Action, Observed, declared
from ..names import digest
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence

    from ...ground.document import ClassDocument

OPTIONS = "/etc/modprobe.d/goldnode-options.conf"
BLACKLIST = "/etc/modprobe.d/goldnode-blacklist.conf"
UNTIL_BOOT = "/run/modprobe.d/goldnode-until-boot.conf"
_DENIED = re.compile(r"^install (\S+) /bin/false$", re.MULTILINE)


INITRAMFS_HOOK = """#!/bin/sh
# goldnode: keep these modules out of the initramfs, even if a hook (plymouth's) copies whole directories of drivers
[ "$1" = prereqs ] && exit 0
for module in {modules}; do
    find "$DESTDIR" -name "$module.ko*" -delete
done
exit 0
"""


def initramfs_hook(document: ClassDocument, part: str) -> List[Wanted]:
    """Return the initramfs-tools hook that removes unwanted modules, under both spellings of a name."""
    if not document["blacklist"]:
        return []
    names = sorted(
        {
            spelling
            for name in document["blacklist"]
            for spelling in (name.replace("-", "_"), name.replace("_", "-"))
        }
    )
    text = INITRAMFS_HOOK.format(modules=" ".join(names))
    why = f"{', '.join(document['blacklist'])} kept out of every initramfs"
    return [Wanted("/etc/initramfs-tools/hooks/zz-goldnode", text, part, why, 0o755)]


def module_files(document: ClassDocument, part: str) -> List[Wanted]:
    """Return modprobe.d(5) files.

    `blacklist` prevents loading by alias; `install … /bin/false` also prevents loading by name or
    dependency.
    """
    wanted = []
    if document["blacklist"]:
        lines = ["# goldnode: these drivers must not bind a GPU of this class"]
        for module in document["blacklist"]:
            lines += [f"blacklist {module}", f"install {module} /bin/false"]
        wanted.append(
            Wanted(
                BLACKLIST,
                "\n".join(lines) + "\n",
                part,
                f"{', '.join(document['blacklist'])} kept out",
            )
        )
    driver = document.get("driver")
    if driver and driver.get("options"):
        options = " ".join(f"{key}={value}" for key, value in sorted(driver["options"].items()))
        text = f"# goldnode: module options of the class\noptions {driver['module']} {options}\n"
        wanted.append(
            Wanted(
                OPTIONS,
                text,
                part,
                "module options of the class",
                reboot="options of the GPU module changed",
            )
        )
    return wanted


def until_boot(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the file that keeps modules out until the class's kernel runs, though the class no longer keeps them out.

    A mitigation ends with the lock whose kernel has the fix, and the kernel that runs until the boot has none. The
    file is in /run, so that the boot removes it.
    """
    if seen.running_kernel in (None, document["kernel"]["release"]):
        return []
    rows = [seen.files.get(path) for path in (BLACKLIST, UNTIL_BOOT)]
    named = {name for row in rows if row is not None for name in _DENIED.findall(row["content"])}
    names = sorted(named.difference(document["blacklist"]))
    if not names:
        return []
    lines = [f"# goldnode: kept out until {document['kernel']['release']} runs"]
    lines += [f"install {name} /bin/false" for name in names]
    why = f"{', '.join(names)} kept out until the boot"
    # In the first part, which also removes the file of a class that keeps nothing out.
    return [Wanted(UNTIL_BOOT, "\n".join(lines) + "\n", "node_class", why)]


def forced(seen: Observed, part: str) -> List[Action]:
    """Return actions that comment out lines of the administrator that load an unwanted module."""
    return [
        Action(
            part,
            kind="file.comment",
            target=f"{row['file']}:{row['line']}",
            reason=f"loads {row['module']} by name, which the class keeps out",
            before=f"{row['module']}\n",
            after=f"# goldnode: {row['module']}\n",
            data={"file": row["file"], "line": row["line"], "module": row["module"]},
        )
        for row in seen.forced
    ]


def module(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return the action that builds or restores the module, unless modinfo shows the locked one."""
    driver = document.get("driver")
    if not driver or driver["in_tree"]:
        return []
    release = document["kernel"]["release"]
    fault = module_fault(document, seen.modules.get(release))
    if fault is None:
        return []
    dkms = driver.get("dkms")
    if not dkms:
        return [restored(document, driver["module"], fault)]
    return [
        Action(
            "gpu_driver",
            kind="module.build",
            target=f"{driver['module']} for {release}",
            reason=fault,
            after=f"{driver['module']} {driver['version']} for {release}\n",
            reboot="the GPU module was rebuilt",
            data={
                "module": driver["module"],
                "version": driver["version"],
                "release": release,
                "dkms": dkms["name"],
            },
        )
    ]


def restored(document: ClassDocument, name: str, why: str) -> Action:
    """Return the action that reinstalls the package of a prebuilt module that is missing or wrong."""
    package, release = declared(document["driver"])["package"], document["kernel"]["release"]
    after = f"{name} of {package} for {release}\n"
    data = {"module": name, "release": release, "package": package}
    return Action(
        "gpu_driver",
        kind="module.restore",
        target=f"{name} for {release}",
        reason=why,
        after=after,
        reboot=f"{name} was put there again",
        data=data,
    )


def module_fault(document: ClassDocument, have: Optional[Mapping[str, str]]) -> Optional[str]:
    """Return the fault that modinfo shows, or None for the locked module of the locked kernel."""
    driver = declared(document["driver"])
    release = document["kernel"]["release"]
    if have is None:
        return f"want {driver['version']}, modinfo -k {release} finds no {driver['module']}"
    if have["version"] != driver["version"]:
        return f"want version {driver['version']}, have {have['version'] or 'none'}"
    if have["vermagic"].split(" ")[0] != release:
        return f"want vermagic {release}, have {have['vermagic'] or 'none'}"
    if have.get("altered"):
        return have["altered"]
    # NVIDIA's open modules have the license "Dual MIT/GPL"; the proprietary ones have "NVIDIA".
    is_open = "GPL" in have["license"]
    if is_open != (driver["flavour"] == "open"):
        return f"want the {driver['flavour']} flavour, have licence {have['license'] or 'none'}"
    if driver.get("signer") and have["signer"] != driver["signer"]:
        return f"want the signature of {driver['signer']}, have {have['signer'] or 'none'}"
    return None


def initramfs_part(document: ClassDocument) -> str:
    """Return the part that rebuilds an initramfs, and writes what goes into it."""
    return "gpu_driver" if document.get("driver") else "kernel"


def _initramfs_reboot(
    document: ClassDocument, seen: Observed, inside: Mapping[str, Any]
) -> Optional[str]:
    """Return why a rebuilt image needs a reboot: the old one may have loaded a driver that competes with the class's.

    A module of a mitigation that is not loaded needs none. In a container it is not known what is loaded.
    """
    names = [
        kmod.underscored(path.rpartition("/")[2].partition(".ko")[0])
        for path in inside.get("unwanted", ())
    ]
    denied = {
        kmod.underscored(name)
        for row in document.get("mitigations") or ()
        for name in row.get("deny", ())
    }
    left = [name for name in names if name in seen.loaded or name not in denied]
    return "the initramfs was rebuilt" if left else None


def initramfs(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return actions that rebuild images that contradict the class or that an interrupted run requested.

    See :func:`initramfs_faults`.
    """
    actions = []
    images = dict(seen.initramfs)
    # The class's kernel without any initramfs needs one too.
    if document["kernel"]["release"] in seen.kernels:
        images.setdefault(document["kernel"]["release"], {"absent": True})
    for release, inside in sorted(images.items()):
        reasons = initramfs_faults(document, inside)
        if seen.owed:
            reasons.append(
                "packages that were installed have asked for it, and their run did not come to that"
            )
        if reasons:
            owed = "yes" if seen.owed else ""
            # The handler deletes the list of requests after the last rebuild.
            if owed and release == max(images):
                owed = "last"
            actions.append(
                Action(
                    initramfs_part(document),
                    kind="initramfs.rebuild",
                    target=release,
                    reason="; ".join(reasons),
                    before="".join(f"{name}\n" for name in inside.get("unwanted", ())),
                    after="",
                    reboot=_initramfs_reboot(document, seen, inside),
                    data={"release": release, "owed": owed},
                )
            )
    return actions


def initramfs_faults(document: ClassDocument, inside: Mapping[str, Any]) -> List[str]:
    """Return why an initramfs contradicts the class: an unwanted module, or an older modprobe file.

    `inside` is one entry of :attr:`Observed.initramfs`.
    """
    if "absent" in inside:
        return ["it is missing, and the kernel would not find its root"]
    if "error" in inside:
        return [f"it cannot be read ({inside['error']})"]
    wanted = {
        file.path: digest(file.content.encode()) for file in module_files(document, "gpu_driver")
    }
    reasons = [f"it holds {', '.join(inside['unwanted'])}"] if inside["unwanted"] else []
    reasons += [f"it lacks {path}" for path in wanted if path not in inside["files"]]
    lines = [kmod.ModprobeLine.of(row) for row in inside.get("modprobe", ())]
    for line in _contradictions(document, lines, inside.get("inside", ())):
        reasons.append(f"it holds {line.where()} (`{line.text()}`)")
    return reasons + [
        f"it has an older {path}"
        for path, sha in wanted.items()
        if inside["files"].get(path, sha) != sha
    ]


def _contradictions(
    document: ClassDocument, lines: Sequence[kmod.ModprobeLine], inside: Sequence[str]
) -> List[kmod.ModprobeLine]:
    """Return the lines inside an initramfs by which a driver that it holds starts otherwise than the class declares.

    A line there that keeps the driver out has no effect: udev loads it from the root again.
    """
    driver, gpu = document.get("driver"), document.get("gpu")
    if not driver:
        return []
    names, rows, options = [driver["module"], "nvidia"], [], driver.get("options") or {}
    held = {kmod.underscored(path.rpartition("/")[2].partition(".")[0]) for path in inside}
    if gpu and held & set(kmod.STUBS):
        ids = list(gpu["pci_ids"])
        rows = kmod.given_away(lines, ids) + kmod.diverts(lines, names, ids)
    if held & {kmod.underscored(name) for name in names}:
        rows += kmod.options(lines, names, options, OPTIONS)
    return rows
