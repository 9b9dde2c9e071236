"""Manipulations of a converged node, one after the other: check and plan find each, and site.yml repairs or reports it.

One node for all rows. A program on it remembers the file system and puts it back after each row. Rows without
`quick` run with `--all`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.drift import table
from tests.e2e.drift.table import BY_SITE, DriftRow
from tests.e2e.support import Site, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

PROGRAM = "/opt/drift/on_node.py"
ROWS = table.rows()
HARMLESS = [row for row in ROWS if row.kind == "harmless"]
Drifting = tuple[LabNode, Site, Path]


@pytest.fixture(scope="module")
def drifting(
    make: Callable[..., tuple[LabNode, Site]], tmp_path_factory: pytest.TempPathFactory
) -> Drifting:
    """A converged node whose file system can be put back."""
    groups = {*apt_archive.DEFAULT, apt_archive.MODULES}
    node, site = make("drift", "e2e_drift", "e2e_drift", groups=groups)
    hosts = inventory(tmp_path_factory.mktemp("inventory"), {"e2e_drift": [node]})
    succeeded(site_yml(hosts, site=site))
    node.put({PROGRAM: (table.HERE / "on_node.py").read_bytes()})
    node.run("python3", PROGRAM, "save")
    return node, site, hosts


def on_node(node: LabNode, command: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the program on the node. Return its answer."""
    done = subprocess.run(
        ["docker", "exec", "-i", str(node.container.id), "python3", PROGRAM, command],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def carried_out(drifting: Drifting, row: DriftRow) -> dict[str, Any]:
    """Carry a row out, with site.yml where the node cannot repair itself. Return what was seen."""
    node, site, hosts = drifting
    seen = on_node(node, "row", row.request())
    if row.repair == BY_SITE:
        run = site_yml(hosts, site=site)
        seen.update(on_node(node, "end"))
        seen["failed"] = [run.output[-3000:]] if run.rc else []
    return seen


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.id, marks=() if row.quick else pytest.mark.long)
        for row in ROWS
        if row.kind != "harmless"
    ],
)
def test_manipulation_is_found_and_taken_back(drifting: Drifting, row: DriftRow) -> None:
    assert table.faults(row, carried_out(drifting, row)) == []


def test_harmless_manipulations_together_are_silent(drifting: Drifting) -> None:
    row = table.together(HARMLESS)
    assert table.faults(row, carried_out(drifting, row)) == []


@pytest.mark.long  # together by default; alone, no row can hide what another one causes
@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in HARMLESS])
def test_harmless_manipulation_is_silent(drifting: Drifting, row: DriftRow) -> None:
    assert table.faults(row, carried_out(drifting, row)) == []


def test_site_yml_names_what_others_wrote_and_changes_nothing(drifting: Drifting) -> None:
    node, site, hosts = drifting
    named = {row.id: row for row in ROWS}
    chosen = [
        named[name] for name in ("foreign-pin", "foreign-source", "driver-options", "sysctl-later")
    ]
    on_node(node, "spoil", {**chosen[0].request(), "do": "\n".join(row.do for row in chosen)})
    run = site_yml(hosts, site=site)
    changed = on_node(node, "end")["changed"]
    assert run.rc == 2
    for row in chosen:
        (text,) = row.check.values()
        assert text in run.output, row.id
    assert not [path for path in changed if "goldnode-" in path]
