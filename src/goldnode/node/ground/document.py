"""Types of the class document (schema goldnode.class/1), which says what a node's class is.

Each type has the name and the keys of its object in `schemas/`: `class-document.json`, `class.json` for the parts that a
person writes in the class file, `stack.json` for modules; `tests/unit/node/test_document.py` compares them. A key is
`NotRequired` where the compiler (`goldnode.classdoc.compile`) leaves it out, and `Optional` where it writes null.

Only type checkers import this module, so it costs no start-up time and may use what Python 3.9's `typing` lacks::

    if TYPE_CHECKING:
        from ..ground.document import ClassDocument

A document without a class, such as the one that the health check infers from the hardware, has some of the keys only.
Code that such a document reaches uses `get` also for keys that are required here.
"""

from __future__ import annotations

from typing import Any, Dict, List, Literal, NotRequired, Optional, TypedDict, Union

Vendor = Literal["nvidia", "amd", "intel"]


class OperatingSystem(TypedDict):
    """The OS release of the stack, with the names of os-release."""

    id: str
    version: str
    codename: str
    architecture: Literal["amd64", "arm64"]


class ClassWaiver(TypedDict):
    """Permission to use a stack past its end of life."""

    reason: str
    owner: str
    expires: str


class ClassStack(TypedDict):
    """The locked stack of the class."""

    name: str
    exercised: str
    end_of_life: str
    limits: List[str]
    waiver: Optional[ClassWaiver]


class ClassLock(TypedDict):
    """The lock of the stack, and the day on which it was resolved."""

    digest: str
    resolved: str


class ClassGpu(TypedDict):
    """The GPUs of the class. `models` and `unfit` exist for the model `auto`."""

    vendor: Vendor
    model: str
    count: int
    pci_ids: List[str]
    architecture: Optional[str]
    models: NotRequired[Dict[str, str]]
    unfit: NotRequired[Dict[str, str]]


class ClassPlatform(TypedDict):
    """The board that the GPUs are on."""

    name: Optional[str]
    nvswitch: bool


class ClassKernel(TypedDict):
    """The kernel's release and its packages. `page_kib` exists only if the stack declares it."""

    release: str
    image: str
    headers: str
    page_kib: NotRequired[int]


class ClassDriver(TypedDict):
    """The GPU driver. The keys from `built` on exist for prebuilt modules only."""

    vendor: Vendor
    branch: Optional[str]
    version: Optional[str]
    flavour: Optional[Literal["open", "proprietary"]]
    module: str
    in_tree: bool
    dkms: Optional[Dict[str, str]]
    family: List[str]
    library: Optional[str]
    options: Dict[str, Any]
    built: NotRequired[Literal["prebuilt"]]
    package: NotRequired[str]
    replaces: NotRequired[List[str]]
    signed: NotRequired[bool]
    signer: NotRequired[Optional[str]]


class ClassToolkit(TypedDict):
    """The container toolkit, and why it runs in this mode."""

    vendor: str
    version: Optional[str]
    mode: Literal["legacy", "cdi"]
    why: str


class ClassRuntime(TypedDict):
    """The container engine."""

    engine: str
    package: str
    version: str
    default: bool
    toolkit: Optional[ClassToolkit]
    cgroup_driver: NotRequired[Literal["systemd"]]


class KernelModule(TypedDict):
    """One more out-of-tree module. The list is in load order."""

    name: str
    package: Optional[str]
    dkms: Optional[str]
    before_driver: bool
    load: bool
    after: List[str]
    version: Optional[str]


class Scratch(TypedDict):
    """Scratch space at one mount point."""

    device: str
    filesystem: NotRequired[Literal["ext4", "xfs"]]
    options: NotRequired[List[str]]
    keep_days: NotRequired[int]
    full_percent: NotRequired[int]


class DeclaredPart(TypedDict):
    """A part that no lock holds, and what shows its version. `shown`: the one of its module, where that differs."""

    name: str
    title: str
    version: str
    packages: List[str]
    module: Optional[str]
    program: Optional[List[str]]
    shown: Optional[str]


class ClassPackage(TypedDict):
    """One package of the stack set. `requested` is False for a dependency."""

    name: str
    version: str
    architecture: str
    sha256: str
    size: int
    part: str
    requested: bool


class Clocks(TypedDict, total=False):
    """Clocks of the GPUs, MHz."""

    graphics_mhz: int
    memory_mhz: int
    mode: Literal["application", "locked"]


class Mig(TypedDict):
    """MIG partitioning of every GPU of the node."""

    enabled: bool
    profiles: NotRequired[List[str]]


class _GpuPolicy(TypedDict, total=False):
    """Settings per GPU; those that are absent are not managed."""

    persistence_mode: bool
    clocks: Clocks
    power_limit_watts: int
    ecc: bool
    compute_mode: Literal["default", "exclusive_process", "prohibited"]
    mig: Mig
    performance_level: Literal["auto", "low", "high", "manual", "perf_determinism"]


class GpuOverride(_GpuPolicy, total=False):
    """Other values for GPUs of one model, of some indexes or one UUID. The compiler adds the PCI ids of the model."""

    model: str
    indexes: List[int]
    uuid: str
    pci_ids: List[str]


class HostInterface(TypedDict):
    """Settings of a network interface."""

    mtu: int


class HostPolicy(TypedDict, total=False):
    """Settings of the host; those that are absent are not managed."""

    governor: Literal["performance", "powersave", "schedutil", "ondemand", "conservative"]
    swap: bool
    hugepages: Dict[Literal["2M", "1G"], int]
    transparent_hugepages: Literal["always", "madvise", "never"]
    numa_balancing: bool
    iommu: Literal["pt", "on", "off"]
    cmdline: List[str]
    sysctl: Dict[str, str]
    memlock: Union[Literal["unlimited"], int]
    network: Dict[str, HostInterface]


class Policy(_GpuPolicy, total=False):
    """Settings of the GPUs and the host of a class; those that are absent are not managed."""

    sharing: Literal["none", "exclusive", "mps"]
    overrides: List[GpuOverride]
    module_options: Dict[str, str]
    host: HostPolicy


class PcieLink(TypedDict, total=False):
    """Expected properties of a PCIe link."""

    gen: int
    width: Literal[1, 2, 4, 8, 12, 16, 32]


class MaxClocks(TypedDict, total=False):
    """The highest clocks of a GPU, MHz."""

    graphics_mhz: int
    sm_mhz: int
    memory_mhz: int


class _GpuHealth(TypedDict, total=False):
    """Expected properties of a healthy GPU. Where one is absent, the facts decide."""

    vbios: List[str]
    subsystem_ids: List[str]
    memory_mib: List[int]
    pcie: PcieLink
    nvlinks: int
    bar1_mib: int
    max_clocks: MaxClocks


class GpuHealthAt(_GpuHealth):
    """Expected properties of the GPU at one PCI address that differ by design."""

    address: str
    reason: str


class GpuBaseline(_GpuHealth, total=False):
    """Expected properties of the GPUs of a healthy node."""

    reason: str
    numa: Dict[str, int]
    overrides: List[GpuHealthAt]


class Interface(TypedDict, total=False):
    """Expected properties of a network interface."""

    mtu: int
    speed_mbps: int
    firmware: List[str]
    numa_node: int


class InfinibandDevice(TypedDict, total=False):
    """Expected properties of an InfiniBand device."""

    ports: int
    rate_gbps: int
    firmware: List[str]


class Mount(TypedDict, total=False):
    """Expected properties of a mount point."""

    type: str
    free_gib: int


class StoragePath(TypedDict, total=False):
    """Expected speed of a path."""

    read_mb_s: int
    latency_ms: int


class StorageDevices(TypedDict, total=False):
    """Expected local drives."""

    count: int
    models: List[str]


class Storage(TypedDict, total=False):
    """Expected storage."""

    devices: StorageDevices
    mounts: Dict[str, Mount]
    paths: Dict[str, StoragePath]


class Cpu(TypedDict, total=False):
    """Expected CPUs."""

    sockets: int
    cores: int
    smt: bool


class Memory(TypedDict, total=False):
    """Expected RAM."""

    total_gib: int
    tolerance: float


class Baseline(TypedDict, total=False):
    """Properties of a healthy node of the class; those that are absent are not judged."""

    gpu: GpuBaseline
    cpu: Cpu
    memory: Memory
    network: Dict[str, Interface]
    infiniband: Dict[str, InfinibandDevice]
    storage: Storage
    services: List[str]
    modules: List[str]


class GpuFacts(TypedDict, total=False):
    """Facts about the hardware of a GPU model (`goldnode.classdoc.gpu_facts`)."""

    pcie: PcieLink
    nvlinks: int
    memory_mib: List[int]
    ecc: bool
    mig: bool


class ClassHealth(TypedDict):
    """Reference values of the health check. `models` has the facts by PCI id, for the model `auto`."""

    limits: Dict[str, Any]
    gpu: NotRequired[GpuFacts]
    models: NotRequired[Dict[str, GpuFacts]]
    on_package: NotRequired[List[str]]
    cuda: NotRequired[Dict[str, Dict[str, str]]]
    baseline: NotRequired[Baseline]


class ClassArchive(TypedDict):
    """One package archive of the site. `key` is base64 of the armoured key, for the file `signed_by`."""

    id: str
    uri: str
    suite: str
    components: List[str]
    signed_by: str
    fingerprints: List[str]
    key: Optional[str]
    accept_expired: NotRequired[bool]  # its indexes may be past their Valid-Until date


class ClassSite(TypedDict):
    """The values that depend on the site. They are not part of the digest."""

    archives: List[ClassArchive]
    only: NotRequired[bool]
    gate: NotRequired[Dict[Literal["drain", "resume"], List[str]]]


class ClassReturnTests(TypedDict, total=False):
    """Jobs that the gate wants passed before the node returns, by cause."""

    after_xid: List[str]
    after_repair: List[str]
    after_absence: List[str]
    absence_days: float


class Suppression(TypedDict):
    """A finding that the class suppresses."""

    id: str
    owner: str
    reason: str
    expires: str
    subject: NotRequired[str]
    severity: NotRequired[Literal["degraded", "drain"]]


class Accepted(TypedDict):
    """A finding of a compatibility rule that the class accepts."""

    rule: str
    reason: str
    owner: str
    expires: str
    subject: NotRequired[str]


class Compat(TypedDict, total=False):
    """Decisions of the class's owner about compatibility rules."""

    accept: List[Accepted]
    unknown: Literal["block", "warn", "accept"]


class Serve(TypedDict, total=False):
    """Where the node's metrics and health go."""

    listen: Union[str, int]
    textfile: str
    npd: bool
    slurm: bool
    accept_degraded: bool


class Follow(TypedDict):
    """The rollout channel that the node follows."""

    channel: str
    service: str
    root: NotRequired[str]
    every: NotRequired[int]
    apply: NotRequired[List[str]]
    accepted: NotRequired[List[int]]
    ca: NotRequired[str]
    certificate: NotRequired[str]
    key: NotRequired[str]


# `class` is a word of Python, so the class syntax cannot declare this key.
_Named = TypedDict("_Named", {"class": str})


class ClassDocument(_Named):
    """A node class, compiled from the catalog, the facts and the lock: /etc/goldnode/class.json."""

    schema: Literal["goldnode.class/1"]
    digest: str
    backend: Literal["cuda", "rocm", "oneapi", "cpu"]
    simulated: bool
    gate: Literal["report", "drain", "block"]
    os: OperatingSystem
    stack: ClassStack
    lock: ClassLock
    gpu: Optional[ClassGpu]
    platform: ClassPlatform
    kernel: ClassKernel
    driver: Optional[ClassDriver]
    runtime: Optional[ClassRuntime]
    modules: List[KernelModule]
    blacklist: List[str]
    fence: List[str]
    packages: List[ClassPackage]
    policy: Policy
    baseline: Baseline
    site: ClassSite
    health: ClassHealth
    suppressions: NotRequired[List[Suppression]]
    # Xid or SXid -> action, effect on the node, name
    xid: NotRequired[Dict[str, List[Optional[str]]]]
    compat: NotRequired[Compat]
    exceptions: NotRequired[List[Dict[str, Any]]]
    mitigations: NotRequired[List[Dict[str, Any]]]
    serve: NotRequired[Serve]
    follow: NotRequired[Follow]
    return_tests: NotRequired[ClassReturnTests]
    parts: NotRequired[List[DeclaredPart]]
    scratch: NotRequired[Dict[str, Scratch]]
