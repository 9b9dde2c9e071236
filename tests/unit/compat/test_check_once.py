"""Many checks in one process judge a host once, read no state that cannot change, and see every change between two checks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compat.test_rules_workload import node
from tests.unit.facts.test_site_facts import GPUS, catalog

from goldnode.compat import check, rules_host
from goldnode.compat.model import CompatHost, Workload
from goldnode.facts import host as facts

IMAGES = [
    Workload(f"image {cuda}", cuda=cuda)
    for cuda in ("11.8", "12.2", "12.4", "12.6", "12.8", "13.0")
]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[CompatHost]:
    """The hosts that the rules of hosts were asked about, of none of which the findings are known before."""
    check._JUDGED.clear()
    asked: list[CompatHost] = []
    of_host = check._of_host

    def counted(host: CompatHost) -> Any:
        asked.append(host)
        return of_host(host)

    monkeypatch.setattr(check, "_of_host", counted)
    return asked


def test_host_is_judged_once(judged: list[CompatHost]) -> None:
    host = node("A100-SXM4-40GB", "535.309.01")
    for image in IMAGES:
        check.check(host, [image])
    assert judged == [host]


def test_remedies_look_for_no_spelling_of_a_branch_without_a_floor(
    judged: list[CompatHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def nearest(name: str, _known: object) -> str:
        looked.append(name)
        return ""

    monkeypatch.setattr(facts, "nearest", nearest)
    facts.forget()
    host = node(None, "535.309.01", auto=True, name="it")
    check.check(host)
    assert judged == [host, host]
    assert not looked


def test_models_of_a_class_without_a_model_are_judged_once(judged: list[CompatHost]) -> None:
    host = node(None, "535.309.01", auto=True, name="it")
    for image in IMAGES:
        check.check(host, [image])
    # The host, and the host for what is always fatal. The models follow from rules that read GPUs (fatal_of_models).
    assert judged == [host, host]


def test_host_is_judged_again_after_the_facts_changed(judged: list[CompatHost]) -> None:
    host = node("A100-SXM4-40GB", "535.309.01")
    check.check(host)
    facts.forget()
    check.check(host)
    assert judged == [host, host]


def test_equal_host_is_judged_once_and_another_one_for_itself(judged: list[CompatHost]) -> None:
    for driver in ("535.309.01", "580.178.04", "535.309.01"):
        check.check(node("A100-SXM4-40GB", driver))
    assert [host.driver for host in judged] == ["535.309.01", "580.178.04"]


def test_remedies_are_judged_when_they_are_read(judged: list[CompatHost]) -> None:
    host = node("A100-SXM4-40GB", "535.288.01")
    (finding,) = [item for item in check.check(host) if item.rule == "security-floor"]
    assert judged == [host]
    assert (
        finding.remedy
        == "use 535.309.01 or later, or better driver 580.178.04, of a branch that gets fixes"
    )
    assert len(judged) > 1
    count = len(judged)
    assert finding.remedy.startswith("use 535.309.01")
    assert len(judged) == count  # once


def test_check_looks_for_a_site_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = node("A100-SXM4-40GB", "535.309.01")
    check.check(host, IMAGES)
    calls: list[str] = []
    stat = os.stat

    def counted(path: Any, *args: Any, **more: Any) -> os.stat_result:
        calls.append(str(path))
        return stat(path, *args, **more)

    monkeypatch.setattr(os, "stat", counted)
    check.check(host, IMAGES)
    assert len(calls) <= 6


def test_catalog_that_changed_between_two_checks_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = node(None, "535.309.01", auto=True, name="it")

    def models() -> str:
        (finding,) = [item for item in check.check(host, IMAGES[:1]) if item.rule == "gpu-model"]
        return finding.message

    before = models()
    catalog(tmp_path, monkeypatch, gpus=GPUS)
    after = models()
    count = sum(gpu.vendor == "nvidia" for gpu in facts.gpus().values())
    assert f"of {count - 1} models" in before
    assert f"of {count} models" in after


@pytest.mark.parametrize("name", sorted(path.name for path in facts.FACTS.glob("*.yml")))
def test_each_facts_file_is_cached_as_it_was_parsed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 399 numbers of SXids are keys: JSON would make texts of them, and the file was parsed at each start."""
    monkeypatch.setattr(facts, "cache_directory", lambda: tmp_path)
    data = facts.own_file(name)
    facts._write_cache(tmp_path / "copy.json", data)
    assert facts._read_cache(tmp_path / "copy.json") == data


def test_rules_of_hosts_are_pure() -> None:
    """Findings of one host may be used for each of its workloads."""
    host = node("A100-SXM4-40GB", "535.288.01", kernel="6.12.117")
    for rule in rules_host.RULES:
        assert list(rule.check(host, None)) == list(rule.check(host, None))
