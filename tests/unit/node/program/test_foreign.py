"""`--root`: the root of a running machine is told from that of an image."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from goldnode.node.ground.errors import NodeError
from goldnode.node.program import foreign
from goldnode.node.program.main import main

CLASS = "/etc/goldnode/class.json"


def tree(place: Path, first: str | None) -> str:
    """Make a root; `first`: what its /proc shows as the root of the first process."""
    (place / "proc/1").mkdir(parents=True)
    if first is not None:
        (place / "proc/1/root").symlink_to(first)
    return str(place)


@pytest.mark.parametrize(
    ("first", "running"),
    [(None, False), ("../..", True), ("/", False), ("/nothing/here", False)],
)
def test_a_root_runs_if_it_is_that_of_its_first_process(
    tmp_path: Path, first: str | None, running: bool
) -> None:
    assert foreign.is_running(tree(tmp_path, first)) is running


def test_an_image_is_left_to_the_caller(tmp_path: Path) -> None:
    for root in (str(tmp_path), tree(tmp_path / "mounted", "/")):
        foreign.enter(root, ["check"], CLASS, CLASS)


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_root_that_is_no_directory_is_refused_and_not_made(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    if kind == "file":
        root.touch()
    assert main(["check", "--root", str(root)]) == 3
    shown = capsys.readouterr()
    assert f"--root {root} is no directory. Correct its path." in shown.out + shown.err
    assert not root.is_dir()


def test_missing_class_of_an_image_is_named_below_its_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--root", str(tmp_path), "--no-write"]) == 3
    assert f"{tmp_path}{CLASS}: there is no class document" in capsys.readouterr().out


def test_a_machine_that_shows_another_pod_s_processes_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [__file__])
    with pytest.raises(NodeError, match=r"does not show this process\. A pod needs hostPID: true"):
        foreign.enter(tree(tmp_path, "../.."), ["check"], CLASS, CLASS)


def test_its_own_root_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign, "is_running", lambda root: True)
    (tmp_path / "own").symlink_to("/")
    with pytest.raises(NodeError, match="the root of this process itself"):
        foreign.enter(str(tmp_path / "own"), ["check"], CLASS, CLASS)
