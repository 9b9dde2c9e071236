"""Carry folder for `scripts/prove-gpu` whose programs run on a simulated node instead of this machine.

`goldnode-node` is the real program with another entry point: its host is the directory that :mod:`.machine`
created. `goldnode-smoke` looks for device files there. Both load the simulated libraries through the
variables of :func:`environment`, as do the children of prove-gpu itself.
"""

from __future__ import annotations

import io
import json
import os
import py_compile
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.simulators import accelerators
from tests.simulators.hardware import machine

from goldnode.core import program_file as nodefile
from goldnode.gpuprogram.pack import START
from goldnode.gpuprogram.smoke import pack as smoke
from goldnode.prove import carry

# Output of systemctl and ldconfig comes from files; any other program is reported as not found.
NODE = """\
import os, sys
from goldnode.node.program import main as program
from goldnode.node.program import start
from goldnode.node.ground.host import Host, Result
ROOT = {root!r}
class Node(Host):
    def __init__(self, root="/", live=None):
        super().__init__(ROOT if root == "/" else root, live=True if root == "/" else live)
    def located(self, name):
        return name if "/prove-gpu-" in name else super().located(name)
    def run(self, *argv, timeout=60, stdin=None):
        self.commands.append(argv)
        try:
            with open(f"{{ROOT}}/{{argv[0].rpartition('/')[2]}}.txt") as opened:
                return Result(argv, 0, opened.read(), "")
        except OSError:
            return Result(argv, 127, "", f"{{argv[0]}}: not found")
if sys.argv[1:2] != ["device"]:
    program.Host = Node
{more}
sys.exit(start.main("sha256:simulated", sys.path[0]))
"""
SMOKE = (
    "import sys\nsys.argv += ['--root', {root!r}]\nfrom goldnode.gpuprogram.smoke.start import "
    "packed\npacked()\n"
)


def folder(target: Path, root: Path, *, more: str = "", compiled: bool = True) -> Path:
    """Create the carry folder `target` for the node in `root`, which :func:`machine.write` created.

    `more` is Python code that runs at each start of the program. `compiled`: store bytecode for this Python,
    which starts faster.
    """
    carry.pack(target)
    host = machine.Machine(root, None)
    (root / "ldconfig.txt").write_text(host.run("ldconfig", "-p").out, encoding="utf-8")
    units = [row[:-5] for row in json.loads((root / machine.UNITS).read_text())]
    (root / "systemctl.txt").write_text(host.run("systemctl", "show", *units).out, encoding="utf-8")
    replace(
        target / carry.NODE,
        nodefile.START,
        nodefile.sources(),
        NODE.format(root=str(root), more=more),
        compiled,
    )
    replace(target / carry.SMOKE, START, smoke.sources(), SMOKE.format(root=str(root)), compiled)
    manifest = json.loads((target / carry.MANIFEST).read_text())
    manifest["files"] = {
        name: carry.digest((target / name).read_bytes()) for name in manifest["files"]
    }
    (target / carry.MANIFEST).write_text(json.dumps(manifest))
    return target


def replace(
    file: Path, start: bytes, sources: Mapping[str, bytes], main: str, compiled: bool
) -> None:
    """Write the archive of a program with another `__main__`.

    The archive does not unpack itself, and a test starts it many times: bytecode saves compiling it each
    time.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in {**sources, "__main__.py": main.encode()}.items():
            if compiled and name.endswith(".py"):
                archive.writestr(f"{name}c", byte_code(name, content))
            else:
                archive.writestr(name, content)
    file.write_bytes(start + out.getvalue())


@cache
def byte_code(name: str, content: bytes) -> bytes:
    """Return a module as Python would store it. Only `__main__` differs from one node to the next."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.py"
        source.write_bytes(content)
        py_compile.compile(
            str(source),
            f"{folder}/made",
            name,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        return (Path(folder) / "made").read_bytes()


def environment(root: Path, library: Path, *, count: int = 1, faults: str = "") -> dict[str, str]:
    """Return the environment for a run with the libraries of both simulators.

    `library` is a folder with both; `faults` are those of the CUDA libraries.
    """
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "PYTHON", "CUDA_"))
    }
    # A load of a whole run would take a processor by itself.
    reported = f"count={count},wait=10" + (f",{faults}" if faults else "")
    return {
        **clean,
        "LD_LIBRARY_PATH": str(library),
        "GOLDNODE_SIMULATOR": str(root / machine.PLACE),
        "GOLDNODE_ACCELERATOR": reported,
    }


def libraries(target: Path) -> Path:
    """Compile the libraries of both simulators into one folder."""
    from tests.simulators.hardware import build

    build(target)
    return accelerators.build(target, "libcuda.so.1", "libcublas.so.12", "libnccl.so.2")
