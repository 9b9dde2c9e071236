"""What the guest does while QEMU logs its writes: every writer of the ESP, one after another. Not a test: PID 1 of an initramfs.

Between two steps everything is flushed. Marks go to sectors that no partition has: the log then tells which writes are of which step.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import mmap
import os
import pathlib
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, "/goldnode")
LIBC = ctypes.CDLL(None, use_errno=True)
MARKS = 1000  # sector; as in powercut.py
WORDS = "ro console=ttyS0 loglevel=4 no_timer_check panic=5"


def call(done: int) -> None:
    if done:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    if not os.path.exists(target):
        os.makedirs(target)
    call(LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, None))


def load(module: str) -> None:
    handle = os.open(module, os.O_RDONLY)
    call(LIBC.syscall(313, handle, b"", 0))  # finit_module


def mark(text: str) -> None:
    """Write a mark into the log. It is not flushed, so that it changes nothing."""
    handle = os.open("/dev/vda", os.O_WRONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    buffer.write(text.encode().ljust(512, b"\0"))
    call(0 if os.pwrite(handle, memoryview(buffer)[:512], MARKS * 512) == 512 else 1)
    os.close(handle)
    print(f"POWER {text}", flush=True)


def rest() -> None:
    """See everything on the disk."""
    os.sync()
    handle = os.open("/dev/vda1", os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def eager(share: float) -> None:
    """Write out what is dirty after a share of the calls that change something, as the kernel may at any time: without flushing the disk's
    cache, and directories and tables before the sizes and first clusters of files."""
    chance = random.Random(1)  # noqa: S311
    disk = os.open("/dev/vda1", os.O_RDONLY)
    sync_range, to_disk = LIBC.sync_file_range, os.fsync
    sync_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def write_out() -> None:
        if chance.random() >= share:
            return
        call(sync_range(disk, 0, 0, 7))
        os.sync()
        call(sync_range(disk, 0, 0, 7))

    def then(real: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*words: Any, **more: Any) -> Any:
            done = real(*words, **more)
            write_out()
            return done

        return changed

    for name in ("replace", "rename", "unlink", "mkdir"):
        setattr(os, name, then(getattr(os, name)))

    def flush(handle: Any) -> None:
        write_out()
        to_disk(handle)

    setattr(os, "fsync", flush)  # noqa: B010


def main() -> None:
    for kind, target in (
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
    ):
        mount(kind, target, kind)
    for driver in pathlib.Path("/modules").read_text().split():
        load(driver)
    while not os.path.exists("/dev/vda3"):
        time.sleep(0.05)
    words = pathlib.Path("/proc/cmdline").read_text().split()
    # Nothing is written of itself, so that the log is the same each time.
    pathlib.Path("/proc/sys/vm/dirty_writeback_centisecs").write_text("0")
    mount("/dev/vda1", "/efi", "vfat")
    labels = "/dev/disk/by-partlabel"
    os.makedirs(labels)
    for number, label in enumerate(("esp", "root-a", "root-b"), 1):
        os.symlink(f"/dev/vda{number}", f"{labels}/{label}")

    from goldnode.node.ground import boot
    from goldnode.node.ground.host import Host
    from goldnode.node.slots import trial as slot_trial
    from goldnode.node.slots import write as slotwrite
    from goldnode.node.state import slots

    host = Host("/")
    variables = pathlib.Path(boot.VARIABLES)
    mount("firmware", "/sys/firmware", "tmpfs")
    variables.mkdir(parents=True)

    @contextlib.contextmanager
    def unpacked(host: Host, device: str) -> Iterator[str]:
        yield "/image"

    instead: Any
    for module, name, instead in (
        (slotwrite, "fit", lambda *words: None),
        (slotwrite, "mounted", unpacked),
        (slotwrite, "carry", lambda *words: []),
        (slot_trial, "judge", lambda host: []),
        (slots, "flush_root", lambda *words: None),  # there is no root here, and no program
    ):
        getattr(module, name)  # AttributeError if it has moved: nothing would be replaced
        setattr(module, name, instead)

    def runs(slot: str) -> None:
        """Have this be a boot of a slot."""
        pathlib.Path("/run/cmdline").write_text(f"root=PARTLABEL=root-{slot} {WORDS}\n")
        mount("/run/cmdline", "/proc/cmdline", "", 4096)

    def write() -> None:
        image = json.loads(pathlib.Path("/image.json").read_text())
        slotwrite.write(
            host,
            io.BytesIO(json.dumps(image).encode() + b"\n" + pathlib.Path("/image.gz").read_bytes()),
            print,
        )

    def entry(end: str) -> str:
        (found,) = [name for name in os.listdir("/efi/loader/entries") if name.endswith(end)]
        return f"/efi/loader/entries/{found}"

    def count() -> None:
        """Do as systemd-boot does before it starts an entry, without the ways in which the power could go there."""
        now = entry("-b+3.conf")
        os.rename(now, now.replace("+3", "+2-1"))
        rest()
        path = f"\\loader\\entries\\{os.path.basename(now).replace('+3', '+2-1')}\0"
        (variables / f"LoaderBootCountPath-{boot.VENDOR}").write_bytes(
            b"\x06\0\0\0" + path.encode("utf-16-le")
        )
        runs("b")

    def control() -> None:
        """Write an entry as goldnode once did: renamed over the old one, and its directory flushed alone."""
        now = entry("-b.conf")
        text = pathlib.Path(now).read_text().replace("\noptions ", "\noptions control ")
        with open(f"{now}.new", "wb") as out:
            out.write(text.encode())
            out.flush()
            os.fsync(out.fileno())
        os.replace(f"{now}.new", now)
        handle = os.open("/efi/loader/entries", os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    runs("a")
    eager(
        next(float(word.partition("=")[2]) for word in words if word.startswith("goldnode.eager="))
    )
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("sync", lambda: slots.sync(host, "6.1.0-902-amd64")),
        ("words", lambda: slots.edit_cmdline(host, ["quiet"], [])),
        ("write", write),
        ("good", lambda: slot_trial.good(host)),
        ("bless", lambda: slots.bless(host)),
        ("again", lambda: slots.sync(host, "6.1.0-903-amd64")),
        ("control", control),
        ("back", lambda: slots.back(host)),
    ]
    for name, step in steps:
        if name == "good":
            count()
        rest()
        mark(f"begin {name}")
        step()
        mark(f"end {name}")
    rest()
    call(LIBC.umount(b"/efi"))
    mark("finished")


try:
    main()
except BaseException:
    traceback.print_exc()
sys.stdout.flush()
LIBC.reboot(0x4321FEDC)
