#!/usr/bin/python
# Copyright: the goldnode authors
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name. This file is never executed."""

DOCUMENTATION = r"""
module: goldnode_drain
short_description: Take a node out of service, and back
description:
  - Takes a node out of service at the site's scheduler, and returns it. The scheduler is asked from the controller.
  - The state before the drain is recorded first, on the node (C(/var/lib/goldnode/drain.json)), in the scheduler's reason, and with the
    records of runs. So the next run ends a run that was killed between drain and return.
  - A node that another had already drained stays drained at O(state=resumed), with its reason, and RV(ignore:msg) names the
    command that returns it. So does one that another has taken over since.
  - Inventory variables define how. C(goldnode_drain) is V(none) (the default; no scheduler is notified), V(command), V(slurm) or V(kubectl).
  - With V(command), C(goldnode_drain_command) and C(goldnode_resume_command) are lists of words; the node's name is added to both, and the
    reason to the first. Its exit status 3 says that the node was drained already; a line C(reason: TEXT) that it then prints says for what.
  - C(goldnode_drain_name) is the scheduler's name of the host, by default its name in the inventory.
  - A drain by a run on another controller counts as left behind after 28 hours, or at once with C(goldnode_take_over).
options:
  state:
    description:
      - V(drained) and V(resumed) are what the node is to be.
      - V(left) reports what an earlier run has left out of service, and changes no state. Where the drain of that run does not hold the node
        any more, its record is removed and the fact C(goldnode_left) is empty.
      - V(waits) ends the turn of a node that stays out of service on purpose, and changes no state.
      - In a play with C(any_errors_fatal), V(drained) fails if a node of an earlier batch was drained and has not come back. Ansible itself
        ends such a play at failed hosts only, not at unreachable ones.
    type: str
    choices: [drained, left, waits, resumed]
    required: true
  reason:
    description: Why the node is drained. The scheduler shows it behind the mark of the run, V(goldnode run ID of CONTROLLER at TIME).
    type: str
    default: goldnode
  after:
    description:
      - With O(state=resumed), the cause whose tests must have passed (C(return_tests) of the class). The results are in
        C(.goldnode/canary) of the controller. Until then the task fails, and the node stays out of service.
      - Nothing is asked without a scheduler, and of a node that no run has drained.
    type: str
    choices: [repair, xid, rollout, absence]
  work:
    description:
      - Kind of work for which the run asks the queue of the fleet for the node, at V(drained) and V(resumed). The nodes of a batch are granted
        together. Without it, and where the site has no store, nothing is asked. A node that a rollout holds is not asked for.
    type: str
    choices: [apply, rollback]
  since:
    description: Time (UTC) before which no result counts, if it is later than the drain.
    type: str
    default: ''
attributes:
  check_mode: {support: none, description: It is skipped in check mode.}
author: [the goldnode authors]
"""

EXAMPLES = r"""
- name: Take the node out of service
  goldnode_drain:
    state: drained
    reason: another kernel starts with the next boot
"""

RETURN = r"""
ansible_facts:
  description: Whether the node was in service before the drain, as C(goldnode_was_in_service); which run has left it, as C(goldnode_left).
  returned: always
  type: dict
empty:
  description: Whether no work is left on the node. A drain of a rollout does not wait for that where the scheduler goes on by itself.
  returned: always
  type: bool
drain:
  description:
    - Result of the drain or the return. C(changed), C(in_service) before the drain, C(ours) where a run's drain holds the node now,
      C(left) by which earlier run it was out of service, C(note) for a person, and C(record) (schema goldnode.drain/1).
  returned: always
  type: dict
"""
