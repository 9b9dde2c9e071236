"""The container images of a class in `goldnode cve prepare`: locks with the fix, builds from them, smoke tests."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cve.samples import CVE, tracker
from tests.unit.images.registries import make_image

from goldnode.catalog.models import NodeClass
from goldnode.classdoc.load import load_catalog
from goldnode.core.site import Site
from goldnode.cve import subjects
from goldnode.cve.debian import DebianTracker
from goldnode.cve.feeds import Feed
from goldnode.cve.image_steps import image_steps, images_of
from goldnode.cve.match import Matcher
from goldnode.cve.prepare import PrepareRequest, steps
from goldnode.evidence import SMOKE
from goldnode.images.imagelock import find_lock
from goldnode.images.matrix import load_matrix
from goldnode.images.store import ImageStore
from goldnode.oci.layout import canonical
from goldnode.oci.model import Built

MATRIX = load_matrix()
BASE, NAME = "cpu-1-base-debian12", "cuda-12.4.1-runtime-debian12"
CHAIN = [row.name for row in MATRIX.chain(NAME)]
OLD, NEW = "a" * 12, "b" * 12


def class_of(*refs: str) -> NodeClass:
    return NodeClass.model_validate(
        {
            "class": "l4",
            "backend": "cuda",
            "stack": "s",
            "gpu": {"model": "L4", "count": 8},
            "images": [{"ref": ref} for ref in refs],
        }
    )


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def build(store: ImageStore, build_id: str, lock: str) -> str:
    digest = make_image(store.layout, build=build_id, content=build_id.encode())[1]
    store.record(Built(NAME, build_id, "r" * 64, lock, digest))
    return digest


def smoked(store: ImageStore, digest: str, state: str, *, simulated: bool = False) -> None:
    record = {"tiers": {"cpu": {"state": state, "why": "as the test says"}}, "simulated": simulated}
    store.layout.attach(digest, SMOKE, canonical(record))


@pytest.mark.parametrize(
    ("ref", "named"),
    [
        ("registry.example/gpu/cuda:12.4.1-runtime-debian12-0123456789ab", [NAME]),
        ("cuda:12.4.1-runtime-debian12", [NAME]),
        ("registry.example/cuda:12.4-runtime-debian12", [NAME]),
        ("registry.example/cuda:12.4-runtime-debian12-canary", [NAME]),
        ("registry.example/cuda:12.4-runtime-debian13", ["cuda-12.4.1-runtime-debian13"]),
        ("registry.example/notcuda:12.4-runtime-debian12", []),
        ("registry.example/cuda", []),
        ("nvcr.example/pytorch:24.05", []),
    ],
)
def test_images_of_a_class_are_those_that_it_names(
    store: ImageStore, ref: str, named: list[str]
) -> None:
    assert images_of(class_of(ref), MATRIX, lambda: store) == named


def test_image_that_is_named_by_its_digest_is_one_of_the_store(store: ImageStore) -> None:
    digest = build(store, OLD, "sha256:old")
    item = class_of(f"registry.example/cuda@{digest}")
    assert images_of(item, MATRIX, lambda: store) == [NAME]
    assert images_of(item, MATRIX, lambda: None) == []


def test_image_is_locked_built_and_smoke_tested_with_the_fix(store: ImageStore) -> None:
    still_open = {BASE}

    def is_open(contents: subjects.CarrierContents) -> str:
        assert contents.packages
        return "libc6 1: fixed in 2" if contents.name in still_open else ""

    chosen = list(image_steps([NAME], MATRIX, lambda: store, is_open))
    assert [step.name for step in chosen] == [
        *(f"image lock {name}" for name in CHAIN),
        f"image build {NAME}",
        f"image smoke {NAME}",
    ]
    first, *_, made, smoke = chosen
    assert (first.words, first.missing()) == (
        ("images", "lock", BASE, "--upgrade"),
        "libc6 1: fixed in 2",
    )
    still_open.clear()
    assert first.missing() == ""
    # A build of an older lock is no build with the fix.
    smoked(store, build(store, OLD, "sha256:old"), "passed")
    assert made.missing() == "no image was built from this lock"
    assert (smoke.missing(), smoke.words[2]) == ("there is no image", NAME)
    digest = build(store, NEW, find_lock(MATRIX.row(NAME)).digest)
    assert (made.missing(), smoke.missing()) == ("", "no smoke record is attached")
    assert smoke.words == ("images", "smoke", digest, "--tier", "cpu")
    smoked(store, digest, "passed", simulated=True)
    assert "simulated" in smoke.missing()
    smoked(store, digest, "passed")
    assert smoke.missing() == ""
    smoked(store, digest, "failed")
    assert "smoke tests of tier cpu failed" in smoke.missing()


def test_lock_that_two_images_share_is_one_step_and_no_store_is_no_image() -> None:
    names = [NAME, "cuda-12.4.1-base-debian12"]
    chosen = list(image_steps(names, MATRIX, lambda: None, lambda _: ""))
    locks = [step.name for step in chosen if step.name.startswith("image lock")]
    assert (len(locks), locks) == (len(set(locks)), [f"image lock {name}" for name in CHAIN])
    last = chosen[-1]
    assert last.missing() == "there is no image"


def test_images_follow_the_disk_of_their_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_IMAGES", str(tmp_path / "none"))
    catalog = load_catalog()
    entry = catalog.node_class("demo_disk_r535")
    named = class_of("registry.example/cuda:12.4-runtime-debian12").images
    item = entry.item.model_copy(update={"images": named})
    catalog = replace(catalog, classes={**catalog.classes, entry.name: replace(entry, item=item)})
    row = {"status": "resolved", "fixed_version": "2.36-9+deb12u99", "urgency": "high"}
    data = DebianTracker(tracker({"glibc": {CVE: {"bookworm": row}}}), {"bookworm"})
    matcher = Matcher([Feed("debian", "made", "", "2026-11-27", "given", data)], {CVE})
    at = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    request = PrepareRequest(CVE, entry.name, catalog, Site(), matcher=matcher, at=at)
    chosen = {step.name: step for step in steps(request)}
    images = [name for name in chosen if name.startswith("image ")]
    assert images == [*list(chosen)[-len(images) :]]
    assert len(images) == len(CHAIN) + 2
    # The base has the library, and what is built on it has no package of its own with the vulnerability.
    why = chosen[f"image lock {BASE}"].missing()
    assert why.startswith("glibc (libc6) ") or why.startswith("glibc ")
    assert chosen[f"image lock {NAME}"].missing() == ""
