"""Rules about Intel's GPUs: the kernel's own driver, its release, and Debian's OpenCL."""

from __future__ import annotations

from collections.abc import Iterator

from goldnode.compat import remedies
from goldnode.compat.model import CompatFinding, CompatHost, CompatRule, Workload, about
from goldnode.compat.remedies import CompatRemedy
from goldnode.facts.host import GpuModel, numbers

_FACTS = "gpus.yml"


def intel_gpu(host: CompatHost | None, workload: Workload | None = None) -> Iterator[CompatFinding]:
    """Check that the stack's kernel driver binds the GPU, and that its OpenCL knows it."""
    if host is None or host.vendor != "intel":
        return
    for gpu in host.gpus:
        if gpu.vendor == "intel":
            yield from _bound(host, gpu)
            yield from _opencl(host, gpu)


def _bound(host: CompatHost, gpu: GpuModel) -> Iterator[CompatFinding]:
    """Check the driver, and the first kernel in which it binds the GPU without a parameter."""
    where = about(host, "gpu", "driver", "kernel")
    if gpu.in_kernel is False:
        yield where.block(
            "intel-gpu",
            f"no driver of the Linux kernel binds {gpu.sku} by itself: Intel's i915 of its own DKMS package drives it",
            gpu.origins("driver"),
            remedy="use other GPUs; goldnode has no stack with Intel's DKMS package",
        )
        return
    if gpu.kernel_driver is None:
        yield where.unknown(
            "intel-gpu", f"no source says which driver of the kernel binds {gpu.sku}"
        )
        return
    if host.kernel_module is not None and host.kernel_module != gpu.kernel_driver:
        yield where.block(
            "intel-gpu",
            f"{gpu.kernel_driver} binds {gpu.sku}, and the stack's driver is {host.kernel_module}, which does not "
            "without force_probe",
            gpu.origins("driver"),
            remedy=CompatRemedy.of(
                [
                    remedies.of_host(
                        f"a stack whose driver is {gpu.kernel_driver}",
                        kernel_module=gpu.kernel_driver,
                    )
                ],
                otherwise=f"use a stack whose driver is {gpu.kernel_driver}",
            ),
        )
        return
    yield from _kernel(host, gpu)


def _kernel(host: CompatHost, gpu: GpuModel) -> Iterator[CompatFinding]:
    kernel = host.kernel_version or host.kernel
    if kernel is None:
        return
    where, sources = about(host, "kernel", "gpu"), gpu.origins("driver")
    # Of a release like 6.1.0-50-amd64 without its upstream version, only the series is known.
    have = numbers(kernel.partition("-")[0].partition("+")[0])
    first = gpu.min_kernel or gpu.kernel_listed
    if first is None:
        yield where.unknown(
            "intel-gpu",
            f"no source gives the first kernel in which {gpu.kernel_driver} binds {gpu.sku}",
            sources,
        )
        return
    if have >= numbers(first)[: len(have)]:
        return
    remedy = CompatRemedy.of(
        [remedies.kernel(first, f"kernel {first} or later", first)],
        otherwise=f"use kernel {first} or later",
    )
    unlisted = gpu.kernel_unlisted
    if gpu.min_kernel is not None or (unlisted is not None and have <= numbers(unlisted)):
        yield where.block(
            "intel-gpu",
            f"{gpu.kernel_driver} of kernel {kernel} does not bind {gpu.sku} by itself; {first} does",
            sources,
            remedy=remedy,
        )
    else:
        yield where.unknown(
            "intel-gpu",
            f"{gpu.kernel_driver} of kernel {first} lists {gpu.sku}; whether that of {kernel} does is not known",
            sources,
            remedy=remedy,
        )


def _opencl(host: CompatHost, gpu: GpuModel) -> Iterator[CompatFinding]:
    """Check Debian's intel-opencl-icd against the first release that lists the GPU."""
    least = gpu.compute_runtime
    if host.opencl is None or least is None or numbers(host.opencl) >= numbers(least):
        return
    yield about(host, "driver", "gpu").block(
        "intel-gpu",
        f"intel-opencl-icd {host.opencl} of the stack does not know {gpu.sku}; {least} is the first that lists it",
        gpu.origins("compute_runtime"),
        remedy=CompatRemedy.of(
            [
                remedies.of_host(f"intel-opencl-icd {least} or later", opencl=least),
                remedies.of_host("a stack without it: containers carry their own", opencl=None),
            ],
            otherwise="leave intel-opencl-icd out of the stack: containers carry their own",
        ),
    )


RULES: tuple[CompatRule, ...] = (
    CompatRule(
        "intel-gpu",
        "The kernel's driver binds the Intel GPU",
        "i915 drives Arc A and Flex, xe the B series, each from a kernel release on without force_probe; no driver of the "
        "Linux kernel binds the Max series. Where the first release is not known, the PCI ids in Debian's kernels decide: "
        "one that lists the board and one that does not. Debian's intel-opencl-icd must be of a release that lists the "
        "PCI id. Facts: gpus.yml (kernel_driver, min_kernel, kernel_listed, kernel_unlisted, in_kernel, compute_runtime).",
        intel_gpu,
        {_FACTS: ("dg2_probe", "bmg_probe", "pvc_ids", "xe_pci", "debian_alias", "neo")},
    ),
)
