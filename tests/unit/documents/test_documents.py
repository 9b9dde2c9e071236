"""Types of documents refuse what is not of their schema; what the product writes is validated where tests make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError
from tests import documents

from goldnode.commands.schema.kinds import EXCHANGED, schema
from goldnode.node.state.finding import MISMATCH, Finding
from goldnode.node.verdict import check

Json = dict[str, Any]


def verdict() -> Json:
    document: Any = {
        "class": "a100",
        "digest": f"sha256:{'0' * 64}",
        "lock": {"digest": f"sha256:{'1' * 64}"},
        "stack": {"name": "r580", "exercised": "local-archive"},
        "simulated": False,
    }
    finding = Finding("gpu.count", MISMATCH, "8", "7")
    return check.summary(document, [finding], 0.0, passive=False)


def test_a_verdict_passes_both_validators() -> None:
    assert documents.valid(verdict()) == verdict()
    jsonschema.validate(verdict(), schema("verdict"))


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(surprise=1),
        lambda found: found.pop("findings"),
        lambda found: found.update(exit_code=5),
        lambda found: found.update(exit_code="2"),
        lambda found: found.update(status="fine"),
        lambda found: found.update(time="yesterday"),
        lambda found: found.update(schema="goldnode.verdict/2"),
        lambda found: found["findings"][0].update(outcome="maybe"),
        lambda found: found["findings"][0].update(evidence="one text"),
    ],
)
def test_a_wrong_verdict_passes_neither(change: Callable[[Json], object]) -> None:
    found = verdict()
    change(found)
    with pytest.raises(ValidationError):
        EXCHANGED["verdict"].model_validate(found)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema("verdict"))


def test_each_schema_states_its_version() -> None:
    for name, model in documents.BY_SCHEMA.items():
        assert name in str(model.model_json_schema()), name
