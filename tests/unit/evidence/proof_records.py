"""Records of each kind of proof about one class, as the commands write them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.classdoc.compile import class_document, document_digest
from goldnode.classdoc.load import load_catalog
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.site import Site

Json = dict[str, Any]
RECORDED = Path(__file__).parents[2] / "cases/recorded/h200_x1_580.159.04"
RUNNER = f"sha256:{'1' * 64}"
OLD = f"sha256:{'2' * 64}"
IMAGE = f"sha256:{'3' * 64}"
PROGRAM = "4" * 64
TOOLS = {"goldnode-canary": RUNNER, "goldnode-dual": RUNNER, "goldnode-node": PROGRAM}
CLASS = "case_gpu"
TIME = "2026-11-26T07:00:00Z"


def sealed(document: Mapping[str, Any]) -> Json:
    """Return a class document with the digest of its content."""
    content = {key: value for key, value in document.items() if key != "digest"}
    return {**content, "digest": document_digest(content)}


def case_class(*, simulated: bool = False) -> Json:
    """Return a class with the real lock of debian13_r550, a package of each further part, and a baseline."""
    document = copy.deepcopy(class_document("demo_disk_r550", load_catalog(), Site()))
    document |= {"class": CLASS, "simulated": simulated, "baseline": {"swap": False}}
    sample = document["packages"][0]
    for name, part in (("case-toolkit", "runtime"), ("case-base", "base")):
        document["packages"].append({**sample, "name": name, "version": "1.0-1", "part": part})
    return sealed(document)


def _canary(document: Json) -> Json:
    job = {
        "name": "gemm",
        "state": "passed",
        "why": "",
        "seconds": 1.0,
        "verified": True,
        "metrics": [],
    }
    return {
        "schema": "goldnode.canary/1",
        "simulated": False,
        "node": "n1",
        "class": CLASS,
        "class_digest": document["digest"],
        "platform": "NVIDIA A100-SXM4-40GB x 8",
        "runner": RUNNER,
        "image": None,
        "started": TIME,
        "boot_id": "b",
        "how": "ssh",
        "jobs": [job, {**job, "name": "ib", "state": "not_run", "why": "no InfiniBand"}],
    }


def _floors(document: Json) -> Json:
    metric = {
        "name": "gemm_fp16",
        "job": "gemm",
        "phase": "warm",
        "unit": "TFLOP/s",
        "better": "higher",
        "node": None,
        "device": None,
        "margin": 0.05,
        "nodes": 3,
        "devices": 24,
        "runs": 30,
        "results": 9,
        "verified": True,
        "statistics": [
            {
                "quantile": "p50",
                "median": 1.0,
                "low": None,
                "high": None,
                "sigma": 0.1,
                "floor": 0.9,
            }
        ],
        "sm_mhz": None,
        "temperature_c": None,
        "power_w": None,
    }
    return {
        "schema": "goldnode.floors/1",
        "class": CLASS,
        "class_digest": document["digest"],
        "platform": "NVIDIA A100-SXM4-40GB x 8",
        "runner": RUNNER,
        "simulated": False,
        "scope": "class",
        "begin": TIME,
        "end": TIME,
        "results": 9,
        "nodes": ["n1", "n2", "n3"],
        "metrics": [metric],
        "left_out": [],
    }


def _side(name: str, state: str) -> Json:
    return {
        "name": name,
        "record": OLD,
        "started": TIME,
        "simulated": False,
        "how": "ssh",
        "host": "n1",
        "image": None,
        "state": state,
        "stack": "torch 2.11, cuda: NVIDIA A100",
        "precision": "native",
        "repeatable": True,
        "hooks_change_output": False,
        "recorder": RUNNER,
    }


def _dual(document: Json) -> Json:
    return {
        "schema": "goldnode.dual/1",
        "answer": "pass",
        "reasons": ["1 output is within its tolerance"],
        "compared": TIME,
        "simulated": False,
        "a": _side("before", OLD),
        "b": _side("after", document["lock"]["digest"]),
        "differences": [],
        "first_difference": None,
        "first_divergence": None,
        "arrays": [],
        "samples": [],
        "latency": [],
    }


def _recorded(name: str) -> Json:
    content = json.loads((RECORDED / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def _boot(document: Json) -> Json:
    verdict = {
        **_recorded("verdict.json"),
        "class": CLASS,
        "class_digest": document["digest"],
        "lock_digest": document["lock"]["digest"],
        "status": "healthy",
        "exit_code": 0,
    }
    return {
        "schema": "goldnode.node-report/1",
        "node": "n1",
        "engine": PROGRAM,
        "capture": _recorded("capture.json"),
        "verdict": verdict,
    }


def _module_build(document: Json) -> Json:
    return {
        "key": "k",
        "stack": "debian13_r550",
        "kernel": document["kernel"]["release"],
        "driver": document["driver"]["version"],
        "flavour": document["driver"]["flavour"],
        "ok": True,
        "seconds": 60.0,
        "line": None,
        "log": "k.log",
        "modules": ["nvidia-current.ko"],
        "compression": "xz",
        "place": "updates/dkms",
        "builder": [["gcc-14", "14.2.0-19", "sha256:0"], ["dkms", "3.2.2-1", "sha256:0"]],
        "built": TIME,
        "schema": "goldnode.modules/1",
    }


def write(kind: EvidenceKind, document: Json, directory: Path, **changes: Any) -> Path:
    """Write a passed record of a kind about a class, with `changes` to its top level; return its path."""
    if kind == "prove-gpu":
        folder = directory / "run"
        shutil.copytree(RECORDED, folder, dirs_exist_ok=True)
        record = _recorded("record.json")
        record["steps"] = [row for row in record["steps"] if row["status"] == "passed"]
        record["versions"]["program"] = f"goldnode-node sha256:{PROGRAM}"
        (folder / "record.json").write_text(json.dumps(record | changes))
        (folder / "class.json").write_text(json.dumps(document))
        return folder
    if kind == "disk":
        raw = "5" * 64
        manifest = {
            "build_id": "b1",
            "class_digest": document["digest"],
            "raw": {"sha256": raw},
            "tools": {"mmdebstrap": "1.3.5"},
        }
        (directory / "disk.json").write_text(json.dumps(manifest))
        content: Json = {
            "name": f"{CLASS}-b1",
            "class": CLASS,
            "build_id": "b1",
            "raw_sha256": raw,
            "time": "2026-11-26T10:00:00Z",
            "tools": {"qemu": "7.2.17", "OVMF_CODE.fd": f"sha256:{'6' * 64}"},
            "accelerator": "kvm",
            "simulated_hardware": False,
            "boots": [{}, {}],
            "counts": {"passed": 40},
            "outcome": "passed",
        }
    elif kind == "smoke":
        smoke = {**_recorded("smoke.json"), "program": RUNNER, **changes}
        content, changes = {"records": {IMAGE: smoke}}, {}
    else:
        makers = {
            "boot": _boot,
            "canary": _canary,
            "floors": _floors,
            "dual": _dual,
            "module-build": _module_build,
        }
        content = makers[kind](document)
    path = directory / ("verified.json" if kind == "disk" else f"{kind}.json")
    path.write_text(json.dumps(content | changes))
    return path
