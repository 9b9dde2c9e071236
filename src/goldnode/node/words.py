"""Command line of the program, for argparse."""

from __future__ import annotations

import argparse
import importlib
import sys

from .state.domains.program import CLASS
from .state.model import PARTS
from .verdict.current import UNKNOWN, VERDICT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, NoReturn


POLICY = (
    "apply: set what the class says and read it back. assert: read only. export: print the policy this node "
    "has, for a class file.\nExit code 0 all as declared, 1 something differs, 3 something could not be set or read."
)


# Commands with their own modules, each with `arguments(parser)` and `run(host, options)`. A module is
# imported only for its command.
ELSEWHERE_RUN = {
    "capture": (
        "probe.command",
        "print what this node says of itself, as JSON; with --from: what a record says",
    ),
    "diagnose": (
        "diagnose.command",
        "five checks in order, two samples a second apart: which of the four bottlenecks it is",
    ),
    "ack": ("verdict.ack", "say that what was counted or seen until now is known and settled"),
    "watch-log": (
        "watch",
        "start the passive check when the kernel tells of a fault (runs as goldnode-events.service)",
    ),
    "slot": ("slotcommand", "the two root partitions of a disk: what they hold, and which boots next"),
    "serve": ("serve.command", "answer on the diagnostics endpoint (started by its socket)"),
}


class Parser(argparse.ArgumentParser):
    """Parser that exits with 3 on wrong usage. argparse would exit with 2, which here means `drain`."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(UNKNOWN)


def parse(given: List[str]) -> Any:
    """Parse a command line. Exits with 3 on wrong usage."""
    parser = Parser(
        prog="goldnode-node",
        description="Hold this node against its node class.",
        epilog="goldnode-node --version prints the digest of this program, as `goldnode --version` does.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, text in (
        (
            "check",
            "judge the node; exit code 0 healthy, 1 degraded, 2 drain, 3 could not check, 4 not this class",
        ),
        ("plan", "show what would be changed to make the node what its class says, and why"),
        ("apply", "apply one part of the plan"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--class",
            dest="document",
            default=CLASS,
            metavar="FILE",
            help=f"class document (default {CLASS})",
        )
        command.add_argument(
            "--root", default="/", metavar="DIR", help="another root filesystem than the running one"
        )
        command.add_argument("--json", action="store_true", help="print JSON")
        if name == "check":
            command.add_argument("--quiet", action="store_true", help="print the summary only")
            command.add_argument(
                "--from",
                dest="record",
                metavar="FILE",
                help="judge a recorded capture, or the output of nvidia-smi -q -x; nothing is written",
            )
            command.add_argument(
                "--no-write", action="store_true", help=f"do not write {VERDICT}, and leave the gate as it is"
            )
            command.add_argument(
                "--no-gate", action="store_true", help="write the verdict, and leave the gate as it is"
            )
            command.add_argument(
                "--passive", action="store_true", help="as the timer does: put no load of its own on the node"
            )
            command.add_argument(
                "--cached",
                action="store_true",
                help="tell the verdict that holds now, without looking at the node",
            )
        if name in ("plan", "apply"):
            command.add_argument(
                "--absent",
                action="store_true",
                help="take everything of goldnode's from the node, as its record says",
            )
        if name == "apply":
            command.add_argument(
                "--part",
                choices=PARTS,
                help="the part to apply; needed without --absent, which takes all away",
            )
    for name, (module, text) in ELSEWHERE_RUN.items():
        command = commands.add_parser(name, help=text, description=text)
        if given[:1] == [name]:
            found = importlib.import_module(f"{__package__}.{module}")
            command.add_argument(
                "--root", default="/", metavar="DIR", help="another root filesystem than the running one"
            )
            found.arguments(command)
            command.set_defaults(run=found.run)
    policy = commands.add_parser(
        "policy", help="set, judge or print what is set on the GPUs and the host", description=POLICY
    )
    policy.add_argument("verb", choices=("apply", "assert", "export"))
    policy.add_argument(
        "--class", dest="document", default=CLASS, metavar="FILE", help=f"class document (default {CLASS})"
    )
    policy.add_argument("--root", default="/", metavar="DIR", help=argparse.SUPPRESS)
    policy.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(given)
    if options.command == "apply" and bool(options.part) == options.absent:
        parser.error("apply wants one of --part and --absent")
    return options
