"""Builder of goldnode-node: the package `goldnode.node` as one executable zip archive.

Builds are reproducible.

The archive includes what it uses of `pynvml`, NVIDIA's NVML binding (package nvidia-ml-py, BSD licence), so a
node needs no pip. The module carries its licence in its header.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from goldnode.core import nvml_binding
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import add_to_zip
from goldnode.node.__main__ import SEAL

NODE = Path(__file__).parents[1] / "node"
# Python before 3.8 takes an archive with a comment for a script. It ends at the second line, and shows it.
OLD_PYTHON = b"%s needs Python 3.9 or later: run it with another one, as in python3.11 %s\n"
# Standard library only, so that no site-packages are looked through (-S) and nothing of the caller's environment counts (-I).
START = b"#!/usr/bin/env -S python3 -I -S\n" + OLD_PYTHON % ((b"goldnode-node",) * 2)
BINDING = "pynvml.py"
# Only type checkers import these.
TYPES = ("goldnode/node/ground/document.py", "goldnode/node/state/contract.py")
# Sent along with an image that is written to a node, or part of an installer; never installed on a node.
WRITER = (
    "goldnode/node/slots/builder.py",
    "goldnode/node/slots/unified.py",
    "goldnode/node/slots/write.py",
    *(
        f"goldnode/node/install/{name}.py"
        for name in ("firmware", "machine", "orders", "published", "target", "write")
    ),
)


def sources(*, writer: bool = False) -> dict[str, bytes]:
    """Return archive name -> content of every file of the program, sorted by name.

    `writer` adds the modules that only disk updates need.
    """
    modules = {name: content for name, content in inputs().items() if name.startswith("goldnode/")}
    for name in (*TYPES, *(() if writer else WRITER)):
        modules.pop(name)
    start = modules.pop("goldnode/node/__main__.py")
    modules |= {BINDING: node_binding(), "goldnode/__init__.py": b"", "__main__.py": start}
    return dict(sorted(modules.items()))


def inputs() -> dict[str, bytes]:
    """Return name -> content of every file that decides the bytes of the program, sorted by name. Raises as
    :func:`binding` does.
    """
    modules = {f"goldnode/node/{path.relative_to(NODE)}": path for path in NODE.rglob("*.py")}
    others = [Path(__file__), Path(nvml_binding.__file__), *guests()]
    files = {**modules, **{path.name: path for path in others}}
    return dict(sorted({**{n: p.read_bytes() for n, p in files.items()}, **binding()}.items()))


def guests() -> list[Path]:
    """Return the modules that run on a node beside goldnode-node, and take the binding from its file."""
    return [NODE.parent / "prove" / name for name in ("latency.py", "unlock.py")]


def binding_file() -> Path:
    """Return the file of pynvml. Raises GoldnodeError if nvidia-ml-py is not installed."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise GoldnodeError(
            "the package nvidia-ml-py is not installed",
            remedy="install goldnode with its dependencies (requirements/dev.lock)",
        )
    return Path(spec.origin)


def binding() -> dict[str, bytes]:
    """Return pynvml as nvidia-ml-py installs it. Raises GoldnodeError without the package, or if the file does not begin with its licence."""
    file = binding_file()
    content = file.read_bytes()
    if b"Redistribution and use" not in content.split(b"#####", 2)[1]:
        raise GoldnodeError(
            f"{file} does not begin with its licence",
            remedy="use the release of nvidia-ml-py in requirements/dev.lock",
        )
    return {BINDING: content}


def node_binding() -> bytes:
    """Return what goldnode-node uses of pynvml. Raises as :func:`binding` does."""
    callers = (path.read_text(encoding="utf-8") for path in [*NODE.glob("device/*.py"), *guests()])
    return nvml_binding.used_part(binding()[BINDING].decode(), callers).encode()


@cache
def build(*, writer: bool = False) -> bytes:
    """Return the program as bytes. `writer`: see :func:`sources`.

    Timestamps and modes in the archive are fixed, so the digest depends on the sources alone. The file ends
    with its own checksum, as the archive comment. A start without a compiled copy verifies it
    (node/__main__.py).
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sources(writer=writer).items():
            add_to_zip(archive, name, content)
        archive.comment = b"0" * SEAL
    data = START + out.getvalue()[:-SEAL]
    return data + b"%0*x" % (SEAL, zlib.crc32(data))


def payload(*, content: bool) -> dict[str, str]:
    """Return the program for Ansible: ``{sha256}``, plus ``content`` (base64) if `content` is set."""
    data = build()
    fields = {"sha256": "sha256:" + hashlib.sha256(data).hexdigest()}
    return {**fields, "content": base64.b64encode(data).decode()} if content else fields
