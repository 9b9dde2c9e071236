"""A converged run costs little more than an empty play, so its plugins import only what such a run needs."""

from __future__ import annotations

import subprocess
import sys

from goldnode.ansible.action import goldnode_state
from goldnode.ansible.callback import goldnode_report
from goldnode.ansible.vars import goldnode_class

# Of a class that is compiled, a part that is applied, a report that is made.
UNNEEDED = (
    "pydantic",
    "goldnode.catalog",
    "goldnode.compat",
    "goldnode.core.site",
    "goldnode.node.state.apply",
    "goldnode.node.state.observe",
)
SCRIPT = """
import sys
from ansible.plugins import action, callback, vars
from importlib.util import module_from_spec, spec_from_file_location

for path in sys.argv[1:]:
    spec = spec_from_file_location(f"plugin{len(sys.modules)}", path)
    spec.loader.exec_module(module_from_spec(spec))
from goldnode.core.program_file import build

print(*sys.modules)
print("packed" if build.cache_info().misses else "not packed")
"""


def test_plugins_import_nothing_that_only_a_change_needs() -> None:
    plugins = [str(plugin.__file__) for plugin in (goldnode_class, goldnode_report, goldnode_state)]
    modules, packed = subprocess.run(
        [sys.executable, "-c", SCRIPT, *plugins], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "goldnode.classdoc.cache" in modules.split()
    assert not {*UNNEEDED} & {*modules.split()}, "import it where it is used, and say why there"
    assert packed == "not packed", "packing the program takes longer than the rest of such a run"
