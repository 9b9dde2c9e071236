"""Find the Python package goldnode, which does the work of these plugins on the controller."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ansible.errors import AnsibleError

VERSION = "@VERSION@"  # of the collection; the build writes it


def load(module: str, name: str) -> Any:
    """Return the class `name` of a module of goldnode. Raises AnsibleError without goldnode of this version."""
    try:
        found = version("goldnode")
    except PackageNotFoundError:
        problem = "needs the Python package goldnode, which is not installed"
    else:
        if found == VERSION:
            return getattr(import_module(module), name)
        problem = f"needs the Python package goldnode {VERSION}, and {found} is installed"
    raise AnsibleError(
        f"The collection goldnode.node {VERSION} {problem} in the environment of ansible-playbook ({sys.prefix}). "
        f"Run `{sys.executable} -m pip install 'goldnode=={VERSION}'`, or, where pipx installed Ansible, "
        f"`pipx inject --force ansible-core 'goldnode=={VERSION}'`."
    )
