"""Inventory plugin `goldnode_slurm`: the nodes of a Slurm cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from goldnode.ansible.program_inventory import ProgramInventory
from goldnode.inventory.schedulers import SLURM_WORDS, SchedulerHost, slurm_hosts

DOCUMENTATION = """
name: goldnode_slurm
short_description: Hosts from scontrol show node
description:
  - Adds every node that Slurm has, with its features, partitions, generic resources and states as variables.
  - C(groups) and C(keyed_groups) put the nodes into the groups of their classes.
  - Texts of persons (Reason, Comment, Extra) are not read.
extends_documentation_fragment: [constructed]
options:
  plugin:
    description: The name of this plugin.
    required: true
    type: str
    choices: [goldnode_slurm, goldnode.node.goldnode_slurm]
  program:
    description: scontrol, with words before it. The plugin appends C(--all show node --oneliner).
    type: list
    elements: str
    default: [scontrol]
"""


class InventoryModule(ProgramInventory):
    """Runs scontrol."""

    NAME = "goldnode_slurm"
    WORDS: ClassVar[Sequence[str]] = SLURM_WORDS

    def hosts(self, text: str) -> list[SchedulerHost]:
        """Return the nodes in scontrol's output."""
        return slurm_hosts(text)
