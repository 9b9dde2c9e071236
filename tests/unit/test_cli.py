"""`goldnode …`: what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.catalog.test_accept_reject import CLASS

from goldnode.cli import main
from goldnode.errors import GoldnodeError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A site that needs neither this machine's apt nor a network."""
    path = tmp_path / "site.yml"
    path.write_text("archives:\n  debian: {url: 'file:///nowhere/debian'}\n  debian-security: {url: 'file:///nowhere/security'}\n")
    monkeypatch.setenv("GOLDNODE_SITE", str(path))
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    return path


def test_classes() -> None:
    result = run("classes")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert "simulated hardware" in rows["demo_a100"]
    assert "simulated" not in rows["a100_sxm4_40gb"]
    assert "local-archive" in rows["a100_sxm4_40gb"]


def test_class_export() -> None:
    result = run("class", "export", "cpu_only")
    assert result.exit_code == 0
    document = json.loads(result.output)
    assert document["schema"] == "goldnode.class/1"
    assert document["site"]["archives"][0]["uri"] == "file:///nowhere/debian"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("class", "export", "cpu_onyl"), 'class "cpu_onyl" is not in the catalog. Use "cpu_only".'),
        (("class", "export", "l4"), "Run `goldnode lock debian12_r580`."),
        (("lock", "debian12_r53"), 'stack "debian12_r53" is not in the catalog.'),
        (("lock", "debian12_r580"), 'the site names no key for archive "nvidia-cuda".'),
        (("lock", "debian12_cpu"), "the archives could not be read: "),
        (("lock", "debian12_cpu", "--offline"), "never read before. Run once without --offline."),
        (("lock", "debian12_r580", "--check"), "has no lock"),
        (("schema", "clas"), 'there is no schema "clas". Use "class".'),
    ],
)
def test_expected_errors_are_one_line(arguments: tuple[str, ...], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_debug_shows_the_trace() -> None:
    result = run("--debug", "class", "export", "nothing")
    assert isinstance(result.exception, GoldnodeError)


def test_a_fault_of_goldnode_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("goldnode.catalog.load.load_catalog", broken)
    result = run("classes")
    assert isinstance(result.exception, RuntimeError)
    assert result.exit_code == 1


def test_schema(tmp_path: Path) -> None:
    assert json.loads(run("schema", "class").output)["title"] == "NodeClass"
    result = run("schema", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"archives", "class", "disks", "images", "platform", "site", "stack"}


def test_check_catalog() -> None:
    result = run("check-catalog")
    assert result.exit_code == 0, result.output
    assert "10 classes" in result.stdout
    assert "no errors" in result.stdout
    # What could not be judged is listed, not passed over.
    assert "not checked: class a100_sxm4_40gb: policy.clocks" in result.stdout
    assert 'stack "debian12_r580" has no lock' in result.stdout


def test_check_catalog_reads_the_sites_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.yml"
    path.write_text('archives: {nvidia-cuda: {url: "http://mirror.example.org/cuda", key: nowhere.asc}}\n')
    monkeypatch.setenv("GOLDNODE_SITE", str(path))
    result = run("check-catalog")
    assert result.exit_code == 2
    assert 'the key of archive "nvidia-cuda" cannot be read' in result.stderr


def test_check_catalog_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own/classes/a100.yml"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "own"))
    path.write_text(CLASS.replace("stack: r580", "stack: debian13_r550").replace("platform: hgx_a100_8\n", ""))
    result = run("check-catalog")
    assert result.exit_code == 2
    assert f'error: {path}:3: stack "debian13_r550" is past its end of life since 2025-04-17' in result.stderr
    path.write_text(CLASS.replace("backend:", "bakend:"))
    result = run("check-catalog")
    assert (result.exit_code, result.stderr) == (2, f'error: {path}:2: unknown key "bakend". Use "backend".\n')
