"""Claims of the compatibility facts: NVIDIA's bulletins on the driver and on the container toolkit."""

from __future__ import annotations

from collections.abc import Mapping

from goldnode.cve.claims import DRIVER, TOOLKIT, AdvisoryClaim, BranchClaim, OsRelease, RangeClaim
from goldnode.facts import host as facts

LABEL = "facts"


class FactBulletins:
    """The bulletins that goldnode's facts list."""

    def __init__(self) -> None:
        security = facts.load("security.yml")
        self.date = str(security["meta"]["compiled"])
        self._claims: dict[str, dict[str, AdvisoryClaim]] = {DRIVER: {}, TOOLKIT: {}}
        for row in security["bulletins"]:
            branches = {
                int(branch): str(version) for branch, version in row["fixed_linux_tesla"].items()
            }
            for cve in row["linux_cves"]:
                # A later bulletin names the same vulnerability if the fix of an earlier one was incomplete.
                self._claims[DRIVER][cve] = BranchClaim(
                    cve,
                    branches,
                    severity="not stated",
                    summary=str(row["title"]),
                    bulletin=f"NVIDIA's bulletin {row['bulletin']} of {row['date']}",
                )
        for row in facts.load("container_toolkit.yml")["security"]:
            for cve in row["cve"]:
                score = (row.get("cvss") or {}).get(cve)
                self._claims[TOOLKIT][cve] = RangeClaim(
                    cve,
                    severity=str(score) if score is not None else "not stated",
                    summary="NVIDIA container toolkit",
                    fixed=str(row["fixed"]),
                )

    def covers(self, system: OsRelease) -> bool:
        """Return True: a driver is of any release."""
        return True

    def claims(self, system: OsRelease | None, source: str) -> Mapping[str, AdvisoryClaim]:
        """Return the claims about DRIVER or TOOLKIT."""
        return self._claims.get(source, {})

    def knows(self, cve: str) -> str | None:
        """Return "" for a vulnerability of a bulletin."""
        return "" if any(cve in rows for rows in self._claims.values()) else None
