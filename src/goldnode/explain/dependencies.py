"""Conclusions from apt's list of unmet dependencies: a package of another release, versions of two archives, or a package that no archive has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ROW = re.compile(
    r"^\s*(?:(?P<package>[a-z0-9][\w.+-]*(?::\w+)?) : )?(?:Pre)?(?:Depends|Recommends|Conflicts|Breaks): "
    r"(?P<needed>[a-z0-9][\w.+-]*)(?::\w+)?(?: \((?P<relation>[<>=]{1,2}) (?P<version>[^)\s]+)\))?"
    r"(?: but (?P<state>.+))?$"
)
_OTHER = re.compile(r"^(?P<version>\S+) is (?:to be )?installed$")
# Their versions are those of the release of the distribution.
_OF_A_RELEASE = re.compile(r"^(?:libc6|libssl\d\S*|libstdc\+\+6|libgcc-s1|libglib2\.0-0\w*)$")
_MOST = 3  # notes; a driver has a dozen packages, which repeat each other


@dataclass(frozen=True)
class UnmetDependency:
    """One row of apt's list. `state` is what apt prints behind "but", None if it prints nothing."""

    package: str
    needed: str
    relation: str | None
    version: str | None
    state: str | None

    @property
    def wanted(self) -> str:
        """Return the package that is needed, with its version."""
        return f"{self.needed} ({self.relation} {self.version})" if self.version else self.needed


def is_row(line: str) -> bool:
    """Return whether `line` is a row of the list."""
    return _ROW.match(line) is not None


def unmet(lines: Sequence[str]) -> list[UnmetDependency]:
    """Return the rows of the list. One without a package belongs to the package above it."""
    rows = []
    package = ""
    for line in lines:
        match = _ROW.match(line)
        if match is None:
            continue
        package = match["package"] or package
        rows.append(
            UnmetDependency(
                package,
                needed=match["needed"],
                relation=match["relation"],
                version=match["version"],
                state=match["state"],
            )
        )
    return rows


def _upstream(version: str) -> str:
    return (
        version.partition(":")[2].partition("-")[0] if ":" in version else version.partition("-")[0]
    )


def notes(lines: Sequence[str]) -> list[str]:
    """Return what the rows prove, the most decisive kind first."""
    release, versions, absent = [], [], []
    for row in unmet(lines):
        other = _OTHER.match(row.state or "")
        # The same upstream version in another build of it is an update of the release that is not fetched.
        older = bool(
            other and row.version and _upstream(row.version) == _upstream(other["version"])
        )
        if _OF_A_RELEASE.match(row.needed) and row.state and not older:
            has = f"has {other['version']}" if other else "has none that fits"
            release.append(
                f"{row.package} wants {row.wanted}, and this system {has}: the package is built for another release of "
                "the distribution, so take the archive of this one"
            )
        elif other and row.version:
            versions.append(
                f"{row.package} wants {row.wanted}, and apt chooses {other['version']}: archives with two versions, or one "
                f"that is half updated; `apt-cache policy {row.needed}` names them"
            )
        elif row.state == "it is not installable":
            absent.append(
                f"no archive of this system offers {row.wanted}, or a pin forbids it: `apt-get update`, then "
                f"`apt-cache policy {row.needed}`"
            )
    return [note for kind in (release, versions, absent) for note in dict.fromkeys(kind)][:_MOST]
