"""Record the packages that use a GPU: what they require, their wheels' hash, and the device code in them.

`python -m tests.gpu_wheels --read NAME... LOCK...` writes src/goldnode/facts/gpu_wheels.yml. The packages follow from uv.lock
files: those whose name states it (`gpu_packages.states_gpu`), those that require one of CUDA's libraries, and those of
`--read`, whose newest wheel pip downloads and this module reads. Rows of earlier runs stay, unless a newer version is found.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from goldnode.compat import gpu_packages
from goldnode.core import data
from goldnode.inspect.wheelcode import read_wheel

FACTS = data.PACKAGE / "facts/gpu_wheels.yml"
HEAD = """\
# Facts only. Every `source` value is a key of `sources` in this file.
# Written by `python -m tests.gpu_wheels`; one line for each package.
---
"""
META = {
    "subject": "Python packages that use a GPU: what they require of each other, and the code for GPUs in their wheels",
    "how_read": "version, file and sha256 are those of one wheel for Linux, of x86_64 if there is one. machines: those that have a wheel of this "
    "version. requires: packages of this file that it requires, extras included. code and ptx: compute capabilities of the machine code "
    "and of the PTX in the wheel's libraries; absent where the wheel was not read or has sources that are compiled on the node, "
    "empty where it has none. needs: libraries of "
    "CUDA and ROCm that the wheel's libraries name. A package without a version has no wheel for Linux.",
}
SOURCES = {
    "locks": {
        "title": "uv.lock of public projects and of uv's answers for frameworks: versions, file names, hashes, dependencies",
        "repo": "NVIDIA-NeMo/RL, NVIDIA-NeMo/Curator, NVIDIA-NeMo/Automodel, NVIDIA/Megatron-LM, Physical-Intelligence/openpi, "
        "PrimeIntellect-ai/prime-rl, allenai/open-instruct, huggingface/lerobot, invoke-ai/InvokeAI, m-bain/whisperX and others",
    },
    "wheel": {
        "title": "The wheel of the package index: its metadata and the device code in its libraries"
    },
}


def of_locks(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the packages of lock files that use a GPU, by name: the newest version with a wheel for Linux."""
    rows: dict[str, dict[str, Any]] = {}
    for path in paths:
        for package in tomllib.loads(path.read_text(encoding="utf-8")).get("package", ()):
            if "registry" not in package.get("source", ()):
                continue  # the project itself, or a source tree
            row = _of_package(package)
            old = rows.get(row["name"])
            if old is None or Version(old["version"] or "0") < Version(row["version"] or "0"):
                rows[row["name"]] = row
    stated = {name for name in rows if gpu_packages.states_gpu(name)}
    # A package that requires one of CUDA's libraries uses the GPU too.
    using = {name for name, row in rows.items() if stated & set(row["requires"])}
    names = stated | using
    for name in names:
        rows[name]["requires"] = sorted(set(rows[name]["requires"]) & names)
    return {name: rows[name] for name in names}


def _of_package(package: Mapping[str, Any]) -> dict[str, Any]:
    optional = package.get("optional-dependencies", {}).values()
    needs = [*package.get("dependencies", ()), *(item for rows in optional for item in rows)]
    wheels = [
        (item["url"].rpartition("/")[2].replace("%2B", "+"), item.get("hash", ""))
        for item in package.get("wheels", ())
        if "url" in item
    ]
    linux = [item for item in wheels if re.search(r"linux|-none-any\.whl$", item[0])]
    first = min(linux, key=lambda item: "aarch64" in item[0], default=("", ""))
    return {
        "name": package["name"],
        "version": package.get("version", "").partition("+")[0] if linux else "",
        "machines": " ".join(sorted({_machine(name) for name, _ in linux})),
        "file": first[0],
        "sha256": first[1].removeprefix("sha256:"),
        "requires": sorted({item["name"] for item in needs}),
        "source": "locks",
    }


def _machine(file: str) -> str:
    return next((name for name in ("x86_64", "aarch64", "ppc64le") if name in file), "any")


def downloaded(name: str, python: str) -> dict[str, Any]:
    """Return the row of a package whose newest wheel for x86_64 pip downloads and that is read here."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(17, 36)]
    tags += ["manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
            name,
        ]
        argv += ["--only-binary", ":all:", "--python-version", python]
        argv += [item for tag in tags for item in ("--platform", tag)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        files = list(Path(folder).glob("*.whl"))
        # pip takes a pre-release where no other release has a wheel.
        if not files or parse_wheel_filename(files[0].name)[1].is_prerelease:
            print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return {
                "name": canonicalize_name(name),
                "version": "",
                "requires": [],
                "source": "wheel",
            }
        return of_wheel(files[0])


def of_wheel(path: Path) -> dict[str, Any]:
    """Return the row of a wheel."""
    project, version, *_ = parse_wheel_filename(path.name)
    with zipfile.ZipFile(path) as archive:
        read = read_wheel(archive)
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {
        "name": str(project),
        "version": str(version),
        "machines": _machine(path.name),
        "file": path.name,
        "sha256": digest,
        "requires": sorted(item for item in read.requires if gpu_packages.states_gpu(item)),
        "code": None if read.code is None else list(read.code),
        "ptx": list(read.ptx),
        "needs": list(read.needs),
        "source": "wheel",
    }


def _lines(rows: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for name in sorted(rows):
        row = {
            key: value
            for key, value in rows[name].items()
            if value or (key == "code" and value is not None)
        }
        row["version"] = rows[name]["version"] or None
        yield (
            "- "
            + yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=10_000).strip()
        )


def main() -> None:
    """Write the facts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("locks", nargs="*", type=Path)
    parser.add_argument(
        "--read", nargs="*", default=[], help="packages whose newest wheel is downloaded and read"
    )
    parser.add_argument("--python", default="3.12")
    asked = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if FACTS.is_file():
        rows = {
            row["name"]: row
            for row in yaml.safe_load(FACTS.read_text(encoding="utf-8"))["packages"]
        }
    for name, row in of_locks(asked.locks).items():
        if name not in rows or Version(rows[name]["version"] or "0") < Version(
            row["version"] or "0"
        ):
            rows[name] = row
        else:
            rows[name]["requires"] = sorted({*rows[name].get("requires", ()), *row["requires"]})
    for name in asked.read:
        row = downloaded(name, asked.python)
        requires = {*rows.get(row["name"], {}).get("requires", ()), *row["requires"]}
        rows[row["name"]] = {**row, "requires": sorted(requires)}
    meta = {**META, "compiled": str(dt.datetime.now(dt.UTC).date())}
    head = yaml.safe_dump(
        {"meta": meta, "sources": SOURCES}, sort_keys=False, width=160, allow_unicode=True
    )
    FACTS.write_text(HEAD + head + "packages:\n" + "\n".join(_lines(rows)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
