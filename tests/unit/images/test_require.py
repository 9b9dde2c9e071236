"""NVIDIA_REQUIRE_CUDA: what it admits is what goldnode's own rule admits, for every CUDA and every driver of the facts."""

from __future__ import annotations

import pytest
from tests.unit.images.nvidia_require import MachineProperties, Reader, admits

from goldnode.compat.model import CompatHost, Workload
from goldnode.compat.rules_workload import cuda_driver, image_requirement
from goldnode.core.errors import ImageError
from goldnode.facts import host as facts
from goldnode.facts import workload as facts_workload
from goldnode.facts.host import load
from goldnode.images.require import minimum_driver, requirement

CUDAS = tuple(facts_workload.cudas())
DRIVERS = tuple(
    str(item[0]) for row in load("nvidia_drivers.yml")["branches"] for item in row["point_releases"]
)
BRANDS = {"A100-SXM4-40GB": "tesla", "L4": "tesla"}


def host(driver: str, gpu: str) -> CompatHost:
    return CompatHost(
        subject="a node",
        vendor="nvidia",
        branch=driver.partition(".")[0],
        driver=driver,
        gpus=(facts.gpu(gpu),),
        unknown="warn",
    )


def runs(cuda: str, driver: str, gpu: str = "L4") -> bool:
    """What the rule says of an image without a forward-compatibility package."""
    workload = Workload(subject="an image", cuda=cuda, forward_compat=False)
    return all(
        item.severity not in ("block", "unknown")
        for item in cuda_driver(host(driver, gpu), workload)
    )


@pytest.mark.parametrize("cuda", CUDAS)
def test_requirement_admits_exactly_the_drivers_that_run_the_cuda(cuda: str) -> None:
    value = requirement(cuda)
    for driver in DRIVERS:
        machine = MachineProperties.of_driver(driver, brand="tesla", arch="8.9")
        expected = runs(cuda, driver)
        assert admits(value, machine) is expected, f"CUDA {cuda} on driver {driver}"
        assert admits(value, machine, "toolkit") is expected


@pytest.mark.parametrize("cuda", CUDAS)
def test_both_evaluators_of_this_project_agree(cuda: str) -> None:
    workload = Workload(
        subject="an image", cuda=cuda, forward_compat=False, require_driver=requirement(cuda)
    )
    for driver in DRIVERS[::3]:
        refused = any(
            item.severity == "block" for item in image_requirement(host(driver, "L4"), workload)
        )
        assert refused is not admits(
            requirement(cuda), MachineProperties.of_driver(driver, brand="tesla")
        )


def test_a_geforce_is_no_different_without_a_package() -> None:
    """NVIDIA's own value lists brands, and so refuses combinations that run."""
    assert runs("12.4", "535.54.03", "GeForce-RTX-4090") is True
    assert admits(requirement("12.4"), MachineProperties.of_driver("535.54.03", brand="geforce"))


def test_a_wrong_minimum_would_be_seen() -> None:
    value = "cuda>=12.4 driver>=530"
    assert any(
        admits(value, MachineProperties.of_driver(driver)) != runs("12.4", driver)
        for driver in DRIVERS
    )


def test_requirement_names_cuda_and_minimum_driver() -> None:
    assert requirement("12.4.1") == "cuda>=12.4 driver>=525.60.13"
    assert requirement("13.1") == "cuda>=13.1 driver>=580.65.6"  # 580.65.06 is no semantic version
    assert (
        requirement("12.0") == "driver>=525.60.13"
    )  # branch 525 began below it, and has CUDA 12.0 natively
    assert minimum_driver("13.0.2") == "580.65.06"


def test_a_cuda_without_facts_is_refused() -> None:
    with pytest.raises(
        ImageError, match=r"CUDA 99\.1 is not among the releases.*nearest known one is"
    ):
        requirement("99.1")


NVIDIAS = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=geforce,driver>=535,driver<536"


@pytest.mark.parametrize(
    ("value", "machine", "expected"),
    [
        (NVIDIAS, MachineProperties("470.57.02", "11.4", brand="Tesla"), True),
        (NVIDIAS, MachineProperties("471.10", "11.4", brand="tesla"), False),
        (NVIDIAS, MachineProperties("470.57.02", "11.4", brand="geforce"), False),
        (NVIDIAS, MachineProperties("550.54.14", "12.4", brand="nvidia"), True),
        ("cuda=12.4", MachineProperties(cuda="12.4.0"), True),
        ("cuda!=12.4", MachineProperties(cuda="12.4"), False),
        ("arch<8.0", MachineProperties(arch="7.5"), True),
        ("arch<=7.5,arch>7.0", MachineProperties(arch="7.5"), True),
        ("driver>=580.65.06", MachineProperties("580.65.6"), True),
        ("cuda>=12.4", MachineProperties(), False),
        ("", MachineProperties(), True),
    ],
)
def test_requirement_is_evaluated_by_its_grammar(
    value: str, machine: MachineProperties, expected: bool
) -> None:
    assert admits(value, machine) is expected


def test_the_toolkit_is_exact_about_case() -> None:
    assert not admits("brand=tesla", MachineProperties(brand="Tesla"), "toolkit")


@pytest.mark.parametrize("reader", ["library", "toolkit"])
def test_unknown_property_raises_in_library_and_not_in_toolkit(reader: Reader) -> None:
    machine = MachineProperties("550.54.14", "12.4")
    if reader == "toolkit":
        assert admits("mood=good cuda>=13", machine, reader) is False
        assert admits("mood=good,cuda>=12", machine, reader) is True
        assert admits("mood=good", machine, reader) is True
    else:
        with pytest.raises(ImageError, match='no property "mood"'):
            admits("mood=good cuda>=12", machine, reader)


@pytest.mark.parametrize(
    "value", ["cuda", ">=12", "cuda>=", "cuda>=twelve", "brand>tesla", "cuda=>12"]
)
def test_malformed_requirement_is_an_error(value: str) -> None:
    with pytest.raises(ImageError):
        admits(value, MachineProperties("550.54.14", "12.4", brand="tesla"))
