"""Bisection of simulated cohorts: bad nodes are named in O(log n) tests, good nodes and links are not bad nodes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from math import ceil, log2
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from goldnode.canary import cohort as cohorts
from goldnode.canary.bisect import BisectResult, BisectSettings, bisect, wrong
from goldnode.cli import main
from goldnode.commands.canary import cohort as command

SIZES = (2, 3, 4, 5, 8, 13, 32, 64, 100, 256, 512)


class SimulatedCohort:
    """A cohort with bad nodes and links. A run gives the wrong answer with the probability `noise`."""

    def __init__(
        self,
        size: int,
        bad: Iterable[int] = (),
        links: Iterable[tuple[int, int]] = (),
        *,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.names = [f"n{number:03}" for number in range(size)]
        self.bad = {self.names[number] for number in bad}
        self.links = [{self.names[one], self.names[other]} for one, other in links]
        self.noise, self.rng = noise, random.Random(seed)  # noqa: S311 - no secret
        self.unknown: set[str] = set()

    def ask(self, members: tuple[str, ...]) -> bool | None:
        assert len(members) >= 2
        assert len(set(members)) == len(members)
        chosen = set(members)
        if chosen & self.unknown:
            return None
        fails = bool(chosen & self.bad) or any(link <= chosen for link in self.links)
        return fails ^ (self.rng.random() < self.noise)

    def search(self, **more: float) -> BisectResult:
        settings = BisectSettings(**{"noise": self.noise, **more})  # type: ignore[arg-type]
        return bisect(self.names, self.ask, settings)


@pytest.mark.parametrize("size", SIZES)
def test_good_cohort_passes_with_one_test(size: int) -> None:
    result = SimulatedCohort(size).search()
    assert (result.answer, result.bad, result.tests) == ("passed", [], 1)


@pytest.mark.parametrize("size", [size for size in SIZES if size > 3])
def test_each_single_bad_node_is_named_in_few_tests(size: int) -> None:
    for number in range(0, size, max(1, size // 32)):
        cohort = SimulatedCohort(size, [number])
        result = cohort.search()
        assert (result.answer, set(result.bad), result.links) == ("failed", cohort.bad, [])
        assert result.tests <= 2 * ceil(log2(size)) + 8


@pytest.mark.parametrize("size", [size for size in SIZES if size > 3])
def test_bad_link_is_no_bad_node(size: int) -> None:
    rng = random.Random(size)  # noqa: S311 - no secret
    for _ in range(20):
        one, other = sorted(rng.sample(range(size), 2))
        cohort = SimulatedCohort(size, links=[(one, other)])
        result = cohort.search()
        assert result.bad == [], (one, other)
        assert [set(link) for link in result.links] == cohort.links


def test_node_with_two_bad_links_is_no_bad_node() -> None:
    for seed in range(200):
        rng = random.Random(seed)  # noqa: S311 - no secret
        one, other, third = rng.sample(range(16), 3)
        cohort = SimulatedCohort(16, links=[(one, other), (one, third)])
        result = cohort.search()
        assert result.bad == [], seed
        assert all(set(link) in cohort.links for link in result.links)


def test_several_bad_nodes_are_named_to_the_limit() -> None:
    cohort = SimulatedCohort(64, [0, 1, 31, 63])
    result = cohort.search(most=4)
    assert set(result.bad) == cohort.bad
    assert result.reasons == []
    limited = cohort.search(most=2)
    assert len(limited.bad) == 2
    assert set(limited.bad) < cohort.bad
    assert limited.reasons == ["the other 62 nodes fail still; the search ended at 2"]


@pytest.mark.parametrize("size", [2, 3])
def test_pair_without_companions_names_nobody(size: int) -> None:
    result = SimulatedCohort(size, [0]).search()
    assert result.answer == "failed"
    assert result.bad == []
    assert result.open


def test_cohort_of_bad_nodes_names_none_of_them_wrongly() -> None:
    result = SimulatedCohort(8, range(8)).search()
    assert result.answer == "failed"
    assert result.bad == []
    assert "fail together" in result.reasons[0]


def test_part_that_cannot_be_checked_is_no_bad_node() -> None:
    cohort = SimulatedCohort(8, [1])
    cohort.unknown = {"n005"}
    result = cohort.search()
    assert (result.answer, result.bad) == ("could_not_check", [])
    assert "3 runs in a row could not check n000, n001" in result.reasons[0]


def test_search_ends_at_its_limit_of_runs() -> None:
    result = SimulatedCohort(64, [3]).search(most_runs=5)
    assert result.runs == 5
    assert "5 runs were not enough" in result.reasons[0]


def test_lead_bounds_the_error_of_all_tests() -> None:
    for size in SIZES:
        settings = BisectSettings(noise=0.1, error=0.01)
        lead = settings.lead(size)
        assert settings.tests(size) * wrong(0.1, lead) <= 0.01
        assert lead == 1 or settings.tests(size) * wrong(0.1, lead - 1) > 0.01
    assert wrong(0.0, 1) == 0.0
    assert BisectSettings(noise=0.0).lead(512) == 1


def noisy(noise: float, seeds: int) -> tuple[int, int, int, dict[int, list[int]]]:
    """Return searches, those with a wrong name, those with exactly the causes, and runs by size of single causes."""
    count = false = exact = 0
    runs: dict[int, list[int]] = {}
    for seed in range(seeds):
        rng = random.Random(seed)  # noqa: S311 - no secret
        size = rng.choice(SIZES[2:])
        bad = rng.sample(range(size), rng.choice([0, 1, 1, 1, 2, 3]) if size > 7 else 1)
        others = [number for number in range(size) if number not in bad]
        links = [tuple(rng.sample(others, 2))] if rng.random() < 0.2 and len(others) > 4 else []
        cohort = SimulatedCohort(size, bad, links, noise=noise, seed=seed)  # type: ignore[arg-type]
        result = cohort.search()
        count += 1
        wrong_links = [link for link in result.links if set(link) not in cohort.links]
        false += bool(set(result.bad) - cohort.bad or wrong_links)
        exact += set(result.bad) == cohort.bad and len(result.links) == len(links)
        assert result.error <= 0.05
        if len(bad) == 1 and not links:
            runs.setdefault(size, []).append(result.runs)
    return count, false, exact, runs


@pytest.mark.parametrize(("noise", "searches"), [(0.05, 1000), (0.2, 200)])
def test_noise_names_good_nodes_less_often_than_stated(noise: float, searches: int) -> None:
    """Seeded searches of 4 to 512 nodes: the bound of an error is 5 % of the searches."""
    count, false, exact, runs = noisy(noise, searches)
    assert false / count <= 0.05
    assert exact / count >= 0.95
    for size, numbers in runs.items():
        lead = BisectSettings(noise=noise).lead(size)
        tests = 2 * ceil(log2(size)) + 8
        assert sum(numbers) / len(numbers) <= 1.2 * tests * lead / (1 - 2 * noise)


# The command


def run_command(
    monkeypatch: pytest.MonkeyPatch, cohort: SimulatedCohort, *words: str
) -> tuple[int, str]:
    """Run the command with simulated measurements in place of runs on nodes."""
    answers = {True: "failed", False: "passed", None: "could_not_check"}

    def run(_: object, chosen: tuple[str, ...]) -> tuple[list[object], SimpleNamespace]:
        return [], SimpleNamespace(answer=answers[cohort.ask(chosen)], simulated=True)

    monkeypatch.setattr(command.CohortMeasurement, "run", run)
    monkeypatch.setattr(cohorts, "store", lambda judged: None)
    line = ["canary", "cohort", *cohort.names, "--bisect", "--floor", "10", *words]
    done = CliRunner().invoke(main, line)
    return done.exit_code, done.stdout


def test_command_names_the_bad_node_with_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = SimulatedCohort(8, [5])
    status, text = run_command(monkeypatch, cohort, "--noise", "0")
    assert status == 2
    assert text.startswith("cohort of 8 nodes: failed SIMULATED\n- n005 is bad")
    status, text = run_command(monkeypatch, cohort, "--noise", "0", "--format", "json")
    content = json.loads(text)
    assert (content["schema"], content["simulated"]) == ("goldnode.canary-bisect/1", True)
    assert (content["bad"], content["links"], content["answer"]) == (["n005"], [], "failed")


@pytest.mark.parametrize(
    ("cohort", "status", "piece"),
    [
        (SimulatedCohort(8), 0, "cohort of 8 nodes: passed SIMULATED"),
        (SimulatedCohort(8, links=[(1, 6)]), 2, "- the link between n001 and n006 is bad"),
    ],
)
def test_command_ends_with_the_status_of_its_answer(
    monkeypatch: pytest.MonkeyPatch, cohort: SimulatedCohort, status: int, piece: str
) -> None:
    code, text = run_command(monkeypatch, cohort, "--noise", "0")
    assert code == status
    assert piece in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bisect"], "--bisect needs --floor"),
        (["--bisect", "--floor", "1", "--address", "a"], "leave --address out"),
    ],
)
def test_command_without_what_it_needs_is_explained(words: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["canary", "cohort", "a", "b", "c", *words])
    assert done.exit_code == 2
    assert message in done.output
