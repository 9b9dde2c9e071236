"""Network interfaces and InfiniBand devices, from sysfs.

Values that the kernel reads under its network lock (speed, duplex, the driver's firmware version) or from
firmware (InfiniBand counters) are read in a child process: a NIC with hanging firmware must not hang the
check.
"""

from __future__ import annotations

import os
from functools import partial

from ..ground.host import Json
from . import reader_process
from .context import Context
from .values import Files, is_fault, not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Tuple

NET, IB = "/sys/class/net", "/sys/class/infiniband"
COUNTERS = (
    "rx_dropped",
    "rx_errors",
    "rx_missed_errors",
    "rx_crc_errors",
    "tx_dropped",
    "tx_errors",
    "rx_packets",
    "tx_packets",
)
# Of a port's fifty or so counters, those that count errors or congestion, or give their scale. Reading one is a firmware call.
PORT = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_wait",
    "VL15_dropped",
    "port_rcv_data",
    "port_xmit_data",
)
HARDWARE = (
    "out_of_sequence",
    "out_of_buffer",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
    "req_cqe_error",
    "np_cnp_sent",
    "rp_cnp_handled",
)
SIOCETHTOOL, GDRVINFO = 0x8946, 3  # linux/sockios.h, linux/ethtool.h
EINVAL = 22
MOST = 64  # interfaces; a node of containers has hundreds of virtual ones, of which none is kept


def slow_reads(context: Context) -> List[Tuple[str, Callable[[], Any]]]:
    """Return the reads that may hang: those of firmware."""
    files = context.files
    if not context.host.live:
        return []
    real = not files.root
    jobs: List[Tuple[str, Callable[[], Any]]] = [
        (f"net {name}", partial(link, files, name, real)) for name in interfaces(context)
    ]
    return jobs + [(f"ib {name}", partial(device, files, name)) for name in files.names(IB)]


def read(context: Context) -> Json:
    """Read the sections network and infiniband."""
    files = context.files
    if not context.host.live:
        fault = not_exposed("an image does not run")
        return {"network": fault, "infiniband": fault}
    asked = context.asked or reader_process.Asked(slow_reads(context))
    names = [name[len("net ") :] for name, _ in asked.jobs if name.startswith("net ")]
    devices = [name[len("ib ") :] for name, _ in asked.jobs if name.startswith("ib ")]
    network = {name: interface(files, name) for name in names}
    answers = asked.finish()
    for name, row in network.items():
        slow = answers[f"net {name}"]
        if is_fault(slow):
            slow = dict.fromkeys(("speed_mbps", "duplex", "firmware"), slow)
        row.update(slow)
    return {"network": network, "infiniband": {name: answers[f"ib {name}"] for name in devices}}


def interfaces(context: Context) -> List[str]:
    """Return the interfaces that are hardware, bundle hardware, are named by the class, or carry the default
    route (a container's own).
    """
    files = context.files
    declared = ((context.document.get("health") or {}).get("baseline") or {}).get("network")
    wanted = {str(name) for name in declared} if isinstance(declared, dict) else set()
    wanted.update(default_routes(files))
    names = [
        name
        for name in files.names(NET)
        if name in wanted
        or files.there(f"{NET}/{name}/device")
        or files.there(f"{NET}/{name}/bonding")
    ]
    return names[:MOST]


def default_routes(files: Files) -> List[str]:
    """Return the interfaces of IPv4 default routes (/proc/net/route: destination and mask of zeros)."""
    text = files.text("/proc/net/route")
    rows = [line.split() for line in text.splitlines()[1:]] if isinstance(text, str) else []
    return [
        row[0] for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"
    ]


def interface(files: Files, name: str) -> Json:
    """Return the sysfs values of an interface that do not need its driver."""
    folder = f"{NET}/{name}"
    row: Json = dict.fromkeys(("address", "driver"), not_exposed("a virtual interface"))
    numa_node: Any = row["address"]
    bound = files.target(f"{folder}/device/driver")
    if files.there(f"{folder}/device"):
        row["address"] = pci_address(files, folder)
        row["driver"] = not_exposed("no driver")
        numa_node = files.number(f"{folder}/device/numa_node")
    if bound:
        row["driver"] = bound.rpartition("/")[2]
    return {
        **row,
        "mac": files.text(f"{folder}/address"),
        "mtu": files.number(f"{folder}/mtu"),
        "state": files.text(f"{folder}/operstate"),
        "carrier_changes": files.number(f"{folder}/carrier_changes"),
        "numa_node": numa_node,
        "counters": {key: files.number(f"{folder}/statistics/{key}") for key in COUNTERS},
    }


def pci_address(files: Files, name: str) -> Any:
    """Return the PCI function that a device (its link below /sys/class or /sys/block) is or belongs to, as
    for virtio and NVMe devices.
    """
    for path in (files.target(name), files.real(f"{name}/device")):
        for part in reversed(path.split("/") if path else ()):
            if len(part) >= 12 and part[-2] == "." and part.count(":") == 2:
                return part.lower()
    return not_exposed("not on the PCI bus")


def link(files: Files, name: str, real: bool) -> Json:
    """Return the driver's values: speed, duplex, firmware. A link that is down has no speed: the kernel
    returns -1, or EINVAL.
    """
    speed = files.number(f"{NET}/{name}/speed")
    unknown = "the link is down, or its driver knows no speed"
    if speed == -1:
        speed = not_exposed(unknown)
    elif isinstance(speed, dict) and speed.get("rc") == EINVAL:
        speed = not_exposed(unknown, EINVAL)
    duplex = files.text(f"{NET}/{name}/duplex")
    if isinstance(duplex, dict) and duplex.get("rc") == EINVAL:
        duplex = not_exposed("the link is down", EINVAL)
    if duplex == "unknown":
        duplex = not_exposed("its driver does not know")
    version = not_exposed("reported by the driver, which is asked on a live node only")
    if real:
        version = firmware(name)
    return {"speed_mbps": speed, "duplex": duplex, "firmware": version}


def firmware(name: str) -> Any:
    """Return the firmware version from the driver (ETHTOOL_GDRVINFO: struct ethtool_drvinfo, 196 bytes,
    fw_version at 68).
    """
    import array
    import fcntl
    import socket
    import struct

    # The kernel writes its answer over the command.
    answer = array.array("B", struct.pack("I", GDRVINFO) + bytes(192))
    request = struct.pack("16sP16x", name.encode()[:15], answer.buffer_info()[0])
    try:
        opened = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM
        )  # any family takes it: the units have this one
        try:
            fcntl.ioctl(opened.fileno(), SIOCETHTOOL, request)
        finally:
            opened.close()
    except OSError as problem:
        fault = not_exposed if problem.errno in (95, 19) else unread  # EOPNOTSUPP, ENODEV
        return fault(os.strerror(problem.errno or 0), problem.errno)
    text = answer.tobytes()[68:100].partition(b"\0")[0].decode("ascii", "replace").strip()
    return text if text and text != "N/A" else not_exposed("its driver reports none")


# -- InfiniBand and RoCE


def device(files: Files, name: str) -> Json:
    """Return an InfiniBand or RoCE device with its ports."""
    folder = f"{IB}/{name}"
    return {
        "address": pci_address(files, folder),
        "firmware": files.text(f"{folder}/fw_ver"),
        "board": files.text(f"{folder}/board_id"),
        "guid": files.text(f"{folder}/node_guid"),
        "ports": {
            number: port(files, f"{folder}/ports/{number}")
            for number in files.names(f"{folder}/ports")
        },
    }


def port(files: Files, folder: str) -> Json:
    """Return a port: `4: ACTIVE` becomes `active`, `5: LinkUp` becomes `linkup`, `400 Gb/sec (4X NDR)`
    becomes 400.
    """
    return {
        "state": word(files.text(f"{folder}/state")),
        "physical": word(files.text(f"{folder}/phys_state")),
        "rate_gbps": rate(files.text(f"{folder}/rate")),
        "layer": word(files.text(f"{folder}/link_layer")),
        "counters": _counts(files, f"{folder}/counters", PORT),
        "hw_counters": _counts(files, f"{folder}/hw_counters", HARDWARE),
    }


def word(value: Any) -> Any:
    """Return the word after the number of a state, in lower case."""
    return value.rpartition(":")[2].strip().lower() if isinstance(value, str) else value


def rate(value: Any) -> Any:
    """Return Gb/s as a number."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value.split()[0])
    except (IndexError, ValueError):
        return unread(f"no rate: {value[:40]!r}")
    return int(number) if number == int(number) else number


def _counts(files: Files, folder: str, names: Tuple[str, ...]) -> Json:
    """Return the listed counters that this device has."""
    there = set(files.names(folder))
    return {name: files.number(f"{folder}/{name}") for name in names if name in there}
