"""The pictures that `python -m tests.recordings` writes: well-formed, small, labelled, and without a reference elsewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import click
import pytest
from tests.recordings import ASSETS, COLUMNS, Screen, svg, wrapped

from goldnode.cli import main

TEXT = "{http://www.w3.org/2000/svg}text"
FILES = ("tour.svg", "run-report.svg")


def lines(picture: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(picture).iter(TEXT)]  # noqa: S314 - our own file


def test_all_characters_of_an_output_are_drawn() -> None:
    screen = Screen("goldnode <x>", ("a < b & c", "", '  "quoted"'))
    assert lines(svg([screen], "title", "note")) == [
        "note",
        "$ goldnode <x>",
        "a < b & c",
        '  "quoted"',
    ]


def test_several_screens_are_shown_in_turn() -> None:
    one = svg([Screen("a", ("b",))], "title", "note")
    two = svg([Screen("a", ("b",)), Screen("c", ("d",))], "title", "note")
    assert "@keyframes" not in one
    assert two.count("@keyframes") == 2
    assert "prefers-reduced-motion" in two


def test_long_lines_are_broken_with_their_indent() -> None:
    broken = wrapped("    " + "word " * 60 + "\n\nend\n")
    assert all(len(line) <= COLUMNS for line in broken)
    assert all(line.startswith("    word") for line in broken[:-2])
    assert broken[-2:] == ("", "end")


@pytest.mark.parametrize("name", FILES)
def test_committed_pictures_are_labelled_and_self_contained(name: str) -> None:
    picture = (ASSETS / name).read_text(encoding="utf-8")
    assert len(picture) < 50_000
    assert "simulated" in lines(picture)[0], (
        "the title of the window states that the hardware is simulated"
    )
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", picture)


@pytest.mark.parametrize("name", FILES)
def test_commands_of_committed_pictures_exist(name: str) -> None:
    commands = [
        line[2:].split()
        for line in lines((ASSETS / name).read_text(encoding="utf-8"))
        if line[:2] == "$ "
    ]
    assert commands
    known = {"./goldnode-node", "ansible-playbook"}
    for program, subcommand, *_ in commands:
        assert program in known or (
            program == "goldnode" and subcommand in main.list_commands(click.Context(main))
        ), "regenerate: python -m tests.recordings"


def test_assets_are_in_the_documentation() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for name in FILES:
        assert f"assets/{name}" in text
