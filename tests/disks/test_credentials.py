"""Systemd credentials at a first boot, by release: the table of docs/reference/disk-format.md, with the real PID 1 and its services.

A boot in namespaces takes seconds: no kernel, no firmware. `tests/disks/test_disk_seeds.py` boots a machine with one in SMBIOS.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.debian_archive import debian_archive
from tests.disks import credentialboot
from tests.disks.credentialboot import FirstBoot

pytestmark = [
    pytest.mark.disks,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

SYSTEMD = {"bookworm": 252, "trixie": 257, "forky": 262}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB7cPqQbM3SBzVTGU2Ck2bIyM9l0NeGmiyfGDPDbV7rj ops@example"
MACHINE = "11112222333344445555666677778888"
PASSWORD = "$6$seed$notahash"  # noqa: S105 - nothing that anybody could log in with

Boot = Callable[..., FirstBoot]


@pytest.fixture(scope="module", params=SYSTEMD)
def release(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A release with goldnode's first boot. `GOLDNODE_CREDENTIAL_ROOTS` names a directory that has it from an earlier run."""
    suite = str(request.param)
    earlier = os.environ.get("GOLDNODE_CREDENTIAL_ROOTS")
    root = Path(earlier or tmp_path_factory.mktemp("roots")) / suite
    if not root.exists():
        credentialboot.prepare(root, suite, debian_archive())
    return suite, root


@pytest.fixture
def systemd(release: tuple[str, Path]) -> int:
    return SYSTEMD[release[0]]


@pytest.fixture
def boot(release: tuple[str, Path], tmp_path: Path) -> Boot:
    """A function that boots the release once: credentials, further files, units."""
    number = iter(range(10))

    def once(credentials: Mapping[str, str], **options: object) -> FirstBoot:
        place = tmp_path / f"boot-{next(number)}"
        return credentialboot.first_boot(release[1], place, credentials, **options)  # type: ignore[arg-type]

    return once


def test_names_and_keys_of_credentials_are_the_nodes_in_each_release(
    boot: Boot, systemd: int
) -> None:
    node = boot({"system.hostname": "node-7", "ssh.authorized_keys.root": KEY, "system.machine_id": MACHINE})  # fmt: skip
    assert node.rows("kernel-name") == ["node-7"]
    assert node.rows("root-.ssh-authorized_keys") == [KEY]
    assert (node.rows("etc-machine-id") == [MACHINE]) is (systemd >= 257)
    assert node.rows("failed") == []


def test_name_of_the_first_boot_stays_in_each_release(boot: Boot) -> None:
    node = boot({"firstboot.hostname": "node-8", "system.hostname": "node-7"})
    assert node.rows("etc-hostname") == node.rows("kernel-name") == ["node-8"]
    assert node.rows("failed") == []


def test_keys_of_the_esp_and_of_a_credential_are_both_there(boot: Boot) -> None:
    """systemd writes the credential's only while there is no file, so its service must have ended before, also a slow one."""
    slow = "etc/systemd/system/systemd-tmpfiles-setup.service.d/slow.conf"
    node = boot(
        {"ssh.authorized_keys.root": f"{KEY}\n"},
        files={
            "efi/goldnode/seed/authorized_keys": f"{KEY}-of-the-esp\n",
            slow: "[Service]\nExecStartPre=/bin/sleep 3\n",
        },
    )
    assert node.rows("root-.ssh-authorized_keys") == [KEY, f"{KEY}-of-the-esp"]


@pytest.mark.parametrize("form", ["hashed", "plaintext"])
def test_root_of_a_debian_image_gets_no_password_from_a_credential(boot: Boot, form: str) -> None:
    node = boot({f"passwd.{form}-password.root": PASSWORD, "passwd.shell.root": "/bin/sh"})
    (shadow,) = (row for row in node.rows("etc-shadow") if row.startswith("root:"))
    assert shadow.split(":")[1] == "*"
    (user,) = (row for row in node.rows("etc-passwd") if row.startswith("root:"))
    assert user.endswith(":/bin/bash")
    assert node.rows("failed") == []


def test_user_of_a_credential_is_there_in_each_release(boot: Boot) -> None:
    node = boot(
        {
            "sysusers.extra": 'u ops - "Operations" /home/ops /bin/bash\n',
            "tmpfiles.extra": "f /etc/hosts.d/site 0644 root root - 192.0.2.1 mirror\n",
        }
    )
    assert [row for row in node.rows("etc-passwd") if row.startswith("ops:")]
    assert node.rows("failed") == []


def test_network_of_a_credential_is_configured_since_debian_13(boot: Boot, systemd: int) -> None:
    names = {"network": "Match", "netdev": "NetDev", "link": "Match"}
    credentials = {f"network.{kind}.50-site": f"[{part}]\n" for kind, part in names.items()}
    node = boot({**credentials, "network.hosts": "192.0.2.1 a\n"})
    written = sorted(f"50-site.{kind}" for kind in names) if systemd >= 257 else []
    assert sorted(node.rows("networks")) == written
    assert node.rows("failed") == []
    assert "192.0.2.1 a" not in node.rows("etc-hosts"), "the image has /etc/hosts"


def test_network_of_a_kernel_command_line_is_left_to_the_initramfs(boot: Boot) -> None:
    """The generator is enabled for credentials alone: without one it does not run."""
    drop_in = "etc/systemd/system/systemd-network-generator.service.d/probe.conf"
    node = boot({}, files={drop_in: "[Service]\nExecStartPre=/bin/touch /result/ran\n"})
    assert "ran" not in node.files
    assert node.rows("networks") == []


def test_first_boot_with_credentials_has_no_more_faults_and_listeners(boot: Boot) -> None:
    """A container has faults of its own (no devices, no disk): they are the same without credentials."""
    without = boot({}, units="multi-user.target")
    given = boot(
        {
            "ssh.authorized_keys.root": KEY,
            "system.hostname": "node-7",
            "firstboot.hostname": "node-8",
            "firstboot.locale": "C.UTF-8",
            "passwd.hashed-password.root": PASSWORD,
            "network.network.50-site": "[Match]\nName=eth0\n",
            "login.motd": "of the site\n",
            "login.issue": "of the site\n",
        },
        units="multi-user.target",
    )
    assert without.rows("kernel-name")[0].startswith("cpu-only-")
    assert given.rows("kernel-name") == ["node-8"]
    assert given.rows("etc-motd.d-50-provision.conf") == ["of the site"]
    assert given.rows("etc-issue.d-50-provision.conf") == ["of the site"]
    assert given.rows("etc-default-locale") == ["LANG=C.UTF-8"]
    assert "tcp 0.0.0.0:22" in given.rows("listeners")
    for name in ("failed", "listeners"):
        assert given.rows(name) == without.rows(name), name
