"""Commands of an installation without extras: every one can be listed and explained, and names the extra that it lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from release.dependencies import advisories
from tests import alone
from tests.release_files import export

from goldnode.cli import main
from goldnode.core.extras import EXTRAS, installed

ROOT = Path(__file__).parents[2]
# Refuses modules as an installation without them does.
RUNNER = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""
WALK = """
import click
from goldnode.cli import main
def walk(command, context):
    assert command.get_help(context)
    count = 1
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        found = command.get_command(context, name)
        count += walk(found, click.Context(found, context, name))
    return count
print(walk(main, click.Context(main, None, "goldnode")))
"""


def without_extras(tmp_path: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where only the base requirements can be imported."""
    blocked = alone.blocked()
    assert {"ansible", "docker", "pytest", "securesystemslib"} <= blocked
    path = tmp_path / "runner.py"
    path.write_text(f"BLOCKED = {sorted(blocked)!r}\n{RUNNER}{script}")
    command = [sys.executable, "-I", str(path), *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_every_command_explains_itself_without_extras(tmp_path: Path) -> None:
    done = without_extras(tmp_path, WALK)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 54


@pytest.mark.parametrize(
    "line",
    [
        "cache key --help",
        "check -c cpu_only",
        "check-node {root}/tests/unit/node/fixtures/smi/rtx4090_535.xml",
        "class export cpu_only",
        "classes",
        "images list",
        "disks list",
        "lock debian12_cpu --diff {root}/catalog/stacks/debian12_cpu.lock.yml",
        "mirror status --help",
        "modules matrix --help",
        "slurm config -c h100_sxm5_80gb --nodes n[1-4]",
        "xid 79",
        "explain 79",
        "node-program --out n",
        "matrix",
        "schema site",
    ],
)
def test_a_command_works_without_extras(tmp_path: Path, line: str) -> None:
    words = line.format(root=ROOT).split()
    done = without_extras(tmp_path, "from goldnode.cli import main; main()", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("plan -i node1,", "ansible"),
        ("adopt node1", "ansible"),
        ("disks update -i node1, --image . node1", "ansible,images"),
        ("check -c cpu_only --image docker:debian:12", "images"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(tmp_path: Path, line: str, extra: str) -> None:
    done = without_extras(tmp_path, "from goldnode.cli import main; main()", *line.split())
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    option = "--include-deps " if "ansible" in extra else ""
    assert f"pipx install --force {option}'goldnode[{extra}]'" in done.stderr


def test_the_extras_are_those_of_the_project() -> None:
    """A module of an extra is listed in `goldnode.core.extras.EXTRAS`, which names the extra in messages."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert EXTRAS.keys() | {"all", "dev", "docs", "pins"} == declared.keys()
    owners = packages_distributions()
    for extra, modules in EXTRAS.items():
        if not installed(extra):  # requirements/dev.lock has it, and this environment is older
            continue
        names = {canonicalize_name(Requirement(line).name) for line in declared[extra]}
        found = {canonicalize_name(owner) for module in modules for owner in owners[module]}
        # A lower bound of a package that only others need.
        found |= {canonicalize_name(row.package) for row in advisories()}
        assert names <= found, f"{extra}: no module of {names - found} is listed"


# Extra -> tests of the commands that docs/how-to/install.md names for it. They run with this extra alone.
PROMISED = {
    "ansible": {
        "init": ["tests/unit/commands/test_init.py"],
        "apply": ["tests/unit/commands/test_init.py"],
        "plan": ["tests/unit/fleet/nodes/test_plan.py"],
        "adopt": ["tests/unit/fleet/nodes/test_adopt.py"],
        "import": ["tests/unit/fleet/nodes/test_import_fleet.py"],
    },
    "images": {
        "images": [
            "tests/unit/images/test_publish_command.py",
            "tests/unit/evidence/test_command.py",
            "tests/unit/inspect/test_inspect_command.py",
        ]
    },
    "updates": {"facts": ["tests/unit/facts/test_facts_update.py"]},
    "fleet": {
        "rollout": [
            "tests/unit/fleet/rollout/test_rollout_check.py",
            "tests/unit/fleet/rollout/test_rollout_simulate.py",
            "tests/unit/fleet/rollout/test_rollout_view.py",
        ],
        "fleet serve": ["tests/unit/fleet/service/test_app.py"],
        "fleet store": ["tests/unit/fleet/store/test_fleet_nodes_command.py"],
    },
    "report": {
        "fleet ingest": ["tests/unit/fleet/ingest/test_ingest.py"],
        "fleet report": ["tests/unit/fleet/report/test_report_command.py"],
        "fleet diff": ["tests/unit/fleet/report/test_report_command.py"],
        "fleet sql": ["tests/unit/fleet/report/test_report_command.py"],
        "fleet hardware": ["tests/unit/fleet/report/test_fleet_hardware.py"],
        "fleet prune": ["tests/unit/fleet/ingest/test_prune.py"],
        "fleet copy": ["tests/unit/fleet/ingest/test_bucket.py"],
    },
    "floors": {
        "floors": ["tests/unit/floors/test_floors_command.py"],
        "dual": ["tests/unit/dual/test_dual_compare.py"],
    },
}


# `fleet report --nodes` reads a file of the store, which needs the extra `fleet` too; the page says it.
WITH_OTHERS = (
    "tests/unit/fleet/report/test_report_command.py::test_groups_and_expected_nodes_come_from_files",
)


def promised() -> dict[str, list[str]]:
    """Return the commands that the table of docs/how-to/install.md names for each extra; "" is goldnode alone."""
    text = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `goldnode(?:\[(\w+)\])?` \| [^|]* \|([^|]*)\|", text, re.MULTILINE)
    return {extra: re.findall(r"`([^`]+)`", commands) for extra, commands in rows}


def test_every_extra_is_in_the_table_and_each_command_of_it_exists_and_is_run() -> None:
    found = promised()
    assert found.keys() - {""} == EXTRAS.keys() | {"all"}
    base = [
        mark
        for mark in test_a_command_works_without_extras.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    ]
    lines = [line.split()[0] for line in base[0].args[1]]
    for extra, commands in found.items():
        for line in commands:
            command: click.Command | None = main
            for word in line.split():
                assert isinstance(command, click.Group)
                command = command.get_command(click.Context(command), word)
            assert command is not None, f"{extra}: there is no goldnode {line}"
        assert set(commands) <= set(PROMISED.get(extra, lines)), (
            f"{extra or 'goldnode'}: run each command of its row"
        )


def run_alone(extra: str, *tests: str) -> None:
    """Run tests with one extra alone. The tests themselves, and fixtures that they share, may import everything."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest"]
    fixtures = ["conftest", "unit.conftest", *(["unit.fleet.conftest"] if extra == "fleet" else [])]
    plugins = [word for name in (*fixtures, "alone") for word in ("-p", f"tests.{name}")]
    environment = {**os.environ, alone.VARIABLE: extra}
    done = subprocess.run(
        [*argv, *plugins, *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]


def test_images_are_promoted_and_rolled_back_with_their_extra_alone() -> None:
    run_alone(
        "images",
        "tests/unit/images/test_publish_command.py::test_from_the_store_to_stable_and_back",
    )


@pytest.mark.long
@pytest.mark.parametrize("extra", PROMISED)
def test_commands_of_an_extra_run_with_it_alone(extra: str) -> None:
    tests = sorted({test for tests in PROMISED[extra].values() for test in tests})
    run_alone(extra, *tests, *(word for test in WITH_OTHERS for word in ("--deselect", test)))


@pytest.mark.long
@pytest.mark.parametrize("extra", ["", *(name for name in EXTRAS if name != "test")])
def test_pip_installs_what_the_other_tests_take_for_installed(extra: str, tmp_path: Path) -> None:
    """Install the extra by pip from the index, and run the first command of its row."""
    python = str(tmp_path / "venv/bin/python")
    source = str(export(tmp_path / "goldnode")) + (f"[{extra}]" if extra else "")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", source], check=True)
    listed = [python, "-m", "pip", "list", "--format", "freeze"]
    there = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    names = {canonicalize_name(re.split(r"==| @ ", line)[0]) for line in there.splitlines()}
    wanted = alone.distributions(extra)
    assert names - ({"pip", "setuptools"} - wanted) == wanted
    for line in promised()[extra]:
        command = [str(tmp_path / "venv/bin/goldnode"), *line.split(), "--help"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_the_pytest_plugin_does_not_need_testinfra(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text("def test_passes():\n    assert True\n")
    script = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "testinfra":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Without())
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:testinfra", "--fixtures"] + sys.argv[1:]))
"""
    # pytest would load testinfra by its entry point, which an installation without it does not have.
    for words in ([], ["--collect-only"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "goldnode_gpus" in done.stdout or "test_passes" in done.stdout
