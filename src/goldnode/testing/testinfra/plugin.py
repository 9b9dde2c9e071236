"""The pytest plugin: fixtures in addition to testinfra's own `host`. It adds no option, collects nothing and
contacts no machine by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from goldnode.testing.testinfra.readers import Gpus, ModulesReader, NumaReader, Pci


def _of(host: Any) -> Any:
    """Return the readings of a host. They are stored with the host and read once."""
    from goldnode.testing.testinfra.readers import Reading

    found = host.__dict__.get("goldnode_reading")
    if found is None:
        found = host.__dict__["goldnode_reading"] = Reading(host)
    return found


@pytest.fixture(scope="module")
def goldnode_gpus(host: Any) -> Gpus:
    """The NVIDIA GPUs of the host as NVML reports them: see :class:`readers.Gpus`."""
    found: Gpus = _of(host).gpus
    return found


@pytest.fixture(scope="module")
def goldnode_pci(host: Any) -> Pci:
    """The PCI functions of the host: see :class:`readers.Pci`."""
    found: Pci = _of(host).pci
    return found


@pytest.fixture(scope="module")
def goldnode_numa(host: Any) -> NumaReader:
    """The NUMA nodes of the host, and what is on which: see :class:`readers.Numa`."""
    found: NumaReader = _of(host).numa
    return found


@pytest.fixture(scope="module")
def goldnode_modules(host: Any) -> ModulesReader:
    """The kernel modules of the host that are loaded: see :class:`readers.Modules`."""
    found: ModulesReader = _of(host).modules
    return found


@pytest.fixture(scope="module")
def goldnode_policy(host: Any) -> Any:
    """A function: what of a policy (the keys of a class's `policy`) the GPUs are not set to, a line each."""
    reading = _of(host)

    def differences(policy: Any) -> list[str]:
        from goldnode.testing.testinfra.readers import differences as compare

        return compare(policy, reading.gpus)

    return differences
