"""Judge a case that states requirements, a Python and a machine (tests/cases/compat/pip.yml, wheels.yml)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.compat import workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost

PARTS = ("wheel", "framework", "requirement")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def findings(case: Mapping[str, Any], folder: Path) -> list[CompatFinding]:
    """Return the findings about the requirements of a case."""
    file = folder / "requirements.txt"
    file.write_text("\n".join(case["requirements"]) + "\n", encoding="utf-8")
    architecture = ARCHITECTURES[case["machine"]]
    workload = workloads.requirements(file, python=case["python"], architecture=architecture)
    found = check(CompatHost("node", architecture=architecture), [workload])
    return [item for item in found if item.rule.startswith(PARTS)]


def case_name(case: Mapping[str, Any]) -> str:
    """Return the id of a case: its requirements, Python and machine."""
    return f"{'+'.join(case['requirements'])}-{case['python']}-{case['machine']}"
