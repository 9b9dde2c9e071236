"""A pass of `follow` in two units: one has the network and no rights, the other has rights and no network.

goldnode-follow-fetch.service answers one request: it fetches and verifies the channel, downloads an image, or asks the
lock service. goldnode-follow.service starts it for each request and believes no answer. It verifies the documents
again, and the writer of images compares every byte. Nothing that a pass leaves is needed by the next one.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.json_lines import as_dict, as_text
from ..ground.text import clean
from .lockservice import LockAnswer, LockClient
from .loop import Follower
from .machine import PROGRAM, REASON
from .repository import ChannelAwayError, ChannelSource, ChannelTooLongError
from .settings import STAGED, STATE, Settings
from .trust import ChannelRefusedError, Verifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping, Optional

UNIT = "goldnode-follow-fetch.service"
REQUEST = "/run/goldnode/follow-request"  # the unit's standard input: systemd opens it as root
FOLDER = "/var/cache/private/goldnode/fetch"  # CacheDirectory= of a unit with DynamicUser=
LONGEST = 64 << 20  # bytes of an answer
PATIENCE = 4 * 3600.0  # seconds: an image is large
FILES = ("ca", "certificate", "key")  # settings that name files, which the other user may not read
CHANNEL, IMAGE, ASK = "channel", "image", "ask"
# The last that fits
PROBLEMS = {
    "fault": NodeError,
    "away": ChannelAwayError,
    "too long": ChannelTooLongError,
    "refused": ChannelRefusedError,
}


class ApartSource:
    """Channel and lock service of a pass without a network: the methods of ChannelSource and LockClient."""

    staged = FOLDER

    def __init__(self, host: Host, settings: Settings, first: bytes) -> None:
        self.host, self.settings, self.first = host, settings, first
        self.source = settings.channel  # for messages
        self.documents: Dict[str, Any] = {}

    def document(self, name: str, limit: int) -> Optional[bytes]:
        """Return a document, not yet verified."""
        if not self.documents or name.endswith(PROGRAM):
            asked = PROGRAM if name.endswith(PROGRAM) else CHANNEL
            self.documents = as_dict(self.request(asked))
        text = self.documents.get(name)
        if not isinstance(text, str):
            return None
        data = text.encode("latin-1", "replace")
        if len(data) > limit:
            raise ChannelTooLongError(f"{name} is longer than {limit} bytes: refused.")
        return data

    def stage(
        self, image: Mapping[str, Any], path: str, say: Callable[[str], None]
    ) -> Optional[str]:
        """Let the unit download an image to its directory. Return why it is not there."""
        for name in self.host.glob(STAGED, "*"):  # an earlier version downloaded to there
            self.host.remove(name)
        return as_text(self.request(IMAGE, image=image))

    def ask(self, endpoint: str, more: Mapping[str, Any]) -> LockAnswer:
        """Ask the lock service."""
        told = as_dict(self.request(ASK, endpoint=endpoint, more=more))
        phase, target, kind, why = (as_text(told.get(key)) for key in LockAnswer._fields[1:])
        return LockAnswer(told.get("yes") is True, phase, target, kind or "", why or "")

    def request(self, asked: str, **more: Any) -> Any:
        """Start the unit with a request. Return the value of its answer, or raise its problem."""
        host, identity = self.host, os.urandom(8).hex()
        own = self.settings._asdict()
        own.update({key: own[key] and host.text(own[key]) for key in FILES})
        names = host.glob(f"{STATE}/metadata", "*.json")
        content = {
            "id": identity,
            "do": asked,
            "settings": own,
            "first": _text(self.first),
            "seen": {name.rpartition("/")[2]: _text(host.data(name) or b"") for name in names},
            **more,
        }
        host.write(REQUEST, json.dumps(content).encode(), 0o600)
        try:
            done = host.run("systemctl", "start", UNIT, timeout=PATIENCE)
        finally:
            host.remove(REQUEST)
        _, data = host.regular_file(f"{FOLDER}/answer", LONGEST)
        try:
            answer = as_dict(json.loads(data or b""))
        except (ValueError, RecursionError):
            answer = {}
        if answer.get("id") != identity:
            why = done.tail(1) or f"see `journalctl -u {UNIT}`"
            raise ChannelAwayError(f"{UNIT} has not answered: {why}.")
        if "problem" in answer:
            error = PROBLEMS.get(str(answer["problem"]), ChannelAwayError)
            raise error(clean(str(answer.get("text")))[:REASON])
        return answer.get("value")


class _Recorder:
    """A channel and what was read of it."""

    def __init__(self, channel: ChannelSource) -> None:
        self.channel, self.source = channel, channel.source
        self.documents: Dict[str, str] = {}

    def document(self, name: str, limit: int) -> Optional[bytes]:
        data = self.channel.document(name, limit)
        if data is not None:
            self.documents[name] = _text(data)
        return data


class _Memory(dict):  # type: ignore[type-arg]
    """Metadata in memory, in place of the files of a node."""

    data, write = dict.get, dict.__setitem__


def serve() -> int:
    """Answer the request on standard input (goldnode-follow-fetch.service)."""
    request, folder = json.load(sys.stdin), os.environ["CACHE_DIRECTORY"]
    own, answer = request["settings"], {"id": request["id"]}
    own.update({key: own[key] and _file(own[key]) for key in FILES})
    try:
        answer["value"] = _value(Settings(**own), request, folder)
    except NodeError as caught:
        fitting = [name for name, error in PROBLEMS.items() if isinstance(caught, error)]
        answer.update(problem=fitting[-1], text=str(caught))
    Host("/").write(f"{folder}/answer", json.dumps(answer).encode())
    return 0


def _value(own: Settings, request: Mapping[str, Any], folder: str) -> Any:
    source = ChannelSource(own.channel, own.ca)
    if request["do"] == ASK:
        return LockClient(own).ask(request["endpoint"], request["more"])._asdict()
    if request["do"] == IMAGE:
        image = request["image"]
        return source.stage(image, f"{folder}/{os.path.basename(image['path'])}", print)
    recorder: Any = _Recorder(source)
    memory: Any = _Memory(
        {f"/{name}": text.encode("latin-1") for name, text in request["seen"].items()}
    )
    verifier = Verifier(memory, recorder, "", request["first"].encode("latin-1"), time.time())
    nothing: Any = None
    follower = Follower(nothing, own, verifier, nothing, nothing)
    follower.document()
    if request["do"] == PROGRAM and follower.trusted is not None:
        verifier.target(follower.trusted, PROGRAM)
    return recorder.documents


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _file(text: str) -> str:
    """Return the path of a text in memory: TLS reads files alone."""
    handle = os.memfd_create("goldnode")
    os.write(handle, text.encode())
    return f"/proc/self/fd/{handle}"
