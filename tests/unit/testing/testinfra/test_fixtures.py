"""The fixtures for testinfra's users: on a host that answers from a simulated node's files, and how often it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.documented import ROOT, blocks
from tests.faults.classes import document
from tests.simulators.hardware import build, machine, tree
from tests.simulators.hardware import write as write_boards

from goldnode.testing.testinfra import nvml, plugin, readers


class Fake:
    """A host of testinfra: runs what it is told with the paths below a root, and counts."""

    def __init__(
        self,
        root: Path | None,
        environment: dict[str, str] | None = None,
        answer: str | None = None,
        rc: int = 0,
    ) -> None:
        self.root, self.environment, self.answer, self.rc = root, environment, answer, rc
        self.asked = 0

    def run(self, command: str, script: str) -> Any:
        self.asked += 1
        assert command.startswith("timeout -k 5 120 python3 -I -c ")
        if self.answer is not None:
            return SimpleNamespace(rc=self.rc, stdout=self.answer, stderr="by design")
        there = script.replace('"/sys', f'"{self.root}/sys').replace('"/proc', f'"{self.root}/proc')
        done = subprocess.run(
            [sys.executable, "-I", "-c", there],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    wanted = document("board_h100")
    root, library = (
        tmp_path_factory.mktemp("node"),
        build(tmp_path_factory.mktemp("library")).parent,
    )
    boards = machine.scenario(
        wanted, ["gpu3.pcie.width=8", "gpu5.power_limit=500000", "gpu6.all=error:lost"]
    )
    assert boards is not None
    tree.write(boards, root, layout=machine.layout(wanted))
    write_boards(boards, root / machine.PLACE)
    (root / machine.PLACE / "run").mkdir()
    (root / "proc/modules").write_text(
        "nvidia 1 0 - Live 0x0 (OE)\nnvidia_uvm 1 0 - Live 0x0 (OE)\n"
    )
    return Fake(
        root, {"LD_LIBRARY_PATH": str(library), "GOLDNODE_SIMULATOR": str(root / machine.PLACE)}
    )


def test_a_host_is_asked_once_for_each_kind_of_thing(host: Fake) -> None:
    before = host.asked
    for _ in range(3):
        reading = plugin.reading_of(host)
        assert len(reading.pci.gpus) == 8
        assert "nvidia-uvm" in reading.modules
        assert reading.numa.of("0000:48:00.0") == 1
        assert len(reading.gpus) == 8
    assert host.asked - before <= 2


def test_links_hop_by_hop(host: Fake) -> None:
    pci = plugin.reading_of(host).pci
    gpu = pci["0000:28:00.0"]
    assert (gpu.id, gpu.driver, gpu.width, gpu.max_width, gpu.gen) == (
        "10de:2330",
        "nvidia",
        8,
        16,
        5,
    )
    assert [hop.address for hop in pci.hops(gpu)] == gpu.path
    assert len(gpu.path) == 4
    assert pci.narrowest(gpu).width == 8
    assert pci.narrowest(pci["0000:10:00.0"]).width == 16


def test_reading_has_loaded_modules_and_numa_nodes(host: Fake) -> None:
    reading = plugin.reading_of(host)
    assert "nouveau" not in reading.modules
    assert reading.modules["nvidia"] == "580.95.05"
    assert list(reading.modules) == ["nvidia", "nvidia_uvm"]
    assert sorted(reading.numa.nodes) == [0, 1]


def test_a_policy_and_what_differs(host: Fake) -> None:
    gpus = plugin.reading_of(host).gpus
    assert [gpu["index"] for gpu in gpus.lost] == [6]
    policy = document("board_h100")["policy"]
    lines = readers.differences(policy, gpus)
    assert [line.split(":")[0] for line in lines] == ["GPU 6", f"GPU 5 {gpus[5]['uuid']}"]
    assert "power_limit_watts: want 700, have 500.0" in lines[1]


@pytest.mark.parametrize(
    ("answer", "rc"), [('{"library": "not found"}', 0), ('{"init": 18}', 0), ("[]", 0), ("", 124)]
)
def test_unreadable_answer_raises_unread_error(answer: str, rc: int) -> None:
    with pytest.raises(readers.UnreadError):
        _ = readers.Reading(Fake(None, answer=answer, rc=rc)).gpus


def test_the_plugin_looks_at_nothing_by_itself() -> None:
    """Whoever has goldnode installed has the plugin in every run of pytest."""
    script = "import sys, goldnode.testing.testinfra.plugin as p; print([m for m in sys.modules if m.startswith(('goldnode.', 'testinfra'))])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.replace("'", '"')) == [
        "goldnode.testing",
        "goldnode.testing.testinfra",
        "goldnode.testing.testinfra.plugin",
    ]
    assert not [name for name in vars(plugin) if name.startswith("pytest_")]


def test_the_scripts_are_python_that_old_nodes_run() -> None:
    for script in (nvml.SCRIPT, readers.SYSFS):
        compile(script, "script", "exec")
        assert "goldnode" not in script


def test_example_of_the_guide_passes_on_a_healthy_node(tmp_path: Path) -> None:
    """The tests of docs/how-to/testing-nodes.md pass on eight simulated H100, and its words find what differs."""
    (block,) = (one for one in blocks().values() if one.page == "docs/how-to/testing-nodes.md")
    wanted, library = document("board_h100"), build(tmp_path / "library").parent
    boards = machine.scenario(wanted, [])
    assert boards is not None
    root = tmp_path / "node"
    tree.write(boards, root, layout=machine.layout(wanted))
    write_boards(boards, root / machine.PLACE)
    (root / machine.PLACE / "run").mkdir()
    (root / "proc/modules").write_text("nvidia_uvm 1 0 - Live 0x0 (OE)\n")
    (tmp_path / "test_gpu_node.py").write_text(block.text)
    environment = {"LD_LIBRARY_PATH": str(library), "GOLDNODE_SIMULATOR": str(root / machine.PLACE)}
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom pathlib import Path\nfrom tests.unit.testing.testinfra.test_fixtures import Fake\n"
        f"@pytest.fixture(scope='module')\ndef host():\n    return Fake(Path({str(root)!r}), {environment!r})\n"
    )
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{block.text.count('def test_')} passed" in done.stdout
