"""Simulated GPU libraries for goldnode-smoke: accelerator.c, compiled once per library.

They compute on the host, and report themselves as simulated. Call `build(directory)`, then start a process
with `LD_LIBRARY_PATH=directory`. `GOLDNODE_ACCELERATOR` selects faults (see accelerator.c). `devices(root,
backend, count)` creates the device files that the runner counts, below a separate root.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("accelerator.c")
LIBRARIES = {
    "libcuda.so.1": ("CUDA", "DRIVER"),
    "libcudart.so.12": ("CUDA", "RUNTIME"),
    "libcublas.so.12": ("CUDA", "BLAS"),
    "libnccl.so.2": ("CUDA", "COLLECTIVE"),
    "libamdhip64.so.5": ("HIP", "DRIVER"),
    "librocblas.so.0": ("HIP", "BLAS"),
    "librccl.so.1": ("HIP", "COLLECTIVE"),
}


def build(directory: Path, *wanted: str) -> Path:
    """Compile the libraries (all, or those named) into `directory`; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    for soname in wanted or LIBRARIES:
        defines = [f"-D{name}" for name in LIBRARIES[soname]]
        flags = [
            "-std=gnu11",
            "-O1",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-Wno-array-bounds",
        ]
        command = [
            "cc",
            *flags,
            *defines,
            f"-Wl,-soname,{soname}",
            "-o",
            str(directory / soname),
            str(SOURCE),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return directory


def devices(root: Path, backend: str, count: int, pci_id: str = "10de:2335") -> Path:
    """Create device files of `count` GPUs below `root`, and their PCI devices in sysfs."""
    (root / "dev").mkdir(parents=True, exist_ok=True)
    names = [f"nvidia{index}" for index in range(count)] if backend == "cuda" else ["kfd"]
    for name in names:
        (root / "dev" / name).touch()
    vendor, device = pci_id.split(":")
    for index in range(count):
        folder = root / f"sys/bus/pci/devices/0000:{0x18 + index:02x}:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vendor").write_text(f"0x{vendor}\n")
        (folder / "device").write_text(f"0x{device}\n")
    return root
