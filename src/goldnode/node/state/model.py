"""The values the engine passes on: what was seen, what is to be done and why, what forbids it.

Plain data, so that a plan can be printed, compared with a case file, sent to a controller, and applied.
"""

from __future__ import annotations

from ..plain import asdict, dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple


# Phases of a resource (design, section 3): what can be true in a root filesystem, what needs a running system, what needs the GPU.
IMAGE, BOOT, DEVICE = "image", "boot", "device"
PHASES = (IMAGE, BOOT, DEVICE)

# Parts of a plan, in the order in which they are applied; each is the work of the role of that name.
PARTS = ("node_class", "kernel", "gpu_driver", "container_runtime", "gpu_policy", "host_tuning", "sanity")

# What a plan takes a node to: what its class says, or what it was before goldnode came.
PRESENT, ABSENT = "present", "absent"
# What a controller asks for that takes a node back: its plan is one to a class document, so PRESENT.
EARLIER = "earlier"

PLAN_SCHEMA = "goldnode.plan/1"


class NodeError(Exception):
    """An expected failure: one sentence and a remedy. Anything else that is raised is a fault of goldnode."""


@dataclass(frozen=True)
class Action:
    """One change: `kind` names the handler, `target` what it changes, `reason` why ("want …, have …").

    `before`/`after` are texts for a diff (None: absent). `reboot` is the reason for which the change needs one. `data` is the handler's.
    """

    part: str
    kind: str
    target: str
    reason: str
    phase: str = IMAGE
    before: Optional[str] = None
    after: Optional[str] = None
    reboot: Optional[str] = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """One line for a person."""
        return f"{self.kind} {self.target}: {self.reason}"


@dataclass(frozen=True)
class Refusal:
    """Why nothing may be touched: a stable code, one sentence, and what to do."""

    code: str
    message: str
    remedy: str

    def line(self) -> str:
        """One line for a person."""
        return f"{self.message} {self.remedy}"


@dataclass(frozen=True)
class Note:
    """Something that is declared and could not be judged here, and why. Never a pass."""

    subject: str
    message: str


@dataclass(frozen=True)
class Waiting:
    """A change that is wanted and waits for the node to be drained: what it is, and what it waits for. Its part is not empty-handed:
    the next run makes the change once nothing is in its way."""

    part: str
    subject: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The difference between what a class wants and what a node is."""

    actions: Tuple[Action, ...]
    refusals: Tuple[Refusal, ...] = ()
    notes: Tuple[Note, ...] = ()
    waiting: Tuple[Waiting, ...] = ()
    reboot: Tuple[str, ...] = ()  # reasons for which the node, as it is now, has to be booted
    class_digest: str = ""
    boot_identity: Optional[str] = None
    state: str = PRESENT
    held: Tuple[
        str, ...
    ] = ()  # what a boot would make wrong, as the node is now: it is not rebooted before that is set right
    holders: Tuple[
        Mapping[str, Any], ...
    ] = ()  # who has a GPU open; looked for only where something is to be changed
    drain: str = (
        ""  # the node's own record of a drain by a run (drained.FILE), as it is; the controller judges it
    )

    def part(self, name: str) -> Tuple[Action, ...]:
        """The actions of one role."""
        return tuple(action for action in self.actions if action.part == name)

    def reboot_after(self) -> List[str]:
        """Reasons for a reboot once this plan is applied, those of now included."""
        return list(
            dict.fromkeys([*self.reboot, *(action.reboot for action in self.actions if action.reboot)])
        )

    def to_json(self) -> Dict[str, Any]:
        """The plan as a JSON document (schema goldnode.plan/1)."""
        return {
            "schema": PLAN_SCHEMA,
            "state": self.state,
            "class_digest": self.class_digest,
            "boot_identity": self.boot_identity,
            "actions": [{**asdict(action), "data": dict(action.data)} for action in self.actions],
            "parts": {name: [action.line() for action in self.part(name)] for name in PARTS},
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "notes": [asdict(note) for note in self.notes],
            "waiting": [asdict(item) for item in self.waiting],
            "holders": [dict(holder) for holder in self.holders],
            "drain": self.drain,
            "reboot": {
                "required": bool(self.reboot) and not self.held,
                "reasons": list(self.reboot),
                "after": self.reboot_after(),
                "held": list(self.held),
            },
        }


@dataclass
class Observed:
    """What a node is, as far as its class can ask. Every field is plain data, so that a case file can state it.

    packages: name -> {version, architecture, state, hold}; state is dpkg's ("installed", "half-configured", …).
    files: managed path -> {content, mode, type, owner, group} or None; what a case file leaves out is as root has it (state/owners.py).
    folders: directory that goldnode relies on -> the same without content, and what lies `above` it. strays: path -> the same, of what
    others than root can change in goldnode's own directories. links: path -> target or None.
    sources: apt entries [{file, line, uri, suite, components, signed_by}]; pins: foreign [{file, line, package, owner}].
    modules: kernel release -> {version, license, vermagic, signer} of the driver's module, or None. other_modules: name -> what
    domains/modules.py reads of each further out-of-tree module for the class's kernel, or None. kernels: releases with a /boot/vmlinuz.
    initramfs: release -> {unwanted: [paths], files: {path: sha256}} or {error}. forced: [{file, line, module}].
    boot: {loader, release, reason, entry, cmdline, via}. loaded: module -> version of what the kernel holds now.
    gpus: [{address, id, driver}]. holders: [{pid, command, unit, container}].
    runtime, gpu_settings, tuning, units, slots: what the domains of that name (gpu_settings: policy) read; each describes its own shape.
    owed: whether a transaction that was cut off has left an initramfs to be made (state/deferred.py).
    simulated: whether a hardware simulator is installed on this node.
    traces: what a removal asks beyond that; :func:`removal.observe_traces` describes its shape.
    back: what a rollback asks beyond that (:func:`applied.observe_back`); empty for any other plan. trial: a kernel that a boot tries
    (state/trial.py); empty when there is none.
    held_by_us: packages that goldnode has put on hold, now or earlier. left_over: those of the driver's `replaces` that goldnode
    brought and that nothing which stays needs. space: path -> free bytes;
    filesystems: path -> device number. compiler: {kernel, installed} version texts.
    """

    live: bool = True
    container: bool = False
    boot_identity: Optional[str] = None
    os: Dict[str, str] = field(default_factory=dict)
    running_kernel: Optional[str] = None
    secure_boot: Optional[bool] = None
    packages: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    automatic: List[str] = field(default_factory=list)
    files: Dict[str, Optional[Dict[str, Any]]] = field(default_factory=dict)
    folders: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    strays: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    links: Dict[str, Optional[str]] = field(default_factory=dict)
    sources: List[Dict[str, Any]] = field(default_factory=list)
    pins: List[Dict[str, Any]] = field(default_factory=list)
    keyrings: Dict[str, Optional[List[str]]] = field(default_factory=dict)
    kernels: List[str] = field(default_factory=list)
    modules: Dict[str, Optional[Dict[str, str]]] = field(default_factory=dict)
    other_modules: Dict[str, Optional[Dict[str, Any]]] = field(default_factory=dict)
    initramfs: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    owed: bool = False
    forced: List[Dict[str, Any]] = field(default_factory=list)
    boot: Dict[str, Optional[str]] = field(default_factory=dict)
    loaded: Dict[str, str] = field(default_factory=dict)
    gpus: Optional[List[Dict[str, Optional[str]]]] = None
    holders: List[Dict[str, Any]] = field(default_factory=list)
    lock_holder: Optional[str] = None
    runfile: Optional[str] = None
    space: Dict[str, int] = field(default_factory=dict)
    filesystems: Dict[str, int] = field(default_factory=dict)
    compiler: Dict[str, Optional[str]] = field(default_factory=dict)
    library: Optional[str] = None
    held_by_us: List[str] = field(default_factory=list)
    left_over: List[str] = field(default_factory=list)
    simulated: bool = False
    runtime: Dict[str, Any] = field(default_factory=dict)
    gpu_settings: Dict[str, Any] = field(default_factory=dict)
    tuning: Dict[str, Any] = field(default_factory=dict)
    units: Dict[str, Any] = field(default_factory=dict)
    slots: Dict[str, Any] = field(default_factory=dict)
    traces: Dict[str, Any] = field(default_factory=dict)
    back: Dict[str, Any] = field(default_factory=dict)
    trial: Dict[str, Any] = field(default_factory=dict)
    journal: Optional[Dict[str, Any]] = None
    reboot_marks: List[str] = field(default_factory=list)

    def version(self, package: str) -> Optional[str]:
        """The installed version of a package; None when it is not wholly installed."""
        found = self.packages.get(package)
        return str(found["version"]) if found and found["state"] == "installed" else None
