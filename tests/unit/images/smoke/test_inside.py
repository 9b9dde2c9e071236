"""Where this goldnode's runner comes to lie in an unpacked image, its user there, and tests that it does not know."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from goldnode.core.errors import ImageError
from goldnode.gpuprogram.smoke import pack
from goldnode.images.smoke import inside, record
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, OciImage, canonical


def image(
    place: Path,
    entries: dict[str, str | None],
    files: Mapping[str, str] | None = None,
    user: str = "",
) -> OciImage:
    """An image of one layer: path -> what it links to; None for a directory. `files` are path -> text."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, target in entries.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = (
                (tarfile.DIRTYPE, "", 0o755) if target is None else (tarfile.SYMTYPE, target, 0o777)
            )
            tar.addfile(info)
        for name, text in (files or {}).items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    layout = Layout(place)
    layer = layout.put(raw.getvalue(), LAYER)
    config = layout.put(canonical({"config": {"User": user}}), CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.document(),
        "layers": [layer.document()],
    }
    return OciImage(layout, layout.put(canonical(manifest), MANIFEST).digest)


@pytest.mark.parametrize(
    ("entries", "lies"),
    [
        ({}, "usr/lib/goldnode/goldnode-smoke"),
        (
            {"opt": None, "opt/goldnode": None, "usr/lib/goldnode": "../../opt/goldnode"},
            "opt/goldnode/goldnode-smoke",
        ),
        (
            {"usr/lib/goldnode": None, "usr/lib/goldnode/goldnode-smoke": "/VICTIM/file"},
            "usr/lib/goldnode/goldnode-smoke",
        ),
        # Into a directory of this machine, which the image has too, or has not.
        ({"VICTIM": None, "usr/lib/goldnode": "/VICTIM"}, "VICTIM/goldnode-smoke"),
        ({"usr/lib/goldnode": "/VICTIM"}, None),
        ({"usr": "/VICTIM"}, None),
    ],
)
def test_the_runner_is_placed_inside_the_image(
    tmp_path: Path, entries: dict[str, str | None], lies: str | None
) -> None:
    victim, root = tmp_path / "victim", tmp_path / "root"
    victim.mkdir()
    (victim / "file").write_text("of this machine")
    root.mkdir()
    name = str(victim).lstrip("/")
    named = {
        path.replace("VICTIM", name): link and link.replace("/VICTIM", f"/{name}")
        for path, link in entries.items()
    }
    built = image(tmp_path / "layout", named)
    inside.unpack(built, root)
    if lies is None:
        with pytest.raises(ImageError, match="which leads out of it"):
            inside.place_own(built, root)
    else:
        inside.place_own(built, root)
        assert (root / lies.replace("VICTIM", name)).read_bytes() == pack.program()
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"file": "of this machine"}


class FakeDocker:
    """dockerd's image calls as three daemons answered them: 20.10.24 and 28.5.2 with a graph driver, 28.5.2 with containerd's store.

    A graph driver names an image by the digest of its configuration, containerd's store by that of a manifest of its own. The last tag takes
    the image along.
    """

    def __init__(self, store: str, config: str) -> None:
        self.id = config if store != "containerd" else "sha256:" + "d1" * 32
        # Names of an image without any: None in releases of this age.
        self.nameless = ["<none>:<none>"] if store == "20.10" else []
        self.there: dict[str, set[str]] = {}
        self.api = self.images = self  # `api.images(…)` and `images.get(…)`
        self.answer: list[dict[str, str]] = [{"stream": f"Loaded image ID: {self.id}\n"}]
        self.sent = 0

    def __call__(self, all: bool) -> list[dict[str, Any]]:
        return [
            {"Id": name, "RepoTags": sorted(tags) or self.nameless}
            for name, tags in self.there.items()
        ]

    def load_image(self, source: IO[bytes]) -> list[dict[str, str]]:
        self.sent += len(source.read())
        if not any("error" in row for row in self.answer):
            self.there.setdefault(self.id, set())
        return [{"status": "Loading layer"}, *self.answer]

    def get(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(
            id=next(one for one, tags in self.there.items() if name in (one, *tags))
        )

    def tag(self, name: str, repository: str, tag: str, force: bool) -> None:
        self.there[name].add(f"{repository}:{tag}")

    def remove(self, name: str) -> None:
        found = self.get(name).id
        self.there[found].discard(name)
        if not self.there[found]:
            del self.there[found]


@pytest.fixture(params=["20.10", "28", "containerd"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> FakeDocker:
    return FakeDocker(request.param, image(tmp_path / "layout", {}).manifest["config"]["digest"])


def test_image_is_found_by_what_docker_reports_and_removed(
    client: FakeDocker, tmp_path: Path
) -> None:
    built = image(tmp_path / "layout", {})
    with inside.loaded(client, built) as one:
        assert one == client.id
        with inside.loaded(client, built) as two:  # another run at the same time
            assert two == one
            assert len(client.there[one]) == 2
        assert len(client.there[one]) == 1
    assert client.there == {}
    assert client.sent > 0


@pytest.mark.parametrize("tags", [set(), {"team:1"}, {"team:1", "goldnode-smoke:left"}])
def test_image_that_docker_had_stays(client: FakeDocker, tags: set[str], tmp_path: Path) -> None:
    client.there[client.id] = set(tags)
    with inside.loaded(client, image(tmp_path / "layout", {})) as name:
        assert name == client.id
    assert client.there == {client.id: tags}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([{"error": "no space left on device"}], "no space left on device"),
        ([], "it does not report an id"),
    ],
)
def test_load_that_fails_names_the_reason_and_another_way(
    client: FakeDocker, answer: list[dict[str, str]], why: str, tmp_path: Path
) -> None:
    client.answer = answer
    with (
        pytest.raises(ImageError, match=f"docker does not load the image: {why}.*--engine chroot"),
        inside.loaded(client, image(tmp_path / "layout", {})),
    ):
        pass


ACCOUNTS = (
    "root:x:0:0::/root:/bin/sh\napp:x:10001:10002::/app:/bin/sh\n7:x:9:9::/:/bin/sh\nbroken\n"
)
GROUPS = "root:x:0:\nvideo:x:44:app\n"


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("", (65534, 65534)),
        ("root", (65534, 65534)),
        ("0:44", (65534, 65534)),
        ("app", (10001, 10002)),
        ("app:video", (10001, 44)),
        ("10001", (10001, 10002)),
        ("10001:7", (10001, 7)),
        ("7", (9, 9)),  # the name of an account
        # Without an account.
        ("4711", (4711, 0)),
        ("4711:4712", (4711, 4712)),
    ],
)
def test_tests_run_as_the_user_of_the_image(
    tmp_path: Path, user: str, ids: tuple[int, int]
) -> None:
    built = image(tmp_path, {}, {"etc/passwd": ACCOUNTS, "etc/group": GROUPS}, user)
    assert inside.user_of(built) == ids


@pytest.mark.parametrize(
    ("user", "message"), [("web", 'no user "web"'), ("app:gpu", 'no group "gpu"')]
)
def test_user_that_the_image_lacks_is_an_error(tmp_path: Path, user: str, message: str) -> None:
    built = image(tmp_path, {}, {"etc/passwd": ACCOUNTS, "etc/group": GROUPS}, user)
    with pytest.raises(ImageError, match=message):
        inside.user_of(built)


def test_team_tests_that_an_older_runner_skips_are_not_run() -> None:
    """The record of a run that passed, without the tests that the image declares."""
    ran = {"name": "gemm", "state": "passed", "required": True, "why": "", "figures": {}}
    passed = record.summed(
        {
            "backend": "cpu",
            "tiers": {
                "cpu": {"state": "passed", "why": "", "simulated": False, "tests": [ran]},
                "gpu": {"state": "not_run", "why": "no device", "simulated": False, "tests": []},
            },
        },
        ("cpu",),
    )
    rows = [{"name": "main", "tier": "cpu"}, {"name": "cards", "tier": "gpu"}]
    found = record.with_team_tests(passed, rows, hardware=False)
    assert (passed["exit_code"], found["exit_code"], found["status"]) == (0, 3, "not_run")
    assert found["tiers"]["cpu"]["why"] == "could not be run: team main"
    assert "--runner own" in found["tiers"]["cpu"]["tests"][1]["why"]
    assert found["tiers"]["gpu"] == passed["tiers"]["gpu"]
    # With devices, those of the gpu tier were due too.
    found = record.with_team_tests(passed, rows, hardware=True)
    assert [test["name"] for test in found["tiers"]["gpu"]["tests"]] == ["team cards"]
    known = {**ran, "name": "team main"}
    cpu = {**passed["tiers"]["cpu"], "tests": [ran, known]}
    done = {**passed, "tiers": {**passed["tiers"], "cpu": cpu}}
    assert record.with_team_tests(done, rows, hardware=False) == done
