"""Kubernetes: drain with kubectl, and read the pods that a drain has to wait for."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain.protocol import DrainState, Run, SchedulerDrainer, run
from goldnode.fleet.drain.questions import Ask, ScheduledNode, expected_end
from goldnode.node.ground.drained import mark
from goldnode.node.ground.text import phrase

# Controllers of pods that start the same pod on another node: an eviction does not end their work.
REPLACED = {"ReplicaSet", "ReplicationController", "StatefulSet"}
OF_NODE = {"DaemonSet", "Node"}  # their pods stay on a drained node


CORDONED = ("nodes", "--field-selector=spec.unschedulable=true")


def described(run: Run | Ask, *what: str) -> dict[str, Any]:
    """Return what ``kubectl get`` has of `what`, with its managed fields, by which another user's cordon is recognised.

    kubectl hides them without a flag since 1.21. That of Debian 12 is 1.20, does not know the flag, and shows them.
    """
    words = ["kubectl", "get", *what, "-o", "json"]
    try:
        text = run([*words, "--show-managed-fields"])
    except GoldnodeError as problem:
        if "unknown flag: --show-managed-fields" not in str(problem):
            raise
        text = run(words)
    document: dict[str, Any] = json.loads(text)
    return document


@dataclass
class KubectlDrainer(SchedulerDrainer):
    """Drain with kubectl: cordon the node and set the annotation with the reason in one change, then drain.

    A cordon without the mark of a run belongs to another user.
    """

    run: Run = run
    name = "kubectl"

    ANNOTATION = "goldnode/drained-for"
    MANAGER = "goldnode"  # by this name the API server notes who set a field last

    def state_of(self, node: str) -> DrainState:
        return self.state_in(described(self.run, "node", node))

    def state_in(self, document: Mapping[str, Any]) -> DrainState:
        """Return the state of a node as the API server describes it."""
        metadata = document.get("metadata", {})
        version, why = (
            str(metadata.get("resourceVersion", "")),
            str((metadata.get("annotations") or {}).get(self.ANNOTATION, "")),
        )
        if not document.get("spec", {}).get("unschedulable", False):
            return DrainState(True, "schedulable", "", version)
        owners = [
            row.get("manager")
            for row in metadata.get("managedFields") or ()
            if "f:unschedulable" in ((row.get("fieldsV1") or {}).get("f:spec") or {})
        ]
        if mark(why) and owners and self.MANAGER not in owners:
            why = f"cordoned again by {owners[0]}"  # our annotation has outlived our cordon
        return DrainState(False, "cordoned", why, version)

    def take(self, node: str, why: str, seen: DrainState) -> bool:
        return self._patch(node, seen, why, True)

    def give(self, node: str, seen: DrainState, note: str) -> bool:
        return self._patch(node, seen, None, None)

    def _patch(
        self, node: str, seen: DrainState, why: str | None, unschedulable: bool | None
    ) -> bool:
        """Change reason and cordon together; False where the node has changed since it was seen."""
        # With this version the API server refuses the patch if anyone has changed the node since it was read.
        metadata = {"resourceVersion": seen.version} if seen.version else {}
        patch = {
            "metadata": {**metadata, "annotations": {self.ANNOTATION: why}},
            "spec": {"unschedulable": unschedulable},
        }
        try:
            self.run(
                [
                    "kubectl",
                    "patch",
                    "node",
                    node,
                    "--type=merge",
                    f"--field-manager={self.MANAGER}",
                    "-p",
                    json.dumps(patch),
                ]
            )
        except GoldnodeError as problem:
            if "Conflict" in str(problem) or "object has been modified" in str(problem):
                return False
            raise
        return True

    def finish(self, node: str) -> None:
        self.run(
            [
                "kubectl",
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--timeout=3600s",  # `run` gives up after an hour as well
            ]
        )

    def settle(self, node: str) -> bool:
        owners = {pod.owner for pod in pods(self.run, node)} - OF_NODE
        if owners - REPLACED:
            return False  # work that would not be continued elsewhere
        evict = [
            "kubectl",
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=60s",  # the caller asks again, and must not wait for a disruption budget
        ]
        try:
            if owners:
                self.run(evict)
        except GoldnodeError as problem:
            # A disruption budget: the drain is repeated.
            if "timed out" in str(problem) or "timeout" in str(problem):
                return False
            raise
        return True

    def marked(self) -> dict[str, str]:
        rows = [
            (str(row["metadata"]["name"]), self.state_in(row))
            for row in described(self.run, *CORDONED)["items"]
        ]
        return {name: seen.reason for name, seen in rows if seen.held}

    def nodes(
        self, ask: Ask, wanted: Collection[str], at: float, reservation: str | None = None
    ) -> dict[str, ScheduledNode]:
        """See :class:`SchedulerDrainer`.

        A node in service has work if a pod runs there that nothing starts elsewhere, such as one of a
        Job. A cordoned node has work until the last pod has left that its drain evicts.
        """
        names = ask(
            ["kubectl", "get", "nodes", "--no-headers", "-o", "custom-columns=NAME:.metadata.name"]
        )
        # Whole nodes only of those that are cordoned: the JSON of one has 10 KB and more.
        rows = described(ask, *CORDONED)["items"]
        states = {
            name: DrainState(True, "schedulable", "") for name in names.split() if name in wanted
        }
        for row in rows:
            if (name := str(row["metadata"]["name"])) in states:
                states[name] = self.state_in(row)
        ends: dict[str, float] = {}
        for pod in pods(ask):
            state = states.get(pod.node)
            if (
                state is None
                or pod.owner in OF_NODE
                or (state.in_service and pod.owner in REPLACED)
            ):
                continue
            ends[pod.node] = max(ends.get(pod.node, 0.0), pod.end)
        return {
            name: ScheduledNode(
                state.in_service,
                expected_end(ends[name], at) if name in ends else 0.0,
                state.why,
            )
            for name, state in states.items()
        }


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod that has not ended: its node, the kind of its controller, and the time at which it must end."""

    node: str
    owner: str
    end: float  # seconds since the epoch; infinite without a limit


def pods(run: Run, node: str | None = None) -> list[NodePod]:
    """Return the pods of a node, or of all nodes, that have not ended. One question, a line for each pod."""
    columns = (
        "NODE:.spec.nodeName",
        "START:.status.startTime",
        "LIMIT:.spec.activeDeadlineSeconds",
        "BY:.metadata.ownerReferences[?(@.controller==true)].kind",
    )
    chosen = phrase("spec.nodeName={},", node)
    text = run(
        [
            "kubectl",
            "get",
            "pods",
            "--all-namespaces",
            f"--field-selector={chosen}status.phase!=Succeeded,status.phase!=Failed",
            "--no-headers",
            "-o",
            f"custom-columns={','.join(columns)}",
        ]
    )
    running = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[0] != "<none>":
            running.append(NodePod(words[0], words[3], _end(words[1], words[2])))
    return running


def _end(start: str, limit: str) -> float:
    try:
        return datetime.fromisoformat(start).timestamp() + float(limit)
    except ValueError:
        return math.inf
