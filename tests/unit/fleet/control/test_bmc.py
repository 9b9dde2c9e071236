"""Power by a BMC: orders that come late or are lost, and the real programs: sushy, sushy-tools, ipmitool, ipmi_sim."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import ValidationError

from goldnode.core.errors import GoldnodeError, SigningKeyError
from goldnode.core.site import SiteBmc
from goldnode.fleet.control.bmc import BmcError, PowerTimes, bmc_of, cycle, ensure_on, netboot

SECRET = "s3cr3t-of-bmc"  # noqa: S105 - IPMI has 16 bytes
FAST = PowerTimes(poll=1.0, again=45.0, settle=15.0, limit=240.0)


@dataclass
class LateBmc:
    """A simulated BMC: each order has its effect `late` seconds after it; some are lost, and some calls fail."""

    on: bool = True
    late: float = 5.0
    lost: int = 0
    faults: int = 0
    now: float = 0.0
    pending: list[tuple[float, bool]] = field(default_factory=list)
    orders: list[bool] = field(default_factory=list)
    networks: int = 0

    def _pass(self) -> None:
        for at, on in sorted(self.pending):
            if at <= self.now:
                self.on = on
        self.pending = [item for item in self.pending if item[0] > self.now]

    def is_on(self) -> bool | None:
        self._pass()
        if self.faults:
            self.faults -= 1
            raise BmcError("it restarts")
        return self.on

    def switch(self, on: bool) -> None:
        self._pass()
        self.orders.append(on)
        # As sushy-tools does: an `On` of a node that is still on is dropped while an `Off` waits.
        if on and self.on:
            return
        if self.lost:
            self.lost -= 1
            return
        self.pending = [(self.now + self.late, on)]

    def boot_from_network(self) -> str:
        self._pass()
        assert not self.on, "some BMCs forget the order when the power goes"
        self.networks += 1
        return "boot by Pxe, once"

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("late", [0.0, 5.0, 11.0, 35.0])
@pytest.mark.parametrize("lost", [0, 2])
def test_cycle_ends_with_power_on(late: float, lost: int) -> None:
    bmc = LateBmc(late=late, lost=lost, faults=2)
    cycle(bmc, FAST, bmc.sleep, bmc.clock)
    assert bmc.on
    assert False in bmc.orders
    assert not bmc.pending


def test_node_boots_from_the_network_once() -> None:
    bmc = LateBmc(lost=1, faults=1)
    assert netboot(bmc, FAST, bmc.sleep, bmc.clock) == "boot by Pxe, once"
    assert (bmc.on, bmc.networks) == (True, 1)


def test_node_is_on_again_where_its_bmc_boots_nothing_from_the_network() -> None:
    class DiskBmc(LateBmc):
        def boot_from_network(self) -> str:
            raise BmcError("it boots nothing from the network")

    bmc = DiskBmc()
    with pytest.raises(BmcError, match="nothing from the network"):
        netboot(bmc, FAST, bmc.sleep, bmc.clock)
    assert bmc.on


def test_node_that_an_earlier_order_switches_off_is_switched_on_again() -> None:
    """A controller that was killed after its `off`: the next one sees the node on, for a few seconds."""
    bmc = LateBmc()
    bmc.switch(False)
    ensure_on(bmc, FAST, bmc.sleep, bmc.clock)
    assert bmc.on
    assert bmc.orders == [False, True]


def test_node_whose_power_does_not_go_off_is_on_and_an_error() -> None:
    bmc = LateBmc(lost=99)
    with pytest.raises(BmcError, match="not off after 240 s"):
        cycle(bmc, FAST, bmc.sleep, bmc.clock)
    assert bmc.on


def settings(tmp_path: Path, **given: object) -> SiteBmc:
    secret = tmp_path / "bmc.txt"
    secret.write_text(f"admin\n{SECRET}\n", encoding="utf-8")
    secret.chmod(0o600)
    values = {"protocol": "redfish", "address": "https://{node}", "credentials": "bmc.txt", **given}
    return SiteBmc.model_validate(values)


def test_credentials_that_others_can_read_are_refused(tmp_path: Path) -> None:
    site = settings(tmp_path, protocol="ipmi", address="{node}:1")
    (tmp_path / "bmc.txt").chmod(0o644)
    with pytest.raises(SigningKeyError, match="0644"):
        bmc_of(site, "n1", lambda name: tmp_path / name).is_on()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"address": "bmc-of-all"}, "needs {node}"),
        ({"command": ["vault", "read"]}, "either"),
        ({"credentials": None}, "either"),
        ({"address": "{node}"}, "begins with https"),
        ({"address": "https://user:pw@{node}"}, "pattern"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, given: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        settings(tmp_path, **given)


def test_output_of_the_command_for_credentials_is_in_no_error(tmp_path: Path) -> None:
    words = ["sh", "-c", f"echo {SECRET}; exit 3", "{node}"]
    site = settings(tmp_path, credentials=None, command=words, protocol="ipmi", address="{node}")
    with pytest.raises(BmcError) as raised:
        bmc_of(site, "n1", lambda name: tmp_path / name).is_on()
    assert SECRET not in f"{raised.value!r} {raised.value}".replace(words[2], "")


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


# A driver of sushy-tools' emulator with a QEMU machine behind it: late and lossy like its fake driver, and the power is real.
DRIVER = """
import os, signal, subprocess, sys
from sushy_tools.emulator.resources.systems import fakedriver
PID = os.environ["MACHINE_PID"]
def alive():
    try:
        pid = int(open(PID).read())
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, ValueError):
        return False
class Qemu(fakedriver.FakeDriver):
    def _update(self, system, **changes):
        super()._update(system, **changes)
        if changes.get("power_state") == "On" and not alive():
            machine = subprocess.Popen(["qemu-system-x86_64", "-M", "microvm", "-display", "none", "-m", "32", "-accel", "tcg"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            open(PID, "w").write(str(machine.pid))
        if changes.get("power_state") == "Off" and alive():
            pid = int(open(PID).read())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    def get_power_state(self, identity):
        self._get(identity)
        return "On" if alive() else "Off"
fakedriver.FakeDriver = Qemu
from sushy_tools.emulator import main
sys.exit(main.main())
"""


@dataclass
class Emulator:
    """A running emulator of Redfish, with one QEMU machine."""

    address: str
    pid_file: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def machine(self) -> int | None:
        """Return the process of the machine while it runs."""
        try:
            number = int(self.pid_file.read_text())
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return None
        return None if state in "ZX" else number


@pytest.fixture(scope="module")
def sushy_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sushy")
    command = [sys.executable, "-m", "pip", "-q", "install", "--target", str(folder)]
    subprocess.run([*command, "sushy==5.14.0", "sushy-tools==2.2.0"], check=True)
    return folder


@pytest.fixture
def emulator(
    sushy_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Emulator]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(sushy_tools)])
    with emulated(sushy_tools, tmp_path, DRIVER) as made:
        yield made
        if made.machine is not None:
            os.kill(made.machine, 9)


@contextmanager
def emulated(sushy_tools: Path, tmp_path: Path, driver: str, **environ: str) -> Iterator[Emulator]:
    """Run an emulator with a driver of ours."""
    number, script = port(), tmp_path / "emulator.py"
    script.write_text(driver, encoding="utf-8")
    log = tmp_path / "emulator.log"
    environment = {
        **os.environ,
        **environ,
        "PYTHONPATH": str(sushy_tools),
        "MACHINE_PID": str(tmp_path / "pid"),
        "TMPDIR": str(tmp_path),  # the state of all emulators of a machine is in one file there
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(script), "--fake", "-i", "127.0.0.1", "-p", str(number)],
            env=environment, stdout=out, stderr=out, cwd=tmp_path,
        )  # fmt: skip
    made = Emulator(f"http://127.0.0.1:{number}", tmp_path / "pid", process, log)
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{made.address}/redfish/v1/", timeout=5).read()  # noqa: S310 - http
            break
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    try:
        yield made
    finally:
        process.terminate()
        process.wait()


def boot_target(emulator: Emulator) -> str:
    """Return from where the only system boots, as Redfish has it."""
    systems = f"{emulator.address}/redfish/v1/Systems"
    with urllib.request.urlopen(systems, timeout=5) as answer:  # noqa: S310 - http
        path = json.load(answer)["Members"][0]["@odata.id"]
    with urllib.request.urlopen(f"{emulator.address}{path}", timeout=5) as answer:  # noqa: S310 - http
        return str(json.load(answer)["Boot"]["BootSourceOverrideTarget"])


@pytest.mark.real
@pytest.mark.long
@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_redfish_cycles_a_real_machine(emulator: Emulator, tmp_path: Path) -> None:
    """sushy 5.14.0 against sushy-tools 2.2.0, whose orders have their effect after 1 to 11 seconds."""
    site = settings(tmp_path).model_copy(update={"address": emulator.address})
    bmc = bmc_of(site, "n1", lambda name: tmp_path / name)
    ensure_on(bmc, FAST)
    first = emulator.machine
    assert first is not None
    cycle(bmc, FAST)
    assert emulator.machine not in (None, first)
    # The emulator has no `Once`: the target is what it takes of the order.
    assert netboot(bmc, FAST) == "boot by Pxe, once"
    assert boot_target(emulator) == "Pxe"
    # A controller that dies right after its `off`: the next one brings the machine back.
    bmc.switch(False)
    ensure_on(bmc, FAST)
    assert emulator.machine is not None
    assert bmc.is_on()
    assert SECRET not in emulator.log.read_text()


@pytest.mark.real
@pytest.mark.long
def test_redfish_that_is_away_or_refuses_is_an_error_without_secrets(
    sushy_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(sushy_tools)])
    site = settings(tmp_path).model_copy(update={"address": f"http://127.0.0.1:{port()}"})
    with pytest.raises(GoldnodeError) as raised:
        bmc_of(site, "n1", lambda name: tmp_path / name).is_on()
    assert SECRET not in f"{raised.value!r}{raised.value}"


# Configuration of ipmi_sim: one BMC, one user, and a chassis whose power is a file.
LAN = """
name "bmc"
set_working_mc 0x20
startlan 1
  addr 127.0.0.1 {port}
  priv_limit admin
  allowed_auths_callback none md2 md5 straight
  allowed_auths_user none md2 md5 straight
  allowed_auths_operator none md2 md5 straight
  allowed_auths_admin none md2 md5 straight
  guid a123456789abcdefa123456789abcdef
endlan
chassis_control "{control} 0x20"
user 1 true "" "" user 10 none md2 md5 straight
user 2 true "admin" "{secret}" admin 10 none md2 md5 straight
"""
CONTROL = """#!/bin/sh
state={state}
shift
while [ $# -gt 0 ]; do
  op=$1; shift
  case $op in
    get) for what in "$@"; do [ "$what" = power ] && echo "power:$(cat $state)"; done; exit 0 ;;
    set) [ "$1" = power ] && echo "$2" >$state; exit 0 ;;
  esac
done
"""
EMU = """
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
mc_enable 0x20
"""


@pytest.fixture
def ipmi(tmp_path: Path) -> Iterator[int]:
    number = port()
    (tmp_path / "power").write_text("1\n")
    control = tmp_path / "control"
    control.write_text(CONTROL.format(state=tmp_path / "power"))
    control.chmod(0o755)
    (tmp_path / "lan.conf").write_text(LAN.format(port=number, control=control, secret=SECRET))
    (tmp_path / "sim.emu").write_text(EMU)
    log = (tmp_path / "ipmi.log").open("wb")
    process = subprocess.Popen(
        ["ipmi_sim", "-c", str(tmp_path / "lan.conf"), "-f", str(tmp_path / "sim.emu"), "-n", "-s", str(tmp_path)],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path,
    )  # fmt: skip
    time.sleep(1.0)
    assert process.poll() is None, (tmp_path / "ipmi.log").read_text()
    yield number
    process.kill()
    process.wait()
    log.close()


@pytest.mark.skipif(
    not (shutil.which("ipmi_sim") and shutil.which("ipmitool")),
    reason="ipmi_sim or ipmitool is not installed: apt-get install openipmi ipmitool",
)
@pytest.mark.real
@pytest.mark.long
def test_ipmitool_cycles_a_simulated_bmc(ipmi: int, tmp_path: Path) -> None:
    site = settings(tmp_path, protocol="ipmi", address="{node}").model_copy(
        update={"address": f"127.0.0.1:{ipmi}"}
    )
    bmc = bmc_of(site, "n1", lambda name: tmp_path / name)
    assert bmc.is_on() is True
    cycle(bmc, PowerTimes(poll=0.2, again=5.0, settle=1.0, limit=120.0))
    assert (tmp_path / "power").read_text().strip() == "1"
    bmc.switch(False)
    assert bmc.is_on() is False
    ensure_on(bmc, PowerTimes(poll=0.2, again=5.0, settle=1.0, limit=120.0))
    assert bmc.is_on() is True
    # Wrong password and absent BMC: the same text of ipmitool, and no secret in ours.
    (tmp_path / "bmc.txt").write_text("admin\nwrong\n")
    with pytest.raises(BmcError, match="wrong address, user or password, or it is away"):
        bmc.is_on()
