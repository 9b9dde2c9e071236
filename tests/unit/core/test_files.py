"""Files of this machine: the directory of a build that is compared with another."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from goldnode.core import files
from goldnode.core.files import second_build

PROGRAM = """
import sys, time
from pathlib import Path
from goldnode.core.files import second_build
with second_build(Path(sys.argv[1])) as place:
    (place / "file").touch()
    print(place, flush=True)
    time.sleep(600)
"""


def visible(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if not path.name.startswith(".")]


def test_a_second_build_stays_where_it_differs_and_goes_with_an_error(tmp_path: Path) -> None:
    with second_build(tmp_path) as stored:
        (stored / "file").touch()
    with pytest.raises(FileNotFoundError), second_build(tmp_path) as failed:
        (failed / "no directory/file").touch()
    assert visible(tmp_path) == [stored]
    assert (stored / "file").exists()
    assert stored.stat().st_mode & 0o777 == 0o755


def test_second_build_removes_the_directory_of_a_killed_run_only(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        places = [Path((run.stdout.readline() if run.stdout else "").strip()) for run in runs]
        runs[0].send_signal(signal.SIGKILL)
        runs[0].wait()
        assert places[0].exists()
        with second_build(tmp_path) as mine:
            assert {path for path in visible(tmp_path) if path.is_dir()} == {places[1], mine}
    finally:
        for run in runs:
            run.kill()
            run.wait()


@pytest.mark.parametrize(
    ("number", "name", "remedy"),
    [
        (
            errno.ENOSPC,
            "cache/apt/x",
            "free space on its file system, or name another directory for what",
        ),
        (errno.EDQUOT, "elsewhere", "free space on its file system"),
        (errno.EACCES, "cache", "GOLDNODE_CACHE=DIRECTORY"),
        (errno.EROFS, ".", "GOLDNODE_CACHE=DIRECTORY"),  # a parent that cannot be made
        (errno.EACCES, "elsewhere", "correct its name"),
        (errno.ENOENT, "cache/x", "correct its name"),
    ],
)
def test_the_remedy_for_a_file_is_about_the_reason_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str, remedy: str
) -> None:
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    assert remedy in files.file_remedy(OSError(number, os.strerror(number)), tmp_path / name)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        files.replace_file(tmp_path / "by umask", b"")
        files.replace_file(tmp_path / "stated", b"", 0o755)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "by umask").stat().st_mode & 0o777 == mode
    assert (tmp_path / "stated").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (("schema", "--out"), 0o600),
        (("node-program", "--out"), 0o755),
    ],
)
def test_a_command_respects_the_umask_unless_it_writes_for_others(
    tmp_path: Path, words: tuple[str, ...], mode: int
) -> None:
    out = tmp_path / "new"
    code = "import os, sys; os.umask(0o077); from goldnode.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *words, str(out)], check=True, cwd=tmp_path)
    found = [path for path in (out, *out.rglob("*")) if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in found} == {mode}
