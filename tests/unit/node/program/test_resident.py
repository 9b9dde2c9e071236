"""The program on a node: where it runs from, and when it answers a controller that asks it first."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from goldnode.core import program_file as nodefile
from goldnode.node import __main__ as start
from goldnode.node.ground.host import Host
from goldnode.node.program import resident
from goldnode.node.state.domains.program import CLASS, OTHER, OTHER_CLASS
from goldnode.node.state.model import Plan
from goldnode.node.state.names import digest

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="for another user than root the program always runs from its archive"
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program file, with a place of the test's own for its compiled copy, and a path to import from that can be looked at."""
    (tmp_path / "run/goldnode").mkdir(parents=True)
    monkeypatch.setattr(start, "PLACE", str(tmp_path / "run/goldnode/program"))
    monkeypatch.setattr(sys, "path", ["the archive", *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    path = tmp_path / "goldnode-node"
    path.write_bytes(nodefile.build())
    return path


def copy(program: Path) -> Path:
    """Where the compiled copy of the program belongs."""
    return Path(start.named(hashlib.sha256(program.read_bytes()).hexdigest(), start.PLACE))


def imported_from() -> str:
    """The file that modules come from; its open file is closed, as at the end of a start."""
    found = os.path.realpath(sys.path[-1])
    os.close(int(sys.path[-1].rpartition("/")[2]))
    return found


@as_root
def test_the_program_is_compiled_once_and_runs_from_there(program: Path) -> None:
    modules = {f"{name}c" for name in nodefile.sources() if name.endswith(".py")}
    engine = start.settle(str(program))
    assert engine == digest(program.read_bytes())
    here = copy(program)
    assert imported_from() == str(here)
    with zipfile.ZipFile(here) as archive:
        assert set(archive.namelist()) == modules
    before = here.stat()
    start.settle(str(program))
    assert imported_from() == str(here)
    assert os.path.samestat(here.stat(), before)
    assert here.stat().st_mtime_ns == before.st_mtime_ns
    left = {entry.name for entry in Path(start.PLACE).iterdir()} - {
        start.STAMP
    }  # where this took two seconds
    assert left == {here.name, start.LOCK}, "nothing half made is left"


def later(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the program had been put there a while ago."""
    now = program.stat().st_ctime_ns + 10_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)


@as_root
def test_a_file_that_was_hashed_is_known_until_it_changes(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(program, monkeypatch)
    engine = start.settle(str(program))
    found = start.known(str(program))
    assert found is not None
    assert "sha256:" + found == engine
    monkeypatch.setattr(sys, "path", ["the archive", *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert start.settle(str(program)) == engine
    assert imported_from() == str(copy(program))
    # Changed in its place, of the same size and with its old times.
    times = program.stat()
    data = program.read_bytes()
    program.write_bytes(data[:-1] + b"?")
    os.utime(program, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert start.known(str(program)) is None
    # Another file in its place.
    program.rename(program.parent / "away")
    program.write_bytes(data)
    assert start.known(str(program)) is None
    assert start.settle(str(program)) == engine


@as_root
@pytest.mark.parametrize(
    "spoilt",
    [
        "",
        "x",
        "1 2 3 4 " + "0" * 64,
        "\xff" * 90,
        "{mark} ../../../../tmp/" + "0" * 45,
        "{mark} " + "f" * 64,
    ],
)
def test_invalid_stamp_is_ignored(
    program: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    later(program, monkeypatch)
    engine = start.settle(str(program))
    (Path(start.PLACE) / start.STAMP).write_text(
        spoilt.replace("{mark}", start.marked(program.stat()))
    )
    assert start.settle(str(program)) == engine
    assert imported_from() == str(copy(program))


@as_root
def test_a_stamp_in_a_directory_of_others_is_not_read(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(program, monkeypatch)
    start.settle(str(program))
    Path(start.PLACE).chmod(0o777)
    assert start.known(str(program)) is None


@as_root
def test_a_file_of_this_very_moment_is_not_stamped(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: program.stat().st_ctime_ns)
    start.settle(str(program))
    assert start.known(str(program)) is None


@as_root
def test_old_program_copies_are_removed_and_young_ones_stay(program: Path) -> None:
    old, young = Path(start.PLACE) / "old", Path(start.PLACE) / "young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * start.DAY,) * 2)
    start.settle(str(program))
    assert (old.exists(), young.exists(), copy(program).exists()) == (False, True, True)


@as_root
@pytest.mark.parametrize("which", ["run/goldnode", "run/goldnode/program"])
def test_a_directory_that_others_can_write_to_is_not_used(program: Path, which: str) -> None:
    place = program.parent / which
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    assert start.settle(str(program)) == digest(program.read_bytes())
    assert sys.path[0] == "the archive"
    assert not copy(program).exists()


@as_root
def test_a_link_in_its_place_is_not_followed(program: Path) -> None:
    there = program.parent / "elsewhere"
    Path(start.PLACE).mkdir()
    copy(program).symlink_to(there)
    start.settle(str(program))
    assert imported_from() == str(copy(program))
    assert not there.exists()


@as_root
def test_a_full_disk_leaves_it_running_from_the_archive(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    assert start.settle(str(program)) == digest(program.read_bytes())
    assert sys.path[0] == "the archive"
    assert [entry.name for entry in Path(start.PLACE).iterdir()] == [start.LOCK]


def test_another_user_runs_it_from_the_archive(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    start.settle(str(program))
    assert sys.path[0] == "the archive"
    assert not Path(start.PLACE).exists()


def ask(host: Host, engine: str, declared: str) -> int:
    """What a controller asks, of a program whose digest is ``sha256:e``."""
    words = ["--engine-digest", engine, "--class-digest", declared, "--lock-timeout", "5"]
    return resident.answer(words, "sha256:e", host)


def test_program_answers_with_its_plan_when_program_and_class_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(str(tmp_path))
    host.write(CLASS, b'{"class": "x"}')
    asked: list[Any] = []

    def plan(_: Host, *what: Any, **more: Any) -> Plan:
        asked.append((*what, more))
        return Plan((), class_digest="sha256:d")

    monkeypatch.setattr(resident, "plan", plan)
    assert ask(host, "sha256:e", digest(b'{"class": "x"}')) == 0
    assert asked == [({"class": "x"}, {"program": {"sha256": "sha256:e"}}, {"lock_timeout": 5.0})]
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["class_digest"] == "sha256:d"


@pytest.mark.parametrize(
    ("engine", "declared", "there", "status"),
    [
        ("sha256:other", digest(b"{}"), True, OTHER),
        ("sha256:e", digest(b"{ }"), True, OTHER_CLASS),
        ("sha256:e", digest(b"{}"), False, OTHER_CLASS),
    ],
    ids=["another program", "another class document", "no class document"],
)
def test_program_prints_nothing_when_program_or_class_differs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    engine: str,
    declared: str,
    there: bool,
    status: int,
) -> None:
    host = Host(str(tmp_path))
    if there:
        host.write(CLASS, b"{}")
    assert ask(host, engine, declared) == status
    assert capsys.readouterr().out == ""
