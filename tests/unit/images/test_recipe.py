"""Recipes: what an image sets, and what its build id hangs on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.images.image_rows import TOOLS, World

from goldnode.core.errors import ImageError
from goldnode.images import build
from goldnode.images.imagelock import find_lock
from goldnode.images.matrix import load_matrix
from goldnode.images.recipe import ImageRecipe, recipe, search_path


def recipes(
    world: World, tools: dict[str, str] | None = None, smoke: bytes | None = b"runner"
) -> dict[str, ImageRecipe]:
    return {item.image.name: item for item in build.recipes(world.rows(), tools or TOOLS, smoke)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_recipe_digest_does_not_depend_on_the_directory(world: World, tmp_path: Path) -> None:
    one, two = recipes(world), recipes(World(tmp_path / "elsewhere"))
    assert {name: item.digest for name, item in one.items()} == {
        name: item.digest for name, item in two.items()
    }
    text = json.dumps([item.document for item in one.values()])
    assert str(tmp_path) not in text


def changed(before: dict[str, ImageRecipe], after: dict[str, ImageRecipe]) -> set[str]:
    return {name for name in before if before[name].build_id != after[name].build_id}


def test_a_new_cudnn_changes_what_holds_it_and_nothing_else(world: World) -> None:
    before = recipes(world)
    world.wheels["cuda-12.4.1-runtime-debian12"]["nvidia_cudnn_cu12"] = "9.2.0.1"
    assert changed(before, recipes(world)) == {
        "cuda-12.4.1-runtime-debian12",
        "cuda-12.4.1-devel-debian12",
    }


def test_tools_change_what_they_make(world: World) -> None:
    before = recipes(world)
    on_cuda = {name for name in before if name.startswith("cuda")}
    assert changed(before, recipes(world, {**TOOLS, "engine": "fake 2"})) == on_cuda
    for name in ("zlib", "mmdebstrap"):
        assert changed(before, recipes(world, {**TOOLS, name: "9"})) == set(before)


def test_the_runner_is_part_of_it(world: World) -> None:
    assert changed(recipes(world), recipes(world, smoke=b"another")) == set(recipes(world))


def test_the_first_image_needs_no_engine(world: World) -> None:
    found = recipes(world)["cpu-1-base-debian12"]
    assert not found.step
    assert "engine" not in found.tools
    assert found.environment == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert "NVIDIA_REQUIRE_CUDA" not in found.environment
    assert found.files["usr/bin/goldnode-smoke"] == {
        "link": "../../usr/lib/goldnode/goldnode-smoke"
    }


def test_the_environment_of_cuda(world: World) -> None:
    base = recipes(world)["cuda-12.4.1-base-debian12"]
    assert base.environment == {
        "CUDA_VERSION": "12.4.1",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        "NVARCH": "x86_64",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_PRODUCT_NAME": "CUDA",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.4 driver>=525.60.13",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NV_CUDA_CUDART_VERSION": "12.4.127",
        "PATH": "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    runtime = recipes(world)["cuda-12.4.1-runtime-debian12"]
    assert runtime.environment["NV_CUDNN_VERSION"] == "9.1.0.70"
    assert runtime.environment["CUDA_VERSION"] == "12.4.1"
    assert (
        recipes(world)["cuda-12.4.1-devel-debian12"].environment["LIBRARY_PATH"]
        == "/usr/local/cuda/lib64/stubs"
    )


def test_a_cuda_version_is_never_without_its_requirement(world: World) -> None:
    """Else the toolkit takes the image for one of before 2017 and gives it every GPU."""
    for item in recipes(world).values():
        assert ("CUDA_VERSION" in item.environment) == ("NVIDIA_REQUIRE_CUDA" in item.environment)


@pytest.mark.parametrize(
    ("version", "path", "conf"),
    [
        (
            "11.8.0",
            "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64"),
        ),
        (
            "12.6.3",
            "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64"),
        ),
        ("12.8.0", "/usr/local/cuda/lib64", ("/usr/local/cuda/lib64",)),
        ("12.9.1", "/usr/local/cuda/lib64", ("/usr/local/cuda/lib64",)),
        (
            "13.1.0",
            "/usr/local/nvidia/lib:/usr/local/nvidia/lib64:/usr/local/cuda/lib64",
            ("/usr/local/cuda/lib64",),
        ),
    ],
)
def test_the_search_path_of_each_cuda(version: str, path: str, conf: tuple[str, ...]) -> None:
    assert search_path(version) == (path, conf)


def test_the_links_of_cuda(world: World) -> None:
    files = recipes(world)["cuda-12.4.1-base-debian12"].files
    assert files["usr/local/cuda"] == {"link": "/etc/alternatives/cuda"}
    assert files["usr/local/cuda-12"] == {"link": "/etc/alternatives/cuda-12"}
    assert files["etc/alternatives/cuda"] == {"link": "/usr/local/cuda-12.4"}
    assert files["usr/local/cuda-12.4/lib64"] == {"link": "targets/x86_64-linux/lib"}
    assert recipes(world)["cuda-12.4.1-runtime-debian12"].files == {}


def test_labels_name_base_driver_and_parts(world: World) -> None:
    found = recipes(world)
    base, runtime = found["cuda-12.4.1-base-debian12"], found["cuda-12.4.1-runtime-debian12"]
    labels = runtime.all_labels
    assert labels["org.opencontainers.image.created"] == "2026-11-22T00:00:00Z"
    assert labels["org.opencontainers.image.base.name"] == base.ref
    assert (
        labels["org.opencontainers.image.ref.name"] == f"12.4.1-runtime-debian12-{runtime.build_id}"
    )
    assert labels["io.goldnode.min-driver"] == "525.60.13"
    assert labels["io.goldnode.redistribution"] == "private"
    assert labels["io.goldnode.cuda-compat"] == "none"
    assert json.loads(labels["io.goldnode.parts"]) == {
        "cudart": "12.4.127",
        "cublas": "12.4.5.8",
        "cudnn": "9.1.0.70",
    }
    assert "io.goldnode.min-driver" not in found["cpu-1-base-debian12"].all_labels


def test_image_json_names_build_cuda_home_and_wheels(world: World) -> None:
    found = recipes(world)["cuda-12.4.1-runtime-debian12"]
    document = json.loads(found.image_json)
    assert document["build_id"] == found.build_id
    assert document["cuda_home"] == "/usr/local/cuda-12.4"
    assert [row["name"] for row in document["wheels"]] == [
        "nvidia_cuda_runtime_cu12",
        "nvidia_cublas_cu12",
        "nvidia_cudnn_cu12",
    ]


def test_a_lock_made_on_another_parent_is_refused(world: World) -> None:
    rows = world.rows()
    parents = {item.image.name: item for item in build.recipes(rows, TOOLS)}
    world.wheels["cuda-12.4.1-base-debian12"]["nvidia_cuda_runtime_cu12"] = "12.4.128"
    row, lock = next(
        pair for pair in world.rows() if pair[0].name == "cuda-12.4.1-runtime-debian12"
    )
    with pytest.raises(
        ImageError,
        match=r"made on another lock of .*Run `goldnode images lock cuda-12\.4\.1-runtime-debian12`",
    ):
        recipe(row, lock, parents["cuda-12.4.1-base-debian12"], TOOLS)


def test_a_parent_that_is_missing_is_refused(world: World) -> None:
    row, lock = next(pair for pair in world.rows() if pair[0].name == "cuda-12.4.1-base-debian12")
    with pytest.raises(ImageError, match='has the parent "cpu-1-base-debian12"'):
        recipe(row, lock, None, TOOLS)


def test_big_wheels_are_layers_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(group) for group in recipes(world)["cuda-12.4.1-runtime-debian12"].groups] == [2]
    monkeypatch.setattr("goldnode.images.layercache.OWN_LAYER", 10)
    assert [len(group) for group in recipes(world)["cuda-12.4.1-runtime-debian12"].groups] == [1, 1]


def test_intels_opencl_for_processors_is_where_a_loader_looks(world: World) -> None:
    row, lock = world.rows()[0]
    plain = recipe(row, lock, None, TOOLS).files
    wheel = world.wheel("intel_opencl_rt", "2025.3.3").model_copy(
        update={"name": "intel-opencl-rt"}
    )
    with_it = recipe(row, lock.model_copy(update={"wheels": [wheel]}), None, TOOLS).files
    assert {path: with_it[path] for path in with_it.keys() - plain.keys()} == {
        "etc/OpenCL/vendors/intel-cpu.icd": {
            "text": "/usr/local/lib/libintelocl.so\n",
            "mode": 0o644,
        }
    }


def test_debians_toolkit_has_the_stubs_where_the_linker_is_led(world: World) -> None:
    rows = {row.name: (row, lock) for row, lock in world.rows()}
    parent = recipes(world)["cuda-12.4.1-runtime-debian12"]
    files = recipe(*rows["cuda-12.4.1-devel-debian12"], parent, TOOLS).files
    assert files["usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs"] == {
        "link": "/usr/lib/x86_64-linux-gnu/stubs"
    }
    assert "usr/local/cuda-12.4/lib" not in files
    # Builds look for the compiler in CUDA's own directory; Debian's there finds no gcc of its own (seen with 11.8 on Debian 12).
    assert files["usr/local/cuda-12.4/bin/ptxas"] == {"link": "/usr/bin/ptxas"}
    nvcc = files["usr/local/cuda-12.4/bin/nvcc"]
    assert nvcc["mode"] == 0o755
    assert 'PATH="/usr/lib/nvidia-cuda-toolkit/bin:' in nvcc["text"]


def test_the_compiler_of_wheels_finds_libraries_where_its_profile_looks() -> None:
    """nvcc.profile of NVIDIA's wheel 13.5.37: LIBRARIES =+ "-L$(TOP)/lib/stubs" "-L$(TOP)/lib"."""
    rows = load_matrix(None).select(("cuda-13.5.0-devel-debian13",), exercised=True)
    found = {
        item.image.name: item
        for item in build.recipes([(row, find_lock(row)) for row in rows], TOOLS)
    }
    assert found["cuda-13.5.0-devel-debian13"].files["usr/local/cuda-13.5/lib"] == {
        "link": "targets/x86_64-linux/lib"
    }
    assert "usr/local/cuda-13.5/lib" not in found["cuda-13.5.0-runtime-debian13"].files
