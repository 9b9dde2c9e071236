"""What stays and what goes, in the store and in a registry."""

from __future__ import annotations

import datetime as dt
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.channels import signing
from tests.unit.images.registries import (
    Simulated,
    before,
    make_image,
    once,
    prove,
    running,
)

from goldnode.channels import signed
from goldnode.channels.gc import Collection, NeededContent
from goldnode.channels.lines import line_of
from goldnode.channels.requirements import NO_SOAK, RequirementDecision
from goldnode.channels.updates import UpdateError
from goldnode.core.errors import ImageError
from goldnode.evidence import cosign
from goldnode.evidence.signatures import load_public, load_signer
from goldnode.images.channels import ImageStorePlace, RegistryPlace, promote
from goldnode.images.gc import collect, collect_registry, needed
from goldnode.images.publish import ImagePublication, PublishedImage, publish, push_evidence
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.registry import UnreachableError, referrers_tag, registry_address

pytestmark = pytest.mark.usefixtures("unsynced")
NOW = dt.datetime.now(dt.UTC) + dt.timedelta(days=40)
BUILDS = {"a": "a" * 12, "b": "b" * 12, "c": "c" * 12}


@pytest.fixture
def layout(tmp_path: Path, keys: tuple[Path, Path]) -> Layout:
    found = Layout(tmp_path / "store")
    for name, build in BUILDS.items():
        _, digest = make_image(
            found, build=build, content=name.encode(), labels={"lock": f"lock-{name}"}
        )
        prove(found, digest, keys[0], papers=False)
    return found


def ref(name: str) -> str:
    return f"cuda:12.4.1-runtime-debian12-{BUILDS[name]}"


def to_stable(
    layout: Layout,
    keys: tuple[Path, Path],
    *names: str,
    place: ImageStorePlace | RegistryPlace | None = None,
    root: Path | None = None,
) -> None:
    waivers = [
        RequirementDecision(gate, "ana", "a test")
        for gate in ("sbom", "provenance", "vulnerabilities", "smoke-gpu", "order")
    ]
    at, folder = place or ImageStorePlace(layout), layout.root.parent / "keys"
    if not at.files():
        signing.make_channels(at, layout, folder, keys[0])
    for name in names:
        tag = ref(name).partition(":")[2]
        promote(
            at,
            layout,
            signing.move(
                line_of("cuda", tag),
                "stable",
                signing.signers(folder, keys[0]),
                to=tag,
                by="ana",
                roots=[root] if root else [],
                waivers=waivers,
                evidence=signing.unasked,
                settle=0,
            ),
        )
    assert NO_SOAK


def collecting(layout: Layout) -> bool:
    """Whether somebody collects, so that a promotion from this store has to wait."""
    with (layout.root / "channels/.gc-.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class TestStore:
    def test_gc_leaves_young_images(self, layout: Layout) -> None:
        gone, stays = collect(layout, NeededContent())
        assert gone == []
        assert set(stays) == {ref(name) for name in BUILDS}

    def test_a_channel_and_its_history_stay_and_the_rest_goes(
        self, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        to_stable(layout, keys, "a", "b")
        blobs = len(list((layout.root / "blobs/sha256").iterdir()))
        gone, _ = collect(layout, needed(layout), Collection(dry_run=True, now=NOW))
        assert len(list((layout.root / "blobs/sha256").iterdir())) == blobs
        assert [item.what for item in gone if ":" in item.what] == [ref("c")]
        gone, stays = collect(layout, needed(layout), Collection(now=NOW))
        assert set(layout.refs()) == {ref("a"), ref("b"), "cuda:12.4-runtime-debian12"}
        assert stays[ref("a")].startswith("history of cuda:12.4-runtime-debian12")
        assert stays[ref("b")] == "stable of cuda:12.4-runtime-debian12 at store"
        for name in "ab":
            image = OciImage(layout, layout.refs()[ref(name)].digest)
            assert image.read("opt/content") == name.encode()
            assert len(layout.attached(image.digest)) == 4
        # Manifest, configuration and the layer of its own; what it shares with the others stayed.
        assert sum(item.size > 0 for item in gone) >= 3
        assert collect(layout, needed(layout), Collection(now=NOW))[0] == []

    def test_gc_leaves_an_image_promoted_after_the_survey(
        self, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        keeps = needed(layout)
        to_stable(layout, keys, "a")
        collect(layout, keeps, Collection(now=NOW))
        assert set(layout.refs()) == {ref("a"), "cuda:12.4-runtime-debian12"}

    def test_gc_leaves_images_that_a_registry_history_names(
        self, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        to_stable(layout, keys, "a")
        (layout.root / "channels/store").rename(layout.root / "channels/registry.example%2Fgpu")
        layout.drop_ref("cuda:12.4-runtime-debian12")
        assert needed(layout).digests == {
            layout.refs()[
                ref("a")
            ].digest: "stable of cuda:12.4-runtime-debian12 at registry.example/gpu"
        }
        collect(layout, needed(layout), Collection(now=NOW))
        assert set(layout.refs()) == {ref("a")}

    def test_gc_leaves_images_that_a_class_or_lock_names(self, layout: Layout) -> None:
        keeps = NeededContent(
            names={ref("a"): "class a100"},
            locks={"lock-b": "the lock of cuda-12.4.1-runtime-debian12"},
        )
        _, stays = collect(layout, keeps, Collection(now=NOW))
        assert set(layout.refs()) == {ref("a"), ref("b")}
        assert stays[ref("a")] == "class a100"
        assert stays[ref("b")] == "the lock of cuda-12.4.1-runtime-debian12"

    def test_classes_of_a_catalog_are_read(self, layout: Layout, tmp_path: Path) -> None:
        from types import SimpleNamespace

        digest = "sha256:" + "1" * 64
        images = [
            SimpleNamespace(ref=f"registry.example/gpu/{ref('a')}"),
            SimpleNamespace(ref=f"registry.example/cuda@{digest}"),
        ]
        catalog = SimpleNamespace(
            classes={"a100": SimpleNamespace(item=SimpleNamespace(images=images))}
        )
        found = needed(layout, catalog)  # type: ignore[arg-type]
        assert found.names == {ref("a"): "class a100"}
        assert found.digests == {digest: "class a100"}

    def test_a_history_that_cannot_be_read_lets_nothing_go(
        self, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        to_stable(layout, keys, "a")
        file = sorted(signed.copy_of(layout, "store").glob("*.targets.json"))[-1]
        file.write_bytes(file.read_bytes()[:-5])
        with pytest.raises(UpdateError, match=r"in another form"):
            needed(layout)

    def test_a_manifest_that_cannot_be_read_lets_nothing_go(self, layout: Layout) -> None:
        layout.path(layout.refs()[ref("a")].digest).write_bytes(b"{}")
        before = set(layout.root.rglob("*"))
        with pytest.raises(ImageError, match=r"altered"):
            collect(layout, NeededContent(names={ref("a"): "class a100"}), Collection(now=NOW))
        assert set(layout.root.rglob("*")) - before <= {
            layout.root / "channels",
            layout.root / "channels/.gc-.lock",
        }

    def test_gc_removes_a_partial_pull_only_when_it_is_old(self, layout: Layout) -> None:
        (layout.root / "partial").mkdir()
        (layout.root / "partial" / ("1" * 64)).write_bytes(b"half")
        collect(layout, NeededContent())
        assert list((layout.root / "partial").iterdir())
        collect(layout, NeededContent(), Collection(now=NOW))
        assert not list((layout.root / "partial").iterdir())


class TestRegistry:
    @pytest.fixture(params=[True, False], ids=["api", "tag"])
    def place(
        self, request: pytest.FixtureRequest, layout: Layout, keys: tuple[Path, Path]
    ) -> Iterator[RegistryPlace]:
        with running(Simulated(api=request.param)) as server:
            assert isinstance(server, Simulated)
            found = RegistryPlace(
                registry_address(f"http://{server.host}/gpu"), server.client(tries=1), layout
            )
            for name in BUILDS:
                publish(
                    layout,
                    ref(name),
                    found.where,
                    found.registry,
                    ImagePublication(trust=load_public(keys[1]), settle=0),
                )
            self.server = server
            yield found

    def test_registry_gc_leaves_named_images_and_removes_others_with_documents(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        server = self.server
        digests = {name: layout.refs()[ref(name)].digest for name in BUILDS}
        to_stable(layout, keys, "a", "b", place=place)
        server.named["gpu/cuda", "mine"] = digests["c"]
        gone, stays = collect_registry(
            place,
            layout=layout,
            repositories=["cuda", "cpu"],
            keeps=NeededContent(),
            how=Collection(now=NOW),
        )
        assert gone == []
        assert any(why == "the tag mine points to it" for why in stays.values())
        del server.named["gpu/cuda", "mine"]
        assert [
            item.what for item in collect_registry(place, layout, ["cuda"], NeededContent())[0]
        ] == []
        gone, _ = collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW, dry_run=True),
        )
        assert server.tag("gpu/cuda", ref("c").partition(":")[2]) == digests["c"]
        assert [item.what for item in gone] == [f"{server.host}/gpu/{ref('c')}"]
        collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW),
        )
        assert server.tag("gpu/cuda", ref("c").partition(":")[2]) is None
        assert server.tag("gpu/cuda", referrers_tag(digests["c"])) is None
        subjects = [data for data, _ in server.manifests.values() if digests["c"].encode() in data]
        assert subjects == []
        for name in "ab":
            line = line_of("cuda", ref(name).partition(":")[2])
            assert len(place.repository(line).referrers(digests[name])[0]) == 5

    def test_the_tags_of_cosign_go_with_their_image_and_stay_with_it(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        server = self.server
        target = place.repository(line_of("cuda", ref("a").partition(":")[2]))
        to_stable(layout, keys, "a", "b", place=place)
        for name in BUILDS:
            digest = layout.refs()[ref(name)].digest
            cosign.attach(layout, digest, str(target), ref(name), load_signer(keys[0]))
            push_evidence(layout, digest, target, PublishedImage("", digest))
        collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW),
        )
        tags = {tag for tag in target.tags() if tag.startswith("sha256-")}
        stays = [f"sha256-{layout.refs()[ref(name)].digest[7:]}" for name in "ab"]
        listed = [] if server.api else stays
        assert tags == {*listed, *(f"{tag}.{suffix}" for tag in stays for suffix in ("att", "sig"))}

    def test_registry_gc_leaves_an_image_promoted_meanwhile(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path], tmp_path: Path
    ) -> None:
        server, digest = self.server, layout.refs()[ref("c")].digest
        elsewhere = RegistryPlace(
            place.where, server.client(tries=1), Layout(tmp_path / "elsewhere")
        )
        root = signing.make_channels(place, layout, tmp_path / "keys", keys[0])
        # The channels were read, its tag not yet.
        pattern = f"^GET .*/manifests/{ref('c').partition(':')[2]}$"
        server.rules.append(
            before(
                pattern, lambda: to_stable(elsewhere.layout, keys, "c", place=elsewhere, root=root)
            )
        )
        gone, stays = collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW),
        )
        assert {item.what for item in gone} == {f"{server.host}/gpu/{ref(name)}" for name in "ab"}
        assert stays == {
            f"{server.host}/gpu/{ref('c')}": f"stable of cuda:12.4-runtime-debian12 at {place.name}"
        }
        assert (
            server.tag("gpu/cuda", "12.4-runtime-debian12")
            == server.tag("gpu/cuda", ref("c").partition(":")[2])
            == digest
        )
        assert ("gpu/cuda", digest) in server.manifests

    def test_nothing_of_this_store_moves_meanwhile(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        held: list[bool] = []
        self.server.rules.append(
            before("^GET .*/tags/list", lambda: held.append(collecting(layout)))
        )
        self.server.rules.append(before("^DELETE ", lambda: held.append(collecting(layout))))
        collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW),
        )
        assert held == [True, True]
        assert not collecting(layout)

    def test_registry_gc_fails_without_a_root_that_verifies_the_channels(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path], tmp_path: Path
    ) -> None:
        to_stable(layout, keys, "a", place=place)
        with pytest.raises(ImageError, match=r"--root"):
            collect_registry(
                place,
                layout=Layout(tmp_path / "fresh"),
                repositories=["cuda"],
                keeps=NeededContent(),
                how=Collection(now=NOW),
            )
        other = ImageStorePlace(Layout(tmp_path / "other"))
        with pytest.raises(ImageError, match=r"no trusted root document is one of"):
            collect_registry(
                place,
                layout=layout,
                repositories=["cuda"],
                keeps=NeededContent(),
                roots=[signing.make_channels(other, other.layout, tmp_path / "x", keys[0])],
                how=Collection(now=NOW),
            )

    def test_registry_gc_leaves_an_image_of_unknown_age(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        self.server.load(
            layout,
            make_image(layout, build="d" * 12, content=b"d")[1],
            "gpu/cuda",
            f"12.4.1-runtime-debian12-{'d' * 12}",
        )
        _, stays = collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW, dry_run=True),
        )
        assert "the time of its publication is not recorded" in stays.values()

    def test_registry_gc_fails_when_deletion_is_refused_and_completes_later(
        self, place: RegistryPlace, layout: Layout, keys: tuple[Path, Path]
    ) -> None:
        self.server.rules.append(once("status", "^DELETE", 405))
        with pytest.raises(ImageError, match=r"405.*configuration allow it"):
            collect_registry(
                place,
                layout=layout,
                repositories=["cuda"],
                keeps=NeededContent(),
                how=Collection(now=NOW),
            )
        self.server.rules = [
            once("drop", "^DELETE", skip=1)
        ]  # the image is gone, its documents are not
        with pytest.raises(UnreachableError):
            collect_registry(
                place,
                layout=layout,
                repositories=["cuda"],
                keeps=NeededContent(),
                how=Collection(now=NOW),
            )
        collect_registry(
            place,
            layout=layout,
            repositories=["cuda"],
            keeps=NeededContent(),
            how=Collection(now=NOW),
        )
        assert self.server.tag("gpu/cuda", referrers_tag(layout.refs()[ref("c")].digest)) is None
