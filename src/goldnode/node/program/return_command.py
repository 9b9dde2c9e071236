"""`goldnode-node return-tests`: show the tests before this node's return, and take the results of a
canary suite.

A controller sends results on standard input. They are validated here, because they come from
another machine, and judged by the gate like any others: nothing in them can end a test that has not
passed on this boot.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import cast

from ..gate import gate, return_tests
from ..ground import gate_files, verdict_files
from ..ground.boot import seconds
from ..ground.errors import NodeError
from ..ground.host import boot_identity
from ..ground.json_lines import as_dict, as_rows
from ..ground.typed import NamedTuple
from ..state import owners
from ..state.observe import load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    from ..ground.document import ClassDocument
    from ..ground.host import Host, Json


SCHEMA = "goldnode.return-tests/1"
CANARY = "goldnode.canary/1"
LARGEST = 16 << 20  # bytes of standard input; a document of the suite has some 50 KB
AHEAD = 300  # seconds by which a result may lie in the future
HELD, OPEN = 2, 0  # exit statuses


def arguments(parser: Any) -> None:
    """Add the options of `goldnode-node return-tests`."""
    parser.add_argument(
        "--results",
        action="store_true",
        help="read results (goldnode.canary/1, one document or a list) from standard input, and judge the node again",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="name of this node in the results (default: its host name)"
    )


def run(host: Host, options: Any) -> int:
    """Show the tests, after taking results if asked. Return 0 if none is outstanding, else 2."""
    if host.live and os.geteuid() != 0:
        raise NodeError(
            "root alone can read and change the tests. Run `sudo goldnode-node return-tests`."
        )
    document = _document(host)
    if options.results:
        refused, taken = take(host, document, _read(), options.node or "")
        messages = _judged(host, document)
    else:
        refused, taken, messages = [], 0, []
    state = report(host, document, refused, taken)
    if options.format == "json":
        print(json.dumps(state))
    else:
        print("\n".join(lines(state)))
    for line in messages:
        print(line, file=sys.stderr)
    return HELD if any(row["outstanding"] for row in state["causes"]) else OPEN


def report(host: Host, document: Mapping[str, Any], refused: List[str], taken: int) -> Json:
    """Return the tests of this node (schema goldnode.return-tests/1), as its gate has them."""
    state = gate.load_state(host)
    tests: Any = state.get("tests")
    declared = return_tests.jobs_of(document)
    if declared and not isinstance(tests, dict):
        raise NodeError(
            f"{gate_files.STATE} has no tests: no check of this boot has judged them. Run `goldnode-node check` first."
        )
    if not declared:
        tests = {"causes": [], "unknown": []}
    drain = state.get("told")
    return {
        "schema": SCHEMA,
        "node": return_tests.short_name(host),
        "class": document["class"],
        "simulated": document.get("simulated") is True,
        "boot_id": return_tests.boot_id(host),
        "open": state.get("open") is True,
        "drained": as_dict(drain).get("ours"),
        "error": state.get("error"),
        "reasons": state.get("reasons") or [],
        "causes": tests["causes"],
        "unknown": tests["unknown"],
        "taken": taken,
        "refused": refused,
    }


def lines(state: Mapping[str, Any]) -> List[str]:
    """Return the report for a person."""
    shown = [f"results: {state['taken']} taken"] if state["taken"] else []
    shown += [f"refused: {text}" for text in state["refused"]]
    if not state["causes"]:
        shown.append(f"class {state['class']} declares no tests after xid, repair or absence")
    for row in state["causes"]:
        if row["since"] is None:
            shown.append(f"{row['cause']}: not open; wants {', '.join(row['jobs'])}")
            continue
        shown.append(f"{row['cause']}: open since {row['since']}: {row['why']}")
        shown += [f"  {text}" for text in row["outstanding"]] or ["  all jobs have passed"]
    shown += [f"unknown: {text}" for text in state["unknown"]]
    shown.append("gate: open" if state["open"] else f"gate: closed: {'; '.join(state['reasons'])}")
    if state["simulated"]:
        shown.append("the hardware of this class is simulated")
    return shown


# -- results


def take(host: Host, document: Mapping[str, Any], given: Any, name: str) -> Tuple[List[str], int]:
    """Record results for the causes that are open. Return a sentence for each that is refused, and
    the number taken.

    :param given: what came, of any type.
    :param name: the name of this node on the controller; empty for its host name.
    """
    rows = as_rows(given)
    own = ResultOwner(
        {name} if name else _names(host),
        return_tests.boot_id(host),
        boot_identity(host),
        time.time() + AHEAD,
        document.get("simulated") is True,
    )
    with gate.alone(host):
        record, _ = return_tests.load(host)
        if record is None:
            raise NodeError(
                f"{return_tests.FILE} is not there, or is damaged. Run `goldnode-node check`, which writes it again."
            )
        refused, good = [], []
        wanted = {job for jobs in return_tests.jobs_of(document).values() for job in jobs}
        for number, row in enumerate(rows, 1):
            wrong = own.fault(row)
            if wrong:
                refused.append(f"result {number}: {wrong}")
            else:
                good.append(_reduced(row, own.boot, wanted))
        new = [row for row in good if row not in record["results"]]
        if record["open"] and new:
            stored = sorted(record["results"] + new, key=lambda row: str(row["started"]))
            record["results"] = [row for row in stored if row["boot_id"] == own.boot][
                -return_tests.RESULTS :
            ]
            record["latest"] = max([record["latest"], *(row["started"] for row in new)])
            return_tests.save(host, record)
    return refused, len(good)


class ResultOwner(NamedTuple):
    """This node, for the validation of results."""

    names: Any
    boot_id: Optional[str]
    boot: Optional[str]
    latest: float
    simulated: bool

    def fault(self, row: Any) -> str:
        """Return why a value is no result of this node and boot; empty if it is one."""
        if not isinstance(row, dict) or row.get("schema") != CANARY:
            return f"it is no document of schema {CANARY}"
        if not isinstance(row.get("node"), str) or row["node"] not in self.names:
            shown = gate.one_line(str(row.get("node")))[:80]
            return f"it is of node {shown}, and this is {' or '.join(sorted(self.names))}"
        wrong = return_tests.result_fault(row)
        if wrong:
            return wrong
        if row.get("simulated") is not False and not self.simulated:
            return "its hardware is simulated, and that of this class is not"
        if self.boot_id is None or row["boot_id"] != self.boot_id:
            return f"it is of another boot ({row['started']}): run the jobs again"
        started = seconds(row["started"])
        if started is None or started > self.latest:
            return f"it began in the future ({row['started']}): see to the clocks"
        return ""


def _reduced(row: Mapping[str, Any], boot: Optional[str], wanted: Any) -> Json:
    jobs = [
        {"name": job["name"], "state": job["state"], "why": gate.one_line(job["why"])[:200]}
        for job in row["jobs"]
        if job["name"] in wanted
    ]
    return {"started": row["started"], "boot_id": boot, "jobs": jobs}


def _names(host: Host) -> Any:
    name = (host.text("/proc/sys/kernel/hostname") or "").strip()
    return {name, name.partition(".")[0]}


def _read() -> Any:
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise NodeError(f"the results have more than {LARGEST} bytes. Send fewer of them.")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise NodeError(
            "standard input is no JSON. Send what `goldnode canary run` has written."
        ) from None


def _document(host: Host) -> Json:
    owners.believe(host, verdict_files.CLASS)  # it names the commands of the gate
    document = load_json(host, verdict_files.CLASS)
    if not isinstance(document, dict):
        raise NodeError(
            f"{verdict_files.CLASS} is not there, or is no class document. Run site.yml for this host."
        )
    return document


def _judged(host: Host, document: Mapping[str, Any]) -> List[str]:
    """Judge the node again, so that the gate acts on the results at once. Return messages."""
    from .judging import judge  # start-up time: showing the tests does not judge

    return judge(host, cast("ClassDocument", document), act=True)[1]


# -- a person


def end(host: Host, pattern: str, by: str, reason: str) -> List[str]:
    """End the outstanding tests whose name (tests.CAUSE) matches. Return the names.

    A cause of which a finding still stands stays ended until that finding changes.
    """
    done = []
    with gate.alone(host):
        record, _ = return_tests.load(host)
        if record is None:
            return []
        for cause in list(record["open"]):
            row = record["open"][cause]
            if row["ended"] or not fnmatchcase(return_tests.ID + cause, pattern):
                continue
            if row["faults"]:
                row["ended"] = True
            else:
                del record["open"][cause]
            done.append(cause)
        return_tests.save(host, record)
    _journal(host, done, by, reason)
    return [return_tests.ID + cause for cause in done]


def _journal(host: Host, done: List[str], by: str, reason: str) -> None:
    from ..gate import journal  # start-up time: only after a change

    document: Dict[str, Any] = {}
    with suppress(NodeError):  # the entry has no class then
        document = _document(host)
    for cause in done:
        journal.send(
            host,
            "tests.closed",
            f"goldnode: {by} has ended the tests before its return ({cause}): {reason}",
            journal.WARNING,
            {
                "CAUSE": cause,
                "BY": by,
                "REASON": reason,
                "CLASS": document.get("class") or "unknown",
                "SIMULATED": document.get("simulated") is True,
            },
        )
