"""Small directories that play a node: files from texts, links, and a context to read them with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.node.ground.host import Host
from goldnode.node.probe import Context


def make(
    root: Path,
    files: Mapping[str, str | bytes] | None = None,
    links: Mapping[str, str] | None = None,
) -> Path:
    """Write files (path of the node -> content) and symbolic links (path -> target as it is written) below `root`."""
    for name, content in (files or {}).items():
        here = root / name.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, target in (links or {}).items():
        here = root / name.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(target)
    return root


def context(
    root: Path,
    document: Mapping[str, Any] | None = None,
    seen: Any = None,
    live: bool = True,
    passive: bool = False,
) -> Context:
    """A context of the node in `root`."""
    return Context(Host(str(root), live=live), document, seen, passive)
