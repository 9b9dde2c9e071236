"""A node is installed again: by a signed order that its installer verifies, once for a work, and proved by the record on its disk."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.control.installed import (
    NEW,
    OLD,
    InstallSite,
    NetbootMachine,
    install_site,
)
from tests.unit.fleet.control.test_bmc import (
    DRIVER,
    FAST,
    Emulator,
    boot_target,
    emulated,
    settings,
    sushy_tools,
)
from tests.unit.fleet.control.test_rungs import CASE
from tests.unit.images.registries import make_key

from goldnode.core.errors import DiskError
from goldnode.core.site import SiteLadder
from goldnode.disks import netboot
from goldnode.disks.netboot import InstallAgain
from goldnode.evidence import signatures
from goldnode.fleet.control import ladder_site
from goldnode.fleet.control.bmc import bmc_of, ensure_on
from goldnode.fleet.control.ladder import RefusedRungError
from goldnode.fleet.control.ladder_nodes import LadderDrains, LadderNodes
from goldnode.fleet.control.reinstall import ReinstallError, forget_host_key
from goldnode.fleet.control.rungs import RungTools
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.nodes import return_delivery
from goldnode.fleet.nodes.reach import SshNode
from goldnode.fleet.rollout.ladder import CasePhase
from goldnode.fleet.shared import denylist
from goldnode.fleet.shared.denylist import DeniedError

__all__ = ["sushy_tools"]  # a fixture
WISH = InstallAgain("n0", "repair 1")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallSite:
    monkeypatch.chdir(tmp_path)
    return install_site(tmp_path)


def test_node_is_installed_by_its_order_and_once_for_a_work(site: InstallSite) -> None:
    node = site.machines["n0"]
    assert site.installer().install(WISH) == f"l4-{OLD} is installed (erase: 1)"
    assert (node.installations, node.record["erase"], node.on) == (1, 1, True)
    boots = node.boots
    assert site.installer().install(WISH) == f"l4-{OLD} is installed (erase: 1)"
    assert (node.installations, node.boots) == (1, boots)
    assert "erase: 2" in site.installer().install(replace(WISH, work="repair 2"))
    assert site.machines["n1"].installations == 0
    assert site.erase("n1") == 0


def test_order_of_another_channel_installs_its_build(site: InstallSite) -> None:
    said = site.installer().install(replace(WISH, channel="candidate"))
    assert said == f"l4-{NEW} is installed (erase: 1)"
    # The next work without a channel goes by the plan again.
    assert site.installer().install(replace(WISH, work="other")).startswith(f"l4-{OLD}")


def test_controller_that_takes_over_waits_for_an_installation_under_way(site: InstallSite) -> None:
    node = site.machines["n0"]
    number, raised = site.installer().order(WISH)
    assert (number, raised) == (1, True)
    node.up, boots = False, node.boots

    def sleep(seconds: float) -> None:
        site.sleep(seconds)
        if site.now() > 600:  # the installer is done by itself
            node.up, node.record = True, {**node.record, "erase": 1}

    assert "erase: 1" in site.installer(sleep=sleep).install(WISH)
    assert node.boots == boots


def test_controller_that_takes_over_before_the_boot_boots_it_from_the_network(
    site: InstallSite,
) -> None:
    site.installer().order(WISH)
    assert "erase: 1" in site.installer().install(WISH)
    assert site.machines["n0"].installations == 1


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("refuses", "order `erase: 1` was not carried out"),
        ("silent", "does not answer 2400 s after"),
    ],
)
def test_installation_that_is_not_on_the_disk_is_an_error(
    site: InstallSite, fault: str, text: str
) -> None:
    site.machines["n0"].fault = fault
    with pytest.raises(ReinstallError, match=text):
        site.installer().install(WISH)


def test_orders_that_another_key_has_signed_are_not_continued(site: InstallSite) -> None:
    """Their numbers would be signed by this one: who can write the directory could have any disk erased."""
    make_key(site.folder, "other")
    other = signatures.load_signer(site.folder / "other.pem")
    with pytest.raises(DiskError, match="signed by a key that is not known here"):
        netboot.order_again(site.plan, site.place, other, WISH)
    assert site.erase("n0") == 0


def test_next_run_of_netboot_does_not_lower_a_number(site: InstallSite) -> None:
    site.installer().order(WISH)
    standing = netboot.read_orders(site.place, site.signer)
    assert [note.split(",")[0] for note in netboot.ahead(site.plan, standing)] == [
        "n0 stays at erase 1"
    ]
    now = dt.datetime.now(dt.UTC)
    rows = netboot.predicate(site.plan, now, standing)["machines"]
    assert [row["erase"] for row in rows] == [1, 0]
    text = (site.folder / "install.yml").read_text().replace("A0}", "A0}, erase: 7")
    (site.folder / "install.yml").write_text(text)
    assert netboot.predicate(site.plan, now, standing)["machines"][0]["erase"] == 7
    assert site.installer().order(replace(WISH, work="other"))[0] == 8


def test_node_that_the_plan_does_not_have_as_of_its_class_is_refused(
    site: InstallSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = site.installer()
    own.check("n0", "l4")
    with pytest.raises(ReinstallError, match="the plan of installations does not have it"):
        own.check("n9", "l4")
    with pytest.raises(ReinstallError, match="installs it as l4"):
        own.check("n0", "h100")
    with pytest.raises(ReinstallError, match="canary of class l4 points to no build"):
        own.check("n0", "l4", "canary")

    def denied(*given: object) -> None:
        raise DeniedError(f"{given[1]} {given[2]} is denied")

    monkeypatch.setattr(denylist, "check", denied)
    with pytest.raises(DeniedError, match=f"l4 {OLD} is denied"):
        own.check("n0", "l4")


def rungs(site: InstallSite, **given: Any) -> RungTools:
    bmc = {"protocol": "ipmi", "address": "{node}", "credentials": "bmc.txt"}
    own = SiteLadder.model_validate(
        {"mode": "run", "bmc": bmc, "install": site.settings.model_dump(), **given}
    )
    made = RungTools(
        own,
        site.machines.__getitem__,  # type: ignore[arg-type]
        guard=lambda case: "",
        resolve=lambda name: site.folder / name,
        class_=lambda name: "l4",
        times=site.installer().times,
        sleep=site.sleep,
        clock=site.now,
    )
    object.__setattr__(made, "_bmc", site.machines.__getitem__)
    return made


def test_rung_installs_a_node_again(site: InstallSite) -> None:
    case = replace(CASE, node="n0", finding="storage.filesystem", rung="reinstall")
    assert rungs(site).act(case) == f"l4-{OLD} is installed (erase: 1)"
    site.machines["n0"].switch(False)
    assert rungs(site).restore(case) == "interrupted; the node is on"


def test_rung_is_refused_before_any_effect(site: InstallSite) -> None:
    case = replace(CASE, node="n0", rung="reinstall")
    with pytest.raises(RefusedRungError, match=r"ladder\.install of the site file is not given"):
        rungs(site, install=None).act(case)
    site.machines["n9"] = site.machines["n0"]
    with pytest.raises(RefusedRungError, match="does not have it"):
        rungs(site).act(replace(case, node="n9"))
    assert site.machines["n0"].boots == 1


@pytest.mark.parametrize(
    ("rung", "shown"), [("reinstall", "collective was not run"), ("reboot", "")]
)
def test_installed_node_waits_for_tests_of_its_class_that_its_gate_does_not_know(
    site: InstallSite, monkeypatch: pytest.MonkeyPatch, rung: str, shown: str
) -> None:
    asked: list[tuple[str, str]] = []

    def retest(name: str, since: str) -> str:
        asked.append((name, since))
        return "tests before its return: collective was not run"

    nodes = LadderNodes(
        site.machines.__getitem__,  # type: ignore[arg-type]
        SiteSchedulers({}),
        LadderDrains("", {}),
        {"n0": {"class": "l4"}},
        site.folder,
        tested=frozenset({"l4"}),
        retest=retest,
    )
    monkeypatch.setattr(return_delivery, "outstanding", lambda tests: [])
    monkeypatch.setattr(return_delivery.HeldNode, "ask", lambda own: None)
    case = replace(CASE, node="n0", rung=rung, phase=CasePhase.CHECK, changed_at=86400.0)
    assert nodes._outstanding("n0", case) == shown
    assert asked == ([("n0", "1970-01-02T00:00:00Z")] if shown else [])


@pytest.mark.parametrize(
    ("given", "can"), [({}, True), ({"bmc": None}, False), ({"install": None}, False)]
)
def test_site_without_bmcs_or_a_plan_has_no_such_rung(
    site: InstallSite, given: dict[str, object], can: bool
) -> None:
    assert ("reinstall" in ladder_site.rungs_of(rungs(site, **given).site)) is can


def test_known_host_key_of_an_installed_node_is_forgotten(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True
    )
    key = (tmp_path / "key.pub").read_text()
    known.write_text(f"[10.0.0.7]:2200 {key}10.0.0.7 {key}other {key}")
    words = ("-F", "/dev/null", "-o", f"UserKnownHostsFile={known} {tmp_path}/none", "-p", "2200")
    forget_host_key(SshNode("gpu01", ("ssh", *words, "--", "10.0.0.7")))
    left = [line.split()[0] for line in known.read_text().splitlines()]
    assert left == ["10.0.0.7", "other"]


@dataclass
class RedfishMachine(NetbootMachine):
    """The machine behind Redfish's emulator, which boots from where the emulator has it."""

    emulator: Emulator | None = None
    seen: int | None = None

    def run(
        self, *command: str, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[bytes]:
        assert self.emulator is not None
        machine = self.emulator.machine
        if machine not in (None, self.seen):
            self.seen, self.network = machine, boot_target(self.emulator) == "Pxe"
            self.boot()
        self.up = machine is not None
        return super().run(*command, stdin=stdin, timeout=timeout)


@pytest.fixture
def emulator(
    sushy_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Emulator]:
    """Redfish's emulator, with a process that sleeps for the machine."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(sushy_tools)])
    driver = re.sub(r"Popen\(\[.*?\]", 'Popen(["sleep", "900"]', DRIVER, flags=re.DOTALL)
    assert "qemu" not in driver
    with emulated(sushy_tools, tmp_path, driver) as made:
        yield made
        if made.machine is not None:
            os.kill(made.machine, 9)


@pytest.mark.real
@pytest.mark.long
def test_rung_installs_a_node_by_redfish(site: InstallSite, emulator: Emulator) -> None:
    """sushy 5.14.0 against sushy-tools 2.2.0; the machine, its disk and its installer are simulated, the orders are real."""
    node = RedfishMachine("n0", site.machines["n0"].mac, site.folder, emulator=emulator)
    node.record, site.machines["n0"] = site.machines["n0"].record, node
    bmc = settings(site.folder).model_copy(update={"address": emulator.address})
    ensure_on(bmc_of(bmc, "n0", lambda name: site.folder / name), FAST)
    node.run("true")
    assert node.boots == 2
    own = replace(rungs(site), times=FAST, sleep=time.sleep, clock=time.monotonic)
    own = replace(own, site=own.site.model_copy(update={"bmc": bmc}))
    case = replace(CASE, node="n0", finding="storage.filesystem", rung="reinstall")
    assert own.act(case) == f"l4-{OLD} is installed (erase: 1)"
    assert (node.installations, node.boots) == (1, 3)
