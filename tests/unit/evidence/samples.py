"""Small images in a layout of their own, made file by file; the same arguments give the same digest."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, canonical
from goldnode.oci.model import Built, ImageSpec

IMAGE = ImageSpec(
    "cuda-12.4.1-runtime-debian12",
    backend="cuda",
    version="12.4.1",
    flavour="runtime",
    os="debian12",
    parent="cuda-12.4.1-base-debian12",
)

STATUS = """\
Package: libc6
Status: install ok installed
Maintainer: GNU Libc Maintainers <libc@example.org>
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u10
Depends: libgcc-s1, libcrypt1 (>= 1:4.4)
Description: GNU C Library
 Several lines.

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Source: gcc-12 (12.2.0-14)
Version: 12.2.0-14+b1
Depends: libc6 (>= 2.35) | musl
Description: GCC support library

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: python3
Status: install ok installed
Architecture: amd64
Version: 3.11.2-1+b1
Depends: libc6
Description: interpreter
"""
OS_RELEASE = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: it

Files: *
License: LGPL-2.1+

Files: debian/*
License: GPL-2+ or Artistic, and BSD-3-clause
 text
"""


def elf(
    soname: str = "",
    needed: Sequence[str] = (),
    *,
    wide: bool = True,
    order: str = "<",
    tail: bytes = b"",
) -> bytes:
    """A shared library of nothing but a dynamic section."""
    strings = b"\0"
    offsets = []
    for name in (*needed, soname):
        offsets.append(len(strings))
        strings += name.encode() + b"\0"
    head, one = (64, 56) if wide else (52, 32)
    table = head + 2 * one
    at = table + len(strings)
    base = 0x10000
    rows = (
        [(1, place) for place in offsets[:-1]]
        + ([(14, offsets[-1])] if soname else [])
        + [(5, base + table), (0, 0)]
    )
    dynamic = b"".join(struct.pack(f"{order}{'qQ' if wide else 'iI'}", *row) for row in rows)
    whole = at + len(dynamic) + len(tail)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    if wide:
        data = ident + struct.pack(
            f"{order}HHIQQQIHHHHHH", 3, 62, 1, 0, head, 0, 0, head, one, 2, 0, 0, 0
        )
        data += struct.pack(f"{order}IIQQQQQQ", 1, 5, 0, base, base, whole, whole, 4096)
        data += struct.pack(
            f"{order}IIQQQQQQ", 2, 6, at, base + at, base + at, len(dynamic), len(dynamic), 8
        )
    else:
        data = ident + struct.pack(
            f"{order}HHIIIIIHHHHHH", 3, 3, 1, 0, head, 0, 0, head, one, 2, 0, 0, 0
        )
        data += struct.pack(f"{order}IIIIIIII", 1, 0, base, base, whole, whole, 5, 4096)
        data += struct.pack(
            f"{order}IIIIIIII", 2, at, base + at, base + at, len(dynamic), len(dynamic), 6, 4
        )
    return data + strings + dynamic + tail


CUBLAS = elf("libcublas.so.12", ["libcublasLt.so.12", "libc.so.6"])
RECORDED = base64.urlsafe_b64encode(hashlib.sha256(CUBLAS).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Link:
    """A symbolic link, or a hard one."""

    target: str
    hard: bool = False


@dataclass(frozen=True)
class Locked:
    """A deb or wheel of a lock."""

    name: str
    version: str
    sha256: str
    architecture: str = "amd64"
    path: str = ""
    file: str = ""
    made: bool = False


@dataclass(frozen=True)
class FakeLock:
    """An image lock."""

    image: str
    digest: str
    debs: list[Locked] = field(default_factory=list)
    wheels: list[Locked] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)


Files = Mapping[str, bytes | str | Link | None]


def layer(files: Files) -> bytes:
    """A gzipped tar; None is a directory."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o644
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            elif isinstance(content, Link):
                info.type, info.linkname = (
                    (tarfile.LNKTYPE if content.hard else tarfile.SYMTYPE),
                    content.target,
                )
                tar.addfile(info)
            else:
                data = content.encode() if isinstance(content, str) else content
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), 6, mtime=0)


def image(layout: Layout, ref: str, layers: Sequence[Files], **config: Any) -> str:
    """Put an image into a layout; returns its manifest's digest. `config`: the configuration's own keys (Env, Labels, …)."""
    rows = [layout.put(layer(files), f"{LAYER}+gzip").document() for files in layers]
    document = {
        "created": "2026-11-20T00:00:00Z",
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [{"created_by": f"step {number}"} for number, _ in enumerate(layers)],
    }
    found = layout.put(
        canonical(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": layout.put(canonical(document), CONFIG).document(),
                "layers": rows,
            }
        ),
        MANIFEST,
    )
    layout.set_ref(ref, found)
    return found.digest


def base_files(status: str = STATUS) -> dict[str, bytes | str | Link | None]:
    """A small Debian root with merged /lib."""
    return {
        "etc/os-release": Link("../usr/lib/os-release"),
        "usr/lib/os-release": OS_RELEASE,
        "lib": Link("usr/lib"),
        "var/lib/dpkg/status": status,
        "var/lib/dpkg/info/libc6:amd64.list": "/.\n/lib\n/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu/libc.so.6\n",
        "var/lib/dpkg/info/libgcc-s1:amd64.list": "/lib/x86_64-linux-gnu/libgcc_s.so.1\n",
        "var/lib/dpkg/info/python3.list": "/usr/bin/python3\n/usr/lib/python3/dist-packages/six-1.dist-info/METADATA\n",
        "usr/lib/x86_64-linux-gnu": None,
        "usr/lib/x86_64-linux-gnu/libc.so.6": elf("libc.so.6"),
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1": elf("libgcc_s.so.1", ["libc.so.6"]),
        "usr/bin/python3": elf("", ["libc.so.6"]),
        "usr/lib/python3/dist-packages/six-1.dist-info/METADATA": "Name: six\nVersion: 1\n\n",
        "usr/share/doc/libc6/copyright": COPYRIGHT,
        "usr/share/doc/libgcc-s1": Link("libc6"),
        "usr/share/doc/python3/copyright": "Written by somebody, under some licence.\n",
    }


def cuda_files() -> dict[str, bytes | str | Link | None]:
    """What a runtime layer adds: a wheel unpacked into /usr/local/cuda-12.4, one installed, and a library nobody knows."""
    wheels = "usr/lib/goldnode/wheels/nvidia_cublas_cu12-12.4.5.8.dist-info"
    site = "usr/local/lib/python3.11/dist-packages"
    module = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).decode().rstrip("=")
    return {
        "usr/lib/goldnode/image.json": canonical(
            {"name": IMAGE.name, "backend": "cuda", "parts": {"cublas": "12.4.5.8"}}
        ),
        "usr/local/cuda": Link("cuda-12.4"),
        "usr/local/cuda-12.4/lib64/libcublas.so.12": CUBLAS,
        "usr/local/cuda-12.4/lib64/libcublas.so": Link("libcublas.so.12"),
        "usr/local/cuda-12.4/lib64/libcopy.so": Link(
            "usr/local/cuda-12.4/lib64/libcublas.so.12", hard=True
        ),
        "usr/local/lib/libstray.so": elf("libstray.so"),
        f"{wheels}/METADATA": (
            "Metadata-Version: 2.1\nName: nvidia-cublas-cu12\nVersion: 12.4.5.8\nLicense: NVIDIA Proprietary Software\n"
            "Summary: CUBLAS\nRequires-Dist: numpy\nRequires-Dist: pytest ; extra == 'test'\n\nLong text\n"
        ),
        f"{wheels}/RECORD": (
            f"nvidia/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nnvidia/cublas/lib/libcublas.so.12,sha256={RECORDED},1\n"
        ),
        f"{site}/numpy-2.0.0.dist-info/METADATA": "Name: numpy\nVersion: 2.0.0\nLicense-Expression: BSD-3-Clause AND 0BSD\n\n",
        f"{site}/numpy-2.0.0.dist-info/RECORD": f"numpy/a.py,sha256={module},6\nnumpy/b.py,sha256={module},6\nnumpy/gone.py,,\n",
        f"{site}/numpy/a.py": "x = 1\n",
        f"{site}/numpy/b.py": "x = 2\n",
    }


LOCKS = [
    FakeLock(
        "cuda-12.4.1-base-debian12",
        "sha256:" + "b" * 64,
        [
            Locked(
                "libc6",
                "2.36-9+deb12u10",
                "1" * 64,
                path="pool/main/g/glibc/libc6_2.36-9+deb12u10_amd64.deb",
            ),
            Locked(
                "libgcc-s1",
                "12.2.0-14+b1",
                "2" * 64,
                path="pool/main/g/gcc-12/libgcc-s1_12.2.0-14+b1_amd64.deb",
            ),
        ],
    ),
    FakeLock(
        IMAGE.name,
        "sha256:" + "c" * 64,
        [],
        [
            Locked(
                "nvidia-cublas-cu12",
                "12.4.5.8",
                "3" * 64,
                file="nvidia_cublas_cu12-12.4.5.8-py3-none-manylinux2014_x86_64.whl",
            )
        ],
    ),
]


def sample(layout: Layout, build_id: str = "aaaaaaaaaaaa", **config: Any) -> str:
    """The sample image, under its immutable tag."""
    environment = {
        "Env": ["PATH=/usr/bin", "CUDA_VERSION=12.4.1"],
        "Labels": {"io.goldnode.backend": "cuda"},
    } | config
    return image(
        layout, f"cuda:{IMAGE.immutable_tag(build_id)}", [base_files(), cuda_files()], **environment
    )


def built(digest: str, build_id: str = "aaaaaaaaaaaa") -> Built:
    """The record of its build."""
    return Built(
        IMAGE.name,
        build_id=build_id,
        recipe="sha256:" + "a" * 64,
        lock=LOCKS[-1].digest,
        digest=digest,
        tools={"buildah": "1.28.2", "gzip": "1.12"},
    )
