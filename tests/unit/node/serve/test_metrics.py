"""The metrics of a node, as Prometheus' own checker reads them."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.ground import boot
from goldnode.node.ground.host import Host
from goldnode.node.serve import metrics, publish
from goldnode.node.verdict import current

PROMTOOL = shutil.which("promtool")


def finding(
    name: str, outcome: str, subject: str | None = None, severity: str = "drain"
) -> dict[str, Any]:
    return {
        "id": name,
        "outcome": outcome,
        "severity": severity,
        "expected": "x",
        "got": "y",
        "remedy": None,
        "subject": subject,
    }


def verdict(*findings: dict[str, Any], code: Any = 2, **more: Any) -> dict[str, Any]:
    return {
        "schema": current.SCHEMA,
        "class": "h100",
        "class_digest": "sha256:c1",
        "lock_digest": "sha256:10",
        "stack": "debian12_r580",
        "simulated": False,
        "time": "2026-11-22T10:00:00Z",
        "uptime": 100.0,
        "status": "drain",
        "exit_code": code,
        "findings": list(findings),
        **more,
    }


FAULT = {"fault": "unread", "text": "GPU is lost", "rc": 15}
GPU = {
    "index": 0,
    "address": "0000:18:00.0",
    "name": "NVIDIA H100",
    "uuid": "GPU-1",
    "pci_id": "10de:2330",
    "lost": False,
    "ecc": {"volatile": {"corrected": 3, "uncorrected": 0}, "aggregate": FAULT},
    "remapped_rows": {"correctable": 1, "uncorrectable": 0, "pending": True, "failure": False},
    "pcie": {"gen": {"current": 5}, "width": {"current": 16}, "replay": 7},
    "temperature": {"gpu_c": 41, "memory_c": FAULT},
    "power": {"draw_w": 71.5, "limit_w": 700},
    "clocks": {"current": {"graphics_mhz": 345, "memory_mhz": 2619}},
    "memory": {"total_mib": 81559, "used_mib": 0},
    "utilization": {"gpu": 50, "memory": 0},
    "throttle": {"active": ["hw_slowdown"], "violation_ns": {"power": 2_500_000_000}},
    "nvlink": {
        "links": [
            {"link": 0, "active": True, "errors": {"replay": 2}},
            {"link": 1, "active": False, "errors": {"replay": 1}},
        ]
    },
    "recovery_action": "none",
    "serial": "165",
}
CAPTURE = {
    "schema": "goldnode.capture/1",
    "driver": {"loaded": "580.82", "cuda": "13.0"},
    "identity": {"image_id": "img-1"},
    "gpus": [GPU],
    "pci": {"0000:18:00.0": {"aer": {"correctable": 4, "nonfatal": 0, "fatal": 0}}},
    "memory": {"total_mib": 5, "edac": {"mc0": {"ce": 7, "ue": 0}, "mc1": FAULT}},
    "events": {
        "rows": [
            {"kind": "xid", "code": 79, "count": 2},
            {"kind": "xid", "code": 79, "count": 1},
            {"kind": "oom", "code": None},
        ]
    },
}
OPEN = {
    "schema": "goldnode.gate/1",
    "mode": "drain",
    "open": False,
    "told": {"by": "slurm", "ours": True},
}


def samples(text: str) -> dict[str, str]:
    """Series -> value; each series once, each line whole, HELP and TYPE before a metric and once."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) goldnode_[a-z_]+ .+", line), line
            continue
        match = re.fullmatch(
            r'(goldnode_[a-z_]+(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})?) (-?[0-9.e+-]+)',
            line,
        )
        assert match, line
        assert match[1] not in found, f"twice: {match[1]}"
        found[match[1]] = match[2]
    return found


def test_a_bad_node_in_numbers() -> None:
    found = samples(
        metrics.text(
            verdict(
                finding("gpu.count", "mismatch"), finding("pcie.width", "match", "0000:18:00.0")
            ),
            CAPTURE,
            OPEN,
        )
    )
    assert found['goldnode_finding{id="gpu.count",subject="",severity="drain"}'] == "4"
    assert found['goldnode_finding{id="pcie.width",subject="0000:18:00.0",severity="drain"}'] == "0"
    assert found["goldnode_verdict_exit_code"] == "2"
    assert found['goldnode_memory_errors_total{controller="mc0",kind="corrected"}'] == "7"
    assert 'goldnode_memory_errors_total{controller="mc1",kind="corrected"}' not in found
    assert found["goldnode_last_run_timestamp_seconds"] == "1795341600"
    assert (found['goldnode_gate_open{mode="drain"}'], found["goldnode_drained"]) == ("0", "1")
    info = next(name for name in found if name.startswith("goldnode_info{"))
    for part in (
        'class="h100"',
        'class_digest="sha256:c1"',
        'lock_digest="sha256:10"',
        'image_id="img-1"',
        'driver="580.82"',
        'cuda="13.0"',
    ):
        assert part in info
    gpu = 'gpu="0000:18:00.0",uuid="GPU-1"'
    assert found[f'goldnode_gpu_ecc_errors_total{{{gpu},scope="volatile",kind="corrected"}}'] == "3"
    assert found[f"goldnode_gpu_remap_pending{{{gpu}}}"] == "1"
    assert found[f'goldnode_gpu_violation_seconds_total{{{gpu},reason="power"}}'] == "2.5"
    assert found[f'goldnode_gpu_nvlink_errors_total{{{gpu},kind="replay"}}'] == "3"
    assert found[f'goldnode_gpu_clock_hertz{{{gpu},clock="graphics"}}'] == "345000000"
    assert found['goldnode_events_total{kind="xid",code="79"}'] == "3"
    assert found['goldnode_events_total{kind="oom",code=""}'] == "1"


def test_unread_value_has_no_sample() -> None:
    text = metrics.text(verdict(), CAPTURE)
    assert 'scope="aggregate"' not in text
    assert 'sensor="memory"' not in text
    assert "serial" not in text
    assert "goldnode_gate_open" not in text
    assert "goldnode_gpu" not in metrics.text(
        verdict(), {"gpus": FAULT, "pci": FAULT, "events": FAULT, "identity": FAULT}
    )


def test_a_verdict_that_does_not_count_reads_as_three_and_reports_no_findings() -> None:
    text = metrics.text(
        verdict(finding("gpu.count", "match"), code=0), CAPTURE, fault="too old", age=1000.25
    )
    found = samples(text)
    assert found["goldnode_verdict_exit_code"] == "3"
    assert (found["goldnode_verdict_holds"], found["goldnode_verdict_age_seconds"]) == (
        "0",
        "1000.25",
    )
    assert "goldnode_finding{" not in text
    assert samples(metrics.text(None, None, fault="none"))["goldnode_verdict_exit_code"] == "3"
    assert samples(metrics.text({"exit_code": True}, None))["goldnode_verdict_exit_code"] in (
        "1",
        "3",
    )


def test_an_outcome_that_is_not_known_is_never_good() -> None:
    found = samples(metrics.text(verdict(finding("a", "brand_new")), None))
    assert found['goldnode_finding{id="a",subject="",severity="drain"}'] == "3"


def test_hostile_text_stays_one_label() -> None:
    evil = 'x"} 0\ngoldnode_verdict_exit_code 0\n\\\x1b[31m\udcff' + "y" * 5000
    text = metrics.text(
        verdict(finding("a", "mismatch", evil), finding("a", "match", evil), **{"class": evil}),
        {"gpus": [{"uuid": evil}, 7, None]},
    )
    found = samples(text)
    assert found["goldnode_verdict_exit_code"] == "2"
    assert "\x1b" not in text
    text.encode()
    assert [value for name, value in found.items() if name.startswith("goldnode_finding{")] == [
        "4"
    ], "of two of one name the worse is told"
    assert max(len(line) for line in text.splitlines()) < 1000


def test_the_simulated_reports_it() -> None:
    text = metrics.text(verdict(finding("a", "match"), simulated=True), CAPTURE)
    assert 'goldnode_verdict_exit_code{simulated="true"} 2' in text
    assert "goldnode_simulated 1" in text
    assert all(
        'simulated="true"' in line
        for line in text.splitlines()
        if line.startswith(("goldnode_gpu_", "goldnode_finding"))
    )


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_metrics() -> None:
    for text in (
        metrics.text(verdict(finding("gpu.count", "mismatch", 'a"\\b')), CAPTURE, OPEN, age=3.0),
        metrics.text(None, None, fault="no"),
    ):
        done = subprocess.run(
            [str(PROMTOOL), "check", "metrics"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_times_are_those_of_the_calendar() -> None:
    for text in (
        "1970-01-01T00:00:00Z",
        "2000-02-29T23:59:59Z",
        "2024-02-29T12:00:00Z",
        "2026-03-01T00:00:00Z",
        "2099-12-31T01:02:03Z",
    ):
        assert boot.seconds(text) == dt.datetime.fromisoformat(text).timestamp()
    odd: list[Any] = [None, "", "2026-11-22", "2026-11-22 10:00:00Z", "2026-11-22T10:00:0xZ", 7, {}]
    for text in odd:
        assert boot.seconds(text) is None


# -- the file


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name, text in {
        "/proc/uptime": "160.5 1000\n",
        "/proc/sys/kernel/random/boot_id": "b\n",
        "/proc/1/stat": "1 (systemd) S " + " ".join("0" * 18) + " 42 0",
    }.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(tmp_path), live=True)


def test_metrics_file_follows_the_class_and_is_removed_without_it(
    host: Host, tmp_path: Path
) -> None:
    good = verdict(boot_identity="b/42")
    assert publish.publish(host, {}, good, CAPTURE) == []
    own = tmp_path / "run/goldnode/metrics.prom"
    assert "goldnode_verdict_holds 1" in own.read_text()
    assert own.stat().st_mode & 0o777 == 0o644
    reported = publish.publish(host, {"serve": {"textfile": "/var/lib/nowhere"}}, good, CAPTURE)
    assert "there is no directory /var/lib/nowhere" in reported[0]
    assert not (tmp_path / "var/lib/nowhere").exists()
    for name in ("one", "two"):
        (tmp_path / "var/lib" / name).mkdir(parents=True)
    assert publish.publish(host, {"serve": {"textfile": "/var/lib/one/"}}, good, CAPTURE) == []
    assert (tmp_path / "var/lib/one/goldnode.prom").read_text() == own.read_text()
    # The class cannot be read: the place stays, and says so.
    assert publish.publish(host, None, verdict(code=3), CAPTURE) == []
    assert "goldnode_verdict_exit_code 3" in (tmp_path / "var/lib/one/goldnode.prom").read_text()
    assert publish.publish(host, {"serve": {"textfile": "/var/lib/two"}}, good, CAPTURE) == []
    assert [path.name for path in (tmp_path / "var/lib").glob("*/goldnode.prom")] == [
        "goldnode.prom"
    ]
    assert publish.publish(host, {}, good, CAPTURE) == []
    assert list((tmp_path / "var/lib").glob("*/goldnode.prom")) == []


def test_all_users_may_read_what_is_not_secret(host: Host, tmp_path: Path) -> None:
    secret: dict[str, Any] = {
        "serial": "S-1",
        "machine_id": "S-2",
        "processes": [{"pid": 4242}],
        "mac": "S-3",
        "text": "S-4",
    }
    capture: dict[str, Any] = {
        **CAPTURE,
        "identity": {**secret, "hostname": "n1", "product": secret},
        "gpus": [{**GPU, **secret, "settings": secret}],
        "network": {"eth0": secret},
        "blocked": [secret],
        "events": {
            "rows": [{**secret, "kind": "xid", "code": 79, "count": 1, "parameters": secret}],
            "boot_id": "S-5",
        },
        "pci": {"0000:18:00.0": {**secret, "aer": {"correctable": 4}}},
        "memory": {**secret, "edac": {"mc0": {"ce": 7, "ue": 0}}},
    }
    capture["gpus"][0].pop("text")
    capture["gpus"][0].pop("mac")
    capture["gpus"][0].pop("machine_id")
    assert publish.publish(host, {}, verdict(boot_identity="b/42"), capture) == []
    path = tmp_path / "run/goldnode/public.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert not re.search(r"S-[0-9]|4242|165", path.read_text())
    found = publish.public(capture)
    assert metrics.text(verdict(), found) == metrics.text(verdict(), capture), (
        "all that the metrics want"
    )
    faults = {"gpus": FAULT, "pci": FAULT, "events": FAULT, "os": FAULT, "identity": FAULT}
    odd: list[Any] = [None, [], faults, {"gpus": [None], "events": {"rows": [None]}}]
    for captured in odd:
        assert publish.public(captured)["schema"] == "goldnode.public/1"


def test_a_check_that_could_not_be_made_reports_nothing_of_the_hardware(
    host: Host, tmp_path: Path
) -> None:
    publish.publish(host, {}, verdict(boot_identity="b/42"), CAPTURE)
    publish.publish(host, None, verdict(code=3, boot_identity="b/42"), None)
    assert "goldnode_gpu" not in (tmp_path / "run/goldnode/metrics.prom").read_text()
    assert "GPU-1" not in (tmp_path / "run/goldnode/public.json").read_text()


def test_torn_files_and_a_full_disk_are_reported_and_end_nothing(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "run/goldnode").mkdir(parents=True)
    (tmp_path / "run/goldnode/gate.json").write_text("[" * 100_000)
    assert publish.publish(host, {}, verdict(boot_identity="b/42"), CAPTURE) == []
    (tmp_path / "run/goldnode/metrics.prom").unlink()
    (tmp_path / "run/goldnode/metrics.prom").mkdir()
    assert "cannot be written" in publish.publish(host, {}, verdict(), None)[0]
