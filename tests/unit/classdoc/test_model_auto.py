"""Classes with `gpu: {model: auto}`: at a desk the model is unknown, and a node is judged by the model that it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.unit.catalog.test_accept_reject import FILES, STACK, write
from tests.unit.classdoc.test_class_document import document as compiled
from tests.unit.node.captures import healthy, spoiled
from tests.unit.node.state.test_cases import bare
from tests.unit.node.state.test_cases import document as of_cases

from goldnode.catalog.load import Catalog
from goldnode.classdoc.compile import declaration
from goldnode.classdoc.findings import findings_of_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.commands.check.request import CheckRequest, compatibility_report
from goldnode.compat.check import check, fatal_of_models
from goldnode.core.errors import CatalogError, FactsError, GoldnodeError
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.node.state import preflight
from goldnode.node.verdict import check as verdict
from goldnode.node.verdict import deltas, table

AUTO = "class: a100\nbackend: cuda\nstack: r580\ngpu: {model: auto, count: 1}\n"
OPEN, PASCAL, ACCELERATOR = (
    "10de:2330",
    "10de:1db4",
    "8086:7d1d",
)  # an H100, a V100, the accelerator of a processor


ARCHIVES = FILES["archives.yml"].replace("  debian:", "  nvidia-cuda:")


def catalog(tmp_path: Path, text: str = AUTO, stack: str = STACK) -> Catalog:
    files = {**FILES, "archives.yml": ARCHIVES, "classes/a100.yml": text, "stacks/r580.yml": stack}
    moved = {
        name: text.replace("archives: [debian]", "archives: [nvidia-cuda]")
        for name, text in files.items()
        if "stacks" in name
    }
    return load_catalog([write(tmp_path, {**files, **moved})])


REFUSED = {
    "a limit of one model": (
        "policy: {power_limit_watts: 300}\n",
        "`power_limit_watts` depends on the GPU model",
    ),
    "clocks of one model": (
        "policy: {clocks: {graphics_mhz: 1400}}\n",
        "`clocks` depends on the GPU model",
    ),
    "a baseline of one model": (
        "baseline: {gpu: {nvlinks: 12}}\n",
        "the baseline is of one GPU model",
    ),
    "an override of an unknown board": (
        "policy: {overrides: [{uuid: GPU-0a1b2c3d-0000-0000-0000-000000000000, ecc: true}]}\n",
        "an override for GPU-",
    ),
    "a limit above the model's": (
        "policy: {overrides: [{model: L4, power_limit_watts: 500}]}\n",
        "500 W is above the 72 W limit of L4",
    ),
    "a platform of other models": ("platform: hgx_a100_8\n", "is not built with auto"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_model_specific_setting_is_refused_with_model_auto(tmp_path: Path, case: str) -> None:
    more, expected = REFUSED[case]
    with pytest.raises(CatalogError, match=expected):
        catalog(tmp_path, AUTO + more)


def test_flavour_that_follows_from_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CatalogError, match="chooses the flavour of its kernel modules by the GPU model"
    ):
        catalog(tmp_path, AUTO, STACK.replace("flavour: open", "flavour: auto"))


def test_settings_of_every_model_and_of_named_models_are_accepted(tmp_path: Path) -> None:
    catalog(
        tmp_path,
        AUTO
        + "policy: {persistence_mode: true, overrides: [{model: L4, power_limit_watts: 60}]}\n",
    )


def test_desk_reports_the_model_as_unknown_and_names_those_that_do_not_fit(tmp_path: Path) -> None:
    found = findings_of_class("a100", catalog(tmp_path), Site())
    unknown = [each for each in found if each.rule == "gpu-model"]
    assert [(each.severity, each.fatal) for each in unknown] == [("unknown", False)]
    assert "not V100-SXM2-16GB" in unknown[0].message
    blocking = AUTO + "compat: {unknown: block}\n"
    found = findings_of_class("a100", catalog(tmp_path / "block", blocking), Site())
    assert [each.fatal for each in found if each.rule == "gpu-model"] == [True]


@pytest.mark.parametrize(
    ("model", "rules"), [("GeForce-RTX-4090", set()), ("V100-PCIE-16GB", {"module-flavour"})]
)
def test_named_model_is_judged_as_if_the_class_declared_it(
    tmp_path: Path, model: str, rules: set[str]
) -> None:
    auto, declared = catalog(tmp_path), catalog(tmp_path / "named", AUTO.replace("auto", model))
    found = check(read_class("a100", auto, Site(), model=model).host)
    assert {each.rule for each in found if each.fatal} == rules
    want = check(read_class("a100", declared, Site()).host)
    assert [each.message for each in found] == [each.message for each in want]


def test_models_that_fit_are_those_whose_own_class_would_not_be_blocked(tmp_path: Path) -> None:
    host = read_class("a100", catalog(tmp_path), Site()).host
    judged = fatal_of_models(host)
    assert set(judged) == {sku for sku, gpu in facts.gpus().items() if gpu.vendor == "nvidia"}
    for sku in ("V100-PCIE-16GB", "H100-SXM5-80GB", "B200-SXM-180GB", "L4"):
        named = catalog(tmp_path / sku, AUTO.replace("auto", sku))
        fatal = [each for each in findings_of_class("a100", named, Site()) if each.fatal]
        assert bool(fatal) == bool(judged[sku]), sku


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize("driver", [None, "470.256.02", "550.163.01", "620.70.06"])
def test_models_are_judged_as_by_every_rule(
    vendor: Literal["nvidia", "amd", "intel"], driver: str | None
) -> None:
    """Rules that read no GPUs run once for all models: this is the same with all rules for each model."""
    host = read_class("workstation_debian13", load_catalog(), Site()).host
    if driver is not None and vendor == "nvidia":
        host = replace(host, driver=driver, branch=driver.partition(".")[0])
    host = replace(host, gpus=(), vendor=vendor, auto=False)
    always = {(each.rule, each.message) for each in check(host) if each.fatal}
    for sku, found in fatal_of_models(host).items():
        every = check(replace(host, gpus=(facts.gpu(sku),)))
        wanted = [each for each in every if each.fatal and (each.rule, each.message) not in always]
        assert [(each.rule, each.message) for each in found] == [
            (each.rule, each.message) for each in wanted
        ], sku


@pytest.mark.parametrize(("model", "error"), [("MI300X", CatalogError), ("RTX-9999", FactsError)])
def test_model_of_another_vendor_or_of_none_is_refused(
    tmp_path: Path, model: str, error: type[GoldnodeError]
) -> None:
    with pytest.raises(error):
        compatibility_report(
            CheckRequest(["a100"], model=model), catalog=catalog(tmp_path), site=Site()
        )


def test_model_for_a_class_that_names_its_own_is_refused(tmp_path: Path) -> None:
    named = catalog(tmp_path, AUTO.replace("auto", "L4"))
    with pytest.raises(CatalogError, match="--gpu is for classes with `model: auto`"):
        compatibility_report(CheckRequest(["a100"], model="L4"), catalog=named, site=Site())


def test_document_names_the_models_that_fit_and_the_reason_against_the_others(
    tmp_path: Path,
) -> None:
    found = compiled(tmp_path, node_class=AUTO)
    gpu = found["gpu"]
    assert (gpu["model"], gpu["vendor"], gpu["architecture"]) == ("auto", "nvidia", None)
    assert gpu["models"][OPEN] == "H100-SXM5-80GB"
    assert "V100" in gpu["unfit"][PASCAL]
    assert not set(gpu["models"]) & set(gpu["unfit"])
    assert gpu["pci_ids"] == list(gpu["models"])
    assert found["health"]["models"][OPEN]["memory_mib"]
    assert set(found["health"]["models"]) == set(gpu["models"])
    assert found["driver"]["flavour"] == "open"
    unlocked = declaration("a100", catalog(tmp_path / "again"), Site())["gpu"]
    assert set(unlocked["unfit"]) == set(gpu["unfit"])


def refusals(
    gpus: list[str] | None, count: int = 1, **more: Any
) -> tuple[dict[str, str], list[str]]:
    """Return the refusals of a node with these GPUs by code, and its notes."""
    wanted = of_cases()
    wanted["gpu"] = {
        "vendor": "nvidia",
        "model": "auto",
        "count": count,
        "pci_ids": [OPEN],
        "models": {OPEN: "H100-SXM5-80GB"},
        "unfit": {PASCAL: "the open modules do not drive it"},
    }
    wanted.update(more)
    seen = bare(wanted)
    seen.gpus = (
        None
        if gpus is None
        else [
            {"address": f"0000:0{n}:00.0", "id": pci_id, "driver": None}
            for n, pci_id in enumerate(gpus)
        ]
    )
    found = preflight.identity(wanted, seen)
    return (
        {item.code: item.message for item in found},
        [item.subject for item in preflight.notes(wanted, seen) if item.subject.startswith("gpu")],
    )


NODES: dict[str, tuple[list[str] | None, dict[str, str], list[str]]] = {
    "a model that fits": ([OPEN], {}, []),
    "beside the accelerator of its processor": ([ACCELERATOR, OPEN], {}, []),
    "a model that does not fit": ([PASCAL], {"wrong-gpu": "the open modules do not drive it"}, []),
    "a model that no fact knows": (["10de:ffff"], {}, ["gpu.model"]),
    "two in place of one": ([OPEN, OPEN], {"gpu-count": "shows 2 GPUs of NVIDIA"}, []),
    "no GPU": ([ACCELERATOR], {"gpu-count": "shows 0 GPUs"}, []),
    "a container, which shows none": (None, {}, ["gpu"]),
}


@pytest.mark.parametrize("case", NODES)
def test_node_refuses_what_does_not_fit(case: str) -> None:
    gpus, codes, notes = NODES[case]
    found, reported = refusals(gpus)
    assert set(found) == set(codes)
    assert all(text in found[code] for code, text in codes.items())
    assert reported == notes


def test_node_refuses_an_unknown_model_where_the_class_blocks_the_unknown() -> None:
    assert "unknown-gpu" in refusals(["10de:ffff"], compat={"unknown": "block"})[0]


@pytest.mark.parametrize(
    ("pci_id", "unknown", "outcome", "got"),
    [
        (OPEN, "warn", "match", "H100-SXM5-80GB"),
        (PASCAL, "warn", "mismatch", "V100"),
        ("10de:ffff", "warn", "could_not_read", "not in the facts: 10de:ffff"),
        ("10de:ffff", "accept", "match", "10de:ffff"),
    ],
)
def test_verdict_names_the_model_that_the_node_has(
    tmp_path: Path, pci_id: str, unknown: str, outcome: str, got: str
) -> None:
    document: Any = compiled(tmp_path, node_class=f"{AUTO}compat: {{unknown: {unknown}}}\n")
    capture = spoiled(healthy(1), "gpus.0.pci_id", pci_id)
    found = [item for item in verdict.of_record(document, capture) if item.id == "gpu.ids"]
    assert [item.outcome for item in found] == [outcome]
    assert got in str(found[0].got)


def test_hardware_is_judged_by_the_facts_of_the_detected_model(tmp_path: Path) -> None:
    document: Any = compiled(tmp_path, node_class=AUTO)

    def links(width: int) -> set[str]:
        capture = spoiled(healthy(1), "gpus.0.pcie.width.current", width)
        return {
            item.outcome
            for item in table.judge(document, capture, deltas.step({}, capture)[0])
            if item.id == "pcie.width"
        }

    assert links(16) == {"match"}
    assert links(8) == {"mismatch"}
