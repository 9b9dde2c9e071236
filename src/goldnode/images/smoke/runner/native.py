"""Shared libraries through ctypes: found by soname as the dynamic loader finds them, else where Python wheels put them."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys
from typing import Any, List, Optional, Sequence

from .report import Failed, NotRun

# Sonames of what is loaded and says itself that it is a simulator: it exports an int `goldnode_simulated` that is not 0.
SIMULATED: List[str] = []

LIBCUDA = "libcuda.so.1"  # NVIDIA's driver; the host's

_ABSENT = re.compile(r"^(\S+): cannot open shared object file: No such file or directory$")


def load(soname: str, wheels: bool = True) -> ctypes.CDLL:
    """The library, all its symbols bound (RTLD_NOW). Raises Failed with the loader's words. `wheels`: look where wheels put theirs as well."""
    try:
        found = ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)
    except OSError as problem:
        told = _ABSENT.match(str(problem))
        path = in_wheels(soname) if wheels and told is not None and told[1] == soname else None
        if path is None:
            raise Failed(
                f"{soname} cannot be loaded: {problem}", expected="it loads", got=str(problem)
            ) from None
        found = _with_needed(path)
    try:
        said = ctypes.c_int.in_dll(found, "goldnode_simulated")
    except ValueError:
        return found
    if said.value:
        SIMULATED.append(soname)
    return found


def absent(soname: str, wheels: bool = True) -> bool:
    """Whether there is no such file. A file that is there and cannot be loaded is not absent."""
    try:
        load(soname, wheels)
    except Failed as problem:
        return lacks(problem, soname)
    return False


def lacks(problem: Failed, soname: str) -> bool:
    """Whether a library could not be loaded because there is no file `soname`, which it needs or is."""
    told = _ABSENT.match(str(problem.result["got"]))
    return told is not None and told[1] == soname


def which(sonames: Sequence[str]) -> Optional[str]:
    """The first of the sonames that is there: what the loader finds goes before what only a wheel has."""
    return next(
        (soname for wheels in (False, True) for soname in sonames if not absent(soname, wheels)), None
    )


def first(sonames: Sequence[str]) -> Optional[ctypes.CDLL]:
    """The first of the libraries that is there; None where none is. One that is there and broken raises Failed."""
    soname = which(sonames)
    return None if soname is None else load(soname)


def need(sonames: Sequence[str], what: str) -> ctypes.CDLL:
    """The first of the libraries; without any, the test does not apply here."""
    found = first(sonames)
    if found is None:
        raise NotRun(f"{what} is not here ({', '.join(sonames)})")
    return found


def wheel_directories() -> List[str]:
    """Where installed wheels keep shared libraries: <site>/nvidia/*/lib and the like, for the interpreter's own site directories."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    sites = [
        *(path for path in sys.path if path.endswith("-packages")),
        *(f"{sys.prefix}/lib/{version}/{name}" for name in ("site-packages", "dist-packages")),
        f"/usr/local/lib/{version}/dist-packages",
        "/usr/lib/python3/dist-packages",
    ]
    return [
        found
        for site in dict.fromkeys(sites)
        for found in sorted(glob.glob(f"{glob.escape(site)}/nvidia/*/lib"))
    ]


def in_wheels(soname: str) -> Optional[str]:
    """The file of that name in an installed wheel."""
    for folder in wheel_directories():
        path = os.path.join(folder, soname)
        if os.path.isfile(path):
            return path
    return None


def _with_needed(path: str) -> ctypes.CDLL:
    """Load a wheel's library, and before it whatever it lacks and another wheel has: not all of them name each other's place."""
    for _ in range(8):
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:
            told = _ABSENT.match(str(problem))
            other = in_wheels(told[1]) if told is not None else None
            if other is None or other == path:
                raise Failed(
                    f"{path} cannot be loaded: {problem}", expected="it loads", got=str(problem)
                ) from None
            _with_needed(other)
    raise Failed(f"{path} cannot be loaded: it lacks too many libraries", expected="it loads")


def integer(library: ctypes.CDLL, function: str, *arguments: Any) -> int:
    """Call a function that returns a status. Raises Failed where the library does not have it."""
    return int(symbol(library, function)(*arguments))


def symbol(library: ctypes.CDLL, function: str) -> Any:
    """A function of a library. Raises Failed where it is absent."""
    try:
        return getattr(library, function)
    except AttributeError:
        raise Failed(f"the library has no {function}", expected=function, got="no such symbol") from None
