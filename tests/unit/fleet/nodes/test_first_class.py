"""The class of a first node: answers as tables, the order of the stacks, and the file that is proposed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from goldnode.catalog.load import Catalog, builtin_catalog
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import CatalogError, GoldnodeError
from goldnode.facts import host as facts
from goldnode.fleet.nodes import first_class
from goldnode.fleet.nodes.first_class import NodeGpus, ThisMachine
from goldnode.node.ground.host import Host


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog([builtin_catalog()])


def machine(
    system: str = "ubuntu 24.04",
    kernel: str = "6.8.0-1-generic",
    *gpus: tuple[str, int],
    container: bool = False,
) -> ThisMachine:
    name, _, version = system.partition(" ")
    return ThisMachine((name, version), kernel, gpus, container)


@pytest.mark.parametrize(
    ("text", "model", "count"),
    [
        ("auto", "auto", 1),
        (" AUTO ", "auto", 1),
        ("2 x auto", "auto", 2),
        ("none", "none", 1),
        ("L4", "L4", 1),
        ("4x L4", "L4", 4),
        ("8 x H100-SXM5-80GB", "H100-SXM5-80GB", 8),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090", 1),
        ("geforce-rtx-5090", "GeForce-RTX-5090", 1),
    ],
)
def test_gpus_as_people_write_them(text: str, model: str, count: int) -> None:
    assert first_class.parse_gpus(text) == NodeGpus(model, count)


@pytest.mark.parametrize("text", ["", "  ", "0 x L4", "L44", "x"])
def test_invalid_gpu_text_is_refused(text: str) -> None:
    with pytest.raises(GoldnodeError):
        first_class.parse_gpus(text)


@pytest.mark.parametrize("sku", facts.gpus())
def test_every_model_of_the_facts_is_read_as_itself(sku: str) -> None:
    assert first_class.parse_gpus(f"2 x {sku}") == NodeGpus(sku, 2)
    assert first_class.parse_gpus(str(NodeGpus(sku, 2))) == NodeGpus(sku, 2)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), NodeGpus("none")),
        ((("GeForce-RTX-4090", 1),), NodeGpus("auto")),
        ((("10de:ffff", 2),), NodeGpus("auto", 2)),
        ((("H100-SXM5-80GB", 8),), NodeGpus("H100-SXM5-80GB", 8)),
        ((("MI300X", 1),), NodeGpus("MI300X")),
        ((("1002:ffff", 1),), NodeGpus("none")),
    ],
)
def test_gpus_of_a_machine(gpus: tuple[tuple[str, int], ...], expected: NodeGpus) -> None:
    assert first_class.gpus_of(machine("debian 13", "6.12.1", *gpus)) == expected


@pytest.mark.parametrize(
    ("gpus", "of", "first"),
    [
        (NodeGpus("auto"), machine("ubuntu 24.04", "6.8.0-90-generic"), "ubuntu2404_r580"),
        (NodeGpus("auto"), machine("ubuntu 24.04", "7.0.0-34-generic"), "ubuntu2404_hwe_r580"),
        (NodeGpus("auto"), machine("debian 12", "6.1.0-56-amd64"), "debian12_r580"),
        (NodeGpus("auto"), None, "debian13_r580"),
        (NodeGpus("none"), machine("debian 12", "6.1.0-56-amd64"), "debian12_cpu"),
        (NodeGpus("MI300X"), None, "debian13_rocm"),
    ],
)
def test_first_stack_is_the_one_for_the_machine(
    catalog: Catalog, gpus: NodeGpus, of: ThisMachine | None, first: str
) -> None:
    assert first_class.stacks_for(gpus, catalog, of)[0] == first


def test_no_stack_is_offered_that_the_gpus_cannot_use(catalog: Catalog) -> None:
    for gpus in (NodeGpus("auto"), NodeGpus("none"), NodeGpus("MI300X")):
        for name in first_class.stacks_for(gpus, catalog):
            driver = catalog.stacks[name].item.driver
            assert (driver.vendor if driver else None) == gpus.vendor
            assert not name.startswith("demo_")


@pytest.mark.parametrize(
    ("gpus", "stack", "name"),
    [
        (NodeGpus("L4"), "debian12_r580", "l4"),
        (NodeGpus("auto"), "debian13_r580", "workstation_debian13"),
        (NodeGpus("none"), "debian12_cpu", "cpu_only"),
    ],
)
def test_class_of_the_catalog_that_fits_is_used(
    catalog: Catalog, gpus: NodeGpus, stack: str, name: str
) -> None:
    assert first_class.class_of(gpus, stack, catalog) == (name, {})


@pytest.mark.parametrize(
    ("gpus", "stack", "name", "platform"),
    [
        (NodeGpus("auto"), "ubuntu2404_r580", "workstation_ubuntu2404_r580", "generic"),
        (NodeGpus("GeForce-RTX-4090", 2), "debian13_r580", "geforce_rtx_4090_2", "generic"),
        (NodeGpus("L4"), "ubuntu2404_r580", "l4_ubuntu2404_r580", "generic"),
        (NodeGpus("H100-SXM5-80GB", 8), "ubuntu2404_r580", "h100_sxm5_80gb_8", "hgx_h100_8"),
        (NodeGpus("MI300X", 8), "debian13_rocm", "mi300x", None),
    ],
)
def test_class_of_the_sites_own_is_accepted_by_the_catalog(
    catalog: Catalog, tmp_path: Path, gpus: NodeGpus, stack: str, name: str, platform: str | None
) -> None:
    found, written = first_class.class_of(gpus, stack, catalog)
    assert found == name
    if platform is None:
        assert written == {}
        return
    assert yaml.safe_load(written[f"classes/{name}.yml"])["platform"] == platform
    path = tmp_path / f"classes/{name}.yml"
    path.parent.mkdir()
    path.write_text(written[f"classes/{name}.yml"], encoding="utf-8")
    item = load_catalog([builtin_catalog(), tmp_path]).node_class(name).item
    assert item.gpu is not None
    assert (item.gpu.model, item.gpu.count, item.stack) == (gpus.model, gpus.count, stack)


def test_names_that_are_taken_and_stacks_that_do_not_exist_are_refused(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match='class "l4" exists already'):
        first_class.class_of(NodeGpus("auto"), "debian13_r580", catalog, "l4")
    with pytest.raises(CatalogError, match='stack "debian13_r58" is not in the catalog'):
        first_class.class_of(NodeGpus("auto"), "debian13_r58", catalog)


UNLIKE = {
    "as the class": (machine("debian 12", "6.1.0", ("L4", 1)), []),
    "another release": (machine("ubuntu 24.04", "6.8.0", ("L4", 1)), ["runs ubuntu 24.04"]),
    "another model": (machine("debian 12", "6.1.0", ("T4", 1)), ["has T4, and the class has L4"]),
    "two": (machine("debian 12", "6.1.0", ("L4", 2)), ["has 2 GPU, and the class has 1"]),
    "none": (machine("debian 12", "6.1.0"), ["has no GPU"]),
    "a container, which shows none": (machine("debian 12", "6.1.0", container=True), []),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_machine_that_site_yml_would_refuse_is_reported(catalog: Catalog, case: str) -> None:
    have, says = UNLIKE[case]
    item = catalog.node_class("l4").item
    found = first_class.unlike(have, item, catalog.stacks[item.stack].item)
    assert len(found) == len(says)
    assert all(text in line for text, line in zip(says, found, strict=True))


def test_this_machine_is_read_from_its_files(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    for address, kind, vendor, device in (
        ("0000:01:00.0", "0x030000", "0x10de", "0x2684"),
        ("0000:00:02.0", "0x030000", "0x8086", "0x4680"),
        ("0000:00:0b.0", "0x120000", "0x8086", "0x7d1d"),
    ):
        (devices / address).mkdir(parents=True)
        for name, value in (("class", kind), ("vendor", vendor), ("device", device)):
            (devices / address / name).write_text(f"{value}\n", encoding="utf-8")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n', encoding="utf-8")
    found = first_class.this_machine(Host(str(tmp_path)))
    assert (found.os, found.gpus) == (("ubuntu", "24.04"), (("GeForce-RTX-4090", 1),))
    assert first_class.gpus_of(found) == NodeGpus("auto")
