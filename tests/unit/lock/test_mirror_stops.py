"""Runs that are killed, that meet, or that find the disk full: nothing is half published, and the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.lock.mirrors import Setting, tree, use_mirror

from goldnode.core.errors import MirrorError
from goldnode.lock.fetch import Fetcher
from goldnode.lock.mirror import Mirror
from goldnode.lock.publication import Publication, publication_id

# Runs `goldnode mirror …`, and dies before the given call of a function: as SIGKILL does it, without a chance to clean up.
DIES = """
import importlib, os, signal, sys
where, count = sys.argv[1], int(sys.argv[2])
module, _, name = where.rpartition(":")
holder = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    holder = getattr(holder, part)
real = getattr(holder, last)
def dies(*arguments, **named):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)
setattr(holder, last, dies)
from goldnode.cli import main
main(["mirror", *sys.argv[3:]])
"""


def environment(setting: Setting) -> dict[str, str]:
    root = setting.place.root
    return {
        **os.environ,
        "GOLDNODE_CATALOG": str(root / "catalog"),
        "GOLDNODE_SITE": str(root / "site.yml"),
        "GOLDNODE_CACHE": str(root / "c"),
    }


def dying(setting: Setting, where: str, count: int = 1) -> None:
    command = [sys.executable, "-c", DIES, where, str(count), "small"]
    done = subprocess.run(
        command, env=environment(setting), capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, (
        f"it was to die at {where}:\n{done.stdout}{done.stderr}"
    )


@pytest.mark.parametrize(
    ("where", "count", "published"),
    [
        ("goldnode.lock.mirror:Mirror.keep", 9, False),
        ("goldnode.lock.publish:os.link", 7, False),
        ("goldnode.lock.publish:prove", 1, False),
        ("pathlib:Path.rename", 1, False),
        ("pathlib:Path.symlink_to", 1, True),
    ],
)
def test_killed_anywhere_the_next_run_finishes(
    setting: Setting, where: str, count: int, published: bool
) -> None:
    dying(setting, where, count)
    whole = [
        path for path in setting.directory.glob("stacks/small/*") if not path.name.startswith(".")
    ]
    assert bool(whole) is published
    assert not (setting.directory / "stacks/small/current").is_symlink()
    for path in whole:
        assert Publication.read(path).hashes == {item.sha256 for item in setting.lock.packages}
    stored = {item.name for item in setting.lock.packages if setting.mirror.has(item.sha256)}
    # Four are fetched at once (Fetcher's `parallel`): what the others had begun on is lost with it.
    assert len(stored) >= count - 4
    setting.server.asked.clear()
    result = setting.run("small")
    assert result.exit_code == 0, result.output
    assert not stored & set(setting.server.names())
    assert setting.stacks() == sorted(
        [publication_id(item.sha256 for item in setting.lock.packages), "current"]
    )
    assert setting.run("verify").exit_code == 0


def test_a_lock_that_apt_cannot_install_is_not_published_and_the_earlier_one_stays(
    setting: Setting, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setting.filled(tmp_path_factory.mktemp("filled"))
    before = tree(setting.directory / "stacks")
    stack = setting.directory / "stacks/small"
    # Another lock: one package less of the base.
    lock = setting.lock
    shorter = lock.model_copy(
        update={"packages": [item for item in lock.packages if item.name != "linux-libc-dev"]}
    )
    setting.lock = shorter
    with pytest.raises(MirrorError, match="does not hold with apt, so it is not published"):
        setting.publish()
    assert tree(stack.parent) == before


def test_two_runs_at_once(setting: Setting) -> None:
    command = [sys.executable, "-m", "goldnode.cli", "mirror"]
    with setting.mirror.writing():
        refused = subprocess.run(
            [*command, "small"],
            env=environment(setting),
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode == 2
        assert (
            f"another run is writing this mirror: process {os.getpid()}. Wait for it"
            in refused.stderr
        )
        assert setting.server.asked == []
        waiting = subprocess.Popen(
            [*command, "fetch", "small", "--wait", "300"],
            env=environment(setting),
            stdout=subprocess.PIPE,
            text=True,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(3)
        assert setting.server.asked == []
    out, _ = waiting.communicate(timeout=300)
    assert waiting.returncode == 0
    assert "16 packages in" in out
    assert setting.run("verify").exit_code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 350 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=350k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this user cannot mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_while_files_come(
    setting: Setting,
    small_disk: Path,
    pair: tuple[str, Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = small_disk / "mirror"
    use_mirror(
        setting.place, setting.server.url, mirror=directory, signing_key=pair[1], key=pair[2]
    )
    refused = setting.run("small")
    assert refused.exit_code == 2
    assert "and 0 MB are free. Make room" in refused.output
    # The room was there when the run began, and somebody else took it.
    monkeypatch.setattr(Mirror, "_room", lambda *_: None)
    monkeypatch.setattr(Fetcher, "_check_room", lambda *_: None)
    full = setting.run("small", "--jobs", "1")
    assert full.exit_code == 2, full.output
    assert (
        "the disk is full; nothing was published, and what was fetched is kept. Make room"
        in full.output
    )
    assert not (directory / "stacks").exists()
    stored = {path.name for path in (directory / "store/sha256").glob("*/*")}
    subprocess.run(["mount", "-o", "remount,size=9m", str(small_disk)], check=True)
    setting.server.asked.clear()
    assert setting.run("small").exit_code == 0
    assert not {item.name for item in setting.lock.packages if item.sha256 in stored} & set(
        setting.server.names()
    )
    assert setting.run("verify").exit_code == 0


def test_a_disk_that_fills_while_it_is_published(
    setting: Setting, small_disk: Path, pair: tuple[str, Path, Path]
) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    directory = small_disk / "mirror"
    use_mirror(
        setting.place, setting.server.url, mirror=directory, signing_key=pair[1], key=pair[2]
    )
    setting.mirror, setting.directory = Mirror.open(directory), directory
    assert setting.fetch() == []
    free = os.statvfs(small_disk)
    (small_disk / "somebody-else").write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    full = setting.run("small")
    assert full.exit_code == 2, full.output
    assert "the disk is full; nothing was published" in full.output
    assert setting.stacks() == []
    (small_disk / "somebody-else").unlink()
    assert setting.run("small").exit_code == 0
    assert setting.run("verify").exit_code == 0


def test_a_mirror_that_cannot_be_written(setting: Setting) -> None:
    setting.directory.write_text("a file")
    result = setting.run("small")
    assert result.exit_code == 2
    assert "the mirror is no directory" in result.output


def test_a_lock_edited_by_hand(setting: Setting) -> None:
    lock = setting.lock
    other = [
        item.model_copy(update={"version": "535.999-1"}) if item.name == "libcuda1" else item
        for item in lock.packages
    ]
    setting.fetch()
    setting.lock = lock.model_copy(update={"packages": other})
    with pytest.raises(
        MirrorError,
        match=r"libcuda1 535\.999-1 amd64, and it is libcuda1 535\.261\.03-1 amd64\. Lock again; a lock is not to be edited",
    ):
        setting.publish()
    assert setting.stacks() == []


def test_nothing_is_published_of_files_that_are_not_there(setting: Setting) -> None:
    with pytest.raises(
        MirrorError,
        match=r"16 of 16 files are not in the mirror, the first is .*\. Run `goldnode mirror small`",
    ):
        setting.publish()


def test_fetched_packages_are_published_and_verified_offline(setting: Setting) -> None:
    assert setting.fetch() == []
    offline = [
        "unshare",
        "--map-root-user",
        "--net",
    ]  # a network namespace without a route, or even an address
    if subprocess.run([*offline, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no network namespaces")
    assert not subprocess.run(
        [*offline, "ip", "route"], capture_output=True, text=True, check=True
    ).stdout
    for words in (["small"], ["verify"]):
        command = [*offline, sys.executable, "-m", "goldnode.cli", "mirror", *words]
        done = subprocess.run(
            command, env=environment(setting), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert len(setting.stacks()) == 2
