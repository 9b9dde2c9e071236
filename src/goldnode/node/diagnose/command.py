"""`goldnode-node diagnose`: the report for a terminal, or as JSON.

Exit codes: 0 nothing found, 1 something found, 3 could not check everything.
"""

from __future__ import annotations

import json

from ..ground.errors import NodeError
from ..ground.host import Host, Json
from ..ground.text import cleaned
from ..probe.machine import printable
from ..state.domains.program import CLASS
from . import checks, finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional


MARKS = {finding.OK: "ok", finding.FOUND: "FOUND", finding.UNKNOWN: "not known"}
TITLES = {
    "gpus": "1 GPUs visible",
    "errors": "2 errors",
    "load": "3 load, throttling",
    "input": "4 storage, memory, CPU",
    "network": "5 network",
    "fit": "6 what runs fits",
}
MOST = 64 << 20  # bytes of a file that a person names


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--class",
        dest="document",
        default=CLASS,
        metavar="FILE",
        help=f"class document; may be missing (default: {CLASS})",
    )
    parser.add_argument(
        "--from",
        dest="captures",
        action="append",
        default=[],
        metavar="FILE",
        help="judge this recorded capture instead of the node; give the option twice for two samples, the earlier first",
    )


def run(host: Host, options: Any) -> int:
    """Take or load two samples, judge them, and print the report."""
    if len(options.captures) > 2:
        raise NodeError("--from is given once or twice: the earlier capture, then the later one.")
    # One recorded sample has no rates; two are like the two that a live node takes.
    if options.captures:
        samples = [load(name) for name in options.captures]
        first, second = (samples[0], samples[1]) if len(samples) == 2 else (None, samples[0])
    elif not host.live:
        raise NodeError("diagnose inspects a running machine; for a recorded one use --from.")
    else:
        from . import sample

        first, second = sample.take(host, _document(host, options.document))
    report = checks.diagnose(first, second, _document(host, options.document))
    as_json = options.format == "json"
    print(json.dumps(report, indent=1, sort_keys=True) if as_json else text(report))
    return int(report["exit_code"])


def load(name: str) -> Json:
    """Return a recorded capture.

    :raises NodeError: if the file is not a capture.
    """
    try:
        with open(name, "rb") as opened:
            capture = cleaned(json.loads(opened.read(MOST)))
    except (OSError, ValueError, RecursionError) as problem:
        raise NodeError(f"{printable(name, 200)} cannot be read as a capture: {problem}") from None
    if not isinstance(capture, dict) or capture.get("schema") != "goldnode.capture/1":
        raise NodeError(
            f"{printable(name, 200)} is not a capture of schema goldnode.capture/1 (goldnode-node capture "
            "prints one)."
        )
    return capture


def _document(host: Host, name: str) -> Optional[Mapping[str, Any]]:
    """Return the class document; None without one. Only a document named explicitly must exist."""
    try:
        with open(host.located(name) if name == CLASS else name, "rb") as opened:
            document = json.loads(opened.read(MOST))
    except (OSError, ValueError):
        if name != CLASS:
            raise NodeError(
                f"{printable(name, 200)} is not there, or is no class document."
            ) from None
        return None
    return document if isinstance(document, dict) else None


def text(report: Json) -> str:
    """Return the report as text: one line per check, the verdict, and the command to run next."""
    lines: List[str] = []
    if report["simulated"]:
        lines.append("SIMULATED HARDWARE: nothing below speaks of a real GPU")
    for line in report["lines"]:
        title = TITLES.get(line["check"], line["check"])
        lines.append(f"{title.ljust(24)}{MARKS[line['status']].ljust(11)}{_safe(line['text'])}")
        if line["next"] and line["next"] != report["next"]:
            lines.append(f"{'':35}-> {_safe(line['next'])}")
    lines.append(f"bottleneck: {report['bottleneck']}: {_safe(report['verdict'])}")
    if report["next"]:
        lines.append(f"next: {_safe(report['next'])}")
    return "\n".join(lines)


def _safe(value: Any) -> str:
    return printable(str(value), 2000)
