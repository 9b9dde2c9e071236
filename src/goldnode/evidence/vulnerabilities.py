"""Known vulnerabilities of an image's packages, from databases that the caller supplies.

Two formats are supported: the Debian security tracker's JSON (by source package and release), and OSV (a
record, a list, a directory or an archive of records; ecosystems PyPI and Debian). `scan_reports` reads the
reports of scanners in place of a database. goldnode fetches no database. A package that no supplied database
covers is *not checked*. A package whose name is in no database has *no record*. Neither means that the
package is safe. Libraries bundled inside a wheel are covered only by records about the wheel.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cmp_to_key
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from packaging.utils import canonicalize_name

from goldnode.core.errors import ImageError, nearest
from goldnode.evidence.contents import Contents, InstalledDeb, InstalledWheel
from goldnode.evidence.sources import tracked_source
from goldnode.node.ground.json_lines import as_dict, as_rows
from goldnode.node.state.debversion import compare
from goldnode.oci.layout import canonical

KINDS = ("debian", "osv")
LEVELS = ("negligible", "low", "medium", "high", "critical")
# Words of the Debian tracker, of OSV records and of scanners -> level.
_LEVELS = {
    **{level: level for level in LEVELS},
    "unimportant": "negligible",
    "minor": "low",
    "moderate": "medium",
    "important": "high",
}


@dataclass(frozen=True)
class VulnerabilityFinding:
    """One vulnerability of one package. `fixed` is the first version without it, None if no fix is known."""

    id: str
    package: str
    version: str
    fixed: str | None
    severity: str
    database: str
    aliases: tuple[str, ...] = ()
    note: str = ""


class Database(Protocol):
    """A vulnerability database, loaded."""

    @property
    def label(self) -> str:
        """Return its name in findings."""

    def about(self) -> dict[str, Any]:
        """Return the kind, sha256 and date of the database, and the source of that date."""

    def covers(self, kind: str, contents: Contents) -> int | None:
        """Return the number of packages that it has records of, for the debs or the wheels of an image.

        0: it does not cover them. None: it does, and does not state the number.
        """

    def check(
        self, item: InstalledDeb | InstalledWheel, contents: Contents
    ) -> list[VulnerabilityFinding] | str:
        """Return the findings for a package, or the reason why there is no result.

        The reason is a sentence that begins with `no record` or `not checked`.
        """


def level(severity: str) -> str:
    """Return one of LEVELS for a severity in words or a CVSS score; `unknown` for any other text.

    The levels of scores are those of CVSS 3.1, section 5 (first.org/cvss/v3-1/specification-document).
    """
    word = severity.strip().lower()
    if re.fullmatch(r"\d{1,2}(\.\d+)?", word):
        score = float(word)
        bounds = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.1, "low"))
        return next((name for bound, name in bounds if score >= bound), "negligible")
    return _LEVELS.get(word, "unknown")


@dataclass(frozen=True)
class About:
    """Origin of a database or a report: its kind, file name and digest, its date, and what states the date."""

    kind: str
    name: str
    sha256: str
    date: str
    date_from: str

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "sha256": self.sha256,
            "date": self.date,
            "date_from": self.date_from,
        }


@runtime_checkable
class ScannerReport(Database, Protocol):
    """The report of a scanner, in place of a database."""

    def others(self, contents: Contents) -> list[VulnerabilityFinding]:
        """Return the findings about packages that the image's SBOM does not list."""


def load(text: str, base: Path | None = None) -> Database:
    """Load the database `KIND=FILE[@YYYY-MM-DD]`. Raise ImageError.

    The date is the given one, otherwise that of the newest record (OSV), otherwise the modification time of
    the file. The report names its source.
    """
    kind, path, day = named_file(text, KINDS, "vulnerability database", base)
    try:
        return _Debian(path, day) if kind == "debian" else _Osv(path, day)
    except (OSError, ValueError, zipfile.BadZipFile) as problem:
        raise ImageError(
            f"the vulnerability database cannot be read: {problem}",
            file=path,
            remedy="fetch it again",
        ) from problem


def named_file(
    text: str, kinds: Sequence[str], what: str, base: Path | None
) -> tuple[str, Path, str]:
    """Return kind, file and day (`""` without one) of `KIND=FILE[@YYYY-MM-DD]`. Raise ImageError."""
    kind, _, rest = text.partition("=")
    if kind not in kinds or not rest:
        raise ImageError(
            f'"{text}" names no {what}, expected KIND=FILE[@YYYY-MM-DD]',
            remedy=nearest(kind, kinds) if kind not in kinds else "add the file",
        )
    name, _, day = rest.rpartition("@") if re.search(r"@\d{4}-\d\d-\d\d$", rest) else (rest, "", "")
    path = (base or Path.cwd()) / Path(name).expanduser()
    if not path.exists():
        raise ImageError(
            f"the {what} does not exist", file=path, remedy="fetch it, or correct its name"
        )
    return kind, path, day


class _Debian:
    label = "debian"

    def __init__(self, path: Path, day: str) -> None:
        data = path.read_bytes()
        self._db = json.loads(data)
        if not isinstance(self._db, dict) or not all(
            isinstance(row, dict) for row in self._db.values()
        ):
            raise ValueError("it is no Debian security tracker JSON")
        self._releases = {
            name
            for rows in self._db.values()
            for row in rows.values()
            if isinstance(row, dict)
            for name in row.get("releases", {})
        }
        # The tracker's JSON has no date of its own.
        date, where = (day, "given") if day else (file_date(path), "the file's own date")
        self._about = About("debian", path.name, hashlib.sha256(data).hexdigest(), date, where)

    def about(self) -> dict[str, Any]:
        return {
            **self._about.document(),
            "releases": sorted(self._releases),
            "sources": len(self._db),
        }

    def covers(self, kind: str, contents: Contents) -> int | None:
        release = contents.os.get("VERSION_CODENAME", "")
        if kind != "deb" or contents.os.get("ID") != "debian":
            return 0
        return sum(
            any(
                release in row.get("releases", {}) for row in rows.values() if isinstance(row, dict)
            )
            for rows in self._db.values()
        )

    def check(
        self, item: InstalledDeb | InstalledWheel, contents: Contents
    ) -> list[VulnerabilityFinding] | str:
        if not isinstance(item, InstalledDeb):
            return "not checked: no supplied database covers wheels"
        release = contents.os.get("VERSION_CODENAME", "")
        if contents.os.get("ID") != "debian" or release not in self._releases:
            return (
                f"not checked: the Debian database does not cover {release or 'this distribution'}"
            )
        # The tracker lists only the versions of the release itself.
        if "~bpo" in item.version:
            return "not checked: the Debian database does not cover backports"
        # The tracker lists source packages, and not those that only sign them.
        source, version = tracked_source(item.source, item.source_version, item.version)
        rows = self._db.get(source)
        if rows is None:
            return "no record"
        findings = []
        for name, row in sorted(rows.items()):
            state = as_dict(as_dict(row).get("releases")).get(release)
            if not isinstance(state, dict):
                continue
            status, fixed = state.get("status"), state.get("fixed_version")
            # The tracker uses the fixed version "0" for a release that never had the vulnerability.
            if status == "resolved" and (not fixed or compare(str(fixed), version) <= 0):
                continue
            if status == "undetermined":
                note = "undetermined"
            elif state.get("nodsa"):
                note = "no security advisory planned"
            else:
                note = ""
            findings.append(
                VulnerabilityFinding(
                    id=name,
                    package=item.name,
                    version=item.version,
                    fixed=str(fixed) if status == "resolved" and fixed else None,
                    # The tracker marks an urgency that was not set by hand with stars.
                    severity=str(state.get("urgency", "not yet assigned")).strip("*"),
                    database=self.label,
                    note=note,
                )
            )
        return findings


class _Osv:
    label = "osv"

    def __init__(self, path: Path, day: str) -> None:
        hasher = hashlib.sha256()
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        newest, self._count = "", 0
        for data in documents_in(path):
            # Over the records in their order: an archive and its unpacked directory have the same digest.
            hasher.update(data)
            read = json.loads(data)
            for row in as_rows(read):
                if not isinstance(row, dict) or "id" not in row:
                    raise ValueError("it has something that is no OSV record")
                self._count += 1
                newest = max(newest, str(row.get("modified", ""))[:10])
                # It stays in the database, and applies to nothing.
                if row.get("withdrawn"):
                    continue
                for part in row.get("affected", []):
                    package = part.get("package", {})
                    ecosystem, name = (
                        str(package.get("ecosystem", "")),
                        str(package.get("name", "")),
                    )
                    if ecosystem == "PyPI":
                        name = canonicalize_name(name)
                    self._rows.setdefault((ecosystem, name), []).append(
                        {"record": row, "affected": part}
                    )
        if not self._count:
            raise ValueError("it has no OSV record")
        self._ecosystems = {ecosystem for ecosystem, _ in self._rows}
        if day:
            date, where = (day, "given")
        elif newest:
            date, where = (newest, "its newest record")
        else:
            date, where = (file_date(path), "the file's own date")
        self._about = About("osv", path.name, hasher.hexdigest(), date, where)

    def about(self) -> dict[str, Any]:
        return {
            **self._about.document(),
            "ecosystems": sorted(self._ecosystems),
            "records": self._count,
        }

    def covers(self, kind: str, contents: Contents) -> int | None:
        wanted = "PyPI" if kind == "wheel" else ecosystem_of(contents)
        return len([name for ecosystem, name in self._rows if ecosystem == wanted])

    def check(
        self, item: InstalledDeb | InstalledWheel, contents: Contents
    ) -> list[VulnerabilityFinding] | str:
        if isinstance(item, InstalledWheel):
            ecosystem, name, version = "PyPI", str(canonicalize_name(item.name)), item.version
        else:
            ecosystem = ecosystem_of(contents)
            name, version = tracked_source(item.source, item.source_version, item.version)
        if ecosystem not in self._ecosystems:
            return f"not checked: the OSV database does not cover {ecosystem}"
        rows = self._rows.get((ecosystem, name))
        if rows is None:
            return "no record"
        findings: dict[str, VulnerabilityFinding] = {}
        for row in rows:
            hit, fixed = affected(row["affected"], ecosystem, version)
            # Not "no finding": an unreadable version may be affected.
            if hit is None:
                return f"not checked: version {version} cannot be compared with the OSV database's"
            if hit:
                record = row["record"]
                findings[record["id"]] = VulnerabilityFinding(
                    id=record["id"],
                    package=item.name,
                    version=item.version,
                    fixed=fixed,
                    severity=severity_of(record, row["affected"]),
                    database=self.label,
                    aliases=tuple(sorted(record.get("aliases", []))),
                )
        return [findings[name] for name in sorted(findings)]


def ecosystem_of(contents: Contents) -> str:
    """Return the name of an image's distribution in OSV: `Debian:12`, `Ubuntu:24.04:LTS`."""
    system, version = contents.os.get("ID", ""), contents.os.get("VERSION_ID", "")
    return ecosystem_name(system, version)


def ecosystem_name(system: str, version: str) -> str:
    """Return the name of a release in OSV, by ID and VERSION_ID of os-release."""
    name = f"{system.capitalize()}:{version}"
    # Ubuntu's long-term releases, those of each even year, have a suffix.
    long_term = system == "ubuntu" and re.fullmatch(r"\d[02468]\.04", version)
    return f"{name}:LTS" if long_term else name


def file_date(path: Path) -> str:
    return dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).date().isoformat()


def documents_in(path: Path) -> Iterator[bytes]:
    """Yield the JSON documents of a file, a directory, a ZIP archive, or a file with one a line (.jsonl)."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield file.read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".json"):
                    yield archive.read(name)
    elif path.suffix == ".jsonl":
        yield from (line for line in path.read_bytes().splitlines() if line.strip())
    else:
        yield path.read_bytes()


def affected(part: dict[str, Any], ecosystem: str, version: str) -> tuple[bool | None, str | None]:
    """Return whether a version is affected, and the first later version that is not.

    The first value is None if the version cannot be compared. This follows the evaluation algorithm of the
    OSV schema: a version is affected if it is listed, or lies between `introduced` and `fixed`.
    """
    listed = version in _rows(part.get("versions"))
    hit, fixed = listed, None
    for span in map(as_dict, _rows(part.get("ranges"))):
        # GIT ranges name commits, which cannot be compared with a package version.
        if span.get("type") not in ("ECOSYSTEM", "SEMVER"):
            continue
        inside = False
        try:
            # The schema does not ask for an order of events.
            for event in _sorted(map(as_dict, _rows(span.get("events"))), ecosystem):
                if "introduced" in event and (
                    event["introduced"] == "0"
                    or _compare(str(event["introduced"]), version, ecosystem) <= 0
                ):
                    inside = True
                elif "fixed" in event:
                    if _compare(str(event["fixed"]), version, ecosystem) <= 0:
                        inside = False
                    # The first fix after this version. Later ones are of other branches.
                    elif (inside or listed) and fixed is None:
                        fixed = str(event["fixed"])
                elif (
                    "last_affected" in event
                    and _compare(str(event["last_affected"]), version, ecosystem) < 0
                ):
                    inside = False
        except ValueError:
            # A listed version is affected, whatever a range means.
            return (True, None) if listed else (None, None)
        hit = hit or inside
    return hit, fixed if hit else None


def _rows(value: Any) -> list[Any]:
    """Return a list of a record, empty where it has something else."""
    return value if isinstance(value, list) else []


def _sorted(events: Iterable[dict[str, Any]], ecosystem: str) -> list[dict[str, Any]]:
    def order(left: tuple[str, dict[str, Any]], right: tuple[str, dict[str, Any]]) -> int:
        # "0" precedes every version, and is not a valid version itself.
        if "0" in (left[0], right[0]):
            return (left[0] != "0") - (right[0] != "0")
        return _compare(left[0], right[0], ecosystem)

    keyed = [(str(next(iter(event.values()), "0")), event) for event in events]
    return [event for _, event in sorted(keyed, key=cmp_to_key(order))]


def _compare(left: str, right: str, ecosystem: str) -> int:
    if ecosystem.startswith(("Debian", "Ubuntu")):
        return compare(left, right)
    from packaging.version import Version

    one, other = Version(left), Version(right)  # raises InvalidVersion, a ValueError
    return (one > other) - (one < other)


def severity_of(record: dict[str, Any], affected: dict[str, Any]) -> str:
    for place in (affected, record):
        # OSV standardises vectors only; words of severity are where each database puts them.
        for group in ("database_specific", "ecosystem_specific"):
            said = place.get(group, {})
            if isinstance(said, dict) and isinstance(
                said.get("severity") or said.get("urgency"), str
            ):
                return str(said.get("severity") or said.get("urgency")).lower()
    vector = next(
        (str(row.get("score", "")) for row in record.get("severity", []) if isinstance(row, dict)),
        "",
    )
    return vector or "not stated"


@dataclass(frozen=True)
class VulnerabilityReport:
    """Findings for one image, and the packages that were not checked.

    `scanned` is the time of the scan. A disk has one report only, which states none.
    """

    subject: str
    databases: list[dict[str, Any]]
    findings: list[VulnerabilityFinding]
    checked: int
    no_record: list[str]
    not_checked: list[tuple[str, str]] = field(default_factory=list)
    coverage: list[dict[str, Any]] = field(default_factory=list)
    scanned: dt.datetime | None = None

    @property
    def state(self) -> str:
        """Return whether the packages were checked: not_checked, partly_checked or checked."""
        if not self.checked:
            return "not_checked"
        return "partly_checked" if self.not_checked else "checked"

    def data(self) -> dict[str, Any]:
        """Return the data of the attached document."""
        severities: dict[str, int] = {}
        for item in self.findings:
            severities[item.severity] = severities.get(item.severity, 0) + 1
        clock = {} if self.scanned is None else {"scanned": time_of(self.scanned)}
        return {
            "subject": self.subject,
            **clock,
            "databases": self.databases,
            "coverage": self.coverage,
            "state": self.state,
            "summary": {
                "vulnerabilities": len(self.findings),
                "fix_available": len([item for item in self.findings if item.fixed]),
                "by_severity": dict(sorted(severities.items())),
                "packages_checked": self.checked,
                "packages_without_record": len(self.no_record),
                "packages_not_checked": len(self.not_checked),
            },
            "vulnerabilities": [
                {
                    "id": item.id,
                    "aliases": list(item.aliases),
                    "package": item.package,
                    "version": item.version,
                    "fixed": item.fixed,
                    "severity": item.severity,
                    "database": item.database,
                    "note": item.note,
                }
                for item in self.findings
            ],
            "no_record": self.no_record,
            "not_checked": [{"package": name, "why": why} for name, why in self.not_checked],
        }

    def document(self) -> bytes:
        """Return the canonical JSON."""
        return canonical(self.data())

    def is_repeated_by(self, data: bytes) -> bool:
        """Return whether a document states the same as this report, at whatever time it was written."""
        try:
            other = json.loads(data)
            return (
                isinstance(other, dict)
                # Writing the same result again would only add a document to the image.
                and {**self.data(), "scanned": other.get("scanned")} == other
            )
        except ValueError:
            return False

    def line(self) -> str:
        """Return a one-line summary for people."""
        if not self.databases:
            return "not checked: no vulnerability database was named"
        fixable = len([item for item in self.findings if item.fixed])
        dates = (
            (
                row["kind"],
                f"of {row['date']} ({row['date_from']})" if row["date"] else "without a date",
            )
            for row in self.databases
        )
        bases = ", ".join(f"{kind} {date}" for kind, date in dates)
        text = f"{len(self.findings)} known, {fixable} of them with a fix; {self.checked} packages checked"
        return f"{text}, {len(self.no_record)} without a record, {len(self.not_checked)} not checked; {bases}"


def time_of(moment: dt.datetime) -> str:
    """Return a time in UTC as a report states it: texts sort as the times do."""
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def report(
    contents: Contents, databases: Sequence[Database], scanned: dt.datetime | None = None
) -> VulnerabilityReport:
    """Check the packages of an image against databases and scanners' reports.

    A package counts as checked if at least one of them covers it.
    """
    findings: list[VulnerabilityFinding] = []
    checked, no_record, not_checked = 0, [], []
    for item in contents.packages:
        name = f"{item.name} {item.version}"
        answers = [database.check(item, contents) for database in databases]
        lists = [answer for answer in answers if not isinstance(answer, str)]
        said = [answer for answer in answers if isinstance(answer, str)]
        for rows in lists:
            findings += rows
        if lists:
            checked += 1
        # A database that covers the distribution and has no record of the package counts as a check.
        elif "no record" in said:
            checked += 1
            no_record.append(name)
        else:
            why = "; ".join(dict.fromkeys(text.removeprefix("not checked: ") for text in said))
            not_checked.append((name, why or "no vulnerability database was named"))
    for database in databases:
        if isinstance(database, ScannerReport):
            findings += database.others(contents)
    # A scanner states a finding about a source package once, and each of its binary packages has it.
    findings = sorted(dict.fromkeys(findings), key=lambda row: (row.package, row.id, row.database))
    return VulnerabilityReport(
        contents.digest,
        databases=[database.about() for database in databases],
        findings=findings,
        checked=checked,
        no_record=sorted(no_record),
        not_checked=sorted(not_checked),
        coverage=[
            _coverage(items, contents, databases, {name for name, _ in not_checked})
            for items in (contents.debs, contents.wheels)
            if items
        ],
        scanned=scanned,
    )


def _coverage(
    items: Sequence[InstalledDeb | InstalledWheel],
    contents: Contents,
    databases: Sequence[Database],
    unchecked: Set[str],
) -> dict[str, Any]:
    """Return what covers the debs or the wheels of an image.

    `known` is the number of packages that the largest database has records of, null if only a scanner's report
    covers them. `databases` are the positions of those that cover them in the report's list.
    """
    kind = items[0].kind
    known = [database.covers(kind, contents) for database in databases]
    # None is a report, which does not state a number.
    counts = [number for number in known if number]
    return {
        "kind": kind,
        "ecosystem": "PyPI" if kind == "wheel" else ecosystem_of(contents),
        "packages": len(items),
        "checked": len([item for item in items if f"{item.name} {item.version}" not in unchecked]),
        "known": max(counts, default=None if None in known else 0),
        "scanned": None in known,
        "databases": [number for number, count in enumerate(known) if count != 0],
    }
