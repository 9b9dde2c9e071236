"""The byte code of a check in one file. Python looks for each module in turn, looks at the times of its source and reads a file of its own:
for the seventy modules of a check that takes as long as two of the programs it starts.

The first check of a boot leaves what it has used beside the unpacked program (:mod:`__main__`), for later ones. Modules that are not in the
file come as ever. What the file holds is what Python itself keeps beside each source, in a directory that only root can write to, named
after the digest of the sources; its own name is that of the Python that made it.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Dict, Optional, Tuple

FILE = f"check.{sys.implementation.cache_tag}"
HEAD = 16  # bytes before the code in Python's own files (PEP 552)


class Packed:
    """Finds and loads the modules of a pack: name -> (whether it is a package, its marshalled code)."""

    def __init__(self, codes: Dict[str, Tuple[bool, bytes]], here: str) -> None:
        self.codes, self.here = codes, here

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """What the import system asks for; None of what is not in the pack."""
        if name not in self.codes:
            return None
        package, _ = self.codes[name]
        spec = type(__spec__)(name, self, is_package=package)  # type: ignore[arg-type]
        if package:  # modules that are not in the pack are found there
            spec.submodule_search_locations = [os.path.join(self.here, *name.split("."))]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """None: as every module is made."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        exec(marshal.loads(self.codes[module.__name__][1]), module.__dict__)  # noqa: S102, S302 - the program's own


def use(here: str) -> None:
    """Let modules come from the pack in the directory `here`, where there is one."""
    try:
        with open(os.path.join(here, FILE), "rb") as opened:
            codes = marshal.loads(opened.read())  # noqa: S302 - root's own, see above
    except (OSError, ValueError, EOFError, TypeError):
        return
    sys.meta_path.insert(0, Packed(codes, here))


def keep(here: str) -> None:
    """Make the pack of the modules that are loaded from the directory `here`, where there is none yet."""
    place = os.path.join(here, FILE)
    if os.path.exists(place):
        return
    codes = {}
    try:
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if spec is not None and spec.cached and str(spec.origin).startswith(here + "/goldnode/"):
                with open(spec.cached, "rb") as opened:
                    codes[name] = (spec.submodule_search_locations is not None, opened.read()[HEAD:])
        fresh = f"{place}-{os.getpid()}"
        with open(fresh, "xb") as out:
            out.write(marshal.dumps(codes))
        os.rename(fresh, place)
    except OSError:  # no byte code was kept, or there is no room for more of it
        return
