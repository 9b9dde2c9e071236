"""The store: where it is, what it remembers, what it says when it cannot."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from goldnode.core.errors import ImageError
from goldnode.images.store import ImageStore, open_store
from goldnode.oci.layout import MANIFEST, canonical
from goldnode.oci.model import Built


def test_store_is_at_the_argument_then_the_variable_then_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOLDNODE_IMAGES", raising=False)
    assert open_store().root == tmp_path / ".goldnode/images"
    monkeypatch.setenv("GOLDNODE_IMAGES", str(tmp_path / "named"))
    assert open_store().root == tmp_path / "named"
    assert open_store(tmp_path / "given").root == tmp_path / "given"
    assert (tmp_path / "given/oci-layout").is_file()


def test_a_record_counts_while_its_manifest_is_there(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    found = store.layout.put(canonical({"config": {}, "layers": []}), MANIFEST)
    built = Built(
        "cpu-1-base-debian12",
        build_id="0123456789ab",
        recipe="sha256:" + "1" * 64,
        lock="sha256:" + "2" * 64,
        digest=found.digest,
        tools={"zlib": "1"},
        seconds=1.5,
    )
    store.record(built)
    assert store.built() == {"0123456789ab": built}
    store.layout.path(found.digest).unlink()
    assert store.built() == {}


def test_unreadable_record_is_ignored(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    (store.records / "0123456789ab.json").write_text("{")
    (store.records / "0123456789ac.json").write_text(json.dumps({"of": "a later goldnode"}))
    assert store.built() == {}


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ImageStore(tmp_path)
    target = store.cache / "a/b.json"
    store.write(target, b"one")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("goldnode.images.store.os.fsync", full)
    with pytest.raises(ImageError, match=r"No space left on device.*Make room"):
        store.write(target, b"two")
    assert target.read_bytes() == b"one"
    assert [path.name for path in target.parent.iterdir()] == ["b.json"]


def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageError, match=r"the store cannot be written.*--store"):
        ImageStore(tmp_path / "file")


def test_a_lock_is_waited_for_or_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    order: list[str] = []
    with store.lock("x"):
        with pytest.raises(ImageError, match="another run holds"), store.lock("x", wait=False):
            pass
        other = threading.Thread(target=lambda: _hold(store, order))
        other.start()
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def _hold(store: ImageStore, order: list[str]) -> None:
    with store.lock("x"):
        order.append("second")
