"""User and password of another system, from a file or from the output of a command. They are in no record."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.core import secret_modes
from goldnode.core.command_environment import without_secrets
from goldnode.core.errors import GoldnodeError
from goldnode.core.secret_modes import SecretRule

CALL = 60.0  # seconds for a command


@dataclass(frozen=True)
class Credentials:
    """User and password; a token alone has no user. Their text form does not show them."""

    user: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(...)"


@dataclass(frozen=True)
class CredentialSource:
    """Where credentials are: a file or a command. `of` and `setting` name them in errors.

    `alone`: one line is a token. `error`: class of the errors.
    """

    of: str
    setting: str
    file: Path | None
    command: Sequence[str] = ()
    alone: bool = False
    error: type[GoldnodeError] = GoldnodeError

    def read(self) -> Credentials:
        """Return what two lines of the file, or of the output of the command, have. Raises `error`."""
        if self.command:
            text, where = self._run(), self.command[0]
        elif self.file is not None:
            text, where = self._text(self.file), str(self.file)
        else:
            raise self.error(
                f"no credentials of {self.of} are given",
                remedy=f"see {self.setting} in docs/reference/configuration.md",
            )
        lines = text.splitlines()
        if self.alone and len(lines) == 1 and lines[0]:
            return Credentials("", lines[0])
        if len(lines) < 2 or not lines[0] or not lines[1]:
            raise self.error(
                f"{where} does not give a user and a password, one line each",
                remedy=f"see {self.setting} in docs/reference/configuration.md",
            )
        return Credentials(lines[0], lines[1])

    def _run(self) -> str:
        name = self.command[0]
        try:
            done = subprocess.run(
                list(self.command),
                capture_output=True,
                text=True,
                check=False,
                timeout=CALL,
                stdin=subprocess.DEVNULL,
                env=without_secrets(),
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise self.error(
                f"the command for the credentials of {self.of} ({name}) could not be run",
                remedy=f"correct {self.setting}.command of the site file",
            ) from problem
        if done.returncode:
            raise self.error(
                f"the command for the credentials of {self.of} ({name}) ended with {done.returncode}",
                remedy="run it by hand; its output is not shown here",
            )
        return done.stdout

    def _text(self, file: Path) -> str:
        secret_modes.require(file, SecretRule(f"credentials of {self.of}", 0o077))
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise self.error(
                f"the credentials of {self.of} cannot be read",
                file=file,
                remedy="write the user and the password into it, one line each",
            ) from problem
