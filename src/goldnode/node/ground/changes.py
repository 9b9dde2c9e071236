"""Differences of two reports: the values that changed, by the number of the value, and subtrees whose form changed.

A controller that has the base makes the same report of it (`goldnode.fleet.ingest.wire`). Values are numbered in the order of
sorted keys: a number takes a byte or two in place of a path, and equal parts have equal distances.
"""

from __future__ import annotations

import json
from hashlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

CHANGES = "goldnode.node-changes/1"  # schema of the document
BASE_HEADER = (
    "Goldnode-Base"  # of a request with a whole report; "hold": changes from it will follow
)
REPORTED = ("class", "engine", "capture", "verdict", "gate")  # keys of a report that changes are of
DIGEST = 32  # characters of the sha256 that names a base


def report_body(report: Mapping[str, Any]) -> bytes:
    """Return the bytes of a report as it is sent, which the digest of a base is of."""
    content = {key: report[key] for key in REPORTED if report.get(key) is not None}
    content.update(schema=report["schema"], node=report["node"])
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def base_digest(body: bytes) -> str:
    """Return the name of a base."""
    return sha256(body).hexdigest()[:DIGEST]


def is_branch(value: Any) -> bool:
    """Return whether a value has values of its own: an object, or a list of objects or lists. Others are one value each."""
    if type(value) is list:
        return any(type(one) is dict or type(one) is list for one in value)
    return type(value) is dict and bool(value)


def count_values(value: Any) -> int:
    """Return how many numbers the values in a tree take."""
    if not is_branch(value):
        return 1
    return sum(map(count_values, value.values() if type(value) is dict else value))


class ChangedValues:
    """The changes of one report from its base."""

    def __init__(self, base: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        self._next = self._last = 0
        self.gaps: List[int] = []
        self.values: List[Any] = []
        self.trees: List[List[Any]] = []
        self._compare(_chosen(base), _chosen(report), [])

    def document(self, node: str, base: str) -> Dict[str, Any]:
        """Return the document of a node with these changes from the base of this digest."""
        return {
            "schema": CHANGES,
            "node": node,
            "base": base,
            "at": self.gaps,
            "to": self.values,
            "trees": self.trees,
        }

    def _compare(self, old: Any, new: Any, path: List[Any]) -> None:
        if not is_branch(old):
            if is_branch(new):
                self._tree(path, new)
            elif old is not new and (type(old) is not type(new) or repr(old) != repr(new)):
                self.gaps.append(self._next - self._last)
                self._last = self._next
                self.values.append(new)
            self._next += 1
        elif type(old) is dict and type(new) is dict:
            for key in sorted(old):
                if key in new:
                    self._compare(old[key], new[key], [*path, key])
                else:
                    self.trees.append([[*path, key]])
                    self._next += count_values(old[key])
            for key in new:
                if key not in old:
                    self._tree([*path, key], new[key])
        elif type(old) is list and type(new) is list and len(old) == len(new):
            for place, (one, other) in enumerate(zip(old, new)):
                self._compare(one, other, [*path, place])
        else:
            self._tree(path, new)
            self._next += count_values(old)

    def _tree(self, path: List[Any], value: Any) -> None:
        self.trees.append([path, value])


def _chosen(report: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: report[key] for key in REPORTED if report.get(key) is not None}
