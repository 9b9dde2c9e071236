"""Record releases of Python packages that use a GPU: their wheels, and what they require of each other.

`python -m tests.wheel_releases NAME[>=VERSION]...` adds the final releases that the package index has and
src/goldnode/facts/wheels.yml has not: of a package of the file those after its newest, of another all that the specifier admits.
Releases without a wheel for Linux are left out. Recorded rows stay as they are.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from tests import gpu_wheels

from goldnode.core import data
from goldnode.images.remote_wheel import wheel_file, wheel_metadata
from goldnode.images.wheelindex import Index

FACTS = data.PACKAGE / "facts/wheels.yml"
LINUX = ("any", "x86_64", "aarch64")
# Requirements on these are recorded although the file has no rows of them.
_OTHERS = re.compile(r"nvidia-.*|cuda-.*|intel-.*|ml-dtypes|mkl|umf|onemkl-.*|tbb")
_ON_LINUX = re.compile(
    r"""\s*(?:platform_system|sys_platform) == ['"](?:Linux|linux)['"](?:\s+and\s+|$)"""
)


def tags(files: Iterable[str]) -> dict[str, str]:
    """Return the tags for Python of wheels for Linux; machines with equal tags share a row."""
    machines: dict[str, list[str]] = {}
    for machine, text in gpu_wheels.tags(files).items():
        if machine in LINUX:
            machines.setdefault(text, []).append(machine)
    return {" ".join(sorted(names, reverse=True)): text for text, names in machines.items()}


def requirement(text: str, names: set[str]) -> str | None:
    """Return a requirement as the file has it: without what holds on Linux anyhow; None if it is on no package of `names`."""
    item = Requirement(text)
    item.name = canonicalize_name(item.name)
    if item.name not in names and not _OTHERS.fullmatch(item.name):
        return None
    marker = "" if item.marker is None else _ON_LINUX.sub("", str(item.marker), count=1)
    item.marker = None
    return f"{item}; {marker}" if marker else str(item)


def releases(
    index: Index, name: str, wanted: Requirement, after: Version | None
) -> Iterator[tuple[Version, list[str]]]:
    """Yield the final releases that are wanted and newer than `after`, with their wheels, oldest first."""
    files: dict[Version, list[str]] = {}
    for item in index.files(name):
        try:
            _, version, _, _ = parse_wheel_filename(item.file)
        except InvalidWheelFilename:
            continue
        admitted = wanted.specifier.contains(version, prereleases=False)
        if admitted and not version.local and (after is None or version > after):
            files.setdefault(version, []).append(item.file)
    yield from sorted(files.items())


def row(
    index: Index, name: str, version: Version, files: Sequence[str], names: set[str]
) -> dict[str, Any] | None:
    """Return the row of a release; None if it has no wheel for Linux."""
    wheels = tags(files)
    item = wheel_file(index, name, str(version), "x86_64") or wheel_file(
        index, name, str(version), "aarch64"
    )
    if not wheels or item is None:
        return None
    read = wheel_metadata(index, item)
    texts = [requirement(text, names) for text in read.get_all("Requires-Dist", [])]
    return {
        "version": str(version),
        "python": read.get("Requires-Python"),
        "wheels": wheels,
        "requires": [text for text in texts if text],
    }


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    text = str(value)
    return (
        f"'{text}'"
        if re.search(r"[\[\]{},:#&*!|>'\"%@`<=;~ ]", text) or re.fullmatch(r"[\d.]+", text)
        else text
    )


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_tag_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return _scalar(value)


def _tag_text(value: Any) -> str:
    return str(value) if isinstance(value, str) else _flow(value)


def line(release: dict[str, Any]) -> str:
    """Return the line of a release in the file."""
    shown = [f"version: '{release['version']}'", f"python: {_scalar(release['python'])}"]
    shown += [f"wheels: {_flow(release['wheels'])}", f"requires: {_flow(release['requires'])}"]
    return "  - {" + ", ".join(shown) + "}"


def main() -> None:
    """Write the facts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("packages", nargs="+", help="NAME or NAME>=VERSION")
    wanted = [Requirement(text) for text in parser.parse_args().packages]
    text = FACTS.read_text(encoding="utf-8")
    known = {item["name"]: item for item in yaml.safe_load(text)["packages"]}
    names = {*known, *(canonicalize_name(item.name) for item in wanted)}
    index, today = Index(), str(dt.datetime.now(dt.UTC).date())
    for item in wanted:
        name = canonicalize_name(item.name)
        recorded = known.get(name, {"releases": []})["releases"]
        newest = max((Version(release["version"]) for release in recorded), default=None)
        listed = list(releases(index, name, item, newest))
        with ThreadPoolExecutor(8) as threads:
            rows = list(threads.map(lambda each: row(index, name, each[0], each[1], names), listed))  # noqa: B023 - used at once
        lines = "".join(line(release) + "\n" for release in rows if release is not None)
        print(f"{name}: {lines.count(chr(10))} new")
        if not lines:
            continue
        if name in known:
            block = re.search(rf"^- name: {re.escape(name)}\n(?:  .*\n)+", text, re.M)
            assert block is not None
            text = text[: block.end()] + lines + text[block.end() :]
            continue
        key = name.replace("-", "_")
        if f"\n  {key}: " in text:
            key = f"pypi_{key}"  # a document about the package has this name
        title = f"  {key}: {{title: 'Wheel METADATA and file names of {name} on PyPI', url: 'PyPI package {name}', read: '{today}'}}\n"
        text = text.replace("\nneeds:\n", f"\n{title}needs:\n", 1)
        text += f"- name: {name}\n  source: {key}\n  releases:\n{lines}"
    FACTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
