"""`goldnode package kubernetes`: what it refuses before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main

DIGEST = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def package(image: str, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(
        main, ["package", "kubernetes", "--out", "base", "--image", image, *words]
    )
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "image", ["registry.example.net/python@sha256:…", "python@sha256:...", f"@{DIGEST}", "python@"]
)
def test_image_with_half_a_digest_is_refused(image: str) -> None:
    code, text = package(image)
    assert code == 2
    assert f'"{image}" has no digest after its @' in text or "is no image" in text
    assert not Path("base").exists()


@pytest.mark.parametrize("image", [f"registry.example.net:5000/python@{DIGEST}", "python:3.12"])
def test_image_by_digest_or_tag_is_written(image: str) -> None:
    assert package(image)[0] == 0
    assert f"image: {image}" in Path("base/check.yaml").read_text()


def test_name_of_a_class_in_the_place_of_its_document_teaches_the_command() -> None:
    code, text = package("python:3.12", "--class", "cpu_only")
    assert code == 2
    assert "cpu_only: No such file or directory. Write the file with `goldnode class export" in text
    assert "class of the catalog" not in text
    assert not Path("base").exists()


def test_file_that_is_no_class_document_is_refused() -> None:
    Path("own.json").write_text(json.dumps({"schema": "goldnode.verdict/1"}))
    code, text = package("python:3.12", "--class", "own.json")
    assert code == 2
    assert "own.json: " in text
    assert not Path("base").exists()
