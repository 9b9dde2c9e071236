"""The files of podman that undo goldnode's drop-in, against what the releases of Debian 12 and 13 run containers with."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.debian_archive import debian_archive

from goldnode.node.effective import podman
from goldnode.node.ground.host import Host
from goldnode.node.state.domains.runtime import PROGRAM

RELEASES = {"bookworm": "4.3", "trixie": "5.4"}
ETC, CONF = podman.FOLDER, podman.SYSTEM[1]
OTHER = "/usr/bin/other-runtime"
CRUN = '[engine]\nruntime = "crun"\n'
CHOSEN = "nvidia " + PROGRAM
OTHERS = f'[engine.runtimes]\nnvidia = ["{OTHER}"]\n'
NO_PROGRAM = 'default OCI runtime "nvidia" not found'
DROP_IN = f'[engine]\nruntime = "nvidia"\n\n[engine.runtimes]\nnvidia = ["{PROGRAM}"]\n'


@dataclass(frozen=True)
class Case:
    """Files beside the drop-in; runtime and program in `podman info`, or its error; file and line in the message of goldnode.

    `old` and `new` are of 4.3.1 and 5.4.2; without `new` both are equal.
    """

    name: str
    files: dict[str, str | None]  # None: a link to nothing
    old: str
    new: str | None = None
    at: str = ""

    def result(self, release: str) -> str:
        return self.old if release == "4.3" or self.new is None else self.new


CASES = [
    Case("alone", {}, CHOSEN),
    Case("a later file", {f"{ETC}/99.conf": CRUN}, "crun /usr/bin/crun", at=f"{ETC}/99.conf:2 sets runtime"),
    Case("an earlier file", {f"{ETC}/10.conf": CRUN}, CHOSEN),
    Case("containers.conf itself", {CONF: CRUN}, CHOSEN),
    Case("root's own file", {podman.OWN: CRUN}, CHOSEN, "crun /usr/bin/crun", at=f"{podman.OWN}:2 sets runtime"),
    Case("root's own folder", {f"{podman.OWN}.d/10.conf": CRUN}, CHOSEN, "crun /usr/bin/crun", at=f"{podman.OWN}.d/10.conf:2 sets runtime"),
    Case("another runtime in a later file", {f"{ETC}/99.conf": '[engine.runtimes]\nkata = ["/usr/bin/kata"]\n'}, CHOSEN),
    Case("another program in a later file", {f"{ETC}/99.conf": OTHERS}, f"nvidia {OTHER}", at=f"{ETC}/99.conf:2 sets nvidia"),
    Case("another program in an earlier file", {f"{ETC}/10.conf": OTHERS}, CHOSEN),
    Case("a list without a program", {f"{ETC}/99.conf": "[engine.runtimes]\nnvidia = []\n"}, NO_PROGRAM, at=f"{ETC}/99.conf:2 sets nvidia"),
    Case("a path for a name", {f"{ETC}/99.conf": f'[engine]\nruntime = "{OTHER}"\n'}, f"{OTHER} {OTHER}", at=f"{ETC}/99.conf:2 sets runtime"),
    # Without any setting podman takes crun.
    Case("an empty name", {f"{ETC}/99.conf": '[engine]\nruntime = ""\n'}, "runc /usr/bin/runc", at=f"{ETC}/99.conf:2 sets runtime"),
    Case("a capital letter", {f"{ETC}/99.conf": '[engine]\nRuntime = "crun"\n'}, "crun /usr/bin/crun", at=f"{ETC}/99.conf:2 sets runtime"),
    Case("a table in capitals", {f"{ETC}/99.conf": '[ENGINE]\nruntime = "crun"\n'}, "crun /usr/bin/crun", at=f"{ETC}/99.conf:2 sets runtime"),
    Case("a value of another type", {f"{ETC}/99.conf": "[engine]\nruntimes = 3\n"}, CHOSEN),
    Case("a key that nobody knows", {f"{ETC}/99.conf": "[engine]\nno_such_key = 3\n"}, CHOSEN),
    Case("no TOML", {f"{ETC}/99.conf": "engine = [\n"}, "decode configuration", at=f"{ETC}/99.conf:2:1: this is no TOML"),
    Case("no TOML, hidden", {f"{ETC}/.99.conf": "engine = [\n"}, "decode configuration", at=f"{ETC}/.99.conf:2:1: this is no TOML"),
    Case("no TOML under another name", {f"{ETC}/99.txt": "engine = [\n"}, CHOSEN),
    Case("a folder", {f"{ETC}/98.conf/a.conf": CRUN}, CHOSEN),
    Case("a link to nothing", {f"{ETC}/97.conf": None}, "decode configuration", CHOSEN, at=f"{ETC}/97.conf is a link to nothing"),
]  # fmt: skip


def put(root: Path, case: Case) -> None:
    """Write the files of a case, and the drop-in."""
    for name, text in {**case.files, podman.DROP_IN: DROP_IN}.items():
        place = root / name[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            place.symlink_to("/nowhere")
        else:
            place.write_text(text)


@pytest.mark.parametrize("release", RELEASES.values())
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_that_undoes_the_drop_in_is_named_with_its_line(
    tmp_path: Path, case: Case, release: str
) -> None:
    put(tmp_path, case)
    major, minor = map(int, release.split("."))
    rows = podman.files(Host(str(tmp_path)), (major, minor))
    why = podman.undone(rows, (major, minor), PROGRAM, default=True)
    if case.result(release) == CHOSEN:
        assert why is None
    else:
        assert why is not None
        assert why.startswith(case.at)


def test_other_default_is_no_fault_of_a_class_that_sets_none(tmp_path: Path) -> None:
    put(tmp_path, Case("", {f"{ETC}/99.conf": CRUN}, ""))
    rows = podman.files(Host(str(tmp_path)), (5, 4))
    assert podman.undone(rows, (5, 4), PROGRAM, default=False) is None
    assert podman.undone(rows, (5, 4), PROGRAM, default=True) is not None


ASK = "podman --cgroup-manager=cgroupfs info --format '{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}'"


@pytest.mark.long
@pytest.mark.parametrize("suite", RELEASES)
def test_podman_of_debian(tmp_path: Path, suite: str) -> None:
    """Each release from Debian's archive in a root of its own; `podman info` names what a container would be run with."""
    root = tmp_path / "root"
    words = ["mmdebstrap", "-q", "--variant=apt", "--include=podman,crun,runc", "--aptopt=APT::Install-Recommends false"]  # fmt: skip
    source = f"deb {debian_archive()} {suite} main"
    subprocess.run([*words, suite, root, source], check=True, timeout=900)
    for program in (PROGRAM, OTHER):
        shutil.copy(root / "usr/bin/runc", root / program[1:])
    mounts = f"mount -t proc proc {root}/proc; mount --rbind /sys {root}/sys; mount -t tmpfs tmp {root}/tmp; mount --bind /dev {root}/dev"
    for case in CASES:
        for place in (CONF, ETC, podman.OWN, f"{podman.OWN}.d"):
            subprocess.run(["rm", "-rf", root / place[1:]], check=True)
        put(root, case)
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", f"{mounts}; exec chroot {root} {ASK}"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert case.result(RELEASES[suite]) in done.stdout + done.stderr, case.name
