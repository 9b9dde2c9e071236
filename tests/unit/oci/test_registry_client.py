"""The registry client against a simulated registry: logins, uploads that are cut, answers that are cut or altered, referrers."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.images.registries import (
    Response,
    Simulated,
    always,
    make_image,
    make_key,
    once,
    prove,
    running,
)

from goldnode.core.errors import ImageError
from goldnode.images.publish import PublishedImage, push, push_evidence
from goldnode.oci import auth as registry_auth
from goldnode.oci.auth import Login
from goldnode.oci.layout import INDEX, MANIFEST, Descriptor, Layout, OciImage, canonical
from goldnode.oci.registry import (
    RefusedError,
    Registry,
    RegistryOptions,
    UnreachableError,
    referrers_tag,
    registry_address,
)

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def simulated() -> Iterator[Simulated]:
    with running(Simulated()) as server:
        assert isinstance(server, Simulated)
        yield server


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "store")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys"))[0]


def blob(layout: Layout, size: int = 100_000) -> Descriptor:
    return layout.put(os.urandom(size), "application/octet-stream")


@pytest.mark.parametrize(
    "text",
    ["", "Registry.example/GPU", "user:secret@registry.example", "registry.example/gpu:tag", "a b"],
)
def test_registry_address_refuses_invalid_text(text: str) -> None:
    with pytest.raises(ImageError, match=r"names no registry"):
        registry_address(text)


def test_a_registry_is_read_with_its_prefix() -> None:
    assert registry_address("registry.example:5000/gpu/base/").repository("cuda") == "gpu/base/cuda"
    assert registry_address("http://127.0.0.1:5000").plain_http
    assert not registry_address("127.0.0.1:5000").plain_http


class TestUploads:
    def test_a_small_blob_goes_in_one_piece_and_is_not_sent_twice(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        target, row = simulated.client().repository("cuda"), blob(layout)
        assert target.push_blob(row, layout.path(row.digest))
        assert not target.push_blob(row, layout.path(row.digest))
        assert [text.split()[0] for text in simulated.writes()] == ["POST", "PUT"]
        assert simulated.blobs["cuda", row.digest] == layout.read(row.digest)

    def test_a_cut_part_goes_on_behind_the_last_byte_that_arrived(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        moved: list[int] = []
        target, row = (
            simulated.client(chunk=30_000, moved=moved.append).repository("cuda"),
            blob(layout),
        )
        simulated.rules.append(once("half", "^PATCH", skip=1))
        target.push_blob(row, layout.path(row.digest))
        assert simulated.blobs["cuda", row.digest] == layout.read(row.digest)
        starts = [
            int(request.headers["content-range"].split("-")[0])
            for request in simulated.log
            if request.method == "PATCH"
        ]
        assert starts == [0, 30_000, 45_000, 75_000]  # half of the second part had come
        assert sum(moved) == row.size

    def test_upload_that_the_registry_forgot_starts_again(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        target, row = simulated.client(chunk=30_000).repository("cuda"), blob(layout)
        simulated.rules += [once("drop", "^PATCH", skip=1), once("status", "^GET .*uploads", 404)]
        target.push_blob(row, layout.path(row.digest))
        assert simulated.blobs["cuda", row.digest] == layout.read(row.digest)
        assert sum(text.startswith("POST") for text in simulated.writes()) == 2

    def test_a_registry_that_takes_no_parts_gets_it_whole(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        target, row = simulated.client(chunk=30_000).repository("cuda"), blob(layout)
        simulated.rules.append(always("status", "^PATCH", 405))
        target.push_blob(row, layout.path(row.digest))
        assert simulated.blobs["cuda", row.digest] == layout.read(row.digest)

    def test_a_lost_answer_to_the_last_request_is_no_failure(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        target, row = simulated.client().repository("cuda"), blob(layout)
        simulated.rules.append(once("lost", "^PUT"))
        target.push_blob(row, layout.path(row.digest))
        assert sum(text.startswith("PUT") for text in simulated.writes()) == 1

    def test_unreachable_registry_is_an_error_after_three_tries(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        target, row = simulated.client().repository("cuda"), blob(layout)
        simulated.rules.append(always("drop", "uploads"))
        with pytest.raises(UnreachableError, match=r"cannot be reached.*not sent again"):
            target.push_blob(row, layout.path(row.digest))
        assert len(simulated.writes()) == 3

    def test_push_mounts_a_blob_of_another_repository(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        row = blob(layout)
        simulated.client().repository("cpu").push_blob(row, layout.path(row.digest))
        before = len(simulated.writes())
        simulated.client().repository("cuda").push_blob(row, layout.path(row.digest), ["cpu"])
        assert simulated.writes()[before:] == ["POST /v2/cuda/blobs/uploads/"]
        assert ("cuda", row.digest) in simulated.blobs

    def test_a_mount_that_is_refused_becomes_an_upload(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        row = blob(layout)
        simulated.client().repository("cuda").push_blob(row, layout.path(row.digest), ["elsewhere"])
        assert ("cuda", row.digest) in simulated.blobs
        assert len(simulated.uploads) == 0

    def test_an_altered_blob_of_the_store_is_not_sent(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        row = blob(layout)
        layout.path(row.digest).write_bytes(b"x" * row.size)
        with pytest.raises(ImageError, match=r"altered"):
            simulated.client().repository("cuda").push_blob(row, layout.path(row.digest))
        assert simulated.writes() == []

    def test_a_blob_of_another_size_there_is_refused(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        row = blob(layout)
        simulated.blobs["cuda", row.digest] = b"short"
        with pytest.raises(ImageError, match=r"has 5 bytes"):
            simulated.client().repository("cuda").push_blob(row, layout.path(row.digest))


class TestPulls:
    def pull(
        self, simulated: Simulated, layout: Layout, size: int = 1_000_000
    ) -> tuple[Descriptor, bytes]:
        data = os.urandom(size)
        row = Descriptor(
            "application/octet-stream",
            "sha256:" + __import__("hashlib").sha256(data).hexdigest(),
            size,
        )
        simulated.blobs["cuda", row.digest] = data
        return row, data

    def test_a_cut_answer_is_continued(self, simulated: Simulated, layout: Layout) -> None:
        row, data = self.pull(simulated, layout)
        simulated.rules.append(once("cut", "^GET /v2/cuda/blobs", 700_000))
        assert simulated.client().repository("cuda").pull_blob(row, layout)
        assert layout.read(row.digest) == data
        ranges = [request.headers.get("range") for request in simulated.log]
        assert ranges[0] is None
        assert ranges[1] is not None

    def test_partial_pull_is_continued(self, simulated: Simulated, layout: Layout) -> None:
        row, data = self.pull(simulated, layout)
        partial = layout.root / "partial" / row.digest.removeprefix("sha256:")
        partial.parent.mkdir()
        partial.write_bytes(data[:400_000])
        simulated.client().repository("cuda").pull_blob(row, layout)
        assert [request.headers.get("range") for request in simulated.log] == ["bytes=400000-"]
        assert layout.read(row.digest) == data
        assert not partial.exists()

    def test_a_wrong_start_of_an_earlier_run_is_thrown_away(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        row, data = self.pull(simulated, layout)
        partial = layout.root / "partial" / row.digest.removeprefix("sha256:")
        partial.parent.mkdir()
        partial.write_bytes(b"x" * 400_000)
        simulated.client().repository("cuda").pull_blob(row, layout)
        assert layout.read(row.digest) == data

    @pytest.mark.parametrize(
        "other",
        [b"other", b"y" * 1_000_000, b"y" * 1_000_001],
        ids=["shorter", "altered", "longer"],
    )
    def test_a_tampered_blob_never_gets_its_name(
        self, simulated: Simulated, layout: Layout, other: bytes
    ) -> None:
        row, _ = self.pull(simulated, layout)
        simulated.tampered[row.digest] = other
        with pytest.raises(ImageError, match=r"altered|ends after 5 of"):
            simulated.client().repository("cuda").pull_blob(row, layout)
        assert not layout.has(row.digest)

    def test_altered_blob_of_the_store_is_fetched_again(
        self, simulated: Simulated, layout: Layout
    ) -> None:
        row, data = self.pull(simulated, layout)
        layout.path(row.digest).write_bytes(b"z" * row.size)
        assert simulated.client().repository("cuda").pull_blob(row, layout)
        assert layout.read(row.digest) == data
        assert not simulated.client().repository("cuda").pull_blob(row, layout)

    def test_pull_to_a_full_disk_fails_and_leaves_the_partial_blob(
        self, simulated: Simulated, layout: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, _ = self.pull(simulated, layout)
        monkeypatch.setattr(
            os,
            "fsync",
            lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        with pytest.raises(ImageError, match=r"disk of .* is full.*goldnode images gc"):
            simulated.client().repository("cuda").pull_blob(row, layout)
        assert not layout.has(row.digest)
        assert (
            layout.root / "partial" / row.digest.removeprefix("sha256:")
        ).stat().st_size == row.size

    def test_an_altered_manifest_is_refused(self, simulated: Simulated, layout: Layout) -> None:
        target = simulated.client().repository("cuda")
        data = canonical({"mediaType": INDEX, "manifests": []})
        target.put_manifest("tag", data, INDEX)
        found = target.manifest("tag")
        assert found is not None
        simulated.tampered[found.digest] = data + b" "
        for reference in ("tag", found.digest):
            with pytest.raises(ImageError, match=r"altered"):
                target.manifest(reference)


class TestLogins:
    def test_basic_login_is_accepted_and_a_wrong_one_refused(self, layout: Layout) -> None:
        with running(Simulated(login=("me", "s3cret"))) as server:
            assert isinstance(server, Simulated)
            assert (
                server.client(logins=lambda host, name: Login("me", "s3cret"))
                .repository("cuda")
                .tags()
                == []
            )
            with pytest.raises(RefusedError, match=r"401.*docker login") as refused:
                server.client(logins=lambda host, name: Login("me", "wr0ng")).repository(
                    "cuda"
                ).tags()
            assert "wr0ng" not in str(refused.value)
            with pytest.raises(RefusedError, match=r"docker login"):
                server.client().repository("cuda").tags()

    @pytest.mark.parametrize("kind", ["password", "identity", "token"])
    def test_push_succeeds_with_each_kind_of_bearer_login(self, layout: Layout, kind: str) -> None:
        login = ("me", "s3cret") if kind == "password" else None
        with running(Simulated(login=("me", "s3cret"), token=True)) as server:
            assert isinstance(server, Simulated)
            if login is None and kind == "identity":
                server._refused = _identity(server)  # type: ignore[method-assign]
            given = {
                "password": Login("me", "s3cret"),
                "identity": Login("", "refresh", "identity"),
                "token": Login("", "t0", "token"),
            }[kind]
            row = blob(layout, 10)
            server.client(logins=lambda host, name: given).repository("cuda").push_blob(
                row, layout.path(row.digest)
            )
            assert ("cuda", row.digest) in server.blobs

    def test_a_login_is_not_sent_without_tls_to_another_machine(self) -> None:
        registry = Registry(
            "registry.example:80",
            RegistryOptions(plain_http=True, logins=lambda host, name: Login("me", "s3cret")),
        )
        with pytest.raises(ImageError, match=r"without TLS"):
            registry._login("cuda")

    def test_a_login_shows_no_secret(self) -> None:
        assert "s3cret" not in repr(Login("me", "s3cret"))


def _identity(server: Simulated):  # type: ignore[no-untyped-def]
    plain = Simulated._refused

    def refused(request):  # type: ignore[no-untyped-def]
        if request.path == "/token":
            assert request.method == "POST"
            assert b"refresh_token=refresh" in request.body
            request.headers["authorization"] = "Basic " + base64.b64encode(b"me:s3cret").decode()
        return plain(server, request)

    return refused


class TestDockerConfiguration:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        return tmp_path

    def write(self, home: Path, data: object) -> None:
        (home / "config.json").write_text(json.dumps(data))

    def helper(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str, status: int = 0
    ) -> None:
        program = home / f"docker-credential-{name}"
        program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{says}'\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")

    def test_login_is_none_without_a_configuration(self) -> None:
        assert registry_auth.login("registry.example") is None

    @pytest.mark.parametrize(
        "key",
        [
            "registry.example:5000",
            "https://registry.example:5000",
            "https://registry.example:5000/v2/",
        ],
    )
    def test_stored_login_is_found_by_any_form_of_its_registry(self, home: Path, key: str) -> None:
        self.write(home, {"auths": {key: {"auth": base64.b64encode(b"me:a:b").decode()}}})
        assert registry_auth.login("registry.example:5000", "gpu/cuda") == Login("me", "a:b")
        assert registry_auth.login("registry.example") is None

    def test_the_longest_path_that_fits_counts(self, home: Path) -> None:
        rows = {
            "r.example": {"username": "all", "password": "x"},
            "r.example/gpu": {"username": "gpu", "password": "x"},
        }
        self.write(home, {"auths": rows})
        assert registry_auth.login("r.example", "gpu/cuda").user == "gpu"  # type: ignore[union-attr]
        assert registry_auth.login("r.example", "cpu").user == "all"  # type: ignore[union-attr]

    def test_login_reads_identity_and_registry_tokens(self, home: Path) -> None:
        self.write(
            home,
            {
                "auths": {
                    "r.example": {"auth": "bWU6", "identitytoken": "i"},
                    "s.example": {"registrytoken": "t"},
                }
            },
        )
        assert registry_auth.login("r.example") == Login("me", "i", "identity")
        assert registry_auth.login("s.example") == Login("", "t", "token")

    def test_login_asks_the_credential_helper_of_the_registry(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.helper(
            home, monkeypatch, "one", '{"ServerURL":"r.example","Username":"me","Secret":"s3cret"}'
        )
        self.helper(home, monkeypatch, "all", '{"Username":"<token>","Secret":"refresh"}')
        self.write(home, {"credHelpers": {"r.example": "one"}, "credsStore": "all"})
        assert registry_auth.login("r.example") == Login("me", "s3cret")
        assert registry_auth.login("other.example") == Login("", "refresh", "identity")

    def test_a_helper_without_the_login_leaves_it_to_what_is_written(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.helper(home, monkeypatch, "none", "credentials not found in native keychain", 1)
        self.write(
            home,
            {"credsStore": "none", "auths": {"r.example": {"username": "me", "password": "p"}}},
        )
        assert registry_auth.login("r.example") == Login("me", "p")

    def test_failed_credential_helper_is_an_error_without_its_output(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.helper(home, monkeypatch, "bad", "s3cret leaked", 3)
        self.write(home, {"credsStore": "bad"})
        with pytest.raises(ImageError, match=r"status 3") as problem:
            registry_auth.login("r.example")
        assert "s3cret" not in str(problem.value)
        self.write(home, {"credsStore": "absent"})
        with pytest.raises(ImageError, match=r"not on this machine"):
            registry_auth.login("r.example")

    def test_a_broken_file_is_named_with_its_line(self, home: Path) -> None:
        (home / "config.json").write_text('{\n "auths": {,\n')
        with pytest.raises(ImageError, match=r"config\.json:2: .*no JSON"):
            registry_auth.login("r.example")
        self.write(home, {"auths": {"r.example": {"auth": "!!"}}})
        with pytest.raises(ImageError, match=r"no base64"):
            registry_auth.login("r.example")


class TestAnswers:
    def test_a_busy_registry_is_asked_again(self, simulated: Simulated) -> None:
        simulated.rules += [once("status", "tags/list", 429), once("status", "tags/list", 503)]
        assert simulated.client().repository("cuda").tags() == []
        assert len(simulated.log) == 3

    def test_error_has_the_status_and_text_of_the_registry(self, simulated: Simulated) -> None:
        simulated.rules.append(always("status", "tags/list", 500))
        with pytest.raises(UnreachableError, match=r"500 INJECTED a fault"):
            simulated.client().repository("cuda").tags()

    def test_invalid_tag_is_refused(self, simulated: Simulated) -> None:
        with pytest.raises(ImageError, match=r"is no tag"):
            simulated.client().repository("cuda").put_manifest("a b", b"{}", MANIFEST)

    def test_pages_of_tags_are_followed(self, simulated: Simulated) -> None:
        target = simulated.client().repository("cuda")
        for name in "abcde":
            target.put_manifest(name, canonical({"mediaType": INDEX, "manifests": []}), INDEX)
        assert target.tags() == list("abcde")

    @pytest.mark.parametrize("kind", ["basic", "password", "identity", "token"])
    @pytest.mark.parametrize("asks", ["nothing", "Basic", "Bearer"])
    def test_a_redirect_elsewhere_gets_no_login(
        self, simulated: Simulated, layout: Layout, asks: str, kind: str
    ) -> None:
        with running(Simulated(login=("me", "s3cret"), token=kind != "basic")) as front:
            assert isinstance(front, Simulated)
            row = blob(layout, 10)
            simulated.blobs["cuda", row.digest] = layout.read(row.digest)
            front.blobs["cuda", row.digest] = b""
            if kind == "identity":
                front._refused = _identity(front)  # type: ignore[method-assign]
            original, elsewhere = front.answer, simulated.answer
            challenge = f'{asks} realm="http://{simulated.host}/token",service="simulated"'

            def answer(request):  # type: ignore[no-untyped-def]
                found = original(request)
                if found.status == 200 and "/blobs/" in request.path:
                    found.status, found.headers["Location"] = (
                        307,
                        f"http://{simulated.host}{request.target}",
                    )
                return found

            def asking(request):  # type: ignore[no-untyped-def]
                return (
                    elsewhere(request)
                    if request.path == "/token"
                    else Response(401, {"WWW-Authenticate": challenge})
                )

            front.answer = answer  # type: ignore[method-assign]
            given = {
                "identity": Login("", "refresh", "identity"),
                "token": Login("", "t0", "token"),
            }
            target = front.client(
                logins=lambda host, name: given.get(kind, Login("me", "s3cret"))
            ).repository("cuda")
            if asks == "nothing":
                assert target.read_blob(row) == layout.read(row.digest)
            else:
                simulated.answer = asking  # type: ignore[method-assign]
                for read in (
                    lambda: target.read_blob(row),
                    lambda: target.pull_blob(row, Layout(layout.root.parent / "other")),
                ):
                    with pytest.raises(
                        RefusedError,
                        match=rf"{simulated.host}, where {front.host} sends, answers 401.*ask for no login",
                    ):
                        read()
            assert simulated.log
            for request in simulated.log:
                assert "authorization" not in request.headers
                assert request.path != "/token"


class TestReferrers:
    @pytest.mark.parametrize("api", [True, False], ids=["api", "tag"])
    def test_referrers_list_all_attached_documents(
        self, layout: Layout, tmp_path: Path, api: bool, key: Path
    ) -> None:
        with running(Simulated(api=api)) as server:
            assert isinstance(server, Simulated)
            _, digest = make_image(layout)
            prove(layout, digest, key)
            target = server.client().repository("cuda")
            push(layout, digest, target, PublishedImage("", digest))
            assert push_evidence(layout, digest, target, PublishedImage("", digest)) == (8, api)
            rows, by_api = target.referrers(digest)
            assert by_api is api
            assert {row["digest"] for row in rows} == {
                descriptor.digest for descriptor, _ in layout.attached(digest)
            }
            assert (server.tag("cuda", referrers_tag(digest)) is None) is api

    def test_rows_that_another_writer_took_away_are_added_again(
        self, layout: Layout, key: Path
    ) -> None:
        with running(Simulated(api=False)) as server:
            assert isinstance(server, Simulated)
            target, empty = (
                server.client().repository("cuda"),
                canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}),
            )
            _, digest = make_image(layout)
            other = {
                "mediaType": MANIFEST,
                "digest": "sha256:" + "1" * 64,
                "size": 1,
                "artifactType": "x",
            }
            row = {
                "mediaType": MANIFEST,
                "digest": "sha256:" + "2" * 64,
                "size": 1,
                "artifactType": "y",
            }
            wrote = [0]

            def rule(request):  # type: ignore[no-untyped-def]
                if request.method == "GET" and referrers_tag(digest) in request.path:
                    wrote[0] += 1
                    if wrote[0] == 2:  # right before the first writer reads back
                        data = canonical(
                            {"schemaVersion": 2, "mediaType": INDEX, "manifests": [other]}
                        )
                        name = "sha256:" + __import__("hashlib").sha256(data).hexdigest()
                        server.manifests["cuda", name] = (data, INDEX)
                        server.named["cuda", referrers_tag(digest)] = name

            server.rules.append(rule)
            target.refer(digest, [row], minded=False)
            assert {one["digest"] for one in target.referrers(digest)[0]} == {
                other["digest"],
                row["digest"],
            }
            assert empty

    def test_a_tag_that_is_no_index_is_not_overwritten(self, layout: Layout) -> None:
        with running(Simulated(api=False)) as server:
            assert isinstance(server, Simulated)
            _, digest = make_image(layout)
            target = server.client().repository("cuda")
            push(layout, digest, target, PublishedImage("", digest))
            target.put_manifest(referrers_tag(digest), layout.read(digest), MANIFEST)
            with pytest.raises(ImageError, match=r"no index of referrers"):
                target.refer(digest, [{"digest": "sha256:" + "2" * 64}], minded=False)
            assert OciImage(layout, digest).manifest
