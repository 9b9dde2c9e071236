"""What is refused, and what is not: by small files of the shapes that real wheels and packages have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.inspect.things import (
    NVIDIA,
    cudart,
    debs,
    elf,
    installed,
    os_release,
    wheel_files,
)

from goldnode.core.errors import ImageError
from goldnode.inspect import policy
from goldnode.inspect.policy import Inspection, PurityFinding
from goldnode.inspect.scan import View, scan_directory

TODAY = dt.date(2026, 11, 22)
RULES = policy.load()

XGBOOST = wheel_files(
    "xgboost",
    "3.2.0",
    {
        "xgboost/lib/libxgboost.so": elf(
            imports=["dlopen"], strings=["libcuda.so.1"], sections={".nv_fatbin": b"x" * 2048}
        )
    },
    ["numpy", "nvidia-nccl-cu12; platform_system == 'Linux'", "cudf-cu12; extra == 'gpu'"],
)
CTRANSLATE2 = wheel_files(
    "ctranslate2",
    "4.8.5",
    {
        "ctranslate2/_ext.so": elf(needed=["libctranslate2-a7a60d30.so.4"]),
        "ctranslate2.libs/libctranslate2-a7a60d30.so.4": elf(
            imports=["dlopen"], strings=["libcublas.so.12"], sections={".nvFatBinSegment": NVIDIA}
        ),
    },
)
CUDNN8 = wheel_files(
    "nvidia-cudnn-cu11",
    "8.9.7.29",
    {"nvidia/cudnn/lib/libcudnn.so.8": elf(soname="libcudnn.so.8") + b"8" * 2000},
)
CUDNN9 = wheel_files(
    "nvidia-cudnn-cu12", "9.1.0.70", {"nvidia/cudnn/lib/libcudnn.so.9": elf(soname="libcudnn.so.9")}
)
TORCH = wheel_files(
    "torch",
    "2.9.1",
    {"torch/lib/libtorch_cuda.so": elf(needed=["libcudart.so.12", "libcudnn.so.9"])},
    [
        "nvidia-cudnn-cu12==9.1.0.70; platform_system == 'Linux' and platform_machine == 'x86_64'",
        "triton; python_version < '3'",
    ],
)


def view(
    folder: Path, *parts: Mapping[str, bytes], environment: dict[str, str] | None = None
) -> View:
    for files in parts:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    found = View(name="test")
    found.add(scan_directory(folder))
    if environment is not None:
        found.configured, found.environment = True, environment
    return found


def inspect(
    folder: Path,
    backend: str,
    *parts: Mapping[str, bytes],
    environment: dict[str, str] | None = None,
) -> Inspection:
    return policy.inspect(
        view(folder, *parts, environment=environment), RULES, backend, today=TODAY
    )


def only(found: Inspection, severity: str = "refuse") -> PurityFinding:
    rows = [row for row in found.findings if row.severity == severity]
    assert len(rows) == 1, rows
    return rows[0]


def test_xgboost_in_a_cpu_image(tmp_path: Path) -> None:
    app = wheel_files("scorer", "1.0", {}, ["xgboost>=3"])
    found = inspect(tmp_path, "cpu", installed(XGBOOST, app))
    row = only(found)
    assert not found.passed
    assert (row.rule, row.package, row.required_by) == (
        "foreign-cuda",
        "xgboost 3.2.0",
        ("scorer 1.0",),
    )
    assert row.signals == ("requirement", "fatbin", "dlopen"), (
        "nothing by name, and nothing by DT_NEEDED"
    )
    assert "requires nvidia-nccl-cu12" in row.message
    assert "cudf" not in row.message, "an extra that nobody asked for"
    assert row.remedy == 'use the wheel "xgboost-cpu", the same library without CUDA'


def test_ctranslate2_in_a_cpu_image(tmp_path: Path) -> None:
    row = only(inspect(tmp_path, "cpu", installed(CTRANSLATE2)))
    assert row.signals == ("fatbin", "dlopen")
    assert row.path.endswith("ctranslate2.libs/libctranslate2-a7a60d30.so.4")
    assert "WITH_CUDA=OFF" in row.remedy


def test_a_cuda_torch_in_a_rocm_image(tmp_path: Path) -> None:
    found = inspect(tmp_path, "rocm", installed(TORCH, CUDNN9))
    rows = {row.package: row for row in found.findings}
    assert set(rows) == {"torch 2.9.1", "nvidia-cudnn-cu12 9.1.0.70"}
    assert rows["nvidia-cudnn-cu12 9.1.0.70"].required_by == ("torch 2.9.1",)
    assert {row.remedy for row in rows.values()} == {
        "use torch's build for ROCm (version +rocmX.Y) from the site's index"
    }
    assert not found.passed


def test_the_same_in_a_cuda_image_passes(tmp_path: Path) -> None:
    found = inspect(tmp_path, "cuda", installed(TORCH, CUDNN9))
    assert (found.findings, found.passed) == ([], True)


def test_two_majors_of_cudnn(tmp_path: Path) -> None:
    row = only(
        inspect(tmp_path, "cuda", installed(TORCH, CUDNN9), installed(CUDNN8, root="opt/old"))
    )
    assert row.rule == "two-majors"
    assert (
        row.message
        == "the image holds 2 major versions of cuDNN: 8 (nvidia-cudnn-cu11 8.9.7.29) and 9 (nvidia-cudnn-cu12 9.1.0.70)"
    )
    assert (
        row.remedy
        == "keep one: the one of nvidia-cudnn-cu12 9.1.0.70, and builds of the rest that use cuDNN 9"
    )


def test_two_copies_of_one_major_are_a_warning(tmp_path: Path) -> None:
    other = {"usr/local/cuda/lib64/libcudnn.so.9": elf(soname="libcudnn.so.9") + b"other"}
    found = inspect(tmp_path, "cuda", installed(CUDNN9), other)
    assert only(found, "warn").rule == "two-copies"
    assert found.passed


def test_a_stub_to_link_with_is_no_copy(tmp_path: Path) -> None:
    stub = {"usr/lib/x86_64-linux-gnu/stubs/libcudnn.so": elf(soname="libcudnn.so.9") + b"other"}
    found = inspect(tmp_path, "cuda", installed(CUDNN9), stub)
    assert (found.findings, found.passed) == ([], True)


def test_a_library_renamed_by_auditwheel_and_one_known_by_soname(tmp_path: Path) -> None:
    files = {
        "opt/a/libcudart-a7b20f20.so.11.0": elf(),
        "opt/b/x.so": elf(needed=["libcublas-0badc0de.so.12"]),
        "opt/c/blob": elf(soname="libcudnn.so.9"),
    }
    rows = {row.path: row.signals for row in inspect(tmp_path, "cpu", files).findings}
    assert rows == {
        "opt/a/libcudart-a7b20f20.so.11.0": ("file",),
        "opt/b/x.so": ("needed",),
        "opt/c/blob": ("file",),
    }


def test_debs_and_who_requires_them(tmp_path: Path) -> None:
    files = {"usr/lib/x86_64-linux-gnu/libcudart.so.12": cudart(12040)}
    rows = debs(
        {
            "libcudart12": ("12.4.127~12.4.1-2", "libc6", ["lib/x86_64-linux-gnu/libcudart.so.12"]),
            "app": ("1", "libcudart12 (>= 12)", []),
        }
    )
    row = only(inspect(tmp_path, "cpu", files, rows))
    assert (row.package, row.required_by) == ("libcudart12 12.4.127~12.4.1-2", ("app 1",)), (
        "lib/ of the list is usr/lib/ of the disk"
    )
    assert row.remedy == "use a build of app for cpu, which does not require libcudart12"


def test_a_removed_package_is_not_there(tmp_path: Path) -> None:
    status = b"Package: libcudart12\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: amd64\n\n"
    assert inspect(tmp_path, "cpu", {"var/lib/dpkg/status": status}).findings == []


def test_a_library_moved_out_of_its_wheel_is_still_the_wheels(tmp_path: Path) -> None:
    library = elf(soname="libcudart.so.12") + b"x" * 2000
    wheel = wheel_files(
        "nvidia-cuda-runtime-cu12", "12.4.127", {"nvidia/cuda_runtime/lib/libcudart.so.12": library}
    )
    del wheel["nvidia/cuda_runtime/lib/libcudart.so.12"]
    row = only(
        inspect(
            tmp_path,
            "cpu",
            installed(wheel),
            {"usr/local/cuda-12.4/lib64/libcudart.so.12": library},
        )
    )
    assert row.package == "nvidia-cuda-runtime-cu12 12.4.127"
    assert set(row.signals) == {"package", "file"}


def test_a_name_alone_is_a_note(tmp_path: Path) -> None:
    found = inspect(
        tmp_path,
        "cpu",
        {"usr/lib/libavutil.so.57": elf(imports=["dlopen"], strings=["libcuda.so.1"])},
    )
    row = only(found, "note")
    assert row.message.startswith(
        "files in usr/lib without a package may load NVIDIA CUDA by itself"
    )
    assert found.passed


def test_a_name_in_what_cannot_load_is_nothing(tmp_path: Path) -> None:
    assert inspect(tmp_path, "cpu", {"usr/lib/x.so": elf(strings=["libcuda.so.1"])}).findings == []


@pytest.mark.parametrize(
    ("backend", "files"),
    [
        (
            "cpu",
            {
                "a/onnxruntime/libonnxruntime.so": elf(
                    imports=["dlopen"], strings=["libonnxruntime_providers_cuda.so"]
                )
            },
        ),
        (
            "rocm",
            {
                "usr/lib/libamdhip64.so.5": elf(
                    needed=["libhsa-runtime64.so.1"], sections={".hip_fatbin": b"x"}
                )
            },
        ),
        (
            "oneapi",
            {
                "usr/lib/libze_loader.so.1": elf(
                    imports=["dlopen"], strings=["libze_intel_gpu.so.1"]
                )
            },
        ),
        (
            "cuda",
            {
                "usr/local/cuda/lib64/libcublas.so.12": elf(
                    needed=["libcublasLt.so.12"], sections={".nv_fatbin": b"x"}
                )
            },
        ),
        (
            "cuda",
            {
                "usr/local/cuda/lib64/stubs/libcuda.so": elf(soname="libcuda.so.1"),
                "usr/local/cuda-12.4/compat/libcuda.so.550": elf(),
            },
        ),
        ("cpu", debs({"libnvidia-egl-wayland1": ("1", "", []), "rocm-cmake": ("1", "", [])})),
        ("cpu", installed(wheel_files("nvidia-ml-py", "13.590.44", {"pynvml.py": b"x = 1\n"}))),
        (
            "cpu",
            installed(
                wheel_files(
                    "jax",
                    "0.8",
                    {},
                    [
                        "jax-cuda12-plugin; extra == 'cuda12'",
                        "nvidia-nccl-cu12; sys_platform == 'win32'",
                    ],
                )
            ),
        ),
    ],
)
def test_clean_image_has_no_findings(tmp_path: Path, backend: str, files: dict[str, bytes]) -> None:
    found = inspect(tmp_path, backend, files, os_release())
    assert (found.findings, found.passed) == ([], True)


def test_the_drivers_own_libraries_are_refused_everywhere(tmp_path: Path) -> None:
    row = only(
        inspect(
            tmp_path,
            "cuda",
            {"usr/lib/libcuda.so.550.163.01": elf(), "usr/lib/libnvidia-ml.so.1": elf()},
        )
    )
    assert row.rule == "driver-library"
    assert row.message.startswith(
        "libcuda.so.550.163.01, libnvidia-ml.so.1 of usr/lib belong to the driver"
    )


@pytest.mark.parametrize(
    ("backend", "environment", "said"),
    [
        ("cpu", {}, "sets NVIDIA_VISIBLE_DEVICES not at all, not to 'void'"),
        ("rocm", {"NVIDIA_VISIBLE_DEVICES": "all"}, "to 'all', not to 'void'"),
        (
            "cpu",
            {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VERSION": "12.4"},
            "takes the image for a CUDA image",
        ),
        ("cuda", {"CUDA_VERSION": "12.4.1"}, "sets CUDA_VERSION without NVIDIA_REQUIRE_CUDA"),
        (
            "cuda",
            {"LD_LIBRARY_PATH": "/usr/local/cuda/compat:/x"},
            "libraries of forward compatibility there hide a newer driver",
        ),
    ],
)
def test_wrong_environment_of_a_backend_is_reported(
    tmp_path: Path, backend: str, environment: dict[str, str], said: str
) -> None:
    assert said in only(inspect(tmp_path, backend, os_release(), environment=environment)).message


def test_image_without_a_backend_gets_notes_and_does_not_pass(tmp_path: Path) -> None:
    found = inspect(tmp_path, "", installed(XGBOOST))
    assert [(row.severity, row.rule) for row in found.findings] == [("note", "holds-cuda")]
    assert not found.passed


def test_damaged_library_is_a_warning(tmp_path: Path) -> None:
    row = only(inspect(tmp_path, "cpu", {"usr/lib/x.so": elf(needed=["libc.so.6"])[:90]}), "warn")
    assert row.rule == "damaged-elf"


def waived(tmp_path: Path, expires: str, paths: str = "*") -> Inspection:
    text = policy.default_policy().read_text(encoding="utf-8")
    row = f'{{rule: foreign-cuda, package: xgboost, images: "*", owner: ml-team, reason: checked by hand, expires: {expires}, paths: "{paths}"}}'
    file = tmp_path / "purity.yml"
    file.write_text(text.replace("waivers: []", f"waivers: [{row}]"), encoding="utf-8")
    return policy.inspect(
        view(tmp_path / "root", installed(XGBOOST)), policy.load(file), "cpu", today=TODAY
    )


def test_a_waiver_accepts_until_its_day(tmp_path: Path) -> None:
    found = waived(tmp_path, "2026-11-22")
    assert found.passed
    assert found.findings[0].waived == "ml-team, until 2026-11-22: checked by hand"


def test_a_waiver_past_its_day_accepts_nothing(tmp_path: Path) -> None:
    found = waived(tmp_path, "2026-11-21")
    assert not found.passed
    assert "the waiver of ml-team ended on 2026-11-21" in found.findings[0].message


def test_a_waiver_for_other_paths_accepts_nothing(tmp_path: Path) -> None:
    assert not waived(tmp_path, "2027-01-01", "opt/*").passed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "foreign: [cuda, rocm, oneapi]",
            "foreign: [cuda, rocmm]",
            'there is no family "rocmm". Use "rocm"',
        ),
        (
            "waivers: []",
            "waivers: [{rule: x, package: x, images: x, reason: long enough, expires: 2026-01-01}]",
            "owner",
        ),
        ("dlopen: note}", "dlopen: nothing}", "nothing"),
        ("fatbin: refuse, dlopen: note}", "dlopen: note}", "the signals are package"),
        ("  cpu:\n    foreign", "  cppu:\n    foreign", 'there is no backend "cpu"'),
    ],
)
def test_a_fault_in_the_policy_names_its_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = policy.default_policy().read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "purity.yml"
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ImageError) as caught:
        policy.load(file)
    assert said in str(caught.value)
    assert caught.value.line is not None


def test_empty_image_does_not_pass() -> None:
    found = policy.inspect(View(name="nothing"), RULES, "cpu", today=TODAY)
    assert only(found).message == "there is no file in it"


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(ImageError, match='Use "rocm"'):
        RULES.backend("rocmm")
