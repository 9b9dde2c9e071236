"""Measured builds of driver packages on kernels: `module_builds.yml`, and the rows that catalogs add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from goldnode.core.dataclass import dataclass
from goldnode.facts.host import ModuleFlavour, Origin, load, numbers, origins

FILE = "module_builds.yml"

_HEAD = """\
# Builds of driver packages' kernel modules, one record per line: package, kernel, outcome, compiler, first error line.
# Written by `goldnode modules matrix --packages --facts FILE`. A site's own file has the same form and name, in the folder `facts` of its catalog.
---
meta: {subject: measured builds of NVIDIA driver packages on kernel packages, compiled: '%s', how_read: 'outcome: builds, fails (line: the compiler''s
    first error line), or excluded (line: what dkms.conf demands of a kernel). driver: upstream version; os: codename of the release whose compiler built it'}
sources:
  %s: {title: %s}
builds:%s
"""


# Sources: goldnode's own runs, and those of a site.
OWN, SITE = "measured", "site"
_TITLES = {
    OWN: "built with goldnode modules matrix --packages, in clean roots, with packages of Debian",
    SITE: "built at this site with goldnode modules matrix --packages",
}


@dataclass(frozen=True)
class ModuleBuildFact:
    """One measured build. `line` is the first error line of a failure, or what rules the kernel out."""

    package: str
    version: str
    driver: str
    flavour: ModuleFlavour
    kernel: str
    kernel_version: str
    architecture: str
    os: str
    outcome: Literal["builds", "fails", "excluded"]
    compiler: str
    line: str | None
    date: str
    origins: tuple[Origin, ...]

    @property
    def reason(self) -> str:
        """Return a sentence with the figures, without its full stop."""
        what = f"{self.package} {self.version} on kernel {self.kernel}"
        how = f"(measured on {self.date} with {self.compiler})"
        if self.outcome == "builds":
            return f"{what} builds {how}"
        if self.outcome == "excluded":
            return f"{what} is excluded by the package ({self.line}; measured on {self.date})"
        return f"{what} does not build {how}: {self.line}"


def fact_of(row: Mapping[str, Any]) -> ModuleBuildFact:
    """Return a row of the file as a value."""
    given = {
        name: row.get(name) for name in ModuleBuildFact.__dataclass_fields__ if name != "origins"
    }
    return ModuleBuildFact(**given, origins=origins(FILE, row["source"]))  # type: ignore[arg-type]


def builds() -> tuple[ModuleBuildFact, ...]:
    """Return all measured builds, those of catalogs included."""
    return tuple(fact_of(row) for row in load(FILE)["builds"])


def measured(
    version: str, flavour: ModuleFlavour, kernel: str, kernel_version: str | None, architecture: str
) -> ModuleBuildFact | None:
    """Return the newest build of a driver package of `version` for a kernel release, or None.

    `kernel_version` is the upstream version or that of the kernel's package, if known: a release name can cover several.
    """
    rows = [
        row
        for row in load(FILE)["builds"]
        if (row["version"], row["flavour"], row["kernel"], row["architecture"])
        == (version, flavour, kernel, architecture)
        # Without the revision: a caller may know the upstream version only.
        and (kernel_version is None or numbers(row["kernel_version"]) == numbers(kernel_version))
    ]
    return fact_of(max(rows, key=lambda row: str(row["date"]))) if rows else None


def measured_upstream(driver: str, flavour: ModuleFlavour, kernel: str) -> ModuleBuildFact | None:
    """Return a build of upstream version `driver` on a kernel release, if the packages of that version agree."""
    rows = [
        row
        for row in load(FILE)["builds"]
        if (row["driver"], row["flavour"], row["kernel"]) == (driver, flavour, kernel)
    ]
    if len({row["outcome"] == "builds" for row in rows}) != 1:
        return None
    return fact_of(max(rows, key=lambda row: str(row["date"])))


def file_text(rows: Sequence[Mapping[str, Any]], day: str, source: str) -> str:
    """Return a facts file with `rows` of one `source`, one per line, in the order of kernel and package."""
    ordered = sorted(rows, key=_order)
    lines = "".join(f"\n- {_flow({**row, 'source': source})}" for row in ordered)
    return _HEAD % (day, source, json.dumps(_TITLES[source]), lines or " []")


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        numbers(row["kernel_version"]),
        row["kernel"],
        row["package"],
        numbers(row["driver"]),
        row["version"],
    )


def _flow(row: Mapping[str, Any]) -> str:
    """Return a row as JSON, which YAML reads; values that are null are left out."""
    return json.dumps(
        {key: value for key, value in row.items() if value is not None}, ensure_ascii=False
    )
