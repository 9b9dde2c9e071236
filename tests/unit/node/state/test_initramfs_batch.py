"""The wrapper of mkinitramfs: where it copies in batches, and where it leaves all to Debian's tool; and the functions themselves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from goldnode.node.ground.host import Host, Result
from goldnode.node.state import initramfs_batch
from goldnode.node.state.initramfs_batch import FUNCTIONS, HOOK_FUNCTIONS, KNOWN, MAKER, WRAPPER

DEBIANS = """\
copy_file() {
	echo "debian $*"
	return 7
}
manual_add_modules()
{
	echo "modules $*"
}
"""


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """The wrapper with Debian's programs in a directory of the test's; unshare(1) only runs what it is given, and mount(8) copies."""
    programs = tmp_path / "programs"
    programs.mkdir()
    scripts = {
        "mkinitramfs": f'cat {tmp_path}/hook-functions >{tmp_path}/used; echo made "$@"; exit 3',
        "unshare": '[ ! -e "$0.refused" ] || exit 1\nshift\nexec "$@"',
        "mount": 'cp "$2" "$3"',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "hook-functions").write_text(DEBIANS)
    printed = subprocess.run(
        ["sha256sum", tmp_path / "hook-functions"], capture_output=True, text=True, check=True
    )
    (tmp_path / "batch").write_text("# ours\n")
    path = tmp_path / "mkinitramfs"
    path.write_text(
        WRAPPER.replace(HOOK_FUNCTIONS, str(tmp_path / "hook-functions"))
        .replace(MAKER, str(programs / "mkinitramfs"))
        .replace(KNOWN, printed.stdout.split()[0])
    )
    path.chmod(0o755)
    return path


def run(wrapper: Path) -> subprocess.CompletedProcess[str]:
    """Run the wrapper as update-initramfs does."""
    environment = {"PATH": f"{wrapper.parent}/programs:{os.environ['PATH']}"}
    return subprocess.run(
        [str(wrapper), "-o", "FILE", "6.1"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_known_functions_get_ours_at_their_end_and_the_failure_stays(wrapper: Path) -> None:
    done = run(wrapper)
    assert (done.returncode, done.stdout) == (3, "made -o FILE 6.1\n")
    used = wrapper.with_name("used").read_text()
    assert (
        used
        == DEBIANS.replace("copy_file", "debian_copy_file").replace(
            "manual_add_modules", "debian_manual_add_modules"
        )
        + "# ours\n"
    )
    assert sorted(path.name for path in wrapper.parent.glob("functions.*")) == []


def test_other_functions_are_left_alone_and_it_is_reported(wrapper: Path) -> None:
    changed = DEBIANS.replace("return 7", "return 8")
    wrapper.with_name("hook-functions").write_text(changed)
    done = run(wrapper)
    reason = f"{wrapper.with_name('hook-functions')} has other functions than initramfs-tools 0.142"
    assert done.stdout == f"goldnode: mkinitramfs copies file by file: {reason}\nmade -o FILE 6.1\n"
    assert (done.returncode, wrapper.with_name("used").read_text()) == (3, changed)


def test_a_second_definition_is_another_function(wrapper: Path) -> None:
    with wrapper.with_name("hook-functions").open("a") as opened:
        opened.write("copy_file() {\n\t:\n}\n")
    assert "has other functions" in run(wrapper).stdout


def test_dracut_install_needs_no_batches_and_nothing_is_reported(wrapper: Path) -> None:
    with wrapper.with_name("hook-functions").open("a") as opened:
        opened.write("/usr/lib/dracut/dracut-install -D\n")
    assert run(wrapper).stdout == "made -o FILE 6.1\n"


def test_without_a_namespace_debians_tool_runs_alone(wrapper: Path) -> None:
    (wrapper.parent / "programs/unshare.refused").touch()
    done = run(wrapper)
    assert "file by file: no mount namespace can be made here\nmade" in done.stdout
    assert wrapper.with_name("used").read_text() == DEBIANS
    assert list(wrapper.parent.glob("functions.*")) == []


def shell(tmp_path: Path, script: str) -> str:
    """Run a script after Debian's functions (short ones) and ours, in dash as mkinitramfs does, and with strict options as hooks do."""
    renamed = DEBIANS.replace("copy_file", "debian_copy_file").replace("manual", "debian_manual")
    (tmp_path / "image").mkdir(exist_ok=True)
    done = subprocess.run(
        ["sh", "-c", f"set -eu; DESTDIR={tmp_path}/image\n{renamed}{FUNCTIONS}\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    return done.stdout.replace(str(tmp_path), "")


@pytest.mark.skipif(
    not Path("/bin").samefile("/usr/bin"), reason="the functions need a merged /usr"
)
def test_a_plain_file_is_copied_once_with_mode_and_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("data")
    source.chmod(0o640)
    os.utime(source, (1e9, 1e9))
    script = f"r=0; copy_file data {source} /etc/x || r=$?; echo $r; copy_file data {source} /etc/x || echo $?"
    assert shell(tmp_path, script) == "0\n1\n"
    copy = (tmp_path / "image/etc/x").stat()
    assert (oct(copy.st_mode), copy.st_mtime) == ("0o100640", 1e9)


UNUSUAL = {
    "a link": "/link /etc/x",
    "a file below a link": "/folder/file /etc/x",
    "a path that is not normalised": "/real/../real/file /etc/x",
    "a target that is not normalised": "/real/file /etc//x",
    "a target that ends in a slash": "/real/file /etc/",
    "a missing file": "/nothing /etc/x",
    "a directory": "/real /etc/x",
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_file_goes_to_debians_function(tmp_path: Path, case: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").touch()
    (tmp_path / "link").symlink_to("real/file")
    (tmp_path / "folder").symlink_to("real")
    script = f"r=0; copy_file data {tmp_path}{UNUSUAL[case]} || r=$?; echo $r"
    assert shell(tmp_path, script) == f"debian data {UNUSUAL[case]}\n7\n"


class Node(Host):
    """A node whose update-initramfs prints that it copied file by file."""

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None):  # type: ignore[no-untyped-def] # as in Host
        self.commands.append(argv)
        self.there = os.access(self.located(f"{initramfs_batch.TOOLS}/mkinitramfs"), os.X_OK)
        return Result(argv, 0, f"x\n{initramfs_batch.MARK}copies file by file: why\n", "")


def test_an_update_has_the_wrapper_first_on_its_path_and_leaves_nothing(tmp_path: Path) -> None:
    node, reported = Node(str(tmp_path)), list[str]()
    initramfs_batch.update_initramfs(node, reported.append, "-u", "-k", "6.1")
    (command,) = node.commands
    assert command[2:] == ("update-initramfs", "-u", "-k", "6.1")
    assert command[1].startswith(f"PATH={initramfs_batch.TOOLS}:")
    assert node.there
    assert not Path(node.located(initramfs_batch.TOOLS)).exists()
    assert reported == ["mkinitramfs copies file by file: why"]


def test_a_mkinitramfs_of_the_administrator_runs(tmp_path: Path) -> None:
    own = tmp_path / initramfs_batch.OWN[0].lstrip("/")
    own.parent.mkdir(parents=True)
    own.touch()
    node, reported = Node(str(tmp_path)), list[str]()
    initramfs_batch.update_initramfs(node, reported.append, "-u")
    assert node.commands == [("update-initramfs", "-u")]
    assert reported == [
        "mkinitramfs runs as it is: /usr/local/sbin/mkinitramfs comes before Debian's"
    ]
