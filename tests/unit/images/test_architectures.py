"""Images for arm64: their rows, locks, wheels and recipes; their names in claims and tags; emulation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.images.image_rows import TOOLS
from tests.unit.images.test_imagelock import lock_of

from goldnode.core.errors import ImageError
from goldnode.images import build, publish
from goldnode.images.imagelock import find_lock, intent_digest, load_lock, write_lock
from goldnode.images.matrix import ImageMatrix, load_matrix
from goldnode.images.recipe import ImageRecipe
from goldnode.images.resolve import environment, platform_options
from goldnode.images.smoke import record
from goldnode.images.wheelindex import Index
from goldnode.inspect.truth import claimed
from goldnode.oci import emulation, engines
from goldnode.oci.identity import identity, step_of
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.model import LABELS

EMULATOR = {"emulator-arm64": "qemu-aarch64-static 7.2.22"}
MATRIX = """\
matrix: 1
systems:
  debian12: {{id: debian, release: "12", codename: bookworm, architectures: {of_system}, python: "3.11", glibc: "2.36", archives: [debian]}}
licences: {{nvidia: {{title: L, redistribution: private, note: made up}}}}
backends:
  cpu:
    title: Debian
    purity: cpu
    releases:
      - version: "1"
        os: [debian12]
        components:
          openblas: {{version: {{debian12: 0.3.21}}, debs: {{debian12: [libopenblas0-pthread]}}}}
        flavours:
          base: {{parent: null, debs: [base-files], architectures: {of_flavour}}}
          runtime: {{parent: base, components: [openblas], architectures: {of_flavour}}}
          devel: {{parent: runtime, debs: [make]}}
  cuda:
    title: CUDA
    purity: cuda
    releases:
      - version: 12.9.1
        os: [debian12]
        architectures: {of_flavour}
        components:
          cudart: {{version: 12.9.79, wheel: nvidia-cuda-runtime-cu12, layout: cuda, licence: nvidia}}
        flavours: {{base: {{parent: cpu-1-base, components: [cudart]}}}}
"""
BOTH = "[amd64, arm64]"


def matrix(place: Path, of_system: str = BOTH, of_flavour: str = BOTH) -> ImageMatrix:
    place.mkdir(exist_ok=True)
    path = place / "matrix.yml"
    path.write_text(MATRIX.format(of_system=of_system, of_flavour=of_flavour), encoding="utf-8")
    return load_matrix(path)


def recipes(found: ImageMatrix, tools: dict[str, str] | None = None) -> dict[str, ImageRecipe]:
    locks: dict[str, str] = {}
    pairs = []
    for row in found.images.values():
        parent = row.image.parent
        below = {"image": parent, "lock": locks[parent]} if parent is not None else None
        lock = lock_of(row, parent=below, architecture=row.architecture)
        locks[row.name] = lock.digest
        pairs.append((row, lock))
    return {item.image.name: item for item in build.recipes(pairs, tools or {**TOOLS, **EMULATOR})}


def test_a_row_for_each_architecture(tmp_path: Path) -> None:
    rows = matrix(tmp_path).images
    assert set(rows) == {
        "cpu-1-base-debian12",
        "cpu-1-base-debian12_arm64",
        "cpu-1-runtime-debian12",
        "cpu-1-runtime-debian12_arm64",
        "cpu-1-devel-debian12",
        "cuda-12.9.1-base-debian12",
        "cuda-12.9.1-base-debian12_arm64",
    }
    arm = rows["cpu-1-runtime-debian12_arm64"]
    assert (arm.architecture, arm.image.os, arm.system.architectures) == (
        "arm64",
        "debian12",
        ("arm64",),
    )
    assert arm.image.tag == "1-runtime-debian12_arm64"
    assert arm.image.parent == "cpu-1-base-debian12_arm64"
    assert rows["cuda-12.9.1-base-debian12_arm64"].image.parent == "cpu-1-base-debian12_arm64"
    assert arm.parts == rows["cpu-1-runtime-debian12"].parts == {"openblas": "0.3.21"}


def test_arm64_beside_amd64_changes_nothing_of_amd64(tmp_path: Path) -> None:
    alone, both = matrix(tmp_path / "alone", "[amd64]", "[amd64]"), matrix(tmp_path / "both")
    assert {name: intent_digest(row) for name, row in alone.images.items()} == {
        name: intent_digest(both.images[name]) for name in alone.images
    }
    before, after = recipes(alone, TOOLS), recipes(both)
    assert {name: item.digest for name, item in before.items()} == {
        name: after[name].digest for name in before
    }


def test_an_architecture_that_the_os_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"matrix\.yml:15: debian12 is not declared for arm64.*Use one of: amd64"
    ):
        matrix(tmp_path, "[amd64]")


def test_a_lock_has_its_architecture(tmp_path: Path) -> None:
    row = matrix(tmp_path).row("cpu-1-base-debian12_arm64")
    lock = lock_of(row, architecture="arm64")
    path = write_lock(lock, tmp_path / "locks")
    assert "architecture: arm64\n" in path.read_text()
    assert load_lock(path) == find_lock(row) == lock
    assert lock.digest != lock.model_copy(update={"architecture": "amd64"}).digest


def test_wheels_are_those_of_the_architecture(tmp_path: Path) -> None:
    rows = matrix(tmp_path).images
    amd64, arm64 = rows["cuda-12.9.1-base-debian12"], rows["cuda-12.9.1-base-debian12_arm64"]
    for machine in ("x86_64", "aarch64"):
        (
            tmp_path / f"demo-1.0-py3-none-manylinux2014_{machine}.manylinux_2_17_{machine}.whl"
        ).touch()
    index = Index(settings={"no-index": "true", "find-links": str(tmp_path)})
    found = [index.wheel("demo", "1.0", row.system) for row in (amd64, arm64)]
    assert [item is not None and item.file.rpartition("_17_")[2] for item in found] == [
        "x86_64.whl",
        "aarch64.whl",
    ]
    assert "manylinux_2_36_aarch64" in platform_options(arm64.system)
    assert not [word for word in platform_options(arm64.system) if "x86_64" in word]
    assert environment(arm64.system)["platform_machine"] == "aarch64"


def test_a_recipe_states_its_emulator(tmp_path: Path) -> None:
    found = recipes(matrix(tmp_path))
    arm, amd = found["cpu-1-base-debian12_arm64"], found["cpu-1-base-debian12"]
    assert (
        arm.tools["emulator-arm64"]
        == arm.labels[f"{LABELS}emulated"]
        == "qemu-aarch64-static 7.2.22"
    )
    assert not {"emulator-arm64", f"{LABELS}emulated"} & {*amd.tools, *amd.labels}
    assert (arm.labels[f"{LABELS}architectures"], arm.identity["architecture"]) == (
        "arm64",
        "arm64",
    )
    other = recipes(matrix(tmp_path), {**TOOLS, "emulator-arm64": "qemu-aarch64-static 10.0"})
    assert other[arm.image.name].build_id != arm.build_id
    # A machine of that architecture uses none.
    assert f"{LABELS}emulated" not in recipes(matrix(tmp_path), TOOLS)[arm.image.name].labels


def test_cuda_for_servers_of_arm64_has_nvidias_own_directory(tmp_path: Path) -> None:
    found = recipes(matrix(tmp_path))["cuda-12.9.1-base-debian12_arm64"]
    assert found.environment["NVARCH"] == "sbsa"
    assert found.files["usr/local/cuda-12.9/lib64"] == {"link": "targets/sbsa-linux/lib"}
    assert (
        found.files["etc/ld.so.conf.d/000_cuda.conf"]["text"]
        == "/usr/local/cuda/targets/sbsa-linux/lib\n"
    )
    assert found.place.target == "sbsa-linux"


def test_only_amd64_has_lib64() -> None:
    assert "lib64" in engines.root_start("amd64")
    assert engines.root_start("arm64").startswith("for name in bin sbin lib; do")


@pytest.mark.parametrize(
    ("labels", "system"),
    [
        ({"architectures": "arm64"}, "debian12_arm64"),
        ({"architectures": "amd64"}, "debian12"),
        ({}, "debian12"),
    ],
)
def test_the_labels_state_the_architecture(labels: dict[str, str], system: str) -> None:
    stated = {
        "backend": "cpu",
        "runtime": "1",
        "flavour": "base",
        "os": "debian12",
        "build-id": "0123456789ab",
    }
    full = {LABELS + key: value for key, value in (stated | labels).items()}
    history = [{"created_by": step_of(f"cpu-1-base-{system}")}]
    own = identity(
        {"config": {"Labels": full}, "history": history, "rootfs": {"diff_ids": ["sha256:1"]}}
    )
    claim = claimed(own)
    assert claim is not None
    assert (claim.os, claim.architecture) == ("debian12", labels.get("architectures", "amd64"))
    assert own.os == system
    image = cast(
        OciImage,
        SimpleNamespace(
            config={
                "config": {"Labels": full},
                "history": history,
                "rootfs": {"diff_ids": ["sha256:1"]},
            }
        ),
    )
    assert publish.checked_name(image, f"cpu:1-base-{system}-0123456789ab")[0] == "cpu"
    with pytest.raises(
        ImageError, match=rf"the labels of the image say cpu:1-base-{system}-0123456789ab"
    ):
        publish.checked_name(image, "cpu:1-base-debian13-0123456789ab")


# Emulation


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine of amd64, whose programs the test sets: name: what `--version` prints."""
    programs: dict[str, str] = {}
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(
        "shutil.which", lambda name: f"/usr/bin/{name}" if name in programs else None
    )
    emulation.tools.cache_clear()

    def run(command: list[str], **_: object) -> SimpleNamespace:
        return SimpleNamespace(stdout=programs[command[0]])

    monkeypatch.setattr("subprocess.run", run)
    return programs


def test_a_machines_own_programs_are_run_as_they_are(machine: dict[str, str]) -> None:
    assert emulation.emulated("amd64", ["true"]) == ["true"]
    assert emulation.tools() == {}
    assert (emulation.runnable("amd64"), emulation.runnable("arm64")) == (True, False)


def test_a_machine_without_an_emulator_is_refused(machine: dict[str, str]) -> None:
    with pytest.raises(
        ImageError, match=r"cannot run programs of arm64.*apt-get install qemu-user-static"
    ):
        emulation.emulated("arm64", ["true"])


def test_the_emulator_is_registered_for_the_command_alone(machine: dict[str, str]) -> None:
    machine["qemu-aarch64-static"] = "qemu-aarch64 version 7.2.22 (Debian 1:7.2+dfsg-7)\n"
    assert emulation.tools() == EMULATOR
    command = emulation.emulated("arm64", ["sh", "-c", "true"])
    assert command[-3:] == ["sh", "-c", "true"]
    *_, interpreter, flags = command[-4].split(":")
    assert (interpreter, flags) == ("/usr/bin/qemu-aarch64-static", "FC")
    assert r"\x02\x00\xb7\x00" in command[-4]
    emulation.tools.cache_clear()


def test_locks_state_only_the_emulator_that_they_use() -> None:
    tools = {"zlib": "1.3", **EMULATOR}
    assert emulation.used(tools, "amd64") == {"zlib": "1.3"}
    assert emulation.used(tools, "arm64") == tools


def test_buildkit_is_refused_for_another_architecture(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    engine = object.__new__(engines.BuildKit)
    step = engines.EngineStep(
        "k",
        parent=[],
        layout=Layout(tmp_path),
        containerfile="",
        directory=tmp_path,
        work=tmp_path,
        epoch=0,
        architecture="arm64",
    )
    with pytest.raises(ImageError, match="--engine buildah"), engine.run(step):
        pass


def test_an_emulated_run_is_labelled() -> None:
    tier = {"state": "passed", "why": "", "simulated": False, "tests": [{"name": "a"}]}
    idle = {"state": "not_run", "why": "no GPU", "simulated": False, "tests": []}
    found = record.emulated(
        {
            "schema": "s",
            "backend": "cpu",
            "image": None,
            "build_id": None,
            "parts_without_a_test": [],
            "tiers": {"cpu": tier, "gpu": idle},
        },
        "qemu-aarch64-static 7.2.22",
    )
    kept = record.evidence(found)
    assert kept["emulated"] == "qemu-aarch64-static 7.2.22"
    assert kept["tiers"]["cpu"]["why"] == "emulated by qemu-aarch64-static 7.2.22"
    assert kept["tiers"]["gpu"]["why"] == "no GPU"
