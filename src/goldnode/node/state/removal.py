"""removal(): the plan that removes goldnode from a node and restores the node's original state.

It depends only on the node and on goldnode's record there, never on the current catalog. A class
that was changed or deleted in the meantime therefore leaves nothing behind. Each action disappears
from the plan once it is done, so the next run finishes an interrupted removal.
"""

from __future__ import annotations

import os
import re
from typing import cast

from ..effective.boot_choice import boot_choice
from ..ground import drained, gate_files
from ..ground.host import Host, Json
from ..ground.text import phrase
from . import owners
from . import record as records
from .actions import hold, release_hold, remove_directory, unmerge_file
from .debversion import compare
from .domains import kernel, program, runtime, scratch, units
from .domains.packages import broken_packages, driver_family
from .family import kernel_release
from .model import ABSENT, BOOT, IMAGE, PARTS, Action, Note, Observed, Refusal, Waiting
from .names import in_family
from .needs import bare, relations, unneeded
from .observe import load_json, modinfo, observe
from .preflight import broken_by_others, in_use, locked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

    from ..ground.document import ClassDocument


# Directories that contain only goldnode's files. Of those that survive a boot, the record is removed last.
OWN = (
    "/usr/lib/goldnode",
    "/var/cache/goldnode",
    "/var/cache/private/goldnode",
    "/var/lib/goldnode",
    "/run/goldnode",
)
# Files in which a line that loads a module, or names a swap device, may have been commented out.
COMMENTED = ("/etc/initramfs-tools/modules", "/etc/modules", "/etc/fstab")
MARK = "# goldnode: "

# Default class document with every key that observe() reads, for a node without one.
NO_CLASS = cast(
    "ClassDocument",
    {
        "schema": "goldnode.class/1",
        "class": "",
        "digest": "",
        "backend": "cpu",
        "simulated": False,
        "gate": "report",
        "os": {"id": "", "version": "", "codename": "", "architecture": ""},
        "stack": {"name": ""},
        "lock": {"digest": ""},
        "gpu": None,
        "platform": None,
        "kernel": {"release": "", "image": "", "headers": ""},
        "driver": None,
        "runtime": None,
        "modules": [],
        "blacklist": [],
        "fence": [],
        "packages": [],
        "policy": {},
        "baseline": {},
    },
)

# The part that a file belongs to on nodes whose record names none: they were converged by goldnode 0.1, and every later run that
# writes a file records its part (`record.before_files`). A new part needs no row here.
PART_OF_PATH_IN_0_1 = (
    (
        "sanity",
        r"goldnode-(sanity|watch|events|serve)|/update-motd\.d/|/slurm-health$|/npd-plugin$",
    ),
    ("gpu_policy", r"goldnode-(policy|mps)|nvidia-persistenced\.service\.d"),
    (
        "host_tuning",
        r"/(sysctl|limits|rules|system\.conf)\.d/|/profile\.d/|goldnode-tuning|9\d-goldnode.*(cmdline|tuning).*\.cfg$",
    ),
    ("container_runtime", r"/(docker|containerd|containers|cdi|nvidia-container-runtime)\b"),
    ("gpu_driver", r"/(modprobe|modules-load)\.d/|/initramfs-tools/"),
    ("kernel", r"/etc/kernel/|/grub\.d/"),
    ("sanity", r"/systemd/system/"),
)


def own_document(host: Host) -> Optional[ClassDocument]:
    """Return the class document on the node, or None if it is missing or damaged."""
    document = load_json(host, program.CLASS)
    if isinstance(document, dict) and document.get("schema") == NO_CLASS["schema"]:
        return cast("ClassDocument", document)
    return None


def completed(document: Optional[ClassDocument]) -> ClassDocument:
    """Return the document with every key that readers expect, for documents of any goldnode version."""
    own: Mapping[str, Any] = document or {}
    return cast("ClassDocument", {**NO_CLASS, **own})


# -- observe


def observe_traces(
    host: Host, document: Optional[ClassDocument], record: Mapping[str, Any]
) -> Observed:
    """Return all of :class:`Observed`, and in `traces` the additional facts for a removal. Reads only.

    The keys of `traces`:

    * units: goldnode units that systemd runs
    * scratch: mounted scratch space
    * gate: True if the gate has stored a decision
    * marks: [{file, line, text}], lines that goldnode commented out
    * depends: package -> [[alternative]]
    * provides: package -> [name]
    * residual: [package]
    * offered: package -> [version]
    * directories: path -> [entry]
    * packaged: [directories that belong to a package]
    * own: [directories that belong to goldnode]
    * merged: path -> text or None
    * links: path -> target
    * unfiled: [modules that are loaded without a file on disk]
    """
    seen = observe(host, completed(document), keep=False)
    installed = list(record.get("brought", ()))
    directories = {
        name: sorted(os.listdir(host.located(name))) for name in records.PLACES if host.is_dir(name)
    }
    traces: Json = {
        "units": running_units(host),
        "scratch": scratch.left(host, seen),
        "gate": host.live
        and any(host.exists(name) for name in (gate_files.STATE, gate_files.RECORD)),
        "marks": marks(host, record),
        "own": [
            name
            for name in OWN
            if host.is_dir(name)
            and os.listdir(host.located(name)) != [os.path.basename(drained.FILE)]
        ],
        "directories": directories,
        "packaged": packaged(host, directories),
        "merged": {name: host.text(name) for name in record.get("merged", {})},
        "links": {
            name: os.readlink(host.located(name))
            for name in record.get("links", {})
            if host.is_link(name)
        },
        "unfiled": [
            name
            for name in ("nvidia", "amdgpu")
            if name in seen.loaded and modinfo(host, str(seen.running_kernel), name) is None
        ],
        "residual": records.residual_states(host) if installed else [],
        "offered": offered(host, list(record.get("was", {}))),
        **(relations(host) if installed else {"depends": {}, "provides": {}}),
    }
    seen.traces = traces
    target = way_home(seen, record)
    if target:
        seen.boot = boot_choice(host, target)
    return seen


def running_units(host: Host) -> List[str]:
    """Return goldnode's units that run or have failed. Units that would start others come first."""
    if not host.live:
        return []
    listed = host.run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "--full", "goldnode-*"
    ).out
    rows = [line.split() for line in listed.splitlines()]
    names = [row[0] for row in rows if len(row) > 2 and row[2] != "inactive"]
    return sorted(
        names, key=lambda name: (not name.endswith(".timer") and name != units.EVENTS, name)
    )


def marks(host: Host, record: Mapping[str, Any]) -> List[Json]:
    """Return lines of the administrator that goldnode has commented out."""
    places = [*COMMENTED, *host.glob("/etc/modules-load.d", "*.conf"), *record.get("commented", ())]
    return [
        {"file": name, "line": number, "text": line[len(MARK) :]}
        for name in dict.fromkeys(places)
        if not os.path.basename(name).startswith("goldnode")
        for number, line in enumerate((host.text(name) or "").splitlines(), 1)
        if line.startswith(MARK)
    ]


def packaged(host: Host, directories: Iterable[str]) -> List[str]:
    """Return those of the directories that belong to a package."""
    names = list(directories)
    if not names:
        return []
    reported = (
        Host("/").run("dpkg-query", f"--admindir={host.located('/var/lib/dpkg')}", "-S", *names).out
    )
    return sorted({line.rpartition(": ")[2] for line in reported.splitlines() if ": " in line})


def offered(host: Host, names: Sequence[str]) -> Dict[str, List[str]]:
    """Return the versions of packages that apt can download now."""
    result: Dict[str, List[str]] = {}
    for line in host.run("apt-cache", "madison", *names).out.splitlines() if names else ():
        fields = [field.strip() for field in line.split("|")]
        # madison also lists source packages.
        if len(fields) > 2 and "Packages" in fields[2]:
            result.setdefault(fields[0], []).append(fields[1])
    return result


# -- plan


def removal(
    document: Optional[ClassDocument],
    seen: Observed,
    record: Mapping[str, Any],
    domains: Sequence[Any] = (),
) -> Tuple[List[Action], List[Refusal], List[Note], List[Waiting]]:
    """Return the ordered actions that remove goldnode, refusals, notes, and changes that wait for a reboot.

    Pure.

    Each of `domains` may have a function ``absent(document, seen, record)`` that returns further
    actions.
    """
    leave, reasons = leaving(seen, record)
    waiting = pending(seen, record)
    notes = reasons + unknown(document, seen, record) + staying(seen, record, leave)
    actions = stop(seen) + scratch.unmounts(seen) + open_gate(seen)
    merged, refusals = unmerge(seen, record)
    actions += merged + relink(seen, record)
    actions += uncomment(seen)
    actions += own_files(seen, record, keep=[kernel.DROP_IN] if waiting else [])
    for domain in domains:
        actions += getattr(domain, "absent", lambda *_: [])(document, seen, record)
    actions += release(document, seen, record)
    if waiting:
        actions += next_boot(seen, record)
    actions += packages(document, seen, record, leave)
    actions += initramfs(seen, leave)
    actions += apt_marks(seen, record, leave)
    gone = {action.target for action in actions if action.kind == "file.remove"}
    actions += empty_directories(seen, record, gone)
    interrupted = (seen.journal or {}).get("part") == ABSENT
    if actions or interrupted:
        actions.append(settle(seen))
    for name in seen.traces.get("own", ()):
        if name == "/run/goldnode" and not actions:
            continue  # the run itself has created it
        # The run after the reboot still needs the record.
        if not (waiting and name == "/var/lib/goldnode"):
            actions.append(remove_directory(name, "nothing but goldnode's is in it"))
    # Reverse order of the parts: the health check stops before the files it checks are removed.
    actions = sorted(actions, key=lambda action: -PARTS.index(action.part))
    refusals += refused(seen, actions)
    if any(action.kind == "packages.leave" for action in actions) and leave:
        notes.append(
            Note(
                "driver.next",
                "the next boot uses the drivers of the distribution, nouveau among them where it has them",
            )
        )
    changed = [
        action.target for action in actions if action.kind in ("file.remove", "file.uncomment")
    ]
    if any(
        re.search(r"/sysctl\.d/|/limits\.d/|/udev/|goldnode-(policy|tuning)|/fstab:|\.swap$", name)
        for name in changed
    ):
        text = (
            "running processes keep the settings that were made (sysctl, governor, MTU, swap, GPU): they "
            "go with a reboot"
        )
        notes.append(Note("settings.live", text))
    return actions, refusals, notes, waiting


def part_of(path: str, record: Mapping[str, Any]) -> str:
    """Return the part of the class that wrote the file at `path`, from the record of what was applied."""
    recorded = record.get("parts", {}).get(path)
    if recorded in PARTS:
        return str(recorded)
    return next(
        (part for part, pattern in PART_OF_PATH_IN_0_1 if re.search(pattern, path)), "node_class"
    )


def stop(seen: Observed) -> List[Action]:
    """Return actions that stop goldnode's units before their programs are removed."""
    names = list(seen.traces.get("units", ()))
    if not names:
        return []
    return [
        Action(
            "sanity",
            kind="units.stop",
            target=", ".join(names),
            reason="they are goldnode's",
            phase=BOOT,
            before="".join(f"{name}\n" for name in names),
            after="",
            data={"names": names},
        )
    ]


def open_gate(seen: Observed) -> List[Action]:
    """Return actions that resume a drained node and start blocked units, while the gate's program exists."""
    if not seen.traces.get("gate"):
        return []
    return [
        Action(
            "sanity",
            kind="gate.release",
            target="gate",
            reason="nothing would open it again",
            phase=BOOT,
            before="kept by goldnode\n",
        )
    ]


def own_files(seen: Observed, record: Mapping[str, Any], keep: Sequence[str] = ()) -> List[Action]:
    """Return actions that remove every file with a goldnode name, and the links that enable units."""
    contents = [
        (path, have["content"])
        for path, have in sorted(seen.files.items())
        if have is not None and have.get("type") != "directory"
    ]
    contents += [
        (path, f"-> {target}\n")
        for path, target in sorted(seen.links.items())
        if target is not None
    ]
    actions = []
    for path, content in contents:
        if path not in keep:
            part, why, reboot = part_of(path, record), "goldnode wrote it", None
            # Its drop-in for GRUB only names the entry to boot; the others hold words for the kernel.
            if path.endswith(".cfg") and path != kernel.DROP_IN:
                reboot = "the boot parameters of the class have left"
            actions.append(Action(part, "file.remove", path, why, before=content, reboot=reboot))
    return actions


def uncomment(seen: Observed) -> List[Action]:
    """Return actions that restore lines of the administrator that goldnode commented out."""
    return [
        Action(
            "gpu_driver",
            kind="file.uncomment",
            target=f"{row['file']}:{row['line']}",
            reason="goldnode had commented it out",
            before=f"{MARK}{row['text']}\n",
            after=f"{row['text']}\n",
            data=dict(row),
        )
        for row in seen.traces.get("marks", ())
    ]


def unmerge(seen: Observed, record: Mapping[str, Any]) -> Tuple[List[Action], List[Refusal]]:
    """Return actions that remove goldnode's settings from foreign files, and refusals.

    Later changes by others stay. A file that is no longer valid JSON is refused.
    """
    actions: List[Action] = []
    refusals: List[Refusal] = []
    for path, texts in sorted(record.get("merged", {}).items()):
        now = seen.traces.get("merged", {}).get(path)
        if now is None:
            continue
        try:
            text = runtime.without_own_settings(path, texts, now)
        except ValueError as problem:
            refusals.append(
                Refusal(
                    "merged-file",
                    f"{path}: not JSON ({problem}), so goldnode's settings cannot be taken out of it.",
                    "Correct the file, or delete it, and run again.",
                )
            )
            continue
        if text != now:
            why = "goldnode made it, and nothing else is in it"
            if text is not None:
                why = "the settings that goldnode added leave"
            actions.append(unmerge_file(part_of(path, record), path, why, now, text))
    return actions, refusals


def relink(seen: Observed, record: Mapping[str, Any]) -> List[Action]:
    """Return actions that restore the original target of foreign links that are unchanged since."""
    actions = []
    for path, known in sorted(record.get("links", {}).items()):
        if seen.traces.get("links", {}).get(path) != known["after"]:
            continue
        kind, data = (
            ("file.remove", {}) if known["before"] is None else ("link", {"to": known["before"]})
        )
        before, after = (
            None if to is None else f"-> {to}\n" for to in (known["after"], known["before"])
        )
        actions.append(
            Action(
                part_of(path, record),
                kind=kind,
                target=path,
                reason="goldnode made it lead there",
                before=before,
                after=after,
                data=data,
            )
        )
    return actions


def release(
    document: Optional[ClassDocument], seen: Observed, record: Mapping[str, Any]
) -> List[Action]:
    """Return actions that release goldnode's holds, and restore holds from before goldnode."""
    before = set((record.get("first") or {}).get("holds", ()))
    own = set(record.get("held", ()))
    if not record and document:  # an older goldnode held the whole set and had no record
        own |= {package["name"] for package in document.get("packages", ())} | set(
            document.get("fence", ())
        )
    held = {name for name, package in seen.packages.items() if package["hold"]}
    actions = []
    names = sorted((own & held) - before)
    if names:
        why = f"{len(names)} packages are on hold for goldnode's stack alone"
        actions.append(release_hold("kernel", "holds of the stack", names, why))
    lost = sorted(
        name
        for name in before & set(record.get("was_held", ()))
        if name in seen.packages and name not in held
    )
    if lost:
        why = f"{len(lost)} packages were on hold before goldnode came, and were let go by it"
        actions.append(hold("kernel", "earlier holds", lost, why))
    return actions


# -- kernels


def installed_kernels(seen: Observed, record: Mapping[str, Any]) -> Dict[str, str]:
    """Return package -> release for every installed kernel package that goldnode installed."""
    releases = {
        name: kernel_release(name) for name in record.get("brought", ()) if name in seen.packages
    }
    return {name: release for name, release in releases.items() if release}


def way_home(seen: Observed, record: Mapping[str, Any]) -> Optional[str]:
    """Return the kernel to go back to. It must have an initramfs.

    This is the kernel that ran before goldnode, otherwise the newest one that goldnode did not
    install.
    """
    own = set(installed_kernels(seen, record).values())
    others = [
        name
        for name in seen.kernels
        if name not in own and "error" not in seen.initramfs.get(name, {"error": "none"})
    ]
    if not others:
        return None
    first = (record.get("first") or {}).get("kernel")
    newest = others[0]
    for name in others:
        newest = name if compare(name, newest) > 0 else newest
    return str(first) if first in others else newest


def kernels_to_keep(seen: Observed, record: Mapping[str, Any]) -> List[str]:
    """Return goldnode's kernel packages that must stay for now.

    These are those of the running kernel, or all if no other kernel is installed.
    """
    own = installed_kernels(seen, record)
    if seen.container:
        return []
    if way_home(seen, record) is None:
        return sorted(own)
    return sorted(name for name, release in own.items() if release == seen.running_kernel)


def pending(seen: Observed, record: Mapping[str, Any]) -> List[Waiting]:
    """Report the running kernel as waiting: it can be removed after another one was booted."""
    target = way_home(seen, record)
    if target is None:
        return []
    return [
        Waiting(
            "kernel",
            name,
            f"the class's kernel still runs; it leaves in a run after {target} has been booted",
        )
        for name in kernels_to_keep(seen, record)
    ]


def next_boot(seen: Observed, record: Mapping[str, Any]) -> List[Action]:
    """Return the action that makes the kernel to go back to the default, while the class's kernel runs."""
    target = way_home(seen, record)
    if target is None or seen.boot.get("loader") != "grub":
        return []
    before = (seen.files.get(kernel.DROP_IN) or {}).get("content")
    entry = seen.boot.get("entry")
    if seen.boot.get("release") == target and entry and before == kernel.drop_in(str(entry)):
        return []
    after = kernel.drop_in(str(entry)) if entry else f"(entry of {target})\n"
    why = (
        f"want {target} as the next boot, have {seen.boot.get('release') or 'unknown'}: the class's "
        "kernel can leave only while another runs"
    )
    return [
        Action(
            "kernel",
            kind="boot.entry",
            target=target,
            reason=why,
            phase=BOOT,
            before=before,
            after=after,
            data={"release": target},
        )
    ]


# -- packages


def leaving(seen: Observed, record: Mapping[str, Any]) -> Tuple[List[str], List[Note]]:
    """Return the packages to remove: those that goldnode installed and that no remaining package needs."""
    installed = {name for name in record.get("brought", ()) if name in seen.packages}
    keep = set(kernels_to_keep(seen, record))
    leave = installed - keep
    notes = []
    only = way_home(seen, record) is None
    if keep and only:
        notes.append(
            Note(
                "kernel.only",
                f"{', '.join(sorted(keep))} stays: no other kernel with an initramfs is installed. "
                f"Install the distribution's and boot it; then: apt-get purge {' '.join(sorted(keep))}",
            )
        )
    for name in sorted(keep if not only and seen.boot.get("loader") != "grub" else ()):
        notes.append(
            Note(
                "kernel.next",
                f"which kernel boots next cannot be set here: choose {way_home(seen, record)} "
                f"yourself, and {name} can leave",
            )
        )
    leave, needed = unneeded(leave, seen.packages, seen.traces)
    for name, by in sorted(needed.items()):
        # Follow the chain of dependencies to the package that ultimately keeps this one.
        root = by
        while root in needed:
            root = needed[root]
        if root not in keep:
            text = (
                f"{name} stays: {root} needs it, which goldnode did not install. Without {root}: apt-get "
                f"purge {name}"
            )
            notes.append(Note("packages.needed", text))
    return sorted(leave), notes


def unknown(
    document: Optional[ClassDocument], seen: Observed, record: Mapping[str, Any]
) -> List[Note]:
    """Return a note on stack packages of unknown origin.

    An older goldnode did not record which ones it installed.
    """
    if not document or "first" in record:
        return []
    installed = set(record.get("brought", ()))
    names = sorted(
        package["name"]
        for package in document.get("packages", ())
        if package["name"] in seen.packages
    )
    names = [name for name in names if name not in installed]
    if not names:
        return []
    text = (
        f"{len(names)} packages of the stack stay, since an older goldnode did not record which of them "
        "it installed. "
    )
    text += f"To take them away: apt-get purge {' '.join(names)}"
    return [Note("packages.unknown", text)]


def put_back(seen: Observed, record: Mapping[str, Any]) -> Dict[str, str]:
    """Return package -> original version, if goldnode changed it last and apt still offers that version."""
    rows = record.get("was", {})
    return {
        name: str(row["from"])
        for name, row in sorted(rows.items())
        if seen.version(name) == row["to"]
        and row["from"] in seen.traces.get("offered", {}).get(name, ())
    }


def staying(seen: Observed, record: Mapping[str, Any], leave: Sequence[str]) -> List[Note]:
    """Return notes on packages that stay changed: apt no longer offers them, or goldnode removed them."""
    back = put_back(seen, record)
    notes = [
        Note(
            "packages.version",
            f"{name} stays at {row['to']}: {row['from']}, which it was before, is no longer offered by apt",
        )
        for name, row in sorted(record.get("was", {}).items())
        if name not in back and name not in leave and seen.version(name) == row["to"]
    ]
    removed = {
        name: version
        for name, version in record.get("removed", {}).items()
        if name not in seen.packages
    }
    if removed:
        names = " ".join(f"{name}={version}" for name, version in sorted(removed.items()))
        sources = sorted({row["uri"] for row in (record.get("first") or {}).get("sources", ())})
        text = (
            f"removed by goldnode for another stack, and not reinstalled: apt-get install {names}"
        )
        notes.append(
            Note(
                "packages.removed",
                text + phrase(" (sources at the time: {})", ", ".join(sources)),
            )
        )
    return notes


def packages(
    document: Optional[ClassDocument],
    seen: Observed,
    record: Mapping[str, Any],
    leave: Sequence[str],
) -> List[Action]:
    """Return one transaction: purge packages that goldnode installed, and restore versions of others."""
    # Configuration files from before goldnode stay, so these packages are removed but not purged.
    keep_configuration = set(record.get("residual", ()))
    residue = [
        name
        for name in record.get("brought", ())
        if name in seen.traces.get("residual", ()) and name not in keep_configuration
    ]
    back = put_back(seen, record)
    actions = []
    # A broken package that is removed anyway needs no repair.
    foreign = [name for name in broken_packages(seen) if name not in leave]
    if foreign and seen.journal is not None:
        why = f"an earlier run was interrupted; {len(foreign)} packages are half done: {', '.join(foreign[:5])}"
        text = "\n".join(foreign) + "\n"
        actions.append(
            Action(
                "kernel",
                kind="packages.repair",
                target="dpkg",
                reason=why,
                before=text,
                after="",
                data={"leave": []},
            )
        )
    if not (leave or residue or back):
        return actions
    purge = sorted({*leave, *residue} - keep_configuration)
    why = ", ".join(
        text
        for text in (
            f"{len(leave)} packages were not there before goldnode" if leave else "",
            f"the configuration of {len(residue)} is left over" if residue else "",
            f"{len(back)} had other versions" if back else "",
        )
        if text
    )
    lines = [
        f"purge     {name} {seen.packages[name]['version']}" for name in leave if name in purge
    ]
    lines += [
        f"remove    {name} {seen.packages[name]['version']}" for name in leave if name not in purge
    ]
    lines += [f"purge     {name} (configuration)" for name in residue]
    lines += [
        f"put back  {name} {seen.packages[name]['version']} -> {version}"
        for name, version in back.items()
    ]
    whole = completed(document)
    roles = {package["name"]: package["part"] for package in whole["packages"]}
    family = driver_family(whole)
    deep = [
        name
        for name in leave
        if roles.get(name) in ("kernel", "driver")
        or kernel_release(name)
        or in_family(name, family)
    ]
    before = "".join(
        f"{name} {seen.packages[name]['version']}\n" for name in sorted({*leave, *back})
    )
    data = {
        "remove": list(leave),
        "purge": purge,
        "back": [f"{name}={version}" for name, version in back.items()],
        "lines": lines,
    }
    data["broken"] = [name for name in broken_packages(seen) if name in leave]
    reboot = "the kernel or driver of the class has left" if deep else None
    actions.append(
        Action(
            "kernel",
            kind="packages.leave",
            target="packages",
            reason=why,
            before=before,
            after="".join(f"{name} {version}\n" for name, version in back.items()),
            reboot=reboot,
            data=data,
        )
    )
    return actions


def initramfs(seen: Observed, leave: Sequence[str]) -> List[Action]:
    """Return actions that rebuild each remaining initramfs that contains files from goldnode."""
    gone = {kernel_release(name) for name in leave}
    return [
        Action(
            "kernel",
            kind="initramfs.rebuild",
            target=release,
            reason=f"it holds {', '.join(sorted(inside['files']))}",
            before="".join(f"{name}\n" for name in sorted(inside["files"])),
            after="",
            data={"release": release, "owed": ""},
        )
        for release, inside in sorted(seen.initramfs.items())
        if release not in gone and inside.get("files")
    ]


def apt_marks(seen: Observed, record: Mapping[str, Any], leave: Sequence[str]) -> List[Action]:
    """Return actions that restore apt's automatic mark of packages that were dependencies before goldnode."""
    names = [
        name
        for name in record.get("automatic", ())
        if name in seen.packages and name not in leave and bare(name) not in seen.automatic
    ]
    if not names:
        return []
    before, after = ("".join(f"{name} {word}\n" for name in names) for word in ("manual", "auto"))
    why = f"{len(names)} packages were there as dependencies before goldnode named them"
    return [
        Action(
            "kernel",
            kind="packages.auto",
            target="apt's marks",
            reason=why,
            before=before,
            after=after,
            data={"names": names},
        )
    ]


# -- cleanup


def empty_directories(seen: Observed, record: Mapping[str, Any], gone: Set[str]) -> List[Action]:
    """Return actions that remove goldnode's directories that are empty once its files are gone."""
    first = record.get("first") or {}
    needed = {*first.get("directories", ()), *seen.traces.get("packaged", ()), *OWN}
    actions = []
    removed = set(gone)
    entries = seen.traces.get("directories", {})
    # Deepest first, so that a parent counts as empty once its subdirectories are removed.
    for name in sorted(entries, key=lambda path: (-path.count("/"), path)):
        # Without a record of the original directories, only remove those named after goldnode.
        if name in needed or not ("first" in record or "goldnode" in name):
            continue
        if all(f"{name}/{entry}" in removed for entry in entries[name]):
            removed.add(name)
            actions.append(remove_directory(name, "goldnode made it, and nothing is in it"))
    return actions


def settle(seen: Observed) -> Action:
    """Return the action that makes systemd and GRUB read their configuration again."""
    who = [
        text
        for text, true in (("systemd", seen.live), ("GRUB", seen.boot.get("loader") == "grub"))
        if true
    ]
    return Action(
        "node_class",
        kind="removal.settle",
        target=" and ".join(who) or "journal",
        reason="their source was removed",
        phase=BOOT if who else IMAGE,
        data={"grub": "GRUB" in who, "systemd": "systemd" in who},
    )


def refused(seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse if a change would do harm now."""
    packaging = any(action.kind.startswith("packages.") for action in actions)
    refusals = owners.record_refusals(seen) if actions else []
    refusals += broken_by_others(seen) if packaging else []
    refusals += locked(seen) if packaging else []
    # The driver changes, and even a daemon-reload takes the GPUs from running containers.
    return refusals + (in_use(seen) if actions else [])


def reboot_reasons(seen: Observed, waiting: Sequence[Waiting]) -> List[str]:
    """Return why the node needs a reboot in its current state."""
    reasons = [f"the class's kernel {seen.running_kernel} still runs" for _ in waiting[:1]]
    return reasons + [
        f"{name} is loaded, and its files have left" for name in seen.traces.get("unfiled", ())
    ]
