"""Predicates of signed evidence: what one proof states about a class, its hardware and its result.

Each predicate is inside an in-toto statement (v1). The subjects of the statement are the class document, the lock,
the record of the proof, and the artefact where there is one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.documents.base import Digest, Moment, NodePart, Part

EvidenceOutcome = Literal["passed", "failed", "could_not_check"]
_Short = Annotated[str, Field(max_length=300)]


class EvidenceHardware(Part):
    """The GPUs that the proof was made on. A list has one entry per distinct value."""

    model: _Short | None = Field(description="as the driver names it; null: not read")
    count: int | None = Field(ge=0, description="GPUs of one node; null: not read")
    vbios: list[_Short] = Field(description="empty: not read")
    firmware: dict[_Short, list[_Short]] = Field(description="gsp and inforom; empty: not read")


class EvidenceDepends(Part):
    """Packages and keys that the proof depends on. It is stale when one of these differs from the class of today."""

    packages: dict[_Short, _Short] = Field(
        description="package -> version and the first 12 digits of its SHA-256"
    )
    fields: dict[_Short, _Short] = Field(
        description="key of the class document -> its value, or sha256: and 12 digits of a longer one"
    )
    detail: int = Field(ge=1, description="levels of keys; below them a key is compared as a whole")


class EvidenceResult(Part):
    """The outcome. Only `passed` proves something."""

    outcome: EvidenceOutcome
    summary: _Short


class EvidencePredicate(NodePart):
    """Keys that all proofs have."""

    class_: _Short = Field(alias="class")
    time: Moment = Field(description="when the proof was made, not when it was signed")
    simulated: bool = Field(description="true: it proves no class of real hardware")
    hardware: EvidenceHardware | None = Field(description="null: the proof needs no GPU")
    nodes: list[_Short] = Field(description="nodes that it was made on, as the record names them")
    tools: dict[_Short, _Short] = Field(description="what has measured -> version or digest")
    result: EvidenceResult
    depends: EvidenceDepends


def _version(kind: EvidenceKind) -> ConfigDict:
    """Return the configuration of a predicate. Its version is in the statement's predicateType: the schema names it."""
    return ConfigDict(json_schema_extra={"$comment": f"goldnode.evidence-{kind}/1"})


class EvidenceBoot(EvidencePredicate):
    """The verdict about a node after a boot."""

    model_config = _version("boot")

    status: _Short
    boot_identity: _Short | None
    findings: dict[_Short, int] = Field(description="outcome -> number of findings")


class EvidenceCanary(EvidencePredicate):
    """One run of the canary suite on one node."""

    model_config = _version("canary")

    jobs: dict[_Short, _Short] = Field(description="job -> state")
    image: _Short | None


class EvidenceFloors(EvidencePredicate):
    """The floors of a class, learnt from canary results."""

    model_config = _version("floors")

    scope: Literal["class", "nodes"]
    results: int
    metrics: list[_Short]


class EvidenceDual(EvidencePredicate):
    """The comparison of two stacks by a dual run. The class has the lock of side b."""

    model_config = _version("dual")

    a: _Short | None = Field(description="lock or disk build of the old side")
    b: _Short | None
    compared: int = Field(description="arrays that were compared")


class EvidenceSmoke(EvidencePredicate):
    """Smoke tests inside a container image on a node of the class."""

    model_config = _version("smoke")

    image: Digest
    backend: _Short
    tiers: dict[_Short, _Short] = Field(description="tier -> state")


class EvidenceDisk(EvidencePredicate):
    """The boots of a disk image in a virtual machine."""

    model_config = _version("disk")

    build: _Short
    boots: int
    accelerator: _Short


class EvidenceProveGpu(EvidencePredicate):
    """A run of scripts/prove-gpu on real hardware."""

    model_config = _version("prove-gpu")

    commit: _Short | None
    steps: dict[_Short, _Short] = Field(description="step -> status")


class EvidenceModuleBuild(EvidencePredicate):
    """The build of the driver's kernel module in a clean root."""

    model_config = _version("module-build")

    kernel: _Short
    driver: _Short
    flavour: _Short | None
    log: _Short | None


PREDICATES: dict[EvidenceKind, type[EvidencePredicate]] = {
    "boot": EvidenceBoot,
    "canary": EvidenceCanary,
    "floors": EvidenceFloors,
    "dual": EvidenceDual,
    "smoke": EvidenceSmoke,
    "disk": EvidenceDisk,
    "prove-gpu": EvidenceProveGpu,
    "module-build": EvidenceModuleBuild,
}
