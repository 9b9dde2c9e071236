"""OSV records (ossf.github.io/osv-schema): those of Debian, Ubuntu, PyPI and others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from goldnode.cve.claims import CVE, AdvisoryClaim, ClaimAnswer, ClaimState, OsRelease
from goldnode.evidence.vulnerabilities import affected, severity_of
from goldnode.node.ground.json_lines import as_dict, as_rows

PYPI = "PyPI"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class OsvClaim:
    """One vulnerability in one package: the parts of OSV's records about it."""

    cve: str
    severity: str
    summary: str
    ecosystem: str
    parts: tuple[tuple[str, Mapping[str, Any]], ...]  # id of the record, its element of `affected`

    def judge(self, version: str) -> ClaimAnswer:
        """Return the answer for a version: affected if one record says so."""
        answers = [self._one(name, part, version) for name, part in self.parts]
        order = (ClaimState.AFFECTED, ClaimState.UNKNOWN, ClaimState.FIXED, ClaimState.NOT_AFFECTED)
        return min(answers, key=lambda one: order.index(one.state))

    def _one(self, name: str, part: Mapping[str, Any], version: str) -> ClaimAnswer:
        hit, fixed = affected(dict(part), self.ecosystem, version)
        if hit is None:
            return ClaimAnswer(
                ClaimState.UNKNOWN, f"{name}: {version} cannot be compared with its ranges"
            )
        if hit:
            later = f"; {fixed} has the fix" if fixed else "; it names no fix"
            return ClaimAnswer(
                ClaimState.AFFECTED, f"{name}: {version} is in its ranges{later}", fixed
            )
        fixes = [
            str(event["fixed"])
            for span in _list(part.get("ranges"))
            for event in _list(as_dict(span).get("events"))
            if isinstance(event, dict) and "fixed" in event
        ]
        if fixes:
            return ClaimAnswer(
                ClaimState.FIXED, f"{name}: {version} is outside its ranges", fixes[-1]
            )
        return ClaimAnswer(ClaimState.NOT_AFFECTED, f"{name}: {version} is outside its ranges")


def cves_of(record: Mapping[str, Any]) -> list[str]:
    """Return the CVE ids of a record. Debian and Ubuntu have them in `upstream`, and no aliases; else its own id."""
    names = [record["id"], *_list(record.get("aliases")), *_list(record.get("upstream"))]
    listed = [match.group() for name in names if (match := CVE.search(str(name)))]
    return list(dict.fromkeys(listed)) or [str(record["id"])]


class OsvRecords:
    """Records of OSV, by ecosystem and package."""

    def __init__(self, documents: Iterable[bytes]) -> None:
        """Read JSON documents of one record or a list. Raise ValueError for anything else."""
        self.newest, self.records = "", 0
        self.withdrawn: dict[str, str] = {}
        self._known: set[str] = set()
        parts: dict[
            tuple[str, str], dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]]
        ] = {}
        for data in documents:
            for record in as_rows(json.loads(data)):
                if not isinstance(record, dict) or not isinstance(record.get("id"), str):
                    raise ValueError("it has something that is no OSV record")
                self.records += 1
                self.newest = max(self.newest, str(record.get("modified", ""))[:10])
                names = cves_of(record)
                # It stays in the data, and applies to nothing.
                if record.get("withdrawn"):
                    self.withdrawn.update(dict.fromkeys(names, str(record["withdrawn"])[:10]))
                    continue
                self._known.update(names)
                for part in _list(record.get("affected")):
                    key = _package(as_dict(part))
                    for name in names:
                        parts.setdefault(key, {}).setdefault(name, []).append(
                            (record, as_dict(part))
                        )
        if not self.records:
            raise ValueError("it has no OSV record")
        self.ecosystems = {ecosystem for ecosystem, _ in parts}
        self._claims = {
            key: {name: _claim(name, key[0], rows) for name, rows in by_cve.items()}
            for key, by_cve in parts.items()
        }

    def covers(self, system: OsRelease) -> bool:
        """Return whether a record is about the release."""
        return bool({system.ecosystem, _pro(system)} & self.ecosystems)

    def claims(self, system: OsRelease | None, source: str) -> Mapping[str, AdvisoryClaim]:
        """Return the claims about a source package of a release."""
        if system is None:
            return {}
        own = self._claims.get((system.ecosystem, source), {})
        # A fix that only Ubuntu Pro has is in no record of the release itself, and the release lacks it.
        return {**self._claims.get((_pro(system), source), {}), **own}

    def wheels(self, name: str) -> Mapping[str, AdvisoryClaim]:
        """Return the claims about a Python package."""
        return self._claims.get((PYPI, str(canonicalize_name(name))), {})

    def knows(self, cve: str) -> str | None:
        """Return "" for a vulnerability with a record, or that its records were withdrawn."""
        if cve in self._known:
            return ""
        day = self.withdrawn.get(cve)
        return None if day is None else f"withdrawn on {day}"


def _pro(system: OsRelease) -> str:
    """Return the ecosystem of a release's extended maintenance: Ubuntu:Pro:24.04:LTS."""
    return system.ecosystem.replace("Ubuntu:", "Ubuntu:Pro:", 1)


def _package(part: Mapping[str, Any]) -> tuple[str, str]:
    package = as_dict(part.get("package"))
    ecosystem, name = str(package.get("ecosystem", "")), str(package.get("name", ""))
    return ecosystem, str(canonicalize_name(name)) if ecosystem == PYPI else name


def _claim(
    cve: str, ecosystem: str, rows: list[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> OsvClaim:
    # An advisory (DSA, USN) is about several vulnerabilities: the record of the one alone knows better.
    own = [row for row in rows if CVE.search(row[0]["id"])] or rows
    record, part = own[0]
    return OsvClaim(
        cve,
        severity=severity_of(dict(record), dict(part)),
        summary=str(record.get("summary") or record.get("details") or ""),
        ecosystem=ecosystem,
        parts=tuple((str(one["id"]), place) for one, place in own),
    )
