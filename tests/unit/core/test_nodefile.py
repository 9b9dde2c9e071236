"""What is shipped to a node: small, standard library only, the same bytes from the same sources."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from goldnode.core import program_file as nodefile

# The whole file with NVML's binding, the facts, the messages of the kernel log, the client of channels, the keys of caches and the tests before a return.
# It travels once per version of goldnode, as source that an administrator can read: with types and comments, 4 % of it.
# 4 KiB of it came with the importer of the compiled copy and named tuples without `typing`: 12 % of a check's CPU.
# 8 KiB of it are the reader of apt.conf and the other names of units.
# 4 KiB of it are the sandboxes of units, and the command that acts on a verdict.
# 4 KiB of it are interrupts of adapters, messages of the log in the diagnosis and keys of teams on a channel.
# 12 KiB of it are installations from the network, and retries, recovery and boot options of slots.
# 4 KiB of it are slots with signed kernel images.
# 4 KiB of it are podman's files and the control groups of pods.
# 4 KiB of it are kernel images for arm64, and what follows.
LIMIT = 784 * 1024
MODULES = Path(nodefile.__file__).parents[1] / "ansible" / "modules"


def closure(start: str, child: str = "goldnode/node/device/reader.py") -> dict[str, bytes]:
    """Sources reached from `goldnode.node.<start>` by relative imports, directly or through others.

    `child` is reached, and nothing through it: its functions run in the process that can be killed, and
    import what they need there.
    """
    found = nodefile.sources()
    reached: dict[str, bytes] = {}
    todo = [f"goldnode/node/{start}.py"]
    while todo:
        name = todo.pop()
        if name in reached or name not in found:
            continue
        reached[name] = found[name]
        if name == child:
            continue
        parts = name.removesuffix(".py").split("/")
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = "/".join(parts[: -node.level]) + (
                    f"/{node.module.replace('.', '/')}" if node.module else ""
                )
                todo += [
                    f"{base}.py",
                    f"{base}/__init__.py",
                    *(f"{base}/{alias.name}.py" for alias in node.names),
                ]
    return reached


def test_program_size_is_within_the_limit() -> None:
    assert len(nodefile.build()) <= LIMIT


class _Imports(ast.NodeVisitor):
    """Paths of the modules that a file imports when it runs."""

    def __init__(self, name: str, content: bytes) -> None:
        self.package = name.split("/")[:-1]
        self.paths: set[str] = set()
        self.visit(ast.parse(content))

    def visit_If(self, node: ast.If) -> None:
        # On a node nothing is imported under TYPE_CHECKING.
        typed = ast.unparse(node.test) == "TYPE_CHECKING"
        for child in node.orelse if typed else [*node.body, *node.orelse]:
            self.visit(child)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package[: len(self.package) + 1 - node.level] if node.level else []
        module = "/".join([*base, *(node.module or "").split(".")])
        self.paths |= {f"{module}.py", *(f"{module}/{alias.name}.py" for alias in node.names)}


def test_only_type_checkers_import_what_is_left_out() -> None:
    shipped = {
        name: content for name, content in nodefile.sources().items() if name.endswith(".py")
    }
    imported = {path for name, content in shipped.items() for path in _Imports(name, content).paths}
    assert "goldnode/node/state/engine.py" in imported
    assert not imported & set(nodefile.TYPES)
    assert not set(shipped) & set(nodefile.TYPES)


@pytest.mark.parametrize("name", ["goldnode_state", "goldnode_survey"])
def test_the_module_ships_nothing_beside_itself(name: str) -> None:
    tree = ast.parse((MODULES / f"{name}.py").read_text())
    shipped = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "module_utils" in (node.module or "")
    ]
    assert shipped == ["ansible.module_utils.basic"]


@pytest.mark.parametrize(
    "name", [name for name in nodefile.sources() if name.startswith("goldnode/node/")]
)
def test_only_the_standard_library_is_imported(name: str) -> None:
    for node in ast.walk(ast.parse(nodefile.sources()[name])):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for module in names:
            # NVML's binding travels in the same file, and only what runs in the process that can be killed may load it.
            known = sys.stdlib_module_names | (
                {"pynvml"} if name == "goldnode/node/device/nvidia.py" else set()
            )
            assert module.split(".")[0] in known, f"{name} imports {module}"


@pytest.mark.parametrize(
    "name", [name for name in nodefile.sources() if name.startswith("goldnode/node/")]
)
def test_the_oldest_python_of_a_node_can_read_it(name: str) -> None:
    ast.parse(nodefile.sources()[name], feature_version=(3, 9))


def test_the_binding_of_nvml_travels_with_its_licence_and_not_with_the_module() -> None:
    found = nodefile.sources()
    assert b"nvmlDeviceSetPowerManagementLimit" in found["pynvml.py"]
    head = found["pynvml.py"].partition(b"import ")[0]
    assert b"Copyright (c)" in head
    assert b"THIS SOFTWARE IS PROVIDED" in head
    ast.parse(found["pynvml.py"], feature_version=(3, 9))
    reached = closure("state/apply") | closure("verdict/check")
    assert "goldnode/node/device/child.py" in reached, (
        "the walk over imports has stopped finding them"
    )
    reader = "goldnode/node/device/reader.py"
    assert all(
        not isinstance(node, ast.ImportFrom) or node.names[0].name in ("SCHEMA", "annotations")
        for node in ast.parse(found[reader]).body
    ), "the reader would load NVML where it is imported"
    assert not {"goldnode/node/device/nvidia.py", "goldnode/node/program/main.py"} & set(reached)


def test_the_file_is_the_same_every_time_and_runs(tmp_path: Path) -> None:
    nodefile.build.cache_clear()
    first = nodefile.build()
    nodefile.build.cache_clear()
    assert first == nodefile.build()
    program = tmp_path / "goldnode-node"
    program.write_bytes(first)
    program.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    check = subprocess.run(
        [program, "check", "--class", tmp_path / "none.json", "--no-write", "--root", tmp_path],
        capture_output=True,
        text=True,
        env=clean,
    )
    assert check.returncode == 3
    assert "there is no class document" in check.stdout
    assert "Run site.yml" not in check.stdout, "what was named with --class is no file of a run"
    reported = subprocess.run([program, "--version"], capture_output=True, text=True, env=clean)
    assert (reported.returncode, reported.stdout) == (
        0,
        f"goldnode-node {nodefile.payload(content=False)['sha256']}\n",
    )
    wrong = subprocess.run(
        [program, "check", "--colour"], capture_output=True, text=True, env=clean
    )
    assert wrong.returncode == 3, "a wrong use must not read as a verdict"


def _inherit() -> None:
    """What cron, a supervisor or a strict shell may leave to what it starts."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE, signal.SIGTERM])
    os.umask(0o077)


STATE = (
    "import os, signal; "
    "print(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, signal.pthread_sigmask(0, []), oct(os.umask(0)))"
)
NODE = f"""import runpy, sys
sys.argv[1:] = ["--help"]
try:
    runpy.run_module("goldnode.node", run_name="__main__", alter_sys=True)
except SystemExit:
    {STATE}
"""
CLI = f"from goldnode.cli import main; main(['classes'], standalone_mode=False); {STATE}"


# The umask decides who may read a user's files, and not the modes on a node.
@pytest.mark.parametrize(
    ("script", "umask"), [(NODE, "0o22"), (CLI, "0o77")], ids=["goldnode-node", "goldnode"]
)
def test_program_resets_the_state_inherited_from_its_parent(script: str, umask: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=_inherit,
        env={**os.environ, "PYTHONPATH": str(Path(nodefile.__file__).parents[2])},
    )
    assert done.stdout.splitlines()[-1] == f"True set() {umask}"


def test_check_output_is_complete_and_a_full_device_is_an_error(tmp_path: Path) -> None:
    """A check ends without the interpreter's own end: what it has printed is out before that, and what cannot be printed is said."""
    file = tmp_path / "goldnode-node"
    file.write_bytes(nodefile.build())
    (tmp_path / "empty").mkdir()
    command = [
        sys.executable,
        "-I",
        "-S",
        str(file),
        "check",
        "--format",
        "json",
        "--root",
        str(tmp_path / "empty"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 3
    assert json.loads(done.stdout)["exit_code"] == 3
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert failed.returncode not in (0, 1, 2)
    assert "No space left on device" in failed.stderr
