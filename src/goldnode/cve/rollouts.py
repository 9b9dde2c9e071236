"""The rollout of a fix to one class: a document of the security lane, made from what nodes report and the lock holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from goldnode.catalog.models import EvidenceRule
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SOAK, SiteCve
from goldnode.cve.lane import LaneFacts
from goldnode.cve.prepare import NEEDED
from goldnode.evidence.vulnerabilities import level

# Canaries: as many as a normal rollout of this size has, at most; the rest follows in three waves.
_CANARIES, _SHARE = 8, 20
_LEAST = 2  # one failure is within the usual rate: a wave of one node stops no rollout
_FEW = 4  # nodes that need no wave between the canary and all


@dataclass(frozen=True)
class FixRollout:
    """The text of a document, and the nodes that it does not move, with the lock that they report."""

    text: str
    others: Mapping[str, str]


def soak(settings: SiteCve, severity: str) -> str:
    """Return the soak of a wave for a severity, by the rule of the site."""
    known = level(severity)
    chosen = {**SOAK, **settings.soak}
    return next((text for name, text in chosen.items() if name == known), chosen["not stated"])


def document(
    facts: LaneFacts,
    class_: str,
    digest: str,
    settings: SiteCve,
    *,
    overrides: Mapping[str, str] | None = None,
    evidence: EvidenceRule | None = None,
) -> FixRollout:
    """Return the document that moves a class to the lock with digest `digest`, which has the fix.

    `evidence` is what the class asks for: each wave waits for it. Raises GoldnodeError if lock or module are not
    ready, or if no node reports a lock to move from.
    """
    stack = facts.stacks[class_]
    for part, why in facts.missing(class_):
        if part in NEEDED:
            raise GoldnodeError(
                f"the {part} of {stack} is not ready for the fix of {facts.cve}: {why}",
                remedy=f"run goldnode cve prepare {facts.cve} --class {class_}",
            )
    nodes = [node for node in facts.nodes if node.class_ == class_]
    locks = Counter(node.lock for node in nodes if node.lock is not None and node.lock != digest)
    if not locks:
        raise GoldnodeError(
            f"no node of {class_} reports another lock than {digest[:19]}",
            remedy="converge nodes that are left with site.yml, or collect captures of today",
        )
    # Nodes of another lock than most are reported by the rollout and not touched.
    origin = min(locks, key=lambda name: (-locks[name], name))
    others = {node.name: node.lock or "none" for node in nodes if node.lock not in (origin, digest)}
    severity = facts.entry.severity if facts.entry is not None else "not stated"
    content: dict[str, Any] = {
        "schema": "goldnode.rollout/1",
        "rollout": f"{facts.cve.lower()}-{class_}",
        "class": class_,
        "from": {"stack": stack, "lock": origin},
        "to": {"stack": stack, "lock": digest},
        "lane": "security",
        "waves": _waves(len(nodes), soak(settings, severity)),
        "require": [{"boot": {}}, *_evidence(evidence)],
        "on_fail": {"do": "rollback", "what": "wave"},
    }
    if overrides:
        content["override_calendars"] = dict(overrides)
    head = f"# The fix of {facts.cve} ({severity}) for class {class_}. Check it: goldnode rollout check\n"
    return FixRollout(head + yaml.safe_dump(content, sort_keys=False), others)


def _evidence(rule: EvidenceRule | None) -> list[dict[str, Any]]:
    """Return the requirement that a class with such a rule asks of a rollout of it."""
    if rule is None:
        return []
    limit = {} if rule.max_age_days is None else {"max_age": f"{rule.max_age_days}d"}
    return [{"evidence": {"kinds": list(rule.kinds), **limit}}]


def _waves(nodes: int, pause: str) -> list[dict[str, Any]]:
    canaries = min(_CANARIES, max(_LEAST, math.ceil(nodes / _SHARE)))
    if nodes <= _LEAST:  # one goes first, and a person judges it
        canaries = 1
    waves: list[dict[str, Any]] = [{"name": "canary", "nodes": canaries, "soak": pause}]
    if nodes - canaries > _FEW:
        waves += [
            {"name": "quarter", "percent": "25%", "soak": pause},
            {"name": "half", "percent": "50%", "soak": pause},
        ]
    if nodes > canaries:
        waves.append({"name": "all", "percent": "100%"})
    return waves
