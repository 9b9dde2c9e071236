"""containerd's configuration as the installed release puts it together from config.toml and its imports.

The rules are those of `containerd config dump` of releases 1.6, 1.7 and 2.1, which
tests/cases/containerd.json records: 1.x takes the whole table of a plugin from the last file that
has it, 2.x merges the tables key by key. Version 4 of the files has the CRI tables of version 3
(containerd 2.3); no release that reads it was run.
"""

from __future__ import annotations

import os
import re

from ..ground.host import Host, matching
from ..ground.typed import NamedTuple
from . import enginetext as text_of
from .enginetext import BrokenError, ConflictError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypeAlias

    Release: TypeAlias = Tuple[int, int]
    Table: TypeAlias = Mapping[str, Any]


CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/goldnode.toml"
# Plugin that holds the CRI runtimes and the CDI switch, by version of the file (containerd docs/cri/config.md).
CRI = {
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
# Names by which disabled_plugins takes CRI away, in files of any version.
CRI_NAMES = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
RUNC = "io.containerd.runc.v2"
HEAD = (
    "# Written by goldnode: the GPU runtime, and with containerd 1 the rest of the CRI table. "
    "It is regenerated when config.toml or its imports change.\n"
)


class ConfigFile(NamedTuple):
    """One file of the configuration. `after`: containerd reads it after the drop-in."""

    file: str
    text: str
    document: Table
    after: bool = False

    def at(self, *words: str) -> str:
        """Return the file with the first line that has one of the words, the first word first."""
        lines = self.text.splitlines()
        for word in words:
            for number, line in enumerate(lines, 1):
                if word in line.split("#", 1)[0]:
                    return f"{self.file}:{number}"
        return f"{self.file}:1"

    def plugin(self, name: str) -> Optional[Table]:
        """Return the table of a plugin; None if the file has none."""
        table = inner(self.document, "plugins").get(name)
        return table if isinstance(table, dict) else None


class Wants(NamedTuple):
    """The settings of a class: program of the GPU runtime (None without one), whether it is the default, CDI, systemd's control groups."""

    program: Optional[str]
    default: bool
    cdi: bool
    systemd: bool = False


def inner(table: Table, key: str) -> Table:
    """Return a table inside a table; an empty one for any other value, with which containerd does not start."""
    table_below = table.get(key, {})
    return table_below if isinstance(table_below, dict) else {}


def release(version: str) -> Release:
    """Return the release of a package's version: (1, 7) of 1.7.24~ds1-6."""
    match = re.match(r"(?:\d+:)?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (1, 6)


def newest(of: Release) -> int:
    """Return the newest version of the files that a release reads."""
    if of < (2, 0):
        return 2
    return 3 if of < (2, 3) else 4


# -- files in containerd's order


def imported(host: Host, config: Optional[str], of: Release) -> List[Dict[str, Any]]:
    """Return the files that config.toml imports, in order, as [{file, text, after}], without the drop-in.

    The text is None for a file that is not there. `after` is there and true for those that are read
    after the drop-in, which may not be there yet: it is imported by a pattern or else last. Imports
    of imports follow when all of the first are read.
    """
    pending, order, passed = [CONFIG], [], False
    seen = set()
    while pending:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if path == DROP_IN:
            passed = True
            continue
        text = config if path == CONFIG else host.text(path)
        if path != CONFIG:
            order.append({"file": path, "text": text, **({"after": True} if passed else {})})
        if text is None and path != CONFIG and of >= (2, 0):
            break  # containerd 2 starts, and reads nothing after it
        entries = _entries(text)
        for entry in entries:
            pending += _resolved(host, entry, path, of)
        if path == CONFIG and DROP_IN not in pending:
            pending.append(DROP_IN)
    return order


def _entries(text: Optional[str]) -> List[str]:
    """Return the imports of a file; none of a file that is no TOML, which is reported elsewhere."""
    try:
        imports = text_of.read_toml(text or "").get("imports", [])
    except BrokenError:
        return []
    return (
        [entry for entry in imports if isinstance(entry, str)] if isinstance(imports, list) else []
    )


def _resolved(host: Host, entry: str, parent: str, of: Release) -> List[str]:
    """Return the files of one entry. Only a star makes it a pattern, and 1.6 resolves those from /."""
    relative = "/" if "*" in entry and of < (1, 7) else os.path.dirname(parent)
    path = os.path.normpath(os.path.join(relative, entry))
    if "*" not in path:
        return [path]
    names = set(_glob(host, path))
    own = DROP_IN.split("/")
    parts = path.split("/")
    if len(parts) == len(own) and all(matching([a], b) for a, b in zip(own, parts)):
        names.add(DROP_IN)
    return sorted(names)


def _glob(host: Host, path: str) -> List[str]:
    """Return the paths that match, with patterns in any part (Go's filepath.Glob)."""
    paths = [""]
    for part in path.strip("/").split("/"):
        if set(part) & set("*?["):
            paths = [name for place in paths for name in host.glob(place or "/", part)]
        else:
            paths = [f"{place}/{part}" for place in paths]
    return [name for name in paths if host.exists(name)]


# -- the merged result


def merged(files: Sequence[ConfigFile], of: Release) -> Table:
    """Return the CRI table that these files make together, without containerd's built-in values."""
    tables: Dict[str, Table] = {}
    for file in files:
        for name in CRI.values():
            table = file.plugin(name)
            if table is not None:
                tables[name] = table if of < (2, 0) else text_of.deep(tables.get(name, {}), table)
    old, new = tables.get(CRI[2], {}), tables.get(CRI[3], {})
    if of < (2, 0):
        return old
    # Version 3 ignores the old name. Of version 2, a key is renamed unless the new name has it too.
    return new if files and files[0].document.get("version") in (3, 4) else {**old, **new}


def plugin_of(files: Sequence[ConfigFile], version: int, of: Release) -> str:
    """Return the plugin under whose name a further file has to add a runtime."""
    new = [file.plugin(CRI[3]) or {} for file in files]
    if of >= (2, 0) and any("containerd" in table for table in new):
        return CRI[3]
    return CRI[version]


def effective(table: Table, of: Release) -> Dict[str, Any]:
    """Return what containerd does with a CRI table: {default, cdi, runtimes: {name: {type, cgroup, program}}}.

    1.x forgets its built-in runc as soon as a table has any runtime.
    """
    own = inner(table, "containerd")
    named = inner(own, "runtimes")
    builtin: Dict[str, Any] = {
        "runc": {"runtime_type": RUNC, "options": {"SystemdCgroup": False, "BinaryName": ""}}
    }
    runtimes = text_of.deep(builtin, named) if of >= (2, 0) else named or builtin
    return {
        "default": own.get("default_runtime_name", "runc"),
        "cdi": bool(table.get("enable_cdi", of >= (2, 0))) if of >= (1, 7) else False,
        "runtimes": {
            name: {
                "type": str(row.get("runtime_type") or ""),
                "cgroup": bool(inner(row, "options").get("SystemdCgroup")),
                "program": str(inner(row, "options").get("BinaryName") or ""),
            }
            for name, row in runtimes.items()
            if isinstance(row, dict)
        },
    }


def of_dump(text: str) -> Optional[Dict[str, Any]]:
    """Return :func:`effective` of the output of `containerd config dump`; None if CRI is not in it."""
    dump = text_of.read_toml(text)
    version = dump.get("version", 2)
    table = inner(dump, "plugins").get(CRI.get(version, CRI[3]))
    if not isinstance(table, dict):
        return None
    return effective(table, (1, 7) if version == 2 else (2, 0))


# -- the drop-in


def drop_in(files: Sequence[ConfigFile], want: Wants, of: Release) -> str:
    """Return the text of the drop-in for these files, the first of which is config.toml.

    Raises ConflictError, with file and line, for files that containerd does not read together, and
    for those that would undo the drop-in.
    """
    version = _version(files, of)
    others = files if of >= (2, 0) else [file for file in files if not file.after]
    base = merged(others, of)
    own = _settings(files, base, want, of)
    # 1.x replaces the table of a plugin as a whole, so the drop-in repeats it.
    table = own if of >= (2, 0) else text_of.deep(base, own)
    plugins = {plugin_of(files, version, of): table}
    text = f"{HEAD}version = {version}\n" + text_of.write_toml({"plugins": plugins})
    written = ConfigFile(DROP_IN, text, {"version": version, "plugins": plugins})
    before = [file for file in files if not file.after]
    _in_effect(before, written, [file for file in files if file.after], want, of)
    return text


def _version(files: Sequence[ConfigFile], of: Release) -> int:
    """Return the version that all files have. Raises ConflictError."""
    named = f"containerd {of[0]}.{of[1]}"
    version = files[0].document.get("version", 1)
    # containerd 2 has a command that migrates files, and it loses the CRI table of version 1.
    how = f'write it in version 3, where that table is plugins."{CRI[3]}"'
    if of < (2, 0):
        how = "`containerd config dump` prints it in version 2"
    old = ""
    if not isinstance(version, int) or version not in CRI:
        old = f". Its version is {version!r} too, and goldnode writes drop-ins of 2 to 4: {how}"
    for file in files:
        disabled = file.document.get("disabled_plugins", ())
        off = [name for name in disabled if name in CRI_NAMES] if isinstance(disabled, list) else []
        if off:  # the lists of all files are added up
            raise ConflictError(
                f'{file.at("disabled_plugins")}: disabled_plugins has "{off[0]}", without which no pod gets a GPU{old}'
            )
    for file in files:
        have = file.document.get("version", version)
        if not isinstance(have, int) or have not in CRI:
            raise ConflictError(
                f"{file.at('version')}: its version is {have!r}, and goldnode writes drop-ins of versions 2 to 4: {how}"
            )
        if have > newest(of):
            raise ConflictError(
                f"{file.at('version')}: its version is {have}, and {named} reads none later than {newest(of)}"
            )
        if have != version:
            raise ConflictError(
                f"{file.at('version')}: its version is {have} and that of {files[0].file} {version}: {named} does not "
                "put such files together"
            )
    return int(version)


def _of_runc(runtimes: Table) -> List[str]:
    """Return the runtimes that are runc, or a program in its place; others know no SystemdCgroup."""
    return [
        name
        for name, row in runtimes.items()
        if isinstance(row, dict) and row.get("runtime_type") == RUNC
    ]


def _settings(files: Sequence[ConfigFile], base: Table, want: Wants, of: Release) -> Dict[str, Any]:
    """Return the wanted settings as a part of the CRI table. Raises ConflictError."""

    def conflict(text: str, *words: str) -> ConflictError:
        file = next((file for file in reversed(files) if words[0] in file.text), files[0])
        return ConflictError(f"{file.at(*words)}: {text}")

    known = inner(base, "containerd")
    runtimes = inner(known, "runtimes")
    tables: Dict[str, Any] = {"containerd": {"runtimes": {}}}
    runc = inner(runtimes, "runc")
    if of < (2, 0) and not runc and known.get("default_runtime_name", "runc") == "runc":
        tables["containerd"]["runtimes"]["runc"] = {"runtime_type": RUNC}
    # A false is no contradiction: `containerd config default`, with which many files begin, prints it.
    groups = {"SystemdCgroup": True} if want.systemd else {}
    for name in ("runc", *_of_runc(runtimes)) if want.systemd else ():
        options = {**inner(inner(runtimes, name), "options"), **groups}
        tables["containerd"]["runtimes"][name] = {"runtime_type": RUNC, "options": options}
    if want.program is not None:
        nvidia = inner(runtimes, "nvidia")
        have = str(inner(nvidia, "options").get("BinaryName", want.program))
        if have.rpartition("/")[2] != want.program.rpartition("/")[2]:
            raise conflict(f'runtime "nvidia" runs "{have}", want "{want.program}"', have)
        # runc's options include the cgroup driver. With a different one, the kubelet could not start pods.
        options = {
            **inner(runc, "options"),
            **inner(nvidia, "options"),
            "BinaryName": have,
            **groups,
        }
        kind = nvidia.get("runtime_type", RUNC)
        tables["containerd"]["runtimes"]["nvidia"] = {"runtime_type": kind, "options": options}
        if want.default:
            default = known.get("default_runtime_name", "runc")
            if default not in ("runc", "nvidia"):
                raise conflict(
                    f'default_runtime_name is "{default}", want "nvidia"', "default_runtime_name"
                )
            tables["containerd"]["default_runtime_name"] = "nvidia"
    if want.cdi:
        if of < (1, 7):
            raise ConflictError(
                f"containerd {of[0]}.{of[1]} has no CDI: it does not read enable_cdi"
            )
        # `containerd config default` of 1.7, with which many files of version 2 begin, prints false. That of 2.0 prints true, so that in a file of
        # version 3 it was set on purpose.
        if base.get("enable_cdi") is False and files[0].document.get("version") != 2:
            raise conflict("enable_cdi is false, want true", "enable_cdi")
        tables["enable_cdi"] = True
    return tables


def _in_effect(
    before: Sequence[ConfigFile],
    written: ConfigFile,
    after: Sequence[ConfigFile],
    want: Wants,
    of: Release,
) -> None:
    """Raise ConflictError if a file that is read after the drop-in undoes it."""
    replacing = [file for file in after if file.plugin(CRI[2]) is not None]
    if of < (2, 0) and replacing:
        last = replacing[-1]
        raise ConflictError(
            f"{last.at(CRI[2])} is read after {DROP_IN}, and containerd {of[0]}.{of[1]} takes the whole table of a plugin "
            "from the last file. Give it a name that sorts before goldnode.toml"
        )
    got = effective(merged([*before, written, *after], of), of)
    nvidia, runc = got["runtimes"].get("nvidia", {}), got["runtimes"].get("runc", {})
    wrong = {
        "default_runtime_name": want.default and got["default"] != "nvidia",
        "enable_cdi": want.cdi and not got["cdi"],
        "BinaryName": want.program is not None
        and str(nvidia.get("program")).rpartition("/")[2] != want.program.rpartition("/")[2],
        "SystemdCgroup": (want.systemd and not runc.get("cgroup"))
        or (want.program is not None and nvidia.get("cgroup") != runc.get("cgroup", False)),
    }
    for key, differs in wrong.items():
        if differs:
            last = next((file for file in reversed(after) if key in file.text), written)
            raise ConflictError(
                f"{last.at(key)} is read after {DROP_IN} and sets {key} otherwise. Take it out of that file"
            )
