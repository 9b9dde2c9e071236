"""What the readers of a capture share."""

from __future__ import annotations

from ..host import Host, Json, is_container
from .values import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

SCHEMA = "goldnode.capture/1"
CAPTURE = "/run/goldnode/capture.json"


class Context:
    """What readers share: the host, its files, the class document (empty where there is none), what the engine has seen already
    (:class:`..state.model.Observed`, None when it was not asked), and the capture as far as it is made: a reader may look at the sections
    before its own."""

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
        self.question: Any = None  # what the GPU library was asked (device/stream.py), None where nothing was
