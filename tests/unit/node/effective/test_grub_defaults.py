# ruff: noqa: E501
"""GRUB's defaults as sh reads them: generated files, files that people have, and the place of each word."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective import grub_defaults
from goldnode.node.ground.host import Host

NAMES = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT", "GRUB_DEFAULT", "GRUB_TIMEOUT")
D = "/etc/default/grub.d/"
# What grub-mkconfig does (2.06 and 2.12): the file, then the drop-ins that are there, in one shell.
SOURCE = """set -e; cd "$1"; [ ! -f etc/default/grub ] || . ./etc/default/grub
for x in ./etc/default/grub.d/*.cfg; do [ ! -e "$x" ] || . "$x"; done
printf '%s\\0' "${GRUB_CMDLINE_LINUX}" "${GRUB_CMDLINE_LINUX_DEFAULT}" "${GRUB_DEFAULT}" "${GRUB_TIMEOUT}"
"""


def sourced(root: Path) -> list[str] | None:
    """The values in sh, or None where it stops."""
    done = subprocess.run(["sh", "-c", SOURCE, "sh", root], capture_output=True, check=False)
    return done.stdout.decode().split("\0")[:-1] if done.returncode == 0 else None


VALUES = ["quiet", '"quiet splash"', "'a  b'", '""', "''", '"quiet \\\nintel_iommu=off"', '"one\ntwo"', "a\\ b", '"a\\"b"', "'a\"b'",
          '"$GRUB_CMDLINE_LINUX iommu=pt"', '"${GRUB_CMDLINE_LINUX_DEFAULT} x=1"', '"${GRUB_CMDLINE_LINUX:-none} y"', "${GRUB_TIMEOUT:+\"set it\"}",
          "$GRUB_DEFAULT'q'\"r\"", '"a # b"', "a#b", 'quiet # why', '"\\$HOME"', '"Advanced options>Debian, 6.1"', 'x"y"z;', "a\\\nb",
          '"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }t"', '"${UNSET}"', '"${UNSET-d e}"', '"x=\'y\'"', '"a\\b"', "100%", "$"]  # fmt: skip
OTHERS = ["", "# a comment", "  # another \\", "export {}", "GRUB_CMDLINE_LINUX=; GRUB_DEFAULT=2", "(GRUB_DEFAULT=9)", "true", "\tGRUB_TIMEOUT=5",
          "unrelated='x y'", "GRUB_TIMEOUT=7 true", "GRUB_TIMEOUT=1 GRUB_DEFAULT=$GRUB_TIMEOUT"]  # fmt: skip


def generated(draw: random.Random) -> dict[str, str]:
    found = {}
    for name in [
        "/etc/default/grub",
        D + "50-a.cfg",
        D + "kdump-tools.cfg",
        D + "x.cfg.bak",
        D + ".z.cfg",
    ]:
        if draw.random() < 0.8:
            rows = [
                draw.choice(OTHERS).replace("{}", "GRUB_TIMEOUT=3")
                if draw.random() < 0.3
                else f"{draw.choice(['', '', 'export ', ' '])}{draw.choice(NAMES)}={draw.choice(VALUES)}"
                for _ in range(draw.randint(1, 5))
            ]
            found[name] = "\n".join(rows) + draw.choice(["\n", ""])
    return found


def test_generated_files_have_the_values_of_sh(tmp_path: Path) -> None:
    draw, wrong = random.Random(34), []  # noqa: S311
    for number in range(120):
        files = generated(draw)
        root = make(tmp_path / f"{number}", files)
        expected = sourced(root)
        defaults = grub_defaults.read(Host(str(root)))
        refused = defaults.error and "GRUB cannot read" not in defaults.error
        if [defaults.text(name) for name in NAMES] != expected or refused:
            wrong.append((files, expected, [defaults.text(name) for name in NAMES], defaults.error))
    assert wrong == []


# What people and packages have: files, and the words in effect with the place of each.
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "a value over two lines": ({"/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet \\\nintel_iommu=off"\n'}, ["quiet grub:1", "intel_iommu=off grub:2"]),
    "a cloud image replaces the words of the main file": (
        {"/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash iommu=off"\n',
         D + "50-cloudimg-settings.cfg": '# Cloud Image specific Grub settings\nGRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX_DEFAULT="console=tty1 console=ttyS0"\n'},
        ["console=tty1 50-cloudimg-settings.cfg:3", "console=ttyS0 50-cloudimg-settings.cfg:3"]),
    "kdump-tools appends": (
        {"/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', D + "kdump-tools.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=2G-:192M"\n'},
        ["quiet grub:1", "crashkernel=2G-:192M kdump-tools.cfg:1"]),
    "tuned's line": ({"/etc/default/grub": 'tuned_params="isolcpus=2"\nGRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }$tuned_params"\n'}, ["isolcpus=2 grub:1"]),
    "the distributor is the output of a command": (
        {"/etc/default/grub": 'GRUB_DISTRIBUTOR=`lsb_release -i -s 2> /dev/null || echo Debian`\nGRUB_CMDLINE_LINUX="a"\nGRUB_DISTRIBUTOR=$( . /etc/os-release; echo "${NAME:-x)}" )\nGRUB_CMDLINE_LINUX_DEFAULT=b\n'},
        ["a grub:2", "b grub:4"]),
    "a condition may or may not be met": (
        {"/etc/default/grub": 'GRUB_CMDLINE_LINUX="a"\nif [ -d /sys/firmware/efi ]; then\n  GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX b"\nfi\ncase "$(uname -m)" in x86_64) GRUB_CMDLINE_LINUX_DEFAULT=c;; esac\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX d"\n'},
        ["a grub:1", "a? grub:1", "b? grub:3", "d grub:6", "c? grub:5"]),
    "a command's own environment": ({"/etc/default/grub": "GRUB_CMDLINE_LINUX=quiet splash\n"}, []),
    "+= is no assignment of sh": ({"/etc/default/grub": 'GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX+=" b"\n'}, ["a grub:1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_word_has_the_place_that_brought_it(tmp_path: Path, name: str) -> None:
    files, expected = CASES[name]
    words = grub_defaults.read(Host(str(make(tmp_path, files)))).words(*NAMES[:2])
    assert [
        f"{word.text}{'' if word.certain else '?'} {word.file.rpartition('/')[2]}:{word.line}"
        for word in words
    ] == expected


# Values that sh takes, and grub-mkconfig of GRUB 2.06 to 2.14 copies into a menu that GRUB cannot read.
UNREADABLE = {
    'GRUB_CMDLINE_LINUX="a > b"': "GRUB_CMDLINE_LINUX has a >",
    "GRUB_CMDLINE_LINUX_DEFAULT='a\"b'": 'GRUB_CMDLINE_LINUX_DEFAULT has a "',
    'GRUB_CMDLINE_LINUX="quiet don\'t"': "GRUB_CMDLINE_LINUX has a '",
    "GRUB_CMDLINE_LINUX='pw=$'": "GRUB_CMDLINE_LINUX has a $",
    "GRUB_CMDLINE_LINUX='a|b'": "GRUB_CMDLINE_LINUX has a |",
    "GRUB_CMDLINE_LINUX='a={b'": "GRUB_CMDLINE_LINUX has a {",
    "GRUB_CMDLINE_LINUX='a}'": "GRUB_CMDLINE_LINUX has a }",
    "GRUB_DEFAULT='Debian \"sid\" $'": "GRUB_DEFAULT has a $",
    "GRUB_TIMEOUT='1>2'": "GRUB_TIMEOUT has a >",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_value_that_grub_cannot_read_is_an_error(tmp_path: Path, text: str) -> None:
    root = make(tmp_path, {"/etc/default/grub": f"# x\n{text}\n"})
    assert sourced(root) is not None
    error = f"/etc/default/grub:2: {UNREADABLE[text]} that GRUB cannot read: grub-mkconfig writes no menu"
    assert grub_defaults.read(Host(str(root))).error == error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GRUB_CMDLINE_LINUX='a # b'", ["a"]),
        ("GRUB_CMDLINE_LINUX='a#b c'", ["a#b", "c"]),
        ("GRUB_CMDLINE_LINUX='a\nb'; GRUB_CMDLINE_LINUX_DEFAULT=c", ["a"]),
        ("GRUB_CMDLINE_LINUX='a; b'", ["a"]),
        ("GRUB_CMDLINE_LINUX='dyndbg=\"file x +p\" b'", ["dyndbg=file x +p", "b"]),
        ("GRUB_CMDLINE_LINUX=\"x='y z'\"", ["x=y z"]),
        ("GRUB_CMDLINE_LINUX='a\\ b \\$c \"\\$d\"'", ["a b", "$c", "$d"]),
        ("GRUB_CMDLINE_LINUX='a $root'; GRUB_CMDLINE_LINUX_DEFAULT='b'", ["a", "$root", "b"]),
    ],
)
def test_words_are_those_of_grubs_script(tmp_path: Path, text: str, words: list[str]) -> None:
    defaults = grub_defaults.read(Host(str(make(tmp_path, {"/etc/default/grub": text + "\n"}))))
    assert [word.text for word in defaults.words(*NAMES[:2])] == words
    assert defaults.error is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="quiet\nGRUB_DEFAULT=0\n', '/etc/default/grub:2: a " has no end'),
        ("GRUB_CMDLINE_LINUX='quiet\n", "/etc/default/grub:1: a ' has no end"),
    ],
)  # fmt: skip
def test_quote_without_an_end_is_an_error_as_in_sh(tmp_path: Path, text: str, error: str) -> None:
    root = make(tmp_path, {"/etc/default/grub": text})
    assert sourced(root) is None
    assert grub_defaults.read(Host(str(root))).error == error
