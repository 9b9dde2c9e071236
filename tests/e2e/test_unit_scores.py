"""The scores of the units by the systemd of Debian 13, which judges by other weights than that of Debian 12."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.unit.node.state.test_units_page import NEWER, ROWS, WORDS, by_name, put

from goldnode.core import docker_engine as engine
from goldnode.testing.lab import images

pytestmark = pytest.mark.lab


def test_page_has_the_scores_by_the_systemd_of_debian_13(tmp_path: Path) -> None:
    image = images.ensure(engine.connect(), "debian13", "bare", say=print)
    names = [f"/units/{file.name}" for file in put(tmp_path)]
    mount = f"{tmp_path}:/units:ro"
    done = subprocess.run(
        ["docker", "run", "--rm", "-v", mount, "--entrypoint=", image, "systemd-analyze", *WORDS, *names],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert by_name(done.stdout) == {name: row.newer for name, row in ROWS.items()}, done.stderr
    shown = subprocess.run(
        ["docker", "run", "--rm", "--entrypoint=", image, "systemd-analyze", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split()[1] == NEWER
