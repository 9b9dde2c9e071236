"""Generator of docs/reference/commands.md and of the man pages, for a checkout.

`python -m goldnode.manual --man DIR` writes `goldnode.1` and `goldnode-node.1`;
`--markdown FILE` writes the page. `goldnode man` is the same for users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from goldnode.cli import main as program
from goldnode.nodepackage.manpages import (
    ManualEntry,
    of_goldnode,
    of_node,
    sentence,
    write_pages,
)

_NOTE = (
    "<!-- Written by `python -m goldnode.manual --markdown docs/reference/commands.md`. Do not edit: "
    "the texts are in the commands. -->"
)


def _markdown(entry: ManualEntry, level: str) -> Iterator[str]:
    yield from (
        f"{level} {entry.name}",
        "",
        "```text",
        f"{entry.name} {entry.synopsis}".strip(),
        "```",
        "",
    )
    for paragraph in entry.text:
        yield from (
            ("```text", paragraph, "```", "") if "\n" in paragraph else (_escaped(paragraph), "")
        )
    if entry.options:
        yield from ("| Option | Meaning |", "|---|---|")
        yield from (
            f"| `{_cell(flags)}` | {_escaped(_cell(sentence(text)))} |"
            for flags, text in entry.options
        )
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """Escape what Markdown would read as emphasis or as an HTML tag, outside code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<])", r"\\\1", part) for part in parts
    )


def page() -> str:
    """Return docs/reference/commands.md."""
    lines = ["# Commands", "", _NOTE, ""]
    lines += [
        "`goldnode` runs on the controller, `goldnode-node` on nodes and on any machine with a GPU. "
        "`scripts/docs man` writes both as man pages.",
        "",
    ]
    for entries in (of_goldnode(program), of_node()):
        for number, entry in enumerate(entries):
            lines += _markdown(entry, "###" if number else "##")
    return "\n".join(lines).rstrip() + "\n"


@click.command()
@click.option(
    "--man", "directory", type=click.Path(path_type=Path), help="Directory for the man pages."
)
@click.option("--markdown", type=click.Path(path_type=Path), help="File for the page in Markdown.")
def main(directory: Path | None, markdown: Path | None) -> None:
    """Write the man pages, or the page of all commands."""
    if directory is not None:
        write_pages(program, directory)
    if markdown is not None:
        markdown.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
