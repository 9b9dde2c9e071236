"""Domain of `serve`, which publishes a node's state: diagnostics endpoint and scheduler plugins.

Domain `units` collects the socket's state in systemd (:data:`.systemd.PROPERTIES`).
`seen.units["serve"]` has two keys:

* textfile: the file that a check wrote to a collector's directory, or None
* drained: the reason for which slurm-health drained the node, or None
"""

from __future__ import annotations

import os

from ...ground import textfile
from ...ground.host import Host
from .. import shims
from ..finding import MISMATCH, Finding, judge_item
from ..model import BOOT, IMAGE, Action, Note, Observed, Refusal, Waiting
from ..remedy import SITE, Remedy
from . import units
from .files import Wanted
from .program import PROGRAM

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
DynamicUser=yes
PrivateNetwork=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
CapabilityBoundingSet=
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
MemoryMax=96M
TasksMax=32
LimitNOFILE=128
Nice=10
CPUWeight=20
"""


def declared(document: ClassDocument) -> Mapping[str, Any]:
    """Return the class's `serve`; empty if it has no such section."""
    found = document.get("serve")
    return found if isinstance(found, dict) else {}


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Collect goldnode's traces outside its own files."""
    copy = (host.text(textfile.MEMORY) or "").strip() or None
    if copy and not (os.path.isfile(host.located(copy)) and copy.endswith(f"/{textfile.NAME}")):
        copy = None
    texts = (
        [(host.text(name) or "").strip() for name in (shims.MEMORY, shims.INTENT)]
        if host.live
        else []
    )
    drained = next(filter(None, texts), None)
    seen.units["serve"] = {"textfile": copy, "drained": drained}


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the units of the endpoint, and the programs for schedulers."""
    serve = declared(document)
    found = []
    if serve.get("listen"):
        text = SOCKET_TEXT.format(listen=serve["listen"])
        found.append(
            Wanted(
                f"{units.FOLDER}/{SOCKET}",
                text,
                "sanity",
                f"the class says `serve: {{listen: {serve['listen']}}}`",
            )
        )
        found.append(
            Wanted(
                f"{units.FOLDER}/{SERVICE}",
                SERVICE_TEXT,
                "sanity",
                "the endpoint that the socket starts",
            )
        )
    for key, path, text in (
        ("slurm", SLURM, shims.SLURM),
        ("slurm", PROLOG, shims.PROLOG),
        ("slurm", TASK_PROLOG, shims.TASK_PROLOG),
        ("npd", NPD, shims.NPD),
    ):
        if serve.get(key):
            found.append(
                Wanted(path, text, "sanity", f"the class says `serve: {{{key}: true}}`", 0o755)
            )
    return found


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return actions that start the socket if the class has an endpoint, and otherwise remove it. Pure.

    Metrics in a directory that the class does not declare are removed.
    """
    listen = declared(document).get("listen")
    actions: List[Action] = []
    have, to = seen.links.get(LINK), f"{units.FOLDER}/{SOCKET}"
    if listen and have != to:
        reason = "the endpoint is not enabled" if have is None else f"it points at {have}"
        actions.append(
            Action(
                "sanity",
                kind="link",
                target=LINK,
                reason=reason,
                phase=IMAGE,
                before=have,
                after=to,
                reboot=None,
                data={"to": to},
            )
        )
    elif have is not None and not listen:
        actions.append(
            Action(
                "sanity",
                kind="file.remove",
                target=LINK,
                reason="the class has no endpoint any more",
                phase=IMAGE,
                before=f"-> {have}\n",
            )
        )
    state = (seen.units.get("loaded") or {}).get(SOCKET)
    active = state is not None and state["ActiveState"] == "active"
    if state is not None and not listen and active:
        # A pattern matches loaded units only. By name, stopping fails for a service
        # without a file that never ran.
        names = ["goldnode-serve.*"]
        why = "the class has no endpoint any more"
        actions.insert(
            0,
            Action(
                "sanity",
                kind="units.stop",
                target=SOCKET,
                reason=why,
                phase=BOOT,
                before="running\n",
                after="stopped\n",
                reboot=None,
                data={"names": names},
            ),
        )
    waiting: List[Waiting] = []
    if (
        state is not None
        and listen
        and state["LoadState"] != "masked"
        and not (active and address(state) == listen)
    ):
        reason = (
            f"it listens on {address(state) or 'nothing'}, want {listen}"
            if active
            else f"it is {state['ActiveState'] or 'unknown'}"
        )
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
        actions.append(
            Action(
                "sanity",
                kind="file.remove",
                target=left,
                reason="the class wants no metrics there any more",
                phase=IMAGE,
                before="metrics\n",
            )
        )
    if not declared(document).get("slurm"):
        actions += release(seen)
    return actions, [], waiting


def release(seen: Observed) -> List[Action]:
    """Return the action that resumes a node drained by slurm-health, which will no longer do so itself."""
    text = (seen.units.get("serve") or {}).get("drained")
    reason = "slurm-health has drained the node, and will not be there to resume it"
    return (
        [
            Action(
                "sanity",
                kind="serve.release",
                target="Slurm",
                reason=reason,
                phase=BOOT,
                before=f"{text}\n",
                after=None,
                reboot=None,
                data={"reason": text},
            )
        ]
        if text
        else []
    )


def _is_wanted(document: ClassDocument, path: str) -> bool:
    folder = declared(document).get("textfile")
    return bool(folder) and path == f"{str(folder).rstrip('/')}/{textfile.NAME}"


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
    state = (seen.units.get("loaded") or {}).get(SOCKET)
    if state is None:
        elsewhere = "systemd does not run here" if seen.live else "an image does not run"
        return [judge_item("serve.socket", listen, None, remedy, elsewhere)]
    if state["ActiveState"] == "active":
        return [judge_item("serve.socket", listen, address(state) or None, remedy)]
    got = (
        state["LoadState"]
        if state["LoadState"] in ("masked", "not-found")
        else state["ActiveState"] or "unknown"
    )
    return [Finding("serve.socket", MISMATCH, listen, got, remedy)]


def absent(
    document: Optional[ClassDocument], seen: Observed, record: Mapping[str, Any]
) -> List[Action]:
    """Return actions that remove the collector's metrics, and resume a node that slurm-health drained.

    Outdated metrics would otherwise raise alerts forever.
    """
    left = (seen.units.get("serve") or {}).get("textfile")
    gone = (
        [
            Action(
                "sanity",
                kind="file.remove",
                target=left,
                reason="goldnode wrote it",
                phase=IMAGE,
                before="metrics\n",
                after=None,
            )
        ]
        if left
        else []
    )
    return gone + release(seen)
