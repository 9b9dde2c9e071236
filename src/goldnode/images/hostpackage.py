"""The package `goldnode-driver-from-host`: it represents the host's driver in an image, without any library.

Debian's nvidia-cuda-dev depends on `libcuda1 | libcuda.so.1`, as if it were installed next to a
driver. In a container the host provides the driver's libraries through the container runtime; a
copy in the image would hide or contradict them. So this package provides libcuda.so.1.

The file is a function of its Provides only. This module writes it without dpkg-deb, whose output
differs between versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from goldnode.core.deb import PackagedFile, ar, md5sums, tar
from goldnode.core.errors import ImageError
from goldnode.lock.aptroot import Stanza
from goldnode.lock.locked_files import MADE, LockedDeb

NAME = "goldnode-driver-from-host"
RECIPE = 1  # increase it when equal provisions give different bytes
# 2026-01-01. A fixed date: with the lock's date, the same content would be a new file after each
# lock.
EPOCH = 1_767_225_600
_ANY = "999999"  # higher than any required version

_TEXT = """\
This package holds no driver and no library. It stands for those of the host: a container runtime hands in \
libcuda.so.1 and what
belongs to it when the container starts (NVIDIA's container toolkit, or CDI). Without that, what needs \
a driver does not start here.

It was made by goldnode, because Debian's packages of CUDA depend on a driver: {provides}.
"""


def provisions(names: Iterable[str], stanzas: Iterable[Stanza]) -> dict[str, str | None]:
    """Return the required provisions: each of `names` with the lowest version that satisfies all `stanzas`.

    A version of None means any. Names that no stanza depends on are left out. Raises ImageError for
    a dependency other than "at least".
    """
    wanted = set(names)
    provided: dict[str, str | None] = {}
    for stanza in stanzas:
        for clause in f"{stanza.get('Pre-Depends', '')},{stanza.get('Depends', '')}".split(","):
            for part in clause.split("|"):
                match = re.fullmatch(
                    r"\s*([^\s(:\[]+)(?::\w+)?\s*(?:\(\s*([<>=]+)\s*([^\s)]+)\s*\))?\s*", part
                )
                if match is None or match[1] not in wanted:
                    continue
                if match[2] not in (None, ">="):
                    raise ImageError(
                        f"{stanza['Package']} asks for {part.strip()}, and a package of goldnode's can "
                        "only be new enough",
                        remedy="take the name out of `from_host`",
                    )
                have = provided.setdefault(match[1], match[3])
                if match[3] is not None and (have is None or _order(match[3]) > _order(have)):
                    provided[match[1]] = match[3]
    return provided


def stated(provides: Iterable[str]) -> dict[str, str | None]:
    """Return the Provides of a locked package of this kind, in the form that `locked` takes."""
    rows = (text.partition(" (= ") for text in provides)
    return {name: version.rstrip(")") or None for name, _, version in rows}


def _order(version: str) -> tuple[int, ...]:
    """Return a driver version as a tuple of numbers. Raises ImageError for any other version."""
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise ImageError(
            f'"{version}" is no version of a driver', remedy="take the name out of `from_host`"
        )
    return tuple(map(int, version.split(".")))


def stand_in(names: Iterable[str]) -> Stanza:
    """Return an apt record that provides any version of `names`, for the first resolution."""
    return stanza(tuple(f"{name} (= {_ANY})" for name in sorted(names)))


def locked(provided: Mapping[str, str | None]) -> LockedDeb:
    """Return the lock entry of the package that provides these names."""
    provides = tuple(
        name if version is None else f"{name} (= {version})"
        for name, version in sorted(provided.items())
    )
    data = package(provides)
    fields = stanza(provides)
    return LockedDeb(
        name=NAME,
        version=fields["Version"],
        architecture="all",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        path=f"{NAME}_{fields['Version']}_all.deb",
        archive=MADE,
        why="stands for the host's driver",
        provides=provides,
    )


def write(item: LockedDeb, path: Path) -> None:
    """Write the file of a locked package of this kind.

    Raises ImageError if this goldnode would build different content, or if the file cannot be
    written.
    """
    data = package(item.provides)
    if hashlib.sha256(data).hexdigest() != item.sha256:
        raise ImageError(
            f"this goldnode makes another {item.name} than the lock names",
            remedy="run `goldnode images lock --upgrade` for the image",
        )
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise ImageError(
            f"the pool cannot be written: {error.strerror}",
            file=path.parent,
            remedy="make room there, or name another store",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def stanza(provides: tuple[str, ...]) -> dict[str, str]:
    """Return the control fields of the package with these Provides."""
    versions = sorted(
        {text.partition("(= ")[2].rstrip(")") for text in provides} - {""},
        key=lambda text: [int(part) for part in text.split(".")],
    )
    return {
        "Package": NAME,
        "Version": "+".join([str(RECIPE), *versions]),
        "Architecture": "all",
        "Multi-Arch": "foreign",
        "Maintainer": "goldnode images lock <root@localhost>",
        "Installed-Size": "1",
        "Section": "misc",
        "Priority": "optional",
        "Provides": ", ".join(provides),
        "Description": "stands for the NVIDIA driver that the host hands in; holds no library",
    }


def package(provides: tuple[str, ...]) -> bytes:
    """Return the bytes of the .deb with these Provides: deb(5), with two uncompressed tars."""
    fields = stanza(provides)
    control = "".join(f"{name}: {value}\n" for name, value in fields.items()).encode()
    text = _TEXT.format(provides=fields["Provides"]).encode()
    licence = (
        b"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
        b"Files: *\nCopyright: the authors of goldnode\n"
        b"License: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n"
    )
    doc = f"./usr/share/doc/{NAME}"
    folders = ["./", "./usr/", "./usr/share/", "./usr/share/doc/", f"{doc}/"]
    files = [
        PackagedFile(f"/{doc[2:]}/README", text),
        PackagedFile(f"/{doc[2:]}/copyright", licence),
    ]
    parts = [PackagedFile("./control", control), PackagedFile("./md5sums", md5sums(files))]
    inside = [file._replace(path=f".{file.path}") for file in files]
    members = {
        "debian-binary": b"2.0\n",
        "control.tar": tar(["./"], parts, EPOCH),
        "data.tar": tar(folders, inside, EPOCH),
    }
    return ar(members, EPOCH)
