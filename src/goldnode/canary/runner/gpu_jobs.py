"""Jobs of the GPU tier on the driver API alone: discovery, memory bandwidth, copies between host and device, launch latency."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Callable, Dict, Iterator, List, Set, Tuple

from goldnode.gpuprogram import image
from goldnode.gpuprogram.device import GpuDevice

from . import machine
from .gpu import Devices, integers
from .kernels import BLOCK_BYTES
from .records import Fact, JobResult, Metric, failed, metric, passed

MIB = 1 << 20
Work = Callable[[], None]
Move = Tuple[str, Work, int]  # name, function, bytes


def discovery(expected: int = 0, model: str = "", root: str = "/") -> JobResult:
    """List the devices. `expected` and `model` come from the class; without them nothing is compared."""
    started = time.perf_counter()
    devices = Devices()
    opened = time.perf_counter()
    metrics = [metric("driver_start", "ms", [(opened - started) * 1e3], cold=True)]
    facts: Dict[str, Fact] = {
        **machine.facts(root),
        **devices.cuda.versions(),
        "gpus": len(devices.gpus),
    }
    for gpu in devices.gpus:
        begun = time.perf_counter()
        # The first use creates the primary context, which initializes the device.
        devices.cuda.use(gpu.number)
        metrics.append(
            metric(
                "context_start", "ms", [(time.perf_counter() - begun) * 1e3], gpu.address, cold=True
            )
        )
        devices.watch.read(gpu.address)
        metrics[-1]["conditions"] = devices.watch.take(gpu.address)
        facts[f"gpu{gpu.number}"] = gpu.name
        facts[f"gpu{gpu.number}_address"] = gpu.address
        facts[f"gpu{gpu.number}_memory_mib"] = gpu.memory // MIB
        facts[f"gpu{gpu.number}_numa_node"] = machine.numa_of(gpu.address, root)
        facts[f"gpu{gpu.number}_pci_id"] = image.pci_id(gpu.address, root)
    names = sorted({gpu.name for gpu in devices.gpus})
    facts["platform"] = f"{' + '.join(names)} x {len(devices.gpus)}"
    if expected and len(devices.gpus) != expected:
        raise failed(
            f"the class has {expected} GPUs, the driver finds {len(devices.gpus)}", metrics
        )
    wrong = [name for name in names if model and model.lower() not in name.lower()]
    if wrong:
        raise failed(f"the class has {model}, the driver finds {', '.join(wrong)}", metrics)
    return passed(metrics, facts)


def memory_bandwidth(mib: int = 1024, samples: int = 20) -> JobResult:
    """Copy within the memory of each device with the driver and with a kernel, and run a triad (a = b + 3 c).

    Rates count every byte that is read or written: two arrays for a copy, three for the triad.
    """
    devices = Devices()
    metrics: List[Metric] = []
    for gpu in devices.each():
        # A quarter for each of the three arrays.
        size = min(mib * MIB, devices.cuda.free() // 4) // BLOCK_BYTES * BLOCK_BYTES
        with devices.memory(size, size, size) as (to, left, right):
            for name, work, amount in _moves(devices, size, to, left, right):
                rates = devices.rates(gpu, work, amount / 1e9, samples)
                metrics.append(metric(name, "GB/s", rates, gpu.address))
                metrics[-1]["conditions"] = devices.watch.take(gpu.address)
                if name != "memory_triad":
                    _compare(devices, gpu=gpu, place=to, size=size, value=1.0, name=name)
            _compare(devices, gpu=gpu, place=to, size=size, value=7.0, name="memory_triad")
    return passed(metrics, {"mib": mib, **devices.watch.facts()})


def _moves(devices: Devices, size: int, to: int, left: int, right: int) -> Iterator[Move]:
    """Yield (name, function, bytes) of each kind of transfer, with arrays of 1.0 and 2.0."""
    cuda, words = devices.cuda, ctypes.c_size_t(size // 4)
    # float32: 1.0 and 2.0
    for place, bits in ((left, 0x3F800000), (right, 0x40000000)):
        cuda.call("cuMemsetD32_v2", ctypes.c_uint64(place), ctypes.c_uint32(bits), words)

    def driver() -> None:
        cuda.call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(to),
            ctypes.c_uint64(left),
            ctypes.c_size_t(size),
            None,
        )

    blocks = size // BLOCK_BYTES
    for name, work, arrays in (
        ("memory_copy_driver", driver, 2),
        (
            "memory_copy_kernel",
            devices.launcher(devices.function("goldnode_copy"), blocks, *integers((to, left))),
            2,
        ),
        (
            "memory_triad",
            devices.launcher(
                devices.function("goldnode_triad"),
                blocks,
                *integers((to, left, right)),
                ctypes.c_float(3.0),
            ),
            3,
        ),
    ):
        # The result of an earlier transfer must not pass for the result of this one.
        cuda.call("cuMemsetD32_v2", ctypes.c_uint64(to), ctypes.c_uint32(0xFFFFFFFF), words)
        yield name, work, arrays * size


def _compare(
    devices: Devices, gpu: GpuDevice, place: int, size: int, value: float, *, name: str
) -> None:
    """Compare the first, middle and last MiB of a result."""
    part = min(MIB, size)
    wanted = bytes(ctypes.c_float(value)) * (part // 4)
    for at in (0, (size - part) // 2 // 4 * 4, size - part):
        if devices.cuda.get(place + at, part) != wanted:
            raise failed(f"GPU {gpu.number}: {name} left wrong values at byte {at}")


def host_copies(mib: int = 256, samples: int = 20, root: str = "/") -> JobResult:
    """Copy between page-locked host memory and each device, from the CPUs of each NUMA node."""
    devices = Devices()
    metrics: List[Metric] = []
    facts: Dict[str, Fact] = {}
    size = mib * MIB
    # The launcher may have given this process some of the CPUs.
    before = os.sched_getaffinity(0)
    for node, cpus in _nodes(root, before):
        os.sched_setaffinity(0, cpus)
        try:
            for gpu in devices.each():
                facts[f"gpu{gpu.number}_numa_node"] = machine.numa_of(gpu.address, root)
                # Page-locked memory comes from the NUMA node of the CPUs that this process may use.
                with devices.pinned(size) as host, devices.memory(size) as (place,):
                    for name, work in _copies(devices, host, place, size):
                        rates = devices.rates(gpu, work, size / 1e9, samples)
                        metrics.append(metric(f"{name}_node{node}", "GB/s", rates, gpu.address))
                        metrics[-1]["conditions"] = devices.watch.take(gpu.address)
        finally:
            os.sched_setaffinity(0, before)
    return passed(metrics, {**facts, **devices.watch.facts()})


def _nodes(root: str, allowed: Set[int]) -> List[Tuple[int, Set[int]]]:
    nodes = [(node, cpus & allowed) for node, cpus in machine.numa_nodes(root)]
    return [(node, cpus) for node, cpus in nodes if cpus] or [(0, allowed)]


def _copies(devices: Devices, host: int, place: int, size: int) -> Iterator[Tuple[str, Work]]:
    cuda, length = devices.cuda, ctypes.c_size_t(size)

    def h2d() -> None:
        cuda.call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(place), ctypes.c_void_p(host), length, None
        )

    def d2h() -> None:
        cuda.call(
            "cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(place), length, None
        )

    yield "h2d", h2d
    # Cleared, so that only data of the device can equal those that were sent.
    ctypes.memset(host, 0, size)
    yield "d2h", d2h
    if ctypes.string_at(host, MIB) != b"\1" * MIB:
        raise failed("the data that came back from the device differ from the data that were sent")


def launch_latency(samples: int = 2000) -> JobResult:
    """Launch an empty kernel and wait for it. Times are those of a Python program that calls the driver."""
    devices = Devices()
    metrics: List[Metric] = []
    for gpu in devices.each():
        launch = devices.launcher(devices.function("goldnode_nothing"), 1, threads=1)
        begun = time.perf_counter()
        launch()
        devices.cuda.sync()
        cold = (time.perf_counter() - begun) * 1e6
        metrics.append(metric("launch", "us", [cold], gpu.address, cold=True))
        for _ in range(200):
            launch()
        devices.cuda.sync()
        devices.watch.read(gpu.address)
        times = _times(launch, devices.cuda.sync, samples)
        devices.watch.read(gpu.address)
        metrics.append(metric("launch", "us", times, gpu.address))
        metrics[-1]["conditions"] = devices.watch.take(gpu.address)
    return passed(metrics, devices.watch.facts())


def _times(work: Work, wait: Work, samples: int) -> List[float]:
    times = []
    clock = time.perf_counter
    for _ in range(samples):
        begun = clock()
        work()
        wait()
        times.append((clock() - begun) * 1e6)
    return times
