"""Nodes in the output of scontrol and kubectl. answers/scontrol.txt is from slurmctld 22.05.8; names were replaced."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.core.errors import InventoryError
from goldnode.inventory.schedulers import SchedulerHost, kubernetes_hosts, slurm_hosts

ANSWERS = Path(__file__).parent / "answers"
SLURM = (ANSWERS / "scontrol.txt").read_text(encoding="utf-8")
KUBERNETES: dict[str, Any] = json.loads((ANSWERS / "nodes.json").read_text(encoding="utf-8"))


def by_name(found: list[SchedulerHost]) -> dict[str, SchedulerHost]:
    return {host.name: host for host in found}


def test_nodes_of_slurm_have_features_partitions_and_states() -> None:
    found = by_name(slurm_hosts(SLURM))
    assert list(found) == ["n1", "n2", "n3"]
    assert found["n1"].address == "127.0.0.1"
    assert found["n1"].variables == {
        "slurm_node": "n1",
        "slurm_hostname": "host1",
        "slurm_features": ["h100_sxm5_80gb", "gpu", "nvidia", "H100", "driver_580"],
        "slurm_active_features": ["h100_sxm5_80gb", "gpu", "nvidia", "H100", "driver_580"],
        "slurm_gres": [],
        "slurm_partitions": ["h100", "all"],
        "slurm_memory_mib": 1,
        "slurm_state": ["idle"],
    }
    assert found["n2"].variables["slurm_state"] == ["idle", "drain"]
    assert found["n2"].variables["slurm_active_features"] == ["gpu"]
    assert found["n3"].variables["slurm_features"] == []


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        ("(null)", []),
        ("gpu:h100:8", ["gpu:h100:8"]),
        ("gpu:h100:8(S:0,1),shard:16", ["gpu:h100:8(S:0,1)", "shard:16"]),
        (
            "gpu:a100_1g.5gb:7(S:0-1),gpu:a100:1(S:1)",
            ["gpu:a100_1g.5gb:7(S:0-1)", "gpu:a100:1(S:1)"],
        ),
    ],
)
def test_gres_of_slurm_is_split_outside_of_sockets(gres: str, words: list[str]) -> None:
    (found,) = slurm_hosts(f"NodeName=g1 Gres={gres} NodeAddr=g1 State=IDLE+DRAIN*\n")
    assert found.variables["slurm_gres"] == words
    assert found.variables["slurm_state"] == ["idle", "drain"]
    assert found.address is None


WORDS = st.text(
    st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\n"), max_size=60
)


@given(WORDS, WORDS)
def test_texts_of_persons_change_no_value_of_a_slurm_node(comment: str, reason: str) -> None:
    line = SLURM.splitlines()[2]
    (found,) = slurm_hosts(f"{line} Comment={comment} Reason={reason} [root@2026-11-26T11:34:13]\n")
    assert found == slurm_hosts(line)[0]


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a/b", "a;b", "{{x}}", "a" * 300])
def test_name_that_no_host_can_have_is_refused(name: str) -> None:
    with pytest.raises(InventoryError, match="is not a name of a host"):
        slurm_hosts(f"NodeName={name} State=IDLE\n")
    with pytest.raises(InventoryError, match="is not a name of a host"):
        kubernetes_hosts(json.dumps({"items": [{"metadata": {"name": name}}]}))


def test_other_output_of_scontrol_is_refused_with_its_line() -> None:
    with pytest.raises(
        InventoryError, match=r"line 2 of scontrol's answer has no NodeName: 'slurm_load_node"
    ):
        slurm_hosts("NodeName=n1 State=IDLE\nslurm_load_node error\n")
    assert slurm_hosts("No nodes in the system\n") == []


def test_nodes_of_kubernetes_have_labels_taints_and_addresses() -> None:
    found = by_name(kubernetes_hosts(json.dumps(KUBERNETES)))
    assert list(found) == ["gpu-1", "gpu-2", "cpu-1", "control-1"]
    first, second = found["gpu-1"], found["gpu-2"]
    assert first.address == "192.0.2.11"
    assert first.variables["kubernetes_labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert first.variables["kubernetes_capacity"]["nvidia.com/gpu"] == "8"
    assert first.variables["kubernetes_addresses"] == {
        "InternalIP": "192.0.2.11",
        "Hostname": "gpu-1",
    }
    assert (first.variables["kubernetes_ready"], first.variables["kubernetes_unschedulable"]) == (
        True,
        False,
    )
    assert (second.variables["kubernetes_ready"], second.variables["kubernetes_unschedulable"]) == (
        False,
        True,
    )
    assert second.variables["kubernetes_taints"] == [
        "node.kubernetes.io/unschedulable:NoSchedule",
        "pool=gpu:NoExecute",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"items": 1}',
        '{"items": [1]}',
        '{"items": [{"metadata": {"name": "a", "labels": [1]}}]}',
        '{"items": [{"metadata": {"name": "a"}, "status": {"addresses": [{"type": "InternalIP"}]}}]}',
    ],
)
def test_other_output_of_kubectl_is_refused(text: str) -> None:
    with pytest.raises(InventoryError, match="kubectl's answer is no list of nodes"):
        kubernetes_hosts(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["items", "metadata", "name", "labels", "spec", "status", "taints", "addresses"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_answer_of_kubectl_is_a_traceback(value: Any) -> None:
    with contextlib.suppress(InventoryError):
        kubernetes_hosts(json.dumps(value))
