"""What commands import before they do anything: the shell completes them, and `--help` shows them, at once."""

from __future__ import annotations

import subprocess
import sys

import click

from goldnode.cli import main

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
