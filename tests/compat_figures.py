"""Print how many combinations the compatibility rules are tested with: `python -m tests.compat_figures`.

docs/proof.md has the table; tests/unit/compat/test_compat_figures.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.case_tables import CASES, table

from goldnode.facts import wheels
from goldnode.facts.host import load

_OF = {
    "autumn.yml": "combinations of autumn 2026: wheels, drivers, kernels, engines, parts, files of projects",
    "boards.yml": "boards, drivers, MIG layouts, kernels, images",
    "combinations.yml": "combinations with all that is found",
    "images.yml": "images and environments",
    "intel.yml": "Intel's boards",
    "locks.yml": "complete lock files of public projects",
    "parts.yml": "network, storage, monitoring and Kubernetes parts",
    "pip.yml": "requirement sets with pip's answer",
    "rocm.yml": "AMD's boards, drivers and systems",
    "trial.yml": "combinations that an independent trial spelled out",
    "vendor.yml": "combinations from vendors' documents",
    "winter.yml": "combinations of late 2026: images, boards, wheels, files of projects, parts",
    "wheels.yml": "requirement sets with tags of wheels",
}


def rows(name: str) -> int:
    """Return the number of cases of a table: of all its lists."""
    content = table(f"compat/{name}")
    if isinstance(content, list):
        return len(content)
    return sum(len(value) for value in content.values() if isinstance(value, list))


def lines() -> Iterator[str]:
    """Yield the rows of the table in docs/proof.md."""
    tables = {path.name: rows(path.name) for path in sorted((CASES / "compat").glob("*.yml"))}
    for name, count in tables.items():
        yield f"| `tests/cases/compat/{name}` | {_OF[name]} | {count} |"
    yield f"| all tables | | {sum(tables.values())} |"
    resolved = len(list((CASES / "compat/resolved").glob("*.txt")))
    yield f"| `tests/cases/compat/resolved` | answers of resolvers for frameworks | {resolved} |"
    for name in ("autumn.yml", "winter.yml"):
        wrong = sum("was" in case for case in table(f"compat/{name}")["cases"])
        yield f"| {name}, key `was` | wrong when the table was first run | {wrong} |"
    packages = {row["name"] for row in load("gpu_wheels.yml")["packages"]}
    yield f"| `facts/gpu_wheels.yml` | packages that use a GPU | {len(packages)} |"
    releases = [len(each) for each in wheels.packages().values()]
    yield f"| `facts/wheels.yml` | releases with what they require, of {len(releases)} packages | {sum(releases)} |"


def written(page: Path) -> list[str]:
    """Return the rows of the table in a page."""
    text = page.read_text(encoding="utf-8")
    return (
        text.partition("| Where | Content | Count |\n|---|---|--:|\n")[2]
        .partition("\n\n")[0]
        .split("\n")
    )


if __name__ == "__main__":
    print("\n".join(lines()))
