"""Dependencies that need a decision: no release in two years, no licence, or an advisory without a fix that
goldnode allows: `python -m release.dependencies`.

It asks the package index, with uv (extra `pins`), for the newest version of each package of every extra, now and as of
two years ago. Equal versions mean no release between. Decisions are rows of `release/dependencies.yml`. Exit status 1
while a package lacks one, or has one that it does not need.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from release.locked import uv

ROOT = Path(__file__).parents[1]
DECISIONS, ADVISORIES = "release/dependencies.yml", "release/advisories.yml"
YEARS = 2
STALE, NO_LICENCE = "no release in two years", "no licence that SPDX knows in its metadata"


@dataclass(frozen=True)
class Decision:
    """A decision about one dependency: for which of the reasons, what was decided, and its licence."""

    reasons: tuple[str, ...]
    decided: str
    licence: str | None = None


@dataclass(frozen=True)
class Advisory:
    """A published advisory: versions of `package` below `fixed` are affected, which the index got on `released`."""

    package: str
    id: str
    fixed: Version
    released: dt.date
    source: str


@dataclass(frozen=True)
class OpenAdvisory:
    """A published advisory that affects the locked version: `affected` versions, and what was decided."""

    package: str
    id: str
    affected: SpecifierSet
    source: str
    decided: str


def decisions(tree: Path = ROOT) -> dict[str, Decision]:
    """Return the decisions of a tree by package."""
    rows = yaml.safe_load((tree / DECISIONS).read_text(encoding="utf-8"))["packages"]
    return {
        row["package"]: Decision(tuple(row["reasons"]), row["decided"], row.get("licence"))
        for row in rows
    }


def advisories(tree: Path = ROOT) -> list[Advisory]:
    """Return the advisories that the lower bounds of a tree exclude."""
    rows = yaml.safe_load((tree / ADVISORIES).read_text(encoding="utf-8"))["advisories"]
    return [Advisory(**{**row, "fixed": Version(str(row["fixed"]))}) for row in rows]


def open_advisories(tree: Path = ROOT) -> list[OpenAdvisory]:
    """Return the advisories without a fixed version that the requirements of a tree allow."""
    rows = yaml.safe_load((tree / ADVISORIES).read_text(encoding="utf-8"))["open"]
    return [OpenAdvisory(**{**row, "affected": SpecifierSet(row["affected"])}) for row in rows]


def floor(requirement: Requirement) -> Version | None:
    """Return the lower bound of a requirement; None without one."""
    found = [Version(row.version) for row in requirement.specifier if row.operator in (">=", "==")]
    return max(found, default=None)


def newest(names: list[str], before: dt.date | None) -> dict[str, str]:
    """Return the newest version of each package, now or as of a day; packages that had none yet are missing."""
    found: dict[str, str] = {}
    for name in names:
        # One by one: a package that is younger than the day would fail all others.
        command = [*uv(), "pip", "compile", "--quiet", "--no-deps", "--no-header"]
        command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        command += [f"--exclude-newer={before}"] if before else []
        done = subprocess.run(
            [*command, "-"], cwd=ROOT / "release", input=name, capture_output=True, text=True
        )
        match = re.search(r"^\S+==(\S+)", done.stdout, re.MULTILINE)
        if match:
            found[name] = match[1]
        elif before is None:
            raise SystemExit(f"the index does not answer for {name}: {done.stderr.strip()}")
    return found


def reasons(today: dt.date) -> dict[str, list[str]]:
    """Return package -> reasons why it needs a decision, asking the index."""
    from release import sbom  # sbom reads the decisions

    names = list(sbom.packages())
    now, before = newest(names, None), newest(names, today.replace(year=today.year - YEARS))
    found: dict[str, list[str]] = {}
    for name in names:
        if before.get(name) == now[name]:
            found.setdefault(name, []).append(STALE)
        if "LicenseRef-" in sbom.licence_of(name, {}):
            found.setdefault(name, []).append(NO_LICENCE)
    return found


def main() -> None:
    """List the packages that need a decision, with what was decided."""
    decided, found = decisions(), reasons(dt.datetime.now(dt.UTC).date())
    open_rows = 0
    for name, why in sorted(found.items()):
        row = decided.get(canonicalize_name(name))
        enough = row is not None and set(why) <= set(row.reasons)
        open_rows += not enough
        print(f"{name}: {', '.join(why)}: {row.decided if row and enough else 'NOT DECIDED'}")
    for name in sorted(decided.keys() - found.keys()):
        open_rows += 1
        print(f"{name}: needs no decision any more: remove its row of {DECISIONS}")
    for one in open_advisories():
        print(
            f"{one.package}: {one.id} affects {one.affected}, and no fix is allowed: {one.decided}"
        )
    sys.exit(1 if open_rows else 0)


if __name__ == "__main__":
    main()
