"""survey(host): the state of a node without a class. Only reads. `goldnode adopt` derives a class
and a stack from it, for review.
"""

from __future__ import annotations

import os
import platform
import re

from ..effective import apt
from ..ground.host import Host, Json, is_container
from ..ground.verdict_files import CLASS
from ..probe.machine import processor, processor_model
from ..state import observe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional


SCHEMA = "goldnode.survey/1"

# Kernel modules of GPU drivers, with the names that distributions use.
DRIVERS = ("nvidia", "nvidia-current", "nvidia-tesla", "nvidia-tesla-470", "amdgpu")
NAMES = (
    "docker.io",
    "docker-ce",
    "containerd",
    "containerd.io",
    "podman",
    "nvidia-container-toolkit",
    "amd-container-toolkit",
)
# Left by NVIDIA's own installer, which no package manager knows.
RUNFILE = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer")
# nvidia-smi's names of settings that a policy can have. It prints [N/A] if a GPU lacks a setting.
QUERY = (
    "pci.bus_id,name,uuid,persistence_mode,power.limit,clocks.applications.graphics,"
    "clocks.applications.memory,ecc.mode.current,compute_mode,mig.mode.current,vbios_version"
)


def survey(host: Host) -> Json:
    """Return everything that `goldnode adopt` needs to know about a node, as plain data (schema
    goldnode.survey/1). None: could not be read here.
    """
    container = is_container(host)
    own = host.live and not container
    release = platform.release() if own else None
    packages = observe.packages(host)
    kernels = [name[len("/boot/vmlinuz-") :] for name in host.glob("/boot", "vmlinuz-*")]
    built_for = release or next(reversed(kernels), None)
    state: Json = {
        "schema": SCHEMA,
        "container": container,
        "os": {
            **observe.os_release(host.text("/etc/os-release") or ""),
            "architecture": architecture(host),
        },
        "kernel": {
            "running": release,
            "installed": kernels,
            "cmdline": (host.text("/proc/cmdline") or "").strip() if own else None,
        },
        "secure_boot": None,
        "packages": {
            name: {"version": row["version"], "state": row["state"], "hold": row["hold"]}
            for name, row in packages.items()
        },
        "automatic": observe.automatic(host.text("/var/lib/apt/extended_states") or ""),
        "sources": apt.sources(host),
        "pins": observe.apt_pins(host),
        "runfile": next(filter(host.exists, RUNFILE), None),
        "driver": drivers(host, built_for),
        "loaded": None,
        "dkms": dkms(host),
        "gpus": None,
        "nvswitch": None,
        "settings": None,
        "runtime": {name: packages[name]["version"] for name in NAMES if name in packages},
        "host": None,
        "hardware": None,
        "goldnode": host.exists(CLASS),
    }
    if own:  # an image has no hardware, and a container shows that of its host
        state.update(
            secure_boot=observe.secure_boot(host),
            loaded=loaded(host),
            gpus=observe.gpus(host, observe.functions(host)),
            nvswitch=nvswitch(host),
            settings=settings(host),
            host=tuned(host),
            hardware=hardware(host),
        )
    return state


def hardware(host: Host) -> Json:
    """Return the machine: {memory_mib, processor, sockets, threads, product}. None: could not be read."""
    memory = re.search(r"^MemTotal: +(\d+) kB", host.text("/proc/meminfo") or "", re.MULTILINE)
    model = processor_model(processor(host.text("/proc/cpuinfo") or ""))
    cpus = host.glob("/sys/devices/system/cpu", "cpu[0-9]*")
    sockets = {host.text(f"{cpu}/topology/physical_package_id") for cpu in cpus} - {None}
    named = host.text("/sys/class/dmi/id/product_name") or host.text("/proc/device-tree/model")
    product = (named or "").strip("\0\n ")
    return {
        "memory_mib": int(memory.group(1)) // 1024 if memory else None,
        "processor": model,
        "sockets": len(sockets) or None,
        "threads": len(cpus) or None,
        "product": product or None,
    }


def architecture(host: Host) -> str:
    """Return dpkg's name for the architecture of the root."""
    return host.run("dpkg", "--print-architecture").out.strip()


def drivers(host: Host, release: Optional[str]) -> List[Json]:
    """Return the GPU driver modules that modprobe would find for a kernel: [{module, version, license,
    vermagic, signer, file}].
    """
    modules = []
    for module in DRIVERS if release else ():
        info = observe.modinfo(host, str(release), module)
        # The amdgpu module of the kernel itself has no version.
        if info is not None and (module != "amdgpu" or info["version"]):
            modules.append({"module": module, **info})
    return modules


def loaded(host: Host) -> List[Json]:
    """Return the loaded out-of-tree modules, by the letter O of their taint (Linux admin guide, tainted
    kernels).
    """
    modules = []
    for name in host.glob("/sys/module", "*"):
        taint = (host.text(f"{name}/taint") or "").strip()
        if "O" in taint:
            modules.append(
                {
                    "module": name.rpartition("/")[2],
                    "version": (host.text(f"{name}/version") or "").strip() or None,
                }
            )
    return modules


def dkms(host: Host) -> List[Json]:
    """Return the DKMS tree: [{name, version, kernels, package}]. `package` owns the source; None if no
    package does.
    """
    owners: Dict[str, str] = {}
    for listing in host.glob("/var/lib/dpkg/info", "*.list"):
        for path in re.findall(
            r"^/usr/src/([^/\n]+)/dkms\.conf$", host.text(listing) or "", re.MULTILINE
        ):
            owners[path] = listing.rpartition("/")[2][: -len(".list")].partition(":")[0]
    trees = []
    for tree in host.glob("/var/lib/dkms", "*"):
        for version in host.glob(tree, "[0-9]*"):
            name, number = tree.rpartition("/")[2], version.rpartition("/")[2]
            kernels = [
                row.rpartition("/")[2]
                for row in host.glob(version, "*")
                if host.is_dir(f"{row}/{os.uname().machine}")
            ]
            trees.append(
                {
                    "name": name,
                    "version": number,
                    "kernels": kernels,
                    "package": owners.get(f"{name}-{number}"),
                }
            )
    return trees


def nvswitch(host: Host) -> bool:
    """Return whether the PCI bus has an NVSwitch: an NVIDIA bridge of class 0680. The class covers
    models that a list of ids would miss.
    """
    return any(
        (host.text(f"{name}/vendor") or "").strip() == "0x10de"
        and (host.text(f"{name}/class") or "").strip() == "0x068000"
        for name in host.glob("/sys/bus/pci/devices", "*")
    )


def settings(host: Host) -> Optional[List[Dict[str, str]]]:
    """Return nvidia-smi's settings of each GPU, unparsed; None without nvidia-smi or its driver."""
    answer = host.run(
        "nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", timeout=60
    )
    if answer.rc != 0:
        return None
    return [
        dict(zip(QUERY.split(","), (field.strip() for field in line.split(","))))
        for line in answer.out.splitlines()
        if line.strip()
    ]


def tuned(host: Host) -> Json:
    """Return the current values of the host settings that a policy can have."""
    cpus = host.glob("/sys/devices/system/cpu", "cpu[0-9]*")
    governors = sorted(
        {(host.text(f"{cpu}/cpufreq/scaling_governor") or "").strip() for cpu in cpus} - {""}
    )
    mtu = {}
    for name in host.glob("/sys/class/net", "*"):
        if host.exists(f"{name}/device"):
            mtu[name.rpartition("/")[2]] = int((host.text(f"{name}/mtu") or "0").strip() or 0)
    return {
        "governors": governors,
        "swap": len((host.text("/proc/swaps") or "").splitlines()) > 1,
        "numa_balancing": (host.text("/proc/sys/kernel/numa_balancing") or "").strip() or None,
        "hugepages": (host.text("/proc/sys/vm/nr_hugepages") or "").strip() or None,
        "mtu": mtu,
    }
