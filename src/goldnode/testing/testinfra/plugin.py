"""The pytest plugin: fixtures in addition to testinfra's own `host`. It adds no option, collects nothing and
contacts no machine by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from goldnode.testing.testinfra.readers import (
        Gpus,
        ModulesReader,
        NumaReader,
        Pci,
        Reading,
    )


def reading_of(host: Any) -> Reading:
    """Return the readings of a host. They are stored with the host and read once."""
    # Pytest loads this plugin in every run of a site.
    from goldnode.testing.testinfra.readers import Reading

    # testinfra hands out one object for a host: all modules share its readings.
    reading: Reading | None = host.__dict__.get("goldnode_reading")
    if reading is None:
        reading = host.__dict__["goldnode_reading"] = Reading(host)
    return reading


@pytest.fixture(scope="module")
def goldnode_gpus(host: Any) -> Gpus:
    """Return the NVIDIA GPUs of the host as NVML reports them; see :class:`readers.Gpus`."""
    return reading_of(host).gpus


@pytest.fixture(scope="module")
def goldnode_pci(host: Any) -> Pci:
    """Return the PCI functions of the host; see :class:`readers.Pci`."""
    return reading_of(host).pci


@pytest.fixture(scope="module")
def goldnode_numa(host: Any) -> NumaReader:
    """Return the NUMA nodes of the host and their devices; see :class:`readers.Numa`."""
    return reading_of(host).numa


@pytest.fixture(scope="module")
def goldnode_modules(host: Any) -> ModulesReader:
    """Return the loaded kernel modules of the host; see :class:`readers.Modules`."""
    return reading_of(host).modules


@pytest.fixture(scope="module")
def goldnode_policy(host: Any) -> Any:
    """Return a function that lists the settings of a policy (the keys of a class's `policy`) that the GPUs do
    not have, one line each.
    """
    reading = reading_of(host)

    def differences(policy: Any) -> list[str]:
        from goldnode.testing.testinfra.readers import differences as compare

        return compare(policy, reading.gpus)

    return differences
