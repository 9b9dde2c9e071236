"""Mitigations of vulnerabilities: what an advisory asks for until the fixed kernel runs, by class, with reason, owner and expiry.

Each is a file of the site, `DIRECTORY/CVE/mitigation.yml`. Its settings become part of the class documents: the engine
applies and checks them, and removes them with the next document after the expiry or after the file is gone.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from goldnode.catalog.models import (
    CmdlineWord,
    IsoDate,
    ModuleName,
    Name,
    ParameterName,
    ParameterValue,
    Sentence,
    Strict,
)
from goldnode.core import yamlsource
from goldnode.core.errors import SiteError
from goldnode.core.site import Site
from goldnode.node.state.debversion import compare

FILE = "mitigation.yml"
SCHEMA = "goldnode.mitigation/1"
CveName = Annotated[str, StringConstraints(pattern=r"^CVE-\d{4}-\d{4,}$")]


class Mitigation(Strict):
    """Settings that keep a vulnerability from being used on the nodes of some classes, until a day."""

    schema_: Literal["goldnode.mitigation/1"] = Field(
        alias="schema", description="Version of the format."
    )
    cve: CveName = Field(description="The vulnerability.")
    classes: list[Name] = Field(min_length=1, description="Classes whose nodes get the settings.")
    deny: list[ModuleName] = Field(
        default_factory=list, description="Kernel modules that are kept out, also by their name."
    )
    sysctl: dict[ParameterName, ParameterValue] = Field(
        default_factory=dict, description="Kernel parameters, as `policy.host.sysctl` of a class."
    )
    cmdline: list[CmdlineWord] = Field(
        default_factory=list, description="Words of the kernel command line; in force after a boot."
    )
    reason: Sentence = Field(description="Why it is needed, for instance the advisory.")
    owner: Sentence = Field(description="Person or team who decided it.")
    expires: IsoDate = Field(description="The last day on which it is in force.")
    fixed: Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+~:-]*$")] | None = Field(
        default=None,
        description="Version of the kernel's package with the fix. A class whose lock has it, or a newer one, needs no mitigation.",
    )

    @model_validator(mode="after")
    def _some(self) -> Mitigation:
        if not self.deny and not self.sysctl and not self.cmdline:
            raise ValueError("it has no setting | add `deny`, `sysctl` or `cmdline`")
        return self

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules that it keeps out, as the kernel names them."""
        return tuple(name.replace("-", "_") for name in self.deny)

    def content(self) -> dict[str, Any]:
        """Return it for a class document: without the classes, which the document of one does not need."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"schema_", "classes"})


def directory(site: Site) -> Path:
    """Return the directory of the records of vulnerabilities."""
    return site.resolve(site.cve.directory)


def load(site: Site) -> Iterator[Mitigation]:
    """Yield the mitigations of a site, sorted by vulnerability. Raises SiteError for an invalid file."""
    for path in sorted(directory(site).glob(f"*/{FILE}")):
        row = yamlsource.validate(
            Mitigation, yamlsource.read(path, error=SiteError), error=SiteError
        )
        if row.cve != path.parent.name:
            raise SiteError(
                f"it is about {row.cve}, and its folder is that of {path.parent.name}",
                file=path,
                remedy="correct `cve`, or move the file",
            )
        yield row


def in_force(
    site: Site, class_name: str, on: dt.date, kernel: str | None = None
) -> list[Mitigation]:
    """Return the mitigations of a class that hold on a day. `kernel`: version of the kernel's package in its lock."""
    return [
        row
        for row in load(site)
        if class_name in row.classes and row.expires >= on and not has_fix(row, kernel)
    ]


def has_fix(row: Mitigation, kernel: str | None) -> bool:
    """Return whether a version of the kernel's package has the fix, so that the mitigation is not needed with it.

    Only versions of one series compare: each has its own fix.
    """
    if row.fixed is None or kernel is None or _series(kernel) != _series(row.fixed):
        return False
    try:
        return compare(kernel, row.fixed) >= 0
    except ValueError:
        return False


def _series(version: str) -> list[str]:
    return re.split(r"[.-]", version)[:2]


def with_settings(policy: Mapping[str, Any], rows: Sequence[Mitigation]) -> dict[str, Any]:
    """Return a policy with the kernel parameters and words of mitigations. These win over those of the class."""
    if not any(row.sysctl or row.cmdline for row in rows):
        return dict(policy)
    host = dict(policy.get("host", {}))
    values = {key: value for row in rows for key, value in row.sysctl.items()}
    words = [word for row in rows for word in row.cmdline]
    if values:
        host["sysctl"] = {**host.get("sysctl", {}), **values}
    if words:
        host["cmdline"] = list(dict.fromkeys([*host.get("cmdline", ()), *words]))
    return {**policy, "host": host}


def check_needed(rows: Iterable[Mitigation], class_name: str, needed: Iterable[str]) -> None:
    """Refuse a mitigation that keeps out a module that the class runs with. Raises SiteError."""
    names = frozenset(needed)
    for row in rows:
        for module in row.modules:
            if module in names:
                raise SiteError(
                    f"the mitigation of {row.cve} keeps out {module}, which class {class_name} runs with",
                    remedy=f"remove it from `deny`, or {class_name} from `classes`",
                )
