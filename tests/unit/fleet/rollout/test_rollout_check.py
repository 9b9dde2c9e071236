"""`goldnode rollout check`: what a wave proves, and documents that cannot work, with file and line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.rollout.documents import NEW, OLD, TEXT, written

from goldnode.catalog.models import EvidenceRule
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.fleet.rollout.check import check
from goldnode.fleet.rollout.document import RolloutError
from goldnode.fleet.rollout.model import FleetNode


def node(number: int, **values: object) -> FleetNode:
    given = {
        "rack": f"r{number // 4}",
        "leaf": f"l{number // 8}",
        "digest": OLD,
        "in_service": True,
        **values,
    }
    return FleetNode(f"n{number:02}", **given)  # type: ignore[arg-type]


NODES = [node(number) for number in range(40)]
COHORT = [node(number, cohort="train" if number < 8 else None) for number in range(40)]
WHOLE = ("total: 10}", "total: 10, per: {cohort: all-or-none}}")


def test_good_document_has_no_finding(tmp_path: Path) -> None:
    found = check(written(tmp_path), nodes=NODES)
    assert [str(one) for one in found.findings] == []
    assert [wave.nodes for wave in found.waves] == [2, 6, 32]
    assert [wave.stops_at for wave in found.waves] == [2, 3, 3]
    # 2 nodes: 20 minutes; 6 nodes, 4 at once: 40 minutes; 32 nodes: 160 minutes; and the soaks.
    assert [round(wave.ends_after or 0, 2) for wave in found.waves] == [4.33, 9.0, 11.67]


@pytest.mark.parametrize(
    ("line", "code", "changes", "says"),
    [
        (13, "cohort", (WHOLE,), 'cohort "train" has 8 nodes'),
        (13, "limits", (("planned: 4", "planned: 12"),), "above limits.total"),
        (13, "limits", (("total: 10}", "total: 10, per: {leaf: 2}}"), ("x", "x")), "leaf"),
        (10, "empty-wave", (("nodes: 6", "percent: 0%"),), "is empty"),
        (11, "empty-wave", (("nodes: 6", "nodes: 38"),), "is empty"),
        (9, "reach", (("percent: 100%", "percent: 60%"),), "do not reach 100 %"),
        (9, "pool", (("pool: canary", "pool: canaries"),), 'there is no pool "canaries"'),
        (8, "pool", (("nodes: 2", "nodes: 60"),), "60 nodes"),
        (
            14,
            "requirement",
            (("- boot: {base_rate: 0.2%}", "- command: {run: [/bin/true]}"),),
            "`boot` is missing",
        ),
        (15, "requirement", (("0.2%}", "0.2%, confidence: 100%}"),), "never reached"),
        (
            16,
            "requirement",
            (("timeout", "- floors: {metrics: [gemm]}\ntimeout"),),
            "floors need 8 changed nodes, and the first wave has 2",
        ),
        (
            16,
            "requirement",
            (("timeout", "- prometheus: {query: up}\ntimeout"),),
            "no answer fails",
        ),
        (
            16,
            "requirement",
            (("timeout", "- prometheus: {query: up, worse_than: 2x}\ntimeout"),),
            "does not name the label arm",
        ),
        (
            17,
            "window",
            (
                (
                    "timeout",
                    'windows:\n- {days: [mon], from: "08:00", to: "08:00", zone: UTC}\ntimeout',
                ),
            ),
            "never opens",
        ),
        (17, "approval", (("timeout", "approve:\n  al: [oncall]\ntimeout"),), 'no wave "al"'),
        (5, "target", ((NEW, OLD),), "the same state"),
        (16, "together", (("timeout", "together: [a100]\ntimeout"),), "moves one class"),
    ],
)
def test_document_that_cannot_work_is_refused_with_its_line(
    tmp_path: Path, line: int, code: str, changes: tuple[tuple[str, str], ...], says: str
) -> None:
    nodes = (
        COHORT
        if code == "cohort"
        else [node(n, leaf=None) for n in range(40)]
        if says == "leaf"
        else NODES
    )
    found = check(
        written(tmp_path, *(change for change in changes if change[0] != "x")), nodes=nodes
    )
    assert found.refused
    hits = [
        one
        for one in found.findings
        if one.code == code and says in one.message and one.severity == "error"
    ]
    assert hits, [str(one) for one in found.findings]
    assert hits[0].line in (line, line - 1), hits[0]
    assert hits[0].remedy


def test_sums_of_arms_are_warned_of(tmp_path: Path) -> None:
    query = "- prometheus: {query: 'sum(rate(errors[1h])) by (arm)', worse_than: 2x}\ntimeout"
    found = check(written(tmp_path, ("timeout", query)), nodes=NODES)
    assert [(one.code, one.severity) for one in found.findings] == [("requirement", "warning")]
    assert "avg by (arm)" in found.findings[0].remedy


REQUIRE = "- boot: {base_rate: 0.2%}\n"
EVIDENCE = [
    # max_age_days of the class, requirements of the document -> message
    (None, "", "the class asks for evidence (boot, canary) that no wave waits for"),
    (None, "- evidence: {kinds: [boot]}\n", "the class asks for evidence (canary) that no wave"),
    (None, "- evidence: {kinds: [canary, boot]}\n", None),
    (None, "- evidence: {kinds: [canary]}\n- evidence: {kinds: [boot], max_age: 1d}\n", None),
    (14, "- evidence: {kinds: [boot, canary]}\n", "14 days at most"),
    (14, "- evidence: {kinds: [boot, canary], max_age: 15d}\n", "boot, canary may be older"),
    (14, "- evidence: {kinds: [boot, canary], max_age: 14d}\n", None),
]


@pytest.mark.parametrize(("days", "required", "message"), EVIDENCE)
def test_evidence_that_the_class_asks_for_is_required(
    days: int | None, required: str, message: str | None, tmp_path: Path
) -> None:
    catalog = load_catalog()
    entry = catalog.classes["l4"]
    rule = EvidenceRule(kinds=["boot", "canary"], max_age_days=days)
    asking = replace(entry, item=entry.item.model_copy(update={"evidence": rule}))
    changed = replace(catalog, classes={**catalog.classes, "l4": asking})
    file = written(tmp_path, (REQUIRE, REQUIRE + required))
    messages = [one.message for one in check(file, catalog=changed).findings]
    if message is None:
        assert messages == []
    else:
        assert [message in one for one in messages] == [True]
    remedy = [one.remedy for one in check(file, catalog=changed).findings]
    if remedy:
        asked = remedy[0].partition("[{")[2].partition("}]")[0]
        cured = written(tmp_path, (REQUIRE, f"{REQUIRE}- {asked}\n"))
        assert check(cured, catalog=changed).findings == ()


def test_target_that_the_class_refuses_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rollout.yml"
    path.write_text(
        TEXT.replace("to: {stack: debian12_r580", "to: {stack: debian12_cpu"), encoding="utf-8"
    )
    code, text = run(str(path))
    assert code == 1
    assert f'{path}:5: error: class "l4" refuses stack "debian12_cpu"' in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            ("soak: 4h", "soak: 4 hours"),
            'rollout.yml:9: "waves.0.soak": expected a time with its unit',
        ),
        (("0.2%", "0.2"), "expected a percentage"),
        (("percent: 100%", "percent: 100%, nodes: 3"), "it has nodes and percent"),
        (("percent: 100%", "percent: 120%"), "120% is more than all"),
        (("waves:", "wave:"), 'unknown key "wave"'),
        (
            ("timeout: 1h", "windows: [{days: [mon], from: 10:00, to: 1, zone: UTC}]"),
            "a time of day in quotes",
        ),
        (
            ("timeout: 1h", 'windows: [{days: [mon], from: "10:00", to: "11:00", zone: Mars}]'),
            "not a time zone",
        ),
    ],
)
def test_wrong_value_is_an_error_with_its_line(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    with pytest.raises(RolloutError) as problem:
        written(tmp_path, change)
    assert says in str(problem.value)
    assert "rollout.yml:" in str(problem.value)


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["rollout", "check", *arguments])
    return found.exit_code, found.stdout


def test_command_reports_waves_and_findings(tmp_path: Path) -> None:
    path = tmp_path / "rollout.yml"
    path.write_text(TEXT.replace("class: l4", "class: l5"), encoding="utf-8")
    code, text = run(str(path), "--nodes", "1000")
    assert code == 1
    assert f"{path}:3: error: " in text
    assert "refused" in text
    path.write_text(TEXT, encoding="utf-8")
    code, text = run(str(path), "--nodes", "1000", "--format", "json")
    assert code == 0, text
    found = json.loads(text)
    assert [wave["nodes"] for wave in found["waves"]] == [2, 6, 992]
    assert found["waves"][1]["excludes"] == pytest.approx(0.393, abs=0.001)


def test_stack_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollout.yml"
    path.write_text(
        TEXT.replace("to: {stack: debian12_r580", "to: {stack: debian12_r581"), encoding="utf-8"
    )
    code, text = run(str(path))
    assert code == 1
    assert f"{path}:5: error: " in text


def test_inventory_gives_racks_and_cohorts(tmp_path: Path) -> None:
    path = tmp_path / "rollout.yml"
    path.write_text(TEXT.replace(*WHOLE), encoding="utf-8")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        "l4: {hosts: {'n[1:20]': {}}, vars: {goldnode_cohort: train}}\n", encoding="utf-8"
    )
    code, text = run(str(path), "-i", str(hosts))
    assert code == 1
    assert 'cohort "train" has 20 nodes and moves whole' in text


def test_short_drain_is_a_warning_and_its_reservation_is_a_name(tmp_path: Path) -> None:
    found = check(written(tmp_path, ("timeout: 1h", "timeout: 1h\ndrain: {wait: 30s}")), size=40)
    assert [(one.code, one.line) for one in found.findings if one.code == "drain"] == [
        ("drain", 16)
    ]
    assert not found.refused
    named = written(tmp_path, ("timeout: 1h", "drain: {wait: 4h, reservation: kernel-november}"))
    assert named.settings.reservation == "kernel-november"
    with pytest.raises(RolloutError, match=r"drain.reservation"):
        written(tmp_path, ("timeout: 1h", 'drain: {reservation: "a b"}'))
