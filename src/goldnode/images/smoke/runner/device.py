"""The tests of the GPU tier, in terms of a driver: `cuda`, `rocm` and `opencl` bring one each.

A driver is opened once in the process of a test. Its methods raise Failed with the library's own words.
"""

from __future__ import annotations

import importlib
import struct
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import image, linear
from .report import Failed, Json, NotRun, passed

MIB = 1 << 20
SIMULATED = "SIMULATED"  # begins the name of a device that is none


class Gpu(NamedTuple):
    """What a driver says of one device. `address`: on the PCI bus, empty where it does not say; `capability`: of CUDA, else empty."""

    number: int
    name: str
    memory: int
    address: str
    capability: Tuple[int, ...]
    units: int


class Driver:
    """What a backend's library can do. Addresses of device memory are whole numbers or handles, whatever the library gives."""

    kind = ""
    blas: Tuple[str, ...] = ()  # precisions that `gemm` takes, best first, beyond the plain kernel
    largest = 4 << 30  # bytes of one allocation

    def gpus(self) -> List[Gpu]:
        """The devices, in the library's order."""
        raise NotImplementedError

    def versions(self) -> Json:
        """What driver and runtime say of themselves."""
        raise NotImplementedError

    def use(self, index: int) -> None:
        """Work on this device from now on."""
        raise NotImplementedError

    def free(self) -> int:
        """Bytes of memory that are free on the device."""
        raise NotImplementedError

    def alloc(self, size: int) -> Any:
        """Memory on the device."""
        raise NotImplementedError

    def release(self, memory: Any) -> None:
        """Give memory back."""
        raise NotImplementedError

    def put(self, memory: Any, data: bytes) -> None:
        """Copy to the device."""
        raise NotImplementedError

    def get(self, memory: Any, size: int) -> bytes:
        """Copy from the device; waits for what was launched."""
        raise NotImplementedError

    def launch(self, kernel: str, *arguments: Tuple[str, Any]) -> None:
        """Start a kernel; arguments are (`memory` | `u64` | `u32`, value)."""
        raise NotImplementedError

    def sync(self) -> None:
        """Wait for the device."""
        raise NotImplementedError

    def gemm(self, kind: str, n: int, left: Any, right: Any, out: Any) -> None:
        """Multiply square matrices by the vendor's library; `kind` is one of `blas`."""
        raise NotImplementedError

    def kernels(self) -> str:
        """What the kernels were compiled by."""
        raise NotImplementedError

    def precisions(self, gpu: Gpu) -> Tuple[str, ...]:
        """The precisions to measure on a device, of those in `blas`."""
        return self.blas


def driver(kind: str, **options: Any) -> Driver:
    """The driver of a backend."""
    found: Driver = importlib.import_module(f"{__package__}.{kind}").open_driver(**options)
    return found


def simulated(gpus: Sequence[Gpu]) -> bool:
    """Whether the devices say that they are none; then the whole result says it too."""
    if any(gpu.name.startswith(SIMULATED) for gpu in gpus):
        from . import native

        native.SIMULATED.append(SIMULATED)
        return True
    return False


def devices(kind: str, **options: Any) -> Tuple[Driver, List[Gpu]]:
    """A driver and its devices; without a device a test fails."""
    found = driver(kind, **options)
    gpus = found.gpus()
    simulated(gpus)
    if not gpus:
        raise Failed(
            "the library finds no device, although there are device files", expected="1 or more", got=0
        )
    return found, gpus


def shown(gpu: Gpu) -> Json:
    """A device in a result. No serial number and no UUID: a record goes beside a published image."""
    found: Json = {"name": gpu.name, "memory_mib": gpu.memory // MIB}
    if gpu.address:
        found["address"] = gpu.address
    if gpu.capability:
        found["compute_capability"] = ".".join(str(number) for number in gpu.capability)
    return found


def discovery(kind: str, expected: int = 0, files: int = 0, **options: Any) -> Json:
    """The devices, by the library. `expected`: how many there have to be; without it as many as there are device files (`files`), unless a
    device is a part of one (MIG) or the environment chooses some."""
    found, gpus = devices(kind, **options)
    partial = any("MIG" in gpu.name for gpu in gpus)
    wanted = expected or (0 if partial else files)
    got = {"count": len(gpus), "devices": [shown(gpu) for gpu in gpus], **found.versions()}
    if wanted and len(gpus) != wanted:
        raise Failed(
            "the library finds another number of devices", expected=wanted, got=len(gpus), figures=got
        )
    return passed({"count": wanted or "1 or more"}, got)


# -- GEMM


def model(gpu: Gpu, floors: Sequence[Json], root: str) -> Optional[Json]:
    """The row of the facts for a device: by its PCI id, which sysfs tells."""
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
    """On each device: large square products in the precisions that its units are made for, each compared whole, and each at least at the floor."""
    found, gpus = devices(kind, **options)
    rows, slow = [], []
    for gpu in gpus:
        found.use(gpu.number)
        row = one_gemm(found, gpu, model(gpu, floors, root), size, seconds)
        rows.append(row)
        slow += [
            f"GPU {gpu.number} {name}"
            for name, figure in row["tflops"].items()
            if figure < row["floor"].get(name, 0)
        ]
    expected = [{"model": row["model"], "floor_tflops": row["floor"]} for row in rows]
    got = [
        {"name": row["name"], "tflops": row["tflops"], "size": row["size"], "by": row["by"]} for row in rows
    ]
    unknown = sorted({row["name"] for row in rows if not row["floor"]})
    why = f"no floor is known for {', '.join(unknown)}: {rows[0]['no_floor']}" if unknown else ""
    figures = {
        f"gpu{gpu.number}_{name}_tflops": value
        for gpu, row in zip(gpus, rows)
        for name, value in row["tflops"].items()
    }
    if slow:
        raise Failed(f"slower than the floor: {', '.join(slow)}", expected=expected, got=got, figures=figures)
    return passed(expected, got, figures, why)


def one_gemm(found: Driver, gpu: Gpu, row: Optional[Json], size: int, seconds: float) -> Json:
    """Measure one device: {name, model, size, by, tflops, floor, no_floor}."""
    kinds = found.precisions(gpu)
    n = size or fitting(found.free(), 8192 if kinds else 512)
    floor = dict(row["floor_tflops"]) if row is not None else {}
    reason = "its PCI id is in no row of the facts, or cannot be read here" if row is None else ""
    if "MIG" in gpu.name:
        floor, reason = {}, "it is a part of a board"
    elif not kinds:
        floor, reason = {}, "there is no BLAS here, and the plain kernel is not made to be fast"
    elif size and size < 2048:
        floor, reason = {}, f"matrices of {size} are too small to measure"
    tflops = {}
    for name in kinds or ("fp32",):
        tflops[name] = round(multiply(found, name if kinds else "", n, seconds), 3)
    by = "the vendor's BLAS" if kinds else f"a plain kernel, {found.kernels()}"
    kept = {name: value for name, value in floor.items() if name in tflops}
    return {
        "name": gpu.name, "model": None if row is None else row["model"], "size": n, "by": by,
        "tflops": tflops, "floor": kept,
        "no_floor": reason or "the facts state none for its precisions",
    }  # fmt: skip


def fitting(free: int, most: int) -> int:
    """The largest power of two, at most `most`, whose three matrices take less than half of what is free."""
    n = most
    while n > 256 and 12 * n * n > free // 2:
        n //= 2
    return n


def multiply(found: Driver, kind: str, n: int, seconds: float) -> float:
    """10 ** 12 operations a second of n x n products, warmed up; the last result is compared whole. `kind` empty: by the plain kernel."""
    element = "fp16" if kind == "fp16" else "fp64" if kind == "fp64" else "fp32"
    result = "fp64" if kind == "fp64" else "fp32"
    left, right = linear.matrix_a(n, n, element), linear.matrix_b(n, n, element)
    out_size = n * n * linear.KINDS[result][1]
    held = []
    try:
        for data in (left, right):
            held.append(found.alloc(len(data)))
            found.put(held[-1], data)
        held.append(found.alloc(out_size))
        found.put(held[2], b"\xff" * out_size)  # NaN, so that an element that is not written shows

        def once() -> None:
            if kind:
                found.gemm(kind, n, *held)
            else:
                size = (("u32", n),) * 3
                found.launch("goldnode_gemm", *(("memory", memory) for memory in held), *size)

        each = timed(found, once, seconds)
        bad = linear.wrong(found.get(held[2], out_size), n, n, n, result)
    finally:
        for memory in held:
            found.release(memory)
    if bad:
        i, j, got, expected = bad[0]
        raise Failed(
            f"the {kind or 'fp32'} product is wrong in row {i}, column {j}", expected=expected, got=str(got)
        )
    return float(2 * n**3 / each / 1e12)


def timed(found: Driver, work: Callable[[], None], seconds: float) -> float:
    """Seconds that `work` takes on the device, on average over about `seconds`, after three runs that do not count."""
    for _ in range(3):
        work()
    found.sync()
    started, runs, batch = time.perf_counter(), 0, 1
    while True:
        for _ in range(batch):
            work()
        found.sync()
        runs += batch
        took = time.perf_counter() - started
        if took >= seconds:
            return took / runs
        batch = max(1, min(100, int(runs * (seconds - took) / took)))


# -- one batch


def inference(kind: str, **options: Any) -> Json:
    """On each device: a network of two layers on one batch. Its output is the same whole numbers everywhere."""
    found, gpus = devices(kind, **options)
    expected = linear.logits()
    figures: Dict[str, float] = {}
    for gpu in gpus:
        found.use(gpu.number)
        out, took = forward(found)
        if out != expected:
            raise Failed(
                f"GPU {gpu.number}: the network's output is wrong",
                expected=expected[0],
                got=[str(value) for value in out[0]],
            )
        figures[f"gpu{gpu.number}_milliseconds"] = round(took * 1e3, 3)
    return passed(linear.classes(expected), linear.classes(expected), figures, f"kernels: {found.kernels()}")


def forward(found: Driver) -> Tuple[List[List[float]], float]:
    """The logits of the batch and the seconds they took, copies included."""
    x, first, second = linear.network()
    sizes = (linear.BATCH, linear.INPUT, linear.HIDDEN, linear.CLASSES)
    held = []
    started = time.perf_counter()
    try:
        for rows in (x, first, second):
            data = linear.flat(rows)
            held.append(found.alloc(len(data)))
            found.put(held[-1], data)
        held.append(found.alloc(4 * sizes[0] * sizes[2]))
        held.append(found.alloc(4 * sizes[0] * sizes[3]))
        put, one, two, hidden, out = (("memory", memory) for memory in held)
        found.launch(
            "goldnode_gemm", put, one, hidden, ("u32", sizes[0]), ("u32", sizes[2]), ("u32", sizes[1])
        )
        found.launch("goldnode_relu", hidden, ("u64", sizes[0] * sizes[2]))
        found.launch(
            "goldnode_gemm", hidden, two, out, ("u32", sizes[0]), ("u32", sizes[3]), ("u32", sizes[2])
        )
        result = linear.rows_of(found.get(held[4], 4 * sizes[0] * sizes[3]), sizes[0], sizes[3])
    finally:
        for memory in held:
            found.release(memory)
    return result, time.perf_counter() - started


# -- memory


def memory(kind: str, share: float = 0.9, most: int = 0, **options: Any) -> Json:
    """On each device: take a share of the free memory (`most` bytes at most), write a pattern and its complement, and verify every word there."""
    found, gpus = devices(kind, **options)
    figures: Json = {}
    for gpu in gpus:
        found.use(gpu.number)
        size, took = pressure(found, gpu, share, most)
        figures[f"gpu{gpu.number}_mib"] = size // MIB
        figures[f"gpu{gpu.number}_gib_per_second"] = round(4 * size / 2**30 / took, 1)
    return passed("what was written", "what was written", figures)


def pressure(found: Driver, gpu: Gpu, share: float, most: int) -> Tuple[int, float]:
    """Bytes that were written and verified on a device, and the seconds of two passes."""
    count = found.alloc(4)  # where wrong words are counted
    held: List[Tuple[Any, int]] = []
    left = int(found.free() * share)
    left = min(left, most) if most else left
    try:
        while left >= MIB:
            size = min(left, found.largest) // MIB * MIB
            held.append((found.alloc(size), size))
            left -= size
        if not held:
            raise NotRun(f"GPU {gpu.number} has no memory free", required=True)
        started = time.perf_counter()
        for turn in (0, 0xFFFFFFFF):
            for number, (piece, size) in enumerate(held):
                found.launch("goldnode_fill", ("memory", piece), ("u64", size // 4), ("u32", number ^ turn))
            found.sync()
            found.put(count, bytes(4))
            for number, (piece, size) in enumerate(held):
                found.launch(
                    "goldnode_verify",
                    ("memory", piece),
                    ("u64", size // 4),
                    ("u32", number ^ turn),
                    ("memory", count),
                )
            wrong = struct.unpack("<I", found.get(count, 4))[0]
            if wrong:
                raise Failed(
                    f"GPU {gpu.number}: memory differs from what was written",
                    expected=0,
                    got=f"{wrong} words",
                )
        took = time.perf_counter() - started
    finally:
        for piece, _ in held:
            found.release(piece)
        found.release(count)
    return sum(size for _, size in held), took
