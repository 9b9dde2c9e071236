"""The builder over an engine that runs nothing: what is made, what is kept, what an interruption leaves."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest
from tests.unit.images.image_rows import TOOLS, FakeEngine, World, fake_root

from goldnode.channels.locks import lane
from goldnode.core.errors import ImageError
from goldnode.images import build
from goldnode.images.build import Builder, differing, twice
from goldnode.images.recipe import ImageRecipe
from goldnode.oci import layers
from goldnode.oci.identity import identity

RUNTIME, DEVEL = "cuda-12.4.1-runtime-debian12", "cuda-12.4.1-devel-debian12"
BASE, OTHER = "cuda-12.4.1-base-debian12", "cuda-13.0.0-base-debian13"


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return fake_root(monkeypatch)


@pytest.fixture
def world(tmp_path: Path, roots: list[str]) -> World:
    return World(tmp_path)


def recipes(world: World) -> list[ImageRecipe]:
    return build.recipes(world.rows(), TOOLS, b"runner")


def builder(
    world: World, engine: FakeEngine | None = None, said: list[str] | None = None
) -> Builder:
    def say(what: str, state: str, seconds: float) -> None:
        if said is not None and state == "done":
            said.append(what)

    return Builder(world.store, engine or FakeEngine(), 3, say)


def test_every_image_of_the_matrix_is_built_with_one_root_per_os(
    world: World, roots: list[str]
) -> None:
    engine = FakeEngine()
    wanted = recipes(world)
    built = builder(world, engine).build(wanted)
    assert [item.image for item in built] == [item.image.name for item in wanted]
    assert sorted(roots) == ["bookworm", "trixie"]  # once per OS
    assert set(world.store.layout.refs()) == {item.ref for item in wanted}
    image = world.store.layout.image(
        next(item.ref for item in wanted if item.image.name == RUNTIME)
    )
    assert image.environment["CUDA_VERSION"] == "12.4.1"
    assert {
        "etc/os-release",
        "etc/ld.so.cache",
        "usr/lib/goldnode/image.json",
        "usr/lib/goldnode/goldnode-smoke",
        "usr/bin/goldnode-smoke",
    } <= set(image.members)
    assert (
        image.read("usr/local/cuda/lib64/libnvidia_cudnn_cu12.so.1")
        == b"nvidia_cudnn_cu12 9.1.0.70"
    )
    assert not any(path.startswith("run/") for path in image.members)
    assert image.members["etc/ld.so.cache"].info.mtime == wanted[0].epoch
    assert (
        len(image.config["history"]) == len(image.layers) == len(image.config["rootfs"]["diff_ids"])
    )
    assert {identity(world.store.layout.image(item.ref).config).ref for item in wanted} == {
        item.ref for item in wanted
    }


def test_layers_are_shared(world: World) -> None:
    wanted = {item.image.name: item for item in recipes(world)}
    builder(world).build(list(wanted.values()))
    images = {name: world.store.layout.image(item.ref) for name, item in wanted.items()}
    for name, item in wanted.items():
        if item.parent is not None:
            below = images[item.parent.image.name].layers
            assert images[name].layers[: len(below)] == below


def test_nothing_is_built_again(world: World) -> None:
    engine, said = FakeEngine(), list[str]()
    first = builder(world, engine).build(recipes(world))
    count = len(engine.steps)
    assert builder(world, engine, said).build(recipes(world)) == first
    assert (len(engine.steps), said) == (count, [])


def test_one_change_makes_again_what_hangs_on_it(world: World, roots: list[str]) -> None:
    engine, said = FakeEngine(), list[str]()
    builder(world, engine).build(recipes(world))
    steps = len(engine.steps)
    world.wheels[RUNTIME]["nvidia_cudnn_cu12"] = "9.2.0.1"
    wanted = recipes(world)
    assert {item.image.name for item in builder(world).pending(wanted)} == {RUNTIME, DEVEL}
    builder(world, engine, said).build(wanted)
    assert len(engine.steps) == steps + 2
    assert {RUNTIME, DEVEL} <= set(said)
    assert not {BASE, OTHER, "cpu-1-base-debian12"} & set(said)
    assert len(roots) == 2


def test_a_new_date_keeps_the_layers_of_wheels(world: World) -> None:
    name = RUNTIME
    builder(world).build(recipes(world))
    before = {
        layer.digest
        for layer in world.store.layout.image(
            next(item.ref for item in recipes(world) if item.image.name == name)
        ).layers
    }
    world.resolved = "2026-12-24"
    builder(world).build(recipes(world))
    image = world.store.layout.image(
        next(item.ref for item in recipes(world) if item.image.name == name)
    )
    kept = [number for number, layer in enumerate(image.layers) if layer.digest in before]
    assert [image.config["history"][number]["created_by"].split(":")[0] for number in kept] == [
        "goldnode wheels",
        "goldnode wheels",
    ]


def test_second_build_of_each_image_is_identical(world: World, tmp_path: Path) -> None:
    wanted = recipes(world)
    builder(world).build(wanted)
    assert twice(world.store, wanted, FakeEngine(), tmp_path / "second") == []
    assert not (tmp_path / "second").exists()


def test_twice_names_what_differs(world: World, tmp_path: Path) -> None:
    wanted = recipes(world)
    builder(world).build(wanted)
    found = twice(world.store, wanted, FakeEngine(content="another"), tmp_path / "second")
    assert {row.image for row in found} == {BASE, RUNTIME, DEVEL, OTHER}
    assert found[0].what.startswith("layer 5 (goldnode ldconfig): /etc/ld.so.cache: ")
    assert (tmp_path / "second").exists()


def test_differing_names_layers_or_files_that_differ(world: World) -> None:
    wanted = {item.image.name: item for item in recipes(world)}
    builder(world).build(list(wanted.values()))
    image = {name: world.store.layout.image(item.ref) for name, item in wanted.items()}
    assert differing(image[BASE], image[BASE]) == "nothing"
    assert differing(image[BASE], image[RUNTIME]) == "7 layers against 10"
    assert "/etc/os-release: size, content" in differing(image[BASE], image[OTHER])


OUTLINE = {"soname": None, "size": 3, "pieces": [[0, "eHh4"]]}


def test_a_failure_stops_what_hangs_on_it_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldnode.oci.layers.outline", lambda file: OUTLINE)
    engine = FakeEngine(fails=["libnvidia_cublas"])
    with pytest.raises(ImageError, match="the script failed"):
        builder(world, engine).build(recipes(world))
    assert {row.image for row in world.store.built().values()} == {
        "cpu-1-base-debian12",
        "cpu-1-base-debian13",
        BASE,
        OTHER,
    }
    builder(world).build(recipes(world))
    assert len(world.store.built()) == 6


def test_build_killed_before_its_name_leaves_no_image(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the manifest and the name: the next run builds it, and what is left over counts for nothing."""

    def killed(name: str, descriptor: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.store.layout, "set_ref", killed)
    with pytest.raises(KeyboardInterrupt):
        builder(world).build(recipes(world)[:1])
    monkeypatch.undo()
    assert world.store.built() == {}
    assert world.store.layout.refs() == {}


def test_a_killed_run_is_cleaned_up_after(world: World, roots: list[str]) -> None:
    for path in (
        world.store.cache / "running/x",
        world.store.cache / "work/old/file",
        world.store.cache / "buildah/root/half",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    builder(world).build(recipes(world)[:1])
    assert not (world.store.cache / "running/x").exists()
    assert not (world.store.cache / "work/old").exists()
    assert not (world.store.cache / "buildah").exists()


def test_build_fails_on_a_full_disk_and_succeeds_afterwards(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = layers.write_layer

    def full(*given: object, **named: object) -> layers.Layer:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build, "write_layer", full)
    with pytest.raises(ImageError, match=r"the disk is full.*Make room"):
        builder(world).build(recipes(world))
    monkeypatch.setattr(build, "write_layer", write)
    assert len(builder(world).build(recipes(world))) == 6


def test_a_file_that_is_not_what_the_lock_names(world: World) -> None:
    wanted = recipes(world)
    file, sha256, _ = next(item for item in wanted if item.image.name == BASE).wheels[0]
    path = world.store.pool / sha256 / file
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ImageError, match=r"its hash is another.*Delete it"):
        builder(world).build(wanted)


def test_a_file_that_is_not_there(world: World) -> None:
    wanted = recipes(world)
    file, sha256, _ = next(item for item in wanted if item.image.name == BASE).wheels[0]
    (world.store.pool / sha256 / file).unlink()
    with pytest.raises(ImageError, match=r"is not in the pool.*without --offline"):
        builder(world).build(wanted)


def test_a_layer_that_was_collected_is_made_again(world: World) -> None:
    wanted = recipes(world)
    first = builder(world).build(wanted)
    blob = world.store.layout.image(wanted[-1].ref).layers[0].digest
    world.store.layout.path(blob).unlink()
    assert builder(world).pending(wanted)
    assert builder(world).build(wanted) == first or [
        row.digest for row in builder(world).build(wanted)
    ] == [row.digest for row in first]
    assert world.store.layout.has(blob)


def test_nothing_is_collected_while_it_builds(world: World) -> None:
    held: list[bool] = []

    def say(what: str, state: str, seconds: float) -> None:
        with (world.store.root / "channels/.gc-.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)

    (world.store.root / "channels").mkdir()
    Builder(world.store, FakeEngine(), 2, say).build(recipes(world)[:2])
    assert held
    assert all(held)
    with lane(world.store.layout, "", name="gc"):
        pass


def test_the_script_sees_outlines_of_the_whole_chain(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldnode.oci.layers.outline", lambda file: OUTLINE)
    engine = FakeEngine()
    builder(world, engine).build(recipes(world))
    whole = max(engine.shown, key=len).split()
    assert [path.rpartition("/")[2] for path in whole] == [
        "libnvidia_cublas_cu12.so.1",
        "libnvidia_cuda_runtime_cu12.so.1",
        "libnvidia_cudnn_cu12.so.1",
    ]
