"""goldnode-smoke: what runs inside an image or on a node. Python's standard library alone, 3.9 or newer; packed into one file by `pack`.

Every test is a function in a module of its own process: libraries of drivers hang and crash, and a test that does is killed and told.
"""
