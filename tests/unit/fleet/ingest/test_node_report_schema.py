"""schemas/node-report.json is what nodes send, the controller stores in its inbox, and the ingest takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError
from tests import documents
from tests.unit.documents.test_documents import verdict
from tests.unit.fleet.ingest.fleet_reports import CLASS, NOW, capture

from goldnode.commands.schema.kinds import EXCHANGED, schema
from goldnode.fleet.ingest import inbox
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import INBOX_SOURCE, NodeReport, ReportOrigin, load, report_of
from goldnode.node.program import reporting

Json = dict[str, Any]
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def published() -> Json:
    return schema("node-report")


def parse(data: bytes, origin: ReportOrigin, now: datetime) -> NodeReport:
    return report_of(load(data), data, origin, now)


def recorded() -> Json:
    """Return a capture as a node writes it: the made-up one has two values in other forms."""
    found = capture()
    for gpu in found["gpus"]:
        for link in gpu["nvlink"]["links"]:
            link.pop("remote")
    found["cpu"]["governors"] = {"performance": "0-95"}
    return found


def report(**more: Any) -> Json:
    """Return the report that the program on a node makes of a capture and its verdict."""
    found = recorded()
    judged = {**verdict(), "class": CLASS, "boot_identity": found["identity"]["boot_identity"]}
    return {**json.loads(json.dumps(reporting.report_of(found, judged, "sha256:e"))), **more}


def test_a_report_of_a_node_is_of_the_schema_and_is_taken(published: Json) -> None:
    assert documents.valid(report()) == report()
    jsonschema.validate(report(), published)
    found = parse(json.dumps(report()).encode(), ReportOrigin(), NOW)
    assert (found.node, found.class_, found.origin.engine) == ("n1", CLASS, "sha256:e")


def test_a_report_without_a_verdict_is_of_the_schema(published: Json) -> None:
    found = json.loads(json.dumps(reporting.report_of(recorded(), None, None)))
    assert documents.valid(found) == found
    jsonschema.validate(found, published)


@pytest.mark.parametrize("name", ["capture.json", "capture-load.json"])
def test_an_anonymous_capture_of_a_real_node_is_of_the_schema(name: str) -> None:
    text = (ROOT / "tests/cases/recorded/h200_x1_580.159.04" / name).read_text(encoding="utf-8")
    assert documents.valid(text)["anonymous"]


def test_a_file_of_the_inbox_is_of_the_schema(tmp_path: Path, published: Json) -> None:
    given = report(cohort="ring0", source="http", surprise=1)
    text = inbox.put(tmp_path, "n1", given).read_text(encoding="utf-8")
    jsonschema.validate(documents.valid(text), published)
    found = parse(text.encode(), ReportOrigin(INBOX_SOURCE), NOW)
    assert (found.origin.cohort, found.origin.source) == ("ring0", "http")


WRONG: list[Callable[[Json], object]] = [
    lambda found: found.update(schema="goldnode.node-report/2"),
    lambda found: found.update(node=7),
    lambda found: found.update(engine="x" * 256),
    lambda found: found.pop("capture"),
    lambda found: found.update(capture=None),
    lambda found: found["capture"].update(schema="goldnode.capture/2"),
    lambda found: found.update(verdict="healthy"),
    lambda found: found["verdict"].update(schema="goldnode.verdict/2"),
    lambda found: found["verdict"].update(status="fine"),
]


@pytest.mark.parametrize("change", WRONG)
def test_another_document_is_refused_by_schema_and_ingest(
    published: Json, change: Callable[[Json], object]
) -> None:
    found = report()
    change(found)
    with pytest.raises(ValidationError):
        EXCHANGED["node-report"].model_validate(found)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, published)
    with pytest.raises(RefusedReportError):
        parse(json.dumps(found).encode(), ReportOrigin(), NOW)
