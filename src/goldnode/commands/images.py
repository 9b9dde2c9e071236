"""`goldnode images`: the group alone; each command is in the file of its part, imported when it is called."""

from __future__ import annotations

import importlib

import click

# Command -> (file `goldnode.commands.FILE`, the line that the list of commands shows).
_ELSEWHERE: dict[str, tuple[str, str]] = {
    "list": ("images_lock", "List the images of the matrix."),
    "lock": ("images_lock", "Resolve images with apt and pip and write their locks."),
    "build": ("images_build", "Build images from their locks, offline."),
    "inspect": ("images_inspect", "Search an image, wheel, root or disk for what is foreign to its backend."),
    "smoke": ("images_smoke", "Run the smoke tests of an image."),
    "evidence": ("images_evidence", "Write and attach what proves an image: SBOM, provenance, report, signature."),
    "verify": ("images_evidence", "Check signatures, and that every document is about this image."),
    "diff": ("images_evidence", "Show what differs between two images."),
    "publish": ("images_publish", "Push images and their evidence to a registry."),
    "pull": ("images_publish", "Bring an image back from a registry, every byte checked."),
    "promote": ("images_publish", "Move a channel to an image whose gates have passed."),
    "rollback": ("images_publish", "Move a channel back to what it was."),
    "gc": ("images_publish", "Remove what no channel, history or catalog names."),
    "status": ("images_publish", "Show channels and what stands in them."),
}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_ELSEWHERE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return None
        module = importlib.import_module(f"goldnode.commands.{_ELSEWHERE[cmd_name][0]}")
        # `list` is called list_ there, since the name is Python's own.
        found: click.Command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's own, without importing what is only listed."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _ELSEWHERE.items()])


@click.group(cls=_Group, no_args_is_help=True)
def images() -> None:
    """Container images: one per backend, version, flavour and OS, whose tags tell the truth."""
