"""Answers of the requirements outside of the plan: a Prometheus query, a command, a dual run, evidence, and floors.

Only a clear answer passes or fails. No data, NaN, an infinite value, an error, a timeout and an
answer of another shape are unknown, each with its reason.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from goldnode.core import secret_modes
from goldnode.core.command_environment import without_secrets
from goldnode.core.errors import GoldnodeError, SigningKeyError
from goldnode.core.site import Site
from goldnode.documents.rollout import RolloutCommand, RolloutPrometheus, seconds
from goldnode.fleet.control import dual_reports, evidence, floors
from goldnode.fleet.rollout import dual_requirement, floors_requirement
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.floors_requirement import RolloutMoves
from goldnode.fleet.rollout.model import Answer, RequirementResult
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import phrase

CHANGED, CONTROL = "changed", "control"  # values of the label `arm`
_LARGEST = 1 << 20  # bytes of an answer that are read
_SHOWN = 200  # characters of foreign text in a reason
_KEPT = 4096  # bytes of a command's output, the last ones


@dataclass(frozen=True)
class RequirementSources:
    """Where this site's answers come from. Files are read at each question, so that they may be rotated."""

    prometheus: str | None = None  # address of its HTTP API, without /api/v1
    token: Path | None = None  # file with a bearer token
    ca: Path | None = None  # file with the certificates of its authority
    timeout: float = 30.0  # seconds for a query
    canary: Path | None = None  # directory with canary results
    keys: tuple[Path, ...] = ()  # public keys that verify reports of dual runs
    site: Site | None = None  # with the directory and the keys of evidence


def sources(site: Site) -> RequirementSources:
    """Return the sources that a site file declares."""
    own = site.fleet.prometheus
    canary = site.resolve(site.fleet.canary) if site.fleet.canary else None
    keys = (site.resolve(site.fleet.public_key),) if site.fleet.public_key else ()
    if own is None:
        return RequirementSources(canary=canary, keys=keys, site=site)
    return RequirementSources(
        own.url.rstrip("/"),
        token=site.resolve(own.token) if own.token else None,
        ca=site.resolve(own.ca) if own.ca else None,
        timeout=own.timeout,
        canary=canary,
        keys=keys,
        site=site,
    )


class QueryUnknownError(Exception):
    """There is no answer, and why."""


class RequirementEvaluator:
    """The RequirementReader of a rollout. Several threads may call `read`."""

    def __init__(
        self,
        settings: RolloutSettings,
        given: RequirementSources,
        clock: Callable[[], float] = time.time,
        moved: Callable[[], RolloutMoves] | None = None,
    ) -> None:
        self.settings, self.sources, self.clock, self.moved = settings, given, clock, moved
        self._commands = _Commands()
        self._results = floors.StoredResults()

    def read(self, requirement: str, wave: int) -> RequirementResult:
        """Evaluate a requirement. The answer has the time before the question."""
        at = self.clock()
        try:
            answer, reason = self._answer(requirement, wave)
        except (QueryUnknownError, dual_requirement.NoReportError, GoldnodeError) as problem:
            answer, reason = Answer.UNKNOWN, str(problem)
        except (
            Exception
        ) as problem:  # whatever a program of the site returns must not end a controller
            answer, reason = Answer.UNKNOWN, f"the answer could not be read: {problem!r}"
        return RequirementResult(requirement, wave, answer, at, shown(reason))

    def _answer(self, requirement: str, wave: int) -> tuple[Answer, str]:
        declared = next((item for item in self.settings.outside if item.name == requirement), None)
        if declared is None:
            raise QueryUnknownError("the document has no such requirement")
        item = declared.requirement
        if item.prometheus is not None:
            return judge(item.prometheus, query(self.sources, item.prometheus.query))
        if item.command is not None:
            names = [one.name for one in self.settings.waves]
            return self._commands.run(item.command, self.settings, names[wave])
        if item.dual is not None:
            path = Path(item.dual.report.replace("{wave}", self.settings.waves[wave].name))
            now, keys = self.clock(), self.sources.keys
            report = dual_reports.read(path, keys)
            return dual_requirement.answer(report, item.dual, self.settings, now, bool(keys))
        if item.evidence is not None:
            if self.sources.site is None:
                raise QueryUnknownError("this controller has no site file")
            return evidence.answer(item.evidence, self.settings, self.sources.site, self.clock())
        if item.floors is None or self.moved is None:
            raise QueryUnknownError("this controller does not know which nodes have changed")
        # The nodes first: a result that arrives meanwhile is of one of them, or does not count yet.
        moved = self.moved()
        return floors_requirement.judge(item.floors, self._results.read(self.sources.canary), moved)

    def close(self) -> None:
        """Stop the commands that are running. Their answer is unknown, and the next controller asks again."""
        self._commands.close()


def shown(text: str) -> str:
    """Return foreign text on one line, short, without control characters."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return plain if len(plain) <= _SHOWN else plain[: _SHOWN - 1] + "…"


# Prometheus


@dataclass(frozen=True)
class _Series:
    labels: Mapping[str, str]
    value: float


def query(given: RequirementSources, text: str) -> list[_Series]:
    """Return the series of an instant query. Raises QueryUnknownError with the reason if there is no whole answer."""
    if given.prometheus is None:
        raise QueryUnknownError("the site file names no Prometheus (fleet.prometheus)")
    status, body = _request(given, text)
    try:
        document = json.loads(body)
    except ValueError:
        raise QueryUnknownError(
            f"Prometheus answered {status} with a body that is no JSON"
        ) from None
    if not isinstance(document, dict):
        raise QueryUnknownError(
            f"Prometheus answered {status} with another document than a query's"
        )
    if document.get("status") != "success" or status != 200:
        problem = document.get("error") or "no reason given"
        raise QueryUnknownError(f"Prometheus answered {status}: {problem}")
    if document.get("warnings") or document.get("isPartial"):
        raise QueryUnknownError(
            f"the answer is not whole: {document.get('warnings') or 'isPartial'}"
        )
    data = document.get("data")
    kind = as_dict(data).get("resultType")
    rows = as_dict(data).get("result")
    if kind == "scalar":
        rows = [{"metric": {}, "value": rows}]
    elif kind != "vector":
        raise QueryUnknownError(
            f"the answer is a {kind}, and the query must give a vector or a scalar"
        )
    if not isinstance(rows, list):
        raise QueryUnknownError("the answer has no list of series")
    return [_series(row) for row in rows]


def _request(given: RequirementSources, text: str) -> tuple[int, bytes]:
    """Ask, and return status and body. The time limit is on the whole answer, not on each of its parts."""
    try:
        context = ssl.create_default_context(cafile=given.ca)
        headers = {"Accept": "application/json", "User-Agent": "goldnode"}
        if given.token is not None:
            secret_modes.require(given.token, secret_modes.TOKEN)
            headers["Authorization"] = f"Bearer {given.token.read_text(encoding='utf-8').strip()}"
        end = time.monotonic() + given.timeout
        with urllib3.PoolManager(ssl_context=context) as pool:
            answer = pool.request(
                "POST",
                f"{given.prometheus}/api/v1/query",
                fields={"query": text, "timeout": f"{given.timeout:g}s"},
                encode_multipart=False,
                headers=headers,
                timeout=urllib3.Timeout(total=given.timeout),
                retries=False,
                preload_content=False,
            )
            body = b""
            # read1: what is there, so that a server that sends byte by byte meets the limit too.
            while part := answer.read1(_LARGEST):
                body += part
                if len(body) > _LARGEST:
                    raise QueryUnknownError(f"the answer is larger than {_LARGEST} bytes")
                if time.monotonic() > end:
                    raise QueryUnknownError(f"no whole answer within {given.timeout:g} s")
            return answer.status, body
    except urllib3.exceptions.NewConnectionError as problem:  # a TimeoutError for urllib3
        raise QueryUnknownError(f"Prometheus cannot be asked: {problem}") from None
    except urllib3.exceptions.TimeoutError:
        raise QueryUnknownError(f"no answer within {given.timeout:g} s") from None
    except urllib3.exceptions.HTTPError as problem:
        raise QueryUnknownError(f"Prometheus cannot be asked: {problem}") from None
    except SigningKeyError as problem:
        raise QueryUnknownError(f"Prometheus is not asked: {problem}") from None
    except OSError as problem:  # files of the token and of the authority
        raise QueryUnknownError(
            f"Prometheus cannot be asked: {problem.strerror}: {problem.filename}"
        ) from None


def _series(row: Any) -> _Series:
    try:
        labels, (_, value) = row["metric"], row["value"]
        return _Series({str(name): str(text) for name, text in labels.items()}, float(value))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise QueryUnknownError("a series of the answer has no value") from None


def judge(item: RolloutPrometheus, answered: Sequence[_Series]) -> tuple[Answer, str]:
    """Return the answer of a query, and why. Raises QueryUnknownError."""
    if not answered:
        raise QueryUnknownError("the query returned nothing")
    # NaN is neither above nor below a limit, so it would pass.
    for series in answered:
        if not math.isfinite(series.value):
            raise QueryUnknownError(f"the query returned {series.value}")
    if item.worse_than is not None:
        return _compared(float(item.worse_than[:-1]), answered)
    if item.max is None and item.min is None:
        raise QueryUnknownError("the requirement has no limit")
    if len(answered) != 1:
        raise QueryUnknownError(f"the query returned {len(answered)} series, and one is expected")
    value = answered[0].value
    if item.max is not None and value > item.max:
        return Answer.FAILS, f"{value:g} is above {item.max:g}"
    if item.min is not None and value < item.min:
        return Answer.FAILS, f"{value:g} is below {item.min:g}"
    return Answer.PASSES, f"{value:g}"


def _compared(factor: float, answered: Sequence[_Series]) -> tuple[Answer, str]:
    """Compare the changed nodes with the control arm, the unchanged ones."""
    arms: dict[str, float] = {}
    for series in answered:
        arm = series.labels.get("arm", "")
        # Other labels mean that the query has not reduced each arm to one value.
        if set(series.labels) != {"arm"} or arm not in (CHANGED, CONTROL):
            raise QueryUnknownError(
                f"a series has the labels {dict(series.labels)}, and only arm is expected"
            )
        if arm in arms:
            raise QueryUnknownError(f"the query returned several series of arm {arm}")
        if series.value < 0:
            raise QueryUnknownError(
                f"arm {arm} has {series.value:g}, and no factor is over a negative value"
            )
        arms[arm] = series.value
    missing = {CHANGED, CONTROL} - set(arms)
    if missing:
        raise QueryUnknownError(
            f"the query returned nothing for arm {' and '.join(sorted(missing))}"
        )
    words = f"{arms[CHANGED]:g} on changed nodes, {arms[CONTROL]:g} on unchanged ones"
    if arms[CHANGED] > factor * arms[CONTROL]:
        return Answer.FAILS, f"{words}: more than {factor:g} times as much"
    return Answer.PASSES, words


# Commands


class _Commands:
    """Commands of a site, each in a session of its own so that a time limit ends its children too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def run(self, item: RolloutCommand, settings: RolloutSettings, wave: str) -> tuple[Answer, str]:
        """Run a command and return its answer. Raises QueryUnknownError."""
        words = [word.replace("{wave}", wave) for word in item.run]
        own = {
            "GOLDNODE_ROLLOUT": settings.name,
            "GOLDNODE_CLASS": settings.class_,
            "GOLDNODE_WAVE": wave,
        }
        try:
            process = self._started(words, {**without_secrets(), **own})
        except OSError as problem:
            raise QueryUnknownError(f"{words[0]} cannot be run: {problem.strerror}") from None
        try:
            output, timed_out = _output(process, seconds(item.timeout))
        finally:
            _kill(process)
            with self._lock:
                self._running.discard(process)
        last = shown(output.decode(errors="replace").strip().rpartition("\n")[2])
        said = phrase(": {}", last)
        if timed_out:
            raise QueryUnknownError(f"{words[0]} did not end within {item.timeout}{said}")
        if self._closed:
            raise QueryUnknownError(f"{words[0]} was stopped with the controller")
        if process.returncode == 0:
            return Answer.PASSES, last or f"{words[0]} exited 0"
        # As of test(1): 1 is an answer, and any higher status is an error of the command itself.
        if process.returncode == 1:
            return Answer.FAILS, f"{words[0]} exited 1{said}"
        if process.returncode < 0:
            raise QueryUnknownError(
                f"{words[0]} was killed by {_signal(-process.returncode)}{said}"
            )
        raise QueryUnknownError(f"{words[0]} exited {process.returncode}{said}")

    def _started(self, words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # Under the lock, so that `close` does not miss a command that is just being started.
        with self._lock:
            if self._closed:
                raise QueryUnknownError("this controller ends")
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def close(self) -> None:
        """Stop all commands, and start none any more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _kill(process)


def _output(process: subprocess.Popen[bytes], limit: float) -> tuple[bytes, bool]:
    """Return the end of the output of a process, and whether it met the time limit.

    A child that still has the pipe open after the process ended is not waited for.
    """
    pipe, end = process.stdout, time.monotonic() + limit
    assert pipe is not None  # noqa: S101 - Popen was given a pipe
    os.set_blocking(pipe.fileno(), False)
    tail, opened = b"", True
    with pipe:
        while True:
            ended = process.poll() is not None
            ready = opened and select.select([pipe], [], [], 0 if ended else 0.1)[0]
            part = os.read(pipe.fileno(), 1 << 16) if ready else None
            if part:
                tail = (tail + part)[-_KEPT:]
            elif ended:
                return tail, False
            elif part is not None:
                opened = False  # the process closed its output and goes on
            elif not opened:
                time.sleep(0.1)
            if time.monotonic() > end:
                return tail, not ended


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command that runs, with its children."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
