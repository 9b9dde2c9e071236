"""What the catalog takes and what it refuses: one table, each refusal with its line, its reason and its remedy.

Every case is an edit of a catalog that is accepted as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import NodeClass
from goldnode.classdoc.cache import Compiler
from goldnode.classdoc.load import load_catalog
from goldnode.core import yamlsource
from goldnode.core.errors import CatalogError, SiteError

ARCHIVES = """\
archives:
  debian:
    description: d
    suite: "{codename}"
    components: [main]
    keyring: /usr/share/keyrings/debian-archive-keyring.gpg
    source: s
    keys:
      - {fingerprint: B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8, owner: o}
"""

STACK = """\
stack: r580
os: {id: debian, version: "12", codename: bookworm, architecture: amd64}
exercised: local-archive
archives: [debian]
kernel: {series: "6.1", flavour: amd64}
driver:
  vendor: nvidia
  branch: "580"
  flavour: open
  version: null
  module: nvidia
  dkms: {name: nvidia, package: nvidia-kernel-open-dkms}
  packages: [nvidia-kernel-open-dkms, libcuda1]
  lockstep: [nvidia-kernel-open-dkms, libcuda1]
  family: ["nvidia-*", libcuda1]
  fabric_manager: {package: nvidia-fabricmanager}
end_of_life: {date: "2028-06-30", source: s}
"""

CPU_STACK = """\
stack: plain
os: {id: debian, version: "12", codename: bookworm, architecture: amd64}
exercised: none
archives: [debian]
kernel: {release: 6.1.0-56-amd64}
driver: null
end_of_life: {date: "2028-06-30", source: s}
"""

AMD_STACK = """\
stack: rocm
os: {id: debian, version: "13", codename: trixie, architecture: amd64}
exercised: none
archives: [debian]
kernel: {release: 6.12.94+deb13-amd64}
driver: {vendor: amd, module: amdgpu, packages: [firmware-amd-graphics], family: [firmware-amd-graphics]}
end_of_life: {date: "2028-06-30", source: s}
"""

PLATFORM = """\
platform: hgx_a100_8
description: d
nvswitch: true
gpus: {count: 8, models: [A100-SXM4-40GB]}
source: s
"""

CLASS = """\
class: a100
backend: cuda
stack: r580
platform: hgx_a100_8
gpu: {model: A100-SXM4-40GB, count: 8}
policy:
  persistence_mode: true
  clocks: {graphics_mhz: 1410, memory_mhz: 1215}
  power_limit_watts: 400
  ecc: true
baseline:
  network: {eth0: {mtu: 9000, speed_mbps: 100000}}
"""

FILES = {
    "archives.yml": ARCHIVES,
    "stacks/r580.yml": STACK,
    "stacks/plain.yml": CPU_STACK,
    "stacks/rocm.yml": AMD_STACK,
    "platforms/hgx_a100_8.yml": PLATFORM,
    "classes/a100.yml": CLASS,
}

K = "classes/a100.yml"
S = "stacks/r580.yml"
P = "platforms/hgx_a100_8.yml"
A = "archives.yml"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def edited(file: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[file], f"{file} has no {old!r}"
    return FILES | {file: FILES[file].replace(old, new, 1)}


@dataclass
class Refusal:
    """One edit; `line` is where the error must point, `parts` what it must say."""

    name: str
    file: str
    old: str
    new: str
    line: int | None
    parts: tuple[str, ...] = field(default=())


REFUSED = [
    # Unknown keys, with the nearest right spelling.
    Refusal(
        "unknown-key",
        file=K,
        old="backend:",
        new="bakend:",
        line=2,
        parts=('unknown key "bakend"', 'Use "backend"'),
    ),
    Refusal(
        "unknown-policy",
        file=K,
        old="ecc: true",
        new="eccc: true",
        line=10,
        parts=('unknown key "eccc" in "policy"', 'Use "ecc"'),
    ),
    Refusal(
        "unknown-nested",
        file=K,
        old="memory_mhz",
        new="mem_mhz",
        line=8,
        parts=('"mem_mhz" in "policy.clocks"', 'Use "memory_mhz"'),
    ),
    Refusal(
        "unknown-in-map",
        file=K,
        old="mtu:",
        new="mtuu:",
        line=12,
        parts=('"mtuu" in "baseline.network.eth0"', 'Use "mtu"'),
    ),
    Refusal(
        "unknown-stack-key",
        file=S,
        old="exercised:",
        new="excercised:",
        line=3,
        parts=('unknown key "excercised"', 'Use "exercised"'),
    ),
    Refusal(
        "unknown-driver-key",
        file=S,
        old="  module:",
        new="  modul:",
        line=11,
        parts=('unknown key "modul"', 'Use "module"'),
    ),
    Refusal(
        "unknown-platform",
        file=P,
        old="nvswitch:",
        new="nv_switch:",
        line=3,
        parts=('unknown key "nv_switch"', 'Use "nvswitch"'),
    ),
    Refusal(
        "unknown-archive",
        file=A,
        old="    suite:",
        new="    suit:",
        line=4,
        parts=('unknown key "suit"', 'Use "suite"'),
    ),
    # Missing keys.
    Refusal(
        "missing",
        file=K,
        old="backend: cuda\n",
        new="",
        line=1,
        parts=('key "backend" is missing', "Add it"),
    ),
    Refusal(
        "missing-nested",
        file=K,
        old=", count: 8",
        new="",
        line=5,
        parts=('key "gpu.count" is missing',),
    ),
    Refusal(
        "missing-driver",
        file=S,
        old='  branch: "580"\n',
        new="",
        line=6,
        parts=('"driver": an NVIDIA driver needs `branch`',),
    ),
    # Wrong types.
    Refusal(
        "bool",
        file=K,
        old="persistence_mode: true",
        new="persistence_mode: 1",
        line=7,
        parts=("is 1, expected true or false",),
    ),
    Refusal(
        "text-for-number",
        file=K,
        old="count: 8",
        new='count: "8"',
        line=5,
        parts=('"gpu.count" is "8", expected a whole number',),
    ),
    Refusal(
        "number-for-text",
        file=S,
        old='branch: "580"',
        new="branch: 580",
        line=8,
        parts=("expected text", 'Write it in quotes: "580"'),
    ),
    Refusal(
        "list-for-map",
        file=K,
        old="gpu: {model: A100-SXM4-40GB, count: 8}",
        new="gpu: [a, b]",
        line=5,
        parts=('"gpu" is a list',),
    ),
    Refusal(
        "map-for-list",
        file=S,
        old="archives: [debian]",
        new="archives: {debian: 1}",
        line=4,
        parts=('"archives" is a mapping, expected a list',),
    ),
    Refusal(
        "empty-list",
        file=S,
        old="archives: [debian]",
        new="archives: []",
        line=4,
        parts=("expected at least one entry",),
    ),
    Refusal(
        "date",
        file=S,
        old="2028-06-30",
        new="June 2028",
        line=17,
        parts=('"June 2028" is not a date', "YYYY-MM-DD"),
    ),
    Refusal(
        "series",
        file=S,
        old='series: "6.1"',
        new='series: "6"',
        line=5,
        parts=('"kernel.series" is "6"',),
    ),
    Refusal(
        "package-name",
        file=S,
        old="libcuda1]\n  lock",
        new="Lib_Cuda]\n  lock",
        line=13,
        parts=('"Lib_Cuda" is not a Debian package name',),
    ),
    Refusal(
        "group-name",
        file=K,
        old="class: a100",
        new="class: a100-sxm",
        line=1,
        parts=("an Ansible group must be able to carry it",),
    ),
    # Impossible values.
    Refusal(
        "backend-value",
        file=K,
        old="cuda",
        new="cude",
        line=2,
        parts=('expected "cuda" or "rocm" or "oneapi" or "cpu"', 'Use "cuda"'),
    ),
    Refusal(
        "gate",
        file=K,
        old="backend: cuda",
        new="gate: drian\nbackend: cuda",
        line=2,
        parts=('"gate" is "drian"', 'Use "drain"'),
    ),
    Refusal(
        "count",
        file=K,
        old="count: 8",
        new="count: 0",
        line=5,
        parts=('"gpu.count" is 0, expected a number above 0',),
    ),
    Refusal(
        "negative-clock",
        file=K,
        old="1410",
        new="-1",
        line=8,
        parts=('"policy.clocks.graphics_mhz" is -1',),
    ),
    Refusal(
        "zero-power",
        file=K,
        old="power_limit_watts: 400",
        new="power_limit_watts: 0",
        line=9,
        parts=("expected a number above 0",),
    ),
    Refusal(
        "power-above-board",
        file=K,
        old="power_limit_watts: 400",
        new="power_limit_watts: 450",
        line=9,
        parts=(
            "450 W is above the 400 W limit of A100-SXM4-40GB",
            "facts/gpus.yml, smi",
            "Use at most 400",
        ),
    ),
    Refusal(
        "mtu",
        file=K,
        old="mtu: 9000",
        new="mtu: 0",
        line=12,
        parts=('"baseline.network.eth0.mtu" is 0',),
    ),
    Refusal(
        "mig-profile",
        file=K,
        old="  ecc: true",
        new="  mig: {enabled: true, profiles: [3g.20gb, 3g.40gb]}",
        line=10,
        parts=('"3g.40gb" is not a MIG profile of A100-SXM4-40GB', 'Use "3g.20gb"'),
    ),
    Refusal(
        "mig-off-with-profiles",
        file=K,
        old="  ecc: true",
        new="  mig: {enabled: false, profiles: [3g.20gb]}",
        line=10,
        parts=("Enable MIG",),
    ),
    Refusal(
        "kernel-both",
        file=S,
        old="flavour: amd64}",
        new="flavour: amd64, release: 6.1.0-56-amd64}",
        line=5,
        parts=("Keep one of the two",),
    ),
    Refusal(
        "kernel-neither",
        file=S,
        old='{series: "6.1", flavour: amd64}',
        new="{}",
        line=5,
        parts=("Write one of the two",),
    ),
    Refusal(
        "kernel-half", file=S, old=", flavour: amd64}", new="}", line=5, parts=("belong together",)
    ),
    Refusal(
        "kernel-pages",
        file=S,
        old="flavour: amd64}",
        new="flavour: arm64-16k, page_kib: 64}",
        line=5,
        parts=("name ends with -16k has pages of 16 KiB, not of 64", "Write page_kib: 16"),
    ),
    Refusal(
        "version-of-other-branch",
        file=S,
        old="version: null",
        new='version: "535.309.01"',
        line=6,
        parts=('is not of branch "580"',),
    ),
    Refusal(
        "lockstep-stray",
        file=S,
        old="[nvidia-kernel-open-dkms, libcuda1]\n  family",
        new="[nvidia-smi]\n  family",
        line=6,
        parts=('"nvidia-smi" is not among `packages`',),
    ),
    Refusal(
        "dkms-stray",
        file=S,
        old="package: nvidia-kernel-open-dkms",
        new="package: nvidia-dkms",
        line=6,
        parts=('"nvidia-dkms" is not among',),
    ),
    Refusal(
        "claims-too-long",
        file=S,
        old="2028-06-30",
        new="2030-01-01",
        line=17,
        parts=("driver branch 580 ends 2028-06", "2028-06-30"),
    ),
    Refusal(
        "branch-unknown",
        file=S,
        old='"580"',
        new='"581"',
        line=8,
        parts=('NVIDIA driver branch "581" is not in the facts', 'Use "580"'),
    ),
    Refusal(
        "fabric-manager-name",
        file=S,
        old="package: nvidia-fabricmanager}",
        new="package: nvidia-fabricmanager-580}",
        line=16,
        parts=('is called "nvidia-fabricmanager"',),
    ),
    Refusal(
        "fingerprint",
        file=A,
        old="B8B80B5B",
        new="B8B8",
        line=9,
        parts=("archives.debian.keys.0.fingerprint",),
    ),
    Refusal(
        "flat-with-components",
        file=A,
        old='"{codename}"',
        new="/",
        line=2,
        parts=("a flat repository has no components",),
    ),
    Refusal(
        "too-many-gpus",
        file=K,
        old="count: 8",
        new="count: 9",
        line=5,
        parts=('9 GPUs do not fit platform "hgx_a100_8"', "at most 8"),
    ),
    # Host policy.
    Refusal(
        "host-word-twice",
        file=K,
        old="  ecc: true",
        new="  host: {cmdline: [pci=realloc, pci=realloc]}",
        line=10,
        parts=('"pci=realloc" appears twice', "Remove one"),
    ),
    Refusal(
        "host-word-iommu",
        file=K,
        old="  ecc: true",
        new="  host: {iommu: pt, cmdline: [iommu=off]}",
        line=10,
        parts=("repeats `iommu` of this class", "Keep one"),
    ),
    Refusal(
        "host-word-pages",
        file=K,
        old="  ecc: true",
        new="  host: {hugepages: {2M: 8}, cmdline: [hugepages=9]}",
        line=10,
        parts=("repeats `hugepages` of",),
    ),
    Refusal(
        "host-interface",
        file=K,
        old="  ecc: true",
        new='  host: {network: {"eth*": {mtu: 9000}}}',
        line=10,
        parts=('"eth*" is not the name of a network interface',),
    ),
    Refusal(
        "host-mtu",
        file=K,
        old="  ecc: true",
        new="  host: {network: {eth0: {mtu: 66000}}}",
        line=10,
        parts=('"policy.host.network.eth0.mtu" is 66000',),
    ),
    Refusal(
        "host-mtu-against-baseline",
        file=K,
        old="  ecc: true",
        new="  host: {network: {eth0: {mtu: 4200}}}",
        line=12,
        parts=("the baseline wants MTU 9000 on eth0, and the policy sets 4200", "Write 4200"),
    ),
    # Other out-of-tree modules.
    Refusal(
        "module-after-nearest",
        file=S,
        old="end_of_life",
        new="modules:\n  - {name: mlx5_core, package: mofed}\n  - {name: peer, package: p2, after: [mlx5_cor]}\nend_of_life",
        line=19,
        parts=('comes after "mlx5_cor", which the stack does not have', 'Use "mlx5_core"'),
    ),
    Refusal(
        "module-after-later",
        file=S,
        old="end_of_life",
        new="modules:\n  - {name: peer, package: p2, after: [mlx5_core]}\n  - {name: mlx5_core, package: mofed}\nend_of_life",
        line=18,
        parts=("which comes later", "Put it before this one"),
    ),
    Refusal(
        "module-twice",
        file=S,
        old="end_of_life",
        new="modules: [{name: nvidia, package: p2}]\nend_of_life",
        line=17,
        parts=('"nvidia" is declared twice',),
    ),
    Refusal(
        "module-of-no-driver",
        file="stacks/plain.yml",
        old="driver: null",
        new="driver: null\nmodules: [{name: gdrdrv}]",
        line=7,
        parts=("has no package", "Name its package"),
    ),
    Refusal(
        "module-dkms-of-driver",
        file=S,
        old="end_of_life",
        new="modules: [{name: nvidia-peermem, dkms: x}]\nend_of_life",
        line=17,
        parts=("which settles `dkms`",),
    ),
    # Dangling references.
    Refusal(
        "stack",
        file=K,
        old="stack: r580",
        new="stack: r508",
        line=3,
        parts=('stack "r508" is not in the catalog', 'Use "r580"'),
    ),
    Refusal(
        "platform",
        file=K,
        old="platform: hgx_a100_8",
        new="platform: hgx_a100",
        line=4,
        parts=('Use "hgx_a100_8"',),
    ),
    Refusal(
        "gpu-model",
        file=K,
        old="A100-SXM4-40GB",
        new="A100-SXM-40GB",
        line=5,
        parts=("is not in the facts", 'Use "A100-SXM4-40GB"'),
    ),
    Refusal(
        "platform-gpu",
        file=P,
        old="[A100-SXM4-40GB]",
        new="[A100]",
        line=4,
        parts=('GPU model "A100" is not in the facts',),
    ),
    Refusal(
        "archive",
        file=S,
        old="[debian]",
        new="[debain]",
        line=4,
        parts=('archive "debain" is not in the catalog', 'Use "debian"'),
    ),
    # Things that do not fit each other.
    Refusal(
        "file-name",
        file=K,
        old="class: a100",
        new="class: a101",
        line=1,
        parts=('is called a100.yml but defines class "a101"',),
    ),
    Refusal(
        "backend-stack",
        file=K,
        old="backend: cuda",
        new="backend: rocm",
        line=2,
        parts=('backend "rocm" needs an AMD driver', 'backend "cuda"'),
    ),
    Refusal(
        "cpu-with-gpu",
        file=K,
        old="backend: cuda\nstack: r580",
        new="backend: cpu\nstack: plain",
        line=5,
        parts=("backend cpu declares GPUs",),
    ),
    Refusal(
        "cuda-without-gpu",
        file=K,
        old="gpu: {model: A100-SXM4-40GB, count: 8}\n",
        new="",
        line=2,
        parts=('backend "cuda" needs `gpu`',),
    ),
    Refusal(
        "vendor",
        file=K,
        old="A100-SXM4-40GB",
        new="MI300X",
        line=4,
        parts=("not built with MI300X", "no platform names it"),
    ),
    Refusal(
        "chassis",
        file=K,
        old="A100-SXM4-40GB",
        new="H100-SXM5-80GB",
        line=4,
        parts=("not built with H100-SXM5-80GB", "Use another platform, or none"),
    ),
    Refusal(
        "codename",
        file=S,
        old="codename: bookworm",
        new="codename: trixie",
        line=2,
        parts=('Debian 12 is "bookworm"', 'Use "bookworm"'),
    ),
    Refusal(
        "architecture",
        file=S,
        old="architecture: amd64",
        new="architecture: arm64",
        line=5,
        parts=(
            "kernel amd64 is of architecture amd64, and the stack of arm64",
            "Write architecture: amd64",
        ),
    ),
    Refusal(
        "vendor-of-stack",
        file=K,
        old="platform: hgx_a100_8\ngpu: {model: A100-SXM4-40GB",
        new="gpu: {model: MI300X",
        line=4,
        parts=("MI300X needs an AMD driver",),
    ),
    Refusal(
        "mig-without-mig",
        file=K,
        old=CLASS[CLASS.index("platform") : CLASS.index("  ecc")],
        new="gpu: {model: L4, count: 1}\npolicy:\n  mig: {enabled: true}\n",
        line=6,
        parts=("L4 has no MIG", "Remove `mig`"),
    ),
    # What is set on GPUs: by vendor, and per model or UUID.
    Refusal(
        "amd-setting",
        file=K,
        old="  ecc: true",
        new="  performance_level: high",
        line=10,
        parts=("of AMD's GPUs only", "Remove `performance_level`"),
    ),
    Refusal(
        "mig-slices",
        file=K,
        old="  ecc: true",
        new="  mig: {enabled: true, profiles: [4g.20gb, 4g.20gb]}",
        line=10,
        parts=("need 8 compute slices",),
    ),
    Refusal(
        "mig-and-sharing",
        file=K,
        old="  ecc: true",
        new="  sharing: exclusive\n  mig: {enabled: true}",
        line=10,
        parts=("`sharing: exclusive` is not possible with MIG", "Remove `sharing`, or `mig`"),
    ),
    Refusal(
        "mig-and-compute-mode",
        file=K,
        old="  ecc: true",
        new="  mig: {enabled: true}\n  compute_mode: prohibited",
        line=11,
        parts=("`compute_mode: prohibited` is not possible with MIG",),
    ),
    Refusal(
        "override-model",
        file=K,
        old="  ecc: true",
        new="  overrides: [{model: A100-SXM4-40, ecc: true}]",
        line=10,
        parts=('GPU model "A100-SXM4-40" is not in the facts', 'Use "A100-SXM4-40GB"'),
    ),
    Refusal(
        "override-vendor",
        file=K,
        old="  ecc: true",
        new="  overrides: [{model: MI300X, power_limit_watts: 100}]",
        line=10,
        parts=("needs an AMD driver",),
    ),
    Refusal(
        "override-power",
        file=K,
        old="  ecc: true",
        new="  overrides:\n    - model: A100-SXM4-40GB\n      power_limit_watts: 401",
        line=12,
        parts=("401 W is above the 400 W limit", "Use at most 400"),
    ),
    Refusal(
        "override-mig-profile",
        file=K,
        old="  ecc: true",
        new="  overrides: [{model: A100-SXM4-40GB, mig: {enabled: true, profiles: [3g.40gb]}}]",
        line=10,
        parts=("is not a MIG profile", 'Use "3g.20gb"'),
    ),
    Refusal(
        "override-of-nothing",
        file=K,
        old="  ecc: true",
        new="  overrides: [{power_limit_watts: 300}]",
        line=10,
        parts=("one of `model`, `indexes` and `uuid`", "Say which GPUs it is for"),
    ),
    Refusal(
        "override-empty",
        file=K,
        old="  ecc: true",
        new="  overrides: [{model: A100-SXM4-40GB}]",
        line=10,
        parts=("changes nothing",),
    ),
    Refusal(
        "override-twice",
        file=K,
        old="  ecc: true",
        new="  overrides: [{model: A100-SXM4-40GB, ecc: true}, {model: A100-SXM4-40GB, ecc: false}]",
        line=10,
        parts=("are both for A100-SXM4-40GB",),
    ),
    Refusal(
        "override-of-both",
        file=K,
        old="  ecc: true",
        new="  overrides: [{model: L4, uuid: GPU-" + "0" * 36 + "}]",
        line=10,
        parts=("Keep one of model, uuid",),
    ),
    Refusal(
        "override-index-beyond-the-node",
        file=K,
        old="  ecc: true",
        new="  overrides: [{indexes: [4, 8], mig: {enabled: true}}]",
        line=10,
        parts=("have 8 GPUs", "end with 7, not with 8", "Use indexes from 0 to 7"),
    ),
    Refusal(
        "override-index-twice",
        file=K,
        old="  ecc: true",
        new="  overrides: [{indexes: [4, 5], ecc: true}, {indexes: [5], ecc: false}]",
        line=10,
        parts=("overrides 1 and 2 are both for GPU 5",),
    ),
    Refusal(
        "mig-of-memory-slices",
        file=K,
        old="  ecc: true",
        new="  mig: {enabled: true, profiles: [3g.20gb, 3g.20gb, 1g.5gb]}",
        line=10,
        parts=("need 9 memory slices", "Use `profiles: [3g.20gb, 3g.20gb]`", "MIG"),
    ),
    Refusal(
        "override-uuid",
        file=K,
        old="  ecc: true",
        new="  overrides: [{uuid: GPU-1, ecc: true}]",
        line=10,
        parts=('"GPU-1" is not the UUID of a GPU', "`nvidia-smi -L`"),
    ),
    Refusal(
        "override-mig-under-a-mode",
        file=K,
        old="  ecc: true",
        new="  sharing: mps\n  overrides:\n    - model: A100-SXM4-40GB\n      mig: {enabled: true}",
        line=13,
        parts=(
            "`sharing: mps` of the class is not possible with MIG",
            "Add `compute_mode: default` to the override",
        ),
    ),
    Refusal(
        "override-mode-under-mig",
        file=K,
        old="  ecc: true",
        new="  mig: {enabled: true}\n  overrides:\n    - model: A100-SXM4-40GB\n      compute_mode: prohibited",
        line=13,
        parts=("`compute_mode: prohibited` is not possible with MIG",),
    ),
    Refusal(
        "clocks-of-nothing",
        file=K,
        old="{graphics_mhz: 1410, memory_mhz: 1215}",
        new="{mode: locked}",
        line=8,
        parts=("`clocks` names no clock",),
    ),
    # Words of files that modprobe, dkms, a shell or GRUB read.
    Refusal(
        "option-name",
        file=K,
        old="  ecc: true",
        new="  module_options: {NVreg X: '1'}",
        line=10,
        parts=('"NVreg X" is not the name of a module\'s option',),
    ),
    Refusal(
        "option-of-two-lines",
        file=K,
        old="  ecc: true",
        new='  module_options: {NVreg_X: "1\\noptions other x=1"}',
        line=10,
        parts=('"1\\noptions other x=1" is not one word', "without spaces, quotes"),
    ),
    Refusal(
        "host-word-quoted",
        file=K,
        old="  ecc: true",
        new="  host: {cmdline: ['a=\"b c\"']}",
        line=10,
        parts=("not one word of the kernel command line", "quotes"),
    ),
    Refusal(
        "module-name",
        file=S,
        old="end_of_life",
        new='modules: [{name: "a; b", package: p2}]\nend_of_life',
        line=17,
        parts=('"a; b" is not the name of a kernel',),
    ),
    Refusal(
        "dkms-name",
        file=S,
        old="{name: nvidia, ",
        new='{name: "a b", ',
        line=12,
        parts=('"a b" is not a name of DKMS', "`dkms status`"),
    ),
    # What YAML makes of a word, and values of which there are two kinds.
    Refusal(
        "off",
        file=K,
        old="  ecc: true",
        new="  host: {iommu: off}",
        line=10,
        parts=("is false, expected", 'Write it in quotes: "off"'),
    ),
    Refusal(
        "off-of-none",
        file=K,
        old="  ecc: true",
        new="  host: {transparent_hugepages: off}",
        line=10,
        parts=("Use one of: always, madvise, never",),
    ),
    Refusal(
        "memlock",
        file=K,
        old="  ecc: true",
        new="  host: {memlock: 64M}",
        line=10,
        parts=('is "64M", expected "unlimited" or a whole number',),
    ),
    Refusal(
        "memlock-zero",
        file=K,
        old="  ecc: true",
        new="  host: {memlock: 0}",
        line=10,
        parts=('is 0, expected "unlimited" or a number above 0',),
    ),
    Refusal(
        "word-for-list",
        file=K,
        old="  ecc: true",
        new="  host: {cmdline: quiet}",
        line=10,
        parts=("expected a list", "Write it as a list: [quiet]"),
    ),
    Refusal(
        "unknown-top",
        file=K,
        old="backend:",
        new="klasse: a\nbackend:",
        line=2,
        parts=('unknown key "klasse"', 'Use "class"'),
    ),
    # YAML itself.
    Refusal(
        "twice",
        file=K,
        old="backend: cuda",
        new="backend: cuda\nbackend: rocm",
        line=3,
        parts=('key "backend" is written twice, first on line 2',),
    ),
    Refusal(
        "twice-nested",
        file=K,
        old="count: 8}",
        new="count: 8, count: 4}",
        line=5,
        parts=('key "count" is written twice',),
    ),
    Refusal("not-yaml", file=K, old="policy:", new="policy: [", line=8, parts=("not valid YAML",)),
    Refusal("tab", file=K, old="  ecc", new="\tecc", line=10, parts=("not valid YAML",)),
    # Values that look like a date or a number, and are none; a wrong file is not repeated whole.
    Refusal(
        "no-month",
        file=S,
        old='"2028-06-30"',
        new="2028-13-45",
        line=17,
        parts=('"2028-13-45" is not a date', "Write it as YYYY-MM-DD"),
    ),
    Refusal(
        "no-day",
        file=S,
        old='"2028-06-30"',
        new="2028-06-31",
        line=17,
        parts=('"2028-06-31" is not a date', "Write it as YYYY-MM-DD"),
    ),
    Refusal(
        "too-many-digits",
        file=K,
        old="watts: 400",
        new=f"watts: {'4' * 5000}",
        line=9,
        parts=(f'"{"4" * 60}…" is not a number that can be read.',),
    ),
    Refusal(
        "no-bool",
        file=K,
        old="ecc: true",
        new="ecc: !!bool maybe",
        line=10,
        parts=('"maybe" is not true or false',),
    ),
    Refusal(
        "nested-too-deep",
        file=K,
        old="ecc: true",
        new=f"ecc: {'[' * 3000}{']' * 3000}",
        line=None,
        parts=("nested too deep", "fewer levels"),
    ),
    Refusal(
        "long",
        file=K,
        old="cuda",
        new="c" * 5000,
        line=2,
        parts=(f'"{"c" * 60}…", expected "cuda"',),
    ),
]


def test_the_base_is_accepted(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path, FILES)])
    assert set(catalog.classes) == {"a100"}
    assert catalog.node_class("a100").item.policy.power_limit_watts == 400


ACCEPTED: dict[str, Callable[[], dict[str, str]]] = {
    "no-platform": lambda: edited(K, "platform: hgx_a100_8\n", ""),
    "lower-power": lambda: edited(K, "power_limit_watts: 400", "power_limit_watts: 250"),
    "mig": lambda: edited(K, "  ecc: true", "  mig: {enabled: true, profiles: [3g.20gb, 4g.20gb]}"),
    # NVIDIA/mig-parted issue 129: MIG on GPUs 4 to 7 only.
    "mig-of-some-gpus": lambda: edited(
        K,
        "  ecc: true",
        "  mig: {enabled: false}\n"
        "  overrides: [{indexes: [4, 5, 6, 7], mig: {enabled: true, profiles: [1g.5gb, 1g.5gb, 2g.10gb, 3g.20gb]}}]",
    ),
    "unquoted-date": lambda: edited(S, '"2028-06-30"', "2028-06-30"),
    "exact-version": lambda: edited(S, "version: null", 'version: "580.178.04"'),
    "comment-and-anchor": lambda: edited(K, "policy:\n", "policy:  # as agreed\n"),
    "power-not-in-the-facts": lambda: (
        FILES
        | {
            K: CLASS.replace("A100-SXM4-40GB", "A100-PCIE-40GB")
            .replace("platform: hgx_a100_8\n", "")
            .replace("watts: 400", "watts: 9999")
        }
    ),
    "cpu": lambda: FILES | {"classes/c.yml": "class: c\nbackend: cpu\nstack: plain\n"},
    "rocm": lambda: (
        FILES
        | {
            "classes/c.yml": "class: c\nbackend: rocm\nstack: rocm\ngpu: {model: MI300X, count: 8}\n"
        }
    ),
    "fewer-gpus": lambda: edited(K, "count: 8", "count: 4"),
    "proprietary-on-ampere": lambda: edited(S, "flavour: open", "flavour: proprietary"),
    "simulated-without-fabric-manager": lambda: (
        edited(S, "  fabric_manager: {package: nvidia-fabricmanager}\n", "")
        | {K: CLASS + "simulated: true\n"}
    ),
}


AMD_CLASS = "class: c\nbackend: rocm\nstack: rocm\ngpu: {model: MI300X, count: 8}\npolicy:\n  power_limit_watts: 700\n"


def test_file_that_is_no_catalog_gets_a_short_error(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("root:x:0:0:root:/root:/bin/bash\n" * 99)
    with pytest.raises(CatalogError) as caught:
        yamlsource.validate(NodeClass, yamlsource.read(path))
    assert len(str(caught.value)) < 300
    path.write_bytes(b"class: caf\xe9\n")
    with pytest.raises(CatalogError, match=r"not text in UTF-8 .*at byte 10.*Save it as UTF-8"):
        yamlsource.read(path)


@pytest.mark.parametrize(
    "line",
    [
        "persistence_mode: true",
        "clocks: {graphics_mhz: 1}",
        "ecc: true",
        "compute_mode: default",
        "sharing: mps",
    ],
)
def test_nvidia_only_policy_is_refused_for_an_amd_gpu(line: str, tmp_path: Path) -> None:
    own = {"classes/c.yml": AMD_CLASS + f"  {line}\n"}
    with pytest.raises(
        CatalogError, match=r"of NVIDIA's GPUs only, and MI300X is not one\. Remove"
    ) as caught:
        load_catalog([write(tmp_path, FILES | own)])
    assert caught.value.line == 7


INTEL_STACK = """\
stack: intel
os: {id: debian, version: "13", codename: trixie, architecture: amd64}
exercised: none
archives: [debian]
kernel: {release: 6.12.118+deb13-amd64}
driver: {vendor: intel, module: xe, packages: [firmware-intel-graphics], family: [firmware-intel-graphics]}
end_of_life: {date: "2028-06-30", source: s}
"""
INTEL_CLASS = "class: c\nbackend: oneapi\nstack: intel\ngpu: {model: Arc B580, count: 1}\n"


def test_class_of_intels_gpus_is_accepted_without_settings(tmp_path: Path) -> None:
    files = FILES | {"stacks/intel.yml": INTEL_STACK, "classes/c.yml": INTEL_CLASS}
    assert load_catalog([write(tmp_path / "plain", files)]).node_class("c").item.backend == "oneapi"
    for key in ("persistence_mode: true", "performance_level: low", "power_limit_watts: 100"):
        own = {"classes/c.yml": INTEL_CLASS + f"policy:\n  {key}\n"}
        with pytest.raises(CatalogError, match=r"sets no `\w+` on Intel's GPUs\. Remove") as caught:
            load_catalog([write(tmp_path / key[:5], files | own)])
        assert caught.value.line == 6


def test_amds_own_settings_and_an_override_are_accepted(tmp_path: Path) -> None:
    amd = {"classes/c.yml": AMD_CLASS + "  performance_level: perf_determinism\n"}
    uuid = "GPU-" + "0" * 8 + "-0000-0000-0000-" + "0" * 12
    nvidia = edited(K, "  ecc: true", f"  overrides: [{{uuid: {uuid}, power_limit_watts: 300}}]")
    found = load_catalog([write(tmp_path, nvidia | amd)])
    assert found.node_class("a100").item.policy.overrides[0].power_limit_watts == 300


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_catalog_is_loaded(name: str, tmp_path: Path) -> None:
    assert load_catalog([write(tmp_path, ACCEPTED[name]())]).classes


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_invalid_catalog_is_refused_with_place_and_remedy(case: Refusal, tmp_path: Path) -> None:
    root = write(tmp_path, edited(case.file, case.old, case.new))
    with pytest.raises(CatalogError) as caught:
        load_catalog([root])
    error = caught.value
    for part in case.parts:
        assert part in str(error)
    assert error.file == str(root / case.file)
    assert error.line == case.line, str(error)
    assert str(error).startswith(
        f"{error.file}:{error.line}: " if error.line else f"{error.file}: "
    )
    assert error.remedy


@pytest.mark.parametrize(
    ("kind", "place", "text"),
    [
        ("class", "classes/a100.yml", CLASS),
        ("stack", "stacks/r580.yml", STACK),
        ("platform", "platforms/hgx_a100_8.yml", PLATFORM),
        ("archive", "archives.yml", ARCHIVES),
    ],
)
def test_same_name_in_two_catalogs(kind: str, place: str, text: str, tmp_path: Path) -> None:
    mine, foreign = (
        write(tmp_path / "ours", FILES),
        write(tmp_path / "theirs", {place: "\n" + text}),
    )
    with pytest.raises(CatalogError) as caught:
        load_catalog([mine, foreign])
    first = 2 if kind == "archive" else 1
    assert f'{kind} "' in str(caught.value)
    assert f"also in {mine / place}:{first}" in str(caught.value)
    assert str(caught.value).startswith(f"{foreign / place}:{first + 1}: ")


@pytest.mark.parametrize(
    ("engine", "gate", "taken"),
    [("podman", "block", False), ("podman", "drain", True), ("docker", "block", True)],
)
def test_a_gate_blocks_only_what_has_a_daemon(
    tmp_path: Path, engine: str, gate: str, taken: bool
) -> None:
    stack = STACK + f"runtime: {{engine: {engine}, package: {engine}, packages: [{engine}]}}\n"
    root = write(
        tmp_path, FILES | {S: stack, K: CLASS.replace("backend:", f"gate: {gate}\nbackend:")}
    )
    if taken:
        assert load_catalog([root]).node_class("a100").item.gate == gate
        return
    with pytest.raises(
        CatalogError, match=r"a100\.yml:2: .*podman, which has no daemon .*\. Use `drain`"
    ):
        load_catalog([root])


def test_only_containerd_takes_a_cgroup_driver(tmp_path: Path) -> None:
    for engine in ("containerd", "docker", "podman"):
        runtime = (
            f"{{engine: {engine}, package: {engine}, packages: [{engine}], cgroup_driver: systemd}}"
        )
        root = write(tmp_path / engine, FILES | {S: f"{STACK}runtime: {runtime}\n"})
        if engine == "containerd":
            assert load_catalog([root])
        else:
            with pytest.raises(
                CatalogError, match=rf"a setting of containerd, and the engine is {engine}"
            ):
                load_catalog([root])


TOOLKIT = "nvidia-container-toolkit, nvidia-container-toolkit-base, libnvidia-container-tools, libnvidia-container1"


@pytest.mark.parametrize(
    ("packages", "version", "reported"),
    [
        (TOOLKIT, "null", None),
        (TOOLKIT, '"1.20.0"', None),
        (
            "nvidia-container-toolkit",
            "null",
            r'lacks "nvidia-container-toolkit-base": .*\. List nvidia-container-toolkit, ',
        ),
    ],
    ids=["newest", "safe", "not whole"],
)
def test_the_container_toolkit_is_complete(
    tmp_path: Path, packages: str, version: str, reported: str | None
) -> None:
    toolkit = f"{{vendor: nvidia, packages: [{packages}], version: {version}}}"
    stack = (
        STACK
        + f"runtime: {{engine: docker, package: docker.io, packages: [docker.io], toolkit: {toolkit}}}\n"
    )
    root = write(tmp_path, FILES | {S: stack})
    if reported is None:
        assert load_catalog([root])
        return
    with pytest.raises(CatalogError, match=rf"r580\.yml:\d+: .*{reported}"):
        load_catalog([root])


def test_same_class_in_two_files(tmp_path: Path) -> None:
    root = write(tmp_path, FILES | {"classes/a100.yaml": CLASS})
    with pytest.raises(
        CatalogError, match=r'a100\.yml:1: class "a100" is defined twice, also in .*a100\.yaml:1'
    ):
        load_catalog([root])


def test_a_users_catalog_refers_to_ours(tmp_path: Path) -> None:
    mine = write(tmp_path / "ours", FILES)
    own = "class: mine\nbackend: cuda\nstack: r580\ngpu: {model: L4, count: 2}\n"
    foreign = write(tmp_path / "theirs", {"classes/mine.yml": own})
    assert set(load_catalog([mine, foreign]).classes) == {"a100", "mine"}


def test_catalog_variable_adds_classes_and_a_wrong_directory_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "class: mine\nbackend: cpu\nstack: debian12_cpu\n"
    monkeypatch.setenv("GOLDNODE_CATALOG", str(write(tmp_path, {"classes/mine.yml": own})))
    assert {"mine", "demo_a100"} <= set(load_catalog().classes)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "absent"))
    with pytest.raises(CatalogError, match="not a directory"):
        load_catalog()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "empty"))
    with pytest.raises(
        CatalogError,
        match=r"names .*/empty, which has none of stacks/, platforms/, classes/, facts/\. Name the directory",
    ):
        load_catalog()
    write(tmp_path / "empty", {"stacks/notes.txt": "", "clases/mine.yml": own})
    with pytest.raises(
        CatalogError,
        match=r'empty/clases of a catalog of GOLDNODE_CATALOG is never read\. Call it "classes"\.',
    ):
        load_catalog()


def test_unknown_names_are_distinguished(tmp_path: Path) -> None:
    catalog: Catalog = load_catalog([write(tmp_path, FILES)])
    with pytest.raises(CatalogError, match=r'class "a10" is not in the catalog\. Use one of: a100'):
        catalog.node_class("a10")
    with pytest.raises(CatalogError, match="Use one of: plain, r580, rocm"):
        catalog.stack("zzzz")


def test_catalog_of_the_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "class: mine\nbackend: cpu\nstack: debian12_cpu\n"
    site = tmp_path / "goldnode-site.yml"
    site.write_text("catalog: own\n", encoding="utf-8")
    monkeypatch.setenv("GOLDNODE_SITE", str(site))
    monkeypatch.delenv("GOLDNODE_CATALOG", raising=False)
    with pytest.raises(
        SiteError, match=r'goldnode-site\.yml:1: "catalog" names .*/own, which is not a dir'
    ):
        load_catalog()
    root = write(tmp_path / "own", {"classes/mine.yml": own})
    assert {"mine", "cpu_only"} <= set(load_catalog().classes)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(root))  # one directory, named twice
    assert "mine" in load_catalog().classes
    assert str(root) in Compiler().places(), "the cache of class documents depends on it"
    monkeypatch.delenv("GOLDNODE_CATALOG")
    (root / "classes").rename(root / "clases")
    with pytest.raises(
        CatalogError, match=r"clases of a catalog of `catalog` in .*goldnode-site\.yml"
    ):
        load_catalog()
