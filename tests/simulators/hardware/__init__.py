"""Simulated hardware: a generated, stateful libnvidia-ml.so.1 and a sysfs tree, both from one scenario
(README.md).
"""

from tests.simulators.hardware.library import BuildError, build
from tests.simulators.hardware.scenario import Scenario, ScenarioError, write

__all__ = ["BuildError", "Scenario", "ScenarioError", "build", "write"]
