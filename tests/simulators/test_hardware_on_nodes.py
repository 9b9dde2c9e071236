"""Tests of simulated hardware on a node: every process uses it instead of the real package's library, also
after ldconfig and a boot.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from tests.simulators.hardware import Scenario
from tests.simulators.hardware import node as simulated
from tests.simulators.test_hardware import document

from goldnode.core import program_file as nodefile
from goldnode.testing.lab.nodes import Lab, LabNode, NodeSpec

pytestmark = pytest.mark.lab
# Report the library that a process gets, and its data: [mapped file, GPUs, power limit of GPU 3].
ASK = """
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
path = {line.split()[-1] for line in open("/proc/self/maps") if "libnvidia-ml" in line}
nvml.nvmlInit_v2()
count, limit, gpu = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_void_p()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
nvml.nvmlDeviceGetHandleByIndex_v2(3, ctypes.byref(gpu))
nvml.nvmlDeviceGetPowerManagementLimit(gpu, ctypes.byref(limit))
print(json.dumps([sorted(path), count.value, limit.value]))
"""
OWN = "/opt/goldnode-simulator/lib/libnvidia-ml.so.1"
PACKAGE = "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.1"


@pytest.fixture(scope="module")
def node(
    docker_client: DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LabNode]:
    lab = Lab("hardware", docker_client, state=tmp_path_factory.mktemp("hardware"))
    lab.down()
    try:
        (made,) = lab.up([NodeSpec("node1", "standins", flavour="warm")])
        # Files of the Debian package: the library, and the soname link in a directory of the loader.
        code = tmp_path_factory.mktemp("real") / "real.c"
        code.write_text("int real(void) { return 1; }\n")
        made_file = code.with_suffix(".so")
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-Wl,-soname,libnvidia-ml.so.1",
                "-o",
                str(made_file),
                str(code),
            ],
            check=True,
        )
        made.put({PACKAGE: made_file.read_bytes()})
        made.shell(f"ln -s {PACKAGE} /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1; ldconfig")
        simulated.install(made, Scenario.of(document()))
        yield made
    finally:
        lab.down()


def asked(node: LabNode, *before: str) -> list[object]:
    found: list[object] = json.loads(node.run(*before, "python3", "-c", ASK).output)
    return found


def bus(node: LabNode) -> int:
    return len(node.shell("grep -l 0x030200 /sys/bus/pci/devices/*/class").output.split())


def test_every_process_gets_the_simulated_library(node: LabNode) -> None:
    want = [[OWN], 8, 400000]
    assert asked(node) == want
    assert asked(node, "systemd-run", "-q", "--wait", "--pipe") == want
    done = subprocess.run(
        [
            *node.ssh("python3 -"),
        ],
        input=ASK,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == want
    node.shell("ldconfig")  # as dpkg's triggers do
    assert asked(node) == want


def test_the_packages_file_is_still_what_is_listed_second(node: LabNode) -> None:
    listed = node.shell("ldconfig -p | grep 'libnvidia-ml.so.1 '").output.split()
    assert [word for word in listed if word.startswith("/")] == [
        OWN,
        "/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    ]


def test_the_bus_is_the_scenarios_over_faults_and_boots(node: LabNode) -> None:
    assert bus(node) == 8
    simulated.inject(node, ["gpu5.absent=1"])
    assert bus(node) == 7
    assert asked(node)[1] == 7
    node.restart()
    assert bus(node) == 7
    simulated.clear(node)
    assert bus(node) == 8
    assert "SIMULATED" in node.read("/proc/driver/nvidia/version")
    assert node.shell("systemctl is-system-running").output.strip() == "running"


def test_goldnode_observes_the_simulators_bus_and_never_the_machines(node: LabNode) -> None:
    """In a container, GPUs on /sys belong to the host, unless the simulator's marker is among them."""
    wanted = (Path(__file__).parents[1] / "cases" / "document.json").read_text()
    node.put({"/root/goldnode-node": nodefile.build(), "/root/document.json": wanted.encode()})
    code = (
        "import json, sys; sys.path.insert(0, '/root/goldnode-node')\n"
        "from goldnode.node.ground.host import Host\n"
        "from goldnode.node.state.observe import observe\n"
        "seen = observe(Host('/'), json.load(open('/root/document.json')))\n"
        "print(json.dumps([seen.container, seen.simulated, seen.library, seen.gpus and [gpu['id'] for "
        "gpu in seen.gpus]]))"
    )
    assert json.loads(node.run("python3", "-c", code).output) == [
        True,
        True,
        PACKAGE,
        ["10de:20b0"] * 8,
    ]
    node.run("systemctl", "stop", simulated.UNIT)
    assert json.loads(node.run("python3", "-c", code).output) == [True, True, PACKAGE, None]
    node.run("systemctl", "start", simulated.UNIT)


def test_drift_changes_the_state_and_a_boot_forgets_it(node: LabNode) -> None:
    simulated.drift(node, ["gpu3.power_limit=250000", "gpu3.ecc_pending=0"])
    assert asked(node)[2] == 250000
    assert simulated.state(node)["gpu3.ecc_pending"] == "0"
    node.restart()
    assert asked(node)[2] == 400000
    assert simulated.state(node)["gpu3.ecc_current"] == "0"


def test_setter_without_root_fails_and_changes_nothing(node: LabNode) -> None:
    code = ASK.replace("print(", "print(nvml.nvmlDeviceSetPersistenceMode(gpu, 1)) or print(")
    reported = node.run(
        "setpriv", "--reuid=65534", "--clear-groups", "python3", "-c", code
    ).output.splitlines()
    assert reported[0] == "4"
    assert json.loads(reported[1]) == [[OWN], 8, 400000]


def test_removed_simulator_leaves_no_file_and_can_be_reinstalled(node: LabNode) -> None:
    simulated.remove(node)
    left = node.shell(
        "find / -xdev \\( -name '*goldnode-simulator*' -o -name 'simulated-hardware*' \\) -not -path "
        "'/proc/*'"
    ).output
    assert left.strip() == ""
    assert node.run("test", "-e", "/sys/bus/pci/goldnode-simulator", check=False).rc != 0
    assert "goldnode" not in node.shell("ldconfig -p").output
    simulated.install(node, Scenario.of(document()))
    assert asked(node) == [[OWN], 8, 400000]
