"""The carry folder: files for a GPU machine without network and packages.

It is made on a machine with the project's environment. It has `goldnode-node` and `goldnode-smoke`
as single files, the facts of NVIDIA's models and the catalog's classes as JSON, and optional wheels
with shared libraries. At most 64 MiB in total.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

from goldnode.core.errors import GoldnodeError

SCHEMA = "goldnode.prove-gpu-carry/1"
LIMIT = 64 << 20  # bytes; the folder is carried by hand to a machine without network
NODE, SMOKE, FACTS, MANIFEST, WHEELS = (
    "goldnode-node",
    "goldnode-smoke",
    "facts.json",
    "carry.json",
    "wheels",
)
AGAIN = "scripts/prove-gpu pack"

Json = Dict[str, Any]


class CarryError(GoldnodeError):
    """The carry folder is missing, damaged or too large."""


class CarryFolder(NamedTuple):
    """Content of a carry folder: both programs, the facts, directories of libraries, and the commit of the
    checkout.
    """

    node: Path
    smoke: Path
    facts: Json
    libraries: List[str]
    commit: str
    wheels: List[str]


# -- on the developer's machine


def pack(folder: Path, wheels: Sequence[Path] = ()) -> int:
    """Make the carry folder `folder`. Return its size in bytes.

    Raises CarryError if it would be larger than 64 MiB, and then leaves nothing.
    """
    # Imported here: they need packages that a GPU machine may lack.
    from goldnode.core import program_file as nodefile
    from goldnode.gpuprogram.smoke import pack as smoke

    root = Path(__file__).resolve().parents[3]
    files = {
        NODE: nodefile.build(),
        SMOKE: smoke.program(),
        FACTS: json.dumps(collect(), sort_keys=True).encode(),
    }
    for wheel in wheels:
        try:
            if not zipfile.is_zipfile(wheel):
                raise CarryError(
                    f"{wheel} is no wheel",
                    remedy="give files that `pip download --no-deps` has written",
                )
            files[f"{WHEELS}/{wheel.name}"] = wheel.read_bytes()
        except OSError as problem:
            raise CarryError(
                f"{wheel} cannot be read ({problem.strerror})", remedy="give the path of a wheel"
            ) from None
    manifest = {
        "schema": SCHEMA,
        "commit": commit(root),
        "files": {name: digest(data) for name, data in sorted(files.items())},
    }
    files[MANIFEST] = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    size = sum(map(len, files.values()))
    if size > LIMIT:
        largest = sorted(files, key=lambda name: -len(files[name]))[:3]
        sizes = ", ".join(f"{name} {len(files[name]) / (1 << 20):.1f} MiB" for name in largest)
        raise CarryError(
            f"the carry folder would have {size / (1 << 20):.1f} MiB, and a machine takes at most "
            f"{LIMIT >> 20} MiB. The largest: {sizes}",
            remedy=f"leave a wheel out: {AGAIN} {folder} [--wheel FILE]…",
        )
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise CarryError(
            f"{folder} holds files that are no carry folder's",
            remedy="name another directory, or an empty one",
        )
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        if name in (NODE, SMOKE):
            place.chmod(0o755)
    return size


def collect() -> Json:
    """Return the facts of each NVIDIA model, and the catalog's classes that have one."""
    from goldnode.classdoc.gpu_facts import health_facts
    from goldnode.classdoc.load import load_catalog
    from goldnode.facts import host as facts
    from goldnode.facts import xid

    models = {
        sku: {
            "pci_ids": list(gpu.pci_ids),
            "architecture": gpu.architecture,
            "health": health_facts(sku),
        }
        for sku, gpu in facts.gpus().items()
        if gpu.vendor == "nvidia"
    }
    catalog = load_catalog()
    classes = []
    for name, entry in sorted(catalog.classes.items()):
        item, stack = entry.item, catalog.stacks[entry.item.stack].item
        if (
            item.gpu is None
            or stack.driver is None
            or stack.driver.vendor != "nvidia"
            or item.simulated
        ):
            continue
        platform = catalog.platforms[item.platform].item if item.platform is not None else None
        classes.append(
            {
                "class": name,
                "model": item.gpu.model,
                "count": item.gpu.count,
                "os": {"id": stack.os.id, "version": stack.os.version},
                "branch": stack.driver.branch,
                "nvswitch": platform is not None and platform.nvswitch,
                "baseline": item.baseline.model_dump(
                    mode="json", exclude_none=True, exclude_defaults=True
                ),
            }
        )
    return {"models": models, "health": health_facts(None), "xid": xid.table(), "classes": classes}


def commit(root: Path) -> str:
    """Return the commit of a checkout, or `unknown` if git cannot determine it.

    The suffix `-dirty` marks modified tracked files.
    """
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def digest(data: bytes) -> str:
    """Return the digest of bytes in the manifest's format."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


# -- on the GPU machine


def read(folder: Path, temporary: Path) -> CarryFolder:
    """Read and verify the carry folder `folder`, and unpack its wheels below `temporary`.

    Without a folder, make one there if this Python has the packages. Raises CarryError.
    """
    if not (folder / MANIFEST).is_file():
        folder = temporary / "carried"
        try:
            pack(folder)
        except (ImportError, GoldnodeError) as problem:
            if isinstance(problem, CarryError):
                raise
            raise CarryError(
                "there is no carry folder here, and this Python cannot make one "
                f"({getattr(problem, 'message', problem)})",
                remedy=(
                    f"run `{AGAIN} build/prove-gpu` where the project's environment is, and copy that "
                    "folder here"
                ),
            ) from None
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    again = f"make it again with `{AGAIN} {folder}`"
    if size > LIMIT:
        raise CarryError(
            f"{folder} has {size / (1 << 20):.1f} MiB, and a carry folder at most {LIMIT >> 20} MiB",
            remedy=again,
        )
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA:
            raise CarryError(
                f"{folder} is of schema {manifest['schema']!r}, not {SCHEMA}", remedy=again
            )
        damaged = [
            name
            for name, wanted in manifest["files"].items()
            if digest((folder / name).read_bytes()) != wanted
        ]
        missing = sorted({NODE, SMOKE, FACTS} - set(manifest["files"]))
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CarryError(
            f"{folder} is no whole carry folder ({type(problem).__name__}: {problem})", remedy=again
        ) from None
    if damaged or missing:
        raise CarryError(f"{folder} is damaged: {', '.join(damaged or missing)}", remedy=again)
    wheels = sorted(name for name in manifest["files"] if name.startswith(f"{WHEELS}/"))
    libraries = unpack([folder / name for name in wheels], temporary / WHEELS)
    names = [name.partition("/")[2] for name in wheels]
    return CarryFolder(
        folder / NODE,
        smoke=folder / SMOKE,
        facts=facts,
        libraries=libraries,
        commit=str(manifest.get("commit")),
        wheels=names,
    )


def unpack(wheels: Sequence[Path], target: Path) -> List[str]:
    """Unpack wheels. Return the directories of shared libraries in them."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                # A clearer error than silently renamed members, which is what zipfile would
                # produce.
                if name.startswith("/") or ".." in Path(name).parts:
                    raise CarryError(
                        f"{wheel.name} has a file {name}, which leads out of it",
                        remedy="take the wheel from its publisher",
                    )
            archive.extractall(target)
    return sorted({str(path.parent) for path in target.rglob("*.so*") if path.is_file()})
