"""Whether an image is what its tag says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.inspect.things import (
    cudart,
    debs,
    elf,
    image,
    installed,
    os_release,
    wheel_files,
)

from goldnode.channels.lines import line_of
from goldnode.inspect import targets, truth
from goldnode.inspect.scan import View
from goldnode.inspect.truth import Claim, LockedContents, Truth
from goldnode.oci.identity import identity, step_of
from goldnode.oci.layout import Layout, OciImage

PYTHON = {"usr/bin/python3": elf(needed=["libc.so.6"])}
CUDA = "usr/local/cuda-12.4/targets/x86_64-linux/lib"
TAG = "cuda:12.4.1-base-debian12-0123456789ab"


def runtime(version: int = 12040, package: str = "12.4.127") -> dict[str, bytes]:
    wheel = wheel_files("nvidia-cuda-runtime-cu12", package, {})
    return {
        **PYTHON,
        **os_release(),
        f"{CUDA}/libcudart.so.{version // 1000}": cudart(version),
        **installed(wheel),
    }


def check(
    folder: Path,
    ref: str,
    *files: Mapping[str, bytes],
    labels: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    lock: LockedContents | None = None,
) -> Truth:
    layout = Layout(folder)
    image(layout, ref, files, labels=labels, environment=environment)
    (target,) = targets.find(ref, layout)
    return truth.check(target.view, lock)


def claims(found: Truth) -> dict[str, Claim]:
    return {row.claim: row for row in found.claims}


def wrong(found: Truth) -> dict[str, tuple[str, str]]:
    return {row.claim: (row.expected, row.got) for row in found.claims if row.result == "differs"}


def test_image_with_a_true_tag_passes(tmp_path: Path) -> None:
    found = check(tmp_path, TAG, runtime())
    assert found.passed
    assert wrong(found) == {}
    row = claims(found)["runtime"]
    assert (row.expected, row.got, row.result) == ("12.4", "12.4", "ok")
    assert claims(found)["release"].result == "ok", "its cudart is that of 12.4.1 alone"
    assert claims(found)["packages"].result == "not_verified"


def test_a_tag_of_12_4_over_a_runtime_of_12_9(tmp_path: Path) -> None:
    found = check(tmp_path, TAG, runtime(12090, "12.9.79"))
    assert not found.passed
    assert wrong(found) == {
        "runtime": ("12.4", "12.9"),
        "runtime package": ("12.4", "nvidia-cuda-runtime-cu12 12.9.79"),
    }
    assert f"{CUDA}/libcudart.so.12" in claims(found)["runtime"].how


@pytest.mark.parametrize(
    ("release", "parts", "result", "got"),
    [
        (
            "12.9.1",
            {"cuda-runtime": "12.9.79"},
            "not_verified",
            "12.9.1 or 12.9.2",
        ),  # both have this cudart
        ("12.9.1", {"cuda-runtime": "12.9.79", "cublas": "12.9.1.4"}, "ok", "12.9.1"),
        ("12.9.1", {"cuda-runtime": "12.9.79", "cublas": "12.9.2.10"}, "differs", "12.9.2"),
        ("12.9.1", {"cuda-runtime": "12.9.37", "curand": "10.3.10.19"}, "differs", "12.9.0"),
        (
            "12.9.1",
            {"cuda-runtime": "12.9.79", "cublas": "12.9.0.13"},
            "not_verified",
            "",
        ),  # no release has both
        ("12.9.3", {"cuda-runtime": "12.9.79"}, "differs", "12.9.1 or 12.9.2"),
        (
            "12.8.1",
            {"cuda-runtime": "12.8.90"},
            "not_verified",
            "",
        ),  # the facts have no parts of 12.8
        ("12.9.1", {}, "not_verified", ""),
    ],
)
def test_the_release_that_has_these_parts(
    tmp_path: Path, release: str, parts: dict[str, str], result: str, got: str
) -> None:
    wheels = [
        installed(wheel_files(f"nvidia-{name}-cu12", version, {}))
        for name, version in parts.items()
    ]
    number = 12080 if release.startswith("12.8") else 12090
    files = {**PYTHON, **os_release(), f"{CUDA}/libcudart.so.12": cudart(number)}
    row = claims(check(tmp_path, f"cuda:{release}-base-debian12", files, *wheels))["release"]
    assert (row.result, row.got) == (result, got)


def test_two_runtimes_of_which_one_is_right(tmp_path: Path) -> None:
    found = check(tmp_path, TAG, runtime(), {"opt/old/libcudart.so.11.0": cudart(11080)})
    assert wrong(found) == {"runtime": ("12.4", "11.8, 12.4")}


def test_runtime_claim_needs_the_package_when_the_library_has_none(tmp_path: Path) -> None:
    files = {**runtime(), f"{CUDA}/libcudart.so.12": elf(soname="libcudart.so.12")}
    found = check(tmp_path, TAG, files)
    assert (claims(found)["runtime"].result, claims(found)["runtime package"].result) == (
        "not_verified",
        "ok",
    )
    assert found.passed
    without = {path: data for path, data in files.items() if "dist-info" not in path}
    found = check(tmp_path / "b", TAG, without)
    assert not found.passed, "nothing says which runtime it is"
    assert wrong(found) == {}


def test_another_system_backend_flavour_and_architecture(tmp_path: Path) -> None:
    assert wrong(check(tmp_path / "a", TAG, {**runtime(), **os_release(version="13")})) == {
        "os": ("debian12", "debian13")
    }
    bare = {**PYTHON, **os_release()}
    assert wrong(check(tmp_path / "b", TAG, bare)) == {"backend": ("cuda", "none of its libraries")}
    cublas = {f"{CUDA}/libcublas.so.12": elf()}
    assert "flavour" in wrong(check(tmp_path / "c", TAG, runtime(), cublas))
    assert wrong(check(tmp_path / "d", TAG.replace("base", "runtime"), runtime(), cublas)) == {}
    assert wrong(
        check(
            tmp_path / "e",
            TAG,
            {**runtime(), "usr/bin/python3": elf(machine=183), "usr/bin/x": elf(machine=183)},
        )
    ) == {"architecture": ("amd64", "arm64")}


def test_false_labels_and_environment_are_reported(tmp_path: Path) -> None:
    labels = {
        "io.goldnode.backend": "cuda",
        "io.goldnode.runtime": "12.9.1",
        "io.goldnode.build-id": "ffffffffffff",
    }
    environment = {"CUDA_VERSION": "12.6.0", "NVIDIA_REQUIRE_CUDA": "cuda>=12.6 brand=tesla"}
    found = check(tmp_path, TAG, runtime(), labels=labels, environment=environment)
    assert wrong(found) == {
        "tag": ("12.9.1-base-debian12-ffffffffffff", "12.4.1-base-debian12-0123456789ab"),
        "runtime": ("12.9", "12.4"),
        "runtime package": ("12.9", "nvidia-cuda-runtime-cu12 12.4.127"),
        "CUDA_VERSION": ("12.9.1", "12.6.0"),
        "NVIDIA_REQUIRE_CUDA": ("cuda>=12.9", "cuda>=12.6 brand=tesla"),
    }
    assert not found.passed


def test_debian_package_decides_the_whole_release(tmp_path: Path) -> None:
    files = {
        **PYTHON,
        **os_release(version="13"),
        "usr/lib/x86_64-linux-gnu/libcudart.so.12": cudart(12040),
    }
    rows = debs(
        {"libcudart12": ("12.4.127~12.4.1-2", "", ["usr/lib/x86_64-linux-gnu/libcudart.so.12"])}
    )
    found = check(tmp_path / "a", "cuda:12.4.1-base-debian13", files, rows)
    assert (found.passed, claims(found)["release"].got) == (True, "12.4.1")
    assert wrong(check(tmp_path / "b", "cuda:12.4.0-base-debian13", files, rows)) == {
        "release": ("12.4.0", "12.4.1")
    }


def test_rocm_of_the_distribution_claims_no_version(tmp_path: Path) -> None:
    files = {
        **PYTHON,
        **os_release(version="13"),
        "usr/lib/libamdhip64.so.5": elf(),
        **debs({"libamdhip64-5": ("5.7.1-6", "", [])}),
    }
    found = check(tmp_path / "a", "rocm:distro-base-debian13", files)
    assert (found.passed, claims(found)["runtime"].got) == (True, "libamdhip64-5 5.7.1-6")
    versioned = {**files, "opt/rocm-6.4.1/.info/version": b"6.4.1-83\n"}
    assert wrong(check(tmp_path / "b", "rocm:distro-base-debian13", versioned)) == {
        "runtime": ("distro", "opt/rocm-6.4.1/.info/version: 6.4.1-83")
    }
    assert check(tmp_path / "c", "rocm:6.4.1-base-debian13", versioned).passed
    assert wrong(check(tmp_path / "d", "rocm:7.0.0-base-debian13", versioned)) == {
        "runtime": ("7.0.0", "6.4.1")
    }
    assert not check(tmp_path / "e", "rocm:6.4.1-base-debian13", files).passed, "nothing says it"


def test_oneapi_by_its_wheels(tmp_path: Path) -> None:
    files = {
        **PYTHON,
        **os_release(),
        "opt/libsycl.so.8": elf(),
        **installed(wheel_files("intel-sycl-rt", "2025.3.3", {})),
    }
    assert check(tmp_path / "a", "oneapi:2025.3.3-runtime-debian12", files).passed
    assert wrong(check(tmp_path / "b", "oneapi:2024.1.2-runtime-debian12", files)) == {
        "runtime": ("2024.1.2", "2025.3.3")
    }


@pytest.mark.parametrize(
    ("version", "right"), [("2.9.1", True), ("2.9.0+cu128", True), ("2.10.0", False)]
)
def test_a_framework_is_a_part_of_the_label(tmp_path: Path, version: str, right: bool) -> None:
    files = {**PYTHON, **os_release(), **installed(wheel_files("torch", version, {}))}
    found = check(
        tmp_path, "cpu:1-torch2.9-debian12", files, labels={"io.goldnode.parts": "torch=2.9"}
    )
    assert found.passed == right


@pytest.mark.parametrize("flavour", ["team1", "pip26", "zipp2", "torch2.9", "base2024"])
def test_a_flavour_that_reads_like_a_package_is_a_word(tmp_path: Path, flavour: str) -> None:
    """A team's flavour `team1` was refused because no wheel `team` 1 is installed."""
    files = {**PYTHON, **os_release(), **installed(wheel_files("zipp", "3.23.0", {}))}
    assert check(tmp_path, f"cpu:1-{flavour}-debian12-0123456789ab", files).passed


def test_parts_and_the_file_inside(tmp_path: Path) -> None:
    document = {
        "name": "cuda-12.4.1-base-debian12",
        "os": {"name": "debian12"},
        "parts": {"cudart": "12.4.127", "cudnn": "9.1.0.70", "odd": "1"},
        "lock": "sha256:1",
    }
    inside = {"usr/lib/goldnode/image.json": json.dumps(document).encode()}
    labels = {"io.goldnode.lock": "sha256:2", "io.goldnode.parts": "nccl=2.21.5"}
    cudnn, nccl = (
        wheel_files("nvidia-cudnn-cu12", "9.8.0.87", {}),
        wheel_files("nvidia-nccl-cu12", "2.21.5", {}),
    )
    found = check(tmp_path, TAG, runtime(), inside, installed(cudnn, nccl), labels=labels)
    assert wrong(found) == {
        "part cudnn": ("9.1.0.70", "9.8.0.87"),
        "lock in image.json": ("sha256:2", "sha256:1"),
    }
    rows = claims(found)
    assert {name: rows[f"part {name}"].result for name in ("cudart", "nccl", "odd")} == {
        "cudart": "ok",
        "nccl": "ok",
        "odd": "not_verified",
    }
    assert rows["image.json os"].result == "ok"


def test_packages_against_the_lock(tmp_path: Path) -> None:
    within = installed(
        wheel_files("zipp", "3.23.0", {}),
        root="usr/local/lib/python3.11/dist-packages/setuptools/_vendor",
    )
    files = [
        runtime(),
        debs({"libc6": ("2.36-9", "", []), "extra": ("1", "", [])}),
        installed(wheel_files("Some_Wheel", "1.0", {})),
        within,
    ]
    wheels = {"nvidia-cuda-runtime-cu12": "12.4.127", "some.wheel": "1.0"}
    labels = {"io.goldnode.lock": "sha256:1"}
    lock = LockedContents("sha256:1", {"libc6": "2.36-10", "gone": "1"}, wheels)
    found = check(tmp_path / "a", TAG, *files, labels=labels, lock=lock)
    assert (
        claims(found)["debs"].got
        == "2; extra 1 is not in the lock; gone is absent; libc6 is 2.36-9, locked 2.36-10"
    )
    assert claims(found)["wheels"].result == "ok"
    assert not found.passed
    moved = check(
        tmp_path / "b", TAG, *files, labels=labels, lock=LockedContents("sha256:9", {}, {})
    )
    assert claims(moved)["packages"].result == "not_verified"


def test_python_package_of_the_distribution_is_no_wheel_of_the_lock(tmp_path: Path) -> None:
    folder = "usr/lib/python3/dist-packages"
    metadata = f"{folder}/PyYAML-6.0.egg-info/PKG-INFO"
    files = [
        runtime(),
        debs({"python3-yaml": ("6.0-3", "", [f"/{metadata}"])}),
        {metadata: b"Name: PyYAML\nVersion: 6.0\n"},
    ]
    labels = {"io.goldnode.lock": "sha256:1"}
    lock = LockedContents(
        "sha256:1", {"python3-yaml": "6.0-3"}, {"nvidia-cuda-runtime-cu12": "12.4.127"}
    )
    rows = claims(check(tmp_path, TAG, *files, labels=labels, lock=lock))
    assert (rows["wheels"].result, rows["debs"].result) == ("ok", "ok")


def test_image_without_claims_does_not_pass(tmp_path: Path) -> None:
    found = check(tmp_path, "busybox:1-2-3", {"bin/x": elf()}, labels={})
    assert (found.passed, [row.result for row in found.claims]) == (False, ["not_verified"])


_WORD = st.from_regex(r"[a-z0-9]{1,6}([._+][a-z0-9]{1,4})?", fullmatch=True)
_NAMES = st.builds(
    lambda repository, version, flavour, os, build: (repository, version, flavour, os, build),
    st.from_regex(r"[a-z]{1,5}(-[a-z]{1,4})?(/[a-z0-9]{1,5}(-[a-z]{1,4})?)?", fullmatch=True),
    st.from_regex(r"[0-9a-z]{1,4}(\.[0-9a-z]{1,3}){0,2}", fullmatch=True),
    _WORD,
    _WORD,
    # Build ids that resemble a word, a number or an OS, too.
    st.text("0123456789abcdef", min_size=12, max_size=12),
)


def view_of(reference: str, repository: str, *said: str) -> View:
    """A view of an image by its reference, with the labels of a name. A repository with `/` is a team's."""
    keys = ("runtime", "flavour", "os", "build-id")
    labels = {f"io.goldnode.{key}": value for key, value in zip(keys, said, strict=True)}
    labels["io.goldnode.backend"] = repository
    name = "-".join((repository, *said[:3]))
    if "/" in repository:
        own = {
            "io.goldnode.repository": repository,
            "io.goldnode.version": said[0],
            "io.goldnode.runtime": "12.4.1",
        }
        labels |= {"io.goldnode.backend": "cuda", **own}
        name = repository
    config = {
        "config": {"Labels": labels},
        "history": [{"created_by": step_of(name)}],
        "rootfs": {"diff_ids": ["sha256:1"]},
    }
    return View(name=reference, configured=True, labels=labels, identity=identity(config))


def tag_claim(view: View) -> str:
    return next((row.result for row in truth.check(view).claims if row.claim == "tag"), "none")


@settings(max_examples=40)
@given(_NAMES, _NAMES)
def test_an_identity_is_that_of_the_labels_whatever_the_names_are(
    name: tuple[str, ...], other: tuple[str, ...]
) -> None:
    repository, *said = name
    tag, wrong = "-".join(said), "-".join(other[1:])
    for place in ("", "registry.example:5000/", "127.0.0.1/a/b/"):
        assert tag_claim(view_of(f"{place}{repository}:{tag}", *name)) == "ok"
        assert tag_claim(view_of(f"{place}{repository}:{tag}@sha256:{'1' * 64}", *name)) == "ok"
        assert tag_claim(view_of(f"{place}{repository}:{wrong}", *name)) == (
            "ok" if wrong == tag else "differs"
        )
        assert tag_claim(view_of(f"{place}{repository}:latest", *name)) == "none"
        assert tag_claim(view_of(f"{place}{repository}@sha256:{'1' * 64}", *name)) == "none"
    found = view_of("sha256:1", *name).identity
    assert (found.repository, found.version, found.flavour, found.os, found.build_id) == name
    line = line_of(repository, tag)
    assert line.name == f"{'.'.join(said[0].split('.')[:2])}-{said[1]}-{said[2]}"


def test_a_child_is_not_what_its_labels_name(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    image(layout, TAG, [runtime(), {"opt/team": b"1"}], labels={"io.goldnode.lock": "sha256:1"})
    (parent,) = targets.find(TAG, layout)
    assert truth.check(parent.view).passed
    config = {**OciImage(layout, layout.refs()[TAG].digest).config}
    config["history"] = [*config["history"], {"created_by": "RUN pip install x"}]
    parent.view.identity = identity(config)
    parent.view.name = "registry.example/team/app:1.0"
    found = truth.check(parent.view, LockedContents("sha256:1", {"gone": "1"}, {}))
    assert found.passed, "its backend, runtime and OS are true"
    assert {row.claim: row.got for row in found.claims}[
        "identity"
    ] == f"a child of {TAG}, built by another tool"
    assert "debs" not in claims(found)
    parent.view.name = f"registry.example/{TAG}"
    assert not truth.check(parent.view).passed, "the tag of its parent"


def test_build_id_that_resembles_an_os_is_not_taken_for_one(tmp_path: Path) -> None:
    found = check(tmp_path, "cuda:12.4.1-base-debian12-e12345678901", runtime())
    assert wrong(found) == {}
    assert found.passed


@pytest.mark.parametrize(
    "ref", ["cuda:1-base-debian12", "registry.example:5000/team/cuda:1-base-debian12"]
)
def test_a_reference_gives_an_image_without_labels_no_identity(tmp_path: Path, ref: str) -> None:
    layout = Layout(tmp_path)
    image(layout, ref, [runtime()], labels={})
    (target,) = targets.find(ref, layout)
    assert target.backend == ""
    assert [(row.claim, row.got, row.result) for row in truth.check(target.view).claims] == [
        ("identity", "no image of goldnode", "not_verified")
    ]
    assert not truth.check(target.view).passed


@pytest.mark.parametrize(
    ("part", "package", "version"),
    [
        ("hip", "libamdhip64-5", "5.7.1-6"),
        ("hsa", "libhsa-runtime64-1", "6.1.2-3"),
        ("opencl", "ocl-icd-libopencl1", "2.3.1-1"),
        ("intel-opencl", "intel-opencl-icd", "22.43.24595.41-1"),
        ("openblas", "libopenblas0-pthread", "0.3.21+ds-4"),
        ("rocblas", "librocblas0", "5.5.1+dfsg-8"),
        ("cublas", "libcublas12", "12.4.5.8~12.4.1-2"),
        ("curand", "libcurand10", "11.1.1+~10.3.5.147~12.4.1-2"),
        ("npp", "libnppicc12", "12.2.5.30~12.4.1-2"),
        ("nvtx", "libnvtoolsext1", "12.4.127~12.4.1-2"),
        ("nvcc", "nvidia-cuda-toolkit", "12.4.131~12.4.1-2"),
    ],
)
def test_part_is_compared_with_its_debian_package(
    tmp_path: Path, part: str, package: str, version: str
) -> None:
    upstream = version.rpartition("+~")[2].split("-")[0].split("+")[0].split("~")[0]
    for said, result in ((upstream, "ok"), ("99.1", "differs")):
        labels = {"io.goldnode.parts": json.dumps({part: said})}
        found = check(
            tmp_path / result, TAG, runtime(), debs({package: (version, "", [])}), labels=labels
        )
        assert claims(found)[f"part {part}"].result == result


@pytest.mark.parametrize(
    ("part", "wheel"),
    [
        ("cccl", "nvidia-cuda-cccl"),
        ("nvml-dev", "nvidia-nvml-dev"),
        ("cublas", "nvidia-cublas-cu12"),
    ],
)
def test_part_is_compared_with_its_wheel(tmp_path: Path, part: str, wheel: str) -> None:
    for said, result in (("13.5.37", "ok"), ("13.5.38", "differs")):
        labels = {"io.goldnode.parts": json.dumps({part: said})}
        found = check(
            tmp_path / result,
            TAG,
            runtime(),
            installed(wheel_files(wheel, "13.5.37", {})),
            labels=labels,
        )
        assert claims(found)[f"part {part}"].result == result
