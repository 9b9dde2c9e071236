#!/usr/bin/python
# Copyright: the goldnode authors
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name. This file is never executed."""

DOCUMENTATION = r"""
module: goldnode_rollout
short_description: Take a node over for one run of a rollout, and observe it
description:
  - The playbook C(rollout.yml), which C(goldnode rollout run) starts, uses it.
  - A run that takes a node over ends the right of every earlier run to change that node. So a run that its controller has left, on this
    machine or another one, and the run of the next controller do not work on one node at the same time.
  - The variable C(goldnode_claim) is the token of the run. It is in C(/run/goldnode/claim) on the node, until the node boots.
options:
  operation:
    description:
      - V(claim) takes the node over. An application that still runs there ends first.
      - V(confirm) fails if another run has taken the node over since.
      - V(observe) reads the lock in force, the boot, and the verdict of that boot.
    type: str
    choices: [claim, confirm, observe]
    required: true
  wait:
    description:
      - Of V(claim), the seconds that an application of another run has to end.
      - Of V(observe), the seconds that the check of this boot has to give its verdict. Where it gives none, the node is judged then. With
        V(0) the node is only read.
    type: int
    default: 0
attributes:
  check_mode: {support: full, description: It changes nothing of the class in either mode.}
author: [the goldnode authors]
"""

EXAMPLES = r"""
- name: Observe the node
  goldnode_rollout:
    operation: observe
"""

RETURN = r"""
boot:
  description: The boot of the node, as observations name it.
  returned: when O(operation=claim)
  type: str
observation:
  description: C(node), C(at), C(boot_id), C(digest), C(verdict) (V(pass), V(fail), V(unknown)), and the findings C(software) and C(hardware).
  returned: when O(operation=observe)
  type: dict
"""
