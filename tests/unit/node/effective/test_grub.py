"""Reading GRUB's next choice: as the real GRUB chose (cases.json), and where it must say that it cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.reader import booted_by_id
from tests.unit.node.fixtures.grub import record

from goldnode.node.effective import grub

HERE = Path(record.__file__).parent
CASES: list[dict[str, Any]] = json.loads((HERE / "cases.json").read_text())
UUID = "0b1f7a5e-3c52-4d55-9a3e-4c1b7a0f2d11"
SUBMENU = f"gnulinux-advanced-{UUID}"
OLD, NEW = "6.1.0-55-amd64", "6.1.0-56-amd64"


def text(name: str = "debian12-default") -> str:
    return (HERE / f"{name}.cfg").read_text()


def block(**values: str) -> bytes:
    return record.environment({"env": values})


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_chooses_what_the_real_grub_chose(case: dict[str, Any]) -> None:
    choice = grub.next_boot(record.build(case), record.environment(case), case.get("custom"))
    assert choice.entry is not None
    assert choice.entry.id_path == case["chosen"]
    assert choice.release == choice.entry.release
    assert choice.release is not None


def test_reader_of_the_node_suite_agrees_or_returns_none() -> None:
    reported = []
    for case in CASES:
        if not case.keys() & {"custom", "after", "rawenv"}:
            config, stored = record.build(case), grub.environment(record.environment(case))
            bare = booted_by_id(config, stored)
            assert bare in (None, grub.next_boot(config, record.environment(case)).release), case[
                "name"
            ]
            reported.append(bare)
    assert len({release for release in reported if release}) >= 4
    assert sum(release is not None for release in reported) >= 9


def test_the_recorded_cases_are_not_all_the_same() -> None:
    assert len({case["chosen"] for case in CASES}) > 8
    assert all(case["chosen"] for case in CASES)


@pytest.mark.parametrize(
    ("default", "env", "cfg", "via", "fallback", "words"),
    [
        ("0", {}, "debian12-default", "default", False, 'grub.cfg sets default "0"'),
        (
            "0",
            {"next_entry": "1>2"},
            "debian12-default",
            "next_entry",
            False,
            'grubenv has next_entry="1>2"',
        ),
        ("nope", {}, "debian12-default", "default", True, "falls back to the first entry"),
        ("1>nope", {}, "debian12-default", "default", True, "falls back to the first entry"),
        ("1", {}, "debian12-default", "default", False, 'default "1"'),
        (
            None,
            {},
            "debian12-saved",
            "saved_entry",
            False,
            "grubenv has no saved_entry: the first entry boots",
        ),
        (
            None,
            {"saved_entry": "1>2"},
            "debian12-saved",
            "saved_entry",
            False,
            'grubenv has saved_entry="1>2"',
        ),
        (None, {"saved_entry": "gone"}, "debian12-saved", "saved_entry", True, "not in the menu"),
    ],
)
def test_next_boot_states_its_source_and_reason(
    default: str | None, env: dict[str, str], cfg: str, via: str, fallback: bool, words: str
) -> None:
    case = {"cfg": cfg, "env": env} | ({} if default is None else {"default": default})
    choice = grub.next_boot(record.build(case), record.environment(case))
    assert (choice.via, choice.fallback) == (via, fallback)
    assert words in choice.reason


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ("", "no menu entry"),
        ("set default=0\n", "no menu entry"),
        ("if [ a = a ]; then\n", "grub.cfg:1: ends before its elif or else or fi"),
        ("\n\nfi\n", "grub.cfg:3: fi has nothing to close"),
        ("menuentry x {\n", "grub.cfg:1: ends before its }"),
        ("\nset default='0\n", "grub.cfg:2: a ' has no end"),
        ('set default="0\n', 'grub.cfg:1: a " has no end'),
        ("function f { f ; }\nf\n", "calls itself"),
        ("submenu x { " * 3000 + "}" * 3000, "nests too deep"),
        ("blscfg\n", "grub.cfg:1: blscfg cannot be followed"),
        ("source /boot/grub/other.cfg\n", "source cannot be followed"),
        (
            "if [ -f /boot/grub/x ]; then\n configfile /boot/grub/x\nfi\nmenuentry a { linux /vmlinuz-1 ; }\n",
            "grub.cfg:2: configfile",
        ),
        (
            "menuentry a { linux /vmlinuz-1 ; }\nset default=$grub_platform\n",
            "only the boot itself",
        ),
        (
            "menuentry a { linux /vmlinuz-1 ; }\nif [ $grub_platform = efi ]; then default=a; else default=b; fi\n",
            "only the boot itself",
        ),
        (
            "menuentry a { linux /vmlinuz-1 ; }\nload_env -f /boot/efi/env\nset default=$saved_entry\n",
            "only the boot itself",
        ),
        (
            "menuentry a { linux /vmlinuz-1 ; }\nregexp --set 1:x --set=default y z\n",
            "only the boot itself",
        ),
        (
            "if loadfont x ; then\nmenuentry a { linux /vmlinuz-1 ; }\nfi\nmenuentry b { linux /vmlinuz-2 ; }\nset default=1\n",
            "does not decide",
        ),
        ("for i in a b; do\nmenuentry $i { linux /vmlinuz-1 ; }\ndone\n", "does not decide"),
        ("submenu empty {\n}\n", "leads to no entry"),
        ("menuentry a { chainloader +1 ; }\n", "names no kernel release"),
        ("menuentry a { linux /vmlinuz ; }\n", "names no kernel release"),
        (
            "menuentry a { if [ x = $root ]; then linux /vmlinuz-1 ; else linux /vmlinuz-2 ; fi ; }\n",
            "names no kernel release",
        ),
    ],
)
def test_ambiguous_configuration_gives_no_release_and_a_reason(cfg: str, words: str) -> None:
    choice = grub.next_boot(cfg, b"")
    assert choice.release is None
    assert words in choice.reason


@pytest.mark.parametrize(
    ("default", "release"),
    [
        ("b", "2"),  # a name is found also behind an entry that may not be there
        ("a", None),
        ("0", None),
        ("gone", None),  # the first entry boots, and which one that is nobody knows
    ],
)
def test_an_entry_that_may_not_be_there(default: str, release: str | None) -> None:
    cfg = "if loadfont x ; then\nmenuentry a { linux /vmlinuz-1 ; }\nfi\nmenuentry b { linux /vmlinuz-2 ; }\n"
    assert grub.next_boot(f"{cfg}set default={default}\n", b"").release == release


def test_a_condition_that_changes_nothing_is_decided() -> None:
    cfg = "menuentry a { linux /vmlinuz-1 ; }\ndefault=0\nif [ $grub_platform = efi ]; then default=0; fi\n"
    assert grub.next_boot(cfg, b"").release == "1"


def test_a_broken_environment_block_is_reported_and_not_used() -> None:
    choice = grub.next_boot(text("debian12-saved"), b"saved_entry=1>2\n")
    assert choice.release == NEW
    assert "no environment block signature" in choice.reason


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"", {}),
        (grub.SIGNATURE + b"#" * 999, {}),
        (block(a="1", b="2=3"), {"a": "1", "b": "2=3"}),
        (block(a="x\\y", b="two\nlines", c=""), {"a": "x\\y", "b": "two\nlines", "c": ""}),
        (block(next_entry="1>2"), {"next_entry": "1>2"}),
    ],
)
def test_grubenv_block_is_parsed(raw: bytes, values: dict[str, str]) -> None:
    assert grub.environment(raw) == values


def test_environment_refuses_what_grub_refuses() -> None:
    with pytest.raises(grub.GrubError, match="signature"):
        grub.environment(b"a=1\n")


@pytest.mark.parametrize(
    ("cfg", "rows"),
    [
        (
            "debian12-default",
            [
                (NEW, "0", False),
                (NEW, "1>0", False),
                (NEW, "1>1", True),
                (OLD, "1>2", False),
                (OLD, "1>3", True),
            ],
        ),
        (
            "debian12-flat",
            [(NEW, "0", False), (NEW, "1", True), (OLD, "2", False), (OLD, "3", True)],
        ),
        (
            "debian13-default",
            [
                ("6.12.117+deb13-amd64", "0", False),
                ("6.12.117+deb13-amd64", "1>0", False),
                ("6.12.117+deb13-amd64", "1>1", True),
                ("6.12.107+deb13-amd64", "1>2", False),
                ("6.12.107+deb13-amd64", "1>3", True),
                ("6.12.94+deb13-amd64", "1>4", False),
                ("6.12.94+deb13-amd64", "1>5", True),
                (None, "2", False),
            ],
        ),
    ],
)
def test_entries_have_release_index_and_recovery(
    cfg: str, rows: list[tuple[str | None, str, bool]]
) -> None:
    assert [(e.release, e.index_path, e.recovery) for e in grub.entries(text(cfg))] == rows


def test_paths_of_an_entry() -> None:
    entry = grub.entries(text())[3]
    assert entry.id_path == f"{SUBMENU}>gnulinux-{OLD}-advanced-{UUID}"
    assert (
        entry.title_path
        == f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}"
    )


def test_the_firmware_entry_of_debian_13_is_not_certain() -> None:
    found = grub.entries(text("debian13-default"))
    assert [e.certain for e in found] == [True] * 7 + [False]
    assert found[-1].id_path == "uefi-firmware"


@pytest.mark.parametrize(
    ("cfg", "release", "index"),
    [
        (
            "debian12-default",
            NEW,
            "1>0",
        ),  # not the top entry, which moves when a newer kernel comes
        ("debian12-default", OLD, "1>2"),
        ("debian12-flat", OLD, "2"),
        ("debian13-default", "6.12.94+deb13-amd64", "1>4"),
        ("guest", "6.1.0-55-amd64", "1>2"),
        ("debian12-default", "6.1.0-5-amd64", None),
        ("debian12-default", "5.10.0-1-amd64", None),
    ],
)
def test_entry_for_a_release_has_its_index_or_is_none(
    cfg: str, release: str, index: str | None
) -> None:
    entry = grub.entry_for(text(cfg), release)
    assert (entry and entry.index_path) == index


def test_entry_for_takes_the_simple_entry_when_there_is_no_other() -> None:
    entry = grub.entry_for(
        "menuentry Linux --id simple { linux /boot/vmlinuz-6.1 root=/dev/vda ; }\n", "6.1"
    )
    assert entry is not None
    assert entry.id_path == "simple"


@pytest.mark.parametrize(
    "line",
    [
        "linux /vmlinuz-6.1 ro single",
        "linux /vmlinuz-6.1 systemd.unit=rescue.target",
        "linux /vmlinuz-6.1 emergency",
        "linuxefi /vmlinuz-6.1 1",
    ],
)
def test_entry_for_never_takes_a_rescue_entry(line: str) -> None:
    assert grub.entry_for(f"menuentry 'Linux 6.1' {{ {line} ; }}\n", "6.1") is None


@pytest.mark.parametrize(
    "name", ["debian12-default", "debian12-saved", "debian12-flat", "debian13-default", "guest"]
)
def test_writing_the_selector_boots_the_entry(name: str) -> None:
    """Round trip: what selector says, put into GRUB_DEFAULT, leads back to the same entry."""
    for entry in grub.entries(text(name)):
        choice = grub.next_boot(text(name) + f'\nset default="{entry.selector}"\n', b"")
        assert choice.entry == (entry if entry.certain else None)


def test_the_selector_of_an_id_that_reads_as_a_number_is_its_index() -> None:
    cfg = "menuentry a { linux /vmlinuz-1 ; }\nsubmenu '2 x>y' {\nmenuentry 6.1 { linux /vmlinuz-6.1 ; }\nmenuentry b { linux /vmlinuz-2 ; }\n}\n"
    assert [e.selector for e in grub.entries(cfg)] == ["a", "1>0", "1>b"]
    for entry in grub.entries(cfg):
        assert grub.next_boot(f"{cfg}set default='{entry.selector}'\n", b"").entry == entry


@pytest.mark.parametrize("text", ["{\n}\n", "\\", "menuentry", "if [ a ]; then {"])
def test_a_torn_file_is_reported_and_never_ends_the_observation(text: str) -> None:
    assert grub.next_boot(text, b"").release is None
