"""`scripts/test --changed`: a change selects the tests that it can affect, and no file of the repository is forgotten."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.suite import selection
from tests.suite.__main__ import by_stage
from tests.suite.selection import TestFiles
from tests.suite.stages import HEAVY, Wanted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files() -> TestFiles:
    return TestFiles(ROOT, selection.known_files(ROOT))


def test_every_file_of_the_repository_is_covered(files: TestFiles) -> None:
    assert selection.uncovered(selection.known_files(ROOT), files) == [], (
        "no rule selects tests for these: add a row to AFFECTS in tests/suite/selection.py"
    )


def test_every_row_matches_a_file_and_names_tests_that_exist(files: TestFiles) -> None:
    known = selection.known_files(ROOT)
    for pattern, targets in selection.AFFECTS:
        assert any(selection.matches(path, pattern) for path in known), f"nothing matches {pattern}"
        for target in targets:
            kind, colon, name = target.partition(":")
            if target == selection.EVERYTHING:
                continue
            if kind == "marker":
                assert name in HEAVY
            elif colon:
                file, _, case = target.partition("[")
                assert file.partition("::")[0] in files.tests
                text = (ROOT / file.partition("::")[0]).read_text()
                assert f'id="{case[:-1]}"' in text or (ROOT / "molecule" / case[:-1]).is_dir(), (
                    target
                )
            else:
                assert any(
                    file == target or file.startswith(f"{target}/") for file in files.tests
                ), target


def test_every_molecule_scenario_has_its_row() -> None:
    patterns = {pattern for pattern, _ in selection.AFFECTS}
    for scenario in ROOT.glob("molecule/*/molecule.yml"):
        assert f"molecule/{scenario.parent.name}/*" in patterns


UNIT = "tests/unit"


@pytest.mark.parametrize(
    ("changed", "some", "none"),
    [
        # The folder that mirrors a package or a room, and the tests that import the module.
        (
            "src/goldnode/node/slots/write.py",
            {f"{UNIT}/node/slots/test_slots.py", f"{UNIT}/core/test_nodefile.py"},
            {f"{UNIT}/node/effective/test_grub.py", "tests/e2e/test_gate.py"},
        ),
        (
            "src/goldnode/core/files.py",
            {f"{UNIT}/core/test_files.py", f"{UNIT}/channels/test_product.py"},
            {"tests/disks/test_disk_boot.py"},
        ),
        (
            "src/goldnode/commands/mirror.py",
            {f"{UNIT}/test_cli.py", f"{UNIT}/commands/test_command_line.py"},
            {f"{UNIT}/lock/test_pool.py"},
        ),
        (
            "src/goldnode/ansible/action/goldnode_state.py",
            {f"{UNIT}/ansible/test_report.py"},
            set(),
        ),
        # A helper, through another helper.
        (
            "tests/unit/lock/archive.py",
            {f"{UNIT}/lock/test_mirror.py"},
            {f"{UNIT}/node/verdict/test_check.py"},
        ),
        (
            "tests/unit/lock/conftest.py",
            {f"{UNIT}/lock/test_mirror.py"},
            {f"{UNIT}/oci/test_oci.py"},
        ),
        # Data between the tests, and pages, by who names them.
        (
            "tests/unit/node/fixtures/smi/t4_595.xml",
            {f"{UNIT}/node/probe/test_smi.py", f"{UNIT}/prove/test_prove_run.py"},
            {f"{UNIT}/lock/test_pool.py"},
        ),
        (
            "docs/reference/capture.md",
            {f"{UNIT}/node/probe/test_capture_gpus.py"},
            {selection.LINT},
        ),
        ("docs/how-to/images.md", set(selection.PAGES), {"tests/e2e/test_gate.py"}),
        (
            "docs/reference/faults.md",
            {"tests/faults/test_scoreboard.py"},
            {"tests/e2e/test_gate.py"},
        ),
        (
            "catalog/stacks/r550.yml",
            {f"{UNIT}/commands/test_matrix.py"},
            {"tests/e2e/test_real.py"},
        ),
        ("site.yml", {f"{UNIT}/ansible/test_report.py"}, {"tests/e2e/test_removal.py"}),
        (
            "molecule/debian13/molecule.yml",
            {"tests/lab/test_molecule.py::test_scenario[debian13]"},
            {"tests/lab/test_molecule.py"},
        ),
        ("molecule/shared/verify.yml", {"tests/lab/test_molecule.py"}, {"tests/e2e/test_gate.py"}),
        (
            "tests/e2e/test_gate.py",
            {"tests/e2e/test_gate.py", f"{selection.TOOLS}[mypy]"},
            {"tests/e2e/test_plan.py"},
        ),
        # Deleted files.
        ("src/goldnode/node/gate/gone.py", {f"{UNIT}/node/gate/test_gate.py"}, set()),
    ],
)
def test_change_selects_tests_near_it(
    files: TestFiles, changed: str, some: set[str], none: set[str]
) -> None:
    selected = selection.select([changed], files)
    assert not selected.everything
    assert some <= selected.why.keys()
    assert not none & selected.why.keys()


RECIPES = {
    "A health check": [
        "src/goldnode/node/verdict/storage.py",
        "src/goldnode/node/state/kinds.py",
        "src/goldnode/facts/health.yml",
    ],
    "A role with its domain": [
        "src/goldnode/node/state/domains/tuning.py",
        "roles/host_tuning/tasks/main.yml",
        "src/goldnode/catalog/models.py",
        "src/goldnode/classdoc/compile.py",
    ],
    "A compatibility rule and a fact": ["src/goldnode/facts/known_bad.yml"],
    "A public report": [
        "src/goldnode/facts/symptoms.yml",
        "tests/reports/logs/amd-gpu-reset-failed.yml",
    ],
    "A container image": ["images/containers/matrix.yml"],
    "An inventory source or a drain": [
        "integrations/inventories/slurm.yml",
        "src/goldnode/ansible/inventory/goldnode_slurm.py",
        "src/goldnode/fleet/drain/slurm.py",
    ],
    "A metric, a panel or an alert": ["integrations/prometheus/goldnode-fleet.rules.yml"],
}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_recipe_names_tests_that_its_change_selects(files: TestFiles, recipe: str) -> None:
    """A recipe of docs/adding.md may name whole folders: then some tests of the folder are enough."""
    page = (ROOT / "docs/adding.md").read_text(encoding="utf-8")
    text = page[page.index(f"\n## {recipe}\n") :].split("\n## ")[1]
    command = re.search(r"Run `\.venv/bin/pytest ([^`]*)`", text)
    assert command, "the recipe has no command that runs its tests"
    selected = selection.select(RECIPES[recipe], files)
    for target in command[1].split():
        assert any(test == target or test.startswith(f"{target}/") for test in selected.why), target


def test_health_check_selects_a_fifth_of_the_tests_at_most(files: TestFiles) -> None:
    selected = selection.select(RECIPES["A health check"], files)
    assert len(selected.why) < len(files.tests) / 5
    assert not any(files.marks[test.partition("::")[0]] for test in selected.why)


def test_data_selects_no_linter_that_excludes_it(files: TestFiles) -> None:
    """A linter takes longer than the tests of a health check."""
    config = yaml.safe_load((ROOT / ".config/ansible-lint.yml").read_text(encoding="utf-8"))
    excluded = {path.removesuffix("/") for path in config["exclude_paths"]}
    assert {pattern.removesuffix("/*") for pattern in selection.EXCEPT["*.yml"]} <= excluded
    linter = f"{selection.TOOLS}[ansible-lint]"
    assert linter not in selection.select(["src/goldnode/facts/health.yml"], files).why
    assert linter in selection.select(["roles/kernel/tasks/main.yml"], files).why


def test_selection_names_what_it_leaves(files: TestFiles) -> None:
    lines = selection.select(["src/goldnode/node/state/kinds.py"], files).left(files)
    assert "tests/faults/test_remedies.py" in lines[0]
    assert "tests on nodes, images or disks" in lines[1]
    assert "through other modules" in lines[2]
    assert selection.select(["docs/how-to/images.md"], files).left(files) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("pyproject.toml", "pyproject.toml decides how every test runs"),
        ("new/place.txt", "new/place.txt is covered by no row"),
        # Only linters know it.
        ("new/place.yml", "new/place.yml is covered by no row"),
        ("tests/new_helper.py", "tests/new_helper.py is covered by no row"),
    ],
)
def test_change_selects_everything(files: TestFiles, changed: str, why: str) -> None:
    assert selection.select([changed], files).everything.startswith(why)


def test_named_test_is_dropped_when_its_whole_file_is_chosen(files: TestFiles) -> None:
    selected = selection.select(
        ["molecule/debian13/molecule.yml", "molecule/shared/create.yml"], files
    )
    assert [test for test in selected.why if test.startswith("tests/lab/test_molecule.py")] == [
        "tests/lab/test_molecule.py"
    ]


def test_causes_are_folded() -> None:
    found = selection.Selection()
    for name in "abcde":
        found.add(f"tests/unit/test_{name}.py", "imports goldnode.x")
    found.add("tests/unit/test_a.py", "a later cause")
    found.add("tests/e2e/test_f.py", "site.yml")
    assert found.folded() == [
        "site.yml: e2e/test_f.py",
        "imports goldnode.x: unit/test_a.py, unit/test_b.py, unit/test_c.py and 2 more",
    ]


MARKS: dict[str, set[str]] = {
    "tests/unit/test_plain.py": set(),
    "tests/unit/test_mixed.py": {"images"},
    "tests/lab/test_lab.py": {"lab"},
}


@pytest.mark.parametrize(
    ("wanted", "chosen", "unit", "nodes", "left"),
    [
        (Wanted(), list(MARKS), list(MARKS)[:2], list(MARKS)[1:], {}),
        (Wanted(quick=True), list(MARKS)[2:], [], [], {"not with --quick": list(MARKS)[2:]}),
        (Wanted(), ["tests/lab/test_lab.py::test_a"], [], ["tests/lab/test_lab.py::test_a"], {}),
        (Wanted(), ["tests/unit/test_deleted.py"], [], [], {}),
    ],
)
def test_chosen_tests_are_shared_out(
    wanted: Wanted, chosen: list[str], unit: list[str], nodes: list[str], left: dict[str, list[str]]
) -> None:
    stages, excluded = by_stage(chosen, MARKS, wanted)
    assert {name: sorted(tests) for name, tests in stages.items()} == {
        "unit": sorted(unit),
        "nodes": sorted(nodes),
    }
    assert excluded == left


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for step in ("init -q -b main", "commit -q --allow-empty -m first"):
        git(tmp_path, *step.split())
    (tmp_path / "old").write_text("1")
    (tmp_path / "moved").write_text("content that git would see as moved\n" * 9)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "second")
    return tmp_path


def git(directory: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True)


def test_changes_are_those_since_the_last_commit_but_one_without_a_remote(repository: Path) -> None:
    assert selection.changed_files(repository, None)[1] == ["moved", "old"]


def test_changes_are_committed_staged_unstaged_untracked_and_both_names_of_a_move(
    repository: Path,
) -> None:
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    (repository / "committed").write_text("")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "third")
    git(repository, "mv", "moved", "new name")
    (repository / "old").write_text("2")
    (repository / "untracked").write_text("")
    since, changed = selection.changed_files(repository, None)
    assert since.startswith("origin/main (")
    assert changed == ["committed", "moved", "new name", "old", "untracked"]
    assert selection.changed_files(repository, "HEAD")[1] == [
        "moved",
        "new name",
        "old",
        "untracked",
    ]


def test_an_unknown_commit_is_refused(repository: Path) -> None:
    with pytest.raises(SystemExit, match=r"--changed nowhere: .*nowhere"):
        selection.changed_files(repository, "nowhere")
