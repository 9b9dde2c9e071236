"""scripts/build-images, whole: locks, builds, inspects, smokes, documents, publishes to a real registry, pulls by digest, runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from docker import DockerClient

pytestmark = pytest.mark.images

ROOT = Path(__file__).parents[2]
IMAGES = ("cpu-1-base-debian12", "cuda-12.9.1-base-debian12")


def test_from_locks_to_a_container_of_the_registry_and_again(
    tmp_path: Path, docker_client: DockerClient
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = tmp_path / "store"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("GOLDNODE_")
    }
    environment |= {"GOLDNODE_IMAGES": str(store), "GOLDNODE_REGISTRY_PORT": str(port)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "scripts/build-images", "--yes", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    first = run(*IMAGES)
    try:
        assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
        built = json.loads((store / "run/built.json").read_text())["images"]
        assert [row["image"] for row in built] == list(IMAGES)
        assert all(row["built"] for row in built)
        for row in built:
            assert f"{row['ref']}: passed" in first.stdout
            assert f"{row['digest']}: verified" in first.stdout
            assert f"127.0.0.1:{port}/{row['ref']}@{row['digest']}" in first.stdout
        assert "which no other machine trusts" in first.stdout
        assert "gpu tier: not run" in first.stdout
        assert "was pulled by its digest and run." in first.stdout
        # Once more: nothing is built, sent or moved, and it ends the same.
        second = run(*IMAGES)
        assert second.returncode == 0, second.stdout[-3000:] + second.stderr[-3000:]
        again = json.loads((store / "run/built.json").read_text())["images"]
        assert [(row["digest"], row["built"]) for row in again] == [
            (row["digest"], False) for row in built
        ]
    finally:
        down = run("--down")
        for image in docker_client.images.list():
            # By name, not by id: the machine may hold the same image for another registry, or a child of it.
            for name in image.attrs.get("RepoDigests") or ():
                if f"127.0.0.1:{port}/" in name:
                    docker_client.images.remove(name)
    assert down.returncode == 0, down.stderr
    assert not (store / "run/registry").exists()


def test_an_unknown_image_is_named_with_the_nearest_before_anything_is_made(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts/build-images"), "--yes", "cuda-12.9.1-bse-debian12"]
    environment = {**os.environ, "GOLDNODE_IMAGES": str(tmp_path / "store")}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "cuda-12.9.1-base-debian12" in done.stdout + done.stderr
    assert not (tmp_path / "store/blobs").exists()
