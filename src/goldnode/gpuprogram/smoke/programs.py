"""Tests of an image that its team declares: programs of the image whose exit status is the result.

`image.json` has them as `tests`, rows {name, run, seconds, tier, workdir}.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from typing import Any, List

from goldnode.gpuprogram.children import signal_name
from goldnode.gpuprogram.results import Failed, Json, NotRun, passed

PREFIX = "team "  # of their names in a record: no test of the program itself begins so
_LINE = 300  # characters of a program's last line that a record gets


def declared(image: Json) -> List[Json]:
    """Return the rows of an image's description. Raises ValueError for one of another form."""
    rows = image.get("tests", [])
    if not isinstance(rows, list) or not all(_fits(row) for row in rows):
        raise ValueError("its tests are no list of {name, run, seconds, tier, workdir}")
    return rows


def _fits(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in ("name", "tier", "workdir"))
        and row["tier"] in ("cpu", "gpu")
        and isinstance(row.get("seconds"), (int, float))
        and isinstance(row.get("run"), list)
        and bool(row["run"])
        and all(isinstance(word, str) for word in row["run"])
    )


def ends_well(words: List[str], workdir: str) -> Json:
    """Run a program. Status 0 has passed; another status, a signal and a program that does not start have failed.

    SIGKILL is no result: it comes from outside, usually because memory is short.
    """
    try:
        # Files and not pipes: what the program leaves running may hold a pipe open, and only the
        # last line of the output is of use.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            status = _status(words, workdir, out, err)
            shown, fault = _last(out), _last(err)
    except OSError as problem:
        raise NotRun(f"its output cannot be stored: {problem}", required=True) from None
    if status == -signal.SIGKILL:
        raise NotRun(
            "it was killed from outside, as by the kernel when memory is short", required=True
        )
    if status:
        how = f"status {status}" if status > 0 else signal_name(-status)
        raise Failed(
            f"it ended with {how}: {fault or shown or 'it printed nothing'}", expected=0, got=status
        )
    # As a figure: records that are attached to an image leave out those of the cpu tier, so equal
    # results stay equal documents whatever the program prints.
    return passed(0, 0, {"printed": shown} if shown else None)


def _status(words: List[str], workdir: str, out: Any, err: Any) -> int:
    """Run the program and return its status. Raises Failed if it does not start."""
    try:
        return subprocess.run(
            words, cwd=workdir, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False
        ).returncode
    except OSError as problem:
        where = problem.filename or words[0]
        why = f"{where}: {problem.strerror or problem} (as user {os.getuid()})"
        raise Failed(why, expected="starts", got="does not start") from None


def _last(output: Any) -> str:
    """Return the last line that has text, cut to its end."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
    lines = output.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[-_LINE:] if lines else ""
