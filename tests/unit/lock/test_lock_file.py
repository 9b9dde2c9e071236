"""A lock file that is not as goldnode wrote it is an error with file, line and remedy, and a write leaves a whole lock whatever happens."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import EditedLockError, LockError
from goldnode.core.site import Site
from goldnode.lock.model import Lock, dump_lock, find_lock, load_lock, read_lock, write_lock

NAME = "debian12_cpu"
COMMITTED = builtin_catalog() / "stacks" / f"{NAME}.lock.yml"


def other_hash(text: str) -> str:
    return re.sub(r'sha256: "?[0-9a-f]{64}"?', f"sha256: {'a' * 64}", text, count=1)


def line_of(text: str, start: str) -> int:
    return next(
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.lstrip().startswith(start)
    )


@pytest.mark.parametrize(
    ("edit", "error", "at", "message"),
    [
        pytest.param(
            other_hash,
            EditedLockError,
            "digest:",
            f"edited after goldnode wrote it.*`goldnode lock {NAME}`",
            id="hash",
        ),
        pytest.param(
            lambda text: text.replace('version: "', 'version: "9', 1),
            EditedLockError,
            "digest:",
            "edited after goldnode",
            id="version",
        ),
        pytest.param(
            lambda text: "\n".join(text.splitlines()[:-1]) + "\n",
            EditedLockError,
            "digest:",
            "edited after goldnode",
            id="line-cut-off",
        ),
        pytest.param(
            lambda text: text.replace(
                next(line for line in text.splitlines() if "name: kmod," in line) + "\n", ""
            ),
            EditedLockError,
            "digest:",
            "edited after goldnode",
            id="package-taken-out",
        ),
        pytest.param(
            lambda text: re.sub(r"digest: sha256:\w+\n", "", text),
            EditedLockError,
            "lock:",
            "has no `digest`.*`goldnode lock",
            id="no-digest",
        ),
        pytest.param(
            lambda text: re.sub(r"digest: sha256:\w{60}", "digest: sha256:", text),
            LockError,
            "digest:",
            '"digest" is ".*expected',
            id="digest",
        ),
        pytest.param(
            lambda text: text[: text.rindex("path:")],
            LockError,
            None,
            "not valid YAML.*--upgrade",
            id="cut-in-a-row",
        ),
        pytest.param(
            lambda text: text[: text.index("packages:")],
            LockError,
            "lock:",
            '"packages" is missing.*--upgrade',
            id="cut-before",
        ),
        pytest.param(
            lambda text: "", LockError, None, "the document is empty.*--upgrade", id="empty"
        ),
        pytest.param(
            lambda text: text.replace("intent:", "intend:"),
            LockError,
            "intend:",
            'Use "intent"',
            id="unknown-key",
        ),
        pytest.param(
            lambda text: text.replace("lock: 1", "lock: 2"),
            LockError,
            "lock:",
            "schema 2, and this goldnode reads schema 1",
            id="newer-schema",
        ),
        pytest.param(
            lambda text: text.replace("lock: 1", "lock: one"),
            LockError,
            "lock:",
            '"lock" is "one"',
            id="schema-of-no-kind",
        ),
        pytest.param(
            lambda text: text.replace("stack: ", "<<<<<<< ours\nstack: ", 1),
            LockError,
            None,
            "conflict markers of a merge",
            id="unresolved-merge",
        ),
    ],
)
def test_damaged_lock_is_an_error_with_line_and_remedy(
    tmp_path: Path, edit: Callable[[str], str], error: type[LockError], at: str | None, message: str
) -> None:
    path = tmp_path / COMMITTED.name
    text = edit(COMMITTED.read_text(encoding="utf-8"))
    assert text != COMMITTED.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=f"(?s){message}") as caught:
        load_lock(path)
    assert caught.value.file == str(path)
    assert caught.value.line is not None
    assert at is None or caught.value.line == line_of(text, at)
    assert caught.value.remedy


def test_a_lock_under_the_name_of_another_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "debian12_r535.lock.yml").write_text(
        COMMITTED.read_text(encoding="utf-8"), encoding="utf-8"
    )
    monkeypatch.setenv("GOLDNODE_LOCKS", str(tmp_path))
    with pytest.raises(LockError, match=f'the lock of stack "{NAME}", not of "debian12_r535"'):
        find_lock(load_catalog([builtin_catalog()]).stacks["debian12_r535"], Site())


def test_comments_are_no_edit_and_an_edited_lock_can_be_read_for_its_versions(
    tmp_path: Path,
) -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    path = tmp_path / COMMITTED.name
    path.write_text(
        text.replace("packages:\n", "# reviewed by the platform team\npackages:\n"),
        encoding="utf-8",
    )
    assert load_lock(path) == load_lock(COMMITTED)
    path.write_text(other_hash(text), encoding="utf-8")
    lock, fault = read_lock(path)
    assert isinstance(fault, EditedLockError)
    assert [item.version for item in lock.packages] == [
        item.version for item in load_lock(COMMITTED).packages
    ]


def changed(lock: Lock) -> Lock:
    return lock.model_copy(update={"resolved": "2030-01-01"})


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_write_that_is_cut_off_leaves_the_old_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    lock = load_lock(COMMITTED)
    path = write_lock(lock, tmp_path)

    def stop(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr({"fsync": os, "replace": Path}[at], at, stop)
    with pytest.raises(LockError, match=r"cannot be written: No space left on device.*--out"):
        write_lock(changed(lock), tmp_path)
    assert load_lock(path) == lock
    assert [item.name for item in tmp_path.iterdir()] == [path.name], "something was left behind"


def test_a_place_that_is_no_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LockError, match="cannot be written"):
        write_lock(load_lock(COMMITTED), tmp_path / "file")


def test_the_file_is_its_content_and_nothing_else(tmp_path: Path) -> None:
    lock = load_lock(COMMITTED)
    first = write_lock(lock, tmp_path / "a").read_bytes()
    again = write_lock(Lock.model_validate(lock.model_dump()), tmp_path / "b").read_bytes()
    assert first == again == dump_lock(lock).encode()
    differ = [
        (a, b)
        for a, b in zip(
            first.splitlines(), dump_lock(changed(lock)).encode().splitlines(), strict=True
        )
        if a != b
    ]
    assert [a.split(b":")[0] for a, _ in differ] == [b"digest", b"resolved"]
