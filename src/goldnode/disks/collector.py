"""Collector of facts about a booted guest, printed as one JSON object.

The verification sends this file to the guest over ssh and runs it there as root with the guest's Python. It
asks systemd, dpkg, modprobe and /proc directly, so that goldnode does not verify itself. Only the verdict,
the gate and the plan come from goldnode's own program.

It needs Python 3.9 and the standard library, and changes nothing except that it loads modules.
docs/explanation/disk-verification.md describes how the facts are judged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

UNITS = (
    "multi-user.target", "boot-complete.target", "goldnode-sanity.service", "goldnode-policy.service",
    "goldnode-watch.timer", "goldnode-watch.service", "goldnode-events.service", "goldnode-good.service",
    "goldnode-first-boot.service", "ssh.service", "docker.service", "docker.socket", "containerd.service",
    "slurmd.service", "kubelet.service", "apt-daily.service", "apt-daily-upgrade.service",
    "unattended-upgrades.service", "dpkg-db-backup.service",
)  # fmt: skip
SHOWN = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "After", "Before",
    "ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic", "ActiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic", "ConditionResult", "StatusErrno", "NeedDaemonReload", "DropInPaths",
    "ExecCondition",
)  # fmt: skip
PROGRAM = "/usr/lib/goldnode/goldnode-node"
# Units that make the identity of a node at its first boot.
MAKERS = (
    "goldnode-identity.service", "goldnode-hostname.service", "goldnode-lease-name.service",
    "goldnode-ssh-keys.service", "goldnode-first-boot.service", "systemd-networkd-wait-online.service",
)  # fmt: skip


def run(*words: str, limit: int = 240) -> tuple[int, str, str]:
    """Run a command and return (exit status, stdout, stderr). 127: command not found, 124: timeout."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
        )
    except FileNotFoundError:
        return 127, "", f"{words[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, "", f"{words[0]}: not done after {limit} s"
    return done.returncode, done.stdout, done.stderr


def text(path: str | Path) -> str | None:
    """Return the content of a file, or None if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def document(path: str) -> Any:
    """Return the content of a JSON file, or None if it is missing or invalid."""
    try:
        return json.loads(text(path) or "")
    except ValueError:
        return None


def digest(path: str) -> str | None:
    """Return the SHA-256 of a file in hex, or None if it cannot be read."""
    total = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                total.update(block)
    except OSError:
        return None
    return total.hexdigest()


def units() -> dict[str, dict[str, str]]:
    """Return the properties in `SHOWN` of the units in `UNITS`: unit -> property -> value."""
    _, out, _ = run("systemctl", "show", "--no-pager", "-p", ",".join(SHOWN), *UNITS)
    rows = {}
    for block in out.split("\n\n"):
        row = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if row.get("Id"):
            rows[row["Id"]] = row
    return rows


def module(name: str, release: str) -> dict[str, Any]:
    """Return modinfo's fields of a module, the result of loading it, and the kernel's messages about that."""
    rc, out, err = run("modinfo", "-k", release, name)
    about: dict[str, Any] = {"name": name, "modinfo": rc, "error": err.strip(), "fields": {}}
    for line in out.splitlines():
        key, _, value = line.partition(":")
        if key in ("filename", "version", "vermagic", "signer", "license", "srcversion"):
            about["fields"].setdefault(key, value.strip())
    about.update(load(name))
    return about


def load(name: str) -> dict[str, Any]:
    """Load a module with `modprobe` and return the result. The module stays loaded."""
    _, before, _ = run("dmesg")
    rc, out, err = run("modprobe", "-v", name)
    _, after, _ = run("dmesg")
    reported = after[len(before) :] if after.startswith(before) else after
    loaded = any(
        line.split()[0] == name.replace("-", "_")
        for line in (text("/proc/modules") or "").splitlines()
    )
    return {
        "rc": rc,
        "said": (out + err).strip(),
        "kernel": reported.strip()[-4000:],
        "loaded": loaded,
    }


def initramfs(path: str, sums: dict[str, Any], listed: Any) -> dict[str, Any] | None:
    """Return the names of the files in an initramfs, or the error if they cannot be listed.

    None if its digest in `sums` is `listed`, that of an earlier list: to list one takes an emulated guest ten seconds.
    """
    if listed and sums.get(path) == listed:
        return None
    rc, out, err = run("lsinitramfs", path)
    return {
        "error": None if rc == 0 else (err.strip() or f"exit status {rc}"),
        "names": out.splitlines(),
    }


def disks() -> Any:
    """Return disks and their partitions: name, size in bytes, PARTLABEL, file system and its UUID, mount point."""
    _, out, _ = run(
        "lsblk", "-J", "-b", "-o", "NAME,TYPE,SIZE,PARTLABEL,FSTYPE,MOUNTPOINT,PARTUUID,PKNAME,UUID"
    )
    with contextlib.suppress(ValueError, KeyError):
        return json.loads(out)["blockdevices"]
    return []


def listeners() -> list[dict[str, str]] | None:
    """Return the sockets that wait for others: protocol, address, port and programs. None if they cannot be listed."""
    rc, out, _ = run("ss", "-Hltunp")
    if rc:
        return None
    rows = []
    for line in out.splitlines():
        words = line.split()
        address, _, port = words[4].rpartition(":")
        programs = sorted(set(re.findall(r'\("([^"]+)",pid=', line)))
        rows.append(
            {
                "protocol": words[0],
                "address": address.strip("[]"),
                "port": port,
                "programs": " ".join(programs),
            }
        )
    return rows


def packages() -> dict[str, list[str]]:
    """Return every package that dpkg knows: name -> [version, architecture, status]."""
    _, out, _ = run(
        "dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${db:Status-Abbrev}\n"
    )
    rows = [line.split("\t") for line in out.splitlines()]
    return {row[0]: [row[1], row[2], row[3].strip()] for row in rows if len(row) == 4}


def client_ids() -> list[str]:
    """Return the DHCP client identifiers in hex, as systemd-networkd used them."""
    files = [text(path) or "" for path in Path("/run/systemd/netif/leases").glob("*")]
    used = [name for one in files for name in re.findall(r"^CLIENTID=(\S+)$", one, re.M)]
    if not used:
        # That of systemd 262 keeps no files of leases.
        _, out, _ = run("networkctl", "--json=short", "status", "--all")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            rows = [row.get("DHCPv4Client", {}) for row in json.loads(out)["Interfaces"]]
            used = [bytes(row["ClientIdentifier"]).hex() for row in rows if "Lease" in row]
    return sorted(used)


def identity() -> dict[str, Any]:
    """Return everything that must be unique to this machine."""
    keys = {}
    for path in sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub")):
        _, out, _ = run("ssh-keygen", "-lf", str(path))
        keys[path.name] = (out.split() or ["", ""])[1] if len(out.split()) > 1 else out.strip()
    return {
        "machine_id": (text("/etc/machine-id") or "").strip(),
        "hostname": (text("/proc/sys/kernel/hostname") or "").strip(),
        "host_keys": keys,
        "client_ids": client_ids(),
        "random_seed": digest("/var/lib/systemd/random-seed"),
    }


def package_managers() -> dict[str, int]:
    """Return when dpkg and apt last wrote their own files (seconds since the epoch)."""
    places = (
        "/var/lib/dpkg/status",
        "/var/lib/dpkg/info",
        "/var/log/dpkg.log",
        "/var/log/apt/history.log",
        "/var/log/apt/term.log",
    )
    return {path: int(Path(path).stat().st_mtime) for path in places if Path(path).exists()}


def plan() -> dict[str, Any]:
    """Return the changes that goldnode's program would make on this node."""
    if not Path(PROGRAM).exists():
        return {"rc": 127, "error": f"{PROGRAM} is not there", "plan": None}
    rc, out, err = run(PROGRAM, "plan", "--format", "json", limit=600)
    try:
        return {"rc": rc, "error": err.strip()[-2000:], "plan": json.loads(out)}
    except ValueError:
        return {"rc": rc, "error": (err or out).strip()[-2000:], "plan": None}


def wait_for_identity(limit: float = 900) -> None:
    """Wait until none of `MAKERS` has a job left: other units may still start, which take an emulated guest a minute."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        rc, out, _ = run("systemctl", "list-jobs", "--no-legend", "--plain")
        if rc == 0 and not any(name in out.split() for name in MAKERS):
            return
        time.sleep(1)


def sums_and_list(
    asked: dict[str, Any], image: str
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the digests of the files that are asked for, and the list of the initramfs."""
    sums = {path: digest(path) for path in asked.get("sums", ())}
    return sums, initramfs(image, sums, asked.get("listed"))


def programs(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of dpkg, apt, ss, lsblk and systemd's journal."""
    return {
        "identity": identity(),
        "root_password": (run("passwd", "-S", "root")[1].split() or ["", "?"])[1:2],
        "disks": disks(),
        "listeners": listeners(),
        "packages": packages(),
        "holds": run("apt-mark", "showhold")[1].split(),
        "package_managers": package_managers(),
        "status": {
            name: run("systemctl", "status", "--no-pager", "-n", "20", name)[1]
            for name in asked.get("status", ())
        },
        "sanity_log": run(
            "journalctl", "-b", "--no-pager", "-o", "cat", "-u", "goldnode-sanity.service"
        )[1].strip()[-6000:],
    }


def observed(release: str, modules: list[str]) -> dict[str, Any]:
    """Return the state of the kernel, of systemd, and what goldnode has published."""
    root = os.statvfs("/")
    state = run("systemctl", "is-system-running")[1].strip()
    failed = [
        line.split()[0]
        for line in run("systemctl", "--failed", "--no-legend", "--plain")[1].splitlines()
        if line.strip()
    ]
    return {
        "boot_id": (text("/proc/sys/kernel/random/boot_id") or "").strip(),
        "uptime": float((text("/proc/uptime") or "0").split()[0]),
        "kernel": release,
        "cmdline": (text("/proc/cmdline") or "").strip(),
        "virtual": run("systemd-detect-virt")[1].strip(),
        "systemd": run("systemctl", "--version")[1].split("\n")[0],
        "state": state,
        "failed": failed,
        "failures": {
            name: run("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "30", "-u", name)[
                1
            ].strip()
            for name in failed[:8]
        },
        "jobs": run("systemctl", "list-jobs", "--no-legend")[1].strip(),
        "units": units(),
        "loaded": modules,
        "os_release": dict(
            re.findall(r'^(\w+)="?([^"\n]*)"?$', text("/etc/os-release") or "", re.M)
        ),
        "root": {"size": root.f_frsize * root.f_blocks, "free": root.f_frsize * root.f_bavail},
        "class": document("/etc/goldnode/class.json"),
        "verdict": document("/run/goldnode/verdict.json"),
        "gate": document("/run/goldnode/gate.json"),
        "pass": Path("/run/goldnode/pass").exists(),
        "refused": sorted(path.name for path in Path("/run/goldnode/kept").glob("*")),
        # An EFI variable: attributes, then UTF-16.
        "entry": (
            text(
                "/sys/firmware/efi/efivars/LoaderEntrySelected-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
            )
            or ""
        )[2:].replace("\0", ""),
        "simulated": text("/opt/goldnode-simulator/SIMULATED"),
        "settings": text("/run/goldnode-simulator/state"),
    }


def main() -> None:
    asked = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if asked.get("identity"):
        wait_for_identity()
        json.dump(
            {
                "boot_id": (text("/proc/sys/kernel/random/boot_id") or "").strip(),
                "identity": identity(),
                "disks": disks(),  # GUIDs of the partitions
            },
            sys.stdout,
        )
        return
    release = os.uname().release
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        # These take an emulated guest longest, so all its processors work on them. No unit that is still starting changes files in /boot.
        summed = pool.submit(sums_and_list, asked, "/boot/initrd.img-" + release)
        # Wait until systemd has finished starting units. The checks decide whether all of them started.
        run("systemctl", "is-system-running", "--wait", limit=900)
        # Before the collector itself loads modules: only those that the boot loaded.
        modules = sorted(line.split()[0] for line in (text("/proc/modules") or "").splitlines())
        planned, others = pool.submit(plan), pool.submit(programs, asked)
        facts = {**observed(release, modules), **others.result(), "plan": planned.result()}
        facts["sum"], facts["initramfs"] = summed.result()
    # With those of the plan.
    facts["calls"] = (text("/run/goldnode-simulator/calls") or "").splitlines()
    names = asked.get("modules", ())
    refused = asked.get("refused") or (facts["class"] or {}).get("blacklist") or ()
    facts["modules"] = {name: module(name, release) for name in names}
    facts["refusals"] = {name: load(name) for name in refused}
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
