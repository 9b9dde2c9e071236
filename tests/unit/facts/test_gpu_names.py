"""Names of GPU models: product names as tools print them, and hints for names that are not in the facts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from goldnode.core.errors import FactsError, candidates, nearest
from goldnode.facts import host as facts

NAMES = [(name, sku) for sku, gpu in facts.gpus().items() for name in gpu.names]


@pytest.mark.parametrize(
    ("name", "sku"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIE-80GB"),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
        ("GeForce RTX 3090", "GeForce-RTX-3090"),  # drivers before 470
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("Tesla T4", "T4"),
        ("Tesla P40", "P40"),
        ("NVIDIA GH200 480GB", "GH200-120GB (96GB HBM3)"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Blackwell-Server"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA H20-3e", "H20-141GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Quadro RTX 6000", "Quadro-RTX-6000"),
        ("NVIDIA GeForce GTX 1080 Ti", "GeForce-GTX-1080-Ti"),
        ("Radeon RX 7900 XTX", "Radeon-RX-7900-XTX"),
        ("Intel Arc B580 Graphics", "Arc B580"),
        ("Data Center GPU Max 1550", "Max 1550"),
    ],
)
def test_a_product_name_is_a_model(name: str, sku: str) -> None:
    assert facts.gpu(name).sku == sku


def test_every_product_name_is_of_exactly_one_model() -> None:
    bare = Counter(name.removeprefix("NVIDIA ") for name, _ in NAMES)
    assert [name for name, count in bare.items() if count > 1] == []
    assert {name for name, sku in NAMES if facts.gpu(name).sku != sku} == set()
    assert {name for name in bare if name in facts.gpus() and facts.gpu(name).sku != name} == set()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA H100 80GB HBM2", ["H100-SXM5-80GB"]),
        ("NVIDIA H100", ["H100-NVL", "H100-PCIE-80GB", "H100-SXM5-80GB"]),
        ("h100_sxm5", ["H100-SXM5-80GB", "H100-SXM5-94GB"]),
        ("RTX 4090", ["GeForce-RTX-4090"]),
        ("rtx4090", ["GeForce-RTX-4090"]),
        # The same letters.
        ("L40-S", ["L40S"]),
        ("NVIDIA L40 S", ["L40S"]),
        ("a 100 sxm4 40gb", ["A100-SXM4-40GB"]),
        ("A10-G", ["A10G"]),
        ("RTX-4070TI", ["GeForce-RTX-4070-Ti"]),
        ("H100SXM", ["H100-SXM5-80GB", "H100-SXM5-94GB"]),
        # Another model with that number.
        ("NVIDIA GeForce RTX 4090 Laptop GPU", []),
        ("L40G", []),
        ("L40-X", []),
        ("L4S", []),
        ("A100X", []),
        ("quadro rtx6000", ["Quadro-RTX-6000"]),
        ("Quadro RTX 3500", []),
        ("GeForce RTX 6000", []),
        ("RTX 6000", ["RTX-6000-Ada"]),
        ("GeForce RTX 3090 OEM", ["GeForce-RTX-3090"]),
        ("GH100", []),
        ("NVIDIA X1000", []),
        ("lap", []),
    ],
)
def test_a_hint_names_models_that_are_meant(name: str, near: list[str]) -> None:
    assert facts.near_gpus(name) == near
    with pytest.raises(FactsError) as caught:
        facts.gpu(name)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["Jetson AGX Orin", "NVIDIA Jetson Thor", "orin nano"])
def test_a_product_that_is_not_supported_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(FactsError, match=r"is not supported: .*Jetson Linux"):
        facts.gpu(name)


def edits(name: str, dice: random.Random) -> str:
    """Return the name as people write it: the number of the model stays, as another one is another model."""
    words = name.split(" ")
    which = dice.randrange(6)
    if which == 0:
        return name.casefold()
    if which == 1:
        return dice.choice("-_ ").join(words)
    if which == 2:
        return name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("AMD ")
    if which == 3:
        return f"{name} {dice.choice(('GPU', 'rev2', 'OEM'))}"
    if which == 4:
        return (
            name.replace("NVIDIA", "nvdia")
            .replace("Blackwell", "Blackwel")
            .replace("GeForce", "Geforce")
        )
    return name.upper()


def test_hints_for_edited_product_names_stay_within_the_architecture() -> None:
    dice = random.Random(17)  # noqa: S311 - test input
    wrong = []
    for name, sku in NAMES * 5:
        edited = edits(name, dice)
        near = facts.near_gpus(edited)
        kinds = {facts.gpu(model).architecture for model in near}
        if kinds != {facts.gpu(sku).architecture}:
            wrong.append((edited, sku, near))
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("h100_sxm5", ["h200_sxm", "h100_sxm5_80gb", "l4"], ["h100_sxm5_80gb"]),
        ("H100-SXM5-80GB", ["h100_sxm5_80gb", "h200_sxm"], ["h100_sxm5_80gb"]),
        ("clas", ["class", "class-document"], ["class"]),
        ("platfrom", ["platform", "policy"], ["platform"]),
        ("zzz", ["platform", "policy"], []),
        ("", ["platform"], []),
        ("h100", ["h100_a", "h100_b", "h100_c", "h100_d"], ["h100_a", "h100_b", "h100_c"]),
        ("l40-s", ["l4", "l40", "l40s"], ["l40s"]),
        ("l40s", ["l4", "l40", "h200_sxm"], []),
        ("l4", ["l40", "l40s"], []),
        ("h100_sxm", ["h200_sxm"], []),
        ("debian12_r58", ["debian12_r580", "debian12_r535"], ["debian12_r580"]),
        ("1.10", ["11.0", "1.1"], ["1.1"]),
    ],
)
def test_candidates_are_equal_then_begun_then_alike(
    name: str, known: list[str], found: list[str]
) -> None:
    assert candidates(name, known) == found


def test_many_names_are_not_listed_where_none_is_near() -> None:
    assert nearest("zzz", [f"class{number}" for number in range(21)]) == ""
    assert nearest("zzz", ["one", "two"]) == "use one of: one, two"
