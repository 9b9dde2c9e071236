"""Count the lines of signed channels: `python -m tests.suite.channel_lines [COMMIT …]`.

The measure of one signed path for images, disks and rollouts: the modules of channels, of disks' channels, of what
publishes images and disks, and of the node's verifier. The keys of a root, which `channels/keys.py` has for all of them,
were in two modules of the fleet before: these are counted as well. Commands and features that did not exist before are
counted apart, each by its name, whole modules and single functions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping

from tests.suite.timings import ROOT

SOURCE = "src/goldnode"
MODULES = (
    *("channels/", "disks/channels.py", "disks/publish.py", "images/publish.py"),
    *("fleet/control/channel_keys.py", "fleet/nodes/facts_update.py", "node/follow/trust.py"),
)
# Feature -> module -> its functions and classes; none: all of the module.
NEW: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "channels keys, refresh and migrate": {
        "channels/upkeep.py": (),
        "channels/migration.py": (),
        "channels/promotion.py": ("LocalPlace.former", "LocalPlace.retire"),
    },
    "teams that sign some channels": {
        "channels/delegations.py": (),
        "channels/updates.py": ("DelegatedPaths", "delegate"),
        "channels/signed.py": ("_owner", "_keys_of"),
        "node/follow/trust.py": ("Verifier.find", "_delegation_form", "_is_delegated", "_kind"),
    },
    "keys on another machine": {
        "channels/keys.py": ("accept_root", "is_public"),
        "channels/updates.py": ("write_document",),
        "channels/signed.py": ("_elsewhere",),
        "channels/promotion.py": ("_Turn.prepared",),
    },
    "older and missing moves that a reader notices": {"channels/promotion.py": ("followed",)},
    "promotions that require the evidence of node classes": {
        "channels/requirements.py": ("ChannelSubject", "Decisions.proved"),
    },
    "no key signs a release and the timestamp": {"channels/updates.py": ("_apart",)},
}
WORK_TREE = "the work tree"
# Lines without features at ec70b97b, before channels of rollouts, images and disks had one implementation.
BEFORE = 3987


def texts(commit: str) -> dict[str, str]:
    """Return the text of each module at a commit, or in the work tree."""
    paths = [f"{SOURCE}/{name}" for name in MODULES]
    if commit == WORK_TREE:
        files = [path for name in paths for path in sorted((ROOT / name).rglob("*.py"))]
        files += [ROOT / name for name in paths if name.endswith(".py")]
        found = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    else:
        named = _git("ls-tree", "-r", "--name-only", commit, *paths).split()
        found = {name: _git("show", f"{commit}:{name}") for name in named}
    return {
        name.removeprefix(f"{SOURCE}/"): text
        for name, text in found.items()
        if name.endswith(".py")
    }


def features(found: Mapping[str, str]) -> dict[str, int]:
    """Return the lines of each new feature. Raises KeyError for a function that a module of today lacks."""
    counts = dict.fromkeys(NEW, 0)
    for feature, modules in NEW.items():
        for module, names in modules.items():
            sizes = _sizes(found[module])
            counts[feature] += sum(sizes[name] for name in names or ("",))
    return counts


def without_features() -> int:
    """Return the lines of the work tree without new features."""
    found = texts(WORK_TREE)
    return sum(text.count("\n") for text in found.values()) - sum(features(found).values())


def _sizes(text: str) -> dict[str, int]:
    """Return the lines of each function and class of a module, with its decorators; "" is the whole."""
    sizes = {"": text.count("\n")}
    for node in ast.walk(ast.parse(text)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                sizes[prefix + child.name] = int(child.end_lineno or first) - first + 1
    return sizes


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    """Print the counts of the work tree and of commits."""
    for commit in (WORK_TREE, *sys.argv[1:]):
        found = texts(commit)
        new = features(found) if commit == WORK_TREE else {}
        total, apart = sum(text.count("\n") for text in found.values()), sum(new.values())
        print(f"{commit}: {total} lines, {apart} of new features, {total - apart} without them")
        for name, text in sorted(found.items()):
            print(f"  {text.count(chr(10)):>4} {name}")
        for name, count in new.items():
            print(f"  {count:>4} new: {name}")


if __name__ == "__main__":
    main()
