"""Jobs of the CPU tier: discovery, memory bandwidth, copies per NUMA node, GEMM, start latency."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Callable, Dict, List, Optional, Set, Tuple

from goldnode.gpuprogram import cpu, image, linear

from . import machine
from .records import Fact, JobResult, Metric, failed, metric, not_run, passed

MIB = 1 << 20


def discovery(expected: int = 0, root: str = "/") -> JobResult:
    """Describe the processors. `expected` is their number by the class."""
    facts: Dict[str, Fact] = {**machine.facts(root), "memory_mib": image.memory(root) // MIB}
    facts["platform"] = f"{facts['processor']} x {facts['cpus']}"
    if expected and facts["cpus"] != expected:
        raise failed(f"the class has {expected} CPUs, this process may use {facts['cpus']}")
    return passed([], facts)


def timed(work: Callable[[], None], amount: float, samples: int, seconds: float) -> List[float]:
    """Return rates: `amount` per call by its seconds, over about `seconds` a sample. The first call does not count."""
    work()
    times = []
    for _ in range(samples):
        begun, runs = time.perf_counter(), 0
        while not runs or time.perf_counter() - begun < seconds:
            work()
            runs += 1
        times.append(amount * runs / (time.perf_counter() - begun))
    return times


def memory_bandwidth(mib: int = 64, samples: int = 20, seconds: float = 0.1) -> JobResult:
    """Copy memory with one thread on each CPU of this process. Every byte counts twice: it is read and written."""
    threads = len(os.sched_getaffinity(0))
    # Two buffers for each thread, and half of the memory stays free.
    mib = min(mib, max(1, image.memory() // MIB // (4 * threads)))
    pairs = [
        (
            ctypes.create_string_buffer(mib * MIB),
            ctypes.create_string_buffer(b"\1" * (mib * MIB), mib * MIB),
        )
        for _ in range(threads)
    ]

    def work() -> None:
        # memmove is called without the interpreter's lock.
        running = [
            threading.Thread(target=ctypes.memmove, args=(to, source, mib * MIB))
            for to, source in pairs
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    rates = timed(work, 2 * threads * mib * MIB / 1e9, samples, seconds)
    if any(
        ctypes.string_at(to, mib * MIB) != ctypes.string_at(source, mib * MIB)
        for to, source in pairs
    ):
        raise failed("the copy differs from its source")
    return passed([metric("memory_copy", "GB/s", rates)], {"threads": threads, "mib": mib})


def numa_copies(
    mib: int = 64, samples: int = 10, seconds: float = 0.1, root: str = "/"
) -> JobResult:
    """Copy memory from the CPUs of each NUMA node to memory of each node."""
    before = os.sched_getaffinity(0)
    nodes: List[Tuple[int, Set[int]]] = [
        (node, cpus & before) for node, cpus in machine.numa_nodes(root) if cpus & before
    ] or [(0, before)]
    metrics: List[Metric] = []
    try:
        buffers = {}
        for node, cpus in nodes:
            # The kernel takes a page from the node of the CPU that writes it first.
            os.sched_setaffinity(0, cpus)
            buffers[node] = ctypes.create_string_buffer(b"\1" * (mib * MIB), mib * MIB)
        for node, cpus in nodes:
            os.sched_setaffinity(0, cpus)
            own = ctypes.create_string_buffer(mib * MIB)
            for other, source in buffers.items():

                def work(to: object = own, source: object = source) -> None:
                    ctypes.memmove(to, source, mib * MIB)  # type: ignore[arg-type]

                rates = timed(work, mib * MIB / 1e9, samples, seconds)
                metrics.append(metric(f"copy_node{other}_to_node{node}", "GB/s", rates))
    finally:
        os.sched_setaffinity(0, before)
    return passed(metrics, {"numa_nodes": len(nodes)})


def gemm(
    size: int = 512, samples: int = 20, seconds: float = 0.25, threads: Optional[int] = None
) -> JobResult:
    """Multiply square matrices in single and double precision with a BLAS, and compare every element."""
    if threads:
        # Read by OpenBLAS when it is loaded.
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    chosen = cpu.blas()
    if chosen is None:
        return _interpreted(samples, seconds)
    name, library = chosen
    metrics: List[Metric] = []
    for kind in ("fp32", "fp64"):
        left, right = linear.matrix_a(size, size, kind), linear.matrix_b(size, size, kind)
        out = ctypes.create_string_buffer(size * size * linear.KINDS[kind][1])
        begun = time.perf_counter()
        cpu.call(library, kind=kind, m=size, n=size, k=size, left=left, right=right, out=out)
        cold = (time.perf_counter() - begun) * 1e3
        _right(out.raw, size, kind)
        # NaN reveals elements that the next runs do not write.
        out.raw = b"\xff" * len(out.raw)

        def work(
            kind: str = kind, left: bytes = left, right: bytes = right, out: object = out
        ) -> None:
            cpu.call(library, kind=kind, m=size, n=size, k=size, left=left, right=right, out=out)

        rates = timed(work, 2 * size**3 / 1e9, samples, seconds)
        _right(out.raw, size, kind)
        metrics.append(metric(f"gemm_{kind}_first", "ms", [cold], cold=True))
        metrics.append(metric(f"gemm_{kind}", "GFLOP/s", rates))
    return passed(metrics, {"blas": name, "size": size})


def _interpreted(samples: int, seconds: float, size: int = 48) -> JobResult:
    """Multiply with the interpreter alone, where no BLAS is installed. That measures one core."""
    left = [[float(linear.a(i, k)) for k in range(size)] for i in range(size)]
    right = [[float(linear.b(k, j)) for j in range(size)] for k in range(size)]
    _right(linear.flat(linear.multiply(left, right)), size, "fp32")

    def work() -> None:
        linear.multiply(left, right)

    rates = timed(work, 2 * size**3 / 1e6, samples, seconds)
    facts: Dict[str, Fact] = {"blas": "none: computed by Python on one core", "size": size}
    return passed([metric("gemm_python", "MFLOP/s", rates)], facts)


def _right(data: bytes, size: int, kind: str) -> None:
    bad = linear.wrong(data, size, size, size, kind)
    if bad:
        i, j, got, wanted = bad[0]
        raise failed(
            f"the {kind} product is wrong in row {i}, column {j}: {got} instead of {wanted}"
        )


def start_latency(samples: int = 200, program: str = "/bin/true") -> JobResult:
    """Start a program and wait for its end, the CPU tier's counterpart of a kernel launch."""
    if not os.access(program, os.X_OK):
        raise not_run(f"{program} is not here")
    times = []
    for _ in range(samples + 5):
        begun = time.perf_counter()
        pid = os.posix_spawn(program, [program], os.environ)
        os.waitpid(pid, 0)
        times.append((time.perf_counter() - begun) * 1e6)
    return passed(
        # The first five starts warm the caches; the very first is reported, as cold.
        [metric("start", "us", times[:1], cold=True), metric("start", "us", times[5:])],
        {"program": program},
    )
