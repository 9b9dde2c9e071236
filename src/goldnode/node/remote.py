"""What a controller asks of the program in one call: a request as JSON on standard input, the answer as one line of JSON on standard output.

The request: {operation: plan|apply|survey, state: present|absent|earlier, part, document, lock_timeout, to}. `earlier` takes the node back to a class
document that it has had; `to` says to which (state/rollback.py). The answer is the result of Ansible's module
goldnode_state, so {changed, plan, done, verdict, gate, rollback}, or {failed: true, msg, done, refusals}. The program that answers is the one that it
puts on the node, so that nothing else has to travel for that.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys

from .host import PROGRAM, Host
from .lines import by_lines
from .state.engine import plan, plan_absent
from .state.model import ABSENT, EARLIER, NodeError
from .state.observe import INITRAMFS_CACHE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional


COPIES = "/run/goldnode/program"  # of this program in byte code (__main__.py)


def answer(engine: Optional[str], archive: Optional[str]) -> int:
    """Answer the request on standard input. `engine` and `archive` are digest and path of the file that runs. Returns the exit status."""
    request = json.load(sys.stdin)
    host = Host(request.get("root") or "/")
    try:
        if request["operation"] == "survey":
            from .survey import survey  # a run of site.yml does not need it

            told: Dict[str, Any] = {"changed": False, "survey": survey(host)}
            if not host.exists(PROGRAM):
                forget_program(host)
        elif request["operation"] == "plan":
            told = {"changed": False, **planned(host, request, engine)}
        else:
            told = applied(host, request, engine, archive)
    except NodeError as problem:
        told = {"failed": True, "msg": str(problem)}
        told.update(
            {
                name: value
                for name in ("done", "refusals")
                for value in [getattr(problem, name, None)]
                if value
            }
        )
    print(json.dumps(told))
    return 0


def planned(host: Host, request: Mapping[str, Any], engine: Optional[str]) -> Dict[str, Any]:
    """The plan, as JSON has it, and for a way back what it is about: {plan, rollback}."""
    timeout = float(request["lock_timeout"])
    payloads = {"program": {"sha256": engine}}
    if request["state"] == EARLIER:
        from .state import rollback

        return rollback.planned(host, str(request.get("to") or ""), payloads, timeout)
    if request["state"] == ABSENT:
        found = plan_absent(host, timeout)
        if not found.actions:
            forget_program(host)
        return {"plan": found.to_json()}
    told = plan(host, request["document"], payloads, lock_timeout=timeout).to_json()
    if not host.exists(PROGRAM):  # a node that was only asked keeps nothing of whoever asked
        host.remove(INITRAMFS_CACHE)
        forget_program(host)
    return {"plan": told}


def forget_program(host: Host) -> None:
    """Remove what the program has left to start quickly: a node that was only asked stays as it was. A process that runs keeps its open copy."""
    shutil.rmtree(host.located(COPIES), ignore_errors=True)
    with contextlib.suppress(OSError):  # something else is in it, or it never was
        host.path(COPIES).parent.rmdir()


def applied(
    host: Host, request: Mapping[str, Any], engine: Optional[str], archive: Optional[str]
) -> Dict[str, Any]:
    """One part brought, or everything taken away."""
    from . import gate
    from .state import applied as kept
    from .state import apply as applying  # what only plans does not wait for the import of what writes
    from .verdict import check as checking

    timeout = float(request["lock_timeout"])
    if request["state"] == ABSENT:
        done, _, after = applying.withdraw(host, applying.teller(host), timeout)
        return {"changed": bool(done), "done": done, "plan": after.to_json(), "gate": []}
    document = request["document"]
    payloads: Dict[str, Any] = {"program": {"sha256": engine, "file": archive}}
    about = None
    if request["state"] == EARLIER:
        from .state import rollback

        try:
            document, about = rollback.chosen(host, str(request["to"]))
        except kept.GoneError as problem:
            raise NodeError(f"{problem.message} {problem.remedy}") from None
        payloads["back"] = True
    if request.get("sources"):
        payloads["sources"] = request["sources"]
    done, _, after = applying.apply(host, document, request["part"], payloads, applying.teller(host), timeout)
    if not host.live:  # what does not run is not judged
        return {"changed": bool(done), "done": done, "plan": after.to_json(), "gate": []}
    # A verdict is of the node as it is: whatever was changed, it is judged anew.
    verdict = checking.check(host, document)
    host.write(checking.VERDICT, by_lines(verdict).encode())
    if not after.actions and not gate.reasons(verdict):
        kept.mark(host, document, good=True)
    # The gate acts once a run has brought everything, not on the states in between; the passive check acts on what a failed run leaves.
    acted = [] if after.actions else gate.act(host, document, verdict)
    return {
        "changed": bool(done),
        "done": done,
        "plan": after.to_json(),
        "verdict": verdict,
        "gate": acted,
        "rollback": about,
    }
