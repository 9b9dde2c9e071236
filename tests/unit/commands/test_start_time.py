"""What commands import before they do anything: the shell completes them, and `--help` shows them, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from goldnode.catalog import models
from goldnode.cli import main
from goldnode.core import site
from goldnode.documents import base as documents
from goldnode.lock import model as lock

# Each takes from 5 ms to a second to import. The first word of a command line needs none of them.
_SLOW = (
    "ansible",
    "asyncio",
    "asyncssh",
    "cryptography",
    "duckdb",
    "email",
    "http",
    "importlib.metadata",
    "jinja2",
    "logging",
    "pyarrow",
    "pydantic",
    "sqlalchemy",
    "ssl",
    "subprocess",
    "yaml",
)
# The help of a group with these may take longer; each with its reason.
_ALLOWED: dict[str, set[str]] = {}

# One process, which forks for each command: they all begin with what `goldnode` itself imports.
_HELP = """
import os, sys
import click
from goldnode.cli import main
slow = sys.argv[1].split()
print("goldnode", *sorted(set(slow) & set(sys.modules)), flush=True)
for name in main.list_commands(click.Context(main)):
    if not os.fork():
        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main([name, "--help"], standalone_mode=False)
        os.write(out, (" ".join([name, *sorted(set(slow) & set(sys.modules))]) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


def test_help_of_a_command_imports_none_of_the_slow_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELP, " ".join(_SLOW)], capture_output=True, text=True, check=True
    )
    imported = {name: set(rest) for name, *rest in map(str.split, done.stdout.splitlines())}
    names = {*main.list_commands(click.Context(main))}
    assert set(imported) == names | {"goldnode"}
    assert {name: slow for name, slow in imported.items() if slow} == _ALLOWED


def test_a_command_ends_without_a_last_collection() -> None:
    """It would walk over all modules and models: a fifth of the CPU time of a check."""
    script = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000, gc.isenabled()))\n"
        "from goldnode.cli import main\n"
        "main(['xid', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True True"


def test_plans_of_a_fleet_need_no_models() -> None:
    """Of 20 hosts, pydantic was a tenth of the cost."""
    script = (
        "import sys, goldnode.fleet.nodes.plan; print(*{'pydantic', 'yaml'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_check_of_a_class_imports_no_module_that_it_does_not_use(tmp_path: Path) -> None:
    """With the files of the catalog in the cache, as a run before it leaves them."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        "from goldnode.cli import main\n"
        "main(['check', '--class', 'h100_sxm5_80gb'])"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GOLDNODE_CACHE": str(tmp_path)},
        )
    loaded = set(done.stdout.splitlines()[-1].split())
    unused = {"logging", "subprocess", "tempfile", "zipfile", "yaml", "goldnode.core.program_file"}
    assert "pydantic" in loaded
    assert loaded & unused == set()


@pytest.mark.parametrize("model", [site, models, lock, documents])
def test_models_have_annotations_that_pydantic_need_not_compile(model: ModuleType) -> None:
    """A check makes 88 models with 430 fields: 8 of its 230 ms were the compilation of their annotations."""
    texts = [
        f"{name}.{field}"
        for name, kind in vars(model).items()
        if isinstance(kind, type) and kind.__module__ == model.__name__
        for field, annotation in vars(kind).get("__annotations__", {}).items()
        if isinstance(annotation, str)
    ]
    assert texts == []
