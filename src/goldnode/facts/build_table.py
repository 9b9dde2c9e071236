"""The measured module builds as tables: `goldnode matrix --modules`."""

from __future__ import annotations

from collections.abc import Sequence
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
    for codename in dict.fromkeys(one.os for one in _ordered(found)):
        lines += _release(codename, [one for one in found if one.os == codename])
    lines += ["## Failures", ""]
    lines += [f"- {_what(one)}: `{one.line}`" for one in _ordered(found) if one.outcome == "fails"] or [
        "- None."
    ]
    lines += [
        "",
        "## Excluded kernels",
        "",
        "DKMS builds no module where the package's `dkms.conf` rules the kernel out.",
        "",
    ]
    lines += _excluded([one for one in _ordered(found) if one.outcome == "excluded"]) or ["- None."]
    return "\n".join(lines).rstrip() + "\n"


def _release(codename: str, found: Sequence[ModuleBuildFact]) -> list[str]:
    kernels = list(dict.fromkeys(one.kernel for one in _ordered(found)))
    compilers = ", ".join(sorted({one.compiler for one in found}))
    cells = {(one.package, one.version, one.kernel): _WORDS[one.outcome] for one in found}
    names = sorted({(one.package, one.version) for one in found}, key=_package_order)
    lines = [f"## Kernels of {codename}", "", f"Compiler: {compilers}.", ""]
    lines += [f"| Package | Version | {' | '.join(kernels)} |", "| --- | --- |" + " --- |" * len(kernels)]
    lines += [
        f"| {package} | {version} | "
        + " | ".join(cells.get((package, version, kernel), _NOT) for kernel in kernels)
        + " |"
        for package, version in names
    ]
    return [*lines, ""]


def _excluded(found: Sequence[ModuleBuildFact]) -> list[str]:
    """Return one line for each demand of a dkms.conf: the same one excludes many pairs."""
    lines = []
    for line in dict.fromkeys(one.line for one in found):
        own = [one for one in found if one.line == line]
        kernels = ", ".join(dict.fromkeys(one.kernel for one in own))
        packages = ", ".join(dict.fromkeys(f"{one.package} {one.version}" for one in own))
        lines.append(f"- `{line}` excludes {kernels}: {packages}")
    return lines


def _package_order(name: tuple[str, str]) -> tuple[Any, ...]:
    return (numbers(name[1]), name)


def _ordered(found: Sequence[ModuleBuildFact]) -> list[ModuleBuildFact]:
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


def _what(one: ModuleBuildFact) -> str:
    return f"{one.package} {one.version} on {one.kernel} ({one.kernel_version}, {one.compiler}, {one.date})"


def text(found: Sequence[ModuleBuildFact]) -> str:
    """Return one line for each build, for a terminal, and the error line of a failure below it."""
    lines = []
    for one in _ordered(found):
        lines.append(
            f"{one.outcome:<9} {one.package} {one.version} on {one.kernel}, {one.compiler}, {one.date}"
        )
        lines += [f"          {one.line}"] if one.line else []
    return "\n".join([*lines, f"{len(found)} pairs measured."]) + "\n"
