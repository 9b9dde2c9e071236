"""What a good guest tells, of a class without GPUs and of one with eight simulated ones that are not there. The tests spoil copies of it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from goldnode.disks.guest import GuestExpectations
from goldnode.disks.model import Partition
from goldnode.node.ground import gate_files
from goldnode.node.state.domains.program import document_digest

MIB = 1024 * 1024
KERNEL = "6.1.0-56-amd64"
EPOCH = 1795305600
MODULE = "nvidia-current"
VERSION = "535.309.01"
ANY = "0.0.0.0"  # noqa: S104 - read, not bound


def document(*, gpu: bool, mode: str = "report", simulated: bool = True) -> dict[str, Any]:
    """A class document as it lies on a node, with its digest."""
    found: dict[str, Any] = {
        "schema": "goldnode.class/1",
        "class": "boards" if gpu else "plain",
        "backend": "cuda" if gpu else "cpu",
        "simulated": gpu and simulated,
        "gate": mode,
        "os": {"id": "debian", "version": "12", "codename": "bookworm", "architecture": "amd64"},
        "gpu": None,
        "driver": None,
        "blacklist": [],
        "packages": [{"name": "linux-image", "version": "1"}],
        "policy": {},
        "baseline": {},
    }
    if gpu:
        found |= {
            "gpu": {
                "model": "A100-SXM4-40GB",
                "count": 8,
                "vendor": "nvidia",
                "pci_ids": ["10de:20b0"],
            },
            "driver": {"module": MODULE, "version": VERSION, "in_tree": False},
            "blacklist": ["nouveau"],
            "policy": {
                "persistence_mode": True,
                "power_limit_watts": 400,
                "clocks": {"graphics_mhz": 1410},
                "host": {"iommu": "pt"},
            },
        }
    return {**found, "digest": document_digest(found)}


def finding(
    name: str,
    outcome: str = "match",
    got: str = "as declared",
    severity: str = "drain",
    **more: Any,
) -> dict[str, Any]:
    return {
        "id": name,
        "outcome": outcome,
        "severity": severity,
        "expected": "as declared",
        "got": got,
        "subject": None,
        **more,
    }


def socket(protocol: str, address: str, port: str, programs: str) -> dict[str, str]:
    """A socket as `ss -ltunp` shows it."""
    return {"protocol": protocol, "address": address, "port": port, "programs": programs}


def unit(name: str, active: str = "active", **more: str) -> dict[str, str]:
    found = {
        "Id": name,
        "LoadState": "loaded",
        "ActiveState": active,
        "Result": "success",
        "UnitFileState": "enabled",
        "After": "",
        "DropInPaths": "",
    }
    return {**found, **more}


def wanted(*, gpu: bool, layout: str = "ab", extra: int = 4600) -> GuestExpectations:
    """The image that the guest below booted; `extra` MiB are on the disk beyond the image."""
    partitions = (
        Partition(
            1,
            name="esp",
            type="t",
            uuid="e0",
            start=1 * MIB,
            size=512 * MIB,
            filesystem="vfat",
            filesystem_uuid="A-B",
        ),
        Partition(
            2,
            name="root-a" if layout == "ab" else "root",
            type="t",
            uuid="aa-01",
            start=513 * MIB,
            size=4096 * MIB,
            filesystem="ext4",
            filesystem_uuid="u",
        ),
    )
    return GuestExpectations(
        kernel=KERNEL,
        class_digest=document(gpu=gpu)["digest"],
        driver=(MODULE, VERSION) if gpu else None,
        modules=(MODULE,) if gpu else (),
        packages={"linux-image": "1", "python3": "3.11"},
        pending=(
            ("kernel.running", "another machine's"),
            *((("policy.set power_limit", "device: to be set"),) if gpu else ()),
        ),
        partitions=partitions,
        layout=layout,
        loader="systemd-boot",
        build_id="e31a86a59afe",
        epoch=EPOCH,
        disk_size=(513 + 4096 + extra) * MIB,
    )


def facts(*, gpu: bool, mode: str = "report") -> dict[str, Any]:
    """Of a guest in which all is well."""
    held = document(gpu=gpu, mode=mode)
    findings = [
        finding("node.os"),
        finding("kernel.running"),
        finding("stack.lock"),
        finding("time.sync", "mismatch", "not synchronised", "degraded"),
    ]
    if gpu:
        why = "the class declares simulated GPUs, and none are installed here"
        names = (
            "gpu.count",
            "driver.loaded",
            "policy.persistence_mode",
            "policy.clocks.graphics_mhz",
            "policy.power_limit_watts",
        )
        findings += [finding(name, "not_verified_here", why) for name in names]
        findings += [finding("policy.host.iommu", "not_exposed", "no IOMMU", "degraded")]
    verdict = {
        "class_digest": held["digest"], "boot_identity": "boot-1/42", "status": "could_not_check", "exit_code": 3, "simulated": gpu,
        "findings": findings,
    }  # fmt: skip
    runtime = {
        "After": "basic.target goldnode-sanity.service",
        "ExecMainStartTimestampMonotonic": "70",
    }
    if mode == "block":
        runtime |= {
            "DropInPaths": f"/x/{gate_files.DROP_IN}",
            "ExecCondition": f"{{ path=/bin/sh ; argv[]=/bin/sh -c [ -r {gate_files.PASS} ] ; }}",
        }
    units = [
        unit("multi-user.target"),
        unit("goldnode-sanity.service", ExecMainExitTimestampMonotonic="60"),
        unit("docker.service", **runtime),
        unit("containerd.service", **runtime),
        unit("apt-daily.service", "inactive", InactiveExitTimestampMonotonic="0"),
    ]
    boot = "/boot/{}-" + KERNEL
    found: dict[str, Any] = {
        "boot_id": "boot-1",
        "kernel": KERNEL,
        "state": "running",
        "failed": [],
        "failures": {},
        "units": {row["Id"]: row for row in units},
        "loaded": ["ext4", "virtio_blk"],
        "root_password": ["L"],
        "entry": "goldnode-e31a86a59afe-a.conf",
        "sum": {boot.format("vmlinuz"): "v", "/efi/goldnode/a/vmlinuz": "v", boot.format("initrd.img"): "i", "/efi/goldnode/a/initrd.img": "i"},
        "identity": {
            "machine_id": "0123456789abcdef0123456789abcdef", "hostname": "plain-012345", "host_keys": {"ssh_host_ed25519_key.pub": "SHA256:one"},
            "client_ids": ["ff01"], "random_seed": None,
        },
        "disks": [{"name": "vda", "children": [
            {"name": "vda1", "partlabel": "esp", "size": 512 * MIB, "mountpoint": "/efi", "partuuid": "e0-own", "pkname": "vda"},
            {"name": "vda2", "partlabel": "root-a", "size": 4347 * MIB, "mountpoint": "/", "partuuid": "aa-own", "pkname": "vda", "uuid": "u-own"},
            {"name": "vda3", "partlabel": "root-b", "size": 4347 * MIB, "mountpoint": None, "partuuid": "bb-own", "pkname": "vda"},
        ]}],
        "root": {"size": 4200 * MIB, "free": 3000 * MIB},
        "listeners": [
            socket("tcp", ANY, "22", "sshd"),
            socket("tcp", "::", "22", "sshd"),
            socket("udp", "127.0.0.53%lo", "53", "systemd-resolve"),
            socket("tcp", "127.0.0.54", "53", "systemd-resolve"),
            socket("tcp", "127.0.0.1", "35411", "containerd"),
            socket("udp", "10.0.2.15%enp0s2", "68", "systemd-network"),
            socket("udp", "fe80::5054:ff:fe67:6e01%enp0s2", "546", "systemd-network"),
            socket("udp", ANY, "41123", "systemd-timesyn"),
        ],
        "packages": {"linux-image": ["1", "amd64", "hi"], "python3": ["3.11", "amd64", "ii"]},
        "holds": ["linux-image"],
        "package_managers": {"/var/lib/dpkg/status": EPOCH},
        "initramfs": {"error": None, "names": ["usr/lib/modules/6/ext4.ko", "init"]},
        "class": held,
        "verdict": verdict,
        "gate": {"mode": mode, "open": True, "reasons": []},
        "pass": True,
        "status": {},
        "plan": {"plan": {"actions": [], "refusals": []}},
        "modules": {},
        "refusals": {},
        "sanity_log": "",
    }  # fmt: skip
    if gpu:
        fields = {"vermagic": f"{KERNEL} SMP preempt mod_unload", "version": VERSION}
        reported = "modprobe: ERROR: could not insert 'nvidia_current': No such device"
        found["modules"] = {
            MODULE: {
                "modinfo": 0,
                "fields": fields,
                "rc": 1,
                "said": reported,
                "kernel": "NVRM: No NVIDIA GPU found.",
                "loaded": False,
            }
        }
        found["refusals"] = {
            "nouveau": {
                "rc": 1,
                "said": "modprobe: ERROR: could not insert 'nouveau': Operation not permitted",
                "loaded": False,
            }
        }
        found["plan"] = {
            "plan": {
                "actions": [
                    {
                        "kind": "policy.set",
                        "target": "power_limit",
                        "reason": "to be set",
                        "phase": "device",
                    }
                ],
                "refusals": [],
            }
        }
    return copy.deepcopy(found)


def replaced(found: GuestExpectations, **more: Any) -> GuestExpectations:
    """`found` with other fields."""
    return dataclasses.replace(found, **more)
