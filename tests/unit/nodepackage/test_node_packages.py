"""The packages of the node program: contents, bytes, and the judgement of dpkg, lintian and rpm."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.core.program_file import build
from goldnode.node.state.observe import LINKS, MANAGED

NAME = "goldnode-node_0.2.0-1_all.deb"


def made(*words: str) -> str:
    done = CliRunner().invoke(main, ["package", *words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deb")
    made("deb", "--out", str(out))
    (file,) = out.iterdir()
    return file


def members(file: Path) -> dict[str, bytes]:
    """Return the members of a .deb, read without dpkg."""
    data, at, found = file.read_bytes(), 8, {}
    assert data[:8] == b"!<arch>\n"
    while at < len(data):
        size = int(data[at + 48 : at + 58])
        found[data[at : at + 16].decode().strip()] = data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    return found


def entries(file: Path, member: str) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(members(file)[member]))) as tar:
        return {
            info.name: (info, opened.read() if (opened := tar.extractfile(info)) else b"")
            for info in tar
        }


def test_the_program_of_the_package_is_the_program_of_nodes(deb: Path) -> None:
    inside = entries(deb, "data.tar.xz")
    info, content = inside["./usr/bin/goldnode-node"]
    assert (content, info.mode) == (build(), 0o755)
    assert {(one.uid, one.gid, one.mtime) for one, _ in inside.values()} == {(0, 0, 1_767_225_600)}


def test_no_path_is_one_that_site_yml_writes(deb: Path) -> None:
    """Files of a class and of the package have one owner each: an upgrade of one never changes the other."""
    paths = [name[1:] for name in entries(deb, "data.tar.xz")]
    assert "/usr/bin/goldnode-node" in paths
    assert not set(paths) & set(LINKS)
    for folder, pattern in MANAGED:
        rule = re.compile(re.escape(f"{folder}/") + pattern.replace("*", "[^/]*"))
        assert not [path for path in paths if rule.fullmatch(path)]
    # dpkg would remove an empty directory of the class with the package.
    assert not [path for path in paths if path.startswith(("/usr/lib/goldnode", "/etc"))]


def test_dpkg_reads_the_package(deb: Path, tmp_path: Path) -> None:
    done = subprocess.run(["dpkg-deb", "-I", deb], capture_output=True, text=True, check=True)
    assert " Depends: python3:any (>= 3.9)\n" in done.stdout
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    subprocess.run(["dpkg-deb", "-e", deb, tmp_path / "DEBIAN"], check=True)
    sums = tmp_path / "DEBIAN/md5sums"
    subprocess.run(["md5sum", "--quiet", "-c", sums], cwd=tmp_path, check=True)
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", tmp_path / "DEBIAN" / script], check=True)
    units = sorted(tmp_path.glob("usr/lib/systemd/system/*"))
    assert [unit.name for unit in units] == ["goldnode-node.service", "goldnode-node.timer"]
    program = subprocess.run(
        [tmp_path / "usr/bin/goldnode-node", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert program.stdout == f"goldnode-node sha256:{hashlib.sha256(build()).hexdigest()}\n"


_OTHER = """
import os, sys
from pathlib import Path
os.umask(0o077)
from goldnode.cli import main
main(["package", *sys.argv[1:]])
"""


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_another_directory_time_zone_and_umask_give_the_same_bytes(
    kind: str, tmp_path: Path
) -> None:
    if kind == "rpm" and not shutil.which("rpmbuild"):
        pytest.skip("rpmbuild is not installed")
    made(kind, "--out", str(tmp_path / "one"))
    environment = {
        **os.environ,
        "TZ": "Asia/Kathmandu",
        "LANG": "de_DE.UTF-8",
        "HOME": str(tmp_path),
    }
    (tmp_path / ".rpmmacros").write_text("%_binary_payload w3.zstdio\n%packager a person\n")
    subprocess.run(
        [sys.executable, "-c", _OTHER, kind, "--out", "two"],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    (one,), (two,) = (tmp_path / "one").iterdir(), (tmp_path / "two").iterdir()
    assert one.read_bytes() == two.read_bytes()
    assert two.stat().st_mode & 0o777 == 0o644


def test_rpm_has_files_of_root_and_no_trace_of_the_machine(tmp_path: Path) -> None:
    if not shutil.which("rpmbuild"):
        pytest.skip("rpmbuild is not installed")
    made("rpm", "--out", str(tmp_path))
    (file,) = tmp_path.iterdir()
    query = [
        "rpm",
        "-qp",
        "--qf",
        "%{BUILDHOST} %{PAYLOADCOMPRESSOR}\n[%{FILEMODES:octal} %{FILEUSERNAME} %{FILENAMES}\n]",
    ]
    lines = subprocess.run(
        [*query, file], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines[0] == "goldnode gzip"
    assert "100755 root /usr/bin/goldnode-node" in lines
    assert all(line.startswith("100644 root /usr/") for line in lines[1:] if "/bin/" not in line)
    needs = subprocess.run(
        ["rpm", "-qp", "--requires", file], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert "python3 >= 3.9" in needs
    # The generator of rpmbuild would have asked for /usr/bin/env.
    assert not [need for need in needs if "env" in need]


@pytest.mark.parametrize("text", ["a name", "a <b>", "a <b@c>\nDepends: x", "<a@b.example>"])
def test_a_maintainer_without_an_address_is_refused(text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["package", "deb", "--out", str(tmp_path), "--maintainer", text]
    )
    assert done.exit_code == 2
    assert "names no maintainer. Write it as `NAME <ADDRESS>`" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("version", "want"),
    [("0.3.0.dev1", "0.3.0~dev1"), ("1.0rc2", "1.0~rc2"), ("1.0", "1.0"), ("1.0b1", "1.0~b1")],
)
def test_a_pre_release_sorts_before_its_release(
    version: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goldnode.nodepackage import contents

    monkeypatch.setattr(contents, "version", lambda: version)
    assert contents.package_version() == want
    release = re.split(r"\.?(?:dev|rc|b)", version)[0]
    order = "lt" if "~" in want else "eq"
    subprocess.run(["dpkg", "--compare-versions", want, order, release], check=True)
