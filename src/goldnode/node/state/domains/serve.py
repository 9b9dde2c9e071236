"""Domain of `serve`, which publishes a node's state: diagnostics endpoint and scheduler plugins.

Domain `units` collects the socket's state in systemd (:data:`.systemd.PROPERTIES`).
`seen.units["serve"]` has two keys:

* textfile: the file that a check wrote to a collector's directory, or None
* drained: the reason for which slurm-health drained the node, or None
"""

from __future__ import annotations

import os

from ...ground import verdict_files
from ...ground.host import Host
from ...ground.json_lines import as_dict
from .. import shims
from ..actions import link, stop_unit, unlink
from ..finding import MISMATCH, Finding, judge_item
from ..model import BOOT, Action, Note, Observed, Refusal, Waiting
from ..remedy import SITE, Remedy
from . import units
from .files import Wanted
from .program import CLOSED, PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument


SOCKET, SERVICE = units.SOCKET, "goldnode-serve.service"
LINK = f"{units.FOLDER}/sockets.target.wants/{SOCKET}"
SLURM, NPD = "/usr/lib/goldnode/slurm-health", "/usr/lib/goldnode/npd-plugin"
PROLOG, TASK_PROLOG = "/usr/lib/goldnode/slurm-prolog", "/usr/lib/goldnode/slurm-task-prolog"

SOCKET_TEXT = """# goldnode: a connection starts the endpoint
[Unit]
Description=goldnode diagnostics endpoint

[Socket]
ListenStream={listen}
FreeBind=yes
NoDelay=yes
Backlog=32

[Install]
WantedBy=sockets.target
"""

# systemd passes the socket, so the service needs no network, no user and no writable directory.
SERVICE_TEXT = f"""# goldnode: answer from the files of the last check, and exit when idle
[Unit]
Description=goldnode diagnostics endpoint

[Service]
ExecStart={PROGRAM} serve
{CLOSED}DynamicUser=yes
PrivateNetwork=yes
PrivateDevices=yes
ProtectHome=yes
ProtectKernelLogs=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX
MemoryMax=96M
TasksMax=32
LimitNOFILE=128
Nice=10
CPUWeight=20
"""


def declared(document: ClassDocument) -> Mapping[str, Any]:
    """Return the class's `serve`; empty if it has no such section."""
    return as_dict(document.get("serve"))


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Collect goldnode's traces outside its own files."""
    copy = (host.text(verdict_files.LAST_TEXTFILE) or "").strip() or None
    if copy and not (
        os.path.isfile(host.located(copy)) and copy.endswith(f"/{verdict_files.TEXTFILE}")
    ):
        copy = None
    drained = None
    if host.live:
        texts = ((host.text(name) or "").strip() for name in (shims.MEMORY, shims.INTENT))
        drained = next(filter(None, texts), None)
    seen.units["serve"] = {"textfile": copy, "drained": drained}


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the units of the endpoint, and the programs for schedulers."""
    serve, files = declared(document), []
    if serve.get("listen"):
        listen = serve["listen"]
        text, why = (
            SOCKET_TEXT.format(listen=listen),
            f"the class says `serve: {{listen: {listen}}}`",
        )
        starts = "the endpoint that the socket starts"
        files = [
            Wanted(f"{units.FOLDER}/{SOCKET}", text, "sanity", why),
            Wanted(f"{units.FOLDER}/{SERVICE}", SERVICE_TEXT, "sanity", starts),
        ]
    for key, path, text in (
        ("slurm", SLURM, shims.SLURM),
        ("slurm", PROLOG, shims.PROLOG),
        ("slurm", TASK_PROLOG, shims.TASK_PROLOG),
        ("npd", NPD, shims.NPD),
    ):
        if serve.get(key):
            why = f"the class says `serve: {{{key}: true}}`"
            files.append(Wanted(path, text, "sanity", why, mode=0o755))
    return files


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return actions that start the socket if the class has an endpoint, and otherwise remove it. Pure.

    Metrics in a directory that the class does not declare are removed.
    """
    listen = declared(document).get("listen")
    state = seen.unit(SOCKET)
    active = state is not None and state["ActiveState"] == "active"
    if listen:
        to = f"{units.FOLDER}/{SOCKET}"
        actions = link("sanity", LINK, to, seen=seen, missing="the endpoint is not enabled")
    else:
        why = "the class has no endpoint any more"
        # A pattern matches loaded units only. By name, stopping fails for a service
        # without a file that never ran.
        stop = [stop_unit("sanity", SOCKET, why, ["goldnode-serve.*"])] if active else []
        actions = stop + unlink("sanity", LINK, why, seen=seen)
    waiting: List[Waiting] = []
    if (
        state is not None
        and listen
        and state["LoadState"] != "masked"
        and not (active and address(state) == listen)
    ):
        reason = f"it is {state['ActiveState'] or 'unknown'}"
        if active:
            reason = f"it listens on {address(state) or 'nothing'}, want {listen}"
        users = units.gpu_users(seen)
        # A changed socket file needs a daemon-reload, which could take the devices away from containers.
        if active and users:
            waiting.append(
                Waiting(
                    "sanity",
                    SOCKET,
                    f"{reason}; it is restarted once nothing uses the GPU ({users})",
                )
            )
        else:
            actions.append(Action("sanity", "serve.start", SOCKET, reason, BOOT))
    left = (seen.units.get("serve") or {}).get("textfile")
    if left and not _is_wanted(document, left):
        actions.append(_remove_metrics(left, "the class wants no metrics there any more"))
    if not declared(document).get("slurm"):
        actions += release(seen)
    return actions, [], waiting


def release(seen: Observed) -> List[Action]:
    """Return the action that resumes a node drained by slurm-health, which will no longer do so itself."""
    text = (seen.units.get("serve") or {}).get("drained")
    if not text:
        return []
    reason = "slurm-health has drained the node, and will not be there to resume it"
    data = {"reason": text}
    return [Action("sanity", "serve.release", "Slurm", reason, BOOT, before=f"{text}\n", data=data)]


def _remove_metrics(path: str, reason: str) -> Action:
    return Action("sanity", "file.remove", path, reason, before="metrics\n")


def _is_wanted(document: ClassDocument, path: str) -> bool:
    folder = declared(document).get("textfile")
    return bool(folder) and path == f"{str(folder).rstrip('/')}/{verdict_files.TEXTFILE}"


def address(state: Mapping[str, str]) -> str:
    """Return the address on which systemd listens, from `Listen=127.0.0.1:9478 (Stream)`."""
    return state["Listen"].split(" (", 1)[0].strip()


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Return no refusals: publishing state never blocks a change."""
    return []


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report whether the socket listens on the declared address.

    Without a declaration there is no finding.
    """
    listen = declared(document).get("listen")
    if not listen:
        return []
    remedy = Remedy(
        f"Run site.yml; where it is masked, `systemctl unmask {SOCKET}` first. See `systemctl "
        f"status {SOCKET}`.",
        SITE,
    )
    state = seen.unit(SOCKET)
    if state is None:
        elsewhere = "systemd does not run here" if seen.live else "an image does not run"
        return [judge_item("serve.socket", listen, None, remedy, elsewhere)]
    if state["ActiveState"] == "active":
        return [judge_item("serve.socket", listen, address(state) or None, remedy)]
    got = state["ActiveState"] or "unknown"
    if state["LoadState"] in ("masked", "not-found"):
        got = state["LoadState"]
    return [Finding("serve.socket", MISMATCH, listen, got, remedy)]


def absent(
    document: Optional[ClassDocument], seen: Observed, record: Mapping[str, Any]
) -> List[Action]:
    """Return actions that remove the collector's metrics, and resume a node that slurm-health drained.

    Outdated metrics would otherwise raise alerts forever.
    """
    left = (seen.units.get("serve") or {}).get("textfile")
    gone = [_remove_metrics(left, "goldnode wrote it")] if left else []
    return gone + release(seen)
