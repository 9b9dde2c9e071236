"""systemd-boot as the engine reads it: the table of choices, the order of versions, and files as they lie on an ESP."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from goldnode.node.effective import loader
from goldnode.node.effective.boot_choice import boot_choice
from goldnode.node.ground import boot
from goldnode.node.ground.host import Host

CASES = yaml.safe_load(
    (Path(__file__).parents[3] / "cases/loader/choices.yml").read_text(encoding="utf-8")
)
# The example of the Version Format Specification, oldest first.
ORDER = [
    "122.1",
    "123~rc1-1",
    "123",
    "123-a",
    "123-a.1",
    "123-1",
    "123-1.1",
    "123^post1",
    "123.a-1",
    "123.1-1",
    "123a-1",
    "124-1",
]


def header(release: str) -> bytes:
    """The part of a bzImage that says which kernel it is."""
    image = bytearray(0x400)
    image[0x202:0x206] = b"HdrS"
    image[0x20E:0x210] = (0x100).to_bytes(2, "little")
    text = f"{release} (someone@somewhere) #1 SMP\0".encode()
    image[0x300 : 0x300 + len(text)] = text
    return bytes(image)


def entry(name: str, content: Any) -> loader.LoaderEntry:
    if content == "-":
        return loader.parse(name, "linux /gone\n", False)
    return loader.parse(name, "".join(f"{key} {value}\n" for key, value in content.items()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_choose_returns_the_next_boot_in_any_entry_order(case: dict[str, Any]) -> None:
    entries = [entry(name, content) for name, content in case["entries"].items()]
    for shuffled in itertools.islice(itertools.permutations(entries), 6):
        found = loader.choose(
            loader.fields(case["conf"]), shuffled, case.get("default"), case.get("once")
        )
        assert (found.entry.file if found.entry else None, found.via) == (
            case["boots"],
            case["via"],
        ), found.reason
        assert found.reason


def test_the_choices_are_not_all_the_same() -> None:
    assert len(CASES) >= 15
    assert {case["via"] for case in CASES} == {
        "default",
        "first",
        "LoaderEntryDefault",
        "LoaderEntryOneShot",
    }


def test_versions_are_in_the_order_of_the_specification() -> None:
    for (i, one), (j, other) in itertools.product(enumerate(ORDER), repeat=2):
        assert loader.compare(one, other) == (i > j) - (i < j), (one, other)
    for one, other in (("", ""), ("1.0", "1.0"), ("01", "1"), ("1_2", "1+2"), ("a~", "a~")):
        assert loader.compare(one, other) == 0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.conf", ("a.conf", None, None)),
        ("a+3.conf", ("a.conf", 3, 0)),
        ("a+0-3.conf", ("a.conf", 0, 3)),
        ("a+b+2-1.conf", ("a+b.conf", 2, 1)),
        ("a+.conf", ("a+.conf", None, None)),
        ("a+2-.conf", ("a+2-.conf", None, None)),
        ("a+2.conf.bak", ("a+2.conf.bak", None, None)),
    ],
)
def test_entry_name_gives_its_boot_counter(
    name: str, found: tuple[str, int | None, int | None]
) -> None:
    assert loader.counter(name) == found


def node(root: Path, variables: dict[str, str] | None = None) -> Host:
    """A node with two Debian entries of kernel-install on its ESP at /efi."""
    for release in ("6.1.0-901-amd64", "6.1.0-902-amd64"):
        place = root / "efi/0123" / release
        place.mkdir(parents=True)
        (place / "linux").write_bytes(header(release))
        (root / "efi/loader/entries").mkdir(parents=True, exist_ok=True)
        text = f"# made by kernel-install\ntitle      Debian\nversion    {release}\nsort-key   debian\nlinux      /0123/{release}/linux\n"
        text += "options    root=/dev/vda2 ro\noptions    quiet\ninitrd     /0123/x\n"
        (root / f"efi/loader/entries/0123-{release}.conf").write_text(text)
    (root / "efi/loader/entries/note.txt").write_text("no entry")
    place = root / boot.VARIABLES.lstrip("/")
    place.mkdir(parents=True)
    for name, value in (variables or {}).items():
        (place / f"{name}-{boot.VENDOR}").write_bytes(
            b"\x06\0\0\0" + (value + "\0").encode("utf-16-le")
        )
    return Host(str(root), live=True)


def test_a_node_of_kernel_install(tmp_path: Path) -> None:
    host = node(tmp_path)
    found = boot_choice(host, "6.1.0-901-amd64")
    assert (found["loader"], found["release"], found["via"]) == (
        "systemd-boot",
        "6.1.0-902-amd64",
        "first",
    )
    assert (found["entry"], found["cmdline"]) == (
        "0123-6.1.0-901-amd64.conf",
        "root=/dev/vda2 ro quiet",
    )
    assert boot_choice(host, "6.1.0-903-amd64")["entry"] is None


def test_the_loader_that_has_started_this_boot_is_the_one_that_counts(tmp_path: Path) -> None:
    (tmp_path / "boot/grub").mkdir(parents=True)
    (tmp_path / "boot/grub/grub.cfg").write_text("")
    host = node(tmp_path)
    assert boot_choice(host, "x")["loader"] == "grub"
    (tmp_path / f"{boot.VARIABLES.lstrip('/')}/LoaderInfo-{boot.VENDOR}").write_bytes(
        b"\x06\0\0\0" + "systemd-boot 252.39".encode("utf-16-le")
    )
    assert boot_choice(host, "x")["loader"] == "systemd-boot"


def test_a_wish_in_a_variable_is_read(tmp_path: Path) -> None:
    host = node(tmp_path, {"LoaderEntryOneShot": "0123-6.1.0-901-amd64.conf"})
    assert (boot_choice(host, "")["release"], boot_choice(host, "")["via"]) == (
        "6.1.0-901-amd64",
        "LoaderEntryOneShot",
    )


@pytest.mark.parametrize("content", [b"", b"MZ" * 300, header("x")[:0x210]])
def test_image_release_is_none_for_a_file_that_is_no_kernel(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "linux").write_bytes(content)
    assert loader.image_release(str(tmp_path / "linux")) is None
    assert loader.image_release(str(tmp_path / "gone")) is None
