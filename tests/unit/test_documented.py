"""Each block of code in the documentation is run by a test as printed, or names what is missing here. See tests/documented.py."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import documented
from tests.documented import CHEAP, Block, Reader, Scenario, blocks, blocks_of, commands
from tests.unit.fleet.ingest import fleet_reports
from tests.unit.node import captures
from tests.unit.test_docs import PAGES
from tests.unit.test_plain_code import Code, hits_of

from goldnode.cli import main
from goldnode.fleet.ingest.files import IngestRequest, ingest

pytestmark = pytest.mark.xdist_group("documented")
ROOT = documented.ROOT


def test_every_block_is_run_by_one_test_or_has_a_reason() -> None:
    keys = [key for scenario in (*CHEAP, *documented.LONG) for key in scenario.keys] + list(
        documented.OTHERS
    )
    assert len(keys) == len(set(keys)), "a block is run by one test"
    exempt = {key for key, block in blocks().items() if block.reason}
    assert set(keys).isdisjoint(exempt), "a block that is run needs no mark"
    assert not sorted(blocks().keys() ^ (set(keys) | exempt)), (
        "give each new block to a scenario of tests/documented.py, and remove those of blocks that are gone; or mark a block in "
        "the page: <!-- not run: needs an archive | a GPU | a service: WHAT -->"
    )


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(("key", "test"), documented.tests().items())
def test_test_of_a_block_exists_and_reads_its_page(key: str, test: str) -> None:
    file, _, name = test.partition("::")
    assert name.partition("[")[0] in functions(ROOT / file)
    text = (ROOT / file).read_text(encoding="utf-8")
    page = key.partition("#")[0]
    assert page in text or "documented" in text, f"{file} does not read {page}"


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        ("<!-- not run: needs a GPU: eight A100 -->\n", ("a GPU", "eight A100")),
        (
            "text\n\n<!-- not run: needs an archive: NVIDIA's,\n  of 2026 -->\n",
            ("an archive", "NVIDIA's, of 2026"),
        ),
        ("<!-- not run: needs a GPU: eight A100 -->\n\ntext\n\n", None),
        ("<!-- a remark -->\n", None),
    ],
)
def test_mark_directly_above_a_block_is_its_reason(
    mark: str, reason: tuple[str, str] | None
) -> None:
    (block,) = blocks_of("page.md", f"# Use\n\n{mark}```console\n$ true\n```\n")
    assert block.reason == reason


@pytest.mark.parametrize("mark", ["takes minutes", "needs patience: an hour", "needs a GPU"])
def test_other_reason_is_refused(mark: str) -> None:
    (block,) = blocks_of("page.md", f"<!-- not run: {mark} -->\n```console\n$ true\n```\n")
    with pytest.raises(ValueError, match=re.escape("needs an archive | a GPU")):
        assert block.reason


def test_commands_of_a_block() -> None:
    text = "$ a \\\n    b\nshown\n$ cat >x <<'END'\n$ y\nEND\n$ ssh n1\nn1# exit  # ends\n# c\n"
    found = [
        (each.text, each.answers) for each in commands(Block("page.md", "", 1, "console", text))
    ]
    assert found == [
        ("a \\\n    b", ""),
        ("cat >x <<'END'\n$ y\nEND", ""),
        ("ssh n1", "exit  # ends\n"),
        ("c", ""),
    ]


def test_proof_lists_what_is_run_and_what_is_not() -> None:
    text = (ROOT / "docs/proof.md").read_text(encoding="utf-8")
    assert documented.listed(text) == text, "run: python -m tests.documented --write"


def test_ci_runs_the_command_of_the_readme() -> None:
    (command,) = commands(blocks()["README.md#contribute-console-1"])
    script = command.text.partition("#")[0].strip()
    assert script == "./scripts/test"
    assert f'/../{script.removeprefix("./")}"' in (ROOT / ".ci/run").read_text(encoding="utf-8")


# Commands


@pytest.mark.parametrize("scenario", CHEAP, ids=lambda scenario: scenario.name)
def test_documented_commands_run(scenario: Scenario, tmp_path: Path) -> None:
    documented.offline(tmp_path).follow(scenario)


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    block = Block("page.md", "Use", 1, "console", "$ true\n$ ls no-such-file\n")
    with pytest.raises(
        AssertionError, match=re.escape("page.md#use-console-1: ls no-such-file\nends with 2")
    ):
        Reader(tmp_path, documented.clean(tmp_path)).follow_blocks([block])


def test_a_line_that_is_not_printed_is_found() -> None:
    assert documented.missing("a\n…\nb…d\n", "a\nx\nbcd\n") == []
    assert documented.missing("a\nc\n", "a\nb\n") == ["c"]
    assert documented.missing("b\na\n", "a\nb\n") == ["a"]


# Examples


def example(page: str) -> str:
    """Return the first example in Python of a page."""
    return next(
        block.text for block in blocks().values() if block.page == page and block.kind == "python"
    )


def python(text: str, where: Path) -> str:
    """Run a program in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A directory with the data of three nodes, under the name that the page gives it."""
    captured = fleet_reports.write(tmp_path / "in", *map(fleet_reports.capture, ("n1", "n2", "n3")))
    ingest(IngestRequest(tmp_path / "DIRECTORY", (captured,), fleet_reports.NOW), fleet_reports.NOW)
    return tmp_path


def test_example_reads_the_data_of_a_fleet(fleet: Path) -> None:
    printed = python(example("docs/how-to/fleet-data.md"), fleet)
    assert "96.00.5E.00.01" in printed
    assert "24" in printed


def queries() -> list[str]:
    """Return the questions in SQL of all pages."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return sorted(set(re.findall(r'^\$ goldnode fleet sql "(.+)"$', text, re.MULTILINE)))


@pytest.mark.parametrize("query", queries())
def test_question_in_sql_is_answered(fleet: Path, query: str) -> None:
    done = CliRunner().invoke(main, ["fleet", "sql", "--data", str(fleet / "DIRECTORY"), query])
    assert done.exit_code == 0, done.output
    assert "nodes" in done.output


def test_example_sets_the_caches_or_prints_why_not(tmp_path: Path) -> None:
    text = example("docs/how-to/cache-keys.md")
    assert "/var/cache/gpu" in text
    printed = python(text.replace("/var/cache/gpu", str(tmp_path / "cache")), tmp_path)
    assert printed or list((tmp_path / "cache").iterdir())


def test_example_serves_the_report_of_a_process(tmp_path: Path) -> None:
    text = example("docs/how-to/integrations.md")
    python(f"app = lambda *words: []\n{text}\nassert report()['mixed'] == []", tmp_path)


def test_example_of_a_health_check_judges(tmp_path: Path) -> None:
    """docs/adding.md, followed in a copy of the program: rule, row and limit judge a worn disk."""
    rule, row = (block.text for block in blocks().values() if block.page == "docs/adding.md")
    package = tmp_path / "goldnode"
    shutil.copytree(
        ROOT / "src/goldnode/node", package / "node", ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "__init__.py").touch()
    rules, kinds = package / "node/verdict/host_rules.py", package / "node/state/kinds.py"
    rules.write_text(f"{rules.read_text(encoding='utf-8')}\n\n{rule}", encoding="utf-8")
    before, opening, after = kinds.read_text(encoding="utf-8").partition(
        "_ROWS: Tuple[Kind, ...] = (\n"
    )
    assert opening
    kinds.write_text(f"{before}{opening}{row.rstrip()},\n{after}", encoding="utf-8")
    # A reader who follows the page must not be stopped by the checks of style.
    for file in (rules, kinds):
        assert not list(hits_of(file, Code(file.read_bytes())))
    document = captures.class_document()
    document["health"]["limits"]["ssd_wear"] = 90
    found = {}
    for used in (12, 95, {"fault": "unread", "text": "Input/output error"}):
        capture = captures.healthy()
        for disk in capture["storage"]["devices"].values():
            disk["smart"] = {"percentage_used": used}
        (tmp_path / "node.json").write_text(json.dumps([document, capture]), encoding="utf-8")
        found[str(used)[:9]] = python(
            "import json; from goldnode.node.verdict import deltas, table\n"
            "document, capture = json.load(open('node.json'))\n"
            "found = table.judge(document, capture, deltas.step({}, capture)[0])\n"
            "print(*(one.outcome for one in found if one.id == 'storage.wear'))",
            tmp_path,
        ).strip()
    assert found == {"12": "match", "95": "mismatch", "{'fault':": "could_not_read"}
