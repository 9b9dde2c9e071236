"""The recorded answers about .dockerignore are still those of this machine's docker: a sample of the table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from docker import DockerClient
from tests.images.dockerignore import classic, read_table, write_tree

pytestmark = pytest.mark.images

# Those with a rule of their own: a directory that is not entered, a comment, a class, an error.
SAMPLE = ("*\n!dir/a.txt", "dir\n!**/a.txt", " #hash.txt", "[^a].txt", "**.txt", "[a-].txt")


def test_docker_leaves_out_what_was_recorded(tmp_path: Path, docker_client: DockerClient) -> None:
    if shutil.which("docker") is None:
        pytest.skip("needs the docker program")
    table = read_table()
    write_tree(tmp_path / "context", table["tree"])
    recorded = {case["text"]: case["classic"] for case in table["cases"]}
    answers = {}
    for text in SAMPLE:
        (tmp_path / "context/.dockerignore").write_bytes(text.encode())
        answers[text] = classic(tmp_path / "context", table["tree"])
    assert answers == {text: recorded[text] for text in SAMPLE}
