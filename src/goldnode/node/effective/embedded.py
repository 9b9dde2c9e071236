"""Templates of the containerd that k3s and RKE2 run themselves.

At each start the service renders the first of config-v3.toml.tmpl and config.toml.tmpl, or else its own
template, into config.toml (k3s, pkg/agent/containerd/config.go). It adds the runtime nvidia where it finds
the program (pkg/agent/containerd/runtimes.go). `{{ template "base" . }}` is its own template, whose tables a
file that extends it cannot declare again: TOML has each table once.
"""

from __future__ import annotations

import re

from ..ground.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

# Rancher's directories (docs.k3s.io, "Configuring containerd"); a data directory elsewhere is not found.
FOLDERS = tuple(f"/var/lib/rancher/{name}/agent/etc/containerd" for name in ("k3s", "rke2"))
TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")  # the first that is there is rendered
PROGRAMS = (
    "/usr/local/nvidia/toolkit/nvidia-container-runtime",
    "/usr/bin/nvidia-container-runtime",
)
# Compiled where they are used: most nodes have no template.
_BASE = r"""\{\{-?\s*template\s+["`]base["`]"""
_HEADER = r"^\s*\[([^\[\]]+)\]"
_KEY = r"""'([^']*)'|"([^"]*)"|([\w-]+)"""
# Tables of both base templates, as files of config.toml that were generated from them have them.
_V2, _V3 = "plugins/io.containerd.grpc.v1.cri", "plugins/io.containerd.cri.v1.runtime"
_TABLES = {
    "config-v3.toml.tmpl": (_V2, _V3, "plugins/io.containerd.cri.v1.images", "grpc"),
    "config.toml.tmpl": (_V2, f"{_V2}/containerd"),
}
_OLD = ("plugins/cri", "plugins/opt", "plugins/linux")  # names of version 1
_HOW = (
    'Begin it with `{{ template "base" . }}` and add only tables that the base lacks; other keys go into a drop-in '
    "(config-v3.toml.d, which `imports` of config.toml names)"
)


def observed(host: Host) -> List[Dict[str, Any]]:
    """Return a row for each of the services: {name, folder, faults, notes, nvidia (is in config.toml)}."""
    rows = []
    for folder in FOLDERS:
        if not host.is_dir(folder):
            continue
        faults, notes = _templates(host, folder)
        effective = _tables(host.text(f"{folder}/config.toml") or "")
        known = any(table[0].endswith("/runtimes/nvidia") for table in effective)
        name = folder.split("/")[4]
        row = {"name": name, "folder": folder, "faults": faults, "notes": notes, "nvidia": known}
        rows.append(row)
    return rows


def _templates(host: Host, folder: str) -> Tuple[List[str], List[str]]:
    """Return the faults of the template in use, and what to know of the others."""
    have = [name for name in TEMPLATES if host.text(f"{folder}/{name}") is not None]
    notes = [
        f"{folder}/{name} is not read: {have[0]} is there and comes first" for name in have[1:]
    ]
    if not have:
        return [], []
    text = host.text(f"{folder}/{have[0]}") or ""
    if text.strip() and "{{" not in text:
        notes.append(f"{folder}/{have[0]} is no template but a copy of one release's file. {_HOW}")
    faults = []
    for where, why in _faults(host, have[0], text):
        faults.append(f"{folder}/{have[0]}:{where} {why}. {_HOW}")
    return faults, notes


def _faults(host: Host, name: str, text: str) -> List[Tuple[int, str]]:
    """Return the faults of a template, each with its line."""
    rows: List[Tuple[int, str]] = []
    seen: Dict[str, int] = {}
    version = re.search(r"^\s*version\s*=", text, re.MULTILINE)
    for table, number, shown in _tables(text):
        if table.startswith(_OLD) and not version:
            why = f"[{shown}] is a name of version 1 of the file, which containerd 2 does not read"
            return [*rows, (number, why)]
        if name == TEMPLATES[0] and table.startswith(f"{_V2}/containerd"):
            rows.append((number, f"[{shown}] is a name of version 2, which version 3 ignores"))
        elif table in seen:
            why = (
                f"declares [{shown}] twice (line {seen[table]}): containerd does not start with it"
            )
            rows.append((number, why))
        elif re.search(_BASE, text) and _in_base(host, name, table):
            why = f"declares [{shown}], which is there twice then, as the base has it: containerd does not start with it"
            rows.append((number, why))
        seen.setdefault(table, number)
    return rows


def _in_base(host: Host, name: str, table: str) -> bool:
    runtimes = f"{_V3 if name == TEMPLATES[0] else _V2}/containerd/runtimes"
    own = ["runc"]
    if any(host.exists(program) for program in PROGRAMS):
        own.append("nvidia")
    known = [path for one in own for path in (f"{runtimes}/{one}", f"{runtimes}/{one}/options")]
    return table in _TABLES[name] or table in known


def _tables(text: str) -> List[Tuple[str, int, str]]:
    """Return the tables of a file or a template: ("plugins/NAME/containerd", line, as it is written)."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(_HEADER, line)
        if match and "{{" not in match.group(1):
            parts = ["".join(groups) for groups in re.findall(_KEY, match.group(1))]
            rows.append(("/".join(parts), number, match.group(1)))
    return rows
