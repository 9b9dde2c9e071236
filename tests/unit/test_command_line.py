"""The command line as a whole: every command and option has help, every report has `--format`, and the names are the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.commands.output import FormatOption, Option

# Commands without a report: they print or write one file in its own format.
FILES = ("class export", "completion", "node-program", "schema")
# First words of a command's help. Add a verb here, in the imperative.
VERBS = set(
    """
    Boot Build Check Compare Copy Create Download Explain Export Fetch Inspect List Lock Point Print Propose Push
    Remove Resolve Run Show Turn Verify Write
    """.split()
)
# One name for one thing: name that must not come back -> the name to use.
SYNONYMS = {
    "--output": "--out",
    "--json": "--format json",
    "--days": "--keep-days",
    "--parallel": "--jobs",
}
# Words of goldnode's own that help does not use, see docs/style.md.
PRIVATE = re.compile(
    r"\b(?:anew|brings?|hold against|kept|mend|nobody|somebody|stands? (?:for|in|on)|takes? along|tells?|told"
    r"|whoever|good as it is|what (?:proves|vanished|it says))\b",
    re.IGNORECASE,
)
WIDTH = 100


def walk(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command below `command` with its name and a context to render its help in."""
    yield ctx.command_path.removeprefix("goldnode").strip(), command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from walk(below, click.Context(below, parent=ctx, info_name=name))


COMMANDS = {
    name: (command, ctx)
    for name, command, ctx in walk(main, click.Context(main, info_name="goldnode", terminal_width=WIDTH))
}
LEAVES = {name: row for name, row in COMMANDS.items() if not isinstance(row[0], click.Group)}


def each(names: dict[str, tuple[click.Command, click.Context]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names, ids=lambda name: name or "goldnode")


def summary(command: click.Command) -> str:
    return (command.help or "").partition("\n")[0]


def rendered(name: str) -> str:
    command, ctx = COMMANDS[name]
    return command.get_help(ctx)


@each(COMMANDS)
def test_first_line_is_one_imperative_sentence(name: str) -> None:
    line = summary(COMMANDS[name][0])
    assert line.endswith("."), line
    assert line.split()[0].rstrip(",") in VERBS, line
    assert ". " not in line, "one sentence"
    paragraph = (COMMANDS[name][0].help or "").partition("\n\n")[0]
    assert paragraph == line, "the first line is a paragraph of its own"


@each(COMMANDS)
def test_help_fits_a_terminal(name: str) -> None:
    command, ctx = COMMANDS[name]
    text = rendered(name)
    assert max(map(len, text.splitlines())) <= WIDTH
    words = set(text.split())
    sources = [
        command.help or "",
        *(option.help or "" for option in options_of(command) if not option.hidden),
    ]
    for word in (word for source in sources for word in source.replace("\b", " ").split()):
        assert word in words, f"{word} is broken over two lines"
    if isinstance(command, click.Group):
        for below in command.list_commands(ctx):
            shown = command.get_command(ctx, below)
            assert shown is not None
            assert re.search(rf"^  {below} +{re.escape(summary(shown))}$", text, re.MULTILINE), below


@each(COMMANDS)
def test_help_has_no_private_words(name: str) -> None:
    command = COMMANDS[name][0]
    found = [
        hit.group()
        for text in (command.help or "", *(option.help or "" for option in options_of(command)))
        for hit in PRIVATE.finditer(text)
    ]
    assert found == []


@each(COMMANDS)
def test_options_have_help(name: str) -> None:
    for option in options_of(COMMANDS[name][0]):
        assert option.help, option.opts
        assert option.help[0].isupper(), option.help
        assert option.help.endswith("."), option.help
        assert not re.search(r"(?i)\bdefault:", option.help), "use show_default"


@each(COMMANDS)
def test_options_name_their_value_and_default(name: str) -> None:
    command, ctx = COMMANDS[name]
    for option in options_of(command):
        if not option.is_flag:
            assert isinstance(option.type, click.Choice) or option.metavar, f"{option.opts} needs a metavar"
            default = option.get_default(ctx, call=False)
            assert not default or option.show_default, f"{option.opts}: the default {default!r} is not shown"


@each(COMMANDS)
def test_options_have_common_names(name: str) -> None:
    for spelling in (spelling for option in options_of(COMMANDS[name][0]) for spelling in option.opts):
        assert spelling not in SYNONYMS, f"{spelling}: use {SYNONYMS.get(spelling)}"


def test_options_with_one_name_have_one_help() -> None:
    """Options that many commands share are declared once, in commands/output.py."""
    shared = (
        "--format",
        "--store",
        "--trust",
        "--limit",
        "--become",
        "--dry-run",
        "--keep-days",
        "--wait",
        "--matrix",
    )
    for name in shared:
        texts = {
            (option.help, option.metavar)
            for command, _ in COMMANDS.values()
            for option in options_of(command)
            if name in option.opts and isinstance(option, FormatOption) is (name == "--format")
        }
        assert len(texts) == 1, (name, texts)


@each(LEAVES)
def test_report_has_a_format(name: str) -> None:
    forms = [option for option in options_of(LEAVES[name][0]) if isinstance(option, FormatOption)]
    if name in FILES:
        assert not forms
        return
    (option,) = forms
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices)[:2] == ["text", "json"]
    assert re.fullmatch(r"goldnode\.[a-z-]+/1", option.schema)


def test_sections_list_all_commands() -> None:
    done = CliRunner().invoke(main, ["--help"], terminal_width=WIDTH)
    assert done.exit_code == 0
    headings = re.findall(r"^(\S.*):$", done.stdout, re.MULTILINE)
    assert headings == [
        "Options",
        "Declare and check",
        "Lock and mirror packages",
        "Build and publish images",
        "Operate nodes",
        "Set up the shell",
    ]


def options_of(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


def test_former_spellings_are_hidden() -> None:
    """They work, and neither help nor completion shows them."""
    former = {
        (name, spelling)
        for name, (command, _) in COMMANDS.items()
        for option in options_of(command)
        if isinstance(option, Option)
        for spelling in option.former
    }
    assert former == {
        ("adopt", "--keep"),
        ("disks compare", "--json"),
        ("disks compare", "--limit"),
        ("disks gc", "--days"),
        ("disks verify", "--json"),
        ("images gc", "--days"),
        ("images inspect", "--json"),
        ("images smoke", "--json"),
        ("images smoke", "--limit"),
        ("mirror fetch", "--parallel"),
        ("mirror gc", "--days"),
        ("xid", "--json"),
    }
    for name, spelling in former:
        assert not re.search(rf"{spelling}(?![\w-])", rendered(name)), name
    old, new = (
        CliRunner().invoke(main, ["xid", "79", *words]) for words in (["--json"], ["--format", "json"])
    )
    assert (old.stdout, old.stderr) == (new.stdout, "")
    last = CliRunner().invoke(main, ["xid", "79", "--json", "--format", "text"])
    assert last.stdout.startswith("Xid 79")
    assert CliRunner().invoke(main, ["mirror", "gc", "--days", "-1"]).exit_code == 2
