"""The classes of the scoreboard's nodes, compiled: from the catalog beside this file and a lock that stands here, for nothing is installed."""

from __future__ import annotations

import datetime as dt
from functools import cache
from pathlib import Path
from typing import Any

from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core.site import Site, SiteArchive
from goldnode.lock.model import Lock, LockedArchive, LockedPackage

PLACE = Path(__file__).parent / "catalog"
DAY = dt.date(2026, 11, 22)
KERNEL = "6.12.94+deb13-amd64"
DRIVER = "580.95.05"
SITE = Site(archives={"debian": SiteArchive(url="http://mirror.example.org/debian/")})
PACKAGES = {
    "board_r580": [
        ("nvidia-kernel-open-dkms", "driver"), ("libcuda1", "driver"), ("libnvidia-ml1", "driver"), ("nvidia-persistenced", "driver"),
        ("nvidia-fabricmanager", "driver"),
    ],
    "board_amd": [("firmware-amd-graphics", "driver")],
    "board_plain": [],
}  # fmt: skip


def lock(stack: str) -> Lock:
    """What a stack of the scoreboard resolves to."""
    nvidia = stack == "board_r580"
    kernel = [(f"linux-image-{KERNEL}", "kernel"), (f"linux-headers-{KERNEL}", "kernel")]
    rows = []
    for name, part in [*kernel, *PACKAGES[stack]]:
        row: dict[str, Any] = {
            "name": name,
            "part": part,
            "version": f"{DRIVER}-1" if part == "driver" and nvidia else "6.12.94-1",
        }
        row |= {
            "architecture": "amd64",
            "sha256": "0" * 64,
            "size": 1,
            "path": f"pool/{name}.deb",
            "archive": "debian",
            "set": "stack",
        }
        row |= {
            "requested": True,
            "why": "requested by the stack",
            "when": "nvswitch" if name == "nvidia-fabricmanager" else None,
        }
        rows.append(LockedPackage.model_validate(row))
    return Lock(
        lock=1, stack=stack, intent="sha256:" + "0" * 64, resolved=DAY.isoformat(), kernel_release=KERNEL,
        driver_version=DRIVER if nvidia else None, archives=[LockedArchive(id="debian", suite="trixie", components=["main"])], packages=rows,
    )  # fmt: skip


@cache
def document(name: str) -> dict[str, Any]:
    """The class document of `name`. Not to be changed by whoever gets it."""
    catalog = load_catalog([builtin_catalog(), PLACE])
    return class_document(name, catalog, SITE, {stack: lock(stack) for stack in PACKAGES}, on=DAY)
