"""Settings of a node that follows a channel: `follow` of its class document, with the options of the command."""

from __future__ import annotations

import json
import os
import socket

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple
from ..state import owners
from ..state.domains.program import CLASS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Tuple

    from ..ground.host import Host

ROOT_DOCUMENT = "/etc/goldnode/follow/root.json"  # from a trusted place; the site puts it there
STEP = "/var/lib/goldnode/follow/step.json"
STATE = "/var/lib/goldnode/follow"  # carried over to the other slot by `slot write`
STAGED = "/var/cache/goldnode/follow"  # downloads; not carried over


class Settings(NamedTuple):
    """Where the channel and the lock service are, and who this node is for them.

    `apply` is the site's command for a rollout to a lock; `accepted` are exit codes of a check that count as good.
    `proofs` are kinds of evidence without which the node does not move, made at most `proof_days` ago (None: at any time).
    """

    channel: str
    service: str
    node: str
    node_class: str
    lock: Optional[str]  # digest of the lock in the class document
    group: str
    root: str = ROOT_DOCUMENT
    ca: Optional[str] = None
    certificate: Optional[str] = None
    key: Optional[str] = None
    apply: Tuple[str, ...] = ()
    accepted: Tuple[int, ...] = (0,)
    proofs: Tuple[str, ...] = ()
    proof_days: Optional[int] = None
    simulated: bool = False  # the class has simulated hardware


def load(host: Host, options: Any) -> Settings:
    """Return the settings of a command line and the class document. Raises NodeError for what is missing."""
    document = _document(host)
    given = as_dict(document.get("follow"))
    evidence = as_dict(given.get("evidence"))
    channel = options.channel or given.get("channel")
    service = options.service or given.get("service")
    for name, value in (("channel", channel), ("lock service", service)):
        if not value:
            raise NodeError(
                f"no {name} is named. Write `follow: {{channel: ADDRESS, service: ADDRESS}}` in the class and run "
                "site.yml, or give CHANNEL and --service."
            )
    name = options.node or given.get("node") or socket.gethostname()
    settings = Settings(
        channel=str(channel),
        service=str(service),
        node=str(name),
        node_class=str(document["class"]),
        lock=(document.get("lock") or {}).get("digest"),
        group=str(given.get("group") or document["class"]).replace("_", "-"),
        root=str(options.root_document or given.get("root") or ROOT_DOCUMENT),
        ca=given.get("ca"),
        certificate=given.get("certificate"),
        key=given.get("key"),
        apply=tuple(given.get("apply") or ()),
        accepted=tuple(given.get("accepted") or (0,)),
        proofs=tuple(evidence.get("kinds") or ()),
        proof_days=evidence.get("max_age_days"),
        simulated=document.get("simulated") is True,
    )
    for path in (settings.ca, settings.certificate, settings.key):
        if path and not os.path.isfile(path):
            raise NodeError(
                f"{path} does not exist. Put it there, or correct `follow` of the class."
            )
    check_owners(host, settings)
    return settings


def check_owners(host: Host, settings: Settings) -> None:
    """Raise NodeError if others than root can change a file that decides what this node runs or trusts."""
    again = "put it there again, from a place that you trust"
    named = [
        (path, again)
        for path in (settings.root, settings.ca, settings.certificate, settings.key)
        if path
    ]
    if settings.apply and settings.apply[0].startswith("/"):
        named.append((settings.apply[0], "install it again, as root"))
    for path, remedy in named:
        owners.believe(host, os.path.realpath(path), remedy)  # the site may put links there
    for name in host.glob(f"{STATE}/metadata", "*.json"):
        owners.believe(host, name, "remove it: the next pass fetches it again")
    owners.believe(
        host,
        STEP,
        f"compare it with `goldnode rollout explain`, and run `chown root: {STEP}; chmod 644 {STEP}`",
    )


def _document(host: Host) -> Mapping[str, Any]:
    owners.believe(host, CLASS)  # it names the command that a pass runs as root
    try:
        document = json.loads(host.text(CLASS) or "null")
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("class"), str):
        raise NodeError(
            f"{CLASS} is missing or damaged: this node has no class. Run site.yml for this host."
        )
    return document
