"""Description of a Debian package, and its conversion to a file with dpkg-deb."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STAND_IN = "goldnode stand-in:"


@dataclass(frozen=True)
class Link:
    """A symbolic link in a package."""

    target: str


@dataclass(frozen=True)
class Program:
    """An executable file in a package."""

    text: str


Content = str | bytes | Link | Program


@dataclass(frozen=True)
class Deb:
    """One stand-in package. Relations use the syntax of a control file; `files` maps absolute paths to
    contents.

    `repository`, `suite` and `component` are where it is published. `group` is an optional part of the
    archive, which is published only on request; `""` is always published.
    """

    name: str
    version: str
    description: str
    repository: str
    suite: str
    component: str = "main"
    group: str = ""
    source: str = ""
    architecture: str = "amd64"
    section: str = "kernel"
    multi_arch: str = ""
    pre_depends: str = ""
    depends: str = ""
    recommends: str = ""
    provides: str = ""
    conflicts: str = ""
    breaks: str = ""
    replaces: str = ""
    files: Mapping[str, Content] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """Return the name of the package file, as dpkg-name would choose it."""
        return f"{self.name}_{self.version}_{self.architecture}.deb"

    def control(self) -> str:
        """Return the text of the control file."""
        area = "" if self.component == "main" else f"{self.component}/"
        fields = {
            "Package": self.name,
            "Source": self.source if self.source != self.name else "",
            "Version": self.version,
            "Architecture": self.architecture,
            "Multi-Arch": self.multi_arch,
            "Maintainer": "goldnode tests <nobody@invalid>",
            "Section": area + self.section,
            "Priority": "optional",
            "Pre-Depends": self.pre_depends,
            "Depends": self.depends,
            "Recommends": self.recommends,
            "Provides": self.provides,
            "Conflicts": self.conflicts,
            "Breaks": self.breaks,
            "Replaces": self.replaces,
            "Description": f"{STAND_IN} {self.description}",
        }
        return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)

    def build(self, target: Path) -> None:
        """Write the package file to `target`."""
        with tempfile.TemporaryDirectory(prefix="standin-") as directory:
            root = Path(directory)
            root.chmod(0o755)
            _write(root / "DEBIAN" / "control", self.control())
            conffiles = [path for path in self.files if path.startswith("/etc/")]
            if conffiles:
                _write(root / "DEBIAN" / "conffiles", "".join(f"{path}\n" for path in conffiles))
            for name, text in self.scripts.items():
                _write(root / "DEBIAN" / name, text if name == "triggers" else Program(text))
            note = f"/usr/share/doc/{self.name}/README.stand-in"
            text = f"{self.name} {self.version} is a stand-in made by goldnode's tests. It drives no hardware.\n"
            for path, content in {note: text, **self.files}.items():
                _write(root / path.lstrip("/"), content)
            # A fixed date and fast compression: builds are reproducible, and CPU time matters more than size.
            subprocess.run(
                [
                    "dpkg-deb",
                    "--root-owner-group",
                    "-Zgzip",
                    "-z1",
                    "--build",
                    str(root),
                    str(target),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
            )

    def stanza(self, deb: Path, filename: str) -> str:
        """Return the Packages paragraph for the built file `deb`, published at `filename`."""
        data = deb.read_bytes()
        control = self.control().replace(
            "Description:",
            f"Filename: {filename}\nSize: {len(data)}\nMD5sum: "
            f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\nDescription:",
        )
        return control + "\n"


def _write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Link):
        path.symlink_to(content.target)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content.text if isinstance(content, Program) else content, encoding="utf-8")
        path.chmod(0o755 if isinstance(content, Program) else 0o644)
