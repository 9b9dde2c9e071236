"""`scripts/prove-gpu`: run, pack, import.

Exit codes of a run: 0 all passed or skipped, 2 something failed, 3 something could not be checked.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any, List, Optional

from goldnode.core.errors import GoldnodeError
from goldnode.gpuprogram.command import BAD, OK, UNKNOWN, ProgramParser
from goldnode.prove import SCHEMA, carry, records, summary
from goldnode.prove.changes import FIELDS
from goldnode.prove.session import (
    FAILED,
    PASSED,
    SKIPPED,
    UNCHECKED,
    ProveSettings,
    Session,
    Stopped,
    temporary,
)
from goldnode.prove.steps import OWN_CLASS, STEPS

ROOT = Path(__file__).resolve().parents[3]
STATE = Path("/run/goldnode-prove-gpu/state.json")
UNPACKED = Path("/run/goldnode/program")

RUN_HELP = (
    "Prove goldnode on this machine's NVIDIA GPUs. Nothing is set without --change; no GPU is ever reset, "
    "no MIG or ECC mode changed."
)


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one command. Return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["pack"]:
            return pack(given[1:])
        if given[:1] == ["import"]:
            return take(given[1:])
        return run(given)
    except GoldnodeError as problem:
        print(f"prove-gpu: {problem}", file=sys.stderr)
    except OSError as problem:
        print(f"prove-gpu: {problem.filename or 'a file'}: {problem.strerror}", file=sys.stderr)
    return UNKNOWN


def pack(given: List[str]) -> int:
    """Run `prove-gpu pack`: make the carry folder."""
    parser = ProgramParser(
        prog="prove-gpu pack",
        description="Make the folder that a GPU machine without network and packages needs; at most 64 MiB.",
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=ROOT / "build/prove-gpu",
        help="the folder to make (default build/prove-gpu)",
    )
    parser.add_argument(
        "--wheel",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a wheel with shared libraries (repeat)",
    )
    options = parser.parse_args(given)
    try:
        size = carry.pack(options.folder, options.wheel)
    except ImportError as problem:
        raise carry.CarryError(
            f"this Python lacks {problem.name}",
            remedy="run it where the project's environment is (.venv, or pip install -e .)",
        ) from None
    print(f"wrote {options.folder} ({size / (1 << 20):.1f} MiB)")
    return OK


def take(given: List[str]) -> int:
    """Run `prove-gpu import`: turn the record of a run into a test case."""
    parser = ProgramParser(
        prog="prove-gpu import", description="Copy the record of a run to tests/cases/recorded."
    )
    parser.add_argument("folder", type=Path, help="a directory that prove-gpu has written")
    target = records.take(parser.parse_args(given).folder)
    print(f"wrote {target}; run: pytest tests/unit/prove/test_prove_recorded.py")
    return OK


def run(given: List[str]) -> int:
    """Run `prove-gpu`: all steps."""
    parser = ProgramParser(
        prog="prove-gpu",
        description=RUN_HELP,
        epilog="Other commands: prove-gpu pack, prove-gpu import.",
    )
    parser.add_argument(
        "--out", type=Path, help="directory to write (default prove-gpu-HOST-DATE here)"
    )
    parser.add_argument(
        "--carry",
        type=Path,
        default=ROOT / "build/prove-gpu",
        help="carry folder (default build/prove-gpu of the checkout)",
    )
    parser.add_argument(
        "--change",
        action="store_true",
        help=f"also set {', '.join(FIELDS)}, read them back and put them back (root)",
    )
    parser.add_argument(
        "--locked-clocks",
        action="store_true",
        help="with --change: also lock the graphics clock; a lock that was there before would be lost",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="little work, for practice against the simulator; its figures mean nothing",
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="time of the whole run (default and most 10)"
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=STATE,
        help="where found settings are kept while they are changed",
    )
    options = parser.parse_args(given)
    if not 0 < options.minutes <= 10:
        parser.error("--minutes is more than 0 and at most 10")
    if options.locked_clocks and not options.change:
        parser.error("--locked-clocks goes with --change")
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().partition(".")[0]) or "host"
    out = options.out or Path(
        f"prove-gpu-{host}-{dt.datetime.now(tz=dt.timezone.utc):%Y%m%d-%H%M%S}"
    )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GoldnodeError(f"{out} is there already", remedy="name another directory with --out")
    out.mkdir(parents=True, exist_ok=True)
    asked = ProveSettings(
        out,
        carry=options.carry,
        state=options.state,
        change=options.change,
        locked_clocks=options.locked_clocks,
        short=options.short,
        minutes=options.minutes,
    )
    with temporary() as name:
        place = Path(name)
        session = Session(asked, None, place)
        session.redactor.machine()
        session.redactor.path(str(place), "TEMPORARY")
        session.redactor.path(str(ROOT), "CHECKOUT")
        session.redactor.path(str(out.resolve()), "OUT")
        before = unpacked()
        session.listen()
        try:
            session.carried = carry.read(options.carry, place)
            steps(session)
        except Stopped as problem:
            with session.shield():
                session.children.stop()
                session.notes.append(
                    f"The run was interrupted by {problem}: later steps did not run."
                )
        finally:
            with session.shield():
                session.children.stop()
                tidy(before)
                code = finish(session) if session.carried is not None else UNKNOWN
                if not any(out.iterdir()):
                    out.rmdir()
    return code


def steps(session: Session) -> None:
    """Run all steps in order."""
    if (
        session.carried.commit not in ("unknown", carry.commit(ROOT))
        and carry.commit(ROOT) != "unknown"
    ):
        session.notes.append(
            f"The carry folder is of another commit ({session.carried.commit[:12]}) than the checkout: "
            "make it again."
        )
    for name, title, work in STEPS:
        session.step(name, title, work)


def finish(session: Session) -> int:
    """Write record and summary. Return the exit code."""
    session.signal = None  # the run has ended because of it
    session.output.simulated = session.simulated
    counts = {
        status: sum(row["status"] == status for row in session.steps)
        for status in (PASSED, FAILED, UNCHECKED, SKIPPED)
    }
    now = dt.datetime.now(tz=dt.timezone.utc)
    chosen = session.chosen
    record: Any = {
        "schema": SCHEMA,
        "time": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "simulated": session.simulated,
        "seconds": round(60 * session.settings.minutes - (session.deadline - time.monotonic()), 1),
        "options": {
            "change": session.settings.change,
            "locked_clocks": session.settings.locked_clocks,
            "short": session.settings.short,
        },
        "versions": session.versions,
        "notes": session.notes,
        "counts": counts,
        "steps": session.steps,
        "class": None,
        "redacted": session.redactor.report(),
        "leaking": [],
    }
    if chosen is not None:
        record["class"] = {
            "kind": chosen.kind,
            "name": chosen.document.get("class"),
            "model": chosen.model,
            "why": chosen.why,
        }
    record["files"] = sorted({*session.output.written, "record.json", "summary.md"})
    # Both exist before the seal, which searches every file for names. They may name its findings.
    session.output.json("record.json", record)
    session.output.text("summary.md", summary.page(session.redactor.json(record)))
    record["leaking"] = session.output.seal()
    if record["leaking"]:
        record["notes"] = [
            *session.notes,
            f"Removed, since a name could not be taken out of them: {', '.join(record['leaking'])}.",
        ]
        session.output.json("record.json", record)
        session.output.text("summary.md", summary.page(session.redactor.json(record)))
    label = " (SIMULATED)" if session.simulated else ""
    print(
        f"{', '.join(f'{count} {status}' for status, count in counts.items() if count)}{label}: "
        f"{session.settings.out}/summary.md",
        flush=True,
    )
    if counts[FAILED] or record["leaking"]:
        return BAD
    return UNKNOWN if counts[UNCHECKED] or len(session.steps) < len(STEPS) else OK


def unpacked() -> List[str]:
    """Return the files below /run that the node program has compiled; empty without any."""
    try:
        return sorted(entry.name for entry in os.scandir(UNPACKED))
    except OSError:
        return []


def tidy(before: List[str]) -> None:
    """Remove the files that the node program has compiled for this run (only root has any)."""
    for name in set(unpacked()) - set(before):
        place = UNPACKED / name
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
    # On a provisioned node, the directories are goldnode's own and stay.
    if not OWN_CLASS.exists():
        for folder in (UNPACKED, UNPACKED.parent):
            try:
                folder.rmdir()
            except OSError:  # missing, or not empty
                break


if __name__ == "__main__":
    sys.exit(main())
