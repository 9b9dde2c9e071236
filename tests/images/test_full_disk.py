"""A file system that is really full: a tmpfs of a few MiB in a mount namespace of the test's own. An image is built and pulled on it, and a
registry stores on it."""

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
from tests.images.registry_server import DockerRegistry
from tests.unit.images.registries import make_image, make_key, prove

from goldnode.core.errors import ImageError
from goldnode.evidence.signatures import load_public
from goldnode.images.publish import ImagePublication, publish
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.registry import RegistryAddress

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
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-c",
            STEPS,
            str(store),
            json.dumps(sizes),
            *command,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or not all(
        map(shutil.which, ("unshare", "mount", "mmdebstrap", "buildah"))
    ):
        pytest.skip("needs root, unshare, mmdebstrap and buildah")
    place = tmp_path / "store"
    place.mkdir()
    return place


def test_build_on_a_full_disk_fails_and_succeeds_when_there_is_room(store: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from goldnode.cli import main; main()",
        "images",
        "build",
        "--store",
        str(store),
    ]
    # Too small for the packages, for the root that they make; then enough. What one attempt fetched or made stays.
    *small, whole = steps(store, [20, 100, 3000], *command, "--engine", "buildah", BASE)
    for attempt in small:
        assert attempt["code"] == 2, attempt
        full = r"the disk is full|No space left on device|MB are free"
        assert re.search(full, attempt["err"]), attempt["err"]
        assert "Make room" in attempt["err"], attempt["err"]
        assert "Traceback" not in attempt["err"], attempt["err"]
        assert (attempt["names"], attempt["built"], attempt["mounts"]) == ([], [], []), attempt
    assert whole["code"] == 0, whole["err"]
    assert len(whole["built"]) == 1
    assert not whole["work"]
    assert not whole["mounts"]


# A pull, as `goldnode images pull` does it; the registry's certificate is of the test's own authority.
PULL = """
import sys
from pathlib import Path
from goldnode.core.errors import ImageError
from goldnode.oci.layout import Layout
from goldnode.images.pull import pull
from tests.images.registry_server import PASSWORD, USER
from goldnode.oci.registry import Registry, RegistryOptions
from goldnode.oci.auth import Login
store, host, ca, name, digest = sys.argv[1:]
options = RegistryOptions(ca=Path(ca), logins=lambda *_: Login(USER, PASSWORD), pause=0.01)
client = Registry(host, options)
try:
    print(pull(Layout(Path(store)), client.repository(name), digest).fetched)
except ImageError as problem:
    sys.exit(f"error: {problem}")
"""


def test_pull_to_a_full_disk_fails_and_succeeds_when_there_is_room(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "mount", "docker-registry"))):
        pytest.skip("needs root, unshare and docker-registry")
    for name in ("keys", "registry", "store"):
        (tmp_path / name).mkdir()
    keys, registry, source = (
        make_key(tmp_path / "keys"),
        DockerRegistry(tmp_path / "registry"),
        Layout(tmp_path / "source"),
    )
    try:
        ref, digest = make_image(source, bulk=6_000_000)
        prove(source, digest, keys[0], papers=False)
        publish(
            source,
            ref,
            RegistryAddress(registry.host, "full"),
            registry.client(),
            ImagePublication(trust=load_public(keys[1]), settle=0),
        )
        asked = (registry.host, str(registry.ca), "full/cuda", digest)
        small, whole = steps(
            tmp_path / "store", [4, 40], sys.executable, "-c", PULL, str(tmp_path / "store"), *asked
        )
    finally:
        registry.kill()
    assert small["code"] == 1
    assert re.search(
        r"error: the disk of .* is full: blob sha256:\w+ of \d+ bytes has no room.*goldnode images gc",
        small["err"],
    ), small
    assert (small["names"], small["free"]) == ([], 0)
    assert whole["code"] == 0, whole["err"]
    assert ref in [
        row.get("org.opencontainers.image.ref.name") for row in whole["names"]
    ]  # its evidence has no name


def test_a_registry_whose_disk_is_full_gets_no_tag_until_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("docker-registry")
    if (
        os.geteuid() != 0
        or real is None
        or not all(map(shutil.which, ("unshare", "nsenter", "mount")))
    ):
        pytest.skip("needs root, unshare, nsenter and docker-registry")
    for name in ("keys", "registry/storage", "bin"):
        (tmp_path / name).mkdir(parents=True)
    storage, wrapper = tmp_path / "registry/storage", tmp_path / "bin/docker-registry"
    wrapper.write_text(
        '#!/bin/sh\n[ -n "$INSIDE" ] || INSIDE=1 exec unshare --mount --propagation private "$0" "$@"\n'
        f'mount -t tmpfs -o size=4m tmpfs {storage}\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    keys, source = make_key(tmp_path / "keys"), Layout(tmp_path / "source")
    ref, digest = make_image(source, bulk=6_000_000)
    prove(source, digest, keys[0], papers=False)
    registry = DockerRegistry(tmp_path / "registry")
    try:
        client, where, trust = (
            registry.client(tries=2),
            RegistryAddress(registry.host, "full"),
            load_public(keys[1]),
        )
        # It does not say what ails it: its answer is 500 alone.
        with pytest.raises(
            ImageError, match=r"answers 500.*Run it again when the registry is well"
        ):
            publish(source, ref, where, client, ImagePublication(trust=trust, settle=0))
        assert client.repository("full/cuda").tags() == []
        assert registry.process is not None
        room = [
            "nsenter",
            "--target",
            str(registry.process.pid),
            "--mount",
            "mount",
            "-o",
            "remount,size=60m",
            str(storage),
        ]
        subprocess.run(room, check=True)
        publish(source, ref, where, client, ImagePublication(trust=trust, settle=0))
        assert ref.partition(":")[2] in client.repository("full/cuda").tags()
        found = client.repository("full/cuda").manifest(digest)
        assert found is not None
        assert found.data == source.read(digest)
    finally:
        registry.kill()
    assert OciImage(source, digest).digest == digest
