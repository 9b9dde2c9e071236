"""Reader of the processes on the GPUs: their mapped CUDA libraries, and the variables that select libraries
and networks.

Reads only LD_LIBRARY_PATH, CUDA_VISIBLE_DEVICES and NCCL_* of a process's environment, because the rest is
confidential. All reads run in a child process: reading the memory map of a process stuck in the kernel hangs
too.
"""

from __future__ import annotations

import os
import re
import stat
import time
from functools import partial

from ..ground.host import Json
from ..ground.optional import group
from ..probe import reader_process
from ..probe.machine import printable
from ..probe.values import Files, is_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional


DEVICE = re.compile(r"/dev/(nvidia\d+|kfd)$")
# A CUDA library, with the digest that a wheel inserts into the name, and the version after `.so`.
NAME = re.compile(
    r"/lib(cudart|cublas|cublasLt|cudnn|nccl|cuda|nvidia-ml|cufft|cusolver|cusparse|nvrtc)"
    r"(?:-[0-9a-f]{6,16})?\.so(?:\.([0-9][0-9.]*))?(?:$| )"
)
# NVIDIA's wheels (PyPI): the distribution that has the version of the library.
WHEELS = {
    "cudart": "nvidia_cuda_runtime",
    "cublas": "nvidia_cublas",
    "cublasLt": "nvidia_cublas",
    "cudnn": "nvidia_cudnn",
    "nccl": "nvidia_nccl",
    "cufft": "nvidia_cufft",
    "cusolver": "nvidia_cusolver",
    "cusparse": "nvidia_cusparse",
    "nvrtc": "nvidia_cuda_nvrtc",
}
# src/init.cc of NCCL compiles this string into the library
VERSION_TEXT = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
TORCH = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]+)['\"]", re.MULTILINE)
# Limits: processes to examine; bytes of a memory map, of an environment, and of libnccl to search.
MOST, MAPS, ENVIRONMENT, SEARCHED = 32, 8 << 20, 1 << 18, 96 << 20
SCAN = 0.6  # seconds for the scan of all open files


def read(files: Files) -> Json:
    """Return {processes: [PROCESS], unseen: number of processes not examined, error: fault or None}.

    :func:`process` documents the shape of PROCESS.
    """
    scanned = reader_process.ask([("scan", lambda: scan(files))], 2.0)["scan"]
    if is_fault(scanned):
        return {"processes": [], "unseen": 0, "error": scanned}
    pids, unseen = scanned
    jobs: List[reader_process.Job] = [
        (str(pid), partial(process, files, pid)) for pid in pids[:MOST]
    ]
    rows = reader_process.ask(jobs, 6.0) if jobs else {}
    processes = [
        row if not is_fault(row) else {"pid": int(pid), "error": row}
        for pid, row in rows.items()
        if row is not None
    ]
    return {"processes": processes, "unseen": unseen + max(len(pids) - MOST, 0), "error": None}


def scan(files: Files, limit: float = SCAN) -> List[Any]:
    """Return [processes that have a GPU open, number of processes not examined in time].

    Begin with the youngest. A process that ends during the scan is not an error.
    """
    end = time.monotonic() + limit
    pids = sorted((int(name) for name in files.names("/proc") if name.isdigit()), reverse=True)
    holders: List[int] = []
    for at, pid in enumerate(pids):
        if time.monotonic() > end:
            return [holders, len(pids) - at]
        folder = f"/proc/{pid}/fd"
        if any(
            DEVICE.match(files.target(f"{folder}/{name}") or "") for name in files.names(folder)
        ):
            holders.append(pid)
    return [holders, 0]


def process(files: Files, pid: int) -> Optional[Json]:
    """Read one process.

    Return {pid, command, libraries: [{name, path, version, deleted}], torch: CUDA version that its PyTorch
    was built with, environment: {NAME: value}, missing: [directories of LD_LIBRARY_PATH that do not exist],
    interfaces: [names in its network namespace], same_network: whether that is the namespace of the host}.

    Return None if the process has ended. `libraries` is a fault if its memory map is unreadable.
    """
    folder = f"/proc/{pid}"
    command = files.text(f"{folder}/comm")
    if not isinstance(command, str):
        return None
    maps = files.data(f"{folder}/maps", MAPS)
    torch: Optional[str] = None
    libraries: Any = maps
    if isinstance(maps, bytes):
        libraries = []
        for path in mapped(maps):
            row = library(files, f"{folder}/root", path)
            if row:
                libraries.append(row)
            if torch is None and "/torch/lib/" in path:
                torch = _torch(
                    files, f"{folder}/root{path.partition('/torch/lib/')[0]}/torch/version.py"
                )
    environment = variables(files.data(f"{folder}/environ", ENVIRONMENT))
    folders = [
        name for name in environment.get("LD_LIBRARY_PATH", "").split(":") if name.startswith("/")
    ]
    # The interfaces of its own network namespace, which may be a container's.
    net = files.text(f"{folder}/net/dev")
    interfaces = None
    if isinstance(net, str):
        interfaces = [line.partition(":")[0].strip() for line in net.splitlines() if ":" in line]
    return {
        "pid": pid,
        "command": printable(command),
        "libraries": libraries,
        "torch": torch,
        "environment": environment,
        "missing": [
            name
            for name in folders
            if "/.." not in name and not files.there(f"{folder}/root{name}")
        ],
        "interfaces": interfaces,
        # Compare namespaces, because the states of interfaces in the capture are those of the host.
        "same_network": files.target(f"{folder}/ns/net") == files.target("/proc/self/ns/net"),
    }


def mapped(maps: bytes) -> List[str]:
    """Return the files of a memory map (proc_pid_maps(5)), each once."""
    paths: Dict[str, None] = {}
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) > 5 and fields[5].startswith(b"/"):
            paths.setdefault(fields[5].decode("utf-8", "replace"))
    return list(paths)


def library(files: Files, root: str, path: str) -> Optional[Json]:
    """Return the identity of a mapped CUDA library; None for any other file.

    The version comes from the file name, from the library's wheel, or (NCCL) from the version string in the
    library.
    """
    match = NAME.search(path)
    if not match:
        return None
    gone = path.endswith(" (deleted)")
    if gone:
        path = path[: -len(" (deleted)")]
    name, version = match.group(1), match.group(2)
    # The name often has only the major version, as in libcudart.so.12. A path out of the root is not followed.
    if name in WHEELS and (version or "").count(".") < 2 and "/.." not in path:
        exact = _wheel(files, root, path, WHEELS[name])
        if exact is None and name == "nccl" and not gone:
            exact = _embedded_version(files.root + root + path)
        version = exact or version
    return {"name": name, "path": printable(path, 240), "version": version, "deleted": gone}


def _wheel(files: Files, root: str, path: str, distribution: str) -> Optional[str]:
    """Return the version of the wheel that a library belongs to.

    Its dist-info directory is next to `nvidia` in …/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12.
    """
    place, inside, _ = path.partition("/nvidia/")
    if not inside:
        return None
    for name in files.names(root + place):
        match = re.match(rf"{distribution}(?:_cu\d+)?-(\d[\d.]*)\.dist-info$", name)
        if match:
            return match.group(1)
    return None


def _torch(files: Files, name: str) -> Optional[str]:
    text = files.text(name)
    match = TORCH.search(text) if isinstance(text, str) else None
    return group(match)


def _embedded_version(path: str) -> Optional[str]:
    """Return the version string in an NCCL library, from its first :data:`SEARCHED` bytes."""
    import mmap  # start-up time: only where NCCL is in a library of its own

    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return None
        with mmap.mmap(handle, min(status.st_size, SEARCHED), access=mmap.ACCESS_READ) as view:
            match = VERSION_TEXT.search(view)
            return match.group(1).decode() if match else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)


def variables(data: Any) -> Dict[str, str]:
    """Return the non-confidential variables of an environment, each on one line."""
    values: Dict[str, str] = {}
    for item in data.split(b"\0") if isinstance(data, bytes) else ():
        name, _, value = item.partition(b"=")
        if name in (b"LD_LIBRARY_PATH", b"CUDA_VISIBLE_DEVICES") or re.match(
            rb"NCCL_[A-Z0-9_]{1,48}$", name
        ):
            values[name.decode()] = printable(value.decode("utf-8", "replace"), 1000)
        if len(values) >= 40:
            break
    return values
