"""Which modules of Python's library get byte code in a disk image, and what stops it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from goldnode.core import program_file
from goldnode.core.errors import DiskError
from goldnode.disks import bytecode

SOURCE = b"""
import json
import os.path as place
from concurrent import futures
from goldnode.node import hidden
from . import near


def late() -> None:
    from xml.etree import ElementTree

    import goldnode.core
"""


def test_imports_are_found_wherever_they_stand_and_own_modules_are_left_out() -> None:
    files = {
        "goldnode/a.py": SOURCE,
        "goldnode/table.json": b"import fcntl",
        "b.py": b"import zlib",
    }
    assert bytecode.imports(files) == [
        "concurrent",
        "concurrent.futures",
        "json",
        "os.path",
        "xml.etree",
        "xml.etree.ElementTree",
        "zlib",
    ]


def test_program_imports_only_what_the_list_of_compiled_files_has() -> None:
    names = bytecode.imports(program_file.sources(writer=True))
    found = json.loads(bytecode.run_python([sys.executable], bytecode.LIST, names))
    stems = {Path(name).stem for name in found}
    assert stems >= {
        "argparse",
        "ElementTree",
        "encoder",
        "hashlib",
        "subprocess",
        "utf_8",
        "zipfile",
    }
    assert all(name.endswith(".py") for name in found)


def test_python_that_fails_stops_the_build_with_its_last_line() -> None:
    with pytest.raises(DiskError, match="cannot compile: ValueError: no such thing"):
        bytecode.run_python([sys.executable], "raise ValueError('no such thing')", [])
    with pytest.raises(DiskError, match="no-such-program is not on this machine"):
        bytecode.run_python(["no-such-program"], "", [])
