"""Record the packages that use a GPU: what they require, their wheels and hash, and the device code in them.

`python -m tests.gpu_wheels LOCK... --read NAME[==VERSION]...` writes src/goldnode/facts/gpu_wheels.yml. A package is in the
list if one of these holds:

1. Its name states it (`gpu_packages.states_gpu`): a CUDA family, NVIDIA's, ROCm, Intel's SYCL and XPU.
2. A lock file shows that it requires a package of rule 1, extras included.
3. It is named by `--read`, and its wheel has code for GPUs, or libraries that need a GPU's.

Rules 1 and 2 are applied to lock files of uv and Poetry. `--read` takes the newest wheel, or that of a version, from the
package index by HTTP ranges. Rows of earlier runs stay: the newest version of each package, and each version that was read.
`--tags` completes the machines and the Pythons of all rows by the file names on the index.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from goldnode.compat import gpu_packages
from goldnode.core import data
from goldnode.core.errors import ImageError
from goldnode.images.remote_wheel import wheel_code, wheel_file
from goldnode.images.wheelindex import Index

FACTS = data.PACKAGE / "facts/gpu_wheels.yml"
HEAD = """\
# Facts only. Every `source` value is a key of `sources` in this file.
# Written by `python -m tests.gpu_wheels`; one line for each package, or version that was read.
---
"""
META = {
    "subject": "Python packages that use a GPU: what they require of each other, and the code for GPUs in their wheels",
    "how_read": "file and sha256 are those of one wheel for Linux, of x86_64 if there is one. wheels: the tags for Python by machine, as wheels.yml has "
    "them, of all wheels that the package index had when it was compiled (--tags); of packages on other indexes those that a lock file names. "
    "requires: packages of this file that it requires, extras included. code and ptx: compute capabilities of the machine code and of the PTX in the wheel's "
    "libraries; absent where the wheel was not read or has sources that are compiled on the node, empty where it has none. needs: libraries of "
    "CUDA and ROCm that the wheel's libraries name. A package without a version has no wheel.",
}
SOURCES = {
    "locks": {
        "title": "Lock files of public projects, and uv's answers for frameworks: versions, file names, hashes, dependencies",
        "repo": "NVIDIA-NeMo/RL, NVIDIA-NeMo/Curator, NVIDIA-NeMo/Automodel, NVIDIA/Megatron-LM, Physical-Intelligence/openpi, "
        "PrimeIntellect-ai/prime-rl, allenai/open-instruct, huggingface/lerobot, invoke-ai/InvokeAI, m-bain/whisperX and others; "
        "those of tests/cases/compat/locks",
    },
    "wheel": {
        "title": "The wheel of the package index: its metadata and the device code in its libraries"
    },
}
Row = dict[str, Any]


def of_locks(paths: Sequence[Path]) -> dict[str, Row]:
    """Return the packages of lock files that use a GPU, by name: the newest version with a wheel."""
    rows: dict[str, Row] = {}
    for row in (row for path in paths for row in _of_lock(path)):
        old = rows.get(row["name"])
        if old is None or Version(old["version"] or "0") < Version(row["version"] or "0"):
            rows[row["name"]] = row
        elif old["version"] == row["version"]:
            old["wheels"] = _union(old["wheels"], row["wheels"])
    stated = {name for name in rows if gpu_packages.states_gpu(name)}
    # A package that requires one of CUDA's libraries uses the GPU too.
    using = {name for name, row in rows.items() if stated & set(row["requires"])}
    names = stated | using
    for name in names:
        rows[name]["requires"] = sorted(set(rows[name]["requires"]) & names)
    return {name: rows[name] for name in names}


def _of_lock(path: Path) -> Iterator[Row]:
    """Yield the packages of a lock file of uv or Poetry that come from an index."""
    for package in tomllib.loads(path.read_text(encoding="utf-8")).get("package", ()):
        source = package.get("source", {})
        if path.name == "poetry.lock":
            if source.get("type", "legacy") == "legacy":
                yield _row(package, list(package.get("dependencies", {})), package["files"])
        elif "registry" in source:
            optional = package.get("optional-dependencies", {}).values()
            needs = [
                *package.get("dependencies", ()),
                *(item for rows in optional for item in rows),
            ]
            yield _row(package, [item["name"] for item in needs], package.get("wheels", ()))


def _row(package: Row, requires: Sequence[str], files: Sequence[Row]) -> Row:
    names = {
        item.get("file") or item.get("url", "").rpartition("/")[2].replace("%2B", "+"): item
        for item in files
    }
    wheels = sorted(name for name in names if name.endswith(".whl"))
    first = min(wheels, key=_unusual, default=None)
    return {
        "name": canonicalize_name(package["name"]),
        "version": package.get("version", "").partition("+")[0] if wheels else "",
        "wheels": tags(wheels),
        "file": first,
        "sha256": names[first].get("hash", "").removeprefix("sha256:") if first else "",
        "requires": sorted({canonicalize_name(name) for name in requires}),
        "source": "locks",
    }


def _unusual(file: str) -> tuple[bool, bool]:
    return "linux" not in file and "none-any" not in file, "aarch64" in file


def tags(files: Iterable[str]) -> dict[str, str]:
    """Return the tags for Python of wheels, by machine; those for Linux have its name alone."""
    found: dict[str, set[str]] = {}
    for file in files:
        for tag in parse_wheel_filename(file)[3]:
            found_in = (name for key, name in _MACHINES if re.search(key, tag.platform))
            machine = next(found_in, None)
            python = f"{tag.interpreter}+" if tag.abi == "abi3" else tag.interpreter
            # Any Python from 3.9 on installs a wheel of the tag py39-none.
            python = re.sub(r"^py(3\d+)$", r"cp\1+", python)
            if machine is not None and re.fullmatch(r"cp3\d+\+?|py3", python):
                found.setdefault(machine, set()).add(python)
    return {machine: " ".join(sorted(found[machine], key=_number)) for machine in sorted(found)}


_MACHINES = (
    ("^any$", "any"),
    ("win_amd64", "windows"),
    ("win_arm64", "windows arm64"),
    ("macosx", "macos"),
    ("x86_64", "x86_64"),
    ("aarch64", "aarch64"),
    ("ppc64le", "ppc64le"),
)


def _number(tag: str) -> int:
    return int(re.sub(r"\D", "", tag[2:]) or 0)


def _union(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {
        machine: " ".join(
            sorted({*one.get(machine, "").split(), *other.get(machine, "").split()}, key=_number)
        )
        for machine in sorted({*one, *other})
    }


def of_index(index: Index, requirement: str) -> Row:
    """Return the row of a package whose wheel of a version, or of the newest, is read from the index."""
    name, _, version = requirement.partition("==")
    name = canonicalize_name(name)
    there = [item for item in index.files(name) if item.file.endswith(".whl")]
    releases = {parse_wheel_filename(item.file)[1] for item in there}
    version = version or str(max((item for item in releases if not item.is_prerelease), default=""))
    files = [item for item in there if str(parse_wheel_filename(item.file)[1]) == version]
    for machine in ("x86_64", "aarch64"):
        item = wheel_file(index, name, version, machine) if files else None
        read = wheel_code(index, name, version, machine) if item is not None else None
        if item is not None and read is not None:
            break
    else:
        return {"name": name, "version": "", "requires": [], "source": "wheel"}
    return {
        "name": name,
        "version": version,
        "wheels": tags(each.file for each in files),
        "file": item.file,
        "sha256": index.sha256(item),
        "requires": sorted(each for each in read.requires if gpu_packages.states_gpu(each)),
        "code": None if read.code is None else list(read.code),
        "ptx": list(read.ptx),
        "needs": list(read.needs),
        "source": "wheel",
    }


def of_all_wheels(index: Index, row: Row) -> Row:
    """Return a row with the machines and Pythons of all wheels that the index has of its version."""
    try:
        files = [item.file for item in index.files(row["name"]) if item.file.endswith(".whl")]
    except ImageError:
        return row  # not on this index, such as packages of PyTorch's own
    own = []
    for file in files:
        try:
            if str(parse_wheel_filename(file)[1]) == row["version"]:
                own.append(file)
        except InvalidWheelFilename:
            continue
    if not own:
        return row
    return {**row, "wheels": _union(row.get("wheels") or {}, tags(own))}


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    for row in sorted(rows, key=lambda row: (row["name"], Version(row["version"] or "0"))):
        filled = {
            key: value
            for key, value in row.items()
            if value or (key == "code" and value is not None)
        }
        filled["version"] = row["version"] or None
        text = yaml.safe_dump(filled, default_flow_style=True, sort_keys=False, width=10_000)
        yield "- " + text.strip()


def _merged(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield each version that was read, and of the others the newest one of each package."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(row["name"], []).append(row)
    for same in named.values():
        newest = max(same, key=lambda row: (Version(row["version"] or "0"), row["source"]))
        read = {row["version"]: row for row in (newest, *same) if row["source"] == "wheel"}
        for row in {newest["version"]: newest, **read}.values():
            if row["version"] or len(same) == 1:
                # Of a version that was read, the metadata in lock files names extras too.
                others = [item for item in same if item["version"] == row["version"]]
                requires = {name for item in others for name in item.get("requires") or ()}
                known: dict[str, str] = {}
                for item in others:
                    known = _union(known, item.get("wheels") or {})
                yield {**row, "wheels": known, "requires": sorted(requires)}


def main() -> None:
    """Write the facts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("locks", nargs="*", type=Path)
    parser.add_argument("--read", nargs="*", default=[], help="NAME or NAME==VERSION")
    parser.add_argument("--tags", action="store_true", help="complete machines and Pythons")
    asked = parser.parse_args()
    rows: list[Row] = []
    if FACTS.is_file():
        rows = yaml.safe_load(FACTS.read_text(encoding="utf-8"))["packages"]
    rows += of_locks(asked.locks).values()
    index = Index()
    for requirement in asked.read:
        try:
            rows.append(of_index(index, requirement))
        except ImageError as problem:
            print(f"{requirement}: {problem}", file=sys.stderr)
    if asked.tags:
        with ThreadPoolExecutor(8) as threads:
            rows = list(threads.map(lambda row: of_all_wheels(index, row), rows))
    meta = {**META, "compiled": str(dt.datetime.now(dt.UTC).date())}
    head = yaml.safe_dump(
        {"meta": meta, "sources": SOURCES}, sort_keys=False, width=160, allow_unicode=True
    )
    body = "\n".join(_lines(_merged(rows)))
    FACTS.write_text(HEAD + head + "packages:\n" + body + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
