"""Domain of the next boot's kernel: a hook that warns about kernels without modules, and the boot entry."""

from __future__ import annotations

from ...ground.boot import SIGNED_IMAGE
from ..model import BOOT, Action, Note, Observed, declared
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    from ...ground.document import ClassDocument


DROP_IN = "/etc/default/grub.d/90-goldnode.cfg"

HOOK = """#!/bin/sh
# goldnode: runs after dkms for each new kernel, \
and reports each module of the stack that the kernel lacks.
# It never fails: a failing hook would break apt, \
and the class's boot entry prevents that this kernel becomes the default.
release=$1
[ -n "$release" ] || exit 0
missing() {{
    text="goldnode: kernel $release has no module $1 (found: ${{2:-none}}); booted, it would leave"
    text="$text this node without $3. Stay on {kernel}, or lock this kernel: goldnode lock {stack}"
    echo "W: $text" >&2
    command -v logger >/dev/null 2>&1 && logger -t goldnode -p daemon.warning -- "$text"
}}
version() {{
    have=$(modinfo -k "$release" -F version "$1" 2>/dev/null)
    [ "$have" = "$2" ] || missing "$1 $2" "$have" "$3"
}}
exists() {{
    modinfo -k "$release" "$1" >/dev/null 2>&1 || missing "$1" "" "$2"
}}
{lines}exit 0
"""


def _word(text: str) -> str:
    """Quote a text as one word for a shell."""
    safe = text and all(
        letter.isascii() and (letter.isalnum() or letter in "_@%+=:,./-") for letter in text
    )
    if safe:
        return text
    from shlex import quote  # start-up time: names of modules need no quotes

    return quote(text)


def hook(document: ClassDocument, part: str) -> List[Wanted]:
    """Return the postinst hook, if the stack has out-of-tree modules that could be missing."""
    driver = document.get("driver")
    lines = []
    # An in-tree module comes with every kernel.
    if driver and not driver["in_tree"]:
        # Only an in-tree driver has no locked version.
        version = _word(declared(driver["version"]))
        lines.append(f"version {_word(driver['module'])} {version} 'its GPUs'")
    for row in document.get("modules") or ():
        lines.append(f"exists {_word(row['name'])} it")
    if not lines:
        return []
    text = HOOK.format(
        lines="".join(f"{line}\n" for line in lines),
        kernel=document["kernel"]["release"],
        stack=document["stack"]["name"],
    )
    return [
        Wanted(
            "/etc/kernel/postinst.d/zz-goldnode",
            text,
            part,
            "a kernel that arrives without the locked module is reported",
            0o755,
        )
    ]


def drop_in(entry: str) -> str:
    """Return the GRUB drop-in that makes `entry` (see `GrubEntry.selector`) the default."""
    return f'# goldnode: boot the kernel of the node class by default\nGRUB_DEFAULT="{entry}"\n'


def restored(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return the action that installs the kernel's package again if its files are missing or cut."""
    package, release = document["kernel"]["image"], document["kernel"]["release"]
    why = seen.boot.get("fault")
    if not why:
        return []
    return [
        Action(
            "kernel",
            kind="kernel.restore",
            target=release,
            reason=why,
            after=f"{package}\n",
            data={"release": release, "package": package},
        )
    ]


def boot_entry(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note]]:
    """Return actions that make the class's kernel the default of the next boot, and notes.

    Requires a boot loader that goldnode can read.
    """
    release = document["kernel"]["release"]
    driver = document.get("driver")
    out_of_tree = bool(driver and not driver["in_tree"]) or bool(document.get("modules"))
    part = "gpu_driver" if out_of_tree else "kernel"  # after every module is verified
    loader = seen.boot.get("loader")
    if not seen.live:
        return [], [
            Note(
                "boot.entry",
                "the default boot entry of an image is set when its boot loader is installed",
            )
        ]
    if loader is None:
        return [], [Note("boot.entry", f"which kernel boots next: {without_loader(seen)}")]
    if loader == "systemd-boot":
        return systemd_boot(document, seen, part)
    if loader != "grub":
        return [], [
            Note(
                "boot.entry",
                f"which kernel boots next: boot loader {loader} is not read by this version",
            )
        ]
    if tried(document, seen):
        return once(document, seen, part)
    before = (seen.files.get(DROP_IN) or {}).get("content")
    if seen.boot.get("release") == release:
        # Without the drop-in, the next kernel that is installed would become the default.
        if seen.boot.get("entry") and before == drop_in(str(seen.boot["entry"])):
            return [], []
        reason = (
            f"{release} boots next, and nothing keeps it the default when another kernel arrives"
        )
    else:
        have = seen.boot.get("release") or "unknown"
        reason = f"want {release} as the next boot, have {have} ({seen.boot.get('reason')})"
    entry = seen.boot.get("entry")
    after = drop_in(entry) if entry else f"(entry of {release}, once it is installed)\n"
    return [
        Action(
            part,
            kind="boot.entry",
            target=release,
            reason=reason,
            phase=BOOT,
            before=before,
            after=after,
            data={"release": release},
        )
    ], []


def without_loader(seen: Observed) -> str:
    """Return why no configuration of a boot loader was found."""
    if seen.container:
        return "a container has no boot loader"
    return "no boot loader configuration was found"


def systemd_boot(
    document: ClassDocument, seen: Observed, part: str
) -> Tuple[List[Action], List[Note]]:
    """Return actions that make the running slot's entry boot the class's kernel, and notes.

    Without slots, make the kernel the loader's default.

    Nothing is changed during a trial of an image, or if the next boot will try one: that
    image brings its own kernel.
    """
    release, have = document["kernel"]["release"], seen.boot.get("release")
    survey = seen.slots.get("survey")
    if survey is None:
        if have is None:
            return [], [
                Note(
                    "boot.entry",
                    f"which kernel boots next: {seen.boot.get('reason') or 'it is unknown'}",
                )
            ]
        if have == release:
            return [], []
        reason = f"want {release} as the next boot, have {have} ({seen.boot.get('reason')})"
        after = f"LoaderEntryDefault={seen.boot.get('entry') or f'(entry of {release}, once it is installed)'}\n"
        return [
            Action(
                part,
                kind="boot.entry",
                target=release,
                reason=reason,
                phase=BOOT,
                after=after,
                data={"release": release},
            )
        ], []
    if survey["tried"] or survey["next"] not in (None, survey["running"]):
        return [], []
    own = survey["slots"][survey["running"]]
    if own["kernel"] == release and have == release and not seen.slots.get("stale"):
        return [], []
    if own.get("unified") and own["kernel"] == release:
        text = f"{seen.slots.get('stale') or seen.boot.get('reason')}, and slot {survey['running']}"
        return [], [Note("boot.slot", f"{text} {' '.join(SIGNED_IMAGE)}")]
    why = (
        seen.slots.get("stale")
        or f"want {release} as the next boot, have {have or 'unknown'} ({seen.boot.get('reason')})"
    )
    before, after = f"{own['entry']}: {own['kernel']}\n", f"{own['entry']}: {release}\n"
    return [
        Action(
            part,
            kind="boot.slot",
            target=f"slot {survey['running']}",
            reason=why,
            phase=BOOT,
            before=before,
            after=after,
            data={"release": release},
        )
    ], []


def tried(document: ClassDocument, seen: Observed) -> bool:
    """Return whether a trial boot must precede making the class's kernel the default.

    This applies to a rollback to a kernel that is neither running nor the default. It does not
    apply to an upgrade: there the modules are verified before the boot. Also, a node that is
    rebooted twice before its check has finished must start the class's kernel both times.
    """
    release = document["kernel"]["release"]
    if seen.trial.get("release") == release:
        return True
    # `next_entry` holds for one boot only, so it does not count as the default.
    permanent = seen.boot.get("release") == release and seen.boot.get("via") != "next_entry"
    return (
        bool(seen.back)
        and not seen.back.get("boot")
        and seen.running_kernel not in (None, release)
        and not permanent
    )


def once(document: ClassDocument, seen: Observed, part: str) -> Tuple[List[Action], List[Note]]:
    """Return actions that make the next boot try the class's kernel, and notes.

    The check of that boot finishes the trial; no action of the plan does.
    """
    release = document["kernel"]["release"]
    failed = seen.trial.get("failed")
    # The trial boot is running, and its check decides.
    if seen.running_kernel == release:
        text = f"{release} becomes the default with a check that finds nothing against it"
        return [], [Note("boot.entry", f"{text}; the last one found: {failed}" if failed else text)]
    if (
        seen.trial.get("release") == release
        and seen.boot.get("release") == release
        and seen.boot.get("via") == "next_entry"
    ):
        return [], []
    reason = (
        f"{release} is to be tried by one boot; the default stays what it is until the check of that "
        "boot finds nothing against it"
    )
    if failed:
        reason += f" (tried before: {failed})"
    entry = seen.boot.get("entry") or f"(entry of {release}, once it is installed)"
    reboot = f"kernel {release} is tried with the next boot"
    return [
        Action(
            part,
            kind="boot.once",
            target=release,
            reason=reason,
            phase=BOOT,
            after=f"next_entry={entry}\n",
            reboot=reboot,
            data={"release": release},
        )
    ], []
