"""goldnode-node: the program installed on a node. One file, Python 3.9 or newer, no other dependencies.

Exit codes of `check`: 0 healthy, 1 degraded, 2 drain, 3 could not check, 4 not this class. Wrong
usage and faults of this program also exit with 3.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ..gate import gate
from ..ground import boot
from ..ground.errors import NodeError
from ..ground.host import Host, Json, boot_identity
from ..ground.json_lines import by_lines
from ..ground.typed import cast
from ..state import owners
from ..state.domains.program import CLASS, document_digest
from ..state.engine import plan, plan_absent
from ..state.finding import ELSEWHERE, MISMATCH, UNREAD, Finding
from ..state.remedy import PERSON, Remedy
from ..verdict import check as checking
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

    from ..ground.document import ClassDocument


# One of these exists on every node that site.yml has converged, or has begun to converge.
MANAGED = ("/etc/goldnode", "/usr/lib/goldnode")
FLAGS = ("quiet", "no_write", "no_gate", "passive", "cached", "defer")


# Types of the parts of a class document. Other types are refused before any code works with the
# document.
SHAPES: Dict[str, Any] = {
    **dict.fromkeys(("class", "digest"), str),
    **dict.fromkeys(
        (
            "os",
            "stack",
            "lock",
            "kernel",
            "platform",
            "policy",
            "baseline",
            "site",
            "health",
            "xid",
            "return_tests",
        ),
        dict,
    ),
    **dict.fromkeys(("packages", "modules", "blacklist", "fence", "suppressions"), list),
    **dict.fromkeys(("gpu", "driver", "runtime"), (dict, type(None))),
}


class Flags:
    """Parsed options of the quick path, in place of argparse's namespace."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def check_options(given: Sequence[str]) -> Any:
    """Return the options of a check of this node with flags alone, as its units start it; None for
    any other arguments, which :mod:`.arguments` parses.

    Importing argparse and declaring every command takes as long as a probe of the node.
    """
    flags = {"--" + name.replace("_", "-"): name for name in FLAGS}
    form, rest = current.split(given)
    if form is None or given[:1] != ["check"] or not flags.keys() >= set(rest[1:]):
        return None
    given_flags = {flags[word] for word in rest[1:]}
    return Flags(
        command="check",
        document=CLASS,
        root="/",
        record=None,
        format=form,
        **{name: name in given_flags for name in FLAGS},
    )


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one command. Return the exit code.

    Reports a NodeError itself. The caller (__main__.py) reports any other failure, which is exit
    code 3 as well.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = check_options(given)
    if options is None:
        # Start-up time: a usual check has no options that need argparse.
        from .arguments import parse

        options = parse(given)
    try:
        if options.root != "/":
            from .foreign import enter  # start-up time: only where another root is named

            enter(options.root, given, getattr(options, "document", CLASS), CLASS)
        return run(options)
    except NodeError as problem:
        from ..ground.fault import expected  # no other start has anything to report

        return expected(problem, getattr(options, "format", None))


def run(options: Any) -> int:
    """Run the command that the options name. Return the exit code."""
    host = Host(options.root)
    if hasattr(options, "run"):
        return int(options.run(host, options))
    if options.command == "check":
        if options.cached:
            return current.answer(options.format, options.quiet, options.root)
        return run_check(host, options)
    if options.command == "policy":
        return run_policy(host, options)
    if options.absent:
        return run_absent(host, options)
    document = read_document(host, options)
    if options.command == "plan":
        planned = plan(host, document).to_json()
    else:
        from ..gate.handlers import HANDLERS
        from ..state import apply as applying  # imported here, to keep `plan` quick

        done, _, after = applying.apply(
            host,
            document=document,
            part=options.part,
            payloads={},
            say=lambda text: print(text, file=sys.stderr),
            handlers=HANDLERS,
        )
        planned = after.to_json()
        planned["done"] = done
        # The gate goes by the node's own class, not by one that is named.
        if done and host.live and options.document == CLASS:
            from .judging import judge  # start-up time: a plan does not judge

            for line in judge(host, document, not after.actions)[1]:
                print(line, file=sys.stderr)
    show_plan(planned, options)
    return 0


def run_absent(host: Host, options: Any) -> int:
    """Show what removes goldnode from the node, or remove it. Ignores the class named on the
    command line: the node's own class decides.
    """
    if options.command == "plan":
        planned = plan_absent(host).to_json()
    else:
        from ..gate.handlers import HANDLERS
        from ..state import apply as applying

        done, _, after = applying.withdraw(
            host, lambda text: print(text, file=sys.stderr), handlers=HANDLERS
        )
        planned = after.to_json()
        planned["done"] = done
    show_plan(planned, options)
    return 0


def show_plan(planned: Json, options: Any) -> None:
    """Print a plan, with what was done of it."""
    if options.format == "json":
        print(json.dumps(planned, indent=1, sort_keys=True))
    else:
        from ..verdict.report import plan_text  # start-up time: texts for a person

        print(plan_text(planned))


def run_check(host: Host, options: Any) -> int:
    """Judge the node, write and print the verdict, and apply it to the gate.

    Only the live machine has a gate, and only its own class decides it, not a class named with --class.
    """
    if options.record:
        return run_recorded(host, options)
    if options.document == CLASS and not managed(host):
        return run_undeclared(host, options)
    document = None
    checked = None
    try:
        document = read_document(host, options)
        checked = judged(host, document, options.document, passive=options.passive)
        verdict = checked.verdict
    except NodeError as problem:
        remedy = "Run site.yml for this host."
        if options.document != CLASS:
            remedy = "Name what `goldnode class export CLASS` has written."
        verdict = unreadable(host, options.passive, str(problem), remedy)
    except Exception as problem:
        # The gate must act on a failed check too: the state of the node is unknown.
        from ..ground import fault  # imported only after a failure

        fault.trace(problem)
        verdict = unreadable(host, options.passive, *fault.explained(problem))
    # An ordinary user gets the answer alone: only root can store the node's verdict and act on it.
    asked = host.live and os.geteuid() != 0
    own = host.live and options.document == CLASS and not options.no_write and not asked
    if own and document is not None and not options.defer:
        verdict = settled(host, document, verdict, options.passive)
    messages: List[str] = []
    unwritten: List[OSError] = []
    if own:
        # Start-up time: a check that writes nothing does not need it.
        from .judging import deliver, store

        if options.defer:
            done = store(host, verdict, checked)
        else:
            done = deliver(host, document, verdict, checked, not options.no_gate)
        verdict, messages = done.verdict, done.messages
        unwritten += [done.unwritten] if done.unwritten is not None else []
    elif not options.no_write and not asked:
        try:
            gate.save(host, verdict, by_lines(verdict))
        except OSError as problem:
            unwritten.append(
                OSError(problem.errno, problem.strerror, host.located(checking.VERDICT))
            )
    try:
        shown(verdict, options)
    except OSError as problem:
        unwritten.append(problem)
    if own and not options.defer:
        show_fallback(host, verdict)
    for line in messages:
        print(line, file=sys.stderr)
    if unwritten:
        raise unwritten[0]  # __main__.py reports it, with exit code 3
    return int(verdict["exit_code"])


def show_fallback(host: Host, verdict: Json) -> None:
    """Show at logins whether a newer image has failed, on a disk with two slots."""
    if any(row["id"] == "slot.fallback" for row in verdict["findings"]):
        from ..state import slots  # start-up time: only after a fallback

        slots.show_failure(host, verdict)


def managed(host: Host) -> bool:
    """Return whether goldnode manages this node, or whether it is an image.

    A managed node that has lost its class document must not be judged like a node that never had a
    class: that would open the gate.
    """
    return not host.live or any(host.exists(path) for path in MANAGED)


def run_undeclared(host: Host, options: Any) -> int:
    """Judge a node without a class, by the facts of its GPUs. Writes nothing, and applies nothing to the
    gate.
    """
    from ..ground.known import facts  # start-up time: nodes with a class do not need the facts
    from ..verdict import undeclared

    captured = None
    if options.record:
        from ..probe import command  # start-up time: only for a recorded capture

        captured = command.load(options.record)
    return shown(undeclared.examine(host, facts(), options.passive, captured), options)


def run_recorded(host: Host, options: Any) -> int:
    """Judge a recorded capture on any machine. Writes nothing.

    Judges it against the class named on the command line or that of this machine, otherwise by the
    facts of its GPUs.
    """
    if options.document == CLASS and not host.exists(CLASS):
        return run_undeclared(host, options)
    from ..probe import command  # start-up time: only for a recorded capture

    document, captured = read_document(host, options), command.load(options.record)
    return shown(judged(host, document, options.document, captured=captured).verdict, options)


def judged(host: Host, document: ClassDocument, name: str, **how: Any) -> checking.Checked:
    """Return what :func:`checking.examine` does. Raises NodeError where an edited class document is why it fails."""
    try:
        return checking.examine(host, document, **how)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        if document.get("digest") == document_digest(document):
            raise
        from ..ground import fault  # imported only after a failure

        raise NodeError(
            f"{name}: the class document is not as it was compiled: its digest is another, and a part of it cannot be read "
            f"({fault.brief(problem)}). Export it again with `goldnode class export CLASS`, or run site.yml for this host."
        ) from problem


def shown(verdict: Json, options: Any) -> int:
    """Print a verdict, and return its exit code."""
    if options.format == "json":
        print(by_lines(verdict))
    else:
        from ..verdict.report import verdict_table  # start-up time: texts for a person

        text = verdict_table(verdict)
        print(text.splitlines()[-1] if options.quiet else text)
    return int(verdict["exit_code"])


def settled(host: Host, document: ClassDocument, verdict: Json, passive: bool) -> Json:
    """Apply the other effects of a verdict: finish the trial of a kernel, and record a good class
    document. Return the resulting verdict.
    """
    from ..state import applied, trial

    outcome = trial.settle(host, document, verdict)
    if outcome:
        print(outcome, file=sys.stderr)
        verdict = checking.check(host, document, passive=passive)
    if not gate.reasons(verdict):
        applied.mark(host, document, good=True)
    return verdict


def run_policy(host: Host, options: Any) -> int:
    """Run `policy apply`, `assert` or `export`. Return the exit code."""
    if options.verb == "export":
        return export_policy(host, options)
    from ..state import reapply

    document = read_document(host, options)
    changed: List[Any] = []
    if options.verb == "apply":
        changed, findings = reapply.reapply(
            host, document, lambda text: print(text, file=sys.stderr)
        )
        if changed and host.live and options.document == CLASS:
            for line in _judged_again(host, document, options.defer):
                print(line, file=sys.stderr)
    else:
        findings = reapply.judged(document, reapply.outstanding(host, document)[0])
    outcomes = {finding.outcome for finding in findings}
    code = checking.HEALTHY
    if MISMATCH in outcomes:
        code = checking.DEGRADED
    if outcomes & {UNREAD, ELSEWHERE}:  # what could not be read may differ, too
        code = checking.UNKNOWN
    if options.format == "json":
        print(
            json.dumps(
                {
                    "schema": "goldnode.policy-report/1",
                    "exit_code": code,
                    "changed": [a.line() for a in changed],
                    "findings": [checking.as_json(f) for f in findings],
                },
                indent=1,
            )
        )
    else:
        from ..verdict.report import finding_lines  # start-up time: texts for a person

        print("\n".join(finding_lines([finding._asdict() for finding in findings])))
    return code


def _judged_again(host: Host, document: ClassDocument, defer: bool) -> List[str]:
    """Replace the verdict, which was of the settings before. `defer`: by the unit of the passive check."""
    if defer:
        if current.load(host.root)[1] is None:
            from .watch import start

            start()
        return []
    from .judging import judge_again  # start-up time: most starts change nothing

    return judge_again(host, document)


def export_policy(host: Host, options: Any) -> int:
    """Print the settings of the GPUs: of AMD GPUs if only amdgpu is loaded, otherwise of NVIDIA GPUs."""
    from ..device import export
    from ..device.child import ask

    vendor = "nvidia"
    if host.exists("/sys/module/amdgpu") and not host.exists("/sys/module/nvidia"):
        vendor = "amd"
    answer = ask(host, {"do": "read", "vendor": vendor, "root": host.root})
    if "error" in answer:
        raise NodeError(f"the GPUs cannot be read: {answer['error']}. Look at dmesg on the node.")
    policy = export.policy(answer)
    if not policy:
        raise NodeError(
            "no GPU answers, so there is no policy to print. Look at `goldnode-node check`."
        )
    if options.format == "json":
        print(json.dumps({"schema": "goldnode.policy-export/1", **policy}, indent=1))
    else:
        print("\n".join(export.yaml(policy)))
    return checking.HEALTHY


def unreadable(host: Host, passive: bool, reason: str, remedy: str) -> Json:
    """Return the verdict of a check that failed as a whole: always exit code 3."""
    finding = Finding(
        "check",
        UNREAD,
        "a class document and a node to validate against it",
        reason,
        Remedy(remedy, PERSON),
    )
    return {
        "schema": checking.SCHEMA,
        "class": None,
        "class_digest": None,
        "lock_digest": None,
        "simulated": False,
        "boot_identity": boot_identity(host),
        "uptime": boot.uptime(host.text("/proc/uptime") or "") if host.live else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "passive": passive,
        "status": checking.STATUS[checking.UNKNOWN],
        "exit_code": checking.UNKNOWN,
        "counts": {**dict.fromkeys(checking.OUTCOMES, 0), UNREAD: 1},
        "findings": [checking.as_json(finding)],
    }


def _named(path: str) -> Optional[str]:
    """Return the text of a file of this machine, or None if it does not exist. It may be a link of /proc to an open file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_document(host: Host, options: Any) -> ClassDocument:
    """Return the class document named on the command line (a path of this machine), or the node's
    own. Raises NodeError if it is missing or invalid.
    """
    name = options.document
    text = host.text(name) if name == CLASS else _named(name)
    # A run of site.yml writes only the node's own document, not a file named with --class.
    remedy = "Write it with `goldnode class export CLASS > class.json`"
    other = ""
    if name == CLASS:
        remedy = "Run site.yml for this host"
        other = ", or name with --class what `goldnode class export CLASS` has written"
        owners.believe(host, CLASS)
        # Without it, the file of an image reads as that of the machine which checks it.
        name = host.root.rstrip("/") + name
    if text is None:
        raise NodeError(f"{name}: there is no class document. {remedy}{other}.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise NodeError(f"{name}: not JSON ({problem}). {remedy}.") from None
    if not isinstance(document, dict) or document.get("schema") != "goldnode.class/1":
        raise NodeError(
            f"{name}: not a class document of schema goldnode.class/1. "
            "Export it with `goldnode class export`."
        )
    wrong = not_a_document(document)
    if wrong:
        raise NodeError(f"{name}: {wrong}. {remedy}.")
    if options.document == CLASS:
        host.class_text = text
    return cast("ClassDocument", document)


def not_a_document(document: Any) -> Optional[str]:
    """Return why a value is not a class document; None if its parts have the right types."""
    if not isinstance(document, dict) or document.get("schema") != "goldnode.class/1":
        return "not a class document of schema goldnode.class/1"
    wrong = [
        key
        for key, kinds in SHAPES.items()
        if key in document and not isinstance(document[key], kinds)
    ]
    return f"not a class document, its {', '.join(wrong)} cannot be that" if wrong else None
