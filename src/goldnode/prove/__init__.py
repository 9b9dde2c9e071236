"""`scripts/prove-gpu`: all tests that need a real GPU, in one run of at most ten minutes.

The run writes a record that tests and facts can use. On the GPU machine it needs only a checkout, Python 3.9
or newer and the standard library. A carry folder (:mod:`.carry`) has everything else. :mod:`.steps` contains
the steps. :mod:`.session` has what they share: child processes with time limits, and the output directory.
docs/prove-gpu.md describes the record.
"""

SCHEMA = "goldnode.prove-gpu/1"
