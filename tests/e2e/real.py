"""Shared helpers of the tests with real kernels and drivers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e.support import Site, inventory, site_yml, succeeded

from goldnode.testing.lab.nodes import LabNode


def document(node: LabNode) -> dict[str, object]:
    found: dict[str, object] = json.loads(node.read("/etc/goldnode/class.json"))
    return found


def prove(node: LabNode) -> tuple[str, str]:
    """The module is the locked driver's, for exactly the locked kernel. Returns (kernel release, driver version)."""
    wanted = document(node)
    release, driver = wanted["kernel"]["release"], wanted["driver"]  # type: ignore[index]
    info = node.run("modinfo", "-k", release, driver["module"]).output  # type: ignore[index]
    assert re.search(rf"^version:\s+{re.escape(driver['version'])}$", info, re.MULTILINE), info  # type: ignore[index]
    assert re.search(rf"^vermagic:\s+{re.escape(release)} SMP", info, re.MULTILINE), info
    assert int(node.run("stat", "-c", "%s", f"/boot/vmlinuz-{release}").output) > 5_000_000, (
        "not a real kernel"
    )
    size = node.shell(f"stat -c %s $(modinfo -k {release} -F filename {driver['module']})").output  # type: ignore[index]
    assert int(size) > 10_000_000, "not a real driver"
    return str(release), str(driver["version"])  # type: ignore[index]


def converge(node: LabNode, group: str, site: Site, tmp_path: Path) -> str:
    """Move the node to a class, prove it, and see that a second run changes nothing. Returns what the first run printed."""
    hosts = inventory(tmp_path / group, {group: [node]})
    run = succeeded(site_yml(hosts, site=site))
    prove(node)
    again = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (again.changed[node.name], again.executions) == (0, 1)
    return run.output
