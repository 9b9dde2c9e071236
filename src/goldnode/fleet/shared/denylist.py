"""The deny list: states that `site.yml`, `disks update` and nodes that follow a channel refuse to apply.

A rollback denies its target, and a person may deny any state. The store has the denials; a
controller and the commands write them to a file, signed where the site has a key, for machines that
do not read the store. A list that cannot be read or verified is an error, never an empty list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.shared import denylist_seen

if TYPE_CHECKING:
    from goldnode.core.deny_list import DenyListPlace
    from goldnode.documents.deny_list import DenyListDocument

SCHEMA = "goldnode.deny-list/1"
PAYLOAD_TYPE = "application/vnd.goldnode.deny-list+json"
_LARGEST = 16 << 20  # bytes
_WRITE = "write it again with `goldnode rollout denied --write`"


class DenyListError(GoldnodeError):
    """The deny list cannot be read, verified or written. Whether a state is denied is not known."""


class DeniedError(GoldnodeError):
    """The state is on the deny list."""


@dataclass(frozen=True)
class Denial:
    """One denied state of a class. `at` is UTC, to the second."""

    node_class: str
    digest: str
    rollout: str | None
    reason: str
    who: str
    at: str

    def refusal(self) -> DeniedError:
        """Return the error that an attempt to apply this state ends with."""
        source = f"rollout {self.rollout}" if self.rollout else self.who
        return DeniedError(
            f"{self.digest} is denied for class {self.node_class} by {source} since {self.at}: {self.reason}",
            remedy=f"use another state, or lift it with `{lift_command(self.digest, self.node_class)}`",
        )


def lift_command(digest: str, node_class: str) -> str:
    """Return the command that lifts a denial."""
    return f"goldnode rollout lift {digest} --class {node_class} --reason REASON"


def version(place: DenyListPlace | None) -> str | None:
    """Return a name for the present content of the file; None if it cannot be found."""
    try:
        status = Path(place.file).stat() if place is not None else None
    except OSError:
        return None
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}" if status is not None else None


def read(place: DenyListPlace | None) -> tuple[Denial, ...]:
    """Return the denied states. Raises DenyListError if the list is missing, damaged, or not signed as it must be."""
    if place is None:
        return ()
    path, before = Path(place.file), version(place)
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        if not place.required:
            _in_order(place, None)
            return ()
        raise _unchecked("the deny list of the site file is missing", path) from None
    except OSError as problem:
        raise _unchecked(
            f"the deny list cannot be read: {problem.strerror}",
            path,
            "make it readable for this user",
        ) from None
    if len(data) > _LARGEST:
        raise _unchecked(f"the deny list is larger than {_LARGEST} bytes", path)
    document = _document(data, path, place.keys)
    try:
        _in_order(place, document.number)
    except DenyListError:
        if version(place) == before:
            raise
        return read(place)  # a later list was written, and read by another process, meanwhile
    return tuple(
        Denial(
            item.class_,
            digest=item.digest,
            rollout=item.rollout,
            reason=item.reason,
            who=item.who,
            at=item.at,
        )
        for item in document.denied
    )


def _in_order(place: DenyListPlace, number: int | None) -> None:
    """Raise DenyListError for a list that is older than one that was read here."""
    try:
        denylist_seen.check(place, number)
    except denylist_seen.DenyListSeenError as problem:
        raise _unchecked(
            problem.message, Path(problem.file or place.file), problem.remedy
        ) from None


def _document(data: bytes, path: Path, keys: str | None) -> DenyListDocument:
    # Here: a run of site.yml without a deny list has no use for them.
    from pydantic import ValidationError

    from goldnode.documents.deny_list import DenyListDocument

    payload = _payload(data, path, keys)
    try:
        return DenyListDocument.model_validate_json(payload)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
        raise _unchecked(f"this is no deny list: {text}", path) from None


def _payload(data: bytes, path: Path, keys: str | None) -> bytes:
    """Return what a list says. Where the site has keys, one of them must have signed it."""
    try:
        # Only an extra installs the library: without it, no list can be read that is signed.
        from goldnode.core.errors import ImageError, SigningKeyError
        from goldnode.evidence.signatures import load_public, open_envelope, payload_of

        if keys is None:
            return payload_of(data)
        opened = open_envelope(data, load_public(Path(keys)))
    except ImportError:
        raise _unchecked(
            "its signature cannot be verified", path, extras.missing(["fleet"]).remedy
        ) from None
    except SigningKeyError as problem:
        raise _unchecked(f"the key of the deny list cannot be used: {problem}", path) from None
    except ImageError as problem:
        raise _unchecked(
            f"the signature of the deny list is wrong: {problem.message}", path
        ) from None
    if opened.payload_type != PAYLOAD_TYPE:
        raise _unchecked(f"this is signed as {opened.payload_type}, and is no deny list", path)
    return opened.payload


def _unchecked(why: str, path: Path, remedy: str | None = _WRITE) -> DenyListError:
    return DenyListError(
        f"could not check whether the state is denied: {why}", file=path, remedy=remedy
    )


def check(denials: Iterable[Denial], node_class: str, digest: str) -> None:
    """Raise DeniedError if a state is denied for a class."""
    for item in denials:
        if (item.node_class, item.digest) == (node_class, digest):
            raise item.refusal()


# Writing


@dataclass(frozen=True)
class DenyList:
    """The denials in force, and the number of this list."""

    denials: tuple[Denial, ...]
    number: int

    def rows(self) -> list[dict[str, Any]]:
        """Return the denials as JSON."""
        rows = []
        for item in self.denials:
            fields = asdict(item)
            rows.append({"class": fields.pop("node_class"), **fields})
        return rows

    def payload(self) -> bytes:
        """Return the document, the same bytes for the same list."""
        content: dict[str, Any] = {"schema": SCHEMA, "number": self.number, "denied": self.rows()}
        return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def moment(seconds: float) -> str:
    """Return a time of the store in the form of documents."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def place_to_write(place: DenyListPlace | None) -> Path:
    """Return the file to write. Raises DenyListError if the site has none: a rollout must not begin without."""
    if place is None:
        raise DenyListError(
            "the store is a server, and no file has the deny list",
            remedy="name one that controllers write and site.yml reads: fleet.deny_list in the site file",
        )
    return Path(place.file)
