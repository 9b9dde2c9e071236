"""Differences between two images: packages, files, libraries, configuration and size, for people and
requirements of a promotion.

A file that changes together with its package is only counted. A file that changes without its package, or has
no package, is listed individually. A major version change of a component that programs link against comes
first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from goldnode.evidence.contents import Contents, InstalledDeb, InstalledWheel, key
from goldnode.evidence.layers import FileEntry
from goldnode.evidence.size import human
from goldnode.node.state.debversion import compare
from goldnode.oci.layout import OciImage, canonical

# Components that programs link against: package name patterns, and how many version numbers make up the major
# version.
_PARTS: dict[str, tuple[re.Pattern[str], int]] = {
    "cuda": (re.compile(r"^(nvidia-cuda-runtime(-cu\d+)?|libcudart\d+(\.\d+)?)$"), 1),
    "cudnn": (re.compile(r"^(nvidia-cudnn(-cu\d+)?|libcudnn\d+)$"), 1),
    "nccl": (re.compile(r"^(nvidia-nccl(-cu\d+)?|libnccl\d+)$"), 1),
    "cublas": (re.compile(r"^(nvidia-cublas(-cu\d+)?|libcublas\d+)$"), 1),
    "rocm": (re.compile(r"^(rocm-core|libamdhip64-\d+)$"), 1),
    "oneapi": (re.compile(r"^(intel-sycl-rt|dpcpp-cpp-rt|intel-oneapi-runtime-dpcpp-cpp)$"), 1),
    "python": (re.compile(r"^python3$"), 2),
    "glibc": (re.compile(r"^libc6$"), 2),
}
# Labels that only identify a build. They differ between any two builds and mean nothing else.
_IDENTITY = (
    *(f"io.goldnode.{name}" for name in ("build-id", "lock", "recipe")),
    *(
        f"org.opencontainers.image.{name}"
        for name in ("created", "ref.name", "base.digest", "base.name")
    ),
)
_CONFIG = (
    "User",
    "Entrypoint",
    "Cmd",
    "WorkingDir",
    "ExposedPorts",
    "Volumes",
    "StopSignal",
    "Shell",
)
# Records that follow from the installed packages. They are counted, not listed.
_RECORDS = ("var/lib/dpkg/", "var/lib/apt/", "usr/lib/goldnode/", "var/cache/", "var/log/")
_RECORD_FILES = {"etc/ld.so.cache"}
_SHOWN = 20  # rows of a list; --files shows all


@dataclass(frozen=True)
class ImageChange:
    """One difference. `was` or `now` is None if the old or the new image lacks it."""

    name: str
    was: str | None
    now: str | None

    @property
    def kind(self) -> str:
        """Return `added`, `removed` or `changed`."""
        if self.was is None:
            return "added"
        if self.now is None:
            return "removed"
        return "changed"

    def data(self) -> dict[str, Any]:
        """Return the change as JSON-serialisable data."""
        return {"name": self.name, "kind": self.kind, "from": self.was, "to": self.now}


@dataclass(frozen=True)
class ImageDiff:
    """Differences between two images.

    `packages` has the changes of debs and of wheels. Sizes are in bytes, new minus old.
    """

    old: str
    new: str
    names: tuple[str, str]
    major: list[ImageChange]
    packages: dict[str, list[ImageChange]]
    rebuilt: list[str]
    files: dict[str, dict[str, int]]
    unexplained: list[ImageChange]
    records: int
    libraries: list[ImageChange]
    needed: list[dict[str, Any]]
    environment: list[ImageChange]
    labels: list[ImageChange]
    config: list[ImageChange]
    identity: list[ImageChange]
    sizes: dict[str, tuple[int, int]]
    grown: list[tuple[str, int]] = field(default_factory=list)
    layers_shared: int = 0
    layers: tuple[int, int] = (0, 0)
    bytes_to_pull: int = 0

    def __bool__(self) -> bool:
        rows = (
            self.packages.values(),
            [
                self.rebuilt,
                self.unexplained,
                self.environment,
                self.labels,
                self.config,
                self.needed,
            ],
        )
        return any(row for group in rows for row in group) or bool(self.files)

    def data(self) -> dict[str, Any]:
        """Return the data of the attached document. A promotion asks for confirmation of `major`."""
        return {
            "subject": self.new,
            "against": self.old,
            "names": {"from": self.names[0], "to": self.names[1]},
            "major": [row.data() for row in self.major],
            "packages": {
                kind: [row.data() for row in rows] for kind, rows in self.packages.items()
            },
            "rebuilt": self.rebuilt,
            "files": self.files,
            "unexplained": [row.data() for row in self.unexplained],
            "records": self.records,
            "libraries": [row.data() for row in self.libraries],
            "needed": self.needed,
            "environment": [row.data() for row in self.environment],
            "labels": [row.data() for row in self.labels],
            "config": [row.data() for row in self.config],
            "identity": [row.data() for row in self.identity],
            "sizes": {
                name: {"from": was, "to": now, "by": now - was}
                for name, (was, now) in self.sizes.items()
            },
            "grown": [{"package": name, "by": by} for name, by in self.grown],
            "layers": {"from": self.layers[0], "to": self.layers[1], "shared": self.layers_shared},
            "bytes_to_pull": self.bytes_to_pull,
        }

    def document(self) -> bytes:
        """Return the canonical JSON."""
        return canonical(self.data())

    def text(self, *, files: bool = False) -> str:
        """Return the differences as text for people. `files`: list every unexplained file, not only the first
        ones.
        """
        lines = [f"{self.names[0]} -> {self.names[1]}"]
        if self.old == self.new:
            return f"{lines[0]}\nthe same image: {self.new}"
        lines += [
            f"MAJOR {row.name} {row.was} -> {row.now}: "
            "what is linked against the old one does not run on the new"
            for row in self.major
        ]
        for kind, rows in self.packages.items():
            if rows:
                lines.append(f"{kind}: {counts(rows)}")
                lines += [f"  {shown_change(row)}" for row in rows]
        if self.rebuilt:
            lines.append(f"same version, other file: {', '.join(self.rebuilt)}")
        lines += file_lines(self.files, self.unexplained, None if files else _SHOWN)
        if self.libraries:
            lines.append("libraries that programs find by name:")
            lines += listed(
                [f"{sign(row)} {row.name}" for row in self.libraries], None if files else _SHOWN
            )
        if self.needed:
            lines.append(f"programs and libraries that need others than before: {len(self.needed)}")
            others = [
                f"/{row['path']}: "
                + ", ".join(
                    [
                        *(f"+ {name}" for name in row["added"]),
                        *(f"- {name}" for name in row["removed"]),
                    ]
                )
                for row in self.needed
            ]
            lines += listed(others, None if files else _SHOWN)
        for title, changes in (
            ("environment", self.environment),
            ("labels", self.labels),
            ("configuration", self.config),
        ):
            if changes:
                lines.append(f"{title}:")
                lines += [f"  {shown_change(row)}" for row in changes]
        for name, (was, now) in self.sizes.items():
            lines.append(
                f"{name}: {human(was)} -> {human(now)} ({'+' if now >= was else ''}{human(now - was)})"
            )
        lines += [f"  {'+' if by >= 0 else ''}{human(by)}  {name}" for name, by in self.grown[:10]]
        shared = f"{self.layers_shared} of {self.layers[1]} layers are the old image's"
        lines.append(f"{shared}; who has it pulls {human(self.bytes_to_pull)}")
        if not self:
            lines.append("no package, file or setting differs")
        return "\n".join(lines)


def compare_images(
    old: tuple[OciImage, Contents],
    new: tuple[OciImage, Contents],
    names: tuple[str, str] | None = None,
) -> ImageDiff:
    """Compare two images and their contents."""
    (old_image, was), (new_image, now) = old, new
    packages, rebuilt = {}, list[str]()
    touched: set[str] = set()
    for kind, before, after in (("debs", was.debs, now.debs), ("wheels", was.wheels, now.wheels)):
        changes, same = package_changes(before, after)
        packages[kind] = changes
        rebuilt += same
        touched |= {row.name for row in changes} | set(same)
    files, unexplained, records = file_changes(was, now, touched)
    config = [(image.config.get("config") or {}) for image in (old_image, new_image)]
    labels = _settings(old_image.labels, new_image.labels)
    old_layers = {layer.digest for layer in old_image.layers}
    grown = growth(was, now)
    return ImageDiff(
        old=old_image.digest,
        new=new_image.digest,
        names=names or (_title(old_image), _title(new_image)),
        major=majors(was, now),
        packages=packages,
        rebuilt=sorted(rebuilt),
        files=files,
        unexplained=unexplained,
        records=records,
        libraries=_libraries(was, now),
        needed=_needed(was, now),
        environment=_settings(old_image.environment, new_image.environment),
        labels=[row for row in labels if row.name not in _IDENTITY],
        config=_settings(
            *({name: _plain(part[name]) for name in _CONFIG if part.get(name)} for part in config)
        ),
        identity=[row for row in labels if row.name in _IDENTITY],
        sizes={
            "compressed": (
                sum(row.size for row in old_image.layers),
                sum(row.size for row in new_image.layers),
            ),
            "files": (bytes_of(was), bytes_of(now)),
        },
        grown=grown,
        layers_shared=len([row for row in new_image.layers if row.digest in old_layers]),
        layers=(len(old_image.layers), len(new_image.layers)),
        bytes_to_pull=sum(row.size for row in new_image.layers if row.digest not in old_layers),
    )


def _title(image: OciImage) -> str:
    labels = image.labels
    return (
        labels.get("org.opencontainers.image.ref.name")
        or labels.get("org.opencontainers.image.title")
        or image.digest
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value).decode()


def _settings(was: Mapping[str, str], now: Mapping[str, str]) -> list[ImageChange]:
    return [
        ImageChange(name, was.get(name), now.get(name))
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]


def package_changes(
    before: tuple[InstalledDeb, ...] | tuple[InstalledWheel, ...],
    after: tuple[InstalledDeb, ...] | tuple[InstalledWheel, ...],
) -> tuple[list[ImageChange], list[str]]:
    """Return the packages that differ, by name, and those with the same version but another file."""
    old = {key(item): item for item in before}
    new = {key(item): item for item in after}
    changes, same = [], []
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        shown = _package_name(name)
        if was is None or now is None or was.version != now.version:
            changes.append(
                ImageChange(shown, was.version if was else None, now.version if now else None)
            )
        # Without a lock, the file of a package is not known.
        elif was.sha256 and now.sha256 and was.sha256 != now.sha256:
            same.append(shown)
    return changes, same


def _package_name(owner: str) -> str:
    return owner.split(":")[1] if ":" in owner else owner


def majors(was: Contents, now: Contents) -> list[ImageChange]:
    changes = []
    for part, (pattern, count) in _PARTS.items():
        before, after = (_majors(item, pattern, count) for item in (was, now))
        # A component only one image has is a change of the package list, not a major version change.
        if before and after and before.keys() != after.keys():
            changes.append(
                ImageChange(
                    part,
                    ", ".join(before[name] for name in sorted(before)),
                    ", ".join(after[name] for name in sorted(after)),
                )
            )
    return changes


def _majors(contents: Contents, pattern: re.Pattern[str], count: int) -> dict[tuple[int, ...], str]:
    versions: dict[tuple[int, ...], str] = {}
    for item in contents.packages:
        if pattern.match(
            canonicalize_name(item.name) if isinstance(item, InstalledWheel) else item.name
        ):
            # Ignore the epoch and everything after the upstream version.
            version = item.version.partition(":")[2] or item.version
            numbers = tuple(
                int(part) for part in re.findall(r"\d+", re.split(r"[-~+]", version)[0])[:count]
            )
            versions[numbers] = version
    return versions


def file_changes(
    was: Contents, now: Contents, touched: set[str]
) -> tuple[dict[str, dict[str, int]], list[ImageChange], int]:
    """Compare the files of two images.

    Return the counts by package (`""`: no package), the changes that no package explains, and the number of
    changed records.
    """
    counts: dict[str, dict[str, int]] = {}
    unexplained, records = [], 0
    before, after = was.snapshot.entries, now.snapshot.entries
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if (one is None or one.kind == "d") and (other is None or other.kind == "d"):
            # Directories come and go with their content. Compare mode and owner only where both images have
            # one.
            if one is None or other is None or _told(one) == _told(other):
                continue
        elif one is not None and other is not None and _told(one) == _told(other):
            continue
        change = ImageChange(path, _state(one), _state(other))
        owner = _package_name(now.owners.get(path) or was.owners.get(path) or "")
        row = counts.setdefault(owner, {})
        row[change.kind] = row.get(change.kind, 0) + 1
        if path.startswith(_RECORDS) or path in _RECORD_FILES:
            records += 1
        elif owner not in touched:
            unexplained.append(change)
    return counts, unexplained, records


def _told(entry: FileEntry) -> tuple[Any, ...]:
    # To a reader, a hard link is the same as a file with the same content.
    kind = "f" if entry.kind == "h" else entry.kind
    return kind, entry.mode, entry.uid, entry.gid, entry.sha256, entry.link if kind == "l" else ""


def _state(entry: FileEntry | None) -> str | None:
    if entry is None:
        return None
    if entry.kind == "l":
        what = f"-> {entry.link}"
    else:
        what = entry.sha256[:12] or {"d": "directory"}.get(entry.kind, "special")
    return f"{entry.mode:04o} {entry.uid}:{entry.gid} {what}"


def _libraries(was: Contents, now: Contents) -> list[ImageChange]:
    before, after = (
        {entry.soname for entry in item.snapshot.entries.values() if entry.soname}
        for item in (was, now)
    )
    return [
        ImageChange(name, name if name in before else None, name if name in after else None)
        for name in sorted(before ^ after)
    ]


def _needed(was: Contents, now: Contents) -> list[dict[str, Any]]:
    """Return the files of both images whose DT_NEEDED differs.

    Library file names may contain the version, so libraries are also matched by directory and soname.
    """
    by_name: dict[tuple[str, str], FileEntry] = {}
    for path, entry in was.snapshot.files():
        if entry.elf and entry.soname:
            by_name[(path.rpartition("/")[0], entry.soname)] = entry
    missing = []
    for path, entry in now.snapshot.files():
        if not entry.elf:
            continue
        one = was.snapshot.entries.get(path) or by_name.get((path.rpartition("/")[0], entry.soname))
        if one is not None and one.elf and set(one.needed) != set(entry.needed):
            missing.append(
                {
                    "path": path,
                    "added": sorted(set(entry.needed) - set(one.needed)),
                    "removed": sorted(set(one.needed) - set(entry.needed)),
                }
            )
    return missing


def bytes_of(contents: Contents) -> int:
    return sum(entry.size for entry in contents.snapshot.entries.values() if entry.kind == "f")


def growth(was: Contents, now: Contents) -> list[tuple[str, int]]:
    """Return the growth of each package in bytes, largest change first.

    Files of no package are counted as `without package`.
    """
    totals: dict[str, int] = {}
    for contents, sign in ((was, -1), (now, 1)):
        for path, entry in contents.snapshot.entries.items():
            if entry.kind == "f":
                name = _package_name(contents.owners.get(path, "")) or "without package"
                totals[name] = totals.get(name, 0) + sign * entry.size
    return sorted(
        ((name, by) for name, by in totals.items() if by), key=lambda row: (-abs(row[1]), row[0])
    )


def counts(rows: list[ImageChange]) -> str:
    moved = [row for row in rows if row.was is not None and row.now is not None]
    older = len([row for row in moved if compare(str(row.was), str(row.now)) > 0])
    numbers = {
        "moved": len(moved),
        "new": len([row for row in rows if row.was is None]),
        "removed": len([row for row in rows if row.now is None]),
    }
    text = ", ".join(f"{number} {word}" for word, number in numbers.items() if number)
    return f"{text}, {older} of them to an older version" if older else text


def sign(row: ImageChange) -> str:
    return {"added": "+", "removed": "-", "changed": "~"}[row.kind]


def shown_change(row: ImageChange) -> str:
    if row.was is None:
        return f"+ {row.name} {row.now}"
    return f"- {row.name} {row.was}" if row.now is None else f"{row.name} {row.was} -> {row.now}"


def file_lines(
    files: Mapping[str, Mapping[str, int]], unexplained: Sequence[ImageChange], limit: int | None
) -> Iterator[str]:
    """Yield the changes of files as text: counts, then up to `limit` files that changed without their package."""
    if files:
        total = {
            word: sum(row.get(word, 0) for row in files.values())
            for word in ("added", "removed", "changed")
        }
        yield f"files: {', '.join(f'{number} {word}' for word, number in total.items() if number)}"
    if unexplained:
        yield f"files that changed without their package: {len(unexplained)}"
        yield from listed([f"{sign(row)} /{row.name}" for row in unexplained], limit)


def listed(rows: list[str], limit: int | None) -> list[str]:
    shown = rows if limit is None else rows[:limit]
    more = len(rows) - len(shown)
    return [
        *(f"  {row}" for row in shown),
        *([f"  and {more} more (--files names them)"] if more else []),
    ]
