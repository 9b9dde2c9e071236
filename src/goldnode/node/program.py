"""goldnode-node, the program installed on a node. One file; needs only Python 3.9 or newer.

Exit codes of `check`: 0 healthy, 1 degraded, 2 drain, 3 could not check, 4 not this class. Wrong usage and
faults of this program also exit with 3.
"""

from __future__ import annotations

import os
import sys
import time

from . import boot, gate
from . import quickjson as json
from .host import Host, Json, boot_identity
from .lines import by_lines
from .plain import asdict, suppress
from .report import finding_lines, plan_text, verdict_table
from .state import owners
from .state.domains.program import CLASS
from .state.engine import plan, plan_absent
from .state.finding import ELSEWHERE, MISMATCH, UNREAD, Finding
from .state.model import NodeError
from .state.remedy import PERSON, Remedy
from .verdict import check as checking
from .verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence


FLAGS = ("json", "quiet", "no_write", "no_gate", "passive", "cached")


# Types of the parts of a class document. A document with other types is refused before any code uses it.
SHAPES: Dict[str, Any] = {
    **dict.fromkeys(("class", "digest"), str),
    **dict.fromkeys(
        ("os", "stack", "lock", "kernel", "platform", "policy", "baseline", "site", "health", "xid"), dict
    ),
    **dict.fromkeys(("packages", "modules", "blacklist", "fence", "suppressions"), list),
    **dict.fromkeys(("gpu", "driver", "runtime"), (dict, type(None))),
}


class Flags:
    """Parsed options of the fast path, in place of argparse's."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def plain(given: Sequence[str]) -> Any:
    """Parse the arguments of a check of this node that has only flags, as its units start it.

    Return None for any other arguments, which :mod:`.words` parses. Importing argparse and defining every
    command takes as long as a probe of the node.
    """
    flags = {"--" + name.replace("_", "-"): name for name in FLAGS}
    if given[:1] != ["check"] or not flags.keys() >= set(given[1:]):
        return None
    said = {flags[word] for word in given[1:]}
    return Flags(
        command="check", document=CLASS, root="/", record=None, **{name: name in said for name in FLAGS}
    )


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one command. Return the exit code.

    Only NodeError is handled here. The caller (__main__.py) reports any other failure, with exit code 3 too.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = plain(given)
    if options is None:
        from .words import parse

        options = parse(given)
    try:
        return run(options)
    except NodeError as problem:
        print(f"goldnode-node: {problem}", file=sys.stderr)
    return checking.UNKNOWN


def run(options: Any) -> int:
    """Run the command that the options name."""
    host = Host(options.root)
    if hasattr(options, "run"):
        return int(options.run(host, options))
    if options.command == "check":
        if options.cached:
            return current.answer(["--json"] * options.json + ["--quiet"] * options.quiet, options.root)
        return run_check(host, options)
    if options.command == "policy":
        return run_policy(host, options)
    if options.absent:
        return run_absent(host, options)
    document = read_document(host, options)
    if options.command == "plan":
        told = plan(host, document).to_json()
    else:
        from .state import apply as applying  # imported here: read-only commands do not need it

        done, _, after = applying.apply(
            host, document, options.part, {}, lambda text: print(text, file=sys.stderr)
        )
        told = after.to_json()
        told["done"] = done
    print(json.dumps(told, indent=1, sort_keys=True) if options.json else plan_text(told))
    return 0


def run_absent(host: Host, options: Any) -> int:
    """Show the plan that removes goldnode from the node, or carry it out.

    Ignores a class named on the command line: only the node's own class matters.
    """
    if options.command == "plan":
        told = plan_absent(host).to_json()
    else:
        from .state import apply as applying

        done, _, after = applying.withdraw(host, lambda text: print(text, file=sys.stderr))
        told = after.to_json()
        told["done"] = done
    print(json.dumps(told, indent=1, sort_keys=True) if options.json else plan_text(told))
    return 0


def run_check(host: Host, options: Any) -> int:
    """Judge the node, write and print the verdict, and let the gate act on it.

    Only the live machine has a gate, and only its own class decides, not one named with --class.
    """
    if options.record:
        return run_recorded(host, options)
    document = None
    checked = None
    try:
        document = read_document(host, options)
        checked = checking.examine(host, document, passive=options.passive)
        verdict = checked.verdict
    except NodeError as problem:
        remedy = (
            "Run site.yml for this host."
            if options.document == CLASS
            else "Name what `goldnode class export CLASS` has written."
        )
        verdict = unreadable(host, options.passive, str(problem), remedy)
    except (
        Exception
    ) as problem:  # The gate must also see a failure of the check itself: the state of the node is unknown.
        from . import fault  # imported here: only a failed check needs it

        fault.trace(problem)
        verdict = unreadable(host, options.passive, *fault.explained(problem))
    own = host.live and options.document == CLASS and not options.no_write
    if own and document is not None:
        verdict = settled(host, document, verdict, options.passive)
    if own and checked is not None:
        try:
            checking.keep(host, checked)
        except OSError as problem:
            verdict = checking.unkept(verdict, problem)
    text = by_lines(verdict)
    # Continue on a full /run or a closed output: neither may prevent the drain of a bad node.
    unwritten: List[OSError] = []
    if not options.no_write:
        try:
            host.write(checking.VERDICT, text.encode())
        except OSError as problem:
            unwritten.append(OSError(problem.errno, problem.strerror, host.located(checking.VERDICT)))
            with suppress(OSError):
                host.remove(checking.VERDICT)  # an earlier verdict must not count instead
    try:
        if options.json:
            print(text)
        else:
            table = verdict_table(verdict)
            print(table.splitlines()[-1] if options.quiet else table)
    except OSError as problem:
        unwritten.append(problem)
    told = gate.act(host, document, verdict) if own and not options.no_gate else []
    if own:
        # only disks with two slots have this finding
        if any(row["id"] == "slot.fallback" for row in verdict["findings"]):
            from . import slots

            slots.tell(host, verdict)
        from .serve import publish

        told += publish.publish(host, document, verdict, checked.capture if checked is not None else None)
    for line in told:
        print(line, file=sys.stderr)
    if unwritten:
        raise unwritten[0]  # __main__.py reports it, with exit code 3
    return int(verdict["exit_code"])


def run_recorded(host: Host, options: Any) -> int:
    """Judge a recorded capture against the named class, or the class of this machine. Writes nothing."""
    from .probe import command

    document = read_document(host, options)
    verdict = checking.check(host, document, captured=command.load(options.record))
    if options.json:
        print(by_lines(verdict))
    else:
        text = verdict_table(verdict)
        print(text.splitlines()[-1] if options.quiet else text)
    return int(verdict["exit_code"])


def settled(host: Host, document: Json, verdict: Json, passive: bool) -> Json:
    """Apply the other effects of a verdict: confirm a kernel on trial, and record a good class document.

    Return the resulting verdict.
    """
    from .state import applied, trial

    told = trial.settle(host, document, verdict)
    if told:
        print(told, file=sys.stderr)
        verdict = checking.check(host, document, passive=passive)
    if not gate.reasons(verdict):
        applied.mark(host, document, good=True)
    return verdict


def run_policy(host: Host, options: Any) -> int:
    """Run `policy apply`, `assert` or `export`."""
    if options.verb == "export":
        return export_policy(host, options)
    from .state import reapply

    document = read_document(host, options)
    changed: List[Any] = []
    if options.verb == "apply":
        changed, findings = reapply.reapply(host, document, lambda text: print(text, file=sys.stderr))
    else:
        findings = reapply.judged(document, reapply.outstanding(host, document)[0])
    outcomes = {finding.outcome for finding in findings}
    code = (
        checking.UNKNOWN
        if outcomes & {UNREAD, ELSEWHERE}
        else checking.DEGRADED
        if MISMATCH in outcomes
        else checking.HEALTHY
    )
    if options.json:
        print(
            json.dumps(
                {
                    "exit_code": code,
                    "changed": [a.line() for a in changed],
                    "findings": [checking.as_json(f) for f in findings],
                },
                indent=1,
            )
        )
    else:
        print("\n".join(finding_lines([asdict(finding) for finding in findings])))
    return code


def export_policy(host: Host, options: Any) -> int:
    """Print the settings of the GPUs: of AMD GPUs if only amdgpu is loaded, otherwise of NVIDIA GPUs."""
    from .device import export
    from .device.child import ask

    vendor = (
        "amd" if host.exists("/sys/module/amdgpu") and not host.exists("/sys/module/nvidia") else "nvidia"
    )
    answer = ask(host, {"do": "read", "vendor": vendor, "root": host.root})
    if "error" in answer:
        raise NodeError(f"the GPUs cannot be read: {answer['error']}. Look at dmesg on the node.")
    found = export.policy(answer)
    if not found:
        raise NodeError("no GPU answers, so there is no policy to print. Look at `goldnode-node check`.")
    print(json.dumps(found, indent=1) if options.json else "\n".join(export.yaml(found)))
    return checking.HEALTHY


def unreadable(host: Host, passive: bool, reason: str, remedy: str) -> Json:
    """Return the verdict of a check that could not run. Its exit code is always 3."""
    finding = Finding(
        "check",
        UNREAD,
        "drain",
        "a class document and a node to hold against it",
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


def believe(host: Host) -> None:
    """Refuse a class document that users other than root can change. It names commands that the gate runs as
    root.
    """
    found = host.lstat(CLASS) if host.live else None
    if found is None:
        return
    have = owners.row(host, CLASS, found)
    wrong = [f"it is {owners.kind(have)}"] if have["type"] != "file" else owners.exposed(have)
    if wrong:
        raise NodeError(
            f"{CLASS} is not believed: {'; '.join(wrong)}. Find out who changed it, then run site.yml for "
            "this host."
        )


def read_document(host: Host, options: Any) -> Json:
    """Return the class document named on the command line (a path of this machine), or the node's own."""
    name = options.document
    where = host if name == CLASS else Host("/")
    text = where.text(name if name.startswith("/") else os.path.abspath(name))
    # A run installs only the node's own document, so a file named with --class needs another remedy.
    remedy = (
        "Run site.yml for this host"
        if name == CLASS
        else "Write it with `goldnode class export CLASS > class.json`"
    )
    if name == CLASS:
        believe(host)
    if text is None:
        other = (
            ", or name with --class what `goldnode class export CLASS` has written" if name == CLASS else ""
        )
        raise NodeError(f"{name}: there is no class document. {remedy}{other}.")
    try:
        document = json.loads(text)
    except ValueError as problem:
        raise NodeError(f"{name}: not JSON ({problem}). {remedy}.") from None
    if not isinstance(document, dict) or document.get("schema") != "goldnode.class/1":
        raise NodeError(
            f"{name}: not a class document of schema goldnode.class/1. Export it with `goldnode class "
            "export`."
        )
    wrong = [key for key, kinds in SHAPES.items() if key in document and not isinstance(document[key], kinds)]
    if wrong:
        raise NodeError(f"{name}: not a class document, its {', '.join(wrong)} cannot be that. {remedy}.")
    return document
