"""Claims: what one source of data states about one vulnerability in one package, and its answer for a version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from goldnode.evidence.vulnerabilities import ecosystem_name
from goldnode.node.state.debversion import compare

CVE = re.compile(r"CVE-\d{4}-\d{4,}")


class ClaimState(StrEnum):
    """Answer of a claim for one version."""

    AFFECTED = "affected"
    FIXED = "fixed"
    NOT_AFFECTED = "not-affected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer for one version, the first version with a fix, the tracker's own word, and why it is so."""

    state: ClaimState
    why: str
    fixed: str | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class OsRelease:
    """A release of a distribution as os-release names it: debian, 12, bookworm."""

    id: str
    version: str
    codename: str

    @property
    def ecosystem(self) -> str:
        """Return its name in OSV."""
        return ecosystem_name(self.id, self.version)


class AdvisoryClaim(Protocol):
    """One vulnerability in one package of one release."""

    @property
    def cve(self) -> str: ...

    @property
    def severity(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def judge(self, version: str) -> ClaimAnswer:
        """Return the answer for a version of the package."""


class ClaimSource(Protocol):
    """A source of claims, loaded."""

    def covers(self, system: OsRelease) -> bool:
        """Return whether it has data on a release."""

    def claims(self, system: OsRelease | None, source: str) -> Mapping[str, AdvisoryClaim]:
        """Return vulnerability -> claim for a source package, or for DRIVER and TOOLKIT."""

    def knows(self, cve: str) -> str | None:
        """Return what it states about a vulnerability as a whole ("" if nothing special); None if it has no record."""


DRIVER = "nvidia driver"  # not a package: the version of the loaded module, or that of a lock
TOOLKIT = "nvidia-container-toolkit"


def compared(version: str, bound: str, order: Callable[[str, str], int] = compare) -> int | None:
    """Return the order of two versions, None if one of them is no version."""
    try:
        return order(version, bound)
    except ValueError:
        return None


# A kernel has hundreds of vulnerabilities, and few versions with fixes.
@lru_cache(maxsize=1 << 16)
def below(version: str, fixed: str) -> ClaimAnswer:
    """Return the answer of a claim that knows the first version with a fix."""
    order = compared(version, fixed)
    if order is None:
        return ClaimAnswer(ClaimState.UNKNOWN, f"{version} and {fixed} cannot be compared")
    if order < 0:
        return ClaimAnswer(
            ClaimState.AFFECTED, f"{version} is older than {fixed}, which has the fix", fixed
        )
    return ClaimAnswer(ClaimState.FIXED, f"{version} has the fix of {fixed}", fixed)


def upstream(version: str) -> str:
    """Return the upstream part of a package's version: 1:535.309.01-1~deb12u1 -> 535.309.01."""
    rest = version.partition(":")[2] or version
    return rest.rpartition("-")[0] or rest


@dataclass(frozen=True, slots=True)
class BranchClaim:
    """A vulnerability of the NVIDIA driver: the first fixed version of each branch that the bulletin lists.

    A branch that the bulletin does not list is unknown: NVIDIA states that earlier branches may be affected too.
    """

    cve: str
    fixed: Mapping[int, str]
    severity: str
    summary: str
    bulletin: str

    def judge(self, version: str) -> ClaimAnswer:
        """Return the answer for a version of the driver, as 535.309.01."""
        own = upstream(version)
        head = own.partition(".")[0]
        if not head.isdigit():
            return ClaimAnswer(ClaimState.UNKNOWN, f"{version} is no version of a driver")
        branch = int(head)
        if branch in self.fixed:
            return below(own, self.fixed[branch])
        listed = ", ".join(f"R{one}" for one in sorted(self.fixed)) or "no branch"
        why = f"{self.bulletin} lists {listed}, and not R{branch}"
        if self.fixed and branch > max(self.fixed):
            return ClaimAnswer(ClaimState.UNKNOWN, f"{why}, which is newer")
        return ClaimAnswer(ClaimState.UNKNOWN, f"{why}; earlier branches may be affected")


@dataclass(frozen=True, slots=True)
class RangeClaim:
    """A vulnerability of one product: the first version with a fix, or the last that is affected."""

    cve: str
    severity: str
    summary: str
    fixed: str | None = None
    last: str | None = None
    exact: frozenset[str] = frozenset()
    not_affected: str = ""
    unknown: str = ""

    def judge(self, version: str) -> ClaimAnswer:
        """Return the answer for a version of the package."""
        if self.not_affected:
            return ClaimAnswer(ClaimState.NOT_AFFECTED, self.not_affected)
        if self.fixed is not None:
            return below(version, self.fixed)
        if self.last is not None:
            order = compared(upstream(version), self.last)
            if order is not None and order <= 0:
                return ClaimAnswer(
                    ClaimState.AFFECTED,
                    f"{version} is not newer than {self.last}, the last affected one",
                )
            if order is not None:
                return ClaimAnswer(
                    ClaimState.FIXED, f"{version} is newer than {self.last}, the last affected one"
                )
        if version in self.exact:
            return ClaimAnswer(ClaimState.AFFECTED, f"{version} is listed as affected")
        return ClaimAnswer(ClaimState.UNKNOWN, self.unknown or f"{version} is not listed")
