"""Views of the report: mixed groups, parts, time, nodes that are not known, slow nodes, trends, repeat offenders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import NOW, finding, fleet, numbers, put, store

from goldnode.core.errors import GoldnodeError
from goldnode.documents.fleet_report import FleetReportDocument
from goldnode.fleet.report.build import diff, report
from goldnode.fleet.report.engine import opened, rows
from goldnode.fleet.report.frame import ExpectedNode, ReportSettings, ReportSource, bounds

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def reported(directory: Path, **settings: Any) -> FleetReportDocument:
    return report(ReportSource(directory), ReportSettings(**{"at": NOW, **settings}))


def view(directory: Path, name: str, at: datetime = NOW) -> list[dict[str, Any]]:
    with opened(ReportSource(directory), ReportSettings(at)) as connection:
        return rows(connection, name)


# -- mixed groups

VERSIONS = {
    "driver.loaded": put("driver/loaded", "570.1"),
    "os.kernel.running": put("os/kernel/running", "6.1.0"),
    "gpu.vbios": put("gpus/1/vbios", "1.2"),
    "gpu.gsp_firmware": put("gpus/*/gsp_firmware", "570.1"),
    "infiniband.firmware": put("infiniband/mlx5_0/firmware", "27"),
    "network.firmware": put("network/eth0/firmware", "27"),
    "identity.class_digest": put("identity/class_digest", "sha256:7"),
    "fabric_manager.installed": put("fabric_manager/installed", "570.1"),
}


@pytest.mark.parametrize("size", [3, 16])
def test_every_pair_of_versions_in_a_cohort_is_named_with_the_minority_first(
    tmp_path: Path, size: int
) -> None:
    nodes = fleet(size * len(VERSIONS), cohort_size=size)
    expected = {}
    for place, (key, change) in enumerate(VERSIONS.items()):
        odd = nodes[place * size]
        odd.change(change)
        expected[key] = (f"ring{place:02}", odd.name, size)
    found = reported(store(tmp_path, nodes, gpus=2))
    assert {
        one.key: (
            one.group,
            one.values[0].nodes.folded,
            sum(value.nodes.count for value in one.values),
        )
        for one in found.mixed
        # A GPU with another VBIOS is one of two of its node, which has both values.
        if one.key != "gpu.vbios"
    } == {key: value for key, value in expected.items() if key != "gpu.vbios"}
    [vbios] = [one for one in found.mixed if one.key == "gpu.vbios"]
    assert (vbios.group, vbios.values[0].nodes.names) == (
        *expected["gpu.vbios"][0:1],
        [expected["gpu.vbios"][1]],
    )


def test_cohort_of_two_nodes_has_no_minority_and_is_mixed(tmp_path: Path) -> None:
    nodes = fleet(2, cohort_size=2)
    nodes[1].change(put("driver/loaded", "570.1"))
    [one] = reported(store(tmp_path, nodes, gpus=1)).mixed
    assert [(value.value, value.nodes.names) for value in one.values] == [
        ("570.1", [nodes[1].name]),
        ("580.95.05", [nodes[0].name]),
    ]


def test_mixed_cohort_of_512_nodes(tmp_path: Path) -> None:
    nodes = fleet(512, cohort_size=512)
    nodes[100].change(put("driver/loaded", "570.1"))
    [one] = reported(store(tmp_path, nodes, gpus=1)).mixed
    assert [value.nodes.count for value in one.values] == [1, 511]


def test_other_groups_are_mixed_too(tmp_path: Path) -> None:
    nodes = fleet(4)
    nodes[0].change(put("driver/loaded", "570.1"))
    source = ReportSource(
        store(tmp_path, nodes),
        groups=[("job1", nodes[0].name), ("job1", nodes[1].name), ("job2", nodes[2].name)],
    )
    assert [one.group for one in report(source, ReportSettings(NOW)).mixed] == ["job1"]


# -- parts and time


def test_other_order_of_gpus_is_no_change_and_a_replaced_one_is(tmp_path: Path) -> None:
    nodes = fleet(4)
    nodes[1].change(lambda capture: capture["gpus"].reverse(), NOW - DAY)
    nodes[2].change(put("gpus/3/uuid", "GPU-11111111-0000-0000-0000-000000000000"), NOW - DAY)
    nodes[2].change(put("gpus/3/serial", "999"), NOW - DAY)
    found = reported(store(tmp_path, nodes, [NOW - 8 * DAY, NOW - HOUR]))
    assert found.causes == []
    [change] = found.changed
    assert (change.topic, change.nodes.names, len(change.changes)) == ("part", [nodes[2].name], 2)


def test_board_with_another_serial_and_the_same_uuid_is_a_change(tmp_path: Path) -> None:
    nodes = fleet(3)
    nodes[2].change(put("gpus/3/serial", "999"), NOW - DAY)
    [change] = reported(store(tmp_path, nodes, [NOW - 8 * DAY, NOW - HOUR])).changed
    assert [(one.key, one.got) for one in change.changes] == [("gpu.serial", "999")]


def test_late_captures_change_no_past_report(tmp_path: Path) -> None:
    nodes = fleet(4)
    store(tmp_path, nodes, [NOW - 2 * DAY])
    past = NOW - DAY
    before = reported(tmp_path, at=past).model_dump_json()
    nodes[0].change(put("driver/loaded", "570"))
    nodes[0].find(finding("driver.loaded", "580", "570"))
    late = NOW - 2 * DAY + HOUR  # captured before the report's time, and received after it
    store(tmp_path, nodes[:1], [late], received={late: NOW})
    store(tmp_path, nodes, [NOW - HOUR])
    assert reported(tmp_path, at=past).model_dump_json() == before
    assert reported(tmp_path).model_dump_json() != before
    assert reported(tmp_path).model_dump_json() == reported(tmp_path).model_dump_json()


def test_diff_names_what_changed_between_two_times_and_who_cannot_be_compared(
    tmp_path: Path,
) -> None:
    nodes = fleet(6)
    for node in nodes[:2]:
        node.change(put("os/kernel/running", "6.1.9"), NOW - 5 * HOUR)
        node.find(finding("kernel.running", "6.12", "6.1.9", severity="drain"), NOW - 5 * HOUR)
    store(tmp_path, nodes[:5], [NOW - 10 * HOUR])
    store(tmp_path, nodes, [NOW - HOUR])
    found = diff(ReportSource(tmp_path), ReportSettings(NOW, before=NOW - 6 * HOUR))
    assert [(one.topic, one.nodes.names) for one in found.changed] == [
        ("kernel", [node.name for node in nodes[:2]])
    ]
    assert [(one.before, one.after, one.nodes.count) for one in found.statuses] == [
        ("healthy", "drain", 2)
    ]
    assert (found.compared, found.not_compared.names) == (5, [nodes[5].name])


def test_directory_without_captures_is_an_error_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(GoldnodeError, match=r"no captures.*goldnode fleet ingest"):
        reported(tmp_path)


# -- not known


def test_node_that_has_not_reported_is_not_known_and_never_the_majority(tmp_path: Path) -> None:
    nodes = fleet(8, cohort_size=8)
    for node in nodes[:5]:  # the majority by their old captures
        node.change(put("driver/loaded", "570"))
    store(tmp_path, nodes, [NOW - 3 * DAY], gpus=1)
    store(tmp_path, nodes[5:], [NOW - HOUR], gpus=1)
    source = ReportSource(
        tmp_path, [ExpectedNode("spare", "h100"), ExpectedNode(nodes[7].name, "h100")]
    )
    found = report(source, ReportSettings(NOW))
    assert [(one.nodes, one.known, one.states) for one in found.classes] == [
        (9, 3, {"healthy": 3, "silent": 1, "stale": 5})
    ]
    assert {node.node: node.state for node in found.not_known} == {
        "spare": "silent",
        **{node.name: "stale" for node in nodes[:5]},
    }
    assert found.causes == found.mixed == []  # type: ignore[comparison-overlap]
    assert {(one.key, one.count) for one in found.versions if one.key == "driver.loaded"} == {
        ("driver.loaded", 3)
    }
    assert found.days[-1].states == {"healthy": 3, "not_reported": 5, "silent": 1}


def test_day_on_which_no_node_of_a_class_reports_has_a_row(tmp_path: Path) -> None:
    """One class reports each day; the other one is silent in the middle and at the end."""
    nodes = fleet(6)
    for node in nodes[4:]:
        node.class_ = "l4"
    quiet, loud = nodes[4:], nodes[:4]
    store(tmp_path, quiet, [NOW - 9 * DAY, NOW - 5 * DAY], gpus=1)
    store(tmp_path, loud, [NOW - day * DAY - HOUR for day in range(9, -1, -1)], gpus=1)
    source = ReportSource(tmp_path, [ExpectedNode("spare", "a100")])
    found = report(source, ReportSettings(NOW))
    days = {(one.class_, one.day): one.states for one in found.days}

    def on(class_: str, ago: int) -> dict[str, int] | None:
        return days.get((class_, f"{NOW - ago * DAY:%Y-%m-%d}"))

    assert [on("l4", ago) for ago in (10, 9, 5)] == [None, {"healthy": 2}, {"healthy": 2}]
    assert [on("l4", ago) for ago in (8, 7, 6, 4, 3, 2, 1)] == [{"not_reported": 2}] * 7
    assert [on(loud[0].class_, ago) for ago in range(10)] == [{"healthy": 4}] * 10
    assert on("a100", 0) == {"silent": 1}
    assert sum(class_ == "a100" for class_, _ in days) == 1


@pytest.mark.parametrize(
    ("hours", "rows_"), [(1, 1), (25, 1), (50, 2), (24 * 29, 29), (24 * 200, 29)]
)
def test_fleet_that_is_silent_has_a_row_for_each_day(
    tmp_path: Path, hours: int, rows_: int
) -> None:
    """A day counts as silent once the captures of the day before are stale."""
    store(tmp_path, fleet(2), [NOW], gpus=1)
    found = reported(tmp_path, at=NOW + hours * HOUR).days
    assert len(found) == rows_, [one.day for one in found]
    assert all(one.states == {"not_reported": 2} for one in found[1:])
    assert sorted({one.day for one in found}) == [one.day for one in found]


def test_node_without_a_verdict_is_known_and_not_healthy(tmp_path: Path) -> None:
    nodes = fleet(1)
    nodes[0].judged = False
    assert reported(store(tmp_path, nodes)).classes[0].states == {"no_verdict": 1}


# -- trends

Series = Sequence[float]


def trend(
    directory: Path, values: Series, key: str = "gpu.pcie.replay", boots: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Trends of one counter with hourly values; before each place of `boots` the node was booted."""
    times = [NOW - HOUR * (len(values) - place) for place in range(len(values))]
    numbers(
        directory,
        [("n1", time, "GPU-1", key, value) for time, value in zip(times, values, strict=True)],
        boots={
            ("n1", time): f"b{sum(place >= one for one in boots)}"
            for place, time in enumerate(times)
        },
    )
    return view(directory, "trends")


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return a counter of events with this rate."""
    chosen, total, found = random.Random(seed), 0, []  # noqa: S311 fixed
    for _ in range(count):
        total += sum(chosen.random() < rate / 20 for _ in range(20))
        found.append(float(total))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_slope_of_one_an_hour_is_found_within_24_captures(tmp_path: Path, seed: int) -> None:
    [one] = trend(tmp_path, poisson(1, 24, seed))
    assert 0.4 < one["slope"] < 1.8


def test_slope_is_found_over_a_boot(tmp_path: Path) -> None:
    [one] = trend(tmp_path, [*map(float, range(12)), *map(float, range(12))], boots=[12])
    assert one["slope"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "boots"),
    [
        pytest.param([900.0] * 12 + [5.0] * 12, [], id="reset without a boot"),
        pytest.param([0.0] * 12 + [900.0] * 12, [12], id="boot with a higher value"),
        pytest.param([900.0, 5.0] * 12, [], id="wraps again and again"),
        pytest.param([0.0] * 12 + [900.0] * 12, [], id="one step, as of a replaced board"),
        pytest.param([5.0, 900.0] * 12, range(24), id="boots at every capture"),
        pytest.param([3.0] * 24, [], id="stands"),
        pytest.param([1.0, 2.0, 3.0], [], id="too few captures"),
    ],
)
def test_counter_that_resets_or_stays_gives_no_trend(
    tmp_path: Path, values: Series, boots: Sequence[int]
) -> None:
    assert trend(tmp_path, values, boots=boots) == []


def test_counter_that_a_board_stores_goes_on_over_boots(tmp_path: Path) -> None:
    values = [float(place // 2) for place in range(24)]
    assert trend(tmp_path, values, "gpu.remapped_rows.correctable", boots=range(0, 24, 2)) != []


def test_growth_that_is_normal_is_no_trend(tmp_path: Path) -> None:
    assert (
        trend(tmp_path, [float(place) * 1000 for place in range(24)], "network.counters.rx_packets")
        == []
    )


# -- slow nodes


def model(
    seed: int, count: int, slow: int, loss: float, spread: float = 0.02, noise: float = 0.01
) -> Callable[[int, int], float]:
    """GEMM: nodes differ by `spread`, runs of a node by `noise`; the first `slow` nodes lose `loss`."""
    chosen = random.Random(seed)  # noqa: S311 fixed
    centres = [
        100 * chosen.gauss(1, spread) * (1 - loss if node < slow else 1) for node in range(count)
    ]
    return lambda node, _: centres[node] * chosen.gauss(1, noise)


def slow_nodes(
    directory: Path,
    value: Callable[[int, int], float],
    count: int,
    samples: int = 25,
    key: str = "performance.gemm",
) -> set[int]:
    numbers(
        directory,
        [
            (f"n{node:05}", NOW - HOUR * (run + 1), "", key, value(node, run))
            for node in range(count)
            for run in range(samples)
        ],
    )
    return {int(row["node"][1:]) for row in view(directory, "slow")}


def test_nodes_that_lost_a_tenth_are_found_and_hardly_any_other(tmp_path: Path) -> None:
    found, false = 0, 0
    for seed in range(3):
        slow = slow_nodes(tmp_path / str(seed), model(seed, 10_000, 300, 0.1), 10_000)
        found += sum(node < 300 for node in slow)
        false += sum(node >= 300 for node in slow)
    assert found >= 0.9 * 900
    assert false <= 3, "more than 1 of 10,000 healthy nodes"


@pytest.mark.parametrize("samples", [1, 6])
def test_too_few_captures_name_no_slow_node(tmp_path: Path, samples: int) -> None:
    assert (
        slow_nodes(tmp_path, lambda node, run: 50.0 if node == 0 else 100.0 + node % 3, 20, samples)
        == set()
    )


def test_latency_is_slow_where_it_is_higher(tmp_path: Path) -> None:
    found = slow_nodes(
        tmp_path,
        lambda node, run: {0: 9.0, 1: 0.1}.get(node, 1.0 + node % 3 / 100),
        20,
        key="storage.paths.latency_ms",
    )
    assert found == {0}


@pytest.mark.parametrize("n", range(1, 26))
def test_bound_of_a_median_holds_with_99_percent(n: int) -> None:
    places: dict[object, object] = {row[0]: row[1] for row in bounds(25)}
    if n < 7:
        assert n not in places
        return
    chosen = random.Random(n)  # noqa: S311 fixed
    place = int(str(places[n]))
    # The place-th best of n draws is below the true median, 0.5, in at most 1 % of all cases.
    wrong = sum(
        sorted((chosen.random() for _ in range(n)), reverse=True)[place - 1] < 0.5
        for _ in range(4000)
    )
    assert wrong <= 4000 * 0.01 + 4 * (4000 * 0.01) ** 0.5


# -- repeat offenders


def test_fault_of_two_boards_with_two_severities_is_one_fault_while_it_lasts(
    tmp_path: Path,
) -> None:
    """A rule gives boards that it slows in two ways two severities: that is no new fault in each capture."""
    nodes = fleet(1)
    for severity in ("degraded", "drain"):
        fault = finding(
            "gpu.throttle", "no slowdown", severity, domain="hardware", severity=severity
        )
        nodes[0].find(fault, NOW - timedelta(hours=5))
    store(tmp_path, nodes, [NOW - timedelta(hours=age) for age in (6, 4, 3, 2, 1)])
    found = view(tmp_path, "episodes")
    assert [(row["id"], row["severity"], row["again"]) for row in found] == [
        ("gpu.throttle", "drain", 0)
    ]
    assert [(row["faults"], row["repeats"]) for row in view(tmp_path, "lemons")] == [(1, 0)]


def test_repeat_offender_has_a_score_with_its_parts(tmp_path: Path) -> None:
    nodes = fleet(3)
    fault = finding("gpu.ecc.uncorrected", "0", "3", domain="hardware", severity="drain")
    for age in range(12, 0, -1):
        nodes[0].findings = [(NOW - 60 * DAY, fault)] if age in (11, 8, 7, 3) else []
        nodes[1].findings = [(NOW - 60 * DAY, fault)] if age == 5 else []
        nodes[2].findings = (
            [(NOW - 60 * DAY, finding("net.mtu", "9000", "1500"))] if age in (9, 7, 5) else []
        )
        store(tmp_path, nodes, [NOW - age * DAY + HOUR], gpus=1)
    [lemon] = reported(tmp_path).lemons
    # 11, then 8 and 7, then 3 days ago; the two later ones within a week of the one before.
    assert (lemon.node, lemon.parts) == (
        nodes[0].name,
        {"faults": 3, "drains": 3, "repeats": 2, "kinds": 1, "xids": 0, "boots": 0},
    )
    # Begins of faults 11, 8 and 3 days ago, less an hour.
    assert lemon.score == pytest.approx(
        sum(0.5 ** ((days - 1 / 24) / 7) for days in (11, 8, 3)), abs=1e-4
    )


def test_recent_faults_weigh_more_than_older_ones(tmp_path: Path) -> None:
    nodes = fleet(2)
    fault = finding("gpu.ecc.uncorrected", "0", "3", domain="hardware", severity="drain")
    for age in range(28, 0, -1):
        nodes[0].findings = [(NOW - 60 * DAY, fault)] if age in (27, 25, 23) else []
        nodes[1].findings = [(NOW - 60 * DAY, fault)] if age in (5, 3) else []
        store(tmp_path, nodes, [NOW - age * DAY + HOUR], gpus=1)
    assert [(one.node, one.parts["faults"]) for one in reported(tmp_path).lemons] == [
        (nodes[1].name, 2),
        (nodes[0].name, 3),
    ]
