"""testinfra for GPU nodes: readers of GPUs, PCI, NUMA and kernel modules, as pytest fixtures
(docs/how-to/testing-nodes.md).

Nothing here uses another part of goldnode: these are independent readers, so that one bug cannot pass twice.
"""
