"""Search for inputs that break a parser: `python -m tests.suite.fuzz [--minutes 2] [NAME …]`, guided by coverage (atheris).

atheris is not in requirements/dev.lock: `pip install atheris` first (3.0.0 has wheels for Python 3.11). Without it, the
search is blind: it changes seeds at random. Each input that breaks a parser is written to tests/found/outside, and
every run replays it. Exit status 1 if there was one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import re
import subprocess
import sys
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.suite.outside import PARSERS, ROOT, check

FOUND = ROOT / "tests/found/outside"
_SLOW = 5.0  # seconds of CPU for one input, which count as a fault
_WORDS: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"-1",
    b"99999999999999999999",
    b"\xff\xfe",
    b"nan",
    b"1e999",
    b"[",
    b"{",
    b"..",
    b"\x1b[31m",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**64,
    1.5,
    1e308,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    {"a": {}},
    "\ud800",
    "\n",
)


def changed(data: bytes, kind: str, chance: random.Random, extra: bytes) -> bytes:
    """Return an input near a seed: with values of its structure, lines or bytes replaced, doubled or removed."""
    for _ in range(chance.randint(1, 3)):
        if kind == "json":
            data = _changed_json(data, chance)
        elif kind == "text":
            data = _changed_lines(data, chance, extra)
        else:
            data = _changed_bytes(data, chance, extra)
    return data


def _changed_json(data: bytes, chance: random.Random) -> bytes:
    try:
        document = json.loads(data)
    except ValueError:
        return _changed_bytes(data, chance, b"{")
    places: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            keys: list[Any] = list(value)
        else:
            keys = list(range(len(value))) if isinstance(value, list) else []
        places += [(value, key) for key in keys]
        todo += [value[key] for key in keys]
    if not places:
        return json.dumps(chance.choice(_VALUES)).encode()
    parent, key = chance.choice(places)
    if chance.random() < 0.2 and isinstance(parent, dict):
        del parent[key]
    else:
        parent[key] = chance.choice(_VALUES)
    return json.dumps(document).encode()


def _changed_lines(data: bytes, chance: random.Random, extra: bytes) -> bytes:
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    what = chance.randrange(5)
    if what == 0:
        lines[at : at + 1] = []
    elif what == 1:
        lines[at : at + 1] = [lines[at]] * chance.randint(2, 5)
    elif what == 2:
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        words = re.split(rb"(\W)", lines[at])
        words[chance.randrange(len(words))] = chance.choice((*_WORDS, extra))
        lines[at] = b"".join(words)
    return b"\n".join(lines)


def _changed_bytes(data: bytes, chance: random.Random, extra: bytes) -> bytes:
    found = bytearray(data or b"\0")
    at = chance.randrange(len(found))
    what = chance.randrange(4)
    if what == 0:
        found[at] ^= 1 << chance.randrange(8)
    elif what == 1:
        found[at:at] = extra or b"\xff"
    elif what == 2:
        del found[at : at + chance.randint(1, 16)]
    else:
        found[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
    return bytes(found)


def store(name: str, data: bytes, how: str) -> Path:
    """Write an input that breaks a parser into its file, once."""
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{name}.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if all(row["input"] != data.hex() for row in rows):
        rows.append({"found": how, "input": data.hex()})
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return path


def _try(name: str, data: bytes) -> str:
    """Return the last line of the exception, or that the input was slow; empty for an answer."""
    began = time.process_time()
    try:
        check(name, data)
    except RecursionError:
        return "RecursionError"
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        return f"{type(problem).__name__}: {str(problem)[:80]} ({Path(where.filename).name}:{where.lineno})"
    taken = time.process_time() - began
    return f"{taken:.1f} s" if taken > _SLOW else ""


def _blind(name: str, end: float) -> list[str]:
    parser, faults, count = PARSERS[name], dict[str, bytes](), 0
    chance = random.Random(0)  # noqa: S311 - no secret
    while time.monotonic() < end and len(faults) < 5:
        data = changed(chance.choice(parser.inputs()), parser.kind, chance, chance.randbytes(8))
        count += 1
        fault = _try(name, data)
        if fault and fault not in faults:
            faults[fault] = data
    print(f"{name}: {count} inputs, blind")
    return _stored(name, faults)


def _guided(name: str, seconds: int) -> list[str]:
    """Search in a process of its own: atheris ends it."""
    folder = ROOT / "build/fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(PARSERS[name].inputs()):
        (folder / f"seed-{number}").write_bytes(data)
    command = [sys.executable, "-m", "tests.suite.fuzz_guided", name, str(folder)]
    command += [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/crash-", "-timeout=10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    runs = re.findall(r"#(\d+)\s.*?cov: (\d+)", done.stderr)
    print(f"{name}: {runs[-1][0] if runs else '?'} inputs, {runs[-1][1] if runs else '?'} branches")
    faults: dict[str, bytes] = {}
    for path in sorted(folder.glob("crash-*")):
        data = path.read_bytes()
        faults[_try(name, data) or ""] = data
        path.unlink()
    faults.pop("", None)
    if done.returncode and not faults:
        print(done.stderr[-400:])
    return _stored(name, faults)


def _stored(name: str, faults: dict[str, bytes]) -> list[str]:
    today = dt.datetime.now(dt.UTC).date().isoformat()
    for fault, data in faults.items():
        path = store(name, data, f"{today}, {fault}")
        print(f"  {fault}: stored in {path.relative_to(ROOT)}")
    return list(faults)


def main() -> None:
    """Search in each parser in turn."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="for each parser (default: 2)")
    parser.add_argument("names", nargs="*", help=f"parsers (default: all): {', '.join(PARSERS)}")
    options = parser.parse_args()
    seconds, faults = options.minutes * 60, 0
    for name in options.names or PARSERS:
        if find_spec("atheris"):
            faults += len(_guided(name, int(seconds)))
        else:
            faults += len(_blind(name, time.monotonic() + seconds))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
