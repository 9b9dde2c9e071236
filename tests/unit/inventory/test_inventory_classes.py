"""Which class a host is in, and the refusal of a host in two."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import FILES, write

from goldnode.catalog.load import Catalog
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import InventoryError
from goldnode.inventory.classes import classes_of_hosts, expand

OTHER = "class: l4\nbackend: cuda\nstack: r580\ngpu: {model: L4, count: 1}\n"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog([write(tmp_path / "catalog", FILES | {"classes/l4.yml": OTHER})])


def inventory(tmp_path: Path, **files: str) -> Path:
    root = tmp_path / "inventory"
    return write(root, {name.replace("__", "."): text for name, text in files.items()})


ONE = {
    "yaml": (
        "hosts__yml",
        "all:\n  children:\n    a100:\n      hosts:\n        n1:\n        n2:\n    wave_1:\n      hosts: {n1: }\n",
    ),
    "top-level": ("hosts__yml", "a100:\n  hosts:\n    n1:\n    n2:\n"),
    "child-group": (
        "hosts__yml",
        "a100:\n  children:\n    rack1:\n      hosts:\n        n[1:2]:\n",
    ),
    "child-defined-elsewhere": (
        "hosts__yml",
        "a100: {children: {rack1: }}\nrack1:\n  hosts: {n1: , n2: }\n",
    ),
    "ini": (
        "hosts__ini",
        "[a100]\nn1 ansible_host=10.0.0.1\nn2\n\n[a100:vars]\nn3=1\n\n[wave]\nn1\n",
    ),
    "ini-children": ("hosts", "# comment\n[rack1]\nn[1:2]\n[a100:children]\nrack1\n"),
    "json": ("hosts__json", '{"a100": {"hosts": {"n1": null, "n2": null}}}'),
}


@pytest.mark.parametrize("name", ONE)
def test_hosts_of_one_class_are_found_in_each_form(
    name: str, tmp_path: Path, catalog: Catalog
) -> None:
    file, text = ONE[name]
    root = inventory(tmp_path, **{file: text})
    assert classes_of_hosts(root, catalog) == {"n1": "a100", "n2": "a100"}
    assert classes_of_hosts(next(root.iterdir()), catalog) == {"n1": "a100", "n2": "a100"}


TWO = {
    "yaml": ({"hosts__yml": "a100:\n  hosts:\n    n1:\nl4:\n  hosts:\n    n2:\n    n1:\n"}, "hosts.yml:3", "hosts.yml:7"),
    "range": ({"hosts__yml": "a100:\n  hosts:\n    n[1:4]:\nl4:\n  hosts:\n    n3:\n"}, "hosts.yml:3", "hosts.yml:6"),
    "through-a-child": (
        {"hosts__yml": "a100:\n  children:\n    rack1:\n      hosts:\n        n1:\nl4:\n  hosts:\n    n1:\n"},
        "hosts.yml:3",
        "hosts.yml:8",
    ),
    "one-group-in-two-classes": (
        {"hosts__yml": "rack1: {hosts: {n1: }}\na100:\n  children:\n    rack1:\nl4:\n  children:\n    rack1:\n"},
        "hosts.yml:4",
        "hosts.yml:7",
    ),
    "two-files": ({"a__yml": "a100: {hosts: {n1: }}\n", "b__ini": "\n[l4]\nn1\n"}, "a.yml:1", "b.ini:3"),
    "ini": ({"hosts": "[a100]\nn1\n[l4]\nn1\n"}, "hosts:2", "hosts:4"),
    "class-below-class": ({"hosts__yml": "a100:\n  children:\n    l4:\n      hosts:\n        n1:\n"}, "hosts.yml:3", "hosts.yml:5"),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO)
def test_host_in_two_classes_is_an_error_that_names_both_files(
    name: str, tmp_path: Path, catalog: Catalog
) -> None:
    files, first, second = TWO[name]
    root = inventory(tmp_path, **files)
    with pytest.raises(InventoryError) as caught:
        classes_of_hosts(root, catalog)
    text = str(caught.value)
    assert text.startswith(f"{root / second}: ")
    assert 'is in two classes: "l4" here and "a100"' in text
    assert str(root / first) in text
    assert "Keep it in one of the two groups" in text


def test_files_that_are_no_inventory_are_ignored(tmp_path: Path, catalog: Catalog) -> None:
    root = inventory(
        tmp_path,
        hosts__yml="a100: {hosts: {n1: }}\n",
        notes__md="[l4]\nn1\n",
        plugin__yml="plugin: nothing\n",
    )
    write(root, {"group_vars/l4.yml": "n1: 1\n", "script": "#!/bin/sh\necho '[l4]'\n"})
    assert classes_of_hosts(root, catalog) == {"n1": "a100"}


def test_broken_inventory_names_its_line(tmp_path: Path, catalog: Catalog) -> None:
    root = inventory(tmp_path, hosts__yml="a100:\n  hosts: [\n")
    with pytest.raises(InventoryError) as caught:
        classes_of_hosts(root, catalog)
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1:3]", ["n1", "n2", "n3"]),
        ("n[08:10].example.org", ["n08.example.org", "n09.example.org", "n10.example.org"]),
        ("n[0:2]", ["n0", "n1", "n2"]),
        ("n[1:5:2]", ["n1", "n3", "n5"]),
        ("n[a:c]", ["na", "nb", "nc"]),
        ("r[1:2]n[1:2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n1:2222", ["n1"]),
        ("fe80::1", ["fe80::1"]),
    ],
)
def test_host_pattern_is_expanded(pattern: str, hosts: list[str]) -> None:
    assert expand(pattern) == hosts


def test_example_fleet_has_14_hosts_of_three_classes() -> None:
    example = Path(__file__).parents[3] / "inventories" / "example_fleet"
    found = classes_of_hosts(example, load_catalog())
    assert set(found.values()) == {"a100_sxm4_40gb", "l4", "cpu_only"}
    assert len(found) == 14


def test_entries_know_their_lines(catalog: Catalog) -> None:
    assert catalog.classes["a100"].source.line(("policy", "ecc")) == 10
