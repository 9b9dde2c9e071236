"""Signed updates: sets of files with the metadata of The Update Framework (TUF), published and fetched.

A repository is a directory with `metadata/` and `targets/`. Any web server can serve it, and a zip archive of
it is a bundle for machines without a network. Its roles have keys of their own:

* `root` names the keys of the other roles and how many must sign. Its keys are offline, and can replace each other.
* `targets` describes the files: it is a *release*, signed offline. It may delegate paths to further roles.
* `snapshot` and `timestamp` say which versions are the newest. Their keys are online, for a *refresh*. Who steals
  them can withhold a newer state until the signatures of the other roles expire, and sign no file.

python-tuf verifies signatures, thresholds, expiry and versions: an older or a mixed state is refused.

A client starts from a root document that it has from a trusted place. It stores the newest metadata it has
seen, so that nothing older is accepted later.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.core.files import add_to_zip, replace_file
from goldnode.evidence.signatures import EnvelopeSigner
from goldnode.lock.transport import Transport

if TYPE_CHECKING:
    from securesystemslib.signer import Key
    from tuf.api.metadata import Metadata, Root, TargetFile, Targets
    from tuf.ngclient import FetcherInterface, Updater

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
# Days until signatures expire: of the root, of a release, and of a refresh.
ROOT_DAYS, RELEASE_DAYS, DAYS = 365, 90, 90
WARNED = dt.timedelta(days=30)  # before the root or a release expires
LARGEST = 64 << 20  # bytes of one file


class UpdateError(GoldnodeError):
    """An update cannot be published, fetched or trusted."""


@dataclass(frozen=True)
class Update:
    """A verified update: its files by name, the version of its release, and the time at which its timestamp expires."""

    files: Mapping[str, bytes]
    version: int
    expires: dt.datetime


@dataclass(frozen=True)
class RoleKeys:
    """Keys of a role, and how many of them must sign; None: as many as before, 1 for a new role."""

    keys: Sequence[Key]
    threshold: int | None = None


@dataclass(frozen=True)
class DelegatedPaths:
    """A role that `targets` trusts for some paths: patterns, in which `*` matches within one directory."""

    name: str
    keys: Sequence[Key]
    paths: Sequence[str]
    threshold: int = 1


# The root


def next_root(
    repository: Path, roles: Mapping[str, RoleKeys], days: int = ROOT_DAYS
) -> Metadata[Root]:
    """Return the next root document, or the first one, without signatures. Raises UpdateError.

    A role that is not given keeps its keys. No key of `root` or `targets` may be online.
    """
    from tuf.api.metadata import TOP_LEVEL_ROLE_NAMES, Metadata, Root  # only the extra `updates`

    before = newest(repository, ROOT)
    root = Root(consistent_snapshot=True) if before is None else before.signed
    if before is not None:
        # Versions without a gap: a client fetches N+1 until there is none.
        root.version += 1
    elif missing := TOP_LEVEL_ROLE_NAMES - roles.keys():
        raise UpdateError(
            f"{repository} has no root document, and no keys are given for {', '.join(sorted(missing))}",
            remedy="give the keys of a new one: --root-key, --targets-key and --key",
        )
    root.expires = _in_days(days)
    for name, wanted in roles.items():
        role = root.roles[name]
        keys = {key.keyid: key for key in wanted.keys}
        if not keys:  # another threshold of the same keys
            keys = {keyid: root.keys[keyid] for keyid in role.keyids}
        threshold = wanted.threshold or role.threshold
        if len(keys) < threshold:
            raise UpdateError(
                f"{threshold} keys of {name} must sign, and {len(keys)} are given",
                remedy=f"give at least as many keys of {name} as must sign, or another number as threshold",
            )
        for keyid in list(role.keyids):
            root.revoke_key(keyid, name)
        for key in keys.values():
            root.add_key(key, name)
        role.threshold = threshold
    _apart(root, repository)
    return Metadata(root)


def _apart(root: Root, where: Path) -> None:
    """Raise UpdateError if an online key may also sign a root or a release."""
    online = {*root.roles[SNAPSHOT].keyids, *root.roles[TIMESTAMP].keyids}
    for name in (ROOT, TARGETS):
        if online & set(root.roles[name].keyids):
            raise UpdateError(
                f"one key signs {name} and the timestamp: its thief chooses what is installed",
                file=where,
                remedy=f"give {name} a key of its own: `goldnode rollout rotate-keys` for a channel, `goldnode facts "
                "rotate` for facts, with --targets-key",
            )


@dataclass(frozen=True)
class RootState:
    """The newest root document of a repository: where it is, and its end."""

    path: Path
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
    path, signed = newest_path(repository, ROOT), _trusted_root(repository)
    if signed.expires <= (now or dt.datetime.now(tz=dt.UTC)):
        raise UpdateError(
            f"the root expired on {signed.expires:%Y-%m-%d}: nothing that is published with it is trusted",
            file=path,
            remedy=f"sign the next root with its keys: `{command}`",
        )
    return RootState(path or repository, signed.expires)


# Releases


def next_release(
    repository: Path, role: str = TARGETS, days: int = RELEASE_DAYS
) -> Metadata[Targets]:
    """Return the next version of a role's release, without signatures. Files of the present one are carried over.

    Those that the keys of today have not signed are not: a publisher must not sign those of a thief.
    """
    from tuf.api.metadata import Metadata, Targets

    before = newest(repository, role)
    release = Targets() if before is None else Targets(before.signed.version + 1)
    present = released(repository, role)
    if present is not None:
        release.targets, release.delegations = dict(present.targets), present.delegations
    release.expires = _in_days(days)
    return Metadata(release)


def released(repository: Path, role: str = TARGETS) -> Targets | None:
    """Return the newest release of a role, if enough keys that are trusted for it have signed it."""
    document = newest(repository, role)
    if document is None:
        return None
    trusting = delegator(repository, role)
    if trusting is None or not _result(trusting, role, document):
        return None
    release: Targets = document.signed
    return release


def add_file(
    repository: Path,
    release: Targets,
    name: str,
    content: bytes | Path,
    custom: Mapping[str, Any] | None = None,
) -> None:
    """Write a file below `targets/`, and describe it in a release. A file (path) is moved there."""
    from tuf.api.metadata import TargetFile

    if isinstance(content, bytes):
        target = TargetFile.from_data(name, content, ["sha256"])
    else:
        target = TargetFile.from_file(name, str(content), ["sha256"])
    if custom:
        target.unrecognized_fields["custom"] = dict(custom)
    release.targets[name] = target
    # With the digest in the name (consistent snapshots): a file of an earlier version is not overwritten.
    path = stored_file(repository, target)
    if isinstance(content, bytes):
        replace_file(path, content)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        content.replace(path)


def stored_file(repository: Path, target: TargetFile) -> Path:
    """Return where a repository has a file."""
    return repository / "targets" / target.get_prefixed_paths()[0]


def delegate(release: Targets, roles: Iterable[DelegatedPaths]) -> None:
    """Let further roles describe the files of some paths. The first role that matches a path decides it."""
    from tuf.api.metadata import DelegatedRole, Delegations

    roles = list(roles)
    named = {
        role.name: DelegatedRole(role.name, [], role.threshold, True, paths=list(role.paths))
        for role in roles
    }
    release.delegations = Delegations({}, named)
    for role in roles:
        for key in role.keys:
            release.add_key(key, role.name)


# Signing


def sign(document: Metadata[Any], signers: Iterable[EnvelopeSigner]) -> Metadata[Any]:
    """Sign a document, in addition to the signatures that it has."""
    for signer in {signer.keyid: signer for signer in signers}.values():
        document.sign(signer.signer, append=True)
    return document


def accept(repository: Path, role: str, document: Metadata[Any]) -> Path:
    """Write a document as the newest of its role. Return its file.

    Raises UpdateError unless enough trusted keys have signed it: it would be what no client accepts.
    """
    before = newest(repository, role)
    following = 1 if before is None else before.signed.version + 1
    if document.signed.version != following:
        raise UpdateError(
            f"this {role} is version {document.signed.version}, and the next one is {following}",
            file=repository,
            remedy="prepare it again, and sign that",
        )
    trusting = [delegator(repository, role)]
    if role == ROOT:
        # Both: a client that trusts the root before verifies the next one by it (TUF, section 5.3).
        trusting = [document.signed] if before is None else [before.signed, document.signed]
    for giver in trusting:
        if giver is None:
            raise UpdateError(
                f"{repository} has no role {role}",
                remedy="a release by the keys of targets adds it: --targets-key",
            )
        result = _result(giver, role, document)
        if not result:
            by = "the new root" if giver is document.signed else f"the trusted {giver.type}"
            raise UpdateError(
                f"{role} has {len(result.signed)} signatures by keys that {by} names for it, and needs {result.threshold}",
                file=newest_path(repository, giver.type),
                remedy=f"sign with the present keys of {role}, or rotate the keys",
            )
    name = f"{role}.json" if role == TIMESTAMP else f"{document.signed.version}.{role}.json"
    return write_document(repository / "metadata" / name, document)


def refresh(repository: Path, online: Sequence[EnvelopeSigner], days: int = DAYS) -> int:
    """Sign snapshot and timestamp over the newest version of each release. Return the timestamp's version.

    Call :func:`root_state` before: no client trusts what a root that has expired signs.
    The timestamp is replaced last, so a client sees the state before or the new one. Raises UpdateError.
    """
    from tuf.api.metadata import Metadata, MetaFile, Snapshot, Timestamp

    _apart(_trusted_root(repository), repository)
    release = released(repository)
    if release is None or release.expires <= dt.datetime.now(tz=dt.UTC):
        why = "has expired" if release else "is missing, or not signed by the keys of targets"
        raise UpdateError(
            f"the release of {repository} {why}",
            remedy="release with the keys of targets: --targets-key",
        )
    # A client refuses a snapshot that does not name a role any more: roles without a delegation stay.
    # With digests: who has the key of a release alone can replace no version that is published.
    meta = {
        f"{name}.json": MetaFile.from_data(_version(path), path.read_bytes(), ["sha256"])
        for name, path in _releases(repository).items()
    }
    before = {role: newest(repository, role) for role in (SNAPSHOT, TIMESTAMP)}
    version = {role: 1 if one is None else one.signed.version + 1 for role, one in before.items()}
    expires = _in_days(days)
    snapshot = Snapshot(version[SNAPSHOT], expires=expires, meta=meta)
    data = accept(repository, SNAPSHOT, sign(Metadata(snapshot), online)).read_bytes()
    about = MetaFile.from_data(version[SNAPSHOT], data, ["sha256"])
    stamp = Timestamp(version[TIMESTAMP], expires=expires, snapshot_meta=about)
    accept(repository, TIMESTAMP, sign(Metadata(stamp), online))
    return version[TIMESTAMP]


def delegator(repository: Path, role: str) -> Root | Targets | None:
    """Return the document that names the keys of a role; None for a role that no release names."""
    if role in (TARGETS, SNAPSHOT, TIMESTAMP):
        return _trusted_root(repository)
    release = released(repository)
    if release is None or release.delegations is None:
        return None
    return release if role in (release.delegations.roles or {}) else None


def _result(delegator: Root | Targets, role: str, document: Metadata[Any]) -> Any:
    return delegator.get_verification_result(role, document.signed_bytes, document.signatures)


def _trusted_root(repository: Path) -> Root:
    document = newest(repository, ROOT)
    if document is None:
        raise UpdateError(
            f"{repository} has no root document", remedy="give the keys of its root with --root-key"
        )
    root: Root = document.signed
    return root


# Files


def newest(repository: Path, role: str) -> Metadata[Any] | None:
    """Return the newest document of a role, as it is; None without any."""
    path = newest_path(repository, role)
    return None if path is None else read_document(path)


def newest_path(repository: Path, role: str) -> Path | None:
    """Return the file of the newest document of a role; None without any."""
    return next(reversed(_versions(repository, role)), None)


def _versions(repository: Path, role: str) -> list[Path]:
    name = f"{TIMESTAMP}.json" if role == TIMESTAMP else f"[0-9]*.{role}.json"
    return sorted((repository / "metadata").glob(name), key=_version)


def _version(path: Path) -> int:
    return 0 if path.name == f"{TIMESTAMP}.json" else int(path.name.split(".")[0])


def _releases(repository: Path) -> dict[str, Path]:
    """Return the newest version of `targets` and of each role that it delegates to, or once did."""
    files = sorted((repository / "metadata").glob("[0-9]*.*.json"), key=_version)
    newest = {path.name.split(".")[1]: path for path in files}
    return {role: path for role, path in newest.items() if role not in (ROOT, SNAPSHOT)}


def write_document(path: Path, document: Metadata[Any]) -> Path:
    """Write metadata to a file, and return that."""
    from tuf.api.serialization.json import JSONSerializer

    replace_file(path, document.to_bytes(JSONSerializer(compact=False)))
    return path


def read_document(path: Path) -> Metadata[Any]:
    """Read metadata. Raises UpdateError; no signature is verified."""
    from tuf.api.metadata import Metadata
    from tuf.api.serialization import DeserializationError

    try:
        return Metadata.from_bytes(path.read_bytes())
    except (OSError, DeserializationError) as problem:
        raise UpdateError(
            f"this is no metadata document: {problem}", file=path, remedy="restore it"
        ) from problem


def prune(repository: Path, keep: int) -> None:
    """Remove the metadata of all but the last `keep` versions, and the targets that only they name.

    A client in the middle of a fetch still reads the version that it began with.
    """
    targets = repository / "targets"
    named: set[str] = set()
    for path in _versions(repository, SNAPSHOT)[:-keep]:
        path.unlink(missing_ok=True)
    for role in _releases(repository):
        versions = _versions(repository, role)
        for path in versions[:-keep]:
            path.unlink(missing_ok=True)
        for path in versions[-keep:]:
            files = read_document(path).signed.targets.values()
            named.update(path for target in files for path in target.get_prefixed_paths())
    for path in targets.rglob("*"):
        if path.is_file() and path.relative_to(targets).as_posix() not in named:
            path.unlink(missing_ok=True)


def bundle(repository: Path, out: Path) -> None:
    """Write the repository as a zip archive, the same bytes each time."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(item for item in repository.rglob("*") if item.is_file()):
            add_to_zip(archive, path.relative_to(repository).as_posix(), path.read_bytes())
    replace_file(out, data.getvalue())


def fetch(source: str, root: Path, state: Path, names: Sequence[str]) -> Update:
    """Fetch and verify the newest state of a repository.

    :param source: address (http, https), directory or zip archive of the repository.
    :param root: root document from a trusted place; only used until `state` has a newer one.
    :param state: directory with the metadata that this client has seen.
    :param names: files to fetch; those that the repository does not have are left out.

    Raises UpdateError; the files and the metadata of `state` are then as before.
    """
    try:
        given = root.read_bytes()
    except OSError as problem:
        raise UpdateError(
            f"the trusted root document cannot be read: {problem.strerror}",
            file=root,
            remedy="put the publisher's root document there, from a place that you trust",
        ) from problem
    seen = {path.relative_to(state).as_posix(): path.read_bytes() for path in state.rglob("*.json")}
    first = max(given, seen.get(f"{ROOT}.json", given), key=_root_version)
    publisher = {"renew": "goldnode facts publish", "rotate": "goldnode facts rotate"}
    with client(source, first, seen, what=f"the update of {source}", **publisher) as updater:
        updater.refresh()
        files = {name: data for name in names if (data := _target(updater, name)) is not None}
        if not files:
            raise UpdateError(
                f"{source} has none of {', '.join(names)}", remedy="check the address"
            )
        work = Path(updater._dir)
        stamp, release = (
            read_document(work / f"{role}.json").signed for role in (TIMESTAMP, TARGETS)
        )
        # Only now: a refused update leaves nothing. The order does not matter, each file is newer than what it replaces.
        for path in work.rglob("*.json"):
            replace_file(state / path.relative_to(work), path.read_bytes())
    return Update(files, release.version, stamp.expires)


def _root_version(data: bytes) -> int:
    """Return the version of a root document that a person or an earlier run trusts; 0 for no document."""
    try:
        return int(json.loads(data)["signed"]["version"])
    except (ValueError, KeyError, TypeError):
        return 0


@contextmanager
def client(
    source: str, first: bytes, seen: Mapping[str, bytes], *, what: str, renew: str, rotate: str
) -> Iterator[Updater]:
    """Yield python-tuf's client of a repository, in a temporary directory with the metadata that was seen before.

    :param first: the root document to start from.
    :param what: the repository for messages.
    :param renew: the publisher's command that signs it again, `rotate` that for the next root.

    Raises UpdateError for what is not trusted or cannot be read.
    """
    require("updates")
    from tuf.ngclient import Updater, UpdaterConfig

    # A client that was off for years walks through all roots.
    config = UpdaterConfig(
        max_root_rotations=256, snapshot_max_length=LARGEST, targets_max_length=LARGEST
    )
    fetcher = fetcher_of(source)
    with tempfile.TemporaryDirectory(prefix="goldnode-update-") as work:
        for name, data in seen.items():
            replace_file(Path(work, name), data)
        files = f"{work}/files"
        Path(files).mkdir()
        try:
            yield Updater(work, "metadata/", files, "targets/", fetcher, config, bootstrap=first)
        except GoldnodeError:
            raise
        # The fetcher may raise anything: of http, zip files or the file system.
        except Exception as problem:
            raise _refused(problem, what, renew, rotate) from problem


def _target(updater: Updater, name: str) -> bytes | None:
    info = updater.get_targetinfo(name)
    if info is None:
        return None
    # Before the download. The length is signed, and a stolen key could sign a huge one.
    if info.length > LARGEST:
        raise ValueError(f"{name} has {info.length} bytes, more than {LARGEST}")
    return Path(updater.download_target(info)).read_bytes()


def _in_days(days: int) -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC).replace(microsecond=0) + dt.timedelta(days=days)


def _refused(problem: Exception, what: str, renew: str, rotate: str) -> UpdateError:
    """Return why signed metadata is not trusted, or cannot be read. The commands are those of :func:`client`."""
    from tuf.api import exceptions as tuf

    length = tuf.LengthOrHashMismatchError | tuf.DownloadLengthMismatchError
    if not isinstance(problem, tuf.RepositoryError | length | ValueError | KeyError | TypeError):
        return UpdateError(
            f"{what} lacks a file, or cannot be read: {_reason(problem)}",
            remedy="check the address and the proxy, or give a directory or a zip archive of the repository",
        )
    expired, following, command = "metadata", "it again", renew
    if "root" in f"{problem}":  # publishing again does not help
        expired, following, command = "root", "the next one", rotate
    report = "fetch the newest copy; if that does not help, report it to the publisher"
    reasons = (
        (
            tuf.ExpiredMetadataError,
            f"its {expired} has expired: the publisher has not signed {following}, or this is an old copy",
            f"fetch a newer copy, or ask the publisher for it (`{command}`); check the clock of this machine",
        ),
        (tuf.BadVersionNumberError, "it is older than what was seen before", report),
        (
            tuf.UnsignedMetadataError,
            "not enough of the trusted keys have signed it",
            "compare the root document with that of the publisher",
        ),
        (length, "a file is not the one that was signed", report),
        (Exception, "it is not what goldnode publishes", report),
    )
    why, remedy = next(row for kind, *row in reasons if isinstance(problem, kind))
    return UpdateError(f"{what} is refused: {why} ({problem})", remedy=remedy)


def _reason(problem: BaseException) -> str:
    cause = problem.__cause__ or problem
    return str(getattr(cause, "reason", None) or cause) or type(cause).__name__


def fetcher_of(source: str) -> FetcherInterface:
    """Return a fetcher of the files of a repository. Raises UpdateError if the source does not exist."""
    from tuf.api.exceptions import DownloadHTTPError
    from tuf.ngclient import FetcherInterface

    web = source.startswith(("http://", "https://"))
    base, transport = source.rstrip("/"), Transport(timeout=30)
    path = Path(source.removeprefix("file://")).expanduser()
    if not web and not path.is_dir() and not (path.is_file() and zipfile.is_zipfile(path)):
        raise UpdateError(
            f"{path} is neither a directory nor a zip archive",
            remedy="give the address, the directory or the zip archive of a repository",
        )

    class Files(FetcherInterface):
        def _fetch(self, url: str) -> Iterator[bytes]:
            if web:
                answer = transport.get(f"{base}/{url}", {})
                if answer.status != 200:
                    answer.release_conn()
                    raise DownloadHTTPError(f"{base}/{url}: HTTP {answer.status}", answer.status)
                return answer.stream(1 << 16)
            folder = path if path.is_dir() else zipfile.Path(path)
            try:
                with (folder / url).open("rb") as file:
                    return iter([file.read(LARGEST + 1)])
            except FileNotFoundError:
                raise DownloadHTTPError(f"{path}: no {url}", 404) from None

    return Files()
