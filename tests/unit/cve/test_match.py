"""Carriers and their states: nodes by what runs, locks and images by their packages."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.case_tables import table
from tests.unit.cve.samples import CVE, tracker

from goldnode.cve.bulletins import FactBulletins
from goldnode.cve.claims import DRIVER, OsRelease
from goldnode.cve.debian import DebianTracker
from goldnode.cve.feeds import Feed
from goldnode.cve.match import Inventory, Matcher, ProductComponent, inventory
from goldnode.cve.nodes import NodeFacts
from goldnode.cve.report import CveQuestion, build
from goldnode.cve.subjects import CarriedPackage, CarrierContents, Carriers
from goldnode.documents.cve import CveDocument, CveEntry

BOOKWORM = OsRelease("debian", "12", "bookworm")
AT = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
FIXED = {"bookworm": {"status": "resolved", "fixed_version": "6.1.192-1", "urgency": "high"}}
OPENSSL = {"bookworm": {"status": "resolved", "fixed_version": "3.0.17-1~deb12u2"}}
BACKPORTED = {"bookworm": {"status": "open"}}


def kernel(release: str, version: str) -> CarriedPackage:
    return CarriedPackage(f"linux-image-{release}", version, "linux", version)


def feed(text: str) -> Feed:
    source = DebianTracker(text, {"bookworm"})
    return Feed("debian", "sample", "", "2026-11-27", "given", source)


def lock(name: str, *packages: CarriedPackage, **more: Any) -> CarrierContents:
    return CarrierContents("lock", name, BOOKWORM, packages, digest=f"sha256:{name}", **more)


def node(name: str = "gpu01", **given: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "class_": "h100",
        "captured": "2026-11-28T11:00:00Z",
        "simulated": True,
        "system": BOOKWORM,
        "lock": None,
        "running": "6.1.0-55-amd64",
        "built": None,
        "next_boot": None,
        "installed": (),
        "modules": frozenset(),
        "driver": None,
        "toolkit": None,
        "drift": None,
    }
    if isinstance(given.get("installed"), list):
        given["installed"] = tuple(given["installed"])
    for key in ("modules", "denied", "absent"):
        if isinstance(given.get(key), list):
            given[key] = frozenset(given[key])
    return NodeFacts(name, **{**values, **given})


KERNELS = (
    lock("old", kernel("6.1.0-47-amd64", "6.1.170-1")),
    lock("last", kernel("6.1.0-55-amd64", "6.1.190-1")),
    lock("new", kernel("6.1.0-56-amd64", "6.1.192-1")),
    lock("newer", kernel("6.1.0-56-amd64", "6.1.192-2")),
)


def carriers(*subjects: CarrierContents) -> Carriers:
    held = Carriers()
    for subject in subjects:
        held.add(subject)
    return held


def report(
    listed: Inventory, feeds: Sequence[Feed], *names: str, modules: frozenset[str] = frozenset()
) -> CveDocument:
    matcher = Matcher(feeds, set(names) or None, modules)
    made = build(CveQuestion(names or None, AT), listed, matcher, [])
    content = made.head.model_dump(by_alias=True)
    content["vulnerabilities"] = [json.loads(one.text()) for one in made.entries()]
    return CveDocument.model_validate(content)


def entry(document: CveDocument, name: str = CVE) -> CveEntry:
    return next(one for one in document.vulnerabilities if one.id == name)


@pytest.mark.parametrize("case", table("cve/nodes.yml"), ids=lambda case: case["id"])
def test_node_is_judged_by_what_runs(case: Mapping[str, Any]) -> None:
    modules = frozenset(case.get("modules", ()))
    listed = inventory(carriers(*KERNELS), [node(**case["node"])], modules)
    text = tracker({"linux": {CVE: FIXED}, "linux-6.12": {CVE: BACKPORTED}})
    document = report(listed, [feed(text)], CVE, modules=modules)
    rows = [row for row in entry(document).rows if row.kind == "node"]
    if case["state"] is None:
        assert not rows
        whys = [row.why for row in document.not_judged if row.kind == "node"]
        assert any(case["why"] in why for why in whys), whys
        return
    assert [(row.state, row.names) for row in rows] == [(case["state"], ["gpu01"])], rows
    assert case.get("why", "") in rows[0].why


def test_lock_is_judged_by_its_kernel_and_not_by_headers() -> None:
    headers = CarriedPackage("linux-libc-dev", "6.1.176-1", "linux", "6.1.176-1")
    listed = inventory(carriers(*KERNELS, lock("image", headers)), [])
    rows = entry(report(listed, [feed(tracker({"linux": {CVE: FIXED}}))], CVE)).rows
    states = {name: row.state for row in rows for name in row.names}
    assert states == {"old": "affected", "last": "affected", "new": "fixed", "newer": "fixed"}


def test_kernel_of_two_packages_that_disagree_is_unknown() -> None:
    fixed = {"bookworm": {"status": "resolved", "fixed_version": "6.1.192-2"}}
    listed = inventory(carriers(*KERNELS), [node(running="6.1.0-56-amd64")])
    rows = entry(report(listed, [feed(tracker({"linux": {CVE: fixed}}))], CVE)).rows
    row = next(row for row in rows if row.kind == "node")
    assert (row.state, "6.1.192-1, 6.1.192-2" in row.why) == ("unknown", True)


def test_package_of_the_stack_is_judged_on_nodes_and_a_free_one_is_not_guessed() -> None:
    old = CarriedPackage("libssl3", "3.0.17-1~deb12u1", "openssl", "3.0.17-1~deb12u1")
    base = CarriedPackage("curl", "7.88.1-10+deb12u1", "curl", "7.88.1-10+deb12u1")
    held = lock(
        "stack", kernel("6.1.0-55-amd64", "6.1.190-1"), old, base, held=frozenset({"libssl3"})
    )
    curl = {"bookworm": {"status": "resolved", "fixed_version": "7.88.1-10+deb12u2"}}
    text = tracker({"openssl": {CVE: OPENSSL}, "curl": {"CVE-2026-22222": curl}})
    new = "3.0.17-1~deb12u2"
    nodes = [
        node("as-locked", lock="sha256:stack", drift=()),
        node("upgraded", lock="sha256:stack", drift=(("libssl3", new),)),
        node("removed", lock="sha256:stack", drift=(("libssl3", None),)),
        node("other-lock", lock="sha256:gone", drift=()),
        node("not-compared", lock="sha256:stack", drift=None),
    ]
    document = report(inventory(carriers(held), nodes), [feed(text)], CVE, "CVE-2026-22222")
    states = {name: row.state for row in entry(document).rows for name in row.names}
    assert states == {"stack": "affected", "as-locked": "affected", "upgraded": "fixed"}
    free = {row.state: row.names for row in entry(document, "CVE-2026-22222").rows}
    assert free == {"affected": ["stack"], "unknown": ["as-locked", "removed", "upgraded"]}
    whys = {row.why: row.names for row in document.not_judged if row.kind == "node"}
    assert sorted(name for names in whys.values() for name in names) == [
        "not-compared",
        "other-lock",
    ]


def test_driver_that_waits_for_a_boot_is_not_fixed() -> None:
    stack = lock("stack", kernel("6.1.0-56-amd64", "6.1.192-2"), driver="535.309.01")
    nodes = [
        node("runs", lock="sha256:stack", drift=(), driver="535.309.01", running="6.1.0-56-amd64"),
        node("waits", lock="sha256:stack", drift=(), driver="535.216.01", running="6.1.0-56-amd64"),
        node("none", lock="sha256:stack", drift=(), driver=None, running="6.1.0-56-amd64"),
    ]
    facts = Feed("facts", "facts", "", "2026-11-21", "the facts", FactBulletins())
    rows = entry(
        report(inventory(carriers(stack), nodes), [facts], "CVE-2025-23280"), "CVE-2025-23280"
    ).rows
    states = {name: row.state for row in rows for name in row.names}
    assert states == {"stack": "fixed", "runs": "fixed", "waits": "fix-not-booted", "none": "fixed"}


def test_affected_driver_without_its_module_is_not_loaded() -> None:
    facts = Feed("facts", "facts", "", "2026-11-21", "the facts", FactBulletins())
    verdicts = {
        one.cve: one
        for one in Matcher([facts]).verdicts(ProductComponent(DRIVER, "535.216.01", loaded=False))
    }
    assert verdicts["CVE-2025-23280"].state == "not-loaded"


def test_vulnerability_without_a_record_is_not_called_fixed() -> None:
    document = report(
        inventory(carriers(*KERNELS), []),
        [feed(tracker({"linux": {CVE: FIXED}}))],
        "CVE-2026-99999",
    )
    assert (document.no_record, document.vulnerabilities) == (["CVE-2026-99999"], [])


def test_vulnerability_of_a_package_that_nothing_carries_has_no_rows() -> None:
    text = tracker(
        {"linux": {"CVE-2026-1000": FIXED}, "vlc": {CVE: {"bookworm": {"status": "open"}}}}
    )
    document = report(inventory(carriers(*KERNELS), []), [feed(text)], CVE)
    assert (entry(document).rows, document.no_record) == ([], [])


def test_all_leaves_out_what_is_fixed_everywhere() -> None:
    gone = {"bookworm": {"status": "resolved", "fixed_version": "6.1.100-1"}}
    text = tracker({"linux": {CVE: FIXED, "CVE-2024-1000": gone}})
    document = report(inventory(carriers(*KERNELS), []), [feed(text)])
    assert [one.id for one in document.vulnerabilities] == [CVE]
    assert entry(document).counts == {"lock": {"affected": 2, "fixed": 2}}


def test_release_that_no_data_cover_is_named() -> None:
    listed = inventory(carriers(*KERNELS), [])
    trixie = tracker({"linux": {CVE: {"trixie": {"status": "open"}}}})
    document = report(listed, [feed(trixie)], CVE)
    assert [row.why for row in document.not_judged] == ["no data cover the packages of debian 12"]


def test_fix_that_is_withdrawn_makes_nodes_affected_again() -> None:
    listed = inventory(carriers(*KERNELS), [node(running="6.1.0-56-amd64")])
    later = tracker({"linux": {CVE: {"bookworm": {"status": "open", "urgency": "high"}}}})
    states = [
        next(
            row.state for row in entry(report(listed, [feed(text)], CVE)).rows if row.kind == "node"
        )
        for text in (tracker({"linux": {CVE: FIXED}}), later)
    ]
    assert states == ["fixed", "affected"]


def random_nodes(draw: random.Random, number: int) -> list[NodeFacts]:
    releases = ["6.1.0-47-amd64", "6.1.0-55-amd64", "6.1.0-56-amd64", "6.1.0-99-amd64"]
    nodes = []
    for count in range(number):
        installed = tuple(draw.sample(releases, draw.randrange(4)))
        nodes.append(
            node(
                f"node{count:02d}",
                running=draw.choice([*releases, None]),
                built=draw.choice([None, None, "#1 SMP Debian 6.1.191-1 (2026-11-01)"]),
                installed=installed,
                next_boot=draw.choice([None, *installed]),
                modules=draw.choice([None, frozenset(), frozenset({"algif_aead", "nvidia"})]),
                lock=draw.choice([None, "sha256:stack", "sha256:gone"]),
                drift=draw.choice([None, (), (("libssl3", "3.0.17-1~deb12u2"),)]),
                driver=draw.choice([None, "535.216.01", "535.309.01"]),
            )
        )
    return nodes


@pytest.mark.parametrize("seed", range(12))
def test_node_of_a_fleet_is_judged_as_one_that_is_alone(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - no secret
    old = CarriedPackage("libssl3", "3.0.17-1~deb12u1", "openssl", "3.0.17-1~deb12u1")
    stack = lock("stack", old, driver="535.309.01", held=frozenset({"libssl3"}))
    known = carriers(*KERNELS, stack)
    text = tracker({"linux": {CVE: FIXED}, "openssl": {"CVE-2026-22222": OPENSSL}})
    facts = Feed("facts", "facts", "", "2026-11-21", "the facts", FactBulletins())
    names, modules = (CVE, "CVE-2026-22222", "CVE-2025-23280"), frozenset({"algif_aead"})

    def rows(nodes: Sequence[NodeFacts]) -> set[tuple[str, ...]]:
        document = report(
            inventory(known, nodes, modules), [feed(text), facts], *names, modules=modules
        )
        return {
            (one.id, row.state, row.package, row.version, row.why, name)
            for one in document.vulnerabilities
            for row in one.rows
            for name in row.names
            if row.kind == "node"
        } | {("", row.why, name) for row in document.not_judged for name in row.names}

    nodes = random_nodes(draw, 30)
    alone = [rows([one]) for one in nodes]
    assert rows(nodes) == set().union(*alone)
