"""What is put into a root for its first boot, what is taken out, and the program that runs then."""

from __future__ import annotations

import configparser
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from tests.unit.disks.disk_trees import EPOCH, RELEASE, spec, tree

from goldnode.core.errors import DiskError
from goldnode.disks import firstboot
from goldnode.disks.assemble import MIB
from goldnode.disks.sysupdate import FollowedChannel, definitions
from goldnode.node.effective.boot_choice import boot_choice
from goldnode.node.ground.host import Host
from goldnode.node.slots import write as slotwrite
from goldnode.node.state.domains import kernel

PROGRAM = firstboot.FILES / "common/usr/lib/goldnode/disk/first-boot"


def content(root: Path) -> dict[str, tuple[str, int, float]]:
    """Every file and link: content or target, mode, date."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = (str(path.readlink()), 0, path.lstat().st_mtime)
        elif path.is_file():
            found[str(path.relative_to(root))] = (
                path.read_bytes().decode("latin-1"),
                path.stat().st_mode & 0o7777,
                path.stat().st_mtime,
            )
    return found


def test_install_removes_host_name_ssh_keys_and_machine_id(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    firstboot.install(root, spec())
    assert not (root / "etc/hostname").exists()
    assert not list((root / "etc/ssh").glob("ssh_host_*"))
    assert (root / "etc/machine-id").read_text() == "uninitialized\n"
    assert (
        json.loads((root / "usr/lib/goldnode/disk/image.json").read_text())["build_id"]
        == "0123456789ab"
    )
    assert (root / "usr/lib/goldnode/disk/class").read_text() == "cpu_only\n"
    assert str((root / "etc/resolv.conf").readlink()) == "../run/systemd/resolve/stub-resolv.conf"


def test_again_changes_nothing_and_every_date_is_the_images(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    written = firstboot.install(root, spec())
    once = content(root)
    assert {once[name][2] for name in written} == {EPOCH}
    assert firstboot.install(root, spec()) == written
    assert content(root) == once


def test_the_partitions_are_grown_and_made_as_large_as_they_are_shipped_at_least(
    tmp_path: Path,
) -> None:
    root = tree(tmp_path / "root")
    firstboot.install(root, spec())
    found = {}
    for path in sorted((root / "usr/lib/repart.d").iterdir()):
        parser = configparser.ConfigParser()
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(path)
        found[path.name] = dict(parser["Partition"])
    assert found["20-root-a.conf"] == {
        "Type": "root-x86-64",
        "Label": "root-a",
        "Weight": "1000",
        "SizeMinBytes": str(160 * MIB),
    }
    assert found["30-root-b.conf"] == {
        "Type": "root-x86-64",
        "Label": "root-b",
        "Weight": "1000",
        "Priority": "10",
        "SizeMinBytes": str(160 * MIB),
    }
    other = tree(tmp_path / "other")
    firstboot.install(other, spec("single"))
    assert sorted(path.name for path in (other / "usr/lib/repart.d").iterdir()) == [
        "10-esp.conf",
        "20-root.conf",
    ]


def test_a_root_for_grub_gives_the_engine_what_boots_and_update_grub_how(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    written = firstboot.install(
        root, spec("single", command_line="console=ttyS0 iommu=pt", words="console=ttyS0")
    )
    assert {
        "boot/grub/grub.cfg",
        "etc/default/grub.d/50-goldnode-disk.cfg",
        "etc/default/grub.d/90-goldnode.cfg",
    } <= set(written)
    host = Host(str(root))
    choice = boot_choice(host, RELEASE)
    assert (choice["loader"], choice["release"], choice["via"]) == ("grub", RELEASE, "default")
    assert str(choice["cmdline"]).endswith(" ro console=ttyS0 iommu=pt")
    # What the engine wants of a node, so that the first check has nothing to correct.
    assert (root / kernel.DROP_IN.lstrip("/")).read_text() == kernel.drop_in(str(choice["entry"]))
    (root / "boot/grub/grubenv").write_bytes(b"# GRUB Environment Block\nnext_entry=gone\n")
    assert boot_choice(host, RELEASE)["via"] == "next_entry"
    words = (root / "etc/default/grub.d/50-goldnode-disk.cfg").read_text()
    done = subprocess.run(
        ["sh", "-ec", f'GRUB_CMDLINE_LINUX=iommu=pt\n{words}\necho "$GRUB_CMDLINE_LINUX"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "iommu=pt console=ttyS0\n"


def test_every_link_leads_to_a_unit_and_every_unit_of_ours_is_enabled_or_started_by_one(
    tmp_path: Path,
) -> None:
    root = tree(tmp_path / "root")
    firstboot.install(root, spec())
    units = {
        path.name for path in (root / "usr/lib/systemd/system").glob("goldnode-*") if path.is_file()
    }
    links = {
        path.name: str(path.readlink())
        for path in (root / "etc/systemd/system").rglob("*")
        if path.is_symlink()
    }
    for name, target in links.items():
        # Those of slots are the engine's too, which writes to /etc.
        assert target.startswith(("/usr/lib/systemd/system/", "/etc/systemd/system/goldnode-")), (
            name
        )
        if name.startswith("goldnode-"):
            assert (root / target.lstrip("/")).is_file()
            text = (root / target.lstrip("/")).read_text()
            wants = [
                (verb.lower(), unit)
                for verb, unit in re.findall(r"^(Wanted|Required)By=(.*)$", text, re.MULTILINE)
            ]
            asked = [
                f"{unit}.{'wants' if verb == 'wanted' else 'requires'}" for verb, unit in wants
            ] or ["emergency.target.wants"]
            assert all((root / "etc/systemd/system" / place / name).is_symlink() for place in asked)
    assert units - set(links) == {"goldnode-lease-name.service"}  # its path starts it


def test_mounts_of_the_site_stay(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    (root / "etc/fstab").write_text(
        "# a word\nUUID=x / ext4 defaults 0 1\nserver:/home /home nfs defaults 0 0\n"
    )
    firstboot.install(root, spec())
    rows = [
        line.split()[1]
        for line in (root / "etc/fstab").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rows == ["/", "/efi", "/home"]


def test_cloud_init_gets_its_file_only_where_it_is(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    assert not [name for name in firstboot.install(root, spec()) if "cloud" in name]
    (root / "usr/bin/cloud-init").write_bytes(b"")
    assert "etc/cloud/cloud.cfg.d/90-goldnode.cfg" in firstboot.install(root, spec())
    settings = yaml.safe_load((root / "etc/cloud/cloud.cfg.d/90-goldnode.cfg").read_text())
    assert settings["growpart"] == {"mode": "off"}
    assert settings["resize_rootfs"] is False
    assert settings["ssh_deletekeys"] is False
    assert settings["datasource_list"][-1] == "None"
    assert (
        len(settings["datasource_list"]) > 2
    )  # of one alone, or one and None, ds-identify takes it for given


def test_a_root_without_sshd_gets_nothing_of_ssh(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    (root / "usr/sbin/sshd").unlink()
    assert not [name for name in firstboot.install(root, spec()) if "ssh" in name]


@pytest.mark.parametrize(
    ("missing", "package"),
    [
        ("usr/bin/systemd-repart", "systemd-repart"),
        ("usr/lib/systemd/systemd", "systemd-sysv"),
        ("usr/lib/systemd/systemd-growfs", "systemd"),
    ],
)
def test_a_root_that_could_not_boot_so_is_left_as_it_was(
    tmp_path: Path, missing: str, package: str
) -> None:
    root = tree(tmp_path / "root")
    (root / missing).unlink()
    before = content(root)
    with pytest.raises(DiskError, match=f"/{missing}.*Add .*{package}"):
        firstboot.install(root, spec())
    assert content(root) == before


def test_a_directory_that_leads_out_of_the_root_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "usr/lib/repart.d").symlink_to(outside)
    with pytest.raises(DiskError, match="leads out of it"):
        firstboot.install(root, spec())
    assert not list(outside.iterdir())
    assert (root / "etc/hostname").exists()


def run(
    place: Path,
    word: str,
    *,
    mounted: bool = True,
    root: str = "UUID=1",
    layout: str = "single",
    credentials: Mapping[str, str] = MappingProxyType({}),
    sleep: Path | None = None,
) -> str:
    """The program of the first boot with every path of it below `place`; `mounted`: whether /efi is."""
    text = PROGRAM.read_text()
    for name in (
        "/usr/lib/goldnode/disk",
        "/var/lib/goldnode/disk",
        "/efi/goldnode/seed",
        "/proc/sys/kernel/hostname",
        "/proc/cmdline",
        "/usr/lib/os-release",
        "/etc/",
        "/root/",
        "/run/",
    ):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}", f"{place}{name}", text)
        (place / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    for folder in (
        "usr/lib/goldnode/disk",
        "efi/goldnode/seed",
        "etc",
        "root",
        "run/systemd/netif/leases",
    ):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "usr/lib/goldnode/disk/class").write_text("a100_sxm4_40gb\n")
    (place / "usr/lib/goldnode/disk/layout").write_text(f"{layout}\n")
    (place / "usr/lib/os-release").write_text("ID=debian\nIMAGE_VERSION=old\n")
    (place / "proc/cmdline").write_text(f"quiet root={root} ro\n")
    (place / "etc/machine-id").write_text("0a1b2c3d4e5f60718293a4b5c6d7e8f9\n")
    (place / "proc/sys/kernel/hostname").touch()
    program = place / "program"
    program.write_text(text)
    (place / "programs").mkdir(exist_ok=True)
    (place / "programs/mountpoint").write_text(f"#!/bin/sh\nexit {0 if mounted else 32}\n")
    # Nothing comes a moment later.
    (place / "programs/sleep").write_text(sleep.read_text() if sleep else "#!/bin/sh\n")
    for stub in (place / "programs").iterdir():
        stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{place}/programs:{os.environ['PATH']}"}
    if credentials:
        environment["CREDENTIALS_DIRECTORY"] = str(place / "credentials")
        (place / "credentials").mkdir(exist_ok=True)
    for name, value in credentials.items():
        (place / "credentials" / name).write_text(value)
    done = subprocess.run(
        ["sh", program, word], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout + done.stderr


def name_of(place: Path) -> str:
    """What the kernel was told."""
    return (place / "proc/sys/kernel/hostname").read_text().strip()


def test_a_node_without_a_name_is_called_after_class_and_machine_id(tmp_path: Path) -> None:
    run(tmp_path, "name")
    assert name_of(tmp_path) == "a100-sxm4-40gb-0a1b2c"


@pytest.mark.parametrize(
    ("lease", "name"),
    [
        ("node-17", "node-17"),
        ("node-17.lab.example", "node-17.lab.example"),
        ("a b;reboot", ""),
        ("-x", ""),
    ],
)
def test_the_name_of_a_lease_is_taken_when_it_is_one(tmp_path: Path, lease: str, name: str) -> None:
    (tmp_path / "run/systemd/netif/leases").mkdir(parents=True)
    (tmp_path / "run/systemd/netif/leases/2").write_text(
        f"# This is private data. Do not parse.\nADDRESS=10.0.2.15\nHOSTNAME={lease}\n"
    )
    run(tmp_path, "lease")
    assert name_of(tmp_path) == name


def test_lease_that_networkd_answers_with_names_the_node(tmp_path: Path) -> None:
    """systemd 262 writes no files of leases. The answer is its own, cut, of a lease from dnsmasq 2.93 on 2026-12-01."""
    lease = {
        "LeaseTimestampUSec": 4466340585,
        "Hostname": "node-17",
        "Message": {"op": 2, "options": [{"tag": 12, "data": "6e6f64652d3137"}]},
    }
    interfaces = [{"Index": 1, "Name": "lo"}, {"Name": "wire0", "DHCPv4Client": {"Lease": lease}}]
    (tmp_path / "programs").mkdir()
    answer = json.dumps({"Interfaces": interfaces}, separators=(",", ":"))
    (tmp_path / "programs/varlinkctl").write_text(f"#!/bin/sh\necho '{answer}'\n")
    place = tmp_path / "run/systemd/netif"
    place.mkdir(parents=True)
    run(tmp_path, "lease")
    assert name_of(tmp_path) == "", "there is nothing to ask"
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(place)  # the path of a socket has at most 107 bytes
        listening.bind("io.systemd.Network")
        os.chdir(here)
        assert "called node-17 (the DHCP lease)" in run(tmp_path, "lease")
        assert run(tmp_path, "lease") == "", "it has this name already"
    assert name_of(tmp_path) == "node-17"


def test_lease_of_a_later_moment_names_the_node(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    place = tmp_path / "run/systemd/netif/leases"
    run(tmp_path, "lease")
    assert name_of(tmp_path) == ""
    text = f"#!/bin/sh\n[ $1 != 2 ] || echo HOSTNAME=late >{place}/2\n"
    sleep = tmp_path / "programs/later"
    sleep.write_text(text)
    run(tmp_path, "lease", sleep=sleep)
    assert name_of(tmp_path) == "late"


def test_lease_names_no_node_that_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/netif/leases").mkdir(parents=True)
    (tmp_path / "run/systemd/netif/leases/2").write_text("HOSTNAME=lease\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("seed\n")
    run(tmp_path, "lease")
    assert name_of(tmp_path) == ""


def test_changes_of_interfaces_start_the_service_as_often_as_they_come() -> None:
    """With a limit, or with a condition of a path that exists, a busy network would let the unit fail."""
    units = firstboot.FILES / "common/usr/lib/systemd/system"
    path = (units / "goldnode-lease-name.path").read_text().splitlines()
    service = (units / "goldnode-lease-name.service").read_text().splitlines()
    assert [line for line in path if line.startswith("Path")] == [
        "PathChanged=/run/systemd/netif/links"
    ]
    assert "Wants=goldnode-lease-name.service" in path, "the lease may be there already"
    assert "StartLimitIntervalSec=0" in service
    assert not [line for line in service if line.startswith(("Condition", "RemainAfterExit"))]


def test_the_seed_gives_name_and_keys(tmp_path: Path) -> None:
    seed = tmp_path / "efi/goldnode/seed"
    seed.mkdir(parents=True)
    (seed / "hostname").write_text("node-3\r\n")
    (seed / "authorized_keys").write_text(
        "# ours\r\nssh-ed25519 AAAA one\r\nssh-ed25519 BBBB two\r\n"
    )
    (tmp_path / "root/.ssh").mkdir(parents=True)
    (tmp_path / "root/.ssh/authorized_keys").write_text("ssh-ed25519 AAAA one\n")
    reported = run(tmp_path, "run")
    assert (tmp_path / "etc/hostname").read_text() == "node-3\n"
    assert name_of(tmp_path) == "node-3"
    assert (
        tmp_path / "root/.ssh/authorized_keys"
    ).read_text() == "ssh-ed25519 AAAA one\n# ours\nssh-ed25519 BBBB two\n"
    assert (tmp_path / "root/.ssh/authorized_keys").stat().st_mode & 0o777 == 0o600
    assert "1 keys of the seed" in reported
    assert (tmp_path / "var/lib/goldnode/disk/first-boot").exists()
    run(tmp_path, "run")
    assert (tmp_path / "root/.ssh/authorized_keys").read_text().count("AAAA") == 1


def test_credential_names_the_node_at_each_boot_and_no_lease_does(tmp_path: Path) -> None:
    credentials = {"system.hostname": "node-7\n"}
    assert "the credential system.hostname" in run(tmp_path, "name", credentials=credentials)
    assert name_of(tmp_path) == "node-7"
    assert not (tmp_path / "etc/hostname").exists()
    (tmp_path / "run/systemd/netif/leases/2").write_text("HOSTNAME=lease\n")
    run(tmp_path, "lease", credentials=credentials)
    assert name_of(tmp_path) == "node-7"
    run(tmp_path, "lease")
    assert name_of(tmp_path) == "lease"


def test_credential_of_the_first_boot_becomes_the_name_that_stays(tmp_path: Path) -> None:
    reported = run(tmp_path, "run", credentials={"firstboot.hostname": "node-8"})
    assert "this node is called node-8 (the credential firstboot.hostname)" in reported
    assert (tmp_path / "etc/hostname").read_text() == "node-8\n"
    assert name_of(tmp_path) == "node-8"


def test_seed_on_the_esp_outranks_the_credential_of_the_first_boot(tmp_path: Path) -> None:
    seed = tmp_path / "efi/goldnode/seed"
    seed.mkdir(parents=True)
    (seed / "hostname").write_text("node-3\n")
    run(tmp_path, "run", credentials={"firstboot.hostname": "node-8"})
    assert (tmp_path / "etc/hostname").read_text() == "node-3\n"


def test_credential_of_the_first_boot_replaces_no_name(tmp_path: Path) -> None:
    """An administrator, cloud-init, or systemd-firstboot of systemd 262 may have written it."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("node-1\n")
    run(tmp_path, "run", credentials={"firstboot.hostname": "node-8"})
    assert (tmp_path / "etc/hostname").read_text() == "node-1\n"
    run(tmp_path, "name", credentials={"system.hostname": "node-7"})
    assert name_of(tmp_path) == "node-1"


@pytest.mark.parametrize("name", ["-x", "a b;reboot", "a_b", "x" * 65, "\n"])
def test_credential_that_is_no_name_is_reported_and_not_used(tmp_path: Path, name: str) -> None:
    given = {"system.hostname": name, "firstboot.hostname": name}
    assert "of the credential system.hostname is none" in run(tmp_path, "name", credentials=given)
    assert name_of(tmp_path) == "a100-sxm4-40gb-0a1b2c"
    assert "of the credential firstboot.hostname is none" in run(tmp_path, "run", credentials=given)
    assert not (tmp_path / "etc/hostname").exists()


def test_services_of_a_first_boot_get_their_credentials_in_order(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    firstboot.install(root, spec())
    units = {}
    for path in (root / "usr/lib/systemd/system").glob("goldnode-*.service"):
        rows = [row.partition("=") for row in path.read_text().splitlines()]
        units[path.name.removesuffix(".service")] = {
            key: [value for name, _, value in rows if name == key] for key, _, _ in rows
        }
    first = units["goldnode-first-boot"]
    assert first["LoadCredential"] == ["firstboot.hostname"]
    assert units["goldnode-hostname"]["LoadCredential"] == ["system.hostname"]
    assert units["goldnode-lease-name"]["LoadCredential"] == ["system.hostname"]
    after = " ".join(first["After"]).split()
    # Keys of a credential are written only while there are none.
    assert {"systemd-tmpfiles-setup.service", "systemd-firstboot.service"} <= set(after)
    assert "systemd-firstboot.service" in units["goldnode-hostname"]["After"][0].split()
    generator = root / "etc/systemd/system/sysinit.target.wants/systemd-network-generator.service"
    assert generator.is_symlink()
    assert (
        "ConditionPathExistsGlob=/run/credentials/@system/network.*\n"
        in (
            root / "usr/lib/systemd/system/systemd-network-generator.service.d/goldnode.conf"
        ).read_text()
    )


def test_an_update_of_a_slot_is_no_first_boot(tmp_path: Path) -> None:
    """The writer knows the stamp that the program leaves, the unit that asks for it, and what the program would have taken away."""
    units = firstboot.FILES / "common/usr/lib/systemd/system"
    assert (
        f"ConditionPathExists=!{slotwrite.STAMP}\n"
        in (units / "goldnode-first-boot.service").read_text()
    )
    assert f"rm -f {slotwrite.PRESET}\n" in PROGRAM.read_text()
    root = tree(tmp_path / "image")
    firstboot.install(root, spec())
    assert (root / slotwrite.PRESET.lstrip("/")).exists()
    node = tmp_path / "node"
    (node / "efi/goldnode/seed").mkdir(parents=True)
    (node / "efi/goldnode/seed/authorized_keys").write_text("ssh-ed25519 AAAA gone\n")
    run(node, "run")
    (node / "root/.ssh/authorized_keys").write_text("ssh-ed25519 BBBB kept\n")
    for name in ("instances/i-1/sem/config_ssh", "seed/nocloud/user-data"):
        (node / "var/lib/cloud" / name).parent.mkdir(parents=True)
        (node / "var/lib/cloud" / name).touch()
    (node / "var/lib/cloud/instance").symlink_to("/var/lib/cloud/instances/i-1")
    slotwrite.carry(Host(str(node), live=True), str(root), print)
    assert (root / slotwrite.STAMP.lstrip("/")).read_text() == (
        node / slotwrite.STAMP.lstrip("/")
    ).read_text()
    assert (root / "root/.ssh/authorized_keys").read_text() == "ssh-ed25519 BBBB kept\n"
    assert not (root / slotwrite.PRESET.lstrip("/")).exists()
    assert (root / "var/lib/cloud/seed/nocloud/user-data").exists()
    assert (root / "var/lib/cloud/instances/i-1/sem/config_ssh").exists()
    assert str((root / "var/lib/cloud/instance").readlink()) == "/var/lib/cloud/instances/i-1"


def test_a_seed_that_no_one_has_read_is_read_in_the_other_slot(tmp_path: Path) -> None:
    """Neither the stamp nor the loss of the preset come before the first boot of the node."""
    root = tree(tmp_path / "image")
    firstboot.install(root, spec())
    (tmp_path / "node/etc").mkdir(parents=True)
    slotwrite.carry(Host(str(tmp_path / "node"), live=True), str(root), print)
    assert (root / slotwrite.PRESET.lstrip("/")).exists()
    assert not (root / slotwrite.STAMP.lstrip("/")).exists()


def test_version_of_systemd_sysupdate_is_that_of_the_partition_that_runs(tmp_path: Path) -> None:
    """It protects by IMAGE_VERSION what it must not write to, and a disk that it updates needs no slot b."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").symlink_to("../usr/lib/os-release")
    label = "PARTLABEL=a100_sxm4_40gb_20261130.0004"
    reported = run(tmp_path, "run", root=label, layout="ab")
    assert "version 20261130.0004 of a100_sxm4_40gb" in reported
    assert "root-b" not in reported
    assert (tmp_path / "etc/os-release").read_text() == (
        "ID=debian\nIMAGE_ID=a100_sxm4_40gb\nIMAGE_VERSION=20261130.0004\n"
    )
    assert (tmp_path / "usr/lib/os-release").read_text() == "ID=debian\nIMAGE_VERSION=old\n"


@pytest.mark.parametrize("root", ["PARTLABEL=root-a", "UUID=1", "PARTLABEL=h100_20261130.0004"])
def test_root_of_another_name_has_no_version_of_systemd_sysupdate(
    tmp_path: Path, root: str
) -> None:
    run(tmp_path, "run", root=root)
    assert not (tmp_path / "etc/os-release").exists()


def test_the_seed_gives_the_files_of_systemd_sysupdate(tmp_path: Path) -> None:
    followed = FollowedChannel("a100", "stable", "http://images.example.net", "1", "goldnode")
    names = [*definitions(followed, 262), "systemd/import-pubring.gpg"]
    seed = tmp_path / "efi/goldnode/seed/sysupdate"
    for name in (*names, "passwd", "systemd/system/ssh.service"):
        (seed / name).parent.mkdir(parents=True, exist_ok=True)
        (seed / name).write_text(f"{name}\n")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/systemctl").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n')
    (tmp_path / "programs/systemctl").chmod(0o755)
    run(tmp_path, "run")
    written = {
        str(path.relative_to(tmp_path / "etc"))
        for path in (tmp_path / "etc").rglob("*")
        if path.is_file()
    }
    assert written == {*names, "machine-id"}
    assert (tmp_path / "etc" / names[0]).read_text() == f"{names[0]}\n"
    assert (tmp_path / "etc/systemd/import-pubring.gpg").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "asked").read_text() == "daemon-reload\n"


def test_a_seed_that_is_no_name_is_reported_and_not_used(tmp_path: Path) -> None:
    seed = tmp_path / "efi/goldnode/seed"
    seed.mkdir(parents=True)
    (seed / "hostname").write_text("bad_name$(reboot)\n")
    assert "is none, and is not used" in run(tmp_path, "run")
    assert not (tmp_path / "etc/hostname").exists()


def test_without_a_seed_nothing_is_written_but_that_it_ran(tmp_path: Path) -> None:
    run(tmp_path, "run")
    assert not (tmp_path / "root/.ssh").exists()
    assert not (tmp_path / "etc/hostname").exists()
    assert (tmp_path / "var/lib/goldnode/disk/first-boot").exists()


def test_a_boot_without_the_esp_is_not_the_first_one_yet(tmp_path: Path) -> None:
    assert "the next boot looks again" in run(tmp_path, "run", mounted=False)
    assert not (tmp_path / "var/lib/goldnode/disk/first-boot").exists()
    seed = tmp_path / "efi/goldnode/seed"
    (seed / "hostname").write_text("node-4\n")
    run(tmp_path, "run")
    assert (tmp_path / "etc/hostname").read_text() == "node-4\n"
    assert (tmp_path / "var/lib/goldnode/disk/first-boot").exists()
