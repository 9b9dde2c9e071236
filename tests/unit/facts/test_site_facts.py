"""Facts that a catalog adds: used like goldnode's own, and refused with file and line where they contradict them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import FILES, write

from goldnode.classdoc.compile import class_document, declaration
from goldnode.classdoc.findings import findings_of_class
from goldnode.classdoc.gpu_facts import health_facts
from goldnode.classdoc.load import load_catalog
from goldnode.commands.check.catalog_report import check
from goldnode.core.errors import CatalogError, FactsError
from goldnode.core.site import Site
from goldnode.facts import audit
from goldnode.facts import host as facts

HEAD = """\
meta: {subject: our boards, compiled: '2026-11-24'}
sources:
  sheet: {title: data sheet of the vendor}
"""
ROW = """\
- sku: X900-PCIE-96GB
  vendor: nvidia
  names: [NVIDIA X900 PCIe]
  pci_ids: ['10de:9999']
  architecture: Hopper
  compute_capability: '9.0'
  data_centre: true
  memory_mib: 97871
  power_limit_default_w: null
  pcie: {gen: 5, width: 16}
  nvlink_links: null
  mig: {capable: false, profiles: []}
  ecc_default: null
  min_driver: null
  min_driver_branch: 535
  min_cuda_native: '11.8'
  source: {names: sheet, pci_ids: sheet, cc: sheet, data_centre: sheet, memory_power: sheet, pcie: sheet, nvlink: null,
    mig: sheet, ecc: null, min_driver: sheet, min_cuda: sheet}
  open_modules_required: false
"""
GPUS = f"{HEAD}nvidia:\n{ROW}"


def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> Path:
    own = write(tmp_path / "site", {f"facts/{name}.yml": text for name, text in files.items()})
    monkeypatch.setenv("GOLDNODE_CATALOG", str(own))
    return own / "facts"


def test_a_model_of_a_catalog_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = catalog(tmp_path, monkeypatch, gpus=GPUS)
    assert facts.site_faults() == []
    assert facts.gpu("NVIDIA X900 PCIe").sku == "X900-PCIE-96GB"
    assert health_facts("X900-PCIE-96GB")["gpu"] == {
        "pcie": {"gen": 5, "width": 16},
        "memory_mib": [97871],
        "mig": False,
    }
    (origin,) = facts.gpu("X900-PCIE-96GB").origins("pcie")
    assert str(origin) == f"data sheet of the vendor ({place}/gpus.yml, sheet)"
    monkeypatch.delenv("GOLDNODE_CATALOG")
    with pytest.raises(FactsError, match="not in the facts"):
        facts.gpu("X900-PCIE-96GB")


def test_the_document_of_a_class_has_the_model_of_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict(FILES)
    files["classes/mine.yml"] = (
        "class: mine\nbackend: cuda\nstack: r580\ngpu: {model: NVIDIA X900 PCIe, count: 8}\n"
    )
    files["facts/gpus.yml"] = GPUS
    own = write(tmp_path, files)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(own))
    found = declaration("mine", load_catalog([own]))
    assert found["gpu"] == {
        "vendor": "nvidia",
        "model": "X900-PCIE-96GB",
        "count": 8,
        "pci_ids": ["10de:9999"],
    }
    assert found["health"]["gpu"]["memory_mib"] == [97871]


@pytest.mark.parametrize("named_by", ["GOLDNODE_CATALOG", "goldnode-site.yml", "~/here.yml"])
def test_a_catalog_with_facts_alone_is_a_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    own = write(tmp_path / "ours", {"facts/gpus.yml": GPUS})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GOLDNODE_SITE", "GOLDNODE_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    if named_by == "GOLDNODE_CATALOG":
        monkeypatch.setenv(named_by, str(own))
    else:
        write(tmp_path, {named_by.removeprefix("~/"): "catalog: ours\n"})
    if named_by.startswith("~"):
        monkeypatch.setenv("GOLDNODE_SITE", named_by)
    assert own in load_catalog().directories
    assert facts.site_folders() == (str(own / "facts"),)
    assert facts.gpu("X900-PCIE-96GB").pci_ids == ("10de:9999",)
    (own / "facts").rename(own / "fact")
    with pytest.raises(CatalogError, match=r'(?i)call it "facts"'):
        load_catalog()


def test_a_class_of_a_catalogs_model_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = "class: mine\nbackend: cuda\nstack: r580\ngpu: {model: X900-PCIE-96GB, count: 8}\n"
    own = write(
        tmp_path, {**FILES, "classes/mine.yml": mine, "facts/gpus.yml": GPUS.replace("535", "590")}
    )
    monkeypatch.setenv("GOLDNODE_CATALOG", str(own))
    (found,) = [
        item
        for item in findings_of_class("mine", load_catalog([own]), Site())
        if item.rule == "gpu-driver"
    ]
    assert (found.severity, found.fatal) == ("block", True), found
    assert f"{own}/facts/gpus.yml" in str(found.sources[0])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param(
            GPUS.replace("X900-PCIE-96GB", "L4"),
            5,
            '"L4" is in goldnode\'s facts.*overrides',
            id="twice",
        ),
        pytest.param(
            GPUS.replace("memory_mib: 97871", "memory_mib: much"),
            12,
            "expected a whole number",
            id="form",
        ),
        pytest.param(GPUS.replace("  ecc_default: null\n", ""), 5, "ecc_default", id="key-missing"),
        pytest.param(
            GPUS + "overrides: {L4: because}\n", 24, '`overrides` names "L4"', id="stale-override"
        ),
        pytest.param(
            GPUS.replace("sheet: {title: data", "smi: {title: data"),
            3,
            "is another document",
            id="source-twice",
        ),
        pytest.param(
            GPUS.replace("{names: sheet", "{names: shet"),
            21,
            'source "shet".*Use "sheet"',
            id="source-unknown",
        ),
        pytest.param(GPUS.replace("10de:9999", "10de-9999"), 8, "no PCI id", id="pci-id"),
    ],
)
def test_a_wrong_file_of_a_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, message: str
) -> None:
    place = catalog(tmp_path, monkeypatch, gpus=text)
    (fault,) = facts.site_faults()
    assert (fault.file, fault.line) == (str(place / "gpus.yml"), line), fault
    assert fault.remedy
    assert re.search(message, str(fault)), fault
    assert facts.gpu("L4").memory_mib == 23034, "goldnode's own facts are as they were"


def test_an_override_needs_its_reason_and_replaces_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GPUS.replace("X900-PCIE-96GB", "L4").replace("'10de:9999'", "'10de:27b8'")
    catalog(tmp_path, monkeypatch, gpus=text + "overrides: {L4: measured on our boards}\n")
    assert facts.site_faults() == []
    assert facts.gpu("L4").memory_mib == 97871


def test_a_file_that_a_catalog_cannot_extend_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(tmp_path, monkeypatch, cuda=HEAD)
    (fault,) = facts.site_faults()
    assert 'cannot add facts to "cuda.yml"' in str(fault)


def test_rows_of_a_catalog_are_audited_with_goldnodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = catalog(
        tmp_path,
        monkeypatch,
        gpus=GPUS.replace("'10de:9999'", "'10de:27b8'").replace("'11.8'", "'11.0'"),
    )
    reported = [str(fault.error()) for fault in audit.site_faults()]
    assert len(reported) == 2, reported
    assert all(text.startswith(f"{place}/gpus.yml:5: ") for text in reported), reported
    assert any("PCI id 10de:27b8 is of two models" in text for text in reported)
    assert any("first CUDA 11.0, but 11.8 in cuda.yml" in text for text in reported)


def test_no_node_gets_a_document_without_the_facts_of_its_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GPUS.replace("X900-PCIE-96GB", "L4").replace("'10de:9999'", "'10de:27b8'")
    own = catalog(
        tmp_path, monkeypatch, gpus=text.replace("97871", "much") + "overrides: {L4: measured}\n"
    )
    write(own.parent, FILES)
    with pytest.raises(FactsError, match=r"facts/gpus.yml:12"):
        class_document("a100", load_catalog([own.parent]), Site())


def test_check_catalog_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    catalog(tmp_path, monkeypatch, gpus=GPUS.replace("memory_mib: 97871", "memory_mib: much"))
    assert any("facts/gpus.yml:12: " in str(problem) for problem in check().wrong)


def test_a_class_of_a_model_whose_file_is_broken_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict(FILES)
    files["classes/mine.yml"] = (
        "class: mine\nbackend: cuda\nstack: r580\ngpu: {model: X900-PCIE-96GB, count: 8}\n"
    )
    files["facts/gpus.yml"] = GPUS.replace("memory_mib: 97871", "memory_mib: much")
    own = write(tmp_path, files)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(own))
    with pytest.raises(CatalogError, match=r"X900-PCIE-96GB.*not read: .*facts/gpus.yml:12"):
        load_catalog([own])
