"""Inventory plugin `goldnode_kubernetes`: the nodes of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from goldnode.ansible.program_inventory import ProgramInventory
from goldnode.inventory.schedulers import KUBERNETES_WORDS, SchedulerHost, kubernetes_hosts

DOCUMENTATION = """
name: goldnode_kubernetes
short_description: Hosts from kubectl get nodes
description:
  - Adds every node of a cluster, with its labels, taints, capacity, addresses and readiness as variables.
  - C(groups) and C(keyed_groups) put the nodes into the groups of their classes.
extends_documentation_fragment: [constructed]
options:
  plugin:
    description: The name of this plugin.
    required: true
    type: str
    choices: [goldnode_kubernetes, goldnode.node.goldnode_kubernetes]
  program:
    description: kubectl, with words before it and options after it. The plugin appends C(get nodes --output=json).
    type: list
    elements: str
    default: [kubectl]
"""


class InventoryModule(ProgramInventory):
    """Runs kubectl."""

    NAME = "goldnode_kubernetes"
    WORDS: ClassVar[Sequence[str]] = KUBERNETES_WORDS

    def hosts(self, text: str) -> list[SchedulerHost]:
        """Return the nodes in kubectl's output."""
        return kubernetes_hosts(text)
