"""The machine as all rooms see it: files and processes (`host.py` is the one door), the boot,
errors, and shared names.

Names that a lower room installs and a higher one writes are here as well: files of the verdict and
the gate, Slurm's view of the node. It imports nothing but itself.
"""
