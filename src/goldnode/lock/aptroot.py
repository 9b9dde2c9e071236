"""apt in a throw-away root, with its own sources, keys, status and configuration.

Only transport settings come from this machine: proxies and the credentials of auth.conf(5).
Downloaded indexes are cached per set of sources; apt revalidates them (If-Modified-Since) at every
update.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote

from goldnode.core import progress
from goldnode.core.errors import LockError, UnsolvableError
from goldnode.core.files import cache_directory
from goldnode.lock.transport import Transport
from goldnode.lock.unreachable import apt_error, is_out_of_space, space_remedy

Stanza = Mapping[str, str]

_URI = re.compile(
    r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) (?:SHA256:(?P<sha256>[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class AptSource:
    """One archive as apt sees it: address, suite (`/` at its end: flat), components, and a binary keyring."""

    id: str
    uri: str
    suite: str
    components: tuple[str, ...]
    keyring: bytes
    fingerprints: tuple[str, ...]
    only: tuple[str, ...] = ()  # globs of the packages that may come from it; empty: all
    expired: bool = False  # accept indexes past their Valid-Until date

    def text(self, keyring: Path) -> str:
        """Return the deb822 source."""
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {self.suite}"]
        if self.components:
            lines.append(f"Components: {' '.join(self.components)}")
        if self.expired:
            lines.append("Check-Valid-Until: no")
        return "\n".join([*lines, f"Signed-By: {keyring}", ""])

    def preferences(self) -> str:
        """Return the preferences that let nothing but `only` come from this source."""
        if not self.only:
            return ""
        # A negative priority keeps apt from installing a version; 990 beats the 500 of other
        # sources (apt_preferences(5)).
        blocks = [("*", -10), *((name, 990) for name in self.only)]
        # Archives differ in which of the two their suite is named after.
        return "".join(
            f"Package: {name}\nPin: release {key}={self.suite}\nPin-Priority: {priority}\n\n"
            for name, priority in blocks
            for key in ("n", "a")
        )

    def offers(self, origin: str) -> bool:
        """Return whether `origin` is this source.

        It has the form of `apt-cache madison`: "URI SUITE/COMPONENT ARCHITECTURE Packages".
        """
        # A flat archive has a suite that ends in / and no component, so its place identifies no suite.
        uri, place, *_ = [*origin.split(" "), ""]
        # apt writes file:/x for file:///x
        mine = re.sub(r"^(file|copy):///", r"\1:/", self.uri).rstrip("/")
        return uri.rstrip("/") == mine and (
            place.startswith(f"{self.suite}/") if self.components else True
        )


@dataclass(frozen=True)
class Download:
    """One package apt would fetch. `uri` is unquoted, `size` in bytes."""

    name: str
    version: str
    uri: str
    size: int
    sha256: str
    file: str = ""  # as apt names it in its cache


class AptRoot:
    """An apt that resolves from given sources on top of a given dpkg status."""

    def __init__(
        self, directory: Path, lists: Path, sources: Sequence[AptSource], architecture: str
    ) -> None:
        self.directory = directory
        self.sources = tuple(sources)
        self._lists = lists
        # The caller's environment must not change what is resolved, nor apt's language.
        self._environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("APT_", "DEB", "LC_", "LANG"))
            },
            "APT_CONFIG": str(directory / "apt.conf"),
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        for part in (
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/sources.list.d",
            "etc/trusted.gpg.d",
            "keys",
        ):
            (directory / part).mkdir(parents=True)
        (directory / "cache/archives/partial").mkdir(parents=True)
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        for source in sources:
            keyring = directory / "keys" / f"{source.id}.gpg"
            keyring.write_bytes(source.keyring)
            (directory / f"etc/sources.list.d/{source.id}.sources").write_text(
                source.text(keyring), encoding="utf-8"
            )
            (directory / f"etc/preferences.d/{source.id}").write_text(
                source.preferences(), encoding="utf-8"
            )
        # Nothing is installed, so apt names the whole closure.
        (directory / "status").write_text("", encoding="utf-8")
        # Error-Mode any: without it, apt-get update succeeds with old indexes if a source fails.
        settings = {
            "Dir::State": directory,
            "Dir::State::lists": lists,
            "Dir::State::status": directory / "status",
            "Dir::State::extended_states": directory / "extended_states",
            "Dir::Cache": directory / "cache",
            "Dir::Etc": directory / "etc",
            "Dir::Etc::netrc": "/etc/apt/auth.conf",
            "Dir::Etc::netrcparts": "/etc/apt/auth.conf.d",
            "Dir::Log": directory,
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Install-Suggests": "false",
            "APT::Sandbox::User": "root",  # the root is private to this user, so apt's own user could not read it
            "APT::Update::Error-Mode": "any",
            "APT::Get::List-Cleanup": "false",
            "APT::Get::Always-Include-Phased-Updates": "true",  # Ubuntu's phases go by the machine: two would lock different versions
            "Acquire::Languages": "none",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Retries": "2",
            "Acquire::http::Timeout": "20",
            "Acquire::https::Timeout": "20",
        }
        lines = [f'{key} "{value}";' for key, value in settings.items()]
        (directory / "apt.conf").write_text(
            "\n".join([*lines, *_transport()]) + "\n", encoding="utf-8"
        )

    def use_status(self, status: Path) -> None:
        """Resolve on top of the dpkg status file `status` instead of an empty system. Raises
        LockError if it is not one: apt would name its own copy.
        """
        number = 1
        for stanza in re.split(rb"\n(?=\n)", status.read_bytes()):
            if stanza.strip() and not re.search(rb"^Package: \S", stanza, re.MULTILINE):
                raise LockError(
                    "this is no status file of dpkg: what is here names no package",
                    file=status,
                    line=number + len(stanza) - len(stanza.lstrip(b"\n")),
                    remedy="name a copy of /var/lib/dpkg/status",
                )
            number += stanza.count(b"\n") + 1
        shutil.copyfile(status, self.directory / "status")

    def accept_expired(self) -> None:
        """Accept indexes past their Valid-Until, for readers that need no recent data.

        Signatures are still verified.
        """
        with (self.directory / "apt.conf").open("a", encoding="utf-8") as conf:
            conf.write('Acquire::Check-Valid-Until "false";\n')

    def update(self) -> None:
        """Update the package indexes. Raises LockError if a source fails."""
        progress.step("reading the package indexes")
        done = self._run(["apt-get", "update", "-q"], check=False, writes=self._lists)
        if done.returncode:
            addresses = [(source.id, source.uri) for source in self.sources]
            known = apt_error(done.stderr, addresses, Transport(connections=1).proxy)
            if known is not None:
                raise known
            raise self._failure(
                done,
                "the archives could not be read",
                "check the addresses and keys of the site's archives and the network, or use --offline",
            )
        # --offline needs the indexes of all sources, which this update has read.
        (self._lists.parent / "complete").write_text("", encoding="utf-8")
        progress.step("resolving the packages")

    def require_lists(self) -> None:
        """Raise LockError if no complete set of indexes was downloaded before."""
        if not (self._lists.parent / "complete").exists():
            raise LockError(
                "these archives were never read before", remedy="run once without --offline"
            )

    def refresh(self, offline: bool) -> None:
        """Update the package indexes, or require existing ones when offline. Raises LockError."""
        if offline:
            self.require_lists()
        else:
            self.update()

    def names(self) -> list[str]:
        """Return the names of all packages the archives offer."""
        return sorted(self._run(["apt-cache", "pkgnames"]).stdout.split())

    def show(self, names: Iterable[str]) -> list[Stanza]:
        """Return the records of all offered versions of `names` (or NAME=VERSION).

        Unknown names and versions known only from the given status are left out.
        """
        wanted = sorted(set(names))
        if not wanted:
            return []
        done = self._run(["apt-cache", "show", "--all-versions", *wanted], check=False)
        return [stanza for stanza in _stanzas(done.stdout) if "Filename" in stanza]

    def choices(self, names: Iterable[str]) -> list[Stanza]:
        """Return the records of `show` that may be chosen: of a source with `only`, those packages alone.

        A pin to a version would take it from any source, also from one whose priority keeps apt from it.
        """
        stanzas = self.show(names)
        if not any(source.only for source in self.sources):
            return stanzas
        limits = {source.id: source.only for source in self.sources}
        origins = self.origins(stanza["Package"] for stanza in stanzas)

        def allowed(name: str, source: str) -> bool:
            return not limits[source] or any(fnmatch(name, glob) for glob in limits[source])

        return [
            stanza
            for stanza in stanzas
            if any(
                allowed(stanza["Package"], source)
                for source in origins.get((stanza["Package"], stanza["Version"]), ())
            )
        ]

    def records(self, downloads: Sequence[Download]) -> dict[str, Stanza]:
        """Return the archive's record of every download, by name."""
        # The hash distinguishes one version in two archives.
        wanted = {(download.name, download.sha256) for download in downloads}
        return {
            stanza["Package"]: stanza
            for stanza in self.show(f"{item.name}={item.version}" for item in downloads)
            if (stanza["Package"], stanza.get("SHA256", "")) in wanted
        }

    def archive_of(
        self, download: Download, suites: Mapping[tuple[str, str], Sequence[tuple[str, str]]]
    ) -> tuple[str, str]:
        """Return the archive of a download and the path in it. Raises LockError if it is in none of the sources.

        `suites` are those of :meth:`suites`. The longest address that matches decides; among equal
        ones, the first whose suite has the package.
        """
        offered = suites.get((download.name, download.version), ())
        there = {(_normalised_address(uri), suite) for uri, suite in offered}

        def rank(source: AptSource) -> tuple[int, bool]:
            known = (_normalised_address(source.uri), source.suite) in there
            return -len(source.uri), bool(there) and not known

        for source in sorted(self.sources, key=rank):
            base = source.uri.rstrip("/") + "/"
            # apt writes file:/x for file:///x
            for head in (
                base,
                base.replace("file:///", "file:/"),
                base.replace("copy:///", "copy:/"),
            ):
                if download.uri.startswith(head):
                    return source.id, download.uri[len(head) :].removeprefix("./")
        raise LockError(f"apt fetches {download.uri}, which is in no archive of the stack")

    def offered(self, names: Iterable[str]) -> dict[str, dict[str, set[str]]]:
        """Return what the archives have of `names`: name -> version -> hashes."""
        hashes: dict[str, dict[str, set[str]]] = {}
        for stanza in self.show(names):
            hashes.setdefault(stanza["Package"], {}).setdefault(stanza["Version"], set()).add(
                stanza.get("SHA256", "")
            )
        return hashes

    def origins(self, names: Iterable[str]) -> dict[tuple[str, str], frozenset[str]]:
        """Return which archives offer which version: (name, version) -> ids of sources."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        archives: dict[tuple[str, str], set[str]] = {}
        for line in self._run(["apt-cache", "madison", *wanted], check=False).stdout.splitlines():
            name, version, origin = [part.strip() for part in [*line.split("|"), "", ""][:3]]
            for source in self.sources:
                if origin.endswith(" Packages") and source.offers(origin):
                    archives.setdefault((name, version), set()).add(source.id)
        return {key: frozenset(ids) for key, ids in archives.items()}

    def suites(self, names: Iterable[str]) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return where each version of `names` is offered: (name, version) -> [(address, suite)], as apt writes them."""
        wanted = sorted(set(names))
        suites: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for line in (
            self._run(["apt-cache", "madison", *wanted]).stdout.splitlines() if wanted else ()
        ):
            name, version, place = (field.strip() for field in line.split("|"))
            uri, suite = place.split()[:2]
            suites.setdefault((name, version), []).append((uri, suite.partition("/")[0]))
        return suites

    def pin(self, versions: Mapping[str, str]) -> None:
        """Make `versions` (by package name) the only candidates."""
        text = "".join(
            # Above 1000 apt also goes back to an older version (apt_preferences(5)).
            f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n\n"
            for name, version in sorted(versions.items())
        )
        (self.directory / "etc/preferences.d/goldnode").write_text(text, encoding="utf-8")

    def resolve(
        self,
        requests: Sequence[str],
        *,
        only: Collection[str] | None = None,
        removals: bool = True,
    ) -> list[Download]:
        """Return what apt would fetch to install `requests` (NAME or NAME=VERSION), from the sources `only` if given.

        Without `removals`, no installed package may be removed for them. Raises UnsolvableError when it cannot.
        """
        options = []
        if only is not None and not {source.id for source in self.sources} <= set(only):
            parts = self.directory / "etc/some.list.d"
            parts.mkdir(exist_ok=True)
            # Only the sources of this call: links of an earlier one are removed.
            for source in self.sources:
                path = parts / f"{source.id}.sources"
                path.unlink(missing_ok=True)
                if source.id in only:
                    path.symlink_to(self.directory / "etc/sources.list.d" / path.name)
            options = ["-o", f"Dir::Etc::SourceParts={parts}"]
        command = [
            "apt-get",
            *options,
            "install",
            "-y",
            "-q",
            "--print-uris",
            "--no-install-recommends",
            *(() if removals else ("--no-remove",)),
        ]
        # --print-uris resolves as an installation does and fetches nothing.
        done = self._run([*command, *requests], check=False)
        if done.returncode:
            raise self._failure(
                done,
                "apt finds no way to install the stack",
                "the archives do not fit together today: read the stack's `kernel` and `driver` against them",
                UnsolvableError,
            )
        downloads = []
        for line in done.stdout.splitlines():
            match = _URI.match(line)
            if match is None:
                continue
            # apt escapes the epoch's colon in file names (NAME_1%3a2.0_amd64.deb).
            name, version, _ = unquote(match.group("file")).removesuffix(".deb").rsplit("_", 2)
            if match.group("sha256") is None:
                raise LockError(
                    f'the archive gives no SHA-256 of package "{name}"', remedy="use another mirror"
                )
            downloads.append(
                Download(
                    name,
                    version=version,
                    uri=unquote(match.group("uri")),
                    size=int(match.group("size")),
                    sha256=match.group("sha256"),
                    file=match.group("file"),
                )
            )
        return downloads

    def fetch(self, downloads: Iterable[Download], into: Path) -> None:
        """Download packages into a directory under the names of `Download.file`. apt verifies each
        against its index.

        Raises LockError.
        """
        wanted = [
            f"{item.name}={item.version}" for item in downloads if not (into / item.file).exists()
        ]
        if wanted:
            progress.step(f"downloading {len(wanted)} packages")
            done = self._run(
                ["apt-get", "download", "-q", *wanted], check=False, cwd=into, writes=into
            )
            if done.returncode:
                raise self._failure(
                    done,
                    "packages could not be downloaded",
                    "check the archives of the site and run again",
                    place=into,
                )

    def _run(
        self,
        command: list[str],
        *,
        check: bool = True,
        cwd: Path | None = None,
        writes: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of apt. `writes`: the directory into which it downloads."""
        try:
            with subprocess.Popen(
                command,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=cwd,
            ) as process:
                try:
                    out, err = _communicate(process, writes)
                except BaseException:
                    # BaseException: Ctrl-C must not leave an apt that holds the lock of its lists.
                    process.terminate()  # its download methods end with it
                    raise
        except FileNotFoundError as error:
            raise LockError(
                f"{command[0]} is not on this machine", remedy="lock on a Debian or Ubuntu machine"
            ) from error
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check and done.returncode:
            raise self._failure(done, f"{command[0]} {command[1]} failed")
        return done

    def _failure(
        self,
        done: subprocess.CompletedProcess[str],
        message: str,
        remedy: str | None = None,
        raised: type[LockError] = LockError,
        place: Path | None = None,
    ) -> LockError:
        """Return the error for a failed run of apt. A full disk has its own remedy, whatever apt was to do."""
        if is_out_of_space(done.stderr):
            places = [place or self._lists, self.directory]
            fullest = min(places, key=lambda path: shutil.disk_usage(path).free)
            return LockError(f"{message}: {_complaint(done)}", remedy=space_remedy(fullest))
        return raised(f"{message}: {_complaint(done)}", remedy=remedy)


@contextmanager
def apt_root(
    sources: Sequence[AptSource], architecture: str, cache: Path | None = None
) -> Iterator[AptRoot]:
    """Yield a new AptRoot. Its indexes are in `cache` (default $GOLDNODE_CACHE, otherwise ~/.cache/goldnode).

    Runs with the same sources wait for each other, because apt locks its lists.
    """
    # The same sources share downloaded indexes, others do not: a list never belongs to another
    # address or key.
    key = hashlib.sha256(
        repr([(s.id, s.uri, s.suite, s.components, s.fingerprints) for s in sources]).encode()
        + architecture.encode()
    ).hexdigest()[:16]
    place = (cache or cache_directory()) / "apt" / key
    place.mkdir(parents=True, exist_ok=True)
    with (
        (place / "in-use").open("w") as handle,
        tempfile.TemporaryDirectory(prefix="goldnode-apt-") as name,
    ):
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield AptRoot(Path(name), place / "lists", sources, architecture)


# apt's own limits end a silent server after a minute. On a full file system, its http method may
# wait without end.
STEP = 2  # seconds between two looks
STALLED = 300  # seconds without a change in the directory
FULL, LITTLE = 20, 64 << 10  # the same, with less than so many bytes free


def _communicate(process: subprocess.Popen[str], writes: Path | None) -> tuple[str, str]:
    """Return the output of apt. Raise LockError if it writes nothing more into `writes`, and does not end."""
    if writes is None:
        return process.communicate()
    # apt shows no progress without a terminal: growth of its directory is the sign of life.
    state, since = -1, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=STEP)
        now, free = _bytes_below(writes), shutil.disk_usage(writes).free
        if now != state:
            state, since = now, time.monotonic()
        waited = time.monotonic() - since
        if waited > FULL and free < LITTLE:
            raise LockError(
                "apt cannot go on: there is no space left on this machine for its indexes or packages",
                remedy=space_remedy(writes),
            )
        if waited > STALLED:
            raise LockError(
                f"apt has fetched nothing for {STALLED} s and does not end",
                remedy="check the network and the archives of the site, and run again",
            )


def _bytes_below(directory: Path) -> int:
    """Return the size of the files in a directory, those that vanish meanwhile excluded."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


def _transport() -> list[str]:
    """Return the machine's own proxy settings as lines of apt.conf."""
    try:
        done = subprocess.run(
            ["apt-config", "dump", "--format", '%f "%v";%n', "Acquire"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return []
    # Not the rest of Acquire: AllowInsecureRepositories, for one, would change what apt accepts.
    wanted = re.compile(r'^Acquire::(?:http|https|ftp)::(?:.*::)?Proxy(?:-Auto-Detect)? ".+";$')
    return [line for line in done.stdout.splitlines() if wanted.match(line)]


def _stanzas(text: str) -> Iterator[Stanza]:
    for block in re.split(r"\n\n+", text):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            if line[:1] not in (" ", "\t", "") and ":" in line:
                key, _, value = line.partition(":")
                fields[key] = value.strip()
        if "Package" in fields:
            yield fields


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return apt's error on one line: the packages that it would remove, its unmet dependencies if it lists them, otherwise its error messages."""
    # Only with --no-remove: its error does not name the packages.
    removed = re.search(
        r"^The following packages will be REMOVED:\n((?: .*\n)+)", done.stdout, re.M
    )
    if removed is not None and "remove is disabled" in done.stderr:
        return f"they would remove {', '.join(removed[1].split())}"
    _, reason, unmet = done.stdout.partition("The following packages have unmet dependencies:")
    lines = [line.strip() for line in (unmet if reason else done.stderr).splitlines()]
    wrong = [line for line in lines if line and (reason or line.startswith(("E:", "W:")))]
    errors = [line for line in wrong if not line.startswith("W:")] or wrong
    return (
        "; ".join(re.sub(r"\s+", " ", line).removeprefix("E: ") for line in errors[:4])
        or f"exit {done.returncode}"
    )


def _normalised_address(uri: str) -> str:
    """Return an address without the parts that apt writes differently in different places: the
    trailing slash, and the slashes of local addresses.
    """
    return re.sub(r"^(file|copy):/+", r"\1:/", uri).rstrip("/")


def package_names(relation: str) -> list[str]:
    """Return the package names of a dependency field, alternatives included."""
    parts = re.split(r"[,|]", relation)
    return [re.split(r"[ (:\[]", part.strip(), maxsplit=1)[0] for part in parts if part.strip()]
