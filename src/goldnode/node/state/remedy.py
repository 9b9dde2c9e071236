"""The remedy of a finding as data: a text for a person, and its steps in order.

The tests perform the steps in the simulator and check again (tests/faults/carried.py). A remedy
that makes a node worse fails there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple


POLICY = "policy_apply"  # `goldnode-node policy apply` on the node
SITE = "site"  # site.yml for the host; includes POLICY
GPU_RESET = "gpu_reset"  # `nvidia-smi --gpu-reset`, or a reset through the bus
REBOOT = "reboot"
COMMAND = "command"  # a command on the node that the text names: load a module, restart a service
ACKNOWLEDGE = "ack"  # `goldnode-node ack`
REPAIR = "repair"  # a person repairs hardware or firmware, for which the node is powered off
PERSON = "person"  # a person must investigate or decide
STEPS = (POLICY, SITE, GPU_RESET, REBOOT, COMMAND, ACKNOWLEDGE, REPAIR, PERSON)
# The end of the remedy of a finding that another one of the same verdict explains.
FOLLOWS = "this follows from it."
# Steps that activate pending modes, because the GPU or the whole node restarts.
RESTARTS = (GPU_RESET, REBOOT, REPAIR)


class Remedy(str):
    """A text for a person that also has steps. It is a string, so that a verdict contains it as one.

    `before` is a clause that describes the harm of the next boot or GPU reset. The steps of such a
    remedy come before any restart, including one that another finding requires
    (:func:`.finding.ordered`).
    """

    steps: Tuple[str, ...]
    before: Optional[str]

    def __new__(cls, text: str, *steps: str, before: Optional[str] = None) -> Remedy:
        remedy = super().__new__(cls, text)
        remedy.steps, remedy.before = steps, before
        return remedy

    def about(self, subject: str) -> Remedy:
        """Return the same remedy for one subject."""
        return Remedy(self.replace("SUBJECT", subject), *self.steps, before=self.before)

    def restarts(self) -> bool:
        """Return whether it reboots the node, powers it off, or resets a GPU."""
        return any(step in RESTARTS for step in self.steps)
