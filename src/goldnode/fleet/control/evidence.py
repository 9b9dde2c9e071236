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
from goldnode.documents.rollout import RolloutEvidence, seconds
from goldnode.evidence import proved
from goldnode.evidence.proved import PresentClass
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import Answer


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


def answer(
    item: RolloutEvidence, settings: RolloutSettings, site: Site, now: float
) -> tuple[Answer, str]:
    """Return whether the evidence that a rollout requires is there, and the first command that makes what is missing.

    Raises GoldnodeError where the class or the keys cannot be read. `now` is in seconds since 1970.
    """
    declared = present(settings.class_, site)
    lock = declared.document["lock"]["digest"]
    # Evidence about the class of this controller proves nothing about another target.
    if lock != settings.target:
        return (
            Answer.UNKNOWN,
            f"class {settings.class_} has {lock} here, and the rollout goes to {settings.target}",
        )
    folder = proved.directory(site, settings.class_)
    rows = proved.statuses(folder, declared, proved.trust(site))
    max_age = dt.timedelta(seconds=seconds(item.max_age)) if item.max_age is not None else None
    moment = dt.datetime.fromtimestamp(now, tz=dt.UTC)
    decided = proved.required(item.kinds, rows, now=moment, max_age=max_age)
    unmet = [row for row in decided if row.state != "current"]
    if not unmet:
        return Answer.PASSES, f"proved: {', '.join(item.kinds)}"
    bad = next((row for row in unmet if row.state == "failed"), None)
    if bad is not None and bad.why.startswith("failed"):
        return Answer.FAILS, f"{bad.kind} {bad.why}"
    # The command first: a reason is cut at 200 characters.
    first, *others = unmet
    also = "".join(f"; and for {row.kind} ({row.state})" for row in others)
    return (
        Answer.UNKNOWN,
        f"waits for {first.kind} ({first.state}){also}: {first.renew(settings.class_)}; {first.why}",
    )
