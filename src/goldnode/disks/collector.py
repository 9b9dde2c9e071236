"""What a booted guest says of itself, as one JSON object on standard output. Sent to the guest over ssh and run there as root by its own Python.

Its readers are its own: it asks systemd, dpkg, modprobe and /proc directly, and of goldnode's program only what that is asked for (the verdict it
wrote, its gate, its plan). Standard library, Python 3.9; nothing is written but what `modprobe` does. docs/disk-verification.md says what is
made of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

UNITS = (
    "multi-user.target", "boot-complete.target", "goldnode-sanity.service", "goldnode-policy.service", "goldnode-watch.timer",
    "goldnode-watch.service", "goldnode-events.service", "goldnode-good.service", "goldnode-first-boot.service", "ssh.service",
    "docker.service", "docker.socket", "containerd.service", "slurmd.service", "kubelet.service",
    "apt-daily.service", "apt-daily-upgrade.service", "unattended-upgrades.service", "dpkg-db-backup.service",
)  # fmt: skip
SHOWN = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "After", "Before", "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic", "ActiveEnterTimestampMonotonic", "InactiveExitTimestampMonotonic", "ConditionResult", "StatusErrno",
    "NeedDaemonReload", "DropInPaths", "ExecCondition",
)  # fmt: skip
PROGRAM = "/usr/lib/goldnode/goldnode-node"


def run(*words: str, limit: int = 240) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a command; 127 where it is not there, 124 where it takes too long."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit
        )
    except FileNotFoundError:
        return 127, "", f"{words[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, "", f"{words[0]}: not done after {limit} s"
    return done.returncode, done.stdout, done.stderr


def text(path: str | Path) -> str | None:
    """Content of a file, None where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def document(path: str) -> Any:
    """Content of a JSON file, None where there is none or it is no JSON."""
    try:
        return json.loads(text(path) or "")
    except ValueError:
        return None


def digest(path: str) -> str | None:
    """SHA-256 of a file in hex, None where it cannot be read."""
    total = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                total.update(block)
    except OSError:
        return None
    return total.hexdigest()


def units() -> dict[str, dict[str, str]]:
    """Unit -> property -> value, of those above."""
    _, out, _ = run("systemctl", "show", "--no-pager", "-p", ",".join(SHOWN), *UNITS)
    found = {}
    for block in out.split("\n\n"):
        row = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if row.get("Id"):
            found[row["Id"]] = row
    return found


def module(name: str, release: str) -> dict[str, Any]:
    """What modinfo says of a module's file, and how loading it ends; what the kernel says to that."""
    rc, out, err = run("modinfo", "-k", release, name)
    about: dict[str, Any] = {"name": name, "modinfo": rc, "error": err.strip(), "fields": {}}
    for line in out.splitlines():
        key, _, value = line.partition(":")
        if key in ("filename", "version", "vermagic", "signer", "license", "srcversion"):
            about["fields"].setdefault(key, value.strip())
    about.update(load(name))
    return about


def load(name: str) -> dict[str, Any]:
    """How `modprobe` of a module ends; a module that it loads stays."""
    _, before, _ = run("dmesg")
    rc, out, err = run("modprobe", "-v", name)
    _, after, _ = run("dmesg")
    said = after[len(before) :] if after.startswith(before) else after
    loaded = any(
        line.split()[0] == name.replace("-", "_") for line in (text("/proc/modules") or "").splitlines()
    )
    return {"rc": rc, "said": (out + err).strip(), "kernel": said.strip()[-4000:], "loaded": loaded}


def initramfs(path: str) -> dict[str, Any]:
    """Names of the files in an initramfs, or why they cannot be listed."""
    rc, out, err = run("lsinitramfs", path)
    return {"error": None if rc == 0 else (err.strip() or f"exit status {rc}"), "names": out.splitlines()}


def disks() -> Any:
    """Whole disks and their partitions: name, size in bytes, PARTLABEL, file system, where it is mounted."""
    _, out, _ = run("lsblk", "-J", "-b", "-o", "NAME,TYPE,SIZE,PARTLABEL,FSTYPE,MOUNTPOINT,PARTUUID,PKNAME")
    with contextlib.suppress(ValueError, KeyError):
        return json.loads(out)["blockdevices"]
    return []


def packages() -> dict[str, list[str]]:
    """Name -> [version, architecture, status] of every package that dpkg knows."""
    _, out, _ = run(
        "dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\t${db:Status-Abbrev}\n"
    )
    rows = [line.split("\t") for line in out.splitlines()]
    return {row[0]: [row[1], row[2], row[3].strip()] for row in rows if len(row) == 4}


def identity() -> dict[str, Any]:
    """What has to be this machine's alone."""
    keys = {}
    for path in sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub")):
        _, out, _ = run("ssh-keygen", "-lf", str(path))
        keys[path.name] = (out.split() or ["", ""])[1] if len(out.split()) > 1 else out.strip()
    leases = {}
    for path in Path("/run/systemd/netif/leases").glob("*"):
        found = re.search(r"^CLIENTID=(\S+)$", text(path) or "", re.M)
        leases[path.name] = found.group(1) if found else None
    return {
        "machine_id": (text("/etc/machine-id") or "").strip(),
        "hostname": (text("/proc/sys/kernel/hostname") or "").strip(),
        "host_keys": keys,
        "client_ids": sorted(value for value in leases.values() if value),
        "random_seed": digest("/var/lib/systemd/random-seed"),
    }


def package_managers() -> dict[str, int]:
    """When dpkg's and apt's own files were last written (seconds since the epoch)."""
    places = (
        "/var/lib/dpkg/status",
        "/var/lib/dpkg/info",
        "/var/log/dpkg.log",
        "/var/log/apt/history.log",
        "/var/log/apt/term.log",
    )
    return {path: int(Path(path).stat().st_mtime) for path in places if Path(path).exists()}


def plan() -> dict[str, Any]:
    """What goldnode's own program would change on this node."""
    if not Path(PROGRAM).exists():
        return {"rc": 127, "error": f"{PROGRAM} is not there", "plan": None}
    rc, out, err = run(PROGRAM, "plan", "--json", limit=600)
    try:
        return {"rc": rc, "error": err.strip()[-2000:], "plan": json.loads(out)}
    except ValueError:
        return {"rc": rc, "error": (err or out).strip()[-2000:], "plan": None}


def main() -> None:
    asked = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    # Until systemd has no more to start; whether all of it did is judged.
    run("systemctl", "is-system-running", "--wait", limit=900)
    if asked.get("identity"):
        json.dump(
            {"boot_id": (text("/proc/sys/kernel/random/boot_id") or "").strip(), "identity": identity()},
            sys.stdout,
        )
        return
    release = os.uname().release
    state = run("systemctl", "is-system-running")[1].strip()
    failed = [
        line.split()[0]
        for line in run("systemctl", "--failed", "--no-legend", "--plain")[1].splitlines()
        if line.strip()
    ]
    # Before this loads modules: what the boot itself has loaded.
    modules = sorted(line.split()[0] for line in (text("/proc/modules") or "").splitlines())
    root = os.statvfs("/")
    found = {
        "boot_id": (text("/proc/sys/kernel/random/boot_id") or "").strip(),
        "uptime": float((text("/proc/uptime") or "0").split()[0]),
        "kernel": release,
        "cmdline": (text("/proc/cmdline") or "").strip(),
        "virtual": run("systemd-detect-virt")[1].strip(),
        "systemd": run("systemctl", "--version")[1].split("\n")[0],
        "state": state,
        "failed": failed,
        "failures": {
            name: run("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "30", "-u", name)[1].strip()
            for name in failed[:8]
        },
        "jobs": run("systemctl", "list-jobs", "--no-legend")[1].strip(),
        "units": units(),
        "loaded": modules,
        "os_release": dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text("/etc/os-release") or "", re.M)),
        "identity": identity(),
        "root_password": (run("passwd", "-S", "root")[1].split() or ["", "?"])[1:2],
        "disks": disks(),
        "root": {"size": root.f_frsize * root.f_blocks, "free": root.f_frsize * root.f_bavail},
        "packages": packages(),
        "holds": run("apt-mark", "showhold")[1].split(),
        "package_managers": package_managers(),
        "sum": {path: digest(path) for path in asked.get("sums", ())},
        "initramfs": initramfs("/boot/initrd.img-" + release),
        "class": document("/etc/goldnode/class.json"),
        "verdict": document("/run/goldnode/verdict.json"),
        "gate": document("/run/goldnode/gate.json"),
        "pass": Path("/run/goldnode/pass").exists(),
        "refused": sorted(path.name for path in Path("/run/goldnode/kept").glob("*")),
        "status": {
            name: run("systemctl", "status", "--no-pager", "-n", "20", name)[1]
            for name in asked.get("status", ())
        },
        "sanity_log": run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "goldnode-sanity.service")[
            1
        ].strip()[-6000:],
        "plan": plan(),
        "entry": (
            text("/sys/firmware/efi/efivars/LoaderEntrySelected-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f") or ""
        )[2:].replace("\0", ""),
        "simulated": text("/opt/goldnode-simulator/SIMULATED"),
        "settings": text("/run/goldnode-simulator/state"),
        "calls": (text("/run/goldnode-simulator/calls") or "").splitlines(),
    }
    names = asked.get("modules", ())
    refused = asked.get("refused") or (found["class"] or {}).get("blacklist") or ()
    found["modules"] = {name: module(name, release) for name in names}
    found["refusals"] = {name: load(name) for name in refused}
    json.dump(found, sys.stdout)


main()
