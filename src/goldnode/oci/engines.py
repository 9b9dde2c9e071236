"""Engines that execute programs of an image during its build: mmdebstrap for the root, buildah or BuildKit
for the later steps.

An engine gets a parent, a Containerfile with one RUN and a context directory, and returns the layer of the
changes as a plain tar. It never has a network. Layers are packed and images assembled elsewhere (`layers`,
`build`), so a wheel of a gigabyte never passes through an engine, and shared layers are equal byte by byte.

Processes started here end with goldnode, however it ends: each program runs in process and mount namespaces
of its own, which the kernel removes with their mounts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal, Protocol

from goldnode.core.errors import ImageError
from goldnode.lock.pool import source_line
from goldnode.oci import emulation
from goldnode.oci.layers import Layer
from goldnode.oci.layout import CONFIG, MANIFEST, Layout, canonical
from goldnode.oci.model import AMD64

Name = Literal["buildah", "buildkit"]
NAMES: tuple[Name, ...] = ("buildkit", "buildah")
VARIABLE = "GOLDNODE_IMAGE_ENGINE"
BUILDER = "BUILDX_BUILDER"  # docker's own: which of its builders
# Steps that run at once in one storage lose an image or layer now and then, in buildah's own bookkeeping (its issues 2925 and 5674); the step is
# made again then.
_LOST = re.compile(r"image not known|layer not known|locating image with ID")
_TRIES = 3  # of a step

# In namespaces of its own, without a network; killed with the program that started it.
_ALONE = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "--",
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child=KILL",
)
_OFFLINE = ("--net",)
_TIME = 3600  # seconds; the largest package set takes minutes
# The last is apt's, which looks before it begins.
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|enough free space in ", re.IGNORECASE
)


@dataclass(frozen=True)
class EngineStep:
    """One run of an engine: on `parent` (layers of the system kind, lowest first; `key` names them), with `directory` shown to it.

    `containerfile` is the recipe's; `work` a directory of its own for what is temporary, removed by the caller.
    """

    key: str
    parent: Sequence[Layer]
    layout: Layout
    containerfile: str
    directory: Path
    work: Path
    epoch: int
    architecture: str = AMD64


class Engine(Protocol):
    """An engine that runs a step. `exercised` names where this project has run it."""

    name: str
    version: str
    exercised: str

    def run(self, step: EngineStep) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Run a step; gives the layer of what changed, a plain tar. Raises ImageError with what the script said."""


def choose(name: str | None = None, *, store: Path | None = None) -> Engine:
    """Return the engine `name`, that of $GOLDNODE_IMAGE_ENGINE, or the first that this machine has: BuildKit,
    then buildah. Raises ImageError if there is none, or not the requested one.
    """
    wanted = name or os.environ.get(VARIABLE) or None
    if wanted is not None and wanted not in NAMES:
        raise ImageError(
            f'"{wanted}" is no engine that builds images', remedy=f"use one of: {', '.join(NAMES)}"
        )
    # Without a name, the reasons are reported only if no engine works.
    why = []
    for candidate in NAMES if wanted is None else [wanted]:
        try:
            if candidate == "buildkit":
                return BuildKit()
            return Buildah((store or Path()) / "buildah")
        except ImageError as problem:
            if wanted is not None:
                raise
            why.append(problem.message)
    raise ImageError(
        f"no engine builds images here: {'; '.join(why)}",
        remedy="install buildah, or docker-buildx with a builder that has the OCI exporter",
    )


def tools(engine: Engine | None) -> dict[str, str]:
    """Return the versions of the programs that shape images, for recipes. Raises ImageError without mmdebstrap."""
    from goldnode.oci import layers

    versions = {**layers.tools(), **package_tools(), **emulation.tools()}
    if engine is not None:
        versions["engine"] = f"{engine.name} {engine.version}"
    return versions


@cache
def package_tools() -> dict[str, str]:
    """Return the versions of mmdebstrap, apt and dpkg. Raises ImageError if one is missing."""
    versions = {}
    for program, arguments in (
        ("mmdebstrap", "--version"),
        ("apt-get", "--version"),
        ("dpkg", "--version"),
    ):
        text = program_version(program, arguments)
        if text is None:
            raise ImageError(
                f"{program} is not on this machine", remedy="install it: apt-get install mmdebstrap"
            )
        versions["apt" if program == "apt-get" else program] = text
    return versions


@cache
def program_version(*command: str) -> str | None:
    """Return the first version number that a program prints; None if it is absent or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+\.\d+[\w.+~-]*", done.stdout)
    return match[0] if match and not done.returncode else None


# -- the root


@dataclass(frozen=True)
class RootPlan:
    """Options of a root filesystem. `hooks` run at its start and its end. No file is newer than `epoch`. `dpkg` are options of
    dpkg while its packages are unpacked.
    """

    codename: str
    hooks: tuple[str, str]
    epoch: int
    architecture: str = AMD64
    dpkg: Sequence[str] = ()


def make_root(
    repository: Path, packages: Sequence[str], plan: RootPlan, into: Path, *, work: Path
) -> None:
    """Make a root of exactly `packages`, which `repository` (flat, with its Packages) holds, as the plain tar `into`.

    Needs root.
    """
    _root()
    # Its check of emulation needs another package. The registration here is our own.
    foreign = [f"--architectures={plan.architecture}", "--skip=check/qemu"]
    if emulation.native(plan.architecture):
        foreign = []
    command = [
        *_ALONE,
        *_OFFLINE,
        "--",
        "mmdebstrap",
        "--mode=root",
        # Nothing but the named packages: their closure was resolved in the lock.
        "--variant=custom",
        *foreign,
        f"--include={','.join(packages)}",
        # The root is a tar afterwards: nothing needs to reach the disk.
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt={option}" for option in plan.dpkg),
        f"--setup-hook={plan.hooks[0]}",
        f"--customize-hook={plan.hooks[1]}",
        plan.codename,
        str(into),
        source_line(repository),
    ]
    environment = {
        **builder_environment(),
        "SOURCE_DATE_EPOCH": str(plan.epoch),
        "TMPDIR": str(work),
    }
    _run(
        emulation.emulated(plan.architecture, command),
        environment,
        "mmdebstrap cannot make the root",
    )


# -- buildah


class Buildah:
    """buildah with chroot isolation: without a daemon, with its own storage below the store."""

    name = "buildah"
    exercised = "Debian 12's 1.28.2"

    def __init__(self, storage: Path) -> None:
        version = program_version("buildah", "--version")
        if version is None:
            raise ImageError(
                "buildah is not on this machine", remedy="install it: apt-get install buildah"
            )
        self.version = version
        self.storage = storage

    def elsewhere(self, cache: Path) -> Buildah:
        """Return the same engine with its storage in the cache of another store."""
        return Buildah(cache / "buildah")

    @contextlib.contextmanager
    def run(self, step: EngineStep) -> Iterator[IO[bytes]]:
        """See Engine."""
        _root()
        native = emulation.native(step.architecture)
        # Another user namespace uses other attributes of an overlay, so it has a storage of its own.
        storage = self.storage if native else self.storage / step.architecture
        storage.mkdir(parents=True, exist_ok=True)
        write_parent(step, step.work / "parent")
        (step.work / "Containerfile").write_text(step.containerfile, encoding="utf-8")
        (step.work / "empty").mkdir()
        environment = {
            **builder_environment(),
            "TMPDIR": str(step.work),
            "BASE": f"localhost/goldnode-parent:{step.key[:40]}",
            "RESULT": f"localhost/goldnode-step:{step.key[:40]}-{os.getpid()}",
            "WORK": str(step.work),
            "STEP": str(step.directory),
            "ROOT": str(storage / "root"),
            "RUN": str(storage / "run"),
            # The overlay of a user namespace depends on the kernel. vfs copies files, and always works.
            "DRIVER": "overlay" if _overlay() and native else "vfs",
            "ARCHITECTURE": step.architecture,
        }
        for left in reversed(range(_TRIES)):
            try:
                command = [*_ALONE, *_OFFLINE, "--", "sh", "-eu", "-c", _BUILDAH]
                _run(
                    emulation.emulated(step.architecture, command),
                    environment,
                    "buildah cannot make the layer",
                )
                break
            except ImageError as problem:
                if not left or not _LOST.search(problem.message):
                    raise
                shutil.rmtree(step.work / "out", ignore_errors=True)
        manifest = json.loads((step.work / "out/manifest.json").read_bytes())
        # A squashed or split result would break the sharing of layers.
        if len(manifest["layers"]) != len(step.parent) + 1:
            raise ImageError(
                f"buildah made {len(manifest['layers'])} layers where {len(step.parent) + 1} were expected"
            )
        with (step.work / "out" / manifest["layers"][-1]["digest"].partition(":")[2]).open(
            "rb"
        ) as file:
            yield file


# flock: two steps on one parent bring it in once.
_BUILDAH = """
buildah() { command buildah --root "$ROOT" --runroot "$RUN" --storage-driver "$DRIVER" "$@"; }
exec 9> "$ROOT.lock"
flock 9
if ! buildah inspect --type image "$BASE" > /dev/null 2>&1; then
    # By a relative path: buildah makes a name of it, and one with a directory like .goldnode in it is no name to buildah.
    id=$(cd "$WORK" && buildah pull -q oci:parent:parent)
    buildah tag "$id" "$BASE"
fi
flock -u 9
trap 'buildah rmi -f "$RESULT" > /dev/null 2>&1 || true' EXIT
buildah build --arch "$ARCHITECTURE" --pull-never --isolation chroot --layers=false --build-context "parent=docker-image://$BASE" \\
    --build-context "step=$STEP" --file "$WORK/Containerfile" --tag "$RESULT" "$WORK/empty" >&2
buildah push -q -D "$RESULT" "dir:$WORK/out" > /dev/null
"""


# -- BuildKit


class BuildKit:
    """BuildKit through `docker buildx bake`: the builder that docker is set to, or that $BUILDX_BUILDER names; local or remote."""

    name = "buildkit"
    exercised = "Debian 13's docker-buildx 0.13.1 with dockerd 26.1.5 (containerd image store); drivers docker-container, kubernetes and remote: not exercised"

    def __init__(self) -> None:
        version = program_version("docker", "buildx", "version")
        if version is None:
            raise ImageError(
                "docker has no buildx here", remedy="install it: apt-get install docker-buildx"
            )
        self.version = f"{version}/{builder_version()}"

    @contextlib.contextmanager
    def run(self, step: EngineStep) -> Iterator[IO[bytes]]:
        """See Engine."""
        if not emulation.native(step.architecture):
            # Its builder emulates with a program of its own, whose version no recipe could state.
            raise ImageError(
                f"BuildKit does not build images for {step.architecture} here",
                remedy="use buildah: goldnode images build --engine buildah",
            )
        digest = write_parent(step, step.work / "parent")
        (step.work / "empty").mkdir()
        file = step.work / "bake.json"
        file.write_bytes(canonical(bake_file(step, digest)))
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            "docker",
            "buildx",
            "bake",
            "--progress",
            "plain",
            "--file",
            str(file),
            "step",
        ]
        _run(command, builder_environment(*DOCKER_VARIABLES), "BuildKit cannot make the layer")
        out = Layout(step.work / "out", create=False)
        manifest = out.document(out.index()[0]["digest"])
        blobs = [row["digest"] for row in manifest["layers"]]
        # A builder with force-compression packs the parent again, under other digests.
        if blobs[:-1] != [layer.blob.digest for layer in step.parent]:
            raise ImageError(
                "BuildKit gave other layers back than it was given",
                remedy="use a builder without forced compression",
            )
        with out.path(blobs[-1]).open("rb") as packed:
            if manifest["layers"][-1]["mediaType"].endswith("gzip"):
                import gzip  # start-up time: only if the builder compressed the layer

                with gzip.open(packed) as plain, (step.work / "plain").open("wb") as copy:
                    shutil.copyfileobj(plain, copy, 1 << 20)
                with (step.work / "plain").open("rb") as blob:
                    yield blob
            else:
                yield packed


def bake_file(step: EngineStep, parent: str) -> dict[str, object]:
    """Return the input of `docker buildx bake`: one target without a network, on the parent by digest, with
    an OCI layout as output.
    """
    return {
        "group": {"default": {"targets": ["step"]}},
        "target": {
            "step": {
                "context": str(step.work / "empty"),
                "dockerfile-inline": step.containerfile.replace("RUN ", "RUN --network=none ", 1),
                "contexts": {
                    "parent": f"oci-layout://{step.work / 'parent'}@{parent}",
                    "step": str(step.directory),
                },
                "network": "none",
                "args": {"SOURCE_DATE_EPOCH": str(step.epoch)},
                # Its attestation would make an index of the output. Ours is written later, over the
                # complete image.
                "attest": ["type=provenance,disabled=true"],
                "platforms": [f"linux/{step.architecture}"],
                "output": [f"type=oci,dest={step.work / 'out'},tar=false,compression=uncompressed"],
            }
        },
    }


@cache
def builder_version() -> str:
    """Return the BuildKit version of the builder in use. Raises ImageError if it cannot write OCI layouts."""
    try:
        done = subprocess.run(
            ["docker", "buildx", "inspect"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ImageError(f"docker's builder does not answer: {problem}") from problem
    fields = dict(
        re.findall(
            r"^\s*(Driver|BuildKit version|BuildKit|org\.mobyproject\.buildkit\.worker\.snapshotter):\s+(\S+)",
            done.stdout,
            re.MULTILINE,
        )
    )
    version = fields.get("BuildKit version") or fields.get("BuildKit")
    if done.returncode or version is None:
        raise ImageError(
            f"docker's builder does not answer: {(done.stderr or done.stdout).strip()[:200]}",
            remedy="start it, or name another in $BUILDX_BUILDER",
        )
    if (
        fields.get("Driver") == "docker"
        and "org.mobyproject.buildkit.worker.snapshotter" not in fields
    ):
        raise ImageError(
            f"the BuildKit {version} inside this dockerd hands out no OCI layouts",
            remedy="turn on dockerd's containerd image store, make a builder with `docker buildx create`, or use buildah",
        )
    if (
        fields.get("Driver") == "docker"
    ):  # a BuildKit inside dockerd often states no version of its own
        version = f"dockerd-{program_version('docker', 'version', '--format', '{{.Server.Version}}') or version}"
    return str(version)


# -- both


def write_parent(step: EngineStep, into: Path) -> str:
    """Write an OCI layout of the step's parent, and return the digest of its manifest. Blobs are linked or copied
    from the store.
    """
    layout = Layout(into)
    for layer in step.parent:
        source, target = step.layout.path(layer.blob.digest), layout.path(layer.blob.digest)
        if target.exists():
            continue
        try:
            # A hard link takes no space. It fails across file systems.
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
    config = {
        "architecture": step.architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff for layer in step.parent]},
        "history": [{"created_by": "goldnode"} for _ in step.parent],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.put(canonical(config), CONFIG).document(),
        "layers": [layer.blob.document() for layer in step.parent],
    }
    descriptor = layout.put(canonical(manifest), MANIFEST)
    layout.set_ref("parent", descriptor)
    return descriptor.digest


def builder_environment(*more: str) -> dict[str, str]:
    """Return the environment of a builder: `more`, and nothing of this shell that could affect an image."""
    return {
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        **{name: os.environ[name] for name in ("PATH", "HOME", *more) if name in os.environ},
    }


# How docker finds its engine and builders. buildah never gets it: it has nothing to log in to.
DOCKER_VARIABLES = (
    "DOCKER_CONFIG",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "BUILDX_CONFIG",
    BUILDER,
    "KUBECONFIG",
)


def _run(command: Sequence[str], environment: Mapping[str, str], what: str) -> None:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            # A maintainer script that asks a question fails instead of waiting.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIME,
        )
    except FileNotFoundError as problem:
        raise ImageError(
            f"{problem.filename} is not on this machine",
            remedy="install it: apt-get install util-linux mmdebstrap buildah",
        ) from problem
    except subprocess.TimeoutExpired as problem:
        raise ImageError(f"{what}: it took more than {_TIME} s") from problem
    if done.returncode:
        if _FULL.search(done.stdout):
            raise ImageError(
                f"{what}: the disk is full",
                remedy="make room in the store's file system; what was built until now is kept",
            )
        # The cause is at the end of a line, and what was being done at its beginning.
        lines = [
            line if len(line) <= 400 else f"{line[:150]} … {line[-250:]}"
            for line in done.stdout.strip().splitlines()
            if line.strip()
        ][-8:]
        raise ImageError(f"{what}: exit {done.returncode}\n  " + "\n  ".join(lines) + "\n")


@cache
def _overlay() -> bool:
    return any(
        line.split()[-1] == "overlay"
        for line in Path("/proc/filesystems").read_text(encoding="utf-8").splitlines()
    )


def _root() -> None:
    if os.geteuid() != 0:
        raise ImageError(
            "building an image's root needs root",
            remedy="run it as root, in a container or a virtual machine of your own",
        )


# Hook of mmdebstrap before anything is unpacked; $1 is the root. Its own hook for this depends on other packages installed on
# the machine. Debian 13's base-files brings the same links.
ROOT_START = (
    'for name in bin sbin lib lib64; do mkdir -p "$1/usr/$name"; ln -s "usr/$name" "$1/$name"; done'
)


def root_start(architecture: str) -> str:
    """Return the first hook for a root of `architecture`: only amd64 has a directory lib64."""
    return ROOT_START if architecture == AMD64 else ROOT_START.replace(" lib64;", ";")
