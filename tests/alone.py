"""goldnode as an installation with some extras alone runs it: modules that these do not install cannot be imported from it.

A plugin of pytest: `GOLDNODE_TEST_EXTRAS=images pytest -p tests.alone FILE`. The tests themselves import what they need.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions, requires
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from goldnode.core import extras

VARIABLE = "GOLDNODE_TEST_EXTRAS"


def distributions(*names: str) -> set[str]:
    """Return the canonical names of the distributions that goldnode with these extras installs."""
    found: set[tuple[str, frozenset[str]]] = set()
    todo = [("goldnode", frozenset(names))]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        for line in requires(one[0]) or ():
            wanted = Requirement(line)
            marker = wanted.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *one[1])):
                todo.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return {name for name, _ in found}


def blocked(*names: str) -> frozenset[str]:
    """Return the modules here that goldnode with these extras does not install."""
    mine = distributions(*names)
    return frozenset(
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & mine
    )


def install(refused: frozenset[str]) -> None:
    """Refuse imports of these modules from goldnode, as Python does where they are not installed."""
    whole, there = builtins.__import__, extras.is_installed

    def imported(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer = str((globals or {}).get("__name__", ""))
        if (
            level == 0
            and importer.partition(".")[0] == "goldnode"
            and name.partition(".")[0] in refused
        ):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return whole(name, globals, locals, fromlist or (), level)

    builtins.__import__ = imported
    extras.is_installed = lambda module: module not in refused and there(module)


if VARIABLE in os.environ:
    # pytest itself loads the fixtures for testinfra, which are goldnode's.
    install(blocked(*os.environ[VARIABLE].split(",")) - {"pytest", "_pytest"})
