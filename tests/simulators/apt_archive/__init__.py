"""Signed local apt archive of stand-ins: real package names and dependencies, but nothing that runs a GPU.

    archive = publish(directory)             # also: groups=…, withdraw=…, key="wrong"
    server = lab.serve(archive.directory)    # goldnode.testing.lab: http for nodes and for this machine
    archive.write_site(path, server.url)     # a site file that maps goldnode's archive ids to it

Every version contains `+standin1`, and every description starts with "goldnode stand-in:".
"""

from __future__ import annotations

from tests.simulators.apt_archive.content import (
    BROKEN,
    DEFAULT,
    GROUPS,
    MODULES,
    NEWER,
    SECURITY_UPDATES,
    TOOLKIT_SAFE,
)
from tests.simulators.apt_archive.repository import KEY, Archive, build, publish

__all__ = [
    "BROKEN",
    "DEFAULT",
    "GROUPS",
    "KEY",
    "MODULES",
    "NEWER",
    "SECURITY_UPDATES",
    "TOOLKIT_SAFE",
    "Archive",
    "build",
    "publish",
]
