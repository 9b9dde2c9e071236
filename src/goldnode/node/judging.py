"""A new verdict after a change, with all that follows from it: stored state, capture, metrics, labels, condition.

The labels of Kubernetes are read from the metrics, and its condition from the verdict. Each change that writes a
verdict ends here, so that all of them describe the node as it is now.
"""

from __future__ import annotations

from . import gate
from .json_lines import by_lines
from .serve import publish
from .verdict import check as checking
from .verdict import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Mapping, Optional, Tuple

    from .host import Host, Json


def judge(
    host: Host, document: Mapping[str, object], act: bool, settled: Optional[Callable[[Json], None]] = None
) -> Tuple[checking.Checked, List[str]]:
    """Judge the live node, write the verdict, and update the gate and the metrics.

    Return the check and the messages of gate and metrics.

    :param act: whether the gate drains or resumes. In the middle of a run it does not.
    :param settled: called with the verdict before the gate acts.
    """
    checked = checking.examine(host, document)
    try:
        checking.keep(host, checked)
    except OSError as problem:
        checked = checked._replace(verdict=checking.unkept(checked.verdict, problem))
    gate.save(host, checked.verdict, by_lines(checked.verdict))
    if settled is not None:
        settled(checked.verdict)
    messages = gate.act(host, document, checked.verdict, checked) if act else []
    return checked, messages + publish.publish(host, document, checked.verdict, checked.capture)


def judge_again(host: Host, document: Mapping[str, object]) -> List[str]:
    """Judge the node again if a verdict holds that a change has made old. Return messages.

    Without one, as early in a boot, the check that follows is the first.
    """
    if current.load(host.root)[1] is not None:
        return []
    return judge(host, document, act=True)[1]
