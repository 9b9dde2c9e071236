"""Domain of disks with two slots: boot assessment, ESP updates, and findings about the other slot.

Units decide whether a boot on trial is good, or reboot out of it. Hooks copy a changed kernel to
the ESP.

`seen.slots` = {marker: True if the root was built for such a disk, survey: :func:`slots.survey` or
None, stale: differences between the kernel on the ESP and the one in this root, or None, disk:
:func:`bootdisk.observed`}.
"""

from __future__ import annotations

from ...ground.boot import ARMED, LAYOUT, PLACES, SIGNED_IMAGE, UP, VARIABLES, VENDOR
from ...ground.host import PROGRAM, Host
from ..finding import ELSEWHERE, Finding, judge_item
from ..model import Action, Note, Observed, Refusal, Waiting
from ..remedy import PERSON, SITE, Remedy
from .files import Wanted
from .program import COMMON, READER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Tuple

    from ...ground.document import ClassDocument

FOLDER = "/etc/systemd/system"
GOOD, TRIES = "goldnode-good.service", "goldnode-tries.service"
RETRIES = "goldnode-retries.service"
SCRIPT = "/usr/lib/goldnode/slot-failed"
LINKS = {
    f"{FOLDER}/boot-complete.target.requires/{GOOD}": f"{FOLDER}/{GOOD}",
    f"{FOLDER}/emergency.target.wants/{TRIES}": f"{FOLDER}/{TRIES}",
    f"{FOLDER}/multi-user.target.wants/{RETRIES}": f"{FOLDER}/{RETRIES}",
}
# Set by systemd-boot if the entry that it starts has a counter
COUNTED = f"{VARIABLES}/LoaderBootCountPath-{VENDOR}"
LIMIT = 900  # seconds until a boot on trial must be complete

# After multi-user.target, so that container engines have been started and checked. It runs only in a boot on
# trial: only boot-complete.target requires it.
GOOD_TEXT = f"""\
# goldnode: judge the image on trial; \
if it is good, systemd-bless-boot removes the counter from its entry
[Unit]
Description=goldnode judgement of the image on trial
ConditionPathExists={COUNTED}
After=efi.mount goldnode-sanity.service goldnode-policy.service multi-user.target
Before=boot-complete.target
RefuseManualStart=yes

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} slot good
TimeoutStartSec=600
{READER}ReadWritePaths=-{" -".join(PLACES)}

[Install]
RequiredBy=boot-complete.target
"""

# boot-complete.target has a job from the start of a boot on trial, and in no other boot.
TARGET_TEXT = f"""# goldnode: time limit for a boot on trial
[Unit]
OnFailure={TRIES}
OnFailureJobMode=replace-irreversibly
JobTimeoutSec={LIMIT}
"""

TRIES_TEXT = f"""# goldnode: give up a boot on trial that is not good; other boots are not affected
[Unit]
Description=goldnode gives up a boot on trial
DefaultDependencies=no
ConditionPathExists={COUNTED}

[Service]
Type=oneshot
ExecStart={SCRIPT}
TimeoutStartSec=120
# If the script cannot start, reboot all the same.
FailureAction=reboot-force
# No option that needs a mount: systemd-bless-boot reads the ESP, and /tmp may be missing here.
CapabilityBoundingSet=CAP_SYS_BOOT
{COMMON}PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
SystemCallFilter=@system-service @reboot
"""

# A boot that has come up gives its image new retries. After systemd-bless-boot, which looks for the entry by its name.
# The order after multi-user.target replaces the one that its want would add.
RETRIES_TEXT = f"""\
# goldnode: give the good image that runs its retries, so that the other slot boots once it no longer comes up
[Unit]
Description=goldnode retries of the good image
After=efi.mount multi-user.target boot-complete.target systemd-bless-boot.service {GOOD} goldnode-identity.service
# The recovery has the addresses that the node has then.
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} slot arm
ExecStart=-{PROGRAM} slot recovery
# Another command may have the lock of the slots.
Restart=on-failure
RestartSec=30
TimeoutStartSec=300
{READER}ReadWritePaths=-{" -".join(PLACES)} -{VARIABLES}
# `ip` lists addresses and routes, which the recovery sets again.
RestrictAddressFamilies=AF_NETLINK

[Install]
WantedBy=multi-user.target
"""

# systemd-bless-boot finds its work done. Where the program fails, it renames the entry, and flushes the directory alone:
# the entry would be empty on the disk until the file itself is flushed (docs/how-to/disk-slots.md).
BLESS_TEXT = f"""# goldnode: remove the counter of an entry so that a power cut cannot lose it; \
flush one that systemd-bless-boot has renamed
[Service]
ExecStartPre=-{PROGRAM} slot bless
ExecStartPost=-/bin/sh -c 'for esp in {" ".join(PLACES)}; do [ ! -d $$esp/loader/entries ] || \
sync $$esp/loader/entries/* $$esp/loader/entries; done'
"""

# Plain shell: it must work even if the program does not. A good entry has lost its counter, and
# systemd-bless-boot reports `good`. A good image with retries is given up in emergency mode only: a slow or failed unit of
# it is for the check to report.
SCRIPT_TEXT = f"""#!/bin/sh
# goldnode: reboot if the image on trial was not found good; \
systemd-boot then uses the next try, or the other slot
[ -e {COUNTED} ] && [ ! -e {UP} ] || exit 0
# A signed kernel image ignores the options of its entry, so that both are read.
words=" $(cat /proc/cmdline) "
slot=${{words##*root=PARTLABEL=root-}}
for esp in {" ".join(PLACES)}; do
    words="$words$(grep -hs '^options ' $esp/loader/entries/goldnode-*-"${{slot%% *}}"+*.conf) "
done
case $words in
*" {ARMED} "*)
    {{ systemctl is-active emergency.target emergency.service; systemctl list-jobs --plain --no-legend; }} 2>/dev/null |
        grep -qE '^(active|activating)$|emergency[.]' || exit 0
    ;;
esac
for bless in /usr/lib/systemd/systemd-bless-boot /lib/systemd/systemd-bless-boot; do
    [ -x $bless ] && break
done
case $($bless status 2>/dev/null) in
good | clean) exit 0 ;;
esac
timeout 60 {PROGRAM} slot failed
echo "goldnode: this boot tries an image that is not good: reboot" >&2
sync
systemctl --no-block reboot || reboot -f
"""

KERNEL_HOOK = f"""#!/bin/sh
# goldnode: copy the kernel of this slot to the ESP when it changes
[ -x {PROGRAM} ] && [ -n "$1" ] || exit 0
{PROGRAM} slot sync --hook --release "$1" || true
exit 0
"""

# Status 77 ends kernel-install successfully (kernel-install(8)). Entries that it writes
# would not belong to a slot.
PLUGIN = """#!/bin/sh
# goldnode: goldnode manages the boot entries of a disk with two slots
exit 77
"""


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Collect the slots of a live node, and whether its root was built for them."""
    layout = (host.text(LAYOUT) or "").strip()
    seen.slots = {"marker": layout == "ab", "survey": None, "stale": None, "disk": None}
    if layout:
        from .. import bootdisk  # start-up time: nodes that no disk image installed do not need it

        seen.slots["disk"] = bootdisk.observed(host)
    if (
        host.live
        and not seen.container
        and "root=PARTLABEL=root-" in (host.text("/proc/cmdline") or "")
    ):
        from .. import slots  # start-up time: other disks do not need it

        survey = slots.survey(host)
        seen.slots.update(
            survey=survey,
            stale=slots.stale(host, survey["place"], survey["running"]) if survey else None,
        )


def files() -> List[Wanted]:
    """Return the files of a root for such a disk. `disks/firstboot` installs the same files."""
    why = "a boot that tries an image is judged"
    copies = "the ESP follows the kernel of this root"
    return [
        Wanted(f"{FOLDER}/{GOOD}", GOOD_TEXT, "sanity", why),
        Wanted(
            f"{FOLDER}/{TRIES}",
            TRIES_TEXT,
            "sanity",
            "a boot that tries an image is given up when it is not good",
        ),
        Wanted(
            f"{FOLDER}/{RETRIES}",
            RETRIES_TEXT,
            "sanity",
            "an image that no longer comes up gives way to the other slot",
        ),
        Wanted(
            f"{FOLDER}/boot-complete.target.d/goldnode.conf",
            TARGET_TEXT,
            "sanity",
            "a boot that tries an image has to complete",
        ),
        Wanted(
            f"{FOLDER}/systemd-bless-boot.service.d/goldnode.conf",
            BLESS_TEXT,
            "sanity",
            "an image that is good stays so when the power goes",
        ),
        Wanted(
            SCRIPT,
            SCRIPT_TEXT,
            "sanity",
            "a boot that tries an image is given up when it is not good",
            0o755,
        ),
        Wanted("/etc/kernel/postinst.d/zzz-goldnode-slot", KERNEL_HOOK, "kernel", copies, 0o755),
        Wanted("/etc/initramfs/post-update.d/goldnode-slot", KERNEL_HOOK, "kernel", copies, 0o755),
        Wanted(
            "/etc/kernel/install.d/00-goldnode.install",
            PLUGIN,
            "kernel",
            "nothing else writes entries",
            0o755,
        ),
    ]


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the files if the root was built for slots. Pure."""
    return files() if seen.slots.get("marker") else []


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return the links that `systemctl enable` would create. Pure."""
    if not seen.slots.get("marker"):
        return [], [], []
    why = "a boot that tries an image is judged"
    links = [
        Action("sanity", "link", name, why, before=seen.links.get(name), after=to, data={"to": to})
        for name, to in LINKS.items()
        if seen.links.get(name) != to
    ]
    return links, [], []


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse to change kernel or command line of a slot whose kernel image is signed. Pure."""
    survey = seen.slots.get("survey")
    if not survey or not survey["slots"][survey["running"]].get("unified"):
        return []
    return [
        Refusal(
            "signed-image",
            f"{action.reason}, and slot {survey['running']} {SIGNED_IMAGE[0]}",
            SIGNED_IMAGE[1],
        )
        for action in actions
        if action.kind in ("boot.slot", "cmdline.slot")
    ]


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report whether a newer image failed on this node, and whether the ESP has the kernel of this root.

    Pure.

    A disk without slots has no findings.
    """
    survey = seen.slots.get("survey")
    newest, copies = "the newest image runs", "kernel and initramfs of this root"
    if not survey:
        if not seen.slots.get("marker"):
            return _disk(seen)
        why = "an image does not run"
        if seen.live:
            why = "the ESP is not mounted, or the loader was given another root"
        return [
            *_disk(seen),
            Finding("slot.fallback", ELSEWHERE, newest, why),
            Finding("boot.copies", ELSEWHERE, copies, why),
        ]
    signed = survey["slots"][survey["running"]].get("unified")
    follow = Remedy("Run site.yml, or `goldnode-node slot sync`.", SITE)
    if signed:
        follow = Remedy(SIGNED_IMAGE[1], PERSON)
    remedy = Remedy(
        "See what it says, build an image without it, and write that: `goldnode disks update`. "
        "Until then this one runs.",
        PERSON,
    )
    return [
        *_disk(seen),
        judge_item("slot.fallback", newest, survey["fallback"] or newest, remedy),
        judge_item(
            "boot.copies",
            copies,
            seen.slots.get("stale") or copies,
            follow,
        ),
        *(_secure(seen) if signed else ()),
    ]


def _secure(seen: Observed) -> List[Finding]:
    """Report whether the firmware verifies the signed kernel image that runs. Pure."""
    expected = "Secure Boot is on"
    remedy = Remedy(
        "Put the firmware's Secure Boot into setup mode and reboot, or enrol the certificate in its menu, then turn "
        "Secure Boot on: docs/how-to/secure-boot.md.",
        PERSON,
    )
    unknown = None if seen.secure_boot is not None else "the firmware's variables are not readable"
    return [
        judge_item(
            "boot.secure", expected, expected if seen.secure_boot else "it is off", remedy, unknown
        )
    ]


def _disk(seen: Observed) -> List[Finding]:
    """Report whether root, ESP and the booted partition are of one disk. Pure."""
    disk = seen.slots.get("disk")
    if not disk:
        return []
    expected = "root, ESP and the booted partition are on one disk"
    if disk.get("disk"):
        expected += f", {disk['disk']}"
    if disk.get("by"):
        expected += f" (by {disk['by']})"
    from ..bootdisk import REMEDY  # start-up time: as in observe

    why = None if disk["astray"] else disk["unknown"]
    return [
        judge_item("boot.disk", expected, disk["astray"] or expected, Remedy(REMEDY, PERSON), why)
    ]
