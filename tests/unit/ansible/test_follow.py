"""Lines of a node's progress file, as the controller shows them while a part is applied."""

from __future__ import annotations

import threading

import pytest

from goldnode.ansible import follow
from goldnode.node.state.model import ABSENT

EARLIER = "09:59:59 kernel: start\n10:00:00 kernel 1/1: packages.transact old\n10:00:01 gpu_driver 1/2: file.write /etc/a\n"
FILE = (
    EARLIER
    + "10:59:59 kernel: start\n11:00:00 kernel 1/2: packages.transact new\n11:00:02 installing 8 locked packages\n"
    + "11:01:00 kernel 2/2: initramfs.rebuild 6.1\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("10:00:01 gpu_driver 1/2: file.write /etc/a\n", []),
        (EARLIER + "11:00:00 kernel: start\n", []),
        (
            FILE,
            [
                "kernel 1/2: packages.transact new",
                "installing 8 locked packages",
                "kernel 2/2: initramfs.rebuild 6.1",
            ],
        ),
    ],
    ids=["no-file", "another-part", "second-run-starts", "second-run"],
)
def test_lines_of_the_latest_run_of_a_part(text: str, expected: list[str]) -> None:
    assert follow.of_part(text, "kernel") == expected


def test_a_removal_shows_no_line_of_an_earlier_run() -> None:
    assert follow.of_part(FILE, ABSENT) == []
    assert follow.of_part(
        f"{FILE}12:00:00 {ABSENT}: start\n12:00:01 removing 8 packages\n", ABSENT
    ) == ["removing 8 packages"]


def test_each_line_is_shown_once_and_the_end_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST", 0.0)
    monkeypatch.setattr(follow, "AGAIN", 1e9)
    ended = threading.Event()
    ends = [0, FILE.index("11:00:02"), FILE.index("11:00:02"), len(FILE), len(FILE)]
    readings = iter([FILE[:end] for end in ends])
    shown: list[str] = []

    def read() -> str:
        text = next(readings, None)
        if text is None:
            ended.set()
            return FILE + "11:02:00 too late\n"
        return text

    follow.follow(read, shown.append, "kernel", ended)
    assert shown == [
        "kernel 1/2: packages.transact new",
        "installing 8 locked packages",
        "kernel 2/2: initramfs.rebuild 6.1",
    ]


def test_a_silent_node_is_mentioned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST", 0.0)
    monkeypatch.setattr(follow, "AGAIN", 0.0)
    ended = threading.Event()
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if len(shown) == 2:
            ended.set()

    follow.follow(
        lambda: "10:59:59 kernel: start\n11:00:00 kernel 1/1: a b\n", show, "kernel", ended
    )
    assert shown[0] == "kernel 1/1: a b"
    assert shown[1].startswith("kernel 1/1: a b (")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "1 change: file.write f0"),
        (4, "4 changes: file.write f0, file.write f1, file.write f2, …"),
    ],
)
def test_changes_in_one_line(number: int, expected: str) -> None:
    actions = [{"kind": "file.write", "target": f"/etc/f{index}"} for index in range(number)]
    assert follow.counted(actions) == expected
