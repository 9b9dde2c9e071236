"""Reader of what decides which disk a machine starts from: efibootmgr, bootctl, lsblk, blkid, df, and the words of a boot.

The lists are read by :mod:`.firmware` and :mod:`.blocks`, and judged together here: an entry of the firmware names a
partition by its GUID, and a list of disks shows whether there is one, where it is mounted, and where the root is. What
the text does not have is a note that begins with "could not judge", and no answer. The rules of one disk for firmware, ESP
and root are those of the health check (:mod:`goldnode.node.state.bootdisk`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from goldnode.explain import blocks, firmware, listings
from goldnode.explain.blocks import BlockDevice, BlockDevices
from goldnode.explain.firmware import FirmwareEntry, FirmwareMenu
from goldnode.explain.model import TextAnswer, TextReading, of_symptom
from goldnode.node.effective import loader
from goldnode.node.ground.boot import PLACES
from goldnode.node.state import bootdisk

# Share of a file system in % from which it is full; one for kernels has to take the next one too.
_FULL, _BOOT_FULL = 100, 95
# How a command line, fstab and a message of an initramfs name a file system.
_NAMED = re.compile(
    r"(?:\broot=(?:\"|')?|ALERT!\s+|^\s*)(?P<kind>UUID|PARTUUID|LABEL|PARTLABEL)=\s*[\"']?(?P<value>[\w.:-]+)"
    r"|(?:/dev)?/disk/by-(?P<by>uuid|partuuid|label|partlabel)/(?P<link>[\w.:-]+)"
)
_MISSING = re.compile(r"ALERT!\s+\S.* does not exist|Warning: .{0,3}/dev/disk/\S+ does not exist")
_FSTAB = re.compile(
    r"^\s*(?:(?:UUID|PARTUUID|LABEL|PARTLABEL)=|/dev/disk/by-)\S+\s+(?P<mount>/\S*|none|swap)\s+(?:vfat|ext\d|xfs|btrfs|swap|auto)\b"
)
_COUNTED = re.compile(r"(?:^|[\s/'\"(])([\w.@~-]+\+\d{1,9}(?:-\d{1,9})?\.(?:conf|efi))\b")
_ENTRIES = re.compile(r"loader/entries|EFI/Linux", re.IGNORECASE)
# The line of a prompt with one of the commands.
_PROMPT = re.compile(
    r"^\s*(?:\S{0,60}[@:]\S{0,60}\s*|~?)[#$%]\s*(?:sudo )?(?:efibootmgr|bootctl|lsblk|blkid|df|mokutil|fdisk|sfdisk|findmnt|ls -l\w* /dev/disk)\b[^|;&]*$"
)
# File systems whose UUID several devices have by design: members of an array, a pool or a group.
_SHARED = re.compile(r"raid_member|LVM2|zfs|btrfs|mpath|bcache|drbd|iso9660|ceph", re.IGNORECASE)


@dataclass(frozen=True)
class BootText:
    """Result of the readers for one text."""

    firmware: FirmwareMenu
    disks: BlockDevices
    lines: Sequence[str]

    def where(self, guid: str) -> list[BlockDevice]:
        """Return the listed partitions with this GUID."""
        return [
            row for row in self.disks.devices.values() if guid and row.column("partuuid") == guid
        ]

    def gone(self, entry: FirmwareEntry) -> bool:
        """Return whether no disk has the partition of an entry. A list of some of the disks does not show it."""
        listed = bool(self.disks.with_column("partuuid"))
        listed = listed and ("partuuid" in self.disks.whole or not self.disks.part)
        return bool(entry.guid) and listed and not self.where(entry.guid)

    @property
    def counted(self) -> dict[int, list[str]]:
        """Return the file names with a counter of tries, by their lines. Other files have such names too, outside of a loader's directory."""
        if not self.firmware.bootctl and not any(_ENTRIES.search(line) for line in self.lines):
            return {}
        names = {number: _COUNTED.findall(line) for number, line in enumerate(self.lines)}
        return {number: row for number, row in names.items() if row}

    def partitions(self) -> list[bootdisk.Partition]:
        """Return the partitions of which the text shows the disk, for the rules of the health check."""
        return [
            bootdisk.Partition(
                row.name, disk, row.name, row.column("partuuid"), row.column("partlabel")
            )
            for row in self.disks.devices.values()
            for disk in sorted(row.disks)
            if len(row.disks) == 1 and row.name != disk and not row.raid
        ]

    def mounted_esp(self) -> BlockDevice | None:
        """Return the device of the mounted ESP, if the text shows it."""
        device = self.disks.at("/boot/efi", "/efi", "/boot")
        return device if device is not None and device.esp else None


def boot(lines: Sequence[str]) -> TextReading | None:
    """Read the outputs about firmware, boot loader and disks, and judge them together."""
    disks = blocks.read(lines)
    listings.add(lines, disks)
    text = BootText(firmware.read(lines), disks, lines)
    forms = [*text.firmware.forms, *text.disks.forms]
    if not forms and not text.counted:
        return None
    reading = TextReading(", ".join(forms) or "a list of boot entries")
    reading.used.update(text.firmware.used, text.disks.used, text.counted)
    reading.used.update(number for number, line in enumerate(lines) if _PROMPT.match(line))
    reading.used.update(_mounted_by_fstab(text))
    differ = _differ(text.disks)
    if differ:
        reading.answers.extend(_exchanged(text))
        reading.notes.append(
            f"could not judge the rest: {differ} has two sizes, the lists are not of one boot"
        )
        return reading
    for judge in (
        _order,
        _entries,
        _together,
        _esps,
        _copies,
        _named,
        _mirrors,
        _full,
        _tries,
        _loader,
    ):
        reading.answers.extend(judge(text))
    # That the network is before or behind the disk is worth an answer where nothing else is to be said.
    faults = [row for row in reading.answers if row.effect != "none"]
    reading.answers = [
        row
        for row in reading.answers
        if not faults or row.id != "boot-order-changes" or row in faults
    ]
    reading.notes.extend(_notes(text))
    return reading


def _mounted_by_fstab(text: BootText) -> list[int]:
    """Return the lines of fstab. Where no list shows mounts, as blkid does not, those of fstab are what the next start has."""
    rows = {
        number: match for number, line in enumerate(text.lines) if (match := _FSTAB.match(line))
    }
    if not text.disks.devices:
        return []
    if not any(device.mounts for device in text.disks.devices.values()):
        for number, row in rows.items():
            name = _NAMED.search(text.lines[number])
            column = (name["kind"] or name["by"]).lower() if name else ""
            value = (name["value"] or name["link"]).lower() if name else ""
            devices = [
                one
                for one in text.disks.with_column(column)
                if one.columns[column].lower() == value
            ]
            if len(devices) == 1:
                devices[0].mounts.append(row["mount"])
    return list(rows)


# -- firmware


def _on(text: BootText, entry: FirmwareEntry) -> str:
    """Return an entry with the partition that it starts from, if the text shows it."""
    names = " and ".join(device.name for device in text.where(entry.guid))
    return f"{entry} (on {names})" if names else str(entry)


def _at(text: BootText, title: str, row: str, line: int, effect: str | None = None) -> TextAnswer:
    """Return the answer of a symptom with its title. `effect` replaces that of the row."""
    answer = of_symptom(row, text=text.lines[line], line=line, title=title)
    return replace(answer, effect=effect or answer.effect)


def _order(text: BootText) -> Iterator[TextAnswer]:
    """Judge the order: what started this boot, what is before it, and where the network is."""
    boot_menu = text.firmware
    rows, current = boot_menu.ordered(), boot_menu.entries.get(boot_menu.current)
    disks = [row for row in rows if not row.network and (row.guid or row.file or not row.known)]
    disks = [
        row
        for row in disks
        if not re.search(r"shell|setup|\bCD\b|DVD|USB|misc dev", row.name, re.IGNORECASE)
    ]
    networks = [row for row in rows if row.network]
    if not rows:
        return
    if current and current.network and disks:
        before = rows.index(current) < rows.index(disks[0]) if current in rows else False
        place = "which is before" if before else "although the order begins with"
        title = f"The machine started from the network ({current}), {place} the disk's entry {_on(text, disks[0])}"
        yield _at(text, title, "boot-order-changes", boot_menu.line, "none" if before else None)
        return
    if current and current != rows[0] and not rows[0].network:
        yield _passed_over(text, rows[0], current)
    if networks and disks and (current is None or not current.network):
        yield _before(text, networks[0], disks[0], rows.index(networks[0]) < rows.index(disks[0]))


def _before(
    text: BootText, network: FirmwareEntry, disk: FirmwareEntry, network_first: bool
) -> TextAnswer:
    """Return the statement which of network and disk the firmware tries first. It is no fault."""
    of_disk, of_network = f"disk's entry {_on(text, disk)}", f"network ({network})"
    title = f"The {of_disk} is before the {of_network} in the boot order"
    if network_first:
        title = f"The {of_network} is before the {of_disk} in the boot order"
    return _at(text, title, "boot-order-changes", text.firmware.line, "none")


def _passed_over(text: BootText, first: FirmwareEntry, current: FirmwareEntry) -> TextAnswer:
    """Return the answer to a first entry that did not start this boot, with the reason if the text has it."""
    title = f"{_on(text, first)} is first in the boot order, and {_on(text, current)} was started"
    if _without_disk(first):
        title = f"{first} names no disk, only a file; it is first in the boot order and was passed over, {current} was started"
        return _at(text, title, "boot-entry-leads-nowhere", first.line)
    if text.gone(first):
        title += f": no listed disk has the partition of the first ({first.guid})"
        return _at(text, title, "boot-entry-leads-nowhere", first.line)
    if text.firmware.secure_boot == "enabled" and first.file and "shim" not in first.file.lower():
        title += f". Secure Boot is on, and the first starts {first.file} without shim (could not judge its signature)"
    return _at(text, title, "boot-entry-passed-over", text.firmware.line)


def _without_disk(entry: FirmwareEntry) -> bool:
    return entry.known and bool(entry.file) and not entry.guid and not entry.network


def _entries(text: BootText) -> Iterator[TextAnswer]:
    """Judge where the entries of the order lead: to a listed partition, to none, or to a file without a disk."""
    boot_menu = text.firmware
    rows = boot_menu.ordered()
    current = boot_menu.entries.get(boot_menu.current)
    for row in rows:
        if row is rows[0] and current not in (None, row) and not (current and current.network):
            continue  # _passed_over has judged it
        if text.gone(row):
            title = f"{row} points to the partition {row.guid}, which no listed disk has"
            yield _at(text, title, "boot-entry-leads-nowhere", row.line)
        elif _without_disk(row) and not boot_menu.bootctl:
            title = f"{row} names no disk, only the file {row.file}"
            yield _at(text, title, "boot-entry-leads-nowhere", row.line)
    paths = [row for row in rows if row.file and row.guid]
    if paths and all(row.fallback for row in paths):
        title = f"The disk starts by the fallback path only ({_on(text, paths[0])}: {paths[0].file}): no system has an entry of its own"
        yield _at(text, title, "firmware-finds-no-system", paths[0].line, "none")


def _together(text: BootText) -> Iterator[TextAnswer]:
    """Judge whether firmware, ESP and root use one disk, by the rules of the health check."""
    boot_menu = text.firmware
    current = boot_menu.entries.get(boot_menu.current)
    guid = boot_menu.loader_guid or (current.guid if current else "")
    root, esp = text.disks.at("/"), text.mounted_esp()
    known = text.partitions()
    of_root = _only(root)
    place = next((path for path in PLACES if esp is not None and path in esp.mounts), None)
    part = next((row for row in known if esp is not None and row.name == esp.name), None)
    reason = bootdisk.apart(of_root, _only(esp), place)
    reason = reason or bootdisk.elsewhere(known, guid, root=of_root, place=place, esp=part)
    if reason:
        line = esp.line if esp is not None else text.firmware.line
        yield _at(text, reason, "boot-from-two-disks", line)
    elif (
        boot_menu.loader_guid and boot_menu.esp_guid and boot_menu.loader_guid != boot_menu.esp_guid
    ):
        title = f"the loader was started from the partition {boot_menu.loader_guid}, and the ESP at {boot_menu.esp} is {boot_menu.esp_guid}"
        yield _at(text, title, "boot-from-two-disks", boot_menu.line)


def _only(device: BlockDevice | None) -> str | None:
    """Return the disk of a device; None if it has several, or if the text does not show it."""
    return next(iter(device.disks)) if device is not None and len(device.disks) == 1 else None


# -- disks

# Where the text itself asks for the ESP, by a command or in its error.
_ESP_MISSED = re.compile(
    r"(?:[Cc]ouldn't|[Ff]ailed to|[Cc]ould not|[Uu]nable to) (?:find|locate) (?:the )?EFI [Ss]ystem [Pp]artition(?!, skipping)"
    r"|doesn't look like an EFI partition|cannot find EFI directory"
)


def _esps(text: BootText) -> Iterator[TextAnswer]:
    """Judge whether there is an EFI system partition, where a machine with UEFI has the types of all its partitions."""
    missed = next(
        (number for number, row in enumerate(text.lines) if _ESP_MISSED.search(row)), None
    )
    if missed is None and not (text.firmware.entries or text.firmware.bootctl):
        return
    rows = [
        row
        for row in text.disks.devices.values()
        if len(row.disks) == 1 and row.name not in row.disks and blocks.disk_of(row.name)
    ]
    if not rows or text.disks.part:
        return
    esps = [row for row in rows if row.typed_esp]
    typed = all(row.column("parttype") or row.column("parttypename") for row in rows)
    mounts = any(row.mounts for row in text.disks.devices.values())
    if not esps and typed:
        types = ", ".join(f"{_mounted(row)} {_type(row)}" for row in rows[:4])
        title = f"No listed partition has the type of an EFI system partition ({types})"
        yield _at(text, title, "esp-not-found", rows[0].line if missed is None else missed)
    elif missed is not None and esps and mounts and not any(row.mounts for row in esps):
        names = " and ".join(row.name for row in esps)
        title = f"The EFI system partition is {names}, and is not mounted"
        yield _at(text, title, "esp-not-found", missed)


def _type(row: BlockDevice) -> str:
    """Return the type of a partition as the text has it."""
    return row.column("parttypename") or row.column("parttype")


def _mounted(row: BlockDevice) -> str:
    """Return the name of a device with the place where it is mounted."""
    return f"{row.name} at {row.mounts[0]}:" if row.mounts else f"{row.name}:"


def _copies(text: BootText) -> Iterator[TextAnswer]:
    """Judge identifiers that devices of several disks have: such disks are copies of one another."""
    paths = {
        row.name
        for row in text.disks.devices.values()
        if row.kind == "mpath" or "mpath" in row.column("fstype")
    }
    for column, what in (("partuuid", "partition GUID"), ("uuid", "file system UUID")):
        groups: dict[str, list[BlockDevice]] = {}
        for row in text.disks.with_column(column):
            virtual = re.match(r"(loop|zram|sr|dm-)", row.name) or row.raid
            unclear = column == "uuid" and (
                not row.column("fstype") or _SHARED.search(row.column("fstype"))
            )
            if not virtual and not unclear and row.disks:
                groups.setdefault(row.column(column), []).append(row)
        for value, rows in groups.items():
            disks = {disk for row in rows for disk in row.disks}
            if len(rows) < 2 or len(disks) < 2 or paths:
                continue
            names = " and ".join(row.name for row in rows)
            mounted = next(
                (f"; {row.name} is mounted at {row.mounts[0]}" for row in rows if row.mounts), ""
            )
            title = f"{names} have the same {what} ({value}){mounted}"
            yield _at(text, title, "disks-are-copies", rows[0].line)
            return
    # Labels alone are the same on many machines with two EFI partitions; images of goldnode find the root by them.
    known = text.partitions()
    twice = (
        bootdisk.twice(known) if any(row.label in ("root-a", "root-b") for row in known) else None
    )
    if twice:
        named = next(row for row in known if row.name in twice)
        yield _at(text, twice, "disks-are-copies", text.disks.devices[named.name].line)


def _named(text: BootText) -> Iterator[TextAnswer]:
    """Judge what root=, fstab or an initramfs names: no listed file system has it, or several have."""
    for number, line in enumerate(text.lines):
        match = _NAMED.search(line)
        table = _FSTAB.match(line)
        missing = _MISSING.search(line)
        if match is None or not (table or missing or "root=" in line):
            continue
        # Of the entries that bootctl lists, the default is what the next start asks for.
        if number in text.firmware.used and not any(
            row.default and match.group() in row.options for row in text.firmware.menu
        ):
            continue
        column = (match["kind"] or match["by"]).lower()
        value = match["value"] or match["link"]
        listed = text.disks.with_column(column)
        if not listed or (text.disks.part and column not in text.disks.whole):
            continue
        rows = [row for row in listed if row.columns[column].lower() == value.lower()]
        what = f"{column.upper()}={value}"
        if not rows:
            has = ", ".join(f"{row.name} {row.columns[column]}" for row in listed[:4])
            name = (
                f"fstab names {what} for {table['mount']}" if table else f"The boot asks for {what}"
            )
            row = "device-not-there-at-boot" if table else "root-not-found-at-boot"
            yield _at(text, f"{name}, which no listed device has ({has})", row, number)
        elif len({disk for row in rows for disk in row.disks}) > 1 and not any(
            row.raid for row in rows
        ):
            names = " and ".join(row.name for row in rows)
            yield _at(
                text,
                f"{what} is taken for a mount, and {names} have it",
                "disks-are-copies",
                number,
            )


def _mirrors(text: BootText) -> Iterator[TextAnswer]:
    """Judge an EFI partition that is an array of several disks."""
    esp = text.mounted_esp()
    if esp is not None and esp.raid:
        disks = " and ".join(sorted(esp.disks))
        below = f" of {disks}" if len(esp.disks) > 1 else ""
        title = f"The EFI partition at {esp.mounts[0]} is {esp.name}, a software RAID{below}, which the firmware does not know"
        yield _at(text, title, "esp-on-raid", esp.line)


def _full(text: BootText) -> Iterator[TextAnswer]:
    """Judge how full file systems are: those for kernels, and any other that has no room at all."""
    seen = set()
    for mount, source, use, line in text.disks.full:
        of_boot = mount in ("/boot", "/boot/efi", "/efi")
        if (
            (mount in seen)
            or source.startswith(("loop", "sr"))
            or use < (_BOOT_FULL if of_boot else _FULL)
        ):
            continue
        seen.add(mount)
        if of_boot:
            title = f"{mount} is full: {use} % of {source} are used, and the next kernel or initramfs does not fit"
            yield _at(text, title, "initramfs-not-written", line)
        else:
            yield _at(text, f"{mount} is full: {use} % of {source} are used", "disk-full", line)


def _differ(disks: BlockDevices) -> str:
    """Return a disk that has different sizes in two lists; empty if there is none."""
    return next(
        (
            name
            for first, second in zip(disks.sizes, disks.sizes[1:], strict=False)
            for name, size in first.items()
            if second.get(name, size) != size
        ),
        "",
    )


def _exchanged(text: BootText) -> Iterator[TextAnswer]:
    """Judge two lists of the same disks under other names. Lists of other disks, or of grown ones, are not judged."""
    for first, second in zip(text.disks.sizes, text.disks.sizes[1:], strict=False):
        if first != second and sorted(first.items()) != sorted(second.items()):
            names = [name for name in first if second.get(name) != first[name]]
            if sorted(first.values()) == sorted(second.values()) and set(first) == set(second):
                pairs = ", ".join(f"{name}: {first[name]}, then {second[name]}" for name in names)
                title = f"Disks have other names in the second list ({pairs})"
                yield _at(text, title, "disk-names-change", text.disks.devices[names[0]].line)
                return


# -- systemd-boot


def _tries(text: BootText) -> Iterator[TextAnswer]:
    """Judge the counters of entries: those without tries left are started last."""
    rows: dict[str, tuple[int, bool]] = {
        row.file: (row.line, row.default) for row in text.firmware.menu
    }
    for number, names in text.counted.items():
        for name in names:
            rows.setdefault(name, (number, False))
    done = {row.file for row in text.firmware.menu if row.left == 0}
    for name, (line, default) in rows.items():
        name_alone, left, tried = loader.counter(re.sub(r"\.efi$", ".conf", name))
        if left != 0 and name not in done:
            continue
        twice = ", and is there a second time without a counter" if name_alone in rows else ""
        chosen = ", and is the default" if default else ""
        title = f"{name} has no tries left ({tried or 0} failed){chosen}{twice}"
        yield _at(text, title, "boot-tries-used-up", line)


def _loader(text: BootText) -> Iterator[TextAnswer]:
    """Judge a systemd-boot that is on the ESP and that no entry of the firmware starts."""
    boot_menu = text.firmware
    there = next((name for name in boot_menu.on_esp if "systemd-boot" in name), None)
    if (
        not boot_menu.bootctl
        or there is None
        or not boot_menu.entries
        or "systemd-boot" in boot_menu.product
    ):
        return
    if any("systemd-boot" in row.file.lower() for row in boot_menu.entries.values()):
        return
    starts = boot_menu.ordered()[:1]
    first = f"; the order begins with {starts[0]} ({starts[0].file})" if starts else ""
    line = next(number for number, row in enumerate(text.lines) if "systemd-boot" in row)
    title = (
        f"systemd-boot is on the ESP at {boot_menu.esp}, and has no entry of the firmware{first}"
    )
    yield _at(text, title, "loader-has-no-entry", line)


def _notes(text: BootText) -> Iterator[str]:
    """Yield what was read, and what could not be judged."""
    boot_menu = text.firmware
    rows = boot_menu.ordered()
    current = boot_menu.entries.get(boot_menu.current)
    if rows:
        begun = f", started by {_on(text, current)}" if current else ""
        yield f"{len(rows)} entries in the boot order{begun}"
    if boot_menu.next:
        yield f"the next start is by {boot_menu.entries.get(boot_menu.next, boot_menu.next)} (BootNext), once"
    lost = [number for number in boot_menu.order if number and number not in boot_menu.entries]
    if lost:
        yield f"the order has {', '.join(lost)}, of which the text has no entry"
    if boot_menu.secure_boot:
        yield f"Secure Boot {boot_menu.secure_boot}"
    esps = [row.name for row in text.disks.devices.values() if row.maybe_esp and not row.raid]
    if len({blocks.disk_of(name) for name in esps}) > 1:
        yield f"{len(esps)} EFI partitions, by their types or as they are FAT: {', '.join(esps)}"
    if rows and not any(row.known for row in rows):
        yield "could not judge which disk an entry starts from: the text does not show it, `efibootmgr -v` does"
    elif (
        any(row.guid for row in rows)
        and text.disks.part
        and not all(text.where(row.guid) for row in rows if row.guid)
    ):
        yield f"could not judge whether all entries lead to a disk: `{text.disks.part[:60]}` shows a part of them"
    elif any(row.guid for row in rows) and not text.disks.with_column("partuuid"):
        yield "could not judge whether the disks of the entries are there: `lsblk -o NAME,FSTYPE,UUID,PARTUUID,MOUNTPOINTS` shows it"
