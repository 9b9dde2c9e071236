"""The commands of `goldnode`, one file each. A file is imported when its command is called, to keep the start
of the others short.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click


class LazyGroup(click.Group):
    """A group with commands `elsewhere`, beside any of its own: NAME -> (file `goldnode.commands.FILE`, the line that the list shows)."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, tuple[str, str]], **given: Any) -> None:
        super().__init__(*args, **given)
        self.elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"goldnode.commands.{self.elsewhere[cmd_name][0]}")
        # `list` is called list_ there, since the name is Python's own.
        name = cmd_name.replace("-", "_")
        found: click.Command = getattr(module, name, None) or getattr(module, f"{name}_")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's own, whose suggestion for a wrong name knows none of `elsewhere`."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's own, without importing what is only listed."""
        own = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, own[name] if name in own else self.elsewhere[name][1])
                    for name in self.list_commands(ctx)
                ]
            )
