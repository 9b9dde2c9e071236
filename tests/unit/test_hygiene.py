"""What must not be anywhere in the project: the host of a package registry, a path of one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    """Files of the project that git knows or would take."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_no_package_registry_and_no_machine_is_named() -> None:
    # In parts, so that this file names none itself.
    debian, pypi, npm, nvidia, wheels = (
        "debian",
        "pypi",
        "npmjs",
        "developer.download.nvidia",
        "python" + "hosted",
    )
    hosts = re.compile(
        rf"(deb|security|snapshot|ftp)\.{debian}\.|{pypi}\.(org|io)|{wheels}\.org|{npm}\.(org|com)|{nvidia}\.com/compute/cuda/repos"
    )
    places = re.compile(
        "|".join(
            f"/{top}/{rest}"
            for top, rest in (("work", "(main|shared)"), ("farm", ""), ("root", r"\.pyenv"))
        )
    )
    files = tracked()
    assert len(files) > 100
    found = []
    for path in files:
        if path == Path(__file__):
            continue
        text = path.read_text("utf-8", "replace")
        if (
            path == ROOT / "catalog/archives.yml"
        ):  # the one place that names vendors' public addresses
            text = text.replace(f"{nvidia}.com/compute/cuda/repos", "")
        found += [
            f"{path.relative_to(ROOT)}: {match[0]}"
            for pattern in (hosts, places)
            for match in pattern.finditer(text)
        ]
    assert found == []


def test_recorded_numbers_share_lines() -> None:
    """Thousands of lines with a number each hide what a change changes. Store such data as `json.dumps` writes it."""
    number = re.compile(rb"^\s*-?[\d.eE+-]+,?$", re.MULTILINE)
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked()
        if path.suffix == ".json" and (count := len(number.findall(path.read_bytes()))) > 500
    }
    assert long == {}
