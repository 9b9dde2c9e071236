"""Examples of property tests: the same ones in each run, and cases that exploring runs have found.

The default profile draws the examples of a test from the test itself, so a run is red for a change and never by chance.
`python -m tests.suite.explore` draws others, and writes each failure into :data:`FOUND`; every run replays these cases.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, settings

FOUND = Path(__file__).parents[1] / "found"
DEFAULT, EXPLORE = "goldnode", "explore"
MORE = 10  # times the examples of the default run


def register() -> None:
    """Register both profiles, and load the default one."""
    # How long an example takes depends on what else the machine does.
    settings.register_profile(
        DEFAULT,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile(EXPLORE, settings.get_profile(DEFAULT), derandomize=False)
    settings.load_profile(DEFAULT)


def is_property(item: pytest.Item) -> bool:
    """Return whether Hypothesis draws the arguments of a test."""
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def prepare(config: pytest.Config, items: list[pytest.Item], found: Path = FOUND) -> None:
    """Give each property test its cases. An exploring run has these tests alone, and notes their failures."""
    tests = [item for item in items if is_property(item)]
    functions = {_path(item): item for item in tests}
    for path, item in functions.items():
        for case in cases(found / path.name):
            example(**{name: _value(item, text) for name, text in case["arguments"].items()})(
                item.obj  # type: ignore[attr-defined]
            )
    if _explores(config):
        config.hook.pytest_deselected(items=[item for item in items if not is_property(item)])
        items[:] = tests
        for item in functions.values():
            _watch(item)


def cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases in a file; none without one."""
    return json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else []


def store(item: pytest.Item, found: Path = FOUND) -> str:
    """Write the example at which a test has failed into its file. Return a sentence for its report."""
    arguments: Mapping[str, str] = getattr(item.obj, "failed_with", {})  # type: ignore[attr-defined]
    try:
        for text in arguments.values():
            if repr(_value(item, text)) != text:
                raise ValueError(text[:80])
    except Exception as problem:  # no expression, such as the object of st.data()
        return (
            f"not stored, because an argument is no expression ({problem}): write it as an @example"
        )
    if not arguments:
        return "not stored: the property is built inside the test. Write the example as an @example"
    path = found / _path(item).name
    rows = cases(path)
    if not any(row["arguments"] == arguments for row in rows):
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        seed = item.config.getoption("hypothesis_seed", None)
        rows.append({"found": f"{today}, seed {seed}", "arguments": dict(arguments)})
        path.parent.mkdir(parents=True, exist_ok=True)
        test = item.nodeid.partition("[")[0]
        path.write_text(
            json.dumps({"test": test, "cases": rows}, indent=1) + "\n", encoding="utf-8"
        )
    return f"stored in {path}: every run replays it"


def note(item: pytest.Item, report: pytest.TestReport, found: Path = FOUND) -> None:
    """Store the example of a property that has failed in an exploring run, and add to its report where it is."""
    if report.failed and report.when == "call" and is_property(item) and _explores(item.config):
        report.sections.append(("the example", store(item, found)))


def _explores(config: pytest.Config) -> bool:
    explores: bool = config.getoption("hypothesis_profile", None) == EXPLORE
    return explores


def _watch(item: pytest.Item) -> None:
    """Draw more examples, and note the arguments of the last one that failed: Hypothesis runs the smallest one last."""
    function: Any = item.obj  # type: ignore[attr-defined]
    inner: Callable[..., object] = function.hypothesis.inner_test
    fixtures = set(getattr(item, "fixturenames", ()))

    def call(*positional: Any, **named: Any) -> object:
        drawn = {name: repr(value) for name, value in named.items() if name not in fixtures}
        try:
            return inner(*positional, **named)
        except Exception:
            function.failed_with = drawn
            raise

    function.hypothesis.inner_test = call
    own = function._hypothesis_internal_use_settings  # a second @settings is refused
    function._hypothesis_internal_use_settings = settings(own, max_examples=MORE * own.max_examples)


def _path(item: pytest.Item) -> Path:
    file, _, name = item.nodeid.partition("[")[0].partition("::")
    return Path(f"{file.removesuffix('.py').replace('/', '.')}.{name.replace('::', '.')}.json")


def _value(item: pytest.Item, text: str) -> Any:
    """Return the value of an argument: an expression over the names of its test's module."""
    names: dict[str, Any] = {"inf": math.inf, "nan": math.nan, **vars(item.module)}  # type: ignore[attr-defined]
    return eval(text, names)  # noqa: S307 - a file of this tree, like the test itself


def stored_tests(found: Path = FOUND) -> Iterator[tuple[Path, str]]:
    """Yield each file of cases, and the id of its test."""
    for path in sorted(found.glob("*.json")):
        yield path, json.loads(path.read_text(encoding="utf-8"))["test"]
