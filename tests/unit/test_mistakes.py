"""Typical mistakes on the command line: each ends in a message with the cause and the next command."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from goldnode.ansible.modules import goldnode_state
from goldnode.classdoc import record
from goldnode.cli import main

HERE = {"ansible_connection": "local"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with an inventory and files of the wrong kinds."""
    monkeypatch.chdir(tmp_path)
    for name in ("GOLDNODE_SITE", "GOLDNODE_CATALOG", "GOLDNODE_LOCKS", "GOLDNODE_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    inventory = tmp_path / "inventories/prod"
    inventory.mkdir(parents=True)
    (inventory / "hosts.yml").write_text(
        json.dumps({"cpu_only": {"hosts": {"n1": HERE, "n2": HERE}}})
    )
    files = {
        "empty": b"",
        "blank": b" \n\n",
        "text": b"hello\n",
        "text.gz": gzip.compress(b"hello"),
        "binary": bytes(range(256)) * 20,
        "other.json": b'{"a": 1}',
        "cut.json": b'{"schema": "goldnode.capture/1", "gpus": [',
        "page.xml": b"<html></html>",
        "cut.xml": b"<nvidia_smi_log><gpu>",
        "a file with spaces.json": b'{"schema": "goldnode.verdict/1"}',
        "site.yml": b"archives: [",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "directory").mkdir()
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="goldnode")


CASES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    # command line, exit status, phrases
    ("", 2, ("Usage: goldnode",)),
    ("chek", 2, ("Did you mean 'check'?",)),
    ("class expot l4", 2, ("Did you mean 'export'?",)),
    ("check --class", 2, ("'--class' requires an argument",)),
    ("matrix --format yaml", 2, ("'yaml' is not one of 'text', 'json'",)),
    (
        "plan -i inventories/mine",
        2,
        ('no inventory "inventories/mine"', "Create it: `goldnode init`"),
    ),
    ("plan -i inventories/prd", 2, ('Use "inventories/prod".',)),
    ("plan -i no/such/place", 2, ("Create it:",)),
    ("adopt -i inventories/prd n1", 2, ('Use "inventories/prod".',)),
    ("lock debian12_r58", 2, ('stack "debian12_r58" is not in the catalog', "debian12_r580")),
    ("lock debian12_cpu --upgrade --security", 2, ("--upgrade and --security exclude each other",)),
    (
        "mirror debian12_cpu",
        2,
        ("the site names no mirror", "Add it to goldnode-site.yml, as mirror:"),
    ),
    (
        "images publish cpu-1-base-debian13",
        2,
        ("Build it: goldnode images build cpu-1-base-debian13",),
    ),
    (
        "disks verify demo_disk_r535",
        2,
        ("there is no built disk image", "Run `goldnode disks build"),
    ),
    ("xid", 2, ("there is no Xid or SXid in that text",)),
    ("xid banana", 2, ("there is no Xid or SXid in that text",)),
    ("xid 9999", 1, ("Xid 9999: unknown", "Treat it as a fault")),
    ("xid 79 9999", 1, ("Xid 79", "Xid 9999: unknown")),
    ("xid 79", 0, ("Xid 79",)),
    (
        "check-node absent",
        3,
        ("absent: cannot be read (No such file or directory). Correct the name",),
    ),
    ("check-node directory", 3, ("cannot be read (Is a directory)",)),
    ("check-node empty", 3, ("is empty. Record it again with `goldnode-node capture`",)),
    ("check-node blank", 3, ("is empty",)),
    ("check-node text", 3, ("this is neither JSON nor XML", "`nvidia-smi -q -x`")),
    ("check-node text.gz", 3, ("is compressed", "`zcat text.gz | goldnode check-node -`")),
    ("check-node binary", 3, ("this is neither JSON nor XML",)),
    ("check-node other.json", 3, ("not goldnode.capture/1", "`goldnode-node capture`")),
    ("check-node cut.json", 3, ("It may be cut off",)),
    ("check-node page.xml", 3, ("its XML is <html>, not <nvidia_smi_log>",)),
    ("check-node cut.xml", 3, ("is cut off before </nvidia_smi_log>",)),
    ("node-program --out no/such/program", 2, ("no/such/program: cannot be read or written",)),
    ("node-program --out directory", 2, ("is a directory",)),
)


@pytest.mark.parametrize(
    ("line", "status", "phrases"), CASES, ids=[case[0] or "nothing" for case in CASES]
)
def test_a_mistake_names_its_cause_and_the_next_command(
    place: Path, line: str, status: int, phrases: tuple[str, ...]
) -> None:
    done = run(*line.split())
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert done.exit_code == status, done.output
    reported = " ".join(done.output.split())
    for phrase in phrases:
        assert phrase in reported
    assert "Traceback" not in done.output


def test_a_path_with_spaces_is_one_path(place: Path) -> None:
    done = run("check-node", "a file with spaces.json")
    assert (done.exit_code, done.output.count("\n")) == (3, 1)
    assert (
        "a file with spaces.json: schema 'goldnode.verdict/1', not goldnode.capture/1"
        in done.output
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "GOLDNODE_CATALOG",
            "/nonexistent",
            "GOLDNODE_CATALOG names /nonexistent, which is not a directory",
        ),
        ("GOLDNODE_SITE", "site.yml", "site.yml:2: this is not valid YAML"),
        ("GOLDNODE_SITE", "nonexistent.yml", "nonexistent.yml"),
    ],
    ids=["catalog", "site-yaml", "site-absent"],
)
def test_a_variable_that_names_nothing_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    done = run("mirror", "debian12_cpu")
    assert done.exit_code == 2
    assert expected in done.output


def test_an_error_of_check_node_is_a_document_with_its_parts(place: Path) -> None:
    done = run("check-node", "other.json", "-c", "no_such_class", "--format", "json")
    assert done.exit_code == 3
    assert json.loads(done.stdout)["schema"] == "goldnode.error/1"


def test_an_interrupted_command_ends_as_a_shell_expects(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "judge", interrupted)
    done = run("check-node", "text")
    assert (done.exit_code, done.stderr) == (130, "error: interrupted\n")


class _FailedError(Exception):
    """What AnsibleModule.fail_json was given."""


def _fake(**parameters: Any) -> Callable[..., Any]:
    class Module:
        check_mode = False

        def __init__(self, **_: Any) -> None:
            self.params = {"root": None, **parameters}

        def fail_json(self, msg: str) -> None:
            raise _FailedError(msg)

    return Module


@pytest.mark.parametrize(
    ("uid", "user"), [(65534, "nobody"), (424242, "424242")], ids=["name", "number"]
)
def test_a_node_without_root_asks_for_become(
    monkeypatch: pytest.MonkeyPatch, uid: int, user: str
) -> None:
    monkeypatch.setattr(goldnode_state, "AnsibleModule", _fake())
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(
        _FailedError,
        match=f"needs root on the node, and Ansible is user {user} there.*ansible_become: true",
    ):
        goldnode_state.main()
