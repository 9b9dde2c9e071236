"""The carry folder: whole, small, and refused with a reason where it is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from goldnode.facts import host as facts
from goldnode.prove import carry
from goldnode.prove.__main__ import main
from goldnode.prove.session import SOURCES


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "carry"
    carry.pack(folder)
    return folder


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    for path in packed.iterdir():
        (tmp_path / "carry").mkdir(exist_ok=True)
        (tmp_path / "carry" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "carry"


def wheel(path: Path, size: int = 8, name: str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, bytes(size))
    return path


def test_carried_folder_is_small_and_has_all_nvidia_models(folder: Path, tmp_path: Path) -> None:
    found = carry.read(folder, tmp_path)
    assert set(found.facts["models"]) == {
        sku for sku, gpu in facts.gpus().items() if gpu.vendor == "nvidia"
    }
    assert {"h200_sxm", "l4"} <= {row["class"] for row in found.facts["classes"]}
    assert found.facts["models"]["H100-SXM5-80GB"]["health"]["gpu"]["pcie"] == {
        "gen": 5,
        "width": 16,
    }
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2 << 20, (
        "what a machine needs at least is small"
    )


def test_a_folder_of_more_than_64_mib_is_refused_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = wheel(
        tmp_path / "nvidia_cublas_cu12-12.4.5.8-py3-none-manylinux2014_x86_64.whl", 65 << 20
    )
    assert main(["pack", str(tmp_path / "carry"), "--wheel", str(large)]) == 3
    reported = capsys.readouterr().err
    assert re.search(
        r"the carry folder would have 6[56]\.\d MiB, and a machine takes at most 64 MiB\. The largest: wheels/nvidia_cublas",
        reported,
    )
    assert "Leave a wheel out: scripts/prove-gpu pack" in reported
    assert not (tmp_path / "carry").exists()


def test_wheels_are_unpacked_where_their_libraries_are_found(tmp_path: Path) -> None:
    made = wheel(tmp_path / "nvidia_cuda_nvrtc_cu12.whl")
    assert main(["pack", str(tmp_path / "carry"), "--wheel", str(made)]) == 0
    found = carry.read(tmp_path / "carry", tmp_path / "place")
    assert found.libraries == [str(tmp_path / "place/wheels/nvidia/cuda_nvrtc/lib")]
    assert found.wheels == ["nvidia_cuda_nvrtc_cu12.whl"]
    with pytest.raises(carry.CarryError, match="which leads out of it"):
        carry.unpack([wheel(tmp_path / "bad.whl", name="../../etc/evil.so")], tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("goldnode-node", "cut", "is damaged: goldnode-node"),
        ("facts.json", "{}", "is damaged: facts.json"),
        ("facts.json", "{", "is no whole carry folder"),
        ("carry.json", "[]", "is no whole carry folder"),
        (
            "carry.json",
            '{"schema": "goldnode.prove-gpu-carry/9"}',
            "is of schema 'goldnode.prove-gpu-carry/9'",
        ),
        ("goldnode-smoke", None, "is no whole carry folder"),
    ],
)
def test_a_damaged_folder_is_refused(
    folder: Path, tmp_path: Path, name: str, content: str | None, reported: str
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(carry.CarryError) as refused:
        carry.read(folder, tmp_path)
    assert reported in str(refused.value)
    assert "Make it again with `scripts/prove-gpu pack" in str(refused.value)


def test_a_folder_that_grew_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry, "LIMIT", 1 << 20)
    (folder / "torch.whl").write_bytes(bytes(1 << 20))
    with pytest.raises(
        carry.CarryError, match=r"has [12]\.\d MiB, and a carry folder at most 1 MiB"
    ):
        carry.read(folder, tmp_path)


def test_a_directory_of_the_users_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(carry.CarryError, match="holds files that are no carry folder's"):
        carry.pack(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_bare_python_without_a_folder_exits_3_with_the_command(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from goldnode.prove.__main__ import main; sys.exit(main(sys.argv[1:]))"
    words = ["--carry", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "there is no carry folder here, and this Python cannot make one" in done.stderr
    assert "Run `scripts/prove-gpu pack build/prove-gpu`" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "path", sorted((SOURCES / "goldnode/prove").glob("*.py")), ids=lambda path: path.name
)
def test_the_oldest_python_reads_it_and_the_standard_library_is_enough(path: Path) -> None:
    import ast

    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    known = {*sys.stdlib_module_names, "goldnode", "pynvml"}
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] not in known}
    allowed = (
        "goldnode.node",
        "goldnode.gpuprogram",
        "goldnode.core.errors",
        "goldnode.prove",
    )
    at_import = {
        node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        if (node.module or "").startswith("goldnode")
    }
    assert not {name for name in at_import if not name.startswith(allowed)}


def test_the_manifest_names_every_file(folder: Path) -> None:
    manifest = json.loads((folder / "carry.json").read_text())
    assert set(manifest["files"]) == {"goldnode-node", "goldnode-smoke", "facts.json"}
    assert len(manifest["commit"].removesuffix("-dirty")) == 40
