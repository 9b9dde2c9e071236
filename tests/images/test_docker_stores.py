"""Smoke tests through Docker 28 with both of its image stores: graph drivers, and containerd's, the default of new installations of 29.

Debian 14 has 28.5.2; there is no 29 in Debian, so it was not tried. The daemon runs in a root of its own, with its own data, socket, mounts,
network and processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from tests.images.test_smoke import image, own, root

from goldnode.core.site import archive_url, load_site
from goldnode.images.smoke import inside
from goldnode.oci.layout import Layout
from goldnode.testing.lab.images import KEYRING

__all__ = ["root"]  # a fixture

pytestmark = [
    pytest.mark.images,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="dockerd needs root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

DAEMON = """
mount --bind "$1" "$1"
mkdir -p "$1/proc" "$1/sys" "$1/dev" "$1/run" "$1/socket" "$1/data"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
mount --bind "$2" "$1/socket"
exec chroot "$1" /usr/sbin/dockerd --data-root /data --exec-root /run/docker --pidfile /run/dockerd.pid --host unix:///socket/docker.sock \\
    --storage-driver "$3" --feature containerd-snapshotter="$4" --bridge none --iptables=false --ip6tables=false
"""
STORES = {"graph driver": ("overlay2", "false"), "containerd": ("overlayfs", "true")}


@pytest.fixture(scope="module")
def userland(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 14 with its docker."""
    place = tmp_path_factory.mktemp("docker") / "root"
    argv = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",
        f"--keyring={KEYRING}",
        "--include=base-files,libc6,docker.io,containerd,runc,ca-certificates",
        '--aptopt=Acquire::Check-Valid-Until "false"',
        "forky",
        str(place),
        archive_url(load_site(), "debian"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


@contextmanager
def daemon(root: Path, store: str, folder: Path) -> Iterator[docker.DockerClient]:
    """A running dockerd with an image store, and its client."""
    folder.mkdir()
    driver, feature = STORES[store]
    command = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
    ]
    command += ["bash", "-eu", "-c", DAEMON, "bash", str(root), str(folder), driver, feature]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address, end = f"unix://{folder}/docker.sock", time.monotonic() + 180
            while True:
                try:
                    client = docker.DockerClient(address, timeout=300)
                    client.ping()
                    break
                except DockerException:
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < end, (folder / "log").read_text()
                    time.sleep(0.5)
            yield client
        finally:
            process.kill()  # --kill-child: it takes dockerd along; unshare ignores SIGTERM
            process.wait(30)


@pytest.mark.parametrize("store", STORES)
def test_image_is_tested_and_nothing_of_it_stays(
    store: str,
    userland: Path,
    root: tuple[bytes, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = image(Layout(tmp_path / "store"), "cpu:1-runtime-debian12-abc", [root, own()])
    config = built.manifest["config"]["digest"]
    with daemon(userland, store, tmp_path / "daemon") as client:
        assert client.version()["Version"].startswith("28.")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/daemon/docker.sock")
        found = inside.smoke(built, engine="docker")
        assert found["tiers"]["cpu"]["state"] == "passed", found
        assert client.api.images(all=True) == []
        # Two runs at once: each removes what is its own.
        with inside.loaded(client, built) as one:
            assert (one == config) == (store == "graph driver")
            with inside.loaded(client, built) as two:
                assert two == one
            assert client.images.get(one).id == one
        assert client.api.images(all=True) == []
        # Images that docker had before stay.
        client.api.tag(inside.load(client, built), "team", tag="1")
        assert inside.smoke(built, engine="docker")["tiers"]["cpu"]["state"] == "passed"
        assert [row["RepoTags"] for row in client.api.images(all=True)] == [["team:1"]]
