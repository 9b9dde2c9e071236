"""Command line of goldnode-canary."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import Any, List, Optional

from goldnode.gpuprogram import command, image
from goldnode.gpuprogram.children import ChildProcesses
from goldnode.gpuprogram.command import BAD, OK, UNKNOWN

from . import machine, plan, process
from .arrivals import PERIOD, Arrivals
from .records import COULD_NOT_CHECK, FAILED, NOT_COUNTED, PASSED, SCHEMA, Json

NOTICED = 10.0  # seconds after which other work has been noticed
ABOUT = (
    "Run the canary jobs on this node: does it compute what it has to, and how fast? The result is one document (goldnode.canary/1) on "
    "standard output. Use it on a node without other work, which would slow the jobs down."
)
CODES = (
    "Exit code 0: every job passed, or this node lacks what it needs. 2: a job failed. 3: a job could not check, or was ended by a "
    "signal (then it is not counted), wrong use, or a fault of this program."
)


def parser() -> command.ProgramParser:
    """Return the parser of the command line."""
    made = command.ProgramParser(prog="goldnode-canary", description=ABOUT, epilog=CODES)
    add = made.add_argument
    add(
        "--tier",
        choices=("auto", *plan.TIERS),
        default="auto",
        help="auto: gpu where device files are",
    )
    add(
        "--job",
        action="append",
        metavar="NAME",
        help="run this job only; may be given several times",
    )
    add("--limit", type=float, metavar="SECONDS", help="time limit of each job; default: its own")
    add("--request", metavar="FILE", help="JSON of a launcher (goldnode.canary-request/1)")
    add("--out", metavar="FILE", help="write the document to this file, whole or not at all")
    add(
        "--until-eof",
        action="store_true",
        help="end the jobs when standard input is closed: the launcher is gone",
    )
    add(
        "--remove", metavar="DIRECTORY", help="remove this directory at the end: a launcher made it"
    )
    add(
        "--list", action="store_true", help="print the jobs of this tier and their limits, run none"
    )
    return made


def packed() -> None:
    """Run the program of the archive that contains this module. Its digest names the runner in every result."""
    archive = command.archive().archive
    with open(archive, "rb") as opened:
        digest = "sha256:" + hashlib.sha256(opened.read()).hexdigest()
    sys.exit(main(archive, digest))


def main(place: str, digest: str, arguments: Optional[List[str]] = None) -> int:
    """Run the jobs and return the exit code.

    `place` is the entry that jobs add to sys.path, `digest` that of this program.
    """
    options = parser().parse_args(arguments)
    children = ChildProcesses(place)
    try:
        return _main(options, children, digest)
    finally:
        if options.remove:
            shutil.rmtree(options.remove, ignore_errors=True)


def _main(options: argparse.Namespace, children: ChildProcesses, digest: str) -> int:
    def stop(number: signal.Signals) -> None:
        children.stop(f"ended by {number.name}: other work has arrived, or a person ended it")

    def work() -> int:
        wanted = _request(options)
        tier = plan.tier_of(wanted.tier, image.devices("cuda"))
        jobs = plan.jobs(wanted, tier)
        if options.list:
            print("\n".join(f"{job.name:20} {job.limit:g} s" for job in jobs))
            return OK
        if wanted.watch:
            _watch(children)
        document = run(children, wanted, tier, jobs, digest)
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        if options.out:
            command.write(options.out, text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
        return exit_code(document)

    command.on_signals(stop)
    if options.until_eof:
        threading.Thread(target=_until_eof, args=(children,), daemon=True).start()
    return command.guarded("goldnode-canary", work)


def _watch(children: ChildProcesses) -> None:
    """End the jobs when other work is on the node, now or later."""
    arrivals = Arrivals(own_job=os.environ.get("SLURM_JOB_ID", ""))

    def look() -> None:
        while not children.stopped:
            other_work = arrivals.work()
            if other_work:
                children.stop(f"the node is not idle: {other_work}")
            time.sleep(PERIOD)

    if other_work := arrivals.work():
        children.stop(f"the node is not idle: {other_work}")
    threading.Thread(target=look, daemon=True).start()


def _until_eof(children: ChildProcesses) -> None:
    # Only the end of the input counts: the launcher closed it, or died.
    while os.read(0, 4096):
        pass
    children.stop("ended because the launcher closed standard input")


def _request(options: Any) -> plan.Request:
    """Return the request of the options. Raises ValueError with the name of a file that is none."""
    data: Json = {"schema": plan.REQUEST}
    if options.request:
        try:
            with open(options.request, encoding="utf-8") as opened:
                data = json.load(opened)
            wanted = plan.request(data)
        except (ValueError, TypeError) as problem:
            raise ValueError(f"{options.request}: {problem}") from None
    else:
        wanted = plan.request(data)
    if options.tier != "auto":
        wanted = wanted._replace(tier=options.tier)
    if options.job:
        wanted = wanted._replace(names=tuple(options.job))
    if options.limit:
        wanted = wanted._replace(
            limits={row["name"]: options.limit for row in [*plan.table(), *wanted.site]}
        )
    return wanted


def run(
    children: ChildProcesses, wanted: plan.Request, tier: str, jobs: List[plan.Job], digest: str
) -> Json:
    """Run the jobs and return the document."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done: List[Json] = []
    ends: List[float] = []
    platform, simulated = "", False
    for job in jobs:
        print(f"goldnode-canary: {job.name}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        outcome = process.run(children, job)
        # One simulated library marks the whole document.
        simulated = bool(outcome.pop("simulated", False)) or simulated
        platform = platform or str(outcome["facts"].get("platform", ""))
        ended = time.monotonic()
        ends.append(ended)
        done.append({"name": job.name, "seconds": round(ended - begun, 3), **outcome})
    if children.stopped:
        _disturbed(children, done, ends)
    if not platform:
        platform = _platform(children, tier)
    for job, row in zip(jobs, done):
        row["verified"] = plan.verified(job, tier, platform)
    values: Json = {
        "node": machine.node_name(),
        "class": None,
        "class_digest": None,
        "image": None,
        "how": "local",
    }
    # The launcher knows class, image and the way; the node cannot.
    values.update(wanted.values)
    return {
        "schema": SCHEMA, "simulated": simulated, "platform": platform, "runner": digest, "started": started,
        "boot_id": machine.boot_id(), "jobs": done, **values,
    }  # fmt: skip


def _disturbed(children: ChildProcesses, done: List[Json], ends: List[float]) -> None:
    """Mark jobs that passed shortly before other work was noticed: it may have slowed them down."""
    for row, ended in zip(done, ends):
        if row["state"] == PASSED and ended > children.stopped_at - NOTICED:
            row.update(state=NOT_COUNTED, why=children.stopped, metrics=[])


def _platform(children: ChildProcesses, tier: str) -> str:
    """Return the platform where no job has reported it, because discovery was not asked for."""
    call = {"gpu": "gpu_jobs.discovery", "cpu": "cpu_jobs.discovery"}[tier]
    discovery = plan.Job("discovery", call=call, arguments={}, limit=120)
    return str(process.run(children, discovery)["facts"].get("platform", "unknown"))


def exit_code(document: Json) -> int:
    """Return 2 if a job failed, 3 if one could not check or was not counted, otherwise 0."""
    states = {job["state"] for job in document["jobs"]}
    if FAILED in states:
        return BAD
    return UNKNOWN if states & {COULD_NOT_CHECK, NOT_COUNTED} or not states else OK
