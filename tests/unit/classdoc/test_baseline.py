"""What a class may say of its baseline and suppressions, how it is refused, and what of it reaches the node."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from tests.unit.catalog.test_accept_reject import CLASS, FILES, K, write
from tests.unit.classdoc.test_class_document import DAY, LOCK, SITE

from goldnode.classdoc import checks
from goldnode.classdoc.compile import class_document, document_digest
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import GoldnodeError
from goldnode.node.state import preflight

HEAD = CLASS.partition("baseline:")[0]
LINE = HEAD.count("\n") + 1


def document(tmp_path: Path, text: str) -> dict[str, Any]:
    catalog = load_catalog([write(tmp_path, FILES | {K: HEAD + text})])
    return class_document("a100", catalog, SITE, {"r580": LOCK}, on=DAY)


WHOLE = """baseline:
  gpu:
    vbios: [92.00.45.00.03]
    subsystem_ids: ['10de:134f']
    memory_mib: [40960]
    pcie: {gen: 4, width: 8}
    nvlinks: 12
    bar1_mib: 65536
    max_clocks: {sm_mhz: 1410, memory_mhz: 1215}
    reason: x8 risers
    numa: {'0000:07:00.0': 0, '0000:0f:00.0': -1}
    overrides:
    - {address: '0000:0f:00.0', nvlinks: 8, reason: four links are not wired}
  cpu: {sockets: 2, cores: 128, smt: true}
  memory: {total_gib: 1008, tolerance: 0.02}
  network: {eth0: {mtu: 9000, speed_mbps: 100000, numa_node: 0, firmware: [22.1]}}
  infiniband: {mlx5_0: {rate_gbps: 200, ports: 1}}
  storage:
    mounts: {/scratch: {free_gib: 100, type: xfs}}
    devices: {count: 9}
    paths: {/data: {latency_ms: 20, read_mb_s: 1000}}
  modules: [nvidia_peermem]
  services: [nvidia-persistenced.service]
suppressions:
- {id: net.*, subject: eth0, owner: ann, reason: a cable is on order, expires: 2027-01-31}
"""


def test_all_of_it_reaches_the_node_and_all_of_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match="firmware"):  # a version that YAML takes for a number
        document(tmp_path, WHOLE)
    found: Any = document(tmp_path, WHOLE.replace("[22.1]", "['22.1']"))
    assert found["health"]["baseline"] == found["baseline"]
    assert found["baseline"]["gpu"]["numa"] == {"0000:07:00.0": 0, "0000:0f:00.0": -1}
    assert found["suppressions"][0]["expires"] == "2027-01-31"
    assert found["suppressions"][0]["severity"] == "degraded"
    assert preflight.unread(found) == []
    assert found["digest"] == document_digest(found) != document(tmp_path, "")["digest"]
    found["baseline"]["tape"] = {}
    assert preflight.unread(found) == ["baseline.tape"]


def test_a_class_without_suppressions_has_no_such_key(tmp_path: Path) -> None:
    assert "suppressions" not in document(tmp_path, "")


REFUSED = [
    (
        "unknown-key",
        "baseline:\n  gpu: {vbio: ['1']}\n",
        1,
        ('"vbio" in "baseline.gpu"', 'Use "vbios"'),
    ),
    (
        "unknown-section",
        "baseline:\n  netwrk: {}\n",
        1,
        ('unknown key "netwrk" in "baseline"', 'Use "network"'),
    ),
    (
        "gen-too-new",
        "baseline:\n  gpu: {pcie: {gen: 5}}\n",
        1,
        ("PCIe generation 5, and A100-SXM4-40GB has 4", "Use at most 4"),
    ),
    (
        "width-without-reason",
        "baseline:\n  gpu: {pcie: {width: 8}}\n",
        1,
        ("PCIe width 8, and A100-SXM4-40GB has 16", "reason"),
    ),
    ("width-unknown", "baseline:\n  gpu: {pcie: {width: 7}}\n", 1, ("baseline.gpu.pcie.width",)),
    (
        "links",
        "baseline:\n  gpu: {nvlinks: 8}\n",
        1,
        ("8 NVLinks, and A100-SXM4-40GB has 12", "reason"),
    ),
    (
        "vram",
        "baseline:\n  gpu:\n    memory_mib: [81920]\n",
        2,
        ("81920 MiB of VRAM, and A100-SXM4-40GB has 40960",),
    ),
    (
        "address",
        "baseline:\n  gpu:\n    numa: {'7:0': 0}\n",
        2,
        ("is not a PCI address", "0000:18:00.0"),
    ),
    ("subsystem", "baseline:\n  gpu: {subsystem_ids: ['10DE:1']}\n", 1, ("is not a PCI id",)),
    (
        "override-empty",
        "baseline:\n  gpu:\n    overrides:\n    - {address: '0000:07:00.0', reason: none}\n",
        3,
        ("the override for 0000:07:00.0 changes nothing",),
    ),
    (
        "override-reason",
        "baseline:\n  gpu:\n    overrides:\n    - {address: '0000:07:00.0', nvlinks: 8}\n",
        3,
        ("reason",),
    ),
    (
        "mount",
        "baseline:\n  storage:\n    mounts: {scratch: {}}\n",
        2,
        ("is not an absolute path",),
    ),
    ("service", "baseline:\n  services: [docker]\n", 1, ("is not the name of a unit",)),
    ("module", "baseline:\n  modules: ['../x']\n", 1, ("is not the name of a kernel module",)),
    (
        "tolerance",
        "baseline:\n  memory: {total_gib: 8, tolerance: 2}\n",
        1,
        ("baseline.memory.tolerance",),
    ),
    (
        "suppress-all",
        "suppressions:\n- {id: '*', owner: a, reason: b, expires: 2027-01-01}\n",
        1,
        ("would accept every finding",),
    ),
    (
        "suppress-owner",
        "suppressions:\n- {id: net.mtu, reason: b, expires: 2027-01-01}\n",
        1,
        ("owner",),
    ),
    (
        "suppress-date",
        "suppressions:\n- {id: net.mtu, owner: a, reason: b, expires: soon}\n",
        1,
        ("is not a date",),
    ),
    (
        "suppress-id",
        "suppressions:\n- {id: 'net mtu', owner: a, reason: b, expires: 2027-01-01}\n",
        1,
        ("is not the id of a finding",),
    ),
    (
        "suppress-none",
        "suppressions:\n- {id: pcie.widht, owner: a, reason: b, expires: 2027-01-01}\n",
        1,
        ('no finding "pcie.widht"', 'Use "pcie.width"'),
    ),
    (
        "suppress-no-pattern",
        "suppressions:\n- {id: 'pcei.*', owner: a, reason: b, expires: 2027-01-01}\n",
        1,
        ('no finding "pcei.*"',),
    ),
]


@pytest.mark.parametrize(
    ("text", "line", "parts"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_invalid_baseline_is_refused_at_its_line(
    tmp_path: Path, text: str, line: int, parts: tuple[str, ...]
) -> None:
    with pytest.raises(GoldnodeError) as refused:
        document(tmp_path, text)
    for part in parts:
        assert part in str(refused.value)
    assert str(refused.value.file).endswith(K)
    assert refused.value.line in range(LINE, LINE + line + 1), refused.value


@pytest.mark.parametrize(
    "name",
    [
        "pcie.width",
        "net.*",
        "p*",
        "policy.clocks.graphics_mhz",
        "xid.63",
        "modules.nvidia.loaded",
        "*.loaded",
        "xid.7?",
        "*.ids",
        "gpu.r?s",
        "events.*",
    ],
)
def test_findings_that_there_are(name: str) -> None:
    assert checks.is_finding(name)


@pytest.mark.parametrize("name", ["pcie.witdh", "boot.nonsense", "nothing.*", "xids.63", ""])
def test_findings_that_there_are_not(name: str) -> None:
    assert not checks.is_finding(name)


def test_a_suppression_past_its_day_is_reported(tmp_path: Path) -> None:
    text = "suppressions:\n- {id: net.mtu, owner: ann, reason: b, expires: 2020-12-15}\n"
    catalog = load_catalog([write(tmp_path, {**FILES, K: FILES[K] + text})])
    (reported,) = checks.past_suppressions(catalog.node_class("a100"))
    assert (
        '"net.mtu" was accepted by ann until 2020-12-15, and counts again. Fix its cause, or have ann renew it.'
        in reported
    )
    assert not checks.past_suppressions(catalog.node_class("a100"), dt.date(2020, 12, 15))


def test_numa_of_more_gpus_than_a_node_has_is_refused(tmp_path: Path) -> None:
    nodes = ", ".join(f"'0000:{index:02x}:00.0': 0" for index in range(9))
    with pytest.raises(GoldnodeError, match="NUMA nodes of 9 GPUs, and a node has 8"):
        document(tmp_path, f"baseline:\n  gpu:\n    numa: {{{nodes}}}\n")
