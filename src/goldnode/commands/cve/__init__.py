"""The group `goldnode cve`: what carries a vulnerability, and the steps until nothing does."""

from __future__ import annotations

import click

from goldnode.commands import LazyGroup

_SECTIONS = {
    "See": {
        "show": ("cve.show", "Show which locks, images, disks and nodes carry a vulnerability."),
        "lane": ("cve.lane", "Show the steps of a vulnerability by class, and the hours."),
    },
    "Act": {
        "mitigate": (
            "cve.mitigate",
            "Mitigate a vulnerability on the nodes of classes until the fix runs.",
        ),
        "prepare": ("cve.prepare", "Make lock, module and disk of a class with the fix."),
        "roll-out": ("cve.roll_out", "Write the rollout document of a fix for a class."),
        "prove": ("cve.prove", "Write and sign the list of what is left."),
    },
    "Learn": {
        "rehearse": ("cve.rehearse", "Run all steps as an exercise on nodes in containers."),
    },
}


class _Vulnerabilities(LazyGroup):
    """A group whose first word may also be a vulnerability: `goldnode cve CVE` is `goldnode cve show CVE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the first word: a name of a vulnerability has digits, and no command has one."""
        first = args[0] if args else ""
        known = [*self.list_commands(ctx), "-h", "--help"]
        if first not in known and (first.startswith("-") or any(sign.isdigit() for sign in first)):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Vulnerabilities,
    sections=_SECTIONS,
    no_args_is_help=True,
    subcommand_metavar="[CVE]... | COMMAND [ARGS]...",
)
def cve() -> None:
    """Show what carries a vulnerability, and take it out of the fleet step by step.

    `goldnode cve CVE` is short for `goldnode cve show CVE`.
    """
