"""The CycloneDX SBOM of a release: the wheel, and every package of every extra with its hashes and licence."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from goldnode.core.extras import EXTRAS as MODULES
from goldnode.evidence import licences
from goldnode.evidence.cyclonedx_bom import validate
from release import dependencies, locked

_NAMESPACE = uuid.UUID("5f0f6f6c-646e-5f64-9573-626f6d730002")
EXTRAS = tuple(sorted(MODULES))


def document(version: str, artifacts: list[Path], epoch: int, tree: Path) -> bytes:
    """Return the SBOM as bytes of JSON, valid against the official schema.

    Components are the distributions of this environment that goldnode requires, with the extras as optional.
    Their hashes are those of `requirements/all.lock` in `tree`, and licences come from their metadata.
    `artifacts` are the files of the release; `epoch` (seconds) is the time in the document.
    """
    base, every = closure(("",)), closure(("", *EXTRAS))
    hashes, decided = locked.hashes(tree), dependencies.decisions(tree)
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in artifacts}
    root = f"pkg:pypi/goldnode@{version}"
    refs = {name: f"pkg:pypi/{name}@{distribution(name).version}" for name in every}
    components = [
        {
            "type": "library",
            "bom-ref": refs[name],
            "name": name,
            "version": distribution(name).version,
            "purl": refs[name],
            "scope": "required" if name in base else "optional",
            "licenses": [{"expression": licence_of(name, decided)}],
            "externalReferences": [_distribution(name, hashes)],
        }
        for name in sorted(every)
    ]
    about = {
        "type": "application",
        "bom-ref": root,
        "name": "goldnode",
        "version": version,
        "purl": root,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "components": [
            {
                "type": "file",
                "bom-ref": name,
                "name": name,
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for name, digest in sorted(sums.items())
        ],
    }
    direct = sorted(refs[name] for name in _direct("goldnode", ("", *EXTRAS)))
    found: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, json.dumps(sums, sort_keys=True))}",
        "version": 1,
        "metadata": {
            "timestamp": dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": about,
        },
        "components": components,
        "dependencies": [
            {"ref": root, "dependsOn": direct},
            *(
                {"ref": refs[name], "dependsOn": sorted(refs[other] for other in needs)}
                for name, needs in sorted(every.items())
            ),
        ],
    }
    data = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    validate(data)
    return data


def packages() -> dict[str, str]:
    """Return name -> version of every package of every extra in this environment."""
    return {name: distribution(name).version for name in sorted(closure(("", *EXTRAS)))}


def licence_of(name: str, decided: dict[str, dependencies.Decision]) -> str:
    """Return the licence of a distribution as SPDX expression, of its metadata or as decided; NOASSERTION else."""
    headers: dict[str, list[str]] = {}
    metadata = distribution(name).metadata
    for key in metadata:
        headers[key.lower()] = metadata.get_all(key) or []
    stated = licences.wheel(headers)
    row = decided.get(name)
    if row is not None and row.licence and (stated is None or licences.references(stated)):
        return row.licence
    return stated or "LicenseRef-NOASSERTION"


def _distribution(name: str, hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    """Return where the files of a distribution are, with the hash of each: one for every platform and the source."""
    version = distribution(name).version
    return {
        "type": "distribution",
        "url": f"pkg:pypi/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": row} for row in hashes[name, version]],
    }


def closure(extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Return every distribution that goldnode with `extras` requires, each with those that it requires itself."""
    found: dict[str, set[str]] = {}
    todo = [(name, wanted) for name, wanted in _direct("goldnode", extras).items()]
    while todo:
        name, wanted = todo.pop()
        needs = _direct(name, ("", *sorted(wanted)))
        if name in found and needs.keys() <= found[name]:
            continue
        found[name] = found.get(name, set()) | needs.keys()
        todo += needs.items()
    return found


def _direct(name: str, extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the distributions that one requires here, each with the extras that it asks for."""
    found: dict[str, set[str]] = {}
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ):
            found.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    return found
