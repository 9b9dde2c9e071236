"""Parser of kernel log lines into events: faults reported by the NVIDIA driver, the PCI and block layers, and the memory manager.

:func:`parse` is pure. It takes the records of /dev/kmsg, entries of `journalctl -o json`, files of syslog with any stamp, and the output of
dmesg, and recognizes the format of each line. Only the kernel's own messages count: records of another facility and lines with another
syslog tag are skipped, since programs quote the kernel. A message must *begin* as the kernel begins it.

Most forms of messages are data: rows of facts/log_lines.yml, which has the driver source of each, what it means and who repairs it. To add one,
add a row there (docs/adding.md). A reader of its own (`_OTHERS` and the methods for Xid, SXid and AER) is for messages whose numbers decide.

Sources of the formats: open-gpu-kernel-modules 595.45.04 (kernel_rc.c, osapi.c, gpu.c; nvswitch_event.h), Linux drivers/pci/pcie/aer.c, pci.c,
block/blk-core.c, mm/oom_kill.c, kernel/hung_task.c, drivers/edac/edac_mc.c, Documentation/ABI/testing/dev-kmsg, and the lines of real machines
in tests/cases/logs.
"""

from __future__ import annotations

import json

from ..ground import log_lines
from ..ground.optional import group
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple, Union

    Row = Dict[str, Any]

LONGEST = 240  # characters of a line that are kept
SEEN = 4096  # messages that are known again without being read
ROWS = 400  # kinds of events that are kept apart; any more are counted as `dropped`
# Parameters that keep two rows of a kind apart, in a capture too.
APART = (
    "severity",
    "device",
    "interface",
    "slot",
    "driver",
    "cgroup",
    "controller",
    "id",
    "subject",
)
NAMES = 8  # process names and numbers that one event keeps

# A line without any of these is skipped. Whole buffers are searched for them, at a few milliseconds per megabyte and mark.
MARKS = (
    b"SXid",
    b"rror",  # Error, error: of disks, of PCIe, of hardware, of a probe
    b"fail",
    b"Failed",
    b"eset",
    b"imeout",
    b"imed out",
    b"nable to",
    b"ink ",
    b"oom-kill:",
    b" [nvidia",
    b"health ",
    b"irmware recovery",
    b"ing path",
    b"non-",
    b"containment",
    b"readonly",  # btrfs_info
)
# Those of messages that the kernel writes as notice or worse (`pr_err`, `dev_warn`, `drm_err` and so on, or without a level, which is
# warning): the ring's records of level info and debug, which most of a boot log has, are not searched for them.
LOUD = (
    b"ERROR",
    b"orruption",
    b"EDAC ",
    b"Loading of ",
    b"blocked for",
    b"ut of memory",
    b" [#",
    b"BUG",
    b"LOCKUP",
    b"RIP: ",
    b" fault",
    b"FAULT",
    b"emperature",
    b"symbol ",
    b"version magic",
    b"ersion mismatch",
    b"GPU HANG",
    b"imedout job",
    b"insufficient power",
    b"read-only",
    b"hutting down",  # XFS
    b"unstable",
)
NVRM = b"NVRM: "
# How the driver's lines that matter go on: it can write a hundred thousand others.
NVRM_NEXT = frozenset(
    (b"Xid", b"The", b"GPU", b"API", b"fal", b"RmI", b"rm_", b"has", b"the", b"thi", b"ins", b"BAR")
)
BOOT = b"Linux version "  # the first line of each boot

# Drivers whose failed probes are reported; those of other drivers fail on healthy machines.
DRIVERS = ("nvidia", "nvidia-nvswitch", "amdgpu", "xe", "i915", "mlx5_core", "nvme")
# Seconds in which the lines of one message are written, and in which a boot finds the machine checks of the one before.
MOMENT, BOOT_MOMENTS = 5.0, 10.0
# Services without which a node takes no work, by the 15 characters that the kernel has of a name.
SERVICES = frozenset(
    (
        *(
            "slurmd",
            "munged",
            "kubelet",
            "containerd",
            "dockerd",
            "crio",
            "sshd",
            "dbus-daemon",
            "chronyd",
        ),
        *("systemd-journal", "systemd-udevd", "goldnode-node"),
        *("nvidia-persiste", "nv-fabricmanage", "nvidia-imex", "nv-hostengine"),
    )
)
# NV2080_CTRL_GPU_RECOVERY_ACTION_* (ctrl2080gpu.h), which is NVML's field 230 too.
RECOVERY = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
)

_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
_PATTERNS = {
    "xid": r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)(?: (?P<gi>GPU-I:\d+))?(?: (?P<ci>GPU-CI:\d+))?\): (?P<code>\d+)(?:, ?(?P<rest>.*))?",
    "process": r"pid='?(?P<pid>\d+|<unknown>|)'?(?:, name=(?P<name>[^,]*))?(?:, ?(?P<rest>.*))?",
    "caused": r" caused by previous Xid (\d+)",
    "recovery": r"changed from 0x([0-9a-f]+) \([^)]*\) to 0x([0-9a-f]+) \(",
    "nvlink": r"(?P<unit>[A-Z0-9_/]+) +(?P<word>Fatal|Non-?fatal) +XC\d+ i\d+ Link (?P<link>-?\d+) \((?P<info>0x[0-9a-fA-F]+) (?P<status>0x[0-9a-fA-F]+)",
    "link": r"[Ll]ink (\d+)",
    "place": r"GPC \d+, TPC \d+(?:, SM \d+)?",
    "sxid": r"nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:, ?(?P<rest>.*))?",
    "gpu": r"(?:NVRM: )?(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F]*:?[0-9a-fA-F]+:[0-9a-fA-F]+(?:\.[0-7])?)\b",
    "mismatch": r"API mismatch: the client (?:'(?P<name>[^']*)' \(pid (?P<pid>\d+)\))?(?:\s*(?:NVRM: )?has the version (?P<client>[\w.]+))?",
    "versions": r"NVRM: +has the version ([\w.]+)|NVRM: +(?:this kernel module has the|the) version ([\w.]*\w)",
    "failed": r"NVRM: (?:GPU (?P<address>[0-9a-fA-F:.]+): )?(?P<what>RmInitAdapter|rm_init_adapter) failed!?(?: \((?P<status>[^)]*)\))?",
    "probed": r"(?:(?P<d1>[\w-]+): probe of (?P<a1>[0-9a-f:.]+) failed|(?P<d2>[\w-]+) (?P<a2>[0-9a-f:.]+): probe with driver [\w-]+ failed)"
    r" with error (?P<rc>-?\d+)",
    "device": r"(?:(?P<driver>\S+) )?(?P<address>" + _BDF + r"\.[0-7]): ?(?P<rest>.*)",
    "severity": r"severity=(?P<word>Correct\w+|Uncorrect\w+(?: \((?:Non-Fatal|Fatal)\))?)",
    "received": r"(?:Multiple )?(?P<word>Correct\w+|Uncorrect\w+ \((?:Non-Fatal|Fatal)\)) error (?:message )?received(?: from|:)?"
    r" ?(?P<address>" + _BDF + r"[.:][0-7])?",
    "limited": r"(?P<gbps>[\d.]+) Gb/s available PCIe bandwidth, limited by (?P<link>[^()]* link) at (?P<at>\S+) \(capable of (?P<capable>[\d.]+) Gb/s",
    "io": r"(?:\w+: )?(?:I/O|critical [\w ]+|[\w-]+) error, dev (?P<a>[\w!/-]+),|Buffer I/O error on dev(?:ice)? (?P<b>[\w!/-]+)"
    r"|[\w-]+ \((?P<c>[\w!/-]+)\): .*(?:I/O error|[Cc]orruption)|[\w-]+ error \(device (?P<d>[\w!/-]+)\)"
    r"|nvme (?P<e>nvme\d+): .*(?:timeout, |controller is down)",
    "edac": r"EDAC (?P<controller>\w+): (?P<number>\d+) (?P<word>CE|UE)\b(?:.* on (?P<label>[^()]+?) \()?",
    "dimm": r"(?:DIMM location: ?(?!not present)|fru_text: )(.+?)(?: page:.*|$)",
    "bank": r"Machine Check(?: Exception)?: [0-9a-fA-F]+ Bank \d+: ([0-9a-fA-F]{16})",
    "down": r"(?:\S+ (?P<address>"
    + _BDF
    + r"\.[0-7]):? )?(?:(?P<port>[\w.@-]+): )?(?:.*: ?)?(?:[\w.@-]+ )*[Ll]ink (?:is )?(?:down|Down|DOWN)\b(?!/Up)",
    "program": r"[\w.@/-]+\[\d+\]: ",
    "hung": r"INFO: task (?P<name>.*):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds",
    "oom": r"(?P<cgroup>Memory cgroup o|O)ut of memory(?: \([^)]*\))?: Kill(?:ed)? process (?P<pid>\d+),? \((?P<name>.*?)\)",
    # Written before the line above: who has the memory of the process (mm/oom_kill.c, dump_global_header and others).
    "victim": r"oom-kill:.*,task_memcg=/system\.slice/(?P<unit>[^/,]+\.service)(?:/[^,]*)?,task=.*,pid=(?P<pid>\d+),",
    # An oops, and the function in which it, or a lockup, was. A module is named for what is not in the kernel's image.
    "crash": r"(?:(?:NMI )?watchdog: |BUG: |CPU\d+: )*(?:(?P<lockup>soft lockup - CPU#\d+ stuck for \d+s!|Watchdog detected hard LOCKUP)"
    r"|(?P<die>[A-Za-z][\w ,-]*:.* \[#\d+\])|unable to handle .*(?:page fault|paging request|NULL pointer)|kernel NULL pointer deref|kernel BUG at )",
    "module": r"(?:RIP: [\da-f]+:(?:\[<\w+>\] *)*|\? )?[\w.]+\+0x[\da-f]+/0x[\da-f]+ \[(\w+)",
    # The text that drivers put before their message: dev_printk, netdev_printk and DRM's macros.
    "board": r"(?:(?P<name>[\w-]+) )?(?P<address>"
    + _BDF
    + r"\.[0-7])(?: (?P<port>[\w.@-]+)(?: \(un\w+\))?)?: ?(?P<rest>.*)",
    "macro": r"(?:\[drm[^\]]*\]{1,2} ?)?(?:\*ERROR\* )?",
    "nvgpu": r"NVRM: (?:GPU\d+ |GPU(?: at)? (?:PCI:)?(?P<address>[0-9a-fA-F:.]+): )?(?P<rest>.*)",
    # The prefix that files and tools put before the kernel's message.
    "caller": r"(?:\[ *[TC]\d+\] ?)",
    "uptime": r"\[ *(\d+\.\d+)\]",
    "dmesg": r"(?:kern *: *\w+ *: *)?(?:\[[^\]]*\]|\d{4}-\d\d-\d\dT\S+)(?:\[ *[TC]\d+\])? ",
    "facility": r"(\w+) *: *(?:emerg|alert|crit|err|warn|notice|info|debug) *: ",
    "talos": r"\S+: (\w+): +\w+: \[([^\]]*)\]: ",
}
_compiled: Dict[str, Any] = {}


def _re(name: str, pattern: str = "") -> Any:
    """Return a compiled pattern by its name: of _PATTERNS, or the one that is given.

    Most are never needed on a healthy node, so each is compiled at first use.
    """
    compiled = _compiled.get(name)
    if compiled is None:
        import re

        compiled = _compiled[name] = re.compile(pattern or _PATTERNS[name])
    return compiled


def clean(text: str) -> str:
    """Return the text without control characters, bidirectional marks and other unprintable characters, with
    at most LONGEST characters.
    """
    return "".join(c if c.isprintable() else " " for c in text[: 2 * LONGEST]).strip()[:LONGEST]


def address(text: str) -> Optional[str]:
    """Return a PCI address in sysfs form; the driver omits the function, and a GPU is function 0. None if the
    text has none.
    """
    body, _, function = text.strip().lower().partition(".")
    parts = body.split(":")
    if len(parts) == 4 and not function:  # 0000:00:03:0, as some kernels print it
        function = parts.pop()
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus, slot = (int(part, 16) for part in parts)
        number = int(function or "0", 8)
    except ValueError:
        return None
    if bus > 0xFF or slot > 0x1F or number > 7 or domain > 0xFFFFFFFF:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{number}"


def unescape(text: str) -> str:
    """Replace \\xNN, which /dev/kmsg writes for everything but printable ASCII
    (Documentation/ABI/testing/dev-kmsg).
    """
    if "\\x" not in text:
        return text
    parts = text.split("\\x")
    out = bytearray(parts[0].encode("utf-8", "replace"))
    for part in parts[1:]:
        try:
            out.append(int(part[:2], 16))
            out += part[2:].encode("utf-8", "replace")
        except ValueError:
            out += b"\\x" + part.encode("utf-8", "replace")
    return out.decode("utf-8", "replace")


def writer(text: str) -> str:
    """Return who wrote a message: the driver, or the first word of a line without a device. Most lines end here, so no pattern is needed."""
    if text[:5] == "[drm:":
        return text.partition("]")[0].rpartition("[")[2]
    at = 4 * (text[:4] == "[drm")  # old kernels write `[drm] ` alone
    while at < len(text) and (text[at].isalnum() or text[at] in "_-"):
        at += 1
    return text[:at].lstrip("[")


def head(name: str, text: str) -> Tuple[Optional[str], Optional[str], str]:
    """Split a message into PCI address, port, and what is left for a form of facts/log_lines.yml.

    That is the complete text for one without a device, without `WORD: ` at its beginning.

    :param name: :func:`writer` of it.
    """
    board = _re({"NVRM": "nvgpu"}.get(name, "board")).match(text)
    where, port, rest = None, None, text
    if board:
        where, rest = address(board.group("address") or ""), board.group("rest")
        port = board.groupdict().get("port")
    if rest.startswith(name + ": "):  # amdgpu writes its name twice, and `WORD: ` of others
        rest = rest[len(name) + 2 :]
    return where, port, rest[_re("macro").match(rest).end() :]


# Words of the kernel for a machine check that was not corrected, in lower case.
UNCORRECTED = (
    "event severity: fatal",
    "event severity: recoverable",
    "uncorrected",
    "fatal machine check",
)


class LogEvent(NamedTuple):
    """Event that a line of the log reports. Lines with the same kind, code, address, MIG instance and `qualifier` share a row.

    :param qualifier: another property that keeps two events apart.
    :param weak: the line accompanies another one, and counts only without it.
    """

    kind: str
    where: Optional[str] = None
    code: Optional[int] = None
    parameters: Optional[Row] = None
    fatal: Optional[bool] = None
    mig: Optional[str] = None
    qualifier: Optional[str] = None
    weak: bool = False

    @property
    def key(self) -> Tuple[Any, ...]:
        """Return what lines of one row share."""
        return (self.kind, self.code, self.where, self.mig, self.qualifier)


class LogParser:
    """Parser of records, one by one. It stores one row per kind, code, address and other distinguishing
    values.
    """

    def __init__(self, boot_id: Optional[str] = None) -> None:
        self.boot_id = boot_id
        self.rows: Dict[Tuple[Any, ...], Row] = {}
        self.dropped = 0
        self.boots = 0  # how many times a boot began in these lines
        self.last_seq: Optional[int] = None
        # message -> its row (None: not an event), and whether the row is weak; a storm repeats the same message
        self._seen: Dict[str, Tuple[Optional[Row], bool]] = {}
        self._weak = False
        # The GPU that an earlier line has named, of a message of several lines.
        self._gpu: Optional[str] = None
        self._gpu_age = 0
        self._mismatch: Optional[Row] = None
        # Rows that the lines after them complete, and when they were written.
        self._crash: Optional[Row] = None
        self._hardware: Optional[Row] = None
        self._victim: Tuple[int, str] = (0, "")
        self._begun: Dict[str, Tuple[Optional[float], Optional[str]]] = {}
        self.seq: Optional[int] = None
        self.uptime: Optional[float] = None
        self.stamp: Optional[str] = None

    # -- what a line is

    def line(self, raw: Union[bytes, str]) -> None:
        """Parse one record, entry or line, in any of the forms."""
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        text = text.rstrip("\r\n")
        first = text[:1]
        self.seq = self.uptime = self.stamp = None
        if first.isdigit():
            head, semicolon, rest = text.partition(";")
            fields = head.split(",")
            if semicolon and len(fields) > 3 and all(field.isdecimal() for field in fields[:3]):
                self.record(int(fields[0]), int(fields[1]), int(fields[2]), rest)
                return
        if first == "{":
            self.entry(text)
            return
        message = self.bare(text)
        if message is not None:
            self.message(message)

    def record(self, priority: int, seq: int, usec: int, text: str) -> None:
        """Parse a record of /dev/kmsg. The kernel ensures that user space cannot write records of facility 0."""
        self.last_seq = seq if self.last_seq is None else max(seq, self.last_seq)
        if priority >> 3:
            return
        self.seq, self.uptime, self.stamp = seq, usec / 1e6, None
        # Properties follow the text on lines that begin with a space.
        self.message(unescape(text.partition("\n")[0]))

    def entry(self, text: str) -> None:
        """Parse an entry of the journal, as `journalctl -o json` prints it."""
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            return
        if (
            not isinstance(entry, dict)
            or str(entry.get("SYSLOG_FACILITY", "0")) != "0"
            or entry.get("_TRANSPORT", "kernel") != "kernel"
        ):
            return
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # not UTF-8
            try:
                message = bytes(message).decode("utf-8", "replace")
            except (TypeError, ValueError):
                return
        if not isinstance(message, str):
            return
        try:
            self.uptime = int(entry["_SOURCE_MONOTONIC_TIMESTAMP"]) / 1e6
        except (KeyError, TypeError, ValueError):
            self.uptime = None
        self.message(message)

    def bare(self, text: str) -> Optional[str]:
        """Return the kernel's message in a line of a file or of a tool's output; None if another program
        wrote it.
        """
        head, tag, rest = text.partition(" kernel: ")
        if tag:
            words = head.split()
            # A stamp and a host name: a colon at the end of a word is another program's tag, which quotes.
            if len(words) > 7 or any(word.endswith(":") for word in words):
                return None
            self.stamp = clean(" ".join(words[:-1]))[:40] or None
            text = rest
        elif text.lstrip()[:7] == "kernel:":  # without a space as `wall` shows it
            text = text.partition("kernel:")[2]
        else:
            talos = _re("talos").match(text)
            facility = _re("facility").match(text)
            reported = talos or facility
            if reported and reported.group(1) != "kern":
                return None
            if talos:
                self.stamp = clean(talos.group(2))[:40]
                text = text[talos.end() :]
        text = text.lstrip()
        if text[:1] == "<" and ">" in text[:6]:  # dmesg --raw
            priority, _, rest = text[1:].partition(">")
            if not priority.isdigit() or int(priority) >> 3:
                return None
            text = rest
        match = _re("uptime").match(text)
        if match:
            self.uptime = float(match.group(1))
        match = _re("dmesg").match(text)
        if match:
            if self.uptime is None and self.stamp is None:
                self.stamp = clean(match.group().strip().strip("[]"))[:40]
            text = text[match.end() :].lstrip()
            match = _re("caller").match(text)
            if match:
                text = text[match.end() :]
        return text

    # -- what it says

    def message(self, text: str) -> None:
        """Parse a message of the kernel, which may have several lines."""
        if text[:14] == "Linux version ":
            self.boots += 1
            self.rows.clear()
            self._seen.clear()
            self.dropped = 0
            self._gpu = self._crash = self._hardware = None
            self._begun.clear()
            return
        known = self._seen.get(text)
        if known is not None:
            if known[0] is not None:
                self.again(known[0], known[1])
            return
        text = text[:4096]
        if _re("program").match(text):  # a program that speaks through the kernel's log
            return
        if "\n" in text:
            for part in text.split("\n"):
                self.parse_text(part.strip())
            return
        self._weak = False
        row = self.parse_text(text.strip())
        # Lines of a message of several are read each in its place; Xid 45 counts each by whether it names a cause.
        alone = row["code"] != 45 if row is not None else text[:5] != "NVRM:"
        if alone and len(self._seen) < SEEN:
            self._seen[text] = row, self._weak

    def parse_text(self, text: str) -> Optional[Row]:
        """Return the event of one line, None if the line has no known event."""
        if text[:5] == "NVRM:":
            return self.nvrm(text)
        self._gpu_age += 1
        if self._crash is not None and (text[:4] == "RIP:" or " [nvidia" in text):
            self.module(self._crash, text)
            return None
        if "SXid (" in text:
            return self.sxid(text)
        if "PCIe Bus Error: " in text or " AER: " in text:
            return self.aer(text)
        row = self.listed(text)
        if row is not None:
            return row
        for mark, reader in _OTHERS:
            if mark in text:
                row = reader(self, text)
                if row is not None:
                    return row
        return None

    def nvrm(self, text: str) -> Optional[Row]:
        """Parse a line of the NVIDIA driver."""
        self._gpu_age += 1
        if text[:10] == "NVRM: Xid ":
            return self.xid(text)
        if text[:21] == "NVRM: The NVIDIA GPU ":
            match = _re("gpu").match(text)
            self._gpu, self._gpu_age = (address(match.group(1)) if match else None), 0
        if "fallen off the bus" in text:
            match = _re("gpu").match(text)
            where = self._gpu if self._gpu_age <= 3 else None
            if match:
                where = address(match.group(1))
            return self.note(text, LogEvent("bus_lost", where))
        if "API mismatch" in text:
            match = _re("mismatch").search(text)
            named = match.groupdict() if match else {}
            given = {key: named[key] for key in ("name", "pid", "client") if named.get(key)}
            self._mismatch = self.note(text, LogEvent("api_mismatch", parameters=_numbers(given)))
            return self._mismatch
        if self._mismatch is not None and "version" in text:
            for match in _re("versions").finditer(text):
                parameters = self._mismatch["parameters"]
                if match.group(1):
                    parameters.setdefault("client", clean(match.group(1)))
                else:
                    parameters.setdefault("module", clean(match.group(2)))
            return None
        if "nitAdapter failed" in text or "init_adapter failed" in text:
            match = _re("failed").match(text)
            if match:
                parameters = {"status": match.group("status")} if match.group("status") else {}
                where = address(match.group("address") or "")
                # Two kernel functions report the same failure, one after the other.
                second = match.group("what") == "rm_init_adapter"
                event = LogEvent("init_failed", where, parameters=parameters, weak=second)
                return self.note(text, event)
        if "probe routine failed" in text:
            event = LogEvent("probe_failed", parameters={"driver": "nvidia"}, weak=True)
            return self.note(text, event)
        return self.listed(text)

    def listed(self, text: str) -> Optional[Row]:
        """Return the event of a line that facts/log_lines.yml lists.

        Named groups of the form are its address, its subject and its parameters; without an address, the board that the
        lines before have named is taken (a message of several lines).
        """
        name = writer(text)
        forms = log_lines.of(name)
        if not forms:
            return None
        where, port, rest = head(name, text)
        for form in forms:
            match = form.mark in rest and _re("row " + form.id, form.form).match(rest)
            if match and _multiple(match):
                parameters: Row = match.groupdict()
                where = address(parameters.pop("address", None) or "") or where
                if where is None and name == "NVRM" and self._gpu_age <= 3:
                    where = self._gpu
                event = LogEvent("line", where, qualifier=f"{form.id} {parameters.get('subject')}")
                row = self.rows.get(event.key)
                if row is None:
                    given = {key: clean(value)[:40] for key, value in parameters.items() if value}
                    given["id"] = form.id
                    if port:
                        given["interface"] = port
                    return self.note(text, event._replace(parameters=given))
                self.again(row, False)  # a storm differs in numbers only
                return row
        return None

    def xid(self, text: str) -> Optional[Row]:
        """Parse `Xid (PCI:0000:18:00[ GPU-I:05[ GPU-CI:00]]): 31, [pid=…, name=…, ]…[ caused by previous Xid
        94]` (kernel_rc.c).
        """
        match = _re("xid").match(text)
        if not match:
            # An unknown form is reported, never skipped.
            return self.note(text, LogEvent("xid", None)) if text[:11] == "NVRM: Xid (" else None
        code = int(match.group("code"))
        rest = match.group("rest") or ""
        parameters: Row = {}
        process = _re("process").match(rest)
        if process:
            if process.group("pid").isdigit():
                parameters["pid"] = int(process.group("pid"))
            name = clean(process.group("name") or "")
            if name and name != "<unknown>":
                parameters["name"] = name
            rest = process.group("rest") or ""
        caused = _re("caused").search(" " + rest)
        fatal = None
        if code == 154:
            changed = _re("recovery").search(rest)
            number = int(changed.group(2), 16) if changed else -1
            parameters["recovery"] = RECOVERY[number] if 0 <= number < len(RECOVERY) else "unknown"
        elif 144 <= code <= 150:
            nvlink = _re("nvlink").search(rest)
            if nvlink:
                fatal = nvlink.group("word") == "Fatal"
                parameters.update(
                    unit=nvlink.group("unit"),
                    links=[int(nvlink.group("link"))],
                    intrinfo=nvlink.group("info"),
                    status=nvlink.group("status"),
                )
        elif code == 13:
            place = _re("place").search(rest)
            if place:
                parameters["places"] = [place.group()]
        elif code == 74:
            mild = "on-fatal" in rest or "onfatal" in rest
            fatal = True if "atal error" in rest and not mild else None
            links = _re("link").findall(rest)
            if links:
                parameters["links"] = sorted({int(link) for link in links})
        row = self.note(
            text,
            LogEvent(
                "xid",
                where=address(match.group("address")),
                code=code,
                parameters=parameters,
                fatal=fatal,
                mig="/".join(filter(None, match.group("gi", "ci"))) or None,
            ),
        )
        if code == 45 and row is not None:  # alone it means another thing than after another
            causes = row["parameters"].setdefault("caused_by", [])
            if caused and int(caused.group(1)) not in causes:
                causes.append(int(caused.group(1)))
            elif not caused:
                row["parameters"]["alone"] = row["parameters"].get("alone", 0) + 1
        elif caused and row is not None:
            row["parameters"].setdefault("caused_by", []).append(int(caused.group(1)))
        return row

    def sxid(self, text: str) -> Optional[Row]:
        """Parse `nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 …`. Lines of data follow
        with the same code.
        """
        match = _re("sxid").match(text)
        if not match:
            return self.note(text, LogEvent("sxid")) if text[:15] == "nvidia-nvswitch" else None
        rest = match.group("rest") or ""
        fatal = True if rest[:5] == "Fatal" else None
        if rest[:9] == "Non-fatal":
            fatal = False
        parameters: Row = {}
        if fatal is not None:
            links = sorted({int(link) for link in _re("link").findall(rest)})
            if links:
                parameters["links"] = links
        # A line without the word is one of the lines of data that follow.
        where, code = address(match.group("address")), int(match.group("code"))
        event = LogEvent("sxid", where, code, parameters, fatal, weak=fatal is None)
        return self.note(text, event)

    def aer(self, text: str) -> Optional[Row]:
        """Parse `DRIVER ADDRESS: [AER: ]PCIe Bus Error: severity=…` of the device, and `… error [message]
        received …` of the port.
        """
        device = _re("device").match(text)
        if not device:
            return None
        bus = _re("severity").search(device.group("rest"))
        received = None if bus else _re("received").search(device.group("rest"))
        reported = bus or received
        if not reported:
            return None
        word = reported.group("word")
        severity = "nonfatal"
        if word[:1] == "C":
            severity = "corrected"
        elif "Fatal" in word and "Non-Fatal" not in word:
            severity = "fatal"
        where = (received.group("address") if received else None) or device.group("address")
        parameters: Row = {"severity": severity}
        kind = device.group("rest").partition("type=")[2].partition(",")[0]
        if bus and kind:
            parameters["type"] = clean(kind)[:40]
        event = LogEvent("aer", address(where), None, parameters, severity == "fatal")
        # The port reports that an error has come; the device's own line has the error.
        return self.note(text, event._replace(qualifier=severity, weak=not bus))

    def probe(self, text: str) -> Optional[Row]:
        match = _re("probed").match(text)
        driver = match and (match.group("d1") or match.group("d2"))
        if not match or driver not in DRIVERS:
            return None
        parameters = {"driver": driver, "status": int(match.group("rc"))}
        where = address(match.group("a1") or match.group("a2"))
        event = LogEvent("probe_failed", where, parameters=parameters, qualifier=driver)
        return self.note(text, event)

    def limited(self, text: str) -> Optional[Row]:
        device, match = _re("device").match(text), _re("limited").search(text)
        if not match or not device:
            return None
        parameters = {
            "gbps": float(match.group("gbps")),
            "capable_gbps": float(match.group("capable")),
            "link": clean(match.group("link")),
            "at": address(match.group("at")),
        }
        where = address(device.group("address"))
        return self.note(text, LogEvent("bandwidth_limited", where, parameters=parameters))

    def gone(self, text: str) -> Optional[Row]:
        device = _re("device").match(text)
        if not device or "inaccessible" not in text:
            return None
        where, parameters = address(device.group("address")), {"driver": device.group("driver")}
        return self.note(text, LogEvent("bus_lost", where, parameters=parameters))

    def amd(self, text: str) -> Optional[Row]:
        device = _re("device").match(text)
        if not device or device.group("driver") != "amdgpu" or "Fatal error" not in text:
            return None
        where = address(device.group("address"))
        return self.note(text, LogEvent("init_failed", where, parameters={"driver": "amdgpu"}))

    def storage(self, text: str) -> Optional[Row]:
        match = _re("io").match(text)
        name = next(filter(None, match.groups()), "") if match else ""
        if not name or name[:2] in (
            "fd",
            "sr",
        ):  # drives without a medium: healthy machines have such errors
            return None
        return self.note(text, LogEvent("io_error", parameters={"device": name}, qualifier=name))

    def machine(self, text: str) -> Optional[Row]:
        match = _re("edac").match(text)
        if match:
            bad = match.group("word") == "UE"
            severity = "uncorrected" if bad else "corrected"
            parameters: Row = {"controller": match.group("controller"), "severity": severity}
            parameters["errors"] = int(match.group("number"))
            label = match.group("label") or ""
            if label[:7] in ("", "unknown", "any mem"):
                dimm = _re("dimm").search(text)
                label = group(dimm) or ""
            if label:
                parameters["subject"] = clean(label)[:40]
            qualifier = f"EDAC {severity} {match.group('controller')} {label}"
            return self.note(
                text, LogEvent("mce", None, None, parameters, bad, qualifier=qualifier)
            )
        if text[:24] == "BERT: Error records from":
            self._begun["bert"] = (self.uptime, self.stamp)
            return None
        at = text.find("[Hardware Error]: ")
        if not 0 <= at <= 8:  # after `mce: ` or a number
            return None
        if at == 0 and self.together("bert"):
            return self.previous(text)
        low = text.lower()
        dimm = _re("dimm").search(text)
        if dimm and self._hardware is not None:
            self._hardware["parameters"].setdefault("dimm", clean(dimm.group(1))[:40])
        bank = _re("bank").search(text)
        if bank:
            # MCi_STATUS: bit 61 is set where the error was not corrected (Intel SDM volume 3, machine-check
            # architecture).
            bad = bool(int(bank.group(1), 16) >> 61 & 1)
            if bad and "Exception" not in text and (self.uptime or 99) < BOOT_MOMENTS:
                return self.previous(text)  # registers that the restart has left
            severity = "uncorrected" if bad else "corrected"
            event = LogEvent(
                "mce", parameters={"severity": severity}, fatal=bad, qualifier=severity
            )
            return self.note(text, event)
        severity = "corrected" if "correct" in low else "unknown"
        bad = any(mark in low for mark in UNCORRECTED)
        if bad:
            severity = "uncorrected"
        event = LogEvent("mce", parameters={"severity": severity}, fatal=bad or None)
        # A line without a severity goes with the one that has it.
        row = self.note(text, event._replace(qualifier=severity, weak=severity == "unknown"))
        self._hardware = row if severity != "unknown" else self._hardware
        return row

    def previous(self, text: str) -> Optional[Row]:
        """Parse a record of an error that ended the previous boot: firmware's (BERT), or a machine check that is left."""
        parameters: Row = {"severity": "previous boot"}
        for mark, name in (("event severity: ", "worst"), ("section_type: ", "section")):
            if mark in text:
                parameters[name] = clean(text.partition(mark)[2])[:40]
        if "Machine Check" in text:
            parameters.update(worst="fatal", section="machine check")
        return self.note(text, LogEvent("mce", parameters=parameters, qualifier="previous boot"))

    def together(self, name: str) -> bool:
        """Return whether this line belongs to the message that began with a line of this name: both are of one moment."""
        begun = self._begun.get(name)
        if begun is None:
            return False
        if self.uptime is not None and begun[0] is not None:
            return abs(self.uptime - begun[0]) <= MOMENT
        return self.stamp == begun[1]

    def crash(self, text: str) -> Optional[Row]:
        """Parse the line of an oops or a lockup. Lines that follow name the module, :meth:`module`."""
        match = _re("crash").match(text)
        if not match:
            return None
        kind = "lockup" if match.group("lockup") else "oops"
        # A line about the cause goes before the one that has the number of the oops.
        weak = kind == "oops" and not match.group("die")
        row = self.note(text, LogEvent(kind, weak=weak))
        self._crash, self._begun["crash"] = row, (self.uptime, self.stamp)
        return row

    def module(self, row: Row, text: str) -> None:
        """Store the module of the function where an oops or a lockup was: a GPU's driver before any other."""
        match = _re("module").match(text) if self.together("crash") else None
        if match and not str(row["parameters"].get("module")).startswith(("nvidia", "amdgpu")):
            row["parameters"]["module"] = match.group(1)

    def down(self, text: str) -> Optional[Row]:
        if "SATA link" in text or text[:4] == "usb ":
            return None
        match = _re("down").match(text)
        if not match or not (match.group("address") or match.group("port")):
            return None
        slot = text.partition("Slot(")[2].partition(")")[0] if "pciehp" in text else ""
        parameters: Row = {"interface": clean(match.group("port") or "")[:40] or None}
        if slot:
            parameters = {"slot": clean(slot)[:40]}
        where = address(match.group("address") or "")
        event = LogEvent("link_down", where, parameters=parameters, qualifier=str(parameters))
        return self.note(text, event)

    def hung(self, text: str) -> Optional[Row]:
        match = _re("hung").match(text)
        if not match:
            return None
        parameters = {"pid": int(match.group("pid")), "name": clean(match.group("name"))[:40]}
        return self.note(text, LogEvent("hung_task", parameters=parameters))

    def memory(self, text: str) -> Optional[Row]:
        victim = _re("victim").match(text)
        if victim:
            self._victim = (int(victim.group("pid")), clean(victim.group("unit"))[:40])
        match = _re("oom").match(text)
        if not match:
            return None
        group = match.group("cgroup") != "O"
        pid, name = int(match.group("pid")), clean(match.group("name"))[:40]
        parameters: Row = {"pid": pid, "name": name, "cgroup": group}
        service = name if name in SERVICES and not group else None
        if self._victim[0] == pid:
            service = self._victim[1]
        if service:
            parameters["subject"] = service
        event = LogEvent("oom", None, parameters=parameters, qualifier=f"{group} {service}")
        return self.note(text, event)

    # -- rows

    def note(self, text: str, event: LogEvent) -> Optional[Row]:
        """Count one line."""
        kind, where, code, parameters, fatal, mig, _, weak = event
        self._weak = weak
        key = event.key
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= ROWS:
                self.dropped += 1
                return None
            row = self.rows[key] = {
                "kind": kind,
                "code": code,
                "address": where,
                "mig": mig,
                "seq": self.seq,
                "uptime_s": self.uptime,
                "boot_id": self.boot_id,
                "count": 0,
                "last_seq": self.seq,
                "last_uptime_s": self.uptime,
                "fatal": fatal,
                "text": clean(text),
                "parameters": {},
                "_strong": 0,
                "_weak": weak,
            }
            if self.uptime is None and self.stamp:
                row["time"] = self.stamp
        if not weak and row["_weak"]:  # the line itself, after those that go with it
            row["_weak"], row["text"] = False, clean(text)
        if fatal is not None:
            row["fatal"] = bool(row["fatal"]) or fatal
        self.again(row, weak)
        for name, value in (parameters or {}).items():
            self.keep(row["parameters"], name, value)
        return row

    def again(self, row: Row, weak: bool) -> None:
        """Count one line of a row."""
        row["_strong"] += not weak
        row["count"] = max(row["_strong"], 1)
        self.place(row)

    def place(self, row: Row) -> None:
        if self.seq is not None:
            row["last_seq"] = self.seq
        if self.uptime is not None:
            row["last_uptime_s"] = self.uptime

    @staticmethod
    def keep(have: Row, name: str, value: Any) -> None:
        """Store a parameter: the first of most kinds, the last recovery action, the sum of errors, and some of
        the links, names and process numbers.
        """
        if name == "recovery":
            have[name] = value
        elif name == "errors":
            have[name] = have.get(name, 0) + value
        elif name in ("links", "places"):
            have[name] = sorted({*have.get(name, []), *value})[:64]
        elif name in ("pid", "name"):
            have.setdefault(name, value)
            others = have.setdefault(name + "s", [])
            if value not in others and len(others) < NAMES:
                others.append(value)
        else:
            have.setdefault(name, value)

    def result(self) -> List[Row]:
        """Return the rows in the order of their first occurrence."""
        return [
            {key: value for key, value in row.items() if key[:1] != "_"}
            for row in self.rows.values()
        ]


_OTHERS: Tuple[Tuple[str, Callable[[LogParser, str], Optional[Row]]], ...] = (
    ("probe ", LogParser.probe),
    ("available PCIe bandwidth, limited by", LogParser.limited),
    ("power state from D3cold", LogParser.gone),
    ("GPU init", LogParser.amd),
    ("blocked for more than", LogParser.hung),
    ("ut of memory", LogParser.memory),
    ("oom-kill:", LogParser.memory),
    (" [#", LogParser.crash),
    ("BUG", LogParser.crash),
    ("LOCKUP", LogParser.crash),
    ("EDAC ", LogParser.machine),
    ("[Hardware Error]", LogParser.machine),
    ("BERT: ", LogParser.machine),
    ("ink ", LogParser.down),
    ("rror", LogParser.storage),
    ("orruption", LogParser.storage),
    ("timeout, ", LogParser.storage),
    ("controller is down", LogParser.storage),
)


def _numbers(parameters: Row) -> Row:
    return {key: int(value) if key == "pid" else clean(value) for key, value in parameters.items()}


def _multiple(match: Any) -> bool:
    """Return whether the number of a group `multiple_of_N` is a multiple of N; true without such a group."""
    return all(
        int(value) % int(name[12:]) == 0
        for name, value in match.groupdict().items()
        if name.startswith("multiple_of_")
    )


def parse(lines: Iterable[Union[bytes, str]], boot_id: Optional[str] = None) -> List[Row]:
    """Return the events in these lines, of the last boot that begins in them. Never raises for the content of
    a line.

    :param lines: records of /dev/kmsg, journal entries in JSON, or lines of text; forms may be mixed.
    :param boot_id: the boot of the lines, if known.
    """
    parser = LogParser(boot_id)
    for line in lines:
        parser.line(line)
    return parser.result()


def candidates(data: bytes) -> List[bytes]:
    """Return the lines of a log that may hold an event, in order.

    A search for MARKS in the complete log finds them, and one for LOUD in what is not of level info or debug.
    """
    if data[1:2] != b"," or not data[:1].isdigit():
        starts = _search(data, (NVRM, *MARKS, BOOT, *LOUD))
        return [data[start : starts[start]] for start in sorted(starts)]
    rows = data.split(b"\n")
    loud = b"\n".join([row for row in rows if row[:2] not in (b"6,", b"7,")])
    lines: Set[bytes] = set()
    for part, marks in ((data, (NVRM, *MARKS, BOOT)), (loud, LOUD)):
        lines.update(part[start:end] for start, end in _search(part, marks).items())
    if len(lines) > len(rows) // 8:  # a storm
        return [row for row in rows if row in lines]
    return sorted(lines, key=_sequence)


def _search(data: bytes, marks: Iterable[bytes]) -> Dict[int, int]:
    """Return where the lines with one of the marks begin and end."""
    starts: Dict[int, int] = {}
    for mark in marks:
        at = data.find(mark)
        while at >= 0:
            if mark is NVRM and data[at + 6 : at + 9] not in NVRM_NEXT:
                at = data.find(mark, at + 6)
                continue
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            if end < 0:
                end = len(data)
            starts[start] = end
            at = data.find(mark, end)
    return starts


def _sequence(record: bytes) -> Tuple[int, bytes]:
    """Return the number of a record of /dev/kmsg, and the record."""
    number = record[:64].partition(b",")[2].partition(b",")[0]
    return int(number.isdigit() and number), record
