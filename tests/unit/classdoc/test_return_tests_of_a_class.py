"""`return_tests` of a class: what reaches the node, and what nothing would enforce."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from tests.unit.catalog.test_accept_reject import FILES, K, write
from tests.unit.classdoc.test_baseline import HEAD
from tests.unit.classdoc.test_class_document import DAY, LOCK, SITE

from goldnode.catalog.models import ReturnTests
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import CatalogError
from goldnode.documents.canary import JobState
from goldnode.node.gate import return_tests

DRAINS = HEAD + "gate: drain\n"


def document(tmp_path: Path, text: str) -> dict[str, Any]:
    catalog = load_catalog([write(tmp_path, FILES | {K: text})])
    return class_document("a100", catalog, SITE, {"r580": LOCK}, on=DAY)


def test_the_tests_of_the_gate_reach_the_node(tmp_path: Path) -> None:
    declared = "return_tests: {after_xid: [gemm], after_rollout: [inference], after_absence: [storage], absence_days: 30}\n"
    found = document(tmp_path, DRAINS + declared)
    assert found["return_tests"] == {
        "after_xid": ["gemm"],
        "after_absence": ["storage"],
        "absence_days": 30.0,
    }
    assert return_tests.jobs_of(found) == {"xid": ["gemm"], "absence": ["storage"]}


@pytest.mark.parametrize(
    "declared",
    [
        "",
        "return_tests: {}\n",
        "return_tests: {after_rollout: [gemm]}\n",
        "return_tests: {absence_days: 3}\n",
    ],
)
def test_the_document_of_a_class_without_them_is_unchanged(tmp_path: Path, declared: str) -> None:
    assert document(tmp_path, HEAD + declared) == document(tmp_path, HEAD)
    assert "return_tests" not in document(tmp_path, HEAD)


@pytest.mark.parametrize("gate", ["", "gate: report\n", "gate: block\n"])
@pytest.mark.parametrize("cause", return_tests.CAUSES)
def test_tests_that_nothing_would_enforce_are_refused(
    tmp_path: Path, gate: str, cause: str
) -> None:
    text = HEAD + gate + f"return_tests:\n  after_{cause}: [gemm]\n"
    line = text.splitlines().index(f"  after_{cause}: [gemm]") + 1
    with pytest.raises(
        CatalogError, match=rf"a100\.yml:{line}: nothing enforces after_{cause} .*`gate: drain`"
    ):
        load_catalog([write(tmp_path, FILES | {K: text})])


def test_each_cause_of_the_gate_is_a_key_of_the_class() -> None:
    keys = {f"after_{cause}" for cause in return_tests.CAUSES}
    assert keys | {"after_rollout", "absence_days"} == set(ReturnTests.model_fields)
    assert ReturnTests().absence_days == return_tests.DAYS


def test_the_node_knows_the_states_of_results() -> None:
    assert set(get_args(JobState)) == set(return_tests.STATES)
