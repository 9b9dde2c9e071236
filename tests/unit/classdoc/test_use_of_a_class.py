"""What depends on the day: ends of life and waivers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import CLASS, FILES, STACK, write

from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc import checks
from goldnode.classdoc.findings import check_use
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.core.errors import CatalogError
from goldnode.core.site import Site

WAIVER = "waiver: {reason: r, owner: the owner, expires: 2028-12-31%s}\n"


@pytest.mark.parametrize(
    ("day", "waiver", "simulated", "message"),
    [
        pytest.param("2028-06-30", "", False, None, id="last-day"),
        pytest.param(
            "2028-07-01",
            "",
            False,
            "past its end of life since 2028-06-30 .* has no waiver",
            id="day-after",
        ),
        pytest.param("2028-07-01", "", True, None, id="simulated"),
        pytest.param("2028-07-01", WAIVER % "", False, None, id="waived"),
        pytest.param("2028-12-31", WAIVER % "", False, None, id="last-day-of-waiver"),
        pytest.param(
            "2029-01-01",
            WAIVER % "",
            False,
            "expired on 2028-12-31.*the owner renew",
            id="waiver-expired",
        ),
        pytest.param("2028-07-01", WAIVER % ", classes: [a100]", False, None, id="waived-by-name"),
        pytest.param(
            "2028-07-01",
            WAIVER % ", classes: [other]",
            False,
            "waiver is for other only",
            id="not-for-it",
        ),
    ],
)
def test_class_past_its_end_of_life_is_refused_without_a_waiver(
    tmp_path: Path, day: str, waiver: str, simulated: bool, message: str | None
) -> None:
    files = {
        "stacks/r580.yml": STACK + waiver,
        "classes/a100.yml": CLASS + ("simulated: true\n" if simulated else ""),
    }
    catalog = load_catalog([write(tmp_path, FILES | files)])
    if message is None:
        check_use(read_class("a100", catalog, Site(), on=dt.date.fromisoformat(day)))
        return
    with pytest.raises(CatalogError, match=message) as caught:
        check_use(read_class("a100", catalog, Site(), on=dt.date.fromisoformat(day)))
    assert caught.value.line is not None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("a100", None),
        ("a100, gone", 'the waiver is for class "gone", which is not in the catalog. Use'),
        ("a10", 'class "a10", which is not in the catalog. Use one of: a100, or take it out.'),
        ("other", 'class "other", which uses stack "plain". Take it out.'),
    ],
)
def test_a_waiver_of_a_class_that_does_not_use_the_stack(
    tmp_path: Path, names: str, message: str | None
) -> None:
    files = {
        "stacks/r580.yml": STACK + WAIVER % f", classes: [{names}]",
        "classes/other.yml": "class: other\nbackend: cpu\nstack: plain\n",
    }
    catalog = load_catalog([write(tmp_path, FILES | files)])
    if message is None:
        checks.check_waiver(catalog.stack("r580"), catalog)
        return
    with pytest.raises(CatalogError) as caught:
        checks.check_waiver(catalog.stack("r580"), catalog)
    assert message in str(caught.value)
    assert caught.value.line == len(STACK.splitlines()) + 1


def test_settings_without_facts_are_reported_as_not_checked(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path, FILES)])
    assert checks.not_checked(catalog.node_class("a100")) == [
        "policy.clocks was not checked: the facts hold no supported clocks of A100-SXM4-40GB"
    ]
    unknown = CLASS.replace("A100-SXM4-40GB", "A800-SXM4-40GB").replace(
        "platform: hgx_a100_8\n", ""
    )
    unknown = unknown.replace(
        "  ecc: true", "  mig: {enabled: true}\n  module_options: {NVreg_X: '1'}"
    )
    catalog = load_catalog([write(tmp_path, FILES | {"classes/a100.yml": unknown})])
    assert [
        sentence.split(" ")[0] for sentence in checks.not_checked(catalog.node_class("a100"))
    ] == [
        "policy.clocks",
        "policy.power_limit_watts",
        "policy.mig",
        "the",  # PCIe generation, and width
        "the",
        "policy.module_options",
    ]


def test_builtin_catalog_has_its_classes_and_stacks_past_end_of_life() -> None:
    catalog = load_catalog([builtin_catalog()])
    assert set(catalog.classes) == {
        "demo_a100",
        "a100_sxm4_40gb",
        "gb200_nvl72",
        "gh200_480gb",
        "h100_sxm5_80gb",
        "h200_sxm",
        "l4",
        "cpu_only",
        "cpu_only_arm64",
        "cpu_only_debian13",
        "cpu_only_containerd",
        "cpu_only_debian14",
        "demo_disk_r535",
        "demo_disk_r550",
        "mi300x",
        "workstation",
        "workstation_debian13",
        "arc_b580",
        "flex_170",
    }
    assert catalog.node_class("demo_a100").item.simulated
    assert [name for name, entry in catalog.classes.items() if entry.item.simulated] == [
        "demo_a100",
        "demo_disk_r535",
        "demo_disk_r550",
    ]
    day = dt.date(2026, 11, 21)
    for name in catalog.classes:
        check_use(read_class(name, catalog, Site(), on=day))
    for name, stack in catalog.stacks.items():
        assert stack.item.limits, f"{name} does not say what its users go without"
        first = stack.file.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=../../schemas/stack.json"
    over = {name for name, entry in catalog.stacks.items() if entry.item.end_of_life.date < day}
    assert over == {
        "demo_r535",
        "debian12_r535",
        "debian12_r470",
        "debian12_arm64_r535",
        "debian13_r550",
    }
