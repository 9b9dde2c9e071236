"""`goldnode images inspect`: what it prints, attaches and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.inspect.things import (
    cudart,
    elf,
    image,
    installed,
    os_release,
    wheel,
    wheel_files,
)

from goldnode.commands.images.inspect import inspect
from goldnode.core.errors import ImageError
from goldnode.gpuprogram.pack import packed
from goldnode.gpuprogram.smoke import pack
from goldnode.inspect.report import INSPECTION, TRUTH
from goldnode.oci.layout import Layout

XGBOOST = wheel_files(
    "xgboost",
    "3.2.0",
    {"xgboost/lib/libxgboost.so": elf(sections={".nv_fatbin": b"x"})},
    ["nvidia-nccl-cu12"],
)
REF = "cpu:1-base-debian12-0123456789ab"
CUDA = "cuda:12.4.1-base-debian12-0123456789ab"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    base = {**os_release(), "usr/bin/python3": elf()}
    layout = Layout(tmp_path / "store")
    image(layout, REF, [base])
    image(layout, "cpu:1-bad-debian12-0123456789ab", [base, installed(XGBOOST)])
    image(layout, CUDA, [base, {"usr/local/cuda/lib64/libcudart.so.12": cudart(12090)}])
    return tmp_path / "store"


def call(*arguments: str) -> Result:
    found = CliRunner().invoke(inspect, arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def test_a_clean_image_by_its_name(store: Path) -> None:
    found = call("cpu-1-base-debian12", "--store", str(store))
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[-1] == f"{REF}: passed"


def test_refused_image_is_reported_with_finding_and_remedy(store: Path) -> None:
    found = call("cpu:1-bad-debian12-0123456789ab", "--store", str(store))
    assert found.exit_code == 1
    for said in (
        "xgboost 3.2.0 adds NVIDIA CUDA to a cpu image",
        'instead: use the wheel "xgboost-cpu"',
        "REFUSED, 1 finding refuses it",
    ):
        assert said in found.output


def test_a_tag_that_is_not_true(store: Path) -> None:
    found = call("cuda-12.4.1-base-debian12", "--store", str(store))
    assert found.exit_code == 1
    assert "refuse: the claim runtime does not hold: expected 12.4, got 12.9" in found.output
    assert "REFUSED, 0 findings refuse it; the tag is not shown to be true" in found.output


def test_the_result_is_attached_once_and_is_the_same_every_time(store: Path) -> None:
    layout = Layout(store)
    digest = layout.refs()[REF].digest
    call(REF, "--store", str(store))
    first = [row.digest for row, _ in layout.attached(digest)]
    call(REF, "--store", str(store), "--fresh")
    assert [row.digest for row, _ in layout.attached(digest)] == first
    call(REF, "--store", str(store), "--backend", "rocm")
    kinds = [manifest["artifactType"] for _, manifest in layout.attached(digest)]
    assert sorted(kinds) == [INSPECTION, TRUTH], "the later in place of the earlier"
    ((_, manifest),) = layout.attached(digest, INSPECTION)
    document = layout.document(manifest["layers"][0]["digest"])
    assert (document["backend"], document["passed"], document["elf_files"]) == ("rocm", True, 1)


def test_json_has_the_result_of_each_image_and_attaches_nothing(store: Path) -> None:
    found = call(REF, CUDA, "--store", str(store), "--format", "json", "--no-attach")
    rows = json.loads(found.stdout)["results"]
    assert [(row["inspection"]["passed"], row["truth"]["passed"]) for row in rows] == [
        (True, True),
        (True, False),
    ]
    assert Layout(store).attached(Layout(store).refs()[REF].digest) == []


def test_a_wheel_before_it_is_installed(tmp_path: Path) -> None:
    path = wheel(
        tmp_path, "a", "1", {"a/x.so": elf()}, ["nvidia-nccl-cu12; sys_platform == 'linux'"]
    )
    assert call(str(path), "--backend", "cpu").exit_code == 1
    assert call(str(path), "--backend", "cuda").exit_code == 0
    with pytest.raises(ImageError, match="there is no verdict"):
        call(str(path))


def test_names_that_would_steer_a_terminal(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "opt/\x1b[2J\n: passed").mkdir(parents=True)
    (root / "opt/\x1b[2J\n: passed/libcudart.so.12").write_bytes(elf())
    found = call(str(root), "--backend", "cpu")
    assert found.exit_code == 1
    assert "\x1b" not in found.output
    assert r"opt/\x1b[2J\n: passed" in found.output


def test_a_name_that_is_nothing(store: Path) -> None:
    with pytest.raises(ImageError, match=f'there is no file, directory or image .*Use "{REF}"'):
        call("cpu:1-base-debian12-0123456789ac", "--store", str(store))
    with pytest.raises(ImageError, match='no backend "cppu"'):
        call(REF, "--store", str(store), "--backend", "cppu")


OWN = "usr/lib/goldnode/goldnode-smoke"


def smoke_store(folder: Path, *programs: bytes) -> str:
    """Put an image of one layer for each program into a store; each replaces the one before."""
    layers = [{OWN: program} for program in programs]
    image(Layout(folder), REF, [{**os_release(), "usr/bin/python3": elf()}, *layers])
    return str(folder)


def test_own_smoke_program_is_named_and_is_no_finding(tmp_path: Path) -> None:
    store = smoke_store(tmp_path, pack.program())
    for _ in range(2):  # the second time from the cache
        found = call(REF, "--store", store)
        assert found.exit_code == 0
        assert "may load" not in found.output
        assert f"goldnode's own: {OWN}, which is goldnode-smoke of this version" in found.output
    (row,) = json.loads(call(REF, "--store", store, "--format", "json").stdout)["results"]
    assert row["inspection"]["own"] == [{"path": OWN, "program": "goldnode-smoke"}]
    assert row["inspection"]["findings"] == []
    assert row["inspection"]["signals"]["dlopen"] == 0


def changed_program() -> bytes:
    """Return goldnode-smoke with one word of one file changed."""
    files = {
        name: content.replace(b"Command line of", b"Command text of")
        for name, content in pack.sources().items()
    }
    assert files != pack.sources()
    return packed(files)


def test_changed_copy_of_own_smoke_program_is_noted(tmp_path: Path) -> None:
    changed = changed_program()
    # Also where a layer of the real one is below it.
    for number, programs in enumerate(((changed,), (pack.program(), changed))):
        found = call(REF, "--store", smoke_store(tmp_path / str(number), *programs))
        assert "goldnode's own" not in found.output
        assert "may load NVIDIA CUDA by itself" in found.output
        assert "may load AMD ROCm by itself" in found.output


def test_script_in_place_of_own_smoke_program_has_not_its_name(tmp_path: Path) -> None:
    store = smoke_store(tmp_path, pack.program(), b"#!/bin/sh\nexec true\n")
    assert "goldnode's own" not in call(REF, "--store", store).output


def test_own_smoke_program_above_a_changed_copy_is_no_finding(tmp_path: Path) -> None:
    store = smoke_store(tmp_path, changed_program(), pack.program())
    found = call(REF, "--store", store)
    assert "goldnode's own" in found.output
    assert "may load" not in found.output
