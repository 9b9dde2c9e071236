"""Ways to start the suite on a node: here, by ssh, in a container, as a Slurm job, as a Kubernetes Job.

Each returns a :class:`CanaryRun`. The programs of engine and scheduler are the site's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goldnode.canary.runner.arrivals import RUN, Arrivals
from goldnode.canary.session import PROGRAM, Arrived, CanaryRun
from goldnode.canary.slurm import SlurmJob

Json = Mapping[str, Any]


def local(request: Json, node: str) -> CanaryRun:
    """Run the suite on this machine, with the interpreter of goldnode."""
    return CanaryRun(node, "local", (sys.executable, *PROGRAM[1:]), request, Arrivals().work)


def ssh(
    request: Json, node: str, command: Sequence[str], arrived: Arrived | None = None
) -> CanaryRun:
    """Run the suite on a node by ssh. `command` runs :data:`PROGRAM` there."""
    return CanaryRun(node, "ssh", command, request, arrived)


@dataclass(frozen=True)
class ContainerOptions:
    """How a container is started. `image`: a name or digest that the engine has, or can fetch."""

    image: str
    engine: str = "docker"
    gpus: str | None = None
    devices: tuple[str, ...] = ()
    network: str = "none"
    cpus: float | None = None
    cpuset: str | None = None


def container(request: Json, node: str, options: ContainerOptions) -> CanaryRun:
    """Run the suite in a container of this machine's engine (docker or podman): no network, no privileges, read-only root."""
    name = run_name()
    return engine_run(request, node, engine_words(options, name), name)


def engine_run(
    request: Json, node: str, words: Sequence[str], name: str, own_run: str | None = None
) -> CanaryRun:
    """Return the run of a container of this machine by its command (:func:`engine_words`) and its name."""
    arrived = Arrivals(own_run=own_run or name).work
    return CanaryRun(
        node,
        how="engine",
        command=words,
        request=request,
        arrived=arrived,
        # The engine's client may be killed without its container.
        cancel=_run([words[0], "rm", "--force", name]),
    )


def run_name() -> str:
    """Return a name for a container or job that no other one has."""
    return f"goldnode-canary-{os.getpid()}-{os.urandom(3).hex()}"


def engine_words(
    options: ContainerOptions, name: str, own_run: str | None = None
) -> tuple[str, ...]:
    """Return the command that runs the program in a container: no privileges, read-only root, and no network by default.

    Containers with the same `own_run` are no work for each other.
    """
    # --interactive: the program comes through standard input. --init reaps children of killed jobs.
    words = [options.engine, "run", "--rm", "--interactive", "--init", "--name", name]
    words += [
        "--network",
        options.network,
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--entrypoint",
        "python3",
    ]
    # exec: an extension that was compiled is loaded from there. shm: PyTorch's and NCCL's shared
    # memory.
    words += [
        "--tmpfs",
        "/tmp:rw,exec,mode=1777",  # noqa: S108
        "--shm-size",
        "1g",
        "--env",
        "HOME=/tmp",
        "--env",
        f"{RUN}={own_run or name}",
    ]
    words += ["--gpus", options.gpus] if options.gpus else []
    for device in options.devices:
        words += ["--device", device]
    words += ["--cpus", f"{options.cpus:g}"] if options.cpus else []
    words += ["--cpuset-cpus", options.cpuset] if options.cpuset else []
    return (*words, options.image, *PROGRAM[1:])


def slurm(request: Json, node: str, partition: str | None = None, minutes: int = 60) -> CanaryRun:
    """Run the suite as a Slurm job that has the node for itself.

    The job starts at once or not at all, so it runs on an idle node. It is cancelled when another
    job waits for the node.
    """
    return slurm_job(request, SlurmJob(node, partition, minutes))


def slurm_job(request: Json, job: SlurmJob, program: Sequence[str] = PROGRAM) -> CanaryRun:
    """Run a program of the suite as this Slurm job."""
    return CanaryRun(
        job.node,
        how="slurm",
        command=job.command(program),
        request=request,
        arrived=job.arrived,
        cancel=job.cancel,
        limit=60.0 * job.minutes,
    )


def _run(words: Sequence[str]) -> Callable[[], None]:
    """Return a function that runs a command and ignores its failure."""

    def call() -> None:
        subprocess.run(words, capture_output=True, check=False, timeout=30)

    return call
