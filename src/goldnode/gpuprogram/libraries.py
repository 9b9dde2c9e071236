"""The runtime libraries of an image: load each one, and compare its version with the stated one."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from . import native
from .results import Failed, Json, NotRun, passed

Numbers = Tuple[int, ...]


class Component(NamedTuple):
    """A part of an image that is a shared library.

    `stem` is its file name before `.so`. `majors` are soname versions to try, newest first, unless
    the part's version determines one. `version` reads the version, with as many numbers as the
    library reports; at most `compared` of them are compared. `odd` maps the part's major version to
    the soname version where they differ. `also` maps a soname version to other libraries of the
    part, which the first one opens later. `others` are sonames with another stem that replaced it
    in some release.
    """

    stem: str
    majors: Tuple[str, ...]
    version: Optional[Callable[[ctypes.CDLL], Numbers]] = None
    compared: int = 4
    odd: Mapping[str, str] = {}
    also: Mapping[str, Tuple[str, ...]] = {}
    others: Tuple[str, ...] = ()


def _packed(
    function: str, steps: Tuple[int, ...], kind: Any = ctypes.c_int
) -> Callable[[ctypes.CDLL], Numbers]:
    """Return a reader for a status function that returns one packed number.

    `steps` are the weights of major, minor and so on.
    """

    def read(library: ctypes.CDLL) -> Numbers:
        value = kind(-1)
        status = native.integer(library, function, ctypes.byref(value))
        if status != 0:
            raise Failed(f"{function} fails", expected=0, got=status)
        return split(int(value.value), steps)

    return read


def _cudart(library: ctypes.CDLL) -> Numbers:
    """cudaRuntimeGetVersion.

    Without a driver or device, CUDA 11 returns that as its status and gives no number (seen with
    11.8.89). CUDA 12 gives the number.
    """
    value = ctypes.c_int(-1)
    status = native.integer(library, "cudaRuntimeGetVersion", ctypes.byref(value))
    # cudaErrorInsufficientDriver, cudaErrorNoDevice
    if status in (35, 100) and ".so.11" in str(library._name):
        return ()
    if status != 0:
        raise Failed("cudaRuntimeGetVersion fails", expected=0, got=status)
    return split(value.value, (1000, 10))


def split(value: int, steps: Tuple[int, ...]) -> Numbers:
    """Split a packed version: 12040 with steps (1000, 10) is (12, 4)."""
    numbers = []
    for step in steps:
        numbers.append(value // step)
        value %= step
    return tuple(numbers)


def _property(function: str) -> Callable[[ctypes.CDLL], Numbers]:
    """NVIDIA's libraryPropertyType: 0 major, 1 minor, 2 patch (library_types.h). Needs no device."""

    def read(library: ctypes.CDLL) -> Numbers:
        numbers = []
        for kind in range(3):
            value = ctypes.c_int(-1)
            status = native.integer(library, function, kind, ctypes.byref(value))
            if status != 0:
                raise Failed(f"{function} fails", expected=0, got=status)
            numbers.append(value.value)
        return tuple(numbers)

    return read


def _pair(function: str, kind: Any = ctypes.c_int) -> Callable[[ctypes.CDLL], Numbers]:
    """Return a reader for a status function that returns major and minor through two pointers."""

    def read(library: ctypes.CDLL) -> Numbers:
        major, minor = kind(), kind()
        status = native.integer(library, function, ctypes.byref(major), ctypes.byref(minor))
        if status != 0:
            raise Failed(f"{function} fails", expected=0, got=status)
        return int(major.value), int(minor.value)

    return read


def _cudnn(library: ctypes.CDLL) -> Numbers:
    """cudnnGetVersion: 8.5.0 is 8500, 9.1.0 is 90100 (cudnn_version.h)."""
    function = native.symbol(library, "cudnnGetVersion")
    function.restype = ctypes.c_size_t
    value = int(function())
    return split(value, (10000, 100, 1) if value >= 10000 else (1000, 100, 1))


def _nccl(library: ctypes.CDLL) -> Numbers:
    """ncclGetVersion: 2.8.4 is 2804, 2.21.5 is 22105 (nccl.h)."""
    value = ctypes.c_int(-1)
    status = native.integer(library, "ncclGetVersion", ctypes.byref(value))
    if status != 0:
        raise Failed("ncclGetVersion fails", expected=0, got=status)
    return split(value.value, (10000, 100, 1) if value.value >= 10000 else (1000, 100, 1))


def _npp(library: ctypes.CDLL) -> Numbers:
    """nppGetLibVersion: returns a pointer to three ints."""
    function = native.symbol(library, "nppGetLibVersion")
    function.restype = ctypes.POINTER(ctypes.c_int * 3)
    return tuple(function().contents)


def _rocblas(library: ctypes.CDLL) -> Numbers:
    """rocblas_get_version_string: `2.45.0.`, followed by a build."""
    text = ctypes.create_string_buffer(256)
    status = native.integer(library, "rocblas_get_version_string", text, ctypes.c_size_t(256))
    if status != 0:
        raise Failed("rocblas_get_version_string fails", expected=0, got=status)
    return numbers(text.value.decode("ascii", "replace"))[:3]


def _openblas(library: ctypes.CDLL) -> Numbers:
    """openblas_get_config: `OpenBLAS 0.3.21 NO_LAPACKE …`."""
    function = native.symbol(library, "openblas_get_config")
    function.restype = ctypes.c_char_p
    return numbers((function() or b"").decode("ascii", "replace").partition(" ")[2])


# cuDNN and NPP are several libraries behind one name.
_CUDNN = {
    "9": (
        "graph",
        "ops",
        "cnn",
        "adv",
        "heuristic",
        "engines_precompiled",
        "engines_runtime_compiled",
    ),
    "8": ("ops_infer", "cnn_infer", "adv_infer"),
}
_NPP = (
    "libnppial",
    "libnppicc",
    "libnppidei",
    "libnppif",
    "libnppig",
    "libnppim",
    "libnppist",
    "libnppisu",
    "libnppitc",
    "libnpps",
)

# `odd` of components whose soname does not follow the part's version: each soname is tried.
_ANY = dict.fromkeys(map(str, range(20)), "any")

COMPONENTS: Dict[str, Component] = {
    # The soname of CUDA 11 has a minor version: libcudart.so.11.0.
    "cudart": Component("libcudart", ("13", "12", "11.0"), _cudart, 2, {"11": "11.0"}),
    "cublas": Component("libcublas", ("13", "12", "11"), _property("cublasGetProperty"), 3),
    "cublaslt": Component("libcublasLt", ("13", "12", "11")),
    "cufft": Component("libcufft", ("12", "11", "10"), _property("cufftGetProperty"), 3),
    "curand": Component("libcurand", ("10",), _property("curandGetProperty"), 3),
    "cusolver": Component("libcusolver", ("12", "11"), _property("cusolverGetProperty"), 3),
    "cusparse": Component("libcusparse", ("12", "11"), _property("cusparseGetProperty"), 3),
    "cusparselt": Component("libcusparseLt", ("0",)),
    "npp": Component(
        "libnppc", ("13", "12", "11"), _npp, 3, also=dict.fromkeys(("13", "12", "11"), _NPP)
    ),
    "nvrtc": Component("libnvrtc", ("13", "12", "11.2"), _pair("nvrtcVersion"), 2, {"11": "11.2"}),
    "nvjitlink": Component(
        "libnvJitLink", ("13", "12"), _pair("nvJitLinkVersion", ctypes.c_uint), 2
    ),
    "nvjpeg": Component("libnvjpeg", ("13", "12", "11")),
    "nvtx": Component("libnvToolsExt", ("1",), others=("libnvtx3interop.so.1",)),
    "cupti": Component("libcupti", ("13", "12", "11.8")),
    "cudnn": Component(
        "libcudnn",
        ("9", "8"),
        _cudnn,
        3,
        also={major: tuple(f"libcudnn_{x}" for x in names) for major, names in _CUDNN.items()},
    ),
    "nccl": Component("libnccl", ("2",), _nccl, 3),
    # HIP reports the patch number of its sources (5.2.21153), packages have that of the release
    # (5.2.3).
    "hip": Component(
        "libamdhip64", ("7", "6", "5"), _packed("hipRuntimeGetVersion", (10000000, 100000, 1)), 2
    ),
    # These libraries have version numbers of their own, unrelated to ROCm releases.
    "hsa": Component("libhsa-runtime64", ("1",)),
    "comgr": Component("libamd_comgr", ("3", "2")),
    "rocblas": Component("librocblas", ("5", "4", "0"), _rocblas, 0, _ANY),
    "rocrand": Component("librocrand", ("1",)),
    "rocfft": Component("librocfft", ("0",)),
    "rccl": Component("librccl", ("1",), _nccl, 0),
    "rocm_smi": Component("librocm_smi64", ("7", "6", "5", "1"), odd=_ANY),
    "level_zero": Component("libze_loader", ("1",)),
    "opencl": Component("libOpenCL", ("1",)),
    "sycl": Component("libsycl", ("9", "8", "7")),
    "openblas": Component("libopenblas", ("0",), _openblas, 3),
}

# Other names of parts in image.json: names of packages and wheels, without `nvidia-`, `lib` and
# `-cu12`.
ALIASES = {
    "cuda-runtime": "cudart", "cuda-cudart": "cudart", "runtime": "cudart", "cuda-nvrtc": "nvrtc",
    "cuda-nvjitlink": "nvjitlink", "cuda-cupti": "cupti", "cuda-nvtx": "nvtx", "nvtoolsext": "nvtx",
    "libze1": "level_zero", "ze": "level_zero", "ze1": "level_zero", "level-zero": "level_zero",
    "ze_loader": "level_zero", "amdhip64": "hip", "hip-runtime": "hip", "amdhip64-5": "hip",
    "hsa-runtime64": "hsa", "hsa-runtime": "hsa", "rocr": "hsa", "hsa-runtime64-1": "hsa",
    "amd_comgr": "comgr", "rocblas0": "rocblas", "intel-sycl-rt": "sycl", "ocl-icd-libopencl1": "opencl",
    "ocl-icd": "opencl", "openblas0": "openblas", "openblas0-pthread": "openblas", "rocm-smi": "rocm_smi",
}  # fmt: skip


def component(part: str) -> Optional[str]:
    """Return the component that a part's name means; None if it is not a known shared library."""
    name = part.lower()
    for candidate in (name, re.sub(r"-cu\d+$", "", re.sub(r"^(nvidia-|lib)", "", name))):
        known = ALIASES.get(candidate, candidate)
        if known in COMPONENTS:
            return known
    return None


def numbers(version: str) -> Numbers:
    """Return the leading numbers of a version: 12.4.127~12.4.1-2 gives (12, 4, 127)."""
    # An epoch of Debian (2:1.0) is no part of the vendor's version.
    match = re.match(r"\d+(?:\.\d+)*", re.sub(r"^\d+:", "", version))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def sonames(name: str, version: str = "") -> List[str]:
    """Return the sonames that a component may have: only that of `version` if it determines one."""
    known = COMPONENTS[name]
    major = "".join(map(str, numbers(version)[:1]))
    wanted = known.odd.get(major, major)
    names = [wanted] if wanted in known.majors else list(known.majors)
    return [*(f"{known.stem}.so.{number}" for number in names), *known.others]


def check(part: str, version: str) -> Json:
    """Load the library of a part and compare its version with `version` (empty if the image states none)."""
    name = component(part)
    if name is None:
        raise NotRun(f"goldnode-smoke does not know what {part} is")
    known = COMPONENTS[name]
    wanted = sonames(name, version)
    soname = native.which(wanted)
    if soname is None:
        raise Failed(f"none of {', '.join(wanted)} is there", expected=wanted[0], got="absent")
    library = native.load(soname)
    major = soname.rpartition(".so.")[2]
    waiting = []
    for other in known.also.get(major, ()):
        try:
            native.load(f"{other}.so.{major}")
        except Failed as problem:
            # The compiled engines of cuDNN 9.28 link with the driver, so they can be tested only
            # with a driver.
            if not native.lacks(problem, native.LIBCUDA):
                raise
            waiting.append(f"{other}.so.{major}")
    held = f"{', '.join(waiting)} can be loaded only where a driver is" if waiting else ""
    if known.version is None:
        return passed(
            {"loads": soname},
            {"loads": soname},
            why="the library does not report its version" if version else "",
        )
    reported = known.version(library)
    if not reported:
        return passed(
            {"loads": soname},
            {"loads": soname},
            why="the library reports its version only where a driver is",
        )
    version_text = ".".join(str(number) for number in reported)
    compared = min(len(reported), len(numbers(version)), known.compared)
    expected = numbers(version)[:compared]
    if not compared:
        why = "the image states no version"
        if version:
            why = "the library counts otherwise than its part"
        return passed({"loads": soname}, {"loads": soname, "version": version_text}, why=why)
    shown = ".".join(str(number) for number in expected)
    if reported[:compared] != expected:
        raise Failed(
            f"{soname} is another version than the image states", expected=shown, got=version_text
        )
    return passed(
        {"loads": soname, "version": shown}, {"loads": soname, "version": version_text}, why=held
    )
