"""The fleet of docs/how-to/upgrade.md: three classes and five images on driver branch 570, and a stack of branch 580.

`python -m tests.unit.commands.what_if_fleet` writes the output in the page again. Package names and versions are those of
NVIDIA's repository; digests and sizes in the locks are invented, because the archives cannot be reached from the tests.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc.load import load_catalog
from goldnode.commands.check import what_if_report
from goldnode.commands.check.request import CheckRequest
from goldnode.commands.check.what_if import what_if
from goldnode.core.site import Site
from goldnode.documents.what_if import WhatIfDocument
from goldnode.lock.model import Lock, LockedArchive, LockedPackage, dump_lock, intent_digest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/upgrade.md"
DAY = dt.date(2026, 11, 24)

_CLASSES = {
    "train_h100": """\
class: train_h100
description: Training node with eight H100
backend: cuda
stack: fleet_r570
platform: hgx_h100_8
gpu: {model: H100-SXM5-80GB, count: 8}
images:
  - nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04
  - nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04
""",
    "train_a100": """\
class: train_a100
description: Training node with eight A100
backend: cuda
stack: fleet_r570
platform: hgx_a100_8
gpu: {model: A100-SXM4-40GB, count: 8}
images:
  - nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04
""",
    "infer_l4": """\
class: infer_l4
description: Inference node with one L4
backend: cuda
stack: fleet_r570
platform: generic
gpu: {model: L4, count: 1}
images:
  - vllm/vllm-openai:v0.15.1
  - {ref: "registry.example.org/infer/server:cu130", cuda: "13.0", forward_compat: false}
""",
}
_HOSTS = """\
train_h100:
  hosts: {"h[01:32].example.org": {goldnode_cohort: pretrain}}
train_a100:
  hosts: {"a[01:16].example.org": {goldnode_cohort: finetune}}
infer_l4:
  hosts: {"i[01:40].example.org": {}}
"""
# The site of this fleet accepts that branch 570 is past its end of life until the upgrade.
_SITE = """\
catalog: catalog
archives: {debian: {url: "http://mirror.example.org/debian/"}, debian-security: {url: "http://mirror.example.org/debian-security/"}}
exceptions:
  - {rule: end-of-life, stack: fleet_r570, owner: ada, reason: the move to 580 is planned, expires: "2099-12-31"}
"""
_PARTS = {
    "kernel": ["linux-image-{kernel}", "linux-headers-{kernel}"],
    "driver": [
        "nvidia-kernel-open-dkms",
        "nvidia-kernel-support",
        "firmware-nvidia-gsp",
        "nvidia-driver-cuda",
        "libcuda1",
        "libnvidia-ml1",
        "libnvidia-ptxjitcompiler1",
        "nvidia-persistenced",
        "nvidia-modprobe",
    ],
    "runtime": [
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    ],
}


def write_fleet(directory: Path) -> Path:
    """Write the site of the fleet: its catalog with locks, its site file and its inventory."""
    catalog = directory / "catalog"
    own = (builtin_catalog() / "stacks/debian13_r580.yml").read_text(encoding="utf-8")
    own = own.replace("description: Debian 13", "description: The fleet's Debian 13")
    new = own.replace("stack: debian13_r580", "stack: fleet_r580")
    old = own.replace("stack: debian13_r580", "stack: fleet_r570").replace("580", "570")
    old = old.replace("package: nvidia-fabricmanager}", "package: nvidia-fabricmanager-570}")
    old = re.sub(
        r"end_of_life: .*",
        'end_of_life: {date: "2026-01-27", source: "facts/nvidia_drivers.yml, eol"}',
        old,
    )
    files = {
        "catalog/stacks/fleet_r570.yml": old,
        "catalog/stacks/fleet_r580.yml": new,
        **{f"catalog/classes/{name}.yml": text for name, text in _CLASSES.items()},
        "hosts.yml": _HOSTS,
        "goldnode-site.yml": _SITE,
    }
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    stacks = load_catalog([builtin_catalog(), catalog]).stacks
    for name, versions in {
        "fleet_r570": ("6.12.107+deb13-amd64", "570.211.01", "1.19.1-1"),
        "fleet_r580": ("6.12.117+deb13-amd64", "580.178.04", "1.20.0-1"),
    }.items():
        lock = _lock(name, intent_digest(stacks[name].item), versions)
        (catalog / f"stacks/{name}.lock.yml").write_text(dump_lock(lock), encoding="utf-8")
    return directory


def _lock(stack: str, intent: str, versions: tuple[str, str, str]) -> Lock:
    kernel, driver, toolkit = versions
    manager = "nvidia-fabricmanager-570" if driver.startswith("570") else "nvidia-fabricmanager"
    rows = [
        _package(name.format(kernel=kernel), "kernel", f"{kernel.split('+')[0]}-1")
        for name in _PARTS["kernel"]
    ]
    rows += [_package(name, "driver", f"{driver}-1") for name in _PARTS["driver"]]
    rows += [_package(manager, "driver", f"{driver}-1", when="nvswitch")]
    rows += [_package(name, "runtime", toolkit) for name in _PARTS["runtime"]]
    engine = {
        "docker.io": "26.1.5+dfsg1-9",
        "docker-cli": "26.1.5+dfsg1-9",
        "containerd": "1.7.24~ds1-6",
        "runc": "1.1.15+ds1-2",
    }
    rows += [_package(name, "runtime", version) for name, version in engine.items()]
    return Lock(
        lock=1,
        stack=stack,
        intent=intent,
        resolved="2026-11-21",
        kernel_release=kernel,
        driver_version=driver,
        archives=[
            LockedArchive(id="debian", suite="trixie", components=["main"]),
            LockedArchive(id="debian-security", suite="trixie-security", components=["main"]),
            LockedArchive(id="nvidia-cuda", suite="", components=[]),
            LockedArchive(id="nvidia-container-toolkit", suite="", components=[]),
        ],
        packages=sorted(rows, key=lambda row: row.name),
    )


def _package(name: str, part: str, version: str, when: str | None = None) -> LockedPackage:
    nvidia = "nvidia-container-toolkit" if part == "runtime" else "nvidia-cuda"
    archive = nvidia if "nvidia" in name or name == "libcuda1" else "debian"
    return LockedPackage.model_validate(
        {
            "name": name,
            "version": version,
            "architecture": "amd64",
            "sha256": hashlib.sha256(f"{name} {version}".encode()).hexdigest(),
            "size": 20_000_000 if part == "driver" else 5_000_000,
            "path": f"pool/{name}.deb",
            "archive": archive,
            "set": "stack",
            "part": part,
            "requested": True,
            "why": "requested by the stack",
            "when": when,
        }
    )


def report(directory: Path) -> WhatIfDocument:
    """Return the report of the upgrade of the fleet, whose site is in `directory`, the working directory."""
    catalog = load_catalog([builtin_catalog(), directory / "catalog"])
    request = CheckRequest(inventories=["hosts.yml"])
    return what_if(
        request,
        "fleet_r580",
        catalog=catalog,
        site=Site.load(directory / "goldnode-site.yml"),
        on=DAY,
    )[0]


def excerpts(report: WhatIfDocument) -> dict[str, str]:
    """Return the parts of the text that the page shows, by the names of its blocks."""
    found = what_if_report.text(report).split("\n\n")

    def of(start: str) -> str:
        return next(part for part in found if part.startswith(start))

    parts = of("stack fleet_r570").partition("\npackages of")[0]
    return {
        "verdicts": f"{of('3 classes')}\n\n{of('subject')}",
        "finding": of("image vllm/vllm-openai:v0.15.1"),
        "parts": parts,
        "order": of("order"),
        "rollout": of("rollout of class train_a100"),
        "refused": of("no rollout").partition("\nTo declare")[0],
    }


def page(text: str, parts: Mapping[str, str]) -> str:
    """Return the text of the page with these parts in its blocks."""
    for name, part in parts.items():
        block = re.compile(rf"(<!-- output: {name} -->\n```text\n).*?(\n```)", re.DOTALL)
        assert block.search(text), f"{PAGE} has no block {name}"
        text = block.sub(lambda match, part=part: match[1] + part + match[2], text)  # type: ignore[misc]
    return text


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as name:
        write_fleet(Path(name))
        os.chdir(name)
        text = page(PAGE.read_text(encoding="utf-8"), excerpts(report(Path(name))))
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
