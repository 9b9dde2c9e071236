"""`scripts/prove-gpu`: all tests that need a real GPU, in one run of at most ten minutes.

On the GPU machine this runs from a checkout with Python 3.9 or newer and the standard library; what
cannot be resolved there travels in a carry folder (:mod:`.carry`). :mod:`.steps` holds the steps,
:mod:`.session` what they share: children that can be killed, time limits, the output directory.
docs/how-to/prove-gpu.md describes the record.
"""

SCHEMA = "goldnode.prove-gpu/1"
