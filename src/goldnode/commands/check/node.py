"""Command `goldnode check-node`."""

from __future__ import annotations

import sys
from typing import Any

import click

from goldnode.commands.output import emit, reports
from goldnode.core.errors import GoldnodeError

COULD_NOT_CHECK = 3  # exit code of a verdict that could not be made; 2 would say `drain`


# click ends errors with 1 and wrong use with 2, which are verdicts here: degraded and drain.
class _Failed(click.ClickException):
    """An error that ends with 3."""

    exit_code = COULD_NOT_CHECK

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.format_message()}", err=True)


class _Misused(click.UsageError):
    """A wrong command line, which ends with exit status 3."""

    exit_code = COULD_NOT_CHECK


class _NodeCommand(click.Command):
    """A command whose wrong use and whose errors exit with 3, as those of goldnode-node do."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*given, **more)
        except click.UsageError as problem:
            raise _Misused(problem.format_message(), problem.ctx) from problem

    def invoke(self, ctx: click.Context) -> Any:
        from goldnode.node.ground.errors import NodeError

        try:
            return super().invoke(ctx)
        except (GoldnodeError, NodeError, OSError) as problem:
            raise _Failed(str(problem)) from problem


@click.command("check-node", cls=_NodeCommand)
@click.argument("file", type=click.Path(allow_dash=True), metavar="FILE")
@click.option(
    "-c",
    "--class",
    "name",
    metavar="CLASS",
    help="Judge by this node class too: a name of the catalog, whose stack needs no lock, or a FILE of `goldnode class export`.",
)
@click.option("--quiet", is_flag=True, help="Print the summary only.")
@reports("verdict")
def check_node(file: str, name: str | None, quiet: bool, form: str) -> None:
    """Check a node by a capture or by the output of nvidia-smi.

    FILE is a capture of `goldnode-node capture`, or the output of `nvidia-smi -q -x` or `nvidia-smi -q`; - is
    standard input. Nothing of this machine is read, and nothing is written. Without a class, the facts about the GPU
    models decide.

    Exit status: 0 healthy, 1 degraded, 2 drain, 3 could not check (also for a FILE that cannot be used and a wrong
    use), 4 not this class.
    """
    from goldnode.classdoc.record import judge
    from goldnode.node.verdict.report import verdict_table

    verdict = judge(file, name)
    text = verdict_table(verdict)
    # The last line of the table is its summary.
    emit(form, verdict, text.splitlines()[-1] if quiet else text)
    sys.exit(int(verdict["exit_code"]))
