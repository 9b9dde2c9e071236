"""One call of a controller: the request is JSON on standard input, the answer one line of JSON on standard
output.

Request: {operation: plan|apply, state: present|absent|earlier, part, document, lock_timeout, to}. `earlier`
rolls the node back to a class document that it had before; `to` names which (state/rollback.py).

The answer is the result of the Ansible module goldnode_state: {changed, plan, done, verdict, gate, rollback},
or {failed: true, msg, done, refusals}. The program that answers is the one that it installs on the node, so
no separate transfer is needed.
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


COPIES = "/run/goldnode/program"  # compiled copies of this program (__main__.py)


def answer(engine: Optional[str], archive: Optional[str]) -> int:
    """Answer the request on standard input. Return the exit status.

    :param engine: digest of the running program file.
    :param archive: path of that file.
    """
    request = json.load(sys.stdin)
    host = Host(request.get("root") or "/")
    try:
        if request["operation"] == "plan":
            told: Dict[str, Any] = {"changed": False, **planned(host, request, engine)}
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
    """Return {plan}; for a rollback also {rollback}, its subject."""
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
    if not host.exists(PROGRAM):  # a plan alone must leave nothing on a node without goldnode
        host.remove(INITRAMFS_CACHE)
        forget_program(host)
    return {"plan": told}


def forget_program(host: Host) -> None:
    """Remove the compiled copies, so that a mere plan leaves the node unchanged.

    A running process keeps its open copy.
    """
    shutil.rmtree(host.located(COPIES), ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or it never existed
        host.path(COPIES).parent.rmdir()


def applied(
    host: Host, request: Mapping[str, Any], engine: Optional[str], archive: Optional[str]
) -> Dict[str, Any]:
    """Apply one part, or remove everything."""
    from . import gate
    from .state import applied as kept
    from .state import apply as applying  # imported here: a plan does not need it
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
    if not host.live:  # only a running machine can be judged
        return {"changed": bool(done), "done": done, "plan": after.to_json(), "gate": []}
    # Judge again: the changes have made any earlier verdict invalid.
    verdict = checking.check(host, document)
    host.write(checking.VERDICT, by_lines(verdict).encode())
    if not after.actions and not gate.reasons(verdict):
        kept.mark(host, document, good=True)
    # The gate acts once nothing is left to apply, not on intermediate states. If a run fails, the passive
    # check acts on what it leaves.
    acted = [] if after.actions else gate.act(host, document, verdict)
    return {
        "changed": bool(done),
        "done": done,
        "plan": after.to_json(),
        "verdict": verdict,
        "gate": acted,
        "rollback": about,
    }
