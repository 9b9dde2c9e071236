"""Programs that run on a node: output, exit status, time limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from goldnode.node.device import child, stream
from goldnode.node.ground import process
from goldnode.node.ground.host import Host


def test_a_program_s_output_status_and_input_come_back(tmp_path: Path) -> None:
    host = Host("/")
    done = host.run("sh", "-c", "cat; printf 'a\\r\\nb' >&2; exit 3", stdin="x" * 200_000)
    assert (done.rc, len(done.out), done.err) == (3, 200_000, "a\nb")
    assert host.run("sh", "-c", "read line || echo none").out == "none\n"
    assert host.run("sh", "-c", "kill -9 $$").rc == -9
    assert host.run("goldnode-no-such-program").rc == 127
    (tmp_path / "text").write_text("no program")
    assert host.run(str(tmp_path / "text")).rc == 126
    assert host.run("sh", "-c", "echo $LC_ALL").out == "C\n"


def test_late_program_is_killed_and_its_output_is_returned() -> None:
    began = time.monotonic()
    done = Host("/").run("sh", "-c", "echo early; exec sleep 60", timeout=0.5)
    assert time.monotonic() - began < 30
    assert (done.rc, done.out, done.err) == (124, "early\n", "sh: no answer within 0.5 s")


def test_one_that_closes_its_output_and_stays_is_late_too() -> None:
    assert Host("/").run("sh", "-c", "exec >&- 2>&-; exec sleep 60", timeout=0.3).rc == 124


def test_a_session_is_killed_as_one() -> None:
    started = process.Process(["sh", "-c", "sleep 60 & echo $!; wait"], os.environ, session=True)
    assert not started.listen(1.0)
    child = int(started.text(started.out))
    assert started.kill()
    started.close()
    assert started.status == -signal.SIGKILL
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.05)
    raise AssertionError("what it had started is still there")


def test_a_program_of_which_no_one_learns_the_end_has_failed() -> None:
    host = Host("/")
    host.program = "/bin/false"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        done = host.run("sh", "-c", "echo x; exit 3")
        asked = child.ask(host, {"do": "read", "vendor": "nvidia"})
        streamed = stream.start(host, settings=False).finish()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (done.rc, done.out) == (process.LOST, "x\n")
    for reported in (done.err, asked["error"], streamed["error"]["text"]):
        assert "SIGCHLD is ignored" in reported


def test_sigpipe_ends_a_started_program() -> None:
    assert Host("/").run("sh", "-c", "kill -PIPE $$").rc == -signal.SIGPIPE


def test_late_program_that_closed_its_output_returns_the_earlier_output() -> None:
    done = Host("/").run("sh", "-c", "echo early; exec >&- 2>&-; exec sleep 60", timeout=0.5)
    assert (done.rc, done.out) == (124, "early\n")


def test_a_child_of_a_killed_program_that_holds_its_pipes_delays_nothing() -> None:
    began = time.monotonic()
    done = Host("/").run("sh", "-c", "echo $$; sleep 60 & echo $!; wait", timeout=0.5)
    assert time.monotonic() - began < process.GRACE
    os.kill(int(done.out.split()[1]), signal.SIGKILL)
    assert done.rc == 124


def test_a_program_that_reads_no_input_and_ends_is_no_error() -> None:
    assert Host("/").run("true", stdin="x" * 1_000_000).rc == 0


def test_a_program_inherits_no_file_of_ours_nor_of_our_caller() -> None:
    handle = os.open("/", os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        listed = Host("/").run("sh", "-c", "ls -l /proc/$$/fd", stdin="x").out
    finally:
        os.close(handle)
    assert sorted(line.split()[8] for line in listed.splitlines()[1:]) == ["0", "1", "2"]


def test_a_process_that_cannot_be_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep takes no signal: here the signal is not sent."""
    monkeypatch.setattr(process, "GRACE", 0.2)
    started = process.Process(["sleep", "600"], os.environ, session=True)
    with monkeypatch.context() as blocked:
        blocked.setattr(os, "killpg", lambda *_: None)
        assert not started.listen(0.1)
        assert not started.kill()
        assert started.status is None
        started.close()
    assert started.kill()


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_streams_mix_nothing_up(closed: tuple[int, ...]) -> None:
    code = (
        f"import os, sys; sys.path[:0] = {sys.path!r}\n"
        f"out = os.dup(1)\nfor number in {closed!r}: os.close(number)\n"
        "from goldnode.node.ground.host import Host\n"
        "done = Host('/').run('sh', '-c', 'cat; echo out; echo err >&2; exit 3', stdin='in ')\n"
        "os.write(out, repr((done.rc, done.out, done.err)).encode())"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode() == repr((3, "in out\n", "err\n"))
