"""Vectors: which components the scanners' own rules match (`scanner_rules`, a labelled model of them)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.unit.evidence.samples import OS_RELEASE, image
from tests.unit.evidence.scanner_rules import (
    SOURCES,
    ScannerAdvisory,
    grype,
    osv_scanner,
    trivy,
    trivy_spdx,
)

from goldnode.evidence.cyclonedx_bom import cyclonedx
from goldnode.evidence.sbom import spdx
from goldnode.evidence.write import examine
from goldnode.oci.layout import Layout

Document = Mapping[str, Any]
Scanner = Callable[[Document, ScannerAdvisory], set[str]]

# Binary package, its version, and the field `Source` of dpkg, as in Debian 12.
DEBS = {
    "libssl3": ("3.0.11-1~deb12u2", "openssl"),
    "libgcc-s1": ("12.2.0-14", "gcc-12"),
    "libstdc++6": ("12.2.0-14+b1", "gcc-12 (12.2.0-14)"),
    "libcrypt1": ("1:4.4.33-2", "libxcrypt"),
    "gcc": ("4:12.2.0-3", "gcc-defaults (1.203)"),
    "libpython3-stdlib": ("3.11.2-1+b1", "python3-defaults (3.11.2-1)"),
    "libdb5.3": ("5.3.28+dfsg2-1", "db5.3"),
    "base-files": ("12.4+deb12u5", ""),
    "bash": ("5.2.15-2+b2", "bash (5.2.15-2)"),
    "libmagic1": ("1:5.44-3", "file"),
}
# Source package, the version that fixes it (None: no fix), and the binary packages that have the defect.
VECTORS = [
    ("openssl", "3.0.13-1~deb12u1", {"libssl3"}),
    ("openssl", "3.0.11-1~deb12u2", set()),
    ("openssl", None, {"libssl3"}),
    ("libssl3", "9", {"libssl3"}),  # the tracker has no such source, but a scanner searches for it
    ("gcc-12", "12.2.0-14+deb12u1", {"libgcc-s1", "libstdc++6"}),
    ("gcc-12", "12.2.0-14", set()),
    ("libxcrypt", "1:4.4.34-1", {"libcrypt1"}),
    ("libxcrypt", "4.4.34-1", set()),  # without the epoch it is older than what is installed
    ("gcc-defaults", "1.204", {"gcc"}),  # the version of the binary, 4:12.2.0-3, would hide it
    ("gcc-defaults", "1.203", set()),
    ("python3-defaults", "3.11.2-1", set()),
    ("python3-defaults", "3.11.2-2", {"libpython3-stdlib"}),
    ("db5.3", None, {"libdb5.3"}),
    ("base-files", "12.4+deb12u6", {"base-files"}),
    ("bash", "5.2.15-3", {"bash"}),
    ("bash", "5.2.15-2", set()),
    ("file", "1:5.45-1", {"libmagic1"}),
    ("absent", None, set()),
]


def _status() -> str:
    return "\n".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n"
        + (f"Source: {source}\n" if source else "")
        for name, (version, source) in DEBS.items()
    )


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Document, Document]:
    """CycloneDX and SPDX of an image with these packages and a wheel."""
    layout = Layout(tmp_path_factory.mktemp("store"))
    files = {
        "etc/os-release": OS_RELEASE,
        "var/lib/dpkg/status": _status(),
        "usr/local/lib/python3.11/dist-packages/Py_Torch-2.0.0.dist-info/METADATA": (
            "Name: Py_Torch\nVersion: 2.0.0\n\n"
        ),
    }
    found, there = examine(layout, image(layout, "x:1", [files]))
    return json.loads(cyclonedx(found, there)), json.loads(spdx(found, there))


def names(purls: set[str]) -> set[str]:
    """Return the names of the binary packages among purls."""
    return {
        purl.split("/")[-1].split("@")[0].replace("%2B", "+")
        for purl in purls
        if "arch=source" not in purl
    }


@pytest.mark.parametrize("scanner", [grype, trivy])
@pytest.mark.parametrize(("source", "fixed", "hit"), VECTORS)
def test_cyclonedx_matches_by_source_package(
    documents: tuple[Document, Document],
    scanner: Scanner,
    source: str,
    fixed: str | None,
    hit: set[str],
) -> None:
    if source == "libssl3" and scanner is trivy:
        hit = set()  # Trivy searches for the source only
    assert names(scanner(documents[0], ScannerAdvisory("Debian:12", source, fixed))) == hit
    assert scanner(documents[0], ScannerAdvisory("Debian:11", source, fixed)) == set()


@pytest.mark.parametrize(("source", "fixed", "hit"), VECTORS)
def test_spdx_matches_by_source_package(
    documents: tuple[Document, Document], source: str, fixed: str | None, hit: set[str]
) -> None:
    advisory = ScannerAdvisory("Debian:12", source, fixed)
    assert names(trivy_spdx(documents[1], advisory)) == (set() if source == "libssl3" else hit)
    # OSV-Scanner reports the source package itself, and a binary package of the same name.
    found = osv_scanner(documents[1], advisory)
    assert bool(found) == bool(hit)
    if source in {"openssl", "gcc-12", "gcc-defaults"} and hit:
        assert len(found) == 1
        assert f"/{source}@" in found.pop()


def test_osv_scanner_finds_no_source_package_in_cyclonedx(
    documents: tuple[Document, Document],
) -> None:
    assert osv_scanner(documents[0], ScannerAdvisory("Debian:12", "openssl", None)) == set()


@pytest.mark.parametrize("scanner", [grype, trivy, osv_scanner])
@pytest.mark.parametrize(("fixed", "hit"), [("2.0.1", True), ("2.0.0", False), (None, True)])
def test_wheels_match_by_their_normalized_name(
    documents: tuple[Document, Document], scanner: Scanner, fixed: str | None, hit: bool
) -> None:
    found = scanner(documents[0], ScannerAdvisory("PyPI", "py-torch", fixed))
    assert found == ({"pkg:pypi/py-torch@2.0.0"} if hit else set())


def test_without_the_fields_that_scanners_read_debs_are_missed(
    documents: tuple[Document, Document],
) -> None:
    """The vectors are able to fail: the same document as an earlier version of goldnode wrote it."""
    bare = json.loads(json.dumps(documents[0]))
    for row in bare["components"]:
        row["properties"] = []
        if "purl" in row:
            row["purl"] = row["purl"].split("&upstream=")[0]
    advisory = ScannerAdvisory("Debian:12", "openssl", None)
    assert (grype(bare, advisory), trivy(bare, advisory)) == (set(), set())


def test_a_binary_package_names_its_source_in_spdx(documents: tuple[Document, Document]) -> None:
    packages = {row["SPDXID"]: row for row in documents[1]["packages"]}
    made = {
        packages[row["spdxElementId"]]["name"]: packages[row["relatedSpdxElement"]]
        for row in documents[1]["relationships"]
        if row["relationshipType"] == "GENERATED_FROM"
    }
    assert set(made) == set(DEBS)
    assert (made["gcc"]["name"], made["gcc"]["versionInfo"]) == ("gcc-defaults", "1.203")
    assert made["libgcc-s1"] is made["libstdc++6"]
    (reference,) = made["libssl3"]["externalRefs"]
    assert reference["referenceLocator"] == (
        "pkg:deb/debian/openssl@3.0.11-1~deb12u2?arch=source&distro=debian-12"
    )


def test_every_rule_has_a_source_at_a_commit() -> None:
    assert set(SOURCES) == {"grype", "trivy", "osv-scanner"}
    for urls in SOURCES.values():
        for url in urls:
            assert url.startswith("https://github.com/")
            assert "#L" in url
