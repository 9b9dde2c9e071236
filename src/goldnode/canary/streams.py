"""The three standard streams of a process, served in one loop: input as it is taken, output as it comes."""

from __future__ import annotations

import os
import selectors
import subprocess

MOST = 64 << 20  # bytes of output that are stored


class Streams:
    """Writes `data` to a process and stores what it prints. Standard input stays open until :meth:`hang_up`."""

    def __init__(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        assert process.stdin is not None  # noqa: S101 - opened with pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self.process, self.data = process, memoryview(data)
        self._out, self._err = bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        for stream in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
        self._input = process.stdin
        self._selector.register(process.stdin, selectors.EVENT_WRITE)
        self._selector.register(process.stdout, selectors.EVENT_READ, self._out)
        self._selector.register(process.stderr, selectors.EVENT_READ, self._err)
        self._open = 2

    @property
    def out(self) -> bytes:
        """Return standard output so far."""
        return bytes(self._out)

    @property
    def err(self) -> bytes:
        """Return standard error so far."""
        return bytes(self._err)

    def step(self, seconds: float) -> bool:
        """Serve the streams for at most `seconds`. Return whether the process has closed its outputs."""
        if not self._open:
            return True
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._write()
            else:
                self._read(key)
        if self.process.poll() is not None and not self._selector.select(0):
            return True  # a process that it left behind may hold the pipes open
        return not self._open

    def hang_up(self) -> None:
        """Close standard input: the program ends its jobs."""
        if not self._input.closed:
            if self._input in self._selector.get_map():
                self._selector.unregister(self._input)
            self._input.close()

    def _write(self) -> None:
        try:
            sent = os.write(self._input.fileno(), self.data[: 1 << 16])
            self.data = self.data[sent:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.data = self.data[:0]
        if not self.data:
            self._selector.unregister(self._input)

    def _read(self, key: selectors.SelectorKey) -> None:
        part = os.read(key.fd, 1 << 16)
        if not part:
            self._selector.unregister(key.fileobj)
            self._open -= 1
        elif len(key.data) < MOST:
            key.data.extend(part)
