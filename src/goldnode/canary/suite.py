"""The jobs of the suite, and those that a site adds in one YAML file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from goldnode.canary.errors import CanaryError
from goldnode.core import yamlsource
from goldnode.core.errors import nearest
from goldnode.core.formats import check_format

JOBS = Path(__file__).parent / "runner/jobs.json"

JobName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class SiteJob(BaseModel):
    """A job of a site: a command that runs on the node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: JobName = Field(description="Name of the job in results; not that of a built-in job.")
    title: str = Field(default="", description="Purpose in a few words.")
    command: Words = Field(
        description=(
            "Program with its arguments, as it is on the node. Exit status 0: passed, 3: could not check, any other: "
            "failed. It may print metrics as JSON."
        )
    )
    tier: Literal["gpu", "cpu"] | None = Field(
        default=None, description="Run on nodes with GPUs, or without, only; null: on both."
    )
    limit: Seconds = Field(
        default=300, description="Time limit in seconds. Then it is killed: could not check."
    )


class CanaryFile(BaseModel):
    """canary.yml: jobs of a site, and settings of the built-in jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    canary: Literal[1] = Field(description="Number of this file's format.")
    jobs: list[SiteJob] = Field(
        default_factory=list, description="Jobs of the site, run after the built-in ones."
    )
    skip: list[JobName] = Field(
        default_factory=list, description="Built-in jobs that the site leaves out."
    )
    arguments: dict[JobName, dict[str, Any]] = Field(
        default_factory=dict,
        description="Arguments of built-in jobs, for instance `storage: {directories: [/scratch]}`.",
    )
    limits: dict[JobName, Seconds] = Field(
        default_factory=dict,
        description="Time limits of built-in jobs in seconds, instead of their defaults.",
    )


@dataclass(frozen=True)
class SuiteJob:
    """A job as `goldnode canary list` shows it. `seen`: device models that its GPU tier has run on; `*`: any."""

    name: str
    title: str
    tiers: tuple[str, ...]
    limit: float
    seen: tuple[str, ...] = ()
    site: bool = False
    on_request: bool = False  # by its name alone


@dataclass(frozen=True)
class Suite:
    """Goldnode's jobs with those of a site."""

    jobs: tuple[SuiteJob, ...]
    file: CanaryFile

    @property
    def names(self) -> list[str]:
        """Return the names of all jobs, in the order in which they run."""
        return [job.name for job in self.jobs]

    @property
    def usual(self) -> list[str]:
        """Return the names of the jobs that run if none is named."""
        return [job.name for job in self.jobs if not job.on_request]


def own_jobs() -> tuple[SuiteJob, ...]:
    """Return goldnode's jobs."""
    return tuple(
        SuiteJob(
            row["name"],
            row["title"],
            tuple(tier for tier in ("gpu", "cpu") if tier in row),
            float(row["limit"]),
            tuple(row.get("seen", ())),
            on_request=bool(row.get("on_request")),
        )
        for row in json.loads(JOBS.read_text(encoding="utf-8"))
    )


def load_suite(path: Path | None = None) -> Suite:
    """Return the suite with the jobs of a site's file. Raises CanaryError with file and line."""
    own = own_jobs()
    if path is None:
        return Suite(own, CanaryFile(canary=1))
    source = yamlsource.read(path, error=CanaryError)
    check_format(source, "canary", 1, CanaryError)
    declared = yamlsource.validate(CanaryFile, source, error=CanaryError)
    names = [job.name for job in own]
    for key, wanted in (
        ("skip", declared.skip),
        ("arguments", declared.arguments),
        ("limits", declared.limits),
    ):
        for position, name in enumerate(wanted):
            if name not in names:
                where: tuple[str | int, ...] = (key, position) if key == "skip" else (key, name)
                raise CanaryError(
                    f'{key} names the job "{name}", which goldnode does not have',
                    file=path,
                    line=source.line(where),
                    remedy=nearest(name, names),
                )
    for position, job in enumerate(declared.jobs):
        if job.name in names:
            raise CanaryError(
                f'there are two jobs "{job.name}"',
                file=path,
                line=source.line(("jobs", position, "name")),
                remedy="give the job of the site another name",
            )
        names.append(job.name)
    left = tuple(job for job in own if job.name not in declared.skip)
    site = tuple(
        SuiteJob(
            job.name,
            title=job.title,
            tiers=(job.tier,) if job.tier else ("gpu", "cpu"),
            limit=job.limit,
            seen=(),
            site=True,
        )
        for job in declared.jobs
    )
    return Suite(left + site, declared)


@dataclass(frozen=True)
class CanaryClass:
    """The parts of a node class that the suite uses. `digest` is that of its document."""

    name: str
    digest: str | None = None
    gpus: int = 0
    simulated: bool = False
    precisions: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()


def request(
    suite: Suite,
    names: tuple[str, ...] = (),
    *,
    class_: CanaryClass | None = None,
    tier: str = "auto",
    watch: bool = True,
    values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the request for the program on the node (goldnode.canary-request/1). Raises CanaryError for an unknown name."""
    for name in names:
        if name not in suite.names:
            raise CanaryError(f'there is no job "{name}"', remedy=nearest(name, suite.names))
    arguments: dict[str, dict[str, Any]] = {}
    if class_ is not None:
        if class_.gpus:
            arguments["discovery"] = {"expected": class_.gpus}
        if class_.precisions:
            arguments["gemm"] = {"precisions": list(class_.precisions)}
        if class_.architectures:
            arguments["extension"] = {"architectures": list(class_.architectures)}
    for name, given in suite.file.arguments.items():
        arguments[name] = {**arguments.get(name, {}), **given}
    wanted = set(names or suite.usual)
    return {
        "schema": "goldnode.canary-request/1",
        "tier": tier,
        "jobs": list(names) or suite.usual,
        "arguments": {name: given for name, given in arguments.items() if name in wanted},
        "limits": {name: limit for name, limit in suite.file.limits.items() if name in wanted},
        "site_jobs": [
            {"name": job.name, "command": job.command, "tier": job.tier, "limit": job.limit}
            for job in suite.file.jobs
        ],
        "watch": watch,
        "values": {
            "class": class_.name if class_ else None,
            "class_digest": class_.digest if class_ else None,
            **(values or {}),
        },
    }
