"""Command line of the program, for argparse."""

from __future__ import annotations

import argparse
import importlib
import sys

from ..ground.verdict_files import VERDICT
from ..state.domains.program import CLASS
from ..state.model import PARTS
from ..verdict.current import UNKNOWN, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, NoReturn, Sequence


POLICY = """apply: set what the class declares and read it back. assert: only read. export: print the policy of this node,
for a class file. Exit status: 0 as declared, 1 something differs, 3 something could not be set or read."""
CHECK = "A machine without a class is judged by the facts of its GPUs. Exit status: 0 healthy, 1 degraded, 2 drain, 3 could not check, 4 not this class."


# Commands in modules of their own, each with `arguments(parser)` and `run(host, options)`. A module is
# imported only when its command is used.
ELSEWHERE_RUN = {
    "capture": ("probe.command", "Print the state that this node reports, as JSON."),
    "report": (
        "program.reporting",
        "Print the capture and the verdict of the last check, as JSON.",
    ),
    "diagnose": (
        "diagnose.command",
        "Find the bottleneck of the running work in two samples, one second apart.",
    ),
    "act": (
        "program.act_command",
        "Do what follows from the last verdict: gate, metrics, kernel on trial (after `check --defer`).",
    ),
    "ack": ("program.ack_command", "Acknowledge the counters and findings up to now."),
    "return-tests": (
        "program.return_command",
        "Show the tests before this node's return, or take their results.",
    ),
    "watch-log": (
        "program.watch",
        "Run the passive check when the kernel logs a fault (goldnode-events.service).",
    ),
    "slot": (
        "slots.command",
        "Show or change the two root partitions of the disk, and which one boots next.",
    ),
    "install": (
        "install.command",
        "Write the image of a channel to a disk of this machine (in the installer of a network).",
    ),
    "join": (
        "program.join_command",
        "Make a machine with a vendor's image a member of a class, at its first boots.",
    ),
    "follow": ("follow.command", "Follow a signed channel: ask for leave, apply, boot and report."),
    "cache": ("cachekey.command", "Make keys and directories for caches of compiled GPU code."),
    "slurm": (
        "program.slurm",
        "Print the GPUs of the class for the configuration of Slurm, or check slurmd.",
    ),
    "preflight": (
        "preflight.command",
        "Check right before a job starts that the job fits this node.",
    ),
    "serve": (
        "serve.command",
        "Answer requests on the diagnostics endpoint (goldnode-serve.socket).",
    ),
}
# Commands that report nothing that a program would read: `capture` and `report` print JSON always.
WITHOUT_FORMAT = ("capture", "report", "act", "watch-log", "serve", "install", "join")


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports wrong usage as an error: argparse exits with 2, which would
    mean `drain`.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(self, message)


class UsageError(Exception):
    """A command line that is wrong."""

    def __init__(self, parser: CommandParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


def parse(given: List[str]) -> Any:
    """Return the options of a command line. Exit with 3 if it is wrong."""
    top = parser(given)
    try:
        options = top.parse_args(given)
        if options.command == "apply" and bool(options.part) == options.absent:
            top.error("apply needs either --part or --absent")
        return options
    except UsageError as problem:
        message = _order(given) or str(problem)
        if split(given)[0] == "json":
            import json  # start-up time: only for an error as JSON

            from ..ground.fault import document

            print(json.dumps(document(message), indent=1))
        problem.parser.print_usage(sys.stderr)
        print(f"{problem.parser.prog}: {message}", file=sys.stderr)
        raise SystemExit(UNKNOWN) from None


def _order(given: Sequence[str]) -> str:
    """Return the error for options that precede their command; empty for others."""
    named = [word for word in given if word in OWN or word in ELSEWHERE_RUN]
    if not named or not given[0].startswith("-"):
        return ""
    return f"{given[0]} precedes the command. Write `goldnode-node {named[0]} {given[0]} …`."


def parser(given: Sequence[str]) -> CommandParser:
    """Return the parser. Of a command in a module of its own it has the options only if `given`
    begins with the command.
    """
    top = CommandParser(
        prog="goldnode-node",
        description="Check this node against its node class.",
        epilog="goldnode-node --version prints the digest of this program, as `goldnode --version` does.",
    )
    commands = top.add_subparsers(
        dest="command",
        required=True,
        parser_class=CommandParser,
        metavar="COMMAND",
        title="commands",
    )
    for name, text, epilog in (
        ("check", "Judge the state of the node.", CHECK),
        ("plan", "Show the changes that would make the node match its class, and why.", None),
        ("apply", "Apply one part of the plan.", None),
        ("policy", "Set, check or print the settings of the GPUs and the host.", POLICY),
    ):
        command = commands.add_parser(name, help=text, description=text, epilog=epilog)
        if name == "policy":
            command.add_argument("verb", choices=("apply", "assert", "export"), help="see below")
        command.add_argument(
            "--class",
            dest="document",
            default=CLASS,
            metavar="FILE",
            help="class document (default: %(default)s)",
        )
        common(command, name)
        OWN[name](command)
    for name, (module, text) in ELSEWHERE_RUN.items():
        command = commands.add_parser(name, help=text, description=text)
        if list(given[:1]) == [name]:
            owner = importlib.import_module(f"goldnode.node.{module}")
            common(command, name)
            owner.arguments(command)
            command.set_defaults(run=owner.run)
    return top


def common(command: argparse.ArgumentParser, name: str) -> None:
    """Add the options that all commands have."""
    command.add_argument(
        "--root",
        default="/",
        metavar="DIR",
        help="root file system of the node (default: %(default)s)",
    )
    if name not in WITHOUT_FORMAT:
        command.add_argument(
            "--format",
            choices=("text", "json"),
            default="text",
            help="output format (default: %(default)s)",
        )
        command.add_argument(  # the former spelling
            "--json", dest="format", action="store_const", const="json", help=argparse.SUPPRESS
        )


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="print only the summary")
    command.add_argument(
        "--from",
        dest="record",
        metavar="FILE",
        help="judge a recorded capture, or the output of `nvidia-smi -q -x`; nothing is written",
    )
    command.add_argument(
        "--no-write",
        action="store_true",
        help=f"do not write {VERDICT}, and do not change the gate",
    )
    command.add_argument("--no-gate", action="store_true", help="do not change the gate")
    command.add_argument(
        "--defer",
        action="store_true",
        help="only judge, as the units do: what follows from the verdict is left to `goldnode-node act`",
    )
    command.add_argument(
        "--passive", action="store_true", help="put no load on the node, as the timer does"
    )
    command.add_argument(
        "--cached", action="store_true", help="print the current verdict without a new check"
    )


def _policy(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--defer",
        action="store_true",
        help="after a change, leave the new verdict to goldnode-watch.service, as the unit does",
    )


def _plan(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--absent",
        action="store_true",
        help="remove everything that goldnode installed, by the node's record",
    )


def _apply(command: argparse.ArgumentParser) -> None:
    _plan(command)
    command.add_argument(
        "--part",
        choices=PARTS,
        metavar="PART",
        help=f"part to apply, required without --absent: {', '.join(PARTS)}",
    )


OWN: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "check": _check,
    "plan": _plan,
    "apply": _apply,
    "policy": _policy,
}
