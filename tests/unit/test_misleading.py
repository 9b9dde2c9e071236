"""Inputs of people, and what the answer to each has to name: the cause and the remedy, and never another thing.

Each row was once answered with another cause, or with the name of another thing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.core.program_file import build
from goldnode.fleet.nodes import runs

BIN = Path(sys.executable).parent
L40S = "class: l40s\nbackend: cuda\nstack: ubuntu2404_r580\nplatform: generic\ngpu: {model: %s, count: 4}\n"
HOSTS = "cpu_only:\n  hosts:\n    gpu[01:13]:\n"


@dataclass(frozen=True)
class Mistake:
    """Files of a working directory, a command line, and texts that the answer has and has not."""

    line: str
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    status: int = 2
    catalog: bool = False  # GOLDNODE_CATALOG is the folder `cat`
    where: str = "."


MISTAKES = {
    "class in a file of another name": Mistake(
        "check -c l40s",
        (
            "cat/classes/l40.yml:1",
            "the file is called l40.yml but defines class",
            "Call it l40s.yml",
        ),
        ('Use "l4"',),
        {"cat/classes/l40.yml": L40S % "L40S"},
        catalog=True,
    ),
    "class in a file that is wrong in another way too": Mistake(
        "check -c l40s",
        ("cat/classes/l40.yml:2", 'unknown key "bakend"'),
        ('Use "l4"',),
        {"cat/classes/l40.yml": (L40S % "L40S").replace("backend", "bakend")},
        catalog=True,
    ),
    "hosts of a class in a file of another name": Mistake(
        "check -i hosts.yml",
        ("cat/classes/l40.yml:1", "defines class"),
        ("ename group", "has no host of any class"),
        {"cat/classes/l40.yml": L40S % "L40S", "hosts.yml": "l40s: {hosts: {n1: }}"},
        catalog=True,
    ),
    "a class of another GPU": Mistake(
        "check -c l40s", ('class "l40s" is not in the catalog',), ('Use "l4".',)
    ),
    "a GPU model with a dash too many": Mistake(
        "check -c l40s",
        ('GPU model "L40-S" is not in the facts. Use "L40S".',),
        files={"cat/classes/l40s.yml": L40S % "L40-S"},
        catalog=True,
    ),
    "a GPU of another generation": Mistake(
        "init site --host n1 --stack debian13_r580 -y --gpu Quadro_RTX_6000",
        ('GPU model "Quadro_RTX_6000" is not in the facts. Use "Quadro-RTX-6000".',),
        ("RTX-6000-Ada",),
    ),
    "an option before the command": Mistake(
        "-i hosts.yml check",
        ("No such option '-i'. Options of 'check' come after it: goldnode check -i",),
    ),
    "a class without its option": Mistake("check cpu_only", ("Did you mean '-c cpu_only'?",)),
    "an inventory without its option": Mistake(
        "plan hosts.yml", ("Did you mean '-i hosts.yml'?",), files={"hosts.yml": HOSTS}
    ),
    "a word too many": Mistake(
        "lock debian12_cpu more", ("unexpected extra argument (more)",), ("Did you mean",)
    ),
    "hosts as a list": Mistake(
        "check -i hosts.yml",
        ('hosts.yml:2: `hosts` of group "cpu_only" is a list', "with a colon: `gpu01:`"),
        ("plugin",),
        {"hosts.yml": "cpu_only:\n  hosts:\n    - gpu01\n    - gpu02\n"},
    ),
    "hosts as a list, planned": Mistake(
        "plan -i hosts.yml",
        ('hosts.yml:2: `hosts` of group "cpu_only" is a list', "with a colon: `gpu01:`"),
        ("plugin",),
        {"hosts.yml": "cpu_only:\n  hosts:\n    - gpu01\n    - gpu02\n"},
    ),
    "hosts without colons": Mistake(
        "check -i hosts.yml",
        (
            'hosts.yml:2: `hosts` of group "cpu_only" has the name "gpu01 gpu02": a colon is missing',
        ),
        files={"hosts.yml": "cpu_only:\n  hosts:\n    gpu01\n    gpu02\n"},
    ),
    "one host without its colon": Mistake(
        "check -i hosts.yml",
        ("hosts.yml:4: this is not valid YAML", "or add the colon that the line before it lacks"),
        files={"hosts.yml": "cpu_only:\n  hosts:\n    gpu01\n    gpu02:\n"},
    ),
    "an inventory of names alone": Mistake(
        "check -i hosts.yml",
        ("hosts.yml:1: an inventory is a mapping of groups",),
        files={"hosts.yml": "gpu01\ngpu02\n"},
    ),
    "a directory without an inventory": Mistake(
        "check -i empty",
        ('directory "empty" has no inventory file', "hosts.yml"),
        ("No inventory was parsed",),
        {"empty/group_vars/all.yml": "a: 1"},
    ),
    "a range in a limit": Mistake(
        "check -i hosts.yml --limit gpu[01:03]",
        ("--limit gpu[01:03]: a range is for the hosts in an inventory", "Use gpu01,gpu02,gpu03"),
        ("gpu13",),
        {"hosts.yml": HOSTS},
    ),
    "a catalog that is not there": Mistake(
        "check -c cpu_only",
        ("goldnode-site.yml, which is wrong:", "nosuch, which is not a directory"),
        files={"goldnode-site.yml": "catalog: nosuch\n"},
        status=0,
    ),
    "an inventory that is wrong, beside a site file that is": Mistake(
        "check -i hosts.yml",
        ("hosts.yml:2: `hosts` of group",),
        files={
            "goldnode-site.yml": "catalog: nosuch\n",
            "hosts.yml": "cpu_only:\n  hosts: [gpu01]\n",
        },
    ),
    "a site file in a parent directory": Mistake(
        "check -c mine",
        ("goldnode-site.yml is not used: run the command in", "or set GOLDNODE_SITE="),
        files={"goldnode-site.yml": "{}\n", "sub/x": ""},
        where="sub",
    ),
    "no warning of a site file for a command without one": Mistake(
        "xid 79",
        (),
        ("goldnode-site.yml",),
        {"goldnode-site.yml": "{}\n", "sub/x": ""},
        status=0,
        where="sub",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_answer_names_the_cause_and_no_other_thing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = MISTAKES[name]
    for variable in ("GOLDNODE_SITE", "GOLDNODE_CATALOG", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(variable, raising=False)
    for file, text in row.files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if row.catalog:
        monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "cat"))
    monkeypatch.chdir(tmp_path / row.where)
    done = CliRunner().invoke(main, row.line.split(), prog_name="goldnode")
    answer = " ".join(done.output.split()).replace(f"{tmp_path}/", "")
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert done.exit_code == row.status, answer
    assert [text for text in row.has if text not in answer] == [], answer
    assert [text for text in row.lacks if text in answer] == [], answer


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--class x check", "--class precedes the command. Write `goldnode-node check --class …`."),
        ("--format json check", "--format precedes the command"),
        ("chek", "invalid choice: 'chek'"),
    ],
)
def test_options_of_the_node_program_that_precede_the_command(line: str, text: str) -> None:
    command = [sys.executable, "-m", "goldnode.node", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, text in done.stderr) == (3, True), done.stderr


def test_a_locale_that_is_not_installed_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    done = subprocess.run(
        [BIN / "goldnode", "check", "-i", "hosts.yml"],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "xx_YY.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 class" in done.stdout


def test_an_old_python_shows_the_version_that_the_program_needs() -> None:
    """As Python 2.7 does, seen with that of Debian 11: it reads the archive as a script, up to its first error."""
    script = build()[: build().index(b"PK")]
    with pytest.raises(SyntaxError) as error:
        compile(script, "goldnode-node", "exec")
    assert error.value.lineno == 2
    assert "needs Python 3.9 or later" in str(error.value.text)


# ssh (OpenSSH 9.2) through Ansible 2.19.
CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
Add correct host key in /home/a/.ssh/known_hosts to get rid of this message.\r
Offending ED25519 key in /home/a/.ssh/known_hosts:7\r
  remove with:\r
  ssh-keygen -f "/home/a/.ssh/known_hosts" -R "n1"\r
Host key for n1 has changed and you have requested strict checking.\r
Host key verification failed."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CHANGED, "Offending ED25519 key in /home/a/.ssh/known_hosts:7. If it was installed again"),
        ("Host key verification failed.", "no known_hosts file has a key of this host"),
        (
            "banner\nssh: connect to host n1 port 22: Connection refused",
            "ssh: connect to host n1 port 22",
        ),
        ("Missing sudo password", "Give it with --ask-become-pass (-K)."),
    ],
    ids=["changed", "unknown", "other", "sudo"],
)
def test_the_reason_of_a_lost_host_has_the_lines_of_ssh(text: str, reason: str) -> None:
    assert reason in runs.lost_reason(text)
    assert "\n" not in runs.lost_reason(text)


def test_a_narrow_terminal_gets_lines_of_its_width(tmp_path: Path) -> None:
    """60 columns, of a pseudo-terminal: lines of 110 were wrapped by it in the middle of words."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    run = subprocess.Popen(
        [BIN / "goldnode", "check", "-c", "cpu_only"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "COLUMNS"},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.DEVNULL,
    )
    os.close(slave)
    output = b""
    with contextlib.suppress(OSError):  # the end of a pseudo-terminal
        while data := os.read(master, 4096):
            output += data
    os.close(master)
    assert run.wait(timeout=60) == 0
    lines = output.decode().splitlines()
    assert len(lines) > 3
    assert [
        line for line in lines if len(line) > 60 and "/" not in line
    ] == []  # a path is not broken
