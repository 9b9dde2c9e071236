"""Reports of grype, Trivy and OSV-Scanner as evidence. The reports are simulated (`scanner_outputs`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence.samples import LOCKS, sample
from tests.unit.evidence.scanner_outputs import (
    grype_output,
    osv_output,
    osv_package,
    trivy_output,
)

from goldnode.core.errors import ImageError
from goldnode.evidence import vulnerabilities
from goldnode.evidence.contents import Contents
from goldnode.evidence.scan_reports import ScanReport, load_report
from goldnode.evidence.write import examine
from goldnode.oci.layout import Layout, OciImage


@pytest.fixture
def image(layout: Layout) -> tuple[OciImage, Contents]:
    return examine(layout, sample(layout), LOCKS)


def load(tmp_path: Path, kind: str, document: Any, day: str = "") -> ScanReport:
    file = tmp_path / f"{kind}.json"
    file.write_text(json.dumps(document))
    return load_report(f"{kind}={file}{day}")


def rows(data: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Return id, package, fix, severity and note of every finding."""
    return {
        (row["id"], row["package"], row["fixed"], row["severity"], row["note"])
        for row in data["vulnerabilities"]
    }


def test_grype_report_gives_its_vulnerabilities(
    image: tuple[OciImage, Contents], tmp_path: Path
) -> None:
    found = load(tmp_path, "grype", grype_output(image[0].digest))
    found.check_subject(*image)
    data = vulnerabilities.report(image[1], [found]).data()
    assert rows(data) == {
        ("CVE-2024-0001", "libc6", "2.36-9+deb12u11", "critical", ""),
        ("GHSA-aaaa-bbbb-cccc", "numpy", None, "medium", "not going to be fixed"),
        ("CVE-2024-0010", "stdlib", None, "low", ""),  # the SBOM does not list it, and it counts
    }
    (database,) = data["databases"]
    assert (database["kind"], database["date"], database["date_from"]) == (
        "grype",
        "2026-11-20",
        "the report",
    )
    assert (database["version"], database["ignored"], len(database["sha256"])) == ("0.99.0", 1, 64)
    assert data["state"] == "checked"
    assert [
        (row["ecosystem"], row["checked"], row["scanned"], row["known"]) for row in data["coverage"]
    ] == [
        ("Debian:12", 3, True, None),
        ("PyPI", 2, True, None),
    ]


@pytest.mark.parametrize(
    ("changes", "uncovered"),
    [
        ({"distro": {"name": "debian", "version": "11"}}, "Debian:12"),
        ({"distro": {}}, "Debian:12"),
        ({"descriptor": {"name": "grype", "db": {"providers": {"debian": {}}}}}, "PyPI"),
        ({"descriptor": {"name": "grype", "db": {"providers": {"github": {}}}}}, "Debian:12"),
    ],
)
def test_grype_covers_what_its_database_has(
    image: tuple[OciImage, Contents], tmp_path: Path, changes: dict[str, Any], uncovered: str
) -> None:
    found = load(tmp_path, "grype", grype_output(image[0].digest, **changes))
    data = vulnerabilities.report(image[1], [found]).data()
    assert data["state"] == "partly_checked"
    assert [row["ecosystem"] for row in data["coverage"] if not row["databases"]] == [uncovered]
    what = "wheels" if uncovered == "PyPI" else uncovered
    assert f"the report of grype does not cover {what}" in {
        row["why"] for row in data["not_checked"]
    }
    # A finding about a package that is not covered is no less a finding.
    assert {"CVE-2024-0001", "GHSA-aaaa-bbbb-cccc"} <= {
        row["id"] for row in data["vulnerabilities"]
    }


def test_trivy_report_gives_its_vulnerabilities(
    image: tuple[OciImage, Contents], tmp_path: Path
) -> None:
    config = image[0].manifest["config"]["digest"]
    found = load(tmp_path, "trivy", trivy_output(config), "@2026-11-20")
    found.check_subject(*image)
    data = vulnerabilities.report(image[1], [found]).data()
    assert rows(data) == {
        ("CVE-2024-0001", "libc6", "2.36-9+deb12u11", "critical", ""),
        ("CVE-2024-0003", "libgcc-s1", None, "low", "will not fix"),
    }
    assert data["databases"][0]["date_from"] == "given"
    assert data["state"] == "checked"


def test_trivy_states_no_date_of_its_database_but_from_a_server(
    image: tuple[OciImage, Contents], tmp_path: Path
) -> None:
    alone = load(tmp_path, "trivy", trivy_output("sha256:1"))
    assert (alone.origin.date, alone.origin.date_from) == ("", "nothing")
    assert "trivy without a date" in vulnerabilities.report(image[1], [alone]).line()
    server = {
        "Version": "0.70.0",
        "Server": {"VulnerabilityDB": {"UpdatedAt": "2026-11-19T06:11:01Z"}},
    }
    assert (
        load(tmp_path, "trivy", trivy_output("sha256:1", Trivy=server)).origin.date == "2026-11-19"
    )


def test_trivy_without_a_result_for_wheels_covers_none(
    image: tuple[OciImage, Contents], tmp_path: Path
) -> None:
    document = trivy_output("sha256:1")
    found = load(tmp_path, "trivy", document | {"Results": document["Results"][:1]})
    assert (found.covers("deb", image[1]), found.covers("wheel", image[1])) == (None, 0)


def test_osv_scanner_covers_the_packages_that_it_lists(
    image: tuple[OciImage, Contents], tmp_path: Path
) -> None:
    document = osv_output(
        osv_package("Debian:12", "gcc-12", "12.2.0-14", "DEBIAN-1"),
        osv_package("Debian:12", "libc6", "2.36-9+deb12u10"),
        osv_package("PyPI", "numpy", "2.0.0", "PYSEC-1"),
    )
    found = load(tmp_path, "osv-scanner", document)
    found.check_subject(*image)
    data = vulnerabilities.report(image[1], [found]).data()
    # The binary package libgcc-s1 is checked by its source package gcc-12.
    assert rows(data) == {
        ("DEBIAN-1", "gcc-12", "99", "9.1", ""),
        ("PYSEC-1", "numpy", "99", "9.1", ""),
    }
    assert {row["package"] for row in data["not_checked"]} == {
        "python3 3.11.2-1+b1",
        "nvidia-cublas-cu12 12.4.5.8",
    }
    assert data["databases"][0]["date"] == ""


@pytest.mark.parametrize("kind", ["grype", "trivy", "osv-scanner"])
def test_report_about_another_image_is_refused(
    image: tuple[OciImage, Contents], tmp_path: Path, kind: str
) -> None:
    document = {
        "grype": grype_output("sha256:1"),
        "trivy": trivy_output("sha256:1"),
        "osv-scanner": osv_output(osv_package("PyPI", "requests", "2.0")),
    }[kind]
    with pytest.raises(
        ImageError, match=rf"the report of {kind} (is about sha256:1|lists requests)"
    ):
        load(tmp_path, kind, document).check_subject(*image)


def test_report_that_names_no_image_is_refused(
    image: tuple[OciImage, Contents], tmp_path: Path
) -> None:
    document = grype_output("", source={"type": "sbom-file", "target": "image.spdx.json"})
    with pytest.raises(ImageError, match="is about no image that it names"):
        load(tmp_path, "grype", document).check_subject(*image)


@pytest.mark.parametrize(
    ("kind", "document", "why"),
    [
        ("grype", [], "it is no JSON object"),
        ("grype", {"matches": []}, "it has no 'descriptor'"),
        ("grype", {"descriptor": {"name": "syft"}}, "it is by syft"),
        ("grype", {"descriptor": {"name": "grype"}, "matches": [{}]}, "it has no 'artifact'"),
        ("trivy", {"SchemaVersion": 1}, "its SchemaVersion is 1, expected 2"),
        ("trivy", {"SchemaVersion": 2, "Results": [{"Vulnerabilities": ["x"]}]}, "cannot be read"),
        ("osv-scanner", {}, "it has no 'results'"),
    ],
)
def test_report_of_another_shape_is_refused(
    tmp_path: Path, kind: str, document: Any, why: str
) -> None:
    with pytest.raises(ImageError) as caught:
        load(tmp_path, kind, document)
    assert why in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "says"),
    [("gripe=x", 'Use "grype"'), ("grype=absent.json", "the scanner's report does not exist")],
)
def test_report_that_is_not_there(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ImageError) as caught:
        load_report(text, tmp_path)
    assert says in str(caught.value)
