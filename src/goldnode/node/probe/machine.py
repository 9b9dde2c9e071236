"""The machine: identity, OS and kernel, CPUs, memory, pressure, clock, blocked tasks, limits. The engine's
observations are not read again.
"""

from __future__ import annotations

import json
import os
import time

from ..effective import kmod
from ..effective.boot_choice import boot_choice
from ..ground.boot import uptime
from ..ground.host import Json, release_version
from ..ground.json_lines import as_map
from .context import Context
from .values import Files, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

CPUS = "/sys/devices/system/cpu"
DMI = "/sys/class/dmi/id/"
# Letters of the taint bits from bit 0 (the kernel's tainted-kernels.rst). An unset bit 0 prints G, which is skipped.
TAINTS = "PFSRMBUDAWCIOELKXTNJ"
# Prefixes of the DMI vendor or product of virtual machines, as in systemd's src/basic/virt.c. EC2's bare-metal instances are named
# as such.
VIRTUAL = (
    ("QEMU", "qemu"),
    ("linux,dummy-virt", "qemu"),  # in the device tree of QEMU's machine "virt"
    ("KVM", "kvm"),
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("OpenStack", "kvm"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Virtual Machine", "microsoft"),
    ("Apple Virtualization", "apple"),
)
STA_UNSYNC = 0x40  # adjtimex(2)
BRIEF = 0.03  # seconds for the tasks of a node: thousands of them cost more than all else here
MOST_BLOCKED = 32
NO_KERNEL = "an image does not run"


def _of_kernel(context: Context, read: Callable[[str], Any], name: str) -> Any:
    """Return a value of the kernel that runs, or the fault that none does."""
    return read(name) if context.host.live else not_exposed(NO_KERNEL)


def read(context: Context) -> Json:
    """Return the sections identity, os, cpu, memory, pressure, time_sync, blocked and limits."""
    files = context.files
    tasks, unseen = blocked(files) if suspects(files) else ([], 0)
    clock = files.text("/proc/uptime") if context.host.live else ""
    sections: Json = {
        "uptime": uptime(clock) if isinstance(clock, str) else None,
        "identity": identity(context),
        "os": system(context),
        "cpu": cpu(context),
        "memory": memory(files),
        "pressure": pressure(files),
        "time_sync": time_sync(context),
        "blocked": tasks,
        "limits": limits(files),
    }
    if unseen:
        sections["blocked_unseen"] = unseen
    return sections


# -- identity


def identity(context: Context) -> Json:
    """Return the identity of the machine, boot, class and image."""
    files, document = context.files, context.document
    hostname = _of_kernel(context, files.text, "/proc/sys/kernel/hostname")
    if not isinstance(hostname, str):
        hostname = files.text("/etc/hostname")
    firmware = "vendor:sys_vendor name:product_name board:board_name bios_version:bios_version bios_date:bios_date serial:product_serial"
    product = {
        key: files.text(DMI + name) for key, name in (pair.split(":") for pair in firmware.split())
    }
    if not isinstance(product["name"], str):
        # An Arm machine may have a device tree in place of DMI. Its text ends with a zero byte.
        model = files.text("/proc/device-tree/model")
        product["name"] = model.rstrip("\0") if isinstance(model, str) else product["name"]
    return {
        "hostname": hostname,
        "machine_id": files.text("/etc/machine-id"),
        "boot_id": _of_kernel(context, files.text, "/proc/sys/kernel/random/boot_id"),
        "class": document.get("class"),
        "class_digest": document.get("digest"),
        "lock_digest": (document.get("lock") or {}).get("digest"),
        "image_id": image_id(files),
        "product": product,
        "container": context.container,
        "virtual": virtual(files, product) if context.host.live else not_exposed(NO_KERNEL),
    }


def image_id(files: Files) -> Any:
    """Return the name of the image that the node was made from: /etc/goldnode/image.json, otherwise IMAGE_ID
    and IMAGE_VERSION (os-release(5)).
    """
    text = files.text("/etc/goldnode/image.json")
    if isinstance(text, str):
        try:
            reported = json.loads(text)
            name = reported.get("image_id") or reported.get("id") or reported.get("digest")
        except (ValueError, AttributeError):
            return unread("/etc/goldnode/image.json is broken")
        if isinstance(name, str):
            return name
    rows = release(files)
    name, version = rows.get("IMAGE_ID"), rows.get("IMAGE_VERSION")
    return " ".join(part for part in (name, version) if part) or None


def release(files: Files) -> Dict[str, str]:
    """Return os-release(5), unquoted. The file in /etc has precedence over the one in /usr/lib."""
    text = files.text("/etc/os-release")
    if not isinstance(text, str):
        text = files.text("/usr/lib/os-release")
    lines = text.splitlines() if isinstance(text, str) else []
    return {
        key: value.strip("\"' ")
        for key, equals, value in (line.partition("=") for line in lines)
        if equals
    }


def virtual(files: Files, product: Json) -> Any:
    """Return the platform: "none" for hardware, the name of a known hypervisor, "other" for an unknown one."""
    kind = files.text("/sys/hypervisor/type")
    flag = hypervisor_flag(files)
    names = [
        str(product[key]) for key in ("vendor", "name", "board") if isinstance(product[key], str)
    ]
    if not any(name.endswith((".metal", "-metal")) for name in names):
        for text in names:
            for start, name in VIRTUAL:
                if text.startswith(start) and flag is not False:
                    return name
    if isinstance(kind, str) and kind == "xen" and flag is not False:
        return "xen"
    if flag is not None:
        return "other" if flag else "none"
    if files.there("/proc/device-tree/hypervisor"):
        return "other"
    return "none" if names else not_exposed("neither firmware nor processor reports it")


def hypervisor_flag(files: Files) -> Optional[bool]:
    """Return whether the processor reports a hypervisor (CPUID leaf 1); None if it has no such flag."""
    data = files.data(
        "/proc/cpuinfo", 4096
    )  # the first processor; all of hundreds cost milliseconds
    for line in data.splitlines() if isinstance(data, bytes) else ():
        if line.startswith(b"flags"):
            return b"hypervisor" in line.split()
    return None


# -- os


def system(context: Context) -> Json:
    """Return distribution, kernels and modules."""
    files, seen, live = context.files, context.seen, context.host.live
    rows = release(files)
    boot = seen.boot if seen is not None else _boot(context)
    next_boot: Any = boot.get("release")
    if not next_boot:
        next_boot = not_exposed(
            str(boot.get("reason") or f"boot loader {boot.get('loader') or 'not found'}")
        )
    taint = _of_kernel(context, files.number, "/proc/sys/kernel/tainted")
    if seen is not None:
        installed = list(seen.kernels)
    else:
        names = files.names("/boot")
        installed = [name[8:] for name in names if name.startswith("vmlinuz-")]
    kernel: Json = {
        "running": _of_kernel(context, files.text, "/proc/sys/kernel/osrelease"),
        "version": _of_kernel(context, files.text, "/proc/sys/kernel/version"),
        "next_boot": next_boot,
        "installed": installed,
        "cmdline": _of_kernel(context, files.text, "/proc/cmdline"),
        "taint": taint,
        "taint_flags": letters(taint) if isinstance(taint, int) else taint,
    }
    modules: Any = _loaded(context) if live else []
    section: Json = {
        "id": rows.get("ID", "") or not_exposed("no os-release"),
        "version": release_version(rows),
        "kernel": kernel,
        "secure_boot": _secure_boot(context),
        "modules": modules,
        "denied": _denied(context),
    }
    absent = _absent(context)
    if absent is not None:
        section["absent"] = absent
    if seen is not None:
        section["module_files"] = module_files(context)
    return section


def _loaded(context: Context) -> Any:
    """Return the names of the loaded modules. A kernel that loads none (CONFIG_MODULES=n) has no list of them."""
    files = context.files
    if not files.there("/proc/modules") and files.there("/proc/version"):
        return []
    content = files.data("/proc/modules", 1 << 20)
    if not isinstance(content, bytes):
        return content
    lines = content.decode("utf-8", "replace").splitlines()
    return sorted(line.split(None, 1)[0] for line in lines if line.strip())


def _absent(context: Context) -> Optional[List[str]]:
    """Return those modules that mitigations keep out which the running kernel does not have, neither as a file nor built in.

    None without such a module, or if depmod's lists of the kernel are not there.
    """
    rows = context.document.get("mitigations") or ()
    names = {kmod.underscored(name) for row in rows for name in row.get("deny") or ()}
    release = context.files.text("/proc/sys/kernel/osrelease")
    if not names or not isinstance(release, str):
        return None
    for name in ("modules.dep", "modules.builtin"):
        content = context.files.data(f"/lib/modules/{release}/{name}", 1 << 23)
        if not isinstance(content, bytes):
            return None
        for line in content.decode("utf-8", "replace").splitlines():
            path = line.partition(":")[0]
            names.discard(kmod.underscored(path.rpartition("/")[2].partition(".ko")[0]))
    return sorted(names)


def _denied(context: Context) -> Any:
    """Return the modules that modprobe does not load even by name, for the running kernel.

    `blacklist` alone is not among them: it holds for aliases.
    """
    release, words = (
        context.files.text(name) for name in ("/proc/sys/kernel/osrelease", "/proc/cmdline")
    )
    try:
        lines = kmod.read(context.host, words if isinstance(words, str) else "")
        kinds = ("install", "module_blacklist")
        names = sorted({line.name for line in lines if line.command in kinds})
        if not names:
            return []
        lines = kmod.settled(
            context.host, lines, names, release if isinstance(release, str) else ""
        )
    except OSError as problem:
        return unread(f"{problem.filename}: {problem.strerror}")
    return [name for name in names if kmod.against(lines, [name], by_alias=False)]


def letters(taint: int) -> str:
    """Return the letters of a taint mask as the kernel prints them, and the number of an unknown bit."""
    return "".join(
        TAINTS[bit] if bit < len(TAINTS) else f"({bit})"
        for bit in range(taint.bit_length())
        if taint >> bit & 1
    )


def _boot(context: Context) -> Json:
    if context.container:
        return {"reason": "a container has no boot loader"}
    if not context.host.live:
        return {"reason": "an image does not run"}
    return dict(boot_choice(context.host, ""))


def _secure_boot(context: Context) -> Any:
    state = context.seen.secure_boot if context.seen is not None else None
    folder = "/sys/firmware/efi/efivars"
    for name in context.files.names(folder) if context.seen is None else ():
        if name.startswith("SecureBoot-8be4df61"):
            data = context.files.data(f"{folder}/{name}")
            # Four bytes of attributes precede the value (efivarfs).
            state = data[4] == 1 if isinstance(data, bytes) and len(data) > 4 else None
            break
    return not_exposed("no UEFI variable confirms it") if state is None else state


def module_files(context: Context) -> Json:
    """Return modinfo's data of the driver's module and the stack's other modules for the class's kernel.
    modinfo does not run for another kernel.
    """
    seen, document = context.seen, context.document
    by_kernel: Json = {}
    name = (document.get("driver") or {}).get("module") or "nvidia"
    for kernel, reported in seen.modules.items():
        by_kernel[kernel] = {name: _module(reported)}
    kernel = (document.get("kernel") or {}).get("release")
    for other, reported in seen.other_modules.items():
        if kernel:
            by_kernel.setdefault(kernel, {})[other] = _module(reported)
    return by_kernel


def _module(reported: Optional[Json]) -> Json:
    if reported is None:
        return not_exposed("modinfo finds no such module for this kernel")
    return {key: reported.get(key) for key in ("version", "license", "signer") if key in reported}


# -- processors


def cpu(context: Context) -> Json:
    """Return model, sockets, cores and threads; governors and microcode with the CPUs that have them.

    Microcode is read once per core, whose threads share it. 256 CPUs cost some 500 small reads.
    """
    files = context.files
    if not context.host.live:
        return not_exposed("an image does not run")
    online = files.text(f"{CPUS}/online")
    numbers = numbers_of(online) if isinstance(online, str) else []
    first = _processor(files)
    smt = files.text(f"{CPUS}/smt/active")
    sockets, cores = _groups(files, numbers, "package_cpus_list", "core_siblings_list"), numbers
    if smt != "0":
        cores = _groups(files, numbers, "core_cpus_list", "thread_siblings_list")
    microcode: Dict[str, None] = {}
    for number in cores:
        reported = files.text(f"{CPUS}/cpu{number}/microcode/version")
        if not isinstance(reported, str):
            break
        microcode.setdefault(reported)
    version = first.get("microcode")
    flags = first.get("flags") or first.get("Features")  # x86 and Arm
    return {
        "architecture": os.uname().machine,
        "model": processor_model(first) or not_exposed("/proc/cpuinfo names none"),
        "flags": sorted(flags.split()) if flags else unread("/proc/cpuinfo lists none"),
        "sockets": len(sockets) or not_exposed("no topology in sysfs"),
        "cores": len(cores) or not_exposed("no topology in sysfs"),
        "threads": len(numbers) or online,
        "online": online,
        "smt": smt == "1" if isinstance(smt, str) else smt,
        "governors": governors(context, numbers),
        "microcode": list(microcode) or ([version] if version else []),
    }


# Arm's processors have no name in /proc/cpuinfo. Names of those of servers by implementer and part, as lscpu
# has them (util-linux, sys-utils/lscpu-arm.c); Grace has Neoverse-V2.
ARM_PARTS = {
    "0x41": "d08 Cortex-A72 d0c Neoverse-N1 d40 Neoverse-V1 d49 Neoverse-N2 d4f Neoverse-V2 d84 Neoverse-V3 "
            "d85 Cortex-X925 d87 Cortex-A725 d8e Neoverse-N3",
    "0x46": "001 A64FX", "0x4e": "004 Carmel 010 Olympus", "0xc0": "ac3 Ampere-1 ac4 Ampere-1a",
}  # fmt: skip


def processor_model(first: Dict[str, str]) -> Optional[str]:
    """Return the model of a processor of /proc/cpuinfo; of an unknown one of Arm's its implementer and part."""
    maker, part = first.get("CPU implementer"), first.get("CPU part", "")
    if first.get("model name") or not maker:
        return first.get("model name")
    words = ARM_PARTS.get(maker, "").split()
    names = dict(zip(words[::2], words[1::2]))
    return names.get(part[2:]) or f"{maker} {part}"


def _processor(files: Files) -> Dict[str, str]:
    """Return the first processor of /proc/cpuinfo."""
    data = files.data("/proc/cpuinfo", 4096)
    return processor(data.decode("utf-8", "replace") if isinstance(data, bytes) else "")


def processor(text: str) -> Dict[str, str]:
    """Return the first processor of the text of /proc/cpuinfo."""
    text = text[:4096].partition("\n\n")[0]
    lines = text.splitlines()
    if len(text) >= 4000:
        lines = lines[:-1]  # the last line may be cut
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _groups(files: Files, numbers: List[int], name: str, older: str) -> List[int]:
    """Return the first CPU of each group (package, core).

    Each group's list is read once, not each CPU's. Empty without such lists.
    """
    members: set[int] = set()
    firsts: List[int] = []
    for number in numbers:
        if number in members:
            continue
        text = files.text(f"{CPUS}/cpu{number}/topology/{name}")
        if not isinstance(text, str):
            text = files.text(f"{CPUS}/cpu{number}/topology/{older}")
            if not isinstance(text, str):
                return []
        firsts.append(number)
        members.update(numbers_of(text))
        members.add(number)
    return firsts


def governors(context: Context, numbers: List[int]) -> Any:
    """Return governor -> its CPUs, as a list in the kernel's format.

    The engine's values are used if it has read them.
    """
    files = context.files
    by_governor: Dict[str, List[int]] = {}
    seen = context.seen.tuning.get("governor") if context.seen is not None else None
    values = as_map(seen)
    if all(isinstance(value, str) for value in values.values()):
        for name, value in values.items():
            number = "".join(letter for letter in str(name) if letter.isdigit())
            if number:
                by_governor.setdefault(value, []).append(int(number))
    if not by_governor:
        policies = [name for name in files.names(f"{CPUS}/cpufreq") if name.startswith("policy")]
        # Each CPU has a policy of its own, whose name is its number.
        alone = len(policies) >= len(numbers)
        for name in policies:
            reported = files.text(f"{CPUS}/cpufreq/{name}/scaling_governor")
            cpus = None if alone else files.text(f"{CPUS}/cpufreq/{name}/affected_cpus")
            members = [int(name[6:] or 0)]
            if isinstance(cpus, str):
                members = [int(word) for word in cpus.split() if word.isdigit()]
            if isinstance(reported, str):
                by_governor.setdefault(reported, []).extend(members)
    if not by_governor:
        return not_exposed("no frequency scaling: the firmware or a hypervisor decides")
    return {name: ranges(cpus) for name, cpus in sorted(by_governor.items())}


def numbers_of(text: str) -> List[int]:
    """Return the numbers of a list in the kernel's format (`0-3,8`). Items in another format are left out."""
    numbers: List[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            numbers.extend(range(int(first), min(int(last or first), int(first) + 65535) + 1))
    return numbers


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as a list in the kernel's format."""
    pairs: List[List[int]] = []
    for number in sorted(set(numbers)):
        if pairs and pairs[-1][1] == number - 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in pairs)


# -- memory and pressure


def memory(files: Files) -> Json:
    """Return memory, swap, huge pages, shared memory, and the errors of the memory controllers."""
    text = files.text("/proc/meminfo")
    if not isinstance(text, str):
        return text
    rows = {
        key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())
    }

    def mib(key: str) -> Any:
        value = rows.get(key)
        if not value or not value[0].isdigit():
            return not_exposed(f"/proc/meminfo has no {key}")
        return int(value[0]) // 1024

    used, free = mib("SwapTotal"), mib("SwapFree")
    if isinstance(used, int) and isinstance(free, int):
        used -= free
    pages = {}
    for name in files.names("/sys/kernel/mm/hugepages"):
        folder = f"/sys/kernel/mm/hugepages/{name}"
        pages[name[10:].rstrip("kB")] = {
            "total": files.number(folder + "/nr_hugepages"),
            "free": files.number(folder + "/free_hugepages"),
        }
    edac = {}
    for name in files.names("/sys/devices/system/edac/mc"):
        if name.startswith("mc") and name[2:].isdigit():
            folder = f"/sys/devices/system/edac/mc/{name}"
            edac[name] = {
                "ce": files.number(folder + "/ce_count"),
                "ue": files.number(folder + "/ue_count"),
            }
    return {
        "total_mib": mib("MemTotal"),
        "available_mib": mib("MemAvailable"),
        "swap_total_mib": mib("SwapTotal"),
        "swap_used_mib": used,
        "hugepages": pages,
        "shm_mib": _shm(files),
        "edac": edac or not_exposed("no memory controller reports errors (EDAC)"),
        "transparent_hugepages": chosen(files.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "numa_balancing": files.number("/proc/sys/kernel/numa_balancing"),
        "page_kib": os.sysconf("SC_PAGESIZE") >> 10,
    }


def _shm(files: Files) -> Any:
    try:
        status = os.statvfs(files.root + "/dev/shm")  # noqa: S108 - the mount of shared memory
    except OSError as problem:
        return not_exposed(problem.strerror or "", problem.errno)
    return status.f_blocks * status.f_frsize >> 20


def chosen(value: Any) -> Any:
    """Return the word in brackets of a sysfs choice (`always [madvise] never`), or the text itself without
    brackets.
    """
    return value.partition("[")[2].partition("]")[0] or value if isinstance(value, str) else value


def pressure(files: Files) -> Json:
    """Return pressure stall information: total stalled time (µs, for the difference of two readings) and the
    averages of 10 s.
    """
    return {name: _stall(files.text(f"/proc/pressure/{name}")) for name in ("io", "memory", "cpu")}


def _stall(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    times: Json = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        rows = dict(word.partition("=")[::2] for word in rest.split())
        try:
            times[f"{kind}_us"], times[f"{kind}_avg10"] = int(rows["total"]), float(rows["avg10"])
        except (KeyError, ValueError):
            return unread(f"not in the format of pressure stall information: {line[:60]!r}")
    return times or unread("empty")


# -- clock, tasks, limits


def time_sync(context: Context) -> Json:
    """Return whether the kernel's clock is synchronised (adjtimex(2)).

    For a directory that represents a node, timesyncd's mark decides.
    """
    synchronised: Any
    if not context.host.live:
        return not_exposed("an image does not run")
    if context.host.root == "/":
        import ctypes

        state = ctypes.create_string_buffer(256)  # struct timex is 208 bytes; modes 0 only reads
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(state)
        synchronised = not int.from_bytes(state.raw[40:44], "little") & STA_UNSYNC
        if answer < 0:
            synchronised = unread("adjtimex", ctypes.get_errno())
    elif context.files.there("/run/systemd/timesync"):
        synchronised = context.files.there("/run/systemd/timesync/synchronized")
    else:
        synchronised = not_exposed("another root: its kernel is not asked")
    return {"synchronised": synchronised, "clock": round(time.time(), 3)}


def suspects(files: Files) -> bool:
    """Return whether a task may have been blocked for long.

    Tasks in uninterruptible sleep count in the load average: half a minute of one raises the average of the
    last minute by 0.39. On a node without load, tasks are not read.
    """
    load, stat = files.text("/proc/loadavg"), files.data("/proc/stat", 1 << 20)
    at = stat.find(b"procs_blocked ") if isinstance(stat, bytes) else -1
    waiting = stat[at + 14 : at + 24].split() if isinstance(stat, bytes) and at >= 0 else []
    if waiting and waiting[0] != b"0":
        return True
    try:
        return not isinstance(load, str) or float(load.split()[0]) >= 0.3
    except (IndexError, ValueError):
        return True


def blocked(files: Files, limit: float = BRIEF) -> Tuple[List[Json], int]:
    """Return tasks in uninterruptible sleep [{pid, command, wait}], and the number of tasks not read within
    the limit (seconds).

    The youngest are read first, since the kernel's own threads are the oldest. `wait` is the kernel function
    they sleep in.
    """
    end = time.monotonic() + limit
    pids = sorted((int(name) for name in files.names("/proc") if name.isdigit()), reverse=True)
    tasks: List[Json] = []
    for at, pid in enumerate(pids):
        if time.monotonic() > end or len(tasks) >= MOST_BLOCKED:
            return tasks, len(pids) - at
        data = files.data(f"/proc/{pid}/stat", 1024)
        if not isinstance(data, bytes):  # it has ended
            continue
        head, _, rest = data.rpartition(b") ")
        if rest[:1] == b"D":
            wait = files.text(f"/proc/{pid}/wchan")
            command = head.partition(b" (")[2].decode("utf-8", "replace")
            tasks.append(
                {
                    "pid": pid,
                    "command": printable(command),
                    "wait": printable(wait) if isinstance(wait, str) and wait != "0" else None,
                }
            )
    return tasks, 0


def printable(text: str, most: int = 80) -> str:
    """Return a foreign text on one line: without control characters, and cut."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def limits(files: Files) -> Json:
    """Return limits of this process: locked memory (KiB) and open files; "unlimited" without a limit."""
    text = files.text("/proc/self/limits")
    if not isinstance(text, str):
        return text
    values: Json = {}
    for line in text.splitlines():
        for start, key, size in (
            ("Max locked memory", "memlock_kib", 1024),
            ("Max open files", "open_files", 1),
        ):
            if line.startswith(start):
                soft = line[len(start) :].split()[:1]
                values[key] = int(soft[0]) // size if soft and soft[0].isdigit() else "".join(soft)
    return values
