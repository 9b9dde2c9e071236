"""Finding a Docker engine, and setting one up on a fresh Debian or Ubuntu machine.

Nothing is installed without being named first. A daemon that goldnode started itself (a machine without systemd) is
recorded beside its log, so that it can be stopped again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import docker
from docker import DockerClient
from docker.errors import DockerException

from goldnode.core.errors import GoldnodeError

# Packages that this machine needs for a lab: something that shows it is there, and the Debian/Ubuntu package that brings it.
TOOLS: Mapping[str, str] = {
    "mmdebstrap": "mmdebstrap",
    "dpkg-deb": "dpkg",
    "gpg": "gpg",
    "gpgv": "gpgv",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "zstd": "zstd",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
ENGINE_PACKAGES = ("docker.io", "iptables")

START_SECONDS = 60  # until a daemon that was started here must answer
PID_FILES = {
    Path("/run/docker.pid"): "dockerd",
    Path("/run/docker/containerd/containerd.pid"): "containerd",
}

Say = Callable[[str], None]


class EngineError(GoldnodeError):
    """The Docker engine cannot be used, or refuses this user."""


def connect() -> DockerClient:
    """Return a client of the engine the environment names (DOCKER_HOST, else the local socket).

    Raises EngineError with the remedy when there is none, when it refuses this user, or when it cannot run Linux nodes.
    """
    try:
        # Commits and removals of large containers take minutes.
        client = docker.from_env(timeout=600)
        client.ping()
    except (DockerException, OSError) as error:
        raise _explain(error) from error
    if client.info().get("OSType") != "linux":
        raise EngineError(
            "the Docker engine does not run Linux containers",
            remedy="name another one in DOCKER_HOST",
        )
    return client


def _explain(error: BaseException) -> EngineError:
    text = str(error)
    where = os.environ.get("DOCKER_HOST", "the local socket /var/run/docker.sock")
    if "Permission denied" in text:
        return EngineError(
            f"the Docker engine at {where} refuses this user",
            remedy="run as root, or join the group docker",
        )
    if shutil.which("dockerd") is None and "DOCKER_HOST" not in os.environ:
        return EngineError(
            "there is no Docker engine on this machine",
            remedy="run scripts/demo as root, which offers to install one, or name an engine in DOCKER_HOST",
        )
    return EngineError(
        f"no Docker engine answers at {where}",
        remedy="start it (systemctl start docker), or run scripts/demo as root",
    )


def missing_tools(tools: Mapping[str, str] = TOOLS) -> list[str]:
    """Return the packages (sorted, without duplicates) that bring the tools and files this machine lacks."""
    return sorted({package for tool, package in tools.items() if not _present(tool)})


def _present(tool: str) -> bool:
    return Path(tool).exists() if tool.startswith("/") else shutil.which(tool) is not None


def ensure(*, yes: bool, state: Path, say: Say, tools: Mapping[str, str] = TOOLS) -> DockerClient:
    """Return a client of a running engine, after installing and starting what is missing.

    `yes` installs without asking; so does a run without a terminal, because there is no one to ask. `state` is the
    directory for the log and the process id of a daemon started here. Raises EngineError when something is missing
    that cannot be had (no root, no apt, no network, a refusal).
    """
    wanted = missing_tools(tools)
    try:
        client = connect()
    except EngineError as error:
        # Another engine was named, or one runs: starting a second one would hide the fault.
        if "DOCKER_HOST" in os.environ or "refuses this user" in error.message:
            raise
        client = None
        if shutil.which("dockerd") is None:
            wanted = sorted({*wanted, *ENGINE_PACKAGES})
    if wanted:
        install(wanted, yes=yes, say=say)
    if client is None:
        start(state=state, say=say)
        client = connect()
    return client


def install(packages: Iterable[str], *, yes: bool, say: Say) -> None:
    """List `packages`, and install them with this machine's apt. Raises EngineError, also if the user declines."""
    names = list(packages)
    shown = " ".join(names)
    if shutil.which("apt-get") is None:
        raise EngineError(
            f"this machine lacks {shown} and has no apt-get",
            remedy="install the tools by hand, or use Debian or Ubuntu",
        )
    if os.geteuid() != 0:
        raise EngineError(
            f"this machine lacks {shown}", remedy=f"run as root, or: sudo apt-get install {shown}"
        )
    say(f"will install with apt-get: {shown}")
    if not yes and sys.stdin.isatty():
        answer = input("Install them? [Y/n] ").strip().lower()
        if answer not in ("", "y", "yes"):
            raise EngineError(
                "the installation was declined", remedy=f"install by hand: apt-get install {shown}"
            )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names],
    ):
        done = subprocess.run(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        # A third party's unreachable source fails `update` although Debian's own index arrived: the install decides.
        if done.returncode != 0 and command[1] == "install":
            tail = "\n  ".join(done.stdout.strip().splitlines()[-6:])
            raise EngineError(
                f"apt-get could not install {shown}:\n  {tail}\n",
                remedy="check this machine's network and apt sources, then run again",
            )


def start(*, state: Path, say: Say) -> None:
    """Start the installed engine: by systemd where it runs, else as a daemon of our own with its log under `state`.

    Raises EngineError with the end of the log when it does not answer within START_SECONDS.
    """
    if os.geteuid() != 0:
        raise EngineError(
            "the Docker engine is not running",
            remedy="run as root, or: sudo systemctl start docker",
        )
    if Path("/run/systemd/system").is_dir():
        say("starting the Docker engine (systemctl start docker)")
        done = subprocess.run(
            ["systemctl", "start", "docker"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise EngineError(
                f"systemd could not start the Docker engine: {done.stderr.strip()}",
                remedy="see journalctl -u docker",
            )
        return
    for record, program in PID_FILES.items():
        forget_dead(record, program)
    state.mkdir(parents=True, exist_ok=True)
    log = state / "dockerd.log"
    say(f"starting dockerd (no systemd here), log in {log}")
    with log.open("ab") as sink:
        daemon = subprocess.Popen(
            ["dockerd"],
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            # It outlives this command, and an interrupt on the terminal must not end it.
            start_new_session=True,
        )
    (state / "dockerd.pid").write_text(f"{daemon.pid}\n", encoding="ascii")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        try:
            connect()
        except EngineError:
            time.sleep(0.5)
        else:
            return
    tail = "\n  ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-6:])
    raise EngineError(f"dockerd did not come up:\n  {tail}\n", remedy=f"see {log}")


def _containers() -> int:
    """Return the number of containers of the engine, running or not; 0 if the engine does not answer."""
    try:
        return len(connect().containers.list(all=True))
    except EngineError:
        return 0


def forget_dead(record: Path, program: str) -> None:
    """Remove the pid file of a daemon that was killed. The daemon itself looks only at whether *some* process has that number."""
    try:
        name = (
            Path(f"/proc/{int(record.read_text(encoding='ascii'))}/comm")
            .read_text(encoding="utf-8")
            .strip()
        )
    except (OSError, ValueError):
        name = ""
    if name != program:
        record.unlink(missing_ok=True)


def stop(*, state: Path, say: Say) -> bool:
    """Stop the daemon `start` left under `state`; return whether there was one. A daemon of others is left alone."""
    record = state / "dockerd.pid"
    try:
        pid = int(record.read_text(encoding="ascii"))
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        record.unlink(missing_ok=True)
        return False
    # Containers of others may have been started on our daemon since.
    others = _containers() if name == "dockerd" else 0
    if others:
        say(f"dockerd keeps running: {others} other containers are on it")
        return False
    if name == "dockerd":  # the number may long belong to another process
        say(f"stopping the dockerd started here (pid {pid})")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + START_SECONDS
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
    record.unlink(missing_ok=True)
    return name == "dockerd"
