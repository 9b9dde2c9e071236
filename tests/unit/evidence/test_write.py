"""All documents of one image: written, kept, replaced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence.samples import IMAGE, LOCKS, built, sample

from goldnode import evidence
from goldnode.core.errors import ImageError
from goldnode.evidence import vulnerabilities
from goldnode.evidence.verify import documents
from goldnode.evidence.write import ImageEvidenceOptions, write
from goldnode.oci.layout import Layout, OciImage, canonical


def test_all_of_them_and_nothing_of_this_machine(layout: Layout, tmp_path: Path) -> None:
    digest = sample(layout)
    rows = write(
        layout, IMAGE, built(digest), LOCKS, ImageEvidenceOptions(cache=tmp_path / "cache")
    )
    assert [row.kind for row in rows] == [
        evidence.CYCLONEDX,
        evidence.SPDX,
        evidence.PROVENANCE,
        evidence.VULNERABILITIES,
        evidence.SIZE,
    ]
    assert "not signed: no key was named" in rows[2].line
    assert "not checked" in rows[3].line
    for row in documents(layout, digest):
        assert str(tmp_path).encode() not in row.data
        assert row.data == canonical(json.loads(row.data))
    other = Layout(tmp_path / "other")
    sample(other)
    write(other, IMAGE, built(digest), LOCKS, ImageEvidenceOptions())
    assert [row.artefact for row in documents(other, digest)] == [
        row.artefact for row in documents(layout, digest)
    ]


def test_a_second_run_reads_nothing_and_an_other_one_replaces(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, old = sample(layout), sample(layout, "bbbbbbbbbbbb", User="1")
    options = ImageEvidenceOptions(cache=tmp_path / "cache")
    first = write(layout, IMAGE, built(digest), LOCKS, options)
    foreign = layout.attach(digest, evidence.PROVENANCE, canonical({"predicateType": "urn:else"}))
    write(layout, IMAGE, built(digest), LOCKS, options)
    with monkeypatch.context() as patch:
        patch.setattr(OciImage, "layer", None)
        patch.setattr("goldnode.evidence.write.examine", None)
        again = write(layout, IMAGE, built(digest), LOCKS, options)
    assert [(row.kind, row.line) for row in again] == [(row.kind, row.line) for row in first]
    assert {row.state for row in again} == {"kept"}
    rows = write(
        layout,
        IMAGE,
        built(digest),
        LOCKS,
        replace(options, builder="urn:site:builder", against=old),
    )
    assert {row.kind for row in rows if row.state == "written"} == {
        evidence.PROVENANCE,
        evidence.DIFF,
    }
    attached = documents(layout, digest)
    assert (
        len([row for row in attached if row.type == evidence.PROVENANCE]) == 2
    )  # its own, and the one that is not its business
    assert foreign.digest in {row.artefact for row in attached}
    # What somebody took off is put back.
    (bill,) = (row for row in attached if row.type == evidence.SPDX)
    layout.detach(bill.artefact)
    rows = write(
        layout,
        IMAGE,
        built(digest),
        LOCKS,
        replace(options, builder="urn:site:builder", against=old),
    )
    assert [row.kind for row in rows if row.state == "written"] == [evidence.SPDX]


def test_a_lock_that_moved_since_the_build(layout: Layout) -> None:
    digest = sample(layout)
    moved = [*LOCKS[:-1], replace(LOCKS[-1], digest="sha256:" + "f" * 64)]
    with pytest.raises(
        ImageError, match=r"was built from lock sha256:c+…, and its lock is another one now"
    ) as caught:
        write(layout, IMAGE, built(digest), moved, ImageEvidenceOptions())
    assert "goldnode images build" in str(caught.value)
    assert documents(layout, digest) == []


def test_an_invalid_sbom_is_not_attached(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = sample(layout)
    monkeypatch.setattr(
        "goldnode.evidence.cyclonedx_bom.cyclonedx", lambda *_: b'{"bomFormat":"CycloneDX"}'
    )
    with pytest.raises(ImageError, match="no valid CycloneDX"):
        write(layout, IMAGE, built(digest), LOCKS, ImageEvidenceOptions())
    assert documents(layout, digest) == []


def osv(folder: Path, name: str, fixed: str) -> vulnerabilities.Database:
    """A database of one day in which numpy is affected before `fixed`."""
    spans = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]
    affected = [{"package": {"ecosystem": "PyPI", "name": "numpy"}, "ranges": spans}]
    file = folder / f"{name}.json"
    file.write_text(
        json.dumps([{"id": "GHSA-test", "modified": "2026-11-20T00:00:00Z", "affected": affected}])
    )
    return vulnerabilities.load(f"osv={file}")


def test_each_scan_states_its_time_and_the_same_scan_is_written_once(
    layout: Layout, tmp_path: Path
) -> None:
    digest = sample(layout)

    def scan(name: str, fixed: str) -> tuple[str, dict[str, Any]]:
        options = ImageEvidenceOptions(databases=(osv(tmp_path, name, fixed),))
        rows = {row.kind: row.state for row in write(layout, IMAGE, built(digest), LOCKS, options)}
        (report,) = (
            row for row in documents(layout, digest) if row.type == evidence.VULNERABILITIES
        )
        return rows[evidence.VULNERABILITIES], json.loads(report.data)

    state, clean = scan("clean", "0.1")
    assert state == "written"
    assert scan("clean", "0.1") == ("kept", clean)
    state, bad = scan("bad", "9")
    assert state == "written"
    assert bad["summary"]["vulnerabilities"] == 1
    assert bad["scanned"] > clean["scanned"]
    state, again = scan("clean", "0.1")
    assert state == "written"
    assert again["scanned"] > bad["scanned"]
    assert {**again, "scanned": ""} == {**clean, "scanned": ""}
