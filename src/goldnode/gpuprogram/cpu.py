"""The tests of the backend cpu: GEMM, inference, all-reduce between processes, and memory.

All of them really compute. GEMM and inference use a BLAS if one is installed.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import socket
import time
from typing import Any, List, Optional, Tuple

from . import image, linear, native
from .results import Failed, Json, NotRun, passed

# The first one found is used. Debian's libblas.so.3 is the BLAS that update-alternatives selects,
# including its CBLAS symbols.
BLAS = ("libopenblas.so.0", "libblas.so.3", "libmkl_rt.so.2")
COLUMN_MAJOR, NO_TRANSPOSE = 102, 111  # cblas.h


def blas() -> Optional[Tuple[str, ctypes.CDLL]]:
    """Return name and handle of a BLAS with C symbols; None if none is installed."""
    for soname in BLAS:
        if not native.absent(soname):
            library = native.load(soname)
            # A BLAS may have Fortran's symbols alone.
            if hasattr(library, "cblas_sgemm"):
                return soname, library
    return None


def call(
    library: ctypes.CDLL, kind: str, m: int, n: int, k: int, *, left: Any, right: Any, out: Any
) -> None:
    """Compute out = left x right, column-major."""
    name, real = {"fp32": ("sgemm", ctypes.c_float), "fp64": ("dgemm", ctypes.c_double)}[kind]
    function = getattr(library, f"cblas_{name}")
    function.argtypes = [ctypes.c_int] * 6 + [
        real,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int,
        real,
        ctypes.c_void_p,
        ctypes.c_int,
    ]
    function.restype = None
    function(COLUMN_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, m, n, k, 1.0, left, m, right, k, 0.0, out, m)


def gemm(size: int = 0, seconds: float = 1.0) -> Json:
    """Multiply two square matrices in single and double precision, and compare every element."""
    chosen = blas()
    if chosen is None:
        return _gemm_in_python(size or 96)
    name, library = chosen
    n = size or 768
    figures: Json = {}
    for kind in ("fp32", "fp64"):
        left, right = linear.matrix_a(n, n, kind), linear.matrix_b(n, n, kind)
        out = ctypes.create_string_buffer(n * n * linear.KINDS[kind][1])
        # The first call starts the library's threads.
        call(library, kind=kind, m=n, n=n, k=n, left=left, right=right, out=out)
        started, runs = time.perf_counter(), 0
        while not runs or time.perf_counter() - started < seconds / 2:
            call(library, kind=kind, m=n, n=n, k=n, left=left, right=right, out=out)
            runs += 1
        took = time.perf_counter() - started
        _compare(out.raw, n, kind)
        figures[f"{kind}_gflops"] = round(2 * n**3 * runs / took / 1e9, 2)
    return passed(
        "every element exact",
        {"blas": name, "size": n},
        figures,
        f"by {name}; no floor: the facts know none for processors",
    )


def _gemm_in_python(n: int) -> Json:
    """Multiply small matrices in Python, for images without a BLAS."""
    left = [[float(linear.a(i, k)) for k in range(n)] for i in range(n)]
    right = [[float(linear.b(k, j)) for j in range(n)] for k in range(n)]
    started = time.perf_counter()
    product = linear.multiply(left, right)
    took = time.perf_counter() - started
    _compare(linear.flat(product), n, "fp32")
    figures = {"fp64_gflops": round(2 * n**3 / took / 1e9, 4)}
    return passed(
        "every element exact",
        {"blas": "none: computed by Python", "size": n},
        figures,
        "by Python, there is no BLAS; no floor",
    )


def _compare(result: bytes, n: int, kind: str) -> None:
    bad = linear.wrong(result, n, n, n, kind)
    if bad:
        i, j, got, expected = bad[0]
        raise Failed(
            f"the {kind} product is wrong in row {i}, column {j}", expected=expected, got=got
        )


def inference() -> Json:
    """Run one batch through two layers and a softmax, with BLAS if available, otherwise in Python.

    The result is compared with integer arithmetic.
    """
    chosen = blas()
    x, first, second = linear.network()
    started = time.perf_counter()
    if chosen is None:
        name = "none: computed by Python"
        out = linear.multiply(
            linear.relu(linear.multiply([[float(v) for v in row] for row in x], first)), second
        )
    else:
        name, library = chosen
        hidden = linear.relu(_product(library, x, first))
        out = _product(library, hidden, second)
    took = time.perf_counter() - started
    expected = linear.logits()
    if out != expected:
        raise Failed("the network's output is wrong", expected=expected[0], got=out[0])
    return passed(
        linear.classes(expected),
        linear.classes(out),
        {"batch": linear.BATCH, "milliseconds": round(took * 1e3, 3)},
        f"BLAS: {name}",
    )


def _product(library: ctypes.CDLL, left: Any, right: Any) -> List[List[float]]:
    rows, inner, columns = len(left), len(right), len(right[0])
    out = ctypes.create_string_buffer(rows * columns * 4)
    call(
        library,
        kind="fp32",
        m=rows,
        n=columns,
        k=inner,
        left=linear.flat(left),
        right=linear.flat(right),
        out=out,
    )
    return linear.rows_of(out.raw, rows, columns)


def collective(ranks: int = 0, count: int = 1 << 15) -> Json:
    """Sum `count` doubles over `ranks` processes, and compare every element.

    The processes form a ring of sockets and return their results in shared memory.
    """
    ranks = ranks or max(2, min(4, os.cpu_count() or 2))
    count -= count % ranks  # every rank reduces an equal part
    shared = mmap.mmap(-1, ranks * count * 8)
    # Rank r sends into pairs[r][0]; r + 1 receives from pairs[r][1].
    pairs = [socket.socketpair() for _ in range(ranks)]
    started = time.perf_counter()
    children = []
    for rank in range(ranks):
        # fork: the child shares the mapping and the sockets. os._exit skips clean-up that belongs
        # to the parent.
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                own = ring(rank, ranks, count, pairs[rank][0], pairs[rank - 1][1])
                shared[rank * count * 8 : (rank + 1) * count * 8] = own.tobytes()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    took = time.perf_counter() - started
    if any(codes):
        raise Failed("a process of the all-reduce ended badly", expected=[0] * ranks, got=codes)
    # The sum of all ranks' start values, see `ring`.
    wanted = array.array(
        "d", (ranks * (ranks + 1) // 2 + ranks * (index % 97) for index in range(count))
    ).tobytes()
    for rank in range(ranks):
        if shared[rank * count * 8 : (rank + 1) * count * 8] != wanted:
            raise Failed(
                f"rank {rank} of {ranks} has another sum",
                expected="equal sums on every rank",
                got="a difference",
            )
    figures = {
        "ranks": ranks,
        "mib": round(count * 8 / 2**20, 3),
        "milliseconds": round(took * 1e3, 1),
    }
    return passed("equal sums on every rank", "equal sums on every rank", figures)


def ring(
    rank: int, ranks: int, count: int, to: socket.socket, of: socket.socket
) -> array.array[float]:
    """Run one rank of a ring all-reduce: reduce-scatter, then all-gather.

    Each rank starts with rank + 1 + index modulo 97.
    """
    values = array.array("d", (rank + 1 + index % 97 for index in range(count)))
    part = count // ranks
    for step in range(2 * (ranks - 1)):
        # Each step sends the part that the previous step received. The second half begins with the
        # part that the first has completed.
        out = (rank - step) % ranks
        into = (out - 1) % ranks
        got = exchange(to, of, values[out * part : (out + 1) * part].tobytes())
        received = array.array("d", got)
        if step < ranks - 1:
            for index, value in enumerate(received):
                values[into * part + index] += value
        else:
            values[into * part : (into + 1) * part] = received
    return values


def exchange(to: socket.socket, of: socket.socket, data: bytes) -> bytes:
    """Send `data` and receive as many bytes, in turns, so that full socket buffers cannot block the ring."""
    to.setblocking(False)
    of.setblocking(True)
    of.settimeout(30)
    sent, got = 0, bytearray()
    while sent < len(data) or len(got) < len(data):
        moved = 0
        if sent < len(data):
            try:
                moved = to.send(data[sent : sent + 65536])
                sent += moved
            except BlockingIOError:
                pass
        if len(got) < len(data) and (not moved or sent == len(data)):
            piece = of.recv(min(65536, len(data) - len(got)))
            if not piece:
                raise Failed("a process of the all-reduce went away")
            got += piece
    return bytes(got)


BLOCK = 1 << 20
MARK = 8


def memory(share: float = 0.0, root: str = "/") -> Json:
    """Allocate a share of the free memory, write a pattern, and read it back.

    The default is 5 %, at most 256 MiB.
    """
    free = image.memory(root)
    size = int(free * share)
    if not share:
        size = min(int(free * 0.05), 256 << 20)
    size -= size % BLOCK
    if not size:
        raise NotRun(f"no memory is free: {free >> 20} MiB", required=True)
    started = time.perf_counter()
    with mmap.mmap(-1, size) as area:
        for turn, factor in enumerate((7, 11)):
            # All blocks are equal except for the offset in their first bytes, which reveals
            # addressing errors.
            rest = (bytes((value * factor + 1) % 251 for value in range(4096)) * (BLOCK // 4096))[
                MARK:
            ]
            for at in range(0, size, BLOCK):
                area[at : at + MARK] = at.to_bytes(MARK, "little")
                area[at + MARK : at + BLOCK] = rest
            for at in range(0, size, BLOCK):
                if (
                    int.from_bytes(area[at : at + MARK], "little") != at
                    or area[at + MARK : at + BLOCK] != rest
                ):
                    why = f"memory differs from what was written, in pass {turn + 1}"
                    raise Failed(why, expected="equal", got=f"a difference in MiB {at // BLOCK}")
    took = time.perf_counter() - started
    # 4: two passes, each writes and reads every byte.
    figures = {"mib": size >> 20, "gib_per_second": round(4 * size / 2**30 / took, 2)}
    return passed("what was written", "what was written", figures)
