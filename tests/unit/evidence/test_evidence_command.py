"""`goldnode evidence`: sign, list, verify and diff on a site with keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.evidence import proof_records as records
from tests.unit.images.registries import make_key

from goldnode.cli import main
from goldnode.fleet.control import evidence as control


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the class document of a site with a key, in whose directory the commands run."""
    make_key(tmp_path, "evidence")
    site = tmp_path / "goldnode-site.yml"
    site.write_text("evidence: {signing_key: evidence.pem, public_key: evidence.pub}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_SITE", str(site))
    monkeypatch.setattr(control, "tools", lambda: records.TOOLS)
    path = tmp_path / "class.json"
    path.write_text(json.dumps(records.case_class()))
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["evidence", *words], catch_exceptions=False)


def signed(document: Path) -> Path:
    record = records.write("canary", json.loads(document.read_text()), document.parent)
    words = ("sign", "canary", str(record), "--class", records.CLASS, "--document", str(document))
    done = run(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    return Path(json.loads(done.stdout)["file"])


def test_statement_is_listed_verified_and_named_stale_with_its_renewal(document: Path) -> None:
    path = signed(document)
    assert path.parent == document.parent / ".goldnode/evidence" / records.CLASS
    given = (records.CLASS, "--document", str(document))
    assert run("verify", *given).exit_code == 0
    listed = run("list", *given).stdout
    assert "canary" in listed
    assert "current" in listed
    assert "missing" in listed
    new = json.loads(document.read_text())
    new["packages"][0]["version"] += "+1"
    document.write_text(json.dumps(records.sealed(new)))
    assert run("verify", *given).exit_code == 1
    text = run("diff", *given).stdout
    assert f"package {new['packages'][0]['name']}: " in text
    assert f"goldnode canary run --class {records.CLASS}" in text


def test_failed_write_of_a_record_of_another_class_leaves_no_statement(document: Path) -> None:
    record = records.write("canary", records.case_class(simulated=True), document.parent)
    words = ("sign", "canary", str(record), "--class", records.CLASS, "--document", str(document))
    done = run(*words)
    assert done.exit_code != 0
    assert "class digest of the record is" in done.output
    assert not (document.parent / ".goldnode/evidence").exists()
