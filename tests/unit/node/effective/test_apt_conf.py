"""The reader of apt.conf against `apt-config dump`, over generated configurations in roots of their own.

A configuration that apt refuses must be refused with the file that apt names.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective import apt_conf
from goldnode.node.ground.host import Host

CONFIG = shutil.which("apt-config")
NAMES = (
    "Zz", "Zz::A", "zz::a::B", "Unattended-Upgrade", "Unattended-Upgrade::Package-Blacklist", "APT::Periodic",
    "APT::Periodic::Enable", "Zz::Hooks::", "Dir::Etc::preferencesparts", "Dir::Etc::Preferences", "Zz::::x", "Zz-b",
    "Zz:x", '"Zz"', "Zz%41", "A::",
)  # fmt: skip
VALUES = (
    '"1"', "1", "yes", '"a b"', '"x" "y"', '"x""y"', '"a // b"', '"a # b"', '"a /* b"', '""', '"%41x"', "%41x", 'a"b c"d',
    "[x y]", '"{;}"', "/abs/p", "", "'q'", '"x"   "y"', "a%2", '"a;b"',
)  # fmt: skip
COMMENTS = (
    '// a "comment\n', "# comment\n", "/* c */", '/* a\n b " */', "/* x */ // y\n", "# clear Zz;\n",
    "#hash;\n",
)  # fmt: skip
ODD = (
    "#clear;", "#CLEAR Zz;\n", "#include /more/c;\n", "#include /more/;\n", "#include /not/there;\n", "Zz a b;", "}", "{ x; }",
    ";", "#bad x;\n", 'Zz "open;\n', "Zz a",
)  # fmt: skip
FILES = ("10a", "20b.conf", "30c.bak", "5.x.conf", "60-d", "7:e", "zz.conf.")
# Scopes in which apt has no values of its own, except for the two directories.
COMPARED = ("zz", "unattended-upgrade", "apt::periodic", "dir::etc::pref")


def statement(choice: random.Random, depth: int) -> str:
    kind = choice.random()
    if kind < 0.45:
        return f"{choice.choice(NAMES)}{choice.choice([' ', '  ', chr(9)])}{choice.choice(VALUES)};"
    if kind < 0.6 and depth < 3:
        inner = [statement(choice, depth + 1) for _ in range(choice.randint(0, 3))]
        body = choice.choice([" ", "\n"]).join(inner)
        value, line = choice.choice(["", "", ' "v"', " v"]), choice.choice(["", "\n"])
        return (
            f"{choice.choice(NAMES[:-1])}{value}{choice.choice([' ', '', chr(10)])}"
            f"{{{line}{body}{line}}}{choice.choice([';', ''])}"
        )
    if kind < 0.7:
        return f"{choice.choice(VALUES[:8])};"
    if kind < 0.78:
        return choice.choice(COMMENTS)
    if kind < 0.86:
        return f"#clear {choice.choice(NAMES)};\n" if depth == 0 or choice.random() < 0.1 else ""
    return choice.choice(ODD) if kind < 0.88 else choice.choice(["\n", "", "\n\n", " "])


def body(choice: random.Random) -> str:
    rows = [statement(choice, 0) for _ in range(choice.randint(1, 7))]
    return choice.choice(["\n", " ", "\n"]).join(rows) + choice.choice(["\n", ""])


def generated(seed: int) -> dict[str, str]:
    """Files of a configuration, some of them under names that apt ignores."""
    choice = random.Random(seed)  # noqa: S311 - cases, not keys
    files = {"/more/a.conf": body(choice), "/more/b.txt": "Zz 9;", "/more/c": 'Zz::more "1";'}
    for name in choice.sample(FILES, choice.randint(1, 4)):
        files[f"/etc/apt/apt.conf.d/{name}"] = body(choice)
    if choice.random() < 0.4:
        files["/etc/apt/apt.conf"] = body(choice)
    return files


def dumped(root: Path, files: dict[str, str]) -> tuple[list[str], str]:
    """The settings that apt prints, by scope, and its errors. Paths in the files are those of the root."""
    make(root, {name: text.replace("/more/", f"{root}/more/") for name, text in files.items()})
    (root / "etc/apt/apt.conf.d").mkdir(parents=True, exist_ok=True)
    (root / "first.conf").write_text(f'Dir "{root}/";\n')
    environment = {**os.environ, "APT_CONFIG": str(root / "first.conf"), "LC_ALL": "C"}
    done = subprocess.run(
        [str(CONFIG), "dump"], env=environment, capture_output=True, check=False, text=True
    )
    rows = [line.replace(f"{root}/more", "/more") for line in done.stdout.splitlines()]
    return by_scope(rows), done.stderr.replace(str(root), "") if done.returncode else ""


def by_scope(lines: list[str]) -> list[str]:
    """The lines of each compared scope in apt's order. apt has scopes of its own before them."""
    return [line for scope in COMPARED for line in lines if line.lower().startswith(scope)]


def differences(root: Path, files: dict[str, str]) -> str:
    """How our answer differs from apt's, or an empty text."""
    shown, errors = dumped(root / "apt", files)
    configuration = apt_conf.read(Host(str(make(root / "own", files))))
    if errors or configuration.error:
        file = (configuration.error or "nothing").partition(":")[0]
        return "" if errors and file in errors else f"{errors!r} / {configuration.error!r}"
    own = by_scope([f'{row.name} "{row.value}";' for row in configuration.settings()])
    return "" if own == shown else f"{sorted(set(own) ^ set(shown))}"


@pytest.mark.skipif(CONFIG is None, reason="no apt here")
@pytest.mark.parametrize("start", range(0, 80, 20))
def test_generated_configuration_is_that_of_apt(tmp_path: Path, start: int) -> None:
    wrong = {}
    for seed in range(start, start + 20):
        difference = differences(tmp_path / str(seed), generated(seed))
        if difference:
            wrong[seed] = difference
    assert wrong == {}


# What packages and people have.
CASES = {
    "Debian's switches": {"/etc/apt/apt.conf.d/20auto-upgrades": 'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "0";\n'},
    "a switch in two files": {"/etc/apt/apt.conf.d/10periodic": "APT::Periodic { Enable 1; Verbose 0; };\n",
                              "/etc/apt/apt.conf.d/99off": 'apt::periodic::enable "0";\n'},
    "lists grow": {"/etc/apt/apt.conf.d/50a": 'Unattended-Upgrade::Package-Blacklist { "vim"; };\n',
                   "/etc/apt/apt.conf.d/60b": 'Unattended-Upgrade::Package-Blacklist:: "emacs";\nUnattended-Upgrade::Package-Blacklist { "nano" };\n'},
    "comments of all kinds": {"/etc/apt/apt.conf.d/50a": 'Zz::A "http://x"; // why\nZz::B "a # b"; # why\n/* Zz::C "1";\n#clear Zz;\n*/ Zz::D "2";\n'},
    "a part names another main file": {"/etc/apt/apt.conf.d/50a": 'Dir::Etc::main "other";\n',
                                       "/etc/apt/other": 'Zz::A "other";\n', "/etc/apt/apt.conf": 'Zz::A "usual";\n'},
    "no end": {"/etc/apt/apt.conf.d/50a": 'APT::Periodic::Enable "1"\n'},
    "no end of a quote": {"/etc/apt/apt.conf.d/50a": 'APT::Periodic::Enable "1;\n'},
    "two values": {"/etc/apt/apt.conf": "Zz a b;\n"},
    "files that include each other": {"/etc/apt/apt.conf": "#include /more/a;\n", "/more/a": "#include /more/a;\n"},
}  # fmt: skip


@pytest.mark.skipif(CONFIG is None, reason="no apt here")
@pytest.mark.parametrize("name", CASES)
def test_configuration_of_people_is_that_of_apt(tmp_path: Path, name: str) -> None:
    assert differences(tmp_path, CASES[name]) == ""


def configuration(root: Path, files: dict[str, str]) -> apt_conf.AptConfiguration:
    return apt_conf.read(Host(str(make(root, files))))


def test_setting_and_clearing_have_their_lines(tmp_path: Path) -> None:
    part = "/etc/apt/apt.conf.d/50a"
    text = '/* head\n*/\nZz {\n  A\n  "1";\n};\nZz::B:: "x";\n#clear\n Zz::A;\n'
    found = configuration(tmp_path, {part: text, "/etc/apt/apt.conf": 'zz::c "2"; Zz::C "3";'})
    assert [(row.name, row.value, row.where) for row in found.settings("zz") if row.value] == [
        ("Zz::B::", "x", f"{part}:7"),
        ("Zz::c", "3", "/etc/apt/apt.conf:1"),
    ]
    assert [(row.setting.where, row.where) for row in found.clearings] == [
        (f"{part}:4", f"{part}:8")
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('Zz "1";\n\nZz::A\n "2"\n', "/etc/apt/apt.conf:3: the last line has no ;"),
        ('Zz "1;\n', "/etc/apt/apt.conf:1: the last line has no ;"),
        ("Zz a b;\n", "/etc/apt/apt.conf:1: there is text after the value: b"),
        ("\n{ Zz; };\n", "/etc/apt/apt.conf:2: a { has no name before it"),
        ("Zz {\n#clear Zz;\n};\n", "/etc/apt/apt.conf:2: #clear is inside of a scope"),
        ("#clear;\n", "/etc/apt/apt.conf:1: #clear has no name after it"),
        ("#include /not;\n", "/etc/apt/apt.conf:1: /not does not exist"),
        ("#bad x;\n", None),  # it is a comment
    ],
)
def test_error_names_line_and_reason(tmp_path: Path, text: str, error: str | None) -> None:
    assert configuration(tmp_path, {"/etc/apt/apt.conf": text}).error == error


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", True), ("Yes", True), ("0x1", True), ("with", True), ("2", False), ("no", False), ("maybe", False)],
)  # fmt: skip
def test_truth_is_that_of_apt(tmp_path: Path, value: str, expected: bool) -> None:
    assert configuration(tmp_path, {"/etc/apt/apt.conf": f"Zz {value};"}).truth("Zz") is expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "/etc/apt/preferences.d"),
        ("Dir::Etc::preferencesparts /opt/pins/;", "/opt/pins"),
        ("Dir::Etc /opt;", "/opt/preferences.d"),
        ("Dir /node;", "/node/etc/apt/preferences.d"),
        ("RootDir /node;", "/node/etc/apt/preferences.d"),
        ("#clear Dir::Etc::preferencesparts;", "/dev/null"),
        ("#clear Dir;", "/dev/null"),
    ],
)
def test_directory_is_that_of_its_scopes(tmp_path: Path, text: str, path: str) -> None:
    found = configuration(tmp_path, {"/etc/apt/apt.conf": text})
    usual = {"Dir::Etc::PreferencesParts": "/etc/apt/preferences.d"}
    moved = apt_conf.moved(found, usual)
    assert found.path("Dir::Etc::preferencesparts")[0] == path
    assert bool(moved) == bool(text)
    assert all(row.startswith("/etc/apt/apt.conf:1 (") for row in moved)
