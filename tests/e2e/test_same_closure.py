"""One lock on two nodes with different histories: same packages, versions and architectures, compared by
hash.

Packages are stand-ins; dpkg and apt are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import World
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded

from goldnode.lock.model import load_lock
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

# As the README has it.
HELD = "dpkg-query -W -f '${Package} ${Version} ${Architecture}\\n' $(apt-mark showhold) | LC_ALL=C sort | sha256sum"


def closure(node: LabNode, names: list[str]) -> str:
    """Hash of what dpkg has of `names`, with each package's state."""
    command = f"dpkg-query -W -f '${{Package}} ${{Version}} ${{Architecture}} ${{db:Status-Status}}\\n' {' '.join(names)} | LC_ALL=C sort"
    text = node.shell(command).output
    assert text.count(" installed\n") == len(names), text
    return node.shell(f"{command} | sha256sum").output.split()[0]


def test_two_nodes_of_different_histories_end_in_one_closure(
    world: World, make: Callable[..., tuple[LabNode, Site]], tmp_path: Path
) -> None:
    fresh, site = make("plain", "e2e_r535", "debian12_r535")
    used = world.node("used", "e2e_r535")
    world.lock(site, fresh, "debian12_r470", "e2e_main")
    # Another order of packages, an older kernel and driver, another branch, and marks that are not those of a fresh node.
    used.shell("apt-mark auto kmod; apt-mark manual gcc")
    for number, group in enumerate(("e2e_main", "e2e_r470")):
        succeeded(site_yml(inventory(tmp_path / str(number), {group: [used]}), site=site))
    succeeded(site_yml(inventory(tmp_path / "both", {"e2e_r535": [fresh, used]}), site=site))
    lock = load_lock((site.locks or Path()) / "debian12_r535.lock.yml")
    names = [item.name for item in lock.packages if item.when is None]
    history = [node.read("/var/log/dpkg.log") for node in (fresh, used)]
    assert history[0] != history[1]
    assert "535.261.03-1+standin1" in history[1]
    assert closure(fresh, names) == closure(used, names)
    shown = [node.shell(HELD).output.split()[0] for node in (fresh, used)]
    assert shown[0] == shown[1] == lock.stack_hash(nvswitch=False)
    reported = json.loads(
        goldnode("lock", "debian12_r535", "--check", "--format", "json", site=site).stdout
    )
    assert reported["stack_sha256"]["without_nvswitch"] == shown[0], (
        "what the command says is what nodes show"
    )
