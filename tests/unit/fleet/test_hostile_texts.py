"""Texts of nodes on their way to terminals, logs and the channel: from every input to every output."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.simulators.fleet import canary
from tests.unit.fleet.control.followed import SimulatedMachine, followed, served
from tests.unit.fleet.ingest.fleet_reports import CLASS as REPORTED
from tests.unit.fleet.ingest.fleet_reports import capture, verdict
from tests.unit.fleet.service.test_app import Ask, running
from tests.unit.fleet.store.fleets import CLASS, fill

from goldnode.cli import main as cli
from goldnode.fleet.rollout import node_state
from goldnode.fleet.rollout.model import Answer
from goldnode.fleet.service import app
from goldnode.fleet.service.app import LockService
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.follow import lockservice
from goldnode.node.follow.channel import Wish
from goldnode.node.follow.machine import NotAppliedError, Observation
from goldnode.node.ground import verdict_files
from goldnode.node.ground.text import clean, cleaned
from goldnode.node.program import main as program

# A title, a colour, a line of its own, a mark that reverses the direction, C1's CSI, a line separator.
HOSTILE = "bad\x1b]0;T\x07\x1b[31m\nn9  released by root \u202e\u200f\x9b2J\u2028x"
_RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\n *n9  released"
)
RECORD = Path(__file__).parents[2] / "cases/recorded/h200_x1_580.159.04"


def raw(text: str) -> list[str]:
    """Return what a terminal would take for more than text."""
    return _RAW.findall(text)


def spoiled(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield a copy of a document for each of its texts, with that one hostile."""

    def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, str):
            yield path
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, inner in items:
            yield from places(inner, (*path, key))

    for *path, last in places(document, ()):
        changed = copy.deepcopy(document)
        place = changed
        for key in path:
            place = place[key]
        place[last] += HOSTILE
        yield ".".join(map(str, (*path, last))), changed


def called(*words: str) -> str:
    """Return all that a command prints."""
    done = CliRunner().invoke(cli, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    return done.output + done.stderr


def stored(path: Path) -> str:
    """Return all texts of a store."""
    with sqlite3.connect(path) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        rows = [row for name in names for row in connection.execute(f"SELECT * FROM {name}")]  # noqa: S608
    return " ".join(str(value) for row in rows for value in row)


def test_clean_leaves_words_and_spaces_of_all_languages() -> None:
    text = "Gr\u00fc\u00dfe \u65e5\u672c a\u00a0b \N{GRINNING FACE}"
    assert clean(text) == text
    assert clean(HOSTILE) == (
        "bad\\x1b]0;T\\x07\\x1b[31m\\x0an9  released by root \\u202e\\u200f\\x9b2J\\u2028x"
    )
    assert clean("\ud800\U000e0001") == "\\ud800\\U000e0001"
    assert cleaned({"a\n": ["\x1b", 1, None]}) == {"a\\x0a": ["\\x1b", 1, None]}


FIELDS = ("id", "group", "boot_id", *app.TEXTS, *app.LISTS, "not_applied", "unknown_field")


def test_no_field_of_a_request_reaches_the_store_or_an_answer_raw(
    tmp_path: Path, migrated: Path
) -> None:
    path = Path(shutil.copy(migrated, tmp_path / "fleet.db"))
    store = StoreDatabase(str(path))
    fill(store)

    async def work(ask: Ask, service: LockService) -> None:
        for endpoint in ("report", "pre-reboot", "steady-state"):
            for field in FIELDS:
                params: dict[str, Any] = {
                    "id": "n00",
                    "group": CLASS,
                    "verdict": "fail",
                    "boot_id": "b",
                }
                params[field] = [HOSTILE] if field in app.LISTS else HOSTILE
                answer = await ask(f"/v1/{endpoint}", json.dumps({"client_params": params}))
                assert not raw(answer.body.decode()), (endpoint, field)
        answer = await ask(f"/v1/{HOSTILE}", "")
        assert not raw(answer.body.decode())
        assert not raw((await ask("/metrics", method="GET")).body.decode())

    running(store, work)
    store.close()
    assert "n9  released" in stored(path), "the texts are there"
    assert not raw(stored(path))


@dataclass
class HostileMachine(SimulatedMachine):
    """A machine whose texts are hostile, and which refuses what it should apply."""

    def observe(self, wanted: Wish | None) -> Observation:
        return Observation(
            f"b{HOSTILE}",
            digest=self.digest,
            verdict="fail",
            software=[HOSTILE],
            hardware=[HOSTILE],
            fell_back_from=HOSTILE,
        )

    def apply(self, document: Any, wanted: Wish, program: bytes | None) -> None:
        raise NotAppliedError(HOSTILE)


def test_nodes_that_follow_write_no_line_of_their_own(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(migrated, tmp_path / "fleet.db"))
    rollout = followed(tmp_path, f"sqlite:///{path}")
    rollout.machines = {name: HostileMachine() for name in rollout.machines}
    store = rollout.store()
    with served(rollout):
        report = rollout.run(store, rounds=6)
    store.close()
    assert "n9  released" in stored(path)
    assert not raw(stored(path))
    assert not raw(repr(report).replace("\\x", "").encode().decode("unicode_escape"))
    for target in (tmp_path / "channel/targets").glob("*.json"):
        assert not raw(" ".join(map(str, _leaves(json.loads(target.read_text())))))
    assert not raw("".join(text for said in rollout.said.values() for text in said))
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(path))
    for words in (
        *(
            ("fleet", "status"),
            ("fleet", "log"),
            ("rollout", "status", "r1"),
            ("rollout", "log", "r1"),
        ),
        *(("rollout", "explain", name) for name in rollout.machines),
    ):
        assert not raw(called(*words)), words
        assert not raw(called(*words, "--format", "json")), words


def _leaves(value: Any) -> Iterator[Any]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        yield value
        return
    for key, inner in items:
        yield key
        yield from _leaves(inner)


def said(call: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command of the node prints."""
    with suppress(SystemExit):
        call()
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_no_text_of_a_capture_is_printed_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = json.loads((RECORD / "capture.json").read_text())
    recorded["identity"]["hostname"] = "n1"
    recorded["events"]["error"] = {"fault": "unread", "text": "x"}
    recorded["events"]["rows"] = [
        {"kind": "xid", "code": 79, "count": 1, "text": "NVRM: Xid", "address": "0"}
    ]
    file = tmp_path / "capture.json"
    for place, changed in spoiled(recorded):
        file.write_text(json.dumps(changed))
        for words in (["check", "--from", str(file)], ["diagnose", "--from", str(file)]):
            printed = said(lambda words=words: program.main(words), capsys)  # type: ignore[misc]
            assert not raw(printed), (place, words)


def test_no_text_of_a_class_document_is_printed_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "class.json"
    for where, changed in spoiled(json.loads((RECORD / "class.json").read_text())):
        if where.count(".") > 1:  # thousands of facts
            continue
        document.write_text(json.dumps(changed))
        printed = called("check-node", str(RECORD / "capture.json"), "--class", str(document))
        assert not raw(printed), where


def test_no_text_of_a_stored_verdict_reaches_a_rollout_raw() -> None:
    recorded = json.loads((RECORD / "verdict.json").read_text())
    recorded.update(boot_identity="b/42", uptime=100.0, exit_code=2)
    stat = "1 (systemd) S " + " ".join("0" * 18) + " 42 0"
    own = {
        "/proc/sys/kernel/random/boot_id": "b",
        "/proc/1/stat": stat,
        "/proc/uptime": "160.5 1000",
    }
    observed = 0
    for where, changed in spoiled(recorded):
        files = {**own, verdict_files.VERDICT: json.dumps(changed)}
        text = "".join(f"--- goldnode {name}\n{content}\n" for name, content in files.items())
        found = node_state.observe("n1", 0.0, node_state.read(text))
        observed += found.verdict is Answer.FAILS
        assert not raw(" ".join(found.software + found.hardware)), where
    assert observed > 50


def test_no_text_of_a_report_or_canary_result_reaches_a_report_of_the_fleet_raw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    given = tmp_path / "given"
    given.mkdir()
    found = capture("n1", now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    documents = [
        {"schema": "goldnode.node-report/1", "node": "n1", "class": REPORTED, "capture": found}
    ]
    documents[0]["verdict"] = verdict(found)
    documents.append(canary("n1", now, {"gemm_fp16": {"0000:0a:00.0": [600.0] * 3}}))
    for kind, document in enumerate(documents):
        for number, (_, changed) in enumerate(list(spoiled(document))[kind::5]):
            if changed["node"] == "n1":
                changed["node"] = f"n{number}"
            (given / f"{kind}-{number}.json").write_text(json.dumps(changed))
    monkeypatch.setenv("GOLDNODE_FLEET_DATA", str(tmp_path / "data"))
    printed = called("fleet", "ingest", str(given))
    assert not raw(printed)
    for words in (
        ("fleet", "report"),
        ("fleet", "report", "--format", "json"),
        ("fleet", "hardware"),
    ):
        assert not raw(called(*words)), words


def test_no_answer_of_a_lock_service_is_printed_raw() -> None:
    answer = json.dumps(
        {"kind": HOSTILE, "value": HOSTILE, "phase": HOSTILE, "target": HOSTILE}
    ).encode()
    assert not raw(" ".join(map(str, _leaves(dict(lockservice._json(answer))))))
    assert lockservice._json(b"[" * 100_000) == {}
