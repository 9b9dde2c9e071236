"""Proofs from records: what the commands and the node program write becomes a predicate with its subjects.

A record is bound to the class document by what it states itself: the digest of the class, the lock, or the kernel and
driver that were built. A record of another state is refused, and not signed with the wrong subject.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from goldnode.core.errors import EvidenceError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.files import sha256_of
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.dual import DualDocument
from goldnode.documents.evidence import (
    EvidenceBoot,
    EvidenceCanary,
    EvidenceDisk,
    EvidenceDual,
    EvidenceFloors,
    EvidenceHardware,
    EvidenceModuleBuild,
    EvidenceOutcome,
    EvidencePredicate,
    EvidenceProveGpu,
    EvidenceResult,
    EvidenceSmoke,
)
from goldnode.documents.floors import FloorsDocument
from goldnode.evidence.dependencies import snapshot
from goldnode.evidence.statements import Proof
from goldnode.node.ground.json_lines import as_dict, as_list, as_text

_Record = TypeVar("_Record", bound=BaseModel)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COMPILERS = re.compile(r"(gcc-[0-9]+|binutils|dkms|make)(:.*)?")
_STATES: dict[str, EvidenceOutcome] = {"passed": "passed", "pass": "passed", "healthy": "passed"}
_DOUBTS = (
    "could_not_check",
    "could not check",
    "not_run",
    "not_counted",
    "unknown",
    "not_this_class",
)

RECORDS: Mapping[EvidenceKind, str] = {
    "boot": "the output of `goldnode-node report`",
    "canary": "a result of `goldnode canary run`",
    "floors": "a baseline of `goldnode floors learn`",
    "dual": "a report of `goldnode dual compare --report`",
    "smoke": "the output of `goldnode images smoke DIGEST --format json`",
    "disk": "verified.json of `goldnode disks verify`",
    "prove-gpu": "the directory that `scripts/prove-gpu` wrote",
    "module-build": "a result of `goldnode modules build`",
}


@dataclass(frozen=True)
class ProofRequest:
    """A record with what is not in it.

    `document` is the class document of the record, `capture` one of the same hardware, `artifact` the digest of an
    image or the path of a file.
    """

    kind: EvidenceKind
    record: Path
    document: Mapping[str, Any]
    capture: Path | None = None
    artifact: str | None = None


@dataclass(frozen=True)
class _Read:
    """Content of a record that a reader returns: keys of the predicate that differ by kind, and an artefact."""

    model: type[EvidencePredicate]
    time: str
    simulated: bool
    outcome: EvidenceOutcome
    summary: str
    own: Mapping[str, Any]
    hardware: EvidenceHardware | None = None
    nodes: tuple[str, ...] = ()
    tools: Mapping[str, str] | None = None
    artifact: tuple[str, str] | None = None


def prove(asked: ProofRequest, detail: int) -> Proof:
    """Return the proof in a record. Raises EvidenceError for a record that proves nothing about this class.

    :param detail: as of `dependencies.snapshot`.
    """
    row = _READERS[asked.kind](asked)
    simulated, hardware = row.simulated, row.hardware
    if asked.capture is not None:
        capture = _json(asked.capture)
        # One simulated part makes all of it simulated.
        simulated = simulated or capture.get("simulated") is not False
        hardware = hardware_of(capture)
    document = asked.document
    content = {
        "class": document["class"],
        "time": row.time,
        "simulated": simulated,
        "hardware": None if hardware is None else hardware.model_dump(),
        "nodes": list(row.nodes),
        "tools": dict(row.tools or {}),
        "result": EvidenceResult(outcome=row.outcome, summary=row.summary[:300]).model_dump(),
        "depends": snapshot(asked.kind, document, detail).model_dump(),
        **row.own,
    }
    try:
        predicate = row.model.model_validate(content)
    except ValidationError as problem:
        raise _wrong(asked, _first(problem)) from None
    record = asked.record / "record.json" if asked.kind == "prove-gpu" else asked.record
    subjects = {
        f"class:{document['class']}": document["digest"],
        f"lock:{document['stack']['name']}": document["lock"]["digest"],
        f"record:{record.name}": f"sha256:{sha256_of(record)}",
    }
    for artifact in (row.artifact, _named(asked.artifact)):
        if artifact is not None:
            subjects[f"artifact:{artifact[0]}"] = artifact[1]
    return Proof(asked.kind, predicate, subjects)


def hardware_of(capture: Mapping[str, Any]) -> EvidenceHardware:
    """Return the GPUs of a capture. A value that could not be read is left out."""
    gpus = [as_dict(row) for row in as_list(capture.get("gpus"))]

    def texts(values: list[Any]) -> list[str]:
        return sorted({value for value in values if isinstance(value, str)})

    names = texts([row.get("name") for row in gpus])
    firmware = {
        "gsp": texts([row.get("gsp_firmware") for row in gpus]),
        "inforom": texts([as_dict(row.get("inforom")).get("image") for row in gpus]),
    }
    return EvidenceHardware(
        model=", ".join(names) or None,
        count=len(gpus),
        vbios=texts([row.get("vbios") for row in gpus]),
        firmware={key: values for key, values in firmware.items() if values},
    )


def _named(artifact: str | None) -> tuple[str, str] | None:
    """Return name and digest of an artefact: a digest, or a file. Raises EvidenceError."""
    if artifact is None:
        return None
    if _DIGEST.fullmatch(artifact):
        return "image", artifact
    path = Path(artifact)
    if not path.is_file():
        raise EvidenceError(
            f"{artifact} is neither a digest nor a file",
            remedy="write it as sha256: and 64 digits, or name a file",
        )
    return path.name, f"sha256:{sha256_of(path)}"


# Readers


def _boot(asked: ProofRequest) -> _Read:
    report = _json(asked.record)
    verdict, capture = as_dict(report.get("verdict")), as_dict(report.get("capture"))
    if not verdict or not capture:
        raise _wrong(asked, "it has no capture, or no verdict")
    _same(asked, "class digest", verdict.get("class_digest"), asked.document["digest"])
    status = str(verdict.get("status"))
    identity = as_dict(capture.get("identity"))
    node = as_text(report.get("node")) or as_text(identity.get("hostname"))
    counts = {key: int(value) for key, value in as_dict(verdict.get("counts")).items()}
    engine = as_text(report.get("engine"))
    return _Read(
        EvidenceBoot,
        time=str(verdict.get("time")),
        # Without the key, a record counts as simulated.
        simulated=verdict.get("simulated") is not False or capture.get("simulated") is not False,
        outcome=_outcome(status),
        summary=f"{status}: {counts.get('match', 0)} matches, {counts.get('mismatch', 0)} mismatches",
        own={
            "status": status,
            "boot_identity": as_text(verdict.get("boot_identity")),
            "findings": counts,
        },
        hardware=hardware_of(capture),
        nodes=(node,) if node else (),
        tools={"goldnode-node": engine.removeprefix("sha256:")} if engine else {},
    )


def _canary(asked: ProofRequest) -> _Read:
    result = _parsed(asked, CanaryDocument)
    _same(asked, "class digest", result.class_digest, asked.document["digest"])
    jobs = {job.name: job.state for job in result.jobs}
    # A job for which a node has no hardware is left out.
    states = [state for state in jobs.values() if state != "not_run"]
    return _Read(
        EvidenceCanary,
        time=result.started,
        simulated=result.simulated,
        outcome=_all(states),
        summary=f"{states.count('passed')} of {len(states)} jobs passed",
        own={"jobs": jobs, "image": result.image},
        hardware=_platform(result.platform),
        nodes=(result.node,),
        tools={"goldnode-canary": result.runner},
    )


def _floors(asked: ProofRequest) -> _Read:
    floors = _parsed(asked, FloorsDocument)
    _same(asked, "class digest", floors.class_digest, asked.document["digest"])
    metrics = sorted({row.name for row in floors.metrics})
    return _Read(
        EvidenceFloors,
        time=floors.end,
        simulated=floors.simulated,
        outcome="passed",
        summary=f"{len(metrics)} metrics of {len(floors.nodes)} nodes",
        own={"scope": floors.scope, "results": floors.results, "metrics": metrics[:50]},
        hardware=_platform(floors.platform),
        nodes=tuple(floors.nodes[:50]),
        tools={"goldnode-canary": floors.runner},
    )


def _dual(asked: ProofRequest) -> _Read:
    report = _parsed(asked, DualDocument)
    _same(asked, "state of side b", report.b.state, asked.document["lock"]["digest"])
    return _Read(
        EvidenceDual,
        time=report.b.started,
        simulated=report.simulated or report.b.simulated,
        outcome=_outcome(report.answer),
        summary=next(iter(report.reasons), report.answer),
        own={"a": report.a.state, "b": report.b.state, "compared": len(report.arrays)},
        hardware=EvidenceHardware(model=report.b.stack[:300], count=None, vbios=[], firmware={}),
        nodes=(report.b.host,) if report.b.host else (),
        tools=_tool("goldnode-dual", report.b.recorder),
    )


def _smoke(asked: ProofRequest) -> _Read:
    record, named = _json(asked.record), ""
    # The output of the command has the records of all images that were named.
    records = as_dict(record.get("records"))
    if len(records) > 1:
        raise _wrong(asked, f"it is of {len(records)} images, and a statement is about one")
    for name, row in records.items():
        record, named = as_dict(row), name
    tiers = {name: as_dict(row) for name, row in as_dict(record.get("tiers")).items()}
    if record.get("schema") != "goldnode.smoke/1" or not tiers:
        raise _wrong(asked, f"its schema is {record.get('schema')!r}")
    _same(asked, "backend", record.get("backend"), asked.document["backend"])
    image = asked.artifact or named
    if not _DIGEST.fullmatch(image):
        raise EvidenceError(
            "the record does not name the digest of its image",
            file=asked.record,
            remedy="run `goldnode images smoke` with the digest as NAME, or name it with --artifact",
        )
    states = {name: str(row.get("state")) for name, row in tiers.items()}
    # The gpu tier is the proof, where the class has GPUs. The cpu tier alone must not count as one.
    wanted = "cpu" if asked.document["backend"] == "cpu" else "gpu"
    devices = [
        as_dict(device)
        for test in as_list(tiers.get("gpu", {}).get("tests"))
        for device in as_list(as_dict(as_dict(test).get("got")).get("devices"))
    ]
    names = sorted({str(row.get("name")) for row in devices})
    hardware = EvidenceHardware(
        model=", ".join(names) or None, count=len(devices) or None, vbios=[], firmware={}
    )
    outcome = _outcome(states.get(wanted, "not_run"))
    if "failed" in states.values():
        outcome = "failed"
    return _Read(
        EvidenceSmoke,
        time=_changed(asked.record),
        simulated=record.get("simulated") is not False,
        outcome=outcome,
        summary=", ".join(f"{name} {state}" for name, state in sorted(states.items())),
        own={"image": image, "backend": record["backend"], "tiers": states},
        tools=_tool("goldnode-smoke", record.get("program")),
        hardware=hardware if devices else None,
        artifact=("image", image),
    )


def _disk(asked: ProofRequest) -> _Read:
    record, manifest = _json(asked.record), _json(asked.record.with_name("disk.json"))
    _same(asked, "class", record.get("class"), asked.document["class"])
    _same(asked, "build", record.get("build_id"), manifest.get("build_id"))
    _same(asked, "class digest of the disk", manifest.get("class_digest"), asked.document["digest"])
    raw = as_text(as_dict(manifest.get("raw")).get("sha256"))
    _same(asked, "SHA-256 of the disk", record.get("raw_sha256"), raw)
    boots = len(as_list(record.get("boots")))
    counts = as_dict(record.get("counts"))
    digest = f"sha256:{str(raw).removeprefix('sha256:')}"
    tools = {**as_dict(manifest.get("tools")), **as_dict(record.get("tools"))}
    return _Read(
        EvidenceDisk,
        # Records of earlier versions state neither time nor tools.
        time=as_text(record.get("time")) or _changed(asked.record),
        simulated=record.get("simulated_hardware") is not False,
        outcome=_outcome(str(record.get("outcome"))),
        summary=f"{boots} boots, " + ", ".join(f"{key} {counts[key]}" for key in sorted(counts)),
        own={
            "build": str(record.get("build_id")),
            "boots": boots,
            "accelerator": str(record.get("accelerator")),
        },
        tools={str(name): str(version) for name, version in tools.items()},
        artifact=(str(record.get("name")), digest),
    )


def _prove_gpu(asked: ProofRequest) -> _Read:
    record = _json(asked.record / "record.json")
    judged = _json(asked.record / "class.json")
    _same(asked, "class digest", judged.get("digest"), asked.document["digest"])
    steps = {str(row["name"]): str(row["status"]) for row in as_list(record.get("steps"))}
    versions = as_dict(record.get("versions"))
    program = as_text(versions.get("program"))
    states = [state for state in steps.values() if state != "skipped"]
    tools = {"driver": str(versions.get("driver")), "python": str(versions.get("python"))}
    if program:
        tools["goldnode-node"] = program.removeprefix("goldnode-node sha256:")
    return _Read(
        EvidenceProveGpu,
        time=str(record.get("time")),
        simulated=record.get("simulated") is not False,
        outcome=_all(states),
        summary=f"{states.count('passed')} of {len(states)} steps passed",
        own={"commit": as_text(versions.get("commit")), "steps": steps},
        hardware=hardware_of(_json(asked.record / "capture.json")),
        tools=tools,
    )


def _module_build(asked: ProofRequest) -> _Read:
    record = _json(asked.record)
    kernel, driver = asked.document["kernel"]["release"], as_dict(asked.document.get("driver"))
    _same(asked, "kernel", record.get("kernel"), kernel)
    _same(asked, "driver", record.get("driver"), driver.get("version"))
    _same(asked, "flavour", record.get("flavour"), driver.get("flavour"))
    built = as_text(record.get("built"))
    if not built:
        raise _wrong(asked, "nothing was compiled")
    outcome: EvidenceOutcome = "passed" if record.get("ok") is True else "failed"
    rows = [row for row in as_list(record.get("builder")) if isinstance(row, list) and len(row) > 1]
    return _Read(
        EvidenceModuleBuild,
        time=built,
        # No GPU takes part in it.
        simulated=False,
        outcome=outcome,
        summary=as_text(record.get("line")) or f"driver {driver.get('version')} builds on {kernel}",
        own={
            "kernel": kernel,
            "driver": str(driver.get("version")),
            "flavour": as_text(driver.get("flavour")),
            "log": as_text(record.get("log")),
        },
        tools={str(row[0]): str(row[1]) for row in rows if _COMPILERS.fullmatch(str(row[0]))},
    )


_READERS: Mapping[EvidenceKind, Callable[[ProofRequest], _Read]] = {
    "boot": _boot,
    "canary": _canary,
    "floors": _floors,
    "dual": _dual,
    "smoke": _smoke,
    "disk": _disk,
    "prove-gpu": _prove_gpu,
    "module-build": _module_build,
}


def _outcome(state: str) -> EvidenceOutcome:
    if state in _DOUBTS:
        return "could_not_check"
    return _STATES.get(state, "failed")


def _all(states: Sequence[str]) -> EvidenceOutcome:
    """Return the outcome of several parts. A failed one decides, and none at all proves nothing."""
    outcomes = {_outcome(state) for state in states}
    if "failed" in outcomes:
        return "failed"
    return "passed" if outcomes == {"passed"} else "could_not_check"


def _platform(text: str) -> EvidenceHardware:
    """Return the hardware of a text such as `NVIDIA H200 x 8`."""
    model, _, count = text.rpartition(" x ")
    if not model or not count.isdigit():
        model, count = text, ""
    return EvidenceHardware(model=model, count=int(count) if count else None, vbios=[], firmware={})


def _tool(name: str, digest: Any) -> dict[str, str]:
    """Return a tool with its digest; empty for records of earlier versions, which state none."""
    return {name: digest} if isinstance(digest, str) else {}


def _changed(path: Path) -> str:
    """Return when a record was written, for those that do not state it."""
    moment = dt.datetime.fromtimestamp(int(path.stat().st_mtime), tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _same(asked: ProofRequest, what: str, got: Any, wanted: Any) -> None:
    """Require that a record is about the state of the class document. Raises EvidenceError."""
    if got != wanted:
        raise EvidenceError(
            f"{what} of the record is {got or 'not stated'}, and that of class {asked.document['class']} is {wanted}",
            file=asked.record,
            remedy="make the proof again, or name the class document of that time with --document FILE",
        )


def _wrong(asked: ProofRequest, why: str) -> EvidenceError:
    return EvidenceError(
        f"this is no record of kind {asked.kind}: {why}",
        file=asked.record,
        remedy=f"name {RECORDS[asked.kind]}",
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise EvidenceError(f"the record cannot be read: {problem.strerror}", file=path) from None
    except ValueError as problem:
        raise EvidenceError(
            f"the record is no JSON: {problem}", file=path, line=getattr(problem, "lineno", None)
        ) from None
    if not isinstance(document, dict):
        raise EvidenceError("the record is no JSON object", file=path)
    return document


def _parsed(asked: ProofRequest, model: type[_Record]) -> _Record:
    try:
        return model.model_validate_json(asked.record.read_bytes())
    except OSError as problem:
        raise EvidenceError(
            f"the record cannot be read: {problem.strerror}", file=asked.record
        ) from None
    except ValidationError as problem:
        raise _wrong(asked, _first(problem)) from None


def _first(problem: ValidationError) -> str:
    first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"
