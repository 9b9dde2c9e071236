"""podman's containers.conf files as root reads them, and those that undo goldnode's drop-in.

By podman 4.3.1 and 5.4.2: tests/unit/node/effective/test_podman.py compares them.
"""

from __future__ import annotations

import re

from ..ground.host import Host
from ..ground.typed import NamedTuple
from . import enginetext as text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence, Tuple

DROP_IN = "/etc/containers/containers.conf.d/50-goldnode.conf"
FOLDER = DROP_IN.rpartition("/")[0]
SYSTEM = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
OWN = "/root/.config/containers/containers.conf"


class PodmanFile(NamedTuple):
    """`text` is None for a link to nothing. `after`: it is read after the drop-in."""

    file: str
    text: Optional[str]
    after: bool


def files(host: Host, release: Tuple[int, int]) -> List[PodmanFile]:
    """Return podman's files in its order, without the drop-in."""
    names = [*host.glob(FOLDER, "*.conf"), *host.glob(FOLDER, ".*.conf")]
    rows = [(name, False) for name in SYSTEM]
    rows += [(name, name > DROP_IN) for name in sorted(set(names)) if name != DROP_IN]
    if release >= (5, 0):
        rows += [(name, True) for name in (OWN, *sorted(host.glob(f"{OWN}.d", "*.conf")))]
    return [
        PodmanFile(name, host.text(name), after)
        for name, after in rows
        if host.exists(name) or host.is_link(name)
        if not host.is_dir(name)
    ]


def undone(
    rows: Sequence[PodmanFile], release: Tuple[int, int], program: str, *, default: bool
) -> Optional[str]:
    """Return what keeps the drop-in from its effect, with file and line; None if nothing does.

    `program` is that of runtime nvidia; `default`: the drop-in makes it the default.
    """
    for row in rows:
        if row.text is None and release < (5, 0):
            return f"{row.file} is a link to nothing: podman does not start with it"
        try:
            engine = _lower(_lower(text_of.read_toml(row.text or "")).get("engine"))
        except text_of.BrokenError as broken:
            return f"{row.file}:{broken.line}:{broken.column}: this is no TOML ({broken.message}): podman does not start with it"
        runtime = engine.get("runtime")
        if row.after and default and isinstance(runtime, str) and runtime != "nvidia":
            return _setting(row, "runtime", runtime)
        programs = _lower(engine.get("runtimes")).get("nvidia")
        if row.after and isinstance(programs, list) and programs[:1] != [program]:
            return _setting(row, "nvidia", ", ".join(map(str, programs)))
    return None


def _lower(table: Any) -> Mapping[str, Any]:
    """Return a table with keys in lower case: podman matches them so."""
    return {key.lower(): value for key, value in table.items()} if isinstance(table, dict) else {}


def _setting(row: PodmanFile, key: str, value: str) -> str:
    lines = (row.text or "").splitlines()
    pattern = re.compile(rf"\s*[\"']?{key}[\"']?\s*=", re.IGNORECASE)
    number = next((n for n, line in enumerate(lines, 1) if pattern.match(line)), 1)
    return f'{row.file}:{number} sets {key} to "{value}" and is read after {DROP_IN}'
