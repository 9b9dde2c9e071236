"""Complete lock files of public projects: goldnode blocks nothing that their resolver has accepted, and names what it does not judge.

tests/cases/compat/locks.yml has names and versions, as uv and Poetry export them from the lock, and not the files. Each is
written as a pylock.toml (PEP 751) and judged on a node that has every CUDA of these locks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.case_tables import table
from tests.unit.compat.test_rules_workload import node

from goldnode.compat import workloads
from goldnode.compat.check import check

CASES: list[dict[str, Any]] = table("compat/locks.yml")
NODE = node("H100-SXM5-80GB", "610.43.02", unknown="block")


def _pylock(case: dict[str, Any]) -> str:
    needs: dict[str, list[str]] = {}
    for word in case["required_by"].split():
        name, _, owners = word.partition("<")
        for owner in owners.split(","):
            needs.setdefault(owner, []).append(name)
    lines = ['lock-version = "1.0"', 'created-by = "uv"']
    for word in case["packages"].split():
        name, _, version = word.partition("==")
        url = f"https://files.example/{name.replace('-', '_')}-{version}-py3-none-any.whl"
        listed = ", ".join(f'{{ name = "{item}" }}' for item in needs.get(name, ()))
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"']
        lines += [f"dependencies = [{listed}]"] if listed else []
        lines.append(f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "00" }} }}]')
    return "\n".join(lines) + "\n"


def test_stored_locks_are_forty_or_more_of_several_tools() -> None:
    assert len({case["source"] for case in CASES}) == len(CASES) >= 40
    assert len({case["by"] for case in CASES}) >= 4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["source"].split("/", 3)[3])
def test_real_lock_has_no_false_block_and_names_what_is_not_judged(
    case: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "pylock.toml").write_text(_pylock(case), encoding="utf-8")
    workload = workloads.requirements(tmp_path / "pylock.toml", python=case["python"])
    found = [item for item in check(NODE, [workload]) if item.subject == workload.subject]
    assert [item.message for item in found if item.severity == "block"] == []
    unknown = set()
    for item in found:
        if item.severity == "unknown":
            names = re.findall(r"([a-z0-9-]+) \(line", item.message)
            unknown |= (
                set(names or [item.message.split(" ")[0]])
                if item.rule == "gpu-package"
                else {item.rule}
            )
    assert " ".join(sorted(unknown)) == case.get("unknown", "")
