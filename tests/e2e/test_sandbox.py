"""The sandboxes of units in a guest: a container ignores some of them (device lists, sysctls of the machine's own)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.qemu import disk
from tests.e2e.test_boot_entry import (
    base as base,
)
from tests.e2e.test_boot_entry import class_document, installed_version

from goldnode.core import program_file as nodefile
from goldnode.node.state.domains import policy, program, units
from goldnode.node.state.domains.program import document_digest

# Two minutes alone, on a disk that another test makes.
pytestmark = [pytest.mark.qemu, pytest.mark.long]

IMAGES = Path(__file__).parents[2] / "images/disks/files/common/usr/lib"
# name -> what code in the sandbox of the check tries, and whether it may
TRIES = {
    "write verdict": ("echo x >/run/goldnode/own", True),
    "write state": ("echo x >/var/lib/goldnode/own", True),
    "read shadow": ("head -c 1 /etc/shadow", True),
    "read disk": ("head -c 1 /dev/vda", True),
    "read kernel log": ("dd if=/dev/kmsg iflag=nonblock bs=8192 count=1", True),
    "read mounts of PID 1": ("grep -q ' / .*rw' /proc/1/mounts", True),
    "read files of others": ("ls /proc/1/fd/0", True),
    "list modules": ("ls /usr/lib/modules/*/modules.dep", True),
    "write etc": ("echo x >/etc/own", False),
    "write usr": ("echo x >/usr/lib/goldnode/goldnode-node.new", False),
    "write boot": ("echo x >/boot/own", False),
    "write disk": ("dd if=/dev/zero of=/dev/vda bs=512 count=1 seek=40 conv=notrunc", False),
    "write sysctl": ("echo 1 >/proc/sys/kernel/sysrq", False),
    "write sysfs": ("cat /sys/kernel/mm/transparent_hugepage/enabled && "
                    "echo never >/sys/kernel/mm/transparent_hugepage/enabled", False),
    "mount": ("mount -t tmpfs none /mnt", False),
    "remount": ("mount -o remount,bind,rw /", False),
    "load module": ("modprobe dummy", False),
    "new namespace": ("unshare -n true", False),
    "reboot": ("systemctl --version >/dev/null && python3 -c 'import ctypes as c, sys; "
               "sys.exit(c.CDLL(None, use_errno=True).reboot(0) and 1)'", False),
    "set clock": ("date -s 2001-01-01", False),
    "network socket": ("python3 -c 'import socket as s; s.socket(s.AF_INET)'", False),
    "give file away": ("touch /run/goldnode/own && chown 1 /run/goldnode/own", False),
}  # fmt: skip
PROBE = "".join(
    f"if ( {words} ) >/dev/null 2>&1; then echo 'PROBE {name}: yes'; else echo 'PROBE {name}: no'; fi\n"
    for name, (words, _) in TRIES.items()
)
RUN = """set -u
p=/run/payload
install -D -m 755 $p/goldnode-node /usr/lib/goldnode/goldnode-node
install -D -m 644 $p/class.json /etc/goldnode/class.json
install -D -m 755 $p/first-boot /usr/lib/goldnode/disk/first-boot
echo boot_test >/usr/lib/goldnode/disk/class
cp $p/units/* /etc/systemd/system/
systemctl daemon-reload
systemd-analyze verify --recursive-errors=no /etc/systemd/system/goldnode-*.service >/root/verify 2>&1
echo "PROBE verify: $(grep -Ei 'unknown|invalid|pars' /root/verify | tr '\\n' ' ')"
dd if=/dev/zero of=/swapfile bs=1M count=8 status=none; chmod 600 /swapfile; mkswap -q /swapfile; swapon /swapfile
/usr/lib/goldnode/goldnode-node check >/dev/null; cp /run/goldnode/capture.json /root/bare.json
rm -rf /run/goldnode
systemctl start probe.service
systemctl start goldnode-watch.service
echo "PROBE watch: $(systemctl show -p Result --value goldnode-watch.service)"
cp /run/goldnode/capture.json /root/sandboxed.json
cp /run/goldnode/verdict.json /root/verdict.json
ls /run/goldnode >/root/made
systemctl start goldnode-policy.service
echo "PROBE swaps: $(wc -l </proc/swaps)"
rm -f /etc/hostname
systemctl start goldnode-hostname.service
echo "PROBE hostname: $(cat /proc/sys/kernel/hostname)"
mkdir -p /run/systemd/netif/leases; echo HOSTNAME=leased >/run/systemd/netif/leases/2
systemctl start goldnode-lease-name.service
echo "PROBE lease: $(cat /proc/sys/kernel/hostname)"
mkdir -p /efi && mount -t tmpfs efi /efi && mkdir -p /efi/goldnode/seed
echo seeded >/efi/goldnode/seed/hostname; echo "ssh-ed25519 AAAA x" >/efi/goldnode/seed/authorized_keys
echo ab >/usr/lib/goldnode/disk/layout
mkdir /etc/systemd/system/goldnode-first-boot.service.d
printf '[Service]\\nExecStartPost=/bin/sh -c "partx -sgo NR /dev/vda >/var/lib/parts"\\n' \\
    >/etc/systemd/system/goldnode-first-boot.service.d/own.conf
systemctl daemon-reload; systemctl start goldnode-first-boot.service
echo "PROBE seed: $(cat /etc/hostname /proc/sys/kernel/hostname | tr '\\n' ' ')$(cut -d ' ' -f 3 /root/.ssh/authorized_keys | tail -n 1)"
echo "PROBE parts: $(head -n 1 /var/lib/parts | tr -d ' ')"
systemctl --no-pager --failed
journalctl --no-pager -o cat -u goldnode-first-boot -u goldnode-policy -u goldnode-hostname -u goldnode-lease-name -u goldnode-watch
"""


@pytest.fixture(scope="module")
def guest(base: disk.Base, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The disk after one boot, and its console."""
    place = tmp_path_factory.mktemp("guest")
    newest = base.releases[-1]
    image = disk.copy(base, place / "disk.raw")
    document = {
        **class_document(newest, installed_version(image, f"linux-image-{newest}")),
        "policy": {"host": {"swap": False}},
    }
    document["digest"] = document_digest(document)
    probe = re.sub(r"(?m)^ExecStart(Post)?=.*\n", "", units.WATCH_TEXT)
    probe = probe.replace(
        "Type=oneshot\n",
        "Type=oneshot\nExecStart=-/bin/sh /run/payload/probe\nStandardOutput=tty\n",
    )
    names = (
        "goldnode-hostname.service",
        "goldnode-lease-name.service",
        "goldnode-ssh-keys.service",
        "goldnode-first-boot.service",
    )
    payload: dict[str, str | bytes] = {
        "run": RUN,
        "probe": PROBE,
        "goldnode-node": nodefile.build(),
        "class.json": json.dumps(document),
        "first-boot": (IMAGES / "goldnode/disk/first-boot").read_text(),
        "units/probe.service": probe,
        f"units/{units.WATCH}": units.WATCH_TEXT,
        f"units/{units.EVENTS}": units.EVENTS_TEXT,
        "units/goldnode-sanity.service": program.UNIT_TEXT,
        "units/goldnode-policy.service": policy.unit_text(""),
        **{f"units/{name}": (IMAGES / "systemd/system" / name).read_text() for name in names},
    }
    return image, disk.boot(image, payload, place)


def answers(console: str) -> dict[str, str]:
    """Return the answers that the guest has printed, by question."""
    return dict(re.findall(r"PROBE ([^:\n]+): ?(.*)", console))


@pytest.mark.parametrize("name", TRIES)
def test_code_in_the_check_may_read_and_not_act(guest: tuple[Path, str], name: str) -> None:
    assert answers(guest[1]).get(name) == ("yes" if TRIES[name][1] else "no"), guest[1][-4000:]


def test_a_check_in_the_sandbox_reads_what_one_without_it_reads(guest: tuple[Path, str]) -> None:
    image, console = guest
    assert answers(console)["watch"] == "success"
    bare, boxed = (_read(image, name) for name in ("bare", "sandboxed"))
    volatile = re.compile(
        r"^(time|uptime|time_sync\.(clock|offset.*)|limits\..*|memory\.|pressure\.|storage\.mounts\..*free"
        r"|load|cpu\.mhz|blocked_unseen)"
    )
    before, after = dict(_flat(bare)), dict(_flat(boxed))
    differs = {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key) and not volatile.match(key)
    }
    assert differs == {}
    # The commands below have the rights that they need.
    made = disk.read(image, "/root/made").decode().split()
    assert {"verdict.json", "gate.json", "metrics.prom", "pass"} <= set(made)


def test_units_with_other_sandboxes_do_their_work(guest: tuple[Path, str]) -> None:
    found = answers(guest[1])
    assert found["verify"] == ""
    # The unit reports a difference: the files that keep swap off over a boot are those of a run of site.yml.
    assert found["swaps"] == "1", guest[1][-4000:]
    assert found["hostname"].startswith("boot-test-")
    assert found["lease"] == "leased"
    assert found["seed"] == "seeded seeded x", guest[1][-4000:]
    assert found["parts"].isdigit()


def _read(image: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(disk.read(image, f"/root/{name}.json"))
    return found


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        rows = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in rows:
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
