"""Entry point of `goldnode …`: every command is one call into the package.

An expected error, or a file that cannot be read or written, prints one line to stderr and exits 2. With
`--format json` it is also a JSON document on stdout. Anything else is a bug in goldnode and keeps its traceback.
"""

from __future__ import annotations

import errno
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from goldnode.commands import LazyGroup, output
from goldnode.core import extras, files, progress
from goldnode.core.collector import collect_rarely
from goldnode.core.data import site_above
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import file_remedy

# Each line repeats the first line of the command's docstring, so that the list imports no command. A test compares them.
_SECTIONS = {
    "Declare and check": {
        "adopt": ("adopt", "Propose a class and a stack for a machine that runs already."),
        "check": (
            "check.command",
            "Check that classes, stacks, images and requirements are compatible.",
        ),
        "check-catalog": (
            "check.catalog",
            "Check the catalog, the site file, the facts and all locks.",
        ),
        "class": (
            "classes",
            "Export the document of a node class, print user data, propose its baseline.",
        ),
        "classes": ("classes", "List the node classes."),
        "facts": ("facts", "Check the compatibility facts, and update them without a release."),
        "import": (
            "import_fleet",
            "Propose classes, cohorts and deviations for a fleet that runs already.",
        ),
        "init": (
            "init.command",
            "Write a site directory: inventory, class, site file and ansible.cfg.",
        ),
        "matrix": ("matrix", "Show the compatibility matrix of all stacks and classes."),
        "schema": ("schema.command", "Print or write the JSON Schemas of all files and documents."),
    },
    "Lock and mirror packages": {
        "lock": ("lock", "Resolve the packages of a stack and write its lock."),
        "mirror": ("mirror", "Fetch locked packages and publish them as signed apt repositories."),
        "modules": ("modules", "Build kernel modules once and package them for the mirror."),
    },
    "Build and publish images": {
        "disks": ("disks", "Lock, build, boot, publish and update disk images of node classes."),
        "images": ("images", "Lock, build, inspect, test and publish container images."),
    },
    "Operate nodes": {
        "apply": (
            "apply",
            "Apply a node class to this machine, without an inventory and without SSH.",
        ),
        "canary": (
            "canary",
            "Run representative jobs on nodes, and measure how fast they are.",
        ),
        "cache": ("cache", "Show, explain and verify the keys of caches of compiled GPU code."),
        "check-node": ("check.node", "Check a node by a capture or by the output of nvidia-smi."),
        "dual": (
            "dual",
            "Compare what two stacks, images or backends compute from the same inputs.",
        ),
        "evidence": ("evidence", "Sign proofs of a class, and show which of them still hold."),
        "events": ("events", "Run hooks on changes of nodes, gates, rollouts and channels."),
        "fleet": (
            "fleet",
            "Run the lock service, freeze and release nodes, and maintain the store.",
        ),
        "floors": (
            "floors",
            "Learn performance floors from canary results, and check results against them.",
        ),
        "node-program": (
            "node_program",
            "Write goldnode-node, the program that runs on nodes, to a file.",
        ),
        "package": (
            "package",
            "Make the node program a package for Debian, RPM or Kubernetes, and publish it.",
        ),
        "plan": ("plan", "Show what site.yml would change on the hosts of an inventory."),
        "game-day": (
            "game_day",
            "Make one harmless fault on a canary, and measure who sees it.",
        ),
        "cve": (
            "cve",
            "Show what carries a vulnerability, and take it out of the fleet step by step.",
        ),
        "rollout": ("rollout", "Check, simulate, run and watch rollouts of a class, wave by wave."),
        "slurm": (
            "slurm",
            "Write Slurm's configuration of the GPUs of a class, and check slurmd's.",
        ),
        "explain": ("explain", "Explain an error, a log, a tool's table or a description."),
        "xid": ("xid", "Explain NVIDIA Xid and SXid errors."),
    },
    "Keys and releases": {
        "channels": (
            "channels",
            "Make, change and renew the signatures of channels of images and disks.",
        ),
        "keys": ("keys", "Show, make, rotate and revoke the keys of a site."),
        "verify-release": ("verify_release", "Verify files of a release of goldnode."),
    },
    "Set up the shell": {
        "completion": ("completion", "Print the completion script of a shell."),
        "man": ("man", "Write the man pages of goldnode and goldnode-node."),
    },
}


class _Commands(LazyGroup):
    """A group that prints a GoldnodeError, or an OSError about a file, as one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        collect_rarely()
        return super().main(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        given: list[str] = ctx.meta[_GIVEN]
        above = site_above() if _WITHOUT_SITE.isdisjoint(given) else None
        if above is not None:
            click.echo(
                f"warning: {above} is not used: run the command in {above.parent}, or set GOLDNODE_SITE={above}",
                err=True,
            )
        long = next((word for word in given if not word.startswith("-")), "") in _LONG
        try:
            with progress.shown(f"goldnode {' '.join(given)}"[:_LABEL]) if long else nullcontext():
                return super().invoke(ctx)
        except click.ClickException as problem:
            output.emit_error(ctx, problem, ctx.meta[_GIVEN])
            raise  # click prints it to stderr
        except KeyboardInterrupt:
            # 1, with which click ends, has a meaning in some commands: `plan --exit-code`, `lock --check`.
            click.echo("error: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (GoldnodeError, OSError, ModuleNotFoundError) as problem:
            error = _error(problem)
            if error is None or ctx.params.get("debug"):
                raise
            output.emit_error(ctx, error, ctx.meta[_GIVEN])
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)


# Commands that may take longer than a few seconds: they show progress.
_LONG = {"adopt", "canary", "disks", "images", "import", "lock", "mirror", "modules", "plan"}
# Commands that make trees for nodes, images and mirrors, or run apt, which reads as another user.
_FOR_OTHERS = {"apply", "disks", "images", "lock", "mirror", "modules", "node-program", "package"}
_WITHOUT_SITE = {
    "--help",
    "-h",
    "completion",
    "explain",
    "init",
    "man",
    "node-program",
    "schema",
    "xid",
}  # need no site file
_LABEL = 70  # characters
INTERRUPTED = 130  # exit status, as of a shell: 128 + SIGINT
_GIVEN = "goldnode.given"  # key of click's Context.meta: the words of the command line


def _error(problem: GoldnodeError | OSError | ModuleNotFoundError) -> GoldnodeError | None:
    """Return the error that a user reads; None if `problem` is a bug."""
    if isinstance(problem, ModuleNotFoundError):
        extra = extras.of_module(problem.name)
        return None if extra is None else extras.missing([extra])
    return problem if isinstance(problem, GoldnodeError) else _of_a_file(problem)


# Errors of reading and writing that the kernel reports without a file name.
_OF_FILES = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


def _of_a_file(problem: OSError) -> GoldnodeError | None:
    """Return the error for a file that cannot be used; None if `problem` is not about a file."""
    if isinstance(problem.filename, str | bytes | Path):
        name = problem.filename
        if isinstance(name, bytes):
            name = name.decode(errors="backslashreplace")
        return GoldnodeError(
            f"cannot be read or written: {problem.strerror}",
            file=name,
            remedy=file_remedy(problem, Path(name)),
        )
    if problem.errno in _OF_FILES:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "`goldnode --debug …` shows which"
        if full:
            remedy = "free space where `goldnode --debug …` shows"
        return GoldnodeError(f"a file cannot be read or written: {problem.strerror}", remedy=remedy)
    return None


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from goldnode.core.release import program_digest, version  # start-up time

    click.echo(f"goldnode {version()}")
    try:
        click.echo(f"goldnode-node {program_digest()}")
    except GoldnodeError as error:
        click.echo(f"goldnode-node: {error}", err=True)
    ctx.exit()


@click.group(
    "goldnode",
    cls=_Commands,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version, and the digest of the node program.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Turn one declared GPU node class into running nodes and images that carry the same locked stack."""
    if click.get_current_context().invoked_subcommand in _FOR_OTHERS:
        files.readable_by_others()
    # If SIGCHLD is ignored, the kernel discards exit statuses, and `subprocess` reports success for every
    # program.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Every program that we start would inherit the signals that the caller blocks.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


if __name__ == "__main__":
    main()
