"""Command line of the recorder: `python3 -m goldnode.dual.recorder`, or the archive goldnode-dual."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from datetime import datetime, timezone
from typing import IO, List, Optional, Tuple

from goldnode.dual.recorder import command, environment, model
from goldnode.dual.recorder.values import RecorderError, Value, read_npy
from goldnode.dual.recorder.writer import SCHEMA, RecordWriter, send


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="goldnode-dual", description="Record what a model or a command computes."
    )
    add = parser.add_argument
    add(
        "--out",
        required=True,
        help="new directory of the record; - writes a tar archive to standard output",
    )
    add("--name", default="", help="name of this side, such as before or cuda")
    add("--model", metavar="FILE", help="Python file with inputs(seed) and model()")
    add("--seed", type=int, default=0)
    add("--device", default="cpu", help="device of PyTorch: cpu, cuda, cuda:1")
    add("--precision", choices=model.PRECISIONS, default="native")
    add("--threads", type=int)
    add("--no-layers", dest="layers", action="store_false", help="record outputs alone")
    add("--warmup", type=int, default=5)
    add("--runs", type=int, default=100, help="timed runs of a model; processes of a command")
    add("--cold", type=int, default=1, help="processes whose first run is timed")
    add("--draws", type=int, default=0, help="calls of sample(model, seed)")
    add("--inputs", metavar="RECORD", help="use the inputs of another record")
    add("--elements", type=int, default=65536, help="elements of a layer that are stored")
    add("--max-bytes", type=int, default=1 << 30)
    add("--timeout", type=float, default=600.0, help="seconds for one process of a command")
    add("--image", help="digest of the image that this runs in")
    add("--host", help="name of the machine")
    add("--how", default="local", choices=("local", "ssh", "engine"))
    add("--state", help="digest of the state of a rollout that this machine is in")
    add("--time-cold", action="store_true", help=argparse.SUPPRESS)
    add(
        "words",
        nargs="*",
        metavar="COMMAND",
        help="command and arguments, after --; {out} and {seed} are replaced",
    )
    return parser


def main() -> None:
    """Record, and exit: 0 done, 2 the record cannot be made."""
    given = arguments().parse_args()
    # Whatever a model or a library prints must not get into the archive.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        if given.time_cold:
            output.write(json.dumps(model.cold(_model(given))).encode())
            output.close()
            return
        _record(given, output)
    except RecorderError as problem:
        print(f"goldnode-dual: {problem}", file=sys.stderr)
        sys.exit(2)
    except Exception:  # of the user's model: its own traceback is what a person needs
        traceback.print_exc()
        print("goldnode-dual: the model failed, see above", file=sys.stderr)
        sys.exit(2)


def _record(given: argparse.Namespace, output: IO[bytes]) -> None:
    if bool(given.model) == bool(given.words):
        raise RecorderError("give either --model FILE or a command after --")
    scratch = tempfile.mkdtemp(prefix="goldnode-dual-")
    archive = given.out == "-"
    try:
        place = os.path.join(scratch, "record") if archive else given.out
        if os.path.exists(place):
            raise RecorderError(f"{place} exists: name a new directory with --out")
        _write(given, place)
        if archive:
            send(place, output)
            output.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(given: argparse.Namespace, place: str) -> None:
    writer = RecordWriter(place, given.max_bytes, given.elements)
    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if given.model:
        recorded = model.record(_model(given), writer)
        # The first cold run was in this process; each other needs a process of its own.
        recorded["latency"]["cold"] += [_cold() for _ in range(given.cold - 1)]
    else:
        options = command.CommandOptions(
            given.words, given.seed, min(given.runs, 1000), given.timeout
        )
        recorded = command.record(options, writer)
    machine = environment.machine()
    node = machine.pop("node")
    writer.finish(
        {
            **recorded,
            "name": given.name or (given.model or given.words[0]).rpartition("/")[2],
            "simulated": bool(node and node["simulated"]),
            "recorder": environment.program_digest(),
            "started": started,
            "how": given.how,
            "host": given.host,
            "image": given.image,
            # Without a rollout the lock of the node names its state.
            "state": given.state or (node and node["lock"]),
            "node": node,
            "machine": machine,
        }
    )


def _model(given: argparse.Namespace) -> model.ModelOptions:
    return model.ModelOptions(
        file=given.model,
        seed=given.seed,
        device=given.device,
        precision=given.precision,
        threads=given.threads,
        layers=given.layers,
        warmup=given.warmup,
        runs=given.runs,
        draws=given.draws,
        inputs=None if given.inputs is None else inputs(given.inputs),
    )


def inputs(directory: str) -> List[Tuple[str, Value]]:
    """Return the inputs of another record with their names. Raises RecorderError."""
    try:
        with open(os.path.join(directory, "record.json"), encoding="utf-8") as file:
            document = json.load(file)
        if document["schema"] != SCHEMA:
            raise RecorderError(
                f"{directory} is a record of {document['schema']}, and {SCHEMA} is expected"
            )
        rows = [row for row in document["arrays"] if row["role"] == "input"]
        arrays = []
        for row in rows:
            # The other record may come from elsewhere: no path leads out of its folder.
            file_name = os.path.basename(row["file"])
            one = read_npy(os.path.join(directory, "arrays", file_name), row["dtype"])
            if one.digest != row["digest"]:
                raise RecorderError(f"input {row['name']} of {directory} does not match its digest")
            arrays.append((str(row["name"]), one))
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise RecorderError(f"{directory} is no record that can be read: {problem}") from None


def _cold() -> float:
    """Return the seconds of the first run of a new process with the same arguments."""
    # The same command again, so that the same files and options are used.
    own = [sys.executable, *_own(), *sys.argv[1:]]
    done = subprocess.run([*own[:-1], own[-1], "--time-cold"], stdout=subprocess.PIPE, check=False)
    try:
        return float(json.loads(done.stdout))
    except ValueError:
        raise RecorderError("a new process did not end with a time, see above") from None


def _own() -> List[str]:
    """Return how this program was started: its archive, or its module."""
    spec = sys.modules["__main__"].__spec__
    archive: Optional[str] = sys.argv[0]
    if spec is not None and spec.parent and spec.parent.startswith("goldnode"):
        return ["-m", spec.parent]
    return [str(archive)]
