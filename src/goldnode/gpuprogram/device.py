"""The tests of the GPU tier, written against a driver interface that `cuda`, `rocm` and `opencl` implement.

A test opens its driver once in its own process. Driver methods raise Failed with the library's own
message.
"""

from __future__ import annotations

import importlib
import struct
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import image, linear, native
from .results import Failed, Json, NotRun, passed

MIB = 1 << 20
SIMULATED = "SIMULATED"  # first word of the name of a simulated device


class GpuDevice(NamedTuple):
    """One device as its driver reports it.

    `memory` is in bytes. `address` is the PCI address, empty if the driver does not report it.
    `capability` is CUDA's compute capability, otherwise empty. `units` is the number of compute
    units.
    """

    number: int
    name: str
    memory: int
    address: str
    capability: Tuple[int, ...]
    units: int


class GpuDriver:
    """Interface to a backend's library.

    Addresses of device memory are integers or handles, as the library returns them.
    """

    kind = ""
    blas: Tuple[str, ...] = ()  # precisions that `gemm` takes, best first, beyond the plain kernel
    largest = 4 << 30  # bytes of one allocation

    def gpus(self) -> List[GpuDevice]:
        """Return the devices in the library's order."""
        raise NotImplementedError

    def versions(self) -> Json:
        """Return the versions that driver and runtime report."""
        raise NotImplementedError

    def use(self, index: int) -> None:
        """Make this device the current one."""
        raise NotImplementedError

    def free(self) -> int:
        """Return the free memory of the device in bytes."""
        raise NotImplementedError

    def alloc(self, size: int) -> Any:
        """Allocate memory on the device."""
        raise NotImplementedError

    def release(self, memory: Any) -> None:
        """Free memory of the device."""
        raise NotImplementedError

    def put(self, memory: Any, data: bytes) -> None:
        """Copy data to the device."""
        raise NotImplementedError

    def get(self, memory: Any, size: int) -> bytes:
        """Copy data from the device, after all launched work has finished."""
        raise NotImplementedError

    def launch(self, kernel: str, *arguments: Tuple[str, Any]) -> None:
        """Start a kernel. Arguments are (`memory` | `u64` | `u32`, value)."""
        raise NotImplementedError

    def sync(self) -> None:
        """Wait until the device has finished all work."""
        raise NotImplementedError

    def gemm(self, kind: str, n: int, left: Any, right: Any, out: Any) -> None:
        """Multiply square matrices with the vendor's library. `kind` is one of `blas`."""
        raise NotImplementedError

    def kernels(self) -> str:
        """Return the name of the kernels' compiler."""
        raise NotImplementedError

    def precisions(self, gpu: GpuDevice) -> Tuple[str, ...]:
        """Return the precisions of `blas` to measure on a device."""
        return self.blas


def simulated(gpus: Sequence[GpuDevice]) -> bool:
    """Return whether the devices are simulated, by their names.

    This also marks the whole result as simulated.
    """
    if any(gpu.name.startswith(SIMULATED) for gpu in gpus):
        native.SIMULATED.append(SIMULATED)
        return True
    return False


def devices(kind: str, **options: Any) -> Tuple[GpuDriver, List[GpuDevice]]:
    """Open a driver and return it with its devices. Raises Failed without a device."""
    driver: GpuDriver = importlib.import_module(f"{__package__}.{kind}").open_driver(**options)
    gpus = driver.gpus()
    simulated(gpus)
    if not gpus:
        raise Failed(
            "the library finds no device, although there are device files",
            expected="1 or more",
            got=0,
        )
    return driver, gpus


def shown(gpu: GpuDevice) -> Json:
    """Return a device for a result.

    It has no serial number and no UUID, because a record is published along with its image.
    """
    row: Json = {"name": gpu.name, "memory_mib": gpu.memory // MIB}
    if gpu.address:
        row["address"] = gpu.address
    if gpu.capability:
        row["compute_capability"] = ".".join(str(number) for number in gpu.capability)
    return row


def discovery(kind: str, expected: int = 0, files: int = 0, **options: Any) -> Json:
    """List the devices through the library and compare their number.

    `expected` is the required number. Without it, the number of device files (`files`) counts,
    unless a device is a MIG instance or the environment selects devices.
    """
    driver, gpus = devices(kind, **options)
    partial = any("MIG" in gpu.name for gpu in gpus)
    wanted = expected or (0 if partial else files)
    got = {"count": len(gpus), "devices": [shown(gpu) for gpu in gpus], **driver.versions()}
    if wanted and len(gpus) != wanted:
        raise Failed(
            "the library finds another number of devices",
            expected=wanted,
            got=len(gpus),
            figures=got,
        )
    return passed({"count": wanted or "1 or more"}, got)


# -- GEMM


def model(gpu: GpuDevice, floors: Sequence[Json], root: str) -> Optional[Json]:
    """Return the row of the floors for a device, by its PCI ids in sysfs."""
    number = image.pci_id(gpu.address, root) if gpu.address else None
    return next((row for row in floors if number in row["pci_ids"]), None)


def gemm(
    kind: str,
    floors: Sequence[Json] = (),
    size: int = 0,
    seconds: float = 1.0,
    root: str = "/",
    **options: Any,
) -> Json:
    """Multiply large square matrices on each device, in the precisions that its units are made for.

    Every element of the product is compared, and the throughput must reach the floor.
    """
    driver, gpus = devices(kind, **options)
    rows, slow = [], []
    for gpu in gpus:
        driver.use(gpu.number)
        row = one_gemm(driver, gpu, model(gpu, floors, root), size, seconds)
        rows.append(row)
        slow += [
            f"GPU {gpu.number} {name}"
            for name, figure in row["tflops"].items()
            if figure < row["floor"].get(name, 0)
        ]
    expected = [{"model": row["model"], "floor_tflops": row["floor"]} for row in rows]
    got = [
        {"name": row["name"], "tflops": row["tflops"], "size": row["size"], "by": row["by"]}
        for row in rows
    ]
    unknown = sorted({row["name"] for row in rows if not row["floor"]})
    why = ""
    if unknown:
        why = f"no floor is known for {', '.join(unknown)}: {rows[0]['no_floor']}"
    figures = {
        f"gpu{gpu.number}_{name}_tflops": value
        for gpu, row in zip(gpus, rows)
        for name, value in row["tflops"].items()
    }
    if slow:
        raise Failed(
            f"slower than the floor: {', '.join(slow)}", expected=expected, got=got, figures=figures
        )
    return passed(expected, got, figures, why)


def one_gemm(
    driver: GpuDriver, gpu: GpuDevice, row: Optional[Json], size: int, seconds: float
) -> Json:
    """Measure one device. Return {name, model, size, by, tflops, floor, no_floor}."""
    # The plain kernel is slow, so it gets small matrices.
    kinds = driver.precisions(gpu)
    n = size or fitting(driver.free(), 8192 if kinds else 512)
    floor: Dict[str, float] = {}
    reason = "its PCI id is in no row of the facts, or cannot be read here"
    if row is not None:
        floor, reason = row["floor_tflops"], "the facts state none for its precisions"
    if "MIG" in gpu.name:
        floor, reason = {}, "it is a part of a board"
    elif not kinds:
        floor, reason = {}, "there is no BLAS here, and the plain kernel is not made to be fast"
    elif size and size < 2048:
        floor, reason = {}, f"matrices of {size} are too small to measure"
    # Without precisions of a BLAS the plain kernel computes, named "" to `multiply`.
    tflops = {
        kind or "fp32": round(multiply(driver, kind, n, seconds), 3) for kind in kinds or ("",)
    }
    by = "the vendor's BLAS" if kinds else f"a plain kernel, {driver.kernels()}"
    return {
        "name": gpu.name, "model": row and row["model"], "size": n, "by": by, "tflops": tflops, "no_floor": reason,
        "floor": {kind: value for kind, value in floor.items() if kind in tflops},
    }  # fmt: skip


def fitting(free: int, most: int) -> int:
    """Return the largest power of two, at most `most`, for which three matrices fit in half of the free
    memory.
    """
    n = most
    # 12 bytes: one float32 element of each of three matrices.
    while n > 256 and 12 * n * n > free // 2:
        n //= 2
    return n


def multiply(driver: GpuDriver, kind: str, n: int, seconds: float) -> float:
    """Multiply n x n matrices, after a warm-up, and return 10 ** 12 operations per second.

    Every element of the last product is compared. An empty `kind` selects the plain kernel.
    """
    # TF32 multiplies FP32 data; FP16 products are accumulated and returned in FP32.
    element = kind if kind in ("fp16", "fp64") else "fp32"
    result = "fp64" if kind == "fp64" else "fp32"
    left, right = linear.matrix_a(n, n, element), linear.matrix_b(n, n, element)
    out_size = n * n * linear.KINDS[result][1]
    held = []
    try:
        for data in (left, right):
            held.append(driver.alloc(len(data)))
            driver.put(held[-1], data)
        held.append(driver.alloc(out_size))
        driver.put(held[2], b"\xff" * out_size)  # NaN reveals elements that are never written

        def once() -> None:
            if kind:
                driver.gemm(kind, n, *held)
            else:
                size = (("u32", n),) * 3
                driver.launch("goldnode_gemm", *(("memory", memory) for memory in held), *size)

        each = timed(driver, once, seconds)
        bad = linear.wrong(driver.get(held[2], out_size), n, n, n, result)
    finally:
        for memory in held:
            driver.release(memory)
    if bad:
        i, j, got, expected = bad[0]
        raise Failed(
            f"the {kind or 'fp32'} product is wrong in row {i}, column {j}",
            expected=expected,
            got=str(got),
        )
    return float(2 * n**3 / each / 1e12)


def timed(driver: GpuDriver, work: Callable[[], None], seconds: float) -> float:
    """Return the average seconds that `work` takes on the device.

    It runs for about `seconds`, after three runs that do not count.
    """
    for _ in range(3):
        work()
    driver.sync()
    started, runs, batch = time.perf_counter(), 0, 1
    while True:
        for _ in range(batch):
            work()
        driver.sync()
        runs += batch
        took = time.perf_counter() - started
        if took >= seconds:
            return took / runs
        # The next batch fills the remaining time, estimated from the runs so far.
        batch = max(1, min(100, int(runs * (seconds - took) / took)))


# -- one batch


def inference(kind: str, **options: Any) -> Json:
    """Run a network of two layers on one batch, on each device.

    Its output is the same integers everywhere.
    """
    driver, gpus = devices(kind, **options)
    expected = linear.logits()
    figures: Dict[str, float] = {}
    for gpu in gpus:
        driver.use(gpu.number)
        out, took = forward(driver)
        if out != expected:
            raise Failed(
                f"GPU {gpu.number}: the network's output is wrong",
                expected=expected[0],
                got=[str(value) for value in out[0]],
            )
        figures[f"gpu{gpu.number}_milliseconds"] = round(took * 1e3, 3)
    return passed(
        linear.classes(expected), linear.classes(expected), figures, f"kernels: {driver.kernels()}"
    )


def forward(driver: GpuDriver) -> Tuple[List[List[float]], float]:
    """Return the logits of the batch, and the seconds they took, including copies."""
    x, first, second = linear.network()
    sizes = (linear.BATCH, linear.INPUT, linear.HIDDEN, linear.CLASSES)
    held = []
    started = time.perf_counter()
    try:
        for rows in (x, first, second):
            data = linear.flat(rows)
            held.append(driver.alloc(len(data)))
            driver.put(held[-1], data)
        held.append(driver.alloc(4 * sizes[0] * sizes[2]))
        held.append(driver.alloc(4 * sizes[0] * sizes[3]))
        put, one, two, hidden, out = (("memory", memory) for memory in held)
        driver.launch(
            "goldnode_gemm",
            put,
            one,
            hidden,
            ("u32", sizes[0]),
            ("u32", sizes[2]),
            ("u32", sizes[1]),
        )
        driver.launch("goldnode_relu", hidden, ("u64", sizes[0] * sizes[2]))
        driver.launch(
            "goldnode_gemm",
            hidden,
            two,
            out,
            ("u32", sizes[0]),
            ("u32", sizes[3]),
            ("u32", sizes[2]),
        )
        result = linear.rows_of(driver.get(held[4], 4 * sizes[0] * sizes[3]), sizes[0], sizes[3])
    finally:
        for memory in held:
            driver.release(memory)
    return result, time.perf_counter() - started


# -- memory


def memory(kind: str, share: float = 0.9, most: int = 0, **options: Any) -> Json:
    """Fill a share of each device's free memory with a pattern and its complement, and verify every word.

    The device itself verifies. `most` limits the size in bytes.
    """
    driver, gpus = devices(kind, **options)
    figures: Json = {}
    for gpu in gpus:
        driver.use(gpu.number)
        size, took = pressure(driver, gpu, share, most)
        figures[f"gpu{gpu.number}_mib"] = size // MIB
        # 4: two passes, each writes and reads every byte.
        figures[f"gpu{gpu.number}_gib_per_second"] = round(4 * size / 2**30 / took, 1)
    return passed("what was written", "what was written", figures)


def pressure(driver: GpuDriver, gpu: GpuDevice, share: float, most: int) -> Tuple[int, float]:
    """Return the bytes that were written and verified on a device, and the seconds of two passes."""
    count = driver.alloc(4)  # counter of wrong words
    held: List[Tuple[Any, int]] = []
    left = int(driver.free() * share)
    if most:
        left = min(left, most)
    try:
        while left >= MIB:
            size = min(left, driver.largest) // MIB * MIB
            held.append((driver.alloc(size), size))
            left -= size
        if not held:
            raise NotRun(f"GPU {gpu.number} has no memory free", required=True)
        started = time.perf_counter()
        # The second pass inverts every bit, so that stuck bits of both kinds show.
        for turn in (0, 0xFFFFFFFF):
            for number, (piece, size) in enumerate(held):
                driver.launch(
                    "goldnode_fill", ("memory", piece), ("u64", size // 4), ("u32", number ^ turn)
                )
            driver.sync()
            driver.put(count, bytes(4))
            for number, (piece, size) in enumerate(held):
                driver.launch(
                    "goldnode_verify",
                    ("memory", piece),
                    ("u64", size // 4),
                    ("u32", number ^ turn),
                    ("memory", count),
                )
            wrong = struct.unpack("<I", driver.get(count, 4))[0]
            if wrong:
                raise Failed(
                    f"GPU {gpu.number}: memory differs from what was written",
                    expected=0,
                    got=f"{wrong} words",
                )
        took = time.perf_counter() - started
    finally:
        for piece, _ in held:
            driver.release(piece)
        driver.release(count)
    return sum(size for _, size in held), took
