"""Inspection of images, wheels, root file systems and disks.

It reports which backends the GPU code is for, which packages are present, and whether the tag is true. See
docs/how-to/image-inspection.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from goldnode.oci.model import LABELS

if TYPE_CHECKING:
    from goldnode.inspect.policy import Inspection, Purity
    from goldnode.inspect.targets import InspectionTarget
    from goldnode.inspect.truth import LockedContents, Truth


def examine(
    target: InspectionTarget,
    rules: Purity,
    backend: str | None = None,
    *,
    own: Mapping[str, str],
    today: dt.date | None = None,
    locked: Callable[[str, str], LockedContents | None] | None = None,
) -> tuple[Inspection, Truth | None]:
    """Inspect a target. If it is an image, also verify the claims of its tag.

    `backend` overrides the backend that the image claims. `locked` returns the packages of an image from its
    name and the digest of its lock. `own` names the programs that goldnode ships, by SHA-256: what they load is
    no finding.
    """
    from goldnode.inspect import policy, truth

    claim = truth.claimed(target.view.identity) if target.view.configured else None
    said = target.backend if target.backend in rules.backends else ""
    inspection = policy.inspect(
        target.view,
        rules,
        said if backend is None else backend,
        today=today or dt.datetime.now(tz=dt.UTC).date(),
        own=own,
    )
    if not target.view.configured:
        return inspection, None
    digest = target.view.labels.get(f"{LABELS}lock", "")
    lock = None if claim is None or locked is None else locked(claim.name, digest)
    return inspection, truth.check(target.view, lock)
