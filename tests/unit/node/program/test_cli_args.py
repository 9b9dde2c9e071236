"""The command line of goldnode-node: help, `--format`, and errors as JSON."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import pytest
from tests import documents

from goldnode.node.program import arguments as cli_args
from goldnode.node.program import main as program
from goldnode.node.verdict import current

NAMES = ("check", "plan", "apply", "policy", *cli_args.ELSEWHERE_RUN)


def command(name: str) -> argparse.ArgumentParser:
    (choices,) = (
        action.choices
        for action in cli_args.parser([name])._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found = dict(choices or {})[name]
    assert isinstance(found, argparse.ArgumentParser)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_help_of_each_command_is_a_sentence_within_100_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    found = command(name)
    assert re.fullmatch(
        r"[A-Z][a-z]+,? [^.]*(?:\.yml[^.]*)?(?:\([a-z.-]+\))?\.", found.description or ""
    ), found.description
    for action in found._actions:
        assert action.help, action.option_strings
    text = found.format_help()
    assert max(map(len, text.splitlines())) <= 100
    assert ("--format {text,json}" in text) is (name not in cli_args.WITHOUT_FORMAT)
    assert "--json" not in text


@pytest.mark.parametrize(
    ("given", "form", "rest"),
    [
        (["check"], "text", ["check"]),
        (["check", "--format", "json"], "json", ["check"]),
        (["check", "--format=json", "--quiet"], "json", ["check", "--quiet"]),
        (["check", "--json"], "json", ["check"]),
        (["check", "--json", "--format", "text"], "text", ["check"]),
        (["check", "--format"], None, ["check", "--format"]),
        (["check", "--format", "xml"], None, ["check", "--format", "xml"]),
    ],
)
def test_the_format_without_argparse(given: list[str], form: str | None, rest: list[str]) -> None:
    assert current.split(given) == (form, rest)
    if form is not None:
        assert cli_args.parse(given).format == form


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["plan", "--class", "/nowhere/class.json"], "there is no class document"),
        (["policy", "assert", "--class", "/nowhere/class.json"], "there is no class document"),
        (["slot", "status", "--root", "/usr"], "this node has no slots"),
        (["ack", "--by", "", "--reason", "x"], "Add `--by NAME --reason TEXT`"),
        (["apply"], "apply needs either --part or --absent"),
        (["check", "--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_an_error_with_json_is_a_document(
    given: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*more: str) -> tuple[int, str, str]:
        try:
            code: Any = program.main([*given, *more])
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    text = run()
    assert (text[0], text[1]) == (3, "")
    code, out, err = run("--format", "json")
    assert (code, err) == (3, text[2])
    found = documents.valid(out)
    assert found["schema"] == "goldnode.error/1"
    assert error in found["error"]
    assert json.loads(out)["remedy"] is None
