"""Property tests draw the same examples each time, and a failure of an exploring run becomes a case for all runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from hypothesis import settings
from tests.suite import explore, properties
from tests.suite.timings import ROOT

CONFTEST = """\
from pathlib import Path
import pytest
from tests.suite import properties

properties.register()
FOUND = Path(__file__).parent / "found"

def pytest_collection_modifyitems(config, items):
    properties.prepare(config, items, FOUND)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    properties.note(item, report, FOUND)
    return report
"""
PROPERTY = """\
from pathlib import Path
import hypothesis
from hypothesis import strategies as st

@hypothesis.settings(max_examples=5)
@hypothesis.given(number=st.integers(0, 10**9), rest=st.text(max_size=3))
def test_number(pytestconfig, number, rest):
    Path("drawn").open("a").write(f"{number} ")
    assert number < LIMIT

@hypothesis.given(st.data())
def test_data(data):
    assert data.draw(st.integers()) < LIMIT

def test_other():
    Path("other").touch()
"""


def pytest_in(folder: Path, *words: str) -> tuple[int, str]:
    """Run pytest in a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stdout + done.stderr


def test_the_default_profile_repeats_and_remembers_nothing() -> None:
    default = settings.get_profile(properties.DEFAULT)
    assert (default.derandomize, default.database) == (True, None)
    assert settings.get_current_profile_name() == properties.DEFAULT


def test_no_property_test_sets_what_the_profile_sets() -> None:
    for name in explore.property_files():
        assert not re.search(r"derandomize|database\s*=|load_profile", (ROOT / name).read_text()), (
            f"{name}: leave it to tests/suite/properties.py"
        )


def test_a_found_failure_is_stored_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "test_it.py"
    test.write_text(PROPERTY.replace("LIMIT", "10**9 + 1"))
    drawn = []
    for _ in range(2):
        pytest_in(tmp_path, "-k", "test_number")
        drawn.append((tmp_path / "drawn").read_text())
        (tmp_path / "drawn").unlink()
    assert drawn[0] == drawn[1], "the default run draws the same examples"
    (tmp_path / "other").unlink(missing_ok=True)
    test.write_text(PROPERTY.replace("LIMIT", "1000"))
    code, out = pytest_in(tmp_path, "--hypothesis-profile=explore", "--hypothesis-seed=3")
    assert (code, (tmp_path / "other").exists()) == (1, False), (
        "an exploring run has property tests alone"
    )
    assert "write it as an @example" in out, "what is no expression is left to a person"
    (path,) = (tmp_path / "found").iterdir()
    found = json.loads(path.read_text())
    assert (path.name, found["test"]) == ("test_it.test_number.json", "test_it.py::test_number")
    assert found["cases"][0]["arguments"] == {"number": "1000", "rest": "''"}, (
        "the smallest example"
    )
    assert found["cases"][0]["found"].endswith("seed 3")
    assert len((tmp_path / "drawn").read_text().split()) > 5, "it draws more than the default run"
    (tmp_path / "drawn").unlink()
    # The limit now admits all that the default run draws, save the case.
    test.write_text(
        PROPERTY.replace("LIMIT", "10**9 + 1").replace("assert number <", "assert number != 1000 <")
    )
    code, out = pytest_in(tmp_path, "-k", "test_number")
    assert (code, (tmp_path / "drawn").read_text()) == (1, "1000 "), out


def test_each_case_has_a_test() -> None:
    for path, test in properties.stored_tests():
        file, *_, name = test.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(), (
            f"{path}: {test} is gone. Delete the file, or rename it."
        )
