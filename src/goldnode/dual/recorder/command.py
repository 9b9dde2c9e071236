"""Recording of a command that writes .npy files, or JSON files with nested lists of numbers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from goldnode.dual.recorder.values import RecorderError, Value, flattened, read_npy
from goldnode.dual.recorder.writer import RecordWriter

Json = Dict[str, Any]
ROLES = ("input", "layer", "output", "sample")
_LARGEST = 64 << 20  # bytes of a JSON file


@dataclass(frozen=True)
class CommandOptions:
    """A command: {out} and {seed} in its words are replaced. Each of the `runs` is a process of its own."""

    words: Sequence[str]
    seed: int = 0
    runs: int = 1
    timeout: float = 600.0


def record(options: CommandOptions, writer: RecordWriter) -> Json:
    """Run a command, write the arrays of its first run, and return the other parts of the record."""
    seconds: List[float] = []
    digests: List[List[str]] = []
    for number in range(max(1, options.runs)):
        out = tempfile.mkdtemp(prefix="goldnode-dual-")
        try:
            seconds.append(_run(options, out))
            values = list(arrays(out))
            digests.append([one.digest for _, _, one in values])
            for role, name, one in values if number == 0 else ():
                writer.add(role, name, one)
        finally:
            shutil.rmtree(out, ignore_errors=True)
    if not writer.rows:
        raise RecorderError("the command wrote no .npy and no .json file into {out}")
    text = "\0".join(options.words).encode()
    return {
        "source": {
            "kind": "command",
            "name": os.path.basename(options.words[0]),
            "digest": "sha256:" + hashlib.sha256(text).hexdigest(),
        },
        "seed": options.seed,
        "weights": [],
        "weights_digest": None,
        "settings": {"device": None, "precision": "native", "threads": None},
        "framework": None,
        "device": None,
        "repeatable": None if len(digests) < 2 else all(one == digests[0] for one in digests),
        "hooks_change_output": None,
        # A new process each time: nothing is warm.
        "latency": {"cold": seconds, "warm": []},
    }


def _run(options: CommandOptions, out: str) -> float:
    words = [
        word.replace("{out}", out).replace("{seed}", str(options.seed)) for word in options.words
    ]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=2, timeout=options.timeout, check=False
        )
    except OSError as problem:
        raise RecorderError(f"{words[0]} cannot be run: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RecorderError(f"{words[0]} did not end within {options.timeout:g} s") from None
    if done.returncode != 0:
        raise RecorderError(f"{words[0]} exited with status {done.returncode}")
    return time.perf_counter() - begin


def arrays(directory: str) -> List[Tuple[str, str, Value]]:
    """Return (role, name, array) of the files of a command, sorted by name.

    A name may begin with its role: `layer-01-conv.npy`, `sample-tokens.json`. Without one it is an
    output.
    """
    values = []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        stem, kind = os.path.splitext(name)
        if kind not in (".npy", ".json") or os.path.islink(path) or not os.path.isfile(path):
            continue
        role, _, rest = stem.partition("-")
        role, label = (role, rest) if role in ROLES and rest else ("output", stem)
        if kind == ".npy":
            values.append((role, label, read_npy(path)))
        else:
            values += [(role, full, one) for full, one in flattened(label, _json(path, name))]
    return sorted(values, key=lambda row: ROLES.index(row[0]))


def _json(path: str, name: str) -> Any:
    if os.path.getsize(path) > _LARGEST:
        raise RecorderError(f"{name} is larger than {_LARGEST} bytes: write .npy")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (ValueError, RecursionError):
        raise RecorderError(f"{name} is no JSON") from None
