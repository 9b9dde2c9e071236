"""The builder's signature on the node: what `slot write` demands where the node has keys, and forged streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.images.registries import make_ecdsa_key, make_key
from tests.unit.node.slots.test_slots import IMAGE, Node, listing, node, stream, writing

from goldnode.evidence import signatures
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.slots import builder
from goldnode.node.slots import write as slotwrite

__all__ = ["node", "writing"]  # fixtures

FIELDS = {name: IMAGE[name] for name in builder.SIGNED}
OTHER_ROOT = {"size": 5, "sha256": "0" * 64}


def envelope(key: Path, about: Any = FIELDS, predicate: str = builder.PREDICATE) -> dict[str, Any]:
    """Return what a builder signs for a slot."""
    payload = signatures.statement(
        "cpu-ccc", "sha256:" + "1" * 64, predicate, {"documents": [], "slot": about}
    )
    signed: dict[str, Any] = json.loads(signatures.load_signer(key).sign(payload))
    return signed


def trust(node: Node, *publics: Path) -> None:
    """Put public keys on a node."""
    path = Path(node.root, builder.KEYS.lstrip("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(public.read_bytes() for public in publics))


def write(node: Node, **change: Any) -> dict[str, Any]:
    """Write an image by hand, with a change of its first line."""
    return slotwrite.write(node, stream({**IMAGE, **change}), lambda text: None, True)


@pytest.mark.parametrize("make", [make_key, make_ecdsa_key])
def test_image_that_the_builder_signed_is_written(
    writing: Node, tmp_path: Path, make: Callable[[Path], tuple[Path, Path]]
) -> None:
    key, public = make(tmp_path)
    trust(writing, make_key(tmp_path, "other")[1], public)
    lines: list[str] = []
    slotwrite.write(writing, stream({**IMAGE, "signature": envelope(key)}), lines.append, True)
    assert any("is signed by the builder's key" in line for line in lines)
    assert "goldnode-ccc-b+3.conf" in listing(writing)


def test_node_without_keys_writes_as_before(writing: Node) -> None:
    write(writing, signed=["0" * 16])
    assert "goldnode-ccc-b+3.conf" in listing(writing)


def unsigned(key: Path, thief: Path) -> dict[str, Any]:
    return {"signed": ["0" * 16], "unverified": "a lab"}


def other_key(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(thief)}


def claimed_key(key: Path, thief: Path) -> dict[str, Any]:
    forged = envelope(thief)
    forged["signatures"][0]["keyid"] = signatures.load_signer(key).keyid
    return {"signature": forged}


def other_payload(key: Path, thief: Path) -> dict[str, Any]:
    forged = envelope(key)
    return {"signature": {**forged, "payload": envelope(thief, {**FIELDS, "name": "x"})["payload"]}}


def other_type(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": {**envelope(key), "payloadType": "text/plain"}}


def signed_as_another_type(key: Path, thief: Path) -> dict[str, Any]:
    """A document that the same key signed for another purpose."""
    payload = signatures.payload_of(json.dumps(envelope(key)).encode())
    return {"signature": json.loads(signatures.load_signer(key).sign(payload, "text/plain"))}


def other_predicate(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key, predicate="https://slsa.dev/provenance/v1")}


def older_statement(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key, None)}


def other_root(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key), "root": OTHER_ROOT}


def shell_as_init(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key), "options": f"{IMAGE['options']} init=/bin/sh"}


def other_kernel(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key), "kernel": "6.1.0-1-amd64"}


def other_build(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key), "build_id": "ddd"}


def other_class(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": envelope(key, {**FIELDS, "class": "a100"})}


def no_signatures(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": {**envelope(key), "signatures": []}}


def many_signatures(key: Path, thief: Path) -> dict[str, Any]:
    forged = envelope(key)
    return {"signature": {**forged, "signatures": [{"keyid": "x", "sig": "AA=="}] * 60}}


def text_for_signature(key: Path, thief: Path) -> dict[str, Any]:
    return {"signature": "signed, trust me"}


def deep_payload(key: Path, thief: Path) -> dict[str, Any]:
    data = b"[" * 8000
    return {"signature": json.loads(signatures.load_signer(key).sign(data))}


FORGERIES = (
    (unsigned, "no key of /etc/goldnode/image-keys.pem has signed cpu-ccc"),
    (other_key, "no key of"),
    (claimed_key, "no key of"),
    (other_payload, "no key of"),
    (other_type, "no key of"),
    (signed_as_another_type, "no key of"),
    (other_predicate, "is for something else"),
    (older_statement, "covers no image of a slot"),
    (other_root, "root of cpu-ccc is not what"),
    (shell_as_init, "options of cpu-ccc is not what"),
    (other_kernel, "kernel of cpu-ccc is not what"),
    (other_build, "build_id of cpu-ccc is not what"),
    (other_class, "class of cpu-ccc is not what"),
    (no_signatures, r"its signatures: none"),
    (many_signatures, "no key of"),
    (text_for_signature, "no key of"),
    (deep_payload, "covers no image of a slot"),
)


@pytest.mark.parametrize(("forge", "text"), FORGERIES, ids=[row[0].__name__ for row in FORGERIES])
def test_forged_stream_changes_no_file(
    writing: Node, tmp_path: Path, forge: Callable[[Path, Path], dict[str, Any]], text: str
) -> None:
    (key, public), (thief, _) = make_key(tmp_path), make_key(tmp_path, "thief")
    trust(writing, public)
    change = forge(key, thief)
    before = {path: path.read_bytes() for path in Path(writing.root).rglob("*") if path.is_file()}
    with pytest.raises(NodeError, match=text):
        write(writing, **change)
    assert before == {
        path: path.read_bytes() for path in Path(writing.root).rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----\n"])
def test_file_without_a_key_trusts_nothing(writing: Node, content: bytes) -> None:
    trust(writing)
    Path(writing.root, builder.KEYS.lstrip("/")).write_bytes(content)
    with pytest.raises(NodeError, match="has no public key of"):
        write(writing, unverified="a lab")


def test_keys_that_others_can_change_are_not_believed(writing: Node, tmp_path: Path) -> None:
    key, public = make_key(tmp_path)
    trust(writing, public)
    path = Path(writing.root, builder.KEYS.lstrip("/"))
    path.chmod(0o666)
    with pytest.raises(NodeError, match="is not believed"):
        write(writing, signature=envelope(key))
    path.unlink()
    path.symlink_to("/nowhere")
    with pytest.raises(NodeError, match="is not believed"):
        write(writing, signature=envelope(key))


def test_without_openssl_nothing_is_written(
    writing: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, public = make_key(tmp_path)
    trust(writing, public)
    monkeypatch.setattr("goldnode.node.ground.signature.OPENSSL", "/no/openssl")
    with pytest.raises(NodeError, match="Install openssl"):
        write(writing, signature=envelope(key, {**FIELDS, "name": "cpu-ccc"}))


def test_every_field_that_decides_what_boots_is_signed() -> None:
    # The sender decides the number of tries and why it may be written; the schema is the program's.
    sent = set(IMAGE) - {"schema", "tries", "unverified"}
    assert sent == set(builder.SIGNED)


def test_keys_stay_when_the_node_changes_slots() -> None:
    carried = [row.pattern for row in slotwrite.CARRIED]
    assert any(Path(builder.KEYS).match(pattern) for pattern in carried)
    assert Host("/nonexistent").text(builder.KEYS) is None
