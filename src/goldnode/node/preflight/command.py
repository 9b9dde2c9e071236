"""`goldnode-node preflight`: collect the files, judge, and print one line."""

from __future__ import annotations

import json
import os

from ..cachekey.node import public
from ..ground import boot
from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.json_lines import as_dict
from ..probe.machine import printable
from ..state.domains.program import CLASS
from ..verdict import current
from . import checks, cohort, image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from ..ground.host import Json

STATUS = (
    "Exit status: 0 the job may start, 1 it does not fit this node, 2 the node must not run jobs, 3 could not check, "
    "4 not this class."
)


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    parser.epilog = STATUS
    add(
        "--cohort",
        metavar="PATH",
        help="compare with the other nodes of the job: a directory of the job that all share, or a file of all (default: $GOLDNODE_COHORT)",
    )
    add("--cohort-size", type=int, metavar="N", help="number of nodes of the job, for the report")
    add("--node", metavar="NAME", help="name of this node (default: its host name)")
    add(
        "--image",
        metavar="FILE",
        help="judge this image: image.json, or the output of `docker inspect`; `inside` is the container that this runs in "
        "(default: $GOLDNODE_IMAGE_FILE)",
    )
    add("--nccl", metavar="VERSION", help="NCCL of the program (default: that of the image)")
    add(
        "--caches",
        action="store_true",
        help="verify that the variables of caches name directories of this node's keys",
    )
    add("--gpu", metavar="GPU", help="with --caches: GPU of the job, where they differ")
    add(
        "--mig",
        metavar="PROFILE",
        help="with --caches: partition of the job, where there are several",
    )
    add(
        "--print",
        dest="only_print",
        action="store_true",
        help="print the values of this node for --cohort, and judge nothing",
    )


def run(host: Host, options: Any) -> int:
    """Run the command. Return the exit code. Raises NodeError, which exits with 3."""
    verdict, fault = current.load(host.root)
    capture = public(host) if fault is None else None
    node = options.node or (host.text("/proc/sys/kernel/hostname") or "").strip() or "this node"
    described = _image(options)
    nccl = options.nccl or (described or {}).get("nccl")
    digest = as_dict(verdict).get("class_digest")
    if options.only_print:
        if capture is None:
            raise NodeError(
                f"{fault or 'the capture of the last check cannot be read'}. Run `goldnode-node check`."
            )
        values = cohort.document(node, checks.shared(capture, digest, nccl))
        print(json.dumps(values, indent=1, sort_keys=True))
        return 0
    lines = [checks.verdict_line(verdict, fault, boot.uptime(host.text("/proc/uptime") or ""))]
    if fault is None and capture is None:
        lines.append(
            checks.PreflightLine(
                "verdict",
                checks.UNKNOWN,
                "the capture of the last check cannot be read",
                "Run `goldnode-node check` on the node",
                checks.COULD_NOT_CHECK,
            )
        )
    if capture is not None:
        place = options.cohort or os.environ.get("GOLDNODE_COHORT")
        if place:
            lines.append(
                _cohort(place, node, checks.shared(capture, digest, nccl), options.cohort_size)
            )
        if described is not None:
            lines.append(checks.image_line(described, capture, _table(host)))
        if options.caches:
            lines.append(_caches(host, capture, options, os.environ))
    report = checks.report(lines, node)
    if options.format == "json":
        print(json.dumps(report, indent=1, sort_keys=True))
    else:
        print(checks.text(report))
    return int(report["exit_code"])


def _image(options: Any) -> Optional[Dict[str, Any]]:
    """Return the image of the job; None if none was asked for. Raises NodeError."""
    name = options.image or os.environ.get("GOLDNODE_IMAGE_FILE")
    if not name:
        return None
    if name != "inside":
        return image.read(name)
    return image.inside(os.environ) or {"name": "this container"}


def _cohort(place: str, node: str, own: Json, size: Optional[int]) -> checks.PreflightLine:
    # A file of all nodes was written before the job; in a directory each node writes its own first.
    if os.path.isdir(place) or not place.endswith(".json"):
        cohort.publish(place.rstrip("/") or "/", node, own)
    rows, broken = cohort.others(place, node)
    return checks.cohort_line(own, rows, broken, size)


def _table(host: Host) -> Any:
    """Return the drivers of CUDA releases: of the class document, or of this program."""
    try:
        document = json.loads(host.text(CLASS) or "null")
    except (OSError, ValueError, RecursionError):
        document = None
    health = as_dict(document).get("health")
    if isinstance(health, dict) and isinstance(health.get("cuda"), dict):
        return health["cuda"]
    # The class document has the drivers that its lock was made with; without one the program's facts count.
    from ..ground.known import facts  # they take time to read

    return facts()["cuda"]


def _caches(
    host: Host, capture: Json, options: Any, environment: Mapping[str, str]
) -> checks.PreflightLine:
    # Start-up time: a job without caches does not need it.
    from ..cachekey import components, directory
    from ..cachekey.caches import CACHES
    from ..cachekey.node import class_of

    used = {
        row.variable: environment[row.variable]
        for row in CACHES.values()
        if row.variable and environment.get(row.variable)
    }
    faults = {}
    try:
        request = components.KeyRequest(class_of(host, None), options.gpu, options.mig)
        own = components.components(capture, request) if used else {}
    except NodeError as problem:
        return checks.caches_line({}, [], str(problem).rstrip("."))
    for variable, place in used.items():
        # The variable names the directory `data`; its manifest is beside that.
        data = os.path.normpath(place)
        if os.path.basename(data) == directory.DATA:
            faults[variable] = directory.verify(os.path.dirname(data), node=own)
        else:
            faults[variable] = [
                f"{printable(data, 120)} is no directory of a key, and may hold code of another node"
            ]
    return checks.caches_line(faults, list(used), None)


def main(options: Any) -> int:
    """Run the command without the engine, whose import takes longer: one runs before each task of a job."""
    try:
        return run(Host(options.root), options)
    except NodeError as problem:
        from ..ground.fault import expected  # no other start has anything to report

        return expected(problem, options.format)
