"""CUDA devices for canary jobs: events, pinned memory and own kernels on top of goldnode-smoke's driver interface."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from goldnode.gpuprogram.cuda import Cuda
from goldnode.gpuprogram.device import GpuDevice, simulated

from . import kernels
from .records import failed
from .sampling import Watch

# Seconds of work before the first sample, so that clocks have settled. Seen on an H200: 0.8 s after
# matrix products begin, the power limit takes the clocks down by a seventh for 0.3 s, each time
# alike.
SETTLE = 1.5


class Devices:
    """All CUDA devices of this node, as one process sees them."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.gpus: List[GpuDevice] = self.cuda.gpus()
        simulated(self.gpus)
        if not self.gpus:
            raise failed("the driver finds no device, although there are device files")
        self.watch = Watch()
        self._modules: Dict[Tuple[int, bytes], Any] = {}

    def each(self) -> Iterator[GpuDevice]:
        """Yield every device after it was made the current one."""
        for gpu in self.gpus:
            self.cuda.use(gpu.number)
            yield gpu

    def function(self, name: str, code: bytes = b"") -> Any:
        """Return a kernel for the current device: of `code` (PTX or a cubin), otherwise of :mod:`kernels`."""
        key = (self.cuda.current, code)
        if key not in self._modules:
            module = ctypes.c_void_p()
            self.cuda.call(
                "cuModuleLoadData", ctypes.byref(module), code or kernels.SOURCE.encode()
            )
            self._modules[key] = module
        entry = ctypes.c_void_p()
        self.cuda.call(
            "cuModuleGetFunction", ctypes.byref(entry), self._modules[key], name.encode()
        )
        return entry

    def launcher(
        self, function: Any, blocks: int, *arguments: Any, threads: int = kernels.THREADS
    ) -> Callable[[], None]:
        """Return a function that launches a kernel. Arguments are ctypes values, converted once."""
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.addressof(one) for one in arguments)
        )
        call, launch = self.cuda.call, "cuLaunchKernel"

        def run(
            _alive: Any = arguments,
        ) -> None:  # the values must live as long as the pointers to them
            call(launch, function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

        return run

    @contextlib.contextmanager
    def memory(self, *sizes: int) -> Iterator[List[int]]:
        """Allocate device memory, and free it at the end."""
        held: List[int] = []
        try:
            for size in sizes:
                held.append(self.cuda.alloc(size))
            yield held
        finally:
            for one in held:
                self.cuda.release(one)

    @contextlib.contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """Allocate page-locked host memory on the NUMA node of the current CPUs, and free it at the end."""
        address = ctypes.c_void_p()
        self.cuda.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        try:
            ctypes.memset(address, 1, size)  # every page exists before the first copy
            yield int(address.value or 0)
        finally:
            self.cuda.library.cuMemFreeHost(address)

    def seconds(self, work: Callable[[], None], runs: int, address: str = "") -> float:
        """Return the seconds that the device takes for `runs` calls of `work`, by its own clock.

        The state of the device is read while it works.
        """
        start, end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (start, end):
            self.cuda.call("cuEventCreate", ctypes.byref(event), 0)
        try:
            self.cuda.call("cuEventRecord", start, None)
            for _ in range(runs):
                work()
            self.cuda.call("cuEventRecord", end, None)
            self.watch.read(address)
            self.cuda.call("cuEventSynchronize", end)
            took = ctypes.c_float()
            self.cuda.call("cuEventElapsedTime", ctypes.byref(took), start, end)
        finally:
            for event in (start, end):
                self.cuda.library.cuEventDestroy_v2(event)
        return took.value / 1e3

    def rates(
        self,
        gpu: GpuDevice,
        work: Callable[[], None],
        amount: float,
        samples: int,
        each: float = 0.05,
    ) -> List[float]:
        """Return `samples` rates: `amount` per call of `work` by its seconds, over about `each` seconds a sample.

        The device has worked for SETTLE seconds before.
        """
        once = max(self.seconds(work, 2) / 2, 1e-6)
        once = max(self.seconds(work, max(1, int(0.02 / once))) / max(1, int(0.02 / once)), 1e-6)
        runs = max(1, min(20_000, round(each / once)))
        settled = 0.0
        while settled < SETTLE:
            settled += max(self.seconds(work, runs), 1e-4)
        return [amount * runs / self.seconds(work, runs, gpu.address) for _ in range(samples)]


def integers(values: Sequence[int]) -> List[Any]:
    """Return addresses as kernel arguments."""
    return [ctypes.c_uint64(value) for value in values]
