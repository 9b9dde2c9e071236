"""Publishing and pulling: the order of writes, what is refused, what a cut leaves, what is read back."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.images.registries import (
    BUILD,
    Simulated,
    before,
    dies_at_write,
    make_image,
    make_key,
    once,
    prove,
    running,
    sign,
)

from goldnode import evidence
from goldnode.channels.requirements import RequirementDecision
from goldnode.core.errors import ImageError
from goldnode.evidence.signatures import load_public
from goldnode.images.publish import ImagePublication, PublishedImage, find, publish
from goldnode.images.pull import ImagePull, pull
from goldnode.images.requirements import PUBLICATION
from goldnode.oci.layout import INDEX, Layout, OciImage, canonical
from goldnode.oci.registry import UnreachableError, registry_address

pytestmark = pytest.mark.usefixtures("unsynced")
TAG = f"12.4.1-runtime-debian12-{BUILD}"


@pytest.fixture(params=[True, False], ids=["api", "tag"])
def simulated(request: pytest.FixtureRequest) -> Iterator[Simulated]:
    with running(Simulated(api=request.param)) as server:
        assert isinstance(server, Simulated)
        yield server


@pytest.fixture
def plain() -> Iterator[Simulated]:
    with running(Simulated(api=False)) as server:
        assert isinstance(server, Simulated)
        yield server


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "store")


def image(layout: Layout, keys: tuple[Path, Path], **given: Any) -> tuple[str, str]:
    proof = {
        name: given.pop(name)
        for name in ("inspection", "truth", "cpu", "gpu", "signed", "simulated", "papers")
        if name in given
    }
    ref, digest = make_image(layout, **given)
    prove(layout, digest, keys[0], **proof)
    return ref, digest


def send(
    layout: Layout, ref: str, server: Simulated, keys: tuple[Path, Path], **given: Any
) -> PublishedImage:
    place = registry_address(f"http://{server.host}/gpu")
    return publish(
        layout,
        ref,
        place,
        server.client(**given.pop("client", {})),
        ImagePublication(trust=load_public(keys[1]), settle=0, **given),
    )


def test_the_tag_is_the_last_write_and_all_of_it_is_there(
    simulated: Simulated, layout: Layout, keys: tuple[Path, Path]
) -> None:
    ref, digest = image(layout, keys)
    done = send(layout, ref, simulated, keys)
    assert simulated.writes()[-1] == f"PUT /v2/gpu/cuda/manifests/{TAG}"
    assert simulated.tag("gpu/cuda", TAG) == digest
    assert done.name == f"{simulated.host}/gpu/cuda:{TAG}"
    assert done.evidence == 9
    assert done.api is simulated.api
    rows, _ = simulated.client().repository("gpu/cuda").referrers(digest)
    assert {row["artifactType"] for row in rows} >= {
        evidence.INSPECTION,
        evidence.SIGNATURE,
        PUBLICATION,
    }


def test_a_repeat_sends_nothing(
    simulated: Simulated, layout: Layout, keys: tuple[Path, Path]
) -> None:
    ref, _ = image(layout, keys)
    first = send(layout, ref, simulated, keys)
    uploads = sum("uploads" in text for text in simulated.writes())
    again = send(layout, ref, simulated, keys)
    assert again.before
    assert not first.before
    assert again.sent == 0
    assert again.evidence == first.evidence
    assert sum("uploads" in text for text in simulated.writes()) == uploads


def test_any_cut_leaves_no_tag_and_a_repeat_completes_it(
    plain: Simulated, layout: Layout, keys: tuple[Path, Path]
) -> None:
    ref, digest = image(layout, keys, papers=False)
    for number in range(200):
        with running(Simulated(api=False)) as server:
            assert isinstance(server, Simulated)
            server.rules = [dies_at_write(number)]
            one = {"client": {"tries": 1}, "parallel": 1}
            try:
                send(layout, ref, server, keys, **one)
            except UnreachableError:
                pass
            else:
                break
            assert server.tag("gpu/cuda", TAG) is None
            if number % 8 == 0:
                server.dead, server.rules = False, []
                send(layout, ref, server, keys, **one)
                assert server.tag("gpu/cuda", TAG) == digest
    assert number > 20  # every write of a publication was the last one once


def test_a_lost_answer_to_the_last_write_is_no_failure(
    simulated: Simulated, layout: Layout, keys: tuple[Path, Path]
) -> None:
    ref, digest = image(layout, keys)
    simulated.rules.append(once("lost", f"^PUT .*{TAG}$"))
    send(layout, ref, simulated, keys)
    assert simulated.tag("gpu/cuda", TAG) == digest


class TestLayersThatTheRegistryHas:
    """A registry hashes a blob when it arrives. Later it may have lost or changed bytes."""

    @pytest.fixture
    def published(
        self, simulated: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> tuple[str, str]:
        ref, digest = image(layout, keys, papers=False)
        send(layout, ref, simulated, keys)
        return ref, OciImage(layout, digest).layers[1].digest

    def alter(self, simulated: Simulated, layer: str) -> None:
        size = len(simulated.blobs["gpu/cuda", layer])
        simulated.tampered[layer] = b"x" * size

    def test_an_altered_layer_of_the_same_size_is_refused(
        self,
        simulated: Simulated,
        layout: Layout,
        keys: tuple[Path, Path],
        published: tuple[str, str],
    ) -> None:
        ref, layer = published
        self.alter(simulated, layer)
        with pytest.raises(
            ImageError, match=rf"blob {layer} .* is altered.*[Dd]elete it from the registry"
        ):
            send(layout, ref, simulated, keys)

    def test_another_image_with_an_altered_layer_gets_no_tag(
        self,
        simulated: Simulated,
        layout: Layout,
        keys: tuple[Path, Path],
        published: tuple[str, str],
    ) -> None:
        shared = OciImage(layout, layout.refs()[published[0]].digest).layers[0].digest
        self.alter(simulated, shared)
        ref, _ = image(layout, keys, build="ba9876543210", content=b"two", papers=False)
        with pytest.raises(ImageError, match=rf"blob {shared} .* is altered"):
            send(layout, ref, simulated, keys)
        assert simulated.tag("gpu/cuda", ref.partition(":")[2]) is None

    def test_a_layer_is_read_once_in_seven_days(
        self,
        simulated: Simulated,
        layout: Layout,
        keys: tuple[Path, Path],
        published: tuple[str, str],
    ) -> None:
        ref, layer = published
        first = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)

        def reads(days: float, **given: Any) -> int:
            simulated.log.clear()
            send(layout, ref, simulated, keys, now=first + dt.timedelta(days=days), **given)
            return sum(
                str(request) == f"GET /v2/gpu/cuda/blobs/{layer}" for request in simulated.log
            )

        assert [reads(0), reads(6.9), reads(7), reads(7, full=True), reads(0)] == [1, 0, 1, 1, 1]

    def test_a_layer_that_ends_early_is_refused(
        self,
        simulated: Simulated,
        layout: Layout,
        keys: tuple[Path, Path],
        published: tuple[str, str],
    ) -> None:
        ref, layer = published
        simulated.rules.append(once("cut", f"^GET .*{layer}", 10))
        with pytest.raises(
            UnreachableError, match=rf"{layer} .* cannot be read back: it ends after \d+ of"
        ):
            send(layout, ref, simulated, keys)


class TestImmutableTags:
    def test_another_content_under_the_tag_is_refused(
        self, simulated: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys)
        send(layout, ref, simulated, keys)
        other = Layout(tmp_path / "other")
        image(other, keys, content=b"two")
        writes = len(simulated.writes())
        with pytest.raises(ImageError, match=r"an immutable tag is given to one content only"):
            send(other, ref, simulated, keys)
        assert simulated.tag("gpu/cuda", TAG) == digest
        assert len(simulated.writes()) == writes

    def rivals(
        self,
        plain: Simulated,
        layout: Layout,
        other: Layout,
        keys: tuple[Path, Path],
        pattern: str,
        skip: int,
    ) -> dict[str, bool]:
        """Publish from two stores; the second begins right before a request of the first, which waits until it wrote its tag or gave up."""
        ref, _ = image(layout, keys, papers=False)
        _, rival = image(other, keys, content=b"two", papers=False)
        done = {}

        def second() -> None:
            try:
                publish(
                    other,
                    ref,
                    registry_address(f"http://{plain.host}/gpu"),
                    plain.client(),
                    ImagePublication(trust=load_public(keys[1]), settle=0.5),
                )
                done["second"] = True
            except ImageError as problem:
                done["second"] = (
                    problem.message.split(": ")[-1]
                    != "an immutable tag is given to one content only"
                )

        thread = threading.Thread(target=second)

        def meanwhile() -> None:
            thread.start()
            while thread.is_alive() and plain.tag("gpu/cuda", TAG) != rival:
                time.sleep(0.01)

        plain.rules.append(before(pattern, meanwhile, skip))
        try:
            send(layout, ref, plain, keys)
            done["first"] = True
        except ImageError as problem:
            done["first"] = (
                problem.message.split(": ")[-1] != "an immutable tag is given to one content only"
            )
        thread.join()
        return done

    def test_only_one_of_two_overlapping_publishers_succeeds(
        self, plain: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        assert self.rivals(
            plain,
            layout=layout,
            other=Layout(tmp_path / "other"),
            keys=keys,
            pattern="^PUT .*/manifests/12",
            skip=0,
        ) == {
            "first": True,
            "second": False,
        }

    def test_a_publisher_that_comes_later_is_refused(
        self, plain: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        assert self.rivals(
            plain,
            layout=layout,
            other=Layout(tmp_path / "other"),
            keys=keys,
            pattern="^GET .*/manifests/12",
            skip=2,
        ) == {
            "first": True,
            "second": False,
        }

    def test_a_publisher_that_comes_between_wins(
        self, plain: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        assert self.rivals(
            plain,
            layout=layout,
            other=Layout(tmp_path / "other"),
            keys=keys,
            pattern="^GET .*/manifests/12",
            skip=1,
        ) == {
            "first": False,
            "second": True,
        }

    def test_two_publishers_of_the_same_content_both_succeed(
        self, plain: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys)
        other = Layout(tmp_path / "other")
        image(other, keys)
        plain.rules.append(before("^PUT .*/manifests/12", lambda: send(other, ref, plain, keys)))
        send(layout, ref, plain, keys)
        assert plain.tag("gpu/cuda", TAG) == digest


class TestGates:
    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"inspection": None}, "inspection: no inspection record is attached"),
            (
                {"inspection": False},
                r"inspection: the inspection record says: libcudart\.so\.12 is foreign",
            ),
            ({"truth": None}, "truth: no truth record is attached"),
            ({"truth": False}, r"truth: the truth record says: runtime: expected 12\.4, got 12\.1"),
            ({"cpu": "failed"}, "smoke-cpu: the smoke tests of tier cpu failed"),
            ({"cpu": "not_run"}, "smoke-cpu: the smoke tests of tier cpu were not run"),
            ({"cpu": "passed", "simulated": True}, "not run: it was simulated"),
            ({"cpu": "wonderful"}, "smoke-cpu: the smoke tests of tier cpu failed"),
            ({"signed": False}, "signature: no signature is attached"),
        ],
        ids=lambda value: (
            value
            if isinstance(value, str)
            else "-".join(f"{key}={item}" for key, item in value.items())
        ),
    )
    def test_publish_refuses_unproved_images_and_sends_nothing(
        self,
        plain: Simulated,
        layout: Layout,
        keys: tuple[Path, Path],
        given: dict[str, Any],
        why: str,
    ) -> None:
        ref, _ = image(layout, keys, **given)
        with pytest.raises(ImageError, match=why) as problem:
            send(layout, ref, plain, keys)
        assert "--waive" in str(problem.value)
        assert plain.log == []

    def test_a_signature_of_another_key_counts_for_nothing(
        self, plain: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, make_key(tmp_path, "other"))
        with pytest.raises(
            ImageError, match=r"signature: it is signed by a key that is not known here"
        ):
            send(layout, ref, plain, keys)
        with pytest.raises(ImageError, match=r"no key to verify it with was given"):
            publish(layout, ref, registry_address(f"http://{plain.host}"), plain.client())
        assert digest

    def test_a_signature_of_another_image_counts_for_nothing(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys, signed=False)
        _, other = image(layout, keys, build="ba9876543210", content=b"two")
        _, manifest = layout.attached(other, evidence.SIGNATURE)[0]
        layout.attach(digest, evidence.SIGNATURE, layout.read(manifest["layers"][0]["digest"]))
        with pytest.raises(ImageError, match=r"signature: it was given for something else"):
            send(layout, ref, plain, keys)

    def test_a_document_that_came_after_the_signature_counts_for_nothing(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys, inspection=None)
        layout.attach(digest, evidence.INSPECTION, canonical({"passed": True, "findings": []}))
        with pytest.raises(ImageError, match=r"attached after the signature"):
            send(layout, ref, plain, keys)
        sign(layout, digest, keys[0])
        send(layout, ref, plain, keys)

    def test_a_document_that_was_signed_for_and_is_gone_is_missed(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys)
        failed = {"tiers": {"cpu": {"state": "failed", "why": "", "tests": []}}, "simulated": False}
        artefact = layout.attach(digest, evidence.SMOKE, canonical(failed)).digest
        earlier, _ = layout.attached(digest, evidence.SIGNATURE)[0]
        sign(layout, digest, keys[0])
        with pytest.raises(ImageError, match=r"tier cpu failed"):
            send(layout, ref, plain, keys)
        layout.detach(artefact)
        with pytest.raises(
            ImageError,
            match=r"signature: smoke: sha256:\w+ is signed for, and is not attached.*publish it from the store",
        ):
            send(layout, ref, plain, keys)
        # Neither does an earlier signature help that knew nothing of it.
        layout.attach(
            digest,
            evidence.SIGNATURE,
            layout.read(layout.document(earlier.digest)["layers"][0]["digest"]),
        )
        with pytest.raises(ImageError, match=r"is signed for, and is not attached"):
            send(layout, ref, plain, keys)

    def test_additional_unknown_signature_does_not_prevent_publication(
        self, plain: Simulated, layout: Layout, tmp_path: Path, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, make_key(tmp_path, "other"))
        _, manifest = layout.attached(digest, evidence.SIGNATURE)[0]
        sign(layout, digest, keys[0])
        layout.attach(digest, evidence.SIGNATURE, layout.read(manifest["layers"][0]["digest"]))
        send(layout, ref, plain, keys)

    def test_one_failed_record_beside_a_passed_one_is_enough(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys, inspection=False)
        layout.attach(digest, evidence.INSPECTION, canonical({"passed": True, "findings": []}))
        sign(layout, digest, keys[0])
        with pytest.raises(ImageError, match=r"is foreign"):
            send(layout, ref, plain, keys)

    def test_a_waiver_is_recorded_and_published(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys, truth=None)
        done = send(
            layout,
            ref,
            plain,
            keys,
            waivers=[RequirementDecision("truth", "ana", "the runner is down")],
            now=dt.datetime(2026, 11, 22, tzinfo=dt.UTC),
        )
        assert [gate.state for gate in done.requirements] == [
            "passed",
            "waived",
            "passed",
            "passed",
        ]
        rows = [
            row
            for row in plain.client().repository("gpu/cuda").referrers(digest)[0]
            if row["artifactType"] == PUBLICATION
        ]
        found = json.loads(plain.manifests["gpu/cuda", rows[0]["digest"]][0])
        record = json.loads(plain.blobs["gpu/cuda", found["layers"][0]["digest"]])
        assert record["published"] == "2026-11-22T00:00:00Z"
        truth = next(gate for gate in record["gates"] if gate["gate"] == "truth")
        assert (truth["state"], truth["by"], truth["reason"]) == (
            "waived",
            "ana",
            "the runner is down",
        )
        assert "missing" in truth["why"]

    def test_waiver_of_an_unknown_requirement_is_refused(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, _ = image(layout, keys)
        with pytest.raises(
            ImageError, match=r'publish has no requirement "inspektion". Use "inspection"'
        ):
            send(layout, ref, plain, keys, waivers=[RequirementDecision("inspektion", "ana", "x")])

    @pytest.mark.parametrize("label", ["private", ""])
    def test_restricted_image_is_published_only_with_private(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path], label: str
    ) -> None:
        ref, digest = image(
            layout, keys, labels={"redistribution": label, "licences": "NVIDIA-CUDA-EULA"}
        )
        with pytest.raises(ImageError, match=r"NVIDIA-CUDA-EULA.*--private"):
            send(layout, ref, plain, keys)
        send(layout, ref, plain, keys, private=True)
        assert plain.tag("gpu/cuda", TAG) == digest

    @pytest.mark.parametrize("label", ["backend", "flavour", "os", "build-id"])
    def test_a_tag_that_its_labels_contradict_is_refused(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path], label: str
    ) -> None:
        ref, _ = image(layout, keys, labels={label: "another"})
        with pytest.raises(
            ImageError, match=r"the name is cuda:12.* the labels of the image say .*another"
        ):
            send(layout, ref, plain, keys)


class TestReadBack:
    def test_a_blob_that_vanished_is_found(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys)
        layer = OciImage(layout, digest).layers[1].digest
        plain.rules.append(
            before(
                f"^HEAD .*{layer}", lambda: plain.blobs.pop(("gpu/cuda", layer)) and None, skip=1
            )
        )
        with pytest.raises(ImageError, match=r"absent"):
            send(layout, ref, plain, keys)
        assert plain.tag("gpu/cuda", TAG) is None

    def test_a_tampered_document_is_found_and_a_tampered_layer_with_full(
        self, plain: Simulated, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        ref, digest = image(layout, keys)
        layer = OciImage(layout, digest).layers[1]
        plain.tampered[layer.digest] = b"x" * layer.size
        with pytest.raises(ImageError, match=r"is altered: expected"):
            send(layout, ref, plain, keys, full=True)
        assert plain.tag("gpu/cuda", TAG) is None
        plain.tampered = {
            layout.attached(digest, evidence.INSPECTION)[0][1]["layers"][0]["digest"]: b"{"
            + b" " * 27
            + b"}"
        }
        with pytest.raises(ImageError, match=r"altered"):
            send(layout, ref, plain, keys)
        assert plain.tag("gpu/cuda", TAG) is None


class TestPull:
    @pytest.fixture
    def published(self, simulated: Simulated, layout: Layout, keys: tuple[Path, Path]) -> str:
        ref, digest = image(layout, keys, bulk=50_000)
        send(layout, ref, simulated, keys)
        return digest

    def test_all_of_it_comes_back_with_its_evidence(
        self, simulated: Simulated, layout: Layout, tmp_path: Path, published: str
    ) -> None:
        other = Layout(tmp_path / "other")
        done = pull(other, simulated.client().repository("gpu/cuda"), published)
        assert done.ref == f"cuda:{TAG}"
        assert OciImage(other, published).read("opt/content") == b"one"
        assert {row.digest for row, _ in other.attached(published)} == {
            row.digest for row, _ in layout.attached(published)
        }
        again = pull(other, simulated.client().repository("gpu/cuda"), TAG)
        assert (again.fetched, again.there, again.digest) == (0, 3, published)

    def test_pull_never_overwrites_a_name_of_other_content(
        self, simulated: Simulated, layout: Layout, tmp_path: Path, published: str
    ) -> None:
        other = Layout(tmp_path / "other")
        ref, own = make_image(other, content=b"another")
        refusal = rf"{ref} is {own} in .*, and {published} in .*/gpu/cuda by its labels.*--store"
        target = simulated.client().repository("gpu/cuda")
        with pytest.raises(ImageError, match=refusal):
            pull(other, target, published)
        assert {name: row.digest for name, row in other.refs().items()} == {ref: own}
        layers = {row.digest for row in OciImage(layout, published).layers}
        assert not any(
            digest in request.path
            for digest in layers
            for request in simulated.log
            if request.method == "GET"
        )
        # One that comes while the layers do is seen as well.
        third = Layout(tmp_path / "third")
        simulated.rules.append(
            before(f"^GET .*{max(layers)}", lambda: make_image(third, content=b"another"))
        )
        with pytest.raises(ImageError, match=r"an immutable name is given to one content only"):
            pull(third, target, published)
        assert {name: row.digest for name, row in third.refs().items()} == {ref: own}

    @pytest.mark.parametrize(
        "labels",
        [{"build-id": "ba9876543210"}, {"backend": "rocm"}, {"runtime": "12.6.3"}, {"backend": ""}],
    )
    def test_an_immutable_tag_with_another_image_is_refused(
        self,
        simulated: Simulated,
        layout: Layout,
        tmp_path: Path,
        published: str,
        labels: dict[str, str],
    ) -> None:
        _, foreign = make_image(layout, labels=labels, content=b"foreign")
        simulated.load(layout, foreign, "gpu/cuda", TAG)
        other = Layout(tmp_path / "other")
        with pytest.raises(
            ImageError, match=rf"{TAG} is {foreign}.*a tag of this form is immutable.*by digest"
        ):
            pull(other, simulated.client().repository("gpu/cuda"), TAG)
        assert other.refs() == {}
        assert not any(other.has(row.digest) for row in OciImage(layout, foreign).layers)
        pull(other, simulated.client().repository("gpu/cuda"), foreign)

    @pytest.mark.parametrize(
        "labels", [{"build-id": "candidate", "runtime": "12.4"}, {"backend": ""}]
    )
    def test_labels_that_are_no_immutable_name_give_none(
        self, plain: Simulated, layout: Layout, tmp_path: Path, labels: dict[str, str]
    ) -> None:
        _, digest = make_image(layout, labels=labels)
        plain.load(layout, digest, "gpu/cuda", "x")
        other = Layout(tmp_path / "other")
        assert (
            pull(other, plain.client().repository("gpu/cuda"), "x").ref
            == f"{plain.host}/gpu/cuda@{digest}"
        )
        assert set(other.refs()) == {f"{plain.host}/gpu/cuda@{digest}"}

    def test_a_tampered_layer_leaves_no_image(
        self, simulated: Simulated, layout: Layout, tmp_path: Path, published: str
    ) -> None:
        layer = OciImage(layout, published).layers[1]
        simulated.tampered[layer.digest] = b"x" * layer.size
        other = Layout(tmp_path / "other")
        with pytest.raises(ImageError, match=r"altered"):
            pull(other, simulated.client().repository("gpu/cuda"), published)
        assert other.refs() == {}
        simulated.tampered.clear()
        pull(other, simulated.client().repository("gpu/cuda"), published)

    def test_pull_of_an_unknown_tag_names_the_nearest_one(
        self, simulated: Simulated, layout: Layout, tmp_path: Path, published: str
    ) -> None:
        with pytest.raises(
            ImageError, match=f'has no 12.4.1-runtime-debian13-{BUILD}. Use "{TAG}"'
        ):
            pull(
                Layout(tmp_path / "other"),
                simulated.client().repository("gpu/cuda"),
                TAG.replace("debian12", "debian13"),
            )

    def test_an_index_gives_the_image_of_the_platform(
        self, simulated: Simulated, layout: Layout, tmp_path: Path, published: str
    ) -> None:
        size = layout.path(published).stat().st_size
        row = {
            "mediaType": OciImage(layout, published).manifest["mediaType"],
            "digest": published,
            "size": size,
        }
        rows = [row | {"platform": {"os": "linux", "architecture": "amd64"}}]
        target = simulated.client().repository("gpu/cuda")
        target.put_manifest(
            "multi", canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}), INDEX
        )
        assert (
            pull(
                Layout(tmp_path / "other"), target, "multi", ImagePull(system="linux/amd64")
            ).digest
            == published
        )
        # The tag of an index states the beginning of its digest.
        right, wrong = (
            f"12.4.1-runtime-debian12-index-{end}"
            for end in (str(target.digest("multi"))[7:19], BUILD)
        )
        for tag in (right, wrong):
            simulated.named["gpu/cuda", tag] = str(target.digest("multi"))
        assert (
            pull(Layout(tmp_path / "other"), target, right, ImagePull(system="linux/amd64")).digest
            == published
        )
        with pytest.raises(
            ImageError,
            match=rf"is not the index whose digest begins with {BUILD}: the tag was moved",
        ):
            pull(Layout(tmp_path / "other"), target, wrong, ImagePull(system="linux/amd64"))
        with pytest.raises(ImageError, match=r"no image for linux/arm64"):
            pull(Layout(tmp_path / "other"), target, "multi", ImagePull(system="linux/arm64"))


def test_matrix_name_finds_its_only_build(layout: Layout) -> None:
    ref, _ = make_image(layout)
    assert (
        find(layout, "cuda-12.4.1-runtime-debian12")[0]
        == find(layout, "cuda:12.4.1-runtime-debian12")[0]
        == find(layout, ref)[0]
        == ref
    )
    # A channel, or a pull, gives the same image another name.
    for other in (
        "127.0.0.1:5000/gpu/cuda:12.4.1-runtime-debian12-candidate",
        "cuda:12.4-runtime-debian12",
    ):
        layout.set_ref(other, layout.refs()[ref])
        assert find(layout, "cuda-12.4.1-runtime-debian12")[0] == ref
    make_image(layout, build="ba9876543210", content=b"two")
    with pytest.raises(ImageError, match=r"2 builds .* Name one of them") as caught:
        find(layout, "cuda-12.4.1-runtime-debian12")
    assert "candidate" not in str(caught.value)
    with pytest.raises(
        ImageError, match=r"Build it: goldnode images build cuda-12\.4\.1-runtime-debian13"
    ):
        find(layout, "cuda-12.4.1-runtime-debian13")
    with pytest.raises(ImageError, match=r'Use "cuda-12\.4\.1-runtime-debian12"'):
        find(layout, "cuda-12.4.2-runtime-debian12")
