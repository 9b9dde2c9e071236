"""A disk with two slots: the units that judge a boot and give it up, the hooks that keep the ESP, and what is told of the other slot.

`seen.slots` = {marker: whether the root was made for such a disk, survey: :func:`slots.survey` or None, stale: what of the kernel on the ESP is
not as in this root, or None}.
"""

from __future__ import annotations

from ...boot import LAYOUT, PLACES, VARIABLES, VENDOR
from ...host import PROGRAM, Host
from ..finding import ELSEWHERE, Finding, judge_item
from ..model import IMAGE, Action, Note, Observed, Refusal, Waiting
from ..remedy import PERSON, SITE, Remedy
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Sequence, Tuple, TypeAlias

Document: TypeAlias = "Mapping[str, Any]"

FOLDER = "/etc/systemd/system"
GOOD, TRIES = "goldnode-good.service", "goldnode-tries.service"
SCRIPT = "/usr/lib/goldnode/slot-failed"
LINKS = {
    f"{FOLDER}/boot-complete.target.requires/{GOOD}": f"{FOLDER}/{GOOD}",
    f"{FOLDER}/emergency.target.wants/{TRIES}": f"{FOLDER}/{TRIES}",
}
COUNTED = f"{VARIABLES}/LoaderBootCountPath-{VENDOR}"  # set by systemd-boot when the entry that it starts has a counter
LIMIT = 900  # seconds until a boot that is tried has to be complete

# After multi-user.target, so that container engines have been started, and judged. It runs where a boot is tried, and is asked for by nothing else.
GOOD_TEXT = f"""# goldnode: whether the image that this boot tries is good; systemd-bless-boot then takes the counter from its entry
[Unit]
Description=goldnode judgement of the image that this boot tries
ConditionPathExists={COUNTED}
After=efi.mount goldnode-sanity.service goldnode-policy.service multi-user.target
Before=boot-complete.target
RefuseManualStart=yes

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} slot good
TimeoutStartSec=600

[Install]
RequiredBy=boot-complete.target
"""

# The job of boot-complete.target is there from the start of a boot that is tried, and in no other.
TARGET_TEXT = f"""# goldnode: a boot that is tried has so long to complete
[Unit]
OnFailure={TRIES}
OnFailureJobMode=replace-irreversibly
JobTimeoutSec={LIMIT}
"""

TRIES_TEXT = f"""# goldnode: gives up a boot that tries an image and is not good; of any other it does nothing
[Unit]
Description=goldnode gives up the boot that tries an image
DefaultDependencies=no
ConditionPathExists={COUNTED}

[Service]
Type=oneshot
ExecStart={SCRIPT}
TimeoutStartSec=120
# A script that cannot even start is no reason to stay.
FailureAction=reboot-force
"""

# After its rename an entry is empty on the disk until the file itself is flushed, and not its directory alone (docs/disk-slots.md).
BLESS_TEXT = f"""# goldnode: an entry that systemd-bless-boot has renamed is flushed to the disk
[Service]
ExecStartPost=-/bin/sh -c 'for esp in {" ".join(PLACES)}; do [ ! -d $$esp/loader/entries ] || sync $$esp/loader/entries/* $$esp/loader/entries; done'
"""

# Plain shell: it has to work where the program does not. An entry that was found good has no counter, and systemd-bless-boot says `good`.
SCRIPT_TEXT = f"""#!/bin/sh
# goldnode: reboot, while this boot tries an image and that was not found good; systemd-boot then takes the next try, or the other slot
[ -e {COUNTED} ] || exit 0
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
# goldnode: a kernel that this slot boots is copied to the ESP when it changes there
[ -x {PROGRAM} ] && [ -n "$1" ] || exit 0
{PROGRAM} slot sync --hook --release "$1" || true
exit 0
"""

# Status 77: kernel-install has no more to do (kernel-install(8)). Its own entries would not be of a slot.
PLUGIN = """#!/bin/sh
# goldnode: the entries of a disk with two slots are goldnode's
exit 77
"""


def observe(host: Host, document: Document, seen: Observed) -> None:
    """The slots of a live node, and whether a root was made for them."""
    seen.slots = {"marker": (host.text(LAYOUT) or "").strip() == "ab", "survey": None, "stale": None}
    if host.live and not seen.container and "root=PARTLABEL=root-" in (host.text("/proc/cmdline") or ""):
        from ... import slots  # what reads them is of no use on any other disk

        found = slots.survey(host)
        seen.slots.update(
            survey=found, stale=slots.stale(host, found["place"], found["running"]) if found else None
        )


def files() -> List[Wanted]:
    """What a root for such a disk holds. `disks/firstboot` puts the same there."""
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
            SCRIPT, SCRIPT_TEXT, "sanity", "a boot that tries an image is given up when it is not good", 0o755
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


def wanted(document: Document, seen: Observed) -> List[Wanted]:
    """The files, where the root was made for slots. Pure."""
    return files() if seen.slots.get("marker") else []


def plan(document: Document, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """The links of `systemctl enable`. Pure."""
    if not seen.slots.get("marker"):
        return [], [], []
    return (
        [
            Action(
                "sanity",
                "link",
                link,
                "a boot that tries an image is judged",
                IMAGE,
                seen.links.get(link),
                to,
                None,
                {"to": to},
            )
            for link, to in LINKS.items()
            if seen.links.get(link) != to
        ],
        [],
        [],
    )


def refusals(document: Document, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """None."""
    return []


def findings(document: Document, seen: Observed) -> List[Finding]:
    """Whether a newer image has failed here, and whether the ESP holds the kernel of this root. Nothing of a disk without slots. Pure."""
    survey = seen.slots.get("survey")
    newest, copies = "the newest image runs", "kernel and initramfs of this root"
    if not survey:
        if not seen.slots.get("marker"):
            return []
        why = (
            "an image does not run"
            if not seen.live
            else "the ESP is not mounted, or the loader was told another root"
        )
        return [
            Finding("slot.fallback", ELSEWHERE, "degraded", newest, why),
            Finding("boot.copies", ELSEWHERE, "degraded", copies, why),
        ]
    remedy = Remedy(
        "See what it says, build an image without it, and write that: `goldnode disks update`. Until then this one runs.",
        PERSON,
    )
    return [
        judge_item("slot.fallback", newest, survey["fallback"] or newest, "degraded", remedy),
        judge_item(
            "boot.copies",
            copies,
            seen.slots.get("stale") or copies,
            "degraded",
            Remedy("Run site.yml, or `goldnode-node slot sync`.", SITE),
        ),
    ]
