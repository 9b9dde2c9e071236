#!/usr/bin/python
# Copyright: the goldnode authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of Ansible to the engine on a node: pass the arguments in, make one call, return the result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: goldnode_state
short_description: Plan a node against its node class, or apply one part of that plan
description:
  - Observes the node, compares it with its class document and returns the difference as a plan; with O(operation=apply), applies one
    part of it and proves that nothing of that part is left.
  - Called through the action plugin of the same name, which supplies the class document and the on-node program.
options:
  operation:
    description:
      - Operation to perform. V(check) is of the action plugin. It has the program on the node judge that node, once the shell there has found the program to
        be this version's and root's alone, and returns RV(rc) and what was printed.
      - V(tags) is of the action plugin as well, and asks no node. It fails if the playbook of the task is the only one of the run. It is for a task
        that runs if C(--tags) selects no part.
      - V(report) fetches the capture and the verdict of the node, changes nothing there, and writes them into the inbox of the fleet's data
        on the controller, for C(goldnode fleet ingest). It needs no class document.
    type: str
    choices: [plan, apply, check, tags, report]
    default: plan
  state:
    description:
      - V(present) makes the node what its class says.
      - V(absent) removes everything that goldnode applied, as the node's own class document and record say; O(document) is not read, and
        O(operation=apply) applies the whole removal and ignores O(part).
      - V(earlier) takes the node back to a class document that it has had and kept; O(document) is not read. C(rollback.yml) uses it.
    type: str
    choices: [present, absent, earlier]
    default: present
  part:
    description: The part of the plan to apply; the name of the role that owns it.
    type: str
    choices: [node_class, kernel, gpu_driver, container_runtime, gpu_policy, host_tuning, storage, sanity]
  document:
    description: The class document (schema goldnode.class/1, see C(goldnode schema class)); needed with O(state=present).
    type: dict
  to:
    description:
      - With O(state=earlier), the beginning of the digest of the lock, class document or kept document to return to. Empty for the one before.
    type: str
    default: ""
  rollback:
    description: Of the action plugin; it implies O(state=earlier) and overrides C(goldnode_state) of the host.
    type: bool
    default: false
  tolerate:
    description:
      - Of the action plugin. Codes of refusals with which a plan of O(rollback) does not fail, because what they name will have ended
        before anything is applied.
    type: list
    elements: str
    default: []
  program:
    description:
      - The on-node program that does the work. Where the node does not have the one of that digest and O(program.content) is not given either,
        nothing is done and RV(needs_program) is returned.
    type: dict
    required: true
    suboptions:
      sha256: {description: "Digest of the file, V(sha256:…).", type: str, required: true}
      content: {description: The file in base64., type: str}
  report:
    description:
      - Of the action plugin. Return the node's report too, which the plugin writes to the fleet's data. It is set if the site file or
        C(GOLDNODE_FLEET_DATA) names the directory of these.
    type: bool
    default: false
  fresh:
    description: With O(operation=report), check the node now, even if the last check is younger than 15 minutes.
    type: bool
    default: false
  root:
    description:
      - Of the action plugin. A root filesystem on the machine that the module runs on, which is made what its class says in place of that machine;
        only what can be true of one that does not run.
    type: path
  sources:
    description: With O(root), the file in it with the sources that apt takes packages from, and from no other.
    type: str
  claim:
    description:
      - Of the action plugin. The token of a run of a rollout; an apply is refused if another run has taken the node over, see M(goldnode_rollout).
    type: str
    default: ""
  lock_timeout:
    description: Seconds to wait for dpkg's lock, or for another run of goldnode on the node.
    type: int
    default: 120
attributes:
  check_mode: {support: full, description: A plan changes nothing; apply in check mode returns the plan.}
  diff_mode: {support: full, description: Each resource carries what it changes, before and after.}
author: [the goldnode authors]
"""

EXAMPLES = r"""
- name: Ask the node for its plan
  goldnode_state:
    operation: plan

- name: Apply the kernel's part
  goldnode_state:
    operation: apply
    part: kernel
"""

RETURN = r"""
node_class:
  description: Declared state of the host.
  returned: always
  type: dict
  contains:
    class: {description: Name of the node class., type: str, sample: a100_sxm4_40gb}
    class_digest: {description: Digest of its class document., type: str}
    lock_digest: {description: Digest of the lock that the class document was made with., type: str}
resources:
  description:
    - One entry per resource that differs from the class, in the order in which they are applied. Of a plan and in check mode nothing
      is changed, and C(would_change) says that applying would.
    - Contents of more than a few lines appear as a digest and a count of lines; C(--diff) shows them in full.
  returned: unless the node refused
  type: list
  elements: dict
  contains:
    resource: {description: "What differs: a path, a package set, a module, a setting.", type: str, sample: /etc/modprobe.d/goldnode-blacklist.conf}
    kind: {description: The kind of change., type: str, sample: file.write}
    part: {description: The part (role) that it belongs to., type: str, sample: gpu_driver}
    phase: {description: "Where it can be true: V(image) in a root filesystem, V(boot) on a running system, V(device) with the GPU.", type: str}
    changed: {description: Whether it was changed., type: bool}
    would_change: {description: Whether applying would change it., type: bool}
    reason: {description: "Why, as a rule V(want …, have …).", type: str}
    before: {description: Present content; V(null) when there is no content., type: str}
    after: {description: Wanted content; V(null) when there is no content., type: str}
    told: {description: Message of the change itself., type: str}
    error: {description: "Why the change failed, in one line; the whole of it is RV(ignore:msg).", type: str}
    seconds: {description: How long the change took; V(null) for what was not applied., type: float}
part:
  description: The part that was applied.
  returned: when O(operation=apply)
  type: str
refusals:
  description: Why nothing was touched, each with C(code), C(message) and C(remedy).
  returned: when the node refused
  type: list
  elements: dict
diff:
  description: Each resource before and after, whole.
  returned: when O(operation=apply)
  type: list
  elements: dict
ansible_facts:
  description: The plan after the operation, as C(goldnode_plan).
  returned: when neither the module failed nor the node refused
  type: dict
  contains:
    goldnode_plan: {description: The plan (schema goldnode.plan/1)., type: dict}
    goldnode_run: {description: Identifies the run that asked. The facts of another run are not used., type: str}
    goldnode_settled: {description: Whether neither a reboot nor a change that waits is left., type: bool}
    goldnode_matches: {description: Of a plan, whether this run has nothing to do on the host in its first play., type: bool}
verdict:
  description: The verdict of the boot check (schema goldnode.verdict/1), of a new check.
  returned: when O(operation=apply) changed something, with O(state=present); when O(operation=check) and the program gave one
  type: dict
rollback:
  description:
    - The documents that the node returns to and leaves, as C(to) and C(left), each with C(document), C(class), C(class_digest), C(lock_digest),
      C(stack), C(release), C(time) and C(good); C(again) says that it has returned there already. Also as C(goldnode_rollback) among the facts.
  returned: when O(rollback)
  type: dict
rc:
  description: The exit code of C(goldnode-node check); 10 where the program was not run.
  returned: when O(operation=check)
  type: int
needs_program:
  description: The node has another program than was asked for, none, or one that others than root can change; call again with O(program.content).
  returned: when that is so
  type: bool
gate:
  description: Actions of the gate on that verdict, line by line; it acts only when nothing is left to apply.
  returned: when O(operation=apply)
  type: list
  elements: str
"""

import base64
import contextlib
import hashlib
import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

# Where the program is once the first part was brought (node/state/domains/program.py).
# As in goldnode.node.state.model, which is not there where Ansible runs this file on a node.
PARTS = (
    "node_class",
    "kernel",
    "gpu_driver",
    "container_runtime",
    "gpu_policy",
    "host_tuning",
    "storage",
    "sanity",
)
INSTALLED = "/usr/lib/goldnode/goldnode-node"


def verified(path: str, digest: str) -> bool:
    """Return whether the program at `path` has the digest, and only root (or the user that runs this) can
    change or replace it.

    A directory that others can write to is accepted if it has the sticky bit.
    """
    owners = (0, os.geteuid())
    try:
        for parent in Path(path).parents:
            status = parent.lstat()
            shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners or shared:
                return False
        # Opened once, and judged by its handle: the path could lead elsewhere a moment later.
        # O_NONBLOCK, since a FIFO would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            status = os.fstat(handle)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid not in owners
                or status.st_mode & 0o022
            ):
                return False
            return "sha256:" + hashlib.sha256(opened.read()).hexdigest() == digest
    except OSError:
        return False


def program(module: AnsibleModule) -> str | None:
    """Return the path of the requested program: the installed one or the shipped one.

    None if neither matches.
    """
    wanted = module.params["program"]
    installed = (module.params["root"] or "") + INSTALLED
    if verified(installed, wanted["sha256"]):
        return installed
    # The caller asks first without it: it is most of what travels.
    if not wanted.get("content"):
        return None
    path = Path(module.tmpdir) / "goldnode-node"
    path.write_bytes(base64.b64decode(wanted["content"]))
    return str(path)


def user() -> str:
    """Return the name of the user that runs this; its number where the node has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def run_program(path: str, request: str) -> tuple[int, str, str]:
    """Give the program a request; return its exit status, standard output and standard error.

    AnsibleModule's `run_command` waits for output one second at a time. If a program answers and ends between such
    a wait and the check whether it still runs, the answer is lost (ansible/ansible#51393).
    """
    # -I and -S: nothing of the caller's environment or of site-packages, as the program's own first line has it.
    command = [sys.executable, "-I", "-S", path, "answer"]
    done = subprocess.run(command, input=request.encode(), capture_output=True, check=False)
    return (
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )


def main() -> None:
    """Pass the request to the program and return its answer."""
    module = AnsibleModule(
        argument_spec={
            "operation": {"type": "str", "choices": ["plan", "apply", "report"], "default": "plan"},
            "part": {
                "type": "str",
                "choices": list(PARTS),
            },
            "state": {
                "type": "str",
                "choices": ["present", "absent", "earlier"],
                "default": "present",
            },
            "to": {"type": "str", "default": ""},
            "rollback": {"type": "bool", "default": False},
            "tolerate": {"type": "list", "elements": "str", "default": []},
            "document": {"type": "dict"},
            "program": {
                "type": "dict",
                "required": True,
                "options": {
                    "sha256": {"type": "str", "required": True},
                    "content": {"type": "str"},
                },
            },
            "claim": {"type": "str", "default": ""},
            "report": {"type": "bool", "default": False},
            "fresh": {"type": "bool", "default": False},
            "root": {"type": "path"},
            "sources": {"type": "str"},
            "lock_timeout": {"type": "int", "default": 120},
        },
        required_if=[("operation", "apply", ["part"])],
        supports_check_mode=True,
    )
    if os.geteuid() != 0 and not module.params["root"]:
        module.fail_json(
            msg=f"goldnode needs root on the node, and Ansible is user {user()} there. Set `ansible_become: true` in the "
            "inventory, or run the command with --become (-b). With a password for sudo: --ask-become-pass (-K)."
        )
    request = {
        name: module.params[name]
        for name in (
            "operation",
            "part",
            "state",
            "document",
            "lock_timeout",
            "to",
            "claim",
            "report",
            "fresh",
            "root",
            "sources",
        )
    }
    if (
        request["operation"] != "report"
        and request["state"] == "present"
        and not request["document"]
    ):
        module.fail_json(msg="state is present but all of the following are missing: document")
    if module.check_mode and request["operation"] == "apply":
        request["operation"] = "plan"
    answer: dict[str, Any] = {}
    tried: str | None = None
    reported = ""
    while not answer:
        path = program(module)
        if path is None:
            module.exit_json(changed=False, needs_program=True)
        # Once more only where the file went while it was to run: a removal that outlived the run that had started
        # it was still at work. A program that was killed has installed its own copy by then, and that must not
        # go on as if nothing had happened.
        if tried is not None and (path == tried or Path(tried).exists()):
            module.fail_json(msg=f"goldnode-node gave no answer ({reported}")
        tried = path
        rc, out, err = run_program(str(path), json.dumps(request))
        reported = (
            f"exit status {rc}): {err.strip()[-2000:] or out.strip()[-2000:] or 'nothing was said'}"
        )
        with contextlib.suppress(ValueError):
            answer = json.loads(out)
    if answer.get("failed"):
        module.fail_json(**answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
