"""Who can change goldnode's files: seen in a real directory tree, planned, put right, and seen again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.node.state.test_cases import document

from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.program.main import Flags, read_document
from goldnode.node.state import owners
from goldnode.node.state.apply import Applier
from goldnode.node.state.domains import files, program, units
from goldnode.node.state.model import Action, Observed
from goldnode.node.state.names import digest
from goldnode.node.state.observe import LINKS, MANAGED, managed_files

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

MALLORY = 4711
PROGRAM, CLASS, MOTD = program.PROGRAM, program.CLASS, units.MOTD
UNIT = "/etc/systemd/system/goldnode-watch.service"
BYTES = b"PK\x03\x04\0 the program"
WANTED = [
    files.Wanted(PROGRAM, digest(BYTES), "node_class", "why", 0o755, payload="program"),
    files.Wanted(CLASS, "{}\n", "node_class", "why"),
    files.Wanted(UNIT, "[Service]\n", "sanity", "why"),
    files.Wanted(MOTD, "#!/bin/sh\n", "sanity", "why", 0o755),
]
PLACES = [*(directory for directory, _ in MANAGED), *(str(Path(name).parent) for name in LINKS)]


@dataclass
class Node:
    """A directory that holds goldnode's files as they should be."""

    root: Path

    @property
    def host(self) -> Host:
        return Host(str(self.root))

    def at(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def look(self) -> Observed:
        seen = Observed(files=managed_files(self.host), folders=owners.folders(self.host, PLACES))
        seen.strays = owners.strays(self.host, seen.files)
        return seen

    def plan(self) -> list[Action]:
        seen = self.look()
        return owners.secure(seen) + files.plan(WANTED, seen)

    def apply(self, actions: list[Action]) -> None:
        payload = self.root.parent / "payload"
        payload.write_bytes(BYTES)
        applier = Applier(
            self.host, document(), {"program": {"file": str(payload)}}, lambda text: None
        )
        for action in actions:
            applier.apply(action)

    def give(self, name: str) -> None:
        os.chown(self.at(name), MALLORY, -1, follow_symlinks=False)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    os.umask(0o022)
    found = Node(tmp_path / "root")
    for name in ("etc", "usr/lib", "var/lib/goldnode", "run/goldnode"):
        (found.root / name).mkdir(parents=True)
    (found.root / "etc/passwd").write_text(
        f"root:x:0:0::/root:/bin/sh\nmallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n"
    )
    found.apply(found.plan())
    assert found.plan() == []
    return found


def linked(node: Node, name: str) -> None:
    """A link of the user's in the place of a file or directory, which leads to just the same content."""
    away = node.root / "home" / name.rpartition("/")[2]
    away.parent.mkdir(exist_ok=True)
    node.at(name).rename(away)
    node.at(name).symlink_to(away)


def piped(node: Node, name: str) -> None:
    node.at(name).unlink()
    os.mkfifo(node.at(name))


def emptied(node: Node, name: str) -> None:
    node.at(name).unlink()
    node.at(name).mkdir()


OWNER = f"owner is mallory ({MALLORY}), want root (0)"
Damage = Callable[[Node, str], None]
OWN: list[tuple[str, str, Damage, str]] = [
    *((f"owner of {name}", name, Node.give, OWNER) for name in (PROGRAM, CLASS, UNIT, MOTD)),
    (
        "group",
        CLASS,
        lambda node, name: os.chown(node.at(name), -1, MALLORY),
        f"group is {MALLORY}, want root (0)",
    ),
    ("mode", UNIT, lambda node, name: node.at(name).chmod(0o664), "want mode 0644, have 0664"),
    ("type link", PROGRAM, linked, "want a file"),
    ("type link of a unit", UNIT, linked, "want a file"),
    ("type pipe", MOTD, piped, "it is a device, pipe or socket, want a file"),
    ("type directory", CLASS, emptied, "it is a directory, want a file"),
    *(
        (f"owner of {name}", name, Node.give, OWNER)
        for name in ("/usr/lib/goldnode", "/etc/goldnode", "/var/lib/goldnode", "/run/goldnode")
    ),
    (
        "mode of the directory",
        "/usr/lib/goldnode",
        lambda node, name: node.at(name).chmod(0o777),
        "all can write to it (mode 0777)",
    ),
    (
        "group of the directory",
        "/etc/goldnode",
        lambda node, name: node.at(name).chmod(0o2775),
        "group root (0) can write to it (mode 2775)",
    ),
    ("type of the directory", "/usr/lib/goldnode", linked, "want a directory"),
]


@as_root
@pytest.mark.parametrize(
    ("name", "damage", "reason"), [row[1:] for row in OWN], ids=[row[0] for row in OWN]
)
def test_own_file_or_directory_when_not_roots_is_planned_and_put_right(
    node: Node, name: str, damage: Damage, reason: str
) -> None:
    if node.at(name).is_file():
        os.link(node.at(name), node.root / "second name")
    damage(node, name)
    actions = node.plan()
    assert name in [action.target for action in actions]
    assert reason in next(action.reason for action in actions if action.target == name)
    node.apply(actions)
    assert node.plan() == []
    found = node.at(name).lstat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o170022) in (
        (0, 0, 0o100000),
        (0, 0, 0o040000),
    )
    if (
        actions[0].kind == "file.write"
    ):  # a descriptor or a second name that the user has leads to the old file
        assert found.st_ino != (node.root / "second name").stat().st_ino
    assert not any((owners.findings(node.look(), [])[0], owners.refusals(node.look(), [])))


@as_root
@pytest.mark.parametrize(
    ("name", "damage"),
    [row[1:3] for row in OWN if row[0] not in ("group",)],
    ids=[row[0] for row in OWN if row[0] != "group"],
)
def test_check_reports_what_others_can_change(node: Node, name: str, damage: Damage) -> None:
    damage(node, name)
    own, _, _ = owners.findings(node.look(), [])
    assert any(text.startswith(name) for text in own), own


@as_root
def test_an_open_descriptor_of_the_user_changes_nothing_after_the_repair(node: Node) -> None:
    node.give(PROGRAM)
    with node.at(PROGRAM).open("r+b") as held:
        os.link(node.at(PROGRAM), node.root / "second name")
        node.apply(node.plan())
        held.write(b"evil")
    assert node.at(PROGRAM).read_bytes() == BYTES


@as_root
def test_a_link_is_not_followed_when_its_place_is_put_right(node: Node) -> None:
    """Neither what it leads to is changed, nor does its content count."""
    linked(node, CLASS)
    foreign = node.root / "home/class.json"
    os.chown(foreign, MALLORY, MALLORY)
    node.apply(node.plan())
    assert not node.at(CLASS).is_symlink()
    assert foreign.stat().st_uid == MALLORY


SYSTEM: list[tuple[str, str, Damage, bool]] = [
    ("owner", "/usr/lib", Node.give, True),
    ("owner of the root", "/", Node.give, True),
    ("all", "/etc/systemd", lambda node, name: node.at(name).chmod(0o777), True),
    ("its group", "/etc/update-motd.d", lambda node, name: node.at(name).chmod(0o775), False),
]


@as_root
@pytest.mark.parametrize(
    ("name", "damage", "severe"), [row[1:] for row in SYSTEM], ids=[row[0] for row in SYSTEM]
)
def test_directory_of_the_system_is_judged_and_left_alone(
    node: Node, name: str, damage: Damage, severe: bool
) -> None:
    damage(node, name)
    seen, before = node.look(), node.at(name).stat()
    assert node.plan() == []
    own, system, worse = owners.findings(seen, [])
    assert (own, [text.partition(":")[0] for text in system], worse) == ([], [name], severe)
    assert [refusal.code for refusal in owners.refusals(seen, [])] == ["unsafe-directory"] * severe
    assert node.at(name).stat() == before


@as_root
def test_directory_behind_a_link_of_the_system_is_judged(node: Node) -> None:
    """As with merged directories: /usr/lib may be a link, and who can write to where it leads can replace the program."""
    linked(node, "/usr/lib")
    node.at("/usr/lib").unlink()
    node.at("/usr/lib").symlink_to("../home/lib")
    assert owners.refusals(node.look(), []) == []
    os.chown(node.root / "home", MALLORY, -1)
    assert [refusal.message.partition(":")[0] for refusal in owners.refusals(node.look(), [])] == [
        "/home"
    ]


@as_root
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("/var/lib/goldnode/classes/a.json", "unsafe-record"),
        ("/var/lib/goldnode/state.json", "unsafe-record"),
        ("/usr/lib/goldnode/x", None),
    ],
)
def test_unknown_file_that_others_can_change_is_reported(
    node: Node, name: str, code: str | None
) -> None:
    node.at(name).parent.mkdir(exist_ok=True)
    node.at(name).write_text("{}")
    assert node.look().strays == {}
    node.give(name)
    seen = node.look()
    assert list(seen.strays) == [name]
    assert [refusal.code for refusal in owners.refusals(seen, [])] == ([code] if code else [])
    assert bool(owners.notes(seen)) != bool(code)
    assert OWNER in owners.findings(seen, [])[0][0]
    assert node.plan() == []


def test_a_directory_with_something_in_it_does_not_make_way(node: Node) -> None:
    node.at(CLASS).unlink()
    (node.at(CLASS) / "theirs").mkdir(parents=True)
    with pytest.raises(NodeError, match=r"class\.json is a directory, where goldnode has a file"):
        node.apply(node.plan())
    assert (node.at(CLASS) / "theirs").is_dir()


@as_root
@pytest.mark.parametrize(
    "damage",
    [Node.give, linked, lambda node, name: node.at(name).chmod(0o666)],
    ids=["owner", "link", "mode"],
)
def test_class_document_that_others_can_change_is_not_believed(node: Node, damage: Damage) -> None:
    """It names the commands that the gate runs as root."""
    node.at(CLASS).write_text('{"schema": "goldnode.class/1"}')
    live, options = Host(str(node.root), live=True), Flags(document=CLASS)
    assert read_document(live, options)["schema"] == "goldnode.class/1"
    damage(node, CLASS)
    with pytest.raises(NodeError, match=r"class\.json is not believed: .*run site\.yml"):
        read_document(live, options)
    if damage is not linked:
        assert read_document(node.host, options), "an image is judged, and nothing runs there"
