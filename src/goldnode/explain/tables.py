"""Readers of the tables of vendors' tools: nvidia-smi, `nvidia-smi topo -m`, dcgmi, lspci.

Each takes the lines of its table and judges what the table itself proves. The columns are those of
nvidia-smi 470 to 580, DCGM 2 to 4 and pciutils 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from goldnode.explain.model import TextReading, of_symptom

# -- nvidia-smi

_HEAD = re.compile(r"NVIDIA-SMI (\d\S*)\s+(?:Driver Version: (\S+)\s+)?(?:CUDA Version: (\S+))?")
_GPU = re.compile(
    r"^\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?P<persistence>On|Off|N/A|ERR!)\s*\|"
    r"\s*(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+\S+\s*\|\s*(?P<ecc>\S+)\s*\|"
)
_LOAD = re.compile(
    r"^\|\s*\S+\s+(?P<heat>\S+)\s+\S+\s+\S+\s*/\s*\S+\s*\|\s*(?P<used>\d+)MiB\s*/\s*(?P<all>\d+)MiB\s*\|"
    r"\s*(?P<busy>\d+)%"
)
_PROCESS = re.compile(r"^\|\s+(?P<index>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+[CGM+]+\s")
_FULL = 0.9  # share of a GPU's memory from which an idle GPU is remarkable


def smi(lines: Sequence[str]) -> TextReading | None:
    """Read the table that `nvidia-smi` prints without options."""
    start = next((number for number, line in enumerate(lines) if _HEAD.search(line)), None)
    if start is None:
        return None
    reading = TextReading("the table of nvidia-smi")
    head = _HEAD.search(lines[start])
    assert head is not None  # noqa: S101 - found above
    _, driver, cuda = head.groups()
    reading.notes.append(f"driver {driver or head.group(1)}, CUDA up to {cuda or 'not named'}")
    if cuda in ("N/A", "ERR!"):
        reading.answers.append(
            of_symptom(
                "container-without-gpu",
                text=lines[start],
                line=start,
                title="nvidia-smi finds no libcuda (CUDA Version is not a number)",
            )
        )
    end = start
    for end, line in enumerate(lines[start:], start):
        if line.strip() and line.strip()[0] not in "|+=" and end > start:
            break
        reading.used.add(end)
    table = [line.strip() for line in lines[start : end + 1]]
    busy = {int(match["index"]) for line in table if (match := _PROCESS.match(line))}
    gpus = 0
    for offset, line in enumerate(table):
        match = _GPU.match(line)
        if match is None:
            continue
        gpus += 1
        following = table[offset + 1 : offset + 3]
        _judge_gpu(reading, match=match, at=start + offset, following=following, busy=busy)
    reading.notes.append(f"{gpus} GPU{'' if gpus == 1 else 's'}")
    return reading


def _judge_gpu(
    reading: TextReading,
    *,
    match: re.Match[str],
    at: int,
    following: Sequence[str],
    busy: set[int],
) -> None:
    """Judge one GPU's rows of the table."""
    subject = f"GPU {match['index']} ({match['address'].lower()[-12:]})"
    text = match.string
    rows = [text, *following]
    if any("ERR!" in row for row in rows):
        reading.answers.append(of_symptom("handle-lost", text=text, line=at, subject=subject))
    if match["persistence"] == "Off":
        reading.answers.append(of_symptom("persistence-off", text=text, line=at))
    if match["ecc"].isdigit() and int(match["ecc"]):
        reading.answers.append(
            of_symptom(
                "ecc-errors",
                text=text,
                line=at,
                subject=subject,
                title=f"{match['ecc']} uncorrected ECC errors since the driver was loaded",
            )
        )
    if any(re.search(r"\|\s*Enabled\*?\s*\|\s*$", row) for row in following):
        reading.answers.append(of_symptom("mig-slice", text=text, line=at, title="MIG is enabled"))
    load = _LOAD.match(following[0]) if following else None
    if load and int(load["used"]) >= _FULL * int(load["all"]) and load["busy"] == "0":
        held = "" if int(match["index"]) in busy else ", and the table names no process of it"
        reading.answers.append(
            of_symptom(
                "memory-full-and-idle",
                text=following[0],
                line=at + 1,
                subject=subject,
                title=f"GPU memory is full and nothing computes{held}",
            )
        )


# -- nvidia-smi topo -m

_TOPOLOGY = re.compile(r"^\s*GPU0\s.*(CPU|NUMA) Affinity")
_LINKS = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "C2C")
_NEAR_NIC = ("PIX", "PXB", "PHB", "NODE")


def topology(lines: Sequence[str]) -> TextReading | None:
    """Read the matrix of `nvidia-smi topo -m`: links between GPUs, and between GPUs and NICs.

    The header is underlined by escapes of a terminal, of which a paste often keeps the rest.
    """
    unescaped = [re.sub(r"(\\x1b)?\[\d+m", "", line) for line in lines]
    start = next((number for number, line in enumerate(unescaped) if _TOPOLOGY.match(line)), None)
    if start is None:
        return None
    names = re.split("CPU Affinity|NUMA Affinity", unescaped[start])[0].split()
    reading = TextReading("the matrix of `nvidia-smi topo -m`", used={start})
    matrix: dict[str, dict[str, str]] = {}
    for number, line in enumerate(unescaped[start + 1 :], start + 1):
        words = line.split()
        cells = words[1 : len(names) + 1]
        if words and words[0] in names and len(cells) == len(names):
            if all(cell.startswith(_LINKS) for cell in cells):
                matrix[words[0]] = dict(zip(names, cells, strict=True))
                reading.used.add(number)
        elif matrix and re.match(
            r"(Legend|NIC Legend|(X|SYS|NODE|PHB|PXB|PIX|NV#|NIC\d+) *[=:])", line.strip()
        ):
            reading.used.add(number)
    gpus = [name for name in matrix if name.startswith("GPU")]
    nics = [name for name in names if not name.startswith("GPU")]
    reading.notes.append(f"{len(gpus)} GPUs and {len(nics)} NICs")
    _judge_gpu_links(reading, matrix=matrix, gpus=gpus, line=start)
    far = [gpu for gpu in gpus if not any(matrix[gpu][nic] in _NEAR_NIC for nic in nics)]
    # One or two NICs for management sit at one processor by design.
    if far and len(far) < len(gpus) and 2 * len(nics) > len(gpus):
        ways = ", ".join(f"{nic} {matrix[far[0]][nic]}" for nic in nics)
        reading.answers.append(
            of_symptom(
                "numa-misplaced",
                text=f"{far[0]}: {ways}",
                line=start,
                subject=", ".join(far),
                title="every NIC is reached only through the link between processors (SYS)",
            )
        )
    return reading


def _judge_gpu_links(
    reading: TextReading, *, matrix: Mapping[str, Mapping[str, str]], gpus: Sequence[str], line: int
) -> None:
    """Report pairs with fewer links than most pairs of the machine have."""
    pairs = {
        f"{one}-{other}": _links(matrix[one][other])
        for index, one in enumerate(gpus)
        for other in gpus[index + 1 :]
    }
    most = max(pairs.values(), default=0)
    fewer = [pair for pair, links in pairs.items() if links < most]
    # Bridged boards have one partner each, so most pairs are bare by design; the cube meshes of P100 and
    # V100 have one and two links.
    if most <= 2 or not fewer or 2 * len(fewer) > len(pairs):
        return
    named = ", ".join(f"{pair} {pairs[pair] or 'none'}" for pair in fewer)
    reading.answers.append(
        of_symptom("nvlink-missing", text=f"{named}; others have {most}", line=line, subject=named)
    )


def _links(cell: str) -> int:
    """Return the number of NVLinks in a cell of the matrix, 0 for another way."""
    return int(cell[2:]) if re.fullmatch(r"NV\d+", cell) else 0


# -- dcgmi

# A test of `dcgmi diag` -> the symptom that explains its failure.
_TESTS = {
    "denylist": "nouveau-has-the-gpu",
    "blacklist": "nouveau-has-the-gpu",
    "nvml library": "driver-not-loaded",
    "cuda main library": "driver-not-loaded",
    "cuda toolkit library": "cuda-library-missing",
    "cuda toolkit libraries": "cuda-library-missing",
    "permissions and os-related blocks": "nvml-permissions",
    "permissions and os blocks": "nvml-permissions",
    "persistence mode": "persistence-off",
    "page retirement": "ecc-errors",
    "page retirement/row remap": "ecc-errors",
    "graphics processes": "noisy-neighbour",
    "environment variables": "silent-cpu",
    "pcie": "link-trained-down",
    "gpu memory": "ecc-errors",
    "memory": "ecc-errors",
    "memtest": "ecc-errors",
    "memory bandwidth": "ecc-errors",
    "fabric manager": "fabric-not-ready",
    # Watches of `dcgmi health`.
    "pcie system": "link-trained-down",
    "nvlink system": "nvlink-missing",
    "memory system": "ecc-errors",
    "thermal system": "thermal-slowdown",
    "power system": "power-capped",
}
# A row of `dcgmi health` begins with an arrow, and above its watches is one for the GPU, a number.
_RESULT = re.compile(
    r"^\|\s*(?:-> *)?(?P<name>[A-Za-z][^|]*?)\s*\|\s*"
    r"(?P<result>Pass|Fail|Skip|Warn|Healthy|Failure|Warning)\b(?P<rest>[^|]*)\|"
)
# Rows with the message of a test: the first column is empty or one of these words.
_MORE = re.compile(r"^\|\s*(?:Warning|Error|Info)?[^|A-Za-z]*\|(?P<text>[^|]*)\|")
_VERSION = re.compile(r"^\|\s*(DCGM Version|Driver Version Detected)\s*\|\s*(\S+)")
_CELL = 44  # characters from which a cell's text goes on in the next row without a space


def dcgm(lines: Sequence[str]) -> TextReading | None:
    """Read the table of `dcgmi diag` or `dcgmi health -c`."""
    head = r"\|\s*(Diagnostic\s*\|\s*Result|Health Monitor Report|Overall Health)"
    start = next((number for number, line in enumerate(lines) if re.search(head, line)), None)
    if start is None:
        return None
    reading = TextReading("the table of dcgmi")
    counts = {"Pass": 0, "Fail": 0, "Skip": 0, "Warn": 0}
    table = []
    for number, line in enumerate(lines[start:], start):
        if line.strip() and line.strip()[0] not in "|+":
            break
        reading.used.add(number)
        table.append(line.strip())
    for offset, line in enumerate(table):
        version = _VERSION.match(line)
        if version:
            reading.notes.append(f"{version.group(1)} {version.group(2)}")
        match = _RESULT.match(line)
        if match is None:
            continue
        result = {"Healthy": "Pass", "Failure": "Fail", "Warning": "Warn"}.get(
            match["result"], match["result"]
        )
        counts[result] += 1
        message = _message(table[offset + 1 :])
        # DCGM lets a GPU without persistence mode pass, with a remark in the rows below.
        off = match["name"] == "Persistence Mode" and "is disabled" in message
        if (result in ("Fail", "Warn") and match["name"] != "Overall Health") or off:
            _add_test(reading, name=match["name"], line=start + offset, message=message or line)
    reading.notes.extend(f"{count} {word}" for word, count in counts.items() if count)
    return reading


def _message(rows: Sequence[str]) -> str:
    """Return the text of the rows below a test, which are cut at the width of the column."""
    text = ""
    for row in rows:
        match = _MORE.match(row)
        if match is None:
            break
        cell = match["text"].removeprefix(" ").rstrip()
        text += cell if len(cell) >= _CELL else f"{cell} "
    return text.strip()


def dcgm_json(text: str) -> TextReading | None:
    """Read the document of `dcgmi diag -j`, of DCGM 2 to 4, which may follow lines of the log."""
    try:
        document = json.loads(text[max(text.find("{"), 0) :])
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    body = document.get("DCGM GPU Diagnostic") or document.get("DCGM Diagnostic")
    if not isinstance(body, dict):
        return None
    reading = TextReading("the document of `dcgmi diag -j`", used=set(range(text.count("\n") + 1)))
    reading.notes.extend(
        f"{key} {value}"
        for key, value in body.items()
        if isinstance(value, str) and "ersion" in key
    )
    counts: dict[str, int] = {}
    for name, result in _results(body):
        status = str(result.get("status", "")).lower()
        counts[status] = counts.get(status, 0) + 1
        if status in ("fail", "warn"):
            ids = result.get("gpu_ids", result.get("gpu_id", result.get("entity_id")))
            suffix = "" if ids is None else f" (GPU {ids})"
            message = "; ".join(_warnings(result)) or f"{name}: {status}"
            _add_test(reading, name=name, line=0, message=message + suffix)
    reading.notes.extend(f"{count} {word}" for word, count in counts.items())
    return reading


def _results(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and result of each test. DCGM leaves null for tests that it did not run."""
    for category in body.get("test_categories") or [body]:
        for test in category.get("tests") or ():
            for result in (test or {}).get("results") or ():
                yield str(test.get("name")), result


def _warnings(result: Mapping[str, Any]) -> Iterator[str]:
    for key in ("warnings", "warning", "error", "info"):
        value = result.get(key)
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, dict):
                yield str(row.get("warning") or row.get("error") or "")
            elif row:
                yield str(row)


def _add_test(reading: TextReading, *, name: str, line: int, message: str) -> None:
    reading.answers.append(
        of_symptom(
            _TESTS.get(name.lower().strip(), "dcgm-test-fails"),
            text=message,
            line=line,
            subject=name,
            title=f"DCGM's test {name} does not pass",
        )
    )


# -- kubectl describe node

_RESOURCE = re.compile(r"^\s+(?P<name>(?:nvidia|amd)\.com/\S+):\s+(?P<count>\d+)\s*(?:<.*)?$")


def kubernetes(lines: Sequence[str]) -> TextReading | None:
    """Read Capacity and Allocatable of `kubectl describe node` for GPUs."""
    counts: dict[str, dict[str, tuple[int, int]]] = {"Capacity": {}, "Allocatable": {}}
    reading = TextReading("the resources of a Kubernetes node")
    part = ""
    for number, line in enumerate(lines):
        if line.strip().removesuffix(":") in counts:
            part = line.strip().removesuffix(":")
            reading.used.add(number)
        elif part and re.match(r"\s+\S+:\s+\S+", line):
            reading.used.add(number)
            match = _RESOURCE.match(line)
            if match:
                counts[part][match["name"]] = (int(match["count"]), number)
        else:
            part = ""
    for name, (free, number) in counts["Allocatable"].items():
        have = counts["Capacity"].get(name, (free, number))[0]
        subject = f"{name}: {free} of {have}"
        reading.notes.append(subject)
        if free < have:
            symptom, title = (
                "plugin-marked-unhealthy",
                "the device plugin offers fewer GPUs than it found",
            )
        elif have == 0:
            symptom, title = "pod-without-gpu", "the device plugin found no GPU"
        else:
            continue
        reading.answers.append(
            of_symptom(symptom, text=lines[number], line=number, subject=subject, title=title)
        )
    return reading if counts["Allocatable"] else None


# -- lspci

_DEVICE = re.compile(
    r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?P<what>[^:]+): (?P<name>.*)$"
)
_MAKERS = re.compile(
    r"NVIDIA|Advanced Micro Devices.*(Instinct|Radeon|Aldebaran|Aqua|MI\d)|\[10de:|\[1002:",
    re.IGNORECASE,
)
_INTEL = re.compile(
    r"Intel .*(Data Center GPU|Arc|Ponte|DG2|Battlemage|Flex|Max|Device 0b|Device 56c)|\[8086:(0b|56c|e2)"
)
# The list of /dev/dri: a card is made by each driver of a display, a renderD by the driver of a GPU only.
_DRI = re.compile(r"^[cd][rwxst+.-]{9,11}\s.*\s(?P<name>card\d+|renderD\d+|by-path|\.{1,2})$")
_CLASSES = ("VGA", "3D controller", "Display controller", "Processing accelerators")


def lspci(lines: Sequence[str]) -> TextReading | None:
    """Read the text of `lspci`, with -k, -v or -vv, for GPUs."""
    devices = [number for number, line in enumerate(lines) if _DEVICE.match(line.strip())]
    if not devices:
        return None
    reading = TextReading("the text of lspci")
    gpus = 0
    others: list[int] = []  # numbers of the lines of GPUs of AMD and Intel
    buses: list[int] = []  # of the GPUs
    bridges: list[tuple[int, list[str]]] = []  # numbers of their first lines, and their lines
    for start, end in zip(devices, [*devices[1:], len(lines)], strict=True):
        block = [lines[start]]
        for line in lines[start + 1 : end]:
            if not re.match(r"\s+\S|\s*(Kernel|Subsystem|DeviceName)", line):
                break
            block.append(line)
        reading.used.update(range(start, start + len(block)))
        match = _DEVICE.match(lines[start].strip())
        if match and match["what"].startswith(_CLASSES) and not _NVIDIA.search(match["name"]):
            known = _MAKERS.search(match["name"]) or _INTEL.search(match["name"])
            others.extend([start] if known else [])
        if match and match["what"].startswith(_CLASSES) and _MAKERS.search(match["name"]):
            gpus += 1
            buses.append(int(lines[start].strip().split(".")[0].split(":")[-2], 16))
            _judge_device(reading, block=block, start=start)
        elif match and match["what"].startswith("PCI bridge"):
            bridges.append((start, block))
    _judge_bridges(reading, bridges=bridges, buses=buses)
    _judge_render_devices(reading, lines=lines, gpus=others)
    reading.notes.append(f"{len(devices)} devices, {gpus} of them GPUs of NVIDIA or AMD")
    return reading


_NVIDIA = re.compile(r"NVIDIA|\[10de:", re.IGNORECASE)


def _judge_render_devices(
    reading: TextReading, *, lines: Sequence[str], gpus: Sequence[int]
) -> None:
    """Compare GPUs of AMD and Intel with a list of /dev/dri in the same text, if there is one."""
    listed = {
        number: match["name"]
        for number, line in enumerate(lines)
        if (match := _DRI.match(line.strip()))
    }
    reading.used.update(listed)
    if not any(name.startswith("card") for name in listed.values()):
        return
    devices = sum(name.startswith("renderD") for name in listed.values())
    if devices == 0:
        for number in gpus:
            reading.answers.append(
                of_symptom(
                    "gpu-of-amd-or-intel-without-driver",
                    text=lines[number],
                    line=number,
                    subject=lines[number].strip().split(" ", 1)[0],
                )
            )


_REDIRECTS = re.compile(r"ACSCtl:.*(ReqRedir|CmpltRedir)\+")
_BELOW = re.compile(r"Bus: primary=\w+, secondary=(\w+), subordinate=(\w+)")


def _judge_bridges(
    reading: TextReading, *, bridges: Sequence[tuple[int, list[str]]], buses: Sequence[int]
) -> None:
    """Report the bridges above GPUs that redirect traffic between devices. One whose buses are not shown may be above one."""
    for start, block in bridges:
        below = next((hit for line in block if (hit := _BELOW.search(line))), None)
        above = below is None or any(
            int(below.group(1), 16) <= bus <= int(below.group(2), 16) for bus in buses
        )
        at = next((at for at, line in enumerate(block) if _REDIRECTS.search(line)), None)
        if at is not None and above:
            address = block[0].split(" ", 1)[0]
            reading.answers.append(
                of_symptom("acs-redirects", text=block[at], line=start + at, subject=address)
            )


def _judge_device(reading: TextReading, *, block: Sequence[str], start: int) -> None:
    address = block[0].split(" ", 1)[0]
    detailed = len(block) > 2  # -k or more
    driver = None
    for offset, line in enumerate(block):
        at = start + offset
        if re.search(r"\(rev ff\)|Unknown header type 7f", line):
            reading.answers.append(
                of_symptom(
                    "handle-lost",
                    text=line,
                    line=at,
                    subject=address,
                    title="the bus reads only ones from it: it has fallen off the bus",
                )
            )
        if re.search(r"LnkSta:.*Width x\d+ \(downgraded\)", line):
            reading.answers.append(
                of_symptom("link-trained-down", text=line, line=at, subject=address)
            )
        if re.search(r"Memory at <(unassigned|ignored)>", line):
            reading.answers.append(
                of_symptom("bar-unassigned", text=line, line=at, subject=address)
            )
        if "Kernel driver in use:" in line:
            driver = line.split(":", 1)[1].strip()
    lost = any(
        answer.id == "handle-lost" and answer.subject == address for answer in reading.answers
    )
    if driver in ("nouveau", "nova_core", "nova-core"):
        reading.answers.append(
            of_symptom(
                "nouveau-has-the-gpu",
                text=block[0],
                line=start,
                subject=address,
                title=f"{driver} has it",
            )
        )
    elif driver in ("vfio-pci", "pci-stub"):
        reading.answers.append(
            of_symptom(
                "driver-not-loaded",
                text=block[0],
                line=start,
                subject=address,
                title=f"{driver} has it, for a virtual machine: no driver of this system can use it",
            )
        )
    elif (
        driver is None and detailed and not lost and any("Kernel modules:" in row for row in block)
    ):
        reading.answers.append(
            of_symptom(
                "driver-not-loaded",
                text=block[0],
                line=start,
                subject=address,
                title="no driver has it, though a module would fit",
            )
        )
