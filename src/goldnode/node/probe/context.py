"""Shared input of the readers of a capture."""

from __future__ import annotations

from ..ground.host import Host, Json, is_container
from ..ground.json_lines import as_map
from .values import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

SCHEMA = "goldnode.capture/1"
CAPTURE = "/run/goldnode/capture.json"


class Context:
    """Shared input of the readers: the host, its files, the class document (empty without one), the engine's
    observations (:class:`..state.model.Observed`, None if it did not run), and the capture so far. A
    reader may use the sections before its own.
    """

    def __init__(
        self,
        host: Host,
        document: Optional[Mapping[str, Any]] = None,
        seen: Any = None,
        passive: bool = False,
    ) -> None:
        self.host = host
        self.files = Files(host.root)
        self.document: Mapping[str, Any] = document or {}
        self.seen = seen
        self.passive = passive  # puts no load on the node: no reads of storage, no GPU work
        self.container = is_container(host)
        self.captured: Json = {}
        # The reads of all readers that may hang (reader_process.py); None: each reader starts its own.
        self.asked: Any = None
        self.mounts: Dict[str, Json] = {}  # those that one of these reads measures
        # The question to the GPU library (device/stream.py), None without one.
        self.question: Any = None

    def functions(self) -> Json:
        """Return the section `pci` of the capture so far; empty without a bus that can be read."""
        return as_map(self.captured.get("pci"))
