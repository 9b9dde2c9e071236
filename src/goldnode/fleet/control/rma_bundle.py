"""The bundle of a ticket: one archive with what a repair needs, the same bytes for the same content.

A gzipped tar with `manifest.json` first: what it is about, the digest of each file, and why a file is missing.
Secrets are removed from every file (goldnode.fleet.shared.secret_texts). Serial numbers stay: the vendor asks
for them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.files import replace_file
from goldnode.fleet.rollout.lines import moment
from goldnode.fleet.shared import secret_texts

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class BundleContent:
    """Content of a bundle. `about`: fields of the manifest. `missing`: name of a file -> why it is not there."""

    name: str
    at: float
    about: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenBundle:
    """A bundle on this machine. `replaced`: places where a secret was removed."""

    file: Path
    sha256: str
    replaced: int


def write(content: BundleContent, directory: Path, secrets: Collection[str] = ()) -> WrittenBundle:
    """Write a bundle as DIRECTORY/NAME.tar.gz, whole or not at all.

    :param secrets: values that goldnode knows, removed wherever they are.
    """
    files, replaced = dict[str, bytes](), dict[str, int]()
    for name, data in sorted(content.files.items()):
        clean = secret_texts.cleaned(data, secrets)
        files[name] = clean.data
        if clean.replaced:
            replaced[name] = clean.replaced
    manifest = {
        "schema": "goldnode.rma-bundle/1",
        "name": content.name,
        "at": moment(content.at),
        **_clean(content.about, secrets),
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        },
        "missing": _clean(dict(sorted(content.missing.items())), secrets),
        "secrets_removed": replaced,
    }
    text = json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    files = {MANIFEST: text.encode(), **files}
    data = _archive(files)
    directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    target = directory / f"{content.name}.tar.gz"
    replace_file(target, data)
    return WrittenBundle(target, hashlib.sha256(data).hexdigest(), sum(replaced.values()))


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return a gzipped tar without times, owners and other traces of this machine."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            row = tarfile.TarInfo(name)
            row.size, row.mode = len(data), 0o644
            archive.addfile(row, io.BytesIO(data))
    return gzip.compress(out.getvalue(), 6, mtime=0)


def _clean(value: Any, secrets: Collection[str]) -> Any:
    """Return a JSON value whose texts have no secrets."""
    if isinstance(value, str):
        return secret_texts.cleaned(value.encode(), secrets).data.decode()
    if isinstance(value, Mapping):
        return {name: _clean(one, secrets) for name, one in value.items()}
    return [_clean(one, secrets) for one in value] if isinstance(value, list) else value
