"""Locations of the data of the commands: catalog, images, roles, playbooks, schemas, integrations.

In a checkout they are in its root. The wheel has them inside the package, in `_data` (hatch_build.py).
"""

from __future__ import annotations

import locale
import os
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_PACKED = PACKAGE / "_data"
# Commands write no lock into the package: a wheel's locks are updated in this directory of the user.
OWN_LOCKS = "goldnode-locks"
# The site file in force is the first of these, unless GOLDNODE_SITE names one.
SITE_FILES = (Path("goldnode-site.yml"), Path("/etc/goldnode/site.yml"))

_PLUGINS = {"ANSIBLE_LIBRARY": "modules", "ANSIBLE_ACTION_PLUGINS": "action"}
# goldnode works without them, and these variables would hide the directories in a user's ansible.cfg.
_OPTIONAL = {
    "ANSIBLE_CALLBACK_PLUGINS": "callback",
    "ANSIBLE_INVENTORY_PLUGINS": "inventory",
    "ANSIBLE_VARS_PLUGINS": "vars",
}


def installed() -> bool:
    """Return whether goldnode runs from a wheel. If not, it runs from a checkout."""
    return _PACKED.is_dir()


def data(name: str = "") -> Path:
    """Return the path of a file or directory of the data, such as ``catalog``. It may not exist."""
    return (_PACKED if installed() else PACKAGE.parents[1]) / name


def tree_path(name: str) -> Path:
    """Return the path of a file or directory that `name` names in the tree, such as ``src/goldnode/node``."""
    package = name.removeprefix("src/goldnode")
    return PACKAGE / package.lstrip("/") if package != name else data(name)


def lock_places(directory: Path, kind: str, base: Path) -> list[Path]:
    """Return the directories that hold the locks of what is defined in `directory`, the first to write to.

    That is `directory` itself. For the data of a wheel, ``goldnode-locks/KIND`` in `base` precedes
    it: the user's locks replace those of the wheel.
    """
    if installed() and directory.resolve().is_relative_to(_PACKED):
        return [base / OWN_LOCKS / kind, directory]
    return [directory]


def site_above() -> Path | None:
    """Return the site file of the nearest parent of the working directory, if no site file is in force."""
    if os.environ.get("GOLDNODE_SITE") or any(path.exists() for path in SITE_FILES):
        return None
    above = (parent / SITE_FILES[0] for parent in Path.cwd().parents)
    return next((path for path in above if path.is_file()), None)


def installed_locale() -> dict[str, str]:
    """Return the variable that replaces a locale which is not installed, with which Ansible does not start; else none."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        return {"LC_ALL": "C.UTF-8"}
    # Only a trial: this process keeps its locale.
    locale.setlocale(locale.LC_ALL, before)
    return {}


def ansible_environment(
    environ: Mapping[str, str] = os.environ, *, own: bool = False
) -> dict[str, str]:
    """Return `environ` with the variables by which Ansible finds the plugins of goldnode.

    The configuration is the user's: $ANSIBLE_CONFIG, or ansible.cfg in the working directory. If there is
    neither, or with `own`, it is the one of goldnode, which also enables its vars and callback plugins.
    Directories that the user's variables name follow.

    goldnode reads the results of its own tasks, which no_log would hide; they have no secrets.
    """
    environment, plugins = {**environ, **installed_locale(), "ANSIBLE_NO_LOG": "false"}, _PLUGINS
    if own or (not environment.get("ANSIBLE_CONFIG") and not Path("ansible.cfg").is_file()):
        environment["ANSIBLE_CONFIG"] = str(data("ansible.cfg"))
        plugins = {**_PLUGINS, **_OPTIONAL}
    for variable, folder in plugins.items():
        places = [str(PACKAGE / "ansible" / folder), environment.get(variable, "")]
        environment[variable] = os.pathsep.join(place for place in places if place)
    return environment
