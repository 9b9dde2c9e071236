"""The man pages and docs/reference/commands.md have every command and option of both programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from goldnode import manual
from goldnode.cli import main
from goldnode.cli import main as program
from goldnode.nodepackage.manpages import ManualEntry, man, of_goldnode, of_node

PAGE = Path(__file__).parents[2] / "docs/reference/commands.md"
NODE = {
    "check",
    "plan",
    "apply",
    "capture",
    "diagnose",
    "ack",
    "watch-log",
    "slot",
    "serve",
    "policy",
}


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == manual.page(), (
        "run `python -m goldnode.manual --markdown docs/reference/commands.md`"
    )


def test_every_command_is_listed_and_described() -> None:
    mine = {entry.name: entry for entry in (*of_goldnode(main), *of_node())}
    for name in program.list_commands(click.Context(program)):
        assert f"goldnode {name}" in mine
    assert {f"goldnode-node {name}" for name in NODE} <= mine.keys()
    assert [name for name, entry in mine.items() if not entry.text[0]] == []
    assert "--from FILE" in dict(mine["goldnode-node check"].options)


def page_of(text: str, *options: tuple[str, str]) -> str:
    return man([ManualEntry("goldnode", "", [text], list(options))])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("print  JSON", "Print JSON."),
        ("nvidia-smi output; - for stdin", "nvidia\\-smi output; \\- for stdin."),
        ("", "\\&"),
    ],
)
def test_description_of_an_option_gets_a_capital_and_a_full_stop(text: str, shown: str) -> None:
    assert f".TP\n.B \\-a\n{shown}\n" in page_of("Do it.", ("-a", text))


def test_page_escapes_the_special_characters_of_roff() -> None:
    page = page_of(".TH of a-b\\c\n'x")
    assert ".nf\n\\&.TH of a\\-b\\ec\n\\&'x\n.fi\n" in page


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("name", ["goldnode", "goldnode-node"])
def test_man_reads_the_page_without_a_warning(name: str, tmp_path: Path) -> None:
    entries = of_goldnode(main) if name == "goldnode" else of_node()
    page = tmp_path / f"{name}.1"
    page.write_text(man(entries), encoding="utf-8")
    argv = ["man", "--warnings", "-E", "UTF-8", "-l", str(page)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SEE ALSO" in done.stdout
