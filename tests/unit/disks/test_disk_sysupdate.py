"""Channels in the form of systemd-sysupdate: which versions are offered, what is written and signed, and what nodes get.

The programs themselves, of Debian's releases, read the same files in tests/disks/test_sysupdate_releases.py."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.channels import signing
from tests.unit.disks.disk_samples import CLASS, make_disk, prove
from tests.unit.disks.test_disk_publishing import NOW, World
from tests.unit.images.registries import make_key

from goldnode.channels.lines import History, RecordedMove
from goldnode.channels.promotion import rollback
from goldnode.cli import main
from goldnode.core.errors import DiskError
from goldnode.core.files import sha256_of
from goldnode.disks import slot_image, sysupdate
from goldnode.disks.lines import line_of
from goldnode.disks.model import BuiltDisk
from goldnode.disks.publish import publish
from goldnode.disks.slot_image import partition
from goldnode.disks.sysupdate import FollowedChannel, OfferedVersion, definitions, offered
from goldnode.evidence.signatures import load_signer
from goldnode.lock.signing import ArchiveSigner, create, open_signer

LINE = line_of(CLASS)
A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def moves(*rows: tuple[str, str, str]) -> History:
    """A history of moves: (action, digest, day), one after the other, on `stable`."""
    return History(
        LINE,
        tuple(
            RecordedMove(
                number=number,
                action=action,
                channel="stable",
                was=None,
                now=digest,
                tag=digest[7:19],
                by="ana",
                date=f"{day}T05:00:00Z",
            )
            for number, (action, digest, day) in enumerate(rows, 1)
        ),
    )


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([], []),
        ([("promote", A, "2026-11-28")], [("20261128.0001", A)]),
        (
            [("promote", A, "2026-11-28"), ("promote", B, "2026-11-29")],
            [("20261129.0002", B), ("20261128.0001", A)],
        ),
        # A rollback is a later version of an earlier image, and what it takes back is not offered.
        (
            [
                ("promote", A, "2026-11-28"),
                ("promote", B, "2026-11-29"),
                ("rollback", A, "2026-11-29"),
            ],
            [("20261129.0003", A)],
        ),
        (
            [
                ("promote", C, "2026-11-27"),
                ("promote", A, "2026-11-28"),
                ("promote", B, "2026-11-29"),
                ("rollback", A, "2026-11-29"),
            ],
            [("20261129.0004", A), ("20261127.0001", C)],
        ),
        # The clock of a signer was wrong: a later move is the higher version all the same.
        (
            [("promote", A, "2026-12-24"), ("promote", B, "2026-11-29")],
            [("20261224.0002", B), ("20261224.0001", A)],
        ),
    ],
)
def test_offered_versions_follow_the_moves(
    rows: list[tuple[str, str, str]], wanted: list[tuple[str, str]]
) -> None:
    assert offered(moves(*rows), "stable") == [OfferedVersion(*row) for row in wanted]


def test_version_whose_label_is_too_long_is_refused() -> None:
    assert sysupdate.title("h100_sxm5_80gb", "20261129.0004") == "h100_sxm5_80gb_20261129.0004"
    with pytest.raises(DiskError, match=r"36 at most.*22 characters or less"):
        sysupdate.title("a" * 23, "20261129.0004")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_key(tmp_path_factory.mktemp("keys"), "builder")


@pytest.fixture(scope="module")
def disks(
    tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]
) -> dict[str, BuiltDisk]:
    work = tmp_path_factory.mktemp("disks")
    made = {
        name: make_disk(work / "store", work, name, more={"etc/motd": name.encode()})
        for name in "ab"
    }
    for disk in made.values():
        prove(disk, keys[0])
    return made


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("openpgp"), "goldnode test")[1]


@pytest.fixture
def signer(secret: Path) -> Iterator[ArchiveSigner]:
    with open_signer(str(secret), Path()) as opened:
        yield opened


@pytest.fixture
def world(tmp_path: Path, keys: tuple[Path, Path], disks: dict[str, BuiltDisk]) -> World:
    """A published directory whose candidate is disk a; disk b is there too."""
    made = World(tmp_path, keys)
    for disk in disks.values():
        publish(disk, made.place, load_signer(keys[0]), now=NOW)
    made.promote("a", "candidate")
    return made


def history(world: World) -> History:
    return signing.said(world.place).history(LINE)


def write(world: World, signer: ArchiveSigner, **given: object) -> sysupdate.WrittenSysupdate:
    return sysupdate.write(world.place, LINE, "candidate", history(world), signer, **given)  # type: ignore[arg-type]


def test_written_files_are_those_of_the_published_disk(
    world: World, signer: ArchiveSigner, disks: dict[str, BuiltDisk]
) -> None:
    done = write(world, signer)
    name = f"{CLASS}_20261122.0001"
    assert done.directory == world.root / CLASS / "sysupdate/candidate"
    root = partition(disks["a"], "root-a")
    packed = f"{name}_{root.size}.root.gz"
    assert set(done.sizes) == {
        packed,
        *(f"{name}{end}" for end in (".conf", ".initrd.img", ".vmlinuz")),
    }
    with disks["a"].path("raw").open("rb") as raw:
        raw.seek(root.start)
        assert gzip.decompress((done.directory / packed).read_bytes()) == raw.read(root.size)
    assert (done.directory / f"{name}.vmlinuz").read_bytes() == b"MZ kernel"
    assert (done.directory / f"{name}.initrd.img").read_bytes() == b"initramfs"
    assert (done.directory / f"{name}.conf").read_text() == (
        f"title goldnode {disks['a'].name} (20261122.0001)\n"
        "sort-key goldnode\n"
        "version 20261122.0001\n"
        f"linux /EFI/goldnode/{name}.vmlinuz\n"
        f"initrd /EFI/goldnode/{name}.initrd.img\n"
        f"options root=PARTLABEL={name} ro console=ttyS0 panic=5\n"
    )
    subprocess.run(
        ["sha256sum", "--strict", "-c", "SHA256SUMS"],
        cwd=done.directory,
        check=True,
        capture_output=True,
    )
    assert sysupdate.signed_sums(done.directory, signer.public) == {
        file: sha256_of(done.directory / file) for file in done.sizes
    }
    assert not list((world.root / ".staging").glob("sysupdate*"))


def test_written_again_nothing_is_unpacked_and_a_damaged_file_is_made_again(
    world: World, signer: ArchiveSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = write(world, signer)
    before = {path.name: path.read_bytes() for path in done.directory.iterdir()}
    derived: list[str] = []
    derives = sysupdate.derive

    def noted(disk: BuiltDisk, name: str, version: str, stage: Path) -> None:
        derived.append(version)
        derives(disk, name, version, stage)

    monkeypatch.setattr(sysupdate, "derive", noted)
    write(world, signer)
    assert derived == []
    (done.directory / f"{CLASS}_20261122.0001.vmlinuz").write_bytes(b"other")
    write(world, signer)
    assert derived == ["20261122.0001"]
    world.promote("b", "candidate")
    assert write(world, signer).versions == ["20261122.0002", "20261122.0001"]
    assert derived == ["20261122.0001", "20261122.0002"]
    names = {path.name for path in done.directory.iterdir()}
    assert before.keys() < names
    assert len(names) == 4 + 4 + 2
    same = {name: (done.directory / name).read_bytes() for name in before if "SHA256" not in name}
    assert same == {name: data for name, data in before.items() if "SHA256" not in name}


def test_rollback_offers_the_earlier_disk_as_a_later_version(
    world: World, signer: ArchiveSigner
) -> None:
    world.promote("b", "candidate")
    write(world, signer)
    rollback(
        world.place,
        world.store,
        signing.move(
            LINE,
            "candidate",
            signing.signers(world.folder, world.keys[0]),
            by="ana",
            reason="a test",
            now=NOW,
            evidence=signing.unasked,
        ),
    )
    done = write(world, signer)
    assert done.versions == ["20261122.0003"]
    entry = (done.directory / f"{CLASS}_20261122.0003.conf").read_text()
    assert f"title goldnode {CLASS}-{'a' * 12} (20261122.0003)" in entry
    assert {path.name.partition(".")[0] for path in done.directory.iterdir()} == {
        "SHA256SUMS",
        f"{CLASS}_20261122",
    }
    assert len(list(done.directory.iterdir())) == 6


def test_best_before_is_an_empty_file_of_the_signed_list(
    world: World, signer: ArchiveSigner
) -> None:
    done = write(world, signer, best_before=dt.date(2026, 12, 22))
    assert done.sizes["BEST-BEFORE-2026-12-22"] == 0
    done = write(world, signer, best_before=dt.date(2026, 12, 29))
    assert [name for name in done.sizes if "BEST" in name] == ["BEST-BEFORE-2026-12-29"]
    assert not (done.directory / "BEST-BEFORE-2026-12-22").exists()


def test_files_that_another_key_has_signed_are_made_again(
    world: World, signer: ArchiveSigner, tmp_path: Path
) -> None:
    done = write(world, signer)
    other = create(tmp_path / "other", "other")[1]
    with open_signer(str(other), Path()) as second:
        assert sysupdate.signed_sums(done.directory, second.public) == {}
        write(world, second)
        assert len(sysupdate.signed_sums(done.directory, second.public)) == 4
    assert sysupdate.signed_sums(done.directory, signer.public) == {}


def test_damaged_publication_is_refused_and_what_was_there_stays(
    world: World, signer: ArchiveSigner
) -> None:
    done = write(world, signer)
    before = {path.name: path.read_bytes() for path in done.directory.iterdir()}
    world.promote("b", "candidate")
    packed = next(world.directory("b").glob("*.raw.zst"))
    packed.write_bytes(packed.read_bytes()[:-1])
    with pytest.raises(DiskError, match="is altered"):
        write(world, signer)
    assert {path.name: path.read_bytes() for path in done.directory.iterdir()} == before
    assert not list((world.root / ".staging").glob("sysupdate*"))


def test_channel_without_an_image_and_a_disk_without_slots_are_refused(
    world: World, signer: ArchiveSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DiskError, match=r"stable of cpu_node points to nothing.*promote stable"):
        sysupdate.write(world.place, LINE, "stable", history(world), signer)
    monkeypatch.setattr(slot_image, "has_slots", lambda disk: False)
    with pytest.raises(DiskError, match="whose boot loader counts no boots"):
        write(world, signer)


def test_disk_signed_for_secure_boot_is_refused(
    world: World, signer: ArchiveSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"options": "root=PARTLABEL=root-a ro", "linux": "/goldnode/a/unified.efi"}
    monkeypatch.setattr(slot_image, "entry", lambda *given: fields)
    with pytest.raises(DiskError, match="its kernel image names root-a"):
        write(world, signer)


# The node's side


def parsed(text: str) -> dict[str, dict[str, str]]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


FOLLOWED = FollowedChannel("cpu_only", "stable", "https://images.example.net/d/", "20261129.0004")


@pytest.mark.parametrize(
    ("systemd", "suffix"), [(254, "conf"), (256, "conf"), (257, "transfer"), (262, "transfer")]
)
def test_definitions_have_the_names_that_the_release_reads(systemd: int, suffix: str) -> None:
    assert list(definitions(FOLLOWED, systemd)) == [
        # In the order of installation: the entry, which makes a version boot, comes last.
        f"sysupdate.d/50-goldnode-root.{suffix}",
        f"sysupdate.d/60-goldnode-vmlinuz.{suffix}",
        f"sysupdate.d/61-goldnode-initrd.{suffix}",
        f"sysupdate.d/70-goldnode-entry.{suffix}",
        *(
            f"systemd/system/systemd-sysupdate-{name}.service.d/goldnode.conf"
            for name in ("update", "reboot")
            if systemd >= 260
        ),
    ]


def test_definitions_protect_what_runs_and_name_where_things_go() -> None:
    files = {name: parsed(text) for name, text in definitions(FOLLOWED, 257).items()}
    for text in files.values():
        assert text["Transfer"] == {"MinVersion": "20261129.0004", "ProtectVersion": "%A"}
        assert text["Source"]["Path"] == "https://images.example.net/d/cpu_only/sysupdate/stable"
        assert text["Target"]["InstancesMax"] == "2"
    # With the size in its name, a partition is chosen that the root fits.
    assert (
        files["sysupdate.d/50-goldnode-root.transfer"]["Source"]["MatchPattern"]
        == "cpu_only_@v_@s.root.gz"
    )
    assert files["sysupdate.d/50-goldnode-root.transfer"]["Target"] == {
        "InstancesMax": "2",
        "Type": "partition",
        "Path": "auto",
        "MatchPattern": "cpu_only_@v",
        "MatchPartitionType": "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
    }
    assert files["sysupdate.d/70-goldnode-entry.transfer"]["Target"] == {
        "InstancesMax": "2",
        "Type": "regular-file",
        "PathRelativeTo": "boot",
        "Path": "/loader/entries",
        "MatchPattern": "cpu_only_@v+@l-@d.conf cpu_only_@v+@l.conf cpu_only_@v.conf",
        "TriesLeft": "3",
        "TriesDone": "0",
    }


def test_definitions_for_a_release_without_path_relative_to_are_refused() -> None:
    with pytest.raises(DiskError, match="systemd 252 has no PathRelativeTo="):
        definitions(FOLLOWED, 252)


def test_component_has_transfers_of_its_own_and_its_remains_are_removed() -> None:
    followed = FollowedChannel("cpu_only", "stable", "http://x", "1", component="goldnode")
    files = definitions(followed, 262)
    assert [name for name in files if name.startswith("sysupdate.")] == [
        name.replace("sysupdate.d/", "sysupdate.goldnode.d/") for name in definitions(FOLLOWED, 257)
    ]
    drop_in = parsed(files["systemd/system/systemd-sysupdate-update.service.d/goldnode.conf"])
    assert drop_in["Service"] == {
        "ExecStartPre": "-/usr/lib/systemd/systemd-sysupdate vacuum --component=goldnode"
    }


def test_percent_sign_of_an_address_is_no_specifier() -> None:
    followed = FollowedChannel("cpu_only", "stable", "https://example.net/a%20b", "1")
    text = definitions(followed, 257)["sysupdate.d/50-goldnode-root.transfer"]
    assert parsed(text)["Source"]["Path"] == "https://example.net/a%%20b/cpu_only/sysupdate/stable"


def command(world: World, secret: Path, *words: str) -> Result:
    given = [
        "--to",
        str(world.root),
        "--root",
        str(world.trusted),
        "--store",
        str(world.store.root),
    ]
    return CliRunner().invoke(
        main,
        ["disks", "sysupdate", f"{CLASS}:candidate", "--openpgp-key", str(secret), *given, *words],
    )


def test_command_writes_the_directory_and_the_files_of_nodes(
    world: World, secret: Path, tmp_path: Path
) -> None:
    words = [
        "--nodes",
        str(tmp_path / "nodes"),
        "--address",
        "http://images.example.net",
        "--valid-days",
        "30",
    ]
    done = command(world, secret, *words, "--format", "json")
    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout)
    assert (reported["schema"], reported["versions"]) == ("goldnode.sysupdate/1", ["20261122.0001"])
    assert len([name for name in reported["files"] if name.startswith("BEST-BEFORE-")]) == 1
    names = {
        str(path.relative_to(tmp_path / "nodes"))
        for path in (tmp_path / "nodes").rglob("*")
        if path.is_file()
    }
    assert names == {sysupdate.KEYRING, *definitions(FOLLOWED, 257)}
    directory = Path(reported["directory"])
    subprocess.run(
        ["gpgv", "--keyring", tmp_path / "nodes" / sysupdate.KEYRING, directory / "SHA256SUMS.gpg", directory / "SHA256SUMS"],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "nodes"], "--nodes and --address belong together"),
        (
            ["--nodes", "nodes", "--address", "http://x", "--systemd", "252"],
            "has no PathRelativeTo=",
        ),
    ],
)
def test_command_refuses_before_it_writes(
    world: World, secret: Path, words: list[str], message: str
) -> None:
    done = command(world, secret, *words)
    assert done.exit_code != 0
    assert message in done.output
    assert not (world.root / CLASS / "sysupdate").exists()
