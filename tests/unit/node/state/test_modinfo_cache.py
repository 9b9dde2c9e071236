"""modinfo's answer is taken from the cache only while the module and the index that finds it are the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goldnode.node.ground.host import Host, Result
from goldnode.node.state import observe

RELEASE = "6.12.94+deb13-amd64"
FOLDER = f"/lib/modules/{RELEASE}"
MODULE = f"{FOLDER}/updates/dkms/nvidia.ko"


class Node:
    """A node with one module, and a modinfo that is counted."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = Host(str(root), live=True)
        self.version, self.calls = "580.95.05", 0
        self.later = 10.0
        for name in observe.MODINFO_INDEX:
            self.host.write(f"{FOLDER}/{name}", b"index")
        self.host.write(MODULE, b"module")
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + self.later)
        monkeypatch.setattr(Host, "run", self.run)

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.calls += 1
        file = self.host.located(MODULE)
        if not Path(file).exists():
            return Result(argv, 1, "", "no module")
        text = f"filename:       {file}\nversion:        {self.version}\nvermagic:       {RELEASE} SMP\n"
        return Result(argv, 0, text, "")

    def ask(self, *, keep: bool = True, module: str = "nvidia") -> str | None:
        known = observe.modinfo(self.host, RELEASE, module, keep=keep)
        return None if known is None else known["version"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_second_answer_is_the_first_without_a_program(node: Node) -> None:
    first = observe.modinfo(node.host, RELEASE, "nvidia", keep=True)
    assert first == observe.modinfo(node.host, RELEASE, "nvidia", keep=True)
    assert first is not None
    assert (first["version"], first["signer"], first["altered"]) == ("580.95.05", "", "")
    assert node.calls == 1


def rewritten(name: str) -> Callable[[Node], None]:
    """The file again, with the same bytes."""
    return lambda node: node.host.write(name, node.host.data(name) or b"")


def changed_in_place(node: Node) -> None:
    with Path(node.host.located(MODULE)).open("r+b") as opened:
        opened.write(b"eludom")


def forged(node: Node, fields: dict[str, str] | None) -> None:
    row = {"module": [RELEASE, "nvidia"], "of": None, "fields": fields}
    node.host.write(observe.MODINFO_CACHE, json.dumps(row).encode())


CHANGES: dict[str, Callable[[Node], None]] = {
    "module": rewritten(MODULE),
    "module in its place": changed_in_place,
    **{name: rewritten(f"{FOLDER}/{name}") for name in observe.MODINFO_INDEX},
    "index gone": lambda node: node.host.remove(f"{FOLDER}/modules.dep.bin"),
    "cache cut": lambda node: node.host.write(observe.MODINFO_CACHE, b'{"module": ['),
    "cache of another form": lambda node: node.host.write(observe.MODINFO_CACHE, b"[1]"),
    "cache without fields": lambda node: forged(node, None),
    "cache of no file": lambda node: forged(
        node, {**dict.fromkeys(observe.MODINFO_FIELDS, "9"), "filename": "/nowhere"}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_modinfo_is_asked_again_after_a_change(name: str, node: Node) -> None:
    assert node.ask() == "580.95.05"
    node.version = "580.105.08"
    CHANGES[name](node)
    assert node.ask() == "580.105.08"
    assert node.calls == 2


def test_another_module_is_asked_for(node: Node) -> None:
    node.ask()
    node.ask(module="nvidia-uvm")
    assert node.calls == 2


def test_module_that_is_gone_is_not_there(node: Node) -> None:
    node.ask()
    node.host.remove(MODULE)
    assert node.ask() is None


def test_files_of_this_moment_are_not_believed_later(node: Node) -> None:
    """A second change within the same tick of the clock leaves the times as they are."""
    node.later = 0.0
    assert [node.ask(), node.ask()] == ["580.95.05"] * 2
    assert node.calls == 2
    assert not node.host.exists(observe.MODINFO_CACHE)


def test_nothing_is_kept_where_that_is_not_asked_for(node: Node) -> None:
    node.ask(keep=False)
    assert not node.host.exists(observe.MODINFO_CACHE)
