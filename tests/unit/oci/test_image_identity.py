"""Identity of images: our own, derived ones, and children that inherited their labels."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.oci.identity import (
    BASE_DIGEST,
    BASE_NAME,
    REPOSITORY,
    ROOTFS,
    identity,
    rootfs_digest,
    step_of,
)

LAYERS = ["sha256:" + digit * 64 for digit in "12"]
LABELS = {
    "io.goldnode.backend": "cuda",
    "io.goldnode.runtime": "12.4.1",
    "io.goldnode.flavour": "runtime",
    "io.goldnode.os": "debian12",
    "io.goldnode.build-id": "0123456789ab",
    BASE_NAME: "cuda:12.4.1-base-debian12-ba9876543210",
    BASE_DIGEST: "sha256:" + "b" * 64,
}
REF = "cuda:12.4.1-runtime-debian12-0123456789ab"
DERIVED = {
    **LABELS,
    REPOSITORY: "recsys/trainer",
    "io.goldnode.version": "2.1",
    "io.goldnode.flavour": "cuda12.4",
    ROOTFS: rootfs_digest(LAYERS),
}


def config(
    labels: dict[str, str] = LABELS,
    layers: list[str] = LAYERS,
    steps: tuple[dict[str, Any], ...] | None = None,
) -> dict[str, Any]:
    name = labels.get(REPOSITORY, "cuda-12.4.1-runtime-debian12")
    own = ({"created_by": "goldnode ldconfig"}, {"created_by": step_of(name)})
    history = own if steps is None else (*own, *steps)
    return {
        "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": list(history),
    }


def test_matrix_image_is_named_by_its_labels() -> None:
    found = identity(config())
    assert (found.kind, found.ref, found.name) == ("matrix", REF, "cuda-12.4.1-runtime-debian12")
    assert found.base_digest == LABELS[BASE_DIGEST]


def test_derived_image_has_the_name_of_its_team() -> None:
    found = identity(config(DERIVED))
    assert (found.kind, found.ref) == (
        "derived",
        "recsys/trainer:2.1-cuda12.4-debian12-0123456789ab",
    )
    assert (found.name, found.backend, found.runtime) == ("recsys/trainer", "cuda", "12.4.1")


@pytest.mark.parametrize(
    "child",
    [
        config(
            layers=[*LAYERS, "sha256:" + "3" * 64], steps=({"created_by": "RUN pip install x"},)
        ),
        config(steps=({"created_by": "ENV A=b", "empty_layer": True},)),
        config(layers=LAYERS[:1]),  # squashed: its steps do not fit its layers
        config(layers=[*LAYERS, "sha256:" + "3" * 64]),  # a tool that appends a layer and no step
        {**config(), "history": []},
        config(DERIVED, layers=["sha256:" + "3" * 64, LAYERS[1]]),
    ],
)
def test_child_never_has_the_name_of_its_base(child: dict[str, Any]) -> None:
    found = identity(child)
    assert (found.kind, found.ref, found.name, found.base_digest) == ("child", "", "", "")
    assert found.ancestor is not None
    assert found.base_name == found.ancestor.ref != ""
    assert (found.backend, found.runtime) == ("cuda", "12.4.1")


def test_configuration_without_steps_is_unverified() -> None:
    inspected = {"Config": {"Labels": LABELS}, "RootFS": {"Layers": LAYERS}}
    found = identity(inspected)
    assert (found.kind, found.ref, found.base_name) == ("unverified", "", REF)


def test_derived_image_with_other_layers_is_a_child_even_without_steps() -> None:
    assert (
        identity({"Config": {"Labels": DERIVED}, "RootFS": {"Layers": LAYERS[:1]}}).kind == "child"
    )


@pytest.mark.parametrize("labels", [{}, {"io.goldnode.backend": "cuda"}, None])
def test_image_without_our_labels_is_foreign(labels: dict[str, str] | None) -> None:
    assert identity({"config": {"Labels": labels}, "history": []}).kind == "foreign"
