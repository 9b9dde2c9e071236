"""Taking nodes out of service and returning them, without losing a drain of somebody else.

`protocol` has the decisions and `record` their memory. `slurm`, `kubectl` and `command` are the
ways to drain, which `choice` registers by name.
"""
