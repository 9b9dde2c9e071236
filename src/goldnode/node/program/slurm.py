"""`goldnode-node slurm`: the GPUs of the class as Slurm's configuration has them, and what slurmd
makes of it.

Format of gres.conf and slurm.conf: their manual pages (Slurm 22.05). Format of `slurmd -G`: as
slurmd 22.05.8 prints it. Device files of MIG: NVIDIA, MIG User Guide, Device Nodes and
Capabilities; not verified on a GPU.
"""

from __future__ import annotations

import json
import re
from typing import cast

from ..ground.errors import NodeError
from ..ground.json_lines import as_map
from ..ground.text import phrase
from ..ground.typed import NamedTuple
from ..probe.machine import printable
from ..state import gpumodel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from ..ground.document import ClassDocument
    from ..ground.host import Host, Json

CAPABILITIES = "/proc/driver/nvidia/capabilities"
# Slurm's word for the detection of each vendor's GPUs. Without device files it needs the vendor's
# library.
DETECTION = {"nvidia": "nvml", "amd": "rsmi"}
MOST = 1 << 20  # characters of slurmd's answer
_LINE = re.compile(r"^(?:slurmd(?:-\S+)?: )?Gres Name=(\S+) Type=(\S+) Count=(\d+) (.*)$")
_FILE = re.compile(r"\bFile=(\S+)")
_PROBLEM = re.compile(
    r"^(?:slurmd(?:-\S+)?: )?((?:fatal|error|WARNING): .*|We were configured with .*)$"
)
NO_START_REMEDY = "Give slurmd its slurm.conf, with a NodeName that is this node"
# slurmd prints nothing about GPUs if it has no configuration, or if its node is not in it.
_NO_START = re.compile(
    r"^fatal:|initialization failed|failed to load configs|configuration source", re.IGNORECASE
)
_OF_GPUS = re.compile(r"gres|gpu|/dev/|nvml|rsmi", re.IGNORECASE)
_RANGE = re.compile(r"^(.*)\[([0-9,-]+)\]$")


class GresLine(NamedTuple):
    """Equal GPUs, or equal partitions. `files` has one tuple for each: the device files that belong
    together.

    Without `files` slurmd detects them, or only counts.
    """

    kind: str
    number: int
    files: Tuple[Tuple[str, ...], ...] = ()


class SlurmdAnswer(NamedTuple):
    """The resources that slurmd configured, and its complaints."""

    lines: Tuple[GresLine, ...]
    problems: Tuple[str, ...]


# -- from the class


def wanted(document: ClassDocument) -> List[GresLine]:
    """Return the GPUs of a class, without device files. Pure. Raises NodeError for a class of any model."""
    gpu = document.get("gpu")
    if not isinstance(gpu, dict):
        return []
    if gpumodel.is_auto(gpu):
        raise NodeError(
            "the class takes any model of GPU (`model: auto`), and Slurm needs a name. Name the model."
        )
    kind, count = kind_of(gpu["model"]), int(gpu["count"])
    profiles = _profiles(document)
    if not profiles:
        return [GresLine(kind, count)]
    return [
        GresLine(f"{kind}_{name}", count * profiles.count(name)) for name in sorted(set(profiles))
    ]


def kind_of(model: str) -> str:
    """Return Slurm's type for a model: its first word, which is a part of the name that slurmd detects.

    gres.conf(5): the type should match, or be a substring of, the detected name.
    """
    return re.split(r"[^a-z0-9]", model.lower())[0]


def _profiles(document: ClassDocument) -> List[str]:
    mig = as_map((document.get("policy") or {}).get("mig"))
    return list(mig.get("profiles") or ()) if mig.get("enabled") else []


def features(document: ClassDocument) -> List[str]:
    """Return the features of a node of the class: words that jobs ask for with --constraint. Pure."""
    gpu, driver = document.get("gpu"), document.get("driver")
    words = [str(document.get("class"))]
    if isinstance(gpu, dict):
        words += ["gpu", str(gpu["vendor"]), kind_of(gpu["model"])]
    branch = as_map(driver).get("branch")
    if branch:
        words.append(f"driver_{branch}")
    if _profiles(document):
        words.append("mig")
    # These characters have a meaning in --constraint.
    return list(dict.fromkeys(re.sub(r"[^A-Za-z0-9_.]", "_", name) for name in words))


def with_files(
    lines: Sequence[GresLine], vendor: str, devices: Optional[Sequence[Tuple[str, ...]]]
) -> List[GresLine]:
    """Return lines with their device files. Pure.

    `devices` are those of a node, None without a node: then NVIDIA's GPUs have the minor numbers
    from 0 on. Raises NodeError if they do not fit the class.
    """
    if devices is None:
        if vendor != "nvidia" or len(lines) != 1 or "_" in lines[0].kind:
            return list(lines)
        devices = [(f"/dev/nvidia{number}",) for number in range(lines[0].number)]
    total = sum(line.number for line in lines)
    if len(devices) != total:
        raise NodeError(
            f"the class has {total} GPUs or partitions, and the node {len(devices)}. See `goldnode-node check`."
        )
    if len(lines) > 1:
        raise NodeError(
            "the class has partitions of several profiles, and the files of the driver do not name them. "
            "Use a slurmd with NVML, and AutoDetect=nvml."
        )
    return [line._replace(files=tuple(devices)) for line in lines]


def devices_of(host: Host, partitioned: bool) -> List[Tuple[str, ...]]:
    """Return the device files of each NVIDIA GPU of this node, or of each partition. Raises NodeError."""
    numbers = sorted(
        int(name[len("/dev/nvidia") :])
        for name in host.glob("/dev", "nvidia[0-9]*")
        if name[len("/dev/nvidia") :].isdigit()
    )
    if not partitioned:
        return [(f"/dev/nvidia{number}",) for number in numbers]
    devices = []
    for number in numbers:
        folder = f"{CAPABILITIES}/gpu{number}/mig"
        for instance in host.glob(folder, "gi[0-9]*"):
            for compute in host.glob(instance, "ci[0-9]*"):
                caps = tuple(
                    f"/dev/nvidia-caps/nvidia-cap{_minor(host, f'{place}/access')}"
                    for place in (instance, compute)
                )
                devices.append((f"/dev/nvidia{number}", *caps))
    return devices


def _minor(host: Host, name: str) -> int:
    for line in (host.text(name) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "DeviceFileMinor" and value.strip().isdigit():
            return int(value)
    raise NodeError(f"{name} has no DeviceFileMinor. Check that MIG is on: `nvidia-smi mig -lgi`.")


# -- text


def gres_conf(lines: Sequence[GresLine], vendor: str, nodes: Optional[str] = None) -> List[str]:
    """Return the lines of gres.conf. Pure."""
    start = phrase("NodeName={} ", nodes)
    rows: List[str] = []
    for line in lines:
        if not line.files and vendor in DETECTION:
            rows.append(f"{start}AutoDetect={DETECTION[vendor]}")
        elif not line.files:
            rows.append(f"{start}Name=gpu Type={line.kind} Count={line.number}")
        elif all(len(files) == 1 for files in line.files):
            names = ranged([files[0] for files in line.files])
            rows += [f"{start}Name=gpu Type={line.kind} File={name}" for name in names]
        else:
            rows += [
                f"{start}Name=gpu Type={line.kind} MultipleFiles={','.join(files)}"
                for files in line.files
            ]
    return list(dict.fromkeys(rows))  # one row of detection serves all lines


def slurm_conf(lines: Sequence[GresLine], words: Sequence[str], nodes: str) -> List[str]:
    """Return the lines of slurm.conf: the parameters that belong to the line of these nodes. Pure."""
    gres = ",".join(f"gpu:{line.kind}:{line.number}" for line in lines)
    rows = [f"NodeName={nodes}" + phrase(" Gres={}", gres) + f" Feature={','.join(words)}"]
    return ["GresTypes=gpu", *rows] if gres else rows


def ranged(names: Sequence[str]) -> List[str]:
    """Return device files as Slurm's ranges: /dev/nvidia[0-7]. Pure."""
    rows: Dict[str, List[int]] = {}
    ranges = []
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        if str(int(digits or 0)) == digits:
            rows.setdefault(stem, []).append(int(digits))
        else:
            ranges.append(name)  # no number, or one with leading zeros
    for stem, numbers in rows.items():
        spans: List[List[int]] = []
        for number in sorted(numbers):
            if spans and spans[-1][1] == number - 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
        ranges.append(f"{stem}[{text}]" if len(numbers) > 1 else f"{stem}{text}")
    return ranges


def expanded(text: str) -> List[str]:
    """Return the device files of slurmd's answer: ranges and lists separated by commas. Pure."""
    files = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _RANGE.match(part)
        if match is None:
            files.append(part)
            continue
        for span in match[2].split(","):
            low, _, high = span.partition("-")
            if (
                not low.isdigit()
                or (high and not high.isdigit())
                or int(high or low) - int(low) > 1023
            ):
                return [text]  # gres.conf(5): at most 1024
            files += [f"{match[1]}{number}" for number in range(int(low), int(high or low) + 1)]
    return files


# -- slurmd's answer


def parsed(text: str) -> SlurmdAnswer:
    """Return the answer of `slurmd -G`, which slurmd prints on standard error. Pure."""
    lines, problems = [], []
    for row in text[:MOST].splitlines():
        match = _LINE.match(row)
        if match is not None:
            if match[1] == "gpu":
                file = _FILE.search(match[4])
                names = expanded(file[1]) if file is not None and file[1] != "(null)" else []
                count = int(match[3])
                files: Tuple[Tuple[str, ...], ...] = tuple((name,) for name in names)
                if count == 1 and names:  # several files for one GPU belong together: MultipleFiles
                    files = (tuple(names),)
                lines.append(GresLine("" if match[2] == "(null)" else match[2], count, files))
            continue
        problem = _PROBLEM.match(row)
        if problem is not None:
            problems.append(printable(problem[1], 300))
    return SlurmdAnswer(tuple(lines), tuple(problems))


def failure(answer: SlurmdAnswer) -> Optional[str]:
    """Return why slurmd ended before it looked for GPUs, in its own words; None if it has an answer. Pure."""
    if answer.lines or any(_OF_GPUS.search(text) for text in answer.problems):
        return None
    if not any(_NO_START.search(text) for text in answer.problems):
        return None
    return answer.problems[-1]


def compared(lines: Sequence[GresLine], answer: SlurmdAnswer) -> List[str]:
    """Return the differences of slurmd's answer from the class, each as a sentence. Pure."""
    differences = list(answer.problems)
    want, have = _counts(lines), _counts(answer.lines)
    for kind in sorted(set(want) | set(have)):
        if want.get(kind, 0) != have.get(kind, 0):
            differences.append(
                f"slurmd has {have.get(kind, 0)} of gpu:{kind or '(no type)'}, and the class {want.get(kind, 0)}"
            )
    want_files, have_files = (
        {files for line in rows for files in line.files} for rows in (lines, answer.lines)
    )
    if want_files and answer.lines:
        for title, rows in (
            ("lacks", want_files - have_files),
            ("also has", have_files - want_files),
        ):
            if rows:
                differences.append(
                    f"slurmd {title} {'; '.join(','.join(files) for files in sorted(rows))}"
                )
    return differences


def _counts(lines: Sequence[GresLine]) -> Dict[str, int]:
    counts: Dict[str, int] = {}
    for line in lines:
        counts[line.kind] = counts.get(line.kind, 0) + line.number
    return counts


# -- the command


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.epilog = "With --check, the exit status is 0 for the GPUs of the class, 1 for others, and 3 if slurmd has no answer."
    parser.add_argument(
        "--class", dest="document", metavar="FILE", help="class document (default: the node's own)"
    )
    parser.add_argument(
        "--node", metavar="NAME", help="Slurm's name of this node (default: its host name)"
    )
    parser.add_argument("--check", action="store_true", help="compare with `slurmd -G`")


def run(host: Host, options: Any) -> int:
    """Print Slurm's configuration of this node, or compare it. Return the exit code."""
    from ..cachekey.node import class_of  # the reader of a class document

    given = class_of(host, options.document)
    if given is None:
        raise NodeError(
            "this node has no class. Give --class with a document of `goldnode class export`."
        )
    document = cast("ClassDocument", given)
    lines = wanted(document)
    vendor = str((given.get("gpu") or {}).get("vendor"))
    if lines and vendor == "nvidia":
        lines = with_files(lines, vendor, devices_of(host, bool(_profiles(document))))
    if options.check:
        return check(host, lines, options)
    node = (
        options.node
        or (host.text("/proc/sys/kernel/hostname") or "localhost").strip().partition(".")[0]
    )
    report = {
        "schema": "goldnode.slurm-config/1",
        "slurm_conf": slurm_conf(lines, features(document), node),
        "gres_conf": gres_conf(lines, vendor, node),
    }
    show(report, config_text(report), options.format)
    return 0


def check(host: Host, lines: Sequence[GresLine], options: Any) -> int:
    """Compare the answer of slurmd. Raises NodeError without an answer."""
    done = host.run("slurmd", *(("-N", options.node) if options.node else ()), "-G", timeout=60)
    answer = parsed(done.out + done.err)
    if done.rc != 0 and not answer.problems:
        raise NodeError(
            f"`slurmd -G` failed with status {done.rc}: {printable(done.tail(), 300)}. Run it by hand."
        )
    why = failure(answer)
    if why is not None:
        raise NodeError(f"`slurmd -G` did not come to the GPUs: {why}. {NO_START_REMEDY}.")
    report = check_report(lines, answer)
    show(report, check_text(report), options.format)
    return 1 if report["differences"] else 0


def check_report(lines: Sequence[GresLine], answer: SlurmdAnswer) -> Json:
    """Return the report of a comparison. Pure."""
    return {
        "schema": "goldnode.slurm-check/1",
        "differences": compared(lines, answer),
        "gpus": {f"gpu:{kind}": count for kind, count in sorted(_counts(answer.lines).items())},
    }


def check_text(report: Json) -> str:
    """Return a comparison as text."""
    if report["differences"]:
        return "\n".join(report["differences"])
    counts = ", ".join(f"{count} of {name}" for name, count in report["gpus"].items()) or "no GPUs"
    return f"slurmd has the GPUs of the class: {counts}"


def config_text(report: Json) -> str:
    """Return a configuration as text."""
    gres = ["# gres.conf", *report["gres_conf"]] if report["gres_conf"] else []
    return "\n".join(["# slurm.conf", *report["slurm_conf"], *gres])


def show(report: Json, text: str, form: str) -> None:
    """Print a report as JSON, or its text."""
    print(json.dumps(report, indent=1, sort_keys=True) if form == "json" else text)
