"""Collection of the state of a node: observe(host, document).

Reads in few batches and changes nothing. Every path lies under the host's root.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import struct
import time
from contextlib import suppress

from ..effective import apt as apt_effective
from ..effective import apt_conf, kmod, ldcache, module_file
from ..effective.boot_choice import boot_choice, kernel_fault
from ..ground import openpgp
from ..ground.errors import NodeError
from ..ground.host import SIMULATED_KERNEL, Host, Json, boot_identity, is_container, release_version
from ..ground.verdict_files import CLASS
from ..probe import pci
from ..probe.values import Files
from . import obstacles, owners
from .family import builds_modules
from .model import Observed
from .names import digest, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

    from ..ground.document import ClassDocument


# Every file that goldnode writes matches one of these patterns. It does not own anything
# else in these directories.
MANAGED = (
    ("/etc/goldnode", "class.json"),
    ("/etc/apt/sources.list.d", "goldnode-*.sources"),
    ("/etc/apt/keyrings", "goldnode-*"),
    ("/etc/apt/preferences.d", "goldnode-stack"),
    ("/etc/apt/apt.conf.d", "52goldnode-fence"),
    ("/etc/modprobe.d", "goldnode-*.conf"),
    ("/run/modprobe.d", "goldnode-*.conf"),
    ("/etc/modules-load.d", "goldnode.conf"),
    ("/etc/initramfs-tools/hooks", "zz-goldnode"),
    ("/etc/kernel/postinst.d", "zz-goldnode"),
    ("/etc/kernel/postinst.d", "zzz-goldnode-slot"),
    ("/etc/kernel/install.d", "00-goldnode.install"),
    ("/etc/initramfs/post-update.d", "goldnode-slot"),
    ("/etc/default/grub.d", "9?-goldnode*.cfg"),
    ("/usr/lib/goldnode", "goldnode-node"),
    ("/usr/lib/goldnode", "slurm-health"),
    ("/usr/lib/goldnode", "slurm-prolog"),
    ("/usr/lib/goldnode", "slurm-task-prolog"),
    ("/usr/lib/goldnode", "npd-plugin"),
    ("/usr/lib/goldnode", "slot-failed"),
    ("/etc/systemd/system", "goldnode-*.service"),
    ("/etc/systemd/system", "goldnode-*.timer"),
    ("/etc/systemd/system", "goldnode-*.socket"),
    ("/etc/systemd/system/nvidia-persistenced.service.d", "goldnode.conf"),
    ("/etc/systemd/system/docker.service.d", "goldnode*.conf"),
    ("/etc/systemd/system/containerd.service.d", "goldnode*.conf"),
    ("/etc/systemd/system/boot-complete.target.d", "goldnode.conf"),
    ("/etc/systemd/system/systemd-bless-boot.service.d", "goldnode.conf"),
    ("/etc/systemd/system.conf.d", "goldnode.conf"),
    ("/etc/udev/rules.d", "9?-goldnode*.rules"),
    ("/etc/sysctl.d", "90-goldnode.conf"),
    ("/etc/security/limits.d", "90-goldnode.conf"),
    ("/etc/containerd/conf.d", "goldnode*.toml"),
    ("/etc/containers/containers.conf.d", "50-goldnode.conf"),
    ("/etc/cdi", "goldnode-*.json"),
    ("/etc/profile.d", "goldnode.sh"),
    ("/etc/tmpfiles.d", "goldnode-scratch.conf"),
    ("/etc/update-motd.d", "90-goldnode"),
)
# Links that `systemctl enable` would create for goldnode's units, and the program's name in the shell's path.
LINKS = (
    "/usr/sbin/goldnode-node",
    "/etc/systemd/system/multi-user.target.wants/goldnode-sanity.service",
    "/etc/systemd/system/multi-user.target.wants/goldnode-policy.service",
    "/etc/systemd/system/multi-user.target.wants/goldnode-mps.service",
    "/etc/systemd/system/multi-user.target.wants/goldnode-scratch.service",
    "/etc/systemd/system/timers.target.wants/goldnode-watch.timer",
    "/etc/systemd/system/timers.target.wants/goldnode-follow.timer",
    "/etc/systemd/system/sockets.target.wants/goldnode-serve.socket",
    "/etc/systemd/system/multi-user.target.wants/goldnode-events.service",
    "/etc/systemd/system/boot-complete.target.requires/goldnode-good.service",
    "/etc/systemd/system/emergency.target.wants/goldnode-tries.service",
    "/etc/systemd/system/multi-user.target.wants/goldnode-retries.service",
)
# Only a hardware simulator creates this (tests/simulators/hardware). All output is
# then labelled as simulated.
SIMULATOR = "/opt/goldnode-simulator"
# Exists in the PCI tree that a simulator shows instead of the machine's.
SIMULATED_BUS = "/sys/bus/pci/goldnode-simulator"
JOURNAL = "/var/lib/goldnode/journal.json"
# Changes to things that goldnode does not own, so that a removal can undo them
RECORD = "/var/lib/goldnode/state.json"
INDEX = "/var/lib/goldnode/classes/index.json"  # documents to return to; see state/applied.py
HISTORY = "/var/lib/goldnode/history"  # see state/history.py
TRIAL = "/var/lib/goldnode/trial.json"  # the kernel that a boot is to try; see state/trial.py
DISK_IMAGE = "/usr/lib/goldnode/disk"  # files of a first boot, in disk images only
DEFERRED = "/var/lib/goldnode/deferred"  # see state/deferred.py
OWED = f"{DEFERRED}/owed"
REBOOT_MARKS = "/run/goldnode/reboot-required"
INITRAMFS_CACHE = "/run/goldnode/initramfs.json"
MODINFO_CACHE = "/run/goldnode/modinfo.json"
# The files below /lib/modules/RELEASE by which modinfo finds a module, as `depmod` has written them.
MODINFO_INDEX = ("modules.dep.bin", "modules.alias.bin", "modules.builtin.bin")
MODINFO_FIELDS = ("filename", "version", "license", "vermagic", "signer")
SETTLED = 2.0  # seconds; a second change within them may leave a file's times as they are
# Daemons of the driver itself. Its packages restart them, and they hold the devices of every
# healthy node. goldnode's own units (the passive check, MPS) are not jobs either: a job that uses
# MPS has the devices open itself.
OWN_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")
DPKG = "/var/lib/dpkg"
FENCE = "/etc/apt/apt.conf.d/52goldnode-fence"
SPACE = ("/", *obstacles.SHARED)
LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)


def owed(host: Host) -> List[str]:
    """Return the update-initramfs requests that a transaction which was cut off has left: one line of arguments each."""
    return list(dict.fromkeys((host.text(OWED) or "").splitlines()))


def observe(host: Host, document: ClassDocument, keep: bool = True) -> Observed:
    """Return :class:`Observed` without the facts that only a disruptive plan needs.

    For those see :func:`observe_use`.

    :param keep: cache expensive answers under /run for the next observation.
    """
    container = is_container(host)
    own = host.live and not container  # kernel and devices are those of this node
    release = (host.text("/proc/sys/kernel/osrelease") or "").strip()
    apt_options = apt_conf.read(host)
    seen = Observed(
        live=host.live,
        container=container,
        boot_identity=boot_identity(host),
        os=os_release(host.text("/etc/os-release") or ""),
        running_kernel=release if release and (own or host.exists(SIMULATED_KERNEL)) else None,
        page_kib=os.sysconf("SC_PAGESIZE") >> 10 if host.live else None,
        secure_boot=secure_boot(host) if own else None,
        packages=packages(host),
        automatic=automatic(host.text("/var/lib/apt/extended_states") or ""),
        files=managed_files(host),
        folders=owners.folders(
            host,
            [*(directory for directory, _ in MANAGED), *(os.path.dirname(name) for name in LINKS)],
        ),
        links={
            name: os.readlink(host.located(name)) if host.is_link(name) else None for name in LINKS
        },
        sources=apt_effective.sources(host),
        pins=apt_pins(host),
        unfenced=apt_effective.cleared(apt_options, FENCE),
        loosened=apt_effective.loosened(apt_options),
        apt_error=apt_options.error,
        kernels=[name[len("/boot/vmlinuz-") :] for name in host.glob("/boot", "vmlinuz-*")],
        boot=boot_choice(host, document["kernel"]["release"]),
        held_by_us=list((load_json(host, RECORD) or {}).get("held", [])),
        journal=load_json(host, JOURNAL),
        trial=load_json(host, TRIAL) or {},
        simulated=host.exists(SIMULATOR) or host.exists(SIMULATED_KERNEL),
        reboot_marks=list(load_json(host, REBOOT_MARKS) or []),
        runfile=next(
            (
                p
                for p in ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer")
                if host.exists(p)
            ),
            None,
        ),
    )
    seen.strays = owners.strays(host, seen.files)
    # A node that was installed from a disk image got its class without an apply.
    if host.live and seen.files.get(CLASS) and not host.is_dir(DISK_IMAGE):
        seen.unrecorded = [name for name in (RECORD, INDEX, HISTORY) if not host.exists(name)]
    driver = document.get("driver")
    replaced = driver.get("replaces", ()) if driver else ()
    seen.left_over = left_over(host, list(replaced), seen)
    for archive in document.get("site", {}).get("archives", ()):
        data = host.data(archive["signed_by"])
        seen.keyrings[archive["signed_by"]] = key_fingerprints(data) if data is not None else None
    release, image = document["kernel"]["release"], document["kernel"]["image"]
    # A kernel that is not installed is a fault of the stack.
    if seen.version(image):
        seen.boot["fault"] = kernel_fault(host, release)
    if driver and host.exists(f"/lib/modules/{release}"):
        seen.modules[release] = modinfo(
            host, release, driver["module"], driver.get("package"), keep=keep
        )
    seen.forced = forced_modules(host, document["blacklist"])
    seen.initramfs = initramfs_contents(host, document, keep)
    seen.owed = bool(owed(host))
    if own:
        for module in [*document["blacklist"], "nvidia", "amdgpu"]:
            if host.exists(f"/sys/module/{module}/initstate"):
                seen.loaded[module] = (host.text(f"/sys/module/{module}/version") or "").strip()
    # A simulator's PCI tree belongs to the container. Without one, the container shows the bus of its host.
    if own or (host.live and host.exists(SIMULATED_BUS)):
        seen.functions = functions(host)
        seen.gpus = gpus(host, seen.functions)
    pattern = driver.get("library") if driver else None
    if pattern:
        seen.library = library(host, pattern, document["os"]["architecture"])
    return seen


def observe_use(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Collect the facts that matter only before a change: GPU and dpkg users, free space, the compiler."""
    if host.live:
        seen.holders = gpu_holders(host)
        seen.lock_holder = dpkg_lock_holder(host)
    for mount in SPACE:
        # A directory may not exist; its nearest parent shows the free space.
        here = host.path(mount)
        while not here.exists():
            here = here.parent
        stat = os.statvfs(str(here))
        seen.space[mount] = stat.f_bavail * stat.f_frsize
        if stat.f_files:  # btrfs makes inodes as it needs them, and counts none
            seen.inodes[mount] = stat.f_favail
        seen.filesystems[mount] = here.stat().st_dev
    seen.compiler = compiler(host, document["kernel"]["release"])
    seen.obstacles = obstacles.observe(host, document)


def left_over(host: Host, replaced: List[str], seen: Observed) -> List[str]:
    """Return leftover compilers, headers and DKMS packages of a node whose modules come prebuilt.

    These are packages that goldnode installed and that no remaining package needs. A package that
    apt has marked as manual since then belongs to the person who installed it. Members of the stack
    are the exception: goldnode itself names them.
    """
    record = (load_json(host, RECORD) or {}) if replaced else {}
    installed, held = (
        set(record.get("brought", ())),
        {*record.get("held", ()), *record.get("was_held", ())},
    )
    # This lock does not list the headers of kernels of earlier locks.
    named = {*replaced, *(name for name in held if builds_modules(name))}
    own = {
        name
        for name in named & installed
        if name in seen.packages and (name in seen.automatic or name in held)
    }
    if not own:
        return []
    from .needs import relations, unneeded  # start-up time: after a change of the lock

    return sorted(unneeded(own, seen.packages, relations(host))[0])


def key_fingerprints(data: bytes) -> List[str]:
    """Return the fingerprints of the keys in a keyring, or an empty list for any other data."""
    try:
        return openpgp.primary_fingerprints(data)
    except openpgp.OpenPGPError:
        return []


def os_release(text: str) -> Dict[str, str]:
    """Return os-release(5) as {id, version, codename}, unquoted."""
    values = dict(
        line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")
    )
    unquoted = {key: value.strip().strip("\"'") for key, value in values.items()}
    return {
        "id": unquoted.get("ID", ""),
        "version": release_version(unquoted),
        "codename": unquoted.get("VERSION_CODENAME", ""),
    }


def secure_boot(host: Host) -> Optional[bool]:
    """Return the state of UEFI Secure Boot, or None without UEFI.

    It is the fifth byte of the variable, after four bytes of attributes.
    """
    for name in host.glob("/sys/firmware/efi/efivars", "SecureBoot-8be4df61-*"):
        data = host.data(name)
        return bool(data and len(data) >= 5 and data[4] == 1)
    return None


def packages(host: Host) -> Dict[str, Json]:
    """Return every package that dpkg knows.

    Names of a foreign architecture include it (``libcuda1:i386``).
    """
    rows = status(host) or queried(host)
    native = next((row[1] for row in rows if row[0] == "dpkg"), "")
    result: Dict[str, Json] = {}
    for name, architecture, version, want, state, flag in rows:
        if state in ("not-installed", "config-files") and want != "hold":
            continue
        key = name if architecture in (native, "all", "") else f"{name}:{architecture}"
        broken = state if flag == "ok" else "reinst-required"
        result[key] = {
            "version": version,
            "architecture": architecture,
            "state": broken,
            "hold": want == "hold",
        }
    return result


def status(host: Host) -> Optional[List[List[str]]]:
    """Return the rows of :func:`queried` from dpkg's status file, or None if only dpkg can read it.

    That is the case if a transaction has left updates that are not merged yet, or if the
    format is not dpkg's own.
    """
    text = host.text(DPKG + "/status")
    if not text or host.glob(DPKG + "/updates", "*"):
        return None
    rows = []
    for stanza in text.strip("\n").split("\n\n"):
        head = "\n" + stanza
        fields = [
            head.partition(f"\n{name}: ")[2].partition("\n")[0]
            for name in ("Package", "Architecture", "Version", "Status")
        ]
        words = fields.pop().split(" ")
        if not fields[0] or len(words) != 3:
            return None
        rows.append([*fields, words[0], words[2], words[1]])
    return rows


def queried(host: Host) -> List[List[str]]:
    """Return rows from dpkg-query: name, architecture, version, wanted state, state, flag."""
    fields = (
        "${Package}\t${Architecture}\t${Version}\t"
        "${db:Status-Want}\t${db:Status-Status}\t${db:Status-Eflag}\n"
    )
    # --admindir instead of a chroot: the answer must not depend on a program inside the root.
    reported = Host("/").run(
        "dpkg-query", f"--admindir={host.located('/var/lib/dpkg')}", "-W", "-f", fields
    )
    host.commands.append(("dpkg-query",))
    if reported.rc != 0:  # a plan based on an empty package list would be wrong
        raise NodeError(
            f"dpkg-query cannot list what is installed: {reported.tail(2)}. Repair dpkg's database, then "
            "run again."
        )
    return [line.split("\t") for line in reported.out.splitlines()]


def automatic(text: str) -> List[str]:
    """Return the names that apt marks as installed only as dependencies (its extended_states)."""
    names = []
    for stanza in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if fields.get("Auto-Installed") == "1":
            names.append(fields.get("Package", ""))
    return sorted(names)


def managed_files(host: Host) -> Dict[str, Optional[Json]]:
    """Return content, type, owner, group and mode of every file that goldnode wrote.

    Links are not followed, since goldnode never puts a link in the place of a file. The content of
    a binary file is its SHA-256, that of a link its target.
    """
    files: Dict[str, Optional[Json]] = {}
    for directory, pattern in MANAGED:
        names = [f"{directory}/{pattern}"]
        if set(pattern) & set("*?["):
            names = host.glob(directory, pattern)
        for name in names:
            status, data = host.regular_file(name)
            if status is not None:
                row, content = owners.row(host, name, status), ""
                if data is not None:
                    content = printable(data)
                elif row["type"] == "link":
                    content = f"-> {row['to']}\n"
                files[name] = {"content": content, **row}
    return files


def load_json(host: Host, name: str) -> Any:
    """Return a JSON file that goldnode wrote, or None if it is absent or damaged.

    Such a file is only a record; the node itself is the source of truth.
    """
    try:
        return json.loads(host.text(name) or "null")
    except ValueError:
        return None


def apt_pins(host: Host) -> List[Json]:
    """Return packages that foreign apt preferences pin: [{file, line, package, pin, priority, owner}].

    `owner` is the package that ships the file, or None.
    """
    rows = [
        row._asdict()
        for row in apt_effective.pins(host)
        if not row.file.rpartition("/")[2].startswith("goldnode-")
    ]
    # A package may ship its pins, as NVIDIA's pinning packages do. If the class installs that package, the
    # pins do not contradict it.
    files = sorted({str(row["file"]) for row in rows})
    owners = {}
    if files:
        database = f"--admindir={host.located('/var/lib/dpkg')}"
        for line in Host("/").run("dpkg-query", database, "-S", *files).out.splitlines():
            if ": " in line:
                owners[line.rpartition(": ")[2]] = line.partition(":")[0]
    return [{**row, "owner": owners.get(str(row["file"]))} for row in rows]


def modinfo(
    host: Host, release: str, module: str, package: Optional[str] = None, *, keep: bool = False
) -> Optional[Dict[str, str]]:
    """Return version, license, vermagic and signer of a kernel's module, or None if modprobe finds none.

    `altered` is there if its file is not the one that dkms, or this package, installed.
    """
    known = _modinfo(host, release, module, keep)
    if known is None:
        return None
    below = known.pop("filename")[len(host.root.rstrip("/")) :]
    if below.startswith("/"):
        with suppress(OSError):  # replaced in the meantime
            known["altered"] = module_file.altered(host, release, below, package) or ""
    return known


def _modinfo(host: Host, release: str, module: str, keep: bool) -> Optional[Dict[str, str]]:
    """Return what modinfo reports, from the cache if the index of modules and the module's file are the same.

    modinfo reads the whole module, and unpacks it where it is compressed.
    """
    index = [f"/lib/modules/{release}/{name}" for name in MODINFO_INDEX]
    cached = load_json(host, MODINFO_CACHE)
    if isinstance(cached, dict) and cached.get("module") == [release, module]:
        fields = cached.get("fields")
        if isinstance(fields, dict) and fields.keys() == set(MODINFO_FIELDS):
            marks = _marks(host, [*index, str(fields["filename"])])
            if marks is not None and cached.get("of") == marks:
                return {key: str(fields[key]) for key in MODINFO_FIELDS}
    reported = Host("/").run("modinfo", "-b", host.root, "-k", release, module)
    host.commands.append(("modinfo", "-k", release, module))
    if reported.rc != 0:
        return None
    lines: Dict[str, str] = {}
    for line in reported.out.splitlines():
        key, _, value = line.partition(":")
        lines.setdefault(key, value.strip())
    known = {key: lines.get(key, "") for key in MODINFO_FIELDS}
    marks = _marks(host, [*index, known["filename"]])
    if keep and host.live and marks:
        row = {"module": [release, module], "of": marks, "fields": known}
        with suppress(OSError):
            host.write(MODINFO_CACHE, json.dumps(row).encode())
    return known


def _marks(host: Host, names: Sequence[str]) -> Optional[List[str]]:
    """Return an identity of the content of each file; None if one is not there, or was changed just now."""
    marks = []
    for name in names:
        try:
            status = os.stat(name if name.startswith(host.root) else host.located(name))
        except OSError:
            return None
        if time.time() - status.st_ctime < SETTLED:
            return None
        marks.append(
            f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        )
    return marks


def forced_modules(host: Host, unwanted: Iterable[str]) -> List[Json]:
    """Return configuration lines that load an unwanted module by name, at boot or inside the initramfs."""
    names = {module.replace("-", "_") for module in unwanted}
    rows: List[Json] = []
    for name in [
        "/etc/initramfs-tools/modules",
        "/etc/modules",
        *host.glob("/etc/modules-load.d", "*.conf"),
    ]:
        for number, line in enumerate((host.text(name) or "").splitlines(), 1):
            words = line.split()
            if words and words[0].replace("-", "_") in names:
                rows.append({"file": name, "line": number, "module": words[0]})
    return rows


def initramfs_contents(host: Host, document: ClassDocument, keep: bool = True) -> Dict[str, Json]:
    """Return, for each /boot/initrd.img-REL, the unwanted modules and the digests of managed files.

    If the driver or a driver that could take its GPUs is inside, also the lines about them that modprobe reads there.

    Unpacking takes a second, so results are cached under /run by size, mtime and inode of the
    image.
    """
    unwanted, driver = document["blacklist"], document.get("driver")
    stack = [*kmod.STUBS, *((driver["module"], "nvidia") if driver else ())]
    known = load_json(host, INITRAMFS_CACHE) or {}
    cache = dict(known)
    result: Dict[str, Json] = {}
    fresh: Dict[str, Json] = {}
    for name in host.glob("/boot", "initrd.img-*"):
        # An image without modules on disk is a copy or a temporary file (`.bak`, `.dpkg-bak`, `.new`). This
        # class cannot boot it, and a rebuild would destroy it.
        if not host.is_dir("/lib/modules/" + name[len("/boot/initrd.img-") :]):
            continue
        stat = os.stat(host.located(name))
        key = f"{name}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}:{','.join([*unwanted, *stack])}"
        if "error" in cache.get(key, {"error": None}):  # what stopped it may have been installed
            from ..effective import initramfs  # start-up time: cached images need no decompressors

            try:
                listing = initramfs.contents(
                    host.located(name),
                    lambda inner: "/" + inner.rpartition("/")[0] in kmod.DIRECTORIES,
                )
                texts = {"/" + inner: data for inner, data in listing.files.items()}
                cache[key] = {
                    "unwanted": initramfs.modules_named(listing.names, unwanted),
                    "files": {
                        inner: digest(data)
                        for inner, data in texts.items()
                        if "/etc/modprobe.d/goldnode-" in inner
                    },
                }
                inside = initramfs.modules_named(listing.names, stack)
                if inside:
                    names = {kmod.underscored(item) for item in stack}
                    cache[key]["inside"] = inside
                    cache[key]["modprobe"] = [
                        line._asdict()
                        for path in kmod.chosen(texts)
                        for line in kmod.parsed(path, texts[path].decode("utf-8", "replace"))
                        if line.name in names or line.name.startswith("pci:")
                    ]
            except (initramfs.InitramfsError, OSError) as problem:
                cache[key] = {"error": str(problem)}
        fresh[key] = result[name[len("/boot/initrd.img-") :]] = cache[key]
    if keep and host.live and fresh and fresh != known:
        host.write(INITRAMFS_CACHE, json.dumps(fresh).encode())
    return result


def functions(host: Host) -> Dict[str, Tuple[str, str]]:
    """Return the PCI id and the class of each function on the PCI bus, by address.

    Raises OSError if the bus, or a function that is still on it, cannot be read: a GPU may be left
    out.
    """
    files = Files(host.root)
    try:
        names = sorted(os.listdir(files.root + pci.BUS))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    identities = pci.identities(files, names, {})
    for address in pci.unidentified(files, names, identities):
        place = f"{files.root}{pci.BUS}/{address}"
        raise OSError(errno.EIO, "its PCI id and class cannot be read", place)
    return identities


def gpus(host: Host, functions: Mapping[str, Tuple[str, str]]) -> List[Dict[str, Optional[str]]]:
    """Return all GPUs on the PCI bus, independent of the class.

    These are NVIDIA's display functions (class 03) and processing accelerators of any vendor (class
    12). Display functions of other vendors are ignored: a server's own console is one.
    """
    rows: List[Dict[str, Optional[str]]] = []
    for address, (name, kind) in functions.items():
        if kind[:2] == "12" or (name[:4] == "10de" and kind[:2] == "03"):
            driver = host.located(f"{pci.BUS}/{address}/driver")
            bound = os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None
            rows.append({"address": address, "id": name, "driver": bound})
    return rows


def gpu_holders(host: Host) -> List[Json]:
    """Return the processes that have a GPU device open, with unit and container from the cgroup path."""
    holders = []
    for directory in host.glob("/proc", "[0-9]*"):
        if any(
            target.startswith("/dev/nvidia") or target == "/dev/kfd"
            for target in opened_files(host, directory)
        ):
            cgroup = host.text(directory + "/cgroup") or ""
            unit = re.findall(r"([\w@.:\\-]+\.(?:service|scope))", cgroup)
            if unit and (unit[-1] in OWN_UNITS or unit[-1].startswith("goldnode-")):
                continue
            container = re.search(r"([0-9a-f]{64})", cgroup)
            holders.append(
                {
                    "pid": int(directory.rpartition("/")[2]),
                    "command": (host.text(directory + "/comm") or "").strip(),
                    "unit": unit[-1] if unit else None,
                    "container": container.group(1)[:12] if container else None,
                }
            )
    return holders


def opened_files(host: Host, directory: str) -> List[str]:
    """Return the files that a process has open. A file that it closes during the scan is skipped."""
    names = []
    try:
        for entry in os.scandir(host.located(directory + "/fd")):
            with suppress(FileNotFoundError):
                names.append(os.readlink(entry.path))
    except OSError:  # the process has exited
        return names
    return names


def dpkg_lock_holder(host: Host) -> Optional[str]:
    """Return the process that holds dpkg's or apt's lock as ``PID (command)``, and the file of a lock of apt.

    F_GETLK queries it without locking.
    """
    for name in LOCKS:
        here = host.path(name)
        if not here.exists():
            continue
        with here.open("r+b") as opened:
            request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(
                "hhqqi4x", fcntl.fcntl(opened, fcntl.F_GETLK, request)
            )
        if kind != fcntl.F_UNLCK:
            who = f"{pid} ({(host.text(f'/proc/{pid}/comm') or 'gone').strip()})"
            if pid <= 0:  # the kernel shows no process of another PID namespace
                who = "of a container, which `lslocks` on its host names"
            return who if name.startswith(DPKG) else f"{who}, which has {name}"
    return None


def compiler(host: Host, release: str) -> Dict[str, Optional[str]]:
    """Return the compiler that built a kernel (CONFIG_CC_VERSION_TEXT), and the one that dkms would use."""
    config = (
        host.text(f"/boot/config-{release}")
        or host.text(f"/usr/src/linux-headers-{release}/.config")
        or ""
    )
    built = re.search(r'CONFIG_CC_VERSION_TEXT="(.*)"', config)
    major = re.search(r"(\d+)\.\d+\.\d+", built.group(1)) if built else None
    installed: Optional[str] = None
    # Debian's kernels name the compiler of their own major version, which is not always the default gcc.
    for candidate in [f"gcc-{major.group(1)}" if major else "gcc", "gcc"]:
        if host.exists(f"/usr/bin/{candidate}"):
            shown = host.run(candidate, "--version")
            installed = shown.out.splitlines()[0] if shown.rc == 0 else None
            break
    return {"kernel": built.group(1) if built else None, "installed": installed}


def library(host: Host, name: str, architecture: str) -> Optional[str]:
    """Return the file behind a shared library as the dynamic loader resolves it, or None.

    A simulator's library is skipped: packages are compared with the library that they ship.
    """
    try:
        path = ldcache.resolve(host, name, architecture, SIMULATOR + "/").path
    except (OSError, ValueError):  # domain driver_files reports it
        return None
    return "/" + os.path.relpath(host.real(path), host.root) if path else None
