"""A fleet of lab nodes that runs already, imported by the commands of docs/how-to/import.md."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import CATALOG, World
from tests.e2e.support import BIN, Site, environment, inventory, site_yml, succeeded
from tests.e2e.test_standins import changes

pytestmark = pytest.mark.lab


def goldnode(directory: Path, site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a directory, as a user who has no settings."""
    return subprocess.run(
        [str(BIN / "goldnode"), *words],
        cwd=directory,
        env=environment(site),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_a_running_fleet_becomes_a_site(world: World, tmp_path: Path) -> None:
    """Three nodes of two releases and one that no ssh reaches; what the lock would change is what the nodes' own plan has."""
    site = world.site("imported")
    nodes = [world.node(name, "e2e_r535") for name in ("one", "two")]
    nodes.append(world.node("three", "old", "debian13"))
    world.lock(site, nodes[0], "debian12_r535", "debian12_r470", "debian12_r580")
    try:
        succeeded(site_yml(inventory(tmp_path / "first", {"e2e_r535": nodes[:1]}), site=site))
        where = inventory(tmp_path / "fleet", {"old": nodes})
        hosts: dict[str, Any] = yaml.safe_load((where / "hosts.yml").read_text())
        hosts["all"]["children"]["old"]["hosts"]["gone"] = {
            "ansible_host": "127.0.0.1",
            "ansible_port": 1,
        }
        (where / "hosts.yml").write_text(yaml.safe_dump(hosts))
        before = [changes(node) for node in nodes]
        done = goldnode(tmp_path, site, "import", "fleet", "--out", "site", "--format", "json")
        assert done.returncode == 0, done.stderr
        assert [changes(node) for node in nodes] == before
        document = json.loads(done.stdout)
        classes = {row["class"]: row for row in document["classes"]}
        assert {name: row["hosts"] for name, row in classes.items()} == {
            "adopted_debian12_cpu": ["one", "two"],
            "adopted_debian13_cpu": ["three"],
        }
        assert classes["adopted_debian12_cpu"]["stack"] == "debian12_r535"
        held = {row["host"] for row in classes["adopted_debian12_cpu"]["deviations"]}
        assert held == {"two"}
        (gone,) = document["unreached"]
        assert gone["host"] == "gone"
        assert "Connection refused" in gone["reason"]
        assert gone["likely_class"] in classes
        locks = {host: row["lines"] for row in document["locks"] for host in row["hosts"]}
        assert locks["one"] == ["no package of the stack changes"]
        # As the page goes on: review the class (a container shows no GPU), and take the connections along.
        file = tmp_path / "site/catalog/classes/adopted_debian12_cpu.yml"
        file.write_text(
            file.read_text() + "gpu: {model: A100-SXM4-40GB, count: 8}\nsimulated: true\n"
        )
        shutil.copytree(where, tmp_path / "site/inventory/00_connections")
        both = Site(
            catalog=Path(f"{CATALOG}:{tmp_path / 'site/catalog'}"), site=site.site, locks=site.locks
        )
        words = ("plan", "-i", "inventory", "-l", "one,two", "--format", "json")
        plan = goldnode(tmp_path / "site", both, *words)
        assert plan.returncode == 0, plan.stdout
        document = json.loads(plan.stdout)
        groups = document["classes"]["adopted_debian12_cpu"]["groups"]
        packages = {
            host: group["sections"].get("packages", [])
            for group in groups
            for host in group["hosts"]
        }
        assert not packages.get("one")
        planned = {row["package"] for row in packages["two"] if row.get("verb") == "install"}
        (line,) = locks["two"]
        assert line.startswith(f"install {len(planned)}: "), (line, packages["two"])
    finally:
        for node in nodes:
            node.destroy()
