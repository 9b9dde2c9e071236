"""A published directory as any HTTP server serves it: sums, index.json, simplestreams."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from goldnode.channels import signed
from goldnode.channels.lines import CHANNELS, History
from goldnode.core.errors import DiskError
from goldnode.core.files import replace_file, sha256_of
from goldnode.disks.contents import digest_of
from goldnode.disks.lines import CLASS_NAME, line_of
from goldnode.disks.model import FORMATS, MANIFEST, SUMS, BuiltDisk
from goldnode.oci.layout import canonical

PREDICATE = "urn:goldnode:disk-publication:1"
ENVELOPE, DETACHED = f"{SUMS}.dsse.json", f"{SUMS}.sig"
STAGING = ".staging"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_BUILD = re.compile(r"[0-9a-f]{12}")
# simplestreams names of the formats: OpenStack's mirror tool reads disk1.img, MAAS the others.
_FTYPES = {
    "qcow2": "disk1.img",
    "raw.zst": "raw.zst",
    "tar": "root.tar.zst",
    "vmlinuz": "boot-kernel",
    "initrd": "boot-initrd",
}


def read_sums(text: str, where: str) -> dict[str, str]:
    """Parse SHA256SUMS into file name -> sha256 (hex). Raises DiskError for an invalid line."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        sha256, gap, name = line.partition("  ")
        if (
            not gap
            or re.fullmatch(r"[0-9a-f]{64}", sha256) is None
            or _NAME.fullmatch(name) is None
        ):
            raise DiskError(
                f"line {number} of {SUMS} is not a checksum: {line[:80]!r}",
                file=where,
                line=number,
                remedy="publish the disk again",
            )
        sums[name] = sha256
    return sums


def check_published(directory: Path) -> dict[str, str]:
    """Validate every file of a published build against its SHA256SUMS, and return the sums.

    Raises DiskError for the first file that differs.
    """
    try:
        sums = read_sums((directory / SUMS).read_text(encoding="utf-8"), str(directory / SUMS))
    except OSError as problem:
        raise DiskError(
            f"{SUMS} cannot be read: {problem.strerror}",
            file=directory,
            remedy="publish the disk again",
        ) from problem
    if MANIFEST not in sums:
        raise DiskError(
            f"{SUMS} does not name {MANIFEST}", file=directory, remedy="publish the disk again"
        )
    for name, sha256 in sums.items():
        path = directory / name
        if not path.is_file():
            raise DiskError(
                f"{name} is named by {SUMS}, and is not there",
                file=directory,
                remedy="publish the disk again",
            )
        if (got := sha256_of(path)) != sha256:
            raise DiskError(
                f"{name} is altered: its sha256 is {got[:16]}…, {SUMS} says {sha256[:16]}…",
                file=directory,
                remedy="find out who did; delete this directory, and publish the disk again",
            )
    return sums


def refresh(root: Path) -> None:
    """Regenerate index.json and the simplestreams of a location from the published builds.

    Each file is replaced atomically.

    They are derived data and not signed. Trust comes from the signed channels and a build's SHA256SUMS.
    """
    channels = signed.unverified(signed.read_folder(root / signed.FOLDER))
    classes: dict[str, Any] = {}
    products: dict[str, Any] = {}
    for place in sorted(
        path for path in root.iterdir() if path.is_dir() and CLASS_NAME.fullmatch(path.name)
    ):
        disks: dict[str, tuple[BuiltDisk, dict[str, str]]] = {}
        for path in sorted(place.glob(f"*/{MANIFEST}")):
            if _BUILD.fullmatch(path.parent.name):
                # Do not offer an unreadable build. `status` and `gc` report it.
                with suppress(DiskError):
                    sums = read_sums(
                        (path.parent / SUMS).read_text(encoding="utf-8"), str(path.parent)
                    )
                    disks[f"sha256:{sha256_of(path)}"] = (BuiltDisk.load(path.parent), sums)
        history = channels.history(line_of(place.name))
        rows = {disk.build_id: _row(disk, sums) for disk, sums in disks.values()}
        current: dict[str, str] = {}
        for channel in CHANNELS:
            last = history.current(channel)
            if last is None or last.now not in disks:
                continue
            current[channel] = last.tag
            name = f"io.goldnode:{place.name}:{channel}"
            products[name] = _product(place.name, channel, history, disks)
        if rows or current:
            classes[place.name] = {"builds": rows, "channels": current}
    replace_file(
        root / "index.json",
        canonical({"schema": 1, "format": "goldnode.disks", "classes": classes}),
    )
    file = "streams/v1/disks.json"
    content_id = "io.goldnode:disks"
    stream = {
        "format": "products:1.0",
        "content_id": content_id,
        "datatype": "image-downloads",
        "products": products,
    }
    replace_file(root / file, canonical(stream))
    row = {
        "format": "products:1.0",
        "datatype": "image-downloads",
        "path": file,
        "products": sorted(products),
    }
    replace_file(
        root / "streams/v1/index.json",
        canonical({"format": "index:1.0", "index": {content_id: row}}),
    )


def _row(disk: BuiltDisk, sums: Mapping[str, str]) -> dict[str, Any]:
    place = f"{disk.class_}/{disk.build_id}"
    return {
        "name": disk.name,
        "digest": digest_of(disk),
        "os": f"{disk.os.id} {disk.os.version}",
        "architecture": disk.os.architecture,
        "kernel": disk.kernel,
        "driver": None if disk.driver is None else disk.driver.version,
        "simulated": disk.simulated,
        "raw": {"size": disk.raw.size, "sha256": disk.raw.sha256},
        "path": place,
        "files": {
            name: {
                "path": f"{place}/{name}",
                "sha256": sha256,
                "size": (disk.directory / name).stat().st_size,
            }
            for name, sha256 in sorted(sums.items())
            if (disk.directory / name).is_file()
        },
    }


def move_versions(history: History) -> dict[int, str]:
    """Return the version of each move of a line by its number: DAY.NUMBER, which is higher for each later move.

    Clients take the highest version. The day never goes back, even if the clock of a signer was wrong.
    """
    days = accumulate((entry.date[:10].replace("-", "") for entry in history.entries), max)
    return {
        entry.number: f"{day}.{entry.number:04d}"
        for entry, day in zip(history.entries, days, strict=True)
    }


def _product(
    name: str, channel: str, history: History, disks: Mapping[str, tuple[BuiltDisk, dict[str, str]]]
) -> dict[str, Any]:
    """Return one product of simplestreams: a channel of a class.

    Its newest version is the current target of the channel. Versions that were rolled back are omitted.
    """
    versions: dict[str, Any] = {}
    numbers = move_versions(history)
    newest: BuiltDisk | None = None
    for entry in history.stack(channel):
        if entry.now not in disks:
            continue
        newest, sums = disks[entry.now]
        items = {}
        for form, kind in _FTYPES.items():
            file = newest.name + FORMATS[form]
            if file in sums and (newest.directory / file).is_file():
                path = f"{newest.class_}/{newest.build_id}/{file}"
                items[kind] = {
                    "ftype": kind,
                    "path": path,
                    "sha256": sums[file],
                    "size": (newest.directory / file).stat().st_size,
                }
        versions[numbers[entry.number]] = {
            "items": items,
            "label": channel,
            "pubname": newest.name,
            "build_id": newest.build_id,
        }
    assert newest is not None  # noqa: S101 - the channel stands for a disk that is there
    return {
        "arch": newest.os.architecture,
        "os": newest.os.id,
        "release": newest.os.codename,
        "release_title": newest.os.version,
        "version": newest.os.version,
        "variant": name,
        "label": channel,
        "aliases": f"{name},{name}/{channel}" if channel == "stable" else f"{name}/{channel}",
        "supported": channel in ("stable", "known-good"),
        "versions": versions,
    }


@contextlib.contextmanager
def full(root: Path) -> Iterator[None]:
    """Turn the OSError of a full or read-only directory into a DiskError with a remedy."""
    import errno

    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            why, remedy = (
                "is full",
                "free space there (`goldnode disks gc --to`), and run it again: what was published before "
                "is untouched",
            )
        elif problem.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            why, remedy = "cannot be written", "mount it writable, or run it as who owns it"
        else:
            raise
        raise DiskError(f"{root} {why}", remedy=remedy) from None
