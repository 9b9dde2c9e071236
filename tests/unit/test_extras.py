"""Commands of an installation without extras: every one can be listed and explained, and names the extra that it lacks."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from goldnode.core.extras import EXTRAS

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


def base() -> set[str]:
    """Return the canonical names of the distributions that goldnode without extras installs."""
    found: set[str] = set()
    todo = ["goldnode"]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        for line in requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(requirement.name))
    return found


def without_extras(tmp_path: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where only the base requirements can be imported."""
    mine = base()
    blocked = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & mine
    }
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
        "check -c cpu_only",
        "class export cpu_only",
        "images list",
        "disks list",
        "xid 79",
        "node-program --out n",
        "matrix",
        "schema site",
    ],
)
def test_a_command_works_without_extras(tmp_path: Path, line: str) -> None:
    done = without_extras(tmp_path, "from goldnode.cli import main; main()", *line.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("plan -i node1,", "ansible"),
        ("adopt node1", "ansible"),
        ("disks update -i node1, --image . node1", "ansible"),
        ("check -c cpu_only --image docker:debian:12", "images"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(tmp_path: Path, line: str, extra: str) -> None:
    done = without_extras(tmp_path, "from goldnode.cli import main; main()", *line.split())
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    option = "--include-deps " if extra == "ansible" else ""
    assert f"pipx install --force {option}'goldnode[{extra}]'" in done.stderr


def test_the_extras_are_those_of_the_project() -> None:
    """A module of an extra is listed in `goldnode.core.extras.EXTRAS`, which names the extra in messages."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert EXTRAS.keys() | {"all", "dev", "docs", "pins"} == declared.keys()
    owners = packages_distributions()
    for extra, modules in EXTRAS.items():
        names = {canonicalize_name(Requirement(line).name) for line in declared[extra]}
        found = {canonicalize_name(owner) for module in modules for owner in owners[module]}
        assert names <= found, f"{extra}: no module of {names - found} is listed"


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
            [sys.executable, "-c", script, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "goldnode_gpus" in done.stdout or "test_passes" in done.stdout
