"""Bytecode of goldnode-node, and of the modules of Python's standard library that it imports, in a root filesystem.

Debian's packages compile the library when they are installed, with the modification times of its sources in each file, and `sanitise` removes that.
The units of goldnode may not write below /usr, so each of their runs would compile the library again. goldnode-node itself would be compiled at each
boot. Together that is 0.7 s of processor time for the check of a boot, and 20 s in an emulated guest (Python 3.11, 2026-12-01).
"""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

from goldnode.core.errors import DiskError
from goldnode.core.program_file import sources
from goldnode.node.__main__ import SHIPPED
from goldnode.node.ground.host import PROGRAM
from goldnode.oci.emulation import emulated
from goldnode.oci.model import AMD64

PYTHON = "/usr/bin/python3"

# Names that do not exist in this Python or on Linux are skipped, as goldnode-node does. -B: nothing is written yet.
LIST = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
print(json.dumps(sorted({spec.origin for spec in specs if spec and spec.cached})))
"""

# Another process: bytecode depends on which strings the process knows already. It is valid for the digest of its source,
# not for a date: an update of Python replaces it, and so does an edit.
COMPILE = """
import json, os, py_compile, sys
os.umask(0o022)
mode = py_compile.PycInvalidationMode.CHECKED_HASH
for name in json.loads(sys.argv[1]):
    py_compile.compile(name, doraise=True, invalidation_mode=mode)
"""

# The program makes its copy itself. Its start is executed under another name, so that it runs no command.
COPY = """
import hashlib, json, os, sys, tempfile, zipimport
os.umask(0o022)
archive, place = json.loads(sys.argv[1])
start = {"__name__": "start"}
exec(zipimport.zipimporter(archive).get_code("__main__"), start)
with open(archive, "rb") as opened:
    data = opened.read()
start["verify"](archive, data)
digest = hashlib.sha256(data).hexdigest()
os.makedirs(place, exist_ok=True)
with tempfile.TemporaryDirectory() as work, open(start["named"](digest, place), "wb") as copy:
    copy.write(start["byte_code"](data, digest, work))
"""


def imports(files: dict[str, bytes]) -> list[str]:
    """Return the names of all modules that Python sources import from outside of goldnode, sorted.

    For `from a import b` both `a` and `a.b` are named, since `b` may be a module.
    """
    names = set[str]()
    for name, content in files.items():
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    own = ("goldnode", "pynvml", "__future__")
    return sorted(name for name in names if name.partition(".")[0] not in own)


def add_bytecode(root: Path, architecture: str = AMD64) -> list[str]:
    """Compile goldnode-node, and the modules of the standard library that it imports, with the root's own Python (of `architecture`).

    Return the paths of these modules in the root. The same root gets the same bytes. Raises DiskError if its Python fails.
    """
    python = emulated(architecture, ["chroot", str(root), PYTHON])
    modules: list[str] = json.loads(run_python(python, LIST, imports(sources(writer=True))))
    run_python(python, COMPILE, modules)
    run_python(python, COPY, [PROGRAM, SHIPPED])
    return modules


def run_python(python: list[str], script: str, given: list[str]) -> str:
    """Return the output of one of the scripts above, by the command `python`, for the arguments `given`.

    Raises DiskError if it fails.
    """
    # Without PYTHONHASHSEED sets of constants would have another order in each build.
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
    }
    try:
        done = subprocess.run(
            # Not by stdin, which an emulated program does not have.
            [*python, "-s", "-S", "-B", "-c", script, json.dumps(given)],
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as problem:
        raise DiskError(
            f"{problem.filename} is not on this machine",
            remedy="install it: apt-get install coreutils",
        ) from problem
    if done.returncode:
        reported = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DiskError(f"{python[-1]} of the root filesystem cannot compile: {reported}")
    return done.stdout
