"""What stays on the node: the class document, the on-node program, and the unit that runs it at boot."""

from __future__ import annotations

from ... import quickjson as json
from ...hashes import sha256
from ...host import PROGRAM as PROGRAM
from ...lines import by_lines
from ..model import IMAGE, Action, Observed
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, TypeAlias


CLASS = "/etc/goldnode/class.json"
# Exit status of the program that is asked for a plan as another program, or of another class document: see node/resident.py.
OTHER, OTHER_CLASS = 10, 11
UNIT = "/etc/systemd/system/goldnode-sanity.service"
COMMAND = "/usr/sbin/goldnode-node"
WANTS = "/etc/systemd/system/multi-user.target.wants/goldnode-sanity.service"

Document: TypeAlias = "Mapping[str, Any]"

# Ordering only: the check may find the node bad, and it must never be the check that keeps a runtime from starting.
UNIT_TEXT = f"""# goldnode: holds this boot against the node class
[Unit]
Description=goldnode boot check of the node class
ConditionPathExists={CLASS}
After=local-fs.target systemd-modules-load.service systemd-udev-settle.service nvidia-persistenced.service goldnode-policy.service
Before=docker.service containerd.service slurmd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} check --quiet
# A verdict is not a failure of the unit: 1 degraded, 2 drain, 3 could not check, 4 not this class.
SuccessExitStatus=1 2 3 4
# Long, because a kernel that this boot tries becomes the default in it, and update-grub asks every disk.
TimeoutStartSec=600

[Install]
WantedBy=multi-user.target
"""


def document_digest(document: Document) -> str:
    """The digest that a class document must carry: SHA-256 of its canonical JSON without `digest` and `site`."""
    inner = {key: value for key, value in document.items() if key not in ("digest", "site")}
    text = json.dumps(inner, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + sha256(text.encode()).hexdigest()


def class_file(document: Document) -> Wanted:
    """The class document, with the site's mirrors: what the boot check judges by."""
    content = by_lines(document, ordered=True) + "\n"
    show = f"class {document['class']} {document['digest']}\nstack {document['stack']['name']} lock {document['lock']['digest']}\n"
    return Wanted(CLASS, content, "node_class", f"this node is of class {document['class']}", show=show)


def files(payloads: Mapping[str, Any]) -> List[Wanted]:
    """The program (its bytes travel as payload ``program``: {sha256, content}) and its unit."""
    wanted = [Wanted(UNIT, UNIT_TEXT, "sanity", "the node is checked at every boot")]
    if "program" in payloads:
        digest = payloads["program"]["sha256"]
        wanted.insert(
            0, Wanted(PROGRAM, digest, "node_class", "the on-node program", 0o755, f"{digest}\n", "program")
        )
    return wanted


def links(seen: Observed) -> List[Action]:
    """What leads to the program: its name where a shell finds it, and `systemctl enable` as the link it makes (true in an image too, and no
    daemon-reload)."""
    wanted = (
        ("node_class", COMMAND, PROGRAM, "the on-node program has no name that a shell finds"),
        ("sanity", WANTS, UNIT, "the boot check is not enabled"),
    )
    actions = []
    for part, name, target, missing in wanted:
        have = seen.links.get(name)
        if have != target:
            reason = missing if have is None else f"it points at {have}"
            actions.append(Action(part, "link", name, reason, IMAGE, have, target, None, {"to": target}))
    return actions
