"""The GPUs of a class in Slurm's configuration: the lines, MIG's device files, and a real `slurmd -G` where Slurm is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.roots import make

from goldnode.cli import main
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.program import main as program
from goldnode.node.program import slurm
from goldnode.node.program.slurm import GresLine

Json = dict[str, Any]
# As slurmd 22.05.8 printed it.
ANSWER = """\
slurmd-n1: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=0 ID=7696487 File=/dev/null,/dev/zero (null)
slurmd-n1: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=0 ID=7696487 File=/dev/null,/dev/full (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=4 Index=0 ID=7696487 File=/dev/tty[0-3] Cores=0 CoreCnt=2 (null)
"""
EXTRA = "slurmd-n1: WARNING: A line in gres.conf for GRES gpu:a100 has 2 more configured than expected in slurm.conf. Ignoring extra GRES.\n"
ABSENT = "slurmd-n1: error: Waiting for gres.conf file /dev/nvidia0\nslurmd-n1: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory\n"
NVML = "slurmd-n1: We were configured with nvml functionality, but that lib wasn't found on the system.\n"


def document(
    model: str = "H100-SXM5-80GB", count: int = 8, profiles: tuple[str, ...] = (), **more: Any
) -> Any:
    return {
        "class": "h100",
        "gpu": {"vendor": "nvidia", "model": model, "count": count, "pci_ids": []},
        "policy": {"mig": {"enabled": bool(profiles), "profiles": list(profiles)}},
        "driver": {"branch": "580"},
        **more,
    }


@pytest.mark.parametrize(
    ("given_document", "gres", "features", "lines"),
    [
        (
            document(),
            "gpu:h100:8",
            "h100,gpu,nvidia,driver_580",
            ["NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-7]"],
        ),
        (
            document("L4", 1),
            "gpu:l4:1",
            "h100,gpu,nvidia,l4,driver_580",
            ["NodeName=n[1-2] Name=gpu Type=l4 File=/dev/nvidia0"],
        ),
        (
            document("A100-SXM4-40GB", 2, ("3g.20gb", "3g.20gb", "1g.5gb")),
            "gpu:a100_1g.5gb:2,gpu:a100_3g.20gb:4",
            "h100,gpu,nvidia,a100,driver_580,mig",
            ["NodeName=n[1-2] AutoDetect=nvml"],
        ),
        ({"class": "cpu-only", "gpu": None, "driver": None}, None, "cpu_only", []),
    ],
)
def test_the_lines_of_a_class(
    given_document: Any, gres: str | None, features: str, lines: list[str]
) -> None:
    wanted = slurm.with_files(slurm.wanted(given_document), "nvidia", None)
    (row,) = slurm.slurm_conf(wanted, slurm.features(given_document), "n[1-2]")[-1:]
    assert row == "NodeName=n[1-2]" + (f" Gres={gres}" if gres else "") + f" Feature={features}"
    assert slurm.gres_conf(wanted, "nvidia", "n[1-2]") == lines


def test_a_class_of_any_model_is_refused() -> None:
    with pytest.raises(NodeError, match="any model"):
        slurm.wanted(document("auto"))


@given(st.text(max_size=20), st.text(max_size=20))
def test_features_have_no_character_of_constraints(name: str, branch: str) -> None:
    named: Any = {**document(), "class": name, "driver": {"branch": branch}}
    words = slurm.features(named)
    assert not set("".join(words)) - set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."
    )


# -- device files


def node(tmp_path: Path, **files: str) -> Host:
    """Two GPUs; files of /proc/driver/nvidia/capabilities by their path, with _ for /."""
    given_files = {f"{slurm.CAPABILITIES}/{name}": text for name, text in files.items()}
    return Host(
        str(
            make(
                tmp_path,
                {"/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": "", **given_files},
            )
        )
    )


def minor(number: int) -> str:
    return f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


CAPS = {
    "gpu0/mig/gi1/access": minor(12),
    "gpu0/mig/gi1/ci0/access": minor(13),
    "gpu1/mig/gi2/access": minor(21),
    "gpu1/mig/gi2/ci0/access": minor(22),
    "gpu1/mig/config": minor(1),
}


def test_partitions_have_the_files_of_gpu_and_instances(tmp_path: Path) -> None:
    devices = slurm.devices_of(node(tmp_path, **CAPS), True)
    assert devices == [
        ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
        ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"),
    ]
    lines = slurm.with_files(
        slurm.wanted(document("A100-SXM4-40GB", 2, ("3g.20gb",))), "nvidia", devices
    )
    assert slurm.gres_conf(lines, "nvidia") == [
        f"Name=gpu Type=a100_3g.20gb MultipleFiles={','.join(files)}" for files in devices
    ]


@pytest.mark.parametrize(
    ("profiles", "files", "expected"),
    [
        (
            ("3g.20gb",),
            {"gpu0/mig/gi1/access": minor(12), "gpu0/mig/gi1/ci0/access": "x"},
            "no DeviceFileMinor",
        ),
        (("3g.20gb",), {}, "the class has 2 GPUs or partitions, and the node 0"),
        (
            ("1g.5gb", "3g.20gb"),
            {
                **CAPS,
                **{f"gpu{n}/mig/gi9{end}/access": minor(9) for n in (0, 1) for end in ("", "/ci0")},
            },
            "several profiles",
        ),
    ],
)
def test_partitions_that_cannot_be_named_are_refused(
    profiles: tuple[str, ...], files: dict[str, str], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(NodeError, match=expected):
        slurm.with_files(
            slurm.wanted(document("A100-SXM4-40GB", 2, profiles)),
            "nvidia",
            slurm.devices_of(node(tmp_path, **files), True),
        )


@given(st.sets(st.integers(0, 200), min_size=1, max_size=20))
def test_ranges_expand_to_the_same_files(numbers: set[int]) -> None:
    names = [f"/dev/nvidia{number}" for number in numbers]
    (text,) = slurm.ranged(names)
    assert sorted(slurm.expanded(text)) == sorted(names)


@given(st.text(max_size=200))
def test_any_text_has_an_answer(text: str) -> None:
    answer = slurm.parsed(text)
    slurm.compared([GresLine("h100", 8)], answer)
    slurm.expanded(text)


# -- the answer of slurmd


def test_the_answer_is_read() -> None:
    answer = slurm.parsed(ANSWER)
    assert answer.problems == ()
    assert answer.lines == (
        GresLine("a100_3g.20gb", 1, (("/dev/null", "/dev/zero"),)),
        GresLine("a100_3g.20gb", 1, (("/dev/null", "/dev/full"),)),
        GresLine("a100", 4, tuple((f"/dev/tty{number}",) for number in range(4))),
    )


WANT = [
    GresLine("a100_3g.20gb", 2, (("/dev/null", "/dev/zero"), ("/dev/null", "/dev/full"))),
    GresLine("a100", 4, tuple((f"/dev/tty{number}",) for number in range(4))),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ANSWER, []),
        (
            ANSWER.replace("Type=a100 ", "Type=a30 "),
            ["0 of gpu:a100, and the class 4", "4 of gpu:a30, and the class 0"],
        ),
        (
            ANSWER.replace("Count=4", "Count=3").replace("[0-3]", "[0-2]"),
            ["3 of gpu:a100", "lacks /dev/tty3"],
        ),
        (
            ANSWER.replace("/dev/zero", "/dev/random"),
            ["lacks /dev/null,/dev/zero", "also has /dev/null,/dev/random"],
        ),
        (ANSWER + EXTRA, ["more configured than expected"]),
        (
            ABSENT,
            [
                "Waiting for",
                "can't stat gres.conf file /dev/nvidia0",
                "0 of gpu:a100,",
                "0 of gpu:a100_3g.20gb",
            ],
        ),
        (NVML, ["that lib wasn't found", "0 of gpu:a100,", "0 of gpu:a100_3g.20gb"]),
        ("", ["0 of gpu:a100,", "0 of gpu:a100_3g.20gb"]),
    ],
)
def test_each_difference_is_named(text: str, expected: list[str]) -> None:
    found = slurm.compared(WANT, slurm.parsed(text))
    assert len(found) == len(expected), found
    for part, row in zip(expected, found, strict=True):
        assert part in row


# -- the commands


def run(*words: str, given_text: str | None = None) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["slurm", *words], input=given_text)
    return done.exit_code, done.stdout, done.stderr


def test_the_controller_prints_and_checks(tmp_path: Path) -> None:
    code, text, _ = run("config", "-c", "h100_sxm5_80gb", "--nodes", "gpu[001-128]")
    assert code == 0
    assert text.splitlines() == [
        "# slurm.conf",
        "GresTypes=gpu",
        "NodeName=gpu[001-128] Gres=gpu:h100:8 Feature=h100_sxm5_80gb,gpu,nvidia,h100,driver_580",
        "# gres.conf",
        "NodeName=gpu[001-128] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
    ]
    good = (
        "slurmd: Gres Name=gpu Type=h100 Count=8 Index=0 ID=7696487 File=/dev/nvidia[0-7] (null)\n"
    )
    assert run("check", "-", "-c", "h100_sxm5_80gb", given_text=good)[:2] == (
        0,
        "slurmd has the GPUs of the class: 8 of gpu:h100\n",
    )
    assert run("check", "-", "-c", "h100_sxm5_80gb", given_text=good.replace("8", "7"))[0] == 1
    code, text, error = run(
        "check", "-", "-c", "h100_sxm5_80gb", "--format", "json", given_text="usage: slurmd\n"
    )
    assert (code, json.loads(text)["schema"]) == (2, "goldnode.error/1")
    assert "slurmd -G >FILE 2>&1" in error


@pytest.mark.parametrize(
    "nodes",
    [
        "",
        "a b",
        "a\nNodeName=x",
        "gpu[001-12",
        "gpu001-12]",
        "gpu[1..8]",
        "gpu[]",
        "gpu[08-01]",
        "a,,b",
        "gpu{1..8}",
    ],
)
def test_invalid_host_list_is_refused(nodes: str) -> None:
    assert run("config", "-c", "h100_sxm5_80gb", "--nodes", nodes)[0] == 2


@pytest.mark.parametrize("nodes", ["n1", "gpu[001-128]", "r[1-2]n[01-04,07],login.example.net"])
def test_host_list_of_slurm_is_printed_as_it_is(nodes: str) -> None:
    code, text, _ = run("config", "-c", "cpu_only", "--nodes", nodes)
    assert (code, text) == (0, f"# slurm.conf\nNodeName={nodes} Feature=cpu_only\n")


@pytest.mark.parametrize("name", ["h100_sxm5_80gb", "cpu_only"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            "slurmd: error: fetch_config: DNS SRV lookup failed\n"
            "slurmd: error: _establish_configuration: failed to load configs\n"
            "slurmd: error: slurmd initialization failed\n",
            "slurmd initialization failed",
        ),
        (
            "slurmd: fatal: Unable to determine this slurmd's NodeName\n",
            "Unable to determine this slurmd's NodeName",
        ),
    ],
)
def test_slurmd_that_did_not_start_is_no_answer_about_gpus(
    name: str, answer: str, why: str
) -> None:
    code, text, error = run("check", "-", "-c", name, given_text=answer)
    assert (code, text) == (2, "")
    assert "`slurmd -G` did not come to the GPUs: " in error
    assert why in error


def test_missing_device_file_is_a_difference_though_slurmd_ends() -> None:
    assert run("check", "-", "-c", "h100_sxm5_80gb", given_text=ABSENT)[0] == 1


def test_the_node_refuses_without_a_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["slurm", "--root", str(tmp_path)]) == 3
    assert "has no class" in capsys.readouterr().err


# -- a real slurmd

pytest_slurmd = pytest.mark.skipif(
    shutil.which("slurmd") is None or os.geteuid() != 0,
    reason="needs slurmd and root: apt-get install slurmd",
)
CONF = "ClusterName=test\nSlurmctldHost=localhost\nSlurmdSpoolDir={place}/spool\n{lines}\nPartitionName=all Nodes=ALL\n"


def slurmd(place: Path, conf: list[str], gres: list[str]) -> str:
    (place / "slurm.conf").write_text(
        CONF.format(place=place, lines="\n".join(conf)).replace("n1 ", "n1 CPUs=1 ", 1)
    )
    (place / "gres.conf").write_text("".join(f"{line}\n" for line in gres))
    environment = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}
    done = subprocess.run(
        ["slurmd", "-N", "n1", "-G"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


# Files that exist on any machine, in the place of those of GPUs: slurmd asks whether they are there.
FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")


@pytest_slurmd
@pytest.mark.parametrize("profiles", [(), ("3g.20gb",)], ids=["gpus", "mig"])
def test_slurmd_has_the_gpus_that_the_lines_declare(
    profiles: tuple[str, ...], tmp_path: Path
) -> None:
    own = document("A100-SXM4-40GB", 4, profiles)
    devices = [
        (FILES[number], FILES[number - 1]) if profiles else (FILES[number],) for number in range(4)
    ]
    lines = slurm.with_files(slurm.wanted(own), "nvidia", devices)
    conf = slurm.slurm_conf(lines, slurm.features(own), "n1")
    gres = slurm.gres_conf(lines, "nvidia", "n1")
    answer = slurm.parsed(slurmd(tmp_path, conf, gres))
    assert slurm.compared(lines, answer) == []
    answer = slurm.parsed(slurmd(tmp_path, conf, gres[:-1]))
    assert any("and the class 4" in row for row in slurm.compared(lines, answer)), answer


@pytest_slurmd
def test_slurmd_reports_a_device_file_that_is_not_there(tmp_path: Path) -> None:
    lines = slurm.with_files(slurm.wanted(document()), "nvidia", None)
    conf = slurm.slurm_conf(lines, slurm.features(document()), "n1")
    answer = slurm.parsed(slurmd(tmp_path, conf, slurm.gres_conf(lines, "nvidia", "n1")))
    assert any("/dev/nvidia0" in row for row in answer.problems)
    assert slurm.compared(lines, answer)
