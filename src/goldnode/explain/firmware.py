"""Readers of what the firmware and systemd-boot start: `efibootmgr` with or without -v, `bootctl status` and `bootctl list`.

They judge nothing. Formats: efibootmgr 17 (the path of an entry is shown by -v only) and 18 (always, with the optional
data as digits right behind it), libefivar 37 to 39 (`File(\\…)` or `\\…`), bootctl of systemd 249 to 262.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_GUID = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
_ENTRY = re.compile(r"^\s*Boot(?P<number>[0-9A-Fa-f]{4})(?P<active>\*| )\s?(?P<rest>\S.*)$")
_PATH = re.compile(
    r"\s+(?P<path>(?:HD|PciRoot|Acpi\w*|ACPI|PNP\w+|Ven(?:Hw|Msg|Media)|Vendor|BBS|File|Fv(?:Vol|File)?|MAC|Uri|USB\w*|Usb\w*|NVMe|SATA|Sata"
    r"|SCSI|SD|eMMC|CDROM|MemoryMapped)\(.*|\\\S.*)$"
)
_HD = re.compile(rf"HD\([^)]*?(?P<guid>{_GUID})")
_FILE = re.compile(r"\\[^()]*?\.efi", re.IGNORECASE)
_NETWORK_PATH = re.compile(r"\b(?:MAC|IPv[46]|Uri|Wi-?Fi)\(", re.IGNORECASE)
_NETWORK_NAME = re.compile(
    r"\b(?:i?PXE|IPv?[46]|NIC|LAN|Ethernet|HTTPS? ?Boot|Network|InfiniBand)\b", re.IGNORECASE
)
_VALUE = re.compile(r"^\s*(?P<name>BootCurrent|BootNext|BootOrder|Timeout): (?P<value>.*\S)\s*$")
_DATA = re.compile(r"^\s+(?:dp|data):(?: [0-9a-f]{2}| /)*")
_UNREADABLE = re.compile(
    r"(?:unreadable variable|Could not read variable) [\"']?Boot(?P<number>[0-9A-F]{4})"
)
_FIELD = re.compile(
    r"^\s+(?P<name>Firmware|Firmware Arch|Secure Boot|Setup Mode|TPM2 Support|Measured UKI|Boot into FW|Product|Features|ESP|XBOOTLDR"
    r"|Partition|File|Loader|Stub|Current Entry|Default Entry|Preferred Entry|OneShot Entry|SysFail Entry|Passed to OS|System Token"
    r"|Exists|Title|ID|Status|\$BOOT|token|config|type|title|id|source|tries|sort-key|version|machine-id|architecture|linux|initrd"
    r"|options|efi|uki|uki-url|profile|devicetree|cmdline|extra):(?:\s+(?P<value>.*\S))?\s*$"
)
_SECTION = re.compile(
    r"^(?:System|Current (?:Boot )?(?:Loader|Stub)|Random Seed|Available Boot Loaders on (?:ESP|\$BOOT|XBOOTLDR)|Boot Loaders Listed in EFI Variables"
    r"|Boot Loader Entries|Boot Loader Entry Locations|Default Boot Loader Entry):\s*$"
)
_OF_BOOTCTL = re.compile(
    r"^(?:Current Boot Loader|Available Boot Loaders on|Boot Loaders Listed in EFI|Boot Loader Entr|Default Boot Loader Entry)"
    r"|^\s+type: Boot Loader Specification Type"
)
_MORE = re.compile(r"^\s{8,}(?:[✓✗+x-] |[├└│]─?|/|\S+=)")
_BY_PARTUUID = re.compile(rf"by-partuuid/(?P<guid>{_GUID})")
# mokutil --sb-state
_SECURE_BOOT = re.compile(r"^\s*SecureBoot (?P<state>enabled|disabled)\b")
_STATE = re.compile(
    r"^(?:systemd-boot not installed in ESP|No default/fallback boot loader installed in ESP|Not booted with EFI)\b"
)


# Messages of bootctl about an entry, between its lines.
_UNKNOWN_LINE = re.compile(r"^/\S+\.conf:\d+: ")


@dataclass(frozen=True)
class FirmwareEntry:
    """An entry of the firmware's boot menu. `guid` is that of its partition; `known` whether the text has its path."""

    number: str
    name: str
    active: bool
    line: int  # from 0
    known: bool = False
    guid: str = ""
    file: str = ""
    network: bool = False

    @property
    def fallback(self) -> bool:
        """Return whether it starts the file that a firmware takes without an entry."""
        return bool(re.match(r"\\efi\\boot\\boot\w+\.efi$", self.file, re.IGNORECASE))

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


@dataclass(frozen=True)
class MenuEntry:
    """An entry of systemd-boot's menu, as bootctl lists it. `file` has the counter of its tries."""

    file: str
    line: int
    default: bool = False
    left: int | None = None
    options: str = ""


@dataclass
class FirmwareMenu:
    """The boot menu of the firmware and the state of systemd-boot in a text. Empty values are unknown."""

    forms: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    entries: dict[str, FirmwareEntry] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    current: str = ""
    next: str = ""
    unreadable: list[str] = field(default_factory=list)
    line: int = 0  # of BootOrder, or of the first line that was read
    secure_boot: str = ""
    product: str = (
        ""  # the loader that started this boot; "n/a" for one that does not report itself
    )
    loader_guid: str = ""  # partition that it was started from
    esp: str = ""  # where the ESP is mounted
    esp_guid: str = ""
    on_esp: list[str] = field(default_factory=list)
    menu: list[MenuEntry] = field(default_factory=list)
    bootctl: bool = False

    def ordered(self) -> list[FirmwareEntry]:
        """Return the entries that the firmware tries, in its order."""
        rows = [self.entries[number] for number in self.order if number in self.entries]
        return [row for row in rows if row.active]


@dataclass
class _Block:
    """The fields of one entry that bootctl lists, and the number of its first line."""

    line: int = 0
    fields: dict[str, str] = field(default_factory=dict)


def read(lines: Sequence[str]) -> FirmwareMenu:
    """Read the outputs of efibootmgr and bootctl in a text. Of several of efibootmgr the last counts."""
    result = FirmwareMenu()
    _read_efibootmgr(lines, result)
    if any(_OF_BOOTCTL.match(line) for line in lines):
        _read_bootctl(lines, result)
    for number, line in enumerate(lines):
        match = _SECURE_BOOT.match(line)
        if match and result.forms:
            result.secure_boot = match["state"]
            result.used.add(number)
    return result


def _read_efibootmgr(lines: Sequence[str], result: FirmwareMenu) -> None:
    values = [number for number, line in enumerate(lines) if _VALUE.match(line)]
    if not any(re.match(r"\s*Boot(Current|Order|Next):", lines[number]) for number in values):
        return
    entries: dict[int, FirmwareEntry] = {}
    for number, line in enumerate(lines):
        match, unreadable = _ENTRY.match(line), _UNREADABLE.search(line)
        if match:
            entries[number] = _entry(match, number)
        elif unreadable:
            result.unreadable.append(unreadable["number"])
            result.used.add(number)
        elif number - 1 in {*entries, *result.used} and _DATA.match(line):
            result.used.add(number)
    result.forms.append("`efibootmgr`")
    result.used.update(values, entries)
    result.line = values[0]
    result.entries = {entry.number: entry for entry in entries.values()}
    for number in values:
        match = _VALUE.match(lines[number])
        assert match is not None  # noqa: S101 - found above
        value = match["value"].upper()
        if match["name"] == "BootOrder":
            result.order, result.line = value.replace(" ", "").split(","), number
        elif match["name"] == "BootCurrent":
            result.current = value
        elif match["name"] == "BootNext":
            result.next = value


def _entry(match: re.Match[str], line: int) -> FirmwareEntry:
    """Return the entry of a line of efibootmgr."""
    path = _PATH.search(match["rest"])
    name = match["rest"][: path.start()].strip() if path else match["rest"].strip()
    text = path["path"] if path else ""
    disk, file = _HD.search(text), _FILE.search(text)
    by_name = not disk and not file and bool(_NETWORK_NAME.search(name))
    return FirmwareEntry(
        number=match["number"].upper(),
        name=name,
        active=match["active"] == "*",
        line=line,
        known=bool(path),
        guid=disk["guid"].lower() if disk else "",
        file=file.group() if file else "",
        network=bool(_NETWORK_PATH.search(text)) or by_name,
    )


def _read_bootctl(lines: Sequence[str], result: FirmwareMenu) -> None:
    """Read the sections of `bootctl status`, and the entries of it and of `bootctl list`."""
    result.bootctl = True
    result.forms.append("`bootctl`")
    section, block, inside = "", _Block(), False
    firmware_entries = not result.entries  # efibootmgr shows more of them
    for number, line in enumerate(lines):
        head, match = _SECTION.match(line), _FIELD.match(line)
        if (
            head
            or not line.strip()
            or (match and match["name"] in ("type", "Title") and block.fields)
        ):
            _finish(result, section, block, firmware_entries)
            block = _Block()
        if head:
            section, inside = line.strip().rstrip(":"), True
            result.used.add(number)
        elif _STATE.match(line):
            result.used.add(number)
        elif line[:1].strip() and not _UNKNOWN_LINE.search(line):
            inside = False  # a line of something else
        elif match and (inside or match["name"] == "type"):
            inside = True
            result.used.add(number)
            block.line = block.line if block.fields else number
            _take(result, section, block.fields, match["name"], (match["value"] or "").strip())
        elif inside and _MORE.match(line) and number - 1 in result.used:
            result.used.add(number)
            if section.startswith("Available") and re.search(r"\.efi\b", line, re.IGNORECASE):
                result.on_esp.append(line.split("─")[-1].strip())
    _finish(result, section, block, firmware_entries)


def _take(
    result: FirmwareMenu, section: str, fields: dict[str, str], name: str, value: str
) -> None:
    """Take one field of a section."""
    guid = _BY_PARTUUID.search(value)
    if section.startswith("Available") and name == "ESP":
        result.esp = value.split(" ")[0]
        result.esp_guid = guid["guid"].lower() if guid else ""
    elif section.startswith("Available") and name == "File":
        result.on_esp.append(value.split("─")[-1].strip())
    elif section == "System" and name == "Secure Boot":
        result.secure_boot = value.split(" ")[0]
    elif section == "Current Boot Loader" and name == "Product":
        result.product = value
    elif section == "Current Boot Loader" and name in ("ESP", "Partition") and guid:
        result.loader_guid = guid["guid"].lower()
    fields[name] = f"{fields[name]} {value}" if name in fields else value


def _finish(result: FirmwareMenu, section: str, block: _Block, firmware_entries: bool) -> None:
    """Add the entry that a block of fields is, if it is one."""
    fields = block.fields
    if section.startswith("Boot Loaders Listed") and "ID" in fields and firmware_entries:
        number = fields["ID"].removeprefix("0x").upper()
        guid = _BY_PARTUUID.search(fields.get("Partition", ""))
        status = fields.get("Status", "")
        file = fields.get("File", "").split("─")[-1].replace("/", "\\")
        result.entries[number] = FirmwareEntry(
            number=number,
            name=fields.get("Title", ""),
            active=status.startswith("active"),
            line=block.line,
            known=True,
            guid=guid["guid"].lower() if guid else "",
            file=file if file.startswith("\\") else f"\\{file}",
        )
        result.order += [number] if "boot-order" in status else []
    elif "id" in fields and {"source", "linux", "efi"} & set(fields):
        source = fields.get("source", "").split(" (")[0]
        tries = re.match(r"(\d+) left", fields.get("tries", ""))
        title = fields.get("title", "")
        known = {entry.file for entry in result.menu}
        file = (source or fields["id"]).rstrip("/").rsplit("/", 1)[-1]
        if file not in known:
            result.menu.append(
                MenuEntry(
                    file=file,
                    line=block.line,
                    default="(default)" in title or section == "Default Boot Loader Entry",
                    left=int(tries.group(1)) if tries else None,
                    options=fields.get("options", ""),
                )
            )
