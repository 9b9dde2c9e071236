"""Reports of scanners about the sample image, SIMULATED: in the shape of their published sources and examples.

grype: grype/presenter/json/testdata/snapshot/TestJsonImgsPresenter.golden, grype/vulnerability/provider.go and
cmd/grype/cli/commands/root.go (`db`), https://github.com/anchore/grype at 4562c55c.
Trivy: integration/testdata/debian-buster.json.golden and pip.json.golden, https://github.com/aquasecurity/trivy
at dc3c56ee.
OSV-Scanner: pkg/models/results.go and its page on output formats, https://github.com/google/osv-scanner at add393a2.
"""

from __future__ import annotations

from typing import Any


def grype_output(digest: str, **changes: Any) -> dict[str, Any]:
    """Return a report of grype about a CycloneDX document of an image."""
    found: dict[str, Any] = {
        "matches": [
            {
                "vulnerability": {
                    "id": "CVE-2024-0001",
                    "dataSource": "https://security-tracker.debian.org/tracker/CVE-2024-0001",
                    "severity": "Critical",
                    "fix": {"versions": ["2.36-9+deb12u11"], "state": "fixed"},
                    "advisories": [],
                },
                "relatedVulnerabilities": [],
                "matchDetails": [{"type": "exact-indirect-match", "matcher": "dpkg-matcher"}],
                "artifact": {
                    "name": "libc6",
                    "version": "2.36-9+deb12u10",
                    "type": "deb",
                    "purl": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12&upstream=glibc",
                    "upstreams": [{"name": "glibc"}],
                },
            },
            {
                "vulnerability": {
                    "id": "GHSA-aaaa-bbbb-cccc",
                    "severity": "Medium",
                    "fix": {"versions": [], "state": "wont-fix"},
                },
                "relatedVulnerabilities": [{"id": "CVE-2024-0009"}],
                "matchDetails": [],
                "artifact": {"name": "numpy", "version": "2.0.0", "type": "python"},
            },
            {
                "vulnerability": {
                    "id": "CVE-2024-0010",
                    "severity": "Low",
                    "fix": {"versions": []},
                },
                "artifact": {"name": "stdlib", "version": "go1.22", "type": "go-module"},
            },
        ],
        "ignoredMatches": [{"vulnerability": {}, "artifact": {}, "appliedIgnoreRules": []}],
        "source": {
            "type": "image",
            "target": {"manifestDigest": digest, "imageID": "", "repoDigests": []},
        },
        "distro": {"name": "debian", "version": "12", "idLike": []},
        "descriptor": {
            "name": "grype",
            "version": "0.99.0",
            "db": {
                "status": {"schemaVersion": "v6.0.3", "built": "2026-11-20T01:31:43Z"},
                "providers": {
                    "debian": {"captured": "2026-11-20T00:30:00Z", "input": "xxh64:1"},
                    "github": {"captured": "2026-11-20T00:31:00Z", "input": "xxh64:2"},
                },
            },
            "timestamp": "2026-11-21T10:00:00Z",
        },
    }
    return found | changes


def trivy_output(config: str, **changes: Any) -> dict[str, Any]:
    """Return a report of Trivy about an image with this configuration."""
    found: dict[str, Any] = {
        "SchemaVersion": 2,
        "Trivy": {"Version": "0.70.0"},
        "CreatedAt": "2026-11-21T10:00:00Z",
        "ArtifactName": "image.cdx.json",
        "ArtifactType": "cyclonedx",
        "Metadata": {"OS": {"Family": "debian", "Name": "12"}, "ImageID": config},
        "Results": [
            {
                "Target": "image.cdx.json (debian 12)",
                "Class": "os-pkgs",
                "Type": "debian",
                "Vulnerabilities": [
                    {
                        "VulnerabilityID": "CVE-2024-0001",
                        "VendorIDs": ["DSA-1-1"],
                        "PkgID": "libc6@2.36-9+deb12u10",
                        "PkgName": "libc6",
                        "InstalledVersion": "2.36-9+deb12u10",
                        "FixedVersion": "2.36-9+deb12u11",
                        "Status": "fixed",
                        "Severity": "CRITICAL",
                    },
                    {
                        "VulnerabilityID": "CVE-2024-0003",
                        "PkgName": "libgcc-s1",
                        "InstalledVersion": "12.2.0-14+b1",
                        "Status": "will_not_fix",
                        "Severity": "LOW",
                    },
                ],
            },
            {
                "Target": "Python",
                "Class": "lang-pkgs",
                "Type": "python-pkg",
                "Packages": [{"Name": "numpy"}],
            },
        ],
    }
    return found | changes


def osv_output(*packages: dict[str, Any]) -> dict[str, Any]:
    """Return a report of OSV-Scanner (`--all-packages`) about an SPDX document."""
    return {
        "results": [
            {"source": {"path": "/image.spdx.json", "type": "sbom"}, "packages": list(packages)},
        ],
        "experimental_config": {"licenses": {"summary": False, "allowlist": None}},
    }


def osv_package(ecosystem: str, name: str, version: str, *ids: str) -> dict[str, Any]:
    """Return one package of such a report, with vulnerabilities that version 99 fixes."""
    records = [
        {
            "id": one,
            "aliases": [f"CVE-{one}"],
            "affected": [
                {
                    "package": {"ecosystem": ecosystem, "name": name},
                    "ranges": [
                        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99"}]}
                    ],
                }
            ],
        }
        for one in ids
    ]
    groups = [{"ids": [one], "aliases": [one, f"CVE-{one}"], "max_severity": "9.1"} for one in ids]
    package = {"name": name, "version": version, "ecosystem": ecosystem}
    return {"package": package, **({"vulnerabilities": records, "groups": groups} if ids else {})}
