"""The reader of units against systemd itself: its manager in test mode, over generated directories of units."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from goldnode.node.effective import systemd
from goldnode.node.ground.host import Host

MANAGER = Path("/usr/lib/systemd/systemd")
# /lib is left out where it is a link.
DIRECTORIES = [name for name in systemd.DIRECTORIES if not name.startswith("/lib/")]
BARE = "[Unit]\nDefaultDependencies=no\n"
MAIN = {
    "service": BARE + "[Service]\nType=oneshot\nExecStart=/bin/echo base\n",
    "timer": BARE + "[Timer]\nOnActiveSec=77\nUnit=tt.service\n",
}
UNIT = (
    "ConditionPathExists=/nope{}",
    "ConditionPathExists=",
    "ConditionVirtualization=!container",
    "AssertPathExists=!/yes{}",
    "AssertPathExists=",
    "ConditionPathExists=|/z{}",
    "Description=d{}",
)
LINES = {
    "service": (
        "ExecStart=/bin/echo a{}",
        "ExecStart=",
        "ExecStart=-/bin/true b{}",
        "ExecStart=/bin/echo \\\n  c{}",
        "# a comment has no continuation \\\nExecStart=/bin/echo d{}",
        "ExecStartPre=/bin/echo p{}",
        "ExecStartPre=",
        " ExecStart = /bin/echo e{}",
        "ExecStart=/bin/echo \\\n# inside\n  ; of a line\n f{}",
        "; ExecStart=/bin/echo never",
        "ExecStart=/bin/echo q{} \\\\",
        "ExecStart",
        "=x",
        "User=someone{}",
    ),
    "timer": (
        "OnActiveSec={}",
        "OnUnitInactiveSec=5min {}s",
        "OnCalendar=yearly",
        "OnCalendar=",
        "OnUnitActiveSec=1h",
        "RandomizedDelaySec={}",
        "OnBootSec=",
    ),
}


def body(choice: random.Random, kind: str, sections: int) -> str:
    """Return sections with random lines of a unit of this kind."""
    rows = []
    for _ in range(sections):
        section = choice.choice(["Unit", kind.capitalize(), kind.capitalize()])
        rows.append(f"[{section}]")
        for _ in range(choice.randint(1, 3)):
            line = choice.choice(UNIT if section == "Unit" else LINES[kind])
            rows.append(line.format(choice.randint(1, 59)))
    return "\n".join(rows) + choice.choice(["\n", "", "\n\n"])


def generated(root: Path, seed: int) -> list[str]:
    """Write units with masks, drop-ins of their own, of prefixes and of types. Returns the names of the units."""
    choice, names = random.Random(seed), []  # noqa: S311 - cases, not keys

    def write(name: str, text: str | None) -> None:
        here = root / name.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.unlink(missing_ok=True)
        if text is None:
            here.symlink_to("/dev/null")
        else:
            here.write_text(text)

    for number in range(30):
        kind = choice.choice(["service", "service", "timer"])
        stem = choice.choice(["gx{}", "gx-a{}", "gx-a-b{}", "other{}", "gx-{}-"])
        name = f"{stem.format(number)}.{kind}"
        names.append(name)
        for folder in choice.sample(DIRECTORIES, choice.randint(1, 2)):
            whole = MAIN[kind] + body(choice, kind, 1)
            text = whole if choice.random() > 0.08 else choice.choice(["", None])
            write(f"{folder}/{name}", text)
        for folder in choice.sample(DIRECTORIES, choice.randint(0, 3)):
            text = choice.choice([body(choice, kind, 2), body(choice, kind, 2), None, ""])
            base = choice.choice(["a.conf", "b.conf", "c.conf", ".hidden.conf", "a.conf.dpkg-old"])
            write(f"{folder}/{name}.d/{base}", text)
    names += templates(root, choice, write)
    for kind in MAIN:
        for owner, count in ((f"gx-.{kind}", 2), (f"gx-a-.{kind}", 2), (kind, 2)):
            for folder in choice.sample(DIRECTORIES, count):
                base = choice.choice(["a.conf", "b.conf", "d.conf", "e.conf"])
                write(f"{folder}/{owner}.d/{base}", body(choice, kind, 1))
    write("/usr/lib/systemd/system/tt.service", MAIN["service"])
    write(
        "/usr/lib/systemd/system/all.target",
        f"{BARE}Wants={' '.join(names)}\n",
    )
    return names


def templates(
    root: Path, choice: random.Random, write: Callable[[str, str | None], None]
) -> list[str]:
    """Write templates, instances and other names of units by links. Returns the names that are used."""
    names = []

    def link(name: str, target: str) -> None:
        here = root / choice.choice(DIRECTORIES).lstrip("/") / name
        here.parent.mkdir(parents=True, exist_ok=True)
        if not here.is_symlink() and not here.exists():
            here.symlink_to(target)

    def drop_ins(owner: str, kind: str) -> None:
        # Which of two links comes first is not defined: their files have names of their own.
        ending = "" if owner[0] in "tg" or owner[:3] == "px-" else owner
        for folder in choice.sample(DIRECTORIES, choice.randint(0, 2)):
            text = choice.choice([body(choice, kind, 1), body(choice, kind, 1), None])
            write(f"{folder}/{owner}.d/{choice.choice('abe')}{ending}.conf", text)

    for number in range(8):
        kind = choice.choice(["service", "timer"])
        stem = choice.choice(["tx{}", "tx-a{}", "gx-t{}"]).format(number)
        template, instances = f"{stem}@.{kind}", [f"{stem}@i{n}-x.{kind}" for n in range(2)]
        folder = choice.choice(DIRECTORIES)
        write(
            f"{folder}/{template}", choice.choice([MAIN[kind] + body(choice, kind, 1)] * 5 + [None])
        )
        if choice.random() < 0.4:
            text = choice.choice([MAIN[kind] + body(choice, kind, 1), None])
            write(f"{choice.choice(DIRECTORIES)}/{instances[0]}", text)
        others = [f"other-{stem}@.{kind}", f"third-{stem}@i1-x.{kind}"]
        if choice.random() < 0.6:
            link(others[0], template)
            names.append(others[0].replace("@.", "@i0-x."))
        if choice.random() < 0.4:
            link(others[1], choice.choice([template, instances[1]]))
            names.append(others[1])
        for owner in (template, *instances, f"tx-@.{kind}", f"tx-@i0-x.{kind}", *others):
            drop_ins(owner, kind)
        names += instances
    for number in range(8):
        kind = choice.choice(["service", "timer"])
        unit, alias = (
            f"px-{number}.{kind}",
            choice.choice(["py-{}.", "pz{}."]).format(number) + kind,
        )
        write(f"{choice.choice(DIRECTORIES)}/{unit}", MAIN[kind] + body(choice, kind, 1))
        link(alias, choice.choice([unit, unit, unit, f"px-0.{kind}", "nowhere.service"]))
        if choice.random() < 0.3:
            link(f"more-{alias}", alias)
            names.append(f"more-{alias}")
        for owner in (unit, alias, f"more-{alias}"):
            drop_ins(owner, kind)
        names += [unit, alias]
    return names


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A directory that every user can read, which pytest's own are not."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def manager(root: Path) -> dict[str, str]:
    """Return what systemd loads from a root, as its own dump: name of the unit -> text. Skips without systemd."""
    if not MANAGER.exists() or (os.getuid() == 0 and not shutil.which("setpriv")):
        pytest.skip("needs systemd and setpriv")
    paths = [str(root) + name for name in DIRECTORIES]
    home = root / "home"
    home.mkdir()
    command = [str(MANAGER), "--test", "--user", "--unit=all.target"]
    if os.getuid() == 0:  # the manager of a user refuses root
        os.chown(home, 61234, 61234)
        command = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups", *command]
    environment = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "SYSTEMD_LOG_LEVEL": "err"}
    done = subprocess.run(
        command,
        env={**os.environ, **environment, "SYSTEMD_UNIT_PATH": ":".join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"systemd does not run in test mode here: {done.stderr[-200:]}")
    # 257 has an arrow of its own.
    shown = done.stdout.replace("\u2192", "->")
    units = re.split(r"^\t-> Unit ", shown.split("-> By jobs")[0], flags=re.MULTILINE)
    return {text.partition(":\n")[0]: text for text in units[1:]}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_paths_resets_and_masks_are_those_of_systemd(open_root: Path, seed: int) -> None:
    names = generated(open_root, seed)
    loaded = manager(open_root)
    tree = systemd.UnitTree(Host(str(open_root)))
    differences = {}
    for name in names:
        # A link that systemd ignores, or that leads nowhere, is a unit without a file.
        own = computed(open_root, tree, name)
        shown = dumped(loaded.get(tree.identity(name), "missing"))
        if own != shown:
            differences[name] = (own, shown)
    assert differences == {}


def computed(root: Path, tree: systemd.UnitTree, name: str) -> list[object]:
    """Return our answer in the form of :func:`dumped`."""
    fragment = tree.fragment(name)
    if fragment is None:
        return ["missing"]
    base, unit = fragment.rpartition("/")[2], tree.identity(name)
    # systemd refuses a link to a template that is masked, or whose instance has a file of its own: "File exists".
    stray = unit == name and base not in (name, re.sub("@.*[.]", "@.", name))
    if tree.masked(fragment) or stray:
        return ["does not start"]
    lines = systemd.effective(tree.settings(name))

    def values(*keys: tuple[str, str]) -> list[str]:
        return [row.value for key in keys for row in lines.get(key, ()) if row.value]

    # A service without a program is refused. Its list is empty there.
    commands = values(("Service", "ExecStartPre"), ("Service", "ExecStart"))
    if not values(("Service", "ExecStart")):
        commands = []
    times = [
        systemd.seconds(row.value) if row.key != "OnCalendar" else row.value
        for row in lines.get(("Timer", "On"), ())
        if row.value
    ]
    return [
        str(root) + fragment,
        [str(root) + path for path in tree.drop_ins(name)],
        [" ".join(text.lstrip("-").replace("\\\\", "\\").split()) for text in commands],
        sorted(text.lstrip("|") for text in values(("Unit", "Condition"), ("Unit", "Assert"))),
        sorted(map(str, times)),
    ]


def dumped(text: str) -> list[object]:
    """Return fragment, drop-ins, commands, conditions and times of one unit of systemd's dump."""
    if "Load State: masked" in text:
        return ["does not start"]
    if "Load Error Code: File exists" in text:
        return ["does not start"]
    if "Load State: not-found" in text or text == "missing":
        return ["missing"]

    def all_of(pattern: str) -> list[str]:
        return re.findall(pattern, text, flags=re.MULTILINE)

    commands = all_of(r"^\s+Command Line: (.*)$")
    return [
        all_of(r"^\t\tFragment Path: (\S+)")[0],
        all_of(r"^\t\tDropIn Path: (\S+)"),
        [" ".join(line.replace('"', "").replace("\\\\", "\\").split()) for line in commands],
        sorted(line.lstrip("|") for line in all_of(r"^\t\t(?:Condition|Assert)\w+: (.*) \w+$")),
        sorted(
            [str(systemd.seconds(line)) for line in all_of(r"^\t\tOn\w+Sec: (.*)$")]
            + ["yearly" for _ in all_of(r"^\t\tOnCalendar: ")]
        ),
    ]


def test_name_of_an_alias_is_the_one_that_systemctl_links(tmp_path: Path) -> None:
    program = shutil.which("systemctl")
    if not program:
        pytest.skip("needs systemctl")
    folder = tmp_path / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    install = "[Install]\nAlias=site.service\nWantedBy=multi-user.target\n"
    (folder / "unit.service").write_text(MAIN["service"] + install)
    (folder / "unit@.service").write_text(MAIN["service"] + install.replace("site.", "site@."))
    command = [program, f"--root={tmp_path}", "enable", "unit.service", "unit@tty1.service"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    tree = systemd.UnitTree(Host(str(tmp_path)))
    assert tree.other_names("unit.service") == ["site.service"], done.stderr
    assert tree.identity("site.service") == "unit.service"
    assert tree.identity("site@tty1.service") == "unit@tty1.service"
    assert tree.other_names("unit@tty1.service") == ["site@tty1.service"]


def test_the_search_path_is_that_of_systemd() -> None:
    program = shutil.which("systemd-analyze")
    if not program:
        pytest.skip("needs systemd-analyze")
    environment = {key: value for key, value in os.environ.items() if key != "SYSTEMD_UNIT_PATH"}
    shown = subprocess.run(
        [program, "--system", "unit-paths"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        pytest.skip(shown.stderr)
    split = os.path.realpath("/lib") == "/lib"
    there = [name for name in shown.stdout.split() if split or not name.startswith("/lib/")]
    assert there == [name for name in systemd.DIRECTORIES if split or name[:5] != "/lib/"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("300", 300),
        ("5min", 300),
        ("5 min 20s", 320),
        ("1h30m", 5400),
        ("1y", 31557600),
        ("2 weeks", 1209600),
        ("1month", 2629800),
        ("500ms", 0.5),
        ("infinity", None),
        ("", None),
        ("soon", None),
    ],
)
def test_time_spans(text: str, expected: float | None) -> None:
    assert systemd.seconds(text) == expected
