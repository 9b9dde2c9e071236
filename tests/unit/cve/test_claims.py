"""Claims of trackers and vendors, by case tables: `tests/cases/cve`."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.case_tables import table
from tests.unit.cve.samples import (
    CVE,
    bulletin,
    osv_record,
    oval_debian,
    oval_ubuntu,
    toolkit_bulletin,
    tracker,
)

from goldnode.cve.claims import DRIVER, TOOLKIT, ClaimState, OsRelease
from goldnode.cve.csaf import CsafDocuments
from goldnode.cve.debian import DebianTracker, top_level
from goldnode.cve.nodes import kernel_version
from goldnode.cve.osv import OsvRecords, cves_of
from goldnode.cve.oval import OvalDefinitions
from goldnode.evidence.sources import source_of_path

BOOKWORM = OsRelease("debian", "12", "bookworm")
NOBLE = OsRelease("ubuntu", "24.04", "noble")


@pytest.mark.parametrize("case", table("cve/tracker.yml"), ids=lambda case: case["id"])
def test_tracker_row_gives_the_answer(case: dict[str, Any]) -> None:
    data = DebianTracker(tracker({"linux": {CVE: {"bookworm": case["row"]}}}), {"bookworm"})
    judged = data.claims(BOOKWORM, "linux")[CVE].judge(str(case["version"]))
    expected = (case["state"], case.get("word", ""))
    assert (judged.state.value, judged.word) == expected, judged.why
    if case["state"] == "affected":
        assert judged.fixed == case.get("fixed")


def test_package_without_a_row_has_no_claim() -> None:
    data = DebianTracker(tracker({"linux": {CVE: {"trixie": {"status": "open"}}}}), {"bookworm"})
    assert not data.claims(BOOKWORM, "linux")
    assert not data.claims(BOOKWORM, "openssl")
    assert (data.knows(CVE), data.knows("CVE-2026-9")) == ("", None)
    assert not data.covers(BOOKWORM)


@pytest.mark.parametrize("case", table("cve/sources.yml"), ids=lambda case: case["name"])
def test_source_of_a_file_is_the_tracked_one(case: dict[str, Any]) -> None:
    assert source_of_path(case["path"], case["name"], case["version"]) == (
        case["source"],
        case["own"],
    )


@pytest.mark.parametrize("case", table("cve/kernels.yml"), ids=lambda case: str(case["built"]))
def test_running_kernel_names_its_package(case: dict[str, Any]) -> None:
    assert kernel_version(case["release"], case["built"]) == case["version"]


@pytest.mark.parametrize("case", table("cve/osv.yml"), ids=lambda case: case["id"])
def test_osv_records_give_the_answer(case: dict[str, Any]) -> None:
    records = [osv_record(name, "openssl", events) for name, events in case["records"].items()]
    claim = OsvRecords(records).claims(BOOKWORM, "openssl")["CVE-2026-1001"]
    answers = {version: claim.judge(str(version)).state.value for version in case["answers"]}
    assert answers == case["answers"]


def test_osv_record_of_ubuntu_names_its_cve_in_upstream() -> None:
    record = osv_record(
        "UBUNTU-CVE-2026-1001",
        "linux",
        [{"introduced": "0"}, {"fixed": "6.8.0-63.66"}],
        "Ubuntu:24.04:LTS",
    )
    data = OsvRecords([record])
    claims = data.claims(NOBLE, "linux")
    assert list(claims) == ["CVE-2026-1001"]
    assert claims["CVE-2026-1001"].judge("6.8.0-60.63").state is ClaimState.AFFECTED
    assert claims["CVE-2026-1001"].judge("6.8.0-63.66").state is ClaimState.FIXED
    assert data.covers(NOBLE)


def test_fix_that_ubuntu_pro_alone_has_leaves_the_release_affected() -> None:
    """Ubuntu lists such a fix under the release of Pro only: `Ubuntu:Pro:24.04:LTS`."""
    pro, both = "UBUNTU-CVE-2026-2001", "UBUNTU-CVE-2026-2002"
    later = [{"introduced": "0"}, {"fixed": "3.0.2-0ubuntu1.10+esm1"}]
    data = OsvRecords(
        [
            osv_record(pro, "openssl", later, "Ubuntu:Pro:24.04:LTS"),
            osv_record(both, "openssl", later, "Ubuntu:Pro:24.04:LTS"),
            osv_record(both, "openssl", [later[0], {"fixed": "3.0.1"}], "Ubuntu:24.04:LTS"),
        ]
    )
    assert data.covers(NOBLE)
    claims = data.claims(NOBLE, "openssl")
    answer = claims["CVE-2026-2001"].judge("3.0.2-0ubuntu1.10")
    assert (answer.state, answer.fixed) == (ClaimState.AFFECTED, "3.0.2-0ubuntu1.10+esm1")
    # What the record of the release itself states wins.
    assert claims["CVE-2026-2002"].judge("3.0.2-0ubuntu1.10").state is ClaimState.FIXED


def test_osv_record_that_was_withdrawn_applies_to_nothing() -> None:
    record = json.loads(osv_record("DEBIAN-CVE-2026-1001", "openssl", [{"introduced": "0"}]))
    data = OsvRecords([json.dumps([{**record, "withdrawn": "2026-11-01T00:00:00Z"}]).encode()])
    assert not data.claims(BOOKWORM, "openssl")
    assert data.knows("CVE-2026-1001") == "withdrawn on 2026-11-01"


def test_osv_record_without_a_cve_keeps_its_id() -> None:
    assert cves_of({"id": "GHSA-aaaa-bbbb-cccc"}) == ["GHSA-aaaa-bbbb-cccc"]
    assert cves_of(
        {"id": "DSA-1-1", "upstream": ["CVE-2026-1001", "CVE-2026-1002", "DEBIAN-CVE-2026-1001"]}
    ) == ["CVE-2026-1001", "CVE-2026-1002"]


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("570.172.08", ClaimState.AFFECTED),
        ("570.195.03", ClaimState.FIXED),
        ("535.261.03", ClaimState.AFFECTED),
        ("1:535.274.02-1~deb12u1", ClaimState.FIXED),
        ("550.163.01", ClaimState.UNKNOWN),  # not listed, and older branches may be affected
        ("595.71.05", ClaimState.UNKNOWN),  # newer than the bulletin
        ("none", ClaimState.UNKNOWN),
    ],
)
def test_bulletin_judges_a_driver_by_its_branch(version: str, state: ClaimState) -> None:
    claim = CsafDocuments([bulletin()]).claims(None, DRIVER)["CVE-2025-23280"]
    assert claim.judge(version).state is state


def test_bulletin_for_windows_and_virtual_gpus_is_none_of_the_driver() -> None:
    assert "CVE-2025-23309" not in CsafDocuments([bulletin()]).claims(None, DRIVER)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.17.4-1", ClaimState.AFFECTED),
        ("1.17.7-1", ClaimState.AFFECTED),
        ("1.17.8-1", ClaimState.FIXED),
    ],
)
def test_condition_in_brackets_is_no_bound(version: str, state: ClaimState) -> None:
    """The text goes on with "(CDI mode only for versions prior to 1.17.5)"."""
    for fixed in (True, False):
        claim = CsafDocuments([toolkit_bulletin(fixed=fixed)]).claims(None, TOOLKIT)[
            "CVE-2025-23266"
        ]
        assert claim.judge(version).state is state


def test_product_with_a_flag_is_not_affected() -> None:
    status = {"known_not_affected": ["toolkit"]}
    data = CsafDocuments([toolkit_bulletin(status=status, label="vulnerable_code_not_present")])
    judged = data.claims(None, TOOLKIT)["CVE-2025-23266"].judge("1.17.4-1")
    assert judged.state is ClaimState.NOT_AFFECTED
    assert "vulnerable code not present" in judged.why


def test_product_under_investigation_is_unknown() -> None:
    data = CsafDocuments([toolkit_bulletin(status={"under_investigation": ["toolkit"]})])
    judged = data.claims(None, TOOLKIT)["CVE-2025-23266"].judge("1.17.4-1")
    assert (judged.state, "under investigation" in judged.why) == (ClaimState.UNKNOWN, True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.sampled_from([None, 0, 2]))
def test_streamed_object_is_that_of_json(value: dict[str, Any], indent: int | None) -> None:
    assert dict(top_level(json.dumps(value, indent=indent))) == value


@given(st.dictionaries(st.text(max_size=4), JSON, min_size=1, max_size=3), st.data())
def test_streamed_object_that_is_cut_short_is_refused(
    value: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value)
    end = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ValueError):  # noqa: PT011 - json's own texts
        list(top_level(text[:end]))


@given(JSON)
def test_reader_of_any_json_refuses_it_or_reads_it(value: Any) -> None:
    text = json.dumps(value)
    for read in (
        lambda: DebianTracker(text, {"bookworm"}),
        lambda: OsvRecords([text.encode()]),
        lambda: CsafDocuments([text.encode()]),
    ):
        try:
            read()
        except ValueError:
            continue


@given(JSON, JSON, JSON)
def test_reader_of_any_affected_part_answers(ranges: Any, events: Any, versions: Any) -> None:
    package = {"ecosystem": "Debian:12", "name": "openssl"}
    for spans in (ranges, [{"type": "ECOSYSTEM", "events": events}]):
        part = {"package": package, "ranges": spans, "versions": versions}
        record = {"id": "CVE-2026-1234", "affected": [part]}
        claims = OsvRecords([json.dumps(record).encode()]).claims(BOOKWORM, "openssl")
        assert claims["CVE-2026-1234"].judge("1.0-1").state in ClaimState


@given(JSON, JSON)
def test_reader_of_any_product_tree_answers(tree: Any, status: Any) -> None:
    content = {
        "document": {"csaf_version": "2.0"},
        "product_tree": tree,
        "vulnerabilities": [{"cve": CVE, "product_status": status}],
    }
    data = CsafDocuments([json.dumps(content).encode()])
    assert data.knows(CVE) == ""


@pytest.mark.parametrize("case", table("cve/oval_ubuntu.yml"), ids=lambda case: case["comment"])
def test_comment_of_ubuntus_oval_gives_the_answer(case: dict[str, Any]) -> None:
    title = f"{CVE} on Ubuntu 24.04 LTS (noble) - high"
    data = OvalDefinitions([io.BytesIO(oval_ubuntu((title, [case["comment"]])))])
    claims = data.claims(NOBLE, case["package"] or "brotli")
    answers = {version: claims[CVE].judge(version).state.value for version in case["answers"]}
    assert answers == case["answers"]
    # A package whose state nobody has determined has no claim: it is not called fixed.
    assert bool(claims) is (case["package"] is not None)


def test_definition_of_a_whole_package_names_its_vulnerabilities() -> None:
    fixed = "was vulnerable but has been fixed (note: '1.7.24-0ubuntu1')."
    comments = [f"({name}) containerd package in noble {fixed}" for name in (CVE, "CVE-2026-7777")]
    data = OvalDefinitions([io.BytesIO(oval_ubuntu(("containerd", comments)))])
    claims = data.claims(NOBLE, "containerd")
    assert {name: claim.severity for name, claim in claims.items()} == {
        CVE: "high",
        "CVE-2026-7777": "medium",
    }
    assert (data.covers(NOBLE), data.covers(BOOKWORM), data.newest) == (True, False, "2026-11-27")


def test_version_of_a_kernel_counts_and_not_the_question_whether_it_runs() -> None:
    fixed = "linux package in noble was vulnerable but has been fixed (note: '6.8.0-60.63')."
    for comments in (["Is kernel linux running?", fixed], [fixed, "Is kernel linux running?"]):
        data = OvalDefinitions([io.BytesIO(oval_ubuntu((CVE, comments)))])
        assert data.claims(NOBLE, "linux")[CVE].judge("6.8.0-60.63").state is ClaimState.FIXED


def test_debians_oval_is_of_one_release_and_version_0_is_unknown() -> None:
    rows = {CVE: ("linux", "6.1.192-1"), "CVE-2026-7777": ("linux", "0")}
    data = OvalDefinitions([io.BytesIO(oval_debian(rows))])
    claims = data.claims(BOOKWORM, "linux")
    states = {version: claims[CVE].judge(version).state for version in ("6.1.190-1", "6.1.192-1")}
    assert states == {"6.1.190-1": ClaimState.AFFECTED, "6.1.192-1": ClaimState.FIXED}
    assert claims["CVE-2026-7777"].judge("6.1.190-1").state is ClaimState.UNKNOWN
    assert not data.claims(OsRelease("debian", "13", "trixie"), "linux")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"<oval_definitions><definitions>", "cut short"),
        (b"<other><definition class='vulnerability'/></other>", "no OVAL document"),
        (b"<oval_definitions/>", "no OVAL definition"),
        (b"{}", "no XML"),
    ],
)
def test_file_of_another_format_is_refused_as_oval(text: bytes, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        OvalDefinitions([io.BytesIO(text)])
