"""MODEL of how grype, Trivy and OSV-Scanner match packages of an SBOM. None of them ran here: not verified.

Each function restates rules of a scanner's published source, at the commit in its URLs, and only as far as
debs and wheels need them. It answers which components a scanner reports for one advisory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packageurl import PackageURL
from packaging.utils import canonicalize_name
from packaging.version import Version

from goldnode.node.state.debversion import compare

GRYPE = "https://github.com/anchore/grype/blob/4562c55cebba5fe50a0c5afc7cec50a3b2392a87/"
SYFT = "https://github.com/anchore/syft/blob/bf82010f3c38508e30dd01ed8053f158513c0c9d/"
TRIVY = "https://github.com/aquasecurity/trivy/blob/dc3c56eed58ab21c7e08d26757c517bc946a86c5/"
SCALIBR = "https://github.com/google/osv-scalibr/blob/c2094f2d68e3994551d9998a54e2e97985a18a39/"
SOURCES = {
    "grype": (
        SYFT
        + "syft/pkg/cataloger/debian/package.go#L98-L130",  # `upstream`: SOURCE or SOURCE@VERSION
        SYFT
        + "syft/format/internal/cyclonedxutil/helpers/decoder.go#L88-L150",  # the operating system
        GRYPE + "grype/pkg/purl_provider.go#L56-L75",  # upstream packages from the purl
        GRYPE
        + "grype/pkg/package.go#L607-L637",  # an upstream of the package's own name is ignored
        GRYPE + "grype/pkg/upstream_package.go#L16-L28",  # its version, if it is given
        GRYPE
        + "grype/matcher/dpkg/matcher.go#L40-L140",  # own name and upstream names, of the distribution
    ),
    "trivy": (
        TRIVY
        + "pkg/sbom/io/decode.go#L192-L440",  # source: properties, else the name of the package
        TRIVY + "pkg/sbom/cyclonedx/unmarshal.go#L290-L315",  # namespace of the properties
        TRIVY + "pkg/sbom/spdx/unmarshal.go#L185-L190",  # SPDX: sourceInfo
        TRIVY + "pkg/sbom/spdx/unmarshal.go#L274-L288",  # SPDX: the operating system by its id
        TRIVY + "pkg/scan/utils/utils.go#L10-L30",  # epoch, version and release make the version
        TRIVY
        + "pkg/detector/ospkg/debian/debian.go#L58-L122",  # by the major release and the source's name
    ),
    "osv-scanner": (
        SCALIBR + "extractor/filesystem/sbom/cdx/cdx.go#L145-L185",  # the name of the component
        SCALIBR + "extractor/filesystem/sbom/spdx/spdx.go#L136-L185",  # SPDX: the name in the purl
        SCALIBR
        + "purl/ecosystem/ecosystem.go#L82-L120",  # the ecosystem: from namespace and `distro`
        SCALIBR
        + "enricher/vulnmatch/internal/osvutil/osvutil.go#L57-L115",  # no source package in an SBOM
    ),
}


@dataclass(frozen=True)
class ScannerAdvisory:
    """One advisory. `package` is a source package (Debian) or a project (PyPI). `fixed` None: no fix is known."""

    ecosystem: str
    package: str
    fixed: str | None


def grype(document: Mapping[str, Any], advisory: ScannerAdvisory) -> set[str]:
    """Return the purls that grype reports for a CycloneDX document."""
    system = _system(document)
    found = set()
    for row, purl in _components(document):
        if purl.type == "pypi":
            if (
                advisory.ecosystem == "PyPI"
                and canonicalize_name(str(row["name"])) == advisory.package
            ):
                found |= _hit(str(row["purl"]), str(row["version"]), advisory)
            continue
        distro = f"{system[0]}-{system[1]}" if system else _qualifier(purl, "distro")
        candidates = [(str(row["name"]), str(row["version"]))]
        name, _, stated = _qualifier(purl, "upstream").partition("@")
        if name and name != purl.name:
            candidates.append((name, stated or str(row["version"])))
        for candidate, version in candidates:
            if (
                advisory.ecosystem == distro.replace("debian-", "Debian:")
                and candidate == advisory.package
            ):
                found |= _hit(str(row["purl"]), version, advisory)
    return found


def trivy(document: Mapping[str, Any], advisory: ScannerAdvisory) -> set[str]:
    """Return the purls that Trivy reports for a CycloneDX document."""
    system = _system(document)
    found = set()
    for row, purl in _components(document):
        name, version = str(row["name"]), str(row["version"])
        if purl.type == "pypi":
            if advisory.ecosystem == "PyPI" and canonicalize_name(name) == advisory.package:
                found |= _hit(str(row["purl"]), version, advisory)
            continue
        given = {
            item["name"].removeprefix("aquasecurity:trivy:"): item["value"]
            for item in row.get("properties", [])
            if item["name"].startswith("aquasecurity:trivy:")
        }
        source, upstream = given.get("SrcName", ""), given.get("SrcVersion", "")
        release, epoch = given.get("SrcRelease", ""), int(given.get("SrcEpoch", "0"))
        if source and upstream:
            version = f"{upstream}-{release}" if release else upstream
            version = f"{epoch}:{version}" if epoch else version
        release = f"Debian:{system[1].split('.')[0]}" if system and system[0] == "debian" else ""
        if (release, source or name) == (advisory.ecosystem, advisory.package):
            found |= _hit(str(row["purl"]), version, advisory)
    return found


def trivy_spdx(document: Mapping[str, Any], advisory: ScannerAdvisory) -> set[str]:
    """Return the purls that Trivy reports for an SPDX document."""
    system = next(
        (
            row
            for row in document["packages"]
            if row["SPDXID"].startswith("SPDXRef-OperatingSystem")
        ),
        None,
    )
    found = set()
    for row, locator in _spdx(document):
        purl = PackageURL.from_string(locator)
        name, version = str(row["name"]), str(row["versionInfo"])
        if purl.type == "deb" and str(row.get("sourceInfo", "")).startswith("built package from: "):
            name, _, version = (
                str(row["sourceInfo"]).removeprefix("built package from: ").partition(" ")
            )
        ecosystem = (
            "PyPI" if purl.type == "pypi" else f"Debian:{system['versionInfo']}" if system else ""
        )
        if ecosystem == advisory.ecosystem and name == advisory.package:
            found |= _hit(locator, version, advisory)
    return found


def osv_scanner(document: Mapping[str, Any], advisory: ScannerAdvisory) -> set[str]:
    """Return the purls that OSV-Scanner reports for a CycloneDX or an SPDX document."""
    rows = (
        [(PackageURL.from_string(locator).name, locator) for _, locator in _spdx(document)]
        if "packages" in document
        else [(str(row["name"]), str(row["purl"])) for row, _ in _components(document)]
    )
    found = set()
    for name, locator in rows:
        purl = PackageURL.from_string(locator)
        release = _qualifier(purl, "distro").rpartition("-")[2]
        if purl.type == "pypi":
            ecosystem, name = "PyPI", canonicalize_name(name)
        else:
            ecosystem = f"Debian:{release}" if purl.namespace == "debian" else ""
        if ecosystem == advisory.ecosystem and name == advisory.package:
            found |= _hit(locator, str(purl.version), advisory)
    return found


def _hit(locator: str, version: str, advisory: ScannerAdvisory) -> set[str]:
    if advisory.fixed is None:
        return {locator}
    if advisory.ecosystem == "PyPI":
        return {locator} if Version(version) < Version(advisory.fixed) else set()
    return {locator} if compare(version, advisory.fixed) < 0 else set()


def _system(document: Mapping[str, Any]) -> tuple[str, str] | None:
    return next(
        (
            (row["name"], row["version"])
            for row in document["components"]
            if row["type"] == "operating-system"
        ),
        None,
    )


def _components(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], PackageURL]]:
    for row in document["components"]:
        if "purl" in row:
            yield row, PackageURL.from_string(row["purl"])


def _spdx(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for row in document["packages"]:
        for reference in row.get("externalRefs", []):
            if reference["referenceType"] == "purl":
                yield row, reference["referenceLocator"]


def _qualifier(purl: PackageURL, name: str) -> str:
    qualifiers = purl.qualifiers
    return str(qualifiers.get(name, "")) if isinstance(qualifiers, dict) else ""
