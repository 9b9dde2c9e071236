"""The remedy of a finding as data: a text for a person, and the steps it asks for, in the order in which they are taken.

The tests carry the steps out in the simulator and check again (tests/faults/carried.py): a remedy that makes a node worse fails there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple


POLICY = "policy_apply"  # `goldnode-node policy apply` on the node
SITE = "site"  # site.yml for the host; it includes what POLICY does
GPU_RESET = "gpu_reset"  # `nvidia-smi --gpu-reset`, or a reset through the bus
REBOOT = "reboot"
COMMAND = "command"  # a command on the node that the text names: load a module, restart a service
ACKNOWLEDGE = "ack"  # `goldnode-node ack`
REPAIR = "repair"  # a person works on the hardware or its firmware; the node is powered off for that
PERSON = "person"  # a person has to look, or to decide
STEPS = (POLICY, SITE, GPU_RESET, REBOOT, COMMAND, ACKNOWLEDGE, REPAIR, PERSON)
# Steps that make pending modes current: the GPU, or the whole node, starts again.
RESTARTS = (GPU_RESET, REBOOT, REPAIR)


class Remedy(str):
    """A text for a person that knows its steps. It is a string, so that a verdict carries it as one.

    `before`: what the next boot or GPU reset would do wrong, as a clause. The steps of such a remedy come before any restart, also before
    one that another finding asks for (:func:`.finding.ordered`).
    """

    steps: Tuple[str, ...]
    before: Optional[str]

    def __new__(cls, text: str, *steps: str, before: Optional[str] = None) -> Remedy:
        found = super().__new__(cls, text)
        found.steps, found.before = steps, before
        return found

    def about(self, subject: str) -> Remedy:
        """The same remedy for one subject."""
        return Remedy(self.replace("SUBJECT", subject), *self.steps, before=self.before)

    def restarts(self) -> bool:
        """Whether it reboots the node, powers it off, or resets a GPU."""
        return any(step in RESTARTS for step in self.steps)
