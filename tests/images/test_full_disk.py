"""A file system that is really full: a tmpfs of a few MiB, in a mount namespace of the test's own, on which an image is built and pulled."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.images

BASE = "cpu-1-base-debian12"

# Runs in the namespace: mounts the tmpfs, and for each size of it (MiB) runs the command; tells what came of it and what was left.
STEPS = """
import json, os, subprocess, sys
from pathlib import Path
store, sizes, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", store], check=True)
told = []
for size in json.loads(sizes):
    subprocess.run(["mount", "-o", f"remount,size={size}m", store], check=True)
    done = subprocess.run(command, capture_output=True, text=True)
    place = Path(store)
    index = place / "index.json"
    told.append({
        "size": size,
        "code": done.returncode,
        "out": done.stdout,
        "err": done.stderr,
        "names": [row.get("annotations", {}) for row in json.loads(index.read_text())["manifests"]] if index.is_file() and index.stat().st_size else [],
        "built": sorted(path.name for path in place.glob("built/*")),
        "mounts": [line.split()[1] for line in open("/proc/self/mounts") if line.split()[1].startswith(store + "/")],
        "work": [str(path) for path in [*place.glob("cache/work/*"), *place.glob("blobs/sha256/.new-*"), *place.rglob(".new-*")]],
        "layers": sorted(path.name for path in place.glob("cache/layers/*.json")),
        "free": os.statvfs(store).f_bavail * os.statvfs(store).f_frsize,
    })
print(json.dumps(told))
"""


def steps(store: Path, sizes: list[int], *command: str) -> list[dict[str, Any]]:
    """Run the command on a tmpfs of each size in turn, its content kept between them."""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", STEPS, str(store), json.dumps(sizes), *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "mount", "mmdebstrap", "buildah"))):
        pytest.skip("needs root, unshare, mmdebstrap and buildah")
    place = tmp_path / "store"
    place.mkdir()
    return place


def test_a_build_on_a_full_disk_says_so_and_goes_on_when_there_is_room(store: Path) -> None:
    command = [sys.executable, "-c", "from goldnode.cli import main; main()", "images", "build", "--store", str(store)]
    # Too small for the packages, for the root that they make, for the layer beside it; then enough. What one attempt fetched or made stays.
    *small, whole = steps(store, [20, 100, 420, 3000], *command, "--engine", "buildah", BASE)
    for attempt in small:
        assert attempt["code"] == 2, attempt
        assert re.search(r"the disk is full|No space left on device", attempt["err"]), attempt["err"]
        assert "Make room" in attempt["err"], attempt["err"]
        assert "Traceback" not in attempt["err"], attempt["err"]
        assert (attempt["names"], attempt["built"], attempt["mounts"]) == ([], [], []), attempt
    assert whole["code"] == 0, whole["err"]
    assert len(whole["built"]) == 1
    assert not whole["work"]
    assert not whole["mounts"]
