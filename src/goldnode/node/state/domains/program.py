"""Domain of the permanent files on the node: class document, on-node program, unit of the boot check."""

from __future__ import annotations

import json
from hashlib import sha256

from ...ground.host import PROGRAM as PROGRAM
from ...ground.json_lines import by_lines
from ...ground.verdict_files import CLASS as CLASS
from ..actions import link
from ..model import Action, Observed
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping


# Exit status if the requested plan is for another program version, or for another class
# document: see node/program/resident.py.
OTHER, OTHER_CLASS = 10, 11
UNIT = "/etc/systemd/system/goldnode-sanity.service"
COMMAND = "/usr/sbin/goldnode-node"
WANTS = "/etc/systemd/system/multi-user.target.wants/goldnode-sanity.service"

# Ordering only: the check may find faults, but must never be the cause that a
# container runtime does not start.
UNIT_TEXT = f"""# goldnode: check this boot against the node class
[Unit]
Description=goldnode boot check of the node class
ConditionPathExists={CLASS}
After=local-fs.target systemd-modules-load.service systemd-udev-settle.service \
nvidia-persistenced.service goldnode-policy.service
Before=docker.service containerd.service slurmd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} check --quiet
# A verdict is not a failure of the unit: 1 degraded, 2 drain, 3 could not check, 4 not this class.
SuccessExitStatus=1 2 3 4
# Long, because this check may make a kernel on trial the default, and update-grub reads every disk.
TimeoutStartSec=600

[Install]
WantedBy=multi-user.target
"""


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a class document: SHA-256 of its canonical JSON without `digest` and `site`."""
    inner = {key: value for key, value in document.items() if key not in ("digest", "site")}
    text = json.dumps(inner, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + sha256(text.encode()).hexdigest()


def class_file(document: Mapping[str, Any]) -> Wanted:
    """Return the class document with the site's mirrors, which the boot check compares with the node."""
    content = by_lines(document, ordered=True) + "\n"
    show = (
        f"class {document['class']} {document['digest']}\nstack {document['stack']['name']} lock "
        f"{document['lock']['digest']}\n"
    )
    return Wanted(
        CLASS, content, "node_class", f"this node is of class {document['class']}", show=show
    )


def files(payloads: Mapping[str, Any]) -> List[Wanted]:
    """Return the program and its unit. The program's bytes are the payload ``program``: {sha256, content}."""
    wanted = [Wanted(UNIT, UNIT_TEXT, "sanity", "the node is checked at every boot")]
    if "program" in payloads:
        digest = payloads["program"]["sha256"]
        wanted.insert(
            0,
            Wanted(
                PROGRAM,
                content=digest,
                part="node_class",
                why="the on-node program",
                mode=0o755,
                show=f"{digest}\n",
                payload="program",
            ),
        )
    return wanted


def links(seen: Observed) -> List[Action]:
    """Return links to the program: its name in the shell's path, and the link of `systemctl enable`.

    Creating the link directly also works in an image, and needs no daemon-reload.
    """
    wanted = (
        ("node_class", COMMAND, PROGRAM, "the on-node program has no name that a shell finds"),
        ("sanity", WANTS, UNIT, "the boot check is not enabled"),
    )
    return [
        action
        for part, name, target, missing in wanted
        for action in link(part, name, target, seen=seen, missing=missing)
    ]
