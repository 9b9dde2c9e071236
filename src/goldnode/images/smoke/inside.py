"""Run goldnode-smoke inside an image: in a Docker container, or in the unpacked image with `unshare` and
`chroot`.

Both run it as the image's user, or as an unprivileged one if that is root, without a network, on a
read-only root with a private /tmp. It sees only the image's environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.gpuprogram.image import PLACE
from goldnode.gpuprogram.smoke import pack, programs
from goldnode.images.smoke import record
from goldnode.oci import emulation
from goldnode.oci.layout import OciImage, canonical, clean
from goldnode.oci.model import AMD64, MACHINES

PROGRAM = "/usr/lib/goldnode/goldnode-smoke"
NOBODY = 65534  # user and group
LIMIT = 1800.0  # seconds
# An emulator takes 10 to 100 times as long. A smaller product tests the same code, and speed is no
# result here.
_EMULATED = ("--limit", "600", "--size", "96")
ENGINES = ("auto", "docker", "chroot")

Engine = Literal["auto", "docker", "chroot"]


@dataclass(frozen=True)
class Ask:
    """Options of a run.

    `arguments` are passed to the runner. `own` runs this goldnode's runner instead of the image's.
    `gpus` is docker's --gpus (`all`, or a number), and `devices` are device files to pass in.
    `limit` is the time limit of the whole run in seconds.
    """

    arguments: tuple[str, ...] = ()
    own: bool = False
    gpus: str | None = None
    devices: tuple[str, ...] = ()
    limit: float = LIMIT

    @property
    def hardware(self) -> bool:
        """Return whether devices are passed in."""
        return bool(self.gpus or self.devices)


def smoke(image: OciImage, ask: Ask | None = None, engine: Engine = "auto") -> record.Json:
    """Run the smoke test of an image and return its record.

    If the test cannot run, the record states the reason. An image of another architecture is run in
    chroot by an emulator, and its record names that. Raises ImageError if the image has no runner,
    or if neither docker nor chroot is available.
    """
    ask = ask or Ask()
    architecture = str(image.config.get("architecture") or AMD64)
    backend = image.labels.get("io.goldnode.backend")
    if not ask.own and image.resolve(PROGRAM) is None:
        raise ImageError(
            f"the image {image.digest[:19]} has no {PROGRAM}",
            remedy="build it with this goldnode, or run this one's runner with --runner own",
        )
    # Without devices there is no host driver, so a libcuda that is found belongs to the image.
    words = ("--json", *(() if ask.hardware else ("--without-driver",)), *ask.arguments)
    if ask.own and backend is not None:
        words = ("--backend", backend, *words)
    # docker runs an image of another architecture only where the machine itself has an emulator
    # registered.
    native = architecture not in MACHINES or emulation.native(architecture)
    if not native:
        words = (*_EMULATED, *words)
    # The emulator of this machine runs in a chroot.
    way = chosen(engine if native else "chroot")
    run = _docker if way == "docker" else _chroot
    try:
        status, out, err = run(image, words, ask)
    except subprocess.TimeoutExpired:
        return record.missing(
            backend or "cpu", f"it did not end within {ask.limit:g} s and was killed"
        )
    if not out.strip():
        lines = err.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
        return record.missing(
            backend or "cpu", f"goldnode-smoke ended with status {status}: {lines[-1][:300]}"
        )
    reported = record.read(out, backend)
    if not {"--tier", "--test"} & set(ask.arguments):
        reported = record.with_team_tests(reported, _team_tests(image), hardware=ask.hardware)
    # Of the bytes that ran, and not as the image states it.
    reported = {**reported, "program": f"sha256:{_program_digest(image, ask)}"}
    if native:
        return reported
    return record.emulated(reported, emulation.tools()[emulation.tool(architecture)])


def _team_tests(image: OciImage) -> list[dict[str, Any]]:
    """Return the tests that the image's team declares, by its description of itself."""
    try:
        return programs.declared(json.loads(image.read(PLACE) or b"{}"))
    except ValueError as problem:
        raise ImageError(
            f"{PLACE} of the image: {problem}", remedy="build the image again"
        ) from problem


def user_of(image: OciImage) -> tuple[int, int]:
    """Return user and group that the tests run as: the image's, as docker finds them; nobody's for root.

    Raises ImageError for a name that the image does not have.
    """
    user, _, group = str((image.config.get("config") or {}).get("User") or "").partition(":")
    accounts = _rows(image, "etc/passwd")
    row = next((row for row in accounts if user in (row[0], row[2])), None)
    if row is None and user and not user.isdigit():
        raise ImageError(f'the image has no user "{user}"', remedy="build the image again")
    uid = int(row[2]) if row else int(user or 0)
    if uid == 0:
        return NOBODY, NOBODY
    if not group:
        # Without an account, docker takes group 0.
        return uid, int(row[3]) if row else 0
    named = next((row for row in _rows(image, "etc/group") if group in (row[0], row[2])), None)
    if named is None and not group.isdigit():
        raise ImageError(f'the image has no group "{group}"', remedy="build the image again")
    return uid, int(named[2] if named else group)


def _rows(image: OciImage, path: str) -> list[list[str]]:
    """Return the rows of passwd(5) or group(5) with their numbers."""
    lines = (image.read(path) or b"").decode("utf-8", "replace").splitlines()
    rows = [line.split(":") for line in lines]
    return [row for row in rows if len(row) > 3 and row[2].isdigit()]


def _program_digest(image: OciImage, ask: Ask) -> str:
    """Return the SHA-256 of goldnode-smoke: of this version's own, or of the image's."""
    if ask.own:
        return pack.digest()
    return hashlib.sha256(image.read(PROGRAM) or b"").hexdigest()


def chosen(engine: Engine) -> str:
    """Return docker if its daemon responds, otherwise chroot.

    Raises ImageError if the requested engine is not available.
    """
    from goldnode.core.docker_engine import connect  # only an extra installs its library

    if engine != "chroot":
        try:
            connect().close()
            return "docker"
        except GoldnodeError as problem:
            if engine == "docker":
                raise ImageError(problem.message, remedy=problem.remedy) from problem
    lacking = [tool for tool in ("unshare", "chroot", "mount", "env") if shutil.which(tool) is None]
    if lacking:
        raise ImageError(
            f"no docker answers, and this machine has no {lacking[0]}",
            remedy="start docker, or install util-linux and coreutils",
        )
    if os.geteuid() != 0:
        raise ImageError(
            "no docker answers, and only root can run an unpacked image",
            remedy="start docker, or run as root",
        )
    return "chroot"


# -- docker


def archive(image: OciImage, out: IO[bytes]) -> None:
    """Write the image as a docker-archive.

    Docker reads no OCI layout before release 25. Older releases read its own archive with
    compressed layers, too.
    """
    config = image.manifest["config"]
    names = [
        f"blobs/sha256/{row['digest'].partition(':')[2]}"
        for row in (config, *image.manifest["layers"])
    ]
    with tarfile.open(fileobj=out, mode="w|") as tar:
        head = canonical([{"Config": names[0], "RepoTags": None, "Layers": names[1:]}])
        info = tarfile.TarInfo("manifest.json")
        info.size = len(head)
        tar.addfile(info, io.BytesIO(head))
        for name, row in dict(zip(names, (config, *image.manifest["layers"]), strict=True)).items():
            info = tarfile.TarInfo(name)
            info.size = row["size"]
            with image.layout.path(row["digest"]).open("rb") as blob:
                tar.addfile(info, blob)


# The id that docker reports after loading. Its graph drivers (the default until 28) use the digest
# of the configuration as the id, its containerd store (the default of new installations of 29) the
# digest of a manifest that it makes.
_LOADED = re.compile(r"^Loaded image(?: ID)?: (\S+)", re.MULTILINE)
# Names of images that a run has loaded: one for each run, so that parallel runs do not take them
# from each other.
_OURS = "goldnode-smoke"


@contextlib.contextmanager
def loaded(client: Any, image: OciImage) -> Iterator[str]:
    """Load the image into docker and yield its id there.

    Remove it afterwards, unless docker had it before.
    """
    from docker.errors import APIError

    before = {row["Id"]: row.get("RepoTags") or [] for row in client.api.images(all=True)}
    image_id = str(image.manifest["config"]["digest"])
    if image_id not in before:
        image_id = load(client, image)
    if image_id in before and not (
        before[image_id] and all(tag.startswith(f"{_OURS}:") for tag in before[image_id])
    ):
        yield image_id
        return
    tag = f"{image.digest[7:19]}-{secrets.token_hex(4)}"
    client.api.tag(image_id, _OURS, tag=tag, force=True)
    try:
        yield image_id
    finally:
        with contextlib.suppress(APIError):
            client.images.remove(f"{_OURS}:{tag}")


def load(client: Any, image: OciImage) -> str:
    """Load the image into docker and return its id there. Raises ImageError."""
    # Stream through a pipe: an image is too large for memory, and no copy on disk is needed.
    reader, writer = os.pipe()

    def send() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as out:
            archive(image, out)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    with os.fdopen(reader, "rb") as source:
        rows = list(client.api.load_image(source))
    thread.join()
    faults = [str(row["error"]) for row in rows if "error" in row]
    names = _LOADED.findall("".join(str(row.get("stream", "")) for row in rows))
    if faults or len(names) != 1:
        why = next(iter(faults), "it does not report an id")
        raise ImageError(
            f"docker does not load the image: {why}",
            remedy="read docker's log; as root, `--engine chroot` runs the test without docker",
        )
    return str(client.images.get(names[0]).id)


def _docker(image: OciImage, words: Sequence[str], ask: Ask) -> tuple[int, bytes, bytes]:
    import requests  # only an extra installs them
    from docker.errors import APIError
    from docker.types import DeviceRequest

    from goldnode.core.docker_engine import connect

    client = connect()
    requested = []
    if ask.gpus:
        count = -1 if ask.gpus == "all" else int(ask.gpus)
        requested = [DeviceRequest(count=count, capabilities=[["gpu"]])]
    volumes = {}
    with contextlib.ExitStack() as stack:
        if ask.own:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.chmod(0o755)
            (folder / pack.NAME).write_bytes(pack.program())
            (folder / pack.NAME).chmod(0o755)
            volumes[str(folder / pack.NAME)] = {"bind": PROGRAM, "mode": "ro"}
        name = stack.enter_context(loaded(client, image))
        container = client.containers.create(
            name,
            entrypoint=[PROGRAM],
            command=list(words),
            # The process id keeps the names of parallel runs apart.
            name=f"gni-smoke-{image.digest[7:19]}-{os.getpid()}",
            environment={"HOME": "/tmp"},  # noqa: S108 - the container's own
            user="{}:{}".format(*user_of(image)),
            # The numeric groups of device files (render, video) differ from host to host.
            group_add=sorted({os.stat(path).st_gid for path in ask.devices}),  # noqa: PTH116
            working_dir="/",
            read_only=True,
            network_mode="none",
            # exec: tests of compilers run their output there.
            tmpfs={"/tmp": "rw,exec,size=2g,mode=1777"},  # noqa: S108
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=4096,
            shm_size="1g",
            device_requests=requested,
            devices=[f"{path}:{path}:rw" for path in ask.devices],
            volumes=volumes,
            init=True,
        )
        try:
            container.start()
            status = int(container.wait(timeout=ask.limit)["StatusCode"])
            return (
                status,
                container.logs(stdout=True, stderr=False),
                container.logs(stdout=False, stderr=True),
            )
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as problem:
            raise subprocess.TimeoutExpired("docker", ask.limit) from problem
        except APIError as problem:
            raise ImageError(
                f"docker does not run the image: {problem.explanation}",
                remedy="build the image again",
            ) from problem
        finally:
            container.remove(force=True)


# -- chroot


def unpack(image: OciImage, root: Path) -> None:
    """Write the files of the image below `root`, in the state after its last layer, without device files.

    Nothing is written outside `root`: paths are resolved through the image's own links, and links
    are created after all files.
    """
    places: dict[str, str] = {}
    links, names = [], {}
    for path, member in image.members.items():
        folder, _, name = path.rpartition("/")
        if folder not in places:
            places[folder] = _folder(image, folder)
        if name == "..":
            raise ImageError(
                f"the image has a file {path}, which leads out of it",
                remedy="build the image again",
            )
        place = root / places[folder] / name
        names[path] = place
        if member.info.isdir():
            place.mkdir(parents=True, exist_ok=True)
            # Owner access, so that files can be written below it and the tree can be removed.
            place.chmod(member.info.mode & 0o777 | 0o700)
        elif member.info.issym():
            links.append((place, member.info.linkname))
    for member, stream in image.files():
        place = names[member.path]
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)
        place.chmod(
            member.info.mode & 0o777
        )  # without set-user-id: the test must stay unprivileged
    for place, target in links:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


def _folder(image: OciImage, folder: str) -> str:
    """Return the directory of an image's file, with links resolved inside the image."""
    real = image.resolve(folder) if folder else ""
    if real is not None:
        return real
    # A layer may omit the directories of its files. Those that it contains must not lead out of the
    # image.
    parts = folder.split("/")
    members = [image.members.get("/".join(parts[: count + 1])) for count in range(len(parts))]
    if ".." in parts or any(member is not None and not member.info.isdir() for member in members):
        raise ImageError(
            f"the image has files in {folder}, which leads out of it",
            remedy="build the image again",
        )
    return folder


def place_own(image: OciImage, root: Path) -> None:
    """Write this goldnode's runner to the place of the image's runner, below the unpacked image in `root`.

    Links of the image cannot redirect it outside `root`.
    """
    folder, _, name = clean(PROGRAM).rpartition("/")
    place = root / _folder(image, folder) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.write_bytes(pack.program())
    place.chmod(0o755)


SCRIPT = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o nosuid,nodev,size=2g,mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o nosuid,mode=755,size=1g tmpfs "$root/dev"
for name in null zero random urandom; do : > "$root/dev/$name"; \
mount --bind "/dev/$name" "$root/dev/$name"; done
mkdir -m 1777 "$root/dev/shm"
mount -o remount,ro,bind "$root"
exec chroot --userspec="$1" "$root" /usr/bin/env -i "${@:2}"
"""


def _chroot(image: OciImage, words: Sequence[str], ask: Ask) -> tuple[int, bytes, bytes]:
    if ask.hardware:
        raise ImageError("devices are handed in through docker alone", remedy="use --engine docker")
    with tempfile.TemporaryDirectory(prefix="goldnode-smoke-") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "root"
        root.mkdir()
        root.chmod(0o755)
        unpack(image, root)
        for name in ("proc", "tmp", "dev"):
            (root / name).mkdir(exist_ok=True)
        if ask.own:
            place_own(image, root)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **image.environment,
            "HOME": "/tmp",  # noqa: S108
        }
        command = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
            "--ipc",
            "--uts",
            "--propagation",
            "private",
        ]
        command += ["bash", "-c", SCRIPT, "bash", str(root), "{}:{}".format(*user_of(image))]
        command += [
            *(f"{key}={value}" for key, value in sorted(environment.items())),
            PROGRAM,
            *words,
        ]
        architecture = str(image.config.get("architecture") or AMD64)
        if architecture in MACHINES:
            command = emulation.emulated(architecture, command)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=ask.limit)
        except subprocess.TimeoutExpired:
            # unshare --kill-child then kills the tests in their own PID namespace.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return process.returncode, out, err
