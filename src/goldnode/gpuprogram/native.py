"""Shared libraries through ctypes, found by soname: by the dynamic loader, otherwise in Python wheels."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys
from typing import Any, List, Optional, Sequence

from .results import Failed, NotRun

# Sonames of loaded libraries that are simulators: they export an int `goldnode_simulated` other
# than 0.
SIMULATED: List[str] = []

LIBCUDA = "libcuda.so.1"  # NVIDIA's driver; the host's

_ABSENT = re.compile(r"^(\S+): cannot open shared object file: No such file or directory$")


def load(soname: str, wheels: bool = True) -> ctypes.CDLL:
    """Load a library and bind all its symbols (RTLD_NOW). `wheels`: search installed wheels, too.

    Raises Failed with the loader's message.
    """
    try:
        library = ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)
    except OSError as problem:
        missing = _ABSENT.match(str(problem))
        path = (
            in_wheels(soname) if wheels and missing is not None and missing[1] == soname else None
        )
        if path is None:
            raise Failed(
                f"{soname} cannot be loaded: {problem}", expected="it loads", got=str(problem)
            ) from None
        library = _with_needed(path)
    try:
        marker = ctypes.c_int.in_dll(library, "goldnode_simulated")
    except ValueError:
        return library
    if marker.value:
        SIMULATED.append(soname)
    return library


def absent(soname: str, wheels: bool = True) -> bool:
    """Return whether no such file exists. A file that cannot be loaded is not absent."""
    try:
        load(soname, wheels)
    except Failed as problem:
        return lacks(problem, soname)
    return False


def lacks(problem: Failed, soname: str) -> bool:
    """Return whether loading failed because the file `soname` is missing: the library itself, or a
    dependency.
    """
    missing = _ABSENT.match(str(problem.result["got"]))
    return missing is not None and missing[1] == soname


def which(sonames: Sequence[str]) -> Optional[str]:
    """Return the first available soname. The dynamic loader takes precedence over wheels."""
    return next(
        (soname for wheels in (False, True) for soname in sonames if not absent(soname, wheels)),
        None,
    )


def first(sonames: Sequence[str]) -> Optional[ctypes.CDLL]:
    """Load the first available library; None if all are absent. Raises Failed for one that is broken."""
    soname = which(sonames)
    return None if soname is None else load(soname)


def need(sonames: Sequence[str], what: str) -> ctypes.CDLL:
    """Load the first available library. Raises NotRun without any: the test does not apply here."""
    library = first(sonames)
    if library is None:
        raise NotRun(f"{what} is not here ({', '.join(sonames)})")
    return library


def wheel_directories() -> List[str]:
    """Return the directories of shared libraries from installed wheels.

    They are <site>/nvidia/*/lib in the interpreter's own site directories and in the usual ones of
    Debian.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    sites = [
        *(path for path in sys.path if path.endswith("-packages")),
        *(f"{sys.prefix}/lib/{version}/{name}" for name in ("site-packages", "dist-packages")),
        f"/usr/local/lib/{version}/dist-packages",
        "/usr/lib/python3/dist-packages",
    ]
    return [
        folder
        for site in dict.fromkeys(sites)
        for folder in sorted(glob.glob(f"{glob.escape(site)}/nvidia/*/lib"))
    ]


def in_wheels(soname: str) -> Optional[str]:
    """Return the path of the library in an installed wheel."""
    for folder in wheel_directories():
        path = os.path.join(folder, soname)
        if os.path.isfile(path):
            return path
    return None


def _with_needed(path: str) -> ctypes.CDLL:
    """Load a wheel's library, after the libraries that it needs from other wheels.

    Not all wheels contain search paths to each other.
    """
    # The loader reports one missing library per attempt.
    for _ in range(8):
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:
            missing = _ABSENT.match(str(problem))
            other = in_wheels(missing[1]) if missing is not None else None
            if other is None or other == path:
                raise Failed(
                    f"{path} cannot be loaded: {problem}", expected="it loads", got=str(problem)
                ) from None
            _with_needed(other)
    raise Failed(f"{path} cannot be loaded: it lacks too many libraries", expected="it loads")


def integer(library: ctypes.CDLL, function: str, *arguments: Any) -> int:
    """Call a function that returns a status. Raises Failed if the library does not have the function."""
    return int(symbol(library, function)(*arguments))


def symbol(library: ctypes.CDLL, function: str) -> Any:
    """Return a function of a library. Raises Failed if the library does not have it."""
    try:
        return getattr(library, function)
    except AttributeError:
        raise Failed(
            f"the library has no {function}", expected=function, got="no such symbol"
        ) from None
