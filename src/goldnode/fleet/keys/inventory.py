"""The keys of this site: the files that the site file names, and those of an authority of nodes and of a channel."""

from __future__ import annotations

import datetime as dt
import json
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from goldnode.core import keys as openpgp
from goldnode.core import secret_modes
from goldnode.core.errors import SigningKeyError
from goldnode.core.secret_modes import SecretRule
from goldnode.core.site import Site
from goldnode.fleet.keys import authority
from goldnode.fleet.keys.rotation import RECORD
from goldnode.node.ground.openpgp import OpenPGPError

_ANY_OWNER = SecretRule("secret key", 0o077)
_FINGERPRINT = re.compile(r"(?:0x)?[0-9A-Fa-f]{40}")
_LARGEST = 1 << 20  # bytes of a file that are read


@dataclass(frozen=True)
class SiteKey:
    """A key of a site: its kind, what names it, the file, its mode, its end, and what is wrong with it.

    `end` is None for a key without one. `problem` is empty for a key that is right.
    """

    kind: str
    named: str
    file: Path | None
    mode: str = ""
    end: dt.datetime | None = None
    problem: str = ""

    def warning(self, now: dt.datetime, days: int) -> str:
        """Return what needs attention within `days` days; empty for nothing."""
        if self.problem or self.end is None:
            return self.problem
        left = (self.end - now).days
        if self.end <= now:
            return f"it has expired on {self.end:%Y-%m-%d}"
        return f"it expires in {left} days" if left < days else ""


def site_keys(site: Site) -> Iterator[SiteKey]:
    """Yield the keys that a site file names."""
    if site.mirror is not None and site.mirror.signing_key is not None:
        key = site.mirror.signing_key
        where = None if _FINGERPRINT.fullmatch(key) else site.resolve(key)
        public = site.resolve(site.mirror.key) if site.mirror.key else None
        end, fault = _openpgp_end(public)
        yield _secret(
            "mirror", "mirror.signing_key", where, secret_modes.MIRROR_KEY, end=end, fault=fault
        )
    if site.module_signing is not None:
        certificate = site.resolve(site.module_signing.certificate)
        end, fault = _certificate_end(certificate)
        path = site.resolve(site.module_signing.key)
        rule = secret_modes.MODULE_KEY
        yield _secret("modules", "module_signing.key", path, rule, end=end, fault=fault)
    for kind, named, value in (
        ("images", "images.signing_key", site.images.signing_key),
        ("online", "images.online_key", site.images.online_key),
    ):
        if value is not None and value.startswith("hsm:"):
            yield SiteKey(kind, f"{named}, in a token", None)
        elif value is not None:
            yield _secret(kind, named, site.resolve(value), _ANY_OWNER)
    for root in site.images.roots:
        yield _public("root", "images.roots", site.resolve(root))
    if site.fleet.signing_key is not None:
        path = site.resolve(site.fleet.signing_key)
        yield _secret("log", "fleet.signing_key", path, _ANY_OWNER)
    if site.fleet.document_key is not None:
        yield _public("documents", "fleet.document_key", site.resolve(site.fleet.document_key))
    for named, value in (
        ("evidence.signing_key", site.evidence.signing_key),
        ("cve.signing_key", site.cve.signing_key),
    ):
        if value is not None:
            yield _secret("evidence", named, site.resolve(value), _ANY_OWNER)
    for named, value in (
        ("evidence.public_key", site.evidence.public_key),
        ("evidence.withdrawn_keys", site.evidence.withdrawn_keys),
    ):
        if value is not None:
            yield _public("evidence", named, site.resolve(value))
    yield from _tokens(site)


def _tokens(site: Site) -> Iterator[SiteKey]:
    if site.fleet.prometheus is not None and site.fleet.prometheus.token:
        path = site.resolve(site.fleet.prometheus.token)
        yield _secret("token", "fleet.prometheus.token", path, secret_modes.TOKEN)
    for name, hook in sorted(site.events.hooks.items()):
        if hook.webhook is not None:
            path = site.resolve(hook.webhook.secret)
            yield _secret("webhook", f"events.hooks.{name}", path, secret_modes.TOKEN)
        if hook.alertmanager is not None and hook.alertmanager.token:
            path = site.resolve(hook.alertmanager.token)
            yield _secret("token", f"events.hooks.{name}", path, secret_modes.TOKEN)


def authority_keys(directory: Path) -> Iterator[SiteKey]:
    """Yield an authority of nodes, and the certificates that it issued. Raises SigningKeyError."""
    end, fault = _certificate_end(directory / authority.CERTIFICATE)
    rule = secret_modes.AUTHORITY_KEY
    yield _secret("authority", "--authority", directory / authority.KEY, rule, end=end, fault=fault)
    for row in authority.issued(directory):
        when = dt.datetime.fromisoformat(row["expires"])
        if row["revoked"] is None:
            yield SiteKey("node", row["node"], None, end=when)
        else:
            yield SiteKey("node", f"{row['node']}, revoked {row['revoked'][:10]}", None)
    before = directory / authority.BEFORE
    if (before / authority.CERTIFICATE).exists():
        yield from authority_keys(before)


def channel_keys(directory: Path) -> Iterator[SiteKey]:
    """Yield the root of a channel and its roles with their keys, by its newest root.json. Raises SigningKeyError."""
    roots = [path for path in directory.rglob("*root.json") if path.is_file()]
    signed = [row for row in map(_signed_root, roots) if row is not None]
    if not signed:
        raise SigningKeyError(
            "there is no root of a channel in this directory",
            file=directory,
            remedy="name the directory that `publish` writes",
        )
    version, end, roles, path = max(signed, key=lambda row: row[0])
    for name in sorted(roles):
        threshold, count = roles[name]
        kind = name if name in ("root", "targets") else "online"
        about = f"{name}: {threshold} of {count} keys, root version {version}"
        yield SiteKey(kind, about, path, end=end if name == "root" else None)


def copied_channels(store: Path) -> Iterator[SiteKey]:
    """Yield the roots and roles of the channels of images or disks of which a store has a copy."""
    for folder in sorted((store / "channels").glob("*/metadata")):
        place = unquote(folder.parent.name)
        for key in channel_keys(folder):
            yield replace(key, named=f"{key.named}, channels of {place}")


def rotations(keys: Iterable[SiteKey]) -> Iterator[SiteKey]:
    """Yield each rotation beside a key that has begun and not ended, as a problem."""
    for folder in sorted({key.file.parent for key in keys if key.file is not None}):
        for path in sorted(folder.glob(f"rotation-*/{RECORD}")):
            if "-ended-" in path.parent.name:
                continue
            try:
                record = json.loads(path.read_bytes())
                kind, about = str(record["kind"]), f"rotation of {record['named']}"
                step = record["intent"]
                why = (
                    f"it has not ended, the next step is {step}: run `goldnode keys rotate {kind}`"
                )
            except (OSError, ValueError, KeyError, TypeError) as problem:
                kind, about, why = (
                    path.parent.name.split("-")[1],
                    "rotation",
                    f"unreadable: {problem}",
                )
            yield SiteKey(kind, about, path, problem=why)


def _signed_root(path: Path) -> tuple[int, dt.datetime, dict[str, tuple[int, int]], Path] | None:
    """Return version, end and roles (threshold, number of keys) of a root; None for another file."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        body = json.loads(path.read_bytes())["signed"]
        roles = {
            str(name): (int(role["threshold"]), len(role["keyids"]))
            for name, role in body["roles"].items()
        }
        end = dt.datetime.fromisoformat(body["expires"])
        if end.tzinfo is None or body["_type"] != "root":
            return None
        return int(body["version"]), end, roles, path
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _secret(
    kind: str,
    named: str,
    path: Path | None,
    rule: SecretRule,
    *,
    end: dt.datetime | None = None,
    fault: str = "",
) -> SiteKey:
    if path is None:
        return SiteKey(kind, f"{named}, in a keyring of GnuPG", None, end=end, problem=fault)
    wrong = secret_modes.fault(path, rule)
    problem = _missing(path) or str(wrong or fault)
    return SiteKey(kind, named, path, _mode(path), end=end, problem=problem)


def _public(kind: str, named: str, path: Path) -> SiteKey:
    """Return a public key, whose mode need not be narrow; others may not write it."""
    mode = _mode(path)
    wrong = "others can change it: run chmod go-w" if mode and int(mode, 8) & 0o022 else ""
    return SiteKey(kind, f"{named} (public)", path, mode, problem=_missing(path) or wrong)


def _mode(path: Path) -> str:
    try:
        return f"{stat.S_IMODE(path.stat().st_mode):04o}"
    except OSError:
        return ""


def _missing(path: Path) -> str:
    return "" if path.is_file() else "the file is not there"


def _openpgp_end(public: Path | None) -> tuple[dt.datetime | None, str]:
    """Return the end of an OpenPGP key, and a problem."""
    if public is None or not public.is_file():
        return None, ""
    try:
        states = openpgp.states(public.read_bytes()[:_LARGEST])
    except OpenPGPError as problem:
        return None, f"{public} cannot be read: {problem}"
    if any(state.revoked for state in states):
        return None, f"{public} is revoked"
    return min((state.expires for state in states if state.expires), default=None), ""


def _certificate_end(path: Path) -> tuple[dt.datetime | None, str]:
    """Return the end of a certificate, PEM or DER, by openssl, and a problem."""
    command = ["openssl", "x509", "-in", str(path), "-noout", "-enddate", "-dateopt", "iso_8601"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        end = dt.datetime.fromisoformat(done.stdout.strip().removeprefix("notAfter="))
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None, f"{path} is no certificate, or openssl 3 is not on this machine"
    return end, ""
