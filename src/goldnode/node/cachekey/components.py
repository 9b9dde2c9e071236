"""The components of a key: device, driver and host from a capture, the rest as the caller declares it.

A value that was not read is an error, never a component: two nodes whose values are unknown would share a key.
A value that this hardware does not have is a component, `null`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict, as_list, as_map, as_text
from ..ground.typed import NamedTuple
from ..probe.values import is_fault, not_exposed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypeAlias

Json: TypeAlias = "Dict[str, Any]"

DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
MOST = 64 << 20  # bytes of a description; wheels with many files have records of some MiB
MOST_LIBRARIES = 4096  # wheels of one directory
IMAGE_SCHEMA = "goldnode.image/1"
# The power and clock policy of a class (schemas/class-document.json). Locked clocks cannot be read from a GPU.
POLICY = ("clocks", "overrides", "performance_level", "power_limit_watts")
# Readings that GPUs of every vendor have. NVIDIA's library reports which of the others a GPU lacks.
ALWAYS = ("vendor", "pci_id", "sku", "memory_mib")


class KeyRequest(NamedTuple):
    """Values that no capture has. `document` is the class document of the node, None without a class.

    `gpu` is an index or a PCI address, `mig` a profile. `image` is a digest. `libraries` maps names to
    {version, sha256}, either of which may be null. `source` is a digest of the compiled program.
    """

    document: Optional[Mapping[str, Any]] = None
    gpu: Optional[str] = None
    mig: Optional[str] = None
    image: Optional[str] = None
    libraries: Mapping[str, Mapping[str, Any]] = {}
    glibc: Optional[str] = None
    python_abi: Optional[str] = None
    options: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    source: Optional[str] = None


def components(capture: Mapping[str, Any], request: KeyRequest) -> Json:
    """Return the components of a key from a capture and a request. Pure.

    Raises NodeError if a value is unknown, or if the GPU cannot be chosen.
    """
    unknown: List[str] = []
    _of_this_class(capture, request.document)
    device = _device(chosen(capture, request.gpu), request, unknown)
    if capture.get("simulated") is not False:
        device["simulated"] = True  # a key of a simulator is never that of a real GPU
    # The firmware of the GPU's system processor is released with the driver, and loaded by it.
    driver = _driver(capture, device.pop("gsp_firmware"), unknown)
    cpu = capture.get("cpu")
    cpu = as_map(cpu)
    architecture = cpu.get("architecture")
    if not isinstance(architecture, str):
        unknown.append("cpu.architecture (use a capture of this version of goldnode-node)")
    if unknown:
        raise NodeError(
            f"no key, because these values of the node are unknown: {', '.join(unknown)}. "
            "See why with `goldnode-node check`."
        )
    flags, model = cpu.get("flags"), cpu.get("model")
    return {
        "device": device,
        "driver": driver,
        "image": request.image,
        "libraries": {name: dict(row) for name, row in request.libraries.items()},
        "host": {
            "architecture": architecture,
            "cpu_flags": " ".join(sorted(map(str, flags))) if isinstance(flags, list) else None,
            "cpu_model": as_text(model),
            "glibc": request.glibc,
            "python_abi": request.python_abi,
        },
        "options": dict(request.options),
        "environment": dict(request.environment),
        "source": request.source,
    }


def _of_this_class(capture: Mapping[str, Any], document: Optional[Mapping[str, Any]]) -> None:
    """Raise NodeError unless `document` is the class of the capture: the class has the policy of clocks and power."""
    own = as_dict(capture.get("identity")).get("class")
    given = document.get("class") if document is not None else None
    if own != given and isinstance(own, str):
        what = f"the class document is of {given}" if given else "no class document was given"
        raise NodeError(
            f"the node is of class {own}, and {what}. Give --class with the document of {own}: its policy of clocks "
            "and power is part of the key."
        )


def chosen(capture: Mapping[str, Any], wanted: Optional[str] = None) -> Mapping[str, Any]:
    """Return the GPU of a key: the one that `wanted` names, or any if all are alike.

    Raises NodeError without a GPU, or if the GPUs differ.
    """
    rows = [row for row in as_list(capture.get("gpus")) if isinstance(row, dict)]
    if not rows:
        raise NodeError("the capture has no GPU. See why with `goldnode-node check`.")
    if wanted is not None:
        for row in rows:
            if wanted in (str(row.get("index")), row.get("address"), row.get("uuid")):
                return row
        raise NodeError(
            f"there is no GPU {wanted}. `goldnode-node check` lists them by index and address."
        )
    seen: Dict[str, str] = {}
    for row in rows:
        # GPUs are alike if all readings are, faults included: an unknown value may be another one.
        made = json.dumps(_readings(row), sort_keys=True, default=str)
        seen.setdefault(made, str(row.get("address") or row.get("index")))
    if len(seen) > 1:
        raise NodeError(
            f"the GPUs of this node differ, first {' and '.join(sorted(seen.values())[:2])}. Choose one with --gpu."
        )
    return rows[0]


def _readings(gpu: Mapping[str, Any]) -> Json:
    """Return the readings of a GPU that decide, by the name of their component."""

    def at(*path: str) -> Any:
        value: Any = gpu
        for name in path:
            if is_fault(value) or not isinstance(value, dict):
                break
            value = value.get(name)
        return value

    return {
        "vendor": at("vendor"),
        "pci_id": at("pci_id"),
        "subsystem_id": at("subsystem_id"),
        "sku": at("name"),
        "vbios": at("vbios"),
        "architecture": at("architecture"),
        "memory_mib": at("memory", "total_mib"),
        "ecc": at("ecc", "current"),
        "compute_mode": at("compute_mode"),
        "mig": at("mig", "current"),
        "mig_instances": at("mig", "instances"),
        "power_limit_w": at("power", "limit_w"),
        "max_clocks": at("clocks", "max"),
        "application_clocks": at("clocks", "application"),
        "gsp_firmware": at("gsp_firmware"),
    }


def _device(gpu: Mapping[str, Any], request: KeyRequest, unknown: List[str]) -> Json:
    """Return the component `device`, with `gsp_firmware`, which belongs to the driver."""
    device: Json = {}
    readings = _readings(gpu)
    if readings["vendor"] != "nvidia":
        # Without a library that reports what a GPU lacks, a missing reading is one that it lacks.
        readings = {
            name: not_exposed("") if value is None and name not in ALWAYS else value
            for name, value in readings.items()
        }
    mig, instances = readings.pop("mig"), readings.pop("mig_instances")
    for name, value in readings.items():
        device[name] = _reading(f"gpu.{name}", value, unknown)
    device["mig"] = _profile(mig, instances, request.mig, unknown)
    device["clocks"] = {
        "max": device.pop("max_clocks"),
        "application": device.pop("application_clocks"),
    }
    policy = (request.document or {}).get("policy")
    policy = as_dict(policy)
    device["policy"] = {name: _canonical(policy[name]) for name in POLICY if policy.get(name)}
    return device


def _profile(mig: Any, instances: Any, wanted: Optional[str], unknown: List[str]) -> Optional[str]:
    """Return the profile of the partition that a job gets: `off` for a whole GPU, null where there is no MIG."""
    if _reading("gpu.mig", mig, unknown) is not True:
        return None if is_fault(mig) else "off"
    if wanted is not None:
        return wanted
    names = sorted(set(map(str, instances))) if isinstance(instances, list) else []
    if not names:
        unknown.append("gpu.mig.instances")
        return None
    if len(names) > 1:
        raise NodeError(f"the GPU has partitions of {', '.join(names)}. Choose one with --mig.")
    return names[0]


def _driver(capture: Mapping[str, Any], gsp_firmware: Any, unknown: List[str]) -> Json:
    driver = capture.get("driver")
    driver = as_map(driver)
    # The version that runs; an installed one may wait for a reboot.
    names = ("loaded", "proc", "reported")
    version = next((driver[name] for name in names if isinstance(driver.get(name), str)), None)
    if version is None:
        unknown.append("driver.loaded")
    # Drivers in the kernel's tree have one flavour, and no CUDA.
    own: Json = {"flavour": None, "cuda": None}
    if driver.get("vendor") == "nvidia":
        own = {name: _reading(f"driver.{name}", driver.get(name), unknown) for name in own}
    return {
        "vendor": driver.get("vendor"),
        "version": version,
        **own,
        "gsp_firmware": gsp_firmware,
    }


def _reading(name: str, value: Any, unknown: List[str]) -> Any:
    """Return a reading as a component: null if the hardware has no such value. Record it if it is unknown."""
    parts = list(value.values()) if isinstance(value, dict) and not is_fault(value) else [value]
    if value is None or any(is_fault(part) and part["fault"] != "not_exposed" for part in parts):
        unknown.append(name)
    return _canonical(value)


def _canonical(value: Any) -> Any:
    """Return a value with a canonical form: a fraction becomes text, and a whole float an integer."""
    # The canonical form of JSON has no floats, whose text may differ between programs.
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    if isinstance(value, dict):
        if is_fault(value):
            return None
        return {str(name): _canonical(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return value


# -- libraries, images and sources


def image(text: str) -> str:
    """Return the digest of an image: given as such, or as REPOSITORY@DIGEST."""
    digest = text.rpartition("@")[2]
    if not DIGEST.match(digest):
        raise NodeError(
            f"{text!r} names no content: a tag can move. Give the digest, sha256: and 64 hexadecimal digits, as "
            "`docker inspect --format '{{index .RepoDigests 0}}' IMAGE` prints it."
        )
    return digest


def described(data: bytes, origin: str) -> Json:
    """Return {recipe, libraries} of an image by its description (/usr/lib/goldnode/image.json).

    An image built FROM this one has the same file. Use the recipe only with the libraries that are really there.
    Raises NodeError if it is no such description.
    """
    try:
        description = json.loads(data)
    except (ValueError, RecursionError):
        description = None
    if not isinstance(description, dict) or description.get("schema") != IMAGE_SCHEMA:
        raise NodeError(
            f"{origin} is not a description of an image (/usr/lib/goldnode/image.json in goldnode's images)."
        )
    recipe = description.get("recipe")
    libraries: Dict[str, Json] = {}
    parts = description.get("parts")
    for name, value in as_dict(parts).items():
        version = value.get("version") if isinstance(value, dict) else value
        libraries[str(name)] = {"version": str(version), "sha256": None}
    wheels = description.get("wheels")
    for row in as_list(wheels):
        if isinstance(row, dict) and isinstance(row.get("name"), str):
            libraries[normal(row["name"])] = {
                "version": str(row.get("version")),
                "sha256": row.get("sha256"),
            }
    known = isinstance(recipe, str) and DIGEST.match(recipe)
    return {"recipe": f"recipe:{recipe}" if known else None, "libraries": libraries}


def library(text: str) -> Tuple[str, Json]:
    """Return name and row of NAME=VERSION, NAME=VERSION@sha256:DIGEST or NAME=@PATH, whose content is read."""
    name, equals, value = text.partition("=")
    if not equals or not NAME.match(name) or not value:
        raise NodeError(
            f"{text!r} is no library. Write NAME=VERSION, NAME=VERSION@sha256:DIGEST or NAME=@PATH."
        )
    # A library without a version of its own is known by its content.
    if value.startswith("@"):
        return normal(name), {"version": None, "sha256": content(value[1:])}
    version, at, digest = value.partition("@")
    if at and not DIGEST.match(digest):
        raise NodeError(f"{text!r} has no digest after @. Write sha256: and 64 hexadecimal digits.")
    return normal(name), {"version": version, "sha256": digest.partition(":")[2] if at else None}


def normal(name: str) -> str:
    """Return the normalised name of a Python distribution (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(directory: str) -> Dict[str, Json]:
    """Return the Python distributions in a directory such as site-packages, with the digest of their file lists.

    RECORD has the digest of every file of a distribution (PyPA, recording installed projects), so its own digest
    changes with the content of any library in it. Raises NodeError if the directory cannot be read.
    """
    try:
        names = sorted(os.listdir(directory))
    except OSError as problem:
        raise NodeError(
            f"{directory} cannot be read: {problem.strerror}. Give the directory site-packages."
        ) from None
    libraries: Dict[str, Json] = {}
    for entry in names:
        if not entry.endswith(".dist-info") or len(libraries) >= MOST_LIBRARIES:
            continue
        name, _, version = entry[: -len(".dist-info")].partition("-")
        try:
            digest: Optional[str] = content(f"{directory}/{entry}/RECORD")
        except NodeError:
            digest = None  # a Debian package of Python has no RECORD
        libraries[normal(name)] = {"version": version, "sha256": digest}
    return libraries


def content(path: str) -> str:
    """Return the SHA-256 of a file. Raises NodeError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    except OSError as problem:
        raise NodeError(
            f"{path} cannot be read: {problem.strerror}. Correct the name, or who may read it."
        ) from None
    return digest.hexdigest()


def source(names: Sequence[str]) -> Optional[str]:
    """Return one digest of several files or digests, in their order; None without any."""
    if not names:
        return None
    rows = [name if DIGEST.match(name) else f"sha256:{content(name)}" for name in names]
    if len(rows) == 1:
        return rows[0]
    return "sha256:" + hashlib.sha256("\n".join(rows).encode()).hexdigest()


def pairs(texts: Sequence[str], option: str) -> Dict[str, str]:
    """Return NAME=VALUE words as a mapping. Raises NodeError for another word, and for a name that is given twice."""
    values: Dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not NAME.match(name):
            raise NodeError(f"{option} {text!r} is not NAME=VALUE.")
        if name in values:
            raise NodeError(f"{option} {name} is given twice.")
        values[name] = value
    return values
