"""Models of the catalog's files: stack, platform, node class, archive. Unknown keys are errors everywhere.

The models validate each file on its own. `catalog.checks` covers rules that need the facts or another file.
"""

# No `from __future__ import annotations`: pydantic would compile the text of each annotation at each start.

import datetime as dt
import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PositiveInt,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from goldnode.catalog.tiers import Tier
from goldnode.core.evidence_kinds import EvidenceKind

Backend = Literal["cuda", "rocm", "oneapi", "cpu"]
Vendor = Literal["nvidia", "amd", "intel"]

# The optional part of every stack whose modules are not built on nodes: headers and compiler of its kernel.
KERNEL_HEADERS = "kernel-headers"

# Names of classes are names of Ansible groups.
_NAME = re.compile(r"^[a-z0-9][a-z0-9_]*$")
# Debian policy, section 5.6: at least two characters.
_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9.+-]+$")


def _name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError(
            f'"{value}" is not a name | use lower-case letters, digits and "_": an Ansible group must be '
            "able to carry it"
        )
    return value


def _package(value: str) -> str:
    if not _PACKAGE.match(value):
        raise ValueError(f'"{value}" is not a Debian package name | correct the name')
    return value


def _formed(pattern: str, fault: str) -> Any:
    """Return a validator for text that must match `pattern`. `fault` is its error: "description | remedy"."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            shown = value.replace("\n", "\\n")
            raise ValueError(f'"{shown}" is {fault}')
        return value

    return AfterValidator(check)


def _date(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            raise ValueError(f'"{value}" is not a date | write it as YYYY-MM-DD') from None
    return value


Name = Annotated[str, AfterValidator(_name)]
Package = Annotated[str, AfterValidator(_package)]
# Strict mode takes no text for a date, and YAML yields a date only where it is unquoted.
IsoDate = Annotated[dt.date, BeforeValidator(_date)]
Sentence = Annotated[str, Field(min_length=1)]

_VERSION = r"^\d+(\.\d+)*[A-Za-z0-9.+_-]*$"
Version = Annotated[
    str,
    _formed(_VERSION, "not a version | write numbers joined by dots, in quotes"),
    Field(json_schema_extra={"pattern": _VERSION}),
]

# Text that ends up in files read by modprobe, dkms, the kernel's hook and GRUB. Each value is one word there,
# so no value may contain a separator or quote.
_MODULE, _TREE = r"^[A-Za-z0-9][A-Za-z0-9_-]*$", r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
_OPTION, _OPTION_VALUE = r"^[A-Za-z0-9_]+$", r"^[^\s\"'\\]*$"
_WORD, _UUID = r"^[A-Za-z0-9_.-]+(=[^\s\"'$`\\]*)?$", r"^GPU-[0-9a-f-]{36}$"
ModuleName = Annotated[
    str,
    _formed(_MODULE, "not the name of a kernel module | write it as `modinfo` knows it"),
    Field(json_schema_extra={"pattern": _MODULE}),
]
DkmsName = Annotated[
    str,
    _formed(_TREE, "not a name of DKMS | write it as `dkms status` shows it"),
    Field(json_schema_extra={"pattern": _TREE}),
]
OptionName = Annotated[
    str,
    _formed(_OPTION, "not the name of a module's option | write it as `modinfo -p` shows it"),
    Field(json_schema_extra={"pattern": _OPTION}),
]
OptionValue = Annotated[
    str,
    _formed(
        _OPTION_VALUE,
        "not one word of modprobe's configuration | write it without spaces, quotes and backslashes",
    ),
    Field(json_schema_extra={"pattern": _OPTION_VALUE}),
]
CmdlineWord = Annotated[
    str,
    _formed(
        _WORD,
        "not one word of the kernel command line | write key or key=value, without spaces, quotes, dollar "
        "signs and backslashes, which a shell would read in GRUB's configuration",
    ),
    Field(json_schema_extra={"pattern": _WORD}),
]
# A domain may have more than four digits: 10000 for devices behind Intel's VMD.
_PCI_ID, _PCI_ADDRESS = (
    r"^[0-9a-f]{4}:[0-9a-f]{4}$",
    r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$",
)
_PATH, _UNIT = (
    r"^/[^\x00-\x1f]*$",
    r"^[A-Za-z0-9:_.\\@-]+\.(service|socket|target|timer|mount|path)$",
)
PciId = Annotated[
    str,
    _formed(_PCI_ID, "not a PCI id | write vendor:device in small letters, as `lspci -n` shows it"),
    Field(json_schema_extra={"pattern": _PCI_ID}),
]
PciAddress = Annotated[
    str,
    _formed(_PCI_ADDRESS, "not a PCI address | write it as sysfs does: 0000:18:00.0"),
    Field(json_schema_extra={"pattern": _PCI_ADDRESS}),
]
AbsolutePath = Annotated[
    str,
    _formed(_PATH, "not an absolute path | begin it with /"),
    Field(json_schema_extra={"pattern": _PATH}),
]
Unit = Annotated[
    str,
    _formed(_UNIT, "not the name of a unit | write it with its end: nvidia-persistenced.service"),
    Field(json_schema_extra={"pattern": _UNIT}),
]
GpuUuid = Annotated[
    str,
    _formed(_UUID, "not the UUID of a GPU | write it as `nvidia-smi -L` shows it"),
    Field(json_schema_extra={"pattern": _UUID}),
]


class Strict(BaseModel):
    """Base of all catalog models: no unknown keys, no silent type conversion, immutable."""

    # defer_build: a run uses few of these models, and building all validators delays its start.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=True, defer_build=True
    )


class OperatingSystem(Strict):
    """The OS release a stack is for."""

    id: Literal["debian", "ubuntu"] = Field(description="ID of os-release.")
    version: str = Field(
        description="VERSION_ID of os-release, in quotes; Debian's next release has none yet, and is `14`."
    )
    codename: str = Field(description="VERSION_CODENAME of os-release.")
    architecture: Literal["amd64", "arm64"] = Field(
        description="Debian's name of the architecture."
    )

    @property
    def release(self) -> str:
        """Return the release as archives and facts name it: debian13, ubuntu2404."""
        return f"{self.id}{self.version.replace('.', '')}"


class Kernel(Strict):
    """The kernel of a stack: one exact release, or the newest release of a series.

    If modules are built on nodes, both image and headers of the newest release must exist.
    """

    series: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = Field(
        default=None, description='Mainline series, for instance "6.1".'
    )
    flavour: str | None = Field(
        default=None, description="End of the release name, for instance amd64."
    )
    release: str | None = Field(default=None, description="Exact release as `uname -r` shows it.")
    page_kib: Literal[4, 16, 64] | None = Field(
        default=None,
        description="Page size that the kernel is built with, KiB (arm64 has three); null: not judged.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.release is None and self.series is None:
            raise ValueError(
                "a kernel needs either `series` and `flavour`, or `release` | write one of the two"
            )
        if self.release is not None and self.series is not None:
            raise ValueError(
                "a kernel needs either `series` and `flavour`, or `release` | keep one of the two"
            )
        if (self.series is None) != (self.flavour is None):
            raise ValueError(
                "`series` and `flavour` belong together | write both, or `release` alone"
            )
        # Debian's and Ubuntu's kernels with larger pages end with their size: arm64-16k, nvidia-64k.
        named = re.search(r"-(16|64)k$", self.release or self.flavour or "")
        if named and self.page_kib not in (None, int(named[1])):
            raise ValueError(
                f"a kernel whose name ends with -{named[1]}k has pages of {named[1]} KiB, not of "
                f"{self.page_kib} | write page_kib: {named[1]}"
            )
        return self


class Dkms(Strict):
    """Name and package of a module's source in DKMS."""

    name: DkmsName = Field(description="Name in `dkms status`.")
    package: Package = Field(description="Package that ships the source.")


class Flavour(Strict):
    """The packages of another flavour of the same driver, for `goldnode modules matrix`."""

    module: ModuleName = Field(description="Name modinfo knows the module by.")
    dkms: Dkms = Field(description="How DKMS knows this flavour's source.")
    replace: dict[Package, Package] = Field(
        default_factory=dict,
        description="Packages of the stack's own flavour that packages of the other flavour replace, besides the DKMS package.",
    )


class FabricManager(Strict):
    """The NVSwitch daemon; installed only if the platform has NVSwitch."""

    package: Package = Field(
        description="Its package, as the facts call it for the driver's branch."
    )


class Driver(Strict):
    """The GPU driver family of a stack."""

    vendor: Vendor = Field(
        description="Vendor of the driver; determines the backend of its classes."
    )
    # Text, as the facts compare it: unquoted, YAML would make a number of it.
    branch: Annotated[str, Field(pattern=r"^\d+$")] | None = Field(
        default=None,
        description="NVIDIA driver branch, in quotes; null for the kernel's own driver.",
    )
    flavour: Literal["open", "proprietary", "auto"] | None = Field(
        default=None,
        description=(
            "Flavour of the NVIDIA kernel modules. auto: by the GPU's architecture, for packages that carry "
            "both."
        ),
    )
    version: str | None = Field(
        default=None,
        description="Exact upstream version; null: the newest of the branch that is complete.",
    )
    module: ModuleName = Field(description="Name modinfo knows the module by.")
    dkms: Dkms | None = Field(
        default=None,
        description="How DKMS knows the module's source; null: the module comes with the kernel.",
    )
    library: str | None = Field(default=None, description="soname of the management library.")
    packages: list[Package] = Field(min_length=1, description="Packages the stack asks for.")
    lockstep: list[Package] = Field(
        default_factory=list,
        description="Packages whose upstream version must be the driver's: module, libraries, GSP firmware.",
    )
    family: list[str] = Field(
        min_length=1,
        description=(
            "Globs of all packages of this vendor's drivers; the last match decides, a leading ! takes out."
        ),
    )
    fabric_manager: FabricManager | None = Field(
        default=None,
        description="NVSwitch's daemon; installed only where the platform has NVSwitch.",
    )
    other_flavours: dict[Literal["open", "proprietary"], Flavour] = Field(
        default_factory=dict,
        description=(
            "Flavours the archive also has; never installed, only built by `goldnode modules matrix`."
        ),
    )

    @property
    def in_tree(self) -> bool:
        """Return whether the module comes with the kernel."""
        return self.dkms is None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.vendor == "nvidia":
            # Branch and flavour decide which facts apply: end of life, security floor, kernels.
            for key in ("branch", "flavour", "dkms"):
                if getattr(self, key) is None:
                    raise ValueError(f"an NVIDIA driver needs `{key}` | add it")
            if self.version is not None and not self.version.startswith(f"{self.branch}."):
                raise ValueError(
                    f'version "{self.version}" is not of branch "{self.branch}" | correct one of the two'
                )
        elif self.branch is not None or self.flavour is not None:
            raise ValueError("`branch` and `flavour` are of NVIDIA drivers only | remove them")
        stray = [name for name in self.lockstep if name not in self.packages]
        if stray:
            raise ValueError(
                f'lockstep package "{stray[0]}" is not among `packages` | add it there'
            )
        if self.dkms is not None and self.dkms.package not in self.packages:
            raise ValueError(
                f'the DKMS package "{self.dkms.package}" is not among `packages` | add it there'
            )
        return self


class EndOfLife(Strict):
    """The last day on which the stack is supported, and the source of that date."""

    date: IsoDate = Field(description="The last day of support; after it the stack needs a waiver.")
    source: Sentence = Field(description="Source: who states it, and where.")


class Waiver(Strict):
    """Permission to use a stack past its end of life."""

    reason: Sentence = Field(description="Why the stack is still used.")
    owner: Sentence = Field(description="Person or team who decided it.")
    expires: IsoDate = Field(description="The last day on which it is valid.")
    classes: list[Name] = Field(
        default_factory=list, description="Classes it is given to; empty: all."
    )


class Toolkit(Strict):
    """The packages that give containers access to the GPUs."""

    vendor: Literal["nvidia", "amd"] = Field(
        description="Vendor of the GPUs for containers; the driver's vendor. Intel's need none: give containers /dev/dri."
    )
    packages: list[Package] = Field(
        default_factory=list,
        description=(
            "All of its packages, which have one version. Not needed for AMD's GPUs: goldnode writes their CDI spec."
        ),
    )
    version: str | None = Field(
        default=None,
        description="Exact upstream version; null: the newest at or above the safe floor.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.vendor == "nvidia" and not self.packages:
            raise ValueError("NVIDIA's toolkit needs `packages` | name all of them")
        if self.vendor == "amd" and (self.packages or self.version):
            raise ValueError(
                "AMD's GPUs get into containers without packages | remove `packages` and `version`"
            )
        return self


class Runtime(Strict):
    """The container engine of a stack and its GPU support."""

    engine: Literal["docker", "containerd", "podman"] = Field(description="The container engine.")
    package: Package = Field(description="The package whose version is the engine's.")
    packages: list[Package] = Field(min_length=1, description="Packages the stack asks for.")
    toolkit: Toolkit | None = Field(
        default=None, description="Gives containers access to the GPUs; null: they have none."
    )
    default: bool = Field(
        default=False, description="Whether the GPU runtime is the engine's default one."
    )
    cgroup_driver: Literal["systemd"] | None = Field(
        default=None,
        description="Makes the control groups of pods. containerd's own choice is cgroupfs; Kubernetes wants systemd's. null: as config.toml says.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.cgroup_driver is not None and self.engine != "containerd":
            raise ValueError(
                f"`cgroup_driver` is a setting of containerd, and the engine is {self.engine} | remove it"
            )
        if self.package not in self.packages:
            raise ValueError(
                f'the engine\'s package "{self.package}" is not among `packages` | add it there'
            )
        return self


class KernelModule(Strict):
    """Another out-of-tree module. The list is in load order."""

    name: ModuleName = Field(description="Name modinfo knows it by.")
    package: Package | None = Field(
        default=None, description="Package that contains it; null: the GPU driver's own packages."
    )
    dkms: DkmsName | None = Field(
        default=None,
        description="Name in `dkms status`; null: the package contains it built, or the driver's dkms builds it.",
    )
    before_driver: bool = Field(
        default=False, description="Built and loaded before the GPU driver, as OFED is."
    )
    load: bool = Field(default=True, description="Loaded at boot.")
    after: list[str] = Field(
        default_factory=list, description="Modules that have to be loaded before it."
    )


_OPTION_NAME = r"^[a-z0-9][a-z0-9-]*$"
OptionalPart = Annotated[
    str,
    _formed(
        _OPTION_NAME, "not the name of an optional part | use lower-case letters, digits and -"
    ),
    Field(json_schema_extra={"pattern": _OPTION_NAME}),
]


class StackOption(Strict):
    """An optional part of a stack: locked when a class names it in `options`, installed and held on its nodes only."""

    description: Sentence = Field(description="Short description, for readers of the file.")
    packages: list[Package] = Field(min_length=1, description="Packages the part asks for.")
    archives: list[str] = Field(
        default_factory=list,
        description="Archive ids that only this part needs, after those of the stack.",
    )
    follows: Literal["driver", "itself"] | None = Field(
        default=None,
        description=(
            "driver: every package has exactly the driver's upstream version. itself: its packages carry one "
            "version. null: apt chooses."
        ),
    )
    source: Sentence = Field(description="Sources of the names and the version rule.")


class Parts(Strict):
    """Versions of further parts of a node and its cluster, as text; `goldnode check` judges them.

    A part whose package is locked has the version of the lock, and needs no entry.
    """

    ofed: Version | None = Field(
        default=None, description="MLNX_OFED, as `ofed_info -s` shows it: 24.10-2.1.8.0."
    )
    doca: Version | None = Field(
        default=None, description="DOCA-Host with DOCA-OFED, by its release: 3.1.0."
    )
    gpudirect_rdma: Literal["dma-buf", "peermem"] | None = Field(
        default=None,
        description="How network adapters reach GPU memory: by the kernel's DMA-BUF, or by nvidia-peermem.",
    )
    gdrcopy: Version | None = Field(default=None, description="GDRCopy with its module gdrdrv.")
    nccl: Version | None = Field(
        default=None, description="NCCL of programs that run without an image."
    )
    ucx: Version | None = Field(default=None, description="UCX of programs without an image.")
    openmpi: Version | None = Field(
        default=None, description="Open MPI of programs without an image."
    )
    nvidia_fs: Version | None = Field(
        default=None, description="nvidia-fs, the module of GPUDirect Storage."
    )
    lustre: Version | None = Field(default=None, description="Lustre client.")
    lustre_server: Version | None = Field(
        default=None, description="Lustre release of the servers whose file systems are mounted."
    )
    dcgm: Version | None = Field(
        default=None, description="DCGM with its host engine, on the node or as a pod."
    )
    dcgm_exporter: Version | None = Field(
        default=None,
        description="DCGM exporter: the tag of its image, 4.5.3-4.8.2, or its version.",
    )
    imex: Version | None = Field(
        default=None, description="IMEX, for memory shared between the nodes of an NVLink domain."
    )
    nvlsm: Version | None = Field(default=None, description="NVLink subnet manager.")
    kubernetes: Version | None = Field(default=None, description="Kubelet of the node.")
    kubernetes_control_plane: Version | None = Field(
        default=None, description="Kubernetes API server of the cluster."
    )
    device_plugin: Version | None = Field(
        default=None, description="NVIDIA's device plugin for Kubernetes."
    )
    dra_driver: Version | None = Field(
        default=None, description="DRA driver for NVIDIA GPUs, without the leading v."
    )
    gpu_operator: Version | None = Field(
        default=None, description="NVIDIA's GPU operator, without the leading v."
    )


class Stack(Strict):
    """Kernel, driver, container engine and toolkit for one OS release. A lock pins exact versions."""

    stack: Name = Field(
        description="Name of the stack and of its file: lower-case letters, digits and _."
    )
    description: str | None = Field(
        default=None, description="Short description, for readers of the file."
    )
    os: OperatingSystem = Field(description="The OS release it is for.")
    exercised: Literal["debian-archive", "local-archive", "none"] = Field(
        description=(
            "Source of its packages in tests: the real archive, a local archive with the same dependencies, "
            "or none."
        )
    )
    archives: list[str] = Field(min_length=1, description="Archive ids of archives.yml.")
    from_archives: dict[str, list[str]] = Field(
        default_factory=dict,
        description=(
            "Archives of a second release, such as backports: id -> the packages (globs) that come from there, "
            "and nothing else does. `archives` names them too."
        ),
    )
    kernel: Kernel = Field(
        description="Which kernel: `series` with `flavour`, or one exact `release`."
    )
    driver: Driver | None = Field(description="The GPU driver; null for machines without a GPU.")
    runtime: Runtime | None = Field(
        default=None, description="The container engine, and its way to the GPUs; null: none."
    )
    modules: list[KernelModule] = Field(
        default_factory=list, description="Other out-of-tree modules, in the order of loading."
    )
    packages: list[Package] = Field(
        default_factory=list, description="Further packages of the stack."
    )
    options: dict[OptionalPart, StackOption] = Field(
        default_factory=dict,
        description="Optional parts, by the name that a class's `options` uses; they are locked with the stack.",
    )
    parts: Parts = Field(
        default_factory=Parts,
        description="Versions of further parts that its nodes have and apt does not lock; `goldnode check` judges them.",
    )
    secure_boot: bool = Field(
        default=False,
        description="Whether its modules are signed with the site's key (`module_signing`).",
    )
    fence: list[Package] = Field(
        default_factory=list, description="Metapackages that would upgrade the stack; pinned."
    )
    end_of_life: EndOfLife = Field(
        description="The last day on which the stack is supported, with its source."
    )
    limits: list[Sentence] = Field(
        default_factory=list, description="Limits that a user of the stack has to accept."
    )
    waiver: Waiver | None = Field(
        default=None, description="Permission to use the stack past its end of life; null: none."
    )

    @model_validator(mode="after")
    def _second_release(self) -> Self:
        for name in self.from_archives:
            if name not in self.archives:
                raise ValueError(
                    f"`from_archives` names {name}, which `archives` lacks | add it there"
                )
        # All other packages are pinned away from these archives (apt_preferences, priority -10).
        if set(self.from_archives) >= set(self.archives):
            raise ValueError(
                "`from_archives` leaves no archive for all other packages | name one in `archives`"
            )
        return self

    @property
    def builds_modules(self) -> bool:
        """Return whether DKMS builds a module of the stack on its nodes, which takes headers and a compiler."""
        driver = self.driver is not None and not self.driver.in_tree
        return driver or any(module.dkms is not None for module in self.modules)

    @model_validator(mode="after")
    def _one_vendor(self) -> Self:
        # Locked packages name their conditions (`when`), and this one is the platform's.
        if "nvswitch" in self.options:
            raise ValueError(
                "an optional part cannot be called nvswitch, which a platform decides | rename it"
            )
        if KERNEL_HEADERS in self.options:
            raise ValueError(
                f"an optional part cannot be called {KERNEL_HEADERS}, which every stack has: the headers of its "
                "kernel | rename it"
            )
        for name, option in self.options.items():
            if option.follows == "driver" and (self.driver is None or self.driver.branch is None):
                raise ValueError(
                    f'optional part "{name}" follows the driver, and the stack has no driver with a branch | remove `follows`'
                )
        toolkit = self.runtime.toolkit if self.runtime is not None else None
        vendor = self.driver.vendor if self.driver is not None else None
        if toolkit is not None and toolkit.vendor != vendor:
            raise ValueError(
                f"a container toolkit for {toolkit.vendor} on a stack whose driver is {vendor or 'none'} | "
                "use one vendor"
            )
        return self


class Slots(Strict):
    """The GPU slots of a server model."""

    count: PositiveInt = Field(description="Number of GPU slots; a class may have fewer GPUs.")
    models: list[str] = Field(
        default_factory=list, description="GPU models it is built with; empty: any."
    )


class Platform(Strict):
    """A server model. Undeclared properties are not checked."""

    platform: Name = Field(
        description="Name of the platform and of its file: lower-case letters, digits and _."
    )
    description: Sentence = Field(description="Short description, for readers of the file.")
    nvswitch: bool = Field(
        description="Whether the GPUs are joined by NVSwitch, which needs the fabric manager."
    )
    gpus: Slots | None = Field(default=None, description="The GPU slots; null: not declared.")
    source: Sentence = Field(description="Sources of this file.")
    not_declared: list[Sentence] = Field(
        default_factory=list, description="Known gaps of this archive."
    )


AUTO = "auto"  # value of `gpu.model`: any model of the backend's vendor that fits the stack


class Gpu(Strict):
    """The GPUs of a class; everything else about the model comes from the facts."""

    model: str = Field(
        description=(
            "Name in facts/gpus.yml, or the product name that nvidia-smi prints. auto: the model that the node has, "
            "if it fits the stack."
        )
    )
    count: PositiveInt = Field(description="Number of GPUs of a node.")


class Clocks(Strict):
    """Clocks in MHz.

    `application` clocks are a target, which the driver reports when queried. `locked` clocks are enforced,
    and no driver call reads them back. Driver branches that dropped application clocks report this when they
    are set.
    """

    graphics_mhz: PositiveInt | None = Field(
        default=None, description="Graphics clock, MHz; null: stays as it is."
    )
    memory_mhz: PositiveInt | None = Field(
        default=None, description="Memory clock, MHz; null: stays as it is."
    )
    mode: Literal["application", "locked"] = Field(
        default="application",
        description=(
            "application: a target that the driver keeps to. locked: the clocks hold; no call of the "
            "driver reads them back."
        ),
    )


class Mig(Strict):
    """MIG partitioning of every GPU of the node."""

    enabled: bool = Field(
        description="Whether MIG is on; where the board needs it, from the next boot."
    )
    profiles: list[str] = Field(
        default_factory=list, description="Instances of one GPU, for instance 3g.20gb."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.profiles and not self.enabled:
            raise ValueError("`profiles` with `enabled: false` | enable MIG or remove the profiles")
        return self


class GpuPolicy(Strict):
    """Settings per GPU; null means unmanaged."""

    persistence_mode: bool | None = Field(
        default=None, description="Whether the driver keeps idle GPUs initialised. NVIDIA only."
    )
    clocks: Clocks | None = Field(default=None, description="Clocks of the GPUs, MHz. NVIDIA only.")
    power_limit_watts: PositiveInt | None = Field(
        default=None,
        description="Power limit of each GPU, W: NVIDIA's power limit, AMD's power cap.",
    )
    ecc: bool | None = Field(
        default=None,
        description="Whether the GPUs' memory has ECC on; a change holds from the next boot. NVIDIA only.",
    )
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = Field(
        default=None,
        description="Number of processes that may use a GPU: any, one, none. NVIDIA only.",
    )
    mig: Mig | None = Field(
        default=None, description="Partitioning of every GPU of the node. NVIDIA only."
    )
    performance_level: Literal["auto", "low", "high", "manual", "perf_determinism"] | None = Field(
        default=None, description="AMD's power_dpm_force_performance_level."
    )


class GpuOverride(GpuPolicy):
    """Different values for the GPUs of one model, of some indexes or of one UUID. Other settings are those of the class."""

    model: str | None = Field(
        default=None, description="GPUs of this model, a name in facts/gpus.yml."
    )
    indexes: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        min_length=1,
        description="GPUs with these indexes, as `nvidia-smi` counts them from 0; null: not by index.",
    )
    uuid: GpuUuid | None = Field(
        default=None, description="The GPU of this UUID, as `nvidia-smi -L` shows it."
    )

    @property
    def target(self) -> str:
        """Return what the override is for, in words."""
        if self.indexes is not None:
            return f"GPU {', '.join(map(str, self.indexes))}"
        return self.model or self.uuid or ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        stated = [key for key in ("model", "indexes", "uuid") if getattr(self, key) is not None]
        if len(stated) == 1:
            return self
        way_out = f"keep one of {', '.join(stated)}" if stated else "say which GPUs it is for"
        raise ValueError(f"an override needs one of `model`, `indexes` and `uuid` | {way_out}")


class HostInterface(Strict):
    """Settings of a network interface."""

    # 68 is the least MTU of IPv4 (RFC 791), 65535 the kernel's greatest (ETH_MAX_MTU).
    mtu: Annotated[int, Field(ge=68, le=65535)] = Field(description="MTU, bytes; set and judged.")


_PARAMETER, _PARAMETER_VALUE = (
    r"^[a-z][a-z0-9_]*(\.[a-zA-Z0-9_-]+)+$",
    r"^[\w.:,/-]+( [\w.:,/-]+)*$",
)
ParameterName = Annotated[
    str,
    _formed(_PARAMETER, "not the name of a kernel parameter | write it as `sysctl -a` shows it"),
    Field(json_schema_extra={"pattern": _PARAMETER}),
]
ParameterValue = Annotated[
    str,
    _formed(
        _PARAMETER_VALUE,
        "not the value of a kernel parameter | write words, with a space between them",
    ),
    Field(json_schema_extra={"pattern": _PARAMETER_VALUE}),
]


class HostPolicy(Strict):
    """Settings of the host; null means unmanaged."""

    governor: (
        Literal["performance", "powersave", "schedutil", "ondemand", "conservative"] | None
    ) = Field(default=None, description="cpufreq's governor of every CPU.")
    swap: bool | None = Field(
        default=None,
        description=(
            "false: swap is turned off and stays off. true: swap must be on; goldnode creates none."
        ),
    )
    hugepages: dict[Literal["2M", "1G"], Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Huge pages reserved, by size; those of 1G by the kernel command line.",
    )
    transparent_hugepages: Literal["always", "madvise", "never"] | None = Field(
        default=None, description="Transparent huge pages, as the kernel calls its choices."
    )
    numa_balancing: bool | None = Field(
        default=None,
        description="Whether the kernel moves memory between NUMA nodes automatically.",
    )
    iommu: Literal["pt", "on", "off"] | None = Field(
        default=None,
        description="IOMMU, by the kernel command line. pt: passthrough, what GPUDirect wants.",
    )
    cmdline: list[CmdlineWord] = Field(
        default_factory=list, description="Further words of the kernel command line."
    )
    sysctl: dict[ParameterName, ParameterValue] = Field(
        default_factory=dict,
        description="Further kernel parameters, as `sysctl -a` names them; a removed one has its own value after a boot.",
    )
    memlock: Literal["unlimited"] | PositiveInt | None = Field(
        default=None, description="Limit of locked memory of logins and services, KiB."
    )
    network: dict[str, HostInterface] = Field(
        default_factory=dict, description="Network interfaces, by the name that `ip link` shows."
    )


class Policy(GpuPolicy):
    """Settings of the GPUs and the host of a class; null means unmanaged."""

    sharing: Literal["none", "exclusive", "mps"] | None = Field(
        default=None,
        description=(
            "none: compute mode default. exclusive: one process per GPU. mps: NVIDIA's Multi-Process "
            "Service. NVIDIA only."
        ),
    )
    overrides: list[GpuOverride] = Field(
        default_factory=list,
        description=(
            "Other values for GPUs of one model, or for one GPU, which takes precedence; null: as the class."
        ),
    )
    module_options: dict[OptionName, OptionValue] = Field(
        default_factory=dict,
        description="Options of the GPU's kernel module, by name; values are text, one word each.",
    )
    host: HostPolicy = Field(
        default_factory=HostPolicy, description="Settings of the host; null: not changed."
    )

    @model_validator(mode="after")
    def _shared(self) -> Self:
        if self.sharing in ("exclusive", "mps") and self.compute_mode not in (
            None,
            "exclusive_process",
        ):
            raise ValueError(
                f"`sharing: {self.sharing}` needs compute mode exclusive_process | remove `compute_mode`"
            )
        return self


class PcieLink(Strict):
    """Expected properties of a PCIe link."""

    gen: Annotated[int, Field(ge=1, le=7)] | None = Field(
        default=None, description="PCIe generation under load."
    )
    width: Literal[1, 2, 4, 8, 12, 16, 32] | None = Field(
        default=None, description="Number of lanes."
    )


class MaxClocks(Strict):
    """The highest clocks of a GPU, MHz."""

    graphics_mhz: PositiveInt | None = Field(
        default=None, description="Highest graphics clock, MHz, exactly."
    )
    sm_mhz: PositiveInt | None = Field(
        default=None, description="Highest clock of the SMs, MHz, exactly."
    )
    memory_mhz: PositiveInt | None = Field(
        default=None, description="Highest memory clock, MHz, exactly."
    )


class GpuHealth(Strict):
    """Expected properties of a healthy GPU. null: the facts decide; without a fact it is not checked."""

    vbios: list[Sentence] = Field(default_factory=list, description="Correct VBIOS versions.")
    subsystem_ids: list[PciId] = Field(
        default_factory=list, description="Correct PCI subsystem ids."
    )
    memory_mib: list[PositiveInt] = Field(
        default_factory=list,
        description="Correct VRAM sizes, MiB, exactly; they change with ECC and driver.",
    )
    pcie: PcieLink | None = Field(
        default=None, description="Its PCIe link, compared with every hop up to the root port."
    )
    nvlinks: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="NVLinks that are active."
    )
    bar1_mib: PositiveInt | None = Field(default=None, description="Size of BAR1, MiB, exactly.")
    max_clocks: MaxClocks | None = Field(
        default=None, description="The highest clocks that the driver shows."
    )


class GpuHealthAt(GpuHealth):
    """Expected properties of the GPU at one PCI address that differ by design."""

    address: PciAddress = Field(description="PCI address as sysfs writes it.")
    reason: Sentence = Field(description="Reason why this is correct.")

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if not self.model_dump(exclude_defaults=True, exclude={"address", "reason"}):
            raise ValueError(
                f"the override for {self.address} changes nothing | state the difference, or remove it"
            )
        return self


class GpuBaseline(GpuHealth):
    """Expected properties of the GPUs of a healthy node."""

    reason: Sentence | None = Field(
        default=None,
        description="Reason for the difference from the facts about the model: 12 of 18 links, x8 slots.",
    )
    numa: dict[PciAddress, Annotated[int, Field(ge=-1)]] = Field(
        default_factory=dict,
        description=(
            "NUMA node of each GPU, by PCI address (`0000:18:00.0`); -1 where the firmware gives none."
        ),
    )
    overrides: list[GpuHealthAt] = Field(
        default_factory=list, description="Intended differences at single PCI addresses."
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        seen: set[str] = set()
        for item in self.overrides:
            if item.address in seen:
                raise ValueError(f"two overrides are for {item.address} | make one of the two")
            seen.add(item.address)
        return self


class Interface(Strict):
    """Expected properties of a network interface."""

    mtu: PositiveInt | None = Field(
        default=None, description="MTU, bytes; only judged: `policy.host.network` sets it."
    )
    speed_mbps: PositiveInt | None = Field(
        default=None, description="Speed while it is up, Mb/s, exactly."
    )
    numa_node: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="NUMA node of the card; -1 where the firmware gives none."
    )
    firmware: list[Sentence] = Field(default_factory=list, description="Correct firmware versions.")


class InfinibandDevice(Strict):
    """Expected properties of an InfiniBand or RoCE device; each of its ports must be active."""

    rate_gbps: PositiveInt | None = Field(
        default=None, description="Rate of each port, Gb/s, exactly."
    )
    firmware: list[Sentence] = Field(default_factory=list, description="Correct firmware versions.")
    ports: PositiveInt | None = Field(default=None, description="Number of ports.")


class Mount(Strict):
    """A filesystem that must be mounted and writable."""

    free_gib: PositiveInt | None = Field(
        default=None, description="Minimum free space, GiB; null: the facts' limit."
    )
    type: Sentence | None = Field(
        default=None, description="Type, for instance ext4, nfs4, lustre."
    )


class StorageDevices(Strict):
    """The local disks of a node."""

    count: PositiveInt | None = Field(default=None, description="How many.")
    models: list[Sentence] = Field(default_factory=list, description="Correct models.")


class StoragePath(Strict):
    """A path that workloads read from, and its required speed. A check measures it with a bounded read."""

    latency_ms: PositiveInt | None = Field(
        default=None, description="Maximum time of a small read, ms."
    )
    read_mb_s: PositiveInt | None = Field(default=None, description="Minimum throughput, MB/s.")


class Storage(Strict):
    """Expected storage of a healthy node."""

    mounts: dict[AbsolutePath, Mount] = Field(
        default_factory=dict,
        description="Filesystems that are mounted and writable; NAME is the mount point.",
    )
    devices: StorageDevices | None = Field(default=None, description="The node's own disks.")
    paths: dict[AbsolutePath, StoragePath] = Field(
        default_factory=dict,
        description=(
            "Paths that jobs read from, with their speed; NAME is the path. Only a full check measures it."
        ),
    )


class Cpu(Strict):
    """Expected processors of a healthy node."""

    sockets: PositiveInt | None = Field(default=None, description="Number of populated sockets.")
    cores: PositiveInt | None = Field(default=None, description="Cores of all sockets.")
    smt: bool | None = Field(default=None, description="Whether each core runs two threads.")


class Memory(Strict):
    """Expected RAM of a healthy node."""

    total_gib: PositiveInt | None = Field(
        default=None, description="RAM of the node, GiB; null: not judged."
    )
    tolerance: Annotated[float, Field(ge=0, lt=1, strict=False)] | None = Field(
        default=None,
        description=(
            "Share of `total_gib` by which it may be smaller or larger, 0.05 is 5 %; null: the facts' own."
        ),
    )


class Baseline(Strict):
    """Expected properties of a healthy node of the class, beyond the facts about its GPUs.

    The check covers all of them.
    """

    gpu: GpuBaseline | None = Field(
        default=None,
        description=(
            "Readings of the GPUs of a healthy node; the facts decide values that are left out, if they can."
        ),
    )
    cpu: Cpu | None = Field(default=None, description="The processors of a healthy node.")
    memory: Memory | None = Field(default=None, description="The RAM of a healthy node.")
    network: dict[str, Interface] = Field(
        default_factory=dict,
        description="Network interfaces that exist and are up, by the name that `ip link` shows.",
    )
    infiniband: dict[str, InfinibandDevice] = Field(
        default_factory=dict,
        description="InfiniBand and RoCE devices with all ports active, by the name that `ibstat` shows.",
    )
    storage: Storage | None = Field(default=None, description="The storage of a healthy node.")
    modules: list[ModuleName] = Field(
        default_factory=list, description="Kernel modules that are loaded."
    )
    services: list[Unit] = Field(
        default_factory=list, description="Units of systemd that are active."
    )


class Scratch(Strict):
    """A file system for temporary data on one of the node's own disks.

    A disk is formatted only if it is empty. One with goldnode's label is mounted as it is.
    """

    device: Annotated[str, Field(pattern=r"^/dev/[A-Za-z0-9._:/*?\[\]-]+$")] = Field(
        description="Path of the disk, or a pattern that matches exactly one, as in /dev/disk/by-path/."
    )
    filesystem: Literal["ext4", "xfs"] = Field(
        default="ext4", description="File system; xfs needs the package xfsprogs on the node."
    )
    options: list[Annotated[str, Field(pattern=r"^[a-z0-9_.=-]+$")]] = Field(
        default=["noatime"], description="Options of mount(8)."
    )
    keep_days: PositiveInt | None = Field(
        default=None,
        description="Days after which unused files are removed (systemd-tmpfiles); null: never.",
    )
    full_percent: Annotated[int, Field(ge=1, le=99)] = Field(
        default=90, description="Share of the space above which the node is degraded, percent."
    )


class Suppression(Strict):
    """A finding of the health check that is known and accepted until a date.

    It is reported but does not count.
    """

    id: Annotated[
        str,
        _formed(
            r"[A-Za-z0-9_.*?\[\]@:-]+",
            "not the id of a finding | write it as a verdict shows it; `*` matches any text",
        ),
    ] = Field(description="Id of the finding; * and ? as in file names.")
    subject: Sentence | None = Field(
        default=None,
        description="Subject of the finding, for instance a PCI address, with * and ?; null: all.",
    )
    severity: Literal["degraded", "drain"] = Field(
        default="degraded",
        description="The highest severity that it accepts; required for a finding that drains the node.",
    )
    owner: Sentence = Field(description="Person or team who accepted it.")
    reason: Sentence = Field(description="Reason for accepting it.")
    expires: IsoDate = Field(description="The last day on which it is valid.")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.id.strip("*?."):
            raise ValueError(f'"{self.id}" would accept every finding | name what is accepted')
        return self


class WorkloadImage(Strict):
    """An image that runs on the nodes of a class, with properties that its name does not show.

    It can also be written as the name alone.
    """

    # Its form is checked by `compat.workloads`, in a layer above the catalog.
    ref: Annotated[str, Field(min_length=1)] = Field(description="[REGISTRY/]NAME[:TAG][@DIGEST].")
    metadata: str | None = Field(
        default=None,
        description=(
            "File with its metadata, relative to this one: `docker inspect`, an OCI layout or a saved image."
        ),
    )
    cuda: Version | None = Field(default=None, description="Version of the CUDA runtime.")
    forward_compat: bool | None = Field(
        default=None, description="Whether it contains NVIDIA's cuda-compat package."
    )
    cudnn: Version | None = Field(default=None, description="Version of cuDNN.")
    nccl: Version | None = Field(default=None, description="Version of NCCL.")
    rocm: Version | None = Field(default=None, description="Version of ROCm.")
    python: Version | None = Field(default=None, description="Version of Python.")
    frameworks: dict[str, Version] = Field(
        default_factory=dict,
        description=(
            "Versions by name: torch, tensorflow, jax, vllm …; PyTorch's with its build: 2.8.0+cu128."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"ref": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # `_named` accepts a plain string too, which the generated schema would not show.
        return {
            "anyOf": [
                {"type": "string", "minLength": 1},
                handler.resolve_ref_schema(handler(schema)),
            ]
        }


class Accepted(Strict):
    """A finding of the compatibility check that a class accepts."""

    rule: str = Field(description="Id of the rule; `goldnode check --list-rules` lists them.")
    subject: Sentence | None = Field(
        default=None,
        description="Subject of the finding, for instance an image; null: any.",
    )
    reason: Sentence = Field(description="Reason for accepting it.")
    owner: Sentence = Field(description="Person or team who accepted it.")
    expires: IsoDate = Field(description="The last day on which it is accepted.")


class Compat(Strict):
    """Decisions of a class's owner about its compatibility findings."""

    unknown: Literal["block", "warn", "accept"] = Field(
        default="warn", description="How to treat combinations that no source covers."
    )
    accept: list[Accepted] = Field(
        default_factory=list, description="Findings that are accepted, until when, and by whom."
    )


def _listen(value: Any) -> Any:
    """Normalise an address to listen on: a port alone means the loopback address.

    Raises ValueError for a host name or an incomplete address.
    """
    # bool is a kind of int in Python, and `listen: true` names no port.
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"127.0.0.1:{value}"
    if not isinstance(value, str):
        return value
    name, _, port = value.rpartition(":")
    wrong = (
        f'"{value}" is not an address to listen on | write a port, "ADDRESS:PORT" or "[IPV6]:PORT"'
    )
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(wrong)
    try:
        number = ipaddress.ip_address(
            name[1:-1] if name.startswith("[") and name.endswith("]") else name
        )
    except ValueError:
        raise ValueError(wrong) from None
    # Without brackets, the port would read as a part of the IPv6 address (RFC 3986).
    if (number.version == 6) != name.startswith("["):
        raise ValueError(wrong)
    return f"{name}:{int(port)}"


_FOLDER = r"^(/(?!\.{1,2}(/|$))[A-Za-z0-9._+-]+)+/?$"
Folder = Annotated[
    str,
    _formed(_FOLDER, "not the full path of a directory | begin it with /, without .. and spaces"),
    Field(json_schema_extra={"pattern": _FOLDER}),
]
Listen = Annotated[
    str, BeforeValidator(_listen), Field(json_schema_extra={"type": ["string", "integer"]})
]


class Serve(Strict):
    """Interfaces through which a node publishes its verdict to other systems. Each is off by default."""

    listen: Listen | None = Field(
        default=None,
        description=(
            "Address of the diagnostics endpoint: a port of the loopback, or ADDRESS:PORT. It has no "
            "authentication. null: no endpoint."
        ),
    )
    accept_degraded: bool = Field(
        default=False, description="Whether /healthz of a degraded node is 200."
    )
    textfile: Folder | None = Field(
        default=None,
        description="Directory of node_exporter's textfile collector, where goldnode.prom is written.",
    )
    slurm: bool = Field(
        default=False,
        description="Whether slurm-health, slurm-prolog and slurm-task-prolog are in /usr/lib/goldnode, for Slurm's programs.",
    )
    npd: bool = Field(
        default=False,
        description="Whether /usr/lib/goldnode/npd-plugin is there, for Kubernetes' node-problem-detector.",
    )


_ADDRESS = r"^(https?://[^\s]+|/[^\s]+)$"
ChannelAddress = Annotated[
    str,
    _formed(_ADDRESS, "not an address | write https://HOST/PATH, or the full path of a directory"),
    Field(json_schema_extra={"pattern": _ADDRESS}),
]
_SERVICE = r"^https?://[^\s]+$"
ServiceAddress = Annotated[
    str,
    _formed(_SERVICE, "not the address of a lock service | write https://HOST:PORT"),
    Field(json_schema_extra={"pattern": _SERVICE}),
]


class Follow(Strict):
    """A signed channel that the nodes of the class follow, and their lock service (docs/how-to/follow.md)."""

    channel: ChannelAddress = Field(description="Address or directory of the channel.")
    service: ServiceAddress = Field(
        description="Address of the lock service (`goldnode fleet serve`)."
    )
    every: int = Field(
        default=60, ge=10, le=3600, description="Seconds between two passes of a node."
    )
    root: Folder = Field(
        default="/etc/goldnode/follow/root.json",
        description="File on the node with the publisher's root document. The site puts it there.",
    )
    ca: Folder | None = Field(
        default=None,
        description="File on the node with the authority of both servers. null: those of the system.",
    )
    certificate: Folder | None = Field(
        default=None, description="File on the node with its certificate for the lock service, PEM."
    )
    key: Folder | None = Field(
        default=None, description="File on the node with the key of the certificate."
    )
    apply: list[str] = Field(
        default_factory=list,
        description="Command that applies a lock on the node. Empty: the nodes follow disk builds.",
    )
    accepted: list[Annotated[int, Field(ge=0, le=4)]] = Field(
        default=[0],
        description="Exit codes of the check with which a new state counts as good, as `goldnode_accepted` for site.yml.",
    )


_CanaryJobs = list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]]


class ReturnTests(Strict):
    """Canary jobs that must pass before a node returns to service (`goldnode canary list` names the built-in ones).

    `after_xid`, `after_repair` and `after_absence` need `gate: drain`: the gate on the node enforces them.
    """

    after_repair: _CanaryJobs = Field(
        default_factory=list,
        description=(
            "After a fault that takes a repair has drained the node, or its GPUs are others than at its last good check. "
            "The gate holds it until they have passed."
        ),
    )
    after_xid: _CanaryJobs = Field(
        default_factory=list,
        description="After an Xid or SXid has drained the node. The gate holds it until they have passed.",
    )
    after_rollout: _CanaryJobs = Field(
        default_factory=list,
        description=(
            "After a rollout, site.yml, rollback.yml or `disks update` has changed the drained node. It stays drained "
            "until they have passed."
        ),
    )
    after_absence: _CanaryJobs = Field(
        default_factory=list,
        description="After a boot before which the node had no check for `absence_days`. The gate holds it until they have passed.",
    )
    # Weekends and maintenance windows are shorter. A node that was off for a week was stored, moved or repaired.
    absence_days: float = Field(
        default=7.0,
        ge=0.1,
        le=3650,
        description="Days without a check after which a boot ends a long absence, by a synchronised clock.",
    )


class EvidenceRule(Strict):
    """Signed evidence without which a class changes nowhere (docs/how-to/evidence.md)."""

    kinds: list[Annotated[EvidenceKind, Field(title="kinds of evidence")]] = Field(
        min_length=1,
        description="Kinds that waves of its rollouts wait for, and promotions to stable: boot, canary, floors, dual, smoke, "
        "disk, prove-gpu, module-build.",
    )
    max_age_days: int | None = Field(
        default=None, ge=1, description="Oldest proof that counts, in days; null: any."
    )
    follow: list[Annotated[EvidenceKind, Field(title="kinds of evidence")]] = Field(
        default_factory=list,
        description="Those of `kinds` that a node which follows a channel verifies itself before it moves.",
    )

    @model_validator(mode="after")
    def _among(self) -> Self:
        other = [kind for kind in self.follow if kind not in self.kinds]
        if other:
            raise ValueError(
                f"`follow` names {', '.join(other)}, which `kinds` does not: add it there"
            )
        return self


class LadderRule(Strict):
    """The rungs of the remediation ladder that nodes of a class may get (docs/how-to/ladder.md)."""

    forbid: list[
        Annotated[
            Literal[
                "service-restart",
                "gpu-reset",
                "module-reload",
                "reboot",
                "power-cycle",
                "slot-write",
                "reinstall",
            ],
            Field(title="rungs"),
        ]
    ] = Field(
        default_factory=list,
        description="Rungs that are passed over: `service-restart`, `gpu-reset`, `module-reload`, `reboot`, "
        "`power-cycle`, `slot-write` and `reinstall` can be.",
    )
    last: (
        Literal[
            "inspect",
            "service-restart",
            "gpu-reset",
            "module-reload",
            "reboot",
            "power-cycle",
            "slot-write",
        ]
        | None
    ) = Field(default=None, description="The last rung before a ticket. null: that of the finding.")


class NodeClass(Strict):
    """Hardware, backend, stack, policy and baseline of one kind of node.

    The Ansible group of the same name holds its hosts.
    """

    class_: Name = Field(
        alias="class",
        description=(
            "Name of the class, of its file, and of the Ansible group of its hosts: lower-case letters, digits and _."
        ),
    )
    description: str | None = Field(
        default=None, description="Short description, for readers of the file."
    )
    backend: Backend = Field(
        description="Vendor of the GPUs, which the driver of the stack must match. cpu: no GPU."
    )
    stack: str = Field(description="Stack that its nodes run, by name.")
    platform: str | None = Field(
        default=None, description="Server model, by name; null: not declared."
    )
    options: list[OptionalPart] = Field(
        default_factory=list,
        description=(
            "Optional parts of the stack that its nodes get, such as dcgm. Every stack has kernel-headers: "
            "headers and a compiler, for modules of your own."
        ),
    )
    parts: Parts = Field(
        default_factory=Parts,
        description="Versions of further parts of its nodes and their cluster, over those of the stack; `goldnode check` "
        "judges them.",
    )
    gpu: Gpu | None = Field(
        default=None, description="The GPUs of a node; null: backend cpu, none."
    )
    simulated: bool = Field(
        default=False, description="The hardware is simulated; all output is labelled."
    )
    tier: Tier | None = Field(
        default=None,
        description=(
            "Purpose of its nodes, which decides on driver branches, soaks and accepted findings "
            "(docs/how-to/compat.md). null: not judged."
        ),
    )
    gate: Literal["report", "drain", "block"] = Field(
        default="report",
        description="Effect of a bad verdict: report it, also drain the node, or also stop container runtimes from starting.",
    )
    serve: Serve | None = Field(
        default=None,
        description="Interfaces for other programs: endpoint, metrics, schedulers. null: none.",
    )
    follow: Follow | None = Field(
        default=None, description="Signed channel that the nodes follow by themselves. null: none."
    )
    policy: Policy = Field(
        default_factory=Policy, description="Settings of the GPUs and the host; null: not changed."
    )
    baseline: Baseline = Field(
        default_factory=Baseline,
        description="Properties of a healthy node, in addition to the facts about its GPUs.",
    )
    scratch: dict[Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$")], Scratch] = Field(
        default_factory=dict,
        description="Scratch or cache space on the node's own disks, by mount point.",
    )
    suppressions: list[Suppression] = Field(
        default_factory=list,
        description="Findings that are known and accepted, until when, and by whom.",
    )
    return_tests: ReturnTests | None = Field(
        default=None, description="Tests before a node returns to service. null: none."
    )
    evidence: EvidenceRule | None = Field(
        default=None,
        description="Evidence that rollouts of the class and promotions of its images require. null: none.",
    )
    ladder: LadderRule = Field(
        default_factory=LadderRule, description="Rungs of repairs that the class forbids."
    )
    images: list[WorkloadImage] = Field(
        default_factory=list, description="Images that run on its nodes; checked against the stack."
    )
    requirements: list[Sentence] = Field(
        default_factory=list,
        description="Python packages of what runs on its nodes: requirements, uv.lock[EXTRA], pylock.toml, "
        "pyproject.toml, environment.yml or Dockerfile, relative to this file.",
    )
    compat: Compat = Field(
        default_factory=Compat, description="Decisions about findings of `goldnode check`."
    )

    @model_validator(mode="after")
    def _verifies(self) -> Self:
        if self.evidence is not None and self.evidence.follow and self.follow is None:
            raise ValueError(
                "`evidence.follow` is of nodes that follow a channel, and the class has no `follow`: add that, or remove it"
            )
        return self


class SigningKey(Strict):
    """A key an archive signs with: its pinned fingerprint, where it is published, and who else states it."""

    fingerprint: Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")] = Field(
        description="Fingerprint of the primary key."
    )
    owner: Sentence = Field(description="User id or name of the key.")
    location: str | None = Field(
        default=None,
        description=(
            "Address of the file with the key; {url} is the archive's own. null: the OS's keyring or the site "
            "has it."
        ),
    )
    releases: list[Name] = Field(
        default_factory=list,
        description="OS releases whose indexes it signs, for instance debian13; empty: all.",
    )
    sources: list[Sentence] = Field(
        default_factory=list, description="Independent places that state this fingerprint."
    )
    read: IsoDate | None = Field(default=None, description="Day on which the sources were read.")
    single_source: bool = Field(
        default=False,
        description="Whether only one source states it; that one source is the only evidence.",
    )

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        if self.sources and (len(self.sources) == 1) != self.single_source:
            raise ValueError(
                f"the fingerprint has {len(self.sources)} source(s), and `single_source` is "
                f"{str(self.single_source).lower()} | name a second, independent source, or correct the label"
            )
        return self


_PLACEHOLDERS = ("id", "version", "release", "codename", "architecture")


class Archive(Strict):
    """A package archive with its public address and pinned keys. A site file overrides the address and the key."""

    description: Sentence = Field(description="Short description, for readers of the file.")
    url: str | dict[str, str] | None = Field(
        default=None,
        description=(
            "Public address, or one per architecture; {id}, {version}, {release}, {codename}, {architecture} are "
            "replaced. null: the site's."
        ),
    )
    architectures: dict[str, str] = Field(
        default_factory=dict,
        description="Name of an architecture in the address, by Debian's name; empty: the same.",
    )
    releases: dict[Name, list[str]] = Field(
        default_factory=dict,
        description="OS releases it is published for, each with its Debian architectures; empty: any.",
    )
    suite: str = Field(description="Suite, {codename} is the stack's; / for a flat repository.")
    components: list[str] = Field(
        default_factory=list, description="Components of the suite; none for a flat repository."
    )
    keys: list[SigningKey] = Field(
        min_length=1, description="Keys it signs with; a site file can name others."
    )
    source: Sentence = Field(description="Sources of the address and the keys.")
    keyring: str | None = Field(
        default=None,
        description="Keyring the OS ships; null: the key is fetched, or the site gives it.",
    )
    mark: str | None = Field(
        default=None, description="Part of an address that identifies its sources on a node."
    )

    @model_validator(mode="after")
    def _flat(self) -> Self:
        # sources.list(5): a suite that ends in a slash is a path, without components.
        if self.suite.endswith("/") and self.components:
            raise ValueError("a flat repository has no components | remove them")
        if not self.suite.endswith("/") and not self.components:
            raise ValueError("an archive with suites needs `components` | name them")
        urls = self.url.values() if isinstance(self.url, dict) else [self.url or ""]
        for url in urls:
            unknown = set(re.findall(r"{([^}]*)}", url)) - set(_PLACEHOLDERS)
            if unknown:
                raise ValueError(
                    f'the address has a placeholder "{min(unknown)}" | use one of {", ".join(_PLACEHOLDERS)}'
                )
        return self

    def keys_of(self, release: str) -> list[SigningKey]:
        """Return the keys that sign the indexes of an OS release, for instance debian13."""
        return [key for key in self.keys if not key.releases or release in key.releases]

    def address(self, os: OperatingSystem) -> str | None:
        """Return the public address for an OS release, or None where the archive is not published for it."""
        served = self.releases.get(os.release) if self.releases else [os.architecture]
        url = self.url.get(os.architecture) if isinstance(self.url, dict) else self.url
        if url is None or served is None or os.architecture not in served:
            return None
        return expand(url, os, self.architectures)


def expand(url: str, os: OperatingSystem, architectures: Mapping[str, str] | None = None) -> str:
    """Return an address with its placeholders replaced by what an OS release and its architecture are called."""
    values = {
        "id": os.id,
        "version": os.version,
        "release": os.release,
        "codename": os.codename,
        "architecture": (architectures or {}).get(os.architecture, os.architecture),
    }
    return re.sub(r"{(\w+)}", lambda match: values.get(match[1], match[0]), url).rstrip("/")


class Archives(Strict):
    """A catalog's archives.yml."""

    archives: dict[str, Archive] = Field(
        description="Package archives, by the id that stacks and site files name."
    )


# Kinds of `goldnode schema KIND`, named after the item that such a file holds.
FILES: Mapping[str, type[Strict]] = {
    "archives": Archives,
    "class": NodeClass,
    "platform": Platform,
    "stack": Stack,
}
