"""What NVML says of the GPUs of a node under test, asked as goldnode's fixtures for testinfra ask it (goldnode.testing.testinfra.nvml).

That script is plain ctypes, run by the node's python3: nothing of goldnode's own readers, nothing of pynvml. Each value is a number, a list,
a text, or ``{"rc": N}`` with NVML's return code where there is none.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.nodes.reader import Document, Node, not_here

from goldnode.testing.testinfra.nvml import SCRIPT

NOT_SUPPORTED, NO_FUNCTION = 3, 13
COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive_process": 3}


def gpus(node: Node) -> list[Document]:
    """What NVML on the node says of each GPU, with `wanted`: the policy that holds for it. Ends the test where there is no NVML to ask.

    On a machine of real GPUs an NVML that does not answer is a failure, never a skip.
    """
    simulator = bool(node.host.file("/opt/goldnode-simulator").exists)
    if not simulator:
        if node.document["simulated"]:
            not_here("the class declares simulated GPUs, and no simulator is on the node")
        node.machine_only("GPUs cannot be asked")
    # A wedged driver must not hang the suite: timeout's own exit status is 124.
    reported = json.loads(node.out("timeout -k 5 120 python3 -I -c %s", SCRIPT))
    if "gpus" not in reported:
        pytest.fail(f"NVML does not answer: {reported}", pytrace=False)
    found: list[Document] = reported["gpus"]
    lost = [gpu for gpu in found if "rc" in gpu]
    assert lost == [], "GPUs that NVML lists and cannot read"
    for gpu in found:
        gpu["wanted"] = policy_of(node.document["policy"], gpu)
    return found


def policy_of(policy: Document, gpu: Document) -> Document:
    """The policy with the overrides for this GPU on top, by PCI id of the model or by UUID."""
    found = dict(policy)
    for override in policy.get("overrides", ()):
        if gpu["uuid"] == override.get("uuid") or gpu["pci_id"] in override.get("pci_ids", ()):
            found.update(
                {
                    key: value
                    for key, value in override.items()
                    if key not in ("model", "uuid", "pci_ids")
                }
            )
    if found.get("sharing") in ("exclusive", "mps"):
        found["compute_mode"] = "exclusive_process"
    return found


def unexposed(value: Any) -> bool:
    """Whether the driver has no getter for it, as against one that failed."""
    return isinstance(value, dict) and value["rc"] in (NOT_SUPPORTED, NO_FUNCTION)
