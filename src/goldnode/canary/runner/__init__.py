"""The program that runs canary jobs on a node: standard library only, Python 3.9, one file (`goldnode-canary`).

`start` is its command line, `process` one job in a process of its own. It builds on the modules
that call a GPU (`goldnode.gpuprogram`) and on NVML through `goldnode.node.device`.
"""
