"""A new verdict, with all that follows from it: stored state, capture, gate, metrics, labels, condition.

The labels of Kubernetes are read from the metrics, and its condition from the verdict. Each check,
and each change that writes a verdict, ends here, so that all of them describe the node as it is
now.
"""

from __future__ import annotations

from ..gate import gate
from ..ground import verdict_files
from ..ground.json_lines import by_lines
from ..ground.typed import NamedTuple
from ..serve import publish
from ..verdict import check as checking
from ..verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

    from ..ground.document import ClassDocument
    from ..ground.host import Host, Json


class Delivered(NamedTuple):
    """A verdict as it was stored, messages of gate and metrics, and the first failure to write a
    file in /run.
    """

    verdict: Json
    messages: List[str]
    unwritten: Optional[OSError]


def deliver(
    host: Host,
    document: Optional[ClassDocument],
    verdict: Json,
    checked: Optional[checking.Checked],
    act: bool = True,
    *,
    settled: Optional[Callable[[Json], None]] = None,
) -> Delivered:
    """Store a verdict of this node's own class, and update the gate and the metrics.

    :param document: the class document; None if it cannot be read.
    :param checked: the check behind the verdict; None if it failed.
    :param act: whether the gate acts on it. In the middle of a run it does not.
    :param settled: called with the verdict before the gate acts.
    """
    stored = store(host, verdict, checked)
    if settled is not None:
        settled(stored.verdict)
    return follow(host, document, stored, checked, act)


def store(host: Host, verdict: Json, checked: Optional[checking.Checked]) -> Delivered:
    """Store a verdict with the state for the next check, and do nothing that follows from it."""
    if checked is not None:
        try:
            checking.keep(host, checked)
        except OSError as problem:
            verdict = checking.unkept(
                verdict, f"it cannot be written: {problem.strerror or problem}"
            )
    return Delivered(verdict, [], _save(host, verdict))


def follow(
    host: Host,
    document: Optional[ClassDocument],
    stored: Delivered,
    checked: Optional[checking.Checked],
    act: bool = True,
) -> Delivered:
    """Update the gate and the metrics after :func:`store`."""
    verdict, messages, unwritten = stored
    if act:
        try:
            messages = gate.act(host, document, verdict, checked, unwritten is None)
        except gate.IncompleteError as problem:
            messages, unwritten = problem.messages, unwritten or problem.unwritten
            if problem.unrecorded is not None:
                verdict = checking.unkept(verdict, problem.unrecorded)
                unwritten = unwritten or _save(host, verdict)
                messages.append(
                    f"gate: {problem.unrecorded}; until then it drains and resumes nothing"
                )
    capture: Any = checked.capture if checked is not None else None
    return Delivered(
        verdict, messages + publish.publish(host, document, verdict, capture), unwritten
    )


def _save(host: Host, verdict: Json) -> Optional[OSError]:
    try:
        gate.save(host, verdict, by_lines(verdict))
    except OSError as problem:
        return OSError(problem.errno, problem.strerror, host.located(verdict_files.VERDICT))
    return None


def judge(
    host: Host,
    document: ClassDocument,
    act: bool,
    settled: Optional[Callable[[Json], None]] = None,
) -> Tuple[checking.Checked, List[str]]:
    """Judge the live node, and deliver the verdict. Return the check and the messages of gate and
    metrics.

    :param act: whether the gate drains or resumes. In the middle of a run it does not.
    :param settled: called with the verdict before the gate acts.
    :raises OSError: if a file in /run could not be written, after all else was done.
    """
    checked = checking.examine(host, document)
    done = deliver(
        host, document=document, verdict=checked.verdict, checked=checked, act=act, settled=settled
    )
    if done.unwritten is not None:
        raise done.unwritten
    return checked._replace(verdict=done.verdict), done.messages


def judge_again(host: Host, document: ClassDocument) -> List[str]:
    """Judge the node again if a verdict holds that a change has made old. Return messages.

    Without one, as early in a boot, the check that follows is the first.
    """
    if current.load(host.root)[1] is not None:
        return []
    return judge(host, document, act=True)[1]
