"""Decompression of streams: gzip, zlib, bzip2, xz and zstd, with limits for hostile input.

zstd is in the standard library since Python 3.14, before in the package backports.zstd (extra `images`).
"""

from __future__ import annotations

import bz2
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Protocol, cast

from goldnode.core.extras import missing

ZSTD = b"\x28\xb5\x2f\xfd"  # magic number of a frame
_FREE = 16 << 20  # bytes that may be any multiple of the compressed content
_BLOCK = 1 << 16  # bytes of one read
_XZ_MEMORY = 512 << 20  # bytes; the header of a file decides how much the decoder wants


def unpacked(kind: str, stream: IO[bytes], *, expansion: int = 0) -> IO[bytes]:
    """Return the decompressed content of a stream.

    A read raises EOFError if the stream ends early, and OSError, zlib.error or LZMAError if it is damaged or
    expands more than `expansion`-fold; 0 means without limit. Raise MissingExtraError if `kind` is zstd and
    it is not installed.
    """
    make: dict[str, Callable[[], _Decompressor]] = {
        # 16 more than zlib's largest window means the gzip format.
        "gzip": partial(_Zlib, 31),
        "zlib": partial(_Zlib, zlib.MAX_WBITS),
        "bzip2": bz2.BZ2Decompressor,
        "xz": partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY),
    }
    return cast(
        IO[bytes],
        io.BufferedReader(
            _Unpacked(stream, make[kind] if kind in make else _zstd(), expansion), _BLOCK
        ),
    )


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Zlib:
    """zlib's decompressor with the interface of the others. It verifies the checksum."""

    def __init__(self, format_bits: int) -> None:
        self._one = zlib.decompressobj(format_bits)

    @property
    def eof(self) -> bool:
        return self._one.eof

    @property
    def needs_input(self) -> bool:
        return not self._one.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._one.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        # No limit is 0 in zlib, and -1 in the other modules.
        return self._one.decompress(self._one.unconsumed_tail + data, max(max_length, 0))


def _zstd() -> Callable[[], _Decompressor]:
    library = _zstd_library()

    # Here, since the library is optional.
    class Zstd:
        def __init__(self) -> None:
            self._one: Any = library.ZstdDecompressor()
            self.eof, self.needs_input, self.unused_data = False, True, b""

        def decompress(self, data: bytes, max_length: int = -1) -> bytes:
            try:
                decoded: bytes = self._one.decompress(data, max_length)
            except library.ZstdError as error:
                raise OSError(str(error)) from error
            self.eof, self.needs_input = self._one.eof, self._one.needs_input
            self.unused_data = self._one.unused_data
            return decoded

    return Zstd


def _zstd_library() -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd  # an optional package
    except ImportError:
        raise missing(["images"]) from None
    return zstd


class _Unpacked(io.RawIOBase):
    """Decompressed content of a stream, which may consist of several streams of one kind.

    A read raises EOFError if the stream ends early, and OSError if it expands more than `expansion`-fold.
    """

    def __init__(
        self, packed: IO[bytes], make: Callable[[], _Decompressor], expansion: int
    ) -> None:
        super().__init__()
        self._packed, self._make, self._expansion = packed, make, expansion
        self._one = make()
        self._taken = self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._one.eof:
                rest = self._one.unused_data or self._more()
                while rest and not rest.strip(b"\0"):  # padding
                    rest = self._more()
                if not rest:
                    return 0
                self._one = self._make()
                content = self._one.decompress(rest.lstrip(b"\0"), len(buffer))
            else:
                block = self._more() if self._one.needs_input else b""
                if self._one.needs_input and not block:
                    raise EOFError("its compressed content ends early")
                content = self._one.decompress(block, len(buffer))
            if content:
                self._given += len(content)
                if self._expansion and self._given > max(_FREE, self._expansion * self._taken):
                    raise OSError(
                        f"it expands more than {self._expansion}-fold, more than any library does"
                    )
                buffer[: len(content)] = content
                return len(content)

    def _more(self) -> bytes:
        block = self._packed.read(_BLOCK)
        self._taken += len(block)
        return block
