"""Verdicts: each item once as it should be and once not, and the exit code that follows. What was not seen is never healthy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.node.state.test_cases import converged, document, installed, merge

from goldnode.node.effective.boot_choice import REBUILD
from goldnode.node.program.main import main
from goldnode.node.state.domains.program import document_digest
from goldnode.node.state.engine import judge
from goldnode.node.state.finding import DEFERRED, ELSEWHERE, MATCH, MISMATCH, UNREAD, Finding
from goldnode.node.state.model import Observed
from goldnode.node.verdict import check

RELEASE = "6.1.0-902-amd64"


def findings(patch: dict[str, Any], wanted: Any = None) -> list[Finding]:
    """The findings of a converged node with `patch` merged into what is seen."""
    wanted = wanted or document()
    seen = Observed(**merge(converged(wanted).to_dict(), patch))
    return check.find(wanted, seen, judge(wanted, seen, {}))


@pytest.mark.parametrize(
    ("there", "got", "remedy"),
    [
        (None, "no /etc/goldnode/class.json", "was not applied here"),
        ({"content": "not json"}, "/etc/goldnode/class.json is no class document", "has changed"),
        ({"content": "[]"}, "/etc/goldnode/class.json is no class document", "has changed"),
        ({"content": '{"class": "x"}'}, document_digest({"class": "x"}), "has changed"),
    ],
    ids=["absent", "text", "list", "another"],
)
def test_the_document_on_the_node_is_named_as_it_is(
    there: dict[str, str] | None, got: str, remedy: str
) -> None:
    found = {item.id: item for item in findings({"files": {"/etc/goldnode/class.json": there}})}
    assert (found["class.document"].outcome, found["class.document"].got) == (MISMATCH, got)
    assert remedy in str(found["class.document"].remedy)


def test_node_that_matches_its_class_is_healthy() -> None:
    found = findings({})
    assert {finding.outcome for finding in found} == {MATCH}, [
        f for f in found if f.outcome != MATCH
    ]
    assert check.exit_code(found) == 0
    assert len(found) == len({finding.id for finding in found}) > 15


@pytest.mark.parametrize(
    ("module", "bound", "outcome"),
    [
        ("xe", "xe", MATCH),
        ("xe", "i915", MISMATCH),
        ("i915", "i915", MATCH),
        ("xe", None, MISMATCH),
    ],
)
def test_intels_gpu_is_bound_to_the_driver_that_the_stack_declares(
    module: str, bound: str | None, outcome: str
) -> None:
    """The bus is made up: no Intel GPU was at hand."""
    gpu = {"vendor": "intel", "model": "Arc B580", "count": 1, "pci_ids": ["8086:e20b"]}
    wanted = merge(document(), {"gpu": gpu, "driver": {"vendor": "intel", "module": module}})
    seen = {"gpus": [{"address": "1", "id": "8086:e20b", "driver": bound}]}
    found = {item.id: item for item in findings(seen, wanted)}
    assert found["gpu.bound"].outcome == outcome
    assert found["gpu.bound"].expected == module


@pytest.mark.parametrize(
    ("name", "patch", "code"),
    [
        ("node.os", {"os": {"version": "13"}}, 4),
        (
            "gpu.ids",
            {
                "gpus": [
                    {"address": "1", "id": "10de:2330", "driver": None},
                    {"address": "2", "id": "10de:20b0", "driver": None},
                ]
            },
            4,
        ),
        ("gpu.count", {"gpus": [{"address": "1", "id": "10de:20b0", "driver": "nvidia"}]}, 2),
        ("kernel.running", {"running_kernel": "6.1.0-901-amd64"}, 2),
        ("driver.module_file", {"modules": {RELEASE: {"version": "535.1"}}}, 2),
        ("driver.loaded", {"loaded": {"nvidia": "535.1"}}, 2),
        ("driver.loaded", {"loaded": {"nvidia": None}}, 2),
        ("driver.library", {"library": "/usr/lib/libnvidia-ml.so.535.3"}, 2),
        ("driver.library", {"library": None}, 2),
        (
            "gpu.bound",
            {"gpus": [{"address": n, "id": "10de:20b0", "driver": "vfio-pci"} for n in "12"]},
            2,
        ),
        (
            "gpu.bound",
            {"gpus": [{"address": n, "id": "10de:20b0", "driver": None} for n in "12"]},
            2,
        ),
        ("boot.initramfs", {"initramfs": {RELEASE: None}}, 2),
        ("boot.kernel", {"boot": {"fault": f"/boot/vmlinuz-{RELEASE} is empty"}}, 2),
        ("node.files", {"files": {"/etc/initramfs-tools/hooks/zz-goldnode": None}}, 1),
        ("blacklist.nouveau", {"loaded": {"nouveau": ""}}, 2),
        (
            "blacklist.nouveau",
            {"initramfs": {RELEASE: {"unwanted": ["usr/lib/modules/x/nouveau.ko.zst"]}}},
            2,
        ),
        (
            "blacklist.nova_core",
            {"forced": [{"file": "/etc/modules", "line": 3, "module": "nova-core"}]},
            2,
        ),
        ("stack.lock", {"packages": {"libnvidia-ml1": {"version": "535.3-1"}}}, 2),
        ("stack.lock", {"packages": {"nvidia-tesla-470-smi": installed("470.1-1")}}, 2),
        ("stack.holds", {"packages": {"libnvidia-ml1": {"hold": False}}}, 1),
        ("class.document", {"files": {"/etc/goldnode/class.json": {"content": "{}"}}}, 1),
        ("node.files", {"files": {"/etc/modprobe.d/goldnode-blacklist.conf": {"content": ""}}}, 1),
        ("node.program", {"files": {"/usr/lib/goldnode/goldnode-node": {"mode": 0o777}}}, 2),
        ("node.program", {"files": {"/usr/lib/goldnode/goldnode-node": {"mode": 0o700}}}, 1),
        (
            "apt.sources",
            {"keyrings": {"/usr/share/keyrings/debian-archive-keyring.gpg": ["BBBB"]}},
            1,
        ),
        ("boot.next", {"boot": {"release": "6.1.0-901-amd64"}}, 2),
        ("boot.pending", {"reboot_marks": ["the initramfs was rebuilt"]}, 1),
    ],
)
def test_each_fault_is_found_under_its_name(name: str, patch: dict[str, Any], code: int) -> None:
    found = findings(patch)
    bad = {finding.id: finding for finding in found if finding.outcome == MISMATCH}
    assert name in bad, found
    assert (bad[name].remedy or "").endswith(".")
    assert check.exit_code(found) == code


def test_missing_kernel_is_a_fault_in_a_container_too() -> None:
    shown = {
        row.id: row for row in findings({"container": True, "boot": {"fault": "it is missing"}})
    }
    assert (shown["boot.kernel"].outcome, shown["boot.kernel"].got) == (MISMATCH, "it is missing")


def test_damaged_initramfs_is_a_fault_and_not_unread() -> None:
    damaged = {"initramfs": {RELEASE: {"error": f"the image holds nothing. {REBUILD}"}}}
    shown = {row.id: row.outcome for row in findings(damaged)}
    assert shown["boot.initramfs"] == MISMATCH
    assert "blacklist.initramfs" not in shown


@pytest.mark.parametrize(
    ("patch", "unseen"),
    [
        (
            {"container": True, "running_kernel": None, "gpus": None},
            {"kernel.running", "driver.loaded", "gpu.ids", "gpu.count"},
        ),
        ({"boot": {"loader": "systemd-boot", "release": None}}, {"boot.next"}),
        ({"initramfs": {RELEASE: {"error": "zstd: not found"}}}, {"blacklist.initramfs"}),
    ],
)
def test_unseen_items_make_the_exit_code_2_or_3(patch: dict[str, Any], unseen: set[str]) -> None:
    found = findings(patch)
    outcomes = {finding.id: finding.outcome for finding in found}
    assert unseen <= {name for name, outcome in outcomes.items() if outcome in (ELSEWHERE, UNREAD)}
    assert check.exit_code(found) in (2, 3)


def slots(**changes: Any) -> dict[str, Any]:
    """Slots as seen on a node that runs the newest image, and what is different."""
    row = {
        "image": "c-a",
        "class": "c",
        "kernel": RELEASE,
        "entry": "goldnode-a-a.conf",
        "state": "good",
        "sequence": 1,
    }
    survey = {
        "running": "a",
        "tried": None,
        "next": "a",
        "fallback": None,
        "slots": {"a": row, "b": {**row, "image": "c-b"}},
    }
    return {
        "survey": {**survey, **changes.pop("survey", {})},
        "stale": None,
        "marker": False,
        **changes,
    }


SLOT_BOOT = {"loader": "systemd-boot", "release": RELEASE}


@pytest.mark.parametrize(
    ("name", "patch", "outcome", "code"),
    [
        ("boot.next", {"boot": SLOT_BOOT, "slots": slots()}, MATCH, 0),
        (
            "boot.next",
            {"boot": {"loader": "systemd-boot", "release": "other"}, "slots": slots()},
            MISMATCH,
            2,
        ),
        # The next boot may be the other slot's until this image is good: that speaks neither for it nor against it.
        (
            "boot.next",
            {
                "boot": {"release": "other"},
                "slots": slots(survey={"tried": "goldnode-a-a+0-1.conf", "next": "b"}),
            },
            DEFERRED,
            0,
        ),
        (
            "boot.next",
            {
                "boot": {"loader": "systemd-boot", "release": "other"},
                "slots": slots(survey={"next": "b"}),
            },
            DEFERRED,
            0,
        ),
        ("slot.fallback", {"boot": SLOT_BOOT, "slots": slots()}, MATCH, 0),
        (
            "slot.fallback",
            {
                "boot": SLOT_BOOT,
                "slots": slots(survey={"fallback": "image c-b in slot b failed 3 tries: …"}),
            },
            MISMATCH,
            1,
        ),
        (
            "boot.copies",
            {"boot": SLOT_BOOT, "slots": slots(stale="not as in this root: /boot/initrd.img-x")},
            MISMATCH,
            1,
        ),
        # The root was made for slots, and none are seen: the ESP is not mounted.
        ("slot.fallback", {"slots": {"marker": True, "survey": None, "stale": None}}, ELSEWHERE, 3),
    ],
)
def test_slots_decide_next_boot_and_fallback_outcomes(
    name: str, patch: dict[str, Any], outcome: str, code: int
) -> None:
    found = findings(patch)
    assert [finding.outcome for finding in found if finding.id == name] == [outcome]
    if name != "slot.fallback" or outcome != ELSEWHERE:
        assert check.exit_code(found) == code


def test_simulated_gpus_are_no_real_ones() -> None:
    wanted = {**document(), "simulated": True}
    found = findings({"gpus": []}, wanted)
    assert {f.id for f in found if f.outcome == ELSEWHERE} >= {
        "gpu.ids",
        "gpu.count",
        "driver.loaded",
    }
    assert check.exit_code(found) == 3


def test_a_document_that_was_edited_on_the_node() -> None:
    """Fewer packages under the old digest: what is judged by must not be believed of itself."""
    wanted = document()
    wanted["packages"] = wanted["packages"][:1]
    found = {finding.id: finding.outcome for finding in findings({}, wanted)}
    assert found["class.document"] == MISMATCH


def test_unknown_baseline_section_makes_the_exit_code_3() -> None:
    wanted = {
        **document(),
        "policy": {"ecc": True, "module_options": {}},
        "baseline": {"network": {"eth0": {"mtu": 9000}}, "tape": {"drives": 2}},
    }
    wanted["digest"] = document_digest(wanted)
    found = findings({}, wanted)
    unseen = {finding.id for finding in found if finding.outcome == ELSEWHERE}
    assert unseen == {"baseline.tape"}
    assert check.exit_code(found) == 3


def test_nothing_found_is_not_healthy() -> None:
    assert check.exit_code([]) == 3


def test_drain_outranks_what_could_not_be_read_and_that_outranks_degraded() -> None:
    unread = Finding("a", UNREAD, None, None, severity="degraded")
    degraded = Finding("b", MISMATCH, None, None, severity="degraded")
    drain = Finding("c", MISMATCH, None, None, severity="drain")
    assert check.exit_code([unread, degraded]) == 3
    assert check.exit_code([unread, degraded, drain]) == 2
    assert check.exit_code([degraded]) == 1


def test_a_crash_of_the_checker_reads_as_could_not_check(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "class.json"
    path.write_text(json.dumps({**document()}))

    def crash(*_: Any) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(check, "observed", crash)
    assert main(["check", "--class", str(path), "--root", str(tmp_path), "--no-write"]) == 3
    assert "could_not_check" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", '{"schema": "something/1"}', "[]"])
def test_a_document_that_is_invalid(
    tmp_path: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "class.json"
    path.write_text(text)
    assert main(["check", "--class", str(path), "--root", str(tmp_path), "--no-write"]) == 3
    assert str(path) in capsys.readouterr().out


def test_the_verdict_of_a_root_is_written_where_everything_reads_it(tmp_path: Any) -> None:
    path = tmp_path / "class.json"
    path.write_text(json.dumps(document()))
    code = main(["check", "--quiet", "--class", str(path), "--root", str(tmp_path)])
    written = json.loads((tmp_path / "run/goldnode/verdict.json").read_text())
    assert written["exit_code"] == code != 0


@pytest.mark.parametrize(
    ("gpus", "outcome"),
    [
        ([{"address": n, "id": "10de:20b0", "driver": "nvidia"} for n in "12"], MATCH),
        ([{"address": "1", "id": "10de:20b0", "driver": "nvidia"}], MISMATCH),
        (None, ELSEWHERE),
    ],
)
def test_a_simulators_bus_is_judged_in_a_container_too(
    gpus: list[dict[str, str]] | None, outcome: str
) -> None:
    wanted = {**document(), "simulated": True}
    found = findings(
        {"container": True, "running_kernel": None, "simulated": True, "gpus": gpus}, wanted
    )
    assert {finding.id: finding.outcome for finding in found}["gpu.count"] == outcome
