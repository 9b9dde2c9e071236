"""The Ansible collection goldnode.node, from the roles, playbooks and plugins of the tree."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

NAME = "goldnode.node"
_STATIC = "release/collection"
_PLUGINS = "src/goldnode/ansible"
# Kind of a plugin -> name of its class.
_CLASSES = {
    "action": "ActionModule",
    "callback": "CallbackModule",
    "inventory": "InventoryModule",
    "vars": "VarsModule",
}
# Kind of a plugin -> attribute of its class that is its full name.
_NAMES = {"action": "MODULE", "inventory": "NAME"}
_MODULE = re.compile(r"^( +(?:- )?)(goldnode_(?:rollout|state|drain|survey):)(?= |$)", re.MULTILINE)
_ROLE = re.compile(r"(import_role: \{name: )(\w+)")
_USAGE = re.compile(r"(ansible-playbook -i INVENTORY )(\w+)\.yml")


def stage(tree: Path, into: Path) -> str:
    """Write the source of the collection to `into`; return its version, that of pyproject.toml."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = str(project["version"])
    shutil.copytree(tree / _STATIC, into, ignore=shutil.ignore_patterns("__pycache__"))
    for path in into.rglob("*"):
        if path.is_file():
            path.write_text(
                path.read_text(encoding="utf-8").replace("@VERSION@", version), encoding="utf-8"
            )
    galaxy = into / "galaxy.yml"
    galaxy.write_text(f"{galaxy.read_text(encoding='utf-8')}version: {version}\n", encoding="utf-8")
    core = next(
        line
        for line in project["optional-dependencies"]["ansible"]
        if line.startswith("ansible-core")
    )
    _write(
        into / "meta/runtime.yml", f"---\nrequires_ansible: '{core.removeprefix('ansible-core')}'\n"
    )
    _write(into / "requirements.txt", f"goldnode=={version}\n")
    for name in ("CHANGELOG.md", "LICENSE"):
        shutil.copyfile(tree / name, into / name)
    for book in ("site", "rollback", "report"):
        _write(
            into / f"playbooks/{book}.yml",
            _playbook((tree / f"{book}.yml").read_text(encoding="utf-8")),
        )
    for path in sorted((tree / "roles").rglob("*.yml")):
        text = path.read_text(encoding="utf-8")
        # In meta/, goldnode_state is a variable of the role.
        _write(
            into / path.relative_to(tree), _qualified(text) if path.parent.name == "tasks" else text
        )
    _plugins(tree / _PLUGINS, into / "plugins")
    return version


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _qualified(text: str) -> str:
    """Give the modules of goldnode their full names."""
    return _MODULE.sub(rf"\1{NAME}.\2", text)


def _playbook(text: str) -> str:
    return _USAGE.sub(rf"\1{NAME}.\2", _ROLE.sub(rf"\1{NAME}.\2", _qualified(text)))


def _plugins(source: Path, into: Path) -> None:
    """Copy the modules, which run on nodes, and write a plugin that loads that of the package for each other one."""
    for path in sorted((source / "modules").glob("*.py")):
        _write(into / f"modules/{path.name}", _qualified(path.read_text(encoding="utf-8")))
    for kind, name in _CLASSES.items():
        for path in sorted((source / kind).glob("*.py")):
            _write(into / kind / path.name, _plugin(path, kind, name))


def _plugin(path: Path, kind: str, name: str) -> str:
    """Return a plugin with the documentation, from which Ansible reads the options, of the one at `path`."""
    text = path.read_text(encoding="utf-8")
    kept = [
        ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOCUMENTATION"
    ]
    own = _NAMES.get(kind)
    body = f'    {own} = "{NAME}.{path.stem}"\n' if own else '    """See DOCUMENTATION."""\n'
    parts = [
        f'"""The {kind} plugin {NAME}.{path.stem}: that of the Python package goldnode."""\n',
        "from __future__ import annotations\n",
        f"from ansible_collections.{NAME}.plugins.plugin_utils.package import load\n",
        *(f"{segment}\n" for segment in kept),
        f'\nclass {name}(load("goldnode.ansible.{kind}.{path.stem}", "{name}")):  # type: ignore[misc]\n{body}',
    ]
    return "\n".join(parts)


def build(tree: Path, work: Path, out: Path, epoch: int) -> Path:
    """Build the collection's archive in `out`; return its path.

    ansible-galaxy lists files in the order of the file system and writes the current time, so the archive is
    written again: sorted, with the time `epoch` (seconds) and fixed modes. Raises CalledProcessError.
    """
    source = work / "collection"
    version = stage(tree, source)
    command = [
        sys.executable,
        "-m",
        "ansible",
        "galaxy",
        "collection",
        "build",
        str(source),
        "--output-path",
        str(work),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    name = f"goldnode-node-{version}.tar.gz"
    (out / name).write_bytes(normalised((work / name).read_bytes(), epoch))
    return out / name


def normalised(archive: bytes, epoch: int) -> bytes:
    """Return a collection's archive with the same files, in a fixed order and with fixed metadata."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {member.name: member for member in tar}
        content = {
            name: tar.extractfile(name).read()  # type: ignore[union-attr]
            for name, member in members.items()
            if member.isfile()
        }
    files = json.loads(content["FILES.json"])
    files["files"].sort(key=lambda row: row["name"])
    content["FILES.json"] = json.dumps(files, indent=1).encode()
    manifest = json.loads(content["MANIFEST.json"])
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(
        content["FILES.json"]
    ).hexdigest()
    content["MANIFEST.json"] = json.dumps(manifest, indent=1).encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        # As ansible-galaxy has it, the manifests are first.
        for name in sorted(
            members, key=lambda name: (name not in ("MANIFEST.json", "FILES.json"), name)
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mtime = members[name].type, epoch
            entry.mode = 0o755 if entry.isdir() or members[name].mode & 0o100 else 0o644
            entry.size = len(content.get(name, b""))
            tar.addfile(entry, io.BytesIO(content.get(name, b"")))
    packed = io.BytesIO()
    with gzip.GzipFile(
        filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=epoch
    ) as file:
        file.write(raw.getvalue())
    return packed.getvalue()
