"""Measured builds of driver packages: a failing pair is refused with the compiler's line, an unmeasured one names how to measure it."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.compat import check
from goldnode.compat.model import CompatFinding, CompatHost
from goldnode.facts import build_table, module_builds
from goldnode.facts import host as facts
from goldnode.lock.builds import known_build

PAGE = Path(__file__).parents[3] / "docs/reference/module-builds.md"
LINE = "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"


def row(
    kernel: str, outcome: str, version: str = "535.309.01-9", line: str | None = None
) -> dict[str, Any]:
    return {
        "package": "nvidia-kernel-dkms",
        "version": version,
        "driver": version.partition("-")[0],
        "flavour": "proprietary",
        "kernel": kernel,
        "kernel_version": f"{kernel.partition('+')[0]}-1",
        "architecture": "amd64",
        "os": "trixie",
        "outcome": outcome,
        "compiler": "gcc-14 14.2.0-19",
        "line": line,
        "seconds": 100.5,
        "date": "2026-11-24",
    }


ROWS = [
    row("6.12.200+deb13-amd64", "fails", line=LINE),
    row("6.12.199+deb13-amd64", "builds"),
    row("6.12.200+deb13-amd64", "builds", "535.309.01-10"),
    row(
        "6.12.200+deb13-rt-amd64",
        "excluded",
        line='dkms.conf: BUILD_EXCLUSIVE_CONFIG="!CONFIG_PREEMPT_RT"',
    ),
    row(
        "6.12.200+deb13-rt-amd64",
        "excluded",
        "535.309.01-11",
        "dkms.conf: BUILD_EXCLUSIVE_KERNEL=x",
    ),
    # The table of NVIDIA's sources has it that this one fails.
    row("7.0.3+deb13-amd64", "builds", "535.274.02-9"),
]


@pytest.fixture(autouse=True)
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "facts").mkdir()
    text = module_builds.file_text(ROWS, "2026-11-24", module_builds.SITE)
    (tmp_path / "facts/module_builds.yml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path))
    yield
    facts.forget()


def found(kernel: str, package: str, driver: str = "535.309.01") -> list[CompatFinding]:
    host = CompatHost(
        "stack s",
        vendor="nvidia",
        branch="535",
        driver=driver,
        flavour="proprietary",
        kernel=kernel,
        kernel_version=kernel.partition("+")[0],
        driver_package=package,
    )
    return [finding for finding in check.check(host) if finding.rule == "kernel-driver"]


def test_a_failing_pair_is_refused_with_the_compilers_line_and_the_nearest_pair_that_builds() -> (
    None
):
    (finding,) = found("6.12.200+deb13-amd64", "535.309.01-9")
    assert finding.severity == "block"
    assert LINE in finding.message
    assert (
        "nvidia-kernel-dkms 535.309.01-9 on kernel 6.12.200+deb13-amd64 does not build"
        in finding.message
    )
    assert finding.remedy is not None
    assert "use kernel 6.12.199+deb13-amd64" in finding.remedy
    assert "nvidia-kernel-dkms 535.309.01-10" in finding.remedy
    assert "built at this site" in str(finding.sources[0])


def test_an_excluded_kernel_is_refused_with_what_the_package_demands() -> None:
    (finding,) = found("6.12.200+deb13-rt-amd64", "535.309.01-9")
    assert (finding.severity, "BUILD_EXCLUSIVE_CONFIG" in finding.message) == ("block", True)
    assert (
        finding.remedy
        == "use kernel 6.12.199+deb13-amd64, on which this package was measured to build"
    )
    (other,) = found("6.12.200+deb13-rt-amd64", "535.309.01-11")
    assert other.remedy == "use a kernel that the package's dkms.conf admits"


def test_committed_measurements_refuse_debian_13s_open_modules_and_its_realtime_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOLDNODE_CATALOG")
    host = CompatHost(
        "stack s",
        vendor="nvidia",
        branch="550",
        driver="550.163.01",
        kernel_version="6.12.117",
        driver_package="550.163.01-2",
    )
    for flavour, kernel, line in (
        (
            "open",
            "6.12.117+deb13-amd64",
            "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'",
        ),
        ("proprietary", "6.12.117+deb13-rt-amd64", "!CONFIG_PREEMPT_RT"),
    ):
        asked = dataclasses.replace(host, flavour=flavour, kernel=kernel)  # type: ignore[arg-type]
        (finding,) = [one for one in check.check(asked) if one.rule == "kernel-driver"]
        assert (finding.severity, line in finding.message) == ("block", True)


def test_a_pair_that_was_measured_to_build_is_no_finding_even_where_the_table_has_a_failure() -> (
    None
):
    assert found("6.12.199+deb13-amd64", "535.309.01-9") == []
    assert found("7.0.3+deb13-amd64", "535.274.02-9", "535.274.02") == []


def test_an_unmeasured_pair_names_the_command_that_measures_it() -> None:
    (unknown,) = found("7.9.1+deb13-amd64", "535.309.01-9")
    command = "goldnode modules matrix --packages --driver '*=535.309.01-9' --flavour proprietary --kernel 7.9.1+deb13-amd64"
    assert (unknown.severity, command in unknown.message) == ("unknown", True)
    (derived,) = found("7.0.3+deb13-amd64", "535.274.02-1", "535.274.02")
    assert derived.severity == "block"
    assert "the pair was not measured" in str(derived.doubt)


def test_another_update_of_the_kernel_and_another_flavour_are_not_measured() -> None:
    asked: tuple[Any, ...] = (
        "535.309.01-9",
        "proprietary",
        "6.12.200+deb13-amd64",
        "6.12.200-1",
        "amd64",
    )
    assert module_builds.measured(*asked) is not None
    for index, other in enumerate(
        ("535.309.01-8", "open", "6.12.201+deb13-amd64", "6.12.201", "arm64")
    ):
        assert module_builds.measured(*(*asked[:index], other, *asked[index + 1 :])) is None


def test_security_updates_use_measured_builds_where_all_packages_agree() -> None:
    known = known_build("6.12.199+deb13-amd64", "6.12.199-1", "535.309.01", "proprietary")
    assert (known.outcome, "built at this site" in known.source) == ("ok", True)
    rt = known_build("6.12.200+deb13-rt-amd64", "6.12.200-1", "535.309.01", "proprietary")
    assert (rt.outcome, "BUILD_EXCLUSIVE" in str(rt.line)) == ("fails", True)
    mixed = known_build("6.12.200+deb13-amd64", "6.12.200-1", "535.309.01", "proprietary")
    assert "measured" not in mixed.reason, "one revision builds and one does not"


def test_the_tables_have_every_line() -> None:
    for form in ("text", "markdown", "json"):
        done = CliRunner().invoke(main, ["matrix", "--modules", "--format", form])
        assert done.exit_code == 0, done.output
        assert LINE in done.output
        assert "6.12.200+deb13-rt-amd64" in done.output


def test_the_html_page_links_each_failure_to_its_line() -> None:
    done = CliRunner().invoke(main, ["matrix", "--modules", "--format", "html"])
    assert done.exit_code == 0, done.output
    failed = [one for one in module_builds.builds() if one.outcome == "fails"]
    links = re.findall(r'href="#(f\d+)" class="tag fails"', done.output)
    assert len(links) == len(set(links)) == len(failed) > 0
    lines = dict(re.findall(r'<li id="(f\d+)" class="line">.*<code>(.*)</code></li>', done.output))
    assert sorted(html.unescape(lines[link]) for link in links) == sorted(
        str(one.line) for one in failed
    )


def test_the_page_is_what_the_facts_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDNODE_CATALOG")
    reported = "run `goldnode matrix --modules --format markdown --out docs/reference/module-builds.md` without a site of your own"
    assert PAGE.read_text(encoding="utf-8") == build_table.markdown(module_builds.builds()), (
        reported
    )
