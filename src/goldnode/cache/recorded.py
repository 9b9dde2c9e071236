"""Keys from a recorded capture, a class of the catalog and an image of the store."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from goldnode.classdoc.compile import declaration
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.record import document_in
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site
from goldnode.images import names
from goldnode.images.store import open_store
from goldnode.node.cachekey import arguments, components, key
from goldnode.node.ground.errors import NodeError
from goldnode.node.probe import command


@contextmanager
def node_errors() -> Iterator[None]:
    """Turn an error of the node program into one of goldnode."""
    try:
        yield
    except NodeError as problem:
        raise GoldnodeError(str(problem).rstrip(".")) from problem


def class_parts(name: str | None) -> Mapping[str, Any] | None:
    """Return the class document in a file, or the parts of a class of the catalog that need no lock."""
    if name is None:
        return None
    if Path(name).suffix == ".json" or "/" in name:
        return document_in(name)
    return declaration(name, load_catalog(), load_site())


def image_digest(name: str, store: Path | None = None) -> str:
    """Return the digest of an image: as given, or of an image in the store."""
    # A digest is all that a key has of an image: the store is not needed.
    if components.DIGEST.match(name.rpartition("@")[2]):
        return components.image(name)
    opened = open_store(store)
    return names.find(opened.layout, name, opened.built().values())


def documents(
    capture: str, node_class: str | None, declared: Namespace, environment: Mapping[str, str]
) -> Sequence[key.Json]:
    """Return the key documents of a recorded capture.

    `declared` has the options of `goldnode-node cache key`. Raises GoldnodeError.
    """
    with node_errors():
        record = command.load(capture)
        request = arguments.request(declared, environment, class_parts(node_class))
        documents = components.components(record, request)
        return [
            key.document(cache, declared.strength, documents)
            for cache in dict.fromkeys(declared.caches)
        ]


def node_components(
    capture: str, node_class: str | None, gpu: str | None, mig: str | None
) -> key.Json:
    """Return the components of the node of a recorded capture alone. Raises GoldnodeError."""
    with node_errors():
        request = components.KeyRequest(class_parts(node_class), gpu, mig)
        return components.components(command.load(capture), request)
