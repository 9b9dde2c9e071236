"""Images that no longer boot, by the loader of each Debian release and by a whole system: what came up, and what was reported.

With GOLDNODE_FALLBACK_RUN=FOLDER the disks and a line of each boot stay there (loader.jsonl, system.jsonl), and a run that was interrupted goes on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.disks import fallbackrun, loaderlab
from tests.disks.fallbackrun import SIZES, STARTS, Outcome
from tests.disks.test_power_run import lines
from tests.e2e.qemu.disk import debian, run

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("fallback")]

MIB = 1 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    stays = os.environ.get("GOLDNODE_FALLBACK_RUN")
    folder = Path(stays) if stays else tmp_path_factory.mktemp("fallback")
    folder.mkdir(exist_ok=True)
    yield folder
    if not stays:
        shutil.rmtree(folder)


def add(record: Path, row: dict[str, Any]) -> None:
    with record.open("a") as out:
        print(json.dumps(row, sort_keys=True), file=out, flush=True)


@pytest.mark.parametrize("suite", loaderlab.SUITES)
def test_loader_of_each_release_goes_on_as_the_table_has_it(
    place: Path, tmp_path: Path, suite: str
) -> None:
    record = place / "loader.jsonl"
    done = {(row["suite"], row["case"]) for row in lines(record)}
    # Debian 14 has no archive of security updates yet.
    archives = [
        row for row in debian(suite, place) if suite != "forky" or "security" not in row.suite
    ]
    parts = loaderlab.fetch(suite, archives, place)
    for case in loaderlab.CASES:
        if (suite, case.name) not in done:
            add(record, loaderlab.run_case(case, parts, tmp_path))
    index = list(loaderlab.SUITES).index(suite)
    wanted = {case.name: (case.ends[index], case.counter[index]) for case in loaderlab.CASES}
    rows = {
        row["case"]: (row["ends"], row["counter"]) for row in lines(record) if row["suite"] == suite
    }
    assert rows == wanted


# -- the whole system


def wipe(disk: Path, label: str, start: int = 0, length: int = 64 * MIB) -> None:
    """Overwrite a part of a partition with 0xff."""
    with disk.open("r+b") as opened:
        opened.seek(STARTS[label] + start)
        for _ in range(max(1, length // MIB)):
            opened.write(b"\xff" * min(length, MIB))


def without(disk: Path, label: str, *commands: str) -> None:
    """Change a root by debugfs, which needs a file of its own."""
    number = ("esp", "root-a", "root-b").index(label)
    part = disk.with_suffix(".part")
    where = (f"skip={STARTS[label] // MIB}", f"count={SIZES[number] // MIB}")
    run("dd", f"if={disk}", f"of={part}", "bs=1M", *where, "conv=sparse", "status=none")
    for command in commands:
        run("debugfs", "-w", "-R", command, part)
    run(
        "dd",
        f"if={part}",
        f"of={disk}",
        "bs=1M",
        f"seek={STARTS[label] // MIB}",
        "conv=notrunc",
        "status=none",
    )
    part.unlink()


def on_esp(disk: Path, slot: str, key: str, change: Callable[[bytes], bytes] | None) -> None:
    """Change kernel or initramfs of a slot on the ESP, or remove it."""
    volume = f"{disk}@@{STARTS['esp']}"
    copy = disk.with_suffix(".copy")
    for name in loaderlab.listed(disk):
        if f"-{slot}" not in name:
            continue
        run("mcopy", "-n", "-o", "-i", volume, f"::loader/entries/{name}", copy)
        rows = dict(line.split(" ", 1) for line in copy.read_text().splitlines() if " " in line)
        if change is None:
            run("mdel", "-i", volume, f"::{rows[key].strip()}")
            continue
        run("mcopy", "-n", "-o", "-i", volume, f"::{rows[key].strip()}", copy)
        copy.write_bytes(change(copy.read_bytes()))
        run("mcopy", "-n", "-o", "-i", volume, copy, f"::{rows[key].strip()}")
    copy.unlink()


def torn(disk: Path) -> None:
    """The second sector of the superblock is that of another moment: its checksum does not match."""
    wipe(disk, "root-b", 1024 + 512, 8)


def both(disk: Path) -> None:
    wipe(disk, "root-a")
    wipe(disk, "root-b")


def used_up(disk: Path) -> None:
    """Both entries have used their tries, as the loader leaves them."""
    for name in loaderlab.listed(disk):
        slot = re.match(r"goldnode-(aaa-a|bbb-b)", name)
        if slot:
            run(
                "mren",
                "-i",
                f"{disk}@@{STARTS['esp']}",
                f"::loader/entries/{name}",
                f"{slot[0]}+0-3.conf",
            )


@dataclass(frozen=True)
class SystemCase:
    """A way to break the good disk. `slot` is the one that runs afterwards, or `recovery`; `reported` is in what it says.

    `until` ends the boot: the end of the guest's script, or the choice of the root in the initramfs.
    """

    name: str
    damage: Callable[[Path], None]
    slot: str
    reported: str
    until: str = "GUEST ENDED"


CHOSEN = "goldnode: root is /dev/vda"
LOST = "was good, and no longer comes up (3 tries)"
CASES = (
    SystemCase("no slot has tries left", used_up, "recovery", "goldnode: recovery is ready", "recovery is ready"),
    SystemCase("superblock of the root torn", torn, "b", "e2fsck tries the copy of its superblock", "Running /scripts/init-bottom"),
    SystemCase("kernel damaged", lambda disk: on_esp(disk, "b", "linux", loaderlab.flipped), "a", "Failed to decompress kernel", CHOSEN),
    SystemCase("initramfs missing", lambda disk: on_esp(disk, "b", "initrd", None), "a", "Error preparing initrd", CHOSEN),
    SystemCase("root overwritten", lambda disk: wipe(disk, "root-b"), "a", LOST),
    SystemCase("systemd missing in the root", lambda disk: without(disk, "root-b", "rm /usr/lib/systemd/systemd"), "a", LOST),
    SystemCase("both roots overwritten", both, "recovery", "goldnode: recovery is ready", "recovery is ready"),
)  # fmt: skip


def port() -> int:
    """A free port of this machine."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def answers(place: Path, number: int, replies: list[str]) -> None:
    """Log in to a recovery and ask what an administrator would."""
    for command in (
        "cat /etc/motd",
        "ip -br addr",
        "lsblk -no NAME,PARTLABEL",
        "e2fsck -V 2>&1 | head -1",
    ):
        replies.append(fallbackrun.ssh(place, number, command, 600))


def outcome(case: SystemCase, found: Outcome, replies: Sequence[str]) -> dict[str, Any]:
    """Return the row of a boot, with what is not as it should be."""
    reports, bad = found.reports(), []
    chosen = re.findall(
        r"goldnode: root is /dev/vda(\d)", "\n".join(line for _, line in found.lines)
    )
    slot = "?ab"[int(chosen[-1]) - 1] if chosen else "?"
    if found.shows("goldnode: recovery is ready"):
        slot = "recovery"
    text = "\n".join([*reports.values(), *(line for _, line in found.lines)])
    if slot != case.slot:
        bad.append(f"{slot} came up")
    if case.reported not in text:
        bad.append(f"not reported: {case.reported}")
    if slot == "recovery" and not (
        "no slot of this node has tries left" in replies[0] and "10.0.2.15" in replies[1]
    ):
        bad.append(f"over ssh: {replies}")
    return {
        "case": case.name,
        "slot": slot,
        "seconds": round(found.seconds),
        "reported": reports.get("TEXT", ""),
        "history": reports.get("HISTORY", ""),
        "ssh": list(replies),
        "bad": bad + [found.lines[-1][1]] * bool(bad),
    }


def test_a_good_image_that_no_longer_boots_gives_way(place: Path, tmp_path: Path) -> None:
    if not (place / "disk.raw").exists():
        fallbackrun.build(place)
    record = place / "system.jsonl"
    if not (place / "good.raw").exists():
        found = fallbackrun.first(place, tmp_path)
        reports = found.reports()
        assert reports["BOOT"].startswith("slot=b"), found.lines[-5:]
        assert "goldnode-bbb-b+3.conf" in reports["ENTRIES"]
        assert "goldnode-recovery.conf" in reports["ENTRIES"]
        assert "ssh for 1 keys at" in reports["TEXT"]
        assert "goldnode: try 7".encode("utf-16-le") in (place / "good.fd").read_bytes()
        (place / "first.json").write_text(json.dumps({"seconds": found.seconds, **reports}))
    done = {row["case"] for row in lines(record)}
    for case in CASES:
        if case.name not in done:
            add(record, run_system(case, place, tmp_path))
    rows = lines(record)
    bad = [row for row in rows if row["bad"]]
    assert len(rows) == len(CASES)
    assert not bad, bad


def run_system(case: SystemCase, place: Path, scratch: Path) -> dict[str, Any]:
    """Break a copy of the good disk, and boot it until something is up."""
    disk, variables = scratch / "broken.raw", scratch / "broken.fd"
    run("cp", "--sparse=always", place / "good.raw", disk)
    shutil.copy(place / "good.fd", variables)
    case.damage(disk)
    replies: list[str] = []
    number = port()
    then = (lambda: answers(place, number, replies)) if case.slot == "recovery" else None
    until = (case.until, "GUEST ENDED", "goldnode: recovery is ready", "UEFI Interactive Shell")
    found = fallbackrun.boot(
        place, disk, variables, scratch, until=until, limit=3600, port=number, then=then
    )
    disk.unlink()
    return outcome(case, found, replies or ["", ""])
