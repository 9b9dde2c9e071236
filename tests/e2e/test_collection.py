"""A first node by the wheel and the collection of a release: from an empty directory, without an ansible.cfg."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from release.__main__ import build
from tests.e2e.support import RECAP, Site, inventory
from tests.release_files import EPOCH, Installed, export, install

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    where = tmp_path_factory.mktemp("release")
    build(export(where / "tree"), where / "dist", EPOCH)
    return install(where / "dist", where / "goldnode")


def test_a_first_node_from_the_collection(
    installed: Installed, make: Callable[..., tuple[LabNode, Site]], tmp_path: Path
) -> None:
    node, site = make("first", "e2e_plain", "e2e_plain")
    hosts = inventory(tmp_path / "inventory", {"e2e_plain": [node]})
    (tmp_path / "empty").mkdir()

    def play(*words: str) -> tuple[subprocess.CompletedProcess[str], int]:
        """Run the playbook of the collection; return the run, and what it changed."""
        done = installed.run(
            *("ansible-playbook", "-i", str(hosts), "goldnode.node.site", *words),
            here=tmp_path / "empty",
            **site.environment(),
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        recap = RECAP.search(done.stdout)
        assert recap is not None, done.stdout
        return done, int(recap[3])

    _, changed = play("--tags", "kernel")
    assert changed > 0
    assert node.shell("apt-mark showhold").output.split()
    assert node.shell("test -e /etc/systemd/system/goldnode-sanity.service", check=False).rc != 0
    _, changed = play()
    assert changed > 0
    node.shell("test -e /etc/systemd/system/goldnode-sanity.service")
    assert "verdict" in node.shell("/usr/lib/goldnode/goldnode-node check", check=False).output
    _, changed = play()
    assert changed == 0
    # The class document is an argument of the module, and must not be in the log of the node.
    assert "goldnode.class/1" not in node.shell("journalctl --no-pager").output
    _, changed = play("-e", "goldnode_state=absent")
    assert changed > 0
    assert node.shell("test -e /usr/lib/goldnode", check=False).rc != 0
    assert list((tmp_path / "empty").iterdir()) == [], (
        "a run leaves something in the directory of the user"
    )
