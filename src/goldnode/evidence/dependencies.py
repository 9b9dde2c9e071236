"""Packages and keys of the class document that a proof depends on, and which of them have changed.

The lists are in the signed statement. So a class whose lock changes by one package makes exactly those proofs stale
that depend on the package, and the change is named without the old lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.documents.evidence import EvidenceDepends
from goldnode.evidence.statements import Proof
from goldnode.node.ground.json_lines import as_dict

_LONGEST = 60  # characters of a value that a statement repeats
DETAIL = 3  # levels of keys, as in policy.clocks.graphics_mhz
_FACTS = ("health", "xid")  # sections of a class document that are compiled from the facts
_DEVICE = ("gpu", "platform", "kernel", "driver")


@dataclass(frozen=True)
class _Needs:
    """Parts of the lock (see `LockedPackage.part`) and sections of the class document that a kind depends on."""

    parts: frozenset[str]
    sections: tuple[str, ...]


_MODULE = frozenset({"kernel", "driver", "module"})
_NEEDS: dict[EvidenceKind, _Needs] = {
    # The check judges the whole class: each package, each setting and each limit.
    "boot": _Needs(
        _MODULE | {"runtime", "base"},
        (
            *_DEVICE,
            "os",
            "runtime",
            "modules",
            "blacklist",
            "fence",
            "policy",
            "baseline",
            "parts",
            *_FACTS,
        ),
    ),
    # Speed depends on what the GPU runs with and on its settings.
    "canary": _Needs(_MODULE, (*_DEVICE, "policy")),
    "floors": _Needs(_MODULE, (*_DEVICE, "policy")),
    "dual": _Needs(_MODULE, _DEVICE),
    # A container sees the driver through the toolkit.
    "smoke": _Needs(frozenset({"driver", "runtime"}), ("gpu", "driver", "runtime")),
    "disk": _Needs(
        _MODULE | {"runtime", "base"},
        ("os", "kernel", "driver", "runtime", "modules", "blacklist", "fence", "policy"),
    ),
    "prove-gpu": _Needs(_MODULE, (*_DEVICE, "policy", "baseline", *_FACTS)),
    "module-build": _Needs(frozenset({"kernel", "module"}), ("kernel",)),
}
_DRIVER_KEYS = ("version", "flavour", "module", "dkms")  # of the driver, for a module's build


@dataclass(frozen=True)
class DependencyChange:
    """One difference between a proof and the class of today. `old` and `new` are None where there is no such item."""

    sort: str  # package, class, facts or tool
    name: str
    old: str | None
    new: str | None

    def text(self) -> str:
        """Return the change on one line."""
        return f"{self.sort} {self.name}: {self.old or 'none'} -> {self.new or 'none'}"


def snapshot(
    kind: EvidenceKind, document: Mapping[str, Any], detail: int = DETAIL
) -> EvidenceDepends:
    """Return what a proof of this kind depends on.

    :param detail: levels of keys; fewer make a shorter list, in which a change is named less exactly.
    """
    needs = _NEEDS[kind]
    driver = as_dict(document.get("driver"))
    dkms = as_dict(driver.get("dkms")).get("package")
    packages = {
        row["name"]: f"{row['version']} {row['sha256'][:12]}"
        for row in document["packages"]
        if row["part"] in needs.parts or (kind == "module-build" and row["name"] == dkms)
    }
    fields: dict[str, str] = {}
    for section in needs.sections:
        value = document.get(section)
        if section == "health":
            # The baseline of the class, again.
            value = {key: row for key, row in as_dict(value).items() if key != "baseline"}
        # The table of Xid errors alone would fill a statement.
        fields |= _leaves(section, value, 1 if section == "xid" else detail)
    if kind == "module-build":
        for key in _DRIVER_KEYS:
            fields |= _leaves(f"driver.{key}", driver.get(key), detail - 1)
    return EvidenceDepends(packages=packages, fields=fields, detail=detail)


def _leaves(path: str, value: Any, detail: int) -> Iterator[tuple[str, str]]:
    """Yield key and value of every leaf below a key, down to `detail` levels. Missing and null are the same."""
    if value is None:
        return
    if isinstance(value, dict) and detail > 1:
        for key, inner in sorted(value.items()):
            yield from _leaves(f"{path}.{key}", inner, detail - 1)
        return
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) > _LONGEST:
        text = f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    yield path, text


def changes(
    proof: Proof, document: Mapping[str, Any], tools: Mapping[str, str]
) -> list[DependencyChange]:
    """Return what has changed since a proof was made; empty: it is current.

    :param document: the class document of today.
    :param tools: versions of today, by the names in the statement. A tool without one is not compared.
    """
    was = proof.predicate.depends
    now = snapshot(proof.kind, document, was.detail)
    rows = [
        DependencyChange("package", name, was.packages.get(name), now.packages.get(name))
        for name in sorted({*was.packages, *now.packages})
    ]
    rows += [
        DependencyChange(
            "facts" if name.partition(".")[0] in _FACTS else "class",
            name,
            was.fields.get(name),
            now.fields.get(name),
        )
        for name in sorted({*was.fields, *now.fields})
    ]
    rows += [
        DependencyChange("tool", name, version, tools[name])
        for name, version in sorted(proof.predicate.tools.items())
        if name in tools
    ]
    return [row for row in rows if row.old != row.new]
