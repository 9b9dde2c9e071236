"""Signed updates: sets of files with the metadata of The Update Framework (TUF), published and fetched.

A repository is a directory with `metadata/` and `targets/`. Any web server can serve it, and a zip archive of
it is a bundle for machines without a network. Four roles sign it. The keys of `root` name all keys and how many
of them must sign; they can replace each other. One key, or a few, sign `targets`, `snapshot` and `timestamp`.
python-tuf verifies signatures, thresholds, expiry and versions: an older or a mixed state is refused.

A client starts from a root document that it has from a trusted place. It stores the newest metadata it has
seen, so that nothing older is accepted later.
"""

from __future__ import annotations

import datetime as dt
import io
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.core.files import replace_file
from goldnode.evidence.signatures import EnvelopeSigner
from goldnode.lock.transport import Transport

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, Root
    from tuf.ngclient import FetcherInterface, Updater

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
# Days until signatures expire: of the root, and of everything else.
ROOT_DAYS, DAYS = 365, 90
WARNED = dt.timedelta(days=30)  # before the root expires
LARGEST = 64 << 20  # bytes of one file


class UpdateError(GoldnodeError):
    """An update cannot be published, fetched or trusted."""


@dataclass(frozen=True)
class Update:
    """A verified update: its files by name, its version, and the time at which its metadata expires."""

    files: Mapping[str, bytes]
    version: int
    expires: dt.datetime


@dataclass(frozen=True)
class RootKeys:
    """Keys of the root role, and how many of them must sign; None: as many as of the root before."""

    signers: Sequence[EnvelopeSigner]
    threshold: int | None = None
    # Keys of the root before, which must also sign; empty for the first root.
    before: Sequence[EnvelopeSigner] = field(default=())


def create(
    repository: Path, keys: RootKeys, online: Sequence[EnvelopeSigner], days: int = ROOT_DAYS
) -> Path:
    """Write the first root document of a repository. Return its path. Raises UpdateError."""
    if newest_root(repository) is not None:
        raise UpdateError(
            f"{repository} has a root document already",
            remedy="replace its keys with `goldnode facts rotate`",
        )
    return write_root(
        repository, signed_root(1, replace(keys, threshold=keys.threshold or 1), online, days)
    )


def rotate(
    repository: Path, keys: RootKeys, online: Sequence[EnvelopeSigner], days: int = ROOT_DAYS
) -> Path:
    """Write the next root document, with other keys or another threshold. Return its path.

    Also for a root that has expired: clients verify the newest root's time alone.
    It needs the signatures of the root before (`keys.before`) and of the new one. Raises UpdateError.
    """
    newest = newest_root(repository)
    if newest is None:
        raise UpdateError(
            f"{repository} has no root document", remedy="create it with `goldnode facts publish`"
        )
    # Only the extra `updates` installs tuf; so below.
    from tuf.api.exceptions import UnsignedMetadataError

    before = _document(newest)
    if keys.threshold is None:
        keys = replace(keys, threshold=before.signed.roles[ROOT].threshold)
    # Versions without a gap: a client fetches N+1 until there is none.
    document = signed_root(before.signed.version + 1, keys, online, days)
    try:
        # Signed by both: a client that trusts the root before can verify the next one (TUF, section 5.3).
        before.signed.verify_delegate(ROOT, document.signed_bytes, document.signatures)
    except UnsignedMetadataError:
        raise UpdateError(
            f"the new root is not signed by {before.signed.roles[ROOT].threshold} keys of the root before",
            file=newest,
            remedy="give the present keys with --root-key",
        ) from None
    return write_root(repository, document)


@dataclass(frozen=True)
class RootState:
    """The newest root document of a repository: where it is, how many keys must sign, and its end."""

    path: Path
    threshold: int
    expires: dt.datetime

    def warning(self, command: str, now: dt.datetime | None = None) -> str:
        """Return a warning 30 days before the end; empty before that.

        :param command: the command that replaces the root.
        """
        left = self.expires - (now or dt.datetime.now(tz=dt.UTC))
        if left > WARNED:
            return ""
        return (
            f"warning: the root {self.path} expires on {self.expires:%Y-%m-%d}, in {max(left.days, 0)} days, and nothing "
            f"is trusted after that. Sign the next one with its keys: `{command}`, which may name the same keys again."
        )


def root_state(repository: Path, command: str, now: dt.datetime | None = None) -> RootState:
    """Return the state of the newest root. Raises UpdateError without a root, and for one that has expired.

    :param command: the command that replaces the root.
    """
    newest = newest_root(repository)
    if newest is None:
        raise UpdateError(
            f"{repository} has no root document", remedy="give the keys of its root with --root-key"
        )
    signed = _document(newest).signed
    if signed.expires <= (now or dt.datetime.now(tz=dt.UTC)):
        raise UpdateError(
            f"the root expired on {signed.expires:%Y-%m-%d}: nothing that is published with it is trusted",
            file=newest,
            remedy=f"sign the next root with its keys: `{command}`",
        )
    return RootState(newest, signed.roles[ROOT].threshold, signed.expires)


def threshold_of(root: Path) -> int:
    """Return how many keys of a root document must sign the next one."""
    return int(_document(root).signed.roles[ROOT].threshold)


def publish(
    repository: Path,
    files: Mapping[str, bytes],
    online: Sequence[EnvelopeSigner],
    days: int = DAYS,
) -> int:
    """Publish these files as the next version. Return its number. Raises UpdateError.

    Call :func:`root_state` before: no client trusts what a root that has expired signs.
    The timestamp is replaced last, so a client sees the state before or the new one.
    """
    from tuf.api.exceptions import UnsignedMetadataError
    from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp
    from tuf.api.serialization.json import JSONSerializer

    newest = newest_root(repository)
    if newest is None:
        raise UpdateError(
            f"{repository} has no root document", remedy="give the keys of its root with --root-key"
        )
    root = _document(newest)
    expires = _in_days(days)
    version = 1 + max(
        [
            int(path.name.split(".")[0])
            for path in (repository / "metadata").glob(f"*.{TARGETS}.json")
        ],
        default=0,
    )
    targets = Targets(version, expires=expires)
    for name, data in sorted(files.items()):
        target = TargetFile.from_data(name, data, ["sha256"])
        targets.targets[name] = target
        # With the digest in the name (consistent snapshots): a file of an earlier version is not
        # overwritten.
        path = repository / "targets" / target.get_prefixed_paths()[0]
        replace_file(path, data)
    snapshot = Snapshot(version, expires=expires, meta={f"{TARGETS}.json": MetaFile(version)})
    timestamp = Timestamp(version, expires=expires, snapshot_meta=MetaFile(version))
    serializer = JSONSerializer(compact=False)
    # In this order: each document is named by the next one, and a client starts with the timestamp.
    for role, signed in ((TARGETS, targets), (SNAPSHOT, snapshot), (TIMESTAMP, timestamp)):
        document: Metadata[Any] = Metadata(signed)
        for signer in online:
            document.sign(signer.signer, append=True)
        try:
            # A key that the root does not name would publish what no client accepts.
            root.signed.verify_delegate(role, document.signed_bytes, document.signatures)
        except UnsignedMetadataError:
            raise UpdateError(
                f"the root document does not name the given key for {role}",
                file=newest,
                remedy="give the key that the repository was created with, or rotate the root",
            ) from None
        name = f"{role}.json" if role == TIMESTAMP else f"{version}.{role}.json"
        replace_file(repository / "metadata" / name, document.to_bytes(serializer))
    return version


def published(repository: Path, online: Sequence[EnvelopeSigner]) -> Update | None:
    """Return what is published now; None without it, or if none of these keys has signed it.

    A publisher that adds to its own earlier files must not sign those of anybody else.
    """
    from tuf.api.exceptions import LengthOrHashMismatchError

    root = newest_root(repository)
    newest = max(
        (repository / "metadata").glob(f"*.{TARGETS}.json"),
        key=lambda path: int(path.name.split(".")[0]),
        default=None,
    )
    stamp = repository / "metadata" / f"{TIMESTAMP}.json"
    if root is None or newest is None or not stamp.is_file():
        return None
    # A key may have been removed from the root since.
    named = _document(root).signed.roles[TARGETS].keyids
    signed, timestamp = _document(newest), _document(stamp)
    if not all(
        any(signer.keyid in named and _is_of(signer, one) for signer in online)
        for one in (signed, timestamp)
    ):
        return None
    files = {}
    for name, target in signed.signed.targets.items():
        try:
            data = (repository / "targets" / target.get_prefixed_paths()[0]).read_bytes()
            target.verify_length_and_hashes(data)
        except (OSError, LengthOrHashMismatchError) as problem:
            raise UpdateError(
                f"{name} is not what was signed: {problem}",
                file=repository,
                remedy="find out who has changed it, and publish into an empty directory",
            ) from problem
        files[name] = data
    return Update(
        files, signed.signed.version, min(signed.signed.expires, timestamp.signed.expires)
    )


def _is_of(signer: EnvelopeSigner, document: Metadata[Any]) -> bool:
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError

    signature = document.signatures.get(signer.keyid)
    if signature is None:
        return False
    try:
        signer.public.verify_signature(signature, document.signed_bytes)
    except (UnverifiedSignatureError, VerificationError):
        return False
    return True


def prune(repository: Path, keep: int) -> None:
    """Remove the metadata of all but the last `keep` versions, and the targets that only they name.

    A client in the middle of a fetch still reads the version that it began with.
    """
    metadata, targets = repository / "metadata", repository / "targets"
    versions = sorted(
        metadata.glob(f"*.{TARGETS}.json"), key=lambda path: int(path.name.split(".")[0])
    )
    newest = versions[-keep:]
    named = {
        path
        for one in newest
        for target in _document(one).signed.targets.values()
        for path in target.get_prefixed_paths()
    }
    for path in versions[:-keep]:
        path.with_name(path.name.replace(TARGETS, SNAPSHOT)).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    for path in targets.rglob("*"):
        if path.is_file() and path.relative_to(targets).as_posix() not in named:
            path.unlink(missing_ok=True)


def bundle(repository: Path, out: Path) -> None:
    """Write the repository as a zip archive, the same bytes each time."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(item for item in repository.rglob("*") if item.is_file()):
            # A fixed date, the first that a zip can have.
            entry = zipfile.ZipInfo(path.relative_to(repository).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    replace_file(out, data.getvalue())


def fetch(source: str, root: Path, state: Path, names: Sequence[str]) -> Update:
    """Fetch and verify the newest state of a repository.

    :param source: address (http, https), directory or zip archive of the repository.
    :param root: root document from a trusted place; only used until `state` has a newer one.
    :param state: directory with the metadata that this client has seen.
    :param names: files to fetch; those that the repository does not have are left out.

    Raises UpdateError; the files and the metadata of `state` are then as before.
    """
    require("updates")
    from tuf.api.exceptions import RepositoryError
    from tuf.ngclient import Updater, UpdaterConfig

    try:
        trusted = root.read_bytes()
    except OSError as problem:
        raise UpdateError(
            f"the trusted root document cannot be read: {problem.strerror}",
            file=root,
            remedy="put the publisher's root document there, from a place that you trust",
        ) from problem
    fetcher = fetcher_of(source)
    before = replaced_metadata(state)
    if before.is_dir() and not state.is_dir():  # an earlier run was interrupted between two renames
        before.rename(state)
    # A copy: tuf writes metadata as it verifies it, and a refused update must leave nothing.
    with tempfile.TemporaryDirectory(prefix="goldnode-update-") as work:
        metadata, targets = Path(work, "metadata"), Path(work, "targets")
        if state.is_dir():
            shutil.copytree(state, metadata)
        else:
            metadata.mkdir()
        targets.mkdir()
        try:
            updater = Updater(
                str(metadata),
                "metadata/",
                str(targets),
                "targets/",
                fetcher,
                # A client that was off for years walks through all roots.
                UpdaterConfig(max_root_rotations=256),
                bootstrap=_bootstrap(state, trusted),
            )
            updater.refresh()
            files = {name: data for name in names if (data := _target(updater, name)) is not None}
        except (RepositoryError, ValueError) as problem:
            raise _refused(problem, source, root) from problem
        # The fetcher may raise anything: of http, zip files or the file system.
        except Exception as problem:
            raise UpdateError(
                f"the update cannot be read from {source}: {_reason(problem)}",
                remedy="check the address and the proxy, or give a directory or a zip archive of the repository",
            ) from problem
        stamp = _document(metadata / f"{TIMESTAMP}.json")
        if not files:
            raise UpdateError(
                f"{source} has none of {', '.join(names)}", remedy="check the address"
            )
        _store(metadata, state)
    return Update(files, stamp.signed.version, stamp.signed.expires)


def replaced_metadata(state: Path) -> Path:
    """Return the place of the metadata that is being replaced."""
    return state.with_name(f".{state.name}.before")


def _store(metadata: Path, state: Path) -> None:
    """Replace the stored metadata. The state before is never lost: an older update could be accepted then."""
    fresh, before = state.with_name(f".{state.name}.new"), replaced_metadata(state)
    for left in (fresh, before):
        shutil.rmtree(left, ignore_errors=True)
    state.parent.mkdir(parents=True, exist_ok=True)
    # Complete beside the old one, then two renames.
    shutil.copytree(metadata, fresh)
    if state.is_dir():
        state.rename(before)
    fresh.rename(state)
    shutil.rmtree(before, ignore_errors=True)


def newest_root(repository: Path) -> Path | None:
    """Return the newest root document of a repository, None if it has none."""
    versions = sorted(
        (repository / "metadata").glob(f"*.{ROOT}.json"),
        key=lambda path: int(path.name.split(".")[0]),
    )
    return versions[-1] if versions else None


def _bootstrap(state: Path, trusted: bytes) -> bytes:
    """Return the root document to start from: the newest that was verified before, else the given one."""
    # The given document may be older than what was verified since.
    newest = state / f"{ROOT}.json"
    return newest.read_bytes() if newest.is_file() else trusted


def _target(updater: Updater, name: str) -> bytes | None:
    info = updater.get_targetinfo(name)
    if info is None:
        return None
    # Before the download. The length is signed, and a stolen key could sign a huge one.
    if info.length > LARGEST:
        raise ValueError(f"{name} has {info.length} bytes, more than {LARGEST}")
    return Path(updater.download_target(info)).read_bytes()


def signed_root(
    version: int, keys: RootKeys, online: Sequence[EnvelopeSigner], days: int
) -> Metadata[Root]:
    """Return a signed root document. Raises UpdateError for a threshold that its keys cannot reach."""
    from tuf.api.metadata import Metadata, Root

    threshold = keys.threshold or 1
    if len({signer.keyid for signer in keys.signers}) < threshold:
        raise UpdateError(
            f"{threshold} keys of the root must sign, and {len(keys.signers)} are given",
            remedy="give at least as many keys of the root as must sign, or another number with --threshold",
        )
    root = Root(version, expires=_in_days(days), consistent_snapshot=True)
    for signer in keys.signers:
        root.add_key(signer.public, ROOT)
    root.roles[ROOT].threshold = threshold
    for role in (TARGETS, SNAPSHOT, TIMESTAMP):
        for signer in online:
            root.add_key(signer.public, role)
    document: Metadata[Root] = Metadata(root)
    for signer in {signer.keyid: signer for signer in (*keys.before, *keys.signers)}.values():
        document.sign(signer.signer, append=True)
    return document


def write_root(repository: Path, document: Metadata[Root]) -> Path:
    """Write a version of the root document, and return its file."""
    from tuf.api.serialization.json import JSONSerializer

    path = repository / "metadata" / f"{document.signed.version}.{ROOT}.json"
    replace_file(path, document.to_bytes(JSONSerializer(compact=False)))
    return path


def _document(path: Path) -> Metadata[Any]:
    from tuf.api.metadata import Metadata
    from tuf.api.serialization import DeserializationError

    try:
        return Metadata.from_bytes(path.read_bytes())
    except (OSError, DeserializationError) as problem:
        raise UpdateError(
            f"this is no metadata document: {problem}", file=path, remedy="restore it"
        ) from problem


def _in_days(days: int) -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC).replace(microsecond=0) + dt.timedelta(days=days)


def _refused(problem: Exception, source: str, root: Path) -> UpdateError:
    """Return the reason why an update is not trusted, in words."""
    from tuf.api import exceptions

    why, remedy = f"{problem}", "report it to the publisher, and use the facts that are there"
    if isinstance(problem, exceptions.ExpiredMetadataError):
        why = f"its metadata has expired ({problem}): the publisher has not signed it again, or this is an old copy"
        remedy = "fetch a newer copy; check the clock of this machine"
        if "root" in f"{problem}":  # publishing again does not help
            why = f"its root has expired ({problem}): the publisher has not signed the next one, or this is an old copy"
            remedy = "ask the publisher for it (`goldnode facts rotate`); check the clock of this machine"
    elif isinstance(problem, exceptions.BadVersionNumberError):
        why = f"it is older than what was seen before ({problem})"
        remedy = "fetch the newest copy"
    elif isinstance(problem, exceptions.UnsignedMetadataError):
        why = f"not enough of the trusted keys have signed it ({problem})"
        remedy = f"compare {root} with the publisher's root document"
    elif isinstance(problem, exceptions.LengthOrHashMismatchError):
        why = f"a file is not the one that was signed ({problem})"
        remedy = "fetch it again; if that does not help, report it to the publisher"
    return UpdateError(f"the update of {source} is refused: {why}", remedy=remedy)


def _reason(problem: BaseException) -> str:
    cause = problem.__cause__ or problem
    return str(getattr(cause, "reason", None) or cause) or type(cause).__name__


def fetcher_of(source: str) -> FetcherInterface:
    """Return a fetcher of the files of a repository. Raises UpdateError if the source does not exist."""
    from tuf.api.exceptions import DownloadHTTPError
    from tuf.ngclient import FetcherInterface

    if source.startswith(("http://", "https://")):
        base, transport = source.rstrip("/"), Transport(timeout=30)

        class Web(FetcherInterface):
            def _fetch(self, url: str) -> Iterator[bytes]:
                answer = transport.get(f"{base}/{url}", {})
                if answer.status != 200:
                    answer.release_conn()
                    raise DownloadHTTPError(f"{base}/{url}: HTTP {answer.status}", answer.status)
                return answer.stream(1 << 16)

        return Web()

    path = Path(source.removeprefix("file://")).expanduser()

    class Files(FetcherInterface):
        def _fetch(self, url: str) -> Iterator[bytes]:
            try:
                if path.is_dir():
                    return iter([(path / url).read_bytes()])
                with zipfile.ZipFile(path) as archive, archive.open(url) as opened:
                    return iter([opened.read(LARGEST + 1)])
            except (FileNotFoundError, KeyError):
                raise DownloadHTTPError(f"{path}: no {url}", 404) from None

    if not path.is_dir() and not (path.is_file() and zipfile.is_zipfile(path)):
        raise UpdateError(
            f"{path} is neither a directory nor a zip archive",
            remedy="give the address, the directory or the zip archive of a repository",
        )
    return Files()
