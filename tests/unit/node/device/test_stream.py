"""The process that asks the GPU library for a capture: it may hang, die or talk nonsense, and what it said before that is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldnode.core import program_file as nodefile
from goldnode.node.device import SCHEMA, child, stream
from goldnode.node.ground import process
from goldnode.node.ground.host import Host

HEAD = json.dumps(
    {
        "schema": SCHEMA,
        "vendor": "nvidia",
        "driver": "580.1",
        "nvml": "12.580.1",
        "cuda": "13.0",
        "count": 2,
    }
)
DONE = json.dumps({"done": True, "cpu_ms": 1, "rss_kib": 2, "init_ms": 3})


def line(index: int, following: str | None, **reported: Any) -> str:
    return json.dumps({"i": index, "next": following, "set": reported})


WHOLE = [line(0, None, uuid="GPU-0", lost=False), line(1, None, uuid="GPU-1", lost=False)]


def host(tmp_path: Path, *lines: str, then: str = "") -> Host:
    """A host whose on-node program writes these lines, and does something afterwards."""
    program = tmp_path / "program"
    body = "".join(f"print({text!r}, flush=True)\n" for text in lines)
    program.write_text(
        f"#!{sys.executable}\nimport json, os, signal, subprocess, sys, time\n{body}{then}\n"
    )
    program.chmod(0o755)
    found = Host(str(tmp_path / "root"), live=True)
    found.program = str(program)
    return found


def asked(machine: Host, limit: float = 10.0, stall: float = 0.5) -> dict[str, Any]:
    return stream.start(machine).finish(limit, stall)


def test_complete_answer_has_all_gpus_and_no_error(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        HEAD,
        *WHOLE,
        DONE,
        then="assert sys.argv[1:] == ['device', 'capture', 'settings']",
    )
    found = asked(machine)
    assert found["error"] is None
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-0", "GPU-1"]
    assert (found["count"], found["driver"], found["cost"]["init_ms"]) == (2, "580.1", 3)
    assert machine.commands == [(machine.program, "device", "capture", "settings")]


def test_a_gpu_that_hangs_keeps_what_came_before(tmp_path: Path) -> None:
    machine = host(tmp_path, HEAD, WHOLE[0], line(1, "ecc", uuid="GPU-1"), then="time.sleep(600)")
    began = time.monotonic()
    pending = stream.start(machine)
    found = pending.finish(10, 0.5)
    assert time.monotonic() - began < 9
    assert found["gpus"][0] == {"index": 0, "vendor": "nvidia", "uuid": "GPU-0", "lost": False}
    assert found["gpus"][1]["uuid"] == "GPU-1"
    assert found["gpus"][1]["error"] == found["error"]
    assert found["error"]["fault"] == "unread"
    assert "did not answer" in found["error"]["text"]
    assert "(GPU 1: ecc)" in found["error"]["text"], "which GPU hangs in what is the finding"
    assert pending.process is not None
    assert pending.process.status == -signal.SIGKILL
    assert pending.finish() is found, "it may be asked again, and asks nobody"


def test_driver_that_hangs_before_any_output_gives_an_error(tmp_path: Path) -> None:
    found = asked(
        host(tmp_path, then="signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"),
        limit=0.5,
    )
    assert (found["count"], found["gpus"]) == (None, [])
    assert "did not answer within 0.5" in found["error"]["text"]


def test_child_of_the_reader_process_is_killed_at_the_limit(tmp_path: Path) -> None:
    """A child of it that holds its output open must not hold up the check."""
    machine = host(
        tmp_path,
        HEAD,
        then=f"p = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(600)",
    )
    asked(machine, limit=1.0)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("it still runs")


def test_a_process_that_cannot_be_killed_is_left_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the kernel makes such a process, so the signal is kept from it here."""
    stored: list[int] = []
    monkeypatch.setattr(process, "GRACE", 0.2)
    monkeypatch.setattr(os, "killpg", lambda group, _: stored.append(group))
    machine = host(tmp_path, HEAD, WHOLE[0], then="time.sleep(600)")
    pending = stream.start(machine)
    found = pending.finish(10, 0.3)
    again = stream.start(machine).finish()["error"]["text"]
    assert (
        again
        == f"the GPU driver hangs: process {stored[0]}, which an earlier check left behind, still cannot be killed"
    )
    assert len(machine.commands) == 1, "each further check would leave one more in the driver"
    monkeypatch.undo()
    os.killpg(stored[0], signal.SIGKILL)
    assert pending.process is not None
    pending.process.wait(10)
    assert found["error"]["text"].startswith(
        f"the GPU driver hangs: process {stored[0]} did not answer within"
    )
    assert "cannot be killed" in found["error"]["text"]
    assert found["gpus"][0]["uuid"] == "GPU-0"
    assert "error" in found["gpus"][1]
    assert stream.start(machine).finish(10, 0.3)["gpus"], "it has ended, and is asked again"


@pytest.mark.parametrize("text", ["", "x", "1", "1 1", "999999999 5", "-1 5", "\x00", "1 2 3"])
def test_a_torn_note_of_a_process_that_was_left_behind_keeps_no_one_from_asking(
    tmp_path: Path, text: str
) -> None:
    machine = host(tmp_path, HEAD, *WHOLE, DONE)
    machine.write(stream.LEFT, text.encode())
    assert asked(machine)["error"] is None


def test_kill_9_from_outside(tmp_path: Path) -> None:
    found = asked(
        host(
            tmp_path,
            HEAD,
            WHOLE[0],
            line(1, "power", uuid="GPU-1"),
            then="os.kill(os.getpid(), signal.SIGKILL)",
        )
    )
    assert "ended by signal 9" in found["error"]["text"]
    assert "(GPU 1: power)" in found["error"]["text"]
    assert "error" not in found["gpus"][0]


@pytest.mark.parametrize(
    ("lines", "then", "output"),
    [
        ((), "", "not of schema goldnode.device/1"),
        (("{",), "", "not of schema"),
        (("[]",), "", "not of schema"),
        (('{"schema": "goldnode.device/2"}',), "", "not of schema"),
        ((), "sys.stdout.buffer.write(b'\\xff\\xfe\\n')", "not of schema"),
        ((HEAD.replace("nvidia", "amd"),), "", "not of schema"),
        ((HEAD.replace('"count": 2', '"count": -1'),), "", "no number of GPUs"),
        ((HEAD.replace('"count": 2', '"count": 1e9'),), "", "no number of GPUs"),
        ((HEAD.replace('"count": 2', '"count": "2"'),), "", "no number of GPUs"),
        ((), "sys.exit('the driver is gone')", "ended with status 1: the driver is gone"),
        ((HEAD, *WHOLE), "", "ended before it had said all"),
        ((HEAD, *WHOLE, "nonsense", DONE), "", "not of schema"),
        ((HEAD, *WHOLE, DONE), "sys.exit(3)", None),
        (
            (HEAD, line(7, None, uuid="GPU-7"), '{"i": "0"}', '{"i": 0, "set": []}', *WHOLE, DONE),
            "",
            None,
        ),
        (
            (
                '{"schema": "goldnode.device/1", "vendor": "nvidia", "error": "Driver Not Loaded", "rc": 9}',
            ),
            "",
            "Driver Not Loaded",
        ),
    ],
)
def test_broken_output_is_unread_unless_the_answer_is_complete(
    tmp_path: Path, lines: tuple[str, ...], then: str, output: str | None
) -> None:
    found = asked(host(tmp_path, *lines, then=then))
    if output is None:
        assert found["error"] is None
        assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-0", "GPU-1"]
    else:
        assert found["error"]["fault"] == "unread"
        assert output in found["error"]["text"]


def test_a_flood_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST", 1 << 16)
    found = asked(host(tmp_path, HEAD, then="while True: print('x' * 4096)"), stall=20)
    assert "more than a capture can hold" in found["error"]["text"]


def test_an_endless_line_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST", 1 << 16)
    found = asked(host(tmp_path, HEAD, then="while True: print('x' * 4096, end='')"), stall=20)
    assert "more than a capture can hold" in found["error"]["text"]


def test_a_node_without_the_program(tmp_path: Path) -> None:
    machine = Host()
    machine.program = str(tmp_path / "none")
    assert "is not on the node yet" in stream.start(machine).finish()["error"]["text"]
    (tmp_path / "none").write_text("no program")
    assert "cannot be run" in stream.start(machine).finish()["error"]["text"]


# -- one process for a capture and for policy


def test_settings_come_from_the_pending_capture_without_a_new_reader(tmp_path: Path) -> None:
    reported = {"uuid": "GPU-0", "persistence_mode": True}
    machine = host(
        tmp_path,
        HEAD,
        line(0, None, settings=reported),
        line(1, None, lost=True, error={"fault": "unread", "text": "GPU is lost", "rc": 15}),
        DONE,
    )
    stream.start(machine)
    request = {"do": "read", "vendor": "nvidia", "root": "/"}
    found = child.ask(machine, request)
    assert found == {
        "schema": SCHEMA,
        "vendor": "nvidia",
        "driver": "580.1",
        "gpus": {"0": reported, "1": {"rc": 15, "text": "GPU is lost"}},
    }
    assert len(machine.commands) == 1
    machine.pending = None
    child.ask(machine, request)
    assert len(machine.commands) == 2, "once the capture is made, a question is a new one"


def test_a_question_of_another_kind_is_not_answered_by_the_capture(tmp_path: Path) -> None:
    machine = host(tmp_path, HEAD, *WHOLE, DONE)
    pending = stream.start(machine)
    child.ask(machine, {"do": "set", "vendor": "nvidia", "root": "/", "settings": []})
    child.ask(machine, {"do": "read", "vendor": "amd", "root": "/"})
    assert len(machine.commands) == 3
    pending.finish()


@pytest.mark.parametrize(
    ("lines", "output"),
    [
        (
            (
                '{"schema": "goldnode.device/1", "vendor": "nvidia", "error": "Driver Not Loaded", "rc": 9}',
            ),
            "NVML cannot be used: Driver Not Loaded (return code 9)",
        ),
        (("what",), "not of schema"),
    ],
)
def test_settings_of_a_library_that_cannot_be_used(
    tmp_path: Path, lines: tuple[str, ...], output: str
) -> None:
    machine = host(tmp_path, *lines)
    stream.start(machine)
    found = child.ask(machine, {"do": "read", "vendor": "nvidia", "root": "/"})
    assert output in found["error"]
    assert "gpus" not in found


def test_settings_of_a_gpu_that_hung_are_a_fault(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        HEAD,
        line(0, None, settings={"uuid": "GPU-0"}),
        line(1, "ecc", uuid="GPU-1"),
        then="os._exit(1)",
    )
    stream.start(machine)
    found = child.ask(machine, {"do": "read", "vendor": "nvidia", "root": "/"})
    assert found["gpus"]["0"] == {"uuid": "GPU-0"}
    assert found["gpus"]["1"]["rc"] == 999
    assert "GPU 1: ecc" in found["gpus"]["1"]["text"]


# -- the child's own lines


def test_a_double_that_is_no_number_is_null() -> None:
    """In a process of its own: this one has NVML's binding only where it is wanted."""
    code = (
        "from types import SimpleNamespace as row\nfrom goldnode.node.device.collect import number\n"
        "print([number(row(valueType=0, value=row(dVal=float(x)))) for x in ('nan', '-inf', '1.5')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output == "[None, None, 1.5]\n"


def test_the_child_imports_little() -> None:
    """What it imports is its cost: it starts anew for each check."""
    code = (
        "import sys\nfrom goldnode.node.device import collect\nprint(' '.join(sorted(sys.modules)))"
    )
    output = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"sys = __import__('sys'); sys.path[:0] = {sys.path!r}\n{code}",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "pynvml" in output
    assert not {
        "subprocess",
        "dataclasses",
        "pathlib",
        "typing",
        "tempfile",
        "ctypes.util",
        "shutil",
    } & set(output)


def own(monkeypatch: pytest.MonkeyPatch, work: Callable[[Sequence[str]], object]) -> Host:
    """A machine on which this process runs from its copy; `work` asks the library in its place."""
    copy = SimpleNamespace(loader=SimpleNamespace(archive="/proc/123/fd/0123"))
    monkeypatch.setattr(sys, "path", ["/proc/123/fd/0123", *sys.path[1:]])
    monkeypatch.setattr(child, "__spec__", copy)
    monkeypatch.setattr(stream, "stream", work)
    return Host()


def test_a_program_that_runs_from_its_copy_asks_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another interpreter, in a session of its own, with none of our files, and never twice."""
    opened = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(opened, True)

    def work(words: Sequence[str]) -> None:
        files = sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) != 3)  # noqa: PTH208
        row = {"uuid": f"{words[-1]} {os.getsid(0) == os.getpid()} {files}"}
        os.write(1, f"{HEAD}\n{json.dumps({'i': 0, 'next': None, 'set': row})}\n".encode())
        os.write(1, f"{json.dumps({'i': 1, 'next': None, 'set': {}})}\n{DONE}\n".encode())

    machine = own(monkeypatch, work)
    found = stream.start(machine).finish()
    os.close(opened)
    assert found["error"] is None
    assert found["gpus"][0]["uuid"] == "settings True [0, 1, 2]"
    assert machine.commands == [
        (sys.executable, "-I", "-S", "/proc/123/fd/0123", "device", "capture", "settings")
    ]
    machine.pending = None
    stream.start(machine, settings=False).finish()
    assert machine.pending is None, "who did not ask for settings has none to give"
    machine.program = "/nowhere/goldnode-node"
    stream.start(machine).finish()
    assert machine.commands[-1][0] == "/nowhere/goldnode-node", (
        "a program that is named is the one that is run"
    )


def crash() -> None:
    """End by SIGSEGV, without a handler that a library of another test has installed and that needs its threads."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_fork_needs_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a bare chroot."""
    shown = os.listdir

    def hidden(path: str) -> list[str]:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return shown(path)

    opened = os.open("/dev/null", os.O_RDONLY)

    def work(_: Sequence[str]) -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened)
        os.write(1, f"{HEAD}\n{line(0, None)}\n{line(1, None)}\n{DONE}\n".encode())

    machine = own(monkeypatch, work)
    with monkeypatch.context() as patch:  # pytest's own report of a failure reads /proc
        patch.setattr(os, "listdir", hidden)
        found = stream.start(machine).finish()
    os.close(opened)
    assert found["error"] is None
    assert found["count"] == 2


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda _: time.sleep(60), "; the process that asked was killed"),
        (lambda _: crash(), f"ended by signal {signal.SIGSEGV:d}"),
        (lambda _: json.loads("{"), "ended with status 1: JSONDecodeError: Expecting"),
        (lambda _: os._exit(7), "ended with status 7"),
        (lambda _: None, "answered something that is not of schema"),
    ],
    ids=["hangs", "crashes", "raises", "exits", "says-nothing"],
)
def test_a_fork_that_fails_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Sequence[str]], object], message: str
) -> None:
    found = stream.start(own(monkeypatch, work)).finish(0.3 if "killed" in message else 30)
    assert message in found["error"]["text"]
    assert found["count"] is None


def test_a_carried_file_asks_the_library_itself(tmp_path: Path) -> None:
    """Where no program is installed, the file that runs is the one that is started again: a first look at a machine needs no installation."""
    file = tmp_path / "goldnode-node"
    file.write_bytes(nodefile.build())
    code = (
        "import json, sys; from goldnode.node.ground.host import Host; from goldnode.node.device import child, stream\n"
        "machine = Host('/', live=True); stream.start(machine, settings=False).finish(); child.ask(machine, {'do': 'read', 'vendor': 'nvidia'})\n"
        "print(json.dumps(machine.commands))"
    )
    start = f"import sys; sys.path.insert(0, {str(file)!r}); exec({code!r})"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start], capture_output=True, text=True, check=True
    )
    own = [sys.executable, "-I", "-S", str(file), "device"]
    assert json.loads(done.stdout) == [[*own, "capture"], own]
