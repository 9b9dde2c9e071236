"""testinfra for GPU nodes: readers of GPUs, PCI, NUMA and kernel modules, as fixtures of pytest (docs/testing-nodes.md).

Nothing here uses another part of goldnode: these are second readers, so that one bug cannot pass twice.
"""
