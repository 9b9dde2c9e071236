#!/usr/bin/python
# Copyright: the goldnode authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of Ansible to the survey of a node that has no class yet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: goldnode_survey
short_description: Survey a running node, read-only
description:
  - Reads packages, apt sources and pins, drivers, other out-of-tree modules, GPUs and settings of a node, and changes nothing.
  - C(goldnode adopt) calls it and proposes a class and a stack from the result.
options:
  program:
    description: The on-node program that does the work, in base64; the action plugin of the same name supplies it.
    type: str
    required: true
attributes:
  check_mode: {support: full, description: It changes nothing in either mode.}
author: [the goldnode authors]
"""

EXAMPLES = r"""
- name: Survey the node
  goldnode_survey:
"""

RETURN = r"""
survey:
  description: Description of the node (schema goldnode.survey/1).
  returned: always
  type: dict
"""

import base64
import json
import subprocess
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Run the program and return its survey."""
    module = AnsibleModule(
        argument_spec={"program": {"type": "str", "required": True}}, supports_check_mode=True
    )
    path = Path(module.tmpdir) / "goldnode-node"
    path.write_bytes(base64.b64decode(module.params["program"]))
    # -I and -S: nothing of the caller's environment or of site-packages, as the first line of the program. Not with
    # `run_command`, which can lose the output (goldnode_state.py).
    command = [sys.executable, "-I", "-S", str(path), "answer"]
    done = subprocess.run(
        command,
        input=json.dumps({"operation": "survey"}).encode(),
        capture_output=True,
        check=False,
    )
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    try:
        survey = json.loads(out)["survey"]
    except (ValueError, KeyError):
        module.fail_json(
            msg=f"goldnode-node gave no survey (exit status {done.returncode}): {err.strip()[-2000:] or out[-2000:]}"
        )
    module.exit_json(changed=False, survey=survey)


if __name__ == "__main__":
    main()
