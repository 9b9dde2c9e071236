"""What inspections are tested with: small ELF files, wheels, layers and images, made here."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from goldnode.oci.identity import step_of
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, canonical, digest_of

NVIDIA = b"\xb1\x43\x62\x46\x01\x00\x00\x00"


def elf(
    *,
    needed: Sequence[str] = (),
    soname: str = "",
    imports: Sequence[str] = (),
    strings: Sequence[str] = (),
    sections: Mapping[str, bytes] | None = None,
    machine: int = 62,
    text: bytes = b"",
    data: bytes = b"",
    section_table: bool = True,
) -> bytes:
    """A 64-bit ELF file as the reader sees one: addresses are offsets, and one segment each of code, constants and data."""
    out = bytearray(64 + 4 * 56)
    names = (
        b"\0"
        + b"\0".join(
            name.encode("utf-8", "surrogateescape") for name in (*needed, soname, *imports)
        )
        + b"\0"
    )

    def at(name: str) -> int:
        return names.index(b"\0" + name.encode("utf-8", "surrogateescape") + b"\0") + 1

    def put(content: bytes) -> tuple[int, int]:
        out.extend(b"\0" * (-len(out) % 16))
        place = len(out)
        out.extend(content)
        return place, len(content)

    dynstr = put(names)
    rodata = put(b"\0" + b"\0".join(text.encode() for text in strings) + b"\0")
    code = put(text)
    extra = {name: put(content) for name, content in (sections or {}).items()}
    rows = (
        [(1, at(name)) for name in needed]
        + ([(14, at(soname))] if soname else [])
        + [(5, dynstr[0]), (10, dynstr[1]), (0, 0)]
    )
    dynamic = put(b"".join(struct.pack("<QQ", *row) for row in rows))
    written = put(data)
    segments = [
        (1, 4, 0, code[0]),
        (1, 5, *code),
        (1, 6, code[0] + code[1], len(out) - code[0] - code[1]),
        (2, 6, *dynamic),
    ]
    for index, (kind, flags, start, length) in enumerate(segments):
        struct.pack_into(
            "<IIQQQQQQ", out, 64 + 56 * index, kind, flags, start, start, start, length, length, 16
        )
    shoff, count, last = 0, 0, 0
    if section_table:
        table = {
            ".dynstr": (3, 2, *dynstr),
            ".rodata": (1, 2, *rodata),
            ".text": (1, 6, *code),
            ".data": (1, 3, *written),
        }
        table |= {name: (1, 2, *place) for name, place in extra.items()}
        listed = b"\0" + b"".join(name.encode() + b"\0" for name in (*table, ".shstrtab"))
        strtab = put(listed)
        table[".shstrtab"] = (3, 0, *strtab)
        shoff = put(b"\0" * 64)[0]
        for name, (kind, flags, start, length) in table.items():
            index = listed.index(b"\0" + name.encode() + b"\0") + 1
            out.extend(
                struct.pack("<IIQQQQIIQQ", index, kind, flags, start, start, length, 0, 0, 1, 0)
            )
        count, last = len(table) + 1, len(table)
    out[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        3,
        machine,
        1,
        0,
        64,
        shoff,
        0,
        64,
        56,
        len(segments),
        64,
        count,
        last,
    )
    return bytes(out)


def cudart(version: int) -> bytes:
    """A libcudart whose cudaRuntimeGetVersion stores `version` (12040)."""
    store = b"\xc7\x07" + struct.pack("<I", version)
    return elf(
        soname=f"libcudart.so.{version // 1000}",
        text=b"\x55" + store + b"\x5d\xc3" + store + b"\xc3",
    )


def metadata(name: str, version: str, requires: Sequence[str] = ()) -> str:
    """METADATA of a wheel."""
    return (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {row}\n" for row in requires)
        + "\nText: no\n"
    )


def wheel_files(
    name: str, version: str, files: Mapping[str, bytes], requires: Sequence[str] = ()
) -> dict[str, bytes]:
    """The files of a wheel, with its metadata and RECORD."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    found = {**files, f"{info}/METADATA": metadata(name, version, requires).encode()}
    found[f"{info}/RECORD"] = "".join(
        f"{path},sha256=x,{len(data)}\n" for path, data in found.items()
    ).encode()
    return found


def wheel(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], requires: Sequence[str] = ()
) -> Path:
    """A wheel file."""
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, data in wheel_files(name, version, files, requires).items():
            archive.writestr(inside, data)
    return path


def installed(
    *wheels: Mapping[str, bytes], root: str = "usr/local/lib/python3.11/dist-packages"
) -> dict[str, bytes]:
    """The files of wheels as they are installed."""
    return {f"{root}/{path}": data for files in wheels for path, data in files.items()}


def debs(rows: Mapping[str, tuple[str, str, Sequence[str]]]) -> dict[str, bytes]:
    """dpkg's database: name -> (version, Depends, files)."""
    status = "".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: amd64\nDepends: {depends}\nDescription: x\n y: z\n\n"
        for name, (version, depends, _) in rows.items()
    )
    lists = {
        f"var/lib/dpkg/info/{name}.list": "".join(f"/{path}\n" for path in (".", *files)).encode()
        for name, (_, _, files) in rows.items()
    }
    return {"var/lib/dpkg/status": status.encode(), **lists}


def os_release(name: str = "debian", version: str = "12") -> dict[str, bytes]:
    """os-release."""
    return {"etc/os-release": f'NAME="x"\nID={name}\nVERSION_ID="{version}"\n'.encode()}


def layer(files: Mapping[str, bytes | tuple[str, str] | None]) -> bytes:
    """A tar: None is a directory, (kind, link) a link or device."""
    out = io.BytesIO()
    kinds = {
        "l": tarfile.SYMTYPE,
        "h": tarfile.LNKTYPE,
        "c": tarfile.CHRTYPE,
        "p": tarfile.FIFOTYPE,
    }
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            if data is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(data, tuple):
                info.type, info.linkname = kinds[data[0]], data[1]
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return out.getvalue()


def image(
    layout: Layout,
    ref: str,
    layers: Sequence[Mapping[str, bytes | tuple[str, str] | None]],
    *,
    labels: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    packed: bool = True,
) -> str:
    """Put an image into `layout`, and return its digest. `packed`: with gzip.

    Labels and environment follow from the reference, except those that are given; `{}` for no label.
    """
    backend, _, tag = ref.partition(":")
    version, _, rest = tag.partition("-")
    flavour, os, build, *_ = [*rest.split("-"), "0" * 12]
    said = {"backend": backend, "runtime": version, "flavour": flavour, "os": os, "build-id": build}
    own = {f"io.goldnode.{key}": value for key, value in said.items()}
    labels = {**own, **labels} if labels else own if labels is None else {}
    name = "-".join(
        labels.get(f"io.goldnode.{key}", "") for key in ("backend", "runtime", "flavour", "os")
    )
    if environment is None:
        environment = {"NVIDIA_VISIBLE_DEVICES": "void"}
        if backend == "cuda":
            short = ".".join(version.split(".")[:2])
            environment = {
                "NVIDIA_VISIBLE_DEVICES": "all",
                "CUDA_VERSION": version,
                "NVIDIA_REQUIRE_CUDA": f"cuda>={short} brand=tesla,driver>=470",
            }
    tars = [layer(files) for files in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [f"{key}={value}" for key, value in environment.items()],
            "Labels": dict(labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [digest_of(data) for data in tars]},
        "history": [*({"created_by": "goldnode"} for _ in tars[1:]), {"created_by": step_of(name)}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.put(canonical(config), CONFIG).document(),
        "layers": [
            (
                layout.put(gzip.compress(data, 1, mtime=0), f"{LAYER}+gzip")
                if packed
                else layout.put(data, LAYER)
            ).document()
            for data in tars
        ],
    }
    found = layout.put(canonical(manifest), MANIFEST)
    layout.set_ref(ref, found)
    return found.digest


def saved(
    path: Path,
    layers: Sequence[Mapping[str, bytes | tuple[str, str] | None]],
    name: str = "cpu:1-base-debian12",
) -> Path:
    """A file as `docker save` writes it."""
    files: dict[str, bytes | tuple[str, str] | None] = {}
    for number, content in enumerate(layers):
        files[f"{number}/layer.tar"] = layer(content)
    files["config.json"] = json.dumps(
        {"architecture": "amd64", "config": {"Env": ["NVIDIA_VISIBLE_DEVICES=void"]}}
    ).encode()
    rows = [
        {
            "Config": "config.json",
            "RepoTags": [name],
            "Layers": [f"{number}/layer.tar" for number in range(len(layers))],
        }
    ]
    files["manifest.json"] = json.dumps(rows).encode()
    path.write_bytes(layer(files))
    return path
