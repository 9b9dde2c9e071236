"""The capture: what a node reports about itself at one moment (docs/reference/capture.md describes each value).

A value, or a whole object, may be a fault instead. A missing key was not read from this source: live nodes,
images and the output of nvidia-smi have different ones.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from goldnode.documents.base import MissingValue, NodePart, Part

Text = str | MissingValue | None
Number = int | MissingValue | None
Decimal = float | MissingValue | None
Flag = bool | MissingValue | None


class CapturedProduct(Part):
    """The machine, by DMI."""

    vendor: Text = None
    name: Text = None
    board: Text = None
    bios_version: Text = None
    bios_date: Text = None
    serial: Text = None


class CapturedIdentity(Part):
    """The node, its boot, and the class that it is a member of."""

    hostname: Text = None
    machine_id: Text = None
    boot_id: Text = None
    boot_identity: Text = None
    class_: Text = Field(None, alias="class")
    class_digest: Text = None
    lock_digest: Text = None
    image_id: Text = None
    product: CapturedProduct | MissingValue | None = None
    container: Flag = None
    virtual: Text = None


class CapturedKernel(Part):
    """The kernel that runs, the installed ones, and the one that boots next."""

    running: Text = None
    version: Text = Field(
        None,
        description="of the running kernel, as `uname -v` prints it: it has the package's version",
    )
    next_boot: Text = None
    installed: list[str] | MissingValue | None = None
    cmdline: Text = None
    taint: Number = None
    taint_flags: Text = None


class CapturedOperatingSystem(Part):
    """The distribution and its kernel. `module_files`: release -> module -> {version, license, signer}."""

    id: Text = None
    version: Text = None
    kernel: CapturedKernel | MissingValue | None = None
    secure_boot: Flag = None
    modules: list[str] | MissingValue | None = None
    absent: list[str] | None = Field(
        default=None,
        description="modules that mitigations keep out and that the running kernel does not have",
    )
    denied: list[str] | MissingValue | None = Field(
        default=None, description="modules that modprobe does not load even by name"
    )
    module_files: (
        dict[str, dict[str, dict[str, Text] | MissingValue] | MissingValue] | MissingValue | None
    ) = None


class CapturedDriver(Part):
    """The GPU driver: versions by the module, by its library, by /proc, and by the library's answer."""

    vendor: Text = None
    loaded: Text = None
    flavour: Text = None
    library: Text = None
    proc: Text = None
    reported: Text = None
    cuda: Text = None
    nvml: Text = None
    dcgm: Text = Field(None, description="version of DCGM 3, if its library is installed")
    options: dict[str, str] | MissingValue | None = None


class CapturedBinding(Part):
    """Why GPUs may be without their vendor's driver. The section exists only if one is."""

    vendor: Text = None
    addresses: list[str] | None = None
    packages: list[dict[Literal["name", "version", "state"], str | None]] | MissingValue | None = (
        Field(None, description="the driver's packages with dpkg's state")
    )
    release: Text = Field(None, description="the running kernel")
    modules: dict[str, list[str]] | MissingValue | None = Field(
        None, description="kernel -> names of the driver's module files"
    )
    system: Text = Field(None, description="ID of os-release(5)")
    container: Flag = None
    headers: Flag = Field(None, description="whether the running kernel's headers are installed")
    loaded: Flag = None
    barred: list[dict[Literal["where", "text"], str]] | None = Field(
        None,
        description="lines of modprobe.d and of the kernel command line that keep the driver out",
    )
    given_away: list[dict[Literal["where", "text"], str]] | None = Field(
        None, description="lines that give a GPU to vfio-pci"
    )
    barred_others: list[str] | None = Field(
        None, description="other drivers that such lines keep out"
    )
    error: Text = None


class CapturedEnds(Part):
    """A PCIe value: now, the most of the slot and card together, and the most of the card."""

    current: Number = None
    max: Number = None
    device_max: Number = None


class CapturedGpuPcie(Part):
    """The GPU's link by its library. `replay` counts retransmissions."""

    gen: CapturedEnds | MissingValue | None = None
    width: CapturedEnds | MissingValue | None = None
    replay: Number = None


class CapturedGpuMemory(Part):
    """Memory in MiB."""

    total_mib: Number = None
    used_mib: Number = None
    bar1_mib: Number = None
    source: Text = Field(None, description='Intel: "driver" or "bar2"')


class CapturedErrors(Part):
    """Numbers of ECC errors."""

    corrected: Number = None
    uncorrected: Number = None


class CapturedSram(Part):
    """Aggregate ECC errors of the on-chip memory."""

    threshold_exceeded: Flag = None
    corrected: Number = None
    parity: Number = None
    secded: Number = None


class CapturedDram(Part):
    """Uncorrected ECC errors of the device memory."""

    volatile_uncorrected: Number = None
    aggregate_uncorrected: Number = None


class CapturedEcc(Part):
    """ECC: mode, mode after the next reset, and errors since the driver was loaded and in total."""

    current: Flag = None
    pending: Flag = None
    volatile: CapturedErrors | MissingValue | None = None
    aggregate: CapturedErrors | MissingValue | None = None
    sram: CapturedSram | MissingValue | None = None
    dram: CapturedDram | MissingValue | None = None


class CapturedRemappedRows(Part):
    """Rows of memory that were replaced. `histogram`: banks by what is left of their spare rows."""

    correctable: Number = None
    uncorrectable: Number = None
    pending: Flag = None
    failure: Flag = None
    histogram: dict[str, int] | MissingValue | None = None


class CapturedRemappedBanks(Part):
    """Banks of memory that were replaced, on GPUs since Rubin. `none`: groups without a spare bank."""

    pending: Flag = None
    none: Number = None


class CapturedRetiredPages(Part):
    """Pages of memory that are no longer used."""

    single_bit: Number = None
    double_bit: Number = None
    pending: Flag = None


class CapturedPower(Part):
    """Power in watts."""

    limit_w: Decimal = None
    enforced_w: Decimal = None
    default_w: Decimal = None
    min_w: Decimal = None
    max_w: Decimal = None
    draw_w: Decimal = None


class CapturedClockSet(Part):
    """Clocks in MHz."""

    graphics_mhz: Number = None
    sm_mhz: Number = None
    memory_mhz: Number = None


class CapturedClocks(Part):
    """Clocks now, the highest possible, those that are set, and the board's default for these."""

    current: CapturedClockSet | MissingValue | None = None
    max: CapturedClockSet | MissingValue | None = None
    application: CapturedClockSet | MissingValue | None = None
    application_default: CapturedClockSet | MissingValue | None = None


class CapturedThrottle(Part):
    """Reasons for reduced clocks now, and how long each applied since the driver was loaded."""

    mask: Number = None
    active: list[str] | bool | MissingValue | None = None
    violation_ns: dict[str, int | MissingValue] | MissingValue | None = None
    status: Text | int = None
    kinds: dict[str, Any] | list[str] | MissingValue | None = None
    residency: dict[str, int | MissingValue] | MissingValue | None = None


class CapturedTemperature(Part):
    """Temperatures in °C. `margin_c` is the distance to the slowdown, `max_c` and `memory_max_c` the highest
    temperatures for operation.
    """

    gpu_c: Decimal = None
    memory_c: Decimal = None
    margin_c: Decimal = None
    slowdown_c: Decimal = None
    shutdown_c: Decimal = None
    max_c: Decimal = None
    memory_max_c: Decimal = None


class CapturedMig(Part):
    """MIG mode, mode after the next reset, and profiles of the instances."""

    current: Flag = None
    pending: Flag = None
    instances: list[str] | MissingValue | None = None


class CapturedNvlinkLink(Part):
    """One NVLink. Errors count since the driver was loaded."""

    link: int
    active: Flag = None
    version: Number = None
    errors: dict[str, int | MissingValue] | MissingValue | None = None


class CapturedNvlink(Part):
    """The NVLinks of a GPU."""

    links: list[CapturedNvlinkLink] | MissingValue | None = None


class CapturedFabric(Part):
    """Registration of a GPU with the NVSwitch fabric."""

    state: Text = None
    status: Text = None
    clique: Number = None
    cluster: Text = None
    health: dict[str, str] | MissingValue | None = None


class CapturedGpu(Part):
    """One GPU. `settings` is what the GPU policy compares (schema goldnode.device/1)."""

    index: Number = Field(None, description="NVML's number; null if NVML did not list it")
    address: Text = None
    pci_id: Text = None
    subsystem_id: Text = None
    vendor: Text = None
    name: Text = None
    uuid: Text = None
    serial: Text = None
    board_part: Text = None
    multi_gpu_board: Flag = None
    minor: Number = None
    driver: Text = None
    lost: Flag = None
    vbios: Text = None
    gsp_firmware: Text = None
    architecture: Text = None
    inforom: dict[Literal["image", "valid"], str | bool | MissingValue] | MissingValue | None = None
    memory: CapturedGpuMemory | MissingValue | None = None
    pcie: CapturedGpuPcie | MissingValue | None = None
    pstate: Number = None
    utilization: (
        dict[Literal["gpu", "memory"], int | float | MissingValue] | MissingValue | None
    ) = None
    persistence_mode: Flag = None
    compute_mode: Text = None
    performance_level: Text = None
    ecc: CapturedEcc | MissingValue | None = None
    remapped_rows: CapturedRemappedRows | MissingValue | None = None
    remapped_banks: CapturedRemappedBanks | MissingValue | None = None
    retired_pages: CapturedRetiredPages | MissingValue | None = None
    repair: (
        dict[Literal["channel_pending", "tpc_pending"], bool | MissingValue] | MissingValue | None
    ) = None
    unrepairable_memory: Flag = None
    recovery_action: Text = None
    power: CapturedPower | MissingValue | None = None
    clocks: CapturedClocks | MissingValue | None = None
    throttle: CapturedThrottle | MissingValue | None = None
    temperature: CapturedTemperature | MissingValue | None = None
    mig: CapturedMig | MissingValue | None = None
    nvlink: CapturedNvlink | MissingValue | None = None
    fabric: CapturedFabric | MissingValue | None = None
    processes: list[dict[str, Any]] | MissingValue | None = None
    other_processes: Number = Field(
        None, description="graphics and MPS processes; only where memory or use has no other one"
    )
    partition: dict[str, Text] | MissingValue | None = None
    ras: dict[str, dict[str, int | MissingValue] | MissingValue] | MissingValue | None = None
    bad_pages: dict[str, int | MissingValue] | MissingValue | None = None
    xgmi: dict[str, Any] | MissingValue | None = None
    settings: dict[str, Any] | MissingValue | None = None


class CapturedNvSwitch(Part):
    """One NVSwitch."""

    address: str
    pci_id: Text = None
    driver: Text = None


class CapturedFabricManager(Part):
    """The Fabric Manager: its package's version, and whether its unit is active."""

    installed: Text = None
    active: Flag = None


class CapturedPciFunction(Part):
    """One PCI function: a GPU, a NIC, an NVMe device, or a port above one."""

    pci_id: Text = None
    class_: Text = Field(None, alias="class")
    driver: Text = None
    kind: Text = None
    path: list[str] | MissingValue | None = None
    root_bus: Text = None
    link: dict[str, int | float | MissingValue | None] | MissingValue | None = None
    aer: dict[str, Any] | MissingValue | None = None
    aer_reported: dict[str, int | MissingValue] | MissingValue | None = None
    numa_node: Number = None
    power_state: Text = None
    enabled: Flag | int = None
    iommu_group: Text | int = None
    bars: list[int] | MissingValue | None = None
    gone: Flag = None
    on_package: Flag = None
    virtual_of: Text = None
    edge: Text = None
    limits: dict[str, Any] | MissingValue | None = None


class CapturedNuma(Part):
    """NUMA nodes, the node of each device, the distance of each GPU to each NIC, and the interrupts of NICs."""

    nodes: dict[str, dict[str, Any] | MissingValue] | MissingValue | None = None
    affinity: dict[str, dict[str, Any] | MissingValue] | MissingValue | None = None
    interrupts: dict[str, Any] | MissingValue | None = None
    distances: dict[str, dict[str, str | MissingValue] | MissingValue] | MissingValue | None = None


class CapturedEvent(Part):
    """Lines of the kernel's log that report the same fault."""

    kind: str
    code: int | None
    address: str | None
    mig: str | None
    seq: int | None
    uptime_s: float | None
    time: str | None = None
    boot_id: str | None
    count: int
    last_seq: int | None
    last_uptime_s: float | None
    fatal: bool | None
    text: str
    parameters: dict[str, Any]


class CapturedEvents(Part):
    """Events of the kernel's log, and where they come from."""

    sources: list[str]
    truncated: bool | None
    boot_id: str | None
    last_seq: int | None
    rows: list[CapturedEvent]
    error: MissingValue | None
    dropped: int | None = None


class CapturedCpu(Part):
    """The processors. `flags` are those of the first one."""

    architecture: str | None = Field(None, description="as `uname -m` prints it")
    model: Text = None
    flags: list[str] | MissingValue | None = None
    sockets: Number = None
    cores: Number = None
    threads: Number = None
    online: Text = None
    smt: Flag = None
    governors: dict[str, str] | MissingValue | None = None
    microcode: list[str] | MissingValue | None = None
    mhz: Decimal | dict[str, Any] = None


class CapturedMemory(Part):
    """The node's memory."""

    total_mib: Number = None
    available_mib: Number = None
    swap_total_mib: Number = None
    swap_used_mib: Number = None
    hugepages: dict[str, dict[str, int | MissingValue] | MissingValue] | MissingValue | None = None
    shm_mib: Number = None
    edac: dict[str, dict[str, int | MissingValue] | MissingValue] | MissingValue | None = None
    transparent_hugepages: Text = None
    numa_balancing: Flag | int = None
    page_kib: Number = None


class CapturedInterface(Part):
    """One network interface."""

    address: Text = None
    driver: Text = None
    mac: Text = None
    mtu: Number = None
    speed_mbps: Number = None
    duplex: Text = None
    state: Text = None
    carrier_changes: Number = None
    firmware: Text = None
    numa_node: Number = None
    counters: dict[str, int | MissingValue] | MissingValue | None = None


class CapturedInfinibandDevice(Part):
    """One InfiniBand device. `ports`: number -> {state, physical, rate_gbps, layer, counters, hw_counters}."""

    address: Text = None
    firmware: Text = None
    board: Text = None
    guid: Text = None
    ports: dict[str, dict[str, Any] | MissingValue] | MissingValue | None = None


class CapturedBlockDevice(Part):
    """One disk. `smart` is read from NVMe devices only."""

    model: Text = None
    firmware: Text = None
    size_bytes: Number = None
    rotational: Flag = None
    scheduler: Text = None
    address: Text = None
    state: Text = None
    ro: Flag = None
    smart: dict[str, int | MissingValue] | MissingValue | None = None


class CapturedMount(Part):
    """One mounted file system."""

    device: Text = None
    type: Text = None
    options: Text = None
    size_mib: Number = None
    free_mib: Number = None
    inodes_free_percent: Decimal = None
    readonly: Flag = None


class CapturedStorage(Part):
    """Disks, mounts, the paths that the class names, and software RAID."""

    devices: dict[str, CapturedBlockDevice | MissingValue] | MissingValue | None = None
    mounts: dict[str, CapturedMount | MissingValue] | MissingValue | None = None
    paths: dict[str, dict[str, int | float | MissingValue] | MissingValue] | MissingValue | None = (
        None
    )
    raid: dict[str, dict[str, Any] | MissingValue] | MissingValue | None = None


class CapturedRuntime(Part):
    """The container engine, and the CDI specifications on the node."""

    engine: Text = None
    version: Text = None
    toolkit: Text = None
    active: Flag = None
    cdi: list[dict[str, Any]] | MissingValue | None = None


class CapturedUnit(Part):
    """One unit of systemd."""

    load: Text = None
    active: Text = None
    sub: Text = None
    result: Text = None
    restarts: Number = None
    since_us: Number = None


class CapturedPackages(Part):
    """Packages of the stack set that differ, those that are not on hold, and the number of all."""

    drift: list[dict[str, str | None]] | MissingValue | None = None
    free: list[str] | MissingValue | None = None
    total: Number = None


class CaptureDocument(NodePart):
    """The state that a node reports about itself at one moment."""

    schema_: Literal["goldnode.capture/1"] = Field(alias="schema")
    time: str | None = None
    uptime: Decimal = Field(None, description="seconds since the kernel started")
    source: Literal["live", "root", "nvidia-smi-xml", "nvidia-smi-text"]
    simulated: bool
    recorded: str | None = Field(None, description="local time that nvidia-smi printed")
    anonymous: bool | None = Field(
        None, description="names were replaced (`goldnode-node capture --anonymous`)"
    )
    gpu_count: int | None = None
    identity: CapturedIdentity | MissingValue | None = None
    os: CapturedOperatingSystem | MissingValue | None = None
    driver: CapturedDriver | MissingValue | None = None
    gpus: list[CapturedGpu] | MissingValue | None = None
    gpu_error: MissingValue | None = None
    binding: CapturedBinding | MissingValue | None = None
    nvswitches: list[CapturedNvSwitch] | MissingValue | None = None
    fabric_manager: CapturedFabricManager | MissingValue | None = None
    devices: dict[str, Text] | MissingValue | None = None
    pci: dict[str, CapturedPciFunction | MissingValue] | MissingValue | None = None
    pci_unread: list[str] | None = Field(
        None, description="functions whose PCI id and class cannot be read"
    )
    numa: CapturedNuma | MissingValue | None = None
    events: CapturedEvents | MissingValue | None = None
    cpu: CapturedCpu | MissingValue | None = None
    memory: CapturedMemory | MissingValue | None = None
    network: dict[str, CapturedInterface | MissingValue] | MissingValue | None = None
    infiniband: dict[str, CapturedInfinibandDevice | MissingValue] | MissingValue | None = None
    storage: CapturedStorage | MissingValue | None = None
    runtime: CapturedRuntime | MissingValue | None = None
    services: dict[str, CapturedUnit | MissingValue] | MissingValue | None = None
    packages: CapturedPackages | MissingValue | None = None
    pressure: (
        dict[Literal["io", "memory", "cpu"], dict[str, int | float | MissingValue] | MissingValue]
        | MissingValue
        | None
    ) = None
    time_sync: (
        dict[Literal["synchronised", "clock"], bool | float | MissingValue] | MissingValue | None
    ) = None
    blocked: list[dict[str, Any]] | MissingValue | None = None
    blocked_unseen: int | None = None
    limits: dict[str, Any] | MissingValue | None = None
