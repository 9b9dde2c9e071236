"""Write a site directory: inventory, catalog, locks, site file and `ansible.cfg`, from which goldnode and Ansible run.

`goldnode init` and `goldnode adopt` write the same. Either the whole directory is written, or
nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from goldnode.core.data import PACKAGE, data
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import by_umask

SITE, INVENTORY, CATALOG, LOCKS = "goldnode-site.yml", "inventory", "catalog", "locks"
THIS_MACHINE = "localhost"
COLLECTION = "goldnode.node"

_SITE = """\
# Settings of this site. goldnode reads this file in the working directory, or where GOLDNODE_SITE points to.
catalog: catalog    # classes, stacks and platforms of this site, beside goldnode's own
locks: locks        # `goldnode lock STACK` writes here; keep them in version control

# The catalog has the public addresses and keys of Debian, Ubuntu, NVIDIA and AMD. Only for mirrors of your own:
# upstream_mirrors:
#   https://developer.download.nvidia.com: https://mirror.example.org/nvidia
"""
_GITIGNORE = """\
# Records of runs, and stores of images.
.goldnode/
# Secrets: private keys, passwords of Ansible Vault.
*.key
*-signing.*
*secret*
.vault*
*.retry
"""
_ANSIBLE = """\
# Configuration of Ansible for this directory, from which it is run.
[defaults]
inventory = inventory
interpreter_python = /usr/bin/python3
forks = 20
# Class documents are arguments of modules and must not fill the syslog of the nodes.
no_target_syslog = true
retry_files_enabled = false
nocows = true
{plugins}
[inventory]
# A --limit without matching hosts, and an unreadable inventory, are errors instead of empty successes.
host_pattern_mismatch = error
any_unparsed_is_failed = true

[ssh_connection]
pipelining = true
"""
_OF_COLLECTION = """\
# A report at the end of each run, with its record in .goldnode/runs.
callbacks_enabled = goldnode.node.goldnode_report
"""
_OF_INSTALLATION = """\
# The plugins and roles of this machine's goldnode. Not needed with the collection goldnode.node.
library = {package}/ansible/modules
action_plugins = {package}/ansible/action
callback_plugins = {package}/ansible/callback
vars_plugins = {package}/ansible/vars
inventory_plugins = {package}/ansible/inventory
roles_path = {roles}
# A report at the end of each run, with its record in .goldnode/runs.
callbacks_enabled = goldnode_report
"""


class SiteDirectoryError(GoldnodeError):
    """A site directory cannot be written."""


@dataclass(frozen=True)
class SiteContents:
    """The hosts of one class with variables of each, and files of a catalog by their path in it."""

    node_class: str
    hosts: tuple[str, ...]
    catalog: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteWritten:
    """Result of a write: paths relative to the directory. `same` had that content already."""

    written: tuple[str, ...]
    same: tuple[str, ...]


def collection_installed() -> bool:
    """Return whether Ansible finds the collection goldnode.node, in its default places or where the environment points to."""
    named = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
    roots = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    home = Path(os.environ.get("ANSIBLE_HOME") or "~/.ansible").expanduser()
    roots += [home / "collections", Path("/usr/share/ansible/collections")]
    # The package `ansible` of PyPI has its collections among the modules of Python.
    roots += [Path(part) for part in sys.path]
    return any(
        (root / "ansible_collections" / COLLECTION.replace(".", "/")).is_dir() for root in roots
    )


def playbook(*, collection: bool) -> str:
    """Return the playbook as an argument of ansible-playbook."""
    return f"{COLLECTION}.site" if collection else str(data("site.yml"))


def files(contents: SiteContents, *, collection: bool) -> dict[str, str]:
    """Return the content of every file by its path in the directory."""
    plugins = _OF_COLLECTION
    if not collection:
        plugins = _OF_INSTALLATION.format(package=PACKAGE, roles=data("roles"))
    texts = {
        SITE: _SITE,
        "ansible.cfg": _ANSIBLE.format(plugins=plugins),
        ".gitignore": _GITIGNORE,
        # One file per class, so that another class can be added to the directory.
        f"{INVENTORY}/{contents.node_class}.yml": _inventory(contents),
        f"{LOCKS}/.gitkeep": "",
        **{f"{CATALOG}/{name}": text for name, text in contents.catalog.items()},
    }
    if not any(name.startswith("classes/") for name in contents.catalog):
        texts[f"{CATALOG}/classes/.gitkeep"] = ""
    return texts


def _inventory(contents: SiteContents) -> str:
    hosts: dict[str, dict[str, str] | None] = {
        host: dict(contents.variables.get(host, {})) or None for host in contents.hosts
    }
    if THIS_MACHINE in hosts:
        hosts[THIS_MACHINE] = {"ansible_connection": "local"}
    group: dict[str, object] = {"hosts": hosts}
    if contents.user is not None:
        group["vars"] = {"ansible_user": contents.user, "ansible_become": contents.user != "root"}
    text = yaml.safe_dump({contents.node_class: group}, sort_keys=False, width=110).replace(
        ": null\n", ":\n"
    )
    head = "# Hosts, in the group that is named after their class; `goldnode classes` lists the classes.\n"
    if contents.user is None and contents.hosts != (THIS_MACHINE,):
        head += "# For another SSH user than yours, add to the group: vars: {ansible_user: ubuntu, ansible_become: true}\n"
    return head + text


def write(
    directory: Path,
    content: Mapping[str, str],
    may_replace: Callable[[Path], bool],
    remedy: str = "name another directory, or move it away",
) -> SiteWritten:
    """Write all files, or none of them.

    A file with another content is replaced only if `may_replace` allows it. Raises
    SiteDirectoryError for one that must not be replaced, before anything is written.
    """
    if directory.exists() and not directory.is_dir():
        raise SiteDirectoryError(
            "this is not a directory", file=directory, remedy="name another one"
        )
    same = [name for name, text in content.items() if _there(directory / name, text)]
    rest = [name for name in content if name not in same]
    for name in rest:
        path = directory / name
        if os.path.lexists(path) and (path.is_dir() or not may_replace(path)):
            raise SiteDirectoryError(
                "this file exists with another content, and nothing was written",
                file=path,
                remedy=remedy,
            )
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    # Beside the directory, in the same file system: a rename must be enough to move a file.
    staged = Path(tempfile.mkdtemp(dir=parent, prefix=f".{directory.name}-"))
    try:
        # mkdtemp makes a directory that only its owner can read.
        staged.chmod(by_umask(0o777))
        for name in rest:
            path = staged / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content[name], encoding="utf-8")
        if directory.exists():
            _move(staged, directory, rest)
        else:
            staged.rename(directory.absolute())
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return SiteWritten(tuple(rest), tuple(same))


def _move(staged: Path, directory: Path, names: list[str]) -> None:
    """Move staged files into a directory that exists. If one cannot be moved, what was there before is restored."""
    done: list[tuple[Path, Path | None]] = []
    try:
        for number, name in enumerate(names):
            path, before = directory / name, staged / f".before-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            there = os.path.lexists(path)
            if there:
                path.rename(before)
            done.append((path, before if there else None))
            (staged / name).rename(path)
    # Ctrl-C too must leave the directory as it was.
    except BaseException:
        for path, earlier in reversed(done):
            path.unlink(missing_ok=True)
            if earlier is not None:
                earlier.rename(path)
        raise


def _there(path: Path, text: str) -> bool:
    """Return whether a file has this content. `.gitkeep` is for an empty directory."""
    return path.parent.is_dir() if path.name == ".gitkeep" else _text(path) == text


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
