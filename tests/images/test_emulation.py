"""Images of another architecture: the emulator's registration, and (with --all) builds, an index and programs of arm64 under QEMU."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.images.registry_server import PASSWORD, USER, DockerRegistry
from tests.unit.images.registries import make_key

from goldnode.evidence import CYCLONEDX
from goldnode.evidence.signatures import load_public
from goldnode.images.platform_index import publish_index
from goldnode.images.publish import ImagePublication, publish
from goldnode.images.pull import ImagePull, pull
from goldnode.images.smoke import record
from goldnode.images.store import ImageStore
from goldnode.oci import emulation
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.registry import RegistryAddress

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="emulates another machine than amd64"
    ),
]

REGISTERED = Path("/proc/sys/fs/binfmt_misc")


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the header of an arm64 program. Its stand-in emulator is echo."""
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    if release < (6, 7):
        pytest.skip("needs Linux 6.7: binfmt_misc per user namespace")
    monkeypatch.setattr("shutil.which", lambda name: "/bin/echo")
    path = tmp_path / "program"
    path.write_bytes(struct.pack("<16sHHI", b"\x7fELF\x02\x01\x01", 3, 183, 1) + bytes(64))
    path.chmod(0o755)
    return path


def test_emulated_command_is_root_in_each_of_many_parallel_runs(foreign: Path) -> None:
    # The maps are written while the shell inside starts. One that saw its user before and after them made itself nobody.
    words = emulation.emulated("arm64", ["id", "-u"])

    def run(_: int) -> str:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=60
        ).stdout.strip()

    with ThreadPoolExecutor(8) as threads:
        assert Counter(threads.map(run, range(160))) == {"0": 160}


def test_programs_of_arm64_go_to_the_emulator_in_the_build_alone(foreign: Path) -> None:
    before = sorted(path.name for path in REGISTERED.iterdir())
    words = emulation.emulated(
        "arm64", ["sh", "-c", f"id -u; {foreign} one; stat -c %u:%g /etc/shadow"]
    )
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    shadow = Path("/etc/shadow").stat()
    assert done.stdout.splitlines() == [
        "0",
        f"{foreign} one",
        f"{shadow.st_uid}:{shadow.st_gid}",
    ], done.stderr
    assert sorted(path.name for path in REGISTERED.iterdir()) == before
    with pytest.raises(OSError, match="Exec format error"):
        subprocess.run([str(foreign)], check=False)


def test_the_status_of_the_command_is_returned(foreign: Path) -> None:
    done = subprocess.run(
        emulation.emulated("arm64", ["sh", "-c", "exit 7"]), check=False, timeout=60
    )
    assert done.returncode == 7


def test_nothing_outlives_a_killed_run(foreign: Path) -> None:
    marker = f"1000.{os.getpid()}"  # seconds
    words = emulation.emulated("arm64", ["sleep", marker])
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({words!r})"]
    )

    def left() -> list[int]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                line = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if line[:2] == ["sleep", marker]:
                found.append(int(place.name))
        return found

    limit = time.monotonic() + 180
    while not left():
        assert time.monotonic() < limit, "it did not start"
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while left():
        assert time.monotonic() < limit, "it outlives the run"
        time.sleep(0.05)


# With --all: QEMU

IMAGE = "cpu-1-runtime-debian12"
ARM = f"{IMAGE}_arm64"


def goldnode(store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from goldnode.cli import main; main()",
        "images",
        *words,
        "--store",
        str(store),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    """A store with the image for both architectures; that of arm64 was built twice."""
    lacking = [
        name
        for name in ("mmdebstrap", "buildah", emulation.program("arm64"))
        if shutil.which(name) is None
    ]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    place = tmp_path_factory.mktemp("images") / "store"
    for words in ((ARM, "--twice"), (IMAGE,)):
        done = goldnode(place, "build", *words, "--engine", "buildah")
        assert done.returncode == 0, done.stderr
        assert (
            "--twice" not in words
            or "2 images built twice: every digest is the same" in done.stderr
        )
    yield ImageStore(place)
    shutil.rmtree(place, ignore_errors=True)


def image_of(store: ImageStore, name: str) -> OciImage:
    return store.layout.image(
        next(item.digest for item in store.built().values() if item.image == name)
    )


def sbom(layout: Layout, digest: str) -> str:
    (_, manifest), *_ = layout.attached(digest, CYCLONEDX)
    return layout.read(manifest["layers"][0]["digest"]).decode()


def published(
    store: ImageStore, images: Sequence[OciImage], public: Path, place: Path
) -> dict[str, str]:
    """Publish images and their index to Debian's registry. Return the digest that skopeo (where installed)
    and goldnode get of the index for each architecture.
    """
    (place / "registry").mkdir()
    server, found = DockerRegistry(place / "registry"), {}
    try:
        client = server.client()
        where, target = RegistryAddress(client.host, "gpu"), client.repository("gpu/cpu")
        refs = [
            next(name for name, row in store.layout.refs().items() if row.digest == image.digest)
            for image in images
        ]
        for ref in refs:
            publish(
                store.layout,
                ref,
                where,
                client,
                ImagePublication(trust=load_public(public), settle=0),
            )
        tag = publish_index(store.layout, refs, where, client).name.rpartition(":")[2]
        for image in images:
            architecture = image.config["architecture"]
            found[architecture] = pull(
                Layout(place / architecture), target, tag, ImagePull(system=f"linux/{architecture}")
            ).digest
            if shutil.which("skopeo") is not None:
                copied = place / f"skopeo-{architecture}"
                command = ["skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false"]
                command += ["--src-creds", f"{USER}:{PASSWORD}", "--override-arch", architecture]
                command += [f"docker://{target}:{tag}", f"oci:{copied}:x"]
                subprocess.run(command, check=True)
                assert Layout(copied).refs()["x"].digest == image.digest
    finally:
        server.kill()
    return found


@pytest.mark.long
def test_an_image_for_arm64_is_built_inspected_indexed_and_run_by_emulation(
    store: ImageStore, tmp_path: Path
) -> None:
    arm, amd = image_of(store, ARM), image_of(store, IMAGE)
    assert (arm.config["architecture"], amd.config["architecture"]) == ("arm64", "amd64")
    assert arm.labels["io.goldnode.emulated"].startswith("qemu-aarch64-static ")
    secret, public = make_key(tmp_path)
    for words in (
        ("inspect",),
        ("smoke", "--engine", "chroot"),
        ("evidence", "--key", str(secret)),
    ):
        done = goldnode(store.root, words[0], IMAGE, ARM, *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        if words[0] == "smoke":
            assert done.stdout.count("cpu tier: passed (5 tests)") == 2
            assert done.stdout.count(f"emulated by {arm.labels['io.goldnode.emulated']}") == 1
    kept = record.attached(store.layout, arm.digest)
    assert kept is not None
    assert kept["emulated"] == arm.labels["io.goldnode.emulated"]
    assert {"arm64", "all"} == {
        found[1] for found in re.finditer(r"[?&]arch=(\w+)", sbom(store.layout, arm.digest))
    }
    pulled = published(store, (amd, arm), public, tmp_path)
    assert pulled == {"amd64": amd.digest, "arm64": arm.digest}
    root = tmp_path / "root"
    root.mkdir()
    for layer in arm.layers:
        subprocess.run(
            ["tar", "-xzf", str(arm.layout.path(layer.digest)), "-C", str(root)], check=True
        )
    run = [
        emulation.program("arm64"),
        "-L",
        str(root),
        str(root / "usr/bin/python3.11"),
        "-I",
        "-c",
    ]
    done = subprocess.run(
        [*run, "import platform; print(platform.machine())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "aarch64"
