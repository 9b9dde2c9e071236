"""All-reduce: over the devices of a node with NCCL, and over processes with gloo or a ring of sockets."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import struct
import tempfile
import time
from typing import Any, Dict, List, Sequence, Tuple

from goldnode.gpuprogram import native
from goldnode.gpuprogram.device import GpuDevice
from goldnode.gpuprogram.libraries import COMPONENTS
from goldnode.gpuprogram.nccl import FLOAT, SUM, check

from .gpu import Devices
from .records import Fact, JobResult, Metric, failed, metric, not_run, passed

MIB = 1 << 20


def nccl(mib: Sequence[int] = (16, 256), samples: int = 20) -> JobResult:
    """Sum floats over all devices of this node with NCCL and compare the sums.

    One device forms a communicator of one rank: that shows that NCCL works with driver and device,
    and measures no link.
    """
    devices = Devices()
    library = native.need(("libnccl.so.2",), "NCCL")
    version = COMPONENTS["nccl"].version
    facts: Dict[str, Fact] = {"ranks": len(devices.gpus)}
    if version is not None:
        facts["nccl"] = ".".join(str(part) for part in version(library))
    count = len(devices.gpus)
    comms = (ctypes.c_void_p * count)()
    begun = time.perf_counter()
    check(
        library,
        "ncclCommInitAll",
        comms,
        count,
        (ctypes.c_int * count)(*(gpu.number for gpu in devices.gpus)),
    )
    metrics = [metric("nccl_start", "ms", [(time.perf_counter() - begun) * 1e3], cold=True)]
    for size in mib:
        metrics += _reduce(devices, library, comms, size, samples)
    for comm in comms:
        library.ncclCommDestroy(ctypes.c_void_p(comm))
    why = "one device: the sum was compared, no link was measured" if count == 1 else ""
    return passed(metrics, {**facts, **devices.watch.facts()}, why)


def _reduce(devices: Devices, library: Any, comms: Any, mib: int, samples: int) -> List[Metric]:
    count, ranks = mib * MIB // 4, len(devices.gpus)
    places: List[Tuple[GpuDevice, int, int]] = []
    try:
        for rank, gpu in enumerate(devices.each()):
            send, receive = devices.cuda.alloc(4 * count), devices.cuda.alloc(4 * count)
            places.append((gpu, send, receive))
            bits = struct.unpack("<I", struct.pack("<f", float(rank + 1)))[0]
            devices.cuda.call(
                "cuMemsetD32_v2",
                ctypes.c_uint64(send),
                ctypes.c_uint32(bits),
                ctypes.c_size_t(count),
            )

        def once() -> None:
            # One process calls for all devices, so the calls are a group, or the first one blocks.
            check(library, "ncclGroupStart")
            for rank, (gpu, send, receive) in enumerate(places):
                devices.cuda.use(gpu.number)
                check(
                    library, "ncclAllReduce", ctypes.c_void_p(send), ctypes.c_void_p(receive), ctypes.c_size_t(count), FLOAT, SUM,
                    ctypes.c_void_p(comms[rank]), None,
                )  # fmt: skip
            check(library, "ncclGroupEnd")

        def wait() -> None:
            for _ in devices.each():
                devices.cuda.sync()

        for _ in range(5):
            once()
        wait()
        times = []
        for _ in range(samples if ranks > 1 else 0):
            begun = time.perf_counter()
            for _ in range(5):
                once()
            for gpu in devices.gpus:
                devices.watch.read(gpu.address)
            wait()
            times.append((time.perf_counter() - begun) / 5)
        _equal(devices, places, count, ranks)
    finally:
        for gpu, send, receive in places:
            devices.cuda.use(gpu.number)
            devices.cuda.release(send)
            devices.cuda.release(receive)
    if not times:
        return []
    # Bus bandwidth as in nccl-tests: each byte crosses the links 2 (n - 1) / n times.
    bus = [2 * (ranks - 1) / ranks * 4 * count / each / 1e9 for each in times]
    return [metric(f"allreduce_{mib}mib", "GB/s", bus)]


def _equal(
    devices: Devices, places: List[Tuple[GpuDevice, int, int]], count: int, ranks: int
) -> None:
    part = min(count, MIB // 4)
    wanted = struct.pack("<f", ranks * (ranks + 1) / 2) * part
    for gpu, _, receive in places:
        devices.cuda.use(gpu.number)
        for at in (0, 4 * (count - part)):
            if devices.cuda.get(receive + at, 4 * part) != wanted:
                raise failed(f"GPU {gpu.number} has another sum than {ranks * (ranks + 1) // 2}")


# -- processes of one node


def gloo(ranks: int = 2, mib: int = 16, samples: int = 20) -> JobResult:
    """Sum floats over processes of this node with gloo, through PyTorch."""
    folder = tempfile.mkdtemp(prefix="goldnode-canary-")
    reader, writer = os.pipe()
    # The processes begin before PyTorch is imported: a fork after it has started threads may hang.
    children = [
        pid
        for rank in range(ranks)
        for pid in [os.fork()]
        if pid
        or _rank(rank, ranks=ranks, mib=mib, samples=samples, folder=folder, answer_to=writer)
    ]
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answers:
        lines = [json.loads(line) for line in answers]
    for pid in children:
        os.waitpid(pid, 0)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    wrong = next((line["why"] for line in lines if "why" in line), None)
    if wrong is not None and wrong.startswith("No module named"):
        raise not_run("PyTorch is not here")
    if wrong is not None or len(lines) != ranks:
        raise failed(
            f"the processes did not end well: {wrong or f'{len(lines)} of {ranks} answered'}"
        )
    bus = [2 * (ranks - 1) / ranks * mib * MIB / each / 1e9 for each in lines[0]["times"]]
    facts: Dict[str, Fact] = {"ranks": ranks, "torch": lines[0]["torch"], "backend": "gloo"}
    return passed([metric(f"allreduce_{mib}mib", "GB/s", bus)], facts)


def _rank(rank: int, ranks: int, mib: int, samples: int, folder: str, *, answer_to: int) -> bool:
    """Run one process of the all-reduce. Never returns."""
    try:
        answer: Dict[str, Any] = {"times": _ring_times(rank, ranks, mib, samples, folder)}
        answer["torch"] = str(importlib.import_module("torch").__version__)
    except Exception as problem:  # one reader of all: the parent reports it
        answer = {"why": str(problem) or type(problem).__name__}
    os.write(answer_to, (json.dumps(answer) + "\n").encode())
    os._exit(0)


def _ring_times(rank: int, ranks: int, mib: int, samples: int, folder: str) -> List[float]:
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a container without a network has no other
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
    )
    times = []
    for run in range(samples + 3):
        data = torch.full((mib * MIB // 4,), float(rank + 1))
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(data)
        took = time.perf_counter() - begun
        if not bool((data == ranks * (ranks + 1) / 2).all()):
            raise ValueError(f"rank {rank} has another sum")
        if run >= 3:
            times.append(took)
    dist.destroy_process_group()
    return times
