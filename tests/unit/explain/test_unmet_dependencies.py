"""apt's list of unmet dependencies, as the forms of two public reports and of one archive that is half updated."""

from __future__ import annotations

import pytest

from goldnode.explain.answer import explain
from goldnode.explain.dependencies import notes, unmet

HEAD = "The following packages have unmet dependencies:"
# video2x issue 1029: packages of Ubuntu 22.04 on Debian 11.
RELEASE = """\
 libnvidia-cfg1-535 : Depends: libc6 (>= 2.34) but 2.31-13+deb11u7 is to be installed
 libnvidia-compute-535 : Depends: libc6 (>= 2.34) but 2.31-13+deb11u7 is to be installed
                         Depends: libssl3 (>= 3.0.0) but it is not installable
"""
# rocker issue 298.
ABSENT = """\
 nvidia-driver-565-open : Depends: libnvidia-gl-565 (= 565.57.01-0ubuntu1) but it is not installable
                          Depends: nvidia-dkms-565-open (= 565.57.01-0ubuntu1) but it is not installable
"""
VERSIONS = " nvidia-utils-580 : Depends: libnvidia-compute-580 (= 580.95.05-1) but 580.82.07-0 is to be installed"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (RELEASE, "built for another release of the distribution"),
        (ABSENT, "no archive of this system offers libnvidia-gl-565"),
        (VERSIONS, "apt chooses 580.82.07-0"),
        (
            " a : Depends: libc6 (>= 2.36-9+deb12u7) but 2.36-9+deb12u4 is to be installed",
            "apt chooses 2.36-9",
        ),
        (f"{ABSENT}{VERSIONS}\n{RELEASE}", "built for another release of the distribution"),
    ],
)
def test_most_decisive_kind_of_dependency_is_first(text: str, first: str) -> None:
    assert first in notes(text.splitlines())[0]


def test_row_without_a_package_belongs_to_the_one_above() -> None:
    assert [row.package for row in unmet(ABSENT.splitlines())] == ["nvidia-driver-565-open"] * 2


def test_package_that_is_not_going_to_be_installed_proves_nothing() -> None:
    row = (
        " cuda-drivers : Depends: nvidia-driver-580 (>= 580.65) but it is not going to be installed"
    )
    assert notes([row]) == []


def test_list_of_apt_is_read_as_a_whole() -> None:
    explanation = explain(
        f"{HEAD}\n{RELEASE}E: Unable to correct problems, you have held broken packages."
    )
    assert [row.id for row in explanation.answers] == ["no-package-for-this-system"]
    assert "libc6 (>= 2.34)" in explanation.answers[0].versions[0]
    assert not explanation.unread


@pytest.mark.parametrize(
    "line", ["Depends: on what you do", "Description : a driver", "Package: nvidia-driver"]
)
def test_other_line_is_no_row(line: str) -> None:
    assert notes([line]) == []
