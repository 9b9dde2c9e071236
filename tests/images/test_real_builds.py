"""Real images: a real root by mmdebstrap, a real step by buildah, real wheels; killed, repeated, built twice, entered.

On one of them: the guide for teams, followed word by word, and a child that Docker builds.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from goldnode.core.errors import ImageError
from goldnode.images.smoke import inside as docker_images
from goldnode.images.store import ImageStore
from goldnode.oci import engines
from goldnode.oci.identity import identity
from goldnode.oci.layout import OciImage

pytestmark = pytest.mark.images

BASE, CUDA = "cpu-1-base-debian12", "cuda-12.9.1-base-debian12"


def command(store: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from goldnode.cli import main; main()",
        "images",
        "build",
        "--store",
        str(store),
        "--engine",
        "buildah",
        *arguments,
    ]


def left_in(store: Path) -> tuple[list[str], list[str]]:
    """Mounts below the store, and processes that have anything of it open as root or working directory or in their command."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(store) in line]
    processes = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = [
                str((place / "root").readlink()),
                str((place / "cwd").readlink()),
                (place / "cmdline").read_bytes().decode(errors="replace"),
            ]
        except OSError:
            continue
        if int(place.name) != os.getpid() and any(str(store) in text for text in told):
            processes.append(told[2].replace("\0", " "))
    return mounts, processes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with two images; its first build was killed in the middle of the root."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mmdebstrap", "buildah"))):
        pytest.skip("needs root, mmdebstrap and buildah")
    place = tmp_path_factory.mktemp("images") / "store"
    first = subprocess.Popen(
        command(place, CUDA), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    limit = time.monotonic() + 600
    while not list(place.glob("cache/work/*/mmdebstrap.*/var/lib/dpkg/info/libc6*")):
        assert first.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    limit = time.monotonic() + 90
    while (left := left_in(place)) != ([], []) and time.monotonic() < limit:
        time.sleep(0.2)
    assert left == ([], [])
    assert ImageStore(place).built() == {}
    assert ImageStore(place).layout.refs() == {}
    done = subprocess.run(command(place, CUDA), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def image(store: Path) -> OciImage:
    found = ImageStore(store)
    return found.layout.image(next(ref for ref in found.layout.refs() if ref.startswith("cuda:")))


@pytest.fixture(scope="module")
def root(image: OciImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image unpacked."""
    place = tmp_path_factory.mktemp("root")
    for layer in image.layers:
        subprocess.run(
            ["tar", "-xzf", str(image.layout.path(layer.digest)), "-C", str(place)], check=True
        )
    return place


def inside(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["chroot", str(root), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/usr/sbin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_left_over(store: Path, image: OciImage) -> None:
    assert left_in(store) == ([], [])
    assert not list((store / "cache/work").iterdir())
    assert not list((store / "cache/running").glob("*"))
    assert not any(
        path.startswith(("run/", "tmp/", "mnt/")) or path.endswith("aux-cache")
        for path in image.members
    )


ASK = """
import ctypes
cudart, number = ctypes.CDLL("libcudart.so.12"), ctypes.c_int()
cudart.cudaRuntimeGetVersion(ctypes.byref(number))
print(number.value, cudart.cudaGetDeviceCount(ctypes.byref(number)))
"""


def test_the_linker_finds_cuda_and_it_is_the_version_of_the_tag(root: Path) -> None:
    version, count = inside(root, "python3", "-c", ASK).split()
    assert version == "12090"
    assert count in ("35", "100")  # no driver, or none that is new enough: never 0


def test_outlines_gave_the_linker_what_the_libraries_give(root: Path) -> None:
    cache = root / "etc/ld.so.cache"
    before = cache.read_bytes()
    inside(root, "ldconfig", "-X")
    assert cache.read_bytes() == before
    assert b"/usr/local/cuda/targets/x86_64-linux/lib/libcudart.so.12" in before


def test_dpkg_audit_passes_and_the_image_names_its_cuda(root: Path) -> None:
    assert inside(root, "dpkg", "--audit") == ""
    assert json.loads((root / "usr/lib/goldnode/image.json").read_text())["name"] == CUDA
    assert inside(root, "readlink", "-f", "/usr/local/cuda").strip() == "/usr/local/cuda-12.9"


def test_documentation_is_left_out_and_the_terms_of_each_package_stay(root: Path) -> None:
    # Also where dpkg's database has a link in place of a package's directory, as of libgcc-s1 to gcc-12-base.
    packages = inside(root, "dpkg-query", "--show", "--showformat", "${Package}\\n").split()
    terms = [f"/usr/share/doc/{package}/copyright" for package in packages]
    assert len(packages) > 100
    assert len(inside(root, "readlink", "--canonicalize-existing", *terms).split()) == len(terms)
    docs = [path for path in (root / "usr/share/doc").rglob("*") if path.is_file()]
    assert {path.name for path in docs} == {"copyright"}
    left = [
        str(path.relative_to(root))
        for folder in ("man", "info", "locale")
        for path in (root / "usr/share" / folder).rglob("*")
        if path.is_file()
    ]
    assert left == ["usr/share/info/dir"]  # base-files' own script writes it
    # The options of the build itself are not those of the image.
    assert [path.name for path in (root / "etc/dpkg/dpkg.cfg.d").iterdir()] == ["goldnode"]
    zone = "import zoneinfo; print(zoneinfo.ZoneInfo('Europe/Berlin').key)"
    assert inside(root, "python3", "-c", zone) == "Europe/Berlin\n"


def test_files_are_not_newer_than_the_lock(image: OciImage) -> None:
    epoch = 1_000_000_000
    dates = {member.info.mtime for member in image.members.values()}
    created = time.strptime(image.config["created"], "%Y-%m-%dT%H:%M:%SZ")
    assert epoch < max(dates) <= calendar.timegm(created)


def test_a_run_without_change_is_quick(store: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command(store, CUDA), capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "0 of 2 images built" in done.stderr
    # Processor time, since the machine may be busy; the wall time is in benchmarks/images.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_twice_is_the_same(store: Path) -> None:
    done = subprocess.run(
        command(store, "--offline", "--twice", CUDA), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 images built twice: every digest is the same" in done.stderr


def test_buildkit_where_there_is_one(store: Path) -> None:
    """The same recipe by another engine: the layer that the engine makes is the same, only the recipe names another engine."""
    try:
        engines.choose("buildkit")
    except ImageError as problem:
        pytest.skip(f"no BuildKit here: {problem}")
    buildkit = [
        "buildkit" if word == "buildah" else word for word in command(store, "--offline", CUDA)
    ]
    done = subprocess.run(buildkit, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    images = [
        found
        for ref in ImageStore(store).layout.refs()
        if ref.startswith("cuda:")
        for found in [ImageStore(store).layout.image(ref)]
    ]
    assert len(images) == 2
    assert [layer.digest for layer in images[0].layers[:-1]] == [
        layer.digest for layer in images[1].layers[:-1]
    ]


# Images of a team

GUIDE = Path(__file__).parents[2] / "docs/how-to/derive.md"
CHILD = """\
FROM {base}
COPY main.py /app/main.py
USER 10001:10001
ENTRYPOINT ["python3", "/app/main.py"]
"""


def run(place: Path, store: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the guide, with this goldnode."""
    own = f'goldnode() {{ {sys.executable} -c "from goldnode.cli import main; main()" "$@"; }}'
    return subprocess.run(
        ["bash", "-ec", f"{own}\n{line}"],
        cwd=place,
        env={**os.environ, "GOLDNODE_IMAGES": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_guide_is_followed_from_an_empty_directory(
    store: Path, tmp_path: Path, docker_client: DockerClient
) -> None:
    guide = (
        GUIDE.read_text(encoding="utf-8")
        .partition("## Derive\n")[2]
        .partition("### Follow a base")[0]
    )
    for name, text in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    said = {}
    for line in re.findall(r"^[$#] ((?:goldnode|openssl) .*)$", guide, re.MULTILINE):
        done = run(tmp_path, store, line)
        assert done.returncode == 0, line + done.stdout + done.stderr
        said[line.partition("  #")[0]] = done.stdout + done.stderr
    again = run(tmp_path, store, "goldnode images derive --locked --offline")
    assert "nothing has changed" in again.stdout
    assert "the digest is the same" in said["goldnode images derive --twice"]
    tested = said["goldnode images smoke recsys/trainer"]
    assert re.search(r"^cpu  passed +team main +printed packaging ", tested, re.MULTILINE), tested
    layout = ImageStore(store).layout
    image = layout.image(next(ref for ref in layout.refs() if ref.startswith("recsys/trainer:")))
    assert identity(image.config).kind == "derived"
    with docker_images.loaded(docker_client, image) as name:
        out = docker_client.containers.run(name, network_mode="none", read_only=True, remove=True)
    assert re.fullmatch(r"packaging [\d.]+ jq 42 small 10001\n", out.decode())


def test_image_of_a_dockerfile_is_a_child_and_not_its_base(
    store: Path, tmp_path: Path, docker_client: DockerClient
) -> None:
    layout = ImageStore(store).layout
    base = layout.image(next(ref for ref in layout.refs() if ref.startswith("cpu:")))
    (tmp_path / "main.py").write_text("import os; print(os.getuid())\n")
    tag = f"goldnode-test/child:{os.getpid()}"
    with docker_images.loaded(docker_client, base) as name:
        docker_client.images.get(name).tag(f"{tag}-base")
        (tmp_path / "Dockerfile").write_text(CHILD.format(base=f"{tag}-base"))
        try:
            # Without `rm`, docker-py leaves a container of each step, and they hold the base image.
            docker_client.images.build(path=str(tmp_path), tag=tag, rm=True, forcerm=True)
            assert docker_client.containers.run(tag, network_mode="none", remove=True) == b"10001\n"
            with (tmp_path / "app.tar").open("wb") as file:
                file.writelines(docker_client.images.get(tag).save())
        finally:
            for one in (tag, f"{tag}-base"):
                docker_client.images.remove(one, force=True)
    done = run(tmp_path, store, "goldnode images inspect app.tar --format json")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["inspection"]["backend"] == "cpu"
    told = next(claim for claim in result["truth"]["claims"] if claim["claim"] == "identity")
    assert f"a child of {identity(base.config).ref}" in told["got"]
