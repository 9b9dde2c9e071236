"""Cache of parsed files: it spares the parser and the validators, and never gives an answer to another question."""

from __future__ import annotations

import hashlib
import marshal
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pydantic
import pytest

from goldnode.catalog.load import read_catalog
from goldnode.catalog.models import NodeClass
from goldnode.core import parsed_files, site, yamlsource
from goldnode.core.data import PACKAGE, data
from goldnode.core.errors import CatalogError, SiteError
from goldnode.lock import model as lock_model

STACK = data("catalog/stacks/debian12_cpu.yml")
# A check of all classes with all locks, and what it needed to read them.
CHECK = """
import sys
from goldnode.cli import main
try:
    main(["check", "--format", "json"])
finally:
    print(*sorted({"yaml", "goldnode.core.yamlparser", "pydantic.plugin._loader"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/parsed"


def check(there: Path) -> tuple[int, str, list[str]]:
    """Return status, answer and parsers of a check in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=there, capture_output=True, text=True, check=False
    )
    *_, needed = done.stderr.splitlines()
    return done.returncode, done.stdout, needed.split()


def test_a_second_check_of_all_classes_parses_and_validates_nothing(
    tmp_path: Path, cache: Path
) -> None:
    """A file that silently cannot be cached, as xid.yml once could not, would need the parser again."""
    site_file = tmp_path / "goldnode-site.yml"
    site_file.write_text("archives: {debian: {url: https://mirror.example/debian}}\n")
    status, answer, needed = check(tmp_path)
    assert {"yaml", "pydantic.plugin._loader"} <= set(needed)
    assert check(tmp_path) == (status, answer, [])
    assert len(list(cache.iterdir())) == 1
    assert (
        cache.stat().st_mode & 0o777,
        *(item.stat().st_mode & 0o777 for item in cache.iterdir()),
    ) == (
        0o700,
        0o600,
    )


def test_first_checks_at_once_leave_one_whole_cache(tmp_path: Path, cache: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(check, [tmp_path] * 3))
    assert len({answer[:2] for answer in answers}) == 1
    assert len(list(cache.iterdir())) == 1, "no half-written file is left"
    assert check(tmp_path) == (*answers[0][:2], [])


def test_code_has_all_modules_that_make_a_value() -> None:
    """A module that is not in CODE could change what a file means, and old values would be taken."""
    script = (
        "import sys, goldnode.catalog.load, goldnode.core.yamlparser, goldnode.lock.model\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'goldnode'), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    read = {str(Path(line).relative_to(PACKAGE)) for line in done.stdout.split()}
    assert sorted(parsed_files.CODE) == sorted(read)


def test_another_goldnode_or_library_has_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "package"
    for name in parsed_files.CODE:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((PACKAGE / name).read_bytes())
    before = parsed_files.code_digest()
    monkeypatch.setattr(parsed_files, "PACKAGE", copy)
    parsed_files.forget()
    assert parsed_files.code_digest() == before, "the place does not count"
    seen = {before}
    for name in parsed_files.CODE:
        with (copy / name).open("a") as module:
            module.write("#\n")
        parsed_files.forget()
        seen.add(parsed_files.code_digest())
    for owner, name in ((pydantic, "VERSION"), (sys, "version")):
        monkeypatch.setattr(owner, name, "9.9")
        parsed_files.forget()
        seen.add(parsed_files.code_digest())
    assert len(seen) == len(parsed_files.CODE) + 3
    (copy / "core/site.py").unlink()
    parsed_files.forget()
    assert parsed_files.values_file() is None, "without sources nothing is cached"
    parsed_files.forget()


def test_an_edited_file_is_read_again_although_its_size_and_times_are_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "stacks/debian12_cpu.yml"
    path.parent.mkdir()
    path.write_text(STACK.read_text())
    status = path.stat()
    assert read_catalog([tmp_path], None).stacks["debian12_cpu"].item.os.version == "12"
    parsed_files.forget()
    path.write_text(STACK.read_text().replace('version: "12"', 'version: "99"'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert read_catalog([tmp_path], None).stacks["debian12_cpu"].item.os.version == "99"


def test_site_file_and_lock_that_are_edited_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "site.yml"
    for locks in ("one", "two", "one"):
        file.write_text(f"locks: {locks}\n")
        for _ in range(2):
            parsed_files.forget()
            assert (site.load_site(file).locks, site.load_site(file).file) == (locks, file)
    written = next(data("catalog/stacks").glob("*.lock.yml"))
    lock = tmp_path / written.name
    lock.write_text(written.read_text())
    assert lock_model.read_lock(lock)[1] is None
    lock.write_text(written.read_text().replace("kernel_release: ", "kernel_release: x"))
    for _ in range(2):
        parsed_files.forget()
        assert lock_model.read_lock(lock)[1] is not None, (
            "the fault of an edited lock is never lost"
        )


def test_equal_texts_of_two_files_have_their_own_names_in_errors(tmp_path: Path) -> None:
    for name in ("one", "two"):
        path = tmp_path / name / "stacks/debian12_cpu.yml"
        path.parent.mkdir(parents=True)
        path.write_text(STACK.read_text())
        entry = read_catalog([tmp_path / name], None).stacks["debian12_cpu"]
        assert (entry.file, entry.source.text) == (path, path.read_text())
        lines = path.read_text().splitlines()
        line = next(n for n, text in enumerate(lines, start=1) if text.startswith("os:"))
        assert str(entry.error("wrong", "os")).startswith(f"{path}:{line}: wrong")


def test_files_with_faults_are_not_cached(tmp_path: Path) -> None:
    path = tmp_path / "stacks/debian12_cpu.yml"
    path.parent.mkdir()
    path.write_text(STACK.read_text() + "unknown: 1\n")
    for _ in range(2):
        parsed_files.forget()
        with pytest.raises(CatalogError, match='unknown key "unknown"') as caught:
            read_catalog([tmp_path], None)
        assert caught.value.line == STACK.read_text().count("\n") + 1


def test_zone_of_a_cached_site_file_is_looked_up_in_the_tz_database_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yml"
    file.write_text(
        "fleet:\n  calendars:\n    work:\n      file: a.ics\n      zone: Europe/Zurich\n"
    )
    site.load_site(file)
    parsed_files.forget()

    def gone(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(site, "ZoneInfo", gone)
    with pytest.raises(SiteError, match='"Europe/Zurich" is not a time zone') as caught:
        site.load_site(file)
    assert caught.value.line == 5


def stored(value: object) -> Path:
    parsed_files.remember("kind", "text", value)
    parsed_files.save()
    path = parsed_files.values_file()
    assert path is not None
    parsed_files.forget()
    return path


def test_file_that_another_user_could_have_written_is_not_read(cache: Path) -> None:
    path = stored((1, date(2026, 11, 29)))
    assert parsed_files.recall("kind", "text") == (1, date(2026, 11, 29))
    parsed_files.forget()
    path.chmod(0o620)
    assert parsed_files.recall("kind", "text") is None


def test_each_user_has_a_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored((1,))
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert parsed_files.recall("kind", "text") is None
    path.rename(path.with_name(path.name.rpartition("-")[0] + "-4321"))
    parsed_files.forget()
    assert parsed_files.recall("kind", "text") is None, "the owner is not this user"


@pytest.mark.parametrize("damage", [slice(0, 40), slice(0, -1), slice(0, 0), slice(1, None)])
def test_damaged_file_is_made_again(damage: slice) -> None:
    path = stored((1,))
    path.write_bytes(path.read_bytes()[damage])
    assert parsed_files.recall("kind", "text") is None
    assert stored((2,)) == path
    assert parsed_files.recall("kind", "text") == (2,)


class Harmful:
    """A value whose unpickling calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.putenv, ("GOLDNODE_HARMED", "yes")


@pytest.mark.parametrize(
    "harmful", [Harmful(), pickle.dumps, Path, site.find_site, pydantic.BaseModel]
)
def test_values_name_nothing_but_models_and_dates(harmful: object) -> None:
    path = stored((1,))
    content = marshal.dumps({parsed_files.key_of("kind", "text"): pickle.dumps(harmful)})
    path.write_bytes(hashlib.sha256(content).digest() + content)
    assert parsed_files.recall("kind", "text") is None
    parsed_files.remember("other", "text", harmful)
    assert parsed_files.recall("other", "text") is None


def test_value_that_does_not_come_back_equal_is_left_out() -> None:
    parsed_files.remember("kind", "text", (float("nan"),))
    assert parsed_files.recall("kind", "text") is None


def test_cache_that_cannot_be_written_changes_no_answer(cache: Path) -> None:
    before = read_catalog(None, None)
    cache.parent.mkdir(exist_ok=True)
    for item in cache.iterdir():
        item.unlink()
    cache.rmdir()
    cache.write_text("no directory")
    parsed_files.forget()
    after = read_catalog(None, None)
    assert after == before
    assert cache.read_text() == "no directory"


def test_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a number that no user has, and without HOME."""
    monkeypatch.delenv("GOLDNODE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert read_catalog(None, None).stacks
    assert parsed_files.values_file() is None


def test_values_of_other_processes_stay_and_the_oldest_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = stored(("first",))
    parsed_files.recall("kind", "other")  # this process has read the file
    content = marshal.dumps({**parsed_files.read_values(path), b"theirs": b"value"})
    path.write_bytes(hashlib.sha256(content).digest() + content)
    parsed_files.remember("kind", "own", ("own",))
    parsed_files.save()
    assert len(parsed_files.read_values(path)) == 3
    monkeypatch.setattr(parsed_files, "LIMIT", 40)
    parsed_files.remember("kind", "last", ("last",))
    parsed_files.save()
    parsed_files.forget()
    assert parsed_files.recall("kind", "last") == ("last",)
    assert parsed_files.recall("kind", "text") is None
    assert sum(map(len, parsed_files.read_values(path).values())) <= 40


def test_files_of_earlier_versions_are_removed(cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(12):
        (cache / str(number)).touch()
        os.utime(cache / str(number), (number, number))
    path = stored((1,))
    assert len(list(cache.iterdir())) == 8
    assert path.exists()


def test_load_returns_what_read_and_validate_return() -> None:
    for path in sorted(data("catalog/classes").glob("*.yml")):
        source = yamlsource.read(path)
        expected = (yamlsource.validate(NodeClass, source), source)
        assert yamlsource.load(NodeClass, path) == expected
        assert yamlsource.load(NodeClass, path) == expected, "from the cache"
