"""The facts have no row without a source, none that contradict each other, and whatever the catalog names is among them.

Every check is seen to fail on a copy of the facts with one row broken.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.errors import FactsError
from goldnode.facts import audit
from goldnode.facts import host as facts
from goldnode.facts.models import FILES

# (file, what stands there once, what is written instead, what must be said of it)
BROKEN = {
    "no-date": (
        "cuda.yml",
        "compiled: '2026-11-28',\n    complete_until",
        "compiled: soon,\n    complete_until",
        '"meta.compiled" is "soon", expected text of the form',
    ),
    "unknown-source": (
        "rocm.yml",
        "  source: [trans, n100, inst, eco]",
        "  source: [trans, gossip]",
        'source "gossip" is not in the table',
    ),
    "unused-source": (
        "gpus.yml",
        "  cuda: {title:",
        "  idle: {title: nobody}\n  cuda: {title:",
        'source "idle" is stated by no row',
    ),
    "source-without-a-title": (
        "rocm.yml",
        "  tags: {title: ROCm/ROCm git tags,",
        "  tags: {",
        'key "sources.tags.title" is missing',
    ),
    "row-without-a-source": (
        "cuda.yml",
        "  source: [rn_arch, pypi_rt]\n  note: developer preview",
        "  note: developer preview",
        'key "releases.59.source" is missing',
    ),
    "mapping-without-a-source": (
        "nvidia_drivers.yml",
        "555+: '4.15', source: ogkm}",
        "555+: '4.15'}",
        "the row has no source",
    ),
    "list-without-a-source": (
        "distros.yml",
        "  checked: [bookworm, trixie, sid]\n  source: apt",
        "  checked: [bookworm, trixie, sid]",
        'key "not_in_debian.source" is missing',
    ),
    "null-source-with-a-value": (
        "container_toolkit.yml",
        "min_driver: {value: null, note: no toolkit-wide driver minimum was found in the documents read, source: null}",
        "min_driver: {value: '418', source: null}",
        "no source but states value",
    ),
    "confidence": (
        "known_bad.yml",
        "  confidence: low\n",
        "  confidence: sure\n",
        "confidence 'sure' begins with none of",
    ),
    "conflict-without-words": (
        "cuda.yml",
        "  conflict: one third-party script says 535.86.09",
        "  conflict: true",
        '"releases.28.conflict" is true, expected text',
    ),
    "unverified-without-fields": (
        "gpus.yml",
        "  unverified: {nvlink_links: 4}",
        "  unverified: 4",
        '"nvidia.8.unverified" is 4, expected a mapping of keys',
    ),
    "unverified-and-stated": (
        "gpus.yml",
        "  nvlink_links: 6\n",
        "  nvlink_links: 6\n  unverified: {nvlink_links: 6}\n",
        "nvlink_links is stated and unverified at once",
    ),
    "end-of-life-is-no-date": (
        "distros.yml",
        "  released: '2023-06-10'",
        "  released: last summer",
        "released is 'last summer'",
    ),
    # The same thing twice.
    "two-rows-of-a-release": (
        "cuda.yml",
        "- version: 12.4.1\n",
        "- version: 12.4.0\n",
        "releases has two rows for 12.4.0",
    ),
    "two-rows-of-a-branch": (
        "security.yml",
        "- {branch: 465, floor",
        "- {branch: 455, floor",
        "two rows for 455",
    ),
    "two-builds-seen": (
        "nvidia_drivers.yml",
        "  - {kernel: 6.12.117, driver: 550.163.01, flavour: open, builds: false",
        "  - {kernel: 6.12.107, driver: 550.163.01, flavour: open, builds: true",
        "was seen to build and to fail",
    ),
    "pci-id-of-two-models": (
        "gpus.yml",
        "pci_ids: ['10de:20f1', '10de:20b1']",
        "pci_ids: ['10de:20f1', '10de:20b0']",
        "is of two models",
    ),
    # CUDA.
    "minimum-of-a-release": (
        "cuda.yml",
        "  bundled_driver: 550.54.14\n  source: [spack_pkg, catalog]\n  min_driver_minor_version_compat: 525.60.13",
        "  bundled_driver: 550.54.14\n  source: [spack_pkg, catalog]\n  min_driver_minor_version_compat: 535.54.03",
        "CUDA 12.4.0 needs driver 535.54.03, but its major 525.60.13",
    ),
    "minimum-of-a-major": (
        "cuda.yml",
        "  min_driver_minor_version_compat: 580.65.06\n  min_branch: 580",
        "  min_driver_minor_version_compat: 575.51.02\n  min_branch: 580",
        "min_branch is not the branch of the minimum driver",
    ),
    "bundled-driver-of-another-branch": (
        "cuda.yml",
        "bundled_driver: 550.54.15",
        "bundled_driver: 535.54.15",
        "branch 535 knows CUDA up to 12.2",
    ),
    "newest-cuda-of-a-branch": (
        "nvidia_drivers.yml",
        "max_cuda: '12.4'",
        "max_cuda: '12.3'",
        "branch 550 knows CUDA up to 12.3",
    ),
    "older-branch-knows-more": (
        "nvidia_drivers.yml",
        "max_cuda: '12.7'",
        "max_cuda: '12.1'",
        "branch 565 knows less CUDA than 560",
    ),
    "forward-compat-below-the-minimum": (
        "cuda.yml",
        "    of_which_need_cuda_compat: [535, 550, 570, 575]\n    of_which_run_by_minor_version_compat: [580]",
        "    of_which_need_cuda_compat: [535, 550, 570]\n    of_which_run_by_minor_version_compat: [575, 580]",
        "minor-version compatibility begins with branch 580",
    ),
    "forward-compat-lists": (
        "cuda.yml",
        "    of_which_run_by_minor_version_compat: [535, 550, 560, 565, 570]",
        "    of_which_run_by_minor_version_compat: [535, 550, 560, 565]",
        "are not the list of the image",
    ),
    "forward-compat-package": (
        "cuda.yml",
        "compat_package: cuda-compat-13-1",
        "compat_package: cuda-compat-13-0",
        "is called cuda-compat-13-0",
    ),
    "native-branch": (
        "cuda.yml",
        "    native_driver_branch_first: 590",
        "    native_driver_branch_first: 595",
        "native from branch 595, but bundles 590",
    ),
    # Architectures and GPUs.
    "capability-of-two-architectures": (
        "cuda.yml",
        "  cc: ['8.9']",
        "  cc: ['9.0']",
        "compute capability 9.0 is of",
    ),
    "capability-of-a-gpu": (
        "gpus.yml",
        "- sku: B300-SXM6-AC\n  vendor: nvidia\n  names: [NVIDIA B300 SXM6 AC]\n  pci_ids: ['10de:3182']\n  architecture: Blackwell Ultra",
        "- sku: B300-SXM6-AC\n  vendor: nvidia\n  names: [NVIDIA B300 SXM6 AC]\n  pci_ids: ['10de:3182']\n  architecture: Blackwell",
        "B300-SXM6-AC is Blackwell, but compute capability 10.3 is of Blackwell Ultra",
    ),
    "first-cuda-of-a-gpu": (
        "gpus.yml",
        "  min_driver_date: '2018-11-15'\n  min_cuda_native: '10.0'\n  source:\n    names: smi",
        "  min_driver_date: '2018-11-15'\n  min_cuda_native: '11.0'\n  source:\n    names: smi",
        "T4: first CUDA 11.0, but 10.0 in cuda.yml",
    ),
    "last-branch-of-an-architecture": (
        "nvidia_drivers.yml",
        "  max_cuda: '13.1'\n  architectures:\n    oldest: Turing",
        "  max_cuda: '13.1'\n  architectures:\n    oldest: Maxwell",
        "branch 590 drives Maxwell and later, but cuda.yml says that 580 is the last",
    ),
    "open-modules-of-a-gpu": (
        "gpus.yml",
        "  min_cuda_native: '10.0'\n",
        "  min_cuda_native: '10.0'\n  open_modules_supported: false\n",
        "T4: open_modules_supported contradicts",
    ),
    "open-modules-of-a-branch": (
        "nvidia_drivers.yml",
        "    first_branch: 515",
        "    first_branch: 520",
        "branch 515: open modules contradict",
    ),
    "only-flavour": (
        "nvidia_drivers.yml",
        "    only_flavour_from_branch: 615",
        "    only_flavour_from_branch: 620",
        "branch 615: the only flavour",
    ),
    "mig-table-of-no-row": (
        "gpus.yml",
        "  mig: {capable: true, tables: [b200]}",
        "  mig: {capable: true, tables: [b201]}",
        'B200-SXM-180GB: there is no MIG table "b201"',
    ),
    "mig-profile-beyond-the-board": (
        "gpus.yml",
        "name: 4g.24gb, size: 4, starts: [0]",
        "name: 4g.24gb, size: 4, starts: [1]",
        "a30: 4g.24gb from memory slice 1 on ends beyond the 4 of the board",
    ),
    "more-mig-instances-than-fit": (
        "gpus.yml",
        "{name: 1g.6gb, size: 1, starts: [0, 1, 2, 3], instances: 4}",
        "{name: 1g.6gb, size: 1, starts: [0, 1, 2], instances: 4}",
        "a30: 4 instances of 1g.6gb do not fit",
    ),
    "value-of-a-gpu-without-source": (
        "gpus.yml",
        "memory_power: null, pcie: mock, nvlink: null, mig: mig, ecc: null, min_driver: log, min_cuda: cuda}\n  note: 20b1",
        "memory_power: null, pcie: null, nvlink: null, mig: mig, ecc: null, min_driver: log, min_cuda: cuda}\n  note: 20b1",
        "A100-PCIE-40GB: pcie is stated without a source",
    ),
    "driver-of-a-gpu-in-two-tables": (
        "nvidia_drivers.yml",
        "L40S: 535.104.05",
        "L40S: 535.54.03",
        "L40S: driver 535.104.05 here, 535.54.03 in",
    ),
    "driver-of-a-gpu-by-the-operator": (
        "nvidia_drivers.yml",
        "{gpu: HGX B200, min_driver: 570.133.20",
        "{gpu: HGX B200, min_driver: 570.124.06",
        "B200-SXM-180GB: driver 570.133.20 here, 570.124.06 in operator_minimum",
    ),
    "driver-of-a-gpu-in-the-known-bad-list": (
        "known_bad.yml",
        "  when: {gpu: H200 SXM, driver: <550.90.07}",
        "  when: {gpu: H200 SXM, driver: <550.54.14}",
        "h200-too-old: H200 SXM needs 550.54.14, but 550.90.07 in gpus.yml",
    ),
    "gfx-of-a-gpu": (
        "rocm.yml",
        "  MI100: gfx908",
        "  MI100: gfx906",
        "MI100 is gfx908 here, gfx906 in rocm.yml",
    ),
    "gibibytes": (
        "gpus.yml",
        "  memory_gib: 192",
        "  memory_gib: 190",
        "MI300X: 190 GiB are not 196608 MiB",
    ),
    # Drivers.
    "release-of-another-branch": (
        "nvidia_drivers.yml",
        "  - [595.58.03, null, spack_pkg]",
        "  - [590.58.03, null, spack_pkg]",
        "no release of branch 595",
    ),
    "latest-is-no-release": (
        "nvidia_drivers.yml",
        "latest_known: 610.57.04",
        "latest_known: 610.58.04",
        "610.58.04 is not among its point releases",
    ),
    "end-nobody-stated": (
        "nvidia_drivers.yml",
        "  eol: '2025-04-17'",
        "  eol: '2027-04-17'",
        "branch 550: end of life 2027-04-17 is stated by none",
    ),
    "ends-differ-silently": (
        "nvidia_drivers.yml",
        "  eol_sources: {dds615: 2027-03, eol: '2027-03-24'}",
        "  eol_sources: {dds615: 2027-03, eol: '2027-05-24'}",
        "branch 595: sources give the ends 2027-03, 2027-05-24",
    ),
    "supported-now": (
        "nvidia_drivers.yml",
        "  supported_now: {LTSB: 580, PB: 595}",
        "  supported_now: {LTSB: 535, PB: 595}",
        "LTSB 535 is supported now",
    ),
    "floor-not-of-the-bulletins": (
        "security.yml",
        "{branch: 535, floor: 535.309.01",
        "{branch: 535, floor: 535.288.01",
        "branch 535: floor",
    ),
    "floor-above-the-latest": (
        "nvidia_drivers.yml",
        "  latest_known: 595.91.07",
        "  latest_known: 595.71.05",
        "branch 595: its newest release 595.71.05 is below its floor 595.91.07",
    ),
    "unfixed-called-current": (
        "security.yml",
        "{branch: 570, floor: 570.211.01, from_bulletin: '5747', bulletin_date: '2026-01-28', covers_newest_bulletin: false",
        "{branch: 570, floor: 570.211.01, from_bulletin: '5747', bulletin_date: '2026-01-28', covers_newest_bulletin: true",
        "branch 570: covers_newest_bulletin contradicts",
    ),
    "branch-without-a-floor": (
        "security.yml",
        "{branch: 620, floor",
        "{branch: 621, floor",
        "branch 620 has no security floor",
    ),
    "newest-bulletin": (
        "security.yml",
        "newest_bulletin: 5861 (2026-09-30)",
        "newest_bulletin: 5821 (2026-05-19)",
        "the newest bulletin is 5861",
    ),
    "end-in-two-files": (
        "security.yml",
        "branch_eol: 2026-06,",
        "branch_eol: 2026-07,",
        "branch 535 ends 2026-07 here, 2026-06 in",
    ),
    "unfixed-branches": (
        "known_bad.yml",
        "565, 570, 575, 590]",
        "565, 570, 575]",
        "driver-eol-unfixed and the floors disagree about 590",
    ),
    # Kernels.
    "builds-and-fails": (
        "nvidia_drivers.yml",
        "known_to_fail: [535.274.02, 550.163.01, 580.119.02, 590.48.01]",
        "known_to_fail: [535.274.02, 550.163.01, 580.126.18, 590.48.01]",
        "580.126.18 builds and fails",
    ),
    "fails-after-the-fix": (
        "nvidia_drivers.yml",
        "    known_to_fail: [470.256.02, 535.216.03]",
        "    known_to_fail: [570.133.07, 535.216.03]",
        "570.133.07 fails, but 570.124.04 of its branch builds",
    ),
    "seen-against-the-table": (
        "nvidia_drivers.yml",
        "{kernel: 6.12.107, driver: 550.163.01, flavour: open, builds: false",
        "{kernel: 6.12.107, driver: 550.163.01, flavour: open, builds: true",
        "was seen to build on kernel 6.12.107, where the table says it fails",
    ),
    "known-bad-against-the-table": (
        "known_bad.yml",
        "  first_fixed: [570.124.04]",
        "  first_fixed: [570.86.16]",
        "kernel-6.14: the kernel build table differs",
    ),
    "known-bad-without-a-remedy": (
        "known_bad.yml",
        "  fix: use a non-RT kernel\n",
        "",
        'key "known_bad.14.fix" is missing',
    ),
    "known-bad-severity": (
        "known_bad.yml",
        "  fix: use a non-RT kernel\n  severity: block",
        "  fix: use a non-RT kernel\n  severity: grave",
        '"known_bad.14.severity" is "grave", expected "block" or "warn"',
    ),
    # Containers, libraries, frameworks, ROCm.
    "toolkit-floor": (
        "container_toolkit.yml",
        "minimum_safe: 1.19.1",
        "minimum_safe: 1.18.1",
        "minimum_safe is 1.18.1, the newest fix 1.19.1",
    ),
    "toolkit-newest": (
        "container_toolkit.yml",
        "newest: 1.20.0 (2026-08-12)",
        "newest: 1.19.1 (2026-05-21)",
        "the newest release 1.20.0",
    ),
    "toolkit-fixed-and-affected": (
        "container_toolkit.yml",
        "affected: <= 1.16.1",
        "affected: <= 1.16.2",
        "1.16.2 is fixed, and <= 1.16.2 affected",
    ),
    "toolkit-floor-in-the-known-bad-list": (
        "known_bad.yml",
        "  when: {toolkit: <1.19.1}",
        "  when: {toolkit: <1.19.0}",
        "ctk-insecure says <1.19.0",
    ),
    "engine-of-a-distribution": (
        "distros.yml",
        "containers: {docker.io: 26.1.5",
        "containers: {docker.io: 26.1.6",
        "docker.io 26.1.5 here, 26.1.6 in distros",
    ),
    "engine-reads-cdi": (
        "container_toolkit.yml",
        "podman: 4.3.1, ok_for_cdi_0_7: false",
        "podman: 4.3.1, ok_for_cdi_0_7: true",
        "ok_for_cdi_0_7 contradicts the minimum versions",
    ),
    "cudnn-driver": (
        "cudnn_nccl.yml",
        "  cuda: ['13.0', '13.1']\n  min_driver: 580.65.06",
        "  cuda: ['13.0', '13.1']\n  min_driver: 575.51.02",
        "cuDNN 9.17.0: driver 575.51.02, but CUDA 13 needs 580.65.06",
    ),
    "cudnn-cuda-of-another-major": (
        "cudnn_nccl.yml",
        "  cuda: ['13.0', '13.1']",
        "  cuda: ['12.9', '13.1']",
        "for CUDA 13 lists CUDA 12.9",
    ),
    "torch-default-is-no-build": (
        "frameworks.yml",
        "    cu132: {cudnn: 9.26.0.51, nccl: 2.30.7}",
        "    cu133: {cudnn: 9.26.0.51, nccl: 2.30.7}",
        "torch 2.15.0: cu132 is no build of 2.15",
    ),
    "torch-cudnn": (
        "frameworks.yml",
        "    cu132: {cudnn: 9.26.0.51",
        "    cu132: {cudnn: 9.25.0.51",
        "cudnn 9.26.0.51, but 9.25.0.51 in torch_builds",
    ),
    "vllm-pins-no-torch": (
        "frameworks.yml",
        "torch: ==2.10.0",
        "torch: ==2.10.9",
        "vllm 0.17.0 pins torch 2.10.9",
    ),
    "amdgpu-is-no-release": (
        "rocm.yml",
        "  amdgpu: 30.30.3",
        "  amdgpu: 30.30.9",
        "ROCm 7.2.3: amdgpu 30.30.9 is no release",
    ),
    "dangling-source-of-a-known-bad-row": (
        "known_bad.yml",
        "  confidence: high\n  source: amdop",
        "  confidence: high\n  source: amdopp",
        'source "amdopp" is not in the table of sources',
    ),
    "unknown-architecture": (
        "known_bad.yml",
        "architecture: [Kepler], ",
        "architecture: [Keppler], ",
        'no GPU of the facts has architecture "Keppler"',
    ),
    "unknown-model": (
        "known_bad.yml",
        "gpu: [GeForce-RTX-50",
        "gpu: [GeForce-RTY-50",
        'gpus.yml has no model "GeForce-RTY-50*"',
    ),
    "day-of-no-calendar": (
        "security.yml",
        "bulletin_date: '2026-05-19'",
        "bulletin_date: '2026-13-45'",
        "bulletin_date is '2026-13-45', not a date",
    ),
}


def copy(directory: Path) -> Path:
    for path in facts.FACTS.glob("*.yml"):
        shutil.copy(path, directory / path.name)
    return directory


def test_the_facts_are_complete() -> None:
    assert [f"{fault.file}:{fault.line}: {fault.message}" for fault in audit.faults()] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_copy_is_found_out(name: str, tmp_path: Path) -> None:
    file, current, instead, expected = BROKEN[name]
    path = copy(tmp_path) / file
    text = path.read_text(encoding="utf-8")
    assert current in text
    at = text.index(current)
    path.write_text(text[:at] + instead + text[at + len(current) :], encoding="utf-8")
    found = audit.faults(tmp_path)
    hits = [fault for fault in found if expected in fault.message]
    assert hits, [fault.message for fault in found]
    assert all(fault.line for fault in hits)


# Kinds of mistakes in one row of a file, and how a command answers: line, sentence, remedy.
MISTAKES = {
    "text-for-a-mapping": ("known_bad.yml", "  when: {toolkit: <1.19.1}", "  when: an old toolkit"),
    "unknown-key": ("gpus.yml", "  compute_capability: '8.0'", "  compute_capabilty: '8.0'"),
    "missing-key": ("xid.yml", "name: ", "nom: "),
    "version-as-a-number": ("cuda.yml", "- version: 12.4.1\n", "- version: 12.4\n"),
    "text-for-a-number": ("gpus.yml", "  memory_mib: 40960", "  memory_mib: 40 GiB"),
    "list-for-text": ("security.yml", "  title: ", "  title: [] #"),
    "no-pci-id": ("gpus.yml", "pci_ids: ['10de:20b7']", "pci_ids: ['10de20b7']"),
    "no-version": ("known_bad.yml", "match: {amdgpu: '>=31.40', ", "match: {amdgpu: '>=thirty', "),
    "other-unit": ("gpus.yml", "  memory_mib: 24576\n", "  memory_mib: 24\n"),
    "misspelt-word": ("xid.yml", "node: drain", "node: drian"),
    "no-date": ("rocm.yml", "compiled: '", "compiled: 'on "),
    "empty-section": ("health.yml", "limits:\n", "limits:\nother:\n"),
    "no-yaml": ("frameworks.yml", "torch_wheels:\n", "torch_wheels: [\n"),
    "not-utf-8": ("distros.yml", "distributions:\n", "distributions: # caf\udce9\n"),
    "empty-file": ("performance.yml", "meta:", "--- []\n--- # meta:"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_facts_file_is_one_line_with_its_place_and_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the facts are used and not audited: `load` validates before anything reads a row."""
    file, current, instead = MISTAKES[name]
    path = copy(tmp_path) / file
    text = path.read_text(encoding="utf-8")
    assert current in text
    path.write_text(text.replace(current, instead, 1), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(facts, "FACTS", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(FactsError) as problem:
        facts.load(file)
    assert str(problem.value).startswith(f"facts/{file}:")
    assert problem.value.line, problem.value
    assert problem.value.remedy, problem.value
    try:  # `goldnode check-catalog` reads the files by itself, to list the faults of all
        found = [
            (fault.line, fault.message) for fault in audit.faults(tmp_path) if fault.file == file
        ]
    except FactsError as fault:
        found = [(fault.line or 0, fault.message)]
    assert any(line and message for line, message in found), found


def test_every_facts_file_has_a_model_and_every_model_its_file() -> None:
    assert set(FILES) == {path.name for path in facts.FACTS.glob("*.yml")}


def test_a_key_written_twice_is_refused(tmp_path: Path) -> None:
    path = copy(tmp_path) / "security.yml"
    path.write_text(
        path.read_text(encoding="utf-8").replace(
            "{branch: 455, floor: null,", "{branch: 455, floor: null, floor: '1',"
        ),
        encoding="utf-8",
    )
    with pytest.raises(FactsError, match='key "floor" is written twice'):
        audit.faults(tmp_path)


def test_whatever_the_catalog_names_has_facts() -> None:
    assert audit.catalog_faults(load_catalog()) == []


def test_catalog_entries_without_facts_are_reported_with_their_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without their rows in the facts, the catalog's GPU, branch and release are named, each with its file."""
    catalog = load_catalog()
    whole = facts.load

    def without(name: str) -> dict[str, Any]:
        data = dict(whole(name))
        if name == "distros.yml":
            data["distributions"] = [
                row for row in data["distributions"] if row["id"] != "debian13"
            ]
        if name == "nvidia_drivers.yml":
            data["branches"] = [row for row in data["branches"] if row["branch"] != 470]
        if name == "security.yml":
            data["floor_per_branch"] = [
                row for row in data["floor_per_branch"] if row["branch"] != 550
            ]
        if name == "gpus.yml":
            data["nvidia"] = [row for row in data["nvidia"] if row["sku"] != "L4"]
        return data

    monkeypatch.setattr(facts, "load", without)
    facts.forget()
    try:
        found = [str(error) for error in audit.catalog_faults(catalog)]
    finally:
        facts.forget()
    for expected in (
        r"debian13_r550\.yml: stack debian13_r550: facts/distros\.yml has no row for debian 13",
        r'debian12_r470\.yml: stack debian12_r470: NVIDIA driver branch "470" is not in the facts',
        r'debian13_r550\.yml: stack debian13_r550: NVIDIA driver branch "550" has no security facts',
        r'l4\.yml: class l4: GPU model "L4" is not in the facts',
    ):
        assert [line for line in found if re.search(expected, line)], (expected, found)


def test_check_catalog_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text("archives: {}\n")
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    broken = audit.FactsFault("cuda.yml", 7, "two rows disagree")
    monkeypatch.setattr(audit, "faults", lambda: [broken])
    result = CliRunner().invoke(main, ["check-catalog"])
    assert result.exit_code == 2
    assert "facts/cuda.yml:7: two rows disagree. Correct the row by its source." in result.output


@pytest.mark.parametrize(
    ("file", "current", "instead", "expected"),
    [
        ("known_bad.yml", "source: amdop\n", "source: amdopp\n", 'source "amdopp" is not in the table of sources. Use "amdop"'),
        ("gpus.yml", "  memory_mib: 24576\n", "  memory_mib: [24576]\n", 'memory_mib" is a list, expected a whole number'),
        ("known_bad.yml", "match: {amdgpu: '>=31.40', ", "match: {amdgpu: '>=thirty', ", '">=thirty" is no version with a comparator'),
    ],
    ids=["source", "form", "version"],
)  # fmt: skip
def test_check_catalog_with_broken_facts_names_their_file_alone(
    file: str,
    current: str,
    instead: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rules look up rows by name: with broken facts, a check of the catalog would blame its files, or fail."""
    (tmp_path / "facts").mkdir()
    path = copy(tmp_path / "facts") / file
    text = path.read_text(encoding="utf-8")
    assert current in text
    path.write_text(text.replace(current, instead, 1), encoding="utf-8")
    monkeypatch.setattr(facts, "FACTS", tmp_path / "facts")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    broken = audit.faults(tmp_path / "facts")
    monkeypatch.setattr(audit, "faults", lambda: broken)
    facts.forget()
    result = CliRunner().invoke(main, ["check-catalog"])
    facts.forget()
    assert result.exit_code == 2, result.output
    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    assert re.match(rf"error: facts/{file}:\d+: ", errors[0]), errors
    assert expected in errors[0]
    assert "not checked: the catalog" in result.output
