"""Modules that a mitigation keeps out: written before the initramfs, without a boot, and until the kernel with the fix runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.node.state.test_cases import PROGRAM, converged, document

from goldnode.node.state.domains.driver import BLACKLIST, UNTIL_BOOT, module_files, until_boot
from goldnode.node.state.engine import difference
from goldnode.node.state.model import PARTS, Action, Observed

GTP = "usr/lib/modules/6.1.0-902-amd64/kernel/drivers/net/gtp.ko"


def class_of(*names: str, driver: bool = True) -> Any:
    """A class document that keeps out further modules, with or without a driver of its own."""
    wanted = document()
    if not driver:
        wanted |= {"driver": None, "gpu": None, "modules": [], "blacklist": []}
    wanted["blacklist"] = [*wanted["blacklist"], *names]
    if names:
        row = {"cve": "CVE-2026-80851", "deny": list(names), "reason": "x", "owner": "ada"}
        wanted["mitigations"] = [{**row, "expires": "2026-12-31"}]
    return wanted


def planned(wanted: Any, seen: Observed) -> list[Action]:
    return difference(wanted, seen, PROGRAM)[0]


@pytest.mark.parametrize("driver", [True, False])
def test_denial_is_written_before_the_initramfs_that_has_it(driver: bool) -> None:
    seen = converged(class_of(driver=driver))
    for inside in seen.initramfs.values():
        inside["unwanted"] = [GTP]
    actions = planned(class_of("gtp", driver=driver), seen)
    written = next(action for action in actions if action.target == BLACKLIST)
    rebuilt = next(action for action in actions if action.kind == "initramfs.rebuild")
    assert PARTS.index(written.part) <= PARTS.index(rebuilt.part)
    assert actions.index(written) < actions.index(rebuilt)


@pytest.mark.parametrize(("loaded", "expected"), [({}, None), ({"gtp": ""}, "rebuilt")])
def test_module_that_is_not_loaded_needs_no_boot(
    loaded: dict[str, str], expected: str | None
) -> None:
    seen = converged(class_of())
    seen.loaded |= loaded
    for inside in seen.initramfs.values():
        inside["unwanted"] = [GTP]
    actions = planned(class_of("gtp"), seen)
    reboots = {action.reboot for action in actions if action.kind == "initramfs.rebuild"}
    assert [expected in (one or "") if expected else one is None for one in reboots] == [True]


def declared_with(*names: str) -> Observed:
    """A converged node whose class keeps out further modules."""
    wanted = class_of(*names)
    seen = converged(wanted)
    for file in module_files(wanted, "kernel"):
        seen.files[file.path] = {"content": file.content, "mode": file.mode}
    return seen


def test_module_stays_out_until_the_kernel_with_the_fix_runs() -> None:
    wanted = class_of()
    seen = declared_with("gtp")
    assert until_boot(wanted, seen) == []  # the class's kernel runs: the mitigation was lifted
    seen.running_kernel = "6.1.0-901-amd64"
    (file,) = until_boot(wanted, seen)
    assert (file.path, "install gtp /bin/false" in file.content) == (UNTIL_BOOT, True)
    actions = planned(wanted, seen)
    targets = [action.target for action in actions]
    # Never without: the new file is there before the old one changes.
    assert targets.index(UNTIL_BOOT) < targets.index(BLACKLIST)
    # The second run finds it in /run alone, and leaves it.
    for action in actions:
        if action.kind == "file.write":
            content = {"content": action.data["content"], "mode": action.data["mode"]}
            seen.files[action.target] = content
    assert [action for action in planned(wanted, seen) if action.kind.startswith("file.")] == []
    # The boot empties /run.
    del seen.files[UNTIL_BOOT]
    seen.running_kernel = wanted["kernel"]["release"]
    assert [action for action in planned(wanted, seen) if action.kind.startswith("file.")] == []


def test_kernel_that_is_not_known_adds_nothing() -> None:
    seen = declared_with("gtp")
    seen.running_kernel = None
    assert until_boot(class_of(), seen) == []
