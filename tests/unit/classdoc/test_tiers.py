"""The tier of a class: which driver branches, decisions and waves without a soak it allows."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import CLASS, FILES, STACK, write
from tests.unit.fleet.rollout.documents import written
from tests.unit.fleet.rollout.test_rollout_check import NODES

from goldnode.catalog.load import Catalog
from goldnode.catalog.tiers import BRANCH_KINDS, TIERS
from goldnode.classdoc.findings import findings_of, findings_of_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.compat.model import CompatFinding
from goldnode.core.errors import CatalogError, SiteError
from goldnode.core.site import Site, load_site
from goldnode.facts import host as facts
from goldnode.fleet.rollout.check import check

TODAY = dt.date(2026, 11, 29)
ACCEPT = '{rule: known-bad, owner: ada, reason: measured here, expires: "%s"}'


def catalog(tmp_path: Path, tier: str | None, branch: str = "580", more: str = "") -> Catalog:
    text = CLASS if tier is None else f"{CLASS}tier: {tier}\n"
    stack = STACK.replace('branch: "580"', f'branch: "{branch}"').replace(
        "2028-06-30", "2026-12-01"
    )
    files = FILES | {"classes/a100.yml": text + more, "stacks/r580.yml": stack}
    return load_catalog([write(tmp_path / "catalog", files)])


def of_branch(tmp_path: Path, tier: str | None, branch: str) -> list[CompatFinding]:
    rows = findings_of_class("a100", catalog(tmp_path, tier, branch), Site(), on=TODAY)
    return [row for row in rows if row.rule == "driver-branch"]


@pytest.mark.parametrize(
    ("branch", "kind"),
    [("580", "LTSB"), ("595", "PB"), ("590", "NFB"), ("620", "LTSB")],
)
def test_production_runs_long_term_and_production_branches(
    tmp_path: Path, branch: str, kind: str
) -> None:
    assert facts.branch(branch).kind == kind
    rows = of_branch(tmp_path, "production", branch)
    assert bool(rows) is (kind == "NFB")
    for row in rows:
        assert row.severity == "block"
        assert f"driver branch {branch} is a new feature branch (NFB)" in row.message
        assert any("endoflife.date" in str(origin) for origin in row.sources)
        assert "580 (LTSB)" in str(row.remedy)
        assert row.place is not None
        assert row.place.line == CLASS.count("\n") + 1, "the line that declares the tier"


def test_a_branch_of_unknown_kind_is_unknown_in_production(tmp_path: Path) -> None:
    assert facts.branch("615").kind is None
    (row,) = of_branch(tmp_path, "production", "615")
    assert row.severity == "unknown"


@pytest.mark.parametrize("tier", ["development", None])
@pytest.mark.parametrize("branch", ["590", "615"])
def test_development_and_classes_without_a_tier_run_any_branch(
    tmp_path: Path, tier: str | None, branch: str
) -> None:
    assert of_branch(tmp_path, tier, branch) == []


def test_every_kind_of_the_facts_has_a_name() -> None:
    kinds = {facts.branch(name).kind for name in facts.branches()} - {None}
    assert kinds == set(BRANCH_KINDS)
    assert all(rules.branches <= set(BRANCH_KINDS) for rules in TIERS.values())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("compat: {unknown: accept}\n", "cannot accept facts without a source"),
        (
            f"compat: {{accept: [{ACCEPT % '2027-03-02'}]}}\n",
            "ends on 2027-03-02; tier production allows 92 days",
        ),
        (
            f"compat: {{accept: [{ACCEPT.replace('known-bad', 'driver-branch') % '2026-12-31'}]}}\n",
            "is not accepted by a class of tier production, but by the site",
        ),
    ],
)
def test_decisions_that_only_development_allows(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        findings_of(
            read_class("a100", catalog(tmp_path / "p", "production", more=more), Site(), on=TODAY)
        )
    findings_of(
        read_class("a100", catalog(tmp_path / "d", "development", more=more), Site(), on=TODAY)
    )


def test_an_acceptance_of_a_quarter_passes_in_production(tmp_path: Path) -> None:
    more = f"compat: {{accept: [{ACCEPT % '2027-03-01'}]}}\n"
    findings_of(read_class("a100", catalog(tmp_path, "production", more=more), Site(), on=TODAY))


def test_an_exception_of_the_site_lets_a_new_feature_branch_pass_for_a_quarter(
    tmp_path: Path,
) -> None:
    path = tmp_path / "goldnode-site.yml"
    row = 'exceptions:\n  - {rule: driver-branch, class: a100, owner: ada, reason: new GPU, expires: "%s"}\n'
    own = catalog(tmp_path, "production", "590")
    path.write_text(row % "2027-02-01")
    (found,) = (
        row
        for row in findings_of_class("a100", own, load_site(path), on=TODAY)
        if row.rule == "driver-branch"
    )
    assert "ada" in str(found.accepted)
    path.write_text(row % "2027-12-01")
    with pytest.raises(
        SiteError, match=r"goldnode-site\.yml:2: .* is of tier production, which allows 92 days"
    ):
        findings_of_class("a100", own, load_site(path), on=TODAY)


@pytest.mark.parametrize(
    ("tier", "severity"), [("production", "error"), (None, "warning"), ("development", None)]
)
def test_waves_without_a_soak(tmp_path: Path, tier: str | None, severity: str | None) -> None:
    known = load_catalog()
    entry = known.node_class("l4")
    item = entry.item.model_copy(update={"tier": tier})
    known.classes["l4"] = dataclasses.replace(entry, item=item)
    file = written(tmp_path, (", soak: 4h", ""))
    rows = [row for row in check(file, nodes=NODES, catalog=known).findings if row.code == "soak"]
    assert {row.severity for row in rows} == ({severity} if severity else set())
