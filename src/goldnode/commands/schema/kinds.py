"""JSON Schemas of the files that a person writes, and of the documents that nodes and controllers exchange.

Editors use the first for completion and validation: the catalog's files, the image matrix, declarations of derived
images, the disk definition and the site file. The second are for programs that read what goldnode writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from goldnode.canary.suite import CanaryFile
from goldnode.catalog.models import FILES
from goldnode.classdoc.mitigations import Mitigation
from goldnode.core.site import Site
from goldnode.disks.definition import DefinitionFile
from goldnode.disks.netboot import InstallPlan
from goldnode.documents.cache_key import CacheKeyDocument
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.canary_cohort import CanaryCohortDocument
from goldnode.documents.capture import CaptureDocument
from goldnode.documents.channel import ChannelDocument
from goldnode.documents.class_document import ClassDocument
from goldnode.documents.cve import CveDocument
from goldnode.documents.cve_lane import CveLaneDocument, CveProofDocument
from goldnode.documents.deny_list import DenyListDocument
from goldnode.documents.dual import DualDocument, DualRecordDocument
from goldnode.documents.error import ErrorDocument
from goldnode.documents.event import EventDocument
from goldnode.documents.evidence import PREDICATES
from goldnode.documents.fleet_bucket import FleetBucketDocument
from goldnode.documents.fleet_hardware import FleetHardwareDocument
from goldnode.documents.fleet_report import FleetDiffDocument, FleetReportDocument
from goldnode.documents.floors import FloorsDocument
from goldnode.documents.game_day import GameDayDocument
from goldnode.documents.gate import GateDocument
from goldnode.documents.join import JoinDocument
from goldnode.documents.node_changes import NodeChangesDocument
from goldnode.documents.node_report import NodeReportDocument
from goldnode.documents.plan import PlanDocument
from goldnode.documents.return_tests import ReturnTestsDocument
from goldnode.documents.rollout import RolloutDocument
from goldnode.documents.rollout_status import RolloutEventDocument, RolloutStatusDocument
from goldnode.documents.run import RunDocument
from goldnode.documents.verdict import VerdictDocument
from goldnode.documents.what_if import WhatIfDocument
from goldnode.images.declaration import DeriveFile
from goldnode.images.matrix import MatrixFile

WRITTEN: Mapping[str, type[BaseModel]] = {
    **FILES,
    "canary-jobs": CanaryFile,
    "derive": DeriveFile,
    "disks": DefinitionFile,
    "images": MatrixFile,
    "install": InstallPlan,
    "mitigation": Mitigation,
    "site": Site,
}
EXCHANGED: Mapping[str, type[BaseModel]] = {
    "canary": CanaryDocument,
    "canary-cohort": CanaryCohortDocument,
    "cache-key": CacheKeyDocument,
    "capture": CaptureDocument,
    "channel": ChannelDocument,
    "class-document": ClassDocument,
    "cve": CveDocument,
    "cve-lane": CveLaneDocument,
    "cve-proof": CveProofDocument,
    "deny-list": DenyListDocument,
    "dual": DualDocument,
    "dual-record": DualRecordDocument,
    "error": ErrorDocument,
    "event": EventDocument,
    **{f"evidence-{kind}": predicate for kind, predicate in PREDICATES.items()},
    "fleet-bucket": FleetBucketDocument,
    "fleet-diff": FleetDiffDocument,
    "fleet-hardware": FleetHardwareDocument,
    "fleet-report": FleetReportDocument,
    "floors": FloorsDocument,
    "game-day": GameDayDocument,
    "gate": GateDocument,
    "join": JoinDocument,
    "node-changes": NodeChangesDocument,
    "node-report": NodeReportDocument,
    "plan": PlanDocument,
    "return-tests": ReturnTestsDocument,
    "rollout": RolloutDocument,
    "rollout-event": RolloutEventDocument,
    "rollout-status": RolloutStatusDocument,
    "run": RunDocument,
    "verdict": VerdictDocument,
    "what-if": WhatIfDocument,
}
KINDS: Mapping[str, type[BaseModel]] = {**WRITTEN, **EXCHANGED}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the documents of `kind`, a key of KINDS."""
    document = KINDS[kind].model_json_schema(by_alias=True, mode="validation")
    if kind in EXCHANGED:
        _untitled(document)
    if kind == "site":
        document["properties"].pop("file", None)  # set by the loader; not a key of the file
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


def _untitled(node: Any) -> None:
    """Remove the titles that pydantic derives from names: they double the size of a schema."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for value in node.values():
            _untitled(value)
    elif isinstance(node, list):
        for value in node:
            _untitled(value)


def schema_text(kind: str) -> str:
    """Return the schema as the text of its file."""
    return json.dumps(schema(kind), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas(directory: Path) -> list[Path]:
    """Write every schema as KIND.json into `directory`; return the paths whose content changed."""
    directory.mkdir(parents=True, exist_ok=True)
    changed = []
    for kind in sorted(KINDS):
        path = directory / f"{kind}.json"
        text = schema_text(kind)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
