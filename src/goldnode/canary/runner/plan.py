"""The jobs of a run: those of jobs.json and those of the site, as a request names them."""

from __future__ import annotations

import json
import pkgutil
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from .records import Json

REQUEST = "goldnode.canary-request/1"
TIERS = ("gpu", "cpu")


class Job(NamedTuple):
    """One job on one tier. `call` and `arguments`, or `command` of the site. `seen`: device models it has run on."""

    name: str
    call: str
    arguments: Json
    limit: float
    command: Tuple[str, ...] = ()
    site_packages: bool = False
    seen: Tuple[str, ...] = ()


class Request(NamedTuple):
    """The wishes of a launcher. `values` are the fields of the document that only the launcher knows.

    `watch`: end the jobs when other work arrives on the node. Where a scheduler has given the node,
    it ends them itself.
    """

    tier: str
    names: Tuple[str, ...]
    arguments: Dict[str, Json]
    limits: Dict[str, float]
    site: Tuple[Json, ...]
    values: Json
    watch: bool


def table() -> List[Json]:
    """Return the rows of jobs.json."""
    rows: List[Json] = json.loads(pkgutil.get_data(__package__ or "", "jobs.json") or b"[]")
    return rows


def request(data: Any) -> Request:
    """Return the request in a JSON document. Raises ValueError for another document."""
    if not isinstance(data, dict) or data.get("schema") != REQUEST:
        raise ValueError(f"it is no request of schema {REQUEST}")
    return Request(
        str(data.get("tier") or "auto"),
        names=tuple(data.get("jobs") or ()),
        arguments=dict(data.get("arguments") or {}),
        limits=dict(data.get("limits") or {}),
        site=tuple(data.get("site_jobs") or ()),
        values=dict(data.get("values") or {}),
        watch=bool(data.get("watch", True)),
    )


def jobs(wanted: Request, tier: str) -> List[Job]:
    """Return the jobs of a request in the order of jobs.json, the site's last.

    Raises ValueError for a name that does not exist.
    """
    rows = table()
    own = [_site_job(row) for row in wanted.site if row.get("tier") in (None, tier)]
    # Names of both tiers: a request for a fleet may name jobs that this node has no tier for.
    known = [*(row["name"] for row in rows), *(row["name"] for row in wanted.site)]
    for name in [*wanted.names, *wanted.arguments, *wanted.limits]:
        if name not in known:
            raise ValueError(f"there is no job {name}. Choose of: {', '.join(known)}")
    on_request = {row["name"] for row in rows if row.get("on_request")}
    chosen = [_job(row, wanted, tier) for row in rows if tier in row] + own
    return [
        job._replace(limit=float(wanted.limits.get(job.name, job.limit)))
        for job in chosen
        if (job.name in wanted.names if wanted.names else job.name not in on_request)
    ]


def _job(row: Json, wanted: Request, tier: str) -> Job:
    # Arguments of a site replace those of the table one by one.
    arguments = {**row[tier].get("arguments", {}), **wanted.arguments.get(row["name"], {})}
    return Job(
        row["name"],
        call=row[tier]["call"],
        arguments=arguments,
        limit=float(row["limit"]),
        site_packages=bool(row.get("site_packages")),
        seen=tuple(row.get("seen", ())),
    )


def _site_job(row: Json) -> Job:
    return Job(
        row["name"],
        call="",
        arguments={},
        limit=float(row.get("limit", 300)),
        command=tuple(row["command"]),
    )


def verified(job: Job, tier: str, platform: str) -> bool:
    """Return whether this job was seen on such hardware. Jobs on processors run in goldnode's own tests."""
    if job.command:
        return True  # the site answers for its own command
    return tier == "cpu" or any(model == "*" or model in platform for model in job.seen)


def tier_of(asked: str, devices: Sequence[str]) -> str:
    """Return the tier: as asked, otherwise `gpu` where device files are."""
    if asked in TIERS:
        return asked
    return "gpu" if devices else "cpu"
