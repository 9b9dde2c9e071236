"""Slots on a directory that plays a node: what is told of them, what follows a kernel, and what is refused before anything is written."""

from __future__ import annotations

import builtins
import fcntl
import gzip
import hashlib
import io
import itertools
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.effective.test_loader import header

from goldnode.node.effective import loader
from goldnode.node.ground import boot
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.slots import trial as slot_trial
from goldnode.node.slots import write as slotwrite
from goldnode.node.state import bootdisk, observe, slots
from goldnode.node.state.domains import slots as slot_files
from goldnode.node.state.model import Observed
from goldnode.node.state.removal import NO_CLASS

OLD, NEW = "6.1.0-901-amd64", "6.1.0-902-amd64"
ENTRIES = "efi/loader/entries"


class Node(Host):
    """A directory with an ESP; programs are not run, and what was asked for is kept."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), live=True)
        self.asked: list[tuple[str, ...]] = []

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.asked.append(argv)
        return Result(argv, 0, "", "")


def about(slot: str, sequence: int, **more: Any) -> dict[str, Any]:
    return {
        "name": f"cpu-{slot * 3}",
        "class": "cpu",
        "build_id": slot * 3,
        "sequence": sequence,
        "kernel": OLD,
        **more,
    }


def hold(root: Path, slot: str, sequence: int, name: str, **more: Any) -> None:
    """Put an image into a slot; `name` is its entry's file."""
    folder = root / f"efi/goldnode/{slot}"
    folder.mkdir(parents=True, exist_ok=True)
    (root / ENTRIES).mkdir(parents=True, exist_ok=True)
    (folder / "vmlinuz").write_bytes(header(OLD))
    (folder / "initrd.img").write_bytes(b"initramfs of " + slot.encode())
    (folder / "slot.json").write_text(json.dumps(about(slot, sequence, **more)))
    text = slots.entry_text(
        about(slot, sequence),
        slot,
        f"/goldnode/{slot}/vmlinuz",
        f"/goldnode/{slot}/initrd.img",
        "ro panic=5",
    )
    (root / ENTRIES / name).write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that runs slot a of two; b is empty."""
    hold(tmp_path, "a", 1, "goldnode-aaa-a.conf")
    (tmp_path / "efi/loader/loader.conf").write_text("default goldnode-*\ntimeout 0\n")
    for name, text in (
        ("proc/cmdline", "root=PARTLABEL=root-a ro panic=5\n"),
        ("proc/sys/kernel/random/boot_id", "boot-1\n"),
        ("proc/1/stat", "1 (systemd) " + " ".join(["0"] * 50)),
        ("boot/vmlinuz-" + OLD, ""),
        ("boot/initrd.img-" + OLD, "initramfs of a"),
        ("etc/goldnode/class.json", '{"class": "cpu"}'),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / f"boot/vmlinuz-{OLD}").write_bytes(header(OLD))
    for slot in slots.SLOTS:
        (tmp_path / f"dev/disk/by-partlabel/root-{slot}").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"dev/disk/by-partlabel/root-{slot}").write_bytes(b"\0" * 8192)
    return Node(tmp_path)


def counted(node: Node, name: str) -> None:
    """This boot tries an entry: systemd-boot leaves its path in a variable."""
    place = Path(node.root) / boot.VARIABLES.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    path = f"\\loader\\entries\\{name}\0"
    (place / f"LoaderBootCountPath-{boot.VENDOR}").write_bytes(
        b"\x06\0\0\0" + path.encode("utf-16-le")
    )


def listing(node: Node) -> set[str]:
    return {path.name for path in (Path(node.root) / ENTRIES).iterdir()}


def reported(node: Node) -> dict[str, Any]:
    found = slots.survey(node)
    assert found is not None
    return found


def test_shipped_disk_runs_slot_a_and_slot_b_is_empty(node: Node) -> None:
    found = reported(node)
    assert (found["running"], found["next"], found["tried"], found["fallback"]) == (
        "a",
        "a",
        None,
        None,
    )
    assert (found["slots"]["a"]["state"], found["slots"]["b"]["state"]) == (slots.GOOD, slots.EMPTY)


@pytest.mark.parametrize(
    "line",
    [
        "root=/dev/vda2 ro",
        "root=PARTLABEL=root-c",
        "xroot=PARTLABEL=root-a",
        "root=PARTLABEL=root-ab",
    ],
)
def test_another_root_has_no_slots(node: Node, line: str) -> None:
    (Path(node.root) / "proc/cmdline").write_text(line)
    assert slots.survey(node) is None
    assert slot_trial.good(node)[0]
    assert slots.sync(node) is None


@pytest.mark.parametrize(
    ("entry", "sequence", "state", "after", "fallback"),
    [
        ("goldnode-bbb-b+3.conf", 2, slots.TRYING, "b", False),
        ("goldnode-bbb-b+1-2.conf", 2, slots.TRYING, "b", False),
        ("goldnode-bbb-b+0-3.conf", 2, slots.FAILED, "a", True),
        ("goldnode-bbb-b.conf", 2, slots.GOOD, "b", False),
        # An older image that failed once is no news: the newer one runs.
        ("goldnode-bbb-b+0-3.conf", 0, slots.FAILED, "a", False),
    ],
)
def test_state_of_the_other_slot_follows_its_boot_entry(
    node: Node, entry: str, sequence: int, state: str, after: str, fallback: bool
) -> None:
    hold(Path(node.root), "b", sequence, entry)
    found = reported(node)
    assert (found["slots"]["b"]["state"], found["next"], bool(found["fallback"])) == (
        state,
        after,
        fallback,
    )


def test_after_a_fallback_the_reason_is_reported(node: Node) -> None:
    hold(Path(node.root), "b", 2, "goldnode-bbb-b+0-3.conf")
    assert "it left no reason" in str(reported(node)["fallback"])
    slots.record(
        node,
        where="/efi",
        event=slots.FAILED,
        slot="b",
        about={"name": "cpu-other"},
        reason="of another image",
    )
    slots.record(
        node,
        where="/efi",
        event=slots.FAILED,
        slot="b",
        about=about("b", 2),
        reason="modules.dummy: missing",
    )
    text = reported(node)["fallback"]
    assert (
        text
        == "image cpu-bbb in slot b failed 3 tries: modules.dummy: missing; cpu-aaa in slot a runs"
    )
    slots.show_failure(
        node, {"findings": [{"id": "slot.fallback", "outcome": "mismatch", "got": text}]}
    )
    assert (Path(node.root) / boot.NOTICE.lstrip("/")).read_text() == f"{text}\n"
    slots.show_failure(node, {"findings": []})
    assert not node.exists(boot.NOTICE)


def test_the_last_try_is_a_try(node: Node) -> None:
    """While it runs, an image without tries left has not failed."""
    root = Path(node.root)
    hold(root, "b", 2, "goldnode-bbb-b+0-1.conf")
    (root / "proc/cmdline").write_text("root=PARTLABEL=root-b ro")
    counted(node, "goldnode-bbb-b+0-1.conf")
    found = reported(node)
    assert (found["running"], found["tried"], found["slots"]["b"]["state"]) == (
        "b",
        "goldnode-bbb-b+0-1.conf",
        slots.TRYING,
    )


def test_the_history_is_short_and_survives_a_torn_line(node: Node) -> None:
    for number in range(slots.HISTORY_LINES + 5):
        slots.record(
            node,
            where="/efi",
            event=slots.GOOD,
            slot="a",
            about=about("a", number),
            reason=str(number),
        )
    with (Path(node.root) / "efi/goldnode/history").open("a") as opened:
        opened.write('{"torn')
    rows = slots.history(node, "/efi")
    assert [row["reason"] for row in rows] == [
        str(number) for number in range(5, slots.HISTORY_LINES + 5)
    ]


def trying(node: Node, monkeypatch: pytest.MonkeyPatch, reasons: list[str]) -> Path:
    """This boot tries the image in slot b, and its check says this."""
    root = Path(node.root)
    hold(root, "b", 2, "goldnode-bbb-b+2-1.conf")
    entry = root / ENTRIES / "goldnode-bbb-b+2-1.conf"
    entry.write_text(entry.read_text().replace("panic=5", f"panic=5 {slots.WATCHDOG}"))
    (root / "proc/cmdline").write_text("root=PARTLABEL=root-b ro")
    counted(node, entry.name)
    monkeypatch.setattr(slot_trial, "judge", lambda host: reasons)
    return entry


def test_a_good_boot_is_recorded_and_loses_the_watchdog(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = trying(node, monkeypatch, [])
    assert slot_trial.good(node) == (True, "image cpu-bbb is good")
    assert (
        "panic=5\n" in entry.read_text()
    )  # systemd-bless-boot takes the counter away, nobody else
    assert slots.known(node, "/efi", "b")["good"] is True
    assert slots.history(node, "/efi")[-1]["event"] == slots.GOOD


def test_good_boot_loses_its_counter_before_systemd_renames_the_entry(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slots.bless(node) is None, "this boot counted no entry"
    entry = trying(node, monkeypatch, [])
    slot_trial.good(node)
    text = entry.read_text()
    assert slots.bless(node) == "entry goldnode-bbb-b.conf has no counter any more"
    assert listing(node) == {"goldnode-aaa-a.conf", "goldnode-bbb-b.conf"}
    assert entry.with_name("goldnode-bbb-b.conf").read_text() == text
    assert reported(node)["slots"]["b"]["state"] == slots.GOOD
    assert slots.bless(node) is None


def test_bad_boot_is_recorded_once_and_its_counter_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = trying(node, monkeypatch, ["modules.dummy: missing", "unit ssh.service: failed"])
    fine, text = slot_trial.good(node)
    assert not fine
    assert "modules.dummy: missing; unit ssh.service: failed" in text
    assert (
        slots.failed(node) == "modules.dummy: missing; unit ssh.service: failed"
    )  # said once, not twice
    rows = slots.history(node, "/efi")
    assert [(row["event"], row["image"], row["slot"]) for row in rows] == [
        (slots.FAILED, "cpu-bbb", "b")
    ]
    assert entry.exists()


def test_a_blessed_boot_is_never_judged(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_trial, "judge", lambda host: ["it should not be asked"])
    assert slot_trial.good(node)[0]
    counted(node, "goldnode-aaa-a+2-1.conf")  # this boot was tried, and its entry was renamed since
    assert slot_trial.good(node)[0]
    assert slots.failed(node) == "this boot tries no image"
    assert slots.history(node, "/efi") == []


def other(node: Node, monkeypatch: pytest.MonkeyPatch, reasons: list[str]) -> Path:
    """This boot tries a version that systemd-sysupdate has installed, and its check reports this."""
    root = Path(node.root)
    (root / "proc/cmdline").write_text("root=PARTLABEL=cpu_20261130.0004 ro")
    entry = root / ENTRIES / "cpu_20261130.0004+2-1.conf"
    entry.write_text("title other\nlinux /goldnode/a/vmlinuz\n")
    counted(node, entry.name)
    monkeypatch.setattr(slot_trial, "judge", lambda host: reasons)
    return entry


def test_version_that_another_program_has_installed_is_judged(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    other(node, monkeypatch, ["modules.dummy: missing"])
    assert slot_trial.good(node) == (
        False,
        "the image on trial is not good: modules.dummy: missing",
    )
    entry = other(node, monkeypatch, [])
    assert slot_trial.good(node) == (True, "the image on trial is good")
    other(node, monkeypatch, ["it should not be asked"])
    entry.rename(entry.with_name("cpu_20261130.0004.conf"))  # systemd-bless-boot has done so
    assert slot_trial.good(node) == (True, "this boot tries no image")
    (Path(node.root) / "efi").rename(Path(node.root) / "elsewhere")
    assert slot_trial.good(node)[0] is False
    assert slots.history(node, "/elsewhere") == []


def test_without_the_esp_a_boot_that_is_tried_is_not_good(node: Node) -> None:
    counted(node, "goldnode-aaa-a+2-1.conf")
    (Path(node.root) / "efi").rename(Path(node.root) / "elsewhere")
    fine, text = slot_trial.good(node)
    assert not fine
    assert "the ESP is not mounted" in text


def comes_up(node: Node, file: str, text: str) -> None:
    """This boot started a good image of slot a with retries, by the entry that systemd-boot has counted."""
    root = Path(node.root)
    for path in (root / ENTRIES).iterdir():
        path.unlink()
    (root / ENTRIES / file).write_text(text)
    (root / "proc/cmdline").write_text(f"root=PARTLABEL=root-a ro panic=5 {boot.ARMED}\n")
    counted(node, file)


def test_good_image_gets_retries_at_each_boot_that_comes_up(node: Node) -> None:
    """The first boot has no counter; later ones have, and systemd-bless-boot has removed it."""
    root = Path(node.root)
    text = (root / ENTRIES / "goldnode-aaa-a.conf").read_text()
    assert slots.arm(node) == "image cpu-aaa in slot a has 3 tries from here on"
    assert listing(node) == {"goldnode-aaa-a+3.conf"}
    entry = root / ENTRIES / "goldnode-aaa-a+3.conf"
    assert entry.read_text() == text.replace("panic=5", f"panic=5 {boot.ARMED}")
    found = reported(node)
    assert (found["tried"], found["next"], found["slots"]["a"]["state"]) == (None, "a", slots.GOOD)
    assert slots.arm(node) is None
    comes_up(node, "goldnode-aaa-a+2-1.conf", entry.read_text())
    assert slot_trial.good(node) == (True, "this boot tries no image")
    entry.with_name("goldnode-aaa-a+2-1.conf").rename(entry.with_name("goldnode-aaa-a.conf"))
    assert slots.arm(node) is not None
    assert listing(node) == {"goldnode-aaa-a+3.conf"}
    assert slots.history(node, "/efi") == []


@pytest.mark.parametrize(("file", "lost"), [("+1-2", "the boot"), ("+0-3", "2 boots")])
def test_boots_of_a_good_image_that_did_not_come_up_are_recorded(
    node: Node, file: str, lost: str
) -> None:
    text = (Path(node.root) / ENTRIES / "goldnode-aaa-a.conf").read_text()
    text = text.replace("panic=5", f"panic=5 {boot.ARMED}")
    comes_up(node, f"goldnode-aaa-a{file}.conf", text)
    assert reported(node)["slots"]["a"]["state"] == slots.GOOD  # with its last retry, too
    assert slot_trial.good(node)[0]
    (row,) = slots.history(node, "/efi")
    assert (row["event"], row["slot"]) == (slots.RETRIED, "a")
    assert row["reason"].startswith(f"{lost} before this one did not come up")
    assert slots.failed(node).startswith(
        "the boot did not complete"
    )  # emergency mode, with the reason


def test_good_image_that_no_longer_comes_up_is_a_fallback(node: Node) -> None:
    hold(Path(node.root), "b", 2, "goldnode-bbb-b+0-3.conf")
    entry = Path(node.root) / ENTRIES / "goldnode-bbb-b+0-3.conf"
    entry.write_text(entry.read_text().replace("panic=5", f"panic=5 {boot.ARMED}"))
    found = reported(node)
    assert (found["slots"]["b"]["state"], found["next"]) == (slots.FAILED, "a")
    assert "in slot b was good, and no longer comes up (3 tries): it left no reason" in str(
        found["fallback"]
    )


def test_image_on_trial_gets_no_retries(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = trying(node, monkeypatch, [])
    assert slots.arm(node) is None
    assert entry.exists()
    # `slot back` to the slot that runs would wait for its trial like this, too.
    (Path(node.root) / boot.VARIABLES.lstrip("/") / f"LoaderBootCountPath-{boot.VENDOR}").unlink()
    assert slots.arm(node) is None


def test_way_back_to_an_image_with_retries_is_a_trial(node: Node) -> None:
    slots.arm(node)
    root = Path(node.root)
    hold(root, "b", 2, "goldnode-bbb-b.conf")
    (root / "proc/cmdline").write_text("root=PARTLABEL=root-b ro")
    slots.back(node)
    text = (root / ENTRIES / "goldnode-aaa-a+3.conf").read_text()
    assert boot.ARMED not in text
    assert slots.WATCHDOG in text


@contextmanager
def after_another(change: Callable[[], object]) -> Iterator[None]:
    """Have another process change the slots before the next change gets the lock."""
    real, changes = slots.alone, [change]

    @contextmanager
    def alone(host: Host) -> Iterator[None]:
        if changes:
            changes.pop()()
        with real(host):
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "alone", alone)
        patch.setattr(slot_trial, "alone", alone)
        yield


def test_change_of_the_command_line_takes_the_entry_as_another_run_left_it(node: Node) -> None:
    real = slots.arm
    with after_another(lambda: real(node)):
        slots.edit_cmdline(node, ["quiet"], [])
    assert listing(node) == {"goldnode-aaa-a+3.conf"}
    text = (Path(node.root) / ENTRIES / "goldnode-aaa-a+3.conf").read_text()
    assert "linux /goldnode/a/vmlinuz\n" in text
    assert text.splitlines()[-1].endswith(f"{boot.ARMED} quiet")


def test_trial_that_ends_blesses_the_kernel_of_a_package_installed_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, root = trying(node, monkeypatch, []), Path(node.root)
    (root / f"boot/vmlinuz-{NEW}").write_bytes(header(NEW))
    (root / f"boot/initrd.img-{NEW}").write_bytes(b"initramfs of the new kernel")
    with after_another(lambda: slots.sync(node, NEW)):
        assert slot_trial.good(node) == (True, "image cpu-bbb is good")
    fields = loader.fields(entry.read_text())
    assert (root / "efi" / fields["linux"].lstrip("/")).read_bytes() == header(NEW)
    assert slots.WATCHDOG not in fields["options"]
    assert (slots.known(node, "/efi", "b")["kernel"], reported(node)["next"]) == (NEW, "b")


def test_way_back_follows_an_image_that_another_run_has_just_written(node: Node) -> None:
    root = Path(node.root)
    hold(root, "b", 2, "goldnode-bbb-b.conf")
    with after_another(lambda: hold(root, "b", 7, "goldnode-bbb-b.conf", good=True)):
        slots.back(node)
    assert slots.known(node, "/efi", "b")["sequence"] == 8


def test_change_of_slots_waits_for_another_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Path(node.root) / slots.LOCK.lstrip("/")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NodeError, match="another run writes the slots"):  # noqa: SIM117
            with slots.alone(node, wait=0):
                pass
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(held, fcntl.LOCK_UN))
        assert slots.arm(node) is not None


def test_a_check_that_cannot_be_made_is_against_the_image(node: Node) -> None:
    (Path(node.root) / "etc/goldnode/class.json").write_text('{"class": "cpu"}')
    assert slot_trial.judge(node)[0].startswith("the check failed: ")
    (Path(node.root) / "etc/goldnode/class.json").write_text("torn")
    assert "the check failed" in slot_trial.judge(node)[0]


def test_the_esp_follows_the_kernel_of_the_slot_that_runs(node: Node) -> None:
    root = Path(node.root)
    assert slots.stale(node, "/efi", "a") is None
    (root / f"boot/initrd.img-{OLD}").write_text("made anew")
    assert slots.stale(node, "/efi", "a") == f"not as in this root: /boot/initrd.img-{OLD}"
    assert slots.sync(node, OLD) == f"slot a boots {OLD} as it is now"
    assert slots.stale(node, "/efi", "a") is None
    assert slots.sync(node, OLD) is None
    # Another kernel: the entry names it, and what is named no more has gone.
    (root / f"boot/vmlinuz-{NEW}").write_bytes(header(NEW))
    (root / f"boot/initrd.img-{NEW}").write_text("of the new one")
    slots.sync(node, NEW)
    found = reported(node)
    assert (found["slots"]["a"]["kernel"], found["slots"]["a"]["state"], found["next"]) == (
        NEW,
        slots.GOOD,
        "a",
    )
    assert listing(node) == {"goldnode-aaa-a.conf"}
    assert len(list((root / "efi/goldnode/a").iterdir())) == 3
    assert (
        "root=PARTLABEL=root-a ro panic=5" in (root / ENTRIES / "goldnode-aaa-a.conf").read_text()
    )


def test_the_root_is_flushed_before_an_entry_names_its_kernel(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else does: depmod writes the index of new modules without fsync."""
    newer(node)
    (Path(node.root) / f"lib/modules/{NEW}").mkdir(parents=True)
    entry = Path(node.root) / ENTRIES / "goldnode-aaa-a.conf"
    before, real = entry.read_text(), node.run

    def full(*argv: str, **more: Any) -> Result:
        real(*argv)
        assert entry.read_text() == before, "the entry comes last"
        return Result(argv, 1, "", "sync: error syncing '/boot': Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(node, "run", full)
        with pytest.raises(NodeError, match=r"/boot and /lib/modules/.* cannot be flushed .*error"):
            slots.sync(node, NEW)
    assert entry.read_text() == before
    assert node.asked == [("sync", "-f", "/boot", f"/lib/modules/{NEW}")]
    assert slots.sync(node, NEW) is not None


def test_clusters_that_a_power_cut_lost_take_no_room_for_ever(node: Node) -> None:
    """fsck.vfat makes files of them at the next boot."""
    esp = Path(node.root) / "efi"
    for name in ("FSCK0000.REC", "fsck0012.rec", "FSCK0001.REC.txt", "site.rec"):
        (esp / name).write_bytes(b"lost")
    newer(node)
    slots.sync(node, NEW)
    assert {path.name for path in esp.iterdir() if path.is_file()} == {
        "FSCK0001.REC.txt",
        "site.rec",
    }


@pytest.mark.skipif(
    not all(map(shutil.which, ("fsck.vfat", "mkfs.vfat", "mcopy"))),
    reason="needs dosfstools and mtools",
)
def test_names_of_lost_clusters_are_those_of_fsck(node: Node, tmp_path: Path) -> None:
    volume, lost = tmp_path / "esp.img", tmp_path / "LOST"
    volume.touch()
    os.truncate(volume, 40 << 20)
    lost.write_bytes(b"a kernel" * 4096)

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("mkfs.vfat", "-F", "32", "-s", "1", volume).returncode == 0
    assert run("mcopy", "-i", volume, lost, "::/LOST").returncode == 0
    content = volume.read_bytes()
    row = content.index(b"LOST       ")  # its directory entry did not reach the disk
    volume.write_bytes(content[:row] + bytes(32) + content[row + 32 :])
    done = run("fsck.vfat", "-a", volume)
    assert (done.returncode, "Reclaimed" in done.stdout) == (1, True), done
    (name,) = run("mdir", "-b", "-i", volume, "::/").stdout.split()
    assert run("mcopy", "-i", volume, name, Path(node.root) / "efi").returncode == 0
    assert (Path(node.root) / "efi" / name.rpartition("/")[2]).read_bytes() == lost.read_bytes()
    newer(node)
    slots.sync(node, NEW)
    assert [path.name for path in (Path(node.root) / "efi").iterdir() if path.is_file()] == []


def test_a_kernel_without_an_initramfs_is_not_booted(node: Node) -> None:
    (Path(node.root) / f"boot/vmlinuz-{NEW}").write_bytes(header(NEW))
    before = (Path(node.root) / ENTRIES / "goldnode-aaa-a.conf").read_text()
    with pytest.raises(NodeError, match=r"initrd.img-.*not there"):
        slots.sync(node, NEW)
    assert (Path(node.root) / ENTRIES / "goldnode-aaa-a.conf").read_text() == before


@pytest.mark.parametrize("at", range(4))
def test_a_power_cut_while_the_esp_is_written_leaves_an_entry_that_boots(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The entry names a kernel and an initramfs that are there, whichever file was the last to be written."""
    root = Path(node.root)
    (root / f"boot/vmlinuz-{NEW}").write_bytes(header(NEW))
    (root / f"boot/initrd.img-{NEW}").write_text("of the new one")
    real, calls = os.replace, []

    def cut(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) > at:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            slots.sync(node, NEW)
    (entry,) = [item for item in loader.entries(node, "/efi") if item.bootable]
    for key in ("linux", "initrd"):
        assert (root / "efi" / entry.fields[key].lstrip("/")).stat().st_size
    slots.sync(node, NEW)
    assert reported(node)["slots"]["a"]["kernel"] == NEW
    assert not list((root / "efi").rglob("*.new"))


def newer(node: Node) -> None:
    """A kernel with its initramfs that the slot that runs does not boot yet."""
    (Path(node.root) / f"boot/vmlinuz-{NEW}").write_bytes(header(NEW))
    (Path(node.root) / f"boot/initrd.img-{NEW}").write_text("of the new one")


def watched(monkeypatch: pytest.MonkeyPatch, node: Node, step: Any) -> None:
    """Have `step` called with every call that changes the ESP, or flushes or reads back what is on it, before it is made."""
    root = f"{node.root}/efi/"

    def after(real: Any, name: str) -> Any:
        def call(what: Any, *more: Any) -> Any:
            path = (
                str(Path(f"/proc/self/fd/{what}").readlink())
                if isinstance(what, int)
                else str(what)
            )
            if path.startswith(root):
                step(
                    " ".join(
                        [
                            name,
                            path.replace(root, ""),
                            *(str(word).replace(root, "") for word in more),
                        ]
                    )
                )
            return real(what, *more)

        return call

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, after(getattr(os, name), name))
    monkeypatch.setattr(slots, "reread", after(slots.reread, "reread"), raising=False)


def test_a_file_of_the_esp_is_replaced_in_this_order(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy: data, rename, directory entry, directory, and what is read back; and only then the other copy goes, first its name."""
    steps: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(slots, "reread", getattr(slots, "reread", None), raising=False)
        watched(patch, node, steps.append)
        slots.put(node, "/efi/loader/entries/goldnode-aaa-a.conf", b"title new\n")
    folder = "loader/entries"

    def written(name: str) -> list[str]:
        here = f"{folder}/{name}"
        return [
            f"fsync {here}.new",
            f"replace {here}.new {here}",
            f"fsync {here}",
            f"fsync {folder}",
            f"reread {here}",
        ]

    gone = f"{folder}/goldnode-aaa-new-a.conf"
    assert steps == [
        *written("goldnode-aaa-new-a.conf"),
        *written("goldnode-aaa-a.conf"),
        f"replace {gone} {gone}.old",
        f"fsync {folder}",
        f"unlink {gone}.old",
        f"fsync {folder}",
    ]


@pytest.mark.parametrize("verb", ["sync", "words", "back", "good", "bless"])
def test_a_run_that_ends_at_any_step_leaves_a_whole_slot_and_can_be_repeated(
    node: Node, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    root = Path(node.root)
    newer(node)
    if verb in ("good", "bless"):
        trying(node, monkeypatch, [])
    else:
        hold(root, "b", 0, "goldnode-bbb-b.conf")
    before = {path: path.read_bytes() for path in (root / "efi").rglob("*") if path.is_file()}
    runs: dict[str, Callable[[], object]] = {
        "sync": lambda: slots.sync(node, NEW),
        "words": lambda: slots.edit_cmdline(node, ["quiet"], []),
        "back": lambda: slots.back(node),
        "good": lambda: slot_trial.good(node),
        "bless": lambda: slots.bless(node),
    }
    mine = "b" if verb in ("good", "bless") else "a"
    for at in itertools.count():
        for path in (root / "efi").rglob("*"):
            if path.is_file():
                path.unlink()
        for path, content in before.items():
            path.write_bytes(content)
        left = [at]

        def step(text: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt(text)

        with monkeypatch.context() as patch:
            watched(patch, node, step)
            try:
                runs[verb]()
                over = True
            except KeyboardInterrupt:
                over = False
        entries = loader.entries(node, "/efi")
        own = slots.of_slot(entries, mine)[0]
        assert own.bootable, at
        assert own.fields["options"].startswith(f"root=PARTLABEL=root-{mine} ro panic=5"), at
        for key in ("linux", "initrd"):
            assert (root / "efi" / own.fields[key].lstrip("/")).stat().st_size, at
        if verb == "back":
            assert slots.of_slot(entries, "b")[0].bootable, at
        assert slots.known(node, "/efi", mine)["name"] == f"cpu-{mine * 3}", at
        if over:
            break
        runs[verb]()
        assert not [
            path
            for path in (root / "efi/loader").rglob("*")
            if path.suffix in (".new", ".old") or "-new-" in path.name
        ], at
        assert len(slots.of_slot(loader.entries(node, "/efi"), mine)) == 1, at
    assert at > 8


def test_a_disk_that_loses_what_it_is_given_is_an_error_and_the_entry_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vfat does for as long as a renamed file is not flushed: its name is there, and nothing in it."""
    newer(node)
    before, real = (Path(node.root) / ENTRIES / "goldnode-aaa-a.conf").read_text(), os.replace

    def empty(source: str, target: str) -> None:
        real(source, target)
        os.truncate(target, 0)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", empty)
        with pytest.raises(
            NodeError, match=r"cannot be written: the disk does not hold what was written.*dmesg"
        ):
            slots.sync(node, NEW)
        with pytest.raises(NodeError, match="cannot be written"):
            slots.edit_cmdline(node, ["quiet"], [])
    assert listing(node) == {"goldnode-aaa-a.conf"}
    assert (Path(node.root) / ENTRIES / "goldnode-aaa-a.conf").read_text() == before
    slots.sync(node, NEW)
    assert reported(node)["slots"]["a"]["kernel"] == NEW


def test_a_kernel_that_a_power_cut_has_emptied_is_not_taken_for_the_one_of_its_name(
    node: Node,
) -> None:
    newer(node)
    name = f"vmlinuz-{hashlib.sha256(header(NEW)).hexdigest()[:12]}"
    torn = Path(node.root) / "efi/goldnode/a" / name
    torn.write_bytes(b"")
    slots.sync(node, NEW)
    (entry,) = slots.of_slot(loader.entries(node, "/efi"), "a")
    assert (Path(node.root) / "efi" / entry.fields["linux"].lstrip("/")).read_bytes() == header(NEW)
    # The running entry's own file is not touched while the entry names it.
    (Path(node.root) / "efi" / entry.fields["linux"].lstrip("/")).write_bytes(b"damaged")
    slots.sync(node, NEW)
    (entry,) = slots.of_slot(loader.entries(node, "/efi"), "a")
    assert (Path(node.root) / "efi" / entry.fields["linux"].lstrip("/")).read_bytes() == header(NEW)


def test_the_second_copy_of_a_run_that_was_cut_off_is_the_one_that_counts(node: Node) -> None:
    root = Path(node.root)
    about_a = root / "efi/goldnode/a/slot.json"
    (root / "efi/goldnode/a/slot.json.next").write_text(about_a.read_text())
    about_a.write_text("")
    entry = root / ENTRIES / "goldnode-aaa-a.conf"
    (root / ENTRIES / "goldnode-aaa-new-a.conf").write_text(entry.read_text())
    entry.write_text("")
    (root / ENTRIES / "GOLDNO~1.CON").write_text("a name of which half is there")
    found = reported(node)
    assert (found["next"], found["slots"]["a"]["state"], found["slots"]["a"]["sequence"]) == (
        "a",
        slots.GOOD,
        1,
    )
    slots.edit_cmdline(node, ["quiet"], [])
    assert listing(node) == {"goldnode-aaa-a.conf"}
    assert "panic=5 quiet" in entry.read_text()


def test_the_way_back_is_tried_like_a_new_image(node: Node) -> None:
    hold(Path(node.root), "b", 0, "goldnode-bbb-b.conf")
    found = slots.back(node)
    assert listing(node) == {"goldnode-aaa-a.conf", "goldnode-bbb-b+3.conf"}
    assert (found["next"], found["slots"]["b"]["sequence"], found["slots"]["b"]["state"]) == (
        "b",
        2,
        slots.TRYING,
    )
    assert slots.WATCHDOG in (Path(node.root) / ENTRIES / "goldnode-bbb-b+3.conf").read_text()
    slots.back(node)  # asked again before the boot, it is the same
    assert reported(node)["next"] == "b"


def test_a_way_back_is_in_the_history_before_anything_boots_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(Path(node.root), "b", 0, "goldnode-bbb-b.conf")

    def cut(*words: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(slots, "put_entry", cut)
        with pytest.raises(KeyboardInterrupt):
            slots.back(node)
    assert [row["event"] for row in slots.history(node, "/efi")] == ["back"]
    assert reported(node)["next"] == "a"


@pytest.mark.parametrize("at", range(3))
def test_a_way_back_that_is_cut_off_can_be_asked_for_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    hold(Path(node.root), "b", 0, "goldnode-bbb-b.conf")
    real, calls = os.replace, []

    def cut(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) > at:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            slots.back(node)
    assert reported(node)["next"] == "a"
    assert slots.back(node)["next"] == "b"


@pytest.mark.parametrize(
    ("entry", "more", "text"),
    [
        (None, {}, "holds no image"),
        ("goldnode-bbb-b+0-3.conf", {}, "was never good"),
        ("goldnode-bbb-b+2-1.conf", {}, "was never good"),
    ],
)
def test_no_way_back_to_what_was_never_good(
    node: Node, entry: str | None, more: dict[str, Any], text: str
) -> None:
    if entry:
        hold(Path(node.root), "b", 2, entry, **more)
    with pytest.raises(NodeError, match=text):
        slots.back(node)


def test_an_esp_without_room_is_reported_before_the_entry_changes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(node.root) / f"boot/initrd.img-{OLD}").write_text("made anew")
    stat = os.statvfs(node.root)
    full = os.statvfs_result((stat.f_bsize, stat.f_frsize, stat.f_blocks, 0, 0, *tuple(stat)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(NodeError, match="0 MiB free"):
        slots.sync(node, OLD)


def test_every_file_of_slots_is_one_that_the_engine_sees() -> None:
    for file in slot_files.files():
        folder, _, name = file.path.rpartition("/")
        assert any(
            folder == place and fnmatchcase(name, pattern) for place, pattern in observe.MANAGED
        ), file.path


# -- writing


ROOT = b"a root file system, as far as this goes" * 100
IMAGE = {
    "schema": slotwrite.SCHEMA,
    "name": "cpu-ccc",
    "class": "cpu",
    "build_id": "ccc",
    "kernel": NEW,
    "options": "root=PARTLABEL=root-a ro panic=5",
    "root": {"size": len(ROOT), "sha256": hashlib.sha256(ROOT).hexdigest()},
    "tries": 3,
    "unverified": None,
}


def stream(image: dict[str, Any] | None = None, content: bytes | None = None) -> io.BytesIO:
    return io.BytesIO(
        json.dumps(image or IMAGE).encode()
        + b"\n"
        + (gzip.compress(ROOT) if content is None else content)
    )


@pytest.fixture
def writing(
    node: Node, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Node:
    """A node on which slot b can be written; what would be mounted is a directory."""
    root = tmp_path_factory.mktemp("root")
    (root / "boot").mkdir()
    (root / f"boot/vmlinuz-{NEW}").write_bytes(header(NEW))
    (root / f"boot/initrd.img-{NEW}").write_text("of the image")
    (root / "etc/goldnode").mkdir(parents=True)
    (root / "etc/goldnode/class.json").write_text('{"class": "cpu", "new": true}')

    @contextmanager
    def place(host: Host, device: str) -> Any:
        yield str(root)

    monkeypatch.setattr(slotwrite, "mounted", place)
    hold(Path(node.root), "b", 0, "goldnode-bbb-b+0-3.conf")
    return node


def test_written_image_ends_the_report_of_a_fallback(writing: Node) -> None:
    hold(Path(writing.root), "b", 2, "goldnode-bbb-b+0-3.conf")
    assert reported(writing)["fallback"]
    slotwrite.write(writing, stream({**IMAGE, "unverified": "a lab"}), lambda text: None, True)
    assert (reported(writing)["fallback"], reported(writing)["next"]) == (None, "b")


def test_an_image_written_by_hand_has_a_signer_or_a_reason(writing: Node) -> None:
    with pytest.raises(NodeError, match="nothing says who signed this image"):
        slotwrite.write(writing, stream(), lambda text: None, True)
    found = slotwrite.write(
        writing, stream({**IMAGE, "unverified": "a lab"}), lambda text: None, True
    )
    assert found["slots"]["b"]["unverified"] == "a lab", "the reason is recorded"


def test_an_image_is_written_and_boots_next(writing: Node) -> None:
    found = slotwrite.write(writing, stream(), lambda text: None)
    assert (found["next"], found["running"]) == ("b", "a")
    assert listing(writing) == {"goldnode-aaa-a.conf", "goldnode-ccc-b+3.conf"}
    row = found["slots"]["b"]
    assert (row["image"], row["sequence"], row["state"], row["kernel"]) == (
        "cpu-ccc",
        2,
        slots.TRYING,
        NEW,
    )
    device = Path(writing.root) / "dev/disk/by-partlabel/root-b"
    assert device.read_bytes()[: len(ROOT)] == ROOT
    options = next(item for item in loader.entries(writing, "/efi") if item.left).fields["options"]
    assert options == f"root=PARTLABEL=root-b ro panic=5 {slots.WATCHDOG}"
    assert [argv[0] for argv in writing.asked] == ["e2fsck", "resize2fs", "e2label"]


DAMAGED = bytearray(gzip.compress(ROOT))
DAMAGED[60] ^= 0xFF


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (stream(content=gzip.compress(ROOT)[:40]), "the stream ended after"),
        (stream(content=bytes(DAMAGED)), "damaged|is not the image"),
        (stream(content=gzip.compress(ROOT + b"more")), "has more than"),
        (stream(content=gzip.compress(ROOT[:-1])), "is not the image"),
        (stream({**IMAGE, "root": {"size": len(ROOT), "sha256": "0" * 64}}), "is not the image"),
        (stream(content=b""), "the stream ended after 0"),
    ],
)
def test_incomplete_image_gets_no_entry_and_can_be_sent_again(
    writing: Node, sent: io.BytesIO, text: str
) -> None:
    with pytest.raises(NodeError, match=text):
        slotwrite.write(writing, io.BytesIO(sent.getvalue()), lambda text: None)
    assert listing(writing) == {"goldnode-aaa-a.conf"}
    assert (reported(writing)["next"], reported(writing)["slots"]["b"]["state"]) == (
        "a",
        slots.EMPTY,
    )
    assert slotwrite.write(writing, stream(), lambda text: None)["next"] == "b"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"class": "a100"}, "is of class a100"),
        ({"root": {"size": 9000, "sha256": "0" * 64}}, "smaller root"),
        ({"schema": "other"}, "not an image of schema"),
        ({"kernel": None}, "not a complete image: kernel"),
        ({"root": {"size": 1}}, "not a complete image: root"),
        ({"build_id": "../x"}, "build_id or tries"),
        ({"tries": 0}, "build_id or tries"),
    ],
)
def test_refused_image_changes_no_file(writing: Node, change: dict[str, Any], text: str) -> None:
    before = {path: path.read_bytes() for path in Path(writing.root).rglob("*") if path.is_file()}
    with pytest.raises(NodeError, match=text):
        slotwrite.write(writing, stream({**IMAGE, **change}), lambda text: None)
    after = {path: path.read_bytes() for path in Path(writing.root).rglob("*") if path.is_file()}
    after.pop(Path(writing.root) / slots.LOCK.lstrip("/"), None)
    assert after == before


def test_a_disk_without_a_second_slot_is_refused(writing: Node) -> None:
    (Path(writing.root) / "dev/disk/by-partlabel/root-b").unlink()
    with pytest.raises(NodeError, match="no second slot"):
        slotwrite.write(writing, stream(), lambda text: None)


def disks(node: Node, **partitions: str) -> None:
    """The disk of `/`, of the ESP and of slot b, as sysfs tells it; what is not named has no partition there."""
    root = Path(node.root)
    rows = ["22 1 0:21 / /efi rw - autofs systemd-1 rw"]
    for what, (place, number) in {
        "root": ("/", "8:2"),
        "esp": ("/efi", "8:1"),
        "slot": ("", "8:3"),
    }.items():
        if place:
            rows.append(f"30 1 {number} / {place} rw - ext4 /dev/root rw")
        if what not in partitions:
            continue
        own = root / f"sys/devices/pci0/block/{partitions[what]}/{partitions[what]}{number[-1]}"
        own.mkdir(parents=True)
        (own / "partition").write_text(number[-1])
        for link in (f"sys/dev/block/{number}", f"sys/class/block/{own.name}"):
            (root / link).parent.mkdir(parents=True, exist_ok=True)
            (root / link).symlink_to(os.path.relpath(own, (root / link).parent))
        if not place:
            (root / "dev/disk/by-partlabel/root-b").rename(root / f"dev/{own.name}")
            (root / "dev/disk/by-partlabel/root-b").symlink_to(f"../../{own.name}")
    (root / "proc/self").mkdir()
    (root / "proc/self/mountinfo").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        ({"root": "sda", "esp": "sda", "slot": "sda"}, None),
        (
            {"root": "sda", "esp": "sda", "slot": "sdb"},
            r"root-b \(/dev/sdb3\) is on disk sdb; / is on disk sda; the ESP at /efi is on disk sda",
        ),
        ({"root": "sda", "esp": "sdb", "slot": "sda"}, "the ESP at /efi is on disk sdb"),
        ({"esp": "sda", "slot": "sdb"}, "is on disk sdb; the ESP"),
        ({"root": "sda", "slot": "sda"}, None),
        ({"root": "sda", "esp": "sda"}, None),  # the slot is of device-mapper
    ],
)
def test_a_slot_is_of_the_disk_that_runs(
    writing: Node, partitions: dict[str, str], text: str | None
) -> None:
    disks(writing, **partitions)
    if text is None:
        assert slotwrite.write(writing, stream(), lambda text: None)["next"] == "b"
        return
    device, before = Path(writing.root) / "dev/disk/by-partlabel/root-b", listing(writing)
    with pytest.raises(NodeError, match=text):
        slotwrite.write(writing, stream(), lambda text: None)
    assert (device.read_bytes(), listing(writing)) == (b"\0" * 8192, before)


@pytest.mark.parametrize("lost", ["initrd.img", "vmlinuz"])
def test_while_the_running_slot_could_not_boot_again_nothing_is_written(
    writing: Node, lost: str
) -> None:
    (Path(writing.root) / "efi/goldnode/a" / lost).write_bytes(b"")
    before = listing(writing)
    with pytest.raises(
        NodeError,
        match=rf"slot a, which runs, could not boot again: /efi/goldnode/a/{lost} is missing or empty",
    ):
        slotwrite.write(writing, stream(), lambda text: None)
    assert listing(writing) == before


def test_while_the_running_image_is_tried_nothing_is_written(writing: Node) -> None:
    (Path(writing.root) / ENTRIES / "goldnode-aaa-a.conf").rename(
        Path(writing.root) / ENTRIES / "goldnode-aaa-a+2-1.conf"
    )
    counted(writing, "goldnode-aaa-a+2-1.conf")
    with pytest.raises(NodeError, match="still tried"):
        slotwrite.write(writing, stream(), lambda text: None)


def test_an_image_of_another_class_inside_gets_no_entry(
    writing: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(writing.root) / "etc/goldnode/class.json").write_text('{"class": "a100"}')
    with pytest.raises(NodeError, match=r"holds /etc/goldnode/class.json of cpu"):
        slotwrite.write(writing, stream({**IMAGE, "class": "a100"}), lambda text: None)
    assert listing(writing) == {"goldnode-aaa-a.conf"}


@pytest.mark.parametrize("wish", ["goldnode-aaa-a.conf", "auto-windows"])
@pytest.mark.parametrize("variable", ["LoaderEntryDefault", "LoaderEntryOneShot"])
def test_a_pending_request_for_another_entry_is_reported(
    writing: Node, variable: str, wish: str
) -> None:
    file = Path(writing.root) / boot.VARIABLES.lstrip("/") / f"{variable}-{boot.VENDOR}"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x06\0\0\0" + f"{wish}\0".encode("utf-16-le"))
    with pytest.raises(
        NodeError, match=f"slot b is written, and does not boot next: {variable} is {wish}"
    ):
        slotwrite.write(writing, stream(), lambda text: None)
    hold(Path(writing.root), "b", 0, "goldnode-ccc-b.conf", good=True)
    with pytest.raises(
        NodeError,
        match=f"slot b has its last good image again, and does not boot next: {variable} is {wish}",
    ):
        slots.back(writing)
    file.unlink()  # as the error says
    assert reported(writing)["next"] == "b"


def test_files_and_users_of_the_node_are_copied_to_the_new_root(tmp_path: Path) -> None:
    here, there = tmp_path / "node", tmp_path / "image"
    rows = {
        "etc/machine-id": "0123",
        "etc/hostname": "gpu07",
        "etc/hosts": "of the node",
        "etc/ssh/ssh_host_ed25519_key": "secret",
        "etc/ssh/ssh_host_ed25519_key.pub": "public",
        "etc/goldnode/class.json": "of the node",
        "etc/goldnode/site.yml": "of the site",
        "etc/goldnode/carry": "# the site's\n/opt/site/*\n/opt/*/con?\n  /opt/*/none\n\n/../etc/passwd\nrelative\n",
        "etc/systemd/network/10-static.network": "address",
        "etc/systemd/network/80-dhcp.network": "of the node",
        "root/.ssh/authorized_keys": "root's",
        "home/ann/.ssh/authorized_keys": "ann's",
        "home/debian/.ssh/authorized_keys": "debian's",
        "var/lib/goldnode/sanity.json": "counters",
        "var/lib/goldnode/state.json": "of the root",
        "opt/site/munge.key": "munge",
        "opt/one/conf/deep": "of one",
        "opt/two/conf": "of two",
        "opt/two/confused": "of nobody",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\ndebian:x:1000:1000::/home/debian:/bin/sh\n",
        "etc/shadow": "root:*:1::::::\nann:!:1::::::\ndebian:!:1::::::\n",
        "etc/group": "root:x:0:\nsudo:x:27:ann,debian\nann:x:1001:\ndebian:x:1000:\n",
    }
    image = {
        "etc/machine-id": "uninitialized",
        "etc/hosts": "of the image",
        "etc/goldnode/class.json": "of the image",
        "etc/systemd/network/80-dhcp.network": "of the image",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\ndebian:x:1000:1000::/home/debian:/bin/sh\n",
        "etc/shadow": "root:*:1::::::\ndebian:!:1::::::\n",
        "etc/group": "root:x:0:\nsudo:x:27:debian\ndebian:x:1000:\n",
        "var/lib/goldnode/state.json": "of the image",
    }
    for root, files in ((here, rows), (there, image)):
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    (here / "etc/ssh/ssh_host_ed25519_key").chmod(0o600)
    (there / "etc/shadow").chmod(0o640)
    if not os.geteuid():  # nobody else can give a file to another group
        os.chown(there / "etc/shadow", 0, 42)
    shadow = (there / "etc/shadow").stat()
    reported: list[str] = []
    slotwrite.carry(Host(str(here), live=True), str(there), reported.append)

    def at(name: str) -> str:
        return (there / name).read_text()

    for name in (
        "etc/machine-id",
        "etc/hostname",
        "etc/ssh/ssh_host_ed25519_key",
        "etc/goldnode/site.yml",
        "root/.ssh/authorized_keys",
    ):
        assert at(name) == rows[name], name
    for name in (
        "var/lib/goldnode/sanity.json",
        "opt/site/munge.key",
        "etc/systemd/network/10-static.network",
        "etc/goldnode/carry",
    ):
        assert at(name) == rows[name], name
    for name in ("opt/one/conf/deep", "opt/two/conf"):
        assert at(name) == rows[name], name
    assert not (there / "opt/two/confused").exists()
    assert [line.partition("`")[2].partition("`")[0] for line in reported] == [
        "/../etc/passwd",
        "relative",
        "/opt/*/none",
    ]
    for name in (
        "etc/hosts",
        "etc/goldnode/class.json",
        "etc/systemd/network/80-dhcp.network",
        "var/lib/goldnode/state.json",
    ):
        assert at(name) == image[name], name
    assert (there / "etc/ssh/ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
    assert at("etc/passwd") == image["etc/passwd"] + "ann:x:1001:1001::/home/ann:/bin/sh\n"
    assert at("etc/shadow").endswith("ann:!:1::::::\n")
    after = (there / "etc/shadow").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        shadow.st_mode,
        shadow.st_uid,
        shadow.st_gid,
    )
    assert at("etc/group") == "root:x:0:\nsudo:x:27:debian,ann\ndebian:x:1000:\nann:x:1001:\n"
    assert (at("home/ann/.ssh/authorized_keys"), at("home/debian/.ssh/authorized_keys")) == (
        "ann's",
        "debian's",
    )


def test_a_home_that_root_cannot_read_is_reported_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "node", tmp_path / "image"
    for name in ("etc/passwd", "home/ann/.ssh/authorized_keys", "home/bob/.ssh/authorized_keys"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(
            f"ann:x:1001:1001::/home/ann:/bin/sh\nbob:x:1002:1002::/home/bob:/bin/sh\n{name}"
        )
    (there / "etc").mkdir(parents=True)
    (there / "etc/passwd").write_text("")

    def squashed(real: Any) -> Any:
        def call(name: Any, *more: Any, **options: Any) -> Any:
            if str(name).startswith(str(here / "home/ann/")):
                raise PermissionError(13, "Permission denied", name)
            return real(name, *more, **options)

        return call

    monkeypatch.setattr(os, "stat", squashed(os.stat))
    monkeypatch.setattr(builtins, "open", squashed(open))
    reported: list[str] = []
    taken = slotwrite.carry(Host(str(here), live=True), str(there), reported.append)
    monkeypatch.undo()
    assert taken == ["/etc/passwd", "/home/bob/.ssh/authorized_keys"]
    (line,) = reported
    assert line.startswith(
        "/home/ann/.ssh/authorized_keys of ann is not carried over: Permission denied"
    )


def test_every_carried_path_is_absolute_and_has_a_reason() -> None:
    for row in slotwrite.CARRIED:
        assert row.pattern.startswith("/"), row
        assert len(row.why) > 8, row


@pytest.mark.parametrize(
    ("states", "seconds", "found"),
    [
        pytest.param([("active", "running")], 0, [], id="up"),
        pytest.param(
            [("activating", "auto-restart"), ("failed", "failed")],
            1,
            ["unit ssh.service: failed (exit-code)"],
            id="between-starts",
        ),
        pytest.param([("activating", "start"), ("active", "running")], 1, [], id="slow"),
        pytest.param(
            [("activating", "auto-restart")],
            180,
            ["unit ssh.service: still activating (auto-restart) after 90 s"],
            id="never-settles",
        ),
    ],
)
def test_a_unit_is_judged_when_it_has_settled(
    monkeypatch: pytest.MonkeyPatch, states: list[tuple[str, str]], seconds: int, found: list[str]
) -> None:
    clock, left = [0.0], list(states)

    def units(host: Host, names: Any) -> dict[str, dict[str, str]]:
        active, below = left.pop(0) if len(left) > 1 else left[0]
        return {"ssh.service": {"ActiveState": active, "SubState": below, "Result": "exit-code"}}

    def sleep(how_long: float) -> None:
        clock[0] += max(how_long, 1)

    monkeypatch.setattr("goldnode.node.ground.systemd.units", units)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", sleep)
    assert (
        slot_trial.failed_units(Host("/nowhere"), {"health": {"baseline": {"services": ["ssh"]}}})
        == found
    )
    assert clock[0] <= seconds


# Two disks of one image in one machine: what the firmware booted, what is mounted, and what has the same name

GUIDS = {
    "esp": "11111111-2222-3333-4455-66778899aabb",
    "root-a": "21111111-2222-3333-4455-66778899aabb",
}
OTHER = {name: f"f{guid[1:]}" for name, guid in GUIDS.items()}  # as a person gave the copy


def machine(
    node: Node, *, root: str, esp: str, boot_guid: str | None = GUIDS["esp"], **disks_: Any
) -> None:
    """A disk image that runs, with the disks of the machine: name -> GUIDs of its partitions by label."""
    base = Path(node.root)
    (base / boot.LAYOUT.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (base / boot.LAYOUT.lstrip("/")).write_text("ab\n")
    (base / "run/udev/data").mkdir(parents=True, exist_ok=True)
    numbers = {}
    for major, (name, parts) in enumerate((disks_ or {"vda": GUIDS}).items(), 253):
        for minor, (label, guid) in enumerate(parts.items(), 1):
            part, number = f"{name}{minor}", f"{major}:{minor}"
            own = base / f"sys/devices/pci0/block/{name}/{part}"
            own.mkdir(parents=True)
            (own / "partition").write_text(str(minor))
            (own / "dev").write_text(f"{number}\n")
            for link in (f"sys/dev/block/{number}", f"sys/class/block/{part}"):
                (base / link).parent.mkdir(parents=True, exist_ok=True)
                (base / link).symlink_to(os.path.relpath(own, (base / link).parent))
            rows = f"S:disk/by-partlabel/{label}\nE:ID_PART_ENTRY_NAME={label}\nE:ID_PART_ENTRY_UUID={guid}\n"
            (base / f"run/udev/data/b{number}").write_text(rows)
            numbers[part] = number
        holders = base / f"sys/class/block/{name}"
        holders.symlink_to(f"../../devices/pci0/block/{name}")
    lines = [
        f"22 1 {numbers[root]} / / rw - ext4 /dev/root rw",
        "23 22 0:21 / /efi rw - autofs systemd-1 rw",
        f"30 22 {numbers[esp]} / /efi rw - vfat /dev/{esp} rw",
    ]
    (base / "proc/self").mkdir(exist_ok=True)
    (base / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    if boot_guid is not None:
        place = base / boot.VARIABLES.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        data = f"{boot_guid.upper()}\0".encode("utf-16-le")
        (place / f"LoaderDevicePartUUID-{boot.VENDOR}").write_bytes(b"\6\0\0\0" + data)


TWO: dict[str, tuple[dict[str, Any], str | None]] = {
    "one disk": ({"root": "vda2", "esp": "vda1"}, None),
    "a data disk beside it": (
        {"root": "vda2", "esp": "vda1", "vda": GUIDS, "vdb": {"data": "9"}},
        None,
    ),
    "the ESP of the other of two equal disks": (
        {"root": "vdb2", "esp": "vda1", "vda": GUIDS, "vdb": GUIDS},
        "/ is on disk vdb, and the ESP at /efi on disk vda",
    ),
    "two equal disks, one of them is used": (
        {"root": "vdb2", "esp": "vdb1", "vda": GUIDS, "vdb": GUIDS},
        f"vda1 and vdb1 have the GUID of the partition that the firmware booted ({GUIDS['esp']}): nothing "
        "distinguishes them",
    ),
    "the other disk has GUIDs of its own, and was mounted": (
        {"root": "vda2", "esp": "vda1", "vda": OTHER, "vdb": GUIDS},
        "the firmware booted from vdb1, and the ESP at /efi is another partition, on disk vda",
    ),
    "the other disk has GUIDs of its own, and the same names": (
        {"root": "vdb2", "esp": "vdb1", "vda": OTHER, "vdb": GUIDS},
        "vda1 and vdb1 are all named esp: which of them the next boot uses is left to chance",
    ),
    "no variable, the same names": (
        {"root": "vda2", "esp": "vda1", "boot_guid": None, "vda": GUIDS, "vdb": OTHER},
        "vda1 and vdb1 are all named esp: which of them the next boot uses is left to chance",
    ),
    "names and GUIDs of its own": (
        {"root": "vda2", "esp": "vda1", "vda": GUIDS, "vdb": {"old-esp": "1", "old-root-a": "2"}},
        None,
    ),
}


@pytest.mark.parametrize("case", TWO)
def test_root_esp_and_booted_partition_are_of_one_disk(node: Node, case: str) -> None:
    given, reason = TWO[case]
    machine(node, **given)
    assert bootdisk.astray(node) == reason
    seen = Observed()
    slot_files.observe(node, NO_CLASS, seen)
    (finding,) = [row for row in slot_files.findings(NO_CLASS, seen) if row.id == "boot.disk"]
    assert (
        (finding.outcome, finding.got) == ("mismatch", reason)
        if reason
        else (finding.outcome == "match")
    )


@pytest.mark.parametrize("what", ["write", "back", "sync", "cmdline", "good", "failed"])
def test_while_the_disks_do_not_agree_the_esp_is_not_touched(writing: Node, what: str) -> None:
    given, reason = TWO["the ESP of the other of two equal disks"]
    machine(writing, **given)
    counted(writing, "goldnode-aaa-a.conf")
    before = {
        path: path.read_bytes()
        for path in (Path(writing.root) / "efi").rglob("*")
        if path.is_file()
    }
    work: dict[str, Callable[[], object]] = {
        "write": lambda: slotwrite.write(writing, stream(), lambda text: None),
        "back": lambda: slots.back(writing),
        "sync": lambda: slots.sync(writing),
        "cmdline": lambda: slots.edit_cmdline(writing, ["quiet"], []),
    }
    if what == "good":
        fine, text = slot_trial.good(writing)
        assert not fine
        assert str(reason) in text
    elif what == "failed":
        assert (
            str(reason) in slots.failed(writing)
            or slots.failed(writing) == "this boot tries no image"
        )
    else:
        with pytest.raises(NodeError) as refused:
            work[what]()
        assert "wipefs --all" in str(refused.value)
        assert "Nothing was written" in str(refused.value)
    after = {
        path: path.read_bytes()
        for path in (Path(writing.root) / "efi").rglob("*")
        if path.is_file()
    }
    assert after == before


def test_the_remedy_ends_the_finding(node: Node) -> None:
    """New names and GUIDs for the other disk, as `sfdisk` writes them and udev reads them."""
    machine(node, root="vdb2", esp="vdb1", vda=GUIDS, vdb=GUIDS)
    assert bootdisk.astray(node) is not None
    for minor in (1, 2):
        path = Path(node.root) / f"run/udev/data/b253:{minor}"
        path.write_text(f"E:ID_PART_ENTRY_NAME=old{minor}\nE:ID_PART_ENTRY_UUID=abcd{minor}\n")
    assert bootdisk.astray(node) is None


def test_disks_of_one_image_with_grub_are_reported_though_the_root_is_of_the_booted_one(
    node: Node,
) -> None:
    machine(node, root="vda2", esp="vda1", vda=GUIDS, vdb=OTHER)
    base = Path(node.root)
    (base / boot.LAYOUT.lstrip("/")).write_text("single\n")
    (base / bootdisk.BINDING.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (base / bootdisk.BINDING.lstrip("/")).write_text("disk=vda\nby=loader\n")
    for number in ("253:2", "254:2"):
        with (base / f"run/udev/data/b{number}").open("a") as opened:
            opened.write("E:ID_FS_UUID=abcd-12\n")
    seen = Observed()
    slot_files.observe(node, NO_CLASS, seen)
    (finding,) = [row for row in slot_files.findings(NO_CLASS, seen) if row.id == "boot.disk"]
    assert finding.outcome == "mismatch"
    assert "vda2 and vdb2 have the file system UUID abcd-12, by which GRUB" in str(finding.got)
    assert bootdisk.astray(node) is None, "the identity of the disk can be completed"
    (base / boot.LAYOUT.lstrip("/")).write_text("ab\n")
    assert bootdisk.shared_filesystem(node) is None
    (base / boot.LAYOUT.lstrip("/")).write_text("single\n")
    (base / "run/udev/data/b254:2").write_text("E:ID_FS_UUID=other\n")
    assert bootdisk.shared_filesystem(node) is None


def test_paths_of_a_multipath_device_and_loops_are_no_second_disk(node: Node) -> None:
    machine(node, root="vda2", esp="vda1", vda=GUIDS, vdb=GUIDS, loop0=GUIDS)
    holder = Path(node.root) / "sys/devices/pci0/block/vdb/holders/dm-0"
    holder.mkdir(parents=True)
    assert bootdisk.astray(node) is None


def test_machines_of_another_origin_and_without_udev_are_not_judged(node: Node) -> None:
    machine(node, root="vdb2", esp="vda1", vda=GUIDS, vdb=GUIDS)
    (Path(node.root) / boot.LAYOUT.lstrip("/")).unlink()
    assert bootdisk.astray(node) is None
    assert bootdisk.observed(node) is None
    (Path(node.root) / boot.LAYOUT.lstrip("/")).write_text("single\n")
    for path in (Path(node.root) / "run/udev/data").iterdir():
        path.unlink()
    seen = Observed()
    slot_files.observe(node, NO_CLASS, seen)
    (finding,) = [row for row in slot_files.findings(NO_CLASS, seen) if row.id == "boot.disk"]
    assert (finding.id, finding.outcome) == ("boot.disk", "mismatch")  # sysfs alone shows it
    machine_root = Path(node.root) / "proc/self/mountinfo"
    machine_root.write_text(
        "22 1 254:2 / / rw - ext4 /dev/root rw\n30 22 254:1 / /efi rw - vfat /dev/vdb1 rw\n"
    )
    slot_files.observe(node, NO_CLASS, seen)
    (finding,) = [row for row in slot_files.findings(NO_CLASS, seen) if row.id == "boot.disk"]
    assert (finding.outcome, finding.got) == (
        "not_verified_here",
        "udev's database (/run/udev/data) has no partition",
    )


def load_option(*nodes: bytes, description: str = "debian") -> bytes:
    """An EFI_LOAD_OPTION (UEFI 2.10, 3.1.3): attributes, length of the path, description, path."""
    path = b"".join(nodes) + b"\x7f\xff\x04\x00"
    return (
        b"\x01\0\0\0"
        + len(path).to_bytes(2, "little")
        + f"{description}\0".encode("utf-16-le")
        + path
    )


HD = (  # a hard drive node: partition 1, start, size, GUID in its mixed order, GPT
    b"\x04\x01\x2a\x00" + b"\x01\0\0\0" + bytes(16) + uuid.UUID(GUIDS["esp"]).bytes_le + b"\x02\x02"
)
FILE = b"\x04\x04\x0a\x00" + "\\a\0".encode("utf-16-le")


@pytest.mark.parametrize(
    ("option", "guid"),
    [
        (load_option(HD, FILE), GUIDS["esp"]),
        (
            load_option(b"\x02\x01\x0c\x00" + bytes(8), b"\x01\x01\x06\x00\x00\x03", HD),
            GUIDS["esp"],
        ),
        (load_option(HD, description="a\u0100b"), GUIDS["esp"]),  # a zero byte at an odd place
        (
            load_option(b"\x02\x01\x0c\x00" + bytes(8)),
            None,
        ),  # the whole disk: an entry of the firmware's own
        (load_option(HD[:41] + b"\x01"), None),  # MBR
        (load_option(HD[:20]), None),
        (b"", None),
        (b"\x01\0\0\0\xff\xff" + b"a\0" * 9, None),
        (load_option(b"\x04\x01\x00\x00"), None),  # a length that does not move
    ],
)
def test_the_booted_partition_of_a_boot_entry(node: Node, option: bytes, guid: str | None) -> None:
    machine(node, root="vda2", esp="vda1", boot_guid=None)
    place = Path(node.root) / boot.VARIABLES.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    (place / f"BootCurrent-{bootdisk.GLOBAL}").write_bytes(b"\6\0\0\0\x0a\0")
    (place / f"Boot000A-{bootdisk.GLOBAL}").write_bytes(b"\7\0\0\0" + option)
    assert bootdisk.booted(node) == guid


def record(node: Node, by: str, disk: str = "vda", **links: str) -> None:
    """What the initramfs leaves: a record of the booted disk, and udev's links to its partitions."""
    base = Path(node.root)
    (base / "run/goldnode").mkdir(parents=True, exist_ok=True)
    (base / bootdisk.BINDING.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (base / bootdisk.BINDING.lstrip("/")).write_text(
        f"disk={disk}\nnumber=253:0\nguid={GUIDS['esp']}\nby={by}\n"
    )
    for label, target in links.items():
        path = base / f"{bootdisk.LINKS.lstrip('/')}/{label.replace('_', '-')}"
        path.parent.mkdir(parents=True, exist_ok=True)
        (base / f"dev/{target}").write_bytes(b"")
        path.symlink_to(f"../{target}")


@pytest.mark.parametrize(
    ("by", "bound"),
    [
        ("loader", True),
        ("command line", True),
        ("firmware", True),
        ("label", False),
        ("chance", False),
    ],
)
def test_equal_labels_are_no_fault_where_the_initramfs_took_the_booted_disk(
    node: Node, by: str, bound: bool
) -> None:
    machine(node, root="vda2", esp="vda1", vda=GUIDS, vdb=OTHER)
    record(node, by)
    assert (bootdisk.astray(node) is None) == bound
    seen = Observed()
    slot_files.observe(node, NO_CLASS, seen)
    (finding,) = [row for row in slot_files.findings(NO_CLASS, seen) if row.id == "boot.disk"]
    assert finding.expected == f"root, ESP and the booted partition are on one disk, vda (by {by})"
    assert (finding.got == finding.expected) == bound


def test_first_boot_compares_with_the_disk_that_the_initramfs_found(node: Node) -> None:
    # The loader still reports the GUID that the disk had as built, which no partition has any more.
    machine(node, root="vda2", esp="vda1", boot_guid="0" * 36, vda=GUIDS, vdb=OTHER)
    record(node, "loader", disk="vdb")
    reason = "the initramfs found the booted ESP on disk vdb, and / is on disk vda"
    assert bootdisk.astray(node) == reason
    record(node, "loader")
    assert bootdisk.astray(node) is None


def test_other_slot_is_that_of_the_booted_disk(node: Node) -> None:
    assert bootdisk.device(node, "root-b") == "/dev/disk/by-partlabel/root-b"
    record(node, "loader", root_b="vda3")
    assert bootdisk.device(node, "root-b") == "/dev/goldnode/root-b"
    assert bootdisk.device(node, "root-c") is None


def test_entry_of_the_running_slot_gets_the_guid_of_its_esp(node: Node) -> None:
    assert slots.name_disk(node) is None, "udev does not know it"
    machine(node, root="vda2", esp="vda1", vda=GUIDS)
    word = f"goldnode.disk={GUIDS['esp']}"
    assert slots.name_disk(node) == word
    entry = Path(node.root) / ENTRIES / "goldnode-aaa-a.conf"
    before = entry.read_text()
    assert before.splitlines()[-1] == f"options root=PARTLABEL=root-a ro panic=5 {word}"
    assert slots.name_disk(node) is None
    assert entry.read_text() == before
    # A copy of this disk has the word of the original, until its own is written.
    entry.write_text(before.replace(GUIDS["esp"], OTHER["esp"]))
    assert slots.name_disk(node) == word
    assert entry.read_text() == before
    slots.sync(node)
    assert slots.name_disk(node) is None


def test_written_slot_has_a_file_system_uuid_of_its_own(node: Node) -> None:
    guid = OTHER["esp"]
    machine(node, root="vda2", esp="vda1", vda={**GUIDS, "root-b": guid})
    device = Path(node.root) / "dev/vda3"
    with device.open("wb") as opened:
        opened.truncate(4 << 20)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", device, "3M"], check=True)
    node.run = Host("/").run  # type: ignore[method-assign]
    slotwrite.fit(node, str(device), "b")
    command = ["blkid", "-p", "-o", "export", str(device)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"LABEL=root-b", f"UUID={uuid.uuid5(uuid.UUID(guid), 'file system')}"} <= set(shown)
