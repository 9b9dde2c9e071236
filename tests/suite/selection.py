"""Selection of the tests near a change, for `scripts/test --changed`.

Four rules, read from paths and texts alone, so that the choice takes a second:

1. A changed test runs. A changed helper runs the tests that import it, directly or through other helpers.
2. A module of `src/goldnode` runs the folder of tests that mirrors its package or room, and so does a data file
   between the tests.
3. The unit tests that import a changed module, or name a changed file, run.
4. AFFECTS names the tests for what is not imported: data, playbooks, scripts. The recipes of docs/adding.md
   have rows there; a test compares them.

A module can break more than that through other modules, and almost everything can break a node. The selection
prints what it leaves to the whole run. A file that no rule covers selects all tests.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.suite.stages import HEAVY

EVERYTHING = "everything"
# A target `marker:NAME` names all files with tests of that marker. They run on nodes or in machines for minutes
# each, so the selection reports them and leaves them to the whole run.
NODES = ("marker:lab", "marker:real", "marker:qemu", "marker:disks")
LINT = "tests/unit/test_lint.py"
TOOLS = f"{LINT}::test_tool_finds_nothing"
# Patterns of whole types of files. Linters and tests of words read them, which does not mean that a test uses one.
GENERAL = ("*.py", "*.yml", "src/*.py")
OWN_TEST = "tests/unit/test_selection.py"  # names files as examples
# They read every file, so they run with every change and do not count as coverage.
EVERY_FILE = ("tests/unit/test_hygiene.py",)
RELEASE = "tests/unit/test_release.py"
PAGES = (
    "tests/unit/test_docs.py",
    "tests/unit/test_documented.py",
    "tests/unit/test_page_commands.py",
    "tests/unit/test_prose.py",
)
# Tests of generated files that take their rows from the kinds of findings and from the facts.
KINDS = (
    "tests/unit/node/state/test_kinds.py",
    "tests/unit/node/state/test_sanity_docs.py",
    "tests/unit/commands/test_catalog_schemas.py",
)
FACTS = (
    "tests/reports",
    "tests/unit/facts",
    "tests/unit/compat",
    "tests/unit/node/ground/test_known.py",
    "tests/unit/node/ground/test_log_lines.py",
    "tests/unit/commands/test_matrix.py",
    "tests/unit/commands/test_check_command.py",
)

# Pages of tables that tests write: they have no command to run.
TABLES = ("docs/reference/sanity.md", "docs/reference/log-lines.md")
# What a pattern of AFFECTS does not mean: these pages, limits of health checks, which no rule of compatibility reads,
# and the YAML that .config/ansible-lint.yml excludes.
EXCEPT: Mapping[str, tuple[str, ...]] = {
    "*.md": TABLES,
    "docs/*": TABLES,
    "src/goldnode/facts/*": ("src/goldnode/facts/health.yml",),
    "*.yml": ("catalog/*", "src/goldnode/facts/*", "tests/*", "images/*", "mkdocs.yml"),
}
# Pattern → targets. All matching rows apply. `*` also matches `/`.
AFFECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Files that affect how every test runs.
    ("pyproject.toml", (EVERYTHING,)),
    ("requirements/*", (EVERYTHING,)),
    ("tests/conftest.py", (EVERYTHING,)),
    # The recipes of docs/adding.md.
    ("src/goldnode/node/verdict/*", KINDS),
    (
        "src/goldnode/node/state/kinds.py",
        (*KINDS, "tests/unit/node/verdict", "tests/faults/test_carried_rows.py"),
    ),
    ("src/goldnode/facts/log_lines.yml", ("tests/faults/test_log_remedies.py",)),
    ("src/goldnode/node/ground/known.py", ("tests/unit/node/verdict",)),
    ("src/goldnode/node/ground/log_lines.py", ("tests/unit/node/verdict", "tests/unit/node/probe")),
    ("src/goldnode/facts/*", FACTS),
    (
        "src/goldnode/facts/health.yml",
        ("tests/unit/facts", "tests/unit/node/ground/test_known.py", "tests/unit/classdoc"),
    ),
    (
        "src/goldnode/compat/*",
        ("tests/unit/commands/test_matrix.py", "tests/unit/commands/test_check_command.py"),
    ),
    (
        "tests/cases/*",
        ("tests/unit/node/state/test_cases.py", "tests/unit/node/state/test_parts.py"),
    ),
    ("tests/cases/compat/*", ("tests/unit/compat",)),
    ("tests/gpu_wheels.py", ("tests/unit/facts", "tests/unit/compat/test_gpu_packages.py")),
    ("tests/wheel_releases.py", ("tests/unit/facts", "tests/unit/compat/test_autumn_cases.py")),
    ("tests/cases/purity/*", ("tests/unit/inspect",)),
    (
        "tests/cases/recorded/*",
        ("tests/unit/prove", "tests/unit/node/cachekey", "tests/unit/fleet/ingest"),
    ),
    (
        "tests/cases/logs/*",
        (
            "tests/unit/node/probe/test_logs.py",
            "tests/unit/node/program/test_watch.py",
            "tests/faults/test_log_remedies.py",
        ),
    ),
    ("tests/cases/loader/*", ("tests/unit/node/effective/test_loader.py",)),
    ("tests/cases/containerd*.json", ("tests/unit/node/effective/test_containerd.py",)),
    ("tests/cases/a*.yml", ("tests/unit/lock",)),
    ("tests/cases/xid_driver_codes.txt", ("tests/unit/facts/test_xid.py",)),
    ("src/goldnode/node/state/domains/*", ("tests/unit/ansible/test_tags.py", *KINDS)),
    (
        "src/goldnode/catalog/*",
        ("tests/unit/commands/test_catalog_schemas.py", "tests/unit/commands/test_reference.py"),
    ),
    ("src/goldnode/documents/*", ("tests/unit/commands/test_catalog_schemas.py",)),
    ("images/containers/*", ("tests/unit/images", "marker:images")),
    ("images/disks/*", ("tests/unit/disks", "marker:disks", "marker:qemu")),
    ("images/disks/*.service", ("tests/unit/node/state/test_units_page.py",)),
    *(
        (f"docs/how-to/{page}.md", ("tests/unit/node/state/test_units_page.py",))
        for page in ("canary", "events", "fleet-service", "monitoring")
    ),
    ("integrations/*", ("tests/unit/integrations", "tests/unit/commands/test_reference.py")),
    # Playbooks and code that runs on nodes.
    *(
        (pattern, (*NODES, "tests/unit/ansible", "tests/unit/node/state/test_parts.py", RELEASE))
        for pattern in ("site.yml", "rollback.yml", "roles/*")
    ),
    ("report.yml", ("tests/unit/ansible", "tests/unit/fleet/ingest", RELEASE)),
    ("rollout.yml", ("marker:lab", "tests/unit/fleet/control", RELEASE)),
    ("rollout/*", ("marker:lab", "tests/unit/fleet/control", RELEASE)),
    ("ansible.cfg", (*NODES, "tests/unit/ansible", "tests/unit/testing/lab")),
    *(
        (link, (*NODES, "tests/unit/ansible"))
        for link in ("action_plugins", "callback_plugins", "library")
    ),
    ("src/goldnode/ansible/*", (*NODES, RELEASE)),
    ("src/goldnode/ansible/inventory/*", ("tests/unit/inventory",)),
    ("src/goldnode/ansible/program_inventory.py", ("tests/unit/inventory",)),
    (
        "src/goldnode/fleet/drain/*",
        (
            "tests/unit/fleet/control/test_rollout_drains.py",
            "tests/unit/fleet/control/test_schedulers.py",
        ),
    ),
    ("src/goldnode/node/*", (*NODES, "marker:images", "tests/unit/core/test_nodefile.py")),
    *(
        (f"src/goldnode/{name}/*", NODES)
        for name in ("catalog", "classdoc", "compat", "core", "diagnostics", "fleet", "inventory")
    ),
    *(
        (f"src/goldnode/{name}/*", ("marker:images", "marker:disks"))
        for name in ("oci", "inspect", "evidence", "channels", "images", "gpuprogram", "lock")
    ),
    ("src/goldnode/disks/*", ("marker:disks", "marker:qemu")),
    (
        "src/goldnode/commands/*",
        ("tests/unit/test_cli.py", "tests/unit/test_manual.py", "marker:real"),
    ),
    ("src/goldnode/cli.py", ("tests/unit/test_cli.py", "tests/unit/test_manual.py", *NODES)),
    ("src/goldnode/manual.py", ("tests/unit/test_manual.py",)),
    ("src/goldnode/nodepackage/manpages.py", ("tests/unit/test_manual.py",)),
    ("src/goldnode/core/extras.py", ("tests/unit/test_extras.py",)),
    ("src/goldnode/classdoc/templates/*", ("tests/unit/commands/test_matrix.py",)),
    ("src/goldnode/py.typed", (f"{TOOLS}[mypy]",)),
    ("src/goldnode/__init__.py", (RELEASE,)),
    # What every module keeps to: layers, names, words, plain calls.
    (
        "src/*.py",
        tuple(f"tests/unit/test_{name}.py" for name in ("layers", "names", "plain_code", "prose")),
    ),
    # Data that modules read.
    (
        "catalog/*",
        (
            "tests/unit/catalog",
            "tests/unit/classdoc",
            "tests/unit/lock/test_committed_locks.py",
            "tests/unit/commands/test_matrix.py",
            "tests/unit/commands/test_catalog_schemas.py",
            *NODES,
            "marker:images",
        ),
    ),
    (
        "schemas/*",
        ("tests/unit/commands/test_catalog_schemas.py", "tests/unit/images/test_image_matrix.py"),
    ),
    ("integrations/inventories/*", ("tests/unit/inventory", RELEASE)),
    ("integrations/prometheus/*", ("tests/e2e/test_prometheus.py",)),
    ("integrations/slurm/*", ("tests/e2e/test_slurm.py",)),
    ("inventories/*", ("tests/unit/inventory", "marker:real")),
    # A release.
    ("hatch_build.py", (RELEASE, "tests/unit/core/test_data.py", "tests/e2e/test_collection.py")),
    (
        "release/*",
        (
            RELEASE,
            "tests/unit/test_dependencies.py",
            "tests/unit/evidence/test_release_files.py",
            "tests/e2e/test_collection.py",
        ),
    ),
    # Parsers of what comes from outside, and the table of assets.
    ("tests/suite/outside.py", ("tests/unit/test_outside.py",)),
    ("tests/suite/fuzz*.py", ("tests/unit/test_outside.py",)),
    ("SECURITY.md", ("tests/unit/test_security_table.py",)),
    # Molecule.
    (".config/molecule/*", ("tests/unit/testing/lab", "tests/lab")),
    ("molecule/*", ("tests/unit/testing/lab", "tests/unit/commands/test_reference.py")),
    ("molecule/shared/*", ("tests/lab",)),
    ("molecule/stacks/*", ("tests/lab/test_molecule_stacks.py",)),
    ("molecule/debian14/*", ("tests/lab/test_molecule.py",)),
    *(
        (f"molecule/{name}/*", (f"tests/lab/test_molecule.py::test_scenario[{name}]",))
        for name in ("debian12", "debian13", "ubuntu2404-standin")
    ),
    # Scripts.
    (".ci/run", (LINT,)),
    (".github/*", PAGES),
    (
        "scripts/*",
        (LINT, "tests/unit/test_script_help.py", "tests/unit/commands/test_reference.py"),
    ),
    ("scripts/docs", PAGES),
    ("scripts/lib/*", ("tests/unit/test_docs.py", "marker:real", "marker:images")),
    ("scripts/demo", ("tests/e2e/test_real.py",)),
    ("scripts/build-images", ("tests/images/test_pipeline.py",)),
    ("scripts/prove-gpu", ("tests/unit/prove",)),
    ("scripts/verify", ("tests/unit/test_verify.py", "marker:lab", "marker:real")),
    # Pages.
    *((page, PAGES) for page in ("*.md", "mkdocs.yml", "docs/*")),
    *((page, ("tests/unit/test_docs.py", "tests/unit/test_prose.py")) for page in TABLES),
    ("docs/reference/faults.md", ("tests/faults",)),
    ("docs/reference/reports.md", ("tests/reports",)),
    ("docs/reference/drift.md", ("tests/unit/test_drift_page.py",)),
    ("tests/e2e/drift/*", ("tests/unit/test_drift_page.py", "tests/e2e/test_drift.py")),
    ("docs/proof.md", ("tests/unit/test_proof.py",)),
    ("docs/adding.md", (OWN_TEST,)),
    ("docs/benchmarks/*", ("tests/unit/test_benchmark_pages.py", "tests/unit/test_benchmarks.py")),
    *(
        (name, ())
        for name in (
            "LICENSE",
            "findings/*",
            ".gitignore",
            ".git-blame-ignore-revs",
            ".github/CODEOWNERS",
            ".editorconfig",
        )
    ),
    # Benchmarks.
    ("benchmarks/*", ("tests/unit/test_benchmark_pages.py", "tests/unit/test_benchmarks.py")),
    # Files that tests read.
    ("tests/unit/fleet/report/screenshots.py", ("tests/unit/fleet/report",)),
    ("tests/found/*", ("tests/unit/test_properties_repeat.py",)),
    ("tests/disks/*", ("marker:disks",)),
    ("tests/durations.json", ("tests/unit/test_timings.py",)),
    (
        "tests/e2e/initramfs_entries.py",
        ("tests/e2e/test_real.py", "tests/e2e/test_initramfs_batch.py"),
    ),
    ("tests/e2e/catalog/*", NODES),
    ("tests/e2e/qemu/*", ("marker:qemu", "marker:disks")),
    ("tests/faults/catalog/*", ("tests/faults",)),
    ("tests/reports/*", ("tests/reports",)),
    ("tests/nodes/*", ("tests/unit/test_verify.py", "marker:lab", "marker:real")),
    ("tests/simulators/*", ("tests/simulators", "marker:lab", "marker:real")),
    ("tests/stacks/*", ("tests/lab",)),
    ("tests/suite/*", (OWN_TEST, "tests/unit/test_stages.py")),
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


def is_test(path: str) -> bool:
    """Return whether pytest collects this file."""
    return re.fullmatch(r"tests/(?:.*/)?test_[^/]*\.py", path) is not None


class TestFiles:
    """The Python files below tests: which of them import a module by name, and the markers that they name."""

    __test__ = False  # no class of tests

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.texts = {
            path: (root / path).read_text(encoding="utf-8")
            for path in paths
            if path.startswith("tests/") and path.endswith(".py") and (root / path).is_file()
        }
        self.tests = {path for path in self.texts if is_test(path)}
        self.marks = {
            path: {mark for mark in HEAVY if f"pytest.mark.{mark}" in text}
            for path, text in self.texts.items()
            if path in self.tests
        }

    def importers(self, path: str) -> set[str]:
        """Return the files that name the module at `path`, without the file itself."""
        package, _, name = module_of(path).rpartition(".")
        named = re.compile(
            rf"\b{re.escape(package)}\.{name}\b"
            rf"|\bfrom {re.escape(package)} import (?:\([^)]*|[^\n(]*)\b{name}\b"
        )
        # Most texts lack one of both words, and finding that out takes a hundredth of a search for the pattern.
        return {
            file
            for file, text in self.texts.items()
            if file != path and name in text and package in text and named.search(text)
        }

    def naming(self, path: str) -> set[str]:
        """Return the tests that name a file: its path, or between the tests its name."""
        name = path.rpartition("/")[2] if path.startswith("tests/") else path
        if "/" not in path or is_test(path):
            return set()  # README.md and others at the top are named in many texts
        return {file for file in self.tests - {OWN_TEST} if name in self.texts[file]}

    def users(self, helper: str) -> set[str]:
        """Return the test files that import a helper of the tests, directly or through other helpers."""
        seen: set[str] = set()
        todo = [helper]
        while todo:
            file = todo.pop()
            if file in seen:
                continue
            seen.add(file)
            if file.endswith("/conftest.py"):
                todo += [
                    test for test in self.tests if test.startswith(f"{file.rpartition('/')[0]}/")
                ]
            elif not is_test(file) or file == helper:
                todo += self.importers(file)
        return seen & self.tests


def module_of(path: str) -> str:
    """Return the dotted name of a Python file: src/goldnode/a/__init__.py → goldnode.a."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass
class Selection:
    """Test files, or ids of single tests → the reason for each."""

    why: dict[str, str] = field(default_factory=dict)
    everything: str = ""  # reason why all tests run; if empty, only those in `why` run
    distant: set[str] = field(
        default_factory=set
    )  # tests of the whole product that use a changed file
    markers: dict[str, str] = field(default_factory=dict)  # marker that is left → changed file
    modules: bool = False  # whether a module has changed, which others may import

    def add(self, test: str, cause: str) -> None:
        self.why.setdefault(test, cause)

    def folded(self) -> list[str]:
        """Return one line per reason with the tests it selected; long lists are shortened."""
        by_cause: defaultdict[str, list[str]] = defaultdict(list)
        for test, cause in self.why.items():
            by_cause[cause].append(test.removeprefix("tests/"))
        lines = []
        for cause, tests in sorted(by_cause.items(), key=lambda row: (len(row[1]), row[0])):
            more = f" and {len(tests) - 3} more" if len(tests) > 3 else ""
            lines.append(f"{cause}: {', '.join(sorted(tests)[:3])}{more}")
        return lines

    def left(self, files: TestFiles) -> list[str]:
        """Return what the selection leaves to the whole run, one line each."""
        chosen = {test.partition("::")[0] for test in self.why}
        heavy = {file for file, marks in files.marks.items() if marks & set(self.markers)} - chosen
        distant = self.distant - chosen - heavy
        others = {file for file, marks in files.marks.items() if not marks} - chosen - distant
        lines = []
        if distant:
            lines.append(
                f"left to `scripts/test`, although they use the change: {', '.join(sorted(distant))}"
            )
        if heavy:
            cause = ", ".join(sorted(set(self.markers.values()))[:3])
            lines.append(
                f"left to `scripts/test`: {len(heavy)} files with tests on nodes, images or disks, "
                f"which {cause} can affect"
            )
        if others and self.modules:
            lines.append(
                f"left to `scripts/test --quick`: {len(others)} files whose tests can reach the change only "
                "through other modules"
            )
        return lines


def select(changed: Iterable[str], files: TestFiles) -> Selection:
    """Return the tests near the changed files."""
    paths = sorted(changed)
    selection = Selection(modules=any(path.startswith("src/") for path in paths))
    for path in paths:
        causes = list(_causes(path, files))
        if not any(counts for counts, _, _ in causes):
            selection.everything = (
                selection.everything or f"{path} is covered by no row of tests/suite/selection.py"
            )
        for _, cause, targets in causes:
            for target in targets:
                near = target.startswith("tests/unit/") or path.startswith("tests/")
                if cause.startswith(("imports", "names")) and not near:
                    selection.distant.add(target)
                else:
                    _take(selection, path, cause, target, files)
    for test in EVERY_FILE if paths else ():
        selection.add(test, "reads every file")
    # If a whole file runs, do not name its tests too: pytest would run them once but count them separately.
    whole = {test for test in selection.why if "::" not in test}
    selection.why = {
        test: cause
        for test, cause in selection.why.items()
        if "::" not in test or test.partition("::")[0] not in whole
    }
    return selection


def _take(selection: Selection, path: str, cause: str, target: str, files: TestFiles) -> None:
    """Add the tests of one target."""
    kind, _, name = target.partition(":")
    if target == EVERYTHING:
        selection.everything = selection.everything or f"{path} decides how every test runs"
    elif kind == "marker":
        selection.markers.setdefault(name, path)
    elif "::" in target:
        selection.add(target, cause)
    else:
        for file in files.tests:
            if file == target or file.startswith(f"{target}/"):
                selection.add(file, cause)


def _causes(path: str, files: TestFiles) -> Iterator[tuple[bool, str, Iterable[str]]]:
    """Yield the rules that apply to `path`: whether each covers it, the reason, and the targets.

    Those that search all texts come last: whoever asks only whether a file is covered stops before them.
    """
    if is_test(path):
        yield True, "changed itself", (path,)
    helper = path.startswith("tests/") and path.endswith(".py")
    if not helper and (folder := mirror(path, files)):
        yield True, f"mirrors {path.rpartition('/')[0]}", (folder,)
    for pattern, targets in AFFECTS:
        if matches(path, pattern) and not any(
            matches(path, other) for other in EXCEPT.get(pattern, ())
        ):
            yield pattern not in GENERAL, f"{path} ({pattern})", targets
    if helper:
        users = files.users(path)
        yield bool(users), f"imports {path}", users
    elif path.endswith(".py"):
        importers = files.importers(path) & files.tests
        yield bool(importers), f"imports {module_of(path)}", importers
    namers = files.naming(path)
    yield bool(namers), f"names {path}", namers


def mirror(path: str, files: TestFiles) -> str:
    """Return the deepest folder of tests/unit that mirrors or holds the folder of a file; empty without one."""
    for top in ("src/goldnode/", "tests/unit/"):
        if path.startswith(top):
            parts = path.removeprefix(top).split("/")[:-1]
            for length in range(len(parts), 0, -1):
                folder = "/".join(["tests/unit", *parts[:length]])
                if any(file.startswith(f"{folder}/") for file in files.tests):
                    return folder
    return ""


def uncovered(paths: Iterable[str], files: TestFiles) -> list[str]:
    """Return the files that select all tests because no rule covers them."""
    return [path for path in paths if not any(counts for counts, _, _ in _causes(path, files))]


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
