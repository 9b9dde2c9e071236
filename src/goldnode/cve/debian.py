"""Debian's security tracker: its JSON by source package, vulnerability and release.

The tracker publishes 70 MB. Each source package is decoded by itself, and only the releases that are asked for stay,
so that the memory is that of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from goldnode.cve.claims import AdvisoryClaim, ClaimAnswer, ClaimState, OsRelease, below
from goldnode.node.ground.json_lines import as_dict

_WHITESPACE = re.compile(r"[ \t\n\r]*")
# Words of the tracker for a vulnerability that stays open in a release. Order: the first that applies.
_REASONS = {
    "ignored": "ignored: the release gets no fix",
    "postponed": "postponed: a fix comes with a later update",
    "no-dsa": "no-dsa: no security advisory is planned",
    "end-of-life": "end-of-life: the package is no longer supported in the release",
    "unimportant": "unimportant: no security risk in practice",
    "open": "no fix in the release yet",
}


@dataclass(frozen=True, slots=True)
class TrackerClaim:
    """The tracker's row of one vulnerability for one source package and release."""

    cve: str
    status: str
    fixed: str | None
    urgency: str
    reason: str
    summary: str

    @property
    def severity(self) -> str:
        """Return the urgency. The tracker marks one that was not set by hand with stars."""
        return self.urgency.strip("*")

    def judge(self, version: str) -> ClaimAnswer:
        """Return the answer for a version of the source package.

        The tracker lists one fixed version for a release, its security and LTS suites included. "0" marks a
        release that never had the vulnerability. A backport is of a later release, which may have it.
        """
        if "~bpo" in version:
            return ClaimAnswer(
                ClaimState.UNKNOWN,
                f"{version} is a backport, which the tracker does not judge",
                word="backport",
            )
        if self.status == "resolved" and self.fixed == "0":
            return ClaimAnswer(
                ClaimState.NOT_AFFECTED, "the release never had it", word="not-affected"
            )
        if self.status == "undetermined":
            return ClaimAnswer(
                ClaimState.UNKNOWN, "the tracker has not determined it yet", word="undetermined"
            )
        if self.status == "resolved" and self.fixed:
            return below(version, self.fixed)
        if self.status == "open":
            return ClaimAnswer(ClaimState.AFFECTED, _REASONS[self.reason], word=self.reason)
        return ClaimAnswer(
            ClaimState.UNKNOWN, f'the tracker has status "{self.status}"', word=self.status
        )


def top_level(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a JSON object one by one. Raise ValueError for anything else."""
    decoder = json.JSONDecoder()
    at = _skipped(text, 0, "{")
    if text[at : at + 1] == "}":
        _end(text, at + 1)
        return
    while True:
        name, at = _decoded(decoder, text, at)
        if not isinstance(name, str):
            raise ValueError(f"a name is no text at character {at}")
        value, at = _decoded(decoder, text, _skipped(text, at, ":"))
        yield name, value
        at = _space(text, at)
        if text[at : at + 1] == "}":
            _end(text, at + 1)
            return
        at = _skipped(text, at, ",")


def _decoded(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, at)
    except json.JSONDecodeError as problem:
        raise ValueError(f"{problem}: the file is no JSON, or cut short") from problem


def _space(text: str, at: int) -> int:
    match = _WHITESPACE.match(text, at)
    return match.end() if match else at


def _skipped(text: str, at: int, sign: str) -> int:
    at = _space(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(
            f"expected {sign!r} at character {at}: the file is no JSON object, or cut short"
        )
    return _space(text, at + 1)


def _end(text: str, at: int) -> None:
    if _space(text, at) != len(text):
        raise ValueError(f"something follows the end of the JSON object at character {at}")


class DebianTracker:
    """The tracker's data on some releases."""

    def __init__(self, text: str, codenames: Set[str]) -> None:
        """Read the JSON. Raise ValueError if it is not the tracker's."""
        # codename -> source -> vulnerability -> claim
        self._rows: dict[str, dict[str, dict[str, TrackerClaim]]] = {name: {} for name in codenames}
        self._known: set[str] = set()
        self.sources = 0
        self.releases: set[str] = set()
        for source, issues in top_level(text):
            if not isinstance(issues, dict):
                raise ValueError(
                    f'source package "{source}" has no vulnerabilities: it is no tracker JSON'
                )
            self.sources += 1
            for cve, row in issues.items():
                self._add(source, str(cve), as_dict(row))
        if not self.releases:
            raise ValueError("it names no release: it is no tracker JSON")

    def _add(self, source: str, cve: str, row: Mapping[str, Any]) -> None:
        self._known.add(cve)
        releases = as_dict(row.get("releases"))
        self.releases.update(releases)
        summary = row.get("description")
        for codename in self._rows.keys() & releases.keys():
            state = as_dict(releases[codename])
            urgency = str(state.get("urgency") or "not yet assigned")
            fixed = state.get("fixed_version")
            claim = TrackerClaim(
                cve,
                status=str(state.get("status") or ""),
                fixed=str(fixed) if fixed else None,
                urgency=urgency,
                reason=_reason(state, urgency),
                summary=summary if isinstance(summary, str) else "",
            )
            self._rows[codename].setdefault(source, {})[cve] = claim

    def covers(self, system: OsRelease) -> bool:
        """Return whether the tracker lists the release."""
        return system.id == "debian" and system.codename in self.releases

    def claims(self, system: OsRelease | None, source: str) -> Mapping[str, AdvisoryClaim]:
        """Return the claims about a source package of a release."""
        if system is None or system.id != "debian":
            return {}
        return self._rows.get(system.codename, {}).get(source, {})

    def knows(self, cve: str) -> str | None:
        """Return "" for a vulnerability with a record."""
        return "" if cve in self._known else None


def _reason(state: Mapping[str, Any], urgency: str) -> str:
    reason = state.get("nodsa_reason")
    if reason in ("ignored", "postponed"):
        return str(reason)
    if "nodsa" in state:
        return "no-dsa"
    bare = urgency.strip("*")
    return bare if bare in ("end-of-life", "unimportant") else "open"
