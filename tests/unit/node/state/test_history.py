"""What a node keeps of each apply: the locks before and after, the actions with their results, the error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import document

from goldnode.node.ground.host import Host
from goldnode.node.state import apply as applying
from goldnode.node.state import history
from goldnode.node.state.apply import Applier, PartError
from goldnode.node.state.model import Action, Plan


class LiveHost(Host):
    """A directory that is taken for the running machine: only that keeps a history."""

    def __init__(self, root: str) -> None:
        super().__init__(root, live=True)


def entries(root: Path) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text())
        for path in sorted((root / "var/lib/goldnode/history").glob("*"))
    ]


def with_lock(digest: str) -> Any:
    return {**document(), "lock": {"digest": digest, "resolved": "x"}}


def row(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "link",
        "target": "/a",
        "reason": "want b",
        "seconds": 0.5,
        "error": None,
        **changes,
    }


def test_each_record_names_the_lock_and_the_one_before(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    for digest in ("one", "one", "two", "two", "one"):
        applied = history.AppliedPart(
            "kernel", [row()], history.earlier_lock(host, digest), 1.234, None
        )
        history.record(host, with_lock(digest), applied)
    locks = [(entry["earlier_lock_digest"], entry["lock_digest"]) for entry in entries(tmp_path)]
    assert locks == [(None, "one"), (None, "one"), ("one", "two"), ("one", "two"), ("two", "one")]
    assert entries(tmp_path)[0]["schema"] == "goldnode.applied/1"
    assert entries(tmp_path)[0]["actions"] == [
        {"kind": "link", "target": "/a", "reason": "want b", "seconds": 0.5, "error": None}
    ]


def test_earlier_lock_comes_from_the_class_document_without_records(
    tmp_path: Path,
) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/goldnode/class.json", json.dumps(with_lock("zero")).encode())
    assert history.earlier_lock(host, "one") == "zero"
    assert history.earlier_lock(host, "zero") is None


def test_the_last_fifty_are_stored_in_their_order(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    for number in range(53):
        applied = history.AppliedPart("kernel", [row(target=str(number))], None, 0, None)
        history.record(host, with_lock("one"), applied)
    assert [entry["actions"][0]["target"] for entry in entries(tmp_path)] == [
        str(number) for number in range(3, 53)
    ]


def test_of_a_long_error_both_ends_are_stored(tmp_path: Path) -> None:
    applied = history.AppliedPart("kernel", [row()], None, 0, f"apt fails{'.' * 5000}E: why")
    history.record(Host(str(tmp_path)), with_lock("one"), applied)
    error = entries(tmp_path)[0]["error"]
    assert (len(error) < 700, error[:9], error[-6:]) == (True, "apt fails", "E: why")


def missing(*actions: Action) -> Any:
    """A `plan` that gives these actions until they were asked for twice: before the apply, and after it nothing."""
    plans = [Plan(actions, class_digest="d"), Plan((), class_digest="d")]
    return lambda *arguments, **options: plans.pop(0)


def apply(root: Path, monkeypatch: pytest.MonkeyPatch, *actions: Action) -> list[dict[str, Any]]:
    monkeypatch.setattr(applying, "plan", missing(*actions))
    return applying.apply(LiveHost(str(root)), document(), "sanity", {}, handlers={})[0]


def link(name: str) -> Action:
    return Action("sanity", "link", name, "want it", after="b", data={"to": "b"})


def test_apply_reports_each_row_and_keeps_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = apply(tmp_path, monkeypatch, link("/a"))
    assert done[0].pop("seconds") >= 0
    assert done == [
        {
            "kind": "link",
            "target": "/a",
            "reason": "want it",
            "phase": "image",
            "before": None,
            "after": "b",
            "told": None,
            "error": None,
        }
    ]
    assert (tmp_path / "a").is_symlink()
    (entry,) = entries(tmp_path)
    assert (entry["part"], entry["error"], len(entry["actions"])) == ("sanity", None, 1)


def test_an_apply_that_fails_reports_what_was_done_before_and_what_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "full").mkdir()
    with pytest.raises(PartError, match=r"Is a directory.*what was done before remains") as stopped:
        apply(
            tmp_path,
            monkeypatch,
            link("/a"),
            Action("sanity", "file.remove", "/d/full", "want none"),
            link("/b"),
        )
    assert [(row["target"], bool(row["error"])) for row in stopped.value.done] == [
        ("/a", False),
        ("/d/full", True),
    ]
    assert not (tmp_path / "b").exists()
    (entry,) = entries(tmp_path)
    assert "Is a directory" in entry["error"]
    assert "Is a directory" in entry["actions"][-1]["error"]


def test_a_fault_of_goldnode_is_recorded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(self: Applier, action: Action) -> str:
        raise ZeroDivisionError("fault")

    monkeypatch.setattr(Applier, "apply", fault)
    with pytest.raises(ZeroDivisionError):
        apply(tmp_path, monkeypatch, link("/a"))
    assert entries(tmp_path)[0]["error"] == "fault"


def test_nothing_done_and_an_image_leave_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert apply(tmp_path, monkeypatch) == []
    monkeypatch.setattr(applying, "plan", missing(link("/a")))
    assert applying.apply(Host(str(tmp_path)), document(), "sanity", {}, handlers={})[0] != []
    assert not (tmp_path / "var/lib/goldnode/history").exists()
