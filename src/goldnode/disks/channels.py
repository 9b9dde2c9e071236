"""Channels of disk images: the gates that a disk must pass, and the places that hold channels.

A place is a local store or a published directory. Histories, promotions and rollbacks are those of container
images (`goldnode.images.channels`). A line is a node class, an immutable tag is a build id, and a digest is
that of the build's manifest. Unlike a registry, a directory has a lock that excludes other writers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from goldnode.channels.history import CHANNELS, History, Line
from goldnode.channels.requirements import (
    NOT_CHECKED,
    Approval,
    Gate,
    Waiver,
    check_asked,
    checked,
    major,
    order,
    waived,
)
from goldnode.core.errors import DiskError, ImageError
from goldnode.core.files import replace_file, sha256_of
from goldnode.disks import evidence
from goldnode.disks.contents import digest_of
from goldnode.disks.model import MANIFEST, BuiltDisk, builds
from goldnode.evidence import signatures
from goldnode.images import channels as moves
from goldnode.oci.layout import canonical

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.evidence.signatures import Signer
    from goldnode.images.channels import Moved, Say

COMMAND = "goldnode disks"
HISTORY = "history.jsonl"
CLASS_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
MAJORS = ("kernel", "driver")
BOOTS = 2

# Gates of each step, in the order of the report. A step includes the gates of the previous one.
_BASE = ("built", "hygiene", "booted", "inspection", "signature")
_CANARY = (*_BASE, "sbom", "provenance")
_STABLE = (*_CANARY, "vulnerabilities")
ASKED: Mapping[str, tuple[str, ...]] = {
    "publish": _BASE,
    "candidate": _BASE,
    "canary": (*_CANARY, "order", "majors"),
    "stable": (*_STABLE, "order", "majors"),
    "known-good": (*_STABLE, "order", "majors"),
}

# Written after publication, so promotions require them and `publish` does not.
LATER = ("sbom", "provenance", "vulnerabilities")

_REMEDY = {
    "booted": "boot it: `goldnode disks verify`",
    "inspection": "`goldnode disks evidence` inspects it",
    "signature": "sign it with `goldnode disks evidence --key`, and name the public key with --trust",
    "sbom": "`goldnode disks evidence` writes it",
    "provenance": "`goldnode disks evidence` writes it",
    "vulnerabilities": "`goldnode disks evidence --database` writes it from a database that you give",
}


@dataclass(frozen=True)
class ClassLine(Line):
    """A line of images that users follow: a node class."""

    def __str__(self) -> str:
        return self.repository


def line_of(name: str) -> ClassLine:
    """Return the line of a class. Raises DiskError if `name` is not a valid class name."""
    if CLASS_NAME.fullmatch(name) is None:
        raise DiskError(
            f'"{name}" is no name of a class', remedy="write it as the catalog does, as in cpu_only"
        )
    return ClassLine(name, "disk")


# Gates


def judge(
    step: str,
    disk: BuiltDisk,
    *,
    trust: Sequence[SSlibKey] = (),
    waivers: Sequence[Waiver] = (),
    approvals: Sequence[Approval] = (),
    history: History | None = None,
    against: BuiltDisk | None = None,
    lost: str = "",
    only: Sequence[str] | None = None,
) -> list[Gate]:
    """Return the result of each gate of a step for a disk.

    `against` is the disk that the channel points to now, `lost` the reason why it cannot be read. `only`
    restricts the gates.

    Evidence that is absent, unreadable, unverified or about another disk never counts as passed. Raises
    ImageError for a waiver or an approval that this step does not ask for.
    """
    asked = ASKED[step]
    check_asked(step, asked, waivers, approvals, MAJORS)
    found: list[Gate] = []
    for name in asked if only is None else only:
        if name == "majors":
            found += _majors(disk, against, lost, approvals)
            continue
        gate = order(step, digest_of(disk), history) if name == "order" else _GATES[name](disk, trust)
        found.append(waived(gate, waivers))
    return found


def _built(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    remedy = "build it again, or pull it"
    here = [row.format for row in disk.files if (disk.directory / row.file).is_file()]
    if disk.name != f"{disk.class_}-{disk.build_id}" or not here:
        why = (
            "no file of it is here"
            if not here
            else f"it is called {disk.name}, and is build {disk.build_id} of {disk.class_}"
        )
        return Gate("built", "failed", why, remedy=remedy)
    try:
        evidence.check_files(disk, here)
    except DiskError as problem:
        return Gate("built", "failed", problem.message, remedy=remedy)
    simulated = "; its class is simulated" if disk.simulated else ""
    return Gate("built", "passed", f"{', '.join(here)}: as the manifest says{simulated}", (digest_of(disk),))


def _hygiene(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    bad = [row for row in disk.hygiene if row.outcome not in ("passed", "waived")]
    if not disk.hygiene:
        return Gate("hygiene", "missing", "the manifest has no hygiene checks", remedy="build it again")
    if bad:
        why = "; ".join(f"{row.check}: {row.detail}" for row in bad)
        return Gate("hygiene", "failed", why, remedy="mend what is in the root, and build it again")
    let = [row.check for row in disk.hygiene if row.outcome == "waived"]
    said = f"{len(disk.hygiene)} checks" + (f", waived by the definition: {', '.join(let)}" if let else "")
    return Gate("hygiene", "passed", said, (digest_of(disk),))


def _booted(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    path = evidence.document(disk, "verified")
    data = _json(path)
    if data is None and not path.is_file():
        return Gate(
            "booted", "missing", "it was never booted: there is no record of it", remedy=_REMEDY["booted"]
        )
    proof = (f"sha256:{sha256_of(path)}",)

    def shut(why: str) -> Gate:
        return Gate("booted", "failed", why, proof, _REMEDY["booted"])

    if not isinstance(data, dict):
        return shut("the record of its boots cannot be read")
    for name, wanted in (("name", disk.name), ("build_id", disk.build_id), ("raw_sha256", disk.raw.sha256)):
        if data.get(name) != wanted:
            return shut(
                f"the record of boots is about another disk: {name} is {data.get(name)}, expected {wanted}"
            )
    after = data.get("raw_sha256_after", disk.raw.sha256)
    if after != disk.raw.sha256:
        return shut(f"the disk was not the same after it was booted: {after}")
    boots = data.get("boots")
    boots = boots if isinstance(boots, list) else []
    checks = [
        check
        for boot in boots
        if isinstance(boot, dict)
        for check in boot.get("checks", [])
        if isinstance(check, dict)
    ]
    checks += [check for check in data.get("clones", []) if isinstance(check, dict)]
    wrong = [check for check in checks if check.get("outcome") not in ("passed", "not-verifiable")]
    if wrong:
        row = wrong[0]
        return shut(
            f"{row.get('id')}: expected {row.get('expected')}, got {row.get('got')}" + _more(len(wrong) - 1)
        )
    if data.get("outcome") != "passed":
        return shut(f"the outcome of its boots is {data.get('outcome')}, expected passed")
    # A boot with simulated GPUs proves nothing about the disk without them.
    real = [boot for boot in boots if isinstance(boot, dict) and not boot.get("simulated")]
    good = [
        boot for boot in real if any(check.get("outcome") == "passed" for check in boot.get("checks", []))
    ]
    if len(good) < BOOTS:
        return shut(f"it was booted {len(good)} times, expected {BOOTS}")
    open_ = sorted({str(check.get("id")) for check in checks if check.get("outcome") == "not-verifiable"})
    told = [f"booted {len(good)} times ({data.get('accelerator', 'accelerator not stated')})"]
    told += [f"not verifiable here: {', '.join(open_)}"] if open_ else []
    told += ["the hardware in it was simulated"] if data.get("simulated_hardware") else []
    return Gate("booted", "passed", "; ".join(told), proof)


def _more(number: int) -> str:
    return f", and {number} more" if number > 0 else ""


def _inspection(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    gate = _present("inspection", ("inspection",), disk)
    if not gate.open:
        return gate
    data = _json(evidence.document(disk, "inspection"))
    if not isinstance(data, dict) or data.get("raw_sha256") != disk.raw.sha256:
        return Gate(
            "inspection",
            "failed",
            "the inspection is about another disk",
            gate.evidence,
            _REMEDY["inspection"],
        )
    if data.get("passed") is not True:
        return Gate(
            "inspection",
            "failed",
            f"the inspection says: {evidence.refused(data)}",
            gate.evidence,
            "mend it, and build it again",
        )
    return Gate("inspection", "passed", f"nothing in it is foreign to {data.get('backend')}", gate.evidence)


def _signature(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    path = evidence.document(disk, "signature")
    if not path.is_file():
        return Gate("signature", "missing", "it is not signed", remedy=_REMEDY["signature"])
    proof = (f"sha256:{sha256_of(path)}",)
    if not trust:
        why = "it is signed, and no key to verify it with was given"
        return Gate("signature", "not_verified", why, proof, "name the public key with --trust")
    found = evidence.authenticate(disk, trust, content=False)
    bad = next((row for row in found.rows if row.state in ("refused", "not_verified")), None)
    if bad is not None:
        return Gate(
            "signature",
            "failed",
            f"{bad.what}: {bad.detail}",
            proof,
            "sign it anew: `goldnode disks evidence --key`",
        )
    row = next(row for row in found.rows if row.what == "signature")
    return Gate("signature", "passed", f"signed, with its documents, {row.detail}", proof)


def _present(name: str, kinds: Sequence[str], disk: BuiltDisk) -> Gate:
    proof: list[str] = []
    for kind in kinds:
        path = evidence.document(disk, kind)
        if not path.is_file():
            return Gate(name, "missing", f"there is no {path.name}", tuple(proof), _REMEDY[name])
        proof.append(f"sha256:{sha256_of(path)}")
        if not isinstance(_json(path), dict):
            return Gate(name, "failed", f"{path.name} cannot be read", tuple(proof), _REMEDY[name])
    return Gate(
        name, "passed", f"{' and '.join(kinds)} {'is' if len(kinds) == 1 else 'are'} there", tuple(proof)
    )


def _vulnerabilities(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    gate = _present("vulnerabilities", ("vulnerabilities",), disk)
    if not gate.open:
        return gate
    if not checked(_json(evidence.document(disk, "vulnerabilities"))):
        return Gate("vulnerabilities", "not_run", NOT_CHECKED, gate.evidence, _REMEDY["vulnerabilities"])
    return Gate("vulnerabilities", "passed", "a report is there; its findings are not judged", gate.evidence)


def _sbom(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    return _present("sbom", ("cyclonedx", "spdx"), disk)


def _provenance(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    return _present("provenance", ("provenance",), disk)


_GATES = {
    "built": _built,
    "hygiene": _hygiene,
    "booted": _booted,
    "inspection": _inspection,
    "signature": _signature,
    "sbom": _sbom,
    "provenance": _provenance,
    "vulnerabilities": _vulnerabilities,
}


def _json(path: Path) -> Any:
    try:
        return json.loads(signatures.payload_of(path.read_bytes()))
    except (OSError, ValueError, ImageError):
        return None


def _majors(
    disk: BuiltDisk, against: BuiltDisk | None, lost: str, approvals: Sequence[Approval]
) -> list[Gate]:
    """Return one gate for each of kernel and driver whose series differs from that of the previous disk, or
    that is gone.
    """
    if against is None and not lost:
        return [Gate("majors", "passed", "the channel leads to no other disk yet")]
    found: list[Gate] = []
    new = series(disk)
    old = {} if against is None else series(against)
    for part in MAJORS:
        if against is not None and (part not in old or old[part] == new.get(part)):
            continue  # an addition breaks no user of the channel
        why = (
            f"{part} goes from {old[part]} to {new.get(part, 'none')}"
            if against
            else f"whether {part} has another series cannot be told: {lost}"
        )
        found.append(major(part, why, approvals))
    return found or [Gate("majors", "passed", "kernel and driver keep their series")]


def series(disk: BuiltDisk) -> dict[str, str]:
    """Return the series of kernel and driver that programs and modules depend on: 6.1 of
    6.1.0-53-cloud-amd64, 535 of 535.309.01.
    """
    found = {"kernel": ".".join(disk.kernel.split("-")[0].split(".")[:2])}
    return found | ({"driver": disk.driver.version.split(".")[0]} if disk.driver is not None else {})


# Where channels are


class ChannelStore:
    """Channel data of a store of disks: cached histories, and the last known target of each channel.

    It only reads the builds of `goldnode.disks.store.Store`. It creates nothing until a name is set.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def cache(self) -> Path:
        """Return the directory of cached evidence, which can be recomputed."""
        return self.root / "cache/evidence"

    def name_as(self, name: str, digest: str) -> None:
        path = self._file(name)
        if self.disk(digest) is not None:
            replace_file(path, digest.encode() + b"\n")
        else:
            path.unlink(missing_ok=True)

    def named(self, name: str) -> str | None:
        """Return the digest that a name points to."""
        try:
            return self._file(name).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    def _file(self, name: str) -> Path:
        return self.root / "channels/names" / quote(name, safe="")

    def disk(self, digest: str, class_: str | None = None) -> BuiltDisk | None:
        """Return the build with this manifest digest, or None if the store lacks it."""
        return next((disk for disk in builds(self.root, class_) if digest_of(disk) == digest), None)


class StorePlace(moves.KeptPlace):
    """A local store as the home of channels, or as the cached copy of a published directory."""

    command = COMMAND

    def __init__(self, store: ChannelStore, name: str = "store") -> None:
        super().__init__(store, name)
        self.store = store

    def pointer(self, line: Line, channel: str) -> str | None:
        return self.store.named(moves.local_name(self.name, line, channel))

    def published(self, line: Line, tag: str) -> str | None:
        found = self.find(line, tag)
        return None if found is None else digest_of(found)

    def find(self, line: Line, tag: str) -> BuiltDisk | None:
        """Return a build of the class by its id, or None."""
        path = self.store.root / "built" / line.repository / tag
        return BuiltDisk.load(path) if (path / MANIFEST).is_file() else None

    def disk(self, line: Line, digest: str) -> BuiltDisk:
        """Return a build by its digest. Raises DiskError if the store lacks it."""
        found = self.store.disk(digest, line.repository)
        if found is None:
            raise DiskError(
                f"{line.repository} {digest[:19]} is not in {self.store.root}",
                remedy="pull it where its place can be reached",
            )
        return found

    def whole(self, line: Line, digest: str) -> None:
        disk = self.disk(line, digest)
        evidence.check_files(
            disk, [row.format for row in disk.files if (disk.directory / row.file).is_file()]
        )

    def lines(self, repository: str) -> list[Line]:
        return [line_of(line.repository) for line in super().lines(repository)]


class DirectoryPlace:
    """A published directory.

    With `store` and `signer` a rollback can upload a disk again that is gone from the directory.
    """

    command = COMMAND
    copy = False

    def __init__(self, root: Path, store: ChannelStore, signer: Signer | None = None) -> None:
        self.root, self.store, self.signer = root.absolute(), store, signer
        self.name = str(self.root)
        if not self.root.is_dir():
            raise DiskError(
                f"{root} is no directory to publish to", remedy="make it, or mount what it lies on"
            )

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the directory's lock: one writer at a time, on any machine. Others wait."""
        staging = self.root / ".staging"
        staging.mkdir(exist_ok=True)
        with (staging / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def channels(self, line: Line) -> Path:
        """Return the directory of the channels of a class."""
        return self.root / line.repository / "channels"

    def text(self, line: Line) -> bytes:
        try:
            return (self.channels(line) / HISTORY).read_bytes()
        except FileNotFoundError:
            return b""

    def commit(self, line: Line, text: bytes) -> None:
        with full(self.root):
            replace_file(self.channels(line) / HISTORY, text)

    def pointer(self, line: Line, channel: str) -> str | None:
        try:
            found = json.loads((self.channels(line) / f"{channel}.json").read_bytes())
            return str(found["digest"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return "unreadable"

    def point(self, line: Line, channel: str, digest: str) -> None:
        from goldnode.disks.publish import refresh

        disk = self.disk(line, digest)
        script = disk.directory / f"{disk.name}.ipxe"
        chain = self.channels(line) / f"{channel}.ipxe"
        document = {
            "schema": 1,
            "class": disk.class_,
            "channel": channel,
            "build_id": disk.build_id,
            "name": disk.name,
            "digest": digest,
        }
        with full(self.root):
            if script.is_file():
                replace_file(chain, f"#!ipxe\nchain --replace ../{disk.build_id}/{script.name}\n".encode())
            else:
                chain.unlink(missing_ok=True)
            pointer = canonical({**document, "path": f"{disk.class_}/{disk.build_id}"})
            replace_file(self.channels(line) / f"{channel}.json", pointer)
            refresh(self.root)

    def published(self, line: Line, tag: str) -> str | None:
        path = self.root / line.repository / tag
        return digest_of(BuiltDisk.load(path)) if (path / MANIFEST).is_file() else None

    def disk(self, line: Line, digest: str) -> BuiltDisk:
        """Return a published build by its digest. Raises DiskError if the directory lacks it."""
        for path in sorted((self.root / line.repository).glob(f"*/{MANIFEST}")):
            if "sha256:" + sha256_of(path) == digest:
                return BuiltDisk.load(path.parent)
        raise DiskError(
            f"{self.root}/{line.repository} has no build {digest[:19]}",
            remedy="publish it again: goldnode disks publish",
        )

    def whole(self, line: Line, digest: str) -> None:
        from goldnode.disks.publish import check_published

        check_published(self.disk(line, digest).directory)

    def lines(self, repository: str) -> list[Line]:
        return [line_of(repository)] if (self.root / repository / "channels" / HISTORY).is_file() else []

    def classes(self) -> list[str]:
        """Return every class that has a build or a history."""
        found = {path.parent.parent.name for path in self.root.glob(f"*/*/{MANIFEST}")}
        found |= {path.parent.parent.name for path in self.root.glob(f"*/channels/{HISTORY}")}
        return sorted(name for name in found if CLASS_NAME.fullmatch(name))

    def send_again(self, line: Line, digest: str) -> bool:
        from goldnode.disks.publish import bring

        disk = self.store.disk(digest, line.repository)
        if disk is None or self.signer is None:
            return False
        bring(disk, self, self.signer, [], replace=True)
        return True


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


# Moving


def promote(
    place: StorePlace | DirectoryPlace,
    store: ChannelStore,
    line: ClassLine,
    build_id: str,
    channel: str,
    signer: Signer,
    *,
    by: str,
    reason: str = "",
    trust: Sequence[SSlibKey] = (),
    waivers: Sequence[Waiver] = (),
    approvals: Sequence[Approval] = (),
    expect: str | None = None,
    say: Say = lambda text: None,
    now: dt.datetime | None = None,
) -> Moved:
    """Point a channel of a class to a build if every gate is open. See `goldnode.images.channels.advance`."""
    keys = (*trust, signer.public)

    def judging(history: History, digest: str, against: str | None) -> tuple[list[Gate], list[str]]:
        disk, before, lost = place.disk(line, digest), None, ""
        if against is not None and against != digest:
            try:
                before = place.disk(line, against)
            except DiskError as problem:
                lost = problem.message
        gates = judge(
            channel,
            disk,
            trust=keys,
            waivers=waivers,
            approvals=approvals,
            history=history,
            against=before,
            lost=lost,
        )
        return gates, _notes(before, disk)

    with _turn(place):
        # settle=0: the lock excludes other writers, so there is no need to wait for a concurrent promotion.
        return moves.advance(
            place,
            store,
            line,
            build_id,
            channel,
            signer,
            judging,
            by=by,
            reason=reason,
            expect=expect,
            trust=trust,
            approvals=approvals,
            settle=0,
            say=say,
            now=now,
        )


def rollback(
    place: StorePlace | DirectoryPlace,
    store: ChannelStore,
    line: ClassLine,
    signer: Signer,
    *,
    by: str,
    reason: str,
    channel: str = "stable",
    to: str | None = None,
    trust: Sequence[SSlibKey] = (),
    say: Say = lambda text: None,
    now: dt.datetime | None = None,
) -> Moved:
    """Point a channel back to its previous build.

    `to` selects another one: for `known-good`, or a build id or digest of the history.
    """
    given: dict[str, Any] = {
        "by": by,
        "reason": reason,
        "channel": channel,
        "to": to,
        "trust": trust,
        "say": say,
        "now": now,
    }
    with _turn(place):
        return moves.rollback(place, store, line, signer, settle=0, **given)


def repair(
    place: StorePlace | DirectoryPlace, store: ChannelStore, line: Line, trust: Sequence[SSlibKey], say: Say
) -> list[moves.Stand]:
    """Point every channel to the target of the signed history again, and upload history entries that were
    added offline.
    """
    with _turn(place):
        return moves.repair(place, store, line, trust, settle=0, say=say)


def _turn(place: StorePlace | DirectoryPlace) -> contextlib.AbstractContextManager[None]:
    return place.turn() if isinstance(place, DirectoryPlace) else contextlib.nullcontext()


def _notes(before: BuiltDisk | None, disk: BuiltDisk) -> list[str]:
    found = ["the class is simulated: no GPU was in it"] if disk.simulated else []
    if before is None:
        return found
    was, now = evidence.facts(before), evidence.facts(disk)
    found += [
        f"{name}: {was.get(name, 'none')} to {now.get(name, 'none')}"
        for name in ("kernel", "driver", "loader")
        if was.get(name) != now.get(name)
    ]
    old, new = ({row.name: row.version for row in one.packages} for one in (before, disk))
    moved = len([name for name in old.keys() | new.keys() if old.get(name) != new.get(name)])
    return [*found, f"{moved} packages differ"] if moved else found


def standing(store: ChannelStore, line: ClassLine, channel: str, place: str | None = None) -> BuiltDisk:
    """Return the build of the store that a channel points to, as the store last saw it.

    `place` selects the channel's location; the default is the only known one. Raises DiskError if there is no
    such build, or more than one.
    """
    if channel not in CHANNELS:
        from goldnode.core.errors import nearest

        raise DiskError(f'there is no channel "{channel}"', remedy=nearest(channel, CHANNELS))
    places = (
        [place]
        if place
        else [name for name, one in moves.local_places(store) if one.repository == line.repository]
    )
    digests = {name: store.named(moves.local_name(name, line, channel)) for name in places}
    found = {digest for digest in digests.values() if digest is not None}
    if len(found) != 1:
        told = ", ".join(places) or "no place"
        what = "stands for nothing" if not found else f"stands for {len(found)} builds"
        raise DiskError(
            f"{channel} of {line} {what} in {store.root} (of {told})",
            remedy=f"pull it: goldnode disks pull {line}:{channel}",
        )
    disk = store.disk(found.pop(), line.repository)
    if disk is None:
        raise DiskError(
            f"what {channel} of {line} stands for is not in {store.root}",
            remedy=f"pull it: goldnode disks pull {line}:{channel}",
        )
    return disk
