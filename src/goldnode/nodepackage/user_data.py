"""User data for cloud-init that makes a machine with a vendor's image a member of a class.

Its own part has the type `text/x-shellscript-per-boot`. cloud-init writes that script again
and runs it at each boot. `runcmd` and `write_files` are not used: cloud-init marks them as done before it has done them,
so that a first boot that loses power is never repeated, and two parts that both have them replace each other.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from goldnode.core import deb, logins, yamlparser
from goldnode.core.data import data
from goldnode.core.errors import GoldnodeError
from goldnode.core.program_file import build
from goldnode.core.site import Site
from goldnode.lock.mirror import Mirror
from goldnode.lock.publication import CURRENT, NODE_PACKAGE, Publication
from goldnode.nodepackage.platforms import ANY, UserDataPlatform

SCRIPT = "integrations/cloud-init/first_boot.py"
NAME, PER_BOOT = "50-goldnode", "text/x-shellscript-per-boot"  # in /var/lib/cloud/scripts/per-boot
INSIDE = "./usr/bin/goldnode-node"
# First words of a part, and the type by which cloud-init knows it (22.4, 25.1, 26.2: handlers/__init__.py).
TYPES = {
    "#cloud-config-archive": "text/cloud-config-archive",
    "#cloud-config-jsonp": "text/cloud-config-jsonp",
    "#cloud-config": "text/cloud-config",
    "#cloud-boothook": "text/cloud-boothook",
    "## template: jinja": "text/jinja2",
    "#!": "text/x-shellscript",
}
# Parts that cloud-init reads as YAML, and what each has at its top.
_YAML_OF: dict[str, type] = {"text/cloud-config": dict, "text/cloud-config-archive": list}
_SECRET = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----")


@dataclass(frozen=True)
class ProgramPlace:
    """Where the first boot gets goldnode-node: an address with the SHA-256 of what it answers, or in the user data."""

    url: str | None
    sha256: str


def in_mirror(site: Site) -> ProgramPlace:
    """Return the package of the node program in the site's mirror. Raises GoldnodeError if nodes cannot use it."""
    remedy = (
        "name an address of the file that `goldnode node-program` writes with --program, or use --embed on a platform "
        "without a limit"
    )
    if site.mirror is None or site.mirror.url is None:
        raise GoldnodeError(
            "the site has no mirror with an address, from which an instance could get goldnode-node",
            file=site.file,
            remedy=remedy,
        )
    mirror = Mirror.of(site)
    current = mirror.directory / "stacks" / NODE_PACKAGE / CURRENT
    if not current.exists():
        raise GoldnodeError(
            "the mirror does not have the package goldnode-node",
            file=mirror.directory,
            remedy="run `goldnode package publish`",
        )
    published = Publication.read(current.resolve())
    (row,) = published.packages
    file = published.directory / row["pool"]
    if _packaged(file.read_bytes(), file) != build():
        raise GoldnodeError(
            f"the mirror has goldnode-node {row['version']}, which is not the program of this goldnode",
            file=file,
            remedy="run `goldnode package publish --revision N` with a higher N",
        )
    # By its content, not by `current`: what is published later must not change user data that is in use.
    path = published.directory.relative_to(mirror.directory) / row["pool"]
    return ProgramPlace(f"{site.mirror.url.rstrip('/')}/{path}", row["sha256"])


def _packaged(content: bytes, file: Path) -> bytes:
    """Return the program in a package. Raises GoldnodeError if it is no package of goldnode."""
    try:
        tar = lzma.decompress(deb.member(content, "data.tar.xz"))
        with tarfile.open(fileobj=io.BytesIO(tar)) as files:
            inside = files.extractfile(INSIDE)
            return b"" if inside is None else inside.read()
    except (KeyError, ValueError, lzma.LZMAError, tarfile.TarError) as problem:
        raise GoldnodeError(
            f"this is no package of goldnode-node: {problem}",
            file=file,
            remedy="run `goldnode mirror verify`",
        ) from problem


def at_address(url: str) -> ProgramPlace:
    """Return the program that `goldnode node-program` writes, at an address of the site. Raises GoldnodeError."""
    if not re.fullmatch(r"https?://[^\s\"'\\]+", url):
        raise GoldnodeError(
            f'"{logins.masked(url)}" is no http or https address',
            remedy="write it as https://HOST/goldnode-node",
        )
    refuse_secrets(url)
    return ProgramPlace(url, hashlib.sha256(build()).hexdigest())


EMBEDDED = ProgramPlace(None, "")


@dataclass(frozen=True)
class UserDataPart:
    """One part: its file name, its type and its text."""

    name: str
    kind: str
    text: str


def script(
    document: Mapping[str, Any], program: ProgramPlace, options: Sequence[str] = ()
) -> UserDataPart:
    """Return the script that cloud-init runs at each boot.

    :param document: the class document.
    :param options: further options of `goldnode-node join`.
    """
    own = build()
    settings: dict[str, Any] = {
        "program": hashlib.sha256(own).hexdigest(),
        "options": list(options),
    }
    if program.url is None:
        settings["embedded"] = packed(own)
    else:
        settings |= {"url": program.url, "sha256": program.sha256}
    text = data(SCRIPT).read_text(encoding="utf-8")
    compact = packed(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    name, digest = document["class"], document["digest"]
    text += f"\n\n# Class {name}, {digest}\nbegin({json.dumps(settings, sort_keys=True)}, {json.dumps(compact)})\n"
    return UserDataPart(NAME, PER_BOOT, text)


def packed(content: bytes) -> str:
    """Return content as base64 of gzip, the same bytes each time."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def own_part(file: Path) -> UserDataPart:
    """Return a part of the user's own. Raises GoldnodeError if cloud-init would not know it."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise GoldnodeError(
            "the part is no text in UTF-8", file=file, remedy="convert it"
        ) from problem
    kind = next((kind for start, kind in TYPES.items() if text.startswith(start)), None)
    if kind is None:
        raise GoldnodeError(
            "the first line names no type of user data that is added here",
            file=file,
            line=1,
            remedy=f"begin with one of {', '.join(TYPES)}",
        )
    refuse_secrets(text, file)
    if kind in _YAML_OF:
        _check_yaml(text, file, _YAML_OF[kind])
    return UserDataPart(file.name, kind, text)


def _check_yaml(text: str, file: Path, wanted: type) -> None:
    """Raise GoldnodeError for YAML that cloud-init would leave out, with no more than a warning in its log."""
    parsed = yamlparser.parse(text, file, GoldnodeError).data
    if parsed is not None and not isinstance(parsed, wanted):
        shape = "keys with values" if wanted is dict else "a list"
        raise GoldnodeError(
            f"this part is no YAML with {shape}, and cloud-init would leave it out",
            file=file,
            remedy="correct it, and see `cloud-init schema --config-file FILE`",
        )


def refuse_secrets(text: str, file: Path | None = None) -> None:
    """Raise GoldnodeError for a private key or a login in an address.

    Every process of an instance can read its user data, and so can every account that may describe the instance.
    """
    remedy = "remove it: every process of the instance can read the user data"
    for number, line in enumerate(text.splitlines(), 1):
        where = None if file is None else number
        if _SECRET.search(line):
            raise GoldnodeError(
                "a private key does not belong in user data", file=file, line=where, remedy=remedy
            )
        login = logins.login_in(line)
        if login is not None:
            raise GoldnodeError(
                f"the address {login} has a login", file=file, line=where, remedy=remedy
            )


def check_document(document: Mapping[str, Any]) -> None:
    """Raise GoldnodeError if an instance could not use the class document, or must not get it."""
    refuse_secrets(json.dumps(document, indent=0, ensure_ascii=False))
    for row in document.get("site", {}).get("archives", ()):
        if not row["uri"].startswith(("http:", "https:")):
            raise GoldnodeError(
                f"archive {row['id']} is at {row['uri']}, a directory of this machine, which an instance does not have",
                remedy="serve it by http, and correct its `url` in the site file",
            )


def message(parts: Sequence[UserDataPart], *, multipart: bool = False) -> bytes:
    """Return parts as one text: YAML with the header `#cloud-config-archive`, or a multi-part message.

    The same parts give the same bytes.
    """
    if multipart:
        return _multipart(parts)
    rows = [{"type": part.kind, "filename": part.name, "content": part.text} for part in parts]
    text = yaml.dump(rows, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=10**9)
    return f"#cloud-config-archive\n{text}".encode()


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as blocks, as a person does."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Readable.add_representer(str, _block)


def _multipart(parts: Sequence[UserDataPart]) -> bytes:
    digest = hashlib.sha256("\0".join(part.text for part in parts).encode()).hexdigest()
    boundary = f"goldnode-{digest[:24]}"
    lines = [f'Content-Type: multipart/mixed; boundary="{boundary}"', "MIME-Version: 1.0", ""]
    for part in parts:
        encoding, body = "7bit", part.text.removesuffix("\n")
        if not body.isascii():
            encoding, body = "base64", base64.encodebytes(part.text.encode()).decode().rstrip("\n")
        lines += [
            f"--{boundary}",
            f'Content-Type: {part.kind}; charset="utf-8"',
            "MIME-Version: 1.0",
            f"Content-Transfer-Encoding: {encoding}",
            f'Content-Disposition: attachment; filename="{part.name}"',
            "",
            body,
        ]
    return "\n".join([*lines, f"--{boundary}--", ""]).encode()


def fitted(content: bytes, platform: UserDataPlatform, *, compress: bool = False) -> bytes:
    """Return the user data as the platform takes it, compressed if it asks for that or would not fit otherwise.

    Raises GoldnodeError if it does not fit, or if the platform takes text alone.
    """
    if compress and not platform.binary:
        raise GoldnodeError(
            f"{platform.name} takes user data as text, not as gzip", remedy="leave out --gzip"
        )
    limit = platform.limit
    if compress or (platform.binary and limit is not None and platform.size(content) > limit):
        content = gzip.compress(content, 9, mtime=0)
    if limit is None or platform.size(content) <= limit:
        return content
    remedy = "leave out --embed, or deliver --part files in another way"
    if platform == ANY:
        remedy = "name the platform with --platform: others take more, or gzip"
    encoded = " in base64" if platform.base64 else ""
    taken = f"{platform.name} takes {limit} ({platform.source})"
    if platform == ANY:
        taken = f"the smallest limit of all platforms is {limit}"
    raise GoldnodeError(
        f"the user data has {platform.size(content)} bytes{encoded}, and {taken}", remedy=remedy
    )
