"""The user's logins to registries: from docker's configuration and credential helpers. They are never shown
or logged.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.errors import ImageError

_HELPER = re.compile(r"^[A-Za-z0-9._-]+$")
_TIMEOUT = 60  # seconds a credential helper may take: some ask a person


@dataclass(frozen=True)
class Login:
    """A user with password, or (`kind` identity) a refresh token, or (`kind` token) a bearer token as it is. Its text shows no secret."""

    user: str
    secret: str = field(repr=False)
    kind: str = "password"


def files() -> list[Path]:
    """Return the files that may have logins, in this order: `$REGISTRY_AUTH_FILE`, docker's, those of podman and buildah."""
    named = os.environ.get("REGISTRY_AUTH_FILE")
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return [
        *([Path(named)] if named else []),
        docker,
        *([Path(runtime) / "containers/auth.json"] if runtime else []),
    ]


def login(host: str, repository: str = "") -> Login | None:
    """Return the user's login for `repository` at `host` (with its port), or None.

    In each file the order is: the helper of that host (`credHelpers`), the helper of all hosts
    (`credsStore`), then the entries of `auths`, the longest matching path first, as in
    containers-auth.json(5). Raises ImageError for an unreadable file and for a helper that fails.
    """
    for file in files():
        data = _read(file)
        if data is None:
            continue
        helper = data.get("credHelpers", {}).get(host)
        known = _ask_helper(helper, host) if helper else None
        if known is None and data.get("credsStore"):
            known = _ask_helper(data["credsStore"], host)
        known = known or _written(data.get("auths", {}), host, repository, file)
        if known is not None:
            return known
    return None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ImageError(
            f"the logins of registries cannot be read: {problem.strerror}", file=file
        ) from problem
    except ValueError as problem:
        line = getattr(problem, "lineno", None)
        raise ImageError(
            "the logins of registries are no JSON",
            file=file,
            line=line,
            remedy="fix it, or log in again",
        ) from None
    if not isinstance(data, dict):
        raise ImageError(
            "the logins of registries are no JSON object",
            file=file,
            line=1,
            remedy="fix it, or log in again",
        )
    return data


def _written(auths: dict[str, Any], host: str, repository: str, file: Path) -> Login | None:
    plain = {
        re.sub(r"^https?://", "", key).rstrip("/").removesuffix("/v2").removesuffix("/v1"): row
        for key, row in auths.items()
    }
    parts = repository.split("/") if repository else []
    for count in range(len(parts), -1, -1):
        row = plain.get("/".join([host, *parts[:count]]))
        if not isinstance(row, dict):
            continue
        if row.get("registrytoken"):
            return Login("", row["registrytoken"], "token")
        user, secret = row.get("username", ""), row.get("password", "")
        if row.get("auth"):
            try:
                user, colon, secret = (
                    base64.b64decode(row["auth"], validate=True).decode().partition(":")
                )
            except (binascii.Error, UnicodeDecodeError, ValueError):
                colon = ""
            if not colon:
                raise ImageError(
                    f"the login for {host} is no base64 of USER:PASSWORD",
                    file=file,
                    remedy=f"log in again with `docker login {host}`",
                ) from None
        if row.get("identitytoken"):
            return Login(user, row["identitytoken"], "identity")
        if user:
            return Login(user, secret.rstrip("\0"))
    return None


def _ask_helper(name: str, host: str) -> Login | None:
    """Return the answer of `docker-credential-NAME get`, or None if it has none for the host. Errors do not
    repeat its output.
    """
    program = f"docker-credential-{name}"
    if not _HELPER.match(name):
        raise ImageError(
            "docker's configuration names a credential helper that is no program's name",
            remedy="correct credsStore",
        )
    try:
        done = subprocess.run(
            [program, "get"],
            input=host,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except FileNotFoundError:
        raise ImageError(
            f"docker's configuration names the credential helper {program}, which is not on this machine",
            remedy="install it, or take it out of credsStore and credHelpers",
        ) from None
    except subprocess.TimeoutExpired:
        raise ImageError(
            f"{program} did not answer in {_TIMEOUT} s", remedy="unlock the keychain it asks"
        ) from None
    if done.returncode:
        if "credentials not found" in (done.stdout + done.stderr).lower():
            return None
        raise ImageError(
            f"{program} failed with status {done.returncode}",
            remedy=f"run it by hand: `echo {host} | {program} get`",
        )
    try:
        said = json.loads(done.stdout)
        user, secret = said["Username"], said["Secret"]
    except (ValueError, KeyError, TypeError):
        raise ImageError(
            f"{program} answers something else than a login",
            remedy=f"run it by hand: `echo {host} | {program} get`",
        ) from None
    if not secret:
        return None
    return Login("", secret, "identity") if user == "<token>" else Login(user, secret)
