"""The package in a mirror: signed, listed, verified, kept, and never replaced under its version."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from goldnode.cli import main
from goldnode.nodepackage import debian


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run("mirror", "key", "--out", "keys").exit_code == 0
    keys = tmp_path / "keys"
    mirror = {
        "directory": str(tmp_path / "mirror"),
        "key": str(keys / "mirror.asc"),
        "signing_key": str(keys / "mirror-signing.asc"),
    }
    Path("goldnode-site.yml").write_text(yaml.safe_dump({"mirror": mirror}))
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "goldnode-site.yml"))
    return tmp_path / "mirror"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def stored(mirror: Path) -> list[Path]:
    return sorted(mirror.glob("store/sha256/*/*"))


def test_package_is_published_verified_and_kept(site: Path) -> None:
    done = run("package", "publish")
    assert done.exit_code == 0, done.output
    assert "goldnode-node_0.2.0-1_all.deb: " in done.output
    packages = site / "stacks/goldnode-node/current/dists/goldnode/main/binary-amd64/Packages"
    assert "Package: goldnode-node\n" in packages.read_text()
    assert "goldnode-node" in run("mirror", "status").output
    assert "1 files: no faults" in run("mirror", "verify").output
    # Not of a stack of the catalog, and needed all the same.
    assert "1 stay" in run("mirror", "gc", "--keep-days", "0").output
    assert packages.exists()
    # A later revision takes its place; the first is not needed any more.
    assert run("package", "publish", "--revision", "2").exit_code == 0
    assert "Version: 0.2.0-2\n" in packages.read_text()
    run("mirror", "gc", "--keep-days", "0")
    assert len(stored(site)) == 1


def test_other_content_under_a_published_version_is_refused(site: Path) -> None:
    assert run("package", "publish").exit_code == 0
    before = stored(site)
    done = run("package", "publish", "--maintainer", "A B <a@b.example>")
    assert done.exit_code == 2
    assert (
        "goldnode-node 0.2.0-1 is published with other content. Give this one a later --revision"
        in done.output
    )
    assert stored(site) == before


def test_lost_file_is_made_again_not_fetched(site: Path) -> None:
    """No archive has it: `--repair` must not ask for the address of one."""
    assert run("package", "publish").exit_code == 0
    (file,) = stored(site)
    file.unlink()
    done = run("mirror", "verify", "--repair")
    assert done.exit_code == 1
    assert f"not repaired: {file}: is not there; goldnode-node 0.2.0-1" in done.output
    assert "`goldnode package publish` the packages that goldnode makes" in done.output
    assert run("package", "publish").exit_code == 0
    assert run("mirror", "verify").exit_code == 0


def test_apt_must_take_it_before_it_is_published(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dependency beyond Python would not be met on nodes, whose mirror is the only archive they may have."""
    monkeypatch.setattr(debian, "DEPENDS", "99")
    done = run("package", "publish")
    assert done.exit_code == 2
    assert "does not hold with apt, so it is not published" in done.output
    assert not (site / "stacks/goldnode-node/current").exists()
