"""`goldnode fleet monitoring`: files, links to runbooks, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit.integrations.monitoring import ROOT, RULES

from goldnode.cli import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["fleet", "monitoring", *map(str, words)])


def test_files_are_those_of_the_tree(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in found if path.name.endswith(".rules.yml")]) == len(RULES)
    assert {json.loads(path.read_text())["uid"] for path in found if path.suffix == ".json"} == {
        "goldnode-fleet",
        "goldnode-class",
        "goldnode-node",
    }
    for path in found:
        assert (
            path.read_bytes() == (ROOT / "integrations" / path.relative_to(tmp_path)).read_bytes()
        )
    document = json.loads(run(tmp_path, "--format", "json").stdout)
    assert sorted(document["files"]) == sorted(map(str, found))
    [provider] = yaml.safe_load((tmp_path / "grafana/provisioning.yml").read_text())["providers"]
    assert provider["type"] == "file"


def test_links_lead_to_the_given_page(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    (tmp_path / "prometheus/goldnode.rules.yml").write_text("of an earlier version")
    assert run(tmp_path, "--runbooks", "https://docs.example/alerts.html").exit_code == 0
    for path in (tmp_path / "prometheus").glob("*.rules.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    link = f"https://docs.example/alerts.html#{rule['alert'].lower()}"
                    assert rule["annotations"]["runbook_url"] == link


@pytest.mark.parametrize(
    "url", ["alerts.md", "https://a b", "https://x/#y", "ftp://x", 'https://x"', ""]
)
def test_invalid_runbook_url_is_refused_and_nothing_is_written(tmp_path: Path, url: str) -> None:
    done = run(tmp_path / "out", "--runbooks", url)
    assert done.exit_code == 2
    assert "is no address: give https://" in done.output
    assert not (tmp_path / "out").exists()


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "prometheus").write_text("a file")
    done = run(tmp_path)
    assert done.exit_code != 0
    assert "cannot be written" in str(done.output) + str(done.exception)
    assert "prometheus" in str(done.output) + str(done.exception)
