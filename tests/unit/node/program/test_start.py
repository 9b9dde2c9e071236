"""How the program starts: its compiled copy, made once, verified at every start and never taken from a process that runs; and its crashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from tests.unit.node.captures import spoiled
from tests.unit.node.verdict.test_check_from import document, record

from goldnode.core import program_file as nodefile
from goldnode.disks import bytecode
from goldnode.node import __main__ as starting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root's start makes a copy")

START = "__main__.py"
STOP = "os.kill(os.getpid(), 19)  # SIGSTOP: the test goes on here\n"
BEFORE_IMPORTS = "    from goldnode.node.program.start import finish, main\n"
OLD = time.time() - 2 * starting.DAY
SHIPPED = "root/usr/lib/goldnode/disk/program"


@dataclass(frozen=True)
class Program:
    """A self-contained file whose copies are made below a directory of the test."""

    file: Path
    place: Path

    @property
    def root(self) -> Path:
        """A root filesystem whose /run is the one of the copies."""
        return self.place.parents[2]

    def start(self, *words: str, stdin: str = "", **more: object) -> subprocess.Popen[str]:
        """Start a command, which may be interrupted also where whoever started the tests ignores that."""
        argv = [sys.executable, "-I", "-S", str(self.file), *words]
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **more,
        }
        received = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        process = subprocess.Popen(argv, text=True, preexec_fn=received, **pipes)  # type: ignore[call-overload]
        if stdin:
            process.stdin.write(stdin)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
        return process  # type: ignore[no-any-return]

    def run(self, *words: str, stdin: str = "", **more: object) -> tuple[int, str, str]:
        """Exit status and output of a command."""
        process = self.start(*words, stdin=stdin, **more)
        out, err = process.communicate(timeout=120)
        return process.returncode, out or "", err or ""

    def copies(self) -> dict[str, bytes]:
        """Every file below the place of the copies."""
        return {
            str(path.relative_to(self.place)): path.read_bytes()
            for path in self.place.rglob("*")
            if path.is_file()
        }

    def sound(self) -> bool:
        """Whether there is a copy of this program that a start would use."""
        digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        with mock.patch.object(starting, "PLACE", str(self.place)):
            found = starting.compiled(digest)
        if found is not None:
            os.close(int(found.rpartition("/")[2]))
        return found is not None


def program(
    folder: Path,
    edit: Callable[[dict[str, bytes]], None] = lambda _: None,
    name: str = "goldnode-node",
) -> Program:
    """Build the program with its copies below `folder`, and its sources changed by `edit`."""
    place = folder / "root/run/goldnode/program"
    place.parent.mkdir(parents=True, exist_ok=True)
    sources = dict(nodefile.sources())
    sources[START] = sources[START].replace(b'"/run/goldnode/program"', f'"{place}"'.encode())
    shipped = str(folder / SHIPPED)
    sources[START] = sources[START].replace(starting.SHIPPED.encode(), shipped.encode())
    assert all(path.encode() in sources[START] for path in (str(place), shipped))
    edit(sources)
    with mock.patch.object(nodefile, "sources", return_value=sources):
        data = nodefile.build.__wrapped__()
    file = folder / name
    file.write_bytes(data)
    os.utime(file, (OLD, OLD))
    return Program(file, place)


def inserted(before: str, text: str, file: str = START) -> Callable[[dict[str, bytes]], None]:
    """An edit that puts `text` before the line `before`, as deep as that."""

    def edit(sources: dict[str, bytes]) -> None:
        indent = before[: len(before) - len(before.lstrip())]
        assert before.encode() in sources[file], (
            "the line that the test stops at is not there any more"
        )
        sources[file] = sources[file].replace(before.encode(), (indent + text + before).encode(), 1)

    return edit


def stopped(process: subprocess.Popen[str]) -> None:
    """Wait until a process has reached the point where it stops."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended with {status}: {process.communicate()}"


def gone_on(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Have a process that stopped go on, and wait for its end."""
    os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of a check whose verdict is `drain`: neither the best one nor that of a crash."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "class.json").write_text(json.dumps(document()))
    (folder / "capture.json").write_text(
        json.dumps(spoiled(record(), "gpus.3.pcie.width.current", 8))
    )
    return ["check", "--from", str(folder / "capture.json"), "--class", str(folder / "class.json")]


ASKED = {
    "operation": "plan",
    "state": "absent",
    "part": None,
    "document": None,
    "lock_timeout": 5,
    "to": "",
    "sources": None,
}


def question(found: Program) -> str:
    """What a controller asks of a node that has no goldnode: the answer removes everything of this program from the node."""
    return json.dumps({**ASKED, "root": str(found.root)})


# -- first starts at once


def test_starts_at_once_all_succeed_and_leave_a_program_that_starts(
    tmp_path: Path, desk: list[str]
) -> None:
    found = program(tmp_path)
    for number in range(3):
        shutil.rmtree(found.place, ignore_errors=True)
        kinds = [["answer"], desk, desk, ["answer"], ["--version"], desk, ["--version"], desk]
        random.Random(number).shuffle(kinds)  # noqa: S311 - no secret
        started = []
        for words in kinds:
            started.append(
                (words, found.start(*words, stdin=question(found) if words == ["answer"] else ""))
            )
            time.sleep(0.02)
        for words, process in started:
            _, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (2 if words == desk else 0, ""), words
        assert found.run(*desk)[0] == 2, "the next start"


def test_of_starts_at_once_one_makes_the_copy_and_the_others_wait_for_nothing(
    tmp_path: Path, desk: list[str]
) -> None:
    found = program(tmp_path, inserted("        for entry in os.scandir(PLACE):", STOP))
    first = found.start("--version")
    stopped(first)
    others = [found.start(*desk) for _ in range(3)]
    assert [process.communicate(timeout=120) and process.returncode for process in others] == [
        2,
        2,
        2,
    ]
    assert list(found.copies()) == [starting.LOCK], "only the one that holds the lock makes a copy"
    assert gone_on(first)[0] == 0
    assert found.sound()


def forgotten(found: Program) -> None:
    status, out, err = found.run("answer", stdin=question(found))
    assert (status, err) == (0, "")
    assert json.loads(out)["plan"]["actions"] == []


def outdated(found: Program) -> None:
    for path in found.place.rglob("*"):
        os.utime(path, (OLD, OLD))
    for path in found.place.iterdir():
        os.utime(path, (OLD, OLD))
    assert (
        program(
            found.file.parent, inserted(BEFORE_IMPORTS, "sys.dont_write_bytecode = False\n"), "next"
        ).run("--version")[0]
        == 0
    )


def replaced(found: Program) -> None:
    for path in found.place.iterdir():
        (shutil.rmtree if path.is_dir() else os.unlink)(path)
    assert program(found.file.parent).run("--version")[0] == 0


@pytest.mark.parametrize("take", [forgotten, outdated, replaced], ids=lambda take: take.__name__)
def test_a_process_that_runs_keeps_its_copy(
    tmp_path: Path, desk: list[str], take: Callable[[Program], None]
) -> None:
    bare = program(tmp_path)
    assert bare.run("--version")[0] == 0
    content = bare.file.read_bytes()
    # The same program, so also the same copy; this process stops once it has settled on that.
    argv = [sys.executable, "-I", "-S", "-c", STOPPING, str(bare.file), *desk]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stopped(running)
    take(bare)
    status, _, err = gone_on(running)
    assert (status, err) == (2, "")
    bare.file.write_bytes(content)
    assert bare.run(*desk)[0] == 2, "the next start"
    assert bare.sound() or take is forgotten


# Runs the file as Python does, and stops at the first import of the program's own modules.
STOPPING = """
import os, runpy, sys
sys.argv[:1] = []
def stop(event, arguments):
    if event == "import" and arguments[0] == "goldnode.node.program.start" and not done:
        done.append(1)
        os.kill(os.getpid(), 19)
done = []
sys.addaudithook(stop)
sys.path.insert(0, sys.argv[0])
runpy._run_module_as_main("__main__", alter_argv=False)
"""


# -- damage


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def emptied(data: bytes) -> bytes:
    return b""


def lengthened(data: bytes) -> bytes:
    return data + b"\0"


DAMAGE: Mapping[str, Callable[[bytes], bytes | None]] = {
    "truncated": truncated,
    "flipped": flipped,
    "emptied": emptied,
    "lengthened": lengthened,
    "removed": lambda _: None,
    "of another file": lambda _: b"#!/bin/sh\n",
}


Answer = tuple[int, str, str]  # exit status, standard output, standard error


@pytest.fixture(scope="module")
def aged(
    tmp_path_factory: pytest.TempPathFactory, desk: list[str]
) -> tuple[Program, list[tuple[list[str], Answer]]]:
    """A program that changed long enough ago to get a stamp, and its commands with their answers from a sound copy."""
    found = program(tmp_path_factory.mktemp("aged"))
    time.sleep(2.1)
    commands = [["--version"], desk, ["check", "--cached", "--root", str(found.root)]]
    answers = [(words, reported(found.run(*words))) for words in commands]
    assert [status for _, (status, _, _) in answers] == [0, 2, 3]
    return found, answers


@pytest.mark.parametrize("what", ["copy", "stamp"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_copy_changes_no_answer_and_is_made_again(
    aged: tuple[Program, list[tuple[list[str], Answer]]], what: str, how: str
) -> None:
    found, answers = aged
    assert len(found.copies()) == 3, "the copy, the stamp, the lock"
    for words, expected in answers:
        for name, data in found.copies().items():
            if name != starting.LOCK and (name == starting.STAMP) == (what == "stamp"):
                spoilt = DAMAGE[how](data)
                (found.place / name).unlink() if spoilt is None else (
                    found.place / name
                ).write_bytes(spoilt)
        assert reported(found.run(*words)) == expected
        assert found.sound(), "the start makes the copy again"


def reported(answer: Answer) -> Answer:
    """An answer without the time at which it was given."""
    status, out, err = answer
    return status, re.sub(r" at [0-9T:Z-]{20} ", " at TIME ", out), err


def test_no_flipped_bit_of_a_copy_is_imported(tmp_path: Path) -> None:
    found = program(tmp_path)
    assert found.run("--version")[0] == 0
    (name,) = found.copies().keys() - {starting.LOCK, starting.STAMP}
    data = found.copies()[name]
    chosen = random.Random(15)  # noqa: S311 - no secret
    for position in [
        *range(80),
        *(chosen.randrange(len(data)) for _ in range(100)),
        *range(len(data) - 30, len(data)),
    ]:
        with (found.place / name).open("r+b") as opened:
            opened.seek(position)
            opened.write(bytes([data[position] ^ (1 << chosen.randrange(8))]))
            opened.flush()
            assert not found.sound(), position
            opened.seek(position)
            opened.write(data[position : position + 1])
    assert found.sound()


def test_the_copy_of_another_program_or_python_is_not_taken(tmp_path: Path) -> None:
    found = program(tmp_path)
    assert found.run("--version")[0] == 0
    (name,) = found.copies().keys() - {starting.LOCK, starting.STAMP}
    other = program(
        tmp_path, inserted(BEFORE_IMPORTS, "sys.dont_write_bytecode = False\n"), "other"
    )
    digest = hashlib.sha256(other.file.read_bytes()).hexdigest()
    with mock.patch.object(starting, "PLACE", str(found.place)):
        shutil.copy(found.place / name, starting.named(digest, starting.PLACE))
        with mock.patch.object(sys, "version", "another"):
            assert not found.sound()
    assert not other.sound()
    assert other.run("--version")[1] == f"goldnode-node sha256:{digest}\n"
    assert other.sound()


# -- places where no copy can be made or trusted


def a_file(place: Path) -> None:
    place.write_text("")


def below_a_file(place: Path) -> None:
    place.parent.rmdir()
    place.parent.write_text("")


def of_a_user(place: Path) -> None:
    place.mkdir()
    os.chown(place, 1000, 1000)


def in_a_directory_of_a_user(place: Path) -> None:
    os.chown(place.parent, 1000, 1000)


def writable_by_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def a_link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    place.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "spoil",
    [a_file, below_a_file, of_a_user, in_a_directory_of_a_user, writable_by_all, a_link],
    ids=lambda spoil: spoil.__name__,
)
def test_without_a_trusted_place_it_runs_from_its_archive(
    tmp_path: Path, desk: list[str], spoil: Callable[[Path], None]
) -> None:
    found = program(tmp_path)
    spoil(found.place)
    before = (
        sorted(path for path in found.place.parent.rglob("*"))
        if found.place.parent.is_dir()
        else []
    )
    for words, expected in (["--version"], 0), (desk, 2):
        status, _, err = found.run(*words)
        assert (status, err) == (expected, "")
    assert before == (
        sorted(path for path in found.place.parent.rglob("*"))
        if found.place.parent.is_dir()
        else []
    )


@pytest.mark.parametrize("options", ["ro", "size=64k", "nr_inodes=2"])
def test_without_room_it_runs_from_its_archive(
    tmp_path: Path, desk: list[str], options: str
) -> None:
    found = program(tmp_path)
    script = f'mount -t tmpfs -o {options} tmpfs {found.place.parent} && exec "$@"'
    wrapped = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*wrapped, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    for words, expected in (["--version"], 0), (desk, 2):
        argv = [*wrapped, sys.executable, "-I", "-S", str(found.file), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (expected, "")


# -- crashes


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program with its copy, for tests that damage neither."""
    found = program(tmp_path_factory.mktemp("sound"))
    assert found.run("--version")[0] == 0
    return found


def raising(
    text: str, file: str = "goldnode/node/program/main.py"
) -> Callable[[dict[str, bytes]], None]:
    """An edit that has a module raise at its import."""

    def edit(sources: dict[str, bytes]) -> None:
        line = "from __future__ import annotations\n"
        sources[file] = sources[file].replace(line.encode(), f"{line}{text}\n".encode(), 1)
        assert text.encode() in sources[file]

    return edit


def without(file: str) -> Callable[[dict[str, bytes]], None]:
    """An edit that leaves a module out."""

    def edit(sources: dict[str, bytes]) -> None:
        del sources[file]

    return edit


CRASHES: Mapping[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "no start": (without("goldnode/node/program/start.py"), "site.yml"),
    "no package": (without("goldnode/node/__init__.py"), "site.yml"),
    "no program": (
        without("goldnode/node/program/main.py"),
        "No module named 'goldnode.node.program.main'",
    ),
    "no events": (without("goldnode/node/verdict/events.py"), "cannot import name 'events'"),
    "no report of crashes": (
        lambda sources: (
            without("goldnode/node/ground/fault.py")(sources),
            without("goldnode/node/program/start.py")(sources),
        )[0],
        "site.yml",
    ),
    "syntax": (raising("def ("), "SyntaxError"),
    "module of Python": (raising("import no_such_module"), "No module named 'no_such_module'"),
    "fault": (raising("{}['x']"), "This is a fault of goldnode-node itself"),
    "deep": (raising("def deep(): deep()\ndeep()"), "RecursionError"),
    "memory": (raising("raise MemoryError"), "not enough memory"),
    "interrupt": (raising("raise KeyboardInterrupt"), "interrupted"),
    "no status": (raising("raise SystemExit('a text')"), ""),
    "full": (
        raising("raise OSError(28, 'No space left on device', '/run/x')"),
        "/run/x: No space left on device. Make room there",
    ),
    "lines": (raising("raise ValueError('one\\ntwo\\x1b[31m')"), "one two?[31m"),
}


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.parametrize("from_archive", [False, True])
def test_a_crash_is_could_not_check(
    tmp_path: Path, desk: list[str], name: str, from_archive: bool
) -> None:
    edit, expected = CRASHES[name]
    found = program(tmp_path, edit)
    if from_archive:
        of_a_user(found.place)
    status, out, err = found.run(*desk)
    assert status == 3
    assert expected in err
    assert "Traceback" not in err
    if name != "no status":
        assert (out, err.startswith("goldnode-node: "), err.count("\n")) == ("", True, 1)


def test_a_crash_shows_its_traceback_where_that_is_asked_for(
    tmp_path: Path, desk: list[str]
) -> None:
    found = program(tmp_path, raising("{}['x']"))
    status, _, err = found.run(*desk, env={**os.environ, "GOLDNODE_DEBUG": "1"})
    assert status == 3
    assert err.startswith("Traceback")
    assert "goldnode-node/goldnode/node/program/main.py" in err


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--resident"],
        ["answer"],
        ["device"],
        ["policy", "assert", "--class", "/dev/null"],
        ["check", "--class", "/proc/self/mem"],
        ["check", "--root", "/dev/null"],
        ["capture", "--from", "/proc/self/mem"],
        ["nonsense"],
        ["--nonsense"],
        [],
    ],
    ids=" ".join,
)
def test_no_words_end_with_a_verdict_that_is_invalid(sound: Program, words: list[str]) -> None:
    status, _, err = sound.run(*words, stdin="{")
    assert status == 3, err
    assert "Traceback" not in err


def test_a_damaged_archive_is_could_not_check(tmp_path: Path, desk: list[str]) -> None:
    found = program(tmp_path)
    data = found.file.read_bytes()
    # In the middle of a module, where nothing but a checksum tells: everything before and after is as it was.
    for position in (len(data) // 3, len(data) // 2, len(data) - 1):
        found.file.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        status, out, err = found.run(*desk)
        assert (status, out) == (3, ""), err
        assert "is damaged" in err
        assert err.count("\n") == 1


def test_an_archive_that_goes_away_is_could_not_check(tmp_path: Path) -> None:
    found = program(tmp_path, inserted("    os.umask(0o022)\n", STOP))
    process = found.start("--version")
    stopped(process)
    found.file.unlink()
    status, _, err = gone_on(process)
    assert status == 3
    assert "No such file" in err
    assert err.count("\n") == 1


def test_an_interrupted_check_is_could_not_check(tmp_path: Path, desk: list[str]) -> None:
    found = program(tmp_path, inserted(BEFORE_IMPORTS, STOP))
    process = found.start(*desk)
    stopped(process)
    process.send_signal(signal.SIGINT)
    status, _, err = gone_on(process)
    assert (status, err.count("\n")) == (3, 1), err


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["check", "--help"], ["answer"], ["check"]], ids=" ".join
)
@pytest.mark.parametrize("broken", ["full", "closed"])
def test_output_that_cannot_be_written_is_could_not_check(
    tmp_path: Path, sound: Program, desk: list[str], words: list[str], broken: str
) -> None:
    # `answer` would remove everything of the program from its root, the copy included.
    found = program(tmp_path) if words == ["answer"] else sound
    asked = question(found) if words == ["answer"] else ""
    words = desk if words == ["check"] else words
    if broken == "full":
        with Path("/dev/full").open("w") as out:
            status, _, err = found.run(*words, stdin=asked, stdout=out)
    else:
        own, foreign = os.pipe()
        os.close(own)
        try:
            status, _, err = found.run(*words, stdin=asked, stdout=foreign)
        finally:
            os.close(foreign)
    assert status == 3
    assert "standard output" in err
    assert err.count("\n") == 1


def test_a_run_that_cannot_be_written_to_still_prints_and_acts(tmp_path: Path) -> None:
    """A verdict that cannot be published must not leave an earlier one in its place."""
    from goldnode.node.ground.host import Host
    from goldnode.node.program import main as commands
    from goldnode.node.verdict import check

    host = Host(str(tmp_path))
    host.write(check.VERDICT, b"{}")

    def write(self: Host, name: str, *_: object) -> None:
        raise OSError(28, "No space left on device")

    with mock.patch.object(Host, "write", write), pytest.raises(OSError, match=r"verdict\.json"):
        commands.main(["check", "--root", str(tmp_path), "--class", "/nowhere"])
    assert not host.exists(check.VERDICT)


# -- the copy of a disk image


def ship(found: Program, folder: Path) -> Path:
    """Give `found` the copy that a disk image has, with this Python, and return its path."""
    place = folder / SHIPPED
    bytecode.run_python([sys.executable], bytecode.COPY, [str(found.file), str(place)])
    (copy,) = place.iterdir()
    return copy


def test_shipped_copy_is_used_and_none_is_made(tmp_path: Path, desk: list[str]) -> None:
    found = program(tmp_path, inserted("    import shutil\n", "os._exit(77)\n"))
    copy = ship(found, tmp_path)
    assert found.run(*desk)[0] == 2, "77 would be a start that makes a copy"
    assert not found.copies()
    again = ship(found, tmp_path / "again").read_bytes()
    assert again == copy.read_bytes(), "the same bytes in another directory, at another time"


@pytest.mark.parametrize("fault", ["cut", "writable", "another program"])
def test_unsound_shipped_copy_is_not_used(tmp_path: Path, desk: list[str], fault: str) -> None:
    found = program(tmp_path)
    copy = ship(found, tmp_path)
    if fault == "cut":
        os.truncate(copy, copy.stat().st_size - 1)
    elif fault == "writable":
        copy.chmod(0o666)
    else:
        copy.rename(copy.with_name("0" * 64 + copy.name[64:]))
    assert found.run(*desk)[0] == 2
    assert found.sound(), "a copy is made as on any other node"


def test_start_with_a_shipped_copy_records_the_digest_of_the_file(tmp_path: Path) -> None:
    found = program(tmp_path)
    ship(found, tmp_path)
    time.sleep(2.1)  # a younger file gets no stamp
    assert found.run("--version")[0] == 0
    assert list(found.copies()) == [starting.STAMP]
