"""Whatever names a machine or a board is in no file that a run leaves, and what was equal stays equal."""

from __future__ import annotations

import copy
import json
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest

from goldnode.prove.redact import Redactor
from goldnode.prove.session import ProveOutput

RECORDED = Path(__file__).parents[2] / "cases/recorded"
FIXTURES = sorted((Path(__file__).parents[1] / "node/fixtures/smi").glob("*.xml"))


def named(rng: random.Random) -> dict[str, list[str]]:
    """Names of a made-up machine, by kind."""

    def text(letters: str, *lengths: int) -> str:
        return "-".join("".join(rng.choices(letters, k=length)) for length in lengths)

    return {
        "uuid": [f"GPU-{text('0123456789abcdef', 8, 4, 4, 4, 12)}" for _ in range(3)],
        "serial": [
            text(string.digits, 13),
            text(string.digits, 13),
            text(string.ascii_uppercase + string.digits, 6) + "7",
        ],
        "mac": [
            ":".join(text("0123456789abcdef", 2) for _ in range(6)).replace("00", "0a")
            for _ in range(2)
        ],
        "hostname": [f"gpu{rng.randrange(10**6):06}.{text(string.ascii_lowercase, 5)}.example.org"],
        "machine_id": [text("0123456789abcdef", 32)],
        "internet": [".".join(str(rng.randrange(1, 255)) for _ in range(4))],
    }


def capture_of(names: dict[str, list[str]], rng: random.Random) -> dict[str, Any]:
    """A capture in which they stand, also where nothing but prose is: logs, mounts, faults."""
    everything = [value for values in names.values() for value in values]
    gpus = [
        {
            "address": f"0000:{16 + n:02x}:00.0",
            "uuid": uuid,
            "serial": serial,
            "name": "NVIDIA H200",
        }
        for n, (uuid, serial) in enumerate(zip(names["uuid"], names["serial"], strict=True))
    ]
    log = [
        {
            "kind": "xid",
            "text": f"NVRM: {rng.choice(everything)} fell off ({rng.choice(everything)})",
        }
        for _ in range(12)
    ]
    return {
        "identity": {
            "hostname": names["hostname"][0],
            "machine_id": names["machine_id"][0],
            "product": {"serial": names["serial"][0]},
        },
        "gpus": gpus,
        "events": {"rows": log},
        "network": {"eth0": {"mac": names["mac"][0]}, "eth1": {"mac": names["mac"][1].upper()}},
        "os": {"kernel": {"cmdline": f"ro ip={names['internet'][0]} host={names['hostname'][0]}"}},
        "storage": {
            "mounts": {
                f"/data/{names['uuid'][1][4:]}": {"device": f"{names['hostname'][0]}:/export"}
            }
        },
        "gpu_error": {
            "fault": "unread",
            "text": f"{names['uuid'][2]} on {names['hostname'][0]} did not answer",
        },
        "driver": {"nvml": "12.570.86.15", "reported": "570.86.15"},
    }


@pytest.mark.parametrize("seed", range(60))
def test_no_name_is_left_and_equal_ones_stay_equal(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)  # noqa: S311 - a made-up machine
    names = named(rng)
    capture = capture_of(names, rng)
    before = copy.deepcopy(capture)
    redactor = Redactor()
    output = ProveOutput(tmp_path, redactor)
    output.text("early.txt", f"seen before it was known: {names['serial'][0]}")
    redactor.learn(capture)
    output.json("capture.json", capture)
    output.json(
        "prose.json",
        {
            "reason": f"{names['hostname'][0]} ({names['internet'][0]}): GPU {names['uuid'][0].upper()} is lost"
        },
    )
    assert output.seal() == []
    for path in tmp_path.iterdir():
        low = path.read_text().lower()
        assert not [
            value for values in names.values() for value in values if value.lower() in low
        ], path.name
        assert names["uuid"][0][4:] not in low
    assert capture == before, "what is redacted is a copy"
    found = json.loads((tmp_path / "capture.json").read_text())
    assert [gpu["address"] for gpu in found["gpus"]] == [gpu["address"] for gpu in capture["gpus"]]
    assert (
        len({gpu["uuid"] for gpu in found["gpus"]})
        == len({gpu["serial"] for gpu in found["gpus"]})
        == 3
    )
    assert found["identity"]["product"]["serial"] == found["gpus"][0]["serial"]
    assert found["driver"] == capture["driver"], "versions are no addresses"
    again = Redactor()
    again.learn(found)
    assert again.json(found) == found, "a placeholder is not redacted again"


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_output_of_nvidia_smi_loses_its_serials(path: Path) -> None:
    rng = random.Random(path.stem)  # noqa: S311
    text = path.read_text()
    secrets: list[str] = []

    def fresh(match: re.Match[str]) -> str:
        kind = "uuid" if "uuid" in match[1].lower() else "serial"
        secrets.append(rng.choice(named(rng)[kind]))
        return f"<{match[1]}>{secrets[-1]}</{match[1]}>"

    text = re.sub(r"<(serial|uuid|clusterUuid|chassis_serial_number)>[^<]*</\1>", fresh, text)
    assert secrets
    redactor = Redactor()
    redactor.learn_text(text)
    found = redactor.text(text)
    assert not [secret for secret in secrets if secret in found]
    assert redactor.leaks(found) == []
    assert re.findall(r"<driver_version>.*", found) == re.findall(r"<driver_version>.*", text)


@pytest.mark.parametrize(
    ("kind", "value", "text", "expected"),
    [
        ("SERIAL", "Default string", "Default string", "Default string"),
        ("SERIAL", "SIMULATED", "SIMULATED HARDWARE", "SIMULATED HARDWARE"),
        ("SERIAL", "12", "12 GPUs", "SERIAL-0 GPUs"),
        ("SERIAL", "N/A", "N/A", "N/A"),
        ("SERIAL", "0000000000000", "0000000000000", "0000000000000"),
        ("HOST", "node", "a node of node1", "a HOST-0 of node1"),
        ("HOST", "gpu-017", "gpu-017: xid, gpu-017.example.org", "HOST-0: xid, HOST-0.example.org"),
        (
            "MACHINE",
            "0123456789abcdef0123456789abcdef",
            "id=0123456789ABCDEF0123456789ABCDEF.",
            "id=MACHINE-0.",
        ),
        (
            "SERVER",
            "10.0.0.7",
            "nfs 10.0.0.7, driver 570.86.15, nvml 12.570.86.15",
            "nfs SERVER-0, driver 570.86.15, nvml 12.570.86.15",
        ),
    ],
)
def test_value_is_redacted_unless_it_identifies_nothing(
    kind: str, value: str, text: str, expected: str
) -> None:
    redactor = Redactor()
    redactor.add(value, kind)
    assert redactor.text(text) == expected


def test_serial_without_a_digit_is_redacted_under_its_own_key_only() -> None:
    redactor = Redactor()
    redactor.learn({"product": {"serial": "SIMULATED"}})
    assert redactor.json({"serial": "SIMULATED", "simulated": "SIMULATED"}) == {
        "serial": "SERIAL-0",
        "simulated": "SIMULATED",
    }


def test_a_file_that_still_holds_a_name_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redactor = Redactor()
    redactor.add("1650123456789", "SERIAL")
    output = ProveOutput(tmp_path, redactor)
    output.text("good.txt", "nothing")
    (tmp_path / "stray.txt").write_text("1650123456789")
    assert output.seal() == ["stray.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["good.txt"]


def test_paths_of_the_machine_are_shown_by_what_they_are() -> None:
    redactor = Redactor()
    redactor.path("/home/ann", "~")
    redactor.path("/home/ann/goldnode", "CHECKOUT")
    assert (
        redactor.text("/home/ann/goldnode/build: no such file; /home/ann/x")
        == "CHECKOUT/build: no such file; ~/x"
    )
