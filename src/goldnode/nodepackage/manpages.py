"""Man pages of both programs, from their command lines.

click and argparse are read through one model, `ManualEntry`: the libraries that generate man pages read neither lazy click
groups nor argparse commands that load their options late.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import click

from goldnode.node.program.arguments import CommandParser, parser

_SEE = {
    "goldnode": "ansible-playbook(1), goldnode-node(1)",
    "goldnode-node": "goldnode(1), nvidia-smi(1), systemctl(1)",
}
_WRAPPED = re.compile(r"(?<=\S)\n(?=\S)")


class ManualEntry(NamedTuple):
    """One command: its words, its synopsis after them, its description in paragraphs, and its options."""

    name: str
    synopsis: str
    text: list[str]
    options: list[tuple[str, str]]


def sentence(text: str) -> str:
    """Return a description with a capital and a full stop. A first word that is a name stays as it is."""
    text = " ".join(text.split())
    first = text.partition(" ")[0].rstrip(",;:")
    if first.isalpha() and first.islower():
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", ":", "!", "?")) else text + "."


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a docstring; one after click's mark `\\b` keeps its lines."""
    paragraphs = []
    for part in re.split(r"\n\s*\n", text.partition("\f")[0].strip()):
        paragraphs.append(
            part.replace("\b\n", "", 1) if "\b" in part else _WRAPPED.sub(" ", part).strip()
        )
    return paragraphs


def of_goldnode(program: click.Command) -> list[ManualEntry]:
    """Return every command of `goldnode`, in the order of its help; groups precede their commands."""
    return list(_click(program, click.Context(program, info_name="goldnode")))


def _click(command: click.Command, context: click.Context) -> Iterator[ManualEntry]:
    options = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None
        and record[1]
        and "--help" not in record[0]
    ]
    synopsis = " ".join(command.collect_usage_pieces(context))
    yield ManualEntry(context.command_path, synopsis, _paragraphs(command.help or ""), options)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _click(below, click.Context(below, info_name=name, parent=context))


def of_node() -> list[ManualEntry]:
    """Return every command of `goldnode-node`, in the order of its help."""
    top = parser([])
    entries = [_argparse(top)]
    for name in _subcommands(top):
        entries.append(_argparse(_subcommands(parser([name]))[name]))
        entries += [
            _argparse(below) for below in _subcommands(_subcommands(parser([name]))[name]).values()
        ]
    return entries


def _subcommands(command: argparse.ArgumentParser) -> dict[str, CommandParser]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _argparse(command: argparse.ArgumentParser) -> ManualEntry:
    usage = (
        " ".join(command.format_usage().split())
        .removeprefix(f"usage: {command.prog}")
        .replace("[-h]", "", 1)
        .strip()
    )
    options = []
    for action in command._actions:
        shown = action.help != argparse.SUPPRESS and not isinstance(
            action, argparse._SubParsersAction
        )
        if not shown or "--help" in action.option_strings:
            continue
        value = action.metavar or (
            "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
        )
        if not value and action.nargs != 0:
            value = action.dest.upper()
        names = ", ".join(action.option_strings) or (
            action.dest.upper() if not action.choices else str(value)
        )
        flags = f"{names} {value}".strip() if action.option_strings and action.nargs != 0 else names
        options.append((flags, (action.help or "") % {"default": action.default}))
    text = [
        part.strip("\n") if "\n" in part.strip() else sentence(part)
        for part in (command.description or "", command.epilog or "")
        if part
    ]
    return ManualEntry(command.prog, usage, text, options)


def _roff(text: str) -> str:
    r"""Escape text for troff: backslashes, hyphens, and a control character that begins a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def man(entries: list[ManualEntry]) -> str:
    """Return the man page of a program, in troff with the `man` macros."""
    first = entries[0]
    summary = first.text[0].rstrip(".")
    lines = [
        f'.TH "{_roff(first.name.upper())}" "1" "" "goldnode {version("goldnode")}" "goldnode"',
        ".SH NAME",
        f"{_roff(first.name)} \\- {_roff(summary[:1].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f".B {_roff(first.name)}",
        _roff(first.synopsis),
        ".SH DESCRIPTION",
        *_body(first),
    ]
    if len(entries) > 1:
        lines.append(".SH COMMANDS")
        for entry in entries[1:]:
            lines += [
                f'.SS "{_roff(entry.name)}"',
                f".B {_roff(entry.name)}",
                _roff(entry.synopsis) or "\\&",
            ]
            lines += [".PP", *_body(entry)]
    lines += [".SH SEE ALSO", _roff(_SEE[first.name])]
    return "\n".join(lines) + "\n"


def _body(entry: ManualEntry) -> Iterator[str]:
    for number, paragraph in enumerate(entry.text):
        yield from (".PP",) if number else ()
        yield from (".nf", _roff(paragraph), ".fi") if "\n" in paragraph else (_roff(paragraph),)
    for flags, text in entry.options:
        yield from (".TP", f".B {_roff(flags)}", _roff(sentence(text)) or "\\&")


def write_pages(program: click.Command, directory: Path) -> None:
    """Write `goldnode.1` and `goldnode-node.1` to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for entries in (of_goldnode(program), of_node()):
        (directory / f"{entries[0].name}.1").write_text(man(entries), encoding="utf-8")
