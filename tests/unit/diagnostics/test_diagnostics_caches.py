"""Keys of caches for a Python service: from the files of the last check, without a driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.node.captures import healthy
from tests.unit.node.serve.test_serve import GOOD

from goldnode.diagnostics import CacheKeyError, CacheOptions, cache_environment, cache_key
from goldnode.node.cachekey import directory
from goldnode.node.serve.publish import public

IMAGE = "sha256:" + "a" * 64
CLASS = {"digest": "sha256:c1", "class": "h100", "policy": {"power_limit_watts": 700}}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with a current verdict, and a path of one distribution."""
    for name, text in {
        "proc/uptime": "160.5 1\n",
        "proc/sys/kernel/random/boot_id": "b\n",
        "proc/1/stat": "1 (systemd) S " + " ".join("0" * 18) + " 42 0",
        "etc/goldnode/class.json": json.dumps(CLASS),
        "run/goldnode/verdict.json": json.dumps(GOOD),
        "run/goldnode/public.json": json.dumps(public(healthy())),
        "site/triton-3.7.0.dist-info/RECORD": "triton/x.so,sha256=1,1\n",
        "site/torch-2.11.0.dist-info/RECORD": "torch/x.so,sha256=1,1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    return tmp_path


def test_a_service_gets_the_directories_of_its_keys(root: Path) -> None:
    found = cache_environment(
        ["triton", "inductor"], str(root / "caches"), CacheOptions(IMAGE), str(root)
    )
    assert set(found) == {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    place = Path(found["TRITON_CACHE_DIR"])
    assert place.is_dir()
    assert (
        place.parent.name == cache_key("triton", options=CacheOptions(IMAGE), root=str(root))["key"]
    )
    assert directory.verify(str(place.parent)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("site/triton-3.7.0.dist-info/RECORD", "triton/x.so,sha256=2,1\n"),
        (
            "usr/lib/goldnode/image.json",
            json.dumps({"schema": "goldnode.image/1", "recipe": IMAGE}),
        ),
    ],
)
def test_other_content_gives_another_key(root: Path, name: str, text: str) -> None:
    before = cache_key("triton", root=str(root))["key"]
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    assert cache_key("triton", root=str(root))["key"] != before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run/goldnode/verdict.json", json.dumps({**GOOD, "uptime": -5000})),
        ("run/goldnode/verdict.json", "torn"),
        ("run/goldnode/public.json", "torn"),
        ("run/goldnode/public.json", json.dumps({**public(healthy()), "gpus": [{"index": 0}]})),
        ("etc/goldnode/class.json", json.dumps({"digest": "sha256:c1"})),
    ],
)
def test_an_unknown_value_is_an_error_of_its_own(root: Path, name: str, text: str) -> None:
    cache_key("cuda", root=str(root))
    (root / name).write_text(text)
    with pytest.raises(CacheKeyError):
        cache_key("cuda", root=str(root))


@pytest.mark.parametrize(
    ("cache", "strength"), [("cudnn", "exact"), ("cuda", "other"), ("triton", "portable")]
)
def test_wrong_names_are_an_error_of_its_own(root: Path, cache: str, strength: str) -> None:
    with pytest.raises(CacheKeyError):
        cache_key(cache, strength, root=str(root))


def test_a_directory_that_others_may_write_to_is_refused(root: Path) -> None:
    options = CacheOptions(IMAGE)
    found = cache_environment(["cuda"], str(root / "caches"), options, str(root))
    Path(found["CUDA_CACHE_PATH"]).chmod(0o777)
    with pytest.raises(CacheKeyError, match="written by others"):
        cache_environment(["cuda"], str(root / "caches"), options, str(root))


def test_the_modules_are_of_the_standard_library(root: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import goldnode.diagnostics\n"
        "names = {n.partition('.')[0] for n in set(sys.modules) - before} - {'goldnode'}\n"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
