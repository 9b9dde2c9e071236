"""Reports of scanners in place of a vulnerability database: JSON of grype, Trivy and OSV-Scanner.

A report counts only for the image that it is about: grype and Trivy name the digest of its manifest or of its
configuration, OSV-Scanner lists packages. The fields read here are those of the scanners' published sources:

* grype: anchore/grype, grype/presenter/models/document.go and grype/vulnerability/provider.go
* Trivy: aquasecurity/trivy, pkg/types/report.go, pkg/types/version.go and pkg/detector/ospkg/debian/debian.go
* OSV-Scanner: google/osv-scanner, pkg/models/results.go
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from goldnode.core.errors import ImageError
from goldnode.evidence.contents import Contents, InstalledDeb, InstalledWheel
from goldnode.evidence.vulnerabilities import (
    About,
    VulnerabilityFinding,
    affected,
    ecosystem_of,
    named_file,
    severity_of,
)
from goldnode.node.ground.optional import group
from goldnode.oci.layout import OciImage

SCANNERS = ("grype", "trivy", "osv-scanner")
# Types of wheels in Trivy's reports (pkg/fanal/types/const.go).
_PYTHON = ("python-pkg", "pip", "pipenv", "poetry", "uv", "pylock")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class _Covered:
    """Coverage of a report: a distribution (`debian`, `12`), wheels, or only the listed packages."""

    distribution: tuple[str, str] | None = None
    wheels: bool = False
    listed: frozenset[tuple[str, str, str]] | None = None  # kind, name, version


@dataclass(frozen=True)
class ScanReport:
    """One report. `subjects` are the digests that it names, `matches` kind and finding of each match.

    `ignored` is the number of matches that the scanner left out by its own rules.
    """

    label: str
    origin: About
    version: str
    covered: _Covered
    matches: tuple[tuple[str, VulnerabilityFinding], ...]
    subjects: frozenset[str] = field(default_factory=frozenset)
    ignored: int = 0

    def about(self) -> dict[str, Any]:
        """Return its kind, sha256 and date, the source of that date, and the scanner's version."""
        return {**self.origin.document(), "version": self.version, "ignored": self.ignored}

    def check_subject(self, image: OciImage, contents: Contents) -> None:
        """Raise ImageError unless the report is about an image."""
        if self.covered.listed is not None:
            here = {_listed(item) for item in contents.packages} | {
                ("deb", item.source, item.source_version) for item in contents.debs
            }
            foreign = sorted(name for _, name, _ in self.covered.listed - here)
            if not foreign:
                return
            why = f"lists {', '.join(foreign[:3])}, which {image.digest} does not contain"
        # Scanners name an image by its manifest or, as docker does, by its configuration.
        elif {image.digest, str(image.manifest["config"]["digest"])} & self.subjects:
            return
        else:
            why = f"is about {', '.join(sorted(self.subjects)) or 'no image that it names'}, not {image.digest}"
        raise ImageError(
            f"the report of {self.label} {why}",
            file=self.origin.name,
            remedy="scan this image, or its CycloneDX document: `goldnode images verify --export DIR`",
        )

    def covers(self, kind: str, contents: Contents) -> int | None:
        """Return None if the report covers the debs or the wheels of an image, otherwise 0."""
        items: Sequence[InstalledDeb | InstalledWheel] = (
            contents.debs if kind == "deb" else contents.wheels
        )
        return None if any(self._covers(item, contents) for item in items) else 0

    def _covers(self, item: InstalledDeb | InstalledWheel, contents: Contents) -> bool:
        if self.covered.listed is not None:
            if isinstance(item, InstalledDeb):
                source = ("deb", item.source, item.source_version)
            else:
                source = None
            return _listed(item) in self.covered.listed or source in self.covered.listed
        if isinstance(item, InstalledWheel):
            return self.covered.wheels
        own = contents.os.get("ID", ""), contents.os.get("VERSION_ID", "").split(".")[0]
        return self.covered.distribution == own

    def check(
        self, item: InstalledDeb | InstalledWheel, contents: Contents
    ) -> list[VulnerabilityFinding] | str:
        """Return the findings for a package, or the reason why there is no result."""
        if not self._covers(item, contents):
            what = "wheels" if isinstance(item, InstalledWheel) else ecosystem_of(contents)
            return f"not checked: the report of {self.label} does not cover {what}"
        # A scanner lists what it found alone: no match is an answer, for packages that it covers.
        return [row for kind, row in self.matches if _is(kind, row, item)]

    def others(self, contents: Contents) -> list[VulnerabilityFinding]:
        """Return the findings about packages that the image's SBOM does not list."""
        return [
            row
            for kind, row in self.matches
            if not any(
                self._covers(item, contents) and _is(kind, row, item) for item in contents.packages
            )
        ]


def load_report(text: str, base: Path | None = None) -> ScanReport:
    """Load the report `KIND=FILE[@YYYY-MM-DD]`. Raise ImageError.

    The date is that of the scanner's database: the given one, otherwise the one that the report states.
    Otherwise it is unknown (`""`). The time of the scan is not the date of its database.
    """
    kind, path, day = named_file(text, SCANNERS, "scanner's report", base)
    try:
        data = path.read_bytes()
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        read = {"grype": _grype, "trivy": _trivy, "osv-scanner": _osv}[kind]
        stated, version, covered, matches, subjects, ignored = read(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        said = f"it has no {problem}" if isinstance(problem, KeyError) else str(problem)
        raise ImageError(
            f"the report of {kind} cannot be read: {said}",
            file=path,
            remedy=f"write it again: {_COMMANDS[kind]}",
        ) from problem
    if day:
        where = "given"
    elif stated:
        where = "the report"
    else:
        where = "nothing"
    origin = About(kind, path.name, hashlib.sha256(data).hexdigest(), day or stated, where)
    return ScanReport(
        kind,
        origin=origin,
        version=version,
        covered=covered,
        matches=tuple(matches),
        subjects=frozenset(subjects),
        ignored=ignored,
    )


_COMMANDS = {
    "grype": "`grype sbom:FILE -o json`",
    "trivy": "`trivy sbom FILE --format json --list-all-pkgs`",
    "osv-scanner": "`osv-scanner scan source -L FILE.spdx.json --format json --all-packages`",
}
_Read = tuple[str, str, _Covered, list[tuple[str, VulnerabilityFinding]], list[str], int]


def _grype(document: Mapping[str, Any]) -> _Read:
    descriptor = document["descriptor"]
    if descriptor["name"] != "grype":
        raise ValueError(f"it is by {descriptor['name']}")
    database = descriptor.get("db") or {}
    status = database.get("status") or {}
    providers = set(database.get("providers") or {})
    distro = document.get("distro") or {}
    # A point release (12.5) is compared by its release (12), as os-release has it.
    name, release = str(distro.get("name", "")), str(distro.get("version", "")).split(".")[0]
    # A database without the provider of the distribution has no record of it. `github` has those of wheels.
    covered = _Covered(
        (name, release) if name and (name in providers or not providers) else None,
        wheels="github" in providers,
    )
    target = (document.get("source") or {}).get("target")
    subjects = []
    if isinstance(target, dict):
        subjects = [str(target.get("manifestDigest", "")), str(target.get("imageID", ""))]
        subjects += [str(row).rpartition("@")[2] for row in target.get("repoDigests") or []]
    matches = []
    for row in document["matches"]:
        artifact, vulnerability = row["artifact"], row["vulnerability"]
        fix = vulnerability.get("fix") or {}
        finding = VulnerabilityFinding(
            id=str(vulnerability["id"]),
            package=str(artifact["name"]),
            version=str(artifact["version"]),
            fixed=next(iter(fix.get("versions") or []), None),
            severity=str(vulnerability.get("severity") or "not stated").lower(),
            database="grype",
            aliases=tuple(
                sorted(str(other["id"]) for other in row.get("relatedVulnerabilities") or [])
            ),
            note="not going to be fixed" if fix.get("state") == "wont-fix" else "",
        )
        matches.append(
            ({"deb": "deb", "python": "wheel"}.get(str(artifact.get("type")), ""), finding)
        )
    ignored = len(document.get("ignoredMatches") or [])
    built = _day(status.get("built"))
    return (
        built,
        str(descriptor.get("version", "")),
        covered,
        matches,
        [one for one in subjects if one],
        ignored,
    )


def _trivy(document: Mapping[str, Any]) -> _Read:
    if document["SchemaVersion"] != 2:
        raise ValueError(f"its SchemaVersion is {document['SchemaVersion']}, expected 2")
    about, metadata = document.get("Trivy") or {}, document.get("Metadata") or {}
    system, results = metadata.get("OS") or {}, document.get("Results") or []
    classes = {(str(row.get("Class")), str(row.get("Type"))) for row in results}
    own = str(system.get("Family", "")), str(system.get("Name", "")).split(".")[0]
    covered = _Covered(
        # A distribution without a class in the results was recognised, and not compared.
        own if ("os-pkgs", own[0]) in classes else None,
        wheels=any(("lang-pkgs", kind) in classes for kind in _PYTHON),
    )
    matches, ignored = [], 0
    for result in results:
        if result.get("Class") == "os-pkgs":
            kind = "deb"
        elif result.get("Type") in _PYTHON:
            kind = "wheel"
        else:
            # Other content, such as programs in Go: `others` reports it.
            kind = ""
        # Findings that VEX documents or rules of the scanner suppress.
        ignored += len(result.get("ExperimentalModifiedFindings") or [])
        for row in result.get("Vulnerabilities") or []:
            fixed = str(row["FixedVersion"]) if row.get("FixedVersion") else None
            finding = VulnerabilityFinding(
                id=str(row["VulnerabilityID"]),
                package=str(row["PkgName"]),
                version=str(row["InstalledVersion"]),
                fixed=fixed,
                severity=str(row.get("Severity") or "not stated").lower(),
                database="trivy",
                aliases=tuple(sorted(map(str, row.get("VendorIDs") or []))),
                note="" if fixed else str(row.get("Status", "")).replace("_", " "),
            )
            matches.append((kind, finding))
    subjects = [str(metadata["ImageID"])] if metadata.get("ImageID") else []
    subjects += [str(row).rpartition("@")[2] for row in metadata.get("RepoDigests") or []]
    # Only a server states its database.
    server = (about.get("Server") or {}).get("VulnerabilityDB") or {}
    return (
        _day(server.get("UpdatedAt")),
        str(about.get("Version", "")),
        covered,
        matches,
        subjects,
        ignored,
    )


def _osv(document: Mapping[str, Any]) -> _Read:
    listed, matches = set(), []
    for result in document["results"]:
        for row in result["packages"]:
            package = row["package"]
            ecosystem, name, version = (
                str(package[key]) for key in ("ecosystem", "name", "version")
            )
            kind = "wheel" if ecosystem == "PyPI" else "deb"
            # As PyPI compares names.
            name = canonicalize_name(name) if kind == "wheel" else name
            listed.add((kind, name, version))
            groups = row.get("groups") or []
            for record in row.get("vulnerabilities") or []:
                matches.append((kind, _osv_finding(record, groups, (ecosystem, name, version))))
    return "", "", _Covered(listed=frozenset(listed)), matches, [], 0


def _osv_finding(
    record: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], package: tuple[str, str, str]
) -> VulnerabilityFinding:
    ecosystem, name, version = package
    parts = [
        part
        for part in record.get("affected") or []
        if (part.get("package") or {}).get("name", "").lower() == name
    ]
    score = next(
        (str(row.get("max_severity", "")) for row in groups if record["id"] in row.get("ids", [])),
        "",
    )
    fixed = next((fix for part in parts if (fix := affected(part, ecosystem, version)[1])), None)
    return VulnerabilityFinding(
        id=str(record["id"]),
        package=name,
        version=version,
        fixed=fixed,
        severity=score or severity_of(dict(record), next(iter(parts), {})),
        database="osv-scanner",
        aliases=tuple(sorted(map(str, record.get("aliases") or []))),
    )


def _day(text: Any) -> str:
    return group(_DATE.match(str(text or "")), 0) or ""


def _listed(item: InstalledDeb | InstalledWheel) -> tuple[str, str, str]:
    if isinstance(item, InstalledWheel):
        return "wheel", str(canonicalize_name(item.name)), item.version
    return "deb", item.name, item.version


def _names(item: InstalledDeb | InstalledWheel) -> Iterator[tuple[str, str]]:
    yield (item.name, item.version)
    if isinstance(item, InstalledDeb):
        yield (item.source, item.source_version)


def _is(kind: str, row: VulnerabilityFinding, item: InstalledDeb | InstalledWheel) -> bool:
    """Return whether a match is about a package: by its name, or by that of its source package."""
    if kind != item.kind:
        return False
    if isinstance(item, InstalledWheel):
        return (canonicalize_name(row.package), row.version) == (
            canonicalize_name(item.name),
            item.version,
        )
    return (row.package, row.version) in _names(item)
