"""The package for systems with RPM, made by rpmbuild.

Its bytes depend on the version of rpmbuild, which writes it into each package. Debian's rpmbuild was used, and dnf of
Debian: no system of the RHEL family was at hand.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from goldnode.core.deb import PackagedFile
from goldnode.core.errors import GoldnodeError
from goldnode.lock.publication import NODE_PACKAGE
from goldnode.nodepackage.contents import (
    DEPENDS,
    EPOCH,
    FEDORA,
    SERVICE,
    SUMMARY,
    TEXT,
    TIMER,
    Words,
    binding_licence,
    files,
    package_version,
)

# Everything that differs between distributions, versions and machines, and would change the bytes or the content.
_MACROS = {
    "_buildhost": "goldnode",
    "_binary_payload": "w9.gzdio",  # zstd, the default of others, is not read by RPM before 4.14
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",  # RPM before 4.20
    "build_mtime_policy": "clamp_to_source_date_epoch",  # RPM 4.20 and later
    "_build_id_links": "none",
    "__os_install_post": "%{nil}",  # no byte code beside the program, no other compression of the man page
    "_rpmformat": "4",  # RPM 6 writes a format by default that RPM before 6 does not install
    "__spec_install_pre": "%{nil}",
    "_missing_doc_files_terminate_build": "0",
    "vendor": "%{nil}",
    "packager": "%{nil}",
    "distribution": "%{nil}",
    "disttag": "%{nil}",
}
SPEC = f"{NODE_PACKAGE}.spec"
_SPEC = """\
Name: {name}
Version: {version}
Release: {revision}
Summary: {summary}
License: Apache-2.0 AND BSD-3-Clause
BuildArch: noarch
Requires: python3 >= {python}
AutoReqProv: no

%description
{text}

%install
rm -rf "%{{buildroot}}"
cp -R --preserve=mode,timestamps "%{{_topdir}}/root" "%{{buildroot}}"

%post
if [ $1 -eq 1 ] && [ -x /usr/bin/systemctl ]; then systemctl --no-reload preset {timer} >/dev/null 2>&1 || :; fi

%preun
if [ $1 -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now {timer} {service} >/dev/null 2>&1 || :
fi

%postun
if [ -d /run/systemd/system ]; then systemctl daemon-reload >/dev/null 2>&1 || :; fi

%files
{files}
"""


def build(words: Words, revision: int, into: Path) -> Path:
    """Write the package to the directory `into` and return its path. Raises GoldnodeError."""
    with tempfile.TemporaryDirectory(prefix="goldnode-rpm-") as name:
        top = Path(name)
        prepare(words, revision, top)
        _rpmbuild(top)
        made = next((top / "out").rglob("*.rpm"))
        target = into / made.name
        target.write_bytes(made.read_bytes())
        return target


def prepare(words: Words, revision: int, top: Path) -> None:
    """Write the files of the package and its spec below `top`."""
    own = files(words, FEDORA)
    licence = PackagedFile(
        f"/usr/share/licenses/{NODE_PACKAGE}/LICENSE.pynvml",
        "\n".join([*binding_licence(), ""]).encode(),
    )
    rows = []
    for file in sorted([*own, licence]):
        here = top / "root" / file.path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(file.content)
        here.chmod(file.mode)
        os.utime(here, (EPOCH, EPOCH))
        kind = "%license " if file == licence else ""
        rows.append(f"%attr({file.mode:o}, root, root) {kind}{file.path}")
    spec = _SPEC.format(
        name=NODE_PACKAGE,
        version=package_version().replace("-", "."),
        revision=revision,
        summary=SUMMARY,
        python=DEPENDS,
        text="\n\n".join(TEXT),
        timer=TIMER,
        service=SERVICE,
        files="\n".join(rows),
    )
    (top / SPEC).write_text(spec, encoding="utf-8")


def command(top: str) -> tuple[list[str], dict[str, str]]:
    """Return the call of rpmbuild on what `prepare` has written below `top`, and its environment."""
    words = ["rpmbuild", "-bb", "--quiet"]
    for name, value in {**_MACROS, "_topdir": top, "_rpmdir": f"{top}/out"}.items():
        words += ["--define", f"{name} {value}"]
    environment = {
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "HOME": top,  # the user's ~/.rpmmacros would change the package
    }
    return [*words, f"{top}/{SPEC}"], environment


def _rpmbuild(top: Path) -> None:
    words, environment = command(str(top))
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
            umask=0o022,
        )
    except FileNotFoundError as error:
        raise GoldnodeError(
            "rpmbuild is not on this machine", remedy="install it: apt-get install rpm"
        ) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise GoldnodeError(
            f"rpmbuild cannot make {NODE_PACKAGE}: {lines[-1] if lines else 'it gives no reason'}",
            remedy="see what it says",
        )
