"""Channels of disk images: the gates a disk has to pass, and where its channels stand, in a store or in a published directory.

Histories, moves and the way back are those of container images (`goldnode.images.channels`); a line is a node class, an immutable tag a
build id, a digest that of the build's manifest. In a directory a lock holds other writers off, which no registry can.
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

from goldnode.disks import evidence
from goldnode.disks.contents import digest_of
from goldnode.disks.model import MANIFEST, BuiltDisk, builds
from goldnode.errors import DiskError, ImageError
from goldnode.files import replace_file, sha256_of
from goldnode.images import channels as moves
from goldnode.images.evidence import signatures
from goldnode.images.gates import (
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
from goldnode.images.history import CHANNELS, History, Line
from goldnode.images.oci import canonical

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.images.channels import Moved, Say
    from goldnode.images.evidence.signatures import Signer

COMMAND = "goldnode disks"
HISTORY = "history.jsonl"
CLASS_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
MAJORS = ("kernel", "driver")
BOOTS = 2

# What each step asks for, in the order it is told. A step asks for that of the one before as well.
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

LATER = ("sbom", "provenance", "vulnerabilities")  # asked for after publication, of what is published

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
    """What users follow: a node class."""

    def __str__(self) -> str:
        return self.repository


def line_of(name: str) -> ClassLine:
    """The line of a class. Raises DiskError for what no class can be called."""
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
    """How the gates of a step stand for a disk. `against`: the one that the channel stands for now; `lost`: why that cannot be read;
    `only`: of these gates alone.

    What is absent, cannot be read, is about another disk or was not verified never counts as passed. Raises ImageError for a waiver or an
    approval of something that this step does not ask for.
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
    # A boot with simulated GPUs says nothing of the disk without them.
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
    """One gate for each of kernel and driver whose series is another than that of the disk before, or is gone."""
    if against is None and not lost:
        return [Gate("majors", "passed", "the channel leads to no other disk yet")]
    found: list[Gate] = []
    new = series(disk)
    old = {} if against is None else series(against)
    for part in MAJORS:
        if against is not None and (part not in old or old[part] == new.get(part)):
            continue  # what was not there before breaks nobody
        why = (
            f"{part} goes from {old[part]} to {new.get(part, 'none')}"
            if against
            else f"whether {part} has another series cannot be told: {lost}"
        )
        found.append(major(part, why, approvals))
    return found or [Gate("majors", "passed", "kernel and driver keep their series")]


def series(disk: BuiltDisk) -> dict[str, str]:
    """Kernel and driver as far as programs and modules depend on them: 6.1 of 6.1.0-53-cloud-amd64, 535 of 535.309.01."""
    found = {"kernel": ".".join(disk.kernel.split("-")[0].split(".")[:2])}
    return found | ({"driver": disk.driver.version.split(".")[0]} if disk.driver is not None else {})


# Where channels are


class ChannelStore:
    """What channels keep in a store of disks: copies of histories, and for each channel that was seen, the disk it stands for.

    It only reads the builds of `goldnode.disks.store.Store`, and makes nothing until it is told a name.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def cache(self) -> Path:
        """What can be read again."""
        return self.root / "cache/evidence"

    def name_as(self, name: str, digest: str) -> None:
        path = self._file(name)
        if self.disk(digest) is not None:
            replace_file(path, digest.encode() + b"\n")
        else:
            path.unlink(missing_ok=True)

    def named(self, name: str) -> str | None:
        """The digest that a name stands for."""
        try:
            return self._file(name).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    def _file(self, name: str) -> Path:
        return self.root / "channels/names" / quote(name, safe="")

    def disk(self, digest: str, class_: str | None = None) -> BuiltDisk | None:
        """The build with this manifest, if the store has it."""
        return next((disk for disk in builds(self.root, class_) if digest_of(disk) == digest), None)


class StorePlace(moves.KeptPlace):
    """A store by itself, or its copy of a published directory."""

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
        """A build of the class by its id."""
        path = self.store.root / "built" / line.repository / tag
        return BuiltDisk.load(path) if (path / MANIFEST).is_file() else None

    def disk(self, line: Line, digest: str) -> BuiltDisk:
        """A build by its digest. Raises DiskError."""
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
    """A published directory. `store` and `signer` let a way back send a disk again that is gone there."""

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
        """One writer at a time, whoever and wherever it is: others wait."""
        staging = self.root / ".staging"
        staging.mkdir(exist_ok=True)
        with (staging / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def channels(self, line: Line) -> Path:
        """Where the channels of a class are."""
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
        """A published build by its digest. Raises DiskError."""
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
        """Every class of which there is a build or a history."""
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
    """Turn a full or read-only place into an error that says so."""
    import errno

    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            why, remedy = (
                "is full",
                "free space there (`goldnode disks gc --to`), and run it again: what was published before is untouched",
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
    """Let a channel of a class stand for a build, where every gate is open; see `goldnode.images.channels.advance`."""
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
    """Let a channel stand for the build it stood for before; `to`: for `known-good`, or a build id or digest of the history."""
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
    """Give every channel back to what the signed history says, and bring there what was decided offline."""
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
    """The build of the store that a channel stands for, as the store last saw it. `place`: whose channel; default: the only one known.

    Raises DiskError.
    """
    if channel not in CHANNELS:
        from goldnode.errors import nearest

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
