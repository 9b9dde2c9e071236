"""Declarations of derived images: values, their faults with file and line, and requirements files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goldnode.core.errors import ImageError
from goldnode.images.declaration import expanded, load_declaration, read_requirements

RIGHT = """\
derive: 1
name: recsys/trainer
version: "2.1"
base: cpu-1-base-debian12
files: {/app/main.py: main.py}
env: {MODE: fast}
labels: {team: recsys}
tests: [{name: main, run: [python3, /app/main.py]}]
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "derive.yml"
    file.write_text(text)
    return file


def test_directory_is_read_as_its_declaration(tmp_path: Path) -> None:
    write(tmp_path, RIGHT)
    found = load_declaration(tmp_path)
    assert (found.data.name, found.data.redistribution) == ("recsys/trainer", "private")
    assert found.directory == tmp_path


@pytest.mark.parametrize(
    ("right", "wrong", "line", "message"),
    [
        ("derive: 1", "derive: 2", 1, "format 2"),
        ("name: recsys/trainer", "name: Recsys", 2, "name"),
        ('version: "2.1"', "version: 2-1", 3, "version"),
        ("base: cpu-1-base-debian12", "bases: x", 4, "bases"),
        ("/app/main.py", "app/main.py", 5, "no absolute path"),
        ("/app/main.py", "/app/../etc/passwd", 5, "no absolute path"),
        ("/app/main.py", "/usr/lib/goldnode/image.json", 5, "not a place"),
        ("MODE: fast", "CUDA_VERSION: '13'", 6, "describes the base"),
        ("team: recsys", "io.goldnode.backend: rocm", 7, "goldnode's"),
        ("team: recsys", "org.opencontainers.image.base.name: x", 7, "goldnode's"),
        ("labels: {team: recsys}", "workdir: app", 7, 'no container starts. Write "/app"'),
        ("name: main", "name: Main", 8, "name"),
        ("[python3, /app/main.py]", "[]", 8, "run"),
        ("[python3, /app/main.py]", "python3 /app/main.py", 8, "run"),
        ("main.py]}", "main.py], seconds: 1801}", 8, "seconds"),
        ("main.py]}", "main.py], tier: all}", 8, "tier"),
        ("main.py]}]", "main.py]}, {name: main, run: [a]}]", 8, 'two tests are named "main"'),
    ],
)
def test_faults_name_their_line(
    tmp_path: Path, right: str, wrong: str, line: int, message: str
) -> None:
    with pytest.raises(ImageError, match=message) as raised:
        load_declaration(write(tmp_path, RIGHT.replace(right, wrong)))
    assert raised.value.line == line


def test_variables_of_the_base_are_expanded() -> None:
    assert expanded("/app/bin:${PATH}:${NONE}", {"PATH": "/bin"}) == "/app/bin:/bin:"


# Requirements files


def requirements(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "requirements.txt"
    file.write_text(text)
    return file


def test_hashes_and_includes_are_read(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(f"b==2 --hash=sha256:{'b' * 64}\n")
    text = f"# packages\na==1 ; python_version > '3' \\\n  --hash=sha256:{'a' * 64} \\\n  --hash=sha256:{'c' * 64}\n-r more.txt\n"
    found = read_requirements(requirements(tmp_path, text))
    assert found.lines == ('a==1; python_version > "3"', "b==2")
    assert found.hashes == {"a": frozenset(("a" * 64, "c" * 64)), "b": frozenset(("b" * 64,))}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a==1\n-e .\n", 2, "option of pip"),
        ("--index-url https://x.example\n", 1, "option of pip"),
        ("a @ https://x.example/a.whl\n", 1, "names an address"),
        ("a==1\n\n!\n", 3, "not a requirement"),
        ("-r requirements.txt\n", 1, "includes itself"),
        (f"a==1 --hash=sha256:{'a' * 64}\nb==1\n", 2, "no hash"),
        ("-r absent.txt\n", None, "cannot be read"),
    ],
)
def test_faults_of_requirements_name_their_line(
    tmp_path: Path, text: str, line: int | None, message: str
) -> None:
    with pytest.raises(ImageError, match=message) as raised:
        read_requirements(requirements(tmp_path, text))
    assert raised.value.line == line


_NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
_HASHES = st.lists(
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True), min_size=1, max_size=2, unique=True
)


@settings(max_examples=30)
@given(rows=st.dictionaries(_NAMES, _HASHES, max_size=4), wide=st.booleans())
def test_written_requirements_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, list[str]], wide: bool
) -> None:
    sign = " \\\n    " if wide else " "
    lines = [
        f"{name}==1{sign}{sign.join(f'--hash=sha256:{one}' for one in found)}  # of {name}"
        for name, found in rows.items()
    ]
    found = read_requirements(requirements(tmp_path_factory.mktemp("r"), "\n\n".join(lines) + "\n"))
    assert found.lines == tuple(f"{name}==1" for name in rows)
    assert found.hashes == {name: frozenset(hashes) for name, hashes in rows.items()}


@settings(max_examples=50)
@given(text=st.text(alphabet="ab=1 \\\n#-;r[]@:~>", max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with contextlib.suppress(ImageError):
        read_requirements(requirements(tmp_path_factory.mktemp("r"), text))
