"""dockerd's command line from its unit, and the settings that contradict daemon.json, against `dockerd --validate`."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.effective.docker_unit import Word, command_line, contradicted
from goldnode.node.ground.host import Host

LIB, ETC = "usr/lib/systemd/system/docker.service", "etc/systemd/system/docker.service.d"
MAIN = (
    "[Service]\n# ExecStart=/no\nEnvironmentFile=-/etc/default/docker\n"
    "ExecStart=/usr/sbin/dockerd -H fd:// \\\n  --containerd=/run/c.sock $DOCKER_OPTS\n"
)


def node(root: Path, files: dict[str, str]) -> Host:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Host(str(root), live=True)


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({}, []),
        ({LIB: MAIN}, [f"/{LIB}:4"] * 4),
        (
            {LIB: MAIN, "etc/default/docker": "# x\nDOCKER_OPTS=\"-D --log-level=info\"\n"},
            [*[f"/{LIB}:4"] * 4, "/etc/default/docker:2", "/etc/default/docker:2"],
        ),
        ({LIB: MAIN, f"{ETC}/b.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd -D\n"}, [f"/{ETC}/b.conf:3"] * 2),
        (
            {LIB: MAIN, f"{ETC}/a.conf": "[Service]\nExecStart=\nExecStart=/x $A\nEnvironment='A=1 2' B=3\n",
             "run/systemd/system/docker.service.d/a.conf": "[Service]\nExecStart=\nExecStart=/hidden -D\n"},
            [f"/{ETC}/a.conf:3", f"/{ETC}/a.conf:4", f"/{ETC}/a.conf:4"],
        ),
        ({LIB: MAIN, "etc/systemd/system/docker.service": "[Service]\nExecStart=/own\n"}, ["/etc/systemd/system/docker.service:2"]),
    ],
)  # fmt: skip
def test_words_of_the_unit_and_where_they_are(
    tmp_path: Path, files: dict[str, str], want: list[str]
) -> None:
    assert [word.where for word in command_line(node(tmp_path, files))] == want


# Flags with a value, the key of daemon.json, and a value there.
FLAGS: list[tuple[list[str], str, Any]] = [
    (["-H", "fd://"], "hosts", ["fd://"]), (["--host=fd://"], "hosts", ["fd://"]), (["-D"], "debug", True), (["--debug=false"], "debug", True),
    (["-l", "info"], "log-level", "info"), (["--log-level", "warn"], "log-level", "info"), (["--default-runtime=runc"], "default-runtime", "runc"),
    (["--add-runtime", "nvidia=/x"], "runtimes", {"nvidia": {"path": "/y"}}), (["--insecure-registry", "a"], "insecure-registries", ["b"]),
    (["--registry-mirror", "https://a"], "registry-mirrors", ["https://b"]), (["--label", "a=b"], "labels", ["c=d"]),
    (["--storage-driver=overlay2"], "storage-driver", "overlay2"), (["-s", "overlay2"], "storage-driver", "overlay2"),
    (["--exec-opt", "native.cgroupdriver=systemd"], "exec-opts", ["native.cgroupdriver=systemd"]), (["--live-restore"], "live-restore", True),
    (["--log-opt", "max-size=1m"], "log-opts", {"max-size": "2m"}), (["--cdi-spec-dir", "/a"], "cdi-spec-dirs", ["/b"]),
    (["--data-root", "/a"], "data-root", "/b"), (["--dns", "1.1.1.1"], "dns", ["1.0.0.1"]), (["--dns-opt", "a"], "dns-opts", ["b"]),
    (["--default-ulimit", "nofile=1:2"], "default-ulimits", {"nofile": {"Name": "nofile", "Hard": 2, "Soft": 1}}),
    (["--default-address-pool", "base=10.0.0.0/8,size=24"], "default-address-pools", [{"base": "10.1.0.0/16", "size": 24}]),
]  # fmt: skip


def configuration(seed: int) -> tuple[list[str], dict[str, Any]]:
    """Some flags and some keys, which may be the same settings."""
    chance = random.Random(seed)  # noqa: S311 - a test, no secret
    flags = chance.sample(FLAGS, chance.randint(0, 3))
    keys = chance.sample(FLAGS, chance.randint(0, 3))
    words = [word for row in flags for word in row[0]]
    chosen = [*keys, *(row for row in flags if chance.random() < 0.3)]
    return words, {key: value for _, key, value in chosen}


def computed(words: list[str], settings: dict[str, Any]) -> list[str]:
    return sorted(contradicted([Word(word, "x") for word in words], settings))


def test_keys_that_are_flags_too() -> None:
    for words, key, value in FLAGS:
        assert computed(words, {key: value}) == ([] if key == "runtimes" else [key])
        assert computed(words, {"features": {"cdi": True}}) == []


def test_generated_configurations_are_judged_as_by_dockerd(tmp_path: Path) -> None:
    """dockerd 23 and later, of the machine or named by GOLDNODE_TEST_DOCKERD; `--validate` starts nothing."""
    program = os.environ.get("GOLDNODE_TEST_DOCKERD") or shutil.which("dockerd")
    if not program:
        pytest.skip("needs dockerd")
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    if "--validate" not in shown.stdout:
        pytest.skip("needs dockerd 23 or later")
    for seed in range(60):
        words, settings = configuration(seed)
        file = tmp_path / "daemon.json"
        file.write_text(json.dumps(settings))
        done = subprocess.run(
            [program, "--validate", "--config-file", str(file), *words],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        _, both, text = (done.stdout + done.stderr).partition("in the configuration file: ")
        named = [key for key in settings if f"{key}: (from flag" in text] if both else []
        assert computed(words, settings) == sorted(named), (words, settings, done.stderr)
