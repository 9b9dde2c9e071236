"""Which two versions of a part may be in one job or one cluster, by the facts of facts/parts.yml.

Nodes of one cohort run jobs together. While a rollout runs, a cohort that does not move whole has
nodes of both states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from goldnode.compat import parts
from goldnode.compat.known_bad import in_range
from goldnode.compat.model import CompatFinding, CompatHost, FindingSubject
from goldnode.facts import host as facts

RULE = "coexistence"
Among = Literal["job", "cluster"]
_WORST = {"fits": 0, "warn": 1, "unknown": 2, "block": 3}
_REMEDY = {
    "job": "give their classes one version of {}, or split the cohort",
    "cluster": "finish the upgrade of all nodes of the cluster",
}


def findings(
    subject: FindingSubject,
    hosts: Sequence[CompatHost],
    among: Sequence[Among] = ("job", "cluster"),
) -> Iterator[CompatFinding]:
    """Yield the findings about parts that nodes of one cohort have in different versions."""
    have = {host.subject: parts.of_host(host) for host in hosts}
    if not any(have.values()):
        return
    for name in facts.load(parts.FILE)["parts"]:
        versions = _by_version(name, have)
        if len(versions) < 2:
            continue
        rows = [row for pair in combinations(versions, 2) if (row := _row(name, pair)) is not None]
        worst = max(rows, key=lambda row: _WORST[row["differ"]], default=None)
        if worst is None or worst["differ"] == "fits" or worst["among"] not in among:
            continue
        shown = "; ".join(f"{version} ({', '.join(who)})" for version, who in versions.items())
        title = parts.title(name)
        yield subject.finding(
            RULE,
            worst["differ"],
            f"its nodes have {title} in different versions, {shown}: {worst['effect']}",
            parts.origins(worst),
            remedy=_REMEDY[worst["among"]].format(title),
        )


def _by_version(name: str, have: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return who has each version of a part, in order; hosts without it, or without a version, are left out."""
    versions: dict[str, list[str]] = {}
    for who, own in have.items():
        if own.get(name):
            versions.setdefault(parts.comparable(own[name]), []).append(who)
    return dict(sorted(versions.items()))


def _row(name: str, pair: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the first row about a part whose conditions both versions meet."""
    for row in facts.load(parts.FILE)["coexist"]:
        both, either = row.get("both"), row.get("either")
        if row["part"] != name or (both and not all(in_range(item, both) for item in pair)):
            continue
        if either and not any(in_range(item, either) for item in pair):
            continue
        return dict(row)
    return None
