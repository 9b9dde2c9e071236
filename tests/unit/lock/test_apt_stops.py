"""Ends of a run of apt that cannot go on: a full disk, a server that is silent. The programs are fakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from goldnode.core.errors import LockError
from goldnode.lock import aptroot
from goldnode.lock.aptroot import AptRoot, apt_root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AptRoot]:
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with apt_root([], "amd64") as found:
        yield found


def fake(tmp_path: Path, script: str) -> None:
    """Put a program of the name apt-get first on the PATH of the root."""
    program = tmp_path / "bin/apt-get"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("little", "stalled", "message", "remedy"),
    [
        (1 << 60, 300, "there is no space left on this machine", "`GOLDNODE_CACHE=DIRECTORY`"),
        (0, 1, "apt has fetched nothing for 1 s and does not end", "check the network"),
    ],
    ids=["full", "silent"],
)
def test_apt_that_waits_without_end_is_ended(
    root: AptRoot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    little: int,
    stalled: int,
    message: str,
    remedy: str,
) -> None:
    fake(tmp_path, "exec sleep 600")
    for name, value in (("STEP", 0.1), ("FULL", 0.3), ("LITTLE", little), ("STALLED", stalled)):
        monkeypatch.setattr(aptroot, name, value)
    with pytest.raises(LockError) as error:
        root.update()
    assert message in str(error.value)
    assert remedy in str(error.value.remedy)


FULL = "E: Write error - write (28: No space left on device)"


@pytest.mark.parametrize("verb", ["update", "resolve"])
def test_a_full_disk_is_the_cause_whatever_apt_was_to_do(
    root: AptRoot, tmp_path: Path, verb: str
) -> None:
    fake(tmp_path, f"echo '{FULL}' >&2; exit 100")
    with pytest.raises(LockError) as error:
        root.update() if verb == "update" else root.resolve(["linux-image-amd64"])
    assert "No space left on device" in str(error.value)
    assert str(error.value.remedy).startswith("free space on the file system of ")
