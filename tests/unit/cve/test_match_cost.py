"""Cost of matching, in calls: it grows with the distinct sets of packages and kernels, never with the nodes."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from tests.unit.cve.samples import tracker
from tests.unit.cve.test_match import AT, KERNELS, carriers, feed, lock, node

from goldnode.cve import claims
from goldnode.cve.match import Inventory, Matcher, inventory
from goldnode.cve.nodes import NodeFacts
from goldnode.cve.report import CveQuestion, CveSummary, build
from goldnode.cve.subjects import CarriedPackage
from goldnode.node.state import debversion

RELEASES = ("6.1.0-47-amd64", "6.1.0-55-amd64", "6.1.0-56-amd64")
LIBRARY = CarriedPackage("libssl3", "3.0.17-1", "openssl", "3.0.17-1")
STACK = lock("stack", LIBRARY, held=frozenset({"libssl3"}))
VERSIONS = ("6.1.180-1", "6.1.191-1", "6.1.192-2")


def fixed(version: str) -> dict[str, Any]:
    return {"bookworm": {"status": "resolved", "fixed_version": version}}


def data(cves: int) -> str:
    answers = [*map(fixed, VERSIONS), {"bookworm": {"status": "open"}}]
    kernel = {f"CVE-2026-{1000 + number}": answers[number % 4] for number in range(cves)}
    library = {"CVE-2026-9000": fixed("3.0.18-1"), "CVE-2026-9001": fixed("3.0.19-1")}
    return tracker({"linux": kernel, "openssl": library})


def fleet(nodes: int) -> list[NodeFacts]:
    """Return nodes that have every pair of kernels, more than once. The first runs a backport, which is always unknown."""
    pairs = [(running, other) for running in RELEASES for other in RELEASES]
    return [
        node(
            f"node{number:05d}",
            running=pairs[number % 9][0],
            installed=pairs[number % 9],
            built=None if number else "#1 SMP Debian 6.1.150-1~bpo12+1 (2026-01-01)",
            next_boot=pairs[number % 9][number // 9 % 2],
            lock="sha256:stack",
            drift=(("libssl3", "3.0.18-1"),) if number % 3 == 0 else (),
        )
        for number in range(nodes)
    ]


def listed(nodes: int) -> Inventory:
    return inventory(carriers(*KERNELS, STACK), fleet(nodes))


def judged(listing: Inventory, cves: int) -> list[CveSummary]:
    report = build(CveQuestion(None, AT), listing, Matcher([feed(data(cves))]), [])
    return list(report.entries())


def calls(nodes: int, cves: int) -> int:
    """Return the number of calls of Python functions that judge a fleet and write its entries."""
    listing, count = listed(nodes), 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "/goldnode/" in frame.f_code.co_filename

    before = sys.getprofile()
    claims.below.cache_clear()
    sys.setprofile(seen)
    try:
        texts = [entry.text() for entry in judged(listing, cves)]
    finally:
        sys.setprofile(before)
    assert len(texts) == cves + 2
    return count


def test_matching_of_ten_times_the_nodes_makes_as_many_calls() -> None:
    few, many = calls(90, 12), calls(900, 12)
    assert few == many


def test_vulnerabilities_with_the_same_fix_or_none_share_rows_and_their_text() -> None:
    entries = judged(listed(90), 60)
    assert len({id(entry.judged) for entry in entries}) == len(VERSIONS) + 3


def test_version_is_compared_once_with_each_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(version: str, bound: str) -> int:
        compared.append((version, bound))
        return debversion.compare(version, bound)

    monkeypatch.setattr(claims.compared, "__defaults__", (compare,))
    claims.below.cache_clear()
    judged(listed(90), 60)
    assert len(compared) == len(set(compared))
    assert len(compared) == 4 * len(VERSIONS) + 4


def unlocked() -> Inventory:
    """Return nodes whose kernels no lock has: only the kernels that run differ in their answers."""
    built = [
        f"#1 SMP Debian {version} (2026-01-01)" for version in ("6.1.150-1~bpo12+1", "6.1.190-1")
    ]
    nodes = [node(f"node{number}", built=text) for number, text in enumerate(built)]
    return inventory(carriers(STACK), nodes)


@pytest.mark.parametrize("listing", [listed(90), unlocked()], ids=["locked", "unlocked"])
@pytest.mark.parametrize("cached", [4_000_000, 500, 0])
def test_rows_are_the_same_however_many_are_stored(
    cached: int, listing: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def texts(wanted: Sequence[str] | None) -> dict[str, str]:
        names = None if wanted is None else tuple(wanted)
        matcher = Matcher([feed(data(30))], None if wanted is None else set(wanted))
        report = build(CveQuestion(names, AT), listing, matcher, [])
        return {entry.id: entry.text() for entry in report.entries()}

    alone: dict[str, str] = {}
    for name in texts(None):
        alone.update(texts([name]))
    monkeypatch.setattr("goldnode.cve.report._CACHED", cached)
    assert texts(None) == alone


def test_text_of_an_entry_is_json_with_sorted_keys() -> None:
    draw = random.Random(3)  # noqa: S311 - no secret
    for entry in judged(listed(draw.randrange(20, 60)), 5):
        content = json.loads(entry.text())
        assert entry.text() == json.dumps(content, sort_keys=True, ensure_ascii=False)
        assert [row["names"] for row in content["rows"]] == [row.names for row in entry.rows]
        assert (content["counts"], content["id"]) == (entry.counts, entry.id)
