"""Modes of a GPU that change with the next boot or reset, ECC and MIG: the remedy that follows from current, pending and declared.

Sources: ECC takes effect after the next reboot, and the pending mode is the one that follows it (nvml.h, nvmlDeviceSetEccMode and
nvmlDeviceGetEccMode). MIG is switched at once where the driver may reset the GPU, which nothing may use then (nvml.h,
nvmlDeviceSetMigMode); a GPU in use takes it with its next reset or boot. Ampere keeps the MIG mode over a boot, later GPUs do not
(MIG User Guide): there the boot's `goldnode-policy.service` switches it on again.
"""

from __future__ import annotations

from ..plain import NamedTuple
from .remedy import PERSON, POLICY, REBOOT, Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Sequence


ECC, MIG = "ecc", "mig"
SETTERS = {ECC: "nvidia-smi -i SUBJECT -e", MIG: "nvidia-smi -i SUBJECT -mig"}


class Mode(NamedTuple):
    """One mode of one GPU: on or off now, on or off after the next restart, and as the class declares it (None: not declared)."""

    gpu: str
    current: bool
    pending: bool
    declared: Optional[bool]

    @property
    def spoiled(self) -> bool:
        """Whether it is right now, and a restart makes it wrong."""
        return self.current == self.declared != self.pending

    @property
    def waits(self) -> bool:
        """Whether everything is done but the restart."""
        return self.pending == self.declared != self.current

    @property
    def wrong(self) -> bool:
        """Whether it is wrong now and stays so."""
        return self.declared is not None and self.current == self.pending != self.declared


def remedy(item: str, modes: Sequence[Mode]) -> Optional[Remedy]:
    """Return the remedy for one mode of all GPUs of a node; None where each is as declared. Pure.

    :param item: `ecc` or `mig`.
    """
    name = item.upper()
    spoiled = [mode for mode in modes if mode.spoiled]
    waits = [mode for mode in modes if mode.waits]
    wrong = [mode for mode in modes if mode.wrong]
    if not (spoiled or waits or wrong):
        undeclared = [mode for mode in modes if mode.declared is None and mode.current != mode.pending]
        return open_remedy(item, undeclared[0]) if undeclared else None
    texts: List[str] = []
    steps: List[str] = []
    apply = "`goldnode-node policy apply` on the node" + (
        " while nothing uses the GPU" if item == MIG else ""
    )
    if spoiled:
        texts.append(
            f"Run site.yml, or {apply}, before any reboot or GPU reset: "
            f"it sets the pending {name} mode back ({_said(spoiled)}), and needs no reboot."
        )
    if wrong:
        texts.append(
            f"{'It also' if spoiled else f'Run site.yml, or {apply}: it'} switches {name} ({_said(wrong)})."
        )
    if spoiled or wrong:
        steps.append(POLICY)
    if waits or (wrong and item == ECC):
        then = "Then reboot" if steps else "Reboot"
        texts.append(
            f"{then} the node in its turn (site.yml with `goldnode_reboot=true`): {name} changes with that boot."
        )
        steps.append(REBOOT)
    elif wrong:
        texts.append(f"A GPU that still has {name} pending afterwards needs a reboot.")
    return Remedy(" ".join(texts), *steps, before=_before(item, spoiled, wrong))


def _before(item: str, spoiled: Sequence[Mode], wrong: Sequence[Mode]) -> Optional[str]:
    """What a restart would do before the policy is applied; None where it does no harm and is not in vain."""
    parts = [f"it would turn {item.upper()} {_after(spoiled)}"] if spoiled else []
    # MIG that stays wrong is switched by the boot's own service; ECC would need a second boot.
    parts += [f"it would leave {item.upper()} {_after(wrong)}"] if wrong and item == ECC else []
    return " and ".join(parts) or None


def spoiling(item: str, modes: Sequence[Mode]) -> Optional[str]:
    """What the next boot would make wrong; None where it makes nothing wrong."""
    spoiled = [mode for mode in modes if mode.spoiled]
    return f"the next boot would turn {item.upper()} {_after(spoiled)}" if spoiled else None


def open_remedy(item: str, mode: Mode) -> Remedy:
    """The remedy where the class does not declare the mode, and a restart changes it: a person decides which is right."""
    setter = f"{SETTERS[item]} {int(mode.current)}"
    return Remedy(
        f"Declare `policy.{item}` in the class and run site.yml before the next reboot or GPU reset. To keep {item.upper()} as it is, "
        f"set it back: `{setter}`.",
        PERSON,
    )


def _said(modes: Sequence[Mode]) -> str:
    return "; ".join(_grouped(modes, lambda mode: bool(mode.declared)))


def _after(modes: Sequence[Mode]) -> str:
    return " and ".join(_grouped(modes, lambda mode: mode.pending))


def _grouped(modes: Sequence[Mode], value: Callable[[Mode], bool]) -> List[str]:
    """``on for GPU 0, 1``, for each value."""
    found = []
    for wanted in (True, False):
        gpus = [mode.gpu for mode in modes if value(mode) is wanted]
        found += [f"{'on' if wanted else 'off'} for GPU {', '.join(gpus)}"] if gpus else []
    return found
