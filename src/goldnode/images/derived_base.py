"""The image that a derived image begins with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.utils import canonicalize_name

from goldnode.evidence.contents import Contents
from goldnode.inspect.packages import dpkg_rows
from goldnode.oci.identity import ImageIdentity, identity
from goldnode.oci.layout import OciImage
from goldnode.oci.model import LABELS


@dataclass(frozen=True)
class DerivedBase:
    """The image that a derived image begins with, and its content."""

    image: OciImage
    contents: Contents

    @cached_property
    def identity(self) -> ImageIdentity:
        """Return its identity."""
        return identity(self.image.config)

    @property
    def settings(self) -> dict[str, Any]:
        """Env, Cmd and so on of its configuration, without its labels."""
        return {key: value for key, value in self.image.config["config"].items() if key != "Labels"}

    @property
    def lock(self) -> str:
        """Digest of the lock that it was built from."""
        return self.image.labels.get(f"{LABELS}lock", "")

    @property
    def python(self) -> str:
        """Return its version of Python, `3.11`."""
        return str(self.contents.image.get("python", ""))

    @cached_property
    def installed(self) -> dict[str, dict[str, str]]:
        """Fields of its installed packages by name, as dpkg's status has them."""
        snapshot = self.contents.snapshot
        status = snapshot.text("var/lib/dpkg/status") or ""
        return {row["Package"]: row for _, row in dpkg_rows({"var/lib/dpkg/status": status})}

    @property
    def wheels(self) -> dict[str, str]:
        """Names and versions of the wheels that its Python can import."""
        return {
            str(canonicalize_name(row.name)): row.version
            for row in self.contents.wheels
            if not row.unpacked
        }
