"""Debian's archive as this machine's apt uses it, for tests that unpack packages of other releases."""

from __future__ import annotations

import subprocess

import pytest


def debian_archive() -> str:
    """Return the URL of the archive. Skip the test if apt on this machine uses none."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line for line in done.stdout.split() if "security" not in line]
    if not found:  # an Ubuntu machine, or apt without indexes: there is nothing to fetch from
        pytest.skip("apt on this machine uses no archive of Debian")
    return found[0]
