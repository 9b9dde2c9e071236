"""The wheel as users install it: by uv and by pipx of the package index, into a home of their own, and away again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.long]

ROOT = Path(__file__).parents[2]
INSTALLERS = {
    "uv": (("tool", "install"), ("tool", "uninstall")),
    "pipx": (("install",), ("uninstall",)),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.mark.parametrize("installer", INSTALLERS)
def test_wheel_is_installed_used_and_removed(installer: str, wheel: Path, tmp_path: Path) -> None:
    bin_directory = tmp_path / ".local/bin"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GOLDNODE_")},
        "HOME": str(tmp_path),
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
    }

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    run(sys.executable, "-m", "venv", "tool")
    run("tool/bin/pip", "install", "-q", installer)
    install, uninstall = INSTALLERS[installer]
    run(f"tool/bin/{installer}", *install, wheel)
    assert {path.name for path in bin_directory.iterdir()} == {"goldnode", "goldnode-node"}
    assert run(bin_directory / "goldnode", "--version").startswith("goldnode 0.2.0\n")
    # The files of the wheel, not those of a checkout.
    run(bin_directory / "goldnode", "package", "kubernetes", "--out", "base", "--image", "python")
    assert (tmp_path / "base/check").exists()
    run(bin_directory / "goldnode", "man")
    if Path("/usr/bin/man").exists():
        assert (
            run("/usr/bin/man", "-w", "goldnode")
            .strip()
            .endswith(".local/share/man/man1/goldnode.1")
        )
    assert "_GOLDNODE_COMPLETE" in run(bin_directory / "goldnode", "completion", "bash")
    run(f"tool/bin/{installer}", *uninstall, "goldnode")
    assert not list(bin_directory.iterdir())
