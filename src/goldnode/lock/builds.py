"""Known outcomes of module builds: results of this site decide, otherwise the facts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from goldnode.catalog.models import Driver
from goldnode.core.errors import LockError
from goldnode.core.files import cache_directory
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.facts import module_builds
from goldnode.facts.host import ModuleFlavour


@dataclass(frozen=True)
class KnownBuild:
    """Known outcome of one build. `line` is the compiler's error if a build failed here; `source`
    names the origin of the outcome.
    """

    outcome: Literal["ok", "fails", "unknown"]
    reason: str
    line: str | None = None
    source: str = ""


def results_directory(site: Site) -> Path:
    """Return where `goldnode modules` keeps the results of builds: in the site's mirror, else in the cache."""
    place = site.resolve(site.mirror.directory) if site.mirror is not None else cache_directory()
    return place / "modules" / "results"


def known_build(
    kernel: str,
    kernel_version: str,
    driver: str,
    flavour: ModuleFlavour,
    *,
    results: Path | None = None,
) -> KnownBuild:
    """Return whether NVIDIA driver version `driver` builds on kernel release `kernel`, whose
    package has version `kernel_version`.

    The newest result of `goldnode modules` in directory `results` decides: one JSON object per file
    with `kernel` (release), `driver` (upstream version), `flavour`, `ok`, `line` (the compiler's
    line of a failure) and `built` (time; empty if nothing could be compiled, and then it decides
    nothing). Without a result the measured builds of the facts decide, where all packages of this
    version agree; then the table of the facts. That is about upstream's sources: a distribution's
    patched package may build where the table has `fails`. Raises LockError for an unreadable
    result.
    """
    asked = (kernel, driver, flavour)
    builds = [
        (str(row["built"]), path.name, row)
        for path, row in _results(results)
        if (row.get("kernel"), row.get("driver"), row.get("flavour")) == asked
        and isinstance(row.get("ok"), bool)
        and row.get("built")
    ]
    if builds:
        day, name, row = max(builds, key=lambda one: one[:2])
        what = f"driver {driver} ({flavour}) on kernel {kernel}"
        source = f"`goldnode modules`, {day} ({name[:12]}…)"
        if row["ok"]:
            return KnownBuild("ok", f"{what} was built", None, source)
        return KnownBuild(
            "fails", f"{what} does not build", str(row["line"]) if row.get("line") else None, source
        )
    measured = module_builds.measured_upstream(driver, flavour, kernel)
    if measured is not None:
        outcome: Literal["ok", "fails"] = "ok" if measured.outcome == "builds" else "fails"
        sources = "; ".join(str(origin) for origin in measured.origins)
        return KnownBuild(outcome, measured.reason, measured.line, sources)
    # Debian 12 names its kernels 6.1.0-N for every stable update, so the package's version decides.
    known = facts.kernel_build(kernel_version, driver, flavour, by_age=False)
    return KnownBuild(
        known.outcome, known.reason, None, "; ".join(str(origin) for origin in known.origins)
    )


def known_builds(
    kernel: str, kernel_version: str, driver: str, asked: Driver, *, results: Path | None = None
) -> KnownBuild:
    """Return `known_build` for the flavour of a stack's driver. A driver of flavour `auto` must build in both."""
    flavours: list[ModuleFlavour] = ["open", "proprietary"]
    if asked.flavour is not None and asked.flavour != "auto":
        flavours = [asked.flavour]
    builds = [
        known_build(kernel, kernel_version, driver, flavour, results=results)
        for flavour in flavours
    ]
    return next(
        (one for wanted in ("fails", "unknown") for one in builds if one.outcome == wanted),
        builds[0],
    )


def _results(directory: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    if directory is None or not directory.is_dir():
        return
    for path in sorted(directory.glob("*.json")):
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise LockError(
                f"this result of a build cannot be read: {error}",
                file=path,
                remedy="remove it: `goldnode modules matrix` builds that pair again",
            ) from error
        if isinstance(row, dict):
            yield path, row
