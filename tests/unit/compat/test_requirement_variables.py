"""Variables in requirements files: expanded as pip does, from the environment, and never shown where they are secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pip._internal.req.req_file import expand_env_variables

from goldnode.compat import workloads
from goldnode.compat.model import Workload
from goldnode.core.errors import WorkloadError

SET = {
    "TORCH_VERSION": "2.8.0",
    "lower": "1",
    "_X": "2.8",
    "X1": ".0",
    "EMPTY": "",
    "DIR": "more",
    "TOKEN": "s3cret",
    "CUDA": "cu126",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SET.items():
        monkeypatch.setenv(name, value)


def read(folder: Path, text: str) -> Workload:
    file = folder / "requirements.txt"
    file.write_text(f"{text}\n", encoding="utf-8")
    return workloads.requirements(file, python="3.12")


@pytest.mark.parametrize(
    ("line", "torch"),
    [
        ("torch==${TORCH_VERSION}", "2.8.0"),
        ("torch==${_X}${X1}", "2.8.0"),
        ("torch==2.8.0  # ${UNSET}", "2.8.0"),
        ("torch==$TORCH_VERSION", None),
        ("torch==${lower}", None),
        ("torch==${UNSET}", None),
        ("torch==${EMPTY}2.8.0", None),
        ("torch==${TORCH_VERSION:-2.8.0}", None),
        ("torch==${ TORCH_VERSION }", None),
        ("torch==$${TORCH_VERSION}", None),
        ("torch==\\${TORCH_VERSION}", None),
        ("torch==%TORCH_VERSION%", None),
        ("torch==${TORCH_VERSION", None),
    ],
)
def test_version_is_that_which_pip_reads(line: str, torch: str | None, tmp_path: Path) -> None:
    """Each line is what pip makes of it, or is refused, as pip refuses it."""
    ((_, expanded),) = expand_env_variables(iter([(1, line)]))
    assert (expanded.partition("#")[0].strip() == f"torch=={torch}") == (torch is not None)
    if torch is not None:
        assert read(tmp_path, line).pins == {"torch": torch}
        return
    with pytest.raises(WorkloadError) as problem:
        read(tmp_path, line)
    assert problem.value.line == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch==${UNSET}", "UNSET is not set"),
        ("torch==${EMPTY}2.8.0", "EMPTY is not set"),
        ("torch==${lower}", "capitals"),
        ("-r ${UNSET}/x.txt", "UNSET is not set"),
    ],
)
def test_variable_that_pip_leaves_is_named(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=words):
        read(tmp_path, line)


def test_variables_in_options_are_expanded_and_secrets_are_not(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/x.txt").write_text("numpy==2.1.0\n", encoding="utf-8")
    options = "-r ${DIR}/x.txt\n--extra-index-url https://u:${TOKEN}@mirror.example/whl/${CUDA}"
    workload = read(tmp_path, f"{options}\ntorch==2.8.0")
    assert workload.frameworks == {"torch": "2.8.0+cu126"}
    assert "s3cret" not in repr(workload)
    assert read(
        tmp_path, "--index-url https://${UNSET}@mirror.example/whl/cu126\ntorch==2.8.0"
    ).frameworks
