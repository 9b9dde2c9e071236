"""`goldnode cache`: the same keys as on the node, from recorded captures, classes of the catalog and images of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests import documents
from tests.unit.node.captures import healthy

from goldnode.cache.recorded import class_parts
from goldnode.cli import main
from goldnode.node.program import main as program

IMAGE = "sha256:" + "a" * 64


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    found = healthy()
    found["identity"]["class"] = "h100_sxm5_80gb"
    (tmp_path / "capture.json").write_text(json.dumps(found))
    return tmp_path / "capture.json"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["cache", *words])


def test_controller_and_node_make_the_same_keys(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The class of the catalog has the policy that the node's own document has."""
    document = dict(class_parts("h100_sxm5_80gb") or {})
    file = capture.with_name("class.json")
    file.write_text(json.dumps(document))
    words = ["cuda", "triton", "--image", IMAGE, "--option", "a=b"]
    done = call("key", *words, "--capture", str(capture), "-c", "h100_sxm5_80gb")
    assert done.exit_code == 0, done.output
    assert program.main(["cache", "key", *words, "--from", str(capture), "--class", str(file)]) == 0
    assert capsys.readouterr().out == done.stdout


def test_a_key_needs_the_class_of_its_node(capture: Path) -> None:
    done = call("key", "cuda", "--capture", str(capture))
    assert done.exit_code == 2
    assert "of class h100_sxm5_80gb" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["key", "cuda", "--capture", "nowhere"], "nowhere"),
        (
            ["key", "cuda", "--capture", "{capture}", "-c", "nothing"],
            '"nothing" is not in the catalog',
        ),
        (["key", "cuda", "--capture", "{capture}", "-c", "{capture}"], "class"),
        (
            ["key", "cuda", "--capture", "{capture}", "--image", "cuda:12", "--store", "{store}"],
            "cuda:12",
        ),
        (["explain", "nowhere", "nowhere"], "cannot be read"),
        (
            ["path", "cuda", "--caches", "x", "--capture", "{capture}", "-c", "h100_sxm5_80gb"],
            "absolute path",
        ),
    ],
)
def test_an_error_has_a_remedy_and_no_traceback(
    words: list[str], expected: str, capture: Path, tmp_path: Path
) -> None:
    names = {"capture": capture, "store": tmp_path / "store"}
    done = call(*(word.format(**names) for word in words), "--format", "json")
    assert done.exit_code == 2, done.output
    assert expected in done.stderr
    documents.valid(done.stdout)


def test_reports_have_their_schema(capture: Path, tmp_path: Path) -> None:
    words = ["--capture", str(capture), "-c", "h100_sxm5_80gb"]
    found = json.loads(call("key", "cuda", *words, "--format", "json").stdout)
    assert found["schema"] == "goldnode.cache-keys/1"
    (tmp_path / "a.json").write_text(json.dumps(found["keys"][0]))
    done = call("explain", str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--format", "json")
    assert (done.exit_code, json.loads(done.stdout)["schema"]) == (0, "goldnode.cache-comparison/1")
    done = call("path", "cuda", "--caches", "/var/cache/gpu", *words, "--format", "json")
    paths = json.loads(done.stdout)
    assert paths["schema"] == "goldnode.cache-paths/1"
    assert paths["export"] == [f"export CUDA_CACHE_PATH={paths['paths']['cuda']}/data"]
    done = call("verify", paths["paths"]["cuda"], *words, "--format", "json")
    assert (done.exit_code, json.loads(done.stdout)["schema"]) == (
        1,
        "goldnode.cache-verification/1",
    )
