"""Compatibility of GPU processes with the installation.

Judges CUDA libraries against the driver, several copies of one library, and the networks and devices that
NCCL and CUDA are configured for. Pure; the input comes from :mod:`running`.
"""

from __future__ import annotations

from ..ground.host import Json
from ..ground.json_lines import as_list
from ..probe.machine import printable
from ..probe.values import is_fault
from .finding import (
    COMMUNICATION,
    MISMATCH,
    OK,
    UNKNOWN,
    Line,
    Suspect,
    get,
    gpus_of,
    line_of,
    rows_of,
    word,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple


# NVIDIA's forward compatibility package: a newer libcuda for an older kernel module.
COMPAT = "/compat/"


def compatibility(sample: Json, document: Mapping[str, Any]) -> Line:
    """Return the line about the driver's files and running GPU processes. It is ok if none run."""
    line = _workloads(sample, document)
    rows = sample.get("altered")
    suspects: List[Suspect] = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and not is_fault(row):
            path, package = printable(str(row.get("path")), 240), str(row.get("package"))
            look = (
                f"dpkg --verify {word(package)}; then apt-get install --reinstall {word(package)}"
            )
            text = f"{path} of {printable(package)} {printable(str(row.get('why')))}"
            suspects.append(Suspect(text, MISMATCH, 94, look))
    if suspects and line.kind and line.next:
        suspects.append(Suspect(line.text, line.kind, line.weight, line.next))
    unknown = [f"the driver's files were not verified: {_reason(rows)}"] if is_fault(rows) else []
    if line.status == UNKNOWN:
        unknown.append(line.text)
    return line_of("fit", suspects, line.text, unknown) if suspects or unknown else line


def _workloads(sample: Json, document: Mapping[str, Any]) -> Line:
    """Return the line about running GPU processes. It is ok if none run."""
    workloads = sample.get("workloads")
    if not isinstance(workloads, dict) or is_fault(workloads):
        if _occupied(sample):
            return Line("fit", UNKNOWN, "this capture has no processes")
        return Line("fit", OK, "nothing runs")
    error, rows = workloads.get("error"), workloads.get("processes")
    if error or not isinstance(rows, list):
        return Line("fit", UNKNOWN, f"processes could not be listed: {_reason(error)}")
    suspects: List[Suspect] = []
    unknown: List[str] = []
    versions: Dict[str, List[str]] = {}
    rows = [row for row in rows if isinstance(row, dict)]
    looked = 0
    for row in rows:
        who = f"{printable(str(row.get('command', '?')))} (pid {row.get('pid')})"
        libraries = row.get("libraries")
        if is_fault(row.get("error")) or is_fault(libraries) or not isinstance(libraries, list):
            reason = _reason(row.get("error") or libraries)
            unknown.append(f"{who} could not be inspected: {reason}")
            continue
        libraries = [item for item in libraries if isinstance(item, dict)]
        looked += 1
        new, missing = _driver(who, libraries, sample, document)
        suspects += (
            new
            + _copies(who, row, libraries)
            + _networks(who, row, sample)
            + _devices(who, row, sample)
        )
        unknown += missing
        for item in libraries:
            if item.get("name") == "nccl" and item.get("version"):
                versions.setdefault(str(item["version"]), []).append(who)
    if len(versions) > 1:
        reported = ", ".join(
            f"{version} in {names[0]}" for version, names in sorted(versions.items())
        )
        suspects.append(
            Suspect(
                f"processes use different NCCL versions: {reported}",
                MISMATCH,
                58,
                "grep -l libnccl /proc/[0-9]*/maps",
            )
        )
    if workloads.get("unseen"):
        unknown.append(f"{workloads['unseen']} processes could not be inspected in time")
    if not rows and _occupied(sample) and not unknown:
        unknown.append(
            "the driver counts processes that cannot be seen from here (another PID namespace?)"
        )
    fine = f"{looked} processes on the GPUs fit the driver" if looked else "nothing runs"
    return line_of("fit", suspects, fine, unknown)


def _reason(fault: Any) -> str:
    text = fault.get("text") if isinstance(fault, dict) else fault
    return printable(str(text), 120)


def _occupied(sample: Json) -> bool:
    return any(
        isinstance(gpu.get("processes"), list) and gpu["processes"] for gpu in gpus_of(sample)
    )


def version(text: Any) -> Tuple[int, ...]:
    """Return a version as numbers; empty if it is not a version."""
    parts = str(text).split(".")
    if not text or not all(part.isdigit() for part in parts):
        return ()
    return tuple(int(part) for part in parts)


# -- driver and CUDA


def _driver(
    who: str, libraries: List[Json], sample: Json, document: Mapping[str, Any]
) -> Tuple[List[Suspect], List[str]]:
    suspects: List[Suspect] = []
    driver = dict(rows_of(sample, "driver"))
    loaded = next(
        (driver[key] for key in ("loaded", "proc", "reported") if isinstance(driver.get(key), str)),
        None,
    )
    # With NVIDIA's compat package the version of the module does not limit CUDA.
    forward = any(
        item.get("name") == "cuda" and COMPAT in str(item.get("path")) for item in libraries
    )
    for item in libraries:
        own = version(item.get("version"))
        # These two libraries must have the version of the module; a compat package is made not to.
        tied = item.get("name") in ("cuda", "nvidia-ml") and COMPAT not in str(item.get("path"))
        if tied and len(own) > 1 and version(loaded) and own != version(loaded):
            text = f"{who} uses {item['path']}, and the loaded driver is {loaded}"
            after = f"ls -l {word(item['path'])}; cat /proc/driver/nvidia/version"
            if item.get("deleted"):
                after = "restart the program"
            suspects.append(Suspect(text, MISMATCH, 95, after))
    runtimes = [
        (item.get("path"), item.get("version"))
        for item in libraries
        if item.get("name") == "cudart"
    ]
    if not runtimes or forward:
        return suspects, []
    unknown = []
    for path, cuda in runtimes:
        verdict = judge(cuda, loaded, driver.get("cuda"), get(document, "health", "cuda"))
        if verdict is None:
            unknown.append(
                f"{who}: CUDA {cuda or '?'} with driver {loaded or '?'}: not judged without rows of a "
                "class document"
            )
        elif verdict:
            suspects.append(
                Suspect(
                    f"{who}: {path} {verdict}",
                    MISMATCH,
                    94,
                    "goldnode compat; or run the container image of this driver's CUDA",
                )
            )
    return suspects, unknown


def judge(cuda: Any, driver: Any, reported: Any, table: Any) -> Optional[str]:
    """Return "" if a CUDA runtime works with a driver, a sentence if it does not, None if unknown.

    A driver runs the CUDA version that it was released with, and older ones. By minor version compatibility
    it also runs newer ones of a family, from the minimum driver of that family (NVIDIA, "CUDA
    Compatibility").

    :param table: {families: {major: minimum driver}, bundled: {CUDA: driver released with it}} of the class
        document.
    :param reported: the newest CUDA version that the driver itself reports.
    """
    have, needs = version(driver), version(cuda)
    if not needs:
        return None
    own = version(reported)
    if own and needs[:2] <= own[:2]:
        return ""
    if isinstance(table, dict) and have:
        bundled = version(get(table, "bundled", ".".join(map(str, needs[:2]))))
        if bundled and have >= bundled:
            return ""
        minimum = get(table, "families", str(needs[0]))
        if version(minimum) and have >= version(minimum):
            return ""
        if version(minimum):
            return f"needs driver {minimum} or newer, and {driver} is loaded"
    if own and needs[0] > own[0]:
        return (
            f"is of CUDA {'.'.join(map(str, needs[:2]))}, and driver {driver or '?'} runs CUDA up to "
            f"{reported}"
        )
    return "" if own and needs[0] == own[0] and needs[0] >= 11 and table is None else None


# -- several copies, foreign search paths


def _copies(who: str, row: Json, libraries: List[Json]) -> List[Suspect]:
    suspects: List[Suspect] = []
    seen: Dict[str, Dict[str, str]] = {}
    for item in libraries:
        seen.setdefault(str(item.get("name")), {})[str(item.get("path"))] = str(item.get("version"))
        if item.get("deleted"):
            text = f"{who} still uses {item['path']}, which has been replaced under it"
            # An old driver library meets a new module; any other one still fits the program.
            weight = 90 if item.get("name") in ("cuda", "nvidia-ml") else 62
            suspects.append(Suspect(text, MISMATCH, weight, "restart the program"))
    maps = f"grep -E 'libcuda|libcu|libnccl' /proc/{word(row.get('pid'))}/maps | awk '{{print $6}}' | sort -u"
    for name, paths in sorted(seen.items()):
        if len(paths) > 1:
            reported = ", ".join(f"{path} ({text})" for path, text in sorted(paths.items()))
            suspects.append(
                Suspect(
                    f"{who} has {len(paths)} copies of lib{name}: {reported}", MISMATCH, 76, maps
                )
            )
    search = [name for name in _environment(row).get("LD_LIBRARY_PATH", "").split(":") if name]
    # A stub has the symbols of a driver library and calls nothing: CUDA fails to initialise with it.
    for folder in search:
        if "/stubs" in folder:
            text = f"{who}: LD_LIBRARY_PATH names {folder}, whose libraries are stubs for linking"
            suspects.append(
                Suspect(
                    text,
                    MISMATCH,
                    77,
                    f"tr '\\0' '\\n' </proc/{word(row.get('pid'))}/environ | grep ^LD_LIBRARY_PATH",
                )
            )
    runtime = next(
        (version(item.get("version")) for item in libraries if item.get("name") == "cudart"), ()
    )
    torch = version(row.get("torch"))
    if torch and runtime and torch[0] != runtime[0]:
        text = (
            f"{who}: PyTorch was built with CUDA {row['torch']}, and libcudart "
            f"{'.'.join(map(str, runtime))} is mapped"
        )
        suspects.append(Suspect(text, MISMATCH, 76, maps))
    for folder in search:
        named = _cuda_folder(folder)
        if named and runtime and named[: len(runtime)] != runtime[: len(named)]:
            text = (
                f"{who}: LD_LIBRARY_PATH names {folder}, and the program runs with CUDA "
                f"{'.'.join(map(str, runtime[:2]))}"
            )
            suspects.append(Suspect(text, MISMATCH, 60, maps))
    gone = row.get("missing")
    for folder in as_list(gone):
        if "cuda" in str(folder) or "nccl" in str(folder) or "nvidia" in str(folder):
            suspects.append(
                Suspect(
                    f"{who}: LD_LIBRARY_PATH names {printable(str(folder), 200)}, which is not there",
                    MISMATCH,
                    52,
                    f"ls -d {word(folder)}",
                )
            )
    return suspects


def _cuda_folder(folder: str) -> Tuple[int, ...]:
    """Return the CUDA version in a path, such as (12, 4) for /usr/local/cuda-12.4/lib64; empty if there is
    none.
    """
    for part in folder.split("/"):
        if part.startswith("cuda-"):
            return version(part[5:])
    return ()


# -- configuration of NCCL and CUDA


def _environment(row: Json) -> Dict[str, str]:
    return {name: printable(str(value), 400) for name, value in rows_of(row, "environment")}


def _networks(who: str, row: Json, sample: Json) -> List[Suspect]:
    suspects: List[Suspect] = []
    settings = _environment(row)
    names, wanted = row.get("interfaces"), settings.get("NCCL_SOCKET_IFNAME")
    if wanted and isinstance(names, list):
        chosen = [name for name in map(str, names) if selects(wanted, name)]
        look = "ip -br link; NCCL_DEBUG=INFO on the job"
        if not chosen:
            text = (
                f"{who}: NCCL_SOCKET_IFNAME={wanted} names no interface there is "
                f"({', '.join(map(str, names[:6]))})"
            )
            suspects.append(Suspect(text, COMMUNICATION, 89, look))
        # The states in the sample are those of the host's interfaces.
        elif row.get("same_network"):
            down = [
                name
                for name in chosen
                if get(sample.get("network"), name, "state")
                in ("down", "lowerlayerdown", "notpresent")
            ]
            if down and len(down) == len(chosen):
                suspects.append(
                    Suspect(
                        f"{who}: NCCL_SOCKET_IFNAME={wanted} names {', '.join(down)}, which is down",
                        COMMUNICATION,
                        89,
                        look,
                    )
                )
    devices = dict(rows_of(sample, "infiniband"))
    if not isinstance(sample.get("infiniband"), dict) or is_fault(sample["infiniband"]):
        return suspects
    wanted = settings.get("NCCL_IB_HCA")
    active = [
        (name, number)
        for name, device in devices.items()
        for number, port in rows_of(device, "ports")
        if get(port, "state") == "active"
    ]
    if wanted and settings.get("NCCL_IB_DISABLE", "0") in ("", "0"):
        chosen_devices = [name for name in devices if selects(wanted, name)]
        if not chosen_devices:
            text = (
                f"{who}: NCCL_IB_HCA={wanted} names no device there is "
                f"({', '.join(sorted(devices)[:6]) or 'there are no devices'})"
            )
            suspects.append(
                Suspect(text, COMMUNICATION, 89, "ibdev2netdev; NCCL_DEBUG=INFO on the job")
            )
        elif not any(selects(wanted, name, number) for name, number in active):
            suspects.append(
                Suspect(
                    f"{who}: NCCL_IB_HCA={wanted} names no port that is active",
                    COMMUNICATION,
                    89,
                    "ibstat",
                )
            )
    if settings.get("NCCL_IB_DISABLE", "0") not in ("", "0") and active:
        text = f"{who}: NCCL_IB_DISABLE is set, and {active[0][0]} is there and active: NCCL goes over TCP"
        suspects.append(Suspect(text, COMMUNICATION, 69, "NCCL_DEBUG=INFO on the job"))
    return suspects


def selects(wanted: str, name: str, port: Optional[str] = None) -> bool:
    """Return whether a selection of NCCL (NCCL_SOCKET_IFNAME or NCCL_IB_HCA) includes an interface.

    Commas separate prefixes of names. After `=` they are full names, after `^` exclusions; `device:port`
    selects one port. Source: NCCL documentation, "Environment Variables".
    """
    exclude = wanted.startswith("^")
    text = wanted.lstrip("^")
    exact = text.startswith("=")
    for item in text.lstrip("=").split(","):
        start, colon, number = item.strip().partition(":")
        named = name == start or (not exact and name.startswith(start))
        if start and named and (not colon or port is None or number == port):
            return not exclude
    return exclude


def _devices(who: str, row: Json, sample: Json) -> List[Suspect]:
    wanted = _environment(row).get("CUDA_VISIBLE_DEVICES")
    gpus = gpus_of(sample)
    if not wanted or not gpus:
        return []
    uuids = [gpu["uuid"] for gpu in gpus if isinstance(gpu.get("uuid"), str)]
    wrong = []
    for item in map(str.strip, wanted.split(",")):
        # A UUID may be cut to the part that makes it unique (CUDA, environment variables).
        other = item.startswith("GPU-") and not any(uuid.startswith(item) for uuid in uuids)
        if (item.isdigit() and int(item) >= len(gpus)) or (other and uuids):
            wrong.append(item)
    if not wrong:
        return []
    text = f"{who}: CUDA_VISIBLE_DEVICES={wanted} names {', '.join(wrong[:3])}, which this node does not have"
    return [Suspect(text, MISMATCH, 85, "nvidia-smi -L")]
