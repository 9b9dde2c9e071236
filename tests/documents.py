"""Validation of documents against their types, for any test that has one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from goldnode.commands.schema.kinds import EXCHANGED

BY_SCHEMA: Mapping[str, type[BaseModel]] = {
    f"goldnode.{name.removesuffix('-document')}/1": model for name, model in EXCHANGED.items()
}


def valid(document: Any) -> Any:
    """Return `document` once it has passed validation by its schema's type, as JSON. Raises ValidationError."""
    text = document if isinstance(document, str) else json.dumps(document)
    found = json.loads(text)
    BY_SCHEMA[found["schema"]].model_validate_json(text)
    return found
