"""The command line as a whole: every command and option has help, every report has `--format`, and the names are the same everywhere."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests import documents
from tests.unit.fleet.nodes.test_adopt import a100
from tests.unit.node.captures import healthy

from goldnode.catalog.load import builtin_catalog
from goldnode.cli import main
from goldnode.commands.options import RenamedOption
from goldnode.commands.output import FormatOption
from goldnode.core import progress

# Commands without a report: they print or write one file in its own format, or serve.
FILES = (
    "canary program",
    "class export",
    "class user-data",
    "completion",
    "cve mitigate",
    "cve prepare",
    "cve rehearse",
    "cve roll-out",
    "fleet serve",
    "man",
    "node-program",
    "package deb",
    "package kubernetes",
    "package publish",
    "package rpm",
    "rollout events",
    "schema",
)
# First words of a command's help. Add a verb here, in the imperative.
VERBS = re.compile(
    "Apply|Approve|Boot|Build|Check|Choose|Close|Compare|Copy|Create|Deny|Download|Explain|Export|Fetch|Inspect|Issue|Learn|Lift|List|Lock|Make|"
    "Migrate|Mitigate|Open|Point|Print|Propose|Publish|Push|Remove|Replace|Resolve|Revoke|Roll|Rotate|Run|Show|Sign|Stop|Submit|Turn|Verify|Write"
)
# One name for one thing: name that must not come back -> the name to use.
SYNONYMS = {
    "--output": "--out",
    "--json": "--format json",
    "--days": "--keep-days",
    "--parallel": "--jobs",
}
# Words of goldnode's own that help does not use, see docs/style.md.
PRIVATE = re.compile(
    r"\b(?:anew|brings?|hold against|kept|mend|nobody|somebody|stands? (?:for|in|on)|takes? along|tells?|told"
    r"|whoever|good as it is|what (?:proves|vanished|it says))\b",
    re.IGNORECASE,
)
WIDTH = 100


def walk(
    command: click.Command, ctx: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command below `command` with its name and a context to render its help in."""
    yield ctx.command_path.removeprefix("goldnode").strip(), command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from walk(below, click.Context(below, parent=ctx, info_name=name))


COMMANDS = {
    name: (command, ctx)
    for name, command, ctx in walk(
        main, click.Context(main, info_name="goldnode", terminal_width=WIDTH)
    )
}
LEAVES = {name: row for name, row in COMMANDS.items() if not isinstance(row[0], click.Group)}


def each(names: dict[str, tuple[click.Command, click.Context]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names, ids=lambda name: name or "goldnode")


def summary(command: click.Command) -> str:
    return (command.help or "").partition("\n")[0]


def rendered(name: str) -> str:
    command, ctx = COMMANDS[name]
    return command.get_help(ctx)


@each(COMMANDS)
def test_first_line_is_one_imperative_sentence(name: str) -> None:
    line = summary(COMMANDS[name][0])
    assert line.endswith("."), line
    assert VERBS.fullmatch(line.split()[0].rstrip(",")), line
    assert ". " not in line, "one sentence"
    paragraph = (COMMANDS[name][0].help or "").partition("\n\n")[0]
    assert paragraph == line, "the first line is a paragraph of its own"


@each(COMMANDS)
def test_help_fits_a_terminal(name: str) -> None:
    command, ctx = COMMANDS[name]
    text = rendered(name)
    assert max(map(len, text.splitlines())) <= WIDTH
    words = set(text.split())
    sources = [
        command.help or "",
        *(option.help or "" for option in options_of(command) if not option.hidden),
    ]
    for word in (word for source in sources for word in source.replace("\b", " ").split()):
        assert word in words, f"{word} is broken over two lines"
    if isinstance(command, click.Group):
        for below in command.list_commands(ctx):
            shown = command.get_command(ctx, below)
            assert shown is not None
            assert re.search(rf"^  {below} +{re.escape(summary(shown))}$", text, re.MULTILINE), (
                below
            )


@each(COMMANDS)
def test_help_has_no_private_words(name: str) -> None:
    command = COMMANDS[name][0]
    found = [
        hit.group()
        for text in (command.help or "", *(option.help or "" for option in options_of(command)))
        for hit in PRIVATE.finditer(text)
    ]
    assert found == []


@each(COMMANDS)
def test_options_have_help(name: str) -> None:
    for option in options_of(COMMANDS[name][0]):
        assert option.help, option.opts
        assert option.help[0].isupper(), option.help
        assert option.help.endswith("."), option.help
        assert not re.search(r"(?i)\bdefault:", option.help), "use show_default"


@each(COMMANDS)
def test_options_name_their_value_and_default(name: str) -> None:
    command, ctx = COMMANDS[name]
    for option in options_of(command):
        if not option.is_flag:
            assert isinstance(option.type, click.Choice) or option.metavar, (
                f"{option.opts} needs a metavar"
            )
            default = option.get_default(ctx, call=False)
            assert not isinstance(default, str | int | float) or option.show_default, (
                f"{option.opts}: the default {default!r} is not shown"
            )


@each(COMMANDS)
def test_options_have_common_names(name: str) -> None:
    for spelling in (
        spelling for option in options_of(COMMANDS[name][0]) for spelling in option.opts
    ):
        assert spelling not in SYNONYMS, f"{spelling}: use {SYNONYMS.get(spelling)}"


def test_options_with_one_name_have_one_help() -> None:
    """Options that many commands share are declared once, in commands/options.py."""
    shared = (
        "--format",
        "--store",
        "--trust",
        "--limit",
        "--become",
        "--dry-run",
        "--keep-days",
        "--wait",
        "--matrix",
    )
    for name in shared:
        texts = {
            (option.help, option.metavar)
            for command, _ in COMMANDS.values()
            for option in options_of(command)
            if name in option.opts and isinstance(option, FormatOption) is (name == "--format")
        }
        assert len(texts) == 1, (name, texts)


@each(LEAVES)
def test_report_has_a_format(name: str) -> None:
    forms = [option for option in options_of(LEAVES[name][0]) if isinstance(option, FormatOption)]
    if name in FILES:
        assert not forms
        return
    (option,) = forms
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices)[:2] == ["text", "json"]
    assert re.fullmatch(r"goldnode\.[a-z-]+/1", option.schema)


def test_the_page_lists_every_schema() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/command-line.md").read_text(
        encoding="utf-8"
    )
    listed = {
        (schema, name)
        for schema, names in re.findall(
            r"^\| `(goldnode\.[a-z-]+/1)` \| (`goldnode .*) \|$", page, re.MULTILINE
        )
        for name in re.findall(r"`goldnode ([a-z -]+)`", names)
    }
    assert {row for row in listed if "--" not in row[1]} == {
        (option.schema, name)
        for name, (command, _) in LEAVES.items()
        for option in options_of(command)
        if isinstance(option, FormatOption)
    }


def test_sections_list_all_commands() -> None:
    done = CliRunner().invoke(main, ["--help"], terminal_width=WIDTH)
    assert done.exit_code == 0
    headings = re.findall(r"^(\S.*):$", done.stdout, re.MULTILINE)
    assert headings == [
        "Options",
        "Declare and check",
        "Lock and mirror packages",
        "Build and publish images",
        "Operate nodes",
        "Keys and releases",
        "Set up the shell",
    ]


def options_of(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


def test_former_spellings_are_hidden() -> None:
    """They work, and neither help nor completion shows them."""
    former = {
        (name, spelling)
        for name, (command, _) in COMMANDS.items()
        for option in options_of(command)
        if isinstance(option, RenamedOption)
        for spelling in option.former
    }
    assert former == {
        ("adopt", "--keep"),
        ("disks compare", "--json"),
        ("disks compare", "--limit"),
        ("disks gc", "--days"),
        ("disks verify", "--json"),
        ("images gc", "--days"),
        ("images inspect", "--json"),
        ("images smoke", "--json"),
        ("images smoke", "--limit"),
        ("mirror fetch", "--parallel"),
        ("mirror gc", "--days"),
        ("xid", "--json"),
    }
    for name, spelling in former:
        assert not re.search(rf"{spelling}(?![\w-])", rendered(name)), name
    old, new = (
        CliRunner().invoke(main, ["xid", "79", *words])
        for words in (["--json"], ["--format", "json"])
    )
    assert (old.stdout, old.stderr) == (new.stdout, "")
    last = CliRunner().invoke(main, ["xid", "79", "--json", "--format", "text"])
    assert last.stdout.startswith("Xid 79")
    assert CliRunner().invoke(main, ["mirror", "gc", "--days", "-1"]).exit_code == 2


# -- JSON


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a site that needs neither this machine's apt nor a network, two captures, a survey and stores."""
    monkeypatch.chdir(tmp_path)
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS", "GOLDNODE_REGISTRY", "GOLDNODE_DISKS_PLACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mirror").mkdir()
    (tmp_path / "site.yml").write_text(
        "archives:\n  debian: {url: 'file:///nowhere/debian'}\n  debian-security: {url: 'file:///nowhere/sec'}\n"
        "mirror: {directory: mirror}\n"
    )
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    (tmp_path / "capture.json").write_text(json.dumps(healthy()))
    (tmp_path / "survey.json").write_text(json.dumps(a100()))
    (tmp_path / "hosts").write_text("survey\n")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "classes",
        "class bless capture.json --class h100_sxm5_80gb",
        "adopt node1 --survey survey.json --name mine",
        "import hosts --surveys .",
        "init out --local --class cpu_only",
        "check --class cpu_only",
        "check --list-rules",
        "check-catalog",
        "matrix",
        "lock debian12_cpu --diff {lock}",
        "mirror status",
        "mirror gc --dry-run",
        "xid 79",
        "images list",
        "images status",
        "images gc --dry-run",
        "disks list",
        "disks status",
        "disks gc --dry-run",
    ],
)
def test_json_is_one_document_with_its_schema(line: str, desk: Path) -> None:
    lock = builtin_catalog() / "stacks/debian12_cpu.lock.yml"
    words = line.format(lock=lock).split()
    done = CliRunner().invoke(main, [*words, "--format", "json"])
    assert done.exit_code in (0, 1), done.output
    document = json.loads(done.stdout)
    declared = schema_of(words)
    assert document["schema"] == ("goldnode.rules/1" if "--list-rules" in words else declared)


def schema_of(words: list[str]) -> str:
    command = next(LEAVES[name][0] for name in (" ".join(words[:2]), words[0]) if name in LEAVES)
    return next(option.schema for option in options_of(command) if isinstance(option, FormatOption))


@each({name: row for name, row in LEAVES.items() if name not in FILES})
def test_wrong_use_with_json_is_a_document(name: str) -> None:
    """Also where the command line cannot be parsed as far as --format."""
    for words in (["--format", "json", "--no-such-option"], ["--no-such-option", "--format=json"]):
        done = CliRunner().invoke(main, [*name.split(), *words])
        document = json.loads(done.stdout)
        # Of a check, 2 would say `drain`.
        assert done.exit_code == (3 if name == "check-node" else 2)
        assert document.keys() == {"schema", "error", "file", "line", "remedy"}
        assert document["schema"] == "goldnode.error/1"
        assert "--no-such-option" in document["error"]
        assert document["remedy"] == f"see `goldnode {name} --help`".replace(
            "mirror --help", "mirror fetch --help"
        )
        assert "No such option" in done.stderr


@pytest.mark.parametrize(
    ("line", "error", "place", "remedy"),
    [
        ("lock nothing", 'stack "nothing" is not in the catalog', None, "use one of:"),
        ("check --class own", 'unknown key "bakend"', ("own/classes/own.yml", 2), 'use "backend"'),
        ("images verify nothing", "nothing is not", None, ""),
        (
            "matrix --out none/x",
            "cannot be read or written: No such file",
            ("none/x", None),
            "correct its name",
        ),
    ],
)
def test_an_error_with_json_is_a_document(
    line: str,
    error: str,
    place: tuple[str, int | None] | None,
    remedy: str,
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if place is not None and place[1] is not None:
        (desk / "own/classes").mkdir(parents=True)
        (desk / "own/classes/own.yml").write_text("class: own\nbakend: cpu\n")
        monkeypatch.setenv("GOLDNODE_CATALOG", str(desk / "own"))
    done = CliRunner().invoke(main, [*line.split(), "--format", "json"])
    text = CliRunner().invoke(main, line.split())
    assert (done.exit_code, done.stderr) == (text.exit_code, text.stderr)
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    documents.valid(done.stdout)
    assert error in document["error"]
    assert remedy in (document["remedy"] or "")
    if place is not None:
        assert str(document["file"]).endswith(place[0])
        assert document["line"] == place[1]
    assert text.stdout == ""


def test_an_error_after_the_document_is_only_a_message(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document on stdout stays the only one."""
    (desk / "empty").mkdir()
    done = CliRunner().invoke(main, ["images", "inspect", "empty", "--format", "json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["schema"] == "goldnode.inspections/1"
    assert "there is no verdict" in done.stderr


# -- completion and colour


def complete(shell: str, *words: str) -> str:
    name = {"bash": "bash_complete", "zsh": "zsh_complete", "fish": "fish_complete"}[shell]
    typed = (
        " ".join(("goldnode", *words)) if shell != "fish" else " ".join(("goldnode", *words[:-1]))
    )
    position = words[-1] if shell == "fish" else str(len(words))
    environment = {
        **os.environ,
        "_GOLDNODE_COMPLETE": name,
        "COMP_WORDS": typed,
        "COMP_CWORD": position,
    }
    program = Path(sys.executable).parent / "goldnode"
    return subprocess.run(
        [program], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_offers_visible_options_only(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell])
    assert script.exit_code == 0
    assert f"_GOLDNODE_COMPLETE={shell}_complete" in script.stdout
    shown = complete(shell, "xid", "--")
    assert "--format" in shown
    assert "--json" not in shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_completes_in_bash() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    typed = 'COMP_WORDS=(goldnode disks upd) COMP_CWORD=2; _goldnode_completion goldnode upd disks; echo "${COMPREPLY[*]}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{typed}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "update\n"


@pytest.mark.parametrize(("variables", "colour"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_progress_has_no_colour_with_no_color(
    variables: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress on a terminal has no colour with NO_COLOR (https://no-color.org)."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal, monkeypatch.context() as patch:  # noqa: PTH123 - a file descriptor
        patch.setattr(sys, "stderr", terminal)
        with progress.steps() as show:
            show("an image", "started", 0.0)
            show("an image", "built", 1.0)
    written = ""
    with contextlib.suppress(OSError):  # EIO: the other end is closed, and everything has been read
        while data := os.read(leader, 1 << 16):
            written += data.decode(errors="replace")
    os.close(leader)
    assert "an image" in written
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9][;0-9]*m", written)) is colour
