"""Which class a machine is judged by, as a table, and what is left out of the judgement where nobody has declared it."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.prove import carry, classes

KNOWN = carry.collect()


def capture(
    *ids: str, os: tuple[str, str] = ("debian", "13"), driver: str = "580.95.05"
) -> dict[str, Any]:
    gpus = [
        {
            "vendor": "nvidia",
            "pci_id": number,
            "address": f"0000:{16 + n:02x}:00.0",
            "name": f"board {number}",
        }
        for n, number in enumerate(ids)
    ]
    return {
        "gpus": gpus,
        "os": {"id": os[0], "version": os[1], "kernel": {"running": "6.12"}},
        "driver": {"reported": driver},
    }


H200, H100, L4 = "10de:2335", "10de:2330", "10de:27b8"


@pytest.mark.parametrize(
    ("found", "kind", "name", "reported"),
    [
        (
            capture(*[H200] * 8),
            classes.CATALOG,
            "h200_sxm",
            "class h200_sxm fits by GPU, count, system and driver branch",
        ),
        (capture(H200), classes.FACTS, "as_found", "h200_sxm is for 8 GPUs, not 1"),
        (
            capture(*[H200] * 8, os=("ubuntu", "22.04")),
            classes.FACTS,
            "as_found",
            "h200_sxm is for debian 13, not ubuntu 22.04",
        ),
        (
            capture(*[H200] * 8, driver="550.54.15"),
            classes.FACTS,
            "as_found",
            "h200_sxm is for driver 580, not 550",
        ),
        (
            capture("10de:ffff"),
            classes.UNKNOWN,
            "as_found",
            "the facts have no model with the PCI id of board 10de:ffff (10de:ffff)",
        ),
        (capture(H200, L4), classes.UNKNOWN, "as_found", "GPUs of several models"),
        (capture(H200, "10de:ffff"), classes.UNKNOWN, "as_found", "GPUs of several models"),
    ],
)
def test_class_is_chosen_by_gpus_and_system(
    found: dict[str, Any], kind: str, name: str, reported: str
) -> None:
    chosen = classes.choose(found, KNOWN, None)
    assert (chosen.kind, chosen.document["class"]) == (kind, name)
    assert reported in chosen.why
    verdict = classes.judge(chosen.document, found)
    assert not {"node.os", "kernel.running", "stack.lock", "driver.loaded"} & {
        row["id"] for row in verdict["findings"]
    }


def test_the_nodes_own_class_goes_first() -> None:
    own = {"class": "site_h200", "gpu": {"model": "H200-SXM-141GB"}}
    assert classes.choose(capture(L4), KNOWN, own)[:2] == (classes.OWN, own)


def test_count_is_that_of_the_class_where_one_fits_and_as_found_elsewhere() -> None:
    assert classes.choose(capture(*[H200] * 8), KNOWN, None).document["gpu"]["count"] == 8
    assert classes.choose(capture(H200), KNOWN, None).document["gpu"]["count"] == 1


def test_an_unknown_model_is_held_to_no_facts() -> None:
    document = classes.choose(capture("10de:ffff"), KNOWN, None).document
    assert document["gpu"]["pci_ids"] == ["10de:ffff"]
    assert "gpu" not in document["health"]
