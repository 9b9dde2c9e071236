"""The pages name only commands and options of `goldnode` that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.unit.test_docs import PAGES

from goldnode.cli import main

# Lines of console blocks, and commands in running text.
_BLOCK = re.compile(r"^ *```console\n(.*?)```", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^ *[$#] (?:\.venv/bin/|\S+=\S+ )?goldnode (.+)$", re.MULTILINE)
_INLINE = re.compile(r"`goldnode ([a-z][^`\n]*)`")


def commands(text: str) -> Iterator[list[str]]:
    """Return the arguments of each `goldnode` command of a page, without comments.

    Messages in running text can begin like a command. There, only lines with a known command count.
    """
    known = main.list_commands(click.Context(main))
    for block in _BLOCK.findall(text):
        for line in _LINE.findall(block.replace("\\\n", " ")):
            # What follows a comment sign or a pipe is none of goldnode's.
            yield [word.rstrip(",.;") for word in re.split(r"\s[#|]", line)[0].split()]
    for line in _INLINE.findall(_BLOCK.sub("", text)):
        words = [word.rstrip(",.;") for word in line.split()]
        if words[0] in known:
            yield words


def fault(words: list[str]) -> str | None:
    """Return what is wrong with the arguments of a command: an unknown command or option."""
    command: click.Command = main
    context = click.Context(main)
    names = [word for word in words if not word.startswith("-")]
    while isinstance(command, click.Group):
        below = command.get_command(context, names[0]) if names else None
        if (
            below is None and command.name == "mirror"
        ):  # `goldnode mirror STACK` is `goldnode mirror fetch`
            below = command.get_command(context, "fetch")
        if below is None:
            if command is main and names:
                return f"no command {names[0]}"
            break
        command, context, names = below, click.Context(below, parent=context), names[1:]
    known = {
        name for option in command.params for name in (*option.opts, *option.secondary_opts)
    } | {"--help"}
    # The words after -- are those of another program.
    for word in words[: words.index("--")] if "--" in words else words:
        if word.startswith("-") and word != "-" and word.partition("=")[0] not in known:
            return f"{command.name} has no option {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # commands of its time
    found = {" ".join(words): fault(words) for words in commands(page.read_text(encoding="utf-8"))}
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


def test_wrong_commands_are_found() -> None:
    text = (
        "```console\n$ goldnode chek -c l4\n# goldnode lock X \\\n    --upgrad  # later\n```\n"
        "`goldnode mirror X -j 2`, `goldnode plan --nope`, `goldnode needs root`, `goldnode dual record R -- x --own`"
    )
    assert [fault(words) for words in commands(text)] == [
        "no command chek",
        "lock has no option --upgrad",
        None,
        "plan has no option --nope",
        None,
    ]
