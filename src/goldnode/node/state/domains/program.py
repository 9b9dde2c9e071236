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

# In each sandbox.
COMMON = """\
NoNewPrivileges=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
UMask=0077
"""
# For a unit that needs neither devices nor anything of the kernel.
CLOSED = f"""\
{COMMON}PrivateTmp=yes
ProtectSystem=strict
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ProtectClock=yes
MemoryDenyWriteExecute=yes
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
"""
# The sandbox of a unit that judges the node. It reads everything, and writes goldnode's own state alone. The rights
# are those that its readers need: files of other users, their open files and PID 1's mounts (PTRACE), the kernel's
# log, and the health log of NVMe (ADMIN). NoNewPrivileges keeps programs that it starts from getting more. EPERM:
# a reader whose call is refused reports `could not read`; the check goes on.
# Options that look right and are not: docs/reference/units.md.
# adjtimex: whether the clock is synchronised.
READER = f"""\
{COMMON}CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_SYS_PTRACE CAP_SYSLOG CAP_SYS_ADMIN
ProtectSystem=strict
ReadWritePaths=-/run/goldnode -/var/lib/goldnode
ProtectHome=read-only
PrivateTmp=yes
PrivateMounts=yes
ReadOnlyPaths=-/proc/sys -/sys
DeviceAllow=char-* rw
DeviceAllow=block-* r
RestrictAddressFamilies=AF_UNIX
SystemCallFilter=@system-service adjtimex clock_adjtime
SystemCallFilter=~@resources
"""
# Without its directories in /run and /var the sandbox would have none that it may write.
MAKE = "-+/bin/mkdir -p -m 755 /run/goldnode /var/lib/goldnode"
# NVML makes missing device files as root only: it starts nvidia-modprobe, which the sandbox keeps from doing so. 255
# is the minor number of the control device (CUDA Installation Guide, "Device Node Verification").
DEVICES = (
    "-+/bin/sh -c '[ ! -e /dev/nvidiactl ] && [ -x /usr/bin/nvidia-modprobe ] || exit 0; "
    "timeout 60 /usr/bin/nvidia-modprobe -c 255; cat /proc/driver/nvidia/gpus/*/information | "
    'while read -r word next minor; do [ "$$word $$next" != "Device Minor:" ] || '
    "/usr/bin/nvidia-modprobe -c $$minor; done'"
)
# The effects of a verdict need the rights of root: a scheduler or a command of the site, systemd, the boot
# loader, the directory of a metrics collector.
ACT = f"-+{PROGRAM} act"

# Ordering only: the check may find faults, but must never be the cause that a
# container runtime does not start.
UNIT_TEXT = f"""# goldnode: check this boot against the node class
[Unit]
Description=goldnode boot check of the node class
ConditionPathExists={CLASS}
After=local-fs.target systemd-modules-load.service systemd-udev-settle.service \
nvidia-persistenced.service goldnode-policy.service goldnode-scratch.service
Before=docker.service containerd.service slurmd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStartPre={MAKE}
ExecStartPre={DEVICES}
ExecStart={PROGRAM} check --quiet --defer
ExecStartPost={ACT}
# A verdict is not a failure of the unit: 1 degraded, 2 drain, 3 could not check, 4 not this class.
SuccessExitStatus=1 2 3 4
# Long, because this check may make a kernel on trial the default, and update-grub reads every disk.
TimeoutStartSec=600
{READER}
[Install]
WantedBy=multi-user.target
"""


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a class document: SHA-256 of its canonical JSON without `digest` and `site`."""
    inner = {key: value for key, value in document.items() if key not in ("digest", "site")}
    text = json.dumps(inner, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate of an edited document has no bytes in UTF-8, and a digest all the same.
    return "sha256:" + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
