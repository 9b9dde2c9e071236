"""Runs on a lab node: spoils it by one manipulation, asks goldnode, repairs it, and puts everything back.

Standard library only. `python3 on_node.py save` remembers the file system, and `python3 on_node.py row` reads one row of
the table from standard input, as JSON, and prints what was seen. `spoil` makes the manipulation alone, and `end` judges
the node and puts everything back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

PROGRAM = "/usr/lib/goldnode/goldnode-node"
HERE = "/run/drift"  # in memory: thousands of small files
# Not part of the node's state, or written by every check.
OUTSIDE = {"/proc", "/sys", "/dev", "/tmp", "/run", "/var/log", "/var/cache", "/opt/drift"}
# Files that the container engine mounts.
OUTSIDE |= {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
# Directories whose content is copied, beside the files of the stack's packages. A manipulation of anything else is an error of the table.
COPIED = (
    "/boot", "/etc", "/root", "/usr/lib/firmware", "/usr/lib/goldnode", "/usr/lib/modprobe.d", "/usr/lib/modules",
    "/usr/lib/systemd", "/usr/local", "/usr/src", "/var/lib",
)  # fmt: skip
INSIDE_RUN = (
    "/run/modprobe.d",
    "/run/systemd/system",
    "/run/sysctl.d",
    "/run/udev",
    "/run/tmpfiles.d",
    "/run/cdi",
)
UNITS = ("goldnode-watch.timer", "goldnode-serve.socket", "docker.service")


def run(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def walk(top: str) -> Iterator[str]:
    """Yield the paths below a directory, a directory before its content."""
    if not os.path.lexists(top):
        return
    yield top
    stack = [top]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.path in OUTSIDE:
                    continue
                yield entry.path
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)


def facts(path: str) -> list[Any]:
    """Return what a change of a file changes."""
    status = os.lstat(path)
    row = [status.st_mode, status.st_uid, status.st_gid]
    if stat.S_ISLNK(status.st_mode):
        return [*row, os.readlink(path)]
    if stat.S_ISREG(status.st_mode):
        return [*row, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    return row


def tree() -> dict[str, Any]:
    return {path: facts(path) for top in ("/", *INSIDE_RUN) for path in walk(top)}


def packaged() -> set[str]:
    """Return the files of the stack's packages, and of one that a row removes."""
    with open("/etc/goldnode/class.json") as file:
        names = ["busybox", *(row["name"] for row in json.load(file)["packages"])]
    listed = run("dpkg", "-L", *names).stdout.splitlines()
    # /lib, /bin and /sbin are links into /usr.
    return {
        os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path) for path in listed
    }


def save() -> None:
    forget_reboots()
    shutil.rmtree(f"{HERE}/copy", ignore_errors=True)
    known, own, tops = tree(), packaged(), tuple(f"{top}/" for top in (*COPIED, *INSIDE_RUN))
    for path, row in known.items():
        to = f"{HERE}/copy{path}"
        if stat.S_ISREG(row[0]) and (path in own or path.startswith(tops)):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(path, to)
    with open(f"{HERE}/tree.json", "w") as file:
        json.dump(known, file)


def forget_reboots() -> None:
    """Forget the reboots that a repair asked for: a boot of a container changes nothing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink("/run/goldnode/reboot-required")


def restore() -> list[Any]:
    """Put every path back. Return those that differed."""
    with open(f"{HERE}/tree.json") as file:
        known = json.load(file)
    now = tree()
    changed = [path for path in {*known, *now} if known.get(path) != now.get(path)]
    for path in sorted(changed, reverse=True):  # the content before its directory
        kind = stat.S_IFMT(now[path][0]) if path in now else None
        if kind and (
            path not in known or kind != stat.S_IFMT(known[path][0]) or kind == stat.S_IFLNK
        ):
            shutil.rmtree(path) if stat.S_ISDIR(kind) else os.unlink(path)
    for path in sorted(path for path in changed if path in known):
        row = known[path]
        if stat.S_ISLNK(row[0]):
            os.symlink(row[3], path)
        elif stat.S_ISDIR(row[0]):
            os.makedirs(path, exist_ok=True)
        elif stat.S_ISREG(row[0]):
            shutil.copy2(f"{HERE}/copy{path}", f"{path}.drift")
            os.replace(f"{path}.drift", path)
        os.lchown(path, row[1], row[2])
        if not stat.S_ISLNK(row[0]):
            os.chmod(path, stat.S_IMODE(row[0]))
        known[path] = facts(path)
    with open(f"{HERE}/tree.json", "w") as file:
        json.dump(known, file)
    forget_reboots()
    run("systemctl", "daemon-reload")
    run("systemctl", "start", *UNITS)
    return sorted(changed)


def check() -> dict[str, Any]:
    """Return the exit code, and what is wrong: id and subject -> text."""
    done = run(PROGRAM, "check", "--no-write", "--format", "json")
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        return {
            "code": done.returncode,
            "wrong": {"(no verdict)": done.stdout[-2000:]},
            "noted": {},
        }
    wrong, noted = {}, {}
    for row in verdict["findings"]:
        name = f"{row['id']} {row.get('subject') or ''}".strip()
        text = f"{row['got']} | {row.get('remedy') or ''}"
        if row["outcome"] in ("mismatch", "could_not_read"):
            wrong[name] = text
        else:
            noted[name] = text
    return {"code": done.returncode, "wrong": wrong, "noted": noted}


def plan() -> dict[str, Any]:
    done = run(PROGRAM, "plan", "--format", "json")
    try:
        planned = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stdout[-2000:]}
    return {
        "actions": [
            [row["part"], row["kind"], row["target"], row["reason"]] for row in planned["actions"]
        ],
        "refusals": [[row["code"], row["message"], row["remedy"]] for row in planned["refusals"]],
        "notes": [[row["subject"], row["message"]] for row in planned["notes"]],
        "waiting": [row["message"] for row in planned.get("waiting", ())],
    }


def apply(planned: dict[str, Any]) -> list[Any]:
    """Apply the parts of a plan that have actions. Return the output of those that failed."""
    failed = []
    for part in dict.fromkeys(row[0] for row in planned["actions"]):
        done = run(PROGRAM, "apply", "--part", part)
        if done.returncode != 0:
            failed.append(done.stdout[-3000:])
    return failed


def end(judge: bool) -> dict[str, Any]:
    """Judge the repaired node, and put everything back."""
    seen: dict[str, Any] = {"after": check(), "left": plan()} if judge else {}
    seen["changed"] = restore()
    return seen


def script(data: dict[str, Any], key: str) -> list[Any]:
    """Run a script of a row. Return its exit status and the end of its output."""
    variables = " ".join(f"{name}={value}" for name, value in data["variables"].items())
    done = run("sh", "-ec", f"{variables}\n{data[key]}")
    return [done.returncode, done.stdout[-1000:]]


def row(data: dict[str, Any]) -> dict[str, Any]:
    start = time.time()
    seen: dict[str, Any] = {"do": script(data, "do")}
    seen["check"], seen["plan"] = check(), plan()
    if data["repair"] == "apply" and not seen["plan"].get("refusals", True):
        seen["failed"] = apply(seen["plan"])
    elif data["repair"] not in (None, "apply", "site.yml"):
        seen["undo"] = script(data, "repair")
        again = plan()
        if again.get("actions") and not again["refusals"]:
            seen["failed"] = apply(again)
    if data["repair"] != "site.yml":
        seen.update(end(bool(data["repair"])))
    seen["seconds"] = round(time.time() - start, 1)
    return seen


def main() -> None:
    command = sys.argv[1]
    if command == "save":
        save()
        return
    if command == "end":
        print(json.dumps(end(True)))
        return
    data = json.load(sys.stdin)
    print(json.dumps(row(data) if command == "row" else {"do": script(data, "do")}))


if __name__ == "__main__":
    main()
