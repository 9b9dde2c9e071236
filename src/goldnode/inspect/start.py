"""Does an image start, and is every library there that its files need?

`cannot-start`: no container of the image would run its own program. `missing-library`: no file of the image has the
name of a library that another file needs; this warns, because packages have parts that nobody loads. Whether the
loader *finds* a library that is there is not judged: packages load their libraries by path before they need them
(torch those of the nvidia wheels), and LD_LIBRARY_PATH or a mount may add directories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from posixpath import basename, join
from typing import Literal, NamedTuple

from goldnode.inspect.packages import InstalledPackages
from goldnode.inspect.scan import View, shown
from goldnode.node.ground.text import and_more

# Where runc and crun look if the image sets no PATH.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETERS = re.compile(r"(?:python[\d.]*|perl|ruby|node|bash|dash|sh)\Z")
_LOADER = re.compile(r"ld-(?:linux|musl)[\w.-]*\.so[\w.]*\Z")
# Debian's names of machines, and those of OCI.
_MACHINES = {"armhf": "arm", "arm": "arm", "386": "i386", "ppc64le": "ppc64el"}


class StartFault(NamedTuple):
    """One reason why the image, or a package in it, does not work."""

    severity: Literal["refuse", "warn"]
    rule: Literal["cannot-start", "missing-library"]
    path: str
    message: str
    remedy: str
    package: str = ""
    evidence: tuple[tuple[str, str, str], ...] = ()


def of_start(view: View) -> Iterator[StartFault]:
    """Return why containers of an image do not start: its working directory, user and program."""

    def fault(path: str, message: str, remedy: str) -> StartFault:
        return StartFault(
            "refuse", "cannot-start", shown(path), f"no container starts: {message}", remedy
        )

    if view.workdir and not view.workdir.startswith("/"):
        yield fault(
            view.workdir,
            f'the working directory "{shown(view.workdir)}" is not absolute',
            f'write "/{shown(view.workdir)}"',
        )
    for kind, name, file in zip(
        ("user", "group"), view.user.split(":"), ("passwd", "group"), strict=False
    ):
        known = [line.partition(":")[0] for line in (view.text(f"etc/{file}") or "").splitlines()]
        if name and not name.isdecimal() and name not in known:
            yield fault(
                f"etc/{file}",
                f'the image has no {kind} "{shown(name)}" in /etc/{file}',
                "use a number, for instance 10001:10001",
            )
    if not view.command:
        return
    program = view.command[0]
    place, why = _program(view, program)
    if why:
        remedy = "correct `entrypoint`, or add the file, executable, to the image"
        if " " in program:
            remedy = f"write its words apart: {json.dumps(program.split())}"
        yield fault(program, f'its program "{shown(program)}" {why}', remedy)
        return
    if _INTERPRETERS.match(basename(place)) and len(view.command) > 1:
        script = view.command[1]
        if script.startswith("/") and view.resolve(script) is None:
            yield StartFault(
                "warn",
                "cannot-start",
                shown(script),
                f"{shown(program)} is given {shown(script)}, which is not in the image",
                "add it, or mount it into each container",
            )


def _program(view: View, name: str) -> tuple[str, str]:
    """Return the path of a container's program inside, and why it cannot be run; empty if it can."""
    if "/" in name:
        places = [name if name.startswith("/") else join(view.workdir or "/", name)]
    else:
        places = [
            join(folder or "/", name) for folder in view.environment.get("PATH", _PATH).split(":")
        ]
    candidates = [
        path for place in places if (path := view.resolve(place)) is not None and path in view.paths
    ]
    usable = [
        path for path in candidates if view.paths[path].kind == "f" and view.paths[path].executable
    ]
    if not candidates:
        return "", "is not in the image" if "/" in name else "is in no directory of its PATH"
    if not usable:
        return candidates[0], f"is not executable (/{shown(candidates[0])})"
    return usable[0], _unusable(view, usable[0])


def _unusable(view: View, path: str) -> str:
    """Return why the kernel cannot run an executable file; empty if it can."""
    if script := view.scripts.get(path):
        words = script[2:].split()
        if not words:
            return f"names no interpreter in its first line (/{shown(path)})"
        if script.endswith("\r"):
            return f"has a first line that ends with a carriage return (/{shown(path)})"
        if view.resolve(words[0]) is None:
            return f"needs the interpreter {shown(words[0])}, which is not in the image"
        if (
            basename(words[0]) == "env"
            and len(words) > 1
            and not words[1].startswith("-")
            and "=" not in words[1]
        ):
            why = _program(view, words[1])[1]
            return f"needs {shown(words[1])}, which {why}" if why else ""
        return ""
    row = view.elf.get(path)
    if row is None or not row.is_elf:
        return (
            "" if view.left_out.get(path) else f"is neither a program nor a script (/{shown(path)})"
        )
    wanted = _MACHINES.get(view.architecture, view.architecture)
    if wanted and row.machine not in (wanted, "archive") and not row.fault:
        return f"is for {row.machine}, and the image for {wanted}"
    if row.interpreter and view.resolve(row.interpreter) is None:
        return f"needs the loader {shown(row.interpreter)}, which is not in the image"
    return ""


def missing_libraries(
    view: View, packages: InstalledPackages, from_host: Callable[[str], bool]
) -> Iterator[StartFault]:
    """Return one warning for each package that needs libraries which nothing in the image provides.

    Of a whole root only: a wheel by itself does not have the libraries of its system. `from_host` are libraries that
    the container runtime adds.
    """
    names = {basename(path) for path, entry in view.paths.items() if entry.kind in "flh"}
    loaders = {row.machine for path, row in view.elf.items() if _LOADER.match(basename(path))}
    if not loaders:
        return
    names |= {row.soname for row in view.elf.values()}
    needs: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for path, row in view.elf.items():
        if row.machine in loaders and row.needed:  # not a program of another system among the data
            needs.setdefault(packages.owner(path), []).append((path, row.needed))
    for owner, files in needs.items():
        there = {_stem(name) for _, needed in files for name in needed if basename(name) in names}
        rows = []
        for path, needed in files:
            absent = [
                name
                for name in needed
                if basename(name) not in names and not from_host(basename(name))
            ]
            # A package has builds for several versions of a library (bitsandbytes), and loads the one that fits.
            if not any(_stem(name) in there for name in absent):
                rows += [(path, name) for name in absent]
        if not rows:
            continue
        libraries = list(dict.fromkeys(name for _, name in rows))
        package = packages.all.get(owner)
        title = package.title if package is not None else "files without a package"
        yield StartFault(
            "warn",
            rule="missing-library",
            path=shown(rows[0][0]),
            message=f"{title}: nothing in the image provides {_listed(libraries)}, which {_listed([path for path, _ in rows])} "
            f"need{'s' if len({path for path, _ in rows}) == 1 else ''}",
            remedy=_remedy(libraries, names),
            package="" if package is None else package.title,
            evidence=tuple(("needed", shown(path), shown(name)) for path, name in rows[:8]),
        )


def _stem(name: str) -> str:
    return basename(name).partition(".so")[0]


def _listed(names: list[str], most: int = 3) -> str:
    rows = [shown(name) for name in dict.fromkeys(names)]
    return ", ".join(rows[:most]) + and_more(len(rows) - most)


def _remedy(libraries: list[str], names: set[str]) -> str:
    """Return what helps: another build if the image has the library in another version, otherwise the library."""
    for library in libraries:
        stem = _stem(library)
        others = sorted(
            name for name in names if re.fullmatch(rf"{re.escape(stem)}\.so\.\d+", name)
        )
        if others:
            return f"the image has {', '.join(others)}: use the build of the package for it, or a base with {shown(library)}"
    return "add the library, or take a base that has it; a package may also work without the part that needs it"
