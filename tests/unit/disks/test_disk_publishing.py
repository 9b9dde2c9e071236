"""Publishing disks to a directory and pulling them back: what is seen when a run is cut, what an altered file, a full disk or another's
build meets, what programs find there, and what goes when nobody needs it.

The disks are fixtures of the manifest's form; the HTTP server is Python's own, with faults where a test says so."""

from __future__ import annotations

import base64
import datetime as dt
import http.server
import json
import multiprocessing
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.channels import signing
from tests.unit.disks.disk_samples import BUILDS, CLASS, make_build, prove
from tests.unit.images.registries import make_key

from goldnode.channels import signed
from goldnode.channels.gc import Collection, NeededContent
from goldnode.channels.product import Location
from goldnode.channels.promotion import rollback
from goldnode.channels.requirements import NO_SOAK
from goldnode.channels.updates import UpdateError
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.commands.disks import publish as disks_publish
from goldnode.core.errors import DiskError, GoldnodeError, ImageError
from goldnode.disks import publish as publishing
from goldnode.disks import secureboot, upload
from goldnode.disks.channels import channel_head, promote
from goldnode.disks.contents import digest_of
from goldnode.disks.directory import ENVELOPE, check_published
from goldnode.disks.enrolment import VARIABLES
from goldnode.disks.evidence import authenticate, document
from goldnode.disks.gc import collect, collect_place, needed
from goldnode.disks.lines import line_of
from goldnode.disks.model import MANIFEST, BuiltDisk
from goldnode.disks.places import ChannelStore, DirectoryPlace, DiskStorePlace
from goldnode.disks.product import DiskProduct
from goldnode.disks.publish import PullSource, publish, pull
from goldnode.evidence.signatures import load_public, load_signer, payload_of
from goldnode.fleet.control import evidence

LINE = line_of(CLASS)
NOW = dt.datetime(2026, 11, 22, 5, 0, tzinfo=dt.UTC)


class World:
    def __init__(self, root: Path, keys: tuple[Path, Path]) -> None:
        self.root, self.keys = root / "place", keys
        self.store, self.other = ChannelStore(root / "store"), ChannelStore(root / "other")
        self.root.mkdir()
        self.folder = root / "keys"
        self.trusted = signing.make_channels(self.place, self.store, self.folder, keys[0])

    @property
    def words(self) -> list[str]:
        """Return the options of who moves channels."""
        return ["--online-key", str(signing.key_of(self.folder, "online"))]

    @property
    def place(self) -> DirectoryPlace:
        return DirectoryPlace(self.root, self.store, load_signer(self.keys[0]))

    def build(self, name: str, **given: Any) -> BuiltDisk:
        disk = make_build(self.store.root, name, **given)
        prove(disk, self.keys[0])
        return disk

    def publish(self, name: str, **given: Any) -> BuiltDisk:
        disk = self.build(name, **given)
        publish(disk, self.place, load_signer(self.keys[0]), now=NOW)
        return disk

    def promote(self, name: str, *channels: str, now: dt.datetime | None = None) -> None:
        for channel in channels:
            promote(
                self.place,
                self.store,
                signing.move(
                    LINE,
                    channel,
                    signing.signers(self.folder, self.keys[0]),
                    to=BUILDS[name],
                    by="ana",
                    now=now or NOW,
                    evidence=signing.unasked,
                ),
            )

    def pull(self, wanted: str = "candidate", origin: str | None = None, **given: Any) -> Any:
        return pull(
            PullSource(origin or str(self.root)),
            self.other,
            f"{CLASS}:{wanted}",
            trust=load_public(self.keys[1]),
            **{"roots": [self.trusted], **given},
        )

    def directory(self, name: str) -> Path:
        return self.root / CLASS / BUILDS[name]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files need not reach the disk, and nobody has to be waited for."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(publishing, "_PAUSE", 0)


@pytest.fixture
def world(tmp_path: Path, keys: tuple[Path, Path]) -> World:
    return World(tmp_path, keys)


Fault = Callable[[http.server.SimpleHTTPRequestHandler, int], bool]


@contextmanager
def serving(
    root: Path, fault: Fault | None = None, *, ranges: bool = True
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Serve a directory; `fault` sees each request first, with its number, and says whether it answered. With `ranges`, as nginx does."""
    asked: list[tuple[str, str]] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return None

        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Range", "")))
            if fault is not None and fault(self, len(asked)):
                return
            path = Path(self.translate_path(self.path))
            span = self.headers.get("Range", "")
            if not ranges or not span or not path.is_file():
                super().do_GET()
                return
            data, start = path.read_bytes(), int(span.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start < len(data) else 416)
            if start < len(data):
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data[start:])))
            self.end_headers()
            self.wfile.write(data[start:])

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(root))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# Publishing


def test_published_disk_is_complete_and_its_signature_verifies(world: World) -> None:
    disk = world.publish("a")
    here = world.directory("a")
    names = {path.name for path in here.iterdir()}
    assert f"{disk.name}.raw" not in names
    assert {
        f"{disk.name}.raw.zst",
        f"{disk.name}.qcow2",
        "disk.json",
        "verified.json",
        "SHA256SUMS",
        "SHA256SUMS.sig",
        ENVELOPE,
    } <= names
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verify = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        str(world.keys[1]),
        "-rawin",
        "-in",
        "SHA256SUMS",
        "-sigfile",
    ]
    assert (
        subprocess.run(
            [*verify, "SHA256SUMS.sig"], cwd=here, capture_output=True, check=False
        ).returncode
        == 0
    )
    assert authenticate(BuiltDisk.load(here), load_public(world.keys[1])).passed
    statement = json.loads(payload_of((here / ENVELOPE).read_bytes()))
    assert {gate["gate"] for gate in statement["predicate"]["gates"]} == {
        "built",
        "hygiene",
        "booted",
        "inspection",
        "signature",
    }


def test_again_it_is_there_already(world: World) -> None:
    disk = world.publish("a")
    before = {path: path.stat().st_mtime_ns for path in world.directory("a").iterdir()}
    assert publish(disk, world.place, load_signer(world.keys[0])).before
    assert {path: path.stat().st_mtime_ns for path in world.directory("a").iterdir()} == before


def test_a_build_id_is_given_to_one_content_only(world: World, tmp_path: Path) -> None:
    world.publish("a")
    other = make_build(tmp_path / "elsewhere", "a", content=b"another")
    prove(other, world.keys[0])
    with pytest.raises(DiskError, match="given to one content only"):
        publish(other, world.place, load_signer(world.keys[0]))


def sign_boot_files(disk: BuiltDisk, build: str | None = None, text: str = "x") -> Path:
    """Write a document of signatures for Secure Boot next to a build; the signatures are of nobody."""
    encoded = base64.b64encode(text.encode()).decode()
    row = {"digest": "a" * 64, "signature": encoded}
    document = {
        "schema": secureboot.SCHEMA,
        "name": disk.name,
        "build_id": build or disk.build_id,
        "certificate": encoded,
        "files": dict.fromkeys(("loader", "a", "b"), row),
        "variables": {f"{name}.auth": encoded for name in VARIABLES},
    }
    return secureboot.save(disk, document)


def test_signatures_of_boot_files_travel_with_a_build(world: World) -> None:
    disk = world.build("a")
    file = sign_boot_files(disk)
    publish(disk, world.place, load_signer(world.keys[0]))
    world.promote("a", "candidate")
    pulled = world.pull().disk
    assert (pulled.directory / file.name).read_bytes() == file.read_bytes()
    assert (secureboot.for_slots(pulled) or {})["b"]["digest"] == "a" * 64


def test_build_signed_after_its_publication_is_published_again(world: World) -> None:
    disk = world.publish("a")
    world.promote("a", "candidate")
    before = world.pull()
    assert secureboot.for_slots(before.disk) is None
    large = world.directory("a") / f"{disk.name}.qcow2"
    inode = large.stat().st_ino
    file = sign_boot_files(disk)
    done = publish(disk, world.place, load_signer(world.keys[0]))
    assert (done.before, done.signatures, done.files) == (True, True, 4)
    check_published(world.directory("a"))
    assert large.stat().st_ino == inode
    assert [path.name for path in (world.root / ".staging").iterdir()] == [".lock"]
    # Whoever has the build gets the signatures alone. The channel names the same digest.
    again = world.pull()
    assert (again.digest, again.fetched) == (before.digest, 1)
    assert secureboot.for_slots(again.disk) is not None
    assert not publish(disk, world.place, load_signer(world.keys[0])).signatures
    # Signed again, with another key for instance.
    sign_boot_files(disk, text="y")
    assert publish(disk, world.place, load_signer(world.keys[0])).signatures
    published = world.directory("a") / file.name
    assert published.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("step", ["copyfile", "sign_sums", "sync", "rename", "rmtree"])
def test_signatures_that_are_added_by_a_run_that_dies_are_added_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    disk = world.publish("a")
    file = sign_boot_files(disk)
    with monkeypatch.context() as patched:

        def dies(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        # Killed after the published directory was moved aside, or after the new one has its place.
        calls = []
        rename, rmtree = Path.rename, shutil.rmtree

        def second_dies(self: Path, target: Path) -> Path:
            calls.append(target)
            if len(calls) > 1:
                dies()
            return rename(self, target)

        def old_stays(path: Path, **given: Any) -> None:
            rmtree(path, **given) if given else dies()

        if step == "rename":
            patched.setattr(Path, "rename", second_dies)
        elif step == "rmtree":
            patched.setattr(shutil, "rmtree", old_stays)
        else:
            patched.setattr(shutil if step == "copyfile" else upload, step, dies)
        with pytest.raises(KeyboardInterrupt):
            publish(disk, world.place, load_signer(world.keys[0]))
    if step not in ("rename", "rmtree"):
        check_published(world.directory("a"))
        assert not (world.directory("a") / file.name).exists()
    publish(disk, world.place, load_signer(world.keys[0]))
    check_published(world.directory("a"))
    assert (world.directory("a") / file.name).is_file()


def test_signatures_of_another_build_are_not_published(world: World) -> None:
    disk = world.build("a")
    sign_boot_files(disk, build="20200101.1")
    with pytest.raises(
        DiskError, match=r"the signatures are of build 20200101\.1, and the disk is"
    ):
        publish(disk, world.place, load_signer(world.keys[0]))
    assert not (world.root / CLASS).exists()


def test_publish_refuses_when_a_published_file_is_altered(world: World) -> None:
    disk = world.publish("a")
    path = world.directory("a") / f"{disk.name}.qcow2"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DiskError, match="qcow2 is altered"):
        publish(disk, world.place, load_signer(world.keys[0]))


def test_a_raw_disk_that_was_altered_is_not_published(world: World) -> None:
    disk = world.build("a")
    raw = disk.directory / f"{disk.name}.raw"
    raw.write_bytes(raw.read_bytes()[:-1] + b"x")
    with pytest.raises(ImageError, match=r"built: .*raw is altered"):
        publish(disk, world.place, load_signer(world.keys[0]))
    assert not world.directory("a").exists()


def test_a_copy_that_went_wrong_is_not_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = world.build("a")

    def copies(source: Path, target: Path) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:-1] + b"x")

    monkeypatch.setattr(shutil, "copyfile", copies)
    with pytest.raises(DiskError, match=r"is altered: its sha256 is .*, the manifest says"):
        publish(disk, world.place, load_signer(world.keys[0]))
    assert not (world.root / CLASS).exists()


_STEPS = ("copyfile", "_compress", "sign_sums", "_check_compressed", "sync", "refresh")


@pytest.mark.parametrize("step", _STEPS)
def test_a_cut_publication_shows_nothing_and_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    disk = world.build("a")
    with monkeypatch.context() as patched:

        def dies(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patched.setattr({"copyfile": shutil, "refresh": publishing}.get(step, upload), step, dies)
        with pytest.raises(KeyboardInterrupt):
            publish(disk, world.place, load_signer(world.keys[0]))
    seen = [
        path
        for path in world.root.rglob("*")
        if path.is_file() and not {".staging", signed.FOLDER} & set(path.parts)
    ]
    assert seen == [] if step != "refresh" else (world.directory("a") / "disk.json").is_file()
    done = publish(disk, world.place, load_signer(world.keys[0]))
    assert done.before == (step == "refresh")
    check_published(world.directory("a"))
    assert CLASS in json.loads((world.root / "index.json").read_bytes())["classes"]


def test_a_full_place_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full disk is injected here; tests/disks has a real one."""
    disk = world.build("a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(DiskError, match=r"place is full") as problem:
        publish(disk, world.place, load_signer(world.keys[0]))
    assert "gc --to" in str(problem.value.remedy)
    assert list((world.root / ".staging").glob("cpu*")) == []


def test_too_little_room_is_refused_before_anything_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = world.build("a")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1))
    with pytest.raises(DiskError, match=r"has 0 MiB free, and cpu_node-a+ needs"):
        publish(disk, world.place, load_signer(world.keys[0]))
    assert not (world.root / ".staging" / disk.name).exists()


def _publisher(root: str, place: str, key: str, name: str) -> str:
    store = ChannelStore(Path(root))
    signer = load_signer(Path(key))
    directory = Path(root) / "built" / CLASS / BUILDS[name]
    try:
        done = publish(
            BuiltDisk.load(directory), DirectoryPlace(Path(place), store, signer), signer
        )
    except GoldnodeError as problem:
        return problem.message
    return "there" if done.before else "copied"


def test_several_publishers_at_once(world: World) -> None:
    for name in "abc":
        world.build(name)
    rows = [(str(world.store.root), str(world.root), str(world.keys[0]), name) for name in "abcab"]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert sorted(pool.starmap(_publisher, rows)) == ["copied"] * 3 + ["there"] * 2
    for name in "abc":
        check_published(world.directory(name))
    builds = json.loads((world.root / "index.json").read_bytes())["classes"][CLASS]["builds"]
    assert sorted(builds) == sorted(BUILDS[name] for name in "abc")


def test_no_directory_to_publish_to(world: World, tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="is no directory to publish to"):
        DirectoryPlace(tmp_path / "none", world.store)


# What programs find


def test_index_and_streams_follow_the_channels(world: World) -> None:
    for name in "ab":
        world.publish(name)
        world.promote(name, "candidate", "canary", "stable")
    found = json.loads((world.root / "index.json").read_bytes())["classes"][CLASS]
    assert found["channels"] == dict.fromkeys(("candidate", "canary", "stable"), BUILDS["b"])
    file = found["builds"][BUILDS["a"]]["files"][f"{CLASS}-{BUILDS['a']}.qcow2"]
    assert (world.root / file["path"]).stat().st_size == file["size"]
    index = json.loads((world.root / "streams/v1/index.json").read_bytes())
    (row,) = index["index"].values()
    stream = json.loads((world.root / row["path"]).read_bytes())
    assert sorted(stream["products"]) == row["products"]
    product = stream["products"][f"io.goldnode:{CLASS}:stable"]
    newest = product["versions"][max(product["versions"])]
    assert newest["build_id"] == BUILDS["b"]
    item = newest["items"]["disk1.img"]
    assert (item["ftype"], item["sha256"]) == ("disk1.img", file_hash(world.root / item["path"]))


def test_a_clock_that_is_set_back_makes_no_older_disk_the_newest(world: World) -> None:
    for name, now in (
        ("a", NOW),
        ("b", NOW - dt.timedelta(days=400)),
        ("c", NOW - dt.timedelta(days=399)),
    ):
        world.publish(name)
        world.promote(name, "candidate", "canary", "stable", now=now)
    stream = json.loads((world.root / "streams/v1/disks.json").read_bytes())
    versions = stream["products"][f"io.goldnode:{CLASS}:stable"]["versions"]
    assert [versions[name]["build_id"] for name in sorted(versions)] == [
        BUILDS[name] for name in "abc"
    ]
    assert {name.partition(".")[0] for name in versions} == {NOW.strftime("%Y%m%d")}


def file_hash(path: Path) -> str:
    return subprocess.run(
        ["sha256sum", str(path)], capture_output=True, text=True, check=True
    ).stdout.split()[0]


def test_rolled_back_build_is_no_longer_in_the_stream(world: World) -> None:
    for name in "ab":
        world.publish(name)
        world.promote(name, "candidate", "canary", "stable")
    rollback(
        world.place,
        world.store,
        signing.move(
            LINE,
            "stable",
            signing.signers(world.folder, world.keys[0]),
            by="ana",
            reason="slow",
            now=NOW,
        ),
    )
    stream = json.loads((world.root / "streams/v1/disks.json").read_bytes())
    versions = stream["products"][f"io.goldnode:{CLASS}:stable"]["versions"]
    assert {row["build_id"] for row in versions.values()} == {BUILDS["a"]}


def test_channel_script_chains_to_a_build_only_if_it_can_netboot(world: World) -> None:
    disk = world.publish("a", forms=("raw", "tar", "vmlinuz", "initrd"))
    world.promote("a", "candidate")
    script = (world.directory("a") / f"{disk.name}.ipxe").read_text().splitlines()
    assert script[0] == "#!ipxe"
    assert f"initrd {disk.name}.initrd.img" in script
    assert any(
        line.startswith(f"kernel {disk.name}.vmlinuz ") and "root=${root} ro" in line
        for line in script
    )
    chain = (world.root / CLASS / "channels/candidate.ipxe").read_text()
    assert chain == f"#!ipxe\nchain --replace ../{BUILDS['a']}/{disk.name}.ipxe\n"
    world.publish("b")  # in no form to netboot
    world.promote("b", "candidate")
    assert not (world.root / CLASS / "channels/candidate.ipxe").exists()


# Pulling


@pytest.mark.parametrize("web", [False, True], ids=["directory", "http"])
def test_pulled_disk_is_identical_to_the_built_one(world: World, web: bool) -> None:
    disk = world.publish("a")
    world.promote("a", "candidate")
    with serving(world.root) as (url, _):
        done = world.pull(origin=url if web else None)
        assert done.fetched > 5
        again = world.pull(origin=url if web else None)
        assert (again.fetched, again.there) == (0, done.fetched)
        assert channel_head(world.other, LINE, "candidate").build_id == disk.build_id
    here = world.other.root / "built" / CLASS / disk.build_id
    assert (here / f"{disk.name}.raw").read_bytes() == (
        disk.directory / f"{disk.name}.raw"
    ).read_bytes()
    assert not (here / f"{disk.name}.raw.zst").exists()
    assert digest_of(BuiltDisk.load(here)) == digest_of(disk)
    assert authenticate(BuiltDisk.load(here), load_public(world.keys[1])).passed
    assert not [path for path in (world.other.root / "partial").iterdir() if path.is_dir()]


def test_other_formats_are_added_to_what_is_there(world: World) -> None:
    disk = world.publish("a")
    world.pull(BUILDS["a"])
    done = world.pull(BUILDS["a"], formats=("qcow2",))
    assert done.fetched == 1
    assert (done.disk.directory / f"{disk.name}.qcow2").is_file()
    assert (done.disk.directory / f"{disk.name}.raw").is_file()
    with pytest.raises(DiskError, match="is not published as tar"):
        world.pull(BUILDS["a"], formats=("tar",))
    with pytest.raises(DiskError, match="is not published as vhd"):
        world.pull(BUILDS["a"], formats=("vhd",))


def _cut(after: int) -> Fault:
    """Send part of a disk's bytes and hang up, four times."""
    times = [0]

    def fault(handler: http.server.SimpleHTTPRequestHandler, number: int) -> bool:
        if not handler.path.endswith(".raw.zst") or times[0] == 4:
            return False
        times[0] += 1
        data = Path(handler.translate_path(handler.path)).read_bytes()
        span = handler.headers.get("Range", "")
        start = int(span.removeprefix("bytes=").partition("-")[0]) if span else 0
        handler.send_response(206 if span else 200)
        if span:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        handler.wfile.write(data[start : start + after])
        return True

    return fault


def test_a_cut_pull_goes_on_where_it_stopped(world: World) -> None:
    disk = world.publish("a")
    with serving(world.root, _cut(10_000)) as (url, asked):
        world.pull(BUILDS["a"], url)
    spans = [span for path, span in asked if path.endswith(".raw.zst")]
    assert spans == ["", "bytes=10000-", "bytes=20000-", "bytes=30000-", "bytes=40000-"]
    here = world.other.root / "built" / CLASS / disk.build_id / f"{disk.name}.raw"
    assert here.read_bytes() == (disk.directory / here.name).read_bytes()


def test_a_server_without_ranges_begins_again(world: World) -> None:
    world.publish("a")
    count = [0]

    def fault(handler: http.server.SimpleHTTPRequestHandler, number: int) -> bool:
        if handler.path.endswith(".raw.zst") and count[0] < 1:
            count[0] += 1
            handler.send_response(200)
            handler.send_header("Content-Length", "50000")
            handler.end_headers()
            handler.wfile.write(b"x" * 100)
            return True
        return False

    with serving(world.root, fault, ranges=False) as (url, _):
        world.pull(BUILDS["a"], url)


def test_a_pull_that_died_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("a")
    with monkeypatch.context() as patched:

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(publishing, "_unpack", dies)
        with pytest.raises(KeyboardInterrupt):
            world.pull(BUILDS["a"])
    assert not (world.other.root / "built").exists()
    done = world.pull(BUILDS["a"])
    assert done.there >= 1


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _swap(world: World) -> None:
    for file in (ENVELOPE, "SHA256SUMS", "disk.json"):
        shutil.copyfile(world.directory("b") / file, world.directory("a") / file)


def _resign(world: World) -> None:
    """Somebody without the key puts a disk of their own there, and signs it."""
    key = make_key(world.root.parent, "thief")
    upload.sign_sums(
        BuiltDisk.load(world.directory("a")), world.directory("a"), load_signer(key[0]), [], NOW
    )


def _bare(world: World) -> None:
    (world.directory("a") / ENVELOPE).unlink()


@pytest.mark.parametrize("web", [False, True], ids=["directory", "http"])
@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        pytest.param(
            lambda w: _flip(w.directory("a") / f"{CLASS}-{BUILDS['a']}.raw.zst"),
            r"raw.zst is altered",
            id="disk",
        ),
        pytest.param(
            lambda w: _flip(w.directory("a") / "disk.json"),
            r"disk.json is not what was signed",
            id="manifest",
        ),
        pytest.param(
            lambda w: _flip(w.directory("a") / "SHA256SUMS"),
            r"SHA256SUMS is not what was signed",
            id="sums",
        ),
        pytest.param(
            lambda w: _flip(w.directory("a") / f"{CLASS}-{BUILDS['a']}.cdx.json"),
            r"cdx.json is altered",
            id="sbom",
        ),
        pytest.param(_swap, r"was signed for cpu_node b+, not for cpu_node a+", id="swapped"),
        pytest.param(_resign, r"a key that is not known here", id="thief"),
        pytest.param(_bare, r"has no SHA256SUMS.dsse.json", id="unsigned"),
        pytest.param(
            lambda w: shutil.rmtree(w.directory("a")),
            r"has no SHA256SUMS.dsse.json, SHA256SUMS, disk.json",
            id="gone",
        ),
    ],
)
def test_pull_refuses_altered_or_unsigned_disks(
    world: World, web: bool, wrong: Callable[[World], None], reported: str
) -> None:
    for name in "ab":
        world.publish(name)
    world.promote("a", "candidate")
    wrong(world)
    with serving(world.root) as (url, _), pytest.raises(GoldnodeError, match=reported):
        world.pull(origin=url if web else None)
    assert not (world.other.root / "built").exists()


def test_a_disk_is_not_pulled_without_a_key(world: World) -> None:
    world.publish("a")
    with pytest.raises(DiskError, match="only where its signature can be verified"):
        pull(PullSource(str(world.root)), world.other, f"{CLASS}:{BUILDS['a']}", trust=())


def test_older_channels_are_not_believed(world: World) -> None:
    for name in "ab":
        world.publish(name)
    world.promote("a", "candidate")
    folder = world.root / signed.FOLDER
    older = world.place.files()
    world.promote("b", "candidate")
    world.pull()
    signed.write_folder(folder, older)
    with pytest.raises(UpdateError, match="older than what was seen before"):
        world.pull()
    shutil.rmtree(folder)
    with pytest.raises(UpdateError, match="lack moves that this store has seen"):
        world.pull()


def test_channels_are_pulled_by_a_root_that_a_person_trusts(world: World, tmp_path: Path) -> None:
    world.publish("a")
    world.promote("a", "candidate")
    with pytest.raises(DiskError, match=r"whether the channels of .* are its publisher's.*--root"):
        world.pull(roots=())
    assert not (world.other.root / "channels").exists()
    assert world.pull().disk.build_id == BUILDS["a"]
    assert world.pull(roots=()).disk.build_id == BUILDS["a"], "the store knows the root now"


@pytest.mark.parametrize(
    ("wanted", "reported"),
    [
        ("canary", "canary of cpu_node points to nothing"),
        ("nightly", "no channel and no build id"),
        ("e" * 12, "has no SHA256SUMS"),
    ],
)
def test_pull_of_an_empty_channel_or_unknown_build_is_an_error(
    world: World, wanted: str, reported: str
) -> None:
    world.publish("a")
    world.promote("a", "candidate")
    with pytest.raises(GoldnodeError, match=reported):
        world.pull(wanted)


def test_a_server_that_is_not_there(world: World) -> None:
    with pytest.raises(DiskError, match="cannot be reached"):
        world.pull(BUILDS["a"], "http://127.0.0.1:1")
    with pytest.raises(DiskError, match="is no place to pull from"):
        world.pull(BUILDS["a"], "ftp://127.0.0.1/x")
    with pytest.raises(DiskError, match="is no directory"):
        world.pull(BUILDS["a"], "/nowhere/at/all")


def test_a_server_that_fails(world: World) -> None:
    world.publish("a")

    def fault(handler: http.server.SimpleHTTPRequestHandler, number: int) -> bool:
        handler.send_error(403)
        return True

    with (
        serving(world.root, fault) as (url, _),
        pytest.raises(DiskError, match="the server answers 403"),
    ):
        world.pull(BUILDS["a"], url)


# What goes


LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=40)


def test_gc_never_removes_builds_of_a_channel_or_its_history(world: World) -> None:
    for name in "abcd":
        world.publish(name)
    world.promote("a", "candidate", "canary", "stable")
    world.promote("b", "candidate", "canary", "stable")
    gone, stays = collect_place(
        world.place,
        world.store,
        needed(world.store),
        [world.trusted],
        Collection(now=LATER),
    )
    assert sorted(item.what for item in gone) == [
        f"{CLASS}:{BUILDS['c']}",
        f"{CLASS}:{BUILDS['d']}",
    ]
    assert set(stays) == {f"{CLASS}:{BUILDS['a']}", f"{CLASS}:{BUILDS['b']}"}
    assert sorted(
        json.loads((world.root / "index.json").read_bytes())["classes"][CLASS]["builds"]
    ) == [
        BUILDS["a"],
        BUILDS["b"],
    ]
    gone, stays = collect(world.store, needed(world.store), Collection(now=LATER))
    assert sorted(item.what for item in gone) == [
        f"{CLASS}-{BUILDS['c']}",
        f"{CLASS}-{BUILDS['d']}",
    ]
    assert (world.store.root / "built" / CLASS / BUILDS["a"]).is_dir()


def test_gc_leaves_young_builds_and_those_of_a_lock_or_class(world: World, tmp_path: Path) -> None:
    world.build("a", disk_lock="sha256:" + "9" * 64)
    world.build("b")
    world.build("c")
    assert collect(world.store, NeededContent())[0] == []
    keeps = NeededContent(
        locks={"sha256:" + "9" * 64: "the disk lock of cpu_node"},
        names={f"{CLASS}:{BUILDS['b']}": "class x"},
    )
    gone, stays = collect(world.store, keeps, Collection(now=LATER, dry_run=True))
    assert [item.what for item in gone] == [f"{CLASS}-{BUILDS['c']}"]
    assert stays[f"{CLASS}-{BUILDS['a']}"] == "the disk lock of cpu_node"
    assert (world.store.root / "built" / CLASS / BUILDS["c"]).is_dir()
    assert needed(world.store, load_catalog()).digests == {}


def test_gc_leaves_a_build_promoted_after_the_survey(world: World) -> None:
    for name in "ab":
        world.publish(name)
    keeps = needed(world.store)
    world.promote("a", "candidate")
    assert [item.what for item in collect(world.store, keeps, Collection(now=LATER))[0]] == [
        f"{CLASS}-{BUILDS['b']}"
    ]


def test_channels_that_are_not_verified_keep_everything(world: World) -> None:
    world.publish("a")
    world.publish("b")
    world.promote("a", "candidate")
    with pytest.raises(ImageError, match="by verified channels"):
        collect_place(world.place, world.other, NeededContent(), (), Collection(now=LATER))
    _flip(sorted((world.root / signed.FOLDER).glob("*.targets.json"))[-1])
    with pytest.raises(UpdateError, match=r"is refused|another form"):
        collect_place(
            world.place, world.store, NeededContent(), [world.trusted], Collection(now=LATER)
        )
    assert world.directory("b").is_dir()


def test_gc_removes_unfinished_publications_and_pulls(world: World) -> None:
    (world.root / ".staging/cpu_node-eeeeeeeeeeee").mkdir(parents=True)
    partial = world.store.root / "partial/cpu_node-eeeeeeeeeeee"
    partial.mkdir(parents=True)
    gone, _ = collect_place(world.place, world.store, NeededContent(), [world.trusted])
    assert [item.why for item in gone] == ["a publication that was not finished"]
    gone, _ = collect(world.store, NeededContent(), Collection(now=LATER))
    assert [item.why for item in gone] == ["a pull that was not finished"]


def test_an_age_that_no_one_knows_keeps_a_build(world: World) -> None:
    world.publish("a")
    (world.directory("a") / ENVELOPE).unlink()
    _, stays = collect_place(
        world.place, world.store, NeededContent(), [world.trusted], Collection(now=LATER)
    )
    assert stays == {f"{CLASS}:{BUILDS['a']}": "the time of its publication is not recorded"}


# The commands


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["disks", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_the_commands_from_publishing_to_the_way_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The catalog has no class of these disks.
    monkeypatch.setattr(evidence, "PromotionEvidence", lambda _: signing.unasked)
    store, place = ["--store", str(world.store.root)], ["--to", str(world.root)]
    key, trust = ["--key", str(world.keys[0])], ["--trust", str(world.keys[1])]
    root, move = ["--root", str(world.trusted)], [*key, *world.words]
    for name in "ab":
        disk = world.build(name)
        assert "files (" in run("publish", str(disk.directory), *store, *place, *key)
        for channel in ("candidate", "canary", "stable"):
            out = run(
                "promote", channel, f"{CLASS}:{BUILDS[name]}", *store, *place, *move, "--by", "ana"
            )
            assert f"{channel}: " in out
    assert NO_SOAK in out
    shown = run("status", *store, *place, *root, "--history")
    assert "signatures verified" in shown
    assert BUILDS["b"] in shown
    assert "the disk it stood for" not in run(
        "rollback", CLASS, *store, *place, *move, "--by", "ana", "--reason", "slow"
    )
    out = run(
        "pull",
        f"{CLASS}:stable",
        "--from",
        str(world.root),
        "--store",
        str(world.other.root),
        *trust,
        *root,
    )
    assert BUILDS["a"] in out
    assert "verified" in run(
        "authenticate", f"{CLASS}:stable", "--store", str(world.other.root), *trust
    )
    assert run("authenticate", CLASS, "--store", str(world.other.root), code=1).endswith(
        "NOT verified\n"
    )
    assert "2 stay" in run("gc", *store, *place, *root, "--dry-run")


def test_the_commands_name_what_is_missing(world: World) -> None:
    disk = world.build("a")
    store = ["--store", str(world.store.root)]
    assert "no directory to publish to is named" in run(
        "publish", disk.name, *store, "--key", str(world.keys[0]), code=2
    )
    assert "no built disk image" in run(
        "publish", "cpu_nod", *store, "--to", str(world.root), "--key", str(world.keys[0]), code=2
    )
    assert "no key is named" in run("publish", disk.name, *store, "--to", str(world.root), code=2)
    document(disk, "verified").unlink()
    refused = run(
        "publish", disk.name, *store, "--to", str(world.root), "--key", str(world.keys[0]), code=2
    )
    assert "it was never booted" in refused
    assert "--waive needs" not in refused
    waived = ["--waive", "booted", "--waive", "signature"]
    assert "recorded with who decided it" in run(
        "publish",
        disk.name,
        *store,
        "--to",
        str(world.root),
        *waived,
        "--key",
        str(world.keys[0]),
        code=2,
    )


def test_misspelt_channel_requirement_or_class_is_an_error_with_a_hint(world: World) -> None:
    store, place = ["--store", str(world.store.root)], ["--to", str(world.root)]
    for words, reported in (
        (("promote", "stabel", "none"), 'there is no channel "stabel". Use "stable".'),
        (
            ("promote", "stable", "none", "--waive", "boted"),
            'stable has no requirement "boted". Use "booted".',
        ),
        (
            ("publish", "none", "--waive", "boted"),
            'publish has no requirement "boted". Use "booted".',
        ),
        (
            ("rollback", "none", "--channel", "stabel"),
            'there is no channel "stabel". Use "stable".',
        ),
        (
            ("status", "cpu_onyl", "--root", str(world.trusted)),
            f'there is no "cpu_onyl", and {world.root} has no channels of it. Use "cpu_only".',
        ),
        (("authenticate", "cpu_onyl"), 'no built disk image "cpu_onyl" in'),
    ):
        assert reported in run(
            words[0], *store, *(place if words[0] != "authenticate" else ()), *words[1:], code=2
        )
    assert 'Use "cpu_only".' in run("diff", "cpu_onyl", "b", *store, code=2)
    assert "Run `goldnode disks build l4`." in run("authenticate", "l4", *store, code=2)
    shown = run("status", "cpu_only", *store, *place, "--root", str(world.trusted))
    assert "(no channel was ever set)" in shown
    assert "verified" not in shown
    world.publish("a")  # a class that the catalog has lost is still one where it has a history
    world.promote("a", "candidate")
    assert "signatures verified" in run(
        "status", CLASS, *store, *place, "--root", str(world.trusted)
    )


def test_each_step_reports_as_json(world: World, tmp_path: Path) -> None:
    store, place = ["--store", str(world.store.root)], ["--to", str(world.root)]
    key, trust = ["--key", str(world.keys[0])], ["--trust", str(world.keys[1])]
    root, move = ["--root", str(world.trusted)], [*key, *world.words]
    disk = str(world.build("a").directory)
    for words, schema, has in (
        (("publish", disk, *store, *place, *key), "published-disks", "disks"),
        (("promote", "candidate", f"{CLASS}:{BUILDS['a']}", *store, *place, *move), "channel-move", "requirements"),
        (("status", *store, *place, *root), "channels", "lines"),
        (("pull", f"{CLASS}:candidate", "--from", str(world.root), *trust, *root, "--store", str(tmp_path / "other")), "pulled-disk", "digest"),
        (("authenticate", disk, *store, *trust), "verification", "results"),
        (("gc", *store, "--dry-run"), "gc", "removed"),
    ):  # fmt: skip
        done = CliRunner().invoke(main, ["disks", *words, "--format", "json"])
        document = json.loads(done.stdout)
        assert (document["schema"], has in document) == (f"goldnode.{schema}/1", True), done.output


def test_every_command_is_there() -> None:
    names = (
        "evidence",
        "authenticate",
        "diff",
        "publish",
        "pull",
        "promote",
        "rollback",
        "status",
        "gc",
    )
    assert all(hasattr(disks_publish, name) for name in names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu_only", ("cpu_only", "aaaaaaaaaaaa")),
        ("cpu_only:e12345678901", ("cpu_only", "e12345678901")),
        ("cpu_only-e12345678901", ("cpu_only", "e12345678901")),
        ("rack-abcdef123456", ("rack-abcdef123456", "bbbbbbbbbbbb")),
        ("rack-abcdef123456:e12345678901", ("rack-abcdef123456", "e12345678901")),
        ("rack-abcdef123456-e12345678901", ("rack-abcdef123456", "e12345678901")),
        ("rack-deadbeefcafe", ("rack", "deadbeefcafe")),
    ],
)
def test_a_class_that_ends_like_a_build_id_is_still_a_class(
    tmp_path: Path, text: str, expected: tuple[str, str]
) -> None:
    for class_, build_id in (("cpu_only", "a" * 12), ("rack-abcdef123456", "b" * 12)):
        manifest = tmp_path / "built" / class_ / build_id / MANIFEST
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
    place = DiskStorePlace(ChannelStore(tmp_path))
    line, build_id = DiskProduct(Location(tmp_path)).find(place, text)
    assert (str(line), build_id) == expected
