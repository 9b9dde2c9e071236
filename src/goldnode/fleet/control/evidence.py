"""Evidence as a controller and the commands ask for it: the class as it is declared today, and the tools of today."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache

from goldnode.canary import pack
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core.release import program_digest
from goldnode.core.site import Site
from goldnode.evidence.proved import PresentClass


@cache
def tools() -> Mapping[str, str]:
    """Return the tools that goldnode itself brings, by their names in statements."""
    return {
        "goldnode-node": program_digest().removeprefix("sha256:"),
        "goldnode-canary": pack.digest(),
    }


def present(class_: str, site: Site) -> PresentClass:
    """Return a class as the catalog, the facts and the lock of today declare it. Raises GoldnodeError."""
    return PresentClass(class_document(class_, load_catalog(), site), tools())


def now() -> dt.datetime:
    """Return the time, in UTC."""
    return dt.datetime.now(tz=dt.UTC)
