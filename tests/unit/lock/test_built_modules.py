"""Prebuilt modules: the file beside the lock, the package, signing, the checks of a build, and which builds are results."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.apt_archive import elf
from tests.simulators.apt_archive.debs import Deb
from tests.unit.catalog.test_accept_reject import FILES, write
from tests.unit.classdoc.test_class_document import DAY, LOCK, package
from tests.unit.classdoc.test_class_document import SITE as BASE_SITE

from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import GoldnodeError, ModulesError
from goldnode.core.site import Site, SiteMirror, SiteSigning
from goldnode.lock import builder, modpackage, modulebuild, modules
from goldnode.lock.aptroot import Download
from goldnode.lock.builder import ModuleBuild, ModuleBuildInputs, Tree

RELEASE = "6.1.0-56-amd64"
DRIVER = "535.309.01"


def inputs(
    stanzas: Mapping[str, Mapping[str, str]] | None = None, **more: Any
) -> ModuleBuildInputs:
    """Inputs in the shape of Debian's packages; `stanzas` replaces those of the archive."""
    image = f"linux-image-{RELEASE}"
    known: dict[str, Mapping[str, str]] = {
        "nvidia-kernel-dkms": {
            "Pre-Depends": "nvidia-installer-cleanup",
            "Depends": f"firmware-nvidia-gsp (= {DRIVER}) | firmware-nvidia-gsp-{DRIVER}, nvidia-kernel-support--v1, dkms (>= 3.0.3-4~)",
            "Provides": f"nvidia-kernel-{DRIVER}, nvidia-kernel-dkms-any (= {DRIVER})",
        },
        "nvidia-driver": {
            "Depends": f"nvidia-kernel-dkms (= {DRIVER}-1) | nvidia-kernel-{DRIVER} | nvidia-open-kernel-{DRIVER}"
        },
    }
    names = ("dkms", "gcc-12", f"linux-headers-{RELEASE}", "nvidia-kernel-dkms", image)
    values: dict[str, Any] = {
        "stack": "debian12_r535",
        "release": RELEASE,
        "kernel": (image,),
        "architecture": "amd64",
        "flavour": "proprietary",
        "driver_version": DRIVER,
        "module": "nvidia-current",
        "trees": (Tree("nvidia-current", "nvidia-kernel-dkms", f"{DRIVER}-1"),),
        "packages": {
            name: Download(name, "6.1.192-2" if name == image else "1", "", 1, f"{at:064x}")
            for at, name in enumerate(names)
        },
        "stanzas": stanzas if stanzas is not None else known,
        "installed": ("dkms", "gcc-12"),
        "unpacked": (f"linux-headers-{RELEASE}", "nvidia-kernel-dkms"),
        "tools": ("dkms", "gcc-12"),
        "replaces": ("dkms", "gcc-12", f"linux-headers-{RELEASE}", "nvidia-kernel-dkms"),
    }
    return ModuleBuildInputs(**(values | more))


def result(
    of: ModuleBuildInputs, names: tuple[str, ...] = ("nvidia-current",), **more: Any
) -> ModuleBuild:
    values: dict[str, Any] = {
        "key": of.key,
        "stack": of.stack,
        "kernel": of.release,
        "driver": of.driver_version,
        "flavour": of.flavour,
        "ok": True,
        "seconds": 1.0,
        "line": None,
        "log": "build.log",
        "modules": names,
        "compression": "",
        "place": "/lib/modules",
        "builder": (("gcc-12", "12.2", "0" * 64),),
        "built": "2026-11-21T00:00:00Z",
    }
    return ModuleBuild(**(values | more))


def module(name: str = "nvidia", **more: str) -> bytes:
    fields = {
        "version": DRIVER,
        "license": "NVIDIA",
        "depends": "drm",
        "name": name,
        "vermagic": f"{RELEASE} SMP preempt mod_unload ",
    }
    return elf.module([(key, value) for key, value in (fields | more).items() if value])


def stored(directory: Path, **files: bytes) -> Path:
    (directory / "modules").mkdir(parents=True)
    for name, content in files.items():
        (directory / "modules" / f"{name.replace('_', '-')}.ko").write_bytes(content)
    return directory


def source(directory: Path) -> Path:
    """A DKMS package with a copyright file."""
    deb = Deb(
        "nvidia-kernel-dkms",
        "1",
        "source",
        "r",
        "s",
        files={"/usr/share/doc/nvidia-kernel-dkms/copyright": "terms of the source\n"},
    )
    path = directory / "source.deb"
    deb.build(path)
    return path


def made(
    directory: Path,
    of: ModuleBuildInputs,
    body: bytes,
    signing: modpackage.Signing | None = None,
    **more: Any,
) -> modpackage.ModulePackage:
    directory.mkdir()
    out = stored(directory / "kept", nvidia_current=body)
    return modpackage.make(
        of,
        result=result(of, **more),
        directory=out,
        into=directory,
        sources={"nvidia-kernel-dkms": source(directory)},
        signing=signing,
    )


def contents(deb: Path) -> dict[str, bytes]:
    data = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(deb)], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {
            member.name.lstrip("."): tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }


def fields(deb: Path) -> dict[str, str]:
    text = subprocess.run(
        ["dpkg-deb", "-f", str(deb)], capture_output=True, text=True, check=True
    ).stdout
    return dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(" "))


# -- the package


def test_package_depends_on_exactly_its_kernel_and_gives_what_drivers_ask(tmp_path: Path) -> None:
    found = fields(made(tmp_path / "a", inputs(), module()).file)
    assert found["Package"] == f"nvidia-current-modules-{RELEASE}"
    assert found["Version"].startswith(f"{DRIVER}-1+6.1.192.2+")
    depends = found["Depends"].split(", ")
    assert depends[0] == f"linux-image-{RELEASE} (= 6.1.192-2)"
    assert "nvidia-kernel-support--v1" in depends
    assert not [
        item for item in depends if item.startswith(("dkms", "gcc", "make", "linux-headers"))
    ]
    assert found["Provides"] == f"nvidia-kernel-{DRIVER}, nvidia-kernel-dkms-any (= {DRIVER})"
    assert found["Conflicts"] == found["Replaces"] == "nvidia-kernel-dkms"


def test_a_driver_that_asks_for_the_dkms_package_by_name_gets_it(tmp_path: Path) -> None:
    stanzas = {
        "nvidia-kernel-dkms": {
            "Depends": "dkms (>= 3.0.3), nvidia-modprobe",
            "Provides": f"nvidia-kernel-{DRIVER}",
        },
        "nvidia-driver-cuda": {
            "Depends": "nvidia-kernel-dkms (= 1) | nvidia-kernel-open-dkms (= 1)"
        },
    }
    found = fields(made(tmp_path / "a", inputs(stanzas), module()).file)
    assert f"nvidia-kernel-dkms (= {DRIVER}-1)" in found["Provides"]
    # With a Conflicts, the modules of two kernels could not be installed side by side.
    assert "Conflicts" not in found


def test_same_inputs_same_bytes_and_a_new_build_another_version(tmp_path: Path) -> None:
    first, second = (made(tmp_path / name, inputs(), module()) for name in "ab")
    assert first.file.read_bytes() == second.file.read_bytes()
    data = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(first.file)], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {(member.mtime, member.uid, member.mode & 0o022) for member in tar} == {
            (inputs().epoch, 0, 0)
        }
    packages = {**inputs().packages, "gcc-12": Download("gcc-12", "2", "", 1, "f" * 64)}
    other = made(tmp_path / "c", inputs(packages=packages), module())
    assert other.version != first.version


@pytest.mark.parametrize(
    ("how", "magic"),
    [("", b"\x7fELF"), ("xz", b"\xfd7zXZ"), ("zst", b"\x28\xb5\x2f\xfd"), ("gz", b"\x1f\x8b")],
)
def test_modules_are_compressed_as_their_kernel_does(
    tmp_path: Path, how: str, magic: bytes
) -> None:
    package = made(tmp_path / "a", inputs(), module(), compression=how, place="/usr/lib/modules")
    name = (
        f"/usr/lib/modules/{RELEASE}/updates/goldnode/nvidia-current.ko{'.' + how if how else ''}"
    )
    inside = contents(package.file)
    assert inside[name].startswith(magic)
    assert builder.decompressed(inside[name], f".{how}") == module()
    if how == "xz":
        assert inside[name][7] == 1, "the kernel's decompressor knows CRC32 alone"
    assert b"terms of the source" in inside[f"/usr/share/doc/{package.name}/copyright"]
    assert json.loads(inside[f"/usr/share/doc/{package.name}/goldnode.json"])["key"] == inputs().key


# -- signing


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            f"/CN=site {name}",
            "-days",
            "1",
        ]
        subprocess.run(
            [*command, "-keyout", tmp_path / f"{name}.key", "-out", tmp_path / f"{name}.crt"],
            check=True,
            capture_output=True,
        )
    return tmp_path


def signing_site(keys: Path, key: str, certificate: str) -> Site:
    return Site(
        module_signing=SiteSigning(key=str(keys / key), certificate=str(keys / certificate)),
        file=keys / "site.yml",
    )


def test_signed_modules_carry_the_sites_name_and_the_package_no_key(
    tmp_path: Path, keys: Path
) -> None:
    signing = modpackage.Signing.of(signing_site(keys, "one.key", "one.crt"))
    package = made(tmp_path / "a", inputs(), module(), signing)
    assert package.signer == "site one"
    body = contents(package.file)[f"/lib/modules/{RELEASE}/updates/goldnode/nvidia-current.ko"]
    assert body.startswith(module())
    assert body.endswith(modpackage.MAGIC)
    assert package.version != made(tmp_path / "b", inputs(), module()).version
    assert (
        made(tmp_path / "c", inputs(), module(), signing).file.read_bytes()
        == package.file.read_bytes()
    )
    whole = b"".join(contents(package.file).values())
    assert b"PRIVATE KEY" not in whole
    der = subprocess.run(
        ["openssl", "pkey", "-in", keys / "one.key", "-outform", "DER"],
        capture_output=True,
        check=True,
    ).stdout
    assert der[40:80] not in whole


@pytest.mark.parametrize(
    ("key", "certificate", "why"),
    [
        ("two.key", "one.crt", "is not of the key"),
        ("none.key", "one.crt", "is not there"),
        ("one.crt", "one.crt", "is no private key"),
        ("one.key", "one.key", "is no certificate"),
    ],
)
def test_wrong_keys_are_refused(keys: Path, key: str, certificate: str, why: str) -> None:
    with pytest.raises(ModulesError, match=why):
        modpackage.Signing.of(signing_site(keys, key, certificate))


def test_secure_boot_without_a_key_is_refused() -> None:
    with pytest.raises(ModulesError, match=r"no key to sign modules with.*module_signing"):
        modpackage.Signing.of(Site())


# -- what a build has to give

GOOD = {"nvidia_current": module(), "nvidia_current_uvm": module("nvidia-uvm", depends="nvidia")}
EXPECTED = ["nvidia-current", "nvidia-current-uvm"]


def test_good_modules_have_no_fault(tmp_path: Path) -> None:
    assert (
        list(builder.faults(inputs(), stored(tmp_path, **GOOD) / "modules", EXPECTED, {"drm"}))
        == []
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"nvidia_current_uvm": None}, "dkms.conf names nvidia-current-uvm"),
        (
            {"nvidia_current": module(vermagic="6.1.0-57-amd64 SMP ")},
            "vermagic is 6.1.0-57-amd64 SMP, want 6.1.0-56-amd64",
        ),
        ({"nvidia_current": module(version="535.1")}, "version is 535.1, want 535.309.01"),
        ({"nvidia_current": module(license="Dual MIT/GPL")}, "not that of the proprietary flavour"),
        ({"nvidia_current": module(license="")}, "carries no licence"),
        ({"nvidia_current": module(name="")}, "carries no name"),
        (
            {"nvidia_current_uvm": module("nvidia-uvm", depends="nvidia,mlx5_core")},
            "depends on mlx5_core",
        ),
    ],
)
def test_fault_of_a_built_module_is_reported(
    tmp_path: Path, change: dict[str, bytes | None], why: str
) -> None:
    files = {name: body for name, body in (GOOD | change).items() if body is not None}
    found = list(builder.faults(inputs(), stored(tmp_path, **files) / "modules", EXPECTED, {"drm"}))
    assert any(why in fault for fault in found), found


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "cc\n/var/lib/dkms/x/1/build/nv-pci.c:4:5: error: too few arguments\nmake: *** [a] Error 1\n",
            "nv-pci.c:4:5: error: too few arguments",
        ),
        (
            '  MODPOST\nERROR: modpost: "drm_x" [nvidia-drm.ko] undefined!\nmake[1]: *** b\n',
            'ERROR: modpost: "drm_x" [nvidia-drm.ko] undefined!',
        ),
        (
            "a.c:1:10: fatal error: drm/drmP.h: No such file or directory\n",
            "a.c:1:10: fatal error: drm/drmP.h: No such file or directory",
        ),
        (
            "make: *** No rule to make target 'modules'.  Stop.\n",
            "make: *** No rule to make target 'modules'.  Stop.",
        ),
        ("nothing\n", None),
    ],
)
def test_the_compilers_own_first_line(tmp_path: Path, log: str, line: str | None) -> None:
    (tmp_path / "make.log").write_text(log)
    assert builder.first_error(builder.read_log(tmp_path)) == line


# -- what is a result


def run(
    monkeypatch: pytest.MonkeyPatch, cache: Path, outcome: ModuleBuild | BaseException
) -> tuple[ModuleBuild, Path]:
    def build(of: ModuleBuildInputs, files: object, root: object, work: Path) -> ModuleBuild:
        (work / "out/modules").mkdir(parents=True)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(builder, "_build", build)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return builder.build(inputs(), {}, Path("root.tar"), cache=cache)


def test_a_failed_build_is_stored_and_not_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = result(inputs(), ok=False, line="nv.c:1:1: error: x")
    assert run(monkeypatch, tmp_path, failed)[0] == failed
    found, directory = run(monkeypatch, tmp_path, AssertionError("built again"))
    assert found == failed
    assert directory == tmp_path / "modules" / inputs().key


@pytest.mark.parametrize(
    "problem", [KeyboardInterrupt(), ModulesError("the build was cut off: No space left on device")]
)
def test_an_interrupted_build_is_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problem: BaseException
) -> None:
    with pytest.raises(type(problem)):
        run(monkeypatch, tmp_path, problem)
    assert builder.read_result(tmp_path / "modules" / inputs().key) is None
    good = result(inputs())
    assert run(monkeypatch, tmp_path, good)[0] == good


def test_failed_build_shows_its_error_line_in_both_tables() -> None:
    rows = [
        result(inputs()),
        result(inputs(), ok=False, line="a.c:1: error: a | b", kernel="6.1.0-57-amd64"),
    ]
    assert modulebuild.table(rows).splitlines()[2:] == [
        "debian12_r535  6.1.0-57-amd64  535.309.01  proprietary  no",
        "    a.c:1: error: a | b",
    ]
    assert r"| no | a.c:1: error: a \| b |" in modulebuild.markdown(rows)


@pytest.mark.parametrize(
    ("version", "sha256", "part"),
    [
        ("9.9-1", "f" * 64, "has left the archives, which have 9.9-1"),
        (None, "f" * 64, "has other bytes in the archive"),
        (None, None, ""),
    ],
)
def test_package_that_left_the_archives_is_not_called_one_with_other_bytes(
    version: str | None, sha256: str | None, part: str
) -> None:
    locked = LOCK.packages[0]
    found = Download(
        locked.name, version or locked.version, "", locked.size, sha256 or locked.sha256
    )
    if not part:
        builder.require_locked({locked.name: found}, LOCK)
        return
    with pytest.raises(ModulesError, match=part) as caught:
        builder.require_locked({locked.name: found}, LOCK)
    assert f"goldnode lock {LOCK.stack}" in str(caught.value.remedy)


def test_the_key_of_a_build_is_its_inputs() -> None:
    base = inputs()
    assert base.key == inputs().key
    assert base.key != inputs(base="f" * 64).key
    assert base.key != inputs(release="6.1.0-57-amd64").key
    # What is in the root and no tool of the build makes no other module.
    assert base.key == replace(base, installed=("dkms", "gcc-12", "sed")).key


# -- the file beside the lock


def built(**more: Any) -> modules.BuiltModules:
    row = package("nvidia-modules-6.1.0-56-amd64", sha256="a" * 64, archive="goldnode-mirror")
    values: dict[str, Any] = {
        "modules": 1,
        "stack": "r580",
        "lock": LOCK.digest,
        "key": "b" * 64,
        "flavour": "open",
        "signer": None,
        "names": ["nvidia"],
        "package": row,
        "sources": ["nvidia-kernel-open-dkms"],
        "replaces": ["gcc-12", "nvidia-kernel-open-dkms"],
        "builder": [],
    }
    return modules.BuiltModules.model_validate(values | more)


def prebuilt_document(
    tmp_path: Path,
    found: modules.BuiltModules | None,
    *,
    url: str | None = "http://m",
    stack: str = "",
) -> dict[str, Any]:
    files = FILES | {"stacks/r580.yml": FILES["stacks/r580.yml"] + stack}
    catalog = load_catalog([write(tmp_path / "catalog", files)])
    (tmp_path / "locks").mkdir()
    if found is not None:
        modules.write_modules(found, tmp_path / "locks")
    mirror = SiteMirror(directory="mirror", url=url)
    site = BASE_SITE.model_copy(
        update={
            "modules": "prebuilt",
            "mirror": mirror,
            "locks": "locks",
            "file": tmp_path / "site.yml",
        }
    )
    return class_document("a100", catalog, site, {"r580": LOCK}, on=DAY)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert modules.load_modules(
        modules.write_modules(built(signer="site: one"), tmp_path)
    ) == built(signer="site: one")


@pytest.mark.parametrize(
    ("found", "stack", "why"),
    [
        (None, "", r"has none\. Run `goldnode modules build r580`"),
        (built(lock="sha256:" + "1" * 64), "", r"stale.*Run `goldnode modules build r580`"),
        (built(stack="other"), "", None),
        (built(), "secure_boot: true\n", "says secure_boot, and these modules are not signed"),
    ],
)
def test_a_missing_or_stale_file_is_refused(
    tmp_path: Path, found: modules.BuiltModules | None, stack: str, why: str | None
) -> None:
    with pytest.raises(ModulesError, match=why or "has none"):
        prebuilt_document(tmp_path, found, stack=stack)


def test_prebuilt_without_an_address_of_the_mirror_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match="needs a mirror that nodes can reach"):
        prebuilt_document(tmp_path, built(), url=None)


def test_class_document_of_prebuilt_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def archive(stack: str, packages: Any, site: Site, command: str) -> dict[str, Any]:
        asked.extend(item.name for item in packages)
        return {"id": "goldnode-mirror", "command": command}

    monkeypatch.setattr("goldnode.classdoc.compile.mirror_archive", archive)
    found = prebuilt_document(tmp_path, built(signer="site one"))
    names = [row["name"] for row in found["packages"]]
    assert names == ["libcuda1", "nvidia-fabricmanager", "nvidia-modules-6.1.0-56-amd64"]
    driver = found["driver"]
    assert (driver["built"], driver["dkms"], driver["signed"], driver["signer"]) == (
        "prebuilt",
        None,
        True,
        "site one",
    )
    assert "nvidia-kernel-open-dkms" in found["fence"]
    assert "nvidia-modules-6.1.0-56-amd64" in asked
    assert found["site"]["archives"][0]["command"] == "modules build"


def test_a_table_without_a_pair_is_an_error() -> None:
    with pytest.raises(ModulesError, match="no stack has a lock"):
        modulebuild.build_combinations(
            modulebuild.Combinations([]),
            load_catalog(),
            Site(),
            modulebuild.BuildSettings(lambda text: None),
        )
