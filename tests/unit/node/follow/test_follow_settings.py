"""Trust in a pass of `follow`: the files that decide what root runs, and whom the node trusts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from goldnode.node.follow import settings
from goldnode.node.follow.settings import STATE, STEP
from goldnode.node.ground import verdict_files
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.program import ack_command

OPTIONS = SimpleNamespace(channel="c", service="s", node="n1", root_document=None)


def put(root: Path, name: str, content: str = "{}") -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o644)
    return path


@pytest.fixture
def node(tmp_path: Path) -> Host:
    apply = str(tmp_path / "usr/bin/apply-it")
    put(tmp_path, verdict_files.CLASS, json.dumps({"class": "l4", "follow": {"apply": [apply]}}))
    put(tmp_path, settings.ROOT_DOCUMENT)
    put(tmp_path, STEP)
    put(tmp_path, f"{STATE}/metadata/root.json")
    return Host(str(tmp_path), live=True)


FILES = {
    verdict_files.CLASS: "run site.yml for this host",
    settings.ROOT_DOCUMENT: "put it there again, from a place that you trust",
    f"{STATE}/metadata/root.json": "remove it: the next pass fetches it again",
    STEP: "compare it with `goldnode rollout explain`",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [lambda path: path.chmod(0o666), lambda path: os.chown(path, 12345, -1)],
    ids=["mode", "owner"],
)
def test_follow_believes_no_file_that_others_can_change(
    node: Host, damage: Callable[[Path], None], name: str
) -> None:
    assert settings.load(node, OPTIONS).node_class == "l4"
    try:
        damage(Path(node.located(name)))
    except PermissionError:
        pytest.skip("only root gives files away")
    with pytest.raises(NodeError, match=f"{name} is not believed: .*, then {FILES[name]}"):
        settings.load(node, OPTIONS)


def test_follow_believes_no_command_that_others_can_change(tmp_path: Path) -> None:
    command = put(tmp_path, "apply-it")
    link = tmp_path / "link"
    link.symlink_to(command)
    own = settings.Settings(
        "c", service="s", node="n1", node_class="l4", lock=None, group="l4", apply=(str(link),)
    )
    machine = Host("/", live=True)
    if os.geteuid() == 0:  # else it is this user's, and not root's
        settings.check_owners(machine, own)
    command.chmod(0o666)
    with pytest.raises(
        NodeError, match=f"{command} is not believed: .*, then install it again, as root"
    ):
        settings.check_owners(machine, own)


def test_an_acknowledgement_judges_by_no_document_that_others_can_change(
    node: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    Path(node.located(verdict_files.CLASS)).chmod(0o666)
    with pytest.raises(NodeError, match="is not believed"):
        ack_command._judged(node)
