"""Data classes of the engine: the observed state, the plan, and the reasons against applying it.

All of it is plain data. A plan can be printed, compared with a case file, sent to a controller, and
applied. The module `dataclasses` is not used here: its import and six classes take a tenth of the
time of a check.
"""

from __future__ import annotations

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple, TypeVar

    Section = TypeVar("Section")


# Phases of a resource (design, section 3). IMAGE needs only a root filesystem, BOOT a
# running system, DEVICE the GPU.
IMAGE, BOOT, DEVICE = "image", "boot", "device"
PHASES = (IMAGE, BOOT, DEVICE)

# Parts of a plan in the order in which they are applied. The Ansible role of the same name applies each.
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

# Target of a plan: the state that the class declares, or the state of the node before goldnode.
PRESENT, ABSENT = "present", "absent"
# A controller passes this to roll a node back. The plan targets an earlier class
# document, so its state is PRESENT.
EARLIER = "earlier"

PLAN_SCHEMA = "goldnode.plan/1"
PROGRESS = "/run/goldnode/progress"  # the lines of a part that is being applied


def declared(section: Optional[Section]) -> Section:
    """Return a section of the class document, for code that runs only for classes that declare it."""
    if section is None:
        raise LookupError("the class does not declare this section")
    return section


class Action(NamedTuple):
    """One change to a node.

    `kind` names the handler, `target` the changed object, `reason` the cause ("want …, have …").
    `before` and `after` are the texts for a diff (None: absent). `reboot` is the reason why the
    change needs a reboot. `data` holds the handler's parameters.
    """

    part: str
    kind: str
    target: str
    reason: str
    phase: str = IMAGE
    before: Optional[str] = None
    after: Optional[str] = None
    reboot: Optional[str] = None
    data: Mapping[str, Any] = {}

    def line(self) -> str:
        """Return a one-line description for a person."""
        return f"{self.kind} {self.target}: {self.reason}"


class Refusal(NamedTuple):
    """A reason not to touch the node: a stable code, one sentence, and what to do about it."""

    code: str
    message: str
    remedy: str

    def line(self) -> str:
        """Return a one-line description for a person."""
        return f"{self.message} {self.remedy}"


class Note(NamedTuple):
    """A declared setting that goldnode could not check here, and why. A note never counts as a pass."""

    subject: str
    message: str


class Waiting(NamedTuple):
    """A wanted change that waits for the node to be drained, and what it waits for.

    Its part still has work to do: the next run applies the change once nothing blocks it.
    """

    part: str
    subject: str
    message: str


class Plan(NamedTuple):
    """The difference between the state that a class declares and the state of a node."""

    actions: Tuple[Action, ...]
    refusals: Tuple[Refusal, ...] = ()
    notes: Tuple[Note, ...] = ()
    waiting: Tuple[Waiting, ...] = ()
    # Reasons why the node already needs a reboot, before any action of this plan.
    reboot: Tuple[str, ...] = ()
    class_digest: str = ""
    boot_identity: Optional[str] = None
    state: str = PRESENT
    # Problems that a reboot would cause in the node's current state. They block the
    # reboot until they are fixed.
    held: Tuple[str, ...] = ()
    # Processes that have a GPU open. Collected only when the plan changes something.
    holders: Tuple[Mapping[str, Any], ...] = ()
    # The node's own record of a drain by a run (drained.FILE), unparsed. The controller evaluates it.
    drain: str = ""

    def part(self, name: str) -> Tuple[Action, ...]:
        """Return the actions of one part."""
        return tuple(action for action in self.actions if action.part == name)

    def reboot_after(self) -> List[str]:
        """Return the reasons for a reboot after this plan is applied, including those that exist already."""
        return list(
            dict.fromkeys(
                [*self.reboot, *(action.reboot for action in self.actions if action.reboot)]
            )
        )

    def to_json(self) -> Dict[str, Any]:
        """Return the plan as a JSON document (schema goldnode.plan/1)."""
        return {
            "schema": PLAN_SCHEMA,
            "state": self.state,
            "class_digest": self.class_digest,
            "boot_identity": self.boot_identity,
            "actions": [{**action._asdict(), "data": dict(action.data)} for action in self.actions],
            "parts": {name: [action.line() for action in self.part(name)] for name in PARTS},
            "refusals": [refusal._asdict() for refusal in self.refusals],
            "notes": [note._asdict() for note in self.notes],
            "waiting": [item._asdict() for item in self.waiting],
            "holders": [dict(holder) for holder in self.holders],
            "drain": self.drain,
            "reboot": {
                "required": bool(self.reboot) and not self.held,
                "reasons": list(self.reboot),
                "after": self.reboot_after(),
                "held": list(self.held),
            },
        }


class Observed:
    """The state of a node, as far as a class can declare it.

    Every field is plain data, so that a case file can state it. The fields `runtime`,
    `gpu_settings` (domain `policy`), `tuning`, `units`, `slots` and `scratch` belong to the domains of these
    names, which describe their shapes.

    * packages: name -> {version, architecture, state, hold}; state is dpkg's
      ("installed", "half-configured", …).
    * files: managed path -> {content, mode, type, owner, group}, or None. Keys that a case file omits default
      to root's (state/owners.py).
    * folders: directory that goldnode relies on -> the same without content, plus `above`,
      the directories above it.
    * strays: path -> the same, for anything in goldnode's own directories that users
      other than root can change.
    * links: path -> target, or None.
    * sources: apt entries [{file, line, uri, suite, components, signed_by}].
    * pins: foreign pins [{file, line, package, pin, priority, owner}].
    * unfenced: lines that clear the list of packages that unattended upgrades leave alone.
    * loosened: lines that make apt ignore holds or its preferences.
    * apt_error: why apt refuses its own configuration, with file and line, or None.
    * unrecorded: files and directories of the record in /var/lib/goldnode that a converged node lacks.
    * kernels: releases that have a /boot/vmlinuz.
    * modules: kernel release -> {version, license, vermagic, signer, altered} of the driver's module, or None.
    * other_modules: name -> the facts that domains/modules.py collects about each further out-of-tree module
      for the class's kernel, or None.
    * parts: name of a declared part -> its readings (domains/parts.py).
    * initramfs: release -> {unwanted: [paths], files: {path: sha256}}, or {error}. If it holds the driver or
      vfio-pci, also inside: [paths], modprobe: [lines].
    * owed: True if an interrupted transaction left an initramfs to rebuild (state/deferred.py).
    * forced: [{file, line, module}].
    * driver_files: what dpkg, its packages and the loader have of the driver (domains/driver_files.py).
    * modprobe: the lines about modules of the stack (domains/modprobe.py), or [{error}].
    * boot: {loader, release, reason, entry, cmdline, via, fault}; fault: why the locked kernel could not start.
    * loaded: module -> version of the module that the kernel has loaded.
    * gpus: [{address, id, driver}].
    * functions: address -> (id, class) of all functions on the PCI bus. The capture uses them.
    * holders: [{pid, command, unit, container}].
    * space: path -> free bytes. inodes: path -> free inodes, where they are counted. filesystems: path ->
      device number.
    * obstacles: what would make a change fail (state/obstacles.py).
    * compiler: {kernel, installed}, version texts.
    * held_by_us: packages that goldnode has put on hold, now or earlier.
    * left_over: packages of the driver's `replaces` that goldnode installed and no remaining package needs.
    * simulated: True if a hardware simulator is installed on this node.
    * traces: additional facts for a removal; see :func:`removal.observe_traces`.
    * back: additional facts for a rollback (:func:`applied.observe_back`); empty for any other plan.
    * trial: the kernel that the next boot tries (state/trial.py); otherwise empty.
    """

    def __init__(self, **facts: Any) -> None:
        """Set the given fields; each other one has its default. Raises TypeError for an unknown field."""
        self.live: bool = True
        self.container: bool = False
        self.boot_identity: Optional[str] = None
        self.os: Dict[str, str] = {}
        self.running_kernel: Optional[str] = None
        self.page_kib: Optional[int] = None
        self.secure_boot: Optional[bool] = None
        self.packages: Dict[str, Dict[str, Any]] = {}
        self.automatic: List[str] = []
        self.files: Dict[str, Optional[Dict[str, Any]]] = {}
        self.folders: Dict[str, Dict[str, Any]] = {}
        self.strays: Dict[str, Dict[str, Any]] = {}
        self.links: Dict[str, Optional[str]] = {}
        self.sources: List[Dict[str, Any]] = []
        self.pins: List[Dict[str, Any]] = []
        self.unfenced: List[str] = []
        self.loosened: List[str] = []
        self.apt_error: Optional[str] = None
        self.unrecorded: List[str] = []
        self.keyrings: Dict[str, Optional[List[str]]] = {}
        self.kernels: List[str] = []
        self.modules: Dict[str, Optional[Dict[str, str]]] = {}
        self.other_modules: Dict[str, Optional[Dict[str, Any]]] = {}
        self.initramfs: Dict[str, Dict[str, Any]] = {}
        self.owed: bool = False
        self.forced: List[Dict[str, Any]] = []
        self.modprobe: List[Dict[str, Any]] = []
        self.boot: Dict[str, Optional[str]] = {}
        self.loaded: Dict[str, str] = {}
        self.gpus: Optional[List[Dict[str, Optional[str]]]] = None
        self.functions: Dict[str, Tuple[str, str]] = {}
        self.holders: List[Dict[str, Any]] = []
        self.lock_holder: Optional[str] = None
        self.runfile: Optional[str] = None
        self.space: Dict[str, int] = {}
        self.inodes: Dict[str, int] = {}
        self.filesystems: Dict[str, int] = {}
        self.obstacles: Dict[str, Any] = {}
        self.compiler: Dict[str, Optional[str]] = {}
        self.library: Optional[str] = None
        self.driver_files: Dict[str, Any] = {}
        self.held_by_us: List[str] = []
        self.left_over: List[str] = []
        self.simulated: bool = False
        self.parts: Dict[str, List[List[Optional[str]]]] = {}
        self.runtime: Dict[str, Any] = {}
        self.gpu_settings: Dict[str, Any] = {}
        self.tuning: Dict[str, Any] = {}
        self.units: Dict[str, Any] = {}
        self.slots: Dict[str, Any] = {}
        self.scratch: Dict[str, Any] = {}
        self.traces: Dict[str, Any] = {}
        self.back: Dict[str, Any] = {}
        self.trial: Dict[str, Any] = {}
        self.journal: Optional[Dict[str, Any]] = None
        self.reboot_marks: List[str] = []
        unknown = facts.keys() - vars(self).keys()
        if unknown:
            raise TypeError(f"Observed has no field {sorted(unknown)[0]}")
        vars(self).update(facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observed) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its fields change

    def __repr__(self) -> str:
        return f"Observed({vars(self)})"

    def with_fields(self, **facts: Any) -> Observed:
        """Return a copy in which these fields differ."""
        return Observed(**{**vars(self), **facts})

    def to_dict(self) -> Dict[str, Any]:
        """Return a deep copy of all fields by name."""
        from copy import deepcopy  # start-up time: a check does not copy

        return deepcopy(vars(self))

    def unit(self, name: str) -> Optional[Dict[str, str]]:
        """Return the properties of a unit of goldnode that systemd reports; None without systemd."""
        loaded: Dict[str, Dict[str, str]] = self.units.get("loaded") or {}
        return loaded.get(name)

    def version(self, package: str) -> Optional[str]:
        """Return the installed version of a package, or None if it is not completely installed."""
        row = self.packages.get(package)
        return str(row["version"]) if row and row["state"] == "installed" else None
