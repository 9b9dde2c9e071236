"""Canaries hold each hardware variant of the class, and `rollout check` names those that none holds."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.simulators.fleet import fleet, put, store
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.rollout.test_rollout_invariants import quick

from goldnode.cli import main
from goldnode.commands.fleet.report import now
from goldnode.documents.rollout import RolloutPool
from goldnode.fleet.rollout.cover import canaries, counts, uncovered
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import FleetNode
from goldnode.fleet.rollout.simulate import Simulation, made_up, of_variant
from goldnode.fleet.shared.variants import HardwareVariant

OLD, NEW = HardwareVariant("VBIOS", "96.00.01"), HardwareVariant("VBIOS", "96.00.02")
RARE, USUAL = HardwareVariant("GPU board", "B"), HardwareVariant("GPU board", "A")


def nodes(count: int, **values: object) -> list[FleetNode]:
    return [
        FleetNode(f"n{number:02}", rack=f"r{number // 4}", in_service=True, **values)  # type: ignore[arg-type]
        for number in range(count)
    ]


def test_each_variant_has_two_canaries_and_the_rest_spread_over_racks() -> None:
    has = {node.name: frozenset({OLD, USUAL}) for node in nodes(24)}
    has["n07"] = has["n21"] = has["n22"] = frozenset({OLD, RARE})
    has["n13"] = frozenset({NEW, USUAL})
    chosen = canaries("r1", nodes(24), has, least=6)
    assert len(chosen) == 6
    assert "n13" in chosen
    assert len({"n07", "n21", "n22"} & set(chosen)) == 2
    assert len({int(name[1:]) // 4 for name in chosen}) >= 5
    assert not uncovered(counts(nodes(24), has, chosen))


def test_lemons_and_tagged_nodes_are_no_canary() -> None:
    has = {node.name: frozenset({OLD}) for node in nodes(3)} | {"n02": frozenset({NEW})}
    members = nodes(3)
    members[2] = replace(members[2], tags=("reserved",))
    chosen = canaries("r1", members, has, least=1, never=("reserved",))
    assert "n02" not in chosen
    (missing,) = uncovered(counts(members, has, chosen), each=1)
    assert (missing.variant, missing.nodes, missing.canaries) == (NEW, 1, 0)


@quick(25)
@given(
    st.lists(st.frozensets(st.sampled_from("abcdefgh"), max_size=4), min_size=1, max_size=30),
    st.integers(1, 3),
)
def test_every_variant_is_held_as_often_as_there_are_nodes(
    letters: list[frozenset[str]], each: int
) -> None:
    members = nodes(len(letters))
    has = {
        node.name: frozenset(HardwareVariant("kind", letter) for letter in own)
        for node, own in zip(members, letters, strict=True)
    }
    chosen = canaries("r1", members, has, least=1, each=each)
    rows = counts(members, has, chosen)
    assert not uncovered(rows, each)
    assert len(chosen) <= max(1, each * len(rows))
    assert chosen == canaries("r1", members, has, least=1, each=each)


def test_change_that_breaks_one_board_in_a_hundred_is_stopped_by_its_canaries(
    tmp_path: Path,
) -> None:
    """4,000 nodes, 1 % of them of the bad board: a trial had 1,581 touched nodes with canaries by chance."""
    limits = ("limits: {planned: 4, failed: 8, total: 10}\n", "")
    found = documents.settings(
        tmp_path, limits, ("nodes: 2, spread: leaf", "nodes: 8"), ("nodes: 6", "nodes: 60")
    )
    members = made_up(4000, found.origin)
    bad = of_variant(members, 0.01)
    has = {node.name: frozenset({RARE if node.name in bad else USUAL}) for node in members}
    touched = []
    for seed in range(5):
        chosen = canaries(f"r{seed}", members, has, least=8)
        pools = {"canary": RolloutPool(hosts=chosen, nodes=None, spread=None)}
        run = Simulation(replace(found, pools=pools), members, parse(("variant=1%",)), seed)
        touched.append(run.run().touched)
    assert statistics.median(touched) <= 40


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve nodes of one class, two of which have another VBIOS."""
    directory = tmp_path_factory.mktemp("captures")
    members, at = fleet(12, class_="l4"), now()
    for number in (3, 8):
        members[number].change(put("gpus/0/vbios", "96.00.99"), at - timedelta(days=2))
    return store(directory, members, [at - timedelta(hours=1)])


def run(directory: Path, captures: Path, *words: str) -> Result:
    members = json.loads(
        CliRunner()
        .invoke(main, ["fleet", "hardware", "--data", str(captures), "--format", "json"])
        .stdout
    )
    names = sorted({row["node"] for row in members["parts"]})
    inventory = directory / "hosts.yml"
    hosts = "".join(f"        {name}: {{goldnode_rack: r{name[-1]}}}\n" for name in names)
    inventory.write_text(
        f"all:\n  children:\n    l4:\n      vars: {{goldnode_class: l4}}\n      hosts:\n{hosts}"
    )
    path = documents.written(directory, ("spread: leaf", "spread: rack")).source.file
    return CliRunner().invoke(
        main,
        ["rollout", words[0], str(path), "-i", str(inventory), *words[1:]],
        env={"GOLDNODE_FLEET_DATA": str(captures)},
    )


def test_command_prints_a_pool_that_the_document_takes(tmp_path: Path, captures: Path) -> None:
    done = run(tmp_path, captures, "canaries", "--nodes", "3")
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()[:2]
    assert first == "pools:"
    text = documents.TEXT.replace("  canary: {nodes: 2, spread: leaf}", second)
    documents.written(tmp_path, text=text)
    row = next(line for line in done.stdout.splitlines() if "96.00.99" in line)
    assert row.split()[-2:] == ["2", "2"]


def test_check_names_variants_that_no_canary_has(tmp_path: Path, captures: Path) -> None:
    done = run(tmp_path, captures, "check", "--format", "json")
    messages = [row for row in json.loads(done.stdout)["findings"] if row["code"] == "cover"]
    held = run(tmp_path, captures, "canaries", "--nodes", "2", "--format", "json")
    chosen = json.loads(held.stdout)["canaries"]
    assert len(chosen) >= 2
    for finding in messages:
        assert "VBIOS 96.00.99 (2 nodes)" in finding["message"]
        assert "goldnode rollout canaries" in finding["remedy"]
    assert len(messages) == 1


def test_canaries_without_captures_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {n1: {goldnode_class: l4}}}\n")
    path = documents.written(tmp_path).source.file
    done = CliRunner().invoke(
        main,
        [
            *("rollout", "canaries", str(path), "-i", str(tmp_path / "hosts.yml")),
            *("--data", str(tmp_path / "none")),
        ],
    )
    assert done.exit_code == 2
    assert "Traceback" not in done.output
