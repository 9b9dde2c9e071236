"""Requests of a controller, one per call: JSON on standard input, and the answer as one line of JSON on
standard output.

The request: {operation: plan|apply|survey|report, state: present|absent|earlier, part, document,
lock_timeout, to, claim, report, fresh}. `earlier` returns the node to a former class document,
which `to` names (state/rollback.py). With `claim`, an apply is refused unless it is the token in
CLAIM. With `report`, an answer also has the node's report (reporting.py). The answer is the result
of the Ansible module goldnode_state: {changed, plan, done, verdict, gate, rollback, report}, or
{failed: true, msg, done, refusals}. The program that answers is the file that it installs on the
node, so the controller sends nothing else.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys

from ..ground.errors import NodeError
from ..ground.host import PROGRAM, Host
from ..state.engine import plan, plan_absent
from ..state.model import ABSENT, EARLIER
from ..state.observe import INITRAMFS_CACHE, MODINFO_CACHE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional


COPIES = "/run/goldnode/program"  # compiled copies of this program (__main__.py)
# Token of the run of a rollout that may change this node, until it boots
# (goldnode.fleet.rollout.node_state).
CLAIM = "/run/goldnode/claim"
LOST = "another run of this rollout has taken the node over; this one ends"


def answer(engine: Optional[str], archive: Optional[str]) -> int:
    """Answer the request on standard input. Return the exit status.

    :param engine: digest of the file that runs.
    :param archive: path of the file that runs.
    """
    request = json.load(sys.stdin)
    host = Host(request.get("root") or "/")
    try:
        if request["operation"] == "survey":
            from .survey import survey  # imported here: a run of site.yml does not need it

            reply: Dict[str, Any] = {"changed": False, "survey": survey(host)}
            if not host.exists(PROGRAM):
                forget_program(host)
        elif request["operation"] == "report":
            from .reporting import report  # start-up time: an answer needs one of these modules

            reply = {"changed": False, "report": report(host, engine, bool(request.get("fresh")))}
            if not host.exists(PROGRAM):
                forget_program(host)
        elif request["operation"] == "plan":
            reply = {"changed": False, **planned(host, request, engine)}
            if request.get("report") and host.live and request["state"] != ABSENT:
                from .reporting import recorded

                reply["report"] = recorded(host, engine)
        elif request.get("claim") and (host.text(CLAIM) or "").strip() != request["claim"]:
            reply = {"failed": True, "msg": LOST, "lost": True}
        else:
            reply = applied(host, request, engine, archive)
    except NodeError as problem:
        reply = {"failed": True, "msg": str(problem)}
        reply.update(
            {
                name: value
                for name in ("done", "refusals")
                for value in [getattr(problem, name, None)]
                if value
            }
        )
    print(json.dumps(reply))
    return 0


def planned(host: Host, request: Mapping[str, Any], engine: Optional[str]) -> Dict[str, Any]:
    """Return the plan as JSON, and for a return to an earlier class document also a description of
    it: {plan, rollback}.
    """
    timeout = float(request["lock_timeout"])
    payloads = {"program": {"sha256": engine}}
    if request["state"] == EARLIER:
        from ..state import rollback  # start-up time: only for a return

        return rollback.planned(host, str(request.get("to") or ""), payloads, timeout)
    if request["state"] == ABSENT:
        removal = plan_absent(host, timeout)
        if not removal.actions:
            forget_program(host)
        return {"plan": removal.to_json()}
    reply = plan(host, request["document"], payloads, lock_timeout=timeout).to_json()
    if not host.exists(PROGRAM):  # a plan leaves no files on a node that goldnode does not manage
        for name in (INITRAMFS_CACHE, MODINFO_CACHE):
            host.remove(name)
        forget_program(host)
    return {"plan": reply}


def forget_program(host: Host) -> None:
    """Remove the compiled copies of this program, so that a node that was only queried is unchanged. A
    running process has its copy open.
    """
    shutil.rmtree(host.located(COPIES), ignore_errors=True)
    with contextlib.suppress(OSError):  # the directory is not empty, or does not exist
        host.path(COPIES).parent.rmdir()


def applied(
    host: Host, request: Mapping[str, Any], engine: Optional[str], archive: Optional[str]
) -> Dict[str, Any]:
    """Apply one part of a class document, or remove goldnode. Return the answer."""
    from ..gate import gate
    from ..gate.handlers import HANDLERS
    from ..state import applied as applied_file
    from ..state import apply as applying  # imported here, to keep a plan quick
    from .judging import judge

    timeout = float(request["lock_timeout"])
    if request["state"] == ABSENT:
        done, _, after = applying.withdraw(host, applying.teller(host), timeout, handlers=HANDLERS)
        return {"changed": bool(done), "done": done, "plan": after.to_json(), "gate": []}
    document = request["document"]
    payloads: Dict[str, Any] = {"program": {"sha256": engine, "file": archive}}
    about = None
    if request["state"] == EARLIER:
        from ..state import rollback  # start-up time: only for a return

        try:
            document, about = rollback.chosen(host, str(request["to"]))
        except applied_file.GoneError as problem:
            raise NodeError(f"{problem.message} {problem.remedy}") from None
        payloads["back"] = True
    if request.get("sources"):
        payloads["sources"] = request["sources"]
    done, _, after = applying.apply(
        host,
        document=document,
        part=request["part"],
        payloads=payloads,
        say=applying.teller(host),
        handlers=HANDLERS,
        lock_timeout=timeout,
    )
    if not host.live:  # there is nothing to check in an image
        return {"changed": bool(done), "done": done, "plan": after.to_json(), "gate": []}

    # Always check again: the earlier verdict is about the node before these changes. The gate acts
    # when the run has applied everything, not on states in between. After a failed run, the passive
    # check acts.
    def settled(verdict: Dict[str, Any]) -> None:
        if not after.actions and not gate.reasons(verdict):
            applied_file.mark(host, document, good=True)

    checked, acted = judge(host, document, not after.actions, settled)
    reply = {
        "changed": bool(done),
        "done": done,
        "plan": after.to_json(),
        "verdict": checked.verdict,
        "gate": acted,
        "rollback": about,
    }
    if request.get("report") and not after.actions:
        from .reporting import recorded

        reply["report"] = recorded(host, engine)
    return reply
