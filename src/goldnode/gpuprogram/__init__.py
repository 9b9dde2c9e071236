"""goldnode-smoke: the tests that run inside an image or on a node.

It needs Python's standard library only, 3.9 or newer; `pack` packs it into a single file. Every test runs in
a process of its own, because driver libraries hang and crash. The runner kills such a process and reports it.
"""
