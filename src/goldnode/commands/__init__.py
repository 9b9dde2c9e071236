"""The commands of `goldnode`: a file each, and a folder for each group. A file is imported when its command is called.

- Declare and check: `adopt`, `check/`, `classes`, `facts`, `import_fleet`, `init/`, `matrix`, `schema/`
- Packages: `lock`, `mirror`, `modules`
- Images: `images/` (containers) and `disks/`; `channel_moves` has what both do with keys, evidence and channels
- Nodes: `apply`, `plan`, `cache`, `canary/`, `dual/`, `floors/`, `node_program`, `slurm`, `xid`
- Fleet: `fleet/`, `rollout/`, `events/`

`options` has the options that several commands share, `output` what they print. This module has the group that reads
the sections of `cli.py` and of the groups' `__init__`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

# Section of the help -> command -> (module of goldnode.commands, first line of the command's docstring).
Sections = Mapping[str, Mapping[str, tuple[str, str]]]


_HYPHEN = "\ue000"  # a private character, at which no line breaks; only inside of a formatter


class HelpFormatter(click.HelpFormatter):
    """Help in which no line breaks inside of an option, such as `--dry-run`."""

    def write_text(self, text: str) -> None:
        # click wraps with textwrap, which breaks lines at hyphens.
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        super().write_dl(
            [(name, text.replace("-", _HYPHEN)) for name, text in rows], col_max, col_spacing
        )

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


# Of all contexts: neither a group nor a command has a setting for it.
click.Context.formatter_class = HelpFormatter


def option_hint(command: click.Command, word: str) -> str:
    """Return a question for the option that `word` lacks: -i for a path, else -c; empty if the command has none."""
    flags = {
        flag
        for option in command.params
        if isinstance(option, click.Option)
        for flag in option.opts
    }
    # Names of classes have no slash; an inventory may be a path that does not exist yet.
    wanted = ("-i", "-c") if Path(word).exists() or "/" in word else ("-c", "-i")
    suggestion = next((flag for flag in wanted if flag in flags), None)
    return f". Did you mean '{suggestion} {word}'?" if suggestion else ""


class LazyGroup(click.Group):
    """A group whose commands are listed in sections, and imported only when they are called."""

    def __init__(self, *args: Any, sections: Sections, **given: Any) -> None:
        super().__init__(*args, **given)
        self.sections = sections
        self._places = {name: place for rows in sections.values() for name, place in rows.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group. Those of a command come after it."""
        try:
            # A copy: the parser consumes the list, and the error below still looks through it.
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as problem:
            # The word after the option may be its value, so any word may be the command.
            command = next((word for word in args if word in self._places), "")
            known = self.get_command(ctx, command)
            if known is None or all(
                problem.option_name not in option.opts for option in known.params
            ):
                raise
            order = f"Options of '{command}' come after it: {ctx.command_path} {command} {problem.option_name} …"
            raise click.UsageError(f"{problem.format_message()} {order}", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._places:
            return None
        module = importlib.import_module(f"goldnode.commands.{self._places[cmd_name][0]}")
        # `class` and `list` are names of Python: the functions are class_ and list_.
        name = cmd_name.replace("-", "_")
        loaded: click.Command = getattr(module, name, None) or getattr(module, f"{name}_")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, with a suggestion for a misspelt name."""
        # click suggests options and not commands.
        name = args[0]
        if (
            not name.startswith("-")
            # Completion parses half a command line, and must not fail on it.
            and not ctx.resilient_parsing
            and self.get_command(ctx, name) is None
        ):
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(
                f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else "")
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Suggest the option of a word that is given without one."""
        try:
            return super().invoke(ctx)
        except click.UsageError as problem:
            # The exception has no field for the word.
            word = re.fullmatch(r"Got unexpected extra argument \((\S+)\)", problem.message)
            if word is None or problem.ctx is None:
                raise
            hint = option_hint(problem.ctx.command, word[1])
            raise click.UsageError(f"{problem.message}{hint}", problem.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, without importing the commands. All sections have the same first column."""
        width = max(map(len, self._places))
        for title, rows in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in rows.items()])
