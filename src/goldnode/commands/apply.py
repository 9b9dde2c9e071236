"""Command `goldnode apply`."""

from __future__ import annotations

import sys

import click

from goldnode.commands.options import DRY_RUN
from goldnode.commands.output import emit, reports


@click.command()
@click.option("--local", is_flag=True, help="Apply to this machine. Required.")
@click.option(
    "-c",
    "--class",
    "name",
    metavar="CLASS",
    show_default="of localhost in ./inventory, otherwise the one that fits this machine",
    help="Node class of this machine.",
)
@DRY_RUN
@click.option("--full", is_flag=True, help="Show complete diffs in the plan.")
@click.option("-y", "--yes", is_flag=True, help="Apply the plan without asking.")
@click.option("--reboot", is_flag=True, help="Reboot at the end if the class needs it.")
@reports("apply")
def apply(
    local: bool, name: str | None, dry_run: bool, full: bool, yes: bool, *, reboot: bool, form: str
) -> None:
    """Apply a node class to this machine, without an inventory and without SSH.

    The plan is shown first. site.yml applies it, as on any other node. Nothing is rebooted without --reboot.

    Exit status: 0 applied or nothing to change, 1 not applied (--dry-run with changes, or declined), 2 an error, a
    refusal, or a failed change.
    """
    if not local:
        raise click.UsageError(
            "Use --local for this machine. The hosts of an inventory are for ansible-playbook: `goldnode init` prints the command."
        )
    from goldnode.fleet.nodes import local as machine  # start-up time: it loads pydantic

    target = machine.choose(name)
    planned = machine.plan(target)
    # The plan is seen before the question, in JSON on standard error.
    click.echo(machine.text(target, planned, full), err=form == "json")
    todo = planned.state == machine.CHANGE
    applied = False
    if todo and not dry_run:
        if not yes:
            # A script must state that it accepts the changes: no answer is not a yes.
            if not sys.stdin.isatty():
                raise click.UsageError(
                    "There is no terminal to ask on. Use --yes to apply, or --dry-run."
                )
            if not click.confirm(
                f"Apply class {target.name} to this machine?", default=False, err=True
            ):
                emit(form, machine.document(target, planned, applied=False))
                sys.exit(1)
        machine.run(target, quiet=form == "json")
        # Planned again: what is left needs a reboot, or did not work.
        applied, planned = True, machine.plan(target)
    emit(
        form,
        machine.document(target, planned, applied=applied),
        machine.ending(target, planned, applied=applied),
    )
    code = machine.exit_code(planned, applied=applied, dry_run=dry_run)
    # Not after a change that failed or is left: the node stays up to be examined.
    if code == 0 and reboot and not dry_run and machine.reboot_reasons(planned):
        machine.reboot()
    sys.exit(code)
