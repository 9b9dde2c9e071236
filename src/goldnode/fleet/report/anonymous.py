"""A report without names: of nodes, groups, addresses and serial numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from goldnode.documents.fleet_report import FleetDiffDocument, FleetReportDocument
from goldnode.fleet.ingest.keys import KeyKind, kind
from goldnode.fleet.report.fold import fold
from goldnode.node.ground.json_lines import as_text
from goldnode.node.probe.command import INTERNET, PATTERNS

_Document = TypeVar("_Document", FleetReportDocument, FleetDiffDocument)
_IPV6 = r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F]{1,4})+(?![\w:])"
_ADDRESSES = (*PATTERNS, ("SERVER", INTERNET), ("SERVER", _IPV6))
# Of a slot, the same on all nodes.
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Topics and findings whose values are identities as a whole.
_IDENTITIES = ("part", "GPU identity")


def anonymous(found: _Document) -> _Document:
    """Return the document with a placeholder for each name. The same name has the same placeholder everywhere.

    Names of classes, topics and keys remain, and PCI addresses, which name a slot of every machine
    of a model.
    """
    content = found.model_dump(by_alias=True, mode="json")
    nodes = sorted(
        {name for block in _blocks(content) for name in block["names"]} | set(_single(content))
    )
    groups = sorted(set(_groups(content)) - set(nodes))
    names = {name: f"node-{place:0{len(str(len(nodes)))}}" for place, name in enumerate(nodes, 1)}
    names |= {name: f"group-{place}" for place, name in enumerate(groups, 1)}
    result = _Replacer(names).replace(content)
    for block in _blocks(result):
        block["names"] = sorted(block["names"])
        block["folded"] = fold(block["names"])
    if "anonymous" in result:
        result["anonymous"] = True
    return type(found).model_validate_json(json.dumps(result))


def _blocks(content: Any) -> Iterable[dict[str, Any]]:
    """Yield each object that names nodes with their ranges."""
    if isinstance(content, dict):
        if "folded" in content:
            yield content
        for value in content.values():
            yield from _blocks(value)
    elif isinstance(content, list):
        for value in content:
            yield from _blocks(value)


def _single(content: Any) -> Iterable[str]:
    for section in ("nodes", "slow", "slowing", "trends", "lemons"):
        yield from (row["node"] for row in content.get(section, ()))


def _groups(content: Any) -> Iterable[str]:
    yield from (row["group"] for row in content.get("mixed", ()))
    yield from (row["cohort"] for row in content.get("nodes", ()) if row["cohort"])


class _Replacer:
    """Replaces names in all texts of a document."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._words = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
        self._addresses = [(name, re.compile(pattern)) for name, pattern in _ADDRESSES]

    def replace(self, content: Any, key: str = "", whole: bool = False) -> Any:
        """Return a value without names; `whole`: a text is an identity as a whole."""
        if isinstance(content, dict):
            identity = whole or content.get("topic") in _IDENTITIES
            own = identity or _is_identity(as_text(content.get("key")) or "")
            return {
                name: self.replace(value, name, identity or (own and name != "key"))
                for name, value in content.items()
            }
        if isinstance(content, list):
            return [self.replace(value, key, whole) for value in content]
        if not isinstance(content, str) or key in _FIXED:
            return content
        if key in ("expected", "got", "value") and whole and content:
            return self._placeholder("PART", content)
        return self._text(content)

    def _text(self, text: str) -> str:
        if text in self._names:
            return self._names[text]
        for name, pattern in self._addresses:
            text = pattern.sub(self._giver(name), text)
        return self._words.sub(lambda found: self._word(found[0]), text)

    def _word(self, word: str) -> str:
        """Return a word without the names in it, the longest first: `node1-eth0` may name `node1`."""
        pieces = re.split(r"([._-])", word)
        made, start = "", 0
        while start < len(pieces):
            for end in range(len(pieces), start, -2):
                name = self._names.get("".join(pieces[start:end]))
                if name is not None:
                    made, start = made + name, end
                    break
            else:
                made, start = made + pieces[start], start + 1
            if start < len(pieces) and start % 2:
                made, start = made + pieces[start], start + 1
        return made

    def _giver(self, name: str) -> Callable[[re.Match[str]], str]:
        return lambda found: (
            found[0] if _PCI.fullmatch(found[0]) else self._placeholder(name, found[0])
        )

    def _placeholder(self, name: str, text: str) -> str:
        if text not in self._given:
            self._counts[name] = self._counts.get(name, 0) + 1
            self._given[text] = f"{name}-{self._counts[name]}"
        return self._given[text]


# Values that are no names: times, keys, words of the schema.
_FIXED = frozenset(
    {
        *(
            "schema",
            "at",
            "from",
            "to",
            "compared",
            "class",
            "topic",
            "key",
            "severity",
            "domain",
            "evidence",
        ),
        *(
            "state",
            "status",
            "before",
            "after",
            "day",
            "counter",
            "metric",
            "unit",
            "job",
            "platform",
            "baseline",
        ),
        *("source", "basis"),
    }
)


def _is_identity(key: Any) -> bool:
    return isinstance(key, str) and kind(key, number=False) is KeyKind.IDENTITY
