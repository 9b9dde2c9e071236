"""The seam of the package family: who may know a distribution, and what it answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import goldnode
from goldnode.catalog.models import OperatingSystem
from goldnode.classdoc.load import load_catalog
from goldnode.node.state.family import FAMILIES, family, kernel_packages, kernel_release

SOURCES = Path(goldnode.__file__).parent
SEAM = "node/state/family.py"
# The words of the catalog's schema, the makers of test nodes, which are of one distribution each, and what the facts know of operating
# systems, those of images among them; vulnerability databases and trackers, whose kinds and releases are called after who keeps them.
ALLOWED = (
    "catalog/models.py",
    "testing/lab/",
    "testing/rehearsal/",
    "compat/",
    "facts/",
    "evidence/vulnerabilities.py",
    "cve/",
    "documents/cve.py",
)
ASKS = re.compile(
    r"""["'](?:debian|ubuntu)["']|linux-(?:image|headers|modules|generic)-?[{(\\"'a-z0-9]"""
)


def asked() -> list[str]:
    """Lines of the package that know a distribution, outside the seam."""
    return [
        f"{path.relative_to(SOURCES)}:{number}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if not str(path.relative_to(SOURCES)).startswith((SEAM, *ALLOWED))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ASKS.search(
            line.replace("/usr/src/linux-headers-", "")
        )  # a path that all of the family have
    ]


def test_nothing_outside_the_seam_asks_which_distribution_it_is_on() -> None:
    assert asked() == []


def test_the_check_above_can_fail() -> None:
    assert ASKS.search('name = f"linux-image-{release}"')
    assert ASKS.search("if system == 'ubuntu':")
    assert ASKS.search((SOURCES / SEAM).read_text(encoding="utf-8"))


def test_the_schema_and_the_seam_know_the_same() -> None:
    assert set(OperatingSystem.model_fields["id"].annotation.__args__) == set(FAMILIES)  # type: ignore[union-attr]


@pytest.mark.parametrize("distribution", FAMILIES)
def test_kernel_packages_give_their_release(distribution: str) -> None:
    names = kernel_packages(distribution, "6.8.0-1-x")
    assert names[:2] == ["linux-image-6.8.0-1-x", "linux-headers-6.8.0-1-x"]
    assert [kernel_release(name) for name in names if "headers" not in name] == ["6.8.0-1-x"] * (
        len(names) - 1
    )


@pytest.mark.parametrize(
    ("release", "extra"),
    [
        ("6.8.0-902-generic", True),
        ("6.17.0-35-generic", True),
        ("7.0.0-34-generic", False),
        ("11.0.0-1-generic", False),
    ],
)
def test_ubuntus_kernels_have_a_package_of_further_modules_before_7_0(
    release: str, extra: bool
) -> None:
    names = kernel_packages("ubuntu", release)
    assert (f"linux-modules-extra-{release}" in names) is extra
    assert f"linux-modules-{release}" in names


def test_the_catalog_has_the_archives_of_each() -> None:
    catalog = load_catalog()
    for row in FAMILIES.values():
        assert {name: catalog.archives[name].item.suite for name in row.archives} == row.archives


def test_every_stack_fences_its_kernels_metapackages() -> None:
    for entry in load_catalog().stacks.values():
        os = entry.item.os
        fence = {name.replace("amd64", os.architecture) for name in family(os.id).fence}
        assert fence <= set(entry.item.fence), entry.item.stack


def test_unknown_distribution_raises_key_error() -> None:
    with pytest.raises(KeyError):
        family("fedora")
