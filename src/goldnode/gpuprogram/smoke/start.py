"""Command line of goldnode-smoke."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any, Dict, List, NoReturn, Optional

from goldnode.gpuprogram import image, report
from goldnode.gpuprogram.child import Killer
from goldnode.gpuprogram.report import FAILED, NOT_RUN, SCHEMA, TIERS, UNKNOWN, Json

from . import frameworks, plan

ABOUT = (
    "Run what this image or node is for: libraries load and say what they have to, and its devices compute "
    "what they have to."
)
CODES = (
    "Exit code 0: passed. 2: a test failed. 3: something that is required could not be run, a wrong use, "
    "or a fault of this program."
)


class Parser(argparse.ArgumentParser):
    """Parser that exits with 3 on wrong usage. argparse exits with 2, which means a failed test here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(UNKNOWN)


def parser() -> Parser:
    """Return the parser of the command line."""
    found = Parser(prog="goldnode-smoke", description=ABOUT, epilog=CODES)
    found.add_argument(
        "--backend",
        choices=image.BACKENDS,
        help="default: the image's, else that of the devices here, else cpu",
    )
    found.add_argument("--tier", choices=(*TIERS, "all"), default="all", help="run this tier only")
    found.add_argument(
        "--test",
        action="append",
        metavar="NAME",
        help="run this test only; may be given several times",
    )
    found.add_argument(
        "--require",
        action="append",
        choices=TIERS,
        help="exit with 3 unless this tier ran (cpu is required; gpu where a device is)",
    )
    found.add_argument(
        "--gpus",
        type=int,
        default=0,
        metavar="N",
        help="how many devices there have to be; default: as many as device files",
    )
    found.add_argument(
        "--memory-share",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="of the free memory to fill (cpu 0.05 and at most 256 MiB, gpu 0.9)",
    )
    found.add_argument(
        "--memory-mib",
        type=int,
        default=0,
        metavar="MIB",
        help="fill at most this much of each device",
    )
    found.add_argument(
        "--size",
        type=int,
        default=0,
        metavar="N",
        help="rows of the matrices of the GEMM; below 2048 no floor is held",
    )
    found.add_argument(
        "--seconds", type=float, default=1.0, help="how long a GEMM is measured (default 1)"
    )
    found.add_argument(
        "--limit",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="time limit of each test; default: its own",
    )
    found.add_argument(
        "--floors",
        metavar="FILE",
        help="JSON with floors of your own: [{model, pci_ids, floor_tflops: {fp16: …}}]",
    )
    found.add_argument(
        "--without-driver",
        action="store_true",
        help="there is no driver here: a libcuda that is found is the image's own, which fails",
    )
    found.add_argument("--json", action="store_true", help="print the record as JSON")
    found.add_argument(
        "--output",
        metavar="FILE",
        help="write the record as JSON to this file, whole or not at all",
    )
    found.add_argument(
        "--root",
        default="/",
        metavar="DIR",
        help="where device files, sysfs and the image's description are looked for",
    )
    return found


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("it is more than 0 and at most 1")
    return value


def main(place: str, floors: Any = (), arguments: Optional[List[str]] = None) -> int:
    """Run the tests and return the exit code.

    `place` is the entry that test processes add to sys.path. `floors` are rows of the facts.
    """
    options = parser().parse_args(arguments)
    killer = Killer(place)

    def stop(number: int, _: Any) -> None:
        killer.stop()
        raise SystemExit(UNKNOWN)

    # Tests run in sessions of their own, so signals of the terminal do not reach them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        record = run(options, killer, floors)
        if options.output:
            write(options.output, json.dumps(record, indent=1, sort_keys=True) + "\n")
    except (OSError, ValueError) as problem:
        print(f"goldnode-smoke: {problem}", file=sys.stderr)
        return UNKNOWN
    except Exception:  # a bug of this program must not look like a failed test
        traceback.print_exc()
        return UNKNOWN
    print(json.dumps(record, indent=1, sort_keys=True) if options.json else report.text(record))
    return int(record["exit_code"])


def run(options: Any, killer: Killer, floors: Any) -> Json:
    """Run the tests and return the record (schema goldnode.smoke/1)."""
    try:
        described = image.described(options.root)
    except ValueError as problem:
        raise ValueError(f"{image.PLACE}: {problem}") from None
    backend = options.backend or plan.backend_of(described, options.root)
    if options.floors:
        floors = own_floors(options.floors)
    devices = image.devices(backend, options.root)
    # The parts belong to the image's own backend, not to one chosen with --backend.
    parts = image.parts(described) if described.get("backend") in (None, backend) else {}
    here = plan.Here(
        backend, parts=parts, devices=devices, root=options.root, bare=options.without_driver, floors=floors,
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
    done: Dict[str, List[Json]] = {name: [] for name in TIERS}
    for test in tests:
        if (options.tier not in (test.tier, "all")) or (
            options.test and test.name not in options.test
        ):
            continue
        request = {
            "tier": test.tier,
            "module": test.module,
            "function": test.function,
            "arguments": test.arguments,
        }
        found = killer.run(request, options.limit or test.limit, test.site)
        done[test.tier].append(
            {
                "name": test.name,
                "required": True,
                "why": "",
                "expected": None,
                "got": None,
                "figures": {},
                **found,
            }
        )
    asked = {name: options.tier in (name, "all") for name in TIERS}
    why = {
        "cpu": "there is nothing to test without a device here",
        "gpu": plan.reason(backend, devices),
    }
    tiers = {
        name: report.tier(done[name], why[name] if asked[name] else "not asked for")
        for name in TIERS
    }
    unnamed = [
        part
        for part in sorted(parts)
        if not any(part in test.name or test.arguments.get("part") == part for test in tests)
    ]
    record: Json = {
        "schema": SCHEMA,
        "image": described.get("name"),
        "build_id": described.get("build_id"),
        "backend": backend,
        "simulated": any(found["simulated"] for found in tiers.values()),
        "parts_without_a_test": [part for part in unnamed if not frameworks.framework(part)],
        "tiers": tiers,
    }
    required = options.require or [
        name for name in TIERS if asked[name] and (name == "cpu" or (devices and backend != "cpu"))
    ]
    if options.test:
        required = [name for name in required if done[name]]
    code = report.exit_code(record, tuple(required))
    status = {report.OK: "passed", report.BAD: FAILED}.get(code, NOT_RUN)
    return {**record, "status": status, "exit_code": code}


def own_floors(path: str) -> Any:
    """Read floors from a file of the user. Raises ValueError with its name."""
    try:
        with open(path, encoding="utf-8") as opened:
            found = json.load(opened)
        for row in found:
            row["model"], row["pci_ids"], row["floor_tflops"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{path}: it is no list of {{model, pci_ids, floor_tflops}} ({problem})"
        ) from None
    return found


def write(path: str, text: str) -> None:
    """Write a file atomically."""
    number, name = tempfile.mkstemp(prefix=".smoke-", dir=os.path.dirname(os.path.abspath(path)))
    try:
        with os.fdopen(number, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
