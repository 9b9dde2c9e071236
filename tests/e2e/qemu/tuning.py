"""Host tuning on a separate kernel, in a QEMU guest: every value is really set, read back, and still set
after a boot.

Emulated hardware has no cpufreq and no IOMMU, which must be reported as such and never pass. The scripts run
in the guest once `/root/goldnode-node` exists; the class document is `/run/payload/class.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.qemu import disk

from goldnode.node.state.domains import units

HOST: dict[str, Any] = {
    "governor": "performance",
    "swap": False,
    "hugepages": {"2M": 24},
    "transparent_hugepages": "never",
    "numa_balancing": True,
    "iommu": "pt",
    "cmdline": ["goldnode.test=1"],
    "memlock": 65536,
    "network": {"lo": {"mtu": 9000}},
}
NODE = "python3 /root/goldnode-node"
TUNE = f"""dd if=/dev/zero of=/swapfile bs=1M count=16 status=none
chmod 600 /swapfile
mkswap -q /swapfile
swapon /swapfile
echo "/swapfile none swap sw 0 0" >>/etc/fstab
{NODE} plan --format json --class /run/payload/class.json >/root/before.json
{NODE} apply --format json --class /run/payload/class.json --part host_tuning >/root/applied.json
cat /proc/swaps >/root/swaps
{NODE} apply --format json --class /run/payload/class.json --part host_tuning >/root/again.json
"""
# || true: the check tells its verdict by its exit status, which must not end this script (set -e). The test asserts the exact set of items
# in what it wrote: a check that crashed has none of them.
AFTER_A_BOOT = f"""{NODE} plan --format json --class /run/payload/class.json >/root/after.json
{NODE} check --format json --no-write --class /run/payload/class.json >/root/verdict.json || true
ulimit -l >/root/ulimit  # this script is a unit that started in this boot
"""
# The watch of the kernel's log as systemd runs it, with all that its unit takes from it. What a program writes into the log is no reason to
# look at the node; a block that cannot be read is one, told by the kernel itself.
WATCH = """
mkdir -p /usr/lib/goldnode /etc/goldnode
cp /run/payload/class.json /etc/goldnode/class.json
cp /root/goldnode-node /usr/lib/goldnode/goldnode-node
chmod 755 /usr/lib/goldnode/goldnode-node
cp /run/payload/units/* /etc/systemd/system/
systemctl daemon-reload
systemctl start goldnode-events.service
watcher=$(systemctl show -p MainPID --value goldnode-events.service)
for second in $(seq 120); do
    ls -l /proc/$watcher/fd 2>/dev/null | grep -q /dev/kmsg && break
    sleep 1
done
sleep 2
grep -E '^(CapEff|NoNewPrivs):' /proc/$watcher/status >/root/watcher
echo "<3>NVRM: Xid (PCI:0000:01:00): 79, written by a program" >/dev/kmsg
sleep 5
systemctl show -p ExecMainStartTimestampMonotonic --value goldnode-watch.service >/root/watched
modprobe null_blk nr_devices=0
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
mkdir /sys/kernel/config/nullb/bad
echo +0-7 >/sys/kernel/config/nullb/bad/badblocks
echo 1 >/sys/kernel/config/nullb/bad/power  # the kernel looks for partitions on it, and reads
for second in $(seq 240); do
    [ -e /run/goldnode/verdict.json ] && break
    sleep 1
done
cp /run/goldnode/verdict.json /root/passive.json
dmesg | grep -m1 "I/O error, dev bad" >/root/line
systemctl show -p ActiveState --value goldnode-events.service >>/root/watched
"""


# The units of the watch, as files of the payload.
UNITS = {
    f"units/{name}": text
    for name, text in {units.EVENTS: units.EVENTS_TEXT, units.WATCH: units.WATCH_TEXT}.items()
}


def actions(plan: dict[str, Any]) -> list[str]:
    return [
        f"{action['kind']} {action['target']}"
        for action in plan["actions"]
        if action["part"] == "host_tuning"
    ]


def read(image: Path, name: str) -> dict[str, Any]:
    """A JSON document that the guest has left."""
    found: dict[str, Any] = json.loads(disk.read(image, f"/root/{name}.json"))
    return found


def check_first(image: Path) -> None:
    """Everything was set in the boot that applied it, and a second apply found nothing."""
    live = [
        "tuning.set transparent_hugepages",
        "tuning.set numa_balancing",
        "tuning.set hugepages.2M",
        "tuning.set network.lo.mtu",
    ]
    before = actions(read(image, "before"))
    assert {
        *live,
        "swap.off /swapfile",
        "systemd.defaults memlock",
        "cmdline.grub kernel command line",
    } <= set(before), before
    applied = read(image, "applied")
    assert {f"{row['kind']} {row['target']}" for row in applied["done"]} == set(before)
    assert actions(applied) == []
    assert "kernel command line changed" in applied["reboot"]["reasons"]
    assert read(image, "again")["done"] == []
    assert disk.read(image, "/root/swaps").count(b"\n") == 1


def check_after_boot(image: Path) -> None:
    """Everything is there after a boot."""
    # Everything came back by itself but what has no lasting form, which the boot unit sets.
    assert actions(read(image, "after")) == ["tuning.set transparent_hugepages"]
    assert "kernel command line changed" not in read(image, "after")["reboot"]["reasons"]
    found = {
        row["id"].removeprefix("policy.host."): row
        for row in read(image, "verdict")["findings"]
        if row["id"].startswith("policy.host.")
    }
    outcomes = {name: row["outcome"] for name, row in found.items()}
    assert outcomes.pop("governor") == "not_exposed", found["governor"]
    assert outcomes.pop("iommu") == "not_exposed", found["iommu"]
    assert outcomes.pop("transparent_hugepages") == "mismatch", found["transparent_hugepages"]
    assert set(outcomes) == {
        "swap",
        "hugepages.2M",
        "numa_balancing",
        "cmdline",
        "memlock",
        "network.lo.mtu",
    }
    assert set(outcomes.values()) == {"match"}, found
    assert disk.read(image, "/root/ulimit").split() == [b"65536"]
    watch_worked(image)


def watch_worked(image: Path) -> None:
    """The watch of the kernel's log ran with few rights, did not start the check for a program's line, and did for the kernel's."""
    rights = dict(
        line.split(":\t") for line in disk.read(image, "/root/watcher").decode().splitlines()
    )
    # CAP_SYS_ADMIN (21) and CAP_SYSLOG (34), and nothing to be had by another program.
    assert (int(rights["CapEff"], 16), rights["NoNewPrivs"]) == (1 << 21 | 1 << 34, "1")
    assert disk.read(image, "/root/watched").split() == [b"0", b"active"]
    assert b"I/O error, dev bad, sector 0" in disk.read(image, "/root/line")
    verdict = json.loads(disk.read(image, "/root/passive.json"))
    assert verdict["passive"]
    found = [row for row in verdict["findings"] if row["id"] == "storage.io_error"]
    assert [(row["outcome"], row["subject"]) for row in found] == [("mismatch", "bad")]
