"""Domain of `scratch`: file systems for temporary data on the node's own disks.

A disk is formatted only if it is empty: no signature, no partition, no user, and zeros at both ends. That is
read again right before the format (handlers/scratch.py), because mkfs.ext4 asks nobody where there is no
terminal. A disk with goldnode's label is mounted and never formatted. Any other disk is refused.
"""

from __future__ import annotations

import hashlib
import os
import re

from ...ground.host import Host, Json, mount_lines
from ...ground.json_lines import as_dict
from ..actions import link, start_unit, stop_unit, unlink
from ..finding import UNREAD, Finding, judge_item
from ..model import BOOT, Action, Note, Observed, Refusal, Waiting
from ..remedy import COMMAND, PERSON, SITE, Remedy
from . import units
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

    from ...ground.document import ClassDocument


PART = "storage"
SERVICE = "goldnode-scratch.service"
UNIT = f"{units.FOLDER}/{SERVICE}"
LINK = f"{units.FOLDER}/multi-user.target.wants/{SERVICE}"
CLEANING = "/etc/tmpfiles.d/goldnode-scratch.conf"
LABELLED, EMPTY, UNFIT, UNKNOWN = "labelled", "empty", "unfit", "unknown"
EDGE = 1 << 20  # bytes that must be zero at the beginning and the end of an empty disk
FULL = 90  # percent
INODES = 5  # percent that must be free
GIVEN_UP = "the class does not declare it any more; the data stays on its disk"
# Options that the kernel does not list among those in effect.
UNLISTED = ("defaults", "nofail", "rw")

WAIT = 90  # seconds at boot for disks that appear late: as long as systemd waits for those of /etc/fstab
# Without a mount, the directory is a part of the root file system, which users must not fill.
HIDDEN, MODE = "755", "1777"

# After the mounts of the system, and before everything that runs jobs and the check that judges the mounts
# (After= in program.py). A missing disk stops no boot and no other mount.
TEXT = """# goldnode: scratch space of the class
[Unit]
Description=goldnode scratch space
After=local-fs.target
Before=docker.service containerd.service slurmd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
# A disk that does not answer must not hold up the boot check for ever.
TimeoutStartSec=600
{start}{stop}
[Install]
WantedBy=multi-user.target
"""


def declared(document: ClassDocument) -> Mapping[str, Any]:
    """Return the class's `scratch` by mount point; empty if it declares none."""
    return as_dict(document.get("scratch"))


def label(mount: str) -> str:
    """Return the label of the file system of a mount point, of 11 letters: XFS takes 12, ext4 16."""
    return f"gn-{hashlib.sha256(mount.encode()).hexdigest()[:8]}"


def mount_command(mount: str, want: Mapping[str, Any], device: str) -> List[str]:
    """Return the command that mounts the file system of `device`."""
    options = ",".join(["X-mount.mkdir", *want["options"]])
    return ["/usr/bin/mount", "-t", str(want["filesystem"]), "-o", options, device, mount]


def mount_script(mount: str, want: Mapping[str, Any]) -> str:
    """Return the shell commands that mount the declared disk at boot, if it has the label of this mount point.

    Not by the label alone: a disk of another node may have it too.
    """
    command = " ".join(mount_command(mount, want, "$disk"))
    return (
        f"mountpoint -q {mount} && exit; [ ! -d {mount} ] || chmod {HIDDEN} {mount}; for disk in {want['device']}; do "
        f'[ "$(blkid -p -s LABEL -o value $disk)" = {label(mount)} ] && {command} && exec chmod {MODE} {mount}; done'
    )


def _shell(script: str) -> str:
    """Return a shell's command line for a unit (systemd.service(5), "Command lines")."""
    return f"/bin/sh -c '{script.replace('$', '$$')}'"


# -- observe


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Read disk and mount of each declared mount point into `seen.scratch`.

    Each is {devices, device, number, state, why, type, mounted, occupied, used_percent, inodes_percent}: `number` is
    that of the device, `state` is labelled, empty, unfit or unknown, `why` a reason for unfit and unknown, `mounted` {source, number, type,
    options} or None. A mount point of an earlier class has `mounted` alone.
    """
    if not host.live:
        return
    table = mounted(mount_lines(host))
    for name in installed(seen) - declared(document).keys():
        seen.scratch[name] = {"mounted": table.get(name)}
    for name, want in sorted(declared(document).items()):
        row: Json = {"mounted": table.get(name), "occupied": False, "device": None, "number": None}
        row["devices"] = matches(host, str(want["device"]))
        row["state"], row["why"], row["type"] = _state(host, name, row["devices"])
        if len(row["devices"]) == 1:
            row["device"] = row["devices"][0]
            row["number"] = _number(host, row["device"])
        if row["mounted"] is None and host.is_dir(name):
            row["occupied"] = bool(os.listdir(host.located(name)))
        row["used_percent"], row["inodes_percent"] = usage(host, name, row["mounted"])
        seen.scratch[name] = row


def installed(seen: Observed) -> Set[str]:
    """Return the mount points of the unit that is on the node, which may be of another class."""
    content = (seen.files.get(UNIT) or {}).get("content") or ""
    return set(re.findall(r"exec /usr/bin/umount (\S+)'", content))


def left(host: Host, seen: Observed) -> List[str]:
    """Return the mount points of the unit that is on the node, as far as they are mounted."""
    if not host.live:
        return []
    return sorted(installed(seen) & mounted(mount_lines(host)).keys())


def matches(host: Host, pattern: str) -> List[str]:
    """Return the disks that a path or a pattern names. A pattern names no partitions; a path may."""
    folder, _, last = pattern.rpartition("/")
    paths = host.glob(folder, last) if any(sign in last for sign in "*?[") else [pattern]
    names = {
        "/" + os.path.relpath(host.real(path), host.root) for path in paths if host.exists(path)
    }
    if paths != [pattern]:
        names = {name for name in names if not host.exists(f"{_sysfs(name)}/partition")}
    return sorted(names)


def _sysfs(device: str) -> str:
    return f"/sys/class/block/{device.rpartition('/')[2]}"


def _number(host: Host, device: str) -> str:
    """Return the number of a disk, as in mountinfo; empty if the kernel does not show it."""
    return (host.text(f"{_sysfs(device)}/dev") or "").strip()


def _state(host: Host, mount: str, devices: List[str]) -> Tuple[str, str, Any]:
    if len(devices) != 1:
        listed = ", ".join(devices) or "none"
        return UNFIT, f"exactly one disk must match, and there are {len(devices)}: {listed}", None
    return inspect(host, devices[0], label(mount))


def inspect(host: Host, device: str, own: str) -> Tuple[str, str, Any]:
    """Return the state of a disk, the reason if it is unfit, and the type of a file system with the label `own`."""
    if host.exists(device) and not os.access(host.real(device), os.R_OK):
        # An ordinary user, or a unit with a sandbox. Enough to judge, and never to format.
        known = _by_udev(host, device)
        if known.get("ID_FS_LABEL") == own and known.get("ID_FS_TYPE"):
            return LABELLED, "", known["ID_FS_TYPE"]
        return UNKNOWN, f"{device} cannot be read from here", None
    probed = host.run("blkid", "-p", "-o", "export", device, timeout=20)
    rows = dict(line.partition("=")[::2] for line in probed.out.splitlines() if "=" in line)
    if probed.rc == 0 and rows.get("LABEL") == own and rows.get("TYPE"):
        return LABELLED, "", rows["TYPE"]
    if probed.rc == 0:
        what = rows.get("TYPE") or rows.get("PTTYPE") or "a signature"
        return UNFIT, f"{device} has {what} {rows.get('LABEL') or ''}".rstrip(), None
    if probed.rc != 2:  # blkid(8): 2 is nothing found, 8 several signatures
        return UNFIT, f"blkid cannot judge {device} (exit status {probed.rc})", None
    return _in_use(host, device) or _with_data(host, device) or (EMPTY, "", None)


def _by_udev(host: Host, device: str) -> Dict[str, str]:
    """Return the properties of a disk in udev's database, which everybody can read."""
    number = _number(host, device)
    lines = (host.text(f"/run/udev/data/b{number}") or "").splitlines() if number else []
    return dict(line[2:].partition("=")[::2] for line in lines if line.startswith("E:"))


def _in_use(host: Host, device: str) -> Any:
    """Return the state of a disk that something uses or that cannot be written; None for any other."""
    folder, name = _sysfs(device), device.rpartition("/")[2]
    if any(host.exists(f"{path}/partition") for path in host.glob(folder, f"{name}*")):
        return UNFIT, f"{device} has partitions", None
    if host.glob(f"{folder}/holders", "*"):
        return UNFIT, f"{device} is part of another device (RAID, LVM, dm)", None
    if (host.text(f"{folder}/ro") or "").strip() == "1":
        return UNFIT, f"{device} is read-only", None
    signs = host.run("wipefs", "--no-act", "--noheadings", device, timeout=20)
    if signs.rc != 0 or signs.out.strip():
        return UNFIT, f"wipefs finds a signature on {device}, or cannot read it", None
    return None


def _with_data(host: Host, device: str) -> Any:
    """Return the state of a disk with data that has no signature, such as one that is encrypted; None without data."""
    try:
        # O_EXCL fails for a disk that is mounted, or that a driver holds (open(2)).
        handle = os.open(host.real(device), os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as problem:
        return UNFIT, f"{device} is in use, or cannot be opened: {problem.strerror}", None
    try:
        size = os.lseek(handle, 0, os.SEEK_END)
        for at in (0, max(0, size - EDGE)):
            if any(os.pread(handle, EDGE, at)):
                text = f"{device} has data without a signature; if nothing of it is needed: `blkdiscard {device}`"
                return UNFIT, text, None
    except OSError as problem:
        return UNFIT, f"{device} cannot be read: {problem.strerror}", None
    finally:
        os.close(handle)
    return None if size else (UNFIT, f"{device} has no medium", None)


def mounted(lines: Iterable[str]) -> Dict[str, Json]:
    """Return mounts by mount point, from lines of proc_pid_mountinfo(5): {source, number, type, options}. The last one counts."""
    table: Dict[str, Json] = {}
    for line in lines:
        first, _, rest = line.partition(" - ")
        fields, after = first.split(), rest.split()
        if len(fields) > 5 and len(after) > 1:
            options = [*fields[5].split(","), *(after[2].split(",") if len(after) > 2 else ())]
            row = {"source": after[1], "number": fields[2], "type": after[0], "options": options}
            table[fields[4]] = row
    return table


def usage(host: Host, mount: str, row: Any) -> Tuple[Any, Any]:
    """Return how full a mounted file system is, and its used inodes, in percent. None: not mounted, or no answer."""
    if row is None:
        return None, None
    # A child, so that a dead disk hangs only that.
    answer = host.run("df", "--output=pcent,ipcent", mount, timeout=10)
    words = answer.out.splitlines()[-1].split() if answer.rc == 0 and answer.out.strip() else []
    values = [int(word[:-1]) if word[:-1].isdigit() else None for word in words]
    return (values[0], values[1]) if len(values) == 2 else (None, None)


# -- wanted and plan


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the unit that mounts, and the rules of systemd-tmpfiles that clean."""
    rows = sorted(declared(document).items())
    if not rows:
        return []
    why = "the class declares `scratch`"
    disks, places = " ".join(want["device"] for _, want in rows), " ".join(name for name, _ in rows)
    wait = f"for second in $(seq {WAIT}); do ls -d {disks} >/dev/null 2>&1 && exit; sleep 1; done"
    start = f"ExecStart=-{_shell(wait)}\n"
    stop, lines = "", ["# goldnode: cleaning of scratch space (tmpfiles.d(5))"]
    for name, want in rows:
        # With `-`, systemd goes on with the next one.
        start += f"ExecStart=-{_shell(mount_script(name, want))}\n"
        # The last one first: it may be inside another.
        stop = (
            f"ExecStop=/bin/sh -c '! mountpoint -q {name} || exec /usr/bin/umount {name}'\n{stop}"
        )
        if want.get("keep_days"):
            # `e` makes no directory and sets no mode, which would also be done to a disk's place without the disk.
            lines += [f"e {name} - - - {want['keep_days']}d", f"x {name}/lost+found"]
    judge = f"status=0; for place in {places}; do mountpoint $place || status=1; done; exit $status"
    start += f"ExecStart={_shell(judge)}\n"
    files = [Wanted(UNIT, TEXT.format(start=start, stop=stop), PART, why)]
    if len(lines) > 1:
        files.append(Wanted(CLEANING, "\n".join(lines) + "\n", PART, why))
    return files


def given_up(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return the actions that unmount what an earlier class declared. Pure.

    Before all others of the first part: without the unit's file, a later run would not know of a mount that was in use.
    """
    rows = declared(document)
    return [
        Action("node_class", "scratch.unmount", name, GIVEN_UP, BOOT, before="mounted\n", after="")
        for name, row in sorted(seen.scratch.items(), reverse=True)
        if name not in rows and row["mounted"] is not None
    ]


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return the actions that format empty disks, and mount. Pure."""
    rows = declared(document)
    actions: List[Action] = []
    if not rows:
        state = seen.unit(SERVICE)
        if state is not None and state["ActiveState"] == "active":
            actions.append(stop_unit("node_class", SERVICE, GIVEN_UP))
        return actions + unlink(PART, LINK, GIVEN_UP, seen=seen), [], []
    actions += link(PART, LINK, UNIT, seen=seen, missing="the unit is not enabled")
    mounts = True
    for name, want in sorted(rows.items()):
        row = seen.scratch.get(name) or {}
        more = _mount(name, want, row)
        good = row.get("mounted") and row["state"] == LABELLED and from_its_disk(row)
        mounts = mounts and bool(more or good)
        actions += more
    # Once all are mounted, as the unit fails until then, and after the reload that a new text of it needs. That waits for
    # the users of GPUs, and so does this.
    if mounts and seen.units.get("loaded") is not None and not units.gpu_users(seen):
        unit = seen.unit(SERVICE) or {}
        running = unit.get("ActiveState") in ("active", "activating")
        if not running and unit.get("LoadState") != "masked":
            reason = "it is not active, and would unmount nothing at a shutdown"
            actions.append(start_unit("sanity", SERVICE, reason))
    return actions, [], []


def unmounts(seen: Observed) -> List[Action]:
    """Return the actions of a removal that unmount, before the unit's file goes: a unit that has failed unmounts nothing."""
    why = "it is goldnode's; the data stays on its disk"
    return [
        Action("sanity", "scratch.unmount", name, why, BOOT, before="mounted\n", after="")
        for name in sorted(seen.traces.get("scratch", ()), reverse=True)
    ]


def _mount(name: str, want: Mapping[str, Any], row: Mapping[str, Any]) -> List[Action]:
    # The disk that matched, in place of the pattern.
    data = {**want, "mount": name, "device": row.get("device")}
    now = row.get("mounted")
    if now is not None:
        missing = lacking(want, now)
        if not missing or row["state"] != LABELLED or not from_its_disk(row):
            return []
        reason = f"want {', '.join(missing)}, have {','.join(now['options'])}"
        return [Action(PART, "scratch.remount", name, reason, BOOT, data=data)]
    if row.get("state") not in (LABELLED, EMPTY):
        return []
    actions = []
    if row["state"] == EMPTY:
        reason = (
            f"{row['device']} is empty: no signature, no partition, no user, zeros at both ends"
        )
        after = f"{want['filesystem']} {label(name)}\n"
        actions.append(
            Action(PART, "scratch.format", name, reason, BOOT, before="", after=after, data=data)
        )
    actions.append(Action(PART, "scratch.mount", name, "it is not mounted", BOOT, data=data))
    return actions


def from_its_disk(row: Mapping[str, Any]) -> bool:
    """Return whether a mount is of the declared disk, and not of another one with the same label."""
    numbers = {row["number"], row["mounted"]["number"]}
    return len(numbers) == 1 or "" in numbers


def lacking(want: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    """Return the declared options that a mount does not have."""
    return [one for one in want["options"] if one not in now["options"] and one not in UNLISTED]


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Return the disks that must not be touched, and the mount points that would hide files."""
    refused = []
    for name, want in sorted(declared(document).items()):
        row = seen.scratch.get(name)
        if row is None:
            continue
        reason = ""
        if row["mounted"] is not None and (row["state"] != LABELLED or not from_its_disk(row)):
            other = row["why"] or f"the disk of the class is {row['device']}"
            reason = f"{row['mounted']['source']} is mounted there, and {other}"
        elif row["state"] in (UNFIT, UNKNOWN):
            reason = row["why"]
        elif row["state"] == LABELLED and row["type"] != want["filesystem"]:
            reason = f"{row['device']} has {row['type']} with the label of this mount, the class wants {want['filesystem']}"
        elif row["occupied"]:
            reason = f"the directory {name} has files, which the mount would hide"
        if reason:
            remedy = (
                "Correct `scratch` of the class. goldnode formats only an empty disk: what is on this one is for a "
                "person to move or erase."
            )
            refused.append(Refusal("scratch", f"Scratch space {name}: {reason}.", remedy))
    return refused


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report mount, options, space and inodes of each declared mount point."""
    results = []
    for name, want in sorted(declared(document).items()):
        row = seen.scratch.get(name)
        elsewhere = None if seen.live else "an image does not run"
        results += [
            item._replace(subject=name)
            for item in (_mount_finding(want, row, elsewhere), _space(want, row, elsewhere))
        ]
    return results


def _mount_finding(want: Mapping[str, Any], row: Any, elsewhere: Any) -> Finding:
    expected = (
        f"{want['filesystem']} of goldnode, mounted with {', '.join(want['options']) or 'defaults'}"
    )
    remedy = Remedy("Run site.yml; if it refuses the disk, its message says why.", SITE)
    got = expected
    if row is not None and row["mounted"] is not None and row["state"] == UNKNOWN:
        return Finding("scratch.mount", UNREAD, expected, row["why"], remedy)
    if not elsewhere:
        if row is None or row["mounted"] is None:
            reason = "" if row is None else row["why"]
            if row is not None and row["state"] == EMPTY:
                reason = f"{row['device']} is empty"
            got = f"not mounted: {reason}" if reason else "not mounted"
        elif row["state"] != LABELLED:
            got = row["why"] or row["state"]
        elif not from_its_disk(row):
            got = f"mounted from {row['mounted']['source']}, not from {row['device']}"
        elif row["mounted"]["type"] != want["filesystem"]:
            got = str(row["mounted"]["type"])
        elif "ro" in row["mounted"]["options"]:
            got = "read-only"
        elif lacking(want, row["mounted"]):
            got = f"without {', '.join(lacking(want, row['mounted']))}"
    return judge_item("scratch.mount", expected, got, remedy, elsewhere)


def _space(want: Mapping[str, Any], row: Any, elsewhere: Any) -> Finding:
    limit = want.get("full_percent") or FULL
    expected = f"at most {limit} % full, {INODES} % of the inodes free"
    remedy = Remedy(
        "Remove files of SUBJECT. With a shorter keep_days of the class and site.yml, `systemd-tmpfiles --clean` removes older ones at once.",
        PERSON,
        COMMAND,
    )
    if row is None or row["mounted"] is None:
        # scratch.mount reports that.
        elsewhere = elsewhere or "it is not mounted"
        return judge_item("scratch.space", expected, None, remedy, elsewhere)
    used, inodes = row["used_percent"], row["inodes_percent"]
    if used is None:
        return Finding("scratch.space", UNREAD, expected, "df does not answer", remedy)
    got = expected
    if used > limit:
        got = f"{used} % full"
    elif inodes is not None and inodes > 100 - INODES:
        got = f"{100 - inodes} % of the inodes free"
    return judge_item("scratch.space", expected, got, remedy, elsewhere)
