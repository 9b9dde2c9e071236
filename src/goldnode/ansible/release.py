"""The oldest ansible-core with which goldnode's plugins work, refused before anything is done."""

from __future__ import annotations

import re
import sys

from ansible import __version__
from ansible.errors import AnsibleError

# As in the extra `ansible` of pyproject.toml. Before 2.19, callbacks get their results in another form.
MINIMUM = (2, 19)


def too_old(version: str = __version__) -> str | None:
    """Return the refusal of this release of ansible-core, None if it is new enough."""
    parts = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if parts >= MINIMUM:
        return None
    return (
        f"ansible-core {version} ({sys.prefix}) is too old: goldnode needs {'.'.join(map(str, MINIMUM))} or later. Nothing was done. Run the "
        "ansible-playbook of the environment that has goldnode[ansible], or install that extra: `pip install 'goldnode[ansible]'`."
    )


def require_ansible() -> None:
    """Raise AnsibleError if this release of ansible-core is too old."""
    refusal = too_old()
    if refusal:
        raise AnsibleError(refusal)
