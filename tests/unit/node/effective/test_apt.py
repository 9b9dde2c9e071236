"""Pins and the fence of unattended upgrades against `apt-cache policy` and `apt-config dump`, in roots of their own."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.effective import apt, apt_conf
from goldnode.node.ground.host import Host
from goldnode.node.state.deferred import APT
from goldnode.node.state.domains.apt import PINS, pins

CACHE, CONFIG = shutil.which("apt-cache"), shutil.which("apt-config")
pytestmark = pytest.mark.skipif(not (CACHE and CONFIG), reason="no apt here")
NAMES = (
    "libnvidia-ml1",
    "nvidia-driver",
    "libcuda1",
    "linux-image-6.1.0-902-amd64",
    "cuda-drivers",
    "vim",
)
WORDS = (
    *NAMES[:3],
    "nvidia-*",
    "lib*",
    "/^nvid/",
    "/cuda/",
    "/NVIDIA-DRIVER$/",
    "lib????1",
    "[ln]*-ml1",
    "other",
    "vim:amd64",
)
OWN = "/etc/apt/apt.conf.d/52goldnode-fence"


def run(root: Path, *command: str) -> str:
    (root / "apt.conf").write_text(
        f'Dir "{root}/";\nDir::State::status "{root}/status";\nAPT::Architecture "amd64";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(root / "apt.conf"), "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr}"


def prepared(root: Path) -> None:
    for name in ("etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/sources.list.d"):
        (root / name).mkdir(parents=True)
    for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (root / name).mkdir(parents=True)
    stanzas = [
        f"Package: {name}\nStatus: install ok installed\nMaintainer: x\nArchitecture: amd64\n"
        "Version: 535.2-1\nDescription: x\n"
        for name in NAMES
    ]
    (root / "status").write_text("\n".join(stanzas))


def preferences(choice: random.Random) -> str:
    """Return stanzas as people write them: comments, further fields, several packages, folded lines."""
    stanzas = []
    for _ in range(choice.randint(1, 4)):
        words = choice.sample(WORDS, choice.randint(1, 3))
        lines = [choice.choice(["Package: ", "package:", "Package:  "]) + words[0]]
        for word in words[1:]:
            if choice.random() < 0.3:
                lines.append(choice.choice([f" {word}", f"\t{word}"]))
            else:
                lines[-1] += f" {word}"
        lines.append(choice.choice(["Pin: version 535.*", "Pin: version *", "pin:version 535.2-1"]))
        lines.append(f"Pin-Priority: {choice.choice([1001, 900, 100, 1, -1, -10])}")
        if choice.random() < 0.3:
            lines.insert(choice.randint(0, len(lines)), "# a comment: Package: vim")
        if choice.random() < 0.3:
            lines.insert(0, "Explanation: because")
        stanzas.append("\n".join(lines))
    # Neither a line with a space nor a comment ends a stanza.
    between = choice.choice(["\n\n", "\n\n", "\n \n", "\n#\n"])
    return choice.choice(["", "\n", "# head\n"]) + between.join(stanzas) + choice.choice(["", "\n"])


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_pinned_packages_are_those_of_apt(tmp_path: Path, start: int) -> None:
    for seed in range(start, start + 20):
        choice = random.Random(seed)  # noqa: S311 - cases, not keys
        root = tmp_path / str(seed)
        prepared(root)
        files = ["10-mine", "nvidia.pref", "zz", "old.save", "a~", "x.pref.dpkg-old", ".hidden"]
        for name in choice.sample(files, choice.randint(1, 4)):
            (root / "etc/apt/preferences.d" / name).write_text(preferences(choice))
        if choice.random() < 0.4:
            (root / "etc/apt/preferences").write_text(preferences(choice))
        shown = run(root, str(CACHE), "policy").partition("Pinned packages:")[2]
        expected = dict(re.findall(r"^\s+(\S+) -> \S+ with priority (-?\d+)$", shown, re.M))
        computed: dict[str, str] = {}
        for row in apt.pins(Host(str(root))):
            for name in NAMES:
                if apt.covers(row.package, name):
                    computed.setdefault(name, str(row.priority))  # the first one counts
        assert computed == expected, seed


POLICY = 'APT::Get::Phase-Policy "1";\n'
NEVER = 'APT::Get::Never-Include-Phased-Updates "1";\n'


def phased(root: Path, installed: str, selection: str, options: str) -> None:
    """A node with an archive in which version 2.0 of p has reached no machine, and q 2.0 needs it."""
    prepared(root)

    def stanza(name: str, version: str, more: str = "") -> str:
        return (
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: x\nDescription: x\n"
            f"Filename: {name}.deb\nSize: 1\nSHA256: {'0' * 64}\n{more}\n"
        )

    rows = [stanza("p", "1.0"), stanza("p", "2.0", "Phased-Update-Percentage: 0\n")]
    rows += [stanza("q", "1.0"), stanza("q", "2.0", "Depends: p (>= 2.0)\n")]
    (root / "archive").mkdir()
    (root / "archive/Packages").write_text("".join(rows))
    source = f"deb [trusted=yes] file:{root}/archive ./\n"
    (root / "etc/apt/sources.list").write_text(source)
    status = f"Status: {selection} ok installed\n"
    (root / "status").write_text(stanza("p", installed, status) + stanza("q", "1.0", status))
    (root / "etc/apt/apt.conf.d/10site").write_text(options)
    assert "failed" not in run(root, "apt-get", "-q", "update", "-o", "APT::Sandbox::User=root")


def changes(root: Path, *words: str) -> list[str]:
    """What apt-get would install: package, old version, new version."""
    shown = run(root, "apt-get", "-s", "-o", "Debug::NoLocking=1", *words)
    assert "failed" not in shown, shown
    return re.findall(r"^Inst (\S+ \[\S+\] \(\S+)", shown, re.M)


def pinned(root: Path, version: str) -> None:
    document: Any = {
        "stack": {"name": "x"},
        "packages": [{"name": "p", "version": version}],
        "fence": [],
    }
    (root / PINS[1:]).write_text(pins(document).content)


@pytest.mark.parametrize("options", ["", NEVER, NEVER + POLICY])
@pytest.mark.parametrize("selection", ["install", "hold"])
def test_locked_version_that_is_phased_is_installed_and_stays(
    tmp_path: Path, selection: str, options: str
) -> None:
    request = (*APT[1:], "--allow-downgrades", "--allow-change-held-packages", "install", "p=2.0")
    phased(tmp_path / "before", "1.0", selection, options)
    pinned(tmp_path / "before", "2.0")
    assert changes(tmp_path / "before", *request) == ["p [1.0] (2.0"]
    if (
        options
    ):  # people's upgrades leave it to its phase: goldnode finds that the lock is not installed
        assert changes(tmp_path / "before", "dist-upgrade") == []
    phased(tmp_path / "after", "2.0", selection, options)
    pinned(tmp_path / "after", "2.0")
    later = [*changes(tmp_path / "after", *request), *changes(tmp_path / "after", "dist-upgrade")]
    assert [row for row in later if row.startswith("p ")] == []


@pytest.mark.parametrize("options", ["", NEVER, NEVER + POLICY])
def test_dependency_that_is_phased_is_installed_with_the_lock(tmp_path: Path, options: str) -> None:
    phased(tmp_path, "1.0", "install", options)
    assert changes(tmp_path, *APT[1:], "install", "q=2.0") == ["p [1.0] (2.0", "q [1.0] (2.0"]


@pytest.mark.parametrize("options", ["", 'APT::Get::Always-Include-Phased-Updates "1";\n'])
def test_phased_version_does_not_replace_the_locked_one(tmp_path: Path, options: str) -> None:
    phased(tmp_path, "1.0", "install", options)
    pinned(tmp_path, "1.0")
    assert changes(tmp_path, "dist-upgrade") == []


# Text after the fence -> whether it is cleared.
CLEARED = {
    "nothing": ("", False),
    "whole list": (f"#clear {apt.FENCE};\n", True),
    "a name in another case": ("#clear unattended-upgrade::package-blacklist;\n", True),
    "the word in another case is a comment": (f"#CLEAR {apt.FENCE};\n", False),
    "the scope above": ("#clear Unattended-Upgrade;\n", True),
    "another list": ("#clear Unattended-Upgrade::Allowed-Origins;\n", False),
    "a comment": (f"// #clear {apt.FENCE};\n", False),
    "with a blank": (f"# clear {apt.FENCE};\n", False),
    "a second list": (f'{apt.FENCE} {{ "vim"; }};\n', False),
    "an empty value": (f'{apt.FENCE} "";\n', False),
    "of the list's end": (f"#clear {apt.FENCE}::;\n", None),
}


@pytest.mark.parametrize("case", CLEARED)
@pytest.mark.parametrize("name", ["apt.conf.d/60mine", "apt.conf.d/99x.conf", "apt.conf"])
def test_a_fence_that_is_cleared(tmp_path: Path, case: str, name: str) -> None:
    text, expected = CLEARED[case]
    prepared(tmp_path)
    (tmp_path / OWN[1:]).write_text(f'{apt.FENCE} {{\n  "nvidia-driver$";\n}};\n')
    (tmp_path / "etc/apt" / name).write_text(text)
    shown = run(tmp_path, str(CONFIG), "dump", apt.FENCE)
    there = "nvidia-driver$" in shown
    if expected is not None:
        assert there is not expected
        assert bool(apt.cleared(apt_conf.read(Host(str(tmp_path))), OWN)) is expected
    else:
        assert there
        assert not apt.cleared(apt_conf.read(Host(str(tmp_path))), OWN)


# Text of a file of apt.conf.d -> the option that makes apt ignore holds, or read its preferences elsewhere.
LOOSE = {
    "a hold is ignored": ('APT::Ignore-Hold "true";\n', "Ignore-Hold"),
    "in its scope": (
        'APT {\n  Get { Allow-Change-Held-Packages "1"; };\n};\n',
        "Allow-Change-Held",
    ),
    "one line": ("apt::get::allow-change-held-packages yes;\n", "allow-change-held"),
    "other preferences": ('Dir::Etc::PreferencesParts "/opt/pins";\n', "PreferencesParts"),
    "other main file": ('Dir { Etc { preferences "site.pref"; }; };\n', "preferences"),
    "a no": ('APT::Ignore-Hold "false";\n', None),
    "a zero": ("APT::Ignore-Hold 0;\n", None),
    "the default": ('Dir::Etc::PreferencesParts "preferences.d";\n', None),
    "a comment": ('// APT::Ignore-Hold "true";\n# APT::Ignore-Hold "true";\n', None),
    "taken back later": ("APT::Ignore-Hold 1;\nAPT { Ignore-Hold no; };\n", None),
    "cleared later": ("APT::Ignore-Hold 1;\n#clear APT::Ignore-Hold;\n", None),
    "in a comment of several lines": ("/*\nAPT::Ignore-Hold 1;\n*/\n", None),
    "over two lines": ("APT::Ignore-Hold\n  1;\n", "Ignore-Hold"),
    "another option": ('APT::Get::Assume-Yes "true";\n', None),
}


@pytest.mark.parametrize("case", LOOSE)
def test_options_that_loosen_the_stack(tmp_path: Path, case: str) -> None:
    text, option = LOOSE[case]
    prepared(tmp_path)
    (tmp_path / "etc/apt/apt.conf.d/10site").write_text(text)
    dumped = run(tmp_path, str(CONFIG), "dump")
    values = dict(re.findall(r'^(\S+) "(.*)";$', dumped, re.M))
    holds = ("APT::Ignore-Hold", "APT::Get::Allow-Change-Held-Packages")
    by_apt = any(
        values.get(name, "").lower() in ("true", "1", "yes")
        for key in holds
        for name in values
        if name.lower() == key.lower()
    )
    places = [value for name, value in values.items() if name.lower().startswith("dir::etc::pref")]
    by_apt = by_apt or bool(set(places) - {"preferences", "preferences.d"})
    rows = apt.loosened(apt_conf.read(Host(str(tmp_path))))
    assert bool(rows) is by_apt is bool(option)
    if option:
        assert rows[0].startswith("/etc/apt/apt.conf.d/10site:")
        assert option.lower() in rows[0].lower()


def test_a_file_before_the_fence_does_not_clear_it(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / OWN[1:]).write_text(f'{apt.FENCE} {{ "nvidia-driver$"; }};\n')
    for name in ("50unattended-upgrades", "zz.save"):
        (tmp_path / "etc/apt/apt.conf.d" / name).write_text(f"#clear {apt.FENCE};\n")
    assert "nvidia-driver" in run(tmp_path, str(CONFIG), "dump", apt.FENCE)
    assert apt.cleared(apt_conf.read(Host(str(tmp_path))), OWN) == []


@pytest.mark.parametrize(
    ("pin", "priority", "expected"),
    [
        ("version 535.2-1", 1001, True),
        ("version 535.*", 600, True),
        ("version 550.*", 600, False),
        ("version *", 600, False),
        ("release o=NVIDIA", 600, False),
        ("version 535.*", -1, False),
    ],
)
def test_pins_that_agree(pin: str, priority: int, expected: bool) -> None:
    assert apt.agrees(apt.AptPin("f", 1, "nvidia-driver", pin, priority), ["535.2-1"]) is expected
