"""Samples in the formats of trackers and vendors. They are made here: texts are not theirs, shapes are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

CVE = "CVE-2026-12345"


def tracker(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return a tracker's JSON: source -> vulnerability -> release -> row."""
    return json.dumps(
        {
            source: {
                cve: {"description": "sample", "scope": "local", "releases": releases}
                for cve, releases in issues.items()
            }
            for source, issues in rows.items()
        }
    )


def csaf_of_packages(rows: Mapping[str, tuple[str, str, str]]) -> bytes:
    """Return CSAF with package URLs: vulnerability -> source package, a version that is affected, and the fixed one."""
    products, vulnerabilities = [], []
    for cve, (package, affected, fixed) in rows.items():
        for version in (affected, fixed):
            product = _version(version, f"{package} {version}", f"{cve} {version}")
            purl = f"pkg:deb/debian/{package}@{version}?distro=bookworm"
            product["product"]["product_identification_helper"] = {"purl": purl}
            products.append(product)
        status = {"known_affected": [f"{cve} {affected}"], "fixed": [f"{cve} {fixed}"]}
        vulnerabilities.append({"cve": cve, "product_status": status})
    return _document([_system("linux", *products)], vulnerabilities)


def oval_debian(rows: Mapping[str, tuple[str, str]], release: str = "12") -> bytes:
    """Return OVAL in the shape of Debian's: vulnerability -> source package and fixed version."""
    definitions = "".join(
        f"""<definition class="vulnerability" id="oval:org.debian:def:{number}"><metadata><title>{cve} {package}</title>
        <reference source="CVE" ref_id="{cve}"/><description>sample</description></metadata>
        <criteria operator="AND"><criterion test_ref="r" comment="Debian {release} is installed"/><criteria operator="OR"><criteria operator="AND">
        <criterion test_ref="a" comment="all architecture"/>
        <criterion test_ref="t" comment="{package} DPKG is earlier than {fixed}"/></criteria></criteria></criteria></definition>"""
        for number, (cve, (package, fixed)) in enumerate(rows.items(), 1)
    )
    return _oval(definitions)


def oval_ubuntu(*definitions: tuple[str, Sequence[str]], codename: str = "noble") -> bytes:
    """Return OVAL in the shape of Ubuntu's: title and comments of each definition."""
    texts = []
    for number, (title, comments) in enumerate(definitions, 1):
        rows = "".join(f'<criterion test_ref="t" comment="{comment}"/>' for comment in comments)
        texts.append(
            f"""<definition class="vulnerability" id="oval:com.ubuntu.{codename}:def:{number}"><metadata><title>{title}</title>
            <description>sample</description><advisory><severity>High</severity>
            <cve priority="medium">CVE-2026-7777</cve></advisory></metadata><criteria>{rows}</criteria></definition>"""
        )
    return _oval("".join(texts))


def _oval(definitions: str) -> bytes:
    space = "http://oval.mitre.org/XMLSchema/"
    text = f"""<?xml version="1.0"?><oval_definitions xmlns="{space}oval-definitions-5" xmlns:oval="{space}oval-common-5">
    <generator><oval:timestamp>2026-11-27T03:00:00</oval:timestamp></generator><definitions>{definitions}</definitions></oval_definitions>"""
    return text.encode()


def osv_record(
    name: str, package: str, events: Sequence[Mapping[str, str]], ecosystem: str = "Debian:12"
) -> bytes:
    """Return a record as Debian and Ubuntu publish them: the CVE is in `upstream`."""
    record = {
        "id": name,
        "modified": "2026-11-20T00:00:00Z",
        "upstream": ["CVE-2026-1001"],
        "severity": [{"type": "Ubuntu", "score": "high"}],
        "affected": [
            {
                "package": {"ecosystem": ecosystem, "name": package},
                "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
            }
        ],
    }
    return json.dumps(record).encode()


def _version(line: str, text: str, id_: str) -> dict[str, Any]:
    return {
        "category": "product_version",
        "name": line,
        "product": {"name": text, "product_id": id_},
    }


def _system(name: str, *products: dict[str, Any]) -> dict[str, Any]:
    return {"category": "architecture", "name": name, "branches": list(products)}


def _document(systems: Sequence[Any], vulnerabilities: Sequence[Any]) -> bytes:
    head = {
        "csaf_version": "2.0",
        "tracking": {"id": "5703", "current_release_date": "2025-10-09T00:00:00Z"},
    }
    tree = {"branches": [{"category": "vendor", "name": "NVIDIA", "branches": list(systems)}]}
    return json.dumps(
        {"document": head, "product_tree": tree, "vulnerabilities": list(vulnerabilities)}
    ).encode()


def bulletin() -> bytes:
    """Return a bulletin on the driver in the shape of NVIDIA's: branches of systems, versions as products."""
    systems = [
        _system(
            "Linux(R570)",
            _version("GeForce", "All driver versions prior to 570.195.05", "g570a"),
            _version("Tesla", "All driver versions prior to 570.195.03", "t570a"),
            _version("Tesla", "570.195.03", "t570f"),
        ),
        _system(
            "Linux(R535)", _version("Tesla", "All driver versions prior to 535.274.02", "t535a")
        ),
        _system(
            "Linux(R535 vGPU 16)",
            _version(
                "Guest driver",
                "535.261.03(All versions prior to and including vGPU 16.11)",
                "v535a",
            ),
            _version("Guest driver", "575.274.02(vGPU 16.12)", "v535f"),
        ),
        _system("Windows(R580)", _version("Tesla", "All driver versions prior to 581.42", "w580a")),
    ]
    score = [{"cvss_v3": {"baseScore": 7.0, "baseSeverity": "HIGH"}}]
    affected = {"known_affected": ["g570a", "t570a", "t535a", "v535a"], "fixed": ["t570f", "v535f"]}
    return _document(
        systems,
        [
            {"cve": "CVE-2025-23280", "product_status": affected, "scores": score},
            {"cve": "CVE-2025-23309", "product_status": {"known_affected": ["w580a"]}},
        ],
    )


def toolkit_bulletin(
    *, fixed: bool = True, status: Mapping[str, Any] | None = None, label: str = ""
) -> bytes:
    """Return a bulletin on the container toolkit in the shape of NVIDIA's."""
    text = "All versions up to and including 1.17.7 (CDI mode only for versions prior to 1.17.5)"
    line = "NVIDIA Container Toolkit"
    system = _system("All", _version(line, text, "toolkit"), _version(line, "1.17.8", "fixed"))
    stated = status or {"known_affected": ["toolkit"], **({"fixed": ["fixed"]} if fixed else {})}
    flags = [{"label": label, "product_ids": ["toolkit"]}] if label else []
    return _document(
        [system], [{"cve": "CVE-2025-23266", "product_status": stated, "flags": flags}]
    )
