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
    Refusal("unknown-key", K, "backend:", "bakend:", 2, ('unknown key "bakend"', 'Use "backend"')),
    Refusal(
        "unknown-policy", K, "ecc: true", "eccc: true", 10, ('unknown key "eccc" in "policy"', 'Use "ecc"')
    ),
    Refusal(
        "unknown-nested", K, "memory_mhz", "mem_mhz", 8, ('"mem_mhz" in "policy.clocks"', 'Use "memory_mhz"')
    ),
    Refusal("unknown-in-map", K, "mtu:", "mtuu:", 12, ('"mtuu" in "baseline.network.eth0"', 'Use "mtu"')),
    Refusal(
        "unknown-stack-key",
        S,
        "exercised:",
        "excercised:",
        3,
        ('unknown key "excercised"', 'Use "exercised"'),
    ),
    Refusal("unknown-driver-key", S, "  module:", "  modul:", 11, ('unknown key "modul"', 'Use "module"')),
    Refusal(
        "unknown-platform", P, "nvswitch:", "nv_switch:", 3, ('unknown key "nv_switch"', 'Use "nvswitch"')
    ),
    Refusal("unknown-archive", A, "    suite:", "    suit:", 4, ('unknown key "suit"', 'Use "suite"')),
    # Missing keys.
    Refusal("missing", K, "backend: cuda\n", "", 1, ('key "backend" is missing', "Add it")),
    Refusal("missing-nested", K, ", count: 8", "", 5, ('key "gpu.count" is missing',)),
    Refusal("missing-driver", S, '  branch: "580"\n', "", 6, ('"driver": an NVIDIA driver needs `branch`',)),
    # Wrong types.
    Refusal("bool", K, "persistence_mode: true", "persistence_mode: 1", 7, ("is 1, expected true or false",)),
    Refusal(
        "text-for-number", K, "count: 8", 'count: "8"', 5, ('"gpu.count" is "8", expected a whole number',)
    ),
    Refusal(
        "number-for-text",
        S,
        'branch: "580"',
        "branch: 580",
        8,
        ("expected text", 'Write it in quotes: "580"'),
    ),
    Refusal(
        "list-for-map", K, "gpu: {model: A100-SXM4-40GB, count: 8}", "gpu: [a, b]", 5, ('"gpu" is a list',)
    ),
    Refusal(
        "map-for-list",
        S,
        "archives: [debian]",
        "archives: {debian: 1}",
        4,
        ('"archives" is a mapping, expected a list',),
    ),
    Refusal("empty-list", S, "archives: [debian]", "archives: []", 4, ("expected at least one entry",)),
    Refusal("date", S, "2028-06-30", "June 2028", 17, ('"June 2028" is not a date', "YYYY-MM-DD")),
    Refusal("series", S, 'series: "6.1"', 'series: "6"', 5, ('"kernel.series" is "6"',)),
    Refusal(
        "package-name",
        S,
        "libcuda1]\n  lock",
        "Lib_Cuda]\n  lock",
        13,
        ('"Lib_Cuda" is not a Debian package name',),
    ),
    Refusal(
        "group-name", K, "class: a100", "class: a100-sxm", 1, ("an Ansible group must be able to carry it",)
    ),
    # Impossible values.
    Refusal(
        "backend-value",
        K,
        "cuda",
        "cude",
        2,
        ('expected "cuda" or "rocm" or "oneapi" or "cpu"', 'Use "cuda"'),
    ),
    Refusal(
        "gate", K, "backend: cuda", "gate: drian\nbackend: cuda", 2, ('"gate" is "drian"', 'Use "drain"')
    ),
    Refusal("count", K, "count: 8", "count: 0", 5, ('"gpu.count" is 0, expected a number above 0',)),
    Refusal("negative-clock", K, "1410", "-1", 8, ('"policy.clocks.graphics_mhz" is -1',)),
    Refusal(
        "zero-power", K, "power_limit_watts: 400", "power_limit_watts: 0", 9, ("expected a number above 0",)
    ),
    Refusal(
        "power-above-board",
        K,
        "power_limit_watts: 400",
        "power_limit_watts: 450",
        9,
        ("450 W is above the 400 W limit of A100-SXM4-40GB", "facts/gpus.yml, smi", "Use at most 400"),
    ),
    Refusal("mtu", K, "mtu: 9000", "mtu: 0", 12, ('"baseline.network.eth0.mtu" is 0',)),
    Refusal(
        "mig-profile",
        K,
        "  ecc: true",
        "  mig: {enabled: true, profiles: [3g.20gb, 3g.40gb]}",
        10,
        ('"3g.40gb" is not a MIG profile of A100-SXM4-40GB', 'Use "3g.20gb"'),
    ),
    Refusal(
        "mig-off-with-profiles",
        K,
        "  ecc: true",
        "  mig: {enabled: false, profiles: [3g.20gb]}",
        10,
        ("Enable MIG",),
    ),
    Refusal(
        "kernel-both",
        S,
        "flavour: amd64}",
        "flavour: amd64, release: 6.1.0-56-amd64}",
        5,
        ("Keep one of the two",),
    ),
    Refusal("kernel-neither", S, '{series: "6.1", flavour: amd64}', "{}", 5, ("Write one of the two",)),
    Refusal("kernel-half", S, ", flavour: amd64}", "}", 5, ("belong together",)),
    Refusal(
        "version-of-other-branch", S, "version: null", 'version: "535.309.01"', 6, ('is not of branch "580"',)
    ),
    Refusal(
        "lockstep-stray",
        S,
        "[nvidia-kernel-open-dkms, libcuda1]\n  family",
        "[nvidia-smi]\n  family",
        6,
        ('"nvidia-smi" is not among `packages`',),
    ),
    Refusal(
        "dkms-stray",
        S,
        "package: nvidia-kernel-open-dkms",
        "package: nvidia-dkms",
        6,
        ('"nvidia-dkms" is not among',),
    ),
    Refusal(
        "claims-too-long", S, "2028-06-30", "2030-01-01", 17, ("driver branch 580 ends 2028-06", "2028-06-30")
    ),
    Refusal(
        "branch-unknown",
        S,
        '"580"',
        '"581"',
        8,
        ('NVIDIA driver branch "581" is not in the facts', 'Use "580"'),
    ),
    Refusal(
        "fabric-manager-name",
        S,
        "package: nvidia-fabricmanager}",
        "package: nvidia-fabricmanager-580}",
        16,
        ('is called "nvidia-fabricmanager"',),
    ),
    Refusal("fingerprint", A, "B8B80B5B", "B8B8", 9, ("archives.debian.keys.0.fingerprint",)),
    Refusal("flat-with-components", A, '"{codename}"', "/", 2, ("a flat repository has no components",)),
    Refusal(
        "too-many-gpus",
        K,
        "count: 8",
        "count: 9",
        5,
        ('9 GPUs do not fit platform "hgx_a100_8"', "at most 8"),
    ),
    # Host policy.
    Refusal(
        "host-word-twice",
        K,
        "  ecc: true",
        "  host: {cmdline: [pci=realloc, pci=realloc]}",
        10,
        ('"pci=realloc" appears twice', "Remove one"),
    ),
    Refusal(
        "host-word-iommu",
        K,
        "  ecc: true",
        "  host: {iommu: pt, cmdline: [iommu=off]}",
        10,
        ("repeats `iommu` of this class", "Keep one"),
    ),
    Refusal(
        "host-word-pages",
        K,
        "  ecc: true",
        "  host: {hugepages: {2M: 8}, cmdline: [hugepages=9]}",
        10,
        ("repeats `hugepages` of",),
    ),
    Refusal(
        "host-interface",
        K,
        "  ecc: true",
        '  host: {network: {"eth*": {mtu: 9000}}}',
        10,
        ('"eth*" is not the name of a network interface',),
    ),
    Refusal(
        "host-mtu",
        K,
        "  ecc: true",
        "  host: {network: {eth0: {mtu: 66000}}}",
        10,
        ('"policy.host.network.eth0.mtu" is 66000',),
    ),
    Refusal(
        "host-mtu-against-baseline",
        K,
        "  ecc: true",
        "  host: {network: {eth0: {mtu: 4200}}}",
        12,
        ("the baseline wants MTU 9000 on eth0, and the policy sets 4200", "Write 4200"),
    ),
    # Other out-of-tree modules.
    Refusal(
        "module-after-nearest",
        S,
        "end_of_life",
        "modules:\n  - {name: mlx5_core, package: mofed}\n  - {name: peer, package: p2, after: [mlx5_cor]}\nend_of_life",
        19,
        ('comes after "mlx5_cor", which the stack does not have', 'Use "mlx5_core"'),
    ),
    Refusal(
        "module-after-later",
        S,
        "end_of_life",
        "modules:\n  - {name: peer, package: p2, after: [mlx5_core]}\n  - {name: mlx5_core, package: mofed}\nend_of_life",
        18,
        ("which comes later", "Put it before this one"),
    ),
    Refusal(
        "module-twice",
        S,
        "end_of_life",
        "modules: [{name: nvidia, package: p2}]\nend_of_life",
        17,
        ('"nvidia" is declared twice',),
    ),
    Refusal(
        "module-of-no-driver",
        "stacks/plain.yml",
        "driver: null",
        "driver: null\nmodules: [{name: gdrdrv}]",
        7,
        ("has no package", "Name its package"),
    ),
    Refusal(
        "module-dkms-of-driver",
        S,
        "end_of_life",
        "modules: [{name: nvidia-peermem, dkms: x}]\nend_of_life",
        17,
        ("which settles `dkms`",),
    ),
    # Dangling references.
    Refusal(
        "stack", K, "stack: r580", "stack: r508", 3, ('stack "r508" is not in the catalog', 'Use "r580"')
    ),
    Refusal("platform", K, "platform: hgx_a100_8", "platform: hgx_a100", 4, ('Use "hgx_a100_8"',)),
    Refusal(
        "gpu-model", K, "A100-SXM4-40GB", "A100-SXM-40GB", 5, ("is not in the facts", 'Use "A100-SXM4-40GB"')
    ),
    Refusal("platform-gpu", P, "[A100-SXM4-40GB]", "[A100]", 4, ('GPU model "A100" is not in the facts',)),
    Refusal(
        "archive", S, "[debian]", "[debain]", 4, ('archive "debain" is not in the catalog', 'Use "debian"')
    ),
    # Things that do not fit each other.
    Refusal(
        "file-name", K, "class: a100", "class: a101", 1, ('is called a100.yml but defines class "a101"',)
    ),
    Refusal(
        "backend-stack",
        K,
        "backend: cuda",
        "backend: rocm",
        2,
        ('backend "rocm" needs an AMD driver', 'backend "cuda"'),
    ),
    Refusal(
        "cpu-with-gpu",
        K,
        "backend: cuda\nstack: r580",
        "backend: cpu\nstack: plain",
        5,
        ("backend cpu declares GPUs",),
    ),
    Refusal(
        "cuda-without-gpu",
        K,
        "gpu: {model: A100-SXM4-40GB, count: 8}\n",
        "",
        2,
        ('backend "cuda" needs `gpu`',),
    ),
    Refusal("vendor", K, "A100-SXM4-40GB", "MI300X", 4, ("not built with MI300X", "no platform names it")),
    Refusal(
        "chassis",
        K,
        "A100-SXM4-40GB",
        "H100-SXM5-80GB",
        4,
        ("not built with H100-SXM5-80GB", "Use another platform, or none"),
    ),
    Refusal(
        "codename",
        S,
        "codename: bookworm",
        "codename: trixie",
        2,
        ('Debian 12 is "bookworm"', 'Use "bookworm"'),
    ),
    Refusal(
        "architecture",
        S,
        "architecture: amd64",
        "architecture: arm64",
        5,
        ("kernel amd64 is of architecture amd64, and the stack of arm64", "Write architecture: amd64"),
    ),
    Refusal(
        "vendor-of-stack",
        K,
        "platform: hgx_a100_8\ngpu: {model: A100-SXM4-40GB",
        "gpu: {model: MI300X",
        4,
        ("MI300X needs an AMD driver",),
    ),
    Refusal(
        "mig-without-mig",
        K,
        CLASS[CLASS.index("platform") : CLASS.index("  ecc")],
        "gpu: {model: L4, count: 1}\npolicy:\n  mig: {enabled: true}\n",
        6,
        ("L4 has no MIG", "Remove `mig`"),
    ),
    # What is set on GPUs: by vendor, and per model or UUID.
    Refusal(
        "amd-setting",
        K,
        "  ecc: true",
        "  performance_level: high",
        10,
        ("of AMD's GPUs only", "Remove `performance_level`"),
    ),
    Refusal(
        "mig-slices",
        K,
        "  ecc: true",
        "  mig: {enabled: true, profiles: [4g.20gb, 4g.20gb]}",
        10,
        ("need 8 slices",),
    ),
    Refusal(
        "mig-and-sharing",
        K,
        "  ecc: true",
        "  sharing: exclusive\n  mig: {enabled: true}",
        10,
        ("`sharing: exclusive` is not possible with MIG", "Remove `sharing`, or `mig`"),
    ),
    Refusal(
        "mig-and-compute-mode",
        K,
        "  ecc: true",
        "  mig: {enabled: true}\n  compute_mode: prohibited",
        11,
        ("`compute_mode: prohibited` is not possible with MIG",),
    ),
    Refusal(
        "override-model",
        K,
        "  ecc: true",
        "  overrides: [{model: A100-SXM4-40, ecc: true}]",
        10,
        ('GPU model "A100-SXM4-40" is not in the facts', 'Use "A100-SXM4-40GB"'),
    ),
    Refusal(
        "override-vendor",
        K,
        "  ecc: true",
        "  overrides: [{model: MI300X, power_limit_watts: 100}]",
        10,
        ("needs an AMD driver",),
    ),
    Refusal(
        "override-power",
        K,
        "  ecc: true",
        "  overrides:\n    - model: A100-SXM4-40GB\n      power_limit_watts: 401",
        12,
        ("401 W is above the 400 W limit", "Use at most 400"),
    ),
    Refusal(
        "override-mig-profile",
        K,
        "  ecc: true",
        "  overrides: [{model: A100-SXM4-40GB, mig: {enabled: true, profiles: [3g.40gb]}}]",
        10,
        ("is not a MIG profile", 'Use "3g.20gb"'),
    ),
    Refusal(
        "override-of-nothing",
        K,
        "  ecc: true",
        "  overrides: [{power_limit_watts: 300}]",
        10,
        ("either `model` or `uuid`",),
    ),
    Refusal(
        "override-empty", K, "  ecc: true", "  overrides: [{model: A100-SXM4-40GB}]", 10, ("changes nothing",)
    ),
    Refusal(
        "override-twice",
        K,
        "  ecc: true",
        "  overrides: [{model: A100-SXM4-40GB, ecc: true}, {model: A100-SXM4-40GB, ecc: false}]",
        10,
        ("are both for A100-SXM4-40GB",),
    ),
    Refusal(
        "override-of-both",
        K,
        "  ecc: true",
        "  overrides: [{model: L4, uuid: GPU-" + "0" * 36 + "}]",
        10,
        ("Keep one of the two",),
    ),
    Refusal(
        "override-uuid",
        K,
        "  ecc: true",
        "  overrides: [{uuid: GPU-1, ecc: true}]",
        10,
        ('"GPU-1" is not the UUID of a GPU', "`nvidia-smi -L`"),
    ),
    Refusal(
        "override-mig-under-a-mode",
        K,
        "  ecc: true",
        "  sharing: mps\n  overrides:\n    - model: A100-SXM4-40GB\n      mig: {enabled: true}",
        13,
        (
            "`sharing: mps` of the class is not possible with MIG",
            "Add `compute_mode: default` to the override",
        ),
    ),
    Refusal(
        "override-mode-under-mig",
        K,
        "  ecc: true",
        "  mig: {enabled: true}\n  overrides:\n    - model: A100-SXM4-40GB\n      compute_mode: prohibited",
        13,
        ("`compute_mode: prohibited` is not possible with MIG",),
    ),
    Refusal(
        "clocks-of-nothing",
        K,
        "{graphics_mhz: 1410, memory_mhz: 1215}",
        "{mode: locked}",
        8,
        ("`clocks` names no clock",),
    ),
    # Words of files that modprobe, dkms, a shell or GRUB read.
    Refusal(
        "option-name",
        K,
        "  ecc: true",
        "  module_options: {NVreg X: '1'}",
        10,
        ('"NVreg X" is not the name of a module\'s option',),
    ),
    Refusal(
        "option-of-two-lines",
        K,
        "  ecc: true",
        '  module_options: {NVreg_X: "1\\noptions other x=1"}',
        10,
        ('"1\\noptions other x=1" is not one word', "without spaces, quotes"),
    ),
    Refusal(
        "host-word-quoted",
        K,
        "  ecc: true",
        "  host: {cmdline: ['a=\"b c\"']}",
        10,
        ("not one word of the kernel command line", "quotes"),
    ),
    Refusal(
        "module-name",
        S,
        "end_of_life",
        'modules: [{name: "a; b", package: p2}]\nend_of_life',
        17,
        ('"a; b" is not the name of a kernel',),
    ),
    Refusal(
        "dkms-name",
        S,
        "{name: nvidia, ",
        '{name: "a b", ',
        12,
        ('"a b" is not a name of DKMS', "`dkms status`"),
    ),
    # What YAML makes of a word, and values of which there are two kinds.
    Refusal(
        "off",
        K,
        "  ecc: true",
        "  host: {iommu: off}",
        10,
        ("is false, expected", 'Write it in quotes: "off"'),
    ),
    Refusal(
        "off-of-none",
        K,
        "  ecc: true",
        "  host: {transparent_hugepages: off}",
        10,
        ("Use one of: always, madvise, never",),
    ),
    Refusal(
        "memlock",
        K,
        "  ecc: true",
        "  host: {memlock: 64M}",
        10,
        ('is "64M", expected "unlimited" or a whole number',),
    ),
    Refusal(
        "memlock-zero",
        K,
        "  ecc: true",
        "  host: {memlock: 0}",
        10,
        ('is 0, expected "unlimited" or a number above 0',),
    ),
    Refusal(
        "word-for-list",
        K,
        "  ecc: true",
        "  host: {cmdline: quiet}",
        10,
        ("expected a list", "Write it as a list: [quiet]"),
    ),
    Refusal("unknown-top", K, "backend:", "klasse: a\nbackend:", 2, ('unknown key "klasse"', 'Use "class"')),
    # YAML itself.
    Refusal(
        "twice",
        K,
        "backend: cuda",
        "backend: cuda\nbackend: rocm",
        3,
        ('key "backend" is written twice, first on line 2',),
    ),
    Refusal("twice-nested", K, "count: 8}", "count: 8, count: 4}", 5, ('key "count" is written twice',)),
    Refusal("not-yaml", K, "policy:", "policy: [", 8, ("not valid YAML",)),
    Refusal("tab", K, "  ecc", "\tecc", 10, ("not valid YAML",)),
    # Values that look like a date or a number, and are none; a wrong file is not repeated whole.
    Refusal(
        "no-month",
        S,
        '"2028-06-30"',
        "2028-13-45",
        17,
        ('"2028-13-45" is not a date', "Write it as YYYY-MM-DD"),
    ),
    Refusal(
        "no-day",
        S,
        '"2028-06-30"',
        "2028-06-31",
        17,
        ('"2028-06-31" is not a date', "Write it as YYYY-MM-DD"),
    ),
    Refusal(
        "too-many-digits",
        K,
        "watts: 400",
        f"watts: {'4' * 5000}",
        9,
        (f'"{"4" * 60}…" is not a number that can be read.',),
    ),
    Refusal("no-bool", K, "ecc: true", "ecc: !!bool maybe", 10, ('"maybe" is not true or false',)),
    Refusal(
        "nested-too-deep",
        K,
        "ecc: true",
        f"ecc: {'[' * 3000}{']' * 3000}",
        None,
        ("nested too deep", "fewer levels"),
    ),
    Refusal("long", K, "cuda", "c" * 5000, 2, (f'"{"c" * 60}…", expected "cuda"',)),
]


def test_the_base_is_accepted(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path, FILES)])
    assert set(catalog.classes) == {"a100"}
    assert catalog.node_class("a100").item.policy.power_limit_watts == 400


ACCEPTED: dict[str, Callable[[], dict[str, str]]] = {
    "no-platform": lambda: edited(K, "platform: hgx_a100_8\n", ""),
    "lower-power": lambda: edited(K, "power_limit_watts: 400", "power_limit_watts: 250"),
    "mig": lambda: edited(K, "  ecc: true", "  mig: {enabled: true, profiles: [3g.20gb, 4g.20gb]}"),
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
        FILES | {"classes/c.yml": "class: c\nbackend: rocm\nstack: rocm\ngpu: {model: MI300X, count: 8}\n"}
    ),
    "fewer-gpus": lambda: edited(K, "count: 8", "count: 4"),
    "proprietary-on-ampere": lambda: edited(S, "flavour: open", "flavour: proprietary"),
    "simulated-without-fabric-manager": lambda: (
        edited(S, "  fabric_manager: {package: nvidia-fabricmanager}\n", "")
        | {K: CLASS + "simulated: true\n"}
    ),
}


AMD_CLASS = "class: c\nbackend: rocm\nstack: rocm\ngpu: {model: MI300X, count: 8}\npolicy:\n  power_limit_watts: 700\n"


def test_what_is_no_catalog_at_all(tmp_path: Path) -> None:
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
def test_what_only_nvidias_gpus_have(line: str, tmp_path: Path) -> None:
    own = {"classes/c.yml": AMD_CLASS + f"  {line}\n"}
    with pytest.raises(
        CatalogError, match=r"of NVIDIA's GPUs only, and MI300X is not one\. Remove"
    ) as caught:
        load_catalog([write(tmp_path, FILES | own)])
    assert caught.value.line == 7


def test_amds_own_settings_and_an_override_are_accepted(tmp_path: Path) -> None:
    amd = {"classes/c.yml": AMD_CLASS + "  performance_level: perf_determinism\n"}
    uuid = "GPU-" + "0" * 8 + "-0000-0000-0000-" + "0" * 12
    nvidia = edited(K, "  ecc: true", f"  overrides: [{{uuid: {uuid}, power_limit_watts: 300}}]")
    found = load_catalog([write(tmp_path, nvidia | amd)])
    assert found.node_class("a100").item.policy.overrides[0].power_limit_watts == 300


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str, tmp_path: Path) -> None:
    assert load_catalog([write(tmp_path, ACCEPTED[name]())]).classes


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused(case: Refusal, tmp_path: Path) -> None:
    root = write(tmp_path, edited(case.file, case.old, case.new))
    with pytest.raises(CatalogError) as caught:
        load_catalog([root])
    error = caught.value
    for part in case.parts:
        assert part in str(error)
    assert error.file == str(root / case.file)
    assert error.line == case.line, str(error)
    assert str(error).startswith(f"{error.file}:{error.line}: " if error.line else f"{error.file}: ")
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
    mine, foreign = write(tmp_path / "ours", FILES), write(tmp_path / "theirs", {place: "\n" + text})
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
def test_a_gate_blocks_only_what_has_a_daemon(tmp_path: Path, engine: str, gate: str, taken: bool) -> None:
    stack = STACK + f"runtime: {{engine: {engine}, package: {engine}, packages: [{engine}]}}\n"
    root = write(tmp_path, FILES | {S: stack, K: CLASS.replace("backend:", f"gate: {gate}\nbackend:")})
    if taken:
        assert load_catalog([root]).node_class("a100").item.gate == gate
        return
    with pytest.raises(CatalogError, match=r"a100\.yml:2: .*podman, which has no daemon .*\. Use `drain`"):
        load_catalog([root])


TOOLKIT = (
    "nvidia-container-toolkit, nvidia-container-toolkit-base, libnvidia-container-tools, libnvidia-container1"
)


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


def test_named_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(SiteError, match=r'goldnode-site\.yml:1: "catalog" names .*/own, which is not a dir'):
        load_catalog()
    root = write(tmp_path / "own", {"classes/mine.yml": own})
    assert {"mine", "cpu_only"} <= set(load_catalog().classes)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(root))  # one directory, named twice
    assert "mine" in load_catalog().classes
    assert str(root) in Compiler().places(), "the cache of class documents depends on it"
    monkeypatch.delenv("GOLDNODE_CATALOG")
    (root / "classes").rename(root / "clases")
    with pytest.raises(CatalogError, match=r"clases of a catalog of `catalog` in .*goldnode-site\.yml"):
        load_catalog()
