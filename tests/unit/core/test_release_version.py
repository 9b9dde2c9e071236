"""Versions: they are reported without the modules of the commands, and the digest is that of the program that is sent."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from goldnode.core import program_file, release


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/program"


def test_digest_is_cached_until_a_source_changes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = program_file.payload(content=False)["sha256"]
    built: list[bool] = []

    def built_again(*, content: bool) -> dict[str, str]:
        built.append(content)
        return {"sha256": digest}

    monkeypatch.setattr(program_file, "payload", built_again)
    assert [release.program_digest(), release.program_digest()] == [digest, digest]
    assert built == [False]
    assert [file.read_text() for file in cache.iterdir()] == [digest]
    inputs = program_file.inputs()
    monkeypatch.setattr(program_file, "inputs", lambda: {**inputs, "more.py": b""})
    release.program_digest()
    assert len(built) == 2
    assert len(list(cache.iterdir())) == 1, "the earlier digest is removed"


def test_digest_that_another_user_can_write_is_not_taken(cache: Path) -> None:
    digest = release.program_digest()
    (file,) = cache.iterdir()
    file.write_text("sha256:" + "0" * 64)
    file.chmod(0o666)
    assert release.program_digest() == digest
    file.write_text("damaged")
    assert release.program_digest() == digest


def test_cache_that_cannot_be_written_changes_no_answer(cache: Path) -> None:
    cache.parent.write_text("no directory")
    assert release.program_digest() == program_file.payload(content=False)["sha256"]


def test_version_is_that_of_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert release.version() == metadata.version("goldnode")
    folder = tmp_path / "goldnode-9.8.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nVersion: 9.8.7\n\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert release.version() == metadata.version("goldnode") == "9.8.7"
    monkeypatch.setattr(sys, "path", [])
    assert release.version() == "0.0.0"


def test_version_imports_nothing_of_the_commands() -> None:
    """Each of these costs 20 to 200 ms of processor time."""
    code = (
        "import sys; from goldnode.cli import main; main(['--version'], standalone_mode=False); "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "goldnode.core.release" in modules
    heavy = {
        "importlib.metadata",
        "email",
        "pydantic",
        "yaml",
        "jinja2",
        "goldnode.compat",
        "goldnode.facts",
        "goldnode.catalog",
    }
    assert not heavy & modules
