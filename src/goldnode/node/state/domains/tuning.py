"""Domain of host tuning: governor, swap, huge pages, NUMA balancing, kernel command line, memlock, MTU.

Each setting has a persistent form (a file of goldnode, or a marked line in a foreign file) and a
live value. Settings without a persistent form (governor, transparent huge pages) are set at every
boot by the unit that applies the policy. In an image, only files are written. In a container the
kernel is the host's, so kernel settings are neither read nor set.
"""

from __future__ import annotations

import re

from ...effective import kmod, sysctl
from ...ground.host import Host, Json
from ...ground.typed import NamedTuple
from ..finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding, judge_item, place
from ..model import BOOT, Action, Note, Observed, Refusal, Waiting
from ..observe import RECORD, load_json
from ..remedy import COMMAND, PERSON, POLICY, REBOOT, REPAIR, SITE, Remedy
from . import kernel
from .files import Wanted
from .units import gpu_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        Any,
        Dict,
        Iterator,
        List,
        Mapping,
        Optional,
        Sequence,
        Tuple,
        TypeAlias,
        Union,
    )

    from ...ground.document import ClassDocument


PART = "host_tuning"
REBOOTED = Remedy("Run site.yml, then reboot the node in its turn.", SITE, REBOOT)
SYSCTL = "/etc/sysctl.d/90-goldnode.conf"
LIMITS = "/etc/security/limits.d/90-goldnode.conf"
SYSTEMD = "/etc/systemd/system.conf.d/goldnode.conf"
CMDLINE = "/etc/default/grub.d/91-goldnode-cmdline.cfg"
UDEV = "/etc/udev/rules.d/90-goldnode-net.rules"
FSTAB = "/etc/fstab"
UNITS = "/etc/systemd/system"
# Values that this boot could not provide although it was asked: {name: {want, got}}
TRIED = "/run/goldnode/tuning.json"
MARK = "# goldnode: "

CPUS = "/sys/devices/system/cpu"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
BALANCING = "/proc/sys/kernel/numa_balancing"
PAGES = "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages"
PAGE_KIB = {"2M": 2048, "1G": 1048576}

# Services that enable swap without swap.target (packages zram-tools, zram-config, dphys-swapfile).
SWAP_SERVICES = ("zramswap.service", "zram-config.service", "dphys-swapfile.service")
# IOMMU parameters (the kernel's kernel-parameters.txt). On x86 the parameters of both vendors are set: each
# driver ignores the other's, and an image is built without knowing its CPU. AMD's IOMMU is on by default. No
# parameter turns Arm's SMMU off.
IOMMU_WORDS: Mapping[str, Mapping[str, Tuple[str, ...]]] = {
    "amd64": {
        "pt": ("intel_iommu=on", "iommu=pt"),
        "on": ("intel_iommu=on", "iommu=nopt"),
        "off": ("intel_iommu=off", "amd_iommu=off"),
    },
    "arm64": {"pt": ("iommu.passthrough=1",), "on": ("iommu.passthrough=0",), "off": ()},
}
# Parameters of the administrator that defeat these, in addition to another value of the same parameter.
IOMMU_AGAINST: Mapping[str, Tuple[str, ...]] = {
    "pt": (
        "iommu=off",
        "intel_iommu=off",
        "amd_iommu=off",
        "iommu.passthrough=0",
        "iommu.strict=1",
    ),
    "on": ("iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu.passthrough=1"),
    "off": ("iommu=force",),
}
PAGE_WORDS = ("hugepages", "hugepagesz", "default_hugepagesz")
# Parameters that may occur more than once.
REPEATED = (
    *PAGE_WORDS,
    "console",
    "earlycon",
    "module_blacklist",
    "modprobe.blacklist",
)
# A live value: text, None if the machine does not have it, or {error} if it could not be read.
Read: TypeAlias = "Union[str, Json, None]"


def policy(document: ClassDocument) -> Mapping[str, Any]:
    """Return the class's host policy, or an empty mapping."""
    return (document.get("policy") or {}).get("host") or {}


# -- observe


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Read the declared host settings, and leftovers of an earlier class outside goldnode's files.

    `seen.tuning` has these keys. Values that were not requested or are not visible from here are
    missing.

    * swap: {fstab: [{line, first, text}], marked: [{line, text}], units: {name:
      masked|free|own}, masked_by_us}
    * swap_active: [{name, used}] in KiB
    * foreign: [{file, line, word}], words of GRUB's configuration in effect that are not goldnode's
    * grub_error: why update-grub would fail at GRUB's configuration, with file and line
    * cmdline: command line of this boot; recorded: words that goldnode added to it
    * later: [{file, line, key, value, want}], settings that override goldnode's
    * memlock: {default, hard, may}
    * memory: {total, available} in KiB
    * tried: {name: {want, got}}
    * live values by name: governor {cpu: value}, governors, transparent_hugepages, numa_balancing,
      hugepages.SIZE, network.IF.mtu, iommu_groups {type: count}
    """
    wanted = policy(document)
    record = load_json(host, RECORD) or {}
    facts: Json = {"swap": _swap(host, wanted, record), "recorded": list(record.get("cmdline", []))}
    # The words about modules that the next boot has are traced to their file (domains/modprobe.py).
    named = any(row.get("file") == kmod.COMMAND_LINE for row in seen.modprobe)
    facts["later"] = [row for row in _overriding(host, wanted) if row["value"] != row["want"]]
    if cmdline_words(document) or facts["recorded"] or named or kernel.DROP_IN in seen.files:
        _grub(host, document, seen, facts)
    if "memlock" in wanted:
        facts["memlock"] = _memlock(host)
    if wanted and place(seen) is None:
        facts.update(_live(host, wanted))
    seen.tuning = facts


def _live(host: Host, wanted: Mapping[str, Any]) -> Json:
    facts: Json = {
        "tried": load_json(host, TRIED) or {},
        "cmdline": (host.text("/proc/cmdline") or "").strip(),
    }
    memory = dict(re.findall(r"^(\w+):\s+(\d+) kB", host.text("/proc/meminfo") or "", re.MULTILINE))
    facts["memory"] = {
        "total": int(memory.get("MemTotal", 0)),
        "available": int(memory.get("MemAvailable", 0)),
    }
    if "governor" in wanted:
        cpus = host.glob(CPUS, "cpu[0-9]*")
        governors = {
            name.rpartition("/")[2]: read(host, f"{name}/cpufreq/scaling_governor") for name in cpus
        }
        facts["governor"] = {name: value for name, value in governors.items() if value is not None}
        offered = next(
            (
                read(host, f"{CPUS}/{name}/cpufreq/scaling_available_governors")
                for name in facts["governor"]
            ),
            None,
        )
        facts["governors"] = offered.split() if isinstance(offered, str) else []
    if "transparent_hugepages" in wanted:
        facts["transparent_hugepages"] = chosen(read(host, THP))
    if "numa_balancing" in wanted:
        facts["numa_balancing"] = read(host, BALANCING)
    for key in wanted.get("sysctl", {}):
        facts[f"sysctl.{key}"] = read(host, sysctl_file(key))
    for size in wanted.get("hugepages", {}):
        facts[f"hugepages.{size}"] = read(host, PAGES.format(PAGE_KIB[size]))
    for name in wanted.get("network", {}):
        facts[f"network.{name}.mtu"] = read(host, f"/sys/class/net/{name}/mtu")
    if "iommu" in wanted:
        kinds = [read(host, f"{name}/type") for name in host.glob("/sys/kernel/iommu_groups", "*")]
        facts["iommu_groups"] = {str(kind): kinds.count(kind) for kind in kinds}
    if wanted.get("swap") is not None:
        rows = [line.split() for line in (host.text("/proc/swaps") or "").splitlines()[1:]]
        facts["swap_active"] = [
            {"name": row[0].replace("\\040", " "), "used": int(row[3])}
            for row in rows
            if len(row) > 3
        ]
    return facts


def read(host: Host, name: str) -> Read:
    """Return a kernel value as text, None if the file does not exist, or {error} if it cannot be read."""
    try:
        text = host.text(name)
    except OSError as problem:
        return {"error": f"{name}: {problem.strerror}"}
    return None if text is None else text.strip()


def chosen(value: Read) -> Read:
    """Return the selected value of a text such as ``always [madvise] never``."""
    match = re.search(r"\[(\w+)\]", value) if isinstance(value, str) else None
    return match.group(1) if match else value


def _swap(host: Host, wanted: Mapping[str, Any], record: Json) -> Json:
    swap: Json = {
        "fstab": [],
        "marked": [],
        "units": {},
        "masked_by_us": list(record.get("masked", [])),
    }
    for number, line in enumerate((host.text(FSTAB) or "").splitlines(), 1):
        bare = line[len(MARK) :] if line.startswith(MARK) else line
        fields = bare.split()
        if (
            bare.lstrip().startswith("#")
            or len(fields) < 4
            or fields[2] != "swap"
            or "noauto" in fields[3].split(",")
        ):
            continue
        if bare != line:
            swap["marked"].append({"line": number, "text": bare})
        else:
            swap["fstab"].append({"line": number, "first": fields[0], "text": line})
    if wanted.get("swap") is False or swap["masked_by_us"]:
        shipped = {
            name.rpartition("/")[2] for name in host.glob("/usr/lib/systemd/system", "*.swap")
        }
        shipped |= {
            name for name in SWAP_SERVICES if host.exists(f"/usr/lib/systemd/system/{name}")
        }
        own = {name.rpartition("/")[2] for name in host.glob(UNITS, "*.swap")}
        for unit in sorted({"swap.target", *shipped, *own, *swap["masked_by_us"]}):
            here = host.path(f"{UNITS}/{unit}")
            state = "own" if here.is_symlink() or here.exists() else "free"
            if here.is_symlink() and str(here.readlink()) == "/dev/null":
                state = "masked"
            swap["units"][unit] = state
    return swap


def _memlock(host: Host) -> Json:
    """Return systemd's default limit, the hard limit, and whether this machine may raise it.

    Most containers may not. pam_limits would then refuse every login, since it denies the
    session if setrlimit fails.
    """
    default: Read = None
    if host.live and host.exists("/run/systemd/system"):
        shown = host.run("systemctl", "show", "--property=DefaultLimitMEMLOCK", "--value")
        default = shown.out.strip()
        if shown.rc != 0 or not default:
            default = {"error": f"systemctl show: {shown.tail(1)}"}
    hard = re.search(
        r"^Max locked memory\s+\S+\s+(\S+)", host.text("/proc/1/limits") or "", re.MULTILINE
    )
    mask = re.search(r"^CapBnd:\s*([0-9a-f]+)", host.text("/proc/1/status") or "", re.MULTILINE)
    # Bit 24 is CAP_SYS_RESOURCE
    may = not host.live or mask is None or bool(int(mask.group(1), 16) >> 24 & 1)
    return {"default": default, "hard": hard.group(1) if hard and host.live else None, "may": may}


def _grub(host: Host, document: ClassDocument, seen: Observed, facts: Json) -> None:
    """Read GRUB's configuration in effect: add `foreign` and `later` to the facts, and `grub_error`.

    The next update-grub would undo a word or the default of goldnode that a later file replaces.
    """
    from ...effective import grub_defaults  # start-up time: most classes set no words

    own = {file.path: file.content for file in wanted(document, seen) if file.path == CMDLINE}
    default = (seen.files.get(kernel.DROP_IN) or {}).get("content")
    if default and document["kernel"]["release"] == seen.boot.get("release"):
        own[kernel.DROP_IN] = default
    read = grub_defaults.read(host, own)
    names = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
    words = read.words(*names)
    if read.error:
        facts["grub_error"] = read.error
    rows = [
        {"file": word.file, "line": word.line, "word": word.text}
        for word in words
        if word.file != CMDLINE
    ]
    rows = [row for n, row in enumerate(rows) if row not in rows[:n]]
    facts["foreign"] = sorted(rows, key=lambda row: (row["file"], row["line"]))
    if read.error or seen.boot.get("loader") not in (None, "grub"):
        return
    certain = [word.text for word in words if word.certain]
    lost = [word for word in cmdline_words(document) if word not in certain]
    asks = [(names[0], " ".join(lost))] if lost and CMDLINE in own else []
    if kernel.DROP_IN in own and read.places["GRUB_DEFAULT"][0] != kernel.DROP_IN:
        before = grub_defaults.of({kernel.DROP_IN: own[kernel.DROP_IN]})
        if read.text("GRUB_DEFAULT") != before.text("GRUB_DEFAULT"):
            asks.append(("GRUB_DEFAULT", before.text("GRUB_DEFAULT")))
    for name, want in asks:
        file, line = read.places[name]
        row = {"file": file, "line": line, "key": name, "value": read.text(name), "want": want}
        facts["later"].append(row)


def _overriding(host: Host, wanted: Mapping[str, Any]) -> Iterator[Json]:
    """Yield foreign settings that override goldnode's, since their files are read later.

    Each is {file, line, key, value, want}.
    """
    wants = sysctls(wanted)
    own = SYSCTL.rpartition("/")[2]
    for row in sysctl.winners(host, wants).values():
        if row.file.rpartition("/")[2] > own:
            yield {**row._asdict(), "want": wants[row.key]}
    if "memlock" in wanted:
        # limits.conf(5): files are read in the order of the C locale, and the last one wins.
        for name in host.glob("/etc/security/limits.d", "*.conf"):
            for number, line in enumerate((host.text(name) or "").splitlines(), 1):
                fields = line.split("#")[0].split()
                if (
                    name > LIMITS
                    and len(fields) == 4
                    and fields[0] in ("*", "root")
                    and fields[2] == "memlock"
                ):
                    value = "unlimited" if fields[3] in ("-1", "infinity") else fields[3]
                    yield {
                        "file": name,
                        "line": number,
                        "key": "memlock",
                        "value": value,
                        "want": str(wanted["memlock"]),
                    }
        for name in host.glob("/etc/systemd/system.conf.d", "*.conf"):
            for number, line in enumerate((host.text(name) or "").splitlines(), 1):
                match = re.match(r"\s*DefaultLimitMEMLOCK\s*=\s*(\S*)", line)
                if match and name > SYSTEMD:
                    yield {
                        "file": name,
                        "line": number,
                        "key": "memlock",
                        "value": match.group(1),
                        "want": systemd_limit(wanted["memlock"]),
                    }


# -- persistent form


def sysctls(wanted: Mapping[str, Any]) -> Dict[str, str]:
    """Return the kernel parameters of the class.

    vm.nr_hugepages counts pages of the default size, which is 2M unless a kernel parameter changes
    it. Larger pages are reserved on the command line, before memory is fragmented.
    """
    values = {}
    if "2M" in wanted.get("hugepages", {}):
        values["vm.nr_hugepages"] = str(wanted["hugepages"]["2M"])
    if "numa_balancing" in wanted:
        values["kernel.numa_balancing"] = "1" if wanted["numa_balancing"] else "0"
    values.update(wanted.get("sysctl", {}))
    return values


def sysctl_file(key: str) -> str:
    """Return the file of a kernel parameter."""
    return f"/proc/sys/{key.replace('.', '/')}"


def systemd_limit(memlock: Any) -> str:
    """Return a locked-memory limit (KiB, or unlimited) in systemd's format."""
    return "infinity" if memlock == "unlimited" else f"{memlock}K"


def cmdline_words(document: ClassDocument) -> List[str]:
    """Return the words that the class wants on the kernel command line, in order."""
    wanted = policy(document)
    words = list(IOMMU_WORDS[document["os"]["architecture"]].get(wanted.get("iommu", ""), ()))
    if wanted.get("hugepages", {}).get("1G"):
        words += ["hugepagesz=1G", f"hugepages={wanted['hugepages']['1G']}"]
    return words + list(wanted.get("cmdline", []))


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the files of goldnode that this domain wants. Pure."""
    wanted = policy(document)
    files = []

    def own(path: str, lines: List[str], why: str) -> None:
        files.append(
            Wanted(
                path,
                "\n".join(["# goldnode: host policy of the node class", *lines]) + "\n",
                PART,
                why,
            )
        )

    kernel = sysctls(wanted)
    if kernel:
        own(
            SYSCTL,
            [f"{key} = {value}" for key, value in kernel.items()],
            "kernel parameters of the class",
        )
    if "memlock" in wanted and raises(wanted, seen) is None:
        limit = wanted["memlock"]
        own(
            LIMITS,
            # The wildcard does not apply to root (limits.conf(5)).
            [f"{who} {kind} memlock {limit}" for who in ("*", "root") for kind in ("soft", "hard")],
            "limit of locked memory",
        )
        # pam_limits covers logins only. Services get systemd's default.
        own(
            SYSTEMD,
            ["[Manager]", f"DefaultLimitMEMLOCK={systemd_limit(limit)}"],
            "limit of locked memory of services",
        )
    words = cmdline_words(document)
    if words:
        own(
            CMDLINE,
            [f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(words)}"'],
            "kernel command line of the class",
        )
    if wanted.get("network"):
        rules = []
        for name, values in sorted(wanted["network"].items()):
            # NAME is empty if the interface has the kernel's own name.
            for match in (f'NAME=="{name}"', f'NAME=="", KERNEL=="{name}"'):
                rules.append(
                    f'ACTION=="add", SUBSYSTEM=="net", {match}, ATTR{{mtu}}="{values["mtu"]}"'
                )
        own(UDEV, rules, "MTU of interfaces, set after they are named")
    return files


def raises(wanted: Mapping[str, Any], seen: Observed) -> Optional[str]:
    """Return why the locked-memory limit must not be changed here, or None.

    If this machine may not raise it, pam_limits would refuse logins.
    """
    have = seen.tuning.get("memlock") or {}
    hard = have.get("hard")
    if have.get("may", True) or hard in (None, "unlimited"):
        return None
    if wanted["memlock"] != "unlimited" and int(wanted["memlock"]) * 1024 <= int(hard):
        return None
    return (
        f"its hard limit is {int(hard) // 1024} KiB and CAP_SYS_RESOURCE is missing, so that "
        "pam_limits would refuse every login"
    )


# -- live values


class HostSetting(NamedTuple):
    """One live value: the wanted value, the current one, and the files that set it.

    If the value does not exist, `got` is None and `absent` gives the reason. `got` is
    {error} if reading failed.
    """

    name: str
    want: str
    got: Read
    files: Tuple[str, ...]
    absent: str
    outcome: str = NOT_EXPOSED  # used if the value does not exist
    remedy: Remedy = Remedy("Run site.yml, or `goldnode-node policy apply` on the node.", POLICY)


def settings(document: ClassDocument, seen: Observed) -> List[HostSetting]:
    """Return the live values that the class declares and that are visible here. Pure."""
    wanted, live = policy(document), seen.tuning
    rows = []
    if "governor" in wanted and "governor" in live:
        want, cpus = wanted["governor"], live["governor"]
        other = {cpu: value for cpu, value in cpus.items() if value != want}
        files = tuple(
            f"{CPUS}/{cpu}/cpufreq/scaling_governor"
            for cpu in sorted(other, key=lambda cpu: int(cpu[3:]))
        )
        absent = "the CPUs show no cpufreq: firmware or hypervisor keeps it"
        rows.append(HostSetting("governor", want, _governors(want, cpus, other), files, absent))
    if "transparent_hugepages" in wanted and "transparent_hugepages" in live:
        absent = "this kernel has no transparent huge pages"
        rows.append(
            HostSetting(
                "transparent_hugepages",
                wanted["transparent_hugepages"],
                live["transparent_hugepages"],
                (THP,),
                absent,
            )
        )
    if "numa_balancing" in wanted and "numa_balancing" in live:
        got = live["numa_balancing"]
        # Bit 0 only: bit 1 is memory tiering, which is a separate feature.
        if isinstance(got, str) and got.isdigit():
            got = str(int(got) & 1)
        want = "1" if wanted["numa_balancing"] else "0"
        rows.append(
            HostSetting(
                "numa_balancing", want, got, (BALANCING,), "this kernel has no NUMA balancing"
            )
        )
    for key, want in sorted(wanted.get("sysctl", {}).items()):
        name = f"sysctl.{key}"
        if name in live:
            got = live[name]
            # Parameters of several numbers have tabs between them.
            got = " ".join(got.split()) if isinstance(got, str) else got
            absent = f"this kernel has no parameter {key}"
            rows.append(HostSetting(name, want, got, (sysctl_file(key),), absent))
    for size, count in wanted.get("hugepages", {}).items():
        if f"hugepages.{size}" in live:
            name = f"hugepages.{size}"
            files = (PAGES.format(PAGE_KIB[size]),)
            absent, remedy = (
                f"this machine has no pages of {size}",
                Remedy("Reboot the node: only then is its memory in one piece.", REBOOT),
            )
            rows.append(
                HostSetting(
                    name,
                    want=str(count),
                    got=live[name],
                    files=files,
                    absent=absent,
                    outcome=MISMATCH if count else NOT_EXPOSED,
                    remedy=remedy,
                )
            )
    for interface, values in sorted(wanted.get("network", {}).items()):
        name = f"network.{interface}.mtu"
        if name in live:
            absent = f"there is no interface {interface}"
            rows.append(
                HostSetting(
                    name,
                    want=str(values["mtu"]),
                    got=live[name],
                    files=(f"/sys/class/net/{interface}/mtu",),
                    absent=absent,
                    outcome=MISMATCH,
                )
            )
    return rows


def _governors(want: str, cpus: Mapping[str, Any], other: Mapping[str, Any]) -> Read:
    if not cpus:
        return None
    broken = next((value for value in other.values() if isinstance(value, dict)), None)
    if broken:
        return dict(broken)
    values = sorted({str(value) for value in other.values()})
    return f"{', '.join(values)} on {len(other)} of {len(cpus)} CPUs" if other else want


def _short(setting: HostSetting, seen: Observed) -> bool:
    """Return whether this boot was asked for this value already and could only provide the current one."""
    tried = seen.tuning.get("tried", {}).get(setting.name)
    return bool(tried) and (tried["want"], tried["got"]) == (setting.want, setting.got)


# -- plan


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return changes besides the files, notes, and changes that wait for a drain. Pure."""
    wanted = policy(document)
    actions, notes, waiting = _lasting_swap(wanted, seen), _notes(document, seen), []
    for setting in settings(document, seen):
        if not isinstance(setting.got, str) or setting.got == setting.want:
            continue
        if _short(setting, seen):  # a reboot reason reports this
            continue
        reason = f"want {setting.want}, have {setting.got}"
        data = {"name": setting.name, "files": list(setting.files), "value": setting.want}
        actions.append(
            Action(
                PART,
                kind="tuning.set",
                target=setting.name,
                reason=reason,
                phase=BOOT,
                before=f"{setting.got}\n",
                after=f"{setting.want}\n",
                data=data,
            )
        )
    for area in seen.tuning.get("swap_active", ()) if wanted.get("swap") is False else ():
        free = seen.tuning["memory"]["available"]
        # swapoff has to read everything back into memory.
        if area["used"] > free:
            text = (
                f"it holds {area['used'] // 1024} MiB and memory has room for {free // 1024} MiB: it "
                "waits for the node to be drained"
            )
            waiting.append(Waiting(PART, f"swap {area['name']}", text))
        else:
            reason = "swap is on, and the class switches it off"
            actions.append(
                Action(
                    PART,
                    kind="swap.off",
                    target=area["name"],
                    reason=reason,
                    phase=BOOT,
                    before="on\n",
                    after="off\n",
                    data={"name": area["name"]},
                )
            )
    memlock = (seen.tuning.get("memlock") or {}) if "memlock" in wanted else {}
    if isinstance(memlock.get("default"), str) and raises(wanted, seen) is None:
        want = systemd_bytes(wanted["memlock"])
        if memlock["default"] != want:
            reason = f"want DefaultLimitMEMLOCK {want}, systemd has {memlock['default']}"
            data = {"want": want}
            users = gpu_users(seen)
            if users:
                text = (
                    f"{reason}; `systemctl daemon-reload`, which could take the devices away from "
                    "them, waits until nothing uses the GPU"
                )
                waiting.append(Waiting(PART, "memlock", f"{text} ({users})"))
            else:
                actions.append(
                    Action(
                        PART,
                        kind="systemd.defaults",
                        target="memlock",
                        reason=reason,
                        phase=BOOT,
                        before=f"{memlock['default']}\n",
                        after=f"{want}\n",
                        data=data,
                    )
                )
    return actions + _command_line(document, seen), notes, waiting


def systemd_bytes(memlock: Any) -> str:
    """Return a locked-memory limit in the format of `systemctl show`."""
    return "infinity" if memlock == "unlimited" else str(int(memlock) * 1024)


def _lasting_swap(wanted: Mapping[str, Any], seen: Observed) -> List[Action]:
    """Return actions that disable swap permanently.

    They comment out fstab's lines, and mask swap.target and the units that bypass it. If the class
    no longer disables swap, they restore the changes of an earlier class.
    """
    swap = seen.tuning.get("swap")
    if not swap:
        return []
    actions = []
    if wanted.get("swap") is False:
        for row in swap["fstab"]:
            data = {"file": FSTAB, "line": row["line"], "module": row["first"]}
            reason = f"switches on swap {row['first']}, which the class keeps off"
            before, after = f"{row['text']}\n", f"{MARK}{row['text']}\n"
            actions.append(
                Action(
                    PART,
                    kind="file.comment",
                    target=f"{FSTAB}:{row['line']}",
                    reason=reason,
                    before=before,
                    after=after,
                    data=data,
                )
            )
        for unit, state in swap["units"].items():
            if state == "free":
                why = "it switches on swap"
                if unit == "swap.target":
                    why = "swap stays off: generators and fstab are reached through it"
                data = {"unit": unit, "to": "/dev/null"}
                actions.append(
                    Action(
                        PART,
                        kind="swap.mask",
                        target=f"{UNITS}/{unit}",
                        reason=why,
                        after="/dev/null",
                        data=data,
                    )
                )
        return actions
    for row in swap["marked"]:
        data = {"file": FSTAB, "line": row["line"]}
        reason = "the class no longer keeps swap off"
        before, after = f"{MARK}{row['text']}\n", f"{row['text']}\n"
        actions.append(
            Action(
                PART,
                kind="swap.uncomment",
                target=f"{FSTAB}:{row['line']}",
                reason=reason,
                before=before,
                after=after,
                data=data,
            )
        )
    for unit in swap["masked_by_us"]:
        reason, data = "the class no longer keeps swap off", {"unit": unit}
        actions.append(
            Action(
                PART,
                kind="swap.unmask",
                target=f"{UNITS}/{unit}",
                reason=reason,
                before="/dev/null",
                data=data,
            )
        )
    return actions


def carries(line: Sequence[str], word: str) -> bool:
    """Return whether a command line has the word, or its value in a list (``intel_iommu=on,sm_on``)."""
    key, _, value = word.partition("=")
    return any(
        have == word or (have.startswith(f"{key}=") and value in have.partition("=")[2].split(","))
        for have in line
    )


def missing_words(document: ClassDocument, line: Optional[str]) -> List[str]:
    """Return the class's words that a command line lacks."""
    have = (line or "").split()
    return [word for word in cmdline_words(document) if not carries(have, word)]


def _stale_words(document: ClassDocument, seen: Observed) -> List[str]:
    """Return the words of an earlier class on the next boot's command line that are no longer wanted.

    Words that the administrator has configured too are not included.
    """
    needed = {*cmdline_words(document), *(row["word"] for row in seen.tuning.get("foreign", ()))}
    have = (seen.boot.get("cmdline") or "").split()
    return [word for word in seen.tuning.get("recorded", ()) if word in have and word not in needed]


def _command_line(document: ClassDocument, seen: Observed) -> List[Action]:
    line = seen.boot.get("cmdline")
    slots = seen.slots.get("survey")
    mine = seen.boot.get("loader") == "grub" or (
        slots and not slots["tried"] and slots["next"] == slots["running"]
    )
    if not seen.live or not mine or line is None:
        return []
    words, lacking, stale = (
        cmdline_words(document),
        missing_words(document, line),
        _stale_words(document, seen),
    )
    if not lacking and not stale:
        return []
    reasons = ([f"the next boot lacks {' '.join(lacking)}"] if lacking else []) + (
        [f"the next boot has {' '.join(stale)} of an earlier class"] if stale else []
    )
    data = {"words": words, "stale": stale}
    after = " ".join([*(word for word in line.split() if word not in stale), *lacking])
    return [
        Action(
            PART,
            kind="cmdline.slot" if slots else "cmdline.grub",
            target="kernel command line",
            reason="; ".join(reasons),
            phase=BOOT,
            before=f"{line}\n",
            after=f"{after}\n",
            reboot="kernel command line changed",
            data=data,
        )
    ]


def _notes(document: ClassDocument, seen: Observed) -> List[Note]:
    wanted, notes = policy(document), []
    elsewhere = place(seen)
    live = [
        name
        for name in (
            "governor",
            "swap",
            "hugepages",
            "transparent_hugepages",
            "numa_balancing",
            "network",
        )
        if name in wanted
    ]
    if elsewhere and live:
        notes.append(
            Note(
                "policy.host",
                f"{elsewhere}: {', '.join(live)} are neither read nor set, only their files",
            )
        )
    notes += [
        Note(f"policy.host.{s.name}", s.absent if s.got is None else str(s.got["error"]))
        for s in settings(document, seen)
        if not isinstance(s.got, str)
    ]
    if "memlock" in wanted:
        held = raises(wanted, seen)
        if held:
            notes.append(Note("policy.host.memlock", f"left as it is: {held}"))
    unset = _unset(document, seen)
    if unset:
        notes.append(Note("policy.host.cmdline", unset))
    if wanted.get("iommu") == "off" and document["os"]["architecture"] == "arm64":
        notes.append(
            Note(
                "policy.host.iommu",
                "no word of the kernel's command line switches an Arm SMMU off: the firmware does",
            )
        )
    return notes


def _unset(document: ClassDocument, seen: Observed) -> Optional[str]:
    """Return why the next boot's command line cannot be checked or set, or None.

    None also if nothing is declared.
    """
    if not cmdline_words(document):
        return None
    loader = seen.boot.get("loader")
    if not seen.live:
        # No boot loader is installed yet; its package shows which one it will be.
        where = "the words are in GRUB's configuration"
        if "systemd-boot-efi" in seen.packages:
            where = "systemd-boot's entries get the words"
        return f"the command line of an image is made when its boot loader is installed; {where}"
    if loader is None:
        return f"the next boot's command line: {kernel.without_loader(seen)}"
    if loader == "systemd-boot" and (
        seen.slots.get("survey") or not missing_words(document, seen.boot.get("cmdline"))
    ):
        return None
    if loader != "grub":
        return f"the words are not set: boot loader {loader} is not written by this version"
    if seen.boot.get("cmdline") is None:
        return f"the next boot's command line is unknown ({seen.boot.get('reason')})"
    return None


def reboot(document: ClassDocument, seen: Observed) -> List[str]:
    """Return why the host policy needs a reboot in the node's current state. Pure."""
    reasons = []
    if place(seen) is None and "cmdline" in seen.tuning:
        lacking = missing_words(document, seen.tuning["cmdline"])
        if lacking and not missing_words(document, seen.boot.get("cmdline")):
            reasons.append("kernel command line changed")
    for setting in settings(document, seen):
        if _short(setting, seen):
            reasons.append(
                f"{setting.name}: {setting.got} of {setting.want} pages could be had, memory is fragmented"
            )
    return reasons


# -- refusals


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Return the reasons of this domain to refuse all changes. Pure."""
    wanted, refused = policy(document), []
    fights = _fighting(document, seen)
    if fights:
        rows = ", ".join(f"{row['word']} ({row['file']}:{row['line']})" for row in fights)
        refused.append(
            Refusal(
                "cmdline-conflict",
                f"The class wants {' '.join(cmdline_words(document))} on the kernel's command "
                f"line, and the node's GRUB configuration has {rows}.",
                "Take those words out of that file, or change `policy.host` of the class.",
            )
        )
    error = seen.tuning.get("grub_error")
    if error:
        refused.append(
            Refusal(
                "grub-defaults",
                f"update-grub fails, and no later kernel would get into the menu: {error}.",
                "Correct that line until `update-grub` prints no error, then run again.",
            )
        )
    rows = _overridden(seen)
    if rows:
        refused.append(
            Refusal(
                "host-override",
                "Settings of the class would be undone at the next boot by files that are read "
                f"after goldnode's: {rows}.",
                "Take those lines out, or change `policy.host` of the class.",
            )
        )
    own = [
        unit
        for unit, state in (seen.tuning.get("swap") or {"units": {}})["units"].items()
        if state == "own"
    ]
    if own and wanted.get("swap") is False:
        refused.append(
            Refusal(
                "swap-unit",
                f"The class keeps swap off, and {', '.join(f'{UNITS}/{unit}' for unit in own)} is "
                "the administrator's own and switches it on.",
                "Disable the unit and remove its file, or leave `swap` out of the class.",
            )
        )
    offered = seen.tuning.get("governors") or []
    if offered and "governor" in wanted and wanted["governor"] not in offered:
        refused.append(
            Refusal(
                "governor",
                f"The CPUs offer the governors {', '.join(offered)}, and the class wants "
                f"{wanted['governor']}.",
                "Choose one of those in `policy.host.governor`, or another cpufreq driver.",
            )
        )
    asked = sum(PAGE_KIB[size] * count for size, count in wanted.get("hugepages", {}).items())
    total = seen.tuning.get("memory", {}).get("total", 0)
    if total and asked >= total:
        refused.append(
            Refusal(
                "hugepages",
                f"The class reserves {asked >> 20} GiB of huge pages, and the node has "
                f"{total >> 20} GiB of memory.",
                "Lower `policy.host.hugepages`, or look for a DIMM that is missing.",
            )
        )
    return refused


def _overridden(seen: Observed) -> str:
    """Return the settings of others that override the class's, with file and line."""
    return ", ".join(
        f"{row['file']}:{row['line']} ({row['key']} = {row['value']})"
        for row in seen.tuning.get("later", ())
    )


def _fighting(document: ClassDocument, seen: Observed) -> List[Json]:
    """Return the foreign words of GRUB's configuration that contradict the class's command line."""
    return [row for row in seen.tuning.get("foreign", ()) if _fights(document, row["word"])]


def _fights(document: ClassDocument, word: str) -> bool:
    """Return whether a foreign word contradicts the class's command line."""
    wanted, own = policy(document), cmdline_words(document)
    key = word.partition("=")[0]
    # These words depend on their order, so any foreign one is a conflict.
    if wanted.get("hugepages") and key in PAGE_WORDS:
        return word not in own
    if any(carries([word], mine) for mine in own):
        return False
    against = IOMMU_AGAINST.get(wanted.get("iommu", ""), ())
    return word in against or any(
        key == mine.partition("=")[0] and key not in REPEATED for mine in own
    )


# -- findings


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return one finding per item that the class declares in this domain. Pure."""
    wanted, elsewhere = policy(document), place(seen)
    rows = []
    shown = {setting.name: setting for setting in settings(document, seen)}
    for name, want in _declared(wanted):
        item = f"policy.host.{name}"
        if elsewhere:
            rows.append(Finding(item, ELSEWHERE, want, elsewhere))
        elif name not in shown:
            rows.append(
                Finding(
                    item,
                    UNREAD,
                    want,
                    "it was not read",
                    Remedy("Run `goldnode-node check` as root.", PERSON),
                )
            )
        else:
            rows.append(_judged(item, shown[name]))
    undone = [_overridden(seen), str(seen.tuning.get("grub_error") or "")]
    there = (seen.boot.get("cmdline") or "").split()  # `policy.host.cmdline` judges these
    fights = [row for row in _fighting(document, seen) if row["word"] not in there]
    undone += [f"{row['file']}:{row['line']} ({row['word']})" for row in fights]
    if any(undone):
        text = "Remove those lines, or change `policy.host` of the class: the next boot or update-grub applies them."
        reported = "; ".join(text for text in undone if text)
        want = "no file overrides the class's settings"
        rows.append(
            Finding("policy.host.overrides", MISMATCH, want, reported, Remedy(text, PERSON))
        )
    if "swap" in wanted:
        rows.append(_judged_swap(wanted["swap"], seen, elsewhere))
    if cmdline_words(document):
        rows.append(_judged_line(document, seen, elsewhere))
    if "iommu" in wanted:
        rows.append(_judged_iommu(wanted["iommu"], seen, elsewhere))
    if "memlock" in wanted:
        rows.append(_judged_memlock(wanted, seen))
    return rows


def _declared(wanted: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    """Yield the names of the declared live values, with the wanted values."""
    for name in ("governor", "transparent_hugepages"):
        if name in wanted:
            yield name, str(wanted[name])
    if "numa_balancing" in wanted:
        yield "numa_balancing", "1" if wanted["numa_balancing"] else "0"
    for key, value in sorted(wanted.get("sysctl", {}).items()):
        yield f"sysctl.{key}", value
    for size, count in wanted.get("hugepages", {}).items():
        yield f"hugepages.{size}", str(count)
    for interface, values in sorted(wanted.get("network", {}).items()):
        yield f"network.{interface}.mtu", str(values["mtu"])


def _judged(item: str, setting: HostSetting) -> Finding:
    if isinstance(setting.got, dict):
        error = str(setting.got["error"])
        return Finding(
            item,
            UNREAD,
            setting.want,
            error,
            Remedy("Run the check as root, and look at dmesg for why it cannot be read.", PERSON),
        )
    if setting.got is None:
        remedy = Remedy(
            "Correct `policy.host` of the class, or see why the machine lacks it.", PERSON
        )
        return Finding(item, setting.outcome, setting.want, setting.absent, remedy)
    return judge_item(item, setting.want, setting.got, setting.remedy)


def _judged_swap(want: bool, seen: Observed, elsewhere: Optional[str]) -> Finding:
    if elsewhere:
        return Finding("policy.host.swap", ELSEWHERE, "on" if want else "off", elsewhere)
    active = [area["name"] for area in seen.tuning.get("swap_active", ())]
    swap = seen.tuning["swap"]
    if want:
        remedy = Remedy("Give the node a swap area: goldnode makes none.", PERSON)
        return judge_item("policy.host.swap", "on", "on" if active else "off", remedy)
    comes = [f"{FSTAB}:{row['line']}" for row in swap["fstab"]] + [
        unit for unit, state in swap["units"].items() if state != "masked"
    ]
    got = "off"
    if active:
        got = f"on: {', '.join(active)}"
    elif comes:
        got = f"off, and the next boot switches it on: {', '.join(comes)}"
    return judge_item("policy.host.swap", "off", got, Remedy("Run site.yml.", SITE))


def _judged_line(document: ClassDocument, seen: Observed, elsewhere: Optional[str]) -> Finding:
    item, want = "policy.host.cmdline", " ".join(cmdline_words(document))
    if elsewhere:
        return Finding(item, ELSEWHERE, want, elsewhere)
    now = missing_words(document, seen.tuning.get("cmdline"))
    unset = _unset(document, seen)
    later = [] if unset else missing_words(document, seen.boot.get("cmdline"))
    faults = ([f"this boot lacks {' '.join(now)}"] if now else []) + (
        [f"the next boot lacks {' '.join(later)}"] if later else []
    )
    against = [word for word in (seen.boot.get("cmdline") or "").split() if _fights(document, word)]
    if against and not unset:
        where = [
            f"{x['file']}:{x['line']}"
            for x in seen.tuning.get("foreign", ())
            if x["word"] in against
        ]
        faults.append(f"the next boot has {' '.join(against)} ({', '.join(where) or 'by hand'})")
        if not now and not later:
            remedy = Remedy("Take those words out of that file, then run `update-grub`.", COMMAND)
            return Finding(item, MISMATCH, want, "; ".join(faults), remedy)
    if faults:
        # If only the next boot lacks words, no reboot is needed, but site.yml must run before the next one.
        remedy = REBOOTED if now else Remedy("Run site.yml.", SITE)
        before = f"it would start without {' '.join(later)}" if later else None
        remedy = Remedy(remedy, *remedy.steps, before=before)
        return Finding(item, MISMATCH, want, "; ".join(faults), remedy)
    if unset:
        remedy = Remedy("Set the words in that boot loader's own way.", PERSON)
        return Finding(item, UNREAD, want, unset, remedy)
    return Finding(item, MATCH, want, want)


def _judged_iommu(want: str, seen: Observed, elsewhere: Optional[str]) -> Finding:
    """Judge the IOMMU by the domain types of its groups.

    Type `identity` is passthrough; any other type translates.
    """
    groups = seen.tuning.get("iommu_groups", {})
    if elsewhere:
        return Finding("policy.host.iommu", ELSEWHERE, want, elsewhere)
    if not groups and want != "off":
        got = "the kernel shows no IOMMU: the firmware has it switched off, or the machine has none"
        return Finding(
            "policy.host.iommu",
            NOT_EXPOSED,
            want,
            got,
            Remedy("Switch VT-d or AMD-Vi on in the firmware.", REPAIR),
        )
    translates = sum(count for kind, count in groups.items() if kind != "identity")
    got = "off"
    if groups:
        got = "pt" if groups.get("identity", 0) > translates else "on"
    return judge_item("policy.host.iommu", want, got, REBOOTED)


def _judged_memlock(wanted: Mapping[str, Any], seen: Observed) -> Finding:
    item, want, have = (
        "policy.host.memlock",
        systemd_bytes(wanted["memlock"]),
        seen.tuning.get("memlock") or {},
    )
    held = raises(wanted, seen)
    if held or not seen.live:
        return Finding(item, ELSEWHERE, want, held or "an image does not run")
    default = have.get("default")
    if not isinstance(default, str):
        got = str(default["error"]) if default else "systemd does not run"
        return Finding(
            item,
            UNREAD,
            want,
            got,
            Remedy("Look at `systemctl show --property=DefaultLimitMEMLOCK`.", PERSON),
        )
    return judge_item(
        item,
        want,
        default,
        Remedy("Run site.yml: services would start with the earlier limit.", SITE),
    )
