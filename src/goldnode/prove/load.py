"""Load on all CUDA devices while standard input stays open. `main` runs in a child process.

It multiplies matrices with cuBLAS if available, otherwise with a plain kernel that the driver
compiles from PTX, and copies to the device. It needs only the driver. The first line on standard
output reports that the devices are busy, the last one reports their work.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, Dict, List

from goldnode.gpuprogram import device, linear
from goldnode.gpuprogram.cuda import Cuda
from goldnode.gpuprogram.results import Failed
from goldnode.gpuprogram.work import simulated as by_library

ROUND = 0.05  # seconds of work to queue on each device before waiting for it
MOST = 600.0  # seconds; also ends a load that has lost its parent

Json = Dict[str, Any]


class Busy:
    """One device with its matrices."""

    def __init__(self, driver: Cuda, gpu: device.GpuDevice, size: int) -> None:
        self.driver, self.gpu = driver, gpu
        driver.use(gpu.number)
        kinds = driver.precisions(gpu)
        self.kind = next(iter(kinds), "")
        self.element = "fp16" if self.kind == "fp16" else "fp32"
        self.n = size or device.fitting(driver.free(), 4096 if kinds else 1024)
        self.left, right = (
            linear.matrix_a(self.n, self.n, self.element),
            linear.matrix_b(self.n, self.n, self.element),
        )
        self.memory = [driver.alloc(len(data)) for data in (self.left, right)]
        self.out = self.n * self.n * 4
        self.memory.append(driver.alloc(self.out))
        driver.put(self.memory[0], self.left)
        driver.put(self.memory[1], right)
        self.products, self.batch = 0, 1

    def queue(self) -> None:
        """Start a batch of products without waiting for them."""
        self.driver.use(self.gpu.number)
        for _ in range(self.batch):
            if self.kind:
                self.driver.gemm(self.kind, self.n, *self.memory)
            else:
                self.driver.launch(
                    "goldnode_gemm",
                    *(("memory", place) for place in self.memory),
                    *((("u32", self.n),) * 3),
                )
        self.products += self.batch

    def wait(self) -> None:
        """Wait for the batch, then copy one matrix to the device again."""
        self.driver.use(self.gpu.number)
        self.driver.sync()
        self.driver.put(self.memory[0], self.left)

    def wrong(self) -> bool:
        """Return whether the last product is incorrect."""
        self.driver.use(self.gpu.number)
        return bool(
            linear.wrong(self.driver.get(self.memory[2], self.out), self.n, self.n, self.n, "fp32")
        )


def work(driver: Cuda, size: int, say: Any) -> Json:
    """Keep all devices busy until standard input ends. Return their work."""
    gpus = driver.gpus()
    if not gpus:
        raise Failed("the CUDA driver finds no device")
    busy = [Busy(driver, gpu, size) for gpu in gpus]
    for one in busy:  # warm up with one product each, which also compiles the kernels
        one.queue()
        one.wait()
        one.products = 0
    by = "cuBLAS " + busy[0].kind if busy[0].kind else f"a plain kernel, {driver.kernels()}"
    say({"ready": True, "by": by, "size": busy[0].n, "gpus": [gpu.name for gpu in gpus]})
    began = time.monotonic()
    while time.monotonic() - began < MOST:
        start = time.monotonic()
        for one in busy:
            one.queue()
        for one in busy:
            one.wait()
        took = time.monotonic() - start
        for one in busy:
            # Adapt the batch to the speed of the device, so that a round takes about ROUND seconds.
            one.batch = max(1, min(1000, int(one.batch * ROUND / max(took, 1e-6))))
        if select.select([0], [], [], 0)[0]:  # closed, or the parent has exited
            break
    seconds = time.monotonic() - began
    figures = [
        {
            "name": one.gpu.name,
            "tflops": round(2 * one.n**3 * one.products / seconds / 1e12, 3),
            "products": one.products,
            "wrong": one.wrong(),
        }
        for one in busy
    ]
    return {
        "done": True,
        "seconds": round(seconds, 2),
        "by": by,
        "size": busy[0].n,
        "gpus": figures,
    }


def main() -> int:
    """Run the load. The argument is the size of the matrices; 0 selects it by free memory."""
    to = os.dup(1)
    os.dup2(2, 1)

    def say(line: Json) -> None:
        os.write(to, json.dumps(line).encode() + b"\n")

    try:
        driver = Cuda()
        outcome = work(driver, int(sys.argv[1]), say)
    except Failed as problem:
        outcome = {"error": str(problem)}
    say({**outcome, "simulated": simulated(outcome)})
    os._exit(0)  # skip the shutdown: a driver that hangs while unloading must not block the answer


def simulated(outcome: Json) -> bool:
    """Return whether a loaded library, or a device by its name, is simulated."""
    names: List[str] = [str(row["name"]) for row in outcome.get("gpus", [])]
    return by_library() or any(name.startswith(device.SIMULATED) for name in names)
