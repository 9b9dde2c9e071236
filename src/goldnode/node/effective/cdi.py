"""CDI specs: the files that describe devices to container engines, and which of them an engine uses."""

from __future__ import annotations

import json
import os
import stat

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

# Lowest precedence first (CDI specification: later directories win).
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
CONTROL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
CAPABILITIES, CAPABILITY = "/proc/driver/nvidia/capabilities", "/dev/nvidia-caps/nvidia-cap"
# Minors of `mig/config` and `mig/monitor`, which are there without an instance.
NO_INSTANCE = ("1", "2")


class CdiSpec(NamedTuple):
    """One file. `kind` is None, and `error` the reason, for one that could not be read.

    `paths` are the host's paths that it names (CDI specification, section "CDI JSON"), `numbers` the
    device numbers (major, minor) that it records for some of them.
    """

    kind: Optional[str]
    devices: Sequence[str] = ()
    paths: Sequence[str] = ()
    numbers: Mapping[str, Tuple[int, int]] = {}
    error: Optional[str] = None


# A check reads each file for two of its sections.
_known: Dict[str, CdiSpec] = {}


def read_cdi(text: str) -> CdiSpec:
    """Return a spec from its text in JSON or YAML."""
    if text not in _known:
        if len(_known) > 16:
            _known.clear()
        _known[text] = _read(text)
    return _known[text]


def _read(text: str) -> CdiSpec:
    try:
        document = json.loads(text)
    except RecursionError:
        return CdiSpec(None, error="it is nested too deeply")
    except ValueError:
        from . import yamltext  # start-up time: few nodes have a spec

        try:
            document = yamltext.read(text)
        except yamltext.YamlError as problem:
            return CdiSpec(None, error=str(problem))
    try:
        return _object(document)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return CdiSpec(None, error="no CDI spec")


def _object(document: Any) -> CdiSpec:
    paths: List[str] = []
    numbers: Dict[str, Tuple[int, int]] = {}
    devices = document.get("devices") or ()
    for part in (document, *devices):
        edits = part.get("containerEdits") or {}
        for node in edits.get("deviceNodes") or ():
            path = str(node.get("hostPath") or node["path"])
            paths.append(path)
            # An engine asks the host only for the numbers of a node without a major number
            # (container-edits_unix.go of the CDI libraries, fillMissingInfo).
            if node.get("major"):
                numbers[path] = int(node["major"]), int(node.get("minor") or 0)
        paths += [str(mount["hostPath"]) for mount in edits.get("mounts") or ()]
        paths += [str(hook["path"]) for hook in edits.get("hooks") or ()]
    kind = document.get("kind")
    if not isinstance(kind, str):
        raise TypeError("no kind")
    return CdiSpec(
        kind,
        [str(device.get("name")) for device in devices],
        sorted(set(paths)),
        numbers,
    )


def winners(specs: Sequence[Tuple[str, Sequence[str]]]) -> Dict[str, List[str]]:
    """Return the file that an engine takes each device from: device -> [file]; all files if they conflict.

    `specs` are the files of one kind with their devices. A file of a later directory wins. A device that
    is in two files of one directory is in none: no container gets it, even if a later directory has it
    too (cache.go of the CDI libraries, refresh).
    """

    def rank(row: Tuple[str, Sequence[str]]) -> int:
        folder = os.path.dirname(row[0])
        return DIRECTORIES.index(folder) if folder in DIRECTORIES else -1

    result: Dict[str, List[str]] = {}
    ranks: Dict[str, int] = {}
    for file, devices in sorted(specs, key=lambda row: (rank(row), row[0])):
        own = rank((file, ()))
        for name in devices:
            if len(result.get(name, ())) > 1 or ranks.get(name) == own:
                result[name].append(file)
            else:
                result[name], ranks[name] = [file], own
    return result


def differences(spec: CdiSpec, root: str) -> List[str]:
    """Return where a spec and the NVIDIA devices of the node whose files are under `root` differ.

    Paths that do not exist are not in it. Nothing is read for a spec without device numbers and MIG.
    """
    root, texts = root.rstrip("/"), []
    for path, recorded in sorted(spec.numbers.items()):
        try:
            status = os.stat(root + path)
        except OSError:  # it is missing
            continue
        have = os.major(status.st_rdev), os.minor(status.st_rdev)
        if stat.S_ISCHR(status.st_mode) and have != recorded:
            texts.append(
                f"{path} is {have[0]}:{have[1]}, and the spec has {recorded[0]}:{recorded[1]}"
            )
    names = [path[path.find("/dev/") :] for path in spec.paths if "/dev/nvidia" in path]
    boards = CONTROL in names or any(name[11:].isdecimal() for name in names)
    if boards and UVM not in names and os.path.exists(root + UVM):
        texts.append(f"{UVM} is not in it, without which CUDA does not start")
    minors = {name[len(CAPABILITY) :] for name in names if name.startswith(CAPABILITY)}
    gone = sorted(minors.difference(NO_INSTANCE, _instances(root) if minors else ()), key=int)
    if minors.difference(NO_INSTANCE) and gone and os.path.isdir(root + CAPABILITIES):
        texts.append(f"{CAPABILITY}{gone[0]} is of a MIG instance that is gone")
    return texts


def _instances(root: str) -> List[str]:
    """Return the minors of the MIG instances that are there (NVIDIA MIG User Guide, "Device Nodes")."""
    minors = []
    for folder, _, files in os.walk(root + CAPABILITIES):
        if "access" in files:
            with open(f"{folder}/access", encoding="utf-8", errors="replace") as opened:
                word = opened.readline().rpartition(":")[2].strip()
            minors.append(word)
    return minors
