"""Power that goes at any moment of a real run (powerrun.py): every disk that it can leave is repaired, boots, and is reported as it is.

The run takes half an hour, its judgement and the boots longer. With GOLDNODE_POWER_RUN=FOLDER the log and every result stay there, and a run
that was interrupted goes on: judged.jsonl and booted.jsonl have a line for each disk.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import powerjudge, powerrun, slotdisk
from tests.disks.test_disk_identity import CHOSEN
from tests.e2e.qemu.disk import OVMF_VARS, GuestError

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("power-run")]

SEEDED = int(os.environ.get("GOLDNODE_POWER_POINTS", "560"))
MARKER, SYSTEM = 44, 12  # disks booted to the choice of the root, and to the system


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The log of a run, made now or by an earlier run."""
    stays = os.environ.get("GOLDNODE_POWER_RUN")
    folder = Path(stays) if stays else tmp_path_factory.mktemp("run")
    folder.mkdir(exist_ok=True)
    if not (folder / "recorded").exists():
        powerrun.build(folder)
        powerrun.record(folder)
        (folder / "recorded").touch()
    yield folder
    if not stays:
        shutil.rmtree(folder)


def lines(path: Path) -> list[dict[str, Any]]:
    """The results of earlier runs; a line that was cut off is left out."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def test_every_disk_of_a_real_run_is_repaired_boots_and_is_reported(
    place: Path, tmp_path: Path
) -> None:
    judge = powerjudge.Judge(place, tmp_path)
    record = place / "judged.jsonl"
    done = {(row["epoch"], row["seed"]) for row in lines(record)}
    with record.open("a") as out:
        for point in powerrun.points(judge.epochs, SEEDED):
            if (point.epoch, point.seed) not in done:
                print(powerjudge.line(judge.judged(point)), file=out, flush=True)
    rows = lines(record)
    print(Counter((row["step"], row["seed"] is None) for row in rows))
    print(f"torn superblocks of ext4: {sum(row['torn'] for row in rows)}")
    bad = [row for row in rows if row["bad"]]
    assert sum(row["seed"] is None for row in rows) == len(judge.epochs)
    assert sum(row["seed"] is not None for row in rows) >= 500
    assert not bad, (len(bad), bad[:3])


def hardest(rows: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Disks of all steps in turn, those with most to repair first; of equal ones, one."""
    steps: dict[str, list[dict[str, Any]]] = {}
    seen = set()
    for row in sorted(rows, key=lambda row: (-len(row["output"]), row["epoch"], row["seed"] or 0)):
        key = (row["step"], row["raw"], row["output"])
        if row["seed"] is not None and not row["torn"] and key not in seen:
            seen.add(key)
            steps.setdefault(row["step"], []).append(row)
    for row in rows:  # then those with equal reports
        if row["seed"] is not None and not row["torn"] and row not in steps.get(row["step"], []):
            steps.setdefault(row["step"], []).append(row)
    found: list[dict[str, Any]] = []
    while len(found) < number and any(steps.values()):
        found += [of_step.pop(0) for of_step in steps.values() if of_step]
    return found[:number]


def boot(place: Path, disk: Path, scratch: Path, until: str) -> tuple[slotdisk.Guest, float]:
    """Boot a disk from nothing but itself, to a line of its console."""
    variables = scratch / "boot.fd"
    shutil.copy(OVMF_VARS, variables)
    command = [
        *slotdisk.machine(variables), "-nic", "none",
        "-drive", f"file={disk},if=none,id=cut,format=raw,cache=unsafe",
        "-device", "virtio-blk-pci,drive=cut,bootindex=0",
        "-drive", f"file={place / 'observe.img'},if=virtio,format=raw,readonly=on",
    ]  # fmt: skip
    begun = time.monotonic()
    with slotdisk.started(command, scratch / "boot.console") as guest:
        guest.wait(until, limit=2400)
    return guest, time.monotonic() - begun


def test_disks_of_a_real_run_boot_under_real_firmware(place: Path, tmp_path: Path) -> None:
    judge = powerjudge.Judge(place, tmp_path)
    chosen = hardest(lines(place / "judged.jsonl"), MARKER)
    record = place / "booted.jsonl"
    tasks = [
        (row, "GUEST OBSERVED" if number < SYSTEM else "goldnode: root is ")
        for number, row in enumerate(chosen)
    ]
    done = {(row["epoch"], row["seed"], row["until"]) for row in lines(record)}
    for row, until in sorted(tasks, key=lambda task: task[0]["epoch"]):
        if (row["epoch"], row["seed"], until) in done:
            continue
        epoch = judge.epochs[row["epoch"]]
        judge.replay.forward(row["epoch"])
        disk = judge.replay.disk(powerrun.survivors(epoch, row["seed"]), tmp_path / "boot.raw")
        result = {
            "epoch": row["epoch"],
            "seed": row["seed"],
            "step": row["step"],
            "until": until,
            "raw": row["raw"],
        }
        try:
            guest, seconds = boot(place, disk, tmp_path, until)
        except GuestError as problem:
            result.update(bad=[str(problem)[-3000:]], seconds=0)
        else:
            result.update(outcome(row, guest.lines, until), seconds=round(seconds))
        with record.open("a") as out:
            print(json.dumps(result, sort_keys=True), file=out, flush=True)
    rows = lines(record)
    bad = [row for row in rows if row["bad"]]
    assert not bad, (len(bad), bad[:3])
    assert len(rows) >= 40
    assert sum(row["until"] == "GUEST OBSERVED" for row in rows) >= 10


def outcome(row: dict[str, Any], console: list[str], until: str) -> dict[str, Any]:
    """Return the slot and kernel that a boot started, and its faults."""
    match = next(found for found in map(CHOSEN.search, console) if found)
    slot, bad = "?ab"[int(match[2]) - 1], []
    wanted = row["raw"].partition(" ")[0].partition("+")[0].removesuffix(".conf")[-1]
    if slot != wanted:
        bad.append(f"the root of slot {slot} was chosen, and {wanted} started")
    shown = {"slot": slot, "by": match[4]}
    if until == "GUEST OBSERVED":
        reports = dict(
            text.partition("GUEST ")[2].split(" ", 1)
            for text in console
            if text.startswith("GUEST ") and " " in text[6:]
        )
        state = json.loads(reports["STATUS"])
        shown["state"] = state["slots"][slot]["state"]
        shown["next"] = state["next"]
        if state["running"] != slot or state["slots"][slot]["state"] != "good":
            bad.append(f"slot {slot} runs, and is reported as {state['running']}, {shown['state']}")
    return {**shown, "bad": bad}
