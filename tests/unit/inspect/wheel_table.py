"""Real wheels of the package index: what each is, and what a scan recorded of it.

`wheels.yml` has the expected verdicts, written from file lists, metadata and readelf, never from goldnode's
own output. `wheels.json` has the facts of the scans, from which every change of the policy is judged without
the files. Record them again after a change of the scanner:

    python -m tests.unit.inspect.wheel_table DIRECTORY...
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from goldnode.inspect import policy, targets
from goldnode.inspect.archives import ScannedPath
from goldnode.inspect.elf import Elf
from goldnode.inspect.scan import Scan, View

CASES = Path(__file__).parents[2] / "cases/purity"
TABLE, FACTS = CASES / "wheels.yml", CASES / "wheels.json"
BACKENDS = ("cpu", "cuda", "rocm", "oneapi")
TODAY = dt.date(2026, 11, 24)

# Libraries of the C and C++ runtimes, and names of Python extension modules: no policy names them.
_COMMON = (
    *(
        "libc.so.",
        "libm.so.",
        "libpthread.so.",
        "libdl.so.",
        "librt.so.",
        "libutil.so.",
        "libz.so.",
    ),
    *("libgcc_s.so.", "libstdc++.so.", "ld-linux", "libgomp", "libgfortran", "libquadmath"),
)
_EXTENSIONS = (".cpython-", ".abi3.so")


@dataclass(frozen=True)
class WheelRow:
    """One wheel and the policies that have to refuse it. `because` is the evidence."""

    file: str
    sha256: str
    refused: tuple[str, ...]
    because: str


@cache
def rows() -> tuple[WheelRow, ...]:
    """Read the table."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(TABLE.read_text(encoding="utf-8"), loader)  # noqa: S506 - it is the safe loader
    return tuple(
        WheelRow(row["file"], row["sha256"], tuple(row.get("refused", ())), row.get("because", ""))
        for row in document["wheels"]
    )


@cache
def facts() -> dict[str, dict[str, Any]]:
    """Read the recorded facts, by file name."""
    found: dict[str, dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return found


@cache
def rules() -> policy.Purity:
    """Read the policy that goldnode ships."""
    return policy.load()


def refused(view: View) -> tuple[str, ...]:
    """Return the policies of goldnode that refuse a wheel."""
    return tuple(
        name for name in BACKENDS if not policy.inspect(view, rules(), name, today=TODAY).passed
    )


def recorded(scan: Scan) -> dict[str, Any]:
    """Return the facts of a scan that a policy may read, without what no policy names."""
    metadata = next((path for path in scan.texts if path.endswith(".dist-info/METADATA")), "")
    lines = scan.texts.get(metadata, "").partition("\n\n")[0].splitlines()
    wanted = [
        line
        for line in lines
        if line.startswith(("Name:", "Version:"))
        or (line.startswith("Requires-Dist:") and "extra ==" not in line and "extra==" not in line)
    ]
    found: dict[str, Any] = {"metadata": {metadata: wanted}}
    found.update(_contents(scan))
    if scan.left_out:
        found["left_out"] = scan.left_out
    return found


def _contents(scan: Scan) -> dict[str, Any]:
    names = sorted(
        path
        for path, row in scan.paths.items()
        if row.kind == "f" and path in scan.elf and not any(part in path for part in _EXTENSIONS)
    )
    # A file of the wheel is recorded by its own name, so that nothing is lost where another file needs it.
    bundled = {path.rpartition("/")[2] for path in names}
    rows: dict[str, dict[str, Any]] = {}
    for path, row in sorted(scan.elf.items()):
        plain = {
            key: value
            for key, value in asdict(row).items()
            if value and key not in ("end", "fault", "device_bytes", "interpreter")
        }
        plain["needed"] = [
            name for name in row.needed if not name.startswith(_COMMON) and name not in bundled
        ]
        # Names in its data count only if it loads libraries.
        plain["strings"] = [
            name for name in row.strings if row.loads and not name.startswith(_COMMON)
        ]
        if row.soname == path.rpartition("/")[2]:
            plain.pop("soname", None)
        if (
            plain["needed"]
            or plain["strings"]
            or row.device
            or plain.get("soname")
            or not row.is_elf
        ):
            values = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in plain.items()
            }
            rows[path] = {key: value for key, value in values.items() if value not in ([], "amd64")}
    found: dict[str, Any] = {}
    if names:
        found["files"] = [name for name in names if name not in rows]
    if rows:
        found["elf"] = rows
    inner = {path: content for path, row in scan.archives.items() if (content := _contents(row))}
    if inner:
        found["archives"] = inner
    return found


def view_of(fact: Mapping[str, Any]) -> View:
    """Return a view with the recorded facts of a wheel."""
    view = View(name="wheel")
    view.add(_scan_of(fact))
    for path, lines in fact["metadata"].items():
        view.paths[path] = ScannedPath("f", 1)
        view.texts[path] = "\n".join(lines) + "\n\n"
    view.left_out = dict(fact.get("left_out", {}))
    return view


def _scan_of(fact: Mapping[str, Any]) -> Scan:
    scan = Scan()
    scan.paths.update(dict.fromkeys(fact.get("files", ()), ScannedPath("f", 1)))
    for path, row in fact.get("elf", {}).items():
        scan.paths[path] = ScannedPath("f", 1)
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        values.setdefault("machine", "amd64")
        scan.elf[path] = Elf(**values)
    scan.archives = {path: _scan_of(row) for path, row in fact.get("archives", {}).items()}
    return scan


def scan_of(path: Path) -> View:
    """Scan a wheel."""
    (target,) = targets.find(str(path), None)
    return target.view


def files(folders: Sequence[Path], wanted: Sequence[WheelRow]) -> Iterator[tuple[WheelRow, Path]]:
    """Return the rows whose file lies in one of the folders, with that file. Its hash must be the row's."""
    for row in wanted:
        for path in (folder / row.file for folder in folders):
            if path.is_file():
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() == row.sha256:
                        yield row, path
                        break


def main() -> None:
    """Record the facts of every wheel in the folders, and keep those of the others."""
    found = dict(facts()) if FACTS.exists() else {}
    for row, path in files([Path(name) for name in sys.argv[1:]], rows()):
        found[row.file] = recorded(scan_of(path))
    text = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(found[name], separators=(',', ':'), sort_keys=True)}"
        for name in sorted(row.file for row in rows())
        if name in found
    )
    FACTS.write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
