"""Taking nodes out of service and returning them, without losing the drain of another owner.

`protocol` has the decisions and `record` their memory. `slurm`, `kubectl` and `command` are the
ways to drain, which `choice` registers by name. `questions` is for reading many nodes at once.
"""
