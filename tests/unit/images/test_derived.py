"""Derived images on a small base: identity, content, settings, locks, and what a second run does."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.unit.images.image_rows import TOOLS, FakeEngine, World, fake_root

from goldnode.core.errors import ImageError
from goldnode.images import build
from goldnode.images.build import Builder
from goldnode.images.declaration import load_declaration
from goldnode.images.derived import DerivedBuilder, twice
from goldnode.images.deriving import DeriveOptions, PreparedImage, prepare
from goldnode.images.imagelock import load_derived_lock
from goldnode.images.locked_packages import derived_builds, locked, locks_of
from goldnode.images.matrix import MatrixRow
from goldnode.images.resolve import AddedPackages
from goldnode.lock.locked_files import LockedWheel
from goldnode.lock.model import LockedArchive
from goldnode.oci.identity import BASE_DIGEST, BASE_NAME, identity
from goldnode.oci.layout import Descriptor, OciImage

BASE = "cuda-12.4.1-base-debian12"
DERIVE = """\
derive: 1
name: recsys/trainer
version: "2.1"
base: cuda-12.4.1-base-debian12
requirements: requirements.txt
files: {/app: src}
user: "10001:10001"
entrypoint: [python3, /app/main.py]
env: {PATH: "/app/bin:${PATH}"}
labels: {team: recsys}
"""


@dataclass
class Team:
    """A world with a team's directory, and the wheels that pip would find."""

    world: World
    place: Path
    wheels: list[LockedWheel]
    asked: list[tuple[str, ...]]
    engine: FakeEngine = field(default_factory=FakeEngine)

    def prepare(self, **how: object) -> PreparedImage:
        options = DeriveOptions(today=dt.date(2026, 11, 24), engine=lambda: self.engine)
        options = replace(options, **how)  # type: ignore[arg-type]
        return prepare(load_declaration(self.place), self.world.store, options, lambda _: "")

    def derive(self, **how: object) -> tuple[PreparedImage, OciImage]:
        ready = self.prepare(**how)
        DerivedBuilder(self.world.store, ready.engine).build(ready.recipe)
        return ready, self.world.store.layout.image(ready.recipe.ref)

    def build_base(self) -> str:
        rows = [row for row in self.world.rows() if row[0].name in ("cpu-1-base-debian12", BASE)]
        wanted = build.recipes(rows, TOOLS, b"runner")
        Builder(self.world.store, FakeEngine(), 3).build(wanted)
        return next(item.ref for item in wanted if item.image.name == BASE)


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    fake_root(monkeypatch)
    world, place = World(tmp_path), tmp_path / "team"
    monkeypatch.setenv("GOLDNODE_MATRIX", str(tmp_path / "matrix.yml"))
    (place / "src/bin").mkdir(parents=True)
    (place / "derive.yml").write_text(DERIVE)
    (place / "requirements.txt").write_text("tool\n")
    (place / "src/main.py").write_text("print('hello')\n")
    (place / "src/bin/run").write_text("#!/bin/sh\n")
    (place / "src/bin/run").chmod(0o755)
    (place / "src/link").symlink_to("main.py")
    (place / "src/__pycache__").mkdir()
    (place / "src/__pycache__/main.pyc").write_text("x")
    found = Team(world, place, [world.wheel("tool", "1.0")], [])

    def closure(
        self: object, row: object, there: object, keep: Sequence[LockedWheel] = ()
    ) -> list[LockedWheel]:
        found.asked.append(row.wheels)  # type: ignore[attr-defined]
        return list(found.wheels)

    monkeypatch.setattr("goldnode.images.deriving.Resolver.closure", closure)
    found.build_base()
    return found


def test_derived_image_has_its_own_identity_and_names_its_base(team: Team) -> None:
    ready, image = team.derive()
    own, base = identity(image.config), ready.recipe.base
    assert (own.kind, own.name, own.backend, own.runtime) == (
        "derived",
        "recsys/trainer",
        "cuda",
        "12.4.1",
    )
    assert own.ref == ready.recipe.ref == f"recsys/trainer:2.1-cuda12.4-debian12-{own.build_id}"
    assert (image.labels[BASE_NAME], image.labels[BASE_DIGEST]) == (
        base.identity.ref,
        base.image.digest,
    )
    assert image.labels["team"] == "recsys"
    assert image.labels["io.goldnode.redistribution"] == "private"
    inside = json.loads(image.read("usr/lib/goldnode/image.json") or b"")
    assert (inside["name"], inside["base"]["digest"]) == ("recsys/trainer", base.image.digest)
    assert image.layers[: len(base.image.layers)] == base.image.layers


def test_derived_image_has_wheels_files_and_settings(team: Team) -> None:
    _, image = team.derive()
    assert (
        image.read("usr/local/lib/python3.11/dist-packages/nvidia/tool/lib/libtool.so.1")
        == b"tool 1.0"
    )
    assert image.read("app/link") == b"print('hello')\n"
    assert image.members["app/bin/run"].info.mode == 0o755
    assert image.members["app/main.py"].info.mode == 0o644
    assert not any("__pycache__" in path for path in image.members)
    settings = image.config["config"]
    assert settings["User"] == "10001:10001"
    assert settings["Entrypoint"] == ["python3", "/app/main.py"]
    assert "Cmd" not in settings
    assert image.environment["PATH"].startswith("/app/bin:/usr/local/nvidia/bin:")
    assert image.environment["CUDA_VERSION"] == "12.4.1"


def test_tests_of_the_team_are_in_the_image(team: Team) -> None:
    before, _ = team.derive()
    declared = team.place / "derive.yml"
    text = DERIVE + "workdir: /app\ntests: [{name: main, run: [python3, main.py], seconds: 5}]\n"
    declared.write_text(text)
    ready, image = team.derive()
    inside = json.loads(image.read("usr/lib/goldnode/image.json") or b"")
    row = {"name": "main", "run": ["python3", "main.py"], "seconds": 5, "tier": "cpu"}
    assert inside["tests"] == [{**row, "workdir": "/app"}]
    assert ready.recipe.build_id != before.recipe.build_id
    # A change of a test alone is another image.
    declared.write_text(text.replace("seconds: 5", "seconds: 6"))
    assert team.prepare().recipe.build_id != ready.recipe.build_id


def test_image_on_a_derived_one_keeps_its_tests(team: Team) -> None:
    declared = team.place / "derive.yml"
    rows = "tests: [{name: main, run: [a]}, {name: model, run: [b], tier: gpu}]\n"
    declared.write_text(DERIVE + rows)
    first, _ = team.derive()
    declared.write_text(
        DERIVE.replace("trainer", "server").replace(f"base: {BASE}", f"base: {first.recipe.ref}")
        + "tests: [{name: main, run: [c]}]\n"
    )
    _, image = team.derive()
    inside = json.loads(image.read("usr/lib/goldnode/image.json") or b"")
    assert [(row["name"], row["run"]) for row in inside["tests"]] == [
        ("model", ["b"]),
        ("main", ["c"]),
    ]


def test_second_run_without_a_change_has_nothing_to_do(team: Team) -> None:
    _, image = team.derive()
    text = (team.place / "derive.lock.yml").read_text()
    again = team.prepare(today=dt.date(2027, 1, 1))
    assert not again.locked
    assert (team.place / "derive.lock.yml").read_text() == text
    built = DerivedBuilder(team.world.store).built(again.recipe)
    assert built is not None
    assert built.digest == image.digest
    assert len(team.asked) == 1


def test_two_builds_have_one_digest(team: Team, tmp_path: Path) -> None:
    ready, _ = team.derive()
    assert twice(team.world.store, ready.recipe, tmp_path / "twice") == []


def test_changed_file_is_another_build(team: Team) -> None:
    first, _ = team.derive()
    (team.place / "src/main.py").write_text("print('hi')\n")
    assert team.prepare().recipe.build_id != first.recipe.build_id


def test_moved_base_is_followed_and_the_difference_is_reported(team: Team) -> None:
    first, _ = team.derive()
    team.world.wheels[BASE]["nvidia_cuda_runtime_cu12"] = "12.4.128"
    moved = team.build_base()
    (team.place / "derive.yml").write_text(DERIVE.replace(f"base: {BASE}", f"base: {moved}"))
    second = team.prepare()
    assert second.recipe.base.identity.ref == moved
    note = next(note for note in second.notes if "the base moved" in note)
    assert first.recipe.base.identity.ref in note
    assert "12.4.127 -> 12.4.128" in note


def test_channel_is_followed_and_a_locked_run_does_not_follow_it(team: Team) -> None:
    layout, channel = team.world.store.layout, "cuda:12.4-base-debian12"
    (team.place / "derive.yml").write_text(DERIVE.replace(f"base: {BASE}", f"base: {channel}"))
    before = next(ref for ref in layout.refs() if ref.startswith("cuda:12.4.1-base"))
    layout.name_as(channel, layout.refs()[before].digest)
    first, _ = team.derive()
    team.world.wheels[BASE]["nvidia_cuda_runtime_cu12"] = "12.4.128"
    after = team.build_base()
    layout.name_as(channel, layout.refs()[after].digest)
    locked = team.prepare(locked=True)
    assert locked.recipe.digest == first.recipe.digest
    followed = team.prepare(offline=True)
    assert followed.recipe.base.identity.ref == after
    assert followed.locked
    assert len(team.asked) == 1  # the same wheels fit: pip is not asked again


def test_stale_lock_is_refused_by_a_locked_run(team: Team) -> None:
    team.derive()
    (team.place / "requirements.txt").write_text("tool\nother\n")
    with pytest.raises(ImageError, match="lock is stale"):
        team.prepare(locked=True)


@pytest.mark.parametrize(
    ("hashes", "message"),
    [("a" * 64, "none of those in the requirements"), ("", "no hash of it")],
)
def test_wheel_without_the_hash_of_the_requirements_is_refused(
    team: Team, hashes: str, message: str
) -> None:
    name = "tool" if hashes else "another"
    (team.place / "requirements.txt").write_text(
        f"{name}==1.0 --hash=sha256:{hashes or 'b' * 64}\n"
    )
    with pytest.raises(ImageError, match=message):
        team.prepare()


def test_child_of_a_base_is_refused_as_a_base(team: Team) -> None:
    layout = team.world.store.layout
    image = layout.image(team.build_base())
    config = {
        **image.config,
        "history": [*image.config["history"], {"created_by": "RUN x", "empty_layer": True}],
    }
    blob = layout.put(json.dumps(config).encode(), image.manifest["config"]["mediaType"])
    manifest = {**image.manifest, "config": blob.document()}
    child = layout.put(json.dumps(manifest).encode(), image.manifest["mediaType"])
    layout.set_ref("team/child:1", Descriptor(child.media_type, child.digest, child.size))
    (team.place / "derive.yml").write_text(DERIVE.replace(f"base: {BASE}", "base: team/child:1"))
    with pytest.raises(ImageError, match="a child of cuda:"):
        team.prepare()


def test_derived_image_can_be_a_base(team: Team) -> None:
    ready, _ = team.derive()
    text = DERIVE.replace("recsys/trainer", "recsys/job").replace(
        f"base: {BASE}", f"base: {ready.recipe.ref}"
    )
    (team.place / "derive.yml").write_text(text.replace("requirements: requirements.txt\n", ""))
    (team.place / "derive.lock.yml").unlink()
    second, image = team.derive()
    assert identity(image.config).base_name == ready.recipe.ref
    assert second.recipe.base.wheels["tool"] == "1.0"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("/app: src", "/app: ../outside", "outside of"),
        ("/app: src", "/app: absent", "does not exist"),
        ("/app: src", "/etc: src/main.py", "is a directory in the base"),
        ('"10001:10001"', "nobodyhere", 'no user "nobodyhere"'),
    ],
)
def test_faults_that_only_the_base_shows(team: Team, right: str, wrong: str, message: str) -> None:
    (team.place / "derive.yml").write_text(DERIVE.replace(right, wrong))
    with pytest.raises(ImageError, match=message):
        team.prepare()


def test_directories_of_the_base_are_not_in_the_layer_of_files(team: Team) -> None:
    (team.place / "derive.yml").write_text(
        DERIVE.replace("/app: src", "/etc/team/conf: src/main.py")
    )
    _, image = team.derive()
    with image.layer(len(image.layers) - 2) as tar:
        assert [info.name for info in tar] == ["etc/team", "etc/team/conf"]


def test_locks_of_a_derived_build_are_found_by_name_and_digest(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, _ = team.derive()
    own = {row.name: lock for row, lock in team.world.rows()}
    monkeypatch.setattr("goldnode.images.locked_packages.find_lock", lambda row: own[row.name])
    chain = locks_of(team.world.store, "recsys/trainer", ready.recipe.lock.digest)
    assert [lock.image for lock in chain] == ["cpu-1-base-debian12", BASE, "recsys/trainer"]
    (team.place / "src/main.py").write_text("print('hi')\n")
    second, _ = team.derive()
    records = team.world.store.records
    os.utime(
        records / f"{ready.recipe.build_id}.json", (1, 1)
    )  # as if it had been built long before
    found = [image.ref(built.build_id) for image, built, _ in derived_builds(team.world.store)]
    assert found == [ready.recipe.ref, second.recipe.ref]


# Packages


WITH_PACKAGES = DERIVE.replace("requirements:", "packages: [jq]\nrequirements:")


@pytest.fixture
def packages(team: Team, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The requests of a team that asks for jq, for which apt chooses two packages."""
    (team.place / "derive.yml").write_text(WITH_PACKAGES)
    asked: list[tuple[str, ...]] = []

    def chosen(self: object, row: MatrixRow, below: object, keep: object = ()) -> AddedPackages:
        asked.append(row.debs)
        archive = LockedArchive(id="debian", suite="bookworm", components=["main"])
        return AddedPackages([archive], [team.world.deb("jq"), team.world.deb("libjq1")])

    monkeypatch.setattr("goldnode.images.deriving.Resolver.packages", chosen)
    return asked


def test_packages_are_locked_and_installed_between_the_base_and_the_wheels(
    team: Team, packages: list[tuple[str, ...]]
) -> None:
    ready, image = team.derive()
    base = ready.recipe.base.image
    steps = [row["created_by"] for row in image.config["history"][len(base.layers) :]]
    assert [step.partition(":")[0] for step in steps[:2]] == ["goldnode dpkg", "goldnode wheels"]
    (step,) = team.engine.steps
    assert [layer.blob.digest for layer in step.parent] == [row.digest for row in base.layers]
    lock = load_derived_lock(ready.lock_file)
    assert [(deb.name, deb.archive) for deb in lock.debs] == [
        ("jq", "debian"),
        ("libjq1", "debian"),
    ]
    assert lock.digest == image.labels["io.goldnode.lock"]
    assert packages == [("jq",)]


def test_second_run_with_packages_asks_neither_apt_nor_the_engine(
    team: Team, packages: list[tuple[str, ...]]
) -> None:
    _, image = team.derive()
    again, second = team.derive(today=dt.date(2027, 1, 1), offline=True)
    assert (again.locked, second.digest) == (False, image.digest)
    assert (len(packages), len(team.engine.steps)) == (1, 1)


def test_packages_are_built_twice_to_one_digest_and_a_difference_is_named(
    team: Team, packages: list[tuple[str, ...]], tmp_path: Path
) -> None:
    ready, _ = team.derive()
    assert twice(team.world.store, ready.recipe, tmp_path / "twice", team.engine) == []
    other = FakeEngine(content="another cache")
    (difference,) = twice(team.world.store, ready.recipe, tmp_path / "other", other)
    assert "dpkg: 2 packages" in difference.what
    assert "/etc/ld.so.cache: size, content" in difference.what


def test_another_engine_is_another_build(team: Team, packages: list[tuple[str, ...]]) -> None:
    first, _ = team.derive()
    team.engine = FakeEngine(version="2")
    assert team.prepare().recipe.build_id != first.recipe.build_id


def test_locks_without_packages_keep_their_digest_and_need_no_engine(team: Team) -> None:
    ready, _ = team.derive()
    text = ready.lock_file.read_text()
    assert "debs" not in text
    assert "engine" not in ready.recipe.document
    assert ready.engine is None


def test_evidence_has_the_packages_of_a_derived_lock(
    team: Team, packages: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, _ = team.derive()
    own = {row.name: lock for row, lock in team.world.rows()}
    monkeypatch.setattr("goldnode.images.locked_packages.find_lock", lambda row: own[row.name])
    known = locked(team.world.store, "recsys/trainer", ready.recipe.lock.digest)
    assert known is not None
    assert known.debs == {"base-files": "1", "jq": "1", "libjq1": "1"}


def test_file_below_a_link_of_a_package_is_refused(
    team: Team, packages: list[tuple[str, ...]]
) -> None:
    team.engine.links = {"app/bin": "/usr/bin"}
    with pytest.raises(
        ImageError, match="/app/bin/run is below /app/bin, which is a link"
    ) as raised:
        team.derive()
    assert raised.value.line == WITH_PACKAGES[: WITH_PACKAGES.index("files:")].count("\n") + 1


def test_packages_cannot_be_resolved_offline(team: Team) -> None:
    text = WITH_PACKAGES.replace("requirements: requirements.txt\n", "")
    (team.place / "derive.yml").write_text(text)
    with pytest.raises(ImageError, match="cannot be resolved offline") as raised:
        team.prepare(offline=True)
    assert raised.value.line == 5


# Excludes and secrets


def test_patterns_of_dockerignore_leave_files_out(team: Team) -> None:
    (team.place / "src/run.log").write_text("x")
    (team.place / ".dockerignore").write_text("**/*.log\nsrc/bin\n")
    ready, image = team.derive()
    assert {"app/main.py", "app/link"} <= image.members.keys()
    assert not {"app/run.log", "app/bin/run"} & image.members.keys()
    assert f"2 files left out by {team.place}/.dockerignore" in ready.notes


def test_declaration_names_another_file_of_patterns(team: Team) -> None:
    (team.place / ".dockerignore").write_text("*\n")
    (team.place / "patterns").write_text("src/bin\n")
    (team.place / "derive.yml").write_text(DERIVE + "ignore: patterns\n")
    assert [file.path for file in team.prepare().recipe.files] == ["app/link", "app/main.py"]


def test_source_that_is_left_out_is_refused(team: Team) -> None:
    (team.place / ".dockerignore").write_text("src\n")
    with pytest.raises(ImageError, match='leaves out "src"') as raised:
        team.prepare()
    assert raised.value.line == 6


SECRET = f"hf_{'aBcD' * 9}"


def test_secret_is_refused_and_never_printed(team: Team) -> None:
    (team.place / "src/hub.py").write_text(f"x = 1\nTOKEN = '{SECRET}'\n")
    (team.place / "src/.netrc").write_text("machine a login b password c\n")
    with pytest.raises(ImageError) as raised:
        team.prepare()
    said = str(raised.value)
    assert "src/.netrc (by its name logins of netrc)" in said
    assert "src/hub.py (line 2: a token of Hugging Face)" in said
    assert "allow_secrets: {src/.netrc: REASON}" in said
    assert SECRET not in said


def test_secret_that_is_left_out_or_allowed_is_no_obstacle(team: Team) -> None:
    (team.place / "src/hub.py").write_text(f"TOKEN = '{SECRET}'\n")
    (team.place / "src/.netrc").write_text("machine a login b password c\n")
    (team.place / ".dockerignore").write_text("**/.netrc\n")
    reason = "a revoked token of the tests"
    (team.place / "derive.yml").write_text(DERIVE + f"allow_secrets: {{src/hub.py: {reason}}}\n")
    ready, image = team.derive()
    assert "app/hub.py" in image.members
    assert f"src/hub.py is allowed (line 1: a token of Hugging Face): {reason}" in ready.notes


def test_allowed_file_that_is_not_copied_is_refused(team: Team) -> None:
    (team.place / "derive.yml").write_text(DERIVE + "allow_secrets: {src/absent: not yet there}\n")
    with pytest.raises(ImageError, match='"src/absent" is none of the files') as raised:
        team.prepare()
    assert raised.value.line == 11


@pytest.mark.parametrize("key", ["env: {", "labels: {"])
def test_secret_in_the_declaration_is_refused(team: Team, key: str) -> None:
    (team.place / "derive.yml").write_text(DERIVE.replace(key, f"{key}TOKEN: {SECRET}, "))
    with pytest.raises(ImageError, match="TOKEN has a token of Hugging Face") as raised:
        team.prepare()
    assert SECRET not in str(raised.value)
