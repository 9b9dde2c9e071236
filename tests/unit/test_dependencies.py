"""What goldnode requires: lower bounds against advisories, the locks of users, licences and decisions."""

from __future__ import annotations

import datetime as dt
import tomllib

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from release import dependencies, locked, sbom

PROJECT = tomllib.loads((dependencies.ROOT / "pyproject.toml").read_text())["project"]
ALL_LOCK = dependencies.ROOT / "requirements/all.lock"
DEVELOPMENT = ("all", "dev", "docs", "pins")
GROUPS = {
    "": PROJECT["dependencies"],
    **{
        name: rows
        for name, rows in PROJECT["optional-dependencies"].items()
        if name not in DEVELOPMENT
    },
}


def requirements() -> list[tuple[str, Requirement]]:
    """Return (extra, requirement) of every line that users install from."""
    return [(extra, Requirement(line)) for extra, lines in GROUPS.items() for line in lines]


def installs(extra: str) -> set[str]:
    """Return the packages of an installation with one extra."""
    return set(sbom.closure(("", extra)))


def test_lower_bounds_exclude_versions_with_advisories() -> None:
    fixed: dict[str, Version] = {}
    for row in dependencies.advisories():
        fixed[row.package] = max(row.fixed, fixed.get(row.package, row.fixed))
    assert len(fixed) >= 10
    missing = []
    for extra in GROUPS:
        bounds: dict[str, Version | None] = {
            canonicalize_name(row.name): dependencies.floor(row)
            for name, row in requirements()
            if name in ("", extra)
        }
        for package in installs(extra) & fixed.keys():
            bound = bounds.get(package)
            if bound is None or bound < fixed[package]:
                missing.append(f"{extra or 'base'}: {package}>={fixed[package]}, not {bound}")
    assert missing == []


def test_advisories_have_a_source() -> None:
    rows = [(row.id, row.source) for row in dependencies.advisories()]
    rows += [(row.id, row.source) for row in dependencies.open_advisories()]
    for name, source in rows:
        assert source.startswith("https://"), name
        assert name.startswith(("CVE-", "GHSA-", "PYSEC-")), name
    for row in dependencies.advisories():
        assert type(row.released) is dt.date, row


def test_advisories_are_about_packages_that_users_install() -> None:
    names = {name for name, _ in locked.pins(ALL_LOCK.read_text())}
    assert {row.package for row in dependencies.advisories()} <= names


def test_an_open_advisory_affects_the_locked_version() -> None:
    """And has a decision. Where a lock has a fixed version, its row moves to `advisories`."""
    rows = locked.pins(ALL_LOCK.read_text())
    for row in dependencies.open_advisories():
        versions = [version for package, version in rows if package == row.package]
        assert versions, row
        assert all(row.affected.contains(version) for version in versions), row
        assert row.decided.startswith(("stays", "goes")), row


@pytest.mark.parametrize("name", locked.LOCKS)
def test_a_lock_of_users_satisfies_pyproject(name: str) -> None:
    """Of a Python 3.11 on Linux: lines for others have markers."""
    text = (dependencies.ROOT / f"requirements/{name}.lock").read_text()
    rows = locked.pins(text)
    assert all(rows.values()), "a package without hashes"
    versions: dict[str, set[Version]] = {}
    for package, version in rows:
        versions.setdefault(package, set()).add(Version(version))
    for extra, row in requirements():
        here = row.marker is None or Marker(str(row.marker)).evaluate({"python_version": "3.11"})
        if here and (name == "all" or not extra):
            found = versions.get(canonicalize_name(row.name), set())
            assert any(row.specifier.contains(one) for one in found), f"{name}.lock: {row}"
    again = "write it again: python -m release.locked"
    assert text.startswith("# Written by `python -m release.locked`"), again


def test_the_lock_has_what_the_tests_ran_with() -> None:
    hashes = locked.hashes(dependencies.ROOT)
    assert sbom.packages().items() <= hashes.keys(), "write it again: python -m release.locked"


def test_every_package_has_a_licence() -> None:
    decided = dependencies.decisions()
    unknown = {name: sbom.licence_of(name, decided) for name in sbom.packages()}
    assert {name for name, licence in unknown.items() if "LicenseRef-" in licence} == set()


def test_a_decision_is_about_a_package_that_is_installed() -> None:
    known = {dependencies.STALE, dependencies.NO_LICENCE}
    decided = dependencies.decisions()
    assert decided.keys() <= {name for name, _ in locked.pins(ALL_LOCK.read_text())}
    for name, row in decided.items():
        assert set(row.reasons) <= known, name
        assert row.decided.startswith(("stays", "goes")), name
        assert bool(row.licence) == (dependencies.NO_LICENCE in row.reasons), name


def test_a_package_without_a_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(sbom.packages())
    now = dict.fromkeys(names, "2.0")
    before = {**dict.fromkeys(names, "1.0"), "click": "2.0"}
    del before["h11"]  # younger than two years
    monkeypatch.setattr(dependencies, "newest", lambda _names, day: before if day else now)
    found = dependencies.reasons(dt.date(2026, 11, 28))
    assert found["click"] == [dependencies.STALE]
    assert "h11" not in found
    assert found["ansible-core"] == [dependencies.NO_LICENCE]


def test_locks_name_a_single_source_on_one_line_and_no_constraints() -> None:
    made = (
        "a==1 \\\n    --hash=sha256:0\n    # via\n    #   -c build/locked-versions.txt\n    #   b\n"
    )
    assert locked.without_constraints(made).endswith("    # via b\n")
    for name in locked.LOCKS:
        text = (dependencies.ROOT / f"requirements/{name}.lock").read_text(encoding="utf-8")
        assert locked.without_constraints(text) == text
