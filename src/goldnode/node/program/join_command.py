"""`goldnode-node join`: make a machine that runs a vendor's image a member of a class, at its first boots.

The user data of `goldnode class user-data` runs it in the last stage of cloud-init, at each boot until the machine is
a member: plan, apply, reboot where the plan needs it, and judge in the boot after that. RECORD (schema goldnode.join/1)
says how far it got. It lies with the data of cloud-init: `cloud-init clean` makes the machine a new one, and a removal
of goldnode does not make it join again.

A machine joins once. What moves it later is site.yml or a rollout, and the document in the user data is older than
theirs: it must not undo what they did.
"""

from __future__ import annotations

import json
import sys
import time

from ..ground.errors import NodeError
from ..ground.host import Host, boot_identity
from ..ground.typed import NamedTuple
from ..state.domains.program import document_digest
from ..state.engine import plan
from ..state.model import PARTS
from ..state.observe import load_json
from ..state.removal import own_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from ..ground.document import ClassDocument
    from ..ground.host import Json
    from ..state.model import Plan

RECORD, SCHEMA = "/var/lib/cloud/data/goldnode-join.json", "goldnode.join/1"
INSTANCE = "/var/lib/cloud/data/instance-id"  # written by cloud-init before the last stage
APPLYING, REBOOTING, JOINED = "applying", "rebooting", "joined"
# Seconds to wait for dpkg's lock: the first update of an image itself is slow.
PATIENCE = 900
ABOUT = """Run by the user data that `goldnode class user-data` prints. Exit status: 0 the machine is a member and its verdict is
accepted, or it reboots now; otherwise the status of `goldnode-node check`, or 3 if nothing more could be done. Run it again after
any interruption."""


class JoinDecision(NamedTuple):
    """Whether to go on, and the reason for a person if not; `refused`: the reason is an error."""

    go: bool
    reason: str = ""
    refused: bool = False


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.epilog = ABOUT
    parser.add_argument(
        "--class",
        dest="document",
        required=True,
        metavar="FILE",
        help="class document (`goldnode class export`)",
    )
    parser.add_argument(
        "--accept",
        type=int,
        choices=(1, 2, 3, 4),
        action="append",
        default=[],
        metavar="CODE",
        help="accept this exit status of the check too; repeatable",
    )
    parser.add_argument(
        "--no-reboot",
        action="store_true",
        help="leave a reboot that the plan needs to a person; it exits with 3 until then",
    )


def run(host: Host, options: Any) -> int:
    """Run the command. Return the exit code. Raises NodeError, which exits with 3."""
    from . import main  # it imports the check, which a refused command line does not need

    if not host.live:
        raise NodeError("join is for the running machine: a root directory is made by site.yml.")
    if options.archive is None:
        raise NodeError(
            "join installs its own file on the machine: run it from the file goldnode-node."
        )
    document = main.read_document(host, options)
    if document.get("digest") != document_digest(document):
        raise NodeError(
            f"{options.document}: its content does not have the digest that it states. Print the user data again."
        )
    instance = (host.text(INSTANCE) or "").strip()
    record = read(host)
    chosen = decide(record, own_document(host), document, instance)
    if chosen.refused:
        raise NodeError(chosen.reason)
    if not chosen.go:
        say(chosen.reason)
        return 0
    return Join(host, document, options, begun(record, document, instance)).run()


def say(text: str) -> None:
    """Print a line at once: cloud-init passes it to the journal, its log and the console."""
    for line in text.splitlines():
        print(f"goldnode: {line}", flush=True)


def read(host: Host) -> Json:
    """Return the record; empty without one, or for one that another version wrote."""
    record = load_json(host, RECORD)
    return record if isinstance(record, dict) and record.get("schema") == SCHEMA else {}


def decide(
    record: Json, own: Optional[ClassDocument], wanted: ClassDocument, instance: str
) -> JoinDecision:
    """Return whether the machine is to be made a member now. Pure.

    :param own: the class document on the machine.
    :param wanted: that of the user data.
    """
    joined, here = record.get("state") == JOINED, record.get("instance") == instance
    name, digest = wanted["class"], wanted["digest"]
    has, of = (None, "") if own is None else (own.get("digest"), own.get("class"))
    if joined and here:
        then = f"this machine joined class {record.get('class')} on {record.get('time')}"
        if digest != record.get("digest"):
            then += ", and the user data has had another class document since"
        return JoinDecision(False, f"{then}: nothing is done")
    if has is None or has == digest:
        return JoinDecision(True)
    if not joined and has in record.get(
        "digests", ()
    ):  # of an earlier user data, not applied to its end
        return JoinDecision(True)
    about = f"this machine is of class {of} by another document ({str(has)[:19]})"
    if here:
        return JoinDecision(False, f"{about}, which something else applied since: nothing is done")
    return JoinDecision(
        False,
        f"{about} already: nothing is changed. Move it with site.yml or a rollout, or start class {name} from a vendor's image.",
        refused=True,
    )


def begun(record: Json, document: ClassDocument, instance: str) -> Dict[str, Any]:
    """Return the record of a run that begins, with what an earlier one of this instance left."""
    earlier = record if record.get("instance") == instance else {}
    # Also of another instance: cloud-init reads corrected user data only for a new instance ID.
    before = record.get("digests", ()) if record.get("state") != JOINED else ()
    digests = list(dict.fromkeys([*before, document["digest"]]))
    return {
        "schema": SCHEMA,
        "instance": instance,
        "class": document["class"],
        "digest": document["digest"],
        "digests": digests,
        "state": APPLYING,
        "boot": earlier.get("boot"),
        "reasons": [],
        "verdict": None,
        "time": None,
    }


class Join:
    """One run on a machine that is not a member yet."""

    def __init__(
        self, host: Host, document: ClassDocument, options: Any, record: Dict[str, Any]
    ) -> None:
        self.host, self.document, self.options, self.record = host, document, options, record
        self.payloads = {"program": {"sha256": options.engine, "file": options.archive}}
        self.boot = boot_identity(host)

    def write(self, **fields: Any) -> None:
        """Update the record on the disk."""
        self.record.update(fields, time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        self.host.write(RECORD, (json.dumps(self.record, indent=1) + "\n").encode(), 0o644)

    def run(self) -> int:
        """Plan, apply, reboot or judge. Return the exit code. Raises NodeError."""
        from ..verdict.report import plan_text  # start-up time: texts for a person

        self.write()
        planned = plan(self.host, self.document, self.payloads, lock_timeout=PATIENCE, say=say)
        say(
            f"class {self.document['class']} {self.document['digest']}, instance {self.record['instance']}"
        )
        say("the plan:\n" + plan_text(planned.to_json()))
        if planned.refusals:
            raise NodeError(
                "nothing was changed: " + "; ".join(row.line() for row in planned.refusals)
            )
        changed = bool(planned.actions)
        planned = self.apply(planned)
        if planned.held:
            raise NodeError("it must not be rebooted as it is now: " + "; ".join(planned.held))
        if planned.reboot:
            # A reboot that changed nothing is not repeated: that would never end.
            if self.record["boot"] not in (None, self.boot) and not changed:
                raise NodeError(
                    f"it was rebooted, and still needs a reboot: {'; '.join(planned.reboot)}. See `goldnode-node check` and the "
                    "console of the boot."
                )
            return self.reboot(planned)
        if planned.waiting:
            raise NodeError(
                "it was applied, except for what waits until nothing uses a GPU: "
                + "; ".join(f"{row.subject}: {row.message}" for row in planned.waiting)
            )
        return self.judge()

    def apply(self, planned: Plan) -> Plan:
        """Apply each part that differs. Return the plan of what is left, without actions. Raises NodeError."""
        from ..gate.handlers import HANDLERS  # start-up time: a member has nothing to apply
        from ..state import apply as applying

        report = applying.teller(self.host)

        def both(text: str) -> None:
            report(text)
            say(text)

        for part in PARTS:
            if planned.part(part):
                planned = applying.apply(
                    self.host,
                    document=self.document,
                    part=part,
                    payloads=self.payloads,
                    say=both,
                    handlers=HANDLERS,
                    lock_timeout=PATIENCE,
                )[2]
        if planned.actions:
            left = "; ".join(action.line() for action in planned.actions)
            raise NodeError(f"it still differs after each part was applied: {left}. Run it again.")
        return planned

    def reboot(self, planned: Plan) -> int:
        """Reboot once cloud-init has ended. Return the exit code. Raises NodeError if that cannot be done."""
        reasons = "; ".join(planned.reboot)
        if self.options.no_reboot:
            raise NodeError(
                f"it was applied, and has to be rebooted: {reasons}. Reboot it; the next boot goes on."
            )
        # Before the effect: the next boot has to know that this one was left for a reboot.
        self.write(state=REBOOTING, boot=self.boot, reasons=list(planned.reboot))
        # A reboot from here would kill cloud-init, which does not repeat what it has begun: modules behind this one, such
        # as the commands of the user's own `runcmd`, would be lost. The job waits until its last stage has ended.
        done = self.host.run(
            "systemd-run",
            "--no-block",
            "--collect",
            "--quiet",
            "--description=goldnode: reboot into class " + self.document["class"],
            "--property=After=cloud-final.service",
            "systemctl",
            "reboot",
        )
        if done.rc != 0:
            raise NodeError(
                f"it was applied, and cannot be rebooted: {done.tail()}. Reboot it; the next boot goes on."
            )
        say(f"applied; it reboots now, and is judged after that: {reasons}")
        return 0

    def judge(self) -> int:
        """Check the machine as a member of its class. Return the exit code."""
        from . import main  # as above

        code = main.run_check(self.host, main.check_options(["check"]))
        accepted = code == 0 or code in self.options.accept
        self.write(state=JOINED if accepted else APPLYING, boot=None, verdict=code)
        name = self.document["class"]
        if accepted:
            say(f"this machine is a member of class {name}; exit status of its check: {code}")
            return 0
        sys.stdout.flush()  # the table of the check comes first
        print(
            f"goldnode-node: applied, but the check of class {name} ends with {code}, as its table above shows. The next boot "
            "repeats it, or run `goldnode-node check`.",
            file=sys.stderr,
            flush=True,
        )
        return code


def main(engine: Optional[str], archive: Optional[str], given: List[str]) -> int:
    """Run the command of a command line. Return the exit code.

    :param engine: digest of the program's file.
    :param archive: path of that file.
    """
    from .arguments import parse  # as for every command of argparse

    options = parse(given)
    options.engine, options.archive = engine, archive
    try:
        return run(Host(options.root), options)
    except NodeError as problem:
        from ..ground.fault import expected  # no other start has anything to report

        return expected(problem, None)
