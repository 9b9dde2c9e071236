"""Count the lines of signed channels: `python -m tests.suite.channel_lines [COMMIT …]`.

The measure of one signed path for images, disks and rollouts: the modules of channels, of disks' channels, of what
publishes images and disks, and of the node's verifier. Modules of commands that did not exist before are counted apart.
"""

from __future__ import annotations

import subprocess
import sys

from tests.suite.timings import ROOT

SOURCE = "src/goldnode"
MODULES = (
    *("channels/", "disks/channels.py", "disks/publish.py", "images/publish.py"),
    "node/follow/trust.py",
)
# `channels keys`, its delegations, and `channels migrate`.
NEW = ("channels/delegations.py", "channels/upkeep.py", "channels/migration.py")
WORK_TREE = "the work tree"


def lines(commit: str) -> dict[str, int]:
    """Return the lines of each module at a commit, or in the work tree."""
    paths = [f"{SOURCE}/{name}" for name in MODULES]
    if commit == WORK_TREE:
        files = [path for name in paths for path in sorted((ROOT / name).rglob("*.py"))]
        files += [ROOT / name for name in paths if name.endswith(".py")]
        texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    else:
        named = _git("ls-tree", "-r", "--name-only", commit, *paths).split()
        texts = {name: _git("show", f"{commit}:{name}") for name in named}
    return {
        name.removeprefix(f"{SOURCE}/"): text.count("\n")
        for name, text in texts.items()
        if name.endswith(".py")
    }


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    """Print the counts of the work tree and of commits."""
    for commit in (WORK_TREE, *sys.argv[1:]):
        rows = lines(commit)
        new = sum(rows.get(name, 0) for name in NEW)
        total = sum(rows.values())
        print(f"{commit}: {total} lines, {new} of new commands, {total - new} without them")
        for name, count in sorted(rows.items()):
            print(f"  {count:>4} {name}")


if __name__ == "__main__":
    main()
