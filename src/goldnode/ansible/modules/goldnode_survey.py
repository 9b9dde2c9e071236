#!/usr/bin/python
# Copyright: the goldnode authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of Ansible to the survey of a node that has no class yet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: goldnode_survey
short_description: Look at a running node, read-only
description:
  - Reads packages, apt sources and pins, drivers, other out-of-tree modules, GPUs and settings of a node, and changes nothing.
  - C(goldnode adopt) calls it and proposes a class and a stack of what it tells.
options: {}
attributes:
  check_mode: {support: full, description: It changes nothing in either mode.}
author: [the goldnode authors]
"""

EXAMPLES = r"""
- name: Look at the node
  goldnode_survey:
"""

RETURN = r"""
survey:
  description: What the node is (schema goldnode.survey/1).
  returned: always
  type: dict
"""

import signal

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.goldnode.node.host import Host
from ansible.module_utils.goldnode.node.survey import survey


def main() -> None:
    """Run the survey and return its result."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # while it is ignored, the exit status of a program is lost
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, survey=survey(Host("/")))


if __name__ == "__main__":
    main()
