"""A Dockerfile on the flavour dev: apt and pip work at once, and what they install runs on the base."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.images, pytest.mark.long]

# apt installs a header, pip compiles against it: both stages of the guide, without an index of packages.
BUILD = """\
FROM {dev} AS build
RUN apt-get update && apt-get install -y --no-install-recommends libyaml-dev
COPY tool /build/tool
RUN pip install --no-index --no-build-isolation --no-deps --target /install /build/tool

FROM {base}
COPY --from=build /install /usr/local/lib/python3.11/dist-packages
ENTRYPOINT ["python3", "-c", "import tool; print(tool.version())"]
"""
SOURCE = """\
#include <Python.h>
#include <yaml.h>
static PyObject *version(PyObject *self, PyObject *none) { return PyLong_FromLong(YAML_UTF8_ENCODING); }
static PyMethodDef methods[] = {{"version", version, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tool", "", -1, methods};
PyMODINIT_FUNC PyInit_tool(void) { return PyModule_Create(&module); }
"""
SETUP = "from setuptools import Extension, setup\nsetup(name='tool', version='1', ext_modules=[Extension('tool', ['tool.c'])])\n"
BASE, DEV = "cpu-1-base-debian12", "cpu-1-dev-debian12"


def test_dockerfile_compiles_in_dev_and_runs_on_the_base(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("mmdebstrap", "buildah"))):
        pytest.skip("needs root, mmdebstrap and buildah")
    store = tmp_path / "store"
    goldnode = [sys.executable, "-c", "from goldnode.cli import main; main()", "images"]
    subprocess.run([*goldnode, "build", "--store", str(store), BASE, DEV], check=True)
    from goldnode.images.store import ImageStore

    refs = {ref.split(":1-")[1].split("-")[0]: ref for ref in ImageStore(store).layout.refs()}
    storage = [
        "--root",
        str(tmp_path / "root"),
        "--runroot",
        str(tmp_path / "run"),
        "--storage-driver",
        "vfs",
    ]

    def buildah(*arguments: str) -> str:
        done = subprocess.run(
            ["buildah", *storage, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    for name, ref in refs.items():
        if name in ("base", "dev"):
            # The layout as buildah names it; a colon separates path and reference.
            buildah("tag", buildah("pull", "-q", f"oci:{store}:{ref}"), f"localhost/{name}")
    (tmp_path / "build/tool").mkdir(parents=True)
    (tmp_path / "build/tool/tool.c").write_text(SOURCE)
    (tmp_path / "build/tool/setup.py").write_text(SETUP)
    (tmp_path / "build/Dockerfile").write_text(
        BUILD.format(dev="localhost/dev", base="localhost/base")
    )
    options = [
        "--pull-never",
        "--isolation",
        "chroot",
        "--network",
        "host",
        "--tag",
        "localhost/app",
    ]
    buildah("build", *options, str(tmp_path / "build"))
    container = buildah("from", "--pull-never", "localhost/app")
    command = ["python3", "-c", "import tool; print(tool.version())"]
    assert (
        buildah("run", "--isolation", "chroot", "--network", "host", container, "--", *command)
        == "1"
    )
