"""Runs of `scripts/prove-gpu` on a simulated node, as a user starts it, and the simulated libraries they find."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.faults import classes
from tests.simulators.hardware import carried, machine

SCRIPT = Path(__file__).parents[3] / "scripts/prove-gpu"


class Place(NamedTuple):
    """A simulated node, its carry folder, the environment of a run there, and the state file it uses."""

    root: Path
    carry: Path
    environment: dict[str, str]
    state: Path

    def start(self, out: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a run that writes to `out`."""
        return subprocess.Popen(
            [SCRIPT, "--short", "--carry", self.carry, "--state", self.state, "--out", out, *words],
            env={**self.environment, "PYTHON": sys.executable, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.root.parent,
        )  # fmt: skip

    def run(self, out: Path, *words: str, **environment: str) -> Run:
        """A run to its end."""
        process = self.start(out, *words, **environment)
        reported, err = process.communicate(timeout=300)
        assert "Traceback" not in err, err
        return Run(process.returncode, out, reported)

    def state_of(self) -> dict[str, str]:
        """What the simulated driver holds."""
        text = (self.root / machine.PLACE / "run/state").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())

    def calls(self) -> list[str]:
        """The setters that were called so far, without process numbers."""
        text = (self.root / machine.PLACE / "run/calls").read_text()
        return [line.rpartition(" pid=")[0] for line in text.splitlines()]


class Run(NamedTuple):
    """A run that has ended."""

    code: int
    out: Path
    reported: str

    def json(self, name: str) -> Any:
        return json.loads((self.out / name).read_text())

    def step(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(
            row for row in self.json("record.json")["steps"] if row["name"] == name
        )
        return found

    def statuses(self) -> dict[str, str]:
        return {row["name"]: row["status"] for row in self.json("record.json")["steps"]}


Make = Callable[..., Place]


@pytest.fixture(scope="session")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated NVML and CUDA libraries, compiled once."""
    return carried.libraries(tmp_path_factory.mktemp("libraries"))


def place(
    folder: Path,
    library: Path,
    name: str,
    faults: Iterable[str] = (),
    more: str = "",
    cuda: str = "",
) -> Place:
    """A simulated node of a class of the scoreboard below `folder`."""
    document = classes.document(name)
    root = machine.write(machine.scenario(document, faults), folder / "node", document)
    carry = carried.folder(folder / "carry", root, more=more)
    count = int((document["gpu"] or {}).get("count", 0))
    return Place(
        root,
        carry,
        carried.environment(root, library, count=count, faults=cuda),
        folder / "state/state.json",
    )


@pytest.fixture
def make(tmp_path: Path, simulators: Path) -> Make:
    """Make a simulated node for one test: `make(class, faults, more=…, cuda=…)`."""
    return lambda name="board_l4", faults=(), **words: place(
        tmp_path, simulators, name, faults, **words
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, simulators: Path) -> tuple[Place, Run]:
    """A whole run with --change on eight simulated GPUs."""
    folder = tmp_path_factory.mktemp("whole")
    here = place(folder, simulators, "board_h100")
    return here, here.run(folder / "out", "--change", "--locked-clocks")
