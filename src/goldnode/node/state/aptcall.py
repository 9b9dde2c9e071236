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
    # As for the lock. With APT::Get::Phase-Policy, apt otherwise ignores the pins of a phased version, and finds no way
    # to install what depends on it.
    "-o",
    "APT::Get::Always-Include-Phased-Updates=1",
    "-o",
    "Dpkg::Use-Pty=0",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)
