"""The table of the ladder: every finding that drains has a way or is left alone, and every way follows the remedy."""

from __future__ import annotations

import pytest

from goldnode.facts import audit, host, ladder, xid
from goldnode.node.state.kinds import KINDS
from goldnode.node.verdict import table

# Steps of the node's own remedy -> the rungs that carry them out.
_CARRIED = {
    "gpu_reset": {"gpu-reset"},
    "reboot": {"reboot"},
    "command": {"service-restart", "module-reload"},
}


def test_facts_of_the_ladder_are_sound() -> None:
    assert [str(fault) for fault in audit.faults() if fault.file == ladder.FILE] == []
    assert list(ladder.rungs()) == [
        "inspect",
        "service-restart",
        "gpu-reset",
        "module-reload",
        "reboot",
        "power-cycle",
        "slot-write",
        "reinstall",
        "ticket",
    ]


def test_every_finding_that_drains_has_a_row() -> None:
    listed = {
        name
        for part in ("findings", "left")
        for row in host.load(ladder.FILE)[part]
        for name in ladder.names(row)
    }
    draining = {name for name, kind in KINDS.items() if kind.severity == "drain"}
    assert draining - listed == {"xid.*", "sxid.*"}, "add a row to facts/ladder.yml"
    # The severity of a few is given by the answer of the rule, so listed ones need not drain by their row.
    assert listed <= set(KINDS)


def test_way_climbs_only_upwards() -> None:
    order = list(ladder.rungs())
    data = host.load(ladder.FILE)
    for row in (*data["actions"], *data["findings"]):
        places = [order.index(rung) for rung in row["climb"]]
        assert places == sorted(set(places)), row
        assert not {"inspect", "ticket"} & set(row["climb"]), row
        assert bool(row.get("units")) == ("service-restart" in row["climb"]), row


@pytest.mark.parametrize(
    "entry",
    [rule for rule in table.TABLE if rule.kind.severity == "drain"],
    ids=lambda rule: rule.kind.id,
)
def test_first_rung_is_no_stronger_than_the_remedy_of_the_finding(entry: object) -> None:
    kind = entry.kind  # type: ignore[attr-defined]
    way = ladder.way(kind.id)
    steps = tuple(getattr(kind.remedy, "steps", ()))
    if way is None or not way.climb:
        # What the ladder leaves to a person has no remedy that a machine can carry out first.
        assert steps[0] in ("person", "repair", "command", "reboot"), (kind.id, steps)
        return
    machine = [step for step in steps if step in _CARRIED]
    if machine:
        allowed = {rung for step in machine for rung in _CARRIED[step]}
        order = list(ladder.rungs())
        assert order.index(way.first) <= max(map(order.index, allowed)), (kind.id, steps)


def test_every_xid_with_an_action_leads_to_its_rung() -> None:
    expected = {
        "RESET_GPU": "gpu-reset",
        "RESTART_BM": "reboot",
        "RESTART_VM": "reboot",
        "WORKFLOW_XID_48": "gpu-reset",
        "WORKFLOW_NVLINK_ERR": "gpu-reset",
        "WORKFLOW_NVLINK5_ERR": "gpu-reset",
        "CHECK_MECHANICALS": "ticket",
        "SXID_FATAL": "reboot",
        "SXID_POTENTIAL": "reboot",
    }
    for code, row in xid.codes().items():
        way = ladder.way(f"{'sxid' if row.kind == 'SXid' else 'xid'}.{code}")
        assert way is not None
        assert way.first == expected.get(row.action or "", "ticket"), row
    # An action that drains has a way: none is forgotten when NVIDIA adds one.
    forgotten = {name for name, action in xid.actions().items() if action.node == "drain"}
    assert forgotten <= set(expected)


def test_unknown_xid_is_only_inspected() -> None:
    way = ladder.way("xid.999")
    assert way is not None
    assert (way.climb, way.first) == ((), "ticket")


def test_finding_of_the_software_is_left_to_the_site() -> None:
    assert ladder.way("stack.lock") is None
    assert ladder.way("blacklist.nouveau") is None
    assert ladder.way("policy.persistence_mode") is None


def test_pattern_of_a_name_is_matched() -> None:
    way = ladder.way("modules.nvidia_uvm.loaded")
    assert way is not None
    assert way.first == "module-reload"
