"""Contents of the package goldnode-node: the program, its units, its man page and its completion.

The paths are none of those that `site.yml` writes: the program of a class belongs to the class, and moves with it. The
program of the package is for people and for nodes without Ansible. `root`'s PATH finds that of the class first.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass

from goldnode.core.deb import PackagedFile
from goldnode.core.errors import GoldnodeError
from goldnode.core.program_file import build, node_binding
from goldnode.core.release import version
from goldnode.lock.publication import NODE_PACKAGE
from goldnode.node.ground.verdict_files import CLASS
from goldnode.node.state.domains.program import DEVICES, MAKE, READER, UNIT

# 2026-01-01. A fixed date: with that of the build, equal content would be a new file.
EPOCH = 1_767_225_600
COMMAND = "/usr/bin/goldnode-node"
UNITS = "/usr/lib/systemd/system"
SERVICE, TIMER = f"{NODE_PACKAGE}.service", f"{NODE_PACKAGE}.timer"
SUMMARY = "health check of GPU nodes against their node class"
TEXT = (
    "goldnode-node judges driver, GPUs, links, kernel, container runtime and host of a machine, with or without a "
    "declared node class. It is one file for Python 3.9, needs nothing else, and changes nothing by itself.",
    "Its timer checks a machine that has a class document in /etc/goldnode/class.json and was not set up by "
    "goldnode's site.yml, which installs units of its own.",
)
DEPENDS = "3.9"  # lowest version of Python

SERVICE_TEXT = f"""\
# goldnode: check this machine, where the package is all of goldnode that it has
[Unit]
Description=goldnode check of the node class, by the package
Documentation=man:goldnode-node(1)
ConditionPathExists={CLASS}
# A node that site.yml has set up is checked by its own units, with the program of its class.
ConditionPathExists=!{UNIT}
After=local-fs.target systemd-modules-load.service nvidia-persistenced.service

[Service]
Type=oneshot
ExecStartPre={MAKE}
ExecStartPre={DEVICES}
ExecStart={COMMAND} check --quiet --passive --defer
ExecStartPost=-+{COMMAND} act
# A verdict is not a failure of the unit: 1 degraded, 2 drain, 3 could not check, 4 not this class.
SuccessExitStatus=1 2 3 4
TimeoutStartSec=600
Nice=10
CPUWeight=20
IOSchedulingPriority=7
{READER}"""

# By the calendar: with a condition that skips the service, OnUnitInactiveSec= counts from a base that systemd does not document
# (findings/systemd-timer-skipped-service.sh).
TIMER_TEXT = """\
# goldnode: run the check of the package; a verdict is valid for 900 s
[Unit]
Description=goldnode check of the node class, every 5 minutes
Documentation=man:goldnode-node(1)

[Timer]
OnCalendar=*:0/5
RandomizedDelaySec=30
AccuracySec=10

[Install]
WantedBy=timers.target
"""


@dataclass(frozen=True)
class PackageFamily:
    """Where a family of distributions looks for completions of zsh."""

    name: str
    zsh: str


DEBIAN = PackageFamily("deb", "/usr/share/zsh/vendor-completions")
FEDORA = PackageFamily("rpm", "/usr/share/zsh/site-functions")


@dataclass(frozen=True)
class Words:
    """Texts from the program's command line: its man page, and its completion for each shell."""

    manual: str
    completion: Mapping[str, str]


def files(words: Words, family: PackageFamily) -> list[PackagedFile]:
    """Return the files of the package that both families have."""
    share = "/usr/share"
    return [
        PackagedFile(COMMAND, build(), 0o755),
        PackagedFile(f"{UNITS}/{SERVICE}", SERVICE_TEXT.encode()),
        PackagedFile(f"{UNITS}/{TIMER}", TIMER_TEXT.encode()),
        PackagedFile(f"{share}/man/man1/{NODE_PACKAGE}.1.gz", compressed(words.manual)),
        PackagedFile(
            f"{share}/bash-completion/completions/{NODE_PACKAGE}", words.completion["bash"].encode()
        ),
        PackagedFile(f"{family.zsh}/_{NODE_PACKAGE}", words.completion["zsh"].encode()),
        PackagedFile(
            f"{share}/fish/vendor_completions.d/{NODE_PACKAGE}.fish",
            words.completion["fish"].encode(),
        ),
    ]


def compressed(text: str) -> bytes:
    """Return gzip of `text` without a time and a name."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=9, mtime=0) as file:
        file.write(text.encode())
    return out.getvalue()


def package_version() -> str:
    """Return the version of goldnode as dpkg and rpm sort it: a pre-release before its release."""
    return re.sub(r"[._-]?(dev|a|b|rc)(\d*)", r"~\1\2", version())


def binding_licence() -> list[str]:
    """Return the lines of the licence of pynvml, which the program includes. Raises GoldnodeError without one."""
    parts = node_binding().decode().split("#####", 2)
    if len(parts) < 3 or "Redistribution and use" not in parts[1]:
        raise GoldnodeError("the program includes pynvml without its licence", remedy="report this")
    return [line.removeprefix("#").removeprefix(" ") for line in parts[1].strip().splitlines()]
