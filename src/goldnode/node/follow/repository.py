"""Files of a channel: a directory, or an address over http and https. Each file has a limit of size and of time."""

from __future__ import annotations

import hashlib
import os
import ssl
import time
import urllib.error
import urllib.request

from ..ground.errors import NodeError
from ..ground.typed import NamedTuple
from .settings import STAGED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Iterator, Mapping, Optional

SPARE = 256 << 20  # bytes that a download leaves free
BLOCK = 1 << 16  # bytes of one read
SILENCE = 30.0  # seconds without a byte
# Seconds for one document: a server that sends a byte now and then cannot hold a node.
PATIENCE = 120.0


class ChannelAwayError(NodeError):
    """The channel cannot be read now."""


class ChannelTooLongError(NodeError):
    """A file of the channel is longer than it may be."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: metadata decides what is read, and a login page gives no leave."""

    def redirect_request(self, *words: object, **more: object) -> None:
        return None


class ChannelSource(NamedTuple):
    """A channel: its address or directory, and the certificates to trust (None: those of the system)."""

    source: str
    ca: Optional[str] = None

    def document(self, name: str, limit: int) -> Optional[bytes]:
        """Return a document of at most `limit` bytes; None if the channel has none of this name."""
        data, end = b"", time.monotonic() + PATIENCE
        opened = self.opened(name)
        if opened is None:
            return None
        with opened:
            for part in blocks(opened, f"{self.source}/{name}"):
                data += part
                if len(data) > limit:
                    raise ChannelTooLongError(
                        f"{self.source}/{name} is longer than {limit} bytes: refused."
                    )
                if time.monotonic() > end:
                    raise ChannelAwayError(f"{self.source}/{name}: not read within {PATIENCE:g} s.")
        return data

    def opened(self, name: str, offset: int = 0) -> Optional[IO[bytes]]:
        """Open a file of the channel from `offset` on; None if there is none. Raises ChannelAwayError."""
        if not self.source.startswith(("http://", "https://")):
            return self._file(name, offset)
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        request = urllib.request.Request(f"{self.source.rstrip('/')}/{name}", headers=headers)  # noqa: S310
        try:
            handlers = [NoRedirect(), urllib.request.HTTPSHandler(context=self._context())]
            answer = urllib.request.build_opener(*handlers).open(request, timeout=SILENCE)
            if offset and answer.status != 206:  # the server sends all of it again
                _skip(answer, offset)
            return answer  # type: ignore[no-any-return]
        except urllib.error.HTTPError as problem:
            problem.close()
            if problem.code in (403, 404, 410):
                return None
            raise ChannelAwayError(f"{self.source}/{name}: HTTP {problem.code}.") from None
        except ChannelAwayError:
            raise
        except Exception as problem:  # http.client has errors of its own, as in `blocks`
            why = getattr(problem, "reason", None) or str(problem).strip() or type(problem).__name__
            raise ChannelAwayError(f"{self.source}/{name}: {why}.") from None

    @property
    def staged(self) -> str:
        """Return the directory of downloads."""
        return STAGED

    def stage(
        self, image: Mapping[str, Any], path: str, say: Callable[[str], None]
    ) -> Optional[str]:
        """Download an image to a path of a directory of downloads. Return why there is no room for it; None if it is there."""
        folder, name = os.path.split(path)
        os.makedirs(folder, 0o700, exist_ok=True)
        for other in os.listdir(folder):  # of earlier rollouts
            if not other.startswith(name):
                os.unlink(os.path.join(folder, other))
        free, size = os.statvfs(folder), image["size"]
        if free.f_bavail * free.f_frsize < size + SPARE:
            return f"{folder} has no room for {size >> 20} MiB and {SPARE >> 20} MiB to spare"
        say(f"downloading {image['path']}, {size >> 20} MiB")
        download(self, image["path"], path, size, image["sha256"])
        return None

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as problem:  # ssl.SSLError too
            why = problem.strerror or str(problem)
            raise ChannelAwayError(f"no certificates can be read from {self.ca}: {why}.") from None

    def _file(self, name: str, offset: int) -> Optional[IO[bytes]]:
        folder = self.source[7:] if self.source.startswith("file://") else self.source
        path = os.path.join(folder, name)
        try:
            opened = open(path, "rb")  # noqa: SIM115 - the caller closes it
            opened.seek(offset)
            return opened
        except FileNotFoundError:
            if os.path.isdir(folder):
                return None
            raise ChannelAwayError(f"{self.source} does not exist.") from None
        except OSError as problem:
            raise ChannelAwayError(f"{path}: {problem.strerror}.") from None


def download(repository: ChannelSource, name: str, path: str, size: int, sha256: str) -> None:
    """Download a file of known size and digest to `path`, from where an earlier download ended.

    Raises ChannelAwayError, and then keeps what it has; NodeError if the content is another one.
    """
    part = f"{path}.part"
    seen, have = hashlib.sha256(), 0
    with open(part, "ab+") as out:
        out.seek(0)
        for block in iter(lambda: out.read(1 << 20), b""):
            seen.update(block)
            have += len(block)
        if have < size:
            opened = repository.opened(name, have)
            if opened is None:
                raise NodeError(f"{repository.source} has no {name}. Publish the channel again.")
            with opened:
                for block in blocks(opened, f"{repository.source}/{name}"):
                    have += len(block)
                    if have > size:
                        break
                    seen.update(block)
                    out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if have < size:
        raise ChannelAwayError(f"{repository.source}/{name} ended after {have} of {size} bytes.")
    if have > size or seen.hexdigest() != sha256:
        os.unlink(part)
        raise NodeError(
            f"{repository.source}/{name} is not what was signed: refused. Publish the channel again."
        )
    os.replace(part, path)


def blocks(opened: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield a file block by block. Raises ChannelAwayError."""
    while True:
        try:
            part = opened.read(BLOCK)
        except (OSError, ValueError) as problem:
            raise ChannelAwayError(f"{name}: {problem}.") from None
        # http.client has errors of its own, and costs time to import for their names.
        except Exception as problem:
            raise ChannelAwayError(f"{name}: {problem or type(problem).__name__}.") from None
        if not part:
            return
        yield part


def _skip(opened: IO[bytes], count: int) -> None:
    while count > 0 and (part := opened.read(min(BLOCK, count))):
        count -= len(part)
