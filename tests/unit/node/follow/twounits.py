"""A node whose goldnode-follow-fetch.service is a call in this process, in place of systemd."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from goldnode.node.follow import apart
from goldnode.node.ground.host import Host, Result


class TwoUnitHost(Host):
    """It answers `systemctl start` of the unit. `spoil` changes what the unit leaves; `requests` are those that it got."""

    def __init__(self, root: str, spoil: Callable[[Path], None] | None = None) -> None:
        super().__init__(root, live=True)
        self.spoil = spoil
        self.requests: list[str] = []

    @property
    def answer(self) -> Path:
        return Path(self.located(f"{apart.FOLDER}/answer"))

    def run(self, *argv: str, timeout: float = 60, stdin: Any = None) -> Result:
        if argv != ("systemctl", "start", apart.UNIT):
            return super().run(*argv, timeout=timeout, stdin=stdin)
        request = Path(self.located(apart.REQUEST))
        assert request.stat().st_mode & 0o777 == 0o600
        self.requests.append(request.read_text())
        folder = self.answer.parent
        folder.mkdir(parents=True, exist_ok=True)
        with (
            mock.patch.object(sys, "stdin", io.StringIO(self.requests[-1])),
            mock.patch.dict(os.environ, {"CACHE_DIRECTORY": str(folder)}),
        ):
            apart.serve()
        if self.spoil is not None:
            self.spoil(self.answer)
        return Result(argv, 0, "", "")
