"""Provenance of an image: an in-toto statement with a SLSA v1 predicate.

The statement follows entirely from the locks, the recipe and the tools, so a rebuild produces the same
statement. It omits the time and place of the build: SLSA v1 makes both optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from goldnode.evidence.contents import Contents, EvidenceLock
from goldnode.evidence.signatures import statement
from goldnode.oci.model import Built, ImageSpec

PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:goldnode:image-build:1"
BUILDER = "urn:goldnode:builder"
_BASE = "org.opencontainers.image.base."


def provenance(
    image: ImageSpec,
    built: Built,
    locks: Sequence[EvidenceLock],
    contents: Contents,
    *,
    builder: str = BUILDER,
    base: Mapping[str, str] | None = None,
) -> bytes:
    """Return the unsigned statement.

    `locks` has those of the parents first and the image's own last. `base` are the labels that name the base
    image (org.opencontainers.image.base.name and .digest), if there is one.
    """
    from importlib.metadata import version

    family = contents.os.get("ID", "unknown")
    dependencies: list[dict[str, Any]] = [
        {
            "uri": f"urn:goldnode:image-lock:{lock.image}",
            "digest": {"sha256": lock.digest.removeprefix("sha256:")},
        }
        for lock in locks
    ]
    below = (base or {}).get(f"{_BASE}digest")
    if below is not None:
        name = (base or {}).get(f"{_BASE}name") or image.parent
        dependencies.append(
            {"uri": f"oci:{name}", "digest": {"sha256": below.removeprefix("sha256:")}}
        )
    for lock in locks:
        dependencies += [
            {
                "uri": f"pkg:deb/{'goldnode' if row.made else family}/{row.name}@{row.version}"
                f"?arch={row.architecture}",
                "digest": {"sha256": row.sha256},
            }
            for row in lock.debs
        ]
        dependencies += [
            {
                "uri": f"pkg:pypi/{canonicalize_name(row.name)}@{row.version}",
                "name": row.file,
                "digest": {"sha256": row.sha256},
            }
            for row in lock.wheels
        ]
    # An image's lock may repeat packages of its parents' locks.
    unique = {(row["uri"], row["digest"]["sha256"]): row for row in dependencies}
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "image": image.name,
                "backend": image.backend,
                "version": image.version,
                "flavour": image.flavour,
                "os": image.os,
                "lock": {"sha256": built.lock.removeprefix("sha256:")},
            },
            "internalParameters": {
                "recipe": {"sha256": built.recipe.removeprefix("sha256:")},
                "tools": dict(sorted(built.tools.items())),
            },
            "resolvedDependencies": [unique[name] for name in sorted(unique)],
        },
        "runDetails": {
            "builder": {"id": builder, "version": _versions(built.tools, version("goldnode"))},
            "metadata": {"invocationId": built.build_id},
        },
    }
    return statement(image.ref(built.build_id), built.digest, PREDICATE, predicate)


def _versions(tools: Mapping[str, str], own: str) -> dict[str, str]:
    return dict(
        sorted({**{name: str(value) for name, value in tools.items()}, "goldnode": own}.items())
    )
