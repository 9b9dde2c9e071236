"""Anonymous files: no serial number, address or host name is left in them, and the history of a node stays one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.unit.fleet.ingest.fleet_reports import CLASS, NOW, capture, verdict

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest import inbox
from goldnode.fleet.ingest.anonymous import FleetNames
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.read import connect

NAMES = (
    "gpu07",
    "inventory-name",
    "ring-zurich",
    "GPU-gpu07-3",
    "gpu070",
    "b8:ce:f6:00:00:01",
    "b8cef60300000001",
    "192.0.2.77",
    "nas.example.net",
    "0123456789abcdef0123456789abcdef",
)


def test_no_name_is_left_in_any_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for time in ("2026-11-26T10:00:00Z", "2026-11-26T11:00:00Z"):
        found = capture("gpu07", time)
        found["storage"]["mounts"]["/home"] = {
            "device": "nas.example.net:/home",
            "type": "nfs",
            "options": "addr=192.0.2.77",
        }
        judged = verdict(found)
        judged["findings"][0] |= {
            "subject": "GPU-gpu07-3",
            "got": "b8:ce:f6:00:00:01 on gpu07 by 192.0.2.77",
        }
        inbox.put(
            data,
            "inventory-name",
            {"class": CLASS, "cohort": "ring-zurich", "capture": found, "verdict": judged},
        )
    assert ingest(IngestRequest(data, received=NOW, anonymous=True), NOW).stored == 2
    texts = [
        json.dumps(pq.read_table(file, partitioning=None).to_pylist(), default=str)
        for file in data.rglob("*.parquet")
    ]
    assert len(texts) == 6
    raw = b"".join(file.read_bytes() for file in data.rglob("*.parquet"))
    for name in NAMES:
        assert not [text for text in texts if name in text], name
        assert name.encode() not in raw, name
    connection = connect(data)
    assert connection.execute("SELECT count(*), count(DISTINCT node) FROM nodes").fetchall() == [
        (2, 1)
    ]
    assert connection.execute(
        "SELECT count(DISTINCT item) FROM facts WHERE key = 'gpu.vbios'"
    ).fetchall() == [(8,)]
    assert connection.execute(
        "SELECT count(DISTINCT item) FROM facts WHERE key = 'network.mtu' AND item LIKE '0000:%'"
    ).fetchall() == [(1,)]
    assert (tmp_path / "data.anonymous-key").stat().st_mode & 0o777 == 0o600


def test_another_directory_has_another_key(tmp_path: Path) -> None:
    nodes = set()
    for name in ("a", "b"):
        inbox.put(tmp_path / name, "gpu07", {"class": CLASS, "capture": capture("gpu07")})
        ingest(IngestRequest(tmp_path / name, received=NOW, anonymous=True), NOW)
        nodes |= set(connect(tmp_path / name).execute("SELECT node FROM nodes").fetchall())
    assert len(nodes) == 2


@pytest.mark.parametrize("content", [b"", b"short"])
def test_key_that_was_cut_off_is_refused(tmp_path: Path, content: bytes) -> None:
    """A digest under an empty key is one that anyone can compute from a guessed name."""
    file = FleetNames(tmp_path / "data").file
    file.write_bytes(content)
    with pytest.raises(GoldnodeError, match="key") as caught:
        FleetNames(tmp_path / "data")
    assert caught.value.file == str(file)
    assert caught.value.remedy


def test_key_appears_whole_and_that_of_another_process_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    link = os.link

    def other_first(source: Any, target: Any) -> None:
        seen.append(Path(target).exists())
        Path(target).write_bytes(b"o" * 32)
        link(source, target)

    monkeypatch.setattr(os, "link", other_first)
    names = FleetNames(tmp_path / "data")
    assert seen == [False]
    assert names._key == b"o" * 32
    assert [file.name for file in tmp_path.iterdir()] == [names.file.name]


def test_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    assert stat.S_IMODE(FleetNames(tmp_path / "data").file.stat().st_mode) == 0o600
