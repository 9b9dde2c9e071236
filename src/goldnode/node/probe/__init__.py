"""Readers of hardware and health: the state of a node at one moment, as one document (docs/reference/capture.md).

Each module reads sections of it and judges nothing. The GPU library is called in a process of its own
(:mod:`..device.stream`), which starts first, so that the host is read while the driver works.
"""

from __future__ import annotations

import time
from contextlib import suppress

from ..ground.host import Host, Json, boot_identity
from ..ground.text import cleaned
from .context import CAPTURE, SCHEMA, Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional


__all__ = ["CAPTURE", "SCHEMA", "Context", "begin", "capture", "finish"]


def begin(
    host: Host, document: Optional[Mapping[str, Any]] = None, passive: bool = False
) -> Context:
    """Start slow reads: the process that queries the GPU library, and that of reads which may hang. :func:`finish` must follow."""
    from . import gpus, network, reader_process, storage

    context = Context(host, document, None, passive)
    gpus.begin(context)
    # One process for the slow reads of both, right after the other: what a fork shares is copied when it is next
    # written, and that once for both. A reader that fails here fails by itself in `finish`.
    with suppress(Exception):
        jobs = [*network.slow_reads(context), *storage.slow_reads(context)]
        context.asked = reader_process.Asked(jobs, 2 * reader_process.LIMIT)
    return context


def finish(context: Context, seen: Any = None) -> Json:
    """Return the finished capture. Never raises: a section that fails becomes a fault in its place.

    :param seen: values that the engine read meanwhile; they are not read again.
    """
    from . import (
        binding,
        events,
        gpus,
        machine,
        network,
        numa,
        pci,
        software,
        storage,
    )
    from .values import unread

    context.seen = seen
    host = context.host
    captured = context.captured
    captured.update(
        schema=SCHEMA,
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        source="live" if host.live else "root",
    )
    # In this order: later readers use what earlier ones found.
    readers: Dict[str, Any] = {
        "pci": pci.read,
        "gpus": gpus.read,
        "binding": binding.read,
        "machine": machine.read,
        "network": network.read,
        "storage": storage.read,
        "software": software.read,
        "numa": numa.read,
        "events": events.read,
    }
    for name, reader in readers.items():
        try:
            captured.update(reader(context))
        except Exception as problem:  # a reader that fails must not hide what the others found, nor pass for an empty section
            captured[name] = unread(f"the reader failed: {type(problem).__name__}: {problem}")
    captured.setdefault("simulated", False)
    captured.setdefault("identity", {})["boot_identity"] = boot_identity(host)
    finished: Json = cleaned(captured)
    return finished


def capture(
    host: Host, document: Optional[Mapping[str, Any]] = None, passive: bool = False
) -> Json:
    """Return the node's capture."""
    return finish(begin(host, document, passive))
