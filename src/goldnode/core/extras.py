"""Optional parts of an installation: the extras of pyproject.toml, and the error where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec

from goldnode.core.errors import GoldnodeError

# Python has zstd since 3.14.
_ZSTD = ("backports",) if sys.version_info < (3, 14) else ()

# Extra -> the modules of its packages that goldnode imports.
EXTRAS = {
    "ansible": ("ansible", "ansible_runner"),
    "audit": ("asyncssh",),
    "images": (
        *_ZSTD,
        "cryptography",
        "cyclonedx",
        "docker",
        "jsonschema",
        "license_expression",
        "packageurl",
        "requests",
        "securesystemslib",
        "tuf",
    ),
    "calendars": ("icalendar", "recurring_ical_events"),
    "fleet": ("alembic", "cryptography", "securesystemslib", "sqlalchemy", "starlette", "uvicorn"),
    "floors": ("cryptography", "numpy", "scipy", "securesystemslib"),
    "postgresql": ("psycopg",),
    "redfish": ("sushy", "dateutil"),
    "report": ("duckdb", "numpy", "pyarrow"),
    "updates": ("cryptography", "securesystemslib", "tuf"),
    "test": ("docker", "pytest", "testinfra"),
}
# Option of pipx that also installs the commands of what goldnode depends on: ansible-playbook, ansible-galaxy.
INCLUDE_DEPS = "--include-deps"


class MissingExtraError(GoldnodeError):
    """A command needs packages that this installation lacks."""


def require(*names: str) -> None:
    """Raise MissingExtraError unless every package of these extras is installed."""
    absent = [name for name in names if not installed(name)]
    if absent:
        raise missing(absent)


def installed(name: str) -> bool:
    """Return whether every package of an extra is installed."""
    return all(map(is_installed, EXTRAS[name]))


def of_module(module: str | None) -> str | None:
    """Return the extra that provides `module`; None for a module of no extra."""
    top = (module or "").partition(".")[0]
    return next((name for name, modules in EXTRAS.items() if top in modules), None)


def missing(names: Iterable[str]) -> MissingExtraError:
    """Return the error for extras that are not installed, with the command for each kind of installation."""
    extras = sorted(names)
    absent = sorted(
        {module for name in extras for module in EXTRAS[name] if not is_installed(module)}
    )
    wanted = f"goldnode[{','.join(extras)}]"
    pipx = "pipx install --force" + (f" {INCLUDE_DEPS}" if "ansible" in extras else "")
    return MissingExtraError(
        f"this needs packages that are not installed ({', '.join(absent)})",
        remedy=f"install {wanted}: `{pipx} '{wanted}'`, `uv tool install '{wanted}'`, or, in a virtual "
        f"environment, `pip install '{wanted}'`",
    )


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # an import hook refuses it
        return False
