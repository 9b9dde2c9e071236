"""Access to an archive with the settings of this machine's apt: proxies, credentials
(apt_auth.conf(5)) and certificates.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

import urllib3

from goldnode.core.logins import masked

HELPER = Path("/usr/lib/apt/apt-helper")
AUTH = (Path("/etc/apt/auth.conf"), Path("/etc/apt/auth.conf.d"))


def apt_settings() -> dict[str, str]:
    """Return the transport settings of this machine's apt by lower-case name; empty without apt."""
    # Read the machine's own configuration, not that of a root in which a caller resolves.
    environment = {key: value for key, value in os.environ.items() if key != "APT_CONFIG"}
    try:
        done = subprocess.run(
            ["apt-config", "dump", "--format", "%f %v%n", "Acquire"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    except FileNotFoundError:
        return {}
    rows = (line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return {name.lower(): value for name, value in rows if value}


def credentials(url: str, places: tuple[Path, ...] = AUTH) -> tuple[str, str] | None:
    """Return user and password for `url` from apt's auth.conf files; the first matching entry decides.

    An entry without a scheme is for https only (apt_auth.conf(5)).
    """
    asked = urlsplit(url)
    for place in places:
        for file in sorted(place.glob("*.conf")) if place.is_dir() else [place]:
            try:
                # As netrc: a sequence of words, with or without line ends between them.
                words = shlex.split(file.read_text(encoding="utf-8"), comments=True)
            except (OSError, ValueError):
                continue
            entry: dict[str, str] = {}
            for key, value in zip(words, [*words[1:], ""], strict=True):
                if key == "machine":
                    entry = {"machine": value}
                elif key in ("login", "password") and "machine" in entry:
                    entry[key] = value
                    if {"login", "password"} <= entry.keys() and _fits(
                        entry["machine"], asked.scheme, asked.netloc, asked.path
                    ):
                        return entry["login"], entry["password"]
    return None


def _fits(machine: str, scheme: str, host: str, path: str) -> bool:
    wanted = urlsplit(machine if "://" in machine else f"https://{machine}")
    named = host.rpartition("@")[2]
    same = wanted.netloc in (named, named.partition(":")[0])
    return scheme == wanted.scheme and same and path.startswith(wanted.path)


class Transport:
    """Pools of connections, by proxy. Safe for several threads."""

    def __init__(
        self,
        *,
        connections: int = 4,
        timeout: float = 60,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = dict(settings) if settings is not None else apt_settings()
        self._connections, self._timeout = connections, timeout
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._proxies: dict[str, str] = {}

    def get(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Request `url` and return the response with its unread body. Raises urllib3.exceptions.HTTPError."""
        parts, login = urlsplit(url), self.login(url)
        # Unpacked bodies would have other bytes than the hash, and other offsets to resume from.
        sent = {"Accept-Encoding": "identity", "User-Agent": "goldnode", **headers}
        if login is not None:
            sent |= urllib3.make_headers(basic_auth=":".join(login))
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return self._pool(self._proxy(bare)).request(
            "GET",
            bare,
            headers=sent,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=min(20, self._timeout), read=self._timeout),
            # Everything else is the caller's to repeat: it knows what is already there.
            retries=urllib3.Retry(
                total=5, redirect=5, connect=0, read=0, status=0, other=0, raise_on_status=False
            ),
        )

    def login(self, url: str) -> tuple[str, str] | None:
        """Return user and password for `url`: those in it, otherwise those of apt."""
        parts = urlsplit(url)
        if parts.username:
            return unquote(parts.username), unquote(parts.password or "")
        return credentials(url)

    def proxy(self, url: str) -> str:
        """Return the proxy that `url` is fetched through, without its credentials; "" for none."""
        return masked(self._proxy(url))

    def prepare(self, urls: list[str]) -> None:
        """Make the pools that `urls` need, before threads share them."""
        for url in urls:
            self._pool(self._proxy(url))

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.get("acquire::https::cainfo"))

    def _pool(self, proxy: str) -> urllib3.PoolManager:
        if proxy not in self._pools:
            shape = {"num_pools": 8, "maxsize": self._connections, "ssl_context": self._context}
            if proxy:
                login = urlsplit(proxy)
                headers = None
                if login.username:
                    headers = urllib3.make_headers(
                        proxy_basic_auth=f"{unquote(login.username)}:{unquote(login.password or '')}"
                    )
                self._pools[proxy] = urllib3.ProxyManager(proxy, proxy_headers=headers, **shape)  # type: ignore[arg-type]
            else:
                self._pools[proxy] = urllib3.PoolManager(**shape)  # type: ignore[arg-type]
        return self._pools[proxy]

    def _proxy(self, url: str) -> str:
        """Return the proxy for `url`, or "" for none.

        The order is apt's: the setting for the host, that for the scheme, a detected one, the
        environment.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        key = f"{parts.scheme}://{host}"
        if key not in self._proxies:
            self._proxies[key] = self._find_proxy(parts.scheme, host, url)
        return self._proxies[key]

    def _find_proxy(self, scheme: str, host: str, url: str) -> str:
        schemes = (
            ("https", "http") if scheme == "https" else ("http",)
        )  # https falls back to what http says
        for name in (f"::proxy::{host}", "::proxy"):
            for kind in schemes:
                proxy = self._settings.get(f"acquire::{kind}{name}")
                if proxy:
                    return "" if proxy.upper() == "DIRECT" else proxy
        if (
            any(f"acquire::{kind}::proxy-auto-detect" in self._settings for kind in schemes)
            and HELPER.exists()
        ):
            done = subprocess.run(
                [str(HELPER), "auto-detect-proxy", url], capture_output=True, text=True, check=False
            )
            detected = re.search(r"Using proxy '([^']*)'", done.stdout)
            if detected and detected.group(1):
                return "" if detected.group(1).upper() == "DIRECT" else detected.group(1)
        if urllib.request.proxy_bypass(host):
            return ""
        return urllib.request.getproxies().get(scheme, "")
