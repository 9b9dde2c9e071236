"""Command line of goldnode-smoke."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any, Dict, List, Optional

from goldnode.gpuprogram import command, image
from goldnode.gpuprogram.children import ChildProcesses
from goldnode.gpuprogram.command import BAD, OK, UNKNOWN
from goldnode.gpuprogram.results import FAILED, NOT_RUN, PASSED, Json

from . import frameworks, plan, process, programs, report
from .report import SCHEMA, TIERS

FLOORS = "goldnode/gpuprogram/smoke/floors.json"

ABOUT = (
    "Test what this image or node is for: its libraries load and report the right versions, and its devices "
    "compute the right results."
)
CODES = (
    "Exit code 0: passed. 2: a test failed. 3: something that is required could not be run, a wrong use, "
    "or a fault of this program."
)


def parser() -> command.ProgramParser:
    """Return the parser of the command line."""
    made = command.ProgramParser(prog="goldnode-smoke", description=ABOUT, epilog=CODES)
    add = made.add_argument
    add(
        "--backend",
        choices=image.BACKENDS,
        help="default: the image's, else that of the devices here, else cpu",
    )
    add("--tier", choices=(*TIERS, "all"), default="all", help="run this tier only")
    add(
        "--test",
        action="append",
        metavar="NAME",
        help="run this test only; may be given several times",
    )
    add(
        "--require",
        action="append",
        choices=TIERS,
        help="exit with 3 unless this tier ran (cpu is required; gpu where a device is)",
    )
    add(
        "--gpus",
        type=int,
        default=0,
        metavar="N",
        help="how many devices there have to be; default: as many as device files",
    )
    add(
        "--memory-share",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="of the free memory to fill (cpu 0.05 and at most 256 MiB, gpu 0.9)",
    )
    add(
        "--memory-mib",
        type=int,
        default=0,
        metavar="MIB",
        help="fill at most this much of each device",
    )
    add(
        "--size",
        type=int,
        default=0,
        metavar="N",
        help="rows of the matrices of the GEMM; below 2048 no floor is held",
    )
    add("--seconds", type=float, default=1.0, help="how long a GEMM is measured (default 1)")
    add(
        "--limit",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="time limit of each test; default: its own",
    )
    add(
        "--floors",
        metavar="FILE",
        help="JSON with floors of your own: [{model, pci_ids, floor_tflops: {fp16: …}}]",
    )
    add(
        "--without-driver",
        action="store_true",
        help="there is no driver here: a libcuda that is found is the image's own, which fails",
    )
    add("--json", action="store_true", help="print the record as JSON")
    add(
        "--output",
        metavar="FILE",
        help="write the record as JSON to this file, whole or not at all",
    )
    add(
        "--root",
        default="/",
        metavar="DIR",
        help="where device files, sysfs and the image's description are looked for",
    )
    return made


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("it is more than 0 and at most 1")
    return value


def packed() -> None:
    """Run the program of the archive that contains this module, with the floors in it."""
    loader = command.archive()
    sys.exit(main(loader.archive, json.loads(loader.get_data(FLOORS))))


def main(place: str, floors: Any = (), arguments: Optional[List[str]] = None) -> int:
    """Run the tests and return the exit code.

    `place` is the entry that test processes add to sys.path. `floors` are rows of the facts.
    """
    options = parser().parse_args(arguments)
    children = ChildProcesses(place)

    def stop(number: signal.Signals) -> None:
        children.stop(f"ended by {number.name}")
        raise SystemExit(UNKNOWN)

    def work() -> int:
        record = run(options, children, floors)
        text = json.dumps(record, indent=1, sort_keys=True)
        if options.output:
            command.write(options.output, text + "\n")
        print(text if options.json else report.text(record))
        return int(record["exit_code"])

    command.on_signals(stop)
    return command.guarded("goldnode-smoke", work)


def run(options: Any, children: ChildProcesses, floors: Any) -> Json:
    """Run the tests and return the record (schema goldnode.smoke/1)."""
    try:
        described = image.described(options.root)
        team = programs.declared(described)
    except ValueError as problem:
        raise ValueError(f"{image.PLACE}: {problem}") from None
    backend = options.backend or plan.backend_of(described, options.root)
    if options.floors:
        floors = own_floors(options.floors)
    devices = image.devices(backend, options.root)
    # The parts belong to the image's own backend, not to one chosen with --backend.
    parts = image.parts(described) if described.get("backend") in (None, backend) else {}
    here = plan.Here(
        backend, parts=parts, devices=devices, root=options.root, bare=options.without_driver, floors=floors, team=team,
        size=options.size, seconds=options.seconds, share=options.memory_share, most=options.memory_mib << 20, expected=options.gpus,
    )  # fmt: skip
    tests = plan.plan(here)
    # --gpus demands devices. Without any, the GPU tier has no test that could fail.
    if options.gpus and not devices and backend != "cpu":
        options.require = [*(options.require or ()), "gpu"]
    names = {test.name for test in tests}
    unknown = sorted(set(options.test or ()) - names)
    if unknown:
        raise ValueError(
            f"there is no test {unknown[0]} here. Choose of: {', '.join(sorted(names))}"
        )
    asked = {name: options.tier in (name, "all") for name in TIERS}
    done: Dict[str, List[Json]] = {name: [] for name in TIERS}
    for test in tests:
        if asked[test.tier] and (not options.test or test.name in options.test):
            done[test.tier].append(_one(children, test, options.limit))
    why = {
        "cpu": "there is nothing to test without a device here",
        "gpu": plan.reason(backend, devices),
    }
    tiers = {
        name: report.tier(done[name], why[name] if asked[name] else "not asked for")
        for name in TIERS
    }
    record: Json = {
        "schema": SCHEMA,
        "image": described.get("name"),
        "build_id": described.get("build_id"),
        "backend": backend,
        "simulated": any(tier["simulated"] for tier in tiers.values()),
        "parts_without_a_test": _untested(parts, tests),
        "tiers": tiers,
    }
    # The GPU tier is required where a device is: without a result of it nothing is known of the
    # GPU.
    required = options.require or [
        name for name in TIERS if asked[name] and (name == "cpu" or (devices and backend != "cpu"))
    ]
    if options.test:
        required = [name for name in required if done[name]]
    code = report.exit_code(record, tuple(required))
    status = {OK: PASSED, BAD: FAILED}.get(code, NOT_RUN)
    return {**record, "status": status, "exit_code": code}


def _one(children: ChildProcesses, test: plan.Test, limit: float) -> Json:
    """Run one test and return its row of the record. `limit` replaces the test's own, unless 0."""
    request = {
        "tier": test.tier,
        "call": f"goldnode.gpuprogram.{test.call}",
        "arguments": test.arguments,
    }
    result = process.run(children, request, limit or test.limit, site=test.site)
    return {"name": test.name, **process.DEFAULTS, **result}


def _untested(parts: Json, tests: List[plan.Test]) -> List[str]:
    """Return the parts of the image that no test is for."""
    return [
        part
        for part in sorted(parts)
        if not frameworks.framework(part)
        and not any(part in test.name or test.arguments.get("part") == part for test in tests)
    ]


def own_floors(path: str) -> Any:
    """Read floors from a file of the user. Raises ValueError with its name."""
    try:
        with open(path, encoding="utf-8") as opened:
            floors = json.load(opened)
        for row in floors:
            # Read once for their presence: a wrong file must not fail in the middle of the tests.
            row["model"], row["pci_ids"], row["floor_tflops"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{path}: it is no list of {{model, pci_ids, floor_tflops}} ({problem})"
        ) from None
    return floors
