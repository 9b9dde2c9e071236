"""Requirements: every answer that is not clear is unknown, and none of them promotes."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.rollout import documents

from goldnode.core.errors import SiteError
from goldnode.core.site import Site, load_site
from goldnode.fleet.control.requirements import RequirementEvaluator, RequirementSources, sources
from goldnode.fleet.rollout.model import Answer, RequirementResult, RolloutPhase, StepPhase

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
SOON = ("timeout: 1h\n", "timeout: 1h\non_unknown: {after: 1h}\n")
Reply = Callable[[http.server.BaseHTTPRequestHandler], None]


def evaluator(directory: Path, requirement: str, given: RequirementSources) -> RequirementEvaluator:
    own = ("require:\n", f"require:\n- {requirement}\n")
    return RequirementEvaluator(documents.settings(directory, own), given, clock=lambda: 7.0)


def vector(*series: tuple[dict[str, str], str]) -> dict[str, Any]:
    rows = [{"metric": labels, "value": [1.0, value]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": rows}}


def replies(document: object, status: int = 200) -> Reply:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()

    def reply(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return reply


@contextmanager
def serving(reply: Reply) -> Iterator[tuple[str, list[tuple[dict[str, str], str]]]]:
    """Yield the address of a server, and what it was asked."""
    asked: list[tuple[dict[str, str], str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((dict(self.headers), f"{self.path}?{body}"))
            try:
                reply(self)
            except OSError:  # the client has gone
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def asked_once(
    directory: Path, requirement: str, reply: Reply, timeout: float = 5
) -> RequirementResult:
    with serving(reply) as (url, _):
        found = evaluator(directory, requirement, RequirementSources(url, timeout=timeout))
        return found.read("prometheus", 0)


MAX = "prometheus: {query: up, max: 2}"
ARMS = "prometheus: {query: 'avg by (arm) (x)', worse_than: 1.5x}"


@pytest.mark.parametrize(
    ("requirement", "document", "answer", "reason"),
    [
        (MAX, vector(({}, "2")), Answer.PASSES, "2"),
        (MAX, vector(({}, "2.5")), Answer.FAILS, "2.5 is above 2"),
        ("prometheus: {query: up, min: 3}", vector(({}, "2.5")), Answer.FAILS, "2.5 is below 3"),
        (
            MAX,
            {"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}},
            Answer.PASSES,
            "1",
        ),
        (
            ARMS,
            vector(({"arm": "changed"}, "3"), ({"arm": "control"}, "2")),
            Answer.PASSES,
            "3 on changed nodes, 2 on unchanged ones",
        ),
        (
            ARMS,
            vector(({"arm": "control"}, "2"), ({"arm": "changed"}, "3.1")),
            Answer.FAILS,
            "3.1 on changed nodes, 2 on unchanged ones: more than 1.5 times as much",
        ),
        (
            ARMS,
            vector(({"arm": "changed"}, "0"), ({"arm": "control"}, "0")),
            Answer.PASSES,
            "0 on changed",
        ),
        (
            ARMS,
            vector(({"arm": "changed"}, "1"), ({"arm": "control"}, "0")),
            Answer.FAILS,
            "1 on changed",
        ),
    ],
)
def test_prometheus_value_decides_the_answer(
    tmp_path: Path, requirement: str, document: object, answer: Answer, reason: str
) -> None:
    found = asked_once(tmp_path, requirement, replies(document))
    assert (found.requirement, found.wave, found.answer, found.at) == ("prometheus", 0, answer, 7.0)
    assert found.reason.startswith(reason)


def _hangs(request: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(2)


def _drips(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(40):
        request.wfile.write(b" ")
        time.sleep(0.05)


def _cut(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"status": "success", ')


def _redirects(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "http://127.0.0.1:9/api/v1/query")
    request.send_header("Content-Length", "0")
    request.end_headers()


_ARM = {"arm": "changed"}
UNCLEAR: dict[str, tuple[str, Reply, str]] = {
    "empty": (MAX, replies(vector()), "the query returned nothing"),
    "nan": (MAX, replies(vector(({}, "NaN"))), "the query returned nan"),
    "infinite": (MAX, replies(vector(({}, "+Inf"))), "the query returned inf"),
    "minus infinite": (MAX, replies(vector(({}, "-Inf"))), "the query returned -inf"),
    "several": (
        MAX,
        replies(vector(({"a": "1"}, "1"), ({"a": "2"}, "1"))),
        "the query returned 2 series",
    ),
    "no number": (MAX, replies(vector(({}, "much"))), "a series of the answer has no value"),
    "no value": (
        MAX,
        replies(
            {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}
        ),
        "a series of the answer has no value",
    ),
    "matrix": (
        MAX,
        replies({"status": "success", "data": {"resultType": "matrix", "result": []}}),
        "the answer is a matrix",
    ),
    "no data": (MAX, replies({"status": "success"}), "the answer is a None"),
    "no list": (
        MAX,
        replies({"status": "success", "data": {"resultType": "vector", "result": 3}}),
        "the answer has no list of series",
    ),
    "list": (MAX, replies([]), "Prometheus answered 200 with another document"),
    "warning": (
        MAX,
        replies({**vector(({}, "1")), "warnings": ["a store is away"]}),
        "the answer is not whole: ['a store is away']",
    ),
    "partial": (MAX, replies({**vector(({}, "1")), "isPartial": True}), "the answer is not whole"),
    "html": (MAX, replies(b"<html>"), "Prometheus answered 200 with a body that is no JSON"),
    "deep": (MAX, replies(b"[" * 100_000), "the answer could not be read"),
    "large": (MAX, replies(b" " * (2 << 20)), "the answer is larger than"),
    "refused query": (
        MAX,
        replies({"status": "error", "error": "bad\x1b[31m\nparse"}, 400),
        "Prometheus answered 400: bad [31m parse",
    ),
    "error": (MAX, replies({}, 500), "Prometheus answered 500: no reason given"),
    "success of an error": (MAX, replies(vector(({}, "1")), 503), "Prometheus answered 503"),
    "redirect": (MAX, _redirects, "Prometheus answered 302 with a body that is no JSON"),
    "hangs": (MAX, _hangs, "no answer within 0.3 s"),
    "drips": (MAX, _drips, "no whole answer within 0.3 s"),
    "cut short": (MAX, _cut, "Prometheus cannot be asked"),
    "one arm": (ARMS, replies(vector((_ARM, "1"))), "the query returned nothing for arm control"),
    "arm twice": (
        ARMS,
        replies(vector((_ARM, "1"), (_ARM, "1"), ({"arm": "control"}, "1"))),
        "the query returned several series of arm changed",
    ),
    "another arm": (
        ARMS,
        replies(vector(({"arm": "new"}, "1"))),
        "a series has the labels {'arm': 'new'}",
    ),
    "another label": (
        ARMS,
        replies(vector(({"arm": "changed", "x": "1"}, "1"))),
        "a series has the labels {'arm': 'changed', 'x': '1'}",
    ),
    "no arm": (ARMS, replies(vector(({}, "1"))), "a series has the labels {}"),
    "nan of an arm": (
        ARMS,
        replies(vector((_ARM, "1"), ({"arm": "control"}, "NaN"))),
        "the query returned nan",
    ),
    "negative": (
        ARMS,
        replies(vector((_ARM, "-1"), ({"arm": "control"}, "1"))),
        "arm changed has -1",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_unclear_answer_is_unknown_with_its_reason(tmp_path: Path, name: str) -> None:
    requirement, reply, reason = UNCLEAR[name]
    limit = 0.3 if reply in (_hangs, _drips) else 5
    found = asked_once(tmp_path, requirement, reply, limit)
    assert found.answer is Answer.UNKNOWN
    assert found.reason.startswith(reason)


def test_unreachable_server_is_unknown(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        found = evaluator(tmp_path, MAX, RequirementSources(url)).read("prometheus", 0)
    assert found.answer is Answer.UNKNOWN
    assert found.reason.startswith("Prometheus cannot be asked")


def test_site_without_a_server_and_unreadable_files_are_unknown(tmp_path: Path) -> None:
    missing = tmp_path / "token"
    for given, reason in (
        (RequirementSources(), "the site file names no Prometheus (fleet.prometheus)"),
        (
            RequirementSources("http://127.0.0.1:9", token=missing),
            "Prometheus cannot be asked: No such file",
        ),
        (
            RequirementSources("http://127.0.0.1:9", ca=missing),
            "Prometheus cannot be asked: No such file",
        ),
    ):
        found = evaluator(tmp_path, MAX, given).read("prometheus", 0)
        assert (found.answer, found.reason.startswith(reason)) == (Answer.UNKNOWN, True), (
            found.reason
        )


def test_query_and_token_reach_the_server(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    with serving(replies(vector(({}, "1")))) as (url, asked):
        given = RequirementSources(url, tmp_path / "token")
        evaluator(tmp_path, "prometheus: {query: 'a + b', max: 2}", given).read("prometheus", 0)
    (headers, text), *_ = asked
    assert headers["Authorization"] == "Bearer secret"
    assert text == "/api/v1/query?query=a+%2B+b&timeout=30s"


def test_floors_and_unknown_names_are_unknown(tmp_path: Path) -> None:
    found = evaluator(tmp_path, "floors: {metrics: [gemm]}", RequirementSources())
    assert found.read("floors", 0).answer is Answer.UNKNOWN
    assert (
        found.read("floors", 0).reason == "this controller does not know which nodes have changed"
    )
    assert found.read("prometheus-2", 0).answer is Answer.UNKNOWN
    assert evaluator(tmp_path, "command: {run: [/bin/true]}", RequirementSources()).read(
        "command", 9
    ).answer is (Answer.UNKNOWN)


def test_site_file_names_the_server(tmp_path: Path) -> None:
    site = tmp_path / "goldnode-site.yml"
    site.write_text(
        "fleet: {prometheus: {url: 'https://prometheus.example:9090/', token: secret/token}}\n"
    )
    loaded = load_site(site)
    assert sources(loaded) == RequirementSources(
        "https://prometheus.example:9090", tmp_path / "secret/token", site=loaded
    )
    assert sources(Site()) == RequirementSources(site=Site())
    site.write_text("fleet: {prometheus: {url: 'prometheus.example'}}\n")
    with pytest.raises(SiteError, match="url"):
        load_site(site)


# Commands


def _command(directory: Path, script: str, timeout: str = "30s") -> RequirementResult:
    words = json.dumps(["/bin/sh", "-c", script, "accept", "{wave}"])
    requirement = f"command: {{run: {words}, timeout: {timeout}}}"
    return evaluator(directory, requirement, RequirementSources()).read("command", 1)


@pytest.mark.parametrize(
    ("script", "answer", "reason"),
    [
        ("exit 0", Answer.PASSES, "/bin/sh exited 0"),
        ("echo first; echo 5 of 5", Answer.PASSES, "5 of 5"),
        (
            'echo "$1 $GOLDNODE_ROLLOUT $GOLDNODE_CLASS $GOLDNODE_WAVE"',
            Answer.PASSES,
            "first r1 l4 first",
        ),
        ("echo too slow >&2; exit 1", Answer.FAILS, "/bin/sh exited 1: too slow"),
        ("echo no licence; exit 2", Answer.UNKNOWN, "/bin/sh exited 2: no licence"),
        ("exit 75", Answer.UNKNOWN, "/bin/sh exited 75"),
        ("kill -SEGV $$", Answer.UNKNOWN, "/bin/sh was killed by SIGSEGV"),
        (
            "cat; exit 1",
            Answer.FAILS,
            "/bin/sh exited 1",
        ),  # it has no input, and does not wait for one
        ("exec >&- 2>&-; sleep 0.1; exit 1", Answer.FAILS, "/bin/sh exited 1"),
        ("sleep 60 & exit 1", Answer.FAILS, "/bin/sh exited 1"),  # its child still has the pipe
        (
            r"head -c 300000 /dev/zero | tr '\0' x; printf '\033[31mred'",
            Answer.PASSES,
            "x" * 199 + "…",
        ),
    ],
)
def test_command_result_decides_the_answer(
    tmp_path: Path, script: str, answer: Answer, reason: str
) -> None:
    found = _command(tmp_path, script)
    assert (found.answer, found.reason) == (answer, reason)


def test_command_that_meets_its_time_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "late"
    found = _command(tmp_path, f"echo waiting; (sleep 0.6; touch {mark}) & sleep 60", "0.2s")
    assert (found.answer, found.reason) == (
        Answer.UNKNOWN,
        "/bin/sh did not end within 0.2s: waiting",
    )
    time.sleep(0.6)
    assert not mark.exists()


def test_command_that_is_missing_is_unknown(tmp_path: Path) -> None:
    found = evaluator(tmp_path, "command: {run: [/nonexistent]}", RequirementSources())
    assert (
        found.read("command", 0).reason == "/nonexistent cannot be run: No such file or directory"
    )
    assert found.read("command", 0).answer is Answer.UNKNOWN


def test_closed_evaluator_ends_its_command(tmp_path: Path) -> None:
    found = evaluator(tmp_path, 'command: {run: [/bin/sh, -c, "sleep 60"]}', RequirementSources())
    results: list[RequirementResult] = []
    thread = threading.Thread(target=lambda: results.append(found.read("command", 0)))
    thread.start()
    while not found._commands._running:
        time.sleep(0.01)
    found.close()
    thread.join(5)
    assert results[0].reason == "/bin/sh was stopped with the controller"
    assert found.read("command", 0).reason == "this controller ends"


# No unclear answer promotes


@pytest.mark.parametrize(
    "name", ["empty", "nan", "error", "hangs", "one arm", "no server", "exit 2"]
)
def test_unclear_answer_never_promotes_and_freezes(
    tmp_path: Path, migrated: Path, name: str
) -> None:
    requirement, reply, reason = UNCLEAR.get(
        name,
        ("command: {run: [/bin/sh, -c, exit 2]}", replies(""), "/bin/sh exited 2")
        if name == "exit 2"
        else (MAX, replies(""), "the site file names no Prometheus"),
    )
    shutil.copy(migrated, tmp_path / "fleet.db")
    own = ("require:\n", f"require:\n- {requirement}\n")
    found = controlled(tmp_path, str(tmp_path / "fleet.db"), 8, *FAST, own, SOON)
    with serving(reply) as (url, _):
        # Short: the simulated hours go on while a real thread waits.
        limit = 0.02 if name == "hangs" else 30
        given = RequirementSources(None if name == "no server" else url, timeout=limit)
        found.requirements = RequirementEvaluator(found.settings, given, lambda: found.world.now)
        report, _ = found.run(ticks=100)
    kind, reason = requirement.partition(":")[0], reason.removesuffix("0.3 s")
    assert report.phase is RolloutPhase.RUNNING
    frozen = next(
        wait.reason for wait in report.waits if wait.reason.startswith("frozen by goldnode")
    )
    assert f"no answer since the soak of wave canary ended: {kind}: {reason}" in frozen
    _, end = found.history()
    assert sum(step[0] is StepPhase.DONE for step in end["steps"].values()) == 2  # the canary pool


# A real Prometheus


@contextmanager
def prometheus(directory: Path, samples: str) -> Iterator[str]:
    """Yield the address of a real Prometheus with a recorded block."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("no prometheus is installed")
    (directory / "samples").write_text(samples)
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
    subprocess.run(made, cwd=directory, check=True, capture_output=True)
    (directory / "prometheus.yml").write_text("global: {}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            time.sleep(0.05)
            try:
                if urllib3.request("GET", f"{url}/-/ready", retries=False).status == 200:
                    break
            except urllib3.exceptions.HTTPError:
                continue
        else:
            pytest.fail("prometheus does not start")
        yield url
    finally:
        process.kill()
        process.wait()


def test_real_prometheus_answers_and_faulty_queries_are_unknown(tmp_path: Path) -> None:
    now = time.time()
    errors = {"n1": 6, "n2": 10, "n3": 1, "n4": 3}  # n1 and n2 are changed
    lines = ["# TYPE errors gauge"]
    lines += [f'errors{{node="{node}"}} {value} {now - 20:.3f}' for node, value in errors.items()]
    lines += ["# TYPE goldnode_rollout_node gauge"]
    for node in errors:
        arm = "changed" if node in ("n1", "n2") else "control"
        lines += [
            f'goldnode_rollout_node{{rollout="r1",node="{node}",arm="{arm}"}} 1 {now - 20:.3f}'
        ]
    joined = (
        'avg by (arm) (errors * on (node) group_left (arm) goldnode_rollout_node{rollout="r1"})'
    )

    def answer(url: str, query: str, limit: str, timeout: float = 30) -> tuple[Answer, str]:
        requirement = f"prometheus: {{query: {json.dumps(query)}, {limit}}}"
        own = evaluator(tmp_path, requirement, RequirementSources(url, timeout=timeout))
        found = own.read("prometheus", 0)
        return found.answer, found.reason

    with prometheus(tmp_path, "\n".join([*lines, "# EOF\n"])) as url:
        assert answer(url, joined, "worse_than: 4.1x") == (
            Answer.PASSES,
            "8 on changed nodes, 2 on unchanged ones",
        )
        assert answer(url, joined, "worse_than: 3x")[0] is Answer.FAILS
        assert answer(url, "sum(errors)", "max: 20") == (Answer.PASSES, "20")
        assert answer(url, "sum(errors)", "max: 19") == (Answer.FAILS, "20 is above 19")
        assert answer(url, "scalar(sum(errors))", "min: 21")[0] is Answer.FAILS
        for query, reason in (
            ("errors", "the query returned 4 series, and one is expected"),
            ("sum(errors_of_nothing)", "the query returned nothing"),
            ("sum(errors) / 0 - sum(errors) / 0", "the query returned nan"),
            ("sum(errors) / 0", "the query returned inf"),
            ("errors[5m]", "the answer is a matrix"),
            ('"text"', "the answer is a string"),
            ("sum(errors", "Prometheus answered 400: "),
        ):
            found = answer(url, query, "max: 20")
            assert found[0] is Answer.UNKNOWN
            assert found[1].startswith(reason), found
