"""site.yml end to end on systemd nodes with stand-in packages: apt, dkms, initramfs-tools and ssh
are real.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import World
from tests.e2e.support import (
    ROOT,
    Site,
    command,
    environment,
    goldnode,
    inventory,
    site_yml,
    succeeded,
)
from tests.simulators import apt_archive

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

HOOK = "/etc/initramfs-tools/hooks/zz-goldnode"
Make = Callable[..., tuple[LabNode, Site]]
REBOOT = ("-e", "goldnode_reboot=true", "-e", '{"goldnode_accepted": [0, 3]}')


def modinfo(node: LabNode, release: str, module: str) -> str:
    """Version of a module as the node's own modinfo tells it; empty when there is none."""
    return node.run("modinfo", "-k", release, "-F", "version", module, check=False).output.strip()


def changes(node: LabNode) -> set[str]:
    """Paths that differ from the image the node was made from, without what a login leaves behind."""
    noise = (
        "/run",
        "/tmp",
        "/root",
        "/var/log",
        "/var/lib/systemd",
        "/etc/ssh",
        "/var/cache/ldconfig",
        "/etc/machine-id",
        "/var/lib/dbus",
    )
    found = {str(row["Path"]) for row in node.container.diff() or []}
    return {
        path
        for path in found
        if not path.startswith(noise)
        and path not in {"/etc", "/var", "/var/lib", "/var/cache", "/usr", "/usr/lib"}
    }


@pytest.fixture(scope="module")
def small(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabNode, Site, Path]:
    """A fresh node with its site and inventory; the tests of this module follow it through its life in their order."""
    node, site = make("small", "e2e_r535", "debian12_r535", "debian12_r470", "debian12_r580")
    return node, site, inventory(tmp_path_factory.mktemp("inventory"), {"e2e_r535": [node]})


def test_check_mode_names_everything_and_touches_nothing(small: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = small
    before = changes(node)
    run = succeeded(site_yml(hosts, "--check", "--diff", site=site))
    assert changes(node) == before
    for wanted in (
        "install   linux-image-6.1.0-902-amd64 6.1.902-1+standin1",
        "install   nvidia-kernel-dkms 535.309.01-0+deb12u1+standin1",
        "/etc/modprobe.d/goldnode-blacklist.conf",
        "+install nouveau /bin/false",
        "/etc/systemd/system/goldnode-sanity.service",
        "+Package: libnvidia-ml1",
        "Would need a reboot: kernel 6.1.0-902-amd64 is installed",
        "not verified here: which kernel boots next",
    ):
        assert wanted in run.output, wanted
    assert run.changed["small"] == 4, "each of the four roles has something to bring to a bare node"


def test_a_bare_node_becomes_a_member_of_its_class(small: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = small
    succeeded(site_yml(hosts, site=site))
    assert modinfo(node, "6.1.0-902-amd64", "nvidia-current") == "535.309.01"
    verdict = json.loads(node.read("/run/goldnode/verdict.json"))
    assert verdict["simulated"] is True
    wrong = [finding for finding in verdict["findings"] if finding["outcome"] == "mismatch"]
    assert [finding["id"] for finding in wrong] == ["boot.pending"], wrong
    assert verdict["exit_code"] == 3, (
        "a container cannot show its kernel, so it is never called healthy"
    )
    outcomes = {finding["id"]: finding["outcome"] for finding in verdict["findings"]}
    assert outcomes["kernel.running"] == outcomes["boot.next"] == "not_verified_here"
    assert (
        outcomes["stack.lock"]
        == outcomes["stack.holds"]
        == outcomes["driver.module_file"]
        == "match"
    )


def test_a_second_run_costs_one_execution_and_asks_nothing(
    world: World, small: tuple[LabNode, Site, Path]
) -> None:
    node, site, hosts = small
    reloads = node.run("journalctl", "-b", "--no-pager").output.count("Reloading")
    image = node.run("stat", "-c", "%i %Y", "/boot/initrd.img-6.1.0-902-amd64").output
    asked, state = len(world.server.requests()), changes(node)
    assert asked > 0, "the first run downloaded nothing, so that counting requests proves nothing"
    run = succeeded(site_yml(hosts, "-vvv", site=site))
    assert run.changed["small"] == 0
    assert run.executions == 1, [line for line in run.output.splitlines() if "SSH: EXEC" in line]
    assert "Gathering Facts" not in run.output
    assert len(world.server.requests()) == asked
    assert node.run("journalctl", "-b", "--no-pager").output.count("Reloading") == reloads
    assert node.run("stat", "-c", "%i %Y", "/boot/initrd.img-6.1.0-902-amd64").output == image
    assert changes(node) == state
    judged = succeeded(
        site_yml(
            hosts, "-vvv", "-e", "sanity_verify=true", "-e", '{"sanity_accepted": [3]}', site=site
        )
    )
    assert (judged.executions, judged.changed["small"]) == (2, 0)


def test_adopt_looks_at_a_node_and_changes_nothing(small: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = small
    before = changes(node)
    done = goldnode("adopt", node.name, "-i", str(hosts), "--name", "seen", site=site)
    assert done.returncode == 0, done.stderr
    assert changes(node) == before
    assert "class: seen" in done.stdout
    assert "stack: debian12_r535" in done.stdout
    assert "review: The node already has a class of goldnode" in done.stderr
    assert "review: The node is a container" in done.stderr
    assert 'backend "cuda" needs `gpu`' in done.stderr
    absent = goldnode("adopt", "nobody", "-i", str(hosts), site=site)
    assert absent.returncode == 2
    assert "nobody cannot be surveyed" in absent.stderr


def test_the_reboot_happens_where_allowed_between_drain_and_return(
    small: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    node, site, hosts = small
    for name in ("drain", "resume"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/log\n')
        script.chmod(0o755)
    assert "Needs a reboot" in succeeded(site_yml(hosts, site=site)).output
    started = node.run("cut", "-d ", "-f22", "/proc/1/stat").output
    hooks = {
        "goldnode_drain": "command",
        "goldnode_drain_command": [str(tmp_path / "drain")],
        "goldnode_resume_command": [str(tmp_path / "resume")],
    }
    booted = succeeded(site_yml(hosts, *REBOOT, "-e", json.dumps(hooks), site=site))
    assert node.run("cut", "-d ", "-f22", "/proc/1/stat").output != started
    report = booted.output[booted.output.index("goldnode: 1 host") :]
    assert "boot.pending" not in report, "the report is about the node before its reboot"
    assert "SIMULATED HARDWARE" in report, "the verdict after the reboot is not in the report"
    first, second = (tmp_path / "log").read_text().splitlines()
    assert re.match(
        r"drain small goldnode run \S+ of \S+ at \S+: kernel 6\.1\.0-902-amd64 is installed", first
    )
    assert second == "resume small"
    assert node.run("systemctl", "is-active", "goldnode-sanity.service").output.strip() == "active"
    assert "boot.pending" in node.read("/run/goldnode/verdict.json")
    again = succeeded(site_yml(hosts, *REBOOT, site=site))
    assert again.changed["small"] == 0
    assert "Needs a reboot" not in again.output


def test_nouveau_forced_into_the_initramfs_is_cleaned(small: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = small
    # As on a node that goldnode has not seen: without its hook, which takes nouveau out again at every rebuild.
    node.shell(
        f"rm {HOOK}; echo nouveau >> /etc/initramfs-tools/modules; update-initramfs -u -k all"
    )
    listed = "lsinitramfs /boot/initrd.img-6.1.0-902-amd64"
    assert "nouveau.ko" in node.shell(listed).output, (
        "the node was not spoilt, so that cleaning it would prove nothing"
    )
    assert node.run("/usr/lib/goldnode/goldnode-node", "check", "--no-write", check=False).rc == 2
    succeeded(site_yml(hosts, site=site))
    assert "nouveau.ko" not in node.shell(listed).output
    # modprobe -n may end non-zero once it has met /bin/false; what it printed is what is judged.
    assert (
        "/bin/false"
        in node.shell("modprobe -n -v -S 6.1.0-902-amd64 nouveau 2>&1", check=False).output
    )
    node.shell("echo nouveau >> /etc/initramfs-tools/modules; update-initramfs -u -k all")
    assert "nouveau.ko" not in node.shell(listed).output, (
        "the next rebuild brings it back, forced or not"
    )
    succeeded(site_yml(hosts, site=site))


def test_drift_is_found_named_and_repaired(small: tuple[LabNode, Site, Path]) -> None:
    node, site, hosts = small
    node.shell(
        "apt-mark unhold libcuda1; rm /etc/apt/preferences.d/goldnode-stack; chmod 644 /etc/kernel/postinst.d/zz-goldnode;"
        "echo >> /etc/modprobe.d/goldnode-blacklist.conf; rm /etc/systemd/system/multi-user.target.wants/goldnode-sanity.service"
    )
    plan = node.run("/usr/lib/goldnode/goldnode-node", "plan").output
    found = re.findall(r"^  (\S+ \S+):", plan, re.MULTILINE)
    assert sorted(found) == [
        "file.write /etc/apt/preferences.d/goldnode-stack",
        "file.write /etc/kernel/postinst.d/zz-goldnode",
        "file.write /etc/modprobe.d/goldnode-blacklist.conf",
        "link /etc/systemd/system/multi-user.target.wants/goldnode-sanity.service",
        "packages.hold gpu_driver",
    ]
    succeeded(site_yml(hosts, site=site))
    assert succeeded(site_yml(hosts, site=site)).changed["small"] == 0


def test_a_kernel_without_the_module_is_reported_by_its_hook(
    world: World, small: tuple[LabNode, Site, Path]
) -> None:
    node, _, _ = small
    world.publish({*apt_archive.DEFAULT, apt_archive.BROKEN})
    # Without headers dkms has nothing to say, and the kernel would boot without its GPUs.
    reported = node.shell(
        "apt-get update >/dev/null; apt-get install -y --no-install-recommends linux-image-6.1.0-904-amd64 2>&1"
    ).output
    assert (
        "goldnode: kernel 6.1.0-904-amd64 has no module nvidia-current 535.309.01 (found: none)"
        in reported
    )
    assert (
        node.run(
            "dpkg-query", "-W", "-f", "${db:Status-Status}", "linux-image-6.1.0-904-amd64"
        ).output
        == "installed"
    )
    node.shell("apt-get purge -y linux-image-6.1.0-904-amd64")
    world.publish()


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.long)])
def test_branches_change_in_one_transaction_each_way(
    small: tuple[LabNode, Site, Path], tmp_path: Path, times: int
) -> None:
    node, site, _ = small
    want = {
        "e2e_r470": ("nvidia-tesla-470", "470.256.02"),
        "e2e_r535": ("nvidia-current", "535.309.01"),
    }

    def returns() -> int:
        """How many transactions have led back from 470."""
        log = node.read("/var/log/apt/history.log")
        return len(
            re.findall(r"^Commandline: .*nvidia-tesla-470-kernel-dkms-( |$)", log, re.MULTILINE)
        )

    before = returns()
    for number in range(times):
        group = ("e2e_r470", "e2e_r535")[number % 2]
        run = succeeded(site_yml(inventory(tmp_path / str(number), {group: [node]}), site=site))
        assert run.changed["small"] > 0
        module, version = want[group]
        assert modinfo(node, "6.1.0-902-amd64", module) == version
        installed = node.shell(
            "dpkg-query -W -f '${Package} ${db:Status-Status}\\n' | awk '$2 == \"installed\" {print $1}'"
        ).output.split()
        other = "nvidia-kernel-dkms" if group == "e2e_r470" else "nvidia-tesla-470-kernel-dkms"
        assert other not in installed
        # || true: grep fails where it finds nothing, which is what is wanted; the assertion is on what it finds.
        assert (
            node.shell(
                "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' | grep ^config-files || true"
            ).output
            == ""
        )
        assert node.run("dpkg", "--audit").output == ""
    assert returns() - before == times // 2, "each way back is one transaction"


def test_the_open_flavour_of_nvidias_repository(
    small: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    node, site, _ = small
    hosts = inventory(tmp_path, {"e2e_r580": [node]})
    succeeded(site_yml(hosts, site=site))
    assert modinfo(node, "6.1.0-902-amd64", "nvidia") == "580.178.04"
    assert "GPL" in node.run("modinfo", "-k", "6.1.0-902-amd64", "-F", "license", "nvidia").output
    manager = node.run("dpkg-query", "-W", "-f", "${Version}", "nvidia-fabricmanager").output
    assert manager.startswith("580.178.04"), (
        "the platform has NVSwitch, so its fabric manager is the driver's"
    )
    assert succeeded(site_yml(hosts, site=site)).changed["small"] == 0


def test_an_older_kernel_and_driver_stay_while_security_offers_newer(
    world: World, make: Make, tmp_path: Path
) -> None:
    """Downgrade to what main has; every fence holds on its own; what is let go does move."""
    node, site = make("fenced", "e2e_r535", "debian12_r535", "e2e_main")
    succeeded(site_yml(inventory(tmp_path / "new", {"e2e_r535": [node]}), site=site))
    run = succeeded(site_yml(inventory(tmp_path / "old", {"e2e_main": [node]}), site=site))
    assert (
        "downgrade nvidia-kernel-dkms 535.309.01-0+deb12u1+standin1 -> 535.261.03-1+standin1"
        in run.output
    )
    assert modinfo(node, "6.1.0-901-amd64", "nvidia-current") == "535.261.03"
    assert node.run("test", "-f", "/boot/vmlinuz-6.1.0-902-amd64").rc == 0, (
        "the kernel before stays as a way back"
    )

    archive = world.publish()
    _, security, *_ = archive.sources(world.server.url, "bookworm").split("\n\n")
    node.put(
        {
            "/etc/apt/sources.list.d/security.sources": security.encode(),
            f"/etc/apt/keyrings/{apt_archive.KEY}": archive.key.read_bytes(),
            "/etc/apt/apt.conf.d/99test": b'Unattended-Upgrade::Origins-Pattern { "origin=*"; };\n',
        }
    )
    node.shell(
        "apt-get update; apt-get install -y --no-install-recommends libstandin-base=1.0-1+standin1 linux-image-amd64=6.1.901-1+standin1"
    )
    document = json.loads(node.read("/etc/goldnode/class.json"))
    stack = {package["name"] for package in document["packages"]} | set(document["fence"])

    def apt_moves() -> set[str]:
        return set(
            re.findall(r"^Inst (\S+)", node.shell("apt-get -s dist-upgrade").output, re.MULTILINE)
        )

    def unattended_moves() -> set[str]:
        reported = node.shell("unattended-upgrade --dry-run -v 2>&1").output
        found = re.search(r"Packages that will be upgraded: (.*)", reported)
        return set(found[1].split()) if found else set()

    for moves in (apt_moves, unattended_moves):
        assert "libstandin-base" in moves(), f"{moves.__name__}: base packages take their updates"
        assert not moves() & stack, moves.__name__
    node.shell(
        "apt-mark showhold | xargs apt-mark unhold; rm /etc/apt/preferences.d/goldnode-stack"
    )
    assert "nvidia-kernel-dkms" in apt_moves(), (
        "let go, and still nothing moves: the test proves nothing"
    )
    assert "linux-image-amd64" in apt_moves()
    assert not unattended_moves() & stack, "the blacklist alone keeps unattended upgrades off"
    node.shell("rm /etc/apt/apt.conf.d/52goldnode-fence")
    assert {"nvidia-kernel-dkms", "libcuda1"} <= unattended_moves()


@pytest.mark.parametrize(
    ("os_name", "group", "stack", "release", "module"),
    [
        # The scenario debian13 of molecule converges the same stack twice.
        pytest.param(
            "debian13",
            "e2e_r550",
            "debian13_r550",
            "6.12.902+deb13-amd64",
            "nvidia-current",
            marks=pytest.mark.long,
        ),
        ("debian12", "e2e_cpu", "debian12_cpu", "6.1.0-902-amd64", None),
        # On Debian's own packages: tests/e2e/test_real_debian13.py.
        pytest.param(
            "debian13",
            "e2e_rocm",
            "debian13_rocm",
            "6.12.902+deb13-amd64",
            None,
            marks=pytest.mark.long,
        ),
    ],
)
def test_other_classes_converge_and_a_second_run_changes_nothing(
    make: Make,
    tmp_path: Path,
    os_name: str,
    group: str,
    stack: str,
    release: str,
    module: str | None,
) -> None:
    node, site = make(group.replace("_", "-"), group, stack, os_name=os_name)
    hosts = inventory(tmp_path, {group: [node]})
    succeeded(site_yml(hosts, site=site))
    assert node.run("test", "-f", f"/boot/vmlinuz-{release}").rc == 0
    if module:
        assert modinfo(node, release, module) == "550.163.01"
    assert succeeded(site_yml(hosts, site=site)).changed[node.name] == 0


# What is killed, and when: a pattern of a process on the node (or the run itself on the controller), seen to be at work.
STEPS = [("the run itself", None, "apt-get")]
# With --all: test_killed.py kills everything at each of these steps, and these a single program.
MORE = [
    ("apt while it unpacks", "apt-get", "dpkg .*--unpack"),
    ("dpkg while it unpacks", "dpkg", "dpkg .*--unpack"),
    ("dpkg while it configures", "dpkg", "dpkg .*--configure"),
    ("the module build", "dkms", "dkms"),
    ("the initramfs", "mkinitramfs", "mkinitramfs"),
    ("the engine on the node", "python3", "apt-get"),
]


@pytest.mark.parametrize(
    ("what", "victim", "sign"),
    [*STEPS, *(pytest.param(*step, marks=pytest.mark.long) for step in MORE)],
    ids=[step[0].replace(" ", "-") for step in (*STEPS, *MORE)],
)
def test_next_run_converges_after_a_killed_run(
    make: Make, tmp_path: Path, what: str, victim: str | None, sign: str
) -> None:
    node, site = make("killed", "e2e_r535", "debian12_r535")
    hosts = inventory(tmp_path, {"e2e_r535": [node]})
    with subprocess.Popen(
        command(hosts),
        cwd=ROOT,
        env=environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as run:
        seen = False
        for _ in range(1200):
            if node.run("pgrep", "-f", sign, check=False).rc == 0:
                seen = True
                break
            assert run.poll() is None, f"{what}: the run ended before {sign} was seen"
            time.sleep(0.05)
        assert seen, sign
        if victim is None:
            os.killpg(run.pid, signal.SIGKILL)
        else:
            node.run(
                "pkill",
                "-KILL",
                "-f" if victim == "python3" else "-x",
                "AnsiballZ|python3" if victim == "python3" else victim,
                check=False,
            )
        output = run.communicate(timeout=900)[0].decode()
    again = site_yml(hosts, site=site)
    assert again.rc == 0, (
        f"{what}\n--- first run\n{output[-2500:]}\n--- next run\n{again.output[-4000:]}"
    )
    assert modinfo(node, "6.1.0-902-amd64", "nvidia-current") == "535.309.01"
    assert node.run("dpkg", "--audit").output == ""
    assert succeeded(site_yml(hosts, site=site)).changed["killed"] == 0
