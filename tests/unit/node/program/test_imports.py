"""The imports of a check, which are a large part of its time, and the command line that it reads without argparse."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from goldnode.node.program import arguments as cli_args
from goldnode.node.program import main as program

SOURCE = Path(program.__file__).parents[3]


def test_a_check_begins_without_what_it_does_not_need(tmp_path: Path) -> None:
    """Each of these costs a check 3 to 20 ms of processor time."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from goldnode.node.program import main as program; from goldnode.node.state import engine\n"
        f"host = program.Host({str(tmp_path)!r}); host.write('/etc/x', b'x'); assert host.glob('/etc', '?') == ['/etc/x']\n"
        "assert host.text('/etc/x') == 'x' and host.exists('/etc') and program.check_options(['check', '--passive'])\n"
        "print(*sys.modules)"
    )
    reported = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    slow = {
        "argparse",
        "calendar",
        "dataclasses",
        "difflib",
        "inspect",
        "pathlib",
        "platform",
        "shutil",
        "tempfile",
        "typing",
        "urllib.parse",
    }
    assert not slow & set(reported)
    assert not {
        f"goldnode.node.state.{name}"
        for name in ("applied", "apply", "record", "removal", "rollback")
    } & set(reported)


def test_a_check_with_flags_alone_is_understood_as_argparse_does() -> None:
    flags = [
        "--format=json",
        "--json",
        "--quiet",
        "--no-write",
        "--no-gate",
        "--passive",
        "--cached",
    ]
    for size in range(len(flags) + 1):
        for chosen in itertools.combinations(flags, size):
            given = ["check", *chosen, *chosen[:1]]
            assert vars(program.check_options(given)) == vars(cli_args.parse(given))


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["plan"],
        ["--json"],
        ["check", "--class", "x"],
        ["check", "--root", "/x"],
        ["check", "--from=x"],
        ["check", "--pass"],
        ["check", "x"],
    ],
)
def test_anything_else_is_left_to_argparse(given: list[str]) -> None:
    assert program.check_options(given) is None
