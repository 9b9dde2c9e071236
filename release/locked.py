"""The locks that users install from, `requirements/base.lock` and `all.lock`: `python -m release.locked` writes them.

Every package has an exact version and the SHA-256 of each of its files. Versions follow `requirements/dev.lock`, with
which the tests ran. The locks hold for every Python that pyproject.toml accepts: lines have markers. It needs uv
(extra `pins`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
# Lock -> extra of pyproject.toml.
LOCKS = {"base": "", "all": "all"}
PYTHON = "3.11"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def pins(text: str) -> dict[tuple[str, str], list[str]]:
    """Return (name, version) -> SHA-256 of its files, of the lines of a lock."""
    found: dict[tuple[str, str], list[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        match = _PIN.match(block)
        if match:
            found[canonicalize_name(match[1]), match[2]] = sorted(_HASH.findall(block))
    return found


def hashes(tree: Path) -> dict[tuple[str, str], list[str]]:
    """Return (name, version) -> SHA-256 of its files, of the lock of all extras in `tree`."""
    return pins((tree / "requirements/all.lock").read_text(encoding="utf-8"))


def uv() -> list[str]:
    """Return the command uv: that of this environment (extra `pins`), or the one on the PATH."""
    found = shutil.which("uv")
    if find_spec("uv") is None and found is None:
        sys.exit("uv is not installed: install goldnode[pins]")
    return [sys.executable, "-m", "uv"] if find_spec("uv") else [str(found)]


def compiled(extra: str, constraints: Path) -> str:
    """Return a lock as text. Raises CalledProcessError."""
    command = [*uv(), "pip", "compile", "--quiet", "--universal"]
    command += ["--python-version", PYTHON, "--generate-hashes", "--no-header"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--constraints", str(constraints)]
    command += [*(["--extra", extra] if extra else []), "pyproject.toml"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return (
        f"# Written by `python -m release.locked`, for Python {PYTHON} and later on Linux.\n{text}"
    )


def without_constraints(text: str) -> str:
    """Return a lock whose comments name no file of constraints: it is of this run alone.

    A source that is then the only one stands on the line of its `via`, as uv writes it.
    """
    text = re.sub(
        r" *# +via -c .*locked-versions\.txt\n| *#   -c .*locked-versions\.txt\n", "", text
    )
    return re.sub(r"# via\n    #   (.+\n)(?!    #   )", r"# via \1", text)


def main() -> None:
    """Write the locks."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    constraints = build / "locked-versions.txt"
    rows = pins((ROOT / "requirements/dev.lock").read_text(encoding="utf-8"))
    # Only for the Python of dev.lock: a later one needs later versions of some packages.
    lines = [f"{name}=={version} ; python_full_version < '3.12'" for name, version in sorted(rows)]
    constraints.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, extra in LOCKS.items():
        text = compiled(extra, constraints)
        relative = without_constraints(text)
        (ROOT / f"requirements/{name}.lock").write_text(relative, encoding="utf-8")
        print(f"requirements/{name}.lock: {len(pins(relative))} packages")


if __name__ == "__main__":
    main()
