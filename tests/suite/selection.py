"""Selection of the tests that a change can affect, from Python imports (imports.py) and the table AFFECTS.

A file that neither covers selects all tests; tests/unit/test_selection.py fails while the repository has such
a file.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.suite.imports import Imports, is_test, module_of

# Targets of the table. `marker:NAME`: all files with tests of that marker. `module:NAME`: all files that
# import that module. Otherwise a directory below tests/, a test file, or the id of one test.
EVERYTHING = "everything"
NODES = ("marker:lab", "marker:real", "marker:qemu", "marker:disks")
LINT = "tests/unit/test_lint.py"
TOOLS = f"{LINT}::test_tool_finds_nothing"
# Reads every file, so it runs with every change. It does not count as coverage.
EVERY_FILE = "tests/unit/test_hygiene.py"
RELEASE = "tests/unit/test_release.py"

# Pattern → targets. All matching rows apply. `*` also matches `/`.
AFFECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Files that affect how every test runs.
    ("pyproject.toml", (EVERYTHING,)),
    ("requirements/*", (EVERYTHING,)),
    ("tests/conftest.py", (EVERYTHING,)),
    # Playbooks and code that runs on nodes.
    (
        "site.yml",
        (*NODES, "tests/unit/ansible", "tests/unit/testing/lab", "tests/unit/fleet", RELEASE),
    ),
    ("report.yml", ("tests/unit/ansible", "tests/unit/fleet", RELEASE)),
    ("rollback.yml", (*NODES, "tests/unit/ansible", "tests/unit/fleet", RELEASE)),
    ("rollout.yml", ("marker:lab", "tests/unit/fleet", RELEASE)),
    ("rollout/*", ("marker:lab", "tests/unit/fleet", RELEASE)),
    (
        "ansible.cfg",
        (*NODES, "tests/unit/ansible", "tests/unit/testing/lab", f"{TOOLS}[ansible-lint]"),
    ),
    *((link, (*NODES, "tests/unit/ansible")) for link in ("action_plugins", "library")),
    ("roles/*", (*NODES, "tests/unit/ansible", "tests/unit/fleet", RELEASE)),
    (
        "tests/unit/evidence/licence_strings.tsv",
        ("tests/unit/evidence/test_contents.py",),
    ),
    ("tests/unit/fleet/report/screenshots.py", ("tests/unit/fleet/report",)),
    ("tests/unit/inventory/answers/*", ("tests/unit/inventory", RELEASE)),
    ("integrations/inventories/*", ("tests/unit/inventory", RELEASE)),
    ("tests/unit/fleet/store/*.sql", ("tests/unit/fleet/store/test_schema.py",)),
    ("hatch_build.py", (RELEASE, "tests/e2e/test_collection.py")),
    ("release/*", (RELEASE, "tests/e2e/test_collection.py")),
    ("src/goldnode/*.py", ("marker:lab",)),
    (
        "src/goldnode/ansible/*",
        (*NODES, "tests/unit/ansible", "tests/unit/fleet", RELEASE, f"{TOOLS}[ansible-lint]"),
    ),
    ("src/goldnode/node/*", (*NODES, "tests/simulators", "tests/faults")),
    (
        "src/goldnode/testing/testinfra/*",
        ("marker:lab", "marker:real", "tests/unit/testing/testinfra", "tests/simulators"),
    ),
    ("src/goldnode/canary/runner/jobs.json", ("tests/unit/canary",)),
    ("tests/unit/canary/recorded/*", ("tests/unit/canary",)),
    ("src/goldnode/catalog/*", NODES),
    ("src/goldnode/compat/*", (*NODES, "marker:images")),
    ("src/goldnode/fleet/*", NODES),
    ("src/goldnode/lock/*", (*NODES, "marker:images")),
    ("src/goldnode/testing/lab/*", (*NODES, "marker:images")),
    ("src/goldnode/classdoc/*", NODES),
    ("src/goldnode/inventory/*", NODES),
    ("src/goldnode/oci/*", ("marker:images", "marker:disks")),
    ("src/goldnode/inspect/*", ("marker:images", "marker:disks")),
    ("src/goldnode/evidence/*", ("marker:images", "marker:disks")),
    ("src/goldnode/channels/*", ("marker:images", "marker:disks")),
    ("src/goldnode/disks/*", ("marker:disks", "marker:qemu")),
    ("src/goldnode/images/*", ("marker:images", "marker:disks")),
    ("src/goldnode/commands/*", ("marker:images", "marker:disks", "marker:real")),
    ("src/goldnode/diagnostics/*", NODES),
    # Every command and every node depends on these.
    *(
        (f"src/goldnode/{name}", (*NODES, "marker:images"))
        for name in ("__init__.py", "cli.py", "core/*")
    ),
    # Data that modules read.
    (
        "catalog/*",
        (
            "module:goldnode.catalog.load",
            "module:goldnode.commands.schema.kinds",
            *NODES,
            "marker:images",
        ),
    ),
    (
        "schemas/*",
        ("tests/unit/commands/test_catalog_schemas.py", "tests/unit/images/test_image_matrix.py"),
    ),
    ("src/goldnode/facts/*", ("module:goldnode.facts.host",)),
    (
        "src/goldnode/classdoc/templates/*",
        ("module:goldnode.classdoc.blessed_combinations", "module:goldnode.compat.report"),
    ),
    ("src/goldnode/py.typed", (f"{TOOLS}[mypy]",)),
    (
        "images/containers/*",
        ("module:goldnode.images.matrix", "module:goldnode.images.imagelock", "marker:images"),
    ),
    (
        "images/disks/*",
        (
            "module:goldnode.disks.definition",
            "module:goldnode.disks.locking",
            "marker:disks",
            "marker:qemu",
        ),
    ),
    ("integrations/*", ("tests/unit/integrations", "tests/unit/commands/test_reference.py")),
    ("integrations/prometheus/*", ("tests/e2e/test_prometheus.py",)),
    ("integrations/slurm/*", ("tests/e2e/test_slurm.py",)),
    (
        "inventories/*",
        (
            "tests/unit/inventory/test_inventory_classes.py",
            "tests/unit/fleet",
            "tests/e2e/test_real.py",
        ),
    ),
    # Molecule.
    (".config/molecule/*", ("tests/lab", "tests/unit/testing/lab")),
    ("molecule/*", ("tests/unit/testing/lab", "tests/unit/commands/test_reference.py")),
    ("molecule/shared/*", ("tests/lab",)),
    ("molecule/stacks/*", ("tests/lab/test_molecule_stacks.py",)),
    *(
        (f"molecule/{name}/*", (f"tests/lab/test_molecule.py::test_scenario[{name}]",))
        for name in ("debian12", "debian13", "ubuntu2404-standin")
    ),
    # Scripts.
    (".ci/run", (LINT,)),
    (
        "scripts/*",
        (LINT, "tests/unit/test_script_help.py", "tests/unit/commands/test_reference.py"),
    ),
    ("scripts/demo", ("tests/e2e/test_real.py",)),
    ("scripts/lib/*", ("tests/e2e/test_real.py", "tests/images/test_pipeline.py")),
    ("scripts/docs", ("tests/unit/test_docs.py",)),
    ("scripts/lib/site_hook.py", ("tests/unit/test_docs.py",)),
    ("scripts/build-images", ("tests/images/test_pipeline.py",)),
    ("scripts/prove-gpu", ("tests/unit", "tests/simulators")),
    (
        "scripts/verify",
        (
            "tests/unit/test_verify.py",
            "tests/e2e/test_gate.py",
            "tests/e2e/test_real.py",
            "tests/e2e/test_host_modules.py",
        ),
    ),
    # Pages that tests read. Other pages are only searched for forbidden names.
    ("README.md", ("tests/unit/test_docs.py", "tests/unit/test_documented.py")),
    ("mkdocs.yml", ("tests/unit/test_docs.py",)),
    ("CHANGELOG.md", ("tests/unit/test_docs.py",)),
    ("CONTRIBUTING.md", ("tests/unit/test_docs.py", "tests/unit/test_documented.py")),
    ("LICENSE", ()),
    ("findings/*", ()),  # run by hand
    (".gitignore", ()),
    (".git-blame-ignore-revs", ()),
    ("docs/*", ("tests/unit/test_docs.py", "tests/unit/test_documented.py")),
    ("docs/reference/variables.md", ("tests/unit/inventory/test_variables.py",)),
    ("docs/reference/commands.md", ("tests/unit/test_manual.py",)),
    ("docs/reference/configuration.md", ("tests/unit/commands/test_reference.py",)),
    ("docs/reference/capture.md", ("tests/unit/node/probe/test_capture_gpus.py",)),
    ("docs/reference/sanity.md", ("tests/unit/node/state/test_sanity_docs.py",)),
    ("docs/reference/matrix.md", ("tests/unit/commands/test_matrix.py",)),
    ("docs/reference/faults.md", ("tests/faults",)),
    ("docs/benchmarks/*", ("tests/unit/test_benchmark_pages.py", "tests/unit/test_benchmarks.py")),
    # Benchmarks.
    ("benchmarks/*", ("tests/unit/test_benchmark_pages.py", "tests/unit/test_benchmarks.py")),
    ("benchmarks/converge/*", ("tests/e2e/test_resident.py",)),
    ("benchmarks/run", (LINT, "tests/unit/test_benchmarks.py")),
    # Files that tests read.
    ("tests/cases/*", ("tests/unit", "tests/simulators")),
    ("tests/found/*", ("tests/unit",)),
    ("tests/disks/*.sh", ("tests/disks",)),
    ("tests/disks/guest_*.py", ("tests/disks",)),
    ("tests/unit/prose.py", ("tests/unit/test_prose.py",)),
    ("tests/durations.json", ("tests/unit/test_timings.py",)),
    ("tests/e2e/catalog/*", ("tests/e2e", "tests/lab", "tests/disks")),
    ("tests/faults/catalog/*", ("tests/faults",)),
    (
        "tests/nodes/*",
        ("marker:lab", "marker:real", "tests/simulators", "tests/unit/test_verify.py"),
    ),
    ("tests/simulators/hardware/*.txt", ("module:tests.simulators.hardware",)),
    (
        "tests/simulators/*.c",
        ("module:tests.simulators.accelerators", "module:tests.simulators.hardware"),
    ),
    ("tests/simulators/*.md", ()),
    # Programs for guests and nodes, and helpers that are executed instead of imported.
    ("tests/e2e/qemu/*", ("marker:qemu", "marker:disks")),
    ("tests/simulators/*.py", ("tests/simulators", "tests/faults", "marker:lab", "marker:real")),
    ("tests/stacks/*", ("tests/lab",)),
    ("tests/suite/*", ("tests/unit/test_selection.py", "tests/unit/test_stages.py")),
    ("tests/unit/disks/*.json", ("tests/unit/disks",)),
    ("tests/unit/node/fixtures/*", ("tests/unit/node", "tests/simulators")),
    # Linters, by the files that each reads.
    ("*.py", tuple(f"{TOOLS}[{tool}]" for tool in ("ruff", "ruff-format", "mypy"))),
    ("*.yml", (f"{TOOLS}[ansible-lint]",)),
    (".config/ansible-lint.yml", (f"{TOOLS}[ansible-lint]",)),
)


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(
        "".join(".*" if char == "*" else re.escape(char) for char in pattern), re.DOTALL
    )


def matches(path: str, pattern: str) -> bool:
    return _pattern(pattern).fullmatch(path) is not None


@dataclass
class Selection:
    """Test files, or ids of single tests → the reason for each."""

    why: dict[str, str] = field(default_factory=dict)
    everything: str = ""  # reason why all tests run; if empty, only those in `why` run

    def add(self, test: str, cause: str) -> None:
        self.why.setdefault(test, cause)

    def folded(self) -> list[str]:
        """Return one line per reason with the tests it selected; long lists are shortened."""
        by_cause: defaultdict[str, list[str]] = defaultdict(list)
        for test, cause in self.why.items():
            by_cause[cause].append(test.removeprefix("tests/"))
        lines = []
        for cause, tests in sorted(by_cause.items(), key=lambda row: (len(row[1]), row[0])):
            shown = ", ".join(sorted(tests)[:3]) + (
                f" and {len(tests) - 3} more" if len(tests) > 3 else ""
            )
            lines.append(f"{cause}: {shown}")
        return lines


def select(changed: Iterable[str], imports: Imports, marks: Mapping[str, set[str]]) -> Selection:
    """Return the tests that `changed` can affect. `marks` maps every test file to the markers of its
    tests.
    """
    selection = Selection()
    paths = sorted(changed)
    for path in paths:
        covered, causes = _causes(path, imports)
        if not covered:
            selection.everything = (
                selection.everything or f"{path} is covered by no row of tests/suite/selection.py"
            )
        for cause, targets in causes:
            for target in targets:
                if target == EVERYTHING:
                    selection.everything = (
                        selection.everything or f"{path} decides how every test runs"
                    )
                for test in _expand(target, imports, marks):
                    selection.add(test, cause)
        if path in marks:
            selection.add(path, "changed itself")
        if path.endswith(".py"):
            for test, module in imports.tests_of([module_of(path)]).items():
                selection.add(test, f"imports {module}")
    if paths:
        selection.add(EVERY_FILE, "reads every file")
    # If a whole file runs, do not name its tests too: pytest would run them once but count them separately.
    whole = {test for test in selection.why if "::" not in test}
    selection.why = {
        test: cause
        for test, cause in selection.why.items()
        if "::" not in test or test.partition("::")[0] not in whole
    }
    return selection


def _causes(path: str, imports: Imports) -> tuple[bool, list[tuple[str, Sequence[str]]]]:
    """Return whether imports or the table cover `path`, and the matching rows as (cause, targets)."""
    rows = [(pattern, targets) for pattern, targets in AFFECTS if matches(path, pattern)]
    # Linters read all files of a type; that does not mean anything uses the file.
    covered = any(not pattern.startswith("*") for pattern, _ in rows) or is_test(path)
    if not covered and path.endswith(".py"):
        covered = bool(imports.tests_of([module_of(path)])) or path.endswith("/__init__.py")
    return covered, [
        (f"{path} ({pattern})" if pattern != path else path, targets) for pattern, targets in rows
    ]


def uncovered(paths: Iterable[str], imports: Imports) -> list[str]:
    """Return the files that select all tests because no row of the table covers them."""
    return [path for path in paths if not _causes(path, imports)[0]]


def _expand(target: str, imports: Imports, marks: Mapping[str, set[str]]) -> Iterator[str]:
    kind, colon, name = target.partition(":")
    if colon and kind == "marker":
        yield from (file for file, found in marks.items() if name in found)
    elif colon and kind == "module":
        yield from imports.tests_of([name])
    elif "::" in target:
        yield target
    elif target != EVERYTHING:
        yield from (file for file in marks if file == target or file.startswith(f"{target}/"))


def changed_files(root: Path, base: str | None) -> tuple[str, list[str]]:
    """Return the base of the comparison as text, and the files that differ from it.

    Uncommitted and untracked files are included.
    """
    start, words = _start(root, base)
    listed = _git(root, "diff", "--name-only", "--no-renames", "-z", start) + _git(
        root, "ls-files", "-o", "--exclude-standard", "-z"
    )
    return words, sorted({path for path in listed.split("\0") if path})


def _start(root: Path, base: str | None) -> tuple[str, str]:
    head = _git(root, "rev-parse", "HEAD").strip()
    for name in [base] if base else ["origin/main", "HEAD~1"]:
        try:
            commit = _git(root, "merge-base", name, "HEAD").strip()
        except subprocess.CalledProcessError as error:
            if base:
                raise SystemExit(
                    f"scripts/test: --changed {base}: {error.stderr.strip() or 'shares no commit with HEAD'}"
                ) from error
            continue
        # On an unmodified main branch, test the last commit instead.
        clean = not _git(root, "status", "--porcelain").strip()
        if not base and name == "origin/main" and commit == head and clean:
            continue
        return commit, f"{name} ({commit[:12]})"
    raise SystemExit(
        "scripts/test: --changed finds neither origin/main nor HEAD~1 here. "
        "Name a commit: scripts/test --changed COMMIT"
    )


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, capture_output=True, text=True, check=True
    ).stdout


def known_files(root: Path) -> list[str]:
    """Return the files of the project that git tracks or would add."""
    return sorted(
        path
        for path in _git(root, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
        if path
    )
