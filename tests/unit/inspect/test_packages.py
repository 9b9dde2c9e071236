"""Readers of dpkg's status file and of a wheel's RECORD, over generated input."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import random

import pytest

from goldnode.inspect.packages import (
    RecordRow,
    deb_names,
    dpkg_rows,
    paragraphs,
    wheel_headers,
    wheel_record,
    wheel_requirements,
)

WORDS = ("a", "Zß", "lib/x,y.so", 'say "hi"', "1:2.3~rc1", "naïve", "x y", "=", "sha256=")


@pytest.mark.parametrize("seed", range(40))
def test_record_is_read_back_as_it_was_written(seed: int) -> None:
    pick = random.Random(seed)  # noqa: S311 - test data
    rows = []
    for number in range(pick.randrange(8)):
        digest = pick.choice(["", hashlib.sha256(bytes([number])).hexdigest()])
        rows.append(
            RecordRow(f"{pick.choice(WORDS)}{number}", digest, pick.choice([0, 7, 1 << 40]))
        )
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        packed = base64.urlsafe_b64encode(bytes.fromhex(row.sha256)).rstrip(b"=").decode()
        writer.writerow([row.path, f"sha256={packed}" if packed else "", row.size or ""])
    assert list(wheel_record(out.getvalue())) == rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.py,sha256=!!,3\n", [RecordRow("a.py", "", 3)]),
        ("a.py,md5=abcd,x\n", [RecordRow("a.py", "", 0)]),
        ("a.py,\n", [RecordRow("a.py", "", 0)]),
        ("a.py\n,,\n\n", []),
        ('"a.py', []),
    ],
)
def test_odd_record_is_read_as_far_as_possible(text: str, expected: list[RecordRow]) -> None:
    assert list(wheel_record(text)) == expected


@pytest.mark.parametrize("seed", range(40))
def test_status_is_read_back_as_it_was_written(seed: int) -> None:
    pick = random.Random(seed)  # noqa: S311 - test data
    wanted, blocks = [], []
    for number in range(pick.randrange(6)):
        fields = {f"Field{key}": pick.choice(WORDS) for key in range(1, pick.randrange(2, 5))}
        wanted.append({"Package": f"p{number}", **fields})
        lines = [f"{name}: {value}" for name, value in wanted[-1].items()]
        # Continuation lines belong to no field of their own, whatever they hold.
        lines[1:1] = [" Not: a field", "\tNor: this"][: pick.randrange(3)]
        blocks.append("\n".join(lines))
    assert list(paragraphs(pick.choice(["\n\n", "\n \n", "\n\n\n"]).join(blocks))) == wanted


def test_installed_packages_of_a_status_file_and_of_distroless_images() -> None:
    texts = {
        "var/lib/dpkg/status": (
            "Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: deinstall ok config-files\n\n"
            "Package: c\nStatus: install ok unpacked\n\nStatus: install ok installed\n"
        ),
        "var/lib/dpkg/status.d/base": "Package: d\nVersion: 1\n",
        "var/lib/dpkg/available": "Package: e\n",
    }
    assert [(path.rpartition("/")[2], row["Package"]) for path, row in dpkg_rows(texts)] == [
        ("status", "a"),
        ("base", "d"),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("libc6 (>= 2.35), libgcc-s1", [("libc6",), ("libgcc-s1",)]),
        ("libc6 (>= 2.35) | musl, python3:any", [("libc6", "musl"), ("python3",)]),
        ("default-mta|mail-transport-agent", [("default-mta", "mail-transport-agent")]),
        (" , ", []),
    ],
)
def test_dependency_field_gives_alternatives_without_versions(
    text: str, names: list[tuple[str, ...]]
) -> None:
    assert deb_names({"Depends": text}, "Pre-Depends", "Depends") == names


def test_requirements_of_a_wheel() -> None:
    headers = wheel_headers(
        "Name: X\nRequires-Dist: Foo_Bar>=1\nRequires-Dist: win ; sys_platform == 'win32'\n"
        "Requires-Dist: arm ; platform_machine == 'aarch64'\nRequires-Dist: t ; extra == 'test'\n"
        "Requires-Dist: odd (broken\n\nRequires-Dist: body\n"
    )
    assert headers["name"] == ["X"]
    assert wheel_requirements(headers, "x86_64") == ("foo-bar", "odd")
    assert wheel_requirements(headers, "aarch64") == ("foo-bar", "arm", "odd")
