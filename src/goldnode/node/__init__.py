"""Everything that runs on a node, with the standard library of Python 3.9 alone. It is packed into
one file (`goldnode-node`).

The rooms, in the order of life. A room imports only rooms above it in this list
(tests/unit/test_layers.py)::

    ground      the machine: files, processes, boot; what all rooms name alike
    device      the GPU library, in a process that can be killed
    effective   what is in effect: many files by the rules of the program that reads them
    probe       the readers: what the machine reports about itself; they judge nothing
    state       the engine: observe, plan, apply, remove
    verdict     the rules over a capture and the engine's plan
    gate        the effects of a verdict: drain, block, return
    slots       the second root partition: write it, try it
    diagnose    two samples of a slow node, and their bottleneck
    serve       metrics, and the diagnostics endpoint
    follow      a node that follows a signed channel by itself
    cachekey    keys of caches for compiled GPU code
    preflight   checks right before a job starts, by its caches too
    program     the entry: command line, requests of a controller, one check from reading to gate

An `__init__` of a room holds its docstring and no code: every start of the program runs those that
it passes.
"""
