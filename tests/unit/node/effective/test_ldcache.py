"""The reader of the loader's cache against `ldconfig -p`, over generated libraries and configurations."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.oci.test_build_layers import library

from goldnode.node.effective import ldcache
from goldnode.node.ground.host import Host

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin")
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/local/cuda/lib64/stubs",
    "usr/local/cuda-12.4/compat",
    "opt/nvidia/lib",
    "usr/local/lib",
)
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")


def configured(root: Path, seed: int) -> None:
    """Write libraries of several versions, a configuration that reads some directories, and the cache."""
    choice = random.Random(seed)  # noqa: S311 - cases, not keys
    for folder in FOLDERS:
        place = root / folder
        place.mkdir(parents=True)
        for name in choice.sample(NAMES, choice.randint(0, 3)):
            stem = name[:-1] + choice.choice(["535.2", "550.1", "570.86.15"])
            file = name[:-2] if "stubs" in folder else stem
            (place / file).write_bytes(library(name.encode(), 4096))
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    (root / "etc/ld.so.conf").write_text("# of libc6\ninclude /etc/ld.so.conf.d/*.conf\n")
    for folder in choice.sample(FOLDERS, choice.randint(1, 6)):
        name = f"{choice.choice(['000_', 'cuda', 'x86', 'zz'])}{choice.randint(1, 99)}.conf"
        line = choice.choice([f"/{folder}\n", f"# mine\n/{folder}/", f"/{folder}  # last\n"])
        (root / "etc/ld.so.conf.d" / name).write_text(line)
    made = subprocess.run(
        [str(LDCONFIG), "-X", "-r", str(root)], capture_output=True, check=False, text=True
    )
    if made.returncode:
        pytest.skip(f"ldconfig: {made.stderr}")
    subprocess.run([str(LDCONFIG), "-r", str(root)], capture_output=True, check=True)


@pytest.mark.skipif(LDCONFIG is None, reason="no ldconfig here")
@pytest.mark.parametrize("start", range(0, 60, 12))
def test_the_cache_is_read_as_ldconfig_prints_it(tmp_path: Path, start: int) -> None:
    for seed in range(start, start + 12):
        root = tmp_path / str(seed)
        root.mkdir()
        configured(root, seed)
        shown = subprocess.run(
            [str(LDCONFIG), "-r", str(root), "-p"], capture_output=True, check=True, text=True
        ).stdout
        data = (root / "etc/ld.so.cache").read_bytes()
        for name in NAMES:
            rows = re.findall(rf"^\t{re.escape(name)} \(libc6,x86-64\S*\) => (\S+)$", shown, re.M)
            assert ldcache.cached(data, name, "amd64") == rows, (seed, name)
            answer = ldcache.resolve(Host(str(root)), name, "amd64")
            assert answer.cached == (rows[0] if rows else None)


def test_this_machine_loads_libc_from_where_the_cache_has_it() -> None:
    data = Path("/etc/ld.so.cache")
    if not data.exists() or LDCONFIG is None:
        pytest.skip("no cache here")
    shown = subprocess.run([LDCONFIG, "-p"], capture_output=True, check=True, text=True).stdout
    rows = re.findall(r"^\tlibc\.so\.6 \((.*)\) => (\S+)$", shown, re.M)
    assert ldcache.cached(data.read_bytes(), "libc.so.6", "any") == [path for _, path in rows]


def test_a_cache_for_old_loaders_too_has_the_new_part(tmp_path: Path) -> None:
    if LDCONFIG is None:
        pytest.skip("no ldconfig here")
    (tmp_path / "opt/lib").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/opt/lib\n")
    (tmp_path / "opt/lib/libcuda.so.535.2").write_bytes(library(b"libcuda.so.1", 4096))
    subprocess.run([LDCONFIG, "-c", "compat", "-r", str(tmp_path)], check=True, capture_output=True)
    data = (tmp_path / "etc/ld.so.cache").read_bytes()
    assert data.startswith(b"ld.so-1.7.0")
    assert ldcache.cached(data, "libcuda.so.1", "amd64") == ["/opt/lib/libcuda.so.1"]


@pytest.mark.parametrize(
    "data", [b"", b"no cache", b"glibc-ld.so.cache1.1", b"glibc-ld.so.cache1.1\xff\xff\0\0"]
)
def test_a_damaged_cache_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"ld\.so\.cache"):
        ldcache.cached(data, "libcuda.so.1", "amd64")


def test_a_library_that_is_gone_is_sought_in_the_default_directories(tmp_path: Path) -> None:
    if LDCONFIG is None:
        pytest.skip("no ldconfig here")
    first, second = tmp_path / "opt/lib", tmp_path / "usr/lib64"
    for folder in (first, second, tmp_path / "etc"):
        folder.mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("/opt/lib\n")
    for folder in (first, second):
        (folder / "libcuda.so.1").write_bytes(library(b"libcuda.so.1", 4096))
    subprocess.run([LDCONFIG, "-r", str(tmp_path)], check=True, capture_output=True)
    host = Host(str(tmp_path))
    assert ldcache.resolve(host, "libcuda.so.1", "amd64").path == "/opt/lib/libcuda.so.1"
    assert ldcache.source(host, "/opt/lib") == "/etc/ld.so.conf:1"
    (first / "libcuda.so.1").unlink()
    answer = ldcache.resolve(host, "libcuda.so.1", "amd64")
    assert answer == ldcache.LoadedLibrary("/usr/lib64/libcuda.so.1", "/opt/lib/libcuda.so.1")
    (second / "libcuda.so.1").unlink()
    assert ldcache.resolve(host, "libcuda.so.1", "amd64").path is None


@pytest.mark.skipif(LDCONFIG is None, reason="no ldconfig here")
def test_library_of_an_image_is_found_by_the_links_of_update_alternatives(tmp_path: Path) -> None:
    """Debian's driver packages link so: absolute, from the loader's directory to that of the driver and back to it."""
    usual, own = "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current"
    for folder in (own, "etc/alternatives"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / own / "libnvidia-ml.so.535.2").write_bytes(library(b"libnvidia-ml.so.1", 4096))
    links = {
        f"{usual}/libnvidia-ml.so.1": "/etc/alternatives/nvidia--libnvidia-ml.so.1",
        "etc/alternatives/nvidia--libnvidia-ml.so.1": f"/{own}/libnvidia-ml.so.1",
        f"{own}/libnvidia-ml.so.1": "libnvidia-ml.so.535.2",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "etc/ld.so.conf").write_text("")
    subprocess.run([str(LDCONFIG), "-X", "-r", str(tmp_path)], check=True, capture_output=True)
    host = Host(str(tmp_path))
    answer = ldcache.resolve(host, "libnvidia-ml.so.1", "amd64")
    assert answer == ldcache.LoadedLibrary(*[f"/{usual}/libnvidia-ml.so.1"] * 2)
    assert host.real(str(answer.path)) == str(tmp_path / own / "libnvidia-ml.so.535.2")
