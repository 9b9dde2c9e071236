"""The key of a cache: a digest over the canonical form of every value that decides, and the comparison of two keys."""

from __future__ import annotations

import hashlib
import json

from ..follow import canonical
from ..ground.errors import NodeError
from ..ground.typed import NamedTuple
from .caches import CACHES, EXACT, PORTABLE, STRENGTHS, TUNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple, TypeAlias

Json: TypeAlias = "Dict[str, Any]"

SCHEMA = "goldnode.cache-key/1"
SECTIONS = ("device", "driver", "image", "libraries", "host", "options", "environment", "source")
DIGITS = 64  # hexadecimal digits of the digest in a key
MOST = 1 << 20  # bytes of a document
_PROCESSOR = ("cpu_flags", "cpu_model")


class KeyDifference(NamedTuple):
    """One value that two keys do not share. None: it is absent on that side."""

    path: str
    first: Any
    second: Any
    strengths: Tuple[str, ...]


def decisive(cache: str, strength: str, components: Mapping[str, Any]) -> Json:
    """Return the components that decide for a cache at a strength. Pure.

    Exact: all of them, except the processor for caches without code for it. Portable: also without the image, the
    tuning of the device, and libraries that the cache does not use.
    """
    row = CACHES[cache]
    parts = {name: components.get(name) for name in SECTIONS}
    if not row.processor:
        host = parts["host"] or {}
        parts["host"] = {name: value for name, value in host.items() if name not in _PROCESSOR}
    # A portable key trusts the tool's documentation that only these parts decide.
    if strength == PORTABLE:
        del parts["image"]
        device, libraries = parts["device"] or {}, parts["libraries"] or {}
        parts["device"] = {name: value for name, value in device.items() if name not in TUNING}
        parts["libraries"] = {
            name: value for name, value in libraries.items() if name in row.libraries
        }
    return parts


def of_node(cache: str, strength: str, components: Mapping[str, Any]) -> Json:
    """Return the decisive components that a node has, without those of the program. Pure."""
    parts = decisive(cache, strength, components)
    host = parts["host"] or {}
    own = {name: host.get(name) for name in ("architecture", *_PROCESSOR) if name in host}
    return {"device": parts["device"], "driver": parts["driver"], "host": own}


def missing(cache: str, strength: str, components: Mapping[str, Any]) -> List[str]:
    """Return what is missing for a key, each as a sentence with its remedy. Pure."""
    row = CACHES[cache]
    sentences = []
    if strength == PORTABLE and row.portable is None:
        sentences.append(
            f"no document states that {row.title} may be shared without the image, clocks and power limit; "
            "use the exact key"
        )
    libraries = components.get("libraries") or {}
    # The digest of an image covers the versions of all libraries in it.
    covered = strength == EXACT and components.get("image")
    if row.needs and not covered and not any(name in libraries for name in row.needs):
        sentences.append(
            f"the version of {row.needs[0]} is unknown; give --image, --libraries DIR, or "
            f"--library {row.needs[0]}=VERSION"
        )
    host = components.get("host") or {}
    if row.stubs and not covered:
        sentences += [
            f"{name} is unknown; give --{name.replace('_', '-')}, or --image"
            for name in ("glibc", "python_abi")
            if not host.get(name)
        ]
    if row.processor and not host.get("cpu_flags"):
        sentences.append(
            "the flags of the processor are unknown; use a capture of this version of goldnode-node"
        )
    if row.own_source and not components.get("source"):
        sentences.append(
            f"{row.title} are not separated by their network; give --source FILE (network and weights)"
        )
    return sentences


def key(cache: str, strength: str, components: Mapping[str, Any]) -> str:
    """Return the key, which is also the name of a directory: CACHE-STRENGTH-DIGEST. Pure.

    Raises NodeError for a component that has no canonical form.
    """
    content = {
        "schema": SCHEMA,
        "cache": cache,
        "strength": strength,
        "components": decisive(cache, strength, components),
    }
    try:
        data = canonical.encoded(content)
    except (ValueError, AttributeError, TypeError) as problem:
        raise NodeError(f"the components of the key have no canonical form: {problem}.") from None
    return f"{cache}-{strength}-{hashlib.sha256(data).hexdigest()}"


def document(cache: str, strength: str, components: Mapping[str, Any]) -> Json:
    """Return the key with everything that it is made of (schema goldnode.cache-key/1).

    Raises NodeError if a component is missing.
    """
    if cache not in CACHES or strength not in STRENGTHS:
        raise NodeError(
            f"the caches are {', '.join(CACHES)}, and the strengths {', '.join(STRENGTHS)}."
        )
    reasons = missing(cache, strength, components)
    if reasons:
        raise NodeError(f"no {strength} key for {cache}: {'; '.join(reasons)}.")
    return {
        "schema": SCHEMA,
        "cache": cache,
        "strength": strength,
        "key": key(cache, strength, components),
        "components": {name: components.get(name) for name in SECTIONS},
    }


def parsed(data: bytes, origin: str) -> Json:
    """Return a key document. `origin` names it in errors.

    Raises NodeError for other data, and if the key is not that of the components.
    """
    if len(data) > MOST:
        raise NodeError(f"{origin} is larger than {MOST >> 20} MiB, and no key of a cache.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise NodeError(
            f"{origin} is not JSON. `goldnode-node cache key --format json` writes one."
        ) from None
    fault = fault_of(document)
    if fault is not None:
        raise NodeError(f"{origin} {fault}.")
    return {name: document[name] for name in ("schema", "cache", "strength", "key", "components")}


def fault_of(document: Any) -> Optional[str]:
    """Return why a value is not a key document; None if it is one. Pure."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return f"is not a document of schema {SCHEMA}"
    if document.get("cache") not in list(CACHES) or document.get("strength") not in list(STRENGTHS):
        return "names a cache or a strength that this version does not have"
    components = document.get("components")
    if not isinstance(components, dict) or set(components) != set(SECTIONS):
        return "has other components than a key of this version"
    objects = [name for name in SECTIONS if name not in ("image", "source")]
    if not all(isinstance(components[name], dict) for name in objects):
        return "has components of another type"
    try:
        made = key(document["cache"], document["strength"], components)
    except NodeError as problem:
        return str(problem).rstrip(".")
    return (
        None if document.get("key") == made else f"was changed: its components give the key {made}"
    )


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> List[KeyDifference]:
    """Return the components that two key documents do not share, each with the strengths that it decides. Pure."""
    cache, parts = first["cache"], (first["components"], second["components"])
    decide = {}
    for strength in STRENGTHS:
        if strength == EXACT or CACHES[cache].portable is not None:
            decide[strength] = differing(*(decisive(cache, strength, part) for part in parts))
    a, b = map(leaves, parts)
    return [
        KeyDifference(
            ".".join(path),
            a.get(path),
            b.get(path),
            tuple(strength for strength, paths in decide.items() if path in paths),
        )
        for path in differing(*parts)
    ]


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> List[Tuple[str, ...]]:
    """Return the paths of leaves that two objects do not share. A leaf that is null is there. Pure."""
    a, b = leaves(first), leaves(second)

    def at(values: Mapping[Tuple[str, ...], Any], path: Tuple[str, ...]) -> Tuple[bool, str]:
        # As text: True is not 1.
        return path in values, json.dumps(values.get(path), sort_keys=True)

    return [path for path in sorted(set(a) | set(b)) if at(a, path) != at(b, path)]


def leaves(value: Any, path: Tuple[str, ...] = ()) -> Dict[Tuple[str, ...], Any]:
    """Return the leaves of nested objects by their path. An empty object is a leaf."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    values: Dict[Tuple[str, ...], Any] = {}
    for name, item in value.items():
        values.update(leaves(item, (*path, str(name))))
    return values
