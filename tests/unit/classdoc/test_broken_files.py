"""One file with an error stops what depends on it, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import CLASS, FILES, write

from goldnode.classdoc.cache import Compiler
from goldnode.classdoc.load import load_catalog
from goldnode.commands.check.catalog_report import check
from goldnode.core.errors import GoldnodeError
from goldnode.lock.archives import wanted_options

LAP = "class: lap\nbackend: cpu\nstack: plain\nplatfrom: x\n"


def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> Path:
    named = {name.replace("__", "/") + ".yml": text for name, text in files.items()}
    own = write(tmp_path, FILES | named)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(own))
    monkeypatch.setattr("goldnode.catalog.load.builtin_catalog", lambda: own)
    return own


def test_a_broken_class_stops_nothing_but_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = catalog(tmp_path, monkeypatch, classes__lap=LAP)
    with caplog.at_level(logging.WARNING, logger="goldnode"):
        found = load_catalog()
    assert "a100" in found.classes
    assert "lap" not in found.classes
    assert f"warning: not used: {own}/classes/lap.yml:4: " in caplog.text
    with pytest.raises(GoldnodeError, match=r"lap\.yml:4: "):
        found.node_class("lap")
    assert "lap" in found.class_names(), "its hosts have a class"
    with pytest.raises(GoldnodeError, match=r"lap\.yml:4: "):
        load_catalog([own])


def test_a_broken_stack_stops_its_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FILES["stacks/r580.yml"].replace("codename:", "codname:")
    own = catalog(tmp_path, monkeypatch, stacks__r580=text)
    found = load_catalog()
    assert "r580" not in found.stacks
    with pytest.raises(
        GoldnodeError, match=r'r580\.yml:\d+: class "a100" cannot be used: .*codname'
    ):
        found.node_class("a100")
    assert "plain" in found.stacks
    faults: list[GoldnodeError] = []
    load_catalog(faults=faults)
    assert [fault.file for fault in faults] == [str(own / "stacks/r580.yml")], (
        "its classes repeat nothing"
    )


def test_a_name_that_two_catalogs_define_is_used_from_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = catalog(tmp_path, monkeypatch)
    other = write(tmp_path / "other", {"classes/a100.yml": CLASS})
    monkeypatch.setenv("GOLDNODE_CATALOG", f"{own}:{other}")
    with pytest.raises(GoldnodeError, match='"a100" is defined twice'):
        load_catalog().node_class("a100")


def test_broken_archives_stop_the_stacks_that_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(tmp_path, monkeypatch, archives="archives: {debian: {sweet: x}}\n")
    found = load_catalog()
    with pytest.raises(GoldnodeError, match=r'archives\.yml:1: stack "r580" cannot be used: '):
        found.stack("r580")


def test_a_run_gets_the_error_of_a_broken_class_and_the_documents_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(tmp_path, monkeypatch, classes__lap=LAP)
    compiler = Compiler()
    assert {"lap", "a100"} <= set(compiler.classes())
    assert "lap.yml:4: " in compiler.document("lap")["error"]
    assert "lap" not in compiler.document("a100").get("error", "")
    (fault,) = compiler.faults()
    assert "lap.yml:4: " in fault


def test_check_catalog_fails_and_work_that_needs_everything_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(tmp_path, monkeypatch, classes__lap=LAP)
    monkeypatch.chdir(tmp_path)
    assert any("lap.yml:4: " in str(problem) for problem in check().wrong)
    with pytest.raises(GoldnodeError, match=r"lap\.yml:4: "):
        load_catalog().whole()


@pytest.mark.parametrize(("stack", "refused"), [("r580", True), ("plain", False)])
def test_a_lock_refuses_only_where_a_broken_class_may_ask_for_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: str, refused: bool
) -> None:
    part = (
        "options: {dcgm: {description: d, packages: [datacenter-gpu-manager-4-core], source: s}}\n"
    )
    own = catalog(
        tmp_path,
        monkeypatch,
        stacks__r580=FILES["stacks/r580.yml"] + part,
        classes__lap=LAP.replace("stack: plain", f"stack: {stack}"),
    )
    assert own
    found = load_catalog()
    if refused:
        with pytest.raises(GoldnodeError, match=r"lap\.yml:4: "):
            wanted_options(found.stack("r580"), found)
    else:
        assert wanted_options(found.stack("r580"), found) == []
