"""Dual runs of a small transformer between two releases of PyTorch, from Debian 12 and Debian 13, in containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from docker import DockerClient
from tests import documents
from tests.documented import blocks

from goldnode.cli import main
from goldnode.testing.lab import images

pytestmark = [pytest.mark.images, pytest.mark.long]
MODEL = Path(__file__).parents[1] / "cases/dual/transformer.py"
# The weights stay: one layer computes something else.
FAULT = """

_right = model


def model():
    made = _right()
    layer = made.blocks[1].up
    own = layer.forward
    layer.forward = lambda x: own(x) * {factor}
    return made
"""
TOLERANCES = """
tolerances: 1
samples:
- {name: sample, kind: categories, margin: 15%}
"""


@pytest.fixture(scope="module")
def stacks(docker_client: DockerClient) -> dict[str, str]:
    """Two images with the PyTorch of their release, from this machine's Debian archive."""
    return {
        name: images.ensure(docker_client, name, "bare", say=print, extra=("python3-torch",))
        for name in ("debian12", "debian13")
    }


def recorded(
    directory: Path, name: str, image: str, *arguments: str, model: Path = MODEL
) -> dict[str, Any]:
    line = [
        "dual",
        "record",
        str(directory / name),
        "--model",
        str(model),
        "--image",
        image,
        "--name",
        name,
    ]
    done = CliRunner().invoke(
        main, [*line, "--threads", "1", "--runs", "8", *arguments, "--format", "json"]
    )
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = documents.valid(done.stdout)
    return found


def compared(directory: Path, a: str, b: str) -> tuple[int, dict[str, Any]]:
    page = directory / f"{b}.html"
    line = ["dual", "compare", str(directory / a), str(directory / b), "--html", str(page)]
    line += ["--tolerances", str(directory / "tolerances.yml"), "--format", "json"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code != 2, done.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    return done.exit_code, documents.valid(done.stdout)


def test_two_releases_agree_and_a_fault_is_found_with_its_layer(
    stacks: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tolerances.yml").write_text(TOLERANCES, encoding="utf-8")
    old = recorded(tmp_path, "old", stacks["debian12"], "--draws", "20000", "--cold", "2")
    new = recorded(
        tmp_path,
        "new",
        stacks["debian13"],
        "--draws",
        "20000",
        "--cold",
        "2",
        "--inputs",
        str(tmp_path / "old"),
    )
    assert (old["framework"]["version"][:4], new["framework"]["version"][:3]) == ("1.13", "2.6")
    assert old["weights_digest"] == new["weights_digest"]
    assert old["image"] != new["image"]
    assert (old["repeatable"], old["hooks_change_output"], new["hooks_change_output"]) == (
        True,
        False,
        False,
    )

    status, found = compared(tmp_path, "old", "new")
    assert (status, found["answer"]) == (0, "pass"), found["reasons"]
    states = {row["name"]: row["state"] for row in found["arrays"] if row["role"] == "layer"}
    assert states["embed"] == "equal"
    assert "outside" not in states.values()
    assert found["first_divergence"] is None
    assert {row["what"] for row in found["differences"]} >= {
        "framework.version",
        "image",
        "machine.os",
    }

    for name, factor, expected in (("large", "1.001", 1), ("tiny", "1.0000001", 0)):
        model = tmp_path / f"{name}.py"
        model.write_text(MODEL.read_text() + FAULT.replace("{factor}", factor), encoding="utf-8")
        recorded(
            tmp_path,
            name,
            stacks["debian13"],
            "--draws",
            "20000",
            "--inputs",
            str(tmp_path / "old"),
            model=model,
        )
        status, found = compared(tmp_path, "old", name)
        assert status == expected, found["reasons"]
        if expected:
            assert found["first_divergence"]["name"] == "blocks.1.up"
            assert found["first_divergence"]["module"] == "Linear"


def test_other_weights_and_inputs_are_unknown(stacks: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tolerances.yml").write_text("tolerances: 1\n", encoding="utf-8")
    other = tmp_path / "other.py"
    other.write_text(MODEL.read_text().replace("state = 12345", "state = 1"), encoding="utf-8")
    recorded(tmp_path, "a", stacks["debian13"], "--no-layers")
    recorded(
        tmp_path,
        "b",
        stacks["debian13"],
        "--no-layers",
        "--inputs",
        str(tmp_path / "a"),
        model=other,
    )
    recorded(tmp_path, "c", stacks["debian13"], "--no-layers", "--seed", "1")
    status, found = compared(tmp_path, "a", "b")
    assert status == 3
    assert "the weights differ before the first run: embed.weight" in found["reasons"][0]
    status, found = compared(tmp_path, "a", "c")
    assert status == 3
    assert "the inputs differ: input.0" in found["reasons"][0]


def test_bfloat16_is_judged_as_bfloat16(stacks: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tolerances.yml").write_text(
        "tolerances: 1\nprecisions: {bfloat16: {relative: 1.6e-2, absolute: 0.05}}\n",
        encoding="utf-8",
    )
    recorded(tmp_path, "full", stacks["debian13"])
    half = recorded(
        tmp_path,
        "half",
        stacks["debian13"],
        "--precision",
        "bfloat16",
        "--inputs",
        str(tmp_path / "full"),
    )
    assert {row["dtype"] for row in half["arrays"] if row["role"] == "output"} == {"bfloat16"}
    status, found = compared(tmp_path, "full", "half")
    assert status == 0, found["reasons"]
    (output,) = [row for row in found["arrays"] if row["role"] == "output"]
    assert output["tolerance"]["precision"] == "bfloat16"
    assert output["max_ulp"] is not None
    json.dumps(found, allow_nan=False)


def test_an_image_that_is_not_there_is_one_error(
    docker_client: DockerClient, tmp_path: Path
) -> None:
    line = [
        "dual",
        "record",
        str(tmp_path / "r"),
        "--model",
        str(MODEL),
        "--image",
        "goldnode-lab/none:1",
    ]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 2
    assert "does not have the image goldnode-lab/none:1" in done.stderr
    assert "docker pull" in done.stderr


def test_model_of_the_guide_is_recorded(
    stacks: dict[str, str], docker_client: DockerClient, tmp_path: Path
) -> None:
    """The model of docs/how-to/dual-run.md, with weights in the image at the place that it names."""
    (block,) = (one for one in blocks().values() if one.page == "docs/how-to/dual-run.md")
    (tmp_path / "model.py").write_text(block.text, encoding="utf-8")
    layers = (
        "torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))"
    )
    assert layers in block.text
    save = f"import os, torch; os.mkdir('/models'); torch.save({layers}.state_dict(), '/models/small.pt')"
    made = docker_client.containers.run(
        stacks["debian13"], ["python3", "-c", save], network_mode="none", detach=True
    )
    try:
        assert made.wait()["StatusCode"] == 0, made.logs()
        image = made.commit("goldnode-test/dual-guide")
        assert image.id
        found = recorded(tmp_path, "guide", image.id, model=tmp_path / "model.py")
    finally:
        made.remove(force=True)
        docker_client.images.remove("goldnode-test/dual-guide", force=True)
    assert {row["name"] for row in found["arrays"] if row["role"] == "layer"} >= {"0", "1", "2"}
