"""Parts of a stack besides kernel, driver and container toolkit: their names, versions and facts.

The facts are in facts/parts.yml. `rules_parts` judges them on one node, `coexistence` across nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from goldnode.compat.known_bad import in_range
from goldnode.compat.model import CompatHost
from goldnode.facts import host as facts
from goldnode.facts.host import Origin, numbers

FILE = "parts.yml"

# "24.10.OFED.24.10.2.1.8.1-1": NVIDIA's packages repeat the release after the name.
_OFED_PACKAGE = re.compile(r"\.OFED\.(?P<release>[\d.]+)")


def title(part: str) -> str:
    """Return the name of a part in a sentence."""
    return str(facts.load(FILE)["parts"][part]["title"])


def origins(row: Mapping[str, Any]) -> tuple[Origin, ...]:
    """Return the sources of a row."""
    return facts.origins(FILE, row["source"])


def by_package() -> dict[str, str]:
    """Return the part of each package that carries the version of one."""
    return {
        package: name
        for name, row in facts.load(FILE)["parts"].items()
        for package in row["packages"]
    }


def by_module() -> dict[str, str]:
    """Return the part of each kernel module that carries the version of one."""
    return {
        module: name for name, row in facts.load(FILE)["parts"].items() for module in row["modules"]
    }


def package_version(version: str) -> str:
    """Return the upstream version of a part from the version of its package."""
    release = _OFED_PACKAGE.search(version)
    if release is not None:
        # The last number is that of the package: ofed_info shows 24.10-2.1.8.0 for it.
        return release["release"].rpartition(".")[0]
    return facts.release_numbers(version)


def of_packages(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the parts among packages. An earlier package of a part's list decides."""
    installed: dict[str, str] = {}
    for name, row in facts.load(FILE)["parts"].items():
        package = next((package for package in row["packages"] if package in versions), None)
        if package is not None:
            installed[name] = package_version(versions[package])
    return installed


def of_host(host: CompatHost) -> dict[str, str]:
    """Return all parts of a host: the declared ones, those of its modules, and OFED of a DOCA release."""
    if not host.parts and not host.modules:
        return {}
    present = dict(host.parts)
    modules = by_module() if host.modules else {}
    for module, version in host.modules.items():
        if module in modules:
            present.setdefault(modules[module], version)
    if "doca" in present and "ofed" not in present:
        driver = _driver_of_doca(present["doca"])
        if driver is not None:
            present["ofed"] = driver
    return present


def _driver_of_doca(version: str) -> str | None:
    """Return the release of the network driver that a DOCA-Host release carries."""
    rows = {row["doca"]: str(row["ofed"]) for row in facts.load(FILE)["doca_releases"]}
    exact = ".".join(map(str, numbers(version))) if version else ""
    return rows.get(exact) or rows.get(".".join(exact.split(".")[:2]))


def doca_of(driver: str) -> str | None:
    """Return the DOCA-Host release that carries a release of the network driver."""
    rows = facts.load(FILE)["doca_releases"]
    return next((str(row["doca"]) for row in rows if row["ofed"] == driver), None)


def comparable(version: str) -> str:
    """Return a version in dots: MLNX_OFED's 24.10-2.1.8.0 has its update after a dash."""
    return re.sub(r"(?<=\d)-(?=\d)", ".", version)


def same(one: str, other: str) -> bool:
    """Return whether two versions are the same as far as both are stated: 24.10 and 24.10-2.1.8.0."""
    first, second = numbers(comparable(one)), numbers(comparable(other))
    if not first or not second:
        return one == other
    shared = min(len(first), len(second))
    return first[:shared] == second[:shared]


@cache
def includes(versions: tuple[str, ...], version: str) -> bool:
    """Return whether one of several ranges includes a version; no range at all includes every one.

    A version without numbers, such as dma-buf, is included by its own name.
    """
    if not versions or version in versions:
        return True
    if not version[:1].isdigit():
        return False
    ranges = tuple(item for item in versions if re.match(r"[<>=]*\d", item))
    return bool(ranges) and in_range(comparable(version), ranges)


def covers(row: Mapping[str, Any], part: str, version: str) -> bool:
    """Return whether a row is about this version of a part."""
    return row["part"] == part and includes(tuple(row.get("versions") or ()), version)


def is_system(os: str | None, names: Iterable[str]) -> bool:
    """Return whether an operating system is among names: "rhel" and "rhel 9" include "rhel 9.6"."""
    if os is None:
        return False
    return any(os == name or os.startswith((f"{name} ", f"{name}.")) for name in names)


def series(kernel: str) -> str:
    """Return the series of a kernel release: "6.12" of 6.12.48+deb13-amd64."""
    return ".".join(map(str, numbers(kernel)[:2]))


def listed_kernels(part: str, version: str, host: CompatHost) -> list[Mapping[str, Any]]:
    """Return the rows of kernels that a publisher lists for the host's system and this version."""
    # Debian patches kernel.org's kernels little; other distributions port features back.
    names = {host.os, "vanilla"} if is_system(host.os, ["debian"]) else {host.os}
    return [
        row
        for row in facts.load(FILE)["builds_on"]
        if row["os"] in names and covers(row, part, version)
    ]


def listed_versions(part: str, host: CompatHost, version: str = "") -> list[str]:
    """Return the first versions that a publisher lists for the host's system and kernel, the nearest first.

    Versions to avoid are left out.
    """
    if host.kernel is None:
        return []
    listed = {
        first_of(item)
        for row in facts.load(FILE)["builds_on"]
        if row["part"] == part and row["os"] == host.os and series(host.kernel) in row["kernels"]
        for item in row["versions"]
    }
    known = sorted(
        (item for item in listed if not rows_of("faults", part, item)),
        key=lambda item: numbers(item),
    )
    later = [item for item in known if numbers(item) > numbers(comparable(version))]
    return later + [item for item in reversed(known) if item not in later]


def first_of(versions: str) -> str:
    """Return the first version of a range."""
    return versions.split()[0].lstrip("<>=")


def rows_of(section: str, part: str, version: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a section that are about this version of a part."""
    return [row for row in facts.load(FILE)[section] if covers(row, part, version)]
