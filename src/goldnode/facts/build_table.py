"""The measured module builds as tables: `goldnode matrix --modules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goldnode.facts.host import numbers
from goldnode.facts.module_builds import ModuleBuildFact

_WORDS = {"builds": "builds", "fails": "**fails**", "excluded": "excluded"}
_NOT = "-"

_PAGE = """\
# Measured module builds

<!-- Written by `goldnode matrix --modules --format markdown --out docs/reference/module-builds.md`. Not to be edited: run it again. -->

Driver packages whose modules goldnode has built on kernel packages, each pair in a clean root of the kernel's release: {builds} build,
{fails} fail, {excluded} are excluded by the package itself. A pair that is not listed (`-`) was not measured. A class whose locked pair fails or is
excluded is refused, and a check of an unmeasured pair names the command that builds it.
[Add your own runs](../how-to/modules.md#measure-all-driver-packages), for instance with packages from NVIDIA.
"""


def markdown(found: Sequence[ModuleBuildFact]) -> str:
    """Return the page: a table for each release of the OS, and the line of every failure."""
    counts = {word: len([one for one in found if one.outcome == word]) for word in _WORDS}
    lines = [_PAGE.format(**counts)]
    for table in tables(found):
        lines += _release(table)
    lines += ["## Failures", ""]
    lines += [
        f"- {pair_text(one)}: `{one.line}`" for one in ordered(found) if one.outcome == "fails"
    ] or ["- None."]
    lines += [
        "",
        "## Excluded kernels",
        "",
        "DKMS builds no module where the package's `dkms.conf` rules the kernel out.",
        "",
    ]
    excluded = exclusions([one for one in ordered(found) if one.outcome == "excluded"])
    lines += [
        f"- `{line}` excludes {kernels}: {packages}" for line, kernels, packages in excluded
    ] or ["- None."]
    return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True)
class BuildTable:
    """Builds for the kernels of one release of the OS: a row for each package, a column for each kernel."""

    codename: str
    compilers: str
    kernels: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    cells: Mapping[tuple[str, str, str], ModuleBuildFact]  # by package, version and kernel


def tables(found: Sequence[ModuleBuildFact]) -> list[BuildTable]:
    """Return a table for each release of the OS, in the order of its oldest kernel."""
    made = []
    for codename in dict.fromkeys(one.os for one in ordered(found)):
        own = ordered([one for one in found if one.os == codename])
        made.append(
            BuildTable(
                codename,
                ", ".join(sorted({one.compiler for one in own})),
                tuple(dict.fromkeys(one.kernel for one in own)),
                tuple(sorted({(one.package, one.version) for one in own}, key=_package_order)),
                {(one.package, one.version, one.kernel): one for one in own},
            )
        )
    return made


def _release(table: BuildTable) -> list[str]:
    lines = [f"## Kernels of {table.codename}", "", f"Compiler: {table.compilers}.", ""]
    lines += [
        f"| Package | Version | {' | '.join(table.kernels)} |",
        "| --- | --- |" + " --- |" * len(table.kernels),
    ]
    for name in table.packages:
        cells = [table.cells.get((*name, kernel)) for kernel in table.kernels]
        words = [_WORDS[one.outcome] if one is not None else _NOT for one in cells]
        lines.append(f"| {name[0]} | {name[1]} | {' | '.join(words)} |")
    return [*lines, ""]


def exclusions(found: Sequence[ModuleBuildFact]) -> list[tuple[str, str, str]]:
    """Return (demand of a dkms.conf, kernels, packages); the same demand excludes many pairs."""
    rows = []
    for line in dict.fromkeys(str(one.line) for one in found):
        own = [one for one in found if one.line == line]
        kernels = ", ".join(dict.fromkeys(one.kernel for one in own))
        packages = ", ".join(dict.fromkeys(f"{one.package} {one.version}" for one in own))
        rows.append((line, kernels, packages))
    return rows


def _package_order(name: tuple[str, str]) -> tuple[Any, ...]:
    return (numbers(name[1]), name)


def ordered(found: Sequence[ModuleBuildFact]) -> list[ModuleBuildFact]:
    """Return the builds by kernel, package and version."""
    return sorted(
        found,
        key=lambda one: (
            numbers(one.kernel_version),
            one.kernel,
            one.package,
            numbers(one.driver),
            one.version,
        ),
    )


def pair_text(one: ModuleBuildFact) -> str:
    """Return package, kernel, compiler and date of a build."""
    return f"{one.package} {one.version} on {one.kernel} ({one.kernel_version}, {one.compiler}, {one.date})"


def text(found: Sequence[ModuleBuildFact]) -> str:
    """Return one line for each build, for a terminal, and the error line of a failure below it."""
    lines = []
    for one in ordered(found):
        lines.append(
            f"{one.outcome:<9} {one.package} {one.version} on {one.kernel}, {one.compiler}, {one.date}"
        )
        lines += [f"          {one.line}"] if one.line else []
    return "\n".join([*lines, f"{len(found)} pairs measured."]) + "\n"
