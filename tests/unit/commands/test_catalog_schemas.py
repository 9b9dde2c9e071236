"""The JSON Schemas for editors: current, valid, and of one mind with the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.unit.catalog.test_accept_reject import CLASS

from goldnode.catalog.load import LOCK_SUFFIX, builtin_catalog
from goldnode.commands.schema.kinds import KINDS, schema, schema_text, write_schemas

FOLDERS = {"class": "classes", "platform": "platforms", "stack": "stacks"}


def files() -> list[tuple[str, Path]]:
    catalog = builtin_catalog()
    found = [("archives", catalog / "archives.yml")]
    for kind, folder in FOLDERS.items():
        found += [
            (kind, path)
            for path in sorted((catalog / folder).glob("*.yml"))
            if not path.name.endswith(LOCK_SUFFIX)
        ]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_committed_schema_is_current(kind: str) -> None:
    committed = (builtin_catalog().parent / "schemas" / f"{kind}.json").read_text(encoding="utf-8")
    assert committed == schema_text(kind), "run `goldnode schema`"
    jsonschema.Draft202012Validator.check_schema(schema(kind))


@pytest.mark.parametrize(("kind", "path"), files(), ids=lambda value: getattr(value, "name", value))
def test_our_files_fit_and_name_it(kind: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), schema(kind))
    first = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / first).resolve() == builtin_catalog().parent / "schemas" / f"{kind}.json"


@pytest.mark.parametrize(
    "edit", [{"bakend": "cuda"}, {"gate": "x"}, {"gpu": {"model": "L4", "count": 0}}]
)
def test_schema_rejects_unknown_keys_and_invalid_values(edit: dict[str, Any]) -> None:
    document = yaml.safe_load(CLASS)
    jsonschema.validate(document, schema("class"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | edit, schema("class"))


def test_site_schema_has_no_inner_keys() -> None:
    assert set(schema("site")["properties"]) == {
        "archives",
        "catalog",
        "cve",
        "events",
        "fleet",
        "gate",
        "images",
        "evidence",
        "exceptions",
        "facts",
        "indexes",
        "ladder",
        "tickets",
        "locks",
        "mirror",
        "module_signing",
        "modules",
        "upstream_mirrors",
    }


def test_writing_reports_what_changed(tmp_path: Path) -> None:
    assert {path.stem for path in write_schemas(tmp_path)} == set(KINDS)
    assert write_schemas(tmp_path) == []
