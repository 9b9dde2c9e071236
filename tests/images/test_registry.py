"""Publishing, pulling and promoting against Debian's own registry, with TLS and a password, and a proxy before it that injures what passes."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.images.registry_server import PASSWORD, USER, DockerRegistry, Proxy
from tests.unit.channels import signing
from tests.unit.images.registries import (
    Fault,
    Request,
    dies_at_write,
    make_image,
    make_key,
    once,
    prove,
    running,
)

from goldnode.channels.gc import Collection, NeededContent
from goldnode.channels.lines import line_of
from goldnode.channels.promotion import PlaceState, Repair, look, repair, rollback
from goldnode.channels.requirements import RequirementDecision
from goldnode.core.errors import ImageError
from goldnode.evidence.signatures import load_public
from goldnode.images.channels import ImageStorePlace, RegistryPlace, promote
from goldnode.images.gc import collect_registry
from goldnode.images.publish import ImagePublication, PublishedImage, publish
from goldnode.images.pull import pull
from goldnode.oci.layout import MANIFEST, Layout, OciImage
from goldnode.oci.registry import (
    RefusedError,
    Registry,
    RegistryAddress,
    RegistryOptions,
    UnreachableError,
    referrers_tag,
)

pytestmark = pytest.mark.images

BUILDS = {"a": "a" * 12, "b": "b" * 12}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    found = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield found
    found.kill()


@pytest.fixture
def proxy(registry: DockerRegistry) -> Iterator[Proxy]:
    with running(Proxy(registry)) as found:
        assert isinstance(found, Proxy)
        yield found


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "store")


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Repositories of one test alone."""
    return "t" + "".join(letter for letter in request.node.name.lower() if letter.isalnum())


def image(
    layout: Layout,
    keys: tuple[Path, Path],
    name: str = "a",
    content: bytes | None = None,
    **given: Any,
) -> tuple[str, str]:
    ref, digest = make_image(layout, build=BUILDS[name], content=content or name.encode(), **given)
    prove(layout, digest, keys[0], papers=False)
    return ref, digest


def send(
    layout: Layout, ref: str, client: Registry, prefix: str, keys: tuple[Path, Path], **given: Any
) -> PublishedImage:
    return publish(
        layout,
        ref,
        RegistryAddress(client.host, prefix),
        client,
        ImagePublication(trust=load_public(keys[1]), **{"settle": 0} | given),
    )


def tag_of(ref: str) -> str:
    return ref.partition(":")[2]


def test_an_image_goes_there_with_its_evidence_and_comes_back_by_digest(
    registry: DockerRegistry,
    layout: Layout,
    keys: tuple[Path, Path],
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The login is docker's own; there is no Referrers API, so the documents are listed under the tag sha256-…."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "auths": {
                    registry.host: {
                        "auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                    }
                }
            }
        )
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    client = Registry(registry.host, RegistryOptions(ca=registry.ca, pause=0.01))
    ref, digest = image(layout, keys, bulk=100_000)
    done = send(layout, ref, client, prefix, keys, full=True)
    assert (done.api, done.evidence, done.before) == (False, 5, False)
    target = client.repository(f"{prefix}/cuda")
    assert target.tags() == sorted([tag_of(ref), referrers_tag(digest)])
    assert send(layout, ref, client, prefix, keys).sent == 0
    other = Layout(tmp_path / "other")
    found = pull(other, target, digest)
    assert (found.ref, found.evidence) == (ref, 5)
    assert OciImage(other, digest).read("opt/content") == b"a"
    # Docker itself takes it by digest; it asks this machine's own address without holding the certificate against an authority.
    name = f"{registry.host}/{prefix}/cuda@{digest}"
    subprocess.run(["docker", "pull", "--quiet", name], check=True, capture_output=True)
    subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


def test_wrong_login_or_unknown_certificate_is_an_error(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str
) -> None:
    ref, _ = image(layout, keys)
    from goldnode.oci.auth import Login

    for given in (None, Login(USER, "wr0ng")):
        with pytest.raises(RefusedError, match=r"401 UNAUTHORIZED.*docker login") as problem:
            send(
                layout,
                ref,
                registry.client(logins=lambda host, name, given=given: given),
                prefix,
                keys,
            )
        assert "wr0ng" not in str(problem.value)
    with pytest.raises(UnreachableError, match=r"certificate that is not trusted here.*certs\.d"):
        send(layout, ref, registry.client(ca=None), prefix, keys)


@pytest.mark.parametrize("kind", ["half", "drop", "lost", "status"])
def test_an_upload_that_is_cut_is_finished(
    registry: DockerRegistry,
    proxy: Proxy,
    layout: Layout,
    keys: tuple[Path, Path],
    prefix: str,
    kind: str,
) -> None:
    ref, digest = image(layout, keys, bulk=400_000)
    proxy.rules.append(once(kind, "^PATCH", 503, skip=2))
    send(layout, ref, registry.client(proxy.host, chunk=64_000), prefix, keys)
    assert registry.client().repository(f"{prefix}/cuda").digest(tag_of(ref)) == digest
    assert any(row.method == "PATCH" for row in proxy.log)


def test_a_registry_that_dies_leaves_no_tag_and_a_repeat_completes_it(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str
) -> None:
    ref, digest = image(layout, keys, bulk=400_000)
    for number in (3, 9, 20):
        count = [0]

        def rule(request: Request, number: int = number, count: list[int] = count) -> Fault | None:
            count[0] += request.method in ("PUT", "PATCH", "POST")
            if count[0] == number:
                registry.kill()
            return None

        with running(Proxy(registry)) as proxy:
            proxy.rules.append(rule)
            with pytest.raises(UnreachableError, match=r"cannot be reached|502|cannot be sent"):
                send(
                    layout, ref, registry.client(proxy.host, chunk=64_000), prefix, keys, parallel=1
                )
        registry.start()
        assert registry.client().repository(f"{prefix}/cuda").digest(tag_of(ref)) is None
    assert send(layout, ref, registry.client(), prefix, keys).there > 0
    assert registry.client().repository(f"{prefix}/cuda").digest(tag_of(ref)) == digest


def test_truncated_answers_are_continued_and_tampered_blobs_refused(
    registry: DockerRegistry,
    proxy: Proxy,
    layout: Layout,
    keys: tuple[Path, Path],
    prefix: str,
    tmp_path: Path,
) -> None:
    ref, digest = image(layout, keys, bulk=900_000, content=prefix.encode())
    send(layout, ref, registry.client(), prefix, keys)
    layer = OciImage(layout, digest).layers[1]
    proxy.rules += [
        once("cut", f"^GET .*{layer.digest}", 600_000),
        once("cut", "^GET .*manifests", 100),
    ]
    other = Layout(tmp_path / "other")
    pull(other, registry.client(proxy.host).repository(f"{prefix}/cuda"), digest)
    assert other.read(layer.digest) == layout.read(layer.digest)
    assert [
        row.headers.get("range") is not None for row in proxy.log if layer.digest in row.path
    ] == [
        False,
        True,
    ]
    file = registry.blob(layer.digest)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    third = Layout(tmp_path / "third")
    with pytest.raises(ImageError, match=r"is altered"):
        pull(third, registry.client().repository(f"{prefix}/cuda"), digest)
    assert third.refs() == {}
    with pytest.raises(ImageError, match=r"is altered"):
        send(layout, ref, registry.client(), prefix, keys, full=True)
    file.write_bytes(layout.read(layer.digest))


def test_a_moved_tag_is_refused(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str
) -> None:
    ref, digest = image(layout, keys)
    other, rival = image(layout, keys, "b")
    client = registry.client()
    for one in (ref, other):
        send(layout, one, client, prefix, keys)
    place = RegistryPlace(RegistryAddress(client.host, prefix), client, layout)
    root = signing.make_channels(place, layout, keys[0].parent, keys[0])
    promote(
        place,
        layout,
        signing.move(
            line_of("cuda", tag_of(ref)),
            "candidate",
            signing.signers(keys[0].parent, keys[0]),
            to=tag_of(ref),
            by="ana",
            settle=0,
        ),
    )
    target = client.repository(f"{prefix}/cuda")
    target.put_manifest(tag_of(ref), layout.read(rival), MANIFEST)
    with pytest.raises(ImageError, match=r"given to one content only"):
        send(layout, ref, client, prefix, keys)
    with pytest.raises(ImageError, match=r"the tag was moved"):
        promote(
            place,
            layout,
            signing.move(
                line_of("cuda", tag_of(ref)),
                "canary",
                signing.signers(keys[0].parent, keys[0]),
                to=tag_of(ref),
                by="ana",
                settle=0,
            ),
        )
    target.put_manifest("12.4-runtime-debian12-candidate", layout.read(rival), MANIFEST)
    line = line_of("cuda", tag_of(ref))
    state: PlaceState = look(place.files(), place.name, layout, [root])
    assert [stand.state for stand in signing.status(place, state, line).stands] == ["moved"]
    repair(place, layout, line, Repair([root], settle=0))
    assert place.pointer(line, "candidate") == digest


def test_at_most_one_of_two_publishers_at_once_succeeds(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str, tmp_path: Path
) -> None:
    other = Layout(tmp_path / "other")
    ref, digest = image(layout, keys, content=b"one")
    _, rival = image(other, keys, content=b"two")
    done: dict[str, bool] = {}

    def go(layout: Layout, name: str) -> None:
        try:
            send(layout, ref, registry.client(), prefix, keys, settle=1.0)
            done[name] = True
        except ImageError:
            done[name] = False

    threads = [threading.Thread(target=go, args=row) for row in ((layout, digest), (other, rival))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done.values()) <= 1
    stands = registry.client().repository(f"{prefix}/cuda").digest(tag_of(ref))
    assert stands in (digest, rival)
    assert all(stands == name for name, good in done.items() if good)


def test_a_promotion_that_is_cut_is_old_or_new_and_a_repeat_completes_it(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str
) -> None:
    ref, digest = image(layout, keys)
    other, rival = image(layout, keys, "b")
    for one in (ref, other):
        send(layout, one, registry.client(), prefix, keys)
    plain = RegistryPlace(RegistryAddress(registry.host, prefix), registry.client(), layout)
    root = signing.make_channels(plain, layout, keys[0].parent, keys[0])
    line = line_of("cuda", tag_of(ref))
    given: dict[str, Any] = {"by": "ana", "settle": 0}
    promote(
        plain,
        layout,
        signing.move(
            line_of("cuda", tag_of(ref)),
            "candidate",
            signing.signers(keys[0].parent, keys[0]),
            to=tag_of(ref),
            **given,
        ),
    )
    cuts = 0
    for number in range(20):
        with running(Proxy(registry)) as proxy:
            proxy.rules.append(dies_at_write(number))
            client = registry.client(proxy.host, tries=1)
            cut = RegistryPlace(RegistryAddress(registry.host, prefix), client, layout)
            now = rival if number % 2 == 0 else digest
            was = digest if number % 2 == 0 else rival
            tag = tag_of(other if now == rival else ref)
            try:
                promote(
                    cut,
                    layout,
                    signing.move(
                        line_of("cuda", tag),
                        "candidate",
                        signing.signers(keys[0].parent, keys[0]),
                        to=tag,
                        **given,
                    ),
                )
                break
            except UnreachableError:
                cuts += 1
        assert plain.pointer(line, "candidate") == was
        assert (
            promote(
                plain,
                layout,
                signing.move(
                    line_of("cuda", tag),
                    "candidate",
                    signing.signers(keys[0].parent, keys[0]),
                    to=tag,
                    **given,
                ),
            ).now
            == now
        )
        assert plain.pointer(line, "candidate") == now
        found = signing.status(plain, look(plain.files(), plain.name, layout, [root]), line)
        assert found.verified
        assert [entry.number for entry in found.history.entries] == list(range(1, number + 3))
        assert {stand.state for stand in found.stands} == {"ok"}
    assert cuts >= 3


def test_the_way_back_without_and_with_the_registry_and_what_is_collected(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str
) -> None:
    ref, digest = image(layout, keys)
    other, rival = image(layout, keys, "b")
    client = registry.client()
    place, line = (
        RegistryPlace(RegistryAddress(client.host, prefix), client, layout),
        line_of("cuda", tag_of(ref)),
    )
    root = signing.make_channels(place, layout, keys[0].parent, keys[0])
    waivers = [
        RequirementDecision(gate, "ana", "a test")
        for gate in ("sbom", "provenance", "vulnerabilities", "smoke-gpu", "order")
    ]
    for one in (ref, other):
        send(layout, one, client, prefix, keys)
        promote(
            place,
            layout,
            signing.move(
                line_of("cuda", tag_of(one)),
                "stable",
                signing.signers(keys[0].parent, keys[0]),
                to=tag_of(one),
                evidence=signing.unasked,
                by="ana",
                waivers=waivers,
                settle=0,
            ),
        )
    registry.kill()
    with pytest.raises(UnreachableError):
        rollback(
            place,
            layout,
            signing.move(
                line,
                "stable",
                signing.signers(keys[0].parent, keys[0]),
                by="ana",
                reason="slow",
                settle=0,
            ),
        )
    rollback(
        ImageStorePlace(layout, place.name),
        layout,
        signing.move(
            line,
            "stable",
            signing.signers(keys[0].parent, keys[0]),
            by="ana",
            reason="slow",
            settle=0,
        ),
    )
    assert layout.refs()[f"{place.name}/{line}"].digest == digest
    registry.start()
    assert place.pointer(line, "stable") == rival
    assert signing.status(place, look(place.files(), place.name, layout, [root]), line).pending == 1
    repair(place, layout, line, Repair([root], settle=0))
    assert place.pointer(line, "stable") == digest
    rollback(
        place,
        layout,
        signing.move(
            line,
            "stable",
            signing.signers(keys[0].parent, keys[0]),
            by="ana",
            reason="back",
            to=tag_of(other),
            settle=0,
        ),
    )
    assert place.pointer(line, "stable") == rival
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=40)
    third, _ = make_image(layout, build="c" * 12, content=b"c")
    prove(layout, layout.refs()[third].digest, keys[0], papers=False)
    send(layout, third, client, prefix, keys)
    gone, _ = collect_registry(
        place,
        layout=layout,
        repositories=["cuda"],
        keeps=NeededContent(),
        roots=[root],
        how=Collection(now=later),
    )
    assert [item.what for item in gone] == [f"{client.host}/{prefix}/{third}"]
    left = place.repository(line).tags()
    assert tag_of(third) not in left
    assert {tag_of(ref), tag_of(other), line.name} <= set(left)


def test_the_registrys_own_garbage_collection_frees_what_went_and_nothing_else(
    registry: DockerRegistry, layout: Layout, keys: tuple[Path, Path], prefix: str, tmp_path: Path
) -> None:
    ref, digest = image(layout, keys, content=prefix.encode())
    other, _ = image(layout, keys, "b", content=prefix.encode() * 2)
    client = registry.client()
    for one in (ref, other):
        send(layout, one, client, prefix, keys)
    place = RegistryPlace(RegistryAddress(client.host, prefix), client, layout)
    root = signing.make_channels(place, layout, keys[0].parent, keys[0])
    promote(
        place,
        layout,
        signing.move(
            line_of("cuda", tag_of(ref)),
            "candidate",
            signing.signers(keys[0].parent, keys[0]),
            to=tag_of(ref),
            by="ana",
            settle=0,
        ),
    )
    gone = OciImage(layout, layout.refs()[other].digest).layers[1].digest
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=40)
    collect_registry(
        place,
        layout=layout,
        repositories=["cuda"],
        keeps=NeededContent(),
        roots=[root],
        how=Collection(now=later),
    )
    registry.kill()
    command = [registry.program, "garbage-collect", str(registry.directory / "config.yml")]
    subprocess.run(command, check=True, capture_output=True)
    registry.start()
    assert not registry.blob(gone).exists()
    found = pull(Layout(tmp_path / "other"), place.repository(line_of("cuda", tag_of(ref))), digest)
    assert found.evidence == 5
    line = line_of("cuda", tag_of(ref))
    assert signing.status(place, look(place.files(), place.name, layout, [root]), line).verified
