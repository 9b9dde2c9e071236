"""All-reduce with NCCL or RCCL, which share a C interface (nccl.h). One process drives all devices."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, List, Sequence

from . import native
from .device import GpuDevice, GpuDriver, devices, timed
from .results import Failed, Json, NotRun, passed

FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
SONAMES = {"cuda": ("libnccl.so.2",), "rocm": ("librccl.so.1",)}


def all_reduce(driver: GpuDriver, gpus: Sequence[GpuDevice], count: int) -> Json:
    """Sum `count` floats over the devices. Every element of device r is r + 1."""
    if driver.kind not in SONAMES:
        raise NotRun(f"no collective library with a C interface is known for {driver.kind}")
    library = native.need(SONAMES[driver.kind], "a collective library")
    size = len(gpus)
    comms = (ctypes.c_void_p * size)()
    numbers = (ctypes.c_int * size)(*(gpu.number for gpu in gpus))
    check(library, "ncclCommInitAll", comms, size, numbers)
    held: List[Any] = []
    try:
        for rank, gpu in enumerate(gpus):
            driver.use(gpu.number)
            data = struct.pack("<f", rank + 1) * count
            held.append((driver.alloc(4 * count), driver.alloc(4 * count)))
            driver.put(held[rank][0], data)
            driver.put(held[rank][1], bytes(4 * count))

        def once() -> None:
            # One process calls for all devices, so the calls must be grouped, or the first one
            # blocks.
            check(library, "ncclGroupStart")
            for rank, gpu in enumerate(gpus):
                driver.use(gpu.number)
                send, receive = (ctypes.c_void_p(part) for part in held[rank])
                check(
                    library,
                    "ncclAllReduce",
                    send,
                    receive,
                    ctypes.c_size_t(count),
                    FLOAT,
                    SUM,
                    ctypes.c_void_p(comms[rank]),
                    None,
                )
            check(library, "ncclGroupEnd")

        each = timed(_All(driver, gpus), once, 0.5)
        wanted = struct.pack("<f", size * (size + 1) // 2) * count
        for rank, gpu in enumerate(gpus):
            driver.use(gpu.number)
            if driver.get(held[rank][1], 4 * count) != wanted:
                raise Failed(
                    f"GPU {gpu.number} has another sum",
                    expected=size * (size + 1) // 2,
                    got="a difference",
                )
    finally:
        for rank, pair in enumerate(held):
            driver.use(gpus[rank].number)
            for part in pair:
                driver.release(part)
        for comm in comms:
            library.ncclCommDestroy(ctypes.c_void_p(comm))
    # Bus bandwidth as in nccl-tests and rccl-tests: each byte crosses the links 2 (n - 1) / n
    # times.
    figures = {
        "ranks": size,
        "mib": 4 * count >> 20,
        "bus_gb_per_second": round(2 * (size - 1) / size * 4 * count / each / 1e9, 2),
    }
    return passed("equal sums on every device", "equal sums on every device", figures)


class _All(GpuDriver):
    """All devices as one, for `timed`: waits for each of them."""

    def __init__(self, driver: GpuDriver, gpus: Sequence[GpuDevice]) -> None:
        self.driver, self.list = driver, gpus

    def sync(self) -> None:
        for gpu in self.list:
            self.driver.use(gpu.number)
            self.driver.sync()


def check(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    """Call a function. Raises Failed with NCCL's message."""
    status = native.integer(library, function, *arguments)
    if status:
        explain = native.symbol(library, "ncclGetErrorString")
        explain.restype = ctypes.c_char_p
        text = (explain(status) or b"").decode("utf-8", "replace")
        raise Failed(f"{function}: {text}", expected=0, got=status)


def collective(kind: str, count: int = 1 << 24, **options: Any) -> Json:
    """Sum over all devices of this machine with NCCL or RCCL, and compare every element."""
    driver, gpus = devices(kind, **options)
    if len(gpus) < 2:
        raise NotRun(f"a collective needs 2 devices, there is {len(gpus)}")
    return all_reduce(driver, gpus, count)
