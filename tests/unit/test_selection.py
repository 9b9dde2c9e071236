"""`scripts/test --changed`: a change selects the tests that it can affect, and no file of the repository is forgotten."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.suite import selection
from tests.suite.__main__ import by_stage
from tests.suite.imports import Imports, is_test
from tests.suite.stages import HEAVY, Wanted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def imports() -> Imports:
    return Imports(ROOT, selection.known_files(ROOT))


@pytest.fixture(scope="module")
def marks() -> dict[str, set[str]]:
    """Test file → the markers that its text names. pytest's collection would give the same and takes long."""
    files = [
        path for path in selection.known_files(ROOT) if is_test(path) and (ROOT / path).is_file()
    ]
    return {
        file: {mark for mark in HEAVY if f"pytest.mark.{mark}" in (ROOT / file).read_text()}
        for file in files
    }


def test_every_file_of_the_repository_is_covered(imports: Imports) -> None:
    found = selection.uncovered(selection.known_files(ROOT), imports)
    assert found == [], (
        "no test imports these, and no row of AFFECTS in tests/suite/selection.py names them: add one"
    )


def test_every_row_matches_a_file_and_names_tests_that_exist(marks: dict[str, set[str]]) -> None:
    files = selection.known_files(ROOT)
    later = {"scripts/prove-gpu", "tests/durations.json"}
    for pattern, targets in selection.AFFECTS:
        assert pattern in later or any(selection.matches(path, pattern) for path in files), (
            f"nothing matches {pattern}"
        )
        for target in targets:
            kind, colon, name = target.partition(":")
            if target == selection.EVERYTHING:
                continue
            if colon and kind == "marker":
                assert name in HEAVY
            elif colon and kind == "module":
                assert {
                    f"src/{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")
                } & set(files) or name.startswith("tests."), target
            elif "::" in target:
                file, _, case = target.partition("[")
                assert file.partition("::")[0] in marks
                text = (ROOT / file.partition("::")[0]).read_text()
                assert f'id="{case[:-1]}"' in text or (ROOT / "molecule" / case[:-1]).is_dir(), (
                    target
                )
            else:
                assert any(file == target or file.startswith(f"{target}/") for file in marks), (
                    target
                )


def test_every_molecule_scenario_has_its_row() -> None:
    for scenario in ROOT.glob("molecule/*/molecule.yml"):
        assert any(
            pattern == f"molecule/{scenario.parent.name}/*" for pattern, _ in selection.AFFECTS
        ), scenario


SLOTS, GPT = "src/goldnode/node/state/slots.py", "src/goldnode/disks/gpt.py"


@pytest.mark.parametrize(
    ("changed", "some", "none"),
    [
        # Imports, within functions too, and through packages.
        (
            GPT,
            {"tests/unit/disks/test_disk_assemble.py", "tests/disks/test_disk_boot.py"},
            {"tests/unit/node/probe/test_grub.py"},
        ),
        # A program that subprocesses run.
        (
            SLOTS,
            {
                "tests/unit/node/slots/test_slots.py",
                "tests/e2e/test_gate.py",
                "tests/disks/test_disk_slots.py",
            },
            {"tests/unit/fleet/drain/test_drain.py"},
        ),
        (
            "src/goldnode/commands/mirror.py",
            {"tests/unit/test_cli.py"},
            {"tests/unit/node/probe/test_grub.py"},
        ),
        (
            "src/goldnode/ansible/action/goldnode_state.py",
            {"tests/unit/ansible/test_report.py", "tests/e2e/test_plan.py"},
            set(),
        ),
        # A fixture's import affects those who use the fixture.
        (
            "tests/unit/images/registries.py",
            {"tests/unit/images/test_publish.py"},
            {"tests/unit/node/verdict/test_check.py"},
        ),
        (
            "site.yml",
            {"tests/e2e/test_removal.py", "tests/unit/ansible/test_report.py"},
            {"tests/unit/node/probe/test_grub.py"},
        ),
        (
            "molecule/debian13/molecule.yml",
            {"tests/lab/test_molecule.py::test_scenario[debian13]"},
            {"tests/lab/test_molecule.py"},
        ),
        ("molecule/shared/verify.yml", {"tests/lab/test_molecule.py"}, {"tests/e2e/test_gate.py"}),
        (
            "docs/reference/faults.md",
            {"tests/faults/test_scoreboard.py"},
            {"tests/e2e/test_gate.py"},
        ),
        (
            "docs/how-to/images.md",
            {"tests/unit/test_hygiene.py"},
            {"tests/e2e/test_gate.py", "tests/unit/test_lint.py"},
        ),
        (
            "catalog/stacks/r550.yml",
            {
                "tests/unit/commands/test_matrix.py",
                "tests/e2e/test_real.py",
                "tests/images/test_lock.py",
            },
            set(),
        ),
        (
            "tests/e2e/test_gate.py",
            {"tests/e2e/test_gate.py", "tests/unit/test_lint.py::test_tool_finds_nothing[mypy]"},
            {"tests/e2e/test_plan.py"},
        ),
        # Deleted files.
        ("src/goldnode/node/gone.py", {"tests/e2e/test_gate.py"}, set()),
    ],
)
def test_change_selects(
    imports: Imports, marks: Mapping[str, set[str]], changed: str, some: set[str], none: set[str]
) -> None:
    found = selection.select([changed], imports, marks)
    assert not found.everything
    assert some <= found.why.keys() - none
    assert not none & found.why.keys()


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
def test_change_selects_everything(
    imports: Imports, marks: Mapping[str, set[str]], changed: str, why: str
) -> None:
    assert selection.select([changed], imports, marks).everything.startswith(why)


def test_a_named_test_runs_whole_file_when_that_is_chosen_too(
    imports: Imports, marks: Mapping[str, set[str]]
) -> None:
    found = selection.select(
        ["molecule/debian13/molecule.yml", "molecule/shared/create.yml"], imports, marks
    )
    assert [test for test in found.why if test.startswith("tests/lab/test_molecule.py")] == [
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


COLLECTED = {
    "tests/test_unit.py": {"tests/test_unit.py::test_a": {"parametrize"}},
    "tests/test_lab.py": {
        "tests/test_lab.py::test_a": {"lab"},
        "tests/test_lab.py::test_b": {"lab", "long"},
    },
    "tests/test_long.py": {"tests/test_long.py::test_a": {"qemu", "long"}},
    "tests/test_both.py": {
        "tests/test_both.py::test_a": set(),
        "tests/test_both.py::test_b": {"images"},
    },
}


@pytest.mark.parametrize(
    ("wanted", "chosen", "unit", "nodes", "left"),
    [
        (
            Wanted(),
            ["tests/test_unit.py", "tests/test_lab.py"],
            ["tests/test_unit.py"],
            ["tests/test_lab.py"],
            {},
        ),
        (Wanted(), ["tests/test_both.py"], ["tests/test_both.py"], ["tests/test_both.py"], {}),
        (Wanted(), ["tests/test_long.py"], [], [], {"only with --all": ["tests/test_long.py"]}),
        (Wanted(long=True), ["tests/test_long.py"], [], ["tests/test_long.py"], {}),
        (
            Wanted(quick=True),
            ["tests/test_lab.py"],
            [],
            [],
            {"not with --quick": ["tests/test_lab.py"]},
        ),
        (
            Wanted(),
            ["tests/test_lab.py::test_b"],
            [],
            [],
            {"only with --all": ["tests/test_lab.py::test_b"]},
        ),
        # A test that the table still names by an old name is not lost.
        (Wanted(), ["tests/test_lab.py::test_gone"], [], ["tests/test_lab.py"], {}),
    ],
)
def test_chosen_tests_are_shared_out(
    wanted: Wanted, chosen: list[str], unit: list[str], nodes: list[str], left: dict[str, list[str]]
) -> None:
    assert by_stage(dict.fromkeys(chosen, ""), COLLECTED, wanted) == (
        {"unit": unit, "nodes": nodes},
        left,
    )


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
