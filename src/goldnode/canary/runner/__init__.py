"""The program that runs canary jobs on a node: standard library only, Python 3.9, one file (`goldnode-canary`).

`start` is its command line, `child` starts each job as a process of its own, `work` is that process. It shares the libraries of
goldnode-smoke (`goldnode.gpuprogram`) and NVML through `goldnode.node.device`.
"""
