"""How apt-get is called to change a node."""

from __future__ import annotations

APT_TIME = (
    3600.0  # a module build on a small node takes minutes; an hour means that something hangs
)

APT = (
    "apt-get",
    "-y",
    "--no-install-recommends",
    "-o",
    "DPkg::Lock::Timeout=120",
    "-o",
    "Dpkg::Use-Pty=0",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)
