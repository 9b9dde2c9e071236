"""Models of the facts files: the form of every row, so that a wrong value is reported with file and line.

`host.load` validates a file against its model before anything uses it, and `audit` then checks the rows against each other. `null` means
that no source was found, never "not supported". Versions and dates are text. A new kind of fact is a field here and a row in its file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

# One key of the `sources` of the same file, or several.
Keys = str | list[str]


def _pci_id(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{4}:[0-9a-f]{4}", text):
        raise ValueError(
            f'"{text}" is no PCI id | write vendor and device in lower case, such as "10de:20b7"'
        )
    return text


def _version_range(text: str) -> str:
    wrong = [
        part
        for part in text.split()
        if not re.fullmatch(r"(<|<=|>|>=|=)?\d[0-9A-Za-z.+:~-]*", part)
    ]
    if wrong or not text.strip():
        raise ValueError(
            f'"{" ".join(wrong)}" is no version with a comparator | write a range such as ">=550 <550.54.14"'
        )
    return text


def _line_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f'"{text}" is no regular expression: {problem}') from None
    return text


PciId = Annotated[str, AfterValidator(_pci_id)]
# Comparators with versions, separated by spaces, which must all hold.
VersionRange = Annotated[str, AfterValidator(_version_range)]
# A regular expression that is searched for in one line, without regard to case.
LinePattern = Annotated[str, AfterValidator(_line_pattern)]
# No GPU of the facts has less than 1 GiB: a smaller number is of another unit.
MemoryMib = Annotated[int, Field(ge=1024)]


class FactsRow(BaseModel):
    """A mapping in a facts file. Unknown keys and values of another type are errors: a version is text, a count a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SourceDocument(FactsRow):
    """A source: its title and, where known, its address or repository path, its commit or date."""

    title: str
    url: str | None = None
    repo: str | None = None
    path: str | None = None
    commit: str | None = None
    date: str | None = None
    read: str | None = None
    id: str | None = None
    kind: str | None = None
    note: str | None = None


class Meta(FactsRow):
    """The head of a file: its subject, the day on which it was compiled, and how its rows are read."""

    # Some files state more in their head: newest_bulletin, minimum_safe, supported_now.
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    subject: str
    compiled: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    # The day up to which a publisher's list was read, by what it lists: later releases are not in the
    # file. Empty: the file has no list that a publisher continues.
    complete_until: dict[str, Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]] = Field(
        default_factory=dict
    )
    how_read: str | None = None


class FactsFile(FactsRow):
    """The keys of every facts file."""

    meta: Meta
    sources: dict[str, SourceDocument]


class Statement(FactsRow):
    """A fact in words."""

    fact: str | None
    source: Keys | None
    id: str | None = None
    path: str | None = None
    confidence: str | None = None
    conflict: str | None = None
    note: str | None = None


class MinimumCapability(FactsRow):
    """The least compute capability of a framework."""

    minimum: str
    source: Keys
    confidence: str


class CudaBuild(FactsRow):
    """A CUDA build of a torch release."""

    experimental: bool | None = None
    cudnn: str | None = None
    nccl: str | None = None


class HealthLimit(FactsRow):
    value: float | dict[str, float]
    unit: str
    source: Keys
    note: str | None = None


class MemorySet(FactsRow):
    sku: str
    memory_mib: list[MemoryMib]
    source: Keys
    note: str


class HealthFile(FactsFile):
    limits: dict[str, HealthLimit]
    memory_sets: list[MemorySet]


class AnswerHere(FactsRow):
    """Where a node itself answers: findings of `check` (names, or patterns of them), or the whole of `diagnose`."""

    run: Literal["check", "diagnose"]
    rows: list[str]


class SymptomRow(FactsRow):
    id: str = Field(pattern=r"^[a-z][a-z0-9-]+$")
    title: str
    layer: Literal[
        "hardware", "driver", "container", "library", "framework", "data path", "network", "policy"
    ]
    messages: list[LinePattern]
    words: str
    causes: list[str]
    check: str
    here: AnswerHere | None = None
    fix: str
    effect: Literal["none", "degraded", "drain"] | None = (
        None  # none: the message is no fault of the node
    )
    fallback: bool = False  # a component: it answers only where no other row does
    settled_by: LinePattern | None = None  # a later line of the text that withdraws it
    finding: str | None = None  # of the health check: causes, check and remedy of this row are its
    source: Keys


class CudaErrorRow(FactsRow):
    """An error of CUDA by its number, names and text (CUDA 12 runtime API), and the symptom that it is."""

    code: int
    driver: str | None = None
    runtime: str
    text: str
    symptom: str
    source: Keys


class DcgmStatus(FactsRow):
    """Errors of DCGM's functions (their numbers without the sign) or of its health checks, and their names."""

    source: Keys
    names: dict[str, str]


class SymptomsFile(FactsFile):
    dcgm_status: DcgmStatus
    dcgm_errors: DcgmStatus
    cuda_errors: list[CudaErrorRow]
    symptoms: list[SymptomRow]


class Bridge(FactsRow):
    gpus: list[str]
    upstream: list[str]
    downstream: list[str]
    source: Keys
    note: str


class PciBridgesFile(FactsFile):
    bridges: list[Bridge]


class FloorShare(FactsRow):
    value: float
    unit: str
    source: Keys
    note: str


class Tflops(FactsRow):
    fp16: float
    tf32: float | None = None
    fp32: float | None = None


class DensePeak(FactsRow):
    skus: list[str]
    tflops: Tflops
    source: Keys
    floor_share: float | None = None
    note: str | None = None


class PerformanceFile(FactsFile):
    floor_share: FloorShare
    dense_peaks: list[DensePeak]


class NumericTolerance(FactsRow):
    precision: str
    relative: float
    absolute: float
    source: Keys
    note: str | None = None


class TolerancesFile(FactsFile):
    tolerances: list[NumericTolerance]


class StoredPrecision(FactsRow):
    key: str
    step: float
    unit: str
    source: Keys
    why: str


class PrecisionFile(FactsFile):
    precisions: list[StoredPrecision]


class BranchFloor(FactsRow):
    branch: int
    floor: str | None
    from_bulletin: str | None
    bulletin_date: str | None
    covers_newest_bulletin: bool
    branch_eol: str | None
    state: str
    source: Keys


class Bulletin(FactsRow):
    bulletin: str
    title: str
    date: str
    last_revision: str | None
    path: str
    fixed_linux_tesla: dict[str, str]
    fixed_linux_geforce_only: dict[str, str]
    linux_cves: list[str]
    max_cvss_linux: float | None
    source: Keys
    note: str | None = None


class SecurityFile(FactsFile):
    floor_per_branch: list[BranchFloor]
    bulletins: list[Bulletin]
    notes: list[Statement]


class PackageVersions(FactsRow):
    stable: str
    security: str | None = None
    backports: str | None = None


class DistributionSources(FactsRow):
    support: str | None = None
    rest: str | None = None
    glibc_kernel: str | list[str] | None = None
    driver: str | None = None


class RefusedKey(FactsRow):
    """A property that a refused key has: a hash of its self-signatures, or an algorithm (`below`: of fewer bits).

    `since`: the day from which it is refused, null if it never was accepted.
    """

    hash: str | None = None
    algorithm: str | None = None
    below: int | None = None
    since: str | None = None


class ArchiveKeys(FactsRow):
    """The program that verifies archives for apt of a release, and the keys that it refuses."""

    apt: str
    verifier: str
    refused: list[RefusedKey]
    source: Keys


class Distribution(FactsRow):
    id: str
    name: str
    glibc: str | None
    kernels: dict[str, str] | None
    # Series that later ones of the same suite have replaced: they get no more fixes.
    kernels_before: list[str] = Field(default_factory=list)
    source: DistributionSources
    codename: str | None = None
    released: str | None = None
    standard_support_until: str | None = None
    lts_until: str | None = None
    driver_packages: dict[str, str | PackageVersions] | None = None
    cuda_toolkit: str | None = None
    containers: dict[str, str] | None = None
    other: dict[str, str] | None = None
    note: str | None = None
    gcc: str | None = None
    confidence: str | None = None
    latest: str | None = None
    full_support_until: str | None = None
    maintenance_until: str | None = None
    els_until: str | None = None
    archive_keys: ArchiveKeys | None = None


class NotInDebian(FactsRow):
    packages: list[str]
    checked: list[str]
    source: Keys


class SupportedDistributions(FactsRow):
    names: list[str] = Field(alias="list")
    source: Keys
    note: str


class DebKeyring(FactsRow):
    package: str
    versions: list[str]
    file: str
    path: str


class RepositoryKey(FactsRow):
    id: str
    use: str
    file: str
    source: Keys


class Repositories(FactsRow):
    base: str
    distro_names: list[str]
    arch_names: dict[str, str]
    deb_keyring: DebKeyring
    rpm_repo_file: str
    keys: list[RepositoryKey]
    rotation: dict[str, str | None]
    source: Keys


class PackageName(FactsRow):
    name: str
    source: Keys
    meaning: str | None = None
    since: None = None
    confidence: str | None = None
    conflict: str | None = None


class ModuleStream(FactsRow):
    streams: list[str] | None
    source: Keys
    open_since: str | None = None
    profiles: list[str] | None = None
    example_open: str | None = None
    lock: str | None = None
    package: str | None = None


class PackageList(FactsRow):
    packages: list[str]
    source: Keys


class PackageNames(FactsRow):
    deb_nvidia_repo: list[PackageName]
    ubuntu_nvidia_repo_580: list[PackageName]
    ubuntu_archive: list[PackageName]
    rpm_module_streams: dict[str, ModuleStream]
    suse: PackageList
    debian_archive: PackageList
    change_of_packaging: list[Statement]


class DistrosFile(FactsFile):
    distributions: list[Distribution]
    not_in_debian: NotInDebian
    nvidia_supported_distros_610: SupportedDistributions
    repositories: Repositories
    package_names: PackageNames


class When(FactsRow):
    kernel: str | None = None
    driver: str | list[str] | None = None
    distro: str | None = None
    modules: str | None = None
    gpu_arch: str | list[str] | None = None
    driver_branch: int | str | list[int] | None = None
    host_has: list[str] | None = None
    gpu: str | list[str] | None = None
    kernel_cmdline_missing: list[str] | None = None
    feature: str | list[str] | None = None
    fabricmanager: str | None = None
    event: str | None = None
    cgroup_driver: str | None = None
    toolkit_mode: str | None = None
    selinux: str | None = None
    toolkit: str | None = None
    runtime: str | None = None
    kubernetes: str | None = None
    mig_manager: str | None = None
    os: str | None = None
    cuda_compat: str | None = None
    image: str | None = None
    cuda: str | None = None
    torch_build: str | None = None
    torch: str | None = None
    cudnn: str | None = None
    rocm: str | None = None
    amdgpu: str | None = None
    installer: str | None = None
    device_plugin: str | None = None
    dra_driver: str | None = None
    kernel_driver: str | None = None
    user_space: str | None = None


class MatchAlternative(FactsRow):
    kernel: VersionRange | None = None
    driver: VersionRange | None = None
    package: VersionRange | None = None
    architecture: list[str] | None = None
    flavour: str | None = None
    gpu: list[str] | None = None
    features: list[str] | None = None
    also: str | None = None
    torch: VersionRange | None = None
    torch_cuda: VersionRange | None = None
    cudnn: VersionRange | None = None
    rocm: VersionRange | None = None
    os_not: str | None = None
    os: str | None = None
    image: str | None = None


class Match(FactsRow):
    kernel: VersionRange | list[VersionRange] | None = None
    driver: VersionRange | list[VersionRange] | None = None
    package_not: list[VersionRange] | None = None
    flavour: str | None = None
    package: VersionRange | None = None
    os: str | None = None
    branch: VersionRange | list[VersionRange] | None = None
    packages: list[str] | None = None
    architecture: list[str] | None = None
    realtime: bool | None = None
    vendor: str | None = None
    driver_from: str | None = None
    mixed: list[list[str]] | None = None
    gpu: list[str] | None = None
    page_kib_not: int | None = None
    cmdline_lacks: list[str] | None = None
    features: list[str] | None = None
    also: str | None = None
    nvswitch: bool | None = None
    fabric_manager: str | None = None
    never: str | None = None
    toolkit_mode: str | None = None
    toolkit: VersionRange | None = None
    engine: dict[str, VersionRange] | None = None
    forward_compat: bool | None = None
    cuda_newer: bool | None = None
    image: str | None = None
    cuda: VersionRange | None = None
    torch_cuda: VersionRange | None = None
    rocm: VersionRange | None = None
    amdgpu: VersionRange | list[VersionRange] | None = None


class KnownBadRow(FactsRow):
    id: str
    when: When
    match: list[MatchAlternative] | Match
    symptom: str
    fix: str
    severity: Literal["block", "warn"]
    confidence: str
    source: Keys
    rule: str | None = None
    first_fixed: list[str] | None = None
    note: str | None = None


class KnownBadFile(FactsFile):
    known_bad: list[KnownBadRow]


class ReleaseTable(FactsRow):
    columns: list[str]
    source: Keys
    entries: list[list[str]]


class ToolkitSecurity(FactsRow):
    cve: list[str]
    affected: str
    fixed: str
    gpu_operator_fixed: str
    source: Keys
    cdi_mode_affected: bool | None = None
    conflict: str | None = None
    note: str | None = None
    cvss: dict[str, float] | None = None
    device_plugin_fixed: str | None = None
    mig_manager_fixed: str | None = None


class ToolkitBehaviour(FactsRow):
    version: str
    fact: str
    source: Keys
    known_bad: bool | None = None


class CdiInDocker(FactsRow):
    docker: str
    needs: str
    source: Keys


class CdiInPodman(FactsRow):
    podman: str
    seen: str
    toolkit: str
    source: Keys


class CdiInContainerd(FactsRow):
    containerd: str
    seen: str
    source: Keys


class RuntimeMinimum(FactsRow):
    cdi_in_docker: CdiInDocker
    cdi_in_podman: CdiInPodman
    cdi_in_containerd: CdiInContainerd
    toolkit_1_19_1_and_later_cdi_0_7: dict[str, str]
    nri_plugin: dict[str, str]
    debian_check: list[dict[str, bool | str]]
    source: Keys


class NoMinimum(FactsRow):
    value: str | None
    source: Keys | None
    note: str | None = None


class SupportedPlatforms(FactsRow):
    amd64: list[str]
    arm64: str
    source: Keys
    note: str


class ToolkitPackages(FactsRow):
    apt_repo: str
    rpm_repo: str
    names: list[str]
    debian_archive: str
    source: Keys


class OperatorComponents(FactsRow):
    drivers: list[str]
    container_toolkit: str
    device_plugin: str
    gfd: str
    dcgm: str
    dcgm_exporter: str
    mig_manager: str
    driver_manager: str
    gds: str


class LifeCycle(FactsRow):
    supported: list[str]
    deprecated: list[str]
    end_of_support: str


class GpuOperator(FactsRow):
    newest: str
    components: OperatorComponents
    containerd: str
    kubernetes: str
    life_cycle: LifeCycle
    source: Keys
    conflict: str


class DcgmSecurity(FactsRow):
    cve: str
    fixed: str
    affected: str | None = None
    cvss: float | None = None
    conflict: str | None = None


class Dcgm(FactsRow):
    releases: list[list[str]]
    dates: str
    security: list[DcgmSecurity]
    source: Keys


class ContainerToolkitFile(FactsFile):
    releases: ReleaseTable
    security: list[ToolkitSecurity]
    behaviour: list[ToolkitBehaviour]
    runtime_minimum: RuntimeMinimum
    min_driver: NoMinimum
    supported_platforms: SupportedPlatforms
    packages: ToolkitPackages
    gpu_operator: GpuOperator
    dcgm: Dcgm


class XidAction(FactsRow):
    action: str
    node: Literal["degraded", "drain", "none"]
    blast: Literal["gpu", "hardware", "node", "nothing", "process"]
    does: str
    source: Keys


class XidRow(FactsRow):
    code: int
    name: str
    action: str | None
    means: str
    source: Keys
    then: str | None = None
    conflict: str | None = None
    driver: str | None = None
    node: Literal["degraded", "drain", "none"] | None = None
    causes: list[str] = []


class UnusedXid(FactsRow):
    code: int
    name: str
    source: Keys
    action: str | None = None
    driver: str | None = None
    conflict: str | None = None


class SxidDisagreement(FactsRow):
    code: int
    conflict: str
    source: Keys


class SxidTable(FactsRow):
    source: Keys
    always_fatal: list[int]
    potentially_fatal: list[int]
    non_fatal: list[int]
    disagreements: list[SxidDisagreement]
    names: dict[int, str]


class NvlinkBitsRow(FactsRow):
    """Bits of the first register of Xid 74, and what they mean."""

    bits: list[int]
    means: str
    source: Keys


class XidFile(FactsFile):
    nvlink_bits: list[NvlinkBitsRow]
    actions: list[XidAction]
    xid: list[XidRow]
    unused: list[UnusedXid]
    sxid: SxidTable


Rung = Literal[
    "inspect",
    "service-restart",
    "gpu-reset",
    "module-reload",
    "reboot",
    "power-cycle",
    "slot-write",
    "reinstall",
    "ticket",
]


class RungRow(FactsRow):
    """A rung of the ladder: what it affects, and what it does."""

    rung: Rung
    takes: Literal["nothing", "process", "gpu", "node", "hardware"]
    does: str
    source: Keys


class ClimbOfAction(FactsRow):
    """The way of the Xids and SXids for which NVIDIA names one action. Empty: `inspect`, then a ticket."""

    action: str
    climb: list[Rung]
    source: Keys


class ClimbRow(FactsRow):
    """The way of findings, by the parts of their ids before and after the first dot, and the units to restart."""

    climb: list[Rung]
    ids: dict[str, list[str]]
    units: list[str] = Field(default_factory=list)
    why: str
    source: Keys


class LeftRow(FactsRow):
    """Findings that the ladder leaves alone."""

    ids: dict[str, list[str]]
    why: str
    source: Keys


class LadderFile(FactsFile):
    rungs: list[RungRow]
    actions: list[ClimbOfAction]
    findings: list[ClimbRow]
    left: list[LeftRow]


class LineRemedyRow(FactsRow):
    """A repair that rows of log_lines.yml share: text with SUBJECT for the device, steps of a remedy, blast radius."""

    text: str
    steps: list[Literal["site", "gpu_reset", "reboot", "command", "repair", "person"]]
    blast: Literal["nothing", "process", "gpu", "node", "hardware"]
    source: Keys


def _line_form(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f'"{text}" is no regular expression: {problem}') from None
    return text


class LogLineRow(FactsRow):
    """One form of a kernel message: see facts/log_lines.py."""

    id: str = Field(pattern=r"^[a-z0-9]+\.[a-z0-9_]+$")
    from_: str | list[str] = Field(alias="from")
    mark: str = Field(
        pattern=r'^[^\\"]{4,}$'
    )  # the journal's JSON writes quotes and backslashes otherwise
    form: Annotated[str, AfterValidator(_line_form)] | None = None
    finding: str
    severity: Literal["none", "degraded", "drain"]
    means: str
    remedy: str | None = None
    settled_by: list[str] | None = None
    limit: str | None = None
    source: Keys
    at: str  # file and function of the driver, or section of the document, with the version
    example: str | list[str]


class LogLinesFile(FactsFile):
    remedies: dict[str, LineRemedyRow]
    lines: list[LogLineRow]


class Pcie(FactsRow):
    gen: int
    width: int


class MigProfileRow(FactsRow):
    """A GPU instance profile: memory slices, first slices that it can have, and how many fit on one GPU."""

    name: str
    size: int
    starts: list[int]
    instances: int
    engines: dict[str, int] = {}
    # The first driver branch that has it, where a source names one.
    first_branch: int | None = None


class MigTableRow(FactsRow):
    """The GPU instance profiles of boards. `engines` are those of the whole board that instances share out."""

    id: str
    memory_slices: int
    compute_slices: int
    engines: dict[str, int]
    source: Keys
    profiles: list[MigProfileRow]
    # Driver branches that have this table, where another one has another.
    first_branch: int | None = None
    last_branch: int | None = None
    confidence: str | None = None
    note: str | None = None


class MigSupport(FactsRow):
    capable: bool | None
    # Ids of `mig_tables`; a site that knows only names states `profiles`.
    tables: list[str] | None = None
    profiles: list[str] | None = None


class NvidiaSources(FactsRow):
    names: str | None
    pci_ids: str
    cc: str
    data_centre: str | None
    memory_power: str | None
    pcie: str | list[str] | None
    nvlink: str | list[str] | None
    mig: str | list[str] | None
    ecc: str | None
    min_driver: str | list[str] | None
    min_cuda: str | None


class UnverifiedGpu(FactsRow):
    nvlink_links: int
    pcie: Pcie | None = None


class NvidiaGpu(FactsRow):
    sku: str
    vendor: str
    names: list[str]
    pci_ids: list[PciId]
    architecture: str
    compute_capability: str
    data_centre: bool | None
    memory_mib: MemoryMib | None
    power_limit_default_w: int | None
    pcie: Pcie | None
    nvlink_links: int | None
    mig: MigSupport
    ecc_default: str | None
    min_driver: str | None
    # The branch of the first version in `min_driver` ("A / B"), or all that is known.
    min_driver_branch: int | None
    min_cuda_native: str | None
    # The day of the first version: of later branches, only versions since then are known to list the GPU.
    min_driver_date: str | None = None
    # An older version than `min_driver`, from which on support is possible: a source names it, or its list is not known.
    possible_from: str | None = None
    source: NvidiaSources
    open_modules_required: bool
    note: str | None = None
    open_modules_supported: bool | None = None
    inferred_from_sibling_sku: list[str] | None = None
    conflict: str | None = None
    unverified: UnverifiedGpu | None = None
    inferred_from_architecture: list[str] | None = None
    note_cuda: str | None = None


class AmdSources(FactsRow):
    names: str | None
    pci_ids: str
    gfx: str
    memory: str
    power: str | None
    pcie: str | list[str] | None
    min_rocm: str


class AmdGpu(FactsRow):
    sku: str
    vendor: str
    names: list[str]
    pci_ids: list[PciId]
    architecture: str
    gfx: str
    memory_gib: int | None
    memory_mib: MemoryMib | None
    power_limit_default_w: int | None
    pcie: Pcie | None
    min_rocm: str | None
    source: AmdSources
    note: str | None = None
    min_amdgpu: str | None = None


class IntelSources(FactsRow):
    pci_ids: str
    names: str | None = None
    driver: str | list[str] | None = None
    compute_runtime: str | None = None


class IntelGpu(FactsRow):
    sku: str
    vendor: str
    pci_ids: list[PciId]
    architecture: str
    source: IntelSources
    memory_mib: None
    power_limit_default_w: None
    pcie: None
    names: list[str] = []
    # The driver of the Linux kernel that binds it without a parameter, and the first release in which it does.
    kernel_driver: Literal["i915", "xe"] | None = None
    min_kernel: str | None = None
    # Where the first release is not known: one that lists its PCI id, and one that does not.
    kernel_listed: str | None = None
    kernel_unlisted: str | None = None
    # False: no driver of the Linux kernel binds it by itself.
    in_kernel: bool | None = None
    # The first release of Intel's compute runtime (OpenCL, Level Zero) that lists its PCI id.
    compute_runtime: str | None = None
    note: str | None = None


class UnsupportedGpus(FactsRow):
    """Products that goldnode does not support, by a word of their name, and why."""

    names: list[str]
    reason: str
    source: Keys


class GpusFile(FactsFile):
    mig_tables: list[MigTableRow]
    nvidia: list[NvidiaGpu]
    amd: list[AmdGpu]
    intel: list[IntelGpu]
    not_supported: list[UnsupportedGpus]
    memory_tolerance: Statement


class EndOfLifeSources(FactsRow):
    eol: str | None = None
    dds615: str | None = None
    dds620: str | None = None


class ArchitectureRange(FactsRow):
    oldest: str
    newest: str
    source: Keys


class DriverBranch(FactsRow):
    branch: int
    type: str | None
    first_release: str | None
    eol: str | None
    eol_sources: EndOfLifeSources
    latest_known: str | None
    latest_known_date: str | None
    max_cuda: str | None
    architectures: ArchitectureRange
    open_kernel_modules: str
    # Of each: version, date, and the key of its source (or "see security.yml").
    point_releases: list[list[str | None]]
    source: Keys
    note: str | None = None
    conflict: str | None = None
    confidence: str | None = None


class KernelBuildRow(FactsRow):
    kernel: str
    first_upstream_fixed: list[str]
    # "545.x" names a whole branch, "(open)" or "(proprietary)" one flavour.
    known_to_fail: list[str]
    source: Keys
    note: str | None = None
    # Versions in Debian, each with the first package revision that has the patch.
    debian_patched: list[str] | None = None
    debian_fixed: str | None = None
    conflict: str | None = None


class ObservedBuild(FactsRow):
    kernel: str
    driver: str
    flavour: str
    builds: bool
    source: Keys


class KernelBuildTable(FactsRow):
    how_read: str
    minimum_kernel_open_modules: dict[str, str]
    maximum_kernel: str
    entries: list[KernelBuildRow]
    # An observed build outweighs the entries.
    observed_builds: list[ObservedBuild]


class FirstDriverTable(FactsRow):
    how_read: str
    source: Keys
    entries: dict[str, str]


class OperatorMinimum(FactsRow):
    gpu: str
    min_driver: str
    source: Keys
    note: str | None = None


class ArchitectureOrder(FactsRow):
    oldest_first: list[str]
    source: Keys


class GeforceParameter(FactsRow):
    name: str
    last_branch: int
    source: Keys


class OpenModuleLimits(FactsRow):
    first_branch: int
    default_from_branch: int
    first_architecture: str
    required_from_architecture: str
    only_flavour_from_branch: int
    geforce_parameter: GeforceParameter
    source: Keys
    conflict: str


class FabricManagerNames(FactsRow):
    package: str
    subnet_manager: str
    subnet_manager_from_architecture: str
    package_before: str
    plain_name_from_branch: int
    source: Keys
    note: str
    confidence: str


class DriverRules(FactsRow):
    how_read: str
    architectures: ArchitectureOrder
    open_modules: OpenModuleLimits
    fabric_manager: FabricManagerNames


class NvidiaDriversFile(FactsFile):
    facts: list[Statement]
    gsp: list[Statement]
    branches: list[DriverBranch]
    kernel_build: KernelBuildTable
    first_driver_listing_gpu: FirstDriverTable
    operator_minimum: list[OperatorMinimum]
    rules: DriverRules


class MajorMinimum(FactsRow):
    major: int
    min_driver_minor_version_compat: str
    min_branch: int
    below_branch_uses_own_family: int | None
    source: Keys
    note: str


class CudaParts(FactsRow):
    cudart: str
    nvrtc: str
    cublas: str
    cufft: str
    curand: str
    cusolver: str
    cusparse: str
    npp: str
    nvjpeg: str
    nvtx: str
    nvcc: str
    nvjitlink: str | None = None


class CudaRelease(FactsRow):
    version: str
    release_date: str | None
    release_date_kind: str | None
    release_date_source: str | None
    bundled_driver: str | None
    source: Keys
    min_driver_minor_version_compat: str
    note: str | None = None
    parts: CudaParts | None = None
    parts_source: str | None = None
    conflict: str | None = None
    confidence: str | None = None


class CudaArchitecture(FactsRow):
    arch: str
    cc: list[str]
    first_cuda: str | None
    # As the source has it: "12.x (12.9)".
    last_cuda: str | None
    last_driver_branch: int | None
    source: Keys
    note: str | None = None
    conflict: str | None = None


class GccMax(FactsRow):
    cuda_up_to: str
    gcc: int | str


class GccMin(FactsRow):
    cuda_from: str
    gcc: int


class ClangMax(FactsRow):
    cuda: str
    clang: int


class ClangMin(FactsRow):
    cuda_from: str
    clang: int


class HostCompilers(FactsRow):
    gcc_max: list[GccMax]
    gcc_min: list[GccMin]
    clang_max: list[ClangMax]
    clang_min: list[ClangMin]
    other: list[str]
    source: Keys
    confidence: str


class ForwardCompatRow(FactsRow):
    cuda: str
    image: str
    compat_package: str
    native_driver_branch_first: int
    older_driver_branches_accepted_by_image: list[int]
    brands_listed: str | None
    source: Keys
    of_which_need_cuda_compat: list[int]
    of_which_run_by_minor_version_compat: list[int]
    conflict: str | None = None


class ForwardCompatTable(FactsRow):
    how_read: str
    entries: list[ForwardCompatRow]
    not_found: list[str]


class CudaImageRange(FactsRow):
    ubi7_centos7_last: str
    ppc64le_last: str
    ubuntu2404_first: str
    amzn2023_first: str
    rockylinux10_ubi10_first: str
    source: Keys


class CudaFile(FactsFile):
    driver_minimum_per_major: list[MajorMinimum]
    rules: list[Statement]
    releases: list[CudaRelease]
    architectures: list[CudaArchitecture]
    host_compilers: HostCompilers
    forward_compat: ForwardCompatTable
    container_images: CudaImageRange


class CudnnMatrixRow(FactsRow):
    cudnn: str
    cuda: list[str]
    source: Keys
    min_cc: str | None = None
    driver: str | None = None
    note: str | None = None
    package: str | None = None
    static_link_cuda: list[str] | None = None
    min_driver: str | None = None
    cc: list[str] | None = None


class ImagePair(FactsRow):
    cuda_image: str
    nccl: list[str] | None
    cudnn: list[str] | None
    source: Keys


class ImagePairTable(FactsRow):
    how_read: str
    entries: list[ImagePair]


class WheelTable(FactsRow):
    columns: list[str]
    source: Keys
    cudnn_cu11: list[list[bool | str | list[str]]]
    cudnn_cu12: list[list[bool | str | list[str]]]
    cudnn_cu13: list[list[bool | str | list[str]]]
    nccl_cu11: list[list[bool | str | list[str]]]
    nccl_cu12: list[list[bool | str | list[str]]]
    nccl_cu13: list[list[bool | str | list[str]]]


class TensorRt(FactsRow):
    newest: str
    last_cu11: str
    source: Keys


class CudnnNcclFile(FactsFile):
    rules: list[Statement]
    cudnn_matrix: list[CudnnMatrixRow]
    image_pairing: ImagePairTable
    wheels: WheelTable
    tensorrt: TensorRt


class TorchWheel(FactsRow):
    version: str
    date: str
    requires_python: str
    python_tags: list[str]
    pypi_default_cuda: str
    cudart: str | None
    cuda_toolkit_metapackage: str | None
    cudnn: str
    nccl: str | None
    nvshmem: str | None
    triton: str | None
    source: Keys


class TorchReleaseBuilds(FactsRow):
    release: str
    cuda_builds: dict[str, CudaBuild]
    rocm_builds: list[str] | None
    source: Keys
    note: str | None = None
    conflict: str | None = None


class TorchCapabilities(FactsRow):
    releases: str
    build: str
    arch: str
    compute_capabilities: list[str] | None
    source: str | list[str] | None
    confidence: str | None = None
    note: str | None = None


class TorchRocm(FactsRow):
    releases: str
    rocm_from: str | None
    gfx: list[str] | None
    source: Keys | None
    note: str | None = None
    confidence: str | None = None


class TensorflowWheel(FactsRow):
    version: str
    date: str
    requires_python: str
    cudart: str | None
    cudnn: str | None
    nccl: str | None
    cuda_major: int | None
    source: Keys
    note: str | None = None


class JaxPlugin(FactsRow):
    plugin: str
    version: str
    date: str
    requires_python: str
    cudart: str | None
    cudnn: str | None
    nccl: str | None
    nvcc: str | None
    source: Keys


class JaxMinimum(FactsRow):
    cuda_major: int
    driver_branch: int
    compute_capability: str
    source: Keys


class VllmWheel(FactsRow):
    version: str
    date: str
    requires_python: str
    torch: str
    cuda13_pinned: bool
    source: Keys


class TritonImage(FactsRow):
    release: str
    variant: Literal["trtllm", "vllm"]
    python: str
    cuda: str
    driver: str


class TritonImages(FactsRow):
    how_read: str
    source: Keys
    entries: list[TritonImage]


class ImageContent(FactsRow):
    image: str
    first: str
    last: str
    source: Keys
    cuda: str | None = None
    torch: str | None = None
    python: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    forward_compat: bool | None = None
    # The least that its notes support.
    compute_capability: str | None = None
    note: str | None = None
    confidence: str | None = None


class ImageContents(FactsRow):
    how_read: str
    entries: list[ImageContent]


class EngineMinimum(FactsRow):
    engine: str
    first: str
    compute_capability: str
    source: Keys
    driver_branch: int | None = None
    # GPUs up to this capability need `old_driver_branch`, a later branch than the others.
    old_capability: str | None = None
    old_driver_branch: int | None = None
    rocm: str | None = None
    note: str | None = None
    confidence: str | None = None


class EngineMinima(FactsRow):
    how_read: str
    newest: dict[str, str]
    source: Keys
    entries: list[EngineMinimum]


class TensorRtRelease(FactsRow):
    release: str
    cuda: list[str]
    source: Keys
    confidence: str | None = None


class OnnxRuntime(FactsRow):
    releases: str
    cuda: str
    cuda_major: int
    cudnn: str
    source: Keys
    note: str | None = None


class FrameworksFile(FactsFile):
    torch_wheels: list[TorchWheel]
    torch_builds: list[TorchReleaseBuilds]
    torch_compute_capabilities: list[TorchCapabilities]
    torch_rocm_architectures: list[TorchRocm]
    torch_rules: list[Statement]
    tensorflow: list[TensorflowWheel]
    tensorflow_note: str
    tensorflow_compute_capability: MinimumCapability
    jax_plugins: list[JaxPlugin]
    jax_minimum: list[JaxMinimum]
    jax_rules: list[Statement]
    vllm: list[VllmWheel]
    vllm_compute_capability: MinimumCapability
    triton_images: TritonImages
    image_contents: ImageContents
    engine_minimum: EngineMinima
    tensorrt: list[TensorRtRelease]
    onnxruntime: list[OnnxRuntime]


class WheelReleaseRow(FactsRow):
    version: str
    python: str | None
    wheels: dict[str, str]
    requires: list[str] | None
    missing: list[str] | None = None


class WheelPackageRow(FactsRow):
    name: str
    source: Keys
    releases: list[WheelReleaseRow]


class PackageNeed(FactsRow):
    names: list[str]
    versions: str | None = None
    compute_capability: str | None
    note: str | None = None
    source: Keys


class GpuWheelRow(FactsRow):
    name: str
    version: str | None
    wheels: dict[str, str] | None = None
    file: str | None = None
    sha256: str | None = None
    requires: list[str] | None = None
    code: list[str] | None = None
    ptx: list[str] | None = None
    needs: list[str] | None = None
    source: Keys


class GpuWheelsFile(FactsFile):
    packages: list[GpuWheelRow]


class WheelsFile(FactsFile):
    packages: list[WheelPackageRow]
    needs: list[PackageNeed]


class RocmRelease(FactsRow):
    version: str
    date: str | None
    source: Keys
    os: list[str] | None = None
    gfx: list[str] | None = None
    pytorch: str | None = None
    tensorflow: str | None = None
    jax: str | None = None
    rccl: str | None = None
    kmd_tested_user_space: str | None = None
    conflict: str | None = None
    kmd: str | None = None
    adds: list[str] | None = None
    amdgpu: str | None = None
    note: str | None = None
    compatible_amdgpu: list[str] | None = None
    known_issue: str | None = None
    confidence: str | None = None


class UserSpaceRow(FactsRow):
    kmd: str
    user_space: str


class UserSpaceWindow(FactsRow):
    rule: str
    source: Keys
    entries: list[UserSpaceRow]
    conflict: str


class AmdgpuDriver(FactsRow):
    split: Statement
    releases: list[list[str | None]]
    notes: list[str]
    module_versions: dict[str, str]
    user_space_window: UserSpaceWindow
    source: Keys


class SystemKernel(FactsRow):
    os: str
    kernel: str | None


class CurrentSystems(FactsRow):
    # `list` as the name of a field would hide the type of that name in the class.
    names: list[SystemKernel] = Field(alias="list")
    amdgpu: str
    source: Keys
    note: str


class KernelGlibcTable(FactsRow):
    entries: list[list[str]]
    source: Keys


class Pointer(FactsRow):
    see: str
    source: Keys


class RepositoryUrls(FactsRow):
    legacy: str
    drivers: str
    source: Keys


class RocmFile(FactsFile):
    releases: list[RocmRelease]
    os_footnotes: dict[str, str]
    gfx_of_gpu: dict[str, str | list[str]]
    gfx_rules: list[Statement]
    amdgpu_driver: AmdgpuDriver
    operating_systems_current: CurrentSystems
    kernel_glibc_of_641: KernelGlibcTable
    pytorch_builds: Pointer
    field_use: Statement
    repo_url: RepositoryUrls


class MeasuredBuild(FactsRow):
    """One build of a driver package's modules for one kernel package, as `goldnode modules matrix --packages` records it."""

    package: str
    version: str  # of the driver package, the distribution's revision included
    driver: str  # upstream version
    flavour: Literal["open", "proprietary"]
    kernel: str  # release, as `uname -r` shows it
    kernel_version: str  # of the kernel's package
    architecture: str
    os: str  # codename of the release whose compiler built it
    outcome: Literal[
        "builds", "fails", "excluded"
    ]  # excluded: the package's dkms.conf rules this kernel out
    compiler: str
    line: str | None = None  # the first error line
    seconds: float
    date: str
    source: Keys


def module_build_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what identifies a measured build: driver package and version, flavour, kernel and its version, architecture."""
    names = ("package", "version", "flavour", "kernel", "kernel_version", "architecture")
    return tuple(str(row[name]) for name in names)


class ModuleBuildsFile(FactsFile):
    builds: list[MeasuredBuild]


class PartOnNode(FactsRow):
    """Where a node shows the version of a part, besides its packages.

    `when`: the module shows this value only. `shown`: versions of which the module shows another one.
    """

    source: Keys
    module: str | None = None
    program: list[str] | None = None
    packages: list[str] | None = None  # in place of those of the part
    when: str | None = None
    shown: dict[str, str] = Field(default_factory=dict)


class PartFact(FactsRow):
    """A part that a class or stack can declare, and how it is found in a lock and among modules."""

    title: str
    family: Literal["communication", "fabric", "kubernetes", "monitoring", "network", "storage"]
    packages: list[str]
    modules: list[str]
    source: Keys
    # Versions that the sources cover; absent: each row states its own.
    read: list[VersionRange] = Field(default_factory=list)
    node: PartOnNode | None = None


class DocaRelease(FactsRow):
    doca: str
    ofed: str
    source: Keys
    note: str | None = None
    confidence: str | None = None


class PartBuild(FactsRow):
    """Kernels of a system that a publisher lists for versions of a part. `vanilla` is kernel.org's."""

    part: str
    os: str
    kernels: list[str]
    versions: list[VersionRange]
    source: Keys
    confidence: str | None = None


class FirstForKernel(FactsRow):
    part: str
    kernel: str
    first: str
    source: Keys
    note: str | None = None


class NewestKernel(FactsRow):
    part: str
    kernel: str
    versions: list[VersionRange]
    source: Keys
    confidence: str | None = None


class PartNeed(FactsRow):
    """A condition of a part on one other thing of the node. `os` and `os_not` limit where it is judged."""

    part: str
    otherwise: Literal["block", "warn", "unknown"]
    effect: str
    source: Keys
    versions: list[str] = Field(default_factory=list)  # empty: all
    os: list[str] = Field(default_factory=list)
    os_not: list[str] = Field(default_factory=list)
    kernel: VersionRange | None = None
    driver: VersionRange | Literal["same"] | None = None
    flavour: Literal["open", "proprietary"] | None = None
    architecture_from: str | None = None
    systems: list[str] | None = None
    toolkit: VersionRange | None = None
    engine: dict[str, VersionRange] | None = None
    engine_not: str | None = None
    # Another part: any version, none, or a range, which is judged if the other part is declared.
    other: dict[str, VersionRange | Literal["any", "none"]] | None = None

    @model_validator(mode="after")
    def _one_condition(self) -> PartNeed:
        kinds = ("kernel", "driver", "flavour", "architecture_from", "systems", "toolkit")
        stated = [name for name in (*kinds, "engine", "engine_not", "other") if getattr(self, name)]
        if len(stated) != 1:
            raise ValueError(
                f"the row states {', '.join(stated) or 'no condition'} | state exactly one condition"
            )
        return self


class PartFault(FactsRow):
    part: str
    versions: list[VersionRange]
    otherwise: Literal["block", "warn"]
    effect: str
    use: str | None
    source: Keys


class ExporterMismatch(FactsRow):
    effect: str
    source: Keys


class ExporterBreak(FactsRow):
    version: str
    effect: str
    source: Keys


class ExporterPairs(FactsRow):
    pairs: list[list[str]]  # DCGM, exporter
    source: Keys
    mismatch: ExporterMismatch
    breaks_at: ExporterBreak


class LustreReleases(FactsRow):
    long_term: list[str]
    source: Keys


class KubeletSkewBefore(FactsRow):
    version: str
    behind: int


class KubeletSkew(FactsRow):
    behind: int
    behind_before: KubeletSkewBefore
    source: Keys


class KubernetesContainerd(FactsRow):
    kubernetes: str
    containerd: list[VersionRange]
    source: Keys


class CoexistRow(FactsRow):
    """The judgement of two versions of a part among the nodes of one job or cluster."""

    part: str
    among: Literal["job", "cluster"]
    differ: Literal["fits", "warn", "block", "unknown"]
    effect: str
    source: Keys
    both: VersionRange | None = None
    either: VersionRange | None = None


class PartsFile(FactsFile):
    parts: dict[str, PartFact]
    doca_releases: list[DocaRelease]
    builds_on: list[PartBuild]
    first_for_kernel: list[FirstForKernel]
    newest_kernel: list[NewestKernel]
    needs: list[PartNeed]
    faults: list[PartFault]
    exporter: ExporterPairs
    lustre: LustreReleases
    kubelet_skew: KubeletSkew
    kubernetes_containerd: list[KubernetesContainerd]
    coexist: list[CoexistRow]


# The model of each file.
FILES: dict[str, type[FactsFile]] = {
    "module_builds.yml": ModuleBuildsFile,
    "health.yml": HealthFile,
    "symptoms.yml": SymptomsFile,
    "pci_bridges.yml": PciBridgesFile,
    "performance.yml": PerformanceFile,
    "tolerances.yml": TolerancesFile,
    "precision.yml": PrecisionFile,
    "security.yml": SecurityFile,
    "distros.yml": DistrosFile,
    "known_bad.yml": KnownBadFile,
    "container_toolkit.yml": ContainerToolkitFile,
    "xid.yml": XidFile,
    "log_lines.yml": LogLinesFile,
    "ladder.yml": LadderFile,
    "gpus.yml": GpusFile,
    "nvidia_drivers.yml": NvidiaDriversFile,
    "cuda.yml": CudaFile,
    "cudnn_nccl.yml": CudnnNcclFile,
    "frameworks.yml": FrameworksFile,
    "rocm.yml": RocmFile,
    "wheels.yml": WheelsFile,
    "gpu_wheels.yml": GpuWheelsFile,
    "parts.yml": PartsFile,
}
