"""The commands: what they print, how they exit, and what of the site file they take."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.evidence.samples import base_files, image
from tests.unit.evidence.scanner_outputs import grype_output

from goldnode.cli import main
from goldnode.images.imagelock import ImageLock, intent_digest, write_lock
from goldnode.images.matrix import load_matrix
from goldnode.images.store import ImageStore, open_store
from goldnode.oci.model import Built

MATRIX = """\
matrix: 1
systems:
  debian12: {id: debian, release: "12", codename: bookworm, architectures: [amd64], python: "3.11", glibc: "2.36", archives: [debian]}
licences: {}
backends:
  cpu:
    title: Debian
    purity: cpu
    releases:
      - version: "1"
        os: [debian12]
        flavours:
          base: {parent: null, debs: [python3]}
          runtime: {parent: base, debs: [libgcc-s1]}
"""
BASE, RUNTIME = "cpu-1-base-debian12", "cpu-1-runtime-debian12"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    """A store with two built images, their matrix and locks, and a site file that names a key."""
    monkeypatch.setenv("GOLDNODE_MATRIX", str(tmp_path / "matrix.yml"))
    monkeypatch.setenv("GOLDNODE_IMAGES", str(tmp_path / "store"))
    monkeypatch.setenv("GOLDNODE_IMAGE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    (tmp_path / "matrix.yml").write_text(MATRIX)
    (tmp_path / "site.yml").write_text("images: {signing_key: key.pem, public_key: key.pub}\n")
    file = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(file)], check=True)
    file.chmod(0o600)
    subprocess.run(
        ["openssl", "pkey", "-in", str(file), "-pubout", "-out", str(tmp_path / "key.pub")],
        check=True,
    )
    store, matrix = open_store(), load_matrix()
    parent, layers = None, [base_files()]
    for name in (BASE, RUNTIME):
        row = matrix.row(name)
        fields: dict[str, Any] = {
            "lock": 1,
            "image": name,
            "intent": intent_digest(row),
            "resolved": "2026-11-22",
            "parent": parent,
        }
        lock = ImageLock(**fields, archives=[], debs=[], wheels=[])
        write_lock(lock, tmp_path / "locks")
        build_id = name[6] * 12
        below: dict[str, str] = (
            {"org.opencontainers.image.base.digest": next(iter(store.built().values())).digest}
            if parent
            else {}
        )
        digest = image(
            store.layout, f"cpu:{row.image.immutable_tag(build_id)}", layers, Labels=below
        )
        store.record(Built(name, build_id, "sha256:" + "a" * 64, lock.digest, digest))
        parent, layers = {"image": name, "lock": lock.digest}, [*layers, {"usr/share/new": name}]
    return store


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["images", *words], catch_exceptions=False)


def test_evidence_then_verify_then_diff(site: ImageStore) -> None:
    done = run("evidence")
    assert done.exit_code == 0, done.output
    assert done.output.count(" signature        by key") == 2
    assert done.output.count("3 debs, 0 wheels") == 2
    assert "not checked: no vulnerability database was named" in done.output
    again = run("evidence", "--format", "json")
    rows = json.loads(again.stdout)["results"]
    assert {document["state"] for row in rows for document in row["documents"]} == {"kept"}
    verified = run("verify", BASE, f"cpu:1-runtime-debian12-{'r' * 12}")
    assert verified.exit_code == 0, verified.output
    assert verified.output.count(": verified\n") == 2
    difference = run("diff", BASE, RUNTIME)
    assert difference.exit_code == 0
    assert "  + /usr/share/new" in difference.output
    assert "1 of 2 layers are the old image's" in difference.output
    assert json.loads(run("diff", BASE, RUNTIME, "--format", "json").stdout)["packages"] == {
        "debs": [],
        "wheels": [],
    }


def test_provenance_names_the_parent(site: ImageStore) -> None:
    from goldnode import evidence
    from goldnode.evidence.signatures import payload_of
    from goldnode.evidence.verify import documents

    run("evidence", RUNTIME)
    built = {row.image: row.digest for row in site.built().values()}
    (row,) = (
        row for row in documents(site.layout, built[RUNTIME]) if row.type == evidence.PROVENANCE
    )
    materials = json.loads(payload_of(row.data))["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]
    digests = {item["uri"]: item["digest"]["sha256"] for item in materials}
    assert f"sha256:{digests[f'oci:{BASE}']}" == built[BASE]
    assert {
        f"urn:goldnode:image-lock:{BASE}",
        f"urn:goldnode:image-lock:{RUNTIME}",
    } <= digests.keys()


def test_verify_exits_1_for_unsigned_late_or_untrusted_evidence(
    site: ImageStore, tmp_path: Path
) -> None:
    assert run("verify", BASE).exit_code == 1
    run("evidence", BASE)
    assert run("verify", BASE).exit_code == 0
    assert run("diff", RUNTIME, BASE, "--attach").exit_code == 0
    late = run("verify", BASE)
    assert late.exit_code == 1
    assert "diff" in late.output
    assert "attached after the signature" in late.output
    (tmp_path / "site.yml").write_text("")
    unknown = run("verify", BASE)
    assert unknown.exit_code == 1
    assert "no public key was named" in unknown.output


def test_export_gives_other_programs_what_they_verify(site: ImageStore, tmp_path: Path) -> None:
    run("evidence", BASE)
    (digest,) = (row.digest for row in site.built().values() if row.image == BASE)
    site.layout.attach(digest, "application/vnd.example.Note", b"one")
    site.layout.attach(digest, "application/vnd.example.Note", b"two")
    run("verify", BASE, "--export", str(tmp_path / "out"))
    (folder,) = (tmp_path / "out").iterdir()
    assert (folder / "manifest.json").read_bytes() == site.layout.read(digest)
    names = {path.name for path in folder.iterdir()}
    assert {
        "provenance.json",
        "signature.json",
        "sbom.cdx.json",
        "sbom.spdx.json",
        "size.json",
        "vulnerabilities.json",
    } <= names
    assert len([name for name in names if name.startswith("application-vnd.example.note")]) == 2
    assert (
        json.loads((folder / "signature.json").read_bytes())["payloadType"]
        == "application/vnd.in-toto+json"
    )


def test_evidence_without_a_key_reports_nothing_signed(site: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text("")
    done = run("evidence", BASE)
    assert done.exit_code == 0
    assert "Nothing was signed" in done.output


def test_a_database_of_the_site_and_of_the_command_line(site: ImageStore, tmp_path: Path) -> None:
    records = {
        "glibc": {"CVE-1": {"releases": {"bookworm": {"status": "open", "urgency": "high"}}}}
    }
    (tmp_path / "tracker.json").write_text(json.dumps(records))
    (tmp_path / "site.yml").write_text(
        "images: {vulnerabilities: ['debian=tracker.json@2026-11-20']}\n"
    )
    assert "1 known, 0 of them with a fix" in run("evidence", BASE).output
    done = run("evidence", BASE, "--database", f"debian={tmp_path}/tracker.json@2026-11-21")
    assert "debian of 2026-11-21 (given)" in done.output


def test_report_of_a_scanner_about_this_image(site: ImageStore, tmp_path: Path) -> None:
    digests = {row.image: row.digest for row in site.built().values()}
    for name, digest in digests.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(grype_output(digest)))
    done = run("evidence", BASE, "--scan-report", f"grype={tmp_path}/{BASE}.json")
    assert done.exit_code == 0, done.output
    assert "3 known, 1 of them with a fix; 3 packages checked" in done.output
    assert "grype of 2026-11-20 (the report)" in done.output
    assert run("verify", BASE).exit_code == 0
    other = run("evidence", BASE, "--scan-report", f"grype={tmp_path}/{RUNTIME}.json")
    assert other.exit_code == 2
    assert f"the report of grype is about {digests[RUNTIME]}, not {digests[BASE]}" in other.output
    several = run("evidence", "--scan-report", f"grype={tmp_path}/{BASE}.json")
    assert (several.exit_code, "--scan-report is for one image" in several.output) == (2, True)
    # The report stays attached: nothing was replaced.
    assert run("verify", BASE).exit_code == 0


def test_faults_are_one_line_and_exit_2(site: ImageStore, tmp_path: Path) -> None:
    for words, says in (
        (["evidence", "cpu-1-base-debian13"], "debian12"),
        (["evidence", BASE, "--database", "x=y"], "names no vulnerability database"),
        (["evidence", "--against", BASE], "--against is for one image"),
        (["evidence", BASE, "--scan-report", "snyk=x"], "names no scanner's report"),
        (["verify", "cuda:1"], "is not in"),
        (["diff", BASE, "cpu:1-base-debian12-x"], "is not in"),
    ):
        done = run(*words)
        assert (done.exit_code, says in done.output) == (2, True), (words, done.output)
        assert done.output.startswith("error: ")
    done = run("evidence", BASE, "--key", str(tmp_path / "absent"))
    assert done.exit_code == 2
    assert "absent' does not exist" in done.output
    for record in site.records.glob("*.json"):
        record.unlink()
    unbuilt = run("evidence", BASE)
    assert unbuilt.exit_code == 2
    assert f"goldnode images build {BASE}" in unbuilt.output
    assert "no image of the matrix is built" in run("evidence").output
