"""Changelogs of Debian packages between two versions, as their .deb files have them (deb-changelog(5)).

A changelog is that of the source package, and each binary package has a copy: the smallest file of a source is read. Kernels
that are signed come from a source of their own, whose changelog continues with that of the kernel.
"""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cmp_to_key
from pathlib import Path

from goldnode.core.errors import LockError
from goldnode.evidence.sources import source_of_path
from goldnode.lock.diff import LockDiff, PackageChange
from goldnode.lock.model import LockedPackage
from goldnode.node.state.debversion import compare

CVE = re.compile(r"\bCVE-\d{4}-\d{4,}\b")
_HEAD = re.compile(
    r"(?P<source>[a-z0-9][a-z0-9+.-]*) \((?P<version>[^() \t]+)\)(?P<suites>(?: +[\w.+-]+)+); *(?P<keys>.*)"
)
_TRAIL = re.compile(r" -- .*>  ?(?P<date>.*)")
_URGENCY = re.compile(r"urgency=([a-z]+)", re.IGNORECASE)
# A package that is native to Debian has no `.Debian` in the name, and a rebuild (binNMU) has its entry in a file of its architecture.
_FILE = re.compile(
    r"(?P<kind>(?:changelog|NEWS)(?:\.Debian)?)(?:(?<=Debian)\.(?P<architecture>[a-z0-9]+))??(?P<packed>\.gz)?"
)
_TRIMMED = "# Older entries have been removed from this changelog."  # of debhelper 13
# Bytes of an unpacked changelog: that of Debian 12's kernel has 3.7 MB.
_MOST = 64 << 20


@dataclass(frozen=True)
class ChangelogEntry:
    """One version of a source package: its date as the changelog writes it, and the lines of its changes."""

    source: str
    version: str
    urgency: str
    date: str
    lines: tuple[str, ...]

    @property
    def cves(self) -> list[str]:
        """Return the vulnerabilities that its lines name, each once."""
        return list(dict.fromkeys(CVE.findall("\n".join(self.lines))))


@dataclass(frozen=True)
class SourceChange:
    """A source package whose packages move: the lowest version before, the highest after, and the files to read.

    `files` are those of the newest version, the smallest first. `back`: the packages go to an older version, from the
    highest to the lowest, so the entries are those that are taken back.
    """

    source: str
    packages: tuple[str, ...]
    was: str
    now: str
    back: bool
    files: tuple[LockedPackage, ...]


@dataclass(frozen=True)
class SourceNotes:
    """Entries and news of a package file about a change, the newest first.

    `trimmed`: the file has no entries as old as the version before. `fault` is why it could not be read.
    """

    change: SourceChange
    entries: tuple[ChangelogEntry, ...] = ()
    news: tuple[ChangelogEntry, ...] = ()
    trimmed: bool = False
    fault: str = ""

    @property
    def cves(self) -> list[str]:
        """Return the vulnerabilities that the entries name, each once."""
        return list(dict.fromkeys(cve for entry in self.entries for cve in entry.cves))


@dataclass
class _Group:
    changes: list[PackageChange] = field(default_factory=list)

    def change(self, source: str) -> SourceChange:
        """Return the change of this source package."""
        rows = [(change.was, change.now) for change in self.changes]
        pairs = [(was, now) for was, now in rows if was is not None and now is not None]
        before = sorted((was.version for was, _ in pairs), key=cmp_to_key(compare))
        after = sorted((now.version for _, now in pairs), key=cmp_to_key(compare))
        back = compare(before[0], after[-1]) > 0
        # Packages of one source may differ: a signed kernel comes days later than the rest of its source.
        first, last = (before[-1], after[0]) if back else (before[0], after[-1])
        newer, version = [was if back else now for was, now in pairs], first if back else last
        files = sorted(
            (item for item in newer if item.version == version),
            key=lambda item: (item.size, item.name),
        )
        return SourceChange(
            source, tuple(now.name for _, now in pairs), first, last, back=back, files=tuple(files)
        )


def source_changes(diff: LockDiff) -> list[SourceChange]:
    """Return the source packages that move between two locks, those of the stack first, as the diff has them."""
    groups: dict[str, _Group] = {}
    for change in diff.changes:
        if change.kind == "moved" and change.now is not None:
            # The signed kernel has the version and the changes of its source: one group, read from a smaller file.
            source, _ = source_of_path(change.now.path, change.now.name, change.now.version)
            groups.setdefault(source, _Group()).changes.append(change)
    return [group.change(source) for source, group in groups.items()]


def notes_of(change: SourceChange, deb: Path) -> SourceNotes | None:
    """Return the entries of a package file between the two versions.

    None if the file has no changelog: packages of one source may share the folder of one of them.
    Raises LockError for a file that is not a Debian package.
    """
    texts = _texts(deb)
    # Without `.Debian` it is that of a native package, or upstream's, which has no entries of this form.
    text = texts.get("changelog.Debian") or texts.get("changelog", "")
    listed = list(read_entries(text))
    if not listed:
        return None
    older = change.now if change.back else change.was
    entries = tuple(_after(listed, older))
    trimmed = len(entries) == len(listed) and _TRIMMED in text
    news = tuple(_after(read_entries(texts.get("NEWS.Debian", "")), older))
    fault = "" if entries else f"the changelog has no entry after {older}"
    return SourceNotes(change, entries, news, trimmed, fault)


def read_entries(text: str) -> Iterator[ChangelogEntry]:
    """Yield the entries of a changelog, the newest first. Lines that belong to no entry are left out."""
    head: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        begin = _HEAD.fullmatch(line.rstrip())
        trail = _TRAIL.fullmatch(line)
        if begin is not None:
            # An entry without a trailer is one that was cut short; its changes are read all the same.
            if head is not None:
                yield _entry(head, lines, "")
            head, lines = begin, []
        elif trail is not None and head is not None:
            yield _entry(head, lines, trail["date"].strip())
            head, lines = None, []
        elif head is not None and line.strip():
            lines.append(line.rstrip())
    if head is not None:
        yield _entry(head, lines, "")


def _entry(head: re.Match[str], lines: Iterable[str], date: str) -> ChangelogEntry:
    urgency = _URGENCY.search(head["keys"])
    return ChangelogEntry(
        head["source"], head["version"], urgency[1].lower() if urgency else "", date, tuple(lines)
    )


def _after(entries: Iterable[ChangelogEntry], version: str) -> Iterator[ChangelogEntry]:
    """Yield the entries above a version. Changelogs are sorted, so the first that is not ends them."""
    for entry in entries:
        if compare(entry.version, version) <= 0:
            return
        yield entry


def _texts(deb: Path) -> dict[str, str]:
    """Return the changelog and the news of a package file. Raises LockError."""
    texts: dict[str, str] = {}
    process = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    try:
        with process, tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                match = _FILE.fullmatch(name)
                if match is None or not folder.lstrip("./").startswith("usr/share/doc/"):
                    continue
                opened = tar.extractfile(member) if member.isfile() else None
                if opened is not None:
                    text = _unpacked(opened.read(_MOST), packed=match["packed"] is not None)
                    before = texts.get(match["kind"], "")
                    # The entry of a rebuild is newer than those of its source.
                    first, second = (text, before) if match["architecture"] else (before, text)
                    texts[match["kind"]] = f"{first}\n{second}"
    except (tarfile.TarError, OSError, EOFError, zlib.error) as problem:
        raise LockError(
            f"this package cannot be read: {problem}", file=deb, remedy="delete it and run again"
        ) from problem
    return texts


def _unpacked(content: bytes, *, packed: bool) -> str:
    if packed:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            content = file.read(_MOST)
    return content.decode(errors="replace")
