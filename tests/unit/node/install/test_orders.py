"""Signed orders and published images, signed with real keys and verified with openssl."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from goldnode.disks import netboot
from goldnode.evidence import signatures
from goldnode.node.follow.repository import ChannelSource
from goldnode.node.follow.trust import Trusted
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.install import orders, published

PLAN = """\
install: 1
address: http://10.0.0.1/disks
network: {interface: eth1, range: [10.0.0.50, 10.0.0.150, 255.255.255.0]}
authorized_keys: [ssh-ed25519 AAAA all]
machines:
  gpu01: {mac: "52-54-00-00-00-01", class: cpu_only, disk: {serial: A}, authorized_keys: [ssh-ed25519 BBBB one]}
  gpu02: {mac: ["52:54:00:00:00:02", "52:54:00:00:00:03"], class: cpu_only, channel: canary, disk: {min_gib: 1}, erase: 4}
"""
NOW = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)


def signer(folder: Path, name: str) -> signatures.EnvelopeSigner:
    key = Ed25519PrivateKey.generate()
    private = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(*private))
    path.chmod(0o600)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / f"{name}.pub").write_bytes(public)
    return signatures.load_signer(path)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., bytes]:
    """Sign the plan. The keys of the installer are those of `own`."""
    (tmp_path / "etc/goldnode").mkdir(parents=True)
    keys = {name: signer(tmp_path, name) for name in ("own", "other")}
    for file in (orders.KEYS, published.KEYS):
        (tmp_path / file.lstrip("/")).write_bytes((tmp_path / "own.pub").read_bytes())
    (tmp_path / "install.yml").write_text(PLAN)
    plan = netboot.load_plan(tmp_path / "install.yml")
    return lambda key="own": netboot.sign_orders(plan, keys[key], NOW)


def read(tmp_path: Path, data: bytes, days: float = 0) -> Any:
    return orders.read(Host(str(tmp_path), live=True), data, NOW.timestamp() + days * 86400)


def test_a_machine_finds_its_order_by_any_of_its_addresses(
    tmp_path: Path, made: Callable[..., bytes]
) -> None:
    known = read(tmp_path, made())
    one = orders.of_machine(known, ["02:00:00:00:00:00", "52:54:00:00:00:01"])
    assert one is not None
    assert (one.node, one.node_class, one.channel, one.disk, one.erase) == (
        "gpu01",
        "cpu_only",
        "stable",
        {"serial": "A"},
        0,
    )
    assert one.seed == {
        "hostname": "gpu01\n",
        "authorized_keys": "ssh-ed25519 AAAA all\nssh-ed25519 BBBB one\n",
    }
    two = orders.of_machine(known, ["52:54:00:00:00:03"])
    assert two is not None
    assert (two.node, two.channel, two.erase) == ("gpu02", "canary", 4)
    assert orders.of_machine(known, ["52:54:00:00:00:09"]) is None
    with pytest.raises(NodeError, match="gpu01 and gpu02 both match this machine"):
        orders.of_machine(known, ["52:54:00:00:00:01", "52:54:00:00:00:02"])


def test_orders_of_another_key_changed_or_expired_are_refused(
    tmp_path: Path, made: Callable[..., bytes]
) -> None:
    with pytest.raises(NodeError, match="no key of the installer has signed the orders"):
        read(tmp_path, made("other"))
    for data in (b"", b"[]", b"{", made().replace(b"payload", b"payloae")):
        with pytest.raises(NodeError, match="no key of the installer has signed"):
            read(tmp_path, data)
    assert read(tmp_path, made(), 29)
    with pytest.raises(NodeError, match="were valid until 2026-12-29"):
        read(tmp_path, made(), 31)


@pytest.mark.parametrize(
    "change",
    [
        {"node": "../x"},
        {"class": 1},
        {"disk": {}},
        {"disk": {"name": "sda"}},
        {"erase": True},
        {"erase": -1},
        {"seed": {"../x": ""}},
    ],
)
def test_an_order_in_another_form_is_refused(change: dict[str, Any]) -> None:
    row = {
        "node": "a",
        "macs": ["m"],
        "class": "c",
        "channel": "stable",
        "disk": {"serial": "x"},
        "erase": 0,
        "seed": {},
    }
    assert orders.of_machine({"machines": [row]}, ["m"])
    with pytest.raises(NodeError, match="another form"):
        orders.of_machine({"machines": [{**row, **change}]}, ["m"])


class FoundVerifier:
    """A channel whose metadata was verified: its target has a digest and a build."""

    def __init__(self, place: Path, digest: str) -> None:
        self.repository, self.digest = ChannelSource(str(place)), digest

    def refresh(self) -> Any:
        return None

    def find(self, trusted: Trusted, name: str) -> Any:
        if name != "cpu_only/disk/stable":
            return None
        return {"hashes": {"sha256": self.digest}, "custom": {"moves": [{"tag": "0123456789ab"}]}}


def test_an_image_is_that_of_its_channel_and_of_its_builder(
    tmp_path: Path, made: Callable[..., bytes]
) -> None:
    folder = tmp_path / "place/cpu_only/0123456789ab"
    folder.mkdir(parents=True)
    esp = {"name": "esp", "start": 1 << 20, "size": 4 << 20}
    manifest = {
        "name": "cpu_only-0123456789ab",
        "layout": "ab",
        "raw": {"size": 10 << 20},
        "partitions": [esp],
    }
    data = json.dumps(manifest).encode()
    digest = hashlib.sha256(data).hexdigest()
    (folder / "disk.json").write_bytes(data)
    sums = {"disk.json": digest, "cpu_only-0123456789ab.raw.zst": "a" * 64}

    def publish(key: str, **more: str) -> None:
        about = {"class": "cpu_only", "build_id": "0123456789ab", **more}
        text = signatures.statement("x", digest, published.PREDICATE, about, sums)
        (folder / published.ENVELOPE).write_bytes(
            signatures.load_signer(tmp_path / f"{key}.pem").sign(text)
        )

    def find(digest: str = digest, channel: str = "stable") -> published.InstalledImage:
        verifier: Any = FoundVerifier(tmp_path / "place", digest)
        return published.find(Host(str(tmp_path), live=True), verifier, "cpu_only", channel)

    publish("own")
    image = find()
    assert (image.path, image.sha256) == (
        "cpu_only/0123456789ab/cpu_only-0123456789ab.raw.zst",
        "a" * 64,
    )
    assert (image.size, image.esp) == (10 << 20, (1 << 20, 4 << 20))
    with pytest.raises(NodeError, match="has no channel canary of class cpu_only"):
        find(channel="canary")
    with pytest.raises(NodeError, match=r"disk.json is not what stable points to"):
        find("b" * 64)
    publish("other")
    with pytest.raises(NodeError, match="has signed cpu_only 0123456789ab"):
        find()
    publish("own", build_id="ffffffffffff")
    with pytest.raises(NodeError, match="is for something else"):
        find()
