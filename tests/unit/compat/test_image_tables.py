"""Images whose content a vendor's table gives: each row on the driver that the table names, and on an older family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from goldnode.compat import workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatHost
from goldnode.facts import host as facts
from goldnode.facts import workload as tables

ROWS = list(tables.triton_images().values())


def called(row: Mapping[str, Any]) -> str:
    return f"nvcr.io/nvidia/tritonserver:{row['release']}-{row['variant']}-python-py3"


def severities(image: str, driver: str) -> dict[str, str]:
    host = CompatHost(
        "node",
        vendor="nvidia",
        driver=driver,
        branch=driver.partition(".")[0],
        gpus=(facts.gpu("H100-SXM5-80GB"),),
    )
    found = check(host, [workloads.image(image)])
    return {
        item.rule: item.severity
        for item in found
        if item.rule in ("cuda-driver", "cuda-gpu", "workload-told")
    }


@pytest.mark.parametrize("row", ROWS, ids=called)
def test_an_image_runs_on_the_driver_that_its_table_names(row: Mapping[str, Any]) -> None:
    found = severities(called(row), row["driver"])
    assert "block" not in found.values()
    assert "workload-told" not in found, "the table has this image"


@pytest.mark.parametrize("row", [row for row in ROWS if row["cuda"].startswith("13")], ids=called)
def test_an_image_of_cuda_13_is_not_accepted_on_535(row: Mapping[str, Any]) -> None:
    """Without a package for forward compatibility it does not run; whether the image has one is not in the table."""
    assert severities(called(row), "535.309.01")["cuda-driver"] in ("unknown", "block")


@pytest.mark.parametrize("row", ROWS, ids=called)
def test_without_its_row_an_image_is_unknown(
    row: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {name: item for name, item in tables.triton_images().items() if item is not row}
    monkeypatch.setattr(tables, "triton_images", lambda: without)
    assert severities(called(row), row["driver"]) == {"workload-told": "unknown"}
