"""Verdicts on what is set on GPUs: each item as declared and not, what no call reads back, and what could not be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.devices import uuid
from tests.unit.node.state.test_cases import converged, document, merge
from tests.unit.node.state.test_holders import process

from goldnode.node.device import export
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.state import reapply
from goldnode.node.state.apply import Applier
from goldnode.node.state.domains import policy
from goldnode.node.state.domains.program import document_digest
from goldnode.node.state.engine import judge
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding
from goldnode.node.state.handlers import policy as handlers
from goldnode.node.state.model import Action, Observed
from goldnode.node.verdict import check

EVERYTHING: dict[str, Any] = {
    "persistence_mode": True,
    "clocks": {"graphics_mhz": 1410, "memory_mhz": 1215},
    "power_limit_watts": 400,
    "ecc": True,
    "compute_mode": "exclusive_process",
    "mig": {"enabled": False},
    "sharing": "exclusive",
}
LOST = {"uuid": {"rc": 15, "text": "GPU is lost"}, "rc": 15, "text": "GPU is lost"}
NO_GETTER = {
    "graphics": {"rc": 3, "text": "Not Supported"},
    "memory": {"rc": 13, "text": "Function Not Found"},
}


def findings(
    wanted: dict[str, Any],
    patch: dict[str, Any] | None = None,
    document_patch: dict[str, Any] | None = None,
) -> dict[str, Finding]:
    """Findings by name of a node of a class with policy `wanted`, with `patch` merged into its `gpu_settings`."""
    whole = merge(document(), {"policy": wanted, **(document_patch or {})})
    whole["digest"] = document_digest(whole)
    seen = Observed(**merge(converged(whole).to_dict(), {"gpu_settings": patch or {}}))
    return {finding.id: finding for finding in check.find(whole, seen, judge(whole, seen, {}))}


def code(found: dict[str, Finding]) -> int:
    """The exit code of a check with these findings."""
    return check.exit_code(list(found.values()))


def test_one_finding_per_declared_item_and_all_match() -> None:
    found = findings(EVERYTHING)
    own = {name for name in found if name.startswith("policy.")}
    assert own == {
        "policy.persistence_mode",
        "policy.clocks.graphics_mhz",
        "policy.clocks.memory_mhz",
        "policy.power_limit_watts",
        "policy.ecc",
        "policy.compute_mode",
        "policy.mig",
        "policy.sharing",
    }
    assert {finding.outcome for finding in found.values()} == {MATCH}
    assert code(found) == 0


@pytest.mark.parametrize(
    ("item", "gpu", "got", "exit_code"),
    [
        ("persistence_mode", {"persistence_mode": False}, "GPU 1: off", 1),
        (
            "clocks.graphics_mhz",
            {"clocks": {"application": {"graphics": 1095}}},
            "GPU 1: 1095 MHz",
            1,
        ),
        ("clocks.memory_mhz", {"clocks": {"application": {"memory": 877}}}, "GPU 1: 877 MHz", 1),
        ("power_limit_watts", {"power": {"limit": 300}}, "GPU 1: 300 W", 1),
        ("power_limit_watts", {"power": {"limit": 399.5}}, "GPU 1: 399.5 W", 1),
        ("compute_mode", {"compute_mode": "default"}, "GPU 1: default", 1),
        ("sharing", {"compute_mode": "default"}, "GPU 1: default", 1),
        ("ecc", {"ecc": {"current": False, "pending": False}}, "GPU 1: off", 2),
        (
            "ecc",
            {"ecc": {"current": False, "pending": True}},
            "GPU 1: off, on from the next boot",
            2,
        ),
        (
            "ecc",
            {"ecc": {"current": True, "pending": False}},
            "GPU 1: on, off from the next boot",
            2,
        ),
        ("mig", {"mig": {"current": True, "pending": True, "instances": []}}, "GPU 1: on", 2),
        (
            "mig",
            {"mig": {"current": True, "pending": True, "instances": ["7g.40gb"]}},
            "GPU 1: on with 7g.40gb",
            2,
        ),
    ],
)
def test_each_drift_is_found_under_its_name(
    item: str, gpu: dict[str, Any], got: str, exit_code: int
) -> None:
    found = findings(EVERYTHING, {"gpus": {"1": gpu}})
    finding = found[f"policy.{item}"]
    assert (finding.outcome, finding.got) == (MISMATCH, got)
    assert (finding.remedy or "").endswith(".")
    assert code(found) == exit_code


def test_gpus_that_differ_alike_are_reported_together() -> None:
    found = findings(
        {"power_limit_watts": 400},
        {"gpus": {"0": {"power": {"limit": 300}}, "1": {"power": {"limit": 300}}}},
    )
    assert found["policy.power_limit_watts"].got == "GPU 0, 1: 300 W"


def test_a_lost_gpu_could_not_be_read_whatever_the_others_are() -> None:
    found = findings({"power_limit_watts": 400, "persistence_mode": True}, {"gpus": {"1": LOST}})
    finding = found["policy.power_limit_watts"]
    assert (finding.outcome, finding.got) == (UNREAD, "GPU 1: GPU is lost (return code 15)")
    assert code(found) == 3
    worse = findings(
        {"power_limit_watts": 400}, {"gpus": {"0": {"power": {"limit": 300}}, "1": LOST}}
    )["policy.power_limit_watts"]
    assert worse.outcome == UNREAD
    assert worse.got == "GPU 0: 300 W; GPU 1: GPU is lost (return code 15)"


def test_drain_mismatch_outranks_a_lost_gpu() -> None:
    found = findings(
        {"ecc": True}, {"gpus": {"0": {"ecc": {"current": False, "pending": False}}, "1": LOST}}
    )
    assert found["policy.ecc"].outcome == MISMATCH
    assert code(found) == 2


def test_a_gpu_that_is_not_there_at_all_is_no_match() -> None:
    found = findings({"power_limit_watts": 400}, {"gpus": {"1": None}} | {}, {"gpu": {"count": 3}})
    finding = found["policy.power_limit_watts"]
    assert (finding.outcome, finding.got) == (UNREAD, "1 of 3 GPUs do not answer")


@pytest.mark.parametrize(
    ("rc", "outcome"),
    [(3, NOT_EXPOSED), (13, NOT_EXPOSED), (15, UNREAD), (16, UNREAD), (4, UNREAD), (999, UNREAD)],
)
def test_return_codes_of_a_getter(rc: int, outcome: str) -> None:
    fault = {"rc": rc, "text": "as NVML says", "current": None, "pending": None}
    found = findings({"ecc": True}, {"gpus": {"0": {"ecc": fault}}})
    assert found["policy.ecc"].outcome == outcome
    assert f"return code {rc}" in str(found["policy.ecc"].got)
    assert code(found) == 3, "what is declared and cannot be read is never healthy"


def test_locked_clocks_are_never_a_match() -> None:
    wanted = {"clocks": {"graphics_mhz": 1200, "mode": "locked"}}
    finding = findings(wanted)["policy.clocks.graphics_mhz"]
    assert (finding.outcome, finding.got) == (NOT_EXPOSED, "GPU 0, 1: set at 2026-11-21T10:00:00Z")
    gone = findings(wanted, {"record": {uuid(0): None, uuid(1): None}})
    assert gone["policy.clocks.graphics_mhz"].outcome == MISMATCH
    assert gone["policy.clocks.graphics_mhz"].got == "GPU 0, 1: not set since the driver was loaded"
    assert code(gone) == 1


@pytest.mark.parametrize(
    ("rc", "outcome"),
    [(3, NOT_EXPOSED), (13, NOT_EXPOSED), (4, MISMATCH), (15, MISMATCH), (999, MISMATCH)],
)
def test_clocks_that_could_not_be_locked_are_not_as_declared(rc: int, outcome: str) -> None:
    """No call reads them back, so what the setter said is all there is: a refusal is no pass, and the next run tries again."""
    reported = {
        "rc": rc,
        "text": "as NVML says",
        "parts": {"graphics_mhz": {"rc": rc, "text": "as NVML says"}},
    }
    found = findings(
        {"clocks": {"graphics_mhz": 1200, "mode": "locked"}},
        {"record": {uuid(0): {"clocks": reported}}},
    )
    finding = found["policy.clocks.graphics_mhz"]
    assert finding.outcome == outcome
    assert f"GPU 0: tried at 2026-11-21T10:00:00Z: as NVML says (return code {rc})" in str(
        finding.got
    )
    assert code(found) == (3 if outcome == NOT_EXPOSED else 1)


def test_change_of_mig_removes_recorded_clocks(tmp_path: Path) -> None:
    applier = Applier(Host(str(tmp_path)), document(), {}, print)
    clocks: dict[str, Any] = {
        "uuid": uuid(0),
        "field": "clocks",
        "value": {},
        "rc": 0,
        "text": "Success",
    }
    mig = {**clocks, "field": "mig"}
    handlers._remember(applier, [clocks])
    handlers._remember(applier, [mig])
    assert set(json.loads(applier.host.text(policy.RECORD) or "")["set"][uuid(0)]) == {"mig"}
    handlers._remember(applier, [mig, clocks])
    assert set(json.loads(applier.host.text(policy.RECORD) or "")["set"][uuid(0)]) == {
        "mig",
        "clocks",
    }


def test_reapply_skips_the_gpu_unit_while_a_process_uses_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = merge(document(), {"policy": {"persistence_mode": True}})
    seen = Observed(
        **merge(
            converged(whole).to_dict(),
            {"gpu_settings": {"persistenced": {"arguments": ["x", "--no-persistence-mode"]}}},
        )
    )
    monkeypatch.setattr(reapply, "observed", lambda *_: seen)
    assert [
        action.kind for action in reapply.outstanding(Host(str(tmp_path), live=True), whole)[1]
    ] == ["gpu.unit"]
    process(tmp_path, 7, "job.scope", "/dev/nvidia0")
    assert reapply.outstanding(Host(str(tmp_path), live=True), whole)[1] == []


def test_application_clocks_that_a_driver_no_longer_has() -> None:
    """Neither getter nor setter: what the setter said is told, and it is no match and no lie."""
    reported = {"rc": 3, "text": "Not Supported"}
    absent = {
        "clocks": {
            "rc": 3,
            "text": "Not Supported",
            "parts": {"graphics_mhz": reported, "memory_mhz": reported},
        }
    }
    gpu = {"clocks": {"application": NO_GETTER}}
    wanted = {"clocks": {"graphics_mhz": 1410, "memory_mhz": 1215}}
    found = findings(
        wanted, {"gpus": {"0": gpu, "1": gpu}, "record": {uuid(0): absent, uuid(1): absent}}
    )
    for item in ("graphics_mhz", "memory_mhz"):
        finding = found[f"policy.clocks.{item}"]
        assert finding.outcome == NOT_EXPOSED
        assert (
            finding.got == "GPU 0, 1: tried at 2026-11-21T10:00:00Z: Not Supported (return code 3)"
        )


def test_a_getter_without_a_setter_is_a_mismatch_that_reports_it() -> None:
    reported = {"rc": 3, "text": "Not Supported"}
    record = {uuid(0): {"clocks": {"parts": {"graphics_mhz": reported, "memory_mhz": reported}}}}
    wanted = {"clocks": {"graphics_mhz": 1410}}
    found = findings(
        wanted, {"gpus": {"0": {"clocks": {"application": {"graphics": 1095}}}}, "record": record}
    )
    finding = found["policy.clocks.graphics_mhz"]
    assert (finding.outcome, finding.got) == (
        MISMATCH,
        "GPU 0: 1095 MHz; the driver cannot set it (Not Supported)",
    )


def test_overrides_are_expected_of_their_gpus_only() -> None:
    wanted = {"power_limit_watts": 400, "overrides": [{"uuid": uuid(1), "power_limit_watts": 300}]}
    finding = findings(wanted)["policy.power_limit_watts"]
    assert (finding.outcome, finding.expected) == (MATCH, "300 W: GPU 1; 400 W: GPU 0")
    alone = findings(
        {"overrides": [{"uuid": uuid(1), "ecc": False}]},
        {"gpus": {"1": {"ecc": {"current": True, "pending": True}}}},
    )
    assert (alone["policy.ecc"].outcome, alone["policy.ecc"].got) == (MISMATCH, "GPU 1: on")


def test_an_override_for_a_model_the_node_does_not_have() -> None:
    override = {"model": "A100-SXM4-80GB", "pci_ids": ["10de:20b2"], "power_limit_watts": 300}
    found = findings({"power_limit_watts": 400, "overrides": [override]})
    assert (found["policy.overrides"].outcome, found["policy.overrides"].got) == (
        MISMATCH,
        "no GPU is a A100-SXM4-80GB",
    )
    there = {"model": "A100-SXM4-40GB", "pci_ids": ["10de:20b0"], "power_limit_watts": 300}
    assert findings({"overrides": [there]})["policy.overrides"].outcome == MATCH


@pytest.mark.parametrize(
    ("mps", "got"),
    [
        ({"installed": True, "active": False}, "goldnode-mps.service does not run"),
        ({"installed": False, "active": False}, "nvidia-cuda-mps-control is not installed"),
    ],
)
def test_mps_is_a_daemon_too(mps: dict[str, bool], got: str) -> None:
    assert findings({"sharing": "mps"})["policy.sharing"].outcome == MATCH
    finding = findings({"sharing": "mps"}, {"mps": mps})["policy.sharing"]
    assert finding.outcome == MISMATCH
    assert got in str(finding.got)


def test_mps_of_an_earlier_class_is_no_exclusive_sharing() -> None:
    whole = merge(document(), {"policy": {"sharing": "exclusive"}})
    running = {
        "units": {"loaded": {policy.MPS_NAME: {"LoadState": "loaded", "ActiveState": "active"}}}
    }
    seen = Observed(**merge(converged(whole).to_dict(), running))
    found = {finding.id: finding for finding in policy.findings(whole, seen)}["policy.sharing"]
    assert (found.outcome, found.got) == (MISMATCH, "goldnode-mps.service still runs")


def test_a_driver_that_does_not_answer() -> None:
    found = findings(
        EVERYTHING,
        {"error": "the GPU driver did not answer within 120 s", "gpus": {"0": None, "1": None}},
    )
    own = [finding for name, finding in found.items() if name.startswith("policy.")]
    assert len(own) == 8
    assert {finding.outcome for finding in own} == {UNREAD}
    assert code(found) == 3


def test_policy_is_not_judged_in_a_container_or_an_image() -> None:
    whole = merge(document(), {"policy": EVERYTHING})
    seen = Observed(**merge(converged(whole).to_dict(), {"container": True}))
    assert {finding.outcome for finding in policy.findings(whole, seen)} == {ELSEWHERE}
    image = Observed(**merge(converged(whole).to_dict(), {"live": False, "simulated": True}))
    assert {finding.outcome for finding in policy.findings(whole, image)} == {ELSEWHERE}


def test_the_drop_in_keeps_the_user_that_the_package_gives_its_daemon() -> None:
    whole = merge(document(), {"policy": {"persistence_mode": True}})
    basic = Observed(
        gpu_settings={
            "persistenced": {"exec": "/usr/bin/nvidia-persistenced --user nvpd", "arguments": None}
        }
    )
    refusing = Observed(
        gpu_settings={
            "persistenced": {
                "exec": "/usr/bin/nvidia-persistenced --user np --no-persistence-mode --verbose"
            }
        }
    )
    texts = [
        file.content
        for seen in (basic, refusing)
        for file in policy.daemon(whole, seen, "gpu_driver")
    ]
    assert "ExecStart" not in texts[0], (
        "where the package's own command is right, nothing of it is repeated"
    )
    assert texts[1].endswith(
        "[Service]\nTimeoutStopSec=15s\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user np --verbose\n"
    )
    assert all("ConditionPathExists=|/dev/nvidiactl" in text for text in texts)


def test_the_drop_in_is_there_before_the_daemon_and_nowhere_else() -> None:
    """Its package starts it at once, where there is no device yet."""
    whole = merge(document(), {"policy": {"persistence_mode": True}})
    bare = Observed(gpu_settings={"persistenced": {"exec": None}})
    with_daemon: Any = {
        **whole,
        "packages": [*whole["packages"], {"name": "nvidia-persistenced", "version": "1"}],
    }
    silent: Any = {**with_daemon, "policy": {}}
    assert policy.daemon(whole, bare, "gpu_driver") == []
    assert [file.path for file in policy.daemon(with_daemon, bare, "gpu_driver")] == [
        policy.DROP_IN
    ]
    assert [file.path for file in policy.daemon(silent, Observed(), "kernel")] == [policy.DROP_IN]
    assert policy.daemon(merge(silent, {"gpu": None}), Observed(), "kernel") == []
    assert policy.daemon(merge(with_daemon, {"gpu": {"vendor": "amd"}}), Observed(), "kernel") == []


def test_the_unit_can_run_again_and_never_stops_a_user() -> None:
    whole = merge(document(), {"policy": {"persistence_mode": True}})
    unit = next(
        file.content for file in policy.wanted(whole, Observed()) if file.path == policy.UNIT
    )
    assert "RemainAfterExit" not in unit.replace("# Not RemainAfterExit", "")
    assert "Requires" not in unit
    assert "Wants=nvidia-persistenced.service\nAfter=" in unit


def test_reapply_restores_gpu_and_host_settings_and_leaves_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and links are left alone: they outlive a boot, and belong to site.yml."""
    whole = merge(
        document(), {"policy": {"power_limit_watts": 400, "host": {"governor": "performance"}}}
    )
    good = converged(whole)
    values = merge(good.to_dict(), {"gpu_settings": {"gpus": {"1": {"power": {"limit": 300}}}}})
    for cpu in values["tuning"]["governor"]:
        values["tuning"]["governor"][cpu] = "powersave"
    bad = Observed(**{**values, "files": {}, "links": {}})
    states = [bad, good]
    monkeypatch.setattr(reapply, "observed", lambda *_: states.pop(0))
    done: list[Action] = []
    monkeypatch.setattr(Applier, "apply", lambda _, action: done.append(action))
    applied, found = reapply.reapply(Host(str(tmp_path), live=True), whole, print)
    assert done == applied
    assert {action.part for action in done} == {"gpu_policy", "host_tuning"}
    assert not [action for action in done if action.kind.startswith(("file.", "link"))]
    assert {finding.outcome for finding in found} == {MATCH}
    states[:] = [bad]
    whole["policy"]["power_limit_watts"] = 500
    with pytest.raises(
        NodeError,
        match=r"refused before anything was touched: Each of 2 GPUs takes 100 to 400 W, not 500 W",
    ):
        reapply.reapply(Host(str(tmp_path), live=True), whole, print)


def test_at_boot_mps_comes_after_the_unit_that_applies_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is queued behind that unit: to wait for it there would end in a timeout, and nothing is said of it yet."""
    whole = merge(document(), {"policy": {"sharing": "mps"}})
    seen = Observed(
        **merge(
            converged(whole).to_dict(), {"gpu_settings": {"mps": {"active": False, "job": True}}}
        )
    )
    monkeypatch.setattr(reapply, "observed", lambda *_: seen)
    assert reapply.reapply(Host(str(tmp_path), live=True), whole, print) == ([], [])
    assert policy.MPS_TEXT.index("After=goldnode-policy") < policy.MPS_TEXT.index(
        "Before=goldnode-sanity.service"
    )


def test_an_export_is_what_the_node_has_in_common_and_what_is_of_one_gpu() -> None:
    whole = merge(document(), {"policy": EVERYTHING, "gpu": {"count": 3}})
    gpus = converged(whole).gpu_settings["gpus"]
    gpus["2"]["power"]["limit"] = 300
    found = export.policy({"gpus": gpus})
    assert found["policy"]["power_limit_watts"] == 400
    assert found["policy"]["clocks"] == {"graphics_mhz": 1410, "memory_mhz": 1215}
    assert found["policy"]["overrides"] == [{"uuid": uuid(2), "power_limit_watts": 300}]
    assert "\n".join(export.yaml(found)).endswith(
        f'  overrides:\n    - uuid: "{uuid(2)}"\n      power_limit_watts: 300'
    )
    assert export.policy({"gpus": {"0": LOST}}) == {}
