"""The cached answer, and the file of a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.gate import gate
from goldnode.node.ground.host import Host, matching
from goldnode.node.ground.json_lines import by_lines
from goldnode.node.ground.verdict_files import CLASS, LIMIT, SEAL, VERDICT
from goldnode.node.verdict import current


def test_a_cached_answer_imports_little() -> None:
    """It is read by schedulers before each job: the budget is in docs/benchmarks/sanity.md."""
    reported = "import sys; from goldnode.node.verdict import current; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {reported}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "goldnode.node.verdict.current" in done.stdout.split()
    slow = {"argparse", "dataclasses", "enum", "hashlib", "json", "re", "subprocess", "typing"}
    assert not slow & set(done.stdout.split())


BOOT, STAT = "5b8e2f1e-8f2a-4a44-9a52-000000000001", "1 (systemd) S " + "0 " * 18 + "21 0 0"
DOCUMENT = json.dumps({"schema": "goldnode.class/1", "digest": "sha256:1"})


def checked(root: Path, **more: Any) -> Host:
    """A node on which a check has saved its verdict just now, 100 s after its start."""
    host = Host(str(root), live=True)
    host.write("/proc/sys/kernel/random/boot_id", f"{BOOT}\n".encode())
    host.write("/proc/1/stat", STAT.encode())
    host.write("/proc/uptime", b"100.5 1\n")
    host.write(CLASS, DOCUMENT.encode())
    host.class_text = DOCUMENT
    verdict = {
        "schema": current.SCHEMA,
        "class": "one",
        "class_digest": "sha256:1",
        "status": "degraded",
        "exit_code": 1,
        "boot_identity": f"{BOOT}/21",
        "uptime": 100.25,
        "findings": [],
        **more,
    }
    gate.save(host, verdict, by_lines(verdict))
    return host


def edited(name: str, old: str, new: str) -> Callable[[Host], None]:
    """A file of the node with one text in place of another."""

    def edit(host: Host) -> None:
        text = host.text(name) or ""
        assert old in text
        host.write(name, text.replace(old, new).encode())

    return edit


def test_an_answer_with_a_seal_is_that_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = checked(tmp_path)
    assert current.sealed(host.root) == (host.text(VERDICT), 1)
    assert current.answer("json", quiet=False, root=host.root) == 1
    quick = capsys.readouterr()
    host.remove(SEAL)
    assert current.sealed(host.root) is None
    assert current.answer("json", quiet=False, root=host.root) == 1
    assert capsys.readouterr() == quick


CHANGES: dict[str, Callable[[Host], None]] = {
    "class edited": edited(CLASS, "sha256:1", "sha256:2"),
    "class gone": lambda host: host.remove(CLASS),
    "verdict edited": edited(VERDICT, '"exit_code": 1', '"exit_code": 0'),
    "verdict cut": lambda host: host.write(VERDICT, (host.data(VERDICT) or b"")[:50]),
    "verdict gone": lambda host: host.remove(VERDICT),
    "another boot": lambda host: host.write("/proc/sys/kernel/random/boot_id", b"2\n"),
    "another start": lambda host: host.write("/proc/1/stat", STAT.replace("21", "22").encode()),
    "no boot": lambda host: host.remove("/proc/1/stat"),
    "too old": lambda host: host.write("/proc/uptime", f"{101 + LIMIT} 1\n".encode()),
    "of the future": lambda host: host.write("/proc/uptime", b"99 1\n"),
    "no uptime": lambda host: host.write("/proc/uptime", b""),
    "seal empty": lambda host: host.write(SEAL, b""),
    "seal cut": lambda host: host.write(SEAL, (host.data(SEAL) or b"")[:-3]),
    "seal of another code": edited(SEAL, " 1 ", " 0 "),
    "seal of another time": edited(SEAL, " 100.25 ", " 100.5 "),
    "seal of another class": lambda host: host.write(
        SEAL, " ".join([*(host.text(SEAL) or "").split()[:3], "0" * 8, "0" * 8]).encode()
    ),
    "seal of no numbers": lambda host: host.write(SEAL, b"a b c d e\n"),
    "seal of no text": lambda host: host.write(SEAL, b"\xff\xfe a b c d"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_seal_does_not_hold_after(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = checked(tmp_path)
    assert current.sealed(host.root) is not None
    CHANGES[name](host)
    assert current.sealed(host.root) is None
    status = current.answer("json", quiet=False, root=host.root)
    reported = capsys.readouterr()
    host.remove(SEAL)
    assert current.answer("json", quiet=False, root=host.root) == status
    assert capsys.readouterr() == reported


def test_verdict_of_a_class_that_was_not_read_gets_no_seal(tmp_path: Path) -> None:
    host = checked(tmp_path, boot_identity=None)
    assert not host.exists(SEAL)
    host = checked(tmp_path)
    assert host.exists(SEAL)
    gate.withdraw(host)
    assert not host.exists(SEAL)
    host.class_text = None
    unread: dict[str, Any] = {
        "uptime": None,
        "exit_code": 3,
        "status": "x",
        "class": None,
        "findings": [],
    }
    gate.save(host, unread, "{}")
    assert not host.exists(SEAL)


def test_a_verdict_is_written_with_a_line_for_each_finding() -> None:
    verdict = {
        "schema": "x",
        "uptime": 3.5,
        "none": None,
        "empty": [],
        "counts": {"match": 2},
        "findings": [{"id": "a", "got": "é"}, {"id": "b"}],
    }
    text = by_lines(verdict)
    assert json.loads(text) == verdict
    assert text.splitlines()[1:3] == [' "schema": "x",', ' "uptime": 3.5,']
    assert sum(1 for line in text.splitlines() if line.startswith('  {"id"')) == 2


def test_in_order_where_that_is_asked_for() -> None:
    assert (
        by_lines({"b": {"d": 1, "c": 2}, "a": [{"f": 1, "e": 2}]}, ordered=True)
        == '{\n "a": [\n  {"e": 2, "f": 1}\n ],\n "b": {"c": 2, "d": 1}\n}'
    )


@pytest.mark.parametrize(
    "pattern", ["*", "a*", "*b", "a*b", "ab*ab", "a?*", "[ab]*", "a**", "*.conf", ".*"]
)
def test_a_pattern_matches_what_the_shells_would(pattern: str) -> None:
    names = ["", "a", "b", "ab", "aab", "abab", "aba", "x.conf", ".conf", "[ab]", ".", "a*b"]
    assert matching(names, pattern) == [name for name in names if fnmatchcase(name, pattern)]
