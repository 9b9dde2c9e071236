"""JSON Schemas of the files that a person writes, for completion and validation in editors.

They cover the catalog's files, the image matrix, the disk definition and the site file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from goldnode.catalog.models import FILES
from goldnode.core.site import Site
from goldnode.disks.definition import DefinitionFile
from goldnode.images.matrix import MatrixFile

KINDS: Mapping[str, type[BaseModel]] = {**FILES, "disks": DefinitionFile, "images": MatrixFile, "site": Site}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the files of `kind`, a key of KINDS."""
    document = KINDS[kind].model_json_schema(by_alias=True, mode="validation")
    document.get("properties", {}).pop("file", None)  # set by the loader; not a key of the site file
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


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
