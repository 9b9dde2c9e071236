"""The class document: what a node class is, for nodes, images and checks (/etc/goldnode/class.json)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from goldnode.catalog import models
from goldnode.documents.base import Day, Digest, Part


class ClassWaiver(Part):
    """Permission to use a stack past its end of life."""

    reason: str
    owner: str
    expires: Day


class ClassStack(Part):
    """The locked stack of the class. `exercised` is where it was tried, `limits` are known restrictions."""

    name: str
    exercised: str
    end_of_life: Day
    limits: list[str]
    waiver: ClassWaiver | None


class ClassLock(Part):
    """The lock of the stack, and the day on which it was resolved."""

    digest: Digest
    resolved: Day


class ClassGpu(Part):
    """The GPUs of the class. `pci_ids` are all that boards of the model have.

    With the model `auto`, the node's own GPUs count: `models` has those that fit by PCI id, `unfit` the reason
    against each of the others.
    """

    vendor: Literal["nvidia", "amd", "intel"]
    model: str
    count: int = Field(ge=1)
    pci_ids: list[str]
    architecture: str | None
    models: dict[str, str] | None = None
    unfit: dict[str, str] | None = None


class ClassPlatform(Part):
    """The board that the GPUs are on."""

    name: str | None
    nvswitch: bool


class ClassKernel(Part):
    """The kernel's release and its packages."""

    release: str
    image: str
    headers: str
    page_kib: int | None = Field(default=None, description="size of its pages, KiB")


class ClassDriver(Part):
    """The GPU driver. The keys from `built` on are there for prebuilt modules only."""

    vendor: Literal["nvidia", "amd", "intel"]
    branch: str | None
    version: str | None
    flavour: Literal["open", "proprietary"] | None
    module: str
    in_tree: bool
    dkms: dict[str, str] | None = Field(description="package and name of the DKMS module")
    family: list[str] = Field(description="patterns of the packages that belong to the driver")
    library: str | None
    options: dict[str, Any] = Field(description="options of the module")
    built: Literal["prebuilt"] | None = None
    package: str | None = None
    replaces: list[str] | None = None
    signed: bool | None = None
    signer: str | None = None


class ClassToolkit(Part):
    """The container toolkit, and why it runs in this mode."""

    vendor: str
    version: str | None
    mode: Literal["legacy", "cdi"]
    why: str


class ClassRuntime(Part):
    """The container engine."""

    engine: str
    package: str
    version: str
    default: bool = Field(description="true if the GPU runtime is the engine's default")
    toolkit: ClassToolkit | None
    cgroup_driver: Literal["systemd"] | None = Field(
        default=None, description="who makes the control groups of pods (containerd)"
    )


class ClassPackage(Part):
    """One package of the stack set."""

    name: str
    version: str
    architecture: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(description="bytes")
    part: str
    requested: bool = Field(description="false if it is there as a dependency")


class ClassArchive(Part):
    """One package archive of the site. `key` is base64 of the armoured key, for the file `signed_by`."""

    id: str
    uri: str
    suite: str
    components: list[str]
    signed_by: str
    fingerprints: list[str]
    key: str | None
    accept_expired: bool = Field(
        default=False, description="its indexes may be past their Valid-Until date"
    )


class ClassSite(Part):
    """The values that depend on the site. They are not part of the digest."""

    archives: list[ClassArchive]
    only: bool | None = Field(
        None, description="packages of the stack come from these archives alone"
    )
    gate: dict[Literal["drain", "resume"], list[str]] | None = None


class ClassHealth(Part):
    """Reference values of the health check: limits, facts of the GPU model, and the class's baseline."""

    limits: dict[str, Any]
    gpu: dict[str, Any] | None = None
    models: dict[str, dict[str, Any]] | None = Field(
        None, description="facts by PCI id, for the model auto"
    )
    on_package: list[str] | None = None
    cuda: dict[str, dict[str, str]] | None = None
    baseline: dict[str, Any] | None = None


class DeclaredPart(Part):
    """A part that no lock holds, and what shows its version on a node: packages, a module, a program.

    `shown` is the version that its module shows, where that differs from that of the release.
    """

    name: str
    title: str
    version: str
    packages: list[str]
    module: str | None
    program: list[str] | None
    shown: str | None


class ClassReturnTests(Part):
    """Jobs that the gate wants passed before the node returns, by cause; only those that the class declares."""

    after_xid: list[str] = Field(default_factory=list)
    after_repair: list[str] = Field(default_factory=list)
    after_absence: list[str] = Field(default_factory=list)
    absence_days: float | None = None


class ClassDocument(Part):
    """A node class, compiled from the catalog, the facts and the lock.

    `policy`, `baseline`, `suppressions`, `compat`, `serve`, `follow` and `scratch` have the keys of the class file
    (schemas/class.json); overrides of the policy name the PCI ids of their model in addition.
    """

    schema_: Literal["goldnode.class/1"] = Field(alias="schema")
    class_: str = Field(alias="class")
    digest: Digest = Field(description="of all keys but `digest` and `site`")
    backend: models.Backend
    simulated: bool
    gate: Literal["report", "drain", "block"]
    os: models.OperatingSystem
    stack: ClassStack
    lock: ClassLock
    gpu: ClassGpu | None
    platform: ClassPlatform
    kernel: ClassKernel
    driver: ClassDriver | None
    runtime: ClassRuntime | None
    modules: list[dict[str, Any]]
    blacklist: list[str] = Field(description="modules that must not bind the GPU")
    fence: list[str] = Field(description="packages that must not be installed")
    packages: list[ClassPackage]
    policy: dict[str, Any]
    baseline: dict[str, Any]
    site: ClassSite
    health: ClassHealth
    suppressions: list[dict[str, Any]] | None = None
    xid: dict[str, list[str | None]] | None = Field(
        None, description="Xid or SXid -> action, effect on the node, name"
    )
    compat: dict[str, Any] | None = None
    exceptions: list[dict[str, Any]] | None = Field(
        None,
        description="findings that the site accepts for this class: see `exceptions` of the site file",
    )
    mitigations: list[dict[str, Any]] | None = Field(
        None,
        description="mitigations of vulnerabilities that are in force: their settings are in blacklist and policy",
    )
    serve: dict[str, Any] | None = None
    follow: dict[str, Any] | None = None
    scratch: dict[str, Any] | None = None
    return_tests: ClassReturnTests | None = None
    parts: list[DeclaredPart] | None = None
