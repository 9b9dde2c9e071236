"""Make one static signed apt repository of files in a mirror's store. apt-ftparchive writes the
indexes, gpg signs, and apt itself judges the result.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import lzma
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from goldnode.core.errors import LockError, MirrorError
from goldnode.core.files import sync
from goldnode.lock.aptroot import AptSource, apt_root
from goldnode.lock.model import Lock, LockedPackage
from goldnode.lock.publication import ARCHIVE, COMPONENT, SUITE
from goldnode.lock.signing import ArchiveSigner
from goldnode.node.ground.openpgp import dearmor
from goldnode.node.ground.optional import group

Row = Mapping[str, Any]


def pool_path(package: LockedPackage) -> str:
    """Return the path of a package in the repository, as Debian has it: no epoch in the file's name."""
    head = package.name[:4] if package.name.startswith("lib") else package.name[:1]
    version = package.version.partition(":")[2] or package.version
    return f"pool/{COMPONENT}/{head}/{package.name}/{package.name}_{version}_{package.architecture}.deb"


def build(
    directory: Path,
    packages: Sequence[LockedPackage],
    source: Callable[[str], Path],
    date: dt.date,
    signer: ArchiveSigner,
) -> list[Row]:
    """Make the repository in the empty `directory`; `source` gives the store's file of a SHA-256. Returns the rows of its record.

    Same packages, same date: same indexes, byte for byte. There is no Valid-Until: what an air gap
    has copied must not end by itself, and what it is protected from, an old index given for a new
    one, cannot be, since a publication's address names its content. Raises MirrorError where a
    package is not what its lock calls it.
    """
    rows: list[Row] = []
    for package in sorted(packages, key=lambda item: (item.name, item.version, item.architecture)):
        pool = pool_path(package)
        (directory / pool).parent.mkdir(parents=True, exist_ok=True)
        # A hard link: publications share the files of the store.
        os.link(source(package.sha256), directory / pool)
        rows.append({**package.model_dump(exclude_none=True), "pool": pool})
    index = _index(directory)
    _compare(index, rows)
    architectures = sorted({row["architecture"] for row in rows} - {"all"}) or ["amd64"]
    for architecture in architectures:
        text = "\n".join(
            f"{stanza}\n"
            for stanza in index
            if _field(stanza, "Architecture") in (architecture, "all")
        ).encode()
        place = directory / f"dists/{SUITE}/{COMPONENT}/binary-{architecture}"
        place.mkdir(parents=True)
        (place / "Packages").write_bytes(text)
        (place / "Packages.xz").write_bytes(lzma.compress(text, preset=6))
    sign(directory, _release(directory, date, architectures), signer)
    return rows


def sign(directory: Path, release: str, signer: ArchiveSigner) -> None:
    """Put the signed Release text in place; a signed one that is there is replaced in one step. Raises SigningKeyError."""
    place = directory / f"dists/{SUITE}"
    with tempfile.TemporaryDirectory(prefix="goldnode-sign-") as name:
        text, signed = Path(name) / "Release", Path(name) / "InRelease"
        text.write_text(release, encoding="utf-8")
        signer.sign(text, signed)
        fresh = place / ".InRelease.new"
        fresh.write_bytes(signed.read_bytes())
    sync(fresh)
    fresh.replace(place / "InRelease")
    sync(place)


def prove(
    directory: Path,
    lock: Lock,
    signer: ArchiveSigner,
    extra: Sequence[LockedPackage] = (),
    without: Sequence[str] = (),
    *,
    status: Path | None = None,
) -> None:
    """Install the lock's stack set with apt, in a temporary root, from this repository alone.

    With `extra`, also install the packages that replace those of `without`. Raises MirrorError if
    apt cannot, or would take other bytes.
    """
    source = AptSource(
        ARCHIVE,
        uri=f"file:{quote(str(directory.resolve()))}",
        suite=SUITE,
        components=(COMPONENT,),
        keyring=dearmor(signer.public),
        fingerprints=(signer.fingerprint,),
    )
    architecture = next(
        (item.architecture for item in lock.packages if item.architecture != "all"), "amd64"
    )
    members = [item for item in lock.packages if item.set == "stack"]
    # Both ways in which nodes install: with DKMS, and with built modules in its place.
    sets = [members]
    if extra:
        sets.append([*(item for item in members if item.name not in without), *extra])
    try:
        with (
            tempfile.TemporaryDirectory(prefix="goldnode-prove-") as name,
            apt_root([source], architecture, Path(name)) as root,
        ):
            if status is not None:
                root.use_status(status)
            root.update()
            for wanted in sets:
                known = {(item.name, item.sha256) for item in [*lock.packages, *extra]}
                downloads = root.resolve([f"{item.name}={item.version}" for item in wanted])
                lacking = {(item.name, item.sha256) for item in wanted} - {
                    (item.name, item.sha256) for item in downloads
                }
                foreign = [item for item in downloads if (item.name, item.sha256) not in known]
                # With a status, apt rightly fetches nothing that is installed already.
                if (lacking and status is None) or foreign:
                    names = ", ".join(
                        sorted({name for name, _ in lacking} | {item.name for item in foreign})[:6]
                    )
                    raise MirrorError(f"apt would not take from it what is locked: {names}")
    except LockError as problem:
        remedy = problem.remedy
        if "apt finds no way" in problem.message:
            remedy = (
                "lock again; a lock that was made with --on STATUS is published with the same --on"
            )
        raise MirrorError(
            f"the repository that was made for stack {lock.stack} does not hold with apt, so it is not published: {problem.message}",
            remedy=remedy,
        ) from problem


def sync_tree(directory: Path) -> None:
    """Flush everything below a directory to disk, except the pool's files, which the store has flushed."""
    for where, _, files in os.walk(directory, topdown=False):
        if f"/pool/{COMPONENT}" not in where:
            for name in files:
                sync(Path(where) / name)
        sync(Path(where))


def wrong_indexes(directory: Path, release: str) -> list[tuple[Path, str]]:
    """Return the indexes that differ from the Release file, each with the difference."""
    wrong = []
    for digest, name in re.findall(r"^ ([0-9a-f]{64})\s+\d+ (\S+)$", release, re.MULTILINE):
        file = directory / f"dists/{SUITE}" / name
        if not file.is_file():
            wrong.append((file, "is not there"))
        elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            wrong.append((file, "has other bytes than the signed Release says"))
    return wrong


def _index(directory: Path) -> list[str]:
    """Return the stanzas of all packages in the pool in a fixed order. apt-ftparchive follows the
    file system's order.
    """
    text = _ftparchive(directory, "packages", "pool")
    return sorted(
        [stanza.strip("\n") for stanza in text.split("\n\n") if stanza.strip()],
        key=lambda stanza: (
            _field(stanza, "Package"),
            _field(stanza, "Version"),
            _field(stanza, "Architecture"),
        ),
    )


def _field(stanza: str, name: str) -> str:
    return group(re.search(rf"^{name}: (.*)$", stanza, re.MULTILINE)) or ""


def _compare(index: Sequence[str], rows: Sequence[Row]) -> None:
    """Compare a lock with the files' own names and versions, because a lock may have been edited."""
    inside = {
        _field(stanza, "SHA256"): tuple(
            _field(stanza, name) for name in ("Package", "Version", "Architecture")
        )
        for stanza in index
    }
    for row in rows:
        reported, in_index = (
            (row["name"], row["version"], row["architecture"]),
            inside.get(row["sha256"]),
        )
        if in_index != reported:
            actual = "no package at all" if in_index is None else " ".join(in_index)
            raise MirrorError(
                f"the lock calls the file with SHA-256 {row['sha256']} {' '.join(reported)}, and it is {actual}",
                remedy="lock again; a lock is not to be edited",
            )


def _release(directory: Path, date: dt.date, architectures: Sequence[str]) -> str:
    when = dt.datetime(date.year, date.month, date.day, tzinfo=dt.UTC)
    fields = {
        "Origin": "goldnode",
        "Label": "goldnode",
        "Suite": SUITE,
        "Codename": SUITE,
        "Components": COMPONENT,
        "Architectures": " ".join(architectures),
        "Date": when.strftime("%a, %d %b %Y %H:%M:%S UTC"),
    }
    options = [
        part
        for name, value in fields.items()
        for part in ("-o", f"APT::FTPArchive::Release::{name}={value}")
    ]
    return _ftparchive(directory, *options, "release", f"dists/{SUITE}")


def _ftparchive(directory: Path, *arguments: str) -> str:
    with tempfile.TemporaryDirectory(prefix="goldnode-ftp-") as name:
        # In place of this machine's apt.conf, which could change the indexes.
        own = Path(name) / "apt.conf"
        own.write_text(f'Dir::Etc "{name}";\nDir::Etc::parts "{name}";\n', encoding="utf-8")
        hashes = [
            part
            for kind in ("MD5", "SHA1", "SHA512")
            for part in ("-o", f"APT::FTPArchive::{kind}=false")
        ]
        try:
            done = subprocess.run(
                ["apt-ftparchive", "-q", *hashes, *arguments],
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC", "APT_CONFIG": str(own)},
            )
        except FileNotFoundError as problem:
            raise MirrorError(
                "apt-ftparchive is not on this machine",
                remedy="install it: apt-get install apt-utils",
            ) from problem
    wrong = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    if done.returncode or wrong:
        raise MirrorError(
            f"apt-ftparchive cannot index the files: {'; '.join(wrong[:3]) or f'exit {done.returncode}'}"
        )
    return done.stdout
