"""An empty machine (emulated) is installed from the network by channel, updated, rolled back, and installed again.

nginx, dnsmasq and the machine are in a network namespace of their own, with the configurations as `goldnode disks netboot` writes them.
`GOLDNODE_NETWORK_DISKS` names a directory with the locks, definition and store of an earlier run, which are used again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.disks.conftest import CLASS, Site

from goldnode.disks.model import BuiltDisk, builds
from goldnode.disks.qemu import SSH_OPTIONS, GuestResult, VirtualMachine, VmOptions, make_key

pytestmark = [
    pytest.mark.disks,
    pytest.mark.long,
    pytest.mark.xdist_group("disk"),
    pytest.mark.skipif(
        os.geteuid() != 0
        or not all(
            shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
            for name in ("dnsmasq", "nginx", "ip")
        ),
        reason="needs root, dnsmasq-base, nginx and iproute2",
    ),
]

NETWORK, SERVER, MAC, SERIAL = "gn-install", "10.99.7.1", "52:54:00:99:07:01", "GN0007"
GIB = 1 << 30
WHY = ("--by", "test", "--reason", "a test of installations")
WHO = "hostname; cat /etc/machine-id; findmnt -no PARTLABEL /"
# The variable of the firmware is written at once; the power is cut after that.
NETBOOT = "/usr/lib/goldnode/goldnode-node slot netboot && sync"
LIMIT = 3600.0  # seconds of the guest's time


class NetworkMachine(VirtualMachine):
    """A machine on the bridge of the namespace. The firmware alone decides what it boots."""

    def command(self, qmp: int) -> list[str]:
        """See VirtualMachine."""
        words = self.paced(super().command(qmp))
        words = [
            word.replace("drive=disk,bootindex=0", f"drive=disk,serial={SERIAL}") for word in words
        ]
        words += ["-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no"]
        words += ["-device", f"virtio-net-pci,netdev=net,mac={MAC},romfile="]
        return ["ip", "netns", "exec", NETWORK, *words]

    def paced(self, words: list[str]) -> list[str]:
        """Return the words of QEMU with its clock."""
        return words

    def ssh_command(self, *words: str) -> list[str]:
        """See VirtualMachine."""
        return [
            "ip",
            "netns",
            "exec",
            NETWORK,
            "ssh",
            "-i",
            str(self.key),
            *SSH_OPTIONS,
            f"root@{address()}",
            *words,
        ]


class InstallingMachine(NetworkMachine):
    """The same machine on the clock of this one: firmware and iPXE wait for the network in busy loops, whose instructions an emulated clock counts."""

    def paced(self, words: list[str]) -> list[str]:
        """See NetworkMachine."""
        for option in ("-icount", "-rtc"):
            if option in words:
                at = words.index(option)
                words = words[:at] + words[at + 2 :]
        return words


def address() -> str:
    """The address of the lease; none before it has one."""
    text = (LEASES.read_text() if LEASES.exists() else "").split()
    return text[text.index(MAC) + 1] if MAC in text else "192.0.2.1"


LEASES = Path("/run/gn-install-leases")


def network(*words: str) -> None:
    subprocess.run(["ip", "netns", "exec", NETWORK, *words], check=True)


@pytest.fixture
def bridge() -> Iterator[None]:
    """A namespace with a bridge, and a tap device for the machine."""
    subprocess.run(["ip", "netns", "add", NETWORK], check=True)
    try:
        for text in (
            "link set lo up", "link add br0 type bridge", f"addr add {SERVER}/24 dev br0", "link set br0 up",
            "tuntap add tap0 mode tap", "link set tap0 master br0", "link set tap0 up",
        ):  # fmt: skip
            network("ip", *text.split())
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", NETWORK], check=True)
        LEASES.unlink(missing_ok=True)


class Servers:
    """nginx and dnsmasq in the namespace, with the configurations of a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "config"
        self.config.mkdir()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both once their configurations are written."""
        folder = self.folder
        names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = " ".join(f"{name}_temp_path {folder}/{name};" for name in names)
        main = (
            f"daemon off; user root; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        )
        http = f"http {{ access_log {folder}/access.log; {paths} include {self.config}/nginx.conf; }}\n"
        (folder / "main.conf").write_text(main + http)
        for words in (
            ["nginx", "-c", f"{folder}/main.conf"],
            [
                "dnsmasq",
                "-k",
                "--user=root",
                f"--dhcp-leasefile={LEASES}",
                "-C",
                f"{self.config}/dnsmasq.conf",
            ],
        ):
            self.running.append(subprocess.Popen(["ip", "netns", "exec", NETWORK, *words]))
        time.sleep(2)
        assert [process.poll() for process in self.running] == [None, None]


@pytest.fixture
def servers(tmp_path: Path, bridge: None) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    for process in made.running:
        process.terminate()
        process.wait()


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Site:
    """Locks, definition and store: of this run, or of an earlier one."""
    named = os.environ.get("GOLDNODE_NETWORK_DISKS")
    found: Site = Site(Path(named)) if named else request.getfixturevalue("site")
    return found


def keys(folder: Path) -> None:
    for name in ("root", "targets", "online", "builder"):
        path = folder / f"{name}.pem"
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)], check=True
        )
        path.chmod(0o600)
        subprocess.run(
            ["openssl", "pkey", "-in", str(path), "-pubout", "-out", str(path.with_suffix(".pub"))],
            check=True,
        )


def test_an_empty_machine_is_installed_updated_rolled_back_and_installed_again(
    home: Site, tmp_path: Path, servers: Servers
) -> None:
    site, served = home, servers.config
    first, second = variant(site, "first"), variant(site, "second")
    place, times = tmp_path / "place", Times()
    place.mkdir()
    keys(tmp_path)
    done(
        "channels",
        "keys",
        "disks",
        "--to",
        str(place),
        *(f"--{name}-key={tmp_path}/{name}.pem" for name in ("root", "targets", "online")),
        site=site,
    )
    publish(site, place, tmp_path, first)
    key = make_key(tmp_path)
    plan = {
        "install": 1,
        "address": f"http://{SERVER}/disks",
        "network": {"interface": "br0", "range": ["10.99.7.50", "10.99.7.99", "255.255.255.0"]},
        "authorized_keys": [key.with_suffix(".pub").read_text().strip()],
        "machines": {"gpu01": {"mac": MAC, "class": CLASS, "disk": {"serial": SERIAL}}},
    }
    order(site, tmp_path, plan, served, first)
    servers.start()
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), str(5 * GIB)], check=True)
    options = VmOptions(snapshot=False, form="qcow2", memory=1536, network=False, key=key)
    work = tmp_path / "machine"
    with InstallingMachine(disk, work, options) as machine:
        times.begin()
        machine.wait_for("goldnode: plan: write", LIMIT)
        times.step("from power to the plan: firmware, iPXE, kernel, installer")
        shown = machine.wait_for("the first in order", LIMIT)
        times.step("written, read back, seed, boot entry")
        assert f"{first.name} is on /dev/vda" in shown
        # The firmware starts the disk now, without QEMU's order.
        machine.wait_for("Linux version", LIMIT, since=len(machine.console()))
    with NetworkMachine(disk, work, options) as machine:
        machine.wait_ssh(LIMIT, since=len(machine.console()))
        times.step("first boot, up to ssh")
        settled(machine)
        times.step("system settled")
        who = answer(machine, WHO)
        assert who.split()[0] == "gpu01"
        assert who.split()[2] == "root-a"
        check = machine.ssh(["/usr/lib/goldnode/goldnode-node check"], limit=600)
        assert check.rc in (0, 3), check  # an emulated machine: an item may be not verified
        assert "PARTLABEL=root-b" in answer(machine, "blkid") or "root-b" in answer(
            machine, "lsblk -no PARTLABEL /dev/vda"
        )
        assert "PARTUUID" in answer(machine, "blkid /dev/vda1")
        times.step("check: healthy")
        # The member of its class gets the next image as other nodes do, and goes back.
        hosts = tmp_path / "hosts.yml"
        reached = {
            "ansible_host": address(), "ansible_user": "root", "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": " ".join(SSH_OPTIONS),
        }  # fmt: skip
        hosts.write_text(json.dumps({CLASS: {"hosts": {"gpu01": reached}}}))
        given = ("disks", "update", "-i", str(hosts), "gpu01", "--timeout", "5400")
        done(
            *given,
            "--image",
            str(second.directory),
            "--unsigned",
            "a test",
            "--unverified",
            "a test",
            "--reboot",
            site=site,
            inside=True,
        )
        times.step("update to the second image: written, booted, good")
        assert "goldnode-test=second" in answer(machine, "cat /proc/cmdline")
        done(*given, "--back", "--reboot", site=site, inside=True)
        times.step("way back: booted, good")
        assert "goldnode-test=first" in answer(machine, "cat /proc/cmdline")
        answer(machine, NETBOOT)
    # The same order again from the network writes nothing, and the machine comes back.
    with InstallingMachine(disk, work, options) as machine:
        times.begin()
        machine.wait_for("was carried out on it already", LIMIT, since=len(machine.console()))
        times.step("restart into the installer, which writes nothing")
        machine.wait_for("Linux version", LIMIT, since=len(machine.console()))
    with NetworkMachine(disk, work, options) as machine:
        machine.wait_ssh(LIMIT, since=len(machine.console()))
        times.step("boot from the disk")
        assert answer(machine, WHO) == who
        # A raised number installs again.
        plan["machines"]["gpu01"]["erase"] = 1  # type: ignore[index]
        order(site, tmp_path, plan, served, first)
        answer(machine, NETBOOT)
    with InstallingMachine(disk, work, options) as machine:
        times.begin()
        since = len(machine.console())
        machine.wait_for("goldnode: plan: write", LIMIT, since=since)
        times.step("again: restart into the installer")
        machine.wait_for("the first in order", LIMIT, since=since)
        times.step("again: written, read back, seed, boot entry")
        machine.wait_for("Linux version", LIMIT, since=len(machine.console()))
    with NetworkMachine(disk, work, options) as machine:
        machine.wait_ssh(LIMIT, since=len(machine.console()))
        times.step("again: first boot, up to ssh")
        settled(machine)
        new = answer(machine, WHO)
        assert new.split()[0] == "gpu01"
        assert new.split()[1] != who.split()[1], "it is another installation"
        times.step("again: system settled")
    print(times.table())


class Times:
    """Seconds of each step, on the clock of this machine."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float]] = []
        self.last = time.monotonic()

    def begin(self) -> None:
        self.last = time.monotonic()

    def step(self, name: str) -> None:
        now = time.monotonic()
        self.rows.append((name, now - self.last))
        print(f"STEP {name}: {now - self.last:.0f} s", flush=True)
        self.last = now

    def table(self) -> str:
        return "\n".join(f"| {name} | {seconds:.0f} s |" for name, seconds in self.rows)


def order(site: Site, folder: Path, plan: object, config: Path, image: BuiltDisk) -> None:
    """Write the installer and the signed orders, as a reader of the guide does."""
    (folder / "install.yml").write_text(yaml.safe_dump(plan, width=1000))
    root = folder / "place/metadata/1.root.json"
    given = (
        "--key",
        f"{folder}/builder.pem",
        "--trust",
        f"{folder}/builder.pub",
        "--root",
        str(root),
        "--config",
        str(config),
    )
    done(
        "disks",
        "netboot",
        f"{folder}/install.yml",
        "--to",
        f"{folder}/place",
        "--installer",
        image.name,
        *given,
        site=site,
    )


def done(*words: str, site: Site, inside: bool = False) -> str:
    command = site.command(*words)
    if inside:
        command = ["ip", "netns", "exec", NETWORK, *command]
    result = subprocess.run(
        command, env=site.environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, (words, result.stdout[-3000:], result.stderr[-3000:])
    return result.stdout


def answer(machine: VirtualMachine, command: str) -> str:
    found: GuestResult = machine.ssh([command], limit=600)
    assert found.rc == 0, found
    return found.out


def settled(machine: VirtualMachine) -> None:
    state = machine.ssh(["systemctl", "is-system-running", "--wait"], limit=1800)
    assert state.out.strip() == "running", (
        state,
        machine.ssh(["systemctl", "--failed"], limit=600).out,
    )


def publish(site: Site, place: Path, folder: Path, disk: BuiltDisk) -> None:
    """Publish a disk that was not booted, with a waiver, and point the channels to it."""
    name = f"{CLASS}:{disk.build_id}"
    done("disks", "evidence", name, "--key", f"{folder}/builder.pem", site=site)
    done(
        "disks",
        "publish",
        name,
        "--to",
        str(place),
        "--key",
        f"{folder}/builder.pem",
        "--waive",
        "booted",
        *WHY,
        site=site,
    )
    for channel in ("candidate", "canary", "stable"):
        waived = [
            "--waive",
            "booted",
            *(["--waive", "vulnerabilities"] if channel == "stable" else []),
        ]
        signed = (
            "--trust",
            f"{folder}/builder.pub",
            "--key",
            f"{folder}/targets.pem",
            "--online-key",
            f"{folder}/online.pem",
        )
        done(
            "disks", "promote", channel, name, "--to", str(place), *signed, *waived, *WHY, site=site
        )


def variant(site: Site, word: str) -> BuiltDisk:
    """A disk of the class with a word on its command line, in the formats of an installer, as small as it can be."""
    definition = site.home / f"disks-{word}.yml"
    text = re.sub(
        r"root_mib: \d+ ", "root_mib: 1152 ", (site.home / "disks.yml").read_text(), count=1
    )
    text = text.replace("command_line: [", f'command_line: ["goldnode-test={word}", ', 1)
    definition.write_text(text)
    formats = [
        item
        for form in ("raw", "raw.zst", "vmlinuz", "initrd")
        for item in ("--image-format", form)
    ]
    environment = {**site.environment, "GOLDNODE_DISK_DEFINITION": str(definition)}
    result = subprocess.run(
        site.command("disks", "build", CLASS, *formats),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    made = [
        disk for disk in builds(site.store, CLASS) if disk.name in result.stdout + result.stderr
    ]
    return made[0] if made else builds(site.store, CLASS)[0]
