"""The vulnerability report: two databases' formats, their dates, and what they do not cover."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence.samples import LOCKS, sample

from goldnode.core.errors import ImageError
from goldnode.evidence import vulnerabilities
from goldnode.evidence.contents import Contents, InstalledDeb
from goldnode.evidence.write import examine
from goldnode.oci.layout import Layout

TRACKER = {
    "glibc": {
        "CVE-2024-0001": {
            "releases": {
                "bookworm": {
                    "status": "resolved",
                    "fixed_version": "2.36-9+deb12u11",
                    "urgency": "high",
                }
            }
        },
        "CVE-2024-0002": {
            "releases": {
                "bookworm": {
                    "status": "resolved",
                    "fixed_version": "2.36-9+deb12u10",
                    "urgency": "high",
                }
            }
        },
        "CVE-2024-0003": {
            "releases": {
                "bookworm": {"status": "open", "urgency": "unimportant", "nodsa": "Minor issue"}
            }
        },
        "CVE-2024-0004": {
            "releases": {"bookworm": {"status": "resolved", "fixed_version": "0", "urgency": "low"}}
        },
        "CVE-2024-0005": {"releases": {"trixie": {"status": "open", "urgency": "high"}}},
        "CVE-2024-0006": {
            "releases": {"bookworm": {"status": "undetermined", "urgency": "not yet assigned"}}
        },
    },
    # The binary's version is 12.2.0-14+b1; it is the source's that counts.
    "gcc-12": {
        "CVE-2024-0007": {
            "releases": {
                "bookworm": {"status": "resolved", "fixed_version": "12.2.0-14", "urgency": "low"}
            }
        }
    },
}


def osv(name: str, ranges: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    ecosystem = more.pop("ecosystem", "PyPI")
    affected = {
        "package": {"ecosystem": ecosystem, "name": name},
        "ranges": ranges,
        "versions": more.pop("versions", []),
    }
    return {"id": f"GHSA-{name}", "modified": "2026-11-02T10:00:00Z", "affected": [affected]} | more


def span(*events: dict[str, str], kind: str = "ECOSYSTEM") -> list[dict[str, Any]]:
    return [{"type": kind, "events": list(events)}]


@pytest.fixture
def there(layout: Layout) -> Contents:
    return examine(layout, sample(layout), LOCKS)[1]


@pytest.fixture
def tracker(tmp_path: Path) -> Path:
    file = tmp_path / "tracker.json"
    file.write_text(json.dumps(TRACKER))
    os.utime(file, (1_800_000_000, 1_800_000_000))
    return file


def test_without_a_database_nothing_is_checked(there: Contents) -> None:
    found = vulnerabilities.report(there, [])
    assert found.line() == "not checked: no vulnerability database was named"
    data = found.data()
    assert (data["state"], data["summary"]["packages_not_checked"]) == ("not_checked", 5)
    assert data["subject"] == there.digest


def test_debian_tracker_gives_vulnerabilities_of_debs(there: Contents, tracker: Path) -> None:
    data = vulnerabilities.report(
        there, [vulnerabilities.load(f"debian={tracker}@2026-11-20")]
    ).data()
    rows = {
        (row["id"], row["package"], row["fixed"], row["severity"], row["note"])
        for row in data["vulnerabilities"]
    }
    assert rows == {
        ("CVE-2024-0001", "libc6", "2.36-9+deb12u11", "high", ""),
        ("CVE-2024-0003", "libc6", None, "unimportant", "no security advisory planned"),
        ("CVE-2024-0006", "libc6", None, "not yet assigned", "undetermined"),
    }
    assert data["summary"]["fix_available"] == 1
    assert (data["databases"][0]["date"], data["databases"][0]["date_from"]) == (
        "2026-11-20",
        "given",
    )
    assert data["no_record"] == ["python3 3.11.2-1+b1"]
    assert {row["package"] for row in data["not_checked"]} == {
        "numpy 2.0.0",
        "nvidia-cublas-cu12 12.4.5.8",
    }
    assert data["state"] == "partly_checked"


def test_date_taken_from_the_file_is_reported_as_such(there: Contents, tracker: Path) -> None:
    found = vulnerabilities.report(there, [vulnerabilities.load(f"debian={tracker}")])
    assert "debian of 2027-01-15 (the file's own date)" in found.line()


def test_a_release_that_the_database_does_not_have(there: Contents, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(
        json.dumps(
            {"glibc": {"CVE-1": {"releases": {"trixie": {"status": "open", "urgency": "high"}}}}}
        )
    )
    data = vulnerabilities.report(there, [vulnerabilities.load(f"debian={file}")]).data()
    assert data["state"] == "not_checked"
    assert {
        "package": "libc6 2.36-9+deb12u10",
        "why": "the Debian database does not cover bookworm",
    } in data["not_checked"]


@pytest.mark.parametrize(
    ("record", "hit", "fixed"),
    [
        (osv("numpy", span({"introduced": "0"}, {"fixed": "2.0.1"})), True, "2.0.1"),
        (osv("NumPy", span({"introduced": "1.0"}, {"fixed": "2.0.0"})), False, None),
        (
            osv(
                "numpy",
                span(
                    {"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "2.0"}, {"fixed": "2.1"}
                ),
            ),
            True,
            "2.1",
        ),
        (osv("numpy", span({"introduced": "0"}, {"last_affected": "1.9"})), False, None),
        (osv("numpy", span({"introduced": "0"}, {"last_affected": "2.0"})), True, None),
        (osv("numpy", [], versions=["2.0.0"]), True, None),
        (osv("numpy", span({"introduced": "0"}, {"fixed": "10.0"})), True, "10.0"),
        (osv("numpy", span({"introduced": "0"}), withdrawn="2026-01-01"), False, None),
        (osv("numpy", span({"introduced": "abc"}, kind="GIT")), False, None),
    ],
)
def test_osv_record_applies_only_within_its_ranges(
    there: Contents, tmp_path: Path, record: dict[str, Any], hit: bool, fixed: str | None
) -> None:
    file = tmp_path / "osv.json"
    file.write_text(json.dumps([record, osv("other", span({"introduced": "0"}))]))
    data = vulnerabilities.report(there, [vulnerabilities.load(f"osv={file}")]).data()
    assert [row["fixed"] for row in data["vulnerabilities"]] == ([fixed] if hit else [])
    assert (data["databases"][0]["date"], data["databases"][0]["date_from"]) == (
        "2026-11-02",
        "its newest record",
    )
    assert "nvidia-cublas-cu12 12.4.5.8" in data["no_record"]
    assert {
        "package": "libc6 2.36-9+deb12u10",
        "why": "the OSV database does not cover Debian:12",
    } in data["not_checked"]


def test_osv_of_debian_and_severity(there: Contents, tmp_path: Path) -> None:
    more = {
        "ecosystem": "Debian:12",
        "database_specific": {"severity": "CRITICAL"},
        "aliases": ["CVE-2"],
    }
    file = tmp_path / "osv.jsonl"
    file.write_text(
        json.dumps(osv("glibc", span({"introduced": "0"}, {"fixed": "2.36-9+deb12u11"}), **more))
        + "\n"
    )
    (row,) = vulnerabilities.report(there, [vulnerabilities.load(f"osv={file}")]).data()[
        "vulnerabilities"
    ]
    assert (row["package"], row["severity"], row["aliases"]) == ("libc6", "critical", ["CVE-2"])


def test_a_version_that_cannot_be_compared(there: Contents, tmp_path: Path) -> None:
    file = tmp_path / "osv.json"
    file.write_text(json.dumps(osv("numpy", span({"introduced": "not a version"}))))
    data = vulnerabilities.report(there, [vulnerabilities.load(f"osv={file}")]).data()
    assert {
        "package": "numpy 2.0.0",
        "why": "version 2.0.0 cannot be compared with the OSV database's",
    } in data["not_checked"]


def test_osv_archive_and_directory_give_the_same_result(there: Contents, tmp_path: Path) -> None:
    record = json.dumps(osv("numpy", span({"introduced": "0"})))
    (tmp_path / "all").mkdir()
    (tmp_path / "all/GHSA.json").write_text(record)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("GHSA.json", record)
    found = [
        vulnerabilities.report(there, [vulnerabilities.load(f"osv={tmp_path / name}")]).data()
        for name in ("all", "all.zip")
    ]
    assert found[0]["vulnerabilities"] == found[1]["vulnerabilities"] != []
    assert found[0]["databases"][0]["sha256"] == found[1]["databases"][0]["sha256"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("debain=x", 'Use "debian"'),
        ("debian", "expected KIND=FILE"),
        ("debian=absent.json", "does not exist"),
        ("debian=list.json", "no Debian security tracker JSON"),
        ("osv=broken.json", "cannot be read"),
        ("osv=plain.json", "no OSV record"),
        ("osv=empty", "no OSV record"),
    ],
)
def test_invalid_vulnerability_source_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "plain.json").write_text('{"a": 1}')
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError) as caught:
        vulnerabilities.load(text, tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("source", "source_version", "version", "hit"),
    [
        ("linux-signed-amd64", "6.1.190+1", "6.1.190-1", True),
        ("linux-signed-amd64", "6.1.192+2", "6.1.192-2", False),
        ("linux", "6.1.190-1", "6.1.190-1", True),
        ("grub-efi-amd64-signed", "1+2.06+13+deb12u1", "1+2.06+13+deb12u1", True),
    ],
)
def test_signed_kernel_is_that_of_the_source_that_trackers_list(
    there: Contents, tmp_path: Path, source: str, source_version: str, version: str, hit: bool
) -> None:
    """Their sources only add signatures, and no tracker lists them: a disk's kernel had no record."""
    row = {"status": "resolved", "fixed_version": "6.1.192-1", "urgency": "high"}
    grub = {"CVE-2026-1002": {"releases": {"bookworm": row | {"fixed_version": "2.06-13+deb12u2"}}}}
    rows = {"linux": {"CVE-2026-1001": {"releases": {"bookworm": row}}}, "grub2": grub}
    (tmp_path / "tracker.json").write_text(json.dumps(rows))
    item = InstalledDeb("linux-image", version, "amd64", source, source_version)
    debian = vulnerabilities.load(f"debian={tmp_path / 'tracker.json'}")
    record = osv("linux", span({"introduced": "0"}, {"fixed": "6.1.192-1"}), ecosystem="Debian:12")
    (tmp_path / "osv.json").write_text(json.dumps(record))
    assert [len(rows) for rows in [debian.check(item, there)] if isinstance(rows, list)] == [hit]
    if "linux" in source:
        answer = vulnerabilities.load(f"osv={tmp_path / 'osv.json'}").check(item, there)
        assert [len(rows) for rows in [answer] if isinstance(rows, list)] == [hit]


def test_ubuntu_is_compared_by_its_name_in_osv(there: Contents, tmp_path: Path) -> None:
    """Ubuntu's long-term releases have a suffix there, and Debian's order of versions."""
    spans = span({"introduced": "0"}, {"fixed": "8.5.0-2ubuntu10.1"})
    record = osv("curl", spans, ecosystem="Ubuntu:24.04:LTS")
    (tmp_path / "osv.json").write_text(json.dumps(record))
    noble = dataclasses.replace(there, os={"ID": "ubuntu", "VERSION_ID": "24.04"})
    database = vulnerabilities.load(f"osv={tmp_path / 'osv.json'}")
    old, new = (
        database.check(InstalledDeb("curl", version, "amd64", "curl", version), noble)
        for version in ("8.5.0-2ubuntu10", "8.5.0-2ubuntu10.1")
    )
    assert (len(old), len(new)) == (1, 0)
