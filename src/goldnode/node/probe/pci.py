"""The PCI path of each GPU, switch, NIC and NVMe device, hop by hop to its root port, from sysfs.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats,
drivers/pci/pci.h (speeds). ``modalias`` has vendor, device and class of a function in one file and, unlike
``uevent``, never waits for the lock that a hanging driver holds. A server's bus has several hundred
functions: of irrelevant ones only this file is read.
"""

from __future__ import annotations

import os

from ..ground.json_lines import as_dict, as_list
from .folder import Folder
from .values import not_exposed, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Json
    from .context import Context
    from .values import Files

    Functions = Dict[str, Tuple[str, str]]

BUS = "/sys/bus/pci/devices"
GPU_VENDORS = ("10de", "1002", "8086")
# GT/s as sysfs writes them -> generation; generation -> Mb/s of one lane after encoding, as the kernel counts (PCIE_SPEED2MBS_ENC).
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
LANE_MBPS = {1: 2000, 2: 4000, 3: 7876, 4: 15753, 5: 31507, 6: 64000, 7: 128000}
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
SLEEPS = "the device sleeps (D3cold)"
SEVERITIES = ("correctable", "nonfatal", "fatal")


def is_address(name: str) -> bool:
    """Return whether a name is a PCI address as sysfs writes it: ``0000:18:00.0``; domains of a controller's own have more digits."""
    parts = name.split(":")
    if len(parts) != 3:
        return False
    domain, bus, place = parts
    return 4 <= len(domain) <= 8 and len(bus) == 2 and len(place) == 4 and place[2] == "."


def read(context: Context) -> Json:
    """Read the sections ``pci`` and ``nvswitches``.

    A node without a PCI bus has a fault in place of the first.
    """
    files = context.files
    names = files.names(BUS)
    if not names and not files.there(BUS):
        return {"pci": not_exposed(f"no {BUS}")}
    inner = as_dict(context.document.get("health")).get("on_package")
    known = context.seen.functions if context.seen is not None else {}
    ids = identities(files, names, known)
    both = sections(files, ids, as_list(inner))
    unknown = unidentified(files, names, ids)
    return {**both, "pci_unread": unknown} if unknown else both


def identities(
    files: Files, names: Sequence[str], known: Mapping[str, Tuple[str, str]]
) -> Functions:
    """Return the :func:`identity` of each function by address. Those in `known` are not read again."""
    ids: Functions = {}
    with Folder(files, BUS) as bus:
        for address in names:
            if is_address(address):
                own = known.get(address) or identity(bus, address)
                if own is not None:
                    ids[address] = own
    return ids


def unidentified(files: Files, names: Sequence[str], ids: Functions) -> List[str]:
    """Return the addresses of functions on the bus whose :func:`identity` is not in `ids`: one may be a GPU.

    A function that has been removed in the meantime is not on the bus.
    """
    return [
        name
        for name in names
        if name not in ids and is_address(name) and os.path.isdir(f"{files.root}{BUS}/{name}")
    ]


def sections(files: Files, ids: Functions, inner: Sequence[str]) -> Json:
    """Return the sections for these functions. `inner`: PCI ids of bridges in packages and on cards."""
    functions: Json = {}
    with Folder(files, BUS) as bus:
        for address, own in ids.items():
            kind = _kind(*own)
            if kind is None:
                continue
            path, root = _path(files, address)
            # An upper end of a link is at an even place: a root port, then a switch's upstream and downstream ports by turns.
            for place, hop in enumerate(path[:-1]):
                if hop not in functions:
                    own_ids = ids.get(hop) or identity(bus, hop) or ("", "")
                    with Folder(files, f"{BUS}/{hop}") as folder:
                        functions[hop] = _port(folder, own_ids, root, place == 0)
            with Folder(files, f"{BUS}/{address}") as folder:
                functions[address] = _device(folder, own, kind, path, root)
    for one in list(functions.values()):
        if one["path"]:
            _judge(functions, one["path"], inner)
    switches = [
        {"address": name, "pci_id": one["pci_id"], "driver": one["driver"]}
        for name, one in functions.items()
        if one["kind"] == "nvswitch"
    ]
    return {"pci": {name: functions[name] for name in sorted(functions)}, "nvswitches": switches}


def identity(bus: Folder, address: str) -> Optional[Tuple[str, str]]:
    """Return (``10de:2330``, ``030200``) of a function; None if it is gone, or if its data cannot be parsed."""
    text = bus.text(f"{address}/modalias")
    if isinstance(text, str) and text.startswith("pci:v") and len(text) == 53:
        low = text.lower()  # pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00
        return f"{low[9:13]}:{low[18:22]}", low[-9:-7] + low[-5:-3] + low[-2:]
    vendor, device, kind = [
        bus.number(f"{address}/{name}") for name in ("vendor", "device", "class")
    ]
    if isinstance(vendor, int) and isinstance(device, int) and isinstance(kind, int):
        return f"{vendor:04x}:{device:04x}", f"{kind:06x}"
    return None


def _kind(pci_id: str, kind: str) -> Optional[str]:
    vendor = pci_id[:4]
    if kind[:2] == "12" or (kind[:2] == "03" and vendor in GPU_VENDORS):
        return "gpu"
    if kind[:4] == "0680" and vendor == "10de":
        return "nvswitch"
    if kind[:2] == "02":
        return "infiniband" if kind[:4] == "0207" else "nic"
    return "nvme" if kind[:4] == "0108" else None


def _path(files: Files, address: str) -> Tuple[List[str], str]:
    """Return (addresses from the root port to the function, the root bus).

    The link is read as text: its target may be gone.
    """
    parts = (files.target(f"{BUS}/{address}") or "").split("/")
    root = ""
    path: List[str] = []
    for part in parts:
        if part.startswith("pci") and part[3:].count(":") == 1:
            root, path = part[3:], []  # a host bridge below another one begins its own hierarchy
        elif is_address(part):
            path.append(part)
    if not path or path[-1] != address:
        return [address], address[:-5]
    return path, root or path[0][:-5]


def _port(folder: Folder, ids: Tuple[str, str], root: str, first: bool) -> Json:
    state = folder.text("power_state")
    row: Json = {
        "pci_id": ids[0],
        "class": ids[1],
        "driver": folder.target("driver"),
        "kind": "port",
        "path": [],
        "root_bus": root,
        "link": link(folder, state == "D3cold"),
        "aer": errors(folder),
        "power_state": state,
    }
    if first:
        # Errors that devices below the port reported to it.
        counts = [
            folder.number(f"aer_rootport_total_err_{name}") for name in ("cor", "nonfatal", "fatal")
        ]
        if any(isinstance(count, int) for count in counts):
            row["aer_reported"] = dict(zip(SEVERITIES, counts))
    row["gone"] = _gone(folder, row)
    return row


def _device(folder: Folder, ids: Tuple[str, str], kind: str, path: List[str], root: str) -> Json:
    node: Any = folder.number("numa_node")
    enabled = folder.number("enable")
    if isinstance(node, int) and node < 0:
        node = not_exposed("the firmware names no NUMA node (-1)")
    row: Json = {
        "pci_id": ids[0],
        "class": ids[1],
        "driver": folder.target("driver"),
        "kind": kind,
        "path": path,
        "root_bus": root,
        "numa_node": node,
        "power_state": folder.text("power_state"),
        "enabled": enabled != 0 if isinstance(enabled, int) else enabled,
    }
    whole = folder.target("physfn")
    if whole is not None:
        row["virtual_of"] = whole
        row["link"] = not_exposed("a virtual function has no link of its own")
        return row
    group = folder.target("iommu_group")
    row["iommu_group"] = int(group) if group is not None and group.isdecimal() else None
    row["link"] = link(folder, row["power_state"] == "D3cold")
    row["aer"] = errors(folder)
    row["bars"] = bars(folder)
    row["gone"] = _gone(folder, row)
    return row


def _gone(folder: Folder, row: Json) -> Any:
    """Return whether the configuration space reads all ones, as that of a device does which is off the bus. One in D3cold is not woken for that."""
    if row["power_state"] == "D3cold":
        return unread(SLEEPS)
    data = folder.data("config", 4)
    if isinstance(data, bytes) and len(data) != 4:
        return unread("no configuration space could be read")
    return data == b"\xff\xff\xff\xff" if isinstance(data, bytes) else data


def link(folder: Folder, asleep: bool = False) -> Json:
    """Return ``{gen, max_gen, width, max_width}`` of the link at this function, each possibly a fault; one
    fault without a link.

    The current speed is not read from a function that is `asleep`, because reading wakes it.
    """
    most: Any = folder.text("max_link_speed")
    speed: Any = unread(SLEEPS) if asleep else folder.text("current_link_speed")
    if not isinstance(speed, str) and not isinstance(most, str):
        return most  # type: ignore[no-any-return]
    return {
        "gen": _generation(speed),
        "max_gen": _generation(most),
        "width": unread(SLEEPS) if asleep else _width(folder.text("current_link_width")),
        "max_width": _width(folder.text("max_link_width")),
    }


def _generation(text: Any) -> Any:
    """Parse ``32.0 GT/s PCIe``, ``8 GT/s`` and, for a link that is down or a device that is gone,
    ``Unknown``.
    """
    if not isinstance(text, str):
        return text
    try:
        return GENERATIONS[float(text.split()[0])]
    except (KeyError, ValueError, IndexError):
        return unread(f"no speed of PCIe: {text[:40]!r}")


def _width(text: Any) -> Any:
    """Return the width. 0 is a link that is down; 63 and 255 are the bits of a device that reads all ones."""
    if not isinstance(text, str):
        return text
    width = int(text) if text.isdecimal() and len(text) < 4 else -1
    return width if width in WIDTHS else unread(f"no width of a link: {text[:40]!r}")


def errors(folder: Folder) -> Json:
    """Return ``{correctable, nonfatal, fatal, counters: {"fatal.DLP": n}}`` (counters that are not zero), or
    a fault if the kernel has no AER here.

    A line is ``RxErr 3``, on older kernels ``Receiver Error 3``; the total has a line of its own.
    """
    row: Json = {}
    counters: Dict[str, int] = {}
    for severity in SEVERITIES:
        text = folder.text(f"aer_dev_{severity}")
        if not isinstance(text, str):
            if severity == "correctable" and text["fault"] == "not_exposed":
                return text
            row[severity] = text
            continue
        last_line = text.rpartition("\n")[2]
        if last_line.startswith("TOTAL") and last_line.endswith(" 0"):
            row[severity] = 0
            continue
        total = None
        added = 0
        for line in text.split("\n")[:64]:
            name, _, last = line.rpartition(" ")
            if not last.isdecimal() or len(last) > 20:
                continue
            if name.startswith("TOTAL"):
                total = int(last)
            else:
                added += int(last)
                if last != "0":
                    counters[f"{severity}.{name.strip()[:40]}"] = int(last)
        if total is None and not added and "0" not in text:
            row[severity] = unread("no counters in the file")
        else:
            row[severity] = added if total is None else total
    row["counters"] = counters
    return row


def bars(folder: Folder) -> Any:
    """Return the sizes in bytes of the six base address registers (0: absent), from lines of start, end and
    flags.
    """
    text = folder.text("resource")
    if not isinstance(text, str):
        return text
    sizes = []
    for line in text.split("\n")[:6]:
        try:
            start, end = [int(word, 16) for word in line.split()[:2]]
        except ValueError:
            return unread(f"no resource: {line[:60]!r}")
        sizes.append(end - start + 1 if end > start else 0)
    return sizes


def _judge(functions: Json, path: Sequence[str], inner: Sequence[str]) -> None:
    """Set ``on_package`` at both ends of links in a package, and ``edge`` and ``limits`` of the device at the
    end of `path`.
    """
    device = functions[path[-1]]
    narrow: Optional[Json] = None
    now: Optional[Json] = None
    unknown: List[str] = []
    edge = None
    # From the device up, so that of hops that are as narrow the one nearest to it is named.
    for lower_place in range(len(path) - 1 if len(path) % 2 == 0 else len(path) - 2, 0, -2):
        upper, lower = path[lower_place - 1], path[lower_place]
        if functions[upper]["pci_id"] in inner:
            functions[upper]["on_package"] = functions[lower]["on_package"] = True
            continue
        if edge is None:
            edge = lower
        ends = [functions[end]["link"] for end in (upper, lower)]
        hop = _hop(upper, lower, ends)
        gens, widths = _numbers(ends, "gen"), _numbers(ends, "width")
        if hop is None or not gens or not widths:
            unknown.append(lower)
        if hop is not None and (narrow is None or hop["gbps"] < narrow["gbps"]):
            narrow = hop
        if gens and widths:
            rate = bandwidth(min(gens), min(widths))
            if now is None or rate < now["gbps"]:
                now = {"gen": min(gens), "width": min(widths), "gbps": rate, "at": lower}
    device["edge"] = edge
    if "virtual_of" in device:
        return
    if narrow is None:
        device["limits"] = not_exposed("no hop reports the capability of its link")
        return
    narrow["now"] = now
    if unknown:
        narrow["unknown"] = unknown
    device["limits"] = narrow


def bandwidth(gen: int, width: int) -> float:
    """Return Gb/s of a link in one direction, as the kernel counts it in "available PCIe bandwidth"."""
    return LANE_MBPS[gen] * width / 1000


def _hop(upper: str, lower: str, ends: Sequence[Mapping[str, Any]]) -> Optional[Json]:
    """Return the maximum of a link, independent of its idle state: the lower generation and width of its
    ends, and at most the lanes it trained with.
    """
    gens, widths = _numbers(ends, "max_gen"), _numbers(ends, "max_width")
    if not gens or not widths:
        return None
    row: Json = {
        "gen": min(gens),
        "width": min(widths + _numbers(ends, "width")),
        "link": [upper, lower],
    }
    row["gbps"] = bandwidth(row["gen"], row["width"])
    # A link that came up narrower than both its ends can be is the fault of neither by declaration: a seat, a riser, a lane.
    rates = [bandwidth(gen, width) for gen, width in zip(gens, widths)]
    row["declared_by"], row["at"] = "device", lower
    if row["width"] < min(widths):
        row["declared_by"] = "link"
    elif len(gens) == len(widths) == 2 and rates[0] < rates[1]:
        row["declared_by"], row["at"] = "slot", upper
    return row


def _numbers(ends: Sequence[Mapping[str, Any]], key: str) -> List[int]:
    return [one[key] for one in ends if isinstance(one.get(key), int)]
