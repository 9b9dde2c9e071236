"""The package for Debian and Ubuntu."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime
from email.utils import format_datetime

from goldnode.core import deb
from goldnode.core.deb import PackagedFile
from goldnode.core.errors import GoldnodeError
from goldnode.lock.publication import NODE_PACKAGE
from goldnode.nodepackage.contents import (
    DEBIAN,
    DEPENDS,
    EPOCH,
    SERVICE,
    SUMMARY,
    TEXT,
    TIMER,
    Words,
    binding_licence,
    compressed,
    files,
    package_version,
)

# As debhelper's units are installed: `enable` at the first installation alone, so that a timer that an administrator
# has disabled stays so. All of it does nothing in a chroot.
_POSTINST = f"""\
#!/bin/sh
set -e
case "$1" in configure | abort-upgrade | abort-deconfigure | abort-remove)
    if command -v deb-systemd-helper >/dev/null; then
        if deb-systemd-helper --quiet was-enabled {TIMER}; then
            deb-systemd-helper enable {TIMER} >/dev/null || true
        else
            deb-systemd-helper update-state {TIMER} >/dev/null || true
        fi
    fi
    if [ -d /run/systemd/system ] && command -v deb-systemd-invoke >/dev/null; then
        systemctl --system daemon-reload >/dev/null || true
        deb-systemd-invoke start {TIMER} >/dev/null || true
    fi
    ;;
esac
"""
_PRERM = f"""\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ] && command -v deb-systemd-invoke >/dev/null; then
    deb-systemd-invoke stop {TIMER} {SERVICE} >/dev/null || true
fi
"""
# State of a node that site.yml has set up is not the package's: its records are needed to undo what was changed.
# The checks of the package leave no directory of their own in /etc/goldnode: the class document is the administrator's.
_POSTRM = f"""\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = purge ]; then
    if command -v deb-systemd-helper >/dev/null; then
        deb-systemd-helper purge {TIMER} >/dev/null || true
    fi
    if [ ! -e /var/lib/goldnode/state.json ] && [ ! -e /usr/lib/goldnode/goldnode-node ]; then
        rm -rf /var/lib/goldnode /run/goldnode
    fi
fi
"""
SCRIPTS = {"postinst": _POSTINST, "postrm": _POSTRM, "prerm": _PRERM}


def build(words: Words, revision: int, maintainer: str) -> tuple[str, bytes]:
    """Return the file name and the bytes of the package. Raises GoldnodeError for a maintainer without an address."""
    if not re.fullmatch(r"[^<>\n]+ <[^<>@\s]+@[^<>@\s]+>", maintainer):
        raise GoldnodeError(
            f'"{maintainer}" names no maintainer', remedy="write it as `NAME <ADDRESS>`"
        )
    version = f"{package_version()}-{revision}"
    fields = {
        "Package": NODE_PACKAGE,
        "Version": version,
        "Architecture": "all",
        "Multi-Arch": "foreign",
        "Maintainer": maintainer,
        "Section": "admin",
        "Priority": "optional",
        "Depends": f"python3:any (>= {DEPENDS})",
        "Description": "\n".join([SUMMARY, *_described()]),
    }
    doc = f"/usr/share/doc/{NODE_PACKAGE}"
    own = [
        *files(words, DEBIAN),
        PackagedFile(f"{doc}/copyright", _copyright().encode()),
        PackagedFile(f"{doc}/changelog.Debian.gz", compressed(_changelog(version, maintainer))),
    ]
    return f"{NODE_PACKAGE}_{version}_all.deb", deb.package(fields, own, SCRIPTS, EPOCH)


def _described() -> list[str]:
    """Return the long description as a control file has it: lines of 79 columns, a dot between paragraphs."""
    lines: list[str] = []
    for paragraph in TEXT:
        lines += [" ."] if lines else []
        lines += textwrap.wrap(paragraph, 79, initial_indent=" ", subsequent_indent=" ")
    return lines


def _copyright() -> str:
    licence = "\n".join(f" {line}" if line.strip() else " ." for line in binding_licence())
    return f"""\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Comment: The program includes pynvml, the Python binding of NVML (NVIDIA).

Files: *
Copyright: the authors of goldnode
License: Apache-2.0
 See /usr/share/common-licenses/Apache-2.0.

Files: usr/bin/{NODE_PACKAGE}
Copyright: the authors of goldnode
 2011-2025, NVIDIA Corporation (pynvml)
License: Apache-2.0 and BSD-3-clause

License: BSD-3-clause
{licence}
"""


def _changelog(version: str, maintainer: str) -> str:
    when = format_datetime(datetime.fromtimestamp(EPOCH, UTC))
    return (
        f"{NODE_PACKAGE} ({version}) unstable; urgency=medium\n\n"
        "  * Made by `goldnode package`; see the CHANGELOG of goldnode.\n\n"
        f" -- {maintainer}  {when}\n"
    )
