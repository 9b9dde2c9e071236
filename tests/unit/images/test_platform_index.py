"""The index of an image for several architectures: its content, what is refused, and what pull takes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.images.registries import Simulated, running

from goldnode.channels.gc import NeededContent
from goldnode.core.errors import ImageError
from goldnode.images.channels import RegistryPlace
from goldnode.images.gc import collect_registry
from goldnode.images.platform_index import index_of, publish_index
from goldnode.images.pull import ImagePull, pull
from goldnode.oci.layout import CONFIG, INDEX, MANIFEST, Layout, canonical
from goldnode.oci.registry import registry_address

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "store")


@pytest.fixture
def registry() -> Iterator[Simulated]:
    with running(Simulated(api=False)) as server:
        assert isinstance(server, Simulated)
        yield server


def image(
    layout: Layout, architecture: str, flavour: str = "base", build: str = "0123456789ab"
) -> str:
    """Put an image without layers into the layout, and return its ref."""
    system = "debian12" if architecture == "amd64" else f"debian12_{architecture}"
    labels = {
        "backend": "cpu",
        "runtime": "1",
        "flavour": flavour,
        "os": "debian12",
        "architectures": architecture,
        "build-id": build,
        "redistribution": "free",
    }
    named = {f"io.goldnode.{key}": value for key, value in labels.items()}
    name = f"cpu-1-{flavour}-{system}"
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Labels": named},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [{"created_by": f"goldnode identity of {name}", "empty_layer": True}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.put(canonical(config), CONFIG).document(),
        "layers": [],
        "annotations": named,
    }
    ref = f"cpu:1-{flavour}-{system}-{build}"
    layout.set_ref(ref, layout.put(canonical(manifest), MANIFEST))
    return ref


def load(layout: Layout, server: Simulated, *refs: str) -> None:
    for ref in refs:
        server.load(layout, layout.refs()[ref].digest, "gpu/cpu", ref.partition(":")[2])


def test_an_index_lists_its_platforms(layout: Layout) -> None:
    refs = [image(layout, "arm64"), image(layout, "amd64")]
    found = index_of(layout, refs)
    assert found.data == index_of(layout, refs[::-1]).data
    document = json.loads(found.data)
    assert document["mediaType"] == INDEX
    assert [row["platform"] for row in document["manifests"]] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux"},
    ]
    assert [row["digest"] for row in document["manifests"]] == [
        layout.refs()[ref].digest for ref in refs[::-1]
    ]
    assert found.tag == f"1-base-debian12-index-{found.digest[7:19]}"


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"architecture": "arm64", "flavour": "runtime"}, "is not the same image as"),
        ({"architecture": "amd64", "build": "ba9876543210"}, "are both for linux/amd64"),
        (None, "less than two platforms"),
    ],
)
def test_images_that_make_no_index_are_refused(
    layout: Layout, second: dict[str, str] | None, why: str
) -> None:
    refs = [image(layout, "amd64"), *([image(layout, **second)] if second is not None else [])]
    with pytest.raises(ImageError, match=why):
        index_of(layout, refs)


def test_an_image_without_labels_is_refused(layout: Layout) -> None:
    config = layout.put(canonical({"architecture": "arm64", "os": "linux", "config": {}}), CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.document(),
        "layers": [],
    }
    layout.set_ref("x:y", layout.put(canonical(manifest), MANIFEST))
    with pytest.raises(ImageError, match="has no labels of an image of goldnode"):
        index_of(layout, ["x:y"])


def test_a_published_index_is_pulled_by_platform(
    layout: Layout, registry: Simulated, tmp_path: Path
) -> None:
    refs = [image(layout, "amd64"), image(layout, "arm64")]
    load(layout, registry, *refs)
    place = registry_address(f"http://{registry.host}/gpu")
    done = publish_index(layout, refs, place, registry.client())
    assert not done.before
    assert set(done.platforms) == {"linux/amd64", "linux/arm64"}
    assert publish_index(layout, refs, place, registry.client()).before
    assert registry.writes() == [f"PUT /v2/gpu/cpu/manifests/{done.name.rpartition(':')[2]}"]
    target = registry.client().repository("gpu/cpu")
    for architecture, ref in zip(("amd64", "arm64"), refs, strict=True):
        pulled = pull(
            Layout(tmp_path / architecture),
            target,
            done.name.rpartition(":")[2],
            ImagePull(system=f"linux/{architecture}"),
        )
        assert (pulled.ref, pulled.digest) == (ref, layout.refs()[ref].digest)
    with pytest.raises(ImageError, match="has no image for linux/riscv64"):
        pull(Layout(tmp_path / "none"), target, done.digest, ImagePull(system="linux/riscv64"))


def test_an_index_of_what_is_not_published_is_refused(layout: Layout, registry: Simulated) -> None:
    refs = [image(layout, "amd64"), image(layout, "arm64")]
    place = registry_address(f"http://{registry.host}/gpu")
    load(layout, registry, refs[0])
    with pytest.raises(
        ImageError, match=r"debian12_arm64-0123456789ab is not there.*images publish cpu:1-base"
    ):
        publish_index(layout, refs, place, registry.client())
    # Another image under the tag.
    load(layout, registry, refs[1])
    registry.named["gpu/cpu", refs[1].partition(":")[2]] = layout.refs()[refs[0]].digest
    with pytest.raises(ImageError, match=r"is sha256:\w+ there, and sha256:\w+ here"):
        publish_index(layout, refs, place, registry.client())
    assert not registry.writes()


def test_an_index_that_another_wrote_is_refused(layout: Layout, registry: Simulated) -> None:
    refs = [image(layout, "amd64"), image(layout, "arm64")]
    load(layout, registry, *refs)
    tag = index_of(layout, refs).tag
    registry.named["gpu/cpu", tag] = layout.refs()[refs[0]].digest
    with pytest.raises(ImageError, match="its tag states another digest"):
        publish_index(
            layout, refs, registry_address(f"http://{registry.host}/gpu"), registry.client()
        )


def test_images_of_an_index_stay_in_the_registry(
    layout: Layout, registry: Simulated, tmp_path: Path
) -> None:
    refs = [image(layout, "amd64"), image(layout, "arm64")]
    load(layout, registry, *refs)
    client, address = registry.client(), registry_address(f"http://{registry.host}/gpu")
    tag = publish_index(layout, refs, address, client).name.rpartition(":")[2]
    empty = Layout(tmp_path / "empty")
    place = RegistryPlace(address, client, empty)
    gone, stays = collect_registry(place, empty, ["cpu"], NeededContent())
    assert not gone
    assert {stays[f"{registry.host}/gpu/{ref}"] for ref in refs} == {f"the index {tag} lists it"}
