"""Small parsers of what a node shows: names, GRUB's values, units, dpkg's database."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective import grub
from goldnode.node.ground import fault
from goldnode.node.ground.host import Host, Result, like
from goldnode.node.state import observe
from goldnode.node.state.domains import kernel, units
from goldnode.node.state.model import Observed


def texts(letters: str, most: int) -> Iterator[str]:
    """All texts of these letters, up to a length."""
    for size in range(most + 1):
        yield from map("".join, itertools.product(letters, repeat=size))


PATTERNS = (
    "",
    "a",
    "a*",
    "*b",
    "a*b",
    "?",
    "a?",
    "?*9",
    "9?-a*.b",
    "cpu[0-9]*",
    "[0-9]*",
    "[0-9]",
    "a[0-9]b",
    "[ab]x",
    "**",
    "*a*",
    "[!a]*",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_name_pattern_matches_like_fnmatch(pattern: str) -> None:
    for name in [*texts("ab9-", 5), "9x-ab.b", "cpu12", "cpu", "[0-9]"]:
        assert like(name, pattern) == fnmatch.fnmatchcase(name, pattern), name


# Regular expressions that describe what these functions read.
_NUMBER = re.compile(r"\s*(?:(0x[0-9a-fA-F]+)|0([0-7]+)|(?!0x)([0-9]+))")
_PATH = re.compile(r"((?:>>|[^>])*)(>?)(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([^}\n]+)\}|([A-Za-z_][A-Za-z0-9_]*|[0-9?@*#]))")
_UNIT = re.compile(r"/etc/systemd/system/([^/]+\.(?:service|timer|socket))(?:\.d/[^/]+)?$")


def test_a_number_of_grub_is_read_as_strtoul_does() -> None:
    for text in texts("0x178ag ", 5):
        found = _NUMBER.match(text)
        parts = found.groups() if found else (None, None, None)
        expected = (
            int(parts[0], 16)
            if parts[0]
            else int(parts[1], 8)
            if parts[1]
            else int(parts[2])
            if parts[2]
            else None
        )
        assert grub._number(text) == expected


def test_a_path_of_grub_is_cut_at_the_first_single_sign() -> None:
    for text in texts(">a\n", 8):
        found = _PATH.match(text)
        assert found is not None
        assert grub._cut(text) == (found[1].replace(">>", ">"), found[2], found[3])


def test_a_variable_of_grub_ends_where_its_name_does() -> None:
    for text in texts("${}a9?\n-", 5):
        if not text:
            continue
        found = _VARIABLE.match(text)
        name, end = grub._variable(text, 0)
        assert (name, end if name else 0) == (
            (found[1] or found[2], found.end()) if found else ("", 0)
        )


@pytest.mark.parametrize(
    "path",
    [
        "/etc/systemd/system/a.service", "/etc/systemd/system/a.timer.d/x.conf", "/etc/systemd/system/a.service.d/b/c.conf",
        "/etc/systemd/system/a.target", "/etc/systemd/system/x.wants/a.service", "/etc/udev/rules.d/a.service", "/etc/systemd/system/a.d/b",
    ],
)  # fmt: skip
def test_the_unit_of_a_file(path: str) -> None:
    found = _UNIT.match(path)
    assert units._unit(path) == (found[1] if found else None)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nvidia-current", "nvidia-current"),
        ("a b", "'a b'"),
        ("", "''"),
        ("$x", "'$x'"),
        ("é", "'é'"),
    ],
)
def test_a_word_of_a_shell(text: str, word: str) -> None:
    assert kernel._word(text) == word


def test_a_grubenv_with_and_without_backslashes() -> None:
    assert grub.environment(grub.SIGNATURE + b"saved_entry=a>b\n#c=d\nx=\n####") == {
        "saved_entry": "a>b",
        "x": "",
    }
    assert grub.environment(grub.SIGNATURE + b"a=b\\\nc\\\\d\n") == {"a": "b\nc\\d"}


# -- dpkg's database

STATUS = """Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.21
Description: x
 Status: no field

Package: held
Status: hold ok installed
Architecture: all
Version: 2:3

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: half
Status: install reinstreq half-installed
Architecture: i386
Version: 4
"""


def database(root: Path, text: str = STATUS) -> Host:
    place = root / "var/lib/dpkg"
    (place / "updates").mkdir(parents=True)
    (place / "info").mkdir()
    (place / "status").write_text(text)
    return Host(str(root))


def test_the_database_is_read_as_dpkg_query_reads_it(tmp_path: Path) -> None:
    host = database(tmp_path)
    own = observe.status(host)
    assert own is not None
    assert sorted(own) == sorted(observe.queried(host))
    assert observe.packages(host)["half:i386"]["state"] == "reinst-required"
    assert observe.packages(host)["held"]["hold"]
    assert "gone" not in observe.packages(host)


def test_a_database_with_updates_or_of_another_form_is_dpkg_s_to_read(tmp_path: Path) -> None:
    assert (
        observe.status(database(tmp_path / "a", STATUS.replace("hold ok installed", "hold")))
        is None
    )
    assert observe.status(database(tmp_path / "b", "")) is None
    host = database(tmp_path / "c")
    assert observe.status(host) is not None
    (tmp_path / "c/var/lib/dpkg/updates/0001").write_text(
        STATUS.split("\n\n")[1].replace("2:3", "2:4") + "\n"
    )
    assert observe.status(host) is None
    assert observe.packages(host)["held"]["version"] == "2:4"


GPU = "0000:10:00.0"


def bus(root: Path) -> Path:
    """A PCI bus with a GPU and a bridge."""
    place = root / "sys/bus/pci/devices"
    for address, ids in (
        (GPU, ("0x10de", "0x2330", "0x030200")),
        ("0000:0f:00.0", ("0x8086", "0x352a", "0x060400")),
    ):
        (place / address).mkdir(parents=True)
        for name, text in zip(("vendor", "device", "class"), ids, strict=True):
            (place / address / name).write_text(f"{text}\n")
    return place


@pytest.mark.parametrize("name", ["vendor", "device", "class"])
@pytest.mark.parametrize("damage", ["absent", "nonsense", "unreadable"])
@pytest.mark.parametrize("address", [GPU, "0000:0f:00.0"])
def test_a_function_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, address: str, damage: str, name: str
) -> None:
    file = bus(tmp_path) / address / name
    assert len(observe.gpus(Host(str(tmp_path)), observe.functions(Host(str(tmp_path))))) == 1
    file.unlink()
    if damage == "nonsense":
        file.write_text("\n")
    elif damage == "unreadable":
        file.mkdir()  # open succeeds and read does not, for root too
    with pytest.raises(OSError, match="cannot be read") as raised:
        observe.functions(Host(str(tmp_path)))
    what, remedy = fault.explained(raised.value)
    assert what == f"{file.parent}: its PCI id and class cannot be read"
    assert "dmesg" in remedy


def test_a_function_that_goes_while_the_bus_is_read_is_not_on_it(tmp_path: Path) -> None:
    (bus(tmp_path) / "0000:11:00.0").symlink_to("../../../devices/gone")
    assert set(observe.functions(Host(str(tmp_path)))) == {GPU, "0000:0f:00.0"}


def test_a_bus_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    assert observe.functions(Host(str(tmp_path))) == {}
    place = tmp_path / "sys/bus/pci/devices"
    place.parent.mkdir(parents=True)
    place.symlink_to("devices")  # a loop
    with pytest.raises(OSError, match="levels of symbolic links"):
        observe.functions(Host(str(tmp_path)))


def test_systemd_is_asked_for_our_units_and_for_those_of_packages_that_have_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that systemd does not know takes it longer than one that it does: it searches all directories."""
    files = {
        "/usr/lib/systemd/system/docker.service": "[Service]\n",
        "/usr/lib/systemd/system/probe@.service": "[Service]\n",
        "/run/systemd/system/kept": "",
    }
    links = {
        "/etc/systemd/system/slurmd.service": "/dev/null",
        "/run/systemd/units/invocation:goldnode-mps.service": "0123",
    }
    make(tmp_path, files, links)
    asked: list[tuple[str, ...]] = []

    def run(self: Host, *argv: str, **_: object) -> Result:
        asked.append(argv)
        return Result(argv, 0, "", "")

    monkeypatch.setattr(Host, "run", run)
    stated = ["probe@ib0", "slurmd", "lldpd"]
    document: Any = {"health": {"baseline": {"services": stated}}, "packages": []}
    units.observe(Host(str(tmp_path), live=True), document, Observed())
    names = set(asked[0][4:])
    assert {"docker.service", "probe@ib0.service", "slurmd.service", units.TIMER} <= names
    assert "goldnode-mps.service" in names  # it runs without a file
    absent = {"containerd.service", "lldpd.service", "nvidia-fabricmanager.service"}
    assert not {*absent, "goldnode-policy.service"} & names
