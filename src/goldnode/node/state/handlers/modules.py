"""Handlers that build kernel modules with dkms, the driver's own and the stack's others, and that install again.

modinfo verifies each result; exit statuses are not trusted.
"""

from __future__ import annotations

import json
import re

from ...effective.boot_choice import kernel_fault
from ...ground.errors import NodeError
from .. import observe
from ..deferred import APT_TIME
from ..domains import driver as driver_domain
from ..domains import modules
from ..model import declared
from ..observe import RECORD, compiler, load_json, modinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from ...ground.host import Result
    from ..contract import Handler, Writer
    from ..model import Action

COMPILER_ERROR = re.compile(r":\d+: (fatal )?error: ")
BUILD_TIME = 3600.0  # seconds; a small node needs minutes


def build(applier: Writer, action: Action) -> str:
    """Build one source tree for the locked kernel with dkms, unless the package's scripts have done so."""
    host, data = applier.host, action.data
    why = _fault(applier, data["dkms"], data["module"])
    if why is None:
        _record(applier)
        return "built by the package's own scripts"
    if data["dkms"] is None:
        raise NodeError(
            f"{data['module']}: {why}, and its package {data['package']} contains no source for dkms. "
            "Lock a package that does."
        )
    release, source = data["release"], data["dkms"]
    built, installed = (
        re.search(r"(\d+)\.\d+\.\d+", text or "") for text in compiler(host, release).values()
    )
    if built and installed and built.group(1) != installed.group(1):
        raise NodeError(
            f"kernel {release} was built by gcc {built.group(1)} and the node's compiler is gcc "
            f"{installed.group(1)}. "
            f"Install gcc-{built.group(1)}, then run again."
        )
    if not host.exists(f"/lib/modules/{release}/build"):
        raise NodeError(
            f"the headers of {release} are not installed, so no module can be built. Lock the "
            "stack again: it names them."
        )
    version = source_version(applier, source, data["version"], data.get("package"))
    applier.say(f"building {data['module']} {version} for {release}")
    which = ("-m", source, "-v", version, "-k", release)
    if _stale(applier, source):  # dkms would use its existing build of this version
        host.run("dkms", "build", "--force", *which, timeout=BUILD_TIME)
    done = host.run("dkms", "install", "--force", *which, timeout=BUILD_TIME)
    why = _fault(applier, source, data["module"])
    if why is not None:
        raise NodeError(
            f"{data['module']} {version} does not build for kernel {release} ({why}). "
            f"{make_log(applier, source, version) or done.tail()}"
        )
    _record(applier)
    return "built by dkms"


def source_version(applier: Writer, source: str, version: str, package: Optional[str]) -> str:
    """Return dkms's version of a source: the driver's own, or that of the package's tree in /usr/src."""
    if package is None:
        return version
    offered = [
        name.rpartition("/")[2][len(source) + 1 :]
        for name in applier.host.glob("/usr/src", f"{source}-*")
    ]
    offered = [
        item for item in offered if applier.host.exists(f"/usr/src/{source}-{item}/dkms.conf")
    ]
    upstream = version.partition(":")[2] or version
    # The directory in /usr/src may lack the epoch and the Debian revision of the package version.
    fits = [
        item
        for item in offered
        if upstream == item or upstream.startswith((f"{item}-", f"{item}+", f"{item}~"))
    ] or offered
    if len(fits) != 1:
        has = f"the sources {', '.join(offered)}" if offered else "no source"
        raise NodeError(
            f"package {package} {version} should contain the dkms source {source}, and /usr/src has "
            f"{has}. Correct `dkms` in the stack."
        )
    return fits[0]


def make_log(applier: Writer, source: str, version: str) -> str:
    """Return the compiler's first errors and the end of dkms's make.log after a failed build."""
    name = f"/var/lib/dkms/{source}/{version}/build/make.log"
    text = applier.host.text(name)
    if not text:
        return ""
    lines = text.strip().splitlines()
    end = lines[-15:]
    # Jobs run side by side: what the others print comes after the error that ends the build.
    errors = [line for line in lines[:-15] if COMPILER_ERROR.search(line)][:3]
    head = [f"first errors in {name}:", *errors] if errors else []
    return "\n".join([*head, f"end of {name}:", *end])


def _fault(applier: Writer, source: Optional[str], module: str) -> Optional[str]:
    """Return the fault of the modules from one source, or None if all are as wanted."""
    document, release = applier.document, applier.document["kernel"]["release"]
    rows = [row for row in document["modules"] if row["name"] == module]
    if source:  # one build makes all modules of its tree
        rows = modules.of_tree(document, source)
    driver = document.get("driver")
    dkms = driver and driver.get("dkms")
    faults = []
    if driver and dkms and dkms["name"] == source:
        faults.append(
            driver_domain.module_fault(document, modinfo(applier.host, release, driver["module"]))
        )
    if rows:
        facts = modules.survey(applier.host, release, _names(applier))
        faults += [modules.fault(document, row, facts) for row in rows]
    return next((fault for fault in faults if fault), None)


def _stale(applier: Writer, source: str) -> bool:
    """Return whether a source must be compiled again because a dependency has changed."""
    document = applier.document
    rows = modules.of_tree(document, source)
    if not rows:
        return False
    facts = modules.survey(applier.host, document["kernel"]["release"], _names(applier))
    return any(modules.stale(document, row, facts) for row in rows)


def _names(applier: Writer) -> List[str]:
    driver = applier.document.get("driver")
    own = [driver["module"]] if driver and driver.get("dkms") else []
    return [*own, *(row["name"] for row in applier.document["modules"])]


def _record(applier: Writer) -> None:
    """Record the identity of each correct module and of the files that it was built against.

    The files that exist now are those that the build used.
    """
    document, release = applier.document, applier.document["kernel"]["release"]
    rows = [
        row
        for row in document.get("modules") or ()
        if modules.tree(document, row) and modules.foreign(document, row)
    ]
    if not rows:
        return
    facts = modules.survey(applier.host, release, _names(applier))
    unchanged: Dict[str, Dict[str, str]] = {}
    for row in rows:
        if modules.fault(document, row, facts) is None:
            files = [
                (name, facts.get(name)) for name in (row["name"], *modules.foreign(document, row))
            ]
            unchanged[row["name"]] = {name: str(info["identity"]) for name, info in files if info}
        else:
            # This module is not as wanted, so its old record stays.
            unchanged[row["name"]] = (facts[row["name"]] or {}).get("against") or {}
    record = load_json(applier.host, RECORD) or {}
    record["built_against"] = {release: unchanged}
    applier.host.write(RECORD, json.dumps(record, indent=1, sort_keys=True).encode())


def restore(applier: Writer, action: Action) -> str:
    """Reinstall the package of the prebuilt modules if its files are missing or were changed."""

    package = action.data["package"]
    if _package_fault(applier) is None:
        return f"installed by {package}"
    version, done = _install(applier, package)
    why = _package_fault(applier)
    if why is None:
        return f"{package} was installed again"
    stack = applier.document["stack"]["name"]
    raise NodeError(
        f"{action.data['module']}: {why}, and {package} {version} should install it ({done.tail(3)}). "
        f"Run `goldnode modules build {stack}` again, then site.yml."
    )


def _install(applier: Writer, package: str) -> Tuple[str, Result]:
    """Install the locked version of a package again. Return the version, and what apt answered."""
    version = next(row["version"] for row in applier.document["packages"] if row["name"] == package)
    held = observe.packages(applier.host).get(package, {}).get("hold")
    request = (
        *applier.apt,
        "--reinstall",
        "--allow-downgrades",
        "--allow-change-held-packages",
        "install",
        f"{package}={version}",
    )
    done = applier.host.run(*request, timeout=APT_TIME)
    if held:  # apt releases what it installs by name
        applier.host.run("apt-mark", "hold", package)
    return version, done


def restore_kernel(applier: Writer, action: Action) -> str:
    """Reinstall the kernel's package if its image or its list of modules is missing or cut."""
    package, release = action.data["package"], action.data["release"]
    if kernel_fault(applier.host, release) is None:
        return f"installed by {package}"
    version, done = _install(applier, package)
    why = kernel_fault(applier.host, release)
    if why is None:
        return f"{package} was installed again"
    raise NodeError(
        f"{why}, and {package} {version} should install it ({done.tail(3)}). Check /boot (`findmnt /boot`, `df /boot`), "
        "then run again."
    )


def reinstall(applier: Writer, action: Action) -> str:
    """Install a package again whose files are missing or were changed. apt writes the loader's cache as well."""
    _, done = _install(applier, action.target)
    if done.rc != 0:
        raise NodeError(f"apt cannot install {action.target} again: {done.tail(5)}")
    return f"{action.target} was installed again"


def _package_fault(applier: Writer) -> Optional[str]:
    """Return the fault of the prebuilt modules, or None if all are as wanted."""
    document, release = applier.document, applier.document["kernel"]["release"]
    driver = declared(document["driver"])
    own = modinfo(applier.host, release, driver["module"], driver.get("package"))
    faults = [driver_domain.module_fault(document, own)]
    facts = modules.survey(
        applier.host, release, [driver["module"], *(row["name"] for row in document["modules"])]
    )
    faults += [
        modules.fault(document, row, facts)
        for row in document["modules"]
        if row["package"] in (None, driver["package"])
    ]
    return next((fault for fault in faults if fault), None)


HANDLERS: Dict[str, Handler] = {
    "module.build": build,
    "module.restore": restore,
    "packages.reinstall": reinstall,
    "kernel.restore": restore_kernel,
}
