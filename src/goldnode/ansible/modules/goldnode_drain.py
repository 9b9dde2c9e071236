#!/usr/bin/python
# Copyright: the goldnode authors
# SPDX-License-Identifier: Apache-2.0
"""What ansible-doc shows of the action plugin of the same name, which runs on the controller only. Nothing here is ever run."""

DOCUMENTATION = r"""
module: goldnode_drain
short_description: Take a node out of service, and back
description:
  - Tells the site's scheduler that a node leaves or comes back. Runs on the controller; nothing is executed on the node.
  - A node that somebody else had already drained stays drained at O(state=resumed).
  - How is said by inventory variables. C(goldnode_drain) is V(none) (the default; nobody is told), V(command), V(slurm) or V(kubectl).
  - With V(command), C(goldnode_drain_command) and C(goldnode_resume_command) are lists of words; the node's name is added to both, and the
    reason to the first. Its exit status 3 says that the node was drained already.
  - C(goldnode_drain_name) is the scheduler's name of the host, by default its name in the inventory.
options:
  state:
    description: What the node is to be.
    type: str
    choices: [drained, resumed]
    required: true
  reason:
    description: What the scheduler shows as the reason of a drain.
    type: str
    default: goldnode
attributes:
  check_mode: {support: none, description: It is skipped in check mode.}
author: [the goldnode authors]
"""

EXAMPLES = r"""
- name: Take the node out of service
  goldnode_drain:
    state: drained
    reason: "goldnode: another kernel starts with the next boot"
"""

RETURN = r"""
ansible_facts:
  description: Whether the node was in service before the drain, as C(goldnode_was_in_service).
  returned: when O(state=drained)
  type: dict
"""
