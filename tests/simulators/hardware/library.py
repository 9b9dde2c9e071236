"""Simulated libnvidia-ml.so.1: nvml.c, the getters of the table below, and "not supported" for all other
functions.

The list of functions comes from the installed pynvml.py (nvidia-ml-py), so that each of its calls finds its
symbol. To add a getter, add a row. Anything beyond reading numbers or a text belongs in nvml.c.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import GoldnodeError

SONAME = "libnvidia-ml.so.1"
HERE = Path(__file__).parent

# signature -> (parameters after the handle, body); {f} is the field or fields, "%u" in one is replaced by an
# index argument.
_READ = "u64 v[{n}]; int rc = get_numbers(h, {f}, v);"
_INDEXED = "u64 v[1]; int rc = get_indexed(h, {f}, {i}, v);"
SIGNATURES = {
    "uint": ("u32 *a", _READ + " if (rc == OK) *a = (u32)v[0]; return rc;"),
    "int": ("int *a", _READ + " if (rc == OK) *a = (int)v[0]; return rc;"),
    "ull": ("u64 *a", _READ + " if (rc == OK) *a = v[0]; return rc;"),
    "uint uint": (
        "u32 *a, u32 *b",
        _READ + " if (rc == OK) *a = (u32)v[0], *b = (u32)v[1]; return rc;",
    ),
    "text": ("char *out, u32 size", "return get_text(h, {f}, out, size);"),
    "text unbounded": ("char *out", "return get_text(h, {f}, out, 64);"),
    "index uint": ("u32 x, u32 *a", _INDEXED + " if (rc == OK) *a = (u32)v[0]; return rc;"),
    "index index uint": (
        "u32 x, u32 y, u32 *a",
        _INDEXED + " if (rc == OK) *a = (u32)v[0]; return rc;",
    ),
    "index index ull": ("u32 x, u32 y, u64 *a", _INDEXED + " if (rc == OK) *a = v[0]; return rc;"),
    "index index index ull": (
        "u32 x, u32 y, u32 z, u64 *a",
        _INDEXED + " if (rc == OK) *a = v[0]; return rc;",
    ),
    "ulls": ("u64 *out", "return get_numbers(h, {f}, out);"),
    "versioned ulls": (
        "u64 *out",
        "if ((u32)out[0] != ({v}u << 24 | 8 * ({n} + 1))) return WRONG_VERSION; return get_numbers(h, "
        "{f}, out + 1);",
    ),
    "uints": (
        "u32 *out",
        _READ + " for (u32 i = 0; rc == OK && i < {n}; i++) out[i] = (u32)v[i]; return rc;",
    ),
    "versioned uints": (
        "u32 *out",
        "if (out[0] != ({v}u << 24 | 4 * ({n} + 1))) return WRONG_VERSION; "
        + _READ
        + " for (u32 i = 0; rc == OK && i < {n}; i++) out[i + 1] = (u32)v[i]; return rc;",
    ),
}


@dataclass(frozen=True)
class Getter:
    """A getter of NVML: name without ``nvmlDeviceGet``, signature, fields, and the version of its
    structure.
    """

    name: str
    signature: str
    fields: str
    version: int = 0

    def source(self) -> str:
        parameters, body = SIGNATURES[self.signature]
        count = self.fields.count("|") + 1
        indices = ", ".join(
            ["x", "y", "z"][: self.fields.count("%u")] + ["0"] * (3 - self.fields.count("%u"))
        )
        values = {"f": f'"{self.fields}"', "n": count, "v": self.version, "i": indices}
        return (
            f"int nvmlDeviceGet{self.name}(struct handle *h, {parameters.format(**values)}) {{ "
            f"{body.format(**values)} }}"
        )


GETTERS = (
    Getter("Serial", "text", "serial"),
    Getter("BoardPartNumber", "text", "board_part_number"),
    Getter("BoardId", "uint", "board_id"),
    Getter("MinorNumber", "uint", "minor_number"),
    Getter("Brand", "uint", "brand"),
    Getter("Architecture", "uint", "architecture"),
    Getter("CudaComputeCapability", "uint uint", "compute_capability.0|compute_capability.1"),
    Getter("NumGpuCores", "uint", "cores"),
    Getter("VbiosVersion", "text", "vbios_version"),
    Getter("GspFirmwareVersion", "text unbounded", "gsp_firmware_version"),
    Getter("GspFirmwareMode", "uint uint", "gsp_firmware_mode.0|gsp_firmware_mode.1"),
    Getter("InforomImageVersion", "text", "inforom.image"),
    Getter("InforomConfigurationChecksum", "uint", "inforom.checksum"),
    Getter("MultiGpuBoard", "uint", "multi_gpu_board"),
    Getter("DisplayMode", "uint", "display_mode"),
    Getter("DisplayActive", "uint", "display_active"),
    Getter("NumaNodeId", "uint", "numa_node_id"),
    Getter("MemoryInfo", "ulls", "memory.total|memory.free|memory.used"),
    Getter(
        "MemoryInfo_v2", "versioned ulls", "memory.total|memory.reserved|memory.free|memory.used", 2
    ),
    Getter("BAR1MemoryInfo", "ulls", "bar1.total|bar1.free|bar1.used"),
    Getter("MemoryBusWidth", "uint", "memory_bus_width"),
    Getter("PersistenceMode", "uint", "persistence_mode"),
    Getter("ComputeMode", "uint", "compute_mode"),
    Getter("EccMode", "uint uint", "ecc_current|ecc_pending"),
    Getter("DefaultEccMode", "uint", "ecc_default"),
    Getter("MigMode", "uint uint", "mig_current|mig_pending"),
    Getter("AutoBoostedClocksEnabled", "uint uint", "auto_boost|auto_boost_default"),
    Getter("MaxClockInfo", "index uint", "max_clock.%u"),
    Getter("ApplicationsClock", "index uint", "application_clock.%u"),
    Getter("DefaultApplicationsClock", "index uint", "default_application_clock.%u"),
    Getter("MaxCustomerBoostClock", "index uint", "max_customer_clock.%u"),
    Getter("PowerManagementMode", "uint", "power_management_mode"),
    Getter("PowerManagementLimit", "uint", "power_limit"),
    Getter("PowerManagementDefaultLimit", "uint", "power_default"),
    Getter("PowerManagementLimitConstraints", "uint uint", "power_min|power_max"),
    Getter("PowerUsage", "uint", "power_usage"),
    Getter("TotalEnergyConsumption", "ull", "energy"),
    Getter("PowerState", "uint", "performance_state"),
    Getter("PerformanceState", "uint", "performance_state"),
    Getter("CurrentClocksThrottleReasons", "ull", "clocks_event_reasons"),
    Getter("CurrentClocksEventReasons", "ull", "clocks_event_reasons"),
    Getter("SupportedClocksThrottleReasons", "ull", "supported_clocks_event_reasons"),
    Getter("SupportedClocksEventReasons", "ull", "supported_clocks_event_reasons"),
    Getter("Temperature", "index uint", "temperature.%u"),
    Getter("TemperatureThreshold", "index uint", "temperature_threshold.%u"),
    Getter("MarginTemperature", "versioned uints", "temperature_margin", 1),
    Getter("FanSpeed", "uint", "fan_speed"),
    Getter("CurrPcieLinkGeneration", "uint", "pcie.generation"),
    Getter("CurrPcieLinkWidth", "uint", "pcie.width"),
    Getter("MaxPcieLinkGeneration", "uint", "pcie.generation_max"),
    Getter("GpuMaxPcieLinkGeneration", "uint", "pcie.generation_gpu_max"),
    Getter("MaxPcieLinkWidth", "uint", "pcie.width_max"),
    Getter("PcieSpeed", "uint", "pcie.speed"),
    Getter("PcieLinkMaxSpeed", "uint", "pcie.speed_max"),
    Getter("PcieReplayCounter", "uint", "pcie.replays"),
    Getter("PcieThroughput", "index uint", "pcie.throughput.%u"),
    Getter("EncoderUtilization", "uint uint", "utilization.encoder|utilization.period"),
    Getter("DecoderUtilization", "uint uint", "utilization.decoder|utilization.period"),
    Getter("TotalEccErrors", "index index ull", "ecc_errors.%u.%u"),
    Getter("MemoryErrorCounter", "index index index ull", "memory_errors.%u.%u.%u"),
    Getter(
        "RowRemapperHistogram",
        "uints",
        "remapped.max|remapped.high|remapped.partial|remapped.low|remapped.none",
    ),
    Getter("RetiredPagesPendingStatus", "uint", "retired_pages_pending"),
    Getter("RepairStatus", "versioned uints", "repair.channel|repair.tpc", 1),
    Getter("UnrepairableMemoryFlag_v1", "versioned uints", "unrepairable_memory", 1),
    Getter("NvLinkState", "index uint", "nvlink.%u.state"),
    Getter("NvLinkVersion", "index uint", "nvlink.%u.version"),
    Getter("NvLinkCapability", "index index uint", "nvlink.%u.capability.%u"),
    Getter("NvLinkErrorCounter", "index index ull", "nvlink.%u.errors.%u"),
)

SYSTEM = """\
int nvmlSystemGetDriverVersion(char *out, u32 size) { return system_text("driver_version", out, size); }
int nvmlSystemGetNVMLVersion(char *out, u32 size) { return system_text("nvml_version", out, size); }
int nvmlSystemGetCudaDriverVersion(int *out) { return system_int("cuda_version", out); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return system_int("cuda_version", out); }
"""


class BuildError(GoldnodeError):
    """The simulated library cannot be built."""


def pynvml_source() -> str:
    """Return the text of the installed pynvml.py. Raise BuildError without one."""
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise BuildError(
            "there is no pynvml to take NVML's functions from", remedy="install nvidia-ml-py"
        )
    return Path(found.origin).read_text(encoding="utf-8")


def functions(pynvml: str) -> list[str]:
    """Return all NVML functions that pynvml looks up, sorted."""
    return sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', pynvml)))


def errors(pynvml: str) -> dict[int, str]:
    """Return the text of each NVML return code, as defined in pynvml."""
    codes = {
        name: int(code)
        for name, code in re.findall(r"^(NVML_ERROR_\w+|NVML_SUCCESS)\s*=\s*(\d+)", pynvml, re.M)
    }
    return {
        codes[name]: output
        for name, output in re.findall(
            r'^\s+(NVML_ERROR_\w+|NVML_SUCCESS):\s*"([^"]+)"', pynvml, re.M
        )
    }


def source() -> str:
    """Return the complete C source, which depends only on the table, nvml.c and nvidia-ml-py."""
    pynvml = pynvml_source()
    core = (HERE / "nvml.c").read_text(encoding="utf-8")
    rows = [getter.source() for getter in GETTERS]
    cases = "".join(
        f'    case {code}: return "{output}";\n' for code, output in sorted(errors(pynvml).items())
    )
    reported = (
        f"const char *nvmlErrorString(int code) {{\n    switch (code) {{\n{cases}    }}\n    return "
        f'"Unknown code";\n}}\n'
    )
    written = "\n".join([core, *rows, SYSTEM, reported])
    have = set(re.findall(r"^(?:int|const char \*)\s*\*?(nvml\w+)\(", written, re.M))
    rest = [
        f"int {name}(void) {{ return NOT_SUPPORTED; }}"
        for name in functions(pynvml)
        if name not in have
    ]
    return "\n".join([written, *rest, ""])


def absent_in_470() -> list[str]:
    """Return the functions that a library of driver branch 470 does not have.

    exports_470.txt has those that it has: `nm -D` of libnvidia-ml.so.470.256.02, from Debian's package
    libnvidia-tesla-470-ml1 470.256.02-1~deb12u1.
    """
    there = (HERE / "exports_470.txt").read_text(encoding="utf-8").split()
    return sorted(set(functions(pynvml_source())) - set(there))


def build(target: Path, absent: Sequence[str] = ()) -> Path:
    """Compile the library to `target`/libnvidia-ml.so.1 and return the file.

    Raise BuildError with the compiler's message.

    :param absent: functions that it does not export, as one of an older driver.
    """
    target.mkdir(parents=True, exist_ok=True)
    hidden = target / "hidden.map"
    hidden.write_text("{ local: " + "".join(f"{name};" for name in ("none", *absent)) + " };\n")
    written = target / "nvml.generated.c"
    written.write_text(source(), encoding="utf-8")
    made = target / SONAME
    command = [
        "cc",
        "-std=gnu11",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=default",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    try:
        done = subprocess.run(
            [
                *command,
                f"-Wl,-soname,{SONAME}",
                f"-Wl,--version-script={hidden}",
                "-Wl,--build-id=none",
                "-o",
                str(made),
                str(written),
                "-lpthread",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise BuildError(
            "there is no C compiler to make the simulated libnvidia-ml.so.1 with",
            remedy="apt-get install gcc",
        ) from None
    if done.returncode != 0:
        raise BuildError(f"the simulated libnvidia-ml.so.1 does not compile:\n{done.stderr}")
    return made
