"""The types of the class document inside the node have the keys, the types and the optional keys of the schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import pytest

from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc.gpu_facts import health_facts
from goldnode.facts import host as facts
from goldnode.node.ground import document as types

SCHEMAS = builtin_catalog().parent / "schemas"


def _schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text())


DOCUMENT = _schema("class-document")
# Of a part that a person writes, the compiler leaves out each key that is null or has its default.
DEFINITIONS = {**_schema("class")["$defs"], **_schema("stack")["$defs"], **DOCUMENT["$defs"]}
# Keys that the compiler adds to the parts that a person writes.
ADDED = {"GpuOverride": {"pci_ids": "list of str"}, "KernelModule": {"version": "str or None"}}
# Parts that the schema of the document leaves open: they have the form of the class file.
OPEN = {
    "policy": "Policy",
    "baseline": "Baseline",
    "modules": "list of KernelModule",
    "suppressions": "list of Suppression",
    "compat": "Compat",
    "serve": "Serve",
    "follow": "Follow",
    "scratch": "dict of Scratch",
}
TYPES = {
    name: value
    for name, value in vars(types).items()
    if is_typeddict(value) and not name.startswith("_")
}
JSON = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def of_schema(schema: Any) -> str:
    """Return a schema in the words of :func:`of_hint`."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema or isinstance(schema.get("type"), list):
        choices = schema.get("anyOf") or [{**schema, "type": name} for name in schema["type"]]
        return " or ".join(sorted({of_schema(choice) for choice in choices}, key=_null_last))
    if "enum" in schema or "const" in schema:
        return f"one of {sorted(schema.get('enum') or [schema['const']], key=str)}"
    if schema.get("type") == "array":
        return f"list of {of_schema(schema['items'])}"
    if schema.get("type") == "object":
        patterns = list(schema.get("patternProperties", {}).values())
        values = patterns[0] if patterns else schema.get("additionalProperties")
        return "dict of any" if values in (True, None) else f"dict of {of_schema(values)}"
    return JSON[schema["type"]]


def of_hint(hint: Any) -> str:
    """Return a type in the words of :func:`of_schema`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return of_hint(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(sorted({of_hint(choice) for choice in arguments}, key=_null_last))
    if origin is Literal:
        return f"one of {sorted(arguments, key=str)}"
    if origin is list:
        return f"list of {of_hint(arguments[0])}"
    if origin is dict:
        return f"dict of {of_hint(arguments[1])}"
    if hint in (Any, NoneType):
        return "any" if hint is Any else "None"
    return str(hint.__name__)


def _null_last(text: str) -> tuple[bool, str]:
    return text == "None", text


def keys_of_type(typed: Any) -> tuple[dict[str, str], set[str]]:
    """Return the keys of a type with their types, and those that may be absent."""
    hints = get_type_hints(typed, include_extras=True)
    absent = {
        name
        for name, hint in hints.items()
        if get_origin(hint) is NotRequired or name in typed.__optional_keys__
    }
    return {name: of_hint(hint) for name, hint in hints.items()}, absent


def keys_of_schema(name: str) -> tuple[dict[str, str], set[str]]:
    """Return the same of the object that a type is named after."""
    schema = DOCUMENT if name == "ClassDocument" else DEFINITIONS[name]
    keys = {key: of_schema(value) for key, value in schema["properties"].items()}
    absent = set(keys) - set(schema.get("required", ()))
    if name == "KernelModule":  # the compiler writes its defaults
        absent = set()
    for key in absent:  # the compiler leaves them out where they are null
        if key != "signer":  # null for prebuilt modules without a signature
            keys[key] = keys[key].removesuffix(" or None")
    if name == "OperatingSystem":  # the seam (state/family.py) alone knows distributions by name
        keys["id"] = "str"
    if name == "ClassDocument":
        keys |= OPEN
        keys["exceptions"] = "list of dict of any"
    if name == "ClassHealth":
        keys |= {"gpu": "GpuFacts", "models": "dict of GpuFacts", "baseline": "Baseline"}
    added = ADDED.get(name, {})
    return keys | added, absent if name == "KernelModule" else absent | set(added)


@pytest.mark.parametrize("name", sorted(set(TYPES) - {"GpuFacts"}))
def test_type_has_the_keys_of_its_schema(name: str) -> None:
    keys, absent = keys_of_type(TYPES[name])
    wanted, optional = keys_of_schema(name)

    assert keys == wanted
    assert absent == optional


def test_every_object_of_the_document_has_a_type() -> None:
    assert set(DOCUMENT["$defs"]) <= set(TYPES)


def test_facts_of_every_gpu_model_have_the_keys_of_their_type() -> None:
    keys, _ = keys_of_type(types.GpuFacts)
    stated = [health_facts(model).get("gpu", {}) for model in facts.gpus()]

    assert set().union(*stated) == set(keys)


def test_a_check_does_not_import_the_types(tmp_path: Path) -> None:
    source = Path(types.__file__).parents[3]
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import goldnode.node.program.main, goldnode.node.state.apply\n"
        "print('goldnode.node.ground.document' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "False"
