"""The engine over combinations whose verdict a vendor's table or the known-bad list gives: none may be judged otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.case_tables import table

from goldnode.compat import rules_host
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost, StackWaiver, Workload
from goldnode.facts import host as facts

CASES: list[dict[str, Any]] = table("compat/combinations.yml")
# What no document is needed for: the stack's own declaration, and that an image is built for something else.
WITHOUT_SOURCE = ("end-of-life", "image-backend", "image-architecture")
ORDER = ("ok", "warn", "unknown", "block")


def host(stated: Mapping[str, Any] | None) -> CompatHost | None:
    """The node of a case: its GPUs by name, vendor and branch by driver or GPU."""
    if stated is None:
        return None
    fields = dict(stated)
    names = fields.pop("gpu", [])
    gpus = tuple(facts.gpu(name) for name in ([names] if isinstance(names, str) else names))
    driver = fields.get("driver")
    fields = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    if "waiver" in fields:
        fields["waiver"] = StackWaiver(**fields["waiver"])
    return CompatHost(
        **{
            "subject": "node",
            "gpus": gpus,
            "vendor": "nvidia"
            if driver or "branch" in fields
            else gpus[0].vendor
            if gpus
            else None,
            "branch": driver.split(".")[0] if driver else None,
            **fields,
        }
    )


def workload(stated: Mapping[str, Any] | None) -> list[Workload]:
    return [] if stated is None else [Workload(**{"subject": "image", **stated})]


def name(finding: CompatFinding) -> str:
    return f"known-bad {finding.row}" if finding.row else finding.rule


def found(case: Mapping[str, Any]) -> list[CompatFinding]:
    return check(host(case.get("host")), workload(case.get("workload")))


def row_at(path: list[Any]) -> Any:
    """The row of the facts that a case names; a mapping chooses the row of a list that has these values."""
    value: Any = facts.load(path[0])
    for step in path[1:]:
        if isinstance(step, dict):
            value = next(
                row
                for row in value
                if all(
                    row.get(key) == wanted or wanted in _several(row.get(key))
                    for key, wanted in step.items()
                )
            )
        else:
            value = value[step]
    return value


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def test_cases_are_unique_and_cite_an_existing_row() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES)
    for case in CASES:
        assert row_at(case["row"]), case["name"]
        assert set(case) <= {"name", "row", "host", "workload", "verdict", "says", "accepted"}, (
            case["name"]
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_case_has_its_verdict_and_well_formed_messages(case: dict[str, Any]) -> None:
    result = found(case)
    open_ = [finding for finding in result if finding.accepted is None]
    reported = (
        "\n".join(f"{name(finding)}: {finding.severity}: {finding.message}" for finding in result)
        or "nothing is found"
    )
    assert {name(finding): finding.severity for finding in open_} == case["says"], reported
    assert {
        name(finding): finding.severity for finding in result if finding.accepted is not None
    } == case.get("accepted", {}), reported
    assert (
        max([finding.severity for finding in open_], key=ORDER.index, default="ok")
        == case["verdict"]
    ), reported
    for finding in result:
        assert finding.message, finding
        assert not finding.message.endswith("."), finding
        # What is known to be wrong has a source and says what to do.
        if finding.severity == "block":
            assert finding.sources or finding.rule in WITHOUT_SOURCE, finding
            assert finding.remedy, finding
        if finding.remedy:
            assert not finding.remedy.endswith("."), finding


def test_each_rule_is_met_and_each_verdict_too() -> None:
    """The table is worth something: all verdicts occur, and all families of rules."""
    assert {case["verdict"] for case in CASES} == set(ORDER)
    output = {
        key.split(" ")[0] for case in CASES for key in (*case["says"], *case.get("accepted", {}))
    }
    assert len(output) >= 18, output


A100 = {"gpu": "A100-SXM4-40GB", "driver": "580.178.04", "cohort": "train"}


@pytest.mark.parametrize(
    ("members", "images", "expected"),
    [
        pytest.param([A100, A100], [{"nccl": "2.28.3"}, {"nccl": "2.28.3"}], {}, id="alike"),
        pytest.param(
            [A100, {**A100, "driver": "580.159.04"}],
            [{}, {}],
            {"cohort-driver": "block"},
            id="another-release-of-the-branch",
        ),
        pytest.param(
            [A100, {**A100, "driver": "595.91.07"}],
            [{}, {}],
            {"cohort-driver": "block"},
            id="another-branch",
        ),
        pytest.param(
            [A100, A100],
            [{"nccl": "2.28.3"}, {"nccl": "2.27.3"}],
            {"cohort-nccl": "block"},
            id="another-nccl",
        ),
        pytest.param(
            [A100, {**A100, "gpu": "H100-SXM5-80GB"}],
            [{}, {}],
            {"cohort-mix": "warn"},
            id="another-architecture",
        ),
        pytest.param(
            [A100, {**A100, "gpu": "A100-SXM4-80GB"}], [{}, {}], {}, id="the-same-architecture"
        ),
        pytest.param(
            [A100, {**A100, "driver": "595.91.07", "cohort": "infer"}],
            [{}, {}],
            {},
            id="two-cohorts",
        ),
    ],
)
def test_nodes_that_train_together(
    members: list[dict[str, Any]], images: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    hosts = [host({**member, "subject": f"class {index}"}) for index, member in enumerate(members)]
    loads = {f"class {index}": workload(image) for index, image in enumerate(images)}
    result = rules_host.check_cohorts([member for member in hosts if member is not None], loads)
    assert {finding.rule: finding.severity for finding in result} == expected
