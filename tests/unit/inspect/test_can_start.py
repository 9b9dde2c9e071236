"""Images that cannot start, and libraries that nothing in an image provides."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.inspect.things import elf, metadata

from goldnode.inspect import policy
from goldnode.inspect.archives import ScannedPath
from goldnode.inspect.elf import Elf
from goldnode.inspect.elf import read as read_elf
from goldnode.inspect.scan import View, scan_directory

RULES = policy.load()
LIBC = "usr/lib/x86_64-linux-gnu/libc.so.6"
LOADER = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
PROGRAM = Elf(machine="amd64", interpreter="/lib64/ld-linux-x86-64.so.2", needed=("libc.so.6",))
SITE = "usr/local/lib/python3.11/dist-packages"


def root() -> View:
    """A root of Debian with merged directories, and an image configuration that starts /app/main.py."""
    view = View(
        name="app", configured=True, architecture="amd64", workdir="/app", command=("/app/main.py",)
    )
    for path, target in {
        "bin": "usr/bin",
        "lib64": "usr/lib64",
        "usr/lib64/ld-linux-x86-64.so.2": f"/{LOADER}",
        "usr/bin/python3": "python3.11",
        "usr/bin/sh": "/bin/dash",
        "usr/bin/loop": "loop",
    }.items():
        view.paths[path] = ScannedPath("l", 0, target)
    for path in (
        LIBC,
        LOADER,
        "usr/bin/python3.11",
        "usr/bin/dash",
        "usr/bin/env",
        "app/server",
        "app/arm",
    ):
        view.paths[path] = ScannedPath("f", 9)
        view.elf[path] = PROGRAM
    view.elf[LIBC] = view.elf[LOADER] = Elf(machine="amd64")
    view.elf["app/arm"] = Elf(machine="arm64")
    view.elf["app/static"] = Elf(machine="amd64")
    view.elf["app/musl"] = replace(PROGRAM, interpreter="/lib/ld-musl-x86_64.so.1")
    for path in ("app/static", "app/musl", "app/text", "app/node"):
        view.paths[path] = ScannedPath("f", 9)
    view.paths["app/data"] = ScannedPath("f", 9, executable=False)
    view.paths["app/linked"] = ScannedPath("h", 0, "app/server")
    view.scripts = {
        "app/main.py": "#!/usr/bin/env python3",
        "app/plain.sh": "#!/bin/sh -e",
        "app/dos.sh": "#!/bin/sh\r",
        "app/none.sh": "#!",
        "app/zsh.sh": "#!/bin/zsh",
        "app/ruby": "#! /usr/bin/env ruby",
        "app/split": "#!/usr/bin/env -S python3 -u",
    }
    view.paths.update(dict.fromkeys(view.scripts, ScannedPath("f", 9)))
    view.texts["etc/passwd"] = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    view.texts["etc/group"] = "root:x:0:\nvideo:x:44:\n"
    return view


def faults(view: View, severity: str = "refuse") -> list[policy.PurityFinding]:
    found = policy.inspect(view, RULES, "cpu", today=dt.date(2026, 11, 27))
    return [
        row for row in found.findings if row.severity == severity and row.rule == "cannot-start"
    ]


@pytest.mark.parametrize(
    "command",
    [
        ("/app/main.py",),
        ("./main.py",),
        ("/app/server",),
        ("/app/linked",),
        ("/app/static",),
        ("/app/plain.sh",),
        ("/app/split",),
        ("python3", "/app/main.py"),
        ("python3", "-m", "app"),
        ("sh", "-c", "exec /app/none"),
        ("/bin/sh",),
        (),
    ],
)
def test_program_that_starts_has_no_finding(command: tuple[str, ...]) -> None:
    view = root()
    view.command = command
    assert not faults(view)
    assert not faults(view, "warn")


@pytest.mark.parametrize(
    ("command", "why", "remedy"),
    [
        (("/app/absent",), 'its program "/app/absent" is not in the image', "add the file"),
        (("absent",), "is in no directory of its PATH", "add the file"),
        (("server",), "is in no directory of its PATH", "add the file"),
        (("loop",), "is in no directory of its PATH", "add the file"),
        (("/app/data",), "is not executable (/app/data)", "executable"),
        (("/app",), "is not in the image", "add the file"),
        (("/app/text",), "is neither a program nor a script", "executable"),
        (
            ("/app/zsh.sh",),
            "needs the interpreter /bin/zsh, which is not in the image",
            "entrypoint",
        ),
        (("/app/ruby",), "needs ruby, which is in no directory of its PATH", "entrypoint"),
        (("/app/dos.sh",), "ends with a carriage return", "entrypoint"),
        (("/app/none.sh",), "names no interpreter", "entrypoint"),
        (("/app/arm",), "is for arm64, and the image for amd64", "entrypoint"),
        (("/app/musl",), "needs the loader /lib/ld-musl-x86_64.so.1", "entrypoint"),
        (
            ("python3 /app/main.py",),
            "is not in the image",
            'write its words apart: ["python3", "/app/main.py"]',
        ),
    ],
)
def test_program_that_does_not_start_is_refused_with_the_reason(
    command: tuple[str, ...], why: str, remedy: str
) -> None:
    view = root()
    view.command = command
    (found,) = faults(view)
    assert found.message.startswith("no container starts: ")
    assert why in found.message
    assert remedy in found.remedy


def test_working_directory_user_and_path_of_the_image_count() -> None:
    view = root()
    view.workdir = "app"
    assert "is not absolute" in faults(view)[0].message
    view = root()
    view.user = "app:video"
    (found,) = faults(view)
    assert 'the image has no user "app" in /etc/passwd' in found.message
    for user in ("nobody", "0", "10001:10001", "nobody:video", ""):
        view.user = user
        assert not faults(view)
    view.user = "1:render"
    assert 'no group "render"' in faults(view)[0].message
    view = root()
    view.command, view.environment = ("server",), {"PATH": "/opt/bin:/app"}
    assert not faults(view)
    view.command = ("sh",)
    assert faults(view)


def test_script_of_an_interpreter_that_is_not_there_is_a_warning() -> None:
    view = root()
    view.command = ("python3", "/data/mounted.py")
    assert not faults(view)
    (found,) = faults(view, "warn")
    assert "/data/mounted.py, which is not in the image" in found.message


def missing(view: View) -> list[policy.PurityFinding]:
    found = policy.inspect(view, RULES, "cuda", today=dt.date(2026, 11, 27))
    return [row for row in found.findings if row.rule == "missing-library"]


def module(
    view: View, package: str, name: str, needed: tuple[str, ...], machine: str = "amd64"
) -> None:
    """Add an extension module of a wheel."""
    path = f"{SITE}/{package}/{name}"
    view.paths[path] = ScannedPath("f", 9)
    view.elf[path] = Elf(machine=machine, needed=needed)
    info = f"{SITE}/{package}-1.0.dist-info"
    record = view.texts.get(f"{info}/RECORD", "") + f"{package}/{name},,\n"
    for file, text in {"METADATA": metadata(package, "1.0"), "RECORD": record}.items():
        view.paths[f"{info}/{file}"] = ScannedPath("f", 9)
        view.texts[f"{info}/{file}"] = text


def test_library_that_nothing_provides_is_a_warning_of_its_package() -> None:
    view = root()
    module(view, "implicit", "cpu.so", ("libgomp.so.1", "libc.so.6"))
    (found,) = missing(view)
    assert (found.severity, found.package) == ("warn", "implicit 1.0")
    assert "nothing in the image provides libgomp.so.1, which" in found.message
    assert "add the library" in found.remedy


def test_library_of_another_cuda_names_the_one_that_is_there() -> None:
    view = root()
    view.paths[f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"] = ScannedPath("f", 9)
    module(view, "quantum", "q.so", ("libcudart.so.13",))
    (found,) = missing(view)
    assert "the image has libcudart.so.12: use the build of the package for it" in found.remedy


def test_builds_of_one_package_for_other_versions_are_not_missing_a_library() -> None:
    view = root()
    view.paths[f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"] = ScannedPath("f", 9)
    module(view, "bits", "cuda118.so", ("libcudart.so.11.0", "libcublas.so.11"))
    module(view, "bits", "cuda124.so", ("libcudart.so.12",))
    assert not missing(view)
    module(view, "bits", "cpu.so", ("libgomp.so.1",))
    assert "libgomp.so.1, which" in missing(view)[0].message


def test_library_that_is_anywhere_or_comes_from_the_host_is_not_missing() -> None:
    view = root()
    module(
        view,
        "torch",
        "lib/libtorch.so",
        ("libcudart.so.12", "libcuda.so.1", "libnvidia-ml.so.1", "libx-12345678.so"),
    )
    view.paths[f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"] = ScannedPath("f", 9)
    view.paths["opt/libx-12345678.so"] = ScannedPath("l", 0, "y")
    module(view, "vendored", "arm.so", ("libabsent.so.1",), machine="arm64")
    assert not missing(view)
    # By SONAME, where the file has another name.
    module(view, "other", "a.so", ("libown.so.2",))
    assert missing(view)
    view.elf[f"{SITE}/other/a.so"] = Elf(
        machine="amd64", soname="libown.so.2", needed=("libown.so.2",)
    )
    assert not missing(view)


def test_wheel_alone_is_not_judged() -> None:
    view = View(name="wheel")
    module(view, "implicit", "cpu.so", ("libgomp.so.1",))
    assert not missing(view)


def test_scan_records_what_a_start_needs(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh -e\nexit\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "data.sh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "data.sh").chmod(0o644)
    (tmp_path / "python").write_bytes(Path("/usr/bin/env").read_bytes())
    scan = scan_directory(tmp_path)
    assert scan.scripts == {"run.sh": "#!/bin/sh -e", "data.sh": "#!/bin/sh"}
    assert scan.paths["run.sh"].executable
    assert not scan.paths["data.sh"].executable
    assert scan.elf["python"].interpreter.startswith("/lib")
    assert read_elf(elf()).interpreter == ""
    again = type(scan).of(scan.document())
    assert again is not None
    assert (again.scripts, again.paths, again.elf) == (scan.scripts, scan.paths, scan.elf)
