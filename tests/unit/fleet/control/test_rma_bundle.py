"""The bundle of a ticket: the same bytes for the same content, a digest for each file, and no secret."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from goldnode.fleet.control import rma_bundle
from goldnode.fleet.control.rma_bundle import BundleContent
from goldnode.fleet.shared.secret_texts import REPLACED, cleaned

CANARY = "canary-7f3a9c51d2"
FILES = {
    "rungs/a/kernel.log": b"NVRM: Xid (PCI:0000:18:00): 79\n",
    "vendor/nvidia-bug-report.log.gz": gzip.compress(f"env: MY_TOKEN={CANARY}\n".encode(), mtime=5),
}


def content(**more: bytes) -> BundleContent:
    return BundleContent(
        "gn-1", 1_795_687_200.0, {"node": "n1", "simulated": True}, {**FILES, **more}, {"x": "gone"}
    )


def unpacked(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {row.name: archive.extractfile(row).read() for row in archive}  # type: ignore[union-attr]


def test_same_content_is_the_same_archive(tmp_path: Path) -> None:
    first = rma_bundle.write(content(), tmp_path / "a")
    reordered = BundleContent("gn-1", 1_795_687_200.0, {"simulated": True, "node": "n1"},
                              dict(reversed(FILES.items())), {"x": "gone"})  # fmt: skip
    second = rma_bundle.write(reordered, tmp_path / "b")
    assert first.sha256 == second.sha256 == hashlib.sha256(first.file.read_bytes()).hexdigest()
    with tarfile.open(first.file) as archive:
        rows = archive.getmembers()
    assert rows[0].name == "manifest.json"
    assert {(row.mtime, row.uid, row.uname) for row in rows} == {(0, 0, "")}


def test_manifest_has_each_file_with_its_digest_and_what_is_missing(tmp_path: Path) -> None:
    files = unpacked(rma_bundle.write(content(), tmp_path).file)
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    assert manifest["missing"] == {"x": "gone"}
    assert manifest["secrets_removed"] == {"vendor/nvidia-bug-report.log.gz": 1}
    assert (manifest["at"], manifest["simulated"]) == ("2026-11-26T10:00:00Z", True)


@pytest.mark.parametrize(
    "line",
    [
        f"mysqld --user=x --password={CANARY}",
        f"curl --token {CANARY} https://x",
        f"DB_PASSWORD={CANARY} ./job",
        f'"api_key": "{CANARY}"',
        f"secret: {CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"wget https://kim:{CANARY}@host/file",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"passphrase = '{CANARY}'",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_planted_secret_is_nowhere_in_the_bundle(tmp_path: Path, line: str, packed: bool) -> None:
    data = f"before\n{line}\nafter \xff\n".encode("latin-1")
    written = rma_bundle.write(content(log=gzip.compress(data) if packed else data), tmp_path)
    files = unpacked(written.file)
    log = gzip.decompress(files["log"]) if packed else files["log"]
    assert CANARY.encode() not in log
    assert REPLACED.encode() in log
    assert log.startswith(b"before\n")
    assert CANARY.encode() not in b"".join(files.values())


def test_known_secret_is_removed_wherever_it_is(tmp_path: Path) -> None:
    plain = f"the operator typed {CANARY} into a shell".encode()
    assert CANARY.encode() in cleaned(plain).data  # nothing marks it as one
    files = unpacked(rma_bundle.write(content(log=plain), tmp_path, [CANARY, "short"]).file)
    assert CANARY.encode() not in b"".join(files.values())


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.",
        "serial: 1650022012345 uuid: GPU-6d8c1f2e-0000-0000-0000-000000000001",
        '{"tokens": {"password_policy": []}, "secrets": [1]}',
        "bypass=1 compass: 2 pcie_aspm=off",
    ],
)
def test_log_without_secrets_stays_as_it_is(text: str) -> None:
    assert cleaned(text.encode()).data == text.encode()


def test_damaged_compressed_file_is_not_passed_on() -> None:
    data = gzip.compress(f"password={CANARY}".encode())[:-9]
    assert b"cannot be searched" in cleaned(data).data


def test_long_line_takes_no_time_that_grows_with_its_square() -> None:
    import time

    began = time.process_time()
    cleaned(b"a.b- -token-" * 20_000)
    assert time.process_time() - began < 5


def test_archive_is_read_by_tar(tmp_path: Path) -> None:
    file = rma_bundle.write(content(), tmp_path).file
    assert io.BytesIO(gzip.decompress(file.read_bytes())).read(257 + 5)[257:] == b"ustar"
