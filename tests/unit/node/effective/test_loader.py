"""systemd-boot as the engine reads it: the table of choices, the order of versions, and files as they lie on an ESP."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.case_tables import table

from goldnode.node.effective import loader
from goldnode.node.effective.boot_choice import boot_choice
from goldnode.node.ground import boot
from goldnode.node.ground.host import Host

CASES = table("loader/choices.yml")
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
            loader.fields(case["conf"]), shuffled, *map(case.get, ("default", "once", "saved"))
        )
        assert (found.entry.file if found.entry else None, found.via) == (
            case["boots"],
            case["via"],
        ), found.reason
        assert found.reason


def test_each_way_of_choosing_an_entry_has_a_case() -> None:
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


def test_a_unified_kernel_image_leaves_the_first_entry_unknown(tmp_path: Path) -> None:
    host = node(tmp_path)
    (tmp_path / "efi/EFI/Linux").mkdir(parents=True)
    (tmp_path / "efi/EFI/Linux/debian-6.12.efi").touch()
    (tmp_path / "efi/loader/entries/auto-x.conf").write_text("linux /0123/6.1.0-901-amd64/linux\n")
    found = boot_choice(host, "6.1.0-901-amd64")
    assert (found["release"], found["via"]) == (None, "first")
    assert "EFI/Linux/debian-6.12.efi is a unified kernel image" in str(found["reason"])
    assert [entry.file for entry in loader.entries(host, "/efi")] == [
        "0123-6.1.0-901-amd64.conf",
        "0123-6.1.0-902-amd64.conf",
    ]


BANNER = b"Linux version 6.12.118+deb13-arm64 (debian-kernel@lists.debian.org) (aarch64-linux-gnu"


# At 16,253,128 bytes in the kernel of Debian 13, whose format has neither version nor pointer.
@pytest.mark.parametrize("place", [0x800, (1 << 20) - 17, (1 << 20) + 5, 3 << 20])
def test_release_of_an_image_for_arm64_is_that_of_its_banner(tmp_path: Path, place: int) -> None:
    image = bytearray(place + 4096)
    image[0:2], image[0x38:0x3C] = b"MZ", b"ARM\x64"
    image[0x400:0x414] = b"%s version %s (%s)\0\0"
    image[place : place + len(BANNER)] = BANNER
    (tmp_path / "linux").write_bytes(image)
    assert loader.image_release(str(tmp_path / "linux")) == "6.12.118+deb13-arm64"
    (tmp_path / "linux").write_bytes(image[:place])
    assert loader.image_release(str(tmp_path / "linux")) is None


@pytest.mark.parametrize("content", [b"", b"MZ" * 300, header("x")[:0x210]])
def test_image_release_is_none_for_a_file_that_is_no_kernel(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "linux").write_bytes(content)
    assert loader.image_release(str(tmp_path / "linux")) is None
    assert loader.image_release(str(tmp_path / "gone")) is None


# bootctl lists only names of letters, digits, +, -, _ and a point.
NAMES = ["a", "b", "0123-6.1.0-9-amd64", "0123-6.1.0-10-amd64", "debian-6.12.1+deb13", "Z", "debian_6.1", "arch-linux"]  # fmt: skip
VERSIONS = ["6.1.0-9-amd64", "6.1.0-10-amd64", "6.12~rc1", "6.12", "6.12.1+deb13-amd64", "1", ""]


def generated_entries(draw: random.Random) -> dict[str, str]:
    """Type #1 entries: file name -> content."""
    found = {}
    for name in draw.sample(NAMES, draw.randint(2, 6)):
        counter = draw.choice(["", "", "", "+0-3", "+2", "+1-2", "+0"])
        rows = [f"title {name}", "linux /k/linux"]
        if draw.random() < 0.6:
            rows.append(f"sort-key {draw.choice(['debian', 'alpha', 'ubuntu'])}")
        if draw.random() < 0.4:
            rows.append(f"machine-id {draw.choice(['0' * 32, '1' * 32])}")
        version = draw.choice(VERSIONS)
        rows += [f"version\t{version}"] if version else []
        found[f"{name}{counter}.conf"] = "\n".join(rows) + "\n"
    return found


def test_generated_entries_are_in_the_order_of_bootctl(tmp_path: Path) -> None:
    """60 partitions, listed by systemd's own program. It wants the root of a file system: a tmpfs of a namespace."""
    if not (shutil.which("bootctl") and shutil.which("unshare")):
        pytest.skip("needs bootctl (package systemd-boot)")
    draw = random.Random(34)  # noqa: S311
    made = [generated_entries(draw) for _ in range(60)]
    for number, files in enumerate(made):
        (tmp_path / f"{number}/loader/entries").mkdir(parents=True)
        (tmp_path / f"{number}/k").mkdir()
        (tmp_path / f"{number}/k/linux").touch()
        for name, text in files.items():
            (tmp_path / f"{number}/loader/entries" / name).write_text(text)
    (tmp_path / "esp").mkdir()
    script = f"""cd "$1" && mount -t tmpfs tmpfs esp && for n in $(seq 0 {len(made) - 1}); do
        rm -rf esp/*; cp -r $n/. esp; bootctl list --esp-path="$1/esp" --json=short >$n/out; done"""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    environment = {**os.environ, "SYSTEMD_RELAX_ESP_CHECKS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        pytest.skip(f"no mount in a namespace: {done.stderr.strip()}")
    wrong = []
    for number, files in enumerate(made):
        # 252 prints an object a line; later releases print a list
        text = (tmp_path / f"{number}/out").read_text().strip()
        rows = json.loads(text if text.startswith("[") else f"[{','.join(text.splitlines())}]")
        expected = [row["path"].rpartition("/")[2] for row in rows if row.get("path")]
        listed = loader.ordered([loader.parse(name, text) for name, text in files.items()])
        if [entry.file for entry in listed] != expected:
            wrong.append((files, expected, [entry.file for entry in listed]))
    assert wrong == []
