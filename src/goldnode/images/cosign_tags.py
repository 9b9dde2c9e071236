"""The tags by which cosign 2 finds signatures and attestations: `sha256-….sig` and `sha256-….att`.

Each is a manifest whose layers are the signatures or attestations. goldnode derives it from the
referrers of the image, and leaves layers of other signers there. cosign adds its own to the same
manifest. A registry has no compare-and-set, so of two concurrent writers one may remove the other's
layers, and then restores them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from goldnode.core.errors import ImageError
from goldnode.evidence import cosign
from goldnode.oci.layout import CONFIG, MANIFEST, Descriptor, Layout, canonical, digest_of
from goldnode.oci.registry import Repository, referrers_tag

SUFFIXES = ("sig", "att")


def push_tags(layout: Layout, digest: str, target: Repository) -> None:
    """Write both tags of an image, if it has signatures or attestations. Raises ImageError."""
    signed, attested = [], []
    for _, manifest in layout.attached(digest, cosign.SIGNATURE):
        signed.append(manifest["layers"][0])
    for _, manifest in layout.attached(digest, cosign.BUNDLE):
        envelope = cosign.envelope_of(layout.read(manifest["layers"][0]["digest"]))
        kind = (manifest.get("annotations") or {}).get(cosign.PREDICATE, "")
        noted = {cosign.ANNOTATION: "", "predicateType": kind}
        row = _push(target, envelope, cosign.ENVELOPE)
        attested.append({**row.document(), "annotations": noted})
    for suffix, rows in zip(SUFFIXES, (signed, attested), strict=True):
        if rows:
            _write(target, f"{referrers_tag(digest)}.{suffix}", rows)


def _push(target: Repository, data: bytes, media_type: str) -> Descriptor:
    descriptor = Descriptor(media_type, digest_of(data), len(data))
    with tempfile.NamedTemporaryFile(prefix="goldnode-cosign-") as file:
        file.write(data)
        file.flush()
        target.push_blob(descriptor, Path(file.name))
    return descriptor


def _write(target: Repository, tag: str, rows: list[dict[str, Any]]) -> None:
    """Ensure that `rows` are among the layers of a tag, and read that back."""
    for turn in range(target.registry.tries):
        # Read again in each turn: cosign may have added a layer meanwhile.
        have = layers(target, tag)
        missing = [row for row in rows if row not in have]
        if not missing:
            return
        # Back off, so that the other writer can finish.
        if turn:
            time.sleep(target.registry.pause * turn)
        merged = [*have, *missing]
        config = canonical(
            {
                "architecture": "",
                "os": "",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [row["digest"] for row in merged]},
            }
        )
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _push(target, config, CONFIG).document(),
            "layers": merged,
        }
        target.put_manifest(tag, canonical(manifest), MANIFEST)
    # Read back: the last turn may have lost the race.
    if any(row not in layers(target, tag) for row in rows):
        raise ImageError(
            f"signatures of {target}:{tag} are not there after they were written",
            remedy="publish again when no other process signs this image",
        )


def layers(target: Repository, tag: str) -> list[dict[str, Any]]:
    """Return the layers of such a tag; empty without it. Raises ImageError if it is something else."""
    manifest = target.manifest(tag)
    if manifest is None:
        return []
    rows = manifest.document.get("layers")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ImageError(
            f"{target}:{tag} has no signatures of cosign",
            remedy="delete that tag, and publish again",
        )
    return rows


def simple_signatures(target: Repository, digest: str) -> list[tuple[bytes, str]]:
    """Return payloads and signatures (base64) that cosign or goldnode attached to an image by tag."""
    signatures = []
    for row in layers(target, f"{referrers_tag(digest)}.sig"):
        if row.get("mediaType") == cosign.PAYLOAD:
            # The signature is in the annotation, the payload that it signs is the blob.
            value = str((row.get("annotations") or {}).get(cosign.ANNOTATION, ""))
            signatures.append((target.read_blob(Descriptor.of(row), limit=1 << 20), value))
    return signatures
