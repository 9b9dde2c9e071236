"""OVAL definitions of Debian and Ubuntu, by source package and release.

Both state package and version in the comments of their criteria: Debian's `linux DPKG is earlier than 6.1.190-1` below
`Debian 12 is installed`; Ubuntu's `linux package in noble was vulnerable but has been fixed (note: '6.8.0-60.63').`,
with the CVE in brackets before it in a definition of a whole package. Tests, objects and states repeat that. The test
of a kernel's flavour compares `uname -r`, a part of the version; the version itself is compared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO
from xml.etree import ElementTree

from goldnode.cve.claims import CVE, AdvisoryClaim, ClaimAnswer, ClaimState, OsRelease, below

_RELEASE = re.compile(r"Debian (\d+)(?:\.\d+)? is installed")
_EARLIER = re.compile(r"(?P<package>\S+) DPKG is earlier than (?P<version>\S+)")
_UBUNTU = re.compile(
    r"(?:\((?P<cve>CVE-\d{4}-\d{4,})\) )?(?:The )?'?(?P<package>[\w.+-]+)'? (?:package|kernel) in (?P<codename>\w+),? "
    r"(?P<state>.*)"
)
_NOTE = re.compile(r"\(note: '(?P<version>[^']+?) ?'\)")
_KERNEL_RUNS = re.compile(r"Is kernel '?(?P<package>[\w.+-]+)'? running\?")
_CODENAME = re.compile(r"com\.ubuntu\.(\w+)")
# A package of Debian without a fix, one that never had the vulnerability, and a mistake look alike.
_NO_VERSION = ("0", "0:0", "0:0-0")


@dataclass(frozen=True, slots=True)
class OvalClaim:
    """The criterion of one vulnerability for one package and release."""

    cve: str
    severity: str
    summary: str
    fixed: str | None
    state: ClaimState
    why: str

    def judge(self, version: str) -> ClaimAnswer:
        """Return the answer for a version of the source package."""
        if self.fixed is not None:
            return below(version, self.fixed)
        return ClaimAnswer(self.state, self.why)


class OvalDefinitions:
    """Claims of OVAL documents."""

    def __init__(self, documents: Iterable[IO[bytes]]) -> None:
        """Read XML documents. Raise ValueError for one that is no OVAL of Debian or Ubuntu."""
        self.newest, self.definitions = "", 0
        # (distribution, release: a number of Debian, a codename of Ubuntu) -> source -> vulnerability -> claim
        self._claims: dict[tuple[str, str], dict[str, dict[str, AdvisoryClaim]]] = {}
        self._known: set[str] = set()
        for document in documents:
            self._read(document)
        if not self.definitions:
            raise ValueError("it has no OVAL definition")

    def _read(self, document: IO[bytes]) -> None:
        root: ElementTree.Element | None = None
        try:
            for event, element in ElementTree.iterparse(document, events=("start", "end")):  # noqa: S314 - expat limits the expansion of entities
                if root is None:
                    root = element
                name = element.tag.rpartition("}")[2]
                if event == "start":
                    continue
                if name == "timestamp":
                    self.newest = max(self.newest, (element.text or "")[:10])
                elif name == "definition":
                    self._add(element)
                # The definitions of one release are 300 MB: each is read and dropped.
                if name in ("definition", "tests", "objects", "states", "variables"):
                    element.clear()
        except ElementTree.ParseError as problem:
            raise ValueError(f"{problem}: the file is no XML, or cut short") from problem
        if root is None or root.tag.rpartition("}")[2] != "oval_definitions":
            raise ValueError("it is no OVAL document")

    def _add(self, element: ElementTree.Element) -> None:
        if element.get("class") not in ("vulnerability", None):
            return
        self.definitions += 1
        texts = {part.tag.rpartition("}")[2]: (part.text or "").strip() for part in element.iter()}
        severities = {
            (part.text or "").strip(): (part.get("priority") or "").lower()
            for part in element.iter()
            if part.tag.endswith("}cve") or part.tag == "cve"
        }
        own = [part.get("ref_id", "") for part in element.iter() if part.get("source") == "CVE"]
        own += CVE.findall(texts.get("title", ""))
        named = next(iter(CVE.findall(" ".join(own))), None)
        codename = _CODENAME.search(element.get("id", ""))
        comments = [part.get("comment", "") for part in element.iter() if part.get("comment")]
        for place, package, row in _criteria(comments, codename):
            cve = row[0] or named
            if cve is None:
                continue
            self._known.add(cve)
            severity = severities.get(cve) or texts.get("severity", "").lower() or "not stated"
            claim = OvalClaim(cve, severity, texts.get("description", ""), *row[1:])
            by_cve = self._claims.setdefault(place, {}).setdefault(package, {})
            # A kernel without a fix has the question whether it runs alone; a row with a fix states more.
            before = by_cve.get(cve)
            if not isinstance(before, OvalClaim) or before.fixed is None:
                by_cve[cve] = claim

    def covers(self, system: OsRelease) -> bool:
        """Return whether a definition is about the release."""
        return _place(system) in self._claims

    def claims(self, system: OsRelease | None, source: str) -> Mapping[str, AdvisoryClaim]:
        """Return the claims about a source package of a release."""
        if system is None:
            return {}
        return self._claims.get(_place(system), {}).get(source, {})

    def knows(self, cve: str) -> str | None:
        """Return "" for a vulnerability with a definition."""
        return "" if cve in self._known else None


def _place(system: OsRelease) -> tuple[str, str]:
    return system.id, system.version if system.id == "debian" else system.codename


_Row = tuple[str | None, str | None, ClaimState, str]  # vulnerability, fixed version, state, why


def _criteria(
    comments: Iterable[str], codename: re.Match[str] | None
) -> Iterator[tuple[tuple[str, str], str, _Row]]:
    """Yield release, source package and what a definition states, by its comments."""
    release: str | None = None
    for comment in comments:
        if match := _RELEASE.fullmatch(comment):
            release = match[1]
        elif (match := _EARLIER.match(comment)) and release is not None:
            row: _Row = (None, match["version"], ClaimState.AFFECTED, "")
            if match["version"] in _NO_VERSION:
                why = "OVAL of Debian has version 0: not fixed yet, never affected, or a mistake"
                row = (None, None, ClaimState.UNKNOWN, why)
            yield ("debian", release), match["package"], row
        elif match := _UBUNTU.match(comment):
            yield ("ubuntu", match["codename"]), match["package"], _ubuntu(match)
        elif (match := _KERNEL_RUNS.match(comment)) and codename is not None:
            row = (None, None, ClaimState.AFFECTED, "it names no fix")
            yield ("ubuntu", codename[1]), match["package"], row


def _ubuntu(match: re.Match[str]) -> _Row:
    cve, text, note = match["cve"], match["state"], _NOTE.search(match["state"])
    if "has been fixed" in text:
        # The note can be a text, as `8.0 only`: that is no version.
        if note is not None and " " not in note["version"]:
            return cve, note["version"], ClaimState.AFFECTED, ""
        return cve, None, ClaimState.UNKNOWN, f"its version is no version: {text}"
    if "is affected" in text or "needs fixing" in text:
        return cve, None, ClaimState.AFFECTED, text.rstrip(".")
    return cve, None, ClaimState.UNKNOWN, text.rstrip(".")
