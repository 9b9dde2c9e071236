"""The record of a drain (schema goldnode.drain/1): on the node, and next to the run records on the
controller.

It is written before the scheduler is asked for anything and removed after the return. So a record
that is found belongs to a run that is still working or was interrupted.
:mod:`goldnode.fleet.drain.protocol` decides which of the two, and who holds the node now.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from goldnode.node.ground.drained import FILE

SCHEMA = "goldnode.drain/1"
DRAIN, RESUME = "drain", "resume"

Shell = Callable[[str], str]

# While the file is there the gate resumes nothing. It acts at the next check after that, which is started here where the class drains.
READ = "[ ! -e {file} ] || {{ echo there; cat {file}; }}"
WRITE = "umask 022; mkdir -p {folder} && printf %s {text} >{file}.new && sync {file}.new && mv {file}.new {file} && sync {folder}"
CLEAR = """rm -f {file} && {{ rmdir {folder} 2>/dev/null; \
grep -qs '"mode": "drain"' {folder}/gate.json && systemctl start --no-block goldnode-watch.service >/dev/null 2>&1; :; }}"""


@dataclass(frozen=True)
class DrainRecord:
    """One drain: the run, the node, reason and time, and the state before it.

    `by` is the scheduler, `node` its name of the node. `in_service` is None while only the site's
    command knows it. `state` and `was` are the scheduler's state of the node and its reason before
    the drain.
    """

    by: str
    node: str
    run: str
    controller: str
    since: str
    reason: str
    in_service: bool | None
    state: str = ""
    was: str = ""

    def text(self) -> str:
        """Return the record as a file holds it."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    def about(self) -> str:
        """Return which run drained, for a person."""
        return f"run {self.run} of {self.controller}, {self.since}"


def parse(text: str) -> DrainRecord:
    """Return the record that a file holds. Raises ValueError where it holds none."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or content.pop("schema", None) != SCHEMA:
        raise ValueError(f"schema is not {SCHEMA}")
    try:
        record = DrainRecord(**content)
    except TypeError as problem:
        raise ValueError(str(problem)) from None
    words = [value for name, value in asdict(record).items() if name != "in_service"]
    if not all(isinstance(word, str) for word in words) or not isinstance(
        record.in_service, bool | None
    ):
        raise ValueError("a value is of another type")
    return record


@dataclass(frozen=True)
class FoundRecords:
    """The records of a node: its own, and this controller's. `damaged`: why the node's own cannot be read."""

    node: DrainRecord | None = None
    local: DrainRecord | None = None
    damaged: str | None = None


@dataclass(frozen=True)
class DrainRecords:
    """Location of the record of one node's drain.

    :param shell: runs a shell script on the node as root and returns its output; raises if it fails.
    :param local: the file on the controller; None if records of runs are off.
    :param root: root directory of the node's file.
    """

    shell: Shell
    local: Path | None = None
    root: str = ""

    def read(self) -> FoundRecords:
        """Read both."""
        there, _, text = self.shell(self._script(READ)).partition("\n")
        node, local, damaged = None, None, None
        if there.strip():
            try:
                node = parse(text)
            except ValueError as problem:
                damaged = str(problem)
        if self.local is not None:
            with contextlib.suppress(OSError, ValueError):
                local = parse(self.local.read_text(encoding="utf-8"))
        return FoundRecords(node, local, damaged)

    def write(self, record: DrainRecord) -> None:
        """Write both files, each atomically, the controller's first: if the node is unreachable, nothing has
        happened yet.
        """
        if self.local is not None:
            # A place that cannot be written is reported with the record of the run; the node's own file is enough.
            with contextlib.suppress(OSError):
                self.local.parent.mkdir(parents=True, exist_ok=True)
                new = self.local.with_name(f".{self.local.name}.{os.getpid()}")
                with new.open("w", encoding="utf-8") as out:
                    out.write(record.text())
                    out.flush()
                    os.fsync(out.fileno())
                new.replace(self.local)
        self.shell(self._script(WRITE, record.text()))

    def clear(self) -> None:
        """Remove both."""
        self.shell(self._script(CLEAR))
        if self.local is not None:
            with contextlib.suppress(OSError):
                for path in (*self.local.parent.glob(f"{self.local.name}.*"), self.local):
                    path.unlink(missing_ok=True)

    def status_file(self, run: str, what: str) -> Path | None:
        """Return the file for the exit status of the site's command (DRAIN or RESUME) of a run.

        None without a place for it.
        """
        if self.local is None or not self.local.is_file():
            return None
        return self.local.with_name(f"{self.local.name}.{run}.{what}").absolute()

    def status(self, run: str, what: str) -> int | None:
        """Return the exit status that the site's command had; None where it did not end, or is not known."""
        path = self.status_file(run, what)
        try:
            return int(path.read_text(encoding="utf-8")) if path else None
        except (OSError, ValueError):
            return None

    def _script(self, script: str, text: str = "") -> str:
        file = self.root.rstrip("/") + FILE
        return script.format(
            file=shlex.quote(file),
            folder=shlex.quote(str(Path(file).parent)),
            text=shlex.quote(text),
        )


def local_file(runs: str, by: str, node: str) -> Path | None:
    """Return the controller's file of a node, below the directory of the records of runs.

    None if these are off.
    """
    if runs.lower() in ("off", "none", "no", "false", ""):
        return None
    # Quoted, slashes included: a scheduler's name of a node is no path.
    return Path(runs).expanduser() / "drains" / f"{by}-{quote(node, safe='')}.json"
