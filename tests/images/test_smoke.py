"""goldnode-smoke inside real images: a Debian root of packages, run by docker and by chroot, attached to the image, and seen to fail."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner
from docker import DockerClient

from goldnode.commands.images.smoke import smoke as command
from goldnode.core.errors import ImageError
from goldnode.core.site import archive_url, load_site
from goldnode.gpuprogram.smoke import pack
from goldnode.images.smoke import inside, record
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, OciImage, canonical, digest_of
from goldnode.testing.lab.images import KEYRING

pytestmark = pytest.mark.images

PACKAGES = "python3-minimal,libpython3-stdlib,coreutils,libopenblas0-pthread"
BLAS = "/usr/lib/x86_64-linux-gnu/openblas-pthread"
IMAGE = {
    "name": "cpu-1-runtime-debian12",
    "backend": "cpu",
    "build_id": "abc",
    "parts": {"openblas": "0.3.21", "certificates": "1"},
}
LABELS = {"io.goldnode.backend": "cpu"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """A Debian root as a compressed layer, and the digest of its tar."""
    out = tmp_path_factory.mktemp("root") / "root.tar"
    argv = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",
        f"--keyring={KEYRING}",
        f"--include={PACKAGES}",
        "bookworm",
        str(out),
    ]
    done = subprocess.run(
        [*argv, archive_url(load_site(), "debian")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    data = out.read_bytes()
    out.unlink()
    return gzip.compress(data, 1, mtime=0), digest_of(data)


def layer(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> tuple[bytes, str]:
    """A compressed layer of executable files and links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in sorted(
            {
                str(parent)
                for name in (*files, *(links or {}))
                for parent in PurePosixPath(name).parents
            }
        ):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return gzip.compress(out.getvalue(), mtime=0), digest_of(out.getvalue())


def image(
    layout: Layout,
    name: str,
    layers: list[tuple[bytes, str]],
    labels: Mapping[str, str] = LABELS,
    user: str = "",
) -> OciImage:
    """An image of these layers, called `name`."""
    environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"LD_LIBRARY_PATH={BLAS}"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": environment, "Labels": dict(labels), "User": user},
        "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in layers]},
    }
    blobs = [layout.put(data, LAYER + "+gzip").document() for data, _ in layers]
    kept = layout.put(canonical(config), CONFIG).document()
    manifest = layout.put(
        canonical({"schemaVersion": 2, "mediaType": MANIFEST, "config": kept, "layers": blobs}),
        MANIFEST,
    )
    layout.set_ref(name, manifest)
    return layout.image(name)


def own(described: Mapping[str, object] = IMAGE, program: bytes | None = None) -> tuple[bytes, str]:
    """The layer that goldnode adds: the image's description and the runner."""
    files = {"usr/lib/goldnode/image.json": json.dumps(described).encode()}
    files["usr/lib/goldnode/goldnode-smoke"] = pack.program() if program is None else program
    return layer(files, {"usr/bin/goldnode-smoke": "../lib/goldnode/goldnode-smoke"})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty store."""
    return Layout(tmp_path / "store")


@pytest.fixture(scope="module", autouse=True)
def kept_root(
    docker_client: DockerClient, root: tuple[bytes, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """docker keeps the lowest layer for the whole module, so that it is unpacked there once. At the end nothing of the tests stays."""
    before = {item.id for item in docker_client.images.list(all=True) if item.labels == LABELS}
    with inside.loaded(
        docker_client, image(Layout(tmp_path_factory.mktemp("kept")), "cpu:root", [root])
    ):
        yield
    assert not docker_client.containers.list(
        all=True, filters={"name": f"gni-smoke-.*-{os.getpid()}"}
    )
    assert (
        not {item.id for item in docker_client.images.list(all=True) if item.labels == LABELS}
        - before
    )


@pytest.mark.parametrize("engine", ["docker", "chroot"])
def test_an_image_passes_and_carries_the_record(
    layout: Layout, root: tuple[bytes, str], engine: inside.Engine
) -> None:
    built = image(layout, "cpu:1-runtime-debian12-abc", [root, own()])
    found = inside.smoke(built, engine=engine)
    assert found["exit_code"] == 0, found
    assert (found["tiers"]["cpu"]["state"], found["tiers"]["gpu"]["state"]) == ("passed", "not_run")
    assert found["program"] == digest_of(pack.program())
    tests = {test["name"]: test for test in found["tiers"]["cpu"]["tests"]}
    assert set(tests) == {"load openblas", "gemm", "inference", "collective", "memory"}
    assert tests["gemm"]["got"]["blas"] == "libopenblas.so.0"
    assert tests["gemm"]["figures"]["fp32_gflops"] > 0
    assert (found["image"], found["simulated"], found["parts_without_a_test"]) == (
        IMAGE["name"],
        False,
        ["certificates"],
    )

    document = record.attach(built, found)
    assert record.attached(layout, built.digest) == document
    assert (
        record.attach(built, inside.smoke(built, engine=engine)) == document
    )  # no time, host or figure in it
    assert len(layout.attached(built.digest, record.TYPE)) == 1


@pytest.mark.parametrize("engine", ["docker", "chroot"])
def test_team_tests_run_as_the_user_of_the_image(
    layout: Layout, root: tuple[bytes, str], engine: inside.Engine
) -> None:
    check = b"#!/usr/bin/python3 -I\nimport os, sys\nprint(os.getuid(), os.getgid(), os.getcwd(), *sys.argv[1:])\n"
    row = {
        "name": "main",
        "run": ["./check", "a b"],
        "seconds": 60,
        "tier": "cpu",
        "workdir": "/app",
    }
    failing = {**row, "name": "model", "run": ["python3", "-c", "import sys; sys.exit('no model')"]}
    layers = [root, own({**IMAGE, "tests": [row, failing]}), layer({"app/check": check})]
    built = image(layout, "cpu:team", layers, user="10001:10002")
    found = inside.smoke(built, engine=engine)
    tests = {test["name"]: test for test in found["tiers"]["cpu"]["tests"]}
    assert tests["team main"]["figures"] == {"printed": "10001 10002 /app a b"}, tests
    assert tests["team model"]["why"] == "it ended with status 1: no model"
    assert (found["exit_code"], found["tiers"]["cpu"]["why"]) == (2, "failed: team model")


@pytest.mark.parametrize("engine", ["docker"])
def test_smoke_fails_when_the_image_states_a_wrong_version(
    layout: Layout, root: tuple[bytes, str], engine: inside.Engine
) -> None:
    built = image(layout, "cpu:wrong", [root, own({**IMAGE, "parts": {"openblas": "0.3.29"}})])
    found = inside.smoke(built, inside.Ask(("--test", "load openblas")), engine)
    assert (found["exit_code"], found["tiers"]["cpu"]["state"]) == (2, "failed")
    assert found["tiers"]["cpu"]["tests"][0]["expected"] == "0.3.29"
    assert found["tiers"]["cpu"]["tests"][0]["got"] == "0.3.21"


@pytest.mark.parametrize("engine", ["chroot"])
def test_a_library_that_is_not_whole_fails(
    layout: Layout, root: tuple[bytes, str], engine: inside.Engine
) -> None:
    broken = layer({BLAS[1:] + "/libopenblas.so.0": b"\x7fELF and no more"})
    built = image(layout, "cpu:broken", [root, own(), broken])
    found = inside.smoke(built, inside.Ask(("--test", "load openblas")), engine)
    assert found["exit_code"] == 2
    assert "cannot be loaded" in found["tiers"]["cpu"]["tests"][0]["why"]


@pytest.mark.parametrize("engine", ["docker", "chroot"])
def test_image_that_hangs_or_prints_nothing_has_state_not_run(
    layout: Layout, root: tuple[bytes, str], engine: inside.Engine
) -> None:
    hanging = image(layout, "cpu:hangs", [root, own(program=b"#!/bin/sleep 600\n")])
    found = inside.smoke(hanging, inside.Ask(limit=4), engine)
    assert (found["exit_code"], found["tiers"]["cpu"]["state"]) == (3, "not_run")
    silent = image(layout, "cpu:silent", [root, own(program=b"#!/bin/false\n")])
    found = inside.smoke(silent, engine=engine)
    assert (found["exit_code"], found["tiers"]["cpu"]["state"]) == (3, "not_run")
    assert "goldnode-smoke ended with status 1" in found["tiers"]["cpu"]["tests"][0]["why"]


@pytest.mark.parametrize("engine", ["docker", "chroot"])
def test_the_root_cannot_be_written_and_there_is_no_network(
    layout: Layout, root: tuple[bytes, str], engine: inside.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        b"#!/usr/bin/python3 -I\nimport json, os, socket\nfound = {}\n"
        b"try:\n    open('/usr/lib/goldnode/new', 'w')\nexcept OSError as e:\n    found['write'] = type(e).__name__\n"
        b"try:\n    socket.create_connection(('192.0.2.1', 80), 2)\nexcept OSError as e:\n    found['net'] = e.errno\n"
        b"open('/tmp/mine', 'w').close()\nfound.update(user=os.getuid(), caller=os.environ.get('GOLDNODE_OF_THE_CALLER'), blas=os.environ['LD_LIBRARY_PATH'])\n"
        b"test = {'name': 'seen', 'state': 'passed', 'required': True, 'got': found}\n"
        b"tiers = {'cpu': {'why': '', 'tests': [test]}, 'gpu': {'why': '', 'tests': []}}\n"
        b"print(json.dumps({'schema': 'goldnode.smoke/1', 'backend': 'cpu', 'tiers': tiers}))\n"
    )
    monkeypatch.setenv("GOLDNODE_OF_THE_CALLER", "is not for images")
    built = image(layout, "cpu:looks", [root, own(program=program)])
    got = inside.smoke(built, engine=engine)["tiers"]["cpu"]["tests"][0]["got"]
    assert got.pop("write") in ("OSError", "PermissionError")
    assert got == {"net": 101, "user": 65534, "caller": None, "blas": BLAS}  # ENETUNREACH


def test_links_of_an_image_lead_nowhere_outside(layout: Layout, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    links = layer({}, {"usr": str(victim), "etc": "../../../../../../../../.." + str(victim)})
    for number, name in enumerate(("usr/file", "etc/file", "..", "../../../escape")):
        built = image(
            layout, "cpu:evil", [links, (gzip.compress(bare(name)), digest_of(bare(name)))]
        )
        target = tmp_path / f"out{number}/root"
        target.mkdir(parents=True)
        if name.endswith("escape"):
            inside.unpack(built, target)
            assert (target / "escape").is_file()
            continue
        with pytest.raises(ImageError, match="leads out of it"):
            inside.unpack(built, target)
    assert list(victim.iterdir()) == []
    assert [path for path in tmp_path.rglob("*") if path.name in ("file", "escape")] == [
        tmp_path / "out3/root/escape"
    ]


def bare(name: str) -> bytes:
    """A tar of one file, whose directories it does not name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return out.getvalue()


def test_smoke_command_attaches_its_record_and_exits_0_or_3(
    layout: Layout, root: tuple[bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_IMAGES", str(layout.root))
    built = image(layout, "cpu:1-runtime-debian12-abc", [root, own()])
    done = CliRunner().invoke(command, ["cpu:1-runtime-debian12-abc", "--engine", "chroot"])
    assert done.exit_code == 0, done.output
    assert "cpu tier: passed (5 tests); gpu tier: not run" in done.output
    attached = record.attached(layout, built.digest)
    assert attached is not None
    assert attached["tiers"]["cpu"]["state"] == "passed"

    bare = image(layout, "cpu:bare", [root])
    done = CliRunner().invoke(command, ["cpu:bare", "--engine", "chroot"])
    assert done.exit_code == 3
    assert "has no /usr/lib/goldnode/goldnode-smoke" in done.output
    attached = record.attached(layout, bare.digest)
    assert attached is not None
    assert attached["tiers"]["cpu"]["state"] == "not_run"
    for engine in ("docker", "chroot"):
        done = CliRunner().invoke(
            command, [bare.digest, "--engine", engine, "--runner", "own", "--format", "json"]
        )
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["records"][bare.digest]["tiers"]["cpu"]["state"] == "passed"

    done = CliRunner().invoke(command, ["cpu:1-runtime-debian12-abd"])
    assert isinstance(done.exception, ImageError)
    assert "cpu:1-runtime-debian12-abc" in str(done.exception)


def test_the_kernels_assemble_for_every_architecture(tmp_path: Path) -> None:
    """NVIDIA's own assembler takes the PTX that the runner hands to the driver."""
    from goldnode.gpuprogram import ptx

    wheel = "nvidia-cuda-nvcc-cu12==12.9.86"
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(tmp_path),
        wheel,
    ]
    assert subprocess.run(argv, check=False).returncode == 0
    shutil.unpack_archive(next(tmp_path.glob("*.whl")), tmp_path / "wheel", "zip")
    assembler = next((tmp_path / "wheel").rglob("bin/ptxas"))
    assembler.chmod(0o755)
    (tmp_path / "kernels.ptx").write_text(ptx.SOURCE)
    for architecture in ("50", "70", "75", "80", "86", "89", "90", "100", "120"):
        argv = [
            str(assembler),
            f"-arch=sm_{architecture}",
            str(tmp_path / "kernels.ptx"),
            "-o",
            str(tmp_path / "out"),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
