"""A release of the working tree, and its installation into an empty directory, without the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EPOCH = 1_700_000_000


def export(into: Path, *, private: bool = False) -> Path:
    """Copy the files that git knows or would take; `private`: with other modes and times, as another user has them."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )
    # In another order, because some file systems list files in the order of their creation.
    for name in sorted(filter(None, names), reverse=private):
        source, target = ROOT / name, into / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            if private:
                target.chmod(target.stat().st_mode & 0o700)
                os.utime(target, (1, 1))
    return into


@dataclass(frozen=True)
class Installed:
    """The wheel and the collection of a release, in directories of their own."""

    directory: Path

    @property
    def package(self) -> Path:
        """Return the directory of the installed package."""
        return next(self.directory.glob("venv/lib/python3*/site-packages/goldnode"))

    def run(
        self, *words: str, here: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the installation in the empty directory `here`, without any variable of goldnode or Ansible."""
        stored = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GOLDNODE_", "ANSIBLE_", "PYTHON"))
        }
        return subprocess.run(
            [str(self.directory / "venv/bin" / words[0]), *words[1:]],
            cwd=here or self.directory / "empty",
            env={
                **stored,
                "ANSIBLE_HOME": str(self.directory / "ansible"),
                "ANSIBLE_NOCOLOR": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "XDG_CACHE_HOME": str(self.directory / "cache"),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def install(release: Path, into: Path) -> Installed:
    """Install the wheel and the collection of `release`; what they require comes from this environment."""
    found = Installed(into)
    (into / "empty").mkdir(parents=True)
    venv.create(into / "venv", symlinks=True)
    site = next(into.glob("venv/lib/python3*/site-packages"))
    # A plain path: the editable installation of the checkout, which is a .pth file there, is not followed.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = str(into / "venv/bin/python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-compile",
    ]
    wheel = next(release.glob("*.whl"))
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in (
        "ansible",
        "ansible-playbook",
        "ansible-inventory",
        "ansible-galaxy",
        "ansible-doc",
    ):
        script = into / "venv/bin" / name
        short = name.removeprefix("ansible-").replace("ansible", "adhoc")
        script.write_text(f'#!/bin/sh\nexec {python} -m ansible {short} "$@"\n')
        script.chmod(0o755)
    assert (
        f"{found.package}/"
        in found.run("python", "-c", "import goldnode; print(goldnode.__file__)").stdout
    )
    archive = next(release.glob("goldnode-node-*.tar.gz"))
    done = found.run("ansible-galaxy", "collection", "install", "--offline", str(archive))
    assert done.returncode == 0, done.stderr
    return found
