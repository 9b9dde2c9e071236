"""Remedies for GPU modes that change with the next boot or reset (ECC and MIG).

A remedy follows from the current, the pending and the declared mode. Sources:

* ECC takes effect after the next reboot, with the pending mode (nvml.h, nvmlDeviceSetEccMode
  and nvmlDeviceGetEccMode).
* MIG changes at once if the driver can reset the GPU, which requires that nothing uses it (nvml.h,
  nvmlDeviceSetMigMode). A GPU in use changes with its next reset or boot.
* Ampere GPUs retain the MIG mode across a boot, later GPUs do not (MIG User Guide). For the latter,
  `goldnode-policy.service` enables it again at boot.
"""

from __future__ import annotations

from ..ground.typed import NamedTuple
from .remedy import PERSON, POLICY, REBOOT, Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Sequence


ECC, MIG = "ecc", "mig"
SETTERS = {ECC: "nvidia-smi -i SUBJECT -e", MIG: "nvidia-smi -i SUBJECT -mig"}


class Mode(NamedTuple):
    """One mode of one GPU: now, after the next restart, and as declared (None: not declared)."""

    gpu: str
    current: bool
    pending: bool
    declared: Optional[bool]

    @property
    def spoiled(self) -> bool:
        """Return whether the mode is right now, and a restart makes it wrong."""
        return self.current == self.declared != self.pending

    @property
    def waits(self) -> bool:
        """Return whether only the restart is missing."""
        return self.pending == self.declared != self.current

    @property
    def wrong(self) -> bool:
        """Return whether the mode is wrong now and stays wrong."""
        return self.declared is not None and self.current == self.pending != self.declared


def remedy(item: str, modes: Sequence[Mode]) -> Optional[Remedy]:
    """Return the remedy for one mode of all GPUs of a node, or None if each is as declared. Pure.

    :param item: `ecc` or `mig`.
    """
    name = item.upper()
    spoiled = [mode for mode in modes if mode.spoiled]
    waits = [mode for mode in modes if mode.waits]
    wrong = [mode for mode in modes if mode.wrong]
    if not (spoiled or waits or wrong):
        undeclared = [
            mode for mode in modes if mode.declared is None and mode.current != mode.pending
        ]
        return open_remedy(item, undeclared[0]) if undeclared else None
    texts: List[str] = []
    steps: List[str] = []
    apply = "`goldnode-node policy apply` on the node" + (
        " while nothing uses the GPU" if item == MIG else ""
    )
    if spoiled:
        texts.append(
            f"Run site.yml, or {apply}, before any reboot or GPU reset: "
            f"it sets the pending {name} mode back ({_mode_list(spoiled)}), and needs no reboot."
        )
    if wrong:
        texts.append(
            f"{'It also' if spoiled else f'Run site.yml, or {apply}: it'} switches {name} ({_mode_list(wrong)})."
        )
    if spoiled or wrong:
        steps.append(POLICY)
    # Unlike MIG, ECC never changes without a reboot.
    if waits or (wrong and item == ECC):
        then = "Then reboot" if steps else "Reboot"
        texts.append(
            f"{then} the node in its turn (site.yml with `goldnode_reboot=true`): {name} changes "
            "with that boot."
        )
        steps.append(REBOOT)
    elif wrong:
        texts.append(f"A GPU that still has {name} pending afterwards needs a reboot.")
    return Remedy(" ".join(texts), *steps, before=_before(item, spoiled, wrong))


def _before(item: str, spoiled: Sequence[Mode], wrong: Sequence[Mode]) -> Optional[str]:
    """Return the harm of a restart before the policy is applied, or None if it is harmless and useful."""
    parts = [f"it would turn {item.upper()} {_after(spoiled)}"] if spoiled else []
    # The service at boot fixes a wrong MIG mode. A wrong ECC mode would need a second boot.
    parts += [f"it would leave {item.upper()} {_after(wrong)}"] if wrong and item == ECC else []
    return " and ".join(parts) or None


def spoiling(item: str, modes: Sequence[Mode]) -> Optional[str]:
    """Return the modes that the next boot would make wrong, or None."""
    spoiled = [mode for mode in modes if mode.spoiled]
    return f"the next boot would turn {item.upper()} {_after(spoiled)}" if spoiled else None


def open_remedy(item: str, mode: Mode) -> Remedy:
    """Return the remedy for an undeclared mode that a restart would change.

    A person must decide which value is right.
    """
    setter = f"{SETTERS[item]} {int(mode.current)}"
    return Remedy(
        f"Declare `policy.{item}` in the class and run site.yml before the next reboot or GPU "
        f"reset. To keep {item.upper()} as it is, "
        f"set it back: `{setter}`.",
        PERSON,
    )


def _mode_list(modes: Sequence[Mode]) -> str:
    return "; ".join(_grouped(modes, lambda mode: bool(mode.declared)))


def _after(modes: Sequence[Mode]) -> str:
    return " and ".join(_grouped(modes, lambda mode: mode.pending))


def _grouped(modes: Sequence[Mode], value: Callable[[Mode], bool]) -> List[str]:
    """Return ``on for GPU 0, 1``, for each value."""
    texts = []
    for wanted, name in ((True, "on"), (False, "off")):
        gpus = [mode.gpu for mode in modes if value(mode) is wanted]
        if gpus:
            texts.append(f"{name} for GPU {', '.join(gpus)}")
    return texts
